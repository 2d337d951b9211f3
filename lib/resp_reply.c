/*
 * resp_reply.c - replies of the daemon (RESP2) read where they lie, without
 * copies and without memory of its own.
 *
 * Everything is read strictly from left to right, each time from the start:
 * the same bytes give the same reply however they were split. What is missing
 * of a long text is told, so that nobody reads in vain.
 */
#include "latchkey.h"

#include <string.h>

enum {
    DEPTH_MAX = 2,        /* an array in an array, and no deeper */
    LINE_MAX = 64 * 1024, /* a simple string or an error */
    DIGITS_MAX = 19,      /* as many as 2^63 has */
    TEXT_MAX = 1024 * 1024 * 1024,
};

struct reader {
    struct lk_slice bytes;
    size_t at;   /* behind what has been read */
    size_t need; /* LK_AGAIN: there must be so many bytes at least */
    struct lk_reply *nodes;
    size_t node_count;
    size_t node_max;
};

static enum lk_status want(struct reader *reader, size_t more)
{
    reader->need = reader->at + more;
    return LK_AGAIN;
}

static size_t left(const struct reader *reader)
{
    return reader->bytes.len - reader->at;
}

static enum lk_status read_newline(struct reader *reader)
{
    const char *at = reader->bytes.data + reader->at;

    if ((left(reader) > 0 && at[0] != '\r') ||
        (left(reader) > 1 && at[1] != '\n')) {
        return LK_MALFORMED;
    }
    if (left(reader) < 2) {
        return want(reader, 2);
    }
    reader->at += 2;
    return LK_OK;
}

/* "[-]<digits>\r\n" */
static enum lk_status read_number(struct reader *reader, int64_t *number)
{
    const char *data = reader->bytes.data;
    size_t at = reader->at;
    size_t end = reader->bytes.len;
    bool negative = at < end && data[at] == '-';
    uint64_t value = 0;

    at += negative;
    size_t start = at;
    for (; at < end && data[at] >= '0' && data[at] <= '9'; at++) {
        if (at - start == DIGITS_MAX) {
            return LK_MALFORMED;
        }
        value = value * 10 + (uint64_t)(data[at] - '0');
    }
    if (value > (uint64_t)INT64_MAX + negative) {
        return LK_MALFORMED;
    }
    if (at == end) {
        return want(reader, at + 1 - reader->at);
    }
    if (at == start) {
        return LK_MALFORMED;
    }
    reader->at = at;
    *number = (int64_t)(negative ? 0 - value : value);
    return read_newline(reader);
}

/* The rest of a line, which holds neither CR nor LF. */
static enum lk_status read_line(struct reader *reader, struct lk_slice *text)
{
    const char *start = reader->bytes.data + reader->at;
    size_t most = left(reader) < LINE_MAX ? left(reader) : LINE_MAX;
    const char *cr = most > 0 ? memchr(start, '\r', most) : NULL;
    size_t len = cr ? (size_t)(cr - start) : most;

    if (len > 0 && memchr(start, '\n', len)) {
        return LK_MALFORMED;
    }
    if (len == LINE_MAX) {
        return LK_TOO_LARGE;
    }
    if (!cr) {
        return want(reader, left(reader) + 1);
    }
    *text = (struct lk_slice){start, len};
    reader->at += len;
    return read_newline(reader);
}

/* "<length>\r\n", the bytes and CR LF; "-1\r\n" is nil. */
static enum lk_status read_bulk(struct reader *reader, struct lk_reply *reply)
{
    int64_t length = 0;
    enum lk_status status = read_number(reader, &length);

    if (status) {
        return status;
    }
    if (length == -1) {
        reply->type = LK_REPLY_NIL;
        return LK_OK;
    }
    if (length < 0 || length > TEXT_MAX) {
        return length < 0 ? LK_MALFORMED : LK_TOO_LARGE;
    }
    size_t len = (size_t)length;
    if (left(reader) < len + 2) {
        return want(reader, len + 2);
    }
    reply->type = LK_REPLY_TEXT;
    reply->text = (struct lk_slice){reader->bytes.data + reader->at, len};
    reader->at += len;
    return read_newline(reader);
}

static enum lk_status read_reply(struct reader *reader, struct lk_reply *reply,
                                 int depth);

/* The elements lie side by side; what is in them comes behind. */
static enum lk_status read_array(struct reader *reader, struct lk_reply *reply,
                                 int depth)
{
    int64_t count = 0;
    enum lk_status status = read_number(reader, &count);

    if (status) {
        return status;
    }
    if (count == -1) {
        reply->type = LK_REPLY_NIL;
        return LK_OK;
    }
    if (count < 0 || depth == DEPTH_MAX) {
        return LK_MALFORMED;
    }
    if ((uint64_t)count > reader->node_max - reader->node_count) {
        return LK_TOO_LARGE;
    }
    reply->type = LK_REPLY_ARRAY;
    reply->count = (size_t)count;
    reply->elements = count > 0 ? reader->nodes + reader->node_count : NULL;
    reader->node_count += reply->count;
    for (size_t i = 0; i < reply->count && !status; i++) {
        status = read_reply(reader, &reply->elements[i], depth + 1);
    }
    return status;
}

static enum lk_status read_reply(struct reader *reader, struct lk_reply *reply,
                                 int depth)
{
    *reply = (struct lk_reply){0};
    if (left(reader) == 0) {
        return want(reader, 1);
    }
    switch (reader->bytes.data[reader->at++]) {
    case '+':
        reply->type = LK_REPLY_TEXT;
        return read_line(reader, &reply->text);
    case '-':
        reply->type = LK_REPLY_ERROR;
        return read_line(reader, &reply->text);
    case ':':
        reply->type = LK_REPLY_INTEGER;
        return read_number(reader, &reply->integer);
    case '$':
        return read_bulk(reader, reply);
    case '*':
        return read_array(reader, reply, depth);
    }
    return LK_MALFORMED;
}

enum lk_status latchkey_reply_read(struct lk_slice bytes,
                                   struct lk_reply *nodes, size_t node_max,
                                   size_t *used)
{
    struct reader reader = {
        .bytes = bytes, .nodes = nodes, .node_count = 1, .node_max = node_max};

    *used = 0;
    if (node_max == 0) {
        return LK_INVALID;
    }
    enum lk_status status = read_reply(&reader, &nodes[0], 0);
    if (status == LK_OK) {
        *used = reader.at;
    } else if (status == LK_AGAIN) {
        *used = reader.need;
    }
    return status;
}
