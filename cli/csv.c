/*
 * csv.c - rows of CSV (RFC 4180), from bytes as they come.
 *
 *   row   = field *( delimiter field ) ( LF / CR LF / end )
 *   field = *plain / DQUOTE *( any / 2DQUOTE ) DQUOTE
 *
 * A row is parsed from its first byte each time; if its end is not there yet,
 * the result is LK_AGAIN and the caller comes back with more bytes. A row
 * longer than LK_ROW_MAX is LK_TOO_LARGE: after it no end of a row can be
 * trusted. Fields are slices of the input, except those with doubled quotes,
 * which are unescaped into csv->text.
 */
#include "cli/csv.h"

#include <stdlib.h>
#include <string.h>

/* Marks a field whose data is in csv->text, which may still move. */
static const char in_text[1];

/* A row while it is parsed; `at` is behind what was read. */
struct row {
    struct lk_slice in;
    bool at_end;
    size_t at;
    size_t breaks; /* newlines within quotes */
};

/* LK_MALFORMED: there are LK_FIELDS_MAX already. */
static enum lk_status add_field(struct lk_csv *csv, const char *data,
                                size_t length)
{
    if (csv->count == LK_FIELDS_MAX) {
        csv->fault = "too many fields";
        return LK_MALFORMED;
    }
    if (csv->count == csv->cap) {
        size_t cap = csv->cap == 0 ? 32 : csv->cap * 2;
        struct lk_slice *grown =
            realloc(csv->fields, cap * sizeof(*csv->fields));

        if (grown == NULL) {
            return LK_NOMEM;
        }
        csv->fields = grown;
        csv->cap = cap;
    }
    csv->fields[csv->count++] = (struct lk_slice){data, length};
    return LK_OK;
}

/* The row does not end in what is there; more bytes are needed. */
static enum lk_status want_more(struct lk_csv *csv, const struct row *row,
                                const char *fault)
{
    if (!row->at_end && row->in.len <= LK_ROW_MAX) {
        return LK_AGAIN;
    }
    csv->fault = fault;
    return LK_TOO_LARGE;
}

/* The newlines in `length` bytes, for the numbers of lines in messages. */
static size_t count_breaks(const char *data, size_t length)
{
    size_t count = 0;

    for (const char *end = data + length;
         length > 0 && (data = memchr(data, '\n', (size_t)(end - data)));
         data++) {
        count++;
        if (data + 1 == end) {
            break;
        }
    }
    return count;
}

/* From its opening quote to behind the closing one. The text is copied only
 * if quotes in it are doubled. */
static enum lk_status read_quoted_field(struct lk_csv *csv, struct row *row)
{
    struct lk_slice in = row->in;
    size_t start = row->at + 1;
    size_t kept = csv->text.len;
    enum lk_status status;

    for (;;) {
        const char *quote = start < in.len
                                ? memchr(in.data + start, '"', in.len - start)
                                : NULL;
        if (quote == NULL) {
            return want_more(csv, row, "a quote that is not closed");
        }
        size_t end = (size_t)(quote - in.data);
        bool last = end + 1 == in.len;
        if (last && !row->at_end) {
            return LK_AGAIN; /* it may be the first one of two */
        }
        row->breaks += count_breaks(in.data + start, end - start);
        row->at = end + 1;
        if (last || in.data[end + 1] != '"') {
            if (csv->text.len == kept) {
                return add_field(csv, in.data + start, end - start);
            }
            status = latchkey_buf_add(&csv->text, in.data + start, end - start);
            return status != LK_OK
                       ? status
                       : add_field(csv, in_text, csv->text.len - kept);
        }
        status = latchkey_buf_add(&csv->text, in.data + start, end + 1 - start);
        if (status != LK_OK) {
            return status;
        }
        start = end + 2;
    }
}

/* Up to the delimiter or the end of the line. */
static enum lk_status read_bare(struct lk_csv *csv, struct row *row)
{
    const char *at = row->in.data + row->at;
    const char *end = row->in.data + row->in.len;
    const char *start = at;

    while (at < end && *at != csv->delimiter && *at != '\n' && *at != '\r') {
        if (*at == '"') {
            csv->fault = "a quote inside a field that is not quoted";
            return LK_MALFORMED;
        }
        at++;
    }
    row->at = (size_t)(at - row->in.data);
    return add_field(csv, start, (size_t)(at - start));
}

/* Reads what follows a field. *over: the row has ended. */
static enum lk_status read_end(struct lk_csv *csv, struct row *row, bool *over)
{
    struct lk_slice in = row->in;

    *over = true;
    if (row->at == in.len) {
        return row->at_end ? LK_OK : want_more(csv, row, "a row too long");
    }
    char c = in.data[row->at++];
    if (c == '\n') {
        return LK_OK;
    }
    if (c == csv->delimiter) {
        *over = false;
        return LK_OK;
    }
    if (c == '\r') {
        if (row->at == in.len) {
            return row->at_end ? LK_OK : LK_AGAIN;
        }
        if (in.data[row->at] == '\n') {
            row->at++;
            return LK_OK;
        }
    }
    csv->fault = c == '\r' ? "a carriage return without a newline"
                           : "something behind a closing quote";
    return LK_MALFORMED;
}

/* All fields of the row. A delimiter at the end means one more, empty field. */
static enum lk_status read_fields(struct lk_csv *csv, struct row *row)
{
    enum lk_status status = LK_OK;
    bool over = false;

    while (status == LK_OK && !over) {
        bool quoted = row->at < row->in.len && row->in.data[row->at] == '"';

        if (row->at == row->in.len && !row->at_end) {
            return want_more(csv, row, "a row too long");
        }
        status = quoted ? read_quoted_field(csv, row) : read_bare(csv, row);
        if (status == LK_OK) {
            status = read_end(csv, row, &over);
        }
    }
    return status;
}

/* Skips to the line after a malformed row, so that it costs one line and not
 * the file. Returns LK_MALFORMED when it is there. */
static enum lk_status skip_line(struct lk_csv *csv, struct row *row)
{
    const char *newline =
        memchr(row->in.data + row->at, '\n', row->in.len - row->at);

    if (newline == NULL && !row->at_end) {
        return want_more(csv, row, "a row too long");
    }
    row->at =
        newline == NULL ? row->in.len : (size_t)(newline - row->in.data) + 1;
    csv->count = 0;
    return LK_MALFORMED;
}

/*
 * LK_OK: csv->fields are valid until the next call or until `in` moves, and
 * *used bytes are done with; count 0 is a blank line. LK_MALFORMED: one bad
 * line, of *used bytes; csv->fault says why.
 */
enum lk_status lk_csv_read(struct lk_csv *csv, struct lk_slice in, bool at_end,
                           size_t *used)
{
    struct row row = {.in = in, .at_end = at_end};
    enum lk_status status;
    size_t text = 0;

    csv->count = 0;
    csv->text.len = 0;
    csv->fault = NULL;
    status = read_fields(csv, &row);
    if (status == LK_MALFORMED) {
        status = skip_line(csv, &row);
    }
    *used = row.at;
    csv->lines =
        status == LK_MALFORMED ? count_breaks(in.data, row.at) : row.breaks + 1;
    if (status == LK_OK && csv->count == 1 && csv->fields[0].len == 0 &&
        in.len > 0 && in.data[0] != '"') {
        csv->count = 0;
    }
    /* Only now: csv->text may have moved while it grew. */
    for (size_t i = 0; i < csv->count; i++) {
        if (csv->fields[i].data == in_text) {
            csv->fields[i].data = csv->text.data + text;
            text += csv->fields[i].len;
        }
    }
    return status;
}

void lk_csv_free(struct lk_csv *csv)
{
    free(csv->fields);
    latchkey_buf_free(&csv->text);
    *csv = (struct lk_csv){0};
}
