
/*
 * The bytes of the link: commands as bytes, sending them, receiving replies.
 *
 * A command is a chain that is never changed: short words are copied into it,
 * long ones and the body of a response are linked.  Calls go out by writev()
 * from where their bytes are, with no buffer of the link's own.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_WORD_COPY   1024


#define NGX_HTTP_LATCHKEY_IN_SIZE     16384
#define NGX_HTTP_LATCHKEY_IN_KEEP     (256 * 1024)
/* the largest idempotency_response_max, and headers with it */
#define NGX_HTTP_LATCHKEY_IN_MAX      (320 * 1024 * 1024)

#define NGX_HTTP_LATCHKEY_NODES       128


static ngx_chain_t *ngx_http_latchkey_fill_chain_link(ngx_chain_t *cl,
    ngx_buf_t *b, u_char *pos, u_char *last);
static u_char *ngx_http_latchkey_write_length(u_char *p, u_char sign,
    size_t n);
static void ngx_http_latchkey_link_gather(ngx_http_latchkey_link_t *link,
    ngx_iovec_t *vec);
static void ngx_http_latchkey_link_advance(ngx_http_latchkey_link_t *link,
    size_t n);
static void ngx_http_latchkey_link_receive(ngx_http_latchkey_link_t *link);
static ngx_int_t ngx_http_latchkey_link_room(ngx_http_latchkey_link_t *link);
static ngx_int_t ngx_http_latchkey_link_parse(ngx_http_latchkey_link_t *link);


/* Counts first, allocates once, then writes. */

ngx_chain_t *
ngx_http_latchkey_command(ngx_pool_t *pool, const ngx_str_t *words,
    ngx_uint_t n, ngx_chain_t *body, ngx_uint_t body_word)
{
    u_char        *p, *start;
    size_t         size, body_size;
    ngx_buf_t     *b;
    ngx_uint_t     i, links;
    ngx_chain_t   *out, *cl, *block;

    size = sizeof("*\r\n") - 1 + NGX_INT_T_LEN;
    links = 1;

    for (i = 0; i < n; i++) {
        size += sizeof("$\r\n\r\n") - 1 + NGX_SIZE_T_LEN;

        if (body && i == body_word) {
            continue;
        }

        if (words[i].len > NGX_HTTP_LATCHKEY_WORD_COPY) {
            links += 2;         /* a long word splits what is around it */

        } else {
            size += words[i].len;
        }
    }

    if (body) {
        links++;
        body_size = 0;

        for (block = body; block; block = block->next) {
            body_size += block->buf->last - block->buf->pos;
            links++;
        }

        if (body_size != words[body_word].len) {

            /*
             * one byte more or less would make all later commands unreadable
             */

            ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                          "idempotency: a command announces %uz bytes and "
                          "has %uz; it is not sent", words[body_word].len,
                          body_size);
            return NULL;
        }
    }

    p = ngx_pnalloc(pool, size);
    b = ngx_pcalloc(pool, links * sizeof(ngx_buf_t));
    cl = ngx_palloc(pool, links * sizeof(ngx_chain_t));

    if (p == NULL || b == NULL || cl == NULL) {
        return NULL;
    }

    out = cl;
    start = p;

    p = ngx_http_latchkey_write_length(p, '*', n);

    for (i = 0; i < n; i++) {
        p = ngx_http_latchkey_write_length(p, '$', words[i].len);

        if (body && i == body_word) {
            cl = ngx_http_latchkey_fill_chain_link(cl, b++, start, p);

            for (block = body; block; block = block->next) {
                cl = ngx_http_latchkey_fill_chain_link(cl, b++,
                                                       block->buf->pos,
                                                       block->buf->last);
            }

            start = p;

        } else if (words[i].len <= NGX_HTTP_LATCHKEY_WORD_COPY) {
            p = ngx_cpymem(p, words[i].data, words[i].len);

        } else {
            cl = ngx_http_latchkey_fill_chain_link(cl, b++, start, p);
            cl = ngx_http_latchkey_fill_chain_link(cl, b++, words[i].data,
                                               words[i].data + words[i].len);
            start = p;
        }

        *p++ = CR; *p++ = LF;
    }

    (void) ngx_http_latchkey_fill_chain_link(cl, b, start, p);
    cl->next = NULL;

    return out;
}


/* the links of a command are one array; returns the next */

static ngx_chain_t *
ngx_http_latchkey_fill_chain_link(ngx_chain_t *cl, ngx_buf_t *b, u_char *pos,
    u_char *last)
{
    b->pos = pos;
    b->last = last;
    b->memory = 1;

    cl->buf = b;
    cl->next = cl + 1;

    return cl + 1;
}


/*
 * called a dozen times for each command; ngx_sprintf() would take half of its
 * time
 */

static u_char *
ngx_http_latchkey_write_length(u_char *p, u_char sign, size_t n)
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


/*
 * Only the code of an error is logged: the sentence after it may repeat what
 * was sent, keys and passwords included, and the peer need not be a latchkeyd.
 *
 * The beginnings are a contract with the daemon, like those in op, op_settle
 * and link_connect: its sentences may change, but not how they begin.
 */

const char *
ngx_http_latchkey_error_text(struct lk_slice text)
{
    size_t      len;
    ngx_uint_t  i;

    static struct {
        const char  *code;
        const char  *meaning;
    } errors[] = {
        { "UNAVAILABLE", "UNAVAILABLE (its store: see the log of latchkeyd)" },
        { "NOAUTH", "NOAUTH (it requires a password)" },
        { "WRONGPASS", "WRONGPASS (user or password is wrong)" },
        { "NOPERM", "NOPERM (its user does not have the role \"use\")" },
        { "ERR TOO LARGE", "ERR TOO LARGE (more than its "
                           "courier.request_bytes)" },
        { "ERR ACCEPT: courier.gateway", "ERR (its courier.gateway is not "
                                         "set)" },
        { "ERR a Redis store", "ERR (a Redis store does not store requests "
                               "for later; the embedded store and PostgreSQL "
                               "do)" },
        { "ERR AWAIT", "ERR (its limits.waiters)" },
        { "ERR max number of clients", "ERR (it has as many clients as its "
                                       "limits allow)" },
        { "ERR", "ERR (a time or a size is beyond its limits, or it is of "
                 "another version)" },
        { "", "an error that latchkeyd does not know" }
    };

    for (i = 0; /* void */ ; i++) {
        len = ngx_strlen(errors[i].code);

        if (text.len >= len
            && ngx_strncmp(text.data, errors[i].code, len) == 0)
        {
            return errors[i].meaning;
        }
    }
}


/* sending */

void
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

    /* like ngx_http_upstream_test_connect(): some systems return the error */

    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, (void *) &err, &len) == -1) {
        err = ngx_socket_errno;
    }

    if (err) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_unreachable,
                                    err, NULL);
        return;
    }

    ngx_http_latchkey_link_greet(link);
}


/* Sends as much as the socket takes, from the chains of the waiting calls. */

void
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

            /* a daemon that closes the connection may have sent a reason */

            c->read->ready = 1;
            c->read->available = -1;

            ngx_http_latchkey_link_receive(link);

            if (link->connection == c) {
                ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_closed,
                                            0, NULL);
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
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_memory, 0,
                                    NULL);
    }
}


/*
 * Fills the vector from link->offset on, with as many calls as fit.  Before
 * the greeting has its reply, only the greeting.
 */

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


/* n more bytes are sent: calls that are complete move to `sent` */

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

void
ngx_http_latchkey_link_read(ngx_event_t *rev)
{
    ngx_connection_t          *c;
    ngx_http_latchkey_link_t  *link;

    c = rev->data;
    link = c->data;

    if (c->close) {

        /*
         * worker_shutdown_timeout: nginx ends requests, and they have
         * operations to settle.  This connection is used as long as it lasts;
         * no other is made.
         */

        c->close = 0;
        c->error = 0;
        link->leaving = 1;

        if (link->state != NGX_HTTP_LATCHKEY_LINK_UP) {
            ngx_http_latchkey_link_end(link);
            return;
        }

        /* for at most that time */

        ngx_add_timer(&link->timer, link->servers->connect_timeout);
    }

    if (link->state == NGX_HTTP_LATCHKEY_LINK_CONNECTING) {

        /* the write event has the error */

        return;
    }

    ngx_http_latchkey_link_receive(link);
}


/*
 * Reads until the socket is empty; each whole reply is handled at once, and
 * may close the connection.
 */

static void
ngx_http_latchkey_link_receive(ngx_http_latchkey_link_t *link)
{
    ssize_t            n;
    ngx_connection_t  *c;

    c = link->connection;

    do {
        if (ngx_http_latchkey_link_room(link) != NGX_OK) {
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_memory, 0,
                                        NULL);
            return;
        }

        n = c->recv(c, link->in + link->in_len, link->in_size - link->in_len);

        if (n == NGX_AGAIN) {
            break;
        }

        if (n == NGX_ERROR || n == 0) {
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_closed, 0,
                                        NULL);
            return;
        }

        link->in_len += n;

        if (ngx_http_latchkey_link_parse(link) != NGX_OK) {
            return;
        }

    } while (c->read->ready);

    if (ngx_handle_read_event(c->read, 0) != NGX_OK) {
        ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_memory, 0,
                                    NULL);
    }
}


/* grows by what was received, never by what is announced */

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


/* NGX_ERROR: the connection is closed */

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
            ngx_http_latchkey_link_down(link, ngx_http_latchkey_why_malformed,
                                        0, NULL);
            return NGX_ERROR;
        }

        pos += used;
        link->in_need = 0;

        if (ngx_http_latchkey_link_take_reply(link, nodes) != NGX_OK) {
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
