
/*
 * One operation as its holder sees it: claim, extensions of the lock.  The
 * settlement is in ngx_http_latchkey_op_settle.c.
 *
 * An op lives in a pool of its own, because it outlives the request that
 * started it: a client may leave, but a claim is settled in any case.  While
 * op->ctx is set, the request decides what comes next.
 *
 * Life of an op (op->state):
 *
 *   state     entered by                legal calls           holds a token
 *   --------  ------------------------  --------------------  -------------
 *   IDLE      op_create                 op_claim              no
 *   CLAIMING  op_claim, op_ask          (the reply decides)   perhaps
 *   HELD      NEW, or the courier's     op_settle             yes
 *             token is current
 *   SETTLING  op_settle                 (the reply decides)   yes
 *   DONE      any other verdict, a      op_ask after STALE    no
 *             reply to a settlement
 *
 * op_detach() is legal in every state, once.  Then the op ends by itself:
 *
 *   detached while              what happens
 *   --------------------------  ------------------------------------------
 *   IDLE, DONE                  nothing
 *   CLAIMING, call in the link  NEW is released: the app was not called
 *   CLAIMING, no reply          asked again, NONEW; NEW is released
 *   HELD                        RELEASE if the app cannot have seen the
 *                               request, else DOUBT
 *   SETTLING, call in the link  goes on
 *   SETTLING, not stored        tried again for idempotency_late
 *
 * op_end() frees the op, and nothing else does: when it is detached, DONE, and
 * none of its calls is in the link, because a call cannot be taken back.
 *
 * An op with op->accept sends ACCEPT instead of CLAIM and has nothing to
 * settle.  An op of the courier has its token from there.  If the app did not
 * run, the token is returned (RETURN), whether or not the courier is still
 * connected; if the outcome is uncertain and may run again, the courier
 * decides, or the end of its lease.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/rand.h>


/* how the daemon begins to say that a request is more than it takes */
#define NGX_HTTP_LATCHKEY_TOO_LARGE  "ERR TOO LARGE"


static ngx_int_t ngx_http_latchkey_op_owner(u_char *owner);
static ngx_int_t ngx_http_latchkey_op_send_order(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_refused(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_take(ngx_http_latchkey_op_t *op,
    const struct lk_decision *answer);
static void ngx_http_latchkey_op_extend(ngx_event_t *ev);
static void ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_unclaimed(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
static void ngx_http_latchkey_op_ask_late(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_hold(ngx_http_latchkey_op_t *op);


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


/* held, and nobody is there to answer */

static void
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


void
ngx_http_latchkey_op_words(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op, const char *verb)
{
    w->n = 0;
    w->nnumbers = 0;
    w->body = NULL;
    w->body_word = 0;

    ngx_http_latchkey_op_word(w, verb, ngx_strlen(verb));
    ngx_http_latchkey_op_word(w, op->tenant.data, op->tenant.len);
    ngx_http_latchkey_op_word(w, op->scope.data, op->scope.len);
    ngx_http_latchkey_op_word(w, op->key.data, op->key.len);
}


void
ngx_http_latchkey_op_word(ngx_http_latchkey_words_t *w, const void *data,
    size_t len)
{
    w->words[w->n].data = (u_char *) data;
    w->words[w->n].len = len;
    w->n++;
}


void
ngx_http_latchkey_op_number(ngx_http_latchkey_words_t *w, uint64_t number)
{
    u_char  *p;

    p = w->numbers[w->nnumbers++];
    ngx_http_latchkey_op_word(w, p, ngx_sprintf(p, "%uL", number) - p);
}


void
ngx_http_latchkey_op_chain(ngx_http_latchkey_words_t *w, ngx_chain_t *body,
    size_t len)
{
    w->body = body;
    w->body_word = w->n;

    ngx_http_latchkey_op_word(w, NULL, len);
}


ngx_int_t
ngx_http_latchkey_op_send(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_call_pt handler, ngx_uint_t patient)
{
    call->out = ngx_http_latchkey_command(op->pool, w->words, w->n, w->body,
                                          w->body_word);
    if (call->out == NULL) {
        return NGX_ERROR;
    }

    call->handler = handler;
    call->data = op;
    call->patient = patient;
    call->first = op->late;
    call->holds = (call == &op->call);

    return ngx_http_latchkey_op_send_again(op, call);
}


ngx_int_t
ngx_http_latchkey_op_send_again(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call)
{
    call->deadline = ngx_current_msec + op->conf->timeout;

    return ngx_http_latchkey_link_call(op->conf->servers, call);
}


enum lk_status
ngx_http_latchkey_op_read(const struct lk_reply *reply,
    struct lk_decision *answer)
{
    return reply ? latchkey_decision_read(reply, answer) : LK_TIMEOUT;
}


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

/* not held here, and nobody waits: has the lost claim taken it since? */

static void
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


/*
 * Nobody knows whether it was claimed.  The request is told that there is no
 * answer; the op asks on until it knows, so that the key is not wedged.
 */

static void
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


/* the token is ours: from now on, signs of life are given */

static void
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
