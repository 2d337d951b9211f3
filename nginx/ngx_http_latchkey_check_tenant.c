
/*
 * Is there a tenant, and does anybody verify what it is made of?
 */


#include "ngx_http_latchkey_check.h"


/* the beginnings of structures that other modules keep to themselves */

typedef struct {
    ngx_http_complex_value_t        *realm;
    ngx_http_complex_value_t        *user_file;
} ngx_http_latchkey_auth_basic_t;


typedef struct {
    ngx_str_t                        uri;
} ngx_http_latchkey_auth_request_t;


extern ngx_module_t  ngx_http_auth_basic_module ngx_http_latchkey_weak;
extern ngx_module_t  ngx_http_auth_request_module ngx_http_latchkey_weak;
#if (NGX_HTTP_SSL)
extern ngx_module_t  ngx_http_ssl_module ngx_http_latchkey_weak;
#endif


static char *ngx_http_latchkey_check_caller(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static void ngx_http_latchkey_warn_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_uint_t ngx_http_latchkey_has_variable(ngx_str_t *value,
    char *prefix);
static ngx_uint_t ngx_http_latchkey_authenticates(
    ngx_http_latchkey_loc_conf_t *llcf);


char *
ngx_http_latchkey_check_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t  *clcf;

    if (llcf->tenant == NULL) {
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "there is no \"idempotency_tenant\"; say who the client "
                   "is, for example \"idempotency_tenant $remote_user\"");
    }

    if (llcf->hashed && lmcf->secret.len == 0) {
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "\"hashed\" in \"idempotency_tenant\" needs a key; name a "
                   "file with \"idempotency_secret\" in http");
    }

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    /* who comes here by a redirect was authenticated somewhere else */

    if (llcf->auth_app || clcf->internal || clcf->named) {
        return NGX_CONF_OK;
    }

    return ngx_http_latchkey_check_caller(cf, lmcf, llcf);
}


/* does anybody verify what the tenant is made of? */

static char *
ngx_http_latchkey_check_caller(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_str_t               *value;
#if (NGX_HTTP_SSL)
    ngx_http_conf_ctx_t     *ctx;
    ngx_http_ssl_srv_conf_t *sscf;
#endif

    value = &llcf->tenant->value;

    if (ngx_http_latchkey_authenticates(llcf)) {
        return NGX_CONF_OK;
    }

    if (ngx_http_latchkey_has_variable(value, "remote_user")) {
        return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "nobody verifies $remote_user in \"idempotency_tenant\"; "
                   "add \"auth_basic\" with its file, or \"auth_request\", "
                   "without \"satisfy any\"; or, if only the application "
                   "verifies it, \"idempotency_auth app\"");
    }

#if (NGX_HTTP_SSL)

    if (ngx_http_latchkey_has_variable(value, "ssl_client_")
        && &ngx_http_ssl_module != NULL)
    {
        ctx = cf->ctx;
        sscf = ctx->srv_conf[ngx_http_ssl_module.ctx_index];

        /* 1: on, 2: optional, 3: optional_no_ca */

        if (sscf->verify != 1 && sscf->verify != 2) {
            return ngx_http_latchkey_complain(cf, llcf, NGX_LOG_EMERG,
                   "nobody verifies the certificate in "
                   "\"idempotency_tenant\"; set \"ssl_verify_client on\"; or, "
                   "if only the application verifies it, "
                   "\"idempotency_auth app\"");
        }
    }

#endif

    ngx_http_latchkey_warn_tenant(cf, lmcf, llcf);

    return NGX_CONF_OK;
}


/* once for each that is written */

static void
ngx_http_latchkey_warn_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_str_t  *value;

    value = &llcf->tenant->value;

    if (llcf->tenant == lmcf->warned) {
        return;
    }

    lmcf->warned = llcf->tenant;

    if (llcf->tenant->lengths == NULL) {
        ngx_http_latchkey_complain(cf, llcf, NGX_LOG_WARN,
                   "\"idempotency_tenant\" is the same for every client, so "
                   "that any of them gets the answers to another's keys");

    } else if (!llcf->hashed
               && (ngx_http_latchkey_has_variable(value, "http_")
                   || ngx_http_latchkey_has_variable(value, "cookie_")
                   || ngx_http_latchkey_has_variable(value, "arg_")))
    {
        ngx_http_latchkey_complain(cf, llcf, NGX_LOG_WARN,
                   "a client can write into \"idempotency_tenant\" what it "
                   "likes; if it is a whole credential, add \"hashed\", else "
                   "see to it that \"auth_request\" or \"auth_basic\" "
                   "verifies it");
    }
}


/* true for "$name" and "${name}" where the name begins with the prefix */

static ngx_uint_t
ngx_http_latchkey_has_variable(ngx_str_t *value, char *prefix)
{
    u_char  *p, *last;
    size_t   len;

    len = ngx_strlen(prefix);
    last = value->data + value->len;

    for (p = value->data; p < last; p++) {

        if (*p != '$') {
            continue;
        }

        if (p + 1 < last && p[1] == '{') {
            p++;
        }

        if ((size_t) (last - p - 1) >= len
            && ngx_strncasecmp(p + 1, (u_char *) prefix, len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_latchkey_authenticates(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t          *clcf;
    ngx_http_latchkey_auth_basic_t    *basic;
    ngx_http_latchkey_auth_request_t  *request;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (clcf->satisfy == NGX_HTTP_SATISFY_ANY) {
        return 0;
    }

    basic = ngx_http_latchkey_conf_of(llcf, &ngx_http_auth_basic_module);

    if (basic && basic->realm && basic->user_file
        && !(basic->realm->value.len == 3
             && ngx_strncmp(basic->realm->value.data, "off", 3) == 0))
    {
        return 1;
    }

    request = ngx_http_latchkey_conf_of(llcf, &ngx_http_auth_request_module);

    return request && request->uri.len != 0;
}
