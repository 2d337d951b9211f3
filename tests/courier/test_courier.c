/* test_courier.c - the courier against a store that fails on demand: what is
 * called, when, how often, and what is written down (C27, C29, C30). */
#include "courier/courier.h"
#include "tests/courier/courier_bench.h"

static void a_job_is_delivered_and_its_answer_written_down(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
    assert_int_equal(job->status, 200);
    assert_true(job->sent);
    assert_int_equal(job->marks, 0);
    assert_string_equal(job->provider_id, "7");
    assert_string_equal(job->response, "{\"id\":\"7\"}");
    assert_non_null(strstr(bench->good.request, "\r\nIdempotency-Key: "));
}

static void a_wake_brings_what_was_queued_meanwhile(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *first = ledger_add(&bench->ledger, "honours", "/1");

    start(bench);
    await_end(bench, first);
    struct ledger_job *second = ledger_add(&bench->ledger, "once", "/2");
    lk_courier_class.wake(bench->courier);
    await_end(bench, second);
    assert_int_equal(second->state, LK_JOB_DELIVERED);
}

/* A wake while a work is under way: its leases may have been made before. */
static void a_wake_is_not_lost_while_the_store_works(void **state)
{
    struct bench *bench = *state;

    for (int i = 0; i < 20; i++) {
        if (!bench->courier) {
            start(bench);
        }
        struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/1");
        lk_courier_class.wake(bench->courier);
        await_end(bench, job);
    }
}

/* ---- before it leaves ---------------------------------------------------- */

/* Until a mark is confirmed nobody has been called. */
static void look_at_marks(struct ledger *ledger,
                          const struct lk_job_batch *job_batch)
{
    struct bench *bench = ledger->context;

    if (job_batch->mark_count) {
        assert_true(job_batch->marks[0].called);
        bench->connections = atomic_load(&bench->good.connections);
    }
}

static void where_the_key_is_not_honoured_called_is_confirmed_first(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "/charge");

    bench->ledger.look = look_at_marks;
    ledger_plan(&bench->ledger, true, LK_OK);           /* the lease */
    ledger_plan(&bench->ledger, false, LK_UNAVAILABLE); /* the mark ... */
    ledger_plan(&bench->ledger, true, LK_UNKNOWN);
    ledger_plan(&bench->ledger, false, LK_UNKNOWN);
    start(bench);
    await_end(bench, job);
    assert_int_equal(bench->connections, 0);
    assert_int_equal(job->marks, 2);
    assert_int_equal(job->attempts, 1);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
}

static void a_job_that_was_taken_by_somebody_else_is_not_called(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *taken = ledger_add(&bench->ledger, "once", "/charge");
    struct ledger_job *other = ledger_add(&bench->ledger, "once", "/other");

    taken->stolen = true;
    start(bench);
    await_end(bench, other);
    stop(bench, 1000);
    assert_int_equal(taken->ends + taken->stale_ends, 0);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
    assert_non_null(strstr(bench->good.request, "POST /other"));
}

static bool is_kept(struct ledger *ledger, void *context)
{
    return ledger->kept_count != 0;
}

static void a_lease_that_is_old_is_confirmed_before_the_call(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    bench->config.lease_ms = 300;
    ledger_hold(&bench->ledger, true);
    start(bench);
    ledger_await(&bench->ledger, is_kept, NULL);
    usleep(400 * 1000); /* longer than the lease */
    ledger_hold(&bench->ledger, false);
    await_end(bench, job);
    assert_true(job->marks >= 1);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
}

static void a_job_that_takes_its_couriers_with_it_is_given_up(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/poison");

    job->attempts = 3; /* all of them lost */
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DEAD);
    assert_false(job->sent);
    assert_int_equal(atomic_load(&bench->good.requests), 0);
}

static void a_path_that_leads_elsewhere_is_dead_and_never_sent(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "//evil/x");

    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DEAD);
    assert_false(job->sent);
    assert_non_null(strstr(job->reason, "two slashes"));
    assert_int_equal(atomic_load(&bench->good.connections), 0);
}

/* ---- how it ended -------------------------------------------------------- */

static void an_end_is_given_until_it_is_confirmed(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    ledger_plan(&bench->ledger, true, LK_OK); /* the lease */
    ledger_plan(&bench->ledger, false, LK_UNAVAILABLE);
    ledger_plan(&bench->ledger, false, LK_IO);
    ledger_plan(&bench->ledger, true, LK_UNKNOWN);
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
    stop(bench, 1000);
    assert_int_equal(job->stale_ends, 1); /* once more, and no harm done */
    assert_int_equal(job->ends, 1);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
}

static void what_another_transaction_has_is_given_again(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "/charge");

    bench->ledger.others = true;
    bench->ledger.look = look_at_marks;
    start(bench);
    await_end(bench, job);
    assert_true(job->put_off_mark && job->put_off_end);
    assert_int_equal(bench->connections, 0);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
    assert_int_equal(job->ends, 1);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
}

static void nothing_is_leased_with_ends_that_are_in_doubt(void **state)
{
    struct bench *bench = *state;

    bench->targets[0].concurrency = 1;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/1");
    struct ledger_job *next = ledger_add(&bench->ledger, "honours", "/2");
    ledger_plan(&bench->ledger, true, LK_OK);
    ledger_plan(&bench->ledger, false, LK_UNKNOWN);
    ledger_plan(&bench->ledger, false, LK_UNKNOWN);
    ledger_plan(&bench->ledger, false, LK_UNKNOWN);
    start(bench);
    await_end(bench, job);
    await_end(bench, next);
    assert_int_equal(bench->ledger.rash, 0);
    assert_int_equal(job->ends, 1);
}

static void a_failure_waits_and_says_why(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    peer_say(&bench->good, BUSY);
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_WAITING);
    assert_int_equal(job->end, LK_END_RETRY);
    assert_true(job->delay_ms <= 1000);
    assert_int_equal(job->status, 503);
    assert_string_equal(job->response, "busy");
    assert_string_equal(job->reason, "answered 503");
}

static void the_last_failure_is_dead(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");

    job->attempts = 6;
    job->forgiven = 4;
    peer_say(&bench->good, BUSY);
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DEAD);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
}

static void no_answer_is_tried_again_only_where_the_key_is_honoured(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *again = ledger_add(&bench->ledger, "honours", "/1");
    struct ledger_job *once = ledger_add(&bench->ledger, "once", "/2");

    peer_say(&bench->good, NULL);
    start(bench);
    await_end(bench, again);
    await_end(bench, once);
    assert_int_equal(again->state, LK_JOB_WAITING);
    assert_int_equal(again->end, LK_END_RETRY);
    assert_int_equal(once->state, LK_JOB_UNCERTAIN);
    assert_true(again->sent && once->sent);
    assert_true(again->doubt);
}

static void what_is_in_doubt_is_called_only_where_the_key_is_honoured(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *again = ledger_add(&bench->ledger, "honours", "/1");
    struct ledger_job *once = ledger_add(&bench->ledger, "once", "/2");

    again->doubt = once->doubt = true;
    once->attempts = 3; /* it may have happened: that is not given up */
    start(bench);
    await_end(bench, again);
    await_end(bench, once);
    assert_int_equal(again->state, LK_JOB_DELIVERED);
    assert_int_equal(once->state, LK_JOB_UNCERTAIN);
    assert_false(once->sent);
    assert_int_equal(once->marks, 0);
    assert_int_equal(atomic_load(&bench->good.requests), 1);
}

/* Leased while the key was honoured, and its turn comes after. */
static void what_is_in_doubt_is_not_called_after_a_reload(void **state)
{
    struct bench *bench = *state;

    bench->config.targets.targets = &bench->targets[2];
    bench->config.targets.count = 1;
    bench->targets[2].concurrency = 1;
    ledger_add(&bench->ledger, "slow", "/1");
    struct ledger_job *job = ledger_add(&bench->ledger, "slow", "/2");
    job->doubt = true;
    start(bench);
    await_requests(&bench->slow, 1);
    bench->targets[2].honours = false;
    bench->targets[2].concurrency = 2;
    lk_courier_class.reload(bench->courier, &bench->config);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_UNCERTAIN);
    assert_int_equal(atomic_load(&bench->slow.requests), 1);
}

/* The job that is judged, behind one that has the target's only place. */
static struct ledger_job *wait_behind(struct bench *bench)
{
    bench->config.targets.targets = &bench->targets[2];
    bench->config.targets.count = 1;
    bench->targets[2].concurrency = 1;
    ledger_add(&bench->ledger, "slow", "/1");
    struct ledger_job *job = ledger_add(&bench->ledger, "slow", "/2");
    job->created_ms = 1;
    bench->ledger.now_ms = 1000;
    return job;
}

/* Its turn comes, and with it other settings. */
static void let_in(struct bench *bench, struct ledger_job *job)
{
    start(bench);
    await_requests(&bench->slow, 1);
    bench->targets[2].concurrency = 2;
    lk_courier_class.reload(bench->courier, &bench->config);
    await_end(bench, job);
    assert_int_equal(atomic_load(&bench->slow.requests), 1);
}

/* C27: the age is looked at when the call is about to leave. */
static void what_was_sent_is_not_called_after_its_key_is_forgotten(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = wait_behind(bench);

    job->sent = true;
    bench->targets[2].key_life_ms = 1;
    let_in(bench, job);
    assert_int_equal(job->state, LK_JOB_UNCERTAIN);
    assert_non_null(strstr(job->reason, "key_life"));
}

static void what_was_never_sent_needs_no_key(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/1");

    job->created_ms = 0;
    bench->targets[0].key_life_ms = 1;
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DELIVERED);
}

/* C29, C27 */
static void what_is_too_old_is_not_called(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = wait_behind(bench);

    bench->targets[2].max_age_ms = 1;
    let_in(bench, job);
    assert_int_equal(job->state, LK_JOB_DEAD);
    assert_non_null(strstr(job->reason, "max_age"));
}

static void what_is_too_old_and_in_doubt_is_uncertain(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = wait_behind(bench);

    job->sent = job->doubt = true;
    bench->targets[2].max_age_ms = 1;
    let_in(bench, job);
    assert_int_equal(job->state, LK_JOB_UNCERTAIN);
    assert_non_null(strstr(job->reason, "max_age"));
}

static void what_nobody_took_was_not_sent_though_it_was_marked(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "/charge");

    bench->targets[1].url = (char *)"http://127.0.0.1:1";
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_WAITING);
    assert_int_equal(job->marks, 1);
    assert_false(job->sent);
}

/* ---- leases -------------------------------------------------------------- */

static bool is_renewed(struct ledger *ledger, void *context)
{
    struct ledger_job *job = context;

    return job->marks >= 3;
}

static void a_lease_is_renewed_while_its_call_runs(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "slow", "/charge");

    bench->config.lease_ms = 150;
    start(bench);
    ledger_await(&bench->ledger, is_renewed, job);
    assert_int_equal(job->attempts, 1);
    assert_int_equal(job->ends, 0);
}

static void a_call_whose_lease_was_lost_runs_on_and_its_end_is_stale(
    void **state)
{
    struct bench *bench = *state;

    bench->targets[3].timeout_ms = 1000;
    bench->targets[3].connect_timeout_ms = 1000;
    bench->config.lease_ms = 150;
    struct ledger_job *job = ledger_add(&bench->ledger, "slow-once", "/charge");
    start(bench);
    ledger_await(&bench->ledger, is_called, job);
    await_requests(&bench->slow, 1);
    pthread_mutex_lock(&bench->ledger.mutex);
    job->stolen = true;
    pthread_mutex_unlock(&bench->ledger.mutex);
    await_end(bench, job);
    assert_int_equal(job->ends, 0);
    assert_int_equal(job->stale_ends, 1);
    assert_int_equal(atomic_load(&bench->slow.requests), 1);
}

/* ---- targets beside each other ------------------------------------------- */

static void a_slow_target_does_not_delay_another(void **state)
{
    struct bench *bench = *state;

    for (int i = 0; i < 10; i++) {
        ledger_add(&bench->ledger, "slow", "/charge");
    }
    for (int i = 0; i < 20; i++) {
        ledger_add(&bench->ledger, i % 2 ? "honours" : "once", "/charge");
    }
    start(bench);
    for (int i = 10; i < 30; i++) {
        await_end(bench, &bench->ledger.jobs[i]);
    }
    stop(bench, 0);
    for (int i = 0; i < 30; i++) {
        assert_int_equal(bench->ledger.jobs[i].state,
                         i < 10 ? LK_JOB_WAITING : LK_JOB_DELIVERED);
    }
}

static void no_more_is_leased_than_a_target_may_have_at_once(void **state)
{
    struct bench *bench = *state;

    for (int i = 0; i < 10; i++) {
        ledger_add(&bench->ledger, "slow", "/charge");
    }
    struct ledger_job *job = ledger_add(&bench->ledger, "honours", "/charge");
    start(bench);
    await_end(bench, job);
    unsigned leased = 0;
    pthread_mutex_lock(&bench->ledger.mutex);
    for (int i = 0; i < 10; i++) {
        leased += bench->ledger.jobs[i].state == LK_JOB_LEASED;
    }
    pthread_mutex_unlock(&bench->ledger.mutex);
    assert_int_equal(leased, 4);
}

static bool take_status(void *context, const struct lk_target_status *status)
{
    struct lk_target_status *found = context;

    if (latchkey_slice_equal(status->name, LK_SLICE("honours"))) {
        *found = *status;
    }
    return true;
}

static void failures_open_the_circuit_and_the_rest_is_given_back(void **state)
{
    struct bench *bench = *state;
    struct lk_target_status status = {0};
    unsigned calls = 0;

    bench->targets[0].circuit_failures = 2;
    bench->targets[0].concurrency = 2;
    peer_say(&bench->good, BUSY);
    for (int i = 0; i < 20; i++) {
        ledger_add(&bench->ledger, "honours", "/charge");
    }
    start(bench);
    while (!status.circuit || strcmp(status.circuit, "open")) {
        lk_courier_class.status(bench->courier, take_status, &status);
        usleep(1000);
    }
    assert_true(status.circuit_wait_ms > 0);
    assert_true(status.last_error.len > 0);
    stop(bench, 1000);
    for (int i = 0; i < 20; i++) {
        struct ledger_job *job = &bench->ledger.jobs[i];
        assert_int_equal(job->state, LK_JOB_WAITING);
        calls += job->attempts - job->forgiven;
    }
    assert_int_equal(calls, atomic_load(&bench->good.requests));
    assert_true(calls <= 4);
}

/* C30: what the prober has spoken for is not there for jobs. */
static void a_rate_is_shared_with_the_prober(void **state)
{
    struct bench *bench = *state;
    uint64_t wait_ms = 0;

    bench->targets[0].rate = bench->targets[0].burst = 1;
    start(bench);
    for (int i = 0; i < 100; i++) {
        wait_ms = lk_courier_reserve_call(bench->courier, &bench->targets[0]);
    }
    assert_true(wait_ms > 10000);
    assert_int_equal(
        lk_courier_reserve_call(bench->courier, &bench->targets[1]), 0);
    struct ledger_job *waits = ledger_add(&bench->ledger, "honours", "/1");
    struct ledger_job *goes = ledger_add(&bench->ledger, "once", "/2");
    lk_courier_class.wake(bench->courier);
    await_end(bench, goes);
    stop(bench, 1000);
    assert_int_equal(waits->attempts, 0);
}

static void a_rate_limits_what_is_leased(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = NULL;

    bench->targets[0].rate = 20;
    bench->targets[0].burst = 2;
    for (int i = 0; i < 6; i++) {
        job = ledger_add(&bench->ledger, "honours", "/charge");
    }
    bench->config.targets.count = 1;
    start(bench);
    await_end(bench, job);
    assert_true(bench->ledger.largest_want <= 2);
    assert_int_equal(atomic_load(&bench->good.requests), 6);
}

/* ---- stop and reload ----------------------------------------------------- */

static bool has_been_asked_twice(struct ledger *ledger, void *context)
{
    return ledger->works >= 2;
}

static void a_stop_gives_back_what_was_not_called(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "once", "/charge");

    bench->ledger.look = look_at_marks;
    ledger_plan(&bench->ledger, true, LK_OK); /* the lease */
    for (int i = 0; i < 3; i++) {
        ledger_plan(&bench->ledger, false, LK_UNAVAILABLE);
    }
    start(bench);
    ledger_await(&bench->ledger, has_been_asked_twice, NULL);
    stop(bench, 5000);
    assert_int_equal(job->state, LK_JOB_WAITING);
    assert_int_equal(job->end, LK_END_RETURN);
    assert_int_equal(job->forgiven, 1);
    assert_int_equal(atomic_load(&bench->good.connections), 0);
}

static void a_stop_waits_for_a_call_that_has_left(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "slow-once", "/charge");

    bench->targets[3].timeout_ms = 300;
    bench->targets[3].connect_timeout_ms = 300;
    start(bench);
    await_requests(&bench->slow, 1);
    stop(bench, 60000);
    assert_int_equal(job->state, LK_JOB_UNCERTAIN);
    assert_non_null(strstr(job->reason, "no response"));
}

static void what_does_not_come_back_in_time_is_judged_by_its_target(
    void **state)
{
    struct bench *bench = *state;
    struct ledger_job *again = ledger_add(&bench->ledger, "slow", "/1");

    start(bench);
    await_requests(&bench->slow, 1);
    stop(bench, 0);
    assert_int_equal(again->state, LK_JOB_WAITING);
    assert_int_equal(again->end, LK_END_RETRY);
    struct ledger_job *once = ledger_add(&bench->ledger, "slow-once", "/2");
    again->state = LK_JOB_DROPPED;
    peer_stop(&bench->slow);
    bench->slow = (struct peer){.mute = true};
    assert_true(peer_start(&bench->slow));
    snprintf(bench->urls[1], sizeof(bench->urls[1]), "http://127.0.0.1:%u",
             bench->slow.port);
    start(bench);
    await_requests(&bench->slow, 1);
    stop(bench, 0);
    assert_int_equal(once->state, LK_JOB_UNCERTAIN);
}

static void a_reload_brings_a_target_and_takes_one_away(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *first = ledger_add(&bench->ledger, "honours", "/1");

    bench->config.targets.count = 1;
    start(bench);
    await_end(bench, first);
    struct ledger_job *gone = ledger_add(&bench->ledger, "honours", "/2");
    struct ledger_job *came = ledger_add(&bench->ledger, "once", "/3");
    bench->config.targets.targets = &bench->targets[1];
    lk_courier_class.reload(bench->courier, &bench->config);
    await_end(bench, came);
    stop(bench, 1000);
    assert_int_equal(gone->attempts, 0);
    assert_int_equal(came->state, LK_JOB_DELIVERED);
}

static void leases_for_another_time_are_renewed_after_a_reload(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job = ledger_add(&bench->ledger, "slow", "/charge");

    start(bench);
    await_requests(&bench->slow, 1);
    bench->config.lease_ms = 90000;
    lk_courier_class.reload(bench->courier, &bench->config);
    ledger_await(&bench->ledger, is_called, job);
    assert_int_equal(job->marks, 1);
    assert_int_equal(job->due_ms, bench->ledger.now_ms + 90000);
}

/* ---- requests ------------------------------------------------------------ */

static void a_request_that_never_left_is_answered_with_a_problem(void **state)
{
    struct bench *bench = *state;
    struct ledger_job *job =
        ledger_add(&bench->ledger, LK_TARGET_GATEWAY, "/pay");

    bench->config.gateway = (char *)"/nonexistent/gateway.sock";
    bench->config.gateway_timeout_ms = 1000;
    bench->config.gateway_concurrency = 2;
    bench->config.gateway_attempts = 1;
    start(bench);
    await_end(bench, job);
    assert_int_equal(job->state, LK_JOB_DEAD);
    assert_false(job->sent);
    assert_int_equal(job->marks, 0); /* the gateway says that it has it */
    assert_non_null(strstr(job->response, "unavailable"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_is_delivered_and_its_answer_written_down),
        TEST(a_wake_brings_what_was_queued_meanwhile),
        TEST(a_wake_is_not_lost_while_the_store_works),
        TEST(where_the_key_is_not_honoured_called_is_confirmed_first),
        TEST(a_job_that_was_taken_by_somebody_else_is_not_called),
        TEST(a_lease_that_is_old_is_confirmed_before_the_call),
        TEST(a_job_that_takes_its_couriers_with_it_is_given_up),
        TEST(a_path_that_leads_elsewhere_is_dead_and_never_sent),
        TEST(an_end_is_given_until_it_is_confirmed),
        TEST(what_another_transaction_has_is_given_again),
        TEST(nothing_is_leased_with_ends_that_are_in_doubt),
        TEST(a_failure_waits_and_says_why),
        TEST(the_last_failure_is_dead),
        TEST(no_answer_is_tried_again_only_where_the_key_is_honoured),
        TEST(what_is_in_doubt_is_called_only_where_the_key_is_honoured),
        TEST(what_is_in_doubt_is_not_called_after_a_reload),
        TEST(what_was_sent_is_not_called_after_its_key_is_forgotten),
        TEST(what_was_never_sent_needs_no_key),
        TEST(what_is_too_old_is_not_called),
        TEST(what_is_too_old_and_in_doubt_is_uncertain),
        TEST(what_nobody_took_was_not_sent_though_it_was_marked),
        TEST(a_lease_is_renewed_while_its_call_runs),
        TEST(a_call_whose_lease_was_lost_runs_on_and_its_end_is_stale),
        TEST(a_slow_target_does_not_delay_another),
        TEST(no_more_is_leased_than_a_target_may_have_at_once),
        TEST(failures_open_the_circuit_and_the_rest_is_given_back),
        TEST(a_rate_is_shared_with_the_prober),
        TEST(a_rate_limits_what_is_leased),
        TEST(a_stop_gives_back_what_was_not_called),
        TEST(a_stop_waits_for_a_call_that_has_left),
        TEST(what_does_not_come_back_in_time_is_judged_by_its_target),
        TEST(a_reload_brings_a_target_and_takes_one_away),
        TEST(leases_for_another_time_are_renewed_after_a_reload),
        TEST(a_request_that_never_left_is_answered_with_a_problem),
    };

    /* With one work under way at a time, and with two. */
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bench_lanes = 2;
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
