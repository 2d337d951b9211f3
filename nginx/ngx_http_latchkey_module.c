
/*
 * The module: its directive table, the configuration of each location and how
 * it is inherited, and what is set up from it when nginx starts and when a
 * worker exits.
 */


#include "ngx_http_latchkey_module.h"


/* ms for the last commands of a worker: its master kills it after 1.5 s */
#define NGX_HTTP_LATCHKEY_EXIT    500


static void *ngx_http_latchkey_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_latchkey_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_latchkey_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static void ngx_http_latchkey_merge_request(ngx_http_latchkey_loc_conf_t *conf,
    ngx_http_latchkey_loc_conf_t *prev);
static void ngx_http_latchkey_merge_response(
    ngx_http_latchkey_loc_conf_t *conf, ngx_http_latchkey_loc_conf_t *prev);
static void ngx_http_latchkey_merge_async(ngx_http_latchkey_loc_conf_t *conf,
    ngx_http_latchkey_loc_conf_t *prev);
static ngx_int_t ngx_http_latchkey_name_location(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *conf);
static ngx_int_t ngx_http_latchkey_init(ngx_conf_t *cf);
static ngx_uint_t ngx_http_latchkey_set_content_handler(
    ngx_http_latchkey_loc_conf_t *llcf);
static void ngx_http_latchkey_exit_process(ngx_cycle_t *cycle);
static char *ngx_http_latchkey_set_mode(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_latchkey_set_enum(ngx_conf_t *cf, ngx_command_t *cmd,
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


static ngx_command_t  ngx_http_latchkey_commands[] = {

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
      ngx_http_latchkey_set_enum,
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
      ngx_http_latchkey_set_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, mismatch_status),
      &ngx_http_latchkey_mismatches },

    { ngx_string("idempotency_uncertain"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_enum,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_latchkey_loc_conf_t, reexecute),
      &ngx_http_latchkey_uncertains },

    { ngx_string("idempotency_async"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_latchkey_set_enum,
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


static ngx_http_module_t  ngx_http_latchkey_module_ctx = {
    ngx_http_latchkey_add_variables,       /* preconfiguration */
    ngx_http_latchkey_init,                /* postconfiguration */

    ngx_http_latchkey_create_main_conf,    /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_latchkey_create_loc_conf,     /* create location configuration */
    ngx_http_latchkey_merge_loc_conf       /* merge location configuration */
};


ngx_module_t  ngx_http_latchkey_module = {
    NGX_MODULE_V1,
    &ngx_http_latchkey_module_ctx,         /* module context */
    ngx_http_latchkey_commands,            /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    NULL,                                  /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_latchkey_exit_process,        /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static void *
ngx_http_latchkey_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_pcalloc(cf->pool, sizeof(ngx_http_latchkey_main_conf_t));
    if (lmcf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&lmcf->pools, cf->pool, 1,
                       sizeof(ngx_http_latchkey_servers_t *))
        != NGX_OK
        || ngx_array_init(&lmcf->locations, cf->pool, 8,
                          sizeof(ngx_http_latchkey_loc_conf_t *))
           != NGX_OK)
    {
        return NULL;
    }

    return lmcf;
}


static void *
ngx_http_latchkey_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_latchkey_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_latchkey_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->servers = NULL;
     *     conf->problem_base = { 0, NULL };
     *     conf->async_location = { 0, NULL };
     *     conf->file = { 0, NULL };
     *     conf->inherited = 0;
     *
     * and what is given together with another value:
     *
     *     conf->hashed = 0;
     *     conf->trusted = 0;
     *     conf->key_uuid = 0;
     *     conf->keep_5xx = 0;
     *     conf->no_body = 0;
     *     conf->age_source = NULL;
     *     conf->age_uuid = 0;
     *     conf->max_skew = 0;
     *     conf->late_size = 0;
     */

    conf->mode = NGX_CONF_UNSET_UINT;
    conf->methods = NGX_CONF_UNSET_UINT;
    conf->server_list = NGX_CONF_UNSET_PTR;
    conf->connect_timeout = NGX_CONF_UNSET_MSEC;
    conf->timeout = NGX_CONF_UNSET_MSEC;
    conf->tenant = NGX_CONF_UNSET_PTR;
    conf->auth_app = NGX_CONF_UNSET_UINT;
    conf->scope = NGX_CONF_UNSET_PTR;
    conf->bind = NGX_CONF_UNSET_PTR;
    conf->headers = NGX_CONF_UNSET_PTR;
    conf->ignore = NGX_CONF_UNSET_PTR;
    conf->key_min = NGX_CONF_UNSET_UINT;
    conf->ttl = NGX_CONF_UNSET_MSEC;
    conf->lock = NGX_CONF_UNSET_MSEC;
    conf->wait = NGX_CONF_UNSET_MSEC;
    conf->keep = NGX_CONF_UNSET_PTR;
    conf->release = NGX_CONF_UNSET_PTR;
    conf->replay_headers = NGX_CONF_UNSET_PTR;
    conf->response_max = NGX_CONF_UNSET_SIZE;
    conf->mismatch_status = NGX_CONF_UNSET_UINT;
    conf->reexecute = NGX_CONF_UNSET_UINT;
    conf->max_age = NGX_CONF_UNSET_MSEC;
    conf->late_time = NGX_CONF_UNSET_MSEC;
    conf->async = NGX_CONF_UNSET_UINT;
    conf->async_body = NGX_CONF_UNSET_SIZE;
    conf->async_headers = NGX_CONF_UNSET_PTR;
    conf->async_retry = NGX_CONF_UNSET_MSEC;

    conf->status_rate = 10 * 1000;
    conf->status_burst = 20;

    return conf;
}


/* once for each location, from the outside in, after all of http was read */

static char *
ngx_http_latchkey_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_latchkey_loc_conf_t *prev = parent;
    ngx_http_latchkey_loc_conf_t *conf = child;

    ngx_http_latchkey_main_conf_t   *lmcf;
    ngx_http_latchkey_loc_conf_t   **llcfp;

    if (conf->mode == NGX_CONF_UNSET_UINT) {
        conf->file = prev->file;
        conf->line = prev->line;
        conf->inherited = 1;
    }

    ngx_conf_merge_uint_value(conf->mode, prev->mode, NGX_HTTP_LATCHKEY_OFF);
    ngx_conf_merge_ptr_value(conf->server_list, prev->server_list, NULL);
    ngx_conf_merge_msec_value(conf->connect_timeout, prev->connect_timeout,
                              1000);
    ngx_conf_merge_msec_value(conf->timeout, prev->timeout, 5000);

    ngx_http_latchkey_merge_request(conf, prev);
    ngx_http_latchkey_merge_response(conf, prev);
    ngx_http_latchkey_merge_async(conf, prev);

    if (ngx_http_latchkey_name_location(cf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    llcfp = ngx_array_push(&lmcf->locations);
    if (llcfp == NULL) {
        return NGX_CONF_ERROR;
    }

    *llcfp = conf;

    if (ngx_http_latchkey_find_servers(cf, lmcf, conf) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_latchkey_check(cf, lmcf, conf);
}


static void
ngx_http_latchkey_merge_request(ngx_http_latchkey_loc_conf_t *conf,
    ngx_http_latchkey_loc_conf_t *prev)
{
    ngx_conf_merge_uint_value(conf->methods, prev->methods,
                              NGX_HTTP_POST|NGX_HTTP_PATCH);

    if (conf->tenant == NGX_CONF_UNSET_PTR) {
        conf->hashed = prev->hashed;
        conf->trusted = prev->trusted;
    }

    ngx_conf_merge_ptr_value(conf->tenant, prev->tenant, NULL);
    ngx_conf_merge_uint_value(conf->auth_app, prev->auth_app, 0);
    ngx_conf_merge_ptr_value(conf->scope, prev->scope, NULL);
    ngx_conf_merge_ptr_value(conf->bind, prev->bind, NULL);
    ngx_conf_merge_ptr_value(conf->headers, prev->headers, NULL);
    ngx_conf_merge_ptr_value(conf->ignore, prev->ignore, NULL);

    if (conf->key_min == NGX_CONF_UNSET_UINT) {
        conf->key_uuid = prev->key_uuid;
    }

    ngx_conf_merge_uint_value(conf->key_min, prev->key_min, 1);

    if (conf->max_age == NGX_CONF_UNSET_MSEC) {
        conf->age_source = prev->age_source;
        conf->age_uuid = prev->age_uuid;
        conf->max_skew = prev->max_skew;
    }

    ngx_conf_merge_msec_value(conf->max_age, prev->max_age, 0);
}


static void
ngx_http_latchkey_merge_response(ngx_http_latchkey_loc_conf_t *conf,
    ngx_http_latchkey_loc_conf_t *prev)
{
    ngx_conf_merge_msec_value(conf->ttl, prev->ttl, 24 * 60 * 60 * 1000);
    ngx_conf_merge_msec_value(conf->lock, prev->lock, 30000);
    ngx_conf_merge_msec_value(conf->wait, prev->wait, 0);

    if (conf->keep == NGX_CONF_UNSET_PTR) {
        conf->keep_5xx = prev->keep_5xx;
        conf->no_body = prev->no_body;
    }

    ngx_conf_merge_ptr_value(conf->keep, prev->keep, NULL);
    ngx_conf_merge_ptr_value(conf->release, prev->release, NULL);
    ngx_conf_merge_ptr_value(conf->replay_headers, prev->replay_headers, NULL);
    ngx_conf_merge_size_value(conf->response_max, prev->response_max,
                              1024 * 1024);
    ngx_conf_merge_uint_value(conf->mismatch_status, prev->mismatch_status,
                              422);
    ngx_conf_merge_uint_value(conf->reexecute, prev->reexecute, 0);

    if (conf->late_time == NGX_CONF_UNSET_MSEC) {
        conf->late_time = prev->late_time;
        conf->late_size = prev->late_size;
    }

    if (conf->late_time == NGX_CONF_UNSET_MSEC) {
        conf->late_time = 10 * 60 * 1000;
        conf->late_size = 64 * 1024 * 1024;
    }

    ngx_conf_merge_str_value(conf->problem_base, prev->problem_base, "");
}


static void
ngx_http_latchkey_merge_async(ngx_http_latchkey_loc_conf_t *conf,
    ngx_http_latchkey_loc_conf_t *prev)
{
    ngx_conf_merge_uint_value(conf->async, prev->async,
                              NGX_HTTP_LATCHKEY_ASYNC_OFF);
    ngx_conf_merge_str_value(conf->async_location, prev->async_location, "");
    ngx_conf_merge_size_value(conf->async_body, prev->async_body,
                              1024 * 1024);
    ngx_conf_merge_ptr_value(conf->async_headers, prev->async_headers, NULL);
    ngx_conf_merge_msec_value(conf->async_retry, prev->async_retry, 1000);
}


/* the configurations of other modules in this location, and its name */

static ngx_int_t
ngx_http_latchkey_name_location(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *conf)
{
    char                      *sign;
    ngx_http_conf_ctx_t       *ctx;
    ngx_http_core_loc_conf_t  *clcf;

    ctx = cf->ctx;

    conf->loc_conf = ctx->loc_conf;
    conf->cscf = ctx->srv_conf[ngx_http_core_module.ctx_index];
    conf->server_name = conf->cscf->server_name;

    clcf = ctx->loc_conf[ngx_http_core_module.ctx_index];

    sign = clcf->exact_match ? "= " : clcf->noregex ? "^~ " : "";

#if (NGX_PCRE)
    if (clcf->regex) {
        sign = "~ ";
    }
#endif

    conf->location_name.data = ngx_pnalloc(cf->pool, clcf->name.len + 3);
    if (conf->location_name.data == NULL) {
        return NGX_ERROR;
    }

    conf->location_name.len = ngx_sprintf(conf->location_name.data, "%s%V",
                                          sign, &clcf->name)
                              - conf->location_name.data;

    return NGX_OK;
}


/*
 * Without a guard and without a courier only the client's Latchkey-* headers
 * are removed: the phase handler and the filters cost nothing then.
 */

static ngx_int_t
ngx_http_latchkey_init(ngx_conf_t *cf)
{
    ngx_uint_t                       i, serves;
    ngx_http_latchkey_loc_conf_t   **llcf;
    ngx_http_latchkey_main_conf_t   *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    serves = 0;
    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {

        if (ngx_http_latchkey_set_content_handler(llcf[i])) {
            serves = 1;
        }

        if (llcf[i]->mode != NGX_HTTP_LATCHKEY_OFF) {
            lmcf->used = 1;
        }
    }

    if (lmcf->courier) {

        /* requests of the courier must never pass unguarded */

        lmcf->used = 1;

        if (ngx_http_latchkey_courier_init(cf) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_latchkey_add_handler(cf, NGX_HTTP_SERVER_REWRITE_PHASE,
                                      ngx_http_latchkey_strip_handler)
        != NGX_OK
        || ngx_http_latchkey_add_handler(cf, NGX_HTTP_REWRITE_PHASE,
                                         ngx_http_latchkey_strip_handler)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!lmcf->used && !serves) {
        return NGX_OK;
    }

    if (ngx_http_latchkey_counters_init(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!lmcf->used) {
        return NGX_OK;
    }

    if (ngx_http_latchkey_check_receivers(cf, lmcf) != NGX_CONF_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_latchkey_add_handler(cf, NGX_HTTP_PRECONTENT_PHASE,
                                      ngx_http_latchkey_handler)
        != NGX_OK
        || ngx_http_latchkey_add_handler(cf, NGX_HTTP_REWRITE_PHASE,
                                         ngx_http_latchkey_rewrite_handler)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_latchkey_filter_init(cf);
}


ngx_int_t
ngx_http_latchkey_add_handler(ngx_conf_t *cf, ngx_uint_t phase,
    ngx_http_handler_pt handler)
{
    ngx_http_handler_pt        *h;
    ngx_http_core_main_conf_t  *cmcf;

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[phase].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = handler;

    return NGX_OK;
}


/*
 * 1: the gateway makes the responses of this location, and nothing is guarded
 * in it.  Nor is anything in a server outside of its locations, which passes
 * nothing on.  Nothing is inherited any more at this point.
 */

static ngx_uint_t
ngx_http_latchkey_set_content_handler(ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (clcf->handler == ngx_http_latchkey_status_handler
        || clcf->handler == ngx_http_latchkey_operation_handler
        || clcf->handler == ngx_http_latchkey_counters_handler)
    {
        llcf->mode = NGX_HTTP_LATCHKEY_OFF;
        return 1;
    }

    if (llcf->loc_conf == llcf->cscf->ctx->loc_conf) {
        llcf->mode = NGX_HTTP_LATCHKEY_OFF;
    }

    return 0;
}


/*
 * Claims that were not sent are taken back, all ops are detached, which queues
 * their settlements, and the links send those, for at most 500 ms.
 */

static void
ngx_http_latchkey_exit_process(ngx_cycle_t *cycle)
{
    ngx_msec_t                      until;
    ngx_uint_t                      i;
    ngx_http_latchkey_servers_t   **pools;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_latchkey_module);
    if (lmcf == NULL) {
        return;
    }

    pools = lmcf->pools.elts;

    for (i = 0; i < lmcf->pools.nelts; i++) {
        ngx_http_latchkey_link_exiting(pools[i]);
    }

    ngx_http_latchkey_op_exit();

    ngx_time_update();
    until = ngx_current_msec + NGX_HTTP_LATCHKEY_EXIT;

    for (i = 0; i < lmcf->pools.nelts; i++) {
        ngx_http_latchkey_link_exit(pools[i], until);
    }
}


static char *
ngx_http_latchkey_set_mode(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_latchkey_loc_conf_t *llcf = conf;

    char  *rv;

    rv = ngx_http_latchkey_set_enum(cf, cmd, conf);

    llcf->file = cf->conf_file->file.name;
    llcf->line = cf->conf_file->line;

    return rv;
}


/* one of the values in cmd->post */

static char *
ngx_http_latchkey_set_enum(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
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

    word = ngx_http_latchkey_find_enum(cf, cmd, &value[1], cmd->post);
    if (word == NULL) {
        return NGX_CONF_ERROR;
    }

    *np = word->value;

    return NGX_CONF_OK;
}


/* the word in cmd->post restores the default */

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


ngx_conf_enum_t *
ngx_http_latchkey_find_enum(ngx_conf_t *cf, ngx_command_t *cmd,
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
