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

/* ---- what the rules say ------------------------------------------------- */

struct lk_job_standing lk_job_standing(const struct lk_job_row *row,
                                       uint64_t now)
{
    return (struct lk_job_standing){
        .state = row->state,
        .request = row->request,
        .current = true,
        .lapsed = row->due <= now,
        .called = row->called,
        .sent = row->sent,
        .repeatable = row->repeatable,
    };
}

void lk_job_apply(struct lk_job_row *row, const struct lk_job_step *step,
                  const struct lk_job_end *end, uint64_t due, uint64_t now)
{
    unsigned effects = step->effects;

    row->state = step->next;
    if (effects & LK_JOB_EFFECT_COUNT) {
        row->attempts++;
        row->sent_at = row->sent ? row->sent_at : now;
    }
    row->called |= (effects & LK_JOB_EFFECT_CALLED) != 0;
    row->called &= !(effects & LK_JOB_EFFECT_UNCALLED);
    row->sent |= (effects & LK_JOB_EFFECT_SENT) ||
                 ((effects & LK_JOB_EFFECT_LEFT) && end->left);
    row->doubt |= (effects & LK_JOB_EFFECT_DOUBT) ||
                  ((effects & LK_JOB_EFFECT_DOUBTS) && end->doubt);
    if (effects & LK_JOB_EFFECT_NEVER_SENT) {
        row->sent = row->doubt = false;
    }
    if (effects & LK_JOB_EFFECT_FORGIVE) {
        row->forgiven += row->forgiven < row->attempts;
    }
    if (effects & LK_JOB_EFFECT_FORGIVE_ALL) {
        row->forgiven = row->attempts;
    }
    if (effects & LK_JOB_EFFECT_SINCE) {
        row->since = now;
    }
    if (effects & LK_JOB_EFFECT_DUE) {
        row->due = due;
    }
}

/* ---- the request of an operation that moves ----------------------------- */

/* The result of a request whose operation has moved so. */
static struct lk_job_end result_of(const struct lk_op *op,
                                   enum lk_job_event event,
                                   enum lk_job_state next)
{
    if (next == LK_JOB_UNCERTAIN) { /* its holder says so */
        return (struct lk_job_end){.reason = op->reason, .left = true};
    }
    if (next == LK_JOB_DELIVERED) {
        return (struct lk_job_end){.status = op->response.status};
    }
    return (struct lk_job_end){
        .reason = event == LK_JOB_EVENT_OP_BEGIN     ? LK_SLICE("claimed again")
                  : event == LK_JOB_EVENT_OP_RESOLVE ? LK_SLICE("resolved")
                                                     : LK_SLICE("released")};
}

enum lk_status lk_job_follow(struct lk_sqlite *store, const struct lk_op *op,
                             enum lk_effect effect, struct lk_entry *entry,
                             uint64_t now)
{
    enum lk_job_event event = lk_job_event_of(effect, op->event);
    struct lk_job_row row = {0};

    if (!entry->queued || event == LK_JOB_EVENTS) {
        return LK_OK;
    }
    enum lk_status status = lk_job_request(store, entry->number, &row);
    if (status) {
        return status == LK_NOT_FOUND ? LK_CORRUPT : status;
    }
    struct lk_job_standing standing = lk_job_standing(&row, now);
    standing.unsent = op->unsent;
    standing.by_courier = op->by_courier;
    struct lk_job_step step = lk_job_machine_step(event, standing);
    if (step.next == row.state && !step.effects) {
        return LK_OK;
    }
    struct lk_job_end end = result_of(op, event, step.next);
    lk_job_apply(&row, &step, &end,
                 event == LK_JOB_EVENT_OP_LOCK ? now + op->lock_ms : now, now);
    status = step.effects & LK_JOB_EFFECT_RESULT
                 ? lk_job_end(store, &row, &end, now)
                 : lk_job_move(store, &row, now);
    if (!status && row.state == LK_JOB_UNCERTAIN) {
        status = lk_job_note(store, &row, &end, true, now);
    }
    if (!status && lk_job_is_finished(row.state)) {
        bool open = false;
        status = has_open(store, row.number, &open);
        entry->queued = false;
        entry->jobs = open;
    }
    return status;
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
