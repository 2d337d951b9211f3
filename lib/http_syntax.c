/*
 * http_syntax.c - header lines, methods and paths of HTTP: read, compared and
 * checked.
 *
 * X_fault() returns what is wrong, as the end of a sentence that begins with
 * the name of the thing, or NULL. There are three degrees of strictness: what a
 * job may have (strict: we send it), what a stored response or an accepted
 * request may have, and the least that keeps one call one call.
 */
#include "lib/http_syntax.h"

#include <string.h>
#include <strings.h>

/* ---- Letters and names --------------------------------------------------- */

/* ASCII only, whatever the locale is. */
unsigned char lk_lower(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
}

/* Appends `text` in lower case. LK_NOMEM: nothing was added. */
enum lk_status lk_add_lower(struct lk_slice text, struct lk_buf *out)
{
    enum lk_status status = latchkey_buf_reserve(out, text.len);

    for (size_t i = 0; i < text.len && !status; i++) {
        out->data[out->len++] = (char)lk_lower(text.data[i]);
    }
    return status;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

struct lk_slice lk_trim(struct lk_slice text)
{
    while (text.len && is_blank(text.data[text.len - 1])) {
        text.len--;
    }
    while (text.len && is_blank(text.data[0])) {
        text.data++;
        text.len--;
    }
    return text;
}

/* The order of the lower-case bytes; a text comes behind its own beginning. */
int lk_compare_lower(struct lk_slice a, struct lk_slice b)
{
    for (size_t i = 0; i < a.len && i < b.len; i++) {
        int order = lk_lower(a.data[i]) - lk_lower(b.data[i]);
        if (order) {
            return order;
        }
    }
    return (a.len > b.len) - (a.len < b.len);
}

int lk_compare_headers(const void *a, const void *b, const void *unused)
{
    const struct lk_header *x = a, *y = b;

    return lk_compare_lower(x->name, y->name);
}

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
}

/* A token of RFC 9110: 1*tchar. */
bool lk_is_token(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (!is_alnum(c) && (!c || !strchr("!#$%&'*+-.^_`|~", c))) {
            return false;
        }
    }
    return text.len != 0;
}

/* ---- Blocks of header lines ---------------------------------------------- */

/* Cuts a line off the front of `block`; false: there is none left. LF or CR LF
 * ends a line, and so does the end of the block; neither is part of *line. */
bool lk_header_line(struct lk_slice *block, struct lk_slice *line)
{
    if (!block->len) {
        return false;
    }
    const char *stop = memchr(block->data, '\n', block->len);
    size_t size = stop ? (size_t)(stop - block->data) + 1 : block->len;

    *line = (struct lk_slice){block->data, size - (stop ? 1 : 0)};
    line->len -= line->len && line->data[line->len - 1] == '\r';
    block->data += size;
    block->len -= size;
    return true;
}

/* "Name: value" without blanks around the value. False: there is no colon, or
 * no name in front of it. */
bool lk_header_split(struct lk_slice line, struct lk_slice *name,
                     struct lk_slice *value)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;

    if (!colon || colon == line.data) {
        return false;
    }
    *name = (struct lk_slice){line.data, (size_t)(colon - line.data)};
    *value = lk_trim((struct lk_slice){colon + 1, line.len - name->len - 1});
    return true;
}

/* The value of the first line of that name, in any case; an empty slice if
 * there is none. */
struct lk_slice lk_http_header(struct lk_slice headers, const char *name)
{
    struct lk_slice wanted = latchkey_slice(name);
    struct lk_slice line, found, value;

    while (lk_header_line(&headers, &line)) {
        if (lk_header_split(line, &found, &value) &&
            !lk_compare_lower(found, wanted)) {
            return value;
        }
    }
    return (struct lk_slice){0};
}

/* Any control character but the tab. */
static bool has_control(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return true;
        }
    }
    return false;
}

/* ---- Checks of header lines ---------------------------------------------- */

/* Those that frame the message, name the host, or are the courier's own. */
static bool is_reserved(struct lk_slice name)
{
    static const char *const words[] = {"host",
                                        "content-length",
                                        "transfer-encoding",
                                        "connection",
                                        "upgrade",
                                        "te",
                                        "trailer",
                                        "keep-alive",
                                        "expect",
                                        "proxy-connection",
                                        "idempotency-key",
                                        "webhook-id",
                                        "webhook-timestamp",
                                        "webhook-signature"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!lk_compare_lower(name, latchkey_slice(words[i]))) {
            return true;
        }
    }
    return name.len > 9 && !strncasecmp(name.data, "latchkey-", 9);
}

/* What is wrong with one line, without its CR LF, or NULL. */
static const char *line_fault(struct lk_slice line, bool is_job)
{
    struct lk_slice name, value;

    if (!lk_header_split(line, &name, &value)) {
        return "must be lines of the form Name: value";
    }
    if (!lk_is_token(name)) {
        return "have a name with a character that no header's name has";
    }
    if (is_job && is_reserved(name)) {
        return "must not set the host, the framing of the message, "
               "Idempotency-Key, or what begins with Latchkey-";
    }
    return has_control(line) ? "contain a control character" : NULL;
}

/* What is wrong with a block in which every line ends in CR LF, or NULL.
 * *number is the line, from 1, that has the fault. */
static const char *lines_fault(struct lk_slice headers, bool is_job,
                               size_t *number)
{
    const char *at = headers.data;
    const char *end = at + headers.len;

    for (*number = 1; at < end; ++*number) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop || stop == at || stop[-1] != '\r') {
            return "must be lines that end in CR LF";
        }
        const char *fault =
            line_fault((struct lk_slice){at, (size_t)(stop - 1 - at)}, is_job);
        if (fault) {
            return fault;
        }
        at = stop + 1;
    }
    return NULL;
}

const char *lk_headers_fault(struct lk_slice headers, size_t *line)
{
    return lines_fault(headers, true, line);
}

const char *lk_header_lines_fault(struct lk_slice headers, size_t *line)
{
    return lines_fault(headers, false, line);
}

/* The lenient check: LF alone ends a line too, and names are not looked at. */
const char *lk_http_lines_fault(struct lk_slice lines)
{
    struct lk_slice line, name, value;

    while (lk_header_line(&lines, &line)) {
        if (!lk_header_split(line, &name, &value)) {
            return "must be lines of the form Name: value";
        }
        if (has_control(line)) {
            return "contain a control character";
        }
    }
    return NULL;
}

/* ---- Checks of paths ----------------------------------------------------- */

/* One dot, plain or as %2e; the number of bytes, or 0. */
static size_t dot_at(const char *at, const char *end)
{
    if (at < end && *at == '.') {
        return 1;
    }
    return end - at >= 3 && !strncasecmp(at, "%2e", 3) ? 3 : 0;
}

/* Is the segment from `at` to `end` "." or ".."? */
static bool is_dots(const char *at, const char *end)
{
    size_t one = dot_at(at, end);
    size_t two = one ? dot_at(at + one, end) : 0;

    return one && at + one + two == end;
}

/* Servers differ in what they take for the end of a segment, and in when they
 * decode it: all of them count. */
static bool ends_segment(const char *at, const char *end)
{
    static const char *const encoded[] = {"%2f", "%5c", "%3b",
                                          "%3f", "%23", "%00"};

    if (*at == '/' || *at == ';') {
        return true;
    }
    for (size_t i = 0; i < sizeof(encoded) / sizeof(encoded[0]); i++) {
        if (end - at >= 3 && !strncasecmp(at, encoded[i], 3)) {
            return true;
        }
    }
    return false;
}

/* `end` if nothing ends the segment before. */
static const char *segment_end(const char *at, const char *end)
{
    while (at < end && !ends_segment(at, end)) {
        at++;
    }
    return at;
}

/* Is there a "." or ".." segment, in any spelling? A server would resolve it
 * and call another path than the one that was checked. */
static bool leaves_its_place(const char *at, const char *end)
{
    while (at < end) {
        const char *stop = segment_end(at, end);
        if (is_dots(at, stop)) {
            return true;
        }
        if (stop == end) {
            return false;
        }
        at = stop + (*stop == '%' ? 3 : 1);
    }
    return false;
}

/* The path and query of a job: "/" and printable ASCII, at most LK_PATH_MAX
 * bytes. Two slashes at the front would be a host to some clients. */
const char *lk_path_fault(struct lk_slice path)
{
    if (!path.len || path.data[0] != '/') {
        return "must begin with a slash";
    }
    if (path.len > LK_PATH_MAX) {
        return "is longer than 8192 bytes";
    }
    if (path.len > 1 && path.data[1] == '/') {
        return "must not begin with two slashes";
    }
    for (size_t i = 0; i < path.len; i++) {
        char c = path.data[i];
        if (c <= ' ' || c > '~') {
            return "must be printable ASCII without spaces";
        }
        if (c == '\\' || c == '#') {
            return "must not contain a backslash or a fragment";
        }
    }
    const char *query = memchr(path.data, '?', path.len);
    if (leaves_its_place(path.data + 1, query ? query : path.data + path.len)) {
        return "must not contain \".\" or \"..\" as a segment";
    }
    return NULL;
}

/* The path of a request that came from a client: the gateway passed it on as it
 * is, so only what would break the request line is refused. */
const char *lk_request_path_fault(struct lk_slice path)
{
    if (!path.len || path.data[0] != '/') {
        return "must begin with a slash";
    }
    if (path.len > LK_PATH_MAX) {
        return "is longer than 8192 bytes";
    }
    for (size_t i = 0; i < path.len; i++) {
        unsigned char c = (unsigned char)path.data[i];
        if (c <= ' ' || c == 0x7f) {
            return "must not contain spaces or control characters";
        }
    }
    return NULL;
}

/* ---- Checks of methods --------------------------------------------------- */

const char *lk_method_fault(struct lk_slice method)
{
    static const char *const known[] = {"GET", "POST", "PUT", "PATCH",
                                        "DELETE"};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (latchkey_slice_equal(method, latchkey_slice(known[i]))) {
            return NULL;
        }
    }
    return "must be GET, POST, PUT, PATCH or DELETE";
}

const char *lk_request_method_fault(struct lk_slice method)
{
    for (size_t i = 0; i < method.len; i++) {
        char c = method.data[i];
        if (c < 'A' || c > 'Z') {
            return "must be made of upper-case letters";
        }
    }
    return method.len && method.len <= LK_METHOD_MAX
               ? NULL
               : "must have 1 to 16 letters";
}

const char *lk_http_method_fault(struct lk_slice method)
{
    if (!method.len || method.len > LK_METHOD_MAX) {
        return "must have 1 to 16 characters";
    }
    for (size_t i = 0; i < method.len; i++) {
        char c = method.data[i];
        if ((c < 'A' || c > 'Z') && c != '-' && c != '_') {
            return "must be made of capital letters";
        }
    }
    return NULL;
}
