/* test_key.c - every spelling of an Idempotency-Key, good and bad (C05). */
#include "latchkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *value;
    const char *key; /* NULL: it is malformed */
    enum lk_key_fault fault;
    size_t at;
};

#define VALID(value, key)                                                      \
    {                                                                          \
        value, key, LK_KEY_FAULT_NONE, 0                                       \
    }
#define FAULT(value, name, at)                                                 \
    {                                                                          \
        value, NULL, LK_KEY_FAULT_##name, at                                   \
    }

static const struct row rows[] = {
    VALID("abc", "abc"),
    VALID("\"abc\"", "abc"),
    VALID(" \t abc\t ", "abc"),
    VALID("\t\"abc\" ", "abc"),
    VALID("a", "a"),
    VALID("\" \"", " "),
    VALID("\" a b \"", " a b "),
    VALID("\"a\\\"b\"", "a\"b"),
    VALID("\"a\\\\b\"", "a\\b"),
    VALID("\"\\\\\\\"\"", "\\\""),
    VALID("\"a,b;c\"", "a,b;c"),
    VALID("?1", "?1"),
    VALID(":YWJj:", ":YWJj:"),
    VALID("8e03978e-40d5-43dd-bc93-6894a57f9324",
          "8e03978e-40d5-43dd-bc93-6894a57f9324"),
    FAULT("", EMPTY, 0),
    FAULT(" \t ", EMPTY, 3),
    FAULT("\"\"", EMPTY, 1),
    FAULT(" \"\" x", EMPTY, 2),
    FAULT("a b", BAD_CHARACTER, 1),
    FAULT("a\tb", BAD_CHARACTER, 1),
    FAULT("a,b", BAD_CHARACTER, 1),
    FAULT("a, b", BAD_CHARACTER, 1),
    FAULT("a;b=1", BAD_CHARACTER, 1),
    FAULT("a\"", BAD_CHARACTER, 1),
    FAULT("ab\\c", BAD_CHARACTER, 2),
    FAULT(",", BAD_CHARACTER, 0),
    FAULT("caf\xc3\xa9", BAD_CHARACTER, 3),
    FAULT("\"caf\xc3\xa9\"", BAD_CHARACTER, 4),
    FAULT("\"a\tb\"", BAD_CHARACTER, 2),
    FAULT("\"a\nb\"", BAD_CHARACTER, 2),
    FAULT("\"a\\nb\"", BAD_ESCAPE, 2),
    FAULT("\"\\ \"", BAD_ESCAPE, 1),
    FAULT("\"", UNTERMINATED, 1),
    FAULT("\"abc", UNTERMINATED, 4),
    FAULT("\"abc\\\"", UNTERMINATED, 6),
    FAULT("\"abc\\", UNTERMINATED, 5),
    FAULT("\"abc ", UNTERMINATED, 5),
    FAULT("\"abc\";a=1", TRAILING, 5),
    FAULT("\"abc\" ;a=1", TRAILING, 6),
    FAULT("\"abc\"d", TRAILING, 5),
    FAULT("\"abc\", \"def\"", TRAILING, 5),
    FAULT("\"abc\"\"def\"", TRAILING, 5),
};

/* Parses into a buffer that already holds something, which must survive. */
static enum lk_status parse(struct lk_slice value, struct lk_buf *key,
                            enum lk_key_fault *fault, size_t *at)
{
    *key = (struct lk_buf){0};
    assert_int_equal(latchkey_buf_add_text(key, "before:"), LK_OK);
    enum lk_status status = latchkey_key_parse(value, key, fault, at);
    assert_true(key->len >= 7);
    assert_memory_equal(key->data, "before:", 7);
    return status;
}

static void assert_key(struct lk_slice value, struct lk_slice key)
{
    enum lk_key_fault fault = LK_KEY_FAULT_EMPTY;
    struct lk_buf got;
    size_t at;

    assert_int_equal(parse(value, &got, &fault, &at), LK_OK);
    assert_int_equal(fault, LK_KEY_FAULT_NONE);
    assert_int_equal(got.len - 7, key.len);
    assert_memory_equal(got.data + 7, key.data, key.len);
    latchkey_buf_free(&got);
}

static void assert_fault(struct lk_slice value, enum lk_key_fault fault,
                         size_t at)
{
    enum lk_key_fault got_fault = LK_KEY_FAULT_NONE;
    size_t got_at = SIZE_MAX;
    struct lk_buf got;

    assert_int_equal(parse(value, &got, &got_fault, &got_at), LK_MALFORMED);
    assert_string_equal(latchkey_key_fault_name(got_fault),
                        latchkey_key_fault_name(fault));
    assert_int_equal(got_at, at);
    assert_int_equal(got.len, 7);
    latchkey_buf_free(&got);
}

static void c05_each_spelling_gives_its_key_or_its_fault(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        struct lk_slice value = latchkey_slice(rows[i].value);
        if (rows[i].key) {
            assert_key(value, latchkey_slice(rows[i].key));
        } else {
            assert_fault(value, rows[i].fault, rows[i].at);
        }
    }
}

static void c05_a_bare_key_has_at_most_255_characters(void **state)
{
    char text[300];

    memset(text, 'k', sizeof(text));
    assert_key((struct lk_slice){text, 255}, (struct lk_slice){text, 255});
    assert_fault((struct lk_slice){text, 256}, LK_KEY_FAULT_TOO_LONG, 255);
    assert_fault((struct lk_slice){text, 300}, LK_KEY_FAULT_TOO_LONG, 255);
    memset(text + 255, ' ', 45);
    assert_key((struct lk_slice){text, 300}, (struct lk_slice){text, 255});
}

static void c05_a_quoted_key_is_measured_after_unescaping(void **state)
{
    char text[600];
    char key[255];

    text[0] = '"';
    for (size_t i = 0; i < 255; i++) {
        memcpy(text + 1 + 2 * i, i % 2 ? "\\\\" : "\\\"", 2);
        key[i] = i % 2 ? '\\' : '"';
    }
    text[511] = '"';
    assert_key((struct lk_slice){text, 512}, (struct lk_slice){key, 255});
    memcpy(text + 511, "\\\"\"", 3);
    assert_fault((struct lk_slice){text, 514}, LK_KEY_FAULT_TOO_LONG, 511);

    memset(text + 1, 'k', 256);
    memset(key, 'k', 255);
    text[256] = '"';
    assert_key((struct lk_slice){text, 257}, (struct lk_slice){key, 255});
    memcpy(text + 256, "k\"", 2);
    assert_fault((struct lk_slice){text, 258}, LK_KEY_FAULT_TOO_LONG, 256);
}

static void c05_every_byte_is_judged_in_a_bare_key(void **state)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[3] = {'a', (char)byte, 'z'};
        struct lk_slice value = {text, 3};
        if (byte > 0x20 && byte < 0x7f && !strchr(",;\"\\", byte)) {
            assert_key(value, value);
        } else {
            assert_fault(value, LK_KEY_FAULT_BAD_CHARACTER, 1);
        }
    }
}

static void c05_every_byte_is_judged_in_a_quoted_key(void **state)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[5] = {'"', 'a', (char)byte, 'z', '"'};
        struct lk_slice value = {text, 5};
        if (byte == '"') {
            assert_fault(value, LK_KEY_FAULT_TRAILING, 3);
        } else if (byte == '\\') {
            assert_fault(value, LK_KEY_FAULT_BAD_ESCAPE, 2);
        } else if (byte >= 0x20 && byte < 0x7f) {
            assert_key(value, (struct lk_slice){text + 1, 3});
        } else {
            assert_fault(value, LK_KEY_FAULT_BAD_CHARACTER, 2);
        }
    }
}

static void c05_only_quote_and_backslash_may_be_escaped(void **state)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[5] = {'"', 'a', '\\', (char)byte, '"'};
        if (byte == '"' || byte == '\\') {
            const char key[2] = {'a', (char)byte};
            assert_key((struct lk_slice){text, 5}, (struct lk_slice){key, 2});
        } else {
            assert_fault((struct lk_slice){text, 5}, LK_KEY_FAULT_BAD_ESCAPE,
                         2);
        }
    }
}

static void the_reasons_are_optional(void **state)
{
    struct lk_buf key = {0};

    assert_int_equal(latchkey_key_parse(LK_SLICE("a b"), &key, NULL, NULL),
                     LK_MALFORMED);
    assert_int_equal(latchkey_key_parse(LK_SLICE("ab"), &key, NULL, NULL),
                     LK_OK);
    assert_int_equal(key.len, 2);
    latchkey_buf_free(&key);
}

static void every_fault_has_a_name_and_a_text_of_its_own(void **state)
{
    const int count = LK_KEY_FAULT_TRAILING + 1;

    for (int a = 0; a < count; a++) {
        assert_string_not_equal(latchkey_key_fault_text(a), "?");
        for (int b = 0; b < a; b++) {
            assert_string_not_equal(latchkey_key_fault_name(a),
                                    latchkey_key_fault_name(b));
            assert_string_not_equal(latchkey_key_fault_text(a),
                                    latchkey_key_fault_text(b));
        }
    }
    assert_string_equal(latchkey_key_fault_name(count), "?");
    assert_string_equal(latchkey_key_fault_text(count), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c05_each_spelling_gives_its_key_or_its_fault),
        cmocka_unit_test(c05_a_bare_key_has_at_most_255_characters),
        cmocka_unit_test(c05_a_quoted_key_is_measured_after_unescaping),
        cmocka_unit_test(c05_every_byte_is_judged_in_a_bare_key),
        cmocka_unit_test(c05_every_byte_is_judged_in_a_quoted_key),
        cmocka_unit_test(c05_only_quote_and_backslash_may_be_escaped),
        cmocka_unit_test(the_reasons_are_optional),
        cmocka_unit_test(every_fault_has_a_name_and_a_text_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
