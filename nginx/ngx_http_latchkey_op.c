
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


/* how the daemon refuses a request that is too large */
#define NGX_HTTP_LATCHKEY_TOO_LARGE  "ERR TOO LARGE"


static ngx_int_t ngx_http_latchkey_op_owner(u_char *owner);
static void ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op);
static ngx_int_t ngx_http_latchkey_op_send_accept(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_log_refusal(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_token_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_take_verdict(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision);
static void ngx_http_latchkey_op_ask_late(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_claim_lost(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
static void ngx_http_latchkey_op_start_extending(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_extend(ngx_event_t *ev);
static void ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);


static ngx_queue_t  ngx_http_latchkey_ops;


/* The op belongs to ctx until op_detach(); then to itself. */

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
 * Unique: sixteen random bytes of this process, and a count.  Random bytes for
 * each op would cost more than all the rest of it.
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
                      "idempotency: no random bytes are available for an "
                      "owner");
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
ngx_http_latchkey_op_notify(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision)
{
    ngx_http_latchkey_op_pt  handler;

    handler = op->handler;

    if (op->ctx && handler) {
        op->handler = NULL;
        handler(op->ctx, decision);
        return;
    }

    ngx_http_latchkey_op_end(op);
}


/*
 * Legal in every state, once.  The table at the top of this file has what
 * follows.
 */

void
ngx_http_latchkey_op_detach(ngx_http_latchkey_op_t *op)
{
    op->ctx = NULL;
    op->handler = NULL;

    switch (op->state) {

    case NGX_HTTP_LATCHKEY_OP_CLAIMING:
        if (!op->call.busy) {
            ngx_http_latchkey_op_claim_lost(op, 0);
        }

        break;

    case NGX_HTTP_LATCHKEY_OP_HELD:
        ngx_http_latchkey_op_abandon(op);
        break;

    case NGX_HTTP_LATCHKEY_OP_SETTLING:
        if (!op->call.busy) {
            ngx_http_latchkey_op_try_again(op, 0);
        }

        break;

    default: /* NGX_HTTP_LATCHKEY_OP_IDLE, NGX_HTTP_LATCHKEY_OP_DONE */
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        break;
    }
}


/* held, and no request will send a response */

static void
ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op)
{
    if (op->contacted) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;

        if (ngx_terminate) {
            ngx_str_set(&op->reason, "nginx was terminated while the app "
                                     "worked");

        } else {
            ngx_str_set(&op->reason, "the gateway lost the response");
        }

    } else {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
    }

    if (ngx_http_latchkey_op_is_left(op)) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    if (ngx_http_latchkey_op_settle(op, NULL) != NGX_OK) {
        ngx_http_latchkey_op_try_again(op, NGX_HTTP_LATCHKEY_OP_PAUSE_MIN);
    }
}


/*
 * The only place where an op is freed.  Called whenever something that could
 * keep it is over; most calls do nothing.
 */

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
        && !ngx_http_latchkey_link_is_leaving(op->conf->servers))
    {
        ngx_http_latchkey_op_ask_late(op);
        return;
    }

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    ngx_http_latchkey_op_uncount_late(op);

    ngx_queue_remove(&op->queue);
    ngx_destroy_pool(op->pool);
}


/* Settlements are queued in the link by this, and link_exit() sends them. */

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
            ngx_http_latchkey_detach(op->ctx);
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


/*
 * Makes the bytes of a command and queues them.  call->out is never changed
 * after that, so that op_send_again() can repeat it.
 */

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
    struct lk_decision *decision)
{
    return reply ? latchkey_decision_read(reply, decision) : LK_TIMEOUT;
}


ngx_int_t
ngx_http_latchkey_op_claim(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    ngx_int_t  rc;

    op->handler = handler;
    op->state = NGX_HTTP_LATCHKEY_OP_CLAIMING;

    /* a waiting request claims again with the same bytes */

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
     * Another owner than before: after STALE this op was overtaken, and must
     * not get NEW for a claim that it no longer holds.
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
                                          ngx_http_latchkey_op_token_checked,
                                          patient);
    }

    if (op->accept) {
        return ngx_http_latchkey_op_send_accept(op);
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
ngx_http_latchkey_op_send_accept(ngx_http_latchkey_op_t *op)
{
    ngx_http_latchkey_words_t    w;
    ngx_http_latchkey_accept_t  *accept;

    accept = op->accept;

    ngx_http_latchkey_op_words(&w, op, "ACCEPT");
    ngx_http_latchkey_op_word(&w, op->fingerprint, LK_FINGERPRINT_TEXT);
    ngx_http_latchkey_op_word(&w, accept->method.data, accept->method.len);
    ngx_http_latchkey_op_word(&w, accept->path.data, accept->path.len);
    ngx_http_latchkey_op_word(&w, accept->headers.data, accept->headers.len);
    ngx_http_latchkey_op_word(&w, accept->body.data, accept->body.len);
    ngx_http_latchkey_op_word(&w, "TTL", 3);
    ngx_http_latchkey_op_number(&w, op->conf->ttl);

    if (op->conf->reexecute) {
        ngx_http_latchkey_op_word(&w, "REEXECUTE", 9);
    }

    return ngx_http_latchkey_op_send(op, &op->call, &w,
                                     ngx_http_latchkey_op_claimed, 0);
}


/*
 * The reply to CLAIM or ACCEPT.  Three cases: a verdict; not known whether it
 * was claimed (claim_lost); certainly not claimed (DONE, NULL).
 */

static void
ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision       decision;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &decision);

    op->lost |= call->repeated;

    if (status == LK_OK && decision.verdict == LK_VERDICT_UNCERTAIN
        && call->repeated && !op->no_new && op->accept == NULL)
    {
        /* it may be our own claim, which lapsed while no daemon was reached */

        ngx_http_latchkey_op_claim_lost(op, 0);
        return;
    }

    if (status == LK_OK) {
        ngx_http_latchkey_op_take_verdict(op, &decision);
        return;
    }

    /* late: an earlier call was sent, whatever happened to this one */

    if (reply == NULL ? (call->sent || op->late) : status == LK_UNAVAILABLE) {
        ngx_http_latchkey_op_claim_lost(op,
                                        ngx_http_latchkey_op_pause(op, reply));
        return;
    }

    /* refused, or never sent: nothing can have been claimed */

    if (reply) {
        ngx_http_latchkey_op_log_refusal(op, reply);
    }

    op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    ngx_http_latchkey_op_notify(op, NULL);
}


static void
ngx_http_latchkey_op_log_refusal(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply)
{
    const char  *error;

    error = ngx_http_latchkey_error_text(reply->text);

    if (op->accept == NULL) {
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
                  "location \"%V\" for later: %s; correct that, or set "
                  "\"idempotency_async off\"", &op->conf->location_name,
                  error);
}


/*
 * The courier's token: the app is called only if it is current.  From now on
 * the store assumes that the app may have got the request; if it is not called
 * after all, also because no reply came, that has to be reported.
 */

static void
ngx_http_latchkey_op_token_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_decision       decision;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = ngx_http_latchkey_op_read(reply, &decision);

    if (reply && status != LK_OK && status != LK_UNAVAILABLE) {
        ngx_http_latchkey_op_log_refusal(op, reply);
    }

    op->call.out = NULL;

    if (reply ? status == LK_UNAVAILABLE : call->sent) {
        op->state = NGX_HTTP_LATCHKEY_OP_SETTLING;
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

        if (op->ctx == NULL) {
            ngx_http_latchkey_op_try_again(op,
                                       ngx_http_latchkey_op_pause(op, reply));
            return;
        }

    } else if (status == LK_OK && decision.verdict == LK_VERDICT_DONE) {
        op->state = NGX_HTTP_LATCHKEY_OP_HELD;

        if (op->ctx == NULL) {
            ngx_http_latchkey_op_abandon(op);
            return;
        }

        ngx_http_latchkey_op_start_extending(op);

    } else {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    }

    ngx_http_latchkey_op_notify(op, status == LK_OK ? &decision : NULL);
}


/* NEW makes the op HELD, with a token; any other verdict makes it DONE. */

static void
ngx_http_latchkey_op_take_verdict(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision)
{
    if ((decision->verdict == LK_VERDICT_REFUSED
         || decision->verdict == LK_VERDICT_INFLIGHT)
        && op->late && op->asked < NGX_HTTP_LATCHKEY_OP_ASK_MAX)
    {
        /*
         * A daemon may still have the lost claim in front of it, on a
         * connection that we have closed, and execute it when no one holds the
         * operation.
         */

        ngx_http_latchkey_op_try_again(op, NGX_HTTP_LATCHKEY_OP_ASK
                                           << op->asked++);
        return;
    }

    op->elsewhere = (decision->verdict == LK_VERDICT_INFLIGHT
                     && !op->no_new && op->accept == NULL);

    if (decision->verdict != LK_VERDICT_NEW) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_notify(op, decision);
        return;
    }

    op->state = NGX_HTTP_LATCHKEY_OP_HELD;
    op->token = decision->token;
    op->attempt = decision->attempt;
    op->claimed_ms = decision->lock_until_ms - op->conf->lock;
    op->claimed_at = ngx_current_msec;

    ngx_cpystrn(op->reference, (u_char *) decision->reference.data,
                ngx_min(decision->reference.len, LK_REFERENCE_TEXT) + 1);

    if (op->ctx == NULL) {
        ngx_http_latchkey_op_abandon(op);
        return;
    }

    ngx_http_latchkey_op_start_extending(op);

    ngx_http_latchkey_op_notify(op, decision);
}


/*
 * The claim was sent on a connection that was lost, and again on another one.
 * A daemon that still has the first one would take it as a new claim once the
 * operation is released, here or by its holder: so the op asks later, and
 * releases what it finds.  It never asks about an operation that ran and is
 * uncertain: it would find its own claim, and release it.
 */

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

    ngx_http_latchkey_op_try_again(op, NGX_HTTP_LATCHKEY_OP_ASK);
}


/*
 * It is not known whether the operation was claimed.  A request gets NULL; a
 * detached op asks until it knows, so that the key does not stay locked.
 */

static void
ngx_http_latchkey_op_claim_lost(ngx_http_latchkey_op_t *op, ngx_msec_t pause)
{
    if (op->ctx) {
        ngx_http_latchkey_op_notify(op, NULL);
        return;
    }

    if (op->token || op->accept) {

        /*
         * It only asked, after STALE, or sent ACCEPT: there is nothing to
         * release.
         */

        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    ngx_http_latchkey_op_try_again(op, pause);
}


/* the op has the token: from now on it extends the lock */

static void
ngx_http_latchkey_op_start_extending(ngx_http_latchkey_op_t *op)
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

        /* the same bytes each time: a slow app needs no more memory */

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


/*
 * Only the result that the token is not current any more matters; an op that
 * was detached in the meantime may end now.
 */

static void
ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    struct lk_decision       decision;
    ngx_http_latchkey_op_t  *op;

    op = call->data;

    if (reply && op->state == NGX_HTTP_LATCHKEY_OP_HELD
        && latchkey_decision_read(reply, &decision) == LK_OK
        && decision.verdict != LK_VERDICT_DONE)
    {
        /*
         * overtaken, or completed by the app: the settlement will show which
         */

        ngx_log_error(NGX_LOG_INFO, ngx_cycle->log, 0,
                      "idempotency: operation %s is no longer held here: %s",
                      op->reference, latchkey_verdict_word(decision.verdict));

        if (op->timer.timer_set) {
            ngx_del_timer(&op->timer);
        }
    }

    ngx_http_latchkey_op_end(op);
}
