/* test_steps.c - the courier with two works under way: whichever the store is
 * done with first, late, or never, nothing is lost, freed or done twice (C27,
 * C29, C30). */
#include "tests/courier/courier_bench.h"

static bool are_kept(struct ledger *ledger, void *context)
{
    const size_t *count = context;

    return ledger->kept_count >= *count;
}

static void await_kept(struct bench *bench, size_t count)
{
    ledger_await(&bench->ledger, are_kept, &count);
}

static size_t count_kept(struct bench *bench)
{
    pthread_mutex_lock(&bench->ledger.mutex);
    size_t count = bench->ledger.kept_count;
    pthread_mutex_unlock(&bench->ledger.mutex);
    return count;
}

static bool all_are_leased(struct ledger *ledger, void *context)
{
    for (size_t i = 0; i < ledger->job_count; i++) {
        if (ledger->jobs[i].state != LK_JOB_LEASED) {
            return false;
        }
    }
    return true;
}

static bool is_leased(struct ledger *ledger, void *context)
{
    const struct ledger_job *job = context;

    return job->state == LK_JOB_LEASED;
}

struct look {
    const char *target;
    uint64_t delivered, failed;
};

static bool look_at_target(void *context, const struct lk_target_status *status)
{
    struct look *look = context;

    if (latchkey_slice_equal(status->name, latchkey_slice(look->target))) {
        look->delivered = status->delivered;
        look->failed = status->failed;
    }
    return true;
}

/* Calls of a target that have come back. What is shown was shown after the
 * courier had given the store what it had to give. */
static void await_calls(struct bench *bench, const char *target, uint64_t count)
{
    struct look look = {.target = target};

    while (look.delivered + look.failed < count) {
        lk_courier_class.status(bench->courier, look_at_target, &look);
        usleep(1000);
    }
}

/* The ends of two jobs, each in a step of its own that the store has not done
 * yet. */
static struct ledger_job *start_two_ends(struct bench *bench)
{
    struct ledger_job *first = ledger_add(&bench->ledger, "honours", "/1");

    ledger_add(&bench->ledger, "honours", "/2");
    bench->good.gated = true;
    start(bench);
    ledger_await(&bench->ledger, all_are_leased, NULL);
    ledger_hold(&bench->ledger, true);
    for (unsigned i = 1; i <= 2; i++) {
        atomic_store(&bench->good.allowed, i);
        await_kept(bench, i);
        assert_int_equal(bench->ledger.stored[i - 1]->end_count, 1);
        assert_int_equal(bench->ledger.stored[i - 1]->ends[0].id, i);
    }
    return first;
}

static void assert_delivered_once(const struct ledger_job *job)
{
    assert_int_equal(job->state, LK_JOB_DELIVERED);
    assert_int_equal(job->ends, 1);
    assert_int_equal(job->attempts, 1);
}

/* ---- in any order -------------------------------------------------------- */

static void ends_are_stored_whichever_step_is_done_first(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = start_two_ends(bench);

    ledger_let_one_go(&bench->ledger, 1);
    await_end(bench, &jobs[1]);
    assert_int_equal(jobs[0].ends, 0);
    ledger_hold(&bench->ledger, false);
    await_end(bench, &jobs[0]);
    stop(bench, 1000);
    for (int i = 0; i < 2; i++) {
        assert_delivered_once(&jobs[i]);
        assert_int_equal(jobs[i].stale_ends, 0);
    }
}

static void a_step_that_fails_leaves_the_other_one_alone(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = start_two_ends(bench);

    ledger_plan(&bench->ledger, false, LK_UNAVAILABLE);
    ledger_let_one_go(&bench->ledger, 0);
    await_kept(bench, 2); /* it is given again, while the other is kept */
    assert_int_equal(bench->ledger.stored[0]->ends[0].id, 2);
    assert_int_equal(bench->ledger.stored[1]->ends[0].id, 1);
    ledger_hold(&bench->ledger, false);
    await_end(bench, &jobs[0]);
    stop(bench, 1000);
    for (int i = 0; i < 2; i++) {
        assert_delivered_once(&jobs[i]);
        assert_int_equal(jobs[i].stale_ends, 0);
    }
    assert_int_equal(bench->ledger.rash, 0);
    assert_int_equal(atomic_load(&bench->good.requests), 2);
}

static void a_step_in_doubt_is_given_again_by_whichever_is_free(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = start_two_ends(bench);

    ledger_plan(&bench->ledger, true, LK_UNKNOWN);
    ledger_let_one_go(&bench->ledger, 0);
    ledger_let_one_go(&bench->ledger, 0);
    ledger_hold(&bench->ledger, false);
    stop(bench, 5000);
    assert_delivered_once(&jobs[0]);
    assert_delivered_once(&jobs[1]);
    assert_int_equal(jobs[0].stale_ends, 1); /* once more, and no harm done */
    assert_int_equal(jobs[1].stale_ends, 0);
}

static void fail_for_one(struct ledger *ledger,
                         const struct lk_job_batch *job_batch)
{
    for (size_t i = 0; i < job_batch->end_count; i++) {
        if (job_batch->ends[i].id == 3) {
            ledger_plan(ledger, false, LK_INVALID);
            return;
        }
    }
}

/* It is found, and its lease is left to run out. */
static void an_end_that_is_never_taken_keeps_no_others(void **state)
{
    struct bench *bench = *state;

    bench->targets[0].concurrency = 8;
    bench->good.gated = true;
    bench->ledger.look = fail_for_one;
    for (int i = 0; i < 8; i++) {
        ledger_add(&bench->ledger, "honours", "/charge");
    }
    start(bench);
    ledger_await(&bench->ledger, all_are_leased, NULL);
    ledger_hold(&bench->ledger, true);
    atomic_store(&bench->good.allowed, 100);
    await_calls(bench, "honours", 8);
    ledger_hold(&bench->ledger, false);
    for (int i = 0; i < 8; i++) {
        if (i != 2) {
            await_end(bench, &bench->ledger.jobs[i]);
        }
    }
    struct ledger_job *next = ledger_add(&bench->ledger, "once", "/next");
    lk_courier_class.wake(bench->courier);
    await_end(bench, next);
    stop(bench, 1000);
    assert_int_equal(bench->ledger.jobs[2].state, LK_JOB_LEASED);
    assert_int_equal(bench->ledger.jobs[2].ends, 0);
}

/* ---- an errand in one step at a time ------------------------------------- */

/* A call that has ended while the renewal of its lease is under way. */
static struct ledger_job *end_while_renewing(struct bench *bench)
{
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    bench->config.lease_ms = 300;
    bench->good.gated = true;
    ledger_hold(&bench->ledger, true);
    start(bench);
    await_kept(bench, 1);
    ledger_let_one_go(&bench->ledger, 0); /* the lease */
    await_kept(bench, 1);
    assert_int_equal(bench->ledger.stored[0]->mark_count, 1);
    atomic_store(&bench->good.allowed, 1);
    await_calls(bench, "honours", 1);
    assert_int_equal(count_kept(bench), 1); /* its end is not given yet */
    return job;
}

static void an_end_waits_for_the_renewal_of_its_own_lease(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = end_while_renewing(bench);

    ledger_hold(&bench->ledger, false);
    await_end(bench, job);
    assert_int_equal(job->marks, 1);
    assert_delivered_once(job);
}

static void a_stale_renewal_meets_an_end_that_waits_for_it(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = end_while_renewing(bench);

    job->stolen = true;
    ledger_hold(&bench->ledger, false);
    await_end(bench, job);
    assert_int_equal(job->ends, 0);
    assert_int_equal(job->stale_ends, 1);
}

static void an_end_is_given_though_its_renewal_failed(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = end_while_renewing(bench);

    ledger_plan(&bench->ledger, true, LK_UNKNOWN);
    ledger_hold(&bench->ledger, false);
    await_end(bench, job);
    assert_int_equal(job->ends, 1);
    assert_int_equal(job->stale_ends, 0);
}

/* A stop comes while an end waits for a renewal that then fails. */
static void a_stop_stores_an_end_that_waited_for_its_renewal(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = end_while_renewing(bench);

    ledger_plan(&bench->ledger, false, LK_UNAVAILABLE);
    ledger_hold(&bench->ledger, false);
    stop(bench, 0);
    assert_int_equal(job->ends, 1);
}

/*
 * Jobs that were leased ahead of their calls: the second runs, the third waits
 * for its place, and their leases are being renewed.
 */
static struct ledger_job *renew_ahead(struct bench *bench)
{
    struct ledger_job *jobs = ledger_add(&bench->ledger, "once", "/1");

    ledger_add(&bench->ledger, "once", "/2");
    ledger_add(&bench->ledger, "once", "/3");
    bench->config.lease_ms = 900;
    bench->targets[1].concurrency = 1;
    bench->good.gated = true;
    atomic_store(&bench->good.allowed, 1);
    start(bench);
    await_requests(&bench->good, 2);
    ledger_await(&bench->ledger, is_leased, &jobs[2]);
    ledger_hold(&bench->ledger, true);
    await_kept(bench, 1);
    assert_int_equal(bench->ledger.stored[0]->mark_count, 2);
    /* The second ends, the third gets its place. */
    atomic_store(&bench->good.allowed, 3);
    await_calls(bench, "once", 2);
    assert_int_equal(count_kept(bench), 1);
    return jobs;
}

static void a_mark_waits_for_the_renewal_of_its_own_lease(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = renew_ahead(bench);

    assert_int_equal(atomic_load(&bench->good.requests), 2);
    ledger_hold(&bench->ledger, false);
    await_end(bench, &jobs[2]);
    assert_delivered_once(&jobs[1]);
    assert_delivered_once(&jobs[2]);
    assert_true(jobs[2].marks >= 2);
}

static void what_was_lost_while_it_waited_to_be_marked_is_not_called(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = renew_ahead(bench);

    jobs[2].stolen = true;
    ledger_hold(&bench->ledger, false);
    await_end(bench, &jobs[1]);
    stop(bench, 1000);
    assert_delivered_once(&jobs[1]);
    assert_int_equal(jobs[2].ends + jobs[2].stale_ends, 0);
    assert_int_equal(atomic_load(&bench->good.requests), 2);
}

static void a_stop_gives_back_what_waited_to_be_marked(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = renew_ahead(bench);

    ledger_plan(&bench->ledger, false, LK_UNAVAILABLE);
    pthread_mutex_lock(&bench->ledger.mutex);
    struct lk_job_batch *job_batch = bench->ledger.stored[0];
    pthread_mutex_unlock(&bench->ledger.mutex);
    assert_false(job_batch->marks[0].called && job_batch->marks[1].called);
    ledger_hold(&bench->ledger, false);
    stop(bench, 1000);
    assert_delivered_once(&jobs[1]);
    assert_int_not_equal(jobs[2].state, LK_JOB_LEASED);
}

/* ---- leases -------------------------------------------------------------- */

/* One that is in the store's hands holds up nobody who is due. */
static void what_is_due_is_leased_while_an_end_is_under_way(void **state)
{
    struct bench *bench = *state;

    ledger_add(&bench->ledger, "honours", "/1");
    bench->good.gated = true;
    start(bench);
    ledger_await(&bench->ledger, all_are_leased, NULL);
    ledger_hold(&bench->ledger, true);
    atomic_store(&bench->good.allowed, 2);
    await_kept(bench, 1);
    struct ledger_job *next = ledger_add(&bench->ledger, "once", "/2");
    lk_courier_class.wake(bench->courier);
    await_kept(bench, 2);
    assert_true(bench->ledger.stored[1]->want_count > 0);
    ledger_let_one_go(&bench->ledger, 1);
    ledger_hold(&bench->ledger, false);
    await_end(bench, next);
    assert_int_equal(next->state, LK_JOB_DELIVERED);
}

/* Its end might be under way for so long that its lease seems lost. */
static void nothing_is_leased_while_a_step_takes_a_third_of_a_lease(
    void **state)
{
    struct bench *bench = *state;

    ledger_add(&bench->ledger, "honours", "/1");
    bench->config.lease_ms = 300;
    ledger_hold(&bench->ledger, true);
    start(bench);
    await_kept(bench, 1);
    while (!bench->ledger.stored[0]->end_count) { /* it was the lease */
        ledger_let_one_go(&bench->ledger, 0);
        await_kept(bench, 1);
    }
    usleep(150 * 1000);
    struct ledger_job *next = ledger_add(&bench->ledger, "once", "/2");
    lk_courier_class.wake(bench->courier);
    usleep(50 * 1000); /* for what must not come */
    assert_int_equal(count_kept(bench), 1);
    ledger_hold(&bench->ledger, false);
    await_end(bench, next);
    assert_int_equal(next->state, LK_JOB_DELIVERED);
}

static bool asks_for(const struct lk_job_batch *job_batch, const char *target)
{
    for (size_t i = 0; i < job_batch->want_count; i++) {
        if (latchkey_slice_equal(job_batch->wants[i].target,
                                 latchkey_slice(target))) {
            return true;
        }
    }
    return false;
}

/* The process stands still for longer than a lease, and what comes next is
 * kept. */
static void stand_still(struct ledger *ledger,
                        const struct lk_job_batch *job_batch)
{
    if (asks_for(job_batch, "once") && ledger->job_count == 4) {
        usleep(700 * 1000);
        ledger->held = true;
        ledger->look = NULL;
    }
}

/* The leases of running calls are over, and are being renewed: whoever asked
 * for their target now might settle them first. */
static void what_is_renewed_too_late_is_not_settled_by_another_step(
    void **state)
{
    struct bench *bench = *state;

    bench->config.lease_ms = 600;
    bench->targets[0].concurrency = 2;
    bench->good.gated = true;
    for (int i = 0; i < 3; i++) {
        ledger_add(&bench->ledger, "honours", "/charge");
    }
    bench->ledger.look = stand_still;
    start(bench);
    await_requests(&bench->good, 1); /* the other one waits for its turn */
    ledger_add(&bench->ledger, "once", "/4");
    lk_courier_class.wake(bench->courier);
    await_kept(bench, 1);
    assert_true(bench->ledger.stored[0]->mark_count >= 2);
    assert_false(asks_for(bench->ledger.stored[0], "honours"));
    atomic_store(&bench->good.allowed, 1); /* so that there is room */
    await_calls(bench, "honours", 1);
    lk_courier_class.wake(bench->courier);
    usleep(50 * 1000); /* for what must not come */
    for (size_t i = 0; i < count_kept(bench); i++) {
        assert_false(asks_for(bench->ledger.stored[i], "honours"));
    }
    atomic_store(&bench->good.allowed, 100);
    ledger_hold(&bench->ledger, false);
    for (int i = 0; i < 4; i++) {
        await_end(bench, &bench->ledger.jobs[i]);
        assert_delivered_once(&bench->ledger.jobs[i]);
    }
}

/* C30 */
static void an_end_that_is_put_off_for_long_keeps_no_other_target(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/1");

    bench->config.lease_ms = 300;
    job->locked = true;
    start(bench);
    await_calls(bench, "honours", 1);
    usleep(400 * 1000); /* its lease is over */
    struct ledger_job *next = ledger_add(&bench->ledger, "once", "/2");
    lk_courier_class.wake(bench->courier);
    await_end(bench, next);
    assert_delivered_once(next);
    pthread_mutex_lock(&bench->ledger.mutex);
    job->locked = false;
    pthread_mutex_unlock(&bench->ledger.mutex);
    await_end(bench, job);
    assert_delivered_once(job);
}

static void a_target_is_asked_for_in_one_step_at_a_time(void **state)
{
    struct bench *bench = *state;

    bench->targets[0].concurrency = 2;
    bench->good.gated = true;
    for (int i = 0; i < 10; i++) {
        ledger_add(&bench->ledger, "honours", "/charge");
    }
    start(bench);
    await_requests(&bench->good, 1);
    ledger_hold(&bench->ledger, true);
    atomic_store(&bench->good.allowed, 1);
    await_kept(bench, 1);
    assert_true(asks_for(bench->ledger.stored[0], "honours"));
    atomic_store(&bench->good.allowed, 2);
    await_kept(bench, 2);
    assert_false(asks_for(bench->ledger.stored[1], "honours"));
    atomic_store(&bench->good.allowed, 100);
    ledger_let_one_go(&bench->ledger, 1);
    ledger_hold(&bench->ledger, false);
    for (int i = 0; i < 10; i++) {
        await_end(bench, &bench->ledger.jobs[i]);
        assert_delivered_once(&bench->ledger.jobs[i]);
    }
}

/* The store has it as called only if it is told so. */
static void what_was_leased_without_keys_is_marked_though_they_count_now(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = ledger_add(&bench->ledger, "once", "/1");

    ledger_add(&bench->ledger, "once", "/2");
    ledger_add(&bench->ledger, "once", "/3");
    bench->targets[1].concurrency = 1;
    bench->good.gated = true;
    atomic_store(&bench->good.allowed, 1);
    start(bench);
    await_requests(&bench->good, 2);
    ledger_await(&bench->ledger, is_leased, &jobs[2]);
    assert_int_equal(jobs[2].marks, 0);
    bench->targets[1].honours = true;
    lk_courier_class.reload(bench->courier, &bench->config);
    atomic_store(&bench->good.allowed, 3);
    await_end(bench, &jobs[2]);
    assert_int_equal(jobs[2].marks, 1);
    assert_delivered_once(&jobs[2]);
}

/* ---- the end ------------------------------------------------------------- */

static void *stop_in_a_thread(void *context)
{
    struct bench *bench = context;

    stop(bench, 1000);
    return NULL;
}

static void a_stop_waits_for_every_step(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *jobs = start_two_ends(bench);
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, stop_in_a_thread, bench), 0);
    ledger_let_one_go(&bench->ledger, 1);
    usleep(20 * 1000);
    ledger_let_one_go(&bench->ledger, 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        assert_delivered_once(&jobs[i]);
    }
}

/* Somebody else has the row of its mark, and later that of its end. */
static void a_stop_gives_back_what_could_not_be_marked(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "/1");
    pthread_t thread;

    ledger_hold(&bench->ledger, true);
    start(bench);
    await_kept(bench, 1);
    ledger_let_one_go(&bench->ledger, 0);
    await_kept(bench, 1);
    assert_int_equal(bench->ledger.stored[0]->mark_count, 1);
    bench->ledger.others = true;
    assert_int_equal(pthread_create(&thread, NULL, stop_in_a_thread, bench), 0);
    usleep(20 * 1000);
    ledger_hold(&bench->ledger, false);
    pthread_join(thread, NULL);
    assert_int_equal(job->state, LK_JOB_WAITING);
    assert_int_equal(job->end, LK_END_RETURN);
    assert_int_equal(job->marks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ends_are_stored_whichever_step_is_done_first),
        TEST(a_step_that_fails_leaves_the_other_one_alone),
        TEST(a_step_in_doubt_is_given_again_by_whichever_is_free),
        TEST(an_end_that_is_never_taken_keeps_no_others),
        TEST(an_end_waits_for_the_renewal_of_its_own_lease),
        TEST(a_stale_renewal_meets_an_end_that_waits_for_it),
        TEST(an_end_is_given_though_its_renewal_failed),
        TEST(a_stop_stores_an_end_that_waited_for_its_renewal),
        TEST(a_mark_waits_for_the_renewal_of_its_own_lease),
        TEST(what_was_lost_while_it_waited_to_be_marked_is_not_called),
        TEST(a_stop_gives_back_what_waited_to_be_marked),
        TEST(what_is_due_is_leased_while_an_end_is_under_way),
        TEST(nothing_is_leased_while_a_step_takes_a_third_of_a_lease),
        TEST(what_is_renewed_too_late_is_not_settled_by_another_step),
        TEST(an_end_that_is_put_off_for_long_keeps_no_other_target),
        TEST(a_target_is_asked_for_in_one_step_at_a_time),
        TEST(what_was_leased_without_keys_is_marked_though_they_count_now),
        TEST(a_stop_waits_for_every_step),
        TEST(a_stop_gives_back_what_could_not_be_marked),
    };

    bench_lanes = 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
