
/*
 * What an answer of the gateway's own is made of, and how it is sent.
 */


#include "ngx_http_latchkey_module.h"


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


ngx_int_t
ngx_http_latchkey_add_no_store(ngx_http_request_t *r)
{
    static ngx_str_t  value = ngx_string("no-store");

    return ngx_http_latchkey_add_header(r, "Cache-Control", &value)
           ? NGX_OK : NGX_ERROR;
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


/* sending */

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


void
ngx_http_latchkey_finish(ngx_http_request_t *r, ngx_int_t rc)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);

    if (r->header_sent && clcf->post_action.data) {

        /* as nginx marks that it has been */

        r->request_complete = (rc == NGX_OK);
        r->post_action = 1;
        r->uri_changes = 0;
    }

    ngx_http_finalize_request(r, rc);
}


ngx_int_t
ngx_http_latchkey_send_text(ngx_http_request_t *r, const char *content_type,
    struct lk_buf *text)
{
    ngx_buf_t    *b;
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

    if (ngx_http_latchkey_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send(r, out);
}
