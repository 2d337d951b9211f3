/*
 * courier.c - the courier: its start, its thread's loop, its end, and what the
 * daemon asks of it (daemon/outbox.h).
 *
 *   phase      what happens                              ends by
 *   started    start_courier makes everything, then      end_courier or
 *              the thread, the prober and the check      stop_courier
 *              for stranded jobs
 *   stopping   what has not left is returned; running    all ends are stored,
 *              calls have until stop_ms; then they are   or LAST_ENDS_MS after
 *              given up                                  stop_ms
 *   over       the thread has called ended_fn            stop_courier joins it
 *                                                        and frees all
 *
 * One turn of the loop: read the inbox (wake, reload, stop, batches that are
 * done), start and finish calls, give batches to the store, publish what others
 * see, sleep until something moves.
 */
#include "courier/courier.h"
#include "courier/prober.h"
#include "daemon/log.h"
#include "daemon/thread.h"
#include "lib/time.h"

#include <stdlib.h>

enum {
    LAST_ENDS_MS = 5000, /* how long it tries to store the last ends */
    CALL_TURNS = 16,     /* of calls that end at once, before the store has
                            its turn */
};

/* Also runs while the machine sleeps, as a lease does. */
uint64_t lk_courier_clock_ms(void)
{
    return lk_boottime_ms();
}

uint64_t lk_courier_wall_ms(void)
{
    return lk_wall_ms();
}

/* ---- the thread ---------------------------------------------------------- */

/* Called on the store's thread. */
static void note_batch_done(struct lk_job_batch *job_batch)
{
    struct lk_courier_batch *batch = job_batch->context;
    struct lk_courier *courier = batch->courier;

    uv_mutex_lock(&courier->mutex);
    batch->done = true;
    lk_poll_ring(&courier->poll); /* afterwards the courier may be freed */
    uv_mutex_unlock(&courier->mutex);
}

/* Jobs of any target may be due. */
static void ask_all_targets(struct lk_courier *courier)
{
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        live->next_ask_ms = 0;
    }
}

/* Returns what has not left. The gateway's calls are given up at once: the
 * gateway goes on with its requests and reports their outcome to the daemon
 * that it reaches next. It does not reach this one any more, so waiting is
 * useless. */
static void begin_courier_stop(struct lk_courier *courier, uint64_t grace_ms)
{
    struct lk_delivery *delivery;

    courier->stopping = true;
    courier->stop_ms = courier->now_ms + grace_ms;
    for (size_t i = 0; i < courier->batch_count; i++) {
        courier->batches[i].retry_ms = 0;
    }
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        while ((delivery = lk_deliveries_take(&live->ready))) {
            lk_delivery_return(courier, delivery, 0,
                               "the courier is shutting down");
        }
    }
    lk_courier_batches_recall(courier);
    while ((delivery = lk_deliveries_take(&courier->marking))) {
        delivery->live->busy--;
        lk_delivery_return(courier, delivery, 0,
                           "the courier is shutting down");
    }
    lk_calls_abandon(courier, false);
}

/* Reads the results of the batches that the store is done with. */
static void take_done_batches(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->batch_count; i++) {
        struct lk_courier_batch *batch = &courier->batches[i];
        uv_mutex_lock(&courier->mutex);
        bool done = batch->done;
        batch->done = false;
        uv_mutex_unlock(&courier->mutex);
        if (done) {
            lk_courier_batch_done(courier, batch);
        }
    }
}

/* Takes over what other threads have left under the mutex. */
static void read_inbox(struct lk_courier *courier)
{
    uv_mutex_lock(&courier->mutex);
    bool woken = courier->woken;
    bool stop = courier->stop_asked;
    uint64_t grace_ms = courier->grace_ms;
    struct lk_courier_settings *fresh = courier->fresh;
    courier->woken = false;
    courier->fresh = NULL;
    uv_mutex_unlock(&courier->mutex);

    if (woken) {
        ask_all_targets(courier);
    }
    take_done_batches(courier);
    if (fresh) {
        lk_courier_adopt(courier, fresh);
        lk_courier_publish(courier);
        lk_stranded_recheck(courier->stranded);
    }
    if (stop && !courier->stopping) {
        begin_courier_stop(courier, grace_ms);
    } else if (stop && courier->stop_ms > courier->now_ms + grace_ms) {
        courier->stop_ms = courier->now_ms + grace_ms;
    }
}

/* While shutting down: gives up calls whose time is over. True: there is
 * nothing left to wait for, and the thread ends. */
static bool check_courier_over(struct lk_courier *courier, uint64_t *again_ms)
{
    if (!courier->stopping) {
        return false;
    }
    if (courier->running && courier->now_ms >= courier->stop_ms) {
        lk_calls_abandon(courier, true);
    }
    uint64_t last_ms = courier->stop_ms + LAST_ENDS_MS;
    uint64_t next_ms = courier->running ? courier->stop_ms : last_ms;
    if (lk_courier_batches_pending(courier)) {
        /* The store owns a batch until it is done. */
        next_ms = courier->running ? courier->stop_ms : UINT64_MAX;
    }
    *again_ms = next_ms < *again_ms ? next_ms : *again_ms;
    return !courier->running && !lk_courier_batches_pending(courier) &&
           ((!courier->ended.head && !courier->later.head) ||
            courier->now_ms >= last_ms);
}

/* The courier's thread. Returns when it is over. */
static void run_courier(void *context)
{
    struct lk_courier *courier = context;

    for (;;) {
        uint64_t again_ms;
        unsigned turns = 0;
        courier->now_ms = lk_courier_clock_ms();
        read_inbox(courier);
        do {
            again_ms = UINT64_MAX;
            lk_calls_start(courier, &again_ms);
        } while (lk_calls_run(courier) && ++turns < CALL_TURNS);
        if (check_courier_over(courier, &again_ms)) {
            break;
        }
        lk_courier_batches_give(courier, &again_ms);
        lk_courier_publish(courier);
        lk_poll_wait(&courier->poll, again_ms);
    }
    if (courier->ended_fn) {
        courier->ended_fn(courier->context);
    }
}

/* ---- the daemon's side --------------------------------------------------- */

/* The thread has been joined, or was never started. */
static void free_courier(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->batch_count; i++) {
        free(courier->batches[i].wants);
        free(courier->batches[i].want_targets);
    }
    free(courier->batches);
    while (courier->deliveries) {
        lk_delivery_free(courier, courier->deliveries);
    }
    lk_delivery_free_spare(courier);
    while (courier->live_targets) {
        struct lk_live_target *live = courier->live_targets;
        courier->live_targets = live->next;
        lk_live_target_free(live);
    }
    lk_poll_close(&courier->poll);
    lk_courier_settings_free(courier->settings);
    lk_courier_settings_free(courier->fresh);
    latchkey_buf_free(&courier->extra);
    uv_mutex_destroy(&courier->mutex);
    free(courier);
}

/* As many batches as the store works on at once. */
static enum lk_status make_courier_batches(struct lk_courier *courier)
{
    unsigned lanes = courier->store->job_lanes;
    size_t count = lanes ? lanes : 1;

    courier->batches = calloc(count, sizeof(*courier->batches));
    if (!courier->batches) {
        return LK_NOMEM;
    }
    courier->batch_count = count;
    for (size_t i = 0; i < count; i++) {
        struct lk_courier_batch *batch = &courier->batches[i];
        batch->courier = courier;
        batch->job_batch =
            (struct lk_job_batch){.done = note_batch_done, .context = batch};
    }
    return LK_OK;
}

/* Everything but the threads. A failure leaves nothing behind. */
static enum lk_status make_courier(const struct lk_outbox_setup *setup,
                                   struct lk_courier **courier)
{
    struct lk_courier_settings *settings = NULL;
    struct lk_courier *made = calloc(1, sizeof(*made));
    enum lk_status status = made ? LK_OK : LK_NOMEM;

    if (status || uv_mutex_init(&made->mutex)) {
        free(made);
        return LK_NOMEM;
    }
    made->store = setup->store;
    made->give_fn = setup->job_batch;
    made->ended_fn = setup->over;
    made->context = setup->context;
    made->renew_ms = UINT64_MAX;
    lk_chance_seed(&made->chance);
    status = lk_poll_open(&made->poll);
    if (!status) {
        status = make_courier_batches(made);
    }
    if (!status) {
        status = lk_courier_settings_make(setup->config, &settings);
    }
    if (status) {
        free_courier(made);
        return status;
    }
    curl_multi_setopt(made->poll.multi, CURLMOPT_PIPELINING,
                      (long)CURLPIPE_MULTIPLEX);
    lk_courier_adopt(made, settings);
    lk_courier_publish(made);
    *courier = made;
    return LK_OK;
}

static void stop_courier(void *context, uint64_t grace_ms);

/* The courier's thread comes first, since the others use what it publishes. */
static enum lk_status start_courier(const struct lk_outbox_setup *setup,
                                    void **courier)
{
    struct lk_courier *made = NULL;
    enum lk_status status = lk_http_init();

    *courier = NULL;
    if (!status) {
        status = make_courier(setup, &made);
    }
    if (!status && lk_thread_create(&made->thread, run_courier, made)) {
        free_courier(made);
        status = LK_NOMEM;
    }
    if (status) {
        lk_log(LK_LOG_ERROR, "courier-failed", "error=\"%s\"",
               latchkey_status_text(status));
        return status;
    }
    if (setup->config->probes) {
        status = lk_prober_start(setup, lk_courier_reserve_call, made,
                                 &made->prober);
    }
    if (!status && setup->store->class->targets) {
        status = lk_stranded_start(made, &made->stranded);
    }
    if (status) {
        made->ended_fn = NULL; /* the caller gets the status instead */
        stop_courier(made, 0);
        return status;
    }
    lk_log(LK_LOG_INFO, "courier-started", "targets=%zu gateway=%s",
           setup->config->targets.count, setup->config->gateway ? "yes" : "no");
    *courier = made;
    return LK_OK;
}

/* Leaves the order to stop in the inbox. Called again, the earlier end
 * counts. */
static void end_courier(void *context, uint64_t grace_ms)
{
    struct lk_courier *courier = context;

    uv_mutex_lock(&courier->mutex);
    courier->stop_asked = true;
    courier->grace_ms = grace_ms;
    uv_mutex_unlock(&courier->mutex);
    lk_poll_ring(&courier->poll);
}

/* Nothing that other threads use is freed before the thread is joined. */
static void stop_courier(void *context, uint64_t grace_ms)
{
    struct lk_courier *courier = context;

    if (!courier) {
        return;
    }
    lk_stranded_stop(courier->stranded);
    lk_prober_stop(courier->prober);
    end_courier(courier, grace_ms);
    uv_thread_join(&courier->thread);
    size_t lost = courier->ended.count + courier->later.count;
    lk_log(lost ? LK_LOG_WARN : LK_LOG_INFO, "courier-stopped",
           "batches=%llu not_recorded=%zu",
           (unsigned long long)courier->batches_given, lost);
    free_courier(courier);
}

/* Rings only once until the thread has read the inbox. */
static void wake_courier(void *context)
{
    struct lk_courier *courier = context;

    uv_mutex_lock(&courier->mutex);
    bool before = courier->woken;
    courier->woken = true;
    uv_mutex_unlock(&courier->mutex);
    if (!before) {
        lk_poll_ring(&courier->poll);
    }
}

/* Leaves new settings in the inbox; settings that were not read yet are
 * replaced. */
static void reload_courier(void *context, const struct lk_config *config)
{
    struct lk_courier *courier = context;
    struct lk_courier_settings *settings;

    if (lk_courier_settings_make(config, &settings)) {
        lk_log(LK_LOG_ERROR, "courier-reload-failed",
               "error=\"out of memory\"");
        return;
    }
    uv_mutex_lock(&courier->mutex);
    struct lk_courier_settings *unread = courier->fresh;
    courier->fresh = settings;
    uv_mutex_unlock(&courier->mutex);
    lk_courier_settings_free(unread);
    lk_poll_ring(&courier->poll);
    if (courier->prober) {
        lk_prober_reload(courier->prober, config);
    }
}

/* Reads what the courier's thread has published. */
static void show_target_status(void *context, lk_target_status_fn row,
                               void *row_context)
{
    struct lk_courier *courier = context;
    uint64_t now_ms = lk_courier_clock_ms();
    bool more = true;

    uv_mutex_lock(&courier->mutex);
    for (struct lk_live_target *live = courier->live_targets; live && more;
         live = live->next) {
        const struct lk_live_target_view *shown = &live->shown;
        uint64_t until_ms = shown->circuit_until_ms;
        struct lk_target_status status = {
            .name = latchkey_slice(live->name),
            .configured = shown->configured,
            .in_flight = (unsigned)shown->in_flight,
            .delivered = shown->delivered,
            .failed = shown->failed,
            .dead = shown->dead,
            .uncertain = shown->uncertain,
            .circuit = lk_circuit_word(shown->circuit),
            .circuit_wait_ms =
                shown->circuit == LK_CIRCUIT_OPEN && until_ms > now_ms
                    ? until_ms - now_ms
                    : 0,
            .last_error = latchkey_slice(shown->last_error),
        };
        more = row(row_context, &status);
    }
    uv_mutex_unlock(&courier->mutex);
}

static void probe_now(void *context, struct lk_probe_request *request)
{
    struct lk_courier *courier = context;

    lk_prober_ask(courier->prober, request);
}

static void cancel_probes(void *context)
{
    struct lk_courier *courier = context;

    lk_prober_cancel(courier->prober);
}

const struct lk_outbox_class lk_courier_class = {
    .start = start_courier,
    .wake = wake_courier,
    .reload = reload_courier,
    .status = show_target_status,
    .probe = probe_now,
    .cancel_probes = cancel_probes,
    .end = end_courier,
    .stop = stop_courier,
};
