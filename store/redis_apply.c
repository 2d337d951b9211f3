/*
 * redis_apply.c - one batch: a pipeline of calls, one for each operation, and
 * what is known of an operation when something breaks in between.
 *
 * An operation is decided when its reply has been read. One that may have been
 * sent and has no reply is unknown: a claim with an OWNER is simply sent again,
 * since its own claim answers the same; of anything else the caller is told
 * that it is unknown. What has not been sent is sent later. While the batch is
 * under way, LK_AGAIN is the status of what is still to be decided.
 */
#include "lib/socket.h"
#include "store/redis.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 8 * 1024 * 1024, /* of one pipeline, roughly */
    LEASE_MS = 5000,               /* of the keeper */
    EXPECT_LEAST = 4,              /* claims that are announced together */
    REPLY_HEAD = 12,
};

/* Redis takes 512 MiB in one value. */
#define ANSWER_MAX (UINT64_C(500) * 1000 * 1000)

/* One pipeline. */
struct chunk {
    struct lk_redis *store;
    struct lk_redis_lane *lane;
    struct lk_batch *batch;
    struct lk_redis_pending *pending; /* those in this pipeline */
    size_t count;
    size_t answered;
    bool expects; /* begins with an announcement */
    bool tends;   /* ends with the keeper's call */
    bool unfit;   /* the server does not want to be written to */
    uint64_t now_ms;
    int64_t change[6]; /* records by state */
    uint64_t last_token;
};

/* ---- Commands --------------------------------------------------------------
 */

static enum lk_status add_response(struct lk_redis_lane *lane,
                                   const struct lk_op *op)
{
    struct lk_response status_only = {.status = op->response.status};

    lane->scratch.len = 0;
    enum lk_status status = latchkey_response_encode(
        op->reason.len ? &status_only : &op->response, &lane->scratch);
    return status
               ? status
               : lk_link_word(&lane->link, latchkey_buf_slice(&lane->scratch));
}

static enum lk_status add_finish(struct lk_redis_lane *lane,
                                 const struct lk_op *op)
{
    enum lk_status status = lk_link_number(&lane->link, op->ttl_ms);

    if (!status) {
        status = lk_link_word(&lane->link, op->reason);
    }
    return status ? status : add_response(lane, op);
}

static enum lk_status add_entry(struct lk_redis_lane *lane,
                                const struct lk_op *op, struct lk_slice action)
{
    const struct lk_audit_entry entry = {
        .who = op->who, .why = op->why, .action = action, .name = op->name};

    lane->scratch.len = 0;
    enum lk_status status = lk_redis_audit_write(&entry, &lane->scratch);
    return status
               ? status
               : lk_link_word(&lane->link, latchkey_buf_slice(&lane->scratch));
}

static uint64_t lock_of(const struct lk_redis *store, const struct lk_op *op)
{
    return op->lock_ms ? op->lock_ms : store->config.default_lock_ms;
}

static enum lk_status add_claim(const struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                const struct lk_op *op, struct lk_slice key)
{
    const struct lk_slice keys[] = {key, store->keys[LK_REDIS_INDEX],
                                    store->keys[LK_REDIS_DUE],
                                    store->keys[LK_REDIS_TOKEN]};
    struct lk_link *link = &lane->link;
    enum lk_status status =
        lk_redis_begin(store, link, "latchkey_claim", keys, 4, 5);

    if (!status) {
        status = lk_link_word(link, op->fingerprint);
    }
    if (!status) {
        status = lk_link_word(link, op->owner);
    }
    if (!status) {
        status = lk_link_number(
            link, op->ttl_ms ? op->ttl_ms : store->config.default_ttl_ms);
    }
    if (!status) {
        status = lk_link_number(link, lock_of(store, op));
    }
    return status ? status
                  : lk_link_number(link, (op->reexecute ? 1 : 0) +
                                             (op->no_new ? 2 : 0));
}

/* Everything else has the record and `due` for keys, and an operator's the
 * audit log. `args` is behind the first one, the token or the entry. */
static const struct {
    const char *function;
    size_t keys;
    size_t args;
    const char *action; /* in the audit log */
} calls[] = {
    [LK_EVENT_COMPLETE] = {"latchkey_complete", 2, 3, NULL},
    [LK_EVENT_RELEASE] = {"latchkey_release", 2, 0, NULL},
    [LK_EVENT_DOUBT] = {"latchkey_doubt", 2, 1, NULL},
    [LK_EVENT_EXTEND] = {"latchkey_extend", 2, 1, NULL},
    [LK_EVENT_KEEP] = {"latchkey_keep", 2, 0, NULL},
    [LK_EVENT_RESOLVE_COMPLETED] = {"latchkey_resolve", 3, 3,
                                    "resolve completed"},
    [LK_EVENT_RESOLVE_RELEASED] = {"latchkey_resolve_released", 3, 0,
                                   "resolve released"},
    [LK_EVENT_EVICT] = {"latchkey_evict", 3, 0, "evict"},
};

static enum lk_status add_rest(struct lk_redis_lane *lane,
                               const struct lk_op *op)
{
    switch (op->event) {
    case LK_EVENT_COMPLETE:
    case LK_EVENT_RESOLVE_COMPLETED:
        return add_finish(lane, op);
    case LK_EVENT_DOUBT:
        return lk_link_word(&lane->link, op->reason);
    case LK_EVENT_EXTEND:
        return lk_link_number(&lane->link, op->lock_ms);
    default:
        return LK_OK;
    }
}

static enum lk_status add_other(const struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                const struct lk_op *op, struct lk_slice key)
{
    const struct lk_slice keys[] = {key, store->keys[LK_REDIS_DUE],
                                    store->keys[LK_REDIS_AUDIT]};
    const char *action = calls[op->event].action;
    enum lk_status status =
        lk_redis_begin(store, &lane->link, calls[op->event].function, keys,
                       calls[op->event].keys, 1 + calls[op->event].args);

    if (!status && action) {
        status = add_entry(lane, op, latchkey_slice(action));
    } else if (!status) {
        status = lk_link_number(
            &lane->link, op->event == LK_EVENT_KEEP ? op->ttl_ms : op->token);
    }
    return status ? status : add_rest(lane, op);
}

static enum lk_status add_op(const struct lk_redis *store,
                             struct lk_redis_lane *lane, const struct lk_op *op)
{
    lane->scratch.len = 0;
    enum lk_status status = lk_redis_name(store, op->name, &lane->scratch);
    struct lk_slice key = latchkey_buf_slice(&lane->scratch);

    if (status) {
        return status;
    }
    return op->event == LK_EVENT_CLAIM ? add_claim(store, lane, op, key)
                                       : add_other(store, lane, op, key);
}

static bool is_expected(const struct chunk *chunk, const struct lk_op *op,
                        uint64_t lock_ms)
{
    return op->event == LK_EVENT_CLAIM && !op->no_new &&
           lock_of(chunk->store, op) == lock_ms;
}

/* Many claims with the same lock are announced first: Redis then writes their
 * deadlines with one command. `count`: pending ones that may be in the chunk.
 */
static enum lk_status add_expectation(struct chunk *chunk, size_t count)
{
    const struct lk_redis *store = chunk->store;
    const struct lk_slice keys[] = {store->keys[LK_REDIS_DUE],
                                    store->keys[LK_REDIS_INDEX]};
    struct lk_link *link = &chunk->lane->link;
    uint64_t lock_ms = 0;
    size_t expected = 0;

    for (size_t i = 0; i < count; i++) {
        const struct lk_op *op = chunk->pending[i].op;
        if (op->event == LK_EVENT_CLAIM && !lock_ms) {
            lock_ms = lock_of(store, op);
        }
        expected += is_expected(chunk, op, lock_ms);
    }
    if (expected < EXPECT_LEAST ||
        atomic_load(&store->place.way) != LK_WAY_FUNCTION) {
        return LK_OK;
    }
    enum lk_status status =
        lk_redis_begin(store, link, "latchkey_expect", keys, 2, expected + 1);
    if (!status) {
        status = lk_link_number(link, lock_ms);
    }
    for (size_t i = 0; i < count && !status; i++) {
        const struct lk_op *op = chunk->pending[i].op;
        if (is_expected(chunk, op, lock_ms)) {
            chunk->lane->scratch.len = 0;
            status = lk_redis_name(store, op->name, &chunk->lane->scratch);
            status = status ? status
                            : lk_link_word(link, latchkey_buf_slice(
                                                     &chunk->lane->scratch));
        }
    }
    chunk->expects = !status;
    return status;
}

static enum lk_status add_tending(struct chunk *chunk)
{
    const struct lk_redis *store = chunk->store;
    const struct lk_slice keys[] = {
        store->keys[LK_REDIS_KEEPER], store->keys[LK_REDIS_DUE],
        store->keys[LK_REDIS_INDEX], store->keys[LK_REDIS_TOKEN]};
    struct lk_link *link = &chunk->lane->link;
    enum lk_status status =
        lk_redis_begin(store, link, "latchkey_tend", keys, 4, 3);

    if (!status) {
        status = lk_link_word(link, latchkey_slice(store->holder));
    }
    if (!status) {
        status = lk_link_number(link, LEASE_MS);
    }
    return status ? status : lk_link_number(link, store->config.reap_rows);
}

/* A write of our own comes first: WAIT counts up to the last one of this
 * connection, and what was decided may rest on somebody else's. */
static enum lk_status add_wait(struct chunk *chunk)
{
    const struct lk_redis *store = chunk->store;
    struct lk_link *link = &chunk->lane->link;
    enum lk_status status = lk_redis_begin(store, link, "latchkey_mark",
                                           &store->keys[LK_REDIS_MARK], 1, 0);

    if (!status) {
        status = lk_link_begin(link, 3);
    }
    if (!status) {
        status = lk_link_word(link, LK_SLICE("WAIT"));
    }
    if (!status) {
        status = lk_link_number(link, store->config.wait_replicas);
    }
    return status ? status
                  : lk_link_number(link, store->config.wait_timeout_ms);
}

/* Roughly: names and fingerprints are small. */
static size_t size_of(const struct lk_op *op)
{
    return op->response.headers.len + op->response.body.len + 512;
}

static enum lk_status write_chunk(struct chunk *chunk, size_t most, bool tends)
{
    struct lk_link *link = &chunk->lane->link;
    size_t bytes = 0;
    size_t fits = 0;
    enum lk_status status;

    while (fits < most && bytes < CHUNK_BYTES) {
        bytes += size_of(chunk->pending[fits++].op);
    }
    lk_link_reset(link);
    status = add_expectation(chunk, fits);
    for (size_t i = 0; i < fits && !status; i++) {
        status = add_op(chunk->store, chunk->lane, chunk->pending[i].op);
        chunk->pending[i].end = link->out.len;
    }
    chunk->count = fits;
    chunk->tends = tends && fits == most;
    if (!status && chunk->tends) {
        status = add_tending(chunk);
    }
    return status;
}

/* ---- Replies ---------------------------------------------------------------
 */

/* Words at the beginning of an error, and what they mean. */
static const struct {
    const char *code;
    enum lk_status status;
    const char *sentence;
} refusals[] = {
    {"READONLY", LK_AGAIN, "Redis is a replica now"},
    {"LOADING", LK_AGAIN, "Redis is loading its data"},
    {"MASTERDOWN", LK_AGAIN, "Redis has lost its primary"},
    {"CLUSTERDOWN", LK_AGAIN, "the Redis Cluster is down"},
    {"MOVED", LK_AGAIN, "Redis Cluster is not supported"},
    {"NOSCRIPT", LK_AGAIN, "Redis has forgotten the script"},
    {"ERR Function not found", LK_AGAIN, "Redis has forgotten the functions"},
    {"BUSY", LK_AGAIN, "Redis is busy with a script"},
    {"UNBLOCKED", LK_AGAIN, "Redis has become a replica"},
    {"NOAUTH", LK_AGAIN, "Redis asks for a password"},
    {"OOM", LK_UNAVAILABLE, "Redis is out of memory"},
    {"MISCONF", LK_UNAVAILABLE, "Redis cannot write to its disk"},
    {"NOREPLICAS", LK_UNAVAILABLE, "Redis has too few replicas to write"},
    {"NOPERM", LK_UNAVAILABLE, "the Redis user may not do this"},
    {"LKFULL", LK_UNAVAILABLE, "the store is out of tokens"},
};

/* Redis 6 has the code of an error inside a script in the middle. */
enum lk_status lk_redis_refusal(const redisReply *reply, const char **sentence)
{
    struct lk_slice text = lk_reply_text(reply);
    struct lk_slice inner = text;

    if (!latchkey_slice_equal(text, inner) || !text.len) {
        inner = (struct lk_slice){0};
    }
    const char *at = text.len ? memmem(text.data, text.len, ": -", 3) : NULL;
    if (at) {
        inner.data = at + 3;
        inner.len = text.len - (size_t)(inner.data - text.data);
    }
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        size_t len = strlen(refusals[i].code);
        if (lk_reply_is_error(reply, refusals[i].code) ||
            (inner.len >= len && !memcmp(inner.data, refusals[i].code, len))) {
            *sentence = refusals[i].sentence;
            return refusals[i].status;
        }
    }
    *sentence = "Redis failed in the middle: whether it counts is not known";
    return LK_UNKNOWN;
}

static void set_times(const struct lk_redis_head *head, struct lk_outcome *out)
{
    out->token = head->token;
    out->attempt = head->attempt;
    out->number = head->number;
    switch (head->state) {
    case LK_STATE_IN_PROGRESS:
        out->lock_until_ms = head->deadline;
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        out->since_ms = head->deadline;
        break;
    default:
        out->expires_ms = head->deadline;
        break;
    }
}

static bool needs_kept(enum lk_verdict verdict)
{
    return verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_OMITTED ||
           verdict == LK_VERDICT_KEPT || verdict == LK_VERDICT_UNCERTAIN;
}

static bool is_pending_state(unsigned state)
{
    return state == LK_STATE_IN_PROGRESS || state == LK_STATE_ACCEPTED;
}

static void count_change(struct chunk *chunk, unsigned before, unsigned after)
{
    if (before <= LK_STATE_RELEASED && after <= LK_STATE_RELEASED) {
        chunk->change[before]--;
        chunk->change[after]++;
    }
}

/* The reply's bytes as an outcome. LK_CORRUPT: they are none. */
static enum lk_status take_outcome(struct chunk *chunk,
                                   struct lk_redis_pending *pending,
                                   struct lk_slice bytes)
{
    struct lk_op *op = pending->op;
    struct lk_redis_head head = {0};
    enum lk_status status = LK_OK;

    if (bytes.len < REPLY_HEAD) {
        return LK_CORRUPT;
    }
    unsigned verdict = (unsigned char)bytes.data[0];
    unsigned before = (unsigned char)bytes.data[1];
    unsigned after = (unsigned char)bytes.data[2];
    bool written = bytes.data[3] != 0;
    struct lk_slice record = {bytes.data + REPLY_HEAD, bytes.len - REPLY_HEAD};
    if (verdict > LK_VERDICT_NIL || after > LK_STATE_RELEASED) {
        return LK_CORRUPT;
    }
    if (record.len) {
        status = lk_redis_head_read(record, &head);
    }
    op->out = (struct lk_outcome){.verdict = (enum lk_verdict)verdict,
                                  .state = (enum lk_state)after,
                                  .now_ms = lk_redis_get64(bytes.data + 4)};
    chunk->now_ms = op->out.now_ms;
    if (!status && record.len) {
        set_times(&head, &op->out);
    }
    if (!status && needs_kept(op->out.verdict)) {
        status = lk_redis_kept(&head, &op->out.kept);
    }
    if (written) {
        count_change(chunk, before, after);
        if (is_pending_state(before) && !is_pending_state(after) &&
            lk_batch_settle(chunk->batch, op->hash)) {
            chunk->batch->settle_all = true;
        }
        if (op->out.token > chunk->last_token) {
            chunk->last_token = op->out.token;
        }
    }
    pending->uncertain =
        written || verdict == LK_VERDICT_NEW || verdict == LK_VERDICT_KEPT;
    return status;
}

static void take_reply(struct chunk *chunk, struct lk_redis_pending *pending,
                       const redisReply *reply)
{
    struct lk_op *op = pending->op;

    pending->sent = false;
    if (reply->type == REDIS_REPLY_STRING) {
        op->status = take_outcome(chunk, pending, lk_reply_text(reply));
        op->error = NULL;
        return;
    }
    op->status = lk_redis_refusal(reply, &op->error);
    chunk->unfit |= op->status == LK_AGAIN;
    if (op->status == LK_UNKNOWN) {
        struct lk_slice said = lk_reply_text(reply);
        lk_redis_log(chunk->store, 0, "Redis failed in a function: %.*s",
                     (int)(said.len < 200 ? said.len : 200),
                     said.data ? said.data : "");
    }
}

/* As latchkey_tend returns it. */
enum { TEND_COUNTS = 5, TEND_NAMES = 12 };

static void take_tending(struct chunk *chunk, const redisReply *reply)
{
    struct lk_redis *store = chunk->store;
    redisReply *const *fields = reply->element;
    const char *ignored;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements < TEND_NAMES) {
        chunk->unfit |= reply->type == REDIS_REPLY_ERROR &&
                        lk_redis_refusal(reply, &ignored) == LK_AGAIN;
        return;
    }
    for (size_t i = TEND_NAMES; i < reply->elements; i++) {
        struct lk_name name;
        if (!lk_redis_name_read(store, lk_reply_text(fields[i]), &name) ||
            lk_batch_settle(chunk->batch,
                            lk_name_hash(store->store.secret, name))) {
            chunk->batch->settle_all = true;
        }
    }
    uint64_t dead = lk_reply_number(fields[3]);
    uint64_t late = lk_reply_number(fields[4]);
    chunk->batch->more = lk_reply_number(fields[0]) && dead + late > 0;
    memset(chunk->change, 0, sizeof(chunk->change)); /* counted anew */
    lk_redis_count(store, fields + TEND_COUNTS);
    pthread_mutex_lock(&store->numbers_lock);
    store->numbers.dead_rows = dead;
    store->numbers.reaped += lk_reply_number(fields[2]);
    store->numbers.swept += reply->elements - TEND_NAMES;
    pthread_mutex_unlock(&store->numbers_lock);
    chunk->now_ms = lk_reply_number(fields[1]);
}

static void forget_outcome(struct lk_op *op, enum lk_status status,
                           const char *error)
{
    lk_op_clear(op);
    op->out = (struct lk_outcome){0};
    op->status = status;
    op->error = error;
}

/* Nobody knows whether enough replicas have what the outcomes rest on. */
static void doubt_outcomes(struct chunk *chunk, bool again)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        struct lk_redis_pending *pending = &chunk->pending[i];
        struct lk_op *op = pending->op;
        if (op->status != LK_OK || !pending->uncertain) {
            continue;
        }
        bool repeats =
            again && op->event == LK_EVENT_CLAIM && op->owner.len > 0;
        pending->sent = repeats;
        forget_outcome(op, repeats ? LK_AGAIN : LK_UNKNOWN,
                       "too few replicas of Redis acknowledged it in time");
    }
}

static enum lk_status read_one(struct chunk *chunk, int64_t deadline,
                               redisReply **reply)
{
    freeReplyObject(*reply);
    *reply = NULL;
    return lk_link_reply(&chunk->lane->link, deadline, reply);
}

static bool rests_on_writes(const struct chunk *chunk)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        if (chunk->pending[i].op->status == LK_OK &&
            chunk->pending[i].uncertain) {
            return true;
        }
    }
    return false;
}

/* Until enough replicas have what was decided. */
static enum lk_status await_replicas(struct chunk *chunk, int64_t deadline)
{
    unsigned replicas = chunk->store->config.wait_replicas;
    redisReply *reply = NULL;

    if (!replicas || !rests_on_writes(chunk)) {
        return LK_OK;
    }
    lk_link_reset(&chunk->lane->link);
    enum lk_status status = add_wait(chunk);
    if (!status) {
        status = read_one(chunk, deadline, &reply);
    }
    if (!status) {
        status = read_one(chunk, deadline, &reply);
    }
    if (status || reply->type != REDIS_REPLY_INTEGER ||
        reply->integer < (long long)replicas) {
        doubt_outcomes(chunk, status != LK_OK);
    }
    freeReplyObject(reply);
    return status;
}

/* On failure the link is closed; `answered` says how far it came. */
static enum lk_status read_chunk(struct chunk *chunk, int64_t deadline)
{
    redisReply *reply = NULL;
    enum lk_status status = LK_OK;

    if (chunk->expects) {
        status = read_one(chunk, deadline, &reply);
    }
    while (!status && chunk->answered < chunk->count) {
        status = read_one(chunk, deadline, &reply);
        if (!status) {
            take_reply(chunk, &chunk->pending[chunk->answered++], reply);
        }
    }
    if (!status && chunk->tends) {
        status = read_one(chunk, deadline, &reply);
        if (!status) {
            take_tending(chunk, reply);
        }
    }
    freeReplyObject(reply);
    return status;
}

/* ---- What is left ----------------------------------------------------------
 */

/* The link broke: what was sent and has no answer may have happened. */
static void sort_unanswered(struct chunk *chunk)
{
    size_t sent = chunk->lane->link.sent;

    for (size_t i = chunk->answered; i < chunk->count; i++) {
        struct lk_redis_pending *pending = &chunk->pending[i];
        struct lk_op *op = pending->op;
        if (pending->end > sent) {
            continue; /* not all of it: it cannot have happened */
        }
        pending->sent = true;
        if (op->event != LK_EVENT_CLAIM || !op->owner.len) {
            op->status = LK_UNKNOWN;
            op->error = "the connection to Redis broke: whether it counts is "
                        "not known";
        }
    }
}

/* It broke before the replicas could be asked. */
static void doubt_unconfirmed(struct chunk *chunk)
{
    if (chunk->store->config.wait_replicas) {
        doubt_outcomes(chunk, true);
    }
}

static void add_numbers(struct chunk *chunk)
{
    struct lk_redis *store = chunk->store;

    if (chunk->now_ms) {
        lk_redis_heard(store, chunk->now_ms);
    }
    pthread_mutex_lock(&store->numbers_lock);
    for (int state = 1; state <= LK_STATE_RELEASED; state++) {
        int64_t count =
            (int64_t)store->numbers.by_state[state] + chunk->change[state];
        store->numbers.by_state[state] = count > 0 ? (uint64_t)count : 0;
    }
    int64_t records = (int64_t)store->numbers.records - chunk->change[0];
    store->numbers.records = records > 0 ? (uint64_t)records : 0;
    if (chunk->last_token > store->numbers.last_token) {
        store->numbers.last_token = chunk->last_token;
    }
    pthread_mutex_unlock(&store->numbers_lock);
}

/* Keeps those that are still to be decided, in order. */
static size_t keep_open(struct lk_redis_pending *pending, size_t count)
{
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        if (pending[i].op->status == LK_AGAIN) {
            pending[kept++] = pending[i];
        }
    }
    return kept;
}

static void give_up(struct lk_redis_lane *lane, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct lk_op *op = lane->pending[i].op;
        bool unknown = lane->pending[i].sent;
        op->status = unknown ? LK_UNKNOWN : LK_UNAVAILABLE;
        op->error = unknown     ? "the connection to Redis broke: whether it "
                                  "counts is not known"
                    : op->error ? op->error
                                : "Redis is out of reach";
    }
}

/* ---- The batch -------------------------------------------------------------
 */

/* False: it cannot be decided here, and has its status. */
static bool is_possible(struct lk_op *op)
{
    op->status = LK_AGAIN;
    op->error = NULL;
    if (op->event == LK_EVENT_ACCEPT || op->event == LK_EVENT_LEASE) {
        op->status = LK_INVALID;
        op->error = "Redis cannot keep jobs as safely as an outbox needs; use "
                    "sqlite: or postgres:";
    } else if (op->response.headers.len + op->response.body.len > ANSWER_MAX) {
        op->status = LK_TOO_LARGE;
        op->error = "the answer is larger than the store can keep; complete "
                    "it with OMIT";
    }
    return op->status == LK_AGAIN;
}

static enum lk_status collect(struct lk_redis_lane *lane,
                              struct lk_batch *batch, size_t *count)
{
    *count = 0;
    if (lane->room < batch->count) {
        void *more =
            realloc(lane->pending, batch->count * sizeof(*lane->pending));
        if (!more) {
            return LK_NOMEM;
        }
        lane->pending = more;
        lane->room = batch->count;
    }
    for (size_t i = 0; i < batch->count; i++) {
        if (is_possible(batch->ops[i])) {
            lane->pending[(*count)++] =
                (struct lk_redis_pending){.op = batch->ops[i]};
        }
    }
    return LK_OK;
}

/* One pipeline. LK_AGAIN: the link or the server is no good any more. */
static enum lk_status run_chunk(struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                struct lk_batch *batch, size_t *count,
                                bool *tends, int64_t deadline)
{
    struct chunk chunk = {
        .store = store, .lane = lane, .batch = batch, .pending = lane->pending};
    enum lk_status status = write_chunk(&chunk, *count, *tends);

    if (status) {
        lk_link_close(&lane->link); /* half a pipeline is in it */
        return status;
    }
    status = read_chunk(&chunk, deadline);
    if (status) {
        sort_unanswered(&chunk);
        doubt_unconfirmed(&chunk);
    } else {
        *tends = *tends && !chunk.tends;
        status = await_replicas(&chunk, deadline);
    }
    add_numbers(&chunk);
    *count = keep_open(lane->pending, *count);
    if (status || chunk.unfit) {
        const char *why =
            chunk.unfit && *count ? lane->pending[0].op->error : NULL;
        lk_redis_lost(store, &lane->link, why);
        return LK_AGAIN;
    }
    return LK_OK;
}

static void refuse(struct lk_batch *batch, const char *error)
{
    for (size_t i = 0; i < batch->count; i++) {
        batch->ops[i]->status = LK_UNAVAILABLE;
        batch->ops[i]->error = error;
    }
}

void lk_redis_apply(struct lk_store *base, struct lk_batch *batch)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_lane *lane = &store->lanes[batch->lane];
    int64_t deadline =
        lk_socket_now() +
        (int64_t)(store->config.timeout_ms +
                  (store->config.wait_replicas ? store->config.wait_timeout_ms
                                               : 0));
    bool tends = batch->keep;
    size_t count;

    if (collect(lane, batch, &count)) {
        refuse(batch, "out of memory");
        return;
    }
    pthread_mutex_lock(&store->numbers_lock);
    store->numbers.batches += batch->count > 0;
    store->numbers.batch_ops += batch->count;
    pthread_mutex_unlock(&store->numbers_lock);
    while (count || tends) {
        uint64_t epoch = lane->link.fd >= 0 ? lane->link.epoch : 0;
        enum lk_status status = lk_redis_ready(store, &lane->link, deadline);
        if (!status) {
            batch->settle_all |= epoch != lane->link.epoch;
            status = run_chunk(store, lane, batch, &count, &tends, deadline);
        }
        if (status == LK_AGAIN && count) {
            /* A server that is there, but unfit, may soon be replaced. */
            status = lk_redis_await(store, deadline,
                                    lane->pending[0].op->error != NULL);
        }
        if (status) {
            break;
        }
    }
    give_up(lane, count);
}

enum lk_status lk_redis_note(struct lk_store *base, struct lk_slice action,
                             struct lk_slice who, struct lk_slice why)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_link *link = &store->lanes[0].link;
    const struct lk_audit_entry entry = {
        .who = who, .why = why, .action = action};
    int64_t deadline = lk_socket_now() + (int64_t)store->config.timeout_ms;
    struct lk_buf bytes = {0};
    redisReply *reply = NULL;
    const char *ignored;
    enum lk_status status = lk_redis_audit_write(&entry, &bytes);

    if (!status) {
        status = lk_redis_ready(store, link, deadline);
    }
    if (!status) {
        const struct lk_slice words[] = {store->keys[LK_REDIS_AUDIT],
                                         latchkey_buf_slice(&bytes)};
        status = lk_redis_call(store, link, deadline, "latchkey_note", 1, words,
                               2, &reply);
        if (status) {
            lk_redis_lost(store, link, NULL);
            status = LK_UNKNOWN;
        } else if (reply->type == REDIS_REPLY_ERROR) {
            status = lk_redis_refusal(reply, &ignored);
        }
    }
    freeReplyObject(reply);
    latchkey_buf_free(&bytes);
    return status == LK_AGAIN ? LK_UNAVAILABLE : status;
}
