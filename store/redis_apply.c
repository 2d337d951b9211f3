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
#include "lib/time.h"
#include "store/redis_batch.h"

#include <stdlib.h>

/* Redis takes 512 MiB in one value. */
#define ANSWER_MAX (UINT64_C(500) * 1000 * 1000)

/* ---- What is left ----------------------------------------------------------
 */

static void add_numbers(struct lk_redis_chunk *chunk)
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
    int64_t records = (int64_t)store->numbers.operations - chunk->change[0];
    store->numbers.operations = records > 0 ? (uint64_t)records : 0;
    if (chunk->last_token > store->numbers.last_token) {
        store->numbers.last_token = chunk->last_token;
    }
    pthread_mutex_unlock(&store->numbers_lock);
}

/* Keeps those that are still to be decided, in order. */
static size_t keep_open(struct lk_redis_pending *pending, size_t count)
{
    size_t stored = 0;

    for (size_t i = 0; i < count; i++) {
        if (pending[i].op->status == LK_AGAIN) {
            pending[stored++] = pending[i];
        }
    }
    return stored;
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

/* A fail-over may lose what was acknowledged: nothing for an outbox. */
#define NO_JOBS                                                                \
    "a Redis store keeps no jobs: use the embedded store or PostgreSQL"

/* False: it cannot be decided here, and has its status. */
static bool is_possible(struct lk_op *op)
{
    op->status = LK_AGAIN;
    op->error = NULL;
    if (op->event == LK_EVENT_ACCEPT || op->event == LK_EVENT_LEASE ||
        op->event == LK_EVENT_ENQUEUE || op->event == LK_EVENT_RETURN) {
        op->status = LK_INVALID;
        op->error = NO_JOBS;
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
    struct lk_redis_chunk chunk = {.store = store,
                                   .lane = lane,
                                   .batch = batch,
                                   .pending = lane->pending,
                                   .full = lane->full};
    enum lk_status status = lk_chunk_write(&chunk, *count, *tends);

    if (status) {
        lk_link_close(&lane->link); /* half a pipeline is in it */
        return status;
    }
    status = lk_chunk_read(&chunk, deadline);
    if (status) {
        lk_chunk_sort(&chunk);
    } else {
        *tends = *tends && !chunk.tends;
        status = lk_chunk_await_replicas(&chunk, deadline);
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

/* Once when it begins, once when it is over. */
static void tell_memory(struct lk_redis *store, bool full)
{
    if (atomic_load_explicit(&store->full, memory_order_relaxed) == full ||
        atomic_exchange(&store->full, full) == full) {
        return;
    }
    lk_redis_log(store, full ? 0 : 2, "%s",
                 full ? "Redis is out of memory: nothing new is begun"
                      : "Redis has memory again");
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
        if (status || (int64_t)lk_monotonic_ms() >= deadline) {
            break;
        }
    }
    if (lane->full || lane->wrote) {
        tell_memory(store, lane->full);
    }
    give_up(lane, count);
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
