/* table.c - rows of text in aligned columns. */
#include "cli/put.h"

#include <stdlib.h>

static const char *const colour_codes[] = {
    [LK_PLAIN] = "",           [LK_BOLD] = "\033[1m",
    [LK_DIM] = "\033[2m",      [LK_ALARM] = "\033[1;31m",
    [LK_BUSYING] = "\033[33m", [LK_GOOD] = "\033[32m",
};

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

static void measure(struct lk_table *table)
{
    for (size_t i = 0; i < table->count; i++) {
        size_t *width = &table->widths[i % table->columns];
        size_t own = lk_put_width(latchkey_buf_slice(&table->cells[i].text));

        *width = own > *width ? own : *width;
    }
}

static void put_cell(const struct lk_table *table, size_t i, struct lk_buf *out)
{
    const struct lk_cell *cell = &table->cells[i];
    struct lk_slice text = latchkey_buf_slice(&cell->text);
    size_t column = i % table->columns;
    int gap = (int)(table->widths[column] - lk_put_width(text));
    bool last = column + 1 == table->columns;
    bool right = (table->right >> column & 1) != 0;
    bool tinted = table->colour && cell->colour != LK_PLAIN;

    lk_put(out, "%*s%s", right ? gap : 0, "",
           tinted ? colour_codes[cell->colour] : "");
    lk_put_raw(out, text);
    lk_put(out, "%s%*s%s", tinted ? "\033[0m" : "", right || last ? 0 : gap, "",
           last ? "" : "  ");
    if (last) {
        while (out->len > 0 && out->data[out->len - 1] == ' ') {
            out->len--;
        }
        lk_put(out, "\n");
    }
}

void lk_table_flush(struct lk_table *table, struct lk_buf *out)
{
    measure(table);
    for (size_t i = 0; i < table->count; i++) {
        put_cell(table, i, out);
        latchkey_buf_free(&table->cells[i].text);
    }
    free(table->cells);
    table->cells = NULL;
    table->count = table->cap = 0;
}
