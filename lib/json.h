/* json.h - the one canonical spelling of a JSON text. */
#ifndef LK_JSON_H
#define LK_JSON_H

#include "latchkey.h"
#include "lib/pointer.h"

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

/* ---- Scalars (json_scalar.c) --------------------------------------------- */

/*
 * Both read at *at in `text` and leave *at after what they read. LK_MALFORMED
 * as above; then *at and the end of `out` have no meaning.
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

#endif
