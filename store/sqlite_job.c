/*
 * sqlite_job.c - the rows of a job, and the request that follows its
 * operation.
 *
 * The invariant: of one operation at most one request is unfinished, and it
 * stands as its operation does (jobs.h has the table; one that may run again
 * stays leased while its operation is in doubt). Whoever changes one of
 * the two changes the other in the same transaction: lk_job_follow when the
 * operation moves, sqlite_work.c when the job does. `jobs` and `queued` of the
 * operation's entry say what its rows say.
 */
#include "store/sqlite.h"

#include <string.h>

enum { HISTORY_BODY = 1024 }; /* of an answer that only history needs */

/* ---- reading ----------------------------------------------------------- */

enum lk_status lk_job_take_row(struct lk_sqlite *store, sqlite3_stmt *statement,
                               struct lk_job_row *row)
{
    struct lk_slice hash = lk_column(statement, 2);
    int state = sqlite3_column_int(statement, 5);

    *row = (struct lk_job_row){
        .id = (uint64_t)sqlite3_column_int64(statement, 0),
        .number = (uint64_t)sqlite3_column_int64(statement, 1),
        .request = sqlite3_column_int(statement, 3),
        .state = (enum lk_job_state)state,
        .was = (enum lk_job_state)state,
        .attempts = (unsigned)sqlite3_column_int64(statement, 6),
        .forgiven = (unsigned)sqlite3_column_int64(statement, 7),
        .called = sqlite3_column_int(statement, 8),
        .sent = sqlite3_column_int(statement, 9),
        .repeatable = sqlite3_column_int(statement, 10),
        .created = (uint64_t)sqlite3_column_int64(statement, 11),
        .due = (uint64_t)sqlite3_column_int64(statement, 12),
        .doubt = sqlite3_column_int(statement, 13),
        .since = (uint64_t)sqlite3_column_int64(statement, 14),
        .sent_at = (uint64_t)sqlite3_column_int64(statement, 15),
    };
    if (hash.len != sizeof(row->hash) || state < 0 || state >= LK_JOB_STATES) {
        return LK_CORRUPT;
    }
    memcpy(&row->hash, hash.data, sizeof(row->hash));
    return lk_counts_find(store, lk_column(statement, 4), &row->target);
}

static enum lk_status read_one(struct lk_sqlite *store, enum lk_statement which,
                               uint64_t number, struct lk_job_row *row)
{
    sqlite3_stmt *statement = store->statements[which];

    sqlite3_bind_int64(statement, 1, (int64_t)number);
    int code = sqlite3_step(statement);
    enum lk_status status = code == SQLITE_ROW
                                ? lk_job_take_row(store, statement, row)
                            : code == SQLITE_DONE ? LK_NOT_FOUND
                                                  : lk_sqlite_status(code);
    sqlite3_reset(statement);
    return status;
}

enum lk_status lk_job_read(struct lk_sqlite *store, uint64_t id,
                           struct lk_job_row *row)
{
    return id > INT64_MAX ? LK_NOT_FOUND
                          : read_one(store, LK_STATEMENT_JOB_ROW, id, row);
}

enum lk_status lk_job_request(struct lk_sqlite *store, uint64_t number,
                              struct lk_job_row *row)
{
    return read_one(store, LK_STATEMENT_REQUEST, number, row);
}

enum lk_status lk_job_exists(struct lk_sqlite *store,
                             const struct lk_claim_row *operation,
                             const struct lk_call *call, bool *exists,
                             bool *same)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_JOB_EXISTS];

    sqlite3_bind_int64(statement, 1, (int64_t)operation->number);
    sqlite3_bind_int64(statement, 2, (int64_t)operation->generation);
    lk_bind_text(statement, 3, call->name);
    lk_bind_text(statement, 4, call->target);
    lk_bind_text(statement, 5, call->method);
    lk_bind_text(statement, 6, call->path);
    lk_bind_bytes(statement, 7, call->headers);
    lk_bind_bytes(statement, 8, call->body);
    int code = sqlite3_step(statement);
    *exists = code == SQLITE_ROW;
    *same = *exists && sqlite3_column_int(statement, 0);
    sqlite3_reset(statement);
    return lk_sqlite_status(code);
}

static enum lk_status has_open(struct lk_sqlite *store, uint64_t number,
                               bool *open)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_JOB_OPEN];

    sqlite3_bind_int64(statement, 1, (int64_t)number);
    int code = sqlite3_step(statement);
    *open = code == SQLITE_ROW;
    sqlite3_reset(statement);
    return lk_sqlite_status(code);
}

/* ---- writing ----------------------------------------------------------- */

static enum lk_status add_call(struct lk_sqlite *store, uint64_t id,
                               const struct lk_call *call)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_CALL];

    sqlite3_bind_int64(statement, 1, (int64_t)id);
    lk_bind_text(statement, 2, call->method);
    lk_bind_text(statement, 3, call->path);
    lk_bind_bytes(statement, 4, call->headers);
    lk_bind_bytes(statement, 5, call->body);
    return lk_sqlite_run(store, LK_STATEMENT_CALL);
}

enum lk_status lk_job_add(struct lk_sqlite *store,
                          const struct lk_claim_row *operation,
                          struct lk_hash128 hash, struct lk_slice name,
                          const struct lk_call *call, uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_JOB];
    uint64_t id = store->next_job;
    size_t target = 0;
    enum lk_status status = lk_sqlite_begin(store);

    if (!status) {
        status = lk_counts_find(store, call->target, &target);
    }
    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)id);
    sqlite3_bind_int64(statement, 2, (int64_t)operation->number);
    sqlite3_bind_int64(statement, 3, (int64_t)operation->generation);
    sqlite3_bind_blob(statement, 4, &hash, sizeof(hash), SQLITE_STATIC);
    lk_bind_text(statement, 5, name);
    lk_bind_text(statement, 6, call->target);
    sqlite3_bind_int(statement, 7, call->repeatable);
    sqlite3_bind_int64(statement, 8, (int64_t)now);
    sqlite3_bind_int64(statement, 9, (int64_t)(now + call->delay_ms));
    status = lk_sqlite_run(store, LK_STATEMENT_JOB);
    if (!status) {
        status = add_call(store, id, call);
    }
    if (!status) {
        store->next_job++;
        store->has_jobs = true;
        lk_counts_move(store, target, LK_JOB_STATES, LK_JOB_WAITING, now);
    }
    return status;
}

/* The columns that JOB_MOVE and JOB_END share. */
static void bind_row(sqlite3_stmt *statement, const struct lk_job_row *row)
{
    sqlite3_bind_int64(statement, 1, (int64_t)row->id);
    sqlite3_bind_int(statement, 2, row->state);
    sqlite3_bind_int64(statement, 3, row->attempts);
    sqlite3_bind_int64(statement, 4, row->forgiven);
    sqlite3_bind_int(statement, 5, row->called);
    sqlite3_bind_int(statement, 6, row->sent);
    sqlite3_bind_int64(statement, 7, (int64_t)row->due);
    sqlite3_bind_int64(statement, 8, (int64_t)row->ended);
    sqlite3_bind_int(statement, 9, row->doubt);
    sqlite3_bind_int64(statement, 10, (int64_t)row->since);
    sqlite3_bind_int64(statement, 11, (int64_t)row->sent_at);
}

static void count_row(struct lk_sqlite *store, struct lk_job_row *row,
                      uint64_t now)
{
    lk_counts_move(store, row->target, row->was, row->state, now);
    row->was = row->state;
}

/* Since when, for those that nobody leases. */
static void set_times(struct lk_job_row *row, uint64_t now)
{
    bool waits = row->state == LK_JOB_WAITING || row->state == LK_JOB_LEASED;

    row->ended = waits ? 0 : now;
    if (!waits) {
        row->due = now;
    }
}

enum lk_status lk_job_move(struct lk_sqlite *store, struct lk_job_row *row,
                           uint64_t now)
{
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    set_times(row, now);
    bind_row(store->statements[LK_STATEMENT_JOB_MOVE], row);
    status = lk_sqlite_run(store, LK_STATEMENT_JOB_MOVE);
    count_row(store, row, now);
    return status;
}

enum lk_status lk_job_end(struct lk_sqlite *store, struct lk_job_row *row,
                          const struct lk_job_end *end, uint64_t now)
{
    static const struct lk_job_end nothing;
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_JOB_END];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    end = end ? end : &nothing;
    set_times(row, now);
    bind_row(statement, row);
    sqlite3_bind_int64(statement, 12, end->status);
    lk_bind_text(statement, 13, end->provider_id);
    lk_bind_text(statement, 14, end->reason);
    status = lk_sqlite_run(store, LK_STATEMENT_JOB_END);
    count_row(store, row, now);
    return status;
}

enum lk_status lk_job_note(struct lk_sqlite *store,
                           const struct lk_job_row *row,
                           const struct lk_job_end *end, bool whole,
                           uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ATTEMPT];
    struct lk_slice headers = end->answer.headers;
    struct lk_slice body = end->answer.body;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    if (!whole) {
        headers.len = 0;
        body.len = body.len < HISTORY_BODY ? body.len : HISTORY_BODY;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)row->id);
    sqlite3_bind_int64(statement, 2, row->attempts);
    sqlite3_bind_int64(statement, 3, (int64_t)now);
    sqlite3_bind_int64(statement, 4, end->status);
    sqlite3_bind_int(statement, 5, end->left);
    lk_bind_text(statement, 6, end->reason);
    lk_bind_bytes(statement, 7, headers);
    lk_bind_bytes(statement, 8, body);
    return lk_sqlite_run(store, LK_STATEMENT_ATTEMPT);
}

enum lk_status lk_job_release(struct lk_sqlite *store,
                              const struct lk_job_row *row)
{
    const struct lk_entry *found =
        lk_overlay_find(&store->overlay, &store->index, row->hash);
    bool open = false;

    if (!found || found->number != row->number || !found->jobs) {
        return LK_OK;
    }
    struct lk_entry before = *found;
    struct lk_entry after = before;
    enum lk_status status = has_open(store, row->number, &open);
    after.jobs = open;
    after.queued = before.queued && !row->request;
    if (status ||
        (after.jobs == before.jobs && after.queued == before.queued)) {
        return status;
    }
    return lk_sqlite_replace(store, &before, &after);
}

/* ---- the request of an operation that moves ----------------------------- */

static struct lk_slice dropped_by(enum lk_effect effect)
{
    switch (effect) {
    case LK_EFFECT_BEGIN:
        return LK_SLICE("claimed again");
    case LK_EFFECT_FINISH:
        return LK_SLICE("resolved");
    default:
        return LK_SLICE("released");
    }
}

/* The request is over, as its operation is. */
static enum lk_status finish_request(struct lk_sqlite *store,
                                     const struct lk_op *op,
                                     enum lk_effect effect,
                                     struct lk_job_row *row,
                                     struct lk_entry *entry, uint64_t now)
{
    /* An operator may complete what was never sent. */
    bool finished =
        effect == LK_EFFECT_FINISH &&
        (op->event == LK_EVENT_COMPLETE || row->sent || row->called);
    struct lk_job_end end = {
        .status = finished ? op->response.status : 0,
        .reason = finished ? (struct lk_slice){0} : dropped_by(effect),
    };
    bool open = false;

    row->state = finished ? LK_JOB_DELIVERED : LK_JOB_DROPPED;
    row->sent |= finished || row->called;
    enum lk_status status = lk_job_end(store, row, &end, now);
    if (!status) {
        status = has_open(store, row->number, &open);
    }
    entry->queued = false;
    entry->jobs = open;
    return status;
}

/* Its holder says so; the courier need not. One that may run again is still
 * leased: the courier puts it back, or it is taken anew when the lease ends. */
static enum lk_status doubt_request(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    struct lk_job_row *row, uint64_t now)
{
    struct lk_job_end end = {.reason = op->reason, .left = true};

    if (row->state == LK_JOB_UNCERTAIN || row->repeatable) {
        return LK_OK;
    }
    row->state = LK_JOB_UNCERTAIN;
    row->sent = true;
    enum lk_status status = lk_job_end(store, row, &end, now);
    return status ? status : lk_job_note(store, row, &end, true, now);
}

/*
 * A sign of life of the gateway. The first one comes before it lets the app
 * hear of the request: from here on that may have happened. Of a holder that
 * was given up, it is taken back; where it was not, the lease finds out about
 * the longer lock when it runs out.
 */
static enum lk_status reach_request(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    struct lk_job_row *row, uint64_t now)
{
    bool given_up = row->state == LK_JOB_UNCERTAIN;
    bool news = row->state == LK_JOB_LEASED && !row->called && !op->by_courier;

    if (!given_up && !news) {
        return LK_OK;
    }
    if (given_up) {
        row->state = LK_JOB_LEASED;
        row->due = now + op->lock_ms;
    }
    row->called = true;
    return lk_job_move(store, row, now);
}

/*
 * The gateway says that nothing has happened. A courier that still has the
 * lease may say how long it waits; one that is gone does not, and it waits as
 * long as the lease would have lasted.
 */
static enum lk_status return_request(struct lk_sqlite *store,
                                     const struct lk_op *op,
                                     struct lk_job_row *row, uint64_t now)
{
    row->due = row->state == LK_JOB_LEASED ? row->due : now;
    row->state = LK_JOB_WAITING;
    row->sent |= row->called && !op->unsent;
    row->called = false;
    return lk_job_move(store, row, now);
}

enum lk_status lk_job_follow(struct lk_sqlite *store, const struct lk_op *op,
                             enum lk_effect effect, struct lk_entry *entry,
                             uint64_t now)
{
    struct lk_job_row row = {0};
    bool concerned = effect == LK_EFFECT_BEGIN || effect == LK_EFFECT_FINISH ||
                     effect == LK_EFFECT_FREE || effect == LK_EFFECT_DOUBT ||
                     effect == LK_EFFECT_LOCK ||
                     (effect == LK_EFFECT_RETURN && !op->by_courier);

    if (!entry->queued || !concerned) {
        return LK_OK;
    }
    enum lk_status status = lk_job_request(store, entry->number, &row);
    if (status) {
        return status == LK_NOT_FOUND ? LK_CORRUPT : status;
    }
    switch (effect) {
    case LK_EFFECT_DOUBT:
        return doubt_request(store, op, &row, now);
    case LK_EFFECT_LOCK:
        return reach_request(store, op, &row, now);
    case LK_EFFECT_RETURN:
        return return_request(store, op, &row, now);
    default:
        return finish_request(store, op, effect, &row, entry, now);
    }
}

/* ---- the end of all jobs ------------------------------------------------- */

static enum lk_status delete_one(struct lk_sqlite *store, int64_t id)
{
    static const enum lk_statement parts[] = {
        LK_STATEMENT_FORGET_JOB, LK_STATEMENT_DELETE_ATTEMPTS,
        LK_STATEMENT_DELETE_CALL, LK_STATEMENT_DELETE_JOB};
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && !status; i++) {
        sqlite3_bind_int64(store->statements[parts[i]], 1, id);
        status = lk_sqlite_run(store, parts[i]);
    }
    return status;
}

enum lk_status lk_job_delete(struct lk_sqlite *store, uint64_t first,
                             uint64_t last, int *room)
{
    sqlite3_stmt *row = store->statements[LK_STATEMENT_REAP_JOBS];
    int64_t ids[LK_REAP_JOBS];
    int count = 0;
    int code;

    sqlite3_bind_int64(row, 1, (int64_t)first);
    sqlite3_bind_int64(row, 2, (int64_t)last);
    sqlite3_bind_int(row, 3, *room < LK_REAP_JOBS ? *room : LK_REAP_JOBS);
    while ((code = sqlite3_step(row)) == SQLITE_ROW) {
        ids[count++] = sqlite3_column_int64(row, 0);
    }
    sqlite3_reset(row);
    enum lk_status status = lk_sqlite_status(code);
    for (int i = 0; i < count && !status; i++) {
        status = delete_one(store, ids[i]);
    }
    if (!status && count) {
        status = lk_meta_put(store, "high_job", (int64_t)store->next_job - 1);
    }
    *room -= count;
    return status;
}
