
/*
 * What an answer means for its operation: keep it, release the key, or admit
 * that nobody knows.
 *
 * An app says what it did by a header of its own, or else by its status:
 *
 *   it said   Latchkey-Outcome   status
 *   -------   ----------------   -------------------------------------------
 *   DID       done               2xx, 3xx; those of idempotency_keep
 *   REFUSED   -                  4xx, but for the next line
 *   NOTHING   nothing            401, 407, 408, 425, 429, 5xx; those of
 *                                idempotency_release
 *   UNKNOWN   unknown            502, 504; what is not of 200 to 599; none,
 *                                where it got the request
 *
 * A header that cannot be read leaves it to the status, but makes UNKNOWN of
 * NOTHING.  Where one app leads to another (X-Accel-Redirect, error_page),
 * UNKNOWN stays, DID stays but for UNKNOWN, and the rest is what the last one
 * said.  Together with what the client is told, that makes the class:
 *
 *   it said        the client is told                       class
 *   ------------   --------------------------------------   -------
 *   not reached    anything                                 release
 *   UNKNOWN        anything                                 doubt
 *   DID, REFUSED   the app's status                         keep
 *                  another that is kept, on a page          keep
 *                  another that is not, or an error of      omit
 *                  nginx's own
 *   NOTHING        2xx on a page, though the app's status   keep
 *                  was another and it sent no header
 *                  anything else                            release
 *
 * A page is what X-Accel-Redirect or error_page put in the app's place.  An
 * error of nginx's own is not: nginx failed on the way to the page, so that
 * it is known what the app did, but its answer is not there.  Where no
 * upstream was asked at all, nginx's content handler was the app; so is the
 * handler of a location that was led to, such as one in Lua, if its status is
 * what the client gets.
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


static ngx_str_t  ngx_http_latchkey_word_name = ngx_string("Latchkey-Outcome");
static ngx_str_t  ngx_http_latchkey_keep_name = ngx_string("Latchkey-Keep");


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


ngx_chain_t *
ngx_http_latchkey_unknown(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t status, const char *detail)
{
    struct lk_problem  problem;

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.kind = LK_PROBLEM_OUTCOME_UNKNOWN;
    problem.status = status;
    problem.detail = latchkey_slice(detail);
    problem.reference = ngx_http_latchkey_slice(&ctx->reference);

    return ngx_http_latchkey_set_problem(r, &problem,
                              status == NGX_HTTP_SERVICE_UNAVAILABLE
                              || ctx->conf->reexecute
                              ? NGX_HTTP_LATCHKEY_SOON
                              : NGX_HTTP_LATCHKEY_ASK_AGAIN);
}


/* the app has the request, and its outcome is not known */

ngx_chain_t *
ngx_http_latchkey_set_lost(ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx)
{
    return ngx_http_latchkey_unknown(r, ctx,
                                     ctx->app_status
                                     == NGX_HTTP_GATEWAY_TIME_OUT
                                     && !ctx->truncated
                                     ? NGX_HTTP_GATEWAY_TIME_OUT
                                     : NGX_HTTP_BAD_GATEWAY,
                                     "The request reached the app, but what "
                                     "came of it is not known: it may or may "
                                     "not have taken effect.");
}


/*
 * In place of an error page of nginx's own, which does not say what it means
 * for the operation; NULL: out of memory.
 */

ngx_chain_t *
ngx_http_latchkey_set_instead(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    u_char             *p;
    struct lk_problem   problem;
    u_char              detail[512];

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_DOUBT) {
        return ngx_http_latchkey_set_lost(r, ctx);
    }

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.status = r->headers_out.status;
    problem.reference = ngx_http_latchkey_slice(&ctx->reference);

    if (ctx->op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE) {
        problem.kind = LK_PROBLEM_NOT_REACHED;

        if (problem.status < 500) {
            problem.status = 0;                  /* of a page that is missing */
        }

        problem.detail = latchkey_slice("The request did not reach the app: "
                                        "nothing happened. Send the same "
                                        "request again later.");

        return ngx_http_latchkey_set_problem(r, &problem,
                                             NGX_HTTP_LATCHKEY_SOON);
    }

    problem.kind = LK_PROBLEM_ANSWER_NOT_KEPT;
    problem.original_status = ctx->op->status;

    p = ngx_slprintf(detail, detail + sizeof(detail),
                     "The request was processed with status %ui and will not "
                     "be run again, but its answer could not be sent.",
                     ctx->op->status);

    problem.detail.data = (char *) detail;
    problem.detail.len = p - detail;

    return ngx_http_latchkey_set_problem(r, &problem, 0);
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
