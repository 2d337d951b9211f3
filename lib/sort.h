/* sort.h - a stable sort whose worst case is n log n. */
#ifndef LK_SORT_H
#define LK_SORT_H

#include "latchkey.h"

/* Negative, zero or positive, as for qsort_r. */
typedef int lk_compare(const void *a, const void *b, const void *context);

/*
 * Sorts `count` items of `size` bytes; equal items keep their order. If a
 * comparison costs no more than the shorter of two texts, the whole sort costs
 * no more than log n times all texts together, for any input.
 * LK_NOMEM: the items are unchanged.
 */
LK_MUST_CHECK enum lk_status lk_sort(void *items, size_t count, size_t size,
                                     lk_compare *compare, const void *context);

#endif
