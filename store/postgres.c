/*
 * postgres.c - the PostgreSQL store: opening, closing, time, health, numbers.
 *
 * The server decides, in SQL (store/sql); several daemons and the apps'
 * own transactions share it. What is promised is what the server's settings
 * promise.
 *
 * Connections: one for each lane, for batches; one for each lane of job
 * batches; one each for the reader, for the waiter, which
 * reads what the synchronous standby has, and for the keeper. Each is used by
 * one thread at a time.
 */
#include "store/postgres.h"
#include "store/redis.h"

#include <openssl/rand.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MS_NS UINT64_C(1000000)

/* A server's clock that steps back by more than this is believed at once; less
 * is the way of a message. */
#define CLOCK_STEP_NS (5000 * (int64_t)MS_NS)

/* Settled operations that are held for other daemons, and for the next batch.
 */
enum { HINTS = 4096 };

void lk_pg_log(struct lk_postgres *store, enum lk_pg_level level,
               const char *format, ...)
{
    va_list args;

    va_start(args, format);
    lk_store_log(&store->config, (int)level, format, args);
    va_end(args);
}

/* Any thread. `why` NULL: the store is available. Only a change is logged. */
void lk_pg_set_failure(struct lk_postgres *store, const char *why)
{
    char line[sizeof(store->failure)];

    if (!why) {
        atomic_store(&store->last_success_ns, lk_pg_clock_ns());
    }
    lk_pg_clean(why ? why : "", NULL, line, sizeof(line));
    pthread_mutex_lock(&store->lock);
    bool before = store->unavailable;
    store->unavailable = why != NULL;
    memcpy(store->failure, line, sizeof(line));
    pthread_mutex_unlock(&store->lock);
    if (before == (why != NULL)) {
        return;
    }
    if (why) {
        lk_pg_log(store, LK_PG_ERROR, "the store is unavailable: %s", why);
    } else {
        lk_pg_log(store, LK_PG_INFO, "the store is available again");
    }
}

/* ---- time ------------------------------------------------------------- */

/*
 * The server's time arrives late, never early: the largest difference heard is
 * the best, as long as the server's clock is not set back.
 */
void lk_pg_set_time(struct lk_postgres *store, uint64_t now_ms)
{
    int64_t settled = (int64_t)(now_ms * MS_NS) - (int64_t)lk_pg_clock_ns();
    int64_t known = atomic_load(&store->clock_offset_ns);

    while (now_ms && (settled > known || known - settled > CLOCK_STEP_NS) &&
           !atomic_compare_exchange_weak(&store->clock_offset_ns, &known,
                                         settled)) {
    }
}

/* The server's time as far as it is known here, without asking it. */
uint64_t lk_pg_now_ms(struct lk_postgres *store)
{
    int64_t now = (int64_t)lk_pg_clock_ns();

    return (uint64_t)(now + atomic_load(&store->clock_offset_ns)) / MS_NS;
}

/* store.timeout from now on, by lk_pg_clock_ns. */
uint64_t lk_pg_deadline(const struct lk_postgres *store)
{
    return lk_pg_clock_ns() + store->config.timeout_ms * MS_NS;
}

/* ---- opening and closing ---------------------------------------------- */

static void init_conn(struct lk_postgres *store, struct lk_pg_conn *conn,
                      const char *what, bool lane)
{
    *conn = (struct lk_pg_conn){.store = store, .what = what, .lane = lane};
}

/* Also one that was only created in part. The keeper ends first: it uses the
 * connections. */
static void free_postgres(struct lk_postgres *store)
{
    lk_pg_keeper_stop(store);
    for (unsigned i = 0; i < LK_PG_LANES + LK_PG_JOB_LANES; i++) {
        struct lk_pg_lane *lane = &store->lanes[i];
        lk_pg_close(&lane->conn);
        lk_pg_resolve_stop(&lane->conn);
        latchkey_buf_free(&lane->scratch);
        for (int c = 0; c < LK_PG_COLUMNS; c++) {
            latchkey_buf_free(&lane->columns[c].bytes);
        }
    }
    lk_pg_close(&store->reader);
    lk_pg_close(&store->waiter);
    lk_pg_close(&store->keeper);
    lk_pg_resolve_stop(&store->reader);
    lk_pg_resolve_stop(&store->waiter);
    lk_pg_resolve_stop(&store->keeper);
    lk_response_cache_close(store->cache);
    if (store->event_fd >= 0) {
        close(store->event_fd);
    }
    pthread_mutex_destroy(&store->reader_lock);
    pthread_mutex_destroy(&store->lock);
    pthread_mutex_destroy(&store->hints_lock);
    lk_pg_url_free(&store->url);
    free(store->waiting);
    free(store->notify_ids);
    free(store->settled);
    free(store);
}

/* Unlike any other daemon's, on this machine or another. */
static bool name_holder(struct lk_postgres *store)
{
    char host[32] = "";
    uint32_t random[2];

    if (RAND_bytes((unsigned char *)random, sizeof(random)) != 1) {
        return false;
    }
    gethostname(host, sizeof(host) - 1);
    lk_pg_clean(host, NULL, host, sizeof(host));
    snprintf(store->holder, sizeof(store->holder), "%s:%ld:%08x%08x", host,
             (long)getpid(), random[0], random[1]);
    for (unsigned i = 0; i < store->store.lanes + store->store.job_lanes; i++) {
        store->lanes[i].random =
            random[0] + UINT64_C(0x9e3779b97f4a7c15) * (i + 1);
    }
    return true;
}

/* Everything but connections and threads; NULL: out of memory. */
static struct lk_postgres *create_postgres(const struct lk_store_config *config)
{
    struct lk_postgres *store = calloc(1, sizeof(*store));

    if (!store) {
        return NULL;
    }
    unsigned lanes = config->connections ? config->connections : 1;
    store->store.class = &lk_postgres_class;
    store->store.lanes = lanes < LK_PG_LANES ? lanes : LK_PG_LANES;
    store->store.shared = true;
    store->store.job_lanes = LK_PG_JOB_LANES;
    store->config = *config;
    store->config.url = store->config.path = NULL; /* the caller's */
    store->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    store->waiting = calloc(LK_PG_WAITING, sizeof(*store->waiting));
    store->notify_ids = calloc(HINTS, sizeof(*store->notify_ids));
    store->settled = calloc(HINTS, sizeof(*store->settled));
    pthread_mutex_init(&store->reader_lock, NULL);
    pthread_mutex_init(&store->lock, NULL);
    pthread_mutex_init(&store->hints_lock, NULL);
    atomic_init(&store->lock_share, 16);
    store->reap_state = LK_STATE_COMPLETED;
    for (unsigned i = 0; i < LK_PG_LANES + LK_PG_JOB_LANES; i++) {
        init_conn(store, &store->lanes[i].conn, "lane", true);
        store->lanes[i].conn.for_jobs = i >= store->store.lanes;
    }
    init_conn(store, &store->reader, "reader", false);
    init_conn(store, &store->waiter, "waiter", false);
    init_conn(store, &store->keeper, "keeper", false);
    if (store->event_fd < 0 || !store->waiting || !store->notify_ids ||
        !store->settled || !name_holder(store)) {
        free_postgres(store);
        return NULL;
    }
    return store;
}

/* One connection at once, so that what is wrong is said at the start. */
static enum lk_status connect_first(struct lk_postgres *store,
                                    struct lk_buf *error)
{
    struct lk_pg_conn *conn = &store->lanes[0].conn;
    enum lk_status status = lk_pg_ready(conn, lk_pg_deadline(store));

    if (status) {
        enum lk_status said =
            latchkey_buf_printf(error, "PostgreSQL: %s", conn->message);
        return said ? said : status;
    }
    lk_pg_count(store, conn);
    lk_pg_promise(&store->store, store->store.promise);
    return LK_OK;
}

/* Once the secret is known, which what the cache holds is bound to. */
static enum lk_status open_cache(struct lk_postgres *store,
                                 struct lk_buf *error)
{
    const struct lk_store_config *config = &store->config;
    struct lk_response_cache_config cache = {
        .url = config->cache_url,
        .prefix = config->prefix,
        .timeout_ms = config->cache_timeout_ms,
        .secret = store->store.secret,
        .log = config->log,
        .log_context = config->log_context,
    };

    return config->cache_url
               ? lk_response_cache_open(&cache, &store->cache, error)
               : LK_OK;
}

/* Before anything is opened: a URL that is wrong is not tried again. */
static enum lk_status check_urls(const struct lk_store_config *config,
                                 struct lk_buf *error)
{
    struct lk_pg_url url = {0};
    struct lk_redis_url cache = {0};
    enum lk_status status = lk_pg_url_parse(config->url, &url, error);

    if (!status && config->cache_url) {
        status = lk_redis_url_parse(config->cache_url, &cache, error);
    }
    lk_pg_url_free(&url);
    lk_redis_url_free(&cache);
    return status;
}

/* LK_OK: *opened is the caller's, to be closed by its class. Otherwise nothing
 * is left, and `error` has the reason. */
static enum lk_status open_postgres(const struct lk_store_config *config,
                                    struct lk_store **opened,
                                    struct lk_buf *error)
{
    struct lk_postgres *store = create_postgres(config);

    if (!store) {
        return LK_NOMEM;
    }
    enum lk_status status = lk_pg_url_parse(config->url, &store->url, error);
    if (!status) {
        status = connect_first(store, error);
    }
    if (!status) {
        status = open_cache(store, error);
    }
    if (!status) {
        status = lk_pg_keeper_start(store);
    }
    if (status) {
        free_postgres(store);
        return status;
    }
    *opened = &store->store;
    return LK_OK;
}

static void close_postgres(struct lk_store *base)
{
    free_postgres((struct lk_postgres *)base);
}

static void add_cache_stats(struct lk_postgres *store,
                            struct lk_store_stats *stats)
{
    struct lk_response_cache_stats cache = {0};

    if (store->cache) {
        lk_response_cache_stats(store->cache, &cache);
    }
    stats->shared_hits = cache.hits;
    stats->shared_misses = cache.misses + cache.refused;
    stats->shared_failed = cache.failed;
}

/* Any thread, at once: the counts are those that the keeper last read. */
static void read_postgres_stats(struct lk_store *base,
                                struct lk_store_stats *stats)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_counters *counters = &store->counters;

    *stats = (struct lk_store_stats){
        .batches = atomic_load(&counters->batches),
        .batch_ops = atomic_load(&counters->batch_ops),
        .syncs_failed = atomic_load(&counters->failed),
        .reopened = atomic_load(&counters->reopened),
        .swept = atomic_load(&counters->swept),
        .reaped = atomic_load(&counters->reaped),
        .last_token = atomic_load(&counters->last_token),
        .now_ms = lk_pg_now_ms(store),
    };
    add_cache_stats(store, stats);
    pthread_mutex_lock(&store->lock);
    stats->operations = store->counts.operations;
    memcpy(stats->by_state, store->counts.by_state, sizeof(stats->by_state));
    stats->file_bytes = store->counts.bytes;
    stats->dead_rows = store->counts.dead;
    memcpy(stats->jobs, store->counts.jobs, sizeof(stats->jobs));
    stats->oldest_uncertain_ms = store->counts.oldest_uncertain_ms;
    stats->oldest_operation_ms = store->counts.oldest_operation_ms;
    stats->available = !store->unavailable;
    memcpy(stats->failure, store->failure, sizeof(stats->failure));
    pthread_mutex_unlock(&store->lock);
}

const struct lk_store_class lk_postgres_class = {
    .scheme = "postgres",
    .check = check_urls,
    .open = open_postgres,
    .close = close_postgres,
    .apply = lk_postgres_apply,
    .load = lk_postgres_load,
    .lookup = lk_postgres_lookup,
    .find = lk_postgres_find,
    .list = lk_postgres_list,
    .audit = lk_postgres_audit,
    .jobs = lk_postgres_jobs,
    .job = lk_postgres_job,
    .targets = lk_postgres_targets,
    .verify = lk_postgres_verify,
    .note = lk_postgres_note,
    .stats = read_postgres_stats,
    .describe = lk_postgres_describe,
    .promise = lk_pg_promise,
    .import = lk_postgres_import,
    .import_audit = lk_postgres_import_audit,
    .adopt = lk_postgres_adopt,
};
