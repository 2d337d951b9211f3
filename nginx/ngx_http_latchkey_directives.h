
/*
 * How directives are read: what is in the table, by file, and what is shared.
 */


#ifndef _NGX_HTTP_LATCHKEY_DIRECTIVES_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_DIRECTIVES_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


/* directives_server */
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


#endif /* _NGX_HTTP_LATCHKEY_DIRECTIVES_H_INCLUDED_ */
