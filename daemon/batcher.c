/*
 * batcher.c - the threads of the store, one for each lane, and their queues.
 *
 * All ops about one name go to one lane, by its hash, and keep their order
 * there. A lane takes what has come since its last batch (its share), lets the
 * store decide it in one durable step, and gives the tasks back. While one
 * batch is made durable the next one gathers, so batches grow with the load.
 *
 *   to the store    lk_batcher_give -> lane->queue -> share -> store
 *   and back        share -> lk_returns_give; LK_AGAIN: lane->held, then share
 *   job batches     lk_batcher_job_batch -> a free lane, or batcher->job_batch
 *
 * Lane 0 also runs tasks of place STORE and the keeper.
 */
#include "daemon/batcher.h"
#include "daemon/thread.h"
#include "store/fault.h"

#include <assert.h>
#include <stdlib.h>

/* Another transaction holds the operation (LK_AGAIN): the task is given to the
 * store again after AGAIN_NS, and so on for one of the times below. Then a
 * claim gets INFLIGHT, any other command UNAVAILABLE. */
#define AGAIN_NS       (5 * UINT64_C(1000000))
#define AGAIN_CLAIM_NS (25 * UINT64_C(1000000))
#define AGAIN_OTHER_NS (5000 * UINT64_C(1000000))
/* For a claim that is older than this, the batcher checks whether the client is
 * still connected: the store was slow, or the process was stopped. */
#define OLD_NS (1000 * UINT64_C(1000000))

/* One store thread and its queue: for the ops whose names hash to this lane, or
 * for job batches. */
struct lane {
    struct lk_batcher *batcher;
    unsigned number;
    struct lk_op **ops; /* room for batch_ops; its thread */
    /* Tasks to give to the store again, all at held_ns, in the order in which
     * they came; later tasks for the same names are behind them. Its thread. */
    struct lk_task_queue held;
    uint64_t held_ns;
    uint64_t keep_ns; /* when the keeper is due; lane 0 */

    uv_thread_t thread;
    uv_cond_t wake;
    /* Guarded by the batcher's mutex: */
    struct lk_task_queue queue;
    struct lk_job_batch *job_batch; /* the next one, for it alone */
    bool asleep;
    bool busy;   /* with a job batch */
    bool failed; /* its last job batch */
    bool hurry;  /* apply a batch now, even if there is nothing to decide */
};

/* What a lane takes at a time: one batch, or one task of place STORE. */
struct share {
    struct lk_task_queue tasks;
    struct lk_job_batch *job_batch; /* NULL: none */
    bool keep;
};

struct lk_batcher {
    struct lk_store *store;
    struct lk_returns *returns;
    size_t batch_ops;
    struct lane *lanes;
    unsigned lane_count; /* threads that were started */

    uv_mutex_t mutex; /* guards all below; taken alone, never with another */
    uint64_t sweep_interval_ms;
    bool stop;
    struct lk_job_batch
        *job_batch; /* first in, first out, for the lane that is free next */
    struct lk_job_batch **last_job_batch;
    struct lk_batcher_stats stats;
};

static bool is_op(const struct lk_task *task)
{
    return task->at == LK_PLACE_BATCH;
}

/* When the lane has to wake by itself, by uv_hrtime; UINT64_MAX: never. */
static uint64_t next_alarm(const struct lane *lane)
{
    uint64_t keep = lane->number ? UINT64_MAX : lane->keep_ns;
    uint64_t again = lane->held.head ? lane->held_ns : UINT64_MAX;

    return again < keep ? again : keep;
}

/* How many tasks fit into a batch beside the ops of its job batch. */
static size_t free_places(const struct lane *lane, const struct share *share)
{
    size_t taken = share->job_batch ? share->job_batch->op_count : 0;

    return lane->batcher->batch_ops - taken;
}

/* Held tasks whose time has come go first: they came first. */
static void take_held(struct lane *lane, struct share *share, uint64_t now)
{
    while (lane->held.head && now >= lane->held_ns &&
           share->tasks.count < free_places(lane, share)) {
        lk_task_queue_add(&share->tasks, lk_task_queue_take(&lane->held));
    }
}

/* Is a task of the same name held, so that this one must wait behind it? */
static bool is_behind(const struct lk_task_queue *held,
                      const struct lk_task *task)
{
    for (const struct lk_task *it = held->head; it; it = it->next) {
        if (is_op(task) && lk_hash128_equal(it->args.event.op.hash,
                                            task->args.event.op.hash)) {
            return true;
        }
    }
    return false;
}

/* At most batch_ops tasks, in order; a task that is not an op comes alone. */
static void take_queued(struct lane *lane, struct share *share)
{
    while (lane->queue.head && share->tasks.count < free_places(lane, share)) {
        bool alone = !is_op(lane->queue.head);
        if (alone && share->tasks.count) {
            break;
        }
        struct lk_task *task = lk_task_queue_take(&lane->queue);
        bool behind = is_behind(&lane->held, task);
        lk_task_queue_add(behind ? &lane->held : &share->tasks, task);
        if (alone) {
            break;
        }
    }
}

/* Does the lane do job batches? Lane 0, if the store has no lanes for them. */
static bool is_worker(const struct lane *lane)
{
    const struct lk_store *store = lane->batcher->store;

    return store->job_lanes ? lane->number >= store->lanes : lane->number == 0;
}

/* May the lane take this job batch? Job actions (`actions`) and proofs (`ops`)
 * are given only once, and a client or the prober waits for their result: a
 * lane whose connection may be lost leaves them to another lane. The courier's
 * own job batches are given again after a failure; the first that succeeds
 * shows that the connection is back. */
static bool may_take(const struct lane *lane,
                     const struct lk_job_batch *job_batch)
{
    const struct lk_batcher *batcher = lane->batcher;

    if (!lane->failed || (!job_batch->action_count && !job_batch->op_count)) {
        return true;
    }
    for (unsigned i = 0; i < batcher->lane_count; i++) {
        if (is_worker(&batcher->lanes[i]) && !batcher->lanes[i].failed) {
            return false;
        }
    }
    return true;
}

static bool has_job_batch(const struct lane *lane)
{
    const struct lk_job_batch *next = lane->batcher->job_batch;

    return lane->job_batch || (next && is_worker(lane) && may_take(lane, next));
}

/* The one that was given to this lane, or the first that waits; NULL: none. The
 * caller holds the mutex. */
static struct lk_job_batch *take_job_batch(struct lane *lane)
{
    struct lk_batcher *batcher = lane->batcher;
    struct lk_job_batch *job_batch = lane->job_batch;

    lane->job_batch = NULL;
    if (!job_batch && has_job_batch(lane)) {
        job_batch = batcher->job_batch;
        batcher->job_batch = job_batch->next;
        job_batch->next = NULL;
    }
    if (!batcher->job_batch) {
        batcher->last_job_batch = &batcher->job_batch;
    }
    return job_batch;
}

/* Sleeps until there is something to do, an alarm is due or it is time to stop.
 * Returns false for the last, once nothing is left to do. */
static bool take_share(struct lane *lane, struct share *share)
{
    struct lk_batcher *batcher = lane->batcher;
    uint64_t now;

    uv_mutex_lock(&batcher->mutex);
    while (!lane->queue.head && !has_job_batch(lane) && !batcher->stop &&
           !lane->hurry && (now = uv_hrtime()) < next_alarm(lane)) {
        uint64_t alarm = next_alarm(lane);
        lane->asleep = true;
        if (alarm == UINT64_MAX) {
            uv_cond_wait(&lane->wake, &batcher->mutex);
        } else {
            uv_cond_timedwait(&lane->wake, &batcher->mutex, alarm - now);
        }
        lane->asleep = false;
    }
    now = batcher->stop ? UINT64_MAX : uv_hrtime();
    *share = (struct share){.job_batch = take_job_batch(lane)};
    take_held(lane, share, now);
    take_queued(lane, share);
    share->keep = lane->number == 0 && !batcher->stop && now >= lane->keep_ns &&
                  batcher->sweep_interval_ms;
    if (lane->number == 0 && now >= lane->keep_ns) {
        lane->keep_ns = batcher->sweep_interval_ms
                            ? now + batcher->sweep_interval_ms * 1000000
                            : UINT64_MAX;
    }
    lane->hurry = false;
    lane->busy = share->job_batch != NULL;
    bool more = share->tasks.head || share->job_batch || !batcher->stop;
    uv_mutex_unlock(&batcher->mutex);
    return more;
}

static bool is_stopping(struct lk_batcher *batcher)
{
    uv_mutex_lock(&batcher->mutex);
    bool stop = batcher->stop;
    uv_mutex_unlock(&batcher->mutex);
    return stop;
}

/* True: the op is to be given again. Else it has its status. The time starts
 * with the first LK_AGAIN, not with the command. */
static bool decide_again_or_end(struct lk_task *task, uint64_t now,
                                bool stopping)
{
    struct lk_op *op = &task->args.event.op;
    bool claim =
        op->event == LK_EVENT_CLAIM || (op->event == LK_EVENT_ACCEPT &&
                                        op->out.verdict == LK_VERDICT_INFLIGHT);

    if (op->status != LK_AGAIN) {
        return false;
    }
    if (!task->again_until_ns) {
        task->again_until_ns = now + (claim ? AGAIN_CLAIM_NS : AGAIN_OTHER_NS);
    }
    if (now < task->again_until_ns && !stopping) {
        return true;
    }
    task->again_until_ns = 0;
    if (claim) {
        op->status = LK_OK; /* the outcome says INFLIGHT */
    } else {
        op->status = LK_UNAVAILABLE;
        op->error =
            LK_RECORD "another transaction holds it; send the same again";
    }
    return false;
}

/* Another daemon's batch, or an app's own transaction, holds the operations
 * of some: these are held here for a while, the others are left in `tasks`. */
static void hold_again(struct lane *lane, struct lk_task_queue *tasks)
{
    struct lk_task_queue done = {0}, again = {0};
    struct lk_task *task;
    uint64_t now = uv_hrtime();
    bool stopping = is_stopping(lane->batcher);

    while ((task = lk_task_queue_take(tasks))) {
        bool hold = decide_again_or_end(task, now, stopping);
        lk_task_queue_add(hold ? &again : &done, task);
    }
    *tasks = done;
    if (again.head && (!lane->held.head || lane->held_ns <= now)) {
        lane->held_ns = now + AGAIN_NS;
    }
    /* What is still held came later, or is about other names. */
    lk_task_queue_join(&again, &lane->held);
    lane->held = again;
}

/* Claims whose client has left are taken out of the share, with their status.
 */
static void take_out_left(struct lane *lane, struct share *share,
                          struct lk_task_queue *left)
{
    struct lk_task_queue tasks = share->tasks;
    struct lk_task *task;
    uint64_t now = uv_hrtime();

    share->tasks = (struct lk_task_queue){0};
    while ((task = lk_task_queue_take(&tasks))) {
        struct lk_op *op = &task->args.event.op;
        bool old = lk_op_begins(op) && now - task->started_ns > OLD_NS;
        if (old && lk_task_client_left(lane->batcher->returns, task)) {
            op->status = LK_UNAVAILABLE;
            op->error = LK_CLIENT_LEFT;
            lk_task_queue_add(left, task);
        } else {
            lk_task_queue_add(&share->tasks, task);
        }
    }
}

static void count_batch(struct lk_batcher *batcher, size_t ops, uint64_t us)
{
    uv_mutex_lock(&batcher->mutex);
    lk_histogram_add(&batcher->stats.ops, ops);
    lk_histogram_add(&batcher->stats.us, us);
    uv_mutex_unlock(&batcher->mutex);
}

/* The ops of the job batch come behind those of the clients. */
static void gather_ops(struct lane *lane, const struct share *share,
                       struct lk_batch *batch)
{
    struct lk_job_batch *job_batch = share->job_batch;

    for (struct lk_task *task = share->tasks.head; task; task = task->next) {
        assert(task->at == LK_PLACE_BATCH);
        batch->ops[batch->count++] = &task->args.event.op;
    }
    for (size_t i = 0; job_batch && i < job_batch->op_count; i++) {
        struct lk_op *op = job_batch->ops[i];
        op->hash = lk_name_hash(lane->batcher->store->secret, op->name);
        batch->ops[batch->count++] = op;
    }
}

/* Ops of a job batch that end with LK_AGAIN are given again by its owner. */
static void finish_job_batch(struct lane *lane, struct lk_job_batch *job_batch)
{
    struct lk_batcher *batcher = lane->batcher;

    uv_mutex_lock(&batcher->mutex);
    lane->busy = false; /* before the next one is given */
    lane->failed =
        job_batch->status == LK_UNAVAILABLE || job_batch->status == LK_UNKNOWN;
    uv_mutex_unlock(&batcher->mutex);
    job_batch->done(job_batch);
}

/* One batch, from the share to the returns: what the store acknowledges is
 * durable before any task goes back. True: the keeper has more to do, and
 * should not wait. */
static bool apply_share(struct lane *lane, struct share *share)
{
    struct lk_batcher *batcher = lane->batcher;
    struct lk_batch batch = {.ops = lane->ops,
                             .lane = lane->number,
                             .keep = share->keep,
                             .job_batch = share->job_batch};
    struct lk_task_queue left = {0};
    uint64_t started = uv_hrtime();

    take_out_left(lane, share, &left);
    gather_ops(lane, share, &batch);
    batcher->store->class->apply(batcher->store, &batch);
    if (batch.count) {
        count_batch(batcher, batch.count, (uv_hrtime() - started) / 1000);
        lk_fault_point("before_reply");
    }
    hold_again(lane, &share->tasks);
    lk_task_queue_join(&share->tasks, &left);
    if (share->tasks.head || batch.settled_count || batch.settle_all ||
        batch.queued) {
        lk_returns_give(batcher->returns, &share->tasks, &batch);
    }
    if (share->job_batch) {
        finish_job_batch(lane, share->job_batch);
    }
    lk_batch_clear(&batch);
    return batch.more;
}

/* A task of place STORE: it runs between two batches. */
static void run_alone(struct lk_batcher *batcher, struct lk_task_queue *tasks)
{
    assert(tasks->count == 1 && tasks->head->at == LK_PLACE_STORE);
    lk_task_run(tasks->head, batcher->store);
    lk_returns_give(batcher->returns, tasks, NULL);
}

/* A store thread. A task that ran alone goes back before apply_share, which
 * then applies a batch without tasks. */
static void run_lane(void *context)
{
    struct lane *lane = context;
    struct share share;

    lane->keep_ns = uv_hrtime();
    while (take_share(lane, &share)) {
        if (share.tasks.head && !is_op(share.tasks.head)) {
            run_alone(lane->batcher, &share.tasks);
        }
        if (apply_share(lane, &share)) {
            lane->keep_ns = 0;
        }
    }
}

/* ---- Start and stop ------------------------------------------------------ */

/* False: out of memory, and the lane has nothing to stop. */
static bool start_lane(struct lk_batcher *batcher, unsigned number)
{
    struct lane *lane = &batcher->lanes[number];

    *lane = (struct lane){.batcher = batcher, .number = number};
    lane->ops = calloc(batcher->batch_ops, sizeof(*lane->ops));
    if (!lane->ops || uv_cond_init(&lane->wake)) {
        goto no_cond;
    }
    if (!lk_thread_create(&lane->thread, run_lane, lane)) {
        batcher->lane_count++;
        return true;
    }
    uv_cond_destroy(&lane->wake);
no_cond:
    free(lane->ops);
    return false;
}

/* Each lane ends once its queue and its held tasks are empty. */
static void stop_lanes(struct lk_batcher *batcher)
{
    uv_mutex_lock(&batcher->mutex);
    batcher->stop = true;
    for (unsigned i = 0; i < batcher->lane_count; i++) {
        uv_cond_signal(&batcher->lanes[i].wake);
    }
    uv_mutex_unlock(&batcher->mutex);
    for (unsigned i = 0; i < batcher->lane_count; i++) {
        uv_thread_join(&batcher->lanes[i].thread);
        uv_cond_destroy(&batcher->lanes[i].wake);
        free(batcher->lanes[i].ops);
    }
}

enum lk_status lk_batcher_start(struct lk_store *store,
                                struct lk_returns *returns, size_t batch_ops,
                                uint64_t sweep_interval_ms,
                                struct lk_batcher **batcher)
{
    struct lk_batcher *made = calloc(1, sizeof(*made));
    unsigned threads = store->lanes + store->job_lanes;
    struct lane *lanes = calloc(threads, sizeof(*lanes));
    bool started = true;

    if (!made || !lanes || uv_mutex_init(&made->mutex)) {
        free(lanes);
        free(made);
        return LK_NOMEM;
    }
    made->store = store;
    made->returns = returns;
    made->lanes = lanes;
    made->batch_ops = batch_ops;
    made->sweep_interval_ms = sweep_interval_ms;
    made->last_job_batch = &made->job_batch;
    for (unsigned i = 0; i < threads && started; i++) {
        started = start_lane(made, i);
    }
    *batcher = made;
    if (!started) {
        lk_batcher_stop(made);
        *batcher = NULL;
        return LK_NOMEM;
    }
    return LK_OK;
}

void lk_batcher_set_sweep(struct lk_batcher *batcher,
                          uint64_t sweep_interval_ms)
{
    uv_mutex_lock(&batcher->mutex);
    batcher->sweep_interval_ms = sweep_interval_ms;
    uv_mutex_unlock(&batcher->mutex);
}

static void wake_lane(struct lane *lane)
{
    if (lane->asleep) {
        uv_cond_signal(&lane->wake);
    }
}

/* One lock for all tasks of a turn of the loop, and one signal for each lane
 * that sleeps. */
void lk_batcher_give(struct lk_batcher *batcher, struct lk_task_queue *tasks)
{
    struct lk_task *task;

    uv_mutex_lock(&batcher->mutex);
    if (batcher->store->lanes == 1) {
        lk_task_queue_join(&batcher->lanes[0].queue, tasks);
    }
    while ((task = lk_task_queue_take(tasks))) {
        unsigned lane =
            is_op(task) ? lk_op_lane(batcher->store, &task->args.event.op) : 0;
        lk_task_queue_add(&batcher->lanes[lane].queue, task);
    }
    for (unsigned i = 0; i < batcher->lane_count; i++) {
        if (batcher->lanes[i].queue.head) {
            wake_lane(&batcher->lanes[i]);
        }
    }
    uv_mutex_unlock(&batcher->mutex);
}

/* More operations than a batch may have, or the threads have ended. */
static void refuse_job_batch(struct lk_job_batch *job_batch,
                             enum lk_status status)
{
    job_batch->status = status;
    for (size_t i = 0; i < job_batch->op_count; i++) {
        job_batch->ops[i]->status = status;
    }
    job_batch->done(job_batch);
}

/* A lane that is free; one whose last job batch was done comes before one whose
 * last failed: its connection may be the only one that is lost. */
static struct lane *find_worker(struct lk_batcher *batcher,
                                const struct lk_job_batch *job_batch)
{
    struct lane *found = NULL;

    for (unsigned i = 0; i < batcher->lane_count; i++) {
        struct lane *lane = &batcher->lanes[i];
        bool free = is_worker(lane) && !lane->busy && !lane->job_batch &&
                    may_take(lane, job_batch);
        if (free && (!found || (found->failed && !lane->failed))) {
            found = lane;
        }
    }
    return found;
}

/* False: the batcher has stopped, and the job batch is still the caller's. */
static bool queue_job_batch(struct lk_batcher *batcher,
                            struct lk_job_batch *job_batch)
{
    uv_mutex_lock(&batcher->mutex);
    bool late = batcher->stop;
    /* None overtakes those that wait. */
    struct lane *lane =
        late || batcher->job_batch ? NULL : find_worker(batcher, job_batch);
    if (lane) {
        lane->job_batch = job_batch;
        wake_lane(lane);
    } else if (!late) {
        *batcher->last_job_batch = job_batch;
        batcher->last_job_batch = &job_batch->next;
    }
    uv_mutex_unlock(&batcher->mutex);
    return !late;
}

void lk_batcher_job_batch(struct lk_batcher *batcher,
                          struct lk_job_batch *job_batch)
{
    job_batch->next = NULL;
    if (job_batch->op_count > batcher->batch_ops) {
        refuse_job_batch(job_batch, LK_TOO_LARGE);
    } else if (!queue_job_batch(batcher, job_batch)) {
        refuse_job_batch(job_batch, LK_UNAVAILABLE);
    }
}

void lk_batcher_hurry(struct lk_batcher *batcher)
{
    uv_mutex_lock(&batcher->mutex);
    batcher->lanes[0].hurry = true;
    wake_lane(&batcher->lanes[0]);
    uv_mutex_unlock(&batcher->mutex);
}

void lk_batcher_stats(struct lk_batcher *batcher,
                      struct lk_batcher_stats *stats)
{
    uv_mutex_lock(&batcher->mutex);
    *stats = batcher->stats;
    for (unsigned i = 0; i < batcher->lane_count; i++) {
        stats->waiting += batcher->lanes[i].queue.count;
    }
    uv_mutex_unlock(&batcher->mutex);
}

void lk_batcher_stop(struct lk_batcher *batcher)
{
    if (!batcher) {
        return;
    }
    stop_lanes(batcher);
    uv_mutex_destroy(&batcher->mutex);
    free(batcher->lanes);
    free(batcher);
}
