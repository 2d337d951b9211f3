/*
 * check.c - reads what race.c wrote down and proves, key by key, that some
 * order of events within the recorded times obeys the state machine: nobody
 * ran twice, nothing acknowledged was lost, every replay is the answer that
 * was sent. Prints what offends and exits with 1.
 *
 * A *generation* is what one token stands for. Its grant lies between the call
 * of the first claim of its owner that may have brought it about and the first
 * reply that told of it; everything that might have ended it is taken at the
 * earliest moment at which it can have happened. README.md lists the rules.
 */
#include "tests/history/story.h"

#include <string.h>

struct token_use {
    uint64_t token;
    record_ref grant;
};

static struct token_use *tokens;
static size_t token_count, token_cap;
static bool busy;

/* ---- generations ---- */

static struct generation *find_generation(struct story *story, uint64_t token)
{
    size_t i = SEARCH(story->count, story->generations[middle].token >= token);

    return i < story->count && story->generations[i].token == token
               ? &story->generations[i]
               : NULL;
}

/* One token has one answer, whoever tells of it. */
static void fix_answer(struct generation *generation, record_ref record)
{
    if (generation->answer == NULL) {
        generation->answer = record;
    } else if (generation->answer->digest != record->digest) {
        complain("two answers for one token", generation->answer, record);
    }
}

/* The claims of the owner that may have brought the grant about. */
static void look_at_owner(struct story *story, struct generation *generation)
{
    struct list *claims = &story->claims;
    size_t i =
        SEARCH(claims->count, claims->at[middle]->owner >= generation->owner);

    for (; i < claims->count && claims->at[i]->owner == generation->owner;
         i++) {
        record_ref claim = claims->at[i];
        bool told =
            claim->verdict == HISTORY_NEW && claim->token == generation->token;

        if ((told || is_unknown(claim)) && claim->call_ns <= generation->hi) {
            generation->lo = earlier(generation->lo, claim->call_ns);
            generation->reexecute |= (claim->flags & HISTORY_REEXECUTE) != 0;
        }
    }
    generation->lapsed = later_by(generation->lo, generation->grant->lock_ms);
}

static void make_generations(struct story *story)
{
    for (size_t i = 0; i < story->granted.count; i++) {
        record_ref grant = story->granted.at[i];
        struct generation *last =
            story->count > 0 ? &story->generations[story->count - 1] : NULL;

        if (last != NULL && last->token == grant->token) {
            if (last->owner != grant->owner) {
                complain("one token for two owners", last->grant, grant);
            }
            continue;
        }
        story->generations = grow(story->generations, story->count, &story->cap,
                                  sizeof(*story->generations));
        story->generations[story->count++] = (struct generation){
            .token = grant->token,
            .owner = grant->owner,
            .grant = grant,
            .lo = grant->call_ns,
            .hi = grant->return_ns,
            .next_lo = NEVER,
            .released = NEVER,
            .expired = NEVER,
            .evicted = NEVER,
            .doubted = NEVER,
            .other_print = (grant->flags & HISTORY_OTHER_PRINT) != 0,
        };
        look_at_owner(story, &story->generations[story->count - 1]);
    }
}

/* The first eviction that can have met a completion. */
static int64_t first_eviction(struct story *story, record_ref complete)
{
    for (size_t i = 0; i < story->evictions.count; i++) {
        record_ref eviction = story->evictions.at[i];

        if (is_unknown(eviction) || eviction->return_ns >= complete->call_ns) {
            return eviction->call_ns;
        }
    }
    return NEVER;
}

/* A holder's command, and what it may have done to its generation. */
static void note_shown(struct story *story, struct generation *generation,
                       record_ref record)
{
    bool ok = record->verdict == HISTORY_OK;

    if (!may_have_happened(record)) {
        return;
    }
    switch (record->kind) {
    case HISTORY_COMPLETE:
        generation->expired = earlier(
            generation->expired, later_by(record->call_ns, record->ttl_ms));
        generation->evicted =
            earlier(generation->evicted, first_eviction(story, record));
        if (ok) {
            generation->done = record;
            fix_answer(generation, record);
        }
        break;
    case HISTORY_RELEASE:
        generation->released = earlier(generation->released, record->call_ns);
        generation->freed = ok ? record : generation->freed;
        break;
    case HISTORY_DOUBT:
        generation->doubted = earlier(generation->doubted, record->call_ns);
        break;
    case HISTORY_EXTEND:
        /* Counts only if it surely came in time. */
        if (ok && record->return_ns < generation->lapsed) {
            int64_t until = later_by(record->call_ns, record->lock_ms);
            generation->lapsed =
                until > generation->lapsed ? until : generation->lapsed;
        }
        break;
    default:
        break;
    }
}

static void fill_generations(struct story *story)
{
    for (size_t i = 0; i < story->shown.count; i++) {
        record_ref record = story->shown.at[i];
        struct generation *generation = find_generation(story, record->token);

        if (generation != NULL) {
            note_shown(story, generation, record);
        } else if (record->verdict == HISTORY_OK ||
                   record->verdict == HISTORY_KEPT) {
            complain("a token that nobody was given was accepted", record,
                     NULL);
        }
    }
    for (size_t i = story->count; i-- > 0;) {
        struct generation *it = &story->generations[i];
        bool last = i + 1 == story->count;

        it->known = last ? it->hi : earlier(it->hi, it[1].known);
        it->next_lo = last ? NEVER : earlier(it[1].lo, it[1].next_lo);
    }
}

/* ---- rules ---- */

/* When a claim could be told NEW again, at the earliest. */
static int64_t earliest_end(const struct generation *it, bool reexecute)
{
    int64_t end = earlier(it->expired, it->evicted);

    if (it->done != NULL) {
        return end; /* completed: neither doubt nor a lapsed lock matters */
    }
    end = earlier(end, it->released);
    return reexecute ? earlier(end, earlier(it->doubted, it->lapsed)) : end;
}

static void check_succession(struct story *story)
{
    for (size_t i = 0; i + 1 < story->count; i++) {
        const struct generation *it = &story->generations[i];

        if (it[1].hi < earliest_end(it, it[1].reexecute)) {
            complain("NEW while an earlier NEW is unresolved", it->grant,
                     it[1].grant);
        }
    }
}

/* A claim called after a token was told gets no lower one. */
static void check_token_order(struct story *story)
{
    struct list *returned = &story->returned;
    record_ref highest = NULL;
    size_t next = 0;

    for (size_t i = 0; i < story->all.count; i++) {
        record_ref claim = story->all.at[i];

        for (; next < returned->count &&
               returned->at[next]->return_ns < claim->call_ns;
             next++) {
            if (highest == NULL || returned->at[next]->token > highest->token) {
                highest = returned->at[next];
            }
        }
        if (claim->verdict == HISTORY_NEW && highest != NULL &&
            claim->token < highest->token) {
            complain("a token that falls", highest, claim);
        }
    }
}

/* An answer must have been sent before it is told. */
static void check_answer(struct story *story, record_ref told)
{
    struct list *answers = &story->answers;
    size_t i =
        SEARCH(answers->count, answers->at[middle]->digest >= told->digest);
    record_ref sent = i < answers->count ? answers->at[i] : NULL;
    struct generation *generation;

    if (sent == NULL || sent->digest != told->digest) {
        complain("an answer that nobody sent", told, NULL);
        return;
    }
    if (sent->call_ns > told->return_ns) {
        complain("an answer before it was sent", told, sent);
    }
    if (told->kind != HISTORY_CLAIM && told->token != sent->token) {
        complain("KEPT with the answer of another token", told, sent);
    }
    generation = find_generation(story, sent->token);
    if (generation != NULL) {
        fix_answer(generation, told);
    }
}

/* With --busy: another transaction may have been at work on the record, and
 * then a claim gets INFLIGHT whatever the record says: it may be free or
 * completed, or its fingerprint another one. (Of the read-back, too, where two
 * daemons are asked at once.) */
static bool may_be_busy(record_ref claim)
{
    return busy && claim->verdict == HISTORY_INFLIGHT;
}

/* After an acknowledged completion, and within its TTL, nothing else. */
static void check_after_done(struct story *story, record_ref claim)
{
    struct list *done = &story->done;
    size_t i =
        SEARCH(done->count, done->at[middle]->return_ns >= claim->call_ns);
    record_ref complete = i > 0 ? done->at[i - 1] : NULL;
    struct generation *it;

    if (complete == NULL ||
        (it = find_generation(story, complete->token)) == NULL ||
        claim->return_ns >=
            earlier(later_by(complete->call_ns, complete->ttl_ms),
                    it->evicted)) {
        return;
    }
    bool other = (claim->flags & HISTORY_OTHER_PRINT) != 0;
    if (may_be_busy(claim)) {
        return;
    }
    if (claim->verdict !=
        (other == it->other_print ? HISTORY_REPLAY : HISTORY_MISMATCH)) {
        complain("a completion that was acknowledged is not replayed", complete,
                 claim);
    } else if (claim->verdict == HISTORY_REPLAY &&
               claim->digest != complete->digest) {
        complain("another answer than the one that was acknowledged", complete,
                 claim);
    }
}

/* One generation is current throughout the claim: what may it be told? */
static void check_within(struct story *story, const struct generation *it,
                         record_ref claim)
{
    bool same = ((claim->flags & HISTORY_OTHER_PRINT) != 0) == it->other_print;
    bool reexecute = (claim->flags & HISTORY_REEXECUTE) != 0;

    if (claim->verdict == HISTORY_REFUSED &&
        claim->return_ns < earliest_end(it, reexecute)) {
        complain("would be NEW while an earlier NEW is unresolved", it->grant,
                 claim);
    }
    if (story->first_lost <= claim->return_ns) {
        return; /* a generation that nobody saw may be in between */
    }
    if (may_be_busy(claim)) {
        return;
    }
    if (claim->verdict == HISTORY_MISMATCH && same) {
        complain("MISMATCH for the same fingerprint", it->grant, claim);
    }
    if (!same && (claim->verdict == HISTORY_REPLAY ||
                  claim->verdict == HISTORY_INFLIGHT ||
                  claim->verdict == HISTORY_UNCERTAIN)) {
        complain("another fingerprint, and no MISMATCH", it->grant, claim);
    }
    if (claim->verdict == HISTORY_UNCERTAIN &&
        claim->return_ns < earlier(it->doubted, it->lapsed)) {
        complain("UNCERTAIN without a doubt or a lapsed lock", it->grant,
                 claim);
    }
    record_ref end = it->done != NULL ? it->done : it->freed;
    if (end != NULL && end->return_ns < claim->call_ns &&
        (claim->verdict == HISTORY_INFLIGHT ||
         claim->verdict == HISTORY_UNCERTAIN)) {
        complain("running or uncertain after its acknowledged end", end, claim);
    }
}

static void check_claim(struct story *story, record_ref claim)
{
    if (claim->verdict == HISTORY_REPLAY) {
        check_answer(story, claim);
    }
    if (is_unknown(claim)) {
        return;
    }
    check_after_done(story, claim);
    size_t i = SEARCH(story->count,
                      story->generations[middle].known >= claim->call_ns);
    if (i > 0 && story->generations[i - 1].next_lo > claim->return_ns) {
        check_within(story, &story->generations[i - 1], claim);
    }
}

static void check_stale(struct story *story, const struct generation *it,
                        record_ref record)
{
    int64_t reason = earlier(it->next_lo, earliest_end(it, false));

    reason = earlier(reason, story->first_lost);
    if (record->return_ns < reason) {
        complain("STALE for the current token", it->grant, record);
    }
}

static void check_shown(struct story *story, record_ref record)
{
    struct generation *it = find_generation(story, record->token);

    if (record->verdict == HISTORY_KEPT) {
        check_answer(story, record);
    }
    if (it == NULL) {
        return;
    }
    if (record->verdict == HISTORY_STALE) {
        check_stale(story, it, record);
    }
    if (record->verdict != HISTORY_OK) {
        return;
    }
    if (it + 1 < story->generations + story->count &&
        it[1].known < record->call_ns) {
        complain("a holder that was overtaken was not told STALE", it[1].grant,
                 record);
    }
    if (it->freed != NULL && it->freed->return_ns < record->call_ns) {
        complain("OK for a token that was released", it->freed, record);
    }
    if (it->done != NULL && it->done->return_ns < record->call_ns) {
        complain("OK for a token that was completed", it->done, record);
    }
}

/* ---- a key, a file, a run
 * ----------------------------------------------------- */

static void sort_story(struct story *story)
{
    for (size_t i = 0; i < story->all.count; i++) {
        record_ref record = story->all.at[i];

        if (record->kind == HISTORY_EVICT) {
            if (may_have_happened(record)) {
                add(&story->evictions, record);
            }
        } else if (record->kind != HISTORY_CLAIM) {
            add(&story->shown, record);
            if (record->kind == HISTORY_COMPLETE) {
                add(&story->answers, record);
                if (record->verdict == HISTORY_OK) {
                    add(&story->done, record);
                }
            }
        } else {
            add(&story->claims, record);
            if (record->verdict == HISTORY_NEW) {
                add(&story->granted, record);
                add(&story->returned, record);
            }
            if (is_unknown(record) && !(record->flags & HISTORY_NONEW)) {
                story->first_lost = earlier(story->first_lost, record->call_ns);
            }
        }
    }
    sort(&story->claims, by_owner);
    sort(&story->granted, by_token);
    sort(&story->returned, by_return);
    sort(&story->shown, by_token_call);
    sort(&story->answers, by_digest);
    sort(&story->done, by_return);
}

static void check_key(struct story *story)
{
    sort_story(story);
    make_generations(story);
    fill_generations(story);
    check_succession(story);
    check_token_order(story);
    for (size_t i = 0; i < story->claims.count; i++) {
        check_claim(story, story->claims.at[i]);
    }
    for (size_t i = 0; i < story->shown.count; i++) {
        check_shown(story, story->shown.at[i]);
    }
    for (size_t i = 0; i < story->count; i++) {
        tokens = grow(tokens, token_count, &token_cap, sizeof(*tokens));
        tokens[token_count++] = (struct token_use){story->generations[i].token,
                                                   story->generations[i].grant};
    }
}

static void free_story(struct story *story)
{
    free(story->all.at);
    free(story->claims.at);
    free(story->granted.at);
    free(story->returned.at);
    free(story->shown.at);
    free(story->answers.at);
    free(story->evictions.at);
    free(story->done.at);
    free(story->generations);
}

/* The lists keep their memory from key to key. */
static void clear_story(struct story *story)
{
    story->all.count = story->claims.count = story->granted.count = 0;
    story->returned.count = story->shown.count = story->answers.count = 0;
    story->done.count = story->count = 0;
    story->evictions.count = 0;
    story->first_lost = NEVER;
}

static int by_use(const void *left, const void *right)
{
    const struct token_use *a = left, *b = right;

    return COMPARE(a->token, b->token);
}

static void check_uniqueness(void)
{
    if (token_count > 1) {
        qsort(tokens, token_count, sizeof(*tokens), by_use);
    }
    for (size_t i = 1; i < token_count; i++) {
        if (tokens[i].token == tokens[i - 1].token) {
            complain("one token for two operations", tokens[i - 1].grant,
                     tokens[i].grant);
        }
    }
}

static void read_file(const char *path, struct history_record **records,
                      size_t *count, size_t *cap)
{
    FILE *file = fopen(path, "rb");
    size_t got;

    if (file == NULL) {
        perror(path);
        exit(2);
    }
    do {
        *records = grow(*records, *count, cap, sizeof(**records));
        got = fread(*records + *count, sizeof(**records), *cap - *count, file);
        for (size_t i = *count; i < *count + got; i++) {
            record_ref record = *records + i;

            if (record->kind == 0 || record->kind >= HISTORY_KIND_END ||
                record->verdict >= HISTORY_VERDICT_END ||
                (record->return_ns < record->call_ns) !=
                    (record->verdict == HISTORY_NONE)) {
                fprintf(stderr, "check: %s: record %zu makes no sense\n", path,
                        i - *count);
                exit(2);
            }
        }
        *count += got;
    } while (got > 0);
    fclose(file);
}

int main(int argc, char **argv)
{
    struct history_record *records = NULL;
    struct story story = {0};
    struct list all = {0};
    size_t count = 0, cap = 0, keys = 0;

    busy = argc > 1 && !strcmp(argv[1], "--busy");
    if (argc < 2 + busy) {
        fputs("usage: check [--busy] HISTORY...\n", stderr);
        return 2;
    }
    for (int i = 1 + busy; i < argc; i++) {
        read_file(argv[i], &records, &count, &cap);
    }
    for (size_t i = 0; i < count; i++) {
        add(&all, &records[i]);
    }
    sort(&all, by_key);
    for (size_t i = 0; i < count; keys++) {
        uint64_t key = all.at[i]->key;

        clear_story(&story);
        for (; i < count && all.at[i]->key == key; i++) {
            add(&story.all, all.at[i]);
        }
        check_key(&story);
    }
    check_uniqueness();
    printf("%zu operations, %zu keys, %zu tokens: %" PRIu64 " violations\n",
           count, keys, token_count, complaints);
    free_story(&story);
    free(all.at);
    free(records);
    free(tokens);
    return complaints > 0;
}
