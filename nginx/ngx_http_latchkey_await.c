
/*
 * Waiting for the result of another request: AWAIT, on a connection of its
 * own, and the messages that the daemon sends there later.
 *
 * Life of a waiter: it has a number, which the daemon sends back.
 *
 *   in the tree   while waiter->await is set: a request listens
 *   in `queued`   after the daemon's QUEUED, until it reports
 *   freed         when its command has a reply and no request listens,
 *                 whichever comes last
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_AWAIT_MAX    600000    /* ms; the daemon's limit */
#define NGX_HTTP_LATCHKEY_AWAIT_REPLY  5000      /* ms for QUEUED */


typedef struct {
    ngx_rbtree_t                 tree;
    ngx_rbtree_node_t            sentinel;
    ngx_queue_t                  queued;
    ngx_rbtree_key_t             last;
} ngx_http_latchkey_waiters_t;


typedef struct {
    ngx_rbtree_node_t            node;      /* key: the number */
    ngx_queue_t                  queue;
    ngx_http_latchkey_call_t     call;
    ngx_http_latchkey_link_t    *link;
    ngx_http_latchkey_await_t   *await;     /* NULL: no request listens */
    ngx_pool_t                  *pool;
} ngx_http_latchkey_waiter_t;


static ngx_chain_t *ngx_http_latchkey_await_command(
    ngx_http_latchkey_waiter_t *waiter, ngx_str_t *words, ngx_msec_t ms);
static ngx_http_latchkey_link_t *ngx_http_latchkey_await_link(
    ngx_http_latchkey_servers_t *servers);
static void ngx_http_latchkey_await_reply(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_uint_t ngx_http_latchkey_await_push(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply);
static ngx_http_latchkey_waiter_t *ngx_http_latchkey_await_find(
    ngx_http_latchkey_waiters_t *waiters, const struct lk_reply *id);
static void ngx_http_latchkey_await_lost(ngx_http_latchkey_link_t *link);
static void ngx_http_latchkey_await_notify(ngx_http_latchkey_waiter_t *waiter,
    ngx_int_t rc);
static void ngx_http_latchkey_await_free(
    ngx_http_latchkey_waiter_t *waiter);


/*
 * A wait whose connection is lost is not repeated: the operation may have been
 * settled in the meantime, so the request has to claim again in any case.
 */

static const ngx_http_latchkey_link_kind_t  ngx_http_latchkey_link_awaits = {
    NGX_LOG_INFO,
    0,
    ngx_http_latchkey_await_push,
    ngx_http_latchkey_await_lost
};


/* The waiter has a pool of its own: its call may outlive the request. */

ngx_int_t
ngx_http_latchkey_await(ngx_http_latchkey_servers_t *servers,
    ngx_http_latchkey_await_t *await, const ngx_str_t *tenant,
    const ngx_str_t *scope, const ngx_str_t *key, ngx_msec_t ms)
{
    ngx_str_t                     words[6];
    ngx_pool_t                   *pool;
    ngx_http_latchkey_link_t     *link;
    ngx_http_latchkey_waiter_t   *waiter;
    ngx_http_latchkey_waiters_t  *waiters;

    await->waiter = NULL;

    link = ngx_http_latchkey_await_link(servers);
    if (link == NULL) {
        return NGX_DECLINED;
    }

    pool = ngx_create_pool(1024, link->log);
    if (pool == NULL) {
        return NGX_DECLINED;
    }

    waiter = ngx_pcalloc(pool, sizeof(ngx_http_latchkey_waiter_t));
    if (waiter == NULL) {
        goto declined;
    }

    waiters = link->data;

    waiter->node.key = ++waiters->last;
    waiter->link = link;
    waiter->await = await;
    waiter->pool = pool;

    words[2] = *tenant;
    words[3] = *scope;
    words[4] = *key;

    waiter->call.out = ngx_http_latchkey_await_command(waiter, words, ms);
    if (waiter->call.out == NULL) {
        goto declined;
    }

    waiter->call.handler = ngx_http_latchkey_await_reply;
    waiter->call.data = waiter;
    waiter->call.deadline = ngx_current_msec + NGX_HTTP_LATCHKEY_AWAIT_REPLY;

    if (ngx_http_latchkey_link_queue(link, &waiter->call) != NGX_OK) {
        goto declined;
    }

    /*
     * a worker need not wait for this call: the waiting request keeps it alive
     */
    waiter->call.timer.cancelable = 1;

    ngx_rbtree_insert(&waiters->tree, &waiter->node);

    await->waiter = waiter;

    return NGX_OK;

declined:

    ngx_destroy_pool(pool);

    return NGX_DECLINED;
}


/* words[2] to words[4] are already set */

static ngx_chain_t *
ngx_http_latchkey_await_command(ngx_http_latchkey_waiter_t *waiter,
    ngx_str_t *words, ngx_msec_t ms)
{
    u_char  id[NGX_INT_T_LEN], time[NGX_INT_T_LEN];

    ms = ngx_max(1, ngx_min(ms, NGX_HTTP_LATCHKEY_AWAIT_MAX));

    ngx_str_set(&words[0], "AWAIT");
    words[1].data = id;
    words[1].len = ngx_sprintf(id, "%ui", waiter->node.key) - id;
    words[5].data = time;
    words[5].len = ngx_sprintf(time, "%M", ms) - time;

    return ngx_http_latchkey_command(waiter->pool, words, 6, NULL, 0);
}


/* The request does not listen any more; may be called again. */

void
ngx_http_latchkey_await_cancel(ngx_http_latchkey_await_t *await)
{
    if (await->waiter) {
        ngx_http_latchkey_await_free(await->waiter);
    }
}


static ngx_http_latchkey_link_t *
ngx_http_latchkey_await_link(ngx_http_latchkey_servers_t *servers)
{
    ngx_http_latchkey_link_t     *link;
    ngx_http_latchkey_waiters_t  *waiters;

    if (servers->await) {
        return servers->await;
    }

    link = ngx_http_latchkey_link_create(servers,
                                         &ngx_http_latchkey_link_awaits);
    if (link == NULL) {
        return NULL;
    }

    waiters = ngx_pcalloc(link->pool, sizeof(ngx_http_latchkey_waiters_t));
    if (waiters == NULL) {
        ngx_destroy_pool(link->pool);
        return NULL;
    }

    ngx_rbtree_init(&waiters->tree, &waiters->sentinel,
                    ngx_rbtree_insert_value);
    ngx_queue_init(&waiters->queued);

    link->data = waiters;
    servers->await = link;

    return link;
}


/* the reply to AWAIT: QUEUED, or an error.  NULL: the connection broke */

static void
ngx_http_latchkey_await_reply(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_http_latchkey_waiter_t   *waiter;
    ngx_http_latchkey_waiters_t  *waiters;

    waiter = call->data;

    if (waiter->await == NULL) {
        ngx_destroy_pool(waiter->pool);
        return;
    }

    if (reply && reply->type == LK_REPLY_TEXT) {
        waiters = waiter->link->data;
        ngx_queue_insert_tail(&waiters->queued, &waiter->queue);
        return;
    }

    if (reply && reply->type == LK_REPLY_ERROR) {
        ngx_log_error(NGX_LOG_INFO, waiter->link->log, 0,
                      "idempotency: AWAIT was refused: %s",
                      ngx_http_latchkey_error_text(reply->text));
    }

    ngx_http_latchkey_await_notify(waiter, NGX_ERROR);
}


/* a reply to AWAIT is never an array, and a message always is */

static ngx_uint_t
ngx_http_latchkey_await_push(ngx_http_latchkey_link_t *link,
    const struct lk_reply *reply)
{
    ngx_http_latchkey_waiter_t  *waiter;

    if (reply->type != LK_REPLY_ARRAY) {
        return 0;
    }

    if (reply->count == 3
        && latchkey_slice_equal(reply->elements[0].text, LK_SLICE("message"))
        && latchkey_slice_equal(reply->elements[1].text, LK_SLICE("settled")))
    {
        waiter = ngx_http_latchkey_await_find(link->data,
                                              &reply->elements[2]);
        if (waiter) {
            ngx_http_latchkey_await_notify(waiter, NGX_OK);
        }
    }

    return 1;
}


static ngx_http_latchkey_waiter_t *
ngx_http_latchkey_await_find(ngx_http_latchkey_waiters_t *waiters,
    const struct lk_reply *id)
{
    ngx_int_t           n;
    ngx_rbtree_key_t    key;
    ngx_rbtree_node_t  *node;

    n = ngx_atoi((u_char *) id->text.data, id->text.len);
    if (n == NGX_ERROR) {
        return NULL;
    }

    key = (ngx_rbtree_key_t) n;
    node = waiters->tree.root;

    while (node != &waiters->sentinel) {

        if (key == node->key) {

            /* the node is the first member of a waiter */

            return (ngx_http_latchkey_waiter_t *) node;
        }

        node = (key < node->key) ? node->left : node->right;
    }

    return NULL;
}


/*
 * the link fails calls that were sent; here are the waiters whose call has its
 * reply, or is still waiting
 */

static void
ngx_http_latchkey_await_lost(ngx_http_latchkey_link_t *link)
{
    ngx_queue_t                  *q;
    ngx_http_latchkey_waiters_t  *waiters;

    waiters = link->data;

    while (!ngx_queue_empty(&waiters->queued)) {
        q = ngx_queue_head(&waiters->queued);

        ngx_http_latchkey_await_notify(
                     ngx_queue_data(q, ngx_http_latchkey_waiter_t, queue),
                     NGX_ERROR);
    }
}


static void
ngx_http_latchkey_await_notify(ngx_http_latchkey_waiter_t *waiter,
    ngx_int_t rc)
{
    ngx_http_latchkey_await_t  *await;

    await = waiter->await;

    ngx_http_latchkey_await_free(waiter);

    await->handler(await, rc);
}


static void
ngx_http_latchkey_await_free(ngx_http_latchkey_waiter_t *waiter)
{
    ngx_http_latchkey_waiters_t  *waiters;

    waiters = waiter->link->data;

    ngx_rbtree_delete(&waiters->tree, &waiter->node);

    waiter->await->waiter = NULL;
    waiter->await = NULL;

    if (waiter->call.busy) {

        /* its reply is still due, and the call must not move */

        return;
    }

    if (waiter->queue.next) {
        ngx_queue_remove(&waiter->queue);
    }

    ngx_destroy_pool(waiter->pool);
}
