/*
 * answers.c - stored answers in Redis, each with a MAC.
 *
 * The key is {prefix}:answer:TOKEN. The value is the MAC and then, in this
 * order: when it was completed (8 bytes), the length of the reason (1 byte),
 * the reason, the encoded response. The MAC is HMAC-SHA256, with a key that is
 * derived from the store's secret, over token, number, expiry, name hash, and
 * everything behind the MAC. Number and expiry are what PostgreSQL says with
 * its decision: an answer of a run that it has forgotten, since it was restored
 * from a copy, fits no later one, which completes and so expires later.
 *
 * The fingerprint is not in it: a completion does not know it, and it would
 * tell nothing apart. The claim that asks here was told REPLAY or OMITTED, so
 * PostgreSQL has compared its fingerprint with the record's in the decision
 * that named token, number and expiry. A token is handed out once, for one
 * attempt of one record, whose fingerprint is that of its claim; and what is
 * completed under a token never changes. Where a copy was restored and a token
 * is handed out again, it is the expiry that tells the two runs apart, as it
 * does where both have the same fingerprint.
 *
 * An eviction leaves an empty value, which is no answer, and every answer is
 * put there only if there is no value (NX). So it does not matter when the one
 * and the other arrive, and from which daemon: what was evicted does not come
 * back. The empty value stays longer than any answer is under way.
 *
 * Answers are put there by a thread of its own, on a connection of its own:
 * nobody waits for that. What it cannot do soon is dropped.
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
    QUEUE_MAX = 256, /* answers that are to be put there */
    QUEUE_BYTES = 4 * VALUE_MAX,
    ROUND_BYTES = 128 * 1024, /* are sent before replies are waited for */
    /* Most retries come soon, most answers are never asked for: until one is,
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

/* What an answer is bound to. */
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

/* In front of the bytes of the answer. */
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

static enum lk_status make_mac(const struct lk_response_cache *answers,
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
        (!HMAC(EVP_sha256(), answers->key, MAC,
               (const unsigned char *)text.data, text.len, mac, &len) ||
         len != MAC)) {
        status = LK_NOMEM;
    }
    latchkey_buf_free(&text);
    return status;
}

static bool derive_key(struct lk_response_cache *answers, const uint8_t *secret)
{
    static const char purpose[] = "latchkey answers in a cache";
    unsigned len = 0;

    return HMAC(EVP_sha256(), secret, 16, (const unsigned char *)purpose,
                sizeof(purpose) - 1, answers->key, &len) &&
           len == MAC;
}

/* ---- Values ----------------------------------------------------------------
 */

static enum lk_status encode(struct lk_response_cache *answers,
                             const struct fill *fill, struct lk_buf *value)
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
        status = make_mac(answers, &fill->binding, bytes, mac);
    }
    if (!status) {
        memcpy(value->data, mac, MAC);
    }
    return status;
}

/* LK_CORRUPT: it is not what we put there. */
static enum lk_status decode(const struct lk_response_cache *answers,
                             const struct lk_op *op, struct lk_slice value,
                             struct lk_stored **stored)
{
    struct lk_response response;
    uint8_t mac[MAC];

    if (value.len < FIXED) {
        return LK_CORRUPT;
    }
    struct lk_slice bytes = {value.data + MAC, value.len - MAC};
    struct binding binding = bind_to(op);
    enum lk_status status = make_mac(answers, &binding, bytes, mac);
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
    struct lk_slice record = {reason.data + reason.len,
                              value.len - FIXED - reason.len};
    status = latchkey_response_decode(record, &response);
    if (!status) {
        *stored = lk_stored_make(
            op->out.token, lk_redis_get64(value.data + MAC), &response, reason);
        status = *stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* ---- Asking ----------------------------------------------------------------
 */

static void say(const struct lk_response_cache *answers, int level,
                const char *text, const char *why)
{
    char line[400];

    if (answers->log) {
        snprintf(line, sizeof(line), "%s%s", text, why);
        answers->log(answers->log_context, level, line);
    }
}

static enum lk_status fail(struct lk_response_cache *answers,
                           struct channel *channel)
{
    channel->not_before = (int64_t)lk_monotonic_ms() + LEAVE_ALONE_MS;
    answers->counters.failed++;
    if (channel->works) {
        channel->works = false;
        say(answers, 1, "the cache does not answer: ", channel->link.why);
    }
    lk_link_close(&channel->link);
    return LK_UNAVAILABLE;
}

/* It did what was asked; that it could be reached would say too little. */
static void succeed(struct lk_response_cache *answers, struct channel *channel)
{
    if (!channel->works) {
        channel->works = true;
        say(answers, 2, "the cache answers, at ", channel->address);
    }
}

static enum lk_status ready(struct lk_response_cache *answers,
                            struct channel *channel)
{
    if ((int64_t)lk_monotonic_ms() < channel->not_before) {
        return LK_UNAVAILABLE;
    }
    if (channel->link.fd >= 0 && !lk_link_is_stale(&channel->link)) {
        return LK_OK;
    }
    if (lk_redis_find(&channel->link, &answers->url, NULL, answers->timeout_ms,
                      channel->address)) {
        return fail(answers, channel);
    }
    return LK_OK;
}

/* An error reply is as good as none: the link is given up. */
static enum lk_status judge(struct lk_response_cache *answers,
                            struct channel *channel, enum lk_status status,
                            const struct lk_reply *reply)
{
    struct lk_link *link = &channel->link;

    if (!status && reply->type == LK_REPLY_ERROR) {
        snprintf(link->why, sizeof(link->why), "%.100s", reply->text.data);
        status = LK_UNAVAILABLE;
    }
    if (status) {
        return fail(answers, channel);
    }
    succeed(answers, channel);
    return LK_OK;
}

/* For commands that are queued in the link: sends them and takes the replies,
 * which say no more than that it was done. Only the first `vital` must. */
static enum lk_status take_replies(struct lk_response_cache *answers,
                                   struct channel *channel, size_t count,
                                   size_t vital)
{
    int64_t deadline =
        (int64_t)lk_monotonic_ms() + (int64_t)answers->timeout_ms;
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count && !status; i++) {
        struct lk_reply *reply = NULL;
        status = lk_link_reply(&channel->link, deadline, &reply);
        if (status || i < vital) {
            status = judge(answers, channel, status, reply);
        }
        free(reply);
    }
    return status;
}

/* Replays are loaded one after the other, so a cache that takes its time would
 * hold them up more than it helps. */
static void note_time(struct lk_response_cache *answers, int64_t took_ms)
{
    answers->usual_ms += took_ms - answers->usual_ms / 8;
    if (answers->usual_ms > 8 * SLOW_MS) {
        answers->asking.not_before =
            (int64_t)lk_monotonic_ms() + LEAVE_ALONE_MS;
        answers->usual_ms = 0;
    }
}

static enum lk_status ask(struct lk_response_cache *answers,
                          const struct lk_slice *words, size_t count,
                          struct lk_reply **reply)
{
    struct channel *channel = &answers->asking;
    enum lk_status status = ready(answers, channel);

    *reply = NULL;
    if (status) {
        return status;
    }
    int64_t began = (int64_t)lk_monotonic_ms();
    status = lk_link_ask(&channel->link, began + (int64_t)answers->timeout_ms,
                         words, count, reply);
    note_time(answers, (int64_t)lk_monotonic_ms() - began);
    status = judge(answers, channel, status, *reply);
    if (status) {
        free(*reply);
        *reply = NULL;
    }
    return status;
}

static struct lk_slice name_key(const struct lk_response_cache *answers,
                                uint64_t token, char key[KEY_MAX])
{
    int len = snprintf(key, KEY_MAX, "{%s}:answer:%llu", answers->prefix,
                       (unsigned long long)token);

    return (struct lk_slice){key, (size_t)len};
}

/* Only of claims the fingerprint was compared. */
static bool is_compared(const struct lk_op *op)
{
    return op->event == LK_EVENT_CLAIM && op->fingerprint.len && op->out.token;
}

/* What does not fit is in the way of what does: KEEP changes the expiry. */
static void remove_key(struct lk_response_cache *answers, struct lk_slice key)
{
    const struct lk_slice words[] = {LK_SLICE("DEL"), key};
    struct lk_reply *reply = NULL;

    if (!ask(answers, words, 2, &reply)) {
        free(reply);
    }
}

static struct lk_stored *get(struct lk_response_cache *answers,
                             const struct lk_op *op)
{
    char name[KEY_MAX];
    struct lk_stored *stored = NULL;
    struct lk_reply *reply = NULL;
    struct lk_slice key = name_key(answers, op->out.token, name);
    const struct lk_slice words[] = {LK_SLICE("GET"), key};

    if (ask(answers, words, 2, &reply)) {
        return NULL;
    }
    if (reply->type != LK_REPLY_TEXT || !reply->text.len) {
        answers->counters.misses++;
    } else if (decode(answers, op, lk_reply_text(reply), &stored)) {
        answers->counters.refused++;
        remove_key(answers, key);
    } else {
        answers->counters.hits++;
    }
    free(reply);
    return stored;
}

struct lk_stored *lk_response_cache_get(struct lk_response_cache *answers,
                                        const struct lk_op *op)
{
    if (!is_compared(op)) {
        return NULL;
    }
    pthread_mutex_lock(&answers->lock);
    struct lk_stored *stored = get(answers, op);
    pthread_mutex_unlock(&answers->lock);
    return stored;
}

/* Removed first: a Redis without memory does that, but sets nothing. */
static enum lk_status forget(struct lk_response_cache *answers,
                             const uint64_t *tokens, size_t count)
{
    struct channel *channel = &answers->asking;
    enum lk_status status = ready(answers, channel);
    char name[KEY_MAX];

    if (status) {
        return status;
    }
    lk_link_reset(&channel->link);
    for (size_t i = 0; i < 2 * count && !status; i++) {
        struct lk_slice key = name_key(answers, tokens[i % count], name);
        const struct lk_slice del[] = {LK_SLICE("DEL"), key};
        const struct lk_slice set[] = {LK_SLICE("SET"), key, LK_SLICE(""),
                                       LK_SLICE("PX"), LK_SLICE(EVICTED_MS)};
        status = i < count ? lk_link_command(&channel->link, del, 2)
                           : lk_link_command(&channel->link, set, 5);
    }
    return status ? fail(answers, channel)
                  : take_replies(answers, channel, 2 * count, count);
}

enum lk_status lk_response_cache_forget(struct lk_response_cache *answers,
                                        const uint64_t *tokens, size_t count)
{
    enum lk_status status = LK_OK;

    pthread_mutex_lock(&answers->lock);
    answers->asking.not_before = 0; /* an eviction is worth a try at any time */
    while (count && !status) {
        size_t now = count < FORGET_AT_ONCE ? count : FORGET_AT_ONCE;
        status = forget(answers, tokens, now);
        tokens += now;
        count -= now;
    }
    pthread_mutex_unlock(&answers->lock);
    return status;
}

void lk_response_cache_stats(struct lk_response_cache *answers,
                             struct lk_response_cache_stats *stats)
{
    struct counters *counters = &answers->counters;

    *stats = (struct lk_response_cache_stats){
        .hits = atomic_load(&counters->hits),
        .misses = atomic_load(&counters->misses),
        .refused = atomic_load(&counters->refused),
        .failed = atomic_load(&counters->failed),
        .available = atomic_load(&answers->asking.works) &&
                     atomic_load(&answers->filling.works),
    };
}

/* ---- Filling ---------------------------------------------------------------
 */

static void free_fill(struct fill *fill)
{
    lk_stored_unref(fill->stored);
    free(fill);
}

static enum lk_status queue_set(struct lk_response_cache *answers,
                                const struct fill *fill)
{
    char key[KEY_MAX], ttl[24];
    enum lk_status status = encode(answers, fill, &answers->value);

    if (status) {
        return status;
    }
    snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)fill->ttl_ms);
    const struct lk_slice words[] = {
        LK_SLICE("SET"),
        name_key(answers, fill->binding.token, key),
        latchkey_buf_slice(&answers->value),
        LK_SLICE("PX"),
        latchkey_slice(ttl),
        LK_SLICE("NX")};
    return lk_link_command(&answers->filling.link, words, 6);
}

/* Puts some of them there and frees these. */
static enum lk_status fill_some(struct lk_response_cache *answers,
                                struct fill **fills)
{
    struct channel *channel = &answers->filling;
    enum lk_status status = ready(answers, channel);
    size_t count = 0;

    lk_link_reset(&channel->link);
    while (!status && *fills && channel->link.out.len < ROUND_BYTES) {
        struct fill *fill = *fills;
        status = queue_set(answers, fill);
        *fills = fill->next;
        free_fill(fill);
        count++;
    }
    return status ? status : take_replies(answers, channel, count, count);
}

/* If the cache fails, the rest is dropped. */
static void fill_all(struct lk_response_cache *answers, struct fill *fills)
{
    enum lk_status status = LK_OK;

    while (fills && !status) {
        status = fill_some(answers, &fills);
    }
    while (fills) {
        struct fill *fill = fills;
        fills = fill->next;
        free_fill(fill);
    }
}

static struct fill *take_queue(struct lk_response_cache *answers)
{
    struct fill *fills = answers->first;

    answers->first = NULL;
    answers->last = &answers->first;
    answers->queued = answers->queued_bytes = 0;
    return fills;
}

static void *run_filler(void *context)
{
    struct lk_response_cache *answers = context;

    pthread_mutex_lock(&answers->queue_lock);
    while (!answers->stop) {
        struct fill *fills = take_queue(answers);
        if (!fills) {
            pthread_cond_wait(&answers->wake, &answers->queue_lock);
            continue;
        }
        pthread_mutex_unlock(&answers->queue_lock);
        fill_all(answers, fills);
        pthread_mutex_lock(&answers->queue_lock);
        answers->closed_until = answers->filling.not_before;
    }
    pthread_mutex_unlock(&answers->queue_lock);
    return NULL;
}

/* Under the queue's lock. */
static bool has_room(const struct lk_response_cache *answers, size_t size)
{
    return answers->queued < QUEUE_MAX &&
           answers->queued_bytes + size <= QUEUE_BYTES &&
           (int64_t)lk_monotonic_ms() >= answers->closed_until;
}

static bool may_fill(struct lk_response_cache *answers, size_t size)
{
    pthread_mutex_lock(&answers->queue_lock);
    bool may = has_room(answers, size);
    pthread_mutex_unlock(&answers->queue_lock);
    return may && size <= VALUE_MAX;
}

void lk_response_cache_put(struct lk_response_cache *answers,
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
    pthread_mutex_lock(&answers->queue_lock);
    bool queued = has_room(answers, stored->size);
    if (queued) {
        *answers->last = fill;
        answers->last = &fill->next;
        answers->queued++;
        answers->queued_bytes += stored->size;
        pthread_cond_signal(&answers->wake);
    }
    pthread_mutex_unlock(&answers->queue_lock);
    if (!queued) {
        free_fill(fill);
    }
}

void lk_response_cache_completed(struct lk_response_cache *answers,
                                 const struct lk_op *op)
{
    struct lk_response response = op->response;

    if (op->reason.len) { /* omitted: nothing else is kept */
        response = (struct lk_response){.status = op->response.status};
    }
    if (op->out.expires_ms <= op->out.now_ms ||
        !may_fill(answers, response.headers.len + response.body.len)) {
        return;
    }
    struct lk_stored *stored =
        lk_stored_make(op->out.token, op->out.now_ms, &response, op->reason);
    if (stored) {
        uint64_t ttl_ms = op->out.expires_ms - op->out.now_ms;
        lk_response_cache_put(answers, op, stored,
                              ttl_ms < UNASKED_MS ? ttl_ms : UNASKED_MS);
        lk_stored_unref(stored);
    }
}

/* ---- Opening ---------------------------------------------------------------
 */

static void free_answers(struct lk_response_cache *answers)
{
    lk_link_close(&answers->asking.link);
    lk_link_close(&answers->filling.link);
    lk_redis_url_free(&answers->url);
    latchkey_buf_free(&answers->value);
    pthread_mutex_destroy(&answers->lock);
    pthread_mutex_destroy(&answers->queue_lock);
    pthread_cond_destroy(&answers->wake);
    explicit_bzero(answers->key, sizeof(answers->key));
    free(answers);
}

static struct lk_response_cache *create(
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
    struct lk_response_cache **answers, struct lk_buf *error)
{
    struct lk_response_cache *made = create(config);

    *answers = NULL;
    if (!made) {
        return LK_NOMEM;
    }
    enum lk_status status = lk_redis_url_parse(config->url, &made->url, error);
    if (!status && (!derive_key(made, config->secret) ||
                    pthread_create(&made->thread, NULL, run_filler, made))) {
        status = LK_NOMEM;
    }
    if (status) {
        free_answers(made);
        return status;
    }
    *answers = made;
    return LK_OK;
}

void lk_response_cache_close(struct lk_response_cache *answers)
{
    if (!answers) {
        return;
    }
    pthread_mutex_lock(&answers->queue_lock);
    answers->stop = true;
    pthread_cond_signal(&answers->wake);
    pthread_mutex_unlock(&answers->queue_lock);
    pthread_join(answers->thread, NULL);
    for (struct fill *fill = answers->first, *next; fill; fill = next) {
        next = fill->next;
        free_fill(fill);
    }
    free_answers(answers);
}
