/* sqlite_read.c - answers that change nothing: peek, fetch, lookup, find. */
#include "store/fault.h"
#include "store/sqlite.h"

#include <string.h>

static const char *const read_sql[] = {
#define X(name, sql) sql,
    LK_READ_MAP(X)
#undef X
};

enum lk_status lk_sqlite_open_reader(struct lk_sqlite *store,
                                     struct lk_buf *error)
{
    enum lk_status status =
        lk_sqlite_connect(store, false, &store->reader, error);

    for (int i = 0; i < LK_READS && !status; i++) {
        status = lk_sqlite_status(sqlite3_prepare_v3(
            store->reader, read_sql[i], -1, SQLITE_PREPARE_PERSISTENT,
            &store->reads[i], NULL));
    }
    return status;
}

void lk_sqlite_close_reader(struct lk_sqlite *store)
{
    for (int i = 0; i < LK_READS; i++) {
        sqlite3_finalize(store->reads[i]);
        store->reads[i] = NULL;
    }
    sqlite3_close(store->reader);
    store->reader = NULL;
}

/*
 * SQLite calls a page malformed that could not be read just now, and its cache
 * may hold what such a read has left. So whatever looks like damage is read
 * once more, by another connection, before that is said.
 */
static void replace_reader(struct lk_sqlite *store)
{
    struct lk_buf error = {0};

    lk_sqlite_close_reader(store);
    store->reader_suspect = lk_sqlite_open_reader(store, &error) != LK_OK;
    if (store->reader_suspect) {
        lk_sqlite_close_reader(store);
    }
    latchkey_buf_free(&error);
}

void lk_sqlite_read_failed(struct lk_sqlite *store)
{
    store->reader_suspect = true;
}

sqlite3_stmt *lk_sqlite_read(struct lk_sqlite *store, enum lk_read read)
{
    pthread_rwlock_rdlock(&store->handles);
    pthread_mutex_lock(&store->reader_lock);
    if (store->reader_suspect) {
        replace_reader(store);
    }
    if (!store->reads[read]) {
        lk_sqlite_read_done(store);
        return NULL;
    }
    return store->reads[read];
}

void lk_sqlite_read_done(struct lk_sqlite *store)
{
    /* A statement that is not reset would pin the log. */
    for (int i = 0; i < LK_READS; i++) {
        if (lk_sqlite_status(sqlite3_reset(store->reads[i])) == LK_CORRUPT) {
            lk_sqlite_read_failed(store);
        }
    }
    pthread_mutex_unlock(&store->reader_lock);
    pthread_rwlock_unlock(&store->handles);
}

struct lk_slice lk_column(sqlite3_stmt *statement, int column)
{
    const void *data = sqlite3_column_blob(statement, column);

    return (struct lk_slice){data,
                             (size_t)sqlite3_column_bytes(statement, column)};
}

/* Under the index's lock. */
static uint64_t visible_now(const struct lk_sqlite *store)
{
    return store->frozen_ms ? store->frozen_ms : lk_clock_now(&store->clock);
}

uint64_t lk_sqlite_now(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->index_lock);
    uint64_t now = visible_now(store);
    pthread_mutex_unlock(&store->index_lock);
    return now;
}

bool lk_sqlite_entry(struct lk_sqlite *store, struct lk_hash128 hash,
                     struct lk_entry *entry, uint64_t *now)
{
    pthread_mutex_lock(&store->index_lock);
    *now = visible_now(store);
    const struct lk_entry *found = lk_index_find(&store->index, hash);
    if (found) {
        *entry = *found;
    }
    pthread_mutex_unlock(&store->index_lock);
    return found != NULL;
}

enum lk_status lk_sqlite_peek(struct lk_store *base, struct lk_op *op)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_entry entry;
    uint64_t now;

    if (atomic_load_explicit(&store->health, memory_order_relaxed) ==
        LK_HEALTH_BROKEN) {
        return LK_AGAIN;
    }
    bool found = lk_sqlite_entry(store, op->hash, &entry, &now);
    if (!found && op->event == LK_EVENT_CLAIM) {
        return LK_AGAIN; /* by far the most common: spare the rest */
    }
    struct lk_standing standing =
        lk_entry_standing(store, found ? &entry : NULL, op, now);
    if (lk_owner_matters(&standing)) {
        return LK_AGAIN;
    }
    struct lk_step step = lk_machine_step(op->event, standing);
    if (step.effect != LK_EFFECT_NONE) {
        return LK_AGAIN;
    }
    op->status = LK_OK;
    lk_entry_outcome(found ? &entry : NULL, step, now, &op->out);
    return LK_OK;
}

/* ---- what a retry is told --------------------------------------------- */

static enum lk_status make_kept(sqlite3_stmt *row, uint64_t token,
                                struct lk_stored **stored)
{
    struct lk_response response = {0};
    enum lk_status status = LK_OK;

    if (sqlite3_column_type(row, 2) != SQLITE_NULL) {
        status = latchkey_response_decode(lk_column(row, 2), &response);
    }
    if (!status) {
        *stored = lk_stored_make(token, (uint64_t)sqlite3_column_int64(row, 0),
                                 &response, lk_column(row, 1));
        status = *stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

static enum lk_status read_answer_once(struct lk_sqlite *store, uint64_t token,
                                       struct lk_stored **stored)
{
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_ANSWER);

    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, (int64_t)token);
    int code = sqlite3_step(row);
    enum lk_status status = code == SQLITE_ROW ? make_kept(row, token, stored)
                            : code == SQLITE_DONE ? LK_NOT_FOUND
                                                  : lk_sqlite_status(code);
    if (status == LK_CORRUPT) {
        lk_sqlite_read_failed(store);
    }
    lk_sqlite_read_done(store);
    return status;
}

/* LK_NOT_FOUND: nothing is stored for this token. */
static enum lk_status read_answer(struct lk_sqlite *store, uint64_t token,
                                  struct lk_stored **stored)
{
    enum lk_status status = read_answer_once(store, token, stored);

    return status == LK_CORRUPT ? read_answer_once(store, token, stored)
                                : status;
}

struct lk_stored *lk_stored_lapsed(uint64_t token, uint64_t since_ms)
{
    const struct lk_response none = {0};

    return lk_stored_make(token, since_ms, &none, LK_SLICE("lock lapsed"));
}

static enum lk_status read_since_once(struct lk_sqlite *store, uint64_t number,
                                      uint64_t *since_ms)
{
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_REQUEST);

    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, (int64_t)number);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        *since_ms = (uint64_t)sqlite3_column_int64(row, 0);
    }
    lk_sqlite_read_done(store);
    return code == SQLITE_DONE ? LK_AGAIN : lk_sqlite_status(code);
}

/* Since when a request that is running was accepted. LK_AGAIN: it is over. */
static enum lk_status read_since(struct lk_sqlite *store, uint64_t number,
                                 uint64_t *since_ms)
{
    enum lk_status status = read_since_once(store, number, since_ms);

    return status == LK_CORRUPT ? read_since_once(store, number, since_ms)
                                : status;
}

/* LK_AGAIN: what is stored does not fit the outcome. A doubt without a reason
 * is that of a lapsed lock; but only if the outcome `stands`, for otherwise a
 * commit may just have taken the reason away. */
static enum lk_status fetch_once(struct lk_sqlite *store, struct lk_op *op,
                                 bool stands)
{
    struct lk_stored *stored = NULL;

    if (op->out.verdict == LK_VERDICT_ACCEPTED) {
        enum lk_status since =
            read_since(store, op->out.number, &op->out.since_ms);
        op->out.needs_load = since != LK_OK;
        return since;
    }
    bool doubted = op->out.verdict == LK_VERDICT_UNCERTAIN;
    enum lk_status status = read_answer(store, op->out.token, &stored);

    if (status == LK_NOT_FOUND && doubted && stands) {
        stored = lk_stored_lapsed(op->out.token, op->out.since_ms);
        status = stored ? LK_OK : LK_NOMEM;
    }
    if (status || !stored) {
        return status == LK_NOT_FOUND ? LK_AGAIN : status;
    }
    if (doubted == (stored->response.status != 0)) {
        lk_stored_unref(stored);
        return LK_AGAIN;
    }
    op->out.stored = stored;
    op->out.needs_load = false;
    return LK_OK;
}

/* Is it still what the outcome says, so that the answer must be there? */
static bool outcome_stands(struct lk_sqlite *store, const struct lk_op *op)
{
    struct lk_entry entry;
    uint64_t now;

    return lk_sqlite_entry(store, op->hash, &entry, &now) &&
           entry.token == op->out.token && entry.state == op->out.state;
}

/*
 * A reader may see a commit before the index shows it. What does not fit is
 * therefore looked at again while nothing can be committed: then it has moved
 * on, or it is damaged.
 */
enum lk_status lk_sqlite_fetch(struct lk_store *base, struct lk_op *op)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    lk_fault_point("before_load");
    enum lk_status status = fetch_once(store, op, false);

    if (status == LK_AGAIN) {
        pthread_mutex_lock(&store->commit_lock);
        bool stands = outcome_stands(store, op);
        status = fetch_once(store, op, stands);
        if (status == LK_AGAIN && stands) {
            status = LK_CORRUPT;
        }
        pthread_mutex_unlock(&store->commit_lock);
    }
    return status;
}

/* ---- records ---------------------------------------------------------- */

void lk_operation_set(struct lk_operation *record, const struct lk_entry *entry,
                      uint64_t now)
{
    record->state = (enum lk_state)entry->state;
    record->token = entry->token;
    record->number = entry->number;
    record->omitted = entry->omitted;
    record->queued = entry->queued;
    switch (entry->state) {
    case LK_STATE_IN_PROGRESS:
        record->lock_until_ms = entry->deadline;
        if (entry->deadline <= now && !entry->queued) {
            /* The sweeper just has not come by. */
            record->state = LK_STATE_UNCERTAIN;
            record->since_ms = entry->deadline;
        }
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        record->since_ms = entry->deadline;
        break;
    default:
        record->expires_ms = entry->deadline;
        break;
    }
}

enum lk_status lk_operation_copy(struct lk_operation *record,
                                 struct lk_slice *slices[], size_t count)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&record->text, total + 1);
    for (size_t i = 0; i < count && !status; i++) {
        const char *at = record->text.data + record->text.len;
        status = latchkey_buf_add_slice(&record->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

static enum lk_status read_claim_once(struct lk_sqlite *store, uint64_t token,
                                      struct lk_operation *record)
{
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_CLAIM);
    struct lk_slice *slices[] = {&record->name.tenant, &record->name.scope,
                                 &record->name.key, &record->fingerprint};

    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, (int64_t)token);
    int code = sqlite3_step(row);
    enum lk_status status =
        code == SQLITE_DONE ? LK_AGAIN : lk_sqlite_status(code);
    if (!status) {
        for (int i = 0; i < 4; i++) {
            *slices[i] = lk_column(row, i);
        }
        record->claimed_ms = (uint64_t)sqlite3_column_int64(row, 4);
        record->ttl_ms = (uint64_t)sqlite3_column_int64(row, 5);
        record->attempt = (uint64_t)sqlite3_column_int64(row, 6);
        status = lk_operation_copy(record, slices, 4);
    }
    lk_sqlite_read_done(store);
    return status;
}

/* LK_AGAIN: the row is gone, so the entry was an old one. */
static enum lk_status read_claim(struct lk_sqlite *store, uint64_t token,
                                 struct lk_operation *record)
{
    enum lk_status status = read_claim_once(store, token, record);

    return status == LK_CORRUPT ? read_claim_once(store, token, record)
                                : status;
}

/* `lapsed`: without a reason, the lock has lapsed. */
static enum lk_status add_answer(struct lk_sqlite *store,
                                 struct lk_operation *record, bool lapsed)
{
    enum lk_status status = LK_NOT_FOUND;

    if (record->state != LK_STATE_COMPLETED &&
        record->state != LK_STATE_UNCERTAIN) {
        return LK_OK;
    }
    status = read_answer(store, record->token, &record->stored);
    if (status == LK_NOT_FOUND && record->state == LK_STATE_UNCERTAIN &&
        lapsed) {
        record->stored = lk_stored_lapsed(record->token, record->since_ms);
        status = record->stored ? LK_OK : LK_NOMEM;
    }
    if (status) {
        return status == LK_NOT_FOUND ? LK_AGAIN : status;
    }
    bool completed = record->state == LK_STATE_COMPLETED;
    if (completed != (record->stored->response.status != 0)) {
        return LK_AGAIN;
    }
    record->reason = record->stored->reason;
    if (completed) {
        record->completed_ms = record->stored->at_ms;
        record->status = record->stored->response.status;
        record->answer_bytes = record->stored->response.headers.len +
                               record->stored->response.body.len;
    }
    return LK_OK;
}

/* `still`: nothing can be committed now, so rows and index fit together. */
static enum lk_status look_once(struct lk_sqlite *store, struct lk_hash128 hash,
                                struct lk_operation *record, bool still)
{
    struct lk_entry entry;
    uint64_t now;

    if (!lk_sqlite_entry(store, hash, &entry, &now) ||
        lk_entry_expired(&entry, now)) {
        return LK_NOT_FOUND;
    }
    lk_operation_set(record, &entry, now);
    enum lk_status status = read_claim(store, entry.token, record);
    if (!status && entry.queued && entry.state == LK_STATE_IN_PROGRESS) {
        status = read_since(store, entry.number, &record->since_ms);
    }
    return status ? status
                  : add_answer(store, record,
                               still || entry.state == LK_STATE_IN_PROGRESS);
}

static bool names_equal(struct lk_name a, struct lk_name b)
{
    return latchkey_slice_equal(a.tenant, b.tenant) &&
           latchkey_slice_equal(a.scope, b.scope) &&
           latchkey_slice_equal(a.key, b.key);
}

enum lk_status lk_sqlite_lookup(struct lk_store *base, struct lk_name name,
                                struct lk_operation *record)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_hash128 hash = lk_name_hash(base->secret, name);

    if (atomic_load(&store->health) == LK_HEALTH_BROKEN) {
        return LK_UNAVAILABLE;
    }
    *record = (struct lk_operation){0};
    enum lk_status status = look_once(store, hash, record, false);
    if (status == LK_AGAIN) {
        /* As in lk_sqlite_fetch: now nothing moves. */
        pthread_mutex_lock(&store->commit_lock);
        lk_operation_free(record);
        status = look_once(store, hash, record, true);
        pthread_mutex_unlock(&store->commit_lock);
    }
    if (!status && !names_equal(record->name, name)) {
        status = LK_CORRUPT;
    }
    if (status) {
        lk_operation_free(record);
    }
    return status == LK_AGAIN ? LK_CORRUPT : status;
}

enum lk_status lk_sqlite_find(struct lk_store *base, struct lk_slice tenant,
                              uint64_t number, struct lk_operation *record)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_operation first = {0};
    enum lk_status status = read_claim(store, number, &first);

    *record = (struct lk_operation){0};
    if (status == LK_AGAIN ||
        (!status && tenant.len &&
         !latchkey_slice_equal(first.name.tenant, tenant))) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status = lk_sqlite_lookup(base, first.name, record);
    }
    if (!status && record->number != number) {
        lk_operation_free(record); /* the key was used anew since */
        status = LK_NOT_FOUND;
    }
    lk_operation_free(&first);
    return status;
}
