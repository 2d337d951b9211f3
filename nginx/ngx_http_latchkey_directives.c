
/*
 * The table of directives, and how those are read that take a word or a value.
 * What is wrong with one by itself is said where it is read, what is wrong
 * with several together in check.
 */


#include "ngx_http_latchkey_directives.h"


static char *ngx_http_latchkey_set_mode(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_word(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_value(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_conf_enum_t  ngx_http_latchkey_modes[] = {
    { ngx_string("off"), NGX_HTTP_LATCHKEY_OFF },
    { ngx_string("observe"), NGX_HTTP_LATCHKEY_OBSERVE },
    { ngx_string("optional"), NGX_HTTP_LATCHKEY_OPTIONAL },
    { ngx_string("required"), NGX_HTTP_LATCHKEY_REQUIRED },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_latchkey_auths[] = {
    { ngx_string("nginx"), 0 },
    { ngx_string("app"), 1 },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_latchkey_mismatches[] = {
    { ngx_string("422"), 422 },
    { ngx_string("409"), 409 },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_latchkey_uncertains[] = {
    { ngx_string("hold"), 0 },
    { ngx_string("reexecute"), 1 },
    { ngx_null_string, 0 }
};


static ngx_conf_enum_t  ngx_http_latchkey_asyncs[] = {
    { ngx_string("off"), NGX_HTTP_LATCHKEY_ASYNC_OFF },
    { ngx_string("prefer"), NGX_HTTP_LATCHKEY_ASYNC_PREFER },
    { ngx_string("always"), NGX_HTTP_LATCHKEY_ASYNC_ALWAYS },
    { ngx_null_string, 0 }
};


ngx_command_t  ngx_http_latchkey_commands[] = {

    { ngx_string("idempotency"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_mode,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, mode),
      &ngx_http_latchkey_modes },

    { ngx_string("idempotency_server"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE123,
      ngx_http_latchkey_set_server,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_connect_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, connect_timeout),
      NULL },

    { ngx_string("idempotency_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, timeout),
      NULL },

    { ngx_string("idempotency_tenant"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE123,
      ngx_http_latchkey_set_tenant,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_secret"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_secret,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_auth"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, auth_app),
      &ngx_http_latchkey_auths },

    { ngx_string("idempotency_scope"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_value,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, scope),
      "default" },

    { ngx_string("idempotency_bind"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_value,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, bind),
      "none" },

    { ngx_string("idempotency_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_headers,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_ignore"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_ignore,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_key"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_latchkey_set_key,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_methods"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_methods,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_ttl"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, ttl),
      NULL },

    { ngx_string("idempotency_lock"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, lock),
      NULL },

    { ngx_string("idempotency_wait"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, wait),
      NULL },

    { ngx_string("idempotency_keep"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_keep,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_release"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_release,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_replay_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_replay_headers,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_response_max"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, response_max),
      NULL },

    { ngx_string("idempotency_mismatch_status"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, mismatch_status),
      &ngx_http_latchkey_mismatches },

    { ngx_string("idempotency_uncertain"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, reexecute),
      &ngx_http_latchkey_uncertains },

    { ngx_string("idempotency_async"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_word,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, async),
      &ngx_http_latchkey_asyncs },

    { ngx_string("idempotency_async_location"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_async_location,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_async_body"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, async_body),
      NULL },

    { ngx_string("idempotency_async_headers"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_async_headers,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_async_retry"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, async_retry),
      NULL },

    { ngx_string("idempotency_courier"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_latchkey_set_courier,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_max_age"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE123,
      ngx_http_latchkey_set_max_age,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_late"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
      ngx_http_latchkey_set_late,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_problem_base"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_problem_base,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_status"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE12,
      ngx_http_latchkey_set_status,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_operation"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE12,
      ngx_http_latchkey_set_operation,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("idempotency_counters"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_latchkey_set_counters,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

      ngx_null_command
};


static char *
ngx_http_latchkey_set_mode(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    char  *rv;

    rv = ngx_http_latchkey_set_word(cf, cmd, conf);

    llcf->file = cf->conf_file->file.name;
    llcf->line = cf->conf_file->line;

    return rv;
}


/* one of the words in cmd->post */

static char *
ngx_http_latchkey_set_word(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t        *value;
    ngx_uint_t       *np;
    ngx_conf_enum_t  *word;

    np = (ngx_uint_t *) (p + cmd->offset);

    if (*np != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    word = ngx_http_latchkey_find_word(cf, cmd, &value[1], cmd->post);
    if (word == NULL) {
        return NGX_CONF_ERROR;
    }

    *np = word->value;

    return NGX_CONF_OK;
}


/* the word in cmd->post gives the default back */

static char *
ngx_http_latchkey_set_value(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *p = conf;

    ngx_str_t                  *value;
    ngx_http_complex_value_t  **cv;

    cv = (ngx_http_complex_value_t **) (p + cmd->offset);

    if (*cv != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "is empty";
    }

    if (ngx_strcmp(value[1].data, cmd->post) == 0) {
        *cv = NULL;
        return NGX_CONF_OK;
    }

    if (ngx_http_latchkey_compile_value(cf, &value[1], cv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* NULL: it is none of them, and the message lists them */

ngx_conf_enum_t *
ngx_http_latchkey_find_word(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *value, ngx_conf_enum_t *words)
{
    u_char           *p, *last, text[128];
    ngx_conf_enum_t  *word;

    p = text;
    last = text + sizeof(text);

    for (word = words; word->name.len; word++) {

        if (word->name.len == value->len
            && ngx_strncmp(word->name.data, value->data, value->len) == 0)
        {
            return word;
        }

        p = ngx_slprintf(p, last, "%s\"%V\"",
                         word == words ? "" : word[1].name.len ? ", " : " or ",
                         &word->name);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid value \"%V\" in \"%V\", it must be %*s",
                       value, &cmd->name, p - text, text);

    return NULL;
}


ngx_int_t
ngx_http_latchkey_compile_value(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t **cv)
{
    ngx_http_compile_complex_value_t  ccv;

    *cv = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (*cv == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = value;
    ccv.complex_value = *cv;

    return ngx_http_compile_complex_value(&ccv);
}


ngx_int_t
ngx_http_latchkey_parse_time(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *value, ngx_msec_t *time)
{
    *time = ngx_parse_time(value, 0);

    if (*time == (ngx_msec_t) NGX_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid time \"%V\" in \"%V\"",
                           value, &cmd->name);
        return NGX_ERROR;
    }

    return NGX_OK;
}
