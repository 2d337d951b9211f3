
/*
 * One claimed operation, as the files of op share it.
 */


#ifndef _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


/* an op, its claim and its settlement, without the body */
#define NGX_HTTP_LATCHKEY_POOL_SIZE     2560

#define NGX_HTTP_LATCHKEY_OP_PAUSE_MIN  50
#define NGX_HTTP_LATCHKEY_OP_PAUSE_MAX  5000

/* a lost claim is asked for so often, after 1, 2, 4 and 8 s */
#define NGX_HTTP_LATCHKEY_OP_ASK        1000
#define NGX_HTTP_LATCHKEY_OP_ASK_MAX    4

#define NGX_HTTP_LATCHKEY_WORDS_MAX     16


/* a command in the making: ngx_http_latchkey_command() copies short words */

typedef struct {
    ngx_str_t    words[NGX_HTTP_LATCHKEY_WORDS_MAX];
    ngx_uint_t   n;
    u_char       numbers[4][NGX_INT64_LEN];
    ngx_uint_t   nnumbers;
} ngx_http_latchkey_words_t;


/* op */

/* to the request, if there is one yet; else the op may end */
void ngx_http_latchkey_op_tell(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer);
/* held, and nobody is there to answer */
void ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op);
/* frees the op, if nothing of it is on its way */
void ngx_http_latchkey_op_end(ngx_http_latchkey_op_t *op);

/* op_command */

/* the verb, and what names the operation */
void ngx_http_latchkey_op_words(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op, const char *verb);
void ngx_http_latchkey_op_word(ngx_http_latchkey_words_t *w, const void *data,
    size_t len);
void ngx_http_latchkey_op_number(ngx_http_latchkey_words_t *w,
    uint64_t number);
ngx_int_t ngx_http_latchkey_op_send(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_call_pt handler, ngx_uint_t patient);
/* the same bytes: trying again costs no more memory */
ngx_int_t ngx_http_latchkey_op_send_again(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call);
/* LK_TIMEOUT: there is no reply */
enum lk_status ngx_http_latchkey_op_read(const struct lk_reply *reply,
    struct lk_decision *answer);

/* op_claim */
ngx_int_t ngx_http_latchkey_op_send_claim(ngx_http_latchkey_op_t *op,
    ngx_uint_t patient);
/*
 * Nobody knows whether it was claimed.  The request is told that there is no
 * answer; the op asks on until it knows, so that the key is not wedged.
 */
void ngx_http_latchkey_op_unclaimed(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
/* not held here, and nobody waits: has the lost claim taken it since? */
void ngx_http_latchkey_op_ask_late(ngx_http_latchkey_op_t *op);

/* op_extend */

/* the token is ours: from now on, signs of life are given */
void ngx_http_latchkey_op_hold(ngx_http_latchkey_op_t *op);
ngx_int_t ngx_http_latchkey_op_send_extend(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_call_pt handler,
    ngx_uint_t patient);

/* op_settle */
ngx_int_t ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op);
/* in doubt, and may run again: the courier decides, or the lease runs out */
ngx_uint_t ngx_http_latchkey_op_is_given_back(ngx_http_latchkey_op_t *op);

/* op_late */

/*
 * A call that no daemon has answered goes back into the link's queue without
 * a pause: it must be the first thing that the next connection hears, before
 * somebody else claims what we hold the answer to.  A daemon that has answered
 * is not asked in a hurry.
 */
void ngx_http_latchkey_op_again(ngx_http_latchkey_op_t *op, ngx_msec_t pause);
/*
 * The daemon cannot decide now, or a connection broke when it was told this:
 * ask ever less often.  0: nobody has heard it, so say it again at once.
 */
ngx_msec_t ngx_http_latchkey_op_pause(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
/* its memory does not count any more */
void ngx_http_latchkey_op_late_end(ngx_http_latchkey_op_t *op);


#endif /* _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_ */
