/*
 * curl_poll.h - what the courier's thread sleeps on: curl's sockets, in an
 * epoll, so that a thousand calls that hang cost the others nothing; and a bell
 * that other threads ring.
 */
#ifndef LK_CURL_POLL_H
#define LK_CURL_POLL_H

#include "latchkey.h"

#include <curl/curl.h>

struct lk_poll_socket;

struct lk_poll {
    CURLM *multi;
    struct lk_poll_socket
        *sockets; /* by descriptor; those that we have opened */
    size_t socket_cap;
    int epoll;
    int bell;          /* an eventfd */
    uint64_t timer_ms; /* when curl asked to be called; UINT64_MAX: never */
};

/* Makes the multi handle too. Call lk_poll_close whatever is returned. */
LK_MUST_CHECK enum lk_status lk_poll_open(struct lk_poll *poll);
void lk_poll_close(struct lk_poll *poll);

/* Before a call: lets this file open and close the handle's connections, so
 * that it knows which sockets are open. */
LK_MUST_CHECK enum lk_status lk_poll_attach(struct lk_poll *poll, CURL *easy);

/* Sleeps until a socket is ready, the bell rings or `until_ms` has come, and
 * lets curl handle the sockets that are ready. */
void lk_poll_wait(struct lk_poll *poll, uint64_t until_ms);
/* Lets curl handle the timeouts that have passed. */
void lk_poll_timers(struct lk_poll *poll);
/* Ends the sleep. Any thread, never waits. */
void lk_poll_ring(struct lk_poll *poll);

#endif
