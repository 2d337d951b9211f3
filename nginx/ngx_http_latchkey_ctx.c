
/*
 * What the gateway knows of a request: made, found again, let go.
 */


#include "ngx_http_latchkey_module.h"


static void ngx_http_latchkey_cleanup(void *data);


ngx_http_latchkey_ctx_t *
ngx_http_latchkey_create_ctx(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_pool_cleanup_t       *cln;
    ngx_http_latchkey_ctx_t  *ctx;

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_latchkey_ctx_t));
    if (cln == NULL) {
        return NULL;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_latchkey_ctx_t));

    ctx->request = r;
    ctx->conf = llcf;
    ctx->http_version = r->http_version;
    ctx->before = ngx_http_latchkey_asking(r);
    ctx->heard = r->upstream_states ? r->upstream_states->nelts : 0;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    cln->handler = ngx_http_latchkey_cleanup;
    ngx_http_set_ctx(r, ctx, ngx_http_latchkey_module);

    return ctx;
}


ngx_http_latchkey_ctx_t *
ngx_http_latchkey_get_ctx(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t       *cln;
    ngx_http_latchkey_ctx_t  *ctx;

    if (r != r->main) {
        return NULL;
    }

    ctx = ngx_http_get_module_ctx(r, ngx_http_latchkey_module);

    if (ctx == NULL && (r->internal || r->filter_finalize)) {

        /* a redirect has emptied r->ctx; the clean-up handler is still there */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_latchkey_cleanup) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_latchkey_module);
                break;
            }
        }
    }

    return ctx;
}


static void
ngx_http_latchkey_cleanup(void *data)
{
    ngx_http_latchkey_let_go(data);
}


ngx_http_request_t *
ngx_http_latchkey_enter(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_set_log_request(ctx->request->connection->log, ctx->request);

    ctx->waited += ngx_current_msec - ctx->wait_start;

    return ctx->request;
}


void
ngx_http_latchkey_post_action(ngx_http_latchkey_ctx_t *ctx)
{
    /* what was sent may be on its way yet, in memory of the op */

    if (ctx->state != NGX_HTTP_LATCHKEY_PASS
        && ctx->state != NGX_HTTP_LATCHKEY_DROP)
    {
        ngx_http_latchkey_let_go(ctx);
    }
}


void
ngx_http_latchkey_let_go(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_latchkey_await_cancel(&ctx->await);

    if (op) {
        op->contacted = ngx_http_latchkey_contacted(ctx, ctx->state);

        ctx->op = NULL;
        ngx_http_latchkey_op_detach(op);
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ctx->request->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;
}
