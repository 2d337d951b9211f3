/*
 * test_postgres_text.c - names as text for PostgreSQL, messages as lines, and
 * what a URL names.
 */
#include "store/postgres.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_text(struct lk_slice bytes, const char *text)
{
    struct lk_buf escaped = {0};
    struct lk_buf back = {0};

    assert_int_equal(lk_pg_escape(bytes, &escaped), LK_OK);
    assert_int_equal(escaped.len, strlen(text));
    assert_memory_equal(escaped.data, text, escaped.len);
    assert_int_equal(lk_pg_text_size(bytes), escaped.len);
    assert_int_equal(lk_pg_unescape(latchkey_buf_slice(&escaped), &back),
                     LK_OK);
    assert_true(latchkey_slice_equal(latchkey_buf_slice(&back), bytes));
    latchkey_buf_free(&escaped);
    latchkey_buf_free(&back);
}

static void what_text_can_hold_stays_as_it_is(void **state)
{
    (void)state;
    static const char *const plain[] = {"",
                                        "acct_1",
                                        "POST /caf\xc3\xa9",
                                        "\xe2\x82\xac",
                                        "\xf0\x9f\x94\x91",
                                        "\xed\x9f\xbf",
                                        "\xf4\x8f\xbf\xbf",
                                        "\x01\x7f"};

    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        assert_true(lk_pg_is_plain(latchkey_slice(plain[i])));
        expect_text(latchkey_slice(plain[i]), plain[i]);
    }
}

/* What the server would refuse is escaped, byte by byte. */
static void what_text_cannot_hold_is_escaped(void **state)
{
    (void)state;
    assert_false(lk_pg_is_plain(LK_SLICE("a\0b")));
    expect_text(LK_SLICE("a\0b"), "a\\000b");
    expect_text(LK_SLICE("\xff"), "\\377");
    expect_text(LK_SLICE("\xc3"), "\\303");          /* cut off */
    expect_text(LK_SLICE("\xc0\x80"), "\\300\\200"); /* too long */
    expect_text(LK_SLICE("\xe0\x9f\xbf"), "\\340\\237\\277");
    expect_text(LK_SLICE("\xed\xa0\x80"), "\\355\\240\\200"); /* surrogate */
    expect_text(LK_SLICE("\xf4\x90\x80\x80"), "\\364\\220\\200\\200");
    expect_text(LK_SLICE("\xe2\x82x"), "\\342\\202x");
}

static void a_backslash_is_never_taken_for_an_escape(void **state)
{
    (void)state;
    expect_text(LK_SLICE("\\"), "\\\\");
    expect_text(LK_SLICE("\\000"), "\\\\000");
    expect_text(LK_SLICE("\\\0"), "\\\\\\000");
}

static unsigned next_random(unsigned *seed)
{
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 16;
}

/* Any bytes come back, and their text is its own text but for backslashes. */
static void any_bytes_come_back(void **state)
{
    (void)state;
    static const unsigned char alphabet[] = {
        0, '\\', '0', '3', 'a', 0x80, 0xbf, 0xc3, 0xe2, 0xed, 0xf4, 0xff};
    unsigned seed = 7;

    for (int round = 0; round < 20000; round++) {
        char bytes[12];
        size_t len = next_random(&seed) % sizeof(bytes);
        struct lk_buf text = {0};
        struct lk_buf back = {0};
        for (size_t i = 0; i < len; i++) {
            bytes[i] = (char)alphabet[next_random(&seed) % sizeof(alphabet)];
        }
        struct lk_slice slice = {bytes, len};
        assert_int_equal(lk_pg_escape(slice, &text), LK_OK);
        assert_int_equal(lk_pg_text_size(slice), text.len);
        assert_int_equal(lk_pg_unescape(latchkey_buf_slice(&text), &back),
                         LK_OK);
        assert_true(latchkey_slice_equal(latchkey_buf_slice(&back), slice));
        for (size_t i = 0; i < text.len; i++) {
            text.data[i] = text.data[i] == '\\' ? '/' : text.data[i];
        }
        assert_true(lk_pg_is_plain(latchkey_buf_slice(&text)));
        latchkey_buf_free(&text);
        latchkey_buf_free(&back);
    }
}

static void a_message_is_one_line_without_the_password(void **state)
{
    (void)state;
    char line[64];

    lk_pg_clean("FATAL:  no\n\tentry for \x1b[31mhunter2\x07 \xff\n", "hunter2",
                line, sizeof(line));
    assert_string_equal(line, "FATAL:  no entry for ?[31m***? ?");
    lk_pg_clean("caf\xc3\xa9", NULL, line, 5); /* cut between characters */
    assert_string_equal(line, "caf");
    lk_pg_clean("aaaa", "aa", line, sizeof(line));
    assert_string_equal(line, "******");
}

static void expect_host(const struct lk_pg_url *url, unsigned which,
                        const char *host, const char *port)
{
    assert_string_equal(url->hosts[which].host, host);
    assert_string_equal(url->hosts[which].port, port);
}

static void hosts_of_a_url_are_tried_one_by_one(void **state)
{
    (void)state;
    struct lk_pg_url url;
    struct lk_buf error = {0};

    assert_int_equal(
        lk_pg_url_parse("postgres://u:p%20w@a:1,b:2/db", &url, &error), LK_OK);
    assert_int_equal(url.host_count, 2);
    expect_host(&url, 0, "a", "1");
    expect_host(&url, 1, "b", "2");
    assert_string_equal(url.password, "p w");
    lk_pg_url_free(&url);
    assert_int_equal(
        lk_pg_url_parse("postgres:host=a,b,c port=7 dbname=x", &url, &error),
        LK_OK);
    assert_int_equal(url.host_count, 3);
    expect_host(&url, 2, "c", "7");
    assert_string_equal(url.conninfo, "host=a,b,c port=7 dbname=x");
    lk_pg_url_free(&url);
}

/* libpq would repeat a part of it. */
static void a_url_that_is_wrong_is_not_repeated(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "postgres:host=a password=my secret word",
        "postgres://user:sec/ret@host/db",
        "postgres://a:1,b:2,c:secret/db",
        "postgres://a,b:1,c:2,d/db?secret",
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct lk_pg_url url;
        struct lk_buf error = {0};
        assert_int_equal(lk_pg_url_parse(wrong[i], &url, &error), LK_INVALID);
        assert_true(error.len > 0);
        assert_null(memmem(error.data, error.len, "sec", 3));
        assert_null(memmem(error.data, error.len, "word", 4));
        latchkey_buf_free(&error);
    }
}

static void an_array_is_as_the_server_sends_it(void **state)
{
    (void)state;
    static const char numbers[] = "\0\0\0\1\0\0\0\1\0\0\0\x15\0\0\0\2\0\0\0\1\0"
                                  "\0\0\2\0\7\0\0\0\2\xff\xff";
    static const char texts[] = "\0\0\0\1\0\0\0\1\0\0\0\x19\0\0\0\2\0\0\0\1\0\0"
                                "\0\2\\\\\xff\xff\xff\xff";
    struct lk_pg_array array = {{0}, 0, 0};

    assert_int_equal(lk_pg_array_start(&array, LK_PG_INT2_ARRAY, 2), LK_OK);
    assert_int_equal(lk_pg_array_int(&array, 7), LK_OK);
    assert_int_equal(lk_pg_array_int(&array, -1), LK_OK);
    assert_int_equal(array.bytes.len, sizeof(numbers) - 1);
    assert_memory_equal(array.bytes.data, numbers, array.bytes.len);
    assert_int_equal(lk_pg_array_start(&array, LK_PG_TEXT_ARRAY, 2), LK_OK);
    assert_int_equal(lk_pg_array_text(&array, LK_SLICE("\\")), LK_OK);
    assert_int_equal(lk_pg_array_null(&array), LK_OK);
    assert_int_equal(array.bytes.len, sizeof(texts) - 1);
    assert_memory_equal(array.bytes.data, texts, array.bytes.len);
    latchkey_buf_free(&array.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_text_can_hold_stays_as_it_is),
        cmocka_unit_test(what_text_cannot_hold_is_escaped),
        cmocka_unit_test(a_backslash_is_never_taken_for_an_escape),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(a_message_is_one_line_without_the_password),
        cmocka_unit_test(hosts_of_a_url_are_tried_one_by_one),
        cmocka_unit_test(a_url_that_is_wrong_is_not_repeated),
        cmocka_unit_test(an_array_is_as_the_server_sends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
