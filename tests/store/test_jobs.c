/*
 * test_jobs.c - jobs: leases and their fences, what is lost, actions, reads,
 * and how long they live. LATCHKEY_TEST_STORE names the store.
 */
#include "tests/store/job_bed.h"

#include <sqlite3.h>

/* ---- Queueing --------------------------------------------------------------
 */

/* C28 */
static void a_job_is_leased_as_it_was_queued(void **state)
{
    struct bed *bed = *state;
    struct lk_call call = call_of(bed, "charge");
    uint64_t token = leave_job(bed, "k", "charge");

    for (int round = 0; round < 2; round++) {
        struct lk_job job = take_job(bed);
        expect_bytes(job.name, call.name);
        expect_bytes(job.target, call.target);
        expect_bytes(job.method, call.method);
        expect_bytes(job.path, call.path);
        expect_bytes(job.headers, call.headers);
        expect_bytes(job.body, call.body);
        expect_bytes(job.operation.tenant, text(bed->tenant));
        expect_bytes(job.operation.key, LK_SLICE("k"));
        assert_int_equal(job.number, token);
        assert_int_equal(job.state, LK_JOB_LEASED);
        assert_int_equal(job.attempts, round + 1);
        assert_false(job.called);
        assert_true(job.due_ms > job.now_ms);
        assert_false(finish(bed, &job, LK_END_RETURN));
        lk_job_free(&job);
        bed_reopen(bed);
    }
    expect_clean(bed);
}

static void a_job_needs_the_token_of_the_present_claim(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "app");

    enqueue(bed, "k", token - 1, "charge", LK_VERDICT_STALE);
    enqueue(bed, "other", token, "charge", LK_VERDICT_STALE);
    say(bed, complete_of(bed, "k", token, "done"), LK_VERDICT_DONE);
    enqueue(bed, "k", token, "charge", LK_VERDICT_KEPT);
    expect_nothing_due(bed, target_of(bed));
}

static uint64_t generation_of(struct bed *bed, uint64_t id)
{
    struct lk_job job = job_of(bed, id);
    uint64_t generation = job.generation;

    lk_job_free(&job);
    return generation;
}

/* The same after a release, another one after an eviction. */
static void a_name_is_used_once_in_a_generation(void **state)
{
    struct bed *bed = *state;
    uint64_t token = leave_job(bed, "k", "charge");

    enqueue(bed, "k", token, "charge", LK_VERDICT_EXISTS);
    enqueue(bed, "k", token, "mail", LK_VERDICT_DONE);
    say(bed, with_token(bed, LK_EVENT_RELEASE, "k", token), LK_VERDICT_DONE);
    token = claim_new(bed, "k", "again");
    enqueue(bed, "k", token, "charge", LK_VERDICT_EXISTS);
    struct lk_job job = take_job(bed);
    finish(bed, &job, LK_END_DELIVERED);
    lk_job_free(&job);
    enqueue(bed, "k", token, "charge", LK_VERDICT_EXISTS);
    say(bed, complete_of(bed, "k", token, "done"), LK_VERDICT_DONE);
    say(bed, op_on(bed, LK_EVENT_EVICT, "k"), LK_VERDICT_DONE);
    token = claim_new(bed, "k", "anew");
    enqueue(bed, "k", token, "charge", LK_VERDICT_DONE);

    struct found found =
        find_jobs(bed, (struct lk_jobs_query){.any_state = true,
                                              .target = text(target_of(bed))});
    assert_int_equal(found.count, 3);
    assert_int_equal(generation_of(bed, found.ids[0]),
                     generation_of(bed, found.ids[1]));
    assert_true(generation_of(bed, found.ids[0]) <
                generation_of(bed, found.ids[2]));
    expect_clean(bed);
}

/* C28: an earlier run has left a job of that name that makes another call. */
static void a_name_stands_for_one_call(void **state)
{
    struct bed *bed = *state;
    uint64_t token = leave_job(bed, "k", "charge");

    say(bed, with_token(bed, LK_EVENT_RELEASE, "k", token), LK_VERDICT_DONE);
    token = claim_new(bed, "k", "again");
    for (int i = 0; i < 6; i++) {
        struct lk_call call = call_of(bed, "charge");
        struct lk_slice *parts[] = {&call.target, &call.method, &call.path,
                                    &call.headers, &call.body};
        if (i < 5) {
            *parts[i] = i == 1 ? text("PUT") : text("other");
        } else {
            call.delay_ms = HOUR_MS; /* the same, only later */
        }
        struct lk_op op = with_token(bed, LK_EVENT_ENQUEUE, "k", token);
        op.call = &call;
        apply_all(bed, &op, 1, false);
        assert_int_equal(op.status, i < 5 ? LK_INVALID : LK_OK);
        assert_true(i == 5 || strstr(op.error, "another name"));
        assert_true(i < 5 || op.out.verdict == LK_VERDICT_EXISTS);
        lk_op_clear(&op);
    }
    expect_clean(bed);
}

static void a_delayed_job_is_not_due_before_its_time(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "app");
    struct lk_call call = call_of(bed, "later");
    struct lk_op op = with_token(bed, LK_EVENT_ENQUEUE, "k", token);

    call.delay_ms = HOUR_MS;
    op.call = &call;
    say(bed, op, LK_VERDICT_DONE);
    struct lk_job_batch job_batch =
        lease_of(bed, target_of(bed), 10, true, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_true(job_batch.wait_ms > HOUR_MS / 2 &&
                job_batch.wait_ms <= HOUR_MS);
    lk_job_batch_clear(&job_batch);
}

/* ---- Leases ----------------------------------------------------------------
 */

/* C27 */
static void only_the_present_lease_ends_a_job(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job first = take(bed, target_of(bed), false, SHORT_MS);
    outlive(bed, &first);
    struct lk_job second = take_job(bed);
    assert_int_equal(second.id, first.id);
    assert_int_equal(second.attempts, first.attempts + 1);
    assert_true(finish(bed, &first, LK_END_DELIVERED));
    assert_true(mark(bed, &first, true, LONG_MS));
    expect_job(bed, first.id, LK_JOB_LEASED);
    assert_false(mark(bed, &second, true, LONG_MS));
    assert_false(finish(bed, &second, LK_END_DELIVERED));
    expect_job(bed, first.id, LK_JOB_DELIVERED);
    /* Given again, it does no harm. */
    assert_true(finish(bed, &second, LK_END_RETRY));
    expect_job(bed, first.id, LK_JOB_DELIVERED);
    lk_job_free(&first);
    lk_job_free(&second);
}

static void a_lease_that_ran_out_counts_until_somebody_takes_it(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take(bed, target_of(bed), false, SHORT_MS);
    outlive(bed, &job);
    assert_false(finish(bed, &job, LK_END_DELIVERED));
    expect_job(bed, job.id, LK_JOB_DELIVERED);
    lk_job_free(&job);
}

static void a_mark_makes_the_lease_longer(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take(bed, target_of(bed), false, SHORT_MS);
    assert_false(mark(bed, &job, false, LONG_MS));
    outlive(bed, &job);
    expect_nothing_due(bed, target_of(bed));
    lk_job_free(&job);
}

/* C27 */
static void a_lost_job_that_was_never_called_is_leased_again(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job first = take(bed, target_of(bed), false, SHORT_MS);
    outlive(bed, &first);
    bed_reopen(bed);
    struct lk_job second = take_job(bed);
    assert_int_equal(second.id, first.id);
    assert_int_equal(second.attempts, 2);
    assert_false(second.sent);
    assert_int_equal(history_of(bed, first.id).count, 0);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C27 */
static void a_lost_job_that_was_called_is_leased_again_if_keys_are_honoured(
    void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job first = take(bed, target_of(bed), true, LONG_MS);
    assert_false(mark(bed, &first, true, SHORT_MS));
    bed_reopen(bed);
    await_store_time(bed, stats_of(bed).now_ms + 3);
    struct lk_job second = take(bed, target_of(bed), true, LONG_MS);
    assert_int_equal(second.id, first.id);
    assert_true(second.sent);
    struct history history = history_of(bed, first.id);
    assert_int_equal(history.count, 1);
    assert_int_equal(history.numbers[0], 1);
    assert_true(history.called[0]);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C27 */
static void a_lost_job_that_was_called_is_uncertain_elsewhere(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    assert_false(mark(bed, &job, true, SHORT_MS));
    bed_reopen(bed);
    await_store_time(bed, stats_of(bed).now_ms + 3);
    struct lk_job_batch job_batch =
        lease_of(bed, target_of(bed), 10, false, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_int_equal(job_batch.lapsed, 1);
    lk_job_batch_clear(&job_batch);
    struct lk_job found = job_of(bed, job.id);
    assert_int_equal(found.state, LK_JOB_UNCERTAIN);
    expect_bytes(found.reason,
                 LK_SLICE("the courier was lost after it had called"));
    assert_true(found.sent && found.ended_ms);
    lk_job_free(&found);
    /* Nor later, nor for somebody who says that keys are honoured. */
    expect_nothing_due(bed, target_of(bed));
    assert_true(finish(bed, &job, LK_END_DELIVERED));
    lk_job_free(&job);
    expect_clean(bed);
}

static void what_is_lost_is_settled_although_there_is_no_room(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "a", "charge");
    struct lk_job called = take_job(bed);
    leave_job(bed, "b", "charge");
    struct lk_job leased = take(bed, target_of(bed), false, SHORT_MS);
    mark(bed, &called, true, SHORT_MS);
    await_store_time(bed, stats_of(bed).now_ms + 3);
    struct lk_job_batch job_batch =
        lease_of(bed, target_of(bed), 0, false, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_int_equal(job_batch.lapsed, 1);
    assert_true(job_batch.wait_ms > 0); /* nothing to come back for at once */
    lk_job_batch_clear(&job_batch);
    expect_job(bed, called.id, LK_JOB_UNCERTAIN);
    expect_job(bed, leased.id, LK_JOB_LEASED);
    lk_job_free(&called);
    lk_job_free(&leased);
}

/* Whoever asks all the time for nothing would keep a server busy. */
static void where_nothing_is_left_nobody_need_ask_again(void **state)
{
    struct bed *bed = *state;
    struct lk_job_batch job_batch =
        lease_of(bed, target_of(bed), 10, true, LONG_MS);

    assert_true(job_batch.wait_ms == UINT64_MAX);
    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    finish(bed, &job, LK_END_DEAD);
    lk_job_free(&job);
    job_batch = lease_of(bed, target_of(bed), 10, true, LONG_MS);
    assert_true(job_batch.wait_ms == UINT64_MAX);
}

/* One of them has nothing; of the other the longest due come first. */
static void each_want_gets_at_most_its_limit(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "app");
    const char *names[] = {"a", "b", "c", "d", "e"};
    struct lk_job_want wants[] = {
        {.target = LK_SLICE("nothing-there"), .limit = 10},
        {.target = text(target_of(bed)), .limit = 3},
    };
    struct lk_job_batch job_batch = {
        .wants = wants, .want_count = 2, .lease_ms = LONG_MS};

    for (size_t i = 0; i < 5; i++) {
        uint64_t now = stats_of(bed).now_ms;
        enqueue(bed, "k", token, names[i], LK_VERDICT_DONE);
        await_store_time(bed, now);
    }
    apply_work(bed, &job_batch);
    assert_int_equal(job_batch.job_count, 3);
    assert_int_equal(job_batch.wait_ms, 0);
    for (size_t i = 0; i < 3; i++) {
        expect_bytes(job_batch.jobs[i].name, text(names[i]));
    }
    lk_job_batch_clear(&job_batch);
    apply_work(bed, &job_batch);
    assert_int_equal(job_batch.job_count, 2);
    /* The first of these leases may be lost then. */
    assert_true(job_batch.wait_ms > LONG_MS / 2 &&
                job_batch.wait_ms <= LONG_MS);
    lk_job_batch_clear(&job_batch);
}

static void bodies_are_leased_only_up_to_a_bound(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "app");
    struct lk_call call = call_of(bed, "");
    struct lk_job_want want = {.target = text(target_of(bed)), .limit = 10};
    struct lk_job_batch job_batch = {
        .wants = &want,
        .want_count = 1,
        .lease_ms = LONG_MS,
        .body_max = 2 * (call.headers.len + call.body.len)};
    const char *names[] = {"a", "b", "c"};

    for (size_t i = 0; i < 3; i++) {
        enqueue(bed, "k", token, names[i], LK_VERDICT_DONE);
    }
    apply_work(bed, &job_batch);
    assert_int_equal(job_batch.job_count, 2);
    lk_job_batch_clear(&job_batch);
    job_batch.body_max = 1; /* one at least, or it would never go */
    apply_work(bed, &job_batch);
    assert_int_equal(job_batch.job_count, 1);
    lk_job_batch_clear(&job_batch);
}

/* ---- Ends -------------------------------------------------------------------
 */

/* C28 */
static void the_providers_id_and_answer_are_kept_with_the_job(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_end end = end_of(&job, LK_END_DELIVERED);
    end.status = 201;
    end.provider_id = LK_SLICE("ch_123");
    end.reason = (struct lk_slice){0};
    end.response = (struct lk_response){.status = 201,
                                        .headers = LK_SLICE("A: b\r\n"),
                                        .body = LK_SLICE("made\0\xff it")};
    assert_false(give_end(bed, end));
    bed_reopen(bed);
    struct lk_job found = job_of(bed, job.id);
    assert_int_equal(found.state, LK_JOB_DELIVERED);
    assert_int_equal(found.status, 201);
    expect_bytes(found.provider_id, end.provider_id);
    expect_bytes(found.response.headers, end.response.headers);
    expect_bytes(found.response.body, end.response.body);
    assert_true(found.sent && found.ended_ms && !found.due_ms);
    lk_job_free(&found);
    lk_job_free(&job);
}

/* C28: a later attempt that brings none, and a lost one, do not erase it. */
static void the_providers_id_survives_an_attempt_without_one(void **state)
{
    static const enum lk_end ends[] = {LK_END_RETRY, LK_END_UNCERTAIN};
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_end end = end_of(&job, LK_END_RETRY);
    end.provider_id = LK_SLICE("ch_123");
    assert_false(give_end(bed, end));
    for (size_t i = 0; i < 2; i++) {
        lk_job_free(&job);
        job = take_job(bed);
        expect_bytes(job.provider_id, end.provider_id);
        assert_false(finish(bed, &job, ends[i]));
        struct lk_job found = job_of(bed, job.id);
        expect_bytes(found.provider_id, end.provider_id);
        lk_job_free(&found);
    }
    lk_job_free(&job);
}

/* C27: what the job shows is the lost attempt, not the one before it. */
static void a_lost_lease_that_is_taken_again_shows_the_lost_attempt(
    void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take(bed, target_of(bed), true, LONG_MS);
    struct lk_job_end end = end_of(&job, LK_END_RETRY);
    end.status = 500;
    assert_false(give_end(bed, end));
    lk_job_free(&job);
    job = take(bed, target_of(bed), true, SHORT_MS);
    assert_int_equal(job.status, 500);
    outlive(bed, &job);
    lk_job_free(&job);
    job = take(bed, target_of(bed), true, LONG_MS);
    assert_int_equal(job.attempts, 3);
    for (int round = 0; round < 2; round++) {
        struct lk_job found = job_of(bed, job.id);
        assert_int_equal(found.status, 0);
        expect_bytes(found.reason, LK_SLICE("the courier was lost"));
        lk_job_free(&found);
        bed_reopen(bed);
    }
    lk_job_free(&job);
}

/* C29 */
static void a_failed_attempt_waits_and_stands_in_the_history(void **state)
{
    static char large[5000];
    struct bed *bed = *state;

    memset(large, 'x', sizeof(large));
    leave_job(bed, "k", "charge");
    for (unsigned i = 1; i <= 3; i++) {
        struct lk_job job = take_job(bed);
        struct lk_job_end end = end_of(&job, LK_END_RETRY);
        assert_int_equal(job.attempts, i);
        end.status = 500 + i;
        end.response.body = (struct lk_slice){large, sizeof(large)};
        assert_false(give_end(bed, end));
        struct history history = history_of(bed, job.id);
        assert_int_equal(history.count, i);
        assert_int_equal(history.numbers[i - 1], i);
        assert_int_equal(history.statuses[i - 1], 500 + i);
        assert_int_equal(history.body_len, 1024);
        struct lk_job found = job_of(bed, job.id);
        assert_int_equal(found.state, LK_JOB_WAITING);
        assert_int_equal(found.status, 500 + i);
        assert_int_equal(found.ended_ms, 0);
        lk_job_free(&found);
        lk_job_free(&job);
    }
}

static void a_retry_waits_as_long_as_it_is_told(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_end end = end_of(&job, LK_END_RETRY);
    end.delay_ms = HOUR_MS;
    give_end(bed, end);
    struct lk_job_batch job_batch =
        lease_of(bed, target_of(bed), 1, true, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_true(job_batch.wait_ms > HOUR_MS / 2 &&
                job_batch.wait_ms <= HOUR_MS);
    lk_job_batch_clear(&job_batch);
    lk_job_free(&job);
}

static void what_was_never_called_does_not_count(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    for (unsigned i = 1; i <= 3; i++) {
        struct lk_job job = take_job(bed);
        assert_int_equal(job.attempts, i);
        assert_int_equal(job.forgiven, i - 1);
        assert_false(job.sent);
        mark(bed, &job, true, LONG_MS);
        assert_false(finish(bed, &job, LK_END_RETURN));
        lk_job_free(&job);
    }
}

/* ---- Orders -----------------------------------------------------------------
 */

/* One job, and what it becomes by this end. */
static struct lk_job prepare(struct bed *bed, const char *key, enum lk_end how)
{
    leave_job(bed, key, "charge");
    struct lk_job job = take_job(bed);

    assert_false(finish(bed, &job, how));
    return job;
}

/* C29 */
static void a_dead_job_is_listed_and_can_be_retried_or_dropped(void **state)
{
    struct bed *bed = *state;
    struct lk_jobs_query dead = {.state = LK_JOB_DEAD,
                                 .target = text(target_of(bed))};
    struct lk_job a = prepare(bed, "a", LK_END_DEAD);
    struct lk_job b = prepare(bed, "b", LK_END_DEAD);

    bed_reopen(bed);
    expect_nothing_due(bed, target_of(bed));
    struct found found = find_jobs(bed, dead);
    assert_int_equal(found.count, 2);
    assert_int_equal(give_action(bed, LK_ACTION_RETRY, a.id, 1), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, b.id, 0), LK_OK);
    expect_job(bed, b.id, LK_JOB_DROPPED);
    assert_int_equal(find_jobs(bed, dead).count, 0);
    struct lk_job again = take_job(bed);
    assert_int_equal(again.id, a.id);
    assert_int_equal(again.attempts, 2);
    assert_int_equal(again.forgiven, 1);
    /* The attempt that was given up is history now. */
    assert_int_equal(history_of(bed, a.id).count, 1);
    assert_false(finish(bed, &again, LK_END_DELIVERED));
    lk_job_free(&again);
    lk_job_free(&a);
    lk_job_free(&b);
    expect_clean(bed);
}

static void an_uncertain_job_has_happened_or_is_called_again(void **state)
{
    struct bed *bed = *state;
    struct lk_job a = prepare(bed, "a", LK_END_UNCERTAIN);
    struct lk_job b = prepare(bed, "b", LK_END_UNCERTAIN);
    struct lk_job_action happened = {.kind = LK_ACTION_DELIVERED,
                                     .id = a.id,
                                     .attempt = 1,
                                     .provider_id = LK_SLICE("ch_9"),
                                     .status = 200,
                                     .who = LK_SLICE("probe"),
                                     .why = LK_SLICE("it is there")};
    struct lk_job_batch job_batch = {.actions = &happened, .action_count = 1};

    apply_work(bed, &job_batch);
    assert_int_equal(happened.status_out, LK_OK);
    assert_int_equal(happened.state, LK_JOB_DELIVERED);
    struct lk_job found = job_of(bed, a.id);
    expect_bytes(found.provider_id, LK_SLICE("ch_9"));
    assert_int_equal(found.status, 200);
    lk_job_free(&found);
    assert_int_equal(give_action(bed, LK_ACTION_AGAIN, b.id, 1), LK_OK);
    struct lk_job again = take_job(bed);
    assert_int_equal(again.id, b.id);
    assert_int_equal(again.attempts, 2);
    assert_false(again.sent); /* somebody has said so */
    lk_job_free(&again);
    lk_job_free(&a);
    lk_job_free(&b);
}

/* ---- Age --------------------------------------------------------------------
 */

static enum lk_status retry_with_life(struct bed *bed, uint64_t id,
                                      uint64_t life_ms)
{
    const struct lk_key_life lives[] = {{LK_SLICE("another"), 1},
                                        {text(target_of(bed)), life_ms}};
    struct lk_job_action given = {.kind = LK_ACTION_RETRY,
                                  .id = id,
                                  .who = LK_SLICE("oncall"),
                                  .why = LK_SLICE("ticket 4711")};
    struct lk_job_batch job_batch = {
        .actions = &given, .action_count = 1, .lives = lives, .life_count = 2};

    apply_work(bed, &job_batch);
    return given.status_out;
}

static struct lk_job lease_again(struct bed *bed, struct lk_job *before,
                                 enum lk_end how)
{
    assert_false(finish(bed, before, how));
    await_store_time(bed, before->now_ms + 2);
    struct lk_job job = take(bed, target_of(bed), true, LONG_MS);

    assert_int_equal(job.id, before->id);
    lk_job_free(before);
    return job;
}

/* C27: from the first lease on under which it may have left, over failures,
 * losses and restarts, and not from one that was given back. */
static void the_time_when_a_job_was_first_sent_is_kept(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take(bed, target_of(bed), true, LONG_MS);
    assert_false(job.sent);
    job = lease_again(bed, &job, LK_END_RETURN);
    assert_false(job.sent);
    uint64_t first_ms = job.now_ms;
    job = lease_again(bed, &job, LK_END_RETRY);
    assert_true(job.sent);
    assert_int_equal(job.sent_ms, first_ms);
    bed_reopen(bed);
    job = lease_again(bed, &job, LK_END_RETURN);
    assert_int_equal(job.sent_ms, first_ms);
    lk_job_free(&job);
}

static void a_lost_lease_counts_from_when_it_was_taken(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job lost = take(bed, target_of(bed), true, SHORT_MS);
    outlive(bed, &lost);
    struct lk_job job = take(bed, target_of(bed), true, LONG_MS);
    assert_true(job.sent && job.now_ms > lost.now_ms);
    assert_int_equal(job.sent_ms, lost.now_ms);
    lk_job_free(&job);
    lk_job_free(&lost);
}

/* C27, C29: decided with the action, by the store's clock. */
static void what_was_sent_is_not_retried_after_its_key_is_forgotten(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job dead = prepare(bed, "k", LK_END_DEAD);

    assert_int_equal(retry_with_life(bed, dead.id, LONG_MS), LK_OK);
    struct lk_job job = take_job(bed);
    assert_false(finish(bed, &job, LK_END_DEAD));
    await_store_time(bed, dead.now_ms + 2);
    assert_int_equal(retry_with_life(bed, dead.id, 1), LK_DENIED);
    expect_job(bed, dead.id, LK_JOB_DEAD);
    lk_job_free(&job);
    /* Somebody knows that it has not happened: it begins again. */
    assert_int_equal(give_action(bed, LK_ACTION_AGAIN, dead.id, 0), LK_OK);
    job = take_job(bed);
    assert_false(job.sent);
    assert_true(job.since_ms > dead.now_ms && job.sent_ms == job.now_ms);
    lk_job_free(&job);
    lk_job_free(&dead);
}

static void what_was_never_sent_is_retried_at_any_age(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    struct lk_job_end end = end_of(&job, LK_END_DEAD);
    end.left = false;
    assert_false(give_end(bed, end));
    await_store_time(bed, job.now_ms + 2);
    assert_int_equal(retry_with_life(bed, job.id, 1), LK_OK);
    struct lk_job again = take_job(bed);
    assert_false(again.sent);
    assert_true(again.since_ms > job.now_ms);
    lk_job_free(&again);
    lk_job_free(&job);
}

static void an_action_counts_in_its_states_and_for_its_attempt_alone(
    void **state)
{
    static const enum lk_job_action_kind all[] = {
        LK_ACTION_RETRY, LK_ACTION_DROP, LK_ACTION_DELIVERED, LK_ACTION_AGAIN};
    static const struct {
        enum lk_end end;
        bool allowed[4];
    } cases[] = {
        {LK_END_RETRY, {true, true, true, false}}, /* waiting */
        {LK_END_DEAD, {true, true, true, true}},
        {LK_END_UNCERTAIN, {false, true, true, true}},
        {LK_END_DELIVERED, {false, false, false, false}},
    };
    struct bed *bed = *state;
    char key[32];

    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++) {
            snprintf(key, sizeof(key), "k-%zu-%zu", i, k);
            struct lk_job job = prepare(bed, key, cases[i].end);
            enum lk_job_state before = state_of(bed, job.id);
            assert_int_equal(give_action(bed, all[k], job.id, 7), LK_INVALID);
            expect_job(bed, job.id, before);
            assert_int_equal(give_action(bed, all[k], job.id, 1),
                             cases[i].allowed[k] ? LK_OK : LK_INVALID);
            /* Out of the way of the next one. */
            (void)give_action(bed, LK_ACTION_DROP, job.id, 0);
            lk_job_free(&job);
        }
    }
    leave_job(bed, "leased", "charge");
    struct lk_job leased = take_job(bed);
    for (size_t k = 0; k < 4; k++) {
        assert_int_equal(give_action(bed, all[k], leased.id, 0), LK_INVALID);
    }
    expect_job(bed, leased.id, LK_JOB_LEASED);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, leased.id + 1000000, 0),
                     LK_NOT_FOUND);
    lk_job_free(&leased);
}

struct audited {
    struct bed *bed;
    char actions[16][96];
    size_t count;
    uint64_t job;
    size_t jobs;    /* entries about it */
    size_t targets; /* and about the target */
};

static bool add_audited(void *context, const struct lk_audit_entry *entry)
{
    struct audited *audited = context;

    if (latchkey_slice_equal(entry->name.tenant, text(audited->bed->tenant)) ||
        !entry->name.tenant.len) {
        assert_true(audited->count < 16);
        audited->jobs += lk_audit_job(entry) == audited->job;
        audited->targets += latchkey_slice_equal(lk_audit_target(entry),
                                                 text(target_of(audited->bed)));
        snprintf(audited->actions[audited->count++], 96, "%.*s by %.*s: %.*s",
                 (int)entry->action.len, entry->action.data,
                 (int)entry->who.len, entry->who.data, (int)entry->why.len,
                 entry->why.data);
    }
    return true;
}

/* C35 */
static void every_action_is_in_the_audit_log(void **state)
{
    struct bed *bed = *state;
    struct audited audited = {.bed = bed};
    char pause[96];

    if (!is_embedded(bed)) {
        skip(); /* the log of a shared store holds much else */
    }
    struct lk_job job = prepare(bed, "a", LK_END_DEAD);
    assert_int_equal(give_action(bed, LK_ACTION_RETRY, job.id, 0), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_AGAIN, job.id, 0), LK_INVALID);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_PAUSE, 0, 0), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_RESUME, 0, 0), LK_OK);
    bed_reopen(bed);
    assert_int_equal(bed->store->class->audit(
                         bed->store, &(struct lk_audit_query){.limit = 100},
                         add_audited, &audited),
                     LK_OK);
    assert_int_equal(audited.count, 4);
    assert_string_equal(audited.actions[0], "job retry by oncall: ticket 4711");
    assert_string_equal(audited.actions[1], "job drop by oncall: ticket 4711");
    snprintf(pause, sizeof(pause), "target pause %s by oncall: ticket 4711",
             target_of(bed));
    assert_string_equal(audited.actions[2], pause);
    assert_int_equal(audited.jobs, 2);
    assert_int_equal(audited.targets, 2);
    lk_job_free(&job);
}

/* Also where the log holds much else. */
static void the_audit_log_knows_what_was_done_to_a_job(void **state)
{
    struct bed *bed = *state;
    struct audited audited = {.bed = bed};
    struct lk_job job = prepare(bed, "a", LK_END_DEAD);
    struct lk_job other = prepare(bed, "b", LK_END_DEAD);
    struct lk_audit_query query = {.job = job.id, .limit = 16};

    assert_int_equal(give_action(bed, LK_ACTION_RETRY, other.id, 0), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_RETRY, job.id, 0), LK_OK);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_OK);
    audited.job = job.id;
    assert_int_equal(
        bed->store->class->audit(bed->store, &query, add_audited, &audited),
        LK_OK);
    assert_int_equal(audited.count, 2);
    assert_int_equal(audited.jobs, 2);
    assert_string_equal(audited.actions[0], "job retry by oncall: ticket 4711");
    query.newest = true;
    query.limit = 1;
    audited.count = 0;
    assert_int_equal(
        bed->store->class->audit(bed->store, &query, add_audited, &audited),
        LK_OK);
    assert_int_equal(audited.count, 1);
    assert_string_equal(audited.actions[0], "job drop by oncall: ticket 4711");
    lk_job_free(&job);
    lk_job_free(&other);
}

struct operations {
    size_t count;
    struct lk_operation last;
};

static bool add_operation(void *context, const struct lk_operation *record)
{
    struct operations *seen = context;

    seen->count++;
    seen->last = *record;
    return true;
}

static struct lk_operation attention_of(struct bed *bed, size_t count)
{
    struct operations seen = {0};
    struct lk_list_query query = {.any_state = true,
                                  .tenant = text(bed->tenant),
                                  .attention = true,
                                  .long_ms = HOUR_MS,
                                  .limit = 100};

    do {
        assert_int_equal(bed->store->class->list(bed->store, &query,
                                                 add_operation, &seen,
                                                 &query.cursor),
                         LK_OK);
    } while (query.cursor);
    assert_int_equal(seen.count, count);
    return seen.last;
}

static void an_operation_with_a_dead_job_needs_a_person(void **state)
{
    struct bed *bed = *state;

    struct lk_job job = prepare(bed, "a", LK_END_DEAD);
    struct lk_operation record = attention_of(bed, 1);
    assert_int_equal(record.number, job.number);
    assert_int_equal(record.jobs_open, 1);
    assert_int_equal(record.jobs_dead, 1);
    assert_int_equal(record.jobs_uncertain, 0);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_OK);
    attention_of(bed, 0);
    lk_job_free(&job);
    job = prepare(bed, "b", LK_END_UNCERTAIN);
    record = attention_of(bed, 1);
    assert_int_equal(record.number, job.number);
    assert_int_equal(record.jobs_uncertain, 1);
    lk_job_free(&job);
    leave_job(bed, "quiet", "charge");
    attention_of(bed, 1);
}

/* ---- Targets ----------------------------------------------------------------
 */

struct shown {
    const char *name;
    bool found;
    struct lk_target_summary standing;
    char who[64];
};

static bool add_shown(void *context, const struct lk_target_summary *standing)
{
    struct shown *shown = context;

    if (latchkey_slice_equal(standing->name, text(shown->name))) {
        shown->found = true;
        shown->standing = *standing;
        snprintf(shown->who, sizeof(shown->who), "%.*s", (int)standing->who.len,
                 standing->who.data);
    }
    return true;
}

static struct shown target_standing(struct bed *bed)
{
    struct shown shown = {.name = target_of(bed)};

    assert_int_equal(bed->store->class->targets(bed->store, add_shown, &shown),
                     LK_OK);
    return shown;
}

static void nothing_of_a_paused_target_is_leased(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    assert_int_equal(give_action(bed, LK_ACTION_PAUSE, 0, 0), LK_OK);
    for (int round = 0; round < 2; round++) {
        struct lk_job_batch job_batch =
            lease_of(bed, target_of(bed), 10, true, LONG_MS);
        assert_int_equal(job_batch.job_count, 0);
        assert_true(job_batch.wait_ms > 0);
        lk_job_batch_clear(&job_batch);
        struct shown shown = target_standing(bed);
        assert_true(shown.found && shown.standing.paused);
        assert_true(shown.standing.paused_ms > 0);
        assert_string_equal(shown.who, "oncall");
        bed_reopen(bed);
    }
    /* It is told of at once. */
    struct lk_job_action resume = {.kind = LK_ACTION_RESUME,
                                   .target = text(target_of(bed)),
                                   .who = LK_SLICE("oncall"),
                                   .why = LK_SLICE("better now")};
    struct lk_job_batch job_batch = {.actions = &resume, .action_count = 1};
    struct lk_batch batch = work_batch(bed, &job_batch);
    bed->store->class->apply(bed->store, &batch);
    assert_int_equal(job_batch.status, LK_OK);
    assert_true(batch.queued);
    lk_batch_clear(&batch);
    struct lk_job job = take_job(bed);
    lk_job_free(&job);
    assert_false(target_standing(bed).standing.paused);
}

static void a_target_shows_its_jobs_by_state(void **state)
{
    struct bed *bed = *state;
    struct lk_job dead = prepare(bed, "dead", LK_END_DEAD);
    struct lk_job doubt = prepare(bed, "doubt", LK_END_UNCERTAIN);
    struct lk_job done = prepare(bed, "done", LK_END_DELIVERED);

    leave_job(bed, "leased", "charge");
    struct lk_job leased = take_job(bed);
    leave_job(bed, "waiting", "charge");
    for (int round = 0; round < 2; round++) {
        struct lk_target_summary shown = target_standing(bed).standing;
        assert_int_equal(shown.jobs[LK_JOB_WAITING], 1);
        assert_int_equal(shown.jobs[LK_JOB_LEASED], 1);
        assert_int_equal(shown.jobs[LK_JOB_UNCERTAIN], 1);
        assert_int_equal(shown.jobs[LK_JOB_DEAD], 1);
        assert_true(shown.oldest_due_ms && shown.oldest_uncertain_ms &&
                    shown.oldest_dead_ms);
        assert_true(shown.oldest_uncertain_ms >= shown.oldest_dead_ms);
        bed_reopen(bed);
    }
    lk_job_free(&dead);
    lk_job_free(&doubt);
    lk_job_free(&done);
    lk_job_free(&leased);
}

/* C34 */
static void statistics_count_unfinished_jobs(void **state)
{
    struct bed *bed = *state;

    if (!is_embedded(bed)) {
        skip(); /* others have jobs too */
    }
    struct lk_job a = prepare(bed, "a", LK_END_UNCERTAIN);
    struct lk_job b = prepare(bed, "b", LK_END_UNCERTAIN);
    struct lk_job first = job_of(bed, a.id);
    uint64_t since = first.ended_ms;
    lk_job_free(&first);
    for (int round = 0; round < 2; round++) {
        struct lk_store_stats stats = stats_of(bed);
        assert_int_equal(stats.jobs[LK_JOB_UNCERTAIN], 2);
        assert_int_equal(stats.jobs[LK_JOB_WAITING], 0);
        assert_int_equal(stats.oldest_uncertain_ms, since);
        bed_reopen(bed);
    }
    assert_int_equal(give_action(bed, LK_ACTION_DROP, a.id, 0), LK_OK);
    assert_true(stats_of(bed).oldest_uncertain_ms >= since);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, b.id, 0), LK_OK);
    assert_int_equal(stats_of(bed).oldest_uncertain_ms, 0);
    assert_int_equal(stats_of(bed).jobs[LK_JOB_UNCERTAIN], 0);
    /* Of operations too. */
    uint64_t token = claim_new(bed, "c", "app");
    struct lk_outcome out =
        say(bed, with_token(bed, LK_EVENT_DOUBT, "c", token), LK_VERDICT_DONE);
    assert_int_equal(stats_of(bed).oldest_uncertain_ms, out.now_ms);
    lk_job_free(&a);
    lk_job_free(&b);
}

/* ---- Looking ----------------------------------------------------------------
 */

static void jobs_are_found_by_what_they_are(void **state)
{
    struct bed *bed = *state;
    struct lk_slice target = text(target_of(bed));
    struct lk_job dead = prepare(bed, "dead", LK_END_DEAD);
    struct lk_job done = prepare(bed, "done", LK_END_DELIVERED);
    char name[16];

    uint64_t number = leave_job(bed, "many", "job-00");
    for (int i = 1; i < 30; i++) {
        snprintf(name, sizeof(name), "job-%02d", i);
        enqueue(bed, "many", number, name, LK_VERDICT_DONE);
    }
    struct lk_jobs_query query = {
        .any_state = true, .target = target, .limit = 7};
    struct found found = find_jobs(bed, query);
    assert_int_equal(found.count, 32);
    for (size_t i = 1; i < found.count; i++) {
        assert_true(found.ids[i] > found.ids[i - 1]);
    }
    query = (struct lk_jobs_query){.state = LK_JOB_DEAD, .target = target};
    found = find_jobs(bed, query);
    assert_int_equal(found.count, 1);
    assert_int_equal(found.ids[0], dead.id);
    query.state = LK_JOB_DELIVERED;
    assert_int_equal(find_jobs(bed, query).count, 1);
    query = (struct lk_jobs_query){.unfinished = true, .target = target};
    assert_int_equal(find_jobs(bed, query).count, 31);
    query =
        (struct lk_jobs_query){.any_state = true, .number = number, .limit = 4};
    assert_int_equal(find_jobs(bed, query).count, 30);
    query =
        (struct lk_jobs_query){.any_state = true, .tenant = text(bed->tenant)};
    assert_int_equal(find_jobs(bed, query).count, 32);
    query.tenant = LK_SLICE("somebody else");
    assert_int_equal(find_jobs(bed, query).count, 0);
    query = (struct lk_jobs_query){
        .any_state = true, .target = target, .older_than_ms = HOUR_MS};
    assert_int_equal(find_jobs(bed, query).count, 0);
    query = (struct lk_jobs_query){.any_state = true,
                                   .target = target,
                                   .since_ms = stats_of(bed).now_ms + HOUR_MS};
    assert_int_equal(find_jobs(bed, query).count, 0);
    query.since_ms = 0;
    query.until_ms = stats_of(bed).now_ms + HOUR_MS;
    assert_int_equal(find_jobs(bed, query).count, 32);
    lk_job_free(&dead);
    lk_job_free(&done);
}

static void a_job_that_does_not_exist_is_not_found(void **state)
{
    struct bed *bed = *state;
    struct lk_job job;

    leave_job(bed, "k", "charge");
    assert_int_equal(
        bed->store->class->job(bed->store, UINT64_C(1) << 50, &job, NULL, NULL),
        LK_NOT_FOUND);
}

/* ---- How long they live -----------------------------------------------------
 */

static void complete_briefly(struct bed *bed, const char *key, uint64_t token)
{
    struct lk_op op = complete_of(bed, key, token, "done");

    op.ttl_ms = 1;
    uint64_t expires = say(bed, op, LK_VERDICT_DONE).expires_ms;
    await_store_time(bed, expires + 200);
}

static void an_operation_with_unfinished_jobs_does_not_expire(void **state)
{
    struct bed *bed = *state;
    uint64_t token = leave_job(bed, "k", "charge");

    complete_briefly(bed, "k", token);
    for (int round = 0; round < 2; round++) {
        turn(bed);
        say(bed, claim_of(bed, "k", "retry"), LK_VERDICT_REPLAY);
        assert_int_equal(look(bed, "k", NULL), LK_STATE_COMPLETED);
        bed_reopen(bed);
    }
    struct lk_job job = take_job(bed);
    finish(bed, &job, LK_END_DEAD); /* not finished either */
    turn(bed);
    say(bed, claim_of(bed, "k", "retry"), LK_VERDICT_REPLAY);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_OK);
    lk_job_free(&job);
    assert_int_equal(look(bed, "k", NULL), LK_STATE_ABSENT);
    say(bed, claim_of(bed, "k", "anew"), LK_VERDICT_NEW);
}

/* What cannot end must not keep the keeper busy. */
static void the_keeper_steps_over_operations_with_unfinished_jobs(void **state)
{
    struct bed *bed = *state;
    struct lk_batch batch = {.keep = true};
    uint64_t token = leave_job(bed, "k", "charge");

    if (!is_embedded(bed)) {
        skip();
    }
    complete_briefly(bed, "k", token);
    turn(bed);
    bed->store->class->apply(bed->store, &batch);
    assert_false(batch.more);
    lk_batch_clear(&batch);
    struct lk_job job = take_job(bed);
    finish(bed, &job, LK_END_DELIVERED);
    lk_job_free(&job);
    turn(bed);
    assert_int_equal(stats_of(bed).operations, 0);
}

/* Nor does a restart give out a number again. */
static void finished_jobs_go_with_their_operation(void **state)
{
    struct bed *bed = *state;
    uint64_t last = 0;
    char name[16];
    struct lk_job gone;

    if (!is_embedded(bed)) {
        skip(); /* a shared store reaps when it sees fit */
    }
    uint64_t token = claim_new(bed, "k", "app");
    for (int i = 0; i < 600; i++) { /* more than go at once */
        snprintf(name, sizeof(name), "job-%03d", i);
        enqueue(bed, "k", token, name, LK_VERDICT_DONE);
    }
    for (int i = 0; i < 600; i++) {
        struct lk_job job = take_job(bed);
        finish(bed, &job, i % 2 ? LK_END_DELIVERED : LK_END_RETRY);
        if (i % 2 == 0) {
            assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0),
                             LK_OK);
        }
        last = job.id;
        lk_job_free(&job);
    }
    complete_briefly(bed, "k", token);
    turn(bed);
    turn(bed);
    expect_clean(bed); /* half of them are gone by now */
    for (int i = 0; i < 6; i++) {
        turn(bed);
    }
    assert_int_equal(
        bed->store->class->job(bed->store, last, &gone, NULL, NULL),
        LK_NOT_FOUND);
    assert_int_equal(
        find_jobs(bed, (struct lk_jobs_query){.any_state = true}).count, 0);
    expect_clean(bed);
    bed_reopen(bed);
    leave_job(bed, "other", "charge");
    struct lk_job next = take_job(bed);
    assert_true(next.id > last);
    lk_job_free(&next);
}

/* ---- Files ------------------------------------------------------------------
 */

static void execute(struct bed *bed, const char *sql)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open(bed->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void a_file_of_the_first_version_is_taken_over(void **state)
{
    struct bed *bed = *state;

    if (!is_embedded(bed)) {
        skip();
    }
    finish_new(bed, "old", "answer", HOUR_MS);
    bed_close(bed);
    execute(bed, "DROP TABLE job; DROP TABLE call; DROP TABLE attempt;"
                 "DROP TABLE target; DROP INDEX audit_name;"
                 "DROP INDEX audit_token; PRAGMA user_version = 1");
    bed_open(bed);
    say(bed, claim_of(bed, "old", "retry"), LK_VERDICT_REPLAY);
    leave_job(bed, "new", "charge");
    struct lk_job job = take_job(bed);
    lk_job_free(&job);
    expect_clean(bed);
}

static void verify_finds_what_is_wrong_with_jobs(void **state)
{
    static const char *const damages[] = {
        "DELETE FROM call",
        "UPDATE job SET number = number + 1000",
        "UPDATE job SET state = 9",
        "UPDATE job SET state = 0 WHERE name = ''",
        "DELETE FROM job WHERE name = ''",
        "INSERT INTO attempt VALUES (99, 1, 1, 1, 1, '', '', '')",
    };
    struct bed *bed = *state;

    if (!is_embedded(bed)) {
        skip();
    }
    for (size_t i = 0; i < sizeof(damages) / sizeof(*damages); i++) {
        struct lk_buf report = {0};
        leave_job(bed, "k", "charge");
        accept(bed, "waiting", false, LK_VERDICT_ACCEPTED);
        accept(bed, "running", false, LK_VERDICT_ACCEPTED);
        struct lk_job job = take(bed, LK_TARGET_GATEWAY, false, LONG_MS);
        expect_clean(bed);
        bed_close(bed);
        execute(bed, damages[i]);
        if (i == 4) {
            execute(bed, "DELETE FROM call WHERE id NOT IN "
                         "(SELECT id FROM job)");
        }
        bed_open(bed);
        if (bed->store->class->verify(bed->store, NULL, NULL, &report) !=
            LK_CORRUPT) {
            fail_msg("not found: %s", damages[i]);
        }
        latchkey_buf_free(&report);
        lk_job_free(&job);
        bed_close(bed);
        empty_directory(bed);
        bed_open(bed);
    }
}

static bool is_in_doubt(struct bed *bed, uint64_t id)
{
    struct lk_job job = job_of(bed, id);
    bool doubt = job.doubt;

    lk_job_free(&job);
    return doubt;
}

static void end_in_doubt(struct bed *bed, const struct lk_job *job,
                         enum lk_end how)
{
    struct lk_job_end end = end_of(job, how);

    end.doubt = true;
    assert_false(give_end(bed, end));
}

/* C27: until somebody says that it has not happened. */
static void what_may_have_happened_is_in_doubt_until_it_is_called_again(
    void **state)
{
    struct bed *bed = *state;
    static const enum lk_end later[] = {LK_END_RETRY, LK_END_RETURN,
                                        LK_END_DEAD};

    leave_job(bed, "k", "charge");
    struct lk_job job = take_job(bed);
    assert_false(job.doubt);
    end_in_doubt(bed, &job, LK_END_RETRY);
    for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        lk_job_free(&job);
        bed_reopen(bed);
        job = take_job(bed);
        assert_true(job.doubt);
        assert_false(finish(bed, &job, later[i]));
        assert_true(is_in_doubt(bed, job.id));
    }
    assert_int_equal(give_action(bed, LK_ACTION_RETRY, job.id, 0), LK_OK);
    lk_job_free(&job);
    job = take_job(bed);
    assert_true(job.doubt);
    assert_false(finish(bed, &job, LK_END_UNCERTAIN));
    assert_int_equal(give_action(bed, LK_ACTION_AGAIN, job.id, 0), LK_OK);
    lk_job_free(&job);
    job = take_job(bed);
    assert_false(job.doubt);
    end_in_doubt(bed, &job, LK_END_DEAD);
    assert_true(is_in_doubt(bed, job.id));
    lk_job_free(&job);
}

/* C27 */
static void a_call_that_was_lost_is_in_doubt(void **state)
{
    struct bed *bed = *state;

    leave_job(bed, "k", "charge");
    struct lk_job first = take(bed, target_of(bed), true, SHORT_MS);
    outlive(bed, &first);
    struct lk_job second = take(bed, target_of(bed), true, LONG_MS);
    assert_true(second.doubt);
    leave_job(bed, "l", "charge");
    struct lk_job other = take(bed, target_of(bed), false, SHORT_MS);
    outlive(bed, &other);
    struct lk_job uncalled = take_job(bed);
    assert_int_equal(uncalled.id, other.id);
    assert_false(uncalled.doubt);
    lk_job_free(&first);
    lk_job_free(&second);
    lk_job_free(&other);
    lk_job_free(&uncalled);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_job_is_leased_as_it_was_queued),
        TEST(a_job_needs_the_token_of_the_present_claim),
        TEST(a_name_is_used_once_in_a_generation),
        TEST(a_name_stands_for_one_call),
        TEST(a_delayed_job_is_not_due_before_its_time),
        TEST(only_the_present_lease_ends_a_job),
        TEST(a_lease_that_ran_out_counts_until_somebody_takes_it),
        TEST(a_mark_makes_the_lease_longer),
        TEST(a_lost_job_that_was_never_called_is_leased_again),
        TEST(a_lost_job_that_was_called_is_leased_again_if_keys_are_honoured),
        TEST(a_lost_job_that_was_called_is_uncertain_elsewhere),
        TEST(what_may_have_happened_is_in_doubt_until_it_is_called_again),
        TEST(a_call_that_was_lost_is_in_doubt),
        TEST(what_is_lost_is_settled_although_there_is_no_room),
        TEST(where_nothing_is_left_nobody_need_ask_again),
        TEST(each_want_gets_at_most_its_limit),
        TEST(bodies_are_leased_only_up_to_a_bound),
        TEST(the_providers_id_and_answer_are_kept_with_the_job),
        TEST(the_providers_id_survives_an_attempt_without_one),
        TEST(a_lost_lease_that_is_taken_again_shows_the_lost_attempt),
        TEST(a_failed_attempt_waits_and_stands_in_the_history),
        TEST(a_retry_waits_as_long_as_it_is_told),
        TEST(what_was_never_called_does_not_count),
        TEST(a_dead_job_is_listed_and_can_be_retried_or_dropped),
        TEST(an_uncertain_job_has_happened_or_is_called_again),
        TEST(the_time_when_a_job_was_first_sent_is_kept),
        TEST(a_lost_lease_counts_from_when_it_was_taken),
        TEST(what_was_sent_is_not_retried_after_its_key_is_forgotten),
        TEST(what_was_never_sent_is_retried_at_any_age),
        TEST(an_action_counts_in_its_states_and_for_its_attempt_alone),
        TEST(every_action_is_in_the_audit_log),
        TEST(the_audit_log_knows_what_was_done_to_a_job),
        TEST(an_operation_with_a_dead_job_needs_a_person),
        TEST(nothing_of_a_paused_target_is_leased),
        TEST(a_target_shows_its_jobs_by_state),
        TEST(statistics_count_unfinished_jobs),
        TEST(jobs_are_found_by_what_they_are),
        TEST(a_job_that_does_not_exist_is_not_found),
        TEST(an_operation_with_unfinished_jobs_does_not_expire),
        TEST(the_keeper_steps_over_operations_with_unfinished_jobs),
        TEST(finished_jobs_go_with_their_operation),
        TEST(a_file_of_the_first_version_is_taken_over),
        TEST(verify_finds_what_is_wrong_with_jobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
