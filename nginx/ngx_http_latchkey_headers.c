
/*
 * Headers, in three directions: Latchkey-* headers to the app, which only the
 * gateway may set; headers of the response that are stored; and stored headers
 * that a replay carries.
 */


#include "ngx_http_latchkey_module.h"


/*
 * Headers that nginx's own filters find by a pointer (gzip, sub_filter,
 * expires ...): a replay sets the pointers as the first response did.
 */

typedef struct {
    ngx_str_t   name;
    size_t      offset;                          /* in headers_out */
    ngx_uint_t  many;                            /* one for each line */
} ngx_http_latchkey_pointer_t;

static ngx_http_latchkey_pointer_t  ngx_http_latchkey_pointers[] = {
    { ngx_string("Content-Encoding"),
      offsetof(ngx_http_headers_out_t, content_encoding), 0 },
    { ngx_string("Content-Range"),
      offsetof(ngx_http_headers_out_t, content_range), 0 },
    { ngx_string("ETag"), offsetof(ngx_http_headers_out_t, etag), 0 },
    { ngx_string("Expires"), offsetof(ngx_http_headers_out_t, expires), 0 },
    { ngx_string("Last-Modified"),
      offsetof(ngx_http_headers_out_t, last_modified), 0 },
    { ngx_string("Cache-Control"),
      offsetof(ngx_http_headers_out_t, cache_control), 1 },
    { ngx_string("Link"), offsetof(ngx_http_headers_out_t, link), 1 },
    { ngx_null_string, 0, 0 }
};


static ngx_int_t ngx_http_latchkey_strip_matching(ngx_http_request_t *r,
    ngx_uint_t (*is_stripped)(ngx_str_t *name));
#if (nginx_version >= 1023000)
static void ngx_http_latchkey_link_headers(ngx_list_t *list);
#endif
static ngx_uint_t ngx_http_latchkey_is_forged(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_ours(ngx_str_t *name);
static ngx_uint_t ngx_http_latchkey_is_letter(u_char c);
static size_t ngx_http_latchkey_headers_size(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_is_storable(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_table_elt_t *h);
static ngx_int_t ngx_http_latchkey_replay_header(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *line, u_char *end);
static ngx_int_t ngx_http_latchkey_point_at(ngx_http_request_t *r,
    ngx_table_elt_t *h);
static ngx_int_t ngx_http_latchkey_point_at_each(ngx_http_request_t *r,
    size_t offset, ngx_table_elt_t *h);
static ngx_int_t ngx_http_latchkey_header_allowed(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name);


/* the gateway's: what an app sends under these names is dropped */

static ngx_str_t  ngx_http_latchkey_own_headers[] = {
    ngx_string("Idempotency-Reference"),
    ngx_string("Idempotency-Expires"),
    ngx_string("Idempotent-Replayed"),
    ngx_null_string
};


static ngx_str_t  ngx_http_latchkey_token_marks =
    ngx_string("!#$%&'*+-.^_`|~");


/* in lower case; a name that ends in "-" is a prefix */

static ngx_str_t  ngx_http_latchkey_replayed_headers[] = {
    ngx_string("content-type"),
    ngx_string("content-language"),
    ngx_string("content-encoding"),
    ngx_string("content-disposition"),
    ngx_string("content-location"),
    ngx_string("content-range"),
    ngx_string("content-digest"),
    ngx_string("repr-digest"),
    ngx_string("location"),
    ngx_string("allow"),
    ngx_string("accept-post"),
    ngx_string("accept-patch"),
    ngx_string("retry-after"),
    ngx_string("preference-applied"),
    ngx_string("expires"),
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


/* headers for the app */

/*
 * Before the rewrite directives of a server or location run: Latchkey-*
 * headers that a client sent are removed, also where nothing is guarded.  In
 * both phases, because a named location begins with the second, and an error
 * page of a request that could not be read begins with either.  Once there is
 * a ctx, the headers may be ours.
 */

ngx_int_t
ngx_http_latchkey_strip_handler(ngx_http_request_t *r)
{
    if (r != r->main || ngx_http_latchkey_get_ctx(r)
        || ngx_http_latchkey_is_courier(r))
    {
        return NGX_DECLINED;
    }

    return ngx_http_latchkey_strip_matching(r, ngx_http_latchkey_is_forged)
           == NGX_OK ? NGX_DECLINED : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/*
 * Before the claim, so that the app sees the key that was claimed and no
 * other.
 */

ngx_int_t
ngx_http_latchkey_strip_headers(ngx_http_request_t *r)
{
    return ngx_http_latchkey_strip_matching(r, ngx_http_latchkey_is_ours);
}


/*
 * The list is built again: r->headers_in points to elements of the old list,
 * which therefore stay.
 */

static ngx_int_t
ngx_http_latchkey_strip_matching(ngx_http_request_t *r,
    ngx_uint_t (*is_stripped)(ngx_str_t *name))
{
    ngx_uint_t        i, found;
    ngx_list_t        rest;
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

    if (ngx_list_init(&rest, r->pool, 20, sizeof(ngx_table_elt_t)) != NGX_OK) {
        return NGX_ERROR;
    }

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (is_stripped(&h[i].key)) {
                continue;
            }

            copy = ngx_list_push(&rest);
            if (copy == NULL) {
                return NGX_ERROR;
            }

            *copy = h[i];
        }
    }

    r->headers_in.headers = rest;

    if (rest.last == &rest.part) {
        r->headers_in.headers.last = &r->headers_in.headers.part;
    }

#if (nginx_version >= 1023000)
    ngx_http_latchkey_link_headers(&r->headers_in.headers);
#endif

    return NGX_OK;
}


#if (nginx_version >= 1023000)

/* nginx links headers of one name, each to the next: so must the copies be */

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
 * Names that begin with Latchkey.  For a FastCGI app "-" and "_" are the same,
 * and for PHP other characters, too: with any of them the name is ours.
 */

static ngx_uint_t
ngx_http_latchkey_is_forged(ngx_str_t *name)
{
    size_t  len;

    len = sizeof("latchkey") - 1;

    return name->len > len && !ngx_http_latchkey_is_letter(name->data[len])
           && ngx_strncasecmp(name->data, (u_char *) "latchkey", len) == 0;
}


/* no such name may replace the Idempotency-Key that was claimed */

static ngx_uint_t
ngx_http_latchkey_is_ours(ngx_str_t *name)
{
    size_t  len;

    len = sizeof("idempotency") - 1;

    return ngx_http_latchkey_is_forged(name)
           || (ngx_http_latchkey_resembles(name, "idempotency-key")
               && name->data[len] != '-');
}


/* like is_ours(): a "-" of `known` may be any such character */

ngx_uint_t
ngx_http_latchkey_resembles(ngx_str_t *name, const char *known)
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


/* Counts names that an app may take for `known`, too. */

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
            n += ngx_http_latchkey_resembles(&h[i].key, known);
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


/*
 * The app completes the operation itself with these, in its own transaction.
 */

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

    /* the op may be freed before the request, and with it its strings */

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


/* Only a response that is stored needs them. */

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

    op->response_headers.data = p;

    if (r->headers_out.content_type.len
        && ngx_http_latchkey_is_valid_header(&type,
                                             &r->headers_out.content_type))
    {
        p = ngx_http_latchkey_write_header(p, &type,
                                           &r->headers_out.content_type);
    }

    if (r->headers_out.last_modified_time != -1
        && r->headers_out.last_modified == NULL)
    {
        /* of a static file: nginx writes the header itself */

        p = ngx_cpymem(p, "Last-Modified: ", sizeof("Last-Modified: ") - 1);
        p = ngx_http_time(p, r->headers_out.last_modified_time);
        *p++ = CR; *p++ = LF;
    }

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_latchkey_is_storable(ctx->conf, &h[i])) {
                p = ngx_http_latchkey_write_header(p, &h[i].key, &h[i].value);
            }
        }
    }

    op->response_headers.len = p - op->response_headers.data;

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
ngx_http_latchkey_write_header(u_char *p, ngx_str_t *name, ngx_str_t *value)
{
    p = ngx_cpymem(p, name->data, name->len);
    *p++ = ':'; *p++ = ' ';
    p = ngx_cpymem(p, value->data, value->len);
    *p++ = CR; *p++ = LF;

    return p;
}


static ngx_uint_t
ngx_http_latchkey_is_storable(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_table_elt_t *h)
{
    return h->hash != 0
           && ngx_http_latchkey_header_allowed(llcf, &h->key) == NGX_OK
           && ngx_http_latchkey_is_valid_header(&h->key, &h->value);
}


/* the daemon accepts only a token of RFC 9110, without control characters */

ngx_uint_t
ngx_http_latchkey_is_valid_header(ngx_str_t *name, ngx_str_t *value)
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


ngx_uint_t
ngx_http_latchkey_is_header(ngx_table_elt_t *h, ngx_str_t *name)
{
    return h->key.len == name->len
           && ngx_strncasecmp(h->key.data, name->data, name->len) == 0;
}


/* a hash of 0 is how nginx marks a header that is not to be sent */

void
ngx_http_latchkey_drop_headers(ngx_http_request_t *r, ngx_str_t *names)
{
    ngx_str_t        *name;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            for (name = names; name->len; name++) {
                if (ngx_http_latchkey_is_header(&h[i], name)) {
                    h[i].hash = 0;
                }
            }
        }
    }
}


ngx_int_t
ngx_http_latchkey_add_own_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    uint64_t                 expires;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    ngx_http_latchkey_drop_headers(r, ngx_http_latchkey_own_headers);

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

    /* by the daemon's clock, like on a replay */

    expires = ctx->expires_ms
              ? ctx->expires_ms
              : op->claimed_ms + (ngx_msec_t) (ngx_current_msec
                                               - op->claimed_at)
                + op->ttl;

    return ngx_http_latchkey_add_expires(r, expires);
}


/*
 * The client gets the headers that a retry will get, although the app sent
 * others this time.
 */

ngx_int_t
ngx_http_latchkey_take_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    u_char                       *p;
    ngx_uint_t                    i;
    struct lk_slice               block;
    ngx_list_part_t              *part;
    ngx_table_elt_t              *h;
    ngx_http_latchkey_pointer_t  *pointer;

    block = decision->response.headers;

    p = ngx_pnalloc(r->pool, block.len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (block.len) {
        ngx_memcpy(p, block.data, block.len);
    }

    block.data = (char *) p;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_latchkey_header_allowed(ctx->conf, &h[i].key)
                == NGX_OK)
            {
                h[i].hash = 0;
            }
        }
    }

    for (pointer = ngx_http_latchkey_pointers; pointer->name.len; pointer++) {
        ngx_memzero((u_char *) &r->headers_out + pointer->offset,
                    pointer->many ? sizeof(r->headers_out.link)
                                  : sizeof(ngx_table_elt_t *));
    }

    r->headers_out.location = NULL;
    r->headers_out.last_modified_time = -1;
    r->headers_out.content_type.len = 0;
    r->headers_out.content_type_len = 0;
    r->headers_out.charset.len = 0;

    return ngx_http_latchkey_replay_headers(r, ctx->conf, block);
}


ngx_int_t
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
 * `line` is "Name: value".  One that is not on the list is skipped, and so is
 * one that could hide another: an app may have completed the operation itself,
 * with any bytes.
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

    return ngx_http_latchkey_point_at(r, h);
}


static ngx_int_t
ngx_http_latchkey_point_at(ngx_http_request_t *r, ngx_table_elt_t *h)
{
    ngx_http_latchkey_pointer_t  *pointer;

    for (pointer = ngx_http_latchkey_pointers; pointer->name.len; pointer++) {

        if (h->key.len != pointer->name.len
            || ngx_strncasecmp(h->key.data, pointer->name.data, h->key.len)
               != 0)
        {
            continue;
        }

        if (pointer->many) {
            return ngx_http_latchkey_point_at_each(r, pointer->offset, h);
        }

        *(ngx_table_elt_t **) ((u_char *) &r->headers_out + pointer->offset)
            = h;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_point_at_each(ngx_http_request_t *r, size_t offset,
    ngx_table_elt_t *h)
{
#if (nginx_version >= 1023000)
    ngx_table_elt_t  **ph;

    ph = (ngx_table_elt_t **) ((u_char *) &r->headers_out + offset);

    while (*ph) { ph = &(*ph)->next; }

    *ph = h;
#else
    ngx_array_t       *lines;
    ngx_table_elt_t  **ph;

    lines = (ngx_array_t *) ((u_char *) &r->headers_out + offset);

    if (lines->elts == NULL
        && ngx_array_init(lines, r->pool, 2, sizeof(ngx_table_elt_t *))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ph = ngx_array_push(lines);
    if (ph == NULL) {
        return NGX_ERROR;
    }

    *ph = h;
#endif

    return NGX_OK;
}


/* NGX_OK: on the list of headers that a replay may carry */

static ngx_int_t
ngx_http_latchkey_header_allowed(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_str_t *name)
{
    ngx_str_t   *allowed, *own;
    ngx_uint_t   i;

    for (allowed = ngx_http_latchkey_replayed_headers;
         allowed->len;
         allowed++)
    {
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
