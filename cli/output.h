/* output.h - output: text for people, tables, JSON. */
#ifndef LK_OUTPUT_H
#define LK_OUTPUT_H

#include "latchkey.h"

/*
 * All of these append to a buffer. Out of memory ends the program with a
 * message: there is nothing that a command could still do about it.
 */
void lk_must(enum lk_status status);
/* As realloc and calloc; the counts are small. */
void *lk_must_grow(void *memory, size_t size) __attribute__((returns_nonnull));
void *lk_must_make(size_t count, size_t size) __attribute__((returns_nonnull));

/* printf into memory of its own. */
char *lk_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define lk_put(out, ...) lk_must(latchkey_buf_printf((out), __VA_ARGS__))
void lk_put_raw(struct lk_buf *out, struct lk_slice bytes);

/*
 * Text from outside, on one line: control characters, bytes that are not
 * UTF-8 and characters that change the direction of text or hide become \xNN,
 * a backslash becomes two.
 */
void lk_put_text(struct lk_buf *out, struct lk_slice text);
/* Text of several lines: newlines, tabs and backslashes stay as they are. */
void lk_put_lines(struct lk_buf *out, struct lk_slice text);
/* One line, in which backslashes stay: for parts that are escaped already. */
void lk_put_line(struct lk_buf *out, struct lk_slice text);
/* Columns that escaped text takes on a terminal. */
size_t lk_put_width(struct lk_slice text);
/* Bytes at its front that fit in `width` columns; one character at least. */
size_t lk_put_prefix(struct lk_slice text, size_t width);
/* Escaped text in at most `width` columns, with an ellipsis if it is cut. */
void lk_put_cut(struct lk_buf *out, struct lk_slice text, size_t width);

/* "90 s" as "1 min 30 s"; with `parts` 1: "1 min". */
void lk_put_duration(struct lk_buf *out, uint64_t ms, unsigned parts);
/* How long from one time to another, in one part; not less than nothing. */
void lk_put_span(struct lk_buf *out, uint64_t from_ms, uint64_t to_ms);
/* Bytes that a client or a service sent: escaped on a terminal, which they
 * could control, and as they are in a file. */
void lk_put_stored(struct lk_buf *out, struct lk_slice bytes);
/* "2026-01-02T03:04:05Z (3 min ago)" */
void lk_put_time(struct lk_buf *out, uint64_t ms, uint64_t now_ms);
/* "2026-01-02T03:04:05Z": one form everywhere, that of the logs. */
void lk_put_utc(struct lk_buf *out, uint64_t ms);
/* "1.5 MiB" */
void lk_put_bytes(struct lk_buf *out, uint64_t bytes);
void lk_put_base64(struct lk_buf *out, struct lk_slice bytes);

/* What a field of a reply means to people. */
enum lk_form {
    LK_FORM_TEXT,
    LK_FORM_NUMBER,
    LK_FORM_TIME,
    LK_FORM_DURATION,
    LK_FORM_FLAG, /* "yes": it is there */
    LK_FORM_SIZE, /* a number of bytes */
};

void lk_put_form(struct lk_buf *out, enum lk_form form,
                 const struct lk_reply *value, uint64_t now_ms);

enum lk_put_colour {
    LK_PLAIN,
    LK_BOLD,
    LK_DIM,
    LK_ALARM, /* needs a person */
    LK_BUSYING,
    LK_GOOD,
};

/* ---- Tables (terminal.c)
 * -----------------------------------------------------
 */

enum { LK_TABLE_COLUMNS = 10 };

struct lk_cell {
    struct lk_buf text;
    enum lk_put_colour colour;
};

/*
 * Start it as {.columns = n, .colour = ...}. On a terminal that is too narrow,
 * columns that can be spared are left out, and the widest are cut; a table of
 * two columns, names and their values, is folded. Headings are LK_BOLD. The
 * masks have a bit for each column.
 */
struct lk_table {
    size_t columns;
    bool colour;
    unsigned right; /* aligned to the right, and never cut: numbers */
    unsigned rigid; /* never cut either */
    unsigned spare; /* left out where there is no room, the last one first */
    size_t legible; /* columns narrower than that: one is spared; 0: 8 */
    size_t widths[LK_TABLE_COLUMNS]; /* only grow, so pages line up */
    size_t least[LK_TABLE_COLUMNS];  /* of those that are not cut */
    struct lk_cell *cells;
    size_t count;
    size_t cap;
};

/* The next cell, empty, to be filled before the next call. */
struct lk_buf *lk_table_cell(struct lk_table *table, enum lk_put_colour colour);
/* The cells of the first row. */
void lk_table_heading(struct lk_table *table, const char *const *names);
/* Writes the rows and forgets them; the widths stay. */
void lk_table_flush(struct lk_table *table, struct lk_buf *out);
/* --wide: nothing is cut, on any terminal. */
void lk_table_wide(void);
/* Rows of the terminal; SIZE_MAX: standard output is not a terminal. */
size_t lk_table_rows(void);
/* Lines of escaped text, each cut to the terminal. */
void lk_table_put_lines(struct lk_buf *out, struct lk_slice text);

/* ---- JSON (output.c)
 * ---------------------------------------------------------
 */

/* Start it as {.out = &buf}. Commas and the last newline come by themselves. */
struct lk_doc {
    struct lk_buf *out;
    unsigned depth;
    bool comma;
};

/* `name` is NULL within an array; a '-' in a name becomes '_'. */
void lk_doc_object(struct lk_doc *doc, const char *name);
void lk_doc_array(struct lk_doc *doc, const char *name);
void lk_doc_end_object(struct lk_doc *doc);
void lk_doc_end_array(struct lk_doc *doc);
void lk_doc_integer(struct lk_doc *doc, const char *name, int64_t number);
void lk_doc_bool(struct lk_doc *doc, const char *name, bool value);
void lk_doc_null(struct lk_doc *doc, const char *name);
/* Text that is not UTF-8 becomes base64 under NAME_base64. */
void lk_doc_text(struct lk_doc *doc, const char *name, struct lk_slice text);
/* A reply of the daemon, by its type. */
void lk_doc_reply(struct lk_doc *doc, const char *name,
                  const struct lk_reply *reply);
/* The names and values of a flat list as members of the open object. */
void lk_doc_members(struct lk_doc *doc, const struct lk_reply *list);

#endif
