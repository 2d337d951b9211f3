/* settings.c - what the courier takes from the configuration, and how it turns
 * to a new one while it runs. */
#include "courier/courier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the gateway's socket, where the configuration has nothing to say. */
enum {
    GATEWAY_CONNECT_MS = 3000,
    GATEWAY_BACKOFF_MS = 1000,
    GATEWAY_BACKOFF_MAX_MS = 5 * 60 * 1000,
    GATEWAY_RETRY_AFTER_MAX_MS = 60 * 60 * 1000,
    GATEWAY_CIRCUIT_FAILURES = 10,
    GATEWAY_CIRCUIT_OPEN_MS = 5000,
    CONNECTIONS_MIN = 64, /* kept open, idle ones among them */
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
    made->batch = config->lease_batch ? config->lease_batch : 1;
    made->answer_bytes = config->answer_bytes;
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

/* The gateway looks like a target that does not honour keys: each request has
 * a connection of its own. */
static void set_gateway(struct lk_outlet *outlet,
                        const struct lk_courier_settings *settings)
{
    outlet->internal = (struct lk_target){
        .name = outlet->name,
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
    outlet->gateway = true;
    outlet->target = &outlet->internal;
}

/* That of this name, made if there is none. NULL: out of memory. */
static struct lk_outlet *need_outlet(struct lk_courier *courier,
                                     const char *name)
{
    struct lk_outlet *outlet = lk_outlet_find(courier, name);

    if (outlet) {
        return outlet;
    }
    outlet = calloc(1, sizeof(*outlet));
    if (outlet && uv_mutex_init(&outlet->rate_mutex)) {
        free(outlet);
        return NULL;
    }
    if (outlet) {
        snprintf(outlet->name, sizeof(outlet->name), "%s", name);
        uv_mutex_lock(&courier->mutex);
        outlet->next = courier->outlets;
        courier->outlets = outlet;
        uv_mutex_unlock(&courier->mutex);
    }
    return outlet;
}

/* Out of memory: it goes on as it was, or is not served. */
static void adopt_target(struct lk_courier *courier, struct lk_target *target)
{
    struct lk_outlet *outlet = need_outlet(courier, target->name);
    struct lk_targets one = {.targets = target, .count = 1};
    struct lk_targets copy;

    if (!outlet) {
        return;
    }
    if (!lk_targets_copy(&one, &copy)) {
        lk_targets_free(&outlet->own);
        outlet->own = copy;
        outlet->target = copy.targets;
    }
    outlet->configured = outlet->target != NULL;
}

/* Errands that have not left are not for a target that is gone. */
static void settle_outlet(struct lk_courier *courier, struct lk_outlet *outlet)
{
    struct lk_errand *errand;

    while (!outlet->configured && (errand = lk_errands_take(&outlet->ready))) {
        lk_errand_return(courier, errand, 0,
                         "the target is not configured any more");
    }
    lk_outlet_forget_handles(outlet);
    if (outlet->gateway && !outlet->configured) {
        outlet->internal.socket = NULL; /* it was the old settings' */
    }
    outlet->next_ask_ms = 0;
    outlet->dirty = true;
}

static void set_connections(struct lk_courier *courier)
{
    uint64_t sum = 0;

    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        sum += outlet->configured ? outlet->target->concurrency : 0;
    }
    sum = sum < CONNECTIONS_MIN ? CONNECTIONS_MIN : sum;
    sum = sum > CONNECTIONS_MAX ? CONNECTIONS_MAX : sum;
    curl_multi_setopt(courier->poll.multi, CURLMOPT_MAXCONNECTS, (long)sum);
}

static void adopt_errands(struct lk_courier *courier, bool renew)
{
    for (struct lk_errand *errand = courier->hand; errand;
         errand = errand->right) {
        if (errand->exchange) {
            errand->exchange->ready = false;
        }
        if (renew) {
            errand->lease_ms = 0;
        }
    }
    courier->renew_ms = renew ? 0 : courier->renew_ms;
}

/* Calls that run go on as they began; their handles get the new options before
 * they are used again. */
void lk_courier_adopt(struct lk_courier *courier,
                      struct lk_courier_settings *settings)
{
    struct lk_courier_settings *old = courier->settings;

    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        outlet->configured = false;
    }
    for (size_t i = 0; i < settings->targets.count; i++) {
        adopt_target(courier, &settings->targets.targets[i]);
    }
    if (settings->gateway) {
        struct lk_outlet *outlet = need_outlet(courier, LK_TARGET_GATEWAY);
        if (outlet) {
            set_gateway(outlet, settings);
            outlet->configured = true;
        }
    }
    courier->settings = settings;
    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        settle_outlet(courier, outlet);
    }
    adopt_errands(courier, old && old->lease_ms != settings->lease_ms);
    set_connections(courier);
    lk_courier_settings_free(old);
}
