
/*
 * The directives: how each one is written.  What is wrong with one by itself
 * is said here, what is wrong with several together in check.
 */


#include "ngx_http_latchkey_module.h"


/* a shorter one could be found by trying */
#define NGX_HTTP_LATCHKEY_SECRET_MIN  16
#define NGX_HTTP_LATCHKEY_SECRET_MAX  4096


static char *ngx_http_latchkey_set_mode(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_word(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_tenant(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_value(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_ignore(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_keep(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_async_location(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_async_headers(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_courier(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_max_age(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_late(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_problem_base(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_operation(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf);
static char *ngx_http_latchkey_set_counters(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);
static char *ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler);
static ngx_conf_enum_t *ngx_http_latchkey_find_word(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *value, ngx_conf_enum_t *words);
static ngx_int_t ngx_http_latchkey_compile(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t **cv);
static ngx_int_t ngx_http_latchkey_read_secret(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *path, size_t min, ngx_str_t *secret);
static ngx_int_t ngx_http_latchkey_credentials(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_http_latchkey_server_t *server);
static char *ngx_http_latchkey_add_headers(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_array_t **headers, ngx_str_t *never, char *why);
static ngx_array_t *ngx_http_latchkey_names(ngx_conf_t *cf,
    ngx_command_t *cmd);
static ngx_int_t ngx_http_latchkey_time(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *value, ngx_msec_t *time);
static ngx_uint_t ngx_http_latchkey_is_among(ngx_str_t *name,
    ngx_str_t *words);


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


static ngx_conf_enum_t  ngx_http_latchkey_methods[] = {
    { ngx_string("POST"), NGX_HTTP_POST },
    { ngx_string("PUT"), NGX_HTTP_PUT },
    { ngx_string("PATCH"), NGX_HTTP_PATCH },
    { ngx_string("DELETE"), NGX_HTTP_DELETE },
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
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE12,
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
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE1,
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


static char *
ngx_http_latchkey_set_server(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t                   *value;
    ngx_url_t                    u;
    ngx_uint_t                   i;
    ngx_http_latchkey_server_t  *server, given;

    value = cf->args->elts;

    ngx_memzero(&given, sizeof(ngx_http_latchkey_server_t));

    if (ngx_http_latchkey_credentials(cf, cmd, &given) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "%s in \"%V\" of \"%V\", it must be \"unix:PATH\" "
                           "or \"HOST:PORT\"",
                           u.err ? u.err : "error", &u.url, &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (u.family != AF_UNIX && u.no_port) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no port in \"%V\" of \"%V\", it must be "
                           "\"unix:PATH\" or \"HOST:PORT\"",
                           &u.url, &cmd->name);
        return NGX_CONF_ERROR;
    }

    if (llcf->server_list == NGX_CONF_UNSET_PTR) {
        llcf->server_list = ngx_array_create(cf->pool, 2,
                                          sizeof(ngx_http_latchkey_server_t));
        if (llcf->server_list == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    for (i = 0; i < u.naddrs; i++) {
        server = ngx_array_push(llcf->server_list);
        if (server == NULL) {
            return NGX_CONF_ERROR;
        }

        *server = given;
        server->addr = u.addrs[i];
    }

    return NGX_CONF_OK;
}


/* of a parameter only its name is repeated: the rest may be a password */

static ngx_int_t
ngx_http_latchkey_credentials(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_server_t *server)
{
    u_char      *p;
    ngx_str_t   *value, path;
    ngx_uint_t   i;

    value = cf->args->elts;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "user=", 5) == 0) {
            server->user.len = value[i].len - 5;
            server->user.data = value[i].data + 5;

        } else if (ngx_strncmp(value[i].data, "password=", 9) == 0
                   && server->password.len == 0)
        {
            server->password.len = value[i].len - 9;
            server->password.data = value[i].data + 9;

        } else if (ngx_strncmp(value[i].data, "password_file=", 14) == 0
                   && server->password.len == 0)
        {
            path.len = value[i].len - 14;
            path.data = value[i].data + 14;

            if (ngx_http_latchkey_read_secret(cf, cmd, &path, 1,
                                              &server->password)
                != NGX_OK)
            {
                return NGX_ERROR;
            }

        } else {
            p = (u_char *) ngx_strchr(value[i].data, '=');

            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter %ui \"%*s\" in \"%V\", "
                               "\"user=\" and one of \"password=\" and "
                               "\"password_file=\" may follow the address",
                               i, p ? (size_t) (p - value[i].data + 1) : 0,
                               value[i].data, &cmd->name);
            return NGX_ERROR;
        }
    }

    if (server->user.len && server->password.len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "user \"%V\" of \"%V\" needs a password, add "
                           "\"password_file=\"", &server->user, &cmd->name);
        return NGX_ERROR;
    }

    return NGX_OK;
}


static char *
ngx_http_latchkey_set_tenant(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_str_t  *value;

    if (llcf->tenant != NGX_CONF_UNSET_PTR) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "is empty";
    }

    if (cf->args->nelts == 3) {
        if (ngx_strcmp(value[2].data, "hashed") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", only "
                               "\"hashed\" may follow the value",
                               &value[2], &cmd->name);
            return NGX_CONF_ERROR;
        }

        llcf->hashed = 1;
    }

    if (ngx_http_latchkey_compile(cf, &value[1], &llcf->tenant) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_set_secret(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_main_conf_t *lmcf = conf;

    ngx_str_t  *value;

    if (lmcf->secret.data) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_latchkey_read_secret(cf, cmd, &value[1],
                                      NGX_HTTP_LATCHKEY_SECRET_MIN,
                                      &lmcf->secret)
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

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

    if (ngx_http_latchkey_compile(cf, &value[1], cv) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


static char *
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


static char *
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


static char *
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


static char *
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


static char *
ngx_http_latchkey_set_keep(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t   i, *status;

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

        n = ngx_atoi(value[i].data, value[i].len);

        if (n < 200 || n > 599) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid value \"%V\" in \"%V\", it must be "
                               "\"default\" alone, or any of \"5xx\", "
                               "\"no_body\" and statuses",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }

        if (n < 500 && n != 401 && n != 407 && n != 408 && n != 425
            && n != 429)
        {
            ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                               "status %i in \"%V\" is kept anyway",
                               n, &cmd->name);
        }

        status = ngx_array_push(llcf->keep);
        if (status == NULL) {
            return NGX_CONF_ERROR;
        }

        *status = n;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    return ngx_http_latchkey_add_headers(cf, cmd, &llcf->replay_headers,
                                         ngx_http_latchkey_unreplayed,
                                         "belongs to one answer and is never "
                                         "replayed");
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


static char *
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


static char *
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


static char *
ngx_http_latchkey_set_courier(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_main_conf_t *lmcf = conf;

    ngx_url_t   u;
    ngx_str_t  *value;

    if (lmcf->courier) {
        return "is duplicate";
    }

    value = cf->args->elts;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = value[1];
    u.listen = 1;

    if (ngx_strncasecmp(u.url.data, (u_char *) "unix:", 5) != 0
        || ngx_parse_url(cf->pool, &u) != NGX_OK)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" must be \"unix:PATH\": "
                           "whoever can connect there is taken for the "
                           "courier", &value[1], &cmd->name);
        return NGX_CONF_ERROR;
    }

    lmcf->courier = &u.addrs[0];

    return NGX_CONF_OK;
}


static char *
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

    if (ngx_strcmp(value[1].data, "uuidv7") == 0) {
        llcf->age_uuid = 1;

    } else if (ngx_http_script_variables_count(&value[1]) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" in \"%V\" is the same for every request, "
                           "it must be \"uuidv7\" or a value with variables",
                           &value[1], &cmd->name);
        return NGX_CONF_ERROR;

    } else if (ngx_http_latchkey_compile(cf, &value[1], &llcf->age_source)
               != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    if (ngx_http_latchkey_time(cf, cmd, &value[2], &llcf->max_age) != NGX_OK) {
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

        if (ngx_http_latchkey_time(cf, cmd, &skew, &llcf->max_skew)
            != NGX_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_set_late(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    ssize_t     size;
    ngx_str_t  *value;

    if (llcf->late_time != NGX_CONF_UNSET_MSEC) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (ngx_http_latchkey_time(cf, cmd, &value[1], &llcf->late_time)
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


static char *
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


static char *
ngx_http_latchkey_set_status(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char  *rv;

    rv = ngx_http_latchkey_set_rate(cf, cmd, conf);

    return rv != NGX_CONF_OK ? rv
           : ngx_http_latchkey_set_handler(cf, conf,
                                           ngx_http_latchkey_status_handler);
}


static char *
ngx_http_latchkey_set_operation(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    char  *rv;

    /* a caller with many requests under way asks for each of them */

    llcf->status_rate = 100 * 1000;
    llcf->status_burst = 200;

    rv = ngx_http_latchkey_set_rate(cf, cmd, conf);

    return rv != NGX_CONF_OK ? rv
           : ngx_http_latchkey_set_handler(cf, conf,
                                        ngx_http_latchkey_operation_handler);
}


/* how often a caller may ask */

static char *
ngx_http_latchkey_set_rate(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    size_t                     len;
    ngx_int_t                  n, scale;
    ngx_str_t                 *value;
    ngx_uint_t                 i;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {

        n = NGX_ERROR;
        len = value[i].len;

        if (len > 8 && ngx_strncmp(value[i].data, "rate=", 5) == 0) {
            scale = ngx_strcmp(value[i].data + len - 3, "r/s") == 0 ? 1
                    : ngx_strcmp(value[i].data + len - 3, "r/m") == 0 ? 60
                    : 0;

            n = ngx_atoi(value[i].data + 5, len - 8);

            if (scale == 0 || n > 1000000) {
                n = NGX_ERROR;
            }

            if (n > 0) {
                llcf->status_rate = n * 1000 / scale;
            }

        } else if (ngx_strncmp(value[i].data, "burst=", 6) == 0) {
            n = ngx_atoi(value[i].data + 6, len - 6);

            if (n > 1000000) {
                n = NGX_ERROR;
            }

            if (n > 0) {
                llcf->status_burst = n;
            }
        }

        if (n <= 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\" in \"%V\", it must "
                               "look like \"rate=10r/s\" or \"burst=20\"",
                               &value[i], &cmd->name);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_latchkey_set_counters(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    return ngx_http_latchkey_set_handler(cf, conf,
                                         ngx_http_latchkey_counters_handler);
}


static char *
ngx_http_latchkey_set_handler(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_handler_pt handler)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "makes the answers of its location, and so does another "
               "directive there; give it a location of its own";
    }

    clcf->handler = handler;
    llcf->handler = handler;

    return NGX_CONF_OK;
}


/* NULL: it is none of them, and the message lists them */

static ngx_conf_enum_t *
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


static ngx_int_t
ngx_http_latchkey_compile(ngx_conf_t *cf, ngx_str_t *value,
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


static ngx_int_t
ngx_http_latchkey_time(ngx_conf_t *cf, ngx_command_t *cmd, ngx_str_t *value,
    ngx_msec_t *time)
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


/* all arguments as names of headers, in lower case */

static ngx_array_t *
ngx_http_latchkey_names(ngx_conf_t *cf, ngx_command_t *cmd)
{
    u_char        ch, *p;
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

        for (p = value[i].data; *p; p++) {
            ch = (u_char) (*p | 0x20);

            if ((ch < 'a' || ch > 'z') && (*p < '0' || *p > '9')
                && ngx_strchr("!#$%&'*+-.^_`|~", *p) == NULL)
            {
                break;
            }
        }

        if (p == value[i].data || p != value[i].data + value[i].len) {
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


/*
 * A secret is a file without the line ends after it.  No message repeats any
 * of it.
 */

static ngx_int_t
ngx_http_latchkey_read_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *path, size_t min, ngx_str_t *secret)
{
    u_char           *p;
    ssize_t           n;
    ngx_int_t         rc;
    ngx_file_t        file;
    ngx_file_info_t   fi;

    if (ngx_conf_full_name(cf->cycle, path, 1) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = NGX_ERROR;

    ngx_memzero(&file, sizeof(ngx_file_t));

    file.name = *path;
    file.log = cf->log;

    file.fd = ngx_open_file(path->data, NGX_FILE_RDONLY, NGX_FILE_OPEN, 0);

    if (file.fd == NGX_INVALID_FILE) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_open_file_n " \"%V\" of \"%V\" failed",
                           path, &cmd->name);
        return NGX_ERROR;
    }

    if (ngx_fd_info(file.fd, &fi) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, ngx_errno,
                           ngx_fd_info_n " \"%V\" of \"%V\" failed",
                           path, &cmd->name);
        goto done;
    }

    if (!ngx_is_file(&fi) || ngx_file_size(&fi) > NGX_HTTP_LATCHKEY_SECRET_MAX)
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" of \"%V\" is not a file of at most %d "
                           "bytes", path, &cmd->name,
                           NGX_HTTP_LATCHKEY_SECRET_MAX);
        goto done;
    }

    if (ngx_file_access(&fi) & (S_IROTH|S_IWOTH)) {
        ngx_conf_log_error(NGX_LOG_WARN, cf, 0,
                           "everybody on this machine has access to \"%V\" of "
                           "\"%V\", chmod 600 it", path, &cmd->name);
    }

    p = ngx_pnalloc(cf->pool, NGX_HTTP_LATCHKEY_SECRET_MAX);
    if (p == NULL) {
        goto done;
    }

    n = ngx_read_file(&file, p, NGX_HTTP_LATCHKEY_SECRET_MAX, 0);

    while (n > 0 && (p[n - 1] == LF || p[n - 1] == CR)) {
        n--;
    }

    if (n < (ssize_t) min) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "\"%V\" of \"%V\" is too short, at least %uz bytes "
                           "are needed, for example from "
                           "\"openssl rand -hex 32\"",
                           path, &cmd->name, min);
        goto done;
    }

    secret->data = p;
    secret->len = n;

    rc = NGX_OK;

done:

    if (ngx_close_file(file.fd) == NGX_FILE_ERROR) {
        ngx_conf_log_error(NGX_LOG_ALERT, cf, ngx_errno,
                           ngx_close_file_n " \"%V\" failed", path);
    }

    return rc;
}
