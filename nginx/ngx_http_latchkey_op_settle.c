
/*
 * The settlement of an operation: COMPLETE, RELEASE or DOUBT; and if the store
 * is not reached in time, the attempts after it, within idempotency_late.
 *
 * The bytes of a settlement are made once and never changed, so each attempt
 * sends the same and needs no more memory.  All three commands may be repeated:
 * if the reply to the first one was lost, COMPLETE gets KEPT with its own
 * response, RELEASE gets STALE, which counts as success, and DOUBT gets OK.
 *
 *   reply to the settlement     op with a request        op without one
 *   --------------------------  -----------------------  ------------------
 *   OK, KEPT, STALE             the handler gets it      freed
 *   none in time, UNAVAILABLE   the handler gets NULL;   tried again, with
 *                               detach tries again       pauses
 *   an error                    COMPLETE without its body, as omitted; then
 *                               as above
 *
 * ngx_http_latchkey_late_size is the memory of all ops of this worker that are
 * tried again.  Beyond idempotency_late's size a body is given up (omitted),
 * then the op itself: its lock lapses, and it becomes uncertain.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_complete(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_uint_t ngx_http_latchkey_op_is_too_long(
    ngx_http_latchkey_op_t *op, const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_op_count_late(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_size(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_room(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_give_up(ngx_http_latchkey_op_t *op,
    const char *why);
static void ngx_http_latchkey_op_retry_handler(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_op_resend(ngx_http_latchkey_op_t *op);


/* of this worker: memory of detached ops that are not settled yet */

static size_t  ngx_http_latchkey_late_size;


/*
 * HELD becomes SETTLING: from here on the lock is not extended, the settlement
 * is repeated instead.  handler NULL: no one waits.
 */

ngx_int_t
ngx_http_latchkey_op_settle(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    if (op->state != NGX_HTTP_LATCHKEY_OP_HELD || op->token == 0) {

        /* without a token it could complete the claim of another holder */

        ngx_log_error(NGX_LOG_ALERT, ngx_cycle->log, 0,
                      "idempotency: operation %s is not held (state %ui) and "
                      "cannot be settled", op->reference,
                      (ngx_uint_t) op->state);
        return NGX_ERROR;
    }

    op->handler = handler;
    op->state = NGX_HTTP_LATCHKEY_OP_SETTLING;

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    return ngx_http_latchkey_op_send_settle(op);
}


ngx_uint_t
ngx_http_latchkey_op_is_left(ngx_http_latchkey_op_t *op)
{
    return op->courier && op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT
           && op->conf->reexecute;
}


static ngx_int_t
ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_words_t  w;

    if (ngx_http_latchkey_op_is_left(op)) {

        /*
         * EXTEND shows whether the app completed it itself; else the courier
         * goes on
         */

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
    ngx_http_latchkey_op_word(w, op->response_headers.data,
                              keep ? op->response_headers.len : 0);
    ngx_http_latchkey_op_chain(w, keep ? op->body : NULL,
                               keep ? op->body_size : 0);
    ngx_http_latchkey_op_word(w, "TTL", 3);
    ngx_http_latchkey_op_number(w, op->ttl);

    if (!keep) {
        ngx_http_latchkey_op_word(w, "OMIT", 4);
        ngx_http_latchkey_op_word(w, op->reason.data, op->reason.len);
    }
}


/* The reply to a settlement; see the table at the top of this file. */

static void
ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision       decision;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &decision);

    if (status == LK_OK) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_notify(op, &decision);
        return;
    }

    if (reply && status != LK_UNAVAILABLE) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: latchkeyd refused the response of "
                      "operation %s of location \"%V\": %s", op->reference,
                      &op->conf->location_name,
                      ngx_http_latchkey_error_text(reply->text));

        if (op->ttl != op->conf->ttl
            && (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT
                || ngx_http_latchkey_op_is_too_long(op, reply)))
        {

            /* it may exceed store.max_ttl; the TTL of the claim did not */

            op->ttl = op->conf->ttl;

            ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                          "idempotency: the app's \"Latchkey-Keep\" for "
                          "operation %s may be more than store.max_ttl of "
                          "latchkeyd; \"idempotency_ttl\" applies instead",
                          op->reference);

            if (ngx_http_latchkey_op_send_settle(op) == NGX_OK) {
                return;
            }
        }

        if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP) {

            /*
             * it exceeds limits.command_bytes, for example: never run it again
             */

            op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
            ngx_str_set(&op->reason, "refused by the daemon");

            if (ngx_http_latchkey_op_send_settle(op) == NGX_OK) {
                return;
            }
        }
    }

    if (op->ctx) {
        ngx_http_latchkey_op_notify(op, NULL);
        return;
    }

    ngx_http_latchkey_op_try_again(op, ngx_http_latchkey_op_pause(op, reply));
}


/*
 * Is the TTL refused?  If the response is, the response is omitted and the TTL
 * stays: without it the operation would run again when it expires.
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


void
ngx_http_latchkey_op_try_again(ngx_http_latchkey_op_t *op, ngx_msec_t pause)
{
    if (ngx_http_latchkey_op_is_left(op)) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    if (!op->late && ngx_http_latchkey_op_count_late(op) != NGX_OK) {
        return;
    }

    if ((ngx_msec_int_t) (op->give_up - ngx_current_msec) <= 0
        || ngx_http_latchkey_link_is_leaving(op->conf->servers))
    {
        ngx_http_latchkey_op_give_up(op, "gave up on");
        return;
    }

    if (pause == 0 && ngx_http_latchkey_op_resend(op) == NGX_OK) {
        return;
    }

    op->timer.handler = ngx_http_latchkey_op_retry_handler;

    /*
     * a worker that shuts down asks once for a lost claim, and does not wait
     */

    op->timer.cancelable = (op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING
                            && op->asked > 1);

    if (!op->timer.timer_set) {
        ngx_add_timer(&op->timer,
                      ngx_max(pause, NGX_HTTP_LATCHKEY_OP_PAUSE_MIN));
    }
}


/*
 * The op is late from now on: it has a time limit, and its memory counts.
 * NGX_ERROR: there is no room for it, and it has ended.
 */

static ngx_int_t
ngx_http_latchkey_op_count_late(ngx_http_latchkey_op_t *op)
{
    ngx_chain_t  *cl;

    op->late = 1;
    op->give_up = ngx_current_msec + op->conf->late_time;
    op->late_size = ngx_http_latchkey_op_size(op);

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
        && op->state == NGX_HTTP_LATCHKEY_OP_SETTLING
        && op->late_size > ngx_http_latchkey_op_room(op))
    {
        /* that it ran is more important than its response */

        op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        ngx_str_set(&op->reason, "the gateway ran out of memory for it");

        for (cl = op->body; cl; cl = cl->next) {
            (void) ngx_pfree(op->pool, cl->buf->start);
        }

        op->body = NULL;
        op->body_last = NULL;
        op->body_size = 0;

        op->call.out = NULL;
        op->late_size = ngx_http_latchkey_op_size(op);

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency_late: no memory is left to hold the "
                      "response of operation %s until the store is back; it "
                      "will be stored as omitted", op->reference);
    }

    if (op->late_size > ngx_http_latchkey_op_room(op)) {
        op->late_size = 0;
        ngx_http_latchkey_op_give_up(op, "no memory is left to settle");
        return NGX_ERROR;
    }

    ngx_http_latchkey_late_size += op->late_size;

    return NGX_OK;
}


/* memory of an op, roughly: itself, its commands, the response */

static size_t
ngx_http_latchkey_op_size(ngx_http_latchkey_op_t *op)
{
    return 2 * NGX_HTTP_LATCHKEY_POOL_SIZE + op->body_size
           + op->response_headers.len;
}


static size_t
ngx_http_latchkey_op_room(ngx_http_latchkey_op_t *op)
{
    return op->conf->late_size > ngx_http_latchkey_late_size
           ? op->conf->late_size - ngx_http_latchkey_late_size : 0;
}


/*
 * The operation stays claimed until its lock lapses; then the store makes it
 * uncertain, which is the truth.
 */

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
ngx_http_latchkey_op_retry_handler(ngx_event_t *ev)
{
    ngx_http_latchkey_op_try_again(ev->data, 0);
}


/* A claim is repeated with NONEW: without a request nothing may start. */

static ngx_int_t
ngx_http_latchkey_op_resend(ngx_http_latchkey_op_t *op)
{
    if (op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING && !op->no_new) {
        op->no_new = 1;
        op->call.out = NULL;
    }

    if (op->call.out) {

        /* the same bytes each time: another attempt needs no more memory */

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
ngx_http_latchkey_op_uncount_late(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_late_size -= op->late_size;
}
