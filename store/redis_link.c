/*
 * redis_link.c - one connection to a Redis server: commands go out, replies
 * come in, and one deadline holds for all of it.
 *
 * hiredis reads the replies. The socket is ours: hiredis has no deadline for a
 * whole reply, and a server that reads no more before its replies are taken
 * would block it for ever.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    READ_SIZE = 64 * 1024,
    KEPT_OUT = 1024 * 1024, /* a larger output buffer is given back */
    DIGITS = 20,
    FRESH_MS = 100, /* so long after a reply a link is taken to be good */
};

/* ---- Failures -------------------------------------------------------------
 */

static void blot_controls(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            *text = '?';
        }
    }
}

/* The output stays: the caller may have to know how much of it was sent. */
static void hang_up(struct lk_link *link)
{
    if (link->fd >= 0) {
        close(link->fd);
        link->fd = -1;
    }
    if (link->reader) {
        redisReaderFree(link->reader);
        link->reader = NULL;
    }
}

static enum lk_status fail(struct lk_link *link, enum lk_status status,
                           const char *why)
{
    snprintf(link->why, sizeof(link->why), "%s", why);
    blot_controls(link->why);
    hang_up(link);
    return status;
}

static enum lk_status fail_by_errno(struct lk_link *link)
{
    bool gone = errno == ECONNRESET || errno == EPIPE;

    return fail(link, gone ? LK_CLOSED : LK_IO, strerror(errno));
}

void lk_link_close(struct lk_link *link)
{
    hang_up(link);
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
    link->reader = redisReaderCreate();
    if (!link->reader) {
        return fail(link, LK_NOMEM, "out of memory");
    }
    link->reader->maxbuf = READ_SIZE;
    enum lk_status status =
        lk_socket_connect(address, left > 0 ? (unsigned)left : 0, &link->fd,
                          link->why, sizeof(link->why));
    if (status) {
        link->fd = -1;
        hang_up(link);
    }
    return status;
}

bool lk_link_is_stale(const struct lk_link *link)
{
    char byte;

    if ((int64_t)lk_monotonic_ms() - link->heard_ms < FRESH_MS) {
        return false;
    }
    /* Nothing is owed to us: whatever is there is no good. */
    ssize_t got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got >= 0 || (errno != EAGAIN && errno != EINTR);
}

/* ---- Commands --------------------------------------------------------------
 */

/* "*12\r\n" or "$12\r\n" */
static size_t write_header(char *at, char mark, uint64_t number)
{
    char digits[DIGITS];
    size_t count = 0;
    size_t len = 0;

    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    at[len++] = mark;
    while (count) {
        at[len++] = digits[--count];
    }
    at[len++] = '\r';
    at[len++] = '\n';
    return len;
}

enum lk_status lk_link_begin(struct lk_link *link, size_t words)
{
    enum lk_status status = latchkey_buf_reserve(&link->out, DIGITS + 3);

    if (!status) {
        link->out.len +=
            write_header(link->out.data + link->out.len, '*', words);
    }
    return status;
}

enum lk_status lk_link_word(struct lk_link *link, struct lk_slice word)
{
    enum lk_status status =
        latchkey_buf_reserve(&link->out, word.len + DIGITS + 5);

    if (status) {
        return status;
    }
    char *at = link->out.data + link->out.len;
    at += write_header(at, '$', word.len);
    if (word.len) {
        memcpy(at, word.data, word.len);
    }
    at += word.len;
    *at++ = '\r';
    *at++ = '\n';
    link->out.len = (size_t)(at - link->out.data);
    return LK_OK;
}

enum lk_status lk_link_number(struct lk_link *link, uint64_t number)
{
    char text[DIGITS + 3];
    size_t len = write_header(text, '$', number);

    return lk_link_word(link, (struct lk_slice){text + 1, len - 3});
}

enum lk_status lk_link_command(struct lk_link *link,
                               const struct lk_slice *words, size_t count)
{
    enum lk_status status = lk_link_begin(link, count);

    for (size_t i = 0; i < count && !status; i++) {
        status = lk_link_word(link, words[i]);
    }
    return status;
}

/* ---- Bytes in and out -----------------------------------------------------
 */

static bool has_unsent(const struct lk_link *link)
{
    return link->sent < link->out.len;
}

static enum lk_status read_some(struct lk_link *link)
{
    char bytes[READ_SIZE];
    ssize_t got = recv(link->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

    if (got == 0) {
        return fail(link, LK_CLOSED, "Redis closed the connection");
    }
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK : fail_by_errno(link);
    }
    link->heard_ms = (int64_t)lk_monotonic_ms();
    if (redisReaderFeed(link->reader, bytes, (size_t)got) != REDIS_OK) {
        return fail(link, LK_NOMEM, "out of memory");
    }
    return LK_OK;
}

static enum lk_status write_some(struct lk_link *link)
{
    ssize_t put = send(link->fd, link->out.data + link->sent,
                       link->out.len - link->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (put < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK : fail_by_errno(link);
    }
    link->sent += (size_t)put;
    return LK_OK;
}

/* Reading comes first: a server that waits for us to take its replies before
 * it takes more commands must not wait for ever. */
static enum lk_status move_bytes(struct lk_link *link, int64_t deadline)
{
    short happened = 0;
    enum lk_status status =
        lk_socket_wait(link->fd, has_unsent(link) ? POLLIN | POLLOUT : POLLIN,
                       deadline, &happened);

    if (status == LK_TIMEOUT) {
        return fail(link, status, "Redis did not answer in time");
    }
    if (status) {
        return fail_by_errno(link);
    }
    return happened & ~POLLOUT ? read_some(link) : write_some(link);
}

static enum lk_status read_reply(struct lk_link *link, void **raw)
{
    if (redisReaderGetReply(link->reader, raw) == REDIS_OK) {
        return LK_OK;
    }
    bool no_memory = link->reader->err == REDIS_ERR_OOM;
    return fail(link, no_memory ? LK_NOMEM : LK_MALFORMED,
                no_memory ? "out of memory" : "this is not Redis's protocol");
}

void lk_link_reset(struct lk_link *link)
{
    link->sent = 0;
    link->out.len = 0;
    if (link->out.cap > KEPT_OUT) {
        latchkey_buf_free(&link->out);
    }
}

enum lk_status lk_link_reply(struct lk_link *link, int64_t deadline,
                             redisReply **reply)
{
    enum lk_status status = LK_OK;
    void *raw = NULL;

    *reply = NULL;
    if (link->fd < 0) {
        return LK_CLOSED;
    }
    if (has_unsent(link)) {
        status = write_some(link);
    }
    while (!status) {
        status = read_reply(link, &raw);
        if (status || raw) {
            break;
        }
        status = move_bytes(link, deadline);
    }
    *reply = raw;
    return status;
}

enum lk_status lk_link_ask(struct lk_link *link, int64_t deadline,
                           const struct lk_slice *words, size_t count,
                           redisReply **reply)
{
    lk_link_reset(link);
    enum lk_status status = lk_link_command(link, words, count);
    return status ? status : lk_link_reply(link, deadline, reply);
}

/* ---- Replies ---------------------------------------------------------------
 */

struct lk_slice lk_reply_text(const redisReply *reply)
{
    if (!reply || !reply->str) {
        return (struct lk_slice){0};
    }
    return (struct lk_slice){reply->str, reply->len};
}

bool lk_reply_is_error(const redisReply *reply, const char *code)
{
    struct lk_slice text = lk_reply_text(reply);
    size_t len = strlen(code);

    return reply && reply->type == REDIS_REPLY_ERROR && text.len >= len &&
           len > 0 && memcmp(text.data, code, len) == 0;
}

uint64_t lk_reply_number(const redisReply *reply)
{
    struct lk_slice text = lk_reply_text(reply);
    uint64_t number = 0;

    if (reply && reply->type == REDIS_REPLY_INTEGER) {
        return reply->integer > 0 ? (uint64_t)reply->integer : 0;
    }
    for (size_t i = 0; i < text.len && i < DIGITS - 1; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') {
            break;
        }
        number = number * 10 + (uint64_t)(text.data[i] - '0');
    }
    return number;
}
