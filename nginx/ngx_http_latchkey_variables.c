
/*
 * Variables $idempotency_*: verdict, outcome and reference of a request, for
 * logs and headers.
 */


#include "ngx_http_latchkey_module.h"


typedef enum {
    NGX_HTTP_LATCHKEY_VAR_VERDICT = 0,
    NGX_HTTP_LATCHKEY_VAR_OUTCOME,
    NGX_HTTP_LATCHKEY_VAR_REFERENCE,
    NGX_HTTP_LATCHKEY_VAR_ATTEMPT,
    NGX_HTTP_LATCHKEY_VAR_WAIT_TIME,
    NGX_HTTP_LATCHKEY_VAR_TENANT
} ngx_http_latchkey_var_e;


static ngx_int_t ngx_http_latchkey_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static ngx_int_t ngx_http_latchkey_variable_number(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, uintptr_t data, ngx_str_t *value);


static ngx_http_variable_t  ngx_http_latchkey_vars[] = {

    { ngx_string("idempotency_verdict"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_VERDICT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_outcome"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_OUTCOME, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_reference"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_REFERENCE, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_attempt"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_ATTEMPT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_wait_time"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_WAIT_TIME, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("idempotency_tenant"), NULL, ngx_http_latchkey_variable,
      NGX_HTTP_LATCHKEY_VAR_TENANT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_latchkey_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_latchkey_vars; v->name.len; v++) {

        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


/*
 * Empty until it is known.  Of the main request also in a subrequest, and not
 * cached: the log sees the last value.
 */

static ngx_int_t
ngx_http_latchkey_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                 value;
    ngx_http_latchkey_ctx_t  *ctx;

    ngx_str_null(&value);

    ctx = ngx_http_latchkey_get_ctx(r->main);

    if (ctx) {
        switch (data) {

        case NGX_HTTP_LATCHKEY_VAR_VERDICT:
            value = ngx_http_latchkey_verdict_words[ctx->verdict];
            break;

        case NGX_HTTP_LATCHKEY_VAR_OUTCOME:
            value = ngx_http_latchkey_outcome_words[ctx->outcome];
            break;

        case NGX_HTTP_LATCHKEY_VAR_REFERENCE:
            value = ctx->reference;
            break;

        case NGX_HTTP_LATCHKEY_VAR_TENANT:
            value = ctx->tenant;
            break;

        default:
            if (ngx_http_latchkey_variable_number(r, ctx, data, &value)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    if (value.len == 0) {
        v->not_found = 1;
        return NGX_OK;
    }

    v->len = value.len;
    v->data = value.data;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_variable_number(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, uintptr_t data, ngx_str_t *value)
{
    u_char  *p;

    if (data == NGX_HTTP_LATCHKEY_VAR_ATTEMPT && ctx->attempt == 0) {
        return NGX_OK;
    }

    p = ngx_pnalloc(r->pool, NGX_INT64_LEN + 4);
    if (p == NULL) {
        return NGX_ERROR;
    }

    value->data = p;

    if (data == NGX_HTTP_LATCHKEY_VAR_ATTEMPT) {
        p = ngx_sprintf(p, "%uL", ctx->attempt);

    } else {
        p = ngx_sprintf(p, "%M.%03M", ctx->waited / 1000, ctx->waited % 1000);
    }

    value->len = p - value->data;

    return NGX_OK;
}
