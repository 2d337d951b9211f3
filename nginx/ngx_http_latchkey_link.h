
/*
 * Calls to the daemon, waiting for results, and the connection for both.
 */


#ifndef _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_


#include "ngx_http_latchkey_conf.h"


typedef struct ngx_http_latchkey_call_s   ngx_http_latchkey_call_t;
typedef struct ngx_http_latchkey_await_s  ngx_http_latchkey_await_t;


/*
 * Called once for each call that was taken.  The reply and what it points to
 * are valid in the handler only.  NULL: the deadline passed or the call could
 * not be sent; if call->sent is set, a daemon may have seen it.
 */
typedef void (*ngx_http_latchkey_call_pt)(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);


/*
 * One command in the link.  It belongs to the caller, must not move until its
 * handler is called, and cannot be taken back.  A call whose connection breaks
 * is sent again on the next one until its deadline: all commands of the gateway
 * may be repeated.
 */
struct ngx_http_latchkey_call_s {
    ngx_queue_t                      queue;       /* in waiting or sent */
    ngx_http_latchkey_call_pt        handler;
    void                            *data;
    ngx_chain_t                     *out;         /* not changed while busy */
    ngx_msec_t                       deadline;    /* in ngx_current_msec */

    ngx_event_t                      timer;       /* of the link */

    /* set by the caller */
    unsigned                         patient:1;   /* waits for a daemon */
    unsigned                         first:1;     /* in front of the others */
    unsigned                         holds:1;     /* still sent at exit */

    /* set by the link */
    unsigned                         busy:1;      /* in a queue; will end */
    unsigned                         sent:1;      /* as a whole, once */
    unsigned                         repeated:1;  /* on another connection */
    unsigned                         owed:1;      /* in sent: reply is due */
    unsigned                         cut:2;       /* connections it broke */
};


/*
 * NGX_OK: the operation is settled, claim again.  NGX_ERROR: the connection
 * broke, and no message will come.  Called at most once.
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
 * and must live as long as the chain; nor is `body`, which takes the place of
 * words[body_word] and must have its length.  body NULL: there is none.
 * Returns NULL if out of memory.
 */
ngx_chain_t *ngx_http_latchkey_command(ngx_pool_t *pool,
    const ngx_str_t *words, ngx_uint_t n, ngx_chain_t *body,
    ngx_uint_t body_word);

/* what an error reply means, fit for a log */
const char *ngx_http_latchkey_error_text(struct lk_slice text);

/*
 * NGX_OK: queued; the handler never runs before this returns.
 * NGX_DECLINED: no daemon can be reached now and the call is not patient;
 * the handler will not be called.
 */
ngx_int_t ngx_http_latchkey_link_call(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_call_t *call);

/* NGX_OK: waiting.  NGX_DECLINED: not possible now, claim again later. */
ngx_int_t ngx_http_latchkey_await(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_await_t *await, const ngx_str_t *tenant,
    const ngx_str_t *scope, const ngx_str_t *key, ngx_msec_t ms);
void ngx_http_latchkey_await_cancel(ngx_http_latchkey_await_t *await);

/* worker_shutdown_timeout is over: no new connection will be made */
ngx_uint_t ngx_http_latchkey_link_is_leaving(
    ngx_http_latchkey_servers_t *servers);

/*
 * When a worker ends: from here on only settlements are sent, and only replies
 * to settlements and claims are waited for.
 */
void ngx_http_latchkey_link_exiting(ngx_http_latchkey_servers_t *servers);
/* waits for those replies, until then; closes and frees both links */
void ngx_http_latchkey_link_exit(ngx_http_latchkey_servers_t *servers,
    ngx_msec_t until);


typedef enum {
    NGX_HTTP_LATCHKEY_LINK_DOWN = 0,    /* no connection */
    NGX_HTTP_LATCHKEY_LINK_CONNECTING,
    NGX_HTTP_LATCHKEY_LINK_GREETING,    /* no reply to HELLO yet */
    NGX_HTTP_LATCHKEY_LINK_UP
} ngx_http_latchkey_link_state_e;


#define NGX_HTTP_LATCHKEY_LINK_PAUSE_MIN  50


/* what differs between the link for calls and the one for waiting */

typedef struct {
    ngx_uint_t                       level;       /* of its log messages */
    ngx_uint_t                       again;       /* repeat lost calls */

    /* 1: a message, not a reply, and taken; NULL: there are none */
    ngx_uint_t                     (*push)(ngx_http_latchkey_link_t *link,
                                         const struct lk_reply *reply);
    /* a connection that was up is lost; may be NULL */
    void                           (*lost)(ngx_http_latchkey_link_t *link);
} ngx_http_latchkey_link_kind_t;


typedef struct {
    ngx_chain_t                     *greeting;    /* HELLO [AUTH] */

    /* the last failure that was logged; NULL: a daemon answered since */
    const char                      *why;
    ngx_err_t                        err;

    /* when it failed or could not decide; not used instead of another one */
    ngx_msec_t                       failed;
    unsigned                         bad:1;       /* `failed` is set */

    /* it could not decide, has not since, and that is logged */
    unsigned                         unavailable:1;
} ngx_http_latchkey_peer_t;


struct ngx_http_latchkey_link_s {
    ngx_connection_t                      *connection;  /* NULL if DOWN */
    ngx_http_latchkey_servers_t           *servers;
    const ngx_http_latchkey_link_kind_t   *kind;

    /* event ident must be after 3 pointers as in ngx_connection_t */
    ngx_int_t                              ident;

    ngx_pool_t                            *pool;
    ngx_log_t                             *log;
    void                                  *data;        /* of the kind */

    ngx_http_latchkey_link_state_e         state;
    ngx_http_latchkey_peer_t              *peers;       /* as servers->list */
    ngx_uint_t                             npeers;
    ngx_uint_t                             peer;        /* current or next */

    /* attempts that failed since a daemon answered */
    ngx_uint_t                             failures;
    ngx_msec_t                             pause;       /* before the next */
    ngx_msec_t                             tried;       /* last attempt */
    ngx_msec_t                             lost;        /* last time UP */

    ngx_queue_t                            waiting;
    ngx_queue_t                            sent;        /* replies are due */
    ngx_queue_t                            spare;       /* stand-ins */
    size_t                                 offset;      /* of waiting's head */
    ngx_msec_t                             progress;    /* last sign of life */

    /* received and not parsed; freed when it is empty and large */
    u_char                                *in;
    size_t                                 in_len;      /* <= in_size */
    size_t                                 in_size;
    size_t                                 in_need;     /* for a whole reply */

    ngx_http_latchkey_call_t               greeting;
    ngx_event_t                            flush;
    ngx_event_t                            timer;

    unsigned                               proven:1;    /* a call had reply */
    unsigned                               loss_logged:1;
    unsigned                               probe:1;     /* do not pause */
    unsigned                               leaving:1;   /* no other is made */
    unsigned                               ended:1;     /* takes no calls */
};


/* is the breaker open? */
#define ngx_http_latchkey_link_broken(link)                                  \
    ((link)->failures >= (link)->npeers                                      \
     && ngx_current_msec - (link)->lost >= (link)->servers->connect_timeout)


/* why a connection is lost: compared by address, and logged */
extern const char  ngx_http_latchkey_why_unreachable[];
extern const char  ngx_http_latchkey_why_silent[];
extern const char  ngx_http_latchkey_why_refused[];
extern const char  ngx_http_latchkey_why_closed[];
extern const char  ngx_http_latchkey_why_malformed[];
extern const char  ngx_http_latchkey_why_foreign[];
extern const char  ngx_http_latchkey_why_other[];
extern const char  ngx_http_latchkey_why_unavailable[];
extern const char  ngx_http_latchkey_why_memory[];


/* link; NULL: out of memory */
ngx_http_latchkey_link_t *ngx_http_latchkey_link_create(
    ngx_http_latchkey_servers_t *servers,
    const ngx_http_latchkey_link_kind_t *kind);
/* like ngx_http_latchkey_link_call() */
ngx_int_t ngx_http_latchkey_link_queue(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call);
/* NGX_ERROR: the connection is closed, and the reply is freed with it */
ngx_int_t ngx_http_latchkey_link_take_reply(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
/* calls their handlers with NULL */
void ngx_http_latchkey_link_fail_calls(ngx_queue_t *gone);
/* the handler of stand-ins, which are recognized by it */
void ngx_http_latchkey_link_discard_reply(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
/* closes it for good and fails all calls */
void ngx_http_latchkey_link_end(ngx_http_latchkey_link_t *link);

/* link_connect */
void ngx_http_latchkey_link_connect(ngx_http_latchkey_link_t *link);
/* the pause before the next attempt, or the time of one, is over */
void ngx_http_latchkey_link_timer(ngx_event_t *ev);
void ngx_http_latchkey_link_greet(ngx_http_latchkey_link_t *link);
void ngx_http_latchkey_link_greeted(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);

/* link_io; each of them may close the connection */
void ngx_http_latchkey_link_send(ngx_http_latchkey_link_t *link);
void ngx_http_latchkey_link_write(ngx_event_t *wev);
void ngx_http_latchkey_link_read(ngx_event_t *rev);

/* loses the connection; reply NULL: the daemon sent no reason */
void ngx_http_latchkey_link_down(ngx_http_latchkey_link_t *link,
    const char *why, ngx_err_t err, const struct lk_reply *reply);
/* 1: this daemon cannot decide and was left for another one */
ngx_uint_t ngx_http_latchkey_link_leave_daemon(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
/* moves calls that are not to be sent again to `gone` */
void ngx_http_latchkey_link_close(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);


#endif /* _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_ */
