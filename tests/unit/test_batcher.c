/* test_batcher.c - the courier's work among the batches of a store. */
#include "daemon/batcher.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEEN_MOST = 64, BATCH_OPS = 4 };

/* A store that decides nothing and remembers what it was given. Its threads
 * stop at the gate until they are let through. */
struct fake {
    struct lk_store store;
    uv_mutex_t mutex;
    uv_cond_t changed;
    unsigned through; /* batches that may still be applied */
    bool open;        /* all of them */
    unsigned waiting;
    size_t seen;
    struct {
        unsigned lane;
        size_t ops;
        struct lk_job_batch *job_batch;
        bool keep;
    } batches[SEEN_MOST];
    enum lk_status op_status;
    enum lk_status work_status[4]; /* by lane */
    bool queued;
};

static void pass_gate(struct fake *fake)
{
    fake->waiting++;
    uv_cond_broadcast(&fake->changed);
    while (!fake->open && !fake->through) {
        uv_cond_wait(&fake->changed, &fake->mutex);
    }
    fake->waiting--;
    fake->through -= fake->open ? 0 : 1;
}

static void fake_apply(struct lk_store *store, struct lk_batch *batch)
{
    struct fake *fake = (struct fake *)store;

    uv_mutex_lock(&fake->mutex);
    pass_gate(fake);
    if (fake->seen < SEEN_MOST) {
        fake->batches[fake->seen].lane = batch->lane;
        fake->batches[fake->seen].ops = batch->count;
        fake->batches[fake->seen].job_batch = batch->job_batch;
        fake->batches[fake->seen++].keep = batch->keep;
    }
    for (size_t i = 0; i < batch->count; i++) {
        batch->ops[i]->status = fake->op_status;
    }
    if (batch->job_batch) {
        batch->job_batch->status = fake->work_status[batch->lane];
    }
    batch->queued = fake->queued;
    uv_cond_broadcast(&fake->changed);
    uv_mutex_unlock(&fake->mutex);
}

static const struct lk_store_class fake_class = {.scheme = "fake",
                                                 .apply = fake_apply};

/* Work that tells when it is done. */
struct errand {
    struct lk_job_batch job_batch;
    struct fake *fake;
    int done; /* in which order; 0: not yet */
};

static int done_count;

static void note_done(struct lk_job_batch *job_batch)
{
    struct errand *errand = job_batch->context;

    uv_mutex_lock(&errand->fake->mutex);
    errand->done = ++done_count;
    uv_cond_broadcast(&errand->fake->changed);
    uv_mutex_unlock(&errand->fake->mutex);
}

static struct errand make_errand(struct fake *fake)
{
    return (struct errand){
        .job_batch = {.done = note_done, .status = LK_CORRUPT}, .fake = fake};
}

struct bench {
    struct fake fake;
    uv_loop_t loop;
    struct lk_returns returns;
    struct lk_batcher *batcher;
};

static void ignore(uv_async_t *async)
{
}

static struct bench *start(unsigned lanes, unsigned job_lanes,
                           uint64_t sweep_ms)
{
    struct bench *bench = calloc(1, sizeof(*bench));
    struct fake *fake;

    assert_non_null(bench);
    fake = &bench->fake;
    fake->store.class = &fake_class;
    fake->store.lanes = lanes;
    fake->store.job_lanes = job_lanes;
    done_count = 0;
    assert_int_equal(uv_mutex_init(&fake->mutex), 0);
    assert_int_equal(uv_cond_init(&fake->changed), 0);
    assert_int_equal(uv_loop_init(&bench->loop), 0);
    assert_int_equal(uv_mutex_init(&bench->returns.mutex), 0);
    assert_int_equal(uv_async_init(&bench->loop, &bench->returns.async, ignore),
                     0);
    assert_int_equal(lk_batcher_start(&fake->store, &bench->returns, BATCH_OPS,
                                      sweep_ms, &bench->batcher),
                     LK_OK);
    return bench;
}

static void open_gate(struct fake *fake, bool open)
{
    uv_mutex_lock(&fake->mutex);
    fake->open = open;
    uv_cond_broadcast(&fake->changed);
    uv_mutex_unlock(&fake->mutex);
}

/* Until so many threads stand at the gate. */
static void await_threads(struct fake *fake, unsigned count)
{
    uv_mutex_lock(&fake->mutex);
    while (fake->waiting < count) {
        uv_cond_wait(&fake->changed, &fake->mutex);
    }
    uv_mutex_unlock(&fake->mutex);
}

static void await_batches(struct fake *fake, size_t count)
{
    uv_mutex_lock(&fake->mutex);
    while (fake->seen < count) {
        uv_cond_wait(&fake->changed, &fake->mutex);
    }
    uv_mutex_unlock(&fake->mutex);
}

static void await_gate(struct fake *fake)
{
    await_threads(fake, 1);
}

static void await_done(struct errand *errand)
{
    uv_mutex_lock(&errand->fake->mutex);
    while (!errand->done) {
        uv_cond_wait(&errand->fake->changed, &errand->fake->mutex);
    }
    uv_mutex_unlock(&errand->fake->mutex);
}

static void end(struct bench *bench)
{
    struct lk_task *task;

    if (bench->batcher) {
        open_gate(&bench->fake, true);
        lk_batcher_stop(bench->batcher);
    }
    while ((task = lk_task_queue_take(&bench->returns.tasks))) {
        free(task);
    }
    uv_close((uv_handle_t *)&bench->returns.async, NULL);
    uv_run(&bench->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&bench->loop), 0);
    uv_mutex_destroy(&bench->returns.mutex);
    uv_mutex_destroy(&bench->fake.mutex);
    uv_cond_destroy(&bench->fake.changed);
    free(bench);
}

static void give_ops(struct bench *bench, size_t count)
{
    struct lk_task_queue tasks = {0};

    for (size_t i = 0; i < count; i++) {
        struct lk_task *task = calloc(1, sizeof(*task));
        assert_non_null(task);
        task->fd = -1;
        task->at = LK_PLACE_BATCH;
        lk_task_queue_add(&tasks, task);
    }
    lk_batcher_give(bench->batcher, &tasks);
}

/* What came while the first batch was made durable is one batch. */
static void work_goes_with_the_operations_of_lane_0(void **state)
{
    struct bench *bench = start(1, 0, 3600000);
    struct fake *fake = &bench->fake;
    struct errand first = make_errand(fake), second = make_errand(fake);

    first.job_batch.context = &first;
    second.job_batch.context = &second;
    await_gate(fake); /* the keeper's batch */
    give_ops(bench, 3);
    lk_batcher_job_batch(bench->batcher, &first.job_batch);
    lk_batcher_job_batch(bench->batcher, &second.job_batch);
    open_gate(fake, true);
    await_done(&second);
    assert_int_equal(first.done, 1);
    assert_int_equal(second.done, 2);
    assert_int_equal(first.job_batch.status, LK_OK);
    assert_int_equal(fake->seen, 3);
    assert_true(fake->batches[0].keep);
    assert_null(fake->batches[0].job_batch);
    assert_ptr_equal(fake->batches[1].job_batch, &first.job_batch);
    assert_int_equal(fake->batches[1].ops, 3);
    assert_ptr_equal(fake->batches[2].job_batch, &second.job_batch);
    assert_int_equal(fake->batches[2].ops, 0);
    end(bench);
}

static void work_has_a_lane_of_its_own_where_the_store_has_one(void **state)
{
    struct bench *bench = start(2, 1, 0);
    struct fake *fake = &bench->fake;
    struct errand errand = make_errand(fake);

    errand.job_batch.context = &errand;
    open_gate(fake, true);
    lk_batcher_job_batch(bench->batcher, &errand.job_batch);
    await_done(&errand);
    bool found = false;
    for (size_t i = 0; i < fake->seen; i++) {
        found = found || (fake->batches[i].job_batch == &errand.job_batch &&
                          fake->batches[i].lane == 2);
        assert_false(fake->batches[i].keep); /* an interval of 0 */
    }
    assert_true(found);
    end(bench);
}

static void give_errands(struct bench *bench, struct errand *errands, int count)
{
    for (int i = 0; i < count; i++) {
        errands[i] = make_errand(&bench->fake);
        errands[i].job_batch.context = &errands[i];
        lk_batcher_job_batch(bench->batcher, &errands[i].job_batch);
    }
}

/* Another lane may write its batch down at the same time. */
static unsigned lane_of(struct fake *fake, const struct errand *errand)
{
    unsigned lane = UINT_MAX;

    uv_mutex_lock(&fake->mutex);
    for (size_t i = 0; i < fake->seen && lane == UINT_MAX; i++) {
        if (fake->batches[i].job_batch == &errand->job_batch) {
            lane = fake->batches[i].lane;
        }
    }
    uv_mutex_unlock(&fake->mutex);
    return lane;
}

/* None waits behind another one while a lane is free. */
static void works_are_done_at_once_on_as_many_lanes_as_there_are(void **state)
{
    struct bench *bench = start(1, 2, 0);
    struct fake *fake = &bench->fake;
    struct errand errands[3];

    open_gate(fake, true);
    give_ops(bench, 1);
    await_batches(fake, 1); /* lane 0 has done its only batch */
    open_gate(fake, false);
    give_errands(bench, errands, 3);
    await_threads(fake, 2);
    open_gate(fake, true);
    for (int i = 0; i < 3; i++) {
        await_done(&errands[i]);
        assert_in_range(lane_of(fake, &errands[i]), 1, 2);
    }
    assert_int_not_equal(lane_of(fake, &errands[0]),
                         lane_of(fake, &errands[1]));
    end(bench);
}

/* Of two lanes for works one has failed, and will; the other works. The gate is
 * open. */
static struct bench *start_with_a_failed_lane(void)
{
    struct bench *bench = start(1, 2, 0);
    struct fake *fake = &bench->fake;
    struct errand errand;

    open_gate(fake, true);
    fake->work_status[1] = fake->work_status[2] = LK_UNAVAILABLE;
    give_errands(bench, &errand, 1);
    await_done(&errand);
    unsigned failed = lane_of(fake, &errand);
    uv_mutex_lock(&fake->mutex);
    fake->work_status[3 - failed] = LK_OK;
    fake->seen = 0;
    uv_mutex_unlock(&fake->mutex);
    return bench;
}

/* Its connection may be the only one that is lost. */
static void a_lane_whose_work_failed_comes_last(void **state)
{
    struct bench *bench = start_with_a_failed_lane();
    struct errand errand;

    for (int i = 0; i < 10; i++) {
        give_errands(bench, &errand, 1);
        await_done(&errand);
        assert_int_equal(errand.job_batch.status, LK_OK);
    }
    end(bench);
}

/* They are not given again: better late than refused for nothing. */
static void actions_wait_for_a_lane_that_works(void **state)
{
    struct bench *bench = start_with_a_failed_lane();
    struct fake *fake = &bench->fake;
    struct errand step, action = make_errand(fake);
    struct lk_job_action pause = {.kind = LK_ACTION_PAUSE};

    open_gate(fake, false);
    give_errands(bench, &step, 1);
    await_gate(fake);
    action.job_batch.context = &action;
    action.job_batch.actions = &pause;
    action.job_batch.action_count = 1;
    lk_batcher_job_batch(bench->batcher, &action.job_batch);
    open_gate(fake, true);
    await_done(&action);
    assert_int_equal(action.job_batch.status, LK_OK);
    end(bench);
}

static void operations_of_work_are_decided_with_it(void **state)
{
    struct bench *bench = start(1, 0, 3600000);
    struct fake *fake = &bench->fake;
    struct errand errand = make_errand(fake);
    struct lk_op ops[2] = {{.event = LK_EVENT_RESOLVE_RELEASED},
                           {.event = LK_EVENT_RESOLVE_RELEASED}};
    struct lk_op *list[2] = {&ops[0], &ops[1]};

    ops[0].name = (struct lk_name){LK_SLICE("t"), LK_SLICE("s"), LK_SLICE("a")};
    ops[1].name = (struct lk_name){LK_SLICE("t"), LK_SLICE("s"), LK_SLICE("b")};
    errand.job_batch.context = &errand;
    errand.job_batch.ops = list;
    errand.job_batch.op_count = 2;
    fake->op_status = LK_AGAIN;
    await_gate(fake);
    give_ops(bench, BATCH_OPS);
    lk_batcher_job_batch(bench->batcher, &errand.job_batch);
    open_gate(fake, true);
    await_done(&errand);
    /* Together no more than a batch may have; the rest comes next. */
    assert_int_equal(fake->batches[1].ops, BATCH_OPS);
    assert_ptr_equal(fake->batches[1].job_batch, &errand.job_batch);
    assert_int_equal(ops[0].status, LK_AGAIN);
    assert_false(lk_hash128_equal(ops[0].hash, ops[1].hash));
    end(bench);
}

static void work_that_no_batch_can_hold_comes_back_at_once(void **state)
{
    struct bench *bench = start(1, 0, 3600000);
    struct errand errand = make_errand(&bench->fake);
    struct lk_op ops[BATCH_OPS + 1] = {{0}};
    struct lk_op *list[BATCH_OPS + 1];

    for (size_t i = 0; i < BATCH_OPS + 1; i++) {
        list[i] = &ops[i];
    }
    errand.job_batch.context = &errand;
    errand.job_batch.ops = list;
    errand.job_batch.op_count = BATCH_OPS + 1;
    lk_batcher_job_batch(bench->batcher, &errand.job_batch);
    assert_int_equal(errand.done, 1);
    assert_int_equal(errand.job_batch.status, LK_TOO_LARGE);
    assert_int_equal(ops[0].status, LK_TOO_LARGE);
    end(bench);
}

static void stop_batcher(void *context)
{
    struct bench *bench = context;

    lk_batcher_stop(bench->batcher);
}

static void what_is_queued_is_done_before_the_end(void **state)
{
    struct bench *bench = start(1, 0, 3600000);
    struct fake *fake = &bench->fake;
    struct errand errands[3];
    uv_thread_t thread;

    await_gate(fake);
    give_errands(bench, errands, 3);
    assert_int_equal(uv_thread_create(&thread, stop_batcher, bench), 0);
    open_gate(fake, true);
    uv_thread_join(&thread);
    bench->batcher = NULL;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(errands[i].done, i + 1);
    }
    end(bench);
}

static void a_job_that_was_queued_is_told_to_the_loop(void **state)
{
    struct bench *bench = start(1, 0, 3600000);
    struct errand errand = make_errand(&bench->fake);

    errand.job_batch.context = &errand;
    bench->fake.queued = true;
    open_gate(&bench->fake, true);
    lk_batcher_job_batch(bench->batcher, &errand.job_batch);
    await_done(&errand);
    uv_mutex_lock(&bench->returns.mutex);
    assert_true(bench->returns.queued);
    uv_mutex_unlock(&bench->returns.mutex);
    end(bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_goes_with_the_operations_of_lane_0),
        cmocka_unit_test(work_has_a_lane_of_its_own_where_the_store_has_one),
        cmocka_unit_test(works_are_done_at_once_on_as_many_lanes_as_there_are),
        cmocka_unit_test(a_lane_whose_work_failed_comes_last),
        cmocka_unit_test(actions_wait_for_a_lane_that_works),
        cmocka_unit_test(operations_of_work_are_decided_with_it),
        cmocka_unit_test(work_that_no_batch_can_hold_comes_back_at_once),
        cmocka_unit_test(what_is_queued_is_done_before_the_end),
        cmocka_unit_test(a_job_that_was_queued_is_told_to_the_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
