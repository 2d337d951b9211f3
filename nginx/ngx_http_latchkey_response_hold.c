
/*
 * The answer is held while it comes in: how much of it, and whether it is all
 * there.
 */


#include "ngx_http_latchkey_response.h"


static ngx_int_t ngx_http_latchkey_copy(ngx_http_latchkey_ctx_t *ctx,
    u_char *data, size_t len);
static ngx_uint_t ngx_http_latchkey_cut_off(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t flush);
static ngx_uint_t ngx_http_latchkey_ended_early(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);


ngx_uint_t
ngx_http_latchkey_too_large(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (ctx->conf->no_body) {
        ngx_http_latchkey_omit(ctx->op, "this route keeps no bodies");
        return 1;
    }

    if (r->headers_out.content_length_n > (off_t) ctx->conf->response_max) {
        ngx_http_latchkey_omit(ctx->op, "it was too large");
        return 1;
    }

    return 0;
}


void
ngx_http_latchkey_omit(ngx_http_latchkey_op_t *op, const char *reason)
{
    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        op->reason.data = (u_char *) reason;
        op->reason.len = ngx_strlen(reason);
    }
}


ngx_int_t
ngx_http_latchkey_hold(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *in)
{
    size_t        size;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_uint_t    flush;
    ngx_chain_t  *cl;

    flush = 0;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;
        flush |= b->flush;
        size = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

        rc = (size == 0 && ngx_buf_size(b) != 0)
             ? NGX_DECLINED                     /* in a file, and only there */
             : ngx_http_latchkey_copy(ctx, b->pos, size);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_DECLINED) {
            ngx_http_latchkey_omit(ctx->op, "it was too large");

            if (ngx_http_latchkey_leave(r, ctx, cl) == NGX_ERROR) {
                return NGX_ERROR;
            }

            return ngx_http_latchkey_settle(r, ctx);
        }

        b->pos = b->last;
        b->file_pos = b->file_last;

        if (b->last_buf) {
            ctx->complete = 1;
            break;
        }
    }

    if (ngx_http_latchkey_cut_off(r, ctx, flush)) {
        ngx_http_latchkey_doubt(ctx, "the app's answer was cut off");
        return ngx_http_latchkey_settle(r, ctx);
    }

    return ctx->complete ? ngx_http_latchkey_settle(r, ctx) : NGX_OK;
}


ngx_int_t
ngx_http_latchkey_observe(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *in)
{
    ngx_buf_t    *b;
    ngx_uint_t    flush;
    ngx_chain_t  *cl;

    flush = 0;

    for (cl = in; cl && !ctx->complete; cl = cl->next) {
        b = cl->buf;
        flush |= b->flush;

        if (ngx_buf_in_memory(b)
            && ngx_http_latchkey_copy(ctx, b->pos, b->last - b->pos)
               != NGX_OK)
        {
            ngx_http_latchkey_omit(ctx->op, "it was too large");
            ctx->complete = 1;
        }

        if (b->last_buf) {
            ctx->complete = 1;
        }
    }

    if (ctx->op->settle != NGX_HTTP_LATCHKEY_SETTLE_OMIT
        && ngx_http_latchkey_cut_off(r, ctx, flush))
    {
        ngx_http_latchkey_doubt(ctx, "the app's answer was cut off");
        ctx->complete = 1;
    }

    if (ctx->complete) {
        ngx_http_latchkey_settle_aside(r, ctx);
    }

    return ngx_http_latchkey_next_body(r, in);
}


/* NGX_DECLINED: more than may be held; nothing was taken then */

static ngx_int_t
ngx_http_latchkey_copy(ngx_http_latchkey_ctx_t *ctx, u_char *data, size_t len)
{
    off_t                    announced;
    u_char                  *p;
    size_t                   size;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (len == 0) {
        return NGX_OK;
    }

    if (len > ctx->conf->response_max - op->answer_body.len) {
        return NGX_DECLINED;
    }

    if (len > op->answer_size - op->answer_body.len) {
        announced = ctx->request->headers_out.content_length_n;

        size = (announced > 0) ? (size_t) ngx_min(announced,
                                             (off_t) ctx->conf->response_max)
                               : ngx_max(2 * op->answer_size, 4096);
        size = ngx_max(size, op->answer_body.len + len);

        p = ngx_pnalloc(op->pool, size);
        if (p == NULL) {
            return NGX_ERROR;
        }

        if (op->answer_body.len) {
            ngx_memcpy(p, op->answer_body.data, op->answer_body.len);
            (void) ngx_pfree(op->pool, op->answer_body.data);
        }

        op->answer_body.data = p;
        op->answer_size = size;
    }

    ngx_memcpy(op->answer_body.data + op->answer_body.len, data, len);
    op->answer_body.len += len;

    return NGX_OK;
}


/*
 * An upstream that fails after its header was sent on ends with a flush and
 * no last buffer; u->cleanup is empty once it is finalized.
 */

static ngx_uint_t
ngx_http_latchkey_cut_off(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t flush)
{
    if (!ctx->from_app) {
        return 0;
    }

    if (ctx->complete) {
        return ngx_http_latchkey_ended_early(r, ctx);
    }

    return flush && r->upstream->cleanup == NULL;
}


/*
 * FastCGI without fastcgi_keep_conn: nginx takes any end for the end.  The
 * length tells, or that the record which ends a request has not come.
 */

static ngx_uint_t
ngx_http_latchkey_ended_early(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    if (r->headers_out.status == NGX_HTTP_NO_CONTENT
        || r->headers_out.status == NGX_HTTP_NOT_MODIFIED)
    {
        return 0;                               /* whatever length it names */
    }

    if (r->headers_out.content_length_n >= 0) {
        return (off_t) ctx->op->answer_body.len
               < r->headers_out.content_length_n;
    }

    if (!ngx_http_latchkey_is_fastcgi(r)) {
        return 0;
    }

    u = r->upstream;

    return u->buffering ? u->pipe && !u->pipe->upstream_done
                        : u->length != 0;
}


ngx_int_t
ngx_http_latchkey_leave(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *in)
{
    if (in && ngx_chain_add_copy(r->pool, &ctx->rest, in) != NGX_OK) {
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


void
ngx_http_latchkey_drop(ngx_chain_t *in)
{
    for ( /* void */ ; in; in = in->next) {
        in->buf->pos = in->buf->last;
        in->buf->file_pos = in->buf->file_last;
    }
}
