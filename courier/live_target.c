/*
 * live_target.c - a live target: a target as the courier runs it. What it has
 * room for, its circuit and rate, its handles, and its settings.
 *
 *   phase         what holds                          goes on by
 *   configured    its jobs are leased and called      a reload without it
 *   not           nothing is leased; ready            a reload that names it
 *   configured    deliveries are returned; running    again; or the end of
 *                 calls go on to their end            the courier
 *
 * The courier's thread owns it. Other threads find it by name and read `shown`
 * under the courier's mutex, and take from its rate under rate_mutex. It is
 * never removed while the courier runs, so a pointer to it stays valid;
 * lk_live_target_free is for the courier's end.
 */
#include "courier/courier.h"
#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t smaller_of(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* How many calls the circuit allows beyond those in hand. */
static size_t circuit_room(struct lk_live_target *live, uint64_t now_ms,
                           uint64_t *again_ms)
{
    switch (lk_circuit_state_at(&live->circuit, now_ms)) {
    case LK_CIRCUIT_CLOSED:
        return SIZE_MAX;
    case LK_CIRCUIT_HALF_OPEN:
        return live->trials ? 0 : 1;
    case LK_CIRCUIT_OPEN:
        break;
    }
    lk_lower_ms(again_ms, live->circuit.until_ms);
    return 0;
}

/* Returns how many calls may begin now, and sets how long until one may. The
 * clock is read under the lock, so that it does not go back between threads. */
static uint64_t read_rate(struct lk_live_target *live, uint64_t *wait_ms)
{
    *wait_ms = 0;
    if (!live->target->rate) {
        return UINT64_MAX;
    }
    uv_mutex_lock(&live->rate_mutex);
    uint64_t tokens =
        lk_rate_tokens_at(&live->rate, live->target, lk_courier_clock_ms());
    *wait_ms = lk_rate_wait_ms(&live->rate, live->target);
    uv_mutex_unlock(&live->rate_mutex);
    return tokens;
}

/*
 * Some jobs are leased ahead (prefetch), so that calls need not wait for the
 * store: twice as many as calls ended between two leases. A slow target has
 * none of these: another courier may be free to call them.
 */
size_t lk_live_target_room(const struct lk_courier *courier,
                           struct lk_live_target *live, uint64_t *again_ms)
{
    uint64_t now_ms = courier->now_ms;

    if (!live->configured || live->asked) {
        return 0;
    }
    size_t held = live->ready.count + live->busy;
    size_t limit = (size_t)live->target->concurrency + live->prefetch;
    size_t room = held < limit ? limit - held : 0;
    room = smaller_of(room, circuit_room(live, now_ms, again_ms));
    uint64_t wait_ms;
    uint64_t tokens = read_rate(live, &wait_ms);
    if (room && tokens <= live->ready.count) {
        lk_lower_ms(again_ms, now_ms + 1 + wait_ms);
        return 0;
    }
    return smaller_of(tokens - live->ready.count, room);
}

bool lk_live_target_may_call(const struct lk_courier *courier,
                             struct lk_live_target *live, uint64_t *again_ms)
{
    if (!live->ready.head || live->busy >= live->target->concurrency) {
        return false;
    }
    uint64_t wait_ms;
    if (!read_rate(live, &wait_ms)) {
        lk_lower_ms(again_ms, courier->now_ms + wait_ms);
        return false;
    }
    return true;
}

void lk_live_target_spend(struct lk_live_target *live)
{
    if (!live->target->rate) {
        return;
    }
    uv_mutex_lock(&live->rate_mutex);
    lk_rate_take(&live->rate, live->target);
    uv_mutex_unlock(&live->rate_mutex);
}

struct lk_live_target *lk_live_target_find(const struct lk_courier *courier,
                                           const char *name)
{
    struct lk_live_target *found = courier->live_targets;

    while (found && strcmp(found->name, name) != 0) {
        found = found->next;
    }
    return found;
}

/* A target that the courier has not adopted yet has no calls either. */
uint64_t lk_courier_reserve_call(void *context, const struct lk_target *target)
{
    struct lk_courier *courier = context;

    if (!target->rate) {
        return 0;
    }
    uv_mutex_lock(&courier->mutex);
    struct lk_live_target *live = lk_live_target_find(courier, target->name);
    uv_mutex_unlock(&courier->mutex);
    if (!live) {
        return 0;
    }
    uv_mutex_lock(&live->rate_mutex);
    uint64_t wait_ms =
        lk_rate_reserve(&live->rate, target, lk_courier_clock_ms());
    uv_mutex_unlock(&live->rate_mutex);
    return wait_ms;
}

/* ---- circuit and counts -------------------------------------------------- */

/* The circuit has just opened or closed. */
static void log_circuit(const struct lk_live_target *live, const char *reason)
{
    char name[LK_LOG_QUOTED];
    char why[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(live->name), name, sizeof(name));
    if (live->circuit.state == LK_CIRCUIT_CLOSED) {
        lk_log(LK_LOG_INFO, "circuit-closed", "target=%s", name);
        return;
    }
    lk_log(LK_LOG_WARN, "circuit-open",
           "target=%s failures=%llu wait_ms=%llu reason=%s", name,
           (unsigned long long)live->circuit.failures,
           (unsigned long long)live->target->circuit_open_ms,
           lk_log_quote(latchkey_slice(reason), why, sizeof(why)));
}

/* Returns what was leased and has not left: another courier may reach the
 * target, and the attempt does not count. */
static void return_ready_deliveries(struct lk_courier *courier,
                                    struct lk_live_target *live)
{
    uint64_t wait_ms = live->circuit.until_ms - courier->now_ms;
    struct lk_delivery *delivery;

    while ((delivery = lk_deliveries_take(&live->ready))) {
        lk_delivery_return(courier, delivery, wait_ms,
                           "the target's circuit is open");
    }
}

/* For STATS; a failure is also the target's last error. */
static void count_delivery_end(struct lk_live_target_view *now,
                               const struct lk_delivery *delivery)
{
    switch (delivery->result.end) {
    case LK_END_DELIVERED:
        now->delivered++;
        return;
    case LK_END_DEAD:
        now->dead++;
        break;
    case LK_END_UNCERTAIN:
        now->uncertain++;
        break;
    case LK_END_RETRY:
    case LK_END_RETURN:
        break;
    }
    now->failed++;
    snprintf(now->last_error, sizeof(now->last_error), "%.*s",
             LK_LAST_ERROR - 1, delivery->result.reason);
}

void lk_live_target_note_end(struct lk_courier *courier,
                             struct lk_delivery *delivery)
{
    struct lk_live_target *live = delivery->live;

    count_delivery_end(&live->now, delivery);
    live->dirty = true;
    if (!lk_circuit_note_end(&live->circuit, live->target,
                             delivery->result.healthy, delivery->trial,
                             courier->now_ms)) {
        return;
    }
    lk_courier_publish(courier); /* STATS agrees with the log line below */
    log_circuit(live, delivery->result.reason);
    if (live->circuit.state == LK_CIRCUIT_OPEN) {
        return_ready_deliveries(courier, live);
    }
}

void lk_courier_publish(struct lk_courier *courier)
{
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        struct lk_live_target_view *now = &live->now;
        enum lk_circuit_state circuit =
            lk_circuit_state_at(&live->circuit, courier->now_ms);
        if (!live->dirty && now->in_flight == live->busy &&
            now->circuit == circuit) {
            continue;
        }
        now->configured = live->configured;
        now->in_flight = live->busy;
        now->circuit = circuit;
        now->circuit_until_ms = live->circuit.until_ms;
        uv_mutex_lock(&courier->mutex);
        live->shown = *now;
        uv_mutex_unlock(&courier->mutex);
        live->dirty = false;
    }
}

/* ---- handles ------------------------------------------------------------- */

struct lk_exchange *lk_live_target_take_exchange(struct lk_live_target *live)
{
    if (live->idle_count) {
        return live->idle[--live->idle_count];
    }
    return calloc(1, sizeof(struct lk_exchange));
}

static void free_exchange(struct lk_exchange *exchange)
{
    lk_exchange_free(exchange);
    free(exchange);
}

void lk_live_target_put_exchange(struct lk_live_target *live,
                                 struct lk_exchange *exchange)
{
    if (live->idle_count == live->idle_cap) {
        size_t cap = live->idle_cap ? 2 * live->idle_cap : 16;
        void *idle = cap > 2 * live->target->concurrency + 16
                         ? NULL
                         : realloc(live->idle, cap * sizeof(*live->idle));
        if (!idle) {
            free_exchange(exchange);
            return;
        }
        live->idle = idle;
        live->idle_cap = cap;
    }
    live->idle[live->idle_count++] = exchange;
}

void lk_live_target_drop_exchanges(struct lk_live_target *live)
{
    while (live->idle_count) {
        free_exchange(live->idle[--live->idle_count]);
    }
}

void lk_live_target_free(struct lk_live_target *live)
{
    lk_live_target_drop_exchanges(live);
    free(live->idle);
    lk_targets_free(&live->own);
    uv_mutex_destroy(&live->rate_mutex);
    free(live);
}

/* ---- settings ------------------------------------------------------------ */

/* Of the gateway's socket, for which the configuration has no settings. */
enum {
    GATEWAY_CONNECT_MS = 3000,
    GATEWAY_BACKOFF_MS = 1000,
    GATEWAY_BACKOFF_MAX_MS = 5 * 60 * 1000,
    GATEWAY_RETRY_AFTER_MAX_MS = 60 * 60 * 1000,
    GATEWAY_CIRCUIT_FAILURES = 10,
    GATEWAY_CIRCUIT_OPEN_MS = 5000,
    CONNECTIONS_MIN = 64, /* open at once, idle ones included */
    CONNECTIONS_MAX = 2048,
    LEASE_MIN_MS = 100,
};

void lk_courier_settings_free(struct lk_courier_settings *settings)
{
    if (settings) {
        lk_targets_free(&settings->targets);
        free(settings->gateway);
        free(settings);
    }
}

enum lk_status lk_courier_settings_make(const struct lk_config *config,
                                        struct lk_courier_settings **settings)
{
    struct lk_courier_settings *made = calloc(1, sizeof(*made));
    enum lk_status status = LK_NOMEM;

    if (!made) {
        return LK_NOMEM;
    }
    made->gateway_timeout_ms = config->gateway_timeout_ms;
    made->gateway_concurrency = config->gateway_concurrency;
    made->gateway_attempts = config->gateway_attempts;
    made->gateway_max_age_ms = config->gateway_max_age_ms;
    made->lease_ms =
        config->lease_ms > LEASE_MIN_MS ? config->lease_ms : LEASE_MIN_MS;
    made->lease_batch = config->lease_batch ? config->lease_batch : 1;
    made->response_bytes = config->answer_bytes;
    made->poll_ms = config->poll_ms ? config->poll_ms : 1000;
    made->gateway = config->gateway ? strdup(config->gateway) : NULL;
    if (made->gateway || !config->gateway) {
        status = lk_targets_copy(&config->targets, &made->targets);
    }
    if (status) {
        lk_courier_settings_free(made);
        made = NULL;
    }
    *settings = made;
    return status;
}

/* The gateway is like a target that does not honour keys: each request has a
 * connection of its own. */
static void set_gateway_target(struct lk_live_target *live,
                               const struct lk_courier_settings *settings)
{
    live->internal = (struct lk_target){
        .name = live->name,
        .url = (char *)"http://gateway/",
        .socket = settings->gateway,
        .connect_timeout_ms = GATEWAY_CONNECT_MS,
        .timeout_ms = settings->gateway_timeout_ms,
        .concurrency = settings->gateway_concurrency,
        .attempts = settings->gateway_attempts,
        .max_age_ms = settings->gateway_max_age_ms,
        .backoff_ms = GATEWAY_BACKOFF_MS,
        .backoff_max_ms = GATEWAY_BACKOFF_MAX_MS,
        .retry_after_max_ms = GATEWAY_RETRY_AFTER_MAX_MS,
        .circuit_failures = GATEWAY_CIRCUIT_FAILURES,
        .circuit_open_ms = GATEWAY_CIRCUIT_OPEN_MS,
        .http = LK_HTTP_1_1,
    };
    live->gateway = true;
    live->target = &live->internal;
}

/* The live target of this name; made if there is none. NULL: out of memory. */
static struct lk_live_target *find_or_add_live_target(
    struct lk_courier *courier, const char *name)
{
    struct lk_live_target *live = lk_live_target_find(courier, name);

    if (live) {
        return live;
    }
    live = calloc(1, sizeof(*live));
    if (live && uv_mutex_init(&live->rate_mutex)) {
        free(live);
        return NULL;
    }
    if (live) {
        snprintf(live->name, sizeof(live->name), "%s", name);
        uv_mutex_lock(&courier->mutex);
        live->next = courier->live_targets;
        courier->live_targets = live;
        uv_mutex_unlock(&courier->mutex);
    }
    return live;
}

/* Out of memory: it goes on with its old settings, or is not configured. */
static void adopt_target_settings(struct lk_courier *courier,
                                  struct lk_target *target)
{
    struct lk_live_target *live =
        find_or_add_live_target(courier, target->name);
    struct lk_targets one = {.targets = target, .count = 1};
    struct lk_targets copy;

    if (!live) {
        return;
    }
    if (!lk_targets_copy(&one, &copy)) {
        lk_targets_free(&live->own);
        live->own = copy;
        live->target = copy.targets;
    }
    live->configured = live->target != NULL;
}

/* After new settings: deliveries of a target that is gone are returned, and
 * idle handles are dropped. */
static void settle_live_target(struct lk_courier *courier,
                               struct lk_live_target *live)
{
    struct lk_delivery *delivery;

    while (!live->configured && (delivery = lk_deliveries_take(&live->ready))) {
        lk_delivery_return(courier, delivery, 0,
                           "the target is not configured any more");
    }
    lk_live_target_drop_exchanges(live);
    if (live->gateway && !live->configured) {
        live->internal.socket = NULL; /* belongs to the old settings */
    }
    live->next_ask_ms = 0;
    live->dirty = true;
}

/* curl closes idle connections beyond this. */
static void set_connection_limit(struct lk_courier *courier)
{
    uint64_t sum = 0;

    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        sum += live->configured ? live->target->concurrency : 0;
    }
    sum = sum < CONNECTIONS_MIN ? CONNECTIONS_MIN : sum;
    sum = sum > CONNECTIONS_MAX ? CONNECTIONS_MAX : sum;
    curl_multi_setopt(courier->poll.multi, CURLMOPT_MAXCONNECTS, (long)sum);
}

/* `renew`: the length of leases has changed. */
static void adopt_deliveries(struct lk_courier *courier, bool renew)
{
    for (struct lk_delivery *delivery = courier->deliveries; delivery;
         delivery = delivery->next_of_all) {
        if (delivery->exchange) {
            delivery->exchange->ready = false;
        }
        if (renew) {
            delivery->lease_from_ms = 0;
        }
    }
    courier->renew_ms = renew ? 0 : courier->renew_ms;
}

/* Running calls go on with the options they began with; their handles get the
 * new ones before they are used again. */
void lk_courier_adopt(struct lk_courier *courier,
                      struct lk_courier_settings *settings)
{
    struct lk_courier_settings *old = courier->settings;

    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        live->configured = false;
    }
    for (size_t i = 0; i < settings->targets.count; i++) {
        adopt_target_settings(courier, &settings->targets.targets[i]);
    }
    if (settings->gateway) {
        struct lk_live_target *live =
            find_or_add_live_target(courier, LK_TARGET_GATEWAY);
        if (live) {
            set_gateway_target(live, settings);
            live->configured = true;
        }
    }
    courier->settings = settings;
    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        settle_live_target(courier, live);
    }
    adopt_deliveries(courier, old && old->lease_ms != settings->lease_ms);
    set_connection_limit(courier);
    lk_courier_settings_free(old);
}
