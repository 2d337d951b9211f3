/* multipart.h - multipart bodies, told apart from their boundary. */
#ifndef LK_MULTIPART_H
#define LK_MULTIPART_H

#include "latchkey.h"

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
