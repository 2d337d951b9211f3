/*
 * redis_connect.c - finding the primary: by its URL, by a list of nodes or by
 * Sentinels; logging in, and making sure that it is one.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a server says of itself, in answer to HELLO. */
static struct lk_slice hello_field(const struct lk_reply *reply,
                                   const char *name)
{
    for (size_t i = 0; i + 1 < reply->count; i += 2) {
        if (latchkey_slice_equal(lk_reply_text(&reply->elements[i]),
                                 latchkey_slice(name))) {
            return lk_reply_text(&reply->elements[i + 1]);
        }
    }
    return (struct lk_slice){0};
}

static enum lk_status drop(struct lk_link *link, enum lk_status status,
                           const char *address, const char *why)
{
    lk_link_close(link);
    snprintf(link->why, sizeof(link->why), "%.120s: %.120s", address, why);
    return status;
}

static enum lk_status log_in(struct lk_link *link,
                             const struct lk_redis_url *url,
                             const char *address, int64_t deadline)
{
    struct lk_slice words[3] = {LK_SLICE("AUTH")};
    struct lk_reply *reply = NULL;
    size_t count = 1;

    if (!url->password) {
        return LK_OK;
    }
    if (url->user) {
        words[count++] = latchkey_slice(url->user);
    }
    words[count++] = latchkey_slice(url->password);
    enum lk_status status = lk_link_ask(link, deadline, words, count, &reply);
    if (link->out.data) {
        explicit_bzero(link->out.data, link->out.cap);
    }
    if (!status && reply->type == LK_REPLY_ERROR) {
        status = drop(link, LK_DENIED, address,
                      "Redis does not accept the user and password of the "
                      "URL");
    }
    free(reply);
    return status;
}

/* LK_OK: a primary that stands alone, or with replicas. */
static enum lk_status judge_hello(struct lk_link *link,
                                  const struct lk_reply *reply,
                                  const char *address)
{
    if (lk_reply_is_error(reply, "NOAUTH")) {
        return drop(link, LK_DENIED, address,
                    "Redis asks for a password, and the URL has none");
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return drop(link, LK_VERSION, address,
                    "this is no Redis of version 6 or later");
    }
    struct lk_slice mode = hello_field(reply, "mode");
    struct lk_slice version = hello_field(reply, "version");
    snprintf(link->version, sizeof(link->version), "%.*s", (int)version.len,
             version.data ? version.data : "");
    if (latchkey_slice_equal(mode, LK_SLICE("sentinel"))) {
        return drop(link, LK_INVALID, address,
                    "this is a Sentinel; its URL begins with "
                    "redis-sentinel:");
    }
    if (latchkey_slice_equal(mode, LK_SLICE("cluster"))) {
        return drop(link, LK_INVALID, address,
                    "this is a node of a Redis Cluster, which is not "
                    "supported yet");
    }
    if (!latchkey_slice_equal(hello_field(reply, "role"), LK_SLICE("master"))) {
        return drop(link, LK_AGAIN, address, "this is a replica");
    }
    return LK_OK;
}

static enum lk_status choose_database(struct lk_link *link, unsigned database,
                                      const char *address, int64_t deadline)
{
    char number[16];
    struct lk_reply *reply = NULL;

    if (!database) {
        return LK_OK;
    }
    snprintf(number, sizeof(number), "%u", database);
    const struct lk_slice words[] = {LK_SLICE("SELECT"),
                                     latchkey_slice(number)};
    enum lk_status status = lk_link_ask(link, deadline, words, 2, &reply);
    if (!status && reply->type == LK_REPLY_ERROR) {
        status = drop(link, LK_DENIED, address,
                      "Redis does not let us use the database of the URL");
    }
    free(reply);
    return status;
}

enum lk_status lk_redis_greet(struct lk_link *link,
                              const struct lk_redis_url *url,
                              const char *address, int64_t deadline)
{
    const struct lk_slice hello[] = {LK_SLICE("HELLO"), LK_SLICE("2")};
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_link_open(link, address, deadline);

    if (!status) {
        status = log_in(link, url, address, deadline);
    }
    if (!status) {
        status = lk_link_ask(link, deadline, hello, 2, &reply);
    }
    if (!status) {
        status = judge_hello(link, reply, address);
    }
    if (!status) {
        status = choose_database(link, url->database, address, deadline);
    }
    free(reply);
    return status;
}

/* ---- A list of nodes -------------------------------------------------------
 */

/* How far its tokens have come; 0: it has none, or does not say. */
static uint64_t token_of(struct lk_link *link, const char *token_key,
                         int64_t deadline)
{
    const struct lk_slice words[] = {LK_SLICE("GET"),
                                     latchkey_slice(token_key)};
    struct lk_reply *reply = NULL;
    uint64_t token = 0;

    if (!lk_link_ask(link, deadline, words, 2, &reply)) {
        token = lk_reply_number(reply);
    }
    free(reply);
    return token;
}

static enum lk_status find_in_list(struct lk_link *link,
                                   const struct lk_redis_url *url,
                                   const char *token_key, uint64_t timeout_ms,
                                   char address[LK_REDIS_ADDRESS])
{
    enum lk_status status = LK_INVALID;
    const char *best = NULL;
    uint64_t most = 0;
    size_t primaries = 0;

    for (size_t i = 0; i < url->count; i++) {
        int64_t deadline = (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms;
        status = lk_redis_greet(link, url, url->nodes[i], deadline);
        if (status) {
            continue;
        }
        uint64_t token = url->count > 1 && token_key
                             ? token_of(link, token_key, deadline)
                             : 0;
        primaries++;
        if (!best || token > most) {
            best = url->nodes[i];
            most = token;
        }
    }
    if (!best) {
        return status;
    }
    snprintf(address, LK_REDIS_ADDRESS, "%s", best);
    if (url->count > 1) {
        status = lk_redis_greet(
            link, url, best, (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms);
    }
    if (!status && primaries > 1) {
        snprintf(link->why, sizeof(link->why),
                 "%zu servers of the list say that they are the primary; %.80s "
                 "has handed out the most tokens and is used",
                 primaries, best);
    }
    return status;
}

/* ---- Sentinels -------------------------------------------------------------
 */

static enum lk_status ask_once(struct lk_link *link,
                               const struct lk_redis_url *url, int64_t deadline,
                               struct lk_reply **reply)
{
    const struct lk_slice words[] = {LK_SLICE("SENTINEL"),
                                     LK_SLICE("get-master-addr-by-name"),
                                     latchkey_slice(url->service)};

    return lk_link_ask(link, deadline, words, 3, reply);
}

static enum lk_status ask_sentinel(struct lk_link *link,
                                   const struct lk_redis_url *url,
                                   const char *sentinel, int64_t deadline,
                                   char address[LK_REDIS_ADDRESS])
{
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_link_open(link, sentinel, deadline);

    if (!status) {
        status = ask_once(link, url, deadline, &reply);
    }
    if (!status && lk_reply_is_error(reply, "NOAUTH")) {
        free(reply);
        reply = NULL;
        status = log_in(link, url, sentinel, deadline);
        if (!status) {
            status = ask_once(link, url, deadline, &reply);
        }
    }
    if (!status &&
        (reply->type != LK_REPLY_ARRAY || reply->count != 2 ||
         !reply->elements[0].text.len || !reply->elements[1].text.len)) {
        status = drop(link, LK_AGAIN, sentinel,
                      "the Sentinel knows no primary of that name");
    }
    if (!status) {
        const char *host = reply->elements[0].text.data;
        bool is_v6 = strchr(host, ':') != NULL;
        snprintf(address, LK_REDIS_ADDRESS,
                 is_v6 ? "[%.250s]:%.8s" : "%.250s:%.8s", host,
                 reply->elements[1].text.data);
    }
    free(reply);
    return status;
}

static enum lk_status find_by_sentinels(struct lk_link *link,
                                        const struct lk_redis_url *url,
                                        uint64_t timeout_ms,
                                        char address[LK_REDIS_ADDRESS])
{
    enum lk_status status = LK_INVALID;

    for (size_t i = 0; i < url->count; i++) {
        status = ask_sentinel(link, url, url->nodes[i],
                              (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms,
                              address);
        if (!status) {
            status = lk_redis_greet(link, url, address,
                                    (int64_t)lk_monotonic_ms() +
                                        (int64_t)timeout_ms);
        }
        if (!status) {
            break;
        }
    }
    return status;
}

enum lk_status lk_redis_find(struct lk_link *link,
                             const struct lk_redis_url *url,
                             const char *token_key, uint64_t timeout_ms,
                             char address[LK_REDIS_ADDRESS])
{
    enum lk_status status =
        url->service ? find_by_sentinels(link, url, timeout_ms, address)
                     : find_in_list(link, url, token_key, timeout_ms, address);

    if (status) {
        lk_link_close(link);
    }
    return status;
}
