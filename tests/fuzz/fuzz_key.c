/* fuzz_key.c - any header value: a key that, quoted again, is the same key. */
#include "latchkey.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void check_fault(enum lk_key_fault fault, size_t at, size_t size)
{
    require(fault != LK_KEY_FAULT_NONE);
    require(at <= size);
    /* Only these are about something that is not there. */
    require(at < size || fault == LK_KEY_FAULT_EMPTY ||
            fault == LK_KEY_FAULT_UNTERMINATED);
}

static void check_canonical(const struct lk_buf *key)
{
    require(key->len >= 1 && key->len <= LK_KEY_MAX);
    for (size_t i = 0; i < key->len; i++) {
        require(key->data[i] >= 0x20 && key->data[i] <= 0x7e);
    }
}

static void quote(const struct lk_buf *key, struct lk_buf *quoted)
{
    require(!latchkey_buf_add(quoted, "\"", 1));
    for (size_t i = 0; i < key->len; i++) {
        if (key->data[i] == '"' || key->data[i] == '\\') {
            require(!latchkey_buf_add(quoted, "\\", 1));
        }
        require(!latchkey_buf_add(quoted, key->data + i, 1));
    }
    require(!latchkey_buf_add(quoted, "\"", 1));
}

static void check_again(const struct lk_buf *key)
{
    struct lk_buf quoted = {0};
    struct lk_buf again = {0};

    quote(key, &quoted);
    require(
        !latchkey_key_parse(latchkey_buf_slice(&quoted), &again, NULL, NULL));
    require(latchkey_slice_equal(latchkey_buf_slice(key),
                                 latchkey_buf_slice(&again)));
    latchkey_buf_free(&quoted);
    latchkey_buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum lk_key_fault fault;
    struct lk_buf key = {0};
    size_t at;
    enum lk_status status = latchkey_key_parse(
        (struct lk_slice){(const char *)data, size}, &key, &fault, &at);

    if (status) {
        require(status == LK_MALFORMED && key.len == 0);
        check_fault(fault, at, size);
    } else {
        require(fault == LK_KEY_FAULT_NONE);
        check_canonical(&key);
        check_again(&key);
    }
    latchkey_buf_free(&key);
    return 0;
}
