
/*
 * How the daemon is asked, and how one waits for what it will say.
 */


#ifndef _NGX_HTTP_LATCHKEY_CALL_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_CALL_H_INCLUDED_


#include "ngx_http_latchkey_conf.h"


typedef struct ngx_http_latchkey_call_s   ngx_http_latchkey_call_t;
typedef struct ngx_http_latchkey_await_s  ngx_http_latchkey_await_t;


/*
 * Called once for each call that was taken.  The reply and what it points to
 * are valid during the handler only.  NULL: the deadline passed or the call
 * could not be sent; call->sent tells whether a daemon may have seen it.
 */
typedef void (*ngx_http_latchkey_call_pt)(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);


/*
 * One command on its way.  It belongs to the caller, must stay where it is
 * until its handler is called, and cannot be taken back.  A call whose
 * connection breaks is sent again on the next one until its deadline: all
 * commands of the gateway may be repeated.
 */
struct ngx_http_latchkey_call_s {
    ngx_queue_t                      queue;       /* of the link */
    ngx_http_latchkey_call_pt        handler;
    void                            *data;
    ngx_chain_t                     *out;         /* never changed */
    ngx_msec_t                       deadline;    /* as ngx_current_msec */

    ngx_event_t                      timer;       /* of the link */

    unsigned                         patient:1;   /* waits for a daemon */
    unsigned                         first:1;     /* before all that wait */
    unsigned                         sent:1;      /* as a whole, once */
    unsigned                         busy:1;      /* the handler will come */
    unsigned                         repeated:1;  /* on another connection */
    unsigned                         owed:1;      /* of the link */
    unsigned                         cut:2;       /* of the link */
    unsigned                         holds:1;     /* of an op: see exit */
};


/*
 * Settled (NGX_OK: claim again), or nobody will say so (NGX_ERROR: the
 * connection broke).  Called at most once.
 */
typedef void (*ngx_http_latchkey_await_pt)(ngx_http_latchkey_await_t *await,
    ngx_int_t rc);


struct ngx_http_latchkey_await_s {
    ngx_http_latchkey_await_pt       handler;
    void                            *data;
    void                            *waiter;      /* NULL: not waiting */
};


/*
 * A command as bytes: an array of bulk strings.  Long words are not copied
 * and must live as long as the chain.  NULL: out of memory.
 */
ngx_chain_t *ngx_http_latchkey_command(ngx_pool_t *pool,
    const ngx_str_t *words, ngx_uint_t n);

/* what an error reply means, as it may be logged */
const char *ngx_http_latchkey_error_text(struct lk_slice text);

/*
 * NGX_OK: queued; the handler never runs before this returns.
 * NGX_DECLINED: no daemon can be reached now and the call is not patient;
 * the handler will not be called.
 */
ngx_int_t ngx_http_latchkey_link_call(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_call_t *call);

/* NGX_OK: waiting.  NGX_DECLINED: not possible now, ask again later. */
ngx_int_t ngx_http_latchkey_await(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_await_t *await, const ngx_str_t *tenant,
    const ngx_str_t *scope, const ngx_str_t *key, ngx_msec_t ms);
void ngx_http_latchkey_await_cancel(ngx_http_latchkey_await_t *await);

/* the worker's time is up: what is not stored now will not be */
ngx_uint_t ngx_http_latchkey_link_leaving(
    ngx_http_latchkey_servers_t *servers);

/*
 * When a worker ends.  Only what settles operations is sent any more, and only
 * replies to claims are waited for; nothing that a request has asked for.
 */
void ngx_http_latchkey_link_exiting(ngx_http_latchkey_servers_t *servers);
/* until all of that is answered, or the time is up; then it is closed */
void ngx_http_latchkey_link_exit(ngx_http_latchkey_servers_t *servers,
    ngx_msec_t until);


#endif /* _NGX_HTTP_LATCHKEY_CALL_H_INCLUDED_ */
