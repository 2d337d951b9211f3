/*
 * redis.c - the Redis store: opening, closing and numbers.
 *
 * The daemon's user needs no more than this (one line; the prefix is the one
 * that is configured; the functions are loaded by `latchkey migrate` with
 * another user):
 *
 *   ACL SETUSER latchkey on >PASSWORD resetchannels ~{latchkey}:* -@all
 *     +fcall +time +wait +get +set +getrange +del +zadd +zrem +zcount +zscore
 *     +zrangebyscore +zrevrangebyscore +rpush +lrange +llen +hset +hget
 *
 * Redis checks what a function does against the rights of who calls it: that
 * is why the commands are there. With +config|get the daemon sees for itself
 * that nothing is evicted and what the append-only file promises. +eval and
 * +evalsha instead of +fcall where there are no functions; +select for another
 * database than 0.
 */
#include "store/redis.h"
#include "lib/socket.h"
#include "lib/time.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { LANES_MAX = 64 };

void lk_redis_log(struct lk_redis *store, int level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    lk_store_log(&store->config, level, format, args);
    va_end(args);
}

/* ---- Numbers ---------------------------------------------------------------
 */

static int64_t monotonic_us(void)
{
    return (int64_t)(lk_monotonic_ns() / 1000);
}

/* Never ahead of the server: it said so a moment ago. */
static uint64_t now_of(const struct lk_redis *store)
{
    return store->seen_ms + (uint64_t)(monotonic_us() - store->seen_us) / 1000;
}

void lk_redis_heard(struct lk_redis *store, uint64_t now_ms)
{
    pthread_mutex_lock(&store->numbers_lock);
    store->seen_ms = now_ms;
    store->seen_us = monotonic_us();
    pthread_mutex_unlock(&store->numbers_lock);
}

void lk_redis_count(struct lk_redis *store, const struct lk_reply *counts)
{
    pthread_mutex_lock(&store->numbers_lock);
    for (int state = 1; state <= 5; state++) {
        store->numbers.by_state[state] = lk_reply_number(&counts[state - 1]);
    }
    store->numbers.operations = lk_reply_number(&counts[5]);
    store->numbers.last_token = lk_reply_number(&counts[6]);
    pthread_mutex_unlock(&store->numbers_lock);
}

static void stats(struct lk_store *base, struct lk_store_stats *stats)
{
    struct lk_redis *store = (struct lk_redis *)base;

    pthread_mutex_lock(&store->numbers_lock);
    *stats = store->numbers;
    stats->now_ms = now_of(store);
    pthread_mutex_unlock(&store->numbers_lock);
    pthread_mutex_lock(&store->place.lock);
    stats->available = store->place.up;
    snprintf(stats->failure, sizeof(stats->failure), "%s",
             store->place.failure);
    pthread_mutex_unlock(&store->place.lock);
    if (!stats->failure[0] && atomic_load(&store->full)) {
        snprintf(stats->failure, sizeof(stats->failure),
                 "Redis is out of memory: nothing new is begun");
    }
}

/* ---- Opening ---------------------------------------------------------------
 */

static enum lk_status make_keys(struct lk_redis *store, const char *prefix)
{
    static const char *const names[LK_REDIS_KEYS] = {
        "index", "due", "token", "keeper", "audit", "meta", "check", "mark"};
    size_t starts[LK_REDIS_KEYS + 1];
    enum lk_status status = latchkey_buf_printf(&store->names, "{%s}:", prefix);

    starts[0] = store->names.len;
    for (int i = 0; i < LK_REDIS_KEYS && !status; i++) {
        /* With a NUL behind each: one is needed as a string. */
        status =
            latchkey_buf_printf(&store->names, "{%s}:%s", prefix, names[i]);
        /* The functions know tokens by their key, in any database. */
        if (!status && i == LK_REDIS_TOKEN && store->url.database) {
            status =
                latchkey_buf_printf(&store->names, ":%u", store->url.database);
        }
        if (!status) {
            status = latchkey_buf_add(&store->names, "", 1);
        }
        starts[i + 1] = store->names.len;
    }
    if (status) {
        return status;
    }
    store->prefix = (struct lk_slice){store->names.data, starts[0]};
    for (int i = 0; i < LK_REDIS_KEYS; i++) {
        store->keys[i] = (struct lk_slice){store->names.data + starts[i],
                                           starts[i + 1] - starts[i] - 1};
    }
    return LK_OK;
}

static enum lk_status make_secrets(struct lk_redis *store)
{
    uint8_t holder[16];

    if (getrandom(store->store.secret, 16, 0) != 16 ||
        getrandom(store->store.reference_secret, 16, 0) != 16 ||
        getrandom(holder, 16, 0) != 16) {
        return LK_IO;
    }
    for (int i = 0; i < 16; i++) {
        snprintf(store->holder + 2 * i, 3, "%02x", holder[i]);
    }
    return LK_OK;
}

static enum lk_status init_place(struct lk_redis_place *place)
{
    pthread_condattr_t attributes;

    if (pthread_condattr_init(&attributes)) {
        return LK_NOMEM;
    }
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int code = pthread_cond_init(&place->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return code || pthread_mutex_init(&place->lock, NULL) ? LK_NOMEM : LK_OK;
}

static enum lk_status prepare(struct lk_redis *store,
                              const struct lk_store_config *config,
                              struct lk_buf *error)
{
    unsigned lanes = config->connections ? config->connections : 2;

    store->config = *config;
    store->config.url = store->config.path = store->config.prefix = NULL;
    store->reader.fd = store->place.anchor = -1;
    store->store.class = &lk_redis_class;
    store->store.shared = true;
    store->store.lanes = lanes < 1 ? 1 : lanes > LANES_MAX ? LANES_MAX : lanes;
    store->lanes = calloc(store->store.lanes, sizeof(*store->lanes));
    if (!store->lanes || pthread_mutex_init(&store->reader_lock, NULL) ||
        pthread_mutex_init(&store->numbers_lock, NULL)) {
        return LK_NOMEM;
    }
    for (unsigned i = 0; i < store->store.lanes; i++) {
        store->lanes[i].link.fd = -1;
    }
    enum lk_status status = init_place(&store->place);
    if (!status) {
        status = lk_redis_url_parse(config->url, &store->url, error);
    }
    if (!status) {
        status = make_keys(store, config->prefix ? config->prefix : "latchkey");
    }
    return status ? status : make_secrets(store);
}

/* The first meeting: everything has to be right. */
static enum lk_status meet(struct lk_redis *store, struct lk_buf *error)
{
    struct lk_link *link = &store->lanes[0].link;
    uint64_t timeout_ms = store->config.connect_timeout_ms;
    enum lk_status status =
        lk_redis_find(link, &store->url, store->keys[LK_REDIS_TOKEN].data,
                      timeout_ms, store->place.address);
    int64_t deadline = (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms;

    if (!status && link->why[0]) {
        lk_redis_log(store, 1, "%s", link->why);
    }
    if (!status) {
        status = lk_redis_hello(store, link, deadline, true, error);
    }
    if (!status) {
        status = lk_redis_check(store, link, deadline, error);
    }
    if (status && !error->len && latchkey_buf_add_text(error, link->why)) {
        status = LK_NOMEM;
    }
    store->place.up = true;
    store->place.epoch = link->epoch = 1;
    store->place.anchor = dup(link->fd);
    return status == LK_AGAIN || status == LK_TIMEOUT ? LK_UNAVAILABLE : status;
}

static void close_store(struct lk_store *base)
{
    struct lk_redis *store = (struct lk_redis *)base;

    atomic_store(&store->stopping, true);
    lk_redis_place_stop(store);
    if (store->revision && store->place.up) {
        const struct lk_slice words[] = {store->keys[LK_REDIS_KEEPER],
                                         latchkey_slice(store->holder)};
        struct lk_reply *reply = NULL;
        /* If it fails, the lease ends by itself. */
        if (store->lanes[0].link.fd >= 0 &&
            lk_redis_call(store, &store->lanes[0].link,
                          (int64_t)lk_monotonic_ms() + 500, "latchkey_resign",
                          1, words, 2, &reply)) {
            reply = NULL;
        }
        free(reply);
    }
    for (unsigned i = 0; store->lanes && i < store->store.lanes; i++) {
        lk_link_close(&store->lanes[i].link);
        latchkey_buf_free(&store->lanes[i].scratch);
        free(store->lanes[i].pending);
    }
    lk_link_close(&store->reader);
    if (store->place.anchor >= 0) {
        close(store->place.anchor);
    }
    free(store->lanes);
    lk_redis_url_free(&store->url);
    latchkey_buf_free(&store->names);
    pthread_cond_destroy(&store->place.changed);
    pthread_mutex_destroy(&store->place.lock);
    pthread_mutex_destroy(&store->reader_lock);
    pthread_mutex_destroy(&store->numbers_lock);
    free(store);
}

static enum lk_status check_url(const struct lk_store_config *config,
                                struct lk_buf *error)
{
    struct lk_redis_url url = {0};
    enum lk_status status = lk_redis_url_parse(config->url, &url, error);

    lk_redis_url_free(&url);
    if (!status && config->strict) {
        status = latchkey_buf_printf(
            error, "store.strict is set, and no Redis promises that much, "
                   "whatever its settings: use PostgreSQL or the embedded "
                   "store, or do not ask for it");
        status = status ? status : LK_INVALID;
    }
    return status;
}

static enum lk_status open_store(const struct lk_store_config *config,
                                 struct lk_store **store, struct lk_buf *error)
{
    struct lk_redis *made = calloc(1, sizeof(*made));

    *store = NULL;
    if (!made) {
        return LK_NOMEM;
    }
    enum lk_status status = prepare(made, config, error);
    if (!status) {
        status = meet(made, error);
    }
    if (!status) {
        lk_redis_promise(&made->store, made->store.promise);
        status = lk_redis_place_start(made);
    }
    if (status) {
        close_store(&made->store);
        return status;
    }
    *store = &made->store;
    return LK_OK;
}

const struct lk_store_class lk_redis_class = {
    .scheme = "redis",
    .check = check_url,
    .open = open_store,
    .close = close_store,
    .apply = lk_redis_apply,
    .load = lk_redis_load,
    .lookup = lk_redis_lookup,
    .find = lk_redis_find_number,
    .list = lk_redis_list,
    .audit = lk_redis_audit,
    .verify = lk_redis_verify,
    .note = lk_redis_note,
    .stats = stats,
    .describe = lk_redis_describe,
    .promise = lk_redis_promise,
    .import = lk_redis_import,
    .import_audit = lk_redis_import_audit,
    .adopt = lk_redis_adopt,
};
