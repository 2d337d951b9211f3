
/*
 * `idempotency_max_age`: whether a request is young enough to start something.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_read_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, uint64_t *ms,
    ngx_str_t *detail);
static ngx_int_t ngx_http_latchkey_say_age(ngx_http_request_t *r,
    ngx_str_t *detail, const char *format, uint64_t ms, ngx_msec_t limit);


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
                            "not tell when the request was made.");
        return NGX_DECLINED;
    }

    if (llcf->age_source == NULL
        || ngx_http_complex_value(r, llcf->age_source, &value) != NGX_OK
        || value.len == 0)
    {
        ngx_str_set(detail, "The request does not say when it was made.");
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
