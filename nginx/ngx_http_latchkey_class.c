
/*
 * What an answer means for its operation: keep it, release the key, or admit
 * that nobody knows.
 */


#include "ngx_http_latchkey_module.h"


static ngx_http_latchkey_settle_e ngx_http_latchkey_class_of(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t status);
static ngx_uint_t ngx_http_latchkey_upstreams(ngx_http_request_t *r,
    ngx_uint_t *lost, ngx_uint_t *status);


void
ngx_http_latchkey_classify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t               lost, status;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    op->status = r->headers_out.status ? r->headers_out.status : NGX_HTTP_OK;

    if (r->upstream_states == NULL) {

        /* no app behind a socket: the content handler was nginx's own */

        op->contacted = 1;
        op->settle = ngx_http_latchkey_class_of(ctx->conf, op->status);
        ngx_str_set(&op->reason, "the answer itself leaves it open");
        return;
    }

    if (ngx_http_latchkey_upstreams(r, &lost, &status) == 0) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
        return;
    }

    op->contacted = 1;

    if (lost) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
        ngx_str_set(&op->reason, "the app got the request and did not answer");
        return;
    }

    if (r->http_version < NGX_HTTP_VERSION_10) {

        /*
         * What nginx makes of bytes that are not HTTP: an answer without a
         * header.  The client must get one.
         */

        if (!ctx->observe) {
            r->http_version = ctx->http_version;
        }

        ngx_http_latchkey_doubt(ctx, "the app's answer was not HTTP");
        return;
    }

    op->settle = ngx_http_latchkey_class_of(ctx->conf, status);
    ngx_str_set(&op->reason, "the app answered 502 or 504");
}


static ngx_http_latchkey_settle_e
ngx_http_latchkey_class_of(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_uint_t status)
{
    ngx_uint_t   i, *keep;

    if (llcf->keep) {
        keep = llcf->keep->elts;

        for (i = 0; i < llcf->keep->nelts; i++) {
            if (keep[i] == status) {
                return NGX_HTTP_LATCHKEY_SETTLE_KEEP;
            }
        }
    }

    switch (status) {

    case NGX_HTTP_BAD_GATEWAY:
    case NGX_HTTP_GATEWAY_TIME_OUT:
        return NGX_HTTP_LATCHKEY_SETTLE_DOUBT;

    case NGX_HTTP_UNAUTHORIZED:
    case 407:
    case NGX_HTTP_REQUEST_TIME_OUT:
    case 425:
    case NGX_HTTP_TOO_MANY_REQUESTS:
        return NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
    }

    if (status >= 500 && status <= 599) {
        return llcf->keep_5xx ? NGX_HTTP_LATCHKEY_SETTLE_KEEP
                              : NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
    }

    if (status >= 200 && status <= 499) {
        return NGX_HTTP_LATCHKEY_SETTLE_KEEP;
    }

    return NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
}


/*
 * How many attempts may have reached an app.  *lost: one of them got bytes of
 * the request and gave no answer.  *status: of the last one, whatever
 * error_page has made of it.
 */

static ngx_uint_t
ngx_http_latchkey_upstreams(ngx_http_request_t *r, ngx_uint_t *lost,
    ngx_uint_t *status)
{
    ngx_uint_t                  i, n;
    ngx_http_upstream_state_t  *state;

    n = 0;
    *lost = 0;
    *status = 0;

    state = r->upstream_states->elts;

    for (i = 0; i < r->upstream_states->nelts; i++) {

        if (state[i].peer == NULL) {
            continue;                            /* between two redirects */
        }

        if (state[i].header_time != (ngx_msec_t) -1) {
            n++;
            *status = state[i].status;

        } else if (state[i].bytes_sent) {
            n++;
            *lost = 1;
            *status = state[i].status;
        }
    }

    return n;
}


ngx_uint_t
ngx_http_latchkey_in_doubt(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t  lost, status;

    return r->upstream_states
           && ngx_http_latchkey_upstreams(r, &lost, &status) != 0
           && (lost || ngx_http_latchkey_class_of(ctx->conf, status)
                       == NGX_HTTP_LATCHKEY_SETTLE_DOUBT);
}


ngx_uint_t
ngx_http_latchkey_contacted(ngx_http_request_t *r,
    ngx_http_latchkey_state_e state)
{
    ngx_uint_t  lost, status;

    switch (state) {

    case NGX_HTTP_LATCHKEY_PASS:
    case NGX_HTTP_LATCHKEY_BODY:
    case NGX_HTTP_LATCHKEY_CLAIM:
    case NGX_HTTP_LATCHKEY_WAIT:
        return 0;

    case NGX_HTTP_LATCHKEY_RUN:
        return r->upstream_states == NULL
               || ngx_http_latchkey_upstreams(r, &lost, &status) != 0;

    default:
        return 1;
    }
}


/* there is no answer of the app's that could be shown */

void
ngx_http_latchkey_doubt(ngx_http_latchkey_ctx_t *ctx, const char *reason)
{
    ctx->op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
    ctx->op->reason.data = (u_char *) reason;
    ctx->op->reason.len = ngx_strlen(reason);
    ctx->truncated = 1;
}


ngx_chain_t *
ngx_http_latchkey_unknown(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t status, const char *detail)
{
    struct lk_problem  problem;

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.kind = LK_PROBLEM_OUTCOME_UNKNOWN;
    problem.status = status;
    problem.detail = latchkey_slice(detail);
    problem.reference = ngx_http_latchkey_slice(&ctx->reference);

    return ngx_http_latchkey_set_problem(r, &problem,
                              status == NGX_HTTP_SERVICE_UNAVAILABLE ? 1000
                                                                     : 0);
}


/* the app has the request, and nobody knows what came of it */

ngx_chain_t *
ngx_http_latchkey_set_lost(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t  lost, status;

    status = 0;

    if (r->upstream_states && !ctx->truncated) {
        (void) ngx_http_latchkey_upstreams(r, &lost, &status);
    }

    return ngx_http_latchkey_unknown(r, ctx,
                                     status == NGX_HTTP_GATEWAY_TIME_OUT
                                     ? NGX_HTTP_GATEWAY_TIME_OUT
                                     : NGX_HTTP_BAD_GATEWAY,
                                     "The request reached the app, but what "
                                     "came of it is not known: it may or may "
                                     "not have taken effect.");
}
