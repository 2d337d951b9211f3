/* postgres_jobs.c - jobs and targets as they are shown. Nothing is decided
 * here. */
#include "store/postgres_job.h"

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

/* ---- rows ------------------------------------------------------------- */

/* clang-format off */
/* The order of enum lk_pg_job_column. */
#define COLUMNS(call, answer)                                                  \
    "NOT m.shown, j.id, o.tenant, o.scope, o.key, j.number, j.generation, "    \
    "j.token, o.attempt, j.name, j.target, j.method, j.path, " call ", "       \
    "j.attempts, j.forgiven, j.sent, j.doubt, j.repeatable, j.created_ms, "    \
    "j.due_ms, n.now, j.status, j.provider_id, j.reason, j.since_ms, "         \
    "j.sent_ms, j.state, j.called, j.ended_ms, " answer

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

enum lk_status lk_pg_job(const PGresult *result, int row, bool listed,
                         struct lk_job *job)
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
        {LK_PG_J_ANSWER_HEADERS, true, &job->answer.headers},
        {LK_PG_J_ANSWER_BODY, true, &job->answer.body},
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
static enum lk_status take_row(const PGresult *result, int row,
                               struct lk_job *job)
{
    enum lk_status status = lk_pg_job(result, row, true, job);

    job->state = (enum lk_job_state)lk_pg_uint(result, row, LK_PG_J_STATE);
    job->called = lk_pg_int(result, row, LK_PG_J_CALLED);
    job->ended_ms = lk_pg_uint(result, row, LK_PG_J_ENDED);
    job->answer.status = job->status;
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
    "($3 OR CASE WHEN $4 THEN j.state < 4 ELSE j.state = $5 END) AND "         \
    "($6 = '' OR j.target = $6) AND ($7 = '' OR coalesce(o.tenant = $7, "      \
    "false)) AND ($8 = 0 OR j.number = $8) AND j.created_ms + $9 <= n.now "    \
    "AND j.created_ms >= $10 AND ($11 = 0 OR j.created_ms < $11) AND "         \
    "($12 = '' OR j.provider_id = $12)"

#define PAGE(which)                                                            \
    "(SELECT k.* FROM latchkey.job k WHERE k.id > $1" which                    \
    " ORDER BY k.id LIMIT $2)"

/* What waits or is on its way, and what is stuck, have indexes of their own. */
#define OPEN_PAGE                                                              \
    "(SELECT b.* FROM (" PAGE(" AND k.state < 2") " UNION ALL " PAGE(          \
        " AND k.state IN (2, 3)") ") AS b ORDER BY b.id LIMIT $2)"

/* clang-format off */
#define LIST(page, columns)                                                    \
    "SELECT " columns " FROM " NOW_ONCE " CROSS JOIN " page                    \
    " AS j " OPERATION "CROSS JOIN LATERAL (SELECT " MATCHES " AS shown "      \
    "OFFSET 0) AS m ORDER BY j.id"

#define LISTS(columns)                                                         \
    {LIST(PAGE(""), columns), LIST(PAGE(" AND k.number = $8"), columns),       \
     LIST(PAGE(" AND k.provider_id = $12 AND k.provider_id <> ''"), columns),  \
     LIST(PAGE(" AND k.state < 2"), columns),                                  \
     LIST(PAGE(" AND k.state IN (2, 3)"), columns), LIST(OPEN_PAGE, columns)}
/* clang-format on */

static const char *choose(const struct lk_jobs_query *query)
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

struct page {
    const struct lk_jobs_query *query;
    lk_job_fn fn;
    void *context;
    uint64_t *next;
    size_t looked;
    size_t shown;
    bool stopped;
};

static enum lk_status show_row(const PGresult *result, int row, void *context)
{
    struct page *page = context;
    struct lk_job job = {0};
    enum lk_status status = LK_OK;

    if (page->stopped) {
        return LK_OK;
    }
    page->looked++;
    *page->next = lk_pg_uint(result, row, LK_PG_J_ID);
    if (!lk_pg_int(result, row, LK_PG_J_KIND)) {
        status = take_row(result, row, &job);
        if (!status) {
            page->shown++;
            page->stopped = !page->fn(page->context, &job) ||
                            page->shown >= page->query->limit;
        }
        lk_job_free(&job);
    }
    return status;
}

static int64_t bounded(uint64_t ms)
{
    return ms < LK_IMPORT_TIME_MAX ? (int64_t)ms : (int64_t)LK_IMPORT_TIME_MAX;
}

enum lk_status lk_postgres_jobs(struct lk_store *base,
                                const struct lk_jobs_query *query, lk_job_fn fn,
                                void *context, uint64_t *next)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct page page = {query, fn, context, next, 0, 0, false};
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
    lk_pg_add_int(&params, bounded(query->older_than_ms));
    lk_pg_add_int(&params, bounded(query->since_ms));
    lk_pg_add_int(&params, bounded(query->until_ms));
    lk_pg_add_text(&params, latchkey_buf_slice(&provider_id));
    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_stream(store, choose(query), &params, show_row, &page);
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
        status = take_row(found, 0, job);
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
    "FROM latchkey.job j WHERE j.state < 2 GROUP BY 1, 2 UNION ALL SELECT "
    "j.target, j.state, count(*), min(j.ended_ms) FROM latchkey.job j WHERE "
    "j.state IN (2, 3) GROUP BY 1, 2) "
    "SELECT t.name, coalesce(sum(c.n) FILTER (WHERE c.state = 0), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = 1), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = 2), 0)::bigint, "
    "coalesce(sum(c.n) FILTER (WHERE c.state = 3), 0)::bigint, "
    "min(c.at) FILTER (WHERE c.state = 0 AND c.at <= n.now), "
    "min(c.at) FILTER (WHERE c.state = 2), "
    "min(c.at) FILTER (WHERE c.state = 3), p.paused_ms, p.who, p.why, "
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
    struct lk_target_summary standing = {
        .oldest_due_ms = lk_pg_uint(result, row, T_DUE),
        .oldest_uncertain_ms = lk_pg_uint(result, row, T_UNCERTAIN),
        .oldest_dead_ms = lk_pg_uint(result, row, T_DEAD),
        .paused = !PQgetisnull(result, row, T_PAUSED),
        .paused_ms = lk_pg_uint(result, row, T_PAUSED),
        .forgotten_ms = lk_pg_uint(result, row, T_FORGOTTEN),
    };
    const struct lk_pg_text texts[] = {{T_NAME, false, &standing.name},
                                       {T_WHO, false, &standing.who},
                                       {T_WHY, false, &standing.why}};

    for (int i = 0; i < LK_JOB_DELIVERED; i++) {
        standing.jobs[i] = lk_pg_uint(result, row, T_JOBS + i);
    }
    text->len = 0;
    enum lk_status status = lk_pg_texts(result, row, texts, 3, text);
    if (!status) {
        *more = fn(context, &standing);
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
