
/*
 * The headers by which the app learns whose operation it runs: added by the
 * gateway alone, whatever a client sends under their names.
 */


#include "ngx_http_latchkey_module.h"


#if (nginx_version >= 1023000)
static void ngx_http_latchkey_link_headers(ngx_list_t *list);
#endif
static ngx_int_t ngx_http_latchkey_strip(ngx_http_request_t *r,
    ngx_uint_t (*is_stripped)(ngx_str_t *name));
static ngx_uint_t ngx_http_latchkey_is_forged(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_ours(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_letter(u_char c);


/* headers for the app */

/*
 * Before anything of a server or a location is done with a request: what a
 * client sent under our names is taken away, also where nothing is guarded.
 * In both phases, since a named location is entered in the second, and an
 * error page of a request that could not be read begins with either.  Once
 * there is a ctx, the names may be ours.
 */

ngx_int_t
ngx_http_latchkey_strip_handler(ngx_http_request_t *r)
{
    if (r != r->main || ngx_http_latchkey_get_ctx(r)
        || ngx_http_latchkey_is_courier(r))
    {
        return NGX_DECLINED;
    }

    return ngx_http_latchkey_strip(r, ngx_http_latchkey_is_forged) == NGX_OK
           ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


ngx_int_t
ngx_http_latchkey_strip_headers(ngx_http_request_t *r)
{
    return ngx_http_latchkey_strip(r, ngx_http_latchkey_is_ours);
}


/*
 * The list is built anew: r->headers_in points to elements of the old one,
 * which therefore stay.
 */

static ngx_int_t
ngx_http_latchkey_strip(ngx_http_request_t *r,
    ngx_uint_t (*is_stripped)(ngx_str_t *name))
{
    ngx_uint_t        i, found;
    ngx_list_t        kept;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h, *copy;

    found = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            found += is_stripped(&h[i].key);
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
            if (is_stripped(&h[i].key)) {
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

#if (nginx_version >= 1023000)
    ngx_http_latchkey_link_headers(&r->headers_in.headers);
#endif

    return NGX_OK;
}


#if (nginx_version >= 1023000)

/* headers of one name are linked, each to the next: so must the copies be */

static void
ngx_http_latchkey_link_headers(ngx_list_t *list)
{
    ngx_uint_t        i, j;
    ngx_list_part_t  *part, *later;
    ngx_table_elt_t  *h, *next;

    for (part = &list->part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            h[i].next = NULL;
            j = i + 1;

            for (later = part; later && h[i].next == NULL;
                 later = later->next)
            {
                next = later->elts;

                for ( /* void */ ; j < later->nelts; j++) {
                    if (next[j].hash == h[i].hash
                        && next[j].key.len == h[i].key.len
                        && ngx_strncasecmp(next[j].key.data, h[i].key.data,
                                           h[i].key.len)
                           == 0)
                    {
                        h[i].next = &next[j];
                        break;
                    }
                }

                j = 0;
            }
        }
    }
}

#endif


/*
 * Whatever begins with Latchkey.  To a FastCGI app "-" and "_" are one, and
 * to PHP other signs are as well: any of them makes the name ours.
 */

static ngx_uint_t
ngx_http_latchkey_is_forged(ngx_str_t *name)
{
    size_t  len;

    len = sizeof("latchkey") - 1;

    return name->len > len && !ngx_http_latchkey_is_letter(name->data[len])
           && ngx_strncasecmp(name->data, (u_char *) "latchkey", len) == 0;
}


/* nor may such a name stand in for the Idempotency-Key that was claimed */

static ngx_uint_t
ngx_http_latchkey_is_ours(ngx_str_t *name)
{
    size_t  len;

    len = sizeof("idempotency") - 1;

    return ngx_http_latchkey_is_forged(name)
           || (ngx_http_latchkey_passes_for(name, "idempotency-key")
               && name->data[len] != '-');
}


/* as is_ours() has it: a "-" of `known` may be any sign */

ngx_uint_t
ngx_http_latchkey_passes_for(ngx_str_t *name, const char *known)
{
    size_t  i;

    for (i = 0; i < name->len; i++) {
        if (known[i] == '-' ? ngx_http_latchkey_is_letter(name->data[i])
                            : ngx_tolower(name->data[i]) != known[i])
        {
            return 0;
        }
    }

    return known[i] == '\0';
}


ngx_uint_t
ngx_http_latchkey_count_headers(ngx_http_request_t *r, const char *known)
{
    ngx_uint_t        i, n;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    n = 0;

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            n += ngx_http_latchkey_passes_for(&h[i].key, known);
        }
    }

    return n;
}


static ngx_uint_t
ngx_http_latchkey_is_letter(u_char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z')
           || (c >= 'a' && c <= 'z');
}


ngx_int_t
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
        { ngx_string("Latchkey-Key"), (u_char *) "latchkey-key", ctx->key },
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
