
/*
 * A connection to a daemon, as the files of link and await share it.
 */


#ifndef _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_


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
 * and must live as long as the chain; nor is `body`, which takes the place of
 * words[body_word] and must have its length.  body NULL: there is none.
 * Returns NULL if out of memory.
 */
ngx_chain_t *ngx_http_latchkey_command(ngx_pool_t *pool,
    const ngx_str_t *words, ngx_uint_t n, ngx_chain_t *body,
    ngx_uint_t body_word);

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


typedef enum {
    NGX_HTTP_LATCHKEY_LINK_DOWN = 0,    /* no connection */
    NGX_HTTP_LATCHKEY_LINK_CONNECTING,
    NGX_HTTP_LATCHKEY_LINK_GREETING,    /* HELLO is not answered yet */
    NGX_HTTP_LATCHKEY_LINK_UP
} ngx_http_latchkey_link_state_e;


#define NGX_HTTP_LATCHKEY_LINK_PAUSE_MIN  50


/* in what link and await differ */

typedef struct {
    ngx_uint_t                       level;       /* of what is logged */
    ngx_uint_t                       again;       /* sent calls survive */

    /* true: the reply answers no call and was taken; NULL: none is such */
    ngx_uint_t                     (*push)(ngx_http_latchkey_link_t *link,
                                         const struct lk_reply *reply);
    /* a connection that was up is gone; may be NULL */
    void                           (*lost)(ngx_http_latchkey_link_t *link);
} ngx_http_latchkey_link_kind_t;


typedef struct {
    ngx_chain_t                     *greeting;    /* HELLO [AUTH] */

    /* the failure that was logged last since a daemon answered */
    const char                      *why;
    ngx_err_t                        err;

    /* it failed, or could not decide, so late: no other is left for it */
    ngx_msec_t                       failed;
    unsigned                         bad:1;       /* `failed` is set */

    /* it could not decide, which is logged, and has not decided since */
    unsigned                         unavailable:1;
} ngx_http_latchkey_peer_t;


struct ngx_http_latchkey_link_s {
    ngx_connection_t                      *connection;  /* NULL: down */
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
    ngx_msec_t                             pause;
    ngx_msec_t                             tried;       /* to connect, last */
    ngx_msec_t                             lost;        /* the last one, when */

    ngx_queue_t                            waiting;
    ngx_queue_t                            sent;
    ngx_queue_t                            spare;       /* stand-ins */
    size_t                                 offset;
    ngx_msec_t                             progress;

    u_char                                *in;
    size_t                                 in_len;
    size_t                                 in_size;
    size_t                                 in_need;

    ngx_http_latchkey_call_t               greeting;
    ngx_event_t                            flush;
    ngx_event_t                            timer;

    unsigned                               proven:1;    /* answered a call */
    unsigned                               told:1;      /* a loss is logged */
    unsigned                               probe:1;     /* do not pause */
    unsigned                               leaving:1;   /* its last one */
    unsigned                               ended:1;     /* takes no calls */
};


/* the breaker, see link */
#define ngx_http_latchkey_link_broken(link)                                  \
    ((link)->failures >= (link)->npeers                                      \
     && ngx_current_msec - (link)->lost >= (link)->servers->connect_timeout)


/* why a connection is lost: told apart by address, and logged */
extern const char  ngx_http_latchkey_why_unreachable[];
extern const char  ngx_http_latchkey_why_silent[];
extern const char  ngx_http_latchkey_why_refused[];
extern const char  ngx_http_latchkey_why_closed[];
extern const char  ngx_http_latchkey_why_malformed[];
extern const char  ngx_http_latchkey_why_foreign[];
extern const char  ngx_http_latchkey_why_other[];
extern const char  ngx_http_latchkey_why_unavailable[];
extern const char  ngx_http_latchkey_why_memory[];


/* link */
ngx_http_latchkey_link_t *ngx_http_latchkey_link_create(
    ngx_http_latchkey_servers_t *servers,
    const ngx_http_latchkey_link_kind_t *kind);
/* as ngx_http_latchkey_link_call() */
ngx_int_t ngx_http_latchkey_link_queue(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call);
/* NGX_ERROR: the connection is gone, and the reply with it */
ngx_int_t ngx_http_latchkey_link_take(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
/* nobody answers these */
void ngx_http_latchkey_link_fail(ngx_queue_t *gone);
/* the handler of stand-ins, which are known by it */
void ngx_http_latchkey_link_swallow(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
/* no connection will be made any more */
void ngx_http_latchkey_link_end(ngx_http_latchkey_link_t *link);

/* link_connect */
void ngx_http_latchkey_link_connect(ngx_http_latchkey_link_t *link);
/* the pause before the next attempt, or the time for one, is over */
void ngx_http_latchkey_link_timer(ngx_event_t *ev);
void ngx_http_latchkey_link_greet(ngx_http_latchkey_link_t *link);
void ngx_http_latchkey_link_greeted(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);

/* link_io; each may lose the connection */
void ngx_http_latchkey_link_send(ngx_http_latchkey_link_t *link);
void ngx_http_latchkey_link_write(ngx_event_t *wev);
void ngx_http_latchkey_link_read(ngx_event_t *rev);

/* link_down; reply NULL: the daemon did not say why */
void ngx_http_latchkey_link_down(ngx_http_latchkey_link_t *link,
    const char *why, ngx_err_t err, const struct lk_reply *reply);
/* the daemon cannot decide: true, it was left for another one */
ngx_uint_t ngx_http_latchkey_link_leave(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
/* calls that are not to be sent again are put into `gone` */
void ngx_http_latchkey_link_close(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);


#endif /* _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_ */
