/* redis_import.c - taking over what another store holds. */
#include "lib/socket.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Operations ------------------------------------------------------------
 */

static enum lk_status encode_operation(const struct lk_operation *operation,
                                       struct lk_buf *response,
                                       struct lk_buf *bytes)
{
    const struct lk_response status_only = {.status = operation->status};
    struct lk_redis_head head = {
        .state = operation->state,
        .attempt =
            operation->attempt < UINT32_MAX ? operation->attempt : UINT32_MAX,
        .token = operation->token,
        .number = operation->number,
        .generation = operation->generation,
        .claimed = operation->claimed_ms,
        .deadline = lk_operation_deadline(operation),
        .ttl = operation->ttl_ms,
        .keep = operation->keep_ms,
        .at = operation->completed_ms,
        .fingerprint = operation->fingerprint,
        .owner = operation->owner,
    };
    enum lk_status status = LK_OK;

    response->len = 0;
    if (operation->state == LK_STATE_COMPLETED) {
        status = latchkey_response_encode(
            operation->omitted ? &status_only : &operation->stored->response,
            response);
        head.response = latchkey_buf_slice(response);
        head.flags = operation->omitted ? LK_REDIS_OMITTED : 0;
        head.reason = operation->omitted ? operation->reason : head.reason;
    } else if (operation->state == LK_STATE_UNCERTAIN &&
               !latchkey_slice_equal(operation->reason,
                                     LK_SLICE("lock lapsed"))) {
        head.at = operation->since_ms;
        head.reason = operation->reason;
    } else if (operation->state == LK_STATE_RELEASED && operation->evicted) {
        head.flags = LK_REDIS_EVICTED;
    }
    return status ? status : lk_redis_head_write(&head, bytes);
}

static void take_result(const struct lk_reply *reply, uint64_t token,
                        struct lk_import *result)
{
    uint64_t what = lk_reply_number(reply);

    result->taken += what > 0;
    result->older += what == 0;
    result->renumbered += what == 2;
    if (token > result->highest_token) {
        result->highest_token = token;
    }
}

/* One operation, in one call of a function: it is there whole or not at all. */
static enum lk_status import_one(struct lk_redis *store,
                                 const struct lk_operation *operation,
                                 struct lk_import *result)
{
    struct lk_buf key = {0}, bytes = {0}, response = {0};
    char highest[24];
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_redis_name(store, operation->name, &key);

    if (!status) {
        status = encode_operation(operation, &response, &bytes);
    }
    snprintf(highest, sizeof(highest), "%llu",
             (unsigned long long)result->highest_token);
    if (!status) {
        const struct lk_slice words[] = {
            latchkey_buf_slice(&key),    store->keys[LK_REDIS_DUE],
            store->keys[LK_REDIS_INDEX], store->keys[LK_REDIS_TOKEN],
            latchkey_buf_slice(&bytes),  latchkey_slice(highest)};
        /* Twice is as good as once. */
        status = lk_redis_read(store, "latchkey_import", 4, words, 6, &reply);
    }
    if (!status) {
        take_result(reply, operation->token, result);
    }
    free(reply);
    latchkey_buf_free(&response);
    latchkey_buf_free(&bytes);
    latchkey_buf_free(&key);
    return status;
}

enum lk_status lk_redis_import(struct lk_store *base,
                               const struct lk_operation *operations,
                               size_t count, struct lk_import *result)
{
    struct lk_redis *store = (struct lk_redis *)base;
    enum lk_status status = LK_OK;

    if (result->highest_token > LK_IMPORT_TOKEN_MAX) {
        return LK_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        if (!lk_operation_is_possible(&operations[i])) {
            return LK_INVALID;
        }
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = import_one(store, &operations[i], result);
    }
    return status;
}

/* ---- Audit log -------------------------------------------------------------
 */

/* Entries as they would be stored, and whether an earlier pass brought them. */
struct audit_import {
    struct lk_buf *bytes;
    bool *known;
    size_t count;
};

static enum lk_status encode_entry(const struct lk_audit_entry *entry,
                                   struct lk_buf *bytes)
{
    char numbers[16];

    for (int i = 0; i < 8; i++) {
        numbers[i] = (char)(entry->at_ms >> 8 * i);
        numbers[8 + i] = (char)(entry->token >> 8 * i);
    }
    enum lk_status status = latchkey_buf_add(bytes, numbers, sizeof(numbers));
    return status ? status : lk_redis_audit_write(entry, bytes);
}

static bool note_known(void *context, const struct lk_audit_entry *entry)
{
    struct audit_import *import = context;
    struct lk_buf bytes = {0};

    if (!encode_entry(entry, &bytes)) {
        for (size_t i = 0; i < import->count; i++) {
            if (!import->known[i] &&
                latchkey_slice_equal(latchkey_buf_slice(&bytes),
                                     latchkey_buf_slice(&import->bytes[i]))) {
                import->known[i] = true; /* one row is one entry */
                break;
            }
        }
    }
    latchkey_buf_free(&bytes);
    return true;
}

static enum lk_status write_entries(struct lk_redis *store,
                                    const struct audit_import *import)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < import->count && !status; i++) {
        const struct lk_slice words[] = {store->keys[LK_REDIS_AUDIT],
                                         latchkey_buf_slice(&import->bytes[i])};
        struct lk_reply *reply = NULL;
        if (!import->known[i]) {
            status = lk_redis_read(store, "latchkey_import_audit", 1, words, 2,
                                   &reply);
        }
        free(reply);
    }
    return status;
}

enum lk_status lk_redis_import_audit(struct lk_store *base,
                                     const struct lk_audit_entry *entries,
                                     size_t count)
{
    struct audit_import import = {.count = count};
    const struct lk_audit_query all = {.limit = SIZE_MAX};
    enum lk_status status = LK_NOMEM;

    if (!count) {
        return LK_OK;
    }
    import.bytes = calloc(count, sizeof(*import.bytes));
    import.known = calloc(count, sizeof(*import.known));
    if (import.bytes && import.known) {
        status = LK_OK;
        for (size_t i = 0; i < count && !status; i++) {
            status = encode_entry(&entries[i], &import.bytes[i]);
        }
        if (!status) {
            status = lk_redis_audit(base, &all, note_known, &import);
        }
        if (!status) {
            status = write_entries((struct lk_redis *)base, &import);
        }
        for (size_t i = 0; i < count; i++) {
            latchkey_buf_free(&import.bytes[i]);
        }
    }
    free(import.bytes);
    free(import.known);
    return status;
}

/* ---- References ------------------------------------------------------------
 */

enum lk_status lk_redis_adopt(struct lk_store *base,
                              const uint8_t reference_secret[LK_REFERENCE_KEY])
{
    struct lk_redis *store = (struct lk_redis *)base;
    char text[33];
    struct lk_reply *reply = NULL;

    if (!memcmp(base->reference_secret, reference_secret, LK_REFERENCE_KEY)) {
        return LK_OK;
    }
    for (int i = 0; i < LK_REFERENCE_KEY; i++) {
        snprintf(text + 2 * i, 3, "%02x", reference_secret[i]);
    }
    const struct lk_slice words[] = {
        store->keys[LK_REDIS_META], store->keys[LK_REDIS_INDEX],
        store->keys[LK_REDIS_TOKEN], latchkey_slice(text)};
    enum lk_status status =
        lk_redis_read(store, "latchkey_adopt", 3, words, 4, &reply);
    if (!status &&
        !latchkey_slice_equal(lk_reply_text(reply), LK_SLICE("OK"))) {
        status = LK_BUSY;
    }
    if (!status) {
        memcpy(base->reference_secret, reference_secret, LK_REFERENCE_KEY);
    }
    free(reply);
    return status;
}
