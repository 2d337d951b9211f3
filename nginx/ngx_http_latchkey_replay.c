
/*
 * A stored answer once more, and the headers that it may carry.
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
