/*
 * siphash.c - SipHash-2-4 over slices, eight bytes at a time.
 *
 * The words of the input are little endian; two rounds follow each word, and
 * four make the result. An input that does not end at a word leaves 1 to 7
 * bytes in hash->tail, lowest byte first; hash->total % 8 is their number. The
 * result does not depend on how the input was cut into updates.
 */
#include "lib/siphash.h"

#include <endian.h>
#include <string.h>

static inline uint64_t load_word(const void *data)
{
    uint64_t word;

    memcpy(&word, data, sizeof(word));
    return le64toh(word);
}

/* At most seven bytes, the first one lowest. */
static inline uint64_t load_rest(const uint8_t *data, size_t len)
{
    uint64_t word = 0;

    for (size_t i = 0; i < len; i++) {
        word |= (uint64_t)data[i] << (8 * i);
    }
    return word;
}

static inline uint64_t rotate(uint64_t word, unsigned bits)
{
    return word << bits | word >> (64 - bits);
}

static inline void mix_rounds(struct lk_siphash *hash, int rounds)
{
    uint64_t v0 = hash->v0;
    uint64_t v1 = hash->v1;
    uint64_t v2 = hash->v2;
    uint64_t v3 = hash->v3;

    for (int i = 0; i < rounds; i++) {
        v0 += v1;
        v2 += v3;
        v1 = rotate(v1, 13) ^ v0;
        v3 = rotate(v3, 16) ^ v2;
        v0 = rotate(v0, 32);
        v2 += v1;
        v0 += v3;
        v1 = rotate(v1, 17) ^ v2;
        v3 = rotate(v3, 21) ^ v0;
        v2 = rotate(v2, 32);
    }
    hash->v0 = v0;
    hash->v1 = v1;
    hash->v2 = v2;
    hash->v3 = v3;
}

static inline void mix_word(struct lk_siphash *hash, uint64_t word)
{
    hash->v3 ^= word;
    mix_rounds(hash, 2);
    hash->v0 ^= word;
}

/* The constants of the algorithm: "somepseudorandomlygeneratedbytes". */
static inline void start(struct lk_siphash *hash,
                         const uint8_t key[LK_SIPHASH_KEY])
{
    uint64_t k0 = load_word(key);
    uint64_t k1 = load_word(key + 8);

    hash->v0 = k0 ^ UINT64_C(0x736f6d6570736575);
    hash->v1 = k1 ^ UINT64_C(0x646f72616e646f6d);
    hash->v2 = k0 ^ UINT64_C(0x6c7967656e657261);
    hash->v3 = k1 ^ UINT64_C(0x7465646279746573);
    hash->tail = 0;
    hash->total = 0;
}

/* Takes eight bytes while `held` bytes of an earlier word wait in the tail. */
static inline void take_word(struct lk_siphash *hash, uint64_t word,
                             unsigned held)
{
    if (held == 0) {
        mix_word(hash, word);
        return;
    }
    mix_word(hash, hash->tail | word << (8 * held));
    hash->tail = word >> (64 - 8 * held);
}

/*
 * Whole words first. The last 0 to 7 bytes join those that wait in the tail; if
 * that fills a word, the rest of them begins the next tail. With held + len >=
 * 8 and len < 8, held is at least 1, so the shift by 64 - 8 * held is valid.
 */
static inline void take_bytes(struct lk_siphash *hash, const uint8_t *data,
                              size_t len)
{
    unsigned held = hash->total % 8;

    hash->total += len;
    for (; len >= 8; data += 8, len -= 8) {
        take_word(hash, load_word(data), held);
    }
    uint64_t rest = load_rest(data, len);
    hash->tail |= rest << (8 * held);
    if (held + len >= 8) {
        mix_word(hash, hash->tail);
        hash->tail = rest >> (64 - 8 * held);
    }
}

/* The length in front of each part keeps names apart that differ only in where
 * one part ends and the next begins. */
static inline void take_part(struct lk_siphash *hash, struct lk_slice part)
{
    take_word(hash, part.len, hash->total % 8);
    hash->total += 8;
    take_bytes(hash, (const uint8_t *)part.data, part.len);
}

/* The last word: the tail, and the lowest byte of the length at the top. */
static inline void finish_input(struct lk_siphash *hash)
{
    mix_word(hash, hash->tail | hash->total << 56);
}

static inline uint64_t fold(const struct lk_siphash *hash)
{
    return hash->v0 ^ hash->v1 ^ hash->v2 ^ hash->v3;
}

/* The variant with 128 bits: other constants, and a second output. */
static inline struct lk_hash128 finish128(struct lk_siphash *hash)
{
    struct lk_hash128 result;

    finish_input(hash);
    hash->v2 ^= 0xee;
    mix_rounds(hash, 4);
    result.lo = fold(hash);
    hash->v1 ^= 0xdd;
    mix_rounds(hash, 4);
    result.hi = fold(hash);
    return result;
}

void lk_siphash_init(struct lk_siphash *hash, const uint8_t key[LK_SIPHASH_KEY])
{
    start(hash, key);
    hash->v1 ^= 0xee;
}

void lk_siphash_update(struct lk_siphash *hash, const void *data, size_t len)
{
    take_bytes(hash, data, len);
}

struct lk_hash128 lk_siphash_final128(struct lk_siphash *hash)
{
    return finish128(hash);
}

uint64_t lk_siphash64(const uint8_t key[LK_SIPHASH_KEY], const void *data,
                      size_t len)
{
    struct lk_siphash hash;

    start(&hash, key);
    take_bytes(&hash, data, len);
    finish_input(&hash);
    hash.v2 ^= 0xff;
    mix_rounds(&hash, 4);
    return fold(&hash);
}

/* The state stays in registers here: no call from one part to the next. */
struct lk_hash128 lk_name_hash(const uint8_t key[LK_SIPHASH_KEY],
                               struct lk_name name)
{
    struct lk_siphash hash;

    start(&hash, key);
    hash.v1 ^= 0xee;
    take_part(&hash, name.tenant);
    take_part(&hash, name.scope);
    take_part(&hash, name.key);
    return finish128(&hash);
}
