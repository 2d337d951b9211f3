/*
 * test_jobs_requests.c - asynchronous requests: an operation and its request
 * are one thing, whatever happens to either. LATCHKEY_TEST_STORE names the
 * store.
 */
#include "tests/store/job_bed.h"

#define GATEWAY LK_TARGET_GATEWAY

/* What earlier tests have left in a store that is shared. */
static void clear_gateway(struct bed *bed)
{
    struct found found =
        find_jobs(bed, (struct lk_jobs_query){.unfinished = true,
                                              .target = LK_SLICE(GATEWAY)});

    for (size_t i = 0; i < found.count; i++) {
        struct lk_job job = job_of(bed, found.ids[i]);
        struct lk_op op = op_on(bed, LK_EVENT_RESOLVE_RELEASED, "");
        op.name = job.operation;
        op.hash = lk_name_hash(bed->store->secret, op.name);
        op.running = true;
        say(bed, op, LK_VERDICT_DONE);
        lk_job_free(&job);
    }
}

static int request_setup(void **state)
{
    bed_setup(state);
    clear_gateway(*state);
    return 0;
}

static struct lk_job take_request(struct bed *bed)
{
    return take(bed, GATEWAY, false, LONG_MS);
}

/* Accepts and leases. */
static struct lk_job start_request(struct bed *bed, const char *key,
                                   bool repeatable)
{
    accept(bed, key, repeatable, LK_VERDICT_ACCEPTED);
    return take_request(bed);
}

static struct lk_op extend_of(struct bed *bed, const char *key, uint64_t token,
                              uint64_t lock_ms)
{
    struct lk_op op = with_token(bed, LK_EVENT_EXTEND, key, token);

    op.lock_ms = lock_ms;
    return op;
}

/* The same, and the gateway says that it lets the app hear of it. */
static struct lk_job start_taken(struct bed *bed, const char *key)
{
    struct lk_job job = start_request(bed, key, false);

    say(bed, extend_of(bed, key, job.token, LONG_MS), LK_VERDICT_DONE);
    return job;
}

/* The operation and its request. */
static void expect_both(struct bed *bed, const char *key, enum lk_state state,
                        uint64_t id, enum lk_job_state job)
{
    enum lk_state found = look(bed, key, NULL);

    if (found != state) {
        fail_msg("the operation is %s, not %s", lk_state_word(found),
                 lk_state_word(state));
    }
    expect_job(bed, id, job);
    expect_clean(bed);
}

/* The same, also after a restart. */
static void expect_still(struct bed *bed, const char *key, enum lk_state state,
                         uint64_t id, enum lk_job_state job)
{
    expect_both(bed, key, state, id, job);
    bed_reopen(bed);
    expect_both(bed, key, state, id, job);
}

/* Whether an attempt may have left. */
static void expect_sent(struct bed *bed, uint64_t id, bool sent)
{
    struct lk_job job = job_of(bed, id);

    assert_int_equal(job.sent, sent);
    lk_job_free(&job);
}

static uint64_t waiting_id(struct bed *bed)
{
    struct found found =
        find_jobs(bed, (struct lk_jobs_query){.unfinished = true,
                                              .target = LK_SLICE(GATEWAY)});

    assert_int_equal(found.count, 1);
    return found.ids[0];
}

/* A store that can answer without waiting does; false: it cannot. */
static bool peek_accepted(struct bed *bed, struct lk_op *op)
{
    if (!bed->store->class->peek) {
        return false;
    }
    assert_int_equal(bed->store->class->peek(bed->store, op), LK_OK);
    assert_int_equal(op->out.verdict, LK_VERDICT_ACCEPTED);
    if (op->out.needs_load) {
        assert_int_equal(bed->store->class->load(bed->store, op), LK_OK);
    }
    return true;
}

/* ---- Accepted ---------------------------------------------------------------
 */

/* C31 */
static void whoever_asks_for_an_accepted_operation_is_told_so(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome first = accept(bed, "k", false, LK_VERDICT_ACCEPTED);

    assert_int_equal(first.since_ms, first.now_ms);
    for (int round = 0; round < 2; round++) {
        struct lk_outcome out = accept(bed, "k", false, LK_VERDICT_ACCEPTED);
        assert_int_equal(out.number, first.number);
        assert_int_equal(out.since_ms, first.since_ms);
        out = say(bed, claim_of(bed, "k", "sync"), LK_VERDICT_ACCEPTED);
        assert_int_equal(out.number, first.number);
        struct lk_op op = claim_of(bed, "k", "sync");
        peek_accepted(bed, &op);
        op.fingerprint = LK_SLICE("1:other");
        say(bed, op, LK_VERDICT_MISMATCH);
        expect_still(bed, "k", LK_STATE_ACCEPTED, waiting_id(bed),
                     LK_JOB_WAITING);
    }
    assert_int_equal(
        find_jobs(bed, (struct lk_jobs_query){.any_state = true,
                                              .tenant = text(bed->tenant)})
            .count,
        1);
}

/* C31 */
static void an_accept_is_told_what_a_claim_would_be(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "running", "app");

    accept(bed, "running", false, LK_VERDICT_INFLIGHT);
    say(bed, with_token(bed, LK_EVENT_DOUBT, "running", token),
        LK_VERDICT_DONE);
    accept(bed, "running", true, LK_VERDICT_UNCERTAIN);
    finish_new(bed, "done", "answer", HOUR_MS);
    accept(bed, "done", false, LK_VERDICT_REPLAY);
    assert_int_equal(
        find_jobs(bed, (struct lk_jobs_query){.any_state = true,
                                              .tenant = text(bed->tenant)})
            .count,
        0);
}

/* ---- Run --------------------------------------------------------------------
 */

/* C31 */
static void a_leased_request_runs_under_a_token_of_its_own(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome first = accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job job = take_request(bed);
    struct lk_operation record = {0};

    assert_true(job.token > first.number);
    assert_int_equal(job.number, first.number);
    assert_int_equal(job.run, 1);
    assert_int_equal(job.name.len, 0);
    expect_bytes(job.operation.key, LK_SLICE("k"));
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    struct lk_outcome out =
        say(bed, claim_of(bed, "k", "sync"), LK_VERDICT_ACCEPTED);
    assert_int_equal(out.since_ms, first.since_ms);
    struct lk_op op = claim_of(bed, "k", "sync");
    if (peek_accepted(bed, &op)) {
        assert_int_equal(op.out.since_ms, first.since_ms);
    }
    assert_int_equal(look(bed, "k", &record), LK_STATE_IN_PROGRESS);
    assert_true(record.queued);
    assert_int_equal(record.since_ms, first.since_ms);
    assert_int_equal(record.claimed_ms, first.since_ms);
    assert_int_equal(record.attempt, 1);
    lk_operation_free(&record);
    lk_job_free(&job);
}

/* C31: the gateway completes it, and with that the job is over. */
static void a_completed_request_is_delivered_in_the_same_step(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    say(bed, complete_of(bed, "k", job.token, "answer"), LK_VERDICT_DONE);
    assert_true(finish(bed, &job, LK_END_DELIVERED)); /* it was already */
    expect_still(bed, "k", LK_STATE_COMPLETED, job.id, LK_JOB_DELIVERED);
    struct lk_job found = job_of(bed, job.id);
    assert_int_equal(found.status, 201);
    lk_job_free(&found);
    say(bed, claim_of(bed, "k", "retry"), LK_VERDICT_REPLAY);
    accept(bed, "k", false, LK_VERDICT_REPLAY);
    lk_job_free(&job);
}

static void a_request_that_is_put_back_gets_another_token(void **state)
{
    static const enum lk_end ends[] = {LK_END_RETRY, LK_END_RETURN};
    struct bed *bed = *state;
    struct lk_outcome first = accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    uint64_t token = 0;

    for (unsigned i = 0; i < 4; i++) {
        struct lk_job job = take_request(bed);
        assert_true(job.token > token);
        assert_int_equal(job.run, i + 1);
        token = job.token;
        assert_false(finish(bed, &job, ends[i % 2]));
        expect_still(bed, "k", LK_STATE_ACCEPTED, job.id, LK_JOB_WAITING);
        say(bed, complete_of(bed, "k", token, "late"), LK_VERDICT_STALE);
        struct lk_outcome out =
            say(bed, claim_of(bed, "k", "sync"), LK_VERDICT_ACCEPTED);
        assert_int_equal(out.since_ms, first.since_ms);
        assert_int_equal(out.number, first.number);
        lk_job_free(&job);
    }
}

/* The gateway says that nothing has happened, and that the app has heard of
 * it, or not. */
static struct lk_job return_request(struct bed *bed, uint64_t lease_ms,
                                    bool unsent)
{
    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job job = take(bed, GATEWAY, false, lease_ms);
    struct lk_op op = with_token(bed, LK_EVENT_RETURN, "k", job.token);

    op.unsent = unsent;
    say(bed, with_token(bed, LK_EVENT_EXTEND, "k", job.token), LK_VERDICT_DONE);
    say(bed, op, LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_ACCEPTED, job.id, LK_JOB_WAITING);
    return job;
}

/* C31, C22 */
static void what_the_gateway_returns_waits_for_a_word_of_its_courier(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job first = return_request(bed, LONG_MS, false);

    expect_nothing_due(bed, GATEWAY);
    say(bed, with_token(bed, LK_EVENT_RETURN, "k", first.token),
        LK_VERDICT_DONE);
    say(bed, with_token(bed, LK_EVENT_EXTEND, "k", first.token),
        LK_VERDICT_STALE);
    assert_true(finish(bed, &first, LK_END_UNCERTAIN));
    assert_true(mark(bed, &first, true, LONG_MS));
    assert_false(finish(bed, &first, LK_END_RETRY));
    struct lk_job second = take_request(bed);
    assert_int_equal(second.id, first.id);
    assert_int_equal(second.attempts, 2);
    assert_int_equal(second.forgiven, 0);
    assert_true(second.token > first.token && second.sent);
    say(bed, with_token(bed, LK_EVENT_RETURN, "k", first.token),
        LK_VERDICT_STALE);
    assert_true(finish(bed, &first, LK_END_RETRY));
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, first.id, LK_JOB_LEASED);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C31, C27 */
static void what_the_gateway_returns_is_leased_again_when_its_courier_is_lost(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job first = return_request(bed, SHORT_MS, true);

    outlive(bed, &first);
    struct lk_job second = take_request(bed);
    assert_int_equal(second.id, first.id);
    assert_false(second.sent);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C31, C27: its lease had run out before the gateway could say so. */
static void what_the_gateway_returns_is_not_uncertain_any_more(void **state)
{
    struct bed *bed = *state;
    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job first = take(bed, GATEWAY, false, SHORT_MS);

    assert_false(mark(bed, &first, true, SHORT_MS));
    await_store_time(bed, stats_of(bed).now_ms + 3);
    expect_nothing_due(bed, GATEWAY);
    expect_both(bed, "k", LK_STATE_UNCERTAIN, first.id, LK_JOB_UNCERTAIN);
    say(bed, with_token(bed, LK_EVENT_RETURN, "k", first.token),
        LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_ACCEPTED, first.id, LK_JOB_WAITING);
    struct lk_job second = take_request(bed);
    assert_int_equal(second.id, first.id);
    assert_true(second.sent);
    lk_job_free(&first);
    lk_job_free(&second);
}

static void what_the_gateway_returns_can_be_given_up(void **state)
{
    struct bed *bed = *state;

    for (int unsent = 0; unsent < 2; unsent++) {
        struct lk_job job = return_request(bed, LONG_MS, unsent);
        struct lk_job_end end = end_of(&job, LK_END_DEAD);
        end.left = false;
        end.response = (struct lk_response){.status = 503};
        assert_false(give_end(bed, end));
        expect_still(bed, "k", unsent ? LK_STATE_COMPLETED : LK_STATE_UNCERTAIN,
                     job.id, unsent ? LK_JOB_DROPPED : LK_JOB_UNCERTAIN);
        expect_sent(bed, job.id, !unsent);
        clear_gateway(bed);
        lk_job_free(&job);
    }
}

/* Whoever waits is not woken by what only goes on. */
static void waiters_are_woken_when_a_request_ends(void **state)
{
    struct bed *bed = *state;
    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job_want want = {.target = LK_SLICE(GATEWAY), .limit = 1};
    struct lk_job_batch job_batch = {
        .wants = &want, .want_count = 1, .lease_ms = LONG_MS};
    struct lk_batch batch = work_batch(bed, &job_batch);

    bed->store->class->apply(bed->store, &batch);
    assert_int_equal(job_batch.job_count, 1);
    assert_int_equal(batch.settled_count, 0);
    struct lk_job_end end = end_of(&job_batch.jobs[0], LK_END_UNCERTAIN);
    say(bed, extend_of(bed, "k", job_batch.jobs[0].token, LONG_MS),
        LK_VERDICT_DONE);
    lk_job_batch_clear(&job_batch);
    job_batch = (struct lk_job_batch){.ends = &end, .end_count = 1};
    bed->store->class->apply(bed->store, &batch);
    assert_int_equal(batch.settled_count, 1);
    lk_batch_clear(&batch);
}

/* ---- Lost -------------------------------------------------------------------
 */

/* C31, C27 */
static void a_lost_request_that_was_never_called_is_leased_again(void **state)
{
    struct bed *bed = *state;
    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job first = take(bed, GATEWAY, false, SHORT_MS);
    outlive(bed, &first);
    turn(bed); /* the sweeper leaves it alone */
    expect_both(bed, "k", LK_STATE_IN_PROGRESS, first.id, LK_JOB_LEASED);
    bed_reopen(bed);
    struct lk_job second = take_request(bed);
    assert_int_equal(second.id, first.id);
    assert_true(second.token > first.token);
    say(bed, complete_of(bed, "k", first.token, "late"), LK_VERDICT_STALE);
    say(bed, complete_of(bed, "k", second.token, "ok"), LK_VERDICT_DONE);
    expect_both(bed, "k", LK_STATE_COMPLETED, first.id, LK_JOB_DELIVERED);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* Accepts, leases for a moment, marks and loses. */
static struct lk_job lose_request(struct bed *bed, const char *key,
                                  bool repeatable)
{
    accept(bed, key, repeatable, LK_VERDICT_ACCEPTED);
    struct lk_job job = take(bed, GATEWAY, false, SHORT_MS);

    assert_false(mark(bed, &job, true, SHORT_MS));
    await_store_time(bed, stats_of(bed).now_ms + 3);
    return job;
}

/* C27, C31 */
static void a_lost_request_that_was_called_is_uncertain(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = lose_request(bed, "k", false);
    struct lk_job_batch job_batch = lease_of(bed, GATEWAY, 10, true, LONG_MS);

    assert_int_equal(job_batch.job_count, 0);
    assert_int_equal(job_batch.lapsed, 1);
    lk_job_batch_clear(&job_batch);
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    say(bed, claim_of(bed, "k", "sync"), LK_VERDICT_UNCERTAIN);
    expect_nothing_due(bed, GATEWAY);
    lk_job_free(&job);
}

static void a_lost_request_that_may_run_again_is_leased_again(void **state)
{
    struct bed *bed = *state;
    struct lk_job first = lose_request(bed, "k", true);
    struct lk_job second = take_request(bed);

    assert_int_equal(second.id, first.id);
    assert_true(second.token > first.token);
    assert_true(second.sent);
    struct lk_job found = job_of(bed, first.id);
    assert_int_equal(found.status, 0);
    expect_bytes(found.reason, LK_SLICE("the courier was lost"));
    lk_job_free(&found);
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, first.id, LK_JOB_LEASED);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C22 */
static void a_gateway_that_lives_keeps_its_request_without_a_courier(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job job = lose_request(bed, "k", false);

    say(bed, with_token(bed, LK_EVENT_EXTEND, "k", job.token), LK_VERDICT_DONE);
    struct lk_job_batch job_batch = lease_of(bed, GATEWAY, 10, false, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_int_equal(job_batch.lapsed, 0);
    assert_true(job_batch.wait_ms > 0 && job_batch.wait_ms <= 60 * 1000);
    lk_job_batch_clear(&job_batch);
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    say(bed, complete_of(bed, "k", job.token, "ok"), LK_VERDICT_DONE);
    expect_both(bed, "k", LK_STATE_COMPLETED, job.id, LK_JOB_DELIVERED);
    lk_job_free(&job);
}

static void a_mark_extends_the_operation_too(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);
    struct lk_operation record = {0};

    assert_false(mark(bed, &job, true, 10 * (uint64_t)LONG_MS));
    assert_int_equal(look(bed, "k", &record), LK_STATE_IN_PROGRESS);
    assert_true(record.lock_until_ms > job.due_ms);
    lk_operation_free(&record);
    bed_reopen(bed);
    expect_nothing_due(bed, GATEWAY);
    lk_job_free(&job);
}

/* ---- Given up
 * ---------------------------------------------------------------- */

/* C31 */
static void a_request_that_was_never_sent_ends_with_the_couriers_answer(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);
    struct lk_job_end end = end_of(&job, LK_END_DEAD);

    end.left = false;
    end.response = (struct lk_response){.status = 503,
                                        .headers = LK_SLICE("A: b\r\n"),
                                        .body = LK_SLICE("given up")};
    mark(bed, &job, true, LONG_MS);
    assert_false(give_end(bed, end));
    expect_still(bed, "k", LK_STATE_COMPLETED, job.id, LK_JOB_DROPPED);
    expect_sent(bed, job.id, false);
    expect_replay(bed, "k", &end.response);
    lk_job_free(&job);
}

static void a_request_that_may_have_run_is_uncertain_when_given_up(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_taken(bed, "k");

    assert_false(finish(bed, &job, LK_END_RETRY)); /* it had left */
    lk_job_free(&job);
    job = take_request(bed);
    assert_true(job.sent);
    struct lk_job_end end = end_of(&job, LK_END_DEAD);
    end.left = false;
    assert_false(give_end(bed, end));
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    lk_job_free(&job);
}

/* C31: the courier's connection is cut, and all that it knows is that it sent
 * the request to the gateway; the store knows that the app never heard of it.
 */
static void what_the_gateway_never_took_is_not_uncertain(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "a", false);

    assert_false(finish(bed, &job, LK_END_UNCERTAIN));
    expect_still(bed, "a", LK_STATE_ACCEPTED, job.id, LK_JOB_WAITING);
    /* A gateway that took it too late does not run it. */
    say(bed, extend_of(bed, "a", job.token, LONG_MS), LK_VERDICT_STALE);
    lk_job_free(&job);
    job = take_request(bed);
    assert_false(job.sent);
    assert_int_equal(job.run, 2);
    struct lk_job_end end = end_of(&job, LK_END_DEAD);
    end.response.status = 503;
    assert_false(give_end(bed, end));
    expect_still(bed, "a", LK_STATE_COMPLETED, job.id, LK_JOB_DROPPED);
    expect_sent(bed, job.id, false);
    lk_job_free(&job);
}

static void a_delivery_that_the_store_has_not_seen_is_uncertain(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    assert_false(finish(bed, &job, LK_END_DELIVERED));
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    lk_job_free(&job);
}

/* ---- Doubted, resolved, released
 * ----------------------------------------------- */

static struct lk_job doubt_request(struct bed *bed, const char *key)
{
    struct lk_job job = start_taken(bed, key);

    assert_false(finish(bed, &job, LK_END_UNCERTAIN));
    expect_both(bed, key, LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    return job;
}

static struct lk_op resolve_of(struct bed *bed, enum lk_event event,
                               const char *key, uint64_t token)
{
    struct lk_op op = complete_of(bed, key, token, "by a person");

    op.event = event;
    return op;
}

/* C30 */
static void a_resolved_request_is_over(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = doubt_request(bed, "a");

    /* Proof of another claim proves nothing. */
    say(bed, resolve_of(bed, LK_EVENT_RESOLVE_COMPLETED, "a", job.token + 1),
        LK_VERDICT_STALE);
    say(bed, resolve_of(bed, LK_EVENT_RESOLVE_COMPLETED, "a", job.token),
        LK_VERDICT_DONE);
    expect_still(bed, "a", LK_STATE_COMPLETED, job.id, LK_JOB_DELIVERED);
    lk_job_free(&job);

    job = doubt_request(bed, "b");
    say(bed, resolve_of(bed, LK_EVENT_RESOLVE_RELEASED, "b", 0),
        LK_VERDICT_DONE);
    expect_still(bed, "b", LK_STATE_RELEASED, job.id, LK_JOB_DROPPED);
    claim_new(bed, "b", "sync");
    expect_both(bed, "b", LK_STATE_IN_PROGRESS, job.id, LK_JOB_DROPPED);
    lk_job_free(&job);
}

/* Whose gateway is gone, say. */
static void what_is_only_accepted_can_be_resolved_too(void **state)
{
    struct bed *bed = *state;
    accept(bed, "a", false, LK_VERDICT_ACCEPTED);
    uint64_t id = waiting_id(bed);

    say(bed, resolve_of(bed, LK_EVENT_RESOLVE_RELEASED, "a", 0),
        LK_VERDICT_DONE);
    expect_still(bed, "a", LK_STATE_RELEASED, id, LK_JOB_DROPPED);
    accept(bed, "b", false, LK_VERDICT_ACCEPTED);
    id = waiting_id(bed);
    say(bed, resolve_of(bed, LK_EVENT_RESOLVE_COMPLETED, "b", 0),
        LK_VERDICT_DONE);
    expect_still(bed, "b", LK_STATE_COMPLETED, id, LK_JOB_DROPPED);
    expect_nothing_due(bed, GATEWAY);
}

static void a_released_request_is_dropped_and_can_be_accepted_anew(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    say(bed, with_token(bed, LK_EVENT_RELEASE, "k", job.token),
        LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_RELEASED, job.id, LK_JOB_DROPPED);
    assert_true(finish(bed, &job, LK_END_RETRY));
    struct lk_outcome out = accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    assert_int_equal(out.number, job.number);
    struct lk_job next = take_request(bed);
    assert_true(next.id > job.id);
    assert_int_equal(next.run, 2);
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, next.id, LK_JOB_LEASED);
    lk_job_free(&job);
    lk_job_free(&next);
}

static void a_claim_that_reexecutes_takes_an_uncertain_request_over(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job job = doubt_request(bed, "k");
    struct lk_op op = claim_of(bed, "k", "sync");

    op.reexecute = true;
    uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_DROPPED);
    say(bed, complete_of(bed, "k", job.token, "late"), LK_VERDICT_STALE);
    say(bed, complete_of(bed, "k", token, "ok"), LK_VERDICT_DONE);
    lk_job_free(&job);
}

/* C31: that it may have run is still known of it. */
static void a_request_that_was_sent_stays_so_when_it_is_dropped(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_taken(bed, "taken");

    say(bed, with_token(bed, LK_EVENT_RELEASE, "taken", job.token),
        LK_VERDICT_DONE);
    expect_still(bed, "taken", LK_STATE_RELEASED, job.id, LK_JOB_DROPPED);
    expect_sent(bed, job.id, true);
    lk_job_free(&job);

    job = start_request(bed, "never taken", false);
    say(bed, with_token(bed, LK_EVENT_RELEASE, "never taken", job.token),
        LK_VERDICT_DONE);
    expect_sent(bed, job.id, false);
    lk_job_free(&job);

    job = start_taken(bed, "put back");
    assert_false(finish(bed, &job, LK_END_RETRY)); /* it had left */
    lk_job_free(&job);
    job = take_request(bed);
    say(bed, with_token(bed, LK_EVENT_RELEASE, "put back", job.token),
        LK_VERDICT_DONE);
    expect_sent(bed, job.id, true);
    lk_job_free(&job);

    /* One that may run again stays leased: the claim that drops it has to say
     * that it was sent. */
    for (int repeatable = 0; repeatable < 2; repeatable++) {
        const char *key = repeatable ? "repeatable" : "once";
        struct lk_op op = claim_of(bed, key, "sync");
        op.reexecute = true;
        job = start_request(bed, key, repeatable);
        say(bed, extend_of(bed, key, job.token, LONG_MS), LK_VERDICT_DONE);
        say(bed, with_token(bed, LK_EVENT_DOUBT, key, job.token),
            LK_VERDICT_DONE);
        say(bed, op, LK_VERDICT_NEW);
        expect_still(bed, key, LK_STATE_IN_PROGRESS, job.id, LK_JOB_DROPPED);
        expect_sent(bed, job.id, true);
        lk_job_free(&job);
    }
}

/* C22 */
static void a_holder_that_doubts_and_lives_on_takes_its_request_along(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", job.token), LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    say(bed, with_token(bed, LK_EVENT_EXTEND, "k", job.token), LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    say(bed, complete_of(bed, "k", job.token, "ok"), LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_COMPLETED, job.id, LK_JOB_DELIVERED);
    lk_job_free(&job);
}

/* The courier puts it back, or it is taken when the lease is lost. */
static void a_doubted_request_that_may_run_again_is_still_the_couriers(
    void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", true);

    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", job.token), LK_VERDICT_DONE);
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_LEASED);
    assert_false(finish(bed, &job, LK_END_RETRY));
    expect_still(bed, "k", LK_STATE_ACCEPTED, job.id, LK_JOB_WAITING);
    lk_job_free(&job);
    job = take(bed, GATEWAY, false, SHORT_MS);
    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", job.token), LK_VERDICT_DONE);
    outlive(bed, &job);
    struct lk_job next = take_request(bed);
    assert_int_equal(next.id, job.id);
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    lk_job_free(&job);
    lk_job_free(&next);
}

static void actions_on_a_request_are_for_its_operation(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    struct lk_job_end end = end_of(&job, LK_END_RETRY);
    end.delay_ms = HOUR_MS;
    give_end(bed, end);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_BUSY);
    assert_int_equal(give_action(bed, LK_ACTION_DELIVERED, job.id, 0), LK_BUSY);
    assert_int_equal(give_action(bed, LK_ACTION_RETRY, job.id, 0), LK_OK);
    struct lk_job next = take_request(bed); /* due at once */
    say(bed, extend_of(bed, "k", next.token, LONG_MS), LK_VERDICT_DONE);
    assert_false(finish(bed, &next, LK_END_UNCERTAIN));
    assert_int_equal(give_action(bed, LK_ACTION_AGAIN, job.id, 0), LK_BUSY);
    assert_int_equal(give_action(bed, LK_ACTION_DROP, job.id, 0), LK_BUSY);
    expect_both(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    lk_job_free(&job);
    lk_job_free(&next);
}

/* ---- Beside
 * ------------------------------------------------------------------ */

static void jobs_of_the_app_outlive_the_request(void **state)
{
    struct bed *bed = *state;
    struct lk_job request = start_request(bed, "k", false);
    struct lk_op done = complete_of(bed, "k", request.token, "ok");

    enqueue(bed, "k", request.token, "charge", LK_VERDICT_DONE);
    done.ttl_ms = 1;
    struct lk_outcome out = say(bed, done, LK_VERDICT_DONE);
    await_store_time(bed, out.expires_ms + 200);
    turn(bed);
    expect_still(bed, "k", LK_STATE_COMPLETED, request.id, LK_JOB_DELIVERED);
    struct lk_job job = take_job(bed);
    assert_int_equal(job.number, request.number);
    assert_false(finish(bed, &job, LK_END_DELIVERED));
    assert_int_equal(look(bed, "k", NULL), LK_STATE_ABSENT);
    lk_job_free(&request);
    lk_job_free(&job);
}

struct exported {
    size_t queued;
    size_t accepted;
    struct lk_operation record;
};

static bool add_exported(void *context, const struct lk_operation *record)
{
    struct exported *exported = context;

    exported->queued += record->queued;
    exported->accepted += record->state == LK_STATE_ACCEPTED;
    return true;
}

/* Nothing that waits is lost on the way without a word. */
static void an_export_shows_what_is_queued_and_no_import_takes_it(void **state)
{
    struct bed *bed = *state;
    if (!is_embedded(bed)) {
        skip();
    }
    struct lk_list_query query = {
        .any_state = true, .whole = true, .limit = 100};
    struct exported exported = {0};
    struct lk_import result = {0};
    uint64_t next;
    struct lk_job job = start_request(bed, "running", false);

    accept(bed, "waiting", false, LK_VERDICT_ACCEPTED);
    assert_int_equal(bed->store->class->list(bed->store, &query, add_exported,
                                             &exported, &next),
                     LK_OK);
    assert_int_equal(exported.queued, 2);
    assert_int_equal(exported.accepted, 1);
    struct lk_operation record = {
        .name = {text(bed->tenant), LK_SLICE("scope"), LK_SLICE("key")},
        .state = LK_STATE_ACCEPTED,
        .token = 1000,
        .number = 1000,
        .attempt = 1,
        .claimed_ms = 1,
        .fingerprint = LK_SLICE("1:fingerprint"),
        .queued = true,
    };
    assert_int_equal(bed->store->class->import(bed->store, &record, 1, &result),
                     LK_INVALID);
    /* What the courier runs here is not overwritten from elsewhere. */
    record.state = LK_STATE_COMPLETED;
    record.name = op_on(bed, LK_EVENT_CLAIM, "running").name;
    record.omitted = true;
    record.status = 200;
    record.reason = LK_SLICE("too large");
    record.expires_ms = stats_of(bed).now_ms + HOUR_MS;
    assert_int_equal(bed->store->class->import(bed->store, &record, 1, &result),
                     LK_OK);
    assert_int_equal(result.older, 1);
    expect_both(bed, "running", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    lk_job_free(&job);
}

static void a_restored_copy_starts_nothing_for_a_while(void **state)
{
    struct bed *bed = *state;
    if (!is_embedded(bed)) {
        skip();
    }
    struct lk_buf error = {0};
    char copy[560];
    char command[1700];

    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    snprintf(copy, sizeof(copy), "%s.copy", bed->path);
    assert_int_equal(
        bed->store->class->backup(bed->store, copy, NULL, NULL, &error), LK_OK);
    bed_close(bed);
    snprintf(command, sizeof(command), "mv '%s' '%s'; rm -f '%s-wal'", copy,
             bed->path, bed->path);
    assert_int_equal(system(command), 0);
    bed_open(bed);
    struct lk_job_batch job_batch = lease_of(bed, GATEWAY, 1, true, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_true(job_batch.wait_ms > 0 && job_batch.wait_ms <= 60 * 1000);
    lk_job_batch_clear(&job_batch);
    latchkey_buf_free(&error);
}

/* ---- Whether the app has heard of it
 * -------------------------------------------- */

static bool is_called(struct bed *bed, uint64_t id)
{
    struct lk_job job = job_of(bed, id);
    bool called = job.called;

    lk_job_free(&job);
    return called;
}

/* C31 */
static void a_request_is_called_once_the_gateway_asks_for_its_lock(void **state)
{
    struct bed *bed = *state;
    struct lk_job job = start_request(bed, "k", false);

    assert_false(mark(bed, &job, false, LONG_MS));
    assert_false(is_called(bed, job.id));
    /* A lock that is not longer than the lease, too. */
    say(bed, extend_of(bed, "k", job.token, SHORT_MS), LK_VERDICT_DONE);
    assert_true(is_called(bed, job.id));
    expect_still(bed, "k", LK_STATE_IN_PROGRESS, job.id, LK_JOB_LEASED);
    assert_false(finish(bed, &job, LK_END_RETRY));
    assert_false(is_called(bed, job.id));
    lk_job_free(&job);
}

/* C27, C31: and the gateway that comes late is told so. */
static void a_lost_request_that_the_gateway_never_had_runs_again(void **state)
{
    struct bed *bed = *state;

    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job first = take(bed, GATEWAY, false, SHORT_MS);
    outlive(bed, &first);
    bed_reopen(bed);
    struct lk_job second = take_request(bed);
    assert_int_equal(second.id, first.id);
    assert_false(second.sent);
    say(bed, extend_of(bed, "k", first.token, LONG_MS), LK_VERDICT_STALE);
    assert_false(is_called(bed, first.id));
    say(bed, extend_of(bed, "k", second.token, LONG_MS), LK_VERDICT_DONE);
    lk_job_free(&first);
    lk_job_free(&second);
}

/* C27, C31 */
static void a_lost_request_that_the_gateway_had_is_uncertain(void **state)
{
    struct bed *bed = *state;

    accept(bed, "k", false, LK_VERDICT_ACCEPTED);
    struct lk_job job = take(bed, GATEWAY, false, SHORT_MS);
    say(bed, extend_of(bed, "k", job.token, SHORT_MS), LK_VERDICT_DONE);
    await_store_time(bed, stats_of(bed).now_ms + 3);
    bed_reopen(bed);
    struct lk_job_batch job_batch = lease_of(bed, GATEWAY, 10, false, LONG_MS);
    assert_int_equal(job_batch.job_count, 0);
    assert_int_equal(job_batch.lapsed, 1);
    expect_still(bed, "k", LK_STATE_UNCERTAIN, job.id, LK_JOB_UNCERTAIN);
    lk_job_batch_clear(&job_batch);
    lk_job_free(&job);
}

/* ---- Whatever happens
 * ---------------------------------------------------------- */

enum { KEYS = 6, STEPS = 4000, HELD = 16 };

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static struct lk_op draw_op(struct bed *bed, const char *key,
                            const struct lk_job *held,
                            const struct lk_call *call)
{
    static const enum lk_event events[] = {
        LK_EVENT_CLAIM,   LK_EVENT_CLAIM,
        LK_EVENT_ACCEPT,  LK_EVENT_ACCEPT,
        LK_EVENT_ACCEPT,  LK_EVENT_COMPLETE,
        LK_EVENT_RELEASE, LK_EVENT_DOUBT,
        LK_EVENT_EXTEND,  LK_EVENT_RESOLVE_COMPLETED,
        LK_EVENT_EVICT,   LK_EVENT_RESOLVE_RELEASED,
        LK_EVENT_KEEP,    LK_EVENT_ENQUEUE};
    struct lk_op op = complete_of(bed, key, held->token, "drawn");

    op.event = events[draw(sizeof(events) / sizeof(*events))];
    op.call = call;
    op.lock_ms = draw(3) ? 1 : HOUR_MS;
    op.ttl_ms = draw(3) ? 1 : HOUR_MS;
    op.reexecute = draw(4) == 0;
    op.owner = LK_SLICE("drawn");
    if (op.event == LK_EVENT_DOUBT) {
        op.reason = LK_SLICE("drawn");
    }
    if (op.event == LK_EVENT_RESOLVE_COMPLETED ||
        op.event == LK_EVENT_RESOLVE_RELEASED) {
        op.token = draw(2) ? op.token : 0;
        op.running = draw(2);
    }
    return op;
}

static void step_op(struct bed *bed, const struct lk_job *held)
{
    char key[16];
    struct lk_call call = call_of(bed, "");

    snprintf(key, sizeof(key), "key-%d", (int)draw(KEYS));
    struct lk_op op = draw_op(bed, key, held, &call);
    call.repeatable = draw(3) == 0;
    if (op.event == LK_EVENT_ENQUEUE) {
        call.name = draw(2) ? LK_SLICE("charge") : LK_SLICE("mail");
    } else {
        call.target = LK_SLICE(GATEWAY);
    }
    /* Its own token, of whichever claim it was. */
    struct lk_operation record = {0};
    if (draw(3) && look(bed, key, &record)) {
        op.token = op.token ? record.token : 0;
        lk_operation_free(&record);
    }
    apply_all(bed, &op, 1, draw(4) == 0);
    assert_int_equal(op.status, LK_OK);
    lk_op_clear(&op);
}

static void step_work(struct bed *bed, struct lk_job *held)
{
    struct lk_job_end end = end_of(held, (enum lk_end)draw(5));
    struct lk_job_mark given = {.id = held->id,
                                .attempt = held->attempts,
                                .called = draw(2),
                                .lease_ms = draw(2) ? 1 : HOUR_MS};
    struct lk_job_action action = {.kind = (enum lk_job_action_kind)draw(4),
                                   .id = 1 + draw(50)};
    struct lk_job_want wants[] = {
        {.target = LK_SLICE(GATEWAY), .limit = draw(3)},
        {.target = text(target_of(bed)), .limit = draw(3), .honours = draw(2)}};
    struct lk_job_batch job_batch = {.ends = &end,
                                     .end_count = draw(2),
                                     .marks = &given,
                                     .mark_count = draw(2),
                                     .actions = &action,
                                     .action_count = draw(3) == 0,
                                     .wants = wants,
                                     .want_count = draw(3),
                                     .lease_ms = draw(2) ? 1 : HOUR_MS};

    end.left = draw(2);
    apply_work(bed, &job_batch);
    if (job_batch.job_count) {
        lk_job_free(held);
        *held = job_batch.jobs[--job_batch.job_count];
    }
    lk_job_batch_clear(&job_batch);
}

/* C27, C29, C31: operations and requests never part, also over restarts. */
static void requests_stand_as_their_operations_do_whatever_happens(void **state)
{
    struct bed *bed = *state;
    if (!is_embedded(bed)) {
        skip();
    }
    struct lk_job held = {0};

    for (seed = 1; seed <= 3; seed++) {
        uint64_t first = seed;
        for (int step = 0; step < STEPS; step++) {
            if (draw(2)) {
                step_op(bed, &held);
            } else {
                step_work(bed, &held);
            }
            if (draw(40) == 0) {
                expect_clean(bed);
            }
            if (draw(200) == 0) {
                struct lk_store_stats before = stats_of(bed);
                bed_reopen(bed);
                struct lk_store_stats after = stats_of(bed);
                assert_memory_equal(before.jobs, after.jobs,
                                    sizeof(before.jobs));
            }
        }
        seed = first;
    }
    lk_job_free(&held);
}

#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, request_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(whoever_asks_for_an_accepted_operation_is_told_so),
        TEST(an_accept_is_told_what_a_claim_would_be),
        TEST(a_leased_request_runs_under_a_token_of_its_own),
        TEST(a_completed_request_is_delivered_in_the_same_step),
        TEST(a_request_that_is_put_back_gets_another_token),
        TEST(what_the_gateway_returns_waits_for_a_word_of_its_courier),
        TEST(what_the_gateway_returns_is_leased_again_when_its_courier_is_lost),
        TEST(what_the_gateway_returns_is_not_uncertain_any_more),
        TEST(what_the_gateway_returns_can_be_given_up),
        TEST(waiters_are_woken_when_a_request_ends),
        TEST(a_lost_request_that_was_never_called_is_leased_again),
        TEST(a_lost_request_that_was_called_is_uncertain),
        TEST(a_lost_request_that_may_run_again_is_leased_again),
        TEST(a_gateway_that_lives_keeps_its_request_without_a_courier),
        TEST(a_mark_extends_the_operation_too),
        TEST(a_request_that_was_never_sent_ends_with_the_couriers_answer),
        TEST(a_request_that_may_have_run_is_uncertain_when_given_up),
        TEST(what_the_gateway_never_took_is_not_uncertain),
        TEST(a_delivery_that_the_store_has_not_seen_is_uncertain),
        TEST(a_resolved_request_is_over),
        TEST(what_is_only_accepted_can_be_resolved_too),
        TEST(a_released_request_is_dropped_and_can_be_accepted_anew),
        TEST(a_claim_that_reexecutes_takes_an_uncertain_request_over),
        TEST(a_request_that_was_sent_stays_so_when_it_is_dropped),
        TEST(a_holder_that_doubts_and_lives_on_takes_its_request_along),
        TEST(a_doubted_request_that_may_run_again_is_still_the_couriers),
        TEST(actions_on_a_request_are_for_its_operation),
        TEST(jobs_of_the_app_outlive_the_request),
        TEST(an_export_shows_what_is_queued_and_no_import_takes_it),
        TEST(a_restored_copy_starts_nothing_for_a_while),
        TEST(a_request_is_called_once_the_gateway_asks_for_its_lock),
        TEST(a_lost_request_that_the_gateway_never_had_runs_again),
        TEST(a_lost_request_that_the_gateway_had_is_uncertain),
        TEST(requests_stand_as_their_operations_do_whatever_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
