/*
 * redis_link.c - a connection to Redis: what its URL says, the socket, and
 * finding and greeting the primary.
 *
 *   redis://[user:password@]host[:port][,host[:port]...][/database]
 *   redis-sentinel://[user:password@]host[:port][,host[:port]...]/service
 *   redis:[user:password@]unix:PATH
 *
 * User and password may be written with %XX. They are those of the servers; a
 * Sentinel gets them only if it asks.
 *
 * The life of a link (struct lk_link); one thread at a time uses it:
 *
 *   closed    fd is -1; `why` may say what ended it
 *   open      lk_link_open; nothing is owed
 *   asking    commands are in `out`, replies are owed; lk_link_next takes them
 *   failed    any failure closes it at once; `sent` is still how much of
 *             `out` had gone, so that the caller knows what may have happened
 *
 * Replies are taken while commands are still being sent: a server that reads no
 * more before its replies are taken would otherwise wait for ever, and so would
 * we. One deadline holds for a whole reply.
 */
#include "lib/number.h"
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ==== The URL =========================================================== */

static const char DEFAULT_PORT[] = ":6379";
static const char SENTINEL_PORT[] = ":26379";

static enum lk_status refuse_url(struct lk_buf *error, const char *sentence)
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
static bool decode_percent(char *text)
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
    return *url->password && decode_percent(url->password) &&
           (!url->user || decode_percent(url->user));
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
            return refuse_url(error, "the Redis URL names no host");
        }
        if (url->count == LK_REDIS_NODES) {
            return refuse_url(error, "the Redis URL names too many hosts");
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
        return refuse_url(error,
                          "the database in the Redis URL is not a number");
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
            return refuse_url(error,
                              "the URL of Sentinels ends with /NAME of the "
                              "service that they watch");
        }
    } else if (slash) {
        status = parse_database(slash, url, error);
    }
    return status ? status : parse_nodes(hosts, room, url, error);
}

static bool skip_prefix(const char **text, const char *prefix)
{
    size_t len = strlen(prefix);

    if (strncmp(*text, prefix, len) != 0) {
        return false;
    }
    *text += len;
    return true;
}

static enum lk_status parse_url_rest(char *rest, char *room, bool sentinel,
                                     struct lk_redis_url *url,
                                     struct lk_buf *error)
{
    char *at = strrchr(rest, '@');

    if (at) {
        *at = '\0';
        if (!parse_login(rest, url)) {
            return refuse_url(error,
                              "user and password in the Redis URL are "
                              "written user:password, with %XX for what is "
                              "not plain");
        }
        rest = at + 1;
    }
    if (strchr(rest, '?')) {
        return refuse_url(error,
                          "the Redis URL has no options behind a question "
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
    if (skip_prefix(&rest, "rediss:")) {
        return refuse_url(
            error, "rediss: needs TLS, which latchkeyd does not "
                   "speak to Redis; put stunnel or HAProxy in front of Redis, "
                   "or use redis:unix:PATH");
    }
    bool sentinel = skip_prefix(&rest, "redis-sentinel:");
    if (!sentinel && !skip_prefix(&rest, "redis:")) {
        return refuse_url(error, "a Redis URL begins with redis: or "
                                 "redis-sentinel:");
    }
    (void)skip_prefix(&rest, "//");
    url->text = calloc(1, room);
    if (!url->text) {
        return LK_NOMEM;
    }
    memcpy(url->text, rest, strlen(rest));
    enum lk_status status =
        parse_url_rest(url->text, url->text + len, sentinel, url, error);
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

/* ==== The connection ==================================================== */

enum {
    KEPT_OUT = 1024 * 1024, /* a larger output buffer is given back */
    FRESH_MS = 100, /* after a reply, in which a link is taken to be good */
};

/* ---- Failures -------------------------------------------------------------
 */

static void hide_controls(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            *text = '?';
        }
    }
}

/* The output stays: the caller may have to know how much of it was sent. */
static void close_link_socket(struct lk_link *link)
{
    if (link->fd >= 0) {
        close(link->fd);
        link->fd = -1;
    }
    lk_resp_reader_free(&link->reader);
}

static enum lk_status fail_link(struct lk_link *link, enum lk_status status,
                                const char *why)
{
    snprintf(link->why, sizeof(link->why), "%s", why);
    hide_controls(link->why);
    close_link_socket(link);
    return status;
}

static enum lk_status fail_link_by_errno(struct lk_link *link)
{
    bool gone = errno == ECONNRESET || errno == EPIPE;

    return fail_link(link, gone ? LK_CLOSED : LK_IO, strerror(errno));
}

void lk_link_close(struct lk_link *link)
{
    close_link_socket(link);
    if (link->out.data) {
        explicit_bzero(link->out.data, link->out.len); /* AUTH was in it */
    }
    latchkey_buf_free(&link->out);
    link->sent = 0;
}

enum lk_status lk_link_open(struct lk_link *link, const char *address,
                            int64_t deadline)
{
    int64_t left = deadline - (int64_t)lk_monotonic_ms();

    lk_link_close(link);
    link->why[0] = '\0';
    enum lk_status status =
        lk_socket_connect(address, left > 0 ? (unsigned)left : 0, &link->fd,
                          link->why, sizeof(link->why));
    if (status) {
        link->fd = -1;
        close_link_socket(link);
    }
    return status;
}

bool lk_link_is_stale(const struct lk_link *link)
{
    char byte;

    if ((int64_t)lk_monotonic_ms() - link->heard_ms < FRESH_MS) {
        return false;
    }
    /* Nothing is owed to us: what is there is wrong. */
    ssize_t got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got >= 0 || (errno != EAGAIN && errno != EINTR);
}

/* ---- Commands --------------------------------------------------------------
 */

enum lk_status lk_link_begin(struct lk_link *link, size_t words)
{
    return lk_resp_array(&link->out, words);
}

enum lk_status lk_link_word(struct lk_link *link, struct lk_slice word)
{
    return lk_resp_bulk(&link->out, word);
}

enum lk_status lk_link_number(struct lk_link *link, uint64_t number)
{
    char text[LK_ANNOUNCE_MAX];
    char *end = latchkey_announce(text, '$', number);

    /* Without the type in front and the CR LF behind. */
    return lk_link_word(link,
                        (struct lk_slice){text + 1, (size_t)(end - text) - 3});
}

enum lk_status lk_link_command(struct lk_link *link,
                               const struct lk_slice *words, size_t count)
{
    return lk_resp_command(&link->out, words, count);
}

/* ---- Bytes in and out -----------------------------------------------------
 */

static bool link_has_unsent(const struct lk_link *link)
{
    return link->sent < link->out.len;
}

static enum lk_status read_from_link(struct lk_link *link)
{
    char *room;
    size_t size;
    ssize_t got;

    if (lk_resp_reader_room(&link->reader, &room, &size)) {
        return fail_link(link, LK_NOMEM, "out of memory");
    }
    got = recv(link->fd, room, size, MSG_DONTWAIT);
    if (got == 0) {
        return fail_link(link, LK_CLOSED, "Redis closed the connection");
    }
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK
                                                 : fail_link_by_errno(link);
    }
    link->heard_ms = (int64_t)lk_monotonic_ms();
    lk_resp_reader_fill(&link->reader, (size_t)got);
    return LK_OK;
}

static enum lk_status write_to_link(struct lk_link *link)
{
    ssize_t put = send(link->fd, link->out.data + link->sent,
                       link->out.len - link->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (put < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK
                                                 : fail_link_by_errno(link);
    }
    link->sent += (size_t)put;
    return LK_OK;
}

/* Reading comes first: a server that waits for us to take its replies before
 * it takes more commands must not wait for ever. */
static enum lk_status move_link_bytes(struct lk_link *link, int64_t deadline)
{
    short happened = 0;
    enum lk_status status = lk_socket_wait(
        link->fd, link_has_unsent(link) ? POLLIN | POLLOUT : POLLIN, deadline,
        &happened);

    if (status == LK_TIMEOUT) {
        return fail_link(link, status, "Redis did not reply in time");
    }
    if (status) {
        return fail_link_by_errno(link);
    }
    return happened & ~POLLOUT ? read_from_link(link) : write_to_link(link);
}

void lk_link_reset(struct lk_link *link)
{
    link->sent = 0;
    link->out.len = 0;
    if (link->out.cap > KEPT_OUT) {
        latchkey_buf_free(&link->out);
    }
}

static enum lk_status fail_link_by_reader(struct lk_link *link,
                                          enum lk_status status)
{
    return fail_link(link, status,
                     status == LK_NOMEM ? "out of memory"
                     : status == LK_MALFORMED
                         ? "this is not Redis's protocol"
                         : "the reply of Redis is too large");
}

enum lk_status lk_link_next(struct lk_link *link, int64_t deadline,
                            const struct lk_reply **reply)
{
    enum lk_status status = LK_OK;

    *reply = NULL;
    if (link->fd < 0) {
        return LK_CLOSED;
    }
    if (link_has_unsent(link)) {
        status = write_to_link(link);
    }
    while (!status) {
        status = lk_resp_reader_next(&link->reader, reply);
        if (status == LK_OK) {
            return LK_OK;
        }
        status = status == LK_AGAIN ? move_link_bytes(link, deadline)
                                    : fail_link_by_reader(link, status);
    }
    return status;
}

enum lk_status lk_link_reply(struct lk_link *link, int64_t deadline,
                             struct lk_reply **reply)
{
    const struct lk_reply *next;
    enum lk_status status = lk_link_next(link, deadline, &next);

    *reply = status ? NULL : lk_reply_copy(next);
    return !status && !*reply ? fail_link_by_reader(link, LK_NOMEM) : status;
}

enum lk_status lk_link_ask(struct lk_link *link, int64_t deadline,
                           const struct lk_slice *words, size_t count,
                           struct lk_reply **reply)
{
    lk_link_reset(link);
    enum lk_status status = lk_link_command(link, words, count);
    return status ? status : lk_link_reply(link, deadline, reply);
}

/* ---- Replies ---------------------------------------------------------------
 */

struct lk_slice lk_reply_text(const struct lk_reply *reply)
{
    return reply ? reply->text : (struct lk_slice){0};
}

bool lk_reply_is_error(const struct lk_reply *reply, const char *code)
{
    struct lk_slice text = lk_reply_text(reply);
    size_t len = strlen(code);

    return reply && reply->type == LK_REPLY_ERROR && text.len >= len &&
           len > 0 && memcmp(text.data, code, len) == 0;
}

uint64_t lk_reply_number(const struct lk_reply *reply)
{
    uint64_t number = 0;

    if (reply && reply->type == LK_REPLY_INTEGER) {
        return reply->integer > 0 ? (uint64_t)reply->integer : 0;
    }
    return lk_digits_read(lk_reply_text(reply), &number) ? number : 0;
}

/* ==== The primary ======================================================= */

/* What a server says of itself, in its reply to HELLO. */
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

static enum lk_status drop_server(struct lk_link *link, enum lk_status status,
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
        status =
            drop_server(link, LK_DENIED, address,
                        "Redis does not accept the user and password of the "
                        "URL");
    }
    free(reply);
    return status;
}

/* LK_OK: a primary, alone or with replicas. */
static enum lk_status judge_hello(struct lk_link *link,
                                  const struct lk_reply *reply,
                                  const char *address)
{
    if (lk_reply_is_error(reply, "NOAUTH")) {
        return drop_server(link, LK_DENIED, address,
                           "Redis asks for a password, and the URL has none");
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return drop_server(link, LK_VERSION, address,
                           "this is not a Redis of version 6 or later");
    }
    struct lk_slice mode = hello_field(reply, "mode");
    struct lk_slice version = hello_field(reply, "version");
    snprintf(link->version, sizeof(link->version), "%.*s", (int)version.len,
             version.data ? version.data : "");
    if (latchkey_slice_equal(mode, LK_SLICE("sentinel"))) {
        return drop_server(link, LK_INVALID, address,
                           "this is a Sentinel; its URL begins with "
                           "redis-sentinel:");
    }
    if (latchkey_slice_equal(mode, LK_SLICE("cluster"))) {
        return drop_server(link, LK_INVALID, address,
                           "this is a node of a Redis Cluster, which is not "
                           "supported yet");
    }
    if (!latchkey_slice_equal(hello_field(reply, "role"), LK_SLICE("master"))) {
        return drop_server(link, LK_AGAIN, address, "this is a replica");
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
        status =
            drop_server(link, LK_DENIED, address,
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
        status = drop_server(link, LK_AGAIN, sentinel,
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
