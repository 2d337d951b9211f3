/*
 * json.c - reads JSON: strings and numbers, written one way; and a cursor that
 * walks over values without a tree.
 *
 * RFC 8259, strictly: no comments, no trailing commas, valid UTF-8, surrogates
 * only in pairs. LK_MALFORMED is the one error of syntax. A position (*at)
 * after an error means nothing.
 */
#include "lib/json.h"

#include <inttypes.h>
#include <string.h>

/* ---- UTF-8 --------------------------------------------------------------- */

/*
 * The length of the well-formed sequence of two to four bytes at `p`, or 0:
 * overlong forms, surrogates and what lies beyond U+10FFFF are not.
 */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    unsigned low = 0x80, high = 0xbf;
    size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

    if (p[0] < 0xc2 || p[0] > 0xf4 || left < length) {
        return 0;
    }
    switch (p[0]) {
    case 0xe0:
        low = 0xa0;
        break;
    case 0xed:
        high = 0x9f;
        break;
    case 0xf0:
        low = 0x90;
        break;
    case 0xf4:
        high = 0x8f;
        break;
    }
    if (p[1] < low || p[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

bool lk_utf8_valid(struct lk_slice text)
{
    const unsigned char *bytes = (const unsigned char *)text.data;

    for (size_t i = 0; i < text.len;) {
        size_t length =
            bytes[i] < 0x80 ? 1 : utf8_sequence(bytes + i, text.len - i);
        if (!length) {
            return false;
        }
        i += length;
    }
    return true;
}

/* Appends a code point up to U+10FFFF in UTF-8. */
static enum lk_status add_code_point(uint32_t c, struct lk_buf *out)
{
    unsigned char bytes[4];
    size_t length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};

    for (size_t i = length - 1; i > 0; i--) {
        bytes[i] = (unsigned char)(0x80 | (c & 0x3f));
        c >>= 6;
    }
    bytes[0] = (unsigned char)(lead[length] | c);
    return latchkey_buf_add(out, bytes, length);
}

/* ---- Strings ------------------------------------------------------------- */

/* The four digits of \uXXXX at *at. */
static bool read_hex4(struct lk_slice text, size_t *at, uint32_t *unit)
{
    if (text.len - *at < 4) {
        return false;
    }
    *unit = 0;
    for (size_t end = *at + 4; *at < end; (*at)++) {
        unsigned char c = (unsigned char)text.data[*at];
        unsigned char lower = c | 0x20;
        if (c >= '0' && c <= '9') {
            *unit = *unit << 4 | (uint32_t)(c - '0');
        } else if (lower >= 'a' && lower <= 'f') {
            *unit = *unit << 4 | (uint32_t)(lower - 'a' + 10);
        } else {
            return false;
        }
    }
    return true;
}

/* What follows \u: one code point, of one unit or of a surrogate pair. */
static bool read_unicode_escape(struct lk_slice text, size_t *at, uint32_t *c)
{
    uint32_t low;

    if (!read_hex4(text, at, c)) {
        return false;
    }
    if (*c < 0xd800 || *c > 0xdfff) {
        return true;
    }
    if (*c > 0xdbff || text.len - *at < 2 || text.data[*at] != '\\' ||
        text.data[*at + 1] != 'u') {
        return false;
    }
    *at += 2;
    if (!read_hex4(text, at, &low) || low < 0xdc00 || low > 0xdfff) {
        return false;
    }
    *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* The letters of the short escapes and what they mean, in this order. */
static const char short_letters[] = "\"\\/bfnrt";
static const char short_values[] = "\"\\/\b\f\n\r\t";

/* What follows a backslash. */
static enum lk_status read_escape(struct lk_slice text, size_t *at,
                                  struct lk_buf *out)
{
    uint32_t c;

    if (*at == text.len) {
        return LK_MALFORMED;
    }
    char letter = text.data[(*at)++];
    if (letter == 'u') {
        return read_unicode_escape(text, at, &c) ? add_code_point(c, out)
                                                 : LK_MALFORMED;
    }
    const char *found = memchr(short_letters, letter, sizeof short_letters - 1);
    if (!found) {
        return LK_MALFORMED;
    }
    return latchkey_buf_add(out, short_values + (found - short_letters), 1);
}

/* The end of the run, from `at`, of characters that mean themselves. */
static size_t plain_run(struct lk_slice text, size_t at)
{
    const unsigned char *bytes = (const unsigned char *)text.data;

    while (at < text.len) {
        unsigned char c = bytes[at];
        size_t length = 1;
        if (c < 0x20 || c == '"' || c == '\\') {
            break;
        }
        if (c >= 0x80) {
            length = utf8_sequence(bytes + at, text.len - at);
        }
        if (!length) {
            break;
        }
        at += length;
    }
    return at;
}

/*
 * Reads the string whose opening quote is at *at and appends it unescaped; *at
 * is then behind the closing quote. After an error `out` may have a part of it.
 */
enum lk_status lk_json_read_string(struct lk_slice text, size_t *at,
                                   struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    (*at)++;
    while (!status) {
        size_t end = plain_run(text, *at);
        status = latchkey_buf_add(out, text.data + *at, end - *at);
        *at = end + 1;
        if (status) {
            break;
        }
        if (end < text.len && text.data[end] == '"') {
            return LK_OK;
        }
        status = end < text.len && text.data[end] == '\\'
                     ? read_escape(text, at, out)
                     : LK_MALFORMED;
    }
    return status;
}

/* The short escape if there is one, else \u00XX. A slash is in the table for
 * reading only: lk_json_write_string() never asks for it. */
static enum lk_status write_escape(unsigned char c, struct lk_buf *out)
{
    const char *found = memchr(short_values, c, sizeof short_values - 1);

    if (found) {
        char escape[] = {'\\', short_letters[found - short_values]};
        return latchkey_buf_add(out, escape, sizeof escape);
    }
    return latchkey_buf_printf(out, "\\u%04x", c);
}

/* Appends the string in quotes. `string` must be valid UTF-8: only control
 * characters, quotes and backslashes are escaped. */
enum lk_status lk_json_write_string(struct lk_slice string, struct lk_buf *out)
{
    size_t start = 0;
    enum lk_status status = latchkey_buf_add(out, "\"", 1);

    for (size_t i = 0; i < string.len && !status; i++) {
        unsigned char c = (unsigned char)string.data[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            continue;
        }
        status = latchkey_buf_add(out, string.data + start, i - start);
        if (!status) {
            status = write_escape(c, out);
        }
        start = i + 1;
    }
    if (!status && start < string.len) {
        status = latchkey_buf_add(out, string.data + start, string.len - start);
    }
    if (!status) {
        status = latchkey_buf_add(out, "\"", 1);
    }
    return status;
}

/* ---- Numbers ------------------------------------------------------------- */

static size_t digit_run(struct lk_slice text, size_t at)
{
    while (at < text.len && text.data[at] >= '0' && text.data[at] <= '9') {
        at++;
    }
    return at;
}

static bool next_is(struct lk_slice text, size_t at, char a, char b)
{
    return at < text.len && (text.data[at] == a || text.data[at] == b);
}

/*
 * What follows e or E. Exponents are cut at 10^20: beyond it, no number of
 * digits that fits in memory can bring the result back to 64 bits.
 */
static bool read_exponent(struct lk_slice text, size_t *at, __int128 *exponent)
{
    static const uint64_t ten19 = UINT64_C(10000000000000000000);
    const __int128 most = (__int128)ten19 * 10;
    bool negative = next_is(text, *at, '-', '-');

    *at += next_is(text, *at, '-', '+');
    size_t end = digit_run(text, *at);
    if (end == *at) {
        return false;
    }
    __int128 value = 0;
    for (; *at < end; (*at)++) {
        value = value * 10 + (text.data[*at] - '0');
        value = value < most ? value : most;
    }
    *exponent = negative ? -value : value;
    return true;
}

/*
 * Appends the digits of both parts without leading and trailing zeros.
 * *dropped: how many trailing zeros there were.
 */
static enum lk_status write_digits(struct lk_slice whole,
                                   struct lk_slice fraction, struct lk_buf *out,
                                   size_t *dropped)
{
    bool zero = whole.len == 1 && whole.data[0] == '0';

    *dropped = 0;
    while (zero && fraction.len && fraction.data[0] == '0') {
        fraction.data++;
        fraction.len--;
    }
    size_t start = out->len;
    enum lk_status status = zero ? LK_OK : latchkey_buf_add_slice(out, whole);
    if (!status) {
        status = latchkey_buf_add_slice(out, fraction);
    }
    while (!status && out->len > start && out->data[out->len - 1] == '0') {
        out->len--;
        (*dropped)++;
    }
    return status;
}

/* "e" and the number, which is not zero. */
static enum lk_status write_exponent(int64_t exponent, struct lk_buf *out)
{
    char text[24];
    size_t at = sizeof text;
    uint64_t left = exponent < 0 ? -(uint64_t)exponent : (uint64_t)exponent;

    for (; left; left /= 10) {
        text[--at] = (char)('0' + left % 10);
    }
    if (exponent < 0) {
        text[--at] = '-';
    }
    text[--at] = 'e';
    return latchkey_buf_add(out, text + at, sizeof text - at);
}

/*
 * Writes a number the one way: digits without zeros at either end, and the
 * exponent of the last digit: 100 and 1.0e2 are both 1e2. -0 is 0.
 * LK_MALFORMED: the exponent does not fit in 64 bits.
 */
static enum lk_status write_number(bool negative, struct lk_slice whole,
                                   struct lk_slice fraction, __int128 exponent,
                                   struct lk_buf *out)
{
    size_t dropped, before = out->len;
    enum lk_status status = negative ? latchkey_buf_add(out, "-", 1) : LK_OK;
    size_t start = out->len;

    if (!status) {
        status = write_digits(whole, fraction, out, &dropped);
    }
    if (status) {
        return status;
    }
    /*
     * No digit is left: the number is zero, whatever sign and exponent it has.
     */
    if (out->len == start) {
        out->len = before;
        return latchkey_buf_add(out, "0", 1);
    }
    exponent += (__int128)dropped - (__int128)fraction.len;
    if (exponent == 0) {
        return LK_OK;
    }
    if (exponent < INT64_MIN || exponent > INT64_MAX) {
        return LK_MALFORMED;
    }
    return write_exponent((int64_t)exponent, out);
}

/* number = ["-"] ("0" / digit1-9 *DIGIT) ["." 1*DIGIT] [e ["+" / "-"] 1*DIGIT].
 * Appends its canonical spelling; nothing is rounded. *at is then behind it. */
enum lk_status lk_json_read_number(struct lk_slice text, size_t *at,
                                   struct lk_buf *out)
{
    struct lk_slice whole, fraction = {0};
    __int128 exponent = 0;
    bool negative = next_is(text, *at, '-', '-');

    *at += negative;
    size_t end = next_is(text, *at, '0', '0') ? *at + 1 : digit_run(text, *at);
    whole = (struct lk_slice){text.data + *at, end - *at};
    *at = end;
    if (!whole.len) {
        return LK_MALFORMED;
    }
    if (next_is(text, *at, '.', '.')) {
        end = digit_run(text, *at + 1);
        fraction = (struct lk_slice){text.data + *at + 1, end - (*at + 1)};
        *at = end;
        if (!fraction.len) {
            return LK_MALFORMED;
        }
    }
    if (next_is(text, *at, 'e', 'E')) {
        (*at)++;
        if (!read_exponent(text, at, &exponent)) {
            return LK_MALFORMED;
        }
    }
    return write_number(negative, whole, fraction, exponent, out);
}

/* ---- The cursor ---------------------------------------------------------- */

/* The next byte that is not white space, which it skips. NUL: the end of the
 * text, or a NUL byte there; neither begins a value. */
char lk_json_peek(struct lk_json_cursor *cursor)
{
    while (cursor->at < cursor->text.len) {
        char c = cursor->text.data[cursor->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return c;
        }
        cursor->at++;
    }
    return '\0';
}

/* Skips `c` if it comes next. */
bool lk_json_take(struct lk_json_cursor *cursor, char c)
{
    bool found = lk_json_peek(cursor) == c && cursor->at < cursor->text.len;

    cursor->at += found;
    return found;
}

/* Reads a member's name into cursor->name, and its colon. */
enum lk_status lk_json_read_name(struct lk_json_cursor *cursor)
{
    cursor->name.len = 0;
    if (lk_json_peek(cursor) != '"') {
        return LK_MALFORMED;
    }
    enum lk_status status =
        lk_json_read_string(cursor->text, &cursor->at, &cursor->name);
    return status || lk_json_take(cursor, ':') ? status : LK_MALFORMED;
}

static enum lk_status skip_literal(struct lk_json_cursor *cursor,
                                   struct lk_slice word)
{
    if (cursor->text.len - cursor->at < word.len ||
        memcmp(cursor->text.data + cursor->at, word.data, word.len) != 0) {
        return LK_MALFORMED;
    }
    cursor->at += word.len;
    return LK_OK;
}

/* A string or number is decoded into cursor->name only to check it. */
static enum lk_status skip_scalar(struct lk_json_cursor *cursor)
{
    switch (lk_json_peek(cursor)) {
    case '"':
        cursor->name.len = 0;
        return lk_json_read_string(cursor->text, &cursor->at, &cursor->name);
    case 't':
        return skip_literal(cursor, LK_SLICE("true"));
    case 'f':
        return skip_literal(cursor, LK_SLICE("false"));
    case 'n':
        return skip_literal(cursor, LK_SLICE("null"));
    default:
        cursor->name.len = 0;
        return lk_json_read_number(cursor->text, &cursor->at, &cursor->name);
    }
}

/*
 * Skips one value and checks its syntax. Recursion ends at
 * LK_JSON_SKIP_DEPTH_MAX (LK_MALFORMED), so a hostile text cannot exhaust the
 * stack.
 */
enum lk_status lk_json_skip(struct lk_json_cursor *cursor, size_t depth)
{
    bool object = lk_json_take(cursor, '{');
    char close = object ? '}' : ']';

    if (!object && !lk_json_take(cursor, '[')) {
        return skip_scalar(cursor);
    }
    if (depth >= LK_JSON_SKIP_DEPTH_MAX) {
        return LK_MALFORMED;
    }
    if (lk_json_take(cursor, close)) {
        return LK_OK;
    }
    do {
        enum lk_status status = object ? lk_json_read_name(cursor) : LK_OK;
        if (!status) {
            status = lk_json_skip(cursor, depth + 1);
        }
        if (status) {
            return status;
        }
    } while (lk_json_take(cursor, ','));
    return lk_json_take(cursor, close) ? LK_OK : LK_MALFORMED;
}

void lk_json_cursor_free(struct lk_json_cursor *cursor)
{
    latchkey_buf_free(&cursor->name);
    *cursor = (struct lk_json_cursor){0};
}
