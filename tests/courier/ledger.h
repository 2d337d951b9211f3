/* ledger.h - a store of jobs in memory, for tests of the courier: it does what
 * store/jobs.h says, fails when it is told to, and remembers what it was asked.
 */
#ifndef LK_TEST_LEDGER_H
#define LK_TEST_LEDGER_H

#include "daemon/outbox.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not every test needs all of them. */
#define HELPER __attribute__((unused)) static

enum { LEDGER_JOBS = 64, LEDGER_PLANS = 16, LEDGER_KEPT = 4 };

struct ledger_job {
    char target[32];
    char path[32];
    enum lk_job_state state;
    unsigned attempts;
    unsigned forgiven;
    bool called;
    bool sent;
    bool doubt;
    bool repeatable;
    bool stolen; /* somebody else has it: what is shown for it is stale */
    bool locked; /* somebody's transaction has it: nothing is noted */
    uint64_t created_ms;
    uint64_t due_ms;
    /* As it ended, last: */
    unsigned ends;
    enum lk_end end;
    uint64_t delay_ms;
    unsigned status;
    char reason[256];
    char provider_id[256];
    char response[1024];
    unsigned stale_ends;
    unsigned marks;
    bool put_off_end; /* it was somebody else's once, see `others` */
    bool put_off_mark;
};

/* What becomes of the next work: done or not, and what is said of it. */
struct ledger_plan {
    bool apply;
    enum lk_status status;
};

struct ledger {
    struct lk_store store;
    pthread_mutex_t mutex;
    pthread_cond_t moved; /* after each work */
    struct ledger_job jobs[LEDGER_JOBS];
    size_t job_count;
    struct ledger_plan plans[LEDGER_PLANS];
    size_t plan_count;
    bool held; /* works are kept until they are let go */
    struct lk_job_batch
        *stored[LEDGER_KEPT]; /* in the order in which they came */
    size_t kept_count;
    uint64_t now_ms;
    unsigned works;
    enum lk_status last; /* what was said of the work before */
    unsigned rash;       /* works after a failure, with ends and wants */
    bool others;         /* each row is somebody else's, once */
    size_t largest_want;
    size_t wants;
    /* Called under the mutex with each work before it is done. */
    void (*look)(struct ledger *ledger, const struct lk_job_batch *job_batch);
    void *context;
};

HELPER struct ledger_job *ledger_job(struct ledger *ledger, uint64_t id)
{
    return &ledger->jobs[id - 1];
}

HELPER bool ledger_is_current(const struct ledger_job *job, unsigned attempt)
{
    return !job->stolen && job->state == LK_JOB_LEASED &&
           job->attempts == attempt;
}

HELPER void ledger_copy(char *to, size_t size, struct lk_slice from)
{
    snprintf(to, size, "%.*s", (int)from.len, from.len ? from.data : "");
}

HELPER void ledger_end(struct ledger *ledger, struct lk_job_end *end)
{
    static const enum lk_job_state states[] = {
        [LK_END_DELIVERED] = LK_JOB_DELIVERED, [LK_END_RETRY] = LK_JOB_WAITING,
        [LK_END_RETURN] = LK_JOB_WAITING,      [LK_END_DEAD] = LK_JOB_DEAD,
        [LK_END_UNCERTAIN] = LK_JOB_UNCERTAIN,
    };
    struct ledger_job *job = ledger_job(ledger, end->id);

    end->again = job->locked || (ledger->others && !job->put_off_end);
    if (end->again) {
        job->put_off_end = true;
        return;
    }
    end->stale = !ledger_is_current(job, end->attempt);
    if (end->stale) {
        job->stale_ends++;
        return;
    }
    job->state = states[end->end];
    job->forgiven += end->end == LK_END_RETURN;
    job->sent = job->sent || end->left;
    job->doubt = job->doubt || end->doubt;
    job->called = false;
    job->due_ms = ledger->now_ms + end->delay_ms;
    job->ends++;
    job->end = end->end;
    job->delay_ms = end->delay_ms;
    job->status = end->status;
    ledger_copy(job->reason, sizeof(job->reason), end->reason);
    ledger_copy(job->provider_id, sizeof(job->provider_id), end->provider_id);
    ledger_copy(job->response, sizeof(job->response), end->response.body);
}

HELPER void ledger_mark(struct ledger *ledger, struct lk_job_mark *mark)
{
    struct ledger_job *job = ledger_job(ledger, mark->id);

    mark->again = ledger->others && !job->put_off_mark;
    if (mark->again) {
        job->put_off_mark = true;
        return;
    }
    mark->stale = !ledger_is_current(job, mark->attempt);
    if (!mark->stale) {
        job->called = job->called || mark->called;
        job->due_ms = ledger->now_ms + mark->lease_ms;
        job->marks++;
    }
}

HELPER void ledger_lease(struct ledger *ledger, struct lk_job_batch *job_batch,
                         uint64_t id)
{
    struct ledger_job *row = ledger_job(ledger, id);
    struct lk_job *job = lk_job_batch_add(job_batch);

    row->state = LK_JOB_LEASED;
    row->attempts++;
    row->called = false;
    row->due_ms = ledger->now_ms + job_batch->lease_ms;
    *job = (struct lk_job){
        .id = id,
        .operation = {LK_SLICE("tenant"), LK_SLICE("POST /x"), LK_SLICE("key")},
        .number = 17,
        .token = 5,
        .run = 1,
        .name = strcmp(row->target, LK_TARGET_GATEWAY) ? LK_SLICE("job")
                                                       : LK_SLICE(""),
        .target = latchkey_slice(row->target),
        .method = LK_SLICE("POST"),
        .path = latchkey_slice(row->path),
        .body = LK_SLICE("{}"),
        .state = LK_JOB_LEASED,
        .attempts = row->attempts,
        .forgiven = row->forgiven,
        .sent = row->sent,
        .doubt = row->doubt,
        .repeatable = row->repeatable,
        .created_ms = row->created_ms,
        .now_ms = ledger->now_ms,
    };
}

HELPER void ledger_want(struct ledger *ledger, struct lk_job_batch *job_batch,
                        const struct lk_job_want *want)
{
    size_t count = 0;

    ledger->wants++;
    ledger->largest_want =
        want->limit > ledger->largest_want ? want->limit : ledger->largest_want;
    for (size_t i = 0; i < ledger->job_count && count < want->limit; i++) {
        struct ledger_job *job = &ledger->jobs[i];
        if (job->state == LK_JOB_WAITING && job->due_ms <= ledger->now_ms &&
            latchkey_slice_equal(want->target, latchkey_slice(job->target))) {
            ledger_lease(ledger, job_batch, i + 1);
            count++;
        }
    }
}

HELPER void ledger_apply(struct ledger *ledger, struct lk_job_batch *job_batch)
{
    for (size_t i = 0; i < job_batch->end_count; i++) {
        ledger_end(ledger, &job_batch->ends[i]);
    }
    for (size_t i = 0; i < job_batch->mark_count; i++) {
        ledger_mark(ledger, &job_batch->marks[i]);
    }
    for (size_t i = 0; i < job_batch->want_count; i++) {
        ledger_want(ledger, job_batch, &job_batch->wants[i]);
    }
    job_batch->wait_ms = UINT64_MAX; /* the test's clock stands still */
}

HELPER void ledger_do(struct ledger *ledger, struct lk_job_batch *job_batch)
{
    struct ledger_plan plan = {.apply = true, .status = LK_OK};

    if (ledger->look) {
        ledger->look(ledger, job_batch);
    }
    if (ledger->plan_count) {
        plan = ledger->plans[0];
        ledger->plan_count--;
        memmove(ledger->plans, ledger->plans + 1,
                ledger->plan_count * sizeof(plan));
    }
    ledger->works++;
    ledger->rash +=
        ledger->last && job_batch->end_count && job_batch->want_count;
    ledger->last = plan.status;
    if (plan.apply) {
        ledger_apply(ledger, job_batch);
    }
    job_batch->status = plan.status;
    job_batch->error = plan.status ? "as planned" : NULL;
}

HELPER void ledger_work(void *context, struct lk_job_batch *job_batch)
{
    struct ledger *ledger = context;

    pthread_mutex_lock(&ledger->mutex);
    if (ledger->held) {
        ledger->stored[ledger->kept_count++] = job_batch;
        pthread_cond_broadcast(&ledger->moved);
        pthread_mutex_unlock(&ledger->mutex);
        return;
    }
    ledger_do(ledger, job_batch);
    pthread_cond_broadcast(&ledger->moved);
    pthread_mutex_unlock(&ledger->mutex);
    job_batch->done(job_batch);
}

/* Lets go one of those that are kept; what comes later is still kept. */
HELPER void ledger_let_one_go(struct ledger *ledger, size_t index)
{
    pthread_mutex_lock(&ledger->mutex);
    struct lk_job_batch *job_batch = ledger->stored[index];
    ledger->kept_count--;
    memmove(&ledger->stored[index], &ledger->stored[index + 1],
            (ledger->kept_count - index) * sizeof(job_batch));
    ledger_do(ledger, job_batch);
    pthread_cond_broadcast(&ledger->moved);
    pthread_mutex_unlock(&ledger->mutex);
    job_batch->done(job_batch);
}

/* Works are kept from now on, or not any more: then all go that are kept. */
HELPER void ledger_hold(struct ledger *ledger, bool held)
{
    pthread_mutex_lock(&ledger->mutex);
    ledger->held = held;
    size_t count = held ? 0 : ledger->kept_count;
    pthread_mutex_unlock(&ledger->mutex);
    while (count--) {
        ledger_let_one_go(ledger, 0);
    }
}

HELPER void ledger_plan(struct ledger *ledger, bool apply,
                        enum lk_status status)
{
    ledger->plans[ledger->plan_count++] =
        (struct ledger_plan){.apply = apply, .status = status};
}

HELPER struct ledger_job *ledger_add(struct ledger *ledger, const char *target,
                                     const char *path)
{
    pthread_mutex_lock(&ledger->mutex);
    struct ledger_job *job = &ledger->jobs[ledger->job_count++];
    *job = (struct ledger_job){.state = LK_JOB_WAITING,
                               .created_ms = ledger->now_ms};
    snprintf(job->target, sizeof(job->target), "%s", target);
    snprintf(job->path, sizeof(job->path), "%s", path);
    pthread_mutex_unlock(&ledger->mutex);
    return job;
}

/* Waits until `is_so` holds, which is looked at after each work. */
HELPER void ledger_await(struct ledger *ledger,
                         bool (*is_so)(struct ledger *ledger, void *context),
                         void *context)
{
    pthread_mutex_lock(&ledger->mutex);
    while (!is_so(ledger, context)) {
        pthread_cond_wait(&ledger->moved, &ledger->mutex);
    }
    pthread_mutex_unlock(&ledger->mutex);
}

#endif
