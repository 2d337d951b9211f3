/* postgres_array.c - parameters and results in the server's binary form. */
#include "store/postgres.h"

#include <endian.h>
#include <string.h>

/* Memory that a lane keeps for its next batch, for each parameter. */
enum { KEEP_BYTES = 1024 * 1024 };

static uint32_t element_of(unsigned type)
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

static enum lk_status add_word(struct lk_buf *bytes, uint32_t word)
{
    uint32_t big = htobe32(word);

    return latchkey_buf_add(bytes, &big, sizeof(big));
}

/* Dimensions, "may hold nulls", the type, then the length and lower bound. */
enum lk_status lk_pg_array_start(struct lk_pg_array *array, unsigned type,
                                 size_t count)
{
    uint32_t head[] = {htobe32(count ? 1 : 0), htobe32(1),
                       htobe32(element_of(type)), htobe32((uint32_t)count),
                       htobe32(1)};

    array->type = type;
    array->element = element_of(type);
    array->bytes.len = 0;
    return latchkey_buf_add(&array->bytes, head,
                            count ? sizeof(head) : 3 * sizeof(head[0]));
}

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
        status = add_word(&array->bytes, (uint32_t)bytes.len);
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
    return add_word(&array->bytes, UINT32_MAX);
}

void lk_pg_array_trim(struct lk_pg_array *array)
{
    if (array->bytes.cap > KEEP_BYTES) {
        latchkey_buf_free(&array->bytes);
    }
}

static void add(struct lk_pg_params *params, unsigned type, const char *value,
                size_t len)
{
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
    add(params, LK_PG_INT8, number, sizeof(big));
}

void lk_pg_add_bool(struct lk_pg_params *params, bool value)
{
    char *number = params->numbers[params->count];

    number[0] = value;
    add(params, LK_PG_BOOL, number, 1);
}

/* libpq takes NULL for null, so an empty text needs an address. */
void lk_pg_add_text(struct lk_pg_params *params, struct lk_slice text)
{
    add(params, LK_PG_TEXT, text.len ? text.data : "", text.len);
}

void lk_pg_add_array(struct lk_pg_params *params,
                     const struct lk_pg_array *array)
{
    add(params, array->type, array->bytes.data, array->bytes.len);
}

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

struct lk_slice lk_pg_bytes(const PGresult *result, int row, int column)
{
    return (struct lk_slice){PQgetvalue(result, row, column),
                             (size_t)PQgetlength(result, row, column)};
}
