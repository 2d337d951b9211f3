
/*
 * Directives about requests: which are guarded, whose they are, what their
 * keys look like, what they mean, how old they may be.
 */


#include "ngx_http_latchkey_directives.h"


static ngx_int_t ngx_http_latchkey_set_age_source(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *value);


static ngx_conf_enum_t  ngx_http_latchkey_methods[] = {
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
    { ngx_null_string, 0 }
};


char *
ngx_http_latchkey_set_methods(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t        *value;
    ngx_uint_t        i;
    ngx_conf_enum_t  *method;

    if (llcf->methods != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    llcf->methods = 0;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        method = ngx_http_latchkey_find_word(cf, cmd, &value[i],
                                             ngx_http_latchkey_methods);
        if (method == NULL) {
            return NGX_CONF_ERROR;
        }

        if (llcf->methods & method->value) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate \"%V\" in \"%V\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        llcf->methods |= method->value;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_tenant(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->tenant != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "is empty";
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strcmp(value[i].data, "hashed") == 0) {
            llcf->hashed = 1;

        } else if (ngx_strcmp(value[i].data, "trusted") == 0) {
            llcf->trusted = 1;

        } else {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", only "
                               "\"hashed\" and \"trusted\" may follow the "
                               "value", &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    if (ngx_http_latchkey_compile_value(cf, &value[1], &llcf->tenant)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_key(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_int_t    min;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (llcf->key_min != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    llcf->key_min = 1;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        if (i == 1 && ngx_strcmp(value[i].data, "any") == 0) {
            continue;
        }

        if (i == 1 && ngx_strcmp(value[i].data, "uuid") == 0) {
            llcf->key_uuid = 1;
            continue;
        }

        min = NGX_ERROR;

        if (ngx_strncmp(value[i].data, "min=", 4) == 0) {
            min = ngx_atoi(value[i].data + 4, value[i].len - 4);
        }

        if (min < 1 || min > LK_KEY_MAX) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\", it must be "
                               "\"any\" or \"uuid\", and \"min=\" with a "
                               "number from 1 to %d",
                               &value[i], &cmd->name, LK_KEY_MAX);
            return NGX_CONF_ERROR;
        }

        llcf->key_min = min;
    }

    if (llcf->key_uuid && llcf->key_min > 36) {
        return "demands more than the 36 characters of a UUID";
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_ignore(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t              *value;
    ngx_uint_t              i;
    struct lk_slice        *pointer;
    struct lk_request       request;
    struct lk_fingerprint   fingerprint;

    if (llcf->ignore != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2 && ngx_strcmp(value[1].data, "none") == 0) {
        llcf->ignore = NULL;
        return NGX_CONF_OK;
    }

    llcf->ignore = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                    sizeof(struct lk_slice));
    if (llcf->ignore == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&request, sizeof(struct lk_request));

    request.content_type = LK_SLICE("application/json");
    request.body = LK_SLICE("{}");
    request.ignore_count = 1;

    for (i = 1; i < cf->args->nelts; i++) {
        pointer = ngx_array_push(llcf->ignore);
        if (pointer == NULL) {
            return NGX_CONF_ERROR;
        }

        *pointer = ngx_http_latchkey_slice(&value[i]);
        request.ignore = pointer;

        if (value[i].len == 0
            || latchkey_fingerprint(&request, &fingerprint, NULL) != LK_OK)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" in \"%V\" is not a JSON Pointer, it "
                               "must look like \"/meta/sent_at\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


char *
ngx_http_latchkey_set_max_age(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t  *value, skew;

    if (llcf->max_age != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 2) {
        if (ngx_strcmp(value[1].data, "off") != 0) {
            return "needs a source and an age, or \"off\"";
        }

        llcf->max_age = 0;
        return NGX_CONF_OK;
    }

    if (ngx_http_latchkey_set_age_source(cf, cmd, llcf, &value[1]) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_latchkey_parse_time(cf, cmd, &value[2], &llcf->max_age)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (llcf->max_age < 1000) {
        return "allows less than a second, write \"off\" for no limit";
    }

    llcf->max_skew = 30000;

    if (cf->args->nelts == 4) {
        if (ngx_strncmp(value[3].data, "skew=", 5) != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", only "
                               "\"skew=\" may follow the age",
                               &value[3], &cmd->name);
            return NGX_CONF_ERROR;
        }

        skew.len = value[3].len - 5;
        skew.data = value[3].data + 5;

        if (ngx_http_latchkey_parse_time(cf, cmd, &skew, &llcf->max_skew)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_latchkey_set_age_source(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *value)
{
    if (ngx_strcmp(value->data, "uuidv7") == 0) {
        llcf->age_uuid = 1;

    } else if (ngx_http_script_variables_count(value) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" is the same for every request, "
                           "it must be \"uuidv7\" or a value with variables",
                           value, &cmd->name);
        return NGX_ERROR;

    } else if (ngx_http_latchkey_compile_value(cf, value, &llcf->age_source)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}
