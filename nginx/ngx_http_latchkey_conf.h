
/*
 * What is configured, as it stands once nginx has read it.
 */


#ifndef _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <latchkey.h>


/* as the daemon has them */
#define NGX_HTTP_LATCHKEY_TENANT_MAX  255
#define NGX_HTTP_LATCHKEY_SCOPE_MAX   1024

#define NGX_HTTP_LATCHKEY_STORE_LEN   64    /* the longest name of a store */


typedef struct ngx_http_latchkey_loc_conf_s  ngx_http_latchkey_loc_conf_t;
typedef struct ngx_http_latchkey_link_s      ngx_http_latchkey_link_t;


typedef enum {
    NGX_HTTP_LATCHKEY_OFF = 0,
    NGX_HTTP_LATCHKEY_OBSERVE,
    NGX_HTTP_LATCHKEY_OPTIONAL,
    NGX_HTTP_LATCHKEY_REQUIRED
} ngx_http_latchkey_mode_e;


typedef enum {
    NGX_HTTP_LATCHKEY_ASYNC_OFF = 0,
    NGX_HTTP_LATCHKEY_ASYNC_PREFER,
    NGX_HTTP_LATCHKEY_ASYNC_ALWAYS
} ngx_http_latchkey_async_e;


typedef struct {
    ngx_addr_t                       addr;
    ngx_str_t                        user;
    ngx_str_t                        password;
} ngx_http_latchkey_server_t;


/* daemons that share a store; each worker is linked to one of them */

typedef struct {
    ngx_array_t                      list;  /* ngx_http_latchkey_server_t */
    ngx_msec_t                       connect_timeout;

    /* of this worker: the store that the first answer came from */
    u_char                           store[NGX_HTTP_LATCHKEY_STORE_LEN];
    size_t                           store_len;

    /* made when first needed */
    ngx_http_latchkey_link_t        *link;
    ngx_http_latchkey_link_t        *await;
} ngx_http_latchkey_servers_t;


typedef struct {
    ngx_str_t                        secret;      /* the key of `hashed` */
    ngx_array_t                      pools;       /* servers_t * */

    /* ngx_http_latchkey_loc_conf_t *, each merged location once */
    ngx_array_t                      locations;
    ngx_uint_t                       counted;     /* numbers given away */
    ngx_shm_zone_t                  *zone;        /* counters */
    ngx_shm_zone_t                  *rate_zone;   /* see status */
    ngx_http_complex_value_t        *warned;      /* about this tenant */
    ngx_addr_t                      *courier;     /* NULL: there is none */
    ngx_array_t                     *couriers;    /* uid_t; NULL: anybody */

    /* of every "map"; NULL: there is none, or it is not known */
    ngx_http_get_variable_pt         map_handler;
    ngx_array_t                     *asked;       /* variables, of a tenant */
    unsigned                         map_asked:1;

    unsigned                         warned_courier:1;
    unsigned                         used:1;      /* something is guarded */
} ngx_http_latchkey_main_conf_t;


struct ngx_http_latchkey_loc_conf_s {
    ngx_uint_t                       mode;
    ngx_uint_t                       methods;     /* NGX_HTTP_POST|... */

    ngx_http_latchkey_servers_t     *servers;     /* NULL: not needed */
    ngx_array_t                     *server_list; /* as written */
    ngx_msec_t                       connect_timeout;
    ngx_msec_t                       timeout;

    ngx_http_complex_value_t        *tenant;
    ngx_flag_t                       hashed;
    ngx_uint_t                       trusted;     /* verified before nginx */
    ngx_uint_t                       auth_app;
    ngx_http_complex_value_t        *scope;       /* NULL: the default */
    ngx_http_complex_value_t        *bind;        /* NULL: none */
    ngx_array_t                     *headers;     /* ngx_str_t, lower case */
    ngx_array_t                     *ignore;      /* struct lk_slice */

    ngx_uint_t                       key_uuid;
    ngx_uint_t                       key_min;

    ngx_msec_t                       ttl;
    ngx_msec_t                       lock;
    ngx_msec_t                       wait;

    ngx_uint_t                       keep_5xx;
    ngx_array_t                     *keep;        /* ngx_uint_t, statuses */
    ngx_array_t                     *release;     /* the same, none of keep */
    ngx_uint_t                       no_body;
    ngx_array_t                     *replay_headers; /* ngx_str_t, lower */
    size_t                           response_max;
    ngx_uint_t                       mismatch_status;
    ngx_uint_t                       reexecute;

    ngx_http_complex_value_t        *age_source;  /* NULL: see age_uuid */
    ngx_uint_t                       age_uuid;    /* the time in the key */
    ngx_msec_t                       max_age;     /* 0: no check */
    ngx_msec_t                       max_skew;

    ngx_msec_t                       late_time;
    size_t                           late_size;   /* of one worker */

    ngx_str_t                        problem_base;

    ngx_uint_t                       async;
    ngx_str_t                        async_location;
    size_t                           async_body;
    ngx_array_t                     *async_headers; /* ngx_str_t, lower */
    ngx_msec_t                       async_retry;

    /* idempotency_status, _operation or _counters; NULL: none of them */
    ngx_http_handler_pt              handler;

    /* of a caller's questions */
    ngx_uint_t                       status_rate;   /* 1/1000 r/s */
    ngx_uint_t                       status_burst;

    /* where `idempotency` was written, for messages */
    ngx_str_t                        file;
    ngx_uint_t                       line;
    ngx_uint_t                       inherited;   /* not in this location */

    /* of this location: what all modules have, and its server */
    void                           **loc_conf;
    ngx_http_core_srv_conf_t        *cscf;

    ngx_uint_t                       counter;     /* from 1, see counters */
    ngx_str_t                        server_name;
    ngx_str_t                        location_name;
};


/* directives */

/* servers */
/* locations with the same daemons share a worker's connections to them */
ngx_int_t ngx_http_latchkey_find_servers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *conf);
char *ngx_http_latchkey_set_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_courier(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* directives_request */
char *ngx_http_latchkey_set_methods(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_tenant(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_key(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_ignore(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_max_age(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* directives_headers */
char *ngx_http_latchkey_set_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_async_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* directives_answer */
char *ngx_http_latchkey_set_keep(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_release(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_late(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_problem_base(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_async_location(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* directives_query */
char *ngx_http_latchkey_set_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_operation(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_counters(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/* These say what is wrong, and with which directive. */

/* NULL: it is none of them, and the message lists them */
ngx_conf_enum_t *ngx_http_latchkey_find_word(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *value, ngx_conf_enum_t *words);
ngx_int_t ngx_http_latchkey_compile_value(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t **cv);
ngx_int_t ngx_http_latchkey_parse_time(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *value, ngx_msec_t *time);


/* check */

/* of modules that an nginx may be built without */
#define ngx_http_latchkey_weak  __attribute__((weak))


char *ngx_http_latchkey_check_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);

/* does "return" answer every request of the location? */
ngx_uint_t ngx_http_latchkey_returns(ngx_http_latchkey_loc_conf_t *llcf);
/* does nginx itself ask who the client is? */
ngx_uint_t ngx_http_latchkey_authenticates(
    ngx_http_latchkey_loc_conf_t *llcf);

/*
 * Says what, which location, and where its guard was written; returns
 * NGX_CONF_ERROR whatever the level.
 */
char *ngx_http_latchkey_complain(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t level, const char *fmt,
    ...);
/* NULL: there is no such module in this nginx */
void *ngx_http_latchkey_conf_of(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_module_t *module);


#endif /* _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_ */
