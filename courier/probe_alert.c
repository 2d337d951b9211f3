/*
 * probe_alert.c - says how much is uncertain of each target and route, and
 * since when, as long as it does not become less. The daemon itself tells of
 * all operations together, with a courier or without.
 */
#include "courier/probe_parts.h"

#include "daemon/log.h"

#include <stdlib.h>
#include <string.h>

#define LOOK_NS  (UINT64_C(1000000000))
#define AGAIN_NS (60 * LOOK_NS)

enum {
    ALERTS_MOST = 1024,
    TIMES = 20, /* looking takes at most one in so many moments */
};

/* What was said of a target's jobs. */
struct lk_probe_alert {
    char name[LK_TARGET_NAME_MAX + 1];
    struct lk_probe_tally tally;
};

/* Once a minute at most; a count that has fallen since is not worth it. */
static bool is_worth_telling(struct lk_probe_tally *tally)
{
    uint64_t now = lk_probe_now_ns();

    if (tally->told_ns && now - tally->told_ns < AGAIN_NS) {
        return false;
    }
    bool falls = tally->count < tally->told_count;
    tally->told_count = tally->count;
    tally->told_ns = tally->count ? now : 0;
    return tally->count && !falls;
}

static void tell(const char *what, const char *kind, const char *name,
                 struct lk_probe_tally *tally, uint64_t now_ms)
{
    if (is_worth_telling(tally)) {
        uint64_t age =
            now_ms > tally->oldest_ms ? now_ms - tally->oldest_ms : 0;
        lk_log(LK_LOG_WARN, "uncertain",
               "kind=%s %s=%s count=%llu oldest_s=%llu", what, kind, name,
               (unsigned long long)tally->count,
               (unsigned long long)(age / 1000));
    }
}

/* ---- jobs ---------------------------------------------------------------- */

static struct lk_probe_alert *alert_of(struct lk_prober *prober,
                                       struct lk_slice name)
{
    for (size_t i = 0; i < prober->alert_count; i++) {
        if (latchkey_slice_equal(name,
                                 latchkey_slice(prober->alerts[i].name))) {
            return &prober->alerts[i];
        }
    }
    if (prober->alert_count == ALERTS_MOST || name.len > LK_TARGET_NAME_MAX) {
        return NULL;
    }
    struct lk_probe_alert *alerts = realloc(
        prober->alerts, (prober->alert_count + 1) * sizeof(*prober->alerts));
    if (!alerts) {
        return NULL;
    }
    prober->alerts = alerts;
    struct lk_probe_alert *alert = &alerts[prober->alert_count++];
    *alert = (struct lk_probe_alert){0};
    memcpy(alert->name, name.data, name.len);
    return alert;
}

/* Requests are counted as operations, not twice. */
static bool count_target(void *context,
                         const struct lk_target_summary *standing)
{
    struct lk_probe_alert *alert;

    if (standing->jobs[LK_JOB_UNCERTAIN] &&
        !latchkey_slice_equal(standing->name, LK_SLICE(LK_TARGET_GATEWAY)) &&
        (alert = alert_of(context, standing->name)) != NULL) {
        alert->tally.count = standing->jobs[LK_JOB_UNCERTAIN];
        alert->tally.oldest_ms = standing->oldest_uncertain_ms;
    }
    return true;
}

void lk_probe_alerts_free(struct lk_prober *prober)
{
    free(prober->alerts);
    prober->alerts = NULL;
    prober->alert_count = 0;
}

/* ---- all ----------------------------------------------------------------- */

void lk_probe_alert(struct lk_prober *prober)
{
    struct lk_store *store = prober->setup.store;
    struct lk_store_stats stats = {0};
    uint64_t started_ns = lk_probe_now_ns();

    if (started_ns < prober->alert_ns) {
        return;
    }
    store->class->stats(store, &stats);
    for (size_t i = 0; i < prober->alert_count; i++) {
        prober->alerts[i].tally.count = 0;
    }
    if (!store->class->targets(store, count_target, prober)) {
        for (size_t i = 0; i < prober->alert_count; i++) {
            tell("job", "target", prober->alerts[i].name,
                 &prober->alerts[i].tally, stats.now_ms);
        }
    }
    for (size_t i = 0; i < prober->place_count; i++) {
        if (prober->places[i].route) {
            tell("operation", "route", prober->places[i].route->name,
                 &prober->places[i].tally, stats.now_ms);
        }
    }
    uint64_t took_ns = lk_probe_now_ns() - started_ns;
    prober->alert_ns =
        started_ns + (took_ns > LOOK_NS / TIMES ? TIMES * took_ns : LOOK_NS);
}
