/* csv.h - reads rows of CSV (RFC 4180). */
#ifndef LK_CSV_H
#define LK_CSV_H

#include "latchkey.h"

enum {
    LK_ROW_MAX = 1 << 20, /* bytes of a row, of CSV or JSON */
    LK_FIELDS_MAX = 4096, /* of a row of CSV */
};

/* Start it as {.delimiter = ','}; free it with lk_csv_free. */
struct lk_csv {
    char delimiter;
    struct lk_slice *fields; /* of the last row: in the input or in `text` */
    size_t count;
    size_t cap;
    size_t lines;      /* newlines in what was used */
    const char *fault; /* what is wrong with a row that is malformed */
    struct lk_buf text;
};

/*
 * Reads the row (RFC 4180) that `in` begins with; `at_end`: nothing follows
 * `in`. LK_OK: *used bytes belong to it; an empty line is a row of no fields.
 * LK_AGAIN: it continues after `in`. LK_MALFORMED: it is not a row, but what
 * comes after *used bytes may be one. LK_TOO_LARGE: a quote that is not closed,
 * or a row longer than LK_ROW_MAX: where the next one begins is not known.
 * LK_NOMEM.
 */
LK_MUST_CHECK enum lk_status lk_csv_read(struct lk_csv *csv, struct lk_slice in,
                                         bool at_end, size_t *used);
void lk_csv_free(struct lk_csv *csv);

#endif
