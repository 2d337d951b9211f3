/*
 * fuzz_reply.c - replies from the network: never a fault, the same replies
 * however they are split and by either reader, and never a verdict from an
 * error.
 */
#include "lib/resp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { NODES = 24 };

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
static void record(struct lk_buf *log, const struct lk_reply *reply,
                   const struct lk_reply *nodes, int depth)
{
    append(log, &reply->type, sizeof(reply->type));
    append(log, &reply->integer, sizeof(reply->integer));
    append(log, &reply->text.len, sizeof(reply->text.len));
    append(log, reply->text.data, reply->text.len);
    check(depth <= 2, "depth");
    check(reply->count == 0 ||
              (reply->elements > nodes &&
               reply->elements + reply->count <= nodes + NODES),
          "elements lie in the nodes");
    for (size_t i = 0; i < reply->count; i++) {
        record(log, &reply->elements[i], nodes, depth + 1);
    }
}

static void record_any(struct lk_buf *log, const struct lk_reply *reply,
                       int depth)
{
    append(log, &reply->type, sizeof(reply->type));
    append(log, &reply->integer, sizeof(reply->integer));
    append(log, &reply->text.len, sizeof(reply->text.len));
    append(log, reply->text.data, reply->text.len);
    check(!reply->text.data || !reply->text.data[reply->text.len], "a NUL");
    check(depth <= LK_RESP_DEPTH_MAX, "depth of a reader");
    for (size_t i = 0; i < reply->count; i++) {
        record_any(log, &reply->elements[i], depth + 1);
    }
}

/* The same with the reader that owns its bytes. Returns what ended it. */
static enum lk_status feed_reader(const uint8_t *data, size_t size,
                                  uint32_t seed, size_t most,
                                  struct lk_buf *log)
{
    struct lk_resp_reader reader = {0};
    enum lk_status status = LK_AGAIN;
    size_t done = 0;

    while (done < size && status == LK_AGAIN) {
        size_t more, room;
        char *to;

        seed = seed * 1664525 + 1013904223;
        more = 1 + (seed >> 8) % most;
        check(lk_resp_reader_room(&reader, &to, &room) == LK_OK, "memory");
        more = more > size - done ? size - done : more;
        more = more > room ? room : more;
        memcpy(to, data + done, more);
        done += more;
        lk_resp_reader_fill(&reader, more);
        const struct lk_reply *reply;
        while ((status = lk_resp_reader_next(&reader, &reply)) == LK_OK) {
            struct lk_reply *copy = lk_reply_copy(reply);
            struct lk_buf copied = {0};
            size_t mark = log->len;

            check(copy != NULL, "memory");
            record_any(log, reply, 0);
            record_any(&copied, copy, 0);
            check(copied.len == log->len - mark &&
                      !memcmp(copied.data, log->data + mark, copied.len),
                  "a copy is the same");
            latchkey_buf_free(&copied);
            free(copy);
        }
        check(reader.count <= size && reader.in.len <= size, "bounded");
    }
    lk_resp_reader_free(&reader);
    return status;
}

static void judge(const struct lk_reply *reply)
{
    struct lk_decision answer;
    enum lk_status status = latchkey_decision_read(reply, &answer);

    if (status != LK_OK) {
        check(answer.verdict == LK_VERDICT_NIL, "no verdict");
    } else {
        check(reply->type != LK_REPLY_ERROR, "an error is no verdict");
    }
}

/* Takes replies from `pending`; false when the connection is to be closed. */
static bool take(struct lk_buf *pending, size_t *need, struct lk_buf *log)
{
    while (pending->len > 0 && pending->len >= *need) {
        struct lk_reply nodes[NODES];
        size_t len = pending->len;
        char *exact = malloc(len);
        size_t used;

        check(exact != NULL, "memory");
        memcpy(exact, pending->data, len);
        enum lk_status status = latchkey_reply_read(
            (struct lk_slice){exact, len}, nodes, NODES, &used);
        if (status == LK_OK) {
            check(used > 0 && used <= len, "used");
            record(log, &nodes[0], nodes, 0);
            judge(&nodes[0]);
        }
        free(exact);
        if (status == LK_AGAIN) {
            check(used > len, "more is needed");
            *need = used;
            return true;
        }
        if (status != LK_OK) {
            append(log, &status, sizeof(status));
            return false;
        }
        *need = 0;
        memmove(pending->data, pending->data + used, len - used);
        pending->len -= used;
    }
    return true;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static void feed(const uint8_t *data, size_t size, uint32_t seed, size_t most,
                 struct lk_buf *log)
{
    struct lk_buf pending = {0};
    size_t done = 0;
    size_t need = 0;

    while (done < size) {
        size_t more = 1 + next_random(&seed) % most;

        if (more > size - done) {
            more = size - done;
        }
        append(&pending, data + done, more);
        done += more;
        if (!take(&pending, &need, log)) {
            break;
        }
    }
    latchkey_buf_free(&pending);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t most[] = {1, 7, 64};
    struct lk_buf first = {0};

    if (size < 2) {
        return 0;
    }
    feed(data + 1, size - 1, data[0], size, &first);
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        struct lk_buf other = {0};

        feed(data + 1, size - 1, data[0] + 1U + (uint32_t)i, most[i], &other);
        check(latchkey_slice_equal(latchkey_buf_slice(&first),
                                   latchkey_buf_slice(&other)),
              "the same replies however split");
        latchkey_buf_free(&other);
    }
    struct lk_buf owned = {0};
    enum lk_status status =
        feed_reader(data + 1, size - 1, data[0], size, &owned);
    /* The other one ends with a status, and reads less deep. */
    size_t same = first.len < sizeof(status) ? 0 : first.len - sizeof(status);
    same = same < owned.len ? same : owned.len;
    check(same == 0 || !memcmp(first.data, owned.data, same),
          "the same replies by either reader");
    for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
        struct lk_buf other = {0};

        check(feed_reader(data + 1, size - 1, data[0] + 1U + (uint32_t)i,
                          most[i], &other) == status &&
                  latchkey_slice_equal(latchkey_buf_slice(&owned),
                                       latchkey_buf_slice(&other)),
              "the same by a reader however split");
        latchkey_buf_free(&other);
    }
    latchkey_buf_free(&owned);
    latchkey_buf_free(&first);
    return 0;
}
