/* sqlite_list.c - many records or audit entries at a time, by cursor. */
#include "store/sqlite.h"

#include <string.h>

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

static void fill_record(sqlite3_stmt *row, const struct lk_entry *entry,
                        uint64_t now, struct lk_operation *record)
{
    *record = (struct lk_operation){
        .name = {lk_column(row, 2), lk_column(row, 3), lk_column(row, 4)},
        .fingerprint = lk_column(row, 5),
        .claimed_ms = (uint64_t)sqlite3_column_int64(row, 6),
        .ttl_ms = (uint64_t)sqlite3_column_int64(row, 7),
        .attempt = (uint64_t)sqlite3_column_int64(row, 8),
        .reason = lk_column(row, 10),
    };
    lk_operation_set(record, entry, now);
    if (record->state == LK_STATE_COMPLETED) {
        record->completed_ms = (uint64_t)sqlite3_column_int64(row, 9);
        if (latchkey_response_measure(lk_column(row, 11), &record->status,
                                      &record->answer_bytes)) {
            record->status = 0; /* damaged; `verify` says so */
        }
    } else if (record->state == LK_STATE_UNCERTAIN && !record->reason.len) {
        record->reason = LK_SLICE("lock lapsed");
    }
}

/* Is this the row of a record's current claim? */
static bool is_current(struct lk_sqlite *store, sqlite3_stmt *row,
                       struct lk_entry *entry)
{
    struct lk_hash128 hash;
    struct lk_slice bytes = lk_column(row, 1);
    uint64_t now;

    if (bytes.len != sizeof(hash)) {
        return false;
    }
    memcpy(&hash, bytes.data, sizeof(hash));
    return lk_sqlite_entry(store, hash, entry, &now) &&
           entry->token == (uint64_t)sqlite3_column_int64(row, 0);
}

/* Its unfinished jobs. */
static enum lk_status count_jobs(const struct lk_sqlite *store,
                                 struct lk_operation *record)
{
    sqlite3_stmt *row = store->reads[LK_READ_JOB_COUNTS];

    sqlite3_bind_int64(row, 1, (int64_t)record->number);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        record->jobs_open = (uint64_t)sqlite3_column_int64(row, 0);
        record->jobs_dead = (uint64_t)sqlite3_column_int64(row, 1);
        record->jobs_uncertain = (uint64_t)sqlite3_column_int64(row, 2);
    }
    sqlite3_reset(row);
    return lk_sqlite_status(code);
}

/* ---- whole records ------------------------------------------------------ */

/*
 * The entry as the rows of this view have it. The index may be ahead of them,
 * and an answer must not be told apart from its state.
 */
static void set_entry(sqlite3_stmt *row, struct lk_entry *entry)
{
    entry->omitted = entry->evicted = false;
    lk_entry_start(entry, (uint64_t)sqlite3_column_int64(row, 6),
                   sqlite3_column_int64(row, 11));
    if (sqlite3_column_type(row, 14) != SQLITE_NULL) {
        lk_entry_apply(entry, (enum lk_row_kind)sqlite3_column_int(row, 14),
                       (uint64_t)sqlite3_column_int64(row, 15));
    }
}

static enum lk_status add_whole_answer(sqlite3_stmt *row,
                                       struct lk_operation *record)
{
    struct lk_response response;
    enum lk_status status =
        latchkey_response_decode(lk_column(row, 18), &response);

    if (status) {
        return status;
    }
    record->status = response.status;
    record->completed_ms = (uint64_t)sqlite3_column_int64(row, 16);
    record->answer_bytes = response.headers.len + response.body.len;
    if (!record->omitted) {
        record->stored = lk_stored_make(record->token, record->completed_ms,
                                        &response, (struct lk_slice){0});
        status = record->stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* LK_CORRUPT: a completed record without its answer. */
static enum lk_status fill_whole(sqlite3_stmt *row, struct lk_entry *entry,
                                 uint64_t now, struct lk_operation *record)
{
    uint64_t generation = (uint64_t)sqlite3_column_int64(row, 10);

    *record = (struct lk_operation){
        .name = {lk_column(row, 2), lk_column(row, 3), lk_column(row, 4)},
        .fingerprint = lk_column(row, 5),
        .claimed_ms = (uint64_t)sqlite3_column_int64(row, 6),
        .ttl_ms = (uint64_t)sqlite3_column_int64(row, 7),
        .attempt = (uint64_t)sqlite3_column_int64(row, 8),
        .generation = generation ? generation : entry->token,
        .keep_ms = (uint64_t)sqlite3_column_int64(row, 12),
        .owner = lk_column(row, 13),
        .evicted = entry->evicted,
    };
    lk_operation_set(record, entry, now);
    if (record->state == LK_STATE_UNCERTAIN) {
        record->lock_until_ms = 0; /* swept or not, it is the same */
        record->reason = lk_column(row, 17);
        if (!record->reason.len) {
            record->reason = LK_SLICE("lock lapsed");
        }
    }
    if (record->state != LK_STATE_COMPLETED) {
        return LK_OK;
    }
    if (record->omitted) {
        record->reason = lk_column(row, 17);
    }
    return add_whole_answer(row, record);
}

/* ---- pages ----------------------------------------------------------------
 */

struct page {
    const struct lk_list_query *query;
    lk_operation_fn fn;
    void *context;
    uint64_t now;
    size_t shown;
    bool stopped;
};

static enum lk_status show_row(struct lk_sqlite *store, sqlite3_stmt *row,
                               struct page *page)
{
    struct lk_entry entry;
    struct lk_operation record = {0};
    enum lk_status status = LK_OK;

    if (!is_current(store, row, &entry)) {
        return LK_OK;
    }
    if (page->query->whole) {
        set_entry(row, &entry);
    }
    if (lk_entry_expired(&entry, page->now)) {
        return LK_OK;
    }
    if (page->query->whole) {
        status = fill_whole(row, &entry, page->now, &record);
    } else {
        fill_record(row, &entry, page->now, &record);
    }
    bool shown = !status && lk_list_matches(page->query, &record, page->now);
    if (shown && !page->query->whole) {
        status = count_jobs(store, &record);
    }
    if (shown && !status &&
        (!page->query->attention ||
         lk_list_needs_person(page->query, &record, page->now))) {
        page->shown++;
        page->stopped = !page->fn(page->context, &record);
    }
    lk_operation_free(&record);
    return status;
}

enum lk_status lk_sqlite_list(struct lk_store *base,
                              const struct lk_list_query *query,
                              lk_operation_fn fn, void *context, uint64_t *next)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct page page = {query, fn, context, lk_sqlite_now(store), 0, false};
    sqlite3_stmt *row =
        lk_sqlite_read(store, query->whole    ? LK_READ_WHOLE
                              : query->newest ? LK_READ_LIST_NEWEST
                                              : LK_READ_LIST);
    enum lk_status status = LK_OK;
    size_t looked = 0;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    *next = query->cursor;
    sqlite3_bind_int64(
        row, 1,
        query->newest && !query->cursor ? INT64_MAX : (int64_t)query->cursor);
    sqlite3_bind_int(row, 2, LOOK_AT);
    while (!status && !page.stopped && page.shown < query->limit &&
           (code = sqlite3_step(row)) == SQLITE_ROW) {
        looked++;
        *next = (uint64_t)sqlite3_column_int64(row, 0);
        status = show_row(store, row, &page);
    }
    if (code == SQLITE_DONE && looked < LOOK_AT) {
        *next = 0;
    }
    lk_sqlite_read_done(store);
    return status ? status : lk_sqlite_status(code);
}

/* ---- the audit log ---------------------------------------------------- */

/* The statement for the index that helps, in the order that is asked for. */
static enum lk_read choose_audit(const struct lk_audit_query *query)
{
    enum lk_read read = query->job ? LK_READ_AUDIT_JOB
                        : query->name.tenant.len && query->name.key.len
                            ? LK_READ_AUDIT_OF
                            : LK_READ_AUDIT;

    return read + query->newest;
}

static int64_t bound(uint64_t value)
{
    return value && value < INT64_MAX ? (int64_t)value : INT64_MAX;
}

static void bind_audit(sqlite3_stmt *row, const struct lk_audit_query *query)
{
    sqlite3_bind_int64(row, 1, (int64_t)query->after);
    sqlite3_bind_int64(row, 2, bound(query->before));
    sqlite3_bind_int64(row, 3, (int64_t)query->since_ms);
    sqlite3_bind_int64(row, 4, bound(query->until_ms));
    lk_bind_text(row, 5, query->who);
    lk_bind_text(row, 6, query->action);
    lk_bind_text(row, 7, query->name.tenant);
    lk_bind_text(row, 8, query->name.scope);
    lk_bind_text(row, 9, query->name.key);
    sqlite3_bind_int64(row, 10, (int64_t)query->job);
    sqlite3_bind_int64(row, 11, bound(query->limit));
}

enum lk_status lk_sqlite_audit(struct lk_store *base,
                               const struct lk_audit_query *query,
                               lk_audit_fn fn, void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    sqlite3_stmt *row = lk_sqlite_read(store, choose_audit(query));
    bool stopped = false;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    bind_audit(row, query);
    while (!stopped && (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_audit_entry entry = {
            .id = (uint64_t)sqlite3_column_int64(row, 0),
            .at_ms = (uint64_t)sqlite3_column_int64(row, 1),
            .who = lk_column(row, 2),
            .why = lk_column(row, 3),
            .action = lk_column(row, 4),
            .name = {lk_column(row, 5), lk_column(row, 6), lk_column(row, 7)},
            .token = (uint64_t)sqlite3_column_int64(row, 8),
        };
        stopped = !fn(context, &entry);
    }
    lk_sqlite_read_done(store);
    return lk_sqlite_status(code);
}
