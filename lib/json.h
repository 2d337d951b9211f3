/*
 * json.h - JSON texts: strings and numbers, values by JSON Pointer, and the one
 * canonical spelling.
 *
 * There is no tree. json.c reads and skips values, json_pointer.c finds some of
 * them by pointer, json_canonical.c rewrites a text for the fingerprint.
 */
#ifndef LK_JSON_H
#define LK_JSON_H

#include "latchkey.h"

/* ---- Scalars (json.c) ---------------------------------------------------- */

/*
 * Both read at *at in `text` and leave *at after what they read. LK_MALFORMED:
 * it is not JSON; then *at and the end of `out` have no meaning. LK_NOMEM.
 */

/* A string, from its opening quote; appends it unescaped. */
LK_MUST_CHECK enum lk_status lk_json_read_string(struct lk_slice text,
                                                 size_t *at,
                                                 struct lk_buf *out);
/* A number; appends its canonical spelling. */
LK_MUST_CHECK enum lk_status lk_json_read_number(struct lk_slice text,
                                                 size_t *at,
                                                 struct lk_buf *out);
/* Appends valid UTF-8 as a string in its canonical spelling, with quotes. */
LK_MUST_CHECK enum lk_status lk_json_write_string(struct lk_slice string,
                                                  struct lk_buf *out);
bool lk_utf8_valid(struct lk_slice text);

/* ---- Reading value by value (json.c) ------------------------------------- */

enum {
    LK_JSON_SKIP_DEPTH_MAX = 128
}; /* arrays and objects inside each other */

/* How far a text was read. Start it as {.text = ...}; free it. */
struct lk_json_cursor {
    struct lk_slice text;
    size_t at;
    struct lk_buf name; /* of the last member, unescaped */
};

/* The next byte that is not white space, which is skipped; at the end a NUL,
 * which no JSON accepts. */
char lk_json_peek(struct lk_json_cursor *cursor);
/* Skips that byte if it is `c`; false: it is not. */
bool lk_json_take(struct lk_json_cursor *cursor, char c);
/* Reads a member's name and its colon; the name is in cursor->name. */
LK_MUST_CHECK enum lk_status lk_json_read_name(struct lk_json_cursor *cursor);
/*
 * Skips a whole value, all of it checked. `depth`: how deep it is nested
 * already. LK_MALFORMED: it is not JSON, or nested deeper than
 * LK_JSON_SKIP_DEPTH_MAX. cursor->name has no meaning then.
 */
LK_MUST_CHECK enum lk_status lk_json_skip(struct lk_json_cursor *cursor,
                                          size_t depth);
void lk_json_cursor_free(struct lk_json_cursor *cursor);

/* ---- JSON Pointers, RFC 6901 (json_pointer.c) ---------------------------- */

/*
 * *value is the value at `pointer`, as it is spelled in `text`, of any type. Of
 * members with the same name the first one counts. LK_NOT_FOUND: it leads
 * nowhere. LK_MALFORMED: the text is not JSON as far as it was read (up to what
 * separates the value from what follows), or is nested too deeply; or the
 * pointer is not a JSON Pointer. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_json_find(struct lk_slice text,
                                          struct lk_slice pointer,
                                          struct lk_slice *value);
/* Appends a string without its quotes and escapes, anything else as it is. */
LK_MUST_CHECK enum lk_status lk_json_plain(struct lk_slice value,
                                           struct lk_buf *out);

/* A set of pointers, matched while a text is read. */
enum {
    LK_POINTER_COUNT_MAX = 64,   /* one bit each in the mask below */
    LK_POINTER_LENGTH_MAX = 1024 /* bytes of one pointer */
};

/* Start it as {0}; free it with lk_pointers_free. */
struct lk_pointers {
    size_t count;
    size_t first[LK_POINTER_COUNT_MAX + 1]; /* first token of each pointer */
    struct lk_buf tokens;                   /* where each token ends in text */
    struct lk_buf text;                     /* the tokens, unescaped */
};

/*
 * LK_INVALID: one of them is not a JSON Pointer in UTF-8, or there are too
 * many, or one is too long. The caller frees `pointers` in any case.
 */
LK_MUST_CHECK enum lk_status lk_pointers_parse(const struct lk_slice *list,
                                               size_t count,
                                               struct lk_pointers *pointers);
/* Adds one pointer; or a member's name, which may hold any character. Returns
 * as lk_pointers_parse; on failure the set is unchanged. */
LK_MUST_CHECK enum lk_status lk_pointers_add(struct lk_pointers *pointers,
                                             struct lk_slice pointer);
LK_MUST_CHECK enum lk_status lk_pointers_add_name(struct lk_pointers *pointers,
                                                  struct lk_slice name);
void lk_pointers_free(struct lk_pointers *pointers);

/*
 * The pointers that lead into the whole document, a bit each. *hit: those
 * that are empty and name the document itself.
 */
uint64_t lk_pointers_start(const struct lk_pointers *pointers, uint64_t *hit);

/*
 * Of the pointers in `active`, which have led to a value at `depth` (0: the
 * document), those that lead on into its member or element `name`. *hit: those
 * that end there.
 */
uint64_t lk_pointers_step(const struct lk_pointers *pointers, uint64_t active,
                          size_t depth, struct lk_slice name, uint64_t *hit);

/* ---- Several values in one pass (json_pointer.c) ------------------------- */

enum { LK_PICKS_MAX = 32 };

struct lk_pick {
    bool found;
    bool unescaped;        /* `value` is in the buffer of texts */
    size_t start;          /* there */
    struct lk_slice value; /* a string unescaped; else as it is written; empty
                              for null */
};

/* Start it as {0}; free it with lk_picks_free. */
struct lk_picks {
    struct lk_pick picks[LK_PICKS_MAX];
    size_t count;
    struct lk_pointers pointers; /* one for each pick */
    struct lk_buf text;
};

/* Adds a value to look for: a member's name, or a JSON Pointer if it begins
 * with a slash. LK_INVALID: not a JSON Pointer, or too many. LK_NOMEM. */
LK_MUST_CHECK enum lk_status lk_picks_add(struct lk_picks *picks,
                                          struct lk_slice name);
/*
 * Reads the whole of a JSON text and sets the value of each pick; they point
 * into `json` and `picks`. LK_MALFORMED: it is not JSON, or a pick is there
 * twice. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_picks_read(struct lk_picks *picks,
                                           struct lk_slice json);
void lk_picks_free(struct lk_picks *picks);

/* ---- The canonical spelling (json_canonical.c) --------------------------- */

enum {
    LK_JSON_DEPTH_MAX = 512,    /* arrays and objects inside each other */
    LK_JSON_SIZE_MAX = 16 << 20 /* bytes of text */
};

/*
 * Appends the canonical spelling of `text`: members sorted by name, no white
 * space, one spelling for each string and number. What `ignore` (may be NULL)
 * points at is left out: members vanish, array elements too, and the whole
 * document leaves nothing.
 *
 * LK_MALFORMED: no canonical form exists. The text is not JSON, or not UTF-8,
 * or has a lone surrogate, two members of one name in an object, a number
 * whose exponent does not fit in 64 bits, or is nested too deeply.
 * LK_TOO_LARGE: longer than LK_JSON_SIZE_MAX. LK_NOMEM. Then `out` is
 * unchanged. Time and memory are linear but for the sort, n log n.
 */
LK_MUST_CHECK enum lk_status lk_json_canonical(struct lk_slice text,
                                               const struct lk_pointers *ignore,
                                               struct lk_buf *out);

#endif
