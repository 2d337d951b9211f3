/* sqlite_list.c - many records or audit entries at a time, by cursor. */
#include "store/sqlite.h"

#include <string.h>

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

static void fill_record(sqlite3_stmt *row, const struct lk_entry *entry,
                        uint64_t now, struct lk_record *record)
{
    *record = (struct lk_record){
        .name = {lk_column(row, 2), lk_column(row, 3), lk_column(row, 4)},
        .fingerprint = lk_column(row, 5),
        .claimed_ms = (uint64_t)sqlite3_column_int64(row, 6),
        .ttl_ms = (uint64_t)sqlite3_column_int64(row, 7),
        .attempt = (uint64_t)sqlite3_column_int64(row, 8),
        .reason = lk_column(row, 10),
    };
    lk_record_set(record, entry, now);
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

/* Is this the row of a live record's current claim? */
static bool is_current(struct lk_sqlite *store, sqlite3_stmt *row,
                       struct lk_entry *entry, uint64_t now)
{
    struct lk_hash128 hash;
    struct lk_slice bytes = lk_column(row, 1);

    if (bytes.len != sizeof(hash)) {
        return false;
    }
    memcpy(&hash, bytes.data, sizeof(hash));
    if (!lk_sqlite_entry(store, hash, entry) ||
        entry->token != (uint64_t)sqlite3_column_int64(row, 0)) {
        return false;
    }
    return !lk_entry_expired(entry, now);
}

static bool matches(const struct lk_list_query *query,
                    const struct lk_record *record, uint64_t now)
{
    return (query->any_state || record->state == query->state) &&
           (!query->tenant.len ||
            latchkey_slice_equal(record->name.tenant, query->tenant)) &&
           record->claimed_ms + query->older_than_ms <= now;
}

enum lk_status lk_sqlite_list(struct lk_store *base,
                              const struct lk_list_query *query,
                              lk_record_fn fn, void *context, uint64_t *next)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    uint64_t now = lk_clock_now(&store->clock);
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_LIST);
    size_t shown = 0;
    size_t looked = 0;
    bool stopped = false;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    *next = query->cursor;
    sqlite3_bind_int64(row, 1, (int64_t)query->cursor);
    sqlite3_bind_int(row, 2, LOOK_AT);
    while (!stopped && shown < query->limit &&
           (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_entry entry;
        struct lk_record record;
        looked++;
        *next = (uint64_t)sqlite3_column_int64(row, 0);
        if (!is_current(store, row, &entry, now)) {
            continue;
        }
        fill_record(row, &entry, now, &record);
        if (matches(query, &record, now)) {
            shown++;
            stopped = !fn(context, &record);
        }
    }
    if (code == SQLITE_DONE && looked < LOOK_AT) {
        *next = 0;
    }
    lk_sqlite_read_done(store);
    return lk_sqlite_status(code);
}

enum lk_status lk_sqlite_audit(struct lk_store *base, uint64_t after,
                               size_t limit, lk_audit_fn fn, void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_AUDIT);
    bool stopped = false;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, (int64_t)after);
    sqlite3_bind_int64(row, 2, (int64_t)limit);
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
