/* test_resp.c - requests as they may arrive, and the exact bytes of replies. */
#include "lib/resp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct lk_resp_limits limits = {
    .args = 20, .bulk = 1000, .command = 4000};

/* A connection: what has arrived, and what was understood, as text. */
struct reader {
    struct lk_resp_parser parser;
    struct lk_resp_limits limits;
    struct lk_buf pending;
    struct lk_buf seen; /* "[PING][ECHO|hello]" */
    enum lk_resp_result last;
};

static void append(struct lk_buf *to, const void *data, size_t len)
{
    assert_int_equal(latchkey_buf_add(to, data, len), LK_OK);
}

static void note_command(struct reader *reader)
{
    append(&reader->seen, "[", 1);
    for (size_t i = 0; i < reader->parser.argc; i++) {
        struct lk_slice word = reader->parser.argv[i];

        append(&reader->seen, "|", i > 0);
        append(&reader->seen, word.data, word.len);
    }
    append(&reader->seen, "]", 1);
}

/* Bytes arrive. The parser sees them in a block that moves each time. */
static void feed(struct reader *reader, const char *data, size_t len)
{
    assert_int_equal(latchkey_buf_reserve(&reader->pending, len + 1), LK_OK);
    append(&reader->pending, data, len);
    do {
        struct lk_buf *pending = &reader->pending;
        char *moved = malloc(pending->len + 1);
        size_t used;

        assert_non_null(moved);
        memcpy(moved, pending->data, pending->len);
        reader->last =
            lk_resp_parse(&reader->parser, &reader->limits,
                          (struct lk_slice){moved, pending->len}, &used);
        if (reader->last == LK_RESP_COMMAND) {
            note_command(reader);
        }
        memmove(pending->data, pending->data + used, pending->len - used);
        pending->len -= used;
        free(moved);
    } while (reader->last == LK_RESP_COMMAND || reader->last == LK_RESP_EMPTY);
}

static void reader_free(struct reader *reader)
{
    lk_resp_parser_free(&reader->parser);
    latchkey_buf_free(&reader->pending);
    latchkey_buf_free(&reader->seen);
}

static void assert_seen(const struct reader *reader, const char *expected)
{
    struct lk_slice seen = latchkey_buf_slice(&reader->seen);

    if (!latchkey_slice_equal(seen, latchkey_slice(expected))) {
        fail_msg("understood %.*s, not %s", (int)seen.len, seen.data, expected);
    }
}

struct row {
    const char *input;
    const char *expected;
};

static const struct row good[] = {
    {"*1\r\n$4\r\nPING\r\n", "[PING]"},
    {"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n", "[ECHO|hello]"},
    {"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", "[ECHO|]"},
    {"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n", "[ECHO|\r\n\r\n]"},
    {"*2\r\n$4\r\nECHO\r\n$6\r\n*1\r\n$4\r\n", "[ECHO|*1\r\n$4]"},
    {"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", "[PING][QUIT]"},
    {"*0\r\n*1\r\n$4\r\nPING\r\n*0\r\n", "[PING]"},
    {"\r\n\n  \r\n*1\r\n$4\r\nPING\r\n", "[PING]"},
    {"PING\r\n*1\r\n$4\r\nPING\r\nPING\n", "[PING][PING][PING]"},
    {"*01\r\n$004\r\nPING\r\n", "[PING]"},
    {"  echo\t a  b \r\n", "[echo|a|b]"},
    {"echo \"a b\" 'c d'\r\n", "[echo|a b|c d]"},
    {"echo \"\\x41\\n\\r\\t\\\\\\\"\\q\"\r\n", "[echo|A\n\r\t\\\"q]"},
    {"echo \"\\xZZ\" \"\\x4\"\r\n", "[echo|xZZ|x4]"},
    {"echo 'it\\'s' 'a\\n'\r\n", "[echo|it's|a\\n]"},
    {"echo \"\" ''\r\n", "[echo||]"},
    {"echo a\"b c\" d\r\n", "[echo|ab c|d]"},
    {"echo a\rb\r\n", "[echo|a\rb]"},
};

static void feed_split(const struct row *row, size_t first, size_t second)
{
    struct reader reader = {.limits = limits};
    size_t len = strlen(row->input);

    feed(&reader, row->input, first);
    feed(&reader, row->input + first, second - first);
    feed(&reader, row->input + second, len - second);
    assert_int_equal(reader.last, LK_RESP_MORE);
    assert_seen(&reader, row->expected);
    assert_int_equal(reader.pending.len, 0);
    reader_free(&reader);
}

static void commands_are_the_same_however_they_are_split(void **state)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        size_t len = strlen(good[i].input);

        for (size_t first = 0; first <= len; first++) {
            for (size_t second = first; second <= len; second++) {
                feed_split(&good[i], first, second);
            }
        }
    }
}

static void commands_may_arrive_byte_by_byte(void **state)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        struct reader reader = {.limits = limits};

        for (const char *at = good[i].input; *at; at++) {
            feed(&reader, at, 1);
        }
        assert_seen(&reader, good[i].expected);
        reader_free(&reader);
    }
}

static const struct row bad[] = {
    {"*-1\r\n", "expected a digit, got '-'"},
    {"*+1\r\n", "expected a digit, got '+'"},
    {"* 1\r\n", "expected a digit, got byte 0x20"},
    {"*\r\n", "expected a digit, got byte 0x0d"},
    {"*1x\r\n", "expected a digit or CR, got 'x'"},
    {"*1\n", "expected a digit or CR, got byte 0x0a"},
    {"*1\rx", "expected LF after CR, got 'x'"},
    {"*1\r\n:4\r\n", "expected '$', got ':'"},
    {"*1\r\nPING\r\n", "expected '$', got 'P'"},
    {"*1\r\n$-1\r\n", "expected a digit, got '-'"},
    {"*1\r\n$+4\r\nPING\r\n", "expected a digit, got '+'"},
    {"*1\r\n$0x4\r\nPING\r\n", "expected a digit or CR, got 'x'"},
    {"*1\r\n$4\nPING\r\n", "expected a digit or CR, got byte 0x0a"},
    {"*1\r\n$4\r\nPINGS\r\n", "a word does not end with CR LF after 4 bytes"},
    {"*1\r\n$4\r\nPING\rx", "a word does not end with CR LF after 4 bytes"},
    {"*1\r\n$4\r\nPING\n\n", "a word does not end with CR LF after 4 bytes"},
    {"*9999999999999999999\r\n", "a number has too many digits"},
    {"*1\r\n$18446744073709551620\r\n", "a number has too many digits"},
    {"*1000000000\r\n", "a command of 1000000000 words, over the limit of 20"},
    {"*21\r\n", "a command of 21 words, over the limit of 20"},
    {"*1\r\n$1001\r\n", "a word of 1001 bytes is over the limit of 1000"},
    {"*1\r\n$1000000000\r\n",
     "a word of 1000000000 bytes is over the limit of 1000"},
    {"echo \"open\r\n", "unbalanced quotes in request"},
    {"echo 'open\r\n", "unbalanced quotes in request"},
    {"echo \"a\"b\r\n", "unbalanced quotes in request"},
    {"echo \"a\\\r\n", "unbalanced quotes in request"},
    {"a b c d e f g h i j k l m n o p q r s t u\n",
     "more words than the limit of 20"},
    {"POST / HTTP/1.1\r\n", "this port speaks RESP, not HTTP"},
    {"\x16\x03\x01", "expected '*', got byte 0x16"},
};

static void assert_bad(const struct reader *reader, const char *expected)
{
    char text[128];

    assert_int_equal(reader->last, LK_RESP_BAD);
    snprintf(text, sizeof(text), "ERR Protocol error: %s", expected);
    assert_string_equal(reader->parser.error, text);
}

static void malformed_input_is_refused_with_the_reason(void **state)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        size_t len = strlen(bad[i].input);

        for (size_t split = 0; split <= len; split++) {
            struct reader reader = {.limits = limits};

            feed(&reader, bad[i].input, split);
            if (reader.last != LK_RESP_BAD) {
                feed(&reader, bad[i].input + split, len - split);
            }
            assert_bad(&reader, bad[i].expected);
            assert_seen(&reader, "");
            reader_free(&reader);
        }
    }
}

static void a_bad_command_does_not_undo_the_ones_before(void **state)
{
    struct reader reader = {.limits = limits};
    const char *input = "*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$x";

    feed(&reader, input, strlen(input));
    assert_seen(&reader, "[PING][PING]");
    assert_bad(&reader, "expected a digit, got 'x'");
    reader_free(&reader);
}

/* What was announced is within the limits, yet nothing of it has arrived. */
static void memory_follows_what_has_arrived(void **state)
{
    struct reader reader = {
        .limits = {.args = 1000000000, .bulk = SIZE_MAX, .command = SIZE_MAX}};
    const char *header = "*1000000000\r\n$1\r\nx\r\n$400000000000000000\r\n";

    feed(&reader, header, strlen(header));
    assert_int_equal(reader.last, LK_RESP_MORE);
    assert_in_range(reader.parser.argv_cap, 1, 64);
    assert_int_equal(reader.parser.words.cap, 0);
    reader_free(&reader);
}

static void a_long_command_does_not_keep_its_memory(void **state)
{
    struct reader reader = {
        .limits = {.args = 5000, .bulk = 1000, .command = 100000}};
    const char *ping = "*1\r\n$4\r\nPING\r\n";

    feed(&reader, "*5000\r\n", 7);
    for (int i = 0; i < 5000; i++) {
        feed(&reader, "$1\r\nx\r\n", 7);
    }
    assert_int_equal(reader.last, LK_RESP_MORE);
    feed(&reader, ping, strlen(ping));
    assert_in_range(reader.parser.argv_cap, 1, 64);
    reader_free(&reader);
}

/* Framing and all, the command takes 1031 bytes more than its last word. */
static void the_limit_of_a_command_counts_all_its_bytes(void **state)
{
    for (int rest = 974; rest <= 976; rest++) {
        struct reader reader = {
            .limits = {.args = 20, .bulk = 1000, .command = 1031 + 975}};
        char input[4096];
        int len = snprintf(input, sizeof(input),
                           "*3\r\n$4\r\nECHO\r\n$1000\r\n%01000d\r\n$%d\r\n"
                           "%0*d\r\n",
                           0, rest, rest, 0);

        assert_int_equal(len, 1031 + rest);
        feed(&reader, input, (size_t)len);
        if (rest <= 975) {
            assert_int_equal(reader.last, LK_RESP_MORE);
            assert_int_equal(reader.pending.len, 0);
        } else {
            assert_bad(&reader, "the command is over the limit of 2006 bytes");
        }
        reader_free(&reader);
    }
}

static void a_line_without_an_end_is_refused_at_the_limit(void **state)
{
    struct reader reader = {.limits = limits};

    for (size_t i = 0; i < limits.command; i++) {
        assert_int_not_equal(reader.last, LK_RESP_BAD);
        feed(&reader, "x", 1);
        /* No byte is looked at twice. */
        assert_int_equal(reader.parser.offset, reader.pending.len);
    }
    assert_bad(&reader, "a line of more than 4000 bytes");
    reader_free(&reader);
}

/* ---- replies --------------------------------------------------------------
 */

static void assert_written(struct lk_buf *out, enum lk_status status,
                           const char *expected)
{
    assert_int_equal(status, LK_OK);
    assert_int_equal(out->len, strlen(expected));
    assert_memory_equal(out->data, expected, out->len);
    out->len = 0;
}

static void replies_have_the_bytes_of_the_protocol(void **state)
{
    struct lk_buf out = {0};

    assert_written(&out, lk_resp_simple(&out, "OK"), "+OK\r\n");
    assert_written(&out, lk_resp_error(&out, LK_SLICE("ERR no")),
                   "-ERR no\r\n");
    assert_written(&out, lk_resp_bulk(&out, LK_SLICE("hello")),
                   "$5\r\nhello\r\n");
    assert_written(&out, lk_resp_bulk(&out, (struct lk_slice){0}),
                   "$0\r\n\r\n");
    assert_written(&out, lk_resp_nil(&out, 2), "$-1\r\n");
    assert_written(&out, lk_resp_nil(&out, 3), "_\r\n");
    assert_written(&out, lk_resp_array(&out, 0), "*0\r\n");
    assert_written(&out, lk_resp_array(&out, 12), "*12\r\n");
    assert_written(&out, lk_resp_map(&out, 2, 3), "*6\r\n");
    assert_written(&out, lk_resp_map(&out, 3, 3), "%3\r\n");
    assert_written(&out, lk_resp_push(&out, 2, 3), "*3\r\n");
    assert_written(&out, lk_resp_push(&out, 3, 2), ">2\r\n");
    latchkey_buf_free(&out);
}

static void integers_are_exact_to_their_ends(void **state)
{
    struct lk_buf out = {0};

    assert_written(&out, lk_resp_integer(&out, 0), ":0\r\n");
    assert_written(&out, lk_resp_integer(&out, -1), ":-1\r\n");
    assert_written(&out, lk_resp_integer(&out, 10), ":10\r\n");
    assert_written(&out, lk_resp_integer(&out, INT64_MAX),
                   ":9223372036854775807\r\n");
    assert_written(&out, lk_resp_integer(&out, INT64_MIN),
                   ":-9223372036854775808\r\n");
    latchkey_buf_free(&out);
}

static void an_error_is_one_line_whatever_it_quotes(void **state)
{
    struct lk_buf out = {0};

    assert_written(&out,
                   lk_resp_error(&out, LK_SLICE("ERR a\r\n+OK\r\n\x7f\x01z")),
                   "-ERR a  +OK    z\r\n");
    latchkey_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_are_the_same_however_they_are_split),
        cmocka_unit_test(commands_may_arrive_byte_by_byte),
        cmocka_unit_test(malformed_input_is_refused_with_the_reason),
        cmocka_unit_test(a_bad_command_does_not_undo_the_ones_before),
        cmocka_unit_test(memory_follows_what_has_arrived),
        cmocka_unit_test(a_long_command_does_not_keep_its_memory),
        cmocka_unit_test(the_limit_of_a_command_counts_all_its_bytes),
        cmocka_unit_test(a_line_without_an_end_is_refused_at_the_limit),
        cmocka_unit_test(replies_have_the_bytes_of_the_protocol),
        cmocka_unit_test(integers_are_exact_to_their_ends),
        cmocka_unit_test(an_error_is_one_line_whatever_it_quotes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
