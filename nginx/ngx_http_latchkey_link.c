
/*
 * The link: the connection of a worker to the daemon, and the calls on it.
 *
 * Life of a link (link->state), one for each list of servers and worker:
 *
 *   state       connection   sent on it          left for
 *   ----------  -----------  ------------------  ---------------------------
 *   DOWN        none         nothing             CONNECTING, by a call or by
 *                                                the timer
 *   CONNECTING  being made   nothing             GREETING; DOWN
 *   GREETING    made         HELLO alone         UP, if a latchkeyd with the
 *                                                same store answers; DOWN
 *   UP          made         calls, pipelined    DOWN, when it is lost
 *
 * It is created by the first call and destroyed by link_exit(), when the worker
 * ends.  link->ended: DOWN for good, and no call is taken any more.
 *
 * Life of a call, which belongs to the caller: calls of all requests share the
 * link, in two queues, each in order.
 *
 *   queue     meaning
 *   --------  --------------------------------------------------------------
 *   waiting   not sent, or only link->offset bytes of the first one
 *   sent      sent as a whole on this connection; a reply is due to each, in
 *             this order (call->owed)
 *
 * A lost connection puts sent calls back in front of waiting ones.  Each call
 * in the link has a timer in the event loop, which keeps a worker that shuts
 * down alive until the reply; the link's own timers are cancelable and do not.
 * A call that is too late but has a reply due leaves a stand-in in its place,
 * which takes that reply.
 *
 * Handlers are called from events only, never from link_call().  When a handler
 * runs, its call is in no queue and has no timer: the handler may free the call
 * or use it again.  No handler can close a connection: only events of the link
 * do.
 *
 * The breaker is open when every server has failed since one last replied, and
 * no connection has been UP for idempotency_connect_timeout: until then calls
 * wait, because the daemon may be restarting.  While the breaker is open, a
 * call that is not patient fails at once.  The link tries to connect again and
 * again, with growing pauses.  But if the last attempt began at least
 * NGX_HTTP_LATCHKEY_PROBE ms ago, a new call is taken and starts another
 * attempt without a pause.  The first valid reply to a greeting closes the
 * breaker.
 *
 * If a daemon cannot decide, the link connects to another one and sends the
 * calls there: all servers of a list have one store, and only one of them may
 * have lost its connection to it.  If none can decide, the reply of the last
 * one counts.  A reply about one operation alone (RECORD) always counts.
 *
 * A server that accepts connections and does not reply is different: each
 * attempt takes idempotency_connect_timeout.  It counts as failed since the
 * last bytes it sent, and no new call starts an attempt (link_is_silent).
 */


#include "ngx_http_latchkey_module.h"

#include <poll.h>


#define NGX_HTTP_LATCHKEY_PROBE       100


static ngx_uint_t ngx_http_latchkey_link_is_silent(
    ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_link_flush(ngx_event_t *ev);
static void ngx_http_latchkey_link_finish_call(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_deadline_handler(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_link_stand_in(
    ngx_http_latchkey_link_t *link, ngx_http_latchkey_call_t *call);
static ngx_chain_t *ngx_http_latchkey_link_greeting(ngx_pool_t *pool,
    ngx_http_latchkey_server_t *server);
static void ngx_http_latchkey_link_drain(ngx_http_latchkey_link_t *link,
    ngx_msec_t until);
static void ngx_http_latchkey_link_destroy(ngx_http_latchkey_link_t *link);


static const ngx_http_latchkey_link_kind_t  ngx_http_latchkey_link_calls = {
    NGX_LOG_ERR,
    1,
    NULL,
    NULL
};


/* calls */

ngx_int_t
ngx_http_latchkey_link_call(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_call_t *call)
{
    if (servers->link == NULL) {
        servers->link = ngx_http_latchkey_link_create(servers,
                                               &ngx_http_latchkey_link_calls);
        if (servers->link == NULL) {
            return NGX_DECLINED;
        }
    }

    return ngx_http_latchkey_link_queue(servers->link, call);
}


/*
 * NGX_OK: the link has the call, and its handler will be called, once.  The
 * call is sent at the end of this turn of the event loop (link_flush).
 */

ngx_int_t
ngx_http_latchkey_link_queue(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call)
{
    ngx_msec_int_t  left;

    if (call->busy) {

        /* it is in a queue and must not be in two */

        ngx_log_error(NGX_LOG_ALERT, link->log, 0,
                      "idempotency: a call is already in the link");
        return NGX_DECLINED;
    }

    call->sent = 0;
    call->owed = 0;
    call->repeated = 0;
    call->cut = 0;

    if (link->ended) {
        return NGX_DECLINED;
    }

    if (ngx_http_latchkey_link_broken(link)) {
        link->probe = (link->connection == NULL
                       && !ngx_http_latchkey_link_is_silent(link)
                       && ngx_current_msec - link->tried
                          >= NGX_HTTP_LATCHKEY_PROBE);

        if (!link->probe && !call->patient) {
            return NGX_DECLINED;
        }
    }

    call->busy = 1;

    ngx_memzero(&call->timer, sizeof(ngx_event_t));

    call->timer.handler = ngx_http_latchkey_link_deadline_handler;
    call->timer.data = link;
    call->timer.log = link->log;

    left = (ngx_msec_int_t) (call->deadline - ngx_current_msec);
    ngx_add_timer(&call->timer, (ngx_msec_t) ngx_max(left, 0));

    if (!call->first || ngx_queue_empty(&link->waiting)) {
        ngx_queue_insert_tail(&link->waiting, &call->queue);

    } else if (link->offset || link->greeting.busy) {

        /* after the call that is partly sent */

        ngx_queue_insert_after(ngx_queue_head(&link->waiting), &call->queue);

    } else {
        ngx_queue_insert_head(&link->waiting, &call->queue);
    }

    ngx_post_event(&link->flush, &ngx_posted_events);

    return NGX_OK;
}


/* 1: a server did not reply on a connection, and no link was UP since then */

static ngx_uint_t
ngx_http_latchkey_link_is_silent(ngx_http_latchkey_link_t *link)
{
    ngx_uint_t  i;

    for (i = 0; i < link->npeers; i++) {
        if (link->peers[i].why == ngx_http_latchkey_why_silent) {
            return 1;
        }
    }

    return 0;
}


/*
 * Calls queued in one turn of the event loop are sent together.  Without a
 * connection, one is made, unless the link pauses between two attempts.
 */

static void
ngx_http_latchkey_link_flush(ngx_event_t *ev)
{
    ngx_http_latchkey_link_t  *link;

    link = ev->data;

    if (link->connection) {

        if (link->state == NGX_HTTP_LATCHKEY_LINK_UP) {
            ngx_http_latchkey_link_send(link);
        }

        return;
    }

    if (link->probe && link->timer.timer_set) {
        ngx_del_timer(&link->timer);
    }

    link->probe = 0;

    if (!link->timer.timer_set && !link->ended) {
        ngx_http_latchkey_link_connect(link);
    }
}


/*
 * A reply belongs to the first call in `sent`.  Any other reply breaks the
 * connection: commands and replies would not match any more.
 */

ngx_int_t
ngx_http_latchkey_link_take_reply(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *call;

    link->progress = ngx_current_msec;

    if (link->state == NGX_HTTP_LATCHKEY_LINK_UP
        && link->kind->push && link->kind->push(link, reply))
    {
        return NGX_OK;
    }

    if (!ngx_queue_empty(&link->sent)) {
        q = ngx_queue_head(&link->sent);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (call != &link->greeting) {
            link->proven = 1;
            link->pause = NGX_HTTP_LATCHKEY_LINK_PAUSE_MIN;

            if (link->npeers > 1
                && ngx_http_latchkey_link_leave_daemon(link, reply))
            {
                return NGX_ERROR;
            }
        }

        ngx_queue_remove(q);
        ngx_http_latchkey_link_finish_call(call, reply);

        return link->connection ? NGX_OK : NGX_ERROR;
    }

    if (link->offset && reply->type == LK_REPLY_ERROR) {

        /* the daemon refuses a command that is too large before its end */

        q = ngx_queue_head(&link->waiting);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (call != &link->greeting) {
            link->offset = 0;

            ngx_queue_remove(q);
            ngx_http_latchkey_link_finish_call(call, reply);

            ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_closed, 0,
                                        NULL);
            return NGX_ERROR;
        }
    }

    ngx_http_latchkey_link_down(link, reply->type == LK_REPLY_ERROR
                                      ? ngx_http_latchkey_why_refused
                                      : ngx_http_latchkey_why_malformed,
                                0, reply);
    return NGX_ERROR;
}


/* the call is in no queue */

static void
ngx_http_latchkey_link_finish_call(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    if (call->timer.timer_set) {
        ngx_del_timer(&call->timer);
    }

    call->busy = 0;
    call->owed = 0;

    call->handler(call, reply);
}


void
ngx_http_latchkey_link_fail_calls(ngx_queue_t *gone)
{
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *call;

    while (!ngx_queue_empty(gone)) {
        q = ngx_queue_head(gone);
        ngx_queue_remove(q);

        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
        ngx_http_latchkey_link_finish_call(call, NULL);
    }
}


/* deadlines */

/*
 * The deadline of a call.  If the daemon seems to hang, the connection is
 * closed, and all other calls are sent again on the next one.
 */

static void
ngx_http_latchkey_link_deadline_handler(ngx_event_t *ev)
{
    ngx_uint_t                 hung;
    ngx_http_latchkey_call_t  *call;
    ngx_http_latchkey_link_t  *link;

    call = (ngx_http_latchkey_call_t *)
               ((u_char *) ev - offsetof(ngx_http_latchkey_call_t, timer));
    link = ev->data;

    if (call->owed) {

        /*
         * A daemon that replies to others is slow, not hung: one call with a
         * short deadline must not make all others start again.
         */

        hung = ngx_current_msec - link->progress
                   >= link->servers->connect_timeout
               || ngx_http_latchkey_link_stand_in(link, call) != NGX_OK;

    } else {

        /* a call that is partly sent cannot be taken back */

        hung = link->offset
               && ngx_queue_head(&link->waiting) == &call->queue;

        if (hung) {
            link->offset = 0;
        }
    }

    ngx_queue_remove(&call->queue);

    if (hung) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_silent, 0,
                                    NULL);
    }

    ngx_http_latchkey_link_finish_call(call, NULL);
}


/*
 * Puts a stand-in behind the call in `sent`: it takes the reply that is still
 * due, after the call itself has ended.
 */

static ngx_int_t
ngx_http_latchkey_link_stand_in(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call)
{
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *spare;

    if (ngx_queue_empty(&link->spare)) {
        spare = ngx_pcalloc(link->pool, sizeof(ngx_http_latchkey_call_t));
        if (spare == NULL) {
            return NGX_ERROR;
        }

        spare->handler = ngx_http_latchkey_link_discard_reply;
        spare->data = link;

    } else {
        q = ngx_queue_head(&link->spare);
        ngx_queue_remove(q);
        spare = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
    }

    ngx_queue_insert_after(&call->queue, &spare->queue);

    return NGX_OK;
}


void
ngx_http_latchkey_link_discard_reply(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_http_latchkey_link_t  *link;

    link = call->data;

    ngx_queue_insert_head(&link->spare, &call->queue);
}


/* the link itself */

/*
 * Nothing is connected yet: the first call does that.  The link has a pool of
 * its own, for the life of the worker.
 */

ngx_http_latchkey_link_t *
ngx_http_latchkey_link_create(ngx_http_latchkey_servers_t *servers,
    const ngx_http_latchkey_link_kind_t *kind)
{
    ngx_uint_t                   i;
    ngx_pool_t                  *pool;
    ngx_http_latchkey_link_t    *link;
    ngx_http_latchkey_server_t  *server;

    pool = ngx_create_pool(4096, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    link = ngx_pcalloc(pool, sizeof(ngx_http_latchkey_link_t));
    if (link == NULL) {
        goto failed;
    }

    link->servers = servers;
    link->kind = kind;
    link->ident = -1;
    link->pool = pool;
    link->log = ngx_cycle->log;
    link->pause = NGX_HTTP_LATCHKEY_LINK_PAUSE_MIN;
    link->npeers = servers->list.nelts;
    server = servers->list.elts;

    ngx_queue_init(&link->waiting);
    ngx_queue_init(&link->sent);
    ngx_queue_init(&link->spare);

    link->flush.handler = ngx_http_latchkey_link_flush;
    link->flush.data = link;
    link->flush.log = link->log;

    link->timer.handler = ngx_http_latchkey_link_timer;
    link->timer.data = link;
    link->timer.log = link->log;
    link->timer.cancelable = 1;

    link->greeting.handler = ngx_http_latchkey_link_greeted;
    link->greeting.data = link;

    link->peers = ngx_pcalloc(pool,
                              link->npeers * sizeof(ngx_http_latchkey_peer_t));
    if (link->peers == NULL) {
        goto failed;
    }

    for (i = 0; i < link->npeers; i++) {
        link->peers[i].greeting = ngx_http_latchkey_link_greeting(pool,
                                                                  &server[i]);
        if (link->peers[i].greeting == NULL) {
            goto failed;
        }
    }

    return link;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


static ngx_chain_t *
ngx_http_latchkey_link_greeting(ngx_pool_t *pool,
    ngx_http_latchkey_server_t *server)
{
    ngx_str_t   words[5];
    ngx_uint_t  n;

    ngx_str_set(&words[0], "HELLO");
    ngx_str_set(&words[1], "2");
    n = 2;

    if (server->password.len) {
        ngx_str_set(&words[2], "AUTH");
        ngx_str_set(&words[3], "default");

        if (server->user.len) {
            words[3] = server->user;
        }

        words[4] = server->password;
        n = 5;
    }

    return ngx_http_latchkey_command(pool, words, n, NULL, 0);
}


ngx_uint_t
ngx_http_latchkey_link_is_leaving(ngx_http_latchkey_servers_t *servers)
{
    return servers->link
           && (servers->link->leaving || servers->link->ended);
}


void
ngx_http_latchkey_link_end(ngx_http_latchkey_link_t *link)
{
    ngx_queue_t  gone;

    ngx_queue_init(&gone);

    link->ended = 1;

    ngx_http_latchkey_link_close(link, &gone);

    if (!ngx_queue_empty(&link->waiting)) {
        ngx_queue_add(&gone, &link->waiting);
        ngx_queue_init(&link->waiting);
    }

    ngx_http_latchkey_link_fail_calls(&gone);

    if (link->kind->lost) {
        link->kind->lost(link);
    }
}


/*
 * A claim that was not sent is removed, a settlement stays.  A call that was
 * sent, wholly or in part, and is neither claim nor settlement (call->holds is
 * 0) becomes a stand-in: its owner ends with the process, and its reply is
 * discarded.
 */

void
ngx_http_latchkey_link_exiting(ngx_http_latchkey_servers_t *servers)
{
    ngx_uint_t                 cut;
    ngx_queue_t               *q, *next;
    ngx_http_latchkey_call_t  *call;
    ngx_http_latchkey_link_t  *link;

    link = servers->link;

    if (link == NULL || link->state != NGX_HTTP_LATCHKEY_LINK_UP) {
        return;
    }

    for (q = ngx_queue_head(&link->sent);
         q != ngx_queue_sentinel(&link->sent);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (!call->holds) {
            call->handler = ngx_http_latchkey_link_discard_reply;
            call->data = link;
        }
    }

    for (q = ngx_queue_head(&link->waiting);
         q != ngx_queue_sentinel(&link->waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
        cut = (link->offset && q == ngx_queue_head(&link->waiting));

        if (call->holds && (call->patient || call->sent || cut)) {
            continue;
        }

        if (cut) {
            call->handler = ngx_http_latchkey_link_discard_reply;
            call->data = link;

        } else {
            ngx_queue_remove(q);
        }
    }
}


void
ngx_http_latchkey_link_exit(ngx_http_latchkey_servers_t *servers,
    ngx_msec_t until)
{
    if (servers->link) {
        ngx_http_latchkey_link_drain(servers->link, until);
        ngx_http_latchkey_link_destroy(servers->link);
        servers->link = NULL;
    }

    if (servers->await) {
        ngx_http_latchkey_link_destroy(servers->await);
        servers->await = NULL;
    }
}


/* the event loop has ended, so this polls by itself */

static void
ngx_http_latchkey_link_drain(ngx_http_latchkey_link_t *link, ngx_msec_t until)
{
    ngx_msec_int_t     left;
    struct pollfd      pfd;
    ngx_connection_t  *c;

    while (link->state == NGX_HTTP_LATCHKEY_LINK_UP
           && !(ngx_queue_empty(&link->sent)
                && ngx_queue_empty(&link->waiting)))
    {
        ngx_time_update();

        left = (ngx_msec_int_t) (until - ngx_current_msec);

        if (left <= 0) {
            ngx_log_error(NGX_LOG_ERR, link->log, 0,
                          "idempotency: this worker was terminated before "
                          "latchkeyd replied; operations that it held become "
                          "uncertain when their locks lapse");
            return;
        }

        c = link->connection;
        c->write->ready = 1;

        ngx_http_latchkey_link_send(link);

        if (link->connection != c) {
            return;
        }

        pfd.fd = c->fd;
        pfd.events = POLLIN;

        if (!ngx_queue_empty(&link->waiting)) {
            pfd.events |= POLLOUT;
        }

        if (poll(&pfd, 1, (int) left) > 0
            && (pfd.revents & (POLLIN|POLLERR|POLLHUP)))
        {
            c->read->ready = 1;
            c->read->available = -1;

            ngx_http_latchkey_link_read(c->read);
        }
    }
}


static void
ngx_http_latchkey_link_destroy(ngx_http_latchkey_link_t *link)
{
    ngx_queue_t  gone;

    /* handlers are not called: their requests end with this process */

    ngx_queue_init(&gone);
    ngx_http_latchkey_link_close(link, &gone);

    if (link->flush.posted) {
        ngx_delete_posted_event(&link->flush);
    }

    ngx_destroy_pool(link->pool);
}
