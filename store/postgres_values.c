/*
 * postgres_values.c - values between C and the server: names as text that a
 * UTF8 database accepts, messages as clean lines, parameters and results in
 * the server's binary form.
 *
 * Tenant, scope and key are any bytes, but text of PostgreSQL is UTF-8 without
 * NUL. Bytes that do not fit become \ooo (octal), and a backslash becomes
 * two. lk_pg_unescape is the inverse, so names keep their identity.
 */
#include "store/postgres.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

/* ---- text --------------------------------------------------------------- */

static bool is_continuation(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/*
 * The length of the UTF-8 character that begins at `at`, 0 if the server would
 * not take it: cut off, longer than need be, a surrogate, above U+10FFFF, or
 * NUL.
 */
static size_t utf8_length(const uint8_t *at, size_t left)
{
    uint8_t first = at[0];
    size_t len = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

    if (!first || (first >= 0x80 && first < 0xc2) || first > 0xf4 ||
        len > left) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if (!is_continuation(at[i])) {
            return 0;
        }
    }
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) ||
        (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    return len;
}

/* True: the bytes are their own text, which saves a copy. */
bool lk_pg_is_plain(struct lk_slice bytes)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t at = 0;

    while (at < bytes.len) {
        size_t len =
            data[at] == '\\' ? 0 : utf8_length(data + at, bytes.len - at);
        if (!len) {
            return false;
        }
        at += len;
    }
    return true;
}

/* How long lk_pg_escape would make it. */
size_t lk_pg_text_size(struct lk_slice bytes)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t size = 0;

    for (size_t at = 0; at < bytes.len;) {
        size_t len = utf8_length(data + at, bytes.len - at);
        size += !len ? 4 : data[at] == '\\' ? 2 : len;
        at += len ? len : 1;
    }
    return size;
}

/* Appends to `text`; on LK_NOMEM it is as before. */
enum lk_status lk_pg_escape(struct lk_slice bytes, struct lk_buf *text)
{
    const uint8_t *data = (const uint8_t *)bytes.data;
    size_t start = text->len;
    enum lk_status status = latchkey_buf_reserve(text, bytes.len * 4 + 1);

    for (size_t at = 0; at < bytes.len && !status;) {
        size_t len = utf8_length(data + at, bytes.len - at);
        if (!len) {
            status = latchkey_buf_printf(text, "\\%03o", data[at]);
            len = 1;
        } else if (data[at] == '\\') {
            status = latchkey_buf_add(text, "\\\\", 2);
        } else {
            status = latchkey_buf_add(text, data + at, len);
        }
        at += len;
    }
    if (status) {
        text->len = start;
    }
    return status;
}

/* The byte of an escape; -1: it is not an escape. *len: how long it is. */
static int unescape_byte(const char *at, size_t left, size_t *len)
{
    int value = 0;

    if (left >= 2 && at[1] == '\\') {
        *len = 2;
        return '\\';
    }
    if (left < 4) {
        return -1;
    }
    for (int i = 1; i < 4; i++) {
        if (at[i] < '0' || at[i] > '7') {
            return -1;
        }
        value = value * 8 + (at[i] - '0');
    }
    *len = 4;
    return value < 256 ? value : -1;
}

/* The inverse. What is not an escape stays as it is, so no text is refused. */
enum lk_status lk_pg_unescape(struct lk_slice text, struct lk_buf *bytes)
{
    size_t start = bytes->len;
    enum lk_status status = latchkey_buf_reserve(bytes, text.len + 1);

    for (size_t at = 0; at < text.len && !status;) {
        size_t len = 1;
        int value = text.data[at] == '\\'
                        ? unescape_byte(text.data + at, text.len - at, &len)
                        : (unsigned char)text.data[at];
        char byte = value < 0 ? '\\' : (char)value;
        status = latchkey_buf_add(bytes, &byte, 1);
        at += value < 0 ? 1 : len;
    }
    if (status) {
        bytes->len = start;
    }
    return status;
}

/* Copies what fits whole; false if it does not. */
static bool append_if_fits(char *line, size_t size, size_t *used,
                           const char *bytes, size_t len)
{
    if (*used + len >= size) {
        return false;
    }
    memcpy(line + *used, bytes, len);
    *used += len;
    return true;
}

/* A message of the server as one line without control characters and without
 * the secret, cut to `size` at a character's end. `line` may
 * be `message` if there is no secret. */
void lk_pg_clean(const char *message, const char *secret, char *line,
                 size_t size)
{
    size_t left = strlen(message);
    size_t hidden = secret ? strlen(secret) : 0;
    size_t used = 0;
    bool fits = true;

    while (left && fits) {
        const uint8_t *at = (const uint8_t *)message;
        size_t len = utf8_length(at, left);
        bool control = !len || at[0] < 0x20 || at[0] == 0x7f ||
                       (at[0] == 0xc2 && at[1] < 0xa0);
        bool space = at[0] == '\n' || at[0] == '\r' || at[0] == '\t';
        if (hidden && left >= hidden && !memcmp(message, secret, hidden)) {
            len = hidden;
            fits = append_if_fits(line, size, &used, "***", 3);
        } else if (control) {
            len = len ? len : 1;
            fits =
                space && used && line[used - 1] == ' '
                    ? true
                    : append_if_fits(line, size, &used, space ? " " : "?", 1);
        } else {
            fits = append_if_fits(line, size, &used, message, len);
        }
        message += len;
        left -= len;
    }
    while (used && line[used - 1] == ' ') {
        used--;
    }
    line[used] = 0;
}

/* ---- arrays, parameters and results ------------------------------------- */

/* Memory that a lane keeps for its next batch, for each parameter. */
enum { ARRAY_KEEP_BYTES = 1024 * 1024 };

static uint32_t element_type(unsigned type)
{
    switch (type) {
    case LK_PG_INT2_ARRAY:
        return LK_PG_INT2;
    case LK_PG_INT4_ARRAY:
        return LK_PG_INT4;
    case LK_PG_INT8_ARRAY:
        return LK_PG_INT8;
    case LK_PG_TEXT_ARRAY:
        return LK_PG_TEXT;
    default:
        return LK_PG_BYTEA;
    }
}

static enum lk_status add_int32(struct lk_buf *bytes, uint32_t word)
{
    uint32_t big = htobe32(word);

    return latchkey_buf_add(bytes, &big, sizeof(big));
}

/* Dimensions, "may hold nulls", the type, then the length and lower bound. */
enum lk_status lk_pg_array_start(struct lk_pg_array *array, unsigned type,
                                 size_t count)
{
    uint32_t head[] = {htobe32(count ? 1 : 0), htobe32(1),
                       htobe32(element_type(type)), htobe32((uint32_t)count),
                       htobe32(1)};

    array->type = type;
    array->element = element_type(type);
    array->bytes.len = 0;
    return latchkey_buf_add(&array->bytes, head,
                            count ? sizeof(head) : 3 * sizeof(head[0]));
}

/* The last bytes of the big-endian number, as wide as the element's type. */
enum lk_status lk_pg_array_int(struct lk_pg_array *array, int64_t value)
{
    uint64_t big = htobe64((uint64_t)value);
    size_t len = array->element == LK_PG_INT2   ? 2
                 : array->element == LK_PG_INT4 ? 4
                                                : 8;
    return lk_pg_array_bytes(
        array, (struct lk_slice){(const char *)&big + 8 - len, len});
}

enum lk_status lk_pg_array_bytes(struct lk_pg_array *array,
                                 struct lk_slice bytes)
{
    enum lk_status status =
        latchkey_buf_reserve(&array->bytes, bytes.len + sizeof(uint32_t));

    if (!status) {
        status = add_int32(&array->bytes, (uint32_t)bytes.len);
    }
    return status ? status : latchkey_buf_add_slice(&array->bytes, bytes);
}

enum lk_status lk_pg_array_text(struct lk_pg_array *array,
                                struct lk_slice bytes)
{
    struct lk_buf text = {0};

    if (lk_pg_is_plain(bytes)) {
        return lk_pg_array_bytes(array, bytes);
    }
    enum lk_status status = lk_pg_escape(bytes, &text);
    if (!status) {
        status = lk_pg_array_bytes(array, latchkey_buf_slice(&text));
    }
    latchkey_buf_free(&text);
    return status;
}

enum lk_status lk_pg_array_null(struct lk_pg_array *array)
{
    return add_int32(&array->bytes, UINT32_MAX);
}

/* After a batch: memory of an unusually large one is given back. */
void lk_pg_array_trim(struct lk_pg_array *array)
{
    if (array->bytes.cap > ARRAY_KEEP_BYTES) {
        latchkey_buf_free(&array->bytes);
    }
}

/* The value is not copied: it must stay until the statement has been sent. All
 * parameters are in binary form. */
static void add_param(struct lk_pg_params *params, unsigned type,
                      const char *value, size_t len)
{
    assert(params->count < LK_PG_PARAMETERS);
    int at = params->count++;

    params->types[at] = type;
    params->values[at] = value;
    params->lengths[at] = (int)len;
    params->formats[at] = 1;
}

void lk_pg_add_int(struct lk_pg_params *params, int64_t value)
{
    uint64_t big = htobe64((uint64_t)value);
    char *number = params->numbers[params->count];

    memcpy(number, &big, sizeof(big));
    add_param(params, LK_PG_INT8, number, sizeof(big));
}

void lk_pg_add_bool(struct lk_pg_params *params, bool value)
{
    char *number = params->numbers[params->count];

    number[0] = value;
    add_param(params, LK_PG_BOOL, number, 1);
}

/* libpq takes NULL for null, so an empty text needs an address. */
void lk_pg_add_text(struct lk_pg_params *params, struct lk_slice text)
{
    add_param(params, LK_PG_TEXT, text.len ? text.data : "", text.len);
}

void lk_pg_add_array(struct lk_pg_params *params,
                     const struct lk_pg_array *array)
{
    add_param(params, array->type, array->bytes.data, array->bytes.len);
}

/* Any integer or boolean, by its width; null, or another type, is 0. */
int64_t lk_pg_int(const PGresult *result, int row, int column)
{
    const char *value = PQgetvalue(result, row, column);
    uint16_t two;
    uint32_t four;
    uint64_t eight;

    switch (PQgetlength(result, row, column)) {
    case 1:
        return value[0];
    case 2:
        memcpy(&two, value, 2);
        return (int16_t)be16toh(two);
    case 4:
        memcpy(&four, value, 4);
        return (int32_t)be32toh(four);
    case 8:
        memcpy(&eight, value, 8);
        return (int64_t)be64toh(eight);
    default:
        return 0;
    }
}

uint64_t lk_pg_uint(const PGresult *result, int row, int column)
{
    int64_t value = lk_pg_int(result, row, column);

    return value < 0 ? 0 : (uint64_t)value;
}

/* Valid until PQclear. Null is empty. */
struct lk_slice lk_pg_bytes(const PGresult *result, int row, int column)
{
    return (struct lk_slice){PQgetvalue(result, row, column),
                             (size_t)PQgetlength(result, row, column)};
}
