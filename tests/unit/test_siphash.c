/* test_siphash.c - the keyed hash, against the values its authors published. */
#include "lib/siphash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { LONGEST = 64 };

static uint8_t key[LK_SIPHASH_KEY];
static uint8_t input[LONGEST];

/* The published vectors: key 00 01 .. 0f, input 00 01 .. of each length. */
static int fill_vectors(void **state)
{
    for (uint8_t i = 0; i < sizeof(key); i++) {
        key[i] = i;
    }
    for (uint8_t i = 0; i < sizeof(input); i++) {
        input[i] = i;
    }
    return 0;
}

static struct lk_hash128 hash128(const void *data, size_t len)
{
    struct lk_siphash hash;

    lk_siphash_init(&hash, key);
    lk_siphash_update(&hash, data, len);
    return lk_siphash_final128(&hash);
}

static void the_64_bit_hash_matches_the_published_vectors(void **state)
{
    static const uint64_t expected[] = {
        UINT64_C(0x726fdb47dd0e0e31), UINT64_C(0x74f839c593dc67fd),
        UINT64_C(0x0d6c8009d9a94f5a), UINT64_C(0x85676696d7fb7e2d),
        UINT64_C(0xcf2794e0277187b7), UINT64_C(0x18765564cd99a68d),
        UINT64_C(0xcbc9466e58fee3ce), UINT64_C(0xab0200f58b01d137),
        UINT64_C(0x93f5f5799a932462),
    };

    for (size_t len = 0; len < sizeof(expected) / sizeof(*expected); len++) {
        assert_int_equal(lk_siphash64(key, input, len), expected[len]);
    }
    assert_int_equal(lk_siphash64(key, input, 15),
                     UINT64_C(0xa129ca6149be45e5));
}

static void the_128_bit_hash_matches_the_published_vectors(void **state)
{
    struct lk_hash128 empty = hash128(input, 0);
    struct lk_hash128 one = hash128(input, 1);

    assert_int_equal(empty.lo, UINT64_C(0xe6a825ba047f81a3));
    assert_int_equal(empty.hi, UINT64_C(0x930255c71472f66d));
    assert_int_equal(one.lo, UINT64_C(0x44af996bd8c187da));
    assert_int_equal(one.hi, UINT64_C(0x45fc229b11597634));
}

static void the_hash_does_not_depend_on_how_the_input_is_cut(void **state)
{
    for (size_t len = 0; len <= LONGEST; len++) {
        struct lk_hash128 whole = hash128(input, len);
        for (size_t cut = 0; cut <= len; cut++) {
            struct lk_siphash hash;
            size_t middle = (len - cut) / 2;
            lk_siphash_init(&hash, key);
            lk_siphash_update(&hash, input, cut);
            lk_siphash_update(&hash, NULL, 0);
            lk_siphash_update(&hash, input + cut, middle);
            lk_siphash_update(&hash, input + cut + middle, len - cut - middle);
            assert_true(lk_hash128_equal(whole, lk_siphash_final128(&hash)));
        }
    }
}

static struct lk_hash128 hash_name(const char *tenant, const char *scope,
                                   const char *text)
{
    return lk_name_hash(key, (struct lk_name){latchkey_slice(tenant),
                                              latchkey_slice(scope),
                                              latchkey_slice(text)});
}

static void a_name_is_hashed_part_by_part_behind_its_lengths(void **state)
{
    static const char *const parts[] = {"", "a", "seven_c", "eight_ch",
                                        "a part of twenty-one!"};

    for (size_t i = 0; i < 125; i++) {
        const char *name[] = {parts[i % 5], parts[i / 5 % 5], parts[i / 25]};
        struct lk_siphash hash;
        lk_siphash_init(&hash, key);
        for (size_t part = 0; part < 3; part++) {
            uint8_t len[8] = {(uint8_t)strlen(name[part])};
            lk_siphash_update(&hash, len, sizeof(len));
            lk_siphash_update(&hash, name[part], len[0]);
        }
        assert_true(lk_hash128_equal(hash_name(name[0], name[1], name[2]),
                                     lk_siphash_final128(&hash)));
    }
}

static void names_that_read_alike_when_joined_differ(void **state)
{
    struct lk_hash128 hash = hash_name("ab", "c", "d");

    assert_true(lk_hash128_equal(hash, hash_name("ab", "c", "d")));
    assert_false(lk_hash128_equal(hash, hash_name("a", "bc", "d")));
    assert_false(lk_hash128_equal(hash, hash_name("abc", "", "d")));
    assert_false(lk_hash128_equal(hash, hash_name("ab", "cd", "")));
}

static void two_hashes_are_equal_only_in_both_halves(void **state)
{
    struct lk_hash128 hash = {1, 2};

    assert_true(lk_hash128_equal(hash, (struct lk_hash128){1, 2}));
    assert_false(lk_hash128_equal(hash, (struct lk_hash128){1, 3}));
    assert_false(lk_hash128_equal(hash, (struct lk_hash128){3, 2}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_64_bit_hash_matches_the_published_vectors),
        cmocka_unit_test(the_128_bit_hash_matches_the_published_vectors),
        cmocka_unit_test(the_hash_does_not_depend_on_how_the_input_is_cut),
        cmocka_unit_test(a_name_is_hashed_part_by_part_behind_its_lengths),
        cmocka_unit_test(names_that_read_alike_when_joined_differ),
        cmocka_unit_test(two_hashes_are_equal_only_in_both_halves),
    };

    return cmocka_run_group_tests(tests, fill_vectors, NULL);
}
