
/*
 * The listener of the courier.  It delivers accepted requests through a
 * listening socket that only it may open.  There, and nowhere else, Latchkey-*
 * headers are trusted: they name an operation that is already claimed.  The
 * app gets the request like any other, its response is stored, and the courier
 * gets the outcome:
 *
 *   Latchkey-Outcome   the operation
 *   ----------------   ------------------------------------------------
 *   completed          is completed, by this response or before it
 *   released           has not happened: the courier may try it again
 *   uncertain          may have happened
 *   stale              belongs to another holder by now
 *   (none)             could not be stored yet; the gateway goes on trying
 *
 * The status is the app's, as far as there is one.  "released" comes with
 * "Latchkey-Sent: no" if the app did not get the request at all.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_TOKEN_MAX  (1LL << 53)


/* headers from the courier, in the order of courier_headers */

typedef enum {
    NGX_HTTP_LATCHKEY_COURIER_TENANT = 0,
    NGX_HTTP_LATCHKEY_COURIER_SCOPE,
    NGX_HTTP_LATCHKEY_COURIER_KEY,
    NGX_HTTP_LATCHKEY_COURIER_TOKEN,
    NGX_HTTP_LATCHKEY_COURIER_ATTEMPT,
    NGX_HTTP_LATCHKEY_COURIER_REFERENCE,
    NGX_HTTP_LATCHKEY_COURIER_LAST
} ngx_http_latchkey_courier_header_e;


/* where a server listens */

typedef struct {
    ngx_addr_t                      *courier;
    unsigned                         there:1;
    unsigned                         elsewhere:1;
} ngx_http_latchkey_listens_t;


static ngx_int_t ngx_http_latchkey_courier_check(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_courier_is_user(
    ngx_http_latchkey_main_conf_t *lmcf, uid_t uid);
static const char *ngx_http_latchkey_courier_read(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static const char *ngx_http_latchkey_courier_gather(ngx_http_request_t *r,
    ngx_str_t *values);
static void ngx_http_latchkey_courier_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *values);
static ngx_int_t ngx_http_latchkey_courier_refuse(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_verdict_e verdict,
    ngx_uint_t status);
static ngx_chain_t *ngx_http_latchkey_set_outcome(ngx_http_request_t *r,
    ngx_uint_t status, const char *outcome);
static ngx_chain_t *ngx_http_latchkey_set_unsent(ngx_http_request_t *r,
    ngx_uint_t status);
static ngx_table_elt_t *ngx_http_latchkey_add_unsent(ngx_http_request_t *r);
static ngx_chain_t *ngx_http_latchkey_set_released(ngx_http_request_t *r,
    ngx_uint_t status);
static void ngx_http_latchkey_courier_listen(struct sockaddr *sa,
    socklen_t socklen, void *data);
static ngx_int_t ngx_http_latchkey_courier_folder(ngx_conf_t *cf,
    ngx_str_t *path);


static ngx_str_t  ngx_http_latchkey_courier_headers[] = {
    ngx_string("Latchkey-Tenant"),
    ngx_string("Latchkey-Scope"),
    ngx_string("Latchkey-Key"),
    ngx_string("Latchkey-Token"),
    ngx_string("Latchkey-Attempt"),
    ngx_string("Latchkey-Reference")
};


ngx_uint_t
ngx_http_latchkey_is_courier(ngx_http_request_t *r)
{
    ngx_connection_t               *c;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);
    c = r->connection;

    return lmcf->courier
           && c->local_sockaddr
           && c->local_sockaddr->sa_family == AF_UNIX
           && ngx_cmp_sockaddr(c->local_sockaddr, c->local_socklen,
                               lmcf->courier->sockaddr,
                               lmcf->courier->socklen, 0)
              == NGX_OK;
}


/*
 * Checks the user of the peer, where "user=" restricts it: before a location
 * is chosen, because not all of them are guarded.
 */

static ngx_int_t
ngx_http_latchkey_courier_check(ngx_http_request_t *r)
{
    socklen_t                       len;
    struct ucred                    peer;
    ngx_http_latchkey_main_conf_t  *lmcf;

    if (!ngx_http_latchkey_is_courier(r)) {
        return NGX_DECLINED;
    }

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);
    len = sizeof(struct ucred);

    if (getsockopt(r->connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &len)
        == -1)
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, ngx_socket_errno,
                      "idempotency_courier: getsockopt(SO_PEERCRED) failed");
        return NGX_HTTP_FORBIDDEN;
    }

    if (ngx_http_latchkey_courier_is_user(lmcf, peer.uid)) {
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency_courier: process %P of the user with id %ui is "
                  "not the courier and is refused; if latchkeyd runs as this "
                  "user, name it with \"user=\"",
                  peer.pid, (ngx_uint_t) peer.uid);

    return NGX_HTTP_FORBIDDEN;
}


static ngx_uint_t
ngx_http_latchkey_courier_is_user(ngx_http_latchkey_main_conf_t *lmcf,
    uid_t uid)
{
    uid_t       *uids;
    ngx_uint_t   i;

    if (uid == 0 || uid == geteuid()) {
        return 1;
    }

    uids = lmcf->couriers->elts;

    for (i = 0; i < lmcf->couriers->nelts; i++) {
        if (uids[i] == uid) {
            return 1;
        }
    }

    return 0;
}


/* reading its headers */

ngx_int_t
ngx_http_latchkey_courier_identify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    const char  *fault;

    if (ctx->conf->mode == NGX_HTTP_LATCHKEY_OFF
        || !(r->method & ctx->conf->methods))
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency_courier: the courier delivers a request to "
                      "location \"%V\" of server \"%V\", where %V is not "
                      "guarded: it does not run",
                      &ctx->conf->location_name, &ctx->conf->server_name,
                      &r->method_name);

        return ngx_http_latchkey_courier_refuse(r, ctx,
                                         NGX_HTTP_LATCHKEY_VERDICT_UNAVAILABLE,
                                         NGX_HTTP_NOT_FOUND);
    }

    fault = ngx_http_latchkey_courier_read(r, ctx);

    if (fault) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency_courier: a request does not run, because "
                      "it is not the courier's: %s", fault);

        return ngx_http_latchkey_courier_refuse(r, ctx,
                                         NGX_HTTP_LATCHKEY_VERDICT_KEY_INVALID,
                                         NGX_HTTP_BAD_REQUEST);
    }

    /* pass_headers() adds them again for the app */

    return ngx_http_latchkey_strip_headers(r) == NGX_OK
           ? NGX_OK : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* NULL: ctx has all of it.  Else what is wrong. */

static const char *
ngx_http_latchkey_courier_read(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    off_t                  token, attempt;
    uint64_t               number;
    ngx_str_t              values[NGX_HTTP_LATCHKEY_COURIER_LAST];
    const char            *fault;
    static const uint8_t   secret[LK_REFERENCE_KEY];

    fault = ngx_http_latchkey_courier_gather(r, values);
    if (fault) {
        return fault;
    }

    ctx->tenant = values[NGX_HTTP_LATCHKEY_COURIER_TENANT];
    ctx->scope = values[NGX_HTTP_LATCHKEY_COURIER_SCOPE];
    ngx_http_latchkey_courier_key(r, ctx,
                                  &values[NGX_HTTP_LATCHKEY_COURIER_KEY]);
    ctx->reference = values[NGX_HTTP_LATCHKEY_COURIER_REFERENCE];

    if (ctx->key.len == 0) {
        return "there is no key";
    }

    if (ctx->tenant.len > NGX_HTTP_LATCHKEY_TENANT_MAX
        || ctx->scope.len > NGX_HTTP_LATCHKEY_SCOPE_MAX
        || ctx->key.len > LK_KEY_MAX)
    {
        return "tenant, scope or key is too long";
    }

    token = ngx_atoof(values[NGX_HTTP_LATCHKEY_COURIER_TOKEN].data,
                      values[NGX_HTTP_LATCHKEY_COURIER_TOKEN].len);
    attempt = ngx_atoof(values[NGX_HTTP_LATCHKEY_COURIER_ATTEMPT].data,
                        values[NGX_HTTP_LATCHKEY_COURIER_ATTEMPT].len);

    if (token <= 0 || token >= NGX_HTTP_LATCHKEY_TOKEN_MAX || attempt <= 0) {
        return "token or attempt is not a valid number";
    }

    if (ctx->reference.len != LK_REFERENCE_TEXT
        || latchkey_reference_decode(ngx_http_latchkey_slice(&ctx->reference),
                                     secret, &number)
           != LK_OK)
    {
        return "the reference cannot be read";
    }

    ctx->token = (uint64_t) token;
    ctx->attempt = (uint64_t) attempt;

    return NULL;
}


static const char *
ngx_http_latchkey_courier_gather(ngx_http_request_t *r, ngx_str_t *values)
{
    ngx_str_t        *name;
    ngx_uint_t        i, j;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    ngx_memzero(values, NGX_HTTP_LATCHKEY_COURIER_LAST * sizeof(ngx_str_t));

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            for (j = 0; j < NGX_HTTP_LATCHKEY_COURIER_LAST; j++) {
                name = &ngx_http_latchkey_courier_headers[j];

                if (h[i].key.len != name->len
                    || ngx_strncasecmp(h[i].key.data, name->data, name->len)
                       != 0)
                {
                    continue;
                }

                if (values[j].data) {
                    return "a Latchkey-* header was sent twice";
                }

                values[j] = h[i].value;
            }
        }
    }

    for (j = 0; j < NGX_HTTP_LATCHKEY_COURIER_LAST; j++) {

        /* nothing is left of a key that is only spaces */

        if (values[j].data == NULL
            || (values[j].len == 0 && j != NGX_HTTP_LATCHKEY_COURIER_KEY))
        {
            return "a Latchkey-* header is missing or empty";
        }
    }

    return NULL;
}


/*
 * A header loses spaces at the ends of a key.  The client's own
 * Idempotency-Key, in quotes, still has them.
 */

static void
ngx_http_latchkey_courier_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *values)
{
    ngx_str_t  value, key;

    ngx_str_null(&ctx->key);

    /* the route's requirements for keys were checked when it was accepted */

    if (ngx_http_latchkey_get_key(r, &value) == NGX_OK) {
        (void) ngx_http_latchkey_parse_key(r, ctx, &value);
    }

    key = ctx->key;

    while (key.len && key.data[0] == ' ') {
        key.data++;
        key.len--;
    }

    while (key.len && key.data[key.len - 1] == ' ') {
        key.len--;
    }

    if (key.len != values->len
        || ngx_memcmp(key.data, values->data, values->len) != 0)
    {
        ctx->key = *values;
    }
}


static ngx_int_t
ngx_http_latchkey_courier_refuse(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_verdict_e verdict,
    ngx_uint_t status)
{
    ngx_chain_t  *out;

    ctx->verdict = verdict;
    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    out = ngx_http_latchkey_set_unsent(r, status);

    ngx_http_latchkey_finalize(r, ngx_http_latchkey_send_response(r, out));

    return NGX_DONE;
}


/*
 * An op with the courier's token: op_claim() checks it with EXTEND instead of
 * claiming.
 */

ngx_http_latchkey_op_t *
ngx_http_latchkey_courier_op(ngx_http_latchkey_ctx_t *ctx)
{
    ngx_http_latchkey_op_t  *op;

    op = ngx_http_latchkey_op_create(ctx, &ctx->tenant, &ctx->scope,
                                     &ctx->key);
    if (op == NULL) {
        return NULL;
    }

    op->courier = 1;
    op->token = ctx->token;
    op->attempt = ctx->attempt;

    ngx_cpystrn(op->reference, ctx->reference.data, ctx->reference.len + 1);

    return op;
}


/* responses for the courier */

ngx_int_t
ngx_http_latchkey_courier_decide(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ngx_chain_t  *out;

    if (decision && decision->verdict == LK_VERDICT_DONE) {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_NEW;
        return ngx_http_latchkey_run_request(r, ctx);
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    if (decision == NULL) {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_UNAVAILABLE;

        out = ngx_http_latchkey_set_unsent(r, NGX_HTTP_SERVICE_UNAVAILABLE);

        if (out && ngx_http_latchkey_add_retry_after(r,
                                                     NGX_HTTP_LATCHKEY_SOON)
                   != NGX_OK)
        {
            out = NULL;
        }

    } else if (decision->verdict == LK_VERDICT_KEPT) {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_REPLAY;
        out = ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "completed");

    } else {
        ctx->verdict = NGX_HTTP_LATCHKEY_VERDICT_INFLIGHT;
        ctx->outcome = NGX_HTTP_LATCHKEY_OUTCOME_STALE;
        out = ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "stale");
    }

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_latchkey_finalize(r, ngx_http_latchkey_send_response(r, out));

    return NGX_DONE;
}


/*
 * The courier decides by Latchkey-Outcome alone; the status is for its log and
 * for Retry-After.
 */

ngx_chain_t *
ngx_http_latchkey_courier_outcome(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision)
{
    ngx_uint_t               status;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    status = (op->status >= 200 && op->status <= 599) ? op->status
                                                      : NGX_HTTP_OK;

    if (decision == NULL) {

        /*
         * That the app did not run is true even if it is not stored; that it
         * may have run, the courier assumes by itself.
         */

        return op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE
               ? ngx_http_latchkey_set_released(r, status) : NULL;
    }

    switch (decision->verdict) {

    case LK_VERDICT_KEPT:
        return ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "completed");

    case LK_VERDICT_STALE:

        if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE) {
            break;
        }

        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency_courier: operation %V was decided "
                      "elsewhere while the app worked; its response is not "
                      "used",
                      &ctx->reference);

        return ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "stale");

    default:
        break;
    }

    switch (op->settle) {

    case NGX_HTTP_LATCHKEY_SETTLE_RELEASE:
        return ngx_http_latchkey_set_released(r, status);

    case NGX_HTTP_LATCHKEY_SETTLE_DOUBT:
        return ngx_http_latchkey_set_outcome(r, status, "uncertain");

    default:
        return ngx_http_latchkey_set_outcome(r, status, "completed");
    }
}


static ngx_chain_t *
ngx_http_latchkey_set_outcome(ngx_http_request_t *r, ngx_uint_t status,
    const char *outcome)
{
    ngx_str_t  value;

    ngx_http_latchkey_start_response(r, status);

    value.data = (u_char *) outcome;
    value.len = ngx_strlen(outcome);

    return ngx_http_latchkey_add_header(r, "Latchkey-Outcome", &value)
           ? ngx_http_latchkey_set_body(r, NULL, 0) : NULL;
}


static ngx_chain_t *
ngx_http_latchkey_set_unsent(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_chain_t  *out;

    out = ngx_http_latchkey_set_outcome(r, status, "released");

    return out && ngx_http_latchkey_add_unsent(r) ? out : NULL;
}


static ngx_table_elt_t *
ngx_http_latchkey_add_unsent(ngx_http_request_t *r)
{
    static ngx_str_t  no = ngx_string("no");

    return ngx_http_latchkey_add_header(r, "Latchkey-Sent", &no);
}


/* an app that is overloaded may have sent Retry-After */

static ngx_chain_t *
ngx_http_latchkey_set_released(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_str_t         retry_after;
    ngx_uint_t        i;
    ngx_chain_t      *out;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    if (!ngx_http_latchkey_may_have_run(ngx_http_latchkey_get_ctx(r),
                                        NGX_HTTP_LATCHKEY_RUN))
    {
        return ngx_http_latchkey_set_unsent(r, status);
    }

    ngx_str_null(&retry_after);

    for (part = &r->headers_out.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (h[i].hash
                && h[i].key.len == sizeof("Retry-After") - 1
                && ngx_strncasecmp(h[i].key.data, (u_char *) "Retry-After",
                                   h[i].key.len)
                   == 0)
            {
                retry_after = h[i].value;
            }
        }
    }

    out = ngx_http_latchkey_set_outcome(r, status, "released");

    if (out && retry_after.len
        && ngx_http_latchkey_add_header(r, "Retry-After", &retry_after)
           == NULL)
    {
        return NULL;
    }

    return out;
}


ngx_int_t
ngx_http_latchkey_courier_mark_unguarded(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    ngx_str_t  value;

    if ((ctx && (!ctx->courier || ctx->verdict))
        || r != r->main || r->upstream_states
        || !ngx_http_latchkey_is_courier(r))
    {
        return NGX_OK;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency_courier: a request got %ui before its location "
                  "could take it; make sure that the courier needs no "
                  "credentials where it connects",
                  r->headers_out.status);

    ngx_str_set(&value, "released");

    return ngx_http_latchkey_add_header(r, "Latchkey-Outcome", &value)
           && ngx_http_latchkey_add_unsent(r)
           ? NGX_OK : NGX_ERROR;
}


/* configuration */

ngx_uint_t
ngx_http_latchkey_courier_serves(ngx_conf_t *cf,
    ngx_http_core_srv_conf_t *cscf, ngx_uint_t *only)
{
    ngx_http_latchkey_listens_t     states_read;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    states_read.courier = lmcf->courier;
    states_read.there = 0;
    states_read.elsewhere = 0;

    if (lmcf->courier) {
        ngx_http_latchkey_each_listen(cf, cscf,
                                      ngx_http_latchkey_courier_listen,
                                      &states_read);
    }

    *only = states_read.there && !states_read.elsewhere;

    return states_read.there;
}


static void
ngx_http_latchkey_courier_listen(struct sockaddr *sa, socklen_t socklen,
    void *data)
{
    ngx_http_latchkey_listens_t *states_read = data;

    if (ngx_cmp_sockaddr(sa, socklen, states_read->courier->sockaddr,
                         states_read->courier->socklen, 0)
        == NGX_OK)
    {
        states_read->there = 1;

    } else {
        states_read->elsewhere = 1;
    }
}


/*
 * Checks that a server listens where the courier connects, and that what is
 * accepted can come back.
 */

ngx_int_t
ngx_http_latchkey_courier_init(ngx_conf_t *cf)
{
    ngx_str_t                       path;
    ngx_uint_t                      i, only;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_loc_conf_t  **llcf, *largest;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    if (!ngx_http_latchkey_courier_serves(cf, NULL, &only)) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "no server listens on \"%V\" of "
                      "\"idempotency_courier\"; add \"listen %V;\" to the "
                      "servers whose requests the courier delivers",
                      &lmcf->courier->name, &lmcf->courier->name);
        return NGX_ERROR;
    }

    if (lmcf->couriers) {
        if (ngx_http_latchkey_add_handler(cf, NGX_HTTP_POST_READ_PHASE,
                                          ngx_http_latchkey_courier_check)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

    } else {
        path.data = lmcf->courier->name.data + 5;
        path.len = lmcf->courier->name.len - 5;

        if (ngx_http_latchkey_courier_folder(cf, &path) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    /* a body that is accepted must be allowed when it comes back */

    largest = NULL;
    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        if (llcf[i]->mode != NGX_HTTP_LATCHKEY_OFF
            && llcf[i]->async != NGX_HTTP_LATCHKEY_ASYNC_OFF
            && (largest == NULL || llcf[i]->async_body > largest->async_body))
        {
            largest = llcf[i];
        }
    }

    for (i = 0; largest && i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (llcf[i]->mode == NGX_HTTP_LATCHKEY_OFF
            || clcf->client_max_body_size == 0
            || clcf->client_max_body_size >= (off_t) largest->async_body
            || !ngx_http_latchkey_courier_serves(cf, llcf[i]->cscf, &only))
        {
            continue;
        }

        ngx_log_error(NGX_LOG_WARN, cf->log, 0,
                      "\"idempotency_async_body\" of location \"%V\" accepts "
                      "%uz bytes, but where the courier delivers them, in "
                      "location \"%V\" of server \"%V\", "
                      "\"client_max_body_size\" is %O",
                      &largest->location_name, largest->async_body,
                      &llcf[i]->location_name, &llcf[i]->server_name,
                      clcf->client_max_body_size);
    }

    return NGX_OK;
}


/*
 * nginx makes its unix sockets writable for every user: only a folder can
 * restrict access.
 */

static ngx_int_t
ngx_http_latchkey_courier_folder(ngx_conf_t *cf, ngx_str_t *path)
{
    size_t           len;
    u_char          *folder;
    ngx_file_info_t  fi;

    folder = ngx_pnalloc(cf->pool, path->len + 1);
    if (folder == NULL) {
        return NGX_ERROR;
    }

    ngx_memcpy(folder, path->data, path->len);

    for (len = path->len; len > 1; /* void */ ) {

        while (len > 1 && folder[len - 1] != '/') { len--; }
        while (len > 1 && folder[len - 1] == '/') { len--; }

        folder[len] = '\0';

        if (ngx_file_info(folder, &fi) == NGX_FILE_ERROR
            || !(ngx_file_access(&fi) & S_IXOTH))
        {
            return NGX_OK;
        }
    }

    ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                  "every user of this machine can connect to \"%V\" of "
                  "\"idempotency_courier\", pass for the courier and name any "
                  "tenant; put it into a folder that only nginx and latchkeyd "
                  "may enter, or name latchkeyd's user with \"user=\"",
                  path);

    return NGX_ERROR;
}
