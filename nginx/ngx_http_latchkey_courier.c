
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

#define NGX_HTTP_LATCHKEY_RETRY      1000   /* ms, when the daemon is away */


/* what the courier says, in this order */

typedef enum {
    NGX_HTTP_LATCHKEY_TOLD_TENANT = 0,
    NGX_HTTP_LATCHKEY_TOLD_SCOPE,
    NGX_HTTP_LATCHKEY_TOLD_KEY,
    NGX_HTTP_LATCHKEY_TOLD_TOKEN,
    NGX_HTTP_LATCHKEY_TOLD_ATTEMPT,
    NGX_HTTP_LATCHKEY_TOLD_REFERENCE,
    NGX_HTTP_LATCHKEY_TOLD_LAST
} ngx_http_latchkey_told_e;


/* where a server listens */

typedef struct {
    ngx_addr_t                      *courier;
    unsigned                         there:1;
    unsigned                         elsewhere:1;
} ngx_http_latchkey_heard_t;


static const char *ngx_http_latchkey_courier_read(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
static const char *ngx_http_latchkey_courier_gather(ngx_http_request_t *r,
    ngx_str_t *told);
static void ngx_http_latchkey_courier_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *told);
static ngx_int_t ngx_http_latchkey_courier_refuse(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_said_e verdict,
    ngx_uint_t status);
static ngx_chain_t *ngx_http_latchkey_set_outcome(ngx_http_request_t *r,
    ngx_uint_t status, const char *outcome);
static ngx_chain_t *ngx_http_latchkey_set_unsent(ngx_http_request_t *r,
    ngx_uint_t status);
static ngx_chain_t *ngx_http_latchkey_set_released(ngx_http_request_t *r,
    ngx_uint_t status);
static ngx_table_elt_t *ngx_http_latchkey_add_unsent(ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_courier_check(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_courier_may(
    ngx_http_latchkey_main_conf_t *lmcf, uid_t uid);
static void ngx_http_latchkey_courier_listen(struct sockaddr *sa,
    socklen_t socklen, void *data);
static ngx_int_t ngx_http_latchkey_courier_folder(ngx_conf_t *cf,
    ngx_str_t *path);


static ngx_str_t  ngx_http_latchkey_told[] = {
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
 * Who connects, where "user=" says who may: before any location is chosen,
 * since not all of them are guarded.
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

    if (ngx_http_latchkey_courier_may(lmcf, peer.uid)) {
        return NGX_DECLINED;
    }

    ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                  "idempotency_courier: a process %P of the user with id %ui "
                  "is not the courier and is refused; if latchkeyd runs so, "
                  "name its user with \"user=\"",
                  peer.pid, (ngx_uint_t) peer.uid);

    return NGX_HTTP_FORBIDDEN;
}


static ngx_uint_t
ngx_http_latchkey_courier_may(ngx_http_latchkey_main_conf_t *lmcf, uid_t uid)
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


/* what it wants */

ngx_int_t
ngx_http_latchkey_courier_identify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    const char  *fault;

    if (ctx->conf->mode == NGX_HTTP_LATCHKEY_OFF
        || !(r->method & ctx->conf->methods))
    {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency_courier: the courier brings a request to "
                      "location \"%V\" of server \"%V\", where %V is not "
                      "guarded: it is not run",
                      &ctx->conf->location_name, &ctx->conf->server_name,
                      &r->method_name);

        return ngx_http_latchkey_courier_refuse(r, ctx,
                                          NGX_HTTP_LATCHKEY_SAID_UNAVAILABLE,
                                          NGX_HTTP_NOT_FOUND);
    }

    fault = ngx_http_latchkey_courier_read(r, ctx);

    if (fault) {
        ngx_log_error(NGX_LOG_ERR, r->connection->log, 0,
                      "idempotency_courier: a request is not run, since it "
                      "is not the courier's: %s", fault);

        return ngx_http_latchkey_courier_refuse(r, ctx,
                                          NGX_HTTP_LATCHKEY_SAID_KEY_INVALID,
                                          NGX_HTTP_BAD_REQUEST);
    }

    /* they will be made anew for the app */

    return ngx_http_latchkey_strip_headers(r) == NGX_OK
           ? NGX_OK : NGX_HTTP_INTERNAL_SERVER_ERROR;
}


/* NULL: all of it is there.  Else what is wrong. */

static const char *
ngx_http_latchkey_courier_read(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx)
{
    off_t                  token, attempt;
    uint64_t               number;
    ngx_str_t              told[NGX_HTTP_LATCHKEY_TOLD_LAST];
    const char            *fault;
    static const uint8_t   secret[LK_REFERENCE_KEY];

    fault = ngx_http_latchkey_courier_gather(r, told);
    if (fault) {
        return fault;
    }

    ctx->tenant = told[NGX_HTTP_LATCHKEY_TOLD_TENANT];
    ctx->scope = told[NGX_HTTP_LATCHKEY_TOLD_SCOPE];
    ngx_http_latchkey_courier_key(r, ctx, &told[NGX_HTTP_LATCHKEY_TOLD_KEY]);
    ctx->reference = told[NGX_HTTP_LATCHKEY_TOLD_REFERENCE];

    if (ctx->key.len == 0) {
        return "there is no key";
    }

    if (ctx->tenant.len > NGX_HTTP_LATCHKEY_TENANT_MAX
        || ctx->scope.len > NGX_HTTP_LATCHKEY_SCOPE_MAX
        || ctx->key.len > LK_KEY_MAX)
    {
        return "tenant, scope or key is too long";
    }

    token = ngx_atoof(told[NGX_HTTP_LATCHKEY_TOLD_TOKEN].data,
                      told[NGX_HTTP_LATCHKEY_TOLD_TOKEN].len);
    attempt = ngx_atoof(told[NGX_HTTP_LATCHKEY_TOLD_ATTEMPT].data,
                        told[NGX_HTTP_LATCHKEY_TOLD_ATTEMPT].len);

    if (token <= 0 || token >= NGX_HTTP_LATCHKEY_TOKEN_MAX || attempt <= 0) {
        return "token or attempt is not such a number";
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
ngx_http_latchkey_courier_gather(ngx_http_request_t *r, ngx_str_t *told)
{
    ngx_str_t        *name;
    ngx_uint_t        i, j;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    ngx_memzero(told, NGX_HTTP_LATCHKEY_TOLD_LAST * sizeof(ngx_str_t));

    for (part = &r->headers_in.headers.part; part; part = part->next) {
        h = part->elts;

        for (i = 0; i < part->nelts; i++) {
            for (j = 0; j < NGX_HTTP_LATCHKEY_TOLD_LAST; j++) {
                name = &ngx_http_latchkey_told[j];

                if (h[i].key.len != name->len
                    || ngx_strncasecmp(h[i].key.data, name->data, name->len)
                       != 0)
                {
                    continue;
                }

                if (told[j].data) {
                    return "a Latchkey-* header is there twice";
                }

                told[j] = h[i].value;
            }
        }
    }

    for (j = 0; j < NGX_HTTP_LATCHKEY_TOLD_LAST; j++) {

        /* of a key of spaces alone nothing is left */

        if (told[j].data == NULL
            || (told[j].len == 0 && j != NGX_HTTP_LATCHKEY_TOLD_KEY))
        {
            return "a Latchkey-* header is missing or empty";
        }
    }

    return NULL;
}


/*
 * Spaces at the ends of a key are lost in a header.  As the client sent it, in
 * quotes, they are not.
 */

static void
ngx_http_latchkey_courier_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *told)
{
    ngx_str_t  value, key;

    ngx_str_null(&ctx->key);

    /* what a route demands of keys was looked at when it was accepted */

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

    if (key.len != told->len
        || ngx_memcmp(key.data, told->data, told->len) != 0)
    {
        ctx->key = *told;
    }
}


static ngx_int_t
ngx_http_latchkey_courier_refuse(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_http_latchkey_said_e verdict,
    ngx_uint_t status)
{
    ngx_chain_t  *out;

    ctx->verdict = verdict;
    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    out = ngx_http_latchkey_set_unsent(r, status);

    ngx_http_latchkey_finish(r, ngx_http_latchkey_send(r, out));

    return NGX_DONE;
}


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


/* what it is told */

ngx_int_t
ngx_http_latchkey_courier_decide(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    ngx_chain_t  *out;

    if (answer && answer->verdict == LK_VERDICT_DONE) {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_NEW;
        return ngx_http_latchkey_run(r, ctx);
    }

    ctx->state = NGX_HTTP_LATCHKEY_PASS;

    if (answer == NULL) {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_UNAVAILABLE;

        out = ngx_http_latchkey_set_unsent(r, NGX_HTTP_SERVICE_UNAVAILABLE);

        if (out && ngx_http_latchkey_add_retry_after(r,
                                                     NGX_HTTP_LATCHKEY_RETRY)
                   != NGX_OK)
        {
            out = NULL;
        }

    } else if (answer->verdict == LK_VERDICT_KEPT) {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_REPLAY;
        out = ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "completed");

    } else {
        ctx->verdict = NGX_HTTP_LATCHKEY_SAID_INFLIGHT;
        ctx->outcome = NGX_HTTP_LATCHKEY_DID_STALE;
        out = ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "stale");
    }

    ngx_http_latchkey_op_detach(ctx->op);
    ctx->op = NULL;

    r->read_event_handler = ngx_http_block_reading;

    ngx_http_latchkey_finish(r, ngx_http_latchkey_send(r, out));

    return NGX_DONE;
}


ngx_chain_t *
ngx_http_latchkey_courier_outcome(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer)
{
    ngx_uint_t               status;
    ngx_http_latchkey_op_t  *op;

    op = ctx->op;

    status = (op->status >= 200 && op->status <= 599) ? op->status
                                                      : NGX_HTTP_OK;

    if (answer == NULL) {

        /*
         * That nothing has happened is true without a record of it; that
         * something may have, the courier takes for granted.
         */

        return op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE
               ? ngx_http_latchkey_set_released(r, status) : NULL;
    }

    switch (answer->verdict) {

    case LK_VERDICT_KEPT:
        return ngx_http_latchkey_set_outcome(r, NGX_HTTP_OK, "completed");

    case LK_VERDICT_STALE:

        if (op->settle == NGX_HTTP_LATCHKEY_SETTLE_RELEASE) {
            break;
        }

        ngx_log_error(NGX_LOG_WARN, r->connection->log, 0,
                      "idempotency_courier: operation %V was decided "
                      "elsewhere while the app worked; its answer is not used",
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

    ngx_http_latchkey_start(r, status);

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


/* an app that is busy may have said for how long */

static ngx_chain_t *
ngx_http_latchkey_set_released(ngx_http_request_t *r, ngx_uint_t status)
{
    ngx_str_t         retry_after;
    ngx_uint_t        i;
    ngx_chain_t      *out;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    if (!ngx_http_latchkey_contacted(ngx_http_latchkey_get_ctx(r),
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
ngx_http_latchkey_courier_unseen(ngx_http_request_t *r,
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
                  "idempotency_courier: a request was answered with %ui "
                  "before its location could take it; see that the courier "
                  "needs no credentials where it comes in",
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
    ngx_http_latchkey_heard_t       heard;
    ngx_http_latchkey_main_conf_t  *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);

    heard.courier = lmcf->courier;
    heard.there = 0;
    heard.elsewhere = 0;

    if (lmcf->courier) {
        ngx_http_latchkey_each_listen(cf, cscf,
                                      ngx_http_latchkey_courier_listen,
                                      &heard);
    }

    *only = heard.there && !heard.elsewhere;

    return heard.there;
}


static void
ngx_http_latchkey_courier_listen(struct sockaddr *sa, socklen_t socklen,
    void *data)
{
    ngx_http_latchkey_heard_t *heard = data;

    if (ngx_cmp_sockaddr(sa, socklen, heard->courier->sockaddr,
                         heard->courier->socklen, 0)
        == NGX_OK)
    {
        heard->there = 1;

    } else {
        heard->elsewhere = 1;
    }
}


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
                      "servers whose requests the courier brings",
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

    /* what is accepted must be let in again */

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
                      "\"idempotency_async_body\" of location \"%V\" lets %uz "
                      "bytes be accepted, but where the courier brings them, "
                      "location \"%V\" of server \"%V\", "
                      "\"client_max_body_size\" is %O",
                      &largest->location_name, largest->async_body,
                      &llcf[i]->location_name, &llcf[i]->server_name,
                      clcf->client_max_body_size);
    }

    return NGX_OK;
}


/*
 * nginx lets everybody write to its unix sockets: it is for a folder to keep
 * people away.
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
                  "everybody on this machine can reach \"%V\" of "
                  "\"idempotency_courier\", pass for the courier and name any "
                  "tenant; put it into a folder that only nginx and latchkeyd "
                  "may enter, or name latchkeyd's user with \"user=\"",
                  path);

    return NGX_ERROR;
}
