/*
 * postgres_verify.c - looks at every record and every job: do row, answer,
 * counter and request fit together? On a connection of its own, so that nobody
 * waits for it.
 */
#include "store/postgres.h"

enum { PAGE_ROWS = 5000, FINDINGS_MOST = 100 };

#define PATIENCE (UINT64_C(600) * 1000000000)

/* Rows and answers of one page are of one moment. LATERAL and LIMIT: a lookup
 * for each row, so that a page costs the same in a table of any size. */
static const char look_at_records[] =
    "SELECT o.number, CASE"
    " WHEN o.state = 4 AND NOT o.omitted AND a.token IS NULL"
    " THEN 'its answer is missing'"
    " WHEN (o.state <> 4 OR o.omitted) AND a.token IS NOT NULL"
    " THEN 'it has an answer that it should not have'"
    " WHEN o.state = 4 AND (o.status IS NULL OR o.completed_ms IS NULL)"
    " THEN 'it is completed without a status or a time'"
    " WHEN o.token > (SELECT s.last_value FROM latchkey.token s)"
    " THEN 'its token was never handed out'"
    " WHEN o.state = 1 AND NOT o.queued"
    " THEN 'it is accepted, and nothing will run it'"
    " WHEN o.queued AND o.state > 3"
    " THEN 'it is over, and its request is not'"
    " WHEN o.queued AND NOT EXISTS (SELECT FROM latchkey.job j WHERE"
    " j.number = o.number AND j.name = '' AND j.state < 4)"
    " THEN 'its request is missing'"
    " END"
    " FROM (SELECT p.* FROM latchkey.operation p WHERE p.number > $1"
    " ORDER BY p.number LIMIT $2) AS o"
    " LEFT JOIN LATERAL (SELECT b.token FROM latchkey.answer b WHERE"
    " b.token = o.token LIMIT 1) AS a ON true ORDER BY o.number";

/* A request stands as its operation does. One that may run again stays leased
 * while its holder is in doubt. */
static const char look_at_jobs[] =
    "SELECT j.id, CASE"
    " WHEN o.number IS NULL THEN 'it belongs to no record'"
    " WHEN (j.name = '') <> (j.target = '@gateway')"
    " THEN 'it is half a request'"
    " WHEN j.state IN (1, 2, 3) AND j.attempts = 0"
    " THEN 'it was never leased, and yet called'"
    " WHEN (j.ended_ms > 0) <> (j.state > 1)"
    " THEN 'it does not say since when it is what it is'"
    " WHEN j.name = '' AND j.state < 4 AND NOT o.queued"
    " THEN 'its operation does not know of it'"
    " WHEN j.name = '' AND j.state < 4 AND NOT (j.state, o.state) IN"
    " ((0, 1), (1, 2), (2, 3)) AND NOT (j.state = 1 AND o.state = 3 AND"
    " j.repeatable)"
    " THEN 'it does not stand as its operation does'"
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
    {"answer", "it belongs to no record",
     "SELECT a.token FROM latchkey.answer a WHERE NOT EXISTS (SELECT FROM "
     "latchkey.operation o WHERE o.token = a.token) LIMIT 100"},
    {"attempt of job", "there is no such job",
     "SELECT a.job FROM latchkey.attempt a WHERE NOT EXISTS (SELECT FROM "
     "latchkey.job j WHERE j.id = a.job) LIMIT 100"},
};

struct check {
    struct lk_pg_conn conn;
    struct lk_buf *report;
    uint64_t done, total;
    uint64_t findings;
};

static enum lk_status add_finding(struct check *check, const char *what,
                                  uint64_t number, const char *finding)
{
    if (++check->findings > FINDINGS_MOST) {
        return LK_OK;
    }
    return latchkey_buf_printf(check->report, "%s %llu: %s\n", what,
                               (unsigned long long)number, finding);
}

static enum lk_status check_page(struct check *check, const char *what,
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
static enum lk_status check_orphans(struct check *check, size_t which)
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
                           lk_pg_clock_ns() + PATIENCE, &result);
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

struct walk {
    lk_progress_fn progress;
    void *context;
};

static enum lk_status check_all(struct check *check, const struct walk *walk,
                                const char *what, const char *sql)
{
    uint64_t cursor = 0;
    enum lk_status status = LK_OK;
    bool end = false;

    while (!status && !end && !atomic_load(&check->conn.store->stopping)) {
        status = check_page(check, what, sql, &cursor, &end);
        if (walk->progress) {
            walk->progress(walk->context, check->done,
                           check->total > check->done ? check->total
                                                      : check->done);
        }
    }
    return status;
}

enum lk_status lk_postgres_verify(struct lk_store *base,
                                  lk_progress_fn progress, void *context,
                                  struct lk_buf *report)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct check check = {
        .conn = {.store = store, .what = "verify"},
        .report = report,
    };
    const struct walk walk = {progress, context};
    enum lk_status status = lk_pg_ready(&check.conn, lk_pg_deadline(store));

    pthread_mutex_lock(&store->lock);
    check.total = store->counts.records;
    pthread_mutex_unlock(&store->lock);
    if (!status) {
        status = check_all(&check, &walk, "record", look_at_records);
    }
    if (!status) {
        status = check_all(&check, &walk, "job", look_at_jobs);
    }
    for (size_t i = 0; i < sizeof(orphans) / sizeof(orphans[0]) && !status &&
                       !atomic_load(&store->stopping);
         i++) {
        status = check_orphans(&check, i);
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
