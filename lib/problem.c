/* problem.c - problem documents (RFC 9457) and the JSON strings in them. */
#include "latchkey.h"

/* ---- JSON strings -------------------------------------------------------- */

/* What is at the front of some text. */
struct piece {
    size_t len;    /* bytes of the text it covers, at least one */
    uint32_t rune; /* its code point, if valid */
    bool valid;
};

/*
 * Reads one character. Bytes that are not UTF-8 are cut where a decoder first
 * knows it, so an overlong form or an encoded surrogate counts as several
 * pieces, and a character that was cut short as one.
 */
static struct piece read_piece(const uint8_t *text, size_t len)
{
    uint8_t lead = text[0];
    uint8_t low = 0x80;
    uint8_t high = 0xbf;
    size_t need;

    if (lead < 0x80) {
        return (struct piece){1, lead, true};
    }
    if (lead < 0xc2 || lead > 0xf4) {
        return (struct piece){1, 0, false};
    }
    need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0) {
        low = 0xa0; /* below: overlong */
    } else if (lead == 0xed) {
        high = 0x9f; /* above: a surrogate */
    } else if (lead == 0xf0) {
        low = 0x90; /* below: overlong */
    } else if (lead == 0xf4) {
        high = 0x8f; /* above: past U+10FFFF */
    }
    uint32_t rune = lead & (0x7fU >> need);
    for (size_t i = 1; i < need; i++) {
        if (i == len || text[i] < low || text[i] > high) {
            return (struct piece){i, 0, false};
        }
        rune = rune << 6 | (text[i] & 0x3f);
        low = 0x80;
        high = 0xbf;
    }
    return (struct piece){need, rune, true};
}

/* Control characters of both kinds: neither belongs in a log or a terminal. */
static bool is_control(uint32_t rune)
{
    return rune < 0x20 || (rune >= 0x7f && rune < 0xa0);
}

static const char *short_escape(uint32_t rune)
{
    switch (rune) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    }
    return NULL;
}

/*
 * Bytes that are not UTF-8 become U+FFFD, so that the document is always valid.
 */
static enum lk_status add_piece(struct lk_buf *json, const uint8_t *text,
                                struct piece piece)
{
    if (!piece.valid) {
        return latchkey_buf_add_text(json, "\xef\xbf\xbd");
    }
    const char *escape = short_escape(piece.rune);
    if (escape) {
        return latchkey_buf_add_text(json, escape);
    }
    if (is_control(piece.rune)) {
        return latchkey_buf_printf(json, "\\u%04x", (unsigned)piece.rune);
    }
    return latchkey_buf_add(json, text, piece.len);
}

/* How many bytes at the front can be copied as they are. */
static size_t plain_length(const uint8_t *text, size_t len)
{
    size_t i = 0;

    while (i < len && text[i] >= 0x20 && text[i] < 0x7f && text[i] != '"' &&
           text[i] != '\\') {
        i++;
    }
    return i;
}

static enum lk_status add_pieces(struct lk_slice text, struct lk_buf *json)
{
    const uint8_t *at = (const uint8_t *)text.data;
    size_t left = text.len;

    while (left > 0) {
        size_t len = plain_length(at, left);
        enum lk_status status = LK_OK;
        if (len > 0) {
            status = latchkey_buf_add(json, at, len);
        } else {
            struct piece piece = read_piece(at, left);
            status = add_piece(json, at, piece);
            len = piece.len;
        }
        if (status) {
            return status;
        }
        at += len;
        left -= len;
    }
    return LK_OK;
}

/* Appends the text as a JSON string. LK_NOMEM: `json` is as it was. */
enum lk_status latchkey_json_quote(struct lk_slice text, struct lk_buf *json)
{
    size_t start = json->len;
    enum lk_status status = latchkey_buf_add(json, "\"", 1);

    if (!status) {
        status = add_pieces(text, json);
    }
    if (!status) {
        status = latchkey_buf_add(json, "\"", 1);
    }
    if (status) {
        json->len = start;
    }
    return status;
}

/* ---- Problem documents --------------------------------------------------- */

struct kind {
    const char *name;
    unsigned status;
    const char *title;
};

static const struct kind kinds[] = {
#define X(id, name, status, title) {name, status, title},
    LK_PROBLEM_MAP(X)
#undef X
};

/* The sections of docs/problems.md are called after the names. */
static const struct lk_slice built_in_base = LK_SLICE("urn:latchkey:problem:");

static bool is_kind(enum lk_problem_kind kind)
{
    return (size_t)kind < sizeof(kinds) / sizeof(*kinds);
}

/* The URI of the kind: the configured base and the kind's name. */
static enum lk_status add_type(const struct lk_problem *problem,
                               struct lk_buf *json)
{
    struct lk_slice base =
        problem->type_base.len ? problem->type_base : built_in_base;
    struct lk_buf type = {0};
    enum lk_status status = latchkey_buf_add_slice(&type, base);

    if (!status) {
        status = latchkey_buf_add_text(&type, kinds[problem->kind].name);
    }
    if (!status) {
        status = latchkey_buf_add_text(json, "{\"type\":");
    }
    if (!status) {
        status = latchkey_json_quote(latchkey_buf_slice(&type), json);
    }
    latchkey_buf_free(&type);
    return status;
}

/* A member without a value is left out. */
static enum lk_status add_text_member(struct lk_buf *json, const char *name,
                                      struct lk_slice value)
{
    enum lk_status status = LK_OK;

    if (value.len == 0) {
        return LK_OK;
    }
    status = latchkey_buf_printf(json, ",\"%s\":", name);
    if (!status) {
        status = latchkey_json_quote(value, json);
    }
    return status;
}

static enum lk_status add_number_member(struct lk_buf *json, const char *name,
                                        unsigned value)
{
    if (value == 0) {
        return LK_OK;
    }
    return latchkey_buf_printf(json, ",\"%s\":%u", name, value);
}

static enum lk_status add_members(const struct lk_problem *problem,
                                  struct lk_buf *json)
{
    const char *title = kinds[problem->kind].title;
    enum lk_status status =
        add_text_member(json, "title", latchkey_slice(title));

    if (!status) {
        status =
            add_number_member(json, "status", latchkey_problem_status(problem));
    }
    if (!status) {
        status = add_text_member(json, "detail", problem->detail);
    }
    if (!status) {
        status = add_text_member(json, "reference", problem->reference);
    }
    if (!status) {
        status = add_number_member(json, "original-status",
                                   problem->original_status);
    }
    return status;
}

/* Appends the document. LK_INVALID: there is no such kind. On an error `json`
 * is as it was. */
enum lk_status latchkey_problem_write(const struct lk_problem *problem,
                                      struct lk_buf *json)
{
    size_t start = json->len;

    if (!is_kind(problem->kind)) {
        return LK_INVALID;
    }
    enum lk_status status = add_type(problem, json);
    if (!status) {
        status = add_members(problem, json);
    }
    if (!status) {
        status = latchkey_buf_add_text(json, "}");
    }
    if (status) {
        json->len = start;
    }
    return status;
}

/* The status that the problem sets, or else that of its kind. */
unsigned latchkey_problem_status(const struct lk_problem *problem)
{
    if (problem->status || !is_kind(problem->kind)) {
        return problem->status;
    }
    return kinds[problem->kind].status;
}
