/*
 * dispatch.c - what the courier asks of the store: one work at a time, with all
 * ends, marks and wants that there are; what comes up meanwhile forms the next.
 */
#include "courier/courier.h"

#include <stdlib.h>

/* Of one work, about: bodies that are leased, answers that are stored. */
enum { LEASE_BYTES = 16 << 20, ANSWER_BYTES = 8 << 20 };
enum { GATHER_MS = 3 };

static void lower(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

static void add_end(struct lk_courier *courier, struct lk_errand *errand)
{
    struct lk_work *work = &courier->work;
    bool request = errand->outlet->gateway;

    courier->end_errands[work->end_count] = errand;
    courier->ends[work->end_count++] = (struct lk_job_end){
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
        courier->ends[work->end_count - 1].status = 0; /* not the app's */
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

static void add_ends(struct lk_courier *courier)
{
    struct lk_errand *errand;
    size_t bytes = 0;

    while (courier->work.end_count < courier->end_limit &&
           bytes < ANSWER_BYTES &&
           (errand = lk_errands_take(&courier->ended))) {
        if (errand->silent) {
            lk_errand_free(courier, errand);
        } else {
            bytes += errand->body.len + errand->headers.len;
            add_end(courier, errand);
        }
    }
}

static void add_mark(struct lk_courier *courier, struct lk_errand *errand,
                     bool called)
{
    struct lk_work *work = &courier->work;

    courier->mark_errands[work->mark_count] = errand;
    courier->marks[work->mark_count++] = (struct lk_job_mark){
        .id = errand->job.id,
        .attempt = errand->job.attempts,
        .called = called,
        .lease_ms = courier->settings->lease_ms,
    };
}

/* Leases are renewed at a third of their time, so that one failure, and a slow
 * store, do not lose them. */
static void add_renewals(struct lk_courier *courier)
{
    uint64_t third_ms = courier->settings->lease_ms / 3;

    if (courier->now_ms < courier->renew_ms) {
        return;
    }
    courier->renew_ms = UINT64_MAX;
    for (struct lk_errand *errand = courier->hand; errand;
         errand = errand->right) {
        bool running = errand->state == LK_ERRAND_RUNNING;
        if (errand->lost || (!running && errand->state != LK_ERRAND_READY)) {
            continue;
        }
        bool due = courier->now_ms >= errand->lease_ms + third_ms;
        bool fits = courier->work.mark_count < LK_WORK_ENDS;
        if (due && fits) {
            add_mark(courier, errand, running || errand->marked);
        }
        uint64_t since_ms = due ? courier->now_ms : errand->lease_ms;
        lower(&courier->renew_ms,
              due && !fits ? since_ms : since_ms + third_ms);
    }
}

/* To the gateway, and where the key is not honoured, "called" is written down
 * before the call leaves. */
static void add_marks(struct lk_courier *courier)
{
    struct lk_errand *errand;

    while (courier->work.mark_count < LK_WORK_ENDS &&
           (errand = lk_errands_take(&courier->marking))) {
        add_mark(courier, errand, true);
    }
    courier->mark_queued = courier->work.mark_count;
    add_renewals(courier);
}

static bool make_room(struct lk_courier *courier, size_t count)
{
    if (count <= courier->want_cap) {
        return true;
    }
    void *wants = realloc(courier->wants, count * sizeof(*courier->wants));
    courier->wants = wants ? wants : courier->wants;
    void *outlets =
        realloc(courier->want_outlets, count * sizeof(struct lk_outlet *));
    courier->want_outlets = outlets ? outlets : courier->want_outlets;
    if (!wants || !outlets) {
        return false;
    }
    courier->want_cap = count;
    return true;
}

static void add_want(struct lk_courier *courier, struct lk_outlet *outlet,
                     size_t room)
{
    struct lk_work *work = &courier->work;

    courier->want_outlets[work->want_count] = outlet;
    courier->wants[work->want_count++] = (struct lk_job_want){
        .target = latchkey_slice(outlet->name),
        .limit = room,
        .honours = outlet->target->honours && !outlet->gateway,
    };
}

/* Where there is room for more than may be leased at once, each target gets
 * its share: none can keep the others waiting. */
static void share(struct lk_courier *courier, size_t sum)
{
    uint64_t batch = courier->settings->batch;

    for (size_t i = 0; sum > batch && i < courier->work.want_count; i++) {
        size_t *limit = &courier->wants[i].limit;
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

/*
 * However much of the memory the calls of a slow target hold, another one gets
 * its share; and what one work may bring goes to another one first each time.
 */
static void add_wants(struct lk_courier *courier, uint64_t *again_ms)
{
    bool busy = courier->work.end_count || courier->work.mark_count;
    bool scarce = courier->hand_bytes >= LK_HELD_BYTES / 2;
    size_t count = count_outlets(courier);
    size_t share_bytes = count ? LK_HELD_BYTES / 2 / count : 0;
    struct lk_outlet *outlet = courier->first;
    size_t sum = 0;

    /* A lease of ours that could not be renewed yet would seem lost. */
    if (courier->stopping || (courier->unsure && busy) ||
        courier->renew_ms <= courier->now_ms || !make_room(courier, count)) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        outlet = next_outlet(courier, outlet);
        bool full = scarce && outlet->bytes && outlet->bytes >= share_bytes;
        size_t room = full ? 0 : lk_outlet_room(courier, outlet, again_ms);
        if (room && courier->now_ms >= outlet->next_ask_ms) {
            add_want(courier, outlet, room);
            sum += room;
        } else if (room) {
            lower(again_ms, outlet->next_ask_ms);
        }
    }
    courier->first = next_outlet(courier, courier->first);
    courier->work.body_max =
        scarce && share_bytes < LEASE_BYTES ? share_bytes + 1 : LEASE_BYTES;
    share(courier, sum);
}

/* How many of the next jobs are to be leased ahead. */
static void look_ahead(struct lk_courier *courier)
{
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        size_t ahead = 2 * outlet->ended;
        size_t less = outlet->ahead - (outlet->ahead + 3) / 4;
        outlet->ahead = ahead > less ? ahead : less;
        if (outlet->ahead > courier->settings->batch) {
            outlet->ahead = (size_t)courier->settings->batch;
        }
        outlet->ended = 0;
    }
}

/*
 * Each work costs the store something, however little there is in it. While
 * calls run and the next ones are at hand, ends are gathered for a moment; what
 * somebody waits for is not.
 */
static bool is_to_gather(struct lk_courier *courier)
{
    if (courier->marking.head || courier->stopping ||
        courier->now_ms >= courier->done_ms + GATHER_MS || !courier->running ||
        courier->ended.count >= courier->end_limit / 4) {
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

void lk_dispatch_give(struct lk_courier *courier, uint64_t *again_ms)
{
    struct lk_work *work = &courier->work;

    if (courier->under_way) {
        return;
    }
    if (courier->now_ms < courier->retry_ms) {
        lower(again_ms, courier->retry_ms);
        return;
    }
    if (is_to_gather(courier)) {
        lower(again_ms, courier->done_ms + GATHER_MS);
        return;
    }
    work->end_count = work->mark_count = work->want_count = 0;
    if (courier->later.head && courier->now_ms >= courier->later_ms) {
        lk_dispatch_recall(courier);
    } else if (courier->later.head) {
        lower(again_ms, courier->later_ms);
    }
    add_ends(courier);
    add_marks(courier);
    add_wants(courier, again_ms);
    if (!work->end_count && !work->mark_count && !work->want_count) {
        lower(again_ms, courier->renew_ms);
        return;
    }
    look_ahead(courier);
    work->ends = courier->ends;
    work->marks = courier->marks;
    work->wants = courier->wants;
    work->lease_ms = courier->settings->lease_ms;
    courier->under_way = true;
    courier->works++;
    courier->woken_since = false;
    courier->given_ms = lk_courier_clock_ms();
    courier->work_fn(courier->work_context, work);
}
