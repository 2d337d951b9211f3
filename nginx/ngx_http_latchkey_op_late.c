
/*
 * Not settled, and nobody waits for it: the op keeps trying, within the bounds
 * of idempotency_late.
 */


#include "ngx_http_latchkey_op.h"


static ngx_int_t ngx_http_latchkey_op_late(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_size(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_room(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_give_up(ngx_http_latchkey_op_t *op,
    const char *why);
static void ngx_http_latchkey_op_retry(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_op_repeat(ngx_http_latchkey_op_t *op);


/* of this worker: memory of what is not settled yet and has no request */

static size_t  ngx_http_latchkey_late_size;


void
ngx_http_latchkey_op_again(ngx_http_latchkey_op_t *op, ngx_msec_t pause)
{
    if (ngx_http_latchkey_op_is_given_back(op)) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    if (!op->late && ngx_http_latchkey_op_late(op) != NGX_OK) {
        return;
    }

    if ((ngx_msec_int_t) (op->give_up - ngx_current_msec) <= 0
        || ngx_http_latchkey_link_leaving(op->conf->servers))
    {
        ngx_http_latchkey_op_give_up(op, "gave up on");
        return;
    }

    if (pause == 0 && ngx_http_latchkey_op_repeat(op) == NGX_OK) {
        return;
    }

    op->timer.handler = ngx_http_latchkey_op_retry;

    /* a worker that leaves asks once for a lost claim, and not for long */

    op->timer.cancelable = (op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING
                            && op->asked > 1);

    if (!op->timer.timer_set) {
        ngx_add_timer(&op->timer,
                      ngx_max(pause, NGX_HTTP_LATCHKEY_OP_PAUSE_MIN));
    }
}


static ngx_int_t
ngx_http_latchkey_op_late(ngx_http_latchkey_op_t *op)
{
    op->late = 1;
    op->give_up = ngx_current_msec + op->conf->late_time;
    op->late_size = ngx_http_latchkey_op_size(op);

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
        && op->state == NGX_HTTP_LATCHKEY_OP_SETTLING
        && op->late_size > ngx_http_latchkey_op_room(op))
    {
        /* that it ran is more than how it ended */

        op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        ngx_str_set(&op->reason, "the gateway ran out of memory for it");

        (void) ngx_pfree(op->pool, op->answer_body.data);
        ngx_str_null(&op->answer_body);

        op->call.out = NULL;
        op->late_size = ngx_http_latchkey_op_size(op);

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency_late: no memory is left to keep the "
                      "answer to operation %s until the store is back; it "
                      "will be stored as omitted", op->reference);
    }

    if (op->late_size > ngx_http_latchkey_op_room(op)) {
        op->late_size = 0;
        ngx_http_latchkey_op_give_up(op, "no memory is left to look after");
        return NGX_ERROR;
    }

    ngx_http_latchkey_late_size += op->late_size;

    return NGX_OK;
}


/* what an op takes, roughly: itself, its commands, the answer */

static size_t
ngx_http_latchkey_op_size(ngx_http_latchkey_op_t *op)
{
    return 2 * NGX_HTTP_LATCHKEY_POOL_SIZE + op->answer_body.len
           + op->answer_headers.len;
}


static size_t
ngx_http_latchkey_op_room(ngx_http_latchkey_op_t *op)
{
    return op->conf->late_size > ngx_http_latchkey_late_size
           ? op->conf->late_size - ngx_http_latchkey_late_size : 0;
}


static void
ngx_http_latchkey_op_give_up(ngx_http_latchkey_op_t *op, const char *why)
{
    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency_late: %s operation %s, which becomes "
                  "uncertain when its lock lapses", why,
                  op->reference[0] ? op->reference : (u_char *) "(unclaimed)");

    op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    ngx_http_latchkey_op_end(op);
}


static void
ngx_http_latchkey_op_retry(ngx_event_t *ev)
{
    ngx_http_latchkey_op_again(ev->data, 0);
}


static ngx_int_t
ngx_http_latchkey_op_repeat(ngx_http_latchkey_op_t *op)
{
    if (op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING && !op->no_new) {
        op->no_new = 1;
        op->call.out = NULL;
    }

    if (op->call.out) {

        /* the same bytes each time: trying again costs no more memory */

        op->call.patient = 1;
        op->call.first = 1;

        return ngx_http_latchkey_op_send_again(op, &op->call);
    }

    return op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING
           ? ngx_http_latchkey_op_send_claim(op, 1)
           : ngx_http_latchkey_op_send_settle(op);
}


ngx_msec_t
ngx_http_latchkey_op_pause(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply)
{
    if (reply == NULL && op->call.cut == 0) {
        return 0;
    }

    op->pause = ngx_min(op->pause * 2, NGX_HTTP_LATCHKEY_OP_PAUSE_MAX);

    return op->pause;
}


void
ngx_http_latchkey_op_late_end(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_late_size -= op->late_size;
}
