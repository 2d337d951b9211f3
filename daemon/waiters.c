/*
 * waiters.c - a hash table by operation and a heap by deadline, intrusive.
 *
 * A waiter is in both or in neither, as `waiting` says. Always
 * heap[waiter->heap_at] == waiter, and no child has an earlier deadline than
 * its parent. The table serves "this operation has settled", the heap serves
 * "time is up"; each finds the waiter's place in the other without a search.
 */
#include "daemon/waiters.h"

#include <stdlib.h>
#include <string.h>

enum { FEWEST_BUCKETS = 64 };

void lk_waiters_init(struct lk_waiters *waiters)
{
    *waiters = (struct lk_waiters){0};
}

/* The waiters belong to their owners and stay; only the tables are freed. */
void lk_waiters_free(struct lk_waiters *waiters)
{
    for (size_t i = 0; i < waiters->count; i++) {
        waiters->heap[i]->waiting = false;
    }
    free(waiters->buckets);
    free(waiters->heap);
    *waiters = (struct lk_waiters){0};
}

static struct lk_waiter **bucket_of(const struct lk_waiters *waiters,
                                    struct lk_hash128 hash)
{
    return &waiters->buckets[hash.lo & (waiters->bucket_count - 1)];
}

/* ---- The table: each bucket is a list, the newest waiter first. ---------- */

static void link_waiter(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    struct lk_waiter **bucket = bucket_of(waiters, waiter->hash);

    waiter->prev = NULL;
    waiter->next = *bucket;
    if (*bucket) {
        (*bucket)->prev = waiter;
    }
    *bucket = waiter;
}

static void unlink_waiter(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    if (waiter->prev) {
        waiter->prev->next = waiter->next;
    } else {
        *bucket_of(waiters, waiter->hash) = waiter->next;
    }
    if (waiter->next) {
        waiter->next->prev = waiter->prev;
    }
}

static struct lk_waiter *last_of(struct lk_waiter *waiter)
{
    while (waiter && waiter->next) {
        waiter = waiter->next;
    }
    return waiter;
}

/* LK_NOMEM only if there is no table at all yet. */
static enum lk_status grow_table(struct lk_waiters *waiters)
{
    size_t old_count = waiters->bucket_count;
    size_t count = old_count ? old_count * 2 : FEWEST_BUCKETS;
    struct lk_waiter **old = waiters->buckets;
    struct lk_waiter **buckets = calloc(count, sizeof(struct lk_waiter *));

    if (!buckets) {
        return old ? LK_OK : LK_NOMEM; /* a full table is slow, not wrong */
    }
    waiters->buckets = buckets;
    waiters->bucket_count = count;
    for (size_t i = 0; i < old_count; i++) {
        /* From the oldest on, so that each new bucket has the newest first. */
        struct lk_waiter *waiter = last_of(old[i]);
        while (waiter) {
            struct lk_waiter *newer = waiter->prev;
            link_waiter(waiters, waiter);
            waiter = newer;
        }
    }
    free(old);
    return LK_OK;
}

/* ---- The heap: the earliest deadline on top. ----------------------------- */

/* The only place that writes a slot, so that heap_at always follows. */
static void heap_put(struct lk_waiters *waiters, size_t at,
                     struct lk_waiter *waiter)
{
    waiters->heap[at] = waiter;
    waiter->heap_at = at;
}

static void sift_up(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    size_t at = waiter->heap_at;

    while (at > 0) {
        struct lk_waiter *parent = waiters->heap[(at - 1) / 2];
        if (parent->deadline_ms <= waiter->deadline_ms) {
            break;
        }
        heap_put(waiters, at, parent);
        at = (at - 1) / 2;
    }
    heap_put(waiters, at, waiter);
}

static void sift_down(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    size_t at = waiter->heap_at;

    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= waiters->count) {
            break;
        }
        if (child + 1 < waiters->count &&
            waiters->heap[child + 1]->deadline_ms <
                waiters->heap[child]->deadline_ms) {
            child++;
        }
        if (waiter->deadline_ms <= waiters->heap[child]->deadline_ms) {
            break;
        }
        heap_put(waiters, at, waiters->heap[child]);
        at = child;
    }
    heap_put(waiters, at, waiter);
}

/* The last waiter takes the free slot, and may belong above or below it: only
 * one of the two sifts moves it. */
static void heap_remove(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    struct lk_waiter *last = waiters->heap[--waiters->count];

    if (last == waiter) {
        return;
    }
    heap_put(waiters, waiter->heap_at, last);
    sift_up(waiters, last);
    sift_down(waiters, last);
}

static enum lk_status grow_heap(struct lk_waiters *waiters)
{
    size_t cap = waiters->heap_cap ? waiters->heap_cap * 2 : FEWEST_BUCKETS;
    struct lk_waiter **heap =
        realloc(waiters->heap, cap * sizeof(struct lk_waiter *));

    if (!heap) {
        return LK_NOMEM;
    }
    waiters->heap = heap;
    waiters->heap_cap = cap;
    return LK_OK;
}

/* ---- Both together ------------------------------------------------------- */

/* Grows both before it changes either: a failure leaves everything as it
 * was. */
enum lk_status lk_waiters_add(struct lk_waiters *waiters,
                              struct lk_waiter *waiter, struct lk_hash128 hash,
                              uint64_t deadline_ms)
{
    enum lk_status status = LK_OK;

    if (waiters->count == waiters->heap_cap) {
        status = grow_heap(waiters);
    }
    if (!status && waiters->count >= waiters->bucket_count) {
        status = grow_table(waiters);
    }
    if (status) {
        return status;
    }
    waiter->hash = hash;
    waiter->deadline_ms = deadline_ms;
    waiter->waiting = true;
    link_waiter(waiters, waiter);
    waiter->heap_at = waiters->count++;
    sift_up(waiters, waiter);
    return LK_OK;
}

void lk_waiters_remove(struct lk_waiters *waiters, struct lk_waiter *waiter)
{
    if (!waiter->waiting) {
        return;
    }
    unlink_waiter(waiters, waiter);
    heap_remove(waiters, waiter);
    waiter->waiting = false;
    waiter->next = waiter->prev = NULL;
}

/* The newest comes first, so pushing each to the front turns it round.
 * `hash` NULL: any. */
static struct lk_waiter *take_from(struct lk_waiters *waiters,
                                   struct lk_waiter *waiter,
                                   const struct lk_hash128 *hash,
                                   struct lk_waiter *taken)
{
    while (waiter) {
        struct lk_waiter *next = waiter->next;
        if (!hash || lk_hash128_equal(waiter->hash, *hash)) {
            lk_waiters_remove(waiters, waiter);
            waiter->next = taken;
            taken = waiter;
        }
        waiter = next;
    }
    return taken;
}

struct lk_waiter *lk_waiters_take(struct lk_waiters *waiters,
                                  struct lk_hash128 hash)
{
    if (waiters->count == 0) {
        return NULL;
    }
    return take_from(waiters, *bucket_of(waiters, hash), &hash, NULL);
}

struct lk_waiter *lk_waiters_take_all(struct lk_waiters *waiters)
{
    struct lk_waiter *taken = NULL;

    for (size_t i = 0; i < waiters->bucket_count; i++) {
        taken = take_from(waiters, waiters->buckets[i], NULL, taken);
    }
    return taken;
}

struct lk_waiter *lk_waiters_expire(struct lk_waiters *waiters, uint64_t now_ms)
{
    if (lk_waiters_next(waiters) > now_ms || waiters->count == 0) {
        return NULL;
    }
    struct lk_waiter *waiter = waiters->heap[0];
    lk_waiters_remove(waiters, waiter);
    return waiter;
}

uint64_t lk_waiters_next(const struct lk_waiters *waiters)
{
    return waiters->count ? waiters->heap[0]->deadline_ms : UINT64_MAX;
}
