/* test_pointer.c - values by JSON Pointer, in good texts and bad ones. */
#include "lib/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The document of RFC 6901, and some more. */
static const char text[] =
    " {\"foo\": [\"bar\", \"baz\"], \"\": 0, \"a/b\": 1, \"c%d\": 2,"
    " \"e^f\": 3, \"g|h\": 4, \"i\\\\j\": 5, \"k\\\"l\": 6, \" \": 7,"
    " \"m~n\": 8, \"deep\": {\"er\": {\"est\": [[], {\"x\": -1.5e3}]}},"
    " \"t\": true, \"f\": false, \"n\": null, \"e\\u0301\": \"\\ud83d\\ude00\","
    " \"twice\": 1, \"twice\": 2, \"empty\": {}} ";

static void assert_finds(const char *pointer, const char *value)
{
    struct lk_slice found = {0};

    assert_int_equal(
        lk_json_find(latchkey_slice(text), latchkey_slice(pointer), &found),
        LK_OK);
    assert_int_equal(found.len, strlen(value));
    assert_memory_equal(found.data, value, found.len);
}

static enum lk_status find_in(const char *json, const char *pointer)
{
    struct lk_slice found;

    return lk_json_find(latchkey_slice(json), latchkey_slice(pointer), &found);
}

static void a_pointer_leads_to_the_value_as_it_is_spelled(void **state)
{
    assert_finds("/foo", "[\"bar\", \"baz\"]");
    assert_finds("/foo/0", "\"bar\"");
    assert_finds("/foo/1", "\"baz\"");
    assert_finds("/", "0");
    assert_finds("/a~1b", "1");
    assert_finds("/c%d", "2");
    assert_finds("/e^f", "3");
    assert_finds("/g|h", "4");
    assert_finds("/i\\j", "5");
    assert_finds("/k\"l", "6");
    assert_finds("/ ", "7");
    assert_finds("/m~0n", "8");
    assert_finds("/deep/er/est/0", "[]");
    assert_finds("/deep/er/est/1/x", "-1.5e3");
    assert_finds("/t", "true");
    assert_finds("/f", "false");
    assert_finds("/n", "null");
    assert_finds("/e\xcc\x81", "\"\\ud83d\\ude00\"");
    assert_finds("/twice", "1");
    assert_finds("/empty", "{}");
}

static void the_empty_pointer_is_the_document(void **state)
{
    struct lk_slice found;

    assert_int_equal(
        lk_json_find(LK_SLICE(" [1] "), (struct lk_slice){0}, &found), LK_OK);
    assert_int_equal(found.len, 3);
    assert_memory_equal(found.data, "[1]", 3);
}

static void a_pointer_that_leads_nowhere_finds_nothing(void **state)
{
    static const char *const pointers[] = {"/nope",
                                           "/foo/2",
                                           "/foo/-",
                                           "/foo/01",
                                           "/foo/x",
                                           "/foo/",
                                           "/t/x",
                                           "/n/0",
                                           "/empty/x",
                                           "/deep/er/est/0/0",
                                           "/foo/99999999999999999999999"};

    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]); i++) {
        assert_int_equal(find_in(text, pointers[i]), LK_NOT_FOUND);
    }
}

static void what_is_no_pointer_is_refused(void **state)
{
    assert_int_equal(find_in(text, "foo"), LK_MALFORMED);
    assert_int_equal(find_in(text, "/a~"), LK_MALFORMED);
    assert_int_equal(find_in(text, "/a~2"), LK_MALFORMED);
}

static void what_is_no_json_is_refused(void **state)
{
    static const char *const texts[] = {
        "",          "{",           "{\"id\"",         "{\"id\":",
        "{\"id\":}", "{\"id\":tru", "{\"id\":\"x",     "{id:1}",
        "{\"a\":1",  "{\"a\" 1}",   "{\"a\":[1,,2]}",  "{\"a\":[1 2]}",
        "{\"a\":[}", "nonsense",    "{\"id\":truely}", "{\"id\":12"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        enum lk_status status = find_in(texts[i], "/id");
        assert_int_equal(status, LK_MALFORMED);
    }
    assert_int_equal(find_in("nonsense", ""), LK_MALFORMED);
    assert_int_equal(find_in("<html>", ""), LK_MALFORMED);
}

static void a_text_that_is_nested_too_deeply_is_refused(void **state)
{
    size_t len = 1 << 20;
    char *deep = malloc(len);
    struct lk_slice found;

    assert_non_null(deep);
    memset(deep, '[', len);
    assert_int_equal(
        lk_json_find((struct lk_slice){deep, len}, LK_SLICE("/1"), &found),
        LK_MALFORMED);
    free(deep);
}

/* Every prefix of a good text, and every byte of it replaced, is read without
 * harm; the sanitizers watch. */
static void no_text_does_harm(void **state)
{
    struct lk_slice found;
    char copy[sizeof(text)];

    for (size_t len = 0; len < sizeof(text); len++) {
        char *exact = malloc(len ? len : 1);
        assert_non_null(exact);
        memcpy(exact, text, len);
        (void)!lk_json_find((struct lk_slice){exact, len}, LK_SLICE("/empty/x"),
                            &found);
        free(exact);
    }
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        for (const char *c = "\"\\{}[],:\x01\xff"; *c; c++) {
            memcpy(copy, text, sizeof(text));
            copy[i] = *c;
            (void)!lk_json_find(latchkey_slice(copy), LK_SLICE("/nope"),
                                &found);
        }
    }
}

static void a_string_is_plain_without_its_quotes(void **state)
{
    struct lk_buf out = {0};

    assert_int_equal(lk_json_plain(LK_SLICE("\"a\\n\\u00e9\""), &out), LK_OK);
    assert_int_equal(lk_json_plain(LK_SLICE("17"), &out), LK_OK);
    assert_int_equal(out.len, 6);
    assert_memory_equal(out.data,
                        "a\n\xc3\xa9"
                        "17",
                        6);
    latchkey_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pointer_leads_to_the_value_as_it_is_spelled),
        cmocka_unit_test(the_empty_pointer_is_the_document),
        cmocka_unit_test(a_pointer_that_leads_nowhere_finds_nothing),
        cmocka_unit_test(what_is_no_pointer_is_refused),
        cmocka_unit_test(what_is_no_json_is_refused),
        cmocka_unit_test(a_text_that_is_nested_too_deeply_is_refused),
        cmocka_unit_test(no_text_does_harm),
        cmocka_unit_test(a_string_is_plain_without_its_quotes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
