/* response.c - a stored response as one versioned block of bytes. */
#include "latchkey.h"

#include <endian.h>
#include <string.h>

/*
 *   offset  size
 *        0     1  magic
 *        1     1  version
 *        2     4  status              all numbers little endian
 *        6     4  length of headers
 *       10     8  length of body
 *       18        headers, body, and nothing after them
 *
 * There is no checksum: the stores guard their own pages.
 */
enum {
    MAGIC = 0xa1,
    VERSION = 1,
    STATUS_AT = 2,
    HEADERS_AT = 6,
    BODY_AT = 10,
    PREFIX = LK_RESPONSE_PREFIX,
};

static void put32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

static void put64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

static uint64_t get64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

enum lk_status latchkey_response_encode(const struct lk_response *response,
                                        struct lk_buf *encoded)
{
    struct lk_slice headers = response->headers;
    struct lk_slice body = response->body;
    uint8_t prefix[PREFIX] = {MAGIC, VERSION};

    if (headers.len > UINT32_MAX ||
        body.len > SIZE_MAX - PREFIX - headers.len) {
        return LK_TOO_LARGE;
    }
    /* With the room reserved, none of the three appends can fail halfway. */
    enum lk_status status =
        latchkey_buf_reserve(encoded, PREFIX + headers.len + body.len);
    if (status) {
        return status;
    }
    put32(prefix + STATUS_AT, response->status);
    put32(prefix + HEADERS_AT, (uint32_t)headers.len);
    put64(prefix + BODY_AT, body.len);
    status = latchkey_buf_add(encoded, prefix, PREFIX);
    if (!status) {
        status = latchkey_buf_add_slice(encoded, headers);
    }
    if (!status) {
        status = latchkey_buf_add_slice(encoded, body);
    }
    return status;
}

/* A block of a later version is LK_VERSION, whatever else it contains; what
 * cannot be a block at all is LK_CORRUPT. */
static enum lk_status check_prefix(struct lk_slice encoded)
{
    const uint8_t *bytes = (const uint8_t *)encoded.data;

    if (encoded.len < 2 || bytes[0] != MAGIC || bytes[1] < VERSION) {
        return LK_CORRUPT;
    }
    if (bytes[1] > VERSION) {
        return LK_VERSION;
    }
    return encoded.len < PREFIX ? LK_CORRUPT : LK_OK;
}

/* The slices of *response point into `encoded`. The lengths must add up
 * exactly: a cut block and one with bytes behind it are both LK_CORRUPT. */
enum lk_status latchkey_response_decode(struct lk_slice encoded,
                                        struct lk_response *response)
{
    const uint8_t *bytes = (const uint8_t *)encoded.data;
    enum lk_status status = check_prefix(encoded);

    if (status) {
        return status;
    }
    uint64_t payload = encoded.len - PREFIX;
    uint32_t headers = get32(bytes + HEADERS_AT);
    uint64_t body = get64(bytes + BODY_AT);
    if (headers > payload || body != payload - headers) {
        return LK_CORRUPT;
    }
    response->status = get32(bytes + STATUS_AT);
    response->headers = (struct lk_slice){encoded.data + PREFIX, headers};
    response->body =
        (struct lk_slice){encoded.data + PREFIX + headers, (size_t)body};
    return LK_OK;
}

/*
 * Status and size from the prefix alone, so that a list need not load bodies.
 */
enum lk_status latchkey_response_measure(struct lk_slice prefix,
                                         unsigned *status, uint64_t *bytes)
{
    const uint8_t *at = (const uint8_t *)prefix.data;
    enum lk_status checked = check_prefix(prefix);

    if (!checked) {
        *status = get32(at + STATUS_AT);
        *bytes = get32(at + HEADERS_AT) + get64(at + BODY_AT);
    }
    return checked;
}
