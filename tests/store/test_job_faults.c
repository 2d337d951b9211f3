/*
 * test_job_faults.c - the courier's work under failing disks, and killed at
 * every step; in builds with fault points.
 */
#include "tests/store/job_bed.h"

#include <signal.h>
#include <sys/wait.h>

#ifdef LK_FAULTS

static void await_recovery(struct bed *bed)
{
    uint64_t give_up = monotonic_ms() + 20000;

    while (!stats_of(bed).available) {
        assert_true(monotonic_ms() < give_up);
        pause_ms(5);
        turn(bed);
    }
}

static enum lk_status try_lease(struct bed *bed, size_t *count)
{
    struct lk_job_want want = {.target = text(target_of(bed)), .limit = 10};
    struct lk_job_batch job_batch = {
        .wants = &want, .want_count = 1, .lease_ms = LONG_MS};
    struct lk_batch batch = work_batch(bed, &job_batch);

    job_batch.status = LK_INVALID;
    bed->store->class->apply(bed->store, &batch);
    *count = job_batch.job_count;
    lk_batch_clear(&batch);
    lk_job_batch_clear(&job_batch);
    return job_batch.status;
}

/* C23 */
static void work_that_is_not_durable_leases_nothing(void **state)
{
    struct bed *bed = *state;
    size_t count = 0;

    use_fault_file(bed, "# none yet\n");
    leave_job(bed, "k", "charge");
    set_faults("fail write ENOSPC wal forever\n");
    assert_int_equal(try_lease(bed, &count), LK_UNAVAILABLE);
    assert_int_equal(count, 0);
    set_faults("");
    await_recovery(bed);
    assert_int_equal(stats_of(bed).jobs[LK_JOB_WAITING], 1);
    set_faults("fail sync EIO wal count 1\n");
    assert_int_equal(try_lease(bed, &count), LK_UNKNOWN);
    assert_int_equal(count, 0);
    await_recovery(bed);
    struct lk_store_stats stats = stats_of(bed);
    assert_int_equal(stats.jobs[LK_JOB_WAITING] + stats.jobs[LK_JOB_LEASED], 1);
    expect_clean(bed);
}

/* Runs `work` in a child that the fault file kills. */
static void work_and_die(struct bed *bed, const char *lines,
                         struct lk_job_batch *job_batch)
{
    bed_close(bed);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (bed_try_open(bed) != LK_OK) {
            _exit(1);
        }
        set_faults(lines); /* opening has syncs of its own */
        struct lk_batch batch = work_batch(bed, job_batch);
        bed->store->class->apply(bed->store, &batch);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    set_faults("");
    bed_open(bed);
}

static void lease_and_die(struct bed *bed, const char *lines)
{
    struct lk_job_want want = {.target = text(target_of(bed)), .limit = 10};
    struct lk_job_batch job_batch = {
        .wants = &want, .want_count = 1, .lease_ms = SHORT_MS};

    work_and_die(bed, lines, &job_batch);
    await_store_time(bed, stats_of(bed).now_ms + 3);
}

/* C27 */
static void a_job_whose_courier_was_killed_before_calling_is_called(
    void **state)
{
    static const char *const points[] = {
        "kill before_append\n", "kill after_sync\n", "kill after_lease\n"};
    struct bed *bed = *state;

    use_fault_file(bed, "# none yet\n");
    leave_job(bed, "k", "charge");
    for (unsigned i = 0; i < 3; i++) {
        lease_and_die(bed, points[i]);
        expect_clean(bed);
    }
    struct lk_job job = take_job(bed);
    assert_int_equal(job.attempts, 3); /* before the append nothing happened */
    assert_false(job.sent);
    lk_job_free(&job);
}

/* C27 */
static void a_job_whose_courier_was_killed_when_it_called_is_uncertain(
    void **state)
{
    struct bed *bed = *state;

    use_fault_file(bed, "# none yet\n");
    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_mark called = {.id = job.id,
                                 .attempt = job.attempts,
                                 .called = true,
                                 .lease_ms = SHORT_MS};
    struct lk_job_batch job_batch = {.marks = &called, .mark_count = 1};
    work_and_die(bed, "kill after_called\n", &job_batch);
    await_store_time(bed, stats_of(bed).now_ms + 3);
    expect_nothing_due(bed, "nothing-there");
    struct lk_job_batch lost =
        lease_of(bed, target_of(bed), 10, false, LONG_MS);
    assert_int_equal(lost.job_count, 0);
    assert_int_equal(lost.lapsed, 1);
    lk_job_batch_clear(&lost);
    expect_job(bed, job.id, LK_JOB_UNCERTAIN);
    expect_clean(bed);
    lk_job_free(&job);
}

/* C27, C28 */
static void an_end_that_was_stored_counts_although_nobody_heard(void **state)
{
    struct bed *bed = *state;

    use_fault_file(bed, "# none yet\n");
    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_end end = end_of(&job, LK_END_DELIVERED);
    struct lk_job_batch job_batch = {.ends = &end, .end_count = 1};

    end.provider_id = LK_SLICE("ch_1");
    work_and_die(bed, "kill before_append\n", &job_batch);
    expect_job(bed, job.id, LK_JOB_LEASED);
    work_and_die(bed, "kill after_end\n", &job_batch);
    struct lk_job found = job_of(bed, job.id);
    assert_int_equal(found.state, LK_JOB_DELIVERED);
    expect_bytes(found.provider_id, end.provider_id);
    lk_job_free(&found);
    /* Given again, as the courier would. */
    assert_true(give_end(bed, end));
    expect_job(bed, job.id, LK_JOB_DELIVERED);
    expect_clean(bed);
    lk_job_free(&job);
}

/* C31 */
static void an_accepted_request_survives_every_kill(void **state)
{
    static const char *const points[] = {
        "kill after_lease\n", "kill after_sync\n", "kill after_lease\n"};
    struct bed *bed = *state;
    struct lk_job_want want = {.target = LK_SLICE(LK_TARGET_GATEWAY),
                               .limit = 1};
    struct lk_job_batch job_batch = {
        .wants = &want, .want_count = 1, .lease_ms = SHORT_MS};

    use_fault_file(bed, "# none yet\n");
    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    for (unsigned i = 0; i < 3; i++) {
        work_and_die(bed, points[i], &job_batch);
        say(bed, claim_of(bed, "k", "retry"), LK_VERDICT_ACCEPTED);
        expect_clean(bed);
        await_store_time(bed, stats_of(bed).now_ms + 3);
    }
    struct lk_job job = take(bed, LK_TARGET_GATEWAY, false, LONG_MS);
    assert_int_equal(job.attempts, 4);
    say(bed, complete_of(bed, "k", job.token, "done"), LK_VERDICT_DONE);
    say(bed, claim_of(bed, "k", "retry"), LK_VERDICT_REPLAY);
    expect_clean(bed);
    lk_job_free(&job);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(work_that_is_not_durable_leases_nothing),
        TEST(a_job_whose_courier_was_killed_before_calling_is_called),
        TEST(a_job_whose_courier_was_killed_when_it_called_is_uncertain),
        TEST(an_end_that_was_stored_counts_although_nobody_heard),
        TEST(an_accepted_request_survives_every_kill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void work_under_faults(void **state)
{
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_under_faults)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
