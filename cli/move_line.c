/* move_line.c - lines of an export: written, read, and taken from a reply. */
#include "cli/move.h"

#include "lib/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void lk_line_free(struct lk_line *line)
{
    lk_stored_unref(line->record.stored);
    latchkey_buf_free(&line->bytes);
    *line = (struct lk_line){0};
}

/* ---- Writing --------------------------------------------------------------
 */

static uint64_t number_of(const struct lk_line *line,
                          const struct lk_field_row *row)
{
    const void *at = lk_line_field(line, row);

    switch (row->kind) {
    case LK_FIELD_NUMBER:
        return *(const uint64_t *)at;
    case LK_FIELD_STATUS:
        return *(const unsigned *)at;
    case LK_FIELD_FLAG:
        return *(const bool *)at;
    default:
        return 0;
    }
}

static void write_field(struct lk_doc *doc, const struct lk_line *line,
                        const struct lk_field_row *row)
{
    const void *at = lk_line_field(line, row);

    if (row->kind == LK_FIELD_STATE) {
        lk_doc_text(doc, row->name,
                    latchkey_slice(lk_state_word(*(const enum lk_state *)at)));
    } else if (row->kind == LK_FIELD_BYTES) {
        if (((const struct lk_slice *)at)->len > 0) {
            lk_doc_text(doc, row->name, *(const struct lk_slice *)at);
        }
    } else if (number_of(line, row) != 0 || row->needed) {
        lk_doc_integer(doc, row->name, (int64_t)number_of(line, row));
    }
}

void lk_line_write(struct lk_buf *out, const struct lk_line *line)
{
    struct lk_doc doc = {.out = out};
    const struct lk_field_row *row = lk_line_fields[line->type];

    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "type", latchkey_slice(lk_line_words[line->type]));
    for (; row->name != NULL; row++) {
        write_field(&doc, line, row);
    }
    lk_doc_end_object(&doc);
}

/* ---- Taking a reply -------------------------------------------------------
 */

static void set_number(struct lk_line *line, const struct lk_field_row *row,
                       uint64_t number)
{
    void *at = lk_line_field(line, row);

    switch (row->kind) {
    case LK_FIELD_NUMBER:
        *(uint64_t *)at = number;
        break;
    case LK_FIELD_STATUS:
        *(unsigned *)at = (unsigned)number;
        break;
    case LK_FIELD_FLAG:
        *(bool *)at = number != 0;
        break;
    default:
        break;
    }
}

/* False: a state that is not known. */
static bool set_bytes(struct lk_line *line, const struct lk_field_row *row,
                      struct lk_slice bytes)
{
    void *at = lk_line_field(line, row);

    if (row->kind == LK_FIELD_STATE) {
        return lk_state_parse(bytes, at);
    }
    if (row->kind == LK_FIELD_BYTES) {
        *(struct lk_slice *)at = bytes;
    }
    return true;
}

void lk_line_take(struct lk_line *line, enum lk_line_type type,
                  const struct lk_reply *list)
{
    lk_line_free(line);
    line->type = type;
    for (const struct lk_field_row *row = lk_line_fields[type];
         row->name != NULL; row++) {
        const struct lk_reply *value = lk_field(list, row->name);

        if (value != NULL && value->type == LK_REPLY_INTEGER) {
            set_number(line, row, (uint64_t)value->integer);
        } else if (value != NULL) {
            /* A state that is not known shows as "absent", and import says
             * so. */
            (void)set_bytes(line, row, value->text);
        }
    }
}

/* ---- Reading --------------------------------------------------------------
 */

/* Bytes of a line lie behind each other while it is read, and move when there
 * is no room: their slices are set at the end. */
enum { SPANS_MAX = 24 };

struct span {
    const struct lk_field_row *row;
    size_t start;
    size_t len;
};

struct parse {
    struct lk_slice text;
    size_t at;
    struct lk_line *line;
    struct lk_buf name;
    struct span spans[SPANS_MAX];
    size_t span_count;
    uint64_t seen; /* a bit for each row of the table */
    bool typed;
    struct lk_buf *wrong;
};

static enum lk_status refuse(struct parse *parse, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static enum lk_status refuse(struct parse *parse, const char *format, ...)
{
    char text[256];
    va_list values;

    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    lk_put(parse->wrong, "%s", text);
    return LK_MALFORMED;
}

/* The next byte that is no space; a NUL at the end. */
static char peek(struct parse *parse)
{
    while (parse->at < parse->text.len) {
        char c = parse->text.data[parse->at];

        if (c != ' ' && c != '\t' && c != '\r') {
            break;
        }
        parse->at++;
    }
    return parse->at < parse->text.len ? parse->text.data[parse->at] : '\0';
}

static enum lk_status expect(struct parse *parse, char wanted)
{
    if (peek(parse) != wanted) {
        return refuse(parse, "it is not a JSON object of one level, or was "
                             "cut; name a file that latchkey export wrote");
    }
    parse->at++;
    return LK_OK;
}

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* In place; false: it is none. */
static bool decode_base64(char *data, size_t *len)
{
    size_t digits = *len;
    size_t out = 0;

    if (digits % 4 != 0) {
        return false;
    }
    for (int i = 0; i < 2 && digits > 0 && data[digits - 1] == '='; i++) {
        digits--;
    }
    for (size_t i = 0, bits = 0, value = 0; i < digits; i++) {
        int digit = base64_digit(data[i]);

        if (digit < 0) {
            return false;
        }
        value = (value << 6 | (size_t)digit) & 0xffffff;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            data[out++] = (char)(value >> bits & 0xff);
        }
    }
    *len = out;
    return true;
}

static enum lk_status read_text(struct parse *parse,
                                const struct lk_field_row *row, bool base64)
{
    struct lk_buf *bytes = &parse->line->bytes;
    struct span *span = &parse->spans[parse->span_count];
    size_t start = bytes->len;
    enum lk_status status = lk_json_read_string(parse->text, &parse->at, bytes);
    size_t len = bytes->len - start;

    if (status == LK_NOMEM) {
        return status;
    }
    if (status != LK_OK) {
        return refuse(parse, "the text of \"%s\" is no JSON string, or was cut",
                      row->name);
    }
    if (base64 && !decode_base64(bytes->data + start, &len)) {
        return refuse(parse, "the text of \"%s\" is no base64", row->name);
    }
    bytes->len = start + len;
    if (row->kind == LK_FIELD_STATE) {
        return set_bytes(parse->line, row,
                         (struct lk_slice){bytes->data + start, len})
                   ? LK_OK
                   : refuse(parse, "the state is not known");
    }
    if (row->kind != LK_FIELD_BYTES || len > row->most) {
        return refuse(parse, "\"%s\" is %s", row->name,
                      len > row->most ? "too long" : "no number");
    }
    *span = (struct span){row, start, len};
    parse->span_count++;
    return LK_OK;
}

static enum lk_status read_number(struct parse *parse,
                                  const struct lk_field_row *row)
{
    uint64_t number = 0;
    size_t start = parse->at;

    while (parse->at < parse->text.len) {
        unsigned digit = (unsigned char)parse->text.data[parse->at] - '0';

        if (digit > 9 || parse->at - start > 18) {
            break;
        }
        number = number * 10 + digit;
        parse->at++;
    }
    if (parse->at == start || row->kind == LK_FIELD_BYTES ||
        row->kind == LK_FIELD_STATE || number > row->most) {
        return refuse(parse, "\"%s\" has a value that it cannot have",
                      row->name);
    }
    set_number(parse->line, row, number);
    return LK_OK;
}

/* The row of the member whose name was read; *base64 if it says so. */
static const struct lk_field_row *find_row(struct parse *parse, bool *base64)
{
    static const char suffix[] = "_base64";
    const size_t tail = sizeof(suffix) - 1;
    struct lk_slice name = latchkey_buf_slice(&parse->name);

    *base64 = name.len > tail &&
              memcmp(name.data + name.len - tail, suffix, tail) == 0;
    name.len -= *base64 ? tail : 0;
    for (const struct lk_field_row *row = lk_line_fields[parse->line->type];
         row->name != NULL; row++) {
        size_t i = 0;

        while (i < name.len && row->name[i] != '\0' &&
               (row->name[i] == '-' ? '_' : row->name[i]) == name.data[i]) {
            i++;
        }
        if (i == name.len && row->name[i] == '\0') {
            return row;
        }
    }
    return NULL;
}

static enum lk_status read_type(struct parse *parse)
{
    struct lk_buf word = {0};
    enum lk_status status = lk_json_read_string(parse->text, &parse->at, &word);

    parse->typed = false;
    for (int i = 0; status == LK_OK && i < LK_LINE_TYPES; i++) {
        if (latchkey_slice_equal(latchkey_buf_slice(&word),
                                 latchkey_slice(lk_line_words[i]))) {
            parse->line->type = (enum lk_line_type)i;
            parse->typed = true;
        }
    }
    latchkey_buf_free(&word);
    if (status == LK_NOMEM) {
        return status;
    }
    return parse->typed ? LK_OK : refuse(parse, "its type is not known");
}

static enum lk_status read_member(struct parse *parse)
{
    bool base64;
    enum lk_status status = expect(parse, '"');

    parse->at--;
    parse->name.len = 0;
    if (status == LK_OK) {
        status = lk_json_read_string(parse->text, &parse->at, &parse->name);
    }
    if (status == LK_OK) {
        status = expect(parse, ':');
    }
    if (status != LK_OK) {
        return parse->wrong->len > 0
                   ? status
                   : refuse(parse, "a name of a member is no JSON string");
    }
    bool is_text = peek(parse) == '"';
    if (!parse->typed) {
        return is_text && latchkey_slice_equal(latchkey_buf_slice(&parse->name),
                                               LK_SLICE("type"))
                   ? read_type(parse)
                   : refuse(parse, "it does not begin with its type");
    }
    const struct lk_field_row *row = find_row(parse, &base64);
    if (row == NULL) {
        return refuse(parse, "the member \"%.*s\" is not known",
                      (int)(parse->name.len < 64 ? parse->name.len : 64),
                      parse->name.data);
    }
    uint64_t bit = UINT64_C(1) << (row - lk_line_fields[parse->line->type]);
    if (parse->seen & bit) {
        return refuse(parse, "\"%s\" stands there twice", row->name);
    }
    parse->seen |= bit;
    return is_text ? read_text(parse, row, base64) : read_number(parse, row);
}

static enum lk_status read_object(struct parse *parse)
{
    enum lk_status status = expect(parse, '{');

    while (status == LK_OK) {
        status = read_member(parse);
        if (status == LK_OK && peek(parse) != ',') {
            break;
        }
        parse->at++;
    }
    if (status == LK_OK) {
        status = expect(parse, '}');
    }
    if (status == LK_OK && peek(parse) != '\0') {
        status = refuse(parse, "there is something after its end");
    }
    return status;
}

static enum lk_status check_needed(struct parse *parse)
{
    const struct lk_field_row *rows = lk_line_fields[parse->line->type];

    for (size_t i = 0; rows[i].name != NULL; i++) {
        bool given = (parse->seen >> i & 1) != 0;

        if (rows[i].needed && !given) {
            return refuse(parse, "\"%s\" is missing", rows[i].name);
        }
    }
    return LK_OK;
}

enum lk_status lk_line_read(struct lk_slice text, struct lk_line *line,
                            struct lk_buf *wrong)
{
    struct parse parse = {.text = text, .line = line, .wrong = wrong};
    enum lk_status status;

    lk_line_free(line);
    status = read_object(&parse);
    if (status == LK_OK) {
        status = check_needed(&parse);
    }
    for (size_t i = 0; status == LK_OK && i < parse.span_count; i++) {
        struct span *span = &parse.spans[i];

        *(struct lk_slice *)lk_line_field(line, span->row) =
            (struct lk_slice){line->bytes.data + span->start, span->len};
    }
    latchkey_buf_free(&parse.name);
    return status;
}
