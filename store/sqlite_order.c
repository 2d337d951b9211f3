/*
 * sqlite_order.c - what operators, and proof, do to jobs and targets; each
 * with a line in the audit log, in the same transaction.
 */
#include "store/sqlite.h"

#include <stdio.h>

/* What each action is called in the audit log. */
static const char *const actions[] = {
    [LK_ACTION_RETRY] = "job retry",
    [LK_ACTION_DROP] = "job drop",
    [LK_ACTION_DELIVERED] = "job delivered",
    [LK_ACTION_AGAIN] = "job again",
    [LK_ACTION_PAUSE] = "target pause",
    [LK_ACTION_RESUME] = "target resume",
};

/* With the job's id where other entries have a token. */
static enum lk_status audit_job(struct lk_sqlite *store,
                                const struct lk_job_action *order,
                                const struct lk_job_row *row, uint64_t now)
{
    sqlite3_stmt *name = store->statements[LK_STATEMENT_OPERATION];
    struct lk_audit_entry entry = {
        .at_ms = now,
        .who = order->who,
        .why = order->why,
        .action = latchkey_slice(actions[order->order]),
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

static enum lk_status audit_target(struct lk_sqlite *store,
                                   const struct lk_job_action *order,
                                   uint64_t now)
{
    char action[LK_TARGET_NAME_MAX + 32];
    int len = snprintf(action, sizeof(action), "%s %.*s", actions[order->order],
                       (int)order->target.len, order->target.data);
    struct lk_audit_entry entry = {
        .at_ms = now,
        .who = order->who,
        .why = order->why,
        .action = {action, (size_t)len},
    };

    return lk_sqlite_audit_row(store, &entry);
}

static enum lk_status write_pause(struct lk_sqlite *store,
                                  const struct lk_job_action *order,
                                  uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_PAUSE];

    lk_bind_text(statement, 1, order->target);
    sqlite3_bind_int64(statement, 2, (int64_t)now);
    lk_bind_text(statement, 3, order->who);
    lk_bind_text(statement, 4, order->why);
    return lk_sqlite_run(store, LK_STATEMENT_PAUSE);
}

static enum lk_status order_target(struct lk_sqlite *store,
                                   struct lk_batch *batch,
                                   struct lk_job_action *order, uint64_t now)
{
    bool pause = order->order == LK_ACTION_PAUSE;
    size_t at;
    enum lk_status status = lk_sqlite_begin(store);

    if (!order->target.len || order->target.len > LK_TARGET_NAME_MAX) {
        order->status_out = LK_INVALID;
        return status;
    }
    if (!status) {
        status = lk_counts_find(store, order->target, &at);
    }
    if (status) {
        return status;
    }
    store->counts.targets[at].paused = pause;
    store->counts.changed = true;
    batch->queued |= !pause;
    if (pause) {
        status = write_pause(store, order, now);
    } else {
        lk_bind_text(store->statements[LK_STATEMENT_RESUME], 1, order->target);
        status = lk_sqlite_run(store, LK_STATEMENT_RESUME);
    }
    return status ? status : audit_target(store, order, now);
}

static uint64_t life_of(const struct lk_sqlite *store,
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
static enum lk_status status_of(enum lk_job_outcome outcome)
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

static enum lk_status carry_out(struct lk_sqlite *store, struct lk_batch *batch,
                                const struct lk_job_action *order,
                                struct lk_job_row *row,
                                const struct lk_job_step *step, uint64_t now)
{
    struct lk_job_end end = {
        .status = order->status,
        .provider_id = order->provider_id,
    };

    lk_job_apply(row, step, &end, now, now);
    enum lk_status status = step->effects & LK_JOB_EFFECT_RESULT
                                ? lk_job_end(store, row, &end, now)
                                : lk_job_move(store, row, now);
    batch->queued |= row->state == LK_JOB_WAITING;
    if (!status && lk_job_is_finished(row->state)) {
        status = lk_job_release(store, row);
    }
    return status ? status : audit_job(store, order, row, now);
}

_Static_assert(LK_JOB_EVENT_ACTION_RETRY + LK_ACTION_AGAIN ==
                   LK_JOB_EVENT_ACTION_AGAIN,
               "enum lk_job_action_kind has the order of the events");

enum lk_status lk_job_action(struct lk_sqlite *store, struct lk_batch *batch,
                             struct lk_job_action *order, uint64_t now)
{
    struct lk_job_row row = {0};

    order->status_out = LK_OK;
    if (order->order == LK_ACTION_PAUSE || order->order == LK_ACTION_RESUME) {
        return order_target(store, batch, order, now);
    }
    enum lk_status status = lk_job_read(store, order->id, &row);
    if (status == LK_NOT_FOUND) {
        order->status_out = LK_NOT_FOUND;
        return LK_OK;
    }
    if (status) {
        return status;
    }
    struct lk_job_standing standing = lk_job_standing(&row, now);
    standing.current = !order->attempt || order->attempt == row.attempts;
    standing.forgotten =
        lk_job_is_forgotten(row.sent, row.sent_at, row.created,
                            life_of(store, batch->job_batch, row.target), now);
    struct lk_job_step step = lk_job_machine_step(
        (enum lk_job_event)(LK_JOB_EVENT_ACTION_RETRY + order->order),
        standing);
    order->status_out = status_of(step.outcome);
    if (!order->status_out) {
        status = carry_out(store, batch, order, &row, &step, now);
    }
    order->state = row.state;
    return status;
}
