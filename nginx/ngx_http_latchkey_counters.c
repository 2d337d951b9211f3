
/*
 * Counters by location, in shared memory: which requests were guarded and with
 * what verdict and outcome, and which state-changing requests no guard covers.
 *
 * Life of a slot: the master adds it when a configuration names a location for
 * the first time, workers increment it, and it is never removed: it survives
 * new configurations, as long as the zone has room.
 */


#include "ngx_http_latchkey_counters.h"


#define NGX_HTTP_LATCHKEY_CHANGING                                           \
    (NGX_HTTP_POST|NGX_HTTP_PUT|NGX_HTTP_PATCH|NGX_HTTP_DELETE)


/* the location of a state-changing request before an error page made it GET */

typedef struct {
    ngx_http_latchkey_loc_conf_t    *conf;
} ngx_http_latchkey_visit_t;


#define NGX_HTTP_LATCHKEY_SLOTS_MIN   64
#define NGX_HTTP_LATCHKEY_NAMES_MIN   4096

/* changes with the layout: a table of another version is not read */
#define NGX_HTTP_LATCHKEY_LAYOUT                                             \
    ((uint64_t) 0x6c6b637400000001ULL                                        \
     ^ ((uint64_t) sizeof(ngx_http_latchkey_slot_t) << 16)                   \
     ^ ((uint64_t) NGX_HTTP_LATCHKEY_VERDICT_LAST << 8)                      \
     ^ ((uint64_t) NGX_HTTP_LATCHKEY_OUTCOME_LAST << 4))


static void ngx_http_latchkey_number_location(
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
static ngx_int_t ngx_http_latchkey_visit_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_visit_cleanup(void *data);
static ngx_http_latchkey_visit_t *ngx_http_latchkey_get_visit(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_log_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_sent_method(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_cover_of(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t method);
static ngx_int_t ngx_http_latchkey_counters_zone(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_http_latchkey_counters_t *ngx_http_latchkey_counters_create(
    ngx_conf_t *cf, ngx_http_latchkey_main_conf_t *lmcf);
static ngx_int_t ngx_http_latchkey_number_copies(ngx_conf_t *cf,
    ngx_http_latchkey_counters_t *counters);
static int ngx_libc_cdecl ngx_http_latchkey_compare_places(const void *one,
    const void *two);
static ngx_shm_zone_t *ngx_http_latchkey_old_zone(ngx_cycle_t *cycle,
    ngx_str_t *name);
static ngx_http_latchkey_table_t *ngx_http_latchkey_old_table(
    ngx_shm_zone_t *zone);
static ngx_uint_t ngx_http_latchkey_table_fits(
    ngx_http_latchkey_counters_t *counters, ngx_http_latchkey_table_t *table);
static ngx_int_t ngx_http_latchkey_init_zone(ngx_shm_zone_t *zone,
    void *data);
static size_t ngx_http_latchkey_table_size(ngx_uint_t size,
    size_t names_size);
static ngx_http_latchkey_table_t *ngx_http_latchkey_create_table(
    ngx_slab_pool_t *shpool, ngx_uint_t size, size_t names_size);
static ngx_http_latchkey_slot_t **ngx_http_latchkey_slot_head(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);
static ngx_http_latchkey_slot_t *ngx_http_latchkey_find_slot(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);
static ngx_http_latchkey_slot_t *ngx_http_latchkey_add_slot(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);


static struct {
    ngx_str_t   name;
    ngx_uint_t  method;
} ngx_http_latchkey_method_lines[] = {
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


/*
 * A location gets a number if requests can be counted there; `if` and
 * limit_except share the one of their location.
 */

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

    /* `if` and limit_except share the name of the location they are in */

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
 * An error page is a GET in another location: the location before it counts.
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


/* the visit is found again by this handler */

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


/* Counts each main request once, when it is logged. */

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
           &slot->covers[ngx_http_latchkey_cover_of(r, llcf, ctx, method)], 1);

    if (ctx) {
        (void) ngx_atomic_fetch_add(&slot->verdicts[ctx->verdict], 1);
        (void) ngx_atomic_fetch_add(&slot->outcomes[ctx->outcome], 1);
    }

    return NGX_OK;
}


/* the method that the client sent; 0: it does not change state */

static ngx_uint_t
ngx_http_latchkey_sent_method(ngx_http_request_t *r)
{
    ngx_uint_t   i;
    ngx_str_t   *name;

    for (i = 0; ngx_http_latchkey_method_lines[i].name.len; i++) {
        name = &ngx_http_latchkey_method_lines[i].name;

        if (r->request_line.len > name->len
            && ngx_strncmp(r->request_line.data, name->data, name->len) == 0)
        {
            return ngx_http_latchkey_method_lines[i].method;
        }
    }

    return 0;
}


/* By the ctx if there was a guard; else by whether one should have been. */

static ngx_uint_t
ngx_http_latchkey_cover_of(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t method)
{
    ngx_uint_t  status;

    if (ctx && ctx->verdict != NGX_HTTP_LATCHKEY_VERDICT_NONE) {

        if (ctx->verdict == NGX_HTTP_LATCHKEY_VERDICT_PASSED) {
            return NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
        }

        return ctx->observe ? NGX_HTTP_LATCHKEY_COVER_OBSERVED
                            : NGX_HTTP_LATCHKEY_COVER_GUARDED;
    }

    status = r->err_status ? r->err_status : r->headers_out.status;

    /*
     * The guard was not reached: authentication refused the request, for
     * example, or "return" responded.
     */

    if (llcf->mode != NGX_HTTP_LATCHKEY_OFF && (llcf->methods & method)) {
        return (status == 0 || status >= 400)
               ? NGX_HTTP_LATCHKEY_COVER_REFUSED
               : NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
    }

    /* malformed, or cut off before it had a location */

    if (llcf->location_name.len == 0 && (status == 0 || status >= 400)) {
        return NGX_HTTP_LATCHKEY_COVER_REFUSED;
    }

    return NGX_HTTP_LATCHKEY_COVER_UNGUARDED;
}


/*
 * The zone of the last configuration is used again while there is room in it:
 * old workers then count in the same slots until they exit.  Otherwise it must
 * have another size, or nginx would still use the old one; `noreuse` does not
 * help, because nginx frees such a zone with the next configuration, even if
 * that one uses it.
 */

static ngx_int_t
ngx_http_latchkey_counters_zone(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    size_t                         size;
    ngx_shm_zone_t                *old;
    ngx_http_latchkey_counters_t  *counters;
    static ngx_str_t               name = ngx_string("latchkey_counters");

    counters = ngx_http_latchkey_counters_create(cf, lmcf);
    if (counters == NULL) {
        return NGX_ERROR;
    }

    size = ngx_http_latchkey_table_size(counters->size, counters->names_size);

    old = ngx_http_latchkey_old_zone(cf->cycle, &name);

    if (old) {
        counters->old = ngx_http_latchkey_old_table(old);

        if (counters->old && old->tag == &ngx_http_latchkey_module
            && ngx_http_latchkey_table_fits(counters, counters->old))
        {
            size = old->shm.size;

        } else if (size == old->shm.size) {
            size += ngx_pagesize;
        }
    }

    lmcf->zone = ngx_shared_memory_add(cf, &name, size,
                                       &ngx_http_latchkey_module);
    if (lmcf->zone == NULL) {
        return NGX_ERROR;
    }

    lmcf->zone->init = ngx_http_latchkey_init_zone;
    lmcf->zone->data = counters;

    return NGX_OK;
}


static ngx_http_latchkey_counters_t *
ngx_http_latchkey_counters_create(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    ngx_uint_t                      i;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_place_t      *place;
    ngx_http_latchkey_counters_t   *counters;
    ngx_http_latchkey_loc_conf_t  **llcf;

    counters = ngx_pcalloc(cf->pool, sizeof(ngx_http_latchkey_counters_t));
    if (counters == NULL) {
        return NULL;
    }

    counters->n = lmcf->counted;
    counters->places = ngx_pcalloc(cf->pool, (lmcf->counted + 1)
                                       * sizeof(ngx_http_latchkey_place_t));
    counters->slots = ngx_pcalloc(cf->pool, (lmcf->counted + 1)
                                       * sizeof(ngx_http_latchkey_slot_t *));

    if (counters->places == NULL || counters->slots == NULL) {
        return NULL;
    }

    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (!clcf->noname) {
            place = &counters->places[llcf[i]->counter];
            place->server = llcf[i]->server_name;
            place->location = llcf[i]->location_name;
        }
    }

    for (i = 1; i <= counters->n; i++) {
        place = &counters->places[i];
        counters->names_size += place->server.len + place->location.len;
    }

    if (ngx_http_latchkey_number_copies(cf, counters) != NGX_OK) {
        return NULL;
    }

    /* with room for twice as many, before another zone is needed */

    counters->size = ngx_max(2 * counters->n, NGX_HTTP_LATCHKEY_SLOTS_MIN);
    counters->names_size = ngx_max(2 * counters->names_size,
                                   NGX_HTTP_LATCHKEY_NAMES_MIN);

    return counters;
}


/* two locations may have the same server and location names */

static ngx_int_t
ngx_http_latchkey_number_copies(ngx_conf_t *cf,
    ngx_http_latchkey_counters_t *counters)
{
    ngx_uint_t                   i;
    ngx_http_latchkey_place_t  **sorted;

    sorted = ngx_palloc(cf->temp_pool, (counters->n + 1)
                                       * sizeof(ngx_http_latchkey_place_t *));
    if (sorted == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < counters->n; i++) {
        sorted[i] = &counters->places[i + 1];
    }

    ngx_qsort(sorted, counters->n, sizeof(ngx_http_latchkey_place_t *),
              ngx_http_latchkey_compare_places);

    for (i = 1; i < counters->n; i++) {
        if (ngx_http_latchkey_compare_places(&sorted[i - 1], &sorted[i])
            == 0)
        {
            sorted[i]->copy = sorted[i - 1]->copy + 1;
        }
    }

    return NGX_OK;
}


/* For ngx_qsort(); without `copy`, which is what is being numbered. */

static int ngx_libc_cdecl
ngx_http_latchkey_compare_places(const void *one, const void *two)
{
    ngx_int_t                   rc;
    ngx_http_latchkey_place_t  *a, *b;

    a = *(ngx_http_latchkey_place_t **) one;
    b = *(ngx_http_latchkey_place_t **) two;

    rc = ngx_memn2cmp(a->server.data, b->server.data, a->server.len,
                      b->server.len);
    if (rc) {
        return rc;
    }

    return ngx_memn2cmp(a->location.data, b->location.data, a->location.len,
                        b->location.len);
}


static ngx_shm_zone_t *
ngx_http_latchkey_old_zone(ngx_cycle_t *cycle, ngx_str_t *name)
{
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_shm_zone_t   *zone;

    if (cycle->old_cycle == NULL) {
        return NULL;
    }

    for (part = &cycle->old_cycle->shared_memory.part;
         part;
         part = part->next)
    {
        zone = part->elts;

        for (i = 0; i < part->nelts; i++) {
            if (zone[i].shm.name.len == name->len
                && ngx_strncmp(zone[i].shm.name.data, name->data, name->len)
                   == 0)
            {
                return &zone[i];
            }
        }
    }

    return NULL;
}


/* NULL: another version of this module made it */

static ngx_http_latchkey_table_t *
ngx_http_latchkey_old_table(ngx_shm_zone_t *zone)
{
    ngx_slab_pool_t            *shpool;
    ngx_http_latchkey_table_t  *table;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;
    table = shpool ? shpool->data : NULL;

    if (table == NULL || table->layout != NGX_HTTP_LATCHKEY_LAYOUT) {
        return NULL;
    }

    return table;
}


static ngx_uint_t
ngx_http_latchkey_table_fits(ngx_http_latchkey_counters_t *counters,
    ngx_http_latchkey_table_t *table)
{
    size_t                      names;
    ngx_uint_t                  i, n;
    ngx_http_latchkey_place_t  *place;

    n = 0;
    names = 0;

    for (i = 1; i <= counters->n; i++) {
        place = &counters->places[i];

        if (ngx_http_latchkey_find_slot(table, place) == NULL) {
            n++;
            names += place->server.len + place->location.len;
        }
    }

    return n <= table->size - table->used
           && names <= (size_t) (table->names_end - table->names);
}


/* shared memory */

/* in the master: a new table takes the counts of the old one over, by name */

static ngx_int_t
ngx_http_latchkey_init_zone(ngx_shm_zone_t *zone, void *data)
{
    ngx_http_latchkey_counters_t  *counters = zone->data;

    ngx_uint_t                  i;
    ngx_slab_pool_t            *shpool;
    ngx_http_latchkey_slot_t   *slot, *old;
    ngx_http_latchkey_table_t  *table;

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    if (data) {
        table = shpool->data;

    } else {
        table = ngx_http_latchkey_create_table(shpool, counters->size,
                                               counters->names_size);
        if (table == NULL) {
            return NGX_ERROR;
        }

        shpool->data = table;
    }

    for (i = 1; i <= counters->n; i++) {
        slot = ngx_http_latchkey_find_slot(table, &counters->places[i]);

        if (slot == NULL) {
            slot = ngx_http_latchkey_add_slot(table, &counters->places[i]);
            if (slot == NULL) {
                return NGX_ERROR;
            }

            old = counters->old && counters->old != table
                  ? ngx_http_latchkey_find_slot(counters->old,
                                                &counters->places[i])
                  : NULL;

            if (old) {
                ngx_memcpy((void *) slot->covers, (void *) old->covers,
                           sizeof(ngx_http_latchkey_slot_t)
                           - offsetof(ngx_http_latchkey_slot_t, covers));
            }
        }

        counters->slots[i] = slot;
    }

    counters->old = NULL;

    return NGX_OK;
}


static size_t
ngx_http_latchkey_table_size(ngx_uint_t size, size_t names_size)
{
    size_t  need;

    need = sizeof(ngx_http_latchkey_table_t) + names_size
           + size * (sizeof(ngx_http_latchkey_slot_t)
                     + sizeof(ngx_http_latchkey_slot_t *));

    /* the slab allocator describes each page, and needs some for itself */

    return ngx_align(need + need / 32 + 8 * ngx_pagesize, ngx_pagesize);
}


static ngx_http_latchkey_table_t *
ngx_http_latchkey_create_table(ngx_slab_pool_t *shpool, ngx_uint_t size,
    size_t names_size)
{
    u_char                     *p;
    ngx_http_latchkey_table_t  *table;

    p = ngx_slab_calloc(shpool, sizeof(ngx_http_latchkey_table_t)
                                + size * (sizeof(ngx_http_latchkey_slot_t)
                                        + sizeof(ngx_http_latchkey_slot_t *))
                                + names_size);
    if (p == NULL) {
        return NULL;
    }

    table = (ngx_http_latchkey_table_t *) p;
    p += sizeof(ngx_http_latchkey_table_t);

    table->slots = (ngx_http_latchkey_slot_t *) p;
    p += size * sizeof(ngx_http_latchkey_slot_t);

    table->heads = (ngx_http_latchkey_slot_t **) p;
    p += size * sizeof(ngx_http_latchkey_slot_t *);

    table->layout = NGX_HTTP_LATCHKEY_LAYOUT;
    table->size = size;
    table->names = p;
    table->names_end = p + names_size;

    return table;
}


static ngx_http_latchkey_slot_t **
ngx_http_latchkey_slot_head(ngx_http_latchkey_table_t *table,
    ngx_http_latchkey_place_t *place)
{
    uint32_t  hash;

    hash = ngx_murmur_hash2(place->server.data, place->server.len) * 31
           + ngx_murmur_hash2(place->location.data, place->location.len)
           + (uint32_t) place->copy;

    return &table->heads[hash % table->size];
}


static ngx_http_latchkey_slot_t *
ngx_http_latchkey_find_slot(ngx_http_latchkey_table_t *table,
    ngx_http_latchkey_place_t *place)
{
    ngx_http_latchkey_slot_t   *slot;
    ngx_http_latchkey_place_t  *other;

    for (slot = *ngx_http_latchkey_slot_head(table, place);
         slot;
         slot = slot->next)
    {
        other = &slot->place;

        if (other->copy == place->copy
            && ngx_http_latchkey_compare_places(&other, &place) == 0)
        {
            return slot;
        }
    }

    return NULL;
}


/* NULL: no room */

static ngx_http_latchkey_slot_t *
ngx_http_latchkey_add_slot(ngx_http_latchkey_table_t *table,
    ngx_http_latchkey_place_t *place)
{
    size_t                      len;
    ngx_http_latchkey_slot_t   *slot, **head;

    len = place->server.len + place->location.len;

    if (table->used == table->size
        || len > (size_t) (table->names_end - table->names))
    {
        return NULL;
    }

    slot = &table->slots[table->used++];

    slot->place = *place;
    slot->place.server.data = table->names;
    slot->place.location.data = table->names + place->server.len;

    table->names = ngx_cpymem(table->names, place->server.data,
                              place->server.len);
    table->names = ngx_cpymem(table->names, place->location.data,
                              place->location.len);

    head = ngx_http_latchkey_slot_head(table, place);
    slot->next = *head;
    *head = slot;

    return slot;
}
