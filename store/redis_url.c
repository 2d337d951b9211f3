/*
 * redis_url.c - what the URL of a Redis says:
 *
 *   redis://[user:password@]host[:port][,host[:port]...][/database]
 *   redis-sentinel://[user:password@]host[:port][,host[:port]...]/service
 *   redis:[user:password@]unix:PATH
 *
 * User and password may be written with %XX. They are those of the servers; a
 * Sentinel is shown them only if it asks.
 */
#include "lib/number.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char DEFAULT_PORT[] = ":6379";
static const char SENTINEL_PORT[] = ":26379";

static enum lk_status refuse(struct lk_buf *error, const char *sentence)
{
    enum lk_status status = latchkey_buf_add_text(error, sentence);

    return status ? status : LK_INVALID;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* In place. False: a per cent sign without two digits, or a NUL. */
static bool decode(char *text)
{
    char *out = text;

    for (char *at = text; *at; at++) {
        if (*at != '%') {
            *out++ = *at;
            continue;
        }
        int high = hex_digit(at[1]);
        int low = high < 0 ? -1 : hex_digit(at[2]);
        if (low < 0 || (high | low) == 0) {
            return false;
        }
        *out++ = (char)(high * 16 + low);
        at += 2;
    }
    *out = '\0';
    return true;
}

static bool parse_login(char *login, struct lk_redis_url *url)
{
    char *colon = strchr(login, ':');

    if (colon) {
        *colon = '\0';
        url->password = colon + 1;
    } else {
        url->password = login; /* as redis-cli has it */
    }
    url->user = colon && *login ? login : NULL;
    return *url->password && decode(url->password) &&
           (!url->user || decode(url->user));
}

static bool has_port(const char *node)
{
    const char *colon = strrchr(node, ':');
    const char *bracket = strrchr(node, ']');

    return colon && (!bracket || bracket < colon);
}

/* Each has its port afterwards: `room` is where that may be written. */
static enum lk_status parse_nodes(char *list, char *room,
                                  struct lk_redis_url *url,
                                  struct lk_buf *error)
{
    const char *port = url->service ? SENTINEL_PORT : DEFAULT_PORT;
    char *rest = list;
    char *node;

    while ((node = strsep(&rest, ","))) {
        if (!*node) {
            return refuse(error, "the Redis URL names no host");
        }
        if (url->count == LK_REDIS_NODES) {
            return refuse(error, "the Redis URL names too many hosts");
        }
        if (!has_port(node)) {
            char *whole = room;
            room = stpcpy(stpcpy(room, node), port) + 1;
            node = whole;
        }
        url->nodes[url->count++] = node;
    }
    return LK_OK;
}

static enum lk_status parse_database(const char *text, struct lk_redis_url *url,
                                     struct lk_buf *error)
{
    uint64_t number = 0;

    if (*text && !lk_number_read(latchkey_slice(text), 1000000, &number)) {
        return refuse(error, "the database in the Redis URL is not a number");
    }
    url->database = (unsigned)number;
    return LK_OK;
}

static enum lk_status parse_hosts(char *hosts, char *room, bool sentinel,
                                  struct lk_redis_url *url,
                                  struct lk_buf *error)
{
    enum lk_status status = LK_OK;
    char *slash = strchr(hosts, '/');

    if (slash) {
        *slash++ = '\0';
    }
    if (sentinel) {
        url->service = slash;
        if (!slash || !*slash) {
            return refuse(error, "the URL of Sentinels ends with /NAME of the "
                                 "service that they watch");
        }
    } else if (slash) {
        status = parse_database(slash, url, error);
    }
    return status ? status : parse_nodes(hosts, room, url, error);
}

static bool skip(const char **text, const char *prefix)
{
    size_t len = strlen(prefix);

    if (strncmp(*text, prefix, len) != 0) {
        return false;
    }
    *text += len;
    return true;
}

static enum lk_status parse(char *rest, char *room, bool sentinel,
                            struct lk_redis_url *url, struct lk_buf *error)
{
    char *at = strrchr(rest, '@');

    if (at) {
        *at = '\0';
        if (!parse_login(rest, url)) {
            return refuse(error, "user and password in the Redis URL are "
                                 "written user:password, with %XX for what is "
                                 "not plain");
        }
        rest = at + 1;
    }
    if (strchr(rest, '?')) {
        return refuse(error, "the Redis URL has no options behind a question "
                             "mark; they are settings");
    }
    if (!sentinel && strncmp(rest, "unix:", 5) == 0) {
        url->nodes[url->count++] = rest;
        return LK_OK;
    }
    return parse_hosts(rest, room, sentinel, url, error);
}

enum lk_status lk_redis_url_parse(const char *text, struct lk_redis_url *url,
                                  struct lk_buf *error)
{
    const char *rest = text;
    size_t len = strlen(text) + 1;
    size_t room = len + LK_REDIS_NODES * sizeof(SENTINEL_PORT) + len;

    *url = (struct lk_redis_url){0};
    if (skip(&rest, "rediss:")) {
        return refuse(
            error, "rediss: needs TLS, which latchkeyd does not "
                   "speak to Redis; put stunnel or HAProxy in front of Redis, "
                   "or use redis:unix:PATH");
    }
    bool sentinel = skip(&rest, "redis-sentinel:");
    if (!sentinel && !skip(&rest, "redis:")) {
        return refuse(error, "a Redis URL begins with redis: or "
                             "redis-sentinel:");
    }
    (void)skip(&rest, "//");
    url->text = calloc(1, room);
    if (!url->text) {
        return LK_NOMEM;
    }
    memcpy(url->text, rest, strlen(rest));
    enum lk_status status =
        parse(url->text, url->text + len, sentinel, url, error);
    if (status) {
        lk_redis_url_free(url);
    }
    return status;
}

void lk_redis_url_free(struct lk_redis_url *url)
{
    if (url->password) {
        explicit_bzero(url->password, strlen(url->password));
    }
    free(url->text);
    *url = (struct lk_redis_url){0};
}
