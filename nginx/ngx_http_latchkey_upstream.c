
/*
 * The app behind nginx's upstream: what it did, and what that means for the
 * operation: store the response, release the key, or report that the outcome
 * is unknown.
 *
 * Functions of nginx's upstream are called through ours where they would break
 * a response that is held:
 *
 *   process_header   an interim response (100, 102, 103) is skipped: nginx
 *                    takes it for the response, and what follows for its body
 *   input filters    a body that cannot be read makes nginx close the client's
 *                    connection; here it ends like one that was cut off, since
 *                    nothing of it was sent yet
 *
 * The content handler makes the upstream and sets its functions before the
 * first byte of a response is read: ours are put in place when it returns.
 *
 * An app reports what it did by a header of its own, or else by its status:
 *
 *   app       Latchkey-Outcome   status
 *   -------   ----------------   -------------------------------------------
 *   DID       done               2xx, 3xx; those of idempotency_keep
 *   REFUSED   -                  4xx, but for the next line
 *   NOTHING   nothing            401, 407, 408, 425, 429, 5xx; those of
 *                                idempotency_release
 *   UNKNOWN   unknown            502, 504; not in 200 to 599; no response,
 *                                where it got the request
 *
 * With a header that cannot be read the status counts, but NOTHING becomes
 * UNKNOWN.  Where one app leads to another (X-Accel-Redirect, error_page),
 * UNKNOWN stays, DID stays but for UNKNOWN, and else the last app counts.
 * Together with the status that the client gets, that makes the settlement:
 *
 *   app            the client gets                          settlement
 *   ------------   --------------------------------------   ----------
 *   not reached    anything                                 release
 *   UNKNOWN        anything                                 doubt
 *   DID, REFUSED   the app's status                         keep
 *                  another that is stored, on a page        keep
 *                  another that is not, or an error page    omit
 *                  of nginx
 *   NOTHING        2xx on a page, though the app's status   keep
 *                  was another and it sent no header
 *                  anything else                            release
 *
 * A page is what X-Accel-Redirect or error_page put in the app's place.  An
 * error page of nginx is not: nginx failed on the way to the page, so it is
 * known what the app did, but its response is not there.  Where no upstream was
 * asked at all, nginx's content handler was the app; so is the handler of a
 * location that a redirect led to, such as one in Lua, if the client gets its
 * status.
 */


#include "ngx_http_latchkey_module.h"


/* seconds: the most that latchkeyd can be set to allow */
#define NGX_HTTP_LATCHKEY_KEEP_MAX  (36500 * 24 * 60 * 60LL)


typedef enum {
    NGX_HTTP_LATCHKEY_WORD_NONE = 0,
    NGX_HTTP_LATCHKEY_WORD_DONE,
    NGX_HTTP_LATCHKEY_WORD_NOTHING,
    NGX_HTTP_LATCHKEY_WORD_UNKNOWN,
    NGX_HTTP_LATCHKEY_WORD_UNREADABLE
} ngx_http_latchkey_word_e;


static ngx_int_t ngx_http_latchkey_content_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_hook(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_reinit_request(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_process_header(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_pass_over(ngx_http_request_t *r,
    ngx_http_upstream_t *u, ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_input_filter_init(void *data);
static ngx_int_t ngx_http_latchkey_pipe_filter(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static ngx_int_t ngx_http_latchkey_input_filter(void *data, ssize_t bytes);
static ngx_http_latchkey_settle_e ngx_http_latchkey_class_of(
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t told);
static void ngx_http_latchkey_hear(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_hear_one(ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t status, ngx_http_latchkey_word_e word);
static ngx_uint_t ngx_http_latchkey_note_said(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_app_e said, ngx_uint_t status, char *reason);
static ngx_http_latchkey_word_e ngx_http_latchkey_word(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_http_latchkey_word_e ngx_http_latchkey_read_word(
    ngx_str_t *value);
static void ngx_http_latchkey_hear_keep(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_uint_t ngx_http_latchkey_is_header(ngx_table_elt_t *h,
    ngx_str_t *name);
static ngx_http_latchkey_app_e ngx_http_latchkey_said_by(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t status);
static ngx_uint_t ngx_http_latchkey_is_listed(ngx_array_t *statuses,
    ngx_uint_t status);
static ngx_uint_t ngx_http_latchkey_asked(ngx_http_latchkey_ctx_t *ctx);
static ngx_uint_t ngx_http_latchkey_by_handler(ngx_http_latchkey_ctx_t *ctx);
static ngx_uint_t ngx_http_latchkey_reached(ngx_http_latchkey_ctx_t *ctx);


static ngx_str_t  ngx_http_latchkey_word_name = ngx_string("Latchkey-Outcome");
static ngx_str_t  ngx_http_latchkey_keep_name = ngx_string("Latchkey-Keep");


void
ngx_http_latchkey_wrap_content(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (r->content_handler
        && r->content_handler != ngx_http_latchkey_content_handler)
    {
        ctx->content_handler = r->content_handler;
        r->content_handler = ngx_http_latchkey_content_handler;
    }
}


static ngx_int_t
ngx_http_latchkey_content_handler(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_latchkey_ctx_t  *ctx;

    ctx = ngx_http_latchkey_get_ctx(r);

    r->content_handler = ctx->content_handler;

    rc = r->content_handler(r);

    /* NGX_DONE: there is a reference to the request left, whatever it did */

    if (rc == NGX_DONE && r->upstream && r->upstream->cleanup) {
        ngx_http_latchkey_hook(r, ctx);
    }

    return rc;
}


static void
ngx_http_latchkey_hook(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->process_header == ngx_http_latchkey_process_header
        || u->process_header == NULL || u->header_sent)
    {
        return;                                  /* a redirect within it did */
    }

    ctx->reinit_request = u->reinit_request;
    ctx->process_header = u->process_header;

    u->reinit_request = ngx_http_latchkey_reinit_request;
    u->process_header = ngx_http_latchkey_process_header;

    if (u->input_filter_init && u->input_filter_ctx == r) {
        ctx->input_filter_init = u->input_filter_init;
        u->input_filter_init = ngx_http_latchkey_input_filter_init;
    }
}


/* to the next server: the answer is read from its beginning */

static ngx_int_t
ngx_http_latchkey_reinit_request(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    u->process_header = ctx->process_header;

    rc = ctx->reinit_request(r);

    ctx->process_header = u->process_header;
    u->process_header = ngx_http_latchkey_process_header;

    return rc;
}


static ngx_int_t
ngx_http_latchkey_process_header(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    for ( ;; ) {

        /* it goes from the status line to the headers by itself */

        u->process_header = ctx->process_header;

        rc = u->process_header(r);

        ctx->process_header = u->process_header;
        u->process_header = ngx_http_latchkey_process_header;

        if (rc != NGX_OK
            || u->headers_in.status_n < 100 || u->headers_in.status_n > 199
            || u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS
            || ngx_http_latchkey_pass_over(r, u, ctx) != NGX_OK)
        {
            return rc;
        }

        if (u->buffer.pos == u->buffer.last) {
            return NGX_AGAIN;
        }
    }
}


/* what was read of an interim answer is forgotten, as for the next server */

static ngx_int_t
ngx_http_latchkey_pass_over(ngx_http_request_t *r, ngx_http_upstream_t *u,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char  *start;

    if (u->headers_in.status) {
        return NGX_DECLINED;            /* a header of CGI, not a status line */
    }

    ngx_memzero(&u->headers_in, sizeof(ngx_http_upstream_headers_in_t));

    u->headers_in.content_length_n = -1;
    u->headers_in.last_modified_time = -1;

    if (ngx_list_init(&u->headers_in.headers, r->pool, 8,
                      sizeof(ngx_table_elt_t))
        != NGX_OK
        || ngx_list_init(&u->headers_in.trailers, r->pool, 2,
                         sizeof(ngx_table_elt_t))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    u->state->status = 0;
    u->keepalive = 0;
    u->upgrade = 0;

    /* the next one takes its place, in a cache too */

    start = u->buffer.start;

#if (NGX_HTTP_CACHE)
    if (r->cache) {
        start += r->cache->header_start;
    }
#endif

    u->buffer.last = ngx_movemem(start, u->buffer.pos,
                                 u->buffer.last - u->buffer.pos);
    u->buffer.pos = start;

    return ngx_http_latchkey_reinit_request(r);
}


/* after the header: the filters for the body are set */

static ngx_int_t
ngx_http_latchkey_input_filter_init(void *data)
{
    ngx_http_request_t  *r = data;

    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    ctx->unreadable = 0;

    if (ctx->input_filter_init(data) != NGX_OK) {
        return NGX_ERROR;
    }

    if (u->pipe && u->pipe->input_filter != ngx_http_latchkey_pipe_filter) {
        ctx->pipe_filter = u->pipe->input_filter;
        u->pipe->input_filter = ngx_http_latchkey_pipe_filter;
    }

    if (u->input_filter != ngx_http_latchkey_input_filter) {
        ctx->input_filter = u->input_filter;
        u->input_filter = ngx_http_latchkey_input_filter;
    }

    return NGX_OK;
}


/*
 * Once it has failed, nothing more is read; a length that is neither 0 nor -1
 * keeps nginx from taking the end for the end of the answer.
 */

static ngx_int_t
ngx_http_latchkey_pipe_filter(ngx_event_pipe_t *p, ngx_buf_t *buf)
{
    ngx_buf_t                *b;
    ngx_http_request_t       *r;
    ngx_http_latchkey_ctx_t  *ctx;

    r = p->input_ctx;
    ctx = ngx_http_latchkey_get_ctx(r);

    if (!ctx->unreadable && ctx->pipe_filter(p, buf) == NGX_OK) {
        return NGX_OK;
    }

    if (!ctx->unreadable && buf->shadow) {

        /* what it made of this buffer before: as if it were all */

        for (b = buf->shadow; b->shadow && b->shadow != buf; b = b->shadow) {
            /* void */
        }

        b->shadow = buf;
        b->last_shadow = 1;
    }

    ctx->unreadable = 1;
    p->upstream_error = 1;
    p->length = 1;

    return NGX_OK;
}


/* without buffering */

static ngx_int_t
ngx_http_latchkey_input_filter(void *data, ssize_t bytes)
{
    ngx_http_request_t  *r = data;

    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    if (!ctx->unreadable && ctx->input_filter(data, bytes) == NGX_OK) {
        return NGX_OK;
    }

    ctx->unreadable = 1;
    u->error = 1;
    u->length = 1;

    return NGX_OK;
}


void
ngx_http_latchkey_classify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t               told;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;
    told = r->headers_out.status ? r->headers_out.status : NGX_HTTP_OK;

    op->status = told;
    ctx->own_page = (r->expect_tested && r->err_status >= 400);

    if (!ngx_http_latchkey_asked(ctx)
        || (ngx_http_latchkey_by_handler(ctx)
            && ctx->app != NGX_HTTP_LATCHKEY_APP_UNKNOWN))
    {
        ngx_http_latchkey_hear_one(ctx, told, NGX_HTTP_LATCHKEY_WORD_NONE);
        ctx->reason = "the answer itself leaves it open";

    } else {
        ngx_http_latchkey_hear(r, ctx);
    }

    op->contacted = (ctx->app != NGX_HTTP_LATCHKEY_APP_UNREACHED);
    op->settle = ngx_http_latchkey_class_of(ctx, told);

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT) {
        op->status = ctx->app_status;
        ctx->reason = "another one had to be sent in its place";
    }

    op->reason.data = (u_char *) ctx->reason;
    op->reason.len = ctx->reason ? ngx_strlen(ctx->reason) : 0;

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE
        && ctx->app == NGX_HTTP_LATCHKEY_APP_UNREACHED)
    {
        return;
    }

    if (r->http_version < NGX_HTTP_VERSION_10) {

        /*
         * What nginx makes of bytes that are not HTTP: an answer without a
         * header.  The client must get one.
         */

        if (!ctx->observe) {
            r->http_version = ctx->http_version;
        }

        ngx_http_latchkey_doubt(ctx, "the app's answer was not HTTP");

    } else if (told < 200 && !ngx_http_latchkey_is_handed_over(r)) {
        ngx_http_latchkey_doubt(ctx, "the app's answer was not a final one");
    }
}


/* the second table; ctx->app is what the apps said */

static ngx_http_latchkey_settle_e
ngx_http_latchkey_class_of(ngx_http_latchkey_ctx_t *ctx, ngx_uint_t told)
{
    ngx_uint_t               page;
    ngx_http_latchkey_app_e  by_status;

    page = (told != ctx->app_status && !ctx->own_page);

    switch (ctx->app) {

    case NGX_HTTP_LATCHKEY_APP_UNREACHED:
        return NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

    case NGX_HTTP_LATCHKEY_APP_NOTHING:
        return page && told >= 200 && told <= 299 && !ctx->worded
               ? NGX_HTTP_LATCHKEY_SETTLE_KEEP
               : NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

    case NGX_HTTP_LATCHKEY_APP_REFUSED:
    case NGX_HTTP_LATCHKEY_APP_DID:
        by_status = ngx_http_latchkey_said_by(ctx->conf, told);

        return told == ctx->app_status
               || (page && (by_status == NGX_HTTP_LATCHKEY_APP_REFUSED
                            || by_status == NGX_HTTP_LATCHKEY_APP_DID))
               ? NGX_HTTP_LATCHKEY_SETTLE_KEEP
               : NGX_HTTP_LATCHKEY_SETTLE_OMIT;

    default: /* NGX_HTTP_LATCHKEY_APP_UNKNOWN */
        return NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
    }
}


/*
 * What the apps said since it was heard last.  Only the last one's header is
 * still there: so this is called at each redirect, and for the answer.
 */

static void
ngx_http_latchkey_hear(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_word_e    word;
    ngx_http_upstream_state_t  *state;

    state = r->upstream_states->elts;

    for ( /* void */ ; ctx->heard < r->upstream_states->nelts; ctx->heard++) {

        if (state[ctx->heard].peer == NULL) {
            continue;                            /* between two redirects */
        }

        if (state[ctx->heard].header_time == (ngx_msec_t) -1) {

            if (state[ctx->heard].bytes_sent) {
                (void) ngx_http_latchkey_note_said(ctx,
                                        NGX_HTTP_LATCHKEY_APP_UNKNOWN,
                                        state[ctx->heard].status,
                                        "the app got the request and did not "
                                        "answer");
            }

            continue;
        }

        word = NGX_HTTP_LATCHKEY_WORD_NONE;

        if (r->upstream && r->upstream->state == &state[ctx->heard]) {
            word = ngx_http_latchkey_word(r, ctx);
            ngx_http_latchkey_hear_keep(r, ctx);
        }

        ngx_http_latchkey_hear_one(ctx, state[ctx->heard].status, word);
    }
}


static void
ngx_http_latchkey_hear_one(ngx_http_latchkey_ctx_t *ctx, ngx_uint_t status,
    ngx_http_latchkey_word_e word)
{
    char                     *reason;
    ngx_http_latchkey_app_e   said;

    said = ngx_http_latchkey_said_by(ctx->conf, status);
    reason = "the app answered 502 or 504";

    switch (word) {

    case NGX_HTTP_LATCHKEY_WORD_DONE:
        said = NGX_HTTP_LATCHKEY_APP_DID;
        break;

    case NGX_HTTP_LATCHKEY_WORD_NOTHING:
        said = NGX_HTTP_LATCHKEY_APP_NOTHING;
        break;

    case NGX_HTTP_LATCHKEY_WORD_UNKNOWN:
        said = NGX_HTTP_LATCHKEY_APP_UNKNOWN;
        reason = "the app said that it does not know";
        break;

    case NGX_HTTP_LATCHKEY_WORD_UNREADABLE:
        if (said == NGX_HTTP_LATCHKEY_APP_NOTHING) {
            said = NGX_HTTP_LATCHKEY_APP_UNKNOWN;
            reason = "what the app said of it cannot be read";
        }

        break;

    default: /* NGX_HTTP_LATCHKEY_WORD_NONE */
        break;
    }

    if (ngx_http_latchkey_note_said(ctx, said, status, reason)) {
        ctx->worded = (word != NGX_HTTP_LATCHKEY_WORD_NONE);
    }
}


/* 0: what was said before stays */

static ngx_uint_t
ngx_http_latchkey_note_said(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_app_e said, ngx_uint_t status, char *reason)
{
    if (ctx->app == NGX_HTTP_LATCHKEY_APP_UNKNOWN
        || (ctx->app == NGX_HTTP_LATCHKEY_APP_DID
            && said != NGX_HTTP_LATCHKEY_APP_UNKNOWN
            && said != NGX_HTTP_LATCHKEY_APP_DID))
    {
        return 0;
    }

    ctx->app = said;
    ctx->app_status = status;
    ctx->reason = reason;

    return 1;
}


/* Latchkey-Outcome of the app that has just answered */

static ngx_http_latchkey_word_e
ngx_http_latchkey_word(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t                 i;
    ngx_list_part_t           *part;
    ngx_table_elt_t           *h;
    ngx_http_latchkey_word_e   word, one;

    word = NGX_HTTP_LATCHKEY_WORD_NONE;

    for (part = &r->upstream->headers_in.headers.part; part;
         part = part->next)
    {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_is_header(&h[i],
                                             &ngx_http_latchkey_word_name))
            {
                continue;
            }

            one = ngx_http_latchkey_read_word(&h[i].value);

            if (word != NGX_HTTP_LATCHKEY_WORD_NONE && word != one) {
                one = NGX_HTTP_LATCHKEY_WORD_UNREADABLE;
            }

            word = one;
        }
    }

    if (word == NGX_HTTP_LATCHKEY_WORD_UNREADABLE) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: the app's \"Latchkey-Outcome\" for "
                      "operation %V is not one of \"done\", \"nothing\" and "
                      "\"unknown\"", &ctx->reference);
    }

    return word;
}


static ngx_http_latchkey_word_e
ngx_http_latchkey_read_word(ngx_str_t *value)
{
    static struct {
        ngx_str_t                  text;
        ngx_http_latchkey_word_e   word;
    } words[] = {
        { ngx_string("done"), NGX_HTTP_LATCHKEY_WORD_DONE },
        { ngx_string("nothing"), NGX_HTTP_LATCHKEY_WORD_NOTHING },
        { ngx_string("unknown"), NGX_HTTP_LATCHKEY_WORD_UNKNOWN }
    };

    ngx_uint_t  i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (value->len == words[i].text.len
            && ngx_strncasecmp(value->data, words[i].text.data, value->len)
               == 0)
        {
            return words[i].word;
        }
    }

    return NGX_HTTP_LATCHKEY_WORD_UNREADABLE;
}


/*
 * Latchkey-Keep: the least time for which the operation is remembered.  Where
 * several apps say it, the longest counts.
 */

static void
ngx_http_latchkey_hear_keep(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_int_t         seconds;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->upstream->headers_in.headers.part; part;
         part = part->next)
    {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_is_header(&h[i],
                                             &ngx_http_latchkey_keep_name))
            {
                continue;
            }

            seconds = ngx_parse_time(&h[i].value, 1);

            if (seconds <= 0 || seconds > NGX_HTTP_LATCHKEY_KEEP_MAX) {
                ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                              "idempotency: the app's \"Latchkey-Keep\" for "
                              "operation %V is not a time from 1s to 36500d, "
                              "such as \"30d\", and does not count",
                              &ctx->reference);
                continue;
            }

            ctx->op->ttl = ngx_max(ctx->op->ttl, (ngx_msec_t) seconds * 1000);
        }
    }
}


void
ngx_http_latchkey_strip_word(ngx_http_request_t *r)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (ngx_http_latchkey_is_header(&h[i],
                                            &ngx_http_latchkey_word_name)
                || ngx_http_latchkey_is_header(&h[i],
                                               &ngx_http_latchkey_keep_name))
            {
                h[i].hash = 0;
            }
        }
    }
}


static ngx_uint_t
ngx_http_latchkey_is_header(ngx_table_elt_t *h, ngx_str_t *name)
{
    return h->key.len == name->len
           && ngx_strncasecmp(h->key.data, name->data, name->len) == 0;
}


/* the first table, by status alone */

static ngx_http_latchkey_app_e
ngx_http_latchkey_said_by(ngx_http_latchkey_loc_conf_t *llcf,
    ngx_uint_t status)
{
    if (ngx_http_latchkey_is_listed(llcf->keep, status)) {
        return NGX_HTTP_LATCHKEY_APP_DID;
    }

    if (ngx_http_latchkey_is_listed(llcf->release, status)) {
        return NGX_HTTP_LATCHKEY_APP_NOTHING;
    }

    switch (status) {

    case NGX_HTTP_BAD_GATEWAY:
    case NGX_HTTP_GATEWAY_TIME_OUT:
        return NGX_HTTP_LATCHKEY_APP_UNKNOWN;

    case NGX_HTTP_UNAUTHORIZED:
    case 407:
    case NGX_HTTP_REQUEST_TIME_OUT:
    case 425:
    case NGX_HTTP_TOO_MANY_REQUESTS:
        return NGX_HTTP_LATCHKEY_APP_NOTHING;
    }

    if (status >= 500 && status <= 599) {
        return llcf->keep_5xx ? NGX_HTTP_LATCHKEY_APP_DID
                              : NGX_HTTP_LATCHKEY_APP_NOTHING;
    }

    if (status >= 400 && status <= 499) {
        return NGX_HTTP_LATCHKEY_APP_REFUSED;
    }

    return (status >= 200 && status <= 399) ? NGX_HTTP_LATCHKEY_APP_DID
                                            : NGX_HTTP_LATCHKEY_APP_UNKNOWN;
}


static ngx_uint_t
ngx_http_latchkey_is_listed(ngx_array_t *statuses, ngx_uint_t status)
{
    ngx_uint_t   i, *listed;

    if (statuses == NULL) {
        return 0;
    }

    listed = statuses->elts;

    for (i = 0; i < statuses->nelts; i++) {
        if (listed[i] == status) {
            return 1;
        }
    }

    return 0;
}


/*
 * How far the asking of upstreams has come: it grows whenever one is begun,
 * also if its name is not found, so that nginx never notes a peer.
 */

ngx_uint_t
ngx_http_latchkey_asking(ngx_http_request_t *r)
{
    return r->upstream_states ? r->upstream_states->nelts + 1 : 0;
}


/*
 * Was an upstream asked, since the claim?  Whoever led here from a location
 * without a guard has said nothing of what is claimed.
 */

static ngx_uint_t
ngx_http_latchkey_asked(ngx_http_latchkey_ctx_t *ctx)
{
    return ngx_http_latchkey_asking(ctx->request) > ctx->before;
}


/*
 * Has the location that was led to asked none, but a handler of its own?  An
 * error page of nginx's is what that handler ended with then.
 */

static ngx_uint_t
ngx_http_latchkey_by_handler(ngx_http_latchkey_ctx_t *ctx)
{
    return ctx->handled && (ctx->own_page || ctx->request->err_status == 0)
           && ngx_http_latchkey_asking(ctx->request) == ctx->led;
}


/* may bytes of the request have reached an app? */

static ngx_uint_t
ngx_http_latchkey_reached(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t                  i;
    ngx_http_upstream_state_t  *state;

    state = ctx->request->upstream_states->elts;

    for (i = ctx->before ? ctx->before - 1 : 0;
         i < ctx->request->upstream_states->nelts;
         i++)
    {
        if (state[i].peer
            && (state[i].header_time != (ngx_msec_t) -1
                || state[i].bytes_sent))
        {
            return 1;
        }
    }

    return 0;
}


ngx_uint_t
ngx_http_latchkey_in_doubt(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (r->upstream_states) {
        ngx_http_latchkey_hear(r, ctx);
    }

    return ctx->app == NGX_HTTP_LATCHKEY_APP_UNKNOWN;
}


ngx_uint_t
ngx_http_latchkey_contacted(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_state_e state)
{
    ngx_http_request_t  *r;

    r = ctx->request;

    switch (state) {

    case NGX_HTTP_LATCHKEY_PASS:
    case NGX_HTTP_LATCHKEY_BODY:
    case NGX_HTTP_LATCHKEY_CLAIM:
    case NGX_HTTP_LATCHKEY_WAIT:
        return 0;

    case NGX_HTTP_LATCHKEY_RUN:

        /* what is being sent is counted only when it ends */

        return !ngx_http_latchkey_asked(ctx)
               || ngx_http_latchkey_by_handler(ctx)
               || (r->upstream && r->upstream->peer.connection
                   && r->upstream->request_sent)
               || ngx_http_latchkey_reached(ctx);

    default:
        return 1;
    }
}


ngx_uint_t
ngx_http_latchkey_is_handed_over(ngx_http_request_t *r)
{
    return r->headers_out.status == NGX_HTTP_SWITCHING_PROTOCOLS
           && r->upstream && r->upstream->upgrade;
}


/* there is no answer of the app's that could be shown */

void
ngx_http_latchkey_doubt(ngx_http_latchkey_ctx_t *ctx, const char *reason)
{
    ctx->op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
    ctx->op->reason.data = (u_char *) reason;
    ctx->op->reason.len = ngx_strlen(reason);
    ctx->truncated = 1;
}


ngx_uint_t
ngx_http_latchkey_has_no_answer(ngx_http_latchkey_ctx_t *ctx)
{
    switch (ctx->op->settle) {

    case NGX_HTTP_LATCHKEY_SETTLE_DOUBT:
        return ctx->truncated || ctx->own_page;

    case NGX_HTTP_LATCHKEY_SETTLE_RELEASE:
        return ctx->own_page && ctx->app == NGX_HTTP_LATCHKEY_APP_UNREACHED;

    case NGX_HTTP_LATCHKEY_SETTLE_OMIT:
        return ctx->own_page;

    default: /* NGX_HTTP_LATCHKEY_SETTLE_KEEP */
        return 0;
    }
}
