/* http.c - one HTTP call to a target: its handle, its headers, its answer. */
#include "courier/http_parts.h"

#include "lib/field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    HEADERS_MAX = 64 << 10, /* of an answer; what is beyond is left out */
    KEEP_CAP = 16 << 10,    /* a buffer that is larger is not kept */
};

enum lk_status lk_http_init(void)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) ? LK_NOMEM : LK_OK;
}

/* ---- what comes back ----------------------------------------------------- */

void lk_http_response_free(struct lk_http_response *answer)
{
    latchkey_buf_free(&answer->headers);
    latchkey_buf_free(&answer->body);
    *answer = (struct lk_http_response){0};
}

struct lk_slice lk_http_header(struct lk_slice headers, const char *name)
{
    size_t len = strlen(name);
    const char *at = headers.data;
    const char *end = at + headers.len;

    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        if ((size_t)(stop - at) > len && at[len] == ':' &&
            !strncasecmp(at, name, len)) {
            at += len + 1;
            size_t size = (size_t)(stop - at);
            size -= size && at[size - 1] == '\r';
            return lk_trim((struct lk_slice){at, size});
        }
        at = stop + 1;
    }
    return (struct lk_slice){0};
}

/* Fewer bytes than were given stop the transfer. */
size_t lk_http_take_body(char *data, size_t one, size_t len, void *context)
{
    struct lk_exchange *exchange = context;
    struct lk_http_response *answer = &exchange->answer;
    size_t room = exchange->answer_max - answer->body.len;
    size_t fits = len < room ? len : room;

    (void)one;
    if (latchkey_buf_add(&answer->body, data, fits)) {
        return 0;
    }
    answer->cut = fits < len;
    return fits == len ? len : 0;
}

/* Each answer begins with its status line; that of an interim one (1xx) is
 * followed by the next. */
size_t lk_http_take_header(char *data, size_t one, size_t len, void *context)
{
    struct lk_exchange *exchange = context;
    struct lk_buf *headers = &exchange->answer.headers;

    (void)one;
    if (len >= 5 && !strncasecmp(data, "HTTP/", 5)) {
        headers->len = 0;
        exchange->headers_done = false;
        return len;
    }
    if (len <= 2 && (data[0] == '\r' || data[0] == '\n')) {
        exchange->headers_done = true;
        return len;
    }
    if (len < 3 || data[len - 1] != '\n' || !memchr(data, ':', len) ||
        headers->len + len + 1 > HEADERS_MAX) {
        return len; /* no header, or more than is wanted */
    }
    size_t text = len - (data[len - 2] == '\r' ? 2 : 1);
    if (latchkey_buf_add(headers, data, text) ||
        latchkey_buf_add(headers, "\r\n", 2)) {
        return 0;
    }
    return len;
}

/*
 * curl is about to send the request. If a connection that was used before has
 * died meanwhile, curl does so a second time, by itself. That would be a call
 * that is on no record and in no number of attempts: the caller decides.
 */
int lk_http_leave(void *context, char *there, char *here, int port,
                  int local_port)
{
    struct lk_exchange *exchange = context;

    (void)there, (void)here, (void)port, (void)local_port;
    exchange->died = exchange->left;
    exchange->left = true;
    return exchange->died ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static int look_at_cancel(void *context, curl_off_t a, curl_off_t b,
                          curl_off_t c, curl_off_t d)
{
    struct lk_exchange *exchange = context;

    (void)a, (void)b, (void)c, (void)d;
    return exchange->cancel && atomic_load(exchange->cancel);
}

/* ---- a call -------------------------------------------------------------- */

/* The path of a request is the client's; it can only lead to the gateway. */
static const char *request_path_fault(struct lk_slice path)
{
    if (!path.len || path.data[0] != '/') {
        return "must begin with a slash";
    }
    for (size_t i = 0; i < path.len; i++) {
        if ((unsigned char)path.data[i] <= ' ' || path.data[i] == 0x7f) {
            return "contains a space or a control character";
        }
    }
    return NULL;
}

static enum lk_status refuse(struct lk_exchange *exchange, const char *what,
                             const char *fault)
{
    snprintf(exchange->answer.error, LK_HTTP_ERROR, "the %s %s", what, fault);
    return LK_INVALID;
}

static enum lk_status check_request(struct lk_exchange *exchange,
                                    const struct lk_http_request *request)
{
    const char *fault = request->gateway ? request_path_fault(request->path)
                                         : lk_path_fault(request->path);

    if (fault) {
        return refuse(exchange, "path", fault);
    }
    fault = request->gateway ? lk_http_method_fault(request->method)
                             : lk_method_fault(request->method);
    if (fault) {
        return refuse(exchange, "method", fault);
    }
    size_t line;
    fault = request->gateway ? lk_http_lines_fault(request->headers)
                             : lk_headers_fault(request->headers, &line);
    fault = fault ? fault : lk_http_lines_fault(request->extra);
    return fault ? refuse(exchange, "headers", fault) : LK_OK;
}

/* A buffer that had to be large once is not kept so. */
static void reset_buf(struct lk_buf *buf)
{
    if (buf->cap > KEEP_CAP) {
        latchkey_buf_free(buf);
    }
    buf->len = 0;
}

static void reset_answer(struct lk_http_response *answer)
{
    reset_buf(&answer->headers);
    reset_buf(&answer->body);
    answer->status = 0;
    answer->sent = answer->whole = answer->cut = answer->late = false;
    answer->error[0] = 0;
}

static enum lk_status set_url(struct lk_exchange *exchange,
                              const struct lk_http_request *request)
{
    CURL *e = exchange->easy;
    struct lk_slice base = latchkey_slice(request->target->url);
    enum lk_status status;
    CURLcode code = CURLE_OK;

    while (base.len && base.data[base.len - 1] == '/') {
        base.len--;
    }
    exchange->url.len = 0;
    status = latchkey_buf_add_slice(
        &exchange->url, request->gateway ? (struct lk_slice){0} : base);
    if (!status) {
        status = latchkey_buf_add_slice(&exchange->url, request->path);
    }
    if (!status) {
        status = latchkey_buf_add(&exchange->url, "", 1);
    }
    if (status) {
        return status;
    }
    if (request->gateway) {
        SET(CURLOPT_URL, request->target->url);
        SET(CURLOPT_REQUEST_TARGET, exchange->url.data);
    } else {
        SET(CURLOPT_URL, exchange->url.data);
    }
    return code ? LK_NOMEM : LK_OK;
}

static CURLcode set_body(struct lk_exchange *exchange,
                         const struct lk_http_request *request)
{
    CURL *e = exchange->easy;
    struct lk_slice method = request->method;
    bool body = request->body.len || method.data[0] == 'P'; /* POST, PUT ... */
    CURLcode code = CURLE_OK;

    memcpy(exchange->method, method.data, method.len);
    exchange->method[method.len] = 0;
    if (body) {
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDS, request->body.len ? request->body.data : "");
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->body.len);
    } else {
        SET(CURLOPT_HTTPGET, 1L);
        SET(CURLOPT_NOBODY, (long)!strcmp(exchange->method, "HEAD"));
    }
    SET(CURLOPT_CUSTOMREQUEST, exchange->method);
    return code;
}

static CURLcode set_times(struct lk_exchange *exchange,
                          const struct lk_http_request *request)
{
    CURL *e = exchange->easy;
    uint64_t connect = request->connect_timeout_ms
                           ? request->connect_timeout_ms
                           : request->target->connect_timeout_ms;
    uint64_t all =
        request->timeout_ms ? request->timeout_ms : request->target->timeout_ms;
    CURLcode code = CURLE_OK;

    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)connect);
    SET(CURLOPT_TIMEOUT_MS, (long)all);
    if (request->cancel) {
        SET(CURLOPT_XFERINFOFUNCTION, look_at_cancel);
        SET(CURLOPT_XFERINFODATA, exchange);
        SET(CURLOPT_NOPROGRESS, 0L);
    }
    return code;
}

enum lk_status lk_exchange_begin(struct lk_exchange *exchange,
                                 const struct lk_http_request *request)
{
    CURLcode code = CURLE_OK;

    reset_answer(&exchange->answer);
    exchange->headers_done = exchange->left = exchange->died = false;
    enum lk_status status = check_request(exchange, request);
    if (status) {
        return status;
    }
    exchange->easy = exchange->easy ? exchange->easy : curl_easy_init();
    if (!exchange->easy) {
        return LK_NOMEM;
    }
    exchange->answer_max =
        request->answer_max ? request->answer_max : LK_HTTP_RESPONSE_MAX;
    exchange->cancel = request->cancel;
    if (!exchange->ready) {
        code = lk_http_set_target(exchange, request->target);
    }
    code = code ? code : set_body(exchange, request);
    code = code ? code : set_times(exchange, request);
    if (code) {
        exchange->ready = false;
        snprintf(exchange->answer.error, LK_HTTP_ERROR, "%s",
                 curl_easy_strerror(code));
        return code == CURLE_OUT_OF_MEMORY ? LK_NOMEM : LK_INVALID;
    }
    status = set_url(exchange, request);
    return status ? status : lk_http_set_headers(exchange, request);
}

void lk_exchange_end(struct lk_exchange *exchange, CURLcode code)
{
    struct lk_http_response *answer = &exchange->answer;
    long status = 0;

    answer->sent = exchange->left;
    answer->late = code == CURLE_OPERATION_TIMEDOUT;
    if (!curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &status) &&
        status >= 200 && status < 1000) {
        answer->status = (unsigned)status;
        answer->sent = true;
    }
    /* curl takes a connection that was closed within the headers for the end
     * of them. */
    answer->whole =
        answer->status && exchange->headers_done &&
        (code == CURLE_OK || (code == CURLE_WRITE_ERROR && answer->cut));
    if (exchange->died) {
        snprintf(answer->error, LK_HTTP_ERROR,
                 "the connection was closed before an answer came");
    }
    if (!answer->whole && !answer->error[0]) {
        snprintf(answer->error, LK_HTTP_ERROR, "%s",
                 code ? curl_easy_strerror(code) : "no answer");
    } else if (answer->whole) {
        answer->error[0] = 0;
    }
}

void lk_exchange_free(struct lk_exchange *exchange)
{
    if (exchange->lines.data) {
        explicit_bzero(exchange->lines.data, exchange->lines.cap);
    }
    curl_easy_cleanup(exchange->easy);
    latchkey_buf_free(&exchange->url);
    latchkey_buf_free(&exchange->lines);
    free(exchange->list);
    lk_http_response_free(&exchange->answer);
    *exchange = (struct lk_exchange){0};
}

enum lk_status lk_http_call(const struct lk_http_request *request,
                            struct lk_http_response *answer)
{
    struct lk_exchange exchange = {0};
    enum lk_status status = lk_exchange_begin(&exchange, request);

    if (!status) {
        lk_exchange_end(&exchange, curl_easy_perform(exchange.easy));
        status = exchange.answer.whole ? LK_OK : LK_IO;
    }
    lk_http_response_free(answer);
    *answer = exchange.answer;
    exchange.answer = (struct lk_http_response){0};
    lk_exchange_free(&exchange);
    return status;
}
