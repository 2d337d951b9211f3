/* multipart.c - multipart bodies, told apart from their boundary. */
#include "lib/multipart.h"

#include "lib/http_syntax.h"
#include "lib/sort.h"

#include <string.h>

/* Cuts off and returns what stands before the first `mark`, which goes too;
 * all of it if there is none. */
static struct lk_slice cut(struct lk_slice *text, char mark)
{
    const char *found = text->len ? memchr(text->data, mark, text->len) : NULL;
    size_t len = found ? (size_t)(found - text->data) : text->len;
    struct lk_slice head = {text->data, len};

    text->data += found ? len + 1 : len;
    text->len -= found ? len + 1 : len;
    return head;
}

/* ---- Boundary ------------------------------------------------------------ */

static bool is_boundary(struct lk_slice text)
{
    static const char allowed[] = "'()+_,-./:=? ";

    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = lk_lower(text.data[i]);
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') &&
            !memchr(allowed, c, sizeof allowed - 1)) {
            return false;
        }
    }
    return text.len && text.len <= LK_MULTIPART_BOUNDARY_MAX &&
           text.data[text.len - 1] != ' ';
}

/* Reads the value of a parameter off the front of `rest`, and its semicolon. */
static bool read_parameter_value(struct lk_slice *rest, struct lk_slice *value)
{
    *rest = lk_trim(*rest);
    if (!rest->len || rest->data[0] != '"') {
        *value = lk_trim(cut(rest, ';'));
        return !memchr(value->data, '"', value->len);
    }
    rest->data++;
    rest->len--;
    if (!memchr(rest->data, '"', rest->len)) {
        return false;
    }
    *value = cut(rest, '"');
    /* Parsers disagree about backslashes here. */
    return !memchr(value->data, '\\', value->len) &&
           !lk_trim(cut(rest, ';')).len;
}

/* Finds the one boundary parameter. */
static enum lk_status find_boundary(struct lk_slice content_type,
                                    struct lk_slice *boundary)
{
    struct lk_slice rest = content_type, value;
    bool found = false;

    cut(&rest, ';');
    while (rest.len) {
        struct lk_slice tail = rest, parameter = cut(&tail, ';');
        if (!lk_trim(parameter).len) {
            rest = tail;
            continue;
        }
        if (!memchr(parameter.data, '=', parameter.len)) {
            return LK_MALFORMED;
        }
        struct lk_slice name = lk_trim(cut(&rest, '='));
        if (!read_parameter_value(&rest, &value)) {
            return LK_MALFORMED;
        }
        /* boundary*, of RFC 2231: some parsers know it, some do not. */
        struct lk_slice head = {name.data, name.len < 8 ? name.len : 8};
        if (lk_compare_lower(head, LK_SLICE("boundary"))) {
            continue;
        }
        if (found || name.len != 8 || !is_boundary(value)) {
            return LK_MALFORMED;
        }
        *boundary = value;
        found = true;
    }
    return found ? LK_OK : LK_MALFORMED;
}

/* ---- Parts --------------------------------------------------------------- */

/* Reads a line that ends in CRLF off the front of `rest`. */
static bool read_line(struct lk_slice *rest, struct lk_slice *line)
{
    const char *end = rest->len ? memchr(rest->data, '\n', rest->len) : NULL;

    if (!end || end == rest->data || end[-1] != '\r') {
        return false;
    }
    *line = cut(rest, '\n');
    line->len--;
    return true;
}

static bool is_token(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c)) {
            return false;
        }
    }
    return text.len > 0;
}

static bool is_field_text(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if ((c < ' ' && c != '\t') || c == 0x7f) {
            return false;
        }
    }
    return true;
}

/* Reads the header lines of a part and the empty one after them. */
static enum lk_status read_headers(struct lk_slice *part,
                                   struct lk_header *headers, size_t *count)
{
    struct lk_slice line;

    *count = 0;
    for (;;) {
        if (!read_line(part, &line)) {
            return LK_MALFORMED;
        }
        if (!line.len) {
            return LK_OK;
        }
        if (*count == LK_MULTIPART_HEADERS_MAX ||
            !memchr(line.data, ':', line.len)) {
            return LK_MALFORMED;
        }
        struct lk_header *header = &headers[(*count)++];
        header->name = cut(&line, ':');
        header->value = lk_trim(line);
        if (!is_token(header->name) || !is_field_text(header->value)) {
            return LK_MALFORMED;
        }
    }
}

static enum lk_status write_header(const struct lk_header *header,
                                   struct lk_buf *out)
{
    enum lk_status status = lk_add_lower(header->name, out);

    if (!status) {
        status = latchkey_buf_add(out, ": ", 2);
    }
    if (!status) {
        status = latchkey_buf_add_slice(out, header->value);
    }
    return status ? status : latchkey_buf_add(out, "\n", 1);
}

static enum lk_status write_part(struct lk_slice part, struct lk_buf *out)
{
    struct lk_header headers[LK_MULTIPART_HEADERS_MAX];
    size_t count;
    enum lk_status status = read_headers(&part, headers, &count);

    if (!status) {
        status =
            lk_sort(headers, count, sizeof *headers, lk_compare_headers, NULL);
    }
    if (!status) {
        status = latchkey_buf_printf(out, "part %zu %zu\n", count, part.len);
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = write_header(&headers[i], out);
    }
    if (!status) {
        status = latchkey_buf_add_slice(out, part);
    }
    return status ? status : latchkey_buf_add(out, "\n", 1);
}

static bool starts_with(struct lk_slice text, struct lk_slice head)
{
    return text.len >= head.len && !memcmp(text.data, head.data, head.len);
}

/* What follows "--boundary--": nothing, or the end of the line. */
static bool is_end(struct lk_slice text)
{
    return !text.len || latchkey_slice_equal(text, LK_SLICE("\r\n"));
}

/*
 * Goes from one delimiter ("--boundary") to the next. The delimiter is looked
 * for everywhere, not only at the start of lines: some parsers would find it
 * there. It is short, so the search takes linear time.
 */
static enum lk_status write_parts(struct lk_slice rest,
                                  struct lk_slice delimiter, struct lk_buf *out)
{
    if (!starts_with(rest, delimiter)) {
        return LK_MALFORMED;
    }
    for (;;) {
        rest.data += delimiter.len;
        rest.len -= delimiter.len;
        bool last = starts_with(rest, LK_SLICE("--"));
        if (!last && !starts_with(rest, LK_SLICE("\r\n"))) {
            return LK_MALFORMED;
        }
        rest.data += 2;
        rest.len -= 2;
        if (last) {
            return is_end(rest) ? LK_OK : LK_MALFORMED;
        }
        const char *next =
            memmem(rest.data, rest.len, delimiter.data, delimiter.len);
        if (!next || next - rest.data < 2 || memcmp(next - 2, "\r\n", 2) != 0) {
            return LK_MALFORMED;
        }
        struct lk_slice part = {rest.data, (size_t)(next - rest.data) - 2};
        enum lk_status status = write_part(part, out);
        if (status) {
            return status;
        }
        rest.len -= (size_t)(next - rest.data);
        rest.data = next;
    }
}

enum lk_status lk_multipart_canonical(struct lk_slice content_type,
                                      struct lk_slice body, struct lk_buf *out)
{
    char delimiter[LK_MULTIPART_BOUNDARY_MAX + 2] = "--";
    size_t mark = out->len;
    struct lk_slice boundary = {0};
    enum lk_status status = find_boundary(content_type, &boundary);

    if (status) {
        return status;
    }
    memcpy(delimiter + 2, boundary.data, boundary.len);
    status =
        write_parts(body, (struct lk_slice){delimiter, boundary.len + 2}, out);
    if (status) {
        out->len = mark;
    }
    return status;
}
