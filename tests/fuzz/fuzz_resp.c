/*
 * fuzz_resp.c - bytes from the network: never a fault, and the same commands
 * however they are split.
 */
#include "lib/resp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct lk_resp_limits limits = {
    .args = 40, .bulk = 600, .command = 2000};

static void check(bool truth, const char *what)
{
    if (!truth) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static void append(struct lk_buf *to, const void *data, size_t len)
{
    check(latchkey_buf_add(to, data, len) == LK_OK, "memory");
}

/* Everything that was understood, in a form that can be compared. */
static void record(struct lk_buf *log, const struct lk_resp_parser *parser)
{
    check(parser->argc >= 1 && parser->argc <= limits.args, "argc");
    append(log, "C", 1);
    for (size_t i = 0; i < parser->argc; i++) {
        struct lk_slice word = parser->argv[i];

        check(word.len <= limits.bulk, "length of a word");
        append(log, &word.len, sizeof(word.len));
        append(log, word.data, word.len);
    }
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Takes commands from `pending`; false when the connection is to be closed. */
static bool take(struct lk_resp_parser *parser, struct lk_buf *pending,
                 struct lk_buf *log)
{
    for (;;) {
        /* A copy of exactly the right size lets the sanitizer see overruns,
         * and moves the input between calls. */
        size_t len = pending->len;
        char *exact = malloc(len ? len : 1);
        enum lk_resp_result result;
        size_t used;

        check(exact != NULL, "memory");
        memcpy(exact, pending->data, len);
        result = lk_resp_parse(parser, &limits, (struct lk_slice){exact, len},
                               &used);
        check(result != LK_RESP_NOMEM, "memory");
        check(parser->argv_cap <= 64 || parser->argv_cap <= len,
              "memory by what has arrived");
        if (result == LK_RESP_COMMAND) {
            record(log, parser);
        }
        free(exact);
        if (result == LK_RESP_BAD) {
            append(log, parser->error, strlen(parser->error));
            return false;
        }
        if (result == LK_RESP_MORE) {
            return true;
        }
        check(used > 0 && used <= len, "used");
        memmove(pending->data, pending->data + used, len - used);
        pending->len -= used;
    }
}

static void feed(const uint8_t *data, size_t size, uint32_t seed, size_t most,
                 struct lk_buf *log)
{
    struct lk_resp_parser parser = {0};
    struct lk_buf pending = {0};
    size_t done = 0;

    append(&pending, "", 0);
    check(latchkey_buf_reserve(&pending, 1) == LK_OK, "memory");
    while (done < size) {
        size_t more = 1 + next_random(&seed) % most;

        if (more > size - done) {
            more = size - done;
        }
        append(&pending, data + done, more);
        done += more;
        if (!take(&parser, &pending, log)) {
            break;
        }
    }
    lk_resp_parser_free(&parser);
    latchkey_buf_free(&pending);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t most[] = {1, 7, 64, 100000};
    struct lk_buf first = {0};
    uint32_t seed = 1;

    if (size < 1) {
        return 0;
    }
    seed += data[0];
    feed(data + 1, size - 1, seed, size, &first);
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        struct lk_buf other = {0};

        feed(data + 1, size - 1, seed + 1 + (uint32_t)i, most[i], &other);
        check(latchkey_slice_equal(latchkey_buf_slice(&first),
                                   latchkey_buf_slice(&other)),
              "the same commands however split");
        latchkey_buf_free(&other);
    }
    latchkey_buf_free(&first);
    return 0;
}
