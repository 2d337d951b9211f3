
/*
 * Signs of life: the lock of a held operation is extended at a third of it.
 */


#include "ngx_http_latchkey_op.h"


static void ngx_http_latchkey_op_extend(ngx_event_t *ev);
static void ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);


void
ngx_http_latchkey_op_hold(ngx_http_latchkey_op_t *op)
{
    op->timer.handler = ngx_http_latchkey_op_extend;
    ngx_add_timer(&op->timer, op->conf->lock / 3);
}


static void
ngx_http_latchkey_op_extend(ngx_event_t *ev)
{
    ngx_http_latchkey_op_t  *op;

    op = ev->data;

    ngx_add_timer(&op->timer, op->conf->lock / 3);

    if (op->extend_call.busy) {
        return;
    }

    if (op->extend_call.out) {

        /* the same bytes each time: a slow app costs no more memory */

        (void) ngx_http_latchkey_op_send_again(op, &op->extend_call);
        return;
    }

    (void) ngx_http_latchkey_op_send_extend(op, &op->extend_call,
                                            ngx_http_latchkey_op_extended, 1);
}


ngx_int_t
ngx_http_latchkey_op_send_extend(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_call_pt handler,
    ngx_uint_t patient)
{
    ngx_http_latchkey_words_t  w;

    ngx_http_latchkey_op_words(&w, op, "EXTEND");
    ngx_http_latchkey_op_number(&w, op->token);
    ngx_http_latchkey_op_number(&w, op->conf->lock);

    return ngx_http_latchkey_op_send(op, call, &w, handler, patient);
}


static void
ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    struct lk_decision         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;

    if (reply && op->state == NGX_HTTP_LATCHKEY_OP_HELD
        && latchkey_decision_read(reply, &answer) == LK_OK
        && answer.verdict != LK_VERDICT_DONE)
    {
        /* overtaken, or completed by the app: the settlement will tell */

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency: operation %s is no longer held here: %s",
                      op->reference, latchkey_verdict_word(answer.verdict));

        if (op->timer.timer_set) {
            ngx_del_timer(&op->timer);
        }
    }

    ngx_http_latchkey_op_end(op);
}
