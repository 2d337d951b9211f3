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

enum lk_status lk_job_doubt(struct lk_sqlite *store, struct lk_batch *batch,
                            struct lk_job_row *row,
                            const struct lk_job_end *end, uint64_t now)
{
    struct lk_op op = {.event = LK_EVENT_DOUBT, .reason = end->reason};
    bool done;

    if (!op.reason.len) {
        op.reason = LK_SLICE(REASON_UNKNOWN);
    }
    row->state = LK_JOB_UNCERTAIN;
    enum lk_status status = lk_job_end(store, row, end, now);
    if (!status) {
        status = lk_job_note(store, row, end, true, now);
    }
    return status || !row->request
               ? status
               : lk_job_tell(store, batch, row, &op, now, &done);
}

static enum lk_status deliver(struct lk_sqlite *store, struct lk_job_row *row,
                              const struct lk_job_end *end, uint64_t now)
{
    enum lk_status status = LK_OK;

    row->state = LK_JOB_DELIVERED;
    row->sent = true;
    if (end->answer.headers.len || end->answer.body.len) {
        status = lk_job_note(store, row, end, true, now);
    }
    if (!status) {
        status = lk_job_end(store, row, end, now);
    }
    return status ? status : lk_job_release(store, row);
}

static enum lk_status give_up(struct lk_sqlite *store, struct lk_job_row *row,
                              const struct lk_job_end *end, uint64_t now)
{
    row->state = LK_JOB_DEAD;
    enum lk_status status = lk_job_end(store, row, end, now);
    return status ? status : lk_job_note(store, row, end, true, now);
}

/* A request that is given up and was never sent: its operation is completed
 * with the answer that the courier brings. */
static enum lk_status give_up_request(struct lk_sqlite *store,
                                      struct lk_batch *batch,
                                      struct lk_job_row *row,
                                      const struct lk_job_end *end,
                                      uint64_t now)
{
    struct lk_op op = {.event = LK_EVENT_COMPLETE, .response = end->answer};
    bool done;

    if (!op.response.status) {
        op.response.status = 503;
    }
    row->state = LK_JOB_DROPPED;
    enum lk_status status = lk_job_end(store, row, end, now);
    if (!status) {
        status = lk_job_note(store, row, end, true, now);
    }
    if (!status) {
        status = lk_job_release(store, row);
    }
    return status ? status : lk_job_tell(store, batch, row, &op, now, &done);
}

/* Waits again; what was never called keeps the result of the attempt before. */
static enum lk_status put_back(struct lk_sqlite *store, struct lk_batch *batch,
                               struct lk_job_row *row,
                               const struct lk_job_end *end, uint64_t now)
{
    struct lk_op op = {.event = LK_EVENT_RETURN, .by_courier = true};
    bool done = true;
    enum lk_status status = LK_OK;

    if (row->request) {
        status = lk_job_tell(store, batch, row, &op, now, &done);
    }
    if (status || !done) {
        return status; /* the lease runs out, and that finds out what is */
    }
    row->state = LK_JOB_WAITING;
    row->due = now + end->delay_ms;
    row->called = false;
    if (end->end == LK_END_RETURN) {
        row->forgiven++;
        return lk_job_move(store, row, now);
    }
    status = lk_job_note(store, row, end, false, now);
    return status ? status : lk_job_end(store, row, end, now);
}

/* A gateway that says it has completed has done so, and with that ended the
 * job. If the store has not seen it, nobody knows. */
static enum lk_status doubt_delivery(struct lk_sqlite *store,
                                     struct lk_batch *batch,
                                     struct lk_job_row *row, uint64_t now)
{
    struct lk_job_end end = {
        .reason = LK_SLICE("the gateway says that it is completed, "
                           "and the store has not seen it"),
        .left = true,
    };

    return lk_job_doubt(store, batch, row, &end, now);
}

/*
 * The fence. Where the gateway has put a request back already, and it has not
 * been leased since, the courier still says how long it waits, or that it is
 * given up; that it does not know what happened counts no more.
 */
static bool holds(const struct lk_job_row *row, const struct lk_job_end *end)
{
    bool returned = row->request && row->state == LK_JOB_WAITING &&
                    (end->end == LK_END_RETRY || end->end == LK_END_DEAD);

    return row->attempts == end->attempt &&
           (row->state == LK_JOB_LEASED || returned);
}

/* What was put back and is given up is taken once more, to be ended. */
static enum lk_status take_back(struct lk_sqlite *store, struct lk_batch *batch,
                                struct lk_job_row *row, uint64_t now)
{
    struct lk_op op = {.event = LK_EVENT_LEASE, .lock_ms = 1};
    bool done;
    enum lk_status status = lk_job_tell(store, batch, row, &op, now, &done);

    if (!status && done) {
        row->state = LK_JOB_LEASED;
    }
    return status;
}

static enum lk_status end_lease(struct lk_sqlite *store, struct lk_batch *batch,
                                struct lk_job_end *end, uint64_t now)
{
    struct lk_job_row row = {0};
    enum lk_status status = lk_job_read(store, end->id, &row);

    end->stale = status || !holds(&row, end);
    if (!end->stale && end->end == LK_END_DEAD && row.state == LK_JOB_WAITING) {
        status = take_back(store, batch, &row, now);
        end->stale = status || row.state == LK_JOB_WAITING;
    }
    if (end->stale) {
        return status == LK_NOT_FOUND ? LK_OK : status;
    }
    /* The gateway never took it, though it may have been sent there. */
    bool untaken = row.request && !row.called;
    row.sent |= end->left && !untaken;
    row.doubt |= end->doubt;
    switch (end->end) {
    case LK_END_DELIVERED:
        return row.request ? doubt_delivery(store, batch, &row, now)
                           : deliver(store, &row, end, now);
    case LK_END_RETRY:
    case LK_END_RETURN:
        return put_back(store, batch, &row, end, now);
    case LK_END_UNCERTAIN:
        return untaken ? put_back(store, batch, &row, end, now)
                       : lk_job_doubt(store, batch, &row, end, now);
    case LK_END_DEAD:
        return !row.request ? give_up(store, &row, end, now)
               : row.sent   ? lk_job_doubt(store, batch, &row, end, now)
                            : give_up_request(store, batch, &row, end, now);
    }
    return LK_INVALID;
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

    mark->stale =
        status || row.state != LK_JOB_LEASED || row.attempts != mark->attempt;
    if (mark->stale) {
        return status == LK_NOT_FOUND ? LK_OK : status;
    }
    if (row.request) {
        status = lk_job_tell(store, batch, &row, &op, now, &done);
    }
    mark->stale = !done;
    if (status || mark->stale) {
        return status;
    }
    row.called |= mark->called;
    row.due = now + mark->lease_ms;
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
