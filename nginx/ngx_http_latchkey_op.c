
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
 * courier's has its token from there: what has not happened, or may be run
 * again, is not settled but told to the courier, and if that is gone, to
 * nobody.
 *
 * An op is freed when it is detached and none of its calls is on its way:
 * calls cannot be taken back.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/rand.h>


#define NGX_HTTP_LATCHKEY_PAUSE_MIN  50
#define NGX_HTTP_LATCHKEY_PAUSE_MAX  5000

#define NGX_HTTP_LATCHKEY_WORDS_MAX  16

/* how the daemon begins to say that a request is more than it takes */
#define NGX_HTTP_LATCHKEY_TOO_LARGE  "ERR TOO LARGE"

/* an op, its claim and its settlement, without the body */
#define NGX_HTTP_LATCHKEY_POOL_SIZE  2560


typedef struct {
    ngx_str_t    words[NGX_HTTP_LATCHKEY_WORDS_MAX];
    ngx_uint_t   n;
    u_char       numbers[4][NGX_INT64_LEN];
    ngx_uint_t   nnumbers;
} ngx_http_latchkey_words_t;


static ngx_int_t ngx_http_latchkey_op_owner(u_char *owner);
static void ngx_http_latchkey_op_words(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op, const char *verb);
static void ngx_http_latchkey_op_word(ngx_http_latchkey_words_t *w,
    const void *data, size_t len);
static void ngx_http_latchkey_op_number(ngx_http_latchkey_words_t *w,
    uint64_t number);
static ngx_int_t ngx_http_latchkey_op_send(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_call_pt handler, ngx_uint_t patient);
static ngx_int_t ngx_http_latchkey_op_send_claim(ngx_http_latchkey_op_t *op,
    ngx_uint_t patient);
static ngx_int_t ngx_http_latchkey_op_send_order(ngx_http_latchkey_op_t *op);
static ngx_int_t ngx_http_latchkey_op_send_extend(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_call_pt handler,
    ngx_uint_t patient);
static void ngx_http_latchkey_op_claimed(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_refused(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_take(ngx_http_latchkey_op_t *op,
    const struct lk_answer *answer);
static void ngx_http_latchkey_op_unclaimed(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
static void ngx_http_latchkey_op_extend(ngx_event_t *ev);
static void ngx_http_latchkey_op_extended(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_uint_t ngx_http_latchkey_op_is_given_back(
    ngx_http_latchkey_op_t *op);
static ngx_int_t ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_tell(ngx_http_latchkey_op_t *op,
    const struct lk_answer *answer);
static void ngx_http_latchkey_op_abandon(ngx_http_latchkey_op_t *op);
static ngx_int_t ngx_http_latchkey_op_late(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_size(ngx_http_latchkey_op_t *op);
static size_t ngx_http_latchkey_op_room(ngx_http_latchkey_op_t *op);
static void ngx_http_latchkey_op_give_up(ngx_http_latchkey_op_t *op,
    const char *why);
static void ngx_http_latchkey_op_again(ngx_http_latchkey_op_t *op,
    ngx_msec_t pause);
static void ngx_http_latchkey_op_retry(ngx_event_t *ev);
static ngx_int_t ngx_http_latchkey_op_repeat(ngx_http_latchkey_op_t *op);
static ngx_msec_t ngx_http_latchkey_op_pause(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply);
static void ngx_http_latchkey_op_end(ngx_http_latchkey_op_t *op);


/* of this worker: memory of what is not settled yet and has no request */

static size_t  ngx_http_latchkey_late_size;


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
    op->pause = NGX_HTTP_LATCHKEY_PAUSE_MIN;

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


/* commands */

static void
ngx_http_latchkey_op_words(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op, const char *verb)
{
    w->n = 0;
    w->nnumbers = 0;

    ngx_http_latchkey_op_word(w, verb, ngx_strlen(verb));
    ngx_http_latchkey_op_word(w, op->tenant.data, op->tenant.len);
    ngx_http_latchkey_op_word(w, op->scope.data, op->scope.len);
    ngx_http_latchkey_op_word(w, op->key.data, op->key.len);
}


static void
ngx_http_latchkey_op_word(ngx_http_latchkey_words_t *w, const void *data,
    size_t len)
{
    w->words[w->n].data = (u_char *) data;
    w->words[w->n].len = len;
    w->n++;
}


static void
ngx_http_latchkey_op_number(ngx_http_latchkey_words_t *w, uint64_t number)
{
    u_char  *p;

    p = w->numbers[w->nnumbers++];
    ngx_http_latchkey_op_word(w, p, ngx_sprintf(p, "%uL", number) - p);
}


static ngx_int_t
ngx_http_latchkey_op_send(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_call_pt handler, ngx_uint_t patient)
{
    call->out = ngx_http_latchkey_command(op->pool, w->words, w->n);
    if (call->out == NULL) {
        return NGX_ERROR;
    }

    call->handler = handler;
    call->data = op;
    call->patient = patient;
    call->first = op->late;
    call->deadline = ngx_current_msec + op->conf->timeout;

    return ngx_http_latchkey_link_call(op->conf->servers, call);
}


/* claim */

ngx_int_t
ngx_http_latchkey_op_claim(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_op_pt handler)
{
    ngx_int_t  rc;

    op->handler = handler;
    op->state = NGX_HTTP_LATCHKEY_OP_CLAIMING;

    if (op->call.out) {

        /* who waits claims again and again, and always the same */

        op->call.deadline = ngx_current_msec + op->conf->timeout;
        rc = ngx_http_latchkey_link_call(op->conf->servers, &op->call);

    } else {
        rc = ngx_http_latchkey_op_send_claim(op, 0);
    }

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


static ngx_int_t
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
    struct lk_answer         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = reply ? latchkey_answer_read(reply, &answer) : LK_TIMEOUT;

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
    u_char     buf[256];
    ngx_str_t  text;

    text = ngx_http_latchkey_log_text(reply->text, buf, sizeof(buf));

    if (op->order == NULL) {
        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: latchkeyd refused a claim of location "
                      "\"%V\": %V", &op->conf->location_name, &text);
        return;
    }

    if (text.len >= sizeof(NGX_HTTP_LATCHKEY_TOO_LARGE) - 1
        && ngx_strncmp(text.data, NGX_HTTP_LATCHKEY_TOO_LARGE,
                       sizeof(NGX_HTTP_LATCHKEY_TOO_LARGE) - 1)
           == 0)
    {
        op->too_large = 1;
    }

    ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                  "idempotency_async: latchkeyd does not accept a request of "
                  "location \"%V\" for later: %V; see to that, or set "
                  "\"idempotency_async off\"", &op->conf->location_name,
                  &text);
}


/* the courier's token: the app is called only if it is the current one */

static void
ngx_http_latchkey_op_checked(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    enum lk_status           status;
    struct lk_answer         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = reply ? latchkey_answer_read(reply, &answer) : LK_TIMEOUT;

    if (reply && status != LK_OK && status != LK_UNAVAILABLE) {
        ngx_http_latchkey_op_refused(op, reply);
    }

    if (op->ctx && status == LK_OK && answer.verdict == LK_VERDICT_DONE) {
        op->state = NGX_HTTP_LATCHKEY_OP_HELD;
        op->timer.handler = ngx_http_latchkey_op_extend;
        ngx_add_timer(&op->timer, op->conf->lock / 3);

    } else {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
    }

    op->call.out = NULL;

    ngx_http_latchkey_op_tell(op, status == LK_OK ? &answer : NULL);
}


static void
ngx_http_latchkey_op_take(ngx_http_latchkey_op_t *op,
    const struct lk_answer *answer)
{
    if (answer->verdict == LK_VERDICT_REFUSED && op->late && !op->asked) {

        /*
         * The daemon may have the lost claim before it yet, on a connection
         * that we have closed.
         */

        op->asked = 1;
        ngx_http_latchkey_op_again(op, NGX_HTTP_LATCHKEY_PAUSE_MAX);
        return;
    }

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

    op->timer.handler = ngx_http_latchkey_op_extend;
    ngx_add_timer(&op->timer, op->conf->lock / 3);

    ngx_http_latchkey_op_tell(op, answer);
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


/* signs of life */

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

        op->extend_call.deadline = ngx_current_msec + op->conf->timeout;
        (void) ngx_http_latchkey_link_call(op->conf->servers,
                                           &op->extend_call);
        return;
    }

    (void) ngx_http_latchkey_op_send_extend(op, &op->extend_call,
                                            ngx_http_latchkey_op_extended, 1);
}


static ngx_int_t
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
    struct lk_answer         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;

    if (reply && op->state == NGX_HTTP_LATCHKEY_OP_HELD
        && latchkey_answer_read(reply, &answer) == LK_OK
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


/* settlement */

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


/* the courier ends the operation together with its own errand */

static ngx_uint_t
ngx_http_latchkey_op_is_given_back(ngx_http_latchkey_op_t *op)
{
    return op->courier
           && (op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE
               || (op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT
                   && op->conf->reexecute));
}


static ngx_int_t
ngx_http_latchkey_op_send_settle(ngx_http_latchkey_op_t *op)
{
    ngx_uint_t                  keep;
    ngx_http_latchkey_words_t   w;

    if (ngx_http_latchkey_op_is_given_back(op)) {

        /* has the app completed it itself?  else the courier goes on */

        return ngx_http_latchkey_op_send_extend(op, &op->call,
                                             ngx_http_latchkey_op_settled, 1);
    }

    switch (op->settle) {

    case NGX_HTTP_LATCHKEY_SETTLE_KEEP:
    case NGX_HTTP_LATCHKEY_SETTLE_OMIT:
        keep = (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP);

        ngx_http_latchkey_op_words(&w, op, "COMPLETE");
        ngx_http_latchkey_op_number(&w, op->token);
        ngx_http_latchkey_op_number(&w, op->status);
        ngx_http_latchkey_op_word(&w, op->answer_headers.data,
                                  keep ? op->answer_headers.len : 0);
        ngx_http_latchkey_op_word(&w, op->answer_body.data,
                                  keep ? op->answer_body.len : 0);
        ngx_http_latchkey_op_word(&w, "TTL", 3);
        ngx_http_latchkey_op_number(&w, op->conf->ttl);

        if (!keep) {
            ngx_http_latchkey_op_word(&w, "OMIT", 4);
            ngx_http_latchkey_op_word(&w, op->reason.data, op->reason.len);
        }

        break;

    case NGX_HTTP_LATCHKEY_SETTLE_RELEASE:
        ngx_http_latchkey_op_words(&w, op, "RELEASE");
        ngx_http_latchkey_op_number(&w, op->token);
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
ngx_http_latchkey_op_settled(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    u_char                   buf[256];
    ngx_str_t                text;
    enum lk_status           status;
    struct lk_answer         answer;
    ngx_http_latchkey_op_t  *op;

    op = call->data;
    status = reply ? latchkey_answer_read(reply, &answer) : LK_TIMEOUT;

    if (status == LK_OK) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_tell(op, &answer);
        return;
    }

    if (reply && status != LK_UNAVAILABLE) {
        text = ngx_http_latchkey_log_text(reply->text, buf, sizeof(buf));

        ngx_log_error(NGX_LOG_ERR, ngx_cycle->log, 0,
                      "idempotency: latchkeyd refused the answer to "
                      "operation %s of location \"%V\": %V", op->reference,
                      &op->conf->location_name, &text);

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


/* the end */

static void
ngx_http_latchkey_op_tell(ngx_http_latchkey_op_t *op,
    const struct lk_answer *answer)
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
        ngx_str_set(&op->reason, "the gateway lost the answer");

    } else {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_RELEASE;
    }

    if (ngx_http_latchkey_op_is_given_back(op)) {
        op->state = NGX_HTTP_LATCHKEY_OP_DONE;
        ngx_http_latchkey_op_end(op);
        return;
    }

    if (ngx_http_latchkey_op_settle(op, NULL) != NGX_OK) {
        ngx_http_latchkey_op_again(op, NGX_HTTP_LATCHKEY_PAUSE_MIN);
    }
}


/*
 * Not settled, and nobody waits for it: the op keeps trying, within the
 * bounds of idempotency_late.
 */

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


/*
 * A call that no daemon has answered goes back into the link's queue without
 * a pause: it must be the first thing that the next connection hears, before
 * somebody else claims what we hold the answer to.  A daemon that has answered
 * is not asked in a hurry.
 */

static void
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

    if (!op->timer.timer_set) {
        ngx_add_timer(&op->timer, ngx_max(pause, NGX_HTTP_LATCHKEY_PAUSE_MIN));
    }
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
        op->call.deadline = ngx_current_msec + op->conf->timeout;

        return ngx_http_latchkey_link_call(op->conf->servers, &op->call);
    }

    return op->state == NGX_HTTP_LATCHKEY_OP_CLAIMING
           ? ngx_http_latchkey_op_send_claim(op, 1)
           : ngx_http_latchkey_op_send_settle(op);
}


/*
 * The daemon cannot decide now, or a connection broke when it was told this:
 * ask ever less often.  0: nobody has heard it, so say it again at once.
 */

static ngx_msec_t
ngx_http_latchkey_op_pause(ngx_http_latchkey_op_t *op,
    const struct lk_reply *reply)
{
    if (reply == NULL && op->call.cut == 0) {
        return 0;
    }

    op->pause = ngx_min(op->pause * 2, NGX_HTTP_LATCHKEY_PAUSE_MAX);

    return op->pause;
}


static void
ngx_http_latchkey_op_end(ngx_http_latchkey_op_t *op)
{
    if (op->ctx || op->state != NGX_HTTP_LATCHKEY_OP_DONE
        || op->call.busy || op->extend_call.busy)
    {
        return;
    }

    if (op->timer.timer_set) {
        ngx_del_timer(&op->timer);
    }

    ngx_http_latchkey_late_size -= op->late_size;

    ngx_destroy_pool(op->pool);
}
