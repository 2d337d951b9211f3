
/*
 * From the verdict on a claim to what happens next: the app runs, the client
 * is told, or it waits for somebody else's result.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_say(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static ngx_int_t ngx_http_latchkey_note(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static void ngx_http_latchkey_resume(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_wait(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static void ngx_http_latchkey_waited(ngx_http_latchkey_await_t *await,
    ngx_int_t rc);
static void ngx_http_latchkey_wait_over(ngx_event_t *ev);
static void ngx_http_latchkey_claim_again(ngx_http_latchkey_ctx_t *ctx);


ngx_str_t  ngx_http_latchkey_said[] = {
#define X(name, word)  ngx_string(word),
    NGX_HTTP_LATCHKEY_VERDICTS(X)
#undef X
};


/* in the order of enum lk_verdict; those of a settlement do not come here */

static ngx_http_latchkey_said_e  ngx_http_latchkey_says[] = {
    NGX_HTTP_LATCHKEY_SAID_NEW,
    NGX_HTTP_LATCHKEY_SAID_REPLAY,
    NGX_HTTP_LATCHKEY_SAID_OMITTED,
    NGX_HTTP_LATCHKEY_SAID_INFLIGHT,
    NGX_HTTP_LATCHKEY_SAID_ACCEPTED,
    NGX_HTTP_LATCHKEY_SAID_UNCERTAIN,
    NGX_HTTP_LATCHKEY_SAID_MISMATCH,
    NGX_HTTP_LATCHKEY_SAID_LIMITED,
    NGX_HTTP_LATCHKEY_SAID_TOO_OLD
};


void
ngx_http_latchkey_verdict(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter(ctx);
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    rc = ngx_http_latchkey_decide(r, ctx, answer);

    if (rc == NGX_DECLINED) {
        ngx_http_latchkey_resume(r);

    } else if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


ngx_int_t
ngx_http_latchkey_decide(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    struct lk_decision  refused;

    if (ctx->courier) {
        return ngx_http_latchkey_courier_decide(r, ctx, answer);
    }

    if (answer == NULL && ctx->op->too_large) {
        ngx_memzero(&refused, sizeof(struct lk_decision));
        refused.verdict = LK_VERDICT_REFUSED;
        answer = &refused;
        ctx->too_large = 1;
    }

    if (ngx_http_latchkey_note(r, ctx, answer) != NGX_OK) {
        return ngx_http_latchkey_fail(ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_NEW) {

        if (ctx->later) {

            /* only an observer lets it run here */

            ctx->verdict = ctx->too_large ? NGX_HTTP_LATCHKEY_SAID_TOO_LARGE
                                          : NGX_HTTP_LATCHKEY_SAID_ACCEPTED;

            ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                          "idempotency observe: would not have run it now: "
                          "%V, reference %V",
                          &ngx_http_latchkey_said[ctx->verdict],
                          &ctx->reference);
        }

        return ngx_http_latchkey_run(r, ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_INFLIGHT
        && ctx->wait_until && !ctx->observe
        && (ngx_msec_int_t) (ctx->wait_until - ngx_current_msec) > 0)
    {
        return ngx_http_latchkey_wait(r, ctx, answer);
    }

    return ngx_http_latchkey_say(r, ctx, answer);
}


/* it does not run: the client is told why, an observer only looks on */

static ngx_int_t
ngx_http_latchkey_say(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_chain_t  *out;

    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    out = NULL;

    if (!ctx->observe) {
        out = ngx_http_latchkey_set_verdict(r, ctx, answer);
    }

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;

    if (ctx->observe) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency observe: would not have run it: %V%s%V",
                      &ngx_http_latchkey_said[ctx->verdict],
                      ctx->reference.len ? ", reference " : "",
                      &ctx->reference);
        return NGX_DECLINED;
    }

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_latchkey_finish(r, ngx_http_latchkey_send(r, out));

    return NGX_DONE;
}


/* for the logs; answer NULL: no daemon could decide */

static ngx_int_t
ngx_http_latchkey_note(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    if (answer == NULL || answer->verdict >= (sizeof(ngx_http_latchkey_says)
                                  / sizeof(ngx_http_latchkey_says[0])))
    {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_UNAVAILABLE;
        return NGX_OK;
    }

    ctx->verdict = ngx_http_latchkey_says[answer->verdict];

    if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_TOO_OLD && !ctx->too_old
        && ctx->too_large)
    {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_TOO_LARGE;
    }

    ctx->attempt = answer->attempt;
    ctx->reference.len = answer->reference.len;

    if (ctx->reference.len == 0) {
        return NGX_OK;
    }

    ctx->reference.data = ngx_pnalloc(r->pool, ctx->reference.len);
    if (ctx->reference.data == NULL) {
        ctx->reference.len = 0;
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->reference.data, answer->reference.data,
               ctx->reference.len);

    return NGX_OK;
}


ngx_int_t
ngx_http_latchkey_run(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_RUN;
    r->expect_tested = 0;                        /* see rewrite_handler */

    if (ctx->observe) {
        return NGX_DECLINED;
    }

    /* what is decided for an operation is not decided by a condition */

    r->disable_not_modified = 1;

    if (ngx_http_latchkey_pass_headers(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_latchkey_wrap_content(r, ctx);

    return NGX_DECLINED;
}


static void
ngx_http_latchkey_resume(ngx_http_request_t *r)
{
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
}


/* waiting for the first result */

static ngx_int_t
ngx_http_latchkey_wait(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_msec_t               left;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;
    left = ctx->wait_until - ngx_current_msec;

    ctx->state = NGX_HTTP_LATCHKEY_WAIT;
    ctx->wait_start = ngx_current_msec;
    ctx->await.handler = ngx_http_latchkey_waited;
    ctx->await.data = ctx;

    if (ngx_http_latchkey_await(ctx->conf->servers, &ctx->await, &op->tenant,
                                &op->scope, &op->key, left)
        != NGX_OK)
    {
        /* nobody will tell us: ask again when the daemon proposes */

        left = ngx_min(left, ngx_max((ngx_msec_t) answer->retry_after_ms,
                                     100));
    }

    ctx->timer.handler = ngx_http_latchkey_wait_over;
    ngx_add_timer(&ctx->timer, left);

    return NGX_DONE;
}


static void
ngx_http_latchkey_waited(ngx_http_latchkey_await_t *await, ngx_int_t rc)
{
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = await->data;

    if (rc == NGX_OK) {
        ngx_http_latchkey_claim_again(ctx);
        return;
    }

    if ((ngx_msec_int_t) (ctx->wait_until - ngx_current_msec) > 1000) {
        ngx_add_timer(&ctx->timer, 1000);
    }
}


static void
ngx_http_latchkey_wait_over(ngx_event_t *ev)
{
    ngx_http_latchkey_claim_again(ev->data);
}


static void
ngx_http_latchkey_claim_again(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter(ctx);
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_latchkey_await_cancel(&ctx->await);

    rc = ngx_http_latchkey_send_claim(r, ctx);

    if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}
