
/*
 * The claim of an operation: by its request, for later, or by the courier's
 * token, and what it means if no answer comes.
 */


#include "ngx_http_latchkey_op.h"


/* how the daemon begins to say that a request is more than it takes */
#define NGX_HTTP_LATCHKEY_TOO_LARGE  "ERR TOO LARGE"


static ngx_int_t ngx_http_latchkey_op_send_order(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_refused(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_take(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer);


ngx_int_t
ngx_http_latchkey_op_claim(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    ngx_int_t  rc;

    op->handler = handler;
    op->state = NGX_HTTP_LATCHKEY_OP_CLAIMING;

    /* who waits claims again and again, and always the same */

    rc = op->call.out ? ngx_http_latchkey_op_send_again(op, &op->call)
                      : ngx_http_latchkey_op_send_claim(op, 0);

    if (rc != NGX_OK) {
        op->state = NGX_HTTP_LATCHKEY_OP_IDLE;
    }

    return rc;
}


ngx_int_t
ngx_http_latchkey_op_ask(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    /*
     * Another owner than before: whoever asks after STALE was overtaken and
     * must not be told NEW for a claim that is no longer his.
     */

    ngx_memset(op->owner, '0', NGX_HTTP_LATCHKEY_OWNER_LEN);

    op->no_new = 1;
    op->call.out = NULL;

    return ngx_http_latchkey_op_claim(op, handler);
}


ngx_int_t
ngx_http_latchkey_op_send_claim(ngx_http_latchkey_op_t *op,
    ngx_uint_t patient)
{
    ngx_http_latchkey_words_t  w;

    if (op->courier) {
        return ngx_http_latchkey_op_send_extend(op, &op->call,
                                                ngx_http_latchkey_op_checked,
                                                patient);
    }

    if (op->order) {
        return ngx_http_latchkey_op_send_order(op);
    }

    ngx_http_latchkey_op_words(&w, op, "CLAIM");
    ngx_http_latchkey_op_word(&w, op->fingerprint, LK_FINGERPRINT_TEXT);
    ngx_http_latchkey_op_word(&w, "OWNER", 5);
    ngx_http_latchkey_op_word(&w, op->owner, NGX_HTTP_LATCHKEY_OWNER_LEN);
    ngx_http_latchkey_op_word(&w, "TTL", 3);
    ngx_http_latchkey_op_number(&w, op->conf->ttl);
    ngx_http_latchkey_op_word(&w, "LOCK", 4);
    ngx_http_latchkey_op_number(&w, op->conf->lock);

    if (op->no_new) {
        ngx_http_latchkey_op_word(&w, "NONEW", 5);

    } else if (op->conf->reexecute) {
        ngx_http_latchkey_op_word(&w, "REEXECUTE", 9);
    }

    return ngx_http_latchkey_op_send(op, &op->call, &w,
                                     ngx_http_latchkey_op_claimed, patient);
}


static ngx_int_t
ngx_http_latchkey_op_send_order(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_words_t   w;
    ngx_http_latchkey_order_t  *order;

    order = op->order;

    ngx_http_latchkey_op_words(&w, op, "ACCEPT");
    ngx_http_latchkey_op_word(&w, op->fingerprint, LK_FINGERPRINT_TEXT);
    ngx_http_latchkey_op_word(&w, order->method.data, order->method.len);
    ngx_http_latchkey_op_word(&w, order->path.data, order->path.len);
    ngx_http_latchkey_op_word(&w, order->headers.data, order->headers.len);
    ngx_http_latchkey_op_word(&w, order->body.data, order->body.len);
    ngx_http_latchkey_op_word(&w, "TTL", 3);
    ngx_http_latchkey_op_number(&w, op->conf->ttl);

    if (op->conf->reexecute) {
        ngx_http_latchkey_op_word(&w, "REEXECUTE", 9);
    }

    return ngx_http_latchkey_op_send(op, &op->call, &w,
                                     ngx_http_latchkey_op_claimed, 0);
}


static void
ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &answer);

    op->lost |= call->repeated;

    if (status == LK_OK && answer.verdict == LK_VERDICT_UNCERTAIN
        && call->repeated && !op->no_new && op->order == NULL)
    {
        /* it may be our own, lapsed while the daemon was away */

        ngx_http_latchkey_op_unclaimed(op, 0);
        return;
    }

    if (status == LK_OK) {
        ngx_http_latchkey_op_take(op, &answer);
        return;
    }

    /* late: an earlier call was sent, whatever became of this one */

    if (reply == NULL ? (call->sent || op->late) : status == LK_UNAVAILABLE) {
        ngx_http_latchkey_op_unclaimed(op,
                                       ngx_http_latchkey_op_pause(op, reply));
        return;
    }

    /* refused, or never sent: nothing can have been claimed */

    if (reply) {
        ngx_http_latchkey_op_refused(op, reply);
    }

    op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    ngx_http_latchkey_op_tell(op, NULL);
}


static void
ngx_http_latchkey_op_refused(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply)
{
    const char  *error;

    error = ngx_http_latchkey_error_text(reply->text);

    if (op->order == NULL) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: latchkeyd refused a claim of location "
                      "\"%V\": %s", &op->conf->location_name, error);
        return;
    }

    if (reply->text.len >= sizeof(NGX_HTTP_LATCHKEY_TOO_LARGE) - 1
        && ngx_strncmp(reply->text.data, NGX_HTTP_LATCHKEY_TOO_LARGE,
                       sizeof(NGX_HTTP_LATCHKEY_TOO_LARGE) - 1)
           == 0)
    {
        op->too_large = 1;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency_async: latchkeyd does not accept a request of "
                  "location \"%V\" for later: %s; see to that, or set "
                  "\"idempotency_async off\"", &op->conf->location_name,
                  error);
}


/*
 * The courier's token: the app is called only if it is the current one.  The
 * store takes it from now on that the app may have heard of the request; if we
 * do not call it, be it because no answer came, we have to say so.
 */

static void
ngx_http_latchkey_op_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &answer);

    if (reply && status != LK_OK && status != LK_UNAVAILABLE) {
        ngx_http_latchkey_op_refused(op, reply);
    }

    op->call.out = NULL;

    if (reply ? status == LK_UNAVAILABLE : call->sent) {
        op->state = NGX_HTTP_LATCHKEY_OP_SETTLING;
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

        if (op->ctx == NULL) {
            ngx_http_latchkey_op_again(op,
                                       ngx_http_latchkey_op_pause(op, reply));
            return;
        }

    } else if (status == LK_OK && answer.verdict == LK_VERDICT_DONE) {
        op->state = NGX_HTTP_LATCHKEY_OP_HELD;

        if (op->ctx == NULL) {
            ngx_http_latchkey_op_abandon(op);
            return;
        }

        ngx_http_latchkey_op_hold(op);

    } else {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    }

    ngx_http_latchkey_op_tell(op, status == LK_OK ? &answer : NULL);
}


static void
ngx_http_latchkey_op_take(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer)
{
    if ((answer->verdict == LK_VERDICT_REFUSED
         || answer->verdict == LK_VERDICT_INFLIGHT)
        && op->late && op->asked < NGX_HTTP_LATCHKEY_OP_ASK_MAX)
    {
        /*
         * A daemon may have the lost claim before it yet, on a connection that
         * we have closed, and take it when nobody else holds the operation.
         */

        ngx_http_latchkey_op_again(op, NGX_HTTP_LATCHKEY_OP_ASK << op->asked++);
        return;
    }

    op->elsewhere = (answer->verdict == LK_VERDICT_INFLIGHT
                     && !op->no_new && op->order == NULL);

    if (answer->verdict != LK_VERDICT_NEW) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_tell(op, answer);
        return;
    }

    op->state = NGX_HTTP_LATCHKEY_OP_HELD;
    op->token = answer->token;
    op->attempt = answer->attempt;
    op->claimed_ms = answer->lock_until_ms - op->conf->lock;
    op->claimed_at = ngx_current_msec;

    ngx_cpystrn(op->reference, (u_char *) answer->reference.data,
                ngx_min(answer->reference.len, LK_REFERENCE_TEXT) + 1);

    if (op->ctx == NULL) {
        ngx_http_latchkey_op_abandon(op);
        return;
    }

    ngx_http_latchkey_op_hold(op);

    ngx_http_latchkey_op_tell(op, answer);
}


/*
 * The claim went out on a connection that was lost, and again on another one.
 * A daemon that has the first yet takes it for a new one once it is released,
 * here or by the one that holds it.  What ran and is in doubt is never asked
 * for: it would be found as our own, and released.
 */

void
ngx_http_latchkey_op_ask_late(ngx_http_latchkey_op_t *op)
{
    op->lost = 0;
    op->elsewhere = 0;
    op->token = 0;
    op->contacted = 0;
    op->no_new = 1;
    op->asked = 1;
    op->call.out = NULL;
    op->state = NGX_HTTP_LATCHKEY_OP_CLAIMING;

    ngx_http_latchkey_op_again(op, NGX_HTTP_LATCHKEY_OP_ASK);
}


void
ngx_http_latchkey_op_unclaimed(ngx_http_latchkey_op_t *op, ngx_msec_t pause)
{
    if (op->ctx) {
        ngx_http_latchkey_op_tell(op, NULL);
        return;
    }

    if (op->token || op->order) {

        /*
         * It only asked, after STALE, or gave it away, and nobody wants to
         * know any more.
         */

        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    ngx_http_latchkey_op_again(op, pause);
}
