/* pointer.h - sets of JSON Pointers (RFC 6901), matched while reading. */
#ifndef LK_POINTER_H
#define LK_POINTER_H

#include "latchkey.h"

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
 * many, or one is too long. Free `pointers` whatever is returned.
 */
LK_MUST_CHECK enum lk_status lk_pointers_parse(const struct lk_slice *list,
                                               size_t count,
                                               struct lk_pointers *pointers);
void lk_pointers_free(struct lk_pointers *pointers);

/*
 * The pointers that lead into the whole document, a bit each. *hit: one of
 * them is empty and names the document itself.
 */
uint64_t lk_pointers_start(const struct lk_pointers *pointers, bool *hit);

/*
 * Of the pointers in `active`, which have led to a value at `depth` (0: the
 * document), those that lead on into its member or element `name`. *hit: one
 * of them ends there.
 */
uint64_t lk_pointers_step(const struct lk_pointers *pointers, uint64_t active,
                          size_t depth, struct lk_slice name, bool *hit);

#endif
