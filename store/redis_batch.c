/*
 * redis_batch.c - deciding a batch: its ops become calls of functions in Redis,
 * several ops in a call and several calls in a pipeline, and the replies become
 * outcomes.
 *
 * A pipeline may break at any byte. An op whose call was not sent whole has not
 * happened and is sent again; a claim with an owner may be repeated in any
 * case; everything else that was sent and has no reply is LK_UNKNOWN.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* One pipeline. */
struct redis_chunk {
    struct lk_redis *store;
    struct lk_redis_lane *lane;
    struct lk_batch *batch;
    struct lk_redis_pending *pending; /* those in this pipeline */
    size_t count;
    size_t answered;
    bool tends;      /* ends with the keeper's call */
    bool full;       /* begins nothing: Redis lacks memory */
    bool unfit;      /* the server does not want to be written to */
    bool complained; /* an unexpected error was logged; once is enough */
    uint64_t now_ms;
    int64_t change[6]; /* operations by state */
    uint64_t last_token;
};

/* ==== Calls ============================================================= */

enum {
    CHUNK_BYTES = 8 * 1024 * 1024, /* of one pipeline, roughly */
    GROUP_BYTES = 128 * 1024,      /* of one call, roughly */
    GROUP_OPS = 64,
    LEASE_MS = 5000, /* of the keeper */
};

/* ---- Commands --------------------------------------------------------------
 */

/* The response of a completion, encoded; of an omitted one the status alone. */
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

static enum lk_status add_claim(const struct lk_redis *store,
                                struct lk_link *link, const struct lk_op *op)
{
    const struct lk_store_config *config = &store->config;
    enum lk_status status = lk_link_word(link, op->fingerprint);

    if (!status) {
        status = lk_link_word(link, op->owner);
    }
    if (!status) {
        status = lk_link_number(link, op->ttl_ms ? op->ttl_ms
                                                 : config->default_ttl_ms);
    }
    if (!status) {
        status = lk_link_number(link, op->lock_ms ? op->lock_ms
                                                  : config->default_lock_ms);
    }
    return status ? status
                  : lk_link_number(link, (op->reexecute ? 1 : 0) +
                                             (op->no_new ? 2 : 0));
}

/* How many arguments an event has, as the library knows it; an operator's begin
 * with an audit entry. */
static const size_t event_args[] = {
    [LK_EVENT_CLAIM] = 5,
    [LK_EVENT_COMPLETE] = 4,
    [LK_EVENT_RELEASE] = 1,
    [LK_EVENT_DOUBT] = 2,
    [LK_EVENT_EXTEND] = 2,
    [LK_EVENT_KEEP] = 1,
    [LK_EVENT_RESOLVE_COMPLETED] = 4,
    [LK_EVENT_RESOLVE_RELEASED] = 1,
    [LK_EVENT_EVICT] = 1,
};

/* A resolution that counts for the claim of one token alone. */
static bool is_proof(const struct lk_op *op)
{
    return op->token && (op->event == LK_EVENT_RESOLVE_COMPLETED ||
                         op->event == LK_EVENT_RESOLVE_RELEASED);
}

static enum lk_status add_args(const struct lk_redis *store,
                               struct lk_redis_lane *lane,
                               const struct lk_op *op)
{
    struct lk_slice action = lk_op_action(op);
    struct lk_link *link = &lane->link;
    enum lk_status status;

    if (op->event == LK_EVENT_CLAIM) {
        return add_claim(store, link, op);
    }
    if (op->event == LK_EVENT_KEEP) {
        status = action.len ? add_entry(lane, op, action) : LK_OK;
        return status ? status : lk_link_number(link, op->ttl_ms);
    }
    status = action.len ? add_entry(lane, op, action)
                        : lk_link_number(link, op->token);
    if (status) {
        return status;
    }
    switch (op->event) {
    case LK_EVENT_COMPLETE:
    case LK_EVENT_RESOLVE_COMPLETED:
        return add_finish(lane, op);
    case LK_EVENT_DOUBT:
        return lk_link_word(link, op->reason);
    case LK_EVENT_EXTEND:
        return lk_link_number(link, op->lock_ms);
    default:
        return LK_OK;
    }
}

/* ---- Calls -----------------------------------------------------------------
 */

enum {
    SET_KEYS = 4,
    /* Added to the event, as the library knows it: */
    PROOF_EVENT = 100,
    RUNNING_EVENT = 200,
    OPERATOR_EVENT = 300,
};

static unsigned event_kind(const struct lk_op *op)
{
    if (is_proof(op)) {
        return PROOF_EVENT;
    }
    if (op->event == LK_EVENT_KEEP && op->who.len) {
        return OPERATOR_EVENT;
    }
    return op->running ? RUNNING_EVENT : 0;
}

/* The keys of a call: sets, then the operations. They stay in the scratch
 * buffer until the call is begun. */
static enum lk_status list_keys(const struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                const struct lk_redis_pending *pending,
                                size_t count, struct lk_slice *keys)
{
    size_t ends[GROUP_OPS];
    size_t start = 0;
    enum lk_status status = LK_OK;

    keys[0] = store->keys[LK_REDIS_INDEX];
    keys[1] = store->keys[LK_REDIS_DUE];
    keys[2] = store->keys[LK_REDIS_TOKEN];
    keys[3] = store->keys[LK_REDIS_AUDIT];
    lane->scratch.len = 0;
    for (size_t i = 0; i < count && !status; i++) {
        status = lk_redis_name(store, pending[i].op->name, &lane->scratch);
        ends[i] = lane->scratch.len;
    }
    for (size_t i = 0; i < count && !status; i++) {
        keys[SET_KEYS + i] =
            (struct lk_slice){lane->scratch.data + start, ends[i] - start};
        start = ends[i];
    }
    return status;
}

/* One call for the first `count` of `pending`. */
static enum lk_status add_group(const struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                struct lk_redis_pending *pending, size_t count)
{
    struct lk_slice keys[SET_KEYS + GROUP_OPS];
    size_t args = 0;
    enum lk_status status = list_keys(store, lane, pending, count, keys);

    for (size_t i = 0; i < count; i++) {
        unsigned kind = event_kind(pending[i].op);
        args += 1 + event_args[pending[i].op->event] +
                (kind == PROOF_EVENT || kind == OPERATOR_EVENT ? 1 : 0);
    }
    if (!status) {
        status = lk_redis_begin(store, &lane->link,
                                lane->full ? "latchkey_decide_full"
                                           : "latchkey_decide",
                                keys, SET_KEYS + count, args);
    }
    for (size_t i = 0; i < count && !status; i++) {
        const struct lk_op *op = pending[i].op;
        status = lk_link_number(&lane->link, op->event + event_kind(op));
        if (!status) {
            status = add_args(store, lane, op);
        }
        if (!status && is_proof(op)) {
            status = lk_link_number(&lane->link, op->token);
        }
    }
    for (size_t i = 0; i < count; i++) {
        pending[i].end = lane->link.out.len;
    }
    pending[0].group = count;
    return status;
}

static enum lk_status add_tending(struct redis_chunk *chunk)
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
 * connection, and what was decided may rest on the write of another. */
static enum lk_status write_wait(struct redis_chunk *chunk)
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
static size_t op_size(const struct lk_op *op)
{
    return op->response.headers.len + op->response.body.len + 512;
}

/* How many of `most` go into one call; what is large goes alone. */
static size_t measure_group(const struct lk_redis_pending *pending, size_t most,
                            size_t *bytes)
{
    size_t count = 0;

    *bytes = 0;
    while (count < most && count < GROUP_OPS && *bytes < GROUP_BYTES) {
        *bytes += op_size(pending[count++].op);
    }
    return count;
}

/*
 * Queues as many of the first `most` pending ops as fit into one pipeline, in
 * groups of one call each; `tends`: the keeper's call behind the last one. Sets
 * chunk->count, and of each op where its call ends in the output. LK_NOMEM:
 * half a pipeline is in the link, which the caller closes.
 */
static enum lk_status write_chunk(struct redis_chunk *chunk, size_t most,
                                  bool tends)
{
    size_t total = 0;
    enum lk_status status = LK_OK;

    lk_link_reset(&chunk->lane->link);
    chunk->count = 0;
    while (chunk->count < most && total < CHUNK_BYTES && !status) {
        struct lk_redis_pending *next = &chunk->pending[chunk->count];
        size_t bytes;
        size_t count = measure_group(next, most - chunk->count, &bytes);
        status = add_group(chunk->store, chunk->lane, next, count);
        chunk->count += count;
        total += bytes;
    }
    chunk->tends = tends && chunk->count == most;
    if (!status && chunk->tends) {
        status = add_tending(chunk);
    }
    return status;
}

/* ==== Replies =========================================================== */

enum { REPLY_HEAD = 12 };

static const char NO_MEMORY[] = "Redis is out of memory";

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
    {"OOM", LK_UNAVAILABLE, NO_MEMORY},
    {"MISCONF", LK_UNAVAILABLE, "Redis cannot write to its disk"},
    {"NOREPLICAS", LK_UNAVAILABLE, "Redis has too few replicas to write"},
    {"NOPERM", LK_UNAVAILABLE, "the Redis user may not do this"},
    {"LKFULL", LK_UNAVAILABLE, "the store is out of tokens"},
};

static bool begins_with(struct lk_slice text, const char *word)
{
    size_t len = strlen(word);

    return text.len >= len && memcmp(text.data, word, len) == 0;
}

/* Redis 6 has the code of an error inside a script in the middle. */
enum lk_status lk_redis_refusal(const struct lk_reply *reply,
                                const char **sentence)
{
    struct lk_slice text = lk_reply_text(reply);
    struct lk_slice inner = {0};
    const char *at = text.len ? memmem(text.data, text.len, ": -", 3) : NULL;

    if (at) {
        inner.data = at + 3;
        inner.len = text.len - (size_t)(inner.data - text.data);
    }
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        if (begins_with(text, refusals[i].code) ||
            begins_with(inner, refusals[i].code)) {
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

/* The caller acts on it, though it may rest on a write of another daemon that
 * no replica has: a failover would take it back. */
static bool is_final(enum lk_verdict verdict)
{
    return verdict != LK_VERDICT_INFLIGHT && verdict != LK_VERDICT_REFUSED &&
           verdict != LK_VERDICT_NIL;
}

static bool needs_stored(enum lk_verdict verdict)
{
    return verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_OMITTED ||
           verdict == LK_VERDICT_KEPT || verdict == LK_VERDICT_UNCERTAIN;
}

static bool is_pending_state(unsigned state)
{
    return state == LK_STATE_IN_PROGRESS || state == LK_STATE_ACCEPTED;
}

static void count_change(struct redis_chunk *chunk, unsigned before,
                         unsigned after)
{
    if (before <= LK_STATE_RELEASED && after <= LK_STATE_RELEASED) {
        chunk->change[before]--;
        chunk->change[after]++;
    }
}

/* The reply's bytes as an outcome. LK_CORRUPT: they are none. */
static enum lk_status take_outcome(struct redis_chunk *chunk,
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
    struct lk_slice encoded = {bytes.data + REPLY_HEAD, bytes.len - REPLY_HEAD};
    if (verdict > LK_VERDICT_NIL || after > LK_STATE_RELEASED) {
        return LK_CORRUPT;
    }
    if (encoded.len) {
        status = lk_redis_head_read(encoded, &head);
    }
    op->out = (struct lk_outcome){.verdict = (enum lk_verdict)verdict,
                                  .state = (enum lk_state)after,
                                  .now_ms = lk_redis_get64(bytes.data + 4)};
    chunk->now_ms = op->out.now_ms;
    if (!status && encoded.len) {
        set_times(&head, &op->out);
    }
    if (!status && needs_stored(op->out.verdict)) {
        /* A long response does not come with the decision. */
        op->out.needs_load =
            after == LK_STATE_COMPLETED && encoded.len == LK_REDIS_HEAD;
        status = op->out.needs_load ? LK_OK
                                    : lk_redis_stored(&head, &op->out.stored);
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
    pending->written = written;
    chunk->lane->wrote |= written;
    pending->uncertain = written || is_final(op->out.verdict);
    return status;
}

/* Redis says so before the first write of a call: nothing has happened. */
static bool lacks_memory(const struct lk_reply *reply)
{
    static const char words[] = "OOM command not allowed";
    struct lk_slice text = lk_reply_text(reply);

    return text.len && memmem(text.data, text.len, words, sizeof(words) - 1);
}

static void take_reply(struct redis_chunk *chunk,
                       struct lk_redis_pending *pending,
                       const struct lk_reply *reply)
{
    struct lk_op *op = pending->op;

    if (reply->type == LK_REPLY_TEXT) {
        pending->sent = false;
        op->status = take_outcome(chunk, pending, lk_reply_text(reply));
        op->error = NULL;
        if (chunk->full && op->out.verdict == LK_VERDICT_REFUSED &&
            !op->no_new) {
            op->status = LK_UNAVAILABLE;
            op->error = NO_MEMORY;
        }
        return;
    }
    if (lacks_memory(reply)) {
        chunk->lane->full = true;
        op->status = chunk->full ? LK_UNAVAILABLE : LK_AGAIN;
        op->error = NO_MEMORY;
        return;
    }
    op->status = lk_redis_refusal(reply, &op->error);
    if (pending->sent && op->status == LK_UNAVAILABLE) {
        op->status = LK_UNKNOWN; /* sent before, too: that may have counted */
        return;
    }
    chunk->unfit |= op->status == LK_AGAIN;
    if (op->status == LK_UNKNOWN && !chunk->complained) {
        struct lk_slice said = lk_reply_text(reply);
        chunk->complained = true;
        lk_redis_log(chunk->store, 0, "Redis failed in a function: %.*s",
                     (int)(said.len < 200 ? said.len : 200),
                     said.data ? said.data : "");
    }
}

/* An error instead of an array is everybody's. */
static void take_group(struct redis_chunk *chunk, const struct lk_reply *reply)
{
    struct lk_redis_pending *first = &chunk->pending[chunk->answered];
    bool fits = reply->type == LK_REPLY_ARRAY && reply->count == first->group;

    for (size_t i = 0; i < first->group; i++) {
        take_reply(chunk, &first[i], fits ? &reply->elements[i] : reply);
    }
    assert(first->group > 0);
    chunk->answered += first->group;
    assert(chunk->answered <= chunk->count);
}

/* As latchkey_tend returns it. */
enum { TEND_COUNTS = 5, TEND_NAMES = 12 };

static void take_tending(struct redis_chunk *chunk,
                         const struct lk_reply *reply)
{
    struct lk_redis *store = chunk->store;
    const struct lk_reply *fields = reply->elements;
    const char *ignored;

    if (reply->type != LK_REPLY_ARRAY || reply->count < TEND_NAMES) {
        chunk->unfit |= reply->type == LK_REPLY_ERROR &&
                        lk_redis_refusal(reply, &ignored) == LK_AGAIN;
        return;
    }
    for (size_t i = TEND_NAMES; i < reply->count; i++) {
        struct lk_name name;
        if (!lk_redis_name_read(store, lk_reply_text(&fields[i]), &name) ||
            lk_batch_settle(chunk->batch,
                            lk_name_hash(store->store.secret, name))) {
            chunk->batch->settle_all = true;
        }
    }
    uint64_t dead = lk_reply_number(&fields[3]);
    uint64_t late = lk_reply_number(&fields[4]);
    chunk->batch->more = lk_reply_number(&fields[0]) && dead + late > 0;
    memset(chunk->change, 0, sizeof(chunk->change)); /* counted again */
    lk_redis_count(store, fields + TEND_COUNTS);
    pthread_mutex_lock(&store->numbers_lock);
    store->numbers.dead_rows = dead;
    store->numbers.reaped += lk_reply_number(&fields[2]);
    store->numbers.swept += reply->count - TEND_NAMES;
    pthread_mutex_unlock(&store->numbers_lock);
    chunk->now_ms = lk_reply_number(&fields[1]);
}

static void forget_outcome(struct lk_op *op, enum lk_status status,
                           const char *error)
{
    lk_op_clear(op);
    op->out = (struct lk_outcome){0};
    op->status = status;
    op->error = error;
}

/* It is not known whether enough replicas have what the outcomes rest on. */
static void doubt_outcomes(struct redis_chunk *chunk, bool again)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        struct lk_redis_pending *pending = &chunk->pending[i];
        struct lk_op *op = pending->op;
        if (op->status != LK_OK || !pending->uncertain) {
            continue;
        }
        bool repeats = again && op->event == LK_EVENT_CLAIM &&
                       (op->owner.len > 0 || !pending->written);
        pending->sent = repeats;
        forget_outcome(op, repeats ? LK_AGAIN : LK_UNKNOWN,
                       "too few replicas of Redis acknowledged it in time");
    }
}

static bool rests_on_writes(const struct redis_chunk *chunk)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        if (chunk->pending[i].op->status == LK_OK &&
            chunk->pending[i].uncertain) {
            return true;
        }
    }
    return false;
}

/* Waits until enough replicas have what was decided, if that is configured.
 * What they do not have in time is unknown. */
static enum lk_status await_replicas(struct redis_chunk *chunk,
                                     int64_t deadline)
{
    unsigned replicas = chunk->store->config.wait_replicas;
    const struct lk_reply *reply = NULL;

    if (!replicas || !rests_on_writes(chunk)) {
        return LK_OK;
    }
    lk_link_reset(&chunk->lane->link);
    enum lk_status status = write_wait(chunk);
    if (!status) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
    }
    /* Without the mark, WAIT counts up to some older write. */
    bool marked = !status && reply->type != LK_REPLY_ERROR;
    if (!status) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
    }
    if (status || !marked || reply->type != LK_REPLY_INTEGER ||
        reply->integer < (long long)replicas) {
        doubt_outcomes(chunk, status != LK_OK);
    }
    return status;
}

/* Takes the replies of a pipeline, in order. On failure the link is closed, and
 * chunk->answered says how many ops have their outcome. */
static enum lk_status read_chunk(struct redis_chunk *chunk, int64_t deadline)
{
    const struct lk_reply *reply = NULL;
    enum lk_status status = LK_OK;

    while (!status && chunk->answered < chunk->count) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
        if (!status) {
            take_group(chunk, reply);
        }
    }
    if (!status && chunk->tends) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
        if (!status) {
            take_tending(chunk, reply);
        }
    }
    return status;
}

/* The link broke: what was sent whole and has no reply, or no confirmation of
 * the replicas, may have happened. */
static void sort_unanswered(struct redis_chunk *chunk)
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
    if (chunk->store->config.wait_replicas) {
        doubt_outcomes(chunk, true);
    }
}

/* ==== The batch ========================================================= */

/* Redis takes 512 MiB in one value. */
#define RESPONSE_MAX (UINT64_C(500) * 1000 * 1000)

/* ---- What is left ----------------------------------------------------------
 */

static void add_numbers(struct redis_chunk *chunk)
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
    int64_t operations = (int64_t)store->numbers.operations - chunk->change[0];
    store->numbers.operations = operations > 0 ? (uint64_t)operations : 0;
    if (chunk->last_token > store->numbers.last_token) {
        store->numbers.last_token = chunk->last_token;
    }
    pthread_mutex_unlock(&store->numbers_lock);
}

/* Keeps those that are still to be decided, in order. */
static size_t keep_undecided(struct lk_redis_pending *pending, size_t count)
{
    size_t stored = 0;

    for (size_t i = 0; i < count; i++) {
        if (pending[i].op->status == LK_AGAIN) {
            pending[stored++] = pending[i];
        }
    }
    return stored;
}

static void give_up_ops(struct lk_redis_lane *lane, size_t count)
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

/* A failover may lose what was acknowledged: not good enough for an outbox. */
#define NO_JOBS                                                                \
    "a Redis store keeps no jobs: use the embedded store or PostgreSQL"

/* False: it cannot be decided here, and has its status. */
static bool check_op_possible(struct lk_op *op)
{
    op->status = LK_AGAIN;
    op->error = NULL;
    if (op->event == LK_EVENT_ACCEPT || op->event == LK_EVENT_LEASE ||
        op->event == LK_EVENT_ENQUEUE || op->event == LK_EVENT_RETURN) {
        op->status = LK_INVALID;
        op->error = NO_JOBS;
    } else if (op->response.headers.len + op->response.body.len >
               RESPONSE_MAX) {
        op->status = LK_TOO_LARGE;
        op->error = "the response is larger than the store can keep; complete "
                    "it with OMIT";
    }
    return op->status == LK_AGAIN;
}

/* Lists the ops that this store can decide; the others have their status
 * already. LK_NOMEM. */
static enum lk_status collect_ops(struct lk_redis_lane *lane,
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
        if (check_op_possible(batch->ops[i])) {
            lane->pending[(*count)++] =
                (struct lk_redis_pending){.op = batch->ops[i]};
        }
    }
    return LK_OK;
}

/* One pipeline. LK_AGAIN: the link or the server cannot be used any more. */
static enum lk_status run_chunk(struct lk_redis *store,
                                struct lk_redis_lane *lane,
                                struct lk_batch *batch, size_t *count,
                                bool *tends, int64_t deadline)
{
    struct redis_chunk chunk = {.store = store,
                                .lane = lane,
                                .batch = batch,
                                .pending = lane->pending,
                                .full = lane->full};
    enum lk_status status = write_chunk(&chunk, *count, *tends);

    if (status) {
        lk_link_close(&lane->link); /* half a pipeline is in it */
        return status;
    }
    status = read_chunk(&chunk, deadline);
    if (status) {
        sort_unanswered(&chunk);
    } else {
        *tends = *tends && !chunk.tends;
        status = await_replicas(&chunk, deadline);
    }
    add_numbers(&chunk);
    *count = keep_undecided(lane->pending, *count);
    if (status || chunk.unfit) {
        const char *why =
            chunk.unfit && *count ? lane->pending[0].op->error : NULL;
        lk_redis_lost(store, &lane->link, why);
        return LK_AGAIN;
    }
    return LK_OK;
}

/* Once when it begins, once when it is over. */
static void log_memory(struct lk_redis *store, bool full)
{
    if (atomic_load_explicit(&store->full, memory_order_relaxed) == full ||
        atomic_exchange(&store->full, full) == full) {
        return;
    }
    lk_redis_log(store, full ? 0 : 2, "%s",
                 full ? "Redis is out of memory: nothing new is begun"
                      : "Redis has memory again");
}

static void refuse_batch(struct lk_batch *batch, const char *error)
{
    for (size_t i = 0; i < batch->count; i++) {
        batch->ops[i]->status = LK_UNAVAILABLE;
        batch->ops[i]->error = error;
    }
}

/*
 * Decides every op of the batch before the deadline, or gives it a status that
 * says what is known: LK_UNAVAILABLE, nothing happened; LK_UNKNOWN, it may
 * have. Pipelines are sent until no op is left; after a failure the scout gets
 * a chance to find the primary, and what has not happened is sent again.
 */
void lk_redis_apply(struct lk_store *base, struct lk_batch *batch)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_lane *lane = &store->lanes[batch->lane];
    int64_t deadline =
        (int64_t)lk_monotonic_ms() +
        (int64_t)(store->config.timeout_ms +
                  (store->config.wait_replicas ? store->config.wait_timeout_ms
                                               : 0));
    bool tends = batch->keep;
    size_t count;

    lane->full = lane->wrote = false;
    if (batch->job_batch) {
        batch->job_batch->status = LK_INVALID;
        batch->job_batch->error = NO_JOBS;
        batch->job_batch->wait_ms = UINT64_MAX;
    }
    if (collect_ops(lane, batch, &count)) {
        refuse_batch(batch, "out of memory");
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
        if (status || (int64_t)lk_monotonic_ms() >= deadline) {
            break;
        }
    }
    if (lane->full || lane->wrote) {
        log_memory(store, lane->full);
    }
    give_up_ops(lane, count);
}

enum lk_status lk_redis_note(struct lk_store *base,
                             const struct lk_audit_entry *entry)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_link *link = &store->lanes[0].link;
    int64_t deadline =
        (int64_t)lk_monotonic_ms() + (int64_t)store->config.timeout_ms;
    struct lk_buf bytes = {0};
    struct lk_reply *reply = NULL;
    const char *ignored;
    enum lk_status status = lk_redis_audit_write(entry, &bytes);

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
        } else if (reply->type == LK_REPLY_ERROR) {
            status = lk_redis_refusal(reply, &ignored);
        }
    }
    free(reply);
    latchkey_buf_free(&bytes);
    return status == LK_AGAIN ? LK_UNAVAILABLE : status;
}
