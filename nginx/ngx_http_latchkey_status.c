
/*
 * `idempotency_status`: a caller asks what became of an operation of its own.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/hmac.h>
#include <openssl/rand.h>


#define NGX_HTTP_LATCHKEY_RATE_SETS  1024
#define NGX_HTTP_LATCHKEY_RATE_WAYS  4
#define NGX_HTTP_LATCHKEY_RATE_KEY   32

#define NGX_HTTP_LATCHKEY_RETRY      1000   /* ms, when the daemon is away */


/* the question, which lives until the daemon answered it */

typedef struct {
    ngx_pool_t                      *pool;
    ngx_http_request_t              *request;     /* NULL: it is gone */
    ngx_pool_cleanup_t              *cleanup;     /* of the request */
    ngx_http_latchkey_call_t         call;
} ngx_http_latchkey_query_t;


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


/* a caller's bucket; the one that was not used for longest is given away */

typedef struct {
    uint64_t                         hash;
    ngx_msec_t                       last;
    uint64_t                         level;       /* 1/1000 of a request */
} ngx_http_latchkey_bucket_t;


typedef struct {
    u_char                           key[NGX_HTTP_LATCHKEY_RATE_KEY];
    ngx_http_latchkey_bucket_t       sets[NGX_HTTP_LATCHKEY_RATE_SETS]
                                         [NGX_HTTP_LATCHKEY_RATE_WAYS];
} ngx_http_latchkey_rates_t;


static ngx_int_t ngx_http_latchkey_status_words(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, const char **fault);
static ngx_int_t ngx_http_latchkey_status_key(ngx_http_request_t *r,
    ngx_str_t *key, const char **fault);
static ngx_int_t ngx_http_latchkey_status_arg(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
static ngx_int_t ngx_http_latchkey_status_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n);
static void ngx_http_latchkey_status_gone(void *data);
static void ngx_http_latchkey_status_answered(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_answer(ngx_http_request_t *r,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_show(struct lk_buf *json,
    const struct lk_reply *reply);
static const struct lk_reply *ngx_http_latchkey_status_find(
    const struct lk_reply *reply, const char *name);
static ngx_int_t ngx_http_latchkey_status_member(struct lk_buf *json,
    ngx_http_latchkey_member_t *member, const struct lk_reply *value);
static ngx_int_t ngx_http_latchkey_status_problem(ngx_http_request_t *r,
    enum lk_problem_kind kind, const char *detail, ngx_msec_t retry_after);
static ngx_int_t ngx_http_latchkey_init_rates(ngx_shm_zone_t *zone,
    void *data);
static ngx_http_latchkey_bucket_t *ngx_http_latchkey_find_bucket(
    ngx_http_latchkey_rates_t *rates, uint64_t hash);


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


/* the question */

ngx_int_t
ngx_http_latchkey_status_handler(ngx_http_request_t *r)
{
    ngx_int_t                      rc;
    ngx_str_t                      words[4], allow;
    ngx_uint_t                     n;
    ngx_msec_t                     wait;
    const char                    *fault;
    ngx_http_latchkey_loc_conf_t  *llcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        ngx_str_set(&allow, "GET, HEAD");

        if (ngx_http_latchkey_add_header(r, "Allow", &allow) == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_HTTP_NOT_ALLOWED;
    }

    rc = ngx_http_discard_request_body(r);

    if (rc != NGX_OK) {
        return rc;
    }

    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    rc = ngx_http_latchkey_get_tenant(r, llcf, &words[1]);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_status_problem(r, LK_PROBLEM_TENANT_MISSING,
                                    "Operations belong to a caller, and this "
                                    "request does not say who it is from.",
                                    0);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* a question that cannot be answered is one, too */

    if (ngx_http_latchkey_rate(r, llcf, &words[1], &wait) == NGX_BUSY) {
        return ngx_http_latchkey_status_problem(r, LK_PROBLEM_LIMITED,
                                    "There were too many questions about "
                                    "operations; ask again later.", wait);
    }

    fault = NULL;
    rc = ngx_http_latchkey_status_words(r, words, &n, &fault);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_status_problem(r, LK_PROBLEM_QUERY_INVALID,
                                                fault, 0);
    }

    if (rc == NGX_ABORT) {
        return ngx_http_latchkey_status_problem(r, LK_PROBLEM_KEY_INVALID,
                                                fault, 0);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_status_ask(r, llcf, words, n);
}


/*
 * The command, but for the tenant, which is there.  NGX_DECLINED: the query
 * is not valid.  NGX_ABORT: the key is not.
 */

static ngx_int_t
ngx_http_latchkey_status_words(ngx_http_request_t *r, ngx_str_t *words,
    ngx_uint_t *n, const char **fault)
{
    uint64_t              number;
    ngx_int_t             reference, key, scope;
    static const uint8_t  secret[LK_REFERENCE_KEY];

    reference = ngx_http_latchkey_status_arg(r, "reference", &words[2]);

    if (reference != NGX_DECLINED) {
        *n = 3;
        ngx_str_set(&words[0], "FIND");

        if (ngx_http_latchkey_status_arg(r, "key", &words[3]) != NGX_DECLINED
            || ngx_http_latchkey_status_arg(r, "scope", &words[3])
               != NGX_DECLINED)
        {
            *fault = "Give reference, or key and scope, but not both.";
            return NGX_DECLINED;
        }

        /* only its form is of interest */

        if (reference != NGX_OK
            || latchkey_reference_decode(ngx_http_latchkey_slice(&words[2]),
                                         secret, &number)
               != LK_OK)
        {
            *fault = "The reference cannot be read: it has the form "
                     "7D3F-92AB-1C4E.";
            return reference == NGX_ERROR ? NGX_ERROR : NGX_DECLINED;
        }

        return NGX_OK;
    }

    *n = 4;
    ngx_str_set(&words[0], "LOOKUP");

    scope = ngx_http_latchkey_status_arg(r, "scope", &words[2]);
    key = ngx_http_latchkey_status_arg(r, "key", &words[3]);

    if (scope == NGX_ERROR || key == NGX_ERROR) {
        return NGX_ERROR;
    }

    if (key == NGX_DECLINED) {
        *fault = scope == NGX_DECLINED
                 ? "The query does not say which operation is meant: give "
                   "reference, or key and scope."
                 : "The query has a scope, but no key.";
        return NGX_DECLINED;
    }

    if (scope == NGX_DECLINED || (scope == NGX_OK && words[2].len == 0)) {
        *fault = "The query has a key, but no scope: by default it is the "
                 "method, a space and the path, as in scope=POST%20/charges.";
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

    return ngx_http_latchkey_status_key(r, &words[3], fault);
}


static ngx_int_t
ngx_http_latchkey_status_key(ngx_http_request_t *r, ngx_str_t *key,
    const char **fault)
{
    u_char             *p;
    struct lk_buf       buf;
    enum lk_status      status;
    enum lk_key_fault   found;

    ngx_memzero(&buf, sizeof(struct lk_buf));

    status = latchkey_key_parse(ngx_http_latchkey_slice(key), &buf, &found,
                                NULL);

    if (status == LK_MALFORMED) {
        *fault = latchkey_key_fault_text(found);
        return NGX_ABORT;
    }

    p = status == LK_OK ? ngx_pnalloc(r->pool, buf.len) : NULL;

    if (p) {
        ngx_memcpy(p, buf.data, buf.len);
        key->data = p;
        key->len = buf.len;
    }

    latchkey_buf_free(&buf);

    return p ? NGX_OK : NGX_ERROR;
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


static ngx_int_t
ngx_http_latchkey_status_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n)
{
    ngx_int_t                   rc;
    ngx_pool_t                 *pool;
    ngx_uint_t                  i;
    ngx_str_t                   copies[4];
    ngx_pool_cleanup_t         *cln;
    ngx_http_latchkey_query_t  *query;

    cln = ngx_pool_cleanup_add(r->pool, 0);
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* the call cannot be taken back, so nothing of it is in r->pool */

    pool = ngx_create_pool(2048, ngx_cycle->log);
    if (pool == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    query = ngx_pcalloc(pool, sizeof(ngx_http_latchkey_query_t));
    if (query == NULL) {
        goto failed;
    }

    for (i = 0; i < n; i++) {
        copies[i].len = words[i].len;
        copies[i].data = ngx_pstrdup(pool, &words[i]);
        if (copies[i].data == NULL) {
            goto failed;
        }
    }

    query->pool = pool;
    query->request = r;
    query->cleanup = cln;
    query->call.handler = ngx_http_latchkey_status_answered;
    query->call.data = query;
    query->call.deadline = ngx_current_msec + llcf->timeout;
    query->call.out = ngx_http_latchkey_command(pool, copies, n);
    if (query->call.out == NULL) {
        goto failed;
    }

    rc = ngx_http_latchkey_link_call(llcf->servers, &query->call);

    if (rc != NGX_OK) {
        ngx_destroy_pool(pool);
        return ngx_http_latchkey_status_answer(r, NULL);
    }

    cln->handler = ngx_http_latchkey_status_gone;
    cln->data = query;

    r->main->count++;

    return NGX_DONE;

failed:

    ngx_destroy_pool(pool);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


static void
ngx_http_latchkey_status_gone(void *data)
{
    ngx_http_latchkey_query_t  *query = data;

    query->request = NULL;
}


/* the answer */

static void
ngx_http_latchkey_status_answered(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply)
{
    ngx_connection_t           *c;
    ngx_http_request_t         *r;
    ngx_http_latchkey_query_t  *query;

    query = call->data;
    r = query->request;

    if (r) {
        query->cleanup->handler = NULL;

        c = r->connection;
        ngx_http_set_log_request(c->log, r);

        ngx_http_finalize_request(r, ngx_http_latchkey_status_answer(r,
                                                                     reply));
        ngx_http_run_posted_requests(c);
    }

    ngx_destroy_pool(query->pool);
}


static ngx_int_t
ngx_http_latchkey_status_answer(ngx_http_request_t *r,
    const struct lk_reply *reply)
{
    ngx_int_t      rc;
    struct lk_buf  json;

    if (reply && reply->type == LK_REPLY_NIL) {

        /* nobody's, or somebody else's: the daemon does not say, either */

        return ngx_http_latchkey_status_problem(r, LK_PROBLEM_NOT_FOUND, "",
                                                0);
    }

    rc = NGX_DECLINED;
    ngx_memzero(&json, sizeof(struct lk_buf));

    if (reply && reply->type == LK_REPLY_ARRAY) {
        rc = ngx_http_latchkey_status_show(&json, reply);
    }

    if (rc == NGX_OK) {
        return ngx_http_latchkey_send_text(r, "application/json", &json);
    }

    latchkey_buf_free(&json);

    if (rc == NGX_ERROR) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (reply && reply->type == LK_REPLY_ERROR) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "latchkeyd did not say what became of an operation: "
                      "%*s", ngx_min(reply->text.len, 256), reply->text.data);
    }

    return ngx_http_latchkey_status_problem(r, LK_PROBLEM_UNAVAILABLE,
                                    "What became of the operation cannot be "
                                    "found out right now.",
                                    NGX_HTTP_LATCHKEY_RETRY);
}


/* NGX_DECLINED: this is no record */

static ngx_int_t
ngx_http_latchkey_status_show(struct lk_buf *json,
    const struct lk_reply *reply)
{
    ngx_int_t                    rc;
    const struct lk_reply       *value;
    ngx_http_latchkey_member_t  *member;

    if (ngx_http_latchkey_status_find(reply, "state") == NULL) {
        return NGX_DECLINED;
    }

    for (member = ngx_http_latchkey_members; member->name; member++) {

        value = ngx_http_latchkey_status_find(reply, member->name);
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


/* a flat list of names and values */

static const struct lk_reply *
ngx_http_latchkey_status_find(const struct lk_reply *reply, const char *name)
{
    size_t                  i;
    const struct lk_reply  *found;

    for (i = 0; i + 1 < reply->count; i += 2) {
        found = &reply->elements[i];

        if (found->type == LK_REPLY_TEXT
            && latchkey_slice_equal(found->text, latchkey_slice(name)))
        {
            return found + 1;
        }
    }

    return NULL;
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


static ngx_int_t
ngx_http_latchkey_status_problem(ngx_http_request_t *r,
    enum lk_problem_kind kind, const char *detail, ngx_msec_t retry_after)
{
    ngx_str_t           value;
    ngx_chain_t        *out;
    struct lk_problem   problem;

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.kind = kind;
    problem.detail = latchkey_slice(detail);

    out = ngx_http_latchkey_set_problem(r, &problem, retry_after);

    ngx_str_set(&value, "no-store");

    if (out == NULL
        || ngx_http_latchkey_add_header(r, "Cache-Control", &value) == NULL)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send(r, out);
}


/* the rate of questions */

ngx_int_t
ngx_http_latchkey_rate_init(ngx_conf_t *cf)
{
    size_t                          size;
    ngx_http_latchkey_main_conf_t  *lmcf;
    static ngx_str_t                name = ngx_string("latchkey_rates");

    /* always the same, so that a new configuration finds it filled */

    size = ngx_align(sizeof(ngx_http_latchkey_rates_t) * 33 / 32,
                     ngx_pagesize)
           + 8 * ngx_pagesize;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    lmcf->rate_zone = ngx_shared_memory_add(cf, &name, size,
                                            &ngx_http_latchkey_module);
    if (lmcf->rate_zone == NULL) {
        return NGX_ERROR;
    }

    lmcf->rate_zone->init = ngx_http_latchkey_init_rates;
    lmcf->rate_zone->data = lmcf;

    return NGX_OK;
}


static ngx_int_t
ngx_http_latchkey_init_rates(ngx_shm_zone_t *zone, void *data)
{
    ngx_slab_pool_t            *shpool;
    ngx_http_latchkey_rates_t  *rates;

    if (data) {
        return NGX_OK;
    }

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    rates = ngx_slab_calloc(shpool, sizeof(ngx_http_latchkey_rates_t));
    if (rates == NULL || RAND_bytes(rates->key, sizeof(rates->key)) != 1) {
        return NGX_ERROR;
    }

    shpool->data = rates;

    return NGX_OK;
}


ngx_int_t
ngx_http_latchkey_rate(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *caller, ngx_msec_t *wait)
{
    uint64_t                        hash, size, rate, passed;
    ngx_int_t                       rc;
    unsigned int                    len;
    unsigned char                   mac[EVP_MAX_MD_SIZE];
    ngx_slab_pool_t                *shpool;
    ngx_http_latchkey_rates_t      *rates;
    ngx_http_latchkey_bucket_t     *bucket;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);
    shpool = (ngx_slab_pool_t *) lmcf->rate_zone->shm.addr;
    rates = shpool->data;

    if (HMAC(EVP_sha256(), rates->key, sizeof(rates->key), caller->data,
             caller->len, mac, &len)
        == NULL)
    {
        return NGX_ERROR;
    }

    ngx_memcpy(&hash, mac, sizeof(uint64_t));

    rc = NGX_OK;
    rate = ngx_max(llcf->status_rate, 1);
    size = (uint64_t) ngx_max(llcf->status_burst, 1) * 1000;

    ngx_shmtx_lock(&shpool->mutex);

    bucket = ngx_http_latchkey_find_bucket(rates, hash);

    /* workers read the clock at different times: it may seem to go back */

    passed = ngx_max((ngx_msec_int_t) (ngx_current_msec - bucket->last), 0);
    passed = ngx_min(passed, 24 * 60 * 60 * 1000) * rate / 1000;

    if (bucket->level - ngx_min(passed, bucket->level) + 1000 > size) {
        rc = NGX_BUSY;
        *wait = (bucket->level - passed + 1000 - size) * 1000 / rate + 1;

    } else {
        bucket->level -= ngx_min(passed, bucket->level);
        bucket->level += 1000;
        bucket->last = ngx_current_msec;
    }

    ngx_shmtx_unlock(&shpool->mutex);

    return rc;
}


static ngx_http_latchkey_bucket_t *
ngx_http_latchkey_find_bucket(ngx_http_latchkey_rates_t *rates, uint64_t hash)
{
    ngx_uint_t                   i;
    ngx_http_latchkey_bucket_t  *set, *oldest;

    set = rates->sets[hash % NGX_HTTP_LATCHKEY_RATE_SETS];
    oldest = set;

    for (i = 0; i < NGX_HTTP_LATCHKEY_RATE_WAYS; i++) {

        if (set[i].hash == hash) {
            return &set[i];
        }

        if (set[i].hash == 0
            || (oldest->hash != 0
                && (ngx_msec_int_t) (set[i].last - oldest->last) < 0))
        {
            oldest = &set[i];
        }
    }

    oldest->hash = hash;
    oldest->level = 0;
    oldest->last = ngx_current_msec;

    return oldest;
}
