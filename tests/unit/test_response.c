/* test_response.c - a stored response comes back byte for byte, or not at all.
 */
#include "latchkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PREFIX = 18 };

static const struct lk_response sample = {
    201,
    {"Content-Type: application/json\r\nLocation: /p/1\r\n", 48},
    {"{\"id\":1}\0\xff", 10},
};

static struct lk_buf encode(const struct lk_response *response)
{
    struct lk_buf record = {0};

    assert_int_equal(latchkey_response_encode(response, &record), LK_OK);
    return record;
}

/* Decodes a copy of exact size, so that a sanitizer sees any byte too far. */
static enum lk_status decode_copy(const struct lk_buf *record, size_t len)
{
    struct lk_response response = {0};
    char *copy = malloc(len ? len : 1);

    assert_non_null(copy);
    memcpy(copy, record->data, len);
    enum lk_status status =
        latchkey_response_decode((struct lk_slice){copy, len}, &response);
    free(copy);
    return status;
}

static void assert_same_slice(struct lk_slice a, struct lk_slice b)
{
    assert_true(latchkey_slice_equal(a, b));
}

static void assert_round_trip(const struct lk_response *response)
{
    struct lk_buf record = encode(response);
    struct lk_response got;

    assert_int_equal(
        latchkey_response_decode(latchkey_buf_slice(&record), &got), LK_OK);
    assert_int_equal(got.status, response->status);
    assert_same_slice(got.headers, response->headers);
    assert_same_slice(got.body, response->body);
    latchkey_buf_free(&record);
}

static void c02_a_response_comes_back_byte_for_byte(void **state)
{
    assert_round_trip(&sample);
}

static void c02_empty_headers_and_bodies_come_back_empty(void **state)
{
    struct lk_response response = {204, {NULL, 0}, {NULL, 0}};

    assert_round_trip(&response);
    response.headers = sample.headers;
    assert_round_trip(&response);
    response.headers.len = 0;
    response.body = sample.body;
    assert_round_trip(&response);
}

static void c02_binary_bodies_and_odd_statuses_come_back(void **state)
{
    static const unsigned statuses[] = {0, 100, 599, 65536, UINT32_MAX};
    char body[70000];

    for (size_t i = 0; i < sizeof(body); i++) {
        body[i] = (char)(i * 7);
    }
    for (size_t i = 0; i < sizeof(statuses) / sizeof(*statuses); i++) {
        struct lk_response response = {
            statuses[i], sample.headers, {body, sizeof(body) - i}};
        assert_round_trip(&response);
    }
}

static void a_record_is_appended_to_what_is_there(void **state)
{
    struct lk_buf buf = {0};
    struct lk_response got;

    assert_int_equal(latchkey_buf_add_text(&buf, "12345"), LK_OK);
    assert_int_equal(latchkey_response_encode(&sample, &buf), LK_OK);
    assert_memory_equal(buf.data, "12345", 5);
    assert_int_equal(latchkey_response_decode(
                         (struct lk_slice){buf.data + 5, buf.len - 5}, &got),
                     LK_OK);
    assert_same_slice(got.body, sample.body);
    latchkey_buf_free(&buf);
}

/* A record written by this release must be read by every later one. */
static void the_first_format_never_changes(void **state)
{
    static const struct lk_response response = {
        0x0102, {"A: b\r\n", 6}, {"xyz", 3}};
    static const char expected[] =
        "\xa1\x01\x02\x01\0\0\x06\0\0\0\x03\0\0\0\0\0\0\0"
        "A: b\r\nxyz";
    struct lk_buf record = encode(&response);

    assert_int_equal(record.len, sizeof(expected) - 1);
    assert_memory_equal(record.data, expected, record.len);
    latchkey_buf_free(&record);
}

static void a_record_cut_short_anywhere_is_corrupt(void **state)
{
    struct lk_buf record = encode(&sample);

    for (size_t len = 0; len < record.len; len++) {
        assert_int_equal(decode_copy(&record, len), LK_CORRUPT);
    }
    assert_int_equal(decode_copy(&record, record.len), LK_OK);
    latchkey_buf_free(&record);
}

static void trailing_bytes_are_corrupt(void **state)
{
    struct lk_buf record = encode(&sample);

    assert_int_equal(latchkey_buf_add(&record, "", 1), LK_OK);
    assert_int_equal(decode_copy(&record, record.len), LK_CORRUPT);
    latchkey_buf_free(&record);
}

static void another_first_byte_is_corrupt(void **state)
{
    struct lk_buf record = encode(&sample);
    const char magic = record.data[0];

    for (int byte = 0; byte < 256; byte++) {
        record.data[0] = (char)byte;
        assert_int_equal(decode_copy(&record, record.len),
                         record.data[0] == magic ? LK_OK : LK_CORRUPT);
    }
    latchkey_buf_free(&record);
}

static void a_later_version_is_told_from_damage(void **state)
{
    struct lk_buf record = encode(&sample);

    record.data[1] = 0;
    assert_int_equal(decode_copy(&record, record.len), LK_CORRUPT);
    for (int version = 2; version < 256; version++) {
        record.data[1] = (char)version;
        assert_int_equal(decode_copy(&record, record.len), LK_VERSION);
    }
    /* A later version may be shorter than any record of this one. */
    assert_int_equal(decode_copy(&record, 2), LK_VERSION);
    assert_int_equal(decode_copy(&record, 1), LK_CORRUPT);
    latchkey_buf_free(&record);
}

static void lengths_that_do_not_add_up_are_corrupt(void **state)
{
    /* Each byte of both lengths, changed by each bit: sums that overflow too.
     */
    for (size_t at = 6; at < PREFIX; at++) {
        for (int bit = 0; bit < 8; bit++) {
            struct lk_buf record = encode(&sample);
            record.data[at] = (char)(record.data[at] ^ 1 << bit);
            assert_int_equal(decode_copy(&record, record.len), LK_CORRUPT);
            latchkey_buf_free(&record);
        }
    }
}

static void lengths_that_overflow_together_are_corrupt(void **state)
{
    struct lk_buf record = encode(&sample);
    const uint32_t headers = UINT32_MAX;
    /* Modulo 2^64 the two add up to the true length of the payload. */
    const uint64_t body = record.len - PREFIX - (uint64_t)headers;

    memcpy(record.data + 6, &headers, sizeof(headers));
    memcpy(record.data + 10, &body, sizeof(body));
    assert_int_equal(decode_copy(&record, record.len), LK_CORRUPT);
    latchkey_buf_free(&record);
}

static void headers_beyond_the_format_are_refused(void **state)
{
    struct lk_response response = {200, {"", (size_t)UINT32_MAX + 1}, {"", 0}};
    struct lk_buf record = {0};

    assert_int_equal(latchkey_response_encode(&response, &record),
                     LK_TOO_LARGE);
    response.headers.len = 0;
    response.body.len = SIZE_MAX;
    assert_int_equal(latchkey_response_encode(&response, &record),
                     LK_TOO_LARGE);
    assert_int_equal(record.len, 0);
    latchkey_buf_free(&record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c02_a_response_comes_back_byte_for_byte),
        cmocka_unit_test(c02_empty_headers_and_bodies_come_back_empty),
        cmocka_unit_test(c02_binary_bodies_and_odd_statuses_come_back),
        cmocka_unit_test(a_record_is_appended_to_what_is_there),
        cmocka_unit_test(the_first_format_never_changes),
        cmocka_unit_test(a_record_cut_short_anywhere_is_corrupt),
        cmocka_unit_test(trailing_bytes_are_corrupt),
        cmocka_unit_test(another_first_byte_is_corrupt),
        cmocka_unit_test(a_later_version_is_told_from_damage),
        cmocka_unit_test(lengths_that_do_not_add_up_are_corrupt),
        cmocka_unit_test(lengths_that_overflow_together_are_corrupt),
        cmocka_unit_test(headers_beyond_the_format_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
