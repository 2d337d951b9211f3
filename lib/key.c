/*
 * key.c - reads an Idempotency-Key, quoted or bare, as one canonical key.
 *
 *   value  = *BLANK ( quoted / bare ) *BLANK
 *   quoted = DQUOTE 1*( plain / "\" DQUOTE / "\\" ) DQUOTE
 *   plain  = printable ASCII without DQUOTE and "\"
 *   bare   = 1*( printable without space "," ";" DQUOTE "\" )
 *
 * The quotes are those of a string of RFC 8941, which the draft asks for; most
 * clients send the key bare. Both spellings of a key are the same key.
 */
#include "latchkey.h"

/* One pass over a header's value; `fault` at byte `pos` once it failed. */
struct scan {
    struct lk_slice in;
    size_t pos;
    char key[LK_KEY_MAX];
    size_t len;
    enum lk_key_fault fault;
};

static const char *const fault_names[] = {
    [LK_KEY_FAULT_NONE] = "none",
    [LK_KEY_FAULT_EMPTY] = "empty",
    [LK_KEY_FAULT_TOO_LONG] = "too-long",
    [LK_KEY_FAULT_BAD_CHARACTER] = "bad-character",
    [LK_KEY_FAULT_BAD_ESCAPE] = "bad-escape",
    [LK_KEY_FAULT_UNTERMINATED] = "unterminated",
    [LK_KEY_FAULT_TRAILING] = "trailing",
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_printable(char c)
{
    return c >= 0x20 && c <= 0x7e;
}

/* No character that has a meaning in a structured field. */
static bool is_bare(char c)
{
    return is_printable(c) && c != ' ' && c != ',' && c != ';' && c != '"' &&
           c != '\\';
}

static bool at_end(const struct scan *scan)
{
    return scan->pos == scan->in.len;
}

static char current(const struct scan *scan)
{
    return scan->in.data[scan->pos];
}

static void skip_blanks(struct scan *scan)
{
    while (!at_end(scan) && is_blank(current(scan))) {
        scan->pos++;
    }
}

/* Notes the fault; scan->pos is where it was found. Always false. */
static bool fail(struct scan *scan, enum lk_key_fault fault)
{
    scan->fault = fault;
    return false;
}

/* A key longer than LK_KEY_MAX is refused, never cut: two keys could become
 * one. */
static bool take(struct scan *scan, char c)
{
    if (scan->len == LK_KEY_MAX) {
        return fail(scan, LK_KEY_FAULT_TOO_LONG);
    }
    scan->key[scan->len++] = c;
    return true;
}

/* A backslash, and the one character after it that it means. */
static bool scan_escape(struct scan *scan)
{
    if (scan->pos + 1 == scan->in.len) {
        scan->pos++;
        return fail(scan, LK_KEY_FAULT_UNTERMINATED);
    }
    char c = scan->in.data[scan->pos + 1];
    if (c != '"' && c != '\\') {
        return fail(scan, LK_KEY_FAULT_BAD_ESCAPE);
    }
    if (!take(scan, c)) {
        return false;
    }
    scan->pos += 2;
    return true;
}

static bool scan_plain(struct scan *scan)
{
    if (!is_printable(current(scan))) {
        return fail(scan, LK_KEY_FAULT_BAD_CHARACTER);
    }
    if (!take(scan, current(scan))) {
        return false;
    }
    scan->pos++;
    return true;
}

/* From the opening quote to the end of the value. Parameters behind the closing
 * quote are refused. */
static bool scan_quoted(struct scan *scan)
{
    scan->pos++;
    for (;;) {
        if (at_end(scan)) {
            return fail(scan, LK_KEY_FAULT_UNTERMINATED);
        }
        if (current(scan) == '"') {
            break;
        }
        bool taken =
            current(scan) == '\\' ? scan_escape(scan) : scan_plain(scan);
        if (!taken) {
            return false;
        }
    }
    if (scan->len == 0) {
        return fail(scan, LK_KEY_FAULT_EMPTY);
    }
    scan->pos++;
    skip_blanks(scan);
    return at_end(scan) || fail(scan, LK_KEY_FAULT_TRAILING);
}

/* Stops at the first character that a bare key cannot have. Blanks may follow;
 * if anything else does, the fault is at the place where the key stopped. */
static bool scan_bare(struct scan *scan)
{
    while (!at_end(scan) && is_bare(current(scan))) {
        if (!take(scan, current(scan))) {
            return false;
        }
        scan->pos++;
    }
    size_t stop = scan->pos;
    skip_blanks(scan);
    if (!at_end(scan)) {
        scan->pos = stop;
        return fail(scan, LK_KEY_FAULT_BAD_CHARACTER);
    }
    return true;
}

static bool scan_value(struct scan *scan)
{
    skip_blanks(scan);
    if (at_end(scan)) {
        return fail(scan, LK_KEY_FAULT_EMPTY);
    }
    return current(scan) == '"' ? scan_quoted(scan) : scan_bare(scan);
}

/* Appends the key to `key`, or nothing. LK_MALFORMED: *fault is the reason, and
 * *at the offset of the byte where it was found. Both may be NULL. */
enum lk_status latchkey_key_parse(struct lk_slice value, struct lk_buf *key,
                                  enum lk_key_fault *fault, size_t *at)
{
    struct scan scan;

    scan.in = value;
    scan.pos = 0;
    scan.len = 0;
    scan.fault = LK_KEY_FAULT_NONE;
    bool valid = scan_value(&scan);
    if (fault) {
        *fault = scan.fault;
    }
    if (at) {
        *at = scan.pos;
    }
    return valid ? latchkey_buf_add(key, scan.key, scan.len) : LK_MALFORMED;
}

const char *latchkey_key_fault_text(enum lk_key_fault fault)
{
    switch (fault) {
#define X(name, text)                                                          \
    case LK_KEY_FAULT_##name:                                                  \
        return text;
        LK_KEY_FAULT_MAP(X)
#undef X
    }
    return "?";
}

const char *latchkey_key_fault_name(enum lk_key_fault fault)
{
    if ((size_t)fault >= sizeof(fault_names) / sizeof(*fault_names)) {
        return "?";
    }
    return fault_names[fault];
}
