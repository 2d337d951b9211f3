/*
 * number.h - decimal numbers, sizes and durations, as people and programs write
 * them. Signs, spaces and other bases are never accepted.
 */
#ifndef LK_NUMBER_H
#define LK_NUMBER_H

#include "latchkey.h"

/* The largest size or duration: what a double holds exactly. */
#define LK_QUANTITY_MAX ((UINT64_C(1) << 53) - 1)

enum lk_unit {
    LK_UNIT_NONE, /* a plain number: "12" */
    LK_UNIT_SIZE, /* in bytes: "12", "12k", "12m", "12g" */
    LK_UNIT_TIME, /* in milliseconds: "12ms", "12s", "12m", "12h", "12d"; only 0
                     needs no unit */
};

/* How many digits `text` begins with, and their value. 0: none, or the value is
 * more than 64 bits hold. */
size_t lk_digits_read(struct lk_slice text, uint64_t *number);
/* The whole of `text` is a number, at most `max`; leading zeros are fine. */
bool lk_number_read(struct lk_slice text, uint64_t max, uint64_t *number);
/* The same for a port, 1 to 65535. */
bool lk_port_read(struct lk_slice text, uint16_t *port);

/* A number with its unit, at most LK_QUANTITY_MAX. */
bool lk_quantity_read(enum lk_unit unit, struct lk_slice text,
                      uint64_t *number);
/* Appends it in the largest unit that gives a whole number. */
LK_MUST_CHECK enum lk_status lk_quantity_print(enum lk_unit unit,
                                               struct lk_buf *out,
                                               uint64_t number);

bool lk_size_read(const char *text, uint64_t *bytes);
bool lk_duration_read(const char *text, uint64_t *ms);
/* What is wrong with a duration that lk_duration_read refuses, for people; to
 * be put behind the text itself. */
const char *lk_duration_fault(const char *text);

#endif
