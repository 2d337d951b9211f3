/*
 * postgres_read.c - reading without deciding: single operations and their
 * stored responses, lists by cursor, the audit log, and VERIFY.
 *
 * All but VERIFY use the reader's connection under reader_lock; reads that
 * wait for the synchronous standby use the waiter's. VERIFY opens a connection
 * of its own, so that nothing waits for it.
 */
#include "sql_names.h"
#include "store/postgres.h"

#include <string.h>

/* ---- columns ------------------------------------------------------------ */

/* The order of LK_PG_OPERATION. */
enum lk_pg_operation_column {
    LK_PG_R_NUMBER,
    LK_PG_R_TENANT,
    LK_PG_R_SCOPE,
    LK_PG_R_KEY,
    LK_PG_R_STATE,
    LK_PG_R_TOKEN,
    LK_PG_R_ATTEMPT,
    LK_PG_R_GENERATION,
    LK_PG_R_FINGERPRINT,
    LK_PG_R_OWNER,
    LK_PG_R_CLAIMED,
    LK_PG_R_DEADLINE,
    LK_PG_R_TTL,
    LK_PG_R_KEEP,
    LK_PG_R_OMITTED,
    LK_PG_R_EVICTED,
    LK_PG_R_QUEUED,
    LK_PG_R_STATUS,
    LK_PG_R_COMPLETED,
    LK_PG_R_REASON,
    LK_PG_R_NOW,
    LK_PG_R_HIDDEN, /* past its time, or not what is listed */
    LK_PG_R_BYTES,
    LK_PG_R_HEADERS,
    LK_PG_R_BODY,
    /* Of a list that is not whole. */
    LK_PG_R_JOBS_OPEN,
    LK_PG_R_JOBS_DEAD,
    LK_PG_R_JOBS_UNCERTAIN,
};

/* As far as is known: KEEP may have asked for more than the claim. */
#define LK_PG_TTL "greatest(o.ttl_ms, o.keep_ms)"

#define LK_PG_WITH_RESPONSE    "a.headers, a.body"
#define LK_PG_WITHOUT_RESPONSE "NULL::bytea, NULL::bytea"

/* Past its time; but an operation with an unfinished job lives on. */
#define LK_PG_EXPIRED                                                          \
    "(o.state IN (" LK_SQL_STATES_FINISHED                                     \
    ") AND o.deadline_ms <= n.now AND NOT EXISTS (SELECT "                     \
    "FROM latchkey.job j WHERE j.number = o.number AND j.state IN "            \
    "(" LK_SQL_JOBS_UNFINISHED ")))"

/* The end of a lock, which EXTEND notes apart; of others, their own. */
#define LK_PG_DEADLINE                                                         \
    "CASE o.state WHEN " LK_SQL_STATE_IN_PROGRESS                              \
    " THEN greatest(o.deadline_ms, (SELECT e.until_ms "                        \
    "FROM latchkey.extension e WHERE e.token = o.token)) "                     \
    "ELSE o.deadline_ms END"

#define LK_PG_COLUMNS_OF(hidden, ttl, response)                                \
    "o.number, o.tenant, o.scope, o.key, o.state, o.token, o.attempt, "        \
    "o.generation, o.fingerprint, o.owner, o.claimed_ms, " LK_PG_DEADLINE      \
    ", " ttl ", o.keep_ms, o.omitted, o.evicted, o.queued, "                   \
    "o.status, o.completed_ms, o.reason, n.now, " hidden ", "                  \
    "(octet_length(a.headers) + octet_length(a.body))::bigint, " response

/* One moment for all rows. */
#define LK_PG_NOW "(SELECT latchkey.now_ms() AS now OFFSET 0) AS n"

/* clang-format off */
#define LK_PG_OPERATION(response)                                              \
    "SELECT " LK_PG_COLUMNS_OF(LK_PG_EXPIRED, LK_PG_TTL, response)             \
    " FROM " LK_PG_NOW " CROSS JOIN latchkey.operation o "                     \
    "LEFT JOIN latchkey.answer a ON a.token = o.token AND o.state = "          \
    LK_SQL_STATE_COMPLETED
/* clang-format on */

/* ---- statements on the reader's connection ---------------------------- */

/* One statement; the caller holds reader_lock and clears *result. A connection
 * that was lost in the meantime is opened again, once. LK_UNAVAILABLE: no
 * result. */
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
 * connection may be silent for long: it is one of its own, so that the reader's
 * connection stays usable. Both are used under reader_lock, so another read
 * waits for at most one timeout.
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

/* Appends to `text` and lets the slice point there; the caller has reserved the
 * room, so that the buffer does not move. */
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

static enum lk_status copy_operation_texts(const PGresult *result, int row,
                                           struct lk_operation *operation)
{
    const struct lk_pg_text texts[] = {
        {LK_PG_R_TENANT, false, &operation->name.tenant},
        {LK_PG_R_SCOPE, false, &operation->name.scope},
        {LK_PG_R_KEY, false, &operation->name.key},
        {LK_PG_R_FINGERPRINT, false, &operation->fingerprint},
        {LK_PG_R_OWNER, false, &operation->owner},
        {LK_PG_R_REASON, false, &operation->reason},
    };

    return lk_pg_texts(result, row, texts, sizeof(texts) / sizeof(texts[0]),
                       &operation->text);
}

/* What `deadline` means depends on the state. A lapsed lock is shown as
 * uncertain, whether or not the sweeper has been there. */
static void set_operation_times(const PGresult *result, int row,
                                struct lk_operation *operation)
{
    uint64_t deadline = lk_pg_uint(result, row, LK_PG_R_DEADLINE);

    switch (operation->state) {
    case LK_STATE_IN_PROGRESS:
        operation->lock_until_ms = deadline;
        if (deadline <= lk_pg_uint(result, row, LK_PG_R_NOW) &&
            !operation->queued) {
            /* Its lock has lapsed; the sweeper comes later. */
            operation->state = LK_STATE_UNCERTAIN;
            operation->since_ms = deadline;
        } else if (operation->queued) {
            operation->since_ms = operation->claimed_ms; /* accepted */
        }
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        operation->since_ms = deadline;
        break;
    default:
        operation->expires_ms = deadline;
        break;
    }
}

/* What a list shows of a response; read_stored_response has the rest. */
static void set_response(const PGresult *result, int row,
                         struct lk_operation *operation)
{
    if (operation->state == LK_STATE_COMPLETED) {
        operation->completed_ms = lk_pg_uint(result, row, LK_PG_R_COMPLETED);
        operation->status = (unsigned)lk_pg_uint(result, row, LK_PG_R_STATUS);
        operation->response_bytes = lk_pg_uint(result, row, LK_PG_R_BYTES);
    } else if (operation->state == LK_STATE_UNCERTAIN &&
               !operation->reason.len) {
        operation->reason = LK_SLICE("lock lapsed");
    }
}

/* Fills in the operation without its response. LK_CORRUPT: a state or token
 * that cannot be. The caller frees it, also after a failure. */
static enum lk_status read_operation_row(const PGresult *result, int row,
                                         struct lk_operation *operation)
{
    *operation = (struct lk_operation){
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
    if (operation->state > LK_STATE_RELEASED ||
        operation->token >= LK_TOKEN_END) {
        return LK_CORRUPT;
    }
    enum lk_status status = copy_operation_texts(result, row, operation);
    set_operation_times(result, row, operation);
    set_response(result, row, operation);
    return status;
}

/* LK_CORRUPT: it is completed, and its response is missing. */
static enum lk_status read_stored_response(const PGresult *result, int row,
                                           struct lk_operation *operation)
{
    struct lk_response response = {.status = operation->status};
    bool completed = operation->state == LK_STATE_COMPLETED;

    if (!completed && operation->state != LK_STATE_UNCERTAIN) {
        return LK_OK;
    }
    if (completed && !operation->omitted) {
        if (PQgetisnull(result, row, LK_PG_R_BODY)) {
            return LK_CORRUPT;
        }
        response.headers = lk_pg_bytes(result, row, LK_PG_R_HEADERS);
        response.body = lk_pg_bytes(result, row, LK_PG_R_BODY);
    }
    operation->stored = lk_stored_make(operation->token,
                                       completed ? operation->completed_ms
                                                 : operation->since_ms,
                                       &response, operation->reason);
    return operation->stored ? LK_OK : LK_NOMEM;
}

/* ---- one operation ---------------------------------------------------- */

static const char by_name[] = LK_PG_OPERATION(
    LK_PG_WITH_RESPONSE) " WHERE o.tenant = $1 AND o.scope = $2 "
                         "AND o.key = $3";
static const char by_number[] =
    LK_PG_OPERATION(LK_PG_WITH_RESPONSE) " WHERE o.number = $1";

/*
 * An expired operation is absent, although its row is still there. `shown`: to
 * a client, who relies on it, so it must be on the standby. What is loaded for
 * a verdict has waited for the standby with the verdict.
 */
static enum lk_status read_operation(struct lk_postgres *store, const char *sql,
                                     const struct lk_pg_params *params,
                                     bool shown, struct lk_operation *operation)
{
    PGresult *result = NULL;

    *operation = (struct lk_operation){0};
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
        status = read_operation_row(result, 0, operation);
    }
    if (!status) {
        status = read_stored_response(result, 0, operation);
    }
    PQclear(result);
    if (status) {
        lk_operation_free(operation);
    }
    return status;
}

enum lk_status lk_postgres_lookup(struct lk_store *base, struct lk_name name,
                                  struct lk_operation *operation)
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
        status = read_operation(store, by_name, &params, true, operation);
    }
    for (int i = 0; i < 3; i++) {
        latchkey_buf_free(&texts[i]);
    }
    return status;
}

/* A reference of another tenant is not found: no one learns that it exists. */
enum lk_status lk_postgres_find(struct lk_store *base, struct lk_slice tenant,
                                uint64_t number, struct lk_operation *operation)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_params params = {0};

    lk_pg_add_int(&params, (int64_t)number);
    enum lk_status status =
        read_operation(store, by_number, &params, true, operation);
    if (!status && tenant.len &&
        !latchkey_slice_equal(operation->name.tenant, tenant)) {
        lk_operation_free(operation);
        status = LK_NOT_FOUND;
    }
    return status;
}

/* ---- the response for a replay ---------------------------------------- */

/* Row and response are read in one statement: one without the other is damage.
 */
static enum lk_status load_stored(struct lk_postgres *store, struct lk_op *op)
{
    struct lk_pg_params params = {0};
    struct lk_operation operation;

    lk_pg_add_int(&params, (int64_t)op->out.number);
    enum lk_status status =
        read_operation(store, by_number, &params, false, &operation);
    if (status == LK_NOT_FOUND) {
        return LK_AGAIN;
    }
    if (status) {
        return status;
    }
    if (operation.token != op->out.token || operation.state != op->out.state ||
        !operation.stored) {
        status = LK_AGAIN;
    } else {
        op->out.stored = lk_stored_ref(operation.stored);
    }
    lk_operation_free(&operation);
    return status;
}

/* The cache saves the read; a response that it lacks is put into it. */
enum lk_status lk_postgres_load(struct lk_store *base, struct lk_op *op)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    bool cached = store->cache && (op->out.verdict == LK_VERDICT_REPLAY ||
                                   op->out.verdict == LK_VERDICT_OMITTED);
    enum lk_status status = LK_OK;

    if (cached) {
        op->out.stored = lk_response_cache_get(store->cache, op);
    }
    if (!op->out.stored) {
        status = load_stored(store, op);
        uint64_t now = lk_pg_now_ms(store);
        if (!status && cached && op->out.expires_ms > now) {
            lk_response_cache_put(store->cache, op, op->out.stored,
                                  op->out.expires_ms - now);
        }
    }
    if (!status) {
        op->out.needs_load = false;
    }
    return status;
}

/* ---- lists -------------------------------------------------------------- */

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

/*
 * $1 cursor, $2 rows to look at, $3 any state, $4 state, $5 tenant, $6 older
 * than, $7 scope, $8 claimed then or later, $9 claimed before then, $10 only
 * what needs a person, $11 in progress for at least. A row that does not match
 * comes too, hidden: its number moves the cursor.
 */
#define STATE                                                                  \
    "CASE WHEN o.state = " LK_SQL_STATE_IN_PROGRESS " AND " LK_PG_DEADLINE     \
    " <= n.now AND NOT o.queued THEN " LK_SQL_STATE_UNCERTAIN                  \
    " ELSE o.state END"

#define MATCHES                                                                \
    "NOT " LK_PG_EXPIRED " AND ($3 OR $4 = " STATE                             \
    ") AND ($5 = '' OR o.tenant = $5) "                                        \
    "AND n.now - o.claimed_ms >= $6 AND ($7 = '' OR o.scope = $7) "            \
    "AND o.claimed_ms >= $8 AND o.claimed_ms < $9 "

/* As lk_list_needs_person. */
#define NEEDS_PERSON                                                           \
    "AND (NOT $10 OR " STATE " = " LK_SQL_STATE_UNCERTAIN                      \
    " OR o.state = " LK_SQL_STATE_IN_PROGRESS " AND n.now - o.claimed_ms "     \
    ">= $11 OR EXISTS (SELECT FROM latchkey.job j WHERE "                      \
    "j.number = o.number AND j.state IN (" LK_SQL_JOBS_STUCK "))) "

#define PAGE(of, after, order)                                                 \
    "(SELECT p.* FROM latchkey.operation p WHERE p.number " after " $1 " of    \
    "ORDER BY p.number " order " LIMIT $2)"

/* Unfinished operations are few and have an index; so have the jobs that need a
 * person. */
#define OPEN "AND p.state IN (" LK_SQL_STATES_OPEN ") "
#define STUCK                                                                  \
    "AND p.number IN (SELECT s.number FROM latchkey.operation s "              \
    "WHERE s.state IN (" LK_SQL_STATES_OPEN                                    \
    ") UNION SELECT j.number FROM latchkey.job j "                             \
    "WHERE j.state IN (" LK_SQL_JOBS_STUCK ")) "

/* clang-format off */
#define LIST(page, order, matches, ttl, response, more, join)                  \
    "SELECT " LK_PG_COLUMNS_OF("NOT m.shown", ttl, response) more              \
    " FROM " LK_PG_NOW " CROSS JOIN " page " AS o CROSS JOIN LATERAL "         \
    "(SELECT " matches " AS shown OFFSET 0) AS m LEFT JOIN latchkey.answer a " \
    "ON a.token = o.token AND o.state = " LK_SQL_STATE_COMPLETED               \
    " AND m.shown " join                                                       \
    "ORDER BY o.number " order

#define SHORT(of, after, order)                                                \
    LIST(PAGE(of, after, order), order, MATCHES NEEDS_PERSON, LK_PG_TTL,       \
         LK_PG_WITHOUT_RESPONSE, ", u.open, u.dead, u.uncertain",              \
         "LEFT JOIN LATERAL (SELECT count(*) AS open, "                        \
         "count(*) FILTER (WHERE j.state = " LK_SQL_JOB_DEAD ") AS dead, "     \
         "count(*) FILTER (WHERE j.state = " LK_SQL_JOB_UNCERTAIN              \
         ") AS uncertain "                                                     \
         "FROM latchkey.job j WHERE m.shown AND j.number = o.number "          \
         "AND j.state IN (" LK_SQL_JOBS_UNFINISHED ")) AS u ON true ")
/* clang-format on */

/* One page of LIST, on the stack of lk_postgres_list. */
struct list_page {
    const struct lk_list_query *query;
    lk_operation_fn fn;
    void *context;
    uint64_t *next;
    size_t looked;
    size_t shown;
    bool stopped;
};

/* Called for each row; a hidden one only moves the cursor. Once the caller has
 * stopped, the rest of the rows is skipped. */
static enum lk_status show_operation(const PGresult *result, int row,
                                     void *context)
{
    struct list_page *page = context;
    struct lk_operation operation = {0};
    enum lk_status status = LK_OK;

    if (page->stopped) {
        return LK_OK;
    }
    page->looked++;
    *page->next = lk_pg_uint(result, row, LK_PG_R_NUMBER);
    if (!lk_pg_int(result, row, LK_PG_R_HIDDEN)) {
        status = read_operation_row(result, row, &operation);
        if (!status && page->query->whole) {
            status = read_stored_response(result, row, &operation);
        } else if (!status) {
            operation.jobs_open = lk_pg_uint(result, row, LK_PG_R_JOBS_OPEN);
            operation.jobs_dead = lk_pg_uint(result, row, LK_PG_R_JOBS_DEAD);
            operation.jobs_uncertain =
                lk_pg_uint(result, row, LK_PG_R_JOBS_UNCERTAIN);
        }
        if (!status) {
            page->shown++;
            page->stopped = !page->fn(page->context, &operation) ||
                            page->shown >= page->query->limit;
        }
        lk_operation_free(&operation);
    }
    return status;
}

/* Calls `row` for each row as it arrives, so that a page of large
 * responses is never in memory as a whole. After a failure of `row` the
 * rest is read and dropped, so that the connection stays usable. The
 * caller holds reader_lock. */
enum lk_status lk_pg_stream(struct lk_postgres *store, const char *sql,
                            const struct lk_pg_params *params, lk_pg_row_fn row,
                            void *context)
{
    struct lk_pg_conn *conn = &store->reader;
    enum lk_status status = lk_pg_ready(conn, lk_pg_deadline(store));
    enum lk_status shown = LK_OK;
    PGresult *result;

    if (status) {
        return LK_UNAVAILABLE;
    }
    if (!PQsendQueryParams(conn->pg, sql, params->count, params->types,
                           params->values, params->lengths, params->formats,
                           1) ||
        !PQsetSingleRowMode(conn->pg)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_UNAVAILABLE;
    }
    while (!(status = lk_pg_next(conn, lk_pg_deadline(store), &result)) &&
           result) {
        ExecStatusType state = PQresultStatus(result);
        if (state == PGRES_SINGLE_TUPLE && !shown) {
            shown = row(result, 0, context);
        } else if (state == PGRES_FATAL_ERROR) {
            lk_pg_note_error(conn, result);
            lk_pg_log(store, LK_PG_ERROR,
                      "the database refused a list: %s (%s)", conn->message,
                      conn->sqlstate);
            shown = LK_UNAVAILABLE;
        }
        PQclear(result);
    }
    if (status) {
        lk_pg_lost(conn, conn->message);
    }
    return status ? LK_UNAVAILABLE : shown;
}

/* The statement whose index fits the filter. */
static const char *choose_list_sql(const struct lk_list_query *query)
{
    bool open = !query->any_state && (query->state == LK_STATE_IN_PROGRESS ||
                                      query->state == LK_STATE_UNCERTAIN);

    if (query->whole) {
        return LIST(PAGE("", ">", ""), "", MATCHES, "o.ttl_ms",
                    LK_PG_WITH_RESPONSE, "", "");
    }
    if (query->attention) {
        return query->newest ? SHORT(STUCK, "<", "DESC")
                             : SHORT(STUCK, ">", "");
    }
    if (open) {
        return query->newest ? SHORT(OPEN, "<", "DESC") : SHORT(OPEN, ">", "");
    }
    return query->newest ? SHORT("", "<", "DESC") : SHORT("", ">", "");
}

/* 0 means no limit. */
static int64_t positive_or_max(uint64_t value)
{
    return value && value < INT64_MAX ? (int64_t)value : INT64_MAX;
}

/* A page may be empty and still have a next one: *next is the number of the
 * last row that was looked at; 0: there are no more. */
enum lk_status lk_postgres_list(struct lk_store *base,
                                const struct lk_list_query *query,
                                lk_operation_fn fn, void *context,
                                uint64_t *next)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct list_page page = {query, fn, context, next, 0, 0, false};
    struct lk_pg_params params = {0};
    struct lk_buf tenant = {0};
    struct lk_buf scope = {0};
    bool all = query->any_state && !query->tenant.len && !query->scope.len &&
               !query->older_than_ms && !query->since_ms && !query->until_ms &&
               !query->attention;
    size_t look = all && query->limit < LOOK_AT ? query->limit : LOOK_AT;
    enum lk_status status = lk_pg_escape(query->tenant, &tenant);

    if (!status) {
        status = lk_pg_escape(query->scope, &scope);
    }
    *next = query->cursor;
    lk_pg_add_int(&params, query->newest ? positive_or_max(query->cursor)
                                         : (int64_t)query->cursor);
    lk_pg_add_int(&params, (int64_t)look);
    lk_pg_add_bool(&params, query->any_state);
    lk_pg_add_int(&params, (int64_t)query->state);
    lk_pg_add_text(&params, latchkey_buf_slice(&tenant));
    lk_pg_add_int(&params, (int64_t)query->older_than_ms);
    lk_pg_add_text(&params, latchkey_buf_slice(&scope));
    lk_pg_add_int(&params, (int64_t)query->since_ms);
    lk_pg_add_int(&params, positive_or_max(query->until_ms));
    lk_pg_add_bool(&params, query->attention);
    lk_pg_add_int(&params, (int64_t)query->long_ms);
    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_stream(store, choose_list_sql(query), &params,
                              show_operation, &page);
        pthread_mutex_unlock(&store->reader_lock);
    }
    if (!status && !page.stopped && page.looked < look) {
        *next = 0;
    }
    latchkey_buf_free(&tenant);
    latchkey_buf_free(&scope);
    return status;
}

/* ---- the audit log ---------------------------------------------------- */

/* The entry's texts are in `text` and valid during the call of `fn`. */
static enum lk_status show_audit_entry(const PGresult *result, int row,
                                       struct lk_buf *text, lk_audit_fn fn,
                                       void *context, bool *stopped)
{
    struct lk_audit_entry entry = {
        .id = lk_pg_uint(result, row, 0),
        .at_ms = lk_pg_uint(result, row, 1),
        .token = lk_pg_uint(result, row, 8),
    };
    struct lk_slice *slices[] = {&entry.who,        &entry.why,
                                 &entry.action,     &entry.name.tenant,
                                 &entry.name.scope, &entry.name.key};
    size_t total = 1;

    for (int i = 0; i < 6; i++) {
        total += (size_t)PQgetlength(result, row, i + 2) + 1;
    }
    text->len = 0;
    enum lk_status status = latchkey_buf_reserve(text, total);
    for (int i = 0; i < 6 && !status; i++) {
        size_t start = text->len;
        status = lk_pg_unescape(lk_pg_bytes(result, row, i + 2), text);
        *slices[i] = (struct lk_slice){text->data + start, text->len - start};
    }
    if (!status) {
        *stopped = !fn(context, &entry);
    }
    return status;
}

#define AUDIT(order)                                                           \
    "SELECT id, at_ms, who, why, action, tenant, scope, key, token "           \
    "FROM latchkey.audit WHERE " LK_AUDIT_MATCHES(                             \
        "$", "at_ms") "ORDER BY id " order " LIMIT $11"

enum { AUDIT_TEXTS = 5 };

/* In the order of LK_AUDIT_MATCHES. `texts` has to outlive the statement. */
static enum lk_status add_audit_params(struct lk_pg_params *params,
                                       const struct lk_audit_query *query,
                                       struct lk_buf texts[AUDIT_TEXTS])
{
    const struct lk_slice slices[AUDIT_TEXTS] = {
        query->who, query->action, query->name.tenant, query->name.scope,
        query->name.key};
    enum lk_status status = LK_OK;

    lk_pg_add_int(params, (int64_t)query->after);
    lk_pg_add_int(params, positive_or_max(query->before));
    lk_pg_add_int(params, (int64_t)query->since_ms);
    lk_pg_add_int(params, positive_or_max(query->until_ms));
    for (int i = 0; i < AUDIT_TEXTS && !status; i++) {
        status = lk_pg_escape(slices[i], &texts[i]);
        lk_pg_add_text(params, latchkey_buf_slice(&texts[i]));
    }
    lk_pg_add_int(params, (int64_t)query->job);
    lk_pg_add_int(params, positive_or_max(query->limit));
    return status;
}

enum lk_status lk_postgres_audit(struct lk_store *base,
                                 const struct lk_audit_query *query,
                                 lk_audit_fn fn, void *context)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_params params = {0};
    struct lk_buf texts[AUDIT_TEXTS] = {{0}};
    struct lk_buf text = {0};
    PGresult *result = NULL;
    bool stopped = false;
    enum lk_status status = add_audit_params(&params, query, texts);

    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_read(store, query->newest ? AUDIT("DESC") : AUDIT(""),
                            &params, &result);
        pthread_mutex_unlock(&store->reader_lock);
    }
    for (int i = 0; !status && !stopped && i < PQntuples(result); i++) {
        status = show_audit_entry(result, i, &text, fn, context, &stopped);
    }
    PQclear(result);
    for (int i = 0; i < AUDIT_TEXTS; i++) {
        latchkey_buf_free(&texts[i]);
    }
    latchkey_buf_free(&text);
    return status;
}

/* ---- verification ------------------------------------------------------- */

enum { PAGE_ROWS = 5000, FINDINGS_MOST = 100 };

#define VERIFY_PATIENCE_NS (UINT64_C(600) * 1000000000)

/* Rows and responses of one page are of one moment. LATERAL and LIMIT: a lookup
 * for each row, so that a page costs the same in a table of any size. */
static const char look_at_operations[] =
    "SELECT o.number, CASE"
    " WHEN o.state = " LK_SQL_STATE_COMPLETED
    " AND NOT o.omitted AND a.token IS NULL"
    " THEN 'its response is missing'"
    " WHEN (o.state <> " LK_SQL_STATE_COMPLETED
    " OR o.omitted) AND a.token IS NOT NULL"
    " THEN 'it has a response that it should not have'"
    " WHEN o.state = " LK_SQL_STATE_COMPLETED
    " AND (o.status IS NULL OR o.completed_ms IS NULL)"
    " THEN 'it is completed without a status or a time'"
    " WHEN o.token > (SELECT s.last_value FROM latchkey.token s)"
    " THEN 'its token was never handed out'"
    " WHEN o.state = " LK_SQL_STATE_ACCEPTED " AND NOT o.queued"
    " THEN 'it is accepted, and nothing will run it'"
    " WHEN o.queued AND o.state IN (" LK_SQL_STATES_FINISHED ")"
    " THEN 'it is finished, and its request is not'"
    " WHEN o.queued AND NOT EXISTS (SELECT FROM latchkey.job j WHERE"
    " j.number = o.number AND j.name = '' AND j.state IN "
    "(" LK_SQL_JOBS_UNFINISHED "))"
    " THEN 'its request is missing'"
    " END"
    " FROM (SELECT p.* FROM latchkey.operation p WHERE p.number > $1"
    " ORDER BY p.number LIMIT $2) AS o"
    " LEFT JOIN LATERAL (SELECT b.token FROM latchkey.answer b WHERE"
    " b.token = o.token LIMIT 1) AS a ON true ORDER BY o.number";

/* A request and its operation are in matching states (jobs.h). One that may run
 * again stays leased while its holder is in doubt. */
static const char look_at_jobs[] =
    "SELECT j.id, CASE"
    " WHEN o.number IS NULL THEN 'it belongs to no operation'"
    " WHEN (j.name = '') <> (j.target = '@gateway')"
    " THEN 'it is half a request'"
    " WHEN j.state IN (" LK_SQL_JOB_LEASED ", " LK_SQL_JOBS_STUCK
    ") AND j.attempts = 0"
    " THEN 'its state needs a lease, and it was never leased'"
    " WHEN (j.ended_ms > 0) <> (j.state NOT IN (" LK_SQL_JOBS_TIMED "))"
    " THEN 'the time of its state is wrong'"
    " WHEN j.name = '' AND j.state IN (" LK_SQL_JOBS_UNFINISHED
    ") AND NOT o.queued"
    " THEN 'its operation does not know of it'"
    " WHEN j.name = '' AND j.state IN (" LK_SQL_JOBS_UNFINISHED
    ") AND NOT (j.state, o.state) IN"
    " ((" LK_SQL_JOB_WAITING ", " LK_SQL_STATE_ACCEPTED "),"
    " (" LK_SQL_JOB_LEASED ", " LK_SQL_STATE_IN_PROGRESS "),"
    " (" LK_SQL_JOB_UNCERTAIN ", " LK_SQL_STATE_UNCERTAIN "))"
    " AND NOT (j.state = " LK_SQL_JOB_LEASED
    " AND o.state = " LK_SQL_STATE_UNCERTAIN " AND"
    " j.repeatable)"
    " THEN 'its state does not match its operation'"
    " END"
    " FROM (SELECT p.* FROM latchkey.job p WHERE p.id > $1"
    " ORDER BY p.id LIMIT $2) AS j"
    " LEFT JOIN LATERAL (SELECT q.number, q.state, q.queued FROM"
    " latchkey.operation q WHERE q.number = j.number LIMIT 1) AS o ON true"
    " ORDER BY j.id";

static const struct {
    const char *what;
    const char *of;
    const char *sql;
} orphans[] = {
    {"response", "it belongs to no operation",
     "SELECT a.token FROM latchkey.answer a WHERE NOT EXISTS (SELECT FROM "
     "latchkey.operation o WHERE o.token = a.token) LIMIT 100"},
    {"attempt of job", "there is no such job",
     "SELECT a.job FROM latchkey.attempt a WHERE NOT EXISTS (SELECT FROM "
     "latchkey.job j WHERE j.id = a.job) LIMIT 100"},
};

struct verification {
    struct lk_pg_conn conn;
    struct lk_buf *report;
    uint64_t done, total;
    uint64_t findings;
};

static enum lk_status add_finding(struct verification *check, const char *what,
                                  uint64_t number, const char *finding)
{
    if (++check->findings > FINDINGS_MOST) {
        return LK_OK;
    }
    return latchkey_buf_printf(check->report, "%s %llu: %s\n", what,
                               (unsigned long long)number, finding);
}

/* Looks at the next PAGE_ROWS rows. A row without a finding has null. */
static enum lk_status verify_page(struct verification *check, const char *what,
                                  const char *sql, uint64_t *cursor, bool *end)
{
    struct lk_pg_params params = {0};
    PGresult *result;

    lk_pg_add_int(&params, (int64_t)*cursor);
    lk_pg_add_int(&params, PAGE_ROWS);
    enum lk_status status = lk_pg_run(
        &check->conn, sql, &params, lk_pg_deadline(check->conn.store), &result);
    if (status) {
        return LK_UNAVAILABLE;
    }
    int rows = PQntuples(result);
    for (int i = 0; i < rows && !status; i++) {
        *cursor = lk_pg_uint(result, i, 0);
        if (!PQgetisnull(result, i, 1)) {
            status =
                add_finding(check, what, *cursor, PQgetvalue(result, i, 1));
        }
    }
    check->done += (uint64_t)rows;
    *end = rows < PAGE_ROWS;
    PQclear(result);
    return status;
}

/* Through a pooler the session is not ours to set, and has no limit of ours. */
static enum lk_status verify_orphans(struct verification *check, size_t which)
{
    struct lk_postgres *store = check->conn.store;
    enum lk_status status = LK_OK;
    PGresult *result;

    if (!store->config.pooler) {
        status = lk_pg_script(&check->conn, "SET statement_timeout = 0",
                              lk_pg_deadline(store));
    }
    if (!status) {
        status = lk_pg_run(&check->conn, orphans[which].sql, NULL,
                           lk_pg_clock_ns() + VERIFY_PATIENCE_NS, &result);
    }
    if (status) {
        return LK_UNAVAILABLE;
    }
    for (int i = 0; i < PQntuples(result) && !status; i++) {
        status = add_finding(check, orphans[which].what,
                             lk_pg_uint(result, i, 0), orphans[which].of);
    }
    PQclear(result);
    return status;
}

struct verify_walk {
    lk_progress_fn progress;
    void *context;
};

/* Page by page until the end, or until the store is closed. */
static enum lk_status verify_table(struct verification *check,
                                   const struct verify_walk *walk,
                                   const char *what, const char *sql)
{
    uint64_t cursor = 0;
    enum lk_status status = LK_OK;
    bool end = false;

    while (!status && !end && !atomic_load(&check->conn.store->stopping)) {
        status = verify_page(check, what, sql, &cursor, &end);
        if (walk->progress) {
            walk->progress(walk->context, check->done,
                           check->total > check->done ? check->total
                                                      : check->done);
        }
    }
    return status;
}

/* Long work. LK_OK: sound. LK_CORRUPT: `report` has the findings, at most
 * FINDINGS_MOST of them. LK_UNAVAILABLE: it could not be finished. Pages are of
 * different moments; each is consistent in itself. */
enum lk_status lk_postgres_verify(struct lk_store *base,
                                  lk_progress_fn progress, void *context,
                                  struct lk_buf *report)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct verification check = {
        .conn = {.store = store, .what = "verify"},
        .report = report,
    };
    const struct verify_walk walk = {progress, context};
    enum lk_status status = lk_pg_ready(&check.conn, lk_pg_deadline(store));

    pthread_mutex_lock(&store->lock);
    check.total = store->counts.operations;
    pthread_mutex_unlock(&store->lock);
    if (!status) {
        status = verify_table(&check, &walk, "operation", look_at_operations);
    }
    if (!status) {
        status = verify_table(&check, &walk, "job", look_at_jobs);
    }
    for (size_t i = 0; i < sizeof(orphans) / sizeof(orphans[0]) && !status &&
                       !atomic_load(&store->stopping);
         i++) {
        status = verify_orphans(&check, i);
    }
    if (!status && check.findings > FINDINGS_MOST) {
        status = latchkey_buf_printf(
            report, "and %llu more\n",
            (unsigned long long)(check.findings - FINDINGS_MOST));
    }
    lk_pg_close(&check.conn);
    if (status) {
        return status == LK_NOMEM ? LK_NOMEM : LK_UNAVAILABLE;
    }
    return check.findings ? LK_CORRUPT : LK_OK;
}
