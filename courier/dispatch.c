/*
 * dispatch.c - what the courier asks of the store: step by step, each with all
 * ends, marks and wants that there are; what comes up meanwhile forms the next.
 */
#include "courier/courier.h"

#include <stdlib.h>

/* Of one step, about: bodies that are leased, answers that are stored. */
enum { LEASE_BYTES = 16 << 20, ANSWER_BYTES = 8 << 20 };
enum { GATHER_MS = 3 };

static void lower(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

bool lk_dispatch_is_under_way(const struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->step_count; i++) {
        if (courier->steps[i].under_way) {
            return true;
        }
    }
    return false;
}

uint64_t lk_step_lease_ms(const struct lk_courier_step *step)
{
    return step->job_batch.lease_ms == step->courier->settings->lease_ms
               ? step->given_ms
               : 0;
}

/* ---- ends and marks ------------------------------------------------------ */

static void enter_step(struct lk_courier_step *step, struct lk_errand *errand)
{
    errand->step = step;
    lower(&step->oldest_ms, errand->lease_ms);
}

static void add_end(struct lk_courier_step *step, struct lk_errand *errand)
{
    struct lk_job_batch *job_batch = &step->job_batch;
    bool request = errand->outlet->gateway;

    enter_step(step, errand);
    step->end_errands[job_batch->end_count] = errand;
    step->ends[job_batch->end_count++] = (struct lk_job_end){
        .id = errand->job.id,
        .attempt = errand->job.attempts,
        .end = errand->returned ? LK_END_RETURN : errand->result.end,
        .delay_ms = errand->delay_ms,
        .status = errand->status,
        .provider_id = latchkey_buf_slice(&errand->provider_id),
        .reason = latchkey_slice(errand->result.reason),
        .answer = {.status = errand->status,
                   .headers = latchkey_buf_slice(&errand->headers),
                   .body = latchkey_buf_slice(&errand->body)},
        .left = errand->sent,
        .doubt = errand->result.doubt,
    };
    if (request && errand->result.end == LK_END_DEAD) {
        step->ends[job_batch->end_count - 1].status = 0; /* not the app's */
    }
}

void lk_dispatch_recall(struct lk_courier *courier)
{
    struct lk_errand *errand;

    while ((errand = lk_errands_take(&courier->later))) {
        lk_errands_add(errand->state == LK_ERRAND_ENDED ? &courier->ended
                                                        : &courier->marking,
                       errand);
    }
}

static void add_ends(struct lk_courier *courier, struct lk_courier_step *step)
{
    struct lk_errand *errand;
    size_t bytes = 0;
    size_t most = LK_JOB_BATCH_ENDS;

    while ((errand = courier->ended.head)) {
        most = errand->piece < most ? errand->piece : most;
        if (step->job_batch.end_count >= most || bytes >= ANSWER_BYTES) {
            break;
        }
        lk_errands_take(&courier->ended);
        bytes += errand->body.len + errand->headers.len;
        add_end(step, errand);
    }
}

static void add_mark(struct lk_courier_step *step, struct lk_errand *errand,
                     bool called)
{
    struct lk_job_batch *job_batch = &step->job_batch;

    enter_step(step, errand);
    step->mark_errands[job_batch->mark_count] = errand;
    step->marks[job_batch->mark_count++] = (struct lk_job_mark){
        .id = errand->job.id,
        .attempt = errand->job.attempts,
        .called = called && !errand->outlet->gateway,
        .lease_ms = job_batch->lease_ms,
    };
}

/*
 * Leases are renewed at a third of their time, so that one failure, and a slow
 * store, do not lose them. What is in another step is left to that one, which
 * says when it is due again.
 */
static void add_renewals(struct lk_courier *courier,
                         struct lk_courier_step *step)
{
    uint64_t third_ms = courier->settings->lease_ms / 3;

    if (courier->now_ms < courier->renew_ms) {
        return;
    }
    courier->renew_ms = UINT64_MAX;
    for (struct lk_errand *errand = courier->hand; errand;
         errand = errand->right) {
        bool running = errand->state == LK_ERRAND_RUNNING;
        if (errand->lost || errand->step ||
            (!running && errand->state != LK_ERRAND_READY)) {
            continue;
        }
        bool due = courier->now_ms >= errand->lease_ms + third_ms;
        bool fits = step->job_batch.mark_count < LK_JOB_BATCH_ENDS;
        if (due && fits) {
            add_mark(step, errand, running || errand->marked);
        } else {
            lower(&courier->renew_ms,
                  due ? courier->now_ms : errand->lease_ms + third_ms);
        }
    }
}

/* To the gateway, and where the key is not honoured, "called" is written down
 * before the call leaves. */
static void add_marks(struct lk_courier *courier, struct lk_courier_step *step)
{
    struct lk_errand *errand;

    while (step->job_batch.mark_count < LK_JOB_BATCH_ENDS &&
           (errand = lk_errands_take(&courier->marking))) {
        add_mark(step, errand, true);
    }
    step->mark_queued = step->job_batch.mark_count;
    add_renewals(courier, step);
}

/* ---- wants --------------------------------------------------------------- */

static bool make_room(struct lk_courier_step *step, size_t count)
{
    if (count <= step->want_cap) {
        return true;
    }
    void *wants = realloc(step->wants, count * sizeof(*step->wants));
    step->wants = wants ? wants : step->wants;
    void *outlets =
        realloc(step->want_outlets, count * sizeof(struct lk_outlet *));
    step->want_outlets = outlets ? outlets : step->want_outlets;
    if (!wants || !outlets) {
        return false;
    }
    step->want_cap = count;
    return true;
}

/* What makes a job of it due from now on lowers next_ask_ms again. */
static void add_want(struct lk_courier_step *step, struct lk_outlet *outlet,
                     size_t room)
{
    struct lk_job_batch *job_batch = &step->job_batch;

    outlet->asked = true;
    outlet->next_ask_ms = UINT64_MAX;
    step->want_outlets[job_batch->want_count] = outlet;
    step->wants[job_batch->want_count++] = (struct lk_job_want){
        .target = latchkey_slice(outlet->name),
        .limit = room,
        .honours = outlet->target->honours && !outlet->gateway,
    };
}

/* Where there is room for more than may be leased at once, each target gets
 * its share: none can keep the others waiting. */
static void share(struct lk_courier_step *step, uint64_t batch, size_t sum)
{
    for (size_t i = 0; sum > batch && i < step->job_batch.want_count; i++) {
        size_t *limit = &step->wants[i].limit;
        *limit = (size_t)(*limit * batch / sum);
        *limit = *limit ? *limit : 1;
    }
}

static size_t count_outlets(const struct lk_courier *courier)
{
    size_t count = 0;

    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        count++;
    }
    return count;
}

static struct lk_outlet *next_outlet(const struct lk_courier *courier,
                                     const struct lk_outlet *outlet)
{
    return outlet && outlet->next ? outlet->next : courier->outlets;
}

static bool is_late(const struct lk_courier *courier, uint64_t lease_ms)
{
    return courier->now_ms > lease_ms &&
           courier->now_ms - lease_ms >= courier->settings->lease_ms / 3 * 2;
}

static void note_errand(const struct lk_courier *courier,
                        struct lk_errand *errand)
{
    errand->outlet->late |= !errand->lost && is_late(courier, errand->lease_ms);
}

/* The process may have been stopped until just before it was given. */
static void note_step(const struct lk_courier *courier,
                      const struct lk_courier_step *step)
{
    if (!is_late(courier, step->oldest_ms)) {
        return;
    }
    for (size_t i = 0; i < step->job_batch.end_count; i++) {
        note_errand(courier, step->end_errands[i]);
    }
    for (size_t i = 0; i < step->job_batch.mark_count; i++) {
        note_errand(courier, step->mark_errands[i]);
    }
}

/*
 * Which targets have a lease that might seem lost to this step, though it is
 * not: because it is in another one, or behind an end that waits. A request
 * that is put off is no reason: whoever has its operation, for however long,
 * keeps it from being settled, too.
 */
static void note_late(const struct lk_courier *courier,
                      const struct lk_courier_step *step)
{
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        outlet->late = false;
    }
    for (size_t i = 0; i < courier->step_count; i++) {
        const struct lk_courier_step *other = &courier->steps[i];
        if (other != step && other->under_way) {
            note_step(courier, other);
        }
    }
    for (struct lk_errand *at = courier->ended.head; at; at = at->next) {
        note_errand(courier, at);
    }
    for (struct lk_errand *at = courier->later.head; at; at = at->next) {
        if (!at->outlet->gateway) {
            note_errand(courier, at);
        }
    }
}

/* Might a lease of ours seem lost to this step, of whatever target? */
static bool may_lease(const struct lk_courier *courier,
                      const struct lk_courier_step *step)
{
    bool busy = step->job_batch.end_count || step->job_batch.mark_count;

    for (size_t i = 0; i < courier->step_count; i++) {
        const struct lk_courier_step *other = &courier->steps[i];
        if (other == step || !other->under_way) {
            continue;
        }
        if (courier->now_ms - other->given_ms >=
            courier->settings->lease_ms / 3) {
            return false;
        }
        busy = true;
    }
    return !courier->stopping && !(courier->unsure && busy) &&
           courier->renew_ms > courier->now_ms;
}

/* Bytes of jobs that we have, or may get by what is under way. */
static size_t held_bytes(const struct lk_courier *courier)
{
    size_t bytes = courier->hand_bytes;

    for (size_t i = 0; i < courier->step_count; i++) {
        const struct lk_courier_step *step = &courier->steps[i];
        if (step->under_way && step->job_batch.want_count) {
            bytes += step->job_batch.body_max;
        }
    }
    return bytes;
}

/*
 * However much of the memory the calls of a slow target hold, another one gets
 * its share; and what one step may bring goes to another one first each time.
 */
static void add_wants(struct lk_courier *courier, struct lk_courier_step *step,
                      uint64_t *again_ms)
{
    bool scarce = held_bytes(courier) >= LK_HELD_BYTES / 2;
    size_t count = count_outlets(courier);
    size_t share_bytes = count ? LK_HELD_BYTES / 2 / count : 0;
    struct lk_outlet *outlet = courier->first;
    size_t sum = 0;

    if (!may_lease(courier, step) || !make_room(step, count)) {
        return;
    }
    note_late(courier, step);
    for (size_t i = 0; i < count; i++) {
        outlet = next_outlet(courier, outlet);
        bool full = scarce && outlet->bytes && outlet->bytes >= share_bytes;
        size_t room = full || outlet->late
                          ? 0
                          : lk_outlet_room(courier, outlet, again_ms);
        if (room && courier->now_ms >= outlet->next_ask_ms) {
            add_want(step, outlet, room);
            sum += room;
        } else if (room) {
            lower(again_ms, outlet->next_ask_ms);
        }
    }
    courier->first = next_outlet(courier, courier->first);
    step->job_batch.body_max =
        scarce && share_bytes < LEASE_BYTES ? share_bytes + 1 : LEASE_BYTES;
    share(step, courier->settings->batch, sum);
}

/* How many of the next jobs are to be leased ahead: by what has ended since it
 * was last asked for. */
static void look_ahead(struct lk_courier *courier,
                       const struct lk_courier_step *step)
{
    for (size_t i = 0; i < step->job_batch.want_count; i++) {
        struct lk_outlet *outlet = step->want_outlets[i];
        size_t ahead = 2 * outlet->ended;
        size_t less = outlet->ahead - (outlet->ahead + 3) / 4;
        outlet->ahead = ahead > less ? ahead : less;
        if (outlet->ahead > courier->settings->batch) {
            outlet->ahead = (size_t)courier->settings->batch;
        }
        outlet->ended = 0;
    }
}

/* ---- giving -------------------------------------------------------------- */

/*
 * Each step costs the store something, however little there is in it. While
 * calls run and the next ones are at hand, ends are gathered for a moment; what
 * somebody waits for is not.
 */
static bool is_to_gather(struct lk_courier *courier)
{
    if (courier->marking.head || courier->stopping ||
        courier->now_ms >= courier->moved_ms + GATHER_MS || !courier->running ||
        courier->ended.count >= LK_JOB_BATCH_ENDS / 4) {
        return false;
    }
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        uint64_t again_ms = UINT64_MAX;
        if (!outlet->ready.head && courier->now_ms >= outlet->next_ask_ms &&
            lk_outlet_room(courier, outlet, &again_ms)) {
            return false;
        }
    }
    return true;
}

/* It has the one end that may be the reason why others failed. */
static bool is_suspect(const struct lk_courier_step *step)
{
    return step->job_batch.end_count == 1 && step->end_errands[0]->piece == 1;
}

/* False: there is nothing to do. */
static bool fill_step(struct lk_courier *courier, struct lk_courier_step *step,
                      uint64_t *again_ms)
{
    struct lk_job_batch *job_batch = &step->job_batch;

    job_batch->end_count = job_batch->mark_count = job_batch->want_count = 0;
    job_batch->lease_ms = courier->settings->lease_ms;
    step->oldest_ms = UINT64_MAX;
    if (courier->later.head && courier->now_ms >= courier->later_ms) {
        lk_dispatch_recall(courier);
    } else if (courier->later.head) {
        lower(again_ms, courier->later_ms);
    }
    add_ends(courier, step);
    if (!is_suspect(step)) {
        add_marks(courier, step);
        add_wants(courier, step, again_ms);
    }
    job_batch->ends = step->ends;
    job_batch->marks = step->marks;
    job_batch->wants = step->wants;
    return job_batch->end_count || job_batch->mark_count ||
           job_batch->want_count;
}

/* False: nothing more is to be given now. */
static bool give_step(struct lk_courier *courier, struct lk_courier_step *step,
                      uint64_t *again_ms)
{
    if (is_to_gather(courier)) {
        lower(again_ms, courier->moved_ms + GATHER_MS);
        return false;
    }
    if (!fill_step(courier, step, again_ms)) {
        lower(again_ms, courier->renew_ms);
        return false;
    }
    look_ahead(courier, step);
    step->under_way = true;
    step->number = ++courier->works;
    step->given_ms = lk_courier_clock_ms();
    courier->moved_ms = courier->now_ms;
    courier->work_fn(courier->work_context, &step->job_batch);
    return true;
}

void lk_dispatch_give(struct lk_courier *courier, uint64_t *again_ms)
{
    bool more = true;

    for (size_t i = 0; more && i < courier->step_count; i++) {
        struct lk_courier_step *step = &courier->steps[i];
        if (step->under_way) {
            continue;
        }
        if (courier->now_ms < step->retry_ms) {
            lower(again_ms, step->retry_ms);
        } else {
            more = give_step(courier, step, again_ms);
        }
    }
}
