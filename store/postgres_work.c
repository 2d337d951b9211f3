/*
 * postgres_work.c - the courier's part of a batch: one transaction of what
 * store/sql/007_work.sql and 008_lease.sql offer, and what came of it.
 */
#include "store/postgres_job.h"

#include <string.h>

enum {
    TRIES = 6,        /* of a transaction that met another one */
    BUSY_MS = 20,     /* what is due, and somebody else's at the moment, */
    BUSY_MOST = 160,  /* or for longer: an app's transaction may last */
    ARRAYS = 32,      /* parameters of all statements together */
    MOST_JOBS = 4096, /* leased for one want */
    FLAG_DOUBT = 65536,
};

/* In the order in which they are done. */
enum { ENDS, MARKS, ORDERS, LEASE, PARTS };

const struct lk_pg_part lk_pg_job_batch_parts[] = {
    [ENDS] = {.name = "lk_ends",
              .sql = "SELECT * FROM latchkey.end_jobs($1, $2, $3, $4, $5, $6, "
                     "$7, $8, $9, $10)"},
    [MARKS] = {.name = "lk_marks",
               .sql = "SELECT * FROM latchkey.mark_jobs($1, $2, $3, $4)"},
    [ORDERS] = {.name = "lk_orders",
                .sql = "SELECT * FROM latchkey.order_jobs($1, $2, $3, $4, $5, "
                       "$6, $7, $8, $9, $10)"},
    [LEASE] = {.name = "lk_lease",
               .sql = "SELECT * FROM latchkey.lease_jobs($1, $2, $3, $4, $5)"},
};

const size_t lk_pg_job_batch_part_count = PARTS;

/* One work, its parameters, and its statements as far as there is something
 * to do. */
struct job_run {
    struct lk_postgres *store;
    struct lk_pg_lane *lane;
    struct lk_job_batch *job_batch;
    struct lk_batch *batch;
    struct lk_pg_array arrays[ARRAYS];
    size_t array_count;
    struct lk_pg_params params[PARTS];
    struct lk_pg_part parts[PARTS];
    PGresult **results[PARTS]; /* of those that were sent; else NULL */
    size_t part_count;
};

/* ---- parameters ------------------------------------------------------- */

static struct lk_pg_array *add_array(struct job_run *run, unsigned type,
                                     size_t count, enum lk_status *status)
{
    struct lk_pg_array *array = &run->arrays[run->array_count++];

    if (!*status) {
        *status = lk_pg_array_start(array, type, count);
    }
    return array;
}

/* One parameter of a statement: the value of each i. */
#define COLUMN(run, part, type, count, add, value)                             \
    do {                                                                       \
        struct lk_pg_array *array_ = add_array(run, type, count, &status);     \
        for (size_t i = 0; i < (count) && !status; i++) {                      \
            status = add(array_, value);                                       \
        }                                                                      \
        lk_pg_add_array(&(run)->params[part], array_);                         \
    } while (0)

static void add_part(struct job_run *run, int part)
{
    struct lk_pg_part *at = &run->parts[run->part_count++];

    *at = lk_pg_job_batch_parts[part];
    at->params = &run->params[part];
    run->results[part] = &at->result;
}

static enum lk_status add_ends(struct job_run *run)
{
    const struct lk_job_end *ends = run->job_batch->ends;
    size_t count = run->job_batch->end_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_part(run, ENDS);
    COLUMN(run, ENDS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)ends[i].id);
    COLUMN(run, ENDS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           ends[i].attempt);
    COLUMN(run, ENDS, LK_PG_INT4_ARRAY, count, lk_pg_array_int, ends[i].end);
    COLUMN(run, ENDS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)ends[i].delay_ms);
    COLUMN(run, ENDS, LK_PG_INT4_ARRAY, count, lk_pg_array_int, ends[i].status);
    COLUMN(run, ENDS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           ends[i].provider_id);
    COLUMN(run, ENDS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           ends[i].reason);
    COLUMN(run, ENDS, LK_PG_BYTEA_ARRAY, count, lk_pg_array_bytes,
           ends[i].answer.headers);
    COLUMN(run, ENDS, LK_PG_BYTEA_ARRAY, count, lk_pg_array_bytes,
           ends[i].answer.body);
    COLUMN(run, ENDS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           ends[i].left + 2 * (int64_t)ends[i].answer.status +
               FLAG_DOUBT * ends[i].doubt);
    return status;
}

static enum lk_status add_marks(struct job_run *run)
{
    const struct lk_job_mark *marks = run->job_batch->marks;
    size_t count = run->job_batch->mark_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_part(run, MARKS);
    COLUMN(run, MARKS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)marks[i].id);
    COLUMN(run, MARKS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           marks[i].attempt);
    COLUMN(run, MARKS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)marks[i].lease_ms);
    COLUMN(run, MARKS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           marks[i].called);
    return status;
}

static enum lk_status add_orders(struct job_run *run)
{
    const struct lk_job_action *orders = run->job_batch->orders;
    const struct lk_key_life *lives = run->job_batch->lives;
    size_t count = run->job_batch->order_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_part(run, ORDERS);
    COLUMN(run, ORDERS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           orders[i].order);
    COLUMN(run, ORDERS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)orders[i].id);
    COLUMN(run, ORDERS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           orders[i].attempt);
    COLUMN(run, ORDERS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           orders[i].target);
    COLUMN(run, ORDERS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           orders[i].provider_id);
    COLUMN(run, ORDERS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           orders[i].status);
    COLUMN(run, ORDERS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           orders[i].who);
    COLUMN(run, ORDERS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           orders[i].why);
    COLUMN(run, ORDERS, LK_PG_TEXT_ARRAY, run->job_batch->life_count,
           lk_pg_array_text, lives[i].target);
    COLUMN(run, ORDERS, LK_PG_INT8_ARRAY, run->job_batch->life_count,
           lk_pg_array_int, (int64_t)lives[i].ms);
    return status;
}

/* Requests take a lock each, and the server has not room for any number. */
static int64_t most_of(struct job_run *run, const struct lk_job_want *want)
{
    bool request =
        latchkey_slice_equal(want->target, LK_SLICE(LK_TARGET_GATEWAY));
    size_t most =
        request ? atomic_load(&run->store->lock_share) : (size_t)MOST_JOBS;

    return (int64_t)(want->limit < most ? want->limit : most);
}

static enum lk_status add_wants(struct job_run *run)
{
    const struct lk_job_batch *job_batch = run->job_batch;
    const struct lk_job_want *wants = job_batch->wants;
    size_t count = job_batch->want_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_part(run, LEASE);
    COLUMN(run, LEASE, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           wants[i].target);
    COLUMN(run, LEASE, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           most_of(run, &wants[i]));
    COLUMN(run, LEASE, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           wants[i].honours);
    lk_pg_add_int(&run->params[LEASE], (int64_t)job_batch->lease_ms);
    lk_pg_add_int(&run->params[LEASE],
                  job_batch->body_max && job_batch->body_max < INT64_MAX
                      ? (int64_t)job_batch->body_max
                      : INT64_MAX);
    return status;
}

/* ---- what came of it -------------------------------------------------- */

static const PGresult *result_of(const struct job_run *run, int part)
{
    return run->results[part] ? *run->results[part] : NULL;
}

static int rows_of(const struct job_run *run, int part)
{
    return run->results[part] ? PQntuples(*run->results[part]) : 0;
}

/* Rows of end_jobs and mark_jobs: those of which there is something to say. */
enum { FENCE_AT, FENCE_OUTCOME, FENCE_SETTLED };
enum { OUTCOME_STALE = 1, OUTCOME_AGAIN = 2 };

static void take_settled(struct lk_postgres *store, int64_t lock_id)
{
    lk_pg_hear(store, lock_id);
    pthread_mutex_lock(&store->hints_lock);
    lk_pg_tell(store, lock_id);
    pthread_mutex_unlock(&store->hints_lock);
    lk_pg_keeper_wake(store);
}

static void take_ends(struct job_run *run)
{
    struct lk_job_batch *job_batch = run->job_batch;
    const PGresult *result = result_of(run, ENDS);

    for (size_t i = 0; i < job_batch->end_count; i++) {
        job_batch->ends[i].stale = job_batch->ends[i].again = false;
    }
    for (int row = 0; row < rows_of(run, ENDS); row++) {
        uint64_t at = lk_pg_uint(result, row, FENCE_AT);
        int64_t outcome = lk_pg_int(result, row, FENCE_OUTCOME);
        if (at && at <= job_batch->end_count) {
            job_batch->ends[at - 1].stale = outcome == OUTCOME_STALE;
            job_batch->ends[at - 1].again = outcome == OUTCOME_AGAIN;
        }
        if (!PQgetisnull(result, row, FENCE_SETTLED)) {
            take_settled(run->store, lk_pg_int(result, row, FENCE_SETTLED));
        }
    }
}

static void take_marks(struct job_run *run)
{
    struct lk_job_batch *job_batch = run->job_batch;
    const PGresult *result = result_of(run, MARKS);

    for (size_t i = 0; i < job_batch->mark_count; i++) {
        job_batch->marks[i].stale = job_batch->marks[i].again = false;
    }
    for (int row = 0; row < rows_of(run, MARKS); row++) {
        uint64_t at = lk_pg_uint(result, row, FENCE_AT);
        int64_t outcome = lk_pg_int(result, row, FENCE_OUTCOME);
        if (at && at <= job_batch->mark_count) {
            job_batch->marks[at - 1].stale = outcome == OUTCOME_STALE;
            job_batch->marks[at - 1].again = outcome == OUTCOME_AGAIN;
        }
    }
}

static bool makes_due(const struct lk_job_action *order)
{
    return !order->status_out && (order->order == LK_ACTION_RETRY ||
                                  order->order == LK_ACTION_AGAIN ||
                                  order->order == LK_ACTION_RESUME);
}

static void take_orders(struct job_run *run)
{
    static const enum lk_status statuses[] = {LK_OK, LK_NOT_FOUND, LK_INVALID,
                                              LK_BUSY, LK_DENIED};
    struct lk_job_batch *job_batch = run->job_batch;
    const PGresult *result = result_of(run, ORDERS);

    for (int row = 0; row < rows_of(run, ORDERS); row++) {
        uint64_t at = lk_pg_uint(result, row, 0);
        uint64_t outcome = lk_pg_uint(result, row, 1);
        if (at && at <= job_batch->order_count && outcome < 5) {
            struct lk_job_action *order = &job_batch->orders[at - 1];
            order->status_out = statuses[outcome];
            order->state = (enum lk_job_state)lk_pg_uint(result, row, 2);
            run->batch->queued |= makes_due(order);
        }
    }
    if (run->batch->queued) {
        pthread_mutex_lock(&run->store->hints_lock);
        lk_pg_tell_job(run->store);
        pthread_mutex_unlock(&run->store->hints_lock);
        lk_pg_keeper_wake(run->store);
    }
}

/* What the rows of latchkey.lease are. */
enum { KIND_LEASE, KIND_SETTLED, KIND_LAST };

/* What there is no memory for is leased to nobody, and runs out. */
static void take_lease(struct job_run *run, const PGresult *result, int row)
{
    struct lk_job_batch *job_batch = run->job_batch;
    struct lk_job *job = lk_job_batch_add(job_batch);
    atomic_uint_fast64_t *highest = &run->store->counters.last_token;
    uint64_t last = atomic_load(highest);

    if (!job) {
        return;
    }
    if (lk_pg_job(result, row, false, job)) {
        lk_job_free(job);
        job_batch->job_count--;
        return;
    }
    while (job->token > last &&
           !atomic_compare_exchange_weak(highest, &last, job->token)) {
    }
}

static void take_last(struct job_run *run, const PGresult *result, int row)
{
    struct lk_job_batch *job_batch = run->job_batch;
    uint64_t busy_ms = run->lane->busy_ms;

    job_batch->lapsed = lk_pg_uint(result, row, LK_PG_J_ATTEMPTS);
    run->lane->busy_ms = 0;
    if (PQgetisnull(result, row, LK_PG_J_DUE)) {
        return;
    }
    job_batch->wait_ms = lk_pg_uint(result, row, LK_PG_J_DUE);
    if (job_batch->wait_ms < BUSY_MS && !job_batch->job_count) {
        /* Somebody else has what is due. */
        busy_ms = busy_ms ? 2 * busy_ms : BUSY_MS;
        run->lane->busy_ms = busy_ms < BUSY_MOST ? busy_ms : BUSY_MOST;
        job_batch->wait_ms = run->lane->busy_ms;
    }
}

static void take_leases(struct job_run *run)
{
    const PGresult *result = result_of(run, LEASE);

    for (int row = 0; row < rows_of(run, LEASE); row++) {
        switch (lk_pg_int(result, row, LK_PG_J_KIND)) {
        case KIND_LEASE:
            take_lease(run, result, row);
            break;
        case KIND_SETTLED:
            take_settled(run->store, lk_pg_int(result, row, LK_PG_J_NUMBER));
            break;
        default:
            take_last(run, result, row);
            break;
        }
    }
    if (run->job_batch->job_count) {
        lk_pg_set_time(run->store, run->job_batch->jobs[0].now_ms);
    }
}

/* ---- the transaction -------------------------------------------------- */

static void fail(struct job_run *run, enum lk_status status, const char *error)
{
    run->job_batch->status = status;
    run->job_batch->error = error;
}

static bool is_retried(struct job_run *run, unsigned *tries)
{
    if (!lk_pg_is_passing(&run->lane->conn) || ++*tries >= TRIES) {
        return false;
    }
    lk_pg_sleep_some(run->lane, 2u << *tries);
    return true;
}

static enum lk_pg_fate transact(struct job_run *run, uint64_t deadline_ns)
{
    struct lk_pg_conn *conn = &run->lane->conn;
    enum lk_pg_fate fate = LK_PG_NOT_SENT;
    unsigned tries = 0;

    do {
        if (lk_pg_ready(conn, deadline_ns)) {
            return LK_PG_NOT_SENT;
        }
        fate = lk_pg_pipeline(conn, run->parts, run->part_count, deadline_ns);
    } while (fate == LK_PG_FAILED && lk_pg_clock_ns() < deadline_ns &&
             is_retried(run, &tries));
    return fate;
}

/* One of the values is what the server cannot take (classes 22 and 23): the
 * courier then gives smaller pieces, so that one does not keep the others. */
static bool is_data_fault(const struct lk_pg_conn *conn)
{
    return !strncmp(conn->sqlstate, "22", 2) ||
           !strncmp(conn->sqlstate, "23", 2);
}

static void perform(struct job_run *run, uint64_t deadline_ns)
{
    struct lk_pg_conn *conn = &run->lane->conn;

    switch (transact(run, deadline_ns)) {
    case LK_PG_DONE:
        fail(run, LK_OK, NULL);
        take_ends(run);
        take_marks(run);
        take_orders(run);
        take_leases(run);
        lk_job_batch_fault_points(run->job_batch);
        break;
    case LK_PG_DOUBT:
        conn->retry_ns = 0;
        fail(run, LK_UNKNOWN,
             "the connection to the database was lost while committing");
        break;
    case LK_PG_NOT_SENT:
        fail(run, LK_UNAVAILABLE, "the database is out of reach");
        break;
    case LK_PG_FAILED:
        lk_pg_log(run->store, LK_PG_ERROR,
                  "the database refused the courier's work: %s (%s)",
                  conn->message, conn->sqlstate);
        lk_pg_look_elsewhere(conn);
        fail(run, is_data_fault(conn) ? LK_INVALID : LK_UNAVAILABLE,
             "the database refused it; see the daemon's log");
        break;
    }
}

void lk_pg_job_batch(struct lk_postgres *store, struct lk_pg_lane *lane,
                     struct lk_batch *batch, uint64_t deadline_ns)
{
    struct lk_job_batch *job_batch = batch->job_batch;
    struct job_run run = {
        .store = store, .lane = lane, .job_batch = job_batch, .batch = batch};
    enum lk_status status = add_ends(&run);

    job_batch->wait_ms = UINT64_MAX;
    job_batch->lapsed = 0;
    if (!status) {
        status = add_marks(&run);
    }
    if (!status) {
        status = add_orders(&run);
    }
    if (!status) {
        status = add_wants(&run);
    }
    if (status) {
        fail(&run, LK_UNAVAILABLE, "out of memory");
    } else if (!run.part_count) {
        fail(&run, LK_OK, NULL);
    } else {
        perform(&run, deadline_ns);
    }
    for (size_t i = 0; i < run.part_count; i++) {
        PQclear(run.parts[i].result);
    }
    for (size_t i = 0; i < run.array_count; i++) {
        latchkey_buf_free(&run.arrays[i].bytes);
    }
}
