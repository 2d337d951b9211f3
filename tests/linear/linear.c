/*
 * linear.c - random commands from many connections, and the proof that every
 * reply fits into one order of events.
 *
 * Groups of connections work side by side, each on a few new names, in bursts
 * of pipelined commands with short locks and TTLs. When a group has sent
 * enough it waits for what is in progress, reads every record back and lets
 * search.h find an order. Then it begins again with other names. The daemon may
 * be killed and started again at any time; whoever does so does it from
 * outside. A run is repeated by its seed, as far as the choices are concerned.
 */
#include "tests/history/wire.h"
#include "tests/linear/search.h"

#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

enum {
    KEYS = 3,       /* names of one group */
    LINKS = 5,      /* its connections; the last one is an operator's */
    WINDOW = 16,    /* commands in progress on one connection */
    BURST = 6,      /* commands at once */
    SEND_MOST = 44, /* commands for one name */
    OPEN_MOST = 8,  /* of these, in progress: more would be hard to sort */
    SEEN_MOST = 16, /* tokens and references remembered of one name */
    OWNERS = 3,
    SERVERS_MAX = 8,
    GROUPS_MAX = 64,
    BODY_MAX = 60000,
};

#define TENANT      "acme"
#define SCOPE       "POST /linear"
#define PATIENCE_US INT64_C(20000000) /* for what was sent to be answered */

struct key {
    char name[48];
    bool quick; /* short locks and TTLs */
    struct op ops[OPS_MAX];
    unsigned count;
    unsigned open; /* in progress */
    uint64_t tokens[SEEN_MOST];
    char references[SEEN_MOST][LK_REFERENCE_TEXT + 1];
    unsigned token_count, reference_count;
    bool read_back;
};

struct pending {
    unsigned key, op;
    bool ignored; /* AUTH */
};

struct link {
    int fd; /* -1: closed */
    bool want_write, cut;
    uint32_t number; /* of the connection, over the whole run */
    int64_t due_us;  /* to connect, or to send more */
    struct wire_out out;
    char *in;
    size_t in_len, in_cap;
    struct pending window[WINDOW];
    unsigned first, count;
    struct group *group;
};

enum phase { PHASE_SEND, PHASE_DRAIN, PHASE_READ_BACK };

struct group {
    unsigned id;
    enum phase phase;
    int64_t end_us; /* of sending */
    struct key keys[KEYS];
    struct link links[LINKS];
};

static struct {
    const char *servers[SERVERS_MAX];
    unsigned server_count, groups;
    uint64_t seed;
    double seconds;
    bool wall, busy, keep_going;
} option = {.groups = 6, .seed = 1, .seconds = 5};

static struct group *groups;
static struct search search;
static int epoll_fd;
static uint64_t random_state;
static uint32_t link_numbers;
static int64_t durable_us; /* the latest call that is known to be durable */
static unsigned group_ids;
static volatile sig_atomic_t enough;
static uint64_t told_counts[TOLD_END], kind_counts[KIND_END];
static uint64_t checked, violations, undecided, nodes_most;

static _Noreturn void die(const char *what, const char *detail)
{
    fprintf(stderr, "linear: %s%s%s\n", what, detail[0] ? ": " : "", detail);
    exit(2);
}

/* ---- time and chance ---- */

static int64_t read_us(clockid_t id)
{
    struct timespec time;

    clock_gettime(id, &time);
    return time.tv_sec * INT64_C(1000000) + time.tv_nsec / 1000;
}

static int64_t now_us(void)
{
    return read_us(CLOCK_BOOTTIME);
}

/* The embedded store follows the wall clock only once, servers always. */
static void set_clock(void)
{
    clock_offset_us = read_us(CLOCK_REALTIME) - now_us();
}

static uint64_t next_random(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t below(uint64_t limit)
{
    return next_random() % limit;
}

static bool chance(unsigned percent)
{
    return below(100) < percent;
}

/* ---- what belongs to one operation alone ---- */

struct belonging {
    uint64_t value;
    char name[48];
};

static struct belonging *belongings;
static size_t belonging_count, belonging_cap;

static size_t belonging_slot(uint64_t value)
{
    size_t at =
        value * UINT64_C(0x9e3779b97f4a7c15) >> 20 & (belonging_cap - 1);

    while (belongings[at].value != 0 && belongings[at].value != value) {
        at = (at + 1) & (belonging_cap - 1);
    }
    return at;
}

static void grow_belongings(void)
{
    struct belonging *old = belongings;
    size_t cap = belonging_cap;

    belonging_cap = cap ? 2 * cap : 4096;
    belongings = calloc(belonging_cap, sizeof(*old));
    if (belongings == NULL) {
        die("out of memory", "");
    }
    for (size_t i = 0; i < cap; i++) {
        if (old[i].value != 0) {
            belongings[belonging_slot(old[i].value)] = old[i];
        }
    }
    free(old);
}

/* A token or a reference: two names never have the same. */
static void claim_for(uint64_t value, const char *what, const char *name)
{
    if (2 * belonging_count >= belonging_cap) {
        grow_belongings();
    }
    struct belonging *it = &belongings[belonging_slot(value)];
    if (it->value == 0) {
        it->value = value;
        snprintf(it->name, sizeof(it->name), "%s", name);
        belonging_count++;
    } else if (strcmp(it->name, name) != 0) {
        printf("VIOLATION: %s and %s have the same %s\n", it->name, name, what);
        violations++;
    }
}

/* ---- what is asked ---- */

static void remember_token(struct key *key, uint64_t token)
{
    for (unsigned i = 0; i < key->token_count; i++) {
        if (key->tokens[i] == token) {
            return;
        }
    }
    claim_for(token, "token", key->name);
    if (key->token_count < SEEN_MOST) {
        key->tokens[key->token_count++] = token;
    }
}

static void remember_reference(struct key *key, const char *text, size_t len)
{
    if (len != LK_REFERENCE_TEXT) {
        return;
    }
    for (unsigned i = 0; i < key->reference_count; i++) {
        if (memcmp(key->references[i], text, len) == 0) {
            return;
        }
    }
    claim_for(digest(text, len), "reference", key->name);
    if (key->reference_count < SEEN_MOST) {
        memcpy(key->references[key->reference_count++], text, len);
    }
}

/* Mostly the newest one; now and then an old one, or one that nobody has. */
static uint64_t choose_token(const struct group *group, const struct key *key)
{
    const struct key *other = &group->keys[below(KEYS)];

    if (other->token_count > 0 && chance(4)) {
        return other->tokens[other->token_count - 1];
    }
    if (key->token_count == 0) {
        return UINT64_C(1) << 52; /* no store gets that far */
    }
    return key
        ->tokens[chance(85) ? key->token_count - 1 : below(key->token_count)];
}

static int64_t choose_lock(const struct key *key)
{
    return key->quick && chance(80) ? (int64_t)(3 + below(90))
           : chance(50)             ? (int64_t)(2000 + below(5000))
                                    : 0;
}

static int64_t choose_ttl(const struct key *key)
{
    return key->quick && chance(75) ? (int64_t)(3 + below(120))
           : chance(50)             ? (int64_t)(2000 + below(5000))
                                    : 0;
}

static uint8_t choose_kind(const struct link *link)
{
    static const uint8_t holders[] = {
        KIND_CLAIM,    KIND_CLAIM,  KIND_CLAIM,  KIND_CLAIM,    KIND_CLAIM,
        KIND_CLAIM,    KIND_CLAIM,  KIND_CLAIM,  KIND_COMPLETE, KIND_COMPLETE,
        KIND_COMPLETE, KIND_EXTEND, KIND_EXTEND, KIND_RELEASE,  KIND_DOUBT,
        KIND_KEEP,     KIND_LOOKUP, KIND_LOOKUP, KIND_FIND,     KIND_RELEASE};
    static const uint8_t operators[] = {KIND_RESOLVE_COMPLETED,
                                        KIND_RESOLVE_RELEASED,
                                        KIND_EVICT,
                                        KIND_EVICT,
                                        KIND_LOOKUP,
                                        KIND_FIND};
    bool operates = link == &link->group->links[LINKS - 1];

    return operates ? operators[below(sizeof(operators))]
                    : holders[below(sizeof(holders))];
}

/* ---- commands ---- */

static void add_name(struct wire_out *out, int words, const char *command,
                     const struct key *key)
{
    wire_array(out, words);
    wire_text(out, command);
    wire_text(out, TENANT);
    wire_text(out, SCOPE);
    wire_text(out, key->name);
}

static void add_option(struct wire_out *out, const char *name, int64_t value)
{
    if (value != 0) {
        wire_text(out, name);
        wire_number(out, (uint64_t)value);
    }
}

static void add_claim(struct wire_out *out, const struct key *key,
                      const struct op *op)
{
    char owner[16];
    int words = 5 + 2 * (op->owner != 0) + 2 * (op->ttl_ms != 0) +
                2 * (op->lock_ms != 0) + 2 * (op->wait_ms != 0) +
                op->reexecute + op->no_new;

    add_name(out, words, "CLAIM", key);
    wire_text(out, op->print == 1 ? "1:aa" : "1:bb");
    if (op->owner != 0) {
        snprintf(owner, sizeof(owner), "owner-%u", op->owner);
        wire_text(out, "OWNER");
        wire_text(out, owner);
    }
    add_option(out, "TTL", op->ttl_ms);
    add_option(out, "LOCK", op->lock_ms);
    add_option(out, "WAIT", op->wait_ms);
    if (op->reexecute) {
        wire_text(out, "REEXECUTE");
    }
    if (op->no_new) {
        wire_text(out, "NONEW");
    }
}

/* No two answers are the same, but for those that are empty. */
static void add_answer(struct wire_out *out, struct op *op)
{
    static unsigned char body[BODY_MAX];
    char headers[64];
    size_t len = chance(10) ? 0 : chance(90) ? below(300) : below(BODY_MAX);
    size_t head = chance(10) ? 0
                             : (size_t)snprintf(headers, sizeof(headers),
                                                "ETag: \"%016" PRIx64 "\"\r\n",
                                                next_random());

    for (size_t i = 0; i < len; i++) {
        body[i] = (unsigned char)(i % 8 ? body[i - 1] + 7u : next_random());
    }
    op->sent.status = 200 + below(400);
    wire_number(out, op->sent.status);
    wire_bulk(out, headers, head);
    wire_bulk(out, body, len);
    if (!op->omit) {
        op->sent.headers = digest(headers, head);
        op->sent.body = digest(body, len);
    }
}

static const char *make_reason(const char *what, uint64_t *digested)
{
    static char text[48];

    snprintf(text, sizeof(text), "%s %" PRIx64, what, next_random());
    *digested = digest_text(text);
    return text;
}

static void add_complete(struct wire_out *out, const struct key *key,
                         struct op *op)
{
    add_name(out, 8 + 2 * (op->ttl_ms != 0) + 2 * op->omit, "COMPLETE", key);
    wire_number(out, op->token);
    add_answer(out, op);
    add_option(out, "TTL", op->ttl_ms);
    if (op->omit) {
        wire_text(out, "OMIT");
        wire_text(out, make_reason("too large", &op->sent.reason));
    }
}

static void add_resolve(struct wire_out *out, const struct key *key,
                        struct op *op)
{
    bool completed = op->kind == KIND_RESOLVE_COMPLETED;

    add_name(out, 9 + 3 * completed + 2 * op->proof + op->running, "RESOLVE",
             key);
    wire_text(out, completed ? "COMPLETED" : "RELEASED");
    if (completed) {
        add_answer(out, op);
    }
    wire_text(out, "WHO");
    wire_text(out, "linear");
    wire_text(out, "WHY");
    wire_text(out, "chance");
    if (op->proof) {
        wire_text(out, "TOKEN");
        wire_number(out, op->token);
    }
    if (op->running) {
        wire_text(out, "RUNNING");
    }
}

static void add_find(struct wire_out *out, const struct key *key, struct op *op)
{
    const char *reference =
        key->references[chance(80) ? key->reference_count - 1
                                   : below(key->reference_count)];

    op->reason = digest(reference, LK_REFERENCE_TEXT);
    wire_array(out, 3);
    wire_text(out, "FIND");
    wire_text(out, TENANT);
    wire_text(out, reference);
}

static void add_command(struct wire_out *out, const struct key *key,
                        struct op *op)
{
    switch (op->kind) {
    case KIND_CLAIM:
        add_claim(out, key, op);
        break;
    case KIND_COMPLETE:
        add_complete(out, key, op);
        break;
    case KIND_RELEASE:
        add_name(out, 5, "RELEASE", key);
        wire_number(out, op->token);
        break;
    case KIND_DOUBT:
        add_name(out, 6, "DOUBT", key);
        wire_number(out, op->token);
        wire_text(out, make_reason("no answer", &op->reason));
        break;
    case KIND_EXTEND:
        add_name(out, 6, "EXTEND", key);
        wire_number(out, op->token);
        wire_number(out, (uint64_t)op->lock_ms);
        break;
    case KIND_KEEP:
        add_name(out, 5, "KEEP", key);
        wire_number(out, (uint64_t)op->ttl_ms);
        break;
    case KIND_LOOKUP:
        add_name(out, 4, "LOOKUP", key);
        break;
    case KIND_FIND:
        add_find(out, key, op);
        break;
    case KIND_EVICT:
        add_name(out, 8, "EVICT", key);
        wire_text(out, "WHO");
        wire_text(out, "linear");
        wire_text(out, "WHY");
        wire_text(out, "chance");
        break;
    default:
        add_resolve(out, key, op);
        break;
    }
}

static struct op choose_op(const struct link *link, const struct key *key)
{
    struct op op = {.kind = choose_kind(link), .told = TOLD_NOTHING};

    if (op.kind == KIND_FIND && key->reference_count == 0) {
        op.kind = KIND_LOOKUP;
    }
    switch (op.kind) {
    case KIND_CLAIM:
        op.owner = (uint8_t)(chance(10) ? 0 : 1 + below(OWNERS));
        op.print = chance(93) ? 1 : 2;
        op.lock_ms = choose_lock(key);
        op.ttl_ms = choose_ttl(key);
        op.wait_ms = chance(8) ? (int64_t)(1 + below(40)) : 0;
        op.reexecute = chance(20);
        op.no_new = chance(10);
        return op;
    case KIND_COMPLETE:
        op.omit = chance(15);
        op.ttl_ms = chance(50) ? choose_ttl(key) : 0;
        break;
    case KIND_EXTEND:
        op.lock_ms = choose_lock(key);
        op.lock_ms += op.lock_ms == 0 ? 40 : 0;
        break;
    case KIND_KEEP:
        op.ttl_ms = choose_ttl(key);
        op.ttl_ms += op.ttl_ms == 0 ? 90 : 0;
        return op;
    case KIND_RESOLVE_COMPLETED:
    case KIND_RESOLVE_RELEASED:
        op.proof = chance(40);
        op.running = chance(50);
        if (!op.proof) {
            return op;
        }
        break;
    case KIND_RELEASE:
    case KIND_DOUBT:
        break;
    default:
        return op;
    }
    op.token = choose_token(link->group, key);
    return op;
}

/* ---- what is told ---- */

static int64_t find_number(const struct wire_reply *reply, const char *name)
{
    for (int i = 0; i + 1 < reply->count; i += 2) {
        if (reply->word[i].data != NULL && reply->word[i].len == strlen(name) &&
            memcmp(reply->word[i].data, name, reply->word[i].len) == 0) {
            return reply->word[i + 1].number;
        }
    }
    return -1;
}

static struct lk_slice find_bytes(const struct wire_reply *reply,
                                  const char *name)
{
    for (int i = 0; i + 1 < reply->count; i += 2) {
        if (reply->word[i].data != NULL && reply->word[i].len == strlen(name) &&
            memcmp(reply->word[i].data, name, reply->word[i].len) == 0 &&
            reply->word[i + 1].data != NULL) {
            return (struct lk_slice){reply->word[i + 1].data,
                                     reply->word[i + 1].len};
        }
    }
    return (struct lk_slice){NULL, 0};
}

static struct lk_slice word_at(const struct wire_reply *reply, int at)
{
    return (struct lk_slice){reply->word[at].data, reply->word[at].len};
}

static uint64_t digest_slice(struct lk_slice slice)
{
    return digest(slice.data, slice.len);
}

static uint64_t take_reference(struct key *key, struct lk_slice text)
{
    remember_reference(key, text.data, text.len);
    return digest_slice(text);
}

static bool read_record(struct key *key, struct op *op,
                        const struct wire_reply *reply)
{
    enum lk_state state;
    struct lk_slice print = find_bytes(reply, "fingerprint");

    if (!lk_state_parse(find_bytes(reply, "state"), &state) ||
        !latchkey_slice_equal(find_bytes(reply, "tenant"), LK_SLICE(TENANT)) ||
        !latchkey_slice_equal(find_bytes(reply, "scope"), LK_SLICE(SCOPE)) ||
        !latchkey_slice_equal(find_bytes(reply, "key"),
                              latchkey_slice(key->name))) {
        return false;
    }
    op->told = TOLD_RECORD;
    op->state = (uint8_t)state;
    op->print = latchkey_slice_equal(print, LK_SLICE("1:aa"))   ? 1
                : latchkey_slice_equal(print, LK_SLICE("1:bb")) ? 2
                                                                : 0;
    op->new_token = (uint64_t)find_number(reply, "token");
    op->attempt = (uint64_t)find_number(reply, "attempt");
    op->reference = take_reference(key, find_bytes(reply, "reference"));
    op->claimed = find_number(reply, "claimed-ms");
    op->ttl = find_number(reply, "ttl-ms");
    op->lock_until = find_number(reply, "lock-until-ms");
    op->since = find_number(reply, "since-ms");
    op->completed = find_number(reply, "completed-ms");
    op->expires = find_number(reply, "expires-ms");
    op->seen.status = (uint64_t)find_number(reply, "status");
    op->seen.headers = digest_slice(find_bytes(reply, "headers"));
    op->seen.body = digest_slice(find_bytes(reply, "body"));
    op->seen.reason = digest_slice(find_bytes(
        reply, state == LK_STATE_UNCERTAIN ? "reason" : "omitted-reason"));
    remember_token(key, op->new_token);
    return true;
}

static bool read_kept(struct key *key, struct op *op,
                      const struct wire_reply *reply)
{
    if (reply->count != 7 && reply->count != 8) {
        return false;
    }
    op->seen.status = (uint64_t)reply->word[1].number;
    op->seen.headers = digest_slice(word_at(reply, 2));
    op->seen.body = digest_slice(word_at(reply, 3));
    op->completed = reply->word[4].number;
    op->expires = reply->word[5].number;
    op->reference = take_reference(key, word_at(reply, 6));
    if (reply->count == 8) {
        op->seen.reason = digest_slice(word_at(reply, 7));
    }
    return true;
}

static bool read_verdict(struct key *key, struct op *op,
                         const struct wire_reply *reply)
{
    static const int words[] = {
        [LK_VERDICT_NEW] = 5,      [LK_VERDICT_OMITTED] = 6,
        [LK_VERDICT_INFLIGHT] = 3, [LK_VERDICT_UNCERTAIN] = 4,
        [LK_VERDICT_MISMATCH] = 2, [LK_VERDICT_REFUSED] = 1,
    };

    if (op->told == LK_VERDICT_REPLAY || op->told == LK_VERDICT_KEPT) {
        return read_kept(key, op, reply);
    }
    if (op->told > LK_VERDICT_REFUSED || words[op->told] != reply->count) {
        return false;
    }
    switch (op->told) {
    case LK_VERDICT_NEW:
        op->new_token = (uint64_t)reply->word[1].number;
        op->lock_until = reply->word[2].number;
        op->attempt = (uint64_t)reply->word[3].number;
        remember_token(key, op->new_token);
        break;
    case LK_VERDICT_OMITTED:
        op->seen.status = (uint64_t)reply->word[1].number;
        op->seen.reason = digest_slice(word_at(reply, 2));
        op->completed = reply->word[3].number;
        op->expires = reply->word[4].number;
        break;
    case LK_VERDICT_INFLIGHT:
        op->retry_after = reply->word[1].number;
        break;
    case LK_VERDICT_UNCERTAIN:
        op->seen.reason = digest_slice(word_at(reply, 1));
        op->since = reply->word[2].number;
        break;
    default:
        break;
    }
    if (op->told != LK_VERDICT_REFUSED) {
        op->reference = take_reference(key, word_at(reply, reply->count - 1));
    }
    /* Another transaction is at work, and nothing more is known. */
    if (option.busy && op->told == LK_VERDICT_INFLIGHT && op->reference == 0) {
        op->told = TOLD_VOID;
    }
    return true;
}

static bool contains(const struct wire_reply *reply, const char *text)
{
    return memmem(reply->word[0].data, reply->word[0].len, text,
                  strlen(text)) != NULL;
}

static bool read_error(struct op *op, const struct wire_reply *reply)
{
    static const enum lk_state states[] = {LK_STATE_IN_PROGRESS,
                                           LK_STATE_UNCERTAIN};

    if (wire_is(reply, "UNAVAILABLE")) {
        /* Only these sentences say that it did not count. */
        op->told = contains(reply, "disk is full") ||
                           contains(reply, "is being reopened")
                       ? TOLD_VOID
                       : TOLD_NOTHING;
        return true;
    }
    for (size_t i = 0; i < 2 && op->kind == KIND_EVICT; i++) {
        if (contains(reply, lk_state_word(states[i]))) {
            op->told = TOLD_STATE;
            op->state = (uint8_t)states[i];
            return true;
        }
    }
    return false;
}

/* False: no reply that such a command may have. */
static bool read_reply(struct key *key, struct op *op,
                       const struct wire_reply *reply)
{
    struct lk_slice word = {reply->word[0].data, reply->word[0].len};
    enum lk_verdict verdict;

    if (reply->type == '-') {
        return read_error(op, reply);
    }
    if (reply->type == '$' && reply->word[0].number < 0) {
        op->told = LK_VERDICT_NIL;
        return true;
    }
    if (reply->type == '+') {
        op->told = wire_is(reply, "OK")      ? LK_VERDICT_DONE
                   : wire_is(reply, "STALE") ? LK_VERDICT_STALE
                                             : TOLD_NOTHING;
        return op->told != TOLD_NOTHING;
    }
    if (reply->type != '*') {
        return false;
    }
    if (op->kind == KIND_LOOKUP || op->kind == KIND_FIND) {
        return read_record(key, op, reply);
    }
    if (!latchkey_verdict_parse(word, &verdict)) {
        return false;
    }
    op->told = (uint8_t)verdict;
    return read_verdict(key, op, reply);
}

/* ---- what went wrong, for people ---- */

static const char *const kind_words[] = {"CLAIM",
                                         "COMPLETE",
                                         "RELEASE",
                                         "DOUBT",
                                         "EXTEND",
                                         "KEEP",
                                         "LOOKUP",
                                         "FIND",
                                         "RESOLVE COMPLETED",
                                         "RESOLVE RELEASED",
                                         "EVICT"};

static const char *told_word(int told)
{
    return told == TOLD_RECORD    ? "record"
           : told == TOLD_STATE   ? "error"
           : told == TOLD_NOTHING ? "no reply"
           : told == TOLD_VOID    ? "not counted"
                               : latchkey_verdict_word((enum lk_verdict)told);
}

/* Digests are short here: enough to tell one from another. */
static void print_digest(const char *what, uint64_t value)
{
    if (value != 0) {
        printf(" %s %04" PRIx64, what, value & 0xffff);
    }
}

static void print_number(const char *what, int64_t value)
{
    if (value > 0) {
        printf(" %s %" PRId64, what, value);
    }
}

static void print_answer(const struct answer *answer)
{
    print_number("status", (int64_t)answer->status);
    print_digest("headers", answer->headers);
    print_digest("body", answer->body);
    print_digest("reason", answer->reason);
}

/* Points in time: ms from `from`. */
static void print_time(const char *what, int64_t at, int64_t from)
{
    if (at > 0) {
        printf(" %s %" PRId64, what, at - from);
    }
}

static void print_asked(const struct op *op)
{
    printf("%u: %s", op->connection, kind_words[op->kind]);
    if (op->kind == KIND_CLAIM) {
        printf(" print %u owner %u%s%s", op->print, op->owner,
               op->reexecute ? " REEXECUTE" : "", op->no_new ? " NONEW" : "");
    }
    printf("%s", op->running ? " RUNNING" : "");
    print_number("token", (int64_t)op->token);
    print_number("lock", op->lock_ms);
    print_number("ttl", op->ttl_ms);
    print_number("wait", op->wait_ms);
    print_digest("reason", op->reason);
    print_answer(&op->sent);
}

static void print_op(const struct op *op, int64_t from_us, char mark)
{
    int64_t from = (from_us + clock_offset_us) / 1000;

    printf("%c %8.3f ", mark, (double)(op->call_us - from_us) / 1000);
    printf(op->return_us == NEVER ? "        ... " : "%8.3f ",
           (double)(op->return_us - from_us) / 1000);
    print_asked(op);
    printf(" -> %s", told_word(op->told));
    if (op->told == TOLD_RECORD || op->told == TOLD_STATE) {
        printf(" %s print %u", lk_state_word((enum lk_state)op->state),
               op->print);
    }
    print_number("token", (int64_t)op->new_token);
    print_number("attempt", (int64_t)op->attempt);
    print_digest("reference", op->reference);
    print_time("claimed", op->claimed, from);
    print_number("ttl", op->ttl);
    print_time("lock-until", op->lock_until, from);
    print_time("since", op->since, from);
    print_time("completed", op->completed, from);
    print_time("expires", op->expires, from);
    print_number("retry-after", op->retry_after);
    print_answer(&op->seen);
    putchar('\n');
}

static void print_span(const char *what, struct span span, int64_t from)
{
    if (span.hi > 0) {
        printf(" %s %" PRId64 "..%" PRId64, what, span.lo - from,
               span.hi - from);
    }
}

static void print_model(const struct model *model, int64_t from_us)
{
    int64_t from = (from_us + clock_offset_us) / 1000;

    printf("the longest order that fits (*) ends with %s print %u owner %u%s",
           lk_state_word((enum lk_state)model->state), model->print,
           model->owner, model->omitted ? " omitted" : "");
    print_number("token", (int64_t)model->token);
    print_number("after", (int64_t)model->last_token);
    print_number("attempt", (int64_t)model->attempt);
    print_digest("reference", model->reference);
    print_number("ttl", model->ttl);
    print_number("keep", model->keep);
    print_span("claimed", model->claimed, from);
    print_span("completed", model->completed, from);
    print_span("deadline", model->deadline, from);
    print_answer(&model->answer);
    putchar('\n');
}

static void print_story(const struct key *key, const struct op *ops,
                        unsigned count)
{
    int64_t from = count > 0 ? ops[0].call_us : 0;

    printf("VIOLATION: no order of events explains %s\n"
           "times are ms from %" PRId64 " by the store's clock; a line: call, "
           "return, connection, command, reply\n",
           key->name, (from + clock_offset_us) / 1000);
    for (unsigned i = 0; i < count; i++) {
        print_op(&ops[i], from, search.best_done & BIT(i) ? '*' : ' ');
    }
    print_model(&search.best_model, from);
}

/* ---- checking ---- */

static bool only_looks(const struct op *op)
{
    return op->kind == KIND_LOOKUP || op->kind == KIND_FIND;
}

static void check_key(const struct key *key)
{
    struct op ops[OPS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < key->count; i++) {
        const struct op *op = &key->ops[i];

        told_counts[op->told]++;
        kind_counts[op->kind]++;
        if (op->told != TOLD_VOID &&
            (op->told != TOLD_NOTHING || !only_looks(op))) {
            ops[count++] = *op;
        }
    }
    enum search_result result = search_run(&search, ops, count);
    checked++;
    if (search.nodes > nodes_most) {
        nodes_most = search.nodes;
    }
    if (result == SEARCH_NONE) {
        violations++;
        print_story(key, ops, count);
    }
    undecided += result == SEARCH_TOO_LONG;
}

/* ---- links ---- */

static void watch(struct link *link, int action)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};

    if (link->want_write) {
        event.events |= EPOLLOUT;
    }
    if (epoll_ctl(epoll_fd, action, link->fd, &event) != 0) {
        die("epoll", strerror(errno));
    }
}

static bool is_operator(const struct link *link)
{
    return link == &link->group->links[LINKS - 1];
}

static void push(struct link *link, struct pending pending)
{
    link->window[(link->first + link->count++) % WINDOW] = pending;
}

/* What was in progress has no reply. */
static void close_link(struct link *link)
{
    close(link->fd);
    link->fd = -1;
    link->due_us = now_us() + 2000;
    for (; link->count > 0; link->count--) {
        struct pending pending = link->window[link->first++ % WINDOW];

        link->group->keys[pending.key].open -= !pending.ignored;
    }
    link->first = 0;
}

/* False: the link is gone. */
static bool flush(struct link *link)
{
    struct wire_out *out = &link->out;

    while (out->sent < out->len) {
        ssize_t sent = send(link->fd, out->data + out->sent,
                            out->len - out->sent, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            break;
        }
        if (sent < 0) {
            close_link(link);
            return false;
        }
        out->sent += (size_t)sent;
    }
    bool left = out->sent < out->len;
    if (!left) {
        out->len = out->sent = 0;
    }
    if (left != link->want_write) {
        link->want_write = left;
        watch(link, EPOLL_CTL_MOD);
    }
    if (!left && link->cut) {
        close_link(link);
        return false;
    }
    return true;
}

static void open_link(struct link *link)
{
    size_t at = (size_t)(link - link->group->links) + link->group->id;
    int fd = wire_open(option.servers[at % option.server_count]);

    if (fd < 0) {
        link->due_us = now_us() + 5000;
        return;
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    link->fd = fd;
    link->cut = link->want_write = false;
    link->in_len = link->out.len = link->out.sent = 0;
    link->number = ++link_numbers;
    watch(link, EPOLL_CTL_ADD);
    if (is_operator(link)) {
        wire_array(&link->out, 3);
        wire_text(&link->out, "AUTH");
        wire_text(&link->out, "operator");
        wire_text(&link->out, "operator-secret");
        push(link, (struct pending){.ignored = true});
        flush(link);
    }
}

static void send_op(struct link *link, unsigned at, struct op op)
{
    struct key *key = &link->group->keys[at];

    op.call_us = now_us();
    op.return_us = NEVER;
    op.durable_us = durable_us;
    op.connection = link->number;
    add_command(&link->out, key, &op);
    push(link, (struct pending){.key = at, .op = key->count});
    key->ops[key->count++] = op;
    key->open++;
}

static void send_burst(struct link *link)
{
    unsigned count = 1 + (unsigned)below(BURST);
    /* Half of the bursts are about one name. */
    unsigned fixed = chance(50) ? (unsigned)below(KEYS) : KEYS;

    for (unsigned i = 0; i < count && link->count < WINDOW; i++) {
        unsigned at = fixed < KEYS ? fixed : (unsigned)below(KEYS);
        struct key *key = &link->group->keys[at];

        if (key->count < SEND_MOST && key->open < OPEN_MOST) {
            send_op(link, at, choose_op(link, key));
        }
    }
    link->cut = below(200) == 0;
    link->due_us = now_us() + (int64_t)below(is_operator(link) ? 60000 : 12000);
    flush(link);
}

/* ---- groups ---- */

static void begin_group(struct group *group)
{
    group->id = group_ids++;
    group->phase = PHASE_SEND;
    group->end_us = now_us() + (int64_t)(100000 + below(250000));
    for (unsigned i = 0; i < KEYS; i++) {
        struct key *key = &group->keys[i];

        memset(key, 0, sizeof(*key));
        snprintf(key->name, sizeof(key->name), "l%" PRIu64 "-%u-%u",
                 option.seed, group->id, i);
        key->quick = i != 0;
    }
}

static bool is_quiet(const struct group *group)
{
    for (unsigned i = 0; i < LINKS; i++) {
        if (group->links[i].count > 0) {
            return false;
        }
    }
    return true;
}

static bool has_sent_enough(const struct group *group, int64_t now)
{
    bool all = true;

    for (unsigned i = 0; i < KEYS; i++) {
        all = all && group->keys[i].count >= SEND_MOST;
    }
    return all || now >= group->end_us;
}

/* Each record once more, by its name and by a claim that starts nothing; false:
 * that is done. */
static bool read_back(struct group *group)
{
    struct link *link = &group->links[0];
    bool left = false;

    for (unsigned i = 0; i < KEYS; i++) {
        struct key *key = &group->keys[i];
        struct op look = {.kind = KIND_LOOKUP, .told = TOLD_NOTHING};
        struct op claim = {.kind = KIND_CLAIM,
                           .told = TOLD_NOTHING,
                           .print = 1,
                           .no_new = true};

        if (key->read_back) {
            continue;
        }
        left = true;
        if (link->fd < 0 || link->count > 0 || now_us() < link->due_us) {
            break;
        }
        /* What was asked in vain before makes room. */
        key->count = key->count < OPS_MAX - 2 ? key->count : OPS_MAX - 2;
        send_op(link, i, look);
        send_op(link, i, claim);
        if (!flush(link)) {
            break;
        }
    }
    return left;
}

static void note_read_back(struct group *group, struct pending pending)
{
    struct key *key = &group->keys[pending.key];

    if (group->phase == PHASE_READ_BACK && pending.op + 1 == key->count) {
        key->read_back = key->ops[pending.op].told < TOLD_NOTHING;
    }
}

static void end_group(struct group *group)
{
    for (unsigned i = 0; i < KEYS; i++) {
        check_key(&group->keys[i]);
    }
}

/* False: there is nothing more to do. */
static bool move_group(struct group *group, int64_t now)
{
    if (group->phase == PHASE_SEND && has_sent_enough(group, now)) {
        group->phase = PHASE_DRAIN;
    }
    if (group->phase == PHASE_DRAIN && is_quiet(group)) {
        group->phase = PHASE_READ_BACK;
    }
    if (group->phase == PHASE_READ_BACK && !read_back(group)) {
        end_group(group);
        if (enough) {
            return false;
        }
        begin_group(group);
    }
    for (unsigned i = 0; i < LINKS; i++) {
        struct link *link = &group->links[i];

        if (link->fd < 0 && now >= link->due_us) {
            open_link(link);
        }
        if (link->fd >= 0 && group->phase == PHASE_SEND &&
            now >= link->due_us && link->count + BURST < WINDOW) {
            send_burst(link);
        }
    }
    return true;
}

/* ---- replies ---- */

static void conclude(struct link *link, struct pending pending,
                     const struct wire_reply *reply)
{
    struct key *key = &link->group->keys[pending.key];
    struct op *op = &key->ops[pending.op];

    if (pending.ignored) {
        return;
    }
    key->open--;
    op->return_us = now_us();
    if (!read_reply(key, op, reply)) {
        printf("VIOLATION: %s gets a reply that is none of its own: %c%.*s\n",
               kind_words[op->kind], reply->type, (int)reply->word[0].len,
               reply->word[0].data ? reply->word[0].data : "");
        violations++;
        op->told = TOLD_VOID;
    }
    if (op->told == TOLD_NOTHING) {
        op->return_us = NEVER;
    }
    if (op->told >= TOLD_NOTHING) {
        link->due_us = now_us() + (int64_t)below(30000);
    }
    if (op->told == LK_VERDICT_DONE &&
        (op->kind == KIND_COMPLETE || op->kind == KIND_RELEASE) &&
        op->call_us > durable_us) {
        durable_us = op->call_us;
    }
    note_read_back(link->group, pending);
}

static void read_replies(struct link *link)
{
    struct wire_reply reply;
    size_t used = 0;
    long len;

    while ((len = wire_parse(link->in + used, link->in_len - used, &reply)) >
           0) {
        if (link->count == 0) {
            die("a reply to nothing", "");
        }
        struct pending pending = link->window[link->first++ % WINDOW];

        link->count--;
        conclude(link, pending, &reply);
        used += (size_t)len;
    }
    if (len < 0) {
        die("a reply that is not RESP", "");
    }
    link->in_len -= used;
    memmove(link->in, link->in + used, link->in_len);
}

static void receive(struct link *link)
{
    if (link->in_cap - link->in_len < 65536) {
        link->in_cap = 2 * link->in_cap + 131072;
        link->in = realloc(link->in, link->in_cap);
        if (link->in == NULL) {
            die("out of memory", "");
        }
    }
    ssize_t got =
        recv(link->fd, link->in + link->in_len, link->in_cap - link->in_len, 0);
    if (got < 0 && errno == EAGAIN) {
        return;
    }
    if (got <= 0) {
        close_link(link);
        return;
    }
    link->in_len += (size_t)got;
    read_replies(link);
}

/* ---- the run ---- */

static void stop(int number)
{
    (void)number;
    enough = 1;
}

static void wait_for_events(void)
{
    struct epoll_event events[64];
    int count = epoll_wait(epoll_fd, events, 64, 1);

    for (int i = 0; i < count; i++) {
        struct link *link = events[i].data.ptr;

        if (link->fd >= 0 && (!(events[i].events & EPOLLOUT) || flush(link))) {
            receive(link);
        }
    }
}

/* Replies that do not come, though the daemon is there. */
static void give_up(void)
{
    for (unsigned i = 0; i < option.groups; i++) {
        const struct group *group = &groups[i];

        printf("group %u is in phase %d; commands in progress:", group->id,
               group->phase);
        for (unsigned j = 0; j < LINKS; j++) {
            printf(" %d",
                   group->links[j].fd < 0 ? -1 : (int)group->links[j].count);
        }
        putchar('\n');
        for (unsigned j = 0; j < KEYS; j++) {
            const struct key *key = &group->keys[j];

            for (unsigned k = key->count < 2 ? 0 : key->count - 2;
                 k < key->count; k++) {
                print_op(&key->ops[k], groups[0].keys[0].ops[0].call_us, ' ');
            }
        }
    }
    fflush(stdout);
    die("commands are not answered", "");
}

static void run(void)
{
    int64_t end = now_us() + (int64_t)(option.seconds * 1e6);
    bool working = true;

    for (unsigned i = 0; i < option.groups; i++) {
        begin_group(&groups[i]);
        for (unsigned j = 0; j < LINKS; j++) {
            groups[i].links[j].group = &groups[i];
            groups[i].links[j].fd = -1;
        }
    }
    while (working && (violations == 0 || option.keep_going)) {
        int64_t now = now_us();

        enough = enough || now >= end;
        if (now >= end + PATIENCE_US) {
            give_up();
        }
        if (option.wall) {
            set_clock();
        }
        working = false;
        for (unsigned i = 0; i < option.groups; i++) {
            struct group *group = &groups[i];

            if (group->phase != PHASE_READ_BACK || group->end_us != NEVER) {
                if (!move_group(group, now)) {
                    group->end_us = NEVER;
                    continue;
                }
                working = true;
            }
        }
        wait_for_events();
    }
}

static void report(void)
{
    uint64_t ops = 0;

    for (unsigned i = 0; i < KIND_END; i++) {
        ops += kind_counts[i];
    }
    printf("seed %" PRIu64 ": %" PRIu64 " commands, %" PRIu64
           " operations, %" PRIu64 " violations, %" PRIu64
           " undecided, at most %" PRIu64 " steps:",
           option.seed, ops, checked, violations, undecided, nodes_most);
    for (int i = 0; i < TOLD_END; i++) {
        if (told_counts[i] > 0) {
            printf(" %s %" PRIu64 ",", told_word(i), told_counts[i]);
        }
    }
    for (unsigned i = 0; i < KIND_END; i++) {
        printf(" %s %" PRIu64 "%s", kind_words[i], kind_counts[i],
               i + 1 < KIND_END ? "," : "\n");
    }
}

static void read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"server", required_argument, NULL, 's'},
        {"groups", required_argument, NULL, 'g'},
        {"seed", required_argument, NULL, 'r'},
        {"seconds", required_argument, NULL, 't'},
        {"wall", no_argument, NULL, 'w'},
        {"busy", no_argument, NULL, 'b'},
        {"keep-going", no_argument, NULL, 'k'},
        {NULL, 0, NULL, 0},
    };
    int name;

    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (name) {
        case 's':
            if (option.server_count == SERVERS_MAX) {
                die("too many servers", optarg);
            }
            option.servers[option.server_count++] = optarg;
            break;
        case 'g':
            option.groups = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            option.seed = strtoull(optarg, NULL, 10);
            break;
        case 't':
            option.seconds = strtod(optarg, NULL);
            break;
        case 'w':
            option.wall = true;
            break;
        case 'b':
            option.busy = looks_early = true;
            break;
        case 'k':
            option.keep_going = true;
            break;
        default:
            exit(2);
        }
    }
    if (option.server_count == 0 || option.groups == 0 ||
        option.groups > GROUPS_MAX) {
        die("usage: linear --server ADDRESS [--server ADDRESS]... "
            "[--seed N] [--seconds N] [--groups N] [--wall] [--busy] "
            "[--keep-going]",
            "");
    }
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    random_state = option.seed;
    lapsed_reason = digest_text(LAPSED_REASON);
    set_clock();
    signal(SIGTERM, stop);
    signal(SIGPIPE, SIG_IGN);
    groups = calloc(option.groups, sizeof(*groups));
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (groups == NULL || epoll_fd < 0) {
        die("cannot start", strerror(errno));
    }
    run();
    report();
    return violations > 0 || undecided > 0;
}
