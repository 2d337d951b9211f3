/*
 * resp_reply.c - replies (RESP2) read where they are, in two ways.
 *
 * latchkey_reply_read looks at the bytes of a connection that another program
 * owns; it takes no memory and begins at the first byte each time. struct
 * lk_resp_reader owns the bytes of a connection; it goes on where it stopped,
 * so that long replies of many elements cost no more than their length.
 *
 * Both read strictly from left to right: the same bytes give the same reply
 * however they were split.
 */
#include "lib/resp.h"

#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 2,        /* of latchkey_reply_read: an array in an array */
    LINE_MAX = 64 * 1024, /* a simple string or an error */
    DIGITS_MAX = 19,      /* as many as 2^63 has */
    TEXT_MAX = 1024 * 1024 * 1024,
    NODES_MAX = 1 << 22, /* of a reader: elements of one reply, 200 MB */
    NODES_FIRST = 64,
    NODES_KEPT = 4096,      /* more are given back before the next reply */
    BYTES_KEPT = 1 << 20,   /* bytes; more are given back too */
    READ_LEAST = 16 * 1024, /* room for bytes to come */
};

/* ---- One element --------------------------------------------------------- */

struct bytes {
    struct lk_slice all;
    size_t at;   /* behind what has been read */
    size_t need; /* LK_AGAIN: reading can go on with as many bytes */
};

/* LK_AGAIN, and how many bytes must be there before it makes sense to try
 * again. */
static enum lk_status want(struct bytes *in, size_t more)
{
    in->need = in->at + more;
    return LK_AGAIN;
}

static size_t left(const struct bytes *in)
{
    return in->all.len - in->at;
}

/* CR LF; wrong bytes are found before missing ones. */
static enum lk_status read_newline(struct bytes *in)
{
    const char *at = in->all.data + in->at;

    if ((left(in) > 0 && at[0] != '\r') || (left(in) > 1 && at[1] != '\n')) {
        return LK_MALFORMED;
    }
    if (left(in) < 2) {
        return want(in, 2);
    }
    in->at += 2;
    return LK_OK;
}

/* "[-]<digits>\r\n" */
static enum lk_status read_number(struct bytes *in, int64_t *number)
{
    const char *data = in->all.data;
    size_t at = in->at;
    size_t end = in->all.len;
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
        return want(in, at + 1 - in->at);
    }
    if (at == start) {
        return LK_MALFORMED;
    }
    in->at = at;
    *number = (int64_t)(negative ? 0 - value : value);
    return read_newline(in);
}

/* The rest of a line, which holds neither CR nor LF. */
static enum lk_status read_line(struct bytes *in, struct lk_slice *text)
{
    const char *start = in->all.data + in->at;
    size_t most = left(in) < LINE_MAX ? left(in) : LINE_MAX;
    const char *cr = most > 0 ? memchr(start, '\r', most) : NULL;
    size_t len = cr ? (size_t)(cr - start) : most;

    if (len > 0 && memchr(start, '\n', len)) {
        return LK_MALFORMED;
    }
    if (len == LINE_MAX) {
        return LK_TOO_LARGE;
    }
    if (!cr) {
        return want(in, left(in) + 1);
    }
    *text = (struct lk_slice){start, len};
    in->at += len;
    return read_newline(in);
}

/* "<length>\r\n", the bytes and CR LF; "-1\r\n" is nil. */
static enum lk_status read_bulk(struct bytes *in, struct lk_reply *reply)
{
    int64_t length = 0;
    enum lk_status status = read_number(in, &length);

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
    if (left(in) < len + 2) {
        return want(in, len + 2);
    }
    reply->type = LK_REPLY_TEXT;
    reply->text = (struct lk_slice){in->all.data + in->at, len};
    in->at += len;
    return read_newline(in);
}

/* "<count>\r\n"; "-1\r\n" is nil. The elements are not read. */
static enum lk_status read_count(struct bytes *in, struct lk_reply *reply)
{
    int64_t count = 0;
    enum lk_status status = read_number(in, &count);

    if (status) {
        return status;
    }
    if (count == -1) {
        reply->type = LK_REPLY_NIL;
        return LK_OK;
    }
    if (count < 0) {
        return LK_MALFORMED;
    }
    reply->type = LK_REPLY_ARRAY;
    reply->count = (size_t)count;
    return LK_OK;
}

/* One element; of an array only how many elements it has. */
static enum lk_status read_element(struct bytes *in, struct lk_reply *reply)
{
    *reply = (struct lk_reply){0};
    if (left(in) == 0) {
        return want(in, 1);
    }
    switch (in->all.data[in->at++]) {
    case '+':
        reply->type = LK_REPLY_TEXT;
        return read_line(in, &reply->text);
    case '-':
        reply->type = LK_REPLY_ERROR;
        return read_line(in, &reply->text);
    case ':':
        reply->type = LK_REPLY_INTEGER;
        return read_number(in, &reply->integer);
    case '$':
        return read_bulk(in, reply);
    case '*':
        return read_count(in, reply);
    }
    return LK_MALFORMED;
}

/* ---- Bytes of another program -------------------------------------------- */

struct nodes {
    struct lk_reply *all;
    size_t count;
    size_t max;
};

/* The elements of an array are side by side; what is in them comes behind. */
static enum lk_status read_tree(struct bytes *in, struct nodes *nodes,
                                struct lk_reply *reply, int depth)
{
    enum lk_status status = read_element(in, reply);

    if (status || reply->type != LK_REPLY_ARRAY) {
        return status;
    }
    if (depth == DEPTH_MAX) {
        return LK_MALFORMED;
    }
    if (reply->count > nodes->max - nodes->count) {
        return LK_TOO_LARGE;
    }
    reply->elements = reply->count > 0 ? nodes->all + nodes->count : NULL;
    nodes->count += reply->count;
    for (size_t i = 0; i < reply->count && !status; i++) {
        status = read_tree(in, nodes, &reply->elements[i], depth + 1);
    }
    return status;
}

/*
 * nodes[0] is the reply; its texts point into `bytes`. LK_OK: *used bytes were
 * read. LK_AGAIN: *used bytes in all are needed to go on. LK_TOO_LARGE: it has
 * more elements than node_max, or a line or text that is too long.
 */
enum lk_status latchkey_reply_read(struct lk_slice bytes,
                                   struct lk_reply *nodes, size_t node_max,
                                   size_t *used)
{
    struct bytes in = {.all = bytes};
    struct nodes room = {.all = nodes, .count = 1, .max = node_max};

    *used = 0;
    if (node_max == 0) {
        return LK_INVALID;
    }
    enum lk_status status = read_tree(&in, &room, &nodes[0], 0);
    if (status == LK_OK) {
        *used = in.at;
    } else if (status == LK_AGAIN) {
        *used = in.need;
    }
    return status;
}

/* ---- A connection's own bytes -------------------------------------------- */

/* What is read moves to the front of the buffer. */
static void compact_input(struct lk_resp_reader *reader)
{
    struct lk_buf *in = &reader->in;

    if (reader->start == 0) {
        return;
    }
    in->len -= reader->start;
    reader->at -= reader->start;
    reader->need -= reader->need ? reader->start : 0;
    memmove(in->data, in->data + reader->start, in->len);
    reader->start = 0;
    if (in->len == 0 && in->cap > BYTES_KEPT) {
        latchkey_buf_free(in);
    }
}

/* The texts of a reply that is given out must not move: its buffer is set
 * aside, and the bytes behind it start a new one. */
static enum lk_status set_given_aside(struct lk_resp_reader *reader)
{
    struct lk_buf rest = {0};

    if (!reader->whole || reader->given.data) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_add(
        &rest, reader->in.data + reader->at, reader->in.len - reader->at);
    if (!status) {
        reader->given = reader->in;
        reader->in = rest;
        reader->start = reader->at = reader->need = 0;
    }
    return status;
}

/* Room for bytes to come, which lk_resp_reader_fill() then counts. */
enum lk_status lk_resp_reader_room(struct lk_resp_reader *reader, char **room,
                                   size_t *size)
{
    struct lk_buf *in = &reader->in;
    enum lk_status status = set_given_aside(reader);

    if (status) {
        return status;
    }
    compact_input(reader);
    /* Room for all of a long text at once, but never much more than has come:
     * a length that is only announced takes no memory. */
    size_t more = reader->need > in->len ? reader->need - in->len : 0;
    size_t most = in->len + READ_LEAST;
    more = more < READ_LEAST ? READ_LEAST : more > most ? most : more;
    status = latchkey_buf_reserve(in, more);
    if (!status) {
        *room = in->data + in->len;
        *size = in->cap - in->len;
    }
    return status;
}

void lk_resp_reader_fill(struct lk_resp_reader *reader, size_t count)
{
    reader->in.len += count;
}

/* The reply that was given out is done with: its bytes and nodes may go. */
void lk_resp_reader_forget(struct lk_resp_reader *reader)
{
    if (!reader->whole) {
        return;
    }
    reader->whole = reader->nested = false;
    reader->start = reader->at;
    reader->need = 0;
    reader->count = 0;
    if (reader->cap > NODES_KEPT) {
        free(reader->nodes);
        reader->nodes = NULL;
        reader->cap = 0;
    }
    free(reader->tree);
    reader->tree = NULL;
    latchkey_buf_free(&reader->given);
}

/* Nodes grow with what has arrived. LK_TOO_LARGE: NODES_MAX are there. */
static enum lk_status add_node(struct lk_resp_reader *reader,
                               struct lk_reply node)
{
    if (reader->count == reader->cap) {
        size_t cap = reader->cap ? reader->cap * 2 : NODES_FIRST;
        struct lk_reply *nodes =
            reader->count < NODES_MAX
                ? realloc(reader->nodes, cap * sizeof(*nodes))
                : NULL;

        if (!nodes) {
            return reader->count < NODES_MAX ? LK_NOMEM : LK_TOO_LARGE;
        }
        reader->nodes = nodes;
        reader->cap = cap;
    }
    reader->nodes[reader->count++] = node;
    return LK_OK;
}

/* Reads the next element; its text is an offset from the start of the reply
 * until that is whole, for the buffer may move. */
static enum lk_status read_node(struct lk_resp_reader *reader)
{
    struct bytes in = {.all = latchkey_buf_slice(&reader->in),
                       .at = reader->at};
    struct lk_reply node;
    enum lk_status status = read_element(&in, &node);

    if (status) {
        reader->need = status == LK_AGAIN ? in.need : 0;
        return status;
    }
    if (node.type == LK_REPLY_TEXT || node.type == LK_REPLY_ERROR) {
        node.text.data = (const char *)(uintptr_t)(node.text.data -
                                                   in.all.data - reader->start);
    }
    if (node.count > NODES_MAX) {
        return LK_TOO_LARGE;
    }
    status = add_node(reader, node);
    if (status) {
        return status;
    }
    bool opens = node.type == LK_REPLY_ARRAY && node.count > 0;
    if (opens && reader->depth == LK_RESP_DEPTH_MAX) {
        return LK_MALFORMED;
    }
    reader->at = in.at;
    if (opens) {
        reader->nested |= reader->depth > 0;
        reader->open[reader->depth++] = node.count;
        return LK_OK;
    }
    /* It may be the last of the arrays that it is in. */
    while (reader->depth > 0 && --reader->open[reader->depth - 1] == 0) {
        reader->depth--;
    }
    return LK_OK;
}

/* Copies the node, and what is in it in the order of arrival, to `to` and from
 * *free_nodes on; returns the node after it. */
static const struct lk_reply *place_node(const struct lk_reply *node,
                                         struct lk_reply *to,
                                         struct lk_reply **free_nodes)
{
    *to = *node++;
    if (to->type != LK_REPLY_ARRAY || to->count == 0) {
        return node;
    }
    to->elements = *free_nodes;
    *free_nodes += to->count;
    for (size_t i = 0; i < to->count; i++) {
        node = place_node(node, &to->elements[i], free_nodes);
    }
    return node;
}

/* All nodes have come: texts become pointers, and the elements of each array
 * are put side by side, which they are unless an array is in another. */
static enum lk_status finish_reply(struct lk_resp_reader *reader,
                                   const struct lk_reply **reply)
{
    struct lk_reply *nodes = reader->nodes;

    for (size_t i = 0; i < reader->count; i++) {
        if (nodes[i].type == LK_REPLY_TEXT || nodes[i].type == LK_REPLY_ERROR) {
            char *text =
                reader->in.data + reader->start + (uintptr_t)nodes[i].text.data;

            text[nodes[i].text.len] = '\0'; /* over the CR */
            nodes[i].text.data = text;
        }
    }
    if (reader->nested) {
        reader->tree = reallocarray(NULL, reader->count, sizeof(*reader->tree));
        if (!reader->tree) {
            return LK_NOMEM;
        }
        struct lk_reply *free_nodes = reader->tree + 1;
        (void)place_node(nodes, reader->tree, &free_nodes);
        nodes = reader->tree;
    } else if (nodes[0].type == LK_REPLY_ARRAY && nodes[0].count > 0) {
        nodes[0].elements = nodes + 1;
    }
    reader->whole = true;
    *reply = nodes;
    return LK_OK;
}

/*
 * LK_OK: *reply is valid until this function or lk_resp_reader_forget() is
 * called. LK_AGAIN: read more bytes first. Any other status: the stream cannot
 * be read any further.
 */
enum lk_status lk_resp_reader_next(struct lk_resp_reader *reader,
                                   const struct lk_reply **reply)
{
    enum lk_status status = LK_OK;

    lk_resp_reader_forget(reader);
    if (reader->in.len < reader->need) {
        return LK_AGAIN;
    }
    do {
        status = read_node(reader);
    } while (!status && reader->depth > 0);
    return status ? status : finish_reply(reader, reply);
}

void lk_resp_reader_free(struct lk_resp_reader *reader)
{
    latchkey_buf_free(&reader->in);
    latchkey_buf_free(&reader->given);
    free(reader->nodes);
    free(reader->tree);
    *reader = (struct lk_resp_reader){0};
}

/* ---- A reply of its own -------------------------------------------------- */

/* Adds up the nodes and the bytes, with a NUL for each text. */
static void measure_reply(const struct lk_reply *reply, size_t *nodes,
                          size_t *bytes)
{
    *nodes += 1;
    *bytes += reply->text.data ? reply->text.len + 1 : 0;
    for (size_t i = 0; i < reply->count; i++) {
        measure_reply(&reply->elements[i], nodes, bytes);
    }
}

static void copy_node(const struct lk_reply *from, struct lk_reply *to,
                      struct lk_reply **nodes, char **bytes)
{
    *to = *from;
    if (from->text.data) {
        memcpy(*bytes, from->text.data, from->text.len);
        (*bytes)[from->text.len] = '\0';
        to->text.data = *bytes;
        *bytes += from->text.len + 1;
    }
    if (from->count > 0) {
        to->elements = *nodes;
        *nodes += from->count;
    }
    for (size_t i = 0; i < from->count; i++) {
        copy_node(&from->elements[i], &to->elements[i], nodes, bytes);
    }
}

/* A deep copy in one allocation, which free() frees: all nodes, then all texts.
 * NULL: out of memory. */
struct lk_reply *lk_reply_copy(const struct lk_reply *reply)
{
    size_t count = 0, size = 0;

    measure_reply(reply, &count, &size);
    struct lk_reply *copy = malloc(count * sizeof(*copy) + size);
    if (copy) {
        struct lk_reply *nodes = copy + 1;
        char *bytes = (char *)(copy + count);
        copy_node(reply, copy, &nodes, &bytes);
    }
    return copy;
}
