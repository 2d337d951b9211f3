/*
 * call.c - what a job may ask for: a path, a method and headers that cannot
 * lead anywhere but to its target; and what headers may hold at all.
 */
#include "store/jobs.h"

#include <string.h>
#include <strings.h>

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
}

/* The characters of a header's name and of a method (RFC 9110, token). */
static bool is_token(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (!is_alnum(c) && (!c || !strchr("!#$%&'*+-.^_`|~", c))) {
            return false;
        }
    }
    return text.len != 0;
}

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

static const char *segment_end(const char *at, const char *end)
{
    while (at < end && !ends_segment(at, end)) {
        at++;
    }
    return at;
}

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
        if (name.len == strlen(words[i]) &&
            !strncasecmp(name.data, words[i], name.len)) {
            return true;
        }
    }
    return name.len > 9 && !strncasecmp(name.data, "latchkey-", 9);
}

static const char *line_fault(struct lk_slice line, bool is_job)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;

    if (!colon || colon == line.data) {
        return "must be lines of the form Name: value";
    }
    struct lk_slice name = {line.data, (size_t)(colon - line.data)};
    if (!is_token(name)) {
        return "have a name with a character that no header's name has";
    }
    if (is_job && is_reserved(name)) {
        return "must not set the host, the framing of the message, "
               "Idempotency-Key, or what begins with Latchkey-";
    }
    for (const char *at = colon + 1; at < line.data + line.len; at++) {
        if (((unsigned char)*at < ' ' && *at != '\t') || *at == 0x7f) {
            return "contain a control character";
        }
    }
    return NULL;
}

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

const char *lk_target_name_fault(struct lk_slice name)
{
    if (!name.len || name.len > LK_TARGET_NAME_MAX) {
        return "must have 1 to 64 characters";
    }
    for (size_t i = 0; i < name.len; i++) {
        char c = name.data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!plain && (i == 0 || !c || !strchr("-_.", c))) {
            return "must be made of a-z, 0-9, '-', '_' and '.'";
        }
    }
    return NULL;
}
