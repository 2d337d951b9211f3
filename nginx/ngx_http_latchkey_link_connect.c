
/*
 * How a link finds a daemon, and knows that it is one, and of the same store.
 */


#include "ngx_http_latchkey_link.h"


static ngx_uint_t ngx_http_latchkey_link_out_of_time(void);
static ngx_int_t ngx_http_latchkey_link_open(ngx_http_latchkey_link_t *link,
    ngx_addr_t *addr);
static ngx_int_t ngx_http_latchkey_link_events(ngx_connection_t *c,
    ngx_uint_t connected);
static ngx_uint_t ngx_http_latchkey_link_is_foreign(
    const struct lk_reply *reply);
static struct lk_slice ngx_http_latchkey_link_told(
    const struct lk_reply *reply, const char *name);
static ngx_int_t ngx_http_latchkey_link_check_store(
    ngx_http_latchkey_link_t *link, const struct lk_reply *reply);


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
        /* what is awaited happens where the calls are sent to */
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
 * Only an answer shows that somebody is there: a stopped process accepts
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


/*
 * A Redis answers HELLO, too, and says what it is; one that is too old for it
 * does not know the command.
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
           && !latchkey_slice_equal(ngx_http_latchkey_link_told(reply,
                                                                "server"),
                                    LK_SLICE("latchkey"));
}


/* empty: the greeting does not have it */

static struct lk_slice
ngx_http_latchkey_link_told(const struct lk_reply *reply, const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(reply, name);

    return value && value->type == LK_REPLY_TEXT
           ? value->text : (struct lk_slice) { NULL, 0 };
}


/*
 * Daemons that stand in for each other must decide from the same records: two
 * stores would let an operation run in each.  A single daemon may come back
 * with another store; then there is nothing to hold on to.
 */

static ngx_int_t
ngx_http_latchkey_link_check_store(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    struct lk_slice               store;
    ngx_http_latchkey_servers_t  *servers;

    servers = link->servers;
    store = ngx_http_latchkey_link_told(reply, "store");
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
