/*
 * sqlite_lease.c - the courier's part of a batch: how leases end and are
 * renewed, what operators and proof do to jobs and targets, and which jobs are
 * leased.
 *
 * The life of a lease; all of it in the transaction of a batch:
 *
 *   taken     lk_job_lease counts an attempt, which is the fence, and sets due
 *   renewed   mark_lease, with the same attempt
 *   ended     end_lease, with the same attempt; a later end is stale
 *   lost      due has passed: settle_lost leases the job again, or makes it
 *             uncertain
 *
 * The invariants: an end or a mark counts only for the lease that it names, by
 * the id of the job and the number of the attempt, and only while the job is
 * leased. A job that may have been called and must not be called again is never
 * leased. A lost job is leased again only if it was never called, the target
 * honours the key, or the request may be repeated. The lease of a request lasts
 * as long as the lock of its operation, which the gateway extends. What comes
 * out of a job batch counts only after the commit.
 *
 * An operator's action has a line in the audit log, in the same transaction.
 */
#include "store/sqlite.h"

#include <stdio.h>
#include <string.h>

/* ---- ends and marks ----------------------------------------------------- */

#define REASON_UNKNOWN "the courier does not know what became of it"

enum lk_status lk_job_apply_event(struct lk_sqlite *store,
                                  struct lk_batch *batch,
                                  const struct lk_job_row *row,
                                  struct lk_op *op, uint64_t now, bool *done)
{
    const struct lk_entry *entry =
        lk_overlay_find(&store->overlay, &store->index, row->hash);

    *done = false;
    if (!entry || entry->number != row->number) {
        return LK_OK; /* the operation is not there: damage */
    }
    op->hash = row->hash;
    op->token = entry->token;
    enum lk_status status = lk_sqlite_decide(store, batch, op, now);
    *done = !status && !op->status &&
            (op->out.verdict == LK_VERDICT_DONE ||
             op->out.verdict == LK_VERDICT_NEW);
    lk_op_clear(op);
    return status;
}

/* The event that a step has for the operation of a request. */
static enum lk_status apply_to_operation(struct lk_sqlite *store,
                                         struct lk_batch *batch,
                                         const struct lk_job_row *row,
                                         const struct lk_job_end *end,
                                         enum lk_event event, uint64_t now,
                                         bool *done)
{
    struct lk_op op = {
        .event = event,
        .by_courier = event == LK_EVENT_RETURN,
    };

    if (event == LK_EVENT_DOUBT) {
        op.reason = end->reason.len ? end->reason : LK_SLICE(REASON_UNKNOWN);
    } else if (event == LK_EVENT_COMPLETE) {
        op.response = end->response;
        op.response.status = op.response.status ? op.response.status : 503;
    } else if (event == LK_EVENT_LEASE) {
        op.lock_ms = 1; /* to be ended at once */
    }
    return lk_job_apply_event(store, batch, row, &op, now, done);
}

/* The result of the attempt: in the job, and in the history with the whole
 * response, or cut short if the job is retried. */
static enum lk_status write_job_end(struct lk_sqlite *store,
                                    struct lk_job_row *row,
                                    const struct lk_job_end *end,
                                    unsigned effects, uint64_t now)
{
    bool goes_on = effects & LK_JOB_EFFECT_HISTORY;
    bool empty = !end->response.headers.len && !end->response.body.len;
    enum lk_status status = lk_job_end(store, row, end, now);

    return status || (row->state == LK_JOB_DELIVERED && empty)
               ? status
               : lk_job_note(store, row, end, !goes_on, now);
}

/* The order: the job's row, the index's entry, then the operation. A failure is
 * one of the whole batch. */
enum lk_status lk_job_write(struct lk_sqlite *store, struct lk_batch *batch,
                            struct lk_job_row *row,
                            const struct lk_job_step *step,
                            const struct lk_job_end *end, uint64_t now)
{
    bool done;
    enum lk_status status =
        step->effects & LK_JOB_EFFECT_RESULT
            ? write_job_end(store, row, end, step->effects, now)
            : lk_job_move(store, row, now);

    if (!status && lk_job_is_finished(row->state)) {
        status = lk_job_release(store, row);
    }
    return status || step->tells == LK_JOB_TELLS_NOTHING ||
                   step->tells == LK_EVENT_RETURN /* applied before */
               ? status
               : apply_to_operation(store, batch, row, end,
                                    (enum lk_event)step->tells, now, &done);
}

_Static_assert(LK_JOB_EVENT_END_DELIVERED + LK_END_DEAD ==
                   LK_JOB_EVENT_END_DEAD,
               "enum lk_end has the order of the events");

/* One attempt has ended. `end->stale`: the lease is another's now, or the job
 * is finished; nothing changes then, and that is not a failure. RETAKE and
 * RETURN change the operation first, because it may refuse. */
static enum lk_status end_lease(struct lk_sqlite *store, struct lk_batch *batch,
                                struct lk_job_end *end, uint64_t now)
{
    struct lk_job_row row = {0};
    struct lk_job_end unseen = {
        .reason = LK_SLICE("the gateway says that it is completed, "
                           "and the store has not seen it"),
        .left = true,
    };
    bool done = true;
    enum lk_status status = lk_job_read(store, end->id, &row);
    struct lk_job_standing standing = lk_job_standing(&row, now);

    standing.current = row.attempts == end->attempt;
    standing.left = end->left;
    struct lk_job_step step = lk_job_machine_step(
        (enum lk_job_event)(LK_JOB_EVENT_END_DELIVERED + end->end), standing);
    end->stale = status || step.outcome != LK_JOB_OUTCOME_DONE;
    if (end->stale) {
        return status == LK_NOT_FOUND ? LK_OK : status;
    }
    if (step.effects & LK_JOB_EFFECT_RETAKE) {
        status = apply_to_operation(store, batch, &row, end, LK_EVENT_LEASE,
                                    now, &done);
        end->stale = status || !done;
    } else if (step.tells == LK_EVENT_RETURN) {
        /* If it refuses, the lease runs out, and settle_lost decides. */
        status = apply_to_operation(store, batch, &row, end, LK_EVENT_RETURN,
                                    now, &done);
    }
    if (status || !done) {
        return status;
    }
    lk_job_apply(&row, &step, end, now + end->delay_ms, now);
    return lk_job_write(store, batch, &row, &step,
                        step.effects & LK_JOB_EFFECT_UNSEEN ? &unseen : end,
                        now);
}

/* Renews a lease, and notes before a call that it is about to be made. `stale`
 * as in end_lease: the courier must not call then. */
static enum lk_status mark_lease(struct lk_sqlite *store,
                                 struct lk_batch *batch,
                                 struct lk_job_mark *mark, uint64_t now)
{
    struct lk_op op = {.event = LK_EVENT_EXTEND,
                       .lock_ms = mark->lease_ms,
                       .by_courier = true};
    struct lk_job_row row = {0};
    bool done = true;
    enum lk_status status = lk_job_read(store, mark->id, &row);
    struct lk_job_standing standing = lk_job_standing(&row, now);

    standing.current = row.attempts == mark->attempt;
    struct lk_job_step step = lk_job_machine_step(LK_JOB_EVENT_MARK, standing);
    mark->stale = status || step.outcome != LK_JOB_OUTCOME_DONE;
    if (mark->stale) {
        return status == LK_NOT_FOUND ? LK_OK : status;
    }
    if (step.tells == LK_EVENT_EXTEND) {
        status = lk_job_apply_event(store, batch, &row, &op, now, &done);
    }
    mark->stale = !done;
    if (status || mark->stale) {
        return status;
    }
    lk_job_apply(&row, &step, NULL, now + mark->lease_ms, now);
    row.called |= mark->called; /* LK_JOB_EFFECT_CALLS */
    return lk_job_move(store, &row, now);
}

/* Ends come first: they make room for leases, and what an action or a lease
 * finds is the state after them. */
enum lk_status lk_sqlite_job_batch(struct lk_sqlite *store,
                                   struct lk_batch *batch, uint64_t now)
{
    struct lk_job_batch *job_batch = batch->job_batch;
    enum lk_status status = LK_OK;

    lk_job_batch_clear(job_batch); /* a batch may be decided twice */
    job_batch->status = LK_OK;
    job_batch->error = NULL;
    job_batch->lapsed = 0;
    job_batch->wait_ms = UINT64_MAX;
    for (size_t i = 0; i < job_batch->end_count && !status; i++) {
        status = end_lease(store, batch, &job_batch->ends[i], now);
    }
    for (size_t i = 0; i < job_batch->mark_count && !status; i++) {
        status = mark_lease(store, batch, &job_batch->marks[i], now);
    }
    for (size_t i = 0; i < job_batch->action_count && !status; i++) {
        status = lk_job_action(store, batch, &job_batch->actions[i], now);
    }
    return status ? status : lk_job_lease(store, batch, now);
}

/* ---- actions ------------------------------------------------------------ */

/* The name of each action in the audit log. */
static const char *const actions[] = {
    [LK_ACTION_RETRY] = "job retry",
    [LK_ACTION_DROP] = "job drop",
    [LK_ACTION_DELIVERED] = "job delivered",
    [LK_ACTION_AGAIN] = "job again",
    [LK_ACTION_PAUSE] = "target pause",
    [LK_ACTION_RESUME] = "target resume",
};

/* The entry has the id of the job in place of a token. */
static enum lk_status audit_job(struct lk_sqlite *store,
                                const struct lk_job_action *action,
                                const struct lk_job_row *row, uint64_t now)
{
    sqlite3_stmt *name = store->statements[LK_STATEMENT_OPERATION];
    struct lk_audit_entry entry = {
        .at_ms = now,
        .who = action->who,
        .why = action->why,
        .action = latchkey_slice(actions[action->kind]),
        .token = row->id,
    };

    sqlite3_bind_int64(name, 1, (int64_t)row->number);
    int code = sqlite3_step(name);
    enum lk_status status = lk_sqlite_status(code);
    if (code == SQLITE_ROW) {
        entry.name = (struct lk_name){lk_column(name, 0), lk_column(name, 1),
                                      lk_column(name, 2)};
    }
    if (!status) {
        status = lk_sqlite_audit_row(store, &entry);
    }
    sqlite3_reset(name);
    return status;
}

/* A target has no operation: its name is part of the action. */
static enum lk_status audit_target(struct lk_sqlite *store,
                                   const struct lk_job_action *action,
                                   uint64_t now)
{
    char text[LK_TARGET_NAME_MAX + 32];
    int len = snprintf(text, sizeof(text), "%s %.*s", actions[action->kind],
                       (int)action->target.len, action->target.data);
    struct lk_audit_entry entry = {
        .at_ms = now,
        .who = action->who,
        .why = action->why,
        .action = {text, (size_t)len},
    };

    return lk_sqlite_audit_row(store, &entry);
}

static enum lk_status write_pause(struct lk_sqlite *store,
                                  const struct lk_job_action *action,
                                  uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_PAUSE];

    lk_bind_text(statement, 1, action->target);
    sqlite3_bind_int64(statement, 2, (int64_t)now);
    lk_bind_text(statement, 3, action->who);
    lk_bind_text(statement, 4, action->why);
    return lk_sqlite_run(store, LK_STATEMENT_PAUSE);
}

/* A target may be paused before it has a job. The counts know the pause, so
 * that leasing need not read it; a rollback takes it back. */
static enum lk_status apply_target_action(struct lk_sqlite *store,
                                          struct lk_batch *batch,
                                          struct lk_job_action *action,
                                          uint64_t now)
{
    bool pause = action->kind == LK_ACTION_PAUSE;
    size_t at;
    enum lk_status status = lk_sqlite_begin(store);

    if (!action->target.len || action->target.len > LK_TARGET_NAME_MAX) {
        action->status_out = LK_INVALID;
        return status;
    }
    if (!status) {
        status = lk_counts_find(store, action->target, &at);
    }
    if (status) {
        return status;
    }
    store->counts.targets[at].paused = pause;
    store->counts.changed = true;
    batch->queued |= !pause;
    if (pause) {
        status = write_pause(store, action, now);
    } else {
        lk_bind_text(store->statements[LK_STATEMENT_RESUME], 1, action->target);
        status = lk_sqlite_run(store, LK_STATEMENT_RESUME);
    }
    return status ? status : audit_target(store, action, now);
}

/* How long the target's service remembers a key, in milliseconds; 0: no limit
 * is configured. */
static uint64_t key_life_of(const struct lk_sqlite *store,
                            const struct lk_job_batch *job_batch, size_t target)
{
    const struct lk_job_target *of = &store->counts.targets[target];

    for (size_t i = 0; i < job_batch->life_count; i++) {
        if (latchkey_slice_equal(job_batch->lives[i].target,
                                 (struct lk_slice){of->name, of->name_len})) {
            return job_batch->lives[i].ms;
        }
    }
    return 0;
}

/* What the caller of a refused action gets. */
static enum lk_status action_status(enum lk_job_outcome outcome)
{
    switch (outcome) {
    case LK_JOB_OUTCOME_DONE:
        return LK_OK;
    case LK_JOB_OUTCOME_BUSY:
        return LK_BUSY;
    case LK_JOB_OUTCOME_DENIED:
        return LK_DENIED;
    case LK_JOB_OUTCOME_NOT_FOUND:
        return LK_NOT_FOUND;
    default:
        return LK_INVALID;
    }
}

/* The step is allowed. What waits now wakes the courier (batch->queued). */
static enum lk_status apply_job_action(struct lk_sqlite *store,
                                       struct lk_batch *batch,
                                       const struct lk_job_action *action,
                                       struct lk_job_row *row,
                                       const struct lk_job_step *step,
                                       uint64_t now)
{
    struct lk_job_end end = {
        .status = action->status,
        .provider_id = action->provider_id,
    };

    lk_job_apply(row, step, &end, now, now);
    enum lk_status status = step->effects & LK_JOB_EFFECT_RESULT
                                ? lk_job_end(store, row, &end, now)
                                : lk_job_move(store, row, now);
    batch->queued |= row->state == LK_JOB_WAITING;
    if (!status && lk_job_is_finished(row->state)) {
        status = lk_job_release(store, row);
    }
    return status ? status : audit_job(store, action, row, now);
}

_Static_assert(LK_JOB_EVENT_ACTION_RETRY + LK_ACTION_AGAIN ==
                   LK_JOB_EVENT_ACTION_AGAIN,
               "enum lk_job_action_kind has the order of the events");

/* LK_OK: action->status_out says whether it was done or why not, and
 * action->state is the state of the job afterwards. A refused action has no
 * audit entry. */
enum lk_status lk_job_action(struct lk_sqlite *store, struct lk_batch *batch,
                             struct lk_job_action *action, uint64_t now)
{
    struct lk_job_row row = {0};

    action->status_out = LK_OK;
    if (action->kind == LK_ACTION_PAUSE || action->kind == LK_ACTION_RESUME) {
        return apply_target_action(store, batch, action, now);
    }
    enum lk_status status = lk_job_read(store, action->id, &row);
    if (status == LK_NOT_FOUND) {
        action->status_out = LK_NOT_FOUND;
        return LK_OK;
    }
    if (status) {
        return status;
    }
    struct lk_job_standing standing = lk_job_standing(&row, now);
    standing.current = !action->attempt || action->attempt == row.attempts;
    standing.forgotten = lk_job_is_forgotten(
        row.sent, row.sent_at, row.created,
        key_life_of(store, batch->job_batch, row.target), now);
    struct lk_job_step step = lk_job_machine_step(
        (enum lk_job_event)(LK_JOB_EVENT_ACTION_RETRY + action->kind),
        standing);
    action->status_out = action_status(step.outcome);
    if (!action->status_out) {
        status = apply_job_action(store, batch, action, &row, &step, now);
    }
    action->state = row.state;
    return status;
}

/* ---- leases ------------------------------------------------------------- */

/* Lost leases of a target that one batch settles; others are for the next. */
enum { LOST_AT_ONCE = 256 };

#define REASON_LOST "the courier was lost after it had called"

/* The leases of one batch; `want` and the members that depend on it change with
 * each target. */
struct leasing {
    struct lk_sqlite *store;
    struct lk_batch *batch;
    struct lk_job_batch *job_batch;
    const struct lk_job_want *want;
    size_t target; /* in the counts */
    size_t room;
    uint64_t bytes; /* of headers and bodies so far */
    uint64_t now;
    bool more; /* a job of this want is due and was not taken */
};

/* At least one job is leased, however large, so that every job gets its
 * turn. */
static bool is_full(const struct leasing *leasing)
{
    return leasing->job_batch->body_max && leasing->job_batch->job_count &&
           leasing->bytes >= leasing->job_batch->body_max;
}

/* ---- taking one ---------------------------------------------------------- */

/* Adds the job as its row has it to the job batch. */
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

/* Takes a job out of the job batch again; the others keep their order. */
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

/* The operation does not match its request. Nothing makes it so; if it happens,
 * the operation counts. */
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
static enum lk_status take_lease(struct leasing *leasing,
                                 struct lk_job_row *row, struct lk_job *job,
                                 bool was_lost, const struct lk_job_end *lost,
                                 bool *taken)
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
        status = lk_job_apply_event(store, leasing->batch, row, &op,
                                    leasing->now, taken);
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
static enum lk_status take_lease_again(struct leasing *leasing,
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
    status = take_lease(leasing, row, &leasing->job_batch->jobs[at], true,
                        counts ? &lost : NULL, &taken);
    if (!taken) {
        drop_job(leasing->job_batch, at);
    }
    return status;
}

/* The courier that held the lease is gone. What happens then depends on the job
 * and, for a request, on its operation: leased again, left to the gateway, or
 * uncertain. */
static enum lk_status settle_lost_job(struct leasing *leasing,
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
        return take_lease_again(leasing, row, &step);
    }
    if (step.effects & LK_JOB_EFFECT_RESULT) {
        leasing->job_batch->lapsed++;
    }
    lk_job_apply(row, &step, &lost, due, leasing->now);
    return lk_job_write(leasing->store, leasing->batch, row, &step, &lost,
                        leasing->now);
}

/* Reads all rows before it writes, as read_due does. */
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
        status = settle_lost_job(leasing, &rows[i]);
    }
    leasing->more |= count == LOST_AT_ONCE;
    return status;
}

/* ---- what is due --------------------------------------------------------- */

/* Reads all rows before it writes: the writes change what the query finds. */
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

/* All rows were read with their texts; those that cannot be leased are dropped
 * from the job batch. */
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
        status = take_lease(leasing, &row, job, false, NULL, &taken);
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

/* The earliest of all wants decides how long the courier may sleep. */
static void wait_until(struct leasing *leasing, uint64_t due)
{
    uint64_t wait = due == UINT64_MAX    ? UINT64_MAX
                    : due > leasing->now ? due - leasing->now
                                         : 0;

    if (wait < leasing->job_batch->wait_ms) {
        leasing->job_batch->wait_ms = wait;
    }
}

/* A want without room, or of a paused target, does not wait for what is due
 * already: a lease must end first, or the target must be resumed. */
static enum lk_status plan_leases(struct leasing *leasing, bool open)
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

/* One want. Lost leases come first, also of a paused target: what they have
 * left behind has to be settled before anything new is called. */
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
    return status ? status : plan_leases(leasing, open);
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
