/*
 * body.c - canonical forms of bodies: URL-encoded forms, and multipart bodies
 * without their boundary.
 */
#include "lib/body.h"
#include "lib/http_syntax.h"
#include "lib/sort.h"

#include <string.h>

/* ==== URL-encoded forms ================================================= */

/* A pair in the canonical text. Offsets fit: it is at most 3 times as long. */
struct pair {
    uint32_t start;
    uint32_t name;     /* where its name begins, after spaces */
    uint32_t name_end; /* where its name ends or has its first '[' */
    uint32_t end;
};

/*
 * Where a name is, and which parameter it names. PHP and others disagree about
 * a NUL, a ']' before any '[', and a '[' at the beginning or without its ']':
 * such a name is BROKEN.
 */
enum name_state { BLANK, BASE, OPEN, CLOSED, BROKEN };

static int hex_value(char c)
{
    char lower = (char)(c | 0x20);

    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static bool stands_for_itself(unsigned char c)
{
    unsigned char lower = c | 0x20;

    return (c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'z') ||
           c == '-' || c == '.' || c == '_' || c == '~';
}

/* Appends one decoded byte; `text` has room. */
static void put_byte(unsigned char c, struct lk_buf *text)
{
    static const char digits[] = "0123456789ABCDEF";

    if (stands_for_itself(c)) {
        text->data[text->len++] = (char)c;
        return;
    }
    text->data[text->len++] = '%';
    text->data[text->len++] = digits[c >> 4];
    text->data[text->len++] = digits[c & 15];
}

/* Decodes the byte at *at and goes on to the next. False: a bad escape. */
static bool read_byte(struct lk_slice body, size_t *at, unsigned char *c)
{
    char first = body.data[(*at)++];

    if (first != '%') {
        *c = first == '+' ? ' ' : (unsigned char)first;
        return true;
    }
    if (body.len - *at < 2) {
        return false;
    }
    int high = hex_value(body.data[*at]), low = hex_value(body.data[*at + 1]);
    if (high < 0 || low < 0) {
        return false;
    }
    *c = (unsigned char)(high << 4 | low);
    *at += 2;
    return true;
}

/* The state after one more decoded byte of a name. */
static enum name_state next_state(enum name_state state, unsigned char c)
{
    bool in_base = state == BLANK || state == BASE;

    if (c == '\0' || (in_base && c == ']') || (state == BLANK && c == '[')) {
        return BROKEN;
    }
    if (state == BLANK && c == ' ') {
        return BLANK;
    }
    if (in_base) {
        return c == '[' ? OPEN : BASE;
    }
    return state == OPEN && c == ']' ? CLOSED : state;
}

/* Respells the pair at *at, up to '&' or the end, into `text`, which has room.
 * False: a bad escape, or a name that apps would read in different ways. */
static bool read_pair(struct lk_slice body, size_t *at, struct lk_buf *text,
                      struct pair *pair)
{
    enum name_state state = BLANK;
    bool in_name = true;
    unsigned char c;

    pair->start = pair->name = pair->name_end = (uint32_t)text->len;
    while (*at < body.len && body.data[*at] != '&') {
        if (in_name && body.data[*at] == '=') {
            in_name = false;
            text->data[text->len++] = '=';
            (*at)++;
            continue;
        }
        if (!read_byte(body, at, &c)) {
            return false;
        }
        put_byte(c, text);
        if (in_name) {
            state = next_state(state, c);
        }
        if (in_name && (state == BLANK || state == BASE)) {
            pair->name_end = (uint32_t)text->len;
        }
        if (in_name && state == BLANK) {
            pair->name = pair->name_end;
        }
    }
    pair->end = (uint32_t)text->len;
    return state != BROKEN && state != OPEN;
}

/* The next sign of a name; 0: its end. To PHP '.' and ' ' in it are '_'. */
static int next_sign(const char *text, uint32_t *at, uint32_t end)
{
    if (*at == end) {
        return 0;
    }
    if (end - *at >= 3 && !memcmp(text + *at, "%20", 3)) {
        *at += 3;
        return '_';
    }
    char c = text[(*at)++];
    return c == '.' ? '_' : c; /* ASCII, and no NUL */
}

/*
 * Any fixed order would do; this is the order of the escaped bytes. Names that
 * an app may take for the same name are equal, so that they stay as sent.
 */
static int compare_pairs(const void *a, const void *b, const void *text)
{
    const struct pair *x = a, *y = b;
    uint32_t x_at = x->name, y_at = y->name;
    int x_sign, y_sign;

    do {
        x_sign = next_sign(text, &x_at, x->name_end);
        y_sign = next_sign(text, &y_at, y->name_end);
    } while (x_sign == y_sign && x_sign);
    return x_sign - y_sign;
}

/* Every pair of the body, respelled in `text`; empty ones are left out. */
static enum lk_status read_pairs(struct lk_slice body, struct lk_buf *text,
                                 struct lk_buf *pairs)
{
    /* Beside the escapes, three bytes for one. */
    enum lk_status status = latchkey_buf_reserve(text, 3 * body.len);

    for (size_t at = 0; at < body.len && !status; at++) {
        struct pair pair;
        if (!read_pair(body, &at, text, &pair)) {
            return LK_MALFORMED;
        }
        if (pair.end > pair.start) {
            status = latchkey_buf_add(pairs, &pair, sizeof pair);
        }
    }
    return status;
}

/* Appends the pairs in their new order. */
static enum lk_status emit_pairs(const struct lk_buf *text,
                                 const struct lk_buf *pairs, struct lk_buf *out)
{
    const struct pair *pair = (const struct pair *)(const void *)pairs->data;
    size_t count = pairs->len / sizeof *pair;
    enum lk_status status = latchkey_buf_reserve(out, text->len + count);

    for (size_t i = 0; i < count && !status; i++, pair++) {
        if (i) {
            status = latchkey_buf_add(out, "&", 1);
        }
        if (!status) {
            status = latchkey_buf_add(out, text->data + pair->start,
                                      pair->end - pair->start);
        }
    }
    return status;
}

/*
 * Appends the canonical form: one spelling of each byte, pairs sorted by name;
 * pairs of the same name stay in the order in which they came, which may
 * matter. LK_MALFORMED, LK_TOO_LARGE: the caller takes the raw bytes instead.
 */
enum lk_status lk_form_canonical(struct lk_slice body, struct lk_buf *out)
{
    struct lk_buf text = {0}, pairs = {0};

    if (body.len > LK_FORM_SIZE_MAX) {
        return LK_TOO_LARGE;
    }
    enum lk_status status = read_pairs(body, &text, &pairs);
    if (!status) {
        status = lk_sort(pairs.data, pairs.len / sizeof(struct pair),
                         sizeof(struct pair), compare_pairs, text.data);
    }
    if (!status) {
        status = emit_pairs(&text, &pairs, out);
    }
    latchkey_buf_free(&text);
    latchkey_buf_free(&pairs);
    return status;
}

/* Decodes up to `end` or '&'; false: a bad escape. `text` has room. */
static bool decode_until(struct lk_slice body, size_t *at, char end,
                         struct lk_buf *text)
{
    unsigned char c;

    while (*at < body.len && body.data[*at] != '&' && body.data[*at] != end) {
        if (!read_byte(body, at, &c)) {
            return false;
        }
        text->data[text->len++] = (char)c;
    }
    return true;
}

/*
 * Appends the decoded value of the one pair called `name`. LK_NOT_FOUND: there
 * is none, or more than one. Decoding never makes a text longer, so `text` does
 * not move and slices of it stay valid.
 */
enum lk_status lk_form_find(struct lk_slice body, struct lk_slice name,
                            struct lk_buf *value)
{
    struct lk_buf text = {0};
    struct lk_slice found = {0};
    size_t count = 0;
    enum lk_status status = latchkey_buf_reserve(&text, body.len + 1);

    for (size_t at = 0; at < body.len && !status; at++) {
        struct lk_slice pair = {text.data + text.len, 0};

        if (!decode_until(body, &at, '=', &text)) {
            status = LK_MALFORMED;
            break;
        }
        pair.len = (size_t)(text.data + text.len - pair.data);
        bool same = latchkey_slice_equal(pair, name);
        pair.data += pair.len;
        at += at < body.len && body.data[at] == '=';
        if (!decode_until(body, &at, '&', &text)) {
            status = LK_MALFORMED;
        }
        if (same) {
            pair.len = (size_t)(text.data + text.len - pair.data);
            found = pair;
            count++;
        }
    }
    if (!status) {
        status =
            count == 1 ? latchkey_buf_add_slice(value, found) : LK_NOT_FOUND;
    }
    latchkey_buf_free(&text);
    return status;
}

/* ==== Multipart ========================================================= */

/* Cuts off and returns what is in front of the first `mark`, which goes too;
 * all of it if there is none. */
static struct lk_slice cut_from(struct lk_slice *text, char mark)
{
    const char *found = text->len ? memchr(text->data, mark, text->len) : NULL;
    size_t len = found ? (size_t)(found - text->data) : text->len;
    struct lk_slice head = {text->data, len};

    text->data += found ? len + 1 : len;
    text->len -= found ? len + 1 : len;
    return head;
}

/* ---- Boundary ------------------------------------------------------------ */

/* bchars of RFC 2046, 1 to 70 of them, no space at the end. */
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
        *value = lk_trim(cut_from(rest, ';'));
        return !memchr(value->data, '"', value->len);
    }
    rest->data++;
    rest->len--;
    if (!memchr(rest->data, '"', rest->len)) {
        return false;
    }
    *value = cut_from(rest, '"');
    /* Parsers disagree about backslashes here. */
    return !memchr(value->data, '\\', value->len) &&
           !lk_trim(cut_from(rest, ';')).len;
}

/* Finds the one boundary parameter. LK_MALFORMED: there is none, there are
 * several, or parsers would disagree about it. */
static enum lk_status find_boundary(struct lk_slice content_type,
                                    struct lk_slice *boundary)
{
    struct lk_slice rest = content_type, value;
    bool found = false;

    cut_from(&rest, ';');
    while (rest.len) {
        struct lk_slice tail = rest, parameter = cut_from(&tail, ';');
        if (!lk_trim(parameter).len) {
            rest = tail;
            continue;
        }
        if (!memchr(parameter.data, '=', parameter.len)) {
            return LK_MALFORMED;
        }
        struct lk_slice name = lk_trim(cut_from(&rest, '='));
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
static bool read_header_line(struct lk_slice *rest, struct lk_slice *line)
{
    const char *end = rest->len ? memchr(rest->data, '\n', rest->len) : NULL;

    if (!end || end == rest->data || end[-1] != '\r') {
        return false;
    }
    *line = cut_from(rest, '\n');
    line->len--;
    return true;
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
        if (!read_header_line(part, &line)) {
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
        header->name = cut_from(&line, ':');
        header->value = lk_trim(line);
        if (!lk_is_token(header->name) || !is_field_text(header->value)) {
            return LK_MALFORMED;
        }
    }
}

static enum lk_status write_part_header(const struct lk_header *header,
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

/* "part COUNT LENGTH\n", the sorted headers, and the bytes of the part. The
 * counts keep two bodies apart whose bytes run together in the same way. */
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
        status = write_part_header(&headers[i], out);
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
static bool is_closing(struct lk_slice text)
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
            return is_closing(rest) ? LK_OK : LK_MALFORMED;
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

/* Appends the parts in their order, without the boundary, which clients choose
 * at random. On an error `out` is as it was. */
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
