/*
 * redis_record.c - the bytes of a record and of an audit entry, and the key
 * that a record has in Redis. store/lua/latchkey.lua describes the first.
 */
#include "store/redis.h"

#include <string.h>

enum { FORMAT = 1 };

/* ---- Numbers ---------------------------------------------------------------
 */

uint64_t lk_redis_get64(const char *bytes)
{
    const unsigned char *at = (const unsigned char *)bytes;
    uint64_t number = 0;

    for (int i = 7; i >= 0; i--) {
        number = number << 8 | at[i];
    }
    return number;
}

static uint64_t get32(const char *bytes)
{
    const unsigned char *at = (const unsigned char *)bytes;

    return at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 |
           (uint64_t)at[3] << 24;
}

static void set_bytes(char *bytes, uint64_t number, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (char)(number >> 8 * i);
    }
}

/* ---- Names -----------------------------------------------------------------
 */

static char *write_length(char *at, size_t length)
{
    char digits[20];
    size_t count = 0;

    do {
        digits[count++] = (char)('0' + length % 10);
        length /= 10;
    } while (length);
    while (count) {
        *at++ = digits[--count];
    }
    *at++ = ':';
    return at;
}

static char *write_bytes(char *at, struct lk_slice bytes)
{
    if (bytes.len) {
        memcpy(at, bytes.data, bytes.len);
    }
    return at + bytes.len;
}

/* By hand: it is done for every operation. */
enum lk_status lk_redis_name(const struct lk_redis *store, struct lk_name name,
                             struct lk_buf *key)
{
    enum lk_status status =
        latchkey_buf_reserve(key, store->prefix.len + name.tenant.len +
                                      name.scope.len + name.key.len + 64);

    if (status) {
        return status;
    }
    char *at = write_bytes(key->data + key->len, store->prefix);
    at = write_bytes(at, LK_SLICE("r:"));
    at = write_length(at, name.tenant.len);
    at = write_length(at, name.scope.len);
    at = write_bytes(at, name.tenant);
    at = write_bytes(at, name.scope);
    at = write_bytes(at, name.key);
    key->len = (size_t)(at - key->data);
    return LK_OK;
}

/* A number and its colon, cut off the front. */
static bool cut_length(struct lk_slice *rest, size_t *length)
{
    *length = 0;
    while (rest->len && *rest->data >= '0' && *rest->data <= '9') {
        *length = *length * 10 + (size_t)(*rest->data - '0');
        if (*length > LK_SCOPE_MAX) {
            return false;
        }
        rest->data++;
        rest->len--;
    }
    if (!rest->len || *rest->data != ':') {
        return false;
    }
    rest->data++;
    rest->len--;
    return true;
}

static struct lk_slice cut(struct lk_slice *rest, size_t len)
{
    struct lk_slice part = {rest->data, len};

    rest->data += len;
    rest->len -= len;
    return part;
}

bool lk_redis_name_read(const struct lk_redis *store, struct lk_slice key,
                        struct lk_name *name)
{
    size_t prefix = store->prefix.len;
    size_t tenant, scope;

    if (key.len < prefix + 2 ||
        memcmp(key.data, store->prefix.data, prefix) != 0 ||
        memcmp(key.data + prefix, "r:", 2) != 0) {
        return false;
    }
    struct lk_slice rest = {key.data + prefix + 2, key.len - prefix - 2};
    if (!cut_length(&rest, &tenant) || !cut_length(&rest, &scope) ||
        tenant + scope > rest.len) {
        return false;
    }
    name->tenant = cut(&rest, tenant);
    name->scope = cut(&rest, scope);
    name->key = rest;
    return true;
}

/* ---- Records ---------------------------------------------------------------
 */

enum lk_status lk_redis_head_read(struct lk_slice bytes,
                                  struct lk_redis_head *head)
{
    const char *at = bytes.data;

    *head = (struct lk_redis_head){0};
    if (bytes.len < LK_REDIS_HEAD) {
        return LK_CORRUPT;
    }
    if (at[0] != FORMAT) {
        return LK_VERSION;
    }
    head->state = (unsigned char)at[1];
    head->flags = (unsigned char)at[2];
    head->attempt = get32(at + 4);
    head->token = lk_redis_get64(at + 8);
    head->number = lk_redis_get64(at + 16);
    head->generation = lk_redis_get64(at + 24);
    head->claimed = lk_redis_get64(at + 32);
    head->deadline = lk_redis_get64(at + 40);
    head->ttl = lk_redis_get64(at + 48);
    head->keep = lk_redis_get64(at + 56);
    head->at = lk_redis_get64(at + 64);
    if (bytes.len == LK_REDIS_HEAD) {
        return LK_OK;
    }
    size_t owner = (unsigned char)at[3];
    size_t fingerprint = (unsigned char)at[72];
    size_t reason = (unsigned char)at[73];
    struct lk_slice rest = {at + LK_REDIS_HEAD, bytes.len - LK_REDIS_HEAD};
    if (owner + fingerprint + reason > rest.len) {
        return LK_CORRUPT;
    }
    head->fingerprint = cut(&rest, fingerprint);
    head->owner = cut(&rest, owner);
    head->reason = cut(&rest, reason);
    head->response = rest;
    return LK_OK;
}

enum lk_status lk_redis_head_write(const struct lk_redis_head *head,
                                   struct lk_buf *bytes)
{
    const struct lk_slice parts[] = {head->fingerprint, head->owner,
                                     head->reason, head->response};
    char at[LK_REDIS_HEAD] = {0};

    at[0] = FORMAT;
    at[1] = (char)head->state;
    at[2] = (char)head->flags;
    at[3] = (char)head->owner.len;
    set_bytes(at + 4, head->attempt, 4);
    set_bytes(at + 8, head->token, 8);
    set_bytes(at + 16, head->number, 8);
    set_bytes(at + 24, head->generation, 8);
    set_bytes(at + 32, head->claimed, 8);
    set_bytes(at + 40, head->deadline, 8);
    set_bytes(at + 48, head->ttl, 8);
    set_bytes(at + 56, head->keep, 8);
    set_bytes(at + 64, head->at, 8);
    at[72] = (char)head->fingerprint.len;
    at[73] = (char)head->reason.len;
    enum lk_status status = latchkey_buf_add(bytes, at, sizeof(at));
    for (size_t i = 0; i < 4 && !status; i++) {
        status = latchkey_buf_add_slice(bytes, parts[i]);
    }
    return status;
}

enum lk_status lk_redis_stored(const struct lk_redis_head *head,
                               struct lk_stored **stored)
{
    struct lk_response response = {0};
    struct lk_slice reason = head->reason;
    uint64_t at = head->at;
    enum lk_status status = LK_OK;

    if (head->state == LK_STATE_COMPLETED) {
        status = latchkey_response_decode(head->response, &response);
    } else if (!reason.len) {
        reason = LK_SLICE("lock lapsed");
        at = head->deadline;
    }
    if (!status) {
        *stored = lk_stored_make(head->token, at, &response, reason);
        status = *stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* ---- Audit entries ---------------------------------------------------------
 */

enum { AUDIT_PARTS = 6, AUDIT_HEAD = 16 + 2 * AUDIT_PARTS };

enum lk_status lk_redis_audit_write(const struct lk_audit_entry *entry,
                                    struct lk_buf *bytes)
{
    const struct lk_slice parts[AUDIT_PARTS] = {
        entry->who,         entry->why,        entry->action,
        entry->name.tenant, entry->name.scope, entry->name.key};
    char lengths[2 * AUDIT_PARTS];

    for (size_t i = 0; i < AUDIT_PARTS; i++) {
        if (parts[i].len > UINT16_MAX) {
            return LK_TOO_LARGE;
        }
        set_bytes(lengths + 2 * i, parts[i].len, 2);
    }
    enum lk_status status = latchkey_buf_add(bytes, lengths, sizeof(lengths));
    for (size_t i = 0; i < AUDIT_PARTS && !status; i++) {
        status = latchkey_buf_add_slice(bytes, parts[i]);
    }
    return status;
}

enum lk_status lk_redis_audit_read(struct lk_slice bytes,
                                   struct lk_audit_entry *entry)
{
    struct lk_slice *parts[AUDIT_PARTS] = {
        &entry->who,         &entry->why,        &entry->action,
        &entry->name.tenant, &entry->name.scope, &entry->name.key};

    if (bytes.len < AUDIT_HEAD) {
        return LK_CORRUPT;
    }
    struct lk_slice rest = {bytes.data + AUDIT_HEAD, bytes.len - AUDIT_HEAD};
    entry->at_ms = lk_redis_get64(bytes.data);
    entry->token = lk_redis_get64(bytes.data + 8);
    for (size_t i = 0; i < AUDIT_PARTS; i++) {
        const unsigned char *at =
            (const unsigned char *)bytes.data + 16 + 2 * i;
        size_t len = (size_t)at[0] | (size_t)at[1] << 8;
        if (len > rest.len) {
            return LK_CORRUPT;
        }
        *parts[i] = cut(&rest, len);
    }
    return LK_OK;
}
