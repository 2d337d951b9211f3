
/*
 * The name of an operation, as a request gives it: tenant, scope and key, or a
 * reference.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>


#define NGX_HTTP_LATCHKEY_TENANT_HASH   16      /* bytes of the HMAC */


static ngx_uint_t ngx_http_latchkey_is_uuid(ngx_str_t *key);
static ngx_int_t ngx_http_latchkey_hash_tenant(ngx_http_request_t *r,
    ngx_str_t *value, ngx_str_t *tenant);
static const char *ngx_http_latchkey_tenant_fault(ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_default_scope(ngx_http_request_t *r,
    ngx_str_t *value);


/* the key */

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
                      "so that nobody knows whose key it is; let "
                      "authentication refuse such requests, or take the "
                      "tenant from what all of them have",
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
                      "used; \"hashed\" takes any", fault);
        return NGX_DECLINED;
    }

    *tenant = value;

    return NGX_OK;
}


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
 * It goes to the app in a header, where it must mean the same; and it must not
 * pass for the hash of somebody's secret.  NULL: it does neither.
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
 * What may not stand in a header is escaped, and what is too long ends in a
 * hash of the whole: any scope can be stored, and two stay two.
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

    /* whose it is, the daemon's secret tells; any will do for the form */

    return latchkey_reference_decode(ngx_http_latchkey_slice(text), secret,
                                     &number)
           == LK_OK;
}
