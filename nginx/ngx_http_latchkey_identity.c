
/*
 * What a request says about its operation: tenant, scope and key, which name
 * it; the fingerprint, which is what the request means; and its age.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/mman.h>


#define NGX_HTTP_LATCHKEY_TENANT_HASH   16      /* bytes of the HMAC */


static ngx_uint_t ngx_http_latchkey_is_uuid(ngx_str_t *key);
static ngx_int_t ngx_http_latchkey_hash_tenant(ngx_http_request_t *r,
    ngx_str_t *value, ngx_str_t *tenant);
static const char *ngx_http_latchkey_tenant_fault(ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_default_scope(ngx_http_request_t *r,
    ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_read_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, uint64_t *ms,
    ngx_str_t *detail);
static ngx_int_t ngx_http_latchkey_say_age(ngx_http_request_t *r,
    ngx_str_t *detail, const char *format, uint64_t ms, ngx_msec_t limit);
static void ngx_http_latchkey_request_line(ngx_http_request_t *r,
    struct lk_request *request);
static ngx_int_t ngx_http_latchkey_content_encoding(ngx_http_request_t *r,
    struct lk_request *request);
static ngx_int_t ngx_http_latchkey_chosen_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_request *request);
static ngx_int_t ngx_http_latchkey_map_body(ngx_http_request_t *r,
    struct lk_slice *body, size_t *mapped);


/* the key */

/*
 * Walks the list itself: nginx 1.23 joins headers of one name in $http_*,
 * older versions take the first.
 */

ngx_int_t
ngx_http_latchkey_get_key(ngx_http_request_t *r, ngx_str_t *value)
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


ngx_int_t
ngx_http_latchkey_read_key(ngx_pool_t *pool, ngx_str_t *value, ngx_str_t *key,
    const char **fault)
{
    u_char             *p;
    struct lk_buf       buf;
    enum lk_status      status;
    enum lk_key_fault   found;

    ngx_memzero(&buf, sizeof(struct lk_buf));

    status = latchkey_key_parse(ngx_http_latchkey_slice(value), &buf, &found,
                                NULL);

    if (status == LK_MALFORMED) {
        *fault = latchkey_key_fault_text(found);
        return NGX_DECLINED;
    }

    p = status == LK_OK ? ngx_pnalloc(pool, buf.len) : NULL;

    if (p) {
        ngx_memcpy(p, buf.data, buf.len);
        key->data = p;
        key->len = buf.len;
    }

    latchkey_buf_free(&buf);

    return p ? NGX_OK : NGX_ERROR;
}


/* The syntax first, then what the route requires. */

const char *
ngx_http_latchkey_parse_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value)
{
    ngx_int_t    rc;
    const char  *fault;

    rc = ngx_http_latchkey_read_key(r->pool, value, &ctx->key, &fault);

    if (rc != NGX_OK) {
        return rc == NGX_DECLINED ? fault : "out of memory";
    }

    if (ctx->conf->key_uuid && !ngx_http_latchkey_is_uuid(&ctx->key)) {
        return "the key is not a UUID, which this route requires";
    }

    if (ctx->key.len < ctx->conf->key_min) {
        return "the key is shorter than this route requires";
    }

    return NULL;
}


/* Any version, in either case. */

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

/*
 * An empty tenant is never a tenant of its own: all clients without one would
 * share their keys.
 */

ngx_int_t
ngx_http_latchkey_get_tenant(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *tenant)
{
    ngx_str_t    value;
    const char  *fault;

    if (llcf->tenant == NULL) {
        return NGX_DECLINED;
    }

    if (ngx_http_complex_value(r, llcf->tenant, &value) != NGX_OK) {
        return NGX_ERROR;
    }

    if (value.len == 0) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "\"idempotency_tenant %V\" is empty for this request, "
                      "so its key belongs to no one; let authentication "
                      "refuse such requests, or use a value that all of them "
                      "have",
                      &llcf->tenant->value);
        return NGX_DECLINED;
    }

    if (llcf->hashed) {
        return ngx_http_latchkey_hash_tenant(r, &value, tenant);
    }

    fault = ngx_http_latchkey_tenant_fault(&value);

    if (fault) {
        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "the value of \"idempotency_tenant\" %s and cannot be "
                      "used; with \"hashed\" any value can", fault);
        return NGX_DECLINED;
    }

    *tenant = value;

    return NGX_OK;
}


/* An HMAC with idempotency_secret, so that a credential is never stored. */

static ngx_int_t
ngx_http_latchkey_hash_tenant(ngx_http_request_t *r, ngx_str_t *value,
    ngx_str_t *tenant)
{
    u_char                         *p;
    unsigned int                    len;
    unsigned char                   mac[EVP_MAX_MD_SIZE];
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);

    p = ngx_pnalloc(r->pool, 2 + 2 * NGX_HTTP_LATCHKEY_TENANT_HASH);
    if (p == NULL
        || HMAC(EVP_sha256(), lmcf->secret.data, (int) lmcf->secret.len,
                value->data, value->len, mac, &len)
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
 * The tenant goes to the app in a header, where it must mean the same; and it
 * must not look like the hash of a secret.  NULL: it is valid.
 */

static const char *
ngx_http_latchkey_tenant_fault(ngx_str_t *value)
{
    size_t  i;

    if (value->len > NGX_HTTP_LATCHKEY_TENANT_MAX) {
        return "is longer than 255 bytes";
    }

    if (value->data[0] == ' ' || value->data[value->len - 1] == ' ') {
        return "begins or ends with a space";
    }

    if (value->len > 2 && value->data[0] == 'h' && value->data[1] == ':') {
        return "begins with \"h:\" like a hashed one";
    }

    for (i = 0; i < value->len; i++) {
        if (value->data[i] < 0x20 || value->data[i] == 0x7f) {
            return "contains a control character";
        }
    }

    return NULL;
}


/*
 * Characters that are not valid in a header are escaped, and a scope that is
 * too long ends in a hash of the whole: any scope can be stored, and different
 * scopes stay different.
 */

ngx_int_t
ngx_http_latchkey_get_scope(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *scope)
{
    u_char     *p, *end, *src;
    ngx_str_t   value;
    u_char      digest[SHA256_DIGEST_LENGTH];

    if (llcf->scope) {
        if (ngx_http_complex_value(r, llcf->scope, &value) != NGX_OK) {
            return NGX_ERROR;
        }

        if (value.len == 0) {
            ngx_str_set(&value, "*");
        }

    } else if (ngx_http_latchkey_default_scope(r, &value) != NGX_OK) {
        return NGX_ERROR;
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


/* the method and the path, as they were sent */

static ngx_int_t
ngx_http_latchkey_default_scope(ngx_http_request_t *r, ngx_str_t *value)
{
    u_char  *p;
    size_t   len;

    p = ngx_strlchr(r->unparsed_uri.data,
                    r->unparsed_uri.data + r->unparsed_uri.len, '?');
    len = p ? (size_t) (p - r->unparsed_uri.data) : r->unparsed_uri.len;

    value->len = r->method_name.len + 1 + len;
    value->data = ngx_pnalloc(r->pool, value->len);
    if (value->data == NULL) {
        return NGX_ERROR;
    }

    p = ngx_cpymem(value->data, r->method_name.data, r->method_name.len);
    *p++ = ' ';
    ngx_memcpy(p, r->unparsed_uri.data, len);

    return NGX_OK;
}


/* the reference */

ngx_uint_t
ngx_http_latchkey_is_reference(ngx_str_t *text)
{
    uint64_t              number;
    static const uint8_t  secret[LK_REFERENCE_KEY];

    /*
     * only the form is checked here, with any secret; the daemon has the real
     * one
     */

    return latchkey_reference_decode(ngx_http_latchkey_slice(text), secret,
                                     &number)
           == LK_OK;
}


ngx_int_t
ngx_http_latchkey_check_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, ngx_str_t *detail)
{
    uint64_t     made, now;
    ngx_time_t  *tp;

    if (llcf->max_age == 0) {
        return NGX_OK;
    }

    if (ngx_http_latchkey_read_age(r, llcf, key, &made, detail) != NGX_OK) {
        return NGX_DECLINED;
    }

    tp = ngx_timeofday();
    now = (uint64_t) tp->sec * 1000 + tp->msec;

    if (made <= now) {

        if (now - made <= llcf->max_age) {
            return NGX_OK;
        }

        return ngx_http_latchkey_say_age(r, detail,
                               "The request was made %uL seconds ago; after "
                               "%uL seconds it may not start anything.",
                               now - made, llcf->max_age);
    }

    if (made - now <= llcf->max_skew) {
        return NGX_OK;
    }

    return ngx_http_latchkey_say_age(r, detail,
                               "The time of the request is %uL seconds "
                               "ahead; at most %uL seconds are allowed.",
                               made - now, llcf->max_skew);
}


static ngx_int_t
ngx_http_latchkey_read_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, uint64_t *ms,
    ngx_str_t *detail)
{
    ngx_str_t  value;

    if (llcf->age_uuid) {

        if (latchkey_uuid7_time(ngx_http_latchkey_slice(key), ms) == LK_OK) {
            return NGX_OK;
        }

        ngx_str_set(detail, "The key is not a UUID of version 7, so it does "
                            "not contain the time of the request.");
        return NGX_DECLINED;
    }

    if (llcf->age_source == NULL
        || ngx_http_complex_value(r, llcf->age_source, &value) != NGX_OK
        || value.len == 0)
    {
        ngx_str_set(detail, "The request does not contain the time when it "
                            "was made.");
        return NGX_DECLINED;
    }

    if (latchkey_timestamp_parse(ngx_http_latchkey_slice(&value), ms)
        == LK_OK)
    {
        return NGX_OK;
    }

    ngx_str_set(detail, "The time of the request cannot be read: Unix time, "
                        "RFC 3339 or an HTTP-date is expected.");

    return NGX_DECLINED;
}


/* always NGX_DECLINED; the numbers in `format` are seconds */

static ngx_int_t
ngx_http_latchkey_say_age(ngx_http_request_t *r, ngx_str_t *detail,
    const char *format, uint64_t ms, ngx_msec_t limit)
{
    size_t  size;

    size = ngx_strlen(format) + 2 * NGX_INT64_LEN;

    detail->data = ngx_pnalloc(r->pool, size);
    if (detail->data == NULL) {
        ngx_str_set(detail, "The request is not fresh.");
        return NGX_DECLINED;
    }

    detail->len = ngx_snprintf(detail->data, size, format, ms / 1000,
                               (uint64_t) limit / 1000)
                  - detail->data;

    return NGX_DECLINED;
}


/*
 * The same request must give the same bytes on every gateway and version: this
 * is compared with what is stored.
 */

ngx_int_t
ngx_http_latchkey_fingerprint_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, u_char *text)
{
    size_t                         mapped;
    ngx_str_t                      value;
    enum lk_status                 status;
    struct lk_request              request;
    struct lk_fingerprint          fingerprint;
    ngx_http_latchkey_loc_conf_t  *llcf;

    llcf = ctx->conf;

    ngx_memzero(&request, sizeof(struct lk_request));

    ngx_http_latchkey_request_line(r, &request);

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

    if (ngx_http_latchkey_content_encoding(r, &request) != NGX_OK
        || ngx_http_latchkey_chosen_headers(r, llcf, &request) != NGX_OK
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


/* as it was sent, before any rewrite */

static void
ngx_http_latchkey_request_line(ngx_http_request_t *r,
    struct lk_request *request)
{
    u_char  *p, *end;

    request->method = ngx_http_latchkey_slice(&r->method_name);
    request->path = ngx_http_latchkey_slice(&r->unparsed_uri);

    end = r->unparsed_uri.data + r->unparsed_uri.len;
    p = ngx_strlchr(r->unparsed_uri.data, end, '?');

    if (p) {
        request->path.len = p - r->unparsed_uri.data;
        request->query.data = (char *) p + 1;
        request->query.len = end - p - 1;
    }

    if (r->headers_in.content_type) {
        request->content_type =
                   ngx_http_latchkey_slice(&r->headers_in.content_type->value);
    }
}


/* all headers of that name as one, joined by ", " */

static ngx_int_t
ngx_http_latchkey_content_encoding(ngx_http_request_t *r,
    struct lk_request *request)
{
    u_char           *p;
    ngx_uint_t        i;
    ngx_array_t       text;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    if (ngx_array_init(&text, r->pool, 32, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_resembles(&h[i].key, "content-encoding")) {
                continue;
            }

            p = ngx_array_push_n(&text, h[i].value.len + 2);
            if (p == NULL) {
                return NGX_ERROR;
            }

            p = ngx_cpymem(p, h[i].value.data, h[i].value.len);
            ngx_memcpy(p, ", ", 2);
        }
    }

    request->content_encoding.data = text.elts;
    request->content_encoding.len = text.nelts ? text.nelts - 2 : 0;

    return NGX_OK;
}


/* The array is in the request's pool; the values are not copied. */

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


/*
 * The library wants the body in one piece.  nginx keeps a large one in a
 * temporary file, which is mapped, *mapped bytes; else *mapped is 0.
 */

static ngx_int_t
ngx_http_latchkey_map_body(ngx_http_request_t *r, struct lk_slice *body,
    size_t *mapped)
{
    void         *p;
    ngx_buf_t    *b;
    ngx_str_t     copy;
    ngx_chain_t  *cl;

    *mapped = 0;

    cl = r->request_body ? r->request_body->bufs : NULL;

    if (cl == NULL) {
        return NGX_OK;
    }

    b = cl->buf;

    if (cl->next || (b->in_file && b->file_pos)) {
        if (ngx_http_latchkey_copy_body(r, r->pool, &copy) != NGX_OK) {
            return NGX_ERROR;
        }

        *body = ngx_http_latchkey_slice(&copy);
        return NGX_OK;
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


off_t
ngx_http_latchkey_body_size(ngx_http_request_t *r)
{
    off_t         size;
    ngx_chain_t  *cl;

    size = 0;

    for (cl = r->request_body ? r->request_body->bufs : NULL; cl;
         cl = cl->next)
    {
        size += ngx_buf_size(cl->buf);
    }

    return size;
}


ngx_int_t
ngx_http_latchkey_copy_body(ngx_http_request_t *r, ngx_pool_t *pool,
    ngx_str_t *body)
{
    u_char       *p;
    size_t        size;
    ssize_t       n;
    ngx_buf_t    *b;
    ngx_chain_t  *cl;

    body->len = (size_t) ngx_http_latchkey_body_size(r);

    p = ngx_pnalloc(pool, body->len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    body->data = p;

    for (cl = r->request_body ? r->request_body->bufs : NULL; cl;
         cl = cl->next)
    {
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
