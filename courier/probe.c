/*
 * probe.c - the prober's thread: turn by turn each target and the routes'
 * operations, and in between whatever somebody wants to know at once.
 */
#include "courier/probe_parts.h"

#include "daemon/log.h"
#include "daemon/thread.h"

#include <stdlib.h>

#define MS_NS UINT64_C(1000000)

enum {
    NOTES = 65536,
    TURN_MS = 2000,    /* then others have theirs */
    DEMAND_MS = 20000, /* a call that is under way then comes on top */
};

uint64_t lk_probe_now_ns(void)
{
    return uv_hrtime();
}

static bool is_wanted(const struct lk_prober *prober, bool lightly)
{
    return atomic_load(&prober->stopping) ||
           (lightly && (prober->has_fresh || prober->demands));
}

void lk_probe_sleep(struct lk_prober *prober, uint64_t ns, bool lightly)
{
    uint64_t until = uv_hrtime() + ns;

    uv_mutex_lock(&prober->lock);
    for (uint64_t now;
         !is_wanted(prober, lightly) && (now = uv_hrtime()) < until;) {
        (void)uv_cond_timedwait(&prober->changed, &prober->lock, until - now);
    }
    uv_mutex_unlock(&prober->lock);
}

/* ---- turns --------------------------------------------------------------- */

/* One stretch of work: until when, and what it came to. */
struct turn {
    uint64_t until_ns;
    bool now; /* whether or not its time has come */
    const struct lk_target *only;
    struct lk_probe_counts counts;
};

static bool is_over(struct lk_prober *prober, const struct turn *turn)
{
    return atomic_load(&prober->stopping) || uv_hrtime() > turn->until_ns;
}

/* What was not reached in time is still open, as far as a demand counts. */
static void look_at_page(struct lk_prober *prober, struct turn *turn)
{
    for (size_t i = 0; i < prober->page.count; i++) {
        const struct lk_probe_subject *subject = &prober->page.subjects[i];
        enum lk_probe_result result = LK_PROBE_OPEN;

        if (turn->only && subject->place->target != turn->only) {
            continue;
        }
        if (!is_over(prober, turn)) {
            result = lk_probe_look(prober, subject, turn->now);
        }
        turn->counts.happened += result == LK_PROBE_HAPPENED;
        turn->counts.absent += result == LK_PROBE_ABSENT;
        turn->counts.open += result == LK_PROBE_OPEN;
    }
}

/* *cursor: where to go on; 0 at the end. */
static enum lk_status pass_jobs(struct lk_prober *prober,
                                struct lk_probe_place *place, struct turn *turn,
                                uint64_t *cursor)
{
    enum lk_status status;

    do {
        status = lk_probe_read_jobs(prober, place, *cursor);
        if (!status) {
            *cursor = prober->page.next;
            look_at_page(prober, turn);
        }
    } while (!status && *cursor && !is_over(prober, turn));
    return status;
}

static enum lk_status pass_operations(struct lk_prober *prober,
                                      struct turn *turn, uint64_t *cursor)
{
    enum lk_status status;

    do {
        status = lk_probe_read_operations(prober, *cursor);
        if (!status) {
            *cursor = prober->page.next;
            look_at_page(prober, turn);
        }
    } while (!status && *cursor && !is_over(prober, turn));
    return status;
}

static struct turn begin_turn(uint64_t ms)
{
    return (struct turn){.until_ns = uv_hrtime() + ms * MS_NS};
}

/* Is it known that there is nothing to ask about? In a store of our own the
 * counts are exact. */
static bool nothing_is(const struct lk_prober *prober, bool operations)
{
    struct lk_store *store = prober->setup.store;
    struct lk_store_stats stats = {0};

    if (store->shared || (operations && !prober->has_routes)) {
        return !prober->has_routes && operations;
    }
    store->class->stats(store, &stats);
    return operations ? !stats.by_state[LK_STATE_UNCERTAIN]
                      : !stats.jobs[LK_JOB_UNCERTAIN];
}

/* Operations are counted anew. */
static void forget_counts(struct lk_prober *prober)
{
    for (size_t i = 0; i < prober->place_count; i++) {
        prober->places[i].tally.count = prober->places[i].tally.oldest_ms = 0;
    }
}

/* True: there is more to look at. */
static bool go_round(struct lk_prober *prober)
{
    bool more = false;

    for (size_t i = 0; i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        struct turn turn = begin_turn(TURN_MS);
        if (place->route || nothing_is(prober, false)) {
            continue;
        }
        if (pass_jobs(prober, place, &turn, &place->cursor)) {
            place->cursor = 0; /* the store says why */
        }
        more = more || place->cursor;
    }
    if (nothing_is(prober, true)) {
        forget_counts(prober);
    } else {
        struct turn turn = begin_turn(TURN_MS);
        if (!prober->cursor) {
            forget_counts(prober);
        }
        prober->counting = true;
        if (pass_operations(prober, &turn, &prober->cursor)) {
            prober->cursor = 0;
        }
        prober->counting = false;
        more = more || prober->cursor;
    }
    return more;
}

/* ---- demands ------------------------------------------------------------- */

static enum lk_status answer_demand(struct lk_prober *prober,
                                    struct lk_probe_demand *demand)
{
    const struct lk_target *target =
        lk_target_find(&prober->targets, demand->target);
    struct turn turn = begin_turn(DEMAND_MS);
    enum lk_status status = LK_NOT_FOUND;
    bool routes = false;
    uint64_t cursor = 0;

    turn.now = true;
    turn.only = target;
    for (size_t i = 0; target && i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        if (place->target != target) {
            continue;
        }
        place->held_ns = 0;
        routes = routes || place->route;
        if (!place->route) {
            status = pass_jobs(prober, place, &turn, &cursor);
        }
    }
    cursor = 0;
    if (routes && (!status || status == LK_NOT_FOUND)) {
        status = pass_operations(prober, &turn, &cursor);
    }
    demand->counts = turn.counts;
    return status;
}

/* The one that waits longest, taken off the list. */
static struct lk_probe_demand *take_demand(struct lk_prober *prober)
{
    struct lk_probe_demand **last = &prober->demands;
    struct lk_probe_demand *demand = NULL;

    uv_mutex_lock(&prober->lock);
    while (*last && (*last)->next) {
        last = &(*last)->next;
    }
    demand = *last;
    *last = NULL;
    uv_mutex_unlock(&prober->lock);
    return demand;
}

/* When the prober stops: there is nothing more to find out. */
static void serve(struct lk_prober *prober)
{
    struct lk_probe_demand *demand;

    while ((demand = take_demand(prober))) {
        demand->status = atomic_load(&prober->stopping)
                             ? LK_AGAIN
                             : answer_demand(prober, demand);
        demand->done(demand);
    }
}

void lk_prober_ask(struct lk_prober *prober, struct lk_probe_demand *demand)
{
    bool taken = false;

    if (prober) {
        uv_mutex_lock(&prober->lock);
        taken = !atomic_load(&prober->stopping);
        if (taken) {
            demand->next = prober->demands;
            prober->demands = demand;
            uv_cond_broadcast(&prober->changed);
        }
        uv_mutex_unlock(&prober->lock);
    }
    if (!taken) {
        demand->status = prober ? LK_AGAIN : LK_NOT_FOUND;
        demand->done(demand);
    }
}

/* ---- the thread ---------------------------------------------------------- */

static void take_fresh(struct lk_prober *prober)
{
    bool took;

    uv_mutex_lock(&prober->lock);
    took = prober->has_fresh;
    if (took) {
        lk_targets_free(&prober->targets);
        prober->targets = prober->fresh;
        prober->fresh = (struct lk_targets){0};
        prober->has_fresh = false;
    }
    uv_mutex_unlock(&prober->lock);
    if (took && lk_probe_places_make(prober)) {
        lk_log(LK_LOG_ERROR, "prober-idle", "error=\"out of memory\"");
    }
}

/* Reading takes a tenth of the time at most: a large store is read slowly. */
static uint64_t rest_ns(struct lk_prober *prober, bool more)
{
    uint64_t tick = more ? 0 : lk_probe_tick_ms(prober) * MS_NS;
    uint64_t rest = 9 * prober->read_ns;

    prober->read_ns = 0;
    return rest > tick ? rest : tick;
}

static void run(void *context)
{
    struct lk_prober *prober = context;

    while (!atomic_load(&prober->stopping)) {
        take_fresh(prober);
        serve(prober);
        bool more = go_round(prober);
        if (!more) {
            lk_probe_alert(prober);
        }
        lk_probe_sleep(prober, rest_ns(prober, more), true);
    }
    serve(prober);
    lk_probe_page_clear(&prober->page);
}

static void free_prober(struct lk_prober *prober)
{
    uv_cond_destroy(&prober->changed);
    uv_mutex_destroy(&prober->lock);
    lk_targets_free(&prober->fresh);
    lk_targets_free(&prober->targets);
    lk_probe_memory_free(&prober->memory);
    lk_probe_alerts_free(prober);
    free(prober->places);
    free(prober);
}

static struct lk_prober *make_prober(const struct lk_outbox_setup *setup)
{
    struct lk_prober *prober = calloc(1, sizeof(*prober));

    if (!prober || uv_mutex_init(&prober->lock)) {
        free(prober);
        return NULL;
    }
    if (uv_cond_init(&prober->changed)) {
        uv_mutex_destroy(&prober->lock);
        free(prober);
        return NULL;
    }
    prober->setup = *setup;
    prober->setup.config = NULL;
    return prober;
}

enum lk_status lk_prober_start(const struct lk_outbox_setup *setup,
                               lk_reserve_fn reserve, void *context,
                               struct lk_prober **prober)
{
    struct lk_prober *made = make_prober(setup);
    enum lk_status status = LK_NOMEM;

    *prober = NULL;
    if (!made) {
        goto out;
    }
    made->reserve = reserve;
    made->reserve_context = context;
    status = lk_targets_copy(&setup->config->targets, &made->targets);
    if (!status) {
        status = lk_probe_places_make(made);
    }
    if (!status) {
        status = lk_probe_memory_init(&made->memory, NOTES);
    }
    if (!status && lk_thread_create(&made->thread, run, made)) {
        status = LK_NOMEM;
    }
    if (status) {
        free_prober(made);
    } else {
        *prober = made;
    }
out:
    if (status) {
        lk_log(LK_LOG_ERROR, "prober-failed", "error=\"%s\"",
               latchkey_status_text(status));
    }
    return status;
}

void lk_prober_reload(struct lk_prober *prober, const struct lk_config *config)
{
    struct lk_targets fresh = {0};

    if (!prober) {
        return;
    }
    if (lk_targets_copy(&config->targets, &fresh)) {
        lk_log(LK_LOG_ERROR, "prober-reload-failed", "error=\"out of memory\"");
        return;
    }
    uv_mutex_lock(&prober->lock);
    if (prober->has_fresh) {
        lk_targets_free(&prober->fresh);
    }
    prober->fresh = fresh;
    prober->has_fresh = true;
    uv_cond_broadcast(&prober->changed);
    uv_mutex_unlock(&prober->lock);
}

void lk_prober_hush(struct lk_prober *prober)
{
    if (prober) {
        uv_mutex_lock(&prober->lock);
        atomic_store(&prober->stopping, true);
        uv_cond_broadcast(&prober->changed);
        uv_mutex_unlock(&prober->lock);
    }
}

void lk_prober_stop(struct lk_prober *prober)
{
    if (prober) {
        lk_prober_hush(prober);
        uv_thread_join(&prober->thread);
        free_prober(prober);
    }
}
