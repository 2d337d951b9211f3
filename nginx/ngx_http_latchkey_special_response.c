
/*
 * Responses that the gateway makes itself: problem documents and replays of
 * stored responses, how they are put together and sent.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_add_reference(ngx_http_request_t *r,
    struct lk_slice reference);
static u_char *ngx_http_latchkey_explain_verdict(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision, struct lk_problem *problem,
    ngx_msec_t *retry_after, u_char *p, u_char *last);
static u_char *ngx_http_latchkey_explain_refused(ngx_http_latchkey_ctx_t *ctx,
    struct lk_problem *problem, ngx_msec_t *retry_after, u_char *p,
    u_char *last);
static ngx_chain_t *ngx_http_latchkey_set_replay(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);


/* Clears what another handler may have set: headers, length, ranges. */

void
ngx_http_latchkey_start_response(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_http_clean_header(r);

    r->headers_out.status = status;

    /* error_page may have led here, and must not change the status */

    r->err_status = 0;

    if (status == 422) {

        /* the one status that nginx has no text for */

        ngx_str_set(&r->headers_out.status_line, "422 Unprocessable Content");
    }

    /* no condition and no range applies to a response that is decided */

    r->disable_not_modified = 1;
    r->allow_ranges = 0;
}


/* The name is not copied and must be static. */

ngx_table_elt_t *
ngx_http_latchkey_add_header(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    ngx_table_elt_t  *h;

    h = ngx_list_push(&r->headers_out.headers);
    if (h == NULL) {
        return NULL;
    }

    h->hash = 1;
    h->key.data = (u_char *) name;
    h->key.len = ngx_strlen(name);
    h->value = *value;
    h->lowcase_key = NULL;
#if (nginx_version >= 1023000)
    h->next = NULL;
#endif

    return h;
}


ngx_int_t
ngx_http_latchkey_add_expires(ngx_http_request_t *r, uint64_t ms)
{
    ngx_str_t  value;

    value.data = ngx_pnalloc(r->pool, sizeof("Mon, 28 Sep 1970 06:00:00 GMT"));
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_http_time(value.data, (time_t) (ms / 1000)) - value.data;

    return ngx_http_latchkey_add_header(r, "Idempotency-Expires", &value)
           ? NGX_OK : NGX_ERROR;
}


/* In whole seconds, rounded up: never too early. */

ngx_int_t
ngx_http_latchkey_add_retry_after(ngx_http_request_t *r, ngx_msec_t ms)
{
    ngx_str_t  value;

    value.data = ngx_pnalloc(r->pool, NGX_TIME_T_LEN);
    if (value.data == NULL) {
        return NGX_ERROR;
    }

    value.len = ngx_sprintf(value.data, "%M", (ms + 999) / 1000) - value.data;

    return ngx_http_latchkey_add_header(r, "Retry-After", &value)
           ? NGX_OK : NGX_ERROR;
}


ngx_int_t
ngx_http_latchkey_add_no_store(ngx_http_request_t *r)
{
    static ngx_str_t  value = ngx_string("no-store");

    return ngx_http_latchkey_add_header(r, "Cache-Control", &value)
           ? NGX_OK : NGX_ERROR;
}


ngx_chain_t *
ngx_http_latchkey_set_body(ngx_http_request_t *r, u_char *data, size_t len)
{
    ngx_buf_t    *b;
    ngx_chain_t  *out;

    b = ngx_calloc_buf(r->pool);
    if (b == NULL) {
        return NULL;
    }

    out = ngx_alloc_chain_link(r->pool);
    if (out == NULL) {
        return NULL;
    }

    if (len) {
        b->pos = data;
        b->last = data + len;
        b->memory = 1;
    }

    b->last_buf = (r == r->main);
    b->last_in_chain = 1;

    out->buf = b;
    out->next = NULL;

    r->headers_out.content_length_n = len;

    return out;
}


/* sending */

ngx_int_t
ngx_http_latchkey_send_response(ngx_http_request_t *r, ngx_chain_t *out)
{
    ngx_int_t  rc;

    if (out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_discard_request_body(r) != NGX_OK) {
        r->keepalive = 0;
    }

    rc = ngx_http_send_header(r);

    if (rc == NGX_ERROR || rc > NGX_OK || r->header_only) {
        return rc;
    }

    return ngx_http_output_filter(r, out);
}


/*
 * A request that claimed nothing must not run post_action, which could reach
 * an app: so it is marked as done.
 */

void
ngx_http_latchkey_finalize(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->header_sent && clcf->post_action.data) {

        /* the mark of nginx that it has run */

        r->request_complete = (rc == NGX_OK);
        r->post_action = 1;
        r->uri_changes = 0;
    }

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_latchkey_send_text(ngx_http_request_t *r, const char *content_type,
    struct lk_buf *text)
{
    size_t        len;
    u_char       *p;
    ngx_chain_t  *out;

    len = text->len;
    p = ngx_pnalloc(r->pool, len + 1);

    if (p) {
        ngx_memcpy(p, text->data, len);
    }

    latchkey_buf_free(text);

    out = p ? ngx_http_latchkey_set_body(r, p, len) : NULL;
    if (out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_type.data = (u_char *) content_type;
    r->headers_out.content_type.len = ngx_strlen(content_type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    if (ngx_http_latchkey_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send_response(r, out);
}


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

    ngx_http_latchkey_start_response(r, latchkey_problem_status(problem));

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


/* copied; an empty reference adds no header */

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
    return ngx_http_latchkey_send_response(r,
                      ngx_http_latchkey_set_problem(r, problem, retry_after));
}


/*
 * REPLAY and OMITTED are from the store; all others become a problem document.
 */

ngx_chain_t *
ngx_http_latchkey_set_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    u_char             *p;
    ngx_msec_t          retry_after;
    struct lk_problem   problem;
    u_char              detail[512];

    if (decision && (decision->verdict == LK_VERDICT_REPLAY
                     || (decision->verdict == LK_VERDICT_KEPT
                         && decision->reason.len == 0)))
    {
        return ngx_http_latchkey_set_replay(r, ctx, decision);
    }

    if (decision && decision->verdict == LK_VERDICT_ACCEPTED) {
        return ngx_http_latchkey_set_accepted(r, ctx);
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));

    retry_after = 0;

    p = ngx_http_latchkey_explain_verdict(ctx, decision, &problem,
                                          &retry_after, detail,
                                          detail + sizeof(detail));

    problem.reference = ngx_http_latchkey_slice(&ctx->reference);
    problem.detail.data = (char *) detail;
    problem.detail.len = p - detail;

    return ngx_http_latchkey_set_problem(r, &problem, retry_after);
}


/* writes the detail to p and returns its end */

static u_char *
ngx_http_latchkey_explain_verdict(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision, struct lk_problem *problem,
    ngx_msec_t *retry_after, u_char *p, u_char *last)
{
    switch (decision ? decision->verdict : LK_VERDICT_NIL) {

    case LK_VERDICT_KEPT:
    case LK_VERDICT_OMITTED:
        problem->kind = LK_PROBLEM_ANSWER_NOT_KEPT;
        problem->original_status = decision->response.status;
        return ngx_slprintf(p, last,
                            "The original request was processed with status "
                            "%ui and will not be run again; its response was "
                            "not stored: %*s.",
                            (ngx_uint_t) decision->response.status,
                            decision->reason.len, decision->reason.data);

    case LK_VERDICT_INFLIGHT:
        problem->kind = LK_PROBLEM_IN_PROGRESS;
        *retry_after = ngx_max((ngx_msec_t) decision->retry_after_ms, 1);
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
                            decision->reason.len, decision->reason.data);

    case LK_VERDICT_MISMATCH:
        problem->kind = LK_PROBLEM_KEY_REUSED;
        problem->status = ctx->conf->mismatch_status;
        return ngx_slprintf(p, last,
                            "This key belongs to another request: method, "
                            "path, query, content type or body differ. A new "
                            "operation needs a new key.");

    case LK_VERDICT_LIMITED:
        problem->kind = LK_PROBLEM_LIMITED;
        *retry_after = ngx_max((ngx_msec_t) decision->retry_after_ms, 1);
        return ngx_slprintf(p, last,
                            "Over the limit of %*s; nothing was started.",
                            decision->reason.len, decision->reason.data);

    case LK_VERDICT_REFUSED:
        return ngx_http_latchkey_explain_refused(ctx, problem, retry_after, p,
                                                 last);

    default: /* no reply from a daemon that can decide */
        problem->kind = LK_PROBLEM_UNAVAILABLE;
        *retry_after = NGX_HTTP_LATCHKEY_SOON;
        return ngx_slprintf(p, last,
                            "The request was not processed; send the same "
                            "request again later.");
    }
}


/*
 * REFUSED: the claim had NONEW and would have been NEW, but nothing may start:
 * too old, too large, or the present verdict was asked for after STALE.
 */

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
                            "The body has more bytes than are stored for "
                            "later; nothing was started.");
    }

    problem->kind = LK_PROBLEM_OUTCOME_UNKNOWN;
    *retry_after = NGX_HTTP_LATCHKEY_ASK_AGAIN;
    return ngx_slprintf(p, last,
                        "The request was processed, but in the meantime its "
                        "operation was removed from the store; keep the "
                        "reference.");
}


/* A stored response byte for byte, with its stored headers. */

static ngx_chain_t *
ngx_http_latchkey_set_replay(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    u_char            *body;
    struct lk_slice    headers;
    static ngx_str_t   yes = ngx_string("true");

    ngx_http_latchkey_start_response(r, decision->response.status);

    /* the reply belongs to the link and is valid in this event only */

    headers = decision->response.headers;
    body = ngx_pnalloc(r->pool, headers.len + decision->response.body.len + 1);
    if (body == NULL) {
        return NULL;
    }

    if (headers.len) {
        ngx_memcpy(body, headers.data, headers.len);
        headers.data = (char *) body;
        body += headers.len;
    }

    if (decision->response.body.len) {
        ngx_memcpy(body, decision->response.body.data,
                   decision->response.body.len);
    }

    if (ngx_http_latchkey_replay_headers(r, ctx->conf, headers) != NGX_OK) {
        return NULL;
    }

    /* KEPT: this request ran it, so it is not a replay */

    if (decision->verdict != LK_VERDICT_KEPT
        && ngx_http_latchkey_add_header(r, "Idempotent-Replayed", &yes)
           == NULL)
    {
        return NULL;
    }

    if (ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                        &ctx->reference)
           == NULL
        || ngx_http_latchkey_add_expires(r, decision->expires_ms) != NGX_OK)
    {
        return NULL;
    }

    return ngx_http_latchkey_set_body(r, body, decision->response.body.len);
}


ngx_chain_t *
ngx_http_latchkey_set_unknown(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t status, const char *detail)
{
    struct lk_problem  problem;

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.kind = LK_PROBLEM_OUTCOME_UNKNOWN;
    problem.status = status;
    problem.detail = latchkey_slice(detail);
    problem.reference = ngx_http_latchkey_slice(&ctx->reference);

    return ngx_http_latchkey_set_problem(r, &problem,
                              status == NGX_HTTP_SERVICE_UNAVAILABLE
                              || ctx->conf->reexecute
                              ? NGX_HTTP_LATCHKEY_SOON
                              : NGX_HTTP_LATCHKEY_ASK_AGAIN);
}


/* the app got the request, and its outcome is not known */

ngx_chain_t *
ngx_http_latchkey_set_lost(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    return ngx_http_latchkey_set_unknown(r, ctx,
                                         ctx->app_status
                                         == NGX_HTTP_GATEWAY_TIME_OUT
                                         && !ctx->truncated
                                         ? NGX_HTTP_GATEWAY_TIME_OUT
                                         : NGX_HTTP_BAD_GATEWAY,
                                         "The request reached the app, but its "
                                         "outcome is not known: it may or may "
                                         "not have taken effect.");
}


/*
 * In place of an error page of nginx, which does not say what it means for the
 * operation.  NULL: out of memory.
 */

ngx_chain_t *
ngx_http_latchkey_set_substitute(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char             *p;
    struct lk_problem   problem;
    u_char              detail[512];

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT) {
        return ngx_http_latchkey_set_lost(r, ctx);
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.status = r->headers_out.status;
    problem.reference = ngx_http_latchkey_slice(&ctx->reference);

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE) {
        problem.kind = LK_PROBLEM_NOT_REACHED;

        if (problem.status < 500) {
            problem.status = 0;            /* of a page that is missing */
        }

        problem.detail = latchkey_slice("The request did not reach the app: "
                                        "nothing happened. Send the same "
                                        "request again later.");

        return ngx_http_latchkey_set_problem(r, &problem,
                                             NGX_HTTP_LATCHKEY_SOON);
    }

    problem.kind = LK_PROBLEM_ANSWER_NOT_KEPT;
    problem.original_status = ctx->op->status;

    p = ngx_slprintf(detail, detail + sizeof(detail),
                     "The request was processed with status %ui and will not "
                     "be run again, but its response could not be sent.",
                     ctx->op->status);

    problem.detail.data = (char *) detail;
    problem.detail.len = p - detail;

    return ngx_http_latchkey_set_problem(r, &problem, 0);
}
