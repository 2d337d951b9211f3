
/*
 * The configuration: its structures, the readers of directives, the checks.
 */


#ifndef _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <latchkey.h>


/* the daemon's limits */
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

    /* of this worker: the store of the first daemon that answered */
    u_char                           store[NGX_HTTP_LATCHKEY_STORE_LEN];
    size_t                           store_len;

    /* of this worker, made when first needed; NULL: not yet */
    ngx_http_latchkey_link_t        *link;
    ngx_http_latchkey_link_t        *await;
} ngx_http_latchkey_servers_t;


typedef struct {
    ngx_str_t                        secret;      /* the key of `hashed` */
    ngx_array_t                      pools;       /* servers_t * */

    /* ngx_http_latchkey_loc_conf_t *, each merged location once */
    ngx_array_t                      locations;
    ngx_uint_t                       counted;     /* locations numbered */
    ngx_shm_zone_t                  *zone;        /* counters */
    ngx_shm_zone_t                  *rate_zone;   /* of lookups */
    ngx_http_complex_value_t        *warned;      /* about this tenant */
    ngx_addr_t                      *courier;     /* NULL: there is none */
    ngx_array_t                     *couriers;    /* uid_t; NULL: anyone */

    /* of every "map"; NULL: there is none, or it is not known */
    ngx_http_get_variable_pt         map_handler;
    ngx_array_t                     *followed;    /* variables of a tenant */
    unsigned                         map_known:1; /* map_handler was found */

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
    ngx_uint_t                       trusted;     /* verified by a proxy */
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
    ngx_array_t                     *release;     /* also; disjoint from keep */
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

    /* rate of lookups by a caller */
    ngx_uint_t                       status_rate;   /* 1/1000 r/s */
    ngx_uint_t                       status_burst;

    /* where `idempotency` is written, for messages */
    ngx_str_t                        file;
    ngx_uint_t                       line;
    ngx_uint_t                       inherited;   /* not in this location */

    /* configurations of all modules in this location; its server */
    void                           **loc_conf;
    ngx_http_core_srv_conf_t        *cscf;

    ngx_uint_t                       counter;     /* its number, from 1 */
    ngx_str_t                        server_name;
    ngx_str_t                        location_name;
};


/* servers */

/* sets conf->servers; locations with the same daemons share their links */
ngx_int_t ngx_http_latchkey_find_servers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *conf);
char *ngx_http_latchkey_set_server(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_courier(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_secret(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/* directives: readers for the table in ngx_http_latchkey_module.c */

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

char *ngx_http_latchkey_set_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_replay_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_async_headers(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

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

char *ngx_http_latchkey_set_status(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_operation(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
char *ngx_http_latchkey_set_counters(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/*
 * module: these log what is wrong, and with which directive.
 */

/* NULL: it is not one of them, and the message lists them */
ngx_conf_enum_t *ngx_http_latchkey_find_enum(ngx_conf_t *cf,
    ngx_command_t *cmd, ngx_str_t *value, ngx_conf_enum_t *words);
ngx_int_t ngx_http_latchkey_compile_value(ngx_conf_t *cf, ngx_str_t *value,
    ngx_http_complex_value_t **cv);
ngx_int_t ngx_http_latchkey_parse_time(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_str_t *value, ngx_msec_t *time);


/*
 * check, check_tenant: they return NGX_CONF_ERROR if nginx must not start, and
 * have logged why.
 */

/* for modules that an nginx may be built without */
#define ngx_http_latchkey_weak  __attribute__((weak))


/* a merged location that is guarded, or in which the gateway responds */
char *ngx_http_latchkey_check(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
char *ngx_http_latchkey_check_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
/*
 * Locations that a claimed request may be redirected to: a client that leaves
 * must not stop it there either.
 */
char *ngx_http_latchkey_check_receivers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf);
/* calls the handler for each address the server listens on; NULL: any one */
typedef void (*ngx_http_latchkey_listen_pt)(struct sockaddr *sa,
    socklen_t socklen, void *data);
void ngx_http_latchkey_each_listen(ngx_conf_t *cf,
    ngx_http_core_srv_conf_t *cscf, ngx_http_latchkey_listen_pt handler,
    void *data);
/* is the response to this request made by fastcgi_pass? */
ngx_uint_t ngx_http_latchkey_is_fastcgi(ngx_http_request_t *r);
/* does "return" respond to every request of the location? */
ngx_uint_t ngx_http_latchkey_has_return(ngx_http_latchkey_loc_conf_t *llcf);
/* does nginx itself authenticate the client? */
ngx_uint_t ngx_http_latchkey_authenticates(
    ngx_http_latchkey_loc_conf_t *llcf);

/*
 * Logs what is wrong, with which location, and where its guard is written;
 * returns NGX_CONF_ERROR at any level.
 */
char *ngx_http_latchkey_conf_error(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t level, const char *fmt,
    ...);
/* NULL: there is no such module in this nginx */
void *ngx_http_latchkey_module_conf(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_module_t *module);


#endif /* _NGX_HTTP_LATCHKEY_CONF_H_INCLUDED_ */
