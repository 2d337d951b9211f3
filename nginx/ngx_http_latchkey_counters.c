
/*
 * What was guarded and what was not, counted by location in shared memory:
 * state-changing requests that no guard covers are visible.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_CHANGING                                           \
    (NGX_HTTP_POST|NGX_HTTP_PUT|NGX_HTTP_PATCH|NGX_HTTP_DELETE)

#define NGX_HTTP_LATCHKEY_SLOTS_MIN   64
#define NGX_HTTP_LATCHKEY_NAMES_MIN   4096

/* changes with the layout: what another version left is not read */
#define NGX_HTTP_LATCHKEY_LAYOUT                                             \
    ((uint64_t) 0x6c6b637400000001ULL                                        \
     ^ ((uint64_t) sizeof(ngx_http_latchkey_slot_t) << 16)                   \
     ^ ((uint64_t) NGX_HTTP_LATCHKEY_SAID_LAST << 8)                         \
     ^ ((uint64_t) NGX_HTTP_LATCHKEY_DID_LAST << 4))


/* what can become of a request; the words are those of the handler */

#define NGX_HTTP_LATCHKEY_COVERS(X)                                          \
    X(GUARDED, "guarded", "Requests that a guard decided on.")               \
    X(OBSERVED, "observed",                                                  \
      "Requests that were decided on and passed whatever was decided.")      \
    X(REFUSED, "refused", "Requests that ended before a guard was asked.")   \
    X(UNGUARDED, "unguarded", "State-changing requests without a guard.")

typedef enum {
#define X(name, word, help)  NGX_HTTP_LATCHKEY_COVER_##name,
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
    NGX_HTTP_LATCHKEY_COVER_LAST
} ngx_http_latchkey_cover_e;


/* `copy` tells locations apart that have the same names */

typedef struct {
    ngx_str_t                        server;
    ngx_str_t                        location;
    ngx_uint_t                       copy;
} ngx_http_latchkey_place_t;


/* in shared memory; only the master adds slots, and none is ever removed */

typedef struct ngx_http_latchkey_slot_s  ngx_http_latchkey_slot_t;

struct ngx_http_latchkey_slot_s {
    ngx_http_latchkey_place_t        place;
    ngx_http_latchkey_slot_t        *next;        /* of the same hash */

    ngx_atomic_t                     covers[NGX_HTTP_LATCHKEY_COVER_LAST];
    ngx_atomic_t                     verdicts[NGX_HTTP_LATCHKEY_SAID_LAST];
    ngx_atomic_t                     outcomes[NGX_HTTP_LATCHKEY_DID_LAST];
};


typedef struct {
    uint64_t                         layout;
    ngx_uint_t                       size;        /* of slots and heads */
    ngx_uint_t                       used;
    u_char                          *names;       /* free room */
    u_char                          *names_end;
    ngx_http_latchkey_slot_t       **heads;       /* by hash */
    ngx_http_latchkey_slot_t        *slots;
} ngx_http_latchkey_table_t;


/* of one configuration; by the locations' numbers, which begin with 1 */

typedef struct {
    ngx_uint_t                       n;
    ngx_http_latchkey_place_t       *places;
    ngx_http_latchkey_slot_t       **slots;

    /* the table to be made, and the one before it */
    ngx_uint_t                       size;
    size_t                           names_size;
    ngx_http_latchkey_table_t       *old;
} ngx_http_latchkey_counters_t;


/* where a state-changing request was before an error page made it a GET */

typedef struct {
    ngx_http_latchkey_loc_conf_t    *conf;
} ngx_http_latchkey_visit_t;


static ngx_int_t ngx_http_latchkey_counters_zone(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_http_latchkey_counters_t *ngx_http_latchkey_counters_create(
    ngx_conf_t *cf, ngx_http_latchkey_main_conf_t *lmcf);
static int ngx_libc_cdecl ngx_http_latchkey_compare_places(const void *one,
    const void *two);
static ngx_shm_zone_t *ngx_http_latchkey_old_zone(ngx_cycle_t *cycle,
    ngx_str_t *name);
static ngx_http_latchkey_table_t *ngx_http_latchkey_old_table(
    ngx_shm_zone_t *zone);
static ngx_uint_t ngx_http_latchkey_fits(ngx_http_latchkey_counters_t *counters,
    ngx_http_latchkey_table_t *table);
static ngx_int_t ngx_http_latchkey_init_zone(ngx_shm_zone_t *zone, void *data);
static ngx_http_latchkey_table_t *ngx_http_latchkey_create_table(
    ngx_slab_pool_t *shpool, ngx_uint_t size, size_t names_size);
static size_t ngx_http_latchkey_table_size(ngx_uint_t size, size_t names_size);
static ngx_http_latchkey_slot_t *ngx_http_latchkey_find_slot(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);
static ngx_http_latchkey_slot_t *ngx_http_latchkey_add_slot(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);
static ngx_http_latchkey_slot_t **ngx_http_latchkey_slot_head(
    ngx_http_latchkey_table_t *table, ngx_http_latchkey_place_t *place);

static ngx_int_t ngx_http_latchkey_visit_handler(ngx_http_request_t *r);
static void ngx_http_latchkey_visit_cleanup(void *data);
static ngx_http_latchkey_visit_t *ngx_http_latchkey_get_visit(
    ngx_http_request_t *r);
static ngx_int_t ngx_http_latchkey_log_handler(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_sent_method(ngx_http_request_t *r);
static ngx_uint_t ngx_http_latchkey_cover(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_ctx_t *ctx,
    ngx_uint_t method);

static ngx_uint_t ngx_http_latchkey_write_json(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_uint_t ngx_http_latchkey_json_location(struct lk_buf *text,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_place_t *place,
    ngx_http_latchkey_slot_t *slot);
static ngx_uint_t ngx_http_latchkey_json_counts(struct lk_buf *text,
    const char *name, ngx_str_t *words, ngx_atomic_t *counts, ngx_uint_t n);
static ngx_uint_t ngx_http_latchkey_add_location_name(struct lk_buf *text,
    ngx_http_latchkey_place_t *place);
static ngx_uint_t ngx_http_latchkey_write_metrics(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf);
static ngx_uint_t ngx_http_latchkey_write_metric(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_uint_t metric);
static ngx_uint_t ngx_http_latchkey_add_sample(struct lk_buf *text,
    const char *name, ngx_http_latchkey_place_t *place, const char *label,
    ngx_str_t *word, ngx_atomic_uint_t value);
static ngx_uint_t ngx_http_latchkey_add_label(struct lk_buf *text,
    ngx_str_t *value);


static ngx_str_t  ngx_http_latchkey_modes[] = {
    ngx_string("off"),
    ngx_string("observe"),
    ngx_string("optional"),
    ngx_string("required")
};


static ngx_str_t  ngx_http_latchkey_covers[] = {
#define X(name, word, help)  ngx_string(word),
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
};


static const char  *ngx_http_latchkey_covers_help[] = {
#define X(name, word, help)  help,
    NGX_HTTP_LATCHKEY_COVERS(X)
#undef X
};


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
ngx_http_latchkey_counters_location(ngx_conf_t *cf,
    ngx_http_latchkey_loc_conf_t *llcf)
{
    ngx_uint_t                       i;
    ngx_http_core_loc_conf_t        *clcf, *pclcf;
    ngx_http_latchkey_loc_conf_t   **locations;
    ngx_http_latchkey_main_conf_t   *lmcf;

    if (llcf->counter) {
        return NGX_OK;
    }

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);
    clcf = llcf->loc_conf[ngx_http_core_module.ctx_index];

    if (!clcf->noname) {
        llcf->counter = ++lmcf->counted;
        return NGX_OK;
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
        return NGX_OK;
    }

    llcf->counter = ++lmcf->counted;

    return NGX_OK;
}


ngx_int_t
ngx_http_latchkey_counters_init(ngx_conf_t *cf)
{
    ngx_uint_t                       i;
    ngx_http_handler_pt             *h;
    ngx_http_core_main_conf_t       *cmcf;
    ngx_http_latchkey_loc_conf_t   **llcf;
    ngx_http_latchkey_main_conf_t   *lmcf;

    lmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_latchkey_module);
    llcf = lmcf->locations.elts;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        if (ngx_http_latchkey_counters_location(cf, llcf[i]) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    if (ngx_http_latchkey_counters_zone(cf, lmcf) != NGX_OK
        || ngx_http_latchkey_rate_init(cf) != NGX_OK)
    {
        return NGX_ERROR;
    }

    cmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_PREACCESS_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_latchkey_visit_handler;

    h = ngx_array_push(&cmcf->phases[NGX_HTTP_LOG_PHASE].handlers);
    if (h == NULL) {
        return NGX_ERROR;
    }

    *h = ngx_http_latchkey_log_handler;

    return NGX_OK;
}


/*
 * The zone of the last configuration is used again as long as there is room in
 * it: old workers then count in the same slots until they are gone.  Otherwise
 * it must have another size, or nginx would take the old one nevertheless;
 * `noreuse` is not for this, as nginx frees such a zone when the next
 * configuration comes, whether that uses it or not.
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
            && ngx_http_latchkey_fits(counters, counters->old))
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
    ngx_http_latchkey_place_t      *place, **sorted;
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
    sorted = ngx_palloc(cf->temp_pool, (lmcf->counted + 1)
                                       * sizeof(ngx_http_latchkey_place_t *));

    if (counters->places == NULL || counters->slots == NULL
        || sorted == NULL)
    {
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
        sorted[i - 1] = place;
        counters->names_size += place->server.len + place->location.len;
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

    /* room for as many again, before another zone is needed */

    counters->size = ngx_max(2 * counters->n, NGX_HTTP_LATCHKEY_SLOTS_MIN);
    counters->names_size = ngx_max(2 * counters->names_size,
                                   NGX_HTTP_LATCHKEY_NAMES_MIN);

    return counters;
}


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
ngx_http_latchkey_fits(ngx_http_latchkey_counters_t *counters,
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

    /* the slab allocator has a description of each page, and some of its own */

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


/* showing */

ngx_int_t
ngx_http_latchkey_counters_handler(ngx_http_request_t *r)
{
    ngx_str_t                       format, allow;
    ngx_uint_t                      metrics, failed;
    struct lk_buf                   text;
    struct lk_problem               problem;
    ngx_http_latchkey_main_conf_t  *lmcf;

    if (!(r->method & (NGX_HTTP_GET|NGX_HTTP_HEAD))) {
        ngx_str_set(&allow, "GET, HEAD");

        if (ngx_http_latchkey_add_header(r, "Allow", &allow) == NULL) {
            return NGX_HTTP_INTERNAL_SERVER_ERROR;
        }

        return NGX_HTTP_NOT_ALLOWED;
    }

    if (ngx_http_arg(r, (u_char *) "format", 6, &format) != NGX_OK) {
        ngx_str_set(&format, "json");
    }

    metrics = format.len == 10
              && ngx_strncmp(format.data, "prometheus", 10) == 0;

    if (!metrics
        && (format.len != 4 || ngx_strncmp(format.data, "json", 4) != 0))
    {
        ngx_memzero(&problem, sizeof(struct lk_problem));
        problem.kind = LK_PROBLEM_QUERY_INVALID;
        problem.detail = LK_SLICE("The format is json or prometheus.");

        return ngx_http_latchkey_send_problem(r, &problem, 0);
    }

    lmcf = ngx_http_get_module_main_conf(r, ngx_http_latchkey_module);

    ngx_memzero(&text, sizeof(struct lk_buf));

    failed = metrics ? ngx_http_latchkey_write_metrics(&text, lmcf)
                     : ngx_http_latchkey_write_json(&text, lmcf);

    if (failed) {
        latchkey_buf_free(&text);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send_text(r, metrics
                               ? "text/plain; version=0.0.4; charset=utf-8"
                               : "application/json", &text);
}


ngx_int_t
ngx_http_latchkey_send_text(ngx_http_request_t *r, const char *content_type,
    struct lk_buf *text)
{
    ngx_buf_t    *b;
    ngx_str_t     value;
    ngx_chain_t  *out;

    out = ngx_alloc_chain_link(r->pool);
    b = ngx_create_temp_buf(r->pool, text->len + 1);

    if (b == NULL || out == NULL) {
        latchkey_buf_free(text);
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    b->last = ngx_cpymem(b->last, text->data, text->len);
    b->last_buf = (r == r->main) ? 1 : 0;
    b->last_in_chain = 1;

    latchkey_buf_free(text);

    out->buf = b;
    out->next = NULL;

    r->headers_out.status = NGX_HTTP_OK;
    r->headers_out.content_length_n = b->last - b->pos;
    r->headers_out.content_type.data = (u_char *) content_type;
    r->headers_out.content_type.len = ngx_strlen(content_type);
    r->headers_out.content_type_len = r->headers_out.content_type.len;
    r->headers_out.content_type_lowcase = NULL;

    ngx_str_set(&value, "no-store");

    if (ngx_http_latchkey_add_header(r, "Cache-Control", &value) == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_latchkey_send(r, out);
}


/* the functions that write return 0, or 1: out of memory */

static ngx_uint_t
ngx_http_latchkey_write_json(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    ngx_uint_t                      i, n, failed;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_loc_conf_t  **llcf;
    ngx_http_latchkey_counters_t   *counters;

    counters = lmcf->zone->data;
    llcf = lmcf->locations.elts;
    n = 0;

    failed = latchkey_buf_add_text(text, "{\"locations\":[") != LK_OK;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (clcf->noname) {
            continue;
        }

        failed |= latchkey_buf_add_text(text, n++ ? ",\n" : "\n") != LK_OK;
        failed |= ngx_http_latchkey_json_location(text, llcf[i],
                                      &counters->places[llcf[i]->counter],
                                      counters->slots[llcf[i]->counter]);
    }

    failed |= latchkey_buf_add_text(text, "\n]}\n") != LK_OK;

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_json_location(struct lk_buf *text,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_http_latchkey_place_t *place,
    ngx_http_latchkey_slot_t *slot)
{
    ngx_uint_t     i, failed;
    struct lk_buf  name;

    ngx_memzero(&name, sizeof(struct lk_buf));

    failed = ngx_http_latchkey_add_location_name(&name, place);

    failed |= latchkey_buf_add_text(text, "{\"server\":") != LK_OK;
    failed |= latchkey_json_quote(ngx_http_latchkey_slice(&place->server),
                                  text)
              != LK_OK;
    failed |= latchkey_buf_add_text(text, ",\"location\":") != LK_OK;
    failed |= latchkey_json_quote(latchkey_buf_slice(&name), text) != LK_OK;
    failed |= latchkey_buf_printf(text, ",\"mode\":\"%s\"",
                          (char *) ngx_http_latchkey_modes[llcf->mode].data)
              != LK_OK;

    for (i = 0; i < NGX_HTTP_LATCHKEY_COVER_LAST; i++) {
        failed |= latchkey_buf_printf(text, ",\"%s\":%lu",
                             (char *) ngx_http_latchkey_covers[i].data,
                             (unsigned long) slot->covers[i])
                  != LK_OK;
    }

    failed |= ngx_http_latchkey_json_counts(text, "verdicts",
                                            ngx_http_latchkey_said,
                                            slot->verdicts,
                                            NGX_HTTP_LATCHKEY_SAID_LAST);
    failed |= ngx_http_latchkey_json_counts(text, "outcomes",
                                            ngx_http_latchkey_did,
                                            slot->outcomes,
                                            NGX_HTTP_LATCHKEY_DID_LAST);
    failed |= latchkey_buf_add_text(text, "}") != LK_OK;

    latchkey_buf_free(&name);

    return failed;
}


/* without the first, which stands for nothing */

static ngx_uint_t
ngx_http_latchkey_json_counts(struct lk_buf *text, const char *name,
    ngx_str_t *words, ngx_atomic_t *counts, ngx_uint_t n)
{
    ngx_uint_t  i, failed;

    failed = latchkey_buf_printf(text, ",\"%s\":{", name) != LK_OK;

    for (i = 1; i < n; i++) {
        failed |= latchkey_buf_printf(text, "%s\"%s\":%lu", i > 1 ? "," : "",
                                      (char *) words[i].data,
                                      (unsigned long) counts[i])
                  != LK_OK;
    }

    failed |= latchkey_buf_add_text(text, "}") != LK_OK;

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_add_location_name(struct lk_buf *text,
    ngx_http_latchkey_place_t *place)
{
    ngx_uint_t  failed;

    failed = latchkey_buf_add_slice(text,
                                    ngx_http_latchkey_slice(&place->location))
             != LK_OK;

    if (place->copy) {
        failed |= latchkey_buf_printf(text, " #%lu",
                                      (unsigned long) place->copy + 1)
                  != LK_OK;
    }

    return failed;
}


/* all samples of a metric stand together: first the covers, then the others */

static ngx_uint_t
ngx_http_latchkey_write_metrics(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf)
{
    ngx_uint_t  i, failed;

    failed = 0;

    for (i = 0; i < NGX_HTTP_LATCHKEY_COVER_LAST; i++) {
        failed |= latchkey_buf_printf(text,
                              "# HELP latchkey_gateway_%s_total %s\n"
                              "# TYPE latchkey_gateway_%s_total counter\n",
                              (char *) ngx_http_latchkey_covers[i].data,
                              ngx_http_latchkey_covers_help[i],
                              (char *) ngx_http_latchkey_covers[i].data)
                  != LK_OK;
        failed |= ngx_http_latchkey_write_metric(text, lmcf, i);
    }

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_requests_total Requests by what was "
                  "decided.\n"
                  "# TYPE latchkey_gateway_requests_total counter\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i++);

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_outcomes_total Requests by what "
                  "became of their answers.\n"
                  "# TYPE latchkey_gateway_outcomes_total counter\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i++);

    failed |= latchkey_buf_add_text(text,
                  "# HELP latchkey_gateway_location_info Locations and how "
                  "they are guarded.\n"
                  "# TYPE latchkey_gateway_location_info gauge\n")
              != LK_OK;
    failed |= ngx_http_latchkey_write_metric(text, lmcf, i);

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_write_metric(struct lk_buf *text,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_uint_t metric)
{
    u_char                          name[64];
    ngx_uint_t                      i, k, failed;
    ngx_http_core_loc_conf_t       *clcf;
    ngx_http_latchkey_slot_t       *slot;
    ngx_http_latchkey_place_t      *place;
    ngx_http_latchkey_loc_conf_t  **llcf;
    ngx_http_latchkey_counters_t   *counters;

    counters = lmcf->zone->data;
    llcf = lmcf->locations.elts;
    failed = 0;

    for (i = 0; i < lmcf->locations.nelts; i++) {
        clcf = llcf[i]->loc_conf[ngx_http_core_module.ctx_index];

        if (clcf->noname) {
            continue;
        }

        place = &counters->places[llcf[i]->counter];
        slot = counters->slots[llcf[i]->counter];

        switch (metric) {

        case NGX_HTTP_LATCHKEY_COVER_LAST:
            for (k = 1; k < NGX_HTTP_LATCHKEY_SAID_LAST; k++) {

                if (llcf[i]->mode == NGX_HTTP_LATCHKEY_OFF
                    && slot->verdicts[k] == 0)
                {
                    continue;
                }

                failed |= ngx_http_latchkey_add_sample(text, "requests_total",
                                          place, "verdict",
                                          &ngx_http_latchkey_said[k],
                                          slot->verdicts[k]);
            }

            break;

        case NGX_HTTP_LATCHKEY_COVER_LAST + 1:
            for (k = 1; k < NGX_HTTP_LATCHKEY_DID_LAST; k++) {

                if (llcf[i]->mode == NGX_HTTP_LATCHKEY_OFF
                    && slot->outcomes[k] == 0)
                {
                    continue;
                }

                failed |= ngx_http_latchkey_add_sample(text, "outcomes_total",
                                          place, "outcome",
                                          &ngx_http_latchkey_did[k],
                                          slot->outcomes[k]);
            }

            break;

        case NGX_HTTP_LATCHKEY_COVER_LAST + 2:
            failed |= ngx_http_latchkey_add_sample(text, "location_info",
                                 place, "mode",
                                 &ngx_http_latchkey_modes[llcf[i]->mode], 1);
            break;

        default:
            *ngx_snprintf(name, sizeof(name) - 1, "%V_total",
                          &ngx_http_latchkey_covers[metric]) = '\0';

            failed |= ngx_http_latchkey_add_sample(text, (char *) name, place,
                                                   NULL, NULL,
                                                   slot->covers[metric]);
        }
    }

    return failed;
}


static ngx_uint_t
ngx_http_latchkey_add_sample(struct lk_buf *text, const char *name,
    ngx_http_latchkey_place_t *place, const char *label, ngx_str_t *word,
    ngx_atomic_uint_t value)
{
    ngx_str_t      location;
    ngx_uint_t     failed;
    struct lk_buf  buf;

    ngx_memzero(&buf, sizeof(struct lk_buf));

    failed = ngx_http_latchkey_add_location_name(&buf, place);

    location.data = (u_char *) buf.data;
    location.len = buf.len;

    failed |= latchkey_buf_printf(text, "latchkey_gateway_%s{server=", name)
              != LK_OK;
    failed |= ngx_http_latchkey_add_label(text, &place->server);
    failed |= latchkey_buf_add_text(text, ",location=") != LK_OK;
    failed |= ngx_http_latchkey_add_label(text, &location);

    if (label) {
        failed |= latchkey_buf_printf(text, ",%s=", label) != LK_OK;
        failed |= ngx_http_latchkey_add_label(text, word);
    }

    failed |= latchkey_buf_printf(text, "} %lu\n", (unsigned long) value)
              != LK_OK;

    latchkey_buf_free(&buf);

    return failed;
}


/*
 * As a JSON string, but that only these three escapes are known here: what
 * else JSON escapes are control characters, and they are left out.
 */

static ngx_uint_t
ngx_http_latchkey_add_label(struct lk_buf *text, ngx_str_t *value)
{
    size_t         i, len;
    ngx_uint_t     failed;
    struct lk_buf  json;

    ngx_memzero(&json, sizeof(struct lk_buf));

    failed = latchkey_json_quote(ngx_http_latchkey_slice(value), &json)
             != LK_OK;

    for (i = 0; i < json.len; i += len) {

        if (json.data[i] != '\\') {
            len = 1;
            failed |= latchkey_buf_add(text, json.data + i, 1) != LK_OK;
            continue;
        }

        len = json.data[i + 1] == 'u' ? 6 : 2;

        if (ngx_strchr("\\\"n", json.data[i + 1])) {
            failed |= latchkey_buf_add(text, json.data + i, 2) != LK_OK;
        }
    }

    latchkey_buf_free(&json);

    return failed;
}
