
/*
 * How a link is made and lost: connecting, the greeting that shows that a
 * latchkeyd with the same store is there, why a connection is lost, which calls
 * are sent again, and when the next attempt is.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_LINK_PAUSE_MAX  500


/*
 * ms after which a daemon that failed is tried instead of one that cannot
 * decide
 */
#define NGX_HTTP_LATCHKEY_LINK_BAD        5000


/* how such a reply begins if it is about one operation alone */
#define NGX_HTTP_LATCHKEY_ONE_OPERATION          "UNAVAILABLE RECORD"


/* a call that broke 3 connections is not sent again */
#define NGX_HTTP_LATCHKEY_CUT_MAX         3


static ngx_uint_t ngx_http_latchkey_link_out_of_time(void);
static ngx_int_t ngx_http_latchkey_link_open(ngx_http_latchkey_link_t *link,
    ngx_addr_t *addr);
static ngx_int_t ngx_http_latchkey_link_events(ngx_connection_t *c,
    ngx_uint_t connected);
static ngx_uint_t ngx_http_latchkey_link_is_foreign(
    const struct lk_reply *reply);
static struct lk_slice ngx_http_latchkey_link_greeting_field(
    const struct lk_reply *reply, const char *name);
static ngx_int_t ngx_http_latchkey_link_check_store(
    ngx_http_latchkey_link_t *link, const struct lk_reply *reply);
static void ngx_http_latchkey_link_reset(ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_link_log_loss(ngx_http_latchkey_link_t *link,
    ngx_uint_t up, const char *why, ngx_err_t err,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_count_cut(ngx_queue_t *q,
    ngx_queue_t *gone);
static void ngx_http_latchkey_link_put_back(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);
static void ngx_http_latchkey_link_schedule(ngx_http_latchkey_link_t *link,
    ngx_uint_t up);
static void ngx_http_latchkey_link_refuse_calls(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);


const char  ngx_http_latchkey_why_unreachable[] =
    "cannot be reached: is latchkeyd running, and may this worker connect "
    "to it?";
const char  ngx_http_latchkey_why_silent[] =
    "does not answer in time: is latchkeyd stopped, or overloaded?";
const char  ngx_http_latchkey_why_refused[] =
    "refuses this gateway: see user= and password= of \"idempotency_server\" "
    "and the passwords and limits of latchkeyd";
const char  ngx_http_latchkey_why_closed[] =
    "closed the connection";
const char  ngx_http_latchkey_why_malformed[] =
    "sends replies that cannot be read: does \"idempotency_server\" name a "
    "latchkeyd?";
const char  ngx_http_latchkey_why_foreign[] =
    "is not a latchkeyd but a Redis or similar, and gets nothing: let "
    "\"idempotency_server\" name a latchkeyd; a Redis can be the store of one";
const char  ngx_http_latchkey_why_other[] =
    "has another store than the daemon before it: all daemons of "
    "\"idempotency_server\" must share one";
const char  ngx_http_latchkey_why_unavailable[] =
    "cannot decide now, so another daemon is asked";
const char  ngx_http_latchkey_why_memory[] =
    "cannot be used: out of memory, or out of connections";


/* One attempt to connect, to the current server of the list. */

void
ngx_http_latchkey_link_connect(ngx_http_latchkey_link_t *link)
{
    ngx_int_t                    rc;
    ngx_err_t                    err;
    ngx_addr_t                  *addr;
    ngx_http_latchkey_link_t    *calls;
    ngx_http_latchkey_server_t  *server;

    link->tried = ngx_current_msec;

    if (ngx_http_latchkey_link_out_of_time()) {
        ngx_http_latchkey_link_end(link);
        return;
    }

    calls = link->servers->link;

    if (link->failures == 0 && calls
        && calls->state == NGX_HTTP_LATCHKEY_LINK_UP)
    {
        /* the daemon that gets the calls sends the messages */
        link->peer = calls->peer;
    }

    server = link->servers->list.elts;
    addr = &server[link->peer].addr;

    if (ngx_http_latchkey_link_open(link, addr) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_memory, 0,
                                    NULL);
        return;
    }

    link->state = NGX_HTTP_LATCHKEY_LINK_CONNECTING;
    link->proven = 0;

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, link->log, 0,
                   "latchkey: connect to %V, fd:%d", &addr->name,
                   link->connection->fd);

    rc = connect(link->connection->fd, addr->sockaddr, addr->socklen);
    err = (rc == -1) ? ngx_socket_errno : 0;

    if (err && err != NGX_EINPROGRESS) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_unreachable,
                                    err, NULL);
        return;
    }

    if (ngx_http_latchkey_link_events(link->connection, rc == 0) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_memory, 0,
                                    NULL);
        return;
    }

    ngx_add_timer(&link->timer, link->servers->connect_timeout);

    if (rc == 0) {
        link->connection->write->ready = 1;
        ngx_http_latchkey_link_greet(link);
    }
}


/*
 * worker_shutdown_timeout closes connections; a link without a connection has
 * to check the time itself.
 */

static ngx_uint_t
ngx_http_latchkey_link_out_of_time(void)
{
    ngx_core_conf_t    *ccf;
    static ngx_msec_t   since;

    if (!ngx_exiting) {
        return 0;
    }

    if (since == 0) {
        since = ngx_current_msec;
    }

    ccf = (ngx_core_conf_t *) ngx_get_conf(ngx_cycle->conf_ctx,
                                           ngx_core_module);

    return ccf->shutdown_timeout
           && ccf->shutdown_timeout != NGX_CONF_UNSET_MSEC
           && ngx_current_msec - since >= ccf->shutdown_timeout;
}


/*
 * Not ngx_event_connect_peer(): it would log a daemon that is down at each
 * attempt, and a missing unix socket as critical.  NGX_ERROR: link->connection
 * may be set nevertheless, and link_down() closes it.
 */

static ngx_int_t
ngx_http_latchkey_link_open(ngx_http_latchkey_link_t *link, ngx_addr_t *addr)
{
    ngx_socket_t       s;
    ngx_connection_t  *c;

    s = ngx_socket(addr->sockaddr->sa_family, SOCK_STREAM, 0);

    if (s == (ngx_socket_t) -1) {
        ngx_log_error(NGX_LOG_ALERT, link->log, ngx_socket_errno,
                      ngx_socket_n " failed");
        return NGX_ERROR;
    }

    c = ngx_get_connection(s, link->log);

    if (c == NULL) {
        if (ngx_close_socket(s) == -1) {
            ngx_log_error(NGX_LOG_ALERT, link->log, ngx_socket_errno,
                          ngx_close_socket_n " failed");
        }

        return NGX_ERROR;
    }

    link->connection = c;

    c->data = link;
    c->type = SOCK_STREAM;
    c->recv = ngx_recv;
    c->log_error = NGX_ERROR_INFO;
    c->number = ngx_atomic_fetch_add(ngx_connection_counter, 1);
    c->start_time = ngx_current_msec;

    c->read->handler = ngx_http_latchkey_link_read;
    c->read->log = link->log;
    c->write->handler = ngx_http_latchkey_link_write;
    c->write->log = link->log;

    if (addr->sockaddr->sa_family == AF_UNIX) {
        c->tcp_nopush = NGX_TCP_NOPUSH_DISABLED;
        c->tcp_nodelay = NGX_TCP_NODELAY_DISABLED;
    }

    if (ngx_nonblocking(s) == -1) {
        ngx_log_error(NGX_LOG_ALERT, link->log, ngx_socket_errno,
                      ngx_nonblocking_n " failed");
        return NGX_ERROR;
    }

    if (ngx_add_conn && ngx_add_conn(c) == NGX_ERROR) {
        return NGX_ERROR;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_link_events(ngx_connection_t *c, ngx_uint_t connected)
{
    ngx_uint_t  event;

    if (ngx_add_conn) {
        return NGX_OK;
    }

    event = (ngx_event_flags & NGX_USE_CLEAR_EVENT) ? NGX_CLEAR_EVENT
                                                    : NGX_LEVEL_EVENT;

    if (ngx_add_event(c->read, NGX_READ_EVENT, event) != NGX_OK) {
        return NGX_ERROR;
    }

    if (connected) {
        return NGX_OK;
    }

    return ngx_add_event(c->write, NGX_WRITE_EVENT, event);
}


void
ngx_http_latchkey_link_timer(ngx_event_t *ev)
{
    ngx_http_latchkey_link_t  *link;

    link = ev->data;

    if (link->connection) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_silent,
                              link->state == NGX_HTTP_LATCHKEY_LINK_CONNECTING
                              ? NGX_ETIMEDOUT : 0, NULL);
        return;
    }

    ngx_http_latchkey_link_connect(link);
}


/* greeting */

/*
 * Only a reply shows that a daemon is there: a stopped process accepts
 * connections.  Nothing else is sent before it.
 */

void
ngx_http_latchkey_link_greet(ngx_http_latchkey_link_t *link)
{
    ngx_connection_t  *c;

    c = link->connection;

    if (ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_unreachable, 0,
                                    NULL);
        return;
    }

    link->state = NGX_HTTP_LATCHKEY_LINK_GREETING;
    link->greeting.out = link->peers[link->peer].greeting;
    link->greeting.busy = 1;

    ngx_queue_insert_head(&link->waiting, &link->greeting.queue);

    if (c->read->ready) {
        ngx_post_event(c->read, &ngx_posted_events);
    }

    ngx_http_latchkey_link_send(link);
}


/* The reply to HELLO: UP, or why this is not a daemon to use. */

void
ngx_http_latchkey_link_greeted(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_uint_t                   i, level;
    ngx_http_latchkey_link_t    *link;
    ngx_http_latchkey_server_t  *server;

    link = call->data;

    if (ngx_http_latchkey_link_is_foreign(reply)) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_foreign, 0,
                                    NULL);
        return;
    }

    if (reply->type == LK_REPLY_ERROR) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_refused, 0,
                                    reply);
        return;
    }

    if (reply->type != LK_REPLY_ARRAY) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_malformed, 0,
                                    reply);
        return;
    }

    if (ngx_http_latchkey_link_check_store(link, reply) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_other, 0,
                                    NULL);
        return;
    }

    if (link->loss_logged) {
        server = link->servers->list.elts;
        level = ngx_max(NGX_LOG_NOTICE, link->kind->level);

        ngx_log_error(level, link->log, 0,
                      "idempotency: latchkeyd at %V answers",
                      &server[link->peer].addr.name);
    }

    ngx_del_timer(&link->timer);

    link->state = NGX_HTTP_LATCHKEY_LINK_UP;
    link->failures = 0;
    link->loss_logged = 0;

    for (i = 0; i < link->npeers; i++) {
        link->peers[i].why = NULL;
    }

    ngx_post_event(&link->flush, &ngx_posted_events);
}


/*
 * A Redis replies to HELLO, too, and names itself; one that is too old does
 * not know the command.
 */

static ngx_uint_t
ngx_http_latchkey_link_is_foreign(const struct lk_reply *reply)
{
    static const char  unknown[] = "ERR unknown command";

    if (reply->type == LK_REPLY_ERROR) {
        return reply->text.len >= sizeof(unknown) - 1
               && ngx_strncasecmp((u_char *) reply->text.data,
                                  (u_char *) unknown, sizeof(unknown) - 1)
                  == 0;
    }

    return reply->type == LK_REPLY_ARRAY
           && !latchkey_slice_equal(
                      ngx_http_latchkey_link_greeting_field(reply, "server"),
                      LK_SLICE("latchkey"));
}


/* empty: the greeting has no such field */

static struct lk_slice
ngx_http_latchkey_link_greeting_field(const struct lk_reply *reply,
    const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(reply, name);

    return value && value->type == LK_REPLY_TEXT
           ? value->text : (struct lk_slice) { NULL, 0 };
}


/*
 * Daemons that replace each other must decide from the same operations: with
 * two stores an operation could run twice.  A single daemon may come back with
 * another store.
 */

static ngx_int_t
ngx_http_latchkey_link_check_store(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    struct lk_slice               store;
    ngx_http_latchkey_servers_t  *servers;

    servers = link->servers;
    store = ngx_http_latchkey_link_greeting_field(reply, "store");
    store.len = ngx_min(store.len, NGX_HTTP_LATCHKEY_STORE_LEN);

    if (store.len == servers->store_len
        && (store.len == 0
            || ngx_memcmp(store.data, servers->store, store.len) == 0))
    {
        return NGX_OK;
    }

    if (servers->store_len && link->npeers > 1) {
        return NGX_DECLINED;
    }

    servers->store_len = store.len;

    if (store.len) {
        ngx_memcpy(servers->store, store.data, store.len);
    }

    return NGX_OK;
}


/*
 * The one way to lose a connection: logs why, puts calls back or fails them,
 * chooses the next server and when to connect to it.  Handlers run last, when
 * the link is in order again.
 */

void
ngx_http_latchkey_link_down(ngx_http_latchkey_link_t *link, const char *why,
    ngx_err_t err, const struct lk_reply *reply)
{
    ngx_uint_t   up, silent;
    ngx_queue_t  gone;

    ngx_queue_init(&gone);

    up = (link->state == NGX_HTTP_LATCHKEY_LINK_UP);

    ngx_http_latchkey_link_log_loss(link, up, why, err, reply);

    if (link->leaving) {
        ngx_http_latchkey_link_end(link);
        return;
    }

    if (why == ngx_http_latchkey_why_silent) {
        ngx_http_latchkey_link_reset(link);
    }

    ngx_http_latchkey_link_close(link, &gone);

    if (!up || why == ngx_http_latchkey_why_unavailable) {
        link->peers[link->peer].failed = ngx_current_msec;
        link->peers[link->peer].bad = 1;
    }

    link->peer = (link->peer + 1) % link->npeers;

    silent = (why == ngx_http_latchkey_why_silent);

    link->failures += (!up || silent);

    if (up) {
        link->lost = silent ? link->progress : ngx_current_msec;
    }

    ngx_http_latchkey_link_schedule(link, up && !silent);

    if (ngx_http_latchkey_link_broken(link)
        && link->failures % link->npeers == 0)
    {
        ngx_http_latchkey_link_refuse_calls(link, &gone);
    }

    ngx_http_latchkey_link_fail_calls(&gone);

    if (up && link->kind->lost) {
        link->kind->lost(link);
    }
}


/* the reply is for the first call in `sent`, which is still there */

ngx_uint_t
ngx_http_latchkey_link_leave_daemon(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    ngx_uint_t                   i;
    struct lk_decision           decision;
    ngx_http_latchkey_link_t    *await;
    ngx_http_latchkey_peer_t    *peer, *other;
    ngx_http_latchkey_server_t  *server;

    peer = &link->peers[link->peer];

    if (reply->type != LK_REPLY_ERROR) {
        peer->bad = 0;

        if (peer->unavailable) {
            peer->unavailable = 0;
            server = link->servers->list.elts;

            ngx_log_error(NGX_LOG_NOTICE, link->log, 0,
                          "idempotency: latchkeyd at %V decides again",
                          &server[link->peer].addr.name);
        }

        return 0;
    }

    if (!link->kind->again || link->leaving
        || latchkey_decision_read(reply, &decision) != LK_UNAVAILABLE
        || (reply->text.len >= sizeof(NGX_HTTP_LATCHKEY_ONE_OPERATION) - 1
            && ngx_strncmp(reply->text.data, NGX_HTTP_LATCHKEY_ONE_OPERATION,
                           sizeof(NGX_HTTP_LATCHKEY_ONE_OPERATION) - 1)
               == 0))
    {
        return 0;
    }

    for (i = (link->peer + 1) % link->npeers;
         i != link->peer;
         i = (i + 1) % link->npeers)
    {
        other = &link->peers[i];

        if (!other->bad || ngx_current_msec - other->failed
                           >= NGX_HTTP_LATCHKEY_LINK_BAD)
        {
            break;
        }
    }

    if (i == link->peer) {
        return 0;
    }

    await = link->servers->await;

    if (await && await->peer == link->peer
        && await->state == NGX_HTTP_LATCHKEY_LINK_UP)
    {
        ngx_http_latchkey_link_down(await, ngx_http_latchkey_why_unavailable,
                                    0, NULL);
    }

    ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_unavailable, 0,
                                reply);

    peer->unavailable = 1;
    link->peer = i;

    return 1;
}


/*
 * A daemon that is stopped may read what was sent to it much later.  It starts
 * no claim of a connection that is closed, and over TCP only a reset shows
 * that.
 */

static void
ngx_http_latchkey_link_reset(ngx_http_latchkey_link_t *link)
{
    struct linger  linger;

    if (link->connection == NULL) {
        return;
    }

    linger.l_onoff = 1;
    linger.l_linger = 0;

    if (setsockopt(link->connection->fd, SOL_SOCKET, SO_LINGER,
                   (const void *) &linger, sizeof(struct linger))
        == -1)
    {
        ngx_log_error(NGX_LOG_ALERT, link->log, ngx_socket_errno,
                      "setsockopt(SO_LINGER) failed");
    }
}


/* logs each failure of each server once, until one answers */

static void
ngx_http_latchkey_link_log_loss(ngx_http_latchkey_link_t *link, ngx_uint_t up,
    const char *why, ngx_err_t err, const struct lk_reply *reply)
{
    ngx_uint_t                   level;
    const char                  *error;
    ngx_http_latchkey_peer_t    *peer;
    ngx_http_latchkey_server_t  *server;

    peer = &link->peers[link->peer];

    if ((peer->why == why && peer->err == err)
        || (why == ngx_http_latchkey_why_unavailable && peer->unavailable))
    {
        return;
    }

    peer->why = why;
    peer->err = err;

    level = link->kind->level;

    if (up && why == ngx_http_latchkey_why_closed) {

        /* a restart that takes long is logged by the next failure */

        level = ngx_queue_empty(&link->sent) ? NGX_LOG_INFO : NGX_LOG_WARN;
        level = ngx_max(level, link->kind->level);
    }

    if (level <= ngx_max(NGX_LOG_WARN, link->kind->level)) {
        link->loss_logged = 1;
    }

    error = reply && reply->type == LK_REPLY_ERROR
            ? ngx_http_latchkey_error_text(reply->text) : NULL;

    server = link->servers->list.elts;

    ngx_log_error(level, link->log, err, "idempotency: latchkeyd at %V %s%s%s",
                  &server[link->peer].addr.name, why, error ? "; it says " : "",
                  error ? error : "");
}


void
ngx_http_latchkey_link_close(ngx_http_latchkey_link_t *link, ngx_queue_t *gone)
{
    ngx_uint_t  up;

    if (link->connection) {
        ngx_close_connection(link->connection);
        link->connection = NULL;
    }

    up = (link->state == NGX_HTTP_LATCHKEY_LINK_UP);
    link->state = NGX_HTTP_LATCHKEY_LINK_DOWN;

    if (link->timer.timer_set) {
        ngx_del_timer(&link->timer);
    }

    if (link->in) {
        ngx_free(link->in);
        link->in = NULL;
    }

    link->in_len = 0;
    link->in_size = 0;
    link->in_need = 0;

    if (link->greeting.busy) {
        ngx_queue_remove(&link->greeting.queue);
        link->greeting.busy = 0;
        link->offset = 0;
    }

    /*
     * A call that never succeeds must not hold up the others: neither one that
     * is cut off, nor one that gets no reply though it is first.
     */

    if (up && !ngx_queue_empty(&link->sent)) {
        ngx_http_latchkey_link_count_cut(ngx_queue_head(&link->sent), gone);
    }

    if (link->offset) {
        ngx_http_latchkey_link_count_cut(ngx_queue_head(&link->waiting), gone);
        link->offset = 0;
    }

    ngx_http_latchkey_link_put_back(link, gone);
}


static void
ngx_http_latchkey_link_count_cut(ngx_queue_t *q, ngx_queue_t *gone)
{
    ngx_http_latchkey_call_t  *call;

    call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

    if (call->handler == ngx_http_latchkey_link_discard_reply) {
        return;
    }

    if (++call->cut == NGX_HTTP_LATCHKEY_CUT_MAX) {
        call->owed = 0;
        ngx_queue_remove(q);
        ngx_queue_insert_tail(gone, q);
    }
}


/* from the last to the first, which keeps their order */

static void
ngx_http_latchkey_link_put_back(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone)
{
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *call;

    while (!ngx_queue_empty(&link->sent)) {
        q = ngx_queue_last(&link->sent);
        ngx_queue_remove(q);

        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
        call->owed = 0;

        if (call->handler == ngx_http_latchkey_link_discard_reply) {
            ngx_queue_insert_head(&link->spare, q);

        } else if (link->kind->again) {
            call->repeated = 1;
            ngx_queue_insert_head(&link->waiting, q);

        } else {
            ngx_queue_insert_head(gone, q);
        }
    }
}


/*
 * Pauses grow from 50 to 500 ms, with a random part, so that workers do not
 * connect all at once.
 */

static void
ngx_http_latchkey_link_schedule(ngx_http_latchkey_link_t *link, ngx_uint_t up)
{
    ngx_msec_t  pause;

    if (up ? link->proven : link->failures % link->npeers) {

        /* it worked before, or there is another server: connect at once */

        ngx_post_event(&link->flush, &ngx_posted_events);
        return;
    }

    pause = link->pause / 2 + ngx_random() % (link->pause / 2 + 1);

    ngx_add_timer(&link->timer, pause);

    link->pause = ngx_min(link->pause * 2,
                          NGX_HTTP_LATCHKEY_LINK_PAUSE_MAX);
}


/* calls that were not sent and are not patient */

static void
ngx_http_latchkey_link_refuse_calls(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone)
{
    ngx_queue_t               *q, *next;
    ngx_http_latchkey_call_t  *call;

    for (q = ngx_queue_head(&link->waiting);
         q != ngx_queue_sentinel(&link->waiting);
         q = next)
    {
        next = ngx_queue_next(q);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (!call->patient && !call->sent) {
            ngx_queue_remove(q);
            ngx_queue_insert_tail(gone, q);
        }
    }
}
