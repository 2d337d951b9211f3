/*
 * redis_link.c - one connection to a Redis server: commands go out, replies
 * come in, and one deadline holds for all of it.
 *
 * Replies are taken while commands are still being sent: a server that reads no
 * more before its replies are taken would otherwise wait for ever, and so would
 * we.
 */
#include "lib/number.h"
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
    KEPT_OUT = 1024 * 1024, /* a larger output buffer is given back */
    FRESH_MS = 100, /* after a reply, in which a link is taken to be good */
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
    lk_resp_reader_free(&link->reader);
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

static bool has_unsent(const struct lk_link *link)
{
    return link->sent < link->out.len;
}

static enum lk_status read_some(struct lk_link *link)
{
    char *room;
    size_t size;
    ssize_t got;

    if (lk_resp_reader_room(&link->reader, &room, &size)) {
        return fail(link, LK_NOMEM, "out of memory");
    }
    got = recv(link->fd, room, size, MSG_DONTWAIT);
    if (got == 0) {
        return fail(link, LK_CLOSED, "Redis closed the connection");
    }
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK : fail_by_errno(link);
    }
    link->heard_ms = (int64_t)lk_monotonic_ms();
    lk_resp_reader_fill(&link->reader, (size_t)got);
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

void lk_link_reset(struct lk_link *link)
{
    link->sent = 0;
    link->out.len = 0;
    if (link->out.cap > KEPT_OUT) {
        latchkey_buf_free(&link->out);
    }
}

static enum lk_status fail_by_reader(struct lk_link *link,
                                     enum lk_status status)
{
    return fail(link, status,
                status == LK_NOMEM       ? "out of memory"
                : status == LK_MALFORMED ? "this is not Redis's protocol"
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
    if (has_unsent(link)) {
        status = write_some(link);
    }
    while (!status) {
        status = lk_resp_reader_next(&link->reader, reply);
        if (status == LK_OK) {
            return LK_OK;
        }
        status = status == LK_AGAIN ? move_bytes(link, deadline)
                                    : fail_by_reader(link, status);
    }
    return status;
}

enum lk_status lk_link_reply(struct lk_link *link, int64_t deadline,
                             struct lk_reply **reply)
{
    const struct lk_reply *next;
    enum lk_status status = lk_link_next(link, deadline, &next);

    *reply = status ? NULL : lk_reply_copy(next);
    return !status && !*reply ? fail_by_reader(link, LK_NOMEM) : status;
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
