
/*
 * The settlement of an operation: complete, release or doubt.  What the
 * courier brought and has not happened is returned: it waits again.
 */


#include "ngx_http_latchkey_op.h"


static void ngx_http_latchkey_op_complete(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_uint_t ngx_http_latchkey_op_is_too_long(
    ngx_http_latchkey_op_t *op, const struct lk_reply *reply);


ngx_int_t
ngx_http_latchkey_op_settle(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    op->handler = handler;
    op->state = NGX_HTTP_LATCHKEY_OP_SETTLING;

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    return ngx_http_latchkey_op_send_settle(op);
}


ngx_uint_t
ngx_http_latchkey_op_is_given_back(ngx_http_latchkey_op_t *op)
{
    return op->courier && op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT
           && op->conf->reexecute;
}


ngx_int_t
ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_words_t  w;

    if (ngx_http_latchkey_op_is_given_back(op)) {

        /* has the app completed it itself?  else the courier goes on */

        return ngx_http_latchkey_op_send_extend(op, &op->call,
                                             ngx_http_latchkey_op_settled, 1);
    }

    switch (op->settle) {

    case NGX_HTTP_LATCHKEY_SETTLE_KEEP:
    case NGX_HTTP_LATCHKEY_SETTLE_OMIT:
        ngx_http_latchkey_op_complete(&w, op);
        break;

    case NGX_HTTP_LATCHKEY_SETTLE_RELEASE:
        ngx_http_latchkey_op_words(&w, op, op->courier ? "RETURN" : "RELEASE");
        ngx_http_latchkey_op_number(&w, op->token);

        if (op->courier && !op->contacted) {
            ngx_http_latchkey_op_word(&w, "UNSENT", 6);
        }

        break;

    default: /* NGX_HTTP_LATCHKEY_SETTLE_DOUBT */
        ngx_http_latchkey_op_words(&w, op, "DOUBT");
        ngx_http_latchkey_op_number(&w, op->token);
        ngx_http_latchkey_op_word(&w, op->reason.data, op->reason.len);
        break;
    }

    return ngx_http_latchkey_op_send(op, &op->call, &w,
                                     ngx_http_latchkey_op_settled, 1);
}


static void
ngx_http_latchkey_op_complete(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op)
{
    ngx_uint_t  keep;

    keep = (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP);

    ngx_http_latchkey_op_words(w, op, "COMPLETE");
    ngx_http_latchkey_op_number(w, op->token);
    ngx_http_latchkey_op_number(w, op->status);
    ngx_http_latchkey_op_word(w, op->answer_headers.data,
                              keep ? op->answer_headers.len : 0);
    ngx_http_latchkey_op_word(w, op->answer_body.data,
                              keep ? op->answer_body.len : 0);
    ngx_http_latchkey_op_word(w, "TTL", 3);
    ngx_http_latchkey_op_number(w, op->ttl);

    if (!keep) {
        ngx_http_latchkey_op_word(w, "OMIT", 4);
        ngx_http_latchkey_op_word(w, op->reason.data, op->reason.len);
    }
}


static void
ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &answer);

    if (status == LK_OK) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_tell(op, &answer);
        return;
    }

    if (reply && status != LK_UNAVAILABLE) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: latchkeyd refused the answer to "
                      "operation %s of location \"%V\": %s", op->reference,
                      &op->conf->location_name,
                      ngx_http_latchkey_error_text(reply->text));

        if (op->ttl != op->conf->ttl
            && (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT
                || ngx_http_latchkey_op_is_too_long(op, reply)))
        {

            /* it may be more than store.max_ttl; the claim's was not */

            op->ttl = op->conf->ttl;

            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "idempotency: the app's \"Latchkey-Keep\" for "
                          "operation %s may be more than store.max_ttl of "
                          "latchkeyd; \"idempotency_ttl\" counts instead",
                          op->reference);

            if (ngx_http_latchkey_op_send_settle(op) == NGX_OK) {
                return;
            }
        }

        if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP) {

            /* larger than its limits.command_bytes, say: never run again */

            op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
            ngx_str_set(&op->reason, "refused by the daemon");

            if (ngx_http_latchkey_op_send_settle(op) == NGX_OK) {
                return;
            }
        }
    }

    if (op->ctx) {
        ngx_http_latchkey_op_tell(op, NULL);
        return;
    }

    ngx_http_latchkey_op_again(op, ngx_http_latchkey_op_pause(op, reply));
}


/*
 * Is it the time that is refused?  If it is the answer, that goes, and the
 * time stays: without it the operation would run again when it is forgotten.
 */

static ngx_uint_t
ngx_http_latchkey_op_is_too_long(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply)
{
    static const char  too_long[] = "ERR COMPLETE: TTL ";

    return op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
           && reply->text.len >= sizeof(too_long) - 1
           && ngx_strncmp(reply->text.data, too_long, sizeof(too_long) - 1)
              == 0;
}
