/* test_problem.c - problem documents, JSON strings and the words of verdicts.
 */
#include "latchkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define REPLACED "\xef\xbf\xbd"

static void assert_document(const struct lk_problem *problem,
                            const char *expected)
{
    struct lk_buf json = {0};

    assert_int_equal(latchkey_problem_write(problem, &json), LK_OK);
    assert_int_equal(latchkey_buf_add(&json, "", 1), LK_OK);
    assert_string_equal(json.data, expected);
    latchkey_buf_free(&json);
}

static void assert_quoted(struct lk_slice text, const char *expected)
{
    struct lk_buf json = {0};

    assert_int_equal(latchkey_json_quote(text, &json), LK_OK);
    assert_int_equal(json.len, strlen(expected) + 2);
    assert_int_equal(json.data[0], '"');
    assert_memory_equal(json.data + 1, expected, strlen(expected));
    assert_int_equal(json.data[json.len - 1], '"');
    latchkey_buf_free(&json);
}

#define assert_quote(text, expected) assert_quoted(LK_SLICE(text), expected)

static void c06_a_missing_key_has_a_document_with_the_drafts_title(void **state)
{
    struct lk_problem problem = {.kind = LK_PROBLEM_KEY_MISSING};

    assert_document(&problem, "{\"type\":\"urn:latchkey:problem:key-missing\","
                              "\"title\":\"Idempotency-Key is missing\","
                              "\"status\":400}");
}

static void a_document_holds_every_member_that_is_given(void **state)
{
    struct lk_problem problem = {
        .kind = LK_PROBLEM_ANSWER_NOT_KEPT,
        .type_base = LK_SLICE("https://api.example/docs#"),
        .detail = LK_SLICE("the answer was \"too large\""),
        .reference = LK_SLICE("7D3F-92AB-1C4E"),
        .original_status = 201,
    };

    assert_document(
        &problem,
        "{\"type\":\"https://api.example/docs#answer-not-kept\","
        "\"title\":\"The original request was processed; its answer was not "
        "kept\",\"status\":409,\"detail\":\"the answer was \\\"too large\\\"\","
        "\"reference\":\"7D3F-92AB-1C4E\",\"original-status\":201}");
}

static void a_given_status_replaces_the_kinds_own(void **state)
{
    struct lk_problem problem = {.kind = LK_PROBLEM_KEY_REUSED};

    assert_int_equal(latchkey_problem_status(&problem), 422);
    problem.status = 409;
    assert_int_equal(latchkey_problem_status(&problem), 409);
    assert_document(&problem, "{\"type\":\"urn:latchkey:problem:key-reused\","
                              "\"title\":\"Idempotency-Key is already used\","
                              "\"status\":409}");
}

static void every_kind_has_its_own_name_status_and_title(void **state)
{
    static const struct {
        const char *name;
        unsigned status;
        const char *title;
    } kinds[] = {
#define X(id, name, status, title) {name, status, title},
        LK_PROBLEM_MAP(X)
#undef X
    };

    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        struct lk_problem problem = {.kind = (enum lk_problem_kind)i};
        char expected[512];
        snprintf(expected, sizeof(expected),
                 "{\"type\":\"urn:latchkey:problem:%s\",\"title\":\"%s\","
                 "\"status\":%u}",
                 kinds[i].name, kinds[i].title, kinds[i].status);
        assert_document(&problem, expected);
    }
}

static void c18_an_operation_that_is_not_there_has_a_document_of_its_own(
    void **state)
{
    struct lk_problem problem = {.kind = LK_PROBLEM_NOT_FOUND};

    assert_document(&problem, "{\"type\":\"urn:latchkey:problem:not-found\","
                              "\"title\":\"There is no such operation\","
                              "\"status\":404}");
}

static void an_unknown_kind_is_refused_and_nothing_is_written(void **state)
{
    struct lk_problem problem = {.kind = (enum lk_problem_kind)1000};
    struct lk_buf json = {0};

    assert_int_equal(latchkey_problem_write(&problem, &json), LK_INVALID);
    assert_int_equal(json.len, 0);
    assert_int_equal(latchkey_problem_status(&problem), 0);
}

static void text_from_outside_cannot_leave_its_string(void **state)
{
    struct lk_problem problem = {
        .kind = LK_PROBLEM_KEY_INVALID,
        .detail = LK_SLICE("\",\"status\":200}\n\xff"),
    };

    assert_document(&problem,
                    "{\"type\":\"urn:latchkey:problem:key-invalid\","
                    "\"title\":\"Idempotency-Key is not valid\",\"status\":400,"
                    "\"detail\":\"\\\",\\\"status\\\":200}\\n" REPLACED "\"}");
}

static void quoting_escapes_what_json_reserves(void **state)
{
    assert_quote("", "");
    assert_quote("plain text / 'as is'", "plain text / 'as is'");
    assert_quote("\"\\", "\\\"\\\\");
    assert_quote("\b\f\n\r\t", "\\b\\f\\n\\r\\t");
    assert_quote("a\0b\x01\x1f", "a\\u0000b\\u0001\\u001f");
    assert_quote("\x7f", "\\u007f");
    assert_quote("\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0",
                 "\\u0080\\u009b\\u009f\xc2\xa0");
}

static void quoting_keeps_utf8_of_every_length(void **state)
{
    assert_quote("\xc2\xa2\xdf\xbf", "\xc2\xa2\xdf\xbf");
    assert_quote("\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf",
                 "\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf");
    assert_quote("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf",
                 "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
}

static void quoting_replaces_what_is_not_utf8(void **state)
{
    /* a stray continuation, bytes that never occur */
    assert_quote("a\x80z", "a" REPLACED "z");
    assert_quote("\xfe\xff", REPLACED REPLACED);
    assert_quote("\xf5\x80\x80\x80", REPLACED REPLACED REPLACED REPLACED);
    /* overlong: two, three and four bytes for a slash */
    assert_quote("\xc0\xaf", REPLACED REPLACED);
    assert_quote("\xe0\x80\xaf", REPLACED REPLACED REPLACED);
    assert_quote("\xf0\x80\x80\xaf", REPLACED REPLACED REPLACED REPLACED);
    /* lone surrogates, first and last; past U+10FFFF */
    assert_quote("\xed\xa0\x80", REPLACED REPLACED REPLACED);
    assert_quote("\xed\xbf\xbf", REPLACED REPLACED REPLACED);
    assert_quote("\xf4\x90\x80\x80", REPLACED REPLACED REPLACED REPLACED);
    /* cut short, at the end and before something else */
    assert_quote("\xe2\x82", REPLACED);
    assert_quote("\xf0\x9f\x98", REPLACED);
    assert_quote("\xc3", REPLACED);
    assert_quote("\xe2\x82z", REPLACED "z");
    assert_quote("\xe2\"", REPLACED "\\\"");
}

static void every_verdict_is_read_back_from_its_word(void **state)
{
    for (int verdict = LK_VERDICT_NEW; verdict <= LK_VERDICT_EXISTS;
         verdict++) {
        enum lk_verdict got = LK_VERDICT_EXISTS + 1;
        const char *word = latchkey_verdict_word(verdict);
        assert_true(latchkey_verdict_parse(latchkey_slice(word), &got));
        assert_int_equal(got, verdict);
    }
    assert_string_equal(latchkey_verdict_word(LK_VERDICT_DONE), "OK");
    assert_string_equal(latchkey_verdict_word(LK_VERDICT_EXISTS + 1), "?");
}

static void what_is_no_verdict_is_not_read_as_one(void **state)
{
    static const char *const words[] = {"", "NE", "NEWS", "new", "DONE", "?"};
    enum lk_verdict got = LK_VERDICT_STALE;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        assert_false(latchkey_verdict_parse(latchkey_slice(words[i]), &got));
    }
    assert_int_equal(got, LK_VERDICT_STALE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            c06_a_missing_key_has_a_document_with_the_drafts_title),
        cmocka_unit_test(a_document_holds_every_member_that_is_given),
        cmocka_unit_test(a_given_status_replaces_the_kinds_own),
        cmocka_unit_test(every_kind_has_its_own_name_status_and_title),
        cmocka_unit_test(
            c18_an_operation_that_is_not_there_has_a_document_of_its_own),
        cmocka_unit_test(an_unknown_kind_is_refused_and_nothing_is_written),
        cmocka_unit_test(text_from_outside_cannot_leave_its_string),
        cmocka_unit_test(quoting_escapes_what_json_reserves),
        cmocka_unit_test(quoting_keeps_utf8_of_every_length),
        cmocka_unit_test(quoting_replaces_what_is_not_utf8),
        cmocka_unit_test(every_verdict_is_read_back_from_its_word),
        cmocka_unit_test(what_is_no_verdict_is_not_read_as_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
