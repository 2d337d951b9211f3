/* digest.c - what comes out of the courier's work: ends that are stored, marks
 * that are confirmed or stale, jobs that are leased. */
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
    courier->later_ms = courier->now_ms + LATER_MS;
    lk_errands_add(&courier->later, errand);
}

static void say_failure(const struct lk_courier *courier)
{
    const struct lk_work *work = &courier->work;

    if (courier->work_fails == 1) {
        lk_log(LK_LOG_WARN, "courier-store-failed", "status=%s error=\"%s\"",
               latchkey_status_name(work->status),
               work->error ? work->error : latchkey_status_text(work->status));
    }
}

/* At the end nothing leaves any more: the store is told so, whether it has the
 * mark or not. */
static void take_back_mark(struct lk_courier *courier, struct lk_errand *errand)
{
    if (courier->stopping) {
        errand->outlet->busy--;
        lk_errand_return(courier, errand, 0, "the courier stops");
    } else {
        lk_errands_add(&courier->marking, errand);
    }
}

/*
 * Nothing of it is confirmed: all of it is given again, later. What failed goes
 * behind the rest, in smaller pieces, so that one end that cannot be stored
 * does not keep the others.
 */
static void take_back(struct lk_courier *courier)
{
    struct lk_work *work = &courier->work;
    uint64_t wait_ms = RETRY_FIRST_MS;

    for (size_t i = 0; i < work->end_count; i++) {
        lk_errands_add(&courier->ended, courier->end_errands[i]);
    }
    for (size_t i = 0; i < courier->mark_queued; i++) {
        take_back_mark(courier, courier->mark_errands[i]);
    }
    for (unsigned i = 0; i < courier->work_fails && wait_ms < RETRY_MOST_MS;
         i++) {
        wait_ms *= 2;
    }
    if (courier->stopping && wait_ms > RETRY_STOPPING_MS) {
        wait_ms = RETRY_STOPPING_MS;
    }
    courier->work_fails++;
    courier->unsure = true;
    courier->renew_ms = 0;
    courier->retry_ms = courier->now_ms + wait_ms / 2 +
                        lk_chance_next(&courier->chance) % wait_ms;
    if (work->status != LK_UNAVAILABLE && work->status != LK_UNKNOWN) {
        courier->end_limit = (courier->end_limit + 1) / 2;
    }
    say_failure(courier);
}

static void take_ends(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->work.end_count; i++) {
        struct lk_errand *errand = courier->end_errands[i];
        if (courier->ends[i].again) {
            put_off(courier, errand);
            continue;
        }
        if (errand->returned || errand->result.end == LK_END_RETRY) {
            lower(&errand->outlet->next_ask_ms,
                  later(courier->now_ms, errand->delay_ms));
        }
        lk_errand_free(courier, errand);
    }
    if (courier->work.end_count) {
        lk_fault_point("courier_recorded");
    }
}

/* Somebody else has the job. What has not left does not leave. */
static void lose(struct lk_courier *courier, struct lk_errand *errand)
{
    struct lk_outlet *outlet = errand->outlet;

    errand->lost = true;
    if (errand->state == LK_ERRAND_READY) {
        lk_errands_remove(&outlet->ready, errand);
    } else if (errand->state == LK_ERRAND_MARKING) {
        if (!lk_errands_remove(&courier->marking, errand)) {
            lk_errands_remove(&courier->later, errand);
        }
        outlet->busy--;
    } else {
        return;
    }
    lk_errand_free(courier, errand);
}

/* A renewal is simply due again. */
static void keep_for_later(struct lk_courier *courier, struct lk_errand *errand,
                           bool queued)
{
    if (queued) {
        put_off(courier, errand);
    } else {
        lower(&courier->renew_ms, courier->now_ms + LATER_MS);
    }
}

static void take_marks(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->work.mark_count; i++) {
        const struct lk_job_mark *mark = &courier->marks[i];
        struct lk_errand *errand = courier->mark_errands[i];
        if (mark->stale) {
            lose(courier, errand);
            continue;
        }
        if (mark->again) {
            keep_for_later(courier, errand, i < courier->mark_queued);
            continue;
        }
        errand->lease_ms = courier->given_ms;
        if (i < courier->mark_queued) {
            errand->marked = true;
            lk_calls_marked(courier, errand);
        }
    }
}

static struct lk_outlet *outlet_of(const struct lk_courier *courier,
                                   const struct lk_job *job, size_t *want)
{
    for (*want = 0; *want < courier->work.want_count; ++*want) {
        if (latchkey_slice_equal(courier->wants[*want].target, job->target)) {
            return courier->want_outlets[*want];
        }
    }
    return NULL;
}

/* The circuit may have opened since the lease was asked for. */
static void take_job(struct lk_courier *courier, struct lk_outlet *outlet,
                     struct lk_job *job)
{
    struct lk_errand *errand = lk_errand_make(courier, outlet, job);

    if (!errand) {
        return; /* out of memory: the lease runs out */
    }
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
 * there was room for. */
static void set_next_ask(struct lk_courier *courier)
{
    const struct lk_work *work = &courier->work;
    uint64_t wait_ms = work->wait_ms;

    if (courier->store->shared && wait_ms > courier->settings->poll_ms) {
        wait_ms = courier->settings->poll_ms;
    }
    for (size_t i = 0; i < work->want_count; i++) {
        struct lk_outlet *outlet = courier->want_outlets[i];
        uint64_t wait = wait_ms || outlet->leased ? wait_ms : IDLE_MS;
        bool all = outlet->leased >= courier->wants[i].limit;
        outlet->next_ask_ms =
            all || courier->woken_since ? 0 : later(courier->now_ms, wait);
    }
}

static void take_jobs(struct lk_courier *courier)
{
    struct lk_work *work = &courier->work;
    size_t want;

    for (size_t i = 0; i < work->want_count; i++) {
        courier->want_outlets[i]->leased = 0;
    }
    if (work->job_count) {
        lk_fault_point("courier_leased");
    }
    for (size_t i = 0; i < work->job_count; i++) {
        struct lk_outlet *outlet = outlet_of(courier, &work->jobs[i], &want);
        if (outlet) {
            outlet->leased++;
            take_job(courier, outlet, &work->jobs[i]);
        }
    }
    if (work->job_count) {
        lower(&courier->renew_ms,
              courier->given_ms + courier->settings->lease_ms / 3);
    }
    set_next_ask(courier);
    if (work->lapsed) {
        lk_log(LK_LOG_ERROR, "jobs-uncertain",
               "count=%llu reason=\"the courier was lost after it had called\"",
               (unsigned long long)work->lapsed);
    }
}

void lk_dispatch_done(struct lk_courier *courier)
{
    courier->under_way = false;
    courier->done_ms = courier->now_ms;
    if (courier->work.status) {
        take_back(courier);
    } else {
        if (courier->work_fails) {
            lk_log(LK_LOG_INFO, "courier-store-back", "failures=%u",
                   courier->work_fails);
        }
        courier->work_fails = 0;
        courier->unsure = false;
        courier->retry_ms = 0;
        courier->end_limit = courier->end_limit > LK_WORK_ENDS / 2
                                 ? LK_WORK_ENDS
                                 : 2 * courier->end_limit;
        take_ends(courier);
        take_marks(courier);
        take_jobs(courier);
    }
    lk_work_clear(&courier->work);
}
