
/*
 * The operation is settled by the answer that is held, and what the daemon
 * says to that decides which answer goes out.
 */


#include "ngx_http_latchkey_response.h"


static void ngx_http_latchkey_settled(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer);
static ngx_int_t ngx_http_latchkey_outcome(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static void ngx_http_latchkey_tell_courier(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static void ngx_http_latchkey_not_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_overtaken(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_asked(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer);
static void ngx_http_latchkey_use_kept(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
static ngx_http_latchkey_did_e ngx_http_latchkey_did_of(
    ngx_http_latchkey_op_t *op, const struct lk_decision *answer);
static ngx_uint_t ngx_http_latchkey_is_own(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer);
static void ngx_http_latchkey_replace(ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *out);


ngx_str_t  ngx_http_latchkey_did[] = {
#define X(name, word)  ngx_string(word),
    NGX_HTTP_LATCHKEY_OUTCOMES(X)
#undef X
};


/* in the order of ngx_http_latchkey_settle_e */

static ngx_http_latchkey_did_e  ngx_http_latchkey_outcomes[] = {
    NGX_HTTP_LATCHKEY_DID_KEPT,
    NGX_HTTP_LATCHKEY_DID_OMITTED,
    NGX_HTTP_LATCHKEY_DID_RELEASED,
    NGX_HTTP_LATCHKEY_DID_DOUBTED
};


ngx_int_t
ngx_http_latchkey_settle(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_SETTLE;
    ctx->wait_start = ngx_current_msec;

    if (ngx_http_latchkey_store_headers(r, ctx) != NGX_OK
        || ngx_http_latchkey_op_settle(ctx->op, ngx_http_latchkey_settled)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


void
ngx_http_latchkey_settle_aside(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ctx->outcome = ngx_http_latchkey_outcomes[ctx->op->settle];

    (void) ngx_http_latchkey_store_headers(r, ctx);
    (void) ngx_http_latchkey_op_settle(ctx->op, NULL);

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;
}


static void
ngx_http_latchkey_settled(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter(ctx);
    c = r->connection;

    if (ngx_http_latchkey_outcome(r, ctx, answer) == NGX_OK) {
        ngx_http_latchkey_wake(r);
    }

    ngx_http_run_posted_requests(c);
}


/* NGX_OK: it is known what goes out.  NGX_AGAIN: a question is on its way. */

static ngx_int_t
ngx_http_latchkey_outcome(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (ctx->courier) {
        ngx_http_latchkey_tell_courier(r, ctx, answer);
        return NGX_OK;
    }

    if (answer == NULL) {
        ngx_http_latchkey_not_stored(r, ctx);
        return NGX_OK;
    }

    ctx->outcome = ngx_http_latchkey_did_of(op, answer);

    if (answer->verdict == LK_VERDICT_STALE
        && op->settle != NGX_HTTP_LATCHKEY_SETTLE_RELEASE)
    {
        return ngx_http_latchkey_overtaken(r, ctx);
    }

    if (answer->verdict == LK_VERDICT_KEPT) {
        ngx_http_latchkey_use_kept(r, ctx, answer);
        return NGX_OK;
    }

    if (ngx_http_latchkey_has_no_answer(ctx)) {
        ngx_http_latchkey_replace(ctx, ngx_http_latchkey_set_instead(r, ctx));
        return NGX_OK;
    }

    ctx->state = NGX_HTTP_LATCHKEY_SEND;

    return NGX_OK;
}


/* KEPT: whatever was asked for, the operation is completed */

static ngx_http_latchkey_did_e
ngx_http_latchkey_did_of(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer)
{
    if (answer->verdict != LK_VERDICT_KEPT) {
        return ngx_http_latchkey_outcomes[op->settle];
    }

    return answer->reason.len ? NGX_HTTP_LATCHKEY_DID_OMITTED
                              : NGX_HTTP_LATCHKEY_DID_KEPT;
}


/*
 * KEPT: completed before, by the app itself, or from here and the reply was
 * lost.  Retries will get what is stored, so this client does.  An answer that
 * is the same keeps its own headers that are not stored, such as cookies.
 */

static void
ngx_http_latchkey_use_kept(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    ctx->expires_ms = answer->expires_ms;

    if (ngx_http_latchkey_is_own(ctx->op, answer)
        && (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT
            || ngx_http_latchkey_take_headers(r, ctx, answer) == NGX_OK))
    {
        ctx->state = NGX_HTTP_LATCHKEY_SEND;
        return;
    }

    ngx_http_latchkey_replace(ctx,
                              ngx_http_latchkey_set_verdict(r, ctx, answer));
}


static void
ngx_http_latchkey_tell_courier(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    ctx->outcome = answer == NULL ? NGX_HTTP_LATCHKEY_DID_LATE
                   : answer->verdict == LK_VERDICT_STALE
                     ? NGX_HTTP_LATCHKEY_DID_STALE
                     : ngx_http_latchkey_did_of(ctx->op, answer);

    ngx_http_latchkey_replace(ctx,
                          ngx_http_latchkey_courier_outcome(r, ctx, answer));
}


/* no answer came from the daemon in time */

static void
ngx_http_latchkey_not_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->outcome = NGX_HTTP_LATCHKEY_DID_LATE;

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
        || ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT)
    {
        ngx_http_latchkey_replace(ctx,
            ngx_http_latchkey_unknown(r, ctx, NGX_HTTP_SERVICE_UNAVAILABLE,
                                      "The request was processed, but its "
                                      "answer could not be stored yet; send "
                                      "the same request again later."));
        return;
    }

    if (ngx_http_latchkey_has_no_answer(ctx)) {
        ngx_http_latchkey_replace(ctx, ngx_http_latchkey_set_instead(r, ctx));
        return;
    }

    /* what the app said stands; only the record is behind */

    ctx->state = NGX_HTTP_LATCHKEY_SEND;
}


/* STALE: what the app said is not used */

static ngx_int_t
ngx_http_latchkey_overtaken(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: operation %V was decided elsewhere while "
                  "the app worked; its answer is not used",
                  &ctx->reference);

    ctx->outcome = NGX_HTTP_LATCHKEY_DID_STALE;
    ctx->wait_start = ngx_current_msec;

    /* the client waits for a second answer of the daemon */

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    ngx_add_timer(r->connection->write, clcf->send_timeout);

    if (ngx_http_latchkey_op_ask(ctx->op, ngx_http_latchkey_asked) == NGX_OK) {
        return NGX_AGAIN;
    }

    ngx_http_latchkey_replace(ctx,
        ngx_http_latchkey_unknown(r, ctx, NGX_HTTP_CONFLICT,
                                  "The request was processed, but it was "
                                  "decided elsewhere meanwhile."));
    return NGX_OK;
}


/* after STALE: what the operation is now */

static void
ngx_http_latchkey_asked(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter(ctx);
    c = r->connection;

    ngx_http_latchkey_replace(ctx, answer
        ? ngx_http_latchkey_set_verdict(r, ctx, answer)
        : ngx_http_latchkey_unknown(r, ctx, NGX_HTTP_SERVICE_UNAVAILABLE,
                                    "The request was processed, but it was "
                                    "decided elsewhere meanwhile."));

    ngx_http_latchkey_wake(r);

    ngx_http_run_posted_requests(c);
}


/* is what the daemon kept what it was sent from here, but for headers? */

static ngx_uint_t
ngx_http_latchkey_is_own(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer)
{
    if (answer->response.status != op->status) {
        return 0;
    }

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT) {
        return latchkey_slice_equal(answer->reason,
                                    ngx_http_latchkey_slice(&op->reason));
    }

    return op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
           && answer->reason.len == 0
           && latchkey_slice_equal(answer->response.body,
                                ngx_http_latchkey_slice(&op->answer_body));
}


/* the held answer is not needed any more: the op goes its own way */

static void
ngx_http_latchkey_replace(ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *out)
{
    ctx->state = NGX_HTTP_LATCHKEY_REPLACE;
    ctx->other = out;

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;
}
