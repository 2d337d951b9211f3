
/*
 * `idempotency_operation`: where the client of an accepted request asks how
 * far it has come, until the app's answer is there.
 */


#include "ngx_http_latchkey_module.h"


static ngx_int_t ngx_http_latchkey_operation_words(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);
static ngx_int_t ngx_http_latchkey_operation_told(ngx_http_request_t *r,
    const struct lk_reply *record);
static void ngx_http_latchkey_operation_uncache(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_operation_answer(
    const struct lk_reply *record, struct lk_decision *answer);
static struct lk_slice ngx_http_latchkey_operation_text(
    const struct lk_reply *record, const char *name);
static uint64_t ngx_http_latchkey_operation_number(
    const struct lk_reply *record, const char *name);
static ngx_chain_t *ngx_http_latchkey_operation_progress(
    ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_reply *record, ngx_uint_t runs);


ngx_int_t
ngx_http_latchkey_operation_handler(ngx_http_request_t *r)
{
    return ngx_http_latchkey_query(r, ngx_http_latchkey_operation_words,
                                   ngx_http_latchkey_operation_told);
}


/* what follows the last slash; one that cannot be is nobody's */

static ngx_int_t
ngx_http_latchkey_operation_words(ngx_http_request_t *r, ngx_str_t *words,
    ngx_uint_t *n, enum lk_problem_kind *kind, const char **fault)
{
    u_char  *p, *last;

    last = r->uri.data + r->uri.len;

    for (p = last; p > r->uri.data && p[-1] != '/'; p--) { /* void */ }

    words[2].data = p;
    words[2].len = last - p;

    if (!ngx_http_latchkey_is_reference(&words[2])) {
        *kind = LK_PROBLEM_NOT_FOUND;
        return NGX_DECLINED;
    }

    *n = 3;
    ngx_str_set(&words[0], "FIND");

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_operation_told(ngx_http_request_t *r,
    const struct lk_reply *record)
{
    ngx_chain_t              *out;
    struct lk_slice           state;
    struct lk_decision          answer;
    ngx_http_latchkey_ctx_t   ctx;

    ngx_memzero(&ctx, sizeof(ngx_http_latchkey_ctx_t));

    ctx.request = r;
    ctx.conf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    if (ngx_http_latchkey_operation_answer(record, &answer) != NGX_OK) {
        return NGX_DECLINED;
    }

    /* the record goes away with this event */

    ctx.reference.len = answer.reference.len;
    ctx.reference.data = ngx_pnalloc(r->pool, answer.reference.len + 1);
    if (ctx.reference.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memcpy(ctx.reference.data, answer.reference.data,
               answer.reference.len);

    state = ngx_http_latchkey_operation_text(record, "state");

    if (latchkey_slice_equal(state, LK_SLICE("released"))) {
        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_NOT_FOUND,
                                    "The operation was given up before it "
                                    "took effect; the same request with the "
                                    "same key begins it anew.", 0);
    }

    if (answer.verdict == LK_VERDICT_ACCEPTED) {
        out = ngx_http_latchkey_operation_progress(r, &ctx, record,
                  !latchkey_slice_equal(state, LK_SLICE("accepted")));

    } else {
        out = ngx_http_latchkey_set_verdict(r, &ctx, &answer);
    }

    if (out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* what the app said about that was meant for the answer to a POST */

    ngx_http_latchkey_operation_uncache(r);

    if (ngx_http_latchkey_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send(r, out);
}


static void
ngx_http_latchkey_operation_uncache(ngx_http_request_t *r)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (h[i].key.len == sizeof("Cache-Control") - 1
                && ngx_strncasecmp(h[i].key.data, (u_char *) "Cache-Control",
                                   h[i].key.len)
                   == 0)
            {
                h[i].hash = 0;
            }
        }
    }
}


/* what a claim would say; ACCEPTED for whatever is not over */

static ngx_int_t
ngx_http_latchkey_operation_answer(const struct lk_reply *record,
    struct lk_decision *answer)
{
    uint64_t         status;
    struct lk_slice  state;

    ngx_memzero(answer, sizeof(struct lk_decision));

    state = ngx_http_latchkey_operation_text(record, "state");

    answer->reference = ngx_http_latchkey_operation_text(record, "reference");
    answer->verdict = LK_VERDICT_ACCEPTED;

    if (answer->reference.len == 0) {
        return NGX_DECLINED;
    }

    if (latchkey_slice_equal(state, LK_SLICE("uncertain"))) {
        answer->verdict = LK_VERDICT_UNCERTAIN;
        answer->reason = ngx_http_latchkey_operation_text(record, "reason");
        return NGX_OK;
    }

    if (!latchkey_slice_equal(state, LK_SLICE("completed"))) {
        return NGX_OK;
    }

    status = ngx_http_latchkey_operation_number(record, "status");

    if (status < 200 || status > 599) {
        return NGX_DECLINED;
    }

    answer->response.status = (unsigned) status;
    answer->response.headers = ngx_http_latchkey_operation_text(record,
                                                                "headers");
    answer->response.body = ngx_http_latchkey_operation_text(record, "body");
    answer->expires_ms = ngx_http_latchkey_operation_number(record,
                                                            "expires-ms");
    answer->reason = ngx_http_latchkey_operation_text(record,
                                                      "omitted-reason");
    answer->verdict = answer->reason.len ? LK_VERDICT_OMITTED
                                         : LK_VERDICT_REPLAY;

    return NGX_OK;
}


static struct lk_slice
ngx_http_latchkey_operation_text(const struct lk_reply *record,
    const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(record, name);

    return value && value->type == LK_REPLY_TEXT ? value->text : LK_SLICE("");
}


static uint64_t
ngx_http_latchkey_operation_number(const struct lk_reply *record,
    const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(record, name);

    return value && value->type == LK_REPLY_INTEGER && value->integer > 0
           ? (uint64_t) value->integer : 0;
}


static ngx_chain_t *
ngx_http_latchkey_operation_progress(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_reply *record,
    ngx_uint_t runs)
{
    char            time[LK_TIMESTAMP_TEXT + 1];
    uint64_t        since;
    ngx_chain_t    *out;
    struct lk_buf   json;

    ngx_memzero(&json, sizeof(struct lk_buf));

    since = ngx_http_latchkey_operation_number(record, "claimed-ms");
    latchkey_timestamp_text(since, time);

    if (latchkey_buf_printf(&json, "{\"reference\":\"%.*s\",\"status\":"
                            "\"%s\"", (int) ctx->reference.len,
                            ctx->reference.data,
                            runs ? "running" : "accepted")
        != LK_OK
        || (since && latchkey_buf_printf(&json, ",\"accepted_at\":\"%s\"",
                                         time)
                     != LK_OK)
        || latchkey_buf_printf(&json, ",\"attempts\":%llu}\n",
                               (unsigned long long)
                               ngx_http_latchkey_operation_number(record,
                                                                  "attempt"))
           != LK_OK)
    {
        latchkey_buf_free(&json);
        return NULL;
    }

    out = ngx_http_latchkey_set_progress(r, ctx->conf, &json);

    return out && ngx_http_latchkey_add_header(r, "Idempotency-Reference",
                                               &ctx->reference)
           ? out : NULL;
}
