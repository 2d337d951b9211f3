
/*
 * Lookups by clients: idempotency_status shows the state of an operation,
 * idempotency_operation the progress of an accepted request and then the app's
 * response.  A caller sees operations of its own tenant only, and at a limited
 * rate.
 *
 * Life of a query: it has a pool of its own, because its call cannot be taken
 * back.  query_ask() makes it, query_gone() marks that the request ended first,
 * and query_reply() frees it, always.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/hmac.h>
#include <openssl/rand.h>


/*
 * Fills in the command, at most 4 words, except words[1], which is the tenant.
 * NGX_DECLINED: it cannot be asked; *kind and *fault are why.
 */
typedef ngx_int_t (*ngx_http_latchkey_question_pt)(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);

/*
 * Sends what is known of an operation and returns what
 * ngx_http_finalize_request() wants.  NGX_DECLINED: nothing was sent, because
 * the reply is not an operation.
 */
typedef ngx_int_t (*ngx_http_latchkey_respond_pt)(ngx_http_request_t *r,
    const struct lk_reply *operation);


/* a question to the daemon; it lives until its call is over */

typedef struct {
    ngx_pool_t                      *pool;
    ngx_http_request_t              *request;     /* NULL: it has ended */
    ngx_pool_cleanup_t              *cleanup;     /* of the request */
    ngx_http_latchkey_respond_pt     respond;
    ngx_http_latchkey_call_t         call;
} ngx_http_latchkey_query_t;


#define NGX_HTTP_LATCHKEY_RATE_SETS  1024
#define NGX_HTTP_LATCHKEY_RATE_WAYS  4
#define NGX_HTTP_LATCHKEY_RATE_KEY   32


/* a caller's bucket; the least recently used one of a set is reused */

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


/* members that are shown of an operation; nothing else ever is */

typedef enum {
    NGX_HTTP_LATCHKEY_SHOW_TEXT = 0,
    NGX_HTTP_LATCHKEY_SHOW_NUMBER,
    NGX_HTTP_LATCHKEY_SHOW_TIME
} ngx_http_latchkey_show_e;


typedef struct {
    const char                      *name;        /* in the reply */
    const char                      *member;
    ngx_http_latchkey_show_e         as;
} ngx_http_latchkey_member_t;


static ngx_int_t ngx_http_latchkey_query(ngx_http_request_t *r,
    ngx_http_latchkey_question_pt words, ngx_http_latchkey_respond_pt respond);
static ngx_int_t ngx_http_latchkey_query_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n,
    ngx_http_latchkey_respond_pt respond);
static void ngx_http_latchkey_query_gone(void *data);
static void ngx_http_latchkey_query_reply(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_query_respond(ngx_http_request_t *r,
    ngx_http_latchkey_respond_pt respond, const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_query_problem(ngx_http_request_t *r,
    enum lk_problem_kind kind, const char *detail, ngx_msec_t retry_after);
static ngx_int_t ngx_http_latchkey_init_rates(ngx_shm_zone_t *zone,
    void *data);
static ngx_int_t ngx_http_latchkey_rate_check(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *caller, ngx_msec_t *wait);
static uint64_t ngx_http_latchkey_rate_place(
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_http_latchkey_bucket_t *ngx_http_latchkey_find_bucket(
    ngx_http_latchkey_rates_t *rates, uint64_t hash);
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
static ngx_int_t ngx_http_latchkey_status_respond(ngx_http_request_t *r,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_show(struct lk_buf *json,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_status_member(struct lk_buf *json,
    ngx_http_latchkey_member_t *member, const struct lk_reply *value);
static ngx_int_t ngx_http_latchkey_operation_words(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);
static ngx_int_t ngx_http_latchkey_operation_respond(ngx_http_request_t *r,
    const struct lk_reply *operation);
static ngx_int_t ngx_http_latchkey_operation_decision(
    const struct lk_reply *operation, struct lk_decision *decision);
static struct lk_slice ngx_http_latchkey_operation_text(
    const struct lk_reply *operation, const char *name);
static uint64_t ngx_http_latchkey_operation_number(
    const struct lk_reply *operation, const char *name);
static ngx_chain_t *ngx_http_latchkey_operation_progress(
    ngx_http_request_t *r, ngx_http_latchkey_ctx_t *ctx,
    const struct lk_reply *operation, ngx_uint_t runs);


static ngx_str_t  ngx_http_latchkey_cache_headers[] = {
    ngx_string("Cache-Control"),
    ngx_null_string
};


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

/* Both handlers: checks method, tenant and rate, then asks the daemon. */

static ngx_int_t
ngx_http_latchkey_query(ngx_http_request_t *r,
    ngx_http_latchkey_question_pt words, ngx_http_latchkey_respond_pt respond)
{
    ngx_int_t                      rc;
    ngx_str_t                      command[4], allow;
    ngx_uint_t                     n;
    ngx_msec_t                     wait;
    const char                    *fault;
    enum lk_problem_kind           kind;
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

    rc = ngx_http_latchkey_get_tenant(r, llcf, &command[1]);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_TENANT_MISSING,
                                    "Operations belong to a caller, and this "
                                    "request does not identify its caller.",
                                    0);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* a question with a mistake counts, too */

    if (ngx_http_latchkey_rate_check(r, llcf, &command[1], &wait)
        == NGX_BUSY)
    {
        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_LIMITED,
                                    "There were too many lookups of "
                                    "operations; ask again later.", wait);
    }

    fault = "";
    kind = LK_PROBLEM_QUERY_INVALID;

    rc = words(r, command, &n, &kind, &fault);

    if (rc == NGX_DECLINED) {
        return ngx_http_latchkey_query_problem(r, kind, fault, 0);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_query_ask(r, llcf, command, n, respond);
}


static ngx_int_t
ngx_http_latchkey_query_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n,
    ngx_http_latchkey_respond_pt respond)
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

    /* the call outlives the request, so nothing of it is in r->pool */

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
    query->respond = respond;
    query->call.handler = ngx_http_latchkey_query_reply;
    query->call.data = query;
    query->call.deadline = ngx_current_msec + llcf->timeout;
    query->call.out = ngx_http_latchkey_command(pool, copies, n, NULL, 0);
    if (query->call.out == NULL) {
        goto failed;
    }

    rc = ngx_http_latchkey_link_call(llcf->servers, &query->call);

    if (rc != NGX_OK) {
        ngx_destroy_pool(pool);
        return ngx_http_latchkey_query_respond(r, respond, NULL);
    }

    cln->handler = ngx_http_latchkey_query_gone;
    cln->data = query;

    r->main->count++;

    return NGX_DONE;

failed:

    ngx_destroy_pool(pool);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* The request ended first: the reply will be discarded. */

static void
ngx_http_latchkey_query_gone(void *data)
{
    ngx_http_latchkey_query_t  *query = data;

    query->request = NULL;
}


/* the reply */

static void
ngx_http_latchkey_query_reply(ngx_http_latchkey_call_t *call,
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

        ngx_http_finalize_request(r,
                  ngx_http_latchkey_query_respond(r, query->respond, reply));
        ngx_http_run_posted_requests(c);
    }

    ngx_destroy_pool(query->pool);
}


static ngx_int_t
ngx_http_latchkey_query_respond(ngx_http_request_t *r,
    ngx_http_latchkey_respond_pt respond, const struct lk_reply *reply)
{
    ngx_int_t  rc;

    if (reply && reply->type == LK_REPLY_NIL) {

        /* there is none, or it is another tenant's: the reply is the same */

        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_NOT_FOUND, "",
                                               0);
    }

    if (reply && reply->type == LK_REPLY_ARRAY
        && ngx_http_latchkey_query_find(reply, "state"))
    {
        rc = respond(r, reply);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    if (reply && reply->type == LK_REPLY_ERROR) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "latchkeyd did not report the state of an operation: %s",
                      ngx_http_latchkey_error_text(reply->text));
    }

    return ngx_http_latchkey_query_problem(r, LK_PROBLEM_UNAVAILABLE,
                                    "The state of the operation cannot be "
                                    "determined right now.",
                                    NGX_HTTP_LATCHKEY_SOON);
}


/* a flat list of names and values */

const struct lk_reply *
ngx_http_latchkey_query_find(const struct lk_reply *reply, const char *name)
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
ngx_http_latchkey_query_problem(ngx_http_request_t *r,
    enum lk_problem_kind kind, const char *detail, ngx_msec_t retry_after)
{
    ngx_chain_t        *out;
    struct lk_problem   problem;

    ngx_memzero(&problem, sizeof(struct lk_problem));

    problem.kind = kind;
    problem.detail = latchkey_slice(detail);

    out = ngx_http_latchkey_set_problem(r, &problem, retry_after);

    if (out == NULL || ngx_http_latchkey_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send_response(r, out);
}


ngx_int_t
ngx_http_latchkey_rate_init(ngx_conf_t *cf)
{
    size_t                          size;
    ngx_http_latchkey_main_conf_t  *lmcf;
    static ngx_str_t                name = ngx_string("latchkey_rates");

    /* the same name, so that a new configuration finds it filled */

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


/*
 * Takes a token of this caller's bucket.  NGX_BUSY: over the rate; there will
 * be one after *wait ms.
 */

static ngx_int_t
ngx_http_latchkey_rate_check(ngx_http_request_t *r,
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
    hash ^= ngx_http_latchkey_rate_place(llcf);

    rc = NGX_OK;
    rate = ngx_max(llcf->status_rate, 1);
    size = (uint64_t) ngx_max(llcf->status_burst, 1) * 1000;

    ngx_shmtx_lock(&shpool->mutex);

    bucket = ngx_http_latchkey_find_bucket(rates, hash);

    /* workers update their clocks at different times: it may go back */

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


/* by names and rate, so that a new configuration finds it again */

static uint64_t
ngx_http_latchkey_rate_place(ngx_http_latchkey_loc_conf_t *llcf)
{
    uint64_t  place;

    place = ngx_murmur_hash2(llcf->server_name.data, llcf->server_name.len);
    place = place << 32 | ngx_murmur_hash2(llcf->location_name.data,
                                           llcf->location_name.len);

    return place ^ llcf->status_rate << 20 ^ llcf->status_burst;
}


/*
 * The bucket of this hash in its set, or the least recently used one.  The
 * zone is locked.
 */

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


ngx_int_t
ngx_http_latchkey_status_handler(ngx_http_request_t *r)
{
    return ngx_http_latchkey_query(r, ngx_http_latchkey_status_words,
                                   ngx_http_latchkey_status_respond);
}


/* the question */

/* FIND by reference, or LOOKUP by scope and key. */

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


/* by reference; `reference` is the result of reading it */

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


/* by scope and key; a key in the query would be in access logs */

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
                 ? "The query does not name an operation: give reference, or "
                   "scope and the header Idempotency-Key."
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
 * Decoded like a form: "+" is a space.  NGX_DECLINED: there is none.
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


/* the reply */

static ngx_int_t
ngx_http_latchkey_status_respond(ngx_http_request_t *r,
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


/* NGX_DECLINED: the reply is not an operation */

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


ngx_int_t
ngx_http_latchkey_operation_handler(ngx_http_request_t *r)
{
    return ngx_http_latchkey_query(r, ngx_http_latchkey_operation_words,
                                   ngx_http_latchkey_operation_respond);
}


/* the text after the last slash; if it is not a reference, there is none */

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


/*
 * An operation that is finished gives what a retry of its request would get;
 * else its progress.
 */

static ngx_int_t
ngx_http_latchkey_operation_respond(ngx_http_request_t *r,
    const struct lk_reply *operation)
{
    ngx_chain_t             *out;
    struct lk_slice          state;
    struct lk_decision       decision;
    ngx_http_latchkey_ctx_t  ctx;

    ngx_memzero(&ctx, sizeof(ngx_http_latchkey_ctx_t));

    ctx.request = r;
    ctx.conf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    if (ngx_http_latchkey_operation_decision(operation, &decision) != NGX_OK) {
        return NGX_DECLINED;
    }

    /* the reply is valid in this event only */

    ctx.reference.len = decision.reference.len;
    ctx.reference.data = ngx_pnalloc(r->pool, decision.reference.len + 1);
    if (ctx.reference.data == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    ngx_memcpy(ctx.reference.data, decision.reference.data,
               decision.reference.len);

    state = ngx_http_latchkey_operation_text(operation, "state");

    if (latchkey_slice_equal(state, LK_SLICE("released"))) {
        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_NOT_FOUND,
                                    "The operation was given up before it "
                                    "took effect; the same request with the "
                                    "same key starts it again.", 0);
    }

    if (decision.verdict == LK_VERDICT_ACCEPTED) {
        out = ngx_http_latchkey_operation_progress(r, &ctx, operation,
                  !latchkey_slice_equal(state, LK_SLICE("accepted")));

    } else {
        out = ngx_http_latchkey_set_verdict(r, &ctx, &decision);
    }

    if (out == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* Cache-Control of the app was for the response to POST */

    ngx_http_latchkey_drop_headers(r, ngx_http_latchkey_cache_headers);

    if (ngx_http_latchkey_add_no_store(r) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send_response(r, out);
}


/* the verdict of a claim; ACCEPTED while the operation is not finished */

static ngx_int_t
ngx_http_latchkey_operation_decision(const struct lk_reply *operation,
    struct lk_decision *decision)
{
    uint64_t         status;
    struct lk_slice  state;

    ngx_memzero(decision, sizeof(struct lk_decision));

    state = ngx_http_latchkey_operation_text(operation, "state");

    decision->reference = ngx_http_latchkey_operation_text(operation,
                                                           "reference");
    decision->verdict = LK_VERDICT_ACCEPTED;

    if (decision->reference.len == 0) {
        return NGX_DECLINED;
    }

    if (latchkey_slice_equal(state, LK_SLICE("uncertain"))) {
        decision->verdict = LK_VERDICT_UNCERTAIN;
        decision->reason = ngx_http_latchkey_operation_text(operation,
                                                            "reason");
        return NGX_OK;
    }

    if (!latchkey_slice_equal(state, LK_SLICE("completed"))) {
        return NGX_OK;
    }

    status = ngx_http_latchkey_operation_number(operation, "status");

    if (status < 200 || status > 599) {
        return NGX_DECLINED;
    }

    decision->response.status = (unsigned) status;
    decision->response.headers = ngx_http_latchkey_operation_text(operation,
                                                                  "headers");
    decision->response.body = ngx_http_latchkey_operation_text(operation,
                                                               "body");
    decision->expires_ms = ngx_http_latchkey_operation_number(operation,
                                                              "expires-ms");
    decision->reason = ngx_http_latchkey_operation_text(operation,
                                                        "omitted-reason");
    decision->verdict = decision->reason.len ? LK_VERDICT_OMITTED
                                         : LK_VERDICT_REPLAY;

    return NGX_OK;
}


static struct lk_slice
ngx_http_latchkey_operation_text(const struct lk_reply *operation,
    const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(operation, name);

    return value && value->type == LK_REPLY_TEXT ? value->text : LK_SLICE("");
}


static uint64_t
ngx_http_latchkey_operation_number(const struct lk_reply *operation,
    const char *name)
{
    const struct lk_reply  *value;

    value = ngx_http_latchkey_query_find(operation, name);

    return value && value->type == LK_REPLY_INTEGER && value->integer > 0
           ? (uint64_t) value->integer : 0;
}


static ngx_chain_t *
ngx_http_latchkey_operation_progress(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_reply *operation,
    ngx_uint_t runs)
{
    char            time[LK_TIMESTAMP_TEXT + 1];
    uint64_t        since;
    ngx_chain_t    *out;
    struct lk_buf   json;

    ngx_memzero(&json, sizeof(struct lk_buf));

    since = ngx_http_latchkey_operation_number(operation, "claimed-ms");
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
                               ngx_http_latchkey_operation_number(operation,
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
