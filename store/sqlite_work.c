/*
 * sqlite_work.c - the courier's part of a batch: how leases end and go on.
 *
 * The invariant: an end or a mark counts for the lease that it names, known by
 * the job's id and the number of the attempt, and only while the job is
 * leased. Whoever leases counts the attempt, so a courier that was overtaken
 * changes nothing. What comes out of a work counts only after the commit.
 */
#include "store/sqlite.h"

#define REASON_UNKNOWN "the courier does not know what became of it"

enum lk_status lk_job_tell(struct lk_sqlite *store, struct lk_batch *batch,
                           const struct lk_job_row *row, struct lk_op *op,
                           uint64_t now, bool *done)
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
static enum lk_status tell_operation(struct lk_sqlite *store,
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
        op.response = end->answer;
        op.response.status = op.response.status ? op.response.status : 503;
    } else if (event == LK_EVENT_LEASE) {
        op.lock_ms = 1; /* to be ended at once */
    }
    return lk_job_tell(store, batch, row, &op, now, done);
}

/* The result of the attempt: in the job, and in the history with the whole
 * response, or cut short if the job goes on. */
static enum lk_status write_result(struct lk_sqlite *store,
                                   struct lk_job_row *row,
                                   const struct lk_job_end *end,
                                   unsigned effects, uint64_t now)
{
    bool goes_on = effects & LK_JOB_EFFECT_HISTORY;
    bool empty = !end->answer.headers.len && !end->answer.body.len;
    enum lk_status status = lk_job_end(store, row, end, now);

    return status || (row->state == LK_JOB_DELIVERED && empty)
               ? status
               : lk_job_note(store, row, end, !goes_on, now);
}

enum lk_status lk_job_write(struct lk_sqlite *store, struct lk_batch *batch,
                            struct lk_job_row *row,
                            const struct lk_job_step *step,
                            const struct lk_job_end *end, uint64_t now)
{
    bool done;
    enum lk_status status =
        step->effects & LK_JOB_EFFECT_RESULT
            ? write_result(store, row, end, step->effects, now)
            : lk_job_move(store, row, now);

    if (!status && lk_job_is_finished(row->state)) {
        status = lk_job_release(store, row);
    }
    return status || step->tells == LK_JOB_TELLS_NOTHING ||
                   step->tells == LK_EVENT_RETURN /* told before */
               ? status
               : tell_operation(store, batch, row, end,
                                (enum lk_event)step->tells, now, &done);
}

_Static_assert(LK_JOB_EVENT_END_DELIVERED + LK_END_DEAD ==
                   LK_JOB_EVENT_END_DEAD,
               "enum lk_end has the order of the events");

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
        status =
            tell_operation(store, batch, &row, end, LK_EVENT_LEASE, now, &done);
        end->stale = status || !done;
    } else if (step.tells == LK_EVENT_RETURN) {
        /* If it refuses, the lease runs out, and that finds out what is. */
        status = tell_operation(store, batch, &row, end, LK_EVENT_RETURN, now,
                                &done);
    }
    if (status || !done) {
        return status;
    }
    lk_job_apply(&row, &step, end, now + end->delay_ms, now);
    return lk_job_write(store, batch, &row, &step,
                        step.effects & LK_JOB_EFFECT_UNSEEN ? &unseen : end,
                        now);
}

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
        status = lk_job_tell(store, batch, &row, &op, now, &done);
    }
    mark->stale = !done;
    if (status || mark->stale) {
        return status;
    }
    lk_job_apply(&row, &step, NULL, now + mark->lease_ms, now);
    row.called |= mark->called; /* LK_JOB_EFFECT_CALLS */
    return lk_job_move(store, &row, now);
}

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
    for (size_t i = 0; i < job_batch->order_count && !status; i++) {
        status = lk_job_action(store, batch, &job_batch->orders[i], now);
    }
    return status ? status : lk_job_lease(store, batch, now);
}
