/*
 * sqlite_lease.c - leases: what was lost is settled, what is due is taken.
 *
 * The invariant: a job that may have been called and must not be called again
 * is never leased. A lease that ran out tells what is known: never called, or
 * the target honours the key, or the request may be repeated: again; else it
 * is uncertain. A request goes by its operation, which the gateway extends
 * while it runs: the lease lasts as long as that lock.
 */
#include "store/sqlite.h"

#include <string.h>

enum { LOST_AT_ONCE = 256 };

#define REASON_LOST "the courier was lost after it had called"

struct leasing {
    struct lk_sqlite *store;
    struct lk_batch *batch;
    struct lk_job_batch *job_batch;
    const struct lk_job_want *want;
    size_t target; /* in the counts */
    size_t room;
    uint64_t bytes; /* of headers and bodies so far */
    uint64_t now;
    bool more; /* something of this want is due that was not taken */
};

static bool is_full(const struct leasing *leasing)
{
    return leasing->job_batch->body_max && leasing->job_batch->job_count &&
           leasing->bytes >= leasing->job_batch->body_max;
}

/* ---- taking one ---------------------------------------------------------- */

/* The job as its row has it, at the end of the work's list. */
static enum lk_status add_job(struct leasing *leasing, sqlite3_stmt *row)
{
    struct lk_job *job = lk_job_batch_add(leasing->job_batch);

    if (!job) {
        return LK_NOMEM;
    }
    lk_job_fill(row, job, true);
    job->now_ms = leasing->now;
    leasing->bytes += job->headers.len + job->body.len;
    return lk_job_own(job);
}

static void drop_job(struct lk_job_batch *job_batch, size_t at)
{
    lk_job_free(&job_batch->jobs[at]);
    job_batch->job_count--;
    memmove(&job_batch->jobs[at], &job_batch->jobs[at + 1],
            (job_batch->job_count - at) * sizeof(*job_batch->jobs));
}

/* What has happened to a request whose lease has run out, or is refused: its
 * operation counts. The gateway may live and extend its lock while the courier
 * is gone. */
static enum lk_job_event lost_event(const struct leasing *leasing,
                                    const struct lk_job_row *row, bool refused,
                                    uint64_t *deadline)
{
    struct lk_sqlite *store = leasing->store;
    const struct lk_entry *entry =
        row->request
            ? lk_overlay_find(&store->overlay, &store->index, row->hash)
            : NULL;

    *deadline = leasing->now;
    if (!row->request) {
        return LK_JOB_EVENT_LOST;
    }
    if (!entry || entry->number != row->number) {
        return LK_JOB_EVENT_LOST_GONE;
    }
    switch (entry->state) {
    case LK_STATE_IN_PROGRESS:
        if (!refused && entry->deadline <= leasing->now) {
            return LK_JOB_EVENT_LOST;
        }
        *deadline = entry->deadline;
        return LK_JOB_EVENT_LOST_RUNNING;
    case LK_STATE_ACCEPTED:
        return LK_JOB_EVENT_LOST_ACCEPTED;
    case LK_STATE_UNCERTAIN:
        return LK_JOB_EVENT_LOST_UNCERTAIN;
    case LK_STATE_COMPLETED:
        return LK_JOB_EVENT_LOST_COMPLETED;
    default:
        return LK_JOB_EVENT_LOST_GONE;
    }
}

/* An operation that is not as its request says. Nothing makes it so, but if it
 * is, the operation counts. */
static enum lk_status follow_operation(struct leasing *leasing,
                                       struct lk_job_row *row)
{
    uint64_t due;
    enum lk_job_event event = lost_event(leasing, row, true, &due);
    struct lk_job_step step =
        lk_job_machine_step(event, lk_job_standing(row, leasing->now));

    lk_job_apply(row, &step, NULL, due, leasing->now);
    return lk_job_write(leasing->store, leasing->batch, row, &step, NULL,
                        leasing->now);
}

/*
 * Takes one that waits; `job` is what the courier gets, `row` as it was. If it
 * was lost, its operation is still that of the lost lease: it is put back and
 * leased in one step; `lost` is the result of that attempt, or NULL. *taken
 * false: its operation does not allow it.
 */
static enum lk_status take(struct leasing *leasing, struct lk_job_row *row,
                           struct lk_job *job, bool was_lost,
                           const struct lk_job_end *lost, bool *taken)
{
    struct lk_sqlite *store = leasing->store;
    uint64_t lease_ms = leasing->job_batch->lease_ms;
    struct lk_op op = {
        .event = LK_EVENT_LEASE, .lock_ms = lease_ms, .reexecute = was_lost};
    struct lk_job_standing standing = lk_job_standing(row, leasing->now);
    enum lk_status status = LK_OK;

    standing.honours = leasing->want->honours;
    struct lk_job_step step = lk_job_machine_step(LK_JOB_EVENT_LEASE, standing);
    *taken = step.outcome == LK_JOB_OUTCOME_DONE;
    if (step.tells == LK_EVENT_LEASE) {
        status =
            lk_job_tell(store, leasing->batch, row, &op, leasing->now, taken);
    }
    if (status || !*taken) {
        return status ? status : follow_operation(leasing, row);
    }
    lk_job_apply(row, &step, NULL, leasing->now + lease_ms, leasing->now);
    status = lost ? lk_job_end(store, row, lost, leasing->now)
                  : lk_job_move(store, row, leasing->now);
    job->state = LK_JOB_LEASED;
    job->attempts = row->attempts;
    job->called = row->called;
    job->sent = row->sent;
    job->doubt = row->doubt;
    job->due_ms = row->due;
    job->sent_ms = row->sent_at;
    job->token = op.out.token;
    job->run = op.out.attempt;
    leasing->room--;
    return status;
}

/* ---- what was lost ------------------------------------------------------- */

/* It waits again, and is leased next if there is room: in one step. */
static enum lk_status take_again(struct leasing *leasing,
                                 struct lk_job_row *row,
                                 const struct lk_job_step *step)
{
    sqlite3_stmt *whole = leasing->store->statements[LK_STATEMENT_JOB_WHOLE];
    struct lk_job_end lost = {.reason = LK_SLICE("the courier was lost"),
                              .left = true};
    bool counts = step->effects & LK_JOB_EFFECT_RESULT;
    enum lk_status status = LK_OK;
    bool taken = false;

    if (!leasing->room || is_full(leasing)) {
        leasing->more = true;
        return LK_OK;
    }
    lk_job_apply(row, step, &lost, leasing->now, leasing->now);
    if (step->effects & LK_JOB_EFFECT_HISTORY) {
        status = lk_job_note(leasing->store, row, &lost, false, leasing->now);
    }
    if (status) {
        return status;
    }
    sqlite3_bind_int64(whole, 1, (int64_t)row->id);
    int code = sqlite3_step(whole);
    status = code == SQLITE_ROW    ? add_job(leasing, whole)
             : code == SQLITE_DONE ? LK_CORRUPT
                                   : lk_sqlite_status(code);
    sqlite3_reset(whole);
    if (status) {
        return status;
    }
    size_t at = leasing->job_batch->job_count - 1;
    status = take(leasing, row, &leasing->job_batch->jobs[at], true,
                  counts ? &lost : NULL, &taken);
    if (!taken) {
        drop_job(leasing->job_batch, at);
    }
    return status;
}

static enum lk_status settle_one(struct leasing *leasing,
                                 struct lk_job_row *row)
{
    struct lk_job_end lost = {.reason = LK_SLICE(REASON_LOST), .left = true};
    struct lk_job_standing standing = lk_job_standing(row, leasing->now);
    uint64_t due;
    enum lk_job_event event = lost_event(leasing, row, false, &due);

    standing.honours = leasing->want->honours;
    struct lk_job_step step = lk_job_machine_step(event, standing);
    if (step.outcome != LK_JOB_OUTCOME_DONE) {
        return LK_OK;
    }
    if (step.next == LK_JOB_WAITING && event != LK_JOB_EVENT_LOST_ACCEPTED) {
        return take_again(leasing, row, &step);
    }
    if (step.effects & LK_JOB_EFFECT_RESULT) {
        leasing->job_batch->lapsed++;
    }
    lk_job_apply(row, &step, &lost, due, leasing->now);
    return lk_job_write(leasing->store, leasing->batch, row, &step, &lost,
                        leasing->now);
}

static enum lk_status settle_lost(struct leasing *leasing)
{
    sqlite3_stmt *statement = leasing->store->statements[LK_STATEMENT_JOB_LOST];
    struct lk_job_row rows[LOST_AT_ONCE];
    enum lk_status status = LK_OK;
    size_t count = 0;
    int code = SQLITE_DONE;

    lk_bind_text(statement, 1, leasing->want->target);
    sqlite3_bind_int64(statement, 2, (int64_t)leasing->now);
    sqlite3_bind_int(statement, 3, LOST_AT_ONCE);
    while (!status && (code = sqlite3_step(statement)) == SQLITE_ROW) {
        status = lk_job_take_row(leasing->store, statement, &rows[count++]);
    }
    sqlite3_reset(statement);
    if (!status) {
        status = lk_sqlite_status(code);
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = settle_one(leasing, &rows[i]);
    }
    leasing->more |= count == LOST_AT_ONCE;
    return status;
}

/* ---- what is due --------------------------------------------------------- */

/* Rows first, and writing after: the rows are found by what is written. */
static enum lk_status read_due(struct leasing *leasing)
{
    sqlite3_stmt *row = leasing->store->statements[LK_STATEMENT_JOB_DUE];
    enum lk_status status = LK_OK;
    int code = SQLITE_ROW;

    lk_bind_text(row, 1, leasing->want->target);
    sqlite3_bind_int64(row, 2, (int64_t)leasing->now);
    sqlite3_bind_int64(row, 3, (int64_t)leasing->room);
    while (!status && !is_full(leasing) &&
           (code = sqlite3_step(row)) == SQLITE_ROW) {
        status = add_job(leasing, row);
    }
    sqlite3_reset(row);
    return status ? status : lk_sqlite_status(code);
}

static enum lk_status take_due(struct leasing *leasing)
{
    struct lk_job_batch *job_batch = leasing->job_batch;
    size_t at = job_batch->job_count;
    enum lk_status status = read_due(leasing);

    while (!status && at < job_batch->job_count) {
        struct lk_job *job = &job_batch->jobs[at];
        bool request = !job->name.len;
        bool taken = false;
        struct lk_job_row row = {
            .id = job->id,
            .number = job->number,
            .request = request,
            .target = leasing->target,
            .state = job->state,
            .was = job->state,
            .attempts = job->attempts,
            .forgiven = job->forgiven,
            .sent = job->sent,
            .doubt = job->doubt,
            .repeatable = job->repeatable,
            .created = job->created_ms,
            .since = job->since_ms,
            .sent_at = job->sent_ms,
        };
        if (request) {
            row.hash =
                lk_name_hash(leasing->store->store.secret, job->operation);
        }
        status = take(leasing, &row, job, false, NULL, &taken);
        if (taken) {
            at++;
        } else {
            drop_job(job_batch, at);
        }
    }
    return status;
}

/* ---- when to ask again --------------------------------------------------- */

/* The earliest due after `after`; UINT64_MAX if there is none. */
static enum lk_status look_ahead(struct leasing *leasing,
                                 enum lk_job_state state, int64_t after,
                                 uint64_t *due)
{
    sqlite3_stmt *row = leasing->store->statements[LK_STATEMENT_JOB_NEXT];

    *due = UINT64_MAX;
    if (!leasing->store->counts.targets[leasing->target].jobs[state]) {
        return LK_OK;
    }
    lk_bind_text(row, 1, leasing->want->target);
    sqlite3_bind_int(row, 2, state);
    sqlite3_bind_int64(row, 3, after);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW && sqlite3_column_type(row, 0) != SQLITE_NULL) {
        *due = (uint64_t)sqlite3_column_int64(row, 0);
    }
    sqlite3_reset(row);
    return lk_sqlite_status(code);
}

static void wait_until(struct leasing *leasing, uint64_t due)
{
    uint64_t wait = due == UINT64_MAX    ? UINT64_MAX
                    : due > leasing->now ? due - leasing->now
                                         : 0;

    if (wait < leasing->job_batch->wait_ms) {
        leasing->job_batch->wait_ms = wait;
    }
}

/* Whoever has no room, or a paused target, need not come back for what is due
 * already: a lease ends first, or the target is resumed. */
static enum lk_status plan(struct leasing *leasing, bool open)
{
    uint64_t waiting = UINT64_MAX;
    uint64_t leased;
    enum lk_status status =
        look_ahead(leasing, LK_JOB_LEASED, (int64_t)leasing->now, &leased);

    if (!status && open) {
        status = look_ahead(leasing, LK_JOB_WAITING, -1, &waiting);
    }
    wait_until(leasing, waiting);
    wait_until(leasing, leased);
    if (leasing->more && open) {
        leasing->job_batch->wait_ms = 0;
    }
    return status;
}

static enum lk_status lease_for(struct leasing *leasing)
{
    struct lk_job_counts *counts = &leasing->store->counts;
    enum lk_status status =
        lk_counts_find(leasing->store, leasing->want->target, &leasing->target);

    if (status) {
        return status;
    }
    const struct lk_job_target *target = &counts->targets[leasing->target];
    bool open = !target->paused && leasing->want->limit;
    leasing->room = open ? leasing->want->limit : 0;
    leasing->more = false;
    if (target->jobs[LK_JOB_LEASED]) {
        status = settle_lost(leasing);
    }
    if (!status && leasing->room &&
        counts->targets[leasing->target].jobs[LK_JOB_WAITING]) {
        status = take_due(leasing);
    }
    return status ? status : plan(leasing, open);
}

enum lk_status lk_job_lease(struct lk_sqlite *store, struct lk_batch *batch,
                            uint64_t now)
{
    struct lk_job_batch *job_batch = batch->job_batch;
    struct leasing leasing = {
        .store = store, .batch = batch, .job_batch = job_batch, .now = now};
    uint64_t hold = atomic_load(&store->hold_until_ms);
    enum lk_status status = LK_OK;

    if (job_batch->want_count && lk_sqlite_is_held(store, now)) {
        job_batch->wait_ms = hold - now; /* a restored copy */
        return LK_OK;
    }
    for (size_t i = 0; i < job_batch->want_count && !status; i++) {
        leasing.want = &job_batch->wants[i];
        status = lease_for(&leasing);
    }
    return status;
}
