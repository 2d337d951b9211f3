
/*
 * The answer on its way out, as the files of response share it.
 */


#ifndef _NGX_HTTP_LATCHKEY_RESPONSE_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_RESPONSE_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


extern ngx_http_output_header_filter_pt  ngx_http_latchkey_next_header;
extern ngx_http_output_body_filter_pt    ngx_http_latchkey_next_body;


/* response_hold */

/* settled by what is known already; the body is not needed for it */
ngx_uint_t ngx_http_latchkey_too_large(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* an answer that would be kept is not */
void ngx_http_latchkey_omit(ngx_http_latchkey_op_t *op, const char *reason);
/* these return as a body filter does */
ngx_int_t ngx_http_latchkey_hold(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_latchkey_observe(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
/* buffers that stay with their owner until they can be sent */
ngx_int_t ngx_http_latchkey_leave(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
/* buffers that will not be sent */
void ngx_http_latchkey_drop(ngx_chain_t *in);

/* response_settle */

/* returns as a filter does; nothing leaves before the daemon has answered */
ngx_int_t ngx_http_latchkey_settle(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* nobody waits for it */
void ngx_http_latchkey_settle_aside(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* response_headers */

/* those that a replay may carry, as lines, into the op's pool */
ngx_int_t ngx_http_latchkey_store_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* our headers; what the app sent under their names is ours to say */
ngx_int_t ngx_http_latchkey_mark(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* response_send */

/*
 * From the daemon's event back into the filters.  If the upstream is still
 * there, its own write handler goes on from where we stopped it.
 */
void ngx_http_latchkey_wake(ngx_http_request_t *r);
ngx_int_t ngx_http_latchkey_send_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
ngx_int_t ngx_http_latchkey_send_other(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);


#endif /* _NGX_HTTP_LATCHKEY_RESPONSE_H_INCLUDED_ */
