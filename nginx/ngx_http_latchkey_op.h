
/*
 * One claimed operation, as the files of op share it.
 */


#ifndef _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_


#include "ngx_http_latchkey_link.h"


#define NGX_HTTP_LATCHKEY_OWNER_LEN   32    /* hexadecimal digits */

/* an op, its claim and its settlement, without the body */
#define NGX_HTTP_LATCHKEY_POOL_SIZE     2560

#define NGX_HTTP_LATCHKEY_OP_PAUSE_MIN  50
#define NGX_HTTP_LATCHKEY_OP_PAUSE_MAX  5000

/* a lost claim is asked for so often, after 1, 2, 4 and 8 s */
#define NGX_HTTP_LATCHKEY_OP_ASK        1000
#define NGX_HTTP_LATCHKEY_OP_ASK_MAX    4

#define NGX_HTTP_LATCHKEY_WORDS_MAX     16


typedef struct ngx_http_latchkey_ctx_s  ngx_http_latchkey_ctx_t;
typedef struct ngx_http_latchkey_op_s   ngx_http_latchkey_op_t;


/* one claimed operation */

typedef enum {
    NGX_HTTP_LATCHKEY_SETTLE_KEEP = 0,
    NGX_HTTP_LATCHKEY_SETTLE_OMIT,
    NGX_HTTP_LATCHKEY_SETTLE_RELEASE,
    NGX_HTTP_LATCHKEY_SETTLE_DOUBT
} ngx_http_latchkey_settle_e;


typedef enum {
    NGX_HTTP_LATCHKEY_OP_IDLE = 0,  /* made, nothing asked yet */
    NGX_HTTP_LATCHKEY_OP_CLAIMING,
    NGX_HTTP_LATCHKEY_OP_HELD,      /* NEW: the token is ours */
    NGX_HTTP_LATCHKEY_OP_SETTLING,
    NGX_HTTP_LATCHKEY_OP_DONE
} ngx_http_latchkey_op_state_e;


/*
 * The answer to a claim or a settlement.  NULL: none came in time, or the
 * store could not decide.  Never called after the request let go of the op.
 */
typedef void (*ngx_http_latchkey_op_pt)(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *answer);


/* a request as it is given away, all in memory of the op */

typedef struct {
    ngx_str_t                        method;
    ngx_str_t                        path;        /* with the query */
    ngx_str_t                        headers;     /* lines */
    ngx_str_t                        body;
} ngx_http_latchkey_order_t;


struct ngx_http_latchkey_op_s {
    ngx_queue_t                      queue;       /* of this worker's */
    ngx_pool_t                      *pool;
    ngx_http_latchkey_loc_conf_t    *conf;
    ngx_http_latchkey_ctx_t         *ctx;         /* NULL: request is gone */
    ngx_http_latchkey_op_pt          handler;
    ngx_http_latchkey_op_state_e     state;

    ngx_str_t                        tenant;
    ngx_str_t                        scope;
    ngx_str_t                        key;
    u_char                           fingerprint[LK_FINGERPRINT_TEXT + 1];
    u_char                           owner[NGX_HTTP_LATCHKEY_OWNER_LEN];
    uint64_t                         token;
    uint64_t                         attempt;
    u_char                           reference[LK_REFERENCE_TEXT + 1];

    /* the daemon's clock when it claimed, in ms, and ours */
    uint64_t                         claimed_ms;
    ngx_msec_t                       claimed_at;

    ngx_http_latchkey_call_t         call;        /* claim, settlement */
    ngx_http_latchkey_call_t         extend_call;
    ngx_event_t                      timer;       /* extend, or try again */
    ngx_msec_t                       give_up;     /* late: until then */
    ngx_msec_t                       pause;       /* late: before next try */

    ngx_http_latchkey_settle_e       settle;
    ngx_msec_t                       ttl;         /* from its completion */
    ngx_uint_t                       status;      /* of the answer */
    ngx_str_t                        response_headers;  /* lines */

    /* blocks of the pool; body_size is the sum of what they hold */
    ngx_chain_t                     *body;
    ngx_chain_t                     *body_last;   /* may have room */
    size_t                           body_size;   /* <= response_max */
    ngx_str_t                        reason;      /* of omission or doubt */
    size_t                           late_size;   /* counted, see op_late */

    ngx_http_latchkey_order_t       *order;       /* NULL: run it here */

    unsigned                         courier:1;   /* the claim is not ours */
    unsigned                         too_large:1; /* the order, it was told */
    unsigned                         no_new:1;
    unsigned                         late:1;
    unsigned                         asked:3;     /* about a lost claim */
    unsigned                         lost:1;      /* a claim, and repeated */
    unsigned                         elsewhere:1; /* another one holds it */
    unsigned                         contacted:1; /* the app may have run */
};


/* NULL: out of memory; tenant, scope and key are copied */
ngx_http_latchkey_op_t *ngx_http_latchkey_op_create(
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *tenant, ngx_str_t *scope,
    ngx_str_t *key);
/*
 * NGX_OK: the handler will come.  NGX_DECLINED: no daemon.  NGX_ERROR.  With
 * an order it is given away, and there is never NEW; with the courier's token
 * DONE says that it is good.
 */
ngx_int_t ngx_http_latchkey_op_claim(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
/* what the operation is now; nothing is started */
ngx_int_t ngx_http_latchkey_op_ask(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
ngx_int_t ngx_http_latchkey_op_settle(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
/* the request is gone, or needs no answer: the op ends by itself */
void ngx_http_latchkey_op_detach(ngx_http_latchkey_op_t *op);
/* the worker ends now, and with it all requests: what they held is settled */
void ngx_http_latchkey_op_exit(void);


/* a command in the making: ngx_http_latchkey_command() copies short words */

typedef struct {
    ngx_str_t    words[NGX_HTTP_LATCHKEY_WORDS_MAX];
    ngx_uint_t   n;
    u_char       numbers[4][NGX_INT64_LEN];
    ngx_uint_t   nnumbers;

    /* the word that is a chain and never copied; body NULL: there is none */
    ngx_chain_t  *body;
    ngx_uint_t   body_word;
} ngx_http_latchkey_words_t;


/* op */

/* to the request, if there is one yet; else the op may end */
void ngx_http_latchkey_op_tell(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer);
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
/* `len` bytes of a chain, which must live as long as the command */
void ngx_http_latchkey_op_chain(ngx_http_latchkey_words_t *w,
    ngx_chain_t *body, size_t len);
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

/* op_extend */

/* the token is ours: from now on, signs of life are given */
ngx_int_t ngx_http_latchkey_op_send_extend(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_call_pt handler,
    ngx_uint_t patient);

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
