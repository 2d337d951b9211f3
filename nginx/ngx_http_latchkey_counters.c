
/*
 * What was guarded and what was not, counted by location in shared memory:
 * state-changing requests that no guard covers are visible.
 */


#include "ngx_http_latchkey_counters.h"


#define NGX_HTTP_LATCHKEY_CHANGING                                           \
    (NGX_HTTP_POST|NGX_HTTP_PUT|NGX_HTTP_PATCH|NGX_HTTP_DELETE)


/* where a state-changing request was before an error page made it a GET */

typedef struct {
    ngx_http_latchkey_loc_conf_t    *conf;
} ngx_http_latchkey_visit_t;


static void ngx_http_latchkey_number_location(
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_visit_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_visit_cleanup(void *data);
static ngx_http_latchkey_visit_t *ngx_http_latchkey_get_visit(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_log_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_sent_method(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_cover(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t method);


static struct {
    ngx_str_t   name;
    ngx_uint_t  method;
} ngx_http_latchkey_methods[] = {
    { ngx_string("POST "), NGX_HTTP_POST },
    { ngx_string("PUT "), NGX_HTTP_PUT },
    { ngx_string("PATCH "), NGX_HTTP_PATCH },
    { ngx_string("DELETE "), NGX_HTTP_DELETE },
    { ngx_null_string, 0 }
};


/* configuration */

ngx_int_t
ngx_http_latchkey_counters_init(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_latchkey_loc_conf_t   **llcf;
    ngx_http_latchkey_main_conf_t   *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);
    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        ngx_http_latchkey_number_location(lmcf, llcf[i]);
    }

    if (ngx_http_latchkey_counters_zone(cf, lmcf) != NGX_OK
        || ngx_http_latchkey_rate_init(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_latchkey_add_handler(cf, NGX_HTTP_PREACCESS_PHASE,
                                         ngx_http_latchkey_visit_handler)
           == NGX_OK
           && ngx_http_latchkey_add_handler(cf, NGX_HTTP_LOG_PHASE,
                                            ngx_http_latchkey_log_handler)
              == NGX_OK
           ? NGX_OK : NGX_ERROR;
}


static void
ngx_http_latchkey_number_location(ngx_http_latchkey_main_conf_t *lmcf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_uint_t                       i;
    ngx_http_core_loc_conf_t        *clcf, *pclcf;
    ngx_http_latchkey_loc_conf_t   **locations;

    if (llcf->counter) {
        return;
    }

    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (!clcf->noname) {
        llcf->counter = ++lmcf->counted;
        return;
    }

    /* `if` and limit_except point to the very name of what they stand in */

    locations = lmcf->locations.elts;

    for (i = lmcf->locations.nelts; i-- > 0; /* void */ ) {
        pclcf = locations[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (pclcf->noname || pclcf->name.data != clcf->name.data
            || locations[i]->cscf != llcf->cscf)
        {
            continue;
        }

        if (locations[i]->counter == 0) {
            locations[i]->counter = ++lmcf->counted;
        }

        llcf->counter = locations[i]->counter;
        return;
    }

    llcf->counter = ++lmcf->counted;
}


/* counting */

/*
 * An error page is asked for with GET in a location of its own: what was
 * there before it is what counts.
 */

static ngx_int_t
ngx_http_latchkey_visit_handler(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t         *cln;
    ngx_http_latchkey_visit_t  *visit;

    if (r != r->main || !(r->method & NGX_HTTP_LATCHKEY_CHANGING)) {
        return NGX_DECLINED;
    }

    visit = ngx_http_latchkey_get_visit(r);

    if (visit == NULL) {
        cln = ngx_pool_cleanup_add(r->pool, sizeof(ngx_http_latchkey_visit_t));
        if (cln == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        cln->handler = ngx_http_latchkey_visit_cleanup;
        visit = cln->data;
    }

    visit->conf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    return NGX_DECLINED;
}


/* the handler is what the visit is found again by */

static void
ngx_http_latchkey_visit_cleanup(void *data)
{
}


static ngx_http_latchkey_visit_t *
ngx_http_latchkey_get_visit(ngx_http_request_t *r)
{
    ngx_pool_cleanup_t  *cln;

    for (cln = r->pool->cleanup; cln; cln = cln->next) {
        if (cln->handler == ngx_http_latchkey_visit_cleanup) {
            return cln->data;
        }
    }

    return NULL;
}


static ngx_int_t
ngx_http_latchkey_log_handler(ngx_http_request_t *r)
{
    ngx_uint_t                      method;
    ngx_http_latchkey_ctx_t        *ctx;
    ngx_http_latchkey_slot_t       *slot;
    ngx_http_latchkey_visit_t      *visit;
    ngx_http_latchkey_counters_t   *counters;
    ngx_http_latchkey_loc_conf_t   *llcf;
    ngx_http_latchkey_main_conf_t  *lmcf;

    method = r == r->main ? ngx_http_latchkey_sent_method(r) : 0;

    if (method == 0) {
        return NGX_OK;
    }

    ctx = ngx_http_latchkey_get_ctx(r);
    llcf = ngx_http_get_module_loc_conf(r, ngx_http_latchkey_module);

    if (ctx && ctx->conf) {
        llcf = ctx->conf;

    } else if (!(r->method & NGX_HTTP_LATCHKEY_CHANGING)) {
        visit = ngx_http_latchkey_get_visit(r);

        if (visit) {
            llcf = visit->conf;
        }
    }

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);
    counters = lmcf->zone->data;
    slot = counters->slots[llcf->counter];

    if (slot == NULL) {
        return NGX_OK;
    }

    (void) ngx_atomic_fetch_add(
              &slot->covers[ngx_http_latchkey_cover(r, llcf, ctx, method)], 1);

    if (ctx) {
        (void) ngx_atomic_fetch_add(&slot->verdicts[ctx->verdict], 1);
        (void) ngx_atomic_fetch_add(&slot->outcomes[ctx->outcome], 1);
    }

    return NGX_OK;
}


/* as the client sent it; 0: it changes nothing */

static ngx_uint_t
ngx_http_latchkey_sent_method(ngx_http_request_t *r)
{
    ngx_uint_t   i;
    ngx_str_t   *name;

    for (i = 0; ngx_http_latchkey_methods[i].name.len; i++) {
        name = &ngx_http_latchkey_methods[i].name;

        if (r->request_line.len > name->len
            && ngx_strncmp(r->request_line.data, name->data, name->len) == 0)
        {
            return ngx_http_latchkey_methods[i].method;
        }
    }

    return 0;
}


static ngx_uint_t
ngx_http_latchkey_cover(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t method)
{
    ngx_uint_t  status;

    if (ctx && ctx->verdict != NGX_HTTP_LATCHKEY_SAID_NONE) {

        if (ctx->verdict == NGX_HTTP_LATCHKEY_SAID_PASSED) {
            return NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
        }

        return ctx->observe ? NGX_HTTP_LATCHKEY_COVER_OBSERVED
                            : NGX_HTTP_LATCHKEY_COVER_GUARDED;
    }

    status = r->err_status ? r->err_status : r->headers_out.status;

    /*
     * The guard was not reached: authentication, say, refused the request, or
     * "return" answered it.
     */

    if (llcf->mode != NGX_HTTP_LATCHKEY_OFF && (llcf->methods & method)) {
        return (status == 0 || status >= 400)
               ? NGX_HTTP_LATCHKEY_COVER_REFUSED
               : NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
    }

    /* malformed, or cut off before there was a location for it */

    if (llcf->location_name.len == 0 && (status == 0 || status >= 400)) {
        return NGX_HTTP_LATCHKEY_COVER_REFUSED;
    }

    return NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
}
