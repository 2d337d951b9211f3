/* probe_places.c - whom the configuration says to ask, and how often. */
#include "courier/probe_parts.h"

#include "daemon/log.h"

#include <stdlib.h>

enum { TICK_LEAST_MS = 20, TICK_MOST_MS = 10000 };

static bool is_template(const char *path, const char *kind, const char *name)
{
    const struct lk_slice any = LK_SLICE("x");
    struct lk_buf out = {0};
    enum lk_status status = lk_probe_path(
        path, &(struct lk_probe_words){any, any, any, any, any, any}, &out);

    if (!status && lk_path_fault(latchkey_buf_slice(&out))) {
        status = LK_INVALID;
    }
    latchkey_buf_free(&out);
    if (status) {
        char quoted[LK_LOG_QUOTED];
        lk_log(LK_LOG_ERROR, "probe-invalid", "%s=%s path=%s", kind, name,
               lk_log_quote(latchkey_slice(path), quoted, sizeof(quoted)));
    }
    return !status;
}

static void add_target(struct lk_prober *prober, const struct lk_target *target)
{
    if (target->probe.path &&
        is_template(target->probe.path, "target", target->name)) {
        prober->places[prober->place_count++] =
            (struct lk_probe_place){.target = target, .probe = &target->probe};
    }
}

static void add_route(struct lk_prober *prober, const struct lk_route *route)
{
    const struct lk_target *target =
        route->target
            ? lk_target_find(&prober->targets, latchkey_slice(route->target))
            : NULL;

    if (route->probe.path &&
        (!target || !is_template(route->probe.path, "route", route->name))) {
        return;
    }
    if (route->rollback_target) {
        const struct lk_target *other = lk_target_find(
            &prober->targets, latchkey_slice(route->rollback_target));
        if (!other || !route->rollback_path ||
            !is_template(route->rollback_path, "route", route->name)) {
            return;
        }
        target = target ? target : other;
    }
    if (route->probe.path || route->rollback_target) {
        prober->places[prober->place_count++] = (struct lk_probe_place){
            .target = target, .route = route, .probe = &route->probe};
        prober->has_routes = true;
    }
}

enum lk_status lk_probe_places_make(struct lk_prober *prober)
{
    const struct lk_targets *targets = &prober->targets;
    size_t most = targets->count + targets->route_count;

    free(prober->places);
    prober->place_count = 0;
    prober->has_routes = false;
    prober->cursor = 0;
    prober->places = calloc(most + 1, sizeof(*prober->places));
    if (!prober->places) {
        return LK_NOMEM;
    }
    for (size_t i = 0; i < targets->count; i++) {
        add_target(prober, &targets->targets[i]);
    }
    for (size_t i = 0; i < targets->route_count; i++) {
        add_route(prober, &targets->routes[i]);
    }
    return LK_OK;
}

uint64_t lk_probe_tick_ms(const struct lk_prober *prober)
{
    uint64_t tick = TICK_MOST_MS;

    for (size_t i = 0; i < prober->place_count; i++) {
        const struct lk_probe *probe = prober->places[i].probe;
        tick = probe->interval_ms < tick ? probe->interval_ms : tick;
    }
    return tick < TICK_LEAST_MS ? TICK_LEAST_MS : tick;
}
