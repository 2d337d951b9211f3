/*
 * test_memory.c - memory that runs out: whichever allocation fails, it is
 * said, nothing half-done is handed out, and nothing leaks.
 */
#include "lib/body.h"
#include "lib/json.h"
#include "lib/resp.h"

#include <openssl/crypto.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Allocations that are counted ----------------------------------------
 */

/* The n-th from now fails; 0: none. */
static size_t countdown;
static bool struck;
static long living;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

enum { CAN_FAIL = true };

static bool fails(void)
{
    if (!countdown || --countdown) {
        return false;
    }
    struck = true;
    return true;
}

/* Ours come before libc's, for the library and for what it uses. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

void *malloc(size_t size)
{
    void *memory = fails() ? NULL : __libc_malloc(size);

    living += memory != NULL;
    return memory;
}

void *calloc(size_t count, size_t size)
{
    void *memory = fails() ? NULL : __libc_calloc(count, size);

    living += memory != NULL;
    return memory;
}

void *realloc(void *memory, size_t size)
{
    void *moved = fails() ? NULL : __libc_realloc(memory, size);

    living += !memory && moved;
    return moved;
}

void free(void *memory)
{
    living -= memory != NULL;
    __libc_free(memory);
}

#else

/* The sanitizer owns malloc. */
enum { CAN_FAIL = false };

#endif

/* ---- What is tried -------------------------------------------------------
 */

#define LINE "a line that is longer than the first piece of any buffer, 1234; "
#define LONG LINE LINE LINE LINE LINE LINE LINE LINE

#define JSON_TEXT                                                              \
    "{\"name\":\"" LONG "\",\"list\":[1,2.50,{\"z\":null,\"a\":true}],"        \
    "\"deep\":[[[[[[\"" LINE "\"]]]]]],\"\\u00e9\":\"\\ud83d\\ude00\"}"
#define PARTS_TYPE "multipart/form-data; boundary=xyz"
#define PARTS                                                                  \
    "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n"                  \
    "Content-Type: text/plain\r\n\r\n" LONG "\r\n--xyz\r\n"                    \
    "Content-Disposition: form-data; name=\"b\"\r\n\r\n2\r\n--xyz--\r\n"

static enum lk_status parse_key(struct lk_buf *out)
{
    return latchkey_key_parse(LK_SLICE("\"8e03978e-40d5-43dd\""), out, NULL,
                              NULL);
}

static enum lk_status write_json(struct lk_buf *out)
{
    return lk_json_canonical(LK_SLICE(JSON_TEXT), NULL, out);
}

static enum lk_status write_json_without(struct lk_buf *out)
{
    const struct lk_slice ignored[] = {LK_SLICE("/list/2/z"),
                                       LK_SLICE("/deep/0"), LK_SLICE("/~1x")};
    struct lk_pointers pointers = {0};
    enum lk_status status = lk_pointers_parse(ignored, 3, &pointers);

    if (!status) {
        status = lk_json_canonical(LK_SLICE(JSON_TEXT), &pointers, out);
    }
    lk_pointers_free(&pointers);
    return status;
}

static enum lk_status write_form(struct lk_buf *out)
{
    return lk_form_canonical(LK_SLICE("b=2&a[]=1&a=%41&c&d=" LINE "&e=" LINE),
                             out);
}

static enum lk_status write_parts(struct lk_buf *out)
{
    return lk_multipart_canonical(LK_SLICE(PARTS_TYPE), LK_SLICE(PARTS), out);
}

/* libcrypto survives some failures of its own; then the digest must be the
 * right one. */
static struct lk_fingerprint expected, found;
static bool may_survive;

static enum lk_status fingerprint(struct lk_slice type, struct lk_slice body,
                                  struct lk_buf *explain)
{
    const struct lk_header headers[] = {
        {LK_SLICE("X-Tenant"), LK_SLICE("acme")},
        {LK_SLICE("Accept"), LK_SLICE(LINE)}};
    const struct lk_slice ignored[] = {LK_SLICE("/deep/0")};
    struct lk_request request = {
        .method = LK_SLICE("POST"),
        .path = LK_SLICE("/payments"),
        .query = LK_SLICE("b=2&a=1"),
        .content_type = type,
        .headers = headers,
        .header_count = 2,
        .binding = LK_SLICE("session"),
        .body = body,
        .ignore = ignored,
        .ignore_count = 1,
    };

    may_survive = true;
    return latchkey_fingerprint(&request, &found, explain);
}

static enum lk_status fingerprint_json(struct lk_buf *out)
{
    return fingerprint(LK_SLICE("application/json"), LK_SLICE(JSON_TEXT), NULL);
}

static enum lk_status fingerprint_form(struct lk_buf *out)
{
    return fingerprint(LK_SLICE("application/x-www-form-urlencoded"),
                       LK_SLICE("b=2&a=1&c=" LONG), NULL);
}

static enum lk_status fingerprint_parts(struct lk_buf *out)
{
    return fingerprint(LK_SLICE(PARTS_TYPE), LK_SLICE(PARTS), NULL);
}

static enum lk_status fingerprint_raw(struct lk_buf *out)
{
    return fingerprint(LK_SLICE("image/png"), LK_SLICE(LONG), NULL);
}

static enum lk_status explain_fingerprint(struct lk_buf *out)
{
    return fingerprint(LK_SLICE("application/json"), LK_SLICE(JSON_TEXT), out);
}

static enum lk_status encode_response(struct lk_buf *out)
{
    struct lk_response response = {201, LK_SLICE("A: b\r\n"), LK_SLICE(LONG)};

    return latchkey_response_encode(&response, out);
}

static enum lk_status write_problem(struct lk_buf *out)
{
    struct lk_problem problem = {
        .kind = LK_PROBLEM_ANSWER_NOT_KEPT,
        .type_base = LK_SLICE("https://errors.test/"),
        .detail = LK_SLICE("\"quoted\" \xff " LONG),
        .reference = LK_SLICE("7D3F-92AB-1C4E"),
        .original_status = 201,
    };

    return latchkey_problem_write(&problem, out);
}

static enum lk_status quote_json(struct lk_buf *out)
{
    return latchkey_json_quote(LK_SLICE("\n\xff" LONG), out);
}

static enum lk_status parse_command(struct lk_slice input)
{
    struct lk_resp_limits limits = {64, 4096, 65536};
    struct lk_resp_parser parser = {0};
    size_t used = 0;
    enum lk_resp_result result = lk_resp_parse(&parser, &limits, input, &used);

    lk_resp_parser_free(&parser);
    if (result == LK_RESP_NOMEM) {
        return LK_NOMEM;
    }
    return result == LK_RESP_COMMAND ? LK_OK : LK_INVALID;
}

#define WORDS "$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n$1\r\nd\r\n$1\r\ne\r\n"

static enum lk_status parse_array(struct lk_buf *out)
{
    return parse_command(LK_SLICE("*20\r\n" WORDS WORDS WORDS WORDS));
}

static enum lk_status parse_inline(struct lk_buf *out)
{
    return parse_command(LK_SLICE(
        "ECHO \"quo\\x41ted\" 1 2 3 4 5 6 7 8 9 a b c " LINE LINE "\r\n"));
}

/* ---- The test ------------------------------------------------------------
 */

/* A full buffer: whatever is appended makes it grow. */
static void fill(struct lk_buf *out)
{
    do {
        assert_int_equal(latchkey_buf_add(out, "x", 1), LK_OK);
    } while (out->len < out->cap);
}

static void check_result(enum lk_status status, size_t nth)
{
    if (struck && !status && may_survive) {
        assert_memory_equal(found.digest, expected.digest,
                            sizeof(found.digest));
    } else if (status != (struck ? LK_NOMEM : LK_OK)) {
        fail_msg("allocation %zu: %s", nth, latchkey_status_name(status));
    }
}

/* True if there was an n-th allocation. */
static bool fail_one(enum lk_status (*run)(struct lk_buf *out), size_t nth)
{
    struct lk_buf out = {0};

    fill(&out);
    long before = living;
    size_t len = out.len;
    struck = false;
    countdown = nth;
    enum lk_status status = run(&out);
    countdown = 0;
    OPENSSL_thread_stop(); /* drops its notes about errors */
    check_result(status, nth);
    if (status) {
        assert_int_equal(out.len, len);
    }
    if (living != before) {
        fail_msg("allocation %zu: %ld leaked", nth, living - before);
    }
    latchkey_buf_free(&out);
    return struck;
}

static void fail_each(enum lk_status (*run)(struct lk_buf *out))
{
    struct lk_buf out = {0};
    size_t nth = 1;

    if (!CAN_FAIL) {
        skip();
    }
    may_survive = false;
    /* What is made once and kept, by libcrypto for one, is made here. */
    assert_int_equal(run(&out), LK_OK);
    latchkey_buf_free(&out);
    OPENSSL_thread_stop();
    expected = found;
    while (fail_one(run, nth)) {
        nth++;
    }
    print_message("%zu allocations failed\n", nth - 1);
    assert_true(nth > 1);
}

#define TEST(name, run)                                                        \
    static void name(void **state)                                             \
    {                                                                          \
        fail_each(run);                                                        \
    }

TEST(a_key, parse_key)
TEST(json, write_json)
TEST(json_with_members_left_out, write_json_without)
TEST(a_form, write_form)
TEST(a_multipart_body, write_parts)
TEST(a_fingerprint_of_json, fingerprint_json)
TEST(a_fingerprint_of_a_form, fingerprint_form)
TEST(a_fingerprint_of_parts, fingerprint_parts)
TEST(a_fingerprint_of_bytes, fingerprint_raw)
TEST(a_fingerprint_that_is_explained, explain_fingerprint)
TEST(a_stored_response, encode_response)
TEST(a_problem_document, write_problem)
TEST(a_json_string, quote_json)
TEST(a_command, parse_array)
TEST(a_command_as_a_line, parse_inline)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key),
        cmocka_unit_test(json),
        cmocka_unit_test(json_with_members_left_out),
        cmocka_unit_test(a_form),
        cmocka_unit_test(a_multipart_body),
        cmocka_unit_test(a_fingerprint_of_json),
        cmocka_unit_test(a_fingerprint_of_a_form),
        cmocka_unit_test(a_fingerprint_of_parts),
        cmocka_unit_test(a_fingerprint_of_bytes),
        cmocka_unit_test(a_fingerprint_that_is_explained),
        cmocka_unit_test(a_stored_response),
        cmocka_unit_test(a_problem_document),
        cmocka_unit_test(a_json_string),
        cmocka_unit_test(a_command),
        cmocka_unit_test(a_command_as_a_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
