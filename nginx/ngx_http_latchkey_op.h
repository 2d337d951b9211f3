
/*
 * One operation as its holder sees it; its life is in ngx_http_latchkey_op.c.
 */


#ifndef _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_


#include "ngx_http_latchkey_link.h"


#define NGX_HTTP_LATCHKEY_OWNER_LEN   32    /* hexadecimal digits */

/* an op, its claim and its settlement, without the body */
#define NGX_HTTP_LATCHKEY_POOL_SIZE     2560

#define NGX_HTTP_LATCHKEY_OP_PAUSE_MIN  50
#define NGX_HTTP_LATCHKEY_OP_PAUSE_MAX  5000

/* a lost claim is asked for 4 times, after 1, 2, 4 and 8 s */
#define NGX_HTTP_LATCHKEY_OP_ASK        1000
#define NGX_HTTP_LATCHKEY_OP_ASK_MAX    4

#define NGX_HTTP_LATCHKEY_WORDS_MAX     16


typedef struct ngx_http_latchkey_ctx_s  ngx_http_latchkey_ctx_t;
typedef struct ngx_http_latchkey_op_s   ngx_http_latchkey_op_t;


typedef enum {
    NGX_HTTP_LATCHKEY_SETTLE_KEEP = 0,  /* COMPLETE with the response */
    NGX_HTTP_LATCHKEY_SETTLE_OMIT,      /* COMPLETE without it */
    NGX_HTTP_LATCHKEY_SETTLE_RELEASE,   /* a retry may run */
    NGX_HTTP_LATCHKEY_SETTLE_DOUBT      /* the outcome is unknown */
} ngx_http_latchkey_settle_e;


typedef enum {
    NGX_HTTP_LATCHKEY_OP_IDLE = 0,  /* nothing was sent yet */
    NGX_HTTP_LATCHKEY_OP_CLAIMING,
    NGX_HTTP_LATCHKEY_OP_HELD,      /* NEW: this op has the token */
    NGX_HTTP_LATCHKEY_OP_SETTLING,
    NGX_HTTP_LATCHKEY_OP_DONE
} ngx_http_latchkey_op_state_e;


/*
 * What the daemon decided about a claim or a settlement.  NULL: no reply came
 * in time, or the store could not decide.  Never called after op_detach().
 */
typedef void (*ngx_http_latchkey_op_pt)(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision);


/* a request as ACCEPT stores it, all in memory of the op */

typedef struct {
    ngx_str_t                        method;
    ngx_str_t                        path;        /* with the query */
    ngx_str_t                        headers;     /* lines */
    ngx_str_t                        body;
} ngx_http_latchkey_accept_t;


struct ngx_http_latchkey_op_s {
    ngx_queue_t                      queue;       /* all ops of this worker */
    ngx_pool_t                      *pool;
    ngx_http_latchkey_loc_conf_t    *conf;
    ngx_http_latchkey_ctx_t         *ctx;         /* NULL: detached */
    ngx_http_latchkey_op_pt          handler;
    ngx_http_latchkey_op_state_e     state;

    ngx_str_t                        tenant;
    ngx_str_t                        scope;
    ngx_str_t                        key;
    u_char                           fingerprint[LK_FINGERPRINT_TEXT + 1];
    u_char                           owner[NGX_HTTP_LATCHKEY_OWNER_LEN];
    uint64_t                         token;       /* 0: none; else HELD */
    uint64_t                         attempt;
    u_char                           reference[LK_REFERENCE_TEXT + 1];

    /* the daemon's clock at the claim, in ms, and ours then */
    uint64_t                         claimed_ms;
    ngx_msec_t                       claimed_at;

    ngx_http_latchkey_call_t         call;        /* claim, then settlement */
    ngx_http_latchkey_call_t         extend_call;
    ngx_event_t                      timer;       /* EXTEND, or try again */
    ngx_msec_t                       give_up;     /* late: until when */
    ngx_msec_t                       pause;       /* late: before the next */

    ngx_http_latchkey_settle_e       settle;
    ngx_msec_t                       ttl;         /* from completion on, ms */
    ngx_uint_t                       status;      /* of the response */
    ngx_str_t                        response_headers;  /* lines */

    /* blocks of the pool; body_size is the sum of what they hold */
    ngx_chain_t                     *body;
    ngx_chain_t                     *body_last;   /* may have room */
    size_t                           body_size;   /* <= response_max */
    ngx_str_t                        reason;      /* of omission or doubt */
    size_t                           late_size;   /* counted in the worker's */

    ngx_http_latchkey_accept_t      *accept;      /* NULL: it runs here */

    unsigned                         courier:1;   /* the courier claimed it */
    unsigned                         too_large:1; /* to accept, says daemon */
    unsigned                         no_new:1;    /* claims send NONEW */
    unsigned                         late:1;      /* detached, tries again */
    unsigned                         asked:3;     /* times, for a lost claim */
    unsigned                         lost:1;      /* a claim was repeated */
    unsigned                         elsewhere:1; /* another holder has it */
    unsigned                         contacted:1; /* the app may have run */
};


/* NULL: out of memory; tenant, scope and key are copied */
ngx_http_latchkey_op_t *ngx_http_latchkey_op_create(
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *tenant, ngx_str_t *scope,
    ngx_str_t *key);
/*
 * NGX_OK: the handler will be called.  NGX_DECLINED: no daemon can be reached.
 * NGX_ERROR.  With op->accept the request is accepted for later, and NEW never
 * comes; with the courier's token, DONE means that it is current.
 */
ngx_int_t ngx_http_latchkey_op_claim(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
/* asks for the present verdict; nothing is claimed */
ngx_int_t ngx_http_latchkey_op_ask(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
/* in HELD only; NGX_ERROR: not queued */
ngx_int_t ngx_http_latchkey_op_settle(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler);
/* the request ends, or needs no reply: the op ends by itself */
void ngx_http_latchkey_op_detach(ngx_http_latchkey_op_t *op);
/* the worker ends now, and all requests with it: detaches all ops */
void ngx_http_latchkey_op_exit(void);


/* a command that is being put together */

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

/* calls the request's handler, if there is one; else the op may end */
void ngx_http_latchkey_op_notify(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision);
/* frees the op if it is detached, DONE, and has no call in the link */
void ngx_http_latchkey_op_end(ngx_http_latchkey_op_t *op);

/* the verb, tenant, scope and key */
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
/* sends the same bytes again: no more memory is needed */
ngx_int_t ngx_http_latchkey_op_send_again(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call);
/* LK_TIMEOUT: there is no reply */
enum lk_status ngx_http_latchkey_op_read(const struct lk_reply *reply,
    struct lk_decision *decision);

ngx_int_t ngx_http_latchkey_op_send_claim(ngx_http_latchkey_op_t *op,
    ngx_uint_t patient);

ngx_int_t ngx_http_latchkey_op_send_extend(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_call_pt handler,
    ngx_uint_t patient);


/* op_settle */

/*
 * Is it uncertain, and may it run again?  Then the courier decides, or the end
 * of its lease.
 */
ngx_uint_t ngx_http_latchkey_op_is_left(ngx_http_latchkey_op_t *op);

/*
 * Claims or settles again, of a detached op.  A call without a reply goes back
 * into the link's queue without a pause: it must be the first on the next
 * connection, before another client claims what this op has the response to.  A
 * daemon that has replied is given time.
 */
void ngx_http_latchkey_op_try_again(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
/*
 * How long to wait before the next attempt: longer each time, if the daemon
 * cannot decide now or the connection broke with this call.  0: no daemon has
 * seen it, so send it again at once.
 */
ngx_msec_t ngx_http_latchkey_op_pause(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
/* its memory is not counted any more */
void ngx_http_latchkey_op_uncount_late(ngx_http_latchkey_op_t *op);


#endif /* _NGX_HTTP_LATCHKEY_OP_H_INCLUDED_ */
