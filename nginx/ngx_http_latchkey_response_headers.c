
/*
 * Headers of an answer: those that are stored for replays, and ours on it.
 */


#include "ngx_http_latchkey_response.h"


static size_t ngx_http_latchkey_headers_size(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_storable(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_table_elt_t *h);


static ngx_str_t  ngx_http_latchkey_token_marks =
    ngx_string("!#$%&'*+-.^_`|~");


ngx_int_t
ngx_http_latchkey_store_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char                  *p;
    ngx_uint_t               i;
    ngx_list_part_t         *part;
    ngx_table_elt_t         *h;
    ngx_http_latchkey_op_t  *op;
    static ngx_str_t         type = ngx_string("Content-Type");

    op = ctx->op;

    if (op->settle != NGX_HTTP_LATCHKEY_SETTLE_KEEP) {
        return NGX_OK;
    }

    p = ngx_pnalloc(op->pool, ngx_http_latchkey_headers_size(r));
    if (p == NULL) {
        return NGX_ERROR;
    }

    op->answer_headers.data = p;

    if (r->headers_out.content_type.len
        && ngx_http_latchkey_header_sound(&type, &r->headers_out.content_type))
    {
        p = ngx_http_latchkey_line(p, &type, &r->headers_out.content_type);
    }

    if (r->headers_out.last_modified_time != -1
        && r->headers_out.last_modified == NULL)
    {
        /* a file's: nginx writes the header itself */

        p = ngx_cpymem(p, "Last-Modified: ", sizeof("Last-Modified: ") - 1);
        p = ngx_http_time(p, r->headers_out.last_modified_time);
        *p++ = CR; *p++ = LF;
    }

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_latchkey_storable(ctx->conf, &h[i])) {
                p = ngx_http_latchkey_line(p, &h[i].key, &h[i].value);
            }
        }
    }

    op->answer_headers.len = p - op->answer_headers.data;

    return NGX_OK;
}


/* at most */

static size_t
ngx_http_latchkey_headers_size(ngx_http_request_t *r)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = sizeof("Content-Type: " CRLF) + r->headers_out.content_type.len
          + sizeof("Last-Modified: Mon, 28 Sep 1970 06:00:00 GMT" CRLF);

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            len += h[i].key.len + h[i].value.len + sizeof(": " CRLF);
        }
    }

    return len;
}


u_char *
ngx_http_latchkey_line(u_char *p, ngx_str_t *name, ngx_str_t *value)
{
    p = ngx_cpymem(p, name->data, name->len);
    *p++ = ':'; *p++ = ' ';
    p = ngx_cpymem(p, value->data, value->len);
    *p++ = CR; *p++ = LF;

    return p;
}


static ngx_uint_t
ngx_http_latchkey_storable(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_table_elt_t *h)
{
    return h->hash != 0
           && ngx_http_latchkey_header_allowed(llcf, &h->key) == NGX_OK
           && ngx_http_latchkey_header_sound(&h->key, &h->value);
}


/* a daemon takes no other: a token of RFC 9110, and no control characters */

ngx_uint_t
ngx_http_latchkey_header_sound(ngx_str_t *name, ngx_str_t *value)
{
    u_char  c;
    size_t  i;

    for (i = 0; i < name->len; i++) {
        c = ngx_tolower(name->data[i]);

        if ((c < 'a' || c > 'z') && (c < '0' || c > '9')
            && ngx_strlchr(ngx_http_latchkey_token_marks.data,
                           ngx_http_latchkey_token_marks.data
                           + ngx_http_latchkey_token_marks.len, c)
               == NULL)
        {
            return 0;
        }
    }

    for (i = 0; i < value->len; i++) {
        c = value->data[i];

        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return 0;
        }
    }

    return name->len != 0;
}


ngx_int_t
ngx_http_latchkey_mark(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    uint64_t                 expires;
    ngx_uint_t               i;
    ngx_list_part_t         *part;
    ngx_table_elt_t         *h;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if ((h[i].key.len == 21
                 && ngx_strncasecmp(h[i].key.data,
                                    (u_char *) "Idempotency-Reference", 21)
                    == 0)
                || (h[i].key.len == 19
                    && (ngx_strncasecmp(h[i].key.data,
                                        (u_char *) "Idempotency-Expires", 19)
                        == 0
                        || ngx_strncasecmp(h[i].key.data,
                                        (u_char *) "Idempotent-Replayed", 19)
                           == 0)))
            {
                h[i].hash = 0;
            }
        }
    }

    if (ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                     &ctx->reference)
        == NULL)
    {
        return NGX_ERROR;
    }

    if (op->settle != NGX_HTTP_LATCHKEY_SETTLE_KEEP
        && op->settle != NGX_HTTP_LATCHKEY_SETTLE_OMIT)
    {
        return NGX_OK;
    }

    /* by the daemon's clock, as a replay will say it */

    expires = ctx->expires_ms
              ? ctx->expires_ms
              : op->claimed_ms + (ngx_msec_t) (ngx_current_msec
                                               - op->claimed_at)
                + op->ttl;

    return ngx_http_latchkey_add_expires(r, expires);
}
