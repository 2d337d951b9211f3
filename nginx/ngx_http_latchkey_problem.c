
/*
 * Problem documents, and which of them a verdict is told with.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_add_reference(ngx_http_request_t *r,
    struct lk_slice reference);
static u_char *ngx_http_latchkey_explain(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer, struct lk_problem *problem,
    ngx_msec_t *retry_after, u_char *p, u_char *last);
static u_char *ngx_http_latchkey_explain_refused(ngx_http_latchkey_ctx_t *ctx,
    struct lk_problem *problem, ngx_msec_t *retry_after, u_char *p,
    u_char *last);


ngx_chain_t *
ngx_http_latchkey_set_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after)
{
    u_char                        *p;
    ngx_chain_t                   *out;
    struct lk_buf                  json;
    ngx_http_latchkey_loc_conf_t  *llcf;

    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    out = NULL;
    ngx_memzero(&json, sizeof(struct lk_buf));

    problem->type_base = ngx_http_latchkey_slice(&llcf->problem_base);

    if (latchkey_problem_write(problem, &json) != LK_OK) {
        goto done;
    }

    ngx_http_latchkey_start(r, latchkey_problem_status(problem));

    ngx_str_set(&r->headers_out.content_type, "application/problem+json");
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (ngx_http_latchkey_add_reference(r, problem->reference) != NGX_OK) {
        goto done;
    }

    if (retry_after
        && ngx_http_latchkey_add_retry_after(r, retry_after) != NGX_OK)
    {
        goto done;
    }

    p = ngx_pnalloc(r->pool, json.len);
    if (p == NULL) {
        goto done;
    }

    ngx_memcpy(p, json.data, json.len);

    out = ngx_http_latchkey_set_body(r, p, json.len);

done:

    latchkey_buf_free(&json);

    return out;
}


/* a copy; none is no header */

static ngx_int_t
ngx_http_latchkey_add_reference(ngx_http_request_t *r,
    struct lk_slice reference)
{
    ngx_str_t  value;

    if (reference.len == 0) {
        return NGX_OK;
    }

    value.len = reference.len;
    value.data = ngx_pnalloc(r->pool, value.len);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(value.data, reference.data, value.len);

    return ngx_http_latchkey_add_header(r, "Idempotency-Reference", &value)
           ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_latchkey_send_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after)
{
    return ngx_http_latchkey_send(r, ngx_http_latchkey_set_problem(r, problem,
                                                               retry_after));
}


/* verdicts other than NEW */

ngx_chain_t *
ngx_http_latchkey_set_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    u_char             *p;
    ngx_msec_t          retry_after;
    struct lk_problem   problem;
    u_char              detail[512];

    if (answer && (answer->verdict == LK_VERDICT_REPLAY
                   || (answer->verdict == LK_VERDICT_KEPT
                       && answer->reason.len == 0)))
    {
        return ngx_http_latchkey_set_replay(r, ctx, answer);
    }

    if (answer && answer->verdict == LK_VERDICT_ACCEPTED) {
        return ngx_http_latchkey_set_accepted(r, ctx);
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));

    retry_after = 0;

    p = ngx_http_latchkey_explain(ctx, answer, &problem, &retry_after, detail,
                                  detail + sizeof(detail));

    problem.reference = ngx_http_latchkey_slice(&ctx->reference);
    problem.detail.data = (char *) detail;
    problem.detail.len = p - detail;

    return ngx_http_latchkey_set_problem(r, &problem, retry_after);
}


/* writes the detail from p on and returns its end */

static u_char *
ngx_http_latchkey_explain(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer, struct lk_problem *problem,
    ngx_msec_t *retry_after, u_char *p, u_char *last)
{
    switch (answer ? answer->verdict : LK_VERDICT_NIL) {

    case LK_VERDICT_KEPT:
    case LK_VERDICT_OMITTED:
        problem->kind = LK_PROBLEM_ANSWER_NOT_KEPT;
        problem->original_status = answer->response.status;
        return ngx_slprintf(p, last,
                            "The original request was processed with status "
                            "%ui and will not be run again; its answer was "
                            "not kept: %*s.",
                            (ngx_uint_t) answer->response.status,
                            answer->reason.len, answer->reason.data);

    case LK_VERDICT_INFLIGHT:
        problem->kind = LK_PROBLEM_IN_PROGRESS;
        *retry_after = ngx_max((ngx_msec_t) answer->retry_after_ms, 1);
        return ngx_slprintf(p, last,
                            "The first request with this key is still being "
                            "processed; send the same request again later.");

    case LK_VERDICT_UNCERTAIN:
        problem->kind = LK_PROBLEM_OUTCOME_UNKNOWN;
        *retry_after = NGX_HTTP_LATCHKEY_ASK_AGAIN;
        return ngx_slprintf(p, last,
                            "The original request may or may not have taken "
                            "effect (%*s); it is not run again. Keep the "
                            "reference, and find out before you use a new "
                            "key.",
                            answer->reason.len, answer->reason.data);

    case LK_VERDICT_MISMATCH:
        problem->kind = LK_PROBLEM_KEY_REUSED;
        problem->status = ctx->conf->mismatch_status;
        return ngx_slprintf(p, last,
                            "This key belongs to another request: method, "
                            "path, query, content type or body differ. A new "
                            "operation needs a new key.");

    case LK_VERDICT_LIMITED:
        problem->kind = LK_PROBLEM_LIMITED;
        *retry_after = ngx_max((ngx_msec_t) answer->retry_after_ms, 1);
        return ngx_slprintf(p, last,
                            "Over the limit of %*s; nothing was started.",
                            answer->reason.len, answer->reason.data);

    case LK_VERDICT_REFUSED:
        return ngx_http_latchkey_explain_refused(ctx, problem, retry_after, p,
                                                 last);

    default: /* no answer from a daemon that can decide */
        problem->kind = LK_PROBLEM_UNAVAILABLE;
        *retry_after = NGX_HTTP_LATCHKEY_SOON;
        return ngx_slprintf(p, last,
                            "The request was not processed; send the same "
                            "request again later.");
    }
}


/* nothing was to be started */

static u_char *
ngx_http_latchkey_explain_refused(ngx_http_latchkey_ctx_t *ctx,
    struct lk_problem *problem, ngx_msec_t *retry_after, u_char *p,
    u_char *last)
{
    if (ctx->too_old) {
        problem->kind = LK_PROBLEM_TOO_OLD;
        return ngx_slprintf(p, last, "%V", &ctx->too_old_detail);
    }

    if (ctx->too_large) {
        problem->kind = LK_PROBLEM_TOO_LARGE;
        return ngx_slprintf(p, last,
                            "The body has more bytes than are kept for "
                            "later; nothing was started.");
    }

    problem->kind = LK_PROBLEM_OUTCOME_UNKNOWN;
    *retry_after = NGX_HTTP_LATCHKEY_ASK_AGAIN;
    return ngx_slprintf(p, last,
                        "The request was processed, but its record had been "
                        "taken away meanwhile; keep the reference.");
}
