/*
 * answers.c - stored answers in Redis, each with a MAC.
 *
 * The key is {prefix}:answer:TOKEN. The value is the MAC and then, in this
 * order: when it was completed (8 bytes), the length of the reason (1 byte),
 * the reason, the encoded response. The MAC is HMAC-SHA256, with a key that is
 * derived from the store's secret, over token, number, expiry, name hash,
 * fingerprint with its length, and everything behind the MAC. Number and expiry
 * are what PostgreSQL says with its decision: an answer of a run that it has
 * forgotten, since it was restored from a copy, fits no later one.
 */
#include "store/answers.h"
#include "lib/socket.h"
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
};

struct counters {
    atomic_uint_fast64_t hits, misses, refused, failed;
    atomic_bool available;
};

struct lk_answers {
    struct lk_redis_url url;
    char prefix[64];
    uint64_t timeout_ms;
    uint8_t key[MAC];
    void (*log)(void *context, int level, const char *line);
    void *log_context;

    struct counters counters; /* changed under the lock, read by any thread */

    pthread_mutex_t lock; /* guards all below */
    struct lk_link link;
    int64_t not_before; /* when it may be tried again */
    int64_t usual_ms;   /* what a question takes, times 8 */
    struct lk_buf value;
};

/* ---- The MAC ---------------------------------------------------------------
 */

static void put64(char *to, uint64_t number)
{
    for (int i = 0; i < 8; i++) {
        to[i] = (char)(number >> 8 * i);
    }
}

/* Everything that an answer is bound to, in front of its bytes. */
static enum lk_status add_binding(struct lk_buf *text, const struct lk_op *op,
                                  uint64_t token)
{
    const uint64_t numbers[] = {
        token,       op->out.number, op->out.expires_ms,
        op->hash.hi, op->hash.lo,    op->fingerprint.len,
    };
    char fixed[sizeof(numbers)];

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        put64(fixed + 8 * i, numbers[i]);
    }
    enum lk_status status = latchkey_buf_add(text, fixed, sizeof(fixed));
    return status ? status : latchkey_buf_add_slice(text, op->fingerprint);
}

static enum lk_status make_mac(const struct lk_answers *answers,
                               const struct lk_op *op, uint64_t token,
                               struct lk_slice bytes, uint8_t mac[MAC])
{
    struct lk_buf text = {0};
    unsigned len = 0;
    enum lk_status status = add_binding(&text, op, token);

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

static bool derive_key(struct lk_answers *answers, const uint8_t *secret)
{
    static const char purpose[] = "latchkey answers in a cache";
    unsigned len = 0;

    return HMAC(EVP_sha256(), secret, 16, (const unsigned char *)purpose,
                sizeof(purpose) - 1, answers->key, &len) &&
           len == MAC;
}

/* ---- Values ----------------------------------------------------------------
 */

static enum lk_status encode(struct lk_answers *answers, const struct lk_op *op,
                             const struct lk_kept *kept, struct lk_buf *value)
{
    char fixed[FIXED] = {0};
    uint8_t mac[MAC];

    put64(fixed + MAC, kept->at_ms);
    fixed[MAC + 8] = (char)kept->reason.len;
    value->len = 0;
    enum lk_status status = latchkey_buf_add(value, fixed, sizeof(fixed));
    if (!status) {
        status = latchkey_buf_add_slice(value, kept->reason);
    }
    if (!status) {
        status = latchkey_response_encode(&kept->response, value);
    }
    if (!status) {
        struct lk_slice bytes = {value->data + MAC, value->len - MAC};
        status = make_mac(answers, op, kept->token, bytes, mac);
    }
    if (!status) {
        memcpy(value->data, mac, MAC);
    }
    return status;
}

/* LK_CORRUPT: it is not what we put there. */
static enum lk_status decode(const struct lk_answers *answers,
                             const struct lk_op *op, struct lk_slice value,
                             struct lk_kept **kept)
{
    struct lk_response response;
    uint8_t mac[MAC];

    if (value.len < FIXED) {
        return LK_CORRUPT;
    }
    struct lk_slice bytes = {value.data + MAC, value.len - MAC};
    enum lk_status status = make_mac(answers, op, op->out.token, bytes, mac);
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
        *kept = lk_kept_make(op->out.token, lk_redis_get64(value.data + MAC),
                             &response, reason);
        status = *kept ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* ---- Asking ----------------------------------------------------------------
 */

static void say(const struct lk_answers *answers, int level, const char *text,
                const char *why)
{
    char line[400];

    if (answers->log) {
        snprintf(line, sizeof(line), "%s%s", text, why);
        answers->log(answers->log_context, level, line);
    }
}

static enum lk_status fail(struct lk_answers *answers)
{
    answers->not_before = lk_socket_now() + LEAVE_ALONE_MS;
    answers->counters.failed++;
    if (answers->counters.available) {
        answers->counters.available = false;
        say(answers, 1, "the cache does not answer: ", answers->link.why);
    }
    lk_link_close(&answers->link);
    return LK_UNAVAILABLE;
}

static enum lk_status ready(struct lk_answers *answers)
{
    char address[LK_REDIS_ADDRESS];

    if (lk_socket_now() < answers->not_before) {
        return LK_UNAVAILABLE;
    }
    if (answers->link.fd >= 0 && !lk_link_is_stale(&answers->link)) {
        return LK_OK;
    }
    if (lk_redis_find(&answers->link, &answers->url, NULL, answers->timeout_ms,
                      address)) {
        return fail(answers);
    }
    if (!answers->counters.available) {
        answers->counters.available = true;
        say(answers, 2, "the cache answers, at ", address);
    }
    return LK_OK;
}

/* Replays are loaded one after the other, so a cache that takes its time would
 * hold them up more than it helps. */
static void note_time(struct lk_answers *answers, int64_t took_ms)
{
    answers->usual_ms += took_ms - answers->usual_ms / 8;
    if (answers->usual_ms > 8 * SLOW_MS) {
        answers->not_before = lk_socket_now() + LEAVE_ALONE_MS;
        answers->usual_ms = 0;
    }
}

/* An error reply is as good as none: the link is given up. */
static enum lk_status ask(struct lk_answers *answers,
                          const struct lk_slice *words, size_t count,
                          redisReply **reply)
{
    enum lk_status status = ready(answers);

    *reply = NULL;
    if (status) {
        return status;
    }
    int64_t began = lk_socket_now();
    status = lk_link_ask(&answers->link, began + (int64_t)answers->timeout_ms,
                         words, count, reply);
    note_time(answers, lk_socket_now() - began);
    if (!status && (*reply)->type == REDIS_REPLY_ERROR) {
        snprintf(answers->link.why, sizeof(answers->link.why), "%.100s",
                 (*reply)->str);
        status = LK_UNAVAILABLE;
    }
    if (status) {
        freeReplyObject(*reply);
        *reply = NULL;
        status = fail(answers);
    }
    return status;
}

static struct lk_slice name_key(const struct lk_answers *answers,
                                uint64_t token, char key[KEY_MAX])
{
    int len = snprintf(key, KEY_MAX, "{%s}:answer:%llu", answers->prefix,
                       (unsigned long long)token);

    return (struct lk_slice){key, (size_t)len};
}

/* Only claims know the fingerprint. */
static bool is_bound(const struct lk_op *op)
{
    return op->event == LK_EVENT_CLAIM && op->fingerprint.len && op->out.token;
}

static struct lk_kept *get(struct lk_answers *answers, const struct lk_op *op)
{
    char key[KEY_MAX];
    struct lk_kept *kept = NULL;
    redisReply *reply = NULL;
    const struct lk_slice words[] = {LK_SLICE("GET"),
                                     name_key(answers, op->out.token, key)};

    if (ask(answers, words, 2, &reply)) {
        return NULL;
    }
    if (reply->type != REDIS_REPLY_STRING) {
        answers->counters.misses++;
    } else if (decode(answers, op, lk_reply_text(reply), &kept)) {
        answers->counters.refused++;
    } else {
        answers->counters.hits++;
    }
    freeReplyObject(reply);
    return kept;
}

struct lk_kept *lk_answers_get(struct lk_answers *answers,
                               const struct lk_op *op)
{
    if (!is_bound(op)) {
        return NULL;
    }
    pthread_mutex_lock(&answers->lock);
    struct lk_kept *kept = get(answers, op);
    pthread_mutex_unlock(&answers->lock);
    return kept;
}

static void put(struct lk_answers *answers, const struct lk_op *op,
                const struct lk_kept *kept, uint64_t ttl_ms)
{
    char key[KEY_MAX], ttl[24];
    redisReply *reply = NULL;

    if (lk_socket_now() < answers->not_before ||
        encode(answers, op, kept, &answers->value)) {
        return;
    }
    snprintf(ttl, sizeof(ttl), "%llu", (unsigned long long)ttl_ms);
    const struct lk_slice words[] = {LK_SLICE("SET"),
                                     name_key(answers, kept->token, key),
                                     latchkey_buf_slice(&answers->value),
                                     LK_SLICE("PX"), latchkey_slice(ttl)};
    if (!ask(answers, words, 5, &reply)) {
        freeReplyObject(reply);
    }
}

void lk_answers_put(struct lk_answers *answers, const struct lk_op *op,
                    const struct lk_kept *kept, uint64_t ttl_ms)
{
    if (!is_bound(op) || kept->token != op->out.token || !ttl_ms ||
        !kept->response.status || kept->size > VALUE_MAX ||
        kept->reason.len > LK_REASON_MAX) {
        return;
    }
    pthread_mutex_lock(&answers->lock);
    put(answers, op, kept, ttl_ms);
    pthread_mutex_unlock(&answers->lock);
}

static enum lk_status forget(struct lk_answers *answers, const uint64_t *tokens,
                             size_t count)
{
    enum lk_status status = ready(answers);
    int64_t deadline = lk_socket_now() + (int64_t)answers->timeout_ms;
    char key[KEY_MAX];

    if (status) {
        return status;
    }
    lk_link_reset(&answers->link);
    for (size_t i = 0; i < count && !status; i++) {
        const struct lk_slice words[] = {LK_SLICE("DEL"),
                                         name_key(answers, tokens[i], key)};
        status = lk_link_command(&answers->link, words, 2);
    }
    for (size_t i = 0; i < count && !status; i++) {
        redisReply *reply = NULL;
        status = lk_link_reply(&answers->link, deadline, &reply);
        if (!status && reply->type != REDIS_REPLY_INTEGER) {
            status = LK_UNAVAILABLE;
        }
        freeReplyObject(reply);
    }
    return status ? fail(answers) : LK_OK;
}

enum lk_status lk_answers_forget(struct lk_answers *answers,
                                 const uint64_t *tokens, size_t count)
{
    enum lk_status status = LK_OK;

    pthread_mutex_lock(&answers->lock);
    answers->not_before = 0; /* an eviction is worth a try at any time */
    while (count && !status) {
        size_t now = count < FORGET_AT_ONCE ? count : FORGET_AT_ONCE;
        status = forget(answers, tokens, now);
        tokens += now;
        count -= now;
    }
    pthread_mutex_unlock(&answers->lock);
    return status;
}

void lk_answers_stats(struct lk_answers *answers,
                      struct lk_answers_stats *stats)
{
    struct counters *counters = &answers->counters;

    *stats = (struct lk_answers_stats){
        .hits = atomic_load(&counters->hits),
        .misses = atomic_load(&counters->misses),
        .refused = atomic_load(&counters->refused),
        .failed = atomic_load(&counters->failed),
        .available = atomic_load(&counters->available),
    };
}

/* ---- Opening ---------------------------------------------------------------
 */

enum lk_status lk_answers_open(const struct lk_answers_config *config,
                               struct lk_answers **answers,
                               struct lk_buf *error)
{
    struct lk_answers *made = calloc(1, sizeof(*made));

    *answers = NULL;
    if (!made) {
        return LK_NOMEM;
    }
    made->link.fd = -1;
    made->timeout_ms = config->timeout_ms ? config->timeout_ms : 50;
    made->log = config->log;
    made->log_context = config->log_context;
    made->counters.available = true; /* until shown otherwise */
    snprintf(made->prefix, sizeof(made->prefix), "%s",
             config->prefix ? config->prefix : "latchkey");
    enum lk_status status = lk_redis_url_parse(config->url, &made->url, error);
    if (!status && !derive_key(made, config->secret)) {
        status = LK_NOMEM;
    }
    if (!status && pthread_mutex_init(&made->lock, NULL)) {
        status = LK_NOMEM;
    }
    if (status) {
        lk_redis_url_free(&made->url);
        free(made);
        return status;
    }
    *answers = made;
    return LK_OK;
}

void lk_answers_close(struct lk_answers *answers)
{
    if (!answers) {
        return;
    }
    lk_link_close(&answers->link);
    lk_redis_url_free(&answers->url);
    latchkey_buf_free(&answers->value);
    pthread_mutex_destroy(&answers->lock);
    explicit_bzero(answers->key, sizeof(answers->key));
    free(answers);
}
