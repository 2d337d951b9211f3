/*
 * sort.c - a merge sort: the C library's qsort is not stable, and some of them
 * can be driven to quadratic time by chosen input.
 */
#include "lib/sort.h"

#include <stdlib.h>
#include <string.h>

struct order {
    size_t size;
    lk_compare *compare;
    const void *context;
};

/* Merges the runs [a, b) and [b, end) into `to`. Of equal elements the one of
 * the first run comes first: that makes the sort stable. */
static void merge_runs(const struct order *order, const char *a, const char *b,
                       const char *end, char *to)
{
    const char *middle = b;

    while (a < middle && b < end) {
        const char **from = order->compare(b, a, order->context) < 0 ? &b : &a;
        memcpy(to, *from, order->size);
        *from += order->size;
        to += order->size;
    }
    memcpy(to, a, (size_t)(middle - a));
    memcpy(to + (middle - a), b, (size_t)(end - b));
}

/*
 * Sorts `count` elements of `size` bytes in place. LK_NOMEM: the order is as it
 * was. Runs double in length from one element on; each round merges from one
 * array into the other, and the last one may end in the spare one.
 */
enum lk_status lk_sort(void *items, size_t count, size_t size,
                       lk_compare *compare, const void *context)
{
    struct order order = {size, compare, context};
    size_t total = count * size;

    if (count < 2) {
        return LK_OK;
    }
    char *spare = malloc(total);
    if (!spare) {
        return LK_NOMEM;
    }
    char *from = items, *to = spare;
    for (size_t run = size; run < total; run *= 2) {
        for (size_t at = 0; at < total; at += 2 * run) {
            size_t middle = at + run < total ? at + run : total;
            size_t end = middle + run < total ? middle + run : total;
            merge_runs(&order, from + at, from + middle, from + end, to + at);
        }
        char *swap = from;
        from = to;
        to = swap;
    }
    if (from != items) {
        memcpy(items, from, total);
    }
    free(spare);
    return LK_OK;
}
