/*
 * sqlite_jobs.c - jobs: their rows, the request that follows its operation,
 * and jobs and targets as they are shown.
 *
 * The invariant: of one operation at most one request is unfinished, and its
 * state matches that of the operation (jobs.h has the table; a request that may
 * run again stays leased while its operation is uncertain). Both change in the
 * same transaction: lk_job_follow when the operation changes, sqlite_lease.c
 * when the job does. `jobs` and `queued` of the operation's entry agree with
 * its rows.
 */
#include "store/sqlite.h"

#include <stdlib.h>
#include <string.h>

/* ---- rows of a job ------------------------------------------------------ */

enum { HISTORY_BODY = 1024 }; /* of a response in the history */

/* ---- reading ----------------------------------------------------------- */

/* Reads the columns of a job, as the store thread needs them. LK_CORRUPT: a
 * state or hash that no job can have. */
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

/* LK_NOT_FOUND: there is no such job. */
static enum lk_status read_job_row(struct lk_sqlite *store,
                                   enum lk_statement which, uint64_t number,
                                   struct lk_job_row *row)
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
                          : read_job_row(store, LK_STATEMENT_JOB_ROW, id, row);
}

enum lk_status lk_job_request(struct lk_sqlite *store, uint64_t number,
                              struct lk_job_row *row)
{
    return read_job_row(store, LK_STATEMENT_REQUEST, number, row);
}

/* `exists`: the operation has a job of that name already. `same`: with the same
 * call, so that it is a repeated ENQUEUE. */
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

/* Does the operation have a job that is not delivered and not dropped? */
static enum lk_status has_unfinished_job(struct lk_sqlite *store,
                                         uint64_t number, bool *open)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_JOB_OPEN];

    sqlite3_bind_int64(statement, 1, (int64_t)number);
    int code = sqlite3_step(statement);
    *open = code == SQLITE_ROW;
    sqlite3_reset(statement);
    return lk_sqlite_status(code);
}

/* ---- writing ----------------------------------------------------------- */

static enum lk_status write_call(struct lk_sqlite *store, uint64_t id,
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

/* Adds a waiting job and its call in the batch's transaction. The id counts as
 * used only if both rows were written. */
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
        status = write_call(store, id, call);
    }
    if (!status) {
        store->next_job++;
        store->has_jobs = true;
        lk_counts_move(store, target, LK_JOB_STATES, LK_JOB_WAITING, now);
    }
    return status;
}

/* The columns that JOB_MOVE and JOB_END share. */
static void bind_job_row(sqlite3_stmt *statement, const struct lk_job_row *row)
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

/* The counts follow the row; `was` is the state that they know. */
static void count_job_row(struct lk_sqlite *store, struct lk_job_row *row,
                          uint64_t now)
{
    lk_counts_move(store, row->target, row->was, row->state, now);
    row->was = row->state;
}

/* `due` of a job that is not leased any more: since when. */
static void set_job_times(struct lk_job_row *row, uint64_t now)
{
    bool waits = row->state == LK_JOB_WAITING || row->state == LK_JOB_LEASED;

    row->ended = waits ? 0 : now;
    if (!waits) {
        row->due = now;
    }
}

/* Writes the row's new state without a result. The counts follow even if the
 * write failed: the batch is rolled back then, and the counts with it. */
enum lk_status lk_job_move(struct lk_sqlite *store, struct lk_job_row *row,
                           uint64_t now)
{
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    set_job_times(row, now);
    bind_job_row(store->statements[LK_STATEMENT_JOB_MOVE], row);
    status = lk_sqlite_run(store, LK_STATEMENT_JOB_MOVE);
    count_job_row(store, row, now);
    return status;
}

/* The same with the result of an attempt; `end` NULL: there is none. */
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
    set_job_times(row, now);
    bind_job_row(statement, row);
    sqlite3_bind_int64(statement, 12, end->status);
    lk_bind_text(statement, 13, end->provider_id);
    lk_bind_text(statement, 14, end->reason);
    status = lk_sqlite_run(store, LK_STATEMENT_JOB_END);
    count_job_row(store, row, now);
    return status;
}

/* Adds an attempt to the history. `whole`: with all of its response; otherwise
 * only the first HISTORY_BODY bytes of the body. */
enum lk_status lk_job_note(struct lk_sqlite *store,
                           const struct lk_job_row *row,
                           const struct lk_job_end *end, bool whole,
                           uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ATTEMPT];
    struct lk_slice headers = end->response.headers;
    struct lk_slice body = end->response.body;
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

/* A job has ended: the index's entry of its operation follows, if the entry is
 * still about the same operation. An operation without unfinished jobs can
 * expire. */
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
    enum lk_status status = has_unfinished_job(store, row->number, &open);
    after.jobs = open;
    after.queued = before.queued && !row->request;
    if (status ||
        (after.jobs == before.jobs && after.queued == before.queued)) {
        return status;
    }
    return lk_sqlite_replace(store, &before, &after);
}

/* ---- what the rules say ------------------------------------------------- */

/* The row as the job machine sees it. */
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

/* Applies a step of the job machine to the row, in memory only. `due` is used
 * if the step sets it. The order matters: NEVER_SENT takes back what earlier
 * effects have set. */
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

/* The result of a request whose operation has changed with this event. */
static struct lk_job_end result_of(const struct lk_op *op,
                                   enum lk_job_event event,
                                   enum lk_job_state next)
{
    if (next == LK_JOB_UNCERTAIN) { /* its holder reported it */
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

/* The operation of `entry` changes by `op`: its request, if it has one, changes
 * in the same transaction, and `entry` with it. LK_CORRUPT: the entry says that
 * there is a request, and there is no row. */
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
        status = has_unfinished_job(store, row.number, &open);
        entry->queued = false;
        entry->jobs = open;
    }
    return status;
}

/* ---- the end of all jobs ------------------------------------------------- */

/* What depends on the job goes first, so that a failure leaves nothing without
 * a job. */
static enum lk_status delete_job(struct lk_sqlite *store, int64_t id)
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

/* Deletes jobs of operations `first` to `last`, at most `room` and LK_REAP_JOBS
 * of them, and takes these off `room`. The ids are read first: a
 * statement must not run over rows that are being deleted. Their numbers stay
 * used (high_job). */
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
        status = delete_job(store, ids[i]);
    }
    if (!status && count) {
        status = lk_meta_put(store, "high_job", (int64_t)store->next_job - 1);
    }
    *room -= count;
    return status;
}

/* ---- jobs and targets as they are shown --------------------------------- */

/* Rows looked at in one call, so that a rare one does not hold the reader. */
enum { LOOK_AT_JOBS = 2000 };

/* The slices point into the row and are valid until it is stepped or reset. */
void lk_job_fill(sqlite3_stmt *row, struct lk_job *job, bool whole)
{
    enum lk_job_state state = (enum lk_job_state)sqlite3_column_int(row, 5);
    bool timed = state == LK_JOB_WAITING || state == LK_JOB_LEASED;

    *job = (struct lk_job){
        .id = (uint64_t)sqlite3_column_int64(row, 0),
        .number = (uint64_t)sqlite3_column_int64(row, 1),
        .generation = (uint64_t)sqlite3_column_int64(row, 2),
        .name = lk_column(row, 3),
        .target = lk_column(row, 4),
        .state = state,
        .attempts = (unsigned)sqlite3_column_int64(row, 6),
        .forgiven = (unsigned)sqlite3_column_int64(row, 7),
        .called = sqlite3_column_int(row, 8),
        .sent = sqlite3_column_int(row, 9),
        .repeatable = sqlite3_column_int(row, 10),
        .created_ms = (uint64_t)sqlite3_column_int64(row, 11),
        .due_ms = timed ? (uint64_t)sqlite3_column_int64(row, 12) : 0,
        .ended_ms = (uint64_t)sqlite3_column_int64(row, 13),
        .status = (unsigned)sqlite3_column_int64(row, 14),
        .provider_id = lk_column(row, 15),
        .reason = lk_column(row, 16),
        .operation = {lk_column(row, 17), lk_column(row, 18),
                      lk_column(row, 19)},
        .method = lk_column(row, 20),
        .path = lk_column(row, 21),
        .doubt = sqlite3_column_int(row, 24),
        .since_ms = (uint64_t)sqlite3_column_int64(row, 25),
        .sent_ms = (uint64_t)sqlite3_column_int64(row, 26),
    };
    if (whole) {
        job->headers = lk_column(row, 22);
        job->body = lk_column(row, 23);
    }
}

/* Moves all texts of the job into job->text, so that it outlives its row. The
 * caller frees it with lk_job_free, also after LK_NOMEM. */
enum lk_status lk_job_own(struct lk_job *job)
{
    struct lk_slice *slices[] = {&job->operation.tenant,
                                 &job->operation.scope,
                                 &job->operation.key,
                                 &job->name,
                                 &job->target,
                                 &job->method,
                                 &job->path,
                                 &job->headers,
                                 &job->body,
                                 &job->provider_id,
                                 &job->reason,
                                 &job->response.headers,
                                 &job->response.body};
    size_t count = sizeof(slices) / sizeof(slices[0]);
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&job->text, total + 1);
    for (size_t i = 0; i < count && !status; i++) {
        const char *at = job->text.data + job->text.len;
        status = latchkey_buf_add_slice(&job->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

/* The response to the last attempt that ended. The slices are valid until the
 * reader is released. */
static enum lk_status add_job_response(struct lk_sqlite *store,
                                       struct lk_job *job)
{
    sqlite3_stmt *row = store->reads[LK_READ_JOB_RESPONSE];
    bool exactly = job->state == LK_JOB_DELIVERED;

    sqlite3_reset(row);
    sqlite3_bind_int64(row, 1, (int64_t)job->id);
    sqlite3_bind_int64(row, 2, exactly ? job->attempts : 0);
    sqlite3_bind_int64(row, 3, job->attempts);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        job->response.headers = lk_column(row, 0);
        job->response.body = lk_column(row, 1);
    }
    job->response.status = job->status;
    return lk_sqlite_status(code);
}

/* A leased request: the token and attempt of its operation. */
static void add_job_operation(struct lk_sqlite *store, struct lk_job *job)
{
    struct lk_entry entry;
    uint64_t now;

    if (!job->name.len && job->state == LK_JOB_LEASED &&
        lk_sqlite_entry(store,
                        lk_name_hash(store->store.secret, job->operation),
                        &entry, &now) &&
        entry.number == job->number) {
        job->token = entry.token;
        job->run = entry.attempt;
    }
}

/* ---- many ---------------------------------------------------------------- */

/* The filters that the statement did not apply. */
static bool job_matches(const struct lk_jobs_query *query,
                        const struct lk_job *job, uint64_t now)
{
    bool state =
        query->any_state || (query->unfinished ? job->state < LK_JOB_DELIVERED
                                               : job->state == query->state);

    return state &&
           (!query->target.len ||
            latchkey_slice_equal(job->target, query->target)) &&
           (!query->tenant.len ||
            latchkey_slice_equal(job->operation.tenant, query->tenant)) &&
           (!query->provider_id.len ||
            latchkey_slice_equal(job->provider_id, query->provider_id)) &&
           (!query->number || job->number == query->number) &&
           job->created_ms + query->older_than_ms <= now &&
           job->created_ms >= query->since_ms &&
           (!query->until_ms || job->created_ms < query->until_ms);
}

/* By operation, by the provider's id, by what is stuck, or all of them in
 * order. */
static sqlite3_stmt *choose_jobs_read(struct lk_sqlite *store,
                                      const struct lk_jobs_query *query)
{
    bool stuck =
        !query->any_state && !query->unfinished &&
        (query->state == LK_JOB_UNCERTAIN || query->state == LK_JOB_DEAD);
    enum lk_read read = query->number            ? LK_READ_JOBS_OF
                        : query->provider_id.len ? LK_READ_JOBS_PROVIDER
                        : stuck                  ? LK_READ_JOBS_STUCK
                                                 : LK_READ_JOBS;
    sqlite3_stmt *row = lk_sqlite_read(store, read);

    if (row && read == LK_READ_JOBS_PROVIDER) {
        lk_bind_text(row, 3, query->provider_id);
    } else if (row && read != LK_READ_JOBS) {
        sqlite3_bind_int64(row, 3,
                           query->number ? (int64_t)query->number
                                         : (int64_t)query->state);
    }
    return row;
}

static enum lk_status show_job(struct lk_sqlite *store,
                               const struct lk_jobs_query *query, lk_job_fn fn,
                               void *context, struct lk_job *job, bool *stopped)
{
    enum lk_status status = LK_OK;

    add_job_operation(store, job);
    if (query->whole) {
        status = add_job_response(store, job);
    }
    if (!status) {
        *stopped = !fn(context, job);
    }
    return status;
}

/* At most LOOK_AT_JOBS rows are read in one call: a page may be empty and still
 * have a next one. *next is the id of the last row that was looked at; 0: there
 * are no more. */
enum lk_status lk_sqlite_jobs(struct lk_store *base,
                              const struct lk_jobs_query *query, lk_job_fn fn,
                              void *context, uint64_t *next)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    uint64_t now = lk_clock_now(&store->clock);
    sqlite3_stmt *row = choose_jobs_read(store, query);
    enum lk_status status = LK_OK;
    size_t looked = 0;
    size_t shown = 0;
    bool stopped = false;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    *next = query->cursor;
    sqlite3_bind_int64(row, 1, (int64_t)query->cursor);
    sqlite3_bind_int(row, 2, LOOK_AT_JOBS);
    while (!status && !stopped && shown < query->limit &&
           (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_job job;
        lk_job_fill(row, &job, query->whole);
        looked++;
        *next = job.id;
        if (job_matches(query, &job, now)) {
            shown++;
            status = show_job(store, query, fn, context, &job, &stopped);
        }
    }
    if (code == SQLITE_DONE && looked < LOOK_AT_JOBS) {
        *next = 0;
    }
    lk_sqlite_read_done(store);
    return status ? status : lk_sqlite_status(code);
}

/* ---- one ----------------------------------------------------------------- */

/* The last attempt is in the job itself, unless the job is retried. */
static enum lk_status show_attempts(struct lk_sqlite *store,
                                    const struct lk_job *job, lk_attempt_fn fn,
                                    void *context)
{
    sqlite3_stmt *row = store->reads[LK_READ_ATTEMPTS];
    bool goes_on = job->state == LK_JOB_WAITING || job->state == LK_JOB_LEASED;
    bool stopped = false;
    int code = SQLITE_ROW;

    sqlite3_bind_int64(row, 1, (int64_t)job->id);
    sqlite3_bind_int64(row, 2, (int64_t)job->attempts + goes_on);
    while (!stopped && (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_attempt attempt = {
            .number = (unsigned)sqlite3_column_int64(row, 0),
            .ended_ms = (uint64_t)sqlite3_column_int64(row, 1),
            .status = (unsigned)sqlite3_column_int64(row, 2),
            .called = sqlite3_column_int(row, 3),
            .reason = lk_column(row, 4),
            .body = lk_column(row, 5),
        };
        stopped = !fn(context, &attempt);
    }
    return lk_sqlite_status(code);
}

enum lk_status lk_sqlite_job(struct lk_store *base, uint64_t id,
                             struct lk_job *job, lk_attempt_fn fn,
                             void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_JOB);

    *job = (struct lk_job){0};
    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, id > INT64_MAX ? (int64_t)-1 : (int64_t)id);
    int code = sqlite3_step(row);
    enum lk_status status =
        code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
    if (!status) {
        lk_job_fill(row, job, true);
        add_job_operation(store, job);
        status = add_job_response(store, job);
    }
    if (!status) {
        status = lk_job_own(job);
    }
    if (!status && fn) {
        status = show_attempts(store, job, fn, context);
    }
    lk_sqlite_read_done(store);
    if (status) {
        lk_job_free(job);
    }
    return status;
}

/* ---- targets ------------------------------------------------------------- */

/* The earliest `due` of a target's jobs in one state; 0: there are none. */
static enum lk_status look_up_oldest(struct lk_sqlite *store,
                                     const struct lk_job_target *target,
                                     enum lk_job_state state, uint64_t *oldest)
{
    sqlite3_stmt *row = store->reads[LK_READ_OLDEST];

    sqlite3_reset(row);
    sqlite3_bind_text(row, 1, target->name, (int)target->name_len,
                      SQLITE_STATIC);
    sqlite3_bind_int(row, 2, state);
    int code = sqlite3_step(row);
    *oldest = code == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(row, 0) : 0;
    return lk_sqlite_status(code);
}

/* Who has paused the target, when and why. */
static enum lk_status look_up_pause(struct lk_sqlite *store,
                                    struct lk_target_summary *summary)
{
    sqlite3_stmt *row = store->reads[LK_READ_TARGET];

    sqlite3_reset(row);
    lk_bind_text(row, 1, summary->name);
    int code = sqlite3_step(row);
    summary->paused = code == SQLITE_ROW;
    if (summary->paused) {
        summary->paused_ms = (uint64_t)sqlite3_column_int64(row, 0);
        summary->who = lk_column(row, 1);
        summary->why = lk_column(row, 2);
    }
    return lk_sqlite_status(code);
}

/* Finished jobs of the target that ended up to then may have been deleted; 0:
 * none was. */
static enum lk_status look_up_forgotten(struct lk_sqlite *store,
                                        struct lk_target_summary *summary)
{
    sqlite3_stmt *row = store->reads[LK_READ_FORGOTTEN];

    sqlite3_reset(row);
    lk_bind_text(row, 1, summary->name);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        summary->forgotten_ms = (uint64_t)sqlite3_column_int64(row, 0);
    }
    return lk_sqlite_status(code);
}

/* Counts and times are from two moments and may differ by one batch. A target
 * without unfinished jobs, pause and deleted jobs is not shown. */
static enum lk_status show_target(struct lk_sqlite *store,
                                  const struct lk_job_target *target,
                                  lk_target_fn fn, void *context, bool *stopped)
{
    struct lk_target_summary summary = {
        .name = {target->name, target->name_len}};
    uint64_t now = lk_clock_now(&store->clock);
    uint64_t jobs = 0;
    enum lk_status status =
        look_up_oldest(store, target, LK_JOB_WAITING, &summary.oldest_due_ms);

    if (!status) {
        status = look_up_oldest(store, target, LK_JOB_UNCERTAIN,
                                &summary.oldest_uncertain_ms);
    }
    if (!status) {
        status =
            look_up_oldest(store, target, LK_JOB_DEAD, &summary.oldest_dead_ms);
    }
    if (!status) {
        status = look_up_pause(store, &summary);
    }
    if (!status) {
        status = look_up_forgotten(store, &summary);
    }
    if (summary.oldest_due_ms > now) {
        summary.oldest_due_ms = 0;
    }
    for (int i = 0; i < LK_JOB_DELIVERED; i++) {
        summary.jobs[i] = target->jobs[i];
        jobs += target->jobs[i];
    }
    if (!status && (jobs || summary.paused || summary.forgotten_ms)) {
        *stopped = !fn(context, &summary);
    }
    return status;
}

/* A copy, so that the index's lock is not held while rows are read. */
static struct lk_job_target *copy_targets(struct lk_sqlite *store,
                                          size_t *count)
{
    pthread_mutex_lock(&store->index_lock);
    *count = store->counts_durable.count;
    struct lk_job_target *copy = malloc((*count + 1) * sizeof(*copy));
    if (copy && *count) {
        memcpy(copy, store->counts_durable.targets, *count * sizeof(*copy));
    }
    pthread_mutex_unlock(&store->index_lock);
    return copy;
}

enum lk_status lk_sqlite_targets(struct lk_store *base, lk_target_fn fn,
                                 void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    size_t count = 0;
    struct lk_job_target *targets = copy_targets(store, &count);
    enum lk_status status = LK_OK;
    bool stopped = false;

    if (!targets) {
        return LK_NOMEM;
    }
    if (!lk_sqlite_read(store, LK_READ_OLDEST)) {
        free(targets);
        return LK_UNAVAILABLE;
    }
    for (size_t i = 0; i < count && !status && !stopped; i++) {
        status = show_target(store, &targets[i], fn, context, &stopped);
    }
    lk_sqlite_read_done(store);
    free(targets);
    return status;
}
