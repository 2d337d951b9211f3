/* compare_value.c - when two values are the same: exact decimals, or bytes.
 */
#include "cli/compare.h"

#include "lib/json.h"

#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/*
 * Writes a number the way JSON would: "+1", ".5" and "2." are numbers to
 * whoever exports them. False: it cannot be one.
 */
static bool respell(struct lk_slice value, char *text, size_t size,
                    size_t *length)
{
    size_t i = 0, n = 0;

    if (value.len == 0 || value.len + 3 > size) {
        return false;
    }
    if (value.data[0] == '-') {
        text[n++] = '-';
    }
    i = value.data[0] == '-' || value.data[0] == '+';
    if (i < value.len && value.data[i] == '.' && i + 1 < value.len &&
        is_digit(value.data[i + 1])) {
        text[n++] = '0';
    }
    for (; i < value.len; i++) {
        char next = i + 1 < value.len ? value.data[i + 1] : '\0';

        if (value.data[i] == '.' && i > 0 && is_digit(value.data[i - 1]) &&
            !is_digit(next)) {
            continue;
        }
        text[n++] = value.data[i];
    }
    *length = n;
    return n > 0;
}

/* Longer ones are compared by their bytes. */
enum { DECIMAL_MAX = 256 };

enum lk_status lk_decimal(struct lk_slice value, struct lk_buf *out)
{
    char text[DECIMAL_MAX];
    size_t length, at = 0, mark = out->len;
    enum lk_status status;

    if (!respell(value, text, sizeof(text), &length)) {
        return LK_MALFORMED;
    }
    status = lk_json_read_number((struct lk_slice){text, length}, &at, out);
    if (status == LK_OK && at != length) {
        status = LK_MALFORMED;
    }
    if (status != LK_OK) {
        out->len = mark;
    }
    return status;
}

static bool may_be_number(struct lk_slice value)
{
    char c = value.data[0];

    return is_digit(c) || c == '-' || c == '+' || c == '.';
}

enum lk_status lk_value_hash(const uint8_t key[LK_SIPHASH_KEY],
                             struct lk_slice value, uint64_t *hash)
{
    struct lk_buf number = {0};
    enum lk_status status = LK_MALFORMED;

    *hash = 0;
    if (value.len == 0) {
        return LK_OK;
    }
    if (may_be_number(value)) {
        status = lk_decimal(value, &number);
    }
    if (status == LK_OK) {
        /* A text would have to begin with a NUL to be taken for one. */
        char tagged[DECIMAL_MAX * 2] = {0};
        size_t length =
            number.len < sizeof(tagged) - 1 ? number.len : sizeof(tagged) - 1;

        memcpy(tagged + 1, number.data, length);
        *hash = lk_siphash64(key, tagged, length + 1);
    } else if (status == LK_MALFORMED) {
        *hash = lk_siphash64(key, value.data, value.len);
        status = LK_OK;
    }
    latchkey_buf_free(&number);
    return status;
}
