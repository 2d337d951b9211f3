/* postgres_text.c - names as text that a UTF8 database takes, and messages as
 * lines that a log takes. */
#include "store/postgres.h"

#include <string.h>

static bool is_tail(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/*
 * The length of the UTF-8 character that begins at `at`, 0 if the server would
 * not take it: cut off, longer than need be, a surrogate, above U+10FFFF, or
 * NUL.
 */
static size_t character(const uint8_t *at, size_t left)
{
    uint8_t first = at[0];
    size_t len = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    if (!first || (first >= 0x80 && first < 0xc2) || first > 0xf4 ||
        len > left) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if (!is_tail(at[i])) {
            return 0;
        }
    }
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) ||
        (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    return len;
}

bool lk_pg_is_plain(struct lk_slice bytes)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t at = 0;

    while (at < bytes.len) {
        size_t len =
            data[at] == '\\' ? 0 : character(data + at, bytes.len - at);
        if (!len) {
            return false;
        }
        at += len;
    }
    return true;
}

size_t lk_pg_text_size(struct lk_slice bytes)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t size = 0;

    for (size_t at = 0; at < bytes.len;) {
        size_t len = character(data + at, bytes.len - at);
        size += !len ? 4 : data[at] == '\\' ? 2 : len;
        at += len ? len : 1;
    }
    return size;
}

enum lk_status lk_pg_escape(struct lk_slice bytes, struct lk_buf *text)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t start = text->len;
    enum lk_status status = latchkey_buf_reserve(text, bytes.len * 4 + 1);

    for (size_t at = 0; at < bytes.len && !status;) {
        size_t len = character(data + at, bytes.len - at);
        if (!len) {
            status = latchkey_buf_printf(text, "\\%03o", data[at]);
            len = 1;
        } else if (data[at] == '\\') {
            status = latchkey_buf_add(text, "\\\\", 2);
        } else {
            status = latchkey_buf_add(text, data + at, len);
        }
        at += len;
    }
    if (status) {
        text->len = start;
    }
    return status;
}

/* The byte of an escape, -1 if it is none; *len is what it takes. */
static int escaped(const char *at, size_t left, size_t *len)
{
    int value = 0;

    if (left >= 2 && at[1] == '\\') {
        *len = 2;
        return '\\';
    }
    if (left < 4) {
        return -1;
    }
    for (int i = 1; i < 4; i++) {
        if (at[i] < '0' || at[i] > '7') {
            return -1;
        }
        value = value * 8 + (at[i] - '0');
    }
    *len = 4;
    return value < 256 ? value : -1;
}

enum lk_status lk_pg_unescape(struct lk_slice text, struct lk_buf *bytes)
{
    size_t start = bytes->len;
    enum lk_status status = latchkey_buf_reserve(bytes, text.len + 1);

    for (size_t at = 0; at < text.len && !status;) {
        size_t len = 1;
        int value = text.data[at] == '\\'
                        ? escaped(text.data + at, text.len - at, &len)
                        : (unsigned char)text.data[at];
        char byte = value < 0 ? '\\' : (char)value;
        status = latchkey_buf_add(bytes, &byte, 1);
        at += value < 0 ? 1 : len;
    }
    if (status) {
        bytes->len = start;
    }
    return status;
}

/* Copies what fits whole; false if it does not. */
static bool put(char *line, size_t size, size_t *used, const char *bytes,
                size_t len)
{
    if (*used + len >= size) {
        return false;
    }
    memcpy(line + *used, bytes, len);
    *used += len;
    return true;
}

void lk_pg_clean(const char *message, const char *secret, char *line,
                 size_t size)
{
    size_t left = strlen(message);
    size_t hidden = secret ? strlen(secret) : 0;
    size_t used = 0;
    bool fits = true;

    while (left && fits) {
        const uint8_t *at = (const uint8_t *)message;
        size_t len = character(at, left);
        bool control = !len || at[0] < 0x20 || at[0] == 0x7f ||
                       (at[0] == 0xc2 && at[1] < 0xa0);
        bool space = at[0] == '\n' || at[0] == '\r' || at[0] == '\t';
        if (hidden && left >= hidden && !memcmp(message, secret, hidden)) {
            len = hidden;
            fits = put(line, size, &used, "***", 3);
        } else if (control) {
            len = len ? len : 1;
            fits = space && used && line[used - 1] == ' '
                       ? true
                       : put(line, size, &used, space ? " " : "?", 1);
        } else {
            fits = put(line, size, &used, message, len);
        }
        message += len;
        left -= len;
    }
    while (used && line[used - 1] == ' ') {
        used--;
    }
    line[used] = 0;
}
