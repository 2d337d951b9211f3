/* text.c - text, buffers, and just enough JSON for flat objects. */
#include "payments.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

struct text text_of(const char *string)
{
    return (struct text){string, strlen(string)};
}

bool text_is(struct text text, const char *string)
{
    return text.len == strlen(string) && !memcmp(text.data, string, text.len);
}

bool text_is_nocase(struct text text, const char *string)
{
    return text.len == strlen(string) &&
           !strncasecmp(text.data, string, text.len);
}

bool text_number(struct text text, uint64_t *number)
{
    uint64_t value = 0;

    if (text.len == 0 || text.len > 15) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        if (!isdigit((unsigned char)text.data[i])) {
            return false;
        }
        value = value * 10 + (uint64_t)(text.data[i] - '0');
    }
    *number = value;
    return true;
}

unsigned option_number(const char *name, const char *argument)
{
    uint64_t number;

    if (!text_number(text_of(argument), &number) || number > 100000000) {
        die("--%s takes a number, not %s", name, argument);
    }
    return (unsigned)number;
}

void buf_reserve(struct buf *buf, size_t more)
{
    size_t cap = buf->cap ? buf->cap : 1024;

    if (buf->cap - buf->len >= more) {
        return;
    }
    while (cap - buf->len < more) {
        cap *= 2;
    }
    buf->data = realloc(buf->data, cap);
    if (!buf->data) {
        die("out of memory");
    }
    buf->cap = cap;
}

void buf_add(struct buf *buf, const void *data, size_t len)
{
    buf_reserve(buf, len);
    if (len > 0) {
        memcpy(buf->data + buf->len, data, len);
        buf->len += len;
    }
}

void buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args;
    size_t room;
    int len;

    buf_reserve(buf, 256);
    for (;;) {
        room = buf->cap - buf->len;
        va_start(args, format);
        len = vsnprintf(buf->data + buf->len, room, format, args);
        va_end(args);
        if (len >= 0 && (size_t)len < room) {
            break;
        }
        buf_reserve(buf, (size_t)len + 1);
    }
    buf->len += (size_t)len;
}

void buf_add_string(struct buf *buf, struct text text)
{
    buf_reserve(buf, text.len * 6 + 2);
    buf_add(buf, "\"", 1);
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.data[i];
        if (byte == '"' || byte == '\\') {
            buf_printf(buf, "\\%c", byte);
        } else if (byte < 0x20 || byte > 0x7e) {
            buf_printf(buf, "\\u%04x", byte);
        } else {
            buf_add(buf, &byte, 1);
        }
    }
    buf_add(buf, "\"", 1);
}

void buf_skip(struct buf *buf, size_t len)
{
    buf->len -= len;
    if (len > 0 && buf->len > 0) {
        memmove(buf->data, buf->data + len, buf->len);
    }
}

/* ---- JSON ---- */

static void skip(struct text *rest, size_t len)
{
    rest->data += len;
    rest->len -= len;
}

static char peek(struct text *rest)
{
    while (rest->len > 0 && isspace((unsigned char)rest->data[0])) {
        skip(rest, 1);
    }
    return rest->len > 0 ? rest->data[0] : '\0';
}

static bool take(struct text *rest, char expected)
{
    if (peek(rest) != expected) {
        return false;
    }
    skip(rest, 1);
    return true;
}

static bool take_string(struct text *rest, struct text *string)
{
    if (!take(rest, '"')) {
        return false;
    }
    for (size_t i = 0; i < rest->len; i++) {
        if (rest->data[i] == '"') {
            *string = (struct text){rest->data, i};
            skip(rest, i + 1);
            return true;
        }
        if (rest->data[i] == '\\') {
            i++;
        }
    }
    return false;
}

/* A number, a word, or something nested, as it is written. */
static bool take_other(struct text *rest, struct text *value)
{
    struct text start = *rest, string;
    int depth = 0;

    for (char next; (next = peek(rest)) != '\0';) {
        if (depth == 0 && (next == ',' || next == '}')) {
            break;
        }
        depth += next == '{' || next == '[';
        depth -= next == '}' || next == ']';
        if (next != '"') {
            skip(rest, 1);
        } else if (!take_string(rest, &string)) {
            return false;
        }
    }
    *value = (struct text){start.data, (size_t)(rest->data - start.data)};
    while (value->len > 0 &&
           isspace((unsigned char)value->data[value->len - 1])) {
        value->len--;
    }
    return value->len > 0;
}

bool json_member(struct text object, const char *name, bool *is_string,
                 struct text *value)
{
    struct text rest = object, found;

    if (!take(&rest, '{')) {
        return false;
    }
    do {
        if (!take_string(&rest, &found) || !take(&rest, ':')) {
            return false;
        }
        *is_string = peek(&rest) == '"';
        if (!(*is_string ? take_string(&rest, value)
                         : take_other(&rest, value))) {
            return false;
        }
        if (text_is(found, name)) {
            return true;
        }
    } while (take(&rest, ','));
    return false;
}
