/* form.h - the one canonical spelling of an URL-encoded form. */
#ifndef LK_FORM_H
#define LK_FORM_H

#include "latchkey.h"

enum { LK_FORM_SIZE_MAX = 16 << 20 }; /* bytes of body */

/*
 * Appends the pairs of `body` (application/x-www-form-urlencoded), each byte
 * in its one canonical escape, sorted by name; pairs of one name keep their
 * order. A name counts up to its first '[': to most frameworks a[], a[x] and a
 * are one parameter, and the order among them means something. A pair without
 * '=' is not the same as one with nothing after it; empty pairs vanish.
 *
 * LK_MALFORMED: a '%' without two hexadecimal digits. LK_TOO_LARGE: longer
 * than LK_FORM_SIZE_MAX. LK_NOMEM. Then `out` is unchanged.
 */
LK_MUST_CHECK enum lk_status lk_form_canonical(struct lk_slice body,
                                               struct lk_buf *out);

/* Appends the value of the pair of that name, both decoded. LK_NOT_FOUND: there
 * is none, or two; LK_MALFORMED as above; LK_NOMEM. */
LK_MUST_CHECK enum lk_status lk_form_find(struct lk_slice body,
                                          struct lk_slice name,
                                          struct lk_buf *value);

#endif
