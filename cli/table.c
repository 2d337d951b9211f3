/* table.c - rows of text in aligned columns, as wide as the terminal. */
#include "cli/put.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    GAP = 2,      /* between columns */
    LEGIBLE = 8,  /* below that, a column that can be spared goes first */
    FOLD_MIN = 16 /* a narrower column is not folded */
};

static const char *const colour_codes[] = {
    [LK_PLAIN] = "",           [LK_BOLD] = "\033[1m",
    [LK_DIM] = "\033[2m",      [LK_ALARM] = "\033[1;31m",
    [LK_BUSYING] = "\033[33m", [LK_GOOD] = "\033[32m",
};

/* ---- The terminal ---------------------------------------------------------
 */

static bool is_wide;

void lk_table_wide(void)
{
    is_wide = true;
}

/* Asked for each time: a window changes while something is watched. */
static struct winsize terminal_size(void)
{
    struct winsize size = {0};

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) {
        size = (struct winsize){0};
    }
    return size;
}

/* Columns of the terminal that standard output is; SIZE_MAX: it is none. */
static size_t terminal_width(void)
{
    const char *columns = getenv("COLUMNS");
    size_t width = terminal_size().ws_col;

    if (is_wide || !isatty(STDOUT_FILENO)) {
        return SIZE_MAX;
    }
    if (width == 0 && columns != NULL) {
        width = strtoul(columns, NULL, 10);
    }
    return width == 0 ? SIZE_MAX : width;
}

size_t lk_table_rows(void)
{
    size_t rows = terminal_size().ws_row;

    return isatty(STDOUT_FILENO) && rows > 0 ? rows : SIZE_MAX;
}

/* ---- Cells ----------------------------------------------------------------
 */

struct lk_buf *lk_table_cell(struct lk_table *table, enum lk_put_colour colour)
{
    if (table->count == table->cap) {
        table->cap = table->cap == 0 ? 64 : table->cap * 2;
        table->cells =
            lk_must_grow(table->cells, table->cap * sizeof(*table->cells));
    }
    table->cells[table->count] = (struct lk_cell){.colour = colour};
    return &table->cells[table->count++].text;
}

void lk_table_heading(struct lk_table *table, const char *const *names)
{
    for (size_t i = 0; i < table->columns; i++) {
        lk_put(lk_table_cell(table, LK_BOLD), "%s", names[i]);
    }
}

/* A heading may be cut down to what stands below it; a number and what is rigid
 * may not. */
static void measure(struct lk_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        const struct lk_cell *cell = &table->cells[i];
        size_t column = i % table->columns;
        size_t own = lk_put_width(latchkey_buf_slice(&cell->text));
        bool rigid = ((table->right | table->rigid) >> column & 1) != 0;

        if (own > table->widths[column]) {
            table->widths[column] = own;
        }
        if (rigid && cell->colour != LK_BOLD && own > table->least[column]) {
            table->least[column] = own;
        }
    }
}

/* ---- Fitting --------------------------------------------------------------
 */

static bool is_hidden(unsigned hidden, size_t column)
{
    return (hidden >> column & 1) != 0;
}

/* A column as wide as it would be if none could be wider than `most`. */
static size_t bounded(const struct lk_table *table, size_t column, size_t most)
{
    size_t width = table->widths[column];

    width = width > most ? most : width;
    return width < table->least[column] ? table->least[column] : width;
}

static size_t total_width(const struct lk_table *table, unsigned hidden,
                          size_t most)
{
    size_t total = 0;

    for (size_t i = 0; i < table->columns; i++) {
        if (!is_hidden(hidden, i)) {
            total += bounded(table, i, most) + (total > 0 ? GAP : 0);
        }
    }
    return total;
}

/* How wide a column can be so that all fit in `room`; at least 1. */
static size_t widest(const struct lk_table *table, unsigned hidden, size_t room)
{
    size_t most = room;

    while (most > 1 && total_width(table, hidden, most) > room) {
        most--;
    }
    return most;
}

/* The columns that are left out: of those that can be spared the last ones, if
 * the others would be too narrow to be read. */
static unsigned choose_hidden(const struct lk_table *table, size_t room)
{
    size_t least = table->legible == 0 ? LEGIBLE : table->legible;
    unsigned hidden = 0;

    for (size_t i = table->columns; i-- > 0;) {
        if (total_width(table, hidden, least) <= room) {
            break;
        }
        hidden |= table->spare & 1U << i;
    }
    return hidden;
}

/* ---- Writing --------------------------------------------------------------
 */

static void put_spaces(struct lk_buf *out, size_t count)
{
    lk_put(out, "%*s", (int)count, "");
}

/* One cell in `width` columns; what follows the last one is not filled up. */
static void put_cell(const struct lk_table *table, const struct lk_cell *cell,
                     size_t column, size_t width, bool last, struct lk_buf *out)
{
    struct lk_slice text = latchkey_buf_slice(&cell->text);
    size_t own = lk_put_width(text);
    size_t gap = own < width ? width - own : 0;
    bool right = (table->right >> column & 1) != 0;
    bool tinted = table->colour && cell->colour != LK_PLAIN;

    put_spaces(out, right ? gap : 0);
    lk_put(out, "%s", tinted ? colour_codes[cell->colour] : "");
    lk_put_cut(out, text, width);
    lk_put(out, "%s", tinted ? "\033[0m" : "");
    put_spaces(out, (right || last ? 0 : gap) + (last ? 0 : GAP));
}

static void put_row(const struct lk_table *table, const struct lk_cell *cells,
                    unsigned hidden, size_t most, struct lk_buf *out)
{
    size_t last = table->columns;

    for (size_t i = 0; i < table->columns; i++) {
        last = is_hidden(hidden, i) ? last : i;
    }
    for (size_t i = 0; i <= last && i < table->columns; i++) {
        if (!is_hidden(hidden, i)) {
            put_cell(table, &cells[i], i, bounded(table, i, most), i == last,
                     out);
        }
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ') {
        out->len--;
    }
    lk_put(out, "\n");
}

/* How much of it goes into so many columns, up to the end of a word if there is
 * one in the second half. */
static size_t fold_at(struct lk_slice text, size_t width)
{
    size_t length = lk_put_prefix(text, width);
    size_t end = length;

    while (length < text.len && end > length / 2 && text.data[end - 1] != ' ') {
        end--;
    }
    return end > length / 2 ? end : length;
}

/* A name and its value: what is too long goes on below, so that nothing of it
 * is missing. */
static void put_folded(const struct lk_table *table,
                       const struct lk_cell cells[2], size_t room,
                       struct lk_buf *out)
{
    size_t start = table->widths[0] + GAP;
    struct lk_slice rest = latchkey_buf_slice(&cells[1].text);
    struct lk_cell part = {.colour = cells[1].colour};

    put_cell(table, &cells[0], 0, table->widths[0], false, out);
    do {
        size_t length = fold_at(rest, room - start);

        part.text.len = 0;
        lk_put_raw(&part.text, (struct lk_slice){rest.data, length});
        put_cell(table, &part, 1, room - start, true, out);
        lk_put(out, "\n");
        rest.data += length;
        rest.len -= length;
        put_spaces(out, rest.len > 0 ? start : 0);
    } while (rest.len > 0);
    latchkey_buf_free(&part.text);
}

void lk_table_flush(struct lk_table *table, struct lk_buf *out)
{
    size_t room = terminal_width();
    unsigned hidden;
    size_t most;

    measure(table);
    hidden = choose_hidden(table, room);
    most = room == SIZE_MAX ? room : widest(table, hidden, room);
    for (size_t i = 0; i < table->count; i += table->columns) {
        const struct lk_cell *cells = &table->cells[i];

        if (table->columns == 2 && room != SIZE_MAX &&
            room >= table->widths[0] + GAP + FOLD_MIN) {
            put_folded(table, cells, room, out);
        } else {
            put_row(table, cells, hidden, most, out);
        }
    }
    for (size_t i = 0; i < table->count; i++) {
        latchkey_buf_free(&table->cells[i].text);
    }
    free(table->cells);
    table->cells = NULL;
    table->count = table->cap = 0;
}

void lk_table_put_lines(struct lk_buf *out, struct lk_slice text)
{
    size_t room = terminal_width();

    while (text.len > 0) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t length = end == NULL ? text.len : (size_t)(end - text.data);

        lk_put_cut(out, (struct lk_slice){text.data, length}, room);
        lk_put(out, "%s", end == NULL ? "" : "\n");
        length += end != NULL;
        text.data += length;
        text.len -= length;
    }
}
