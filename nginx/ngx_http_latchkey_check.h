
/*
 * What the files of check share.  They return NGX_CONF_ERROR if nginx must not
 * start, and have said why.
 */


#ifndef _NGX_HTTP_LATCHKEY_CHECK_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_CHECK_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


/* of modules that an nginx may be built without */
#define ngx_http_latchkey_weak  __attribute__((weak))


char *ngx_http_latchkey_check_tenant(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
char *ngx_http_latchkey_check_pass(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf);

/* does "return" answer every request of the location? */
ngx_uint_t ngx_http_latchkey_returns(ngx_http_latchkey_loc_conf_t *llcf);
/* may a client write the variable as it likes?  0: no, or it is not known */
ngx_uint_t ngx_http_latchkey_is_clients(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
/* has the text such a variable?  *name: which; may be NULL */
ngx_uint_t ngx_http_latchkey_has_clients(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *text, ngx_uint_t depth,
    ngx_str_t *name);
ngx_uint_t ngx_http_latchkey_is_mapped_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
ngx_uint_t ngx_http_latchkey_is_set_by_client(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *name, ngx_uint_t depth);
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


#endif /* _NGX_HTTP_LATCHKEY_CHECK_H_INCLUDED_ */
