/* siphash.h - SipHash-2-4, the keyed hash behind every index and reference. */
#ifndef LK_SIPHASH_H
#define LK_SIPHASH_H

#include "latchkey.h"

enum { LK_SIPHASH_KEY = 16 };

struct lk_hash128 {
    uint64_t hi; /* bytes 8 to 15 of the published output */
    uint64_t lo; /* bytes 0 to 7 */
};

/* Input may come in slices of any length; no pointer to it remains. */
struct lk_siphash {
    uint64_t v0, v1, v2, v3;
    uint64_t tail; /* the low `total % 8` bytes are input not yet mixed in */
    uint64_t total;
};

static inline bool lk_hash128_equal(struct lk_hash128 a, struct lk_hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* Starts the variant with 128 bits of output. */
void lk_siphash_init(struct lk_siphash *hash,
                     const uint8_t key[LK_SIPHASH_KEY]);
void lk_siphash_update(struct lk_siphash *hash, const void *data, size_t len);
/* Ends the hash: the state may only be initialised again. */
struct lk_hash128 lk_siphash_final128(struct lk_siphash *hash);

/* The variant with 64 bits of output, in one go. */
uint64_t lk_siphash64(const uint8_t key[LK_SIPHASH_KEY], const void *data,
                      size_t len);

/*
 * The hash of an operation's name. Each part goes in behind its length, so
 * ("ab", "c") and ("a", "bc") differ.
 */
struct lk_hash128 lk_name_hash(const uint8_t key[LK_SIPHASH_KEY],
                               struct lk_name name);

#endif
