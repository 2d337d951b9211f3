/* digest.c - what comes out of a step: ends that are stored, marks that are
 * confirmed or stale, jobs that are leased. */
#include "courier/courier.h"
#include "daemon/log.h"
#include "store/fault.h"

enum {
    RETRY_FIRST_MS = 50,
    RETRY_MOST_MS = 5000,
    RETRY_STOPPING_MS = 200,
    LATER_MS = 20, /* a row that another transaction has */
    IDLE_MS = 2,   /* told of a job that is due, but not given it */
};

static void lower(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

static uint64_t later(uint64_t ms, uint64_t wait_ms)
{
    return wait_ms > UINT64_MAX - ms ? UINT64_MAX : ms + wait_ms;
}

static void put_off(struct lk_courier *courier, struct lk_errand *errand)
{
    if (!courier->later.head) {
        courier->later_ms = courier->now_ms + LATER_MS;
    }
    lk_errands_add(&courier->later, errand);
}

/* ---- a step that failed -------------------------------------------------- */

static void say_failure(const struct lk_courier *courier,
                        const struct lk_job_batch *job_batch)
{
    if (courier->work_fails == 1) {
        lk_log(LK_LOG_WARN, "courier-store-failed", "status=%s error=\"%s\"",
               latchkey_status_name(job_batch->status),
               job_batch->error ? job_batch->error
                                : latchkey_status_text(job_batch->status));
    }
}

static void set_retry(struct lk_courier *courier, struct lk_courier_step *step)
{
    uint64_t wait_ms = RETRY_FIRST_MS;

    for (unsigned i = 0; i < step->fails && wait_ms < RETRY_MOST_MS; i++) {
        wait_ms *= 2;
    }
    if (courier->stopping && wait_ms > RETRY_STOPPING_MS) {
        wait_ms = RETRY_STOPPING_MS;
    }
    step->fails++;
    step->retry_ms = courier->now_ms + wait_ms / 2 +
                     lk_chance_next(&courier->chance) % wait_ms;
}

/* It was given alone, and can never be stored. */
static void drop_end(struct lk_courier *courier, struct lk_errand *errand)
{
    char target[LK_LOG_QUOTED];

    lk_log(LK_LOG_ERROR, "job-end-refused",
           "id=%llu attempt=%u target=%s note=\"its lease runs out\"",
           (unsigned long long)errand->job.id, errand->job.attempts,
           lk_log_quote(errand->job.target, target, sizeof(target)));
    errand->step = NULL;
    lk_errand_free(courier, errand);
}

/* What the store never takes, whoever asks: one of them must be the reason. */
static void split_ends(struct lk_courier *courier, struct lk_courier_step *step)
{
    struct lk_job_batch *job_batch = &step->job_batch;
    bool alone = job_batch->end_count == 1 && !job_batch->mark_count &&
                 !job_batch->want_count;

    for (size_t i = 0; i < job_batch->end_count; i++) {
        step->end_errands[i]->piece = (job_batch->end_count + 1) / 2;
    }
    if (alone) {
        drop_end(courier, step->end_errands[0]);
        job_batch->end_count = 0;
    }
}

/*
 * Nothing of it is confirmed: all of it is given again, by whichever step is
 * free. What failed goes behind the rest.
 */
static void take_back(struct lk_courier *courier, struct lk_courier_step *step)
{
    const struct lk_job_batch *job_batch = &step->job_batch;

    set_retry(courier, step);
    if (job_batch->status == LK_INVALID && job_batch->end_count) {
        step->fails = 0;
        step->retry_ms = 0;
        split_ends(courier, step);
    }
    for (size_t i = 0; i < job_batch->end_count; i++) {
        lk_errand_leave_step(courier, step->end_errands[i]);
    }
    for (size_t i = 0; i < job_batch->mark_count; i++) {
        lk_errand_leave_step(courier, step->mark_errands[i]);
    }
    for (size_t i = 0; i < job_batch->want_count; i++) {
        step->want_outlets[i]->next_ask_ms = 0;
    }
    courier->work_fails++;
    courier->unsure = true;
    courier->failed_at = courier->works;
    courier->renew_ms = 0;
    say_failure(courier, job_batch);
}

/* One that was given before the last failure proves nothing. */
static void note_success(struct lk_courier *courier,
                         struct lk_courier_step *step)
{
    step->fails = 0;
    step->retry_ms = 0;
    if (step->number <= courier->failed_at) {
        return;
    }
    if (courier->work_fails) {
        lk_log(LK_LOG_INFO, "courier-store-back", "failures=%u",
               courier->work_fails);
    }
    courier->work_fails = 0;
    courier->unsure = false;
}

/* ---- ends and marks ------------------------------------------------------ */

static void take_ends(struct lk_courier *courier, struct lk_courier_step *step)
{
    for (size_t i = 0; i < step->job_batch.end_count; i++) {
        struct lk_errand *errand = step->end_errands[i];
        errand->step = NULL;
        if (step->ends[i].again) {
            put_off(courier, errand);
            continue;
        }
        if (errand->returned || errand->result.end == LK_END_RETRY) {
            lower(&errand->outlet->next_ask_ms,
                  later(courier->now_ms, errand->delay_ms));
        }
        lk_errand_free(courier, errand);
    }
    if (step->job_batch.end_count) {
        lk_fault_point("courier_recorded");
    }
}

/* Somebody else has the job. What has not left does not leave; of what has, the
 * end will be stale. */
static void lose(struct lk_courier *courier, struct lk_errand *errand)
{
    struct lk_outlet *outlet = errand->outlet;

    errand->lost = true;
    if (errand->state == LK_ERRAND_READY) {
        lk_errands_remove(&outlet->ready, errand);
    } else if (errand->state == LK_ERRAND_MARKING) {
        outlet->busy--;
    } else {
        lk_errand_leave_step(courier, errand);
        return;
    }
    errand->step = NULL;
    lk_errand_free(courier, errand);
}

static void take_mark(struct lk_courier *courier, struct lk_courier_step *step,
                      struct lk_errand *errand)
{
    errand->step = NULL;
    errand->lease_ms = lk_step_lease_ms(step);
    errand->marked = true;
    lk_calls_marked(courier, errand);
}

/* What another transaction has is simply due again. */
static void take_renewal(struct lk_courier *courier,
                         struct lk_courier_step *step, struct lk_errand *errand,
                         bool again)
{
    if (again) {
        lower(&courier->renew_ms, courier->now_ms + LATER_MS);
    } else {
        errand->lease_ms = lk_step_lease_ms(step);
    }
    lk_errand_leave_step(courier, errand);
}

static void take_marks(struct lk_courier *courier, struct lk_courier_step *step)
{
    for (size_t i = 0; i < step->job_batch.mark_count; i++) {
        const struct lk_job_mark *mark = &step->marks[i];
        struct lk_errand *errand = step->mark_errands[i];
        if (mark->stale) {
            lose(courier, errand);
        } else if (i >= step->mark_queued) {
            take_renewal(courier, step, errand, mark->again);
        } else if (mark->again && courier->stopping) {
            lk_errand_leave_step(courier, errand);
        } else if (mark->again) {
            errand->step = NULL;
            put_off(courier, errand);
        } else {
            take_mark(courier, step, errand);
        }
    }
}

/* ---- leases -------------------------------------------------------------- */

/* want_count: none of them. */
static size_t want_of(const struct lk_courier_step *step,
                      const struct lk_job *job)
{
    size_t i = 0;

    while (i < step->job_batch.want_count &&
           !latchkey_slice_equal(step->wants[i].target, job->target)) {
        i++;
    }
    return i;
}

/* The circuit may have opened since the lease was asked for; and whether the
 * key is honoured may have changed: what counts is what the store was told. */
static void take_job(struct lk_courier *courier,
                     const struct lk_courier_step *step, size_t want,
                     struct lk_job *job)
{
    struct lk_outlet *outlet = step->want_outlets[want];
    struct lk_errand *errand = lk_errand_make(courier, step, outlet, job);

    outlet->leased++;
    if (!errand) {
        return; /* out of memory: the lease runs out */
    }
    errand->marked = step->wants[want].honours;
    enum lk_circuit_state circuit =
        lk_circuit_look(&outlet->circuit, courier->now_ms);
    if (courier->stopping || !outlet->configured) {
        lk_errand_return(courier, errand, 0, "the courier stops");
    } else if (circuit == LK_CIRCUIT_OPEN ||
               (circuit == LK_CIRCUIT_HALF_OPEN && outlet->trials)) {
        lk_errand_return(courier, errand, outlet->target->circuit_open_ms,
                         "the target's circuit is open");
    } else {
        errand->trial = circuit == LK_CIRCUIT_HALF_OPEN;
        outlet->trials += errand->trial;
        lk_errands_add(&outlet->ready, errand);
    }
}

/* When each target is to be asked again: at once where as much was leased as
 * there was room for. What has come up since may be earlier. */
static void set_next_ask(struct lk_courier *courier,
                         const struct lk_courier_step *step)
{
    uint64_t wait_ms = step->job_batch.wait_ms;

    if (courier->store->shared && wait_ms > courier->settings->poll_ms) {
        wait_ms = courier->settings->poll_ms;
    }
    for (size_t i = 0; i < step->job_batch.want_count; i++) {
        struct lk_outlet *outlet = step->want_outlets[i];
        uint64_t wait = wait_ms || outlet->leased ? wait_ms : IDLE_MS;
        bool all = outlet->leased >= step->wants[i].limit;
        lower(&outlet->next_ask_ms, all ? 0 : later(courier->now_ms, wait));
    }
}

static void take_jobs(struct lk_courier *courier, struct lk_courier_step *step)
{
    struct lk_job_batch *job_batch = &step->job_batch;

    for (size_t i = 0; i < job_batch->want_count; i++) {
        step->want_outlets[i]->leased = 0;
    }
    if (job_batch->job_count) {
        lk_fault_point("courier_leased");
    }
    for (size_t i = 0; i < job_batch->job_count; i++) {
        size_t want = want_of(step, &job_batch->jobs[i]);
        if (want < job_batch->want_count) {
            take_job(courier, step, want, &job_batch->jobs[i]);
        }
    }
    set_next_ask(courier, step);
    if (job_batch->lapsed) {
        lk_log(LK_LOG_ERROR, "jobs-uncertain",
               "count=%llu reason=\"the courier was lost after it had called\"",
               (unsigned long long)job_batch->lapsed);
    }
}

void lk_dispatch_done(struct lk_courier *courier, struct lk_courier_step *step)
{
    step->under_way = false;
    courier->moved_ms = courier->now_ms;
    for (size_t i = 0; i < step->job_batch.want_count; i++) {
        step->want_outlets[i]->asked = false;
    }
    if (step->job_batch.status) {
        take_back(courier, step);
    } else {
        note_success(courier, step);
        take_ends(courier, step);
        take_marks(courier, step);
        take_jobs(courier, step);
        if (step->job_batch.mark_count || step->job_batch.job_count) {
            lower(&courier->renew_ms,
                  lk_step_lease_ms(step) + courier->settings->lease_ms / 3);
        }
    }
    lk_job_batch_clear(&step->job_batch);
}
