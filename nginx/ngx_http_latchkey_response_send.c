
/*
 * The answer goes out: the one that was held, or another in its place.
 */


#include "ngx_http_latchkey_response.h"


static ngx_int_t ngx_http_latchkey_send_header(ngx_http_request_t *r);


void
ngx_http_latchkey_wake(ngx_http_request_t *r)
{
    if (ngx_http_output_filter(r, NULL) == NGX_ERROR) {

        /*
         * An upstream that is still there ends with the request, and counts
         * it down itself: as where nginx closes a connection.
         */

        if (r->upstream && r->upstream->cleanup) {
            r->main->count++;
        }

        r->connection->error = 1;
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    r->write_event_handler(r);
}


ngx_int_t
ngx_http_latchkey_send_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t      rc;
    ngx_buf_t     *b;
    ngx_chain_t   *out, **last;

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    r->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;

    if (ngx_http_latchkey_mark(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_send_header(r);

    if (rc == NGX_ERROR || r->header_only) {
        ctx->state = NGX_HTTP_LATCHKEY_DROP;
        ngx_http_latchkey_drop(ctx->rest);
        ngx_http_latchkey_drop(in);
        return rc;
    }

    out = NULL;
    last = &out;

    if (ctx->op->answer_body.len || ctx->complete) {
        b = ngx_calloc_buf(r->pool);
        if (b == NULL) {
            return NGX_ERROR;
        }

        out = ngx_alloc_chain_link(r->pool);
        if (out == NULL) {
            return NGX_ERROR;
        }

        if (ctx->op->answer_body.len) {
            b->pos = ctx->op->answer_body.data;
            b->last = b->pos + ctx->op->answer_body.len;
            b->memory = 1;
        }

        b->last_buf = ctx->complete;
        b->last_in_chain = ctx->complete;

        out->buf = b;
        out->next = NULL;
        last = &out->next;
    }

    *last = ctx->rest;
    ctx->rest = NULL;

    if (in && ngx_chain_add_copy(r->pool, &out, in) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_latchkey_next_body(r, out);
}


ngx_int_t
ngx_http_latchkey_send_other(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t  rc;

    ctx->state = NGX_HTTP_LATCHKEY_DROP;
    r->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;

    ngx_http_latchkey_drop(ctx->rest);
    ngx_http_latchkey_drop(in);
    ctx->rest = NULL;

    if (ctx->other == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_send_header(r);

    if (rc == NGX_ERROR || r->header_only) {
        return rc;
    }

    return ngx_http_latchkey_next_body(r, ctx->other);
}


/* a filter that wants another answer comes too late: there is none then */

static ngx_int_t
ngx_http_latchkey_send_header(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_latchkey_next_header(r);

    return rc > NGX_OK ? NGX_ERROR : rc;
}
