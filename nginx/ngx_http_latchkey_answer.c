
/*
 * What the gateway itself answers: problem documents and replays.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_replay_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_slice block);
static ngx_int_t ngx_http_latchkey_replay_header(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *line, u_char *end);


/* lower case; a name that ends in "-" stands for all that begin with it */

static ngx_str_t  ngx_http_latchkey_allowed[] = {
    ngx_string("content-type"),
    ngx_string("content-language"),
    ngx_string("content-encoding"),
    ngx_string("content-disposition"),
    ngx_string("location"),
    ngx_string("etag"),
    ngx_string("last-modified"),
    ngx_string("link"),
    ngx_string("cache-control"),
    ngx_string("vary"),
    ngx_string("access-control-"),
    ngx_string("content-security-policy"),
    ngx_string("x-content-type-options"),
    ngx_null_string
};


ngx_int_t
ngx_http_latchkey_header_allowed(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_str_t *name)
{
    ngx_str_t   *allowed, *own;
    ngx_uint_t   i;

    for (allowed = ngx_http_latchkey_allowed; allowed->len; allowed++) {

        if (name->len < allowed->len
            || ngx_strncasecmp(name->data, allowed->data, allowed->len) != 0)
        {
            continue;
        }

        if (name->len == allowed->len
            || allowed->data[allowed->len - 1] == '-')
        {
            return NGX_OK;
        }
    }

    if (llcf->replay_headers == NULL) {
        return NGX_DECLINED;
    }

    own = llcf->replay_headers->elts;

    for (i = 0; i < llcf->replay_headers->nelts; i++) {

        if (name->len == own[i].len
            && ngx_strncasecmp(name->data, own[i].data, name->len) == 0)
        {
            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


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


/* forgets whatever answer was there before */

void
ngx_http_latchkey_start(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_http_clean_header(r);

    r->headers_out.status = status;

    /* error_page may have led here, and would have its own way with it */

    r->err_status = 0;

    if (status == 422) {

        /* the one status of ours that nginx has no words for */

        ngx_str_set(&r->headers_out.status_line, "422 Unprocessable Content");
    }

    /* what was decided once is not decided again by a condition or a range */

    r->disable_not_modified = 1;
    r->allow_ranges = 0;
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


/* problem documents */

ngx_chain_t *
ngx_http_latchkey_set_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after)
{
    u_char                        *p;
    ngx_str_t                      value;
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

    if (problem->reference.len) {
        value.len = problem->reference.len;
        value.data = ngx_pnalloc(r->pool, value.len);
        if (value.data == NULL) {
            goto done;
        }

        ngx_memcpy(value.data, problem->reference.data, value.len);

        if (ngx_http_latchkey_add_header(r, "Idempotency-Reference", &value)
            == NULL)
        {
            goto done;
        }
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


/* replays */

ngx_chain_t *
ngx_http_latchkey_set_replay(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_answer *answer)
{
    u_char            *body;
    struct lk_slice    headers;
    static ngx_str_t   yes = ngx_string("true");

    ngx_http_latchkey_start(r, answer->response.status);

    /* the answer is the link's and goes away with this event */

    headers = answer->response.headers;
    body = ngx_pnalloc(r->pool, headers.len + answer->response.body.len + 1);
    if (body == NULL) {
        return NULL;
    }

    if (headers.len) {
        ngx_memcpy(body, headers.data, headers.len);
        headers.data = (char *) body;
        body += headers.len;
    }

    if (answer->response.body.len) {
        ngx_memcpy(body, answer->response.body.data,
                   answer->response.body.len);
    }

    if (ngx_http_latchkey_replay_headers(r, ctx->conf, headers) != NGX_OK
        || ngx_http_latchkey_add_header(r, "Idempotent-Replayed", &yes)
           == NULL
        || ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                        &ctx->reference)
           == NULL
        || ngx_http_latchkey_add_expires(r, answer->expires_ms) != NGX_OK)
    {
        return NULL;
    }

    return ngx_http_latchkey_set_body(r, body, answer->response.body.len);
}


static ngx_int_t
ngx_http_latchkey_replay_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_slice block)
{
    u_char  *p, *end, *line;

    p = (u_char *) block.data;
    end = p + block.len;

    while (p < end) {
        line = p;

        p = ngx_strlchr(p, end, CR);
        if (p == NULL || p + 1 == end || p[1] != LF) {
            break;
        }

        if (ngx_http_latchkey_replay_header(r, llcf, line, p) != NGX_OK) {
            return NGX_ERROR;
        }

        p += 2;
    }

    return NGX_OK;
}


/*
 * `line` is "Name: value"; one that is not allowed is left out.  So is one in
 * which another could hide: an app may have completed it by itself.
 */

static ngx_int_t
ngx_http_latchkey_replay_header(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *line, u_char *end)
{
    u_char           *p, *colon;
    ngx_str_t         name, value;
    ngx_table_elt_t  *h;

    colon = ngx_strlchr(line, end, ':');
    if (colon == NULL) {
        return NGX_OK;
    }

    for (p = line; p < end; p++) {
        if (*p == CR || *p == LF || *p == '\0') {
            return NGX_OK;
        }
    }

    name.data = line;
    name.len = colon - line;

    for (value.data = colon + 1; value.data < end; value.data++) {
        if (*value.data != ' ') {
            break;
        }
    }

    value.len = end - value.data;

    if (ngx_http_latchkey_header_allowed(llcf, &name) != NGX_OK) {
        return NGX_OK;
    }

    if (name.len == 12
        && ngx_strncasecmp(name.data, (u_char *) "Content-Type", 12) == 0)
    {
        r->headers_out.content_type = value;
        r->headers_out.content_type_len = value.len;
        r->headers_out.content_type_lowcase = NULL;
        return NGX_OK;
    }

    h = ngx_http_latchkey_add_header(r, "", &value);
    if (h == NULL) {
        return NGX_ERROR;
    }

    h->key = name;

    /* gzip looks at these two */

    if (name.len == 16
        && ngx_strncasecmp(name.data, (u_char *) "Content-Encoding", 16) == 0)
    {
        r->headers_out.content_encoding = h;

    } else if (name.len == 4
               && ngx_strncasecmp(name.data, (u_char *) "ETag", 4) == 0)
    {
        r->headers_out.etag = h;
    }

    return NGX_OK;
}


/* what a claim decided, other than NEW */

ngx_chain_t *
ngx_http_latchkey_set_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_answer *answer)
{
    u_char             *p;
    ngx_msec_t          retry_after;
    struct lk_problem   problem;
    u_char              detail[512];

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.reference = ngx_http_latchkey_slice(&ctx->reference);
    problem.detail.data = (char *) detail;

    retry_after = 0;
    p = detail;

    switch (answer ? answer->verdict : LK_VERDICT_NIL) {

    case LK_VERDICT_REPLAY:
        return ngx_http_latchkey_set_replay(r, ctx, answer);

    case LK_VERDICT_KEPT:
        if (answer->reason.len == 0) {
            return ngx_http_latchkey_set_replay(r, ctx, answer);
        }

        /* fall through */

    case LK_VERDICT_OMITTED:
        problem.kind = LK_PROBLEM_ANSWER_NOT_KEPT;
        problem.original_status = answer->response.status;
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "The original request was processed with status %ui "
                         "and will not be run again; its answer was not "
                         "kept: %*s.",
                         (ngx_uint_t) answer->response.status,
                         answer->reason.len, answer->reason.data);
        break;

    case LK_VERDICT_ACCEPTED:
        return ngx_http_latchkey_set_accepted(r, ctx);

    case LK_VERDICT_INFLIGHT:
        problem.kind = LK_PROBLEM_IN_PROGRESS;
        retry_after = ngx_max((ngx_msec_t) answer->retry_after_ms, 1);
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "The first request with this key is still being "
                         "processed; send the same request again later.");
        break;

    case LK_VERDICT_UNCERTAIN:
        problem.kind = LK_PROBLEM_OUTCOME_UNKNOWN;
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "The original request may or may not have taken "
                         "effect (%*s); it is not run again. Keep the "
                         "reference, and find out before you use a new key.",
                         answer->reason.len, answer->reason.data);
        break;

    case LK_VERDICT_MISMATCH:
        problem.kind = LK_PROBLEM_KEY_REUSED;
        problem.status = ctx->conf->mismatch_status;
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "This key belongs to another request: method, path, "
                         "query, content type or body differ. A new "
                         "operation needs a new key.");
        break;

    case LK_VERDICT_LIMITED:
        problem.kind = LK_PROBLEM_LIMITED;
        retry_after = ngx_max((ngx_msec_t) answer->retry_after_ms, 1);
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "Over the limit of %*s; nothing was started.",
                         answer->reason.len, answer->reason.data);
        break;

    case LK_VERDICT_REFUSED:
        if (ctx->too_old) {
            problem.kind = LK_PROBLEM_TOO_OLD;
            p = ngx_slprintf(p, detail + sizeof(detail), "%V",
                             &ctx->too_old_detail);
            break;
        }

        if (ctx->too_large) {
            problem.kind = LK_PROBLEM_TOO_LARGE;
            p = ngx_slprintf(p, detail + sizeof(detail),
                             "The body has more bytes than are kept for "
                             "later; nothing was started.");
            break;
        }

        problem.kind = LK_PROBLEM_OUTCOME_UNKNOWN;
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "The request was processed, but its record had been "
                         "taken away meanwhile; keep the reference.");
        break;

    default: /* no answer from a daemon that can decide */
        problem.kind = LK_PROBLEM_UNAVAILABLE;
        retry_after = 1000;
        p = ngx_slprintf(p, detail + sizeof(detail),
                         "The request was not processed; send the same "
                         "request again later.");
        break;
    }

    problem.detail.len = p - detail;

    return ngx_http_latchkey_set_problem(r, &problem, retry_after);
}


/* output */

ngx_int_t
ngx_http_latchkey_send(ngx_http_request_t *r, ngx_chain_t *out)
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


ngx_int_t
ngx_http_latchkey_send_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after)
{
    return ngx_http_latchkey_send(r, ngx_http_latchkey_set_problem(r, problem,
                                                               retry_after));
}


ngx_int_t
ngx_http_latchkey_send_text(ngx_http_request_t *r, const char *content_type,
    struct lk_buf *text)
{
    ngx_buf_t    *b;
    ngx_str_t     value;
    ngx_chain_t  *out;

    out = ngx_alloc_chain_link(r->pool);
    b = ngx_create_temp_buf(r->pool, text->len + 1);

    if (b == NULL || out == NULL) {
        latchkey_buf_free(text);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_cpymem(b->last, text->data, text->len);
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    latchkey_buf_free(text);

    out->buf = b;
    out->next = NULL;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;
    r->headers_out.content_type.data = (u_char *) content_type;
    r->headers_out.content_type.len = ngx_strlen(content_type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_str_set(&value, "no-store");

    if (ngx_http_latchkey_add_header(r, "Cache-Control", &value) == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send(r, out);
}
