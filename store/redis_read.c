/* redis_read.c - looking things up: one record, many, the audit log, verify. */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE = 500,           /* records looked at in one call */
    PAGE_BYTES = 4000000, /* of whole records */
    VERIFY_PAGE = 500,
};

static enum lk_status as_status(const struct lk_reply *reply)
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
static enum lk_status call(struct lk_redis *store, struct lk_link *link,
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
            status = status ? LK_AGAIN : as_status(*reply);
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

enum lk_status lk_redis_read(struct lk_redis *store, const char *function,
                             size_t keys, const struct lk_slice *words,
                             size_t count, struct lk_reply **reply)
{
    pthread_mutex_lock(&store->reader_lock);
    enum lk_status status =
        call(store, &store->reader, function, keys, words, count, reply);
    pthread_mutex_unlock(&store->reader_lock);
    return status;
}

/* ---- Records ---------------------------------------------------------------
 */

/* State and times as of `now`; slices point into the reply. */
static void set_record(struct lk_operation *record,
                       const struct lk_redis_head *head, uint64_t now)
{
    record->state = (enum lk_state)head->state;
    record->token = head->token;
    record->attempt = head->attempt;
    record->number = head->number;
    record->claimed_ms = head->claimed;
    record->fingerprint = head->fingerprint;
    record->reason = head->reason;
    switch (head->state) {
    case LK_STATE_IN_PROGRESS:
        record->lock_until_ms = head->deadline;
        if (head->deadline <= now) {
            /* The sweeper just has not come by. */
            record->state = LK_STATE_UNCERTAIN;
            record->since_ms = head->deadline;
        }
        break;
    case LK_STATE_UNCERTAIN:
        record->since_ms = head->deadline;
        break;
    default:
        record->expires_ms = head->deadline;
        break;
    }
    if (record->state == LK_STATE_UNCERTAIN && !record->reason.len) {
        record->reason = LK_SLICE("lock lapsed");
    }
    if (head->state == LK_STATE_COMPLETED) {
        record->completed_ms = head->at;
        record->omitted = head->flags & LK_REDIS_OMITTED;
        if (latchkey_response_measure(head->response, &record->status,
                                      &record->response_bytes)) {
            record->status = 0; /* damaged; `verify` says so */
        }
    }
}

static bool is_expired(const struct lk_redis_head *head, uint64_t now)
{
    return (head->state == LK_STATE_COMPLETED ||
            head->state == LK_STATE_RELEASED) &&
           head->deadline <= now;
}

static enum lk_status copy_text(struct lk_operation *record)
{
    struct lk_slice *slices[] = {&record->name.tenant, &record->name.scope,
                                 &record->name.key, &record->fingerprint,
                                 &record->reason};
    size_t total = 1;

    for (size_t i = 0; i < 5; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&record->text, total);
    for (size_t i = 0; i < 5 && !status; i++) {
        const char *at = record->text.data + record->text.len;
        status = latchkey_buf_add_slice(&record->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

/* One record, with its answer; LK_NOT_FOUND if it is past its TTL. */
static enum lk_status take_record(struct lk_slice bytes, struct lk_name name,
                                  uint64_t now, struct lk_operation *record)
{
    struct lk_redis_head head;
    enum lk_status status = lk_redis_head_read(bytes, &head);

    if (!status && is_expired(&head, now)) {
        status = LK_NOT_FOUND;
    }
    if (status) {
        return status;
    }
    record->name = name;
    set_record(record, &head, now);
    record->ttl_ms = head.ttl > head.keep ? head.ttl : head.keep;
    if (record->state == LK_STATE_COMPLETED ||
        record->state == LK_STATE_UNCERTAIN) {
        status = lk_redis_stored(&head, &record->stored);
    }
    if (!status) {
        status = copy_text(record);
    }
    if (status) {
        lk_operation_free(record);
    }
    return status;
}

enum lk_status lk_redis_lookup(struct lk_store *base, struct lk_name name,
                               struct lk_operation *record)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_buf key = {0};
    struct lk_reply *reply = NULL;
    enum lk_status status = lk_redis_name(store, name, &key);

    *record = (struct lk_operation){0};
    if (!status) {
        const struct lk_slice words[] = {latchkey_buf_slice(&key)};
        status = lk_redis_read(store, "latchkey_get", 1, words, 1, &reply);
    }
    if (!status && (reply->type != LK_REPLY_ARRAY || reply->count < 2 ||
                    reply->elements[1].type != LK_REPLY_TEXT)) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status = take_record(lk_reply_text(&reply->elements[1]), name,
                             lk_reply_number(&reply->elements[0]), record);
    }
    free(reply);
    latchkey_buf_free(&key);
    return status;
}

/* A long answer. LK_AGAIN: the operation is not what it was when that was
 * decided. */
enum lk_status lk_redis_load(struct lk_store *base, struct lk_op *op)
{
    struct lk_operation record;
    enum lk_status status = lk_redis_lookup(base, op->name, &record);

    if (status) {
        return status == LK_NOT_FOUND ? LK_AGAIN : status;
    }
    if (record.token != op->out.token || record.state != op->out.state ||
        !record.stored) {
        status = LK_AGAIN;
    } else {
        op->out.stored = lk_stored_ref(record.stored);
        op->out.needs_load = false;
    }
    lk_operation_free(&record);
    return status;
}

enum lk_status lk_redis_find_number(struct lk_store *base,
                                    struct lk_slice tenant, uint64_t number,
                                    struct lk_operation *record)
{
    struct lk_redis *store = (struct lk_redis *)base;
    char text[24];
    struct lk_name name;
    struct lk_reply *reply = NULL;

    snprintf(text, sizeof(text), "%llu", (unsigned long long)number);
    const struct lk_slice words[] = {store->keys[LK_REDIS_INDEX],
                                     latchkey_slice(text)};
    *record = (struct lk_operation){0};
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
        status = take_record(lk_reply_text(&reply->elements[2]), name,
                             lk_reply_number(&reply->elements[0]), record);
    }
    if (!status && record->number != number) {
        lk_operation_free(record); /* the key was used anew since */
        status = LK_NOT_FOUND;
    }
    free(reply);
    return status;
}

/* ---- Lists -----------------------------------------------------------------
 */

/* All that an import needs. */
static enum lk_status add_whole(struct lk_operation *record,
                                const struct lk_redis_head *head)
{
    record->owner = head->owner;
    record->generation = head->generation;
    record->ttl_ms = head->ttl;
    record->keep_ms = head->keep;
    record->evicted = head->state == LK_STATE_RELEASED &&
                      (head->flags & LK_REDIS_EVICTED) != 0;
    return head->state == LK_STATE_COMPLETED && !record->omitted
               ? lk_redis_stored(head, &record->stored)
               : LK_OK;
}

/* LK_NOT_FOUND: nothing to show. */
static enum lk_status list_one(struct lk_redis *store,
                               const struct lk_list_query *query,
                               const struct lk_reply *pair, uint64_t now,
                               struct lk_operation *record)
{
    struct lk_redis_head head;
    struct lk_slice bytes = lk_reply_text(&pair[1]);

    *record = (struct lk_operation){0};
    if (!bytes.len) {
        return LK_NOT_FOUND;
    }
    enum lk_status status =
        lk_redis_name_read(store, lk_reply_text(&pair[0]), &record->name)
            ? lk_redis_head_read(bytes, &head)
            : LK_CORRUPT;
    if (status && query->whole) {
        lk_redis_log(store, 0, "a record cannot be read; run latchkey verify");
        return status; /* who moves all must not lose one */
    }
    if (status || is_expired(&head, now)) {
        return LK_NOT_FOUND;
    }
    set_record(record, &head, now);
    record->ttl_ms = head.ttl > head.keep ? head.ttl : head.keep;
    if (!lk_list_matches(query, record, now) ||
        (query->attention && !lk_list_needs_person(query, record, now))) {
        return LK_NOT_FOUND;
    }
    return query->whole ? add_whole(record, &head) : LK_OK;
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
        struct lk_operation record;
        status = list_one(store, query, reply->elements + i, now, &record);
        if (!status) {
            stopped = !fn(context, &record) || ++shown == query->limit;
        }
        if (stopped && i + 2 < reply->count) {
            *next = record.number;
        }
        status = status == LK_NOT_FOUND ? LK_OK : status;
        lk_operation_free(&record);
    }
    return status;
}

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

/* `part` is all of `text`, or stands before or behind the slash in it. */
static bool is_who(struct lk_slice text, struct lk_slice part)
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

static bool is_action(struct lk_slice text, struct lk_slice words)
{
    return text.len >= words.len && !memcmp(text.data, words.data, words.len) &&
           (text.len == words.len || text.data[words.len] == ' ');
}

static bool is_part(struct lk_slice text, struct lk_slice asked)
{
    return !asked.len || latchkey_slice_equal(text, asked);
}

/* As LK_AUDIT_MATCHES, without the ids. */
static bool audit_matches(const struct lk_audit_query *query,
                          const struct lk_audit_entry *entry)
{
    return entry->at_ms >= query->since_ms &&
           (!query->until_ms || entry->at_ms < query->until_ms) &&
           (!query->who.len || is_who(entry->who, query->who)) &&
           (!query->action.len || is_action(entry->action, query->action)) &&
           is_part(entry->name.tenant, query->name.tenant) &&
           is_part(entry->name.scope, query->name.scope) &&
           is_part(entry->name.key, query->name.key) &&
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
    return latchkey_buf_printf(report, "a record of tenant %.*s %.*s\n",
                               (int)name.tenant.len, name.tenant.data,
                               (int)fault.len, fault.data ? fault.data : "");
}

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
        status = call(store, &link, "latchkey_verify", 2, words, 4, &reply);
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
