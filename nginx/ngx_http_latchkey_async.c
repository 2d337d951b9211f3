
/*
 * Asynchronous requests: whether a request is accepted for later, what of it is
 * stored with ACCEPT, and the response 202.
 */


#include "ngx_http_latchkey_module.h"


static ngx_uint_t ngx_http_latchkey_prefers_async(ngx_http_request_t *r);
static u_char *ngx_http_latchkey_next_preference(u_char *p, u_char *last,
    ngx_str_t *preference, ngx_str_t *name);
static u_char *ngx_http_latchkey_skip_chars(u_char *p, u_char *last,
    char *chars);
static ngx_uint_t ngx_http_latchkey_equals(ngx_str_t *value,
    const char *word);
static ngx_int_t ngx_http_latchkey_accept_path(ngx_http_request_t *r,
    ngx_pool_t *pool, ngx_str_t *path);
static ngx_int_t ngx_http_latchkey_accept_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *lines);
static ngx_int_t ngx_http_latchkey_accept_size(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, size_t *size);
static ngx_str_t *ngx_http_latchkey_accept_value(ngx_http_request_t *r,
    ngx_table_elt_t *h);
static ngx_str_t ngx_http_latchkey_accept_host(ngx_http_request_t *r);
static u_char *ngx_http_latchkey_accept_prefer(u_char *p,
    ngx_table_elt_t *h);
static ngx_uint_t ngx_http_latchkey_is_obeyed(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_accepted_header(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name);


/* limits of the daemon */
#define NGX_HTTP_LATCHKEY_PATH_MAX   8192
#define NGX_HTTP_LATCHKEY_LINES_MAX  (64 * 1024)


/* in lower case; no credentials, unless a route names them */

static ngx_str_t  ngx_http_latchkey_accepted_headers[] = {
    ngx_string("host"),
    ngx_string("content-type"),
    ngx_string("content-encoding"),
    ngx_string("content-language"),
    ngx_string("accept"),
    ngx_string("accept-language"),
    ngx_string("user-agent"),
    ngx_string("idempotency-key"),
    ngx_string("prefer"),
    ngx_string("traceparent"),
    ngx_string("tracestate"),
    ngx_string("x-request-id"),
    ngx_null_string
};


/*
 * idempotency_async always, or prefer and the client sent "Prefer:
 * respond-async".
 */

void
ngx_http_latchkey_async_check(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (ctx->conf->async == NGX_HTTP_LATCHKEY_ASYNC_OFF) {
        return;
    }

    ctx->preferred = ngx_http_latchkey_prefers_async(r);
    ctx->later = (ctx->preferred
                  || ctx->conf->async == NGX_HTTP_LATCHKEY_ASYNC_ALWAYS);
}


static ngx_uint_t
ngx_http_latchkey_prefers_async(ngx_http_request_t *r)
{
    u_char           *p, *last;
    ngx_str_t         preference, name;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_equals(&h[i].key, "prefer")) {
                continue;
            }

            p = h[i].value.data;
            last = p + h[i].value.len;

            while (p < last) {
                p = ngx_http_latchkey_next_preference(p, last, &preference,
                                                      &name);

                if (ngx_http_latchkey_equals(&name, "respond-async")) {
                    return 1;
                }
            }
        }
    }

    return 0;
}


/*
 * RFC 7240: a name, optionally "=" and a value, optionally parameters after
 * ";".  A comma in a quoted string is not a separator.
 */

static u_char *
ngx_http_latchkey_next_preference(u_char *p, u_char *last,
    ngx_str_t *preference, ngx_str_t *name)
{
    ngx_uint_t  quoted;

    p = ngx_http_latchkey_skip_chars(p, last, " \t,");

    preference->data = p;
    name->data = p;

    while (p < last && *p && ngx_strchr(" \t,;=", *p) == NULL) {
        p++;
    }

    name->len = p - name->data;
    quoted = 0;

    for ( /* void */ ; p < last && (quoted || *p != ','); p++) {

        if (quoted && *p == '\\' && p + 1 < last) {
            p++;

        } else if (*p == '"') {
            quoted = !quoted;
        }
    }

    preference->len = p - preference->data;

    while (preference->len
           && (preference->data[preference->len - 1] == ' '
               || preference->data[preference->len - 1] == '\t'))
    {
        preference->len--;
    }

    return p < last ? p + 1 : p;
}


static u_char *
ngx_http_latchkey_skip_chars(u_char *p, u_char *last, char *chars)
{
    while (p < last && *p && ngx_strchr(chars, *p)) {
        p++;
    }

    return p;
}


static ngx_uint_t
ngx_http_latchkey_equals(ngx_str_t *value, const char *word)
{
    return value->len == ngx_strlen(word)
           && ngx_strncasecmp(value->data, (u_char *) word, value->len) == 0;
}


/*
 * NGX_OK, NGX_ERROR, or the status that the request gets.  Everything is
 * copied into the op's pool, because ACCEPT may be sent after the request has
 * ended.
 */

ngx_int_t
ngx_http_latchkey_async_prepare(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t                    rc;
    ngx_http_latchkey_op_t      *op;
    ngx_http_latchkey_accept_t  *accept;

    op = ctx->op;

    if (ngx_http_latchkey_body_size(r) > (off_t) ctx->conf->async_body) {

        /* its first request may have run at once, and is found then */

        ctx->too_large = 1;

        if (!ctx->observe) {
            op->no_new = 1;
        }

        return NGX_OK;
    }

    if (ctx->observe || op->no_new) {
        return NGX_OK;
    }

    accept = ngx_pcalloc(op->pool, sizeof(ngx_http_latchkey_accept_t));
    if (accept == NULL) {
        return NGX_ERROR;
    }

    /* the request may end before the daemon has read all of it */

    accept->method.len = r->method_name.len;
    accept->method.data = ngx_pstrdup(op->pool, &r->method_name);
    if (accept->method.data == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_accept_path(r, op->pool, &accept->path);

    if (rc == NGX_OK) {
        rc = ngx_http_latchkey_accept_headers(r, ctx, &accept->headers);
    }

    if (rc == NGX_OK) {
        rc = ngx_http_latchkey_copy_body(r, op->pool, &accept->body);
    }

    if (rc == NGX_OK) {
        op->accept = accept;
    }

    return rc;
}


static ngx_int_t
ngx_http_latchkey_accept_path(ngx_http_request_t *r, ngx_pool_t *pool,
    ngx_str_t *path)
{
    u_char     *p;
    ngx_str_t  *uri;

    uri = &r->unparsed_uri;

    if (uri->len >= NGX_HTTP_LATCHKEY_PATH_MAX) {
        return NGX_HTTP_REQUEST_URI_TOO_LARGE;
    }

    path->data = ngx_pnalloc(pool, uri->len + 1);
    if (path->data == NULL) {
        return NGX_ERROR;
    }

    p = path->data;

    if (uri->len == 0 || uri->data[0] != '/') {

        /* "http://host?query" */

        *p++ = '/';
    }

    path->len = ngx_cpymem(p, uri->data, uri->len) - path->data;

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_accept_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *lines)
{
    u_char           *p;
    size_t            len;
    ngx_str_t         host;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;
    static ngx_str_t  name = ngx_string("Host");

    host = ngx_http_latchkey_accept_host(r);

    if (ngx_http_latchkey_accept_size(r, ctx->conf, &len) != NGX_OK) {
        return NGX_HTTP_BAD_REQUEST;
    }

    p = ngx_pnalloc(ctx->op->pool, sizeof("Host: " CRLF) + host.len + len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    lines->data = p;

    if (host.len) {
        p = ngx_http_latchkey_write_header(p, &name, &host);
    }

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_is_accepted_header(ctx->conf, &h[i].key)) {
                continue;
            }

            if (ngx_http_latchkey_equals(&h[i].key, "prefer")) {
                p = ngx_http_latchkey_accept_prefer(p, &h[i]);
                continue;
            }

            p = ngx_http_latchkey_write_header(p, &h[i].key,
                                     ngx_http_latchkey_accept_value(r, &h[i]));
        }
    }

    lines->len = p - lines->data;

    return lines->len <= NGX_HTTP_LATCHKEY_LINES_MAX
           ? NGX_OK : NGX_HTTP_REQUEST_HEADER_TOO_LARGE;
}


/* an upper bound; NGX_DECLINED: the daemon refuses one of the headers */

static ngx_int_t
ngx_http_latchkey_accept_size(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, size_t *size)
{
    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    *size = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_is_accepted_header(llcf, &h[i].key)) {
                continue;
            }

            value = ngx_http_latchkey_accept_value(r, &h[i]);
            if (value == NULL) {
                return NGX_DECLINED;
            }

            /* preferences are separated by a comma, here by ", " */

            *size += h[i].key.len + 2 * value->len + sizeof(": " CRLF) - 1;
        }
    }

    return NGX_OK;
}


/* NULL: the daemon refuses it */

static ngx_str_t *
ngx_http_latchkey_accept_value(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    /* "POST http://host/": that host counts, not the header */

    if (r->host_start && r->headers_in.server.len
        && ngx_http_latchkey_equals(&h->key, "host"))
    {
        return &r->headers_in.server;
    }

    if (!ngx_http_latchkey_is_valid_header(&h->key, &h->value)) {
        ngx_log_error(NGX_LOG_INFO, r->connection->log, 0,
                      "client sent a control character in header \"%V\" of a "
                      "request that is to run later, or in its name what is "
                      "not a token", &h->key);
        return NULL;
    }

    return &h->value;
}


/*
 * HTTP/1.0 does not require Host, but the request must come back to the same
 * server.  Empty: Host was sent, or no server name is valid in a header.
 */

static ngx_str_t
ngx_http_latchkey_accept_host(ngx_http_request_t *r)
{
    size_t                     i;
    u_char                     c;
    ngx_str_t                  host;
    ngx_http_core_srv_conf_t  *cscf;

    cscf = ngx_http_get_module_srv_conf(r, ngx_http_core_module);

    host = r->headers_in.server.len ? r->headers_in.server
                                    : cscf->server_name;

    if (r->headers_in.host) {
        host.len = 0;
    }

    for (i = 0; i < host.len; i++) {
        c = ngx_tolower(host.data[i]);

        if ((c < 'a' || c > 'z') && (c < '0' || c > '9')
            && ngx_strchr(".-_:[]", c) == NULL)
        {
            host.len = 0;
        }
    }

    return host;
}


/*
 * a preference that was applied here is not for the app; others are, such as
 * "return=minimal"
 */

static u_char *
ngx_http_latchkey_accept_prefer(u_char *p, ngx_table_elt_t *h)
{
    u_char     *src, *last, *start;
    ngx_str_t   preference, name;

    start = p;

    src = h->value.data;
    last = src + h->value.len;

    while (src < last) {
        src = ngx_http_latchkey_next_preference(src, last, &preference,
                                                &name);

        if (preference.len == 0 || ngx_http_latchkey_is_obeyed(&name)) {
            continue;
        }

        p = (p == start) ? ngx_cpymem(p, "Prefer: ", sizeof("Prefer: ") - 1)
                         : ngx_cpymem(p, ", ", sizeof(", ") - 1);

        p = ngx_cpymem(p, preference.data, preference.len);
    }

    if (p != start) {
        *p++ = CR; *p++ = LF;
    }

    return p;
}


static ngx_uint_t
ngx_http_latchkey_is_obeyed(ngx_str_t *name)
{
    return ngx_http_latchkey_equals(name, "respond-async")
           || ngx_http_latchkey_equals(name, "wait");
}


static ngx_uint_t
ngx_http_latchkey_is_accepted_header(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_str_t *name)
{
    ngx_str_t   *given;
    ngx_uint_t   i;

    for (given = ngx_http_latchkey_accepted_headers; given->len; given++) {
        if (ngx_http_latchkey_equals(name, (char *) given->data)) {
            return 1;
        }
    }

    if (llcf->async_headers) {
        given = llcf->async_headers->elts;

        for (i = 0; i < llcf->async_headers->nelts; i++) {
            if (ngx_http_latchkey_equals(name, (char *) given[i].data)) {
                return 1;
            }
        }
    }

    return 0;
}


/* 202 */

/*
 * The same for an operation in every state, and for retries of its request, as
 * long as it is not finished.
 */

ngx_chain_t *
ngx_http_latchkey_set_accepted(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char            *p;
    ngx_str_t          location;
    ngx_chain_t       *out;
    struct lk_buf      json;
    static ngx_str_t   applied = ngx_string("respond-async");

    ngx_memzero(&json, sizeof(struct lk_buf));

    if (latchkey_buf_printf(&json, "{\"reference\":\"%.*s\","
                            "\"status\":\"accepted\"}\n",
                            (int) ctx->reference.len, ctx->reference.data)
        != LK_OK)
    {
        latchkey_buf_free(&json);
        return NULL;
    }

    out = ngx_http_latchkey_set_progress(r, ctx->conf, &json);

    if (out == NULL
        || ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                        &ctx->reference)
           == NULL)
    {
        return NULL;
    }

    if (ctx->preferred
        && ngx_http_latchkey_add_header(r, "Preference-Applied", &applied)
           == NULL)
    {
        return NULL;
    }

    location = ctx->conf->async_location;

    if (location.len == 0) {
        return out;
    }

    p = ngx_pnalloc(r->pool, location.len + ctx->reference.len);
    if (p == NULL) {
        return NULL;
    }

    location.data = p;
    p = ngx_cpymem(p, ctx->conf->async_location.data, location.len);
    p = ngx_cpymem(p, ctx->reference.data, ctx->reference.len);
    location.len = p - location.data;

    return ngx_http_latchkey_add_header(r, "Location", &location) ? out
                                                                  : NULL;
}


ngx_chain_t *
ngx_http_latchkey_set_progress(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_buf *json)
{
    u_char       *p;
    size_t        len;
    ngx_chain_t  *out;

    ngx_http_latchkey_start_response(r, NGX_HTTP_ACCEPTED);

    ngx_str_set(&r->headers_out.content_type, "application/json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    len = json->len;
    p = ngx_pnalloc(r->pool, len + 1);

    if (p) {
        ngx_memcpy(p, json->data, len);
    }

    latchkey_buf_free(json);

    out = p ? ngx_http_latchkey_set_body(r, p, len) : NULL;

    if (out == NULL
        || ngx_http_latchkey_add_retry_after(r, llcf->async_retry) != NGX_OK)
    {
        return NULL;
    }

    return out;
}
