/*
 * output.c - what a command prints: escaped text with readable times and sizes,
 * and the one JSON document of --json.
 *
 * Everything is appended to a buffer; nothing is printed here. Texts of clients
 * and services are never trusted: what could drive a terminal is escaped. A
 * tool that is out of memory can do nothing useful, so lk_must() ends it.
 */
#include "cli/output.h"
#include "lib/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==== Text for people: escaped, with readable times and sizes */

/* Returns only after LK_OK; otherwise the tool ends with status 5. */
void lk_must(enum lk_status status)
{
    if (status == LK_OK) {
        return;
    }
    fprintf(stderr, "latchkey: %s\n", latchkey_status_text(status));
    exit(5);
}

void *lk_must_grow(void *memory, size_t size)
{
    memory = realloc(memory, size);
    if (memory == NULL) {
        lk_must(LK_NOMEM);
        abort(); /* lk_must does not come back */
    }
    return memory;
}

/* `count` elements, all zero; freed with free(). */
void *lk_must_make(size_t count, size_t size)
{
    return memset(lk_must_grow(NULL, count * size), 0, count * size);
}

/* A formatted text that the caller frees. */
char *lk_text(const char *format, ...)
{
    va_list values;
    char *text = NULL;
    int length;

    va_start(values, format);
    length = vasprintf(&text, format, values);
    va_end(values);
    lk_must(length < 0 ? LK_NOMEM : LK_OK);
    return text;
}

void lk_put_raw(struct lk_buf *out, struct lk_slice bytes)
{
    lk_must(latchkey_buf_add_slice(out, bytes));
}

/* ---- Escaping ------------------------------------------------------------ */

/* Length of the UTF-8 character at the front of `text`, 0 if there is none. */
static size_t character_length(struct lk_slice text)
{
    unsigned char lead = (unsigned char)text.data[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

    if (length > text.len ||
        !lk_utf8_valid((struct lk_slice){text.data, length})) {
        return 0;
    }
    return length;
}

/* `length` is that of a valid character. */
static uint32_t code_point(const char *text, size_t length)
{
    uint32_t rune = (unsigned char)text[0];

    if (length > 1) {
        rune &= 0x7fU >> length;
    }
    for (size_t i = 1; i < length; i++) {
        rune = rune << 6 | ((unsigned char)text[i] & 0x3f);
    }
    return rune;
}

/* Control characters control a terminal; the others make text look like what
 * it is not: joiners, direction marks, line separators, a byte order mark. */
static bool is_hostile(uint32_t rune)
{
    return rune < 0x20 || (rune >= 0x7f && rune < 0xa0) || rune == 0xad ||
           rune == 0x61c || (rune >= 0x200b && rune <= 0x200f) ||
           (rune >= 0x2028 && rune <= 0x202e) ||
           (rune >= 0x2060 && rune <= 0x206f) || rune == 0xfeff ||
           (rune >= 0xfff9 && rune <= 0xfffb) ||
           (rune >= 0xe0000 && rune <= 0xe007f);
}

static void put_hex(struct lk_buf *out, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        lk_put(out, "\\x%02x", (unsigned char)bytes[i]);
    }
}

/* `lines`: newlines and tabs stay. `backslashes`: they are doubled, so that an
 * escape cannot be forged. Bytes that are not UTF-8 become \xHH one by one. */
static void put_escaped(struct lk_buf *out, struct lk_slice text, bool lines,
                        bool backslashes)
{
    while (text.len > 0) {
        size_t length = character_length(text);
        char c = text.data[0];

        if (lines && (c == '\n' || c == '\t')) {
            lk_put_raw(out, (struct lk_slice){text.data, 1});
        } else if (backslashes && c == '\\') {
            lk_put_raw(out, LK_SLICE("\\\\"));
        } else if (length == 0) {
            length = 1;
            put_hex(out, text.data, 1);
        } else if (is_hostile(code_point(text.data, length))) {
            put_hex(out, text.data, length);
        } else {
            lk_put_raw(out, (struct lk_slice){text.data, length});
        }
        text.data += length;
        text.len -= length;
    }
}

/*
 * A value within a line: nothing in it can end the line or look like an escape.
 */
void lk_put_text(struct lk_buf *out, struct lk_slice text)
{
    put_escaped(out, text, false, true);
}

/* Text of several lines, such as a body on a terminal. */
void lk_put_lines(struct lk_buf *out, struct lk_slice text)
{
    put_escaped(out, text, true, false);
}

/* A sentence of our own that may quote others: its backslashes stay single. */
void lk_put_line(struct lk_buf *out, struct lk_slice text)
{
    put_escaped(out, text, false, false);
}

/* Columns of a character: none for a mark on the one before, two for those of
 * East Asia and for pictures, one for any other. */
static size_t rune_width(uint32_t rune)
{
    static const struct {
        uint32_t first, last;
        size_t width;
    } ranges[] = {
        {0x0300, 0x036f, 0},   {0x0483, 0x0489, 0},   {0x0591, 0x05bd, 0},
        {0x064b, 0x065f, 0},   {0x1100, 0x115f, 2},   {0x1ab0, 0x1aff, 0},
        {0x1dc0, 0x1dff, 0},   {0x20d0, 0x20ff, 0},   {0x2e80, 0x303e, 2},
        {0x3041, 0xa4cf, 2},   {0xa960, 0xa97f, 2},   {0xac00, 0xd7a3, 2},
        {0xf900, 0xfaff, 2},   {0xfe00, 0xfe0f, 0},   {0xfe20, 0xfe2f, 0},
        {0xfe30, 0xfe6f, 2},   {0xff01, 0xff60, 2},   {0xffe0, 0xffe6, 2},
        {0x1f000, 0x1faff, 2}, {0x20000, 0x3fffd, 2},
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (rune >= ranges[i].first && rune <= ranges[i].last) {
            return ranges[i].width;
        }
    }
    return 1;
}

/* How far `text` reaches in at most `width` columns, and what it takes of them.
 * Escaped text is UTF-8 throughout. */
static size_t reach_width(struct lk_slice text, size_t width, size_t *taken)
{
    size_t at = 0;

    *taken = 0;
    while (at < text.len) {
        struct lk_slice rest = {text.data + at, text.len - at};
        size_t length = character_length(rest);
        size_t own =
            length == 0 ? 1 : rune_width(code_point(rest.data, length));

        if (*taken + own > width) {
            break;
        }
        *taken += own;
        at += length == 0 ? 1 : length;
    }
    return at;
}

size_t lk_put_width(struct lk_slice text)
{
    size_t width;

    (void)reach_width(text, SIZE_MAX, &width);
    return width;
}

/* Bytes of `text` that fit in `width` columns; at least one character, so that
 * a loop over a text comes to its end. */
size_t lk_put_prefix(struct lk_slice text, size_t width)
{
    size_t taken;
    size_t length = reach_width(text, width, &taken);

    if (length == 0 && text.len > 0) {
        length = character_length(text);
        length = length == 0 ? 1 : length;
    }
    return length;
}

/* What does not fit ends in an ellipsis; `width` is at least 1. */
void lk_put_cut(struct lk_buf *out, struct lk_slice text, size_t width)
{
    size_t taken;

    if (reach_width(text, width, &taken) < text.len) {
        text.len = reach_width(text, width - 1, &taken);
        lk_put_raw(out, text);
        lk_put_raw(out, LK_SLICE("\xe2\x80\xa6")); /* an ellipsis */
    } else {
        lk_put_raw(out, text);
    }
}

/* ---- Quantities ---------------------------------------------------------- */

static const struct unit {
    const char *name;
    uint64_t ms;
} units[] = {
    {"d", 86400000}, {"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1},
};

/* A day is written as 24 h: the usual TTL should be recognised. */
static size_t largest_unit(uint64_t ms)
{
    size_t i = ms < 2 * units[0].ms ? 1 : 0;

    while (i + 1 < sizeof(units) / sizeof(units[0]) && ms < units[i].ms) {
        i++;
    }
    return i;
}

/* At most `parts` units from the largest one down: "2 h 5 min". Smaller units
 * are cut off, not rounded. */
void lk_put_duration(struct lk_buf *out, uint64_t ms, unsigned parts)
{
    size_t i = largest_unit(ms);
    size_t last = i + parts;
    const char *gap = "";

    for (; i < last && i < sizeof(units) / sizeof(units[0]); i++) {
        uint64_t amount = ms / units[i].ms;

        if (amount > 0 || *gap == '\0') {
            lk_put(out, "%s%llu %s", gap, (unsigned long long)amount,
                   units[i].name);
            gap = " ";
        }
        ms %= units[i].ms;
    }
}

static void put_relative(struct lk_buf *out, uint64_t ms, uint64_t now_ms)
{
    uint64_t away = ms > now_ms ? ms - now_ms : now_ms - ms;

    if (away < 1000) {
        lk_put(out, "now");
        return;
    }
    lk_put(out, "%s", ms > now_ms ? "in " : "");
    lk_put_duration(out, away, 1);
    lk_put(out, "%s", ms > now_ms ? "" : " ago");
}

void lk_put_span(struct lk_buf *out, uint64_t from_ms, uint64_t to_ms)
{
    lk_put_duration(out, to_ms > from_ms ? to_ms - from_ms : 0, 1);
}

/* Byte for byte into a file or a pipe, escaped on a terminal. */
void lk_put_stored(struct lk_buf *out, struct lk_slice bytes)
{
    if (isatty(STDOUT_FILENO)) {
        lk_put_lines(out, bytes);
    } else {
        lk_put_raw(out, bytes);
    }
}

void lk_put_time(struct lk_buf *out, uint64_t ms, uint64_t now_ms)
{
    lk_put_utc(out, ms);
    lk_put(out, " (");
    put_relative(out, ms, now_ms);
    lk_put(out, ")");
}

/* Seconds are enough for people: the milliseconds are cut off. */
void lk_put_utc(struct lk_buf *out, uint64_t ms)
{
    char text[LK_TIMESTAMP_TEXT + 1];

    latchkey_timestamp_text(ms, text);
    lk_put(out, "%.19sZ", text);
}

void lk_put_bytes(struct lk_buf *out, uint64_t bytes)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
    double size = (double)bytes / 1024;
    size_t i = 0;

    if (bytes < 1024) {
        lk_put(out, "%llu bytes", (unsigned long long)bytes);
        return;
    }
    while (size >= 1024 && i + 1 < sizeof(names) / sizeof(names[0])) {
        size /= 1024;
        i++;
    }
    lk_put(out, "%.1f %s", size, names[i]);
}

void lk_put_base64(struct lk_buf *out, struct lk_slice bytes)
{
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < bytes.len; i += 3) {
        size_t left = bytes.len - i;
        uint32_t group = (uint32_t)(unsigned char)bytes.data[i] << 16;
        char text[4];

        if (left > 1) {
            group |= (uint32_t)(unsigned char)bytes.data[i + 1] << 8;
        }
        if (left > 2) {
            group |= (unsigned char)bytes.data[i + 2];
        }
        for (size_t k = 0; k < 4; k++) {
            text[k] = k > left ? '=' : digits[group >> (18 - 6 * k) & 0x3f];
        }
        lk_put_raw(out, (struct lk_slice){text, 4});
    }
}

void lk_put_form(struct lk_buf *out, enum lk_form form,
                 const struct lk_reply *value, uint64_t now_ms)
{
    uint64_t number = value->integer < 0 ? 0 : (uint64_t)value->integer;

    switch (form) {
    case LK_FORM_TEXT:
        lk_put_text(out, value->text);
        break;
    case LK_FORM_NUMBER:
        lk_put(out, "%llu", (unsigned long long)number);
        break;
    case LK_FORM_TIME:
        lk_put_time(out, number, now_ms);
        break;
    case LK_FORM_DURATION:
        lk_put_duration(out, number, 2);
        break;
    case LK_FORM_FLAG:
        lk_put(out, "yes");
        break;
    case LK_FORM_SIZE:
        lk_put_bytes(out, number);
        break;
    }
}

/* ==== Writes the one JSON document of a command */

/* Names have underscores in JSON, whatever they have on the wire. */
static void put_member_name(struct lk_doc *doc, const char *name,
                            const char *suffix)
{
    struct lk_buf member = {0};

    lk_put(&member, "%s%s", name, suffix);
    for (size_t i = 0; i < member.len; i++) {
        if (member.data[i] == '-') {
            member.data[i] = '_';
        }
    }
    lk_must(latchkey_json_quote(latchkey_buf_slice(&member), doc->out));
    lk_put(doc->out, ":");
    latchkey_buf_free(&member);
}

/* doc->comma: a value came before in the same object or array. `name` is NULL
 * for an element of an array. */
static void begin_value(struct lk_doc *doc, const char *name,
                        const char *suffix)
{
    if (doc->comma) {
        lk_put(doc->out, ",");
    }
    if (name != NULL) {
        put_member_name(doc, name, suffix);
    }
}

/* The document ends in a newline. */
static void end_value(struct lk_doc *doc)
{
    doc->comma = true;
    if (doc->depth == 0) {
        lk_put(doc->out, "\n");
    }
}

static void open_value(struct lk_doc *doc, const char *name,
                       const char *bracket)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%s", bracket);
    doc->depth++;
    doc->comma = false;
}

static void close_value(struct lk_doc *doc, const char *bracket)
{
    lk_put(doc->out, "%s", bracket);
    doc->depth--;
    end_value(doc);
}

void lk_doc_object(struct lk_doc *doc, const char *name)
{
    open_value(doc, name, "{");
}

void lk_doc_array(struct lk_doc *doc, const char *name)
{
    open_value(doc, name, "[");
}

void lk_doc_end_object(struct lk_doc *doc)
{
    close_value(doc, "}");
}

void lk_doc_end_array(struct lk_doc *doc)
{
    close_value(doc, "]");
}

void lk_doc_integer(struct lk_doc *doc, const char *name, int64_t number)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%lld", (long long)number);
    end_value(doc);
}

void lk_doc_bool(struct lk_doc *doc, const char *name, bool value)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "%s", value ? "true" : "false");
    end_value(doc);
}

void lk_doc_null(struct lk_doc *doc, const char *name)
{
    begin_value(doc, name, "");
    lk_put(doc->out, "null");
    end_value(doc);
}

/* JSON texts are Unicode: other bytes go into NAME_base64 instead. */
void lk_doc_text(struct lk_doc *doc, const char *name, struct lk_slice text)
{
    if (lk_utf8_valid(text)) {
        begin_value(doc, name, "");
        lk_must(latchkey_json_quote(text, doc->out));
    } else {
        begin_value(doc, name, "_base64");
        lk_put(doc->out, "\"");
        lk_put_base64(doc->out, text);
        lk_put(doc->out, "\"");
    }
    end_value(doc);
}

void lk_doc_reply(struct lk_doc *doc, const char *name,
                  const struct lk_reply *reply)
{
    switch (reply->type) {
    case LK_REPLY_INTEGER:
        lk_doc_integer(doc, name, reply->integer);
        break;
    case LK_REPLY_TEXT:
    case LK_REPLY_ERROR:
        lk_doc_text(doc, name, reply->text);
        break;
    case LK_REPLY_ARRAY:
        lk_doc_array(doc, name);
        for (size_t i = 0; i < reply->count; i++) {
            lk_doc_reply(doc, NULL, &reply->elements[i]);
        }
        lk_doc_end_array(doc);
        break;
    case LK_REPLY_NIL:
        lk_doc_null(doc, name);
        break;
    }
}

/* A flat list of names and values, as members of the open object. */
void lk_doc_members(struct lk_doc *doc, const struct lk_reply *list)
{
    for (size_t i = 0; i + 1 < list->count; i += 2) {
        struct lk_buf name = {0};

        lk_put_raw(&name, list->elements[i].text);
        lk_put_raw(&name, (struct lk_slice){"", 1});
        lk_doc_reply(doc, name.data, &list->elements[i + 1]);
        latchkey_buf_free(&name);
    }
}
