/*
 * job_bed.h - short words for what the tests of jobs do. Each test has a target
 * of its own, so that a store may be shared.
 */
#ifndef LK_TEST_JOB_BED_H
#define LK_TEST_JOB_BED_H

#include "tests/store/fixture.h"

enum { LONG_MS = 3600 * 1000 };

/* A lease that is lost at once is awaited, never slept for. */
enum { SHORT_MS = 1 };

HELPER const char *target_of(struct bed *bed)
{
    return bed->tenant + strlen("tenant-"); /* digits and a hyphen */
}

HELPER struct lk_call call_of(struct bed *bed, const char *name)
{
    return (struct lk_call){
        .name = text(name),
        .target = text(target_of(bed)),
        .method = LK_SLICE("POST"),
        .path = LK_SLICE("/v1/charges?wait=1"),
        .headers = LK_SLICE("Content-Type: application/json\r\n"),
        .body = LK_SLICE("{\"amount\": 1}\0\xff"),
    };
}

HELPER void enqueue(struct bed *bed, const char *key, uint64_t token,
                    const char *name, enum lk_verdict verdict)
{
    struct lk_call call = call_of(bed, name);
    struct lk_op op = with_token(bed, LK_EVENT_ENQUEUE, key, token);

    op.call = &call;
    say(bed, op, verdict);
}

/* An operation with one job; the token of its claim. */
HELPER uint64_t leave_job(struct bed *bed, const char *key, const char *name)
{
    uint64_t token = claim_new(bed, key, "app");

    enqueue(bed, key, token, name, LK_VERDICT_DONE);
    return token;
}

HELPER struct lk_outcome accept(struct bed *bed, const char *key,
                                bool repeatable, enum lk_verdict verdict)
{
    struct lk_call call = call_of(bed, "");
    struct lk_op op = op_on(bed, LK_EVENT_ACCEPT, key);

    call.target = LK_SLICE(LK_TARGET_GATEWAY);
    call.repeatable = repeatable;
    op.call = &call;
    return say(bed, op, verdict);
}

/* ---- The courier ----------------------------------------------------------
 */

HELPER struct lk_batch work_batch(struct bed *bed,
                                  struct lk_job_batch *job_batch)
{
    return (struct lk_batch){.job_batch = job_batch,
                             .lane =
                                 bed->store->job_lanes ? bed->store->lanes : 0};
}

HELPER void apply_work(struct bed *bed, struct lk_job_batch *job_batch)
{
    struct lk_batch batch = work_batch(bed, job_batch);

    job_batch->status = LK_INVALID;
    bed->store->class->apply(bed->store, &batch);
    lk_batch_clear(&batch);
    if (job_batch->status) {
        fail_msg("work: %s: %s", latchkey_status_name(job_batch->status),
                 job_batch->error ? job_batch->error : "");
    }
}

/* At most `limit` jobs of one target; the caller clears the work. */
HELPER struct lk_job_batch lease_of(struct bed *bed, const char *target,
                                    size_t limit, bool honours,
                                    uint64_t lease_ms)
{
    struct lk_job_want want = {
        .target = text(target), .limit = limit, .honours = honours};
    struct lk_job_batch job_batch = {
        .wants = &want, .want_count = 1, .lease_ms = lease_ms};

    apply_work(bed, &job_batch);
    job_batch.wants = NULL;
    job_batch.want_count = 0;
    return job_batch;
}

HELPER struct lk_job take(struct bed *bed, const char *target, bool honours,
                          uint64_t lease_ms)
{
    struct lk_job_batch job_batch = lease_of(bed, target, 1, honours, lease_ms);

    if (job_batch.job_count != 1) {
        fail_msg("%zu jobs of %s were leased, not 1", job_batch.job_count,
                 target);
    }
    struct lk_job job = job_batch.jobs[0];
    job_batch.job_count = 0; /* its text is the caller's now */
    lk_job_batch_clear(&job_batch);
    return job;
}

HELPER struct lk_job take_job(struct bed *bed)
{
    return take(bed, target_of(bed), false, LONG_MS);
}

HELPER void expect_nothing_due(struct bed *bed, const char *target)
{
    struct lk_job_batch job_batch = lease_of(bed, target, 10, true, LONG_MS);

    assert_int_equal(job_batch.job_count, 0);
    lk_job_batch_clear(&job_batch);
}

/* Whether it was stale. */
HELPER bool give_end(struct bed *bed, struct lk_job_end end)
{
    struct lk_job_batch job_batch = {.ends = &end, .end_count = 1};

    apply_work(bed, &job_batch);
    return end.stale;
}

HELPER struct lk_job_end end_of(const struct lk_job *job, enum lk_end how)
{
    return (struct lk_job_end){.id = job->id,
                               .attempt = job->attempts,
                               .end = how,
                               .reason = LK_SLICE("as the test says"),
                               .left = how != LK_END_RETURN};
}

HELPER bool finish(struct bed *bed, const struct lk_job *job, enum lk_end how)
{
    return give_end(bed, end_of(job, how));
}

HELPER bool mark(struct bed *bed, const struct lk_job *job, bool called,
                 uint64_t lease_ms)
{
    struct lk_job_mark given = {.id = job->id,
                                .attempt = job->attempts,
                                .called = called,
                                .lease_ms = lease_ms};
    struct lk_job_batch job_batch = {.marks = &given, .mark_count = 1};

    apply_work(bed, &job_batch);
    return given.stale;
}

HELPER enum lk_status give_action(struct bed *bed, enum lk_job_action_kind what,
                                  uint64_t id, unsigned attempt)
{
    struct lk_job_action given = {.kind = what,
                                  .id = id,
                                  .attempt = attempt,
                                  .target = text(target_of(bed)),
                                  .who = LK_SLICE("oncall"),
                                  .why = LK_SLICE("ticket 4711")};
    struct lk_job_batch job_batch = {.actions = &given, .action_count = 1};

    apply_work(bed, &job_batch);
    return given.status_out;
}

/* Until the lease is lost. */
HELPER void outlive(struct bed *bed, const struct lk_job *job)
{
    await_store_time(bed, job->due_ms + 1);
}

/* ---- What is shown --------------------------------------------------------
 */

HELPER struct lk_job job_of(struct bed *bed, uint64_t id)
{
    struct lk_job job;

    assert_int_equal(bed->store->class->job(bed->store, id, &job, NULL, NULL),
                     LK_OK);
    return job;
}

HELPER enum lk_job_state state_of(struct bed *bed, uint64_t id)
{
    struct lk_job job = job_of(bed, id);
    enum lk_job_state state = job.state;

    lk_job_free(&job);
    return state;
}

HELPER void expect_job(struct bed *bed, uint64_t id, enum lk_job_state state)
{
    enum lk_job_state found = state_of(bed, id);

    if (found != state) {
        fail_msg("the job is %s, not %s", lk_job_state_word(found),
                 lk_job_state_word(state));
    }
}

struct history {
    size_t count;
    unsigned numbers[16];
    unsigned statuses[16];
    bool called[16];
    size_t body_len;
};

HELPER bool add_attempt(void *context, const struct lk_attempt *attempt)
{
    struct history *history = context;

    assert_true(history->count < 16);
    history->numbers[history->count] = attempt->number;
    history->statuses[history->count] = attempt->status;
    history->called[history->count] = attempt->called;
    history->body_len = attempt->body.len;
    history->count++;
    return true;
}

HELPER struct history history_of(struct bed *bed, uint64_t id)
{
    struct history history = {0};
    struct lk_job job;

    assert_int_equal(
        bed->store->class->job(bed->store, id, &job, add_attempt, &history),
        LK_OK);
    lk_job_free(&job);
    return history;
}

struct found {
    size_t count;
    uint64_t ids[256];
};

HELPER bool add_found(void *context, const struct lk_job *job)
{
    struct found *found = context;

    assert_true(found->count < 256);
    found->ids[found->count++] = job->id;
    return true;
}

/* Every page of a query. */
HELPER struct found find_jobs(struct bed *bed, struct lk_jobs_query query)
{
    struct found found = {0};
    uint64_t next = 0;

    query.limit = query.limit ? query.limit : 100;
    do {
        size_t before = found.count;
        query.cursor = next;
        assert_int_equal(bed->store->class->jobs(bed->store, &query, add_found,
                                                 &found, &next),
                         LK_OK);
        assert_true(found.count - before <= query.limit);
    } while (next);
    return found;
}

#endif
