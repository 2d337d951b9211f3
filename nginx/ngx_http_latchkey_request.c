
/*
 * One guarded request: from the phase handler to the claim, and from the
 * verdict to what happens next.
 *
 * The handler is in the PRECONTENT phase: authentication and access checks
 * have passed, for a replay as for a first request, and neither try_files nor
 * the content handler has run.
 *
 * Life of a request in the gateway (ctx->state):
 *
 *   state    entered by                  left for
 *   -------  --------------------------  -----------------------------------
 *   PASS     a ctx starts here           BODY, once tenant and key are known
 *   BODY     begin_request               CLAIM; PASS if reading fails
 *   CLAIM    body_handler, claim_again   RUN (NEW), WAIT (INFLIGHT), PASS
 *   WAIT     wait_for_result             CLAIM, when settled or timed out
 *   RUN      run_request                 HOLD, in the header filter
 *   HOLD, SETTLE, SEND, REPLACE, DROP    see ngx_http_latchkey_response.c
 *   PASS     detach, or the response     the request is not guarded any more
 *            has left
 *
 * The ctx lives in the request's pool and ends with it.  Its clean-up handler
 * calls detach(): from then on the op settles and frees itself (op_detach),
 * because the operation outlives the request.  A ctx has an op from
 * claim_request() until detach(), until a verdict other than NEW is sent, or
 * until the response is settled.
 */


#include "ngx_http_latchkey_module.h"


/* observe: the app does not wait longer than this for a verdict */
#define NGX_HTTP_LATCHKEY_OBSERVE_WAIT  100


static ngx_http_latchkey_ctx_t *ngx_http_latchkey_create_ctx(
    ngx_http_request_t *r, ngx_http_latchkey_loc_conf_t *llcf);
static void ngx_http_latchkey_cleanup_ctx(void *data);
static ngx_uint_t ngx_http_latchkey_supersede(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_redirect_handler(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_begin_request(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_identify_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_refuse_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_verdict_e verdict,
    enum lk_problem_kind kind, const char *detail);
static void ngx_http_latchkey_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_claim_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_fail_request(ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_send_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_observe_over(ngx_event_t *ev);
static void ngx_http_latchkey_verdict_handler(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision);
static ngx_int_t ngx_http_latchkey_act_on_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static ngx_int_t ngx_http_latchkey_send_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static ngx_int_t ngx_http_latchkey_note_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static void ngx_http_latchkey_resume_phases(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_wait_for_result(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static void ngx_http_latchkey_await_handler(ngx_http_latchkey_await_t *await,
    ngx_int_t rc);
static void ngx_http_latchkey_wait_over(ngx_event_t *ev);
static void ngx_http_latchkey_claim_again(ngx_http_latchkey_ctx_t *ctx);


ngx_str_t  ngx_http_latchkey_verdict_words[] = {
#define X(name, word)  ngx_string(word),
    NGX_HTTP_LATCHKEY_VERDICTS(X)
#undef X
};


/* in the order of enum lk_verdict; verdicts of settlements are not in it */

static ngx_http_latchkey_verdict_e  ngx_http_latchkey_verdict_map[] = {
    NGX_HTTP_LATCHKEY_VERDICT_NEW,
    NGX_HTTP_LATCHKEY_VERDICT_REPLAY,
    NGX_HTTP_LATCHKEY_VERDICT_OMITTED,
    NGX_HTTP_LATCHKEY_VERDICT_INFLIGHT,
    NGX_HTTP_LATCHKEY_VERDICT_ACCEPTED,
    NGX_HTTP_LATCHKEY_VERDICT_UNCERTAIN,
    NGX_HTTP_LATCHKEY_VERDICT_MISMATCH,
    NGX_HTTP_LATCHKEY_VERDICT_LIMITED,
    NGX_HTTP_LATCHKEY_VERDICT_TOO_OLD
};


/* NULL: out of memory */

static ngx_http_latchkey_ctx_t *
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
    ctx->asked_before = ngx_http_latchkey_upstreams_asked(r);
    ctx->states_read = r->upstream_states ? r->upstream_states->nelts : 0;
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    cln->handler = ngx_http_latchkey_cleanup_ctx;
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

        /* a redirect cleared r->ctx; the clean-up handler is still there */

        for (cln = r->pool->cleanup; cln; cln = cln->next) {
            if (cln->handler == ngx_http_latchkey_cleanup_ctx) {
                ctx = cln->data;
                ngx_http_set_ctx(r, ctx, ngx_http_latchkey_module);
                break;
            }
        }
    }

    return ctx;
}


static void
ngx_http_latchkey_cleanup_ctx(void *data)
{
    ngx_http_latchkey_detach(data);
}


ngx_http_request_t *
ngx_http_latchkey_enter_request(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_set_log_request(ctx->request->connection->log, ctx->request);

    ctx->waited += ngx_current_msec - ctx->wait_start;

    return ctx->request;
}


void
ngx_http_latchkey_post_action(ngx_http_latchkey_ctx_t *ctx)
{
    /* PASS and DROP: a response may still be sent from the op's memory */

    if (ctx->state != NGX_HTTP_LATCHKEY_PASS
        && ctx->state != NGX_HTTP_LATCHKEY_DROP)
    {
        ngx_http_latchkey_detach(ctx);
    }
}


/*
 * From here on the op settles and frees itself, with its memory.  So while a
 * response is sent from that memory, the op is detached only by the clean-up
 * handler of the request.
 */

void
ngx_http_latchkey_detach(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_latchkey_await_cancel(&ctx->await);

    if (op) {
        op->contacted = ngx_http_latchkey_may_have_run(ctx, ctx->state);

        ctx->op = NULL;
        ngx_http_latchkey_op_detach(op);
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ctx->request->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;
}


/*
 * The phase handler.  It runs again after each internal redirect, and while
 * the claim or the wait is in progress: then it returns NGX_DONE.
 */

ngx_int_t
ngx_http_latchkey_handler(ngx_http_request_t *r)
{
    ngx_http_latchkey_ctx_t       *ctx;
    ngx_http_latchkey_loc_conf_t  *llcf;

    if (r != r->main) {
        return NGX_DECLINED;
    }

    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    ctx = ngx_http_latchkey_get_ctx(r);

    if (ctx && r->post_action) {
        ngx_http_latchkey_post_action(ctx);
        return NGX_DECLINED;
    }

    if (ctx == NULL || ngx_http_latchkey_supersede(r, ctx, llcf)) {
        if (llcf->mode == NGX_HTTP_LATCHKEY_OFF
            && !ngx_http_latchkey_is_courier(r))
        {
            return NGX_DECLINED;
        }

        return ngx_http_latchkey_begin_request(r, llcf);
    }

    switch (ctx->state) {

    case NGX_HTTP_LATCHKEY_BODY:

        /* reading the body failed, and error_page led here */

        ctx->state = NGX_HTTP_LATCHKEY_PASS;
        return NGX_DECLINED;

    case NGX_HTTP_LATCHKEY_CLAIM:
        return ctx->op ? NGX_DONE : ngx_http_latchkey_claim_request(r, ctx);

    case NGX_HTTP_LATCHKEY_WAIT:
        return NGX_DONE;

    case NGX_HTTP_LATCHKEY_RUN:
        return ngx_http_latchkey_redirect_handler(r, ctx);

    default:
        return NGX_DECLINED;
    }
}


/*
 * Runs before the rewrite directives of a location to which a claimed request
 * is redirected, and clears r->expect_tested.  After the body was read, nginx
 * sets it only when it makes an error page of its own: so it shows whether
 * there was such a page since the redirect; see classify().
 */

ngx_int_t
ngx_http_latchkey_rewrite_handler(ngx_http_request_t *r)
{
    ngx_http_latchkey_ctx_t  *ctx;

    if (r == r->main && r->internal) {
        ctx = ngx_http_latchkey_get_ctx(r);

        if (ctx && ctx->state == NGX_HTTP_LATCHKEY_RUN) {
            r->expect_tested = 0;
        }
    }

    return NGX_DECLINED;
}


/*
 * 1: the request was redirected here from a location that only observed it, or
 * that let it pass without a key, and this location is stricter: the request
 * starts again here.
 */

static ngx_uint_t
ngx_http_latchkey_supersede(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->mode <= ctx->conf->mode
        || (!ctx->observe && ctx->verdict != NGX_HTTP_LATCHKEY_VERDICT_PASSED)
        || ctx->state == NGX_HTTP_LATCHKEY_BODY
        || ctx->state == NGX_HTTP_LATCHKEY_CLAIM)
    {
        return 0;
    }

    /* an operation that was only observed is released */

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ngx_http_latchkey_detach(ctx);

    return 1;
}


/*
 * An internal redirect stays within the operation: error_page may lead to a
 * page, or to another app if the first one was not reached or has responded.
 * If it is not known what the first app did, a second one must not run.
 */

static ngx_int_t
ngx_http_latchkey_redirect_handler(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_chain_t  *out;

    ctx->asked_until = ngx_http_latchkey_upstreams_asked(r);
    ctx->handled = (r->content_handler != NULL);

    if (ngx_http_latchkey_update_app(r, ctx)
        != NGX_HTTP_LATCHKEY_APP_UNKNOWN)
    {

        if (!ctx->observe) {
            ngx_http_latchkey_wrap_content(r, ctx);
        }

        return NGX_DECLINED;
    }

    if (ctx->observe || r->content_handler == NULL) {
        return NGX_DECLINED;
    }

    out = ngx_http_latchkey_set_lost(r, ctx);

    /* the status of error_page, such as "=200", was for another response */

    r->err_status = 0;

    /* the filters hold it like any response, until the doubt is stored */

    ngx_http_finalize_request(r, ngx_http_latchkey_send_response(r, out));

    return NGX_DONE;
}


/*
 * Reads tenant and key, then the body; body_handler() continues.  A request of
 * the courier is already claimed and names its operation.
 */

static ngx_int_t
ngx_http_latchkey_begin_request(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_int_t                 rc;
    ngx_uint_t                courier;
    ngx_http_latchkey_ctx_t  *ctx;

    courier = ngx_http_latchkey_is_courier(r);

    if (!courier) {
        if (llcf->mode != NGX_HTTP_LATCHKEY_OBSERVE
            && ngx_http_latchkey_strip_headers(r) != NGX_OK)
        {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        if (!(r->method & llcf->methods)) {
            return NGX_DECLINED;
        }
    }

    ctx = ngx_http_latchkey_create_ctx(r, llcf);
    if (ctx == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx->courier = courier;
    ctx->observe = (llcf->mode == NGX_HTTP_LATCHKEY_OBSERVE && !courier);

    rc = courier ? ngx_http_latchkey_courier_identify(r, ctx)
                 : ngx_http_latchkey_identify_request(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    if (!courier) {
        ngx_http_latchkey_async_check(r, ctx);
    }

    ctx->state = NGX_HTTP_LATCHKEY_BODY;
    r->request_body_in_single_buf = 1;

    if (r->method == NGX_HTTP_PUT && r->content_handler == NULL) {

        /* "dav_methods PUT" moves the file, like ngx_http_dav_handler() */

        r->request_body_in_file_only = 1;
        r->request_body_in_persistent_file = 1;
        r->request_body_in_clean_file = 1;
        r->request_body_file_group_access = 1;
        r->request_body_file_log_level = 0;
    }

    rc = ngx_http_read_client_request_body(r, ngx_http_latchkey_body_handler);
    if (rc >= NGX_HTTP_SPECIAL_RESPONSE) {
        ctx->state = NGX_HTTP_LATCHKEY_PASS;
        return rc;
    }

    ngx_http_finalize_request(r, NGX_DONE);

    return NGX_DONE;
}


/* NGX_OK: claim it.  Otherwise the value that the phase handler returns. */

static ngx_int_t
ngx_http_latchkey_identify_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t    rc;
    ngx_str_t    value;
    const char  *fault;

    rc = ngx_http_latchkey_get_key(r, &value);

    if (rc == NGX_DECLINED) {

        if (ctx->conf->mode == NGX_HTTP_LATCHKEY_REQUIRED) {
            return ngx_http_latchkey_refuse_request(r, ctx,
                                        NGX_HTTP_LATCHKEY_VERDICT_KEY_MISSING,
                                        LK_PROBLEM_KEY_MISSING,
                                        "This operation is only safe to "
                                        "retry with a key: send a header "
                                        "Idempotency-Key with a value that "
                                        "is unique to the operation.");
        }

        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_PASSED;
        return NGX_DECLINED;
    }

    fault = (rc == NGX_OK) ? ngx_http_latchkey_parse_key(r, ctx, &value)
                           : "the header was sent twice";

    if (fault) {
        return ngx_http_latchkey_refuse_request(r, ctx,
                                    NGX_HTTP_LATCHKEY_VERDICT_KEY_INVALID,
                                    LK_PROBLEM_KEY_INVALID, fault);
    }

    rc = ngx_http_latchkey_get_tenant(r, ctx->conf, &ctx->tenant);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_refuse_request(r, ctx,
                                    NGX_HTTP_LATCHKEY_VERDICT_TENANT_MISSING,
                                    LK_PROBLEM_TENANT_MISSING,
                                    "A key belongs to a caller, and this "
                                    "request does not identify its caller.");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* the fingerprint would contain one of them, the app may use the other */

    if (ngx_http_latchkey_count_headers(r, "content-type") > 1) {
        return ngx_http_latchkey_refuse_request(r, ctx,
                                    NGX_HTTP_LATCHKEY_VERDICT_REQUEST_INVALID,
                                    LK_PROBLEM_REQUEST_INVALID,
                                    "The header Content-Type was sent "
                                    "twice: send one.");
    }

    return NGX_OK;
}


/*
 * Sends a problem document for a request that claims nothing; in observe mode
 * only logs it and lets the request pass.
 */

static ngx_int_t
ngx_http_latchkey_refuse_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_verdict_e verdict,
    enum lk_problem_kind kind, const char *detail)
{
    struct lk_problem  problem;

    ctx->verdict = verdict;
    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    if (ctx->observe) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency observe: would have refused: %V",
                      &ngx_http_latchkey_verdict_words[verdict]);
        return NGX_DECLINED;
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));
    problem.kind = kind;
    problem.detail = latchkey_slice(detail);

    ngx_http_latchkey_finalize(r,
                               ngx_http_latchkey_send_problem(r, &problem, 0));

    return NGX_DONE;
}


/* Keeps the body for the app and runs the phases again: handler() claims. */

static void
ngx_http_latchkey_body_handler(ngx_http_request_t *r)
{
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_latchkey_module);

    ctx->state = NGX_HTTP_LATCHKEY_CLAIM;

    r->preserve_body = 1;

    r->write_event_handler = ngx_http_core_run_phases;
    ngx_http_core_run_phases(r);
}


/*
 * Makes the op and claims.  From here on ctx->op is set.  Every path ends it:
 * detach(), a verdict that is sent, or the settlement.
 */

static ngx_int_t
ngx_http_latchkey_claim_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_str_t                scope;
    ngx_http_latchkey_op_t  *op;

    if (ctx->courier) {
        ctx->op = ngx_http_latchkey_courier_op(ctx);

        return ctx->op ? ngx_http_latchkey_send_claim(r, ctx)
                       : ngx_http_latchkey_fail_request(ctx);
    }

    if (ngx_http_latchkey_get_scope(r, ctx->conf, &scope) != NGX_OK) {
        return ngx_http_latchkey_fail_request(ctx);
    }

    op = ngx_http_latchkey_op_create(ctx, &ctx->tenant, &scope, &ctx->key);
    if (op == NULL) {
        return ngx_http_latchkey_fail_request(ctx);
    }

    ctx->op = op;

    if (ngx_http_latchkey_fingerprint_request(r, ctx, op->fingerprint)
        != NGX_OK)
    {
        return ngx_http_latchkey_fail_request(ctx);
    }

    if (ngx_http_latchkey_check_age(r, ctx->conf, &ctx->key,
                                    &ctx->too_old_detail)
        != NGX_OK)
    {
        /* a stored response may still be sent, but nothing is started */

        ctx->too_old = 1;
        op->no_new = 1;
    }

    rc = ctx->later ? ngx_http_latchkey_async_prepare(r, ctx) : NGX_OK;

    if (rc != NGX_OK) {
        ngx_http_latchkey_detach(ctx);
        return rc == NGX_ERROR ? NGX_HTTP_INTERNAL_SERVER_ERROR : rc;
    }

    if (ctx->conf->wait) {
        ctx->wait_until = ngx_current_msec + ctx->conf->wait;
    }

    return ngx_http_latchkey_send_claim(r, ctx);
}


/* nothing was claimed: the error page is not part of an operation */

static ngx_int_t
ngx_http_latchkey_fail_request(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_detach(ctx);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* claims, or claims again; returns like a phase handler */

static ngx_int_t
ngx_http_latchkey_send_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t  rc;

    ctx->state = NGX_HTTP_LATCHKEY_CLAIM;
    ctx->wait_start = ngx_current_msec;

    rc = ngx_http_latchkey_op_claim(ctx->op,
                                    ngx_http_latchkey_verdict_handler);

    if (rc == NGX_ERROR) {
        return ngx_http_latchkey_fail_request(ctx);
    }

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_act_on_verdict(r, ctx, NULL);
    }

    if (ctx->observe) {
        ctx->timer.handler = ngx_http_latchkey_observe_over;
        ngx_add_timer(&ctx->timer, NGX_HTTP_LATCHKEY_OBSERVE_WAIT);
    }

    /*
     * until the verdict, a client that leaves is noticed: nothing has run yet
     */

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    if (r->connection->read->ready) {
        ngx_post_event(r->connection->read, &ngx_posted_events);

    } else if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        return ngx_http_latchkey_fail_request(ctx);
    }

    return NGX_DONE;
}


static void
ngx_http_latchkey_observe_over(ngx_event_t *ev)
{
    ngx_http_latchkey_verdict_handler(ev->data, NULL);
}


/* decision NULL: no daemon could decide in time */

static void
ngx_http_latchkey_verdict_handler(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter_request(ctx);
    c = r->connection;

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    rc = ngx_http_latchkey_act_on_verdict(r, ctx, decision);

    if (rc == NGX_DECLINED) {
        ngx_http_latchkey_resume_phases(r);

    } else if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * NGX_DECLINED: continue to the app.  NGX_DONE: a response was sent, or the
 * request waits.
 */

static ngx_int_t
ngx_http_latchkey_act_on_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    struct lk_decision  refused;

    if (ctx->courier) {
        return ngx_http_latchkey_courier_decide(r, ctx, decision);
    }

    if (decision == NULL && ctx->op->too_large) {
        ngx_memzero(&refused, sizeof(struct lk_decision));
        refused.verdict = LK_VERDICT_REFUSED;
        decision = &refused;
        ctx->too_large = 1;
    }

    if (ngx_http_latchkey_note_verdict(r, ctx, decision) != NGX_OK) {
        return ngx_http_latchkey_fail_request(ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_VERDICT_NEW) {

        if (ctx->later) {

            /* only observe mode lets it run here */

            ctx->verdict = ctx->too_large ? NGX_HTTP_LATCHKEY_VERDICT_TOO_LARGE
                                          : NGX_HTTP_LATCHKEY_VERDICT_ACCEPTED;

            ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                          "idempotency observe: would not have run it now: "
                          "%V, reference %V",
                          &ngx_http_latchkey_verdict_words[ctx->verdict],
                          &ctx->reference);
        }

        return ngx_http_latchkey_run_request(r, ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_VERDICT_INFLIGHT
        && ctx->wait_until && !ctx->observe
        && (ngx_msec_int_t) (ctx->wait_until - ngx_current_msec) > 0)
    {
        return ngx_http_latchkey_wait_for_result(r, ctx, decision);
    }

    return ngx_http_latchkey_send_verdict(r, ctx, decision);
}


/* the app does not run: sends the reason; in observe mode only logs it */

static ngx_int_t
ngx_http_latchkey_send_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ngx_chain_t  *out;

    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    out = NULL;

    if (!ctx->observe) {
        out = ngx_http_latchkey_set_verdict(r, ctx, decision);
    }

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;

    if (ctx->observe) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency observe: would not have run it: %V%s%V",
                      &ngx_http_latchkey_verdict_words[ctx->verdict],
                      ctx->reference.len ? ", reference " : "",
                      &ctx->reference);
        return NGX_DECLINED;
    }

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_latchkey_finalize(r, ngx_http_latchkey_send_response(r, out));

    return NGX_DONE;
}


/* remembers it for logs and counters; decision NULL: no daemon could decide */

static ngx_int_t
ngx_http_latchkey_note_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    if (decision == NULL
        || decision->verdict >= (sizeof(ngx_http_latchkey_verdict_map)
                                 / sizeof(ngx_http_latchkey_verdict_map[0])))
    {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_UNAVAILABLE;
        return NGX_OK;
    }

    ctx->verdict = ngx_http_latchkey_verdict_map[decision->verdict];

    if (ctx->verdict == NGX_HTTP_LATCHKEY_VERDICT_TOO_OLD && !ctx->too_old
        && ctx->too_large)
    {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_TOO_LARGE;
    }

    ctx->attempt = decision->attempt;
    ctx->reference.len = decision->reference.len;

    if (ctx->reference.len == 0) {
        return NGX_OK;
    }

    ctx->reference.data = ngx_pnalloc(r->pool, ctx->reference.len);
    if (ctx->reference.data == NULL) {
        ctx->reference.len = 0;
        return NGX_ERROR;
    }

    ngx_memcpy(ctx->reference.data, decision->reference.data,
               ctx->reference.len);

    return NGX_OK;
}


/*
 * The claim is durable by now, so the app may run.  From here on only
 * classify() decides what the operation becomes.
 */

ngx_int_t
ngx_http_latchkey_run_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_RUN;
    r->expect_tested = 0;                        /* see rewrite_handler */

    if (ctx->observe) {
        return NGX_DECLINED;
    }

    /* If-None-Match and similar do not apply: a replay is the same for all */

    r->disable_not_modified = 1;

    if (ngx_http_latchkey_pass_headers(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_http_latchkey_wrap_content(r, ctx);

    return NGX_DECLINED;
}


static void
ngx_http_latchkey_resume_phases(ngx_http_request_t *r)
{
    r->read_event_handler = ngx_http_block_reading;
    r->write_event_handler = ngx_http_core_run_phases;

    ngx_http_core_run_phases(r);
}


/* waits for the result of the key's first request */

static ngx_int_t
ngx_http_latchkey_wait_for_result(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ngx_msec_t               left;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;
    left = ctx->wait_until - ngx_current_msec;

    ctx->state = NGX_HTTP_LATCHKEY_WAIT;
    ctx->wait_start = ngx_current_msec;
    ctx->await.handler = ngx_http_latchkey_await_handler;
    ctx->await.data = ctx;

    if (ngx_http_latchkey_await(ctx->conf->servers, &ctx->await, &op->tenant,
                                &op->scope, &op->key, left)
        != NGX_OK)
    {
        /* no message will come: claim again after the daemon's retry time */

        left = ngx_min(left, ngx_max((ngx_msec_t) decision->retry_after_ms,
                                     100));
    }

    ctx->timer.handler = ngx_http_latchkey_wait_over;
    ngx_add_timer(&ctx->timer, left);

    return NGX_DONE;
}


/*
 * Settled: claims again at once.  The connection broke: claims again soon, by
 * the timer.
 */

static void
ngx_http_latchkey_await_handler(ngx_http_latchkey_await_t *await, ngx_int_t rc)
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

    r = ngx_http_latchkey_enter_request(ctx);
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
