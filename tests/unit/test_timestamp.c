/* test_timestamp.c - the time that a request says it was made (C39). */
#include "latchkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define UNTOUCHED   UINT64_C(77)
#define COUNT(list) (sizeof(list) / sizeof(*(list)))

struct sample {
    const char *text;
    uint64_t ms;
};

/* A copy of exact size, so that a sanitizer sees a read behind the end. */
static enum lk_status parse(const char *text, size_t len, uint64_t *ms)
{
    char *copy = malloc(len ? len : 1);

    assert_non_null(copy);
    memcpy(copy, text, len);
    enum lk_status status =
        latchkey_timestamp_parse((struct lk_slice){copy, len}, ms);
    free(copy);
    return status;
}

static void assert_times(const struct sample *samples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t ms = UNTOUCHED;
        if (parse(samples[i].text, strlen(samples[i].text), &ms)) {
            fail_msg("cannot read %s", samples[i].text);
        }
        if (ms != samples[i].ms) {
            fail_msg("%s is %llu", samples[i].text, (unsigned long long)ms);
        }
    }
}

static void assert_refused(const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t ms = UNTOUCHED;
        if (parse(texts[i], strlen(texts[i]), &ms) != LK_MALFORMED) {
            fail_msg("\"%s\" was read", texts[i]);
        }
        assert_true(ms == UNTOUCHED);
    }
}

static void c39_numbers_are_seconds_or_milliseconds_by_their_size(void **state)
{
    static const struct sample samples[] = {
        {"0", 0},
        {"1", 1000},
        {"1700000000", 1700000000000},
        {"1700000000123", 1700000000123},
        {"99999999999", 99999999999000},
        {"100000000000", 100000000000},
        {"253402300799999", 253402300799999},
    };

    assert_times(samples, COUNT(samples));
}

static void c39_seconds_may_have_a_fraction_that_is_cut(void **state)
{
    static const struct sample samples[] = {
        {"0.0", 0},
        {"1700000000.1", 1700000000100},
        {"1700000000.12", 1700000000120},
        {"1700000000.123", 1700000000123},
        {"1700000000.999999999", 1700000000999},
        {"253402300799.999", 253402300799999},
    };

    assert_times(samples, COUNT(samples));
}

static void c39_rfc3339_is_read_with_its_offset(void **state)
{
    static const struct sample samples[] = {
        {"1970-01-01T00:00:00Z", 0},
        {"2023-11-14T22:13:20Z", 1700000000000},
        {"2023-11-14t22:13:20z", 1700000000000},
        {"2023-11-14T22:13:20.5Z", 1700000000500},
        {"2023-11-14T22:13:20.123456789Z", 1700000000123},
        {"2023-11-15T00:13:20+02:00", 1700000000000},
        {"2023-11-14T16:43:20-05:30", 1700000000000},
        {"2023-11-14T22:13:20-00:00", 1700000000000},
        {"2024-02-29T00:00:00Z", 1709164800000},
        {"2000-02-29T12:00:00Z", 951825600000},
        {"2016-12-31T23:59:60Z", 1483228800000},
        {"2017-01-01T01:59:60+02:00", 1483228800000},
        {"1969-12-31T23:00:00-01:00", 0},
        {"9999-12-31T23:59:59.999Z", 253402300799999},
    };

    assert_times(samples, COUNT(samples));
}

static void c39_http_dates_are_read(void **state)
{
    static const struct sample samples[] = {
        {"Thu, 01 Jan 1970 00:00:00 GMT", 0},
        {"Sun, 06 Nov 1994 08:49:37 GMT", 784111777000},
        {"Tue, 14 Nov 2023 22:13:20 GMT", 1700000000000},
        {"Thu, 29 Feb 2024 00:00:00 GMT", 1709164800000},
    };

    assert_times(samples, COUNT(samples));
}

static void numbers_that_are_no_time_are_refused(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "-1",
        "+1",
        "1e9",
        "0x10",
        "01",
        "00",
        "1 ",
        " 1",
        "1,5",
        ".5",
        "1.",
        "1..5",
        "1.5.5",
        "1.0000000000",
        "1.5s",
        "NaN",
        "inf",
        "253402300800000",
        "253402300800.0",
        "100000000000000000000000000",
        "18446744073709551616",
        "18446744073709551617000",
        "1700000000123.5",
        "\xd9\xa1\xd9\xa2",
        "1700000000\n",
    };

    assert_refused(texts, COUNT(texts));
    uint64_t ms = UNTOUCHED;
    assert_int_equal(parse("1700000000\0", 11, &ms), LK_MALFORMED);
    assert_int_equal(latchkey_timestamp_parse((struct lk_slice){NULL, 0}, &ms),
                     LK_MALFORMED);
}

static void dates_that_are_none_are_refused(void **state)
{
    static const char *const texts[] = {
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-11-14 22:13:20Z",
        "2023-11-14T22:13Z",
        "2023-11-14T22:13:20.Z",
        "2023-11-14T22:13:20,5Z",
        "2023-11-14T22:13:20.1234567890Z",
        "2023-11-14T22:13:20ZZ",
        "2023-11-14T22:13:20+0200",
        "2023-11-14T22:13:20+24:00",
        "2023-11-14T22:13:20+02:60",
        "2023-11-14T22:13:20 02:00",
        "2023-13-01T00:00:00Z",
        "2023-00-01T00:00:00Z",
        "2023-01-00T00:00:00Z",
        "2023-04-31T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2100-02-29T00:00:00Z",
        "2023-11-14T24:00:00Z",
        "2023-11-14T23:60:00Z",
        "2023-11-14T23:59:61Z",
        "2023-11-14T22:13:60Z",
        "2016-12-31T23:59:60+01:00",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "9999-12-31T23:59:60Z",
        "+2023-11-14T22:13:20Z",
        "12023-11-14T22:13:20Z",
        "2023-1-14T22:13:20Z",
        "T",
        "-",
        "2023-",
    };

    assert_refused(texts, COUNT(texts));
}

static void http_dates_that_are_none_are_refused(void **state)
{
    static const char *const texts[] = {
        "Mon, 14 Nov 2023 22:13:20 GMT",
        "tue, 14 Nov 2023 22:13:20 GMT",
        "Tue, 14 nov 2023 22:13:20 GMT",
        "Tue, 14 Nov 2023 22:13:20 UTC",
        "Tue, 14 Nov 2023 22:13:20",
        "Tue, 14 Nov 2023 22:13:20 GMT ",
        "Tue 14 Nov 2023 22:13:20 GMT",
        "Tue, 14 Nov 23 22:13:20 GMT",
        "Tue, 4 Nov 2023 22:13:20 GMT",
        "Tuesday, 14-Nov-23 22:13:20 GMT",
        "Tue Nov 14 22:13:20 2023",
        "Wed, 31 Dec 1969 23:59:59 GMT",
        "Thu, 30 Feb 2023 00:00:00 GMT",
        "unM, 14 Nov 2023 22:13:20 GMT",
        "Tue",
        "Tue,",
        "Tue, ",
        "Tu",
    };

    assert_refused(texts, COUNT(texts));
}

/* Every prefix of what is readable: none may read behind its end. */
static void a_text_that_is_cut_short_is_never_read_past_its_end(void **state)
{
    static const char *const texts[] = {"2023-11-14T22:13:20.123+02:00",
                                        "Tue, 14 Nov 2023 22:13:20 GMT"};

    for (size_t i = 0; i < COUNT(texts); i++) {
        for (size_t len = 5; len < strlen(texts[i]); len++) {
            uint64_t ms = UNTOUCHED;
            assert_int_equal(parse(texts[i], len, &ms), LK_MALFORMED);
        }
    }
}

static void c39_a_uuid_of_version_7_tells_its_time(void **state)
{
    uint64_t ms = 0;

    assert_int_equal(latchkey_uuid7_time(
                         LK_SLICE("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), &ms),
                     LK_OK);
    assert_true(ms == UINT64_C(1645557742000));
    assert_int_equal(latchkey_uuid7_time(
                         LK_SLICE("ffffffff-ffff-7000-bfff-ffffffffffff"), &ms),
                     LK_OK);
    assert_true(ms == UINT64_C(0xffffffffffff));
}

static void what_is_no_uuid_of_version_7_has_no_time(void **state)
{
    static const char *const texts[] = {
        "",
        "017f22e2-79b0-4cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-78c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f",
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f0",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        "g17f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2a79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c4adc0c0c07398f",
    };

    for (size_t i = 0; i < COUNT(texts); i++) {
        uint64_t ms = UNTOUCHED;
        if (latchkey_uuid7_time(latchkey_slice(texts[i]), &ms) !=
            LK_MALFORMED) {
            fail_msg("%s has a time", texts[i]);
        }
        assert_true(ms == UNTOUCHED);
    }
}

static void assert_text(uint64_t ms, const char *expected)
{
    char text[LK_TIMESTAMP_TEXT + 1];

    latchkey_timestamp_text(ms, text);
    assert_string_equal(text, expected);
}

static void a_time_is_written_as_rfc3339(void **state)
{
    assert_text(0, "1970-01-01T00:00:00.000Z");
    assert_text(1700000000123, "2023-11-14T22:13:20.123Z");
    assert_text(951825600000, "2000-02-29T12:00:00.000Z");
    assert_text(253402300799999, "9999-12-31T23:59:59.999Z");
    assert_text(UINT64_MAX, "9999-12-31T23:59:59.999Z");
}

/* Against the C library, over every day of eight centuries and more. */
static void every_day_is_written_and_read_back(void **state)
{
    for (uint64_t day = 0; day < 330000; day++) {
        uint64_t ms = day * 86400000 + day * 7919 % 86400000;
        uint64_t back = 0;
        time_t seconds = (time_t)(ms / 1000);
        char text[LK_TIMESTAMP_TEXT + 1];
        char expected[64];
        struct tm tm;

        latchkey_timestamp_text(ms, text);
        assert_non_null(gmtime_r(&seconds, &tm));
        assert_true(strftime(expected, sizeof(expected), "%Y-%m-%dT%H:%M:%S",
                             &tm) == 19);
        assert_memory_equal(text, expected, 19);
        assert_int_equal(latchkey_timestamp_parse(latchkey_slice(text), &back),
                         LK_OK);
        assert_true(back == ms);
        assert_true(strftime(expected, sizeof(expected),
                             "%a, %d %b %Y %H:%M:%S GMT", &tm) == 29);
        assert_int_equal(
            latchkey_timestamp_parse(latchkey_slice(expected), &back), LK_OK);
        assert_true(back == ms / 1000 * 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(c39_numbers_are_seconds_or_milliseconds_by_their_size),
        cmocka_unit_test(c39_seconds_may_have_a_fraction_that_is_cut),
        cmocka_unit_test(c39_rfc3339_is_read_with_its_offset),
        cmocka_unit_test(c39_http_dates_are_read),
        cmocka_unit_test(numbers_that_are_no_time_are_refused),
        cmocka_unit_test(dates_that_are_none_are_refused),
        cmocka_unit_test(http_dates_that_are_none_are_refused),
        cmocka_unit_test(a_text_that_is_cut_short_is_never_read_past_its_end),
        cmocka_unit_test(c39_a_uuid_of_version_7_tells_its_time),
        cmocka_unit_test(what_is_no_uuid_of_version_7_has_no_time),
        cmocka_unit_test(a_time_is_written_as_rfc3339),
        cmocka_unit_test(every_day_is_written_and_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
