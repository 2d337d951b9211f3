
/*
 * How often a caller may ask: a bucket for each in each location, in shared
 * memory.
 */


#include "ngx_http_latchkey_module.h"

#include <openssl/hmac.h>
#include <openssl/rand.h>


#define NGX_HTTP_LATCHKEY_RATE_SETS  1024
#define NGX_HTTP_LATCHKEY_RATE_WAYS  4
#define NGX_HTTP_LATCHKEY_RATE_KEY   32


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


static ngx_int_t ngx_http_latchkey_init_rates(ngx_shm_zone_t *zone,
    void *data);
static uint64_t ngx_http_latchkey_rate_place(
    ngx_http_latchkey_loc_conf_t *llcf);
static ngx_http_latchkey_bucket_t *ngx_http_latchkey_find_bucket(
    ngx_http_latchkey_rates_t *rates, uint64_t hash);


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
    hash ^= ngx_http_latchkey_rate_place(llcf);

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


/* by names and rate, which a new configuration finds again */

static uint64_t
ngx_http_latchkey_rate_place(ngx_http_latchkey_loc_conf_t *llcf)
{
    uint64_t  place;

    place = ngx_murmur_hash2(llcf->server_name.data, llcf->server_name.len);
    place = place << 32 | ngx_murmur_hash2(llcf->location_name.data,
                                           llcf->location_name.len);

    return place ^ llcf->status_rate << 20 ^ llcf->status_burst;
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
