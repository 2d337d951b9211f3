/* test_reference.c - references, and the keyed hash they are made with. */
#include "latchkey.h"
#include "lib/siphash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t secret[LK_REFERENCE_KEY] = "sixteen letters!";
static const uint8_t other_secret[LK_REFERENCE_KEY] = "sixteen letters?";

static uint64_t decode(const char *text)
{
    uint64_t number = UINT64_MAX;

    assert_int_equal(
        latchkey_reference_decode(latchkey_slice(text), secret, &number),
        LK_OK);
    return number;
}

/* Numbers spread over the whole range, the same on every run. */
static uint64_t sample(uint64_t i)
{
    return lk_siphash64(other_secret, &i, sizeof(i)) & LK_REFERENCE_MAX;
}

static void a_reference_leads_back_to_its_number(void **state)
{
    const uint64_t edges[] = {
        0, 1, 2, 0xffffff, 0x1000000, LK_REFERENCE_MAX - 1, LK_REFERENCE_MAX};
    char text[LK_REFERENCE_TEXT + 1];

    for (size_t i = 0; i < sizeof(edges) / sizeof(*edges); i++) {
        latchkey_reference_encode(edges[i], secret, text);
        assert_int_equal(decode(text), edges[i]);
    }
    for (uint64_t i = 0; i < 20000; i++) {
        latchkey_reference_encode(sample(i), secret, text);
        assert_int_equal(decode(text), sample(i));
    }
}

static void every_code_is_the_reference_of_some_number(void **state)
{
    char code[LK_REFERENCE_TEXT + 1];
    char again[LK_REFERENCE_TEXT + 1];

    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t word = sample(i);
        snprintf(code, sizeof(code), "%04X-%04X-%04X",
                 (unsigned)(word >> 32 & 0xffff),
                 (unsigned)(word >> 16 & 0xffff), (unsigned)(word & 0xffff));
        uint64_t number = decode(code);
        assert_true(number <= LK_REFERENCE_MAX);
        latchkey_reference_encode(number, secret, again);
        assert_string_equal(code, again);
    }
}

static void a_reference_has_the_documented_form(void **state)
{
    char text[LK_REFERENCE_TEXT + 1];

    for (uint64_t i = 0; i < 1000; i++) {
        latchkey_reference_encode(i, secret, text);
        assert_int_equal(strlen(text), LK_REFERENCE_TEXT);
        assert_int_equal(strspn(text, "0123456789ABCDEF"), 4);
        assert_int_equal(text[4], '-');
        assert_int_equal(strspn(text + 5, "0123456789ABCDEF"), 4);
        assert_int_equal(text[9], '-');
        assert_int_equal(strspn(text + 10, "0123456789ABCDEF"), 4);
    }
}

/* A code written down today must be found after every upgrade. */
static void the_permutation_never_changes(void **state)
{
    char text[LK_REFERENCE_TEXT + 1];

    latchkey_reference_encode(1, secret, text);
    assert_string_equal(text, "0DE7-E414-7213");
    latchkey_reference_encode(LK_REFERENCE_MAX, secret, text);
    assert_string_equal(text, "C130-C78E-1CFF");
}

static void another_secret_gives_another_reference(void **state)
{
    char mine[LK_REFERENCE_TEXT + 1];
    char theirs[LK_REFERENCE_TEXT + 1];

    for (uint64_t i = 0; i < 1000; i++) {
        latchkey_reference_encode(i, secret, mine);
        latchkey_reference_encode(i, other_secret, theirs);
        assert_string_not_equal(mine, theirs);
    }
}

static int differing_digits(const char *a, const char *b)
{
    int count = 0;

    for (size_t i = 0; i < LK_REFERENCE_TEXT; i++) {
        count += a[i] != b[i];
    }
    return count;
}

/* Of twelve random digits, 11.25 differ on average. */
static void neighbours_do_not_look_alike(void **state)
{
    char here[LK_REFERENCE_TEXT + 1];
    char next[LK_REFERENCE_TEXT + 1];
    int sum = 0;

    for (uint64_t i = 0; i < 1000; i++) {
        latchkey_reference_encode(i, secret, here);
        latchkey_reference_encode(i + 1, secret, next);
        int count = differing_digits(here, next);
        assert_true(count >= 5);
        sum += count;
    }
    assert_in_range(sum, 11100, 11400);
}

static void a_reference_may_be_typed_carelessly(void **state)
{
    assert_int_equal(decode("7d3f-92ab-1c4e"), decode("7D3F-92AB-1C4E"));
    assert_int_equal(decode("7D3F92AB1C4E"), decode("7D3F-92AB-1C4E"));
    assert_int_equal(decode("7d3F92aB1c4E"), decode("7D3F-92AB-1C4E"));
}

static void what_is_no_reference_is_malformed(void **state)
{
    static const char *const texts[] = {
        "",
        "7D3F",
        "7D3F-92AB-1C4",
        "7D3F-92AB-1C4E0",
        "7D3F92AB1C4",
        "7D3F92AB1C4E0",
        "7D3F-92AB1C4E",
        "7D3F92AB-1C4E",
        "7D3-F92AB-1C4E",
        "7D3F-92AB-1C4G",
        "7D3F 92AB 1C4E",
        "7D3F--92AB1C4E",
        "7D3F_92AB_1C4E",
        "-7D3F92AB1C4E-",
        " 7D3F92AB1C4E",
        "7D3F-92AB-1C4E\n",
        "7D3F-92AB-1C4\xc3",
    };
    uint64_t number = 42;

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        assert_int_equal(latchkey_reference_decode(latchkey_slice(texts[i]),
                                                   secret, &number),
                         LK_MALFORMED);
        assert_int_equal(number, 42);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_leads_back_to_its_number),
        cmocka_unit_test(every_code_is_the_reference_of_some_number),
        cmocka_unit_test(a_reference_has_the_documented_form),
        cmocka_unit_test(the_permutation_never_changes),
        cmocka_unit_test(another_secret_gives_another_reference),
        cmocka_unit_test(neighbours_do_not_look_alike),
        cmocka_unit_test(a_reference_may_be_typed_carelessly),
        cmocka_unit_test(what_is_no_reference_is_malformed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
