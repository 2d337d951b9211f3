/* test_reply.c - replies as they may arrive, and the verdicts in them. */
#include "lib/resp.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 16 };

static void append(struct lk_buf *to, const char *data, size_t len)
{
    assert_int_equal(latchkey_buf_add(to, data, len), LK_OK);
}

/* The reply as text: (1 'text' !ERR nil ()) */
static void show(struct lk_buf *to, const struct lk_reply *reply)
{
    char number[24];

    switch (reply->type) {
    case LK_REPLY_NIL:
        append(to, "nil", 3);
        break;
    case LK_REPLY_INTEGER:
        snprintf(number, sizeof(number), "%" PRId64, reply->integer);
        append(to, number, strlen(number));
        break;
    case LK_REPLY_ERROR:
        append(to, "!", 1);
        append(to, reply->text.data, reply->text.len);
        break;
    case LK_REPLY_TEXT:
        append(to, "'", 1);
        append(to, reply->text.data, reply->text.len);
        append(to, "'", 1);
        break;
    case LK_REPLY_ARRAY:
        append(to, "(", 1);
        for (size_t i = 0; i < reply->count; i++) {
            append(to, " ", i > 0);
            show(to, &reply->elements[i]);
        }
        append(to, ")", 1);
        break;
    }
}

/* A copy of the exact size, so that a sanitizer sees what reads beyond. */
static enum lk_status read_copy(const char *data, size_t len,
                                struct lk_buf *seen, size_t *used)
{
    struct lk_reply nodes[NODES];
    char *exact = malloc(len ? len : 1);
    enum lk_status status;

    assert_non_null(exact);
    memcpy(exact, data, len);
    status =
        latchkey_reply_read((struct lk_slice){exact, len}, nodes, NODES, used);
    if (status == LK_OK && seen) {
        show(seen, &nodes[0]);
    }
    free(exact);
    return status;
}

struct row {
    const char *input;
    const char *expected;
};

static const struct row good[] = {
    {"+OK\r\n", "'OK'"},
    {"+\r\n", "''"},
    {"-ERR it is so\r\n", "!ERR it is so"},
    {":0\r\n", "0"},
    {":-1\r\n", "-1"},
    {":9223372036854775807\r\n", "9223372036854775807"},
    {":-9223372036854775808\r\n", "-9223372036854775808"},
    {"$0\r\n\r\n", "''"},
    {"$5\r\nhello\r\n", "'hello'"},
    {"$6\r\n+OK\r\n*\r\n", "'+OK\r\n*'"},
    {"$-1\r\n", "nil"},
    {"*-1\r\n", "nil"},
    {"*0\r\n", "()"},
    {"*5\r\n$3\r\nNEW\r\n:7\r\n:9\r\n:1\r\n$1\r\nR\r\n", "('NEW' 7 9 1 'R')"},
    {"*3\r\n*2\r\n:1\r\n:2\r\n+x\r\n*1\r\n$1\r\ny\r\n", "((1 2) 'x' ('y'))"},
    {"*3\r\n$7\r\nmessage\r\n$7\r\nsettled\r\n$2\r\n17\r\n",
     "('message' 'settled' '17')"},
};

#define EACH(row, table)                                                       \
    (const struct row *row = (table);                                          \
     row < (table) + sizeof(table) / sizeof((table)[0]); row++)

static void a_reply_says_how_many_bytes_it_has(void **state)
{
    for
        EACH(row, good)
        {
            struct lk_buf seen = {0};
            struct lk_buf bytes = {0};
            size_t len = strlen(row->input);
            size_t used;

            append(&bytes, row->input, len);
            append(&bytes, "+NEXT\r\n", 7);
            assert_int_equal(read_copy(bytes.data, bytes.len, &seen, &used),
                             LK_OK);
            assert_int_equal(used, len);
            assert_true(latchkey_slice_equal(latchkey_buf_slice(&seen),
                                             latchkey_slice(row->expected)));
            latchkey_buf_free(&seen);
            latchkey_buf_free(&bytes);
        }
}

static void a_reply_is_incomplete_until_its_last_byte(void **state)
{
    for
        EACH(row, good)
        {
            size_t len = strlen(row->input);

            for (size_t here = 0; here < len; here++) {
                size_t need = 0;

                if (read_copy(row->input, here, NULL, &need) != LK_AGAIN) {
                    fail_msg("%s after %zu bytes", row->expected, here);
                }
                /* It never asks for what may not come. */
                assert_true(need > here && need <= len);
            }
        }
}

static void a_long_text_is_not_read_again_before_it_is_there(void **state)
{
    static const char start[] = "*2\r\n:1\r\n$1000000\r\nab";
    size_t need;

    assert_int_equal(read_copy(start, sizeof(start) - 1, NULL, &need),
                     LK_AGAIN);
    assert_int_equal(need, strlen("*2\r\n:1\r\n$1000000\r\n") + 1000000 + 2);
}

static const char *const bad[] = {
    "OK\r\n",
    "\r\n",
    "%1\r\n",
    ">2\r\n",
    "_\r\n",
    ":\r\n",
    ":-\r\n",
    ":+1\r\n",
    ":1a\r\n",
    ": 1\r\n",
    ":1\n",
    ":1\rx",
    ":9223372036854775808\r\n",
    ":-9223372036854775809\r\n",
    ":99999999999999999999\r\n",
    "$-2\r\n",
    "$\r\n",
    "$3\r\nabcd\r\n",
    "$3\r\nabc\n\r",
    "$3\r\nabc\rx",
    "*-2\r\n",
    "*1x\r\n",
    "*1\r\n*1\r\n*0\r\n",
    "*2\r\n:1\r\n?\r\n",
    "+a\nb\r\n",
    "+a\rb\r\n",
};

static void what_is_no_reply_is_malformed_however_it_is_split(void **state)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        enum lk_status last = LK_AGAIN;
        size_t len = strlen(bad[i]);
        size_t used;

        for (size_t here = 0; here <= len; here++) {
            enum lk_status status = read_copy(bad[i], here, NULL, &used);

            if (status != last &&
                (last != LK_AGAIN || status != LK_MALFORMED)) {
                fail_msg("\"%s\" after %zu bytes: %s", bad[i], here,
                         latchkey_status_name(status));
            }
            last = status;
        }
        assert_int_equal(last, LK_MALFORMED);
    }
}

static void what_is_too_large_is_refused_when_it_is_announced(void **state)
{
    static const char *const large[] = {
        "*16\r\n",       "*1000000000\r\n", "*9223372036854775807\r\n",
        "*2\r\n*14\r\n", "$1073741825\r\n", "$9223372036854775807\r\n",
        "*15\r\n*1\r\n",
    };

    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        size_t used;

        if (read_copy(large[i], strlen(large[i]), NULL, &used) !=
            LK_TOO_LARGE) {
            fail_msg("%s", large[i]);
        }
    }
}

static void as_many_nodes_as_there_are_can_be_used(void **state)
{
    static const char full[] = "*2\r\n*13\r\n";
    struct lk_buf bytes = {0};
    struct lk_buf seen = {0};
    size_t used;

    append(&bytes, full, sizeof(full) - 1);
    for (int i = 0; i < 14; i++) {
        append(&bytes, ":1\r\n", 4);
    }
    assert_int_equal(read_copy(bytes.data, bytes.len, &seen, &used), LK_OK);
    assert_int_equal(used, bytes.len);
    assert_int_equal(seen.len, strlen("((1 1 1 1 1 1 1 1 1 1 1 1 1) 1)"));
    latchkey_buf_free(&seen);
    latchkey_buf_free(&bytes);
}

static void a_line_without_an_end_is_refused_at_the_limit(void **state)
{
    size_t len = 64 * 1024;
    char *line = malloc(len + 1);
    size_t used;

    assert_non_null(line);
    memset(line, 'a', len + 1);
    line[0] = '-';
    assert_int_equal(read_copy(line, len, NULL, &used), LK_AGAIN);
    assert_int_equal(read_copy(line, len + 1, NULL, &used), LK_TOO_LARGE);
    free(line);
}

static void texts_lie_where_they_were_received(void **state)
{
    static const char bytes[] = "*2\r\n+a\r\n$3\r\nxyz\r\n";
    struct lk_reply nodes[3];
    size_t used;

    assert_int_equal(
        latchkey_reply_read((struct lk_slice){bytes, sizeof(bytes) - 1}, nodes,
                            3, &used),
        LK_OK);
    assert_ptr_equal(nodes[0].elements, &nodes[1]);
    assert_ptr_equal(nodes[1].text.data, strchr(bytes, 'a'));
    assert_ptr_equal(nodes[2].text.data, strchr(bytes, 'x'));
    assert_int_equal(
        latchkey_reply_read((struct lk_slice){bytes, sizeof(bytes) - 1}, nodes,
                            0, &used),
        LK_INVALID);
}

/* ---- The reader of a connection -------------------------------------------
 */

static void give_bytes(struct lk_resp_reader *reader, const char *data,
                       size_t len)
{
    while (len > 0) {
        char *room;
        size_t size;

        assert_int_equal(lk_resp_reader_room(reader, &room, &size), LK_OK);
        size = size < len ? size : len;
        memcpy(room, data, size);
        lk_resp_reader_fill(reader, size);
        data += size;
        len -= size;
    }
}

static void a_reader_gives_the_same_replies_however_they_are_split(void **state)
{
    struct lk_buf bytes = {0}, expected = {0};

    for
        EACH(row, good)
        {
            append(&bytes, row->input, strlen(row->input));
            append(&expected, row->expected, strlen(row->expected));
        }
    append(&bytes, "*1\r\n*2\r\n*1\r\n*1\r\n:5\r\n+x\r\n", 24);
    append(&expected, "((((5)) 'x'))", 13);
    for (size_t step = 1; step <= bytes.len; step++) {
        struct lk_resp_reader reader = {0};
        const struct lk_reply *reply;
        struct lk_buf seen = {0};
        enum lk_status status = LK_OK;

        for (size_t at = 0; at < bytes.len; at += step) {
            size_t more = bytes.len - at < step ? bytes.len - at : step;

            give_bytes(&reader, bytes.data + at, more);
            while (!(status = lk_resp_reader_next(&reader, &reply))) {
                show(&seen, reply);
            }
            assert_int_equal(status, LK_AGAIN);
        }
        assert_true(latchkey_slice_equal(latchkey_buf_slice(&seen),
                                         latchkey_buf_slice(&expected)));
        latchkey_buf_free(&seen);
        lk_resp_reader_free(&reader);
    }
    latchkey_buf_free(&bytes);
    latchkey_buf_free(&expected);
}

static void a_reader_takes_thousands_of_elements(void **state)
{
    enum { COUNT = 100000 };
    struct lk_resp_reader reader = {0};
    const struct lk_reply *reply = NULL;
    struct lk_buf bytes = {0};

    append(&bytes, "*100000\r\n", 9);
    for (int i = 0; i < COUNT; i++) {
        append(&bytes, "*2\r\n:7\r\n$2\r\nab\r\n", 16);
    }
    for (size_t at = 0; at < bytes.len; at += 1000) {
        size_t left = bytes.len - at;

        assert_int_not_equal(lk_resp_reader_next(&reader, &reply), LK_OK);
        give_bytes(&reader, bytes.data + at, left < 1000 ? left : 1000);
    }
    assert_int_equal(lk_resp_reader_next(&reader, &reply), LK_OK);
    assert_int_equal(reply->count, COUNT);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(reply->elements[i].elements[0].integer, 7);
        assert_string_equal(reply->elements[i].elements[1].text.data, "ab");
    }
    lk_resp_reader_free(&reader);
    latchkey_buf_free(&bytes);
}

static void bytes_that_come_later_leave_a_reply_as_it_is(void **state)
{
    static const char first[] = "*2\r\n*1\r\n+a\r\n$2\r\nbc\r\n";
    enum { COUNT = 20000 };
    struct lk_resp_reader reader = {0};
    const struct lk_reply *reply = NULL, *next;

    give_bytes(&reader, first, strlen(first));
    give_bytes(&reader, "+par", 4);
    assert_int_equal(lk_resp_reader_next(&reader, &reply), LK_OK);
    give_bytes(&reader, "t\r\n", 3);
    for (int i = 0; i < COUNT; i++) {
        give_bytes(&reader, "+more\r\n", 7);
    }
    assert_string_equal(reply->elements[0].elements[0].text.data, "a");
    assert_string_equal(reply->elements[1].text.data, "bc");
    assert_int_equal(lk_resp_reader_next(&reader, &next), LK_OK);
    assert_string_equal(next->text.data, "part");
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(lk_resp_reader_next(&reader, &next), LK_OK);
        assert_string_equal(next->text.data, "more");
    }
    assert_int_equal(lk_resp_reader_next(&reader, &next), LK_AGAIN);
    lk_resp_reader_free(&reader);
}

static void what_is_announced_takes_no_memory(void **state)
{
    static const struct {
        const char *bytes;
        enum lk_status status;
    } rows[] = {
        {"*4194304\r\n", LK_AGAIN},
        {"*4194305\r\n", LK_TOO_LARGE},
        {"*9223372036854775807\r\n", LK_TOO_LARGE},
        {"$1073741824\r\n", LK_AGAIN},
        {"$1073741825\r\n", LK_TOO_LARGE},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
         LK_MALFORMED},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lk_resp_reader reader = {0};
        const struct lk_reply *reply;
        char *room;
        size_t size;

        give_bytes(&reader, rows[i].bytes, strlen(rows[i].bytes));
        assert_int_equal(lk_resp_reader_next(&reader, &reply), rows[i].status);
        assert_int_equal(lk_resp_reader_room(&reader, &room, &size), LK_OK);
        assert_true(reader.in.cap <= 256 * 1024 && reader.cap <= 1024);
        lk_resp_reader_free(&reader);
    }
}

/* ---- Verdicts -------------------------------------------------------------
 */

static enum lk_status read_answer(const char *bytes, struct lk_decision *answer)
{
    struct lk_reply nodes[NODES];
    size_t used;

    assert_int_equal(
        latchkey_reply_read(latchkey_slice(bytes), nodes, NODES, &used), LK_OK);
    assert_int_equal(used, strlen(bytes));
    memset(answer, 0xff, sizeof(*answer));
    return latchkey_decision_read(&nodes[0], answer);
}

static void assert_text(struct lk_slice text, const char *expected)
{
    assert_true(latchkey_slice_equal(text, latchkey_slice(expected)));
}

static void a_verdict_is_read_without_a_client(void **state)
{
    struct lk_decision answer;

    assert_int_equal(
        read_answer("*5\r\n$3\r\nNEW\r\n:7\r\n:90\r\n:2\r\n$1\r\nR\r\n",
                    &answer),
        LK_OK);
    assert_int_equal(answer.verdict, LK_VERDICT_NEW);
    assert_int_equal(answer.token, 7);
    assert_int_equal(answer.lock_until_ms, 90);
    assert_int_equal(answer.attempt, 2);
    assert_text(answer.reference, "R");
    assert_int_equal(answer.expires_ms, 0);
    assert_int_equal(
        read_answer("*7\r\n$4\r\nKEPT\r\n:201\r\n$1\r\nH\r\n$2\r\nBB\r\n"
                    ":5\r\n:6\r\n$1\r\nR\r\n",
                    &answer),
        LK_OK);
    assert_int_equal(answer.verdict, LK_VERDICT_KEPT);
    assert_int_equal(answer.response.status, 201);
    assert_text(answer.response.headers, "H");
    assert_text(answer.response.body, "BB");
    assert_int_equal(answer.completed_ms, 5);
    assert_int_equal(answer.expires_ms, 6);
    assert_int_equal(read_answer("+OK\r\n", &answer), LK_OK);
    assert_int_equal(answer.verdict, LK_VERDICT_DONE);
    assert_int_equal(read_answer("+STALE\r\n", &answer), LK_OK);
    assert_int_equal(answer.verdict, LK_VERDICT_STALE);
}

/* C19: nothing that is no verdict may be taken for NEW. */
static void what_is_no_verdict_is_never_new(void **state)
{
    static const struct {
        const char *bytes;
        enum lk_status status;
    } rows[] = {
        {"-UNAVAILABLE the disk is full\r\n", LK_UNAVAILABLE},
        {"-UNAVAILABLE\r\n", LK_UNAVAILABLE},
        {"-UNAVAILABLEX no\r\n", LK_REPLY},
        {"-ERR wrong\r\n", LK_REPLY},
        {"-\r\n", LK_REPLY},
        {"$-1\r\n", LK_MALFORMED},
        {"*0\r\n", LK_MALFORMED},
        {":1\r\n", LK_MALFORMED},
        {"+NEW\r\n", LK_MALFORMED},
        {"+PONG\r\n", LK_MALFORMED},
        {"*1\r\n*1\r\n$3\r\nNEW\r\n", LK_MALFORMED},
        {"*4\r\n$3\r\nNEW\r\n:7\r\n:90\r\n:2\r\n", LK_MALFORMED},
        {"*5\r\n$3\r\nNEW\r\n:7\r\n:90\r\n:2\r\n:3\r\n", LK_MALFORMED},
        {"*5\r\n$3\r\nNEW\r\n:-7\r\n:90\r\n:2\r\n$1\r\nR\r\n", LK_MALFORMED},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lk_decision answer;

        assert_int_equal(read_answer(rows[i].bytes, &answer), rows[i].status);
        assert_int_equal(answer.verdict, LK_VERDICT_NIL);
        assert_int_equal(answer.token, 0);
        assert_int_equal(answer.reference.len, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reply_says_how_many_bytes_it_has),
        cmocka_unit_test(a_reply_is_incomplete_until_its_last_byte),
        cmocka_unit_test(a_long_text_is_not_read_again_before_it_is_there),
        cmocka_unit_test(what_is_no_reply_is_malformed_however_it_is_split),
        cmocka_unit_test(what_is_too_large_is_refused_when_it_is_announced),
        cmocka_unit_test(as_many_nodes_as_there_are_can_be_used),
        cmocka_unit_test(a_line_without_an_end_is_refused_at_the_limit),
        cmocka_unit_test(texts_lie_where_they_were_received),
        cmocka_unit_test(
            a_reader_gives_the_same_replies_however_they_are_split),
        cmocka_unit_test(a_reader_takes_thousands_of_elements),
        cmocka_unit_test(bytes_that_come_later_leave_a_reply_as_it_is),
        cmocka_unit_test(what_is_announced_takes_no_memory),
        cmocka_unit_test(a_verdict_is_read_without_a_client),
        cmocka_unit_test(what_is_no_verdict_is_never_new),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
