/*
 * prober.c - the prober's thread: who is asked about what is uncertain, and
 * when.
 *
 * One round: adopt the targets of a reload, answer requests, give each target
 * with a probe a turn of at most 2 s over its uncertain jobs, then one turn
 * over the uncertain operations of all routes. A turn reads pages and probes
 * what is due (probe_resolve.c). After a complete round the alert is logged,
 * then the thread sleeps: for the shortest probe interval, and nine times as
 * long as it has spent on reading the store.
 *
 * A probe request (TARGET PROBE) belongs to the prober from lk_prober_ask until
 * its `done` is called. Every request gets `done` exactly once, also when the
 * prober is cancelled or stopped.
 */
#include "courier/prober.h"
#include "daemon/log.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <string.h>

#define MS_NS UINT64_C(1000000)

enum {
    PROBE_NOTES = 65536,
    PROBE_TURN_MS = 2000,     /* then the next place has its turn */
    PROBE_REQUEST_MS = 20000, /* a call in progress then comes on top */
};

uint64_t lk_probe_now_ns(void)
{
    return uv_hrtime();
}

/* Under the lock. `lightly`: a request or a reload counts too. */
static bool has_other_work(const struct lk_prober *prober, bool lightly)
{
    return atomic_load(&prober->stopping) ||
           (lightly && (prober->has_fresh || prober->requests));
}

void lk_probe_sleep(struct lk_prober *prober, uint64_t ns, bool lightly)
{
    uint64_t until = uv_hrtime() + ns;

    uv_mutex_lock(&prober->lock);
    for (uint64_t now;
         !has_other_work(prober, lightly) && (now = uv_hrtime()) < until;) {
        (void)uv_cond_timedwait(&prober->changed, &prober->lock, until - now);
    }
    uv_mutex_unlock(&prober->lock);
}

/* ---- places: who is asked ------------------------------------------------ */

enum { PROBE_TICK_MIN_MS = 20, PROBE_TICK_MAX_MS = 10000 };

/* Logs a path that cannot be asked. The configuration reader has checked it. */
static bool check_probe_path(const char *path, const char *kind,
                             const char *name)
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

static void add_target_place(struct lk_prober *prober,
                             const struct lk_target *target)
{
    if (target->probe.path &&
        check_probe_path(target->probe.path, "target", target->name)) {
        prober->places[prober->place_count++] =
            (struct lk_probe_place){.target = target, .probe = &target->probe};
    }
}

/* A route with a probe, a rollback, or both. */
static void add_route_place(struct lk_prober *prober,
                            const struct lk_route *route)
{
    const struct lk_target *target =
        route->target
            ? lk_target_find(&prober->targets, latchkey_slice(route->target))
            : NULL;

    if (route->probe.path &&
        (!target ||
         !check_probe_path(route->probe.path, "route", route->name))) {
        return;
    }
    if (route->rollback_target) {
        const struct lk_target *other = lk_target_find(
            &prober->targets, latchkey_slice(route->rollback_target));
        if (!other || !route->rollback_path ||
            !check_probe_path(route->rollback_path, "route", route->name)) {
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

/* Replaces the places by those of prober->targets. LK_NOMEM: there are none. */
static enum lk_status make_places(struct lk_prober *prober)
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
        add_target_place(prober, &targets->targets[i]);
    }
    for (size_t i = 0; i < targets->route_count; i++) {
        add_route_place(prober, &targets->routes[i]);
    }
    return LK_OK;
}

static uint64_t probe_tick_ms(const struct lk_prober *prober)
{
    uint64_t tick = PROBE_TICK_MAX_MS;

    for (size_t i = 0; i < prober->place_count; i++) {
        const struct lk_probe *probe = prober->places[i].probe;
        tick = probe->interval_ms < tick ? probe->interval_ms : tick;
    }
    return tick < PROBE_TICK_MIN_MS ? PROBE_TICK_MIN_MS : tick;
}

/* ---- pages: what is uncertain -------------------------------------------- */

static void clear_page(struct lk_probe_page *page)
{
    for (size_t i = 0; i < page->count; i++) {
        latchkey_buf_free(&page->subjects[i].text);
    }
    page->count = 0;
    page->next = 0;
}

/* Copies the texts behind the slices, which belong to the store, and lets the
 * slices point to the copy. */
static enum lk_status copy_subject_texts(struct lk_probe_subject *subject)
{
    struct lk_slice *slices[] = {&subject->name.tenant, &subject->name.scope,
                                 &subject->name.key,    &subject->job,
                                 &subject->path,        &subject->provider_id};
    const size_t count = sizeof(slices) / sizeof(slices[0]);
    size_t total = 1;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&subject->text, total);
    for (size_t i = 0; i < count && !status; i++) {
        const char *copy = subject->text.data + subject->text.len;
        status = latchkey_buf_add_slice(&subject->text, *slices[i]);
        slices[i]->data = copy;
    }
    return status;
}

/* False: the page is full, or there is no memory. */
static bool add_subject(struct lk_probe_page *page,
                        struct lk_probe_subject subject)
{
    struct lk_probe_subject *into = &page->subjects[page->count];

    *into = subject;
    into->text = (struct lk_buf){0};
    if (copy_subject_texts(into)) {
        latchkey_buf_free(&into->text);
        return false;
    }
    page->count++;
    return page->count < LK_PROBE_PAGE;
}

static void tally_uncertain(struct lk_probe_tally *tally, uint64_t since_ms)
{
    tally->count++;
    if (!tally->oldest_ms || since_ms < tally->oldest_ms) {
        tally->oldest_ms = since_ms;
    }
}

/* ---- pages: jobs --------------------------------------------------------- */

struct uncertain_jobs_context {
    struct lk_probe_page *page;
    struct lk_probe_place *place;
};

/* Called by the store for each job of the page. */
static bool take_uncertain_job(void *context, const struct lk_job *job)
{
    struct uncertain_jobs_context *rows = context;

    return add_subject(rows->page, (struct lk_probe_subject){
                                       .place = rows->place,
                                       .id = job->id,
                                       .fence = job->attempts,
                                       .since_ms = job->ended_ms,
                                       .number = job->number,
                                       .generation = job->generation,
                                       .name = job->operation,
                                       .job = job->name,
                                       .path = job->path,
                                       .provider_id = job->provider_id,
                                   });
}

/* Reads the next page of a target's uncertain jobs into prober->page. */
static enum lk_status read_uncertain_jobs(struct lk_prober *prober,
                                          struct lk_probe_place *place,
                                          uint64_t cursor)
{
    struct lk_store *store = prober->setup.store;
    struct uncertain_jobs_context rows = {&prober->page, place};
    const struct lk_jobs_query query = {
        .state = LK_JOB_UNCERTAIN,
        .target = latchkey_slice(place->target->name),
        .cursor = cursor,
        .limit = LK_PROBE_PAGE,
    };

    clear_page(&prober->page);
    uint64_t began = lk_probe_now_ns();
    enum lk_status status = store->class->jobs(
        store, &query, take_uncertain_job, &rows, &prober->page.next);
    prober->read_ns += lk_probe_now_ns() - began;
    return status;
}

/* ---- pages: operations --------------------------------------------------- */

static struct lk_probe_place *find_route_place(
    struct lk_prober *prober, const struct lk_operation *operation)
{
    for (size_t i = 0; i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        if (place->route &&
            lk_route_matches(place->route, operation->name.tenant,
                             operation->name.scope)) {
            return place;
        }
    }
    return NULL;
}

/* Operations without a route are skipped: no one is asked about them. */
static bool take_uncertain_operation(void *context,
                                     const struct lk_operation *operation)
{
    struct lk_prober *prober = context;
    struct lk_probe_place *place = find_route_place(prober, operation);

    if (prober->counting && place) {
        tally_uncertain(&place->tally, operation->since_ms);
    }
    return !place ||
           add_subject(&prober->page, (struct lk_probe_subject){
                                          .place = place,
                                          .id = operation->number,
                                          .fence = operation->token,
                                          .since_ms = operation->since_ms,
                                          .number = operation->number,
                                          .generation = operation->generation,
                                          .name = operation->name,
                                      });
}

/* Reads the next page of uncertain operations of all routes into
 * prober->page. */
static enum lk_status read_uncertain_operations(struct lk_prober *prober,
                                                uint64_t cursor)
{
    struct lk_store *store = prober->setup.store;
    const struct lk_list_query query = {
        .state = LK_STATE_UNCERTAIN,
        .cursor = cursor,
        .limit = LK_PROBE_PAGE,
    };

    clear_page(&prober->page);
    uint64_t began = lk_probe_now_ns();
    enum lk_status status = store->class->list(
        store, &query, take_uncertain_operation, prober, &prober->page.next);
    prober->read_ns += lk_probe_now_ns() - began;
    return status;
}

/* ---- alerts: what stays uncertain ---------------------------------------- */

/* How much is uncertain of each target and route, and since when. The daemon
 * itself logs the sum of all operations, with or without a courier. */

#define ALERT_NS       (UINT64_C(1000000000))
#define ALERT_AGAIN_NS (60 * ALERT_NS)

enum {
    ALERTS_MAX = 1024,
    ALERT_PAUSE_FACTOR = 20, /* reading for the alert takes at most a 20th of
                              the time */
};

/* The tally of a target's jobs. Targets that are not configured have one too.
 */
struct lk_probe_alert {
    char name[LK_TARGET_NAME_MAX + 1];
    struct lk_probe_tally tally;
};

/* At most once a minute, and not if the count has fallen. True: it is noted as
 * logged now. */
static bool take_alert_due(struct lk_probe_tally *tally)
{
    uint64_t now = lk_probe_now_ns();

    if (tally->logged_ns && now - tally->logged_ns < ALERT_AGAIN_NS) {
        return false;
    }
    bool falls = tally->count < tally->logged_count;
    tally->logged_count = tally->count;
    tally->logged_ns = tally->count ? now : 0;
    return tally->count && !falls;
}

static void log_uncertain_tally(const char *what, const char *kind,
                                const char *name, struct lk_probe_tally *tally,
                                uint64_t now_ms)
{
    if (take_alert_due(tally)) {
        uint64_t age =
            now_ms > tally->oldest_ms ? now_ms - tally->oldest_ms : 0;
        lk_log(LK_LOG_WARN, "uncertain",
               "kind=%s %s=%s count=%llu oldest_s=%llu", what, kind, name,
               (unsigned long long)tally->count,
               (unsigned long long)(age / 1000));
    }
}

/* NULL: too many targets, or out of memory: there is no alert for it. */
static struct lk_probe_alert *find_or_add_alert(struct lk_prober *prober,
                                                struct lk_slice name)
{
    for (size_t i = 0; i < prober->alert_count; i++) {
        if (latchkey_slice_equal(name,
                                 latchkey_slice(prober->alerts[i].name))) {
            return &prober->alerts[i];
        }
    }
    if (prober->alert_count == ALERTS_MAX || name.len > LK_TARGET_NAME_MAX) {
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

/* Requests through the gateway are counted as operations, not again as jobs. */
static bool count_uncertain_jobs(void *context,
                                 const struct lk_target_summary *summary)
{
    struct lk_probe_alert *alert;

    if (summary->jobs[LK_JOB_UNCERTAIN] &&
        !latchkey_slice_equal(summary->name, LK_SLICE(LK_TARGET_GATEWAY)) &&
        (alert = find_or_add_alert(context, summary->name)) != NULL) {
        alert->tally.count = summary->jobs[LK_JOB_UNCERTAIN];
        alert->tally.oldest_ms = summary->oldest_uncertain_ms;
    }
    return true;
}

static void free_alerts(struct lk_prober *prober)
{
    free(prober->alerts);
    prober->alerts = NULL;
    prober->alert_count = 0;
}

/* At most once a second, and less often where counting is slow. */
static void log_alerts(struct lk_prober *prober)
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
    if (!store->class->targets(store, count_uncertain_jobs, prober)) {
        for (size_t i = 0; i < prober->alert_count; i++) {
            log_uncertain_tally("job", "target", prober->alerts[i].name,
                                &prober->alerts[i].tally, stats.now_ms);
        }
    }
    for (size_t i = 0; i < prober->place_count; i++) {
        if (prober->places[i].route) {
            log_uncertain_tally("operation", "route",
                                prober->places[i].route->name,
                                &prober->places[i].tally, stats.now_ms);
        }
    }
    uint64_t took_ns = lk_probe_now_ns() - started_ns;
    prober->alert_ns = started_ns + (took_ns > ALERT_NS / ALERT_PAUSE_FACTOR
                                         ? ALERT_PAUSE_FACTOR * took_ns
                                         : ALERT_NS);
}

/* ---- turns --------------------------------------------------------------- */

/* One turn: until when, for what, and its outcome. */
struct probe_turn {
    uint64_t until_ns;
    bool at_once;                 /* probe even what is not due */
    const struct lk_target *only; /* NULL: any */
    struct lk_probe_counts counts;
};

static bool is_turn_over(struct lk_prober *prober,
                         const struct probe_turn *turn)
{
    return atomic_load(&prober->stopping) || uv_hrtime() > turn->until_ns;
}

/* What is not reached in time counts as open. */
static void probe_page(struct lk_prober *prober, struct probe_turn *turn)
{
    for (size_t i = 0; i < prober->page.count; i++) {
        const struct lk_probe_subject *subject = &prober->page.subjects[i];
        enum lk_probe_result result = LK_PROBE_OPEN;

        if (turn->only && subject->place->target != turn->only) {
            continue;
        }
        if (!is_turn_over(prober, turn)) {
            result = lk_probe_check(prober, subject, turn->at_once);
        }
        turn->counts.happened += result == LK_PROBE_HAPPENED;
        turn->counts.absent += result == LK_PROBE_ABSENT;
        turn->counts.open += result == LK_PROBE_OPEN;
    }
}

/* Pages until the turn is over. *cursor: where to go on; 0 at the end. */
static enum lk_status probe_jobs(struct lk_prober *prober,
                                 struct lk_probe_place *place,
                                 struct probe_turn *turn, uint64_t *cursor)
{
    enum lk_status status;

    do {
        status = read_uncertain_jobs(prober, place, *cursor);
        if (!status) {
            *cursor = prober->page.next;
            probe_page(prober, turn);
        }
    } while (!status && *cursor && !is_turn_over(prober, turn));
    return status;
}

static enum lk_status probe_operations(struct lk_prober *prober,
                                       struct probe_turn *turn,
                                       uint64_t *cursor)
{
    enum lk_status status;

    do {
        status = read_uncertain_operations(prober, *cursor);
        if (!status) {
            *cursor = prober->page.next;
            probe_page(prober, turn);
        }
    } while (!status && *cursor && !is_turn_over(prober, turn));
    return status;
}

static struct probe_turn begin_probe_turn(uint64_t ms)
{
    return (struct probe_turn){.until_ns = uv_hrtime() + ms * MS_NS};
}

/* Is it known that there is nothing to ask about? Only the counts of a store
 * that no other daemon shares are exact. */
static bool has_nothing_uncertain(const struct lk_prober *prober,
                                  bool operations)
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

/* Operations are counted from the start. */
static void reset_tallies(struct lk_prober *prober)
{
    for (size_t i = 0; i < prober->place_count; i++) {
        prober->places[i].tally.count = prober->places[i].tally.oldest_ms = 0;
    }
}

/* One round over all places. True: a turn ended before its last page. */
static bool run_probe_turns(struct lk_prober *prober)
{
    bool more = false;

    for (size_t i = 0; i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        struct probe_turn turn = begin_probe_turn(PROBE_TURN_MS);
        if (place->route || has_nothing_uncertain(prober, false)) {
            continue;
        }
        if (probe_jobs(prober, place, &turn, &place->cursor)) {
            place->cursor = 0; /* the store logs why */
        }
        more = more || place->cursor;
    }
    if (has_nothing_uncertain(prober, true)) {
        reset_tallies(prober);
    } else {
        struct probe_turn turn = begin_probe_turn(PROBE_TURN_MS);
        if (!prober->cursor) {
            reset_tallies(prober);
        }
        prober->counting = true;
        if (probe_operations(prober, &turn, &prober->cursor)) {
            prober->cursor = 0;
        }
        prober->counting = false;
        more = more || prober->cursor;
    }
    return more;
}

/* ---- requests -------------------------------------------------------------
 */

/* Probes all that is uncertain of one target now, due or not. */
static enum lk_status run_probe_request(struct lk_prober *prober,
                                        struct lk_probe_request *request)
{
    const struct lk_target *target =
        lk_target_find(&prober->targets, request->target);
    struct probe_turn turn = begin_probe_turn(PROBE_REQUEST_MS);
    enum lk_status status = LK_NOT_FOUND;
    bool routes = false;
    uint64_t cursor = 0;

    turn.at_once = true;
    turn.only = target;
    for (size_t i = 0; target && i < prober->place_count; i++) {
        struct lk_probe_place *place = &prober->places[i];
        if (place->target != target) {
            continue;
        }
        place->held_ns = 0;
        routes = routes || place->route;
        if (!place->route) {
            status = probe_jobs(prober, place, &turn, &cursor);
        }
    }
    cursor = 0;
    if (routes && (!status || status == LK_NOT_FOUND)) {
        status = probe_operations(prober, &turn, &cursor);
    }
    request->counts = turn.counts;
    return status;
}

/* Takes the request that has waited longest off the list; NULL: none. */
static struct lk_probe_request *take_probe_request(struct lk_prober *prober)
{
    struct lk_probe_request **last = &prober->requests;
    struct lk_probe_request *request = NULL;

    uv_mutex_lock(&prober->lock);
    while (*last && (*last)->next) {
        last = &(*last)->next;
    }
    request = *last;
    *last = NULL;
    uv_mutex_unlock(&prober->lock);
    return request;
}

/* Answers all requests. After a cancel: with LK_AGAIN. */
static void serve_probe_requests(struct lk_prober *prober)
{
    struct lk_probe_request *request;

    while ((request = take_probe_request(prober))) {
        request->status = atomic_load(&prober->stopping)
                              ? LK_AGAIN
                              : run_probe_request(prober, request);
        request->done(request);
    }
}

void lk_prober_ask(struct lk_prober *prober, struct lk_probe_request *request)
{
    bool taken = false;

    if (prober) {
        uv_mutex_lock(&prober->lock);
        taken = !atomic_load(&prober->stopping);
        if (taken) {
            request->next = prober->requests;
            prober->requests = request;
            uv_cond_broadcast(&prober->changed);
        }
        uv_mutex_unlock(&prober->lock);
    }
    if (!taken) {
        request->status = prober ? LK_AGAIN : LK_NOT_FOUND;
        request->done(request);
    }
}

/* ---- the thread ---------------------------------------------------------- */

/* After a reload. Notes on what was asked stay. */
static void adopt_fresh_targets(struct lk_prober *prober)
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
    if (took && make_places(prober)) {
        lk_log(LK_LOG_ERROR, "prober-idle", "error=\"out of memory\"");
    }
}

/* Reading takes at most a tenth of the time, so that a large store is read
 * slowly. */
static uint64_t prober_rest_ns(struct lk_prober *prober, bool more)
{
    uint64_t tick = more ? 0 : probe_tick_ms(prober) * MS_NS;
    uint64_t rest = 9 * prober->read_ns;

    prober->read_ns = 0;
    return rest > tick ? rest : tick;
}

/* The prober's thread. */
static void run_prober(void *context)
{
    struct lk_prober *prober = context;

    while (!atomic_load(&prober->stopping)) {
        adopt_fresh_targets(prober);
        serve_probe_requests(prober);
        bool more = run_probe_turns(prober);
        if (!more) {
            log_alerts(prober);
        }
        lk_probe_sleep(prober, prober_rest_ns(prober, more), true);
    }
    serve_probe_requests(prober);
    clear_page(&prober->page);
}

static void free_prober(struct lk_prober *prober)
{
    uv_cond_destroy(&prober->changed);
    uv_mutex_destroy(&prober->lock);
    lk_targets_free(&prober->fresh);
    lk_targets_free(&prober->targets);
    lk_probe_memory_free(&prober->memory);
    free_alerts(prober);
    free(prober->places);
    free(prober);
}

/* Without targets, memory and thread. NULL: out of memory. */
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
        status = make_places(made);
    }
    if (!status) {
        status = lk_probe_memory_init(&made->memory, PROBE_NOTES);
    }
    if (!status && lk_thread_create(&made->thread, run_prober, made)) {
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

void lk_prober_cancel(struct lk_prober *prober)
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
        lk_prober_cancel(prober);
        uv_thread_join(&prober->thread);
        free_prober(prober);
    }
}
