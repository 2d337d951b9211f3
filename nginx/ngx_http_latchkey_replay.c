
/*
 * A stored answer once more, and the headers that it may carry.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_replay_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_slice block);
static ngx_int_t ngx_http_latchkey_replay_header(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, u_char *line, u_char *end);
static ngx_int_t ngx_http_latchkey_point_at(ngx_http_request_t *r,
    ngx_table_elt_t *h);
static ngx_int_t ngx_http_latchkey_point_at_each(ngx_http_request_t *r,
    size_t offset, ngx_table_elt_t *h);


/*
 * Headers that nginx's own filters find by a pointer (gzip, sub_filter,
 * expires ...): a replay has them set as the first answer had.
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


/* lower case; a name that ends in "-" stands for all that begin with it */

static ngx_str_t  ngx_http_latchkey_allowed[] = {
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


ngx_chain_t *
ngx_http_latchkey_set_replay(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
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

    if (ngx_http_latchkey_replay_headers(r, ctx->conf, headers) != NGX_OK) {
        return NULL;
    }

    /* KEPT: this request ran it, so nobody had the answer before */

    if (answer->verdict != LK_VERDICT_KEPT
        && ngx_http_latchkey_add_header(r, "Idempotent-Replayed", &yes)
           == NULL)
    {
        return NULL;
    }

    if (ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                        &ctx->reference)
           == NULL
        || ngx_http_latchkey_add_expires(r, answer->expires_ms) != NGX_OK)
    {
        return NULL;
    }

    return ngx_http_latchkey_set_body(r, body, answer->response.body.len);
}


ngx_int_t
ngx_http_latchkey_take_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    u_char                       *p;
    ngx_uint_t                    i;
    struct lk_slice               block;
    ngx_list_part_t              *part;
    ngx_table_elt_t              *h;
    ngx_http_latchkey_pointer_t  *pointer;

    block = answer->response.headers;

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
