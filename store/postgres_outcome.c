/* postgres_outcome.c - from the rows that latchkey.apply returns to what each
 * operation is told, and who is to be woken. */
#include "store/postgres.h"

/* As latchkey.apply says it: somebody else's transaction has the record; its
 * job of that name makes another call. */
enum { VERDICT_AGAIN = -1, VERDICT_CONFLICT = -3 };

void lk_pg_refuse_one(struct lk_op *op, enum lk_status status,
                      const char *error)
{
    lk_op_clear(op);
    op->out = (struct lk_outcome){0};
    op->status = status;
    op->error = error;
}

void lk_pg_refuse(const struct lk_pg_item *items, size_t count,
                  enum lk_status status, const char *error)
{
    for (size_t i = 0; i < count; i++) {
        lk_pg_refuse_one(items[i].op, status, error);
    }
}

/* Columns of latchkey.apply. */
enum {
    AT,
    VERDICT,
    STATE,
    TOKEN,
    ATTEMPT,
    NUMBER,
    DEADLINE,
    NOW,
    REASON,
    CHANGED,
    SETTLES,
    LOCK_ID,
    DECISION_COLUMNS,
};

static void set_times(struct lk_outcome *out, uint64_t deadline)
{
    switch (out->state) {
    case LK_STATE_IN_PROGRESS:
        out->lock_until_ms = deadline;
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        out->since_ms = deadline;
        break;
    default:
        out->expires_ms = deadline;
        break;
    }
}

static enum lk_status add_reason(const PGresult *result, int row,
                                 struct lk_outcome *out)
{
    const struct lk_response none = {0};
    struct lk_buf reason = {0};
    bool lapsed = PQgetisnull(result, row, REASON);
    enum lk_status status =
        lapsed ? latchkey_buf_add_text(&reason, "lock lapsed")
               : lk_pg_unescape(lk_pg_bytes(result, row, REASON), &reason);

    if (!status) {
        out->stored = lk_stored_make(out->token, out->since_ms, &none,
                                     latchkey_buf_slice(&reason));
        status = out->stored ? LK_OK : LK_NOMEM;
    }
    latchkey_buf_free(&reason);
    return status;
}

/*
 * Somebody else's transaction holds the record. A claim is told INFLIGHT if
 * that does not change soon.
 */
static void set_locked(struct lk_op *op, uint64_t now)
{
    op->status = LK_AGAIN;
    op->out = (struct lk_outcome){.now_ms = now};
    if (op->event == LK_EVENT_CLAIM || op->event == LK_EVENT_ACCEPT) {
        op->out.verdict = LK_VERDICT_INFLIGHT;
        op->out.state = LK_STATE_IN_PROGRESS;
        op->out.lock_until_ms = now + 1000;
    }
}

static void set_outcome(const PGresult *result, int row, struct lk_op *op)
{
    int64_t verdict = lk_pg_int(result, row, VERDICT);
    struct lk_outcome out = {
        .verdict = (enum lk_verdict)verdict,
        .state = (enum lk_state)lk_pg_int(result, row, STATE),
        .token = lk_pg_uint(result, row, TOKEN),
        .attempt = lk_pg_uint(result, row, ATTEMPT),
        .number = lk_pg_uint(result, row, NUMBER),
        .now_ms = lk_pg_uint(result, row, NOW),
    };

    if (verdict == VERDICT_AGAIN ||
        (verdict == LK_VERDICT_INFLIGHT &&
         (!out.number || out.state != LK_STATE_IN_PROGRESS))) {
        set_locked(op, out.now_ms);
        return;
    }
    if (verdict == VERDICT_CONFLICT) {
        lk_pg_refuse_one(op, LK_INVALID, LK_JOB_CONFLICT);
        return;
    }
    if (verdict < 0 || verdict > LK_VERDICT_EXISTS) {
        lk_pg_refuse_one(op, LK_INVALID, "the store knows no such event");
        return;
    }
    set_times(&out, lk_pg_uint(result, row, DEADLINE));
    if (out.verdict == LK_VERDICT_ACCEPTED) {
        out.since_ms = lk_pg_uint(result, row, CHANGED); /* also if it runs */
    }
    out.needs_load = out.verdict == LK_VERDICT_REPLAY ||
                     out.verdict == LK_VERDICT_OMITTED ||
                     out.verdict == LK_VERDICT_KEPT;
    op->status = LK_OK;
    if (out.verdict == LK_VERDICT_UNCERTAIN && add_reason(result, row, &out)) {
        out.needs_load = true; /* no memory now: fetched when it is told */
    }
    op->out = out;
}

/* Those who wait here and elsewhere, and those who may come to. */
static void give_hints(struct lk_postgres *store, struct lk_batch *batch,
                       const PGresult *result, int row, const struct lk_op *op)
{
    int64_t lock_id = lk_pg_int(result, row, LOCK_ID);

    if (lk_pg_int(result, row, SETTLES)) {
        if (lk_batch_settle(batch, op->hash)) {
            batch->settle_all = true;
        }
        lk_pg_tell(store, lock_id);
    } else if ((op->event == LK_EVENT_CLAIM || op->event == LK_EVENT_ACCEPT) &&
               (op->out.verdict == LK_VERDICT_NEW ||
                op->out.verdict == LK_VERDICT_ACCEPTED ||
                op->out.verdict == LK_VERDICT_INFLIGHT)) {
        lk_pg_remember(store, lock_id, op->hash,
                       op->out.verdict != LK_VERDICT_NEW);
    }
}

/* It may be told so a second time: a courier that looks in vain is no harm. */
static bool leaves_job(const struct lk_op *op)
{
    return (op->call || op->event == LK_EVENT_RETURN) && !op->status &&
           (op->out.verdict == LK_VERDICT_ACCEPTED ||
            op->out.verdict == LK_VERDICT_DONE);
}

/* Where an operation comes again, those behind it of the same name come again
 * with it: without the lock they have changed nothing, and what is committed
 * is not what they are to find. */
static void keep_order(const struct lk_pg_item *items, size_t count,
                       uint64_t now)
{
    for (size_t i = 1; i < count; i++) {
        struct lk_op *op = items[i].op;
        if (items[i - 1].op->status == LK_AGAIN && !op->status &&
            lk_hash128_equal(items[i - 1].op->hash, op->hash)) {
            lk_op_clear(op);
            set_locked(op, now);
        }
    }
}

void lk_pg_publish(struct lk_postgres *store, struct lk_batch *batch,
                   const struct lk_pg_item *items, size_t count,
                   const PGresult *result)
{
    uint64_t now = 0;
    uint64_t token = 0;
    bool jobs = false;

    lk_pg_refuse(items, count, LK_UNKNOWN, "the store gave no answer");
    pthread_mutex_lock(&store->hints_lock);
    for (int row = 0; row < PQntuples(result); row++) {
        int64_t at = lk_pg_int(result, row, AT);
        if (at < 1 || (size_t)at > count) {
            continue;
        }
        struct lk_op *op = items[at - 1].op;
        op->error = NULL;
        set_outcome(result, row, op);
        give_hints(store, batch, result, row, op);
        jobs |= leaves_job(op);
        now = op->out.now_ms > now ? op->out.now_ms : now;
        token = op->out.token > token ? op->out.token : token;
    }
    keep_order(items, count, now);
    batch->queued |= jobs;
    if (jobs) {
        lk_pg_tell_job(store);
    }
    bool telling = store->telling_count != 0 || store->telling_jobs;
    pthread_mutex_unlock(&store->hints_lock);
    if (telling) {
        lk_pg_keeper_wake(store);
    }
    lk_pg_set_time(store, now);
    uint64_t last = atomic_load(&store->counters.last_token);
    while (token > last && !atomic_compare_exchange_weak(
                               &store->counters.last_token, &last, token)) {
    }
}
