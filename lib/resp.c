/*
 * resp.c - the Redis protocol: commands read as they arrive, and the writers of
 * commands and replies. lib/resp_reply.c reads replies.
 *
 *   command = "*" count CRLF count * ( "$" length CRLF bytes CRLF )
 *           / line of words, as typed by hand
 *
 * The parser owns no input: the caller shows it all unread bytes of the
 * connection from the beginning of the command each time, and it goes on at
 * parser->offset. Every limit is checked when a length is announced, before its
 * bytes have come.
 */
#include "lib/resp.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX  18          /* digits that always fit in a long */
#define INLINE_MAX  (64 * 1024) /* bytes in a command typed as a line */
#define ARGV_FIRST  8
#define ARGV_KEEP   64   /* more is given back before the next command */
#define WORDS_KEEP  1024 /* bytes; more is given back too */
#define HTTP_PREFIX LK_SLICE("HTTP/")

static enum lk_resp_result refuse(struct lk_resp_parser *parser,
                                  const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum lk_resp_result refuse(struct lk_resp_parser *parser,
                                  const char *format, ...)
{
    /* The text becomes the error reply; the connection ends after it. */
    int len = snprintf(parser->error, sizeof(parser->error), "%s",
                       "ERR Protocol error: ");
    va_list args;

    va_start(args, format);
    vsnprintf(parser->error + len, sizeof(parser->error) - (size_t)len, format,
              args);
    va_end(args);
    return LK_RESP_BAD;
}

/* Names the byte that came instead. */
static enum lk_resp_result refuse_byte(struct lk_resp_parser *parser,
                                       const char *expected, char byte)
{
    if (byte > 0x20 && byte < 0x7f) {
        return refuse(parser, "expected %s, got '%c'", expected, byte);
    }
    return refuse(parser, "expected %s, got byte 0x%02x", expected,
                  (unsigned char)byte);
}

/* Until a command is complete, its slices hold offsets instead of pointers:
 * the input may move. */
static enum lk_resp_result add_word(struct lk_resp_parser *parser,
                                    const char *data, size_t len)
{
    if (parser->argc == parser->argv_cap) {
        size_t cap = parser->argv_cap ? parser->argv_cap * 2 : ARGV_FIRST;
        struct lk_slice *argv =
            realloc(parser->argv, cap * sizeof(*parser->argv));

        if (!argv) {
            return LK_RESP_NOMEM;
        }
        parser->argv = argv;
        parser->argv_cap = cap;
    }
    parser->argv[parser->argc++] = (struct lk_slice){data, len};
    return LK_RESP_COMMAND;
}

/*
 * Reads "<digits>\r\n" behind a type byte at the parser's offset, strictly
 * from left to right: the same bytes give the same result however they are
 * split. COMMAND: *number, and the offset is behind the line.
 */
static enum lk_resp_result read_number(struct lk_resp_parser *parser,
                                       struct lk_slice input, long *number)
{
    const char *start = input.data + parser->offset + 1;
    const char *end = input.data + input.len;
    const char *at = start;
    long value = 0;

    while (at < end && *at >= '0' && *at <= '9') {
        if (at - start == DIGITS_MAX) {
            return refuse(parser, "a number has too many digits");
        }
        value = value * 10 + (*at - '0');
        at++;
    }
    if (at == end) {
        return LK_RESP_MORE;
    }
    if (at == start) {
        return refuse_byte(parser, "a digit", *at);
    }
    if (*at != '\r') {
        return refuse_byte(parser, "a digit or CR", *at);
    }
    if (at + 1 == end) {
        return LK_RESP_MORE;
    }
    if (at[1] != '\n') {
        return refuse_byte(parser, "LF after CR", at[1]);
    }
    parser->offset = (size_t)(at + 2 - input.data);
    *number = value;
    return LK_RESP_COMMAND;
}

/* "$<length>\r\n". COMMAND: parser->bulk is known. */
static enum lk_resp_result read_length(struct lk_resp_parser *parser,
                                       const struct lk_resp_limits *limits,
                                       struct lk_slice input)
{
    enum lk_resp_result result;
    long length = 0;

    if (parser->offset >= input.len) {
        return LK_RESP_MORE;
    }
    if (input.data[parser->offset] != '$') {
        return refuse_byte(parser, "'$'", input.data[parser->offset]);
    }
    result = read_number(parser, input, &length);
    if (result != LK_RESP_COMMAND) {
        return result;
    }
    if ((size_t)length > limits->bulk) {
        return refuse(parser, "a word of %ld bytes is over the limit of %zu",
                      length, limits->bulk);
    }
    /* By subtraction: the sum could pass the end of the numbers. */
    if (parser->offset + 2 > limits->command ||
        (size_t)length > limits->command - parser->offset - 2) {
        return refuse(parser, "the command is over the limit of %zu bytes",
                      limits->command);
    }
    parser->bulk = length;
    return LK_RESP_COMMAND;
}

/* The bytes of a word and their CR LF. COMMAND: the word is in argv. */
static enum lk_resp_result read_word(struct lk_resp_parser *parser,
                                     struct lk_slice input)
{
    size_t length = (size_t)parser->bulk;
    size_t here = input.len - parser->offset;
    enum lk_resp_result result;
    const char *tail;

    if (here < 2 || here - 2 < length) {
        return LK_RESP_MORE;
    }
    tail = input.data + parser->offset + length;
    if (tail[0] != '\r' || tail[1] != '\n') {
        return refuse(parser, "a word does not end with CR LF after %zu bytes",
                      length);
    }
    result = add_word(parser, (const char *)(uintptr_t)parser->offset, length);
    if (result == LK_RESP_COMMAND) {
        parser->offset += length + 2;
        parser->bulk = -1;
        parser->remaining--;
    }
    return result;
}

/* The next command begins at *used, with nothing left of this one. */
static enum lk_resp_result finish(struct lk_resp_parser *parser,
                                  enum lk_resp_result result, size_t *used)
{
    *used = parser->offset;
    parser->offset = 0;
    parser->remaining = 0;
    parser->bulk = -1;
    return result;
}

/*
 * Goes on where it stopped: parser->remaining words are to come, and
 * parser->bulk is the length of the present one, or -1 if that is not known
 * yet. MORE: everything so far was valid.
 */
static enum lk_resp_result read_array(struct lk_resp_parser *parser,
                                      const struct lk_resp_limits *limits,
                                      struct lk_slice input, size_t *used)
{
    enum lk_resp_result result;

    if (parser->remaining == 0) {
        long count = 0;

        result = read_number(parser, input, &count);
        if (result != LK_RESP_COMMAND) {
            return result;
        }
        if (count == 0) {
            return finish(parser, LK_RESP_EMPTY, used);
        }
        if ((size_t)count > limits->args) {
            return refuse(parser,
                          "a command of %ld words, over the limit of %zu",
                          count, limits->args);
        }
        parser->remaining = count;
        parser->bulk = -1;
    }
    while (parser->remaining > 0) {
        if (parser->bulk < 0) {
            result = read_length(parser, limits, input);
            if (result != LK_RESP_COMMAND) {
                return result;
            }
        }
        result = read_word(parser, input);
        if (result != LK_RESP_COMMAND) {
            return result;
        }
    }
    /* The command is complete: offsets become pointers. */
    for (size_t i = 0; i < parser->argc; i++) {
        parser->argv[i].data = input.data + (uintptr_t)parser->argv[i].data;
    }
    return finish(parser, LK_RESP_COMMAND, used);
}

/* ---- a command typed as a line ------------------------------------------- */

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9') {
        return digit - '0';
    }
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* What follows a backslash in double quotes; returns its length. */
static size_t unescape(const char *at, const char *end, char *byte)
{
    static const char from[] = "nrtba";
    static const char to[] = "\n\r\t\b\a";
    const char *known = strchr(from, *at);

    if (*at == 'x' && end - at > 2 && hex_digit(at[1]) >= 0 &&
        hex_digit(at[2]) >= 0) {
        *byte = (char)(hex_digit(at[1]) * 16 + hex_digit(at[2]));
        return 3;
    }
    *byte = *at && known ? to[known - from] : *at;
    return 1;
}

/*
 * Decodes what is in quotes at `at` to `words`, which has room. Returns
 * the end of it, or NULL if the closing quote is missing or is inside a
 * word.
 */
static const char *read_quoted(const char *at, const char *end,
                               struct lk_buf *words)
{
    char quote = *at++;

    while (at < end && *at != quote) {
        char byte = *at++;

        if (byte == '\\' && at < end) {
            if (quote == '"') {
                at += unescape(at, end, &byte);
            } else if (*at == '\'') {
                byte = *at++;
            }
        }
        words->data[words->len++] = byte;
    }
    if (at == end || (at + 1 < end && at[1] != ' ' && at[1] != '\t')) {
        return NULL;
    }
    return at + 1;
}

/* One word at `at`. Returns its end, or NULL if its quotes are wrong. */
static const char *read_typed(const char *at, const char *end,
                              struct lk_buf *words)
{
    while (at < end && *at != ' ' && *at != '\t') {
        if (*at == '"' || *at == '\'') {
            return read_quoted(at, end, words);
        }
        words->data[words->len++] = *at++;
    }
    return at;
}

/* Words with blanks between them; 'single' or "double" quotes as redis-cli has
 * them. argv points into parser->words. */
static enum lk_resp_result split_line(struct lk_resp_parser *parser,
                                      const struct lk_resp_limits *limits,
                                      const char *at, const char *end)
{
    struct lk_buf *words = &parser->words;

    /* Decoding never makes a word longer, so nothing moves from here on. */
    if (latchkey_buf_reserve(words, (size_t)(end - at) + 1) != LK_OK) {
        return LK_RESP_NOMEM;
    }
    for (;;) {
        size_t start = words->len;

        while (at < end && (*at == ' ' || *at == '\t')) {
            at++;
        }
        if (at == end) {
            return parser->argc > 0 ? LK_RESP_COMMAND : LK_RESP_EMPTY;
        }
        at = read_typed(at, end, words);
        if (!at) {
            return refuse(parser, "unbalanced quotes in request");
        }
        if (words->len - start > limits->bulk) {
            return refuse(parser,
                          "a word of %zu bytes is over the limit of %zu",
                          words->len - start, limits->bulk);
        }
        if (parser->argc == limits->args) {
            return refuse(parser, "more words than the limit of %zu",
                          limits->args);
        }
        if (add_word(parser, words->data + start, words->len - start) !=
            LK_RESP_COMMAND) {
            return LK_RESP_NOMEM;
        }
    }
}

/*
 * A browser can be made to send requests to any port, with commands in their
 * bodies: the first line of HTTP ends the connection before they are read.
 */
static bool looks_like_http(const struct lk_resp_parser *parser)
{
    struct lk_slice prefix = HTTP_PREFIX;
    struct lk_slice last = parser->argv[parser->argc - 1];

    return parser->argc == 3 && last.len >= prefix.len &&
           memcmp(last.data, prefix.data, prefix.len) == 0;
}

/* A byte that a line may begin with. */
static bool is_typed(char byte)
{
    return (unsigned char)byte >= 0x20 || byte == '\t' || byte == '\r' ||
           byte == '\n';
}

/* A line of at most INLINE_MAX bytes, or of limits->command if that is less.
 * parser->offset: the bytes before have been searched for the line's end. */
static enum lk_resp_result read_line(struct lk_resp_parser *parser,
                                     const struct lk_resp_limits *limits,
                                     struct lk_slice input, size_t *used)
{
    size_t max = limits->command < INLINE_MAX ? limits->command : INLINE_MAX;
    size_t seen = input.len < max ? input.len : max;
    enum lk_resp_result result;
    const char *end;

    /* What opens a TLS handshake, say, may never send a line's end. */
    if (!is_typed(input.data[0])) {
        return refuse_byte(parser, "'*'", input.data[0]);
    }
    end = memchr(input.data + parser->offset, '\n', seen - parser->offset);
    if (!end) {
        parser->offset = seen;
        return seen < max
                   ? LK_RESP_MORE
                   : refuse(parser, "a line of more than %zu bytes", max);
    }
    parser->offset = (size_t)(end + 1 - input.data);
    if (end > input.data && end[-1] == '\r') {
        end--;
    }
    result = split_line(parser, limits, input.data, end);
    if (result == LK_RESP_COMMAND && looks_like_http(parser)) {
        return refuse(parser, "this port speaks RESP, not HTTP");
    }
    if (result == LK_RESP_COMMAND || result == LK_RESP_EMPTY) {
        return finish(parser, result, used);
    }
    return result;
}

/* Forgets the command before; a rare long one does not keep its memory. */
static void begin(struct lk_resp_parser *parser)
{
    parser->argc = 0;
    if (parser->argv_cap > ARGV_KEEP) {
        free(parser->argv);
        parser->argv = NULL;
        parser->argv_cap = 0;
    }
    parser->words.len = 0;
    if (parser->words.cap > WORDS_KEEP) {
        latchkey_buf_free(&parser->words);
    }
}

/*
 * COMMAND: parser->argv is valid until the next call or until the input moves,
 * and *used bytes are done with. EMPTY: *used, and no command. MORE: call again
 * when more bytes have come. BAD: parser->error is the reply.
 */
enum lk_resp_result lk_resp_parse(struct lk_resp_parser *parser,
                                  const struct lk_resp_limits *limits,
                                  struct lk_slice input, size_t *used)
{
    *used = 0;
    if (parser->remaining == 0) {
        begin(parser);
    }
    if (input.len == 0) {
        return LK_RESP_MORE;
    }
    if (input.data[0] == '*') {
        return read_array(parser, limits, input, used);
    }
    return read_line(parser, limits, input, used);
}

void lk_resp_parser_free(struct lk_resp_parser *parser)
{
    free(parser->argv);
    latchkey_buf_free(&parser->words);
    *parser = (struct lk_resp_parser){0};
}

/* ---- writers ------------------------------------------------------------- */

/* By hand: a dozen times for each command, where printf would be half of it. */
char *latchkey_announce(char *to, char type, uint64_t number)
{
    char digits[20];
    size_t count = 0;

    *to++ = type;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0) {
        *to++ = digits[--count];
    }
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

/* A type byte, the number and CR LF. */
static enum lk_status add_prefix(struct lk_buf *out, char type, uint64_t number)
{
    enum lk_status status = latchkey_buf_reserve(out, LK_ANNOUNCE_MAX);

    if (status == LK_OK) {
        char *end = latchkey_announce(out->data + out->len, type, number);

        out->len = (size_t)(end - out->data);
    }
    return status;
}

/* One line with nothing in it that could end it early. */
static enum lk_status add_one_line(struct lk_buf *out, char type,
                                   struct lk_slice text)
{
    enum lk_status status;
    char *to;

    if (text.len > SIZE_MAX / 2) {
        return LK_NOMEM;
    }
    status = latchkey_buf_reserve(out, text.len + 3);
    if (status != LK_OK) {
        return status;
    }
    to = out->data + out->len;
    *to++ = type;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.data[i];

        *to++ = byte < 0x20 || byte == 0x7f ? ' ' : (char)byte;
    }
    *to++ = '\r';
    *to++ = '\n';
    out->len = (size_t)(to - out->data);
    return LK_OK;
}

enum lk_status lk_resp_simple(struct lk_buf *out, const char *text)
{
    return add_one_line(out, '+', latchkey_slice(text));
}

enum lk_status lk_resp_error(struct lk_buf *out, struct lk_slice message)
{
    return add_one_line(out, '-', message);
}

enum lk_status lk_resp_integer(struct lk_buf *out, int64_t number)
{
    enum lk_status status = latchkey_buf_reserve(out, LK_ANNOUNCE_MAX + 1);

    if (status == LK_OK && number < 0) {
        char *start = out->data + out->len;

        /* Negated without a sign, so that INT64_MIN works. The type's place is
         * taken by the sign. */
        char *end = latchkey_announce(start + 1, '-', 0 - (uint64_t)number);
        *start = ':';
        out->len = (size_t)(end - out->data);
    } else if (status == LK_OK) {
        status = add_prefix(out, ':', (uint64_t)number);
    }
    return status;
}

/* Written in one go: the hot path of every reply and command. */
enum lk_status lk_resp_bulk(struct lk_buf *out, struct lk_slice bytes)
{
    enum lk_status status;
    char *to;

    if (bytes.len > SIZE_MAX / 2) {
        return LK_NOMEM;
    }
    status = latchkey_buf_reserve(out, bytes.len + LK_ANNOUNCE_MAX + 2);
    if (status != LK_OK) {
        return status;
    }
    to = latchkey_announce(out->data + out->len, '$', bytes.len);
    if (bytes.len > 0) {
        memcpy(to, bytes.data, bytes.len);
        to += bytes.len;
    }
    *to++ = '\r';
    *to++ = '\n';
    out->len = (size_t)(to - out->data);
    return LK_OK;
}

/* RESP3 has a null of its own; in RESP2 it is a bulk string of length -1. The
 * same way a map is an array of twice as many elements in RESP2. */
enum lk_status lk_resp_nil(struct lk_buf *out, int proto)
{
    return latchkey_buf_add_text(out, proto >= 3 ? "_\r\n" : "$-1\r\n");
}

enum lk_status lk_resp_array(struct lk_buf *out, size_t count)
{
    return add_prefix(out, '*', count);
}

enum lk_status lk_resp_map(struct lk_buf *out, int proto, size_t pairs)
{
    if (proto >= 3) {
        return add_prefix(out, '%', pairs);
    }
    return add_prefix(out, '*', (uint64_t)pairs * 2);
}

enum lk_status lk_resp_push(struct lk_buf *out, int proto, size_t count)
{
    return add_prefix(out, proto >= 3 ? '>' : '*', count);
}

/* All of the command or nothing. */
enum lk_status lk_resp_command(struct lk_buf *out, const struct lk_slice *words,
                               size_t count)
{
    size_t before = out->len;
    enum lk_status status = lk_resp_array(out, count);

    for (size_t i = 0; i < count && !status; i++) {
        status = lk_resp_bulk(out, words[i]);
    }
    if (status) {
        out->len = before;
    }
    return status;
}
