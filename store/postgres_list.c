/* postgres_list.c - many records or audit entries at a time, by cursor. */
#include "store/postgres.h"
#include "store/postgres_record.h"

/* Rows looked at in one call, so that a rare state does not hold the reader. */
enum { LOOK_AT = 2000 };

/*
 * $1 cursor, $2 rows to look at, $3 any state, $4 state, $5 tenant, $6 claimed
 * at least so long ago, $7 scope, $8 claimed then or later, $9 claimed before
 * then, $10 only what needs a person, $11 in progress for so long. A row that
 * does not match comes too, hidden: its number moves the cursor.
 */
#define STATE                                                                  \
    "CASE WHEN o.state = 2 AND " LK_PG_DEADLINE                                \
    " <= n.now AND NOT o.queued THEN 3 ELSE o.state END"

#define MATCHES                                                                \
    "NOT " LK_PG_EXPIRED " AND ($3 OR $4 = " STATE                             \
    ") AND ($5 = '' OR o.tenant = $5) "                                        \
    "AND n.now - o.claimed_ms >= $6 AND ($7 = '' OR o.scope = $7) "            \
    "AND o.claimed_ms >= $8 AND o.claimed_ms < $9 "

/* As lk_list_needs_person. */
#define NEEDS_PERSON                                                           \
    "AND (NOT $10 OR " STATE " = 3 OR o.state = 2 AND n.now - o.claimed_ms "   \
    ">= $11 OR EXISTS (SELECT FROM latchkey.job j WHERE "                      \
    "j.number = o.number AND j.state IN (2, 3))) "

#define PAGE(of, after, order)                                                 \
    "(SELECT p.* FROM latchkey.operation p WHERE p.number " after " $1 " of    \
    "ORDER BY p.number " order " LIMIT $2)"

/* What is unfinished is little, and has an index of its own; so have the jobs
 * that need a person. */
#define OPEN "AND p.state IN (2, 3) "
#define STUCK                                                                  \
    "AND p.number IN (SELECT s.number FROM latchkey.operation s "              \
    "WHERE s.state IN (2, 3) UNION SELECT j.number FROM latchkey.job j "       \
    "WHERE j.state IN (2, 3)) "

/* clang-format off */
#define LIST(page, order, matches, ttl, answer, more, join)                    \
    "SELECT " LK_PG_COLUMNS_OF("NOT m.shown", ttl, answer) more                \
    " FROM " LK_PG_NOW " CROSS JOIN " page " AS o CROSS JOIN LATERAL "         \
    "(SELECT " matches " AS shown OFFSET 0) AS m LEFT JOIN latchkey.answer a " \
    "ON a.token = o.token AND o.state = 4 AND m.shown " join                   \
    "ORDER BY o.number " order

#define SHORT(of, after, order)                                                \
    LIST(PAGE(of, after, order), order, MATCHES NEEDS_PERSON, LK_PG_TTL,       \
         LK_PG_WITHOUT_ANSWER, ", u.open, u.dead, u.uncertain",                \
         "LEFT JOIN LATERAL (SELECT count(*) AS open, "                        \
         "count(*) FILTER (WHERE j.state = 3) AS dead, "                       \
         "count(*) FILTER (WHERE j.state = 2) AS uncertain "                   \
         "FROM latchkey.job j WHERE m.shown AND j.number = o.number "          \
         "AND j.state < 4) AS u ON true ")
/* clang-format on */

struct page {
    const struct lk_list_query *query;
    lk_operation_fn fn;
    void *context;
    uint64_t *next;
    size_t looked;
    size_t shown;
    bool stopped;
};

static enum lk_status show_row(const PGresult *result, int row, void *context)
{
    struct page *page = context;
    struct lk_operation record = {0};
    enum lk_status status = LK_OK;

    if (page->stopped) {
        return LK_OK;
    }
    page->looked++;
    *page->next = lk_pg_uint(result, row, LK_PG_R_NUMBER);
    if (!lk_pg_int(result, row, LK_PG_R_HIDDEN)) {
        status = lk_pg_operation(result, row, &record);
        if (!status && page->query->whole) {
            status = lk_pg_operation_stored(result, row, &record);
        } else if (!status) {
            record.jobs_open = lk_pg_uint(result, row, LK_PG_R_JOBS_OPEN);
            record.jobs_dead = lk_pg_uint(result, row, LK_PG_R_JOBS_DEAD);
            record.jobs_uncertain =
                lk_pg_uint(result, row, LK_PG_R_JOBS_UNCERTAIN);
        }
        if (!status) {
            page->shown++;
            page->stopped = !page->fn(page->context, &record) ||
                            page->shown >= page->query->limit;
        }
        lk_operation_free(&record);
    }
    return status;
}

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

static const char *choose(const struct lk_list_query *query)
{
    bool open = !query->any_state && (query->state == LK_STATE_IN_PROGRESS ||
                                      query->state == LK_STATE_UNCERTAIN);

    if (query->whole) {
        return LIST(PAGE("", ">", ""), "", MATCHES, "o.ttl_ms",
                    LK_PG_WITH_ANSWER, "", "");
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

static int64_t bound(uint64_t value)
{
    return value && value < INT64_MAX ? (int64_t)value : INT64_MAX;
}

enum lk_status lk_postgres_list(struct lk_store *base,
                                const struct lk_list_query *query,
                                lk_operation_fn fn, void *context,
                                uint64_t *next)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct page page = {query, fn, context, next, 0, 0, false};
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
    lk_pg_add_int(&params, query->newest ? bound(query->cursor)
                                         : (int64_t)query->cursor);
    lk_pg_add_int(&params, (int64_t)look);
    lk_pg_add_bool(&params, query->any_state);
    lk_pg_add_int(&params, (int64_t)query->state);
    lk_pg_add_text(&params, latchkey_buf_slice(&tenant));
    lk_pg_add_int(&params, (int64_t)query->older_than_ms);
    lk_pg_add_text(&params, latchkey_buf_slice(&scope));
    lk_pg_add_int(&params, (int64_t)query->since_ms);
    lk_pg_add_int(&params, bound(query->until_ms));
    lk_pg_add_bool(&params, query->attention);
    lk_pg_add_int(&params, (int64_t)query->long_ms);
    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_stream(store, choose(query), &params, show_row, &page);
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

static enum lk_status show_entry(const PGresult *result, int row,
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

static enum lk_status add_query(struct lk_pg_params *params,
                                const struct lk_audit_query *query,
                                struct lk_buf texts[AUDIT_TEXTS])
{
    const struct lk_slice slices[AUDIT_TEXTS] = {
        query->who, query->action, query->name.tenant, query->name.scope,
        query->name.key};
    enum lk_status status = LK_OK;

    lk_pg_add_int(params, (int64_t)query->after);
    lk_pg_add_int(params, bound(query->before));
    lk_pg_add_int(params, (int64_t)query->since_ms);
    lk_pg_add_int(params, bound(query->until_ms));
    for (int i = 0; i < AUDIT_TEXTS && !status; i++) {
        status = lk_pg_escape(slices[i], &texts[i]);
        lk_pg_add_text(params, latchkey_buf_slice(&texts[i]));
    }
    lk_pg_add_int(params, (int64_t)query->job);
    lk_pg_add_int(params, bound(query->limit));
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
    enum lk_status status = add_query(&params, query, texts);

    if (!status) {
        pthread_mutex_lock(&store->reader_lock);
        status = lk_pg_read(store, query->newest ? AUDIT("DESC") : AUDIT(""),
                            &params, &result);
        pthread_mutex_unlock(&store->reader_lock);
    }
    for (int i = 0; !status && !stopped && i < PQntuples(result); i++) {
        status = show_entry(result, i, &text, fn, context, &stopped);
    }
    PQclear(result);
    for (int i = 0; i < AUDIT_TEXTS; i++) {
        latchkey_buf_free(&texts[i]);
    }
    latchkey_buf_free(&text);
    return status;
}
