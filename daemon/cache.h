/* cache.h - responses of finished operations in memory, by name and token. */
#ifndef LK_CACHE_H
#define LK_CACHE_H

#include "store/store.h"

struct lk_cache_entry;

/*
 * Bounded in bytes; what was not used for the longest time goes first. Only
 * responses of *completed* operations may be put in: those never change under
 * their token, so nothing in here is ever out of date. For one thread.
 */
struct lk_cache {
    struct lk_cache_entry **buckets;
    size_t bucket_count; /* a power of two */
    struct lk_cache_entry *newest;
    struct lk_cache_entry *oldest;
    size_t count;
    size_t bytes;
    size_t max_bytes; /* 0: keeps nothing */
    uint64_t hits;
    uint64_t misses;
};

void lk_cache_init(struct lk_cache *cache, size_t max_bytes);
void lk_cache_free(struct lk_cache *cache);
/* A smaller bound drops what is over it at once. */
void lk_cache_set_max(struct lk_cache *cache, size_t max_bytes);

/* Forgets everything. */
void lk_cache_clear(struct lk_cache *cache);

/* A reference for the caller, or NULL. Counts as a use. `name`: the hash of
 * the operation, so that a store which lost its count of tokens cannot make
 * one operation's response another's. */
struct lk_stored *lk_cache_get(struct lk_cache *cache, struct lk_hash128 name,
                               uint64_t token);
/* Takes a reference of its own. Without memory, or if `stored` alone is more
 * than an eighth of the bound, it is not put in; the caller need not know. */
void lk_cache_put(struct lk_cache *cache, struct lk_hash128 name,
                  struct lk_stored *stored);
void lk_cache_remove(struct lk_cache *cache, uint64_t token);

#endif
