/* waiters.h - who waits for which operation to settle, and until when. */
#ifndef LK_WAITERS_H
#define LK_WAITERS_H

#include "latchkey.h"
#include "lib/siphash.h"

/*
 * A member of whatever waits; its owner keeps it in place until it has been
 * removed, taken or expired. Start it as {0}.
 */
struct lk_waiter {
    struct lk_hash128 hash;
    uint64_t deadline_ms; /* on the monotonic clock */
    struct lk_waiter *next;
    struct lk_waiter *prev;
    size_t heap_at;
    bool waiting;
};

/* A hash table by operation and a heap by deadline. For one thread. */
struct lk_waiters {
    struct lk_waiter **buckets;
    size_t bucket_count; /* a power of two */
    struct lk_waiter **heap;
    size_t heap_cap;
    size_t count;
};

void lk_waiters_init(struct lk_waiters *waiters);
void lk_waiters_free(struct lk_waiters *waiters); /* forgets all waiters */

/* LK_NOMEM: it does not wait. */
LK_MUST_CHECK enum lk_status lk_waiters_add(struct lk_waiters *waiters,
                                            struct lk_waiter *waiter,
                                            struct lk_hash128 hash,
                                            uint64_t deadline_ms);
/* Nothing happens if it does not wait. */
void lk_waiters_remove(struct lk_waiters *waiters, struct lk_waiter *waiter);

/*
 * All that wait for one operation, the longest waiting first, linked by
 * `next`. They no longer wait; read `next` before one of them is added again.
 */
struct lk_waiter *lk_waiters_take(struct lk_waiters *waiters,
                                  struct lk_hash128 hash);

/* The same, all that wait for anything. */
struct lk_waiter *lk_waiters_take_all(struct lk_waiters *waiters);

/* One whose deadline is `now_ms` or earlier, no longer waiting; or NULL. */
struct lk_waiter *lk_waiters_expire(struct lk_waiters *waiters,
                                    uint64_t now_ms);

/* The earliest deadline; UINT64_MAX if none waits. */
uint64_t lk_waiters_next(const struct lk_waiters *waiters);

#endif
