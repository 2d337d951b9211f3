/*
 * postgres_read.c - single records and the answers of finished operations, on
 * a connection of their own. Nothing is decided here.
 */
#include "store/postgres.h"
#include "store/postgres_record.h"

#include <string.h>

/* ---- statements on the reader's connection ---------------------------- */

enum lk_status lk_pg_read(struct lk_postgres *store, const char *sql,
                          const struct lk_pg_params *params, PGresult **result)
{
    struct lk_pg_conn *conn = &store->reader;
    uint64_t deadline_ns = lk_pg_deadline(store);
    enum lk_status status = LK_CLOSED;

    *result = NULL;
    for (int i = 0; i < 2 && status == LK_CLOSED; i++) {
        if (lk_pg_ready(conn, deadline_ns)) {
            return LK_UNAVAILABLE;
        }
        status = lk_pg_run(conn, sql, params, deadline_ns, result);
        if (status == LK_CLOSED) {
            conn->retry_ns = 0;
        }
    }
    if (status == LK_UNAVAILABLE) {
        lk_pg_log(store, LK_PG_ERROR, "the database refused a read: %s (%s)",
                  conn->message, conn->sqlstate);
    }
    return status ? LK_UNAVAILABLE : LK_OK;
}

/*
 * The same, but only what the synchronous standby has. While that is away the
 * connection may be silent for long: it is one of its own, so that others who
 * read do not wait with it.
 */
static enum lk_status read_replicated(struct lk_postgres *store,
                                      const char *sql,
                                      const struct lk_pg_params *params,
                                      PGresult **result)
{
    struct lk_pg_conn *conn = &store->waiter;
    uint64_t deadline_ns = lk_pg_deadline(store);
    enum lk_pg_fate fate = LK_PG_NOT_SENT;
    struct lk_pg_part parts[] = {
        {.sql = sql, .params = params},
        {.sql = "SELECT latchkey.wait_for_standby()"},
    };

    for (int i = 0; i < 2 && fate != LK_PG_DONE && fate != LK_PG_FAILED; i++) {
        if (lk_pg_ready(conn, deadline_ns)) {
            return LK_UNAVAILABLE;
        }
        fate = lk_pg_pipeline(conn, parts, 2, deadline_ns);
        conn->retry_ns = 0;
    }
    *result = parts[0].result;
    PQclear(parts[1].result);
    return fate == LK_PG_DONE ? LK_OK : LK_UNAVAILABLE;
}

/* ---- rows ------------------------------------------------------------- */

static enum lk_status copy_text(const PGresult *result, int row,
                                const struct lk_pg_text *from,
                                struct lk_buf *text)
{
    struct lk_slice bytes = lk_pg_bytes(result, row, from->column);
    size_t start = text->len;
    enum lk_status status = from->raw ? latchkey_buf_add_slice(text, bytes)
                                      : lk_pg_unescape(bytes, text);

    *from->to = (struct lk_slice){text->data + start, text->len - start};
    return status;
}

/* The buffer does not move: unescaped text is never longer. */
enum lk_status lk_pg_texts(const PGresult *result, int row,
                           const struct lk_pg_text *texts, size_t count,
                           struct lk_buf *text)
{
    size_t total = count + 1;

    for (size_t i = 0; i < count; i++) {
        total += (size_t)PQgetlength(result, row, texts[i].column) + 1;
    }
    enum lk_status status = latchkey_buf_reserve(text, total);
    for (size_t i = 0; i < count && !status; i++) {
        status = copy_text(result, row, &texts[i], text);
    }
    return status;
}

static enum lk_status copy_texts(const PGresult *result, int row,
                                 struct lk_operation *record)
{
    const struct lk_pg_text texts[] = {
        {LK_PG_R_TENANT, false, &record->name.tenant},
        {LK_PG_R_SCOPE, false, &record->name.scope},
        {LK_PG_R_KEY, false, &record->name.key},
        {LK_PG_R_FINGERPRINT, false, &record->fingerprint},
        {LK_PG_R_OWNER, false, &record->owner},
        {LK_PG_R_REASON, false, &record->reason},
    };

    return lk_pg_texts(result, row, texts, sizeof(texts) / sizeof(texts[0]),
                       &record->text);
}

static void set_times(const PGresult *result, int row,
                      struct lk_operation *record)
{
    uint64_t deadline = lk_pg_uint(result, row, LK_PG_R_DEADLINE);

    switch (record->state) {
    case LK_STATE_IN_PROGRESS:
        record->lock_until_ms = deadline;
        if (deadline <= lk_pg_uint(result, row, LK_PG_R_NOW) &&
            !record->queued) {
            /* The sweeper just has not come by. */
            record->state = LK_STATE_UNCERTAIN;
            record->since_ms = deadline;
        } else if (record->queued) {
            record->since_ms = record->claimed_ms; /* accepted */
        }
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        record->since_ms = deadline;
        break;
    default:
        record->expires_ms = deadline;
        break;
    }
}

static void set_answer(const PGresult *result, int row,
                       struct lk_operation *record)
{
    if (record->state == LK_STATE_COMPLETED) {
        record->completed_ms = lk_pg_uint(result, row, LK_PG_R_COMPLETED);
        record->status = (unsigned)lk_pg_uint(result, row, LK_PG_R_STATUS);
        record->answer_bytes = lk_pg_uint(result, row, LK_PG_R_BYTES);
    } else if (record->state == LK_STATE_UNCERTAIN && !record->reason.len) {
        record->reason = LK_SLICE("lock lapsed");
    }
}

enum lk_status lk_pg_operation(const PGresult *result, int row,
                               struct lk_operation *record)
{
    *record = (struct lk_operation){
        .state = (enum lk_state)lk_pg_int(result, row, LK_PG_R_STATE),
        .token = lk_pg_uint(result, row, LK_PG_R_TOKEN),
        .attempt = lk_pg_uint(result, row, LK_PG_R_ATTEMPT),
        .number = lk_pg_uint(result, row, LK_PG_R_NUMBER),
        .claimed_ms = lk_pg_uint(result, row, LK_PG_R_CLAIMED),
        .ttl_ms = lk_pg_uint(result, row, LK_PG_R_TTL),
        .keep_ms = lk_pg_uint(result, row, LK_PG_R_KEEP),
        .generation = lk_pg_uint(result, row, LK_PG_R_GENERATION),
        .omitted = lk_pg_int(result, row, LK_PG_R_OMITTED),
        .evicted = lk_pg_int(result, row, LK_PG_R_EVICTED),
        .queued = lk_pg_int(result, row, LK_PG_R_QUEUED),
    };
    enum lk_status status = copy_texts(result, row, record);
    set_times(result, row, record);
    set_answer(result, row, record);
    return status;
}

/* LK_CORRUPT: it is finished, and its answer is gone. */
enum lk_status lk_pg_operation_stored(const PGresult *result, int row,
                                      struct lk_operation *record)
{
    struct lk_response response = {.status = record->status};
    bool completed = record->state == LK_STATE_COMPLETED;

    if (!completed && record->state != LK_STATE_UNCERTAIN) {
        return LK_OK;
    }
    if (completed && !record->omitted) {
        if (PQgetisnull(result, row, LK_PG_R_BODY)) {
            return LK_CORRUPT;
        }
        response.headers = lk_pg_bytes(result, row, LK_PG_R_HEADERS);
        response.body = lk_pg_bytes(result, row, LK_PG_R_BODY);
    }
    record->stored = lk_stored_make(
        record->token, completed ? record->completed_ms : record->since_ms,
        &response, record->reason);
    return record->stored ? LK_OK : LK_NOMEM;
}

/* ---- one record ------------------------------------------------------- */

static const char by_name[] =
    LK_PG_OPERATION(LK_PG_WITH_ANSWER) " WHERE o.tenant = $1 AND o.scope = $2 "
                                       "AND o.key = $3";
static const char by_number[] =
    LK_PG_OPERATION(LK_PG_WITH_ANSWER) " WHERE o.number = $1";

/*
 * An expired record is absent, though its row is still there. `shown`: to a
 * client, who takes it for a fact. What is loaded for a verdict has waited for
 * the standby with that.
 */
static enum lk_status read_one(struct lk_postgres *store, const char *sql,
                               const struct lk_pg_params *params, bool shown,
                               struct lk_operation *record)
{
    PGresult *result = NULL;

    *record = (struct lk_operation){0};
    pthread_mutex_lock(&store->reader_lock);
    enum lk_status status = shown && lk_pg_has_standby(store)
                                ? read_replicated(store, sql, params, &result)
                                : lk_pg_read(store, sql, params, &result);
    pthread_mutex_unlock(&store->reader_lock);
    if (!status &&
        (!PQntuples(result) || lk_pg_int(result, 0, LK_PG_R_HIDDEN))) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status = lk_pg_operation(result, 0, record);
    }
    if (!status) {
        status = lk_pg_operation_stored(result, 0, record);
    }
    PQclear(result);
    if (status) {
        lk_operation_free(record);
    }
    return status;
}

enum lk_status lk_postgres_lookup(struct lk_store *base, struct lk_name name,
                                  struct lk_operation *record)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_slice parts[] = {name.tenant, name.scope, name.key};
    struct lk_buf texts[3] = {{0}};
    struct lk_pg_params params = {0};
    enum lk_status status = LK_OK;

    for (int i = 0; i < 3 && !status; i++) {
        status = lk_pg_escape(parts[i], &texts[i]);
        lk_pg_add_text(&params, latchkey_buf_slice(&texts[i]));
    }
    if (!status) {
        status = read_one(store, by_name, &params, true, record);
    }
    for (int i = 0; i < 3; i++) {
        latchkey_buf_free(&texts[i]);
    }
    return status;
}

enum lk_status lk_postgres_find(struct lk_store *base, struct lk_slice tenant,
                                uint64_t number, struct lk_operation *record)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_params params = {0};

    lk_pg_add_int(&params, (int64_t)number);
    enum lk_status status = read_one(store, by_number, &params, true, record);
    if (!status && tenant.len &&
        !latchkey_slice_equal(record->name.tenant, tenant)) {
        lk_operation_free(record);
        status = LK_NOT_FOUND;
    }
    return status;
}

/* ---- what a retry is told --------------------------------------------- */

/* Row and answer are of one moment: one without the other is damage. */
static enum lk_status load_stored(struct lk_postgres *store, struct lk_op *op)
{
    struct lk_pg_params params = {0};
    struct lk_operation record;

    lk_pg_add_int(&params, (int64_t)op->out.number);
    enum lk_status status = read_one(store, by_number, &params, false, &record);
    if (status == LK_NOT_FOUND) {
        return LK_AGAIN;
    }
    if (status) {
        return status;
    }
    if (record.token != op->out.token || record.state != op->out.state ||
        !record.stored) {
        status = LK_AGAIN;
    } else {
        op->out.stored = lk_stored_ref(record.stored);
    }
    lk_operation_free(&record);
    return status;
}

/* The cache spares the reading; what it does not have, it is given. */
enum lk_status lk_postgres_load(struct lk_store *base, struct lk_op *op)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    bool cached = store->answers && (op->out.verdict == LK_VERDICT_REPLAY ||
                                     op->out.verdict == LK_VERDICT_OMITTED);
    enum lk_status status = LK_OK;

    if (cached) {
        op->out.stored = lk_response_cache_get(store->answers, op);
    }
    if (!op->out.stored) {
        status = load_stored(store, op);
        uint64_t now = lk_pg_now_ms(store);
        if (!status && cached && op->out.expires_ms > now) {
            lk_response_cache_put(store->answers, op, op->out.stored,
                                  op->out.expires_ms - now);
        }
    }
    if (!status) {
        op->out.needs_load = false;
    }
    return status;
}
