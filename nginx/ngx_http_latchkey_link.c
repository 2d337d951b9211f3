
/*
 * The connection of a worker to the daemon.
 *
 * Calls of all requests share it.  They are in two queues, each in order:
 *
 *   waiting   not sent, or only link->offset bytes of the first one
 *   sent      sent as a whole on this connection; a reply is owed to each,
 *             in this order (call->owed)
 *
 * A connection that is lost puts what was sent back in front of what waits.
 * Each call that is taken has a timer of its own in the event loop, which is
 * what keeps a worker that shuts down alive until it is answered; the timers
 * of the link itself are cancelable and do not.  A call that is too late but
 * owed a reply leaves a stand-in in its place, which swallows that reply.
 *
 * Handlers are called from events only, never from ngx_http_latchkey_link_
 * call(), and a call is in no queue and has no timer when its handler runs: it
 * may free the call, or use it again.  No handler can close a connection: that
 * happens in events of the link alone.
 *
 * The breaker is open when every server failed since one answered, and that
 * was idempotency_connect_timeout ago: a daemon that is restarted is waited
 * for.  Who does not want to wait is then told so at once.  The link goes on
 * trying to connect by itself, ever less often; but if somebody asks, and the
 * last attempt was a moment ago, he is let in and there is another one.  The
 * first answer to a greeting closes the breaker.
 */


#include "ngx_http_latchkey_link.h"


#define NGX_HTTP_LATCHKEY_PAUSE_MIN   50
#define NGX_HTTP_LATCHKEY_PAUSE_MAX   500
#define NGX_HTTP_LATCHKEY_PROBE       100

#define NGX_HTTP_LATCHKEY_IN_SIZE     16384
#define NGX_HTTP_LATCHKEY_IN_KEEP     (256 * 1024)
/* the largest idempotency_response_max, and what comes with it */
#define NGX_HTTP_LATCHKEY_IN_MAX      (320 * 1024 * 1024)

#define NGX_HTTP_LATCHKEY_NODES       128
#define NGX_HTTP_LATCHKEY_WORD_COPY   1024


static u_char *ngx_http_latchkey_announce(u_char *p, u_char sign, size_t n);
static void ngx_http_latchkey_link_flush(ngx_event_t *ev);
static void ngx_http_latchkey_link_connect(ngx_http_latchkey_link_t *link);
static ngx_uint_t ngx_http_latchkey_link_out_of_time(void);
static ngx_int_t ngx_http_latchkey_link_open(ngx_http_latchkey_link_t *link,
    ngx_addr_t *addr);
static ngx_int_t ngx_http_latchkey_link_events(ngx_connection_t *c,
    ngx_uint_t connected);
static void ngx_http_latchkey_link_greet(ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_link_greeted(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_link_check_store(
    ngx_http_latchkey_link_t *link, const struct lk_reply *reply);
static void ngx_http_latchkey_link_write(ngx_event_t *wev);
static void ngx_http_latchkey_link_send(ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_link_gather(ngx_http_latchkey_link_t *link,
    ngx_iovec_t *vec);
static void ngx_http_latchkey_link_advance(ngx_http_latchkey_link_t *link,
    size_t n);
static void ngx_http_latchkey_link_read(ngx_event_t *rev);
static void ngx_http_latchkey_link_receive(ngx_http_latchkey_link_t *link);
static ngx_int_t ngx_http_latchkey_link_room(ngx_http_latchkey_link_t *link);
static ngx_int_t ngx_http_latchkey_link_parse(ngx_http_latchkey_link_t *link);
static ngx_int_t ngx_http_latchkey_link_take(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_answer(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_late(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_link_stand_in(
    ngx_http_latchkey_link_t *link, ngx_http_latchkey_call_t *call);
static void ngx_http_latchkey_link_swallow(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_timer(ngx_event_t *ev);
static void ngx_http_latchkey_link_down(ngx_http_latchkey_link_t *link,
    const char *why, ngx_err_t err, const struct lk_reply *reply);
static void ngx_http_latchkey_link_tell(ngx_http_latchkey_link_t *link,
    ngx_uint_t up, const char *why, ngx_err_t err,
    const struct lk_reply *reply);
static void ngx_http_latchkey_link_close(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);
static void ngx_http_latchkey_link_blame(ngx_queue_t *q, ngx_queue_t *gone);
static void ngx_http_latchkey_link_schedule(ngx_http_latchkey_link_t *link,
    ngx_uint_t up);
static void ngx_http_latchkey_link_refuse(ngx_http_latchkey_link_t *link,
    ngx_queue_t *gone);
static void ngx_http_latchkey_link_fail(ngx_queue_t *gone);
static void ngx_http_latchkey_link_end(ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_link_destroy(ngx_http_latchkey_link_t *link);


#define ngx_http_latchkey_link_broken(link)                                  \
    ((link)->failures >= (link)->npeers                                      \
     && ngx_current_msec - (link)->lost >= (link)->servers->connect_timeout)


static const char  ngx_http_latchkey_unreachable[] =
    "cannot be reached: is latchkeyd running, and may this worker connect "
    "to it?";
static const char  ngx_http_latchkey_silent[] =
    "does not answer in time: is latchkeyd stopped, or overloaded?";
static const char  ngx_http_latchkey_refused[] =
    "refuses this gateway: see user= and password= of \"idempotency_server\" "
    "and the passwords and limits of latchkeyd";
static const char  ngx_http_latchkey_closed[] =
    "closed the connection";
static const char  ngx_http_latchkey_malformed[] =
    "sends what cannot be understood: does \"idempotency_server\" name a "
    "latchkeyd?";
static const char  ngx_http_latchkey_other[] =
    "keeps another store than the daemon before it: all that "
    "\"idempotency_server\" names must share one";
static const char  ngx_http_latchkey_memory[] =
    "cannot be used: out of memory, or of connections";


static const ngx_http_latchkey_link_kind_t  ngx_http_latchkey_link_calls = {
    NGX_LOG_ERR,
    1,
    NULL,
    NULL
};


/* calls */

ngx_chain_t *
ngx_http_latchkey_command(ngx_pool_t *pool, const ngx_str_t *words,
    ngx_uint_t n)
{
    u_char        *p, *start;
    size_t         size;
    ngx_buf_t     *b;
    ngx_uint_t     i, longs;
    ngx_chain_t   *out, *cl;

    size = sizeof("*\r\n") - 1 + NGX_INT_T_LEN;
    longs = 0;

    for (i = 0; i < n; i++) {
        size += sizeof("$\r\n\r\n") - 1 + NGX_SIZE_T_LEN;

        if (words[i].len > NGX_HTTP_LATCHKEY_WORD_COPY) {
            longs++;

        } else {
            size += words[i].len;
        }
    }

    /* a long word splits what is around it */

    p = ngx_pnalloc(pool, size);
    b = ngx_pcalloc(pool, (2 * longs + 1) * sizeof(ngx_buf_t));
    cl = ngx_palloc(pool, (2 * longs + 1) * sizeof(ngx_chain_t));

    if (p == NULL || b == NULL || cl == NULL) {
        return NULL;
    }

    out = cl;
    start = p;

    p = ngx_http_latchkey_announce(p, '*', n);

    for (i = 0; i < n; i++) {
        p = ngx_http_latchkey_announce(p, '$', words[i].len);

        if (words[i].len <= NGX_HTTP_LATCHKEY_WORD_COPY) {
            p = ngx_cpymem(p, words[i].data, words[i].len);

        } else {
            b->pos = start;
            b->last = p;
            b->memory = 1;
            cl->buf = b++;
            cl->next = cl + 1;
            cl++;

            b->pos = words[i].data;
            b->last = words[i].data + words[i].len;
            b->memory = 1;
            cl->buf = b++;
            cl->next = cl + 1;
            cl++;

            start = p;
        }

        *p++ = CR; *p++ = LF;
    }

    b->pos = start;
    b->last = p;
    b->memory = 1;
    cl->buf = b;
    cl->next = NULL;

    return out;
}


/* a dozen times for each command, where ngx_sprintf() would be half of it */

static u_char *
ngx_http_latchkey_announce(u_char *p, u_char sign, size_t n)
{
    u_char  *start, digits[NGX_SIZE_T_LEN];

    *p++ = sign;
    start = digits + sizeof(digits);

    do {
        *--start = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    p = ngx_cpymem(p, start, digits + sizeof(digits) - start);

    *p++ = CR; *p++ = LF;

    return p;
}


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


ngx_int_t
ngx_http_latchkey_link_queue(ngx_http_latchkey_link_t *link,
    ngx_http_latchkey_call_t *call)
{
    ngx_msec_int_t  left;

    call->busy = 0;
    call->sent = 0;
    call->owed = 0;
    call->repeated = 0;
    call->cut = 0;

    if (link->ended) {
        return NGX_DECLINED;
    }

    if (ngx_http_latchkey_link_broken(link)) {
        link->probe = (link->connection == NULL
                       && ngx_current_msec - link->tried
                          >= NGX_HTTP_LATCHKEY_PROBE);

        if (!link->probe && !call->patient) {
            return NGX_DECLINED;
        }
    }

    call->busy = 1;

    ngx_memzero(&call->timer, sizeof(ngx_event_t));

    call->timer.handler = ngx_http_latchkey_link_late;
    call->timer.data = link;
    call->timer.log = link->log;

    left = (ngx_msec_int_t) (call->deadline - ngx_current_msec);
    ngx_add_timer(&call->timer, (ngx_msec_t) ngx_max(left, 0));

    if (!call->first || ngx_queue_empty(&link->waiting)) {
        ngx_queue_insert_tail(&link->waiting, &call->queue);

    } else if (link->offset || link->greeting.busy) {

        /* behind what is being sent */

        ngx_queue_insert_after(ngx_queue_head(&link->waiting), &call->queue);

    } else {
        ngx_queue_insert_head(&link->waiting, &call->queue);
    }

    ngx_post_event(&link->flush, &ngx_posted_events);

    return NGX_OK;
}


ngx_http_latchkey_link_t *
ngx_http_latchkey_link_create(ngx_http_latchkey_servers_t *servers,
    const ngx_http_latchkey_link_kind_t *kind)
{
    ngx_str_t                    words[5];
    ngx_uint_t                   i, n;
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
    link->pause = NGX_HTTP_LATCHKEY_PAUSE_MIN;
    link->npeers = servers->list.nelts;

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

    server = servers->list.elts;

    for (i = 0; i < link->npeers; i++) {
        ngx_str_set(&words[0], "HELLO");
        ngx_str_set(&words[1], "2");
        n = 2;

        if (server[i].password.len) {
            ngx_str_set(&words[2], "AUTH");
            ngx_str_set(&words[3], "default");

            if (server[i].user.len) {
                words[3] = server[i].user;
            }

            words[4] = server[i].password;
            n = 5;
        }

        link->peers[i].greeting = ngx_http_latchkey_command(pool, words, n);
        if (link->peers[i].greeting == NULL) {
            goto failed;
        }
    }

    return link;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


/* what was queued in one turn of the event loop goes out together */

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


/* connecting */

static void
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
        /* what is awaited happens where the calls are sent to */
        link->peer = calls->peer;
    }

    server = link->servers->list.elts;
    addr = &server[link->peer].addr;

    if (ngx_http_latchkey_link_open(link, addr) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_memory, 0, NULL);
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
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_unreachable, err,
                                    NULL);
        return;
    }

    if (ngx_http_latchkey_link_events(link->connection, rc == 0) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_memory, 0, NULL);
        return;
    }

    ngx_add_timer(&link->timer, link->servers->connect_timeout);

    if (rc == 0) {
        link->connection->write->ready = 1;
        ngx_http_latchkey_link_greet(link);
    }
}


/*
 * worker_shutdown_timeout closes connections; a link that has none at that
 * moment must keep the time itself.
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
 * Not ngx_event_connect_peer(): a daemon that is away would be logged at each
 * attempt, and a missing unix socket as critical.
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


/*
 * Only an answer shows that somebody is there: a stopped process accepts
 * connections.  Nothing else is sent before it.
 */

static void
ngx_http_latchkey_link_greet(ngx_http_latchkey_link_t *link)
{
    ngx_connection_t  *c;

    c = link->connection;

    if (ngx_tcp_nodelay(c) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_unreachable, 0,
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


static void
ngx_http_latchkey_link_greeted(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_uint_t                   i, level;
    ngx_http_latchkey_link_t    *link;
    ngx_http_latchkey_server_t  *server;

    link = call->data;

    if (reply->type == LK_REPLY_ERROR) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_refused, 0, reply);
        return;
    }

    if (reply->type != LK_REPLY_ARRAY) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_malformed, 0,
                                    reply);
        return;
    }

    if (ngx_http_latchkey_link_check_store(link, reply) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_other, 0, NULL);
        return;
    }

    if (link->told) {
        server = link->servers->list.elts;
        level = ngx_max(NGX_LOG_NOTICE, link->kind->level);

        ngx_log_error(level, link->log, 0,
                      "idempotency: latchkeyd at %V answers",
                      &server[link->peer].addr.name);
    }

    ngx_del_timer(&link->timer);

    link->state = NGX_HTTP_LATCHKEY_LINK_UP;
    link->failures = 0;
    link->told = 0;

    for (i = 0; i < link->npeers; i++) {
        link->peers[i].why = NULL;
    }

    ngx_post_event(&link->flush, &ngx_posted_events);
}


/* sending */

/*
 * Daemons that stand in for each other must decide from the same records: two
 * stores would let an operation run in each.  A single daemon may come back
 * with another store; then there is nothing to hold on to.
 */

static ngx_int_t
ngx_http_latchkey_link_check_store(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    size_t                        i;
    struct lk_slice               store;
    ngx_http_latchkey_servers_t  *servers;

    servers = link->servers;
    store = (struct lk_slice) { NULL, 0 };

    for (i = 0; i + 1 < reply->count; i += 2) {
        if (latchkey_slice_equal(reply->elements[i].text, LK_SLICE("store")))
        {
            store = reply->elements[i + 1].text;
        }
    }

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


static void
ngx_http_latchkey_link_write(ngx_event_t *wev)
{
    int                        err;
    socklen_t                  len;
    ngx_connection_t          *c;
    ngx_http_latchkey_link_t  *link;

    c = wev->data;
    link = c->data;

    if (link->state != NGX_HTTP_LATCHKEY_LINK_CONNECTING) {
        ngx_http_latchkey_link_send(link);
        return;
    }

    err = 0;
    len = sizeof(int);

    /* as in ngx_http_upstream_test_connect(): some return the error here */

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_unreachable, err,
                                    NULL);
        return;
    }

    ngx_http_latchkey_link_greet(link);
}


static void
ngx_http_latchkey_link_send(ngx_http_latchkey_link_t *link)
{
    ssize_t            n;
    ngx_iovec_t        vec;
    ngx_connection_t  *c;
    struct iovec       iovs[NGX_IOVS_PREALLOCATE];

    c = link->connection;

    vec.iovs = iovs;
    vec.nalloc = NGX_IOVS_PREALLOCATE;

    while (c->write->ready) {

        ngx_http_latchkey_link_gather(link, &vec);

        if (vec.count == 0) {
            break;
        }

        n = ngx_writev(c, &vec);

        if (n == NGX_ERROR) {

            /* a daemon that hangs up may have said why */

            c->read->ready = 1;
            c->read->available = -1;

            ngx_http_latchkey_link_receive(link);

            if (link->connection == c) {
                ngx_http_latchkey_link_down(link, ngx_http_latchkey_closed, 0,
                                            NULL);
            }

            return;
        }

        if (n == NGX_AGAIN) {
            n = 0;
        }

        ngx_http_latchkey_link_advance(link, n);

        if ((size_t) n < vec.size) {
            c->write->ready = 0;
        }
    }

    if (ngx_handle_write_event(c->write, 0) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_memory, 0, NULL);
    }
}


static void
ngx_http_latchkey_link_gather(ngx_http_latchkey_link_t *link,
    ngx_iovec_t *vec)
{
    size_t                     size, skip;
    ngx_queue_t               *q;
    ngx_chain_t               *cl;
    ngx_http_latchkey_call_t  *call;

    vec->count = 0;
    vec->size = 0;
    skip = link->offset;

    for (q = ngx_queue_head(&link->waiting);
         q != ngx_queue_sentinel(&link->waiting);
         q = ngx_queue_next(q))
    {
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (link->state != NGX_HTTP_LATCHKEY_LINK_UP
            && call != &link->greeting)
        {
            return;
        }

        for (cl = call->out; cl; cl = cl->next) {
            size = cl->buf->last - cl->buf->pos;

            if (skip >= size) {
                skip -= size;
                continue;
            }

            if (vec->count == vec->nalloc) {
                return;
            }

            vec->iovs[vec->count].iov_base = cl->buf->pos + skip;
            vec->iovs[vec->count].iov_len = size - skip;
            vec->count++;
            vec->size += size - skip;
            skip = 0;
        }
    }
}


/* n bytes more are sent */

static void
ngx_http_latchkey_link_advance(ngx_http_latchkey_link_t *link, size_t n)
{
    size_t                     size;
    ngx_queue_t               *q;
    ngx_chain_t               *cl;
    ngx_http_latchkey_call_t  *call;

    n += link->offset;

    while (!ngx_queue_empty(&link->waiting)) {
        q = ngx_queue_head(&link->waiting);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        size = 0;

        for (cl = call->out; cl; cl = cl->next) {
            size += cl->buf->last - cl->buf->pos;
        }

        if (n < size) {
            break;
        }

        n -= size;

        if (ngx_queue_empty(&link->sent)) {
            link->progress = ngx_current_msec;
        }

        ngx_queue_remove(q);
        ngx_queue_insert_tail(&link->sent, q);

        call->sent = 1;
        call->owed = 1;
    }

    link->offset = n;
}


/* receiving */

static void
ngx_http_latchkey_link_read(ngx_event_t *rev)
{
    ngx_connection_t          *c;
    ngx_http_latchkey_link_t  *link;

    c = rev->data;
    link = c->data;

    if (c->close) {

        /*
         * worker_shutdown_timeout: it ends requests, and those have something
         * to say to the daemon yet.  This connection is used as long as it
         * lasts; no other is made.
         */

        c->close = 0;
        c->error = 0;
        link->leaving = 1;

        if (link->state != NGX_HTTP_LATCHKEY_LINK_UP) {
            ngx_http_latchkey_link_end(link);
            return;
        }

        /* and it does not last for ever */

        ngx_add_timer(&link->timer, link->servers->connect_timeout);
    }

    if (link->state == NGX_HTTP_LATCHKEY_LINK_CONNECTING) {

        /* the write event tells more */

        return;
    }

    ngx_http_latchkey_link_receive(link);
}


static void
ngx_http_latchkey_link_receive(ngx_http_latchkey_link_t *link)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = link->connection;

    do {
        if (ngx_http_latchkey_link_room(link) != NGX_OK) {
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_memory, 0,
                                        NULL);
            return;
        }

        n = c->recv(c, link->in + link->in_len, link->in_size - link->in_len);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_closed, 0,
                                        NULL);
            return;
        }

        link->in_len += n;

        if (ngx_http_latchkey_link_parse(link) != NGX_OK) {
            return;
        }

    } while (c->read->ready);

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_memory, 0, NULL);
    }
}


/* by what has come, not by what is announced */

static ngx_int_t
ngx_http_latchkey_link_room(ngx_http_latchkey_link_t *link)
{
    u_char  *p;
    size_t   size;

    if (link->in_len < link->in_size) {
        return NGX_OK;
    }

    size = link->in_size ? link->in_size * 2 : NGX_HTTP_LATCHKEY_IN_SIZE;

    if (size > NGX_HTTP_LATCHKEY_IN_MAX) {
        size = NGX_HTTP_LATCHKEY_IN_MAX;
    }

    if (size == link->in_size) {
        return NGX_ERROR;
    }

    p = ngx_alloc(size, link->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (link->in) {
        ngx_memcpy(p, link->in, link->in_len);
        ngx_free(link->in);
    }

    link->in = p;
    link->in_size = size;

    return NGX_OK;
}


/* NGX_ERROR: the connection is gone */

static ngx_int_t
ngx_http_latchkey_link_parse(ngx_http_latchkey_link_t *link)
{
    size_t            pos, used;
    enum lk_status    status;
    struct lk_slice   bytes;
    struct lk_reply   nodes[NGX_HTTP_LATCHKEY_NODES];

    pos = 0;

    while (link->in_len > pos && link->in_len - pos >= link->in_need) {
        bytes.data = (char *) link->in + pos;
        bytes.len = link->in_len - pos;

        status = latchkey_reply_read(bytes, nodes, NGX_HTTP_LATCHKEY_NODES,
                                     &used);

        if (status == LK_AGAIN) {
            link->in_need = used;
            break;
        }

        if (status != LK_OK) {
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_malformed, 0,
                                        NULL);
            return NGX_ERROR;
        }

        pos += used;
        link->in_need = 0;

        if (ngx_http_latchkey_link_take(link, nodes) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (pos) {
        link->in_len -= pos;
        ngx_memmove(link->in, link->in + pos, link->in_len);
    }

    if (link->in_len == 0 && link->in_size > NGX_HTTP_LATCHKEY_IN_KEEP) {
        ngx_free(link->in);
        link->in = NULL;
        link->in_size = 0;
    }

    return NGX_OK;
}


/* NGX_ERROR: the connection is gone, and the reply with it */

static ngx_int_t
ngx_http_latchkey_link_take(ngx_http_latchkey_link_t *link,
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
            link->pause = NGX_HTTP_LATCHKEY_PAUSE_MIN;
        }

        ngx_queue_remove(q);
        ngx_http_latchkey_link_answer(call, reply);

        return link->connection ? NGX_OK : NGX_ERROR;
    }

    if (link->offset && reply->type == LK_REPLY_ERROR) {

        /* a command that is too large is refused before its end */

        q = ngx_queue_head(&link->waiting);
        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

        if (call != &link->greeting) {
            link->offset = 0;

            ngx_queue_remove(q);
            ngx_http_latchkey_link_answer(call, reply);

            ngx_http_latchkey_link_down(link, ngx_http_latchkey_closed, 0,
                                        NULL);
            return NGX_ERROR;
        }
    }

    ngx_http_latchkey_link_down(link, reply->type == LK_REPLY_ERROR
                                      ? ngx_http_latchkey_refused
                                      : ngx_http_latchkey_malformed,
                                0, reply);
    return NGX_ERROR;
}


/* the call is in no queue */

static void
ngx_http_latchkey_link_answer(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    if (call->timer.timer_set) {
        ngx_del_timer(&call->timer);
    }

    call->busy = 0;
    call->owed = 0;

    call->handler(call, reply);
}


/* deadlines */

static void
ngx_http_latchkey_link_late(ngx_event_t *ev)
{
    ngx_uint_t                 hung;
    ngx_http_latchkey_call_t  *call;
    ngx_http_latchkey_link_t  *link;

    call = (ngx_http_latchkey_call_t *)
               ((u_char *) ev - offsetof(ngx_http_latchkey_call_t, timer));
    link = ev->data;

    if (call->owed) {

        /*
         * A daemon that answers others is slow, not hung: a call that wanted
         * to wait for a moment only must not make all others start again.
         */

        hung = ngx_current_msec - link->progress
                   >= link->servers->connect_timeout
               || ngx_http_latchkey_link_stand_in(link, call) != NGX_OK;

    } else {

        /* half a command cannot be taken back */

        hung = link->offset
               && ngx_queue_head(&link->waiting) == &call->queue;

        if (hung) {
            link->offset = 0;
        }
    }

    ngx_queue_remove(&call->queue);

    if (hung) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_silent, 0, NULL);
    }

    ngx_http_latchkey_link_answer(call, NULL);
}


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

        spare->handler = ngx_http_latchkey_link_swallow;
        spare->data = link;

    } else {
        q = ngx_queue_head(&link->spare);
        ngx_queue_remove(q);
        spare = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
    }

    ngx_queue_insert_after(&call->queue, &spare->queue);

    return NGX_OK;
}


static void
ngx_http_latchkey_link_swallow(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_http_latchkey_link_t  *link;

    link = call->data;

    ngx_queue_insert_head(&link->spare, &call->queue);
}


/* the pause before the next attempt, or the time for one, is over */

static void
ngx_http_latchkey_link_timer(ngx_event_t *ev)
{
    ngx_http_latchkey_link_t  *link;

    link = ev->data;

    if (link->connection) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_silent,
                              link->state == NGX_HTTP_LATCHKEY_LINK_CONNECTING
                              ? NGX_ETIMEDOUT : 0, NULL);
        return;
    }

    ngx_http_latchkey_link_connect(link);
}


/* losing */

static void
ngx_http_latchkey_link_down(ngx_http_latchkey_link_t *link, const char *why,
    ngx_err_t err, const struct lk_reply *reply)
{
    ngx_uint_t   up;
    ngx_queue_t  gone;

    ngx_queue_init(&gone);

    up = (link->state == NGX_HTTP_LATCHKEY_LINK_UP);

    ngx_http_latchkey_link_tell(link, up, why, err, reply);

    if (link->leaving) {
        ngx_http_latchkey_link_end(link);
        return;
    }

    ngx_http_latchkey_link_close(link, &gone);

    link->peer = (link->peer + 1) % link->npeers;
    link->failures += !up;

    if (up) {
        link->lost = ngx_current_msec;
    }

    ngx_http_latchkey_link_schedule(link, up);

    if (ngx_http_latchkey_link_broken(link)
        && link->failures % link->npeers == 0)
    {
        ngx_http_latchkey_link_refuse(link, &gone);
    }

    ngx_http_latchkey_link_fail(&gone);

    if (up && link->kind->lost) {
        link->kind->lost(link);
    }
}


/* each failure of each server once, until one answers */

static void
ngx_http_latchkey_link_tell(ngx_http_latchkey_link_t *link, ngx_uint_t up,
    const char *why, ngx_err_t err, const struct lk_reply *reply)
{
    u_char                       buf[128];
    ngx_str_t                    text;
    ngx_uint_t                   level;
    ngx_http_latchkey_peer_t    *peer;
    ngx_http_latchkey_server_t  *server;

    peer = &link->peers[link->peer];

    if (peer->why == why && peer->err == err) {
        return;
    }

    peer->why = why;
    peer->err = err;

    level = link->kind->level;

    if (up && why == ngx_http_latchkey_closed) {

        /* a restart is announced by what follows, if it takes long */

        level = ngx_queue_empty(&link->sent) ? NGX_LOG_INFO : NGX_LOG_WARN;
        level = ngx_max(level, link->kind->level);
    }

    if (level <= ngx_max(NGX_LOG_WARN, link->kind->level)) {
        link->told = 1;
    }

    ngx_str_null(&text);

    if (reply && (reply->type == LK_REPLY_ERROR
                  || reply->type == LK_REPLY_TEXT))
    {
        text = ngx_http_latchkey_link_text(reply->text, buf, sizeof(buf));
    }

    server = link->servers->list.elts;

    ngx_log_error(level, link->log, err, "idempotency: latchkeyd at %V %s%s%V",
                  &server[link->peer].addr.name, why, text.len ? "; it says: "
                                                               : "",
                  &text);
}


ngx_str_t
ngx_http_latchkey_link_text(struct lk_slice text, u_char *buf, size_t size)
{
    size_t     i;
    ngx_str_t  shown;

    shown.data = buf;
    shown.len = ngx_min(text.len, size);

    for (i = 0; i < shown.len; i++) {
        buf[i] = (text.data[i] < 0x20 || text.data[i] > 0x7e)
                 ? '?' : text.data[i];
    }

    return shown;
}


/* calls that are not to be sent again are put into `gone` */

static void
ngx_http_latchkey_link_close(ngx_http_latchkey_link_t *link, ngx_queue_t *gone)
{
    ngx_uint_t                 up;
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *call;

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
     * One that never gets through must not hold up all others: neither one
     * that is cut off, nor one that is never answered though it is next.
     */

    if (up && !ngx_queue_empty(&link->sent)) {
        ngx_http_latchkey_link_blame(ngx_queue_head(&link->sent), gone);
    }

    if (link->offset) {
        ngx_http_latchkey_link_blame(ngx_queue_head(&link->waiting), gone);
        link->offset = 0;
    }

    while (!ngx_queue_empty(&link->sent)) {
        q = ngx_queue_last(&link->sent);
        ngx_queue_remove(q);

        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
        call->owed = 0;

        if (call->handler == ngx_http_latchkey_link_swallow) {
            ngx_queue_insert_head(&link->spare, q);

        } else if (link->kind->again) {
            call->repeated = 1;
            ngx_queue_insert_head(&link->waiting, q);

        } else {
            ngx_queue_insert_head(gone, q);
        }
    }
}


static void
ngx_http_latchkey_link_blame(ngx_queue_t *q, ngx_queue_t *gone)
{
    ngx_http_latchkey_call_t  *call;

    call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);

    if (call->handler == ngx_http_latchkey_link_swallow) {
        return;
    }

    if (++call->cut == NGX_HTTP_LATCHKEY_CUT_MAX) {
        call->owed = 0;
        ngx_queue_remove(q);
        ngx_queue_insert_tail(gone, q);
    }
}


static void
ngx_http_latchkey_link_schedule(ngx_http_latchkey_link_t *link, ngx_uint_t up)
{
    ngx_msec_t  pause;

    if (up ? link->proven : link->failures % link->npeers) {

        /* it was good, or there is another one: at once */

        ngx_post_event(&link->flush, &ngx_posted_events);
        return;
    }

    pause = link->pause / 2 + ngx_random() % (link->pause / 2 + 1);

    ngx_add_timer(&link->timer, pause);

    link->pause = ngx_min(link->pause * 2, NGX_HTTP_LATCHKEY_PAUSE_MAX);
}


/* who has not been sent and does not want to wait */

static void
ngx_http_latchkey_link_refuse(ngx_http_latchkey_link_t *link,
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


static void
ngx_http_latchkey_link_fail(ngx_queue_t *gone)
{
    ngx_queue_t               *q;
    ngx_http_latchkey_call_t  *call;

    while (!ngx_queue_empty(gone)) {
        q = ngx_queue_head(gone);
        ngx_queue_remove(q);

        call = ngx_queue_data(q, ngx_http_latchkey_call_t, queue);
        ngx_http_latchkey_link_answer(call, NULL);
    }
}


/* the end */

ngx_uint_t
ngx_http_latchkey_link_leaving(ngx_http_latchkey_servers_t *servers)
{
    return servers->link
           && (servers->link->leaving || servers->link->ended);
}


static void
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

    ngx_http_latchkey_link_fail(&gone);

    if (link->kind->lost) {
        link->kind->lost(link);
    }
}


void
ngx_http_latchkey_link_exit(ngx_http_latchkey_servers_t *servers)
{
    if (servers->link) {
        ngx_http_latchkey_link_destroy(servers->link);
        servers->link = NULL;
    }

    if (servers->await) {
        ngx_http_latchkey_link_destroy(servers->await);
        servers->await = NULL;
    }
}


static void
ngx_http_latchkey_link_destroy(ngx_http_latchkey_link_t *link)
{
    ngx_queue_t  gone;

    /* handlers would work for requests that end with this process */

    ngx_queue_init(&gone);
    ngx_http_latchkey_link_close(link, &gone);

    if (link->flush.posted) {
        ngx_delete_posted_event(&link->flush);
    }

    ngx_destroy_pool(link->pool);
}
