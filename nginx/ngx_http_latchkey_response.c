
/*
 * The answer on its way out: held until it is stored.
 *
 *   state    header filter            body filter
 *   -------  -----------------------  ------------------------------------
 *   RUN      classify; HOLD, SETTLE   -
 *   HOLD     -                        copy; at the end SETTLE
 *   SETTLE   -                        leave buffers with their owner
 *   SEND     -                        header, what is held, what is left
 *   REPLACE  -                        header and body of another answer
 *   DROP     -                        the app's answer is thrown away
 *   PASS     next filter              next filter
 *
 * "The answer leaves only after it is durably kept": SEND is entered from
 * the reply to the settlement and from nowhere else.
 *
 * HOLD, SETTLE, SEND and REPLACE keep a bit of r->buffered set, so that
 * nginx does not take the request for finished.  An answer too large to hold
 * is settled as omitted before its first byte leaves; its buffers wait
 * unconsumed meanwhile, which stops the upstream.
 *
 * In observe mode the answer is copied and goes out at once.  The courier does
 * not get the answer, but what became of it: always REPLACE.
 */


#include "ngx_http_latchkey_response.h"


static ngx_int_t ngx_http_latchkey_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_pass_header(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);


ngx_http_output_header_filter_pt  ngx_http_latchkey_next_header;
ngx_http_output_body_filter_pt    ngx_http_latchkey_next_body;


static ngx_int_t
ngx_http_latchkey_header_filter(ngx_http_request_t *r)
{
    ngx_http_latchkey_ctx_t       *ctx;
    ngx_http_latchkey_loc_conf_t  *llcf;

    ctx = ngx_http_latchkey_get_ctx(r);
    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    if (ctx && r->post_action) {
        ngx_http_latchkey_post_action(ctx);
    }

    /* without an upstream it is ours, for the courier */

    if (r->upstream && (ctx || llcf->mode != NGX_HTTP_LATCHKEY_OFF)) {
        ngx_http_latchkey_strip_word(r);
    }

    if (ctx == NULL || ctx->state != NGX_HTTP_LATCHKEY_RUN) {

        if (ngx_http_latchkey_courier_unseen(r, ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_latchkey_next_header(r);
    }

    ngx_http_latchkey_classify(r, ctx);

    r->main_filter_need_in_memory = 1;
    ctx->state = NGX_HTTP_LATCHKEY_HOLD;
    ctx->from_app = (r->upstream && r->upstream->cleanup);

    if (ctx->observe || ngx_http_latchkey_is_handed_over(r)) {
        return ngx_http_latchkey_pass_header(r, ctx);
    }

    r->buffered |= NGX_HTTP_LATCHKEY_BUFFERED;

    /*
     * The filter that cuts a body into ranges is before us, the one that
     * writes their header behind: holding would part them.
     */

    r->allow_ranges = 0;

    if (r->header_only) {
        ctx->complete = 1;
        return ngx_http_latchkey_settle(r, ctx);
    }

    if (ngx_http_latchkey_too_large(r, ctx)) {
        return ngx_http_latchkey_settle(r, ctx);
    }

    return NGX_OK;
}


/* observe; and what no filter can hold: a connection that is handed over */

static ngx_int_t
ngx_http_latchkey_pass_header(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_latchkey_next_header(r);

    if (ngx_http_latchkey_is_handed_over(r)) {
        ctx->op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        ngx_str_set(&ctx->op->reason, "the connection changed its protocol");
        ngx_http_latchkey_settle_aside(r, ctx);

    } else if (ctx->conf->no_body) {
        ngx_http_latchkey_omit(ctx->op, "this route keeps no bodies");
        ngx_http_latchkey_settle_aside(r, ctx);

    } else if (r->header_only) {
        ngx_http_latchkey_settle_aside(r, ctx);
    }

    return rc;
}


static ngx_int_t
ngx_http_latchkey_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = ngx_http_latchkey_get_ctx(r);

    if (ctx == NULL) {
        return ngx_http_latchkey_next_body(r, in);
    }

    switch (ctx->state) {

    case NGX_HTTP_LATCHKEY_HOLD:
        return ctx->observe ? ngx_http_latchkey_observe(r, ctx, in)
                            : ngx_http_latchkey_hold(r, ctx, in);

    case NGX_HTTP_LATCHKEY_SETTLE:
        return ngx_http_latchkey_leave(r, ctx, in);

    case NGX_HTTP_LATCHKEY_SEND:
        return ngx_http_latchkey_send_held(r, ctx, in);

    case NGX_HTTP_LATCHKEY_REPLACE:
        return ngx_http_latchkey_send_other(r, ctx, in);

    case NGX_HTTP_LATCHKEY_DROP:
        ngx_http_latchkey_drop(in);
        return ngx_http_latchkey_next_body(r, NULL);

    default:
        return ngx_http_latchkey_next_body(r, in);
    }
}


ngx_int_t
ngx_http_latchkey_filter_init(ngx_conf_t *cf)
{
    ngx_http_latchkey_next_header = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_latchkey_header_filter;

    ngx_http_latchkey_next_body = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_latchkey_body_filter;

    return NGX_OK;
}
