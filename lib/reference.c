/* reference.c - an operation's number as a short code for people, and back. */
#include "latchkey.h"
#include "lib/siphash.h"

/*
 * A balanced Feistel network on two halves of 24 bits, with SipHash as the
 * round function. Any round function makes it a permutation; with eight
 * rounds of a good one, no one who sees far fewer than all of its codes can
 * distinguish it from a random permutation.
 */
enum { ROUNDS = 8, HALF_BITS = 24, DIGITS = 12 };

static const uint32_t HALF_MASK = (1U << HALF_BITS) - 1;

/* The round number is hashed too, so that no two rounds are the same. */
static uint32_t scramble(uint32_t half, uint8_t round,
                         const uint8_t secret[LK_REFERENCE_KEY])
{
    const uint8_t block[4] = {(uint8_t)half, (uint8_t)(half >> 8),
                              (uint8_t)(half >> 16), round};

    return (uint32_t)lk_siphash64(secret, block, sizeof(block)) & HALF_MASK;
}

static uint64_t permute(uint64_t number, const uint8_t secret[LK_REFERENCE_KEY])
{
    uint32_t left = (uint32_t)(number >> HALF_BITS) & HALF_MASK;
    uint32_t right = (uint32_t)number & HALF_MASK;

    for (int round = 0; round < ROUNDS; round++) {
        uint32_t next = left ^ scramble(right, (uint8_t)round, secret);
        left = right;
        right = next;
    }
    return (uint64_t)left << HALF_BITS | right;
}

/* The rounds of permute() from the last to the first. */
static uint64_t permute_back(uint64_t code,
                             const uint8_t secret[LK_REFERENCE_KEY])
{
    uint32_t left = (uint32_t)(code >> HALF_BITS) & HALF_MASK;
    uint32_t right = (uint32_t)code & HALF_MASK;

    for (int round = ROUNDS - 1; round >= 0; round--) {
        uint32_t before = right ^ scramble(left, (uint8_t)round, secret);
        right = left;
        left = before;
    }
    return (uint64_t)left << HALF_BITS | right;
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

/* "1A2B-3C4D-5E6F" and a NUL. `number` is below 2^48; higher bits are lost. */
void latchkey_reference_encode(uint64_t number,
                               const uint8_t secret[LK_REFERENCE_KEY],
                               char text[LK_REFERENCE_TEXT + 1])
{
    uint64_t code = permute(number, secret);
    char *out = text;

    for (int digit = 0; digit < DIGITS; digit++) {
        if (digit == 4 || digit == 8) {
            *out++ = '-';
        }
        *out++ = "0123456789ABCDEF"[code >> (4 * (DIGITS - 1 - digit)) & 15];
    }
    *out = '\0';
}

/* All dashes or none: a code with one lost dash was not copied with care. */
enum lk_status latchkey_reference_decode(struct lk_slice text,
                                         const uint8_t secret[LK_REFERENCE_KEY],
                                         uint64_t *number)
{
    bool dashes = text.len == LK_REFERENCE_TEXT;
    uint64_t code = 0;

    if (!dashes && text.len != DIGITS) {
        return LK_MALFORMED;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (dashes && (i == 4 || i == 9)) {
            if (text.data[i] != '-') {
                return LK_MALFORMED;
            }
            continue;
        }
        int value = digit_value(text.data[i]);
        if (value < 0) {
            return LK_MALFORMED;
        }
        code = code << 4 | (uint64_t)value;
    }
    *number = permute_back(code, secret);
    return LK_OK;
}
