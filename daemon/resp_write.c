/* resp_write.c - replies of the Redis protocol, appended to a buffer. */
#include "daemon/resp.h"

#include <string.h>

#define PREFIX_MAX 24 /* type, sign, 20 digits, CR, LF */

/* Writes "<type><number>\r\n" and returns its end. */
static char *put_number(char *to, char type, bool negative, uint64_t number)
{
    char digits[20];
    size_t count = 0;

    *to++ = type;
    if (negative) {
        *to++ = '-';
    }
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    while (count > 0) {
        *to++ = digits[--count];
    }
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

static enum lk_status add_number(struct lk_buf *out, char type, bool negative,
                                 uint64_t number)
{
    enum lk_status status = latchkey_buf_reserve(out, PREFIX_MAX);

    if (status == LK_OK) {
        char *end = put_number(out->data + out->len, type, negative, number);

        out->len = (size_t)(end - out->data);
    }
    return status;
}

/* One line with nothing in it that could end it early. */
static enum lk_status add_line(struct lk_buf *out, char type,
                               struct lk_slice text)
{
    enum lk_status status;
    char *to;

    if (text.len > SIZE_MAX / 2) {
        return LK_NOMEM;
    }
    status = latchkey_buf_reserve(out, text.len + 3);
    if (status != LK_OK) {
        return status;
    }
    to = out->data + out->len;
    *to++ = type;
    for (size_t i = 0; i < text.len; i++) {
        unsigned char byte = (unsigned char)text.data[i];

        *to++ = byte < 0x20 || byte == 0x7f ? ' ' : (char)byte;
    }
    *to++ = '\r';
    *to++ = '\n';
    out->len = (size_t)(to - out->data);
    return LK_OK;
}

enum lk_status lk_resp_simple(struct lk_buf *out, const char *text)
{
    return add_line(out, '+', latchkey_slice(text));
}

enum lk_status lk_resp_error(struct lk_buf *out, struct lk_slice message)
{
    return add_line(out, '-', message);
}

enum lk_status lk_resp_integer(struct lk_buf *out, int64_t number)
{
    /* Negated without a sign, so that INT64_MIN works. */
    return add_number(out, ':', number < 0,
                      number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

enum lk_status lk_resp_bulk(struct lk_buf *out, struct lk_slice bytes)
{
    enum lk_status status;
    char *to;

    if (bytes.len > SIZE_MAX / 2) {
        return LK_NOMEM;
    }
    status = latchkey_buf_reserve(out, bytes.len + PREFIX_MAX + 2);
    if (status != LK_OK) {
        return status;
    }
    to = put_number(out->data + out->len, '$', false, bytes.len);
    if (bytes.len > 0) {
        memcpy(to, bytes.data, bytes.len);
        to += bytes.len;
    }
    *to++ = '\r';
    *to++ = '\n';
    out->len = (size_t)(to - out->data);
    return LK_OK;
}

enum lk_status lk_resp_nil(struct lk_buf *out, int proto)
{
    return latchkey_buf_add_text(out, proto >= 3 ? "_\r\n" : "$-1\r\n");
}

enum lk_status lk_resp_array(struct lk_buf *out, size_t count)
{
    return add_number(out, '*', false, count);
}

enum lk_status lk_resp_map(struct lk_buf *out, int proto, size_t pairs)
{
    if (proto >= 3) {
        return add_number(out, '%', false, pairs);
    }
    return add_number(out, '*', false, (uint64_t)pairs * 2);
}

enum lk_status lk_resp_push(struct lk_buf *out, int proto, size_t count)
{
    return add_number(out, proto >= 3 ? '>' : '*', false, count);
}
