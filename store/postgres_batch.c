/*
 * postgres_batch.c - one transaction of some operations: its parameters, and
 * one pipeline of BEGIN, latchkey.apply and COMMIT.
 *
 * What is known when something fails: an error that the server itself reports
 * before it confirms the COMMIT means that nothing happened, if the session
 * lives on. Whatever cuts the connection once COMMIT may have been sent means
 * that nobody knows, whatever was said before: one between us and the server
 * may have said it.
 */
#include "store/postgres.h"

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
};

enum { FLAG_REEXECUTE = 1, FLAG_NO_NEW = 2, FLAG_OWNER = 4 };

/* The statements of a transaction, in their order. */
static const struct {
    const char *name;
    const char *sql;
} statements[] = {
    {"lk_begin", "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE"},
    {"lk_apply", "SELECT * FROM latchkey.apply($1, $2, $3, $4, $5, $6, $7, $8, "
                 "$9, $10, $11, $12, $13, $14, $15, $16, $17)"},
    /* Its commit waits until all that was committed before is as durable. */
    {"lk_mark", "SELECT pg_logical_emit_message(true, 'latchkey', '')"},
    {"lk_commit", "COMMIT"},
};

enum { BEGIN, APPLY, MARK, COMMIT, STATEMENTS };
enum { SETTINGS = 5 }; /* columns of what send_settings asks */

/* ---- parameters ------------------------------------------------------- */

static bool is_answered(const struct lk_op *op)
{
    return op->event == LK_EVENT_COMPLETE ||
           op->event == LK_EVENT_RESOLVE_COMPLETED;
}

static int flags_of(const struct lk_op *op)
{
    return (op->reexecute ? FLAG_REEXECUTE : 0) |
           (op->no_new ? FLAG_NO_NEW : 0) | (op->owner.len ? FLAG_OWNER : 0);
}

static int64_t number_of(const struct lk_store_config *config,
                         const struct lk_op *op, enum lk_pg_column column)
{
    bool claim = op->event == LK_EVENT_CLAIM;

    switch (column) {
    case LK_PG_EVENT:
        return (int64_t)op->event;
    case LK_PG_TTL:
        return (int64_t)(claim && !op->ttl_ms ? config->default_ttl_ms
                                              : op->ttl_ms);
    case LK_PG_LOCK:
        return (int64_t)(claim && !op->lock_ms ? config->default_lock_ms
                                               : op->lock_ms);
    case LK_PG_FLAGS:
        return flags_of(op);
    case LK_PG_TOKEN:
        return (int64_t)op->token;
    default:
        return (int64_t)op->response.status;
    }
}

static struct lk_slice text_of(const struct lk_pg_item *item,
                               enum lk_pg_column column)
{
    switch (column) {
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

static enum lk_status add_answer(struct lk_pg_array *array,
                                 const struct lk_op *op, struct lk_slice part)
{
    bool kept = is_answered(op) && !op->reason.len;

    return lk_pg_array_bytes(array, kept ? part : (struct lk_slice){0});
}

static enum lk_status add_value(struct lk_postgres *store,
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
        return add_answer(array, item->op, item->op->response.headers);
    case LK_PG_BODY:
        return add_answer(array, item->op, item->op->response.body);
    case LK_PG_REASON:
    case LK_PG_FINGERPRINT:
    case LK_PG_OWNER:
    case LK_PG_WHO:
    case LK_PG_WHY:
        return lk_pg_array_text(array, text_of(item, column));
    default:
        return lk_pg_array_int(array,
                               number_of(&store->config, item->op, column));
    }
}

static enum lk_status fill(struct lk_pg_lane *lane,
                           const struct lk_pg_item *items, size_t count,
                           struct lk_pg_params *params)
{
    struct lk_postgres *store = lane->conn.store;
    enum lk_status status = LK_OK;

    for (int c = 0; c < LK_PG_COLUMNS && !status; c++) {
        struct lk_pg_array *array = &lane->columns[c];
        status = lk_pg_array_start(array, column_types[c], count);
        for (size_t i = 0; i < count && !status; i++) {
            status = add_value(store, array, &items[i], (enum lk_pg_column)c);
        }
        lk_pg_add_array(params, array);
    }
    lk_pg_add_int(params, (int64_t)store->config.default_ttl_ms);
    return status;
}

/* ---- sending ---------------------------------------------------------- */

enum lk_status lk_pg_prepare(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    Oid types[LK_PG_COLUMNS + 1];

    for (int i = 0; i < LK_PG_COLUMNS; i++) {
        types[i] = column_types[i];
    }
    types[LK_PG_COLUMNS] = LK_PG_INT8;
    for (int i = 0; i < STATEMENTS; i++) {
        int count = i == APPLY ? LK_PG_COLUMNS + 1 : 0;
        PGresult *result = NULL;
        PGresult *end = NULL;
        if (!PQsendPrepare(conn->pg, statements[i].name, statements[i].sql,
                           count, types) ||
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
        if (!done) {
            return LK_UNAVAILABLE;
        }
    }
    return LK_OK;
}

static bool send_one(struct lk_pg_conn *conn, int which,
                     const struct lk_pg_params *params)
{
    static const struct lk_pg_params none;

    params = params ? params : &none;
    if (conn->store->config.pooler) {
        return PQsendQueryParams(conn->pg, statements[which].sql, params->count,
                                 params->types, params->values, params->lengths,
                                 params->formats, 1);
    }
    return PQsendQueryPrepared(conn->pg, statements[which].name, params->count,
                               params->values, params->lengths, params->formats,
                               1);
}

/*
 * In pooler mode a session may be another one each time, and so may the server
 * behind it: what other users of the session have set does not count, and after
 * a fail-over the tokens leap.
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
             "latchkey.check_timeline(%llu)",
             timeout / 4 + 1, timeout / 4 * 3 + 1, commit,
             (unsigned long long)atomic_load(&store->counters.last_token));
    return PQsendQueryParams(conn->pg, sql, 0, NULL, NULL, NULL, NULL, 1);
}

/* False: COMMIT cannot have been sent, and will not be. */
static bool send_all(struct lk_pg_conn *conn, const struct lk_pg_params *params,
                     bool again)
{
    return PQenterPipelineMode(conn->pg) && send_one(conn, BEGIN, NULL) &&
           send_settings(conn) && send_one(conn, APPLY, params) &&
           (!again || send_one(conn, MARK, NULL));
}

/* ---- receiving -------------------------------------------------------- */

struct answers {
    PGresult *applied;
    bool failed;    /* the server reported an error, and nothing committed */
    bool committed; /* it confirmed the commit */
    bool cut;       /* it ended the session */
};

static void sort_result(struct lk_pg_conn *conn, struct answers *answers,
                        PGresult *result)
{
    ExecStatusType state = PQresultStatus(result);
    bool settings = PQnfields(result) == SETTINGS;

    if (state == PGRES_TUPLES_OK && !answers->applied && !settings &&
        PQnfields(result) > 1) {
        answers->applied = result;
        return;
    }
    if (state == PGRES_COMMAND_OK && !strcmp(PQcmdStatus(result), "COMMIT")) {
        answers->committed = true;
    } else if (state == PGRES_COMMAND_OK &&
               !strcmp(PQcmdStatus(result), "ROLLBACK")) {
        answers->failed = true;
    } else if (state == PGRES_FATAL_ERROR && !answers->failed) {
        lk_pg_note_error(conn, result);
        answers->failed = !conn->fatal;
        answers->cut = conn->fatal;
    }
    PQclear(result);
}

/* Until the end of the pipeline. */
static enum lk_status collect(struct lk_pg_conn *conn, uint64_t deadline_ns,
                              struct answers *answers)
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
            sort_result(conn, answers, result);
        }
        if (answers->cut || PQstatus(conn->pg) == CONNECTION_BAD) {
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

static enum lk_pg_fate judge(struct lk_pg_conn *conn, enum lk_status status,
                             struct answers *answers, uint64_t deadline_ns)
{
    if (status == LK_TIMEOUT) {
        conn->silent_ns = lk_pg_clock_ns();
        return LK_PG_DOUBT;
    }
    /* An error counts only if the session goes on behind it: one between us
     * and the server may have reported the loss of it. */
    if (status) {
        lk_pg_lost(conn, conn->message);
        return LK_PG_DOUBT;
    }
    end_pipeline(conn, deadline_ns);
    if (answers->failed) {
        return LK_PG_FAILED;
    }
    if (!answers->committed || !answers->applied || conn->warned) {
        snprintf(conn->message, sizeof(conn->message),
                 conn->warned ? "the wait for the standby was cut short"
                              : "the server did not confirm the commit");
        conn->warned = false;
        return LK_PG_DOUBT;
    }
    return LK_PG_DONE;
}

enum lk_pg_fate lk_pg_transact(struct lk_pg_lane *lane,
                               const struct lk_pg_item *items, size_t count,
                               bool again, uint64_t deadline_ns,
                               PGresult **result)
{
    struct lk_pg_conn *conn = &lane->conn;
    struct lk_pg_params params = {0};
    struct answers answers = {0};

    *result = NULL;
    conn->sqlstate[0] = 0;
    conn->warned = false;
    if (fill(lane, items, count, &params)) {
        snprintf(conn->message, sizeof(conn->message), "out of memory");
        snprintf(conn->sqlstate, sizeof(conn->sqlstate), "53200");
        return LK_PG_FAILED;
    }
    if (!send_all(conn, &params, again)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_PG_NOT_SENT;
    }
    /* From here on COMMIT may be on its way. */
    enum lk_status status = LK_CLOSED;
    if (send_one(conn, COMMIT, NULL) && PQpipelineSync(conn->pg)) {
        status = collect(conn, deadline_ns, &answers);
    }
    enum lk_pg_fate fate = judge(conn, status, &answers, deadline_ns);
    for (int i = 0; i < LK_PG_COLUMNS; i++) {
        lk_pg_array_trim(&lane->columns[i]);
    }
    if (fate == LK_PG_DONE) {
        *result = answers.applied;
    } else {
        PQclear(answers.applied);
    }
    return fate;
}
