
/*
 * Where nginx's upstream would break an answer that is held: its functions are
 * called through ours.
 *
 *   process_header   an interim answer (100, 102, 103) is not the answer: nginx
 *                    takes it for that, and what follows for its body
 *   input filters    a body that cannot be read makes nginx close the client's
 *                    connection; it ends as one that was cut off instead, since
 *                    nothing of it was sent yet
 *
 * The content handler makes the upstream and sets its functions, before the
 * first byte of an answer is read: so ours stand in when it returns.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_content_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_hook(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_reinit_request(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_process_header(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_pass_over(ngx_http_request_t *r,
    ngx_http_upstream_t *u, ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_input_filter_init(void *data);
static ngx_int_t ngx_http_latchkey_pipe_filter(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static ngx_int_t ngx_http_latchkey_input_filter(void *data, ssize_t bytes);


void
ngx_http_latchkey_wrap_content(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (r->content_handler
        && r->content_handler != ngx_http_latchkey_content_handler)
    {
        ctx->content_handler = r->content_handler;
        r->content_handler = ngx_http_latchkey_content_handler;
    }
}


static ngx_int_t
ngx_http_latchkey_content_handler(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = ngx_http_latchkey_get_ctx(r);

    r->content_handler = ctx->content_handler;

    rc = r->content_handler(r);

    /* NGX_DONE: there is a reference to the request left, whatever it did */

    if (rc == NGX_DONE && r->upstream && r->upstream->cleanup) {
        ngx_http_latchkey_hook(r, ctx);
    }

    return rc;
}


static void
ngx_http_latchkey_hook(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->process_header == ngx_http_latchkey_process_header
        || u->process_header == NULL || u->header_sent)
    {
        return;                                  /* a redirect within it did */
    }

    ctx->reinit_request = u->reinit_request;
    ctx->process_header = u->process_header;

    u->reinit_request = ngx_http_latchkey_reinit_request;
    u->process_header = ngx_http_latchkey_process_header;

    if (u->input_filter_init && u->input_filter_ctx == r) {
        ctx->input_filter_init = u->input_filter_init;
        u->input_filter_init = ngx_http_latchkey_input_filter_init;
    }
}


/* to the next server: the answer is read from its beginning */

static ngx_int_t
ngx_http_latchkey_reinit_request(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    u->process_header = ctx->process_header;

    rc = ctx->reinit_request(r);

    ctx->process_header = u->process_header;
    u->process_header = ngx_http_latchkey_process_header;

    return rc;
}


static ngx_int_t
ngx_http_latchkey_process_header(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    for ( ;; ) {

        /* it goes from the status line to the headers by itself */

        u->process_header = ctx->process_header;

        rc = u->process_header(r);

        ctx->process_header = u->process_header;
        u->process_header = ngx_http_latchkey_process_header;

        if (rc != NGX_OK
            || u->headers_in.status_n < 100 || u->headers_in.status_n > 199
            || u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS
            || ngx_http_latchkey_pass_over(r, u, ctx) != NGX_OK)
        {
            return rc;
        }

        if (u->buffer.pos == u->buffer.last) {
            return NGX_AGAIN;
        }
    }
}


/* what was read of an interim answer is forgotten, as for the next server */

static ngx_int_t
ngx_http_latchkey_pass_over(ngx_http_request_t *r, ngx_http_upstream_t *u,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char  *start;

    if (u->headers_in.status) {
        return NGX_DECLINED;            /* a header of CGI, not a status line */
    }

    ngx_memzero(&u->headers_in, sizeof(ngx_http_upstream_headers_in_t));

    u->headers_in.content_length_n = -1;
    u->headers_in.last_modified_time = -1;

    if (ngx_list_init(&u->headers_in.headers, r->pool, 8,
                      sizeof(ngx_table_elt_t))
        != NGX_OK
        || ngx_list_init(&u->headers_in.trailers, r->pool, 2,
                         sizeof(ngx_table_elt_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    u->state->status = 0;
    u->keepalive = 0;
    u->upgrade = 0;

    /* the next one takes its place, in a cache too */

    start = u->buffer.start;

#if (NGX_HTTP_CACHE)
    if (r->cache) {
        start += r->cache->header_start;
    }
#endif

    u->buffer.last = ngx_movemem(start, u->buffer.pos,
                                 u->buffer.last - u->buffer.pos);
    u->buffer.pos = start;

    return ngx_http_latchkey_reinit_request(r);
}


/* after the header: the filters for the body are set */

static ngx_int_t
ngx_http_latchkey_input_filter_init(void *data)
{
    ngx_http_request_t  *r = data;

    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    ctx->unreadable = 0;

    if (ctx->input_filter_init(data) != NGX_OK) {
        return NGX_ERROR;
    }

    if (u->pipe && u->pipe->input_filter != ngx_http_latchkey_pipe_filter) {
        ctx->pipe_filter = u->pipe->input_filter;
        u->pipe->input_filter = ngx_http_latchkey_pipe_filter;
    }

    if (u->input_filter != ngx_http_latchkey_input_filter) {
        ctx->input_filter = u->input_filter;
        u->input_filter = ngx_http_latchkey_input_filter;
    }

    return NGX_OK;
}


/*
 * Once it has failed, nothing more is read; a length that is neither 0 nor -1
 * keeps nginx from taking the end for the end of the answer.
 */

static ngx_int_t
ngx_http_latchkey_pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_buf_t                *b;
    ngx_http_request_t       *r;
    ngx_http_latchkey_ctx_t  *ctx;

    r = p->input_ctx;
    ctx = ngx_http_latchkey_get_ctx(r);

    if (!ctx->unreadable && ctx->pipe_filter(p, buf) == NGX_OK) {
        return NGX_OK;
    }

    if (!ctx->unreadable && buf->shadow) {

        /* what it made of this buffer before: as if it were all */

        for (b = buf->shadow; b->shadow && b->shadow != buf; b = b->shadow) {
            /* void */
        }

        b->shadow = buf;
        b->last_shadow = 1;
    }

    ctx->unreadable = 1;
    p->upstream_error = 1;
    p->length = 1;

    return NGX_OK;
}


/* without buffering */

static ngx_int_t
ngx_http_latchkey_input_filter(void *data, ssize_t bytes)
{
    ngx_http_request_t  *r = data;

    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    if (!ctx->unreadable && ctx->input_filter(data, bytes) == NGX_OK) {
        return NGX_OK;
    }

    ctx->unreadable = 1;
    u->error = 1;
    u->length = 1;

    return NGX_OK;
}
