/* reconcile_ledger.c - our side: all jobs of a target, from the daemon. */
#include "cli/reconcile.h"

#include <string.h>

enum {
    PAGE = 1000,
    PAGE_WHOLE = 50, /* the first one; then by how large jobs are */
    PAGE_BYTES = 4 << 20,
};

struct lk_hash128 lk_hash_text(const struct lk_run *run, struct lk_slice text)
{
    struct lk_siphash state;

    lk_siphash_init(&state, run->key);
    lk_siphash_update(&state, text.data, text.len);
    return lk_siphash_final128(&state);
}

/* The values of its body that are compared. */
static void take_values(struct lk_run *run, struct lk_picks *picks,
                        const struct lk_reply *job, struct lk_item *item,
                        struct lk_slice *texts)
{
    bool json = lk_picks_read(picks, lk_field_text(job, "body")) == LK_OK;

    for (size_t i = 0; i < run->pair_count; i++) {
        texts[i] = json ? picks->picks[i].value : (struct lk_slice){0};
        lk_must(lk_value_hash(run->key, texts[i], &item->values[i]));
    }
}

static uint16_t time_flags(const struct lk_run *run, const struct lk_reply *job)
{
    uint64_t created_ms = lk_field_number(job, "created_ms");
    uint64_t ended_ms = lk_field_number(job, "ended_ms");
    uint64_t last_ms = ended_ms > created_ms ? ended_ms : created_ms;
    uint16_t flags = 0;

    if (created_ms >= run->since_ms &&
        (run->until_ms == 0 || created_ms < run->until_ms)) {
        flags |= LK_ITEM_WINDOW;
    }
    if (run->complete_ms != 0) {
        flags |= last_ms >= run->complete_ms ? LK_ITEM_LATER : 0;
        flags |=
            last_ms + run->settle_ms < run->complete_ms ? LK_ITEM_SETTLED : 0;
    }
    return flags;
}

static enum lk_exit add_job(struct lk_run *run, struct lk_picks *picks,
                            const struct lk_reply *job)
{
    static const char *const names[] = {"reference", "tenant", "name",
                                        "downstream_key", "provider_id"};
    struct lk_slice texts[LK_TEXTS] = {{0}};
    struct lk_item item = {
        .number = lk_field_number(job, "id"),
        .attempt = (uint32_t)lk_field_number(job, "attempts"),
        .flags = time_flags(run, job),
    };
    enum lk_job_state state;
    enum lk_status status;

    if (!lk_job_state_parse(lk_field_text(job, "state"), &state)) {
        return lk_complain_reply(run->cli);
    }
    item.state = (uint16_t)state;
    for (size_t i = 0; i < LK_TEXT_VALUES; i++) {
        texts[i] = lk_field_text(job, names[i]);
    }
    if (texts[LK_TEXT_KEY].len > 0) {
        item.flags |= LK_ITEM_KEY;
        item.key = lk_hash_text(run, texts[LK_TEXT_KEY]);
    }
    if (texts[LK_TEXT_ID].len > 0) {
        item.flags |= LK_ITEM_ID;
        item.id = lk_hash_text(run, texts[LK_TEXT_ID]);
    }
    take_values(run, picks, job, &item, texts + LK_TEXT_VALUES);
    status = lk_spool_add(&run->spool, texts, LK_TEXT_VALUES + run->pair_count,
                          &item.place);
    if (status == LK_OK) {
        status = lk_reconcile_add(run->reconcile, LK_HERE, &item);
    }
    run->jobs++;
    if (status != LK_OK) {
        lk_complain("cannot write a temporary file: %s",
                    latchkey_status_text(status));
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* As many as fit, by what the last page took. */
static uint64_t next_limit(const struct lk_reply *rows, uint64_t limit)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < rows->count; i++) {
        const struct lk_reply *job = &rows->elements[i];

        for (size_t k = 0; k < job->count; k++) {
            bytes += job->elements[k].text.len + 64;
        }
    }
    if (rows->count > 0) {
        limit = PAGE_BYTES / (bytes / rows->count + 1);
    }
    return limit < 1 ? 1 : limit > PAGE ? PAGE : limit;
}

enum lk_exit lk_ledger_read(struct lk_run *run)
{
    struct lk_jobs_filter filter = {
        .target = run->target,
        .whole = run->pair_count > 0,
    };
    struct lk_picks picks = {0};
    uint64_t limit = filter.whole ? PAGE_WHOLE : PAGE;
    uint64_t cursor = 0;
    enum lk_exit result;

    for (size_t i = 0; i < run->pair_count; i++) {
        /* Looked at when the options were read. */
        lk_must(lk_picks_add(&picks, latchkey_slice(run->pairs[i].here)));
    }
    do {
        const struct lk_reply *rows = NULL;

        result = lk_jobs_page(run->cli, &filter, limit, &cursor, &rows);
        for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
            result = add_job(run, &picks, &rows->elements[i]);
        }
        if (result == LK_EXIT_DONE && filter.whole) {
            limit = next_limit(rows, limit);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    lk_picks_free(&picks);
    return result;
}
