
/*
 * From a request to a claim, and from its verdict to what happens next.
 *
 * The handler stands in the precontent phase: authentication and access
 * checks have passed, on a replay as on a first request, and neither
 * try_files nor the content handler has been asked yet.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/mman.h>


/* observe: the app does not wait longer than this for a verdict */
#define NGX_HTTP_LATCHKEY_OBSERVE_WAIT  100

#define NGX_HTTP_LATCHKEY_TENANT_HASH   16      /* bytes of the HMAC */


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
static ngx_int_t ngx_http_latchkey_get_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value);
static const char *ngx_http_latchkey_parse_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value);
static ngx_uint_t ngx_http_latchkey_is_uuid(ngx_str_t *key);
static ngx_int_t ngx_http_latchkey_get_scope(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *scope);
static void ngx_http_latchkey_body_handler(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_fail(ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_fingerprint_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, u_char *text);
static ngx_int_t ngx_http_latchkey_chosen_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_request *request);
static ngx_int_t ngx_http_latchkey_map_body(ngx_http_request_t *r,
    struct lk_slice *body, size_t *mapped);
static ngx_int_t ngx_http_latchkey_join_body(ngx_http_request_t *r,
    struct lk_slice *body);
static ngx_int_t ngx_http_latchkey_send_claim(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_verdict(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_answer *answer);
static ngx_int_t ngx_http_latchkey_decide(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_answer *answer);
static ngx_int_t ngx_http_latchkey_note(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_answer *answer);
static ngx_int_t ngx_http_latchkey_run(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_resume(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_wait(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_answer *answer);
static void ngx_http_latchkey_waited(ngx_http_latchkey_await_t *await,
    ngx_int_t rc);
static void ngx_http_latchkey_wait_over(ngx_event_t *ev);
static void ngx_http_latchkey_claim_again(ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_observe_over(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_strip_headers(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_is_ours(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_letter(u_char c);
static ngx_int_t ngx_http_latchkey_pass_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_cleanup(void *data);


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
        ngx_http_latchkey_let_go(ctx);
        return NGX_DECLINED;
    }

    if (ctx == NULL || ngx_http_latchkey_is_weaker(r, ctx, llcf)) {
        if (llcf->mode == NGX_HTTP_LATCHKEY_OFF) {
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
 * Came here through a location that only looked on, or that let a request
 * without a key pass?  Then what this one asks for has not been done yet.
 */

static ngx_uint_t
ngx_http_latchkey_is_weaker(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_loc_conf_t *llcf)
{
    if (llcf->mode <= ctx->conf->mode || r->upstream_states
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

    if (!ngx_http_latchkey_in_doubt(r, ctx)) {
        ctx->uri_changes = r->uri_changes;
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
    ngx_pool_cleanup_t       *cln;
    ngx_http_latchkey_ctx_t  *ctx;

    if (llcf->mode != NGX_HTTP_LATCHKEY_OBSERVE
        && ngx_http_latchkey_strip_headers(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (!(r->method & llcf->methods)) {
        return NGX_DECLINED;
    }

    cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_latchkey_ctx_t));
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ctx = cln->data;
    ngx_memzero(ctx, sizeof(ngx_http_latchkey_ctx_t));

    ctx->request = r;
    ctx->conf = llcf;
    ctx->http_version = r->http_version;
    ctx->observe = (llcf->mode == NGX_HTTP_LATCHKEY_OBSERVE);
    ctx->timer.data = ctx;
    ctx->timer.log = r->connection->log;

    cln->handler = ngx_http_latchkey_cleanup;
    ngx_http_set_ctx(r, ctx, ngx_http_latchkey_module);

    rc = ngx_http_latchkey_identify(r, ctx);
    if (rc != NGX_OK) {
        return rc;
    }

    ctx->state = NGX_HTTP_LATCHKEY_BODY;
    r->request_body_in_single_buf = 1;

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

    rc = ngx_http_latchkey_get_key(r, ctx, &value);

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

    return rc == NGX_OK ? NGX_OK : NGX_HTTP_INTERNAL_SERVER_ERROR;
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

    ngx_http_finalize_request(r, ngx_http_latchkey_send_problem(r, &problem,
                                                                0));

    return NGX_DONE;
}


/* the key */

/* NGX_OK, NGX_DECLINED: there is none, NGX_ERROR: more than one */

static ngx_int_t
ngx_http_latchkey_get_key(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_str_t *value)
{
    ngx_int_t         rc;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    rc = NGX_DECLINED;

    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                return rc;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].key.len == sizeof("Idempotency-Key") - 1
            && ngx_strncasecmp(h[i].key.data, (u_char *) "Idempotency-Key",
                               h[i].key.len)
               == 0)
        {
            if (rc == NGX_OK) {
                return NGX_ERROR;
            }

            *value = h[i].value;
            rc = NGX_OK;
        }
    }
}


/* NULL: fine, it is in ctx->key.  Else what is wrong with it. */

static const char *
ngx_http_latchkey_parse_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value)
{
    const char         *text;
    struct lk_buf       key;
    enum lk_status      status;
    enum lk_key_fault   fault;

    ngx_memzero(&key, sizeof(struct lk_buf));

    status = latchkey_key_parse(ngx_http_latchkey_slice(value), &key, &fault,
                                NULL);

    if (status == LK_MALFORMED) {
        return latchkey_key_fault_text(fault);
    }

    text = "out of memory";

    if (status == LK_OK) {
        ctx->key.len = key.len;
        ctx->key.data = ngx_pnalloc(r->pool, key.len);
    }

    if (ctx->key.data) {
        text = NULL;
        ngx_memcpy(ctx->key.data, key.data, key.len);
    }

    latchkey_buf_free(&key);

    if (text) {
        return text;
    }

    if (ctx->conf->key_uuid && !ngx_http_latchkey_is_uuid(&ctx->key)) {
        return "the key is not a UUID, which this route asks for";
    }

    if (ctx->key.len < ctx->conf->key_min) {
        return "the key is shorter than this route asks for";
    }

    return NULL;
}


static ngx_uint_t
ngx_http_latchkey_is_uuid(ngx_str_t *key)
{
    u_char      c;
    ngx_uint_t  i;

    if (key->len != 36) {
        return 0;
    }

    for (i = 0; i < 36; i++) {
        c = key->data[i];

        if (i == 8 || i == 13 || i == 18 || i == 23) {
            if (c != '-') {
                return 0;
            }

            continue;
        }

        c |= 0x20;

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
            return 0;
        }
    }

    return 1;
}


/* tenant and scope */

ngx_int_t
ngx_http_latchkey_get_tenant(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *tenant)
{
    size_t                          i;
    u_char                         *p;
    ngx_str_t                       value;
    const char                     *fault;
    unsigned int                    len;
    unsigned char                   mac[EVP_MAX_MD_SIZE];
    ngx_http_latchkey_main_conf_t  *lmcf;

    if (llcf->tenant == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_http_complex_value(r, llcf->tenant, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0) {
        return NGX_DECLINED;
    }

    if (llcf->hashed) {
        lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);

        p = ngx_pnalloc(r->pool, 2 + 2 * NGX_HTTP_LATCHKEY_TENANT_HASH);
        if (p == NULL
            || HMAC(EVP_sha256(), lmcf->secret.data, (int) lmcf->secret.len,
                    value.data, value.len, mac, &len)
               == NULL)
        {
            return NGX_ERROR;
        }

        tenant->data = p;
        *p++ = 'h';
        *p++ = ':';
        tenant->len = ngx_hex_dump(p, mac, NGX_HTTP_LATCHKEY_TENANT_HASH)
                      - tenant->data;
        return NGX_OK;
    }

    /*
     * It goes to the app in a header, where it must mean the same; and it
     * must not pass for the hash of somebody's secret.
     */

    fault = NULL;

    if (value.len > NGX_HTTP_LATCHKEY_TENANT_MAX) {
        fault = "is longer than 255 bytes";

    } else if (value.data[0] == ' ' || value.data[value.len - 1] == ' ') {
        fault = "begins or ends with a space";

    } else if (value.len > 2 && value.data[0] == 'h' && value.data[1] == ':')
    {
        fault = "begins with \"h:\" like a hashed one";
    }

    for (i = 0; i < value.len && fault == NULL; i++) {
        if (value.data[i] < 0x20 || value.data[i] == 0x7f) {
            fault = "contains a control character";
        }
    }

    if (fault) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "the value of \"idempotency_tenant\" %s and cannot be "
                      "used; \"hashed\" takes any", fault);
        return NGX_DECLINED;
    }

    *tenant = value;

    return NGX_OK;
}


/*
 * What may not stand in a header is escaped, and what is too long ends in a
 * hash of the whole: any scope can be stored, and two stay two.
 */

static ngx_int_t
ngx_http_latchkey_get_scope(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *scope)
{
    u_char     *p, *end, *src;
    size_t      len;
    ngx_str_t   value;
    u_char      digest[SHA256_DIGEST_LENGTH];

    if (llcf->scope) {
        if (ngx_http_complex_value(r, llcf->scope, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len == 0) {
            ngx_str_set(&value, "*");
        }

    } else {
        p = ngx_strlchr(r->unparsed_uri.data,
                        r->unparsed_uri.data + r->unparsed_uri.len, '?');
        len = p ? (size_t) (p - r->unparsed_uri.data) : r->unparsed_uri.len;

        value.len = r->method_name.len + 1 + len;
        value.data = ngx_pnalloc(r->pool, value.len);
        if (value.data == NULL) {
            return NGX_ERROR;
        }

        p = ngx_cpymem(value.data, r->method_name.data, r->method_name.len);
        *p++ = ' ';
        ngx_memcpy(p, r->unparsed_uri.data, len);
    }

    p = ngx_pnalloc(r->pool, 3 * value.len);
    if (p == NULL) {
        return NGX_ERROR;
    }

    scope->data = p;
    end = value.data + value.len;

    for (src = value.data; src < end; src++) {

        if (*src < 0x20 || *src == 0x7f
            || (*src == ' ' && (src == value.data || src == end - 1)))
        {
            p = ngx_sprintf(p, "%%%02Xi", (ngx_int_t) *src);

        } else {
            *p++ = *src;
        }
    }

    scope->len = p - scope->data;

    if (scope->len > NGX_HTTP_LATCHKEY_SCOPE_MAX) {
        SHA256(scope->data, scope->len, digest);
        p = scope->data + NGX_HTTP_LATCHKEY_SCOPE_MAX - 2 * sizeof(digest) - 1;
        *p++ = '#';
        scope->len = ngx_hex_dump(p, digest, sizeof(digest)) - scope->data;
    }

    return NGX_OK;
}


/* the body is there: claim */

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
    ngx_str_t                scope;
    ngx_http_latchkey_op_t  *op;

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

    if (ctx->conf->wait) {
        ctx->wait_until = ngx_current_msec + ctx->conf->wait;
    }

    return ngx_http_latchkey_send_claim(r, ctx);
}


static ngx_int_t
ngx_http_latchkey_fingerprint_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, u_char *text)
{
    u_char                        *p, *end;
    size_t                         mapped;
    ngx_str_t                      value;
    enum lk_status                 status;
    struct lk_request              request;
    struct lk_fingerprint          fingerprint;
    ngx_http_latchkey_loc_conf_t  *llcf;

    llcf = ctx->conf;

    ngx_memzero(&request, sizeof(struct lk_request));

    request.method = ngx_http_latchkey_slice(&r->method_name);
    request.path = ngx_http_latchkey_slice(&r->unparsed_uri);

    end = r->unparsed_uri.data + r->unparsed_uri.len;
    p = ngx_strlchr(r->unparsed_uri.data, end, '?');

    if (p) {
        request.path.len = p - r->unparsed_uri.data;
        request.query.data = (char *) p + 1;
        request.query.len = end - p - 1;
    }

    if (r->headers_in.content_type) {
        request.content_type =
                   ngx_http_latchkey_slice(&r->headers_in.content_type->value);
    }

    if (llcf->bind) {
        if (ngx_http_complex_value(r, llcf->bind, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        request.binding = ngx_http_latchkey_slice(&value);
    }

    if (llcf->ignore) {
        request.ignore = llcf->ignore->elts;
        request.ignore_count = llcf->ignore->nelts;
    }

    if (ngx_http_latchkey_chosen_headers(r, llcf, &request) != NGX_OK
        || ngx_http_latchkey_map_body(r, &request.body, &mapped) != NGX_OK)
    {
        return NGX_ERROR;
    }

    status = latchkey_fingerprint(&request, &fingerprint, NULL);

    if (mapped) {
        (void) munmap((void *) request.body.data, mapped);
    }

    if (status != LK_OK) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: no fingerprint: %s",
                      latchkey_status_text(status));
        return NGX_ERROR;
    }

    latchkey_fingerprint_text(&fingerprint, (char *) text);

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_chosen_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_request *request)
{
    ngx_str_t         *name;
    ngx_uint_t         i, j;
    ngx_array_t        chosen;
    ngx_list_part_t   *part;
    ngx_table_elt_t   *h;
    struct lk_header  *header;

    if (llcf->headers == NULL) {
        return NGX_OK;
    }

    if (ngx_array_init(&chosen, r->pool, 4, sizeof(struct lk_header))
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    name = llcf->headers->elts;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            for (j = 0; j < llcf->headers->nelts; j++) {

                if (h[i].key.len != name[j].len
                    || ngx_strncasecmp(h[i].key.data, name[j].data,
                                       name[j].len)
                       != 0)
                {
                    continue;
                }

                header = ngx_array_push(&chosen);
                if (header == NULL) {
                    return NGX_ERROR;
                }

                header->name = ngx_http_latchkey_slice(&name[j]);
                header->value = ngx_http_latchkey_slice(&h[i].value);
            }
        }
    }

    request->headers = chosen.elts;
    request->header_count = chosen.nelts;

    return NGX_OK;
}


/* nothing was claimed: the error page is not part of an operation */

static ngx_int_t
ngx_http_latchkey_fail(ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* a body in a temporary file is mapped, *mapped bytes; else it is in memory */

static ngx_int_t
ngx_http_latchkey_map_body(ngx_http_request_t *r, struct lk_slice *body,
    size_t *mapped)
{
    void         *p;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    *mapped = 0;

    cl = r->request_body ? r->request_body->bufs : NULL;

    if (cl == NULL) {
        return NGX_OK;
    }

    b = cl->buf;

    if (cl->next || (b->in_file && b->file_pos)) {
        return ngx_http_latchkey_join_body(r, body);
    }

    if (!b->in_file) {
        body->data = (char *) b->pos;
        body->len = b->last - b->pos;
        return NGX_OK;
    }

    if (b->file_last == 0) {
        return NGX_OK;
    }

    p = mmap(NULL, (size_t) b->file_last, PROT_READ, MAP_PRIVATE,
             b->file->fd, 0);

    if (p == MAP_FAILED) {
        ngx_log_error(NGX_LOG_CRIT, r->connection->log, ngx_errno,
                      "mmap(%O) of a request body failed", b->file_last);
        return NGX_ERROR;
    }

    body->data = p;
    body->len = (size_t) b->file_last;
    *mapped = body->len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_join_body(ngx_http_request_t *r, struct lk_slice *body)
{
    u_char       *p;
    size_t        size;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    size = 0;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        size += ngx_buf_size(cl->buf);
    }

    p = ngx_pnalloc(r->pool, size + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = (char *) p;
    body->len = size;

    for (cl = r->request_body->bufs; cl; cl = cl->next) {
        b = cl->buf;

        if (!b->in_file) {
            p = ngx_cpymem(p, b->pos, b->last - b->pos);
            continue;
        }

        size = (size_t) (b->file_last - b->file_pos);
        n = ngx_read_file(b->file, p, size, b->file_pos);

        if (n < 0 || (size_t) n != size) {
            return NGX_ERROR;
        }

        p += n;
    }

    return NGX_OK;
}


static ngx_int_t
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


/* verdicts */

static void
ngx_http_latchkey_verdict(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_answer *answer)
{
    ngx_int_t            rc;
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ctx->waited += ngx_current_msec - ctx->wait_start;

    rc = ngx_http_latchkey_decide(r, ctx, answer);

    if (rc == NGX_DECLINED) {
        ngx_http_latchkey_resume(r);

    } else if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


/* NGX_DECLINED: go on to the app.  NGX_DONE: answered, or waiting. */

static ngx_int_t
ngx_http_latchkey_decide(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_answer *answer)
{
    ngx_chain_t  *out;

    if (ngx_http_latchkey_note(r, ctx, answer) != NGX_OK) {
        return ngx_http_latchkey_fail(ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_NEW) {
        return ngx_http_latchkey_run(r, ctx);
    }

    if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_INFLIGHT
        && ctx->wait_until && !ctx->observe
        && (ngx_msec_int_t) (ctx->wait_until - ngx_current_msec) > 0)
    {
        return ngx_http_latchkey_wait(r, ctx, answer);
    }

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

    ngx_http_finalize_request(r, ngx_http_latchkey_send(r, out));

    return NGX_DONE;
}


/* for the logs; answer NULL: no daemon could decide */

static ngx_int_t
ngx_http_latchkey_note(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_answer *answer)
{
    if (answer == NULL || answer->verdict >= (sizeof(ngx_http_latchkey_says)
                                  / sizeof(ngx_http_latchkey_says[0])))
    {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_UNAVAILABLE;
        return NGX_OK;
    }

    ctx->verdict = ngx_http_latchkey_says[answer->verdict];
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


static ngx_int_t
ngx_http_latchkey_run(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_RUN;

    if (ctx->observe) {
        return NGX_DECLINED;
    }

    /* what is decided for an operation is not decided by a condition */

    r->disable_not_modified = 1;

    if (ngx_http_latchkey_pass_headers(r, ctx) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

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
    const struct lk_answer *answer)
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

    r = ctx->request;
    c = r->connection;

    ngx_http_set_log_request(c->log, r);

    if (ctx->timer.timer_set) {
        ngx_del_timer(&ctx->timer);
    }

    ngx_http_latchkey_await_cancel(&ctx->await);

    ctx->waited += ngx_current_msec - ctx->wait_start;

    rc = ngx_http_latchkey_send_claim(r, ctx);

    if (rc != NGX_DONE) {
        ngx_http_finalize_request(r, rc);
    }

    ngx_http_run_posted_requests(c);
}


static void
ngx_http_latchkey_observe_over(ngx_event_t *ev)
{
    ngx_http_latchkey_verdict(ev->data, NULL);
}


/* headers for the app */

/*
 * Takes away what a client sent under our names.  The list is built anew:
 * r->headers_in points to elements of the old one, which therefore stay.
 */

static ngx_int_t
ngx_http_latchkey_strip_headers(ngx_http_request_t *r)
{
    ngx_uint_t        i, found;
    ngx_list_t        kept;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *copy;

    found = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            found += ngx_http_latchkey_is_ours(&h[i].key);
        }
    }

    if (!found) {
        return NGX_OK;
    }

    if (ngx_list_init(&kept, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_latchkey_is_ours(&h[i].key)) {
                continue;
            }

            copy = ngx_list_push(&kept);
            if (copy == NULL) {
                return NGX_ERROR;
            }

            *copy = h[i];
        }
    }

    r->headers_in.headers = kept;

    if (kept.last == &kept.part) {
        r->headers_in.headers.last = &r->headers_in.headers.part;
    }

    return NGX_OK;
}


/*
 * Whatever begins with Latchkey.  To a FastCGI app "-" and "_" are one, and
 * to PHP other signs are as well: any of them makes the name ours.  Nor may
 * such a name stand in for the Idempotency-Key that was claimed.
 */

static ngx_uint_t
ngx_http_latchkey_is_ours(ngx_str_t *name)
{
    size_t  len;

    len = sizeof("latchkey") - 1;

    if (name->len > len && !ngx_http_latchkey_is_letter(name->data[len])
        && ngx_strncasecmp(name->data, (u_char *) "latchkey", len) == 0)
    {
        return 1;
    }

    len = sizeof("idempotency") - 1;

    return name->len == sizeof("idempotency-key") - 1
           && name->data[len] != '-'
           && !ngx_http_latchkey_is_letter(name->data[len])
           && ngx_strncasecmp(name->data, (u_char *) "idempotency", len) == 0
           && ngx_strncasecmp(name->data + len + 1, (u_char *) "key", 3) == 0;
}


static ngx_uint_t
ngx_http_latchkey_is_letter(u_char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z')
           || (c >= 'a' && c <= 'z');
}


static ngx_int_t
ngx_http_latchkey_pass_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char                  *p;
    ngx_uint_t               i;
    ngx_str_t                scope, token, attempt;
    ngx_table_elt_t         *h;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    /* the op may end before the request, and with it all that it has */

    p = ngx_pnalloc(r->pool, op->scope.len + 2 * NGX_INT64_LEN);
    if (p == NULL) {
        return NGX_ERROR;
    }

    scope.data = p;
    p = ngx_cpymem(p, op->scope.data, op->scope.len);
    scope.len = op->scope.len;

    token.data = p;
    p = ngx_sprintf(p, "%uL", op->token);
    token.len = p - token.data;

    attempt.data = p;
    attempt.len = ngx_sprintf(p, "%uL", op->attempt) - p;

    struct {
        ngx_str_t     name;
        u_char       *lowcase;
        ngx_str_t     value;
    } headers[] = {
        { ngx_string("Latchkey-Tenant"), (u_char *) "latchkey-tenant",
          ctx->tenant },
        { ngx_string("Latchkey-Scope"), (u_char *) "latchkey-scope", scope },
        { ngx_string("Latchkey-Token"), (u_char *) "latchkey-token", token },
        { ngx_string("Latchkey-Attempt"), (u_char *) "latchkey-attempt",
          attempt },
        { ngx_string("Latchkey-Reference"), (u_char *) "latchkey-reference",
          ctx->reference }
    };

    for (i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        h = ngx_list_push(&r->headers_in.headers);
        if (h == NULL) {
            return NGX_ERROR;
        }

        h->key = headers[i].name;
        h->value = headers[i].value;
        h->lowcase_key = headers[i].lowcase;
        h->hash = ngx_hash_key(h->lowcase_key, h->key.len);
#if (nginx_version >= 1023000)
        h->next = NULL;
#endif
    }

    return NGX_OK;
}


/* the context */

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
        op->contacted = ngx_http_latchkey_contacted(ctx->request, ctx->state);

        ctx->op = NULL;
        ngx_http_latchkey_op_detach(op);
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
}
