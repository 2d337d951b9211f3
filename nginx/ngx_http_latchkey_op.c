
/*
 * One operation as its holder sees it: claim, signs of life, settlement.
 *
 * An op lives in a pool of its own, because its end must not depend on the
 * request that began it: a client may leave, but what was claimed is settled
 * all the same.  While op->ctx is set, the request decides what comes next.
 * After ngx_http_latchkey_op_detach() the op ends by itself:
 *
 *   detached while              what becomes of it
 *   --------------------------  ------------------------------------------
 *   idle, done                  nothing
 *   claim on its way            NEW is released: the app was not called
 *   claim without an answer     asked again, NONEW; NEW is released
 *   held                        released if the app cannot have seen the
 *                               request, else doubted
 *   settlement on its way       goes on
 *   settlement not stored       tried again for idempotency_late
 *
 * An op with an order gives the request away instead of claiming it.  Whether
 * it was taken or not, there is nothing to be settled then.  An op of the
 * courier's has its token from there.  What has not happened is returned by
 * that token, whether or not the courier is there to hear of it; what is in
 * doubt and may run again is left to the courier, or to the end of its lease.
 *
 * An op is freed when it is detached and none of its calls is on its way:
 * calls cannot be taken back.
 */


#include "ngx_http_latchkey_op.h"

#include <openssl/rand.h>


static ngx_int_t ngx_http_latchkey_op_owner(u_char *owner);


static ngx_queue_t  ngx_http_latchkey_ops;


ngx_http_latchkey_op_t *
ngx_http_latchkey_op_create(ngx_http_latchkey_ctx_t *ctx, ngx_str_t *tenant,
    ngx_str_t *scope, ngx_str_t *key)
{
    ngx_pool_t              *pool;
    ngx_http_latchkey_op_t  *op;

    pool = ngx_create_pool(NGX_HTTP_LATCHKEY_POOL_SIZE, ngx_cycle->log);
    if (pool == NULL) {
        return NULL;
    }

    op = ngx_pcalloc(pool, sizeof(ngx_http_latchkey_op_t));
    if (op == NULL) {
        goto failed;
    }

    op->pool = pool;
    op->conf = ctx->conf;
    op->ctx = ctx;
    op->ttl = ctx->conf->ttl;

    op->tenant.len = tenant->len;
    op->tenant.data = ngx_pstrdup(pool, tenant);
    op->scope.len = scope->len;
    op->scope.data = ngx_pstrdup(pool, scope);
    op->key.len = key->len;
    op->key.data = ngx_pstrdup(pool, key);

    if (op->tenant.data == NULL || op->scope.data == NULL
        || op->key.data == NULL)
    {
        goto failed;
    }

    if (ngx_http_latchkey_op_owner(op->owner) != NGX_OK) {
        goto failed;
    }

    op->timer.data = op;
    op->timer.log = ngx_cycle->log;
    op->pause = NGX_HTTP_LATCHKEY_OP_PAUSE_MIN;

    if (ngx_http_latchkey_ops.next == NULL) {
        ngx_queue_init(&ngx_http_latchkey_ops);
    }

    ngx_queue_insert_tail(&ngx_http_latchkey_ops, &op->queue);

    return op;

failed:

    ngx_destroy_pool(pool);

    return NULL;
}


/*
 * Nobody else's: sixteen bytes that this process drew once, and a count.
 * Drawing them for each op would cost more than all the rest of it.
 */

static ngx_int_t
ngx_http_latchkey_op_owner(u_char *owner)
{
    u_char           nonce[NGX_HTTP_LATCHKEY_OWNER_LEN / 2];
    uint64_t         n;
    static u_char    drawn[NGX_HTTP_LATCHKEY_OWNER_LEN / 2];
    static uint64_t  count;

    if (count == 0 && RAND_bytes(drawn, sizeof(drawn)) != 1) {
        ngx_log_error(NGX_LOG_CRIT, ngx_cycle->log, 0,
                      "idempotency: there is no randomness for an owner");
        return NGX_ERROR;
    }

    ngx_memcpy(nonce, drawn, sizeof(nonce));
    ngx_memcpy(&n, nonce, sizeof(n));
    n += ++count;
    ngx_memcpy(nonce, &n, sizeof(n));

    ngx_hex_dump(owner, nonce, sizeof(nonce));

    return NGX_OK;
}


void
ngx_http_latchkey_op_tell(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer)
{
    ngx_http_latchkey_op_pt  handler;

    handler = op->handler;

    if (op->ctx && handler) {
        op->handler = NULL;
        handler(op->ctx, answer);
        return;
    }

    ngx_http_latchkey_op_end(op);
}


void
ngx_http_latchkey_op_detach(ngx_http_latchkey_op_t *op)
{
    op->ctx = NULL;
    op->handler = NULL;

    switch (op->state) {

    case NGX_HTTP_LATCHKEY_OP_CLAIMING:
        if (!op->call.busy) {
            ngx_http_latchkey_op_unclaimed(op, 0);
        }

        break;

    case NGX_HTTP_LATCHKEY_OP_HELD:
        ngx_http_latchkey_op_abandon(op);
        break;

    case NGX_HTTP_LATCHKEY_OP_SETTLING:
        if (!op->call.busy) {
            ngx_http_latchkey_op_again(op, 0);
        }

        break;

    default: /* NGX_HTTP_LATCHKEY_OP_IDLE, NGX_HTTP_LATCHKEY_OP_DONE */
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        break;
    }
}


void
ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op)
{
    if (op->contacted) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;

        if (ngx_terminate) {
            ngx_str_set(&op->reason, "nginx was terminated while the app "
                                     "worked");

        } else {
            ngx_str_set(&op->reason, "the gateway lost the answer");
        }

    } else {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
    }

    if (ngx_http_latchkey_op_is_given_back(op)) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    if (ngx_http_latchkey_op_settle(op, NULL) != NGX_OK) {
        ngx_http_latchkey_op_again(op, NGX_HTTP_LATCHKEY_OP_PAUSE_MIN);
    }
}


void
ngx_http_latchkey_op_end(ngx_http_latchkey_op_t *op)
{
    if (op->ctx || op->state != NGX_HTTP_LATCHKEY_OP_DONE
        || op->call.busy || op->extend_call.busy)
    {
        return;
    }

    if (op->lost && !op->courier
        && (op->elsewhere
            || (op->token && op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE))
        && !ngx_http_latchkey_link_leaving(op->conf->servers))
    {
        ngx_http_latchkey_op_ask_late(op);
        return;
    }

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    ngx_http_latchkey_op_late_end(op);

    ngx_queue_remove(&op->queue);
    ngx_destroy_pool(op->pool);
}


void
ngx_http_latchkey_op_exit(void)
{
    ngx_queue_t             *q, *next;
    ngx_http_latchkey_op_t  *op;

    if (ngx_http_latchkey_ops.next == NULL) {
        return;
    }

    for (q = ngx_queue_head(&ngx_http_latchkey_ops);
         q != ngx_queue_sentinel(&ngx_http_latchkey_ops);
         q = next)
    {
        next = ngx_queue_next(q);
        op = ngx_queue_data(q, ngx_http_latchkey_op_t, queue);

        if (op->ctx) {
            ngx_http_latchkey_let_go(op->ctx);
        }
    }
}
