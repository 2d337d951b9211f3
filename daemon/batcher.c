/* batcher.c - the store thread and its queue. */
#include "daemon/batcher.h"
#include "daemon/thread.h"
#include "store/fault.h"

#include <stdlib.h>

struct lk_batcher {
    struct lk_store *store;
    struct lk_returns *returns;
    struct lk_op **ops; /* room for batch_ops; store thread */
    size_t batch_ops;

    uv_thread_t thread;
    uv_mutex_t mutex; /* guards all below; taken alone, never with another */
    uv_cond_t wake;
    struct lk_task_queue queue;
    uint64_t sweep_interval_ms;
    bool asleep;
    bool stop;
    struct lk_batcher_stats stats;
};

static bool is_operation(const struct lk_task *task)
{
    return task->demand.kind == LK_TASK_OP ||
           task->demand.kind == LK_TASK_AWAIT;
}

/*
 * Sleeps until there is work, the keeper is due or it is time to stop. Returns
 * false for the last. `batch` gets at most batch_ops tasks, in order; what
 * is no operation comes alone.
 */
static bool take_batch(struct lk_batcher *batcher, uint64_t *keep_at_ns,
                       struct lk_task_queue *batch, bool *keep)
{
    uint64_t now;

    uv_mutex_lock(&batcher->mutex);
    for (;;) {
        now = uv_hrtime();
        if (batcher->queue.head || batcher->stop || now >= *keep_at_ns) {
            break;
        }
        batcher->asleep = true;
        uv_cond_timedwait(&batcher->wake, &batcher->mutex, *keep_at_ns - now);
        batcher->asleep = false;
    }
    bool more = batcher->queue.head || !batcher->stop;
    while (batcher->queue.head && batch->count < batcher->batch_ops) {
        bool alone = !is_operation(batcher->queue.head);
        if (alone && batch->count) {
            break;
        }
        lk_task_queue_add(batch, lk_task_queue_take(&batcher->queue));
        if (alone) {
            break;
        }
    }
    *keep = now >= *keep_at_ns;
    if (*keep) {
        *keep_at_ns = now + batcher->sweep_interval_ms * 1000000;
    }
    uv_mutex_unlock(&batcher->mutex);
    return more;
}

/* True: the keeper has more to do, and should not wait. */
static bool apply_batch(struct lk_batcher *batcher, struct lk_task_queue *tasks,
                        bool keep)
{
    struct lk_batch batch = {.ops = batcher->ops, .keep = keep};
    uint64_t started = uv_hrtime();

    for (struct lk_task *task = tasks->head; task; task = task->next) {
        batch.ops[batch.count++] = &task->demand.op;
    }
    batcher->store->class->apply(batcher->store, &batch);
    if (batch.count) {
        uint64_t us = (uv_hrtime() - started) / 1000;
        uv_mutex_lock(&batcher->mutex);
        lk_histogram_add(&batcher->stats.ops, batch.count);
        lk_histogram_add(&batcher->stats.us, us);
        uv_mutex_unlock(&batcher->mutex);
    }
    lk_fault_point("before_reply");
    if (batch.count || batch.settled_count || batch.settle_all) {
        lk_returns_give(batcher->returns, tasks, &batch);
    }
    lk_batch_clear(&batch);
    return batch.more;
}

/* What an operator does to no record. */
static void apply_alone(struct lk_batcher *batcher, struct lk_task_queue *tasks)
{
    struct lk_store *store = batcher->store;
    struct lk_demand *demand = &tasks->head->demand;
    struct lk_op *op = &demand->op;
    struct lk_buf action = {0};

    if (demand->kind == LK_TASK_CLOCK) {
        op->status = store->class->accept_clock(store, op->who, op->why);
    } else {
        op->status = latchkey_buf_printf(&action, "backup %.*s",
                                         (int)op->reason.len, op->reason.data);
        if (!op->status) {
            op->status = store->class->note(store, latchkey_buf_slice(&action),
                                            op->who, op->why);
        }
    }
    latchkey_buf_free(&action);
    lk_returns_give(batcher->returns, tasks, NULL);
}

static void run_thread(void *context)
{
    struct lk_batcher *batcher = context;
    uint64_t keep_at_ns = uv_hrtime();
    struct lk_task_queue tasks = {0};
    bool keep;

    while (take_batch(batcher, &keep_at_ns, &tasks, &keep)) {
        if (tasks.head && !is_operation(tasks.head)) {
            apply_alone(batcher, &tasks);
        }
        if ((tasks.head || keep) && apply_batch(batcher, &tasks, keep)) {
            keep_at_ns = 0;
        }
    }
}

enum lk_status lk_batcher_start(struct lk_store *store,
                                struct lk_returns *returns, size_t batch_ops,
                                uint64_t sweep_interval_ms,
                                struct lk_batcher **batcher)
{
    struct lk_batcher *made = calloc(1, sizeof(*made));
    struct lk_op **ops = calloc(batch_ops, sizeof(struct lk_op *));

    if (!made || !ops) {
        goto failed;
    }
    made->store = store;
    made->returns = returns;
    made->ops = ops;
    made->batch_ops = batch_ops;
    made->sweep_interval_ms = sweep_interval_ms;
    if (uv_mutex_init(&made->mutex)) {
        goto failed;
    }
    if (uv_cond_init(&made->wake)) {
        uv_mutex_destroy(&made->mutex);
        goto failed;
    }
    if (lk_thread_create(&made->thread, run_thread, made)) {
        uv_cond_destroy(&made->wake);
        uv_mutex_destroy(&made->mutex);
        goto failed;
    }
    *batcher = made;
    return LK_OK;

failed:
    free(ops);
    free(made);
    return LK_NOMEM;
}

void lk_batcher_set_sweep(struct lk_batcher *batcher,
                          uint64_t sweep_interval_ms)
{
    uv_mutex_lock(&batcher->mutex);
    batcher->sweep_interval_ms = sweep_interval_ms;
    uv_mutex_unlock(&batcher->mutex);
}

void lk_batcher_give(struct lk_batcher *batcher, struct lk_task_queue *tasks)
{
    uv_mutex_lock(&batcher->mutex);
    lk_task_queue_join(&batcher->queue, tasks);
    if (batcher->asleep) {
        uv_cond_signal(&batcher->wake);
    }
    uv_mutex_unlock(&batcher->mutex);
}

void lk_batcher_stats(struct lk_batcher *batcher,
                      struct lk_batcher_stats *stats)
{
    uv_mutex_lock(&batcher->mutex);
    *stats = batcher->stats;
    stats->waiting = batcher->queue.count;
    uv_mutex_unlock(&batcher->mutex);
}

void lk_batcher_stop(struct lk_batcher *batcher)
{
    if (!batcher) {
        return;
    }
    uv_mutex_lock(&batcher->mutex);
    batcher->stop = true;
    uv_cond_signal(&batcher->wake);
    uv_mutex_unlock(&batcher->mutex);
    uv_thread_join(&batcher->thread);
    uv_cond_destroy(&batcher->wake);
    uv_mutex_destroy(&batcher->mutex);
    free(batcher->ops);
    free(batcher);
}
