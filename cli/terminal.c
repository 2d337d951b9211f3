/*
 * terminal.c - tables as wide as the terminal, and progress bars.
 *
 * A table collects cells until lk_table_flush(), which measures the columns,
 * decides which of them to leave out or cut, and prints all rows. Bit i of
 * `right`, `rigid` and `spare` is about column i. Into a file or a pipe nothing
 * is cut. Progress goes to standard error, and only if that is a terminal.
 */
#include "cli/move.h"
#include "cli/output.h"
#include "lib/time.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* ==== Rows of text in aligned columns, as wide as the terminal */

enum {
    GAP = 2,      /* between columns */
    LEGIBLE = 8,  /* below that, spare columns are left out */
    FOLD_MIN = 16 /* a narrower column is not folded */
};

static const char *const colour_codes[] = {
    [LK_PLAIN] = "",           [LK_BOLD] = "\033[1m",
    [LK_DIM] = "\033[2m",      [LK_ALARM] = "\033[1;31m",
    [LK_BUSYING] = "\033[33m", [LK_GOOD] = "\033[32m",
};

/* ---- The terminal -------------------------------------------------------- */

/* --wide, for the whole run. */
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

/* Columns of the terminal that standard output is; SIZE_MAX: it is not one. */
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

/* Lines of the terminal; SIZE_MAX: it is not one. */
size_t lk_table_rows(void)
{
    size_t rows = terminal_size().ws_row;

    return isatty(STDOUT_FILENO) && rows > 0 ? rows : SIZE_MAX;
}

/* ---- Cells --------------------------------------------------------------- */

/*
 * The next cell, row by row. The buffer is valid until the next cell is added.
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

/* A heading may be cut down to what is below it; a number and what is rigid
 * may not. */
static void measure_columns(struct lk_table *table)
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

/* ---- Fitting ------------------------------------------------------------- */

static bool is_hidden_column(unsigned hidden, size_t column)
{
    return (hidden >> column & 1) != 0;
}

/* A column as wide as it would be if none could be wider than `most`. */
static size_t bounded_width(const struct lk_table *table, size_t column,
                            size_t most)
{
    size_t width = table->widths[column];

    width = width > most ? most : width;
    return width < table->least[column] ? table->least[column] : width;
}

/* Of all columns that are not hidden, with the gaps. */
static size_t total_width(const struct lk_table *table, unsigned hidden,
                          size_t most)
{
    size_t total = 0;

    for (size_t i = 0; i < table->columns; i++) {
        if (!is_hidden_column(hidden, i)) {
            total += bounded_width(table, i, most) + (total > 0 ? GAP : 0);
        }
    }
    return total;
}

/* How wide a column can be so that all fit in `room`; at least 1. */
static size_t widest_column(const struct lk_table *table, unsigned hidden,
                            size_t room)
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

/* ---- Writing ------------------------------------------------------------- */

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

/* A row without spaces at its end. */
static void put_table_row(const struct lk_table *table,
                          const struct lk_cell *cells, unsigned hidden,
                          size_t most, struct lk_buf *out)
{
    size_t last = table->columns;

    for (size_t i = 0; i < table->columns; i++) {
        last = is_hidden_column(hidden, i) ? last : i;
    }
    for (size_t i = 0; i <= last && i < table->columns; i++) {
        if (!is_hidden_column(hidden, i)) {
            put_cell(table, &cells[i], i, bounded_width(table, i, most),
                     i == last, out);
        }
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ') {
        out->len--;
    }
    lk_put(out, "\n");
}

/* How much of it fits in `width` columns, up to the end of a word if there is
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

/* Prints the rows and empties the table. Widths stay, so that the next page
 * lines up with this one. */
void lk_table_flush(struct lk_table *table, struct lk_buf *out)
{
    size_t room = terminal_width();
    unsigned hidden;
    size_t most;

    measure_columns(table);
    hidden = choose_hidden(table, room);
    most = room == SIZE_MAX ? room : widest_column(table, hidden, room);
    for (size_t i = 0; i < table->count; i += table->columns) {
        const struct lk_cell *cells = &table->cells[i];

        if (table->columns == 2 && room != SIZE_MAX &&
            room >= table->widths[0] + GAP + FOLD_MIN) {
            put_folded(table, cells, room, out);
        } else {
            put_table_row(table, cells, hidden, most, out);
        }
    }
    for (size_t i = 0; i < table->count; i++) {
        latchkey_buf_free(&table->cells[i].text);
    }
    free(table->cells);
    table->cells = NULL;
    table->count = table->cap = 0;
}

/* Lines that are too long for the terminal are cut. */
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

/* ==== Bars: for verify and backup, drawn while another call waits, and for
 * export and import, which draw their own */

enum { POLL_MS = 200, BAR_WIDTH = 40 };

/* The lock guards `over`; everything else is the thread's once it runs. */
struct lk_progress {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    bool over;
    const char *title;
    struct lk_client_options where;
};

/* The number in a line "name:number" of INFO, 0 if there is none. */
static uint64_t info_number(struct lk_slice info, const char *name)
{
    size_t length = strlen(name);

    for (size_t i = 0; i + length < info.len; i++) {
        if ((i == 0 || info.data[i - 1] == '\n') &&
            memcmp(info.data + i, name, length) == 0 &&
            info.data[i + length] == ':') {
            uint64_t number = 0;

            for (i += length + 1;
                 i < info.len && info.data[i] >= '0' && info.data[i] <= '9';
                 i++) {
                number = number * 10 + (uint64_t)(info.data[i] - '0');
            }
            return number;
        }
    }
    return 0;
}

static void draw_bar(const char *title, uint64_t done, uint64_t total)
{
    char bar[BAR_WIDTH + 1];
    double part = done >= total ? 1 : (double)done / (double)total;
    size_t filled = (size_t)(part * BAR_WIDTH);

    memset(bar, '-', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3.0f%%\033[K", title, bar, part * 100);
    fflush(stderr);
}

/* True until lk_progress_stop. */
static bool pause_drawing(struct lk_progress *progress)
{
    struct timespec until = lk_wall_after_ms(POLL_MS);
    bool over;

    pthread_mutex_lock(&progress->lock);
    if (!progress->over) {
        pthread_cond_timedwait(&progress->woken, &progress->lock, &until);
    }
    over = progress->over;
    pthread_mutex_unlock(&progress->lock);
    return !over;
}

/* A bar is optional: if something fails here, there is none. */
static void *run_thread(void *context)
{
    static const struct lk_slice info[] = {{"INFO", 4}, {"chores", 6}};
    struct lk_progress *progress = context;
    struct lk_client *client = NULL;
    const struct lk_reply *reply;
    enum lk_status status = latchkey_client_open(&progress->where, &client);

    while (status == LK_OK && pause_drawing(progress)) {
        status = latchkey_client_call(client, info, 2, 0, &reply);
        if (status == LK_OK && reply->type == LK_REPLY_TEXT) {
            uint64_t total = info_number(reply->text, "chore_total");

            if (total > 0) {
                draw_bar(progress->title,
                         info_number(reply->text, "chore_done"), total);
            }
        }
    }
    fprintf(stderr, "\r\033[K");
    latchkey_client_close(client);
    return NULL;
}

/*
 * Starts a thread that asks the daemon, over a connection of its own, how far
 * the long work is. NULL, and no bar: not a terminal, or it cannot be started.
 */
struct lk_progress *lk_progress_start(const struct lk_cli *cli,
                                      const char *title)
{
    struct lk_progress *progress;

    if (cli->json || !isatty(STDERR_FILENO)) {
        return NULL;
    }
    progress = calloc(1, sizeof(*progress));
    if (progress == NULL) {
        return NULL;
    }
    progress->title = title;
    progress->where = cli->where;
    pthread_mutex_init(&progress->lock, NULL);
    pthread_cond_init(&progress->woken, NULL);
    if (pthread_create(&progress->thread, NULL, run_thread, progress) != 0) {
        free(progress);
        return NULL;
    }
    return progress;
}

/* Ends the thread, waits for it and frees everything. NULL is fine. */
void lk_progress_stop(struct lk_progress *progress)
{
    if (progress == NULL) {
        return;
    }
    pthread_mutex_lock(&progress->lock);
    progress->over = true;
    pthread_cond_signal(&progress->woken);
    pthread_mutex_unlock(&progress->lock);
    pthread_join(progress->thread, NULL);
    pthread_cond_destroy(&progress->woken);
    pthread_mutex_destroy(&progress->lock);
    free(progress);
}

/* ---- Drawn by the command that works ------------------------------------- */

void lk_bar_start(struct lk_bar *bar, const struct lk_cli *cli,
                  const char *title)
{
    *bar = (struct lk_bar){title, !cli->json && isatty(STDERR_FILENO),
                           lk_monotonic_ms()};
}

/* At most once in POLL_MS; a total of 0 means that it is not known. */
void lk_bar_show(struct lk_bar *bar, uint64_t done, uint64_t total)
{
    if (bar->on && total > 0 && lk_monotonic_ms() - bar->drawn_ms >= POLL_MS) {
        draw_bar(bar->title, done, total);
        bar->drawn_ms = lk_monotonic_ms();
    }
}

void lk_bar_stop(struct lk_bar *bar)
{
    if (bar->on) {
        fprintf(stderr, "\r\033[K");
        bar->on = false;
    }
}
