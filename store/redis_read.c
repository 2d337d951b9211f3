/*
 * redis_read.c - an operation's bytes in Redis, and reading them: one
 * operation, lists, the audit log, verify.
 *
 * store/lua/latchkey.lua describes the bytes.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ==== Bytes ============================================================= */

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

/* ---- Operations ------------------------------------------------------------
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

/* ==== Reading =========================================================== */

enum {
    PAGE = 500,           /* operations looked at in one call */
    PAGE_BYTES = 4000000, /* of whole operations */
    VERIFY_PAGE = 500,
};

static enum lk_status error_status(const struct lk_reply *reply)
{
    const char *ignored;
    enum lk_status status;

    if (reply->type != LK_REPLY_ERROR) {
        return LK_OK;
    }
    status = lk_redis_refusal(reply, &ignored);
    return status == LK_UNKNOWN ? LK_UNAVAILABLE : status;
}

/* With a link of its own or the reader's. Reads may be sent as often as one
 * likes. */
static enum lk_status call_to_read(struct lk_redis *store, struct lk_link *link,
                                   const char *function, size_t keys,
                                   const struct lk_slice *words, size_t count,
                                   struct lk_reply **reply)
{
    int64_t deadline =
        (int64_t)lk_monotonic_ms() + (int64_t)store->config.timeout_ms;
    enum lk_status status = LK_AGAIN;

    for (int tries = 0; tries < 2 && status == LK_AGAIN; tries++) {
        *reply = NULL;
        status = lk_redis_ready(store, link, deadline);
        if (!status) {
            status = lk_redis_call(store, link, deadline, function, keys, words,
                                   count, reply);
            status = status ? LK_AGAIN : error_status(*reply);
        }
        if (status == LK_AGAIN) {
            free(*reply);
            *reply = NULL;
            lk_redis_lost(store, link, NULL);
            if (lk_redis_await(store, deadline, false)) {
                return LK_UNAVAILABLE;
            }
        }
    }
    if (status) {
        free(*reply);
        *reply = NULL;
    }
    return status == LK_AGAIN ? LK_UNAVAILABLE : status;
}

/* One reader at a time uses the link; the reply is the caller's own, so the
 * lock does not outlive the call. */
enum lk_status lk_redis_read(struct lk_redis *store, const char *function,
                             size_t keys, const struct lk_slice *words,
                             size_t count, struct lk_reply **reply)
{
    pthread_mutex_lock(&store->reader_lock);
    enum lk_status status = call_to_read(store, &store->reader, function, keys,
                                         words, count, reply);
    pthread_mutex_unlock(&store->reader_lock);
    return status;
}

/* ---- Operations ------------------------------------------------------------
 */

/* State and times as of `now`; slices point into the reply. */
static void set_operation(struct lk_operation *operation,
                          const struct lk_redis_head *head, uint64_t now)
{
    operation->state = (enum lk_state)head->state;
    operation->token = head->token;
    operation->attempt = head->attempt;
    operation->number = head->number;
    operation->claimed_ms = head->claimed;
    operation->fingerprint = head->fingerprint;
    operation->reason = head->reason;
    switch (head->state) {
    case LK_STATE_IN_PROGRESS:
        operation->lock_until_ms = head->deadline;
        if (head->deadline <= now) {
            /* The sweeper just has not come by. */
            operation->state = LK_STATE_UNCERTAIN;
            operation->since_ms = head->deadline;
        }
        break;
    case LK_STATE_UNCERTAIN:
        operation->since_ms = head->deadline;
        break;
    default:
        operation->expires_ms = head->deadline;
        break;
    }
    if (operation->state == LK_STATE_UNCERTAIN && !operation->reason.len) {
        operation->reason = LK_SLICE("lock lapsed");
    }
    if (head->state == LK_STATE_COMPLETED) {
        operation->completed_ms = head->at;
        operation->omitted = head->flags & LK_REDIS_OMITTED;
        if (latchkey_response_measure(head->response, &operation->status,
                                      &operation->response_bytes)) {
            operation->status = 0; /* damaged; `verify` says so */
        }
    }
}

static bool head_is_expired(const struct lk_redis_head *head, uint64_t now)
{
    return (head->state == LK_STATE_COMPLETED ||
            head->state == LK_STATE_RELEASED) &&
           head->deadline <= now;
}

static enum lk_status copy_operation_text(struct lk_operation *operation)
{
    struct lk_slice *slices[] = {&operation->name.tenant,
                                 &operation->name.scope, &operation->name.key,
                                 &operation->fingerprint, &operation->reason};
    size_t total = 1;

    for (size_t i = 0; i < 5; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&operation->text, total);
    for (size_t i = 0; i < 5 && !status; i++) {
        const char *at = operation->text.data + operation->text.len;
        status = latchkey_buf_add_slice(&operation->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

/* One operation, with its response; LK_NOT_FOUND if it is past its TTL. */
static enum lk_status take_operation(struct lk_slice bytes, struct lk_name name,
                                     uint64_t now,
                                     struct lk_operation *operation)
{
    struct lk_redis_head head;
    enum lk_status status = lk_redis_head_read(bytes, &head);

    if (!status && head_is_expired(&head, now)) {
        status = LK_NOT_FOUND;
    }
    if (status) {
        return status;
    }
    operation->name = name;
    set_operation(operation, &head, now);
    operation->ttl_ms = head.ttl > head.keep ? head.ttl : head.keep;
    if (operation->state == LK_STATE_COMPLETED ||
        operation->state == LK_STATE_UNCERTAIN) {
        status = lk_redis_stored(&head, &operation->stored);
    }
    if (!status) {
        status = copy_operation_text(operation);
    }
    if (status) {
        lk_operation_free(operation);
    }
    return status;
}

enum lk_status lk_redis_lookup(struct lk_store *base, struct lk_name name,
                               struct lk_operation *operation)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_buf key = {0};
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_redis_name(store, name, &key);

    *operation = (struct lk_operation){0};
    if (!status) {
        const struct lk_slice words[] = {latchkey_buf_slice(&key)};
        status = lk_redis_read(store, "latchkey_get", 1, words, 1, &reply);
    }
    if (!status && (reply->type != LK_REPLY_ARRAY || reply->count < 2 ||
                    reply->elements[1].type != LK_REPLY_TEXT)) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status =
            take_operation(lk_reply_text(&reply->elements[1]), name,
                           lk_reply_number(&reply->elements[0]), operation);
    }
    free(reply);
    latchkey_buf_free(&key);
    return status;
}

/* A long response. LK_AGAIN: the operation is not what it was when that was
 * decided. */
enum lk_status lk_redis_load(struct lk_store *base, struct lk_op *op)
{
    struct lk_operation operation;
    enum lk_status status = lk_redis_lookup(base, op->name, &operation);

    if (status) {
        return status == LK_NOT_FOUND ? LK_AGAIN : status;
    }
    if (operation.token != op->out.token || operation.state != op->out.state ||
        !operation.stored) {
        status = LK_AGAIN;
    } else {
        op->out.stored = lk_stored_ref(operation.stored);
        op->out.needs_load = false;
    }
    lk_operation_free(&operation);
    return status;
}

enum lk_status lk_redis_find_number(struct lk_store *base,
                                    struct lk_slice tenant, uint64_t number,
                                    struct lk_operation *operation)
{
    struct lk_redis *store = (struct lk_redis *)base;
    char text[24];
    struct lk_name name;
    struct lk_reply *reply = NULL;

    snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    const struct lk_slice words[] = {store->keys[LK_REDIS_INDEX],
                                     latchkey_slice(text)};
    *operation = (struct lk_operation){0};
    enum lk_status status =
        lk_redis_read(store, "latchkey_find", 1, words, 2, &reply);
    if (!status &&
        (reply->type != LK_REPLY_ARRAY || reply->count < 3 ||
         reply->elements[2].type != LK_REPLY_TEXT ||
         !lk_redis_name_read(store, lk_reply_text(&reply->elements[1]),
                             &name) ||
         (tenant.len && !latchkey_slice_equal(name.tenant, tenant)))) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status =
            take_operation(lk_reply_text(&reply->elements[2]), name,
                           lk_reply_number(&reply->elements[0]), operation);
    }
    if (!status && operation->number != number) {
        lk_operation_free(operation); /* the key was used again since */
        status = LK_NOT_FOUND;
    }
    free(reply);
    return status;
}

/* ---- Lists -----------------------------------------------------------------
 */

/* All that an import needs. */
static enum lk_status add_whole(struct lk_operation *operation,
                                const struct lk_redis_head *head)
{
    operation->owner = head->owner;
    operation->generation = head->generation;
    operation->ttl_ms = head->ttl;
    operation->keep_ms = head->keep;
    operation->evicted = head->state == LK_STATE_RELEASED &&
                         (head->flags & LK_REDIS_EVICTED) != 0;
    return head->state == LK_STATE_COMPLETED && !operation->omitted
               ? lk_redis_stored(head, &operation->stored)
               : LK_OK;
}

/* LK_NOT_FOUND: nothing to show. */
static enum lk_status list_one(struct lk_redis *store,
                               const struct lk_list_query *query,
                               const struct lk_reply *pair, uint64_t now,
                               struct lk_operation *operation)
{
    struct lk_redis_head head;
    struct lk_slice bytes = lk_reply_text(&pair[1]);

    *operation = (struct lk_operation){0};
    if (!bytes.len) {
        return LK_NOT_FOUND;
    }
    enum lk_status status =
        lk_redis_name_read(store, lk_reply_text(&pair[0]), &operation->name)
            ? lk_redis_head_read(bytes, &head)
            : LK_CORRUPT;
    if (status && query->whole) {
        lk_redis_log(store, 0,
                     "an operation cannot be read; run latchkey verify");
        return status; /* who moves all must not lose one */
    }
    if (status || head_is_expired(&head, now)) {
        return LK_NOT_FOUND;
    }
    set_operation(operation, &head, now);
    operation->ttl_ms = head.ttl > head.keep ? head.ttl : head.keep;
    if (!lk_list_matches(query, operation, now) ||
        (query->attention && !lk_list_needs_person(query, operation, now))) {
        return LK_NOT_FOUND;
    }
    return query->whole ? add_whole(operation, &head) : LK_OK;
}

/* *next is the number of the last one shown if no more may be. */
static enum lk_status list_page(struct lk_redis *store,
                                const struct lk_list_query *query,
                                const struct lk_reply *reply,
                                lk_operation_fn fn, void *context,
                                uint64_t *next)
{
    uint64_t now = lk_reply_number(&reply->elements[0]);
    enum lk_status status = LK_OK;
    size_t shown = 0;
    bool stopped = false;

    *next = lk_reply_number(&reply->elements[1]);
    for (size_t i = 2; i + 1 < reply->count && !status && !stopped; i += 2) {
        struct lk_operation operation;
        status = list_one(store, query, reply->elements + i, now, &operation);
        if (!status) {
            stopped = !fn(context, &operation) || ++shown == query->limit;
        }
        if (stopped && i + 2 < reply->count) {
            *next = operation.number;
        }
        status = status == LK_NOT_FOUND ? LK_OK : status;
        lk_operation_free(&operation);
    }
    return status;
}

/* Shows one page. *next: the number to go on from; 0: there are no more. */
enum lk_status lk_redis_list(struct lk_store *base,
                             const struct lk_list_query *query,
                             lk_operation_fn fn, void *context, uint64_t *next)
{
    struct lk_redis *store = (struct lk_redis *)base;
    char cursor[24], count[24], bytes[24];
    struct lk_reply *reply = NULL;

    snprintf(cursor, sizeof(cursor), "%llu", (unsigned long long)query->cursor);
    snprintf(count, sizeof(count), "%d", PAGE);
    snprintf(bytes, sizeof(bytes), "%d", query->whole ? PAGE_BYTES : 0);
    const struct lk_slice words[] = {
        store->keys[LK_REDIS_INDEX], latchkey_slice(cursor),
        latchkey_slice(count), latchkey_slice(bytes)};
    enum lk_status status = lk_redis_read(
        store, query->newest ? "latchkey_page_newest" : "latchkey_page", 1,
        words, 4, &reply);
    if (!status && (reply->type != LK_REPLY_ARRAY || reply->count < 2)) {
        status = LK_CORRUPT;
    }
    if (!status) {
        status = list_page(store, query, reply, fn, context, next);
    }
    free(reply);
    return status;
}

/* ---- The audit log --------------------------------------------------------
 */

/* `part` is all of `text`, or is before or behind the slash in it. */
static bool matches_who(struct lk_slice text, struct lk_slice part)
{
    if (text.len <= part.len) {
        return latchkey_slice_equal(text, part);
    }
    size_t rest = text.len - part.len;
    return (text.data[part.len] == '/' &&
            !memcmp(text.data, part.data, part.len)) ||
           (text.data[rest - 1] == '/' &&
            !memcmp(text.data + rest, part.data, part.len));
}

static bool matches_action(struct lk_slice text, struct lk_slice words)
{
    return text.len >= words.len && !memcmp(text.data, words.data, words.len) &&
           (text.len == words.len || text.data[words.len] == ' ');
}

static bool matches_part(struct lk_slice text, struct lk_slice asked)
{
    return !asked.len || latchkey_slice_equal(text, asked);
}

/* As LK_AUDIT_MATCHES, without the ids. */
static bool audit_matches(const struct lk_audit_query *query,
                          const struct lk_audit_entry *entry)
{
    return entry->at_ms >= query->since_ms &&
           (!query->until_ms || entry->at_ms < query->until_ms) &&
           (!query->who.len || matches_who(entry->who, query->who)) &&
           (!query->action.len ||
            matches_action(entry->action, query->action)) &&
           matches_part(entry->name.tenant, query->name.tenant) &&
           matches_part(entry->name.scope, query->name.scope) &&
           matches_part(entry->name.key, query->name.key) &&
           (!query->job || lk_audit_job(entry) == query->job);
}

/* The entries of `count` places from `first` on, which counts from 0. */
static enum lk_status read_entries(struct lk_redis *store, uint64_t first,
                                   uint64_t count, struct lk_reply **reply)
{
    char from[24], most[24];

    snprintf(from, sizeof(from), "%llu", (unsigned long long)first);
    snprintf(most, sizeof(most), "%llu", (unsigned long long)count);
    const struct lk_slice words[] = {store->keys[LK_REDIS_AUDIT],
                                     latchkey_slice(from),
                                     latchkey_slice(most)};
    enum lk_status status =
        lk_redis_read(store, "latchkey_audits", 1, words, 3, reply);
    return !status && (*reply)->type != LK_REPLY_ARRAY ? LK_CORRUPT : status;
}

static enum lk_status count_entries(struct lk_redis *store, uint64_t *count)
{
    struct lk_reply *reply = NULL;
    enum lk_status status =
        lk_redis_read(store, "latchkey_audit_length", 1,
                      &store->keys[LK_REDIS_AUDIT], 1, &reply);

    if (!status) {
        *count = lk_reply_number(reply);
    }
    free(reply);
    return status;
}

/* Shows what matches of a page whose first entry has the id `first`, until
 * *left are shown or `fn` wants no more, which makes *left 0. */
static enum lk_status show_entries(const struct lk_audit_query *query,
                                   const struct lk_reply *page, uint64_t first,
                                   lk_audit_fn fn, void *context, size_t *left)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < page->count && !status && *left; i++) {
        size_t at = query->newest ? page->count - 1 - i : i;
        struct lk_audit_entry entry = {.id = first + at};
        status =
            lk_redis_audit_read(lk_reply_text(&page->elements[at]), &entry);
        if (!status && audit_matches(query, &entry)) {
            *left = fn(context, &entry) ? *left - 1 : 0;
        }
    }
    return status;
}

/* The id of an entry is its place in the list, from 1. Entries are only added,
 * so the places below the length that is asked for first stay what they are. */
enum lk_status lk_redis_audit(struct lk_store *base,
                              const struct lk_audit_query *query,
                              lk_audit_fn fn, void *context)
{
    struct lk_redis *store = (struct lk_redis *)base;
    uint64_t low = query->after; /* entries above it, */
    uint64_t high = 0;           /* up to this one */
    size_t left = query->limit;
    enum lk_status status = count_entries(store, &high);

    if (query->before && query->before <= high) {
        high = query->before - 1;
    }
    while (!status && left && low < high) {
        uint64_t count = high - low < PAGE ? high - low : PAGE;
        uint64_t first = query->newest ? high - count : low;
        struct lk_reply *page = NULL;
        status = read_entries(store, first, count, &page);
        if (!status) {
            status = show_entries(query, page, first + 1, fn, context, &left);
        }
        free(page);
        low += query->newest ? 0 : count;
        high -= query->newest ? count : 0;
    }
    return status;
}

/* ---- Verify ----------------------------------------------------------------
 */

static enum lk_status report_fault(const struct lk_redis *store,
                                   struct lk_slice key, struct lk_slice fault,
                                   struct lk_buf *report)
{
    struct lk_name name;

    if (!lk_redis_name_read(store, key, &name)) {
        return latchkey_buf_printf(report, "a name in the index is damaged\n");
    }
    return latchkey_buf_printf(report, "an operation of tenant %.*s %.*s\n",
                               (int)name.tenant.len, name.tenant.data,
                               (int)fault.len, fault.data ? fault.data : "");
}

/* Over a link of its own, page by page: neither the lanes nor the reader wait
 * for it. LK_CORRUPT: `report` has a line for each fault. */
enum lk_status lk_redis_verify(struct lk_store *base, lk_progress_fn progress,
                               void *context, struct lk_buf *report)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_link link = {.fd = -1};
    struct lk_store_stats now;
    char cursor[24] = "0";
    uint64_t done = 0;
    bool faults = false;
    enum lk_status status = LK_OK;

    base->class->stats(base, &now);
    while (!status && !atomic_load(&store->stopping)) {
        char count[24];
        struct lk_reply *reply = NULL;
        snprintf(count, sizeof(count), "%d", VERIFY_PAGE);
        const struct lk_slice words[] = {
            store->keys[LK_REDIS_INDEX], store->keys[LK_REDIS_DUE],
            latchkey_slice(cursor), latchkey_slice(count)};
        status =
            call_to_read(store, &link, "latchkey_verify", 2, words, 4, &reply);
        if (!status && (reply->type != LK_REPLY_ARRAY || !reply->count)) {
            status = LK_CORRUPT;
        }
        for (size_t i = 1; !status && i + 1 < reply->count; i += 2) {
            faults = true;
            status =
                report_fault(store, lk_reply_text(&reply->elements[i]),
                             lk_reply_text(&reply->elements[i + 1]), report);
        }
        done += VERIFY_PAGE;
        if (!status && progress) {
            progress(context, done < now.operations ? done : now.operations,
                     now.operations);
        }
        uint64_t next = status ? 0 : lk_reply_number(&reply->elements[0]);
        snprintf(cursor, sizeof(cursor), "%llu", (unsigned long long)next);
        free(reply);
        if (!next) {
            break;
        }
    }
    lk_link_close(&link);
    return !status && faults ? LK_CORRUPT : status;
}
