/* redis_write.c - a pipeline: one call for each operation. */
#include "store/redis_batch.h"

enum {
    CHUNK_BYTES = 8 * 1024 * 1024, /* of one pipeline, roughly */
    LEASE_MS = 5000,               /* of the keeper */
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

enum lk_status lk_chunk_write(struct lk_redis_chunk *chunk, size_t most,
                              bool tends)
{
    struct lk_link *link = &chunk->lane->link;
    size_t bytes = 0;
    size_t fits = 0;
    enum lk_status status = LK_OK;

    while (fits < most && bytes < CHUNK_BYTES) {
        bytes += size_of(chunk->pending[fits++].op);
    }
    lk_link_reset(link);
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
