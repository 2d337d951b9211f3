
/*
 * Directives that list headers: what a request means, what a replay carries,
 * what is kept of a request for later.
 */


#include "ngx_http_latchkey_directives.h"


static char *ngx_http_latchkey_add_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t **headers, ngx_str_t *never, char *why);
static ngx_uint_t ngx_http_latchkey_is_among(ngx_str_t *name,
    ngx_str_t *words);
static ngx_array_t *ngx_http_latchkey_names(ngx_conf_t *cf,
    ngx_command_t *cmd);
static ngx_uint_t ngx_http_latchkey_is_header_name(ngx_str_t *value);


/* lower case; "*" at the end: whatever begins so */

static ngx_str_t  ngx_http_latchkey_unreplayed[] = {
    ngx_string("set-cookie"),
    ngx_string("set-cookie2"),
    ngx_string("date"),
    ngx_string("www-authenticate"),
    ngx_string("proxy-*"),
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_string("content-length"),
    ngx_string("idempot*"),
    ngx_string("latchkey*"),
    ngx_null_string
};


/* of a request: what is between two hops, or ours to say */

static ngx_str_t  ngx_http_latchkey_ungiven[] = {
    ngx_string("connection"),
    ngx_string("keep-alive"),
    ngx_string("proxy-*"),
    ngx_string("te"),
    ngx_string("trailer"),
    ngx_string("transfer-encoding"),
    ngx_string("upgrade"),
    ngx_string("http2-settings"),
    ngx_string("expect"),
    ngx_string("content-length"),
    ngx_string("latchkey*"),
    ngx_null_string
};


char *
ngx_http_latchkey_set_headers(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value, *name;
    ngx_uint_t   i;

    if (llcf->headers != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "none") == 0) {
        llcf->headers = NULL;
        return NGX_CONF_OK;
    }

    llcf->headers = ngx_http_latchkey_names(cf, cmd);
    if (llcf->headers == NULL) {
        return NGX_CONF_ERROR;
    }

    name = llcf->headers->elts;

    for (i = 0; i < llcf->headers->nelts; i++) {
        if (ngx_strcmp(name[i].data, "idempotency-key") == 0
            || ngx_strncmp(name[i].data, "latchkey-", 9) == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" says nothing about what a "
                               "request means", &value[i + 1], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    return ngx_http_latchkey_add_headers(cf, cmd, &llcf->replay_headers,
                                         ngx_http_latchkey_unreplayed,
                                         "belongs to one answer and is never "
                                         "replayed");
}


char *
ngx_http_latchkey_set_async_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    return ngx_http_latchkey_add_headers(cf, cmd, &llcf->async_headers,
                                         ngx_http_latchkey_ungiven,
                                         "belongs to one connection, or to "
                                         "Latchkey, and is never kept for "
                                         "later");
}


/* more names for a list of our own; some are never in it */

static char *
ngx_http_latchkey_add_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t **headers, ngx_str_t *never, char *why)
{
    ngx_str_t   *value, *name;
    ngx_uint_t   i;

    if (*headers != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        *headers = NULL;
        return NGX_CONF_OK;
    }

    *headers = ngx_http_latchkey_names(cf, cmd);
    if (*headers == NULL) {
        return NGX_CONF_ERROR;
    }

    name = (*headers)->elts;

    for (i = 0; i < (*headers)->nelts; i++) {
        if (ngx_http_latchkey_is_among(&name[i], never)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" %s, remove it",
                               &value[i + 1], &cmd->name, why);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_uint_t
ngx_http_latchkey_is_among(ngx_str_t *name, ngx_str_t *words)
{
    ngx_str_t  *word;

    for (word = words; word->len; word++) {

        if (word->data[word->len - 1] == '*') {
            if (ngx_strncmp(name->data, word->data, word->len - 1) == 0) {
                return 1;
            }

        } else if (ngx_strcmp(name->data, word->data) == 0) {
            return 1;
        }
    }

    return 0;
}


/* all arguments as names of headers, in lower case */

static ngx_array_t *
ngx_http_latchkey_names(ngx_conf_t *cf, ngx_command_t *cmd)
{
    ngx_str_t    *value, *name;
    ngx_uint_t    i;
    ngx_array_t  *names;

    names = ngx_array_create(cf->pool, cf->args->nelts - 1,
                             sizeof(ngx_str_t));
    if (names == NULL) {
        return NULL;
    }

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "none") == 0
            || ngx_strcmp(value[i].data, "default") == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" must stand alone",
                               &value[i], &cmd->name);
            return NULL;
        }

        if (!ngx_http_latchkey_is_header_name(&value[i])) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" is not the name of a "
                               "header", &value[i], &cmd->name);
            return NULL;
        }

        name = ngx_array_push(names);
        if (name == NULL) {
            return NULL;
        }

        name->len = value[i].len;
        name->data = ngx_pnalloc(cf->pool, name->len + 1);
        if (name->data == NULL) {
            return NULL;
        }

        ngx_strlow(name->data, value[i].data, name->len);
        name->data[name->len] = '\0';
    }

    return names;
}


/* a token of RFC 9110 */

static ngx_uint_t
ngx_http_latchkey_is_header_name(ngx_str_t *value)
{
    u_char  ch, *p;

    for (p = value->data; *p; p++) {
        ch = (u_char) (*p | 0x20);

        if ((ch < 'a' || ch > 'z') && (*p < '0' || *p > '9')
            && ngx_strchr("!#$%&'*+-.^_`|~", *p) == NULL)
        {
            return 0;
        }
    }

    return value->len != 0 && p == value->data + value->len;
}
