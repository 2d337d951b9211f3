/*
 * postgres_transaction.c - one transaction: the parameters of latchkey.apply,
 * one pipeline of BEGIN, the statements and COMMIT, and the outcome of each op
 * from the rows that come back.
 *
 * What is known when something fails: an error that the server reports before
 * it confirms the COMMIT means that nothing happened, if the session lives on.
 * If the connection is cut once COMMIT may have been sent, the outcome is
 * unknown, whatever was reported before: a pooler between us and the server
 * may have reported it.
 */
#include "store/postgres.h"
#include "store/sql_codes.h"

#include <stdio.h>
#include <string.h>

/* Parameters of latchkey.apply; the order is that of enum lk_pg_column. */
static const unsigned column_types[LK_PG_COLUMNS] = {
    [LK_PG_EVENT] = LK_PG_INT2_ARRAY,       [LK_PG_TENANT] = LK_PG_TEXT_ARRAY,
    [LK_PG_SCOPE] = LK_PG_TEXT_ARRAY,       [LK_PG_KEY] = LK_PG_TEXT_ARRAY,
    [LK_PG_FINGERPRINT] = LK_PG_TEXT_ARRAY, [LK_PG_OWNER] = LK_PG_TEXT_ARRAY,
    [LK_PG_TTL] = LK_PG_INT8_ARRAY,         [LK_PG_LOCK] = LK_PG_INT8_ARRAY,
    [LK_PG_FLAGS] = LK_PG_INT4_ARRAY,       [LK_PG_TOKEN] = LK_PG_INT8_ARRAY,
    [LK_PG_STATUS] = LK_PG_INT4_ARRAY,      [LK_PG_HEADERS] = LK_PG_BYTEA_ARRAY,
    [LK_PG_BODY] = LK_PG_BYTEA_ARRAY,       [LK_PG_REASON] = LK_PG_TEXT_ARRAY,
    [LK_PG_WHO] = LK_PG_TEXT_ARRAY,         [LK_PG_WHY] = LK_PG_TEXT_ARRAY,
    [LK_PG_JOB] = LK_PG_TEXT_ARRAY,         [LK_PG_TARGET] = LK_PG_TEXT_ARRAY,
    [LK_PG_METHOD] = LK_PG_TEXT_ARRAY,      [LK_PG_PATH] = LK_PG_TEXT_ARRAY,
    [LK_PG_DELAY] = LK_PG_INT8_ARRAY,
};

/* What is prepared on every lane. */
static const struct lk_pg_part statements[] = {
    {.name = "lk_begin",
     .sql = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"},
    {.name = "lk_apply",
     .sql = "SELECT * FROM latchkey.apply($1, $2, $3, $4, $5, $6, $7, $8, $9, "
            "$10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, "
            "$22)"},
    {.name = "lk_commit", .sql = "COMMIT"},
};

enum { BEGIN, APPLY, COMMIT, STATEMENTS };

/* ---- parameters ------------------------------------------------------- */

static bool has_response(const struct lk_op *op)
{
    return op->event == LK_EVENT_COMPLETE ||
           op->event == LK_EVENT_RESOLVE_COMPLETED;
}

/* LK_SQL_FLAG_*: what latchkey.apply reads from one integer. */
static int flags_of(const struct lk_pg_item *item)
{
    const struct lk_op *op = item->op;
    bool resolves = op->event == LK_EVENT_RESOLVE_COMPLETED ||
                    op->event == LK_EVENT_RESOLVE_RELEASED;

    return (op->reexecute ? LK_SQL_FLAG_REEXECUTE : 0) |
           (op->no_new ? LK_SQL_FLAG_NO_NEW : 0) |
           (op->owner.len ? LK_SQL_FLAG_OWNER : 0) |
           (op->call && op->call->repeatable ? LK_SQL_FLAG_REPEATABLE : 0) |
           (resolves && op->token ? LK_SQL_FLAG_PROOF : 0) |
           (op->unsent ? LK_SQL_FLAG_UNSENT : 0) |
           (op->running ? LK_SQL_FLAG_RUNNING : 0) |
           (item->again ? LK_SQL_FLAG_AGAIN : 0);
}

/* The value of an integer column. Defaults of TTL and lock are filled in here,
 * so that the server needs no configuration. */
static int64_t number_of(const struct lk_store_config *config,
                         const struct lk_pg_item *item,
                         enum lk_pg_column column)
{
    const struct lk_op *op = item->op;
    bool claim = op->event == LK_EVENT_CLAIM;
    bool begins = claim || op->event == LK_EVENT_ACCEPT;

    switch (column) {
    case LK_PG_EVENT:
        return (int64_t)op->event;
    case LK_PG_TTL:
        return (int64_t)(begins && !op->ttl_ms ? config->default_ttl_ms
                                               : op->ttl_ms);
    case LK_PG_LOCK:
        return (int64_t)(claim && !op->lock_ms ? config->default_lock_ms
                                               : op->lock_ms);
    case LK_PG_FLAGS:
        return flags_of(item);
    case LK_PG_TOKEN:
        return (int64_t)op->token;
    case LK_PG_DELAY:
        return op->call ? (int64_t)op->call->delay_ms : 0;
    default:
        return (int64_t)op->response.status;
    }
}

/* The value of a text column; the columns of a job are empty without a call. */
static struct lk_slice text_of(const struct lk_pg_item *item,
                               enum lk_pg_column column)
{
    static const struct lk_call none;
    const struct lk_call *call = item->op->call ? item->op->call : &none;

    switch (column) {
    case LK_PG_JOB:
        return call->name;
    case LK_PG_TARGET:
        return call->target;
    case LK_PG_METHOD:
        return call->method;
    case LK_PG_PATH:
        return call->path;
    case LK_PG_TENANT:
        return item->name.tenant;
    case LK_PG_SCOPE:
        return item->name.scope;
    case LK_PG_KEY:
        return item->name.key;
    case LK_PG_FINGERPRINT:
        return item->op->fingerprint;
    case LK_PG_OWNER:
        return item->op->owner;
    case LK_PG_REASON:
        return item->op->reason;
    case LK_PG_WHO:
        return item->op->who;
    default:
        return item->op->why;
    }
}

/* The response, or the content of a job. */
static enum lk_status add_content(struct lk_pg_array *array,
                                  const struct lk_op *op, bool body)
{
    bool stored = has_response(op) && !op->reason.len;
    struct lk_slice part = {0};

    if (op->call) {
        part = body ? op->call->body : op->call->headers;
    } else if (stored) {
        part = body ? op->response.body : op->response.headers;
    }
    return lk_pg_array_bytes(array, part);
}

/* One element of one column. The parts of the name are escaped already. */
static enum lk_status add_param_value(struct lk_postgres *store,
                                      struct lk_pg_array *array,
                                      const struct lk_pg_item *item,
                                      enum lk_pg_column column)
{
    switch (column) {
    case LK_PG_TENANT:
    case LK_PG_SCOPE:
    case LK_PG_KEY:
        return lk_pg_array_bytes(array, text_of(item, column));
    case LK_PG_HEADERS:
        return add_content(array, item->op, false);
    case LK_PG_BODY:
        return add_content(array, item->op, true);
    case LK_PG_JOB:
    case LK_PG_TARGET:
    case LK_PG_METHOD:
    case LK_PG_PATH:
    case LK_PG_REASON:
    case LK_PG_FINGERPRINT:
    case LK_PG_OWNER:
    case LK_PG_WHO:
    case LK_PG_WHY:
        return lk_pg_array_text(array, text_of(item, column));
    default:
        return lk_pg_array_int(array, number_of(&store->config, item, column));
    }
}

/* One array for each column, one element for each item. The columns of jobs are
 * empty arrays if no op has a call. The arrays are the lane's and keep their
 * memory for the next batch. */
static enum lk_status fill_params(struct lk_pg_lane *lane,
                                  const struct lk_pg_item *items, size_t count,
                                  struct lk_pg_params *params)
{
    struct lk_postgres *store = lane->conn.store;
    enum lk_status status = LK_OK;
    bool calls = false;

    for (size_t i = 0; i < count; i++) {
        calls |= items[i].op->call != NULL;
    }
    for (int c = 0; c < LK_PG_COLUMNS && !status; c++) {
        struct lk_pg_array *array = &lane->columns[c];
        size_t rows = c < LK_PG_JOB || calls ? count : 0;
        status = lk_pg_array_start(array, column_types[c], rows);
        for (size_t i = 0; i < rows && !status; i++) {
            status =
                add_param_value(store, array, &items[i], (enum lk_pg_column)c);
        }
        lk_pg_add_array(params, array);
    }
    lk_pg_add_int(params, (int64_t)store->config.default_ttl_ms);
    return status;
}

/* ---- sending ---------------------------------------------------------- */

static enum lk_status prepare_statement(struct lk_pg_conn *conn,
                                        const struct lk_pg_part *part,
                                        uint64_t deadline_ns)
{
    PGresult *result = NULL;
    PGresult *end = NULL;

    if (!PQsendPrepare(conn->pg, part->name, part->sql, 0, NULL) ||
        lk_pg_next(conn, deadline_ns, &result) ||
        lk_pg_next(conn, deadline_ns, &end)) {
        PQclear(result);
        return LK_UNAVAILABLE;
    }
    bool done = PQresultStatus(result) == PGRES_COMMAND_OK;
    if (!done) {
        lk_pg_note_error(conn, result);
    }
    PQclear(result);
    return done ? LK_OK : LK_UNAVAILABLE;
}

/* Once for each connection. LK_UNAVAILABLE: not all could be prepared, and the
 * connection must not be used as a lane. */
enum lk_status lk_pg_prepare(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    enum lk_status status = LK_OK;

    for (int i = 0; i < STATEMENTS && !status; i++) {
        status = prepare_statement(conn, &statements[i], deadline_ns);
    }
    for (size_t i = 0;
         conn->for_jobs && i < lk_pg_job_batch_part_count && !status; i++) {
        status =
            prepare_statement(conn, &lk_pg_job_batch_parts[i], deadline_ns);
    }
    return status;
}

/* A pooler may change the session between transactions, and a connection that
 * is not a lane has nothing prepared: these send the text each time. */
static bool send_statement(struct lk_pg_conn *conn,
                           const struct lk_pg_part *part)
{
    static const struct lk_pg_params none;
    const struct lk_pg_params *params = part->params ? part->params : &none;

    if (conn->store->config.pooler || !conn->lane) {
        return PQsendQueryParams(conn->pg, part->sql, params->count,
                                 params->types, params->values, params->lengths,
                                 params->formats, 1);
    }
    return PQsendQueryPrepared(conn->pg, part->name, params->count,
                               params->values, params->lengths, params->formats,
                               1);
}

/*
 * In pooler mode the session, and the server behind it, may be another one each
 * time: each transaction sets what it needs, and after a failover the tokens
 * leap.
 */
static bool send_settings(struct lk_pg_conn *conn)
{
    struct lk_postgres *store = conn->store;
    unsigned long long timeout = store->config.timeout_ms;
    char commit[sizeof(store->settings.synchronous_commit)];
    char sql[512];

    if (!store->config.pooler) {
        return true;
    }
    pthread_mutex_lock(&store->lock);
    memcpy(commit, store->settings.synchronous_commit, sizeof(commit));
    pthread_mutex_unlock(&store->lock);
    snprintf(sql, sizeof(sql),
             "SELECT set_config('lock_timeout', '%llu', true), "
             "set_config('statement_timeout', '%llu', true), "
             "set_config('idle_in_transaction_session_timeout', '10000', "
             "true), set_config('synchronous_commit', '%s', true), "
             "latchkey.check_timeline(%llu)%s",
             timeout / 4 + 1, timeout / 4 * 3 + 1, commit,
             (unsigned long long)atomic_load(&store->counters.last_token),
             conn->for_jobs ? ", latchkey.courier_settings(true)" : "");
    return PQsendQueryParams(conn->pg, sql, 0, NULL, NULL, NULL, NULL, 1);
}

/* False: COMMIT cannot have been sent, and will not be. */
static bool send_statements(struct lk_pg_conn *conn,
                            const struct lk_pg_part *parts, size_t count)
{
    bool sent = PQenterPipelineMode(conn->pg) &&
                send_statement(conn, &statements[BEGIN]) && send_settings(conn);

    for (size_t i = 0; i < count && sent; i++) {
        sent = send_statement(conn, &parts[i]);
    }
    return sent;
}

/* ---- receiving -------------------------------------------------------- */

/* The results of one pipeline as they arrive. At the end `committed` or
 * `failed` is known, or the fate is unknown. */
struct pipeline {
    struct lk_pg_part *parts;
    size_t count;
    size_t before;  /* results that come before those of the parts */
    size_t place;   /* of the next result */
    bool failed;    /* the server reported an error, and nothing committed */
    bool committed; /* it confirmed the commit */
    bool cut;       /* it ended the session */
};

/* Takes the result: a part keeps it, or it is cleared. Results come in the
 * order of the statements. A COMMIT in a failed transaction is reported as
 * ROLLBACK. */
static void take_result(struct lk_pg_conn *conn, struct pipeline *pipeline,
                        PGresult *result)
{
    ExecStatusType state = PQresultStatus(result);
    size_t place = pipeline->place++;

    if (state == PGRES_TUPLES_OK && place >= pipeline->before &&
        place - pipeline->before < pipeline->count) {
        pipeline->parts[place - pipeline->before].result = result;
        return;
    }
    if (state == PGRES_COMMAND_OK && !strcmp(PQcmdStatus(result), "COMMIT")) {
        pipeline->committed = true;
    } else if (state == PGRES_COMMAND_OK &&
               !strcmp(PQcmdStatus(result), "ROLLBACK")) {
        pipeline->failed = true;
    } else if (state == PGRES_FATAL_ERROR && !pipeline->failed) {
        lk_pg_note_error(conn, result);
        pipeline->failed = !conn->fatal;
        pipeline->cut = conn->fatal;
    }
    PQclear(result);
}

/* Reads until the end of the pipeline. LK_TIMEOUT: the server is silent, and
 * the connection may still come back. LK_CLOSED: the session is gone. */
static enum lk_status collect_results(struct lk_pg_conn *conn,
                                      uint64_t deadline_ns,
                                      struct pipeline *pipeline)
{
    for (;;) {
        PGresult *result;
        enum lk_status status = lk_pg_next(conn, deadline_ns, &result);
        if (status) {
            return status;
        }
        if (PQresultStatus(result) == PGRES_PIPELINE_SYNC) {
            PQclear(result);
            return LK_OK;
        }
        if (result) {
            take_result(conn, pipeline, result);
        }
        if (pipeline->cut || PQstatus(conn->pg) == CONNECTION_BAD) {
            return LK_CLOSED;
        }
    }
}

/* After an error the session is left in a failed transaction. */
static void end_pipeline(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    char why[sizeof(conn->message)];
    char state[sizeof(conn->sqlstate)];

    memcpy(why, conn->message, sizeof(why));
    memcpy(state, conn->sqlstate, sizeof(state));
    if (!PQexitPipelineMode(conn->pg) ||
        (PQtransactionStatus(conn->pg) != PQTRANS_IDLE &&
         lk_pg_script(conn, "ROLLBACK", deadline_ns))) {
        lk_pg_close(conn);
    }
    memcpy(conn->message, why, sizeof(why));
    memcpy(conn->sqlstate, state, sizeof(state));
}

/* Confirmed, and with a result of each part. */
static bool has_all_results(const struct pipeline *pipeline)
{
    bool whole = pipeline->committed;

    for (size_t i = 0; i < pipeline->count; i++) {
        whole = whole && pipeline->parts[i].result;
    }
    return whole;
}

/* What is known of the transaction now; see the top of the file. In doubt it is
 * unknown: a commit that happened must never be reported as failed. */
static enum lk_pg_fate judge_pipeline(struct lk_pg_conn *conn,
                                      enum lk_status status,
                                      struct pipeline *pipeline,
                                      uint64_t deadline_ns)
{
    if (status == LK_TIMEOUT) {
        conn->silent_ns = lk_pg_clock_ns();
        return LK_PG_UNKNOWN;
    }
    /* An error counts only if the session goes on behind it: one between us
     * and the server may have reported the loss of it. */
    if (status) {
        lk_pg_lost(conn, conn->message);
        return LK_PG_UNKNOWN;
    }
    end_pipeline(conn, deadline_ns);
    if (pipeline->failed) {
        return LK_PG_FAILED;
    }
    if (!has_all_results(pipeline) || conn->standby_wait_cut) {
        snprintf(conn->message, sizeof(conn->message),
                 conn->standby_wait_cut
                     ? "the wait for the standby was cut short"
                     : "the server did not confirm the commit");
        conn->standby_wait_cut = false;
        return LK_PG_UNKNOWN;
    }
    return LK_PG_DONE;
}

/* Runs the parts as one transaction. LK_PG_DONE: committed, and each part has
 * its result, which the caller clears. Any other fate: the parts have none. */
enum lk_pg_fate lk_pg_pipeline(struct lk_pg_conn *conn,
                               struct lk_pg_part *parts, size_t count,
                               uint64_t deadline_ns)
{
    struct pipeline pipeline = {
        .parts = parts,
        .count = count,
        .before = 1 + (conn->store->config.pooler ? 1 : 0),
    };

    conn->sqlstate[0] = 0;
    conn->standby_wait_cut = false;
    if (!send_statements(conn, parts, count)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_PG_NOT_SENT;
    }
    /* From here on COMMIT may be on its way. */
    enum lk_status status = LK_CLOSED;
    if (send_statement(conn, &statements[COMMIT]) && PQpipelineSync(conn->pg)) {
        status = collect_results(conn, deadline_ns, &pipeline);
    }
    enum lk_pg_fate fate = judge_pipeline(conn, status, &pipeline, deadline_ns);
    for (size_t i = 0; i < count && fate != LK_PG_DONE; i++) {
        PQclear(parts[i].result);
        parts[i].result = NULL;
    }
    return fate;
}

/* Lets the server decide the items in one transaction. The caller clears
 * *result, which is NULL unless the fate is LK_PG_DONE. */
enum lk_pg_fate lk_pg_transact(struct lk_pg_lane *lane,
                               const struct lk_pg_item *items, size_t count,
                               uint64_t deadline_ns, PGresult **result)
{
    struct lk_pg_conn *conn = &lane->conn;
    struct lk_pg_params params = {0};
    struct lk_pg_part part = statements[APPLY];
    enum lk_pg_fate fate = LK_PG_FAILED;

    *result = NULL;
    part.params = &params;
    if (fill_params(lane, items, count, &params)) {
        snprintf(conn->message, sizeof(conn->message), "out of memory");
        snprintf(conn->sqlstate, sizeof(conn->sqlstate), "53200");
    } else {
        fate = lk_pg_pipeline(conn, &part, 1, deadline_ns);
    }
    for (int i = 0; i < LK_PG_COLUMNS; i++) {
        lk_pg_array_trim(&lane->columns[i]);
    }
    *result = part.result;
    return fate;
}

/* ---- outcomes ----------------------------------------------------------- */

/* The op gets this status in place of an outcome. `error` is a constant. */
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

/* The meaning of an operation's deadline depends on its state. */
static void set_outcome_times(struct lk_outcome *out, uint64_t deadline)
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

/* The reason of an uncertain operation comes with the decision, so that no load
 * is needed. Null: its lock has lapsed. */
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
 * Another transaction holds the operation. A claim gets INFLIGHT if that does
 * not change soon.
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

/* One row of latchkey.apply. What the server says is checked before it is used:
 * an outcome that cannot be is refused as damage. */
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

    if (verdict == LK_SQL_VERDICT_AGAIN ||
        (verdict == LK_VERDICT_INFLIGHT &&
         (!out.number || out.state != LK_STATE_IN_PROGRESS))) {
        set_locked(op, out.now_ms);
        return;
    }
    if (verdict == LK_SQL_VERDICT_CONFLICT) {
        lk_pg_refuse_one(op, LK_INVALID, LK_JOB_CONFLICT);
        return;
    }
    if (verdict < 0 || verdict > LK_VERDICT_EXISTS) {
        lk_pg_refuse_one(op, LK_INVALID, "the store does not know this event");
        return;
    }
    set_outcome_times(&out, lk_pg_uint(result, row, DEADLINE));
    if (out.verdict == LK_VERDICT_ACCEPTED) {
        out.since_ms = lk_pg_uint(result, row, CHANGED); /* also if it runs */
    }
    out.needs_load = out.verdict == LK_VERDICT_REPLAY ||
                     out.verdict == LK_VERDICT_OMITTED ||
                     out.verdict == LK_VERDICT_KEPT;
    if (!lk_outcome_is_consistent(&out)) {
        lk_pg_refuse_one(op, LK_CORRUPT, NULL);
        return;
    }
    op->status = LK_OK;
    if (out.verdict == LK_VERDICT_UNCERTAIN && add_reason(result, row, &out)) {
        out.needs_load = true; /* no memory now: load fetches it */
    }
    op->out = out;
}

/* For clients that wait here and at other daemons, and for those that may. */
static void add_hints(struct lk_postgres *store, struct lk_batch *batch,
                      const PGresult *result, int row, const struct lk_op *op)
{
    int64_t lock_id = lk_pg_int(result, row, LOCK_ID);

    if (lk_pg_int(result, row, SETTLES)) {
        if (lk_batch_settle(batch, op->hash)) {
            batch->settle_all = true;
        }
        lk_pg_notify_settled(store, lock_id);
    } else if ((op->event == LK_EVENT_CLAIM || op->event == LK_EVENT_ACCEPT) &&
               (op->out.verdict == LK_VERDICT_NEW ||
                op->out.verdict == LK_VERDICT_ACCEPTED ||
                op->out.verdict == LK_VERDICT_INFLIGHT)) {
        lk_pg_remember_waiter(store, lock_id, op->hash,
                              op->out.verdict != LK_VERDICT_NEW);
    }
}

/* This may be true twice for one job: a courier that looks again does no
 * harm. */
static bool queues_job(const struct lk_op *op)
{
    return (op->call || op->event == LK_EVENT_RETURN) && !op->status &&
           (op->out.verdict == LK_VERDICT_ACCEPTED ||
            op->out.verdict == LK_VERDICT_DONE);
}

/* If an op is LK_AGAIN, later ops of the same name must also come again:
 * without the lock they have changed nothing, and they must find the state that
 * the first one leaves. */
static void repeat_after_locked(const struct lk_pg_item *items, size_t count,
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

/* After a commit. Every item first counts as unknown, so that one without a row
 * is never taken for decided. The highest token is remembered, by which a later
 * connection notices an older server (check_timeline). */
void lk_pg_set_outcomes(struct lk_postgres *store, struct lk_batch *batch,
                        const struct lk_pg_item *items, size_t count,
                        const PGresult *result)
{
    uint64_t now = 0;
    uint64_t token = 0;
    bool jobs = false;

    lk_pg_refuse(items, count, LK_UNKNOWN, "the database returned no decision");
    pthread_mutex_lock(&store->hints_lock);
    for (int row = 0; row < PQntuples(result); row++) {
        int64_t at = lk_pg_int(result, row, AT);
        if (at < 1 || (size_t)at > count) {
            continue;
        }
        struct lk_op *op = items[at - 1].op;
        op->error = NULL;
        set_outcome(result, row, op);
        add_hints(store, batch, result, row, op);
        jobs |= queues_job(op);
        now = op->out.now_ms > now ? op->out.now_ms : now;
        token = op->out.token > token ? op->out.token : token;
    }
    repeat_after_locked(items, count, now);
    batch->queued |= jobs;
    if (jobs) {
        lk_pg_notify_job(store);
    }
    bool notify = store->notify_count != 0 || store->notify_jobs;
    pthread_mutex_unlock(&store->hints_lock);
    if (notify) {
        lk_pg_keeper_wake(store);
    }
    lk_pg_set_time(store, now);
    uint64_t last = atomic_load(&store->counters.last_token);
    while (token > last && !atomic_compare_exchange_weak(
                               &store->counters.last_token, &last, token)) {
    }
}
