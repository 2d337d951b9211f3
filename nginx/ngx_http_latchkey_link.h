
/*
 * A connection to a daemon, as link and await share it.
 */


#ifndef _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_


#include "ngx_http_latchkey_module.h"


typedef enum {
    NGX_HTTP_LATCHKEY_LINK_DOWN = 0,    /* no connection */
    NGX_HTTP_LATCHKEY_LINK_CONNECTING,
    NGX_HTTP_LATCHKEY_LINK_GREETING,    /* HELLO is not answered yet */
    NGX_HTTP_LATCHKEY_LINK_UP
} ngx_http_latchkey_link_state_e;


/* a call that breaks so many connections is not sent again */
#define NGX_HTTP_LATCHKEY_CUT_MAX     3


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


ngx_http_latchkey_link_t *ngx_http_latchkey_link_create(
    ngx_http_latchkey_servers_t *servers,
    const ngx_http_latchkey_link_kind_t *kind);
/* as ngx_http_latchkey_link_call() */
ngx_int_t ngx_http_latchkey_link_queue(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call);
/* text from a peer as it may be logged: cut, on one line, without surprises */
ngx_str_t ngx_http_latchkey_link_text(struct lk_slice text, u_char *buf,
    size_t size);


#endif /* _NGX_HTTP_LATCHKEY_LINK_H_INCLUDED_ */
