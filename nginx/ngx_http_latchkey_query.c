
/*
 * Questions of a caller about operations of its own: who asks, and what the
 * daemon says.  What is asked and how it is told is the business of status and
 * operation.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_RETRY      1000   /* ms, when the daemon is away */


/* the question, which lives until the daemon answered it */

typedef struct {
    ngx_pool_t                      *pool;
    ngx_http_request_t              *request;     /* NULL: it is gone */
    ngx_pool_cleanup_t              *cleanup;     /* of the request */
    ngx_http_latchkey_told_pt        told;
    ngx_http_latchkey_call_t         call;
} ngx_http_latchkey_query_t;


static ngx_int_t ngx_http_latchkey_query_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n,
    ngx_http_latchkey_told_pt told);
static void ngx_http_latchkey_query_gone(void *data);
static void ngx_http_latchkey_query_answered(ngx_http_latchkey_call_t *call,
    const struct lk_reply *reply);
static ngx_int_t ngx_http_latchkey_query_answer(ngx_http_request_t *r,
    ngx_http_latchkey_told_pt told, const struct lk_reply *reply);


/* the question */

ngx_int_t
ngx_http_latchkey_query(ngx_http_request_t *r,
    ngx_http_latchkey_words_pt words, ngx_http_latchkey_told_pt told)
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
                                    "request does not say who it is from.",
                                    0);
    }

    if (rc != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    /* a question that cannot be answered is one, too */

    if (ngx_http_latchkey_rate(r, llcf, &command[1], &wait) == NGX_BUSY) {
        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_LIMITED,
                                    "There were too many questions about "
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

    return ngx_http_latchkey_query_ask(r, llcf, command, n, told);
}


static ngx_int_t
ngx_http_latchkey_query_ask(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *words, ngx_uint_t n,
    ngx_http_latchkey_told_pt told)
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
    query->told = told;
    query->call.handler = ngx_http_latchkey_query_answered;
    query->call.data = query;
    query->call.deadline = ngx_current_msec + llcf->timeout;
    query->call.out = ngx_http_latchkey_command(pool, copies, n);
    if (query->call.out == NULL) {
        goto failed;
    }

    rc = ngx_http_latchkey_link_call(llcf->servers, &query->call);

    if (rc != NGX_OK) {
        ngx_destroy_pool(pool);
        return ngx_http_latchkey_query_answer(r, told, NULL);
    }

    cln->handler = ngx_http_latchkey_query_gone;
    cln->data = query;

    r->main->count++;

    return NGX_DONE;

failed:

    ngx_destroy_pool(pool);

    return NGX_HTTP_INTERNAL_SERVER_ERROR;
}


static void
ngx_http_latchkey_query_gone(void *data)
{
    ngx_http_latchkey_query_t  *query = data;

    query->request = NULL;
}


/* the answer */

static void
ngx_http_latchkey_query_answered(ngx_http_latchkey_call_t *call,
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
                  ngx_http_latchkey_query_answer(r, query->told, reply));
        ngx_http_run_posted_requests(c);
    }

    ngx_destroy_pool(query->pool);
}


static ngx_int_t
ngx_http_latchkey_query_answer(ngx_http_request_t *r,
    ngx_http_latchkey_told_pt told, const struct lk_reply *reply)
{
    ngx_int_t  rc;

    if (reply && reply->type == LK_REPLY_NIL) {

        /* nobody's, or somebody else's: the daemon does not say, either */

        return ngx_http_latchkey_query_problem(r, LK_PROBLEM_NOT_FOUND, "",
                                               0);
    }

    if (reply && reply->type == LK_REPLY_ARRAY
        && ngx_http_latchkey_query_find(reply, "state"))
    {
        rc = told(r, reply);

        if (rc != NGX_DECLINED) {
            return rc;
        }
    }

    if (reply && reply->type == LK_REPLY_ERROR) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "latchkeyd did not say what became of an operation: %s",
                      ngx_http_latchkey_error_text(reply->text));
    }

    return ngx_http_latchkey_query_problem(r, LK_PROBLEM_UNAVAILABLE,
                                    "What became of the operation cannot be "
                                    "found out right now.",
                                    NGX_HTTP_LATCHKEY_RETRY);
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


ngx_int_t
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

    return ngx_http_latchkey_send(r, out);
}
