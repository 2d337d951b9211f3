/*
 * server.c - one thread, one epoll loop. In each turn it takes what has come,
 * makes all the charges, syncs the ledger once, and then sends the responses.
 */
#include "payments.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 256, READ_SIZE = 16 * 1024 };

#define FOREVER UINT64_MAX

struct conn {
    int fd;
    uint32_t wants; /* events that epoll waits for */
    struct buf in;
    struct buf out;
    size_t sent;  /* bytes of `out` */
    bool closing; /* close after `out` is sent */
    bool broken;  /* close without sending it */
    bool more;    /* a delay kept the rest of `in` from being looked at */
    bool in_turn;
    bool waits;       /* it hangs or is paced: ended when the peer leaves */
    unsigned pace_ms; /* `out` goes a byte at a time */
    uint64_t due_ms;  /* 0, or when `out` may be sent: then among the delayed */
    TAILQ_ENTRY(conn) turn_links;
    TAILQ_ENTRY(conn) due_links;
};

TAILQ_HEAD(conns, conn);

static int epoll;
static struct conns turn = TAILQ_HEAD_INITIALIZER(turn);
static struct conns delayed = TAILQ_HEAD_INITIALIZER(delayed); /* by due_ms */
static unsigned delayed_count, delayed_most;
static bool dies; /* at the end of this turn, once the ledger is synced */

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Has the end of the turn look at the connection. */
static void touch(struct conn *conn)
{
    if (!conn->in_turn) {
        conn->in_turn = true;
        TAILQ_INSERT_TAIL(&turn, conn, turn_links);
    }
}

static void want(struct conn *conn, uint32_t wants)
{
    struct epoll_event event = {.events = wants, .data.ptr = conn};

    if (conn->wants != wants) {
        epoll_ctl(epoll, EPOLL_CTL_MOD, conn->fd, &event);
        conn->wants = wants;
    }
}

static void end_delay(struct conn *conn)
{
    TAILQ_REMOVE(&delayed, conn, due_links);
    delayed_count--;
    conn->due_ms = 0;
}

static void conn_free(struct conn *conn)
{
    if (conn->due_ms) {
        end_delay(conn);
    }
    close(conn->fd);
    free(conn->in.data);
    free(conn->out.data);
    free(conn);
}

static void delay(struct conn *conn, uint64_t ms)
{
    struct conn *before;

    delayed_count++;
    if (delayed_count > delayed_most) {
        delayed_most = delayed_count;
    }
    conn->due_ms = ms == FOREVER ? FOREVER : now_ms() + ms;
    conn->more = true;
    TAILQ_FOREACH_REVERSE(before, &delayed, conns, due_links)
    {
        if (before->due_ms <= conn->due_ms) {
            TAILQ_INSERT_AFTER(&delayed, before, conn, due_links);
            return;
        }
    }
    TAILQ_INSERT_HEAD(&delayed, conn, due_links);
}

static void respond_bad_request(struct conn *conn)
{
    struct response response = {
        .status = 400,
        .body = text_of("{\"error\":\"this is not an HTTP request, or it is "
                        "too large\"}\n")};

    http_write(&conn->out, &response, false);
    conn->closing = true;
}

static void serve_one(struct conn *conn, const struct request *request)
{
    struct response response = {0};

    api_respond(request, &response);
    dies = dies || response.die;
    if (response.drop && !response.hang) {
        conn->broken = true;
        return;
    }
    if (!response.drop) {
        http_write(&conn->out, &response, request->keep_alive);
    }
    conn->closing = !request->keep_alive || response.bare || response.drop;
    conn->pace_ms = response.pace_ms;
    conn->waits = response.hang || response.pace_ms > 0;
    if (response.hang || response.delay_ms > 0) {
        delay(conn, response.hang ? FOREVER : response.delay_ms);
    }
}

/* Responds to all the requests that are there, or up to one that is delayed. */
static void serve(struct conn *conn)
{
    struct request request;
    enum progress progress;
    size_t done = 0;

    conn->more = conn->due_ms; /* more may have come since the delayed one */
    while (!conn->due_ms && !conn->closing && !conn->broken) {
        struct buf rest = {conn->in.data + done, conn->in.len - done, 0};
        progress = http_read(&rest, &request);
        if (progress == BAD) {
            respond_bad_request(conn);
        }
        if (progress == PARTIAL && request.wants_continue) {
            buf_printf(&conn->out, "HTTP/1.1 100 Continue\r\n\r\n");
        }
        if (progress != READY) {
            break;
        }
        serve_one(conn, &request);
        done += request.size;
    }
    buf_skip(&conn->in, done);
}

static void on_input(struct conn *conn)
{
    ssize_t got;

    buf_reserve(&conn->in, READ_SIZE);
    got = recv(conn->fd, conn->in.data + conn->in.len,
               conn->in.cap - conn->in.len, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got <= 0) {
        conn->broken = true;
        return;
    }
    conn->in.len += (size_t)got;
    serve(conn);
}

static void on_event(struct conn *conn, uint32_t events)
{
    touch(conn);
    if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
        conn->broken = true;
    } else if (events & EPOLLIN) {
        on_input(conn);
    }
}

static void accept_all(int listener)
{
    int fd, one = 1;

    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >=
           0) {
        struct conn *conn = calloc(1, sizeof(*conn));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
        if (!conn) {
            die("out of memory");
        }
        conn->fd = fd;
        conn->wants = EPOLLIN;
        touch(conn);
        /* Fails on a unix socket, which does not need it. */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
            die("epoll: %s", strerror(errno));
        }
    }
}

static void take_due(void)
{
    uint64_t now = TAILQ_EMPTY(&delayed) ? 0 : now_ms();
    struct conn *conn;

    while ((conn = TAILQ_FIRST(&delayed)) && conn->due_ms <= now) {
        end_delay(conn);
        touch(conn);
    }
}

/* Sends what may be sent; false: close the connection. */
static bool flush(struct conn *conn)
{
    while (conn->sent < conn->out.len) {
        size_t rest = conn->pace_ms ? 1 : conn->out.len - conn->sent;
        ssize_t put =
            send(conn->fd, conn->out.data + conn->sent, rest, MSG_NOSIGNAL);
        if (put < 0 && errno == EAGAIN) {
            want(conn, EPOLLOUT);
            return true;
        }
        if (put < 0 && errno != EINTR) {
            return false;
        }
        conn->sent += put > 0 ? (size_t)put : 0;
        if (conn->pace_ms && conn->sent < conn->out.len) {
            delay(conn, conn->pace_ms);
            want(conn, EPOLLRDHUP);
            return true;
        }
    }
    conn->waits = false;
    conn->pace_ms = 0;
    conn->out.len = conn->sent = 0;
    want(conn, EPOLLIN);
    if (conn->more) {
        touch(conn); /* looked at in the next turn, which comes at once */
    }
    return !conn->closing;
}

/* The charges of this turn are durable: now their responses may leave. */
static void finish_turn(void)
{
    struct conns list = TAILQ_HEAD_INITIALIZER(list);
    struct conn *conn;

    TAILQ_CONCAT(&list, &turn, turn_links);
    while ((conn = TAILQ_FIRST(&list))) {
        TAILQ_REMOVE(&list, conn, turn_links);
        conn->in_turn = false;
        if (conn->due_ms && !conn->broken) {
            want(conn, conn->waits ? EPOLLRDHUP : 0);
        } else if (conn->broken || !flush(conn)) {
            if (conn->in_turn) {
                TAILQ_REMOVE(&turn, conn, turn_links);
            }
            conn_free(conn);
        }
    }
}

static int time_to_wait(void)
{
    struct conn *first = TAILQ_FIRST(&delayed);
    uint64_t now;

    if (!TAILQ_EMPTY(&turn)) {
        return 0;
    }
    if (!first) {
        return -1;
    }
    now = now_ms();
    if (first->due_ms <= now) {
        return 0;
    }
    return first->due_ms - now < 60000 ? (int)(first->due_ms - now) : 60000;
}

void server_load(unsigned *now, unsigned *most)
{
    *now = delayed_count;
    *most = delayed_most;
}

void server_release(void)
{
    struct conn *conn;

    TAILQ_FOREACH(conn, &delayed, due_links)
    {
        conn->due_ms = 1;
    }
}

void server_run(const char *address)
{
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN};
    struct conn *conn;
    char shown[128];
    int listener = address_listen(address, shown, sizeof(shown));

    epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0) {
        die("epoll: %s", strerror(errno));
    }
    printf("listening on %s\n", shown);
    fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, time_to_wait());
        TAILQ_FOREACH(conn, &turn, turn_links)
        {
            serve(conn);
        }
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr) {
                on_event(events[i].data.ptr, events[i].events);
            } else {
                accept_all(listener);
            }
        }
        take_due();
        ledger_sync();
        if (dies) {
            kill(getpid(), SIGKILL);
        }
        finish_turn();
    }
}
