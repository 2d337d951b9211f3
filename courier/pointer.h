/* pointer.h - the value that a JSON Pointer (RFC 6901) leads to in a text. */
#ifndef LK_COURIER_POINTER_H
#define LK_COURIER_POINTER_H

#include "latchkey.h"

/*
 * *value is the value at `pointer`, as it is spelled in `text`, whatever its
 * type. Of members with the same name the first one counts. LK_NOT_FOUND: it
 * leads nowhere. LK_MALFORMED: the text is no JSON as far as it was read (up to
 * what separates the value from what follows), or is nested too deeply; or the
 * pointer is none. LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_json_find(struct lk_slice text,
                                          struct lk_slice pointer,
                                          struct lk_slice *value);

/* Appends a string without its quotes and escapes, anything else as it is. */
LK_MUST_CHECK enum lk_status lk_json_plain(struct lk_slice value,
                                           struct lk_buf *out);

#endif
