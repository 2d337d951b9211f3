/*
 * number.c - decimal numbers, sizes and durations.
 *
 *   number   = 1*DIGIT                     no sign, no blanks
 *   size     = number [ "k" / "m" / "g" ]  powers of 1024, in bytes
 *   duration = number ( "ms" / "s" / "m" / "h" / "d" ), or "0"
 *
 * Durations are in milliseconds everywhere. What does not fit is refused, never
 * cut.
 */
#include "lib/number.h"

#include <string.h>

struct unit {
    const char *word;
    uint64_t factor;
};

/* Each list from the largest down; the last has the factor 1. */
static const struct unit plain_units[] = {{"", 1}, {NULL, 0}};
static const struct unit size_units[] = {{"g", UINT64_C(1) << 30},
                                         {"m", UINT64_C(1) << 20},
                                         {"k", UINT64_C(1) << 10},
                                         {"", 1},
                                         {NULL, 0}};
static const struct unit time_units[] = {{"d", 86400000}, {"h", 3600000},
                                         {"m", 60000},    {"s", 1000},
                                         {"ms", 1},       {NULL, 0}};

static const struct unit *const units_of[] = {
    [LK_UNIT_NONE] = plain_units,
    [LK_UNIT_SIZE] = size_units,
    [LK_UNIT_TIME] = time_units,
};

/* Reads the digits at the front of `text`; returns how many there are. 0: there
 * is none, or the number does not fit in 64 bits. */
size_t lk_digits_read(struct lk_slice text, uint64_t *number)
{
    uint64_t value = 0;
    size_t i = 0;

    for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++) {
        unsigned digit = (unsigned)(text.data[i] - '0');
        if (value > (UINT64_MAX - digit) / 10) {
            return 0;
        }
        value = value * 10 + digit;
    }
    *number = value;
    return i;
}

/* All of `text` must be digits, and the number at most `max`. */
bool lk_number_read(struct lk_slice text, uint64_t max, uint64_t *number)
{
    size_t digits = lk_digits_read(text, number);

    return digits > 0 && digits == text.len && *number <= max;
}

/* 1 to 65535. */
bool lk_port_read(struct lk_slice text, uint16_t *port)
{
    uint64_t number;

    if (!lk_number_read(text, UINT16_MAX, &number) || number == 0) {
        return false;
    }
    *port = (uint16_t)number;
    return true;
}

/* Reads a number with one of the unit's words. A bare number is refused where
 * no unit has an empty name: it could be seconds as well as milliseconds. */
bool lk_quantity_read(enum lk_unit unit, struct lk_slice text, uint64_t *number)
{
    uint64_t value;
    size_t digits = lk_digits_read(text, &value);
    struct lk_slice rest = {text.data + digits, text.len - digits};

    if (digits == 0 || value > LK_QUANTITY_MAX) {
        return false;
    }
    /* Nothing is nothing in any unit. */
    if (value == 0 && rest.len == 0) {
        *number = 0;
        return true;
    }
    for (const struct unit *u = units_of[unit]; u->word; u++) {
        if (latchkey_slice_equal(rest, latchkey_slice(u->word))) {
            /* It may wrap around, but then false is returned. */
            *number = value * u->factor;
            return value <= LK_QUANTITY_MAX / u->factor;
        }
    }
    return false;
}

/* The largest unit that divides the number, so that reading it again gives the
 * same number. The last unit has the factor 1, so the loop ends. */
enum lk_status lk_quantity_print(enum lk_unit unit, struct lk_buf *out,
                                 uint64_t number)
{
    const struct unit *u = units_of[unit];

    if (number == 0) {
        return latchkey_buf_add_text(out, "0");
    }
    while (number % u->factor != 0) {
        u++;
    }
    return latchkey_buf_printf(
        out, "%llu%s", (unsigned long long)(number / u->factor), u->word);
}

bool lk_size_read(const char *text, uint64_t *bytes)
{
    return lk_quantity_read(LK_UNIT_SIZE, latchkey_slice(text), bytes);
}

bool lk_duration_read(const char *text, uint64_t *ms)
{
    return lk_quantity_read(LK_UNIT_TIME, latchkey_slice(text), ms);
}

/* The end of a sentence about a text that is not a duration. */
const char *lk_duration_fault(const char *text)
{
    bool bare = *text && text[strspn(text, "0123456789")] == '\0';

    return bare ? "has no unit; add ms, s, m, h or d, as in 30s"
                : "is not a duration; use a number with ms, s, m, h or d";
}
