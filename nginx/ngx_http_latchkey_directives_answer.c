
/*
 * Directives about answers: which are kept, for how long after the daemon was
 * away, what problems are called, where an accepted request is asked for.
 */


#include "ngx_http_latchkey_directives.h"


static ngx_int_t ngx_http_latchkey_keep_status(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_array_t *keep, ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_add_status(ngx_array_t *statuses,
    ngx_uint_t status);


char *
ngx_http_latchkey_set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->keep != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        llcf->keep = NULL;
        return NGX_CONF_OK;
    }

    llcf->keep = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (llcf->keep == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "5xx") == 0) {
            llcf->keep_5xx = 1;
            continue;
        }

        if (ngx_strcmp(value[i].data, "no_body") == 0) {
            llcf->no_body = 1;
            continue;
        }

        if (ngx_http_latchkey_keep_status(cf, cmd, llcf->keep, &value[i])
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_latchkey_keep_status(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_array_t *keep, ngx_str_t *value)
{
    ngx_int_t  n;

    n = ngx_atoi(value->data, value->len);

    if (n < 200 || n > 599) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid value \"%V\" in \"%V\", it must be "
                           "\"default\" alone, or any of \"5xx\", "
                           "\"no_body\" and statuses",
                           value, &cmd->name);
        return NGX_ERROR;
    }

    if (n < 500 && n != 401 && n != 407 && n != 408 && n != 425
        && n != 429)
    {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "status %i in \"%V\" is kept anyway",
                           n, &cmd->name);
    }

    return ngx_http_latchkey_add_status(keep, n);
}


static ngx_int_t
ngx_http_latchkey_add_status(ngx_array_t *statuses, ngx_uint_t status)
{
    ngx_uint_t  *s;

    s = ngx_array_push(statuses);
    if (s == NULL) {
        return NGX_ERROR;
    }

    *s = status;

    return NGX_OK;
}


char *
ngx_http_latchkey_set_release(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->release != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "default") == 0) {
        llcf->release = NULL;
        return NGX_CONF_OK;
    }

    llcf->release = ngx_array_create(cf->pool, 4, sizeof(ngx_uint_t));
    if (llcf->release == NULL) {
        return NGX_CONF_ERROR;
    }

    for (i = 1; i < cf->args->nelts; i++) {
        n = ngx_atoi(value[i].data, value[i].len);

        /* what has succeeded has happened */

        if (n < 400 || n > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\", it must be "
                               "\"default\" alone, or statuses from 400 to "
                               "599", &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        if (ngx_http_latchkey_add_status(llcf->release, n) != NGX_OK) {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_late(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (llcf->late_time != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_latchkey_parse_time(cf, cmd, &value[1], &llcf->late_time)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    llcf->late_size = 64 * 1024 * 1024;

    if (cf->args->nelts == 3) {
        size = ngx_parse_size(&value[2]);

        if (size == NGX_ERROR) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid size \"%V\" in \"%V\"",
                               &value[2], &cmd->name);
            return NGX_CONF_ERROR;
        }

        llcf->late_size = size;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_problem_base(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    u_char       ch;
    size_t       i;
    ngx_str_t   *value;
    ngx_uint_t   scheme;

    if (llcf->problem_base.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_strcmp(value[1].data, "default") == 0) {
        ngx_str_set(&llcf->problem_base, "");
        return NGX_CONF_OK;
    }

    scheme = 0;

    for (i = 0; i < value[1].len; i++) {
        ch = value[1].data[i];

        if (ch == ':' && i) {
            scheme = 1;
        }

        if (ch <= ' ' || ch >= 0x7f || ch == '"' || ch == '<' || ch == '>'
            || ch == '\\')
        {
            break;
        }
    }

    if (!scheme || i != value[1].len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" is not the beginning of a URL, "
                           "such as \"https://api.example/problems/\"",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    llcf->problem_base = value[1];

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_async_location(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    size_t      i;
    ngx_str_t  *value;

    if (llcf->async_location.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    for (i = 0; i < value[1].len; i++) {
        if (value[1].data[i] <= ' ' || value[1].data[i] >= 0x7f) {
            break;
        }
    }

    if (value[1].len == 0 || i != value[1].len
        || value[1].data[value[1].len - 1] != '/'
        || (value[1].data[0] != '/'
            && ngx_strncmp(value[1].data, "http://", 7) != 0
            && ngx_strncmp(value[1].data, "https://", 8) != 0))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" must begin and end with a "
                           "slash, such as \"/operations/\", or be the "
                           "beginning of a URL",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    llcf->async_location = value[1];

    return NGX_CONF_OK;
}
