/*
 * postgres_migrate.c - brings the schema of a database up to date, one step
 * after the other, each in a transaction of its own. The SQL is in store/sql/.
 *
 * An advisory lock makes migrations that run at the same time take turns; each
 * reads the version again under the lock. Daemons and apps may go on in the
 * meantime: a step that would have to wait for them longer than a second gives
 * up its locks and is tried again.
 */
#include "store/postgres_migrate.h"
#include "store/embed.h"
#include "store/postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

LK_EMBED(lk_sql_owner, "sql/owner.sql");
LK_EMBED(lk_sql_schema, "sql/01_schema.sql");
LK_EMBED(lk_sql_decide, "sql/02_decide.sql");
LK_EMBED(lk_sql_app, "sql/03_app.sql");
LK_EMBED(lk_sql_keep, "sql/04_keep.sql");
LK_EMBED(lk_sql_import, "sql/05_import.sql");
LK_EMBED(lk_sql_jobs, "sql/06_jobs.sql");
LK_EMBED(lk_sql_grants, "sql/07_grants.sql");

enum { STEP_FILES = 8 };

/*
 * The version of a step is its place, from 1; its name is the release that
 * brought it. What makes or changes tables is never changed once it was
 * released: a change is another step. Files of functions are changed in place,
 * so that each function is written once, and a later step names them again.
 */
static const struct {
    const char *name;
    const char *files[STEP_FILES]; /* up to a NULL */
} steps[] = {
    {"the schema of 0.1.0",
     {lk_sql_schema, lk_sql_decide, lk_sql_app, lk_sql_keep, lk_sql_import,
      lk_sql_jobs, lk_sql_grants}},
};

enum {
    STEPS = sizeof(steps) / sizeof(steps[0]),
    OLDEST = STEPS, /* programs of that version still work with the schema */
    TRIES = 60,     /* for a lock that another session holds */
};

#define SECOND_NS UINT64_C(1000000000)
#define PATIENCE  (600 * SECOND_NS) /* for one step */

static const char begin_step[] =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '1s'; "
    "SET LOCAL statement_timeout = 0; "
    "SET LOCAL client_min_messages = warning; "
    "SELECT pg_advisory_xact_lock(5499535116398314074)";

long lk_postgres_version(void)
{
    return STEPS;
}

/* Adds the message and returns `status`; LK_NOMEM if that fails. */
static enum lk_status say(struct lk_buf *error, enum lk_status status,
                          const char *message)
{
    enum lk_status said = latchkey_buf_add_text(error, message);

    return said ? said : status;
}

/* ---- one step --------------------------------------------------------- */

/* 0: there is no schema yet. */
static enum lk_status read_version(struct lk_pg_conn *conn, long *version)
{
    PGresult *result;
    enum lk_status status =
        lk_pg_run(conn, "SELECT to_regclass('latchkey.meta') IS NOT NULL", NULL,
                  lk_pg_clock_ns() + PATIENCE, &result);

    *version = 0;
    if (status) {
        return status;
    }
    bool there = lk_pg_int(result, 0, 0);
    PQclear(result);
    if (!there) {
        return LK_OK;
    }
    status = lk_pg_run(conn,
                       "SELECT value::bigint FROM latchkey.meta "
                       "WHERE name = 'version'",
                       NULL, lk_pg_clock_ns() + PATIENCE, &result);
    if (!status && PQntuples(result)) {
        *version = (long)lk_pg_int(result, 0, 0);
    }
    PQclear(result);
    return status;
}

/* `oldest` is never above `version`, also in the middle of several steps. */
static int print_version(char *sql, size_t size, long version)
{
    return snprintf(sql, size,
                    "INSERT INTO latchkey.meta (name, value) "
                    "VALUES ('version', '%ld'), ('oldest', '%ld') "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    version, version < OLDEST ? version : (long)OLDEST);
}

/* In an open transaction that holds the lock of all migrations. */
static enum lk_status take_step(struct lk_pg_conn *conn, long version)
{
    char sql[256];
    uint64_t deadline_ns = lk_pg_clock_ns() + PATIENCE;
    const char *const *file = steps[version - 1].files;
    enum lk_status status = LK_OK;

    for (; *file && !status; file++) {
        status = lk_pg_script(conn, *file, deadline_ns);
    }
    print_version(sql, sizeof(sql), version);
    if (!status) {
        status = lk_pg_script(conn, sql, deadline_ns);
    }
    return status ? status : lk_pg_script(conn, "COMMIT", deadline_ns);
}

/* One step up, if there is one. *version is what was reached. */
static enum lk_status try_step(struct lk_pg_conn *conn, long *version,
                               bool *took)
{
    enum lk_status status =
        lk_pg_script(conn, begin_step, lk_pg_clock_ns() + PATIENCE);

    *took = false;
    if (!status) {
        status = lk_pg_script(conn, lk_sql_owner, lk_pg_clock_ns() + PATIENCE);
    }
    if (!status) {
        status = read_version(conn, version);
    }
    if (!status && *version >= STEPS) {
        return lk_pg_script(conn, "ROLLBACK", lk_pg_clock_ns() + PATIENCE);
    }
    if (!status) {
        status = take_step(conn, *version + 1);
    }
    if (!status) {
        (*version)++;
        *took = true;
    } else if (conn->pg) {
        char why[sizeof(conn->message)];
        char state[sizeof(conn->sqlstate)];
        memcpy(why, conn->message, sizeof(why));
        memcpy(state, conn->sqlstate, sizeof(state));
        if (lk_pg_script(conn, "ROLLBACK", lk_pg_clock_ns() + PATIENCE)) {
            lk_pg_close(conn);
        }
        memcpy(conn->message, why, sizeof(why));
        memcpy(conn->sqlstate, state, sizeof(state));
    }
    return status;
}

/* Another session holds a lock. No third one may have to wait behind us for
 * it. */
static bool is_passing(const struct lk_pg_conn *conn)
{
    return conn->pg && (!strcmp(conn->sqlstate, "55P03") ||
                        !strcmp(conn->sqlstate, "40P01") ||
                        !strcmp(conn->sqlstate, "40001"));
}

/* What owner.sql refuses, or the server, stays refused. */
static enum lk_status status_of(const struct lk_pg_conn *conn)
{
    return !strcmp(conn->sqlstate, "42501")   ? LK_DENIED
           : !strcmp(conn->sqlstate, "3F000") ? LK_INVALID
                                              : LK_UNAVAILABLE;
}

/* Takes all steps that are missing. `report` has a line for each; a failure
 * leaves those that were taken before. */
static enum lk_status climb(struct lk_pg_conn *conn, struct lk_buf *report,
                            struct lk_buf *error)
{
    enum lk_status status = LK_OK;
    long version = 0;
    unsigned tries = 0;
    unsigned taken = 0;

    while (version < STEPS && !status) {
        bool took;
        status = try_step(conn, &version, &took);
        if (status && is_passing(conn) && ++tries < TRIES) {
            struct timespec pause = {0, (100 + rand() % 900) * 1000000L};
            nanosleep(&pause, NULL);
            status = LK_OK;
        } else if (status) {
            enum lk_status said = latchkey_buf_printf(
                error, "%s: %s",
                version < STEPS ? steps[version].name : "the last step",
                conn->message);
            return said ? said : status_of(conn);
        } else if (took) {
            taken++;
            status = latchkey_buf_printf(report, "applied %s\n",
                                         steps[version - 1].name);
        }
    }
    if (!status && version > STEPS) {
        status = latchkey_buf_printf(
            error,
            "the schema has version %ld, made by a newer Latchkey; this "
            "one, " LATCHKEY_VERSION
            ", knows %d: upgrade it, or use the newer one's tool",
            version, (int)STEPS);
        return status ? status : LK_VERSION;
    }
    if (!status && !taken) {
        status = latchkey_buf_printf(
            report, "nothing to do: the schema has version %ld\n", version);
    }
    return status;
}

/* ---- the whole -------------------------------------------------------- */

/* LK_INVALID: the server is too old, or the database has another encoding. */
static enum lk_status check_server(struct lk_pg_conn *conn,
                                   struct lk_buf *error)
{
    int version = PQserverVersion(conn->pg) / 10000;
    const char *encoding;
    PGresult *result;
    enum lk_status status;

    if (version < LK_POSTGRES_MINIMUM) {
        status = latchkey_buf_printf(
            error, "the server is PostgreSQL %d, Latchkey needs %d or later",
            version, LK_POSTGRES_MINIMUM);
        return status ? status : LK_INVALID;
    }
    status = lk_pg_run(conn, "SELECT current_setting('server_encoding')", NULL,
                       lk_pg_clock_ns() + 10 * SECOND_NS, &result);
    if (status) {
        return say(error, LK_UNAVAILABLE, conn->message);
    }
    encoding = PQgetvalue(result, 0, 0);
    if (strcmp(encoding, "UTF8") != 0) {
        status = latchkey_buf_printf(
            error,
            "the database has the encoding %s, Latchkey needs UTF8; create "
            "one: CREATE DATABASE latchkey ENCODING 'UTF8' TEMPLATE template0",
            encoding);
        status = status ? status : LK_INVALID;
    }
    PQclear(result);
    return status;
}

/* The first one only: each step gives it again. */
static void take_warning(void *context, const PGresult *result)
{
    struct lk_buf *warning = context;
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);

    if (text && hint && !warning->len &&
        latchkey_buf_printf(warning, "%s. %s", text, hint)) {
        warning->len = 0;
    }
}

/* Blocks. Uses one connection, which is closed at the end. `warning` is what
 * the server says beside it, at most one sentence with its hint. */
enum lk_status lk_postgres_migrate(const char *url, struct lk_buf *report,
                                   struct lk_buf *warning, struct lk_buf *error)
{
    struct lk_postgres *store = calloc(1, sizeof(*store));

    if (!store) {
        return LK_NOMEM;
    }
    struct lk_pg_conn *conn = &store->keeper;
    conn->store = store;
    lk_store_config_default(&store->config);
    enum lk_status status = lk_pg_url_parse(url, &store->url, error);
    if (!status && lk_pg_dial(conn, lk_pg_clock_ns() + 10 * SECOND_NS)) {
        status = say(error, LK_UNAVAILABLE, conn->message);
    }
    if (!status) {
        PQsetNoticeReceiver(conn->pg, take_warning, warning);
        status = check_server(conn, error);
    }
    if (!status) {
        status = climb(conn, report, error);
    }
    lk_pg_close(conn);
    lk_pg_resolve_stop(conn);
    lk_pg_url_free(&store->url);
    free(store);
    return status;
}

/* The same steps as text, for an operator to run with psql, as one
 * transaction. */
enum lk_status lk_postgres_sql(long from, struct lk_buf *text)
{
    char version[256];
    enum lk_status status = latchkey_buf_printf(
        text,
        "-- Latchkey's schema, from version %ld to %d. Run it as the owner of "
        "the\n-- database, with errors ending it: psql -v ON_ERROR_STOP=1\n\n"
        "BEGIN;\nSELECT pg_advisory_xact_lock(5499535116398314074);\n\n%s\n",
        from, STEPS, lk_sql_owner);

    for (long i = from < 0 ? 0 : from; i < STEPS && !status; i++) {
        for (const char *const *file = steps[i].files; *file && !status;
             file++) {
            status = latchkey_buf_printf(text, "%s\n", *file);
        }
    }
    print_version(version, sizeof(version), STEPS);
    return status ? status
                  : latchkey_buf_printf(text, "%s;\n\nCOMMIT;\n", version);
}
