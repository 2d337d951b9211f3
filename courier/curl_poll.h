/*
 * curl_poll.h - what the courier's thread sleeps on: curl's sockets, by epoll,
 * so that a thousand calls that hang cost those that move nothing; and a bell
 * that other threads ring.
 */
#ifndef LK_CURL_POLL_H
#define LK_CURL_POLL_H

#include "latchkey.h"

#include <curl/curl.h>

struct lk_poll_socket;

struct lk_poll {
    CURLM *multi;
    struct lk_poll_socket *sockets; /* by number, those that we have opened */
    size_t socket_cap;
    int epoll;
    int bell;          /* an eventfd */
    uint64_t timer_ms; /* when curl wants to be called; UINT64_MAX: never */
};

/* Makes the multi handle too. Whatever is returned, lk_poll_close it. */
LK_MUST_CHECK enum lk_status lk_poll_open(struct lk_poll *poll);
void lk_poll_close(struct lk_poll *poll);

/* Before a call: the handle's connections are opened and closed here, so that
 * what is known of a socket is true. */
LK_MUST_CHECK enum lk_status lk_poll_attach(struct lk_poll *poll, CURL *easy);

/* Sleeps until something moves, the bell rings or `until_ms` has come, and lets
 * curl look after the sockets that moved. */
void lk_poll_wait(struct lk_poll *poll, uint64_t until_ms);
/* Lets curl do what it wanted to do by now. */
void lk_poll_timers(struct lk_poll *poll);
/* Any thread, never waits. */
void lk_poll_ring(struct lk_poll *poll);

#endif
