/* outlet.c - a target as it runs here: what it has room for, how it does. */
#include "courier/courier.h"
#include "daemon/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void lower(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

static size_t least(uint64_t a, size_t b)
{
    return a < b ? (size_t)a : b;
}

/* By the circuit alone. */
static size_t circuit_room(struct lk_outlet *outlet, uint64_t now_ms,
                           uint64_t *again_ms)
{
    switch (lk_circuit_look(&outlet->circuit, now_ms)) {
    case LK_CIRCUIT_CLOSED:
        return SIZE_MAX;
    case LK_CIRCUIT_HALF_OPEN:
        return outlet->trials ? 0 : 1;
    case LK_CIRCUIT_OPEN:
        break;
    }
    lower(again_ms, outlet->circuit.until_ms);
    return 0;
}

/*
 * Some jobs are leased ahead, so that calls need not wait for the store: as
 * many as twice what ended between two leases. A slow target has none of these;
 * other couriers may want them.
 */
/* The clock is read under the lock: it must not go back between two threads. */
static uint64_t look_at_rate(struct lk_outlet *outlet, uint64_t *wait_ms)
{
    *wait_ms = 0;
    if (!outlet->target->rate) {
        return UINT64_MAX;
    }
    uv_mutex_lock(&outlet->rate_mutex);
    uint64_t tokens =
        lk_rate_look(&outlet->rate, outlet->target, lk_courier_clock_ms());
    *wait_ms = lk_rate_wait_ms(&outlet->rate, outlet->target);
    uv_mutex_unlock(&outlet->rate_mutex);
    return tokens;
}

size_t lk_outlet_room(const struct lk_courier *courier,
                      struct lk_outlet *outlet, uint64_t *again_ms)
{
    uint64_t now_ms = courier->now_ms;

    if (!outlet->configured || outlet->asked) {
        return 0;
    }
    size_t held = outlet->ready.count + outlet->busy;
    size_t limit = (size_t)outlet->target->concurrency + outlet->ahead;
    size_t room = held < limit ? limit - held : 0;
    room = least(room, circuit_room(outlet, now_ms, again_ms));
    uint64_t wait_ms;
    uint64_t tokens = look_at_rate(outlet, &wait_ms);
    if (room && tokens <= outlet->ready.count) {
        lower(again_ms, now_ms + 1 + wait_ms);
        return 0;
    }
    return least(tokens - outlet->ready.count, room);
}

bool lk_outlet_may_call(const struct lk_courier *courier,
                        struct lk_outlet *outlet, uint64_t *again_ms)
{
    if (!outlet->ready.head || outlet->busy >= outlet->target->concurrency) {
        return false;
    }
    uint64_t wait_ms;
    if (!look_at_rate(outlet, &wait_ms)) {
        lower(again_ms, courier->now_ms + wait_ms);
        return false;
    }
    return true;
}

void lk_outlet_spend(struct lk_outlet *outlet)
{
    if (!outlet->target->rate) {
        return;
    }
    uv_mutex_lock(&outlet->rate_mutex);
    lk_rate_take(&outlet->rate, outlet->target);
    uv_mutex_unlock(&outlet->rate_mutex);
}

struct lk_outlet *lk_outlet_find(const struct lk_courier *courier,
                                 const char *name)
{
    struct lk_outlet *found = courier->outlets;

    while (found && strcmp(found->name, name) != 0) {
        found = found->next;
    }
    return found;
}

/* An outlet is never removed. One that the courier has not made yet has no
 * calls either. */
uint64_t lk_courier_reserve(void *context, const struct lk_target *target)
{
    struct lk_courier *courier = context;

    if (!target->rate) {
        return 0;
    }
    uv_mutex_lock(&courier->mutex);
    struct lk_outlet *outlet = lk_outlet_find(courier, target->name);
    uv_mutex_unlock(&courier->mutex);
    if (!outlet) {
        return 0;
    }
    uv_mutex_lock(&outlet->rate_mutex);
    uint64_t wait_ms =
        lk_rate_reserve(&outlet->rate, target, lk_courier_clock_ms());
    uv_mutex_unlock(&outlet->rate_mutex);
    return wait_ms;
}

/* ---- how it does --------------------------------------------------------- */

static void say_circuit(const struct lk_outlet *outlet, const char *reason)
{
    char name[LK_LOG_QUOTED];
    char why[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(outlet->name), name, sizeof(name));
    if (outlet->circuit.state == LK_CIRCUIT_CLOSED) {
        lk_log(LK_LOG_INFO, "circuit-closed", "target=%s", name);
        return;
    }
    lk_log(LK_LOG_WARN, "circuit-open",
           "target=%s failures=%llu wait_ms=%llu reason=%s", name,
           (unsigned long long)outlet->circuit.failures,
           (unsigned long long)outlet->target->circuit_open_ms,
           lk_log_quote(latchkey_slice(reason), why, sizeof(why)));
}

/* What was leased and has not left is given back: somebody else may do better,
 * and nothing is counted against it. */
static void return_ready(struct lk_courier *courier, struct lk_outlet *outlet)
{
    uint64_t wait_ms = outlet->circuit.until_ms - courier->now_ms;
    struct lk_errand *errand;

    while ((errand = lk_errands_take(&outlet->ready))) {
        lk_errand_return(courier, errand, wait_ms,
                         "the target's circuit is open");
    }
}

static void count_end(struct lk_outlet_shown *now,
                      const struct lk_errand *errand)
{
    switch (errand->result.end) {
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
             LK_LAST_ERROR - 1, errand->result.reason);
}

void lk_outlet_note(struct lk_courier *courier, struct lk_errand *errand)
{
    struct lk_outlet *outlet = errand->outlet;

    count_end(&outlet->now, errand);
    outlet->dirty = true;
    if (!lk_circuit_note(&outlet->circuit, outlet->target,
                         errand->result.healthy, errand->trial,
                         courier->now_ms)) {
        return;
    }
    lk_courier_publish(courier); /* who reads the log sees it */
    say_circuit(outlet, errand->result.reason);
    if (outlet->circuit.state == LK_CIRCUIT_OPEN) {
        return_ready(courier, outlet);
    }
}

void lk_courier_publish(struct lk_courier *courier)
{
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        struct lk_outlet_shown *now = &outlet->now;
        enum lk_circuit_state circuit =
            lk_circuit_look(&outlet->circuit, courier->now_ms);
        if (!outlet->dirty && now->in_flight == outlet->busy &&
            now->circuit == circuit) {
            continue;
        }
        now->configured = outlet->configured;
        now->in_flight = outlet->busy;
        now->circuit = circuit;
        now->circuit_until_ms = outlet->circuit.until_ms;
        uv_mutex_lock(&courier->mutex);
        outlet->shown = *now;
        uv_mutex_unlock(&courier->mutex);
        outlet->dirty = false;
    }
}

/* ---- handles ------------------------------------------------------------- */

struct lk_exchange *lk_outlet_take(struct lk_outlet *outlet)
{
    if (outlet->idle_count) {
        return outlet->idle[--outlet->idle_count];
    }
    return calloc(1, sizeof(struct lk_exchange));
}

static void free_exchange(struct lk_exchange *exchange)
{
    lk_exchange_free(exchange);
    free(exchange);
}

void lk_outlet_put(struct lk_outlet *outlet, struct lk_exchange *exchange)
{
    if (outlet->idle_count == outlet->idle_cap) {
        size_t cap = outlet->idle_cap ? 2 * outlet->idle_cap : 16;
        void *idle = cap > 2 * outlet->target->concurrency + 16
                         ? NULL
                         : realloc(outlet->idle, cap * sizeof(*outlet->idle));
        if (!idle) {
            free_exchange(exchange);
            return;
        }
        outlet->idle = idle;
        outlet->idle_cap = cap;
    }
    outlet->idle[outlet->idle_count++] = exchange;
}

void lk_outlet_forget_handles(struct lk_outlet *outlet)
{
    while (outlet->idle_count) {
        free_exchange(outlet->idle[--outlet->idle_count]);
    }
}

void lk_outlet_free(struct lk_outlet *outlet)
{
    lk_outlet_forget_handles(outlet);
    free(outlet->idle);
    lk_targets_free(&outlet->own);
    uv_mutex_destroy(&outlet->rate_mutex);
    free(outlet);
}
