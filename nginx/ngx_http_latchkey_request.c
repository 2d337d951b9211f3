
/*
 * From a request to a claim.
 *
 * The handler stands in the precontent phase: authentication and access
 * checks have passed, on a replay as on a first request, and neither
 * try_files nor the content handler has been asked yet.
 */


#include "ngx_http_latchkey_module.h"


/* observe: the app does not wait longer than this for a verdict */
#define NGX_HTTP_LATCHKEY_OBSERVE_WAIT  100


static ngx_uint_t ngx_http_latchkey_is_weaker(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_redirected(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_begin(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_identify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_refuse(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_said_e verdict,
    enum lk_problem_kind kind, const char *detail);
static void ngx_http_latchkey_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_observe_over(ngx_event_t *ev);


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

    if (ctx == NULL || ngx_http_latchkey_is_weaker(r, ctx, llcf)) {
        if (llcf->mode == NGX_HTTP_LATCHKEY_OFF
            && !ngx_http_latchkey_is_courier(r))
        {
            return NGX_DECLINED;
        }

        return ngx_http_latchkey_begin(r, llcf);
    }

    switch (ctx->state) {

    case NGX_HTTP_LATCHKEY_BODY:

        /* the body failed, and error_page has led here */

        ctx->state = NGX_HTTP_LATCHKEY_PASS;
        return NGX_DECLINED;

    case NGX_HTTP_LATCHKEY_CLAIM:
        return ctx->op ? NGX_DONE : ngx_http_latchkey_claim(r, ctx);

    case NGX_HTTP_LATCHKEY_WAIT:
        return NGX_DONE;

    case NGX_HTTP_LATCHKEY_RUN:
        return ngx_http_latchkey_redirected(r, ctx);

    default:
        return NGX_DECLINED;
    }
}


/*
 * Before the rewrite directives of a location that a claimed request is led
 * to.  nginx sets expect_tested when it makes an error page of its own, and
 * for nothing else once the body was read: so it tells whether there was one
 * since, see class.
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
 * Came here through a location that only looked on, or that let a request
 * without a key pass?  Then what this one asks for has not been done yet.
 */

static ngx_uint_t
ngx_http_latchkey_is_weaker(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->mode <= ctx->conf->mode
        || (!ctx->observe && ctx->verdict != NGX_HTTP_LATCHKEY_SAID_PASSED)
        || ctx->state == NGX_HTTP_LATCHKEY_BODY
        || ctx->state == NGX_HTTP_LATCHKEY_CLAIM)
    {
        return 0;
    }

    /* an operation that was only looked at is free again */

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ngx_http_latchkey_let_go(ctx);

    return 1;
}


/*
 * An internal redirect stays within the operation: error_page may lead to a
 * page, or to another app if the first one was not reached or has answered.
 * But where one app may have run, a second one must not.
 */

static ngx_int_t
ngx_http_latchkey_redirected(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_chain_t  *out;

    ctx->led = ngx_http_latchkey_asking(r);
    ctx->handled = (r->content_handler != NULL);

    if (!ngx_http_latchkey_in_doubt(r, ctx)) {

        if (!ctx->observe) {
            ngx_http_latchkey_wrap_content(r, ctx);
        }

        return NGX_DECLINED;
    }

    if (ctx->observe || r->content_handler == NULL) {
        return NGX_DECLINED;
    }

    out = ngx_http_latchkey_set_lost(r, ctx);

    /* whatever error_page calls it: "=200" was meant for another answer */

    r->err_status = 0;

    /* held by the filters as any answer, until the doubt is stored */

    ngx_http_finalize_request(r, ngx_http_latchkey_send(r, out));

    return NGX_DONE;
}


static ngx_int_t
ngx_http_latchkey_begin(ngx_http_request_t *r,
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
                 : ngx_http_latchkey_identify(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    if (!courier) {
        ngx_http_latchkey_async_wish(r, ctx);
    }

    ctx->state = NGX_HTTP_LATCHKEY_BODY;
    r->request_body_in_single_buf = 1;

    if (r->method == NGX_HTTP_PUT && r->content_handler == NULL) {

        /* "dav_methods PUT" moves the file: as ngx_http_dav_handler() has it */

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


/* NGX_OK: claim it.  Else what the phase handler returns. */

static ngx_int_t
ngx_http_latchkey_identify(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t    rc;
    ngx_str_t    value;
    const char  *fault;

    rc = ngx_http_latchkey_get_key(r, &value);

    if (rc == NGX_DECLINED) {

        if (ctx->conf->mode == NGX_HTTP_LATCHKEY_REQUIRED) {
            return ngx_http_latchkey_refuse(r, ctx,
                                        NGX_HTTP_LATCHKEY_SAID_KEY_MISSING,
                                        LK_PROBLEM_KEY_MISSING,
                                        "This operation is only safe to "
                                        "retry with a key: send a header "
                                        "Idempotency-Key with a value that "
                                        "is unique to the operation.");
        }

        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_PASSED;
        return NGX_DECLINED;
    }

    fault = (rc == NGX_OK) ? ngx_http_latchkey_parse_key(r, ctx, &value)
                           : "the header was sent twice";

    if (fault) {
        return ngx_http_latchkey_refuse(r, ctx,
                                        NGX_HTTP_LATCHKEY_SAID_KEY_INVALID,
                                        LK_PROBLEM_KEY_INVALID, fault);
    }

    rc = ngx_http_latchkey_get_tenant(r, ctx->conf, &ctx->tenant);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_refuse(r, ctx,
                                        NGX_HTTP_LATCHKEY_SAID_TENANT_MISSING,
                                        LK_PROBLEM_TENANT_MISSING,
                                        "A key belongs to a caller, and this "
                                        "request does not say who it is "
                                        "from.");
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* the fingerprint is of one of them, and the app may take another */

    if (ngx_http_latchkey_count_headers(r, "content-type") > 1) {
        return ngx_http_latchkey_refuse(r, ctx,
                                        NGX_HTTP_LATCHKEY_SAID_REQUEST_INVALID,
                                        LK_PROBLEM_REQUEST_INVALID,
                                        "The header Content-Type was sent "
                                        "twice: send one.");
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_refuse(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_said_e verdict, enum lk_problem_kind kind,
    const char *detail)
{
    struct lk_problem  problem;

    ctx->verdict = verdict;
    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    if (ctx->observe) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "idempotency observe: would have refused: %V",
                      &ngx_http_latchkey_said[verdict]);
        return NGX_DECLINED;
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));
    problem.kind = kind;
    problem.detail = latchkey_slice(detail);

    ngx_http_latchkey_finish(r, ngx_http_latchkey_send_problem(r, &problem,
                                                               0));

    return NGX_DONE;
}


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


static ngx_int_t
ngx_http_latchkey_claim(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t                rc;
    ngx_str_t                scope;
    ngx_http_latchkey_op_t  *op;

    if (ctx->courier) {
        ctx->op = ngx_http_latchkey_courier_op(ctx);

        return ctx->op ? ngx_http_latchkey_send_claim(r, ctx)
                       : ngx_http_latchkey_fail(ctx);
    }

    if (ngx_http_latchkey_get_scope(r, ctx->conf, &scope) != NGX_OK) {
        return ngx_http_latchkey_fail(ctx);
    }

    op = ngx_http_latchkey_op_create(ctx, &ctx->tenant, &scope, &ctx->key);
    if (op == NULL) {
        return ngx_http_latchkey_fail(ctx);
    }

    ctx->op = op;

    if (ngx_http_latchkey_fingerprint_request(r, ctx, op->fingerprint)
        != NGX_OK)
    {
        return ngx_http_latchkey_fail(ctx);
    }

    if (ngx_http_latchkey_check_age(r, ctx->conf, &ctx->key,
                                    &ctx->too_old_detail)
        != NGX_OK)
    {
        /* a stored answer may still be given, but nothing is started */

        ctx->too_old = 1;
        op->no_new = 1;
    }

    rc = ctx->later ? ngx_http_latchkey_async_order(r, ctx) : NGX_OK;

    if (rc != NGX_OK) {
        ngx_http_latchkey_let_go(ctx);
        return rc == NGX_ERROR ? NGX_HTTP_INTERNAL_SERVER_ERROR : rc;
    }

    if (ctx->conf->wait) {
        ctx->wait_until = ngx_current_msec + ctx->conf->wait;
    }

    return ngx_http_latchkey_send_claim(r, ctx);
}


ngx_int_t
ngx_http_latchkey_fail(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_let_go(ctx);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


ngx_int_t
ngx_http_latchkey_send_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t  rc;

    ctx->state = NGX_HTTP_LATCHKEY_CLAIM;
    ctx->wait_start = ngx_current_msec;

    rc = ngx_http_latchkey_op_claim(ctx->op, ngx_http_latchkey_verdict);

    if (rc == NGX_ERROR) {
        return ngx_http_latchkey_fail(ctx);
    }

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_decide(r, ctx, NULL);
    }

    if (ctx->observe) {
        ctx->timer.handler = ngx_http_latchkey_observe_over;
        ngx_add_timer(&ctx->timer, NGX_HTTP_LATCHKEY_OBSERVE_WAIT);
    }

    /* until the verdict is there, a client that leaves is told apart */

    r->read_event_handler = ngx_http_test_reading;
    r->write_event_handler = ngx_http_request_empty_handler;

    if (r->connection->read->ready) {
        ngx_post_event(r->connection->read, &ngx_posted_events);

    } else if (ngx_handle_read_event(r->connection->read, 0) != NGX_OK) {
        return ngx_http_latchkey_fail(ctx);
    }

    return NGX_DONE;
}


static void
ngx_http_latchkey_observe_over(ngx_event_t *ev)
{
    ngx_http_latchkey_verdict(ev->data, NULL);
}
