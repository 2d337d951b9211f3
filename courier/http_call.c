/* http_call.c - one HTTP call to a target: curl's options, the request's
 * headers, and the response. */
#include "courier/http_call.h"
#include "lib/http_syntax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    RESPONSE_HEADERS_MAX = 64
                           << 10, /* of a response; lines beyond are left out */
    HTTP_BUF_CAP = 16 << 10,      /* a larger buffer is not used again */
};

enum lk_status lk_http_init(void)
{
    return curl_global_init(CURL_GLOBAL_DEFAULT) ? LK_NOMEM : LK_OK;
}

/* Sets an option of handle `e` unless one before has failed. */
#define SET(option, value)                                                     \
    (code = code ? code : curl_easy_setopt(e, option, value))

/* ---- the response ----------------------------------------------------- */

void lk_http_response_free(struct lk_http_response *response)
{
    latchkey_buf_free(&response->headers);
    latchkey_buf_free(&response->body);
    *response = (struct lk_http_response){0};
}

/* curl stops the transfer if fewer bytes are taken than it gave. */
static size_t take_body(char *data, size_t one, size_t len, void *context)
{
    struct lk_exchange *exchange = context;
    struct lk_http_response *response = &exchange->response;
    size_t room = exchange->response_max - response->body.len;
    size_t fits = len < room ? len : room;

    (void)one;
    if (latchkey_buf_add(&response->body, data, fits)) {
        return 0;
    }
    response->cut = fits < len;
    return fits == len ? len : 0;
}

/* Each response begins with its status line; an interim one (1xx) is followed
 * by another, and only the last one is kept. */
static size_t take_header(char *data, size_t one, size_t len, void *context)
{
    struct lk_exchange *exchange = context;
    struct lk_buf *headers = &exchange->response.headers;

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
        headers->len + len + 1 > RESPONSE_HEADERS_MAX) {
        return len; /* not a header, or too many */
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
 * died, curl would send the request a second time by itself. That call would
 * not be counted as an attempt, so it is stopped: the caller decides.
 */
static int note_sending(void *context, char *there, char *here, int port,
                        int local_port)
{
    struct lk_exchange *exchange = context;

    (void)there, (void)here, (void)port, (void)local_port;
    exchange->died = exchange->left;
    exchange->left = true;
    return exchange->died ? CURL_PREREQFUNC_ABORT : CURL_PREREQFUNC_OK;
}

static int check_cancel(void *context, curl_off_t a, curl_off_t b, curl_off_t c,
                        curl_off_t d)
{
    struct lk_exchange *exchange = context;

    (void)a, (void)b, (void)c, (void)d;
    return exchange->cancel && atomic_load(exchange->cancel);
}

/* ---- headers ------------------------------------------------------------- */

static bool has_header_of(struct lk_slice block, struct lk_slice line)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;
    size_t len = colon ? (size_t)(colon - line.data) + 1 : 0;
    struct lk_slice other;

    while (len && lk_header_line(&block, &other)) {
        if (other.len >= len && !strncasecmp(other.data, line.data, len)) {
            return true;
        }
    }
    return false;
}

/* curl reads "Name:" as a header to leave out, and "Name;" as a header without
 * a value. */
static enum lk_status add_line(struct lk_buf *lines, struct lk_slice line)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;

    if (!colon) {
        return LK_OK;
    }
    size_t name = (size_t)(colon - line.data);
    struct lk_slice value =
        lk_trim((struct lk_slice){colon + 1, line.len - name - 1});
    enum lk_status status = latchkey_buf_add(lines, line.data, name);
    if (!status) {
        status = latchkey_buf_add_text(lines, value.len ? ": " : ";");
    }
    if (!status) {
        status = latchkey_buf_add_slice(lines, value);
    }
    return status ? status : latchkey_buf_add(lines, "", 1);
}

/* curl frames the message. Jobs with these headers are refused when they are
 * queued; a client's request may have them. */
static bool is_framing(struct lk_slice line)
{
    static const char names[] = "content-length:\ntransfer-encoding:\n"
                                "connection:\nupgrade:\nte:\ntrailer:\n"
                                "keep-alive:\nexpect:\nproxy-connection:\n";

    return has_header_of(latchkey_slice(names), line);
}

static enum lk_status add_lines(struct lk_buf *lines, struct lk_slice block,
                                struct lk_slice unless, struct lk_slice nor)
{
    struct lk_slice line;
    enum lk_status status = LK_OK;

    while (!status && lk_header_line(&block, &line)) {
        if (!has_header_of(unless, line) && !has_header_of(nor, line) &&
            !is_framing(line)) {
            status = add_line(lines, line);
        }
    }
    return status;
}

/* Leaves out what curl would add by itself. */
static enum lk_status add_absent(struct lk_exchange *exchange,
                                 const struct lk_http_request *request,
                                 struct lk_slice own)
{
    struct lk_buf *lines = &exchange->lines;
    enum lk_status status = latchkey_buf_add(lines, "Expect:", 8);

    if (!status && !has_header_of(own, LK_SLICE("content-type:")) &&
        !has_header_of(request->headers, LK_SLICE("content-type:"))) {
        status = latchkey_buf_add(lines, "Content-Type:", 14);
    }
    if (!status && request->gateway) {
        struct lk_slice agent = LK_SLICE("user-agent:");
        struct lk_slice accept = LK_SLICE("accept:");
        status = has_header_of(request->headers, agent)
                     ? LK_OK
                     : latchkey_buf_add(lines, "User-Agent:", 12);
        if (!status && !has_header_of(request->headers, accept)) {
            status = latchkey_buf_add(lines, "Accept:", 8);
        }
    }
    if (!status && !request->target->honours) {
        status = latchkey_buf_add(lines, "Connection: close", 18);
    }
    return status;
}

/* The nodes are in one array: curl only reads them. */
static enum lk_status link_lines(struct lk_exchange *exchange)
{
    char *at = exchange->lines.data;
    char *end = at + exchange->lines.len;
    size_t count = 0;

    for (char *line = at; line < end; line += strlen(line) + 1) {
        count++;
    }
    if (count > exchange->list_cap) {
        struct curl_slist *list =
            realloc(exchange->list, count * sizeof(*list));
        if (!list) {
            return LK_NOMEM;
        }
        exchange->list = list;
        exchange->list_cap = count;
    }
    for (size_t i = 0; i < count; i++, at += strlen(at) + 1) {
        exchange->list[i].data = at;
        exchange->list[i].next = i + 1 < count ? &exchange->list[i + 1] : NULL;
    }
    return LK_OK;
}

/* The order of precedence: the caller's extra lines, the target's, the
 * job's. */
static enum lk_status set_request_headers(struct lk_exchange *exchange,
                                          const struct lk_http_request *request)
{
    struct lk_slice own = latchkey_slice(request->target->headers);
    struct lk_slice none = {0};
    enum lk_status status;

    exchange->lines.len = 0;
    status = add_lines(&exchange->lines, own, request->extra, none);
    if (!status) {
        status =
            add_lines(&exchange->lines, request->headers, own, request->extra);
    }
    if (!status) {
        status = add_lines(&exchange->lines, request->extra, none, none);
    }
    if (!status) {
        status = add_absent(exchange, request, own);
    }
    if (!status) {
        status = link_lines(exchange);
    }
    if (!status &&
        curl_easy_setopt(exchange->easy, CURLOPT_HTTPHEADER, exchange->list)) {
        status = LK_NOMEM;
    }
    return status;
}

/* ---- options ------------------------------------------------------------- */

static long http_version(const struct lk_target *target)
{
    bool tls = !strncasecmp(target->url, "https:", 6);

    if (target->http == LK_HTTP_2) {
        return tls ? CURL_HTTP_VERSION_2TLS
                   : CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE;
    }
    return tls && target->http == LK_HTTP_AUTO && target->honours
               ? CURL_HTTP_VERSION_2TLS
               : CURL_HTTP_VERSION_1_1;
}

/* TLS is verified, always. */
static CURLcode set_tls_options(CURL *e, const struct lk_target *target)
{
    CURLcode code = CURLE_OK;

    SET(CURLOPT_SSL_VERIFYPEER, 1L);
    SET(CURLOPT_SSL_VERIFYHOST, 2L);
    SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    if (target->ca_file) {
        SET(CURLOPT_CAINFO, target->ca_file);
        SET(CURLOPT_CAPATH, NULL);
    }
    if (target->cert_file) {
        SET(CURLOPT_SSLCERT, target->cert_file);
    }
    if (target->key_file) {
        SET(CURLOPT_SSLKEY, target->key_file);
    }
    return code;
}

/* Nothing in the environment may send a call elsewhere. */
static CURLcode set_isolation_options(CURL *e)
{
    CURLcode code = CURLE_OK;

    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_PROXY, "");
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_PATH_AS_IS, 1L);
    SET(CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    SET(CURLOPT_USERAGENT, "latchkey/" LATCHKEY_VERSION);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* A name that does not resolve must not hold up the others: without this,
     * giving up waits for the resolver's thread. */
    SET(CURLOPT_QUICK_EXIT, 1L);
#endif
    return code;
}

/*
 * On a connection that was used before, curl may find out only after it has
 * sent the request that the connection is dead: no one knows then whether the
 * call took effect. Where the key is not honoured, each call has a new
 * connection.
 */
static CURLcode set_connection_options(CURL *e, const struct lk_target *target)
{
    long fresh = !target->honours;
    CURLcode code = CURLE_OK;

    SET(CURLOPT_FRESH_CONNECT, fresh);
    SET(CURLOPT_FORBID_REUSE, fresh);
    SET(CURLOPT_HTTP_VERSION, http_version(target));
    SET(CURLOPT_PIPEWAIT,
        (long)(http_version(target) != CURL_HTTP_VERSION_1_1));
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    if (target->socket) {
        SET(CURLOPT_UNIX_SOCKET_PATH, target->socket);
    }
    return code;
}

/* What all calls to a target share; set once for each handle. */
static CURLcode set_target_options(struct lk_exchange *exchange,
                                   const struct lk_target *target)
{
    CURL *e = exchange->easy;
    CURLcode code;

    curl_easy_reset(e);
    code = set_isolation_options(e);
    code = code ? code : set_tls_options(e, target);
    code = code ? code : set_connection_options(e, target);
    SET(CURLOPT_PRIVATE, exchange);
    SET(CURLOPT_ERRORBUFFER, exchange->response.error);
    SET(CURLOPT_WRITEFUNCTION, take_body);
    SET(CURLOPT_WRITEDATA, exchange);
    SET(CURLOPT_HEADERFUNCTION, take_header);
    SET(CURLOPT_HEADERDATA, exchange);
    SET(CURLOPT_PREREQFUNCTION, note_sending);
    SET(CURLOPT_PREREQDATA, exchange);
    exchange->ready = !code;
    return code;
}

/* ---- the request --------------------------------------------------------- */

/* The path of an asynchronous request is the client's; it can only lead to the
 * gateway. */
static const char *gateway_path_fault(struct lk_slice path)
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

static enum lk_status refuse_request(struct lk_exchange *exchange,
                                     const char *what, const char *fault)
{
    snprintf(exchange->response.error, LK_HTTP_ERROR, "the %s %s", what, fault);
    return LK_INVALID;
}

/* Nothing is sent that could reach another place than the target, or break
 * the framing. */
static enum lk_status check_request(struct lk_exchange *exchange,
                                    const struct lk_http_request *request)
{
    const char *fault = request->gateway ? gateway_path_fault(request->path)
                                         : lk_path_fault(request->path);

    if (fault) {
        return refuse_request(exchange, "path", fault);
    }
    fault = request->gateway ? lk_http_method_fault(request->method)
                             : lk_method_fault(request->method);
    if (fault) {
        return refuse_request(exchange, "method", fault);
    }
    size_t line;
    fault = request->gateway ? lk_http_lines_fault(request->headers)
                             : lk_headers_fault(request->headers, &line);
    fault = fault ? fault : lk_http_lines_fault(request->extra);
    return fault ? refuse_request(exchange, "headers", fault) : LK_OK;
}

/* A large buffer is not kept for the next call. */
static void reset_http_buf(struct lk_buf *buf)
{
    if (buf->cap > HTTP_BUF_CAP) {
        latchkey_buf_free(buf);
    }
    buf->len = 0;
}

static void reset_response(struct lk_http_response *response)
{
    reset_http_buf(&response->headers);
    reset_http_buf(&response->body);
    response->status = 0;
    response->sent = response->whole = response->cut = response->late = false;
    response->error[0] = 0;
}

/* The target's URL and the path. To the gateway, the path is sent byte for
 * byte. */
static enum lk_status set_request_url(struct lk_exchange *exchange,
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

/* The method, and the body if there is one or the method has one. */
static CURLcode set_request_body(struct lk_exchange *exchange,
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

/* Those of the request, or the target's. */
static CURLcode set_request_timeouts(struct lk_exchange *exchange,
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
        SET(CURLOPT_XFERINFOFUNCTION, check_cancel);
        SET(CURLOPT_XFERINFODATA, exchange);
        SET(CURLOPT_NOPROGRESS, 0L);
    }
    return code;
}

enum lk_status lk_exchange_begin(struct lk_exchange *exchange,
                                 const struct lk_http_request *request)
{
    CURLcode code = CURLE_OK;

    reset_response(&exchange->response);
    exchange->headers_done = exchange->left = exchange->died = false;
    enum lk_status status = check_request(exchange, request);
    if (status) {
        return status;
    }
    exchange->easy = exchange->easy ? exchange->easy : curl_easy_init();
    if (!exchange->easy) {
        return LK_NOMEM;
    }
    exchange->response_max =
        request->response_max ? request->response_max : LK_HTTP_RESPONSE_MAX;
    exchange->cancel = request->cancel;
    if (!exchange->ready) {
        code = set_target_options(exchange, request->target);
    }
    code = code ? code : set_request_body(exchange, request);
    code = code ? code : set_request_timeouts(exchange, request);
    if (code) {
        exchange->ready = false;
        snprintf(exchange->response.error, LK_HTTP_ERROR, "%s",
                 curl_easy_strerror(code));
        return code == CURLE_OUT_OF_MEMORY ? LK_NOMEM : LK_INVALID;
    }
    status = set_request_url(exchange, request);
    return status ? status : set_request_headers(exchange, request);
}

void lk_exchange_end(struct lk_exchange *exchange, CURLcode code)
{
    struct lk_http_response *response = &exchange->response;
    long status = 0;

    response->sent = exchange->left;
    response->late = code == CURLE_OPERATION_TIMEDOUT;
    if (!curl_easy_getinfo(exchange->easy, CURLINFO_RESPONSE_CODE, &status) &&
        status >= 200 && status < 1000) {
        response->status = (unsigned)status;
        response->sent = true;
    }
    /* curl takes a connection that was closed within the headers for the end of
     * the headers. */
    response->whole =
        response->status && exchange->headers_done &&
        (code == CURLE_OK || (code == CURLE_WRITE_ERROR && response->cut));
    if (exchange->died) {
        snprintf(response->error, LK_HTTP_ERROR,
                 "the connection was closed before a response came");
    }
    if (!response->whole && !response->error[0]) {
        snprintf(response->error, LK_HTTP_ERROR, "%s",
                 code ? curl_easy_strerror(code) : "no response");
    } else if (response->whole) {
        response->error[0] = 0;
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
    lk_http_response_free(&exchange->response);
    *exchange = (struct lk_exchange){0};
}

enum lk_status lk_http_call(const struct lk_http_request *request,
                            struct lk_http_response *response)
{
    struct lk_exchange exchange = {0};
    enum lk_status status = lk_exchange_begin(&exchange, request);

    if (!status) {
        lk_exchange_end(&exchange, curl_easy_perform(exchange.easy));
        status = exchange.response.whole ? LK_OK : LK_IO;
    }
    lk_http_response_free(response);
    *response = exchange.response;
    exchange.response = (struct lk_http_response){0};
    lk_exchange_free(&exchange);
    return status;
}
