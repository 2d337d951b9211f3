
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


/* seconds: the most that latchkeyd can be configured to allow */
#define NGX_HTTP_LATCHKEY_KEEP_MAX  (36500 * 24 * 60 * 60LL)


typedef enum {
    NGX_HTTP_LATCHKEY_REPORT_NONE = 0,
    NGX_HTTP_LATCHKEY_REPORT_DONE,
    NGX_HTTP_LATCHKEY_REPORT_NOTHING,
    NGX_HTTP_LATCHKEY_REPORT_UNKNOWN,
    NGX_HTTP_LATCHKEY_REPORT_UNREADABLE
} ngx_http_latchkey_report_e;


static ngx_int_t ngx_http_latchkey_content_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_hook_upstream(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_reinit_request(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_process_header(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_skip_interim(ngx_http_request_t *r,
    ngx_http_upstream_t *u, ngx_http_latchkey_ctx_t *ctx);
static ngx_int_t ngx_http_latchkey_input_filter_init(void *data);
static ngx_int_t ngx_http_latchkey_pipe_filter(ngx_event_pipe_t *p,
    ngx_buf_t *buf);
static ngx_int_t ngx_http_latchkey_input_filter(void *data, ssize_t bytes);
static ngx_http_latchkey_settle_e ngx_http_latchkey_settlement_of(
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t sent);
static void ngx_http_latchkey_read_states(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static void ngx_http_latchkey_note_status(ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t status, ngx_http_latchkey_report_e report);
static ngx_uint_t ngx_http_latchkey_note_app(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_app_e app, ngx_uint_t status, char *reason);
static ngx_http_latchkey_report_e ngx_http_latchkey_read_report(
    ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx);
static ngx_http_latchkey_report_e ngx_http_latchkey_parse_report(
    ngx_str_t *value);
static void ngx_http_latchkey_read_keep(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static ngx_http_latchkey_app_e ngx_http_latchkey_app_by_status(
    ngx_http_latchkey_loc_conf_t *llcf, ngx_uint_t status);
static ngx_uint_t ngx_http_latchkey_is_listed(ngx_array_t *statuses,
    ngx_uint_t status);
static ngx_uint_t ngx_http_latchkey_is_upstream_asked(
    ngx_http_latchkey_ctx_t *ctx);
static ngx_uint_t ngx_http_latchkey_is_by_handler(
    ngx_http_latchkey_ctx_t *ctx);
static ngx_uint_t ngx_http_latchkey_is_app_reached(
    ngx_http_latchkey_ctx_t *ctx);


/* headers by which the app reports: what it did, how long that is stored */

static ngx_str_t  ngx_http_latchkey_report_headers[] = {
    ngx_string("Latchkey-Outcome"),
    ngx_string("Latchkey-Keep"),
    ngx_null_string
};


/* content_handler() calls the real handler and then hooks its upstream. */

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

    /* NGX_DONE: the request still has a reference, whatever the handler did */

    if (rc == NGX_DONE && r->upstream && r->upstream->cleanup) {
        ngx_http_latchkey_hook_upstream(r, ctx);
    }

    return rc;
}


static void
ngx_http_latchkey_hook_upstream(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_upstream_t  *u;

    u = r->upstream;

    if (u->process_header == ngx_http_latchkey_process_header
        || u->process_header == NULL || u->header_sent)
    {
        return;                   /* a redirect inside the handler did */
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


/* for the next server: the response is read from its beginning */

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


/* Reads headers until there is one that is not interim. */

static ngx_int_t
ngx_http_latchkey_process_header(ngx_http_request_t *r)
{
    ngx_int_t                 rc;
    ngx_http_upstream_t      *u;
    ngx_http_latchkey_ctx_t  *ctx;

    u = r->upstream;
    ctx = ngx_http_latchkey_get_ctx(r);

    for ( ;; ) {

        /* it changes itself from the status line to the headers */

        u->process_header = ctx->process_header;

        rc = u->process_header(r);

        ctx->process_header = u->process_header;
        u->process_header = ngx_http_latchkey_process_header;

        if (rc != NGX_OK
            || u->headers_in.status_n < 100 || u->headers_in.status_n > 199
            || u->headers_in.status_n == NGX_HTTP_SWITCHING_PROTOCOLS
            || ngx_http_latchkey_skip_interim(r, u, ctx) != NGX_OK)
        {
            return rc;
        }

        if (u->buffer.pos == u->buffer.last) {
            return NGX_AGAIN;
        }
    }
}


/* forgets what was read of an interim response, like for the next server */

static ngx_int_t
ngx_http_latchkey_skip_interim(ngx_http_request_t *r, ngx_http_upstream_t *u,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char  *start;

    if (u->headers_in.status) {
        return NGX_DECLINED;           /* a header of CGI, not a status line */
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

    /* the next response takes its place, in a cache too */

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


/* after the header: the filters for the body are set by now */

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
 * keeps nginx from taking that for the end of the response.
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

        /* the buffers it made of this one before, as if they were all */

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


/*
 * Called once, when the header of the response that the client would get is
 * known.
 */

void
ngx_http_latchkey_classify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t               sent;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;
    sent = r->headers_out.status ? r->headers_out.status : NGX_HTTP_OK;

    op->status = sent;
    ctx->own_page = (r->expect_tested && r->err_status >= 400);

    if (!ngx_http_latchkey_is_upstream_asked(ctx)
        || (ngx_http_latchkey_is_by_handler(ctx)
            && ctx->app != NGX_HTTP_LATCHKEY_APP_UNKNOWN))
    {
        ngx_http_latchkey_note_status(ctx, sent,
                                      NGX_HTTP_LATCHKEY_REPORT_NONE);
        ctx->reason = "the response itself leaves it open";

    } else {
        ngx_http_latchkey_read_states(r, ctx);
    }

    op->contacted = (ctx->app != NGX_HTTP_LATCHKEY_APP_UNREACHED);
    op->settle = ngx_http_latchkey_settlement_of(ctx, sent);

    if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_OMIT) {
        op->status = ctx->app_status;
        ctx->reason = "another response had to be sent in its place";
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
         * nginx makes a response without a header of bytes that are not HTTP.
         * The client must get one with a header.
         */

        if (!ctx->observe) {
            r->http_version = ctx->http_version;
        }

        ngx_http_latchkey_set_doubt(ctx, "the app's response was not HTTP");

    } else if (sent < 200 && !ngx_http_latchkey_is_handed_over(r)) {
        ngx_http_latchkey_set_doubt(ctx, "the app's response was not final");
    }
}


/* the second table; ctx->app is the first column */

static ngx_http_latchkey_settle_e
ngx_http_latchkey_settlement_of(ngx_http_latchkey_ctx_t *ctx, ngx_uint_t sent)
{
    ngx_uint_t               page;
    ngx_http_latchkey_app_e  by_status;

    page = (sent != ctx->app_status && !ctx->own_page);

    switch (ctx->app) {

    case NGX_HTTP_LATCHKEY_APP_UNREACHED:
        return NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

    case NGX_HTTP_LATCHKEY_APP_NOTHING:
        return page && sent >= 200 && sent <= 299 && !ctx->by_header
               ? NGX_HTTP_LATCHKEY_SETTLE_KEEP
               : NGX_HTTP_LATCHKEY_SETTLE_RELEASE;

    case NGX_HTTP_LATCHKEY_APP_REFUSED:
    case NGX_HTTP_LATCHKEY_APP_DID:
        by_status = ngx_http_latchkey_app_by_status(ctx->conf, sent);

        return sent == ctx->app_status
               || (page && (by_status == NGX_HTTP_LATCHKEY_APP_REFUSED
                            || by_status == NGX_HTTP_LATCHKEY_APP_DID))
               ? NGX_HTTP_LATCHKEY_SETTLE_KEEP
               : NGX_HTTP_LATCHKEY_SETTLE_OMIT;

    default: /* NGX_HTTP_LATCHKEY_APP_UNKNOWN */
        return NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
    }
}


/*
 * Reads nginx's record of each app asked since the last call.  Only the header
 * of the last one is still there: so this is called at each redirect, and for
 * the response.
 */

static void
ngx_http_latchkey_read_states(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_report_e  report;
    ngx_http_upstream_state_t  *state;

    state = r->upstream_states->elts;

    for ( /* void */ ;
         ctx->states_read < r->upstream_states->nelts;
         ctx->states_read++)
    {
        if (state[ctx->states_read].peer == NULL) {
            continue;                            /* between two redirects */
        }

        if (state[ctx->states_read].header_time == (ngx_msec_t) -1) {

            if (state[ctx->states_read].bytes_sent) {
                (void) ngx_http_latchkey_note_app(ctx,
                                        NGX_HTTP_LATCHKEY_APP_UNKNOWN,
                                        state[ctx->states_read].status,
                                        "the app got the request and did not "
                                        "respond");
            }

            continue;
        }

        report = NGX_HTTP_LATCHKEY_REPORT_NONE;

        if (r->upstream && r->upstream->state == &state[ctx->states_read]) {
            report = ngx_http_latchkey_read_report(r, ctx);
            ngx_http_latchkey_read_keep(r, ctx);
        }

        ngx_http_latchkey_note_status(ctx, state[ctx->states_read].status,
                                      report);
    }
}


/* What one app did, by its report or else by its status. */

static void
ngx_http_latchkey_note_status(ngx_http_latchkey_ctx_t *ctx, ngx_uint_t status,
    ngx_http_latchkey_report_e report)
{
    char                     *reason;
    ngx_http_latchkey_app_e   app;

    app = ngx_http_latchkey_app_by_status(ctx->conf, status);
    reason = "the app responded with 502 or 504";

    switch (report) {

    case NGX_HTTP_LATCHKEY_REPORT_DONE:
        app = NGX_HTTP_LATCHKEY_APP_DID;
        break;

    case NGX_HTTP_LATCHKEY_REPORT_NOTHING:
        app = NGX_HTTP_LATCHKEY_APP_NOTHING;
        break;

    case NGX_HTTP_LATCHKEY_REPORT_UNKNOWN:
        app = NGX_HTTP_LATCHKEY_APP_UNKNOWN;
        reason = "the app reported that it does not know";
        break;

    case NGX_HTTP_LATCHKEY_REPORT_UNREADABLE:
        if (app == NGX_HTTP_LATCHKEY_APP_NOTHING) {
            app = NGX_HTTP_LATCHKEY_APP_UNKNOWN;
            reason = "the app's report cannot be read";
        }

        break;

    default: /* NGX_HTTP_LATCHKEY_REPORT_NONE */
        break;
    }

    if (ngx_http_latchkey_note_app(ctx, app, status, reason)) {
        ctx->by_header = (report != NGX_HTTP_LATCHKEY_REPORT_NONE);
    }
}


/* 0: what was noted before stays */

static ngx_uint_t
ngx_http_latchkey_note_app(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_app_e app, ngx_uint_t status, char *reason)
{
    if (ctx->app == NGX_HTTP_LATCHKEY_APP_UNKNOWN
        || (ctx->app == NGX_HTTP_LATCHKEY_APP_DID
            && app != NGX_HTTP_LATCHKEY_APP_UNKNOWN
            && app != NGX_HTTP_LATCHKEY_APP_DID))
    {
        return 0;
    }

    ctx->app = app;
    ctx->app_status = status;
    ctx->reason = reason;

    return 1;
}


/* Latchkey-Outcome of the app that has just responded */

static ngx_http_latchkey_report_e
ngx_http_latchkey_read_report(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t                  i;
    ngx_list_part_t            *part;
    ngx_table_elt_t            *h;
    ngx_http_latchkey_report_e  report, next;

    report = NGX_HTTP_LATCHKEY_REPORT_NONE;

    for (part = &r->upstream->headers_in.headers.part; part;
         part = part->next)
    {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {

            if (!ngx_http_latchkey_is_header(&h[i],
                                        &ngx_http_latchkey_report_headers[0]))
            {
                continue;
            }

            next = ngx_http_latchkey_parse_report(&h[i].value);

            if (report != NGX_HTTP_LATCHKEY_REPORT_NONE && report != next) {
                next = NGX_HTTP_LATCHKEY_REPORT_UNREADABLE;
            }

            report = next;
        }
    }

    if (report == NGX_HTTP_LATCHKEY_REPORT_UNREADABLE) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency: the app's \"Latchkey-Outcome\" for "
                      "operation %V is not one of \"done\", \"nothing\" and "
                      "\"unknown\"", &ctx->reference);
    }

    return report;
}


static ngx_http_latchkey_report_e
ngx_http_latchkey_parse_report(ngx_str_t *value)
{
    static struct {
        ngx_str_t                  text;
        ngx_http_latchkey_report_e   report;
    } reports[] = {
        { ngx_string("done"), NGX_HTTP_LATCHKEY_REPORT_DONE },
        { ngx_string("nothing"), NGX_HTTP_LATCHKEY_REPORT_NOTHING },
        { ngx_string("unknown"), NGX_HTTP_LATCHKEY_REPORT_UNKNOWN }
    };

    ngx_uint_t  i;

    for (i = 0; i < sizeof(reports) / sizeof(reports[0]); i++) {
        if (value->len == reports[i].text.len
            && ngx_strncasecmp(value->data, reports[i].text.data, value->len)
               == 0)
        {
            return reports[i].report;
        }
    }

    return NGX_HTTP_LATCHKEY_REPORT_UNREADABLE;
}


/*
 * Latchkey-Keep: the least time for which the operation is stored.  Where
 * several apps send it, the longest counts.
 */

static void
ngx_http_latchkey_read_keep(ngx_http_request_t *r,
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
                                        &ngx_http_latchkey_report_headers[1]))
            {
                continue;
            }

            seconds = ngx_parse_time(&h[i].value, 1);

            if (seconds <= 0 || seconds > NGX_HTTP_LATCHKEY_KEEP_MAX) {
                ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                              "idempotency: the app's \"Latchkey-Keep\" for "
                              "operation %V is not a time from 1s to 36500d, "
                              "such as \"30d\", and is ignored",
                              &ctx->reference);
                continue;
            }

            ctx->op->ttl = ngx_max(ctx->op->ttl, (ngx_msec_t) seconds * 1000);
        }
    }
}


void
ngx_http_latchkey_strip_report(ngx_http_request_t *r)
{
    ngx_http_latchkey_drop_headers(r, ngx_http_latchkey_report_headers);
}


/* the first table, by status alone */

static ngx_http_latchkey_app_e
ngx_http_latchkey_app_by_status(ngx_http_latchkey_loc_conf_t *llcf,
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
 * Grows whenever an upstream is started, also if its name is not found and
 * nginx never notes a peer.
 */

ngx_uint_t
ngx_http_latchkey_upstreams_asked(ngx_http_request_t *r)
{
    return r->upstream_states ? r->upstream_states->nelts + 1 : 0;
}


/*
 * Was an upstream asked since the claim?  A location without a guard that
 * redirected here did nothing for the operation.
 */

static ngx_uint_t
ngx_http_latchkey_is_upstream_asked(ngx_http_latchkey_ctx_t *ctx)
{
    return ngx_http_latchkey_upstreams_asked(ctx->request) > ctx->asked_before;
}


/*
 * Did the location of the redirect ask no upstream, but a handler of its own?
 * Then an error page of nginx is the end of that handler.
 */

static ngx_uint_t
ngx_http_latchkey_is_by_handler(ngx_http_latchkey_ctx_t *ctx)
{
    return ctx->handled && (ctx->own_page || ctx->request->err_status == 0)
           && ngx_http_latchkey_upstreams_asked(ctx->request)
              == ctx->asked_until;
}


/* may bytes of the request have reached an app? */

static ngx_uint_t
ngx_http_latchkey_is_app_reached(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_uint_t                  i;
    ngx_http_upstream_state_t  *state;

    state = ctx->request->upstream_states->elts;

    for (i = ctx->asked_before ? ctx->asked_before - 1 : 0;
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


ngx_http_latchkey_app_e
ngx_http_latchkey_update_app(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    if (r->upstream_states) {
        ngx_http_latchkey_read_states(r, ctx);
    }

    return ctx->app;
}


/*
 * Decides between RELEASE and DOUBT for a request that ends early, so a wrong
 * 0 would let an operation run twice.
 */

ngx_uint_t
ngx_http_latchkey_may_have_run(ngx_http_latchkey_ctx_t *ctx,
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

        /* bytes_sent is set only when sending ends */

        return !ngx_http_latchkey_is_upstream_asked(ctx)
               || ngx_http_latchkey_is_by_handler(ctx)
               || (r->upstream && r->upstream->peer.connection
                   && r->upstream->request_sent)
               || ngx_http_latchkey_is_app_reached(ctx);

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


void
ngx_http_latchkey_set_doubt(ngx_http_latchkey_ctx_t *ctx, const char *reason)
{
    ctx->op->settle = NGX_HTTP_LATCHKEY_SETTLE_DOUBT;
    ctx->op->reason.data = (u_char *) reason;
    ctx->op->reason.len = ngx_strlen(reason);
    ctx->truncated = 1;
}


ngx_uint_t
ngx_http_latchkey_has_no_response(ngx_http_latchkey_ctx_t *ctx)
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
