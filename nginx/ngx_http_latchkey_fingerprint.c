
/*
 * What a request means, as one hash; the body may be in a file.
 */


#include "ngx_http_latchkey_module.h"

#include <sys/mman.h>


static void ngx_http_latchkey_request_line(ngx_http_request_t *r,
    struct lk_request *request);
static ngx_int_t ngx_http_latchkey_content_encoding(ngx_http_request_t *r,
    struct lk_request *request);
static ngx_int_t ngx_http_latchkey_chosen_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_request *request);
static ngx_int_t ngx_http_latchkey_map_body(ngx_http_request_t *r,
    struct lk_slice *body, size_t *mapped);


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


/* as it was sent, whatever a rewrite has made of it */

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


/* all of them as one, joined by ", " */

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

            if (!ngx_http_latchkey_passes_for(&h[i].key, "content-encoding")) {
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


/* a body in a temporary file is mapped, *mapped bytes; else it is in memory */

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
