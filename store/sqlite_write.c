/* sqlite_write.c - the rows that a batch appends, one function for each. */
#include "store/sqlite.h"

enum lk_status lk_sqlite_run(struct lk_sqlite *store,
                             enum lk_statement statement)
{
    int code = sqlite3_step(store->statements[statement]);

    sqlite3_reset(store->statements[statement]);
    return lk_sqlite_status(code);
}

enum lk_status lk_sqlite_begin(struct lk_sqlite *store)
{
    if (store->writing) {
        return LK_OK;
    }
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_BEGIN);
    store->writing = !status;
    return status;
}

void lk_bind_text(sqlite3_stmt *statement, int column, struct lk_slice slice)
{
    sqlite3_bind_text(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

void lk_bind_bytes(sqlite3_stmt *statement, int column, struct lk_slice slice)
{
    sqlite3_bind_blob(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

/* NULL stands for the usual: the token itself, no KEEP. */
static void bind_other(sqlite3_stmt *statement, int column, uint64_t number,
                       uint64_t usual)
{
    if (number == usual) {
        sqlite3_bind_null(statement, column);
    } else {
        sqlite3_bind_int64(statement, column, (int64_t)number);
    }
}

enum lk_status lk_sqlite_find_row(struct lk_sqlite *store, uint64_t token,
                                  struct lk_slice owner,
                                  struct lk_claim_row *row)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ROW];

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        uint64_t number = (uint64_t)sqlite3_column_int64(statement, 0);
        uint64_t generation = (uint64_t)sqlite3_column_int64(statement, 1);
        row->number = number ? number : token;
        row->generation = generation ? generation : token;
        row->attempt = (uint64_t)sqlite3_column_int64(statement, 2);
        row->ttl = (uint64_t)sqlite3_column_int64(statement, 3);
        row->keep = (uint64_t)sqlite3_column_int64(statement, 4);
        struct lk_slice stored = lk_column(statement, 5);
        row->same_owner = owner.len && latchkey_slice_equal(stored, owner);
    }
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
}

enum lk_status lk_sqlite_row(struct lk_sqlite *store, uint64_t token,
                             struct lk_slice owner, struct lk_claim_row *row)
{
    enum lk_status status = lk_sqlite_find_row(store, token, owner, row);

    return status == LK_NOT_FOUND ? LK_CORRUPT : status;
}

enum lk_status lk_sqlite_claim(struct lk_sqlite *store, const struct lk_op *op,
                               const struct lk_entry *entry,
                               const struct lk_claim_row *row, uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_CLAIM];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->token);
    sqlite3_bind_blob(statement, 2, &op->hash, sizeof(op->hash), SQLITE_STATIC);
    bind_other(statement, 3, row->number, entry->token);
    bind_other(statement, 4, row->generation, entry->token);
    sqlite3_bind_int64(statement, 5, (int64_t)row->attempt);
    sqlite3_bind_int64(statement, 6, (int64_t)now);
    sqlite3_bind_int64(statement, 7,
                       entry->state == LK_STATE_ACCEPTED
                           ? (int64_t)LK_LOCK_NONE
                           : (int64_t)(entry->deadline - now));
    sqlite3_bind_int64(statement, 8, (int64_t)row->ttl);
    bind_other(statement, 9, row->keep, 0);
    lk_bind_bytes(statement, 10, op->owner);
    lk_bind_bytes(statement, 11, op->fingerprint);
    lk_bind_text(statement, 12, op->name.tenant);
    lk_bind_text(statement, 13, op->name.scope);
    lk_bind_text(statement, 14, op->name.key);
    return lk_sqlite_run(store, LK_STATEMENT_CLAIM);
}

enum lk_status lk_sqlite_replace(struct lk_sqlite *store,
                                 const struct lk_entry *before,
                                 const struct lk_entry *after)
{
    lk_reaper_account(&store->reaper, before, after);
    return lk_overlay_put(&store->overlay, after);
}

enum lk_status lk_sqlite_outcome(struct lk_sqlite *store,
                                 const struct lk_entry *before,
                                 enum lk_row_kind kind, uint64_t until)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_OUTCOME];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)before->token);
    sqlite3_bind_int(statement, 2, kind);
    sqlite3_bind_int64(statement, 3, (int64_t)store->last_ms);
    sqlite3_bind_int64(statement, 4, (int64_t)until);
    sqlite3_bind_blob(statement, 5, &before->hash, sizeof(before->hash),
                      SQLITE_STATIC);
    status = lk_sqlite_run(store, LK_STATEMENT_OUTCOME);
    lk_entry_apply(&after, kind, until);
    return status ? status : lk_sqlite_replace(store, before, &after);
}

enum lk_status lk_sqlite_keep_row(struct lk_sqlite *store,
                                  const struct lk_entry *before,
                                  uint64_t ttl_ms)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_KEEP];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)ttl_ms);
    sqlite3_bind_int64(statement, 2, (int64_t)before->token);
    status = lk_sqlite_run(store, LK_STATEMENT_KEEP);
    after.keeps = true;
    return status ? status : lk_sqlite_replace(store, before, &after);
}

enum lk_status lk_sqlite_reason(struct lk_sqlite *store, uint64_t token,
                                struct lk_stored **stored)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_REASON];
    const struct lk_response none = {0};

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    int code = sqlite3_step(statement);
    enum lk_status status =
        code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
    if (!status && !sqlite3_column_int(statement, 2)) {
        status = LK_CORRUPT;
    }
    if (!status) {
        *stored =
            lk_stored_make(token, (uint64_t)sqlite3_column_int64(statement, 0),
                           &none, lk_column(statement, 1));
        status = *stored ? LK_OK : LK_NOMEM;
    }
    sqlite3_reset(statement);
    return status;
}

enum lk_status lk_sqlite_answer(struct lk_sqlite *store, uint64_t token,
                                uint64_t now, struct lk_slice reason,
                                const struct lk_response *response)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ANSWER];
    struct lk_buf *record = &store->scratch;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)token);
    sqlite3_bind_int64(statement, 2, (int64_t)now);
    if (reason.len) {
        lk_bind_text(statement, 3, reason);
    } else {
        sqlite3_bind_null(statement, 3);
    }
    record->len = 0;
    if (!response) {
        sqlite3_bind_null(statement, 4);
        return lk_sqlite_run(store, LK_STATEMENT_ANSWER);
    }
    status = latchkey_response_encode(response, record);
    if (!status) {
        /* A record that SQLite does not take must not become NULL. */
        status = lk_sqlite_status(sqlite3_bind_blob64(
            statement, 4, record->data, record->len, SQLITE_STATIC));
    }
    return status ? status : lk_sqlite_run(store, LK_STATEMENT_ANSWER);
}

enum lk_status lk_sqlite_import_row(struct lk_sqlite *store,
                                    const struct lk_operation *record,
                                    const struct lk_entry *entry, uint64_t at)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_IMPORT];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->token);
    sqlite3_bind_blob(statement, 2, &entry->hash, sizeof(entry->hash),
                      SQLITE_STATIC);
    bind_other(statement, 3, entry->number, entry->token);
    bind_other(statement, 4,
               record->generation ? record->generation : entry->token,
               entry->token);
    sqlite3_bind_int64(statement, 5, (int64_t)record->attempt);
    sqlite3_bind_int64(statement, 6, (int64_t)at);
    sqlite3_bind_int64(
        statement, 7,
        (int64_t)(entry->deadline > at ? entry->deadline - at : 0));
    sqlite3_bind_int64(statement, 8, (int64_t)record->ttl_ms);
    if (record->keep_ms) {
        sqlite3_bind_int64(statement, 9, (int64_t)record->keep_ms);
    } else {
        sqlite3_bind_null(statement, 9);
    }
    lk_bind_bytes(statement, 10, record->owner);
    lk_bind_bytes(statement, 11, record->fingerprint);
    lk_bind_text(statement, 12, record->name.tenant);
    lk_bind_text(statement, 13, record->name.scope);
    lk_bind_text(statement, 14, record->name.key);
    return lk_sqlite_run(store, LK_STATEMENT_IMPORT);
}

enum lk_status lk_sqlite_audit_row(struct lk_sqlite *store,
                                   const struct lk_audit_entry *entry)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_AUDIT];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->at_ms);
    lk_bind_text(statement, 2, entry->who);
    lk_bind_text(statement, 3, entry->why);
    lk_bind_text(statement, 4, entry->action);
    lk_bind_text(statement, 5, entry->name.tenant);
    lk_bind_text(statement, 6, entry->name.scope);
    lk_bind_text(statement, 7, entry->name.key);
    sqlite3_bind_int64(statement, 8, (int64_t)entry->token);
    return lk_sqlite_run(store, LK_STATEMENT_AUDIT);
}
