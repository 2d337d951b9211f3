/*
 * http_call.h - one HTTP call to a target, by libcurl: the request, the
 * response, and a call that blocks, for threads that may wait.
 *
 * The rules are the same for every call: no redirects, no proxies from the
 * environment, no cookies, certificates are always verified, and nothing but
 * the target's own URL with a path that lk_path_fault finds nothing wrong with.
 */
#ifndef LK_HTTP_CALL_H
#define LK_HTTP_CALL_H

#include "config/targets.h"
#include "latchkey.h"
#include "lib/http_syntax.h"

#include <curl/curl.h>
#include <stdatomic.h>

enum {
    LK_HTTP_ERROR = 256,            /* of an error text, with its NUL */
    LK_HTTP_RESPONSE_MAX = 1 << 20, /* reading stops there */
};

/* What is called. All of it belongs to the caller. */
struct lk_http_request {
    const struct lk_target *target;
    struct lk_slice method;
    struct lk_slice path;    /* with the query; behind the target's URL */
    struct lk_slice headers; /* "Name: value\r\n" lines; where the target has
                                a header of that name, the target's wins */
    struct lk_slice extra;   /* lines of the caller's own making: these win over
                                the target's, and are not checked */
    struct lk_slice body;
    uint64_t connect_timeout_ms; /* 0: the target's */
    uint64_t timeout_ms;         /* for the whole call; 0: the target's */
    size_t response_max;         /* bytes of body; 0: LK_HTTP_RESPONSE_MAX */
    bool gateway; /* a request's own path and headers: sent as they are */
    const atomic_bool *cancel; /* lk_http_call; NULL: none. Once it is true the
                                  call is given up, LK_IO */
};

/* The outcome. Start it as {0}; free it with lk_http_response_free, which
 * leaves it ready for use again. */
struct lk_http_response {
    unsigned status; /* 0: there was no status line */
    bool sent;       /* something of the request may have reached the target */
    bool whole;      /* all of the response is here, or `cut` */
    bool cut;  /* it was longer than response_max: the body is its start */
    bool late; /* our own timeout ended it */
    struct lk_buf headers; /* lines of the final response, "Name: value\r\n" */
    struct lk_buf body;
    char error[LK_HTTP_ERROR]; /* why it is not whole; text from outside may be
                                  in it: escape it for a log */
};

void lk_http_response_free(struct lk_http_response *response);

/*
 * Makes the call and waits for its end. LK_OK: the response is `whole`. LK_IO:
 * it is not (timed out, reset, cancelled, no status at all), `error` says why
 * and `sent` whether the target may have got it. LK_INVALID: the path, the
 * method or a header is not allowed, nothing was done, `error` says which.
 * LK_NOMEM. `response` was {0} or freed before. Any thread.
 */
LK_MUST_CHECK enum lk_status lk_http_call(const struct lk_http_request *request,
                                          struct lk_http_response *response);

/* ---- for callers with a multi handle of their own ------------------------ */

/*
 * A handle and what it needs while a call runs; used again and again, for one
 * target at a time. Start it as {0}.
 */
struct lk_exchange {
    CURL *easy;
    bool ready;              /* has the options of its target */
    struct lk_buf url;       /* NUL-terminated */
    struct lk_buf lines;     /* header lines, each with a NUL; secrets inside */
    struct curl_slist *list; /* node after node in one piece of memory */
    size_t list_cap;
    char method[LK_METHOD_MAX + 1];
    size_t response_max;
    const atomic_bool *cancel;
    void *owner;       /* the caller's */
    bool headers_done; /* the empty line behind them has come */
    bool left;         /* curl has a connection, and begins to send. Only once:
                          a second time is the caller's decision */
    bool died;         /* curl was about to send it a second time */
    struct lk_http_response response;
};

/*
 * Sets all that a call needs; curl may then perform it, once. `request` is not
 * needed afterwards but for its body and `cancel`. If the target has changed
 * since the last call, `exchange->ready` is set to false first. Returns as
 * lk_http_call, and writes response.error.
 */
LK_MUST_CHECK enum lk_status lk_exchange_begin(
    struct lk_exchange *exchange, const struct lk_http_request *request);
/* After curl is done with it: completes exchange->response. */
void lk_exchange_end(struct lk_exchange *exchange, CURLcode code);
void lk_exchange_free(struct lk_exchange *exchange);

/* Once per process, before any other thread. */
LK_MUST_CHECK enum lk_status lk_http_init(void);

#endif
