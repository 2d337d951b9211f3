/*
 * index.h - every live operation of the embedded store, in memory.
 *
 * The index holds only what is durable: a batch works on copies (the overlay)
 * and merges them after its commit. An operation costs 56 bytes and about 7 for
 * the table that finds it; the rest of it is in its row.
 *
 * Names are compared by a 128-bit keyed hash, fingerprints by a 64-bit one: no
 * one without the store's secret can construct a collision, and by chance none
 * is to be expected in the life of a store. Owners are compared by a few bits,
 * which can only prove "another one"; "the same" is confirmed from the row.
 */
#ifndef LK_INDEX_H
#define LK_INDEX_H

#include "lib/machine.h"
#include "lib/siphash.h"

#define LK_ENTRY_NONE UINT32_MAX
/* Links at or above this name a slot of the wheel, not an entry. */
#define LK_ENTRY_MAX (UINT32_C(1) << 31)

struct lk_entry {
    struct lk_hash128 hash;
    uint64_t token : 48;
    uint64_t attempt : 16; /* stops at its maximum */
    uint64_t number : 48;
    uint64_t state : 3;
    uint64_t omitted : 1;
    uint64_t evicted : 1;
    uint64_t keeps : 1; /* KEEP asked for a TTL; the row has it */
    uint64_t owner : 8;
    uint64_t jobs : 1;   /* has an unfinished job: neither expires nor goes */
    uint64_t queued : 1; /* its request is one: the courier runs it */
    /* in progress: end of the lock; completed, released: end of the TTL;
     * uncertain, accepted: since when. Milliseconds. */
    uint64_t deadline : 48;
    uint64_t ttl : 16; /* lk_ttl_pack */
    uint64_t fingerprint;
    uint32_t next; /* in its list of the wheel, or in the free list */
    uint32_t prev;
};

_Static_assert(sizeof(struct lk_entry) == 56,
               "the memory budget of an operation");

/* Five levels of 64 slots of 64 ms: up to two years; later ones come round
 * again. */
enum { LK_WHEEL_LEVELS = 5, LK_WHEEL_SLOTS = 64, LK_WHEEL_TICK_MS = 64 };

struct lk_shard;
struct lk_doubt;

struct lk_index {
    struct lk_shard *shards;
    struct lk_entry **chunks;
    uint32_t chunk_count;
    uint32_t chunk_cap;
    uint32_t used; /* entries ever taken from the chunks */
    uint32_t free; /* head of the free list */
    uint64_t count;
    uint64_t by_state[6];
    uint64_t bytes; /* all memory of the index */
    uint32_t wheel[LK_WHEEL_LEVELS * LK_WHEEL_SLOTS];
    uint64_t tick;           /* the wheel has turned so far */
    struct lk_doubt *doubts; /* a heap of the doubts */
    size_t doubt_count;
    size_t doubt_cap;
};

/* `now_ms` is where the wheel starts. */
LK_MUST_CHECK enum lk_status lk_index_init(struct lk_index *index,
                                           uint64_t now_ms);
void lk_index_free(struct lk_index *index);

/* NULL if there is none. Valid until the next change of the index. */
struct lk_entry *lk_index_find(const struct lk_index *index,
                               struct lk_hash128 hash);
struct lk_entry *lk_index_at(const struct lk_index *index, uint32_t ref);
/* Lets the memory that a find or put will need arrive early. */
void lk_index_prefetch(const struct lk_index *index, struct lk_hash128 hash);

/*
 * Adds the entry or replaces the one with the same hash; its links stay, and it
 * is filed in the wheel by its deadline. LK_NOMEM: nothing has changed.
 */
LK_MUST_CHECK enum lk_status lk_index_put(struct lk_index *index,
                                          const struct lk_entry *entry);
void lk_index_remove(struct lk_index *index, struct lk_hash128 hash);
/* Makes room for these entries, of different hashes: putting them in, and
 * removing those that are absent, then needs no memory. */
LK_MUST_CHECK enum lk_status lk_index_reserve(struct lk_index *index,
                                              const struct lk_entry *entries,
                                              size_t count);

/*
 * The wheel: entries whose deadline has passed, at most `max` of them. They
 * stay filed, at the present tick, until they are put or removed. Looks at a
 * bounded number of entries; *more: it stopped early.
 */
size_t lk_wheel_due(struct lk_index *index, uint64_t now_ms,
                    struct lk_hash128 *hashes, size_t max, bool *more);
void lk_wheel_file(struct lk_index *index, uint32_t ref);
void lk_wheel_unfile(struct lk_index *index, uint32_t ref);

/*
 * Since when the oldest uncertain operation is so; 0: there is none.
 * lk_doubt_note gets every operation that becomes uncertain, before it is in
 * the index.
 */
uint64_t lk_index_oldest(struct lk_index *index);
LK_MUST_CHECK enum lk_status lk_doubt_note(struct lk_index *index,
                                           const struct lk_entry *entry);
LK_MUST_CHECK enum lk_status lk_doubt_reserve(struct lk_index *index,
                                              size_t count);

/*
 * A TTL in 16 bits: exact, or 0 for "look in the row". lk_ttl_pack_up rounds
 * up to the next one that fits.
 */
unsigned lk_ttl_pack(uint64_t ttl_ms);
unsigned lk_ttl_pack_up(uint64_t ttl_ms);
uint64_t lk_ttl_unpack(unsigned packed);

/* ---- the overlay: what one batch has decided and not yet made durable -- */

/*
 * The index shows only durable operations, to every thread. A batch reads
 * through its overlay, so that a later op of the batch sees the earlier ones;
 * the overlay is merged after the commit and dropped after a rollback.
 */
struct lk_overlay {
    struct lk_entry *entries; /* state ABSENT: to be removed */
    size_t count;
    size_t cap;
    uint64_t *slots; /* stamp << 32 | position */
    size_t slot_cap; /* a power of two, at least twice cap */
    uint32_t stamp;  /* a slot with another stamp is empty */
};

/* NULL if the operation is absent. Valid until the next put. */
const struct lk_entry *lk_overlay_find(const struct lk_overlay *overlay,
                                       const struct lk_index *index,
                                       struct lk_hash128 hash);
LK_MUST_CHECK enum lk_status lk_overlay_put(struct lk_overlay *overlay,
                                            const struct lk_entry *entry);
/*
 * Moves everything into the index, all or nothing: lk_index_reserve has made
 * room for it, so that nothing can fail once it is durable.
 */
void lk_overlay_merge(struct lk_overlay *overlay, struct lk_index *index);
void lk_overlay_drop(struct lk_overlay *overlay);
void lk_overlay_free(struct lk_overlay *overlay);

#endif
