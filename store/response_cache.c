/*
 * response_cache.c - stored responses in Redis, each with a MAC.
 *
 * The key is {prefix}:answer:TOKEN. The value is the MAC and then, in this
 * order: when it was completed (8 bytes), the length of the reason (1 byte),
 * the reason, the encoded response. The MAC is HMAC-SHA256, with a key that is
 * derived from the store's secret, over token, number, expiry, name hash, and
 * everything behind the MAC. Number and expiry are what PostgreSQL returns with
 * its decision: a response of a run that it has forgotten, since it was
 * restored from a copy, does not fit a later run, which completes and so
 * expires later.
 *
 * The fingerprint is not in it: a completion does not know it, and it would
 * distinguish nothing. The claim that asks here got REPLAY or OMITTED, so
 * PostgreSQL has compared its fingerprint with the operation's in the decision
 * that named token, number and expiry. A token is handed out once, for one
 * attempt of one operation, whose fingerprint is that of its claim; and what is
 * completed under a token never changes. Where a copy was restored and a token
 * is handed out again, the expiry distinguishes the two runs, also where both
 * have the same fingerprint.
 *
 * An eviction leaves an empty value, which is not a response, and every
 * response is put there only if there is no value (NX). So the order in which
 * they arrive, and from which daemon, does not matter: what was evicted does
 * not come back. The empty value stays longer than any response takes to
 * arrive.
 *
 * A thread of its own, the filler, puts responses there, on a connection of its
 * own: no one waits for that. What it cannot do soon is dropped.
 *
 * The life of a response to be cached (struct fill): lk_response_cache_put
 * makes it, with a reference to the response; the queue holds it under
 * queue_lock; the filler takes the whole queue, sends it and frees each; a full
 * queue, a cache that is down or closing frees it unsent.
 */
#include "store/response_cache.h"
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAC = 32,
    FIXED = MAC + 8 + 1, /* before the reason */
    VALUE_MAX = 1024 * 1024,
    LEAVE_ALONE_MS = 1000,
    SLOW_MS = 10, /* on average: asking PostgreSQL is not worth avoiding then */
    KEY_MAX = 128,
    FORGET_AT_ONCE = 256,
    QUEUE_MAX = 256, /* responses that wait to be put there */
    QUEUE_BYTES = 4 * VALUE_MAX,
    ROUND_BYTES = 128 * 1024, /* are sent before replies are waited for */
    /* Most retries come soon, most responses are never asked for: until one is,
     * it does not take the cache's memory for longer. */
    UNASKED_MS = 10 * 60 * 1000,
};

#define EVICTED_MS "60000"

struct counters {
    atomic_uint_fast64_t hits, misses, refused, failed;
};

/* A connection to the cache, for one thread at a time. */
struct channel {
    struct lk_link link;
    int64_t not_before; /* when it may be tried again */
    atomic_bool works;  /* as far as is known, and as the log says */
    char address[LK_REDIS_ADDRESS];
};

/* What a response is bound to. */
struct binding {
    uint64_t token, number, expires_ms;
    struct lk_hash128 hash;
};

struct fill {
    struct fill *next;
    struct binding binding;
    struct lk_stored *stored; /* a reference of its own */
    uint64_t ttl_ms;
};

struct lk_response_cache {
    struct lk_redis_url url;
    char prefix[64];
    uint64_t timeout_ms;
    uint8_t key[MAC];
    void (*log)(void *context, int level, const char *line);
    void *log_context;

    struct counters counters;

    pthread_mutex_t lock; /* guards these two */
    struct channel asking;
    int64_t usual_ms; /* what a question takes, times 8 */

    pthread_t thread; /* the filler's, and so are these two: */
    struct channel filling;
    struct lk_buf value;

    pthread_mutex_t queue_lock; /* guards all below; never held for long */
    pthread_cond_t wake;
    struct fill *first, **last;
    size_t queued, queued_bytes;
    int64_t closed_until; /* the filler cannot do anything before */
    bool stop;
};

/* ---- The MAC ---------------------------------------------------------------
 */

static void put64(char *to, uint64_t number)
{
    for (int i = 0; i < 8; i++) {
        to[i] = (char)(number >> 8 * i);
    }
}

static struct binding bind_to(const struct lk_op *op)
{
    return (struct binding){
        .token = op->out.token,
        .number = op->out.number,
        .expires_ms = op->out.expires_ms,
        .hash = op->hash,
    };
}

/* In front of the bytes of the response. */
static enum lk_status add_binding(struct lk_buf *text,
                                  const struct binding *binding)
{
    const uint64_t numbers[] = {
        binding->token,   binding->number,  binding->expires_ms,
        binding->hash.hi, binding->hash.lo,
    };
    char fixed[sizeof(numbers)];

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        put64(fixed + 8 * i, numbers[i]);
    }
    return latchkey_buf_add(text, fixed, sizeof(fixed));
}

static enum lk_status make_mac(const struct lk_response_cache *cache,
                               const struct binding *binding,
                               struct lk_slice bytes, uint8_t mac[MAC])
{
    struct lk_buf text = {0};
    unsigned len = 0;
    enum lk_status status = add_binding(&text, binding);

    if (!status) {
        status = latchkey_buf_add_slice(&text, bytes);
    }
    if (!status &&
        (!HMAC(EVP_sha256(), cache->key, MAC, (const unsigned char *)text.data,
               text.len, mac, &len) ||
         len != MAC)) {
        status = LK_NOMEM;
    }
    latchkey_buf_free(&text);
    return status;
}

static bool derive_key(struct lk_response_cache *cache, const uint8_t *secret)
{
    static const char purpose[] = "latchkey answers in a cache";
    unsigned len = 0;

    return HMAC(EVP_sha256(), secret, 16, (const unsigned char *)purpose,
                sizeof(purpose) - 1, cache->key, &len) &&
           len == MAC;
}

/* ---- Values ----------------------------------------------------------------
 */

static enum lk_status encode_value(struct lk_response_cache *cache,
                                   const struct fill *fill,
                                   struct lk_buf *value)
{
    const struct lk_stored *stored = fill->stored;
    char fixed[FIXED] = {0};
    uint8_t mac[MAC];

    put64(fixed + MAC, stored->at_ms);
    fixed[MAC + 8] = (char)stored->reason.len;
    value->len = 0;
    enum lk_status status = latchkey_buf_add(value, fixed, sizeof(fixed));
    if (!status) {
        status = latchkey_buf_add_slice(value, stored->reason);
    }
    if (!status) {
        status = latchkey_response_encode(&stored->response, value);
    }
    if (!status) {
        struct lk_slice bytes = {value->data + MAC, value->len - MAC};
        status = make_mac(cache, &fill->binding, bytes, mac);
    }
    if (!status) {
        memcpy(value->data, mac, MAC);
    }
    return status;
}

/* LK_CORRUPT: it is not what we put there. */
static enum lk_status decode_value(const struct lk_response_cache *cache,
                                   const struct lk_op *op,
                                   struct lk_slice value,
                                   struct lk_stored **stored)
{
    struct lk_response response;
    uint8_t mac[MAC];

    if (value.len < FIXED) {
        return LK_CORRUPT;
    }
    struct lk_slice bytes = {value.data + MAC, value.len - MAC};
    struct binding binding = bind_to(op);
    enum lk_status status = make_mac(cache, &binding, bytes, mac);
    if (status) {
        return status;
    }
    if (CRYPTO_memcmp(mac, value.data, MAC)) {
        return LK_CORRUPT;
    }
    struct lk_slice reason = {value.data + FIXED,
                              (unsigned char)value.data[FIXED - 1]};
    if (reason.len > value.len - FIXED) {
        return LK_CORRUPT;
    }
    struct lk_slice encoded = {reason.data + reason.len,
                               value.len - FIXED - reason.len};
    status = latchkey_response_decode(encoded, &response);
    if (!status) {
        *stored = lk_stored_make(
            op->out.token, lk_redis_get64(value.data + MAC), &response, reason);
        status = *stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* ---- Asking ----------------------------------------------------------------
 */

static void log_cache(const struct lk_response_cache *cache, int level,
                      const char *text, const char *why)
{
    char line[400];

    if (cache->log) {
        snprintf(line, sizeof(line), "%s%s", text, why);
        cache->log(cache->log_context, level, line);
    }
}

static enum lk_status fail_channel(struct lk_response_cache *cache,
                                   struct channel *channel)
{
    channel->not_before = (int64_t)lk_monotonic_ms() + LEAVE_ALONE_MS;
    cache->counters.failed++;
    if (channel->works) {
        channel->works = false;
        log_cache(cache, 1, "the cache does not answer: ", channel->link.why);
    }
    lk_link_close(&channel->link);
    return LK_UNAVAILABLE;
}

/* It did what was asked; that it could be reached would say too little. */
static void note_success(struct lk_response_cache *cache,
                         struct channel *channel)
{
    if (!channel->works) {
        channel->works = true;
        log_cache(cache, 2, "the cache answers, at ", channel->address);
    }
}

static enum lk_status ready_channel(struct lk_response_cache *cache,
                                    struct channel *channel)
{
    if ((int64_t)lk_monotonic_ms() < channel->not_before) {
        return LK_UNAVAILABLE;
    }
    if (channel->link.fd >= 0 && !lk_link_is_stale(&channel->link)) {
        return LK_OK;
    }
    if (lk_redis_find(&channel->link, &cache->url, NULL, cache->timeout_ms,
                      channel->address)) {
        return fail_channel(cache, channel);
    }
    return LK_OK;
}

/* An error reply is as good as none: the link is given up. */
static enum lk_status judge_reply(struct lk_response_cache *cache,
                                  struct channel *channel,
                                  enum lk_status status,
                                  const struct lk_reply *reply)
{
    struct lk_link *link = &channel->link;

    if (!status && reply->type == LK_REPLY_ERROR) {
        snprintf(link->why, sizeof(link->why), "%.100s", reply->text.data);
        status = LK_UNAVAILABLE;
    }
    if (status) {
        return fail_channel(cache, channel);
    }
    note_success(cache, channel);
    return LK_OK;
}

/* For commands that are queued in the link: sends them and takes the replies,
 * which say no more than that it was done. Only the first `vital` must. */
static enum lk_status take_replies(struct lk_response_cache *cache,
                                   struct channel *channel, size_t count,
                                   size_t vital)
{
    int64_t deadline = (int64_t)lk_monotonic_ms() + (int64_t)cache->timeout_ms;
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count && !status; i++) {
        struct lk_reply *reply = NULL;
        status = lk_link_reply(&channel->link, deadline, &reply);
        if (status || i < vital) {
            status = judge_reply(cache, channel, status, reply);
        }
        free(reply);
    }
    return status;
}

/* Replays are loaded one after the other, so a cache that takes its time would
 * hold them up more than it helps. */
static void note_duration(struct lk_response_cache *cache, int64_t took_ms)
{
    cache->usual_ms += took_ms - cache->usual_ms / 8;
    if (cache->usual_ms > 8 * SLOW_MS) {
        cache->asking.not_before = (int64_t)lk_monotonic_ms() + LEAVE_ALONE_MS;
        cache->usual_ms = 0;
    }
}

static enum lk_status ask_cache(struct lk_response_cache *cache,
                                const struct lk_slice *words, size_t count,
                                struct lk_reply **reply)
{
    struct channel *channel = &cache->asking;
    enum lk_status status = ready_channel(cache, channel);

    *reply = NULL;
    if (status) {
        return status;
    }
    int64_t began = (int64_t)lk_monotonic_ms();
    status = lk_link_ask(&channel->link, began + (int64_t)cache->timeout_ms,
                         words, count, reply);
    note_duration(cache, (int64_t)lk_monotonic_ms() - began);
    status = judge_reply(cache, channel, status, *reply);
    if (status) {
        free(*reply);
        *reply = NULL;
    }
    return status;
}

static struct lk_slice name_key(const struct lk_response_cache *cache,
                                uint64_t token, char key[KEY_MAX])
{
    int len = snprintf(key, KEY_MAX, "{%s}:answer:%llu", cache->prefix,
                       (unsigned long long)token);

    return (struct lk_slice){key, (size_t)len};
}

/* Only of claims the fingerprint was compared. */
static bool is_compared(const struct lk_op *op)
{
    return op->event == LK_EVENT_CLAIM && op->fingerprint.len && op->out.token;
}

/* What does not fit is in the way of what does: KEEP changes the expiry. */
static void remove_key(struct lk_response_cache *cache, struct lk_slice key)
{
    const struct lk_slice words[] = {LK_SLICE("DEL"), key};
    struct lk_reply *reply = NULL;

    if (!ask_cache(cache, words, 2, &reply)) {
        free(reply);
    }
}

static struct lk_stored *get_response(struct lk_response_cache *cache,
                                      const struct lk_op *op)
{
    char name[KEY_MAX];
    struct lk_stored *stored = NULL;
    struct lk_reply *reply = NULL;
    struct lk_slice key = name_key(cache, op->out.token, name);
    const struct lk_slice words[] = {LK_SLICE("GET"), key};

    if (ask_cache(cache, words, 2, &reply)) {
        return NULL;
    }
    if (reply->type != LK_REPLY_TEXT || !reply->text.len) {
        cache->counters.misses++;
    } else if (decode_value(cache, op, lk_reply_text(reply), &stored)) {
        cache->counters.refused++;
        remove_key(cache, key);
    } else {
        cache->counters.hits++;
    }
    free(reply);
    return stored;
}

struct lk_stored *lk_response_cache_get(struct lk_response_cache *cache,
                                        const struct lk_op *op)
{
    if (!is_compared(op)) {
        return NULL;
    }
    pthread_mutex_lock(&cache->lock);
    struct lk_stored *stored = get_response(cache, op);
    pthread_mutex_unlock(&cache->lock);
    return stored;
}

/* Removed first: a Redis without memory does that, but sets nothing. */
static enum lk_status forget_responses(struct lk_response_cache *cache,
                                       const uint64_t *tokens, size_t count)
{
    struct channel *channel = &cache->asking;
    enum lk_status status = ready_channel(cache, channel);
    char name[KEY_MAX];

    if (status) {
        return status;
    }
    lk_link_reset(&channel->link);
    for (size_t i = 0; i < 2 * count && !status; i++) {
        struct lk_slice key = name_key(cache, tokens[i % count], name);
        const struct lk_slice del[] = {LK_SLICE("DEL"), key};
        const struct lk_slice set[] = {LK_SLICE("SET"), key, LK_SLICE(""),
                                       LK_SLICE("PX"), LK_SLICE(EVICTED_MS)};
        status = i < count ? lk_link_command(&channel->link, del, 2)
                           : lk_link_command(&channel->link, set, 5);
    }
    return status ? fail_channel(cache, channel)
                  : take_replies(cache, channel, 2 * count, count);
}

enum lk_status lk_response_cache_forget(struct lk_response_cache *cache,
                                        const uint64_t *tokens, size_t count)
{
    enum lk_status status = LK_OK;

    pthread_mutex_lock(&cache->lock);
    cache->asking.not_before = 0; /* an eviction is worth a try at any time */
    while (count && !status) {
        size_t now = count < FORGET_AT_ONCE ? count : FORGET_AT_ONCE;
        status = forget_responses(cache, tokens, now);
        tokens += now;
        count -= now;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void lk_response_cache_stats(struct lk_response_cache *cache,
                             struct lk_response_cache_stats *stats)
{
    struct counters *counters = &cache->counters;

    *stats = (struct lk_response_cache_stats){
        .hits = atomic_load(&counters->hits),
        .misses = atomic_load(&counters->misses),
        .refused = atomic_load(&counters->refused),
        .failed = atomic_load(&counters->failed),
        .available = atomic_load(&cache->asking.works) &&
                     atomic_load(&cache->filling.works),
    };
}

/* ---- Filling ---------------------------------------------------------------
 */

static void free_fill(struct fill *fill)
{
    lk_stored_unref(fill->stored);
    free(fill);
}

static enum lk_status queue_set(struct lk_response_cache *cache,
                                const struct fill *fill)
{
    char key[KEY_MAX], ttl[24];
    enum lk_status status = encode_value(cache, fill, &cache->value);

    if (status) {
        return status;
    }
    snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)fill->ttl_ms);
    const struct lk_slice words[] = {LK_SLICE("SET"),
                                     name_key(cache, fill->binding.token, key),
                                     latchkey_buf_slice(&cache->value),
                                     LK_SLICE("PX"),
                                     latchkey_slice(ttl),
                                     LK_SLICE("NX")};
    return lk_link_command(&cache->filling.link, words, 6);
}

/* Puts some of them there and frees these. */
static enum lk_status fill_some(struct lk_response_cache *cache,
                                struct fill **fills)
{
    struct channel *channel = &cache->filling;
    enum lk_status status = ready_channel(cache, channel);
    size_t count = 0;

    lk_link_reset(&channel->link);
    while (!status && *fills && channel->link.out.len < ROUND_BYTES) {
        struct fill *fill = *fills;
        status = queue_set(cache, fill);
        *fills = fill->next;
        free_fill(fill);
        count++;
    }
    return status ? status : take_replies(cache, channel, count, count);
}

/* If the cache fails, the rest is dropped. */
static void fill_all(struct lk_response_cache *cache, struct fill *fills)
{
    enum lk_status status = LK_OK;

    while (fills && !status) {
        status = fill_some(cache, &fills);
    }
    while (fills) {
        struct fill *fill = fills;
        fills = fill->next;
        free_fill(fill);
    }
}

static struct fill *take_queue(struct lk_response_cache *cache)
{
    struct fill *fills = cache->first;

    cache->first = NULL;
    cache->last = &cache->first;
    cache->queued = cache->queued_bytes = 0;
    return fills;
}

static void *run_filler(void *context)
{
    struct lk_response_cache *cache = context;

    pthread_mutex_lock(&cache->queue_lock);
    while (!cache->stop) {
        struct fill *fills = take_queue(cache);
        if (!fills) {
            pthread_cond_wait(&cache->wake, &cache->queue_lock);
            continue;
        }
        pthread_mutex_unlock(&cache->queue_lock);
        fill_all(cache, fills);
        pthread_mutex_lock(&cache->queue_lock);
        cache->closed_until = cache->filling.not_before;
    }
    pthread_mutex_unlock(&cache->queue_lock);
    return NULL;
}

/* Under the queue's lock. */
static bool queue_has_room(const struct lk_response_cache *cache, size_t size)
{
    return cache->queued < QUEUE_MAX &&
           cache->queued_bytes + size <= QUEUE_BYTES &&
           (int64_t)lk_monotonic_ms() >= cache->closed_until;
}

static bool may_fill(struct lk_response_cache *cache, size_t size)
{
    pthread_mutex_lock(&cache->queue_lock);
    bool may = queue_has_room(cache, size);
    pthread_mutex_unlock(&cache->queue_lock);
    return may && size <= VALUE_MAX;
}

void lk_response_cache_put(struct lk_response_cache *cache,
                           const struct lk_op *op, struct lk_stored *stored,
                           uint64_t ttl_ms)
{
    if (!op->out.token || stored->token != op->out.token || !ttl_ms ||
        !stored->response.status || stored->size > VALUE_MAX ||
        stored->reason.len > LK_REASON_MAX) {
        return;
    }
    struct fill *fill = malloc(sizeof(*fill));
    if (!fill) {
        return;
    }
    *fill = (struct fill){.binding = bind_to(op),
                          .stored = lk_stored_ref(stored),
                          .ttl_ms = ttl_ms};
    pthread_mutex_lock(&cache->queue_lock);
    bool queued = queue_has_room(cache, stored->size);
    if (queued) {
        *cache->last = fill;
        cache->last = &fill->next;
        cache->queued++;
        cache->queued_bytes += stored->size;
        pthread_cond_signal(&cache->wake);
    }
    pthread_mutex_unlock(&cache->queue_lock);
    if (!queued) {
        free_fill(fill);
    }
}

void lk_response_cache_completed(struct lk_response_cache *cache,
                                 const struct lk_op *op)
{
    struct lk_response response = op->response;

    if (op->reason.len) { /* omitted: nothing else is stored */
        response = (struct lk_response){.status = op->response.status};
    }
    if (op->out.expires_ms <= op->out.now_ms ||
        !may_fill(cache, response.headers.len + response.body.len)) {
        return;
    }
    struct lk_stored *stored =
        lk_stored_make(op->out.token, op->out.now_ms, &response, op->reason);
    if (stored) {
        uint64_t ttl_ms = op->out.expires_ms - op->out.now_ms;
        lk_response_cache_put(cache, op, stored,
                              ttl_ms < UNASKED_MS ? ttl_ms : UNASKED_MS);
        lk_stored_unref(stored);
    }
}

/* ---- Opening ---------------------------------------------------------------
 */

static void free_cache(struct lk_response_cache *cache)
{
    lk_link_close(&cache->asking.link);
    lk_link_close(&cache->filling.link);
    lk_redis_url_free(&cache->url);
    latchkey_buf_free(&cache->value);
    pthread_mutex_destroy(&cache->lock);
    pthread_mutex_destroy(&cache->queue_lock);
    pthread_cond_destroy(&cache->wake);
    explicit_bzero(cache->key, sizeof(cache->key));
    free(cache);
}

static struct lk_response_cache *create_cache(
    const struct lk_response_cache_config *config)
{
    struct lk_response_cache *made = calloc(1, sizeof(*made));

    if (!made) {
        return NULL;
    }
    made->asking.link.fd = made->filling.link.fd = -1;
    made->asking.works = made->filling.works = true; /* until shown otherwise */
    made->timeout_ms = config->timeout_ms ? config->timeout_ms : 50;
    made->log = config->log;
    made->log_context = config->log_context;
    made->last = &made->first;
    pthread_mutex_init(&made->lock, NULL);
    pthread_mutex_init(&made->queue_lock, NULL);
    pthread_cond_init(&made->wake, NULL);
    snprintf(made->prefix, sizeof(made->prefix), "%s",
             config->prefix ? config->prefix : "latchkey");
    return made;
}

enum lk_status lk_response_cache_open(
    const struct lk_response_cache_config *config,
    struct lk_response_cache **cache, struct lk_buf *error)
{
    struct lk_response_cache *made = create_cache(config);

    *cache = NULL;
    if (!made) {
        return LK_NOMEM;
    }
    enum lk_status status = lk_redis_url_parse(config->url, &made->url, error);
    if (!status && (!derive_key(made, config->secret) ||
                    pthread_create(&made->thread, NULL, run_filler, made))) {
        status = LK_NOMEM;
    }
    if (status) {
        free_cache(made);
        return status;
    }
    *cache = made;
    return LK_OK;
}

void lk_response_cache_close(struct lk_response_cache *cache)
{
    if (!cache) {
        return;
    }
    pthread_mutex_lock(&cache->queue_lock);
    cache->stop = true;
    pthread_cond_signal(&cache->wake);
    pthread_mutex_unlock(&cache->queue_lock);
    pthread_join(cache->thread, NULL);
    for (struct fill *fill = cache->first, *next; fill; fill = next) {
        next = fill->next;
        free_fill(fill);
    }
    free_cache(cache);
}
