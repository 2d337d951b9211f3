/* fuzz_response.c - any bytes as a stored response, and any response as bytes.
 */
#include "latchkey.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* What decodes is written by exactly one record: the one that was read. */
static void check_decode(struct lk_slice record)
{
    struct lk_response response;
    struct lk_buf again = {0};
    enum lk_status status = latchkey_response_decode(record, &response);

    if (status) {
        require(status == LK_CORRUPT || status == LK_VERSION);
        return;
    }
    require(!latchkey_response_encode(&response, &again));
    require(latchkey_slice_equal(latchkey_buf_slice(&again), record));
    latchkey_buf_free(&again);
}

/* The input as a response: a status, a place to cut, headers and body. */
static void check_encode(struct lk_slice input)
{
    struct lk_response response = {0};
    struct lk_response again;
    struct lk_buf record = {0};
    uint16_t cut;

    if (input.len < sizeof(response.status) + sizeof(cut)) {
        return;
    }
    memcpy(&response.status, input.data, sizeof(response.status));
    input.data += sizeof(response.status);
    memcpy(&cut, input.data, sizeof(cut));
    input.data += sizeof(cut);
    input.len -= sizeof(response.status) + sizeof(cut);
    cut = (uint16_t)(cut % (input.len + 1));
    response.headers = (struct lk_slice){input.data, cut};
    response.body = (struct lk_slice){input.data + cut, input.len - cut};

    require(!latchkey_response_encode(&response, &record));
    require(!latchkey_response_decode(latchkey_buf_slice(&record), &again));
    require(again.status == response.status);
    require(latchkey_slice_equal(again.headers, response.headers));
    require(latchkey_slice_equal(again.body, response.body));
    latchkey_buf_free(&record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_slice input = {(const char *)data, size};

    check_decode(input);
    check_encode(input);
    return 0;
}
