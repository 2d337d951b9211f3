/* courier.c - delivers jobs: start, stop, and the loop of its thread. */
#include "courier/courier.h"
#include "courier/probe.h"
#include "daemon/log.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <time.h>

enum {
    LAST_ENDS_MS = 5000, /* how long a stop tries to store the last ends */
    TURNS = 16, /* of calls that end at once, before the store's turn */
};

static uint64_t clock_ms(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Goes on while the machine sleeps: a lease does too. */
uint64_t lk_courier_clock_ms(void)
{
    return clock_ms(CLOCK_BOOTTIME);
}

uint64_t lk_courier_wall_ms(void)
{
    return clock_ms(CLOCK_REALTIME);
}

/* ---- the thread ---------------------------------------------------------- */

/* From the store's thread. */
static void note_done(struct lk_job_batch *job_batch)
{
    struct lk_courier_step *step = job_batch->context;
    struct lk_courier *courier = step->courier;

    uv_mutex_lock(&courier->mutex);
    step->done = true;
    lk_poll_ring(&courier->poll); /* afterwards it may be gone */
    uv_mutex_unlock(&courier->mutex);
}

static void ask_all(struct lk_courier *courier)
{
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        outlet->next_ask_ms = 0;
    }
}

/* The gateway goes on with its requests, and tells whichever daemon it reaches
 * next what came of them. It does not reach this one any more: to wait for them
 * would be in vain. */
static void begin_stop(struct lk_courier *courier, uint64_t grace_ms)
{
    struct lk_errand *errand;

    courier->stopping = true;
    courier->stop_ms = courier->now_ms + grace_ms;
    for (size_t i = 0; i < courier->step_count; i++) {
        courier->steps[i].retry_ms = 0;
    }
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        while ((errand = lk_errands_take(&outlet->ready))) {
            lk_errand_return(courier, errand, 0, "the courier stops");
        }
    }
    lk_dispatch_recall(courier);
    while ((errand = lk_errands_take(&courier->marking))) {
        errand->outlet->busy--;
        lk_errand_return(courier, errand, 0, "the courier stops");
    }
    lk_calls_abandon(courier, false);
}

static void take_done(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->step_count; i++) {
        struct lk_courier_step *step = &courier->steps[i];
        uv_mutex_lock(&courier->mutex);
        bool done = step->done;
        step->done = false;
        uv_mutex_unlock(&courier->mutex);
        if (done) {
            lk_dispatch_done(courier, step);
        }
    }
}

/* What other threads have left in the inbox. */
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
        ask_all(courier);
    }
    take_done(courier);
    if (fresh) {
        lk_courier_adopt(courier, fresh);
        lk_courier_publish(courier);
        lk_watch_look(courier->watch);
    }
    if (stop && !courier->stopping) {
        begin_stop(courier, grace_ms);
    } else if (stop && courier->stop_ms > courier->now_ms + grace_ms) {
        courier->stop_ms = courier->now_ms + grace_ms;
    }
}

/* True: there is nothing left to wait for. */
static bool is_over(struct lk_courier *courier, uint64_t *again_ms)
{
    if (!courier->stopping) {
        return false;
    }
    if (courier->running && courier->now_ms >= courier->stop_ms) {
        lk_calls_abandon(courier, true);
    }
    uint64_t last_ms = courier->stop_ms + LAST_ENDS_MS;
    uint64_t next_ms = courier->running ? courier->stop_ms : last_ms;
    if (lk_dispatch_is_under_way(courier)) {
        /* It is the store's until it is done. */
        next_ms = courier->running ? courier->stop_ms : UINT64_MAX;
    }
    *again_ms = next_ms < *again_ms ? next_ms : *again_ms;
    return !courier->running && !lk_dispatch_is_under_way(courier) &&
           ((!courier->ended.head && !courier->later.head) ||
            courier->now_ms >= last_ms);
}

static void run(void *context)
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
        } while (lk_calls_run(courier) && ++turns < TURNS);
        if (is_over(courier, &again_ms)) {
            break;
        }
        lk_dispatch_give(courier, &again_ms);
        lk_courier_publish(courier);
        lk_poll_wait(&courier->poll, again_ms);
    }
    if (courier->over_fn) {
        courier->over_fn(courier->work_context);
    }
}

/* ---- the daemon's side --------------------------------------------------- */

static void free_courier(struct lk_courier *courier)
{
    for (size_t i = 0; i < courier->step_count; i++) {
        free(courier->steps[i].wants);
        free(courier->steps[i].want_outlets);
    }
    free(courier->steps);
    while (courier->hand) {
        lk_errand_free(courier, courier->hand);
    }
    lk_errand_free_spare(courier);
    while (courier->outlets) {
        struct lk_outlet *outlet = courier->outlets;
        courier->outlets = outlet->next;
        lk_outlet_free(outlet);
    }
    lk_poll_close(&courier->poll);
    lk_courier_settings_free(courier->settings);
    lk_courier_settings_free(courier->fresh);
    latchkey_buf_free(&courier->extra);
    uv_mutex_destroy(&courier->mutex);
    free(courier);
}

/* As many as the store works on at once. */
static enum lk_status make_steps(struct lk_courier *courier)
{
    unsigned lanes = courier->store->job_lanes;
    size_t count = lanes ? lanes : 1;

    courier->steps = calloc(count, sizeof(*courier->steps));
    if (!courier->steps) {
        return LK_NOMEM;
    }
    courier->step_count = count;
    for (size_t i = 0; i < count; i++) {
        struct lk_courier_step *step = &courier->steps[i];
        step->courier = courier;
        step->job_batch =
            (struct lk_job_batch){.done = note_done, .context = step};
    }
    return LK_OK;
}

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
    made->work_fn = setup->job_batch;
    made->over_fn = setup->over;
    made->work_context = setup->context;
    made->renew_ms = UINT64_MAX;
    lk_chance_seed(&made->chance);
    status = lk_poll_open(&made->poll);
    if (!status) {
        status = make_steps(made);
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

static enum lk_status start_courier(const struct lk_outbox_setup *setup,
                                    void **courier)
{
    struct lk_courier *made = NULL;
    enum lk_status status = lk_http_init();

    *courier = NULL;
    if (!status) {
        status = make_courier(setup, &made);
    }
    if (!status && lk_thread_create(&made->thread, run, made)) {
        free_courier(made);
        status = LK_NOMEM;
    }
    if (status) {
        lk_log(LK_LOG_ERROR, "courier-failed", "error=\"%s\"",
               latchkey_status_text(status));
        return status;
    }
    if (setup->config->probes) {
        status =
            lk_prober_start(setup, lk_courier_reserve, made, &made->prober);
    }
    if (!status && setup->store->class->targets) {
        status = lk_watch_start(made, &made->watch);
    }
    if (status) {
        made->over_fn = NULL; /* it never began */
        stop_courier(made, 0);
        return status;
    }
    lk_log(LK_LOG_INFO, "courier-started", "targets=%zu gateway=%s",
           setup->config->targets.count, setup->config->gateway ? "yes" : "no");
    *courier = made;
    return LK_OK;
}

static void end_courier(void *context, uint64_t grace_ms)
{
    struct lk_courier *courier = context;

    uv_mutex_lock(&courier->mutex);
    courier->stop_asked = true;
    courier->grace_ms = grace_ms;
    uv_mutex_unlock(&courier->mutex);
    lk_poll_ring(&courier->poll);
}

/* The thread frees nothing that others use before it is joined. */
static void stop_courier(void *context, uint64_t grace_ms)
{
    struct lk_courier *courier = context;

    if (!courier) {
        return;
    }
    lk_watch_stop(courier->watch);
    lk_prober_stop(courier->prober);
    end_courier(courier, grace_ms);
    uv_thread_join(&courier->thread);
    size_t lost = courier->ended.count + courier->later.count;
    lk_log(lost ? LK_LOG_WARN : LK_LOG_INFO, "courier-stopped",
           "works=%llu not_recorded=%zu", (unsigned long long)courier->works,
           lost);
    free_courier(courier);
}

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

static void show_status(void *context, lk_target_status_fn row,
                        void *row_context)
{
    struct lk_courier *courier = context;
    uint64_t now_ms = lk_courier_clock_ms();
    bool more = true;

    uv_mutex_lock(&courier->mutex);
    for (struct lk_outlet *outlet = courier->outlets; outlet && more;
         outlet = outlet->next) {
        const struct lk_outlet_shown *shown = &outlet->shown;
        uint64_t until_ms = shown->circuit_until_ms;
        struct lk_target_status status = {
            .name = latchkey_slice(outlet->name),
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

static void probe_now(void *context, struct lk_probe_demand *demand)
{
    struct lk_courier *courier = context;

    lk_prober_ask(courier->prober, demand);
}

static void hush_prober(void *context)
{
    struct lk_courier *courier = context;

    lk_prober_hush(courier->prober);
}

const struct lk_outbox_class lk_courier_class = {
    .start = start_courier,
    .wake = wake_courier,
    .reload = reload_courier,
    .status = show_status,
    .probe = probe_now,
    .hush = hush_prober,
    .end = end_courier,
    .stop = stop_courier,
};
