
/*
 * The response held back: it leaves only after it is durably stored.
 *
 *   state    header filter            body filter
 *   -------  -----------------------  ------------------------------------
 *   RUN      classify; HOLD, SETTLE   -
 *   HOLD     -                        take the bytes; at the end SETTLE
 *   SETTLE   -                        leave buffers with their owner
 *   SEND     -                        header, what is held, what is left
 *   REPLACE  -                        header and body of another response
 *   DROP     -                        the app's response is discarded
 *   PASS     next filter              next filter
 *
 * SEND is entered from the reply to the settlement and from nowhere else, and
 * only while the op is DONE, or the app's response is not one to store.
 *
 * HOLD, SETTLE, SEND and REPLACE keep a bit of r->buffered set, so that nginx
 * does not take the request for finished.  A response too large to hold is
 * settled as omitted before its first byte leaves; in the meantime its buffers
 * wait unconsumed, which stops the upstream.
 *
 * The body is copied once, from the upstream's buffers into blocks of the op's
 * pool (op->body).  COMPLETE and the client's response both are sent from
 * there.  The op frees them: so it is detached from the request when the
 * request's pool is destroyed, not before.
 *
 * In observe mode the response is copied and goes out at once.  The courier
 * does not get the response, but the outcome: always REPLACE.
 */


#include "ngx_http_latchkey_module.h"


/* of a body whose length is not known in advance */
#define NGX_HTTP_LATCHKEY_BLOCK_MIN  4096
#define NGX_HTTP_LATCHKEY_BLOCK_MAX  (1024 * 1024)


static ngx_int_t ngx_http_latchkey_header_filter(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_pass_header(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_body_filter(ngx_http_request_t *r,
    ngx_chain_t *in);
static ngx_uint_t ngx_http_latchkey_omit_at_once(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_omit_response(ngx_http_latchkey_op_t *op,
    const char *reason);
static ngx_int_t ngx_http_latchkey_hold_body(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t ngx_http_latchkey_observe_body(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t ngx_http_latchkey_hold_bytes(ngx_http_latchkey_ctx_t *ctx,
    u_char *data, size_t len);
static ngx_int_t ngx_http_latchkey_add_block(ngx_http_latchkey_ctx_t *ctx,
    size_t len);
static ngx_uint_t ngx_http_latchkey_is_cut_off(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t flush);
static ngx_uint_t ngx_http_latchkey_is_short(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_leave_buffers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
static void ngx_http_latchkey_discard_buffers(ngx_chain_t *in);
static ngx_int_t ngx_http_latchkey_settle_response(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_settle_unawaited(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_response_settled(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision);
static ngx_int_t ngx_http_latchkey_choose_response(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static ngx_http_latchkey_outcome_e ngx_http_latchkey_outcome_of(
    ngx_http_latchkey_op_t *op, const struct lk_decision *decision);
static void ngx_http_latchkey_use_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static void ngx_http_latchkey_report_to_courier(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
static void ngx_http_latchkey_not_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_overtaken(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_stale_handler(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision);
static ngx_uint_t ngx_http_latchkey_is_own(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision);
static ngx_uint_t ngx_http_latchkey_is_held(ngx_http_latchkey_op_t *op,
    struct lk_slice body);
static void ngx_http_latchkey_replace_response(ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *out);
static void ngx_http_latchkey_resume_filters(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_send_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
static ngx_uint_t ngx_http_latchkey_may_leave(ngx_http_latchkey_op_t *op);
static ngx_int_t ngx_http_latchkey_add_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t **out, ngx_chain_t ***last);
static ngx_int_t ngx_http_latchkey_send_replacement(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in);
static ngx_int_t ngx_http_latchkey_send_header(ngx_http_request_t *r);


static ngx_http_output_header_filter_pt  ngx_http_latchkey_next_header;
static ngx_http_output_body_filter_pt    ngx_http_latchkey_next_body;


ngx_str_t  ngx_http_latchkey_outcome_words[] = {
#define X(name, word)  ngx_string(word),
    NGX_HTTP_LATCHKEY_OUTCOMES(X)
#undef X
};


/* in the order of ngx_http_latchkey_settle_e */

static ngx_http_latchkey_outcome_e  ngx_http_latchkey_settle_outcomes[] = {
    NGX_HTTP_LATCHKEY_OUTCOME_STORED,
    NGX_HTTP_LATCHKEY_OUTCOME_OMITTED,
    NGX_HTTP_LATCHKEY_OUTCOME_RELEASED,
    NGX_HTTP_LATCHKEY_OUTCOME_DOUBTED
};


/*
 * The header of the app's response decides the settlement.  NGX_OK without the
 * next filter holds the header: nginx then sends the body to the body filter
 * below, with nothing sent to the client.
 */

static ngx_int_t
ngx_http_latchkey_header_filter(ngx_http_request_t *r)
{
    ngx_http_latchkey_ctx_t       *ctx;
    ngx_http_latchkey_loc_conf_t  *llcf;

    ctx = ngx_http_latchkey_get_ctx(r);
    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    if (ctx && r->post_action) {
        ngx_http_latchkey_post_action(ctx);
    }

    /* without an upstream the header is the gateway's own, for the courier */

    if (r->upstream && (ctx || llcf->mode != NGX_HTTP_LATCHKEY_OFF)) {
        ngx_http_latchkey_strip_report(r);
    }

    if (ctx == NULL || ctx->state != NGX_HTTP_LATCHKEY_RUN) {

        if (ngx_http_latchkey_courier_mark_unguarded(r, ctx) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_latchkey_next_header(r);
    }

    ngx_http_latchkey_classify(r, ctx);

    r->main_filter_need_in_memory = 1;
    ctx->state = NGX_HTTP_LATCHKEY_HOLD;
    ctx->from_app = (r->upstream && r->upstream->cleanup);

    if (ctx->observe || ngx_http_latchkey_is_handed_over(r)) {
        return ngx_http_latchkey_pass_header(r, ctx);
    }

    r->buffered |= NGX_HTTP_LATCHKEY_BUFFERED;

    /*
     * The range body filter runs before this one, the range header filter
     * after it: a held response would get one without the other.
     */

    r->allow_ranges = 0;

    if (r->header_only) {
        ctx->complete = 1;
        return ngx_http_latchkey_settle_response(r, ctx);
    }

    if (ngx_http_latchkey_omit_at_once(r, ctx)) {
        return ngx_http_latchkey_settle_response(r, ctx);
    }

    return NGX_OK;
}


/* observe; and a connection that is handed over, which no filter can hold */

static ngx_int_t
ngx_http_latchkey_pass_header(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t  rc;

    rc = ngx_http_latchkey_next_header(r);

    if (ngx_http_latchkey_is_handed_over(r)) {
        ctx->op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        ngx_str_set(&ctx->op->reason, "the connection changed its protocol");
        ngx_http_latchkey_settle_unawaited(r, ctx);

    } else if (ctx->conf->no_body) {
        ngx_http_latchkey_omit_response(ctx->op, "this route stores no "
                                                 "bodies");
        ngx_http_latchkey_settle_unawaited(r, ctx);

    } else if (r->header_only) {
        ngx_http_latchkey_settle_unawaited(r, ctx);
    }

    return rc;
}


static ngx_int_t
ngx_http_latchkey_body_filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = ngx_http_latchkey_get_ctx(r);

    if (ctx == NULL) {
        return ngx_http_latchkey_next_body(r, in);
    }

    switch (ctx->state) {

    case NGX_HTTP_LATCHKEY_HOLD:
        return ctx->observe ? ngx_http_latchkey_observe_body(r, ctx, in)
                            : ngx_http_latchkey_hold_body(r, ctx, in);

    case NGX_HTTP_LATCHKEY_SETTLE:
        return ngx_http_latchkey_leave_buffers(r, ctx, in);

    case NGX_HTTP_LATCHKEY_SEND:
        return ngx_http_latchkey_send_held(r, ctx, in);

    case NGX_HTTP_LATCHKEY_REPLACE:
        return ngx_http_latchkey_send_replacement(r, ctx, in);

    case NGX_HTTP_LATCHKEY_DROP:
        ngx_http_latchkey_discard_buffers(in);
        return ngx_http_latchkey_next_body(r, NULL);

    default:
        return ngx_http_latchkey_next_body(r, in);
    }
}


ngx_int_t
ngx_http_latchkey_filter_init(ngx_conf_t *cf)
{
    ngx_http_latchkey_next_header = ngx_http_top_header_filter;
    ngx_http_top_header_filter = ngx_http_latchkey_header_filter;

    ngx_http_latchkey_next_body = ngx_http_top_body_filter;
    ngx_http_top_body_filter = ngx_http_latchkey_body_filter;

    return NGX_OK;
}


/* 1: the response is settled now as omitted, without waiting for its body */

static ngx_uint_t
ngx_http_latchkey_omit_at_once(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (ctx->conf->no_body) {
        ngx_http_latchkey_omit_response(ctx->op, "this route stores no "
                                                 "bodies");
        return 1;
    }

    if (r->headers_out.content_length_n > (off_t) ctx->conf->response_max) {
        ngx_http_latchkey_omit_response(ctx->op, "it was too large");
        return 1;
    }

    return 0;
}


/* a response that would be stored is not, for this reason */

static void
ngx_http_latchkey_omit_response(ngx_http_latchkey_op_t *op, const char *reason)
{
    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP) {
        op->settle = NGX_HTTP_LATCHKEY_SETTLE_OMIT;
        op->reason.data = (u_char *) reason;
        op->reason.len = ngx_strlen(reason);
    }
}


/*
 * Takes the bytes of the body and consumes its buffers.  At the last buffer,
 * or when the body is more than may be held, the operation is settled.
 */

static ngx_int_t
ngx_http_latchkey_hold_body(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    size_t        size;
    ngx_int_t     rc;
    ngx_buf_t    *b;
    ngx_uint_t    flush;
    ngx_chain_t  *cl;

    flush = 0;

    for (cl = in; cl; cl = cl->next) {
        b = cl->buf;
        flush |= b->flush;
        size = ngx_buf_in_memory(b) ? (size_t) (b->last - b->pos) : 0;

        rc = (size == 0 && ngx_buf_size(b) != 0)
             ? NGX_DECLINED                     /* only in a file */
             : ngx_http_latchkey_hold_bytes(ctx, b->pos, size);

        if (rc == NGX_ERROR) {
            return NGX_ERROR;
        }

        if (rc == NGX_DECLINED) {
            ngx_http_latchkey_omit_response(ctx->op, "it was too large");

            if (ngx_http_latchkey_leave_buffers(r, ctx, cl) == NGX_ERROR) {
                return NGX_ERROR;
            }

            return ngx_http_latchkey_settle_response(r, ctx);
        }

        b->pos = b->last;
        b->file_pos = b->file_last;

        if (b->last_buf) {
            ctx->complete = 1;
            break;
        }
    }

    if (ngx_http_latchkey_is_cut_off(r, ctx, flush)) {
        ngx_http_latchkey_set_doubt(ctx, "the app's response was cut off");
        return ngx_http_latchkey_settle_response(r, ctx);
    }

    return ctx->complete ? ngx_http_latchkey_settle_response(r, ctx) : NGX_OK;
}


/*
 * Copies the body while it passes to the client; the settlement is not waited
 * for.
 */

static ngx_int_t
ngx_http_latchkey_observe_body(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_buf_t    *b;
    ngx_uint_t    flush;
    ngx_chain_t  *cl;

    flush = 0;

    for (cl = in; cl && !ctx->complete; cl = cl->next) {
        b = cl->buf;
        flush |= b->flush;

        if (ngx_buf_in_memory(b)
            && ngx_http_latchkey_hold_bytes(ctx, b->pos, b->last - b->pos)
               != NGX_OK)
        {
            ngx_http_latchkey_omit_response(ctx->op, "it was too large");
            ctx->complete = 1;
        }

        if (b->last_buf) {
            ctx->complete = 1;
        }
    }

    if (ctx->op->settle != NGX_HTTP_LATCHKEY_SETTLE_OMIT
        && ngx_http_latchkey_is_cut_off(r, ctx, flush))
    {
        ngx_http_latchkey_set_doubt(ctx, "the app's response was cut off");
        ctx->complete = 1;
    }

    if (ctx->complete) {
        ngx_http_latchkey_settle_unawaited(r, ctx);
    }

    return ngx_http_latchkey_next_body(r, in);
}


/*
 * The one copy of the body, from the upstream's buffers into blocks of the op.
 * NGX_DECLINED: more than may be held; nothing was taken then.
 */

static ngx_int_t
ngx_http_latchkey_hold_bytes(ngx_http_latchkey_ctx_t *ctx, u_char *data,
    size_t len)
{
    size_t                   n;
    ngx_buf_t               *b;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (len > ctx->conf->response_max - op->body_size) {
        return NGX_DECLINED;
    }

    while (len) {

        if (op->body_last == NULL
            || op->body_last->buf->last == op->body_last->buf->end)
        {
            if (ngx_http_latchkey_add_block(ctx, len) != NGX_OK) {
                return NGX_ERROR;
            }
        }

        b = op->body_last->buf;
        n = ngx_min(len, (size_t) (b->end - b->last));

        b->last = ngx_cpymem(b->last, data, n);
        op->body_size += n;
        data += n;
        len -= n;
    }

    return NGX_OK;
}


/*
 * A body of known length gets one block.  Else a block is as large as all that
 * are there, so that their number is small and at most half of them is empty.
 */

static ngx_int_t
ngx_http_latchkey_add_block(ngx_http_latchkey_ctx_t *ctx, size_t len)
{
    off_t                    announced;
    size_t                   size;
    ngx_buf_t               *b;
    ngx_chain_t             *cl;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    announced = ngx_min(ctx->request->headers_out.content_length_n,
                        (off_t) ctx->conf->response_max);

    size = (announced > (off_t) op->body_size)
           ? (size_t) announced - op->body_size
           : ngx_min(ngx_max(op->body_size, NGX_HTTP_LATCHKEY_BLOCK_MIN),
                     NGX_HTTP_LATCHKEY_BLOCK_MAX);

    b = ngx_calloc_buf(op->pool);
    cl = ngx_alloc_chain_link(op->pool);

    if (b == NULL || cl == NULL) {
        return NGX_ERROR;
    }

    size = ngx_max(size, len);

    b->start = ngx_pnalloc(op->pool, size);
    if (b->start == NULL) {
        return NGX_ERROR;
    }

    b->pos = b->start;
    b->last = b->start;
    b->end = b->start + size;

    cl->buf = b;
    cl->next = NULL;

    if (op->body_last) {
        op->body_last->next = cl;

    } else {
        op->body = cl;
    }

    op->body_last = cl;

    return NGX_OK;
}


/*
 * An upstream that fails after its header was sent ends with a flush and no
 * last buffer; u->cleanup is NULL once it is finalized.
 */

static ngx_uint_t
ngx_http_latchkey_is_cut_off(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t flush)
{
    if (!ctx->from_app) {
        return 0;
    }

    if (ctx->complete) {
        return ngx_http_latchkey_is_short(r, ctx);
    }

    return flush && r->upstream->cleanup == NULL;
}


/*
 * FastCGI without fastcgi_keep_conn: nginx takes any end of the connection for
 * the end of the response.  The length shows it, or that FCGI_END_REQUEST did
 * not come.
 */

static ngx_uint_t
ngx_http_latchkey_is_short(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    if (r->headers_out.status == NGX_HTTP_NO_CONTENT
        || r->headers_out.status == NGX_HTTP_NOT_MODIFIED)
    {
        return 0;               /* no body, whatever Content-Length is */
    }

    if (r->headers_out.content_length_n >= 0) {
        return (off_t) ctx->op->body_size < r->headers_out.content_length_n;
    }

    if (!ngx_http_latchkey_is_fastcgi(r)) {
        return 0;
    }

    u = r->upstream;

    return u->buffering ? u->pipe && !u->pipe->upstream_done
                        : u->length != 0;
}


/* buffers that stay with their owner until they can be sent */

static ngx_int_t
ngx_http_latchkey_leave_buffers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    if (in && ngx_chain_add_copy(r->pool, &ctx->rest, in) != NGX_OK) {
        return NGX_ERROR;
    }

    return NGX_AGAIN;
}


/* buffers that will not be sent */

static void
ngx_http_latchkey_discard_buffers(ngx_chain_t *in)
{
    for ( /* void */ ; in; in = in->next) {
        in->buf->pos = in->buf->last;
        in->buf->file_pos = in->buf->file_last;
    }
}


/* returns like a filter; nothing leaves before the daemon replies */

static ngx_int_t
ngx_http_latchkey_settle_response(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_SETTLE;
    ctx->wait_start = ngx_current_msec;

    if (ngx_http_latchkey_store_headers(r, ctx) != NGX_OK
        || ngx_http_latchkey_op_settle(ctx->op,
                                       ngx_http_latchkey_response_settled)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/*
 * the response is already on its way, or cannot be held: no one waits for the
 * settlement
 */

static void
ngx_http_latchkey_settle_unawaited(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    ctx->outcome = ngx_http_latchkey_settle_outcomes[ctx->op->settle];

    (void) ngx_http_latchkey_store_headers(r, ctx);
    (void) ngx_http_latchkey_op_settle(ctx->op, NULL);

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;
}


/*
 * The daemon's reply to the settlement, or NULL: decides which response
 * leaves, and wakes the filters to send it.
 */

static void
ngx_http_latchkey_response_settled(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter_request(ctx);
    c = r->connection;

    if (ngx_http_latchkey_choose_response(r, ctx, decision) == NGX_OK) {
        ngx_http_latchkey_resume_filters(r);
    }

    ngx_http_run_posted_requests(c);
}


/*
 * NGX_OK: it is known which response leaves.  NGX_AGAIN: the daemon is asked
 * for the present verdict first.
 */

static ngx_int_t
ngx_http_latchkey_choose_response(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    if (ctx->courier) {
        ngx_http_latchkey_report_to_courier(r, ctx, decision);
        return NGX_OK;
    }

    if (decision == NULL) {
        ngx_http_latchkey_not_stored(r, ctx);
        return NGX_OK;
    }

    ctx->outcome = ngx_http_latchkey_outcome_of(op, decision);

    if (decision->verdict == LK_VERDICT_STALE
        && op->settle != NGX_HTTP_LATCHKEY_SETTLE_RELEASE)
    {
        return ngx_http_latchkey_overtaken(r, ctx);
    }

    if (decision->verdict == LK_VERDICT_KEPT) {
        ngx_http_latchkey_use_stored(r, ctx, decision);
        return NGX_OK;
    }

    if (ngx_http_latchkey_has_no_response(ctx)) {
        ngx_http_latchkey_replace_response(ctx,
                                   ngx_http_latchkey_set_substitute(r, ctx));
        return NGX_OK;
    }

    ctx->state = NGX_HTTP_LATCHKEY_SEND;

    return NGX_OK;
}


/* KEPT: whatever the settlement was, the operation is completed */

static ngx_http_latchkey_outcome_e
ngx_http_latchkey_outcome_of(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision)
{
    if (decision->verdict != LK_VERDICT_KEPT) {
        return ngx_http_latchkey_settle_outcomes[op->settle];
    }

    return decision->reason.len ? NGX_HTTP_LATCHKEY_OUTCOME_OMITTED
                              : NGX_HTTP_LATCHKEY_OUTCOME_STORED;
}


/*
 * KEPT: completed before, by the app itself, or by this op and the reply was
 * lost.  Retries will get the stored response, so this client does, too.  If
 * it is the same, it keeps its own headers that are not stored, such as
 * cookies.
 */

static void
ngx_http_latchkey_use_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ctx->expires_ms = decision->expires_ms;

    if (ngx_http_latchkey_is_own(ctx->op, decision)
        && (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT
            || ngx_http_latchkey_take_headers(r, ctx, decision) == NGX_OK))
    {
        ctx->state = NGX_HTTP_LATCHKEY_SEND;
        return;
    }

    ngx_http_latchkey_replace_response(ctx,
                            ngx_http_latchkey_set_verdict(r, ctx, decision));
}


static void
ngx_http_latchkey_report_to_courier(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ctx->outcome = decision == NULL ? NGX_HTTP_LATCHKEY_OUTCOME_LATE
                   : decision->verdict == LK_VERDICT_STALE
                     ? NGX_HTTP_LATCHKEY_OUTCOME_STALE
                     : ngx_http_latchkey_outcome_of(ctx->op, decision);

    ngx_http_latchkey_replace_response(ctx,
                          ngx_http_latchkey_courier_outcome(r, ctx, decision));
}


/* no reply came from the daemon in time */

static void
ngx_http_latchkey_not_stored(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ctx->outcome = NGX_HTTP_LATCHKEY_OUTCOME_LATE;

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
        || ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT)
    {
        ngx_http_latchkey_replace_response(ctx,
            ngx_http_latchkey_set_unknown(r, ctx, NGX_HTTP_SERVICE_UNAVAILABLE,
                                          "The request was processed, but its "
                                          "response could not be stored yet; "
                                          "send the same request again "
                                          "later."));
        return;
    }

    if (ngx_http_latchkey_has_no_response(ctx)) {
        ngx_http_latchkey_replace_response(ctx,
                                   ngx_http_latchkey_set_substitute(r, ctx));
        return;
    }

    /* the app's response is valid; only the store is behind */

    ctx->state = NGX_HTTP_LATCHKEY_SEND;
}


/* STALE: the app's response is not used */

static ngx_int_t
ngx_http_latchkey_overtaken(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_core_loc_conf_t  *clcf;

    ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                  "idempotency: operation %V was decided elsewhere while the "
                  "app worked; its response is not used",
                  &ctx->reference);

    ctx->outcome = NGX_HTTP_LATCHKEY_OUTCOME_STALE;
    ctx->wait_start = ngx_current_msec;

    /* the client waits for a second reply of the daemon */

    clcf = ngx_http_get_module_loc_conf(r, ngx_http_core_module);
    ngx_add_timer(r->connection->write, clcf->send_timeout);

    if (ngx_http_latchkey_op_ask(ctx->op, ngx_http_latchkey_stale_handler)
        == NGX_OK)
    {
        return NGX_AGAIN;
    }

    ngx_http_latchkey_replace_response(ctx,
        ngx_http_latchkey_set_unknown(r, ctx, NGX_HTTP_CONFLICT,
                                      "The request was processed, but in the "
                                      "meantime its outcome was decided "
                                      "elsewhere."));
    return NGX_OK;
}


/* after STALE: the present verdict */

static void
ngx_http_latchkey_stale_handler(ngx_http_latchkey_ctx_t *ctx,
    const struct lk_decision *decision)
{
    ngx_connection_t    *c;
    ngx_http_request_t  *r;

    r = ngx_http_latchkey_enter_request(ctx);
    c = r->connection;

    ngx_http_latchkey_replace_response(ctx, decision
        ? ngx_http_latchkey_set_verdict(r, ctx, decision)
        : ngx_http_latchkey_set_unknown(r, ctx, NGX_HTTP_SERVICE_UNAVAILABLE,
                                        "The request was processed, but in "
                                        "the meantime its outcome was decided "
                                        "elsewhere."));

    ngx_http_latchkey_resume_filters(r);

    ngx_http_run_posted_requests(c);
}


/*
 * is the stored response the one that was sent from here, except for headers?
 */

static ngx_uint_t
ngx_http_latchkey_is_own(ngx_http_latchkey_op_t *op,
    const struct lk_decision *decision)
{
    if (decision->response.status != op->status) {
        return 0;
    }

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT) {
        return latchkey_slice_equal(decision->reason,
                                    ngx_http_latchkey_slice(&op->reason));
    }

    return op->settle == NGX_HTTP_LATCHKEY_SETTLE_KEEP
           && decision->reason.len == 0
           && ngx_http_latchkey_is_held(op, decision->response.body);
}


static ngx_uint_t
ngx_http_latchkey_is_held(ngx_http_latchkey_op_t *op, struct lk_slice body)
{
    size_t        size;
    ngx_chain_t  *cl;

    if (body.len != op->body_size) {
        return 0;
    }

    for (cl = op->body; cl; cl = cl->next) {
        size = cl->buf->last - cl->buf->pos;

        if (ngx_memcmp(body.data, cl->buf->pos, size) != 0) {
            return 0;
        }

        body.data += size;
    }

    return 1;
}


/* the held response is not sent: the op goes on without the request */

static void
ngx_http_latchkey_replace_response(ngx_http_latchkey_ctx_t *ctx,
    ngx_chain_t *out)
{
    ctx->state = NGX_HTTP_LATCHKEY_REPLACE;
    ctx->replacement = out;

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;
}


/*
 * From the link's event back into the filters.  If the upstream is still
 * there, its own write handler goes on from where it was stopped.
 */

static void
ngx_http_latchkey_resume_filters(ngx_http_request_t *r)
{
    if (ngx_http_output_filter(r, NULL) == NGX_ERROR) {

        /*
         * An upstream that is still there ends with the request and decrements
         * its count itself: like where nginx closes a connection.
         */

        if (r->upstream && r->upstream->cleanup) {
            r->main->count++;
        }

        r->connection->error = 1;
        ngx_http_finalize_request(r, NGX_ERROR);
        return;
    }

    r->write_event_handler(r);
}


/*
 * Sends the header and the held body, then the buffers that stayed with their
 * owner.  The op stays until the request ends: its memory is being sent.
 */

static ngx_int_t
ngx_http_latchkey_send_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t      rc;
    ngx_chain_t   *out, **last;

    if (!ngx_http_latchkey_may_leave(ctx->op)) {
        ngx_log_error(NGX_LOG_ALERT, r->connection->log, 0,
                      "idempotency: the response of operation %V is not "
                      "stored (state %ui) and does not leave",
                      &ctx->reference, (ngx_uint_t) ctx->op->state);
        return NGX_ERROR;
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;
    r->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;

    if (ngx_http_latchkey_add_own_headers(r, ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_send_header(r);

    if (rc == NGX_ERROR || r->header_only) {
        ctx->state = NGX_HTTP_LATCHKEY_DROP;
        ngx_http_latchkey_discard_buffers(ctx->rest);
        ngx_http_latchkey_discard_buffers(in);
        return rc;
    }

    if (ngx_http_latchkey_add_held(r, ctx, &out, &last) != NGX_OK) {
        return NGX_ERROR;
    }

    *last = ctx->rest;
    ctx->rest = NULL;

    if (in && ngx_chain_add_copy(r->pool, &out, in) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_latchkey_next_body(r, out);
}


/* a response that is to be stored must be settled first */

static ngx_uint_t
ngx_http_latchkey_may_leave(ngx_http_latchkey_op_t *op)
{
    return op->state == NGX_HTTP_LATCHKEY_OP_DONE
           || op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE
           || op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
}


/*
 * The held blocks as buffers of the request.  Their memory stays with the op,
 * and filters must not write to it: `memory`, not `temporary`.
 */

static ngx_int_t
ngx_http_latchkey_add_held(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t **out, ngx_chain_t ***last)
{
    ngx_buf_t    *b;
    ngx_chain_t  *cl, *block;

    *out = NULL;
    *last = out;

    b = NULL;
    block = ctx->op->body;

    /* an empty response has a last buffer, too */

    while (block || (b == NULL && ctx->complete)) {
        b = ngx_calloc_buf(r->pool);
        cl = ngx_alloc_chain_link(r->pool);

        if (b == NULL || cl == NULL) {
            return NGX_ERROR;
        }

        if (block) {
            b->pos = block->buf->pos;
            b->last = block->buf->last;
            b->memory = 1;
            block = block->next;
        }

        cl->buf = b;
        cl->next = NULL;
        **last = cl;
        *last = &cl->next;
    }

    if (b) {
        b->last_buf = ctx->complete;
        b->last_in_chain = ctx->complete;
    }

    return NGX_OK;
}


/*
 * Sends another response than the app's, whose buffers are discarded.  The op
 * is detached already.
 */

static ngx_int_t
ngx_http_latchkey_send_replacement(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_chain_t *in)
{
    ngx_int_t  rc;

    ctx->state = NGX_HTTP_LATCHKEY_DROP;
    r->buffered &= ~NGX_HTTP_LATCHKEY_BUFFERED;

    ngx_http_latchkey_discard_buffers(ctx->rest);
    ngx_http_latchkey_discard_buffers(in);
    ctx->rest = NULL;

    if (ctx->replacement == NULL) {
        return NGX_ERROR;
    }

    rc = ngx_http_latchkey_send_header(r);

    if (rc == NGX_ERROR || r->header_only) {
        return rc;
    }

    return ngx_http_latchkey_next_body(r, ctx->replacement);
}


/* a filter that wants an error page comes too late: the response is settled */

static ngx_int_t
ngx_http_latchkey_send_header(ngx_http_request_t *r)
{
    ngx_int_t  rc;

    rc = ngx_http_latchkey_next_header(r);

    return rc > NGX_OK ? NGX_ERROR : rc;
}
