/* body.h - canonical forms of URL-encoded and multipart bodies. */
#ifndef LK_BODY_H
#define LK_BODY_H

#include "latchkey.h"

/* ---- URL-encoded forms ----------------------------------------------------
 */

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

/* ---- Multipart ------------------------------------------------------------
 */

enum {
    LK_MULTIPART_BOUNDARY_MAX = 70, /* as RFC 2046 says */
    LK_MULTIPART_HEADERS_MAX = 64   /* of one part */
};

/*
 * Appends the parts of `body`, in order, each as a line "part HEADERS BYTES",
 * its header lines (names in lower case, sorted, those of one name in their
 * order), and its bytes. `content_type` is the whole header value, for the
 * boundary.
 *
 * LK_MALFORMED: anything that two parsers could read differently: no boundary
 * or two, a preamble or epilogue, line ends other than CRLF, space after a
 * boundary, the boundary in the middle of a line, folded or broken header
 * lines, too many of them. LK_NOMEM. Then `out` is unchanged.
 */
LK_MUST_CHECK enum lk_status lk_multipart_canonical(
    struct lk_slice content_type, struct lk_slice body, struct lk_buf *out);

#endif
