/*
 * fuzz_csv.c - rows of CSV are the same however the bytes come, and a row whose
 * fields are written anew, each in quotes, is the same row. The first byte
 * chooses the delimiter.
 */
#include "cli/csv.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void put(struct lk_buf *out, const void *data, size_t length)
{
    demand(latchkey_buf_add(out, data, length) == LK_OK);
}

static void put_fields(struct lk_buf *log, const struct lk_csv *csv)
{
    put(log, &csv->count, sizeof(csv->count));
    for (size_t i = 0; i < csv->count; i++) {
        put(log, &csv->fields[i].len, sizeof(csv->fields[i].len));
        put(log, csv->fields[i].data, csv->fields[i].len);
    }
}

static void check_lines(const struct lk_csv *csv, struct lk_slice row)
{
    size_t newlines = 0;

    for (size_t i = 0; i < row.len; i++) {
        newlines += row.data[i] == '\n';
    }
    /* A last row may have none at its end. */
    demand(csv->lines == newlines || csv->lines == newlines + 1);
    demand(row.data[row.len - 1] != '\n' || csv->lines == newlines);
}

/* Reads the fields of one row again, from another spelling of it. */
static void respell(const struct lk_csv *csv)
{
    struct lk_csv other = {.delimiter = csv->delimiter};
    struct lk_buf text = {0}, before = {0}, after = {0};
    size_t used;

    for (size_t i = 0; i < csv->count; i++) {
        put(&text, &csv->delimiter, i ? 1 : 0);
        put(&text, "\"", 1);
        for (size_t j = 0; j < csv->fields[i].len; j++) {
            const char *c = csv->fields[i].data + j;
            put(&text, "\"", *c == '"');
            put(&text, c, 1);
        }
        put(&text, "\"", 1);
    }
    put(&text, "\r\nbehind", 8);
    demand(!lk_csv_read(&other, latchkey_buf_slice(&text), false, &used));
    demand(used == text.len - 6);
    put_fields(&before, csv);
    put_fields(&after, &other);
    demand(latchkey_slice_equal(latchkey_buf_slice(&before),
                                latchkey_buf_slice(&after)));
    latchkey_buf_free(&text);
    latchkey_buf_free(&before);
    latchkey_buf_free(&after);
    lk_csv_free(&other);
}

/* Reads all rows, given `step` bytes more whenever it wants more. */
static void read_all(struct lk_slice in, char delimiter, size_t step,
                     struct lk_buf *log)
{
    struct lk_csv csv = {.delimiter = delimiter};
    enum lk_status status = LK_OK;
    size_t at = 0, given = 0;

    while (at < in.len && status != LK_TOO_LARGE) {
        struct lk_slice rest = {in.data + at, given - at};
        size_t used = 0;
        bool at_end = given == in.len;

        status = lk_csv_read(&csv, rest, at_end, &used);
        if (status == LK_AGAIN) {
            demand(!at_end);
            given = in.len - given < step ? in.len : given + step;
            continue;
        }
        put(log, &status, sizeof(status));
        demand((status == LK_OK) == !csv.fault);
        if (status == LK_TOO_LARGE) {
            break;
        }
        demand(used > 0 && used <= rest.len);
        demand(status == LK_OK || status == LK_MALFORMED);
        put(log, &used, sizeof(used));
        check_lines(&csv, (struct lk_slice){rest.data, used});
        put_fields(log, &csv);
        if (csv.count) {
            respell(&csv);
        }
        at += used;
    }
    lk_csv_free(&csv);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const size_t steps[] = {1, 7, 64};
    struct lk_buf whole = {0};

    if (size < 2) {
        return 0;
    }
    struct lk_slice in = {(const char *)data + 1, size - 1};
    char delimiter = ",;\t|"[data[0] % 4];
    read_all(in, delimiter, size, &whole);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        struct lk_buf pieces = {0};

        read_all(in, delimiter, steps[i], &pieces);
        demand(latchkey_slice_equal(latchkey_buf_slice(&whole),
                                    latchkey_buf_slice(&pieces)));
        latchkey_buf_free(&pieces);
    }
    latchkey_buf_free(&whole);
    return 0;
}
