/*
 * sqlite_read.c - reading without deciding: peek, load, lookup, find, lists by
 * cursor, and the audit log.
 *
 * The reader's connection may see a commit a moment before the index shows it.
 * What does not fit together is therefore read again under commit_lock, while
 * nothing can be committed: then it has changed, or it is damaged.
 */
#include "store/fault.h"
#include "store/sqlite.h"

#include <string.h>

static const char *const read_sql[] = {
#define X(name, sql) sql,
    LK_READ_MAP(X)
#undef X
};

/* Opens the connection and prepares all reads. On failure the caller
 * closes it. */
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
 * SQLite reports a page as malformed if it could not be read just now, and its
 * cache may hold the result of such a read. So what looks like damage is read
 * again, by another connection, before it is reported.
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

/* Takes the reader until lk_sqlite_read_done. NULL: the store is unavailable,
 * and nothing was taken. The lock on the handles comes first, as everywhere. */
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

/* Valid until the statement is stepped or reset. */
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

/* Any thread: a copy of the durable entry, and the time that goes with it. */
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

/* Loop thread, without the disk. LK_OK: the outcome follows from what is
 * durable and changes nothing. LK_AGAIN: the store thread has to decide. */
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

/* ---- the response for a replay ---------------------------------------- */

/* LK_CORRUPT: the stored bytes do not decode. */
static enum lk_status make_stored(sqlite3_stmt *row, uint64_t token,
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

static enum lk_status read_response_once(struct lk_sqlite *store,
                                         uint64_t token,
                                         struct lk_stored **stored)
{
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_STORED);

    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, (int64_t)token);
    int code = sqlite3_step(row);
    enum lk_status status = code == SQLITE_ROW ? make_stored(row, token, stored)
                            : code == SQLITE_DONE ? LK_NOT_FOUND
                                                  : lk_sqlite_status(code);
    if (status == LK_CORRUPT) {
        lk_sqlite_read_failed(store);
    }
    lk_sqlite_read_done(store);
    return status;
}

/* LK_NOT_FOUND: nothing is stored for this token. */
static enum lk_status read_response(struct lk_sqlite *store, uint64_t token,
                                    struct lk_stored **stored)
{
    enum lk_status status = read_response_once(store, token, stored);

    return status == LK_CORRUPT ? read_response_once(store, token, stored)
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
 * is a lapsed lock; but only if the outcome is `current`, else a commit may
 * just have deleted the reason. */
static enum lk_status fetch_once(struct lk_sqlite *store, struct lk_op *op,
                                 bool current)
{
    struct lk_stored *stored = NULL;

    if (op->out.verdict == LK_VERDICT_ACCEPTED) {
        enum lk_status since =
            read_since(store, op->out.number, &op->out.since_ms);
        op->out.needs_load = since != LK_OK;
        return since;
    }
    bool doubted = op->out.verdict == LK_VERDICT_UNCERTAIN;
    enum lk_status status = read_response(store, op->out.token, &stored);

    if (status == LK_NOT_FOUND && doubted && current) {
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

/* Whether the outcome is still current, so that the response must exist. */
static bool is_outcome_current(struct lk_sqlite *store, const struct lk_op *op)
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
        bool current = is_outcome_current(store, op);
        status = fetch_once(store, op, current);
        if (status == LK_AGAIN && current) {
            status = LK_CORRUPT;
        }
        pthread_mutex_unlock(&store->commit_lock);
    }
    return status;
}

/* ---- one operation ---------------------------------------------------- */

/* What the index knows. A lapsed lock is shown as uncertain, whether or not the
 * sweeper has been there. */
void lk_operation_set(struct lk_operation *operation,
                      const struct lk_entry *entry, uint64_t now)
{
    operation->state = (enum lk_state)entry->state;
    operation->token = entry->token;
    operation->number = entry->number;
    operation->omitted = entry->omitted;
    operation->queued = entry->queued;
    switch (entry->state) {
    case LK_STATE_IN_PROGRESS:
        operation->lock_until_ms = entry->deadline;
        if (entry->deadline <= now && !entry->queued) {
            /* The sweeper just has not come by. */
            operation->state = LK_STATE_UNCERTAIN;
            operation->since_ms = entry->deadline;
        }
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        operation->since_ms = entry->deadline;
        break;
    default:
        operation->expires_ms = entry->deadline;
        break;
    }
}

/* Moves the slices into operation->text, so that they outlive their row. */
enum lk_status lk_operation_copy(struct lk_operation *operation,
                                 struct lk_slice *slices[], size_t count)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&operation->text, total + 1);
    for (size_t i = 0; i < count && !status; i++) {
        const char *at = operation->text.data + operation->text.len;
        status = latchkey_buf_add_slice(&operation->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

static enum lk_status read_claim_once(struct lk_sqlite *store, uint64_t token,
                                      struct lk_operation *operation)
{
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_CLAIM);
    struct lk_slice *slices[] = {&operation->name.tenant,
                                 &operation->name.scope, &operation->name.key,
                                 &operation->fingerprint};

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
        operation->claimed_ms = (uint64_t)sqlite3_column_int64(row, 4);
        operation->ttl_ms = (uint64_t)sqlite3_column_int64(row, 5);
        operation->attempt = (uint64_t)sqlite3_column_int64(row, 6);
        status = lk_operation_copy(operation, slices, 4);
    }
    lk_sqlite_read_done(store);
    return status;
}

/* LK_AGAIN: the row is gone, so the entry was an old one. */
static enum lk_status read_claim(struct lk_sqlite *store, uint64_t token,
                                 struct lk_operation *operation)
{
    enum lk_status status = read_claim_once(store, token, operation);

    return status == LK_CORRUPT ? read_claim_once(store, token, operation)
                                : status;
}

/* `lapsed`: without a reason, the lock has lapsed. */
static enum lk_status add_response(struct lk_sqlite *store,
                                   struct lk_operation *operation, bool lapsed)
{
    enum lk_status status = LK_NOT_FOUND;

    if (operation->state != LK_STATE_COMPLETED &&
        operation->state != LK_STATE_UNCERTAIN) {
        return LK_OK;
    }
    status = read_response(store, operation->token, &operation->stored);
    if (status == LK_NOT_FOUND && operation->state == LK_STATE_UNCERTAIN &&
        lapsed) {
        operation->stored =
            lk_stored_lapsed(operation->token, operation->since_ms);
        status = operation->stored ? LK_OK : LK_NOMEM;
    }
    if (status) {
        return status == LK_NOT_FOUND ? LK_AGAIN : status;
    }
    bool completed = operation->state == LK_STATE_COMPLETED;
    if (completed != (operation->stored->response.status != 0)) {
        return LK_AGAIN;
    }
    operation->reason = operation->stored->reason;
    if (completed) {
        operation->completed_ms = operation->stored->at_ms;
        operation->status = operation->stored->response.status;
        operation->response_bytes = operation->stored->response.headers.len +
                                    operation->stored->response.body.len;
    }
    return LK_OK;
}

/* `still`: nothing can be committed now, so rows and index fit together. */
static enum lk_status read_operation_once(struct lk_sqlite *store,
                                          struct lk_hash128 hash,
                                          struct lk_operation *operation,
                                          bool still)
{
    struct lk_entry entry;
    uint64_t now;

    if (!lk_sqlite_entry(store, hash, &entry, &now) ||
        lk_entry_expired(&entry, now)) {
        return LK_NOT_FOUND;
    }
    lk_operation_set(operation, &entry, now);
    enum lk_status status = read_claim(store, entry.token, operation);
    if (!status && entry.queued && entry.state == LK_STATE_IN_PROGRESS) {
        status = read_since(store, entry.number, &operation->since_ms);
    }
    return status ? status
                  : add_response(store, operation,
                                 still || entry.state == LK_STATE_IN_PROGRESS);
}

static bool names_equal(struct lk_name a, struct lk_name b)
{
    return latchkey_slice_equal(a.tenant, b.tenant) &&
           latchkey_slice_equal(a.scope, b.scope) &&
           latchkey_slice_equal(a.key, b.key);
}

/* Reader thread. LK_OK: the operation is the caller's, to be freed with
 * lk_operation_free. LK_NOT_FOUND: absent or expired. */
enum lk_status lk_sqlite_lookup(struct lk_store *base, struct lk_name name,
                                struct lk_operation *operation)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_hash128 hash = lk_name_hash(base->secret, name);

    if (atomic_load(&store->health) == LK_HEALTH_BROKEN) {
        return LK_UNAVAILABLE;
    }
    *operation = (struct lk_operation){0};
    enum lk_status status = read_operation_once(store, hash, operation, false);
    if (status == LK_AGAIN) {
        /* As in lk_sqlite_fetch: now nothing moves. */
        pthread_mutex_lock(&store->commit_lock);
        lk_operation_free(operation);
        status = read_operation_once(store, hash, operation, true);
        pthread_mutex_unlock(&store->commit_lock);
    }
    if (!status && !names_equal(operation->name, name)) {
        status = LK_CORRUPT;
    }
    if (status) {
        lk_operation_free(operation);
    }
    return status == LK_AGAIN ? LK_CORRUPT : status;
}

/* The number is the token of the first claim, which has the name. A reference
 * of another tenant is not found: no one learns that it exists. */
enum lk_status lk_sqlite_find(struct lk_store *base, struct lk_slice tenant,
                              uint64_t number, struct lk_operation *operation)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_operation first = {0};
    enum lk_status status = read_claim(store, number, &first);

    *operation = (struct lk_operation){0};
    if (status == LK_AGAIN ||
        (!status && tenant.len &&
         !latchkey_slice_equal(first.name.tenant, tenant))) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status = lk_sqlite_lookup(base, first.name, operation);
    }
    if (!status && operation->number != number) {
        lk_operation_free(operation); /* the key was used again since */
        status = LK_NOT_FOUND;
    }
    lk_operation_free(&first);
    return status;
}

/* ---- lists -------------------------------------------------------------- */

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

/* For a list: the slices are the row's own. */
static void fill_operation(sqlite3_stmt *row, const struct lk_entry *entry,
                           uint64_t now, struct lk_operation *operation)
{
    *operation = (struct lk_operation){
        .name = {lk_column(row, 2), lk_column(row, 3), lk_column(row, 4)},
        .fingerprint = lk_column(row, 5),
        .claimed_ms = (uint64_t)sqlite3_column_int64(row, 6),
        .ttl_ms = (uint64_t)sqlite3_column_int64(row, 7),
        .attempt = (uint64_t)sqlite3_column_int64(row, 8),
        .reason = lk_column(row, 10),
    };
    lk_operation_set(operation, entry, now);
    if (operation->state == LK_STATE_COMPLETED) {
        operation->completed_ms = (uint64_t)sqlite3_column_int64(row, 9);
        if (latchkey_response_measure(lk_column(row, 11), &operation->status,
                                      &operation->response_bytes)) {
            operation->status = 0; /* damaged; VERIFY reports it */
        }
    } else if (operation->state == LK_STATE_UNCERTAIN &&
               !operation->reason.len) {
        operation->reason = LK_SLICE("lock lapsed");
    }
}

/* Whether this is the row of an operation's current claim. */
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
                                 struct lk_operation *operation)
{
    sqlite3_stmt *row = store->reads[LK_READ_JOB_COUNTS];

    sqlite3_bind_int64(row, 1, (int64_t)operation->number);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        operation->jobs_open = (uint64_t)sqlite3_column_int64(row, 0);
        operation->jobs_dead = (uint64_t)sqlite3_column_int64(row, 1);
        operation->jobs_uncertain = (uint64_t)sqlite3_column_int64(row, 2);
    }
    sqlite3_reset(row);
    return lk_sqlite_status(code);
}

/* ---- whole operations --------------------------------------------------- */

/*
 * The entry as the rows of this view have it. The index may be ahead of them,
 * and a response must be shown with its own state.
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

/* LK_CORRUPT: the response is missing or does not decode. */
static enum lk_status add_whole_response(sqlite3_stmt *row,
                                         struct lk_operation *operation)
{
    struct lk_response response;
    enum lk_status status =
        latchkey_response_decode(lk_column(row, 18), &response);

    if (status) {
        return status;
    }
    operation->status = response.status;
    operation->completed_ms = (uint64_t)sqlite3_column_int64(row, 16);
    operation->response_bytes = response.headers.len + response.body.len;
    if (!operation->omitted) {
        operation->stored =
            lk_stored_make(operation->token, operation->completed_ms, &response,
                           (struct lk_slice){0});
        status = operation->stored ? LK_OK : LK_NOMEM;
    }
    return status;
}

/* LK_CORRUPT: a completed operation without its response. */
static enum lk_status fill_whole(sqlite3_stmt *row, struct lk_entry *entry,
                                 uint64_t now, struct lk_operation *operation)
{
    uint64_t generation = (uint64_t)sqlite3_column_int64(row, 10);

    *operation = (struct lk_operation){
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
    lk_operation_set(operation, entry, now);
    if (operation->state == LK_STATE_UNCERTAIN) {
        operation->lock_until_ms = 0; /* swept or not, it is the same */
        operation->reason = lk_column(row, 17);
        if (!operation->reason.len) {
            operation->reason = LK_SLICE("lock lapsed");
        }
    }
    if (operation->state != LK_STATE_COMPLETED) {
        return LK_OK;
    }
    if (operation->omitted) {
        operation->reason = lk_column(row, 17);
    }
    return add_whole_response(row, operation);
}

/* ---- pages ----------------------------------------------------------------
 */

/* One page of LIST or EXPORT, on the stack of lk_sqlite_list. */
struct list_page {
    const struct lk_list_query *query;
    lk_operation_fn fn;
    void *context;
    uint64_t now;
    size_t shown;
    bool stopped;
};

/* Rows of earlier claims, expired operations and what does not match are
 * skipped. */
static enum lk_status show_operation(struct lk_sqlite *store, sqlite3_stmt *row,
                                     struct list_page *page)
{
    struct lk_entry entry;
    struct lk_operation operation = {0};
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
        status = fill_whole(row, &entry, page->now, &operation);
    } else {
        fill_operation(row, &entry, page->now, &operation);
    }
    bool shown = !status && lk_list_matches(page->query, &operation, page->now);
    if (shown && !page->query->whole) {
        status = count_jobs(store, &operation);
    }
    if (shown && !status &&
        (!page->query->attention ||
         lk_list_needs_person(page->query, &operation, page->now))) {
        page->shown++;
        page->stopped = !page->fn(page->context, &operation);
    }
    lk_operation_free(&operation);
    return status;
}

/* At most LOOK_AT rows are read in one call: a page may be empty and still have
 * a next one. *next is the token of the last row that was looked at; 0: there
 * are no more. */
enum lk_status lk_sqlite_list(struct lk_store *base,
                              const struct lk_list_query *query,
                              lk_operation_fn fn, void *context, uint64_t *next)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct list_page page = {query, fn,   context, lk_sqlite_now(store),
                             0,     false};
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
        status = show_operation(store, row, &page);
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

/* 0 means no limit. */
static int64_t positive_or_max(uint64_t value)
{
    return value && value < INT64_MAX ? (int64_t)value : INT64_MAX;
}

static void bind_audit(sqlite3_stmt *row, const struct lk_audit_query *query)
{
    sqlite3_bind_int64(row, 1, (int64_t)query->after);
    sqlite3_bind_int64(row, 2, positive_or_max(query->before));
    sqlite3_bind_int64(row, 3, (int64_t)query->since_ms);
    sqlite3_bind_int64(row, 4, positive_or_max(query->until_ms));
    lk_bind_text(row, 5, query->who);
    lk_bind_text(row, 6, query->action);
    lk_bind_text(row, 7, query->name.tenant);
    lk_bind_text(row, 8, query->name.scope);
    lk_bind_text(row, 9, query->name.key);
    sqlite3_bind_int64(row, 10, (int64_t)query->job);
    sqlite3_bind_int64(row, 11, positive_or_max(query->limit));
}

/* The entry's texts are valid during the call of `fn`; false ends the list. */
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
