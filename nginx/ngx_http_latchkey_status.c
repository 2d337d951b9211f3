
/*
 * `idempotency_status`: a caller asks what became of an operation of its own.
 */


#include "ngx_http_latchkey_module.h"


/* what is shown of a record; nothing else ever is */

typedef enum {
    NGX_HTTP_LATCHKEY_SHOW_TEXT = 0,
    NGX_HTTP_LATCHKEY_SHOW_NUMBER,
    NGX_HTTP_LATCHKEY_SHOW_TIME
} ngx_http_latchkey_show_e;


typedef struct {
    const char                      *name;        /* of the daemon */
    const char                      *member;
    ngx_http_latchkey_show_e         as;
} ngx_http_latchkey_member_t;


static ngx_int_t ngx_http_latchkey_status_words(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);
static ngx_int_t ngx_http_latchkey_status_find(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, ngx_int_t reference, const char **fault);
static ngx_int_t ngx_http_latchkey_status_lookup(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);
static ngx_int_t ngx_http_latchkey_status_arg(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_status_told(ngx_http_request_t *r,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_show(struct lk_buf *json,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_member(struct lk_buf *json,
    ngx_http_latchkey_member_t *member, const struct lk_reply *value);


static ngx_http_latchkey_member_t  ngx_http_latchkey_members[] = {
    { "state", "state", NGX_HTTP_LATCHKEY_SHOW_TEXT },
    { "reference", "reference", NGX_HTTP_LATCHKEY_SHOW_TEXT },
    { "attempt", "attempt", NGX_HTTP_LATCHKEY_SHOW_NUMBER },
    { "claimed-ms", "claimed", NGX_HTTP_LATCHKEY_SHOW_TIME },
    { "since-ms", "since", NGX_HTTP_LATCHKEY_SHOW_TIME },
    { "reason", "uncertain_reason", NGX_HTTP_LATCHKEY_SHOW_TEXT },
    { "completed-ms", "completed", NGX_HTTP_LATCHKEY_SHOW_TIME },
    { "expires-ms", "expires", NGX_HTTP_LATCHKEY_SHOW_TIME },
    { "status", "status", NGX_HTTP_LATCHKEY_SHOW_NUMBER },
    { "omitted-reason", "omitted_reason", NGX_HTTP_LATCHKEY_SHOW_TEXT },
    { NULL, NULL, 0 }
};


ngx_int_t
ngx_http_latchkey_status_handler(ngx_http_request_t *r)
{
    return ngx_http_latchkey_query(r, ngx_http_latchkey_status_words,
                                   ngx_http_latchkey_status_told);
}


/* the question */

static ngx_int_t
ngx_http_latchkey_status_words(ngx_http_request_t *r, ngx_str_t *words,
    ngx_uint_t *n, enum lk_problem_kind *kind, const char **fault)
{
    ngx_int_t  reference;

    reference = ngx_http_latchkey_status_arg(r, "reference", &words[2]);

    return reference == NGX_DECLINED
           ? ngx_http_latchkey_status_lookup(r, words, n, kind, fault)
           : ngx_http_latchkey_status_find(r, words, n, reference, fault);
}


/* by reference; `reference`: how reading it went */

static ngx_int_t
ngx_http_latchkey_status_find(ngx_http_request_t *r, ngx_str_t *words,
    ngx_uint_t *n, ngx_int_t reference, const char **fault)
{
    *n = 3;
    ngx_str_set(&words[0], "FIND");

    if (ngx_http_latchkey_status_arg(r, "key", &words[3]) != NGX_DECLINED
        || ngx_http_latchkey_status_arg(r, "scope", &words[3])
           != NGX_DECLINED)
    {
        *fault = "Give reference, or key and scope, but not both.";
        return NGX_DECLINED;
    }

    if (reference != NGX_OK || !ngx_http_latchkey_is_reference(&words[2])) {
        *fault = "The reference cannot be read: it has the form "
                 "7D3F-92AB-1C4E.";
        return reference == NGX_ERROR ? NGX_ERROR : NGX_DECLINED;
    }

    return NGX_OK;
}


/* by scope and key; a key in the query ends in logs, one in a header not */

static ngx_int_t
ngx_http_latchkey_status_lookup(ngx_http_request_t *r, ngx_str_t *words,
    ngx_uint_t *n, enum lk_problem_kind *kind, const char **fault)
{
    ngx_int_t  key, sent, scope;
    ngx_str_t  value;

    *n = 4;
    ngx_str_set(&words[0], "LOOKUP");

    scope = ngx_http_latchkey_status_arg(r, "scope", &words[2]);
    key = ngx_http_latchkey_status_arg(r, "key", &words[3]);

    if (scope == NGX_ERROR || key == NGX_ERROR) {
        return NGX_ERROR;
    }

    sent = ngx_http_latchkey_get_key(r, &value);

    if (sent == NGX_ERROR || (sent == NGX_OK && key != NGX_DECLINED)) {
        *fault = sent == NGX_ERROR
                 ? "The header Idempotency-Key was sent twice."
                 : "There is a key in Idempotency-Key and one in the query: "
                   "give one of them.";
        return NGX_DECLINED;
    }

    if (sent == NGX_OK) {
        words[3] = value;
        key = NGX_OK;
    }

    if (key == NGX_DECLINED) {
        *fault = scope == NGX_DECLINED
                 ? "The query does not say which operation is meant: give "
                   "reference, or scope and the header Idempotency-Key."
                 : "The query has a scope, but there is no key: send it "
                   "in the header Idempotency-Key.";
        return NGX_DECLINED;
    }

    if (scope == NGX_DECLINED || (scope == NGX_OK && words[2].len == 0)) {
        *fault = "There is a key, but no scope in the query: by default it is "
                 "the method, a space and the path, as in "
                 "scope=POST%20/charges.";
        return NGX_DECLINED;
    }

    if (scope == NGX_ABORT || key == NGX_ABORT) {
        *fault = scope == NGX_ABORT ? "The scope is not percent-encoded."
                                    : "The key is not percent-encoded.";
        return NGX_DECLINED;
    }

    if (words[2].len > NGX_HTTP_LATCHKEY_SCOPE_MAX) {
        *fault = "The scope is longer than 1024 bytes.";
        return NGX_DECLINED;
    }

    key = ngx_http_latchkey_read_key(r->pool, &words[3], &words[3], fault);

    if (key == NGX_DECLINED) {
        *kind = LK_PROBLEM_KEY_INVALID;
    }

    return key;
}


/*
 * As a form would send it: "+" is a space.  NGX_DECLINED: it is not there.
 * NGX_ABORT: a "%" without two digits.
 */

static ngx_int_t
ngx_http_latchkey_status_arg(ngx_http_request_t *r, const char *name,
    ngx_str_t *value)
{
    u_char     *p, *src, *last;
    ngx_int_t   c;
    ngx_str_t   arg;

    if (ngx_http_arg(r, (u_char *) name, ngx_strlen(name), &arg) != NGX_OK) {
        return NGX_DECLINED;
    }

    p = ngx_pnalloc(r->pool, arg.len + 1);
    if (p == NULL) {
        return NGX_ERROR;
    }

    value->data = p;
    src = arg.data;
    last = src + arg.len;

    while (src < last) {

        if (*src == '%') {
            c = last - src < 3 ? NGX_ERROR : ngx_hextoi(src + 1, 2);
            if (c == NGX_ERROR) {
                return NGX_ABORT;
            }

            *p++ = (u_char) c;
            src += 3;
            continue;
        }

        *p++ = *src == '+' ? ' ' : *src;
        src++;
    }

    value->len = p - value->data;

    return NGX_OK;
}


/* the answer */

static ngx_int_t
ngx_http_latchkey_status_told(ngx_http_request_t *r,
    const struct lk_reply *reply)
{
    ngx_int_t      rc;
    struct lk_buf  json;

    ngx_memzero(&json, sizeof(struct lk_buf));

    rc = ngx_http_latchkey_status_show(&json, reply);

    if (rc == NGX_OK) {
        return ngx_http_latchkey_send_text(r, "application/json", &json);
    }

    latchkey_buf_free(&json);

    return rc == NGX_ERROR ? NGX_HTTP_INTERNAL_SERVER_ERROR : rc;
}


/* NGX_DECLINED: this is no record */

static ngx_int_t
ngx_http_latchkey_status_show(struct lk_buf *json,
    const struct lk_reply *reply)
{
    ngx_int_t                    rc;
    const struct lk_reply       *value;
    ngx_http_latchkey_member_t  *member;

    for (member = ngx_http_latchkey_members; member->name; member++) {

        value = ngx_http_latchkey_query_find(reply, member->name);
        if (value == NULL) {
            continue;
        }

        if (latchkey_buf_printf(json, "%s\"%s\":", json->len ? "," : "{",
                                member->member)
            != LK_OK)
        {
            return NGX_ERROR;
        }

        rc = ngx_http_latchkey_status_member(json, member, value);
        if (rc != NGX_OK) {
            return rc;
        }
    }

    return latchkey_buf_add_text(json, "}\n") == LK_OK ? NGX_OK : NGX_ERROR;
}


static ngx_int_t
ngx_http_latchkey_status_member(struct lk_buf *json,
    ngx_http_latchkey_member_t *member, const struct lk_reply *value)
{
    char            time[LK_TIMESTAMP_TEXT + 1];
    enum lk_status  status;

    if (member->as == NGX_HTTP_LATCHKEY_SHOW_TEXT) {

        if (value->type != LK_REPLY_TEXT) {
            return NGX_DECLINED;
        }

        status = latchkey_json_quote(value->text, json);

    } else if (value->type != LK_REPLY_INTEGER || value->integer < 0) {
        return NGX_DECLINED;

    } else if (member->as == NGX_HTTP_LATCHKEY_SHOW_TIME) {
        latchkey_timestamp_text((uint64_t) value->integer, time);
        status = latchkey_buf_printf(json, "\"%s\"", time);

    } else {
        status = latchkey_buf_printf(json, "%lld",
                                     (long long) value->integer);
    }

    return status == LK_OK ? NGX_OK : NGX_ERROR;
}
