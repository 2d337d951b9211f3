/*
 * response_cache.h - a cache of stored responses in Redis, beside a store that
 * decides.
 *
 * It only saves the store from reading bytes: the store has already decided
 * that the operation is completed, and under which token. What the cache holds
 * is bound to token, name, number and expiry by a MAC, so a cache that is
 * stale, mixed up or lying gives nothing; one that is down or slow gives
 * nothing either, and is left alone for a second.
 *
 * Every function may be called from any thread. Functions that ask let one
 * thread at a time use the connection, and none waits longer than a few
 * timeouts; functions that fill wait for nothing.
 */
#ifndef LK_RESPONSE_CACHE_H
#define LK_RESPONSE_CACHE_H

#include "store/store.h"

struct lk_response_cache;

struct lk_response_cache_config {
    const char *url;       /* redis: or redis-sentinel: */
    const char *prefix;    /* of the keys, without the braces */
    uint64_t timeout_ms;   /* for one question */
    const uint8_t *secret; /* 16 bytes, the deciding store's */
    void (*log)(void *context, int level, const char *line);
    void *log_context;
};

struct lk_response_cache_stats {
    uint64_t hits;
    uint64_t misses;
    uint64_t refused; /* what did not fit its MAC */
    uint64_t failed;  /* questions without a reply in time */
    bool available;
};

/* LK_INVALID: the URL; `error` gets a sentence. A cache that is down is no
 * reason not to open it. */
LK_MUST_CHECK enum lk_status lk_response_cache_open(
    const struct lk_response_cache_config *config,
    struct lk_response_cache **cache, struct lk_buf *error);
void lk_response_cache_close(
    struct lk_response_cache *cache); /* NULL is fine */

/*
 * The response of a claim whose outcome says REPLAY or OMITTED: a reference
 * that is the caller's, or NULL. The op has its name's hash, its fingerprint
 * and out.token. Ops without a fingerprint get NULL.
 */
struct lk_stored *lk_response_cache_get(struct lk_response_cache *cache,
                                        const struct lk_op *op);
/*
 * Fills the cache with what the store has read for such a claim, some time
 * later, or not at all. It takes a reference of its own.
 */
void lk_response_cache_put(struct lk_response_cache *cache,
                           const struct lk_op *op, struct lk_stored *stored,
                           uint64_t ttl_ms);
/*
 * The same with the response of a completion that got DONE: its commit is
 * known to have happened. What is cached under a token counts as soon as the
 * store names that token as completed, so what is not known must not come here.
 */
void lk_response_cache_completed(struct lk_response_cache *cache,
                                 const struct lk_op *op);
/*
 * Removes the responses of evicted operations, before the eviction is
 * acknowledged. LK_UNAVAILABLE: the cache does not reply. Even then no one gets
 * such a response: the store no longer names its token.
 */
LK_MUST_CHECK enum lk_status lk_response_cache_forget(
    struct lk_response_cache *cache, const uint64_t *tokens, size_t count);
/* Does not wait for those who use the connection. */
void lk_response_cache_stats(struct lk_response_cache *cache,
                             struct lk_response_cache_stats *stats);

#endif
