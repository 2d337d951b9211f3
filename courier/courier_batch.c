/*
 * courier_batch.c - courier batches: what the courier asks of the store, and
 * what it does with the result. A batch takes all ends, marks and wants that
 * there are; what comes up in the meantime forms the next one.
 *
 *   phase     what holds                         goes on by
 *   free      in_store is false; after a         give_courier_batch fills it
 * and failure it waits for retry_ms      gives it to the store, if there is
 * anything to do in store  the store owns job_batch and the   the store's
 * thread sets arrays. Each delivery in it has    `done` and rings the bell
 *             delivery->batch set, each target
 *             in want_targets has `asked` set
 *   done      the result is here, not yet read   lk_courier_batch_done reads
 *                                                it, or takes all of it back;
 *                                                then the batch is free
 *
 * There are as many batches as the store works on at once (courier->batches),
 * made and freed with the courier, which waits for all of them when it ends.
 */
#include "courier/courier.h"
#include "daemon/log.h"
#include "store/fault.h"

#include <assert.h>
#include <stdlib.h>

/* Of one batch, about: job bodies leased, response bodies stored. */
enum { LEASE_BYTES = 16 << 20, RESPONSE_BYTES = 8 << 20 };
enum { GATHER_MS = 3 }; /* ends wait for others at most this long */

bool lk_courier_batches_pending(const struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->batch_count; i++) {
        if (courier->batches[i].in_store) {
            return true;
        }
    }
    return false;
}

uint64_t lk_courier_batch_lease_from_ms(const struct lk_courier_batch *batch)
{
    return batch->job_batch.lease_ms == batch->courier->settings->lease_ms
               ? batch->given_ms
               : 0;
}

/* ---- ends and marks ------------------------------------------------------ */

/* From here on the delivery belongs to the batch. */
static void enter_batch(struct lk_courier_batch *batch,
                        struct lk_delivery *delivery)
{
    assert(!delivery->batch && delivery->job.id && delivery->job.attempts > 0);
    delivery->batch = batch;
    lk_lower_ms(&batch->oldest_ms, delivery->lease_from_ms);
}

/* Its texts stay in the delivery, which is not freed before the batch is
 * done. */
static void fill_end(struct lk_courier_batch *batch,
                     struct lk_delivery *delivery)
{
    struct lk_job_batch *job_batch = &batch->job_batch;
    bool request = delivery->live->gateway;

    assert(delivery->state == LK_DELIVERY_ENDED && !delivery->unstored);
    assert(!delivery->returned || !delivery->sent);
    assert(request || delivery->returned || delivery->sent ||
           delivery->result.end != LK_END_DELIVERED);
    enter_batch(batch, delivery);
    batch->end_deliveries[job_batch->end_count] = delivery;
    batch->ends[job_batch->end_count++] = (struct lk_job_end){
        .id = delivery->job.id,
        .attempt = delivery->job.attempts,
        .end = delivery->returned ? LK_END_RETURN : delivery->result.end,
        .delay_ms = delivery->delay_ms,
        .status = delivery->status,
        .provider_id = latchkey_buf_slice(&delivery->provider_id),
        .reason = latchkey_slice(delivery->result.reason),
        .response = {.status = delivery->status,
                     .headers = latchkey_buf_slice(&delivery->headers),
                     .body = latchkey_buf_slice(&delivery->body)},
        .left = delivery->sent,
        .doubt = delivery->result.doubt,
    };
    if (request && delivery->result.end == LK_END_DEAD) {
        batch->ends[job_batch->end_count - 1].status =
            0; /* it is not the app's status */
    }
}

void lk_courier_batches_recall(struct lk_courier *courier)
{
    struct lk_delivery *delivery;

    while ((delivery = lk_deliveries_take(&courier->later))) {
        lk_deliveries_add(delivery->state == LK_DELIVERY_ENDED
                              ? &courier->ended
                              : &courier->marking,
                          delivery);
    }
}

/* From the front of courier->ended, within the bounds of one batch. */
static void fill_ends(struct lk_courier *courier,
                      struct lk_courier_batch *batch)
{
    struct lk_delivery *delivery;
    size_t bytes = 0;
    size_t most = LK_JOB_BATCH_ENDS;

    while ((delivery = courier->ended.head)) {
        most = delivery->ends_max < most ? delivery->ends_max : most;
        if (batch->job_batch.end_count >= most || bytes >= RESPONSE_BYTES) {
            break;
        }
        lk_deliveries_take(&courier->ended);
        bytes += delivery->body.len + delivery->headers.len;
        fill_end(batch, delivery);
    }
}

static void fill_mark(struct lk_courier_batch *batch,
                      struct lk_delivery *delivery, bool called)
{
    struct lk_job_batch *job_batch = &batch->job_batch;

    enter_batch(batch, delivery);
    batch->mark_deliveries[job_batch->mark_count] = delivery;
    batch->marks[job_batch->mark_count++] = (struct lk_job_mark){
        .id = delivery->job.id,
        .attempt = delivery->job.attempts,
        .called = called && !delivery->live->gateway,
        .lease_ms = job_batch->lease_ms,
    };
}

/*
 * A lease is renewed after a third of its time, so that one failure or a slow
 * store does not lose it. A delivery that is in another batch is left to that
 * batch, which sets renew_ms when it is done.
 */
static void fill_renewals(struct lk_courier *courier,
                          struct lk_courier_batch *batch)
{
    uint64_t third_ms = courier->settings->lease_ms / 3;

    if (courier->now_ms < courier->renew_ms) {
        return;
    }
    courier->renew_ms = UINT64_MAX;
    for (struct lk_delivery *delivery = courier->deliveries; delivery;
         delivery = delivery->next_of_all) {
        bool running = delivery->state == LK_DELIVERY_RUNNING;
        if (delivery->lost || delivery->batch ||
            (!running && delivery->state != LK_DELIVERY_READY)) {
            continue;
        }
        bool due = courier->now_ms >= delivery->lease_from_ms + third_ms;
        bool fits = batch->job_batch.mark_count < LK_JOB_BATCH_ENDS;
        if (due && fits) {
            fill_mark(batch, delivery, running || delivery->marked);
        } else {
            lk_lower_ms(&courier->renew_ms,
                        due ? courier->now_ms
                            : delivery->lease_from_ms + third_ms);
        }
    }
}

/* Marks that let a call leave come first: where the key is not honoured, the
 * store has `called` before the call leaves. Then renewals. */
static void fill_marks(struct lk_courier *courier,
                       struct lk_courier_batch *batch)
{
    struct lk_delivery *delivery;

    while (batch->job_batch.mark_count < LK_JOB_BATCH_ENDS &&
           (delivery = lk_deliveries_take(&courier->marking))) {
        fill_mark(batch, delivery, true);
    }
    batch->mark_queued = batch->job_batch.mark_count;
    fill_renewals(courier, batch);
}

/* ---- wants --------------------------------------------------------------- */

/* False: out of memory, and nothing is leased this time. */
static bool grow_wants(struct lk_courier_batch *batch, size_t count)
{
    if (count <= batch->want_cap) {
        return true;
    }
    void *wants = realloc(batch->wants, count * sizeof(*batch->wants));
    batch->wants = wants ? wants : batch->wants;
    void *live_targets =
        realloc(batch->want_targets, count * sizeof(struct lk_live_target *));
    batch->want_targets = live_targets ? live_targets : batch->want_targets;
    if (!wants || !live_targets) {
        return false;
    }
    batch->want_cap = count;
    return true;
}

/* Asks for `room` jobs of that target. Whatever makes a job of it due from now
 * on lowers next_ask_ms again. */
static void fill_want(struct lk_courier_batch *batch,
                      struct lk_live_target *live, size_t room)
{
    struct lk_job_batch *job_batch = &batch->job_batch;

    live->asked = true;
    live->next_ask_ms = UINT64_MAX;
    batch->want_targets[job_batch->want_count] = live;
    batch->wants[job_batch->want_count++] = (struct lk_job_want){
        .target = latchkey_slice(live->name),
        .limit = room,
        .honours = live->target->honours && !live->gateway,
    };
}

/* Where there is room for more jobs than may be leased at once (`most`), each
 * target gets its share, so that none keeps the others waiting. */
static void share_limits(struct lk_courier_batch *batch, uint64_t most,
                         size_t sum)
{
    for (size_t i = 0; sum > most && i < batch->job_batch.want_count; i++) {
        size_t *limit = &batch->wants[i].limit;
        *limit = (size_t)(*limit * most / sum);
        *limit = *limit ? *limit : 1;
    }
}

static size_t count_live_targets(const struct lk_courier *courier)
{
    size_t count = 0;

    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        count++;
    }
    return count;
}

static struct lk_live_target *next_live_target(
    const struct lk_courier *courier, const struct lk_live_target *live)
{
    return live && live->next ? live->next : courier->live_targets;
}

/* Less than a third of the lease is left. */
static bool is_lease_late(const struct lk_courier *courier, uint64_t lease_ms)
{
    return courier->now_ms > lease_ms &&
           courier->now_ms - lease_ms >= courier->settings->lease_ms / 3 * 2;
}

static void flag_late_delivery(const struct lk_courier *courier,
                               struct lk_delivery *delivery)
{
    delivery->live->late |=
        !delivery->lost && is_lease_late(courier, delivery->lease_from_ms);
}

/* Also of a batch that was given just now: the process may have been stopped
 * before. */
static void flag_late_batch(const struct lk_courier *courier,
                            const struct lk_courier_batch *batch)
{
    if (!is_lease_late(courier, batch->oldest_ms)) {
        return;
    }
    for (size_t i = 0; i < batch->job_batch.end_count; i++) {
        flag_late_delivery(courier, batch->end_deliveries[i]);
    }
    for (size_t i = 0; i < batch->job_batch.mark_count; i++) {
        flag_late_delivery(courier, batch->mark_deliveries[i]);
    }
}

/*
 * Flags the targets with a lease that could look lost to this batch though it
 * is not, because it is in another batch or behind an end that waits. A request
 * in `later` does not count: the transaction that has its operation locked also
 * keeps it from being settled.
 */
static void flag_late_targets(const struct lk_courier *courier,
                              const struct lk_courier_batch *batch)
{
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        live->late = false;
    }
    for (size_t i = 0; i < courier->batch_count; i++) {
        const struct lk_courier_batch *other = &courier->batches[i];
        if (other != batch && other->in_store) {
            flag_late_batch(courier, other);
        }
    }
    for (struct lk_delivery *at = courier->ended.head; at; at = at->next) {
        flag_late_delivery(courier, at);
    }
    for (struct lk_delivery *at = courier->later.head; at; at = at->next) {
        if (!at->live->gateway) {
            flag_late_delivery(courier, at);
        }
    }
}

/* May this batch lease at all? Not while a lease of ours, of any target, could
 * look lost to it (courier.h). */
static bool may_lease(const struct lk_courier *courier,
                      const struct lk_courier_batch *batch)
{
    bool busy = batch->job_batch.end_count || batch->job_batch.mark_count;

    for (size_t i = 0; i < courier->batch_count; i++) {
        const struct lk_courier_batch *other = &courier->batches[i];
        if (other == batch || !other->in_store) {
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

/* Bytes of jobs in hand, and of those that the batches in the store may bring.
 */
static size_t held_bytes(const struct lk_courier *courier)
{
    size_t bytes = courier->delivery_bytes;

    for (size_t i = 0; i < courier->batch_count; i++) {
        const struct lk_courier_batch *batch = &courier->batches[i];
        if (batch->in_store && batch->job_batch.want_count) {
            bytes += batch->job_batch.body_max;
        }
    }
    return bytes;
}

/*
 * However much memory the calls of a slow target hold, every other target gets
 * its share; and each batch begins with another target.
 */
static void fill_wants(struct lk_courier *courier,
                       struct lk_courier_batch *batch, uint64_t *again_ms)
{
    bool scarce = held_bytes(courier) >= LK_HELD_BYTES / 2;
    size_t count = count_live_targets(courier);
    size_t share_bytes = count ? LK_HELD_BYTES / 2 / count : 0;
    struct lk_live_target *live = courier->first;
    size_t sum = 0;

    if (!may_lease(courier, batch) || !grow_wants(batch, count)) {
        return;
    }
    flag_late_targets(courier, batch);
    for (size_t i = 0; i < count; i++) {
        live = next_live_target(courier, live);
        bool full = scarce && live->bytes && live->bytes >= share_bytes;
        size_t room = full || live->late
                          ? 0
                          : lk_live_target_room(courier, live, again_ms);
        if (room && courier->now_ms >= live->next_ask_ms) {
            fill_want(batch, live, room);
            sum += room;
        } else if (room) {
            lk_lower_ms(again_ms, live->next_ask_ms);
        }
    }
    courier->first = next_live_target(courier, courier->first);
    batch->job_batch.body_max =
        scarce && share_bytes < LEASE_BYTES ? share_bytes + 1 : LEASE_BYTES;
    share_limits(batch, courier->settings->lease_batch, sum);
}

/* How many jobs to lease ahead of the calls: twice what has ended since the
 * target was last asked for, falling off by a quarter each time. */
static void set_prefetch(struct lk_courier *courier,
                         const struct lk_courier_batch *batch)
{
    for (size_t i = 0; i < batch->job_batch.want_count; i++) {
        struct lk_live_target *live = batch->want_targets[i];
        size_t prefetch = 2 * live->ended;
        size_t less = live->prefetch - (live->prefetch + 3) / 4;
        live->prefetch = prefetch > less ? prefetch : less;
        if (live->prefetch > courier->settings->lease_batch) {
            live->prefetch = (size_t)courier->settings->lease_batch;
        }
        live->ended = 0;
    }
}

/* ---- giving -------------------------------------------------------------- */

/*
 * Each batch costs the store something, however little is in it. While calls
 * run and the next jobs are at hand, ends are gathered for a moment. Marks are
 * not: a call waits for each.
 */
static bool may_gather(struct lk_courier *courier)
{
    if (courier->marking.head || courier->stopping ||
        courier->now_ms >= courier->moved_ms + GATHER_MS || !courier->running ||
        courier->ended.count >= LK_JOB_BATCH_ENDS / 4) {
        return false;
    }
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        uint64_t again_ms = UINT64_MAX;
        if (!live->ready.head && courier->now_ms >= live->next_ask_ms &&
            lk_live_target_room(courier, live, &again_ms)) {
            return false;
        }
    }
    return true;
}

/* It has the one end that may be the reason why the store refused others. */
static bool has_suspect_end(const struct lk_courier_batch *batch)
{
    return batch->job_batch.end_count == 1 &&
           batch->end_deliveries[0]->ends_max == 1;
}

/* False: there is nothing to do, and the batch stays free. */
static bool fill_batch(struct lk_courier *courier,
                       struct lk_courier_batch *batch, uint64_t *again_ms)
{
    struct lk_job_batch *job_batch = &batch->job_batch;

    job_batch->end_count = job_batch->mark_count = job_batch->want_count = 0;
    job_batch->lease_ms = courier->settings->lease_ms;
    batch->oldest_ms = UINT64_MAX;
    if (courier->later.head && courier->now_ms >= courier->later_ms) {
        lk_courier_batches_recall(courier);
    } else if (courier->later.head) {
        lk_lower_ms(again_ms, courier->later_ms);
    }
    fill_ends(courier, batch);
    if (!has_suspect_end(batch)) {
        fill_marks(courier, batch);
        fill_wants(courier, batch, again_ms);
    }
    job_batch->ends = batch->ends;
    job_batch->marks = batch->marks;
    job_batch->wants = batch->wants;
    return job_batch->end_count || job_batch->mark_count ||
           job_batch->want_count;
}

/* Hands the batch to the store's thread. False: there is nothing more to give
 * now. */
static bool give_courier_batch(struct lk_courier *courier,
                               struct lk_courier_batch *batch,
                               uint64_t *again_ms)
{
    if (may_gather(courier)) {
        lk_lower_ms(again_ms, courier->moved_ms + GATHER_MS);
        return false;
    }
    if (!fill_batch(courier, batch, again_ms)) {
        lk_lower_ms(again_ms, courier->renew_ms);
        return false;
    }
    assert(!batch->in_store && !batch->done);
    set_prefetch(courier, batch);
    batch->in_store = true;
    batch->number = ++courier->batches_given;
    batch->given_ms = lk_courier_clock_ms();
    courier->moved_ms = courier->now_ms;
    courier->give_fn(courier->context, &batch->job_batch);
    return true;
}

void lk_courier_batches_give(struct lk_courier *courier, uint64_t *again_ms)
{
    bool more = true;

    for (size_t i = 0; more && i < courier->batch_count; i++) {
        struct lk_courier_batch *batch = &courier->batches[i];
        if (batch->in_store) {
            continue;
        }
        if (courier->now_ms < batch->retry_ms) {
            lk_lower_ms(again_ms, batch->retry_ms);
        } else {
            more = give_courier_batch(courier, batch, again_ms);
        }
    }
}

/* ---- results ------------------------------------------------------------- */

enum {
    RETRY_FIRST_MS = 50,
    RETRY_MAX_MS = 5000,
    RETRY_STOPPING_MS = 200,
    LATER_MS = 20, /* until a row is tried again that another transaction has */
    IDLE_MS = 2,   /* a job was due, but was not leased to us */
};

/* `ms` and `wait_ms` added, UINT64_MAX at most. */
static uint64_t ms_later(uint64_t ms, uint64_t wait_ms)
{
    return wait_ms > UINT64_MAX - ms ? UINT64_MAX : ms + wait_ms;
}

/* Another transaction has its row: it is tried again after LATER_MS. */
static void postpone_delivery(struct lk_courier *courier,
                              struct lk_delivery *delivery)
{
    if (!courier->later.head) {
        courier->later_ms = courier->now_ms + LATER_MS;
    }
    lk_deliveries_add(&courier->later, delivery);
}

/* ---- a batch that failed --------------------------------------------------
 */

static void log_batch_failure(const struct lk_courier *courier,
                              const struct lk_job_batch *job_batch)
{
    if (courier->store_failures == 1) {
        lk_log(LK_LOG_WARN, "courier-store-failed", "status=%s error=\"%s\"",
               latchkey_status_name(job_batch->status),
               job_batch->error ? job_batch->error
                                : latchkey_status_text(job_batch->status));
    }
}

/* Doubling, with jitter; shorter while the courier is shutting down. */
static void set_batch_retry(struct lk_courier *courier,
                            struct lk_courier_batch *batch)
{
    uint64_t wait_ms = RETRY_FIRST_MS;

    for (unsigned i = 0; i < batch->fails && wait_ms < RETRY_MAX_MS; i++) {
        wait_ms *= 2;
    }
    if (courier->stopping && wait_ms > RETRY_STOPPING_MS) {
        wait_ms = RETRY_STOPPING_MS;
    }
    batch->fails++;
    batch->retry_ms = courier->now_ms + wait_ms / 2 +
                      lk_chance_next(&courier->chance) % wait_ms;
}

/* The end was given alone and was refused: it can never be stored. */
static void drop_refused_end(struct lk_courier *courier,
                             struct lk_delivery *delivery)
{
    char target[LK_LOG_QUOTED];

    lk_log(LK_LOG_ERROR, "job-end-refused",
           "id=%llu attempt=%u target=%s note=\"its lease runs out\"",
           (unsigned long long)delivery->job.id, delivery->job.attempts,
           lk_log_quote(delivery->job.target, target, sizeof(target)));
    delivery->batch = NULL;
    lk_delivery_free(courier, delivery);
}

/* The store will never take this batch: one of its ends must be the reason.
 * They are given again in halves; one that was alone is dropped. */
static void split_refused_ends(struct lk_courier *courier,
                               struct lk_courier_batch *batch)
{
    struct lk_job_batch *job_batch = &batch->job_batch;
    bool alone = job_batch->end_count == 1 && !job_batch->mark_count &&
                 !job_batch->want_count;

    for (size_t i = 0; i < job_batch->end_count; i++) {
        batch->end_deliveries[i]->ends_max = (job_batch->end_count + 1) / 2;
    }
    if (alone) {
        drop_refused_end(courier, batch->end_deliveries[0]);
        job_batch->end_count = 0;
    }
}

/*
 * Nothing of it is confirmed: its ends and marks go behind those that wait, and
 * are given again with whichever batch is free.
 */
static void take_back_batch(struct lk_courier *courier,
                            struct lk_courier_batch *batch)
{
    const struct lk_job_batch *job_batch = &batch->job_batch;

    set_batch_retry(courier, batch);
    if (job_batch->status == LK_INVALID && job_batch->end_count) {
        batch->fails = 0;
        batch->retry_ms = 0;
        split_refused_ends(courier, batch);
    }
    for (size_t i = 0; i < job_batch->end_count; i++) {
        lk_delivery_leave_batch(courier, batch->end_deliveries[i]);
    }
    for (size_t i = 0; i < job_batch->mark_count; i++) {
        lk_delivery_leave_batch(courier, batch->mark_deliveries[i]);
    }
    for (size_t i = 0; i < job_batch->want_count; i++) {
        batch->want_targets[i]->next_ask_ms = 0;
    }
    courier->store_failures++;
    courier->unsure = true;
    courier->failed_number = courier->batches_given;
    courier->renew_ms = 0;
    log_batch_failure(courier, job_batch);
}

/* A batch that was given before the last failure proves nothing about the store
 * now. */
static void note_batch_success(struct lk_courier *courier,
                               struct lk_courier_batch *batch)
{
    batch->fails = 0;
    batch->retry_ms = 0;
    if (batch->number <= courier->failed_number) {
        return;
    }
    if (courier->store_failures) {
        lk_log(LK_LOG_INFO, "courier-store-back", "failures=%u",
               courier->store_failures);
    }
    courier->store_failures = 0;
    courier->unsure = false;
}

/* ---- results: ends and marks --------------------------------------------- */

/* Each end is stored, or was stale: the delivery is freed. */
static void take_stored_ends(struct lk_courier *courier,
                             struct lk_courier_batch *batch)
{
    for (size_t i = 0; i < batch->job_batch.end_count; i++) {
        struct lk_delivery *delivery = batch->end_deliveries[i];
        delivery->batch = NULL;
        if (batch->ends[i].again) {
            postpone_delivery(courier, delivery);
            continue;
        }
        if (delivery->returned || delivery->result.end == LK_END_RETRY) {
            lk_lower_ms(&delivery->live->next_ask_ms,
                        ms_later(courier->now_ms, delivery->delay_ms));
        }
        lk_delivery_free(courier, delivery);
    }
    if (batch->job_batch.end_count) {
        lk_fault_point("courier_recorded");
    }
}

/* Another courier has the job. A call that has not left does not leave; of one
 * that has left, the end will be stale. */
static void lose_lease(struct lk_courier *courier, struct lk_delivery *delivery)
{
    struct lk_live_target *live = delivery->live;

    delivery->lost = true;
    if (delivery->state == LK_DELIVERY_READY) {
        lk_deliveries_remove(&live->ready, delivery);
    } else if (delivery->state == LK_DELIVERY_MARKING) {
        live->busy--;
    } else {
        lk_delivery_leave_batch(courier, delivery);
        return;
    }
    delivery->batch = NULL;
    lk_delivery_free(courier, delivery);
}

/* The call may leave now, if its time has not passed. */
static void take_confirmed_mark(struct lk_courier *courier,
                                struct lk_courier_batch *batch,
                                struct lk_delivery *delivery)
{
    assert(delivery->state == LK_DELIVERY_MARKING);
    delivery->batch = NULL;
    delivery->lease_from_ms = lk_courier_batch_lease_from_ms(batch);
    delivery->marked = true;
    lk_calls_marked(courier, delivery);
}

/* `again`: another transaction has the row, and the renewal is due again. */
static void take_renewed_lease(struct lk_courier *courier,
                               struct lk_courier_batch *batch,
                               struct lk_delivery *delivery, bool again)
{
    if (again) {
        lk_lower_ms(&courier->renew_ms, courier->now_ms + LATER_MS);
    } else {
        delivery->lease_from_ms = lk_courier_batch_lease_from_ms(batch);
    }
    lk_delivery_leave_batch(courier, delivery);
}

/* Marks that let a call leave come first (mark_queued), then renewals. */
static void take_batch_marks(struct lk_courier *courier,
                             struct lk_courier_batch *batch)
{
    for (size_t i = 0; i < batch->job_batch.mark_count; i++) {
        const struct lk_job_mark *mark = &batch->marks[i];
        struct lk_delivery *delivery = batch->mark_deliveries[i];
        if (mark->stale) {
            lose_lease(courier, delivery);
        } else if (i >= batch->mark_queued) {
            take_renewed_lease(courier, batch, delivery, mark->again);
        } else if (mark->again && courier->stopping) {
            lk_delivery_leave_batch(courier, delivery);
        } else if (mark->again) {
            delivery->batch = NULL;
            postpone_delivery(courier, delivery);
        } else {
            take_confirmed_mark(courier, batch, delivery);
        }
    }
}

/* ---- results: leases ----------------------------------------------------- */

/* The index of the want that the job was leased for; want_count: none. */
static size_t find_want(const struct lk_courier_batch *batch,
                        const struct lk_job *job)
{
    size_t i = 0;

    while (i < batch->job_batch.want_count &&
           !latchkey_slice_equal(batch->wants[i].target, job->target)) {
        i++;
    }
    return i;
}

/* The job becomes a READY delivery, or is returned at once: the circuit may
 * have opened since the lease was asked for. Whether the target honours keys
 * may have changed too: what counts is what the want said to the store. */
static void take_leased_job(struct lk_courier *courier,
                            const struct lk_courier_batch *batch, size_t want,
                            struct lk_job *job)
{
    struct lk_live_target *live = batch->want_targets[want];

    if (!job->id || !job->attempts) {
        /* Damage in the store: no end could name it. Its lease runs out. */
        lk_log(LK_LOG_ERROR, "job-damaged", "job=%llu attempts=%u target=%s",
               (unsigned long long)job->id, job->attempts, live->name);
        return;
    }
    struct lk_delivery *delivery = lk_delivery_make(courier, batch, live, job);
    live->leased++;
    if (!delivery) {
        return; /* out of memory */
    }
    delivery->marked = batch->wants[want].honours;
    enum lk_circuit_state circuit =
        lk_circuit_state_at(&live->circuit, courier->now_ms);
    if (courier->stopping || !live->configured) {
        lk_delivery_return(courier, delivery, 0,
                           courier->stopping
                               ? "the courier is shutting down"
                               : "the target is not configured any more");
    } else if (circuit == LK_CIRCUIT_OPEN ||
               (circuit == LK_CIRCUIT_HALF_OPEN && live->trials)) {
        lk_delivery_return(courier, delivery, live->target->circuit_open_ms,
                           "the target's circuit is open");
    } else {
        delivery->trial = circuit == LK_CIRCUIT_HALF_OPEN;
        live->trials += delivery->trial;
        lk_deliveries_add(&live->ready, delivery);
    }
}

/* When each target is asked again: at once where as much was leased as there
 * was room for. A time that was set since may be earlier. */
static void set_next_ask_times(struct lk_courier *courier,
                               const struct lk_courier_batch *batch)
{
    uint64_t wait_ms = batch->job_batch.wait_ms;

    if (courier->store->shared && wait_ms > courier->settings->poll_ms) {
        wait_ms = courier->settings->poll_ms;
    }
    for (size_t i = 0; i < batch->job_batch.want_count; i++) {
        struct lk_live_target *live = batch->want_targets[i];
        uint64_t wait = wait_ms || live->leased ? wait_ms : IDLE_MS;
        bool all = live->leased >= batch->wants[i].limit;
        lk_lower_ms(&live->next_ask_ms,
                    all ? 0 : ms_later(courier->now_ms, wait));
    }
}

/* A job of a target that was not asked for is left: its lease runs out. */
static void take_leased_jobs(struct lk_courier *courier,
                             struct lk_courier_batch *batch)
{
    struct lk_job_batch *job_batch = &batch->job_batch;

    for (size_t i = 0; i < job_batch->want_count; i++) {
        batch->want_targets[i]->leased = 0;
    }
    if (job_batch->job_count) {
        lk_fault_point("courier_leased");
    }
    for (size_t i = 0; i < job_batch->job_count; i++) {
        size_t want = find_want(batch, &job_batch->jobs[i]);
        if (want < job_batch->want_count) {
            take_leased_job(courier, batch, want, &job_batch->jobs[i]);
        }
    }
    set_next_ask_times(courier, batch);
    if (job_batch->lapsed) {
        lk_log(LK_LOG_ERROR, "jobs-uncertain",
               "count=%llu reason=\"the courier was lost after it had sent the "
               "call\"",
               (unsigned long long)job_batch->lapsed);
    }
}

void lk_courier_batch_done(struct lk_courier *courier,
                           struct lk_courier_batch *batch)
{
    assert(batch->in_store);
    batch->in_store = false;
    courier->moved_ms = courier->now_ms;
    for (size_t i = 0; i < batch->job_batch.want_count; i++) {
        batch->want_targets[i]->asked = false;
    }
    if (batch->job_batch.status) {
        take_back_batch(courier, batch);
    } else {
        note_batch_success(courier, batch);
        take_stored_ends(courier, batch);
        take_batch_marks(courier, batch);
        take_leased_jobs(courier, batch);
        if (batch->job_batch.mark_count || batch->job_batch.job_count) {
            lk_lower_ms(&courier->renew_ms,
                        lk_courier_batch_lease_from_ms(batch) +
                            courier->settings->lease_ms / 3);
        }
    }
    lk_job_batch_clear(&batch->job_batch);
}
