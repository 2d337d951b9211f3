/*
 * redis_write.c - a pipeline of calls. Each decides several operations, so that
 * what a call costs is shared; few enough that Redis is not held up by it.
 */
#include "store/redis_batch.h"

enum {
    CHUNK_BYTES = 8 * 1024 * 1024, /* of one pipeline, roughly */
    GROUP_BYTES = 128 * 1024,      /* of one call, roughly */
    GROUP_OPS = 64,
    LEASE_MS = 5000, /* of the keeper */
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

/* The keys of a call: sets, then the records. They stay in the scratch buffer
 * until the call is begun. */
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

static enum lk_status add_tending(struct lk_redis_chunk *chunk)
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
enum lk_status lk_chunk_write_wait(struct lk_redis_chunk *chunk)
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

/* How many of `most` go into one call; what is large goes alone. */
static size_t measure_group(const struct lk_redis_pending *pending, size_t most,
                            size_t *bytes)
{
    size_t count = 0;

    *bytes = 0;
    while (count < most && count < GROUP_OPS && *bytes < GROUP_BYTES) {
        *bytes += size_of(pending[count++].op);
    }
    return count;
}

enum lk_status lk_chunk_write(struct lk_redis_chunk *chunk, size_t most,
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
