/*
 * http_syntax.h - header lines, methods and paths of HTTP: read, compared and
 * checked.
 *
 * Functions named ..._fault return NULL if all is well, or what is wrong in
 * words for people, to be put behind the name of the thing: "the path must
 * begin with a slash".
 */
#ifndef LK_HTTP_SYNTAX_H
#define LK_HTTP_SYNTAX_H

#include "latchkey.h"

enum { LK_METHOD_MAX = 16, LK_PATH_MAX = 8192 };

/* ---- Letters and names --------------------------------------------------- */

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
/* At least one character, and none that a token (RFC 9110) cannot have. */
bool lk_is_token(struct lk_slice text);

/* ---- Blocks of header lines ---------------------------------------------- */

/* Takes the next line off a block; it comes without its line end (LF or CR LF).
 * False: there is none. */
bool lk_header_line(struct lk_slice *block, struct lk_slice *line);
/* Splits a line at its first colon; the value is trimmed. False: there is no
 * colon, or nothing in front of it. */
bool lk_header_split(struct lk_slice line, struct lk_slice *name,
                     struct lk_slice *value);
/* The value of the first header of that name, or {NULL, 0}. */
struct lk_slice lk_http_header(struct lk_slice block, const char *name);

/* ---- Checks of stored responses and accepted requests -------------------- */

/* "Name: value\r\n" lines, the name a token, the value without control
 * characters but tabs, so that none hides in another. *line is the line that
 * has the fault, from 1 on. */
const char *lk_header_lines_fault(struct lk_slice headers, size_t *line);
/* Of a request as the gateway received it: the path begins with a slash and has
 * no spaces or control characters, the method is made of capital letters. */
const char *lk_request_path_fault(struct lk_slice path);
const char *lk_request_method_fault(struct lk_slice method);

/* ---- Checks of jobs ------------------------------------------------------ */

/*
 * A path begins with one slash and stays below the target's URL; it holds no
 * host, no "..", plain or encoded, no fragment and nothing but printable ASCII.
 * Headers are as lk_header_lines_fault wants them, and none of them frames the
 * message or belongs to the courier.
 */
const char *lk_path_fault(struct lk_slice path);
const char *lk_method_fault(struct lk_slice method);
const char *lk_headers_fault(struct lk_slice headers, size_t *line);

/* ---- Checks right before a call ------------------------------------------ */

/* The least that keeps a call one call: lines with a name and no control
 * characters; a method of capital letters, '-' and '_'. */
const char *lk_http_lines_fault(struct lk_slice lines);
const char *lk_http_method_fault(struct lk_slice method);

#endif
