/*
 * postgres_jobs.c - jobs: the courier's part of a batch (ends, marks, actions,
 * leases) as one transaction, and jobs and targets as they are shown. The SQL
 * functions decide; see store/sql.
 *
 * The courier's part runs on the job lanes, the lists on the reader's
 * connection. A part of a job batch is one statement; all of them are one
 * transaction, which either counts whole or changes nothing.
 */
#include "sql_names.h"
#include "store/postgres.h"
#include "store/sql_codes.h"

#include <string.h>

/* Up to SENT_AT that of latchkey.lease (06_jobs.sql); all of them that of the
 * lists in postgres_jobs.c. */
enum lk_pg_job_column {
    LK_PG_J_KIND, /* a list: hidden, not what is asked for; only its id counts
                   */
    LK_PG_J_ID,
    LK_PG_J_TENANT,
    LK_PG_J_SCOPE,
    LK_PG_J_KEY,
    LK_PG_J_NUMBER,
    LK_PG_J_GENERATION,
    LK_PG_J_TOKEN,
    LK_PG_J_RUN,
    LK_PG_J_NAME,
    LK_PG_J_TARGET,
    LK_PG_J_METHOD,
    LK_PG_J_PATH,
    LK_PG_J_HEADERS,
    LK_PG_J_BODY,
    LK_PG_J_ATTEMPTS,
    LK_PG_J_FORGIVEN,
    LK_PG_J_SENT,
    LK_PG_J_DOUBT,
    LK_PG_J_REPEATABLE,
    LK_PG_J_CREATED,
    LK_PG_J_DUE,
    LK_PG_J_NOW,
    LK_PG_J_STATUS,
    LK_PG_J_PROVIDER,
    LK_PG_J_REASON,
    LK_PG_J_SINCE,
    LK_PG_J_SENT_AT,
    /* Only in a list: */
    LK_PG_J_STATE,
    LK_PG_J_CALLED,
    LK_PG_J_ENDED,
    LK_PG_J_RESPONSE_HEADERS,
    LK_PG_J_RESPONSE_BODY,
};

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

/* ---- rows ------------------------------------------------------------- */

/* clang-format off */
/* The order of enum lk_pg_job_column. */
#define COLUMNS(call, response)                                                  \
    "NOT m.shown, j.id, o.tenant, o.scope, o.key, j.number, j.generation, "    \
    "j.token, o.attempt, j.name, j.target, j.method, j.path, " call ", "       \
    "j.attempts, j.forgiven, j.sent, j.doubt, j.repeatable, j.created_ms, "    \
    "j.due_ms, n.now, j.status, j.provider_id, j.reason, j.since_ms, "         \
    "j.sent_ms, j.state, j.called, j.ended_ms, " response

#define NO_BYTES "NULL::bytea, NULL::bytea"
#define WITHOUT_BYTES COLUMNS(NO_BYTES, NO_BYTES)
#define WITH_BYTES                                                             \
    COLUMNS("CASE WHEN m.shown THEN j.headers END, "                           \
            "CASE WHEN m.shown THEN j.body END",                               \
            "CASE WHEN m.shown THEN j.answer_headers END, "                    \
            "CASE WHEN m.shown THEN j.answer_body END")

#define NOW_ONCE "(SELECT latchkey.now_ms() AS now OFFSET 0) AS n"
#define OPERATION                                                              \
    "LEFT JOIN LATERAL (SELECT p.tenant, p.scope, p.key, p.attempt FROM "      \
    "latchkey.operation p WHERE p.number = j.number LIMIT 1) AS o ON true "
/* clang-format on */

/* Fills in the job; its texts are copied to job->text, and the caller frees it
 * with lk_job_free. `listed`: the row also has the response. */
static enum lk_status read_job_columns(const PGresult *result, int row,
                                       bool listed, struct lk_job *job)
{
    const struct lk_pg_text texts[] = {
        {LK_PG_J_TENANT, false, &job->operation.tenant},
        {LK_PG_J_SCOPE, false, &job->operation.scope},
        {LK_PG_J_KEY, false, &job->operation.key},
        {LK_PG_J_NAME, false, &job->name},
        {LK_PG_J_TARGET, false, &job->target},
        {LK_PG_J_METHOD, false, &job->method},
        {LK_PG_J_PATH, false, &job->path},
        {LK_PG_J_PROVIDER, false, &job->provider_id},
        {LK_PG_J_REASON, false, &job->reason},
        {LK_PG_J_HEADERS, true, &job->headers},
        {LK_PG_J_BODY, true, &job->body},
        {LK_PG_J_RESPONSE_HEADERS, true, &job->response.headers},
        {LK_PG_J_RESPONSE_BODY, true, &job->response.body},
    };
    size_t count = sizeof(texts) / sizeof(texts[0]);

    job->id = lk_pg_uint(result, row, LK_PG_J_ID);
    job->number = lk_pg_uint(result, row, LK_PG_J_NUMBER);
    job->generation = lk_pg_uint(result, row, LK_PG_J_GENERATION);
    job->token = lk_pg_uint(result, row, LK_PG_J_TOKEN);
    job->run = lk_pg_uint(result, row, LK_PG_J_RUN);
    job->state = LK_JOB_LEASED;
    job->attempts = (unsigned)lk_pg_uint(result, row, LK_PG_J_ATTEMPTS);
    job->forgiven = (unsigned)lk_pg_uint(result, row, LK_PG_J_FORGIVEN);
    job->sent = lk_pg_int(result, row, LK_PG_J_SENT);
    job->doubt = lk_pg_int(result, row, LK_PG_J_DOUBT);
    job->repeatable = lk_pg_int(result, row, LK_PG_J_REPEATABLE);
    job->created_ms = lk_pg_uint(result, row, LK_PG_J_CREATED);
    job->due_ms = lk_pg_uint(result, row, LK_PG_J_DUE);
    job->now_ms = lk_pg_uint(result, row, LK_PG_J_NOW);
    job->status = (unsigned)lk_pg_uint(result, row, LK_PG_J_STATUS);
    job->since_ms = lk_pg_uint(result, row, LK_PG_J_SINCE);
    job->sent_ms = lk_pg_uint(result, row, LK_PG_J_SENT_AT);
    return lk_pg_texts(result, row, texts, listed ? count : count - 2,
                       &job->text);
}

/* A request's token and run are those of its operation while it is leased. */
static enum lk_status read_job_row(const PGresult *result, int row,
                                   struct lk_job *job)
{
    enum lk_status status = read_job_columns(result, row, true, job);

    job->state = (enum lk_job_state)lk_pg_uint(result, row, LK_PG_J_STATE);
    if (!status && job->state >= LK_JOB_STATES) {
        status = LK_CORRUPT;
    }
    job->called = lk_pg_int(result, row, LK_PG_J_CALLED);
    job->ended_ms = lk_pg_uint(result, row, LK_PG_J_ENDED);
    job->response.status = job->status;
    if (job->state != LK_JOB_WAITING && job->state != LK_JOB_LEASED) {
        job->due_ms = 0;
    }
    if (job->name.len || job->state != LK_JOB_LEASED) {
        job->token = job->run = 0;
    }
    return status;
}

/* ---- many ------------------------------------------------------------- */

/*
 * $1 cursor, $2 rows to look at, $3 any state, $4 unfinished, $5 state, $6
 * target, $7 tenant, $8 number of the operation, $9 age, $10 since, $11 until,
 * $12 the provider's id. A row that does not match comes too, hidden: its id
 * moves the cursor.
 */
#define MATCHES                                                                \
    "($3 OR CASE WHEN $4 THEN j.state IN (" LK_SQL_JOBS_UNFINISHED             \
    ") ELSE j.state = $5 END) AND "                                            \
    "($6 = '' OR j.target = $6) AND ($7 = '' OR coalesce(o.tenant = $7, "      \
    "false)) AND ($8 = 0 OR j.number = $8) AND j.created_ms + $9 <= n.now "    \
    "AND j.created_ms >= $10 AND ($11 = 0 OR j.created_ms < $11) AND "         \
    "($12 = '' OR j.provider_id = $12)"

#define PAGE(which)                                                            \
    "(SELECT k.* FROM latchkey.job k WHERE k.id > $1" which                    \
    " ORDER BY k.id LIMIT $2)"

/* What waits or is on its way, and what is stuck, have indexes of their own:
 * the conditions are theirs, as 01_schema.sql has them. */
#define IS_TIMED "state < " LK_SQL_JOB_UNCERTAIN
#define IS_STUCK "state IN (" LK_SQL_JOBS_STUCK ")"
#define OPEN_PAGE                                                              \
    "(SELECT b.* FROM (" PAGE(" AND k." IS_TIMED) " UNION ALL " PAGE(          \
        " AND k." IS_STUCK) ") AS b ORDER BY b.id LIMIT $2)"

/* clang-format off */
#define LIST(page, columns)                                                    \
    "SELECT " columns " FROM " NOW_ONCE " CROSS JOIN " page                    \
    " AS j " OPERATION "CROSS JOIN LATERAL (SELECT " MATCHES " AS shown "      \
    "OFFSET 0) AS m ORDER BY j.id"

#define LISTS(columns)                                                         \
    {LIST(PAGE(""), columns), LIST(PAGE(" AND k.number = $8"), columns),       \
     LIST(PAGE(" AND k.provider_id = $12 AND k.provider_id <> ''"), columns),  \
     LIST(PAGE(" AND k." IS_TIMED), columns),                                  \
     LIST(PAGE(" AND k." IS_STUCK), columns), LIST(OPEN_PAGE, columns)}
/* clang-format on */

/* The statement whose index fits the filter best; MATCHES applies the rest. */
static const char *choose_jobs_sql(const struct lk_jobs_query *query)
{
    enum { ALL, OPERATIONS, PROVIDERS, MOVING, STUCK, OPEN, WAYS };
    static const char *const lists[2][WAYS] = {LISTS(WITHOUT_BYTES),
                                               LISTS(WITH_BYTES)};
    int way = ALL;

    if (query->number) {
        way = OPERATIONS;
    } else if (query->provider_id.len) {
        way = PROVIDERS;
    } else if (query->any_state) {
        way = ALL;
    } else if (query->unfinished) {
        way = OPEN;
    } else if (query->state == LK_JOB_WAITING ||
               query->state == LK_JOB_LEASED) {
        way = MOVING;
    } else if (query->state == LK_JOB_UNCERTAIN ||
               query->state == LK_JOB_DEAD) {
        way = STUCK;
    }
    return lists[query->whole][way];
}

/* One page of JOBS, on the stack of lk_postgres_jobs. */
struct jobs_page {
    const struct lk_jobs_query *query;
    lk_job_fn fn;
    void *context;
    uint64_t *next;
    size_t looked;
    size_t shown;
    bool stopped;
};

/* Called for each row. A hidden row only moves the cursor. */
static enum lk_status show_job(const PGresult *result, int row, void *context)
{
    struct jobs_page *page = context;
    struct lk_job job = {0};
    enum lk_status status = LK_OK;

    if (page->stopped) {
        return LK_OK;
    }
    page->looked++;
    *page->next = lk_pg_uint(result, row, LK_PG_J_ID);
    if (!lk_pg_int(result, row, LK_PG_J_KIND)) {
        status = read_job_row(result, row, &job);
        if (!status) {
            page->shown++;
            page->stopped = !page->fn(page->context, &job) ||
                            page->shown >= page->query->limit;
        }
        lk_job_free(&job);
    }
    return status;
}

static int64_t bounded_time(uint64_t ms)
{
    return ms < LK_IMPORT_TIME_MAX ? (int64_t)ms : (int64_t)LK_IMPORT_TIME_MAX;
}

/* A page may be empty and still have a next one: *next is the id of the last
 * row that was looked at; 0: there are no more. */
enum lk_status lk_postgres_jobs(struct lk_store *base,
                                const struct lk_jobs_query *query, lk_job_fn fn,
                                void *context, uint64_t *next)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct jobs_page page = {query, fn, context, next, 0, 0, false};
    struct lk_pg_params params = {0};
    struct lk_buf target = {0}, tenant = {0}, provider_id = {0};
    bool all = query->any_state && !query->target.len && !query->tenant.len &&
               !query->provider_id.len && !query->older_than_ms &&
               !query->since_ms && !query->until_ms;
    size_t look = all && query->limit < LOOK_AT ? query->limit : LOOK_AT;
    enum lk_status status = lk_pg_escape(query->target, &target);

    if (!status) {
        status = lk_pg_escape(query->tenant, &tenant);
    }
    if (!status) {
        status = lk_pg_escape(query->provider_id, &provider_id);
    }
    *next = query->cursor;
    lk_pg_add_int(&params, (int64_t)query->cursor);
    lk_pg_add_int(&params, (int64_t)look);
    lk_pg_add_bool(&params, query->any_state);
    lk_pg_add_bool(&params, query->unfinished);
    lk_pg_add_int(&params, (int64_t)query->state);
    lk_pg_add_text(&params, latchkey_buf_slice(&target));
    lk_pg_add_text(&params, latchkey_buf_slice(&tenant));
    lk_pg_add_int(&params, (int64_t)query->number);
    lk_pg_add_int(&params, bounded_time(query->older_than_ms));
    lk_pg_add_int(&params, bounded_time(query->since_ms));
    lk_pg_add_int(&params, bounded_time(query->until_ms));
    lk_pg_add_text(&params, latchkey_buf_slice(&provider_id));
    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_stream(store, choose_jobs_sql(query), &params, show_job,
                              &page);
        pthread_mutex_unlock(&store->reader_lock);
    }
    if (!status && !page.stopped && page.looked < look) {
        *next = 0;
    }
    latchkey_buf_free(&target);
    latchkey_buf_free(&tenant);
    latchkey_buf_free(&provider_id);
    return status;
}

/* ---- one -------------------------------------------------------------- */

/* clang-format off */
static const char one_job[] =
    "SELECT " WITH_BYTES " FROM " NOW_ONCE
    " CROSS JOIN latchkey.job j " OPERATION
    "CROSS JOIN (SELECT true AS shown) AS m WHERE j.id = $1";
/* clang-format on */

static const char attempts_of[] =
    "SELECT number, ended_ms, status, called, reason, body FROM "
    "latchkey.attempt WHERE job = $1 ORDER BY number";

static enum lk_status show_attempts(const PGresult *result, lk_attempt_fn fn,
                                    void *context)
{
    struct lk_buf text = {0};
    enum lk_status status = LK_OK;
    bool more = true;

    for (int row = 0; row < PQntuples(result) && !status && more; row++) {
        struct lk_attempt attempt = {
            .number = (unsigned)lk_pg_uint(result, row, 0),
            .ended_ms = lk_pg_uint(result, row, 1),
            .status = (unsigned)lk_pg_uint(result, row, 2),
            .called = lk_pg_int(result, row, 3),
        };
        const struct lk_pg_text texts[] = {{4, false, &attempt.reason},
                                           {5, true, &attempt.body}};
        text.len = 0;
        status = lk_pg_texts(result, row, texts, 2, &text);
        if (!status) {
            more = fn(context, &attempt);
        }
    }
    latchkey_buf_free(&text);
    return status;
}

/* LK_OK: the job is the caller's, to be freed with lk_job_free. `fn` gets its
 * attempts, the oldest first. */
enum lk_status lk_postgres_job(struct lk_store *base, uint64_t id,
                               struct lk_job *job, lk_attempt_fn fn,
                               void *context)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_params params = {0};
    PGresult *found = NULL;
    PGresult *attempts = NULL;

    *job = (struct lk_job){0};
    lk_pg_add_int(&params, id < INT64_MAX ? (int64_t)id : INT64_MAX);
    pthread_mutex_lock(&store->reader_lock);
    enum lk_status status = lk_pg_read(store, one_job, &params, &found);
    if (!status && fn) {
        status = lk_pg_read(store, attempts_of, &params, &attempts);
    }
    pthread_mutex_unlock(&store->reader_lock);
    if (!status && !PQntuples(found)) {
        status = LK_NOT_FOUND;
    }
    if (!status) {
        status = read_job_row(found, 0, job);
    }
    if (!status && fn) {
        status = show_attempts(attempts, fn, context);
    }
    PQclear(found);
    PQclear(attempts);
    if (status) {
        lk_job_free(job);
    }
    return status;
}

/* ---- targets ---------------------------------------------------------- */

/* What is finished is not counted. */
static const char all_targets[] =
    "WITH c AS (SELECT j.target, j.state, count(*) AS n, min(j.due_ms) AS at "
    "FROM latchkey.job j WHERE j." IS_TIMED " GROUP BY 1, 2 UNION ALL SELECT "
    "j.target, j.state, count(*), min(j.ended_ms) FROM latchkey.job j WHERE "
    "j." IS_STUCK " GROUP BY 1, 2) "
    "SELECT t.name, coalesce(sum(c.n) FILTER (WHERE c.state "
    "= " LK_SQL_JOB_WAITING "), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = " LK_SQL_JOB_LEASED
    "), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = " LK_SQL_JOB_UNCERTAIN
    "), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = " LK_SQL_JOB_DEAD
    "), 0)::bigint, "
    "min(c.at) FILTER (WHERE c.state = " LK_SQL_JOB_WAITING
    " AND c.at <= n.now), "
    "min(c.at) FILTER (WHERE c.state = " LK_SQL_JOB_UNCERTAIN "), "
    "min(c.at) FILTER (WHERE c.state = " LK_SQL_JOB_DEAD
    "), p.paused_ms, p.who, p.why, "
    "(SELECT max(f.ended_ms) FROM latchkey.forgotten f WHERE f.target = "
    "t.name) FROM (SELECT target AS name FROM c UNION SELECT name FROM "
    "latchkey.target UNION SELECT target FROM latchkey.forgotten) AS t LEFT "
    "JOIN c ON c.target = t.name "
    "LEFT JOIN latchkey.target p ON p.name = t.name CROSS JOIN " NOW_ONCE " "
    "GROUP BY t.name, p.paused_ms, p.who, p.why ORDER BY t.name";

enum {
    T_NAME,
    T_JOBS,
    T_DUE = T_JOBS + LK_JOB_DELIVERED,
    T_UNCERTAIN,
    T_DEAD,
    T_PAUSED,
    T_WHO,
    T_WHY,
    T_FORGOTTEN,
};

static enum lk_status show_target(const PGresult *result, int row,
                                  struct lk_buf *text, lk_target_fn fn,
                                  void *context, bool *more)
{
    struct lk_target_summary summary = {
        .oldest_due_ms = lk_pg_uint(result, row, T_DUE),
        .oldest_uncertain_ms = lk_pg_uint(result, row, T_UNCERTAIN),
        .oldest_dead_ms = lk_pg_uint(result, row, T_DEAD),
        .paused = !PQgetisnull(result, row, T_PAUSED),
        .paused_ms = lk_pg_uint(result, row, T_PAUSED),
        .forgotten_ms = lk_pg_uint(result, row, T_FORGOTTEN),
    };
    const struct lk_pg_text texts[] = {{T_NAME, false, &summary.name},
                                       {T_WHO, false, &summary.who},
                                       {T_WHY, false, &summary.why}};

    for (int i = 0; i < LK_JOB_DELIVERED; i++) {
        summary.jobs[i] = lk_pg_uint(result, row, T_JOBS + i);
    }
    text->len = 0;
    enum lk_status status = lk_pg_texts(result, row, texts, 3, text);
    if (!status) {
        *more = fn(context, &summary);
    }
    return status;
}

enum lk_status lk_postgres_targets(struct lk_store *base, lk_target_fn fn,
                                   void *context)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_buf text = {0};
    PGresult *result;
    bool more = true;

    pthread_mutex_lock(&store->reader_lock);
    enum lk_status status = lk_pg_read(store, all_targets, NULL, &result);
    pthread_mutex_unlock(&store->reader_lock);
    for (int row = 0; !status && more && row < PQntuples(result); row++) {
        status = show_target(result, row, &text, fn, context, &more);
    }
    PQclear(result);
    latchkey_buf_free(&text);
    return status;
}

enum {
    TRIES = 6,        /* of a transaction that met another one */
    BUSY_MS = 20,     /* pause while other daemons hold what is due */
    BUSY_MOST = 160,  /* at most: an app's transaction may be long */
    ARRAYS = 32,      /* parameters of all statements together */
    MOST_JOBS = 4096, /* leased for one want */
};

/* In the order in which they are done. */
enum { ENDS, MARKS, ACTIONS, LEASE, PARTS };

const struct lk_pg_part lk_pg_job_batch_parts[] = {
    [ENDS] = {.name = "lk_ends",
              .sql = "SELECT * FROM latchkey.end_jobs($1, $2, $3, $4, $5, $6, "
                     "$7, $8, $9, $10)"},
    [MARKS] = {.name = "lk_marks",
               .sql = "SELECT * FROM latchkey.mark_jobs($1, $2, $3, $4)"},
    [ACTIONS] = {.name = "lk_orders",
                 .sql = "SELECT * FROM latchkey.order_jobs($1, $2, $3, $4, $5, "
                        "$6, $7, $8, $9, $10)"},
    [LEASE] = {.name = "lk_lease",
               .sql = "SELECT * FROM latchkey.lease_jobs($1, $2, $3, $4, $5)"},
};

const size_t lk_pg_job_batch_part_count = PARTS;

/* A job batch with the parameters of its statements; only statements that have
 * something to do are in `parts`. */
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

/* The next free array. `status` is left as it is after an earlier failure. */
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

/* Only statements that were added are sent; `results` finds theirs. */
static void add_statement(struct job_run *run, int part)
{
    struct lk_pg_part *at = &run->parts[run->part_count++];

    *at = lk_pg_job_batch_parts[part];
    at->params = &run->params[part];
    run->results[part] = &at->result;
}

/* Parameters of latchkey.end_jobs. The last one packs three values: whether the
 * request has left, the status of the response, and the doubt. */
static enum lk_status add_ends(struct job_run *run)
{
    const struct lk_job_end *ends = run->job_batch->ends;
    size_t count = run->job_batch->end_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_statement(run, ENDS);
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
           ends[i].response.headers);
    COLUMN(run, ENDS, LK_PG_BYTEA_ARRAY, count, lk_pg_array_bytes,
           ends[i].response.body);
    COLUMN(run, ENDS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           ends[i].left + 2 * (int64_t)ends[i].response.status +
               LK_SQL_END_DOUBT * ends[i].doubt);
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
    add_statement(run, MARKS);
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

/* Parameters of latchkey.order_jobs; the last two are one table of targets
 * whose services remember keys for a limited time. */
static enum lk_status add_actions(struct job_run *run)
{
    const struct lk_job_action *actions = run->job_batch->actions;
    const struct lk_key_life *lives = run->job_batch->lives;
    size_t count = run->job_batch->action_count;
    enum lk_status status = LK_OK;

    if (!count) {
        return LK_OK;
    }
    add_statement(run, ACTIONS);
    COLUMN(run, ACTIONS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           actions[i].kind);
    COLUMN(run, ACTIONS, LK_PG_INT8_ARRAY, count, lk_pg_array_int,
           (int64_t)actions[i].id);
    COLUMN(run, ACTIONS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           actions[i].attempt);
    COLUMN(run, ACTIONS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           actions[i].target);
    COLUMN(run, ACTIONS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           actions[i].provider_id);
    COLUMN(run, ACTIONS, LK_PG_INT4_ARRAY, count, lk_pg_array_int,
           actions[i].status);
    COLUMN(run, ACTIONS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           actions[i].who);
    COLUMN(run, ACTIONS, LK_PG_TEXT_ARRAY, count, lk_pg_array_text,
           actions[i].why);
    COLUMN(run, ACTIONS, LK_PG_TEXT_ARRAY, run->job_batch->life_count,
           lk_pg_array_text, lives[i].target);
    COLUMN(run, ACTIONS, LK_PG_INT8_ARRAY, run->job_batch->life_count,
           lk_pg_array_int, (int64_t)lives[i].ms);
    return status;
}

/* Each request takes a lock, and the server has limited room for locks. */
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
    add_statement(run, LEASE);
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

/* ---- results ---------------------------------------------------------- */

/* NULL: the statement was not sent. */
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

/* An operation has settled by a job: clients that wait here and at other
 * daemons get to know. */
static void take_settled(struct lk_postgres *store, int64_t lock_id)
{
    lk_pg_add_settled(store, lock_id);
    pthread_mutex_lock(&store->hints_lock);
    lk_pg_notify_settled(store, lock_id);
    pthread_mutex_unlock(&store->hints_lock);
    lk_pg_keeper_wake(store);
}

/* The server returns only ends that did not count: `stale`, because the lease
 * is another's now, or `again`, because another transaction holds the row. */
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
            job_batch->ends[at - 1].stale = outcome == LK_SQL_FENCE_STALE;
            job_batch->ends[at - 1].again = outcome == LK_SQL_FENCE_AGAIN;
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
            job_batch->marks[at - 1].stale = outcome == LK_SQL_FENCE_STALE;
            job_batch->marks[at - 1].again = outcome == LK_SQL_FENCE_AGAIN;
        }
    }
}

/* Has the action made a job due, so that couriers should look? */
static bool makes_due(const struct lk_job_action *action)
{
    return !action->status_out && (action->kind == LK_ACTION_RETRY ||
                                   action->kind == LK_ACTION_AGAIN ||
                                   action->kind == LK_ACTION_RESUME);
}

/* Each action gets its status and the state of its job. Couriers of all daemons
 * are woken if a job is due now. */
static void take_actions(struct job_run *run)
{
    static const enum lk_status statuses[] = {LK_OK, LK_NOT_FOUND, LK_INVALID,
                                              LK_BUSY, LK_DENIED};
    struct lk_job_batch *job_batch = run->job_batch;
    const PGresult *result = result_of(run, ACTIONS);

    for (int row = 0; row < rows_of(run, ACTIONS); row++) {
        uint64_t at = lk_pg_uint(result, row, 0);
        uint64_t outcome = lk_pg_uint(result, row, 1);
        if (at && at <= job_batch->action_count && outcome < 5) {
            struct lk_job_action *action = &job_batch->actions[at - 1];
            action->status_out = statuses[outcome];
            action->state = (enum lk_job_state)lk_pg_uint(result, row, 2);
            run->batch->queued |= makes_due(action);
        }
    }
    if (run->batch->queued) {
        pthread_mutex_lock(&run->store->hints_lock);
        lk_pg_notify_job(run->store);
        pthread_mutex_unlock(&run->store->hints_lock);
        lk_pg_keeper_wake(run->store);
    }
}

/* What the rows of latchkey.lease are. */
enum { KIND_LEASE, KIND_SETTLED, KIND_LAST };

/* Without memory the job stays leased until the lease runs out. */
static void take_lease(struct job_run *run, const PGresult *result, int row)
{
    struct lk_job_batch *job_batch = run->job_batch;
    struct lk_job *job = lk_job_batch_add(job_batch);
    atomic_uint_fast64_t *highest = &run->store->counters.last_token;
    uint64_t last = atomic_load(highest);

    if (!job) {
        return;
    }
    if (read_job_columns(result, row, false, job)) {
        lk_job_free(job);
        job_batch->job_count--;
        return;
    }
    while (job->token > last &&
           !atomic_compare_exchange_weak(highest, &last, job->token)) {
    }
}

/* The last row of lease_jobs: how many leases had lapsed, and how long until
 * the next job is due. If something is due and nothing was leased, other
 * daemons hold it: the pause doubles from BUSY_MS to BUSY_MOST. */
static void take_summary(struct job_run *run, const PGresult *result, int row)
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
        /* Other daemons hold what is due. */
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
            take_summary(run, result, row);
            break;
        }
    }
    if (run->job_batch->job_count) {
        lk_pg_set_time(run->store, run->job_batch->jobs[0].now_ms);
    }
}

/* ---- the transaction -------------------------------------------------- */

static void set_job_status(struct job_run *run, enum lk_status status,
                           const char *error)
{
    run->job_batch->status = status;
    run->job_batch->error = error;
}

/* True: it was a conflict with another transaction, and the pause is over. */
static bool wait_to_retry(struct job_run *run, unsigned *tries)
{
    if (!lk_pg_is_conflict(&run->lane->conn) || ++*tries >= TRIES) {
        return false;
    }
    lk_pg_sleep_random(run->lane, 2u << *tries);
    return true;
}

/* Repeats only what certainly did not happen (LK_PG_FAILED). */
static enum lk_pg_fate transact_jobs(struct job_run *run, uint64_t deadline_ns)
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
             wait_to_retry(run, &tries));
    return fate;
}

/* The server cannot take one of the values (classes 22 and 23): the courier
 * then passes smaller pieces, so that one value does not block the others. */
static bool is_data_fault(const struct lk_pg_conn *conn)
{
    return !strncmp(conn->sqlstate, "22", 2) ||
           !strncmp(conn->sqlstate, "23", 2);
}

/* LK_UNKNOWN: the courier has to find out; ends and marks may be sent again,
 * because they count once for an attempt. */
static void run_job_batch(struct job_run *run, uint64_t deadline_ns)
{
    struct lk_pg_conn *conn = &run->lane->conn;

    switch (transact_jobs(run, deadline_ns)) {
    case LK_PG_DONE:
        set_job_status(run, LK_OK, NULL);
        take_ends(run);
        take_marks(run);
        take_actions(run);
        take_leases(run);
        lk_job_batch_fault_points(run->job_batch);
        break;
    case LK_PG_UNKNOWN:
        conn->retry_ns = 0;
        set_job_status(
            run, LK_UNKNOWN,
            "the connection to the database was lost while committing");
        break;
    case LK_PG_NOT_SENT:
        set_job_status(run, LK_UNAVAILABLE, "the database cannot be reached");
        break;
    case LK_PG_FAILED:
        lk_pg_log(run->store, LK_PG_ERROR,
                  "the database refused the courier's batch: %s (%s)",
                  conn->message, conn->sqlstate);
        lk_pg_leave_unfit_server(conn);
        set_job_status(run, is_data_fault(conn) ? LK_INVALID : LK_UNAVAILABLE,
                       "the database refused it; see the daemon's log");
        break;
    }
}

/* A thread of a job lane. Sets the status of the whole job batch, and the
 * results of its members if that is LK_OK. job_batch->done is the caller's to
 * call. */
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
        status = add_actions(&run);
    }
    if (!status) {
        status = add_wants(&run);
    }
    if (status) {
        set_job_status(&run, LK_UNAVAILABLE, "out of memory");
    } else if (!run.part_count) {
        set_job_status(&run, LK_OK, NULL);
    } else {
        run_job_batch(&run, deadline_ns);
    }
    for (size_t i = 0; i < run.part_count; i++) {
        PQclear(run.parts[i].result);
    }
    for (size_t i = 0; i < run.array_count; i++) {
        latchkey_buf_free(&run.arrays[i].bytes);
    }
}
