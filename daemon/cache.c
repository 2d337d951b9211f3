/*
 * cache.c - a hash table of stored responses with a list in order of use.
 *
 * Loop thread. The key is the token: a response never changes under its token,
 * so an entry is never wrong, only unused. Each entry holds one reference to
 * its response; cache->bytes is the sum of all `cost`, and at most max_bytes
 * after every call. Without memory the cache does less, and no call fails.
 */
#include "daemon/cache.h"

#include <stdlib.h>

/* A response may take at most 1/LARGEST_SHARE of the cache: one that is larger
 * would displace too many others. */
enum { FEWEST_BUCKETS = 256, LARGEST_SHARE = 8 };

struct lk_cache_entry {
    struct lk_hash128 name;
    struct lk_cache_entry *chain;
    struct lk_cache_entry *newer;
    struct lk_cache_entry *older;
    struct lk_stored *stored;
    size_t cost;
};

void lk_cache_init(struct lk_cache *cache, size_t max_bytes)
{
    *cache = (struct lk_cache){.max_bytes = max_bytes};
}

/* Tokens are handed out in order: a multiplication spreads them well. */
static size_t slot_of(uint64_t token, size_t bucket_count)
{
    return (size_t)((token * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (bucket_count - 1);
}

/* The pointer to the entry of a token, or to the end of its chain. There must
 * be a table. */
static struct lk_cache_entry **find_entry(struct lk_cache *cache,
                                          uint64_t token)
{
    struct lk_cache_entry **at =
        &cache->buckets[slot_of(token, cache->bucket_count)];

    while (*at && (*at)->stored->token != token) {
        at = &(*at)->chain;
    }
    return at;
}

static void unlink_use(struct lk_cache *cache, struct lk_cache_entry *entry)
{
    *(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
    *(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void link_newest(struct lk_cache *cache, struct lk_cache_entry *entry)
{
    entry->newer = NULL;
    entry->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
    cache->newest = entry;
}

/* Removes an entry and its reference. `at` may point to NULL. */
static void drop_at(struct lk_cache *cache, struct lk_cache_entry **at)
{
    struct lk_cache_entry *entry = *at;

    if (!entry) {
        return;
    }
    *at = entry->chain;
    unlink_use(cache, entry);
    cache->bytes -= entry->cost;
    cache->count--;
    lk_stored_unref(entry->stored);
    free(entry);
}

/* Drops what was not used for longest until the rest fits. */
void lk_cache_set_max(struct lk_cache *cache, size_t max_bytes)
{
    cache->max_bytes = max_bytes;
    while (cache->bytes > max_bytes) {
        drop_at(cache, find_entry(cache, cache->oldest->stored->token));
    }
}

void lk_cache_clear(struct lk_cache *cache)
{
    size_t max_bytes = cache->max_bytes;

    lk_cache_set_max(cache, 0);
    cache->max_bytes = max_bytes;
}

void lk_cache_free(struct lk_cache *cache)
{
    lk_cache_clear(cache);
    free(cache->buckets);
    *cache = (struct lk_cache){0};
}

/* The caller gets a reference of its own, or NULL. The name has to match
 * too. */
struct lk_stored *lk_cache_get(struct lk_cache *cache, struct lk_hash128 name,
                               uint64_t token)
{
    struct lk_cache_entry *entry =
        cache->count ? *find_entry(cache, token) : NULL;

    if (!entry || !lk_hash128_equal(entry->name, name)) {
        cache->misses++;
        return NULL;
    }
    cache->hits++;
    if (cache->newest != entry) {
        unlink_use(cache, entry);
        link_newest(cache, entry);
    }
    return lk_stored_ref(entry->stored);
}

/* False: there is no table at all. Without memory for a larger one the old one
 * stays, with longer chains. */
static bool grow_table(struct lk_cache *cache)
{
    size_t old_count = cache->bucket_count;
    size_t count = old_count ? old_count * 2 : FEWEST_BUCKETS;
    struct lk_cache_entry **buckets =
        calloc(count, sizeof(struct lk_cache_entry *));

    if (!buckets) {
        return old_count > 0;
    }
    for (struct lk_cache_entry *entry = cache->newest; entry;
         entry = entry->older) {
        struct lk_cache_entry **head =
            &buckets[slot_of(entry->stored->token, count)];
        entry->chain = *head;
        *head = entry;
    }
    free(cache->buckets);
    cache->buckets = buckets;
    cache->bucket_count = count;
    return true;
}

/* Takes a reference of its own. An entry of the same token is replaced. */
void lk_cache_put(struct lk_cache *cache, struct lk_hash128 name,
                  struct lk_stored *stored)
{
    size_t cost = stored->size + sizeof(struct lk_cache_entry);

    if (cost > cache->max_bytes / LARGEST_SHARE) {
        return;
    }
    if (cache->count >= cache->bucket_count && !grow_table(cache)) {
        return;
    }
    lk_cache_remove(cache, stored->token);
    struct lk_cache_entry *entry = malloc(sizeof(*entry));
    if (!entry) {
        return;
    }
    struct lk_cache_entry **head =
        &cache->buckets[slot_of(stored->token, cache->bucket_count)];
    *entry = (struct lk_cache_entry){.chain = *head,
                                     .name = name,
                                     .stored = lk_stored_ref(stored),
                                     .cost = cost};
    *head = entry;
    link_newest(cache, entry);
    cache->count++;
    cache->bytes += cost;
    lk_cache_set_max(cache, cache->max_bytes);
}

void lk_cache_remove(struct lk_cache *cache, uint64_t token)
{
    if (cache->count) {
        struct lk_cache_entry **at = find_entry(cache, token);
        if (*at) {
            drop_at(cache, at);
        }
    }
}
