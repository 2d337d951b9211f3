/* field.h - the text of HTTP header fields: letters, blanks, order. */
#ifndef LK_FIELD_H
#define LK_FIELD_H

#include "latchkey.h"

/* Letters A to Z in lower case, all else as it is, in any locale. */
unsigned char lk_lower(char c);
LK_MUST_CHECK enum lk_status lk_add_lower(struct lk_slice text,
                                          struct lk_buf *out);
/* `text` without the spaces and tabs around it. */
struct lk_slice lk_trim(struct lk_slice text);
/* Negative, zero or positive, without regard to case. */
int lk_compare_lower(struct lk_slice a, struct lk_slice b);
/* Two struct lk_header by name without regard to case, for lk_sort. */
int lk_compare_headers(const void *a, const void *b, const void *unused);

#endif
