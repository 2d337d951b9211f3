/*
 * reconcile_export.c - reads an export: rows of CSV, or lines of JSON.
 *
 * The file is read once from the beginning to the end, in chunks. A row is
 * known by its offset (row->place), by which a few rows are read again for the
 * report. Cells are those of export->columns, in that order; they point into
 * the buffer and are valid until the next row is read.
 */
#include "cli/reconcile.h"
#include "lib/http_syntax.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 18 };

/* ---- Bytes --------------------------------------------------------------- */

static enum lk_exit complain_read(const struct lk_export *export)
{
    lk_complain("cannot read %s: %s", export->path, strerror(errno));
    return LK_EXIT_FAILED;
}

/* Reads more behind what is unread, which moves to the front. */
static enum lk_exit read_more_export(struct lk_export *export)
{
    struct lk_buf *buf = &export->buf;
    ssize_t got;

    if (export->start > 0) {
        memmove(buf->data, buf->data + export->start, buf->len - export->start);
        buf->len -= export->start;
        export->start = 0;
    }
    lk_must(latchkey_buf_reserve(buf, CHUNK));
    do {
        got = read(export->fd, buf->data + buf->len, CHUNK);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return complain_read(export);
    }
    export->at_end = got == 0;
    buf->len += (size_t)got;
    return LK_EXIT_DONE;
}

/* buf->data[start..len): what was read from the file and not used yet. */
static struct lk_slice unread_export(const struct lk_export *export)
{
    return (struct lk_slice){export->buf.data + export->start,
                             export->buf.len - export->start};
}

/* `lines` is the number of lines of the file, more than 1 for a row with
 * newlines in quotes. */
static void advance_export(struct lk_export *export, size_t used, size_t lines)
{
    export->start += used;
    export->offset += used;
    export->line += lines;
}

/* ---- Rows ---------------------------------------------------------------- */

/* Sets row->cells. A column that is not in the file is empty. Keys and ids lose
 * the blanks around them. */
static void take_cells(const struct lk_export *export, struct lk_row *row)
{
    for (size_t i = 0; i < export->column_count; i++) {
        int index = export->columns[i].index;

        row->cells[i] = (struct lk_slice){0};
        if (index >= 0) {
            row->cells[i] = export->json ? export->picks.picks[index].value
                                         : export->csv.fields[index];
        }
    }
    row->cells[LK_COLUMN_KEY] = lk_trim(row->cells[LK_COLUMN_KEY]);
    row->cells[LK_COLUMN_ID] = lk_trim(row->cells[LK_COLUMN_ID]);
}

/* A row that can meet no job is a fault, and so is a time that cannot be read:
 * it would be in no window. */
static void check_row(const struct lk_export *export, struct lk_row *row)
{
    uint64_t ms;

    if (row->cells[LK_COLUMN_KEY].len == 0 &&
        row->cells[LK_COLUMN_ID].len == 0) {
        row->fault = "it has neither a key nor an id";
    } else if (export->columns[LK_COLUMN_TIME].name != NULL &&
               latchkey_timestamp_parse(row->cells[LK_COLUMN_TIME], &ms) !=
                   LK_OK) {
        row->fault = "its time cannot be understood";
    }
}

/* A row of CSV that `in` begins with. *used 0: more is needed. */
static enum lk_exit parse_csv(struct lk_export *export, struct lk_slice in,
                              bool at_end, struct lk_row *row, size_t *used)
{
    enum lk_status status = lk_csv_read(&export->csv, in, at_end, used);

    switch (status) {
    case LK_OK:
        if (export->csv.count > 0 && export->fields > 0 &&
            export->csv.count != export->fields) {
            row->fault = "it has another number of fields than the header";
        }
        return LK_EXIT_DONE;
    case LK_AGAIN:
        *used = 0;
        return LK_EXIT_DONE;
    case LK_MALFORMED:
        row->fault = export->csv.fault;
        return LK_EXIT_DONE;
    case LK_TOO_LARGE:
        lk_complain("line %llu of %s: %s; what comes after it cannot be read",
                    (unsigned long long)row->line, export->path,
                    export->csv.fault);
        return LK_EXIT_FAILED;
    default:
        lk_must(status);
        return LK_EXIT_FAILED;
    }
}

static bool is_blank_line(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (strchr(" \t\r\n", text.data[i]) == NULL || text.data[i] == '\0') {
            return false;
        }
    }
    return true;
}

/* The same for a line of JSON; *blank: there is nothing on it. */
static enum lk_exit parse_json(struct lk_export *export, struct lk_slice in,
                               bool at_end, struct lk_row *row, size_t *used,
                               bool *blank)
{
    const char *newline = memchr(in.data, '\n', in.len);
    struct lk_slice line = in;
    enum lk_status status;

    if (newline == NULL && !at_end && in.len <= LK_ROW_MAX) {
        *used = 0;
        return LK_EXIT_DONE;
    }
    if (newline == NULL && !at_end) {
        lk_complain("line %llu of %s is too long",
                    (unsigned long long)row->line, export->path);
        return LK_EXIT_FAILED;
    }
    line.len = newline == NULL ? in.len : (size_t)(newline - in.data);
    *used = newline == NULL ? in.len : line.len + 1;
    *blank = is_blank_line(line);
    if (*blank) {
        return LK_EXIT_DONE;
    }
    status = lk_picks_read(&export->picks, line);
    if (status == LK_MALFORMED) {
        row->fault = "it is not JSON, or names a member twice";
    } else {
        lk_must(status);
    }
    return LK_EXIT_DONE;
}

/* Whatever comes first in `in`: *used 0: more is needed; *blank: nothing. */
static enum lk_exit parse_row(struct lk_export *export, struct lk_slice in,
                              bool at_end, struct lk_row *row, size_t *used,
                              size_t *lines, bool *blank)
{
    enum lk_exit result;

    *blank = false;
    *lines = 1;
    row->fault = NULL;
    if (export->json) {
        result = parse_json(export, in, at_end, row, used, blank);
    } else {
        result = parse_csv(export, in, at_end, row, used);
        *lines = export->csv.lines;
        *blank = row->fault == NULL && export->csv.count == 0;
    }
    if (result == LK_EXIT_DONE && *used > 0 && !*blank && row->fault == NULL) {
        take_cells(export, row);
        if (export->fields > 0 || export->json) {
            check_row(export, row);
        }
    }
    return result;
}

/* Blank lines are skipped. A row that is malformed comes back with
 * row->fault, and costs one line. LK_EXIT_FAILED: the rest of the file cannot
 * be read. */
enum lk_exit lk_export_next(struct lk_export *export, struct lk_row *row,
                            bool *more)
{
    enum lk_exit result = LK_EXIT_DONE;
    size_t used = 0, lines;
    bool blank = true;

    *more = false;
    while (result == LK_EXIT_DONE) {
        struct lk_slice in = unread_export(export);

        if (in.len == 0 && export->at_end) {
            return LK_EXIT_DONE;
        }
        used = 0;
        row->line = export->line;
        row->place = export->offset;
        if (in.len > 0) {
            result = parse_row(export, in, export->at_end, row, &used, &lines,
                               &blank);
        }
        if (result == LK_EXIT_DONE && used == 0) {
            result = read_more_export(export);
            continue;
        }
        if (!export->json && used > 0 && used == in.len && export->at_end) {
            export->unended = in.data[used - 1] != '\n';
        }
        advance_export(export, used, lines);
        if (result == LK_EXIT_DONE && !blank) {
            *more = true;
            break;
        }
    }
    return result;
}

/* The window into the file grows until the row fits. row->cells point into
 * export->buf: valid until the next row is read. */
enum lk_exit lk_export_again(struct lk_export *export, uint64_t place,
                             struct lk_row *row)
{
    struct lk_buf *buf = &export->buf;
    size_t wanted = 512, used = 0, lines;
    bool blank;

    *row = (struct lk_row){.place = place};
    while (used == 0) {
        enum lk_exit result;
        ssize_t got;

        buf->len = 0;
        lk_must(latchkey_buf_reserve(buf, wanted));
        got = pread(export->fd, buf->data, wanted, (off_t)place);
        if (got <= 0) {
            return complain_read(export);
        }
        buf->len = (size_t)got;
        result = parse_row(export, latchkey_buf_slice(buf), buf->len < wanted,
                           row, &used, &lines, &blank);
        if (result != LK_EXIT_DONE) {
            return result;
        }
        wanted *= 8;
    }
    return LK_EXIT_DONE;
}

/* ---- Opening ------------------------------------------------------------- */

static int find_field(const struct lk_csv *csv, const char *name)
{
    for (size_t i = 0; i < csv->count; i++) {
        if (latchkey_slice_equal(csv->fields[i], latchkey_slice(name))) {
            return (int)i;
        }
    }
    return -1;
}

/* Two columns of one name: no one knows which is meant. */
static bool is_twice(const struct lk_csv *csv, int index)
{
    for (size_t i = (size_t)index + 1; i < csv->count; i++) {
        if (latchkey_slice_equal(csv->fields[i], csv->fields[index])) {
            return true;
        }
    }
    return false;
}

/* Lists the columns that there are; LK_EXIT_USAGE. */
static enum lk_exit complain_column(const struct lk_export *export,
                                    const char *name)
{
    struct lk_buf list = {0};

    for (size_t i = 0; i < export->csv.count && i < 32; i++) {
        lk_put(&list, "%s", i == 0 ? "" : ", ");
        lk_put_text(&list, export->csv.fields[i]);
    }
    lk_complain("%s has no column \"%s\"; its columns are: %.*s%s",
                export->path, name, (int)list.len, list.data,
                export->csv.count == 1 ? " (is --delimiter right?)" : "");
    latchkey_buf_free(&list);
    return LK_EXIT_USAGE;
}

/* A CSV file must have every column that was named, each once, and the key or
 * the id. */
static enum lk_exit find_columns(struct lk_export *export)
{
    struct lk_column *columns = export->columns;

    for (size_t i = 0; i < export->column_count; i++) {
        columns[i].index = columns[i].name == NULL
                               ? -1
                               : find_field(&export->csv, columns[i].name);
        if (columns[i].index < 0 && columns[i].needed) {
            return complain_column(export, columns[i].name);
        }
        if (columns[i].index >= 0 && is_twice(&export->csv, columns[i].index)) {
            lk_complain("%s has two columns \"%s\"", export->path,
                        columns[i].name);
            return LK_EXIT_USAGE;
        }
    }
    if (columns[LK_COLUMN_KEY].index < 0 && columns[LK_COLUMN_ID].index < 0) {
        return complain_column(export, columns[LK_COLUMN_KEY].name == NULL
                                           ? columns[LK_COLUMN_ID].name
                                           : columns[LK_COLUMN_KEY].name);
    }
    export->fields = export->csv.count;
    return LK_EXIT_DONE;
}

/* JSON has no header: columns are members or pointers, and may be missing in a
 * line. */
static enum lk_exit add_picks(struct lk_export *export)
{
    for (size_t i = 0; i < export->column_count; i++) {
        struct lk_column *column = &export->columns[i];

        column->index = -1;
        if (column->name != NULL) {
            column->index = (int)export->picks.count;
            if (lk_picks_add(&export->picks, latchkey_slice(column->name)) !=
                LK_OK) {
                lk_complain(
                    "\"%s\" is neither a member's name nor a JSON Pointer",
                    column->name);
                return LK_EXIT_USAGE;
            }
        }
    }
    return LK_EXIT_DONE;
}

/* A byte order mark is not part of the first column's name. */
static void skip_mark(struct lk_export *export)
{
    struct lk_slice in = unread_export(export);

    if (in.len >= 3 && memcmp(in.data, "\xef\xbb\xbf", 3) == 0) {
        advance_export(export, 3, 0);
    }
}

/* Reads the first bytes, and of CSV the names of the columns; JSON lines have
 * no header. */
static enum lk_exit read_header(struct lk_export *export)
{
    struct lk_row row;
    bool more = false;
    enum lk_exit result = read_more_export(export);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    skip_mark(export);
    if (export->json) {
        return add_picks(export);
    }
    for (size_t i = 0; i < LK_COLUMNS; i++) {
        export->columns[i].index = -1;
    }
    result = lk_export_next(export, &row, &more);
    if (result == LK_EXIT_DONE && (!more || row.fault != NULL)) {
        lk_complain("%s does not begin with a header, the names of its columns",
                    export->path);
        result = LK_EXIT_FAILED;
    }
    return result == LK_EXIT_DONE ? find_columns(export) : result;
}

/* Opens the file and reads its header. A pipe is refused. The caller closes it
 * with lk_export_close(), also after an error. */
enum lk_exit lk_export_open(struct lk_cli *cli, struct lk_export *export)
{
    (void)cli;
    export->line = 1;
    /* O_NONBLOCK: opening a pipe must not wait for its other end. */
    export->fd = open(export->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (export->fd < 0) {
        lk_complain("cannot read %s: %s", export->path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    if (fstat(export->fd, &export->info) != 0 ||
        !S_ISREG(export->info.st_mode)) {
        lk_complain("%s must be a file: parts of it are read twice",
                    export->path);
        return LK_EXIT_USAGE;
    }
    return read_header(export);
}

/* Offsets and hashes are of the file as it was: if it has changed in the
 * meantime, nothing of it is proof. */
enum lk_exit lk_export_check(const struct lk_export *export)
{
    struct stat now;

    if (fstat(export->fd, &now) != 0) {
        return complain_read(export);
    }
    if (now.st_size != export->info.st_size ||
        now.st_mtim.tv_sec != export->info.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != export->info.st_mtim.tv_nsec) {
        lk_complain("%s has changed while it was read", export->path);
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

void lk_export_close(struct lk_export *export)
{
    if (export->fd >= 0) {
        close(export->fd);
    }
    lk_csv_free(&export->csv);
    lk_picks_free(&export->picks);
    latchkey_buf_free(&export->buf);
}
