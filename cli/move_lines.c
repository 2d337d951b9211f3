/*
 * move_lines.c - the lines of an export: their members, how they are written
 * and read, and a file of them.
 *
 * A line is a JSON object of one level. "type" is its first member; the others
 * are rows of the table of that type, each at most once, in any order. Dashes
 * of the names are underscores in JSON; a text that is not UTF-8 is in base64
 * and its name ends in _base64. Members that are 0 or empty are left out unless
 * they are needed. The same tables read replies of the daemon (lk_line_take)
 * and files (lk_line_read).
 */
#include "cli/move.h"
#include "lib/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ==== The members of the lines of an export, in one table */

#define ROW(name, kind, needed, field, most)                                   \
    {                                                                          \
        name, LK_FIELD_##kind, needed, offsetof(struct lk_line, field), most   \
    }
#define BYTES(name, field, most)        ROW(name, BYTES, false, field, most)
#define NUMBER(name, field, most)       ROW(name, NUMBER, false, field, most)
#define TIME(name, field)               ROW(name, NUMBER, false, field, TIME_MAX)
#define NEEDED(name, kind, field, most) ROW(name, kind, true, field, most)

#define TOKEN_MAX LK_IMPORT_TOKEN_MAX
#define TIME_MAX  LK_IMPORT_TIME_MAX
#define ANY       INT64_MAX

/* Name, member of struct lk_line, and the largest number or length. */
static const struct lk_field_row begin_fields[] = {
    NEEDED("version", NUMBER, begin.version, ANY),
    NEEDED("store", BYTES, begin.store, 32),
    BYTES("reference-secret", begin.reference_secret, 2 * LK_REFERENCE_KEY),
    NUMBER("last-token", begin.last_token, TOKEN_MAX),
    NUMBER("records", begin.operations, ANY),
    TIME("now-ms", begin.now_ms),
    {0},
};

static const struct lk_field_row operation_fields[] = {
    NEEDED("tenant", BYTES, operation.name.tenant, LK_TENANT_MAX),
    NEEDED("scope", BYTES, operation.name.scope, LK_SCOPE_MAX),
    NEEDED("key", BYTES, operation.name.key, LK_KEY_MAX),
    NEEDED("state", STATE, operation.state, 32),
    NEEDED("token", NUMBER, operation.token, TOKEN_MAX),
    NUMBER("attempt", operation.attempt, ANY),
    NUMBER("number", operation.number, TOKEN_MAX),
    NUMBER("generation", operation.generation, TOKEN_MAX),
    NEEDED("fingerprint", BYTES, operation.fingerprint, LK_FINGERPRINT_MAX),
    BYTES("owner", operation.owner, LK_OWNER_MAX),
    TIME("claimed-ms", operation.claimed_ms),
    TIME("lock-until-ms", operation.lock_until_ms),
    TIME("since-ms", operation.since_ms),
    TIME("completed-ms", operation.completed_ms),
    TIME("expires-ms", operation.expires_ms),
    TIME("ttl-ms", operation.ttl_ms),
    TIME("keep-ms", operation.keep_ms),
    ROW("status", STATUS, false, operation.status, LK_STATUS_MAX),
    ROW("omitted", FLAG, false, operation.omitted, 1),
    ROW("evicted", FLAG, false, operation.evicted, 1),
    BYTES("reason", operation.reason, LK_REASON_MAX),
    BYTES("headers", response.headers, ANY),
    BYTES("body", response.body, ANY),
    {0},
};

static const struct lk_field_row audit_fields[] = {
    NUMBER("id", audit.id, ANY),
    TIME("at-ms", audit.at_ms),
    NEEDED("who", BYTES, audit.who, LK_WHO_MAX),
    NEEDED("action", BYTES, audit.action, ANY),
    BYTES("tenant", audit.name.tenant, LK_TENANT_MAX),
    BYTES("scope", audit.name.scope, LK_SCOPE_MAX),
    BYTES("key", audit.name.key, LK_KEY_MAX),
    NUMBER("token", audit.token, TOKEN_MAX),
    BYTES("why", audit.why, LK_WHY_MAX),
    {0},
};

static const struct lk_field_row end_fields[] = {
    NUMBER("records", end.operations, ANY),
    NUMBER("audit", end.audit, ANY),
    {0},
};

const struct lk_field_row *const lk_line_fields[LK_LINE_TYPES] = {
    [LK_LINE_BEGIN] = begin_fields,
    [LK_LINE_OPERATION] = operation_fields,
    [LK_LINE_AUDIT] = audit_fields,
    [LK_LINE_END] = end_fields,
};

const char *const lk_line_words[LK_LINE_TYPES] = {
#define X(name, word) word,
    LK_LINE_MAP(X)
#undef X
};

/* ==== Lines of an export: written, read, and taken from a reply */

/* Drops the stored response and the bytes; the line may be used again. */
void lk_line_free(struct lk_line *line)
{
    lk_stored_unref(line->operation.stored);
    latchkey_buf_free(&line->bytes);
    *line = (struct lk_line){0};
}

/* ---- Writing ------------------------------------------------------------- */

/* 0 for a member that is not a number. */
static uint64_t number_of_field(const struct lk_line *line,
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

/* 0 and empty are the defaults of a reader, so they need not be written. */
static void write_line_field(struct lk_doc *doc, const struct lk_line *line,
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
    } else if (number_of_field(line, row) != 0 || row->needed) {
        lk_doc_integer(doc, row->name, (int64_t)number_of_field(line, row));
    }
}

/* Appends the line with its newline. */
void lk_line_write(struct lk_buf *out, const struct lk_line *line)
{
    struct lk_doc doc = {.out = out};
    const struct lk_field_row *row = lk_line_fields[line->type];

    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "type", latchkey_slice(lk_line_words[line->type]));
    for (; row->name != NULL; row++) {
        write_line_field(&doc, line, row);
    }
    lk_doc_end_object(&doc);
}

/* ---- Taking a reply ------------------------------------------------------ */

/* Numbers were checked against the row's maximum, or come from the daemon. */
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
static bool set_field_bytes(struct lk_line *line,
                            const struct lk_field_row *row,
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

/*
 * The line borrows the texts of the reply, which is valid until the next call.
 */
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
            (void)set_field_bytes(line, row, value->text);
        }
    }
}

/* ---- Reading ------------------------------------------------------------- */

/* The bytes of a line are side by side in line->bytes while it is read, and
 * move when that grows: the slices are set at the end. */
enum { SPANS_MAX = 24 };

struct span {
    const struct lk_field_row *row;
    size_t start;
    size_t len;
};

/* A line while it is read; `wrong` gets the reason of LK_MALFORMED. */
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

static enum lk_status refuse_member(struct parse *parse, const char *format,
                                    ...) __attribute__((format(printf, 2, 3)));

static enum lk_status refuse_member(struct parse *parse, const char *format,
                                    ...)
{
    char text[256];
    va_list values;

    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    lk_put(parse->wrong, "%s", text);
    return LK_MALFORMED;
}

/* The next byte that is not a space; a NUL at the end. */
static char peek_byte(struct parse *parse)
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

/* Skips spaces and the byte `wanted`. */
static enum lk_status expect_byte(struct parse *parse, char wanted)
{
    if (peek_byte(parse) != wanted) {
        return refuse_member(parse,
                             "it is not a JSON object of one level, or was "
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

/* Decodes in place, which works because the result is shorter. False: it is not
 * base64, with its padding. */
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

/* A text that is longer than its row allows is refused, not cut. */
static enum lk_status read_text_member(struct parse *parse,
                                       const struct lk_field_row *row,
                                       bool base64)
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
        return refuse_member(
            parse, "the text of \"%s\" is not a JSON string, or was cut",
            row->name);
    }
    if (base64 && !decode_base64(bytes->data + start, &len)) {
        return refuse_member(parse, "the text of \"%s\" is not base64",
                             row->name);
    }
    bytes->len = start + len;
    if (row->kind == LK_FIELD_STATE) {
        return set_field_bytes(parse->line, row,
                               (struct lk_slice){bytes->data + start, len})
                   ? LK_OK
                   : refuse_member(parse, "the state is not known");
    }
    if (row->kind != LK_FIELD_BYTES || len > row->most) {
        return refuse_member(parse, "\"%s\" is %s", row->name,
                             len > row->most ? "too long" : "no number");
    }
    *span = (struct span){row, start, len};
    parse->span_count++;
    return LK_OK;
}

/* Digits only, at most 19 of them, which fit in 64 bits. */
static enum lk_status read_number_member(struct parse *parse,
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
        return refuse_member(parse, "\"%s\" has a value that it cannot have",
                             row->name);
    }
    set_number(parse->line, row, number);
    return LK_OK;
}

/* The row of the member whose name was read; *base64 if it says so. */
static const struct lk_field_row *find_field_row(struct parse *parse,
                                                 bool *base64)
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

/* The type decides which table is used for the other members. */
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
    return parse->typed ? LK_OK : refuse_member(parse, "its type is not known");
}

/* "name": "text" or "name": digits. An unknown member is refused: half a line
 * must not be imported. */
static enum lk_status read_member(struct parse *parse)
{
    bool base64;
    enum lk_status status = expect_byte(parse, '"');

    parse->at--;
    parse->name.len = 0;
    if (status == LK_OK) {
        status = lk_json_read_string(parse->text, &parse->at, &parse->name);
    }
    if (status == LK_OK) {
        status = expect_byte(parse, ':');
    }
    if (status != LK_OK) {
        return parse->wrong->len > 0
                   ? status
                   : refuse_member(parse,
                                   "a member's name is not a JSON string");
    }
    bool is_text = peek_byte(parse) == '"';
    if (!parse->typed) {
        return is_text && latchkey_slice_equal(latchkey_buf_slice(&parse->name),
                                               LK_SLICE("type"))
                   ? read_type(parse)
                   : refuse_member(parse, "it does not begin with its type");
    }
    const struct lk_field_row *row = find_field_row(parse, &base64);
    if (row == NULL) {
        return refuse_member(parse, "the member \"%.*s\" is not known",
                             (int)(parse->name.len < 64 ? parse->name.len : 64),
                             parse->name.data);
    }
    uint64_t bit = UINT64_C(1) << (row - lk_line_fields[parse->line->type]);
    if (parse->seen & bit) {
        return refuse_member(parse, "\"%s\" is there twice", row->name);
    }
    parse->seen |= bit;
    return is_text ? read_text_member(parse, row, base64)
                   : read_number_member(parse, row);
}

/* { member, member, ... } and nothing behind it. An empty object is refused: it
 * has no type. */
static enum lk_status read_object(struct parse *parse)
{
    enum lk_status status = expect_byte(parse, '{');

    while (status == LK_OK) {
        status = read_member(parse);
        if (status == LK_OK && peek_byte(parse) != ',') {
            break;
        }
        parse->at++;
    }
    if (status == LK_OK) {
        status = expect_byte(parse, '}');
    }
    if (status == LK_OK && peek_byte(parse) != '\0') {
        status = refuse_member(parse, "there is something after its end");
    }
    return status;
}

/* Every member that the type needs has been seen. */
static enum lk_status check_needed(struct parse *parse)
{
    const struct lk_field_row *rows = lk_line_fields[parse->line->type];

    for (size_t i = 0; rows[i].name != NULL; i++) {
        bool given = (parse->seen >> i & 1) != 0;

        if (rows[i].needed && !given) {
            return refuse_member(parse, "\"%s\" is missing", rows[i].name);
        }
    }
    return LK_OK;
}

/* LK_MALFORMED: `wrong` has a sentence about the line. The line owns its bytes;
 * the caller frees it either way. */
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

/* ==== A file of lines, which may be long, read one by one */

/* Bytes read at least at a time; a longer line ends the import. */
enum { CHUNK = 1 << 16, LINE_MAX_BYTES = INT32_MAX };

/* "-" is standard input, whose size is not known: there is no bar then. */
enum lk_exit lk_lines_open(struct lk_lines *lines, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    struct stat info;

    *lines = (struct lk_lines){.title = standard ? "standard input" : path};
    lines->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (lines->fd < 0) {
        lk_complain("cannot read %s: %s", path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    if (fstat(lines->fd, &info) == 0 && S_ISREG(info.st_mode)) {
        lines->total = (uint64_t)info.st_size;
    }
    return LK_EXIT_DONE;
}

/* Standard input stays open. */
void lk_lines_close(struct lk_lines *lines)
{
    if (lines->fd > STDIN_FILENO) {
        close(lines->fd);
    }
    latchkey_buf_free(&lines->buf);
}

/* Reads more behind what is there, which moves to the front. A long line
 * doubles the room each time, so that reading it takes linear time. */
static enum lk_exit read_more_lines(struct lk_lines *lines)
{
    struct lk_buf *buf = &lines->buf;
    ssize_t got;

    if (lines->start > 0) {
        memmove(buf->data, buf->data + lines->start, buf->len - lines->start);
        buf->len -= lines->start;
        lines->searched -= lines->start;
        lines->start = 0;
    }
    if (buf->len > LINE_MAX_BYTES) {
        lk_complain("line %llu of %s is too long",
                    (unsigned long long)lines->number + 1, lines->title);
        return LK_EXIT_NO;
    }
    lk_must(latchkey_buf_reserve(buf, buf->len > CHUNK ? buf->len : CHUNK));
    do {
        got = read(lines->fd, buf->data + buf->len, buf->cap - buf->len);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        lk_complain("cannot read %s: %s", lines->title, strerror(errno));
        return LK_EXIT_FAILED;
    }
    lines->at_end = got == 0;
    buf->len += (size_t)got;
    lines->done += (uint64_t)got;
    return LK_EXIT_DONE;
}

/* The next line without its newline; text->data is NULL at the end of the file.
 * lines->searched: the bytes before have no newline. */
static enum lk_exit find_line(struct lk_lines *lines, struct lk_slice *text)
{
    struct lk_buf *buf = &lines->buf;
    enum lk_exit result = LK_EXIT_DONE;
    const char *newline = NULL;

    while (result == LK_EXIT_DONE && newline == NULL) {
        size_t fresh = buf->len - lines->searched;

        newline =
            fresh > 0 ? memchr(buf->data + lines->searched, '\n', fresh) : NULL;
        lines->searched = buf->len;
        if (newline == NULL && lines->at_end) {
            break;
        }
        if (newline == NULL) {
            result = read_more_lines(lines);
        }
    }
    size_t end = newline == NULL ? buf->len : (size_t)(newline - buf->data);
    *text = (struct lk_slice){0};
    if (result == LK_EXIT_DONE && (newline != NULL || end > lines->start)) {
        *text = (struct lk_slice){buf->data + lines->start, end - lines->start};
        lines->start = newline == NULL ? end : end + 1;
        lines->searched = lines->start;
        lines->number++;
    }
    return result;
}

/* *more is false at the end. LK_EXIT_NO: a bad line, and it has complained. */
enum lk_exit lk_lines_next(struct lk_lines *lines, struct lk_line *line,
                           bool *more)
{
    struct lk_slice text;
    struct lk_buf wrong = {0};
    enum lk_exit result = find_line(lines, &text);

    *more = text.data != NULL;
    if (result != LK_EXIT_DONE || !*more) {
        return result;
    }
    enum lk_status status = lk_line_read(text, line, &wrong);
    if (status == LK_NOMEM) {
        lk_must(status);
    }
    if (status != LK_OK) {
        lk_put_raw(&wrong, (struct lk_slice){"", 1});
        lk_complain("line %llu of %s: %s", (unsigned long long)lines->number,
                    lines->title, wrong.data);
        result = LK_EXIT_NO;
    }
    latchkey_buf_free(&wrong);
    return result;
}
