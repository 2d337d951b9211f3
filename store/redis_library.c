/*
 * redis_library.c - the functions in the server: loaded where they are missing
 * or older, or sent as a script where there are no functions.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/embed.h"
#include "store/redis.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

LK_EMBED(lk_redis_lua, "lua/latchkey.lua");

static const char PREFIX[] = "latchkey_";
static const char REVISION[] = "\nlocal REVISION = ";

struct lk_slice lk_redis_library(void)
{
    return latchkey_slice(lk_redis_lua);
}

/* The same text without its first line, which a script must not have. */
static struct lk_slice script(void)
{
    return latchkey_slice(strchr(lk_redis_lua, '\n') + 1);
}

static uint64_t own_revision(void)
{
    const char *at = strstr(lk_redis_lua, REVISION);

    return at ? strtoull(at + sizeof(REVISION) - 1, NULL, 10) : 0;
}

/* ---- Calls -----------------------------------------------------------------
 */

static void set_sha1(struct lk_redis *store)
{
    struct lk_slice text = script();
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned len = 0;

    if (!EVP_Digest(text.data, text.len, digest, &len, EVP_sha1(), NULL)) {
        len = 0; /* then Redis does not know it, and says so */
    }
    for (unsigned i = 0; i < len && i < LK_SHA1_TEXT / 2; i++) {
        snprintf(store->sha1 + 2 * i, 3, "%02x", digest[i]);
    }
}

static bool is_function_way(const struct lk_redis *store)
{
    return atomic_load_explicit(&store->place.way, memory_order_relaxed) ==
           LK_WAY_FUNCTION;
}

static enum lk_status add_call(struct lk_link *link, struct lk_slice verb,
                               struct lk_slice what, const char *script_name,
                               const struct lk_slice *keys, size_t key_count,
                               size_t args)
{
    size_t words = 3 + key_count + (script_name ? 1 : 0) + args;
    enum lk_status status = lk_link_begin(link, words);

    if (!status) {
        status = lk_link_word(link, verb);
    }
    if (!status) {
        status = lk_link_word(link, what);
    }
    if (!status) {
        status = lk_link_number(link, key_count);
    }
    for (size_t i = 0; i < key_count && !status; i++) {
        status = lk_link_word(link, keys[i]);
    }
    if (!status && script_name) {
        status = lk_link_word(link, latchkey_slice(script_name));
    }
    return status;
}

enum lk_status lk_redis_begin(const struct lk_redis *store,
                              struct lk_link *link, const char *function,
                              const struct lk_slice *keys, size_t key_count,
                              size_t args)
{
    if (is_function_way(store)) {
        return add_call(link, LK_SLICE("FCALL"), latchkey_slice(function), NULL,
                        keys, key_count, args);
    }
    return add_call(link, LK_SLICE("EVALSHA"), latchkey_slice(store->sha1),
                    function + sizeof(PREFIX) - 1, keys, key_count, args);
}

static enum lk_status add_words(struct lk_link *link,
                                const struct lk_slice *words, size_t count)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count && !status; i++) {
        status = lk_link_word(link, words[i]);
    }
    return status;
}

enum lk_status lk_redis_call(struct lk_redis *store, struct lk_link *link,
                             int64_t deadline, const char *function,
                             size_t keys, const struct lk_slice *words,
                             size_t count, struct lk_reply **reply)
{
    lk_link_reset(link);
    enum lk_status status =
        lk_redis_begin(store, link, function, words, keys, count - keys);
    if (!status) {
        status = add_words(link, words + keys, count - keys);
    }
    return status ? status : lk_link_reply(link, deadline, reply);
}

/* ---- Loading ---------------------------------------------------------------
 */

static enum lk_status explain(struct lk_buf *error, enum lk_status status,
                              const char *sentence,
                              const struct lk_reply *reply)
{
    struct lk_slice said = lk_reply_text(reply);
    enum lk_status added =
        said.len ? latchkey_buf_printf(error, "%s: %.*s", sentence,
                                       (int)(said.len < 160 ? said.len : 160),
                                       said.data)
                 : latchkey_buf_add_text(error, sentence);

    return added ? added : status;
}

static bool is_unknown(const struct lk_reply *reply)
{
    return lk_reply_is_error(reply, "ERR unknown command") ||
           lk_reply_is_error(reply, "ERR unknown subcommand") ||
           lk_reply_is_error(reply, "ERR Unknown");
}

/* LK_NOT_FOUND: the server has no functions, or does not show them. */
static enum lk_status load(struct lk_link *link, int64_t deadline,
                           struct lk_buf *error)
{
    const struct lk_slice words[] = {LK_SLICE("FUNCTION"), LK_SLICE("LOAD"),
                                     LK_SLICE("REPLACE"), lk_redis_library()};
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_link_ask(link, deadline, words, 4, &reply);

    if (!status && is_unknown(reply)) {
        status = LK_NOT_FOUND;
    } else if (!status && lk_reply_is_error(reply, "NOPERM")) {
        status = explain(error, LK_DENIED,
                         "Latchkey's functions are missing in Redis or older "
                         "than this daemon, and its user may not load them; "
                         "run: latchkey migrate URL, with a user who may",
                         NULL);
    } else if (!status && reply->type == LK_REPLY_ERROR) {
        status = explain(error, LK_INVALID,
                         "Redis does not load Latchkey's functions", reply);
    }
    free(reply);
    return status;
}

/* ---- Hello -----------------------------------------------------------------
 */

enum { HELLO_KEYS = 5, HELLO_WORDS = 8, HELLO_COUNTS = 4, HELLO_REPLY = 11 };

static void write_hex(const uint8_t *bytes, char text[33])
{
    for (int i = 0; i < 16; i++) {
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    }
}

static bool read_hex(struct lk_slice text, uint8_t bytes[16])
{
    char digits[33] = "";
    unsigned value;

    if (text.len != 32) {
        return false;
    }
    memcpy(digits, text.data, 32);
    for (int i = 0; i < 16; i++) {
        if (sscanf(digits + 2 * i, "%2x", &value) != 1) {
            return false;
        }
        bytes[i] = (uint8_t)value;
    }
    return true;
}

static enum lk_status ask_hello(struct lk_redis *store, struct lk_link *link,
                                int64_t deadline, struct lk_reply **reply)
{
    char secret[33], reference[33], nonce[33];
    uint8_t random[16];
    const struct lk_slice *keys = store->keys;

    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return LK_IO;
    }
    write_hex(random, nonce);
    write_hex(store->store.secret, secret);
    write_hex(store->store.reference_secret, reference);
    const struct lk_slice words[HELLO_WORDS] = {
        keys[LK_REDIS_META],       keys[LK_REDIS_INDEX], keys[LK_REDIS_DUE],
        keys[LK_REDIS_TOKEN],      keys[LK_REDIS_CHECK], latchkey_slice(secret),
        latchkey_slice(reference), latchkey_slice(nonce)};

    free(*reply);
    *reply = NULL;
    if (is_function_way(store)) {
        return lk_redis_call(store, link, deadline, "latchkey_hello",
                             HELLO_KEYS, words, HELLO_WORDS, reply);
    }
    /* The whole text, this once: from now on Redis knows it by its hash. */
    lk_link_reset(link);
    enum lk_status status =
        add_call(link, LK_SLICE("EVAL"), script(), "hello", words, HELLO_KEYS,
                 HELLO_WORDS - HELLO_KEYS);
    if (!status) {
        status = add_words(link, words + HELLO_KEYS, HELLO_WORDS - HELLO_KEYS);
    }
    return status ? status : lk_link_reply(link, deadline, reply);
}

static bool lacks_functions(const struct lk_reply *reply)
{
    return lk_reply_is_error(reply, "ERR Function not found") ||
           (reply->type == LK_REPLY_ARRAY && reply->count &&
            lk_reply_number(&reply->elements[0]) < own_revision());
}

/* The user may perhaps run scripts. */
static bool may_not_call(const struct lk_reply *reply)
{
    struct lk_slice text = lk_reply_text(reply);

    return lk_reply_is_error(reply, "NOPERM") &&
           memmem(text.data, text.len, "'fcall'", 7);
}

/* Functions if they are there or can be loaded, else a script. */
static enum lk_status choose_way(struct lk_redis *store, struct lk_link *link,
                                 int64_t deadline, struct lk_reply **reply,
                                 struct lk_buf *error)
{
    atomic_store(&store->place.way, LK_WAY_FUNCTION);
    enum lk_status status = ask_hello(store, link, deadline, reply);
    bool script_only = !status && (is_unknown(*reply) || may_not_call(*reply));
    if (!status && lacks_functions(*reply)) {
        status = load(link, deadline, error);
        script_only = status == LK_NOT_FOUND;
        if (!status) {
            status = ask_hello(store, link, deadline, reply);
        }
    }
    if (script_only) {
        atomic_store(&store->place.way, LK_WAY_SCRIPT);
        status = ask_hello(store, link, deadline, reply);
    }
    return status;
}

/* Another store's secrets would make every reference mean something else. */
static enum lk_status take_secrets(struct lk_redis *store,
                                   const struct lk_reply *fields, bool first,
                                   struct lk_buf *error)
{
    uint8_t secret[16], reference[16];

    if (!read_hex(lk_reply_text(&fields[2]), secret) ||
        !read_hex(lk_reply_text(&fields[3]), reference)) {
        return explain(error, LK_CORRUPT, "the secrets in Redis are damaged",
                       NULL);
    }
    if (!first && (memcmp(secret, store->store.secret, 16) != 0 ||
                   memcmp(reference, store->store.reference_secret, 16) != 0)) {
        return explain(error, LK_INVALID,
                       "Redis holds another store now than when the daemon "
                       "was started; restart the daemon",
                       NULL);
    }
    if (first) { /* later others read them, without a lock */
        memcpy(store->store.secret, secret, 16);
        memcpy(store->store.reference_secret, reference, 16);
    }
    return LK_OK;
}

static void warn_if_empty(struct lk_redis *store, const struct lk_reply *counts)
{
    pthread_mutex_lock(&store->numbers_lock);
    bool had = store->numbers.last_token > 0;
    pthread_mutex_unlock(&store->numbers_lock);
    if (had && !lk_reply_number(&counts[6])) {
        lk_redis_log(store, 0,
                     "Redis has forgotten every record: what was claimed or "
                     "finished before may run again");
    }
}

enum lk_status lk_redis_hello(struct lk_redis *store, struct lk_link *link,
                              int64_t deadline, bool first,
                              struct lk_buf *error)
{
    struct lk_reply *reply = NULL;

    if (!store->sha1[0]) {
        set_sha1(store);
    }
    enum lk_status status = choose_way(store, link, deadline, &reply, error);
    if (status) {
        goto out;
    }
    if (lk_reply_is_error(reply, "NOPERM")) {
        status = explain(error, LK_DENIED,
                         "the user may not do all that is needed; "
                         "docs/redis.md has the ACL",
                         reply);
    } else if (reply->type == LK_REPLY_ERROR) {
        status = explain(error, LK_AGAIN, "Redis does not answer well", reply);
    } else if (reply->type != LK_REPLY_ARRAY || reply->count < HELLO_REPLY) {
        status = explain(error, LK_VERSION,
                         "the functions in Redis are not Latchkey's", NULL);
    }
    if (!status) {
        status = take_secrets(store, reply->elements, first, error);
    }
    if (!status) {
        store->revision = lk_reply_number(&reply->elements[0]);
        warn_if_empty(store, reply->elements + HELLO_COUNTS);
        lk_redis_heard(store, lk_reply_number(&reply->elements[1]));
        lk_redis_count(store, reply->elements + HELLO_COUNTS);
    }
out:
    free(reply);
    return status;
}

/* ---- latchkey migrate ------------------------------------------------------
 */

static enum lk_status revision_in(struct lk_link *link, int64_t deadline,
                                  uint64_t *revision)
{
    const struct lk_slice words[] = {
        LK_SLICE("FCALL"), LK_SLICE("latchkey_revision"), LK_SLICE("0")};
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_link_ask(link, deadline, words, 3, &reply);

    *revision =
        !status && reply->type == LK_REPLY_INTEGER ? lk_reply_number(reply) : 0;
    free(reply);
    return status;
}

static enum lk_status migrate(struct lk_link *link, const char *address,
                              int64_t deadline, struct lk_buf *report)
{
    uint64_t there = 0;
    uint64_t ours = own_revision();
    enum lk_status status = revision_in(link, deadline, &there);

    if (!status && there > ours) {
        return latchkey_buf_printf(
            report,
            "%s has functions of a later version (%llu): nothing to do\n",
            address, (unsigned long long)there);
    }
    if (!status) {
        status = load(link, deadline, report);
    }
    if (status == LK_NOT_FOUND) {
        return latchkey_buf_printf(
            report,
            "%s has no functions: the daemon sends a script instead, and its "
            "user needs +eval and +evalsha\n",
            address);
    }
    return status ? status
                  : latchkey_buf_printf(
                        report, "%s has Latchkey's functions, version %llu\n",
                        address, (unsigned long long)ours);
}

enum lk_status lk_redis_migrate(const char *text, struct lk_buf *report)
{
    struct lk_link link = {.fd = -1};
    struct lk_redis_url url;
    char address[LK_REDIS_ADDRESS];
    struct lk_store_config config;
    enum lk_status status = lk_redis_url_parse(text, &url, report);

    if (status) {
        return status;
    }
    lk_store_config_default(&config);
    status =
        lk_redis_find(&link, &url, NULL, config.connect_timeout_ms, address);
    if (!status) {
        status = migrate(
            &link, address,
            (int64_t)lk_monotonic_ms() + (int64_t)config.timeout_ms, report);
    } else if (latchkey_buf_add_text(report, link.why)) {
        status = LK_NOMEM;
    }
    lk_link_close(&link);
    lk_redis_url_free(&url);
    return status;
}
