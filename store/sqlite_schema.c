/* sqlite_schema.c - tables, their versions, and connections to the file. */
#include "store/sqlite.h"

#include <stdio.h>
#include <string.h>

/*
 * Everything is appended in the order of tokens, or nearly so.
 *
 * claim    one row for each token handed out. `number` and `generation` are
 *          NULL where they equal the token: the first claim of an operation.
 *          `keep` is the TTL that KEEP asked for while it was open.
 * outcome  the state of a claim that has changed since (enum lk_row_kind);
 *          together with claim, all that the index needs. A later outcome
 *          replaces an earlier one.
 * answer   the stored response, or the reason why there is none. A table of its
 *          own, because it is large and read only for a replay.
 * audit    what operators did, never deleted. For an action on a job, the
 *          column `token` is the id of the job.
 *
 * job      what an operation has left to call, by the number of the operation:
 *          the small part, which leases and ends replace. For an uncertain or
 *          dead job, `due` is since when it is so. `since` and `sent_at` are
 *          since_ms and sent_ms of struct lk_job. The indexes hold: unfinished
 *          jobs (LK_UNFINISHED) for the courier and for their operation, stuck
 *          jobs, every name, and the ids of the services.
 * call     what is called; large, and never replaced.
 * attempt  how leases ended: those that failed, and the last one with its
 *          response.
 * target   the paused targets.
 */
static const char *const migrations[] = {
    "CREATE TABLE claim ("
    " token INTEGER PRIMARY KEY, hash BLOB NOT NULL, number INTEGER,"
    " generation INTEGER, attempt INTEGER NOT NULL, at INTEGER NOT NULL,"
    " lock INTEGER NOT NULL, ttl INTEGER NOT NULL, keep INTEGER, owner BLOB,"
    " fingerprint BLOB NOT NULL, tenant TEXT NOT NULL, scope TEXT NOT NULL,"
    " key TEXT NOT NULL);"
    "CREATE TABLE outcome ("
    " token INTEGER PRIMARY KEY, kind INTEGER NOT NULL, at INTEGER NOT NULL,"
    " until INTEGER NOT NULL, hash BLOB NOT NULL);"
    "CREATE TABLE answer ("
    " token INTEGER PRIMARY KEY, at INTEGER NOT NULL, reason TEXT,"
    " record BLOB);"
    "CREATE TABLE audit ("
    " id INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL,"
    " who TEXT NOT NULL, why TEXT NOT NULL, action TEXT NOT NULL,"
    " tenant TEXT, scope TEXT, key TEXT, token INTEGER);"
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;",

    "CREATE TABLE job ("
    " id INTEGER PRIMARY KEY, number INTEGER NOT NULL,"
    " generation INTEGER NOT NULL, hash BLOB NOT NULL, name TEXT NOT NULL,"
    " target TEXT NOT NULL, state INTEGER NOT NULL DEFAULT 0,"
    " attempts INTEGER NOT NULL DEFAULT 0,"
    " forgiven INTEGER NOT NULL DEFAULT 0, called INTEGER NOT NULL DEFAULT 0,"
    " sent INTEGER NOT NULL DEFAULT 0, doubt INTEGER NOT NULL DEFAULT 0,"
    " repeatable INTEGER NOT NULL,"
    " created INTEGER NOT NULL, due INTEGER NOT NULL,"
    " ended INTEGER NOT NULL DEFAULT 0, status INTEGER NOT NULL DEFAULT 0,"
    " provider_id TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '');"
    "CREATE INDEX job_due ON job (target, state, due) WHERE " LK_UNFINISHED ";"
    "CREATE INDEX job_open ON job (number, name) WHERE " LK_UNFINISHED ";"
    "CREATE INDEX job_stuck ON job (state) WHERE " LK_STUCK ";"
    "CREATE INDEX job_name ON job (number, generation, name);"
    "CREATE TABLE call ("
    " id INTEGER PRIMARY KEY, method TEXT NOT NULL, path TEXT NOT NULL,"
    " headers BLOB NOT NULL, body BLOB NOT NULL);"
    "CREATE TABLE attempt ("
    " job INTEGER NOT NULL, number INTEGER NOT NULL, ended INTEGER NOT NULL,"
    " status INTEGER NOT NULL, called INTEGER NOT NULL, reason TEXT NOT NULL,"
    " headers BLOB NOT NULL, body BLOB NOT NULL,"
    " PRIMARY KEY (job, number)) WITHOUT ROWID;"
    "CREATE TABLE target ("
    " name TEXT PRIMARY KEY, at INTEGER NOT NULL, who TEXT NOT NULL,"
    " why TEXT NOT NULL) WITHOUT ROWID;",

    "ALTER TABLE job ADD COLUMN since INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE job ADD COLUMN sent_at INTEGER NOT NULL DEFAULT 0;",

    "CREATE INDEX audit_name ON audit (tenant, key);"
    "CREATE INDEX audit_token ON audit (token);",

    "CREATE INDEX job_provider ON job (provider_id) WHERE provider_id <> '';",
};

enum {
    SCHEMA = sizeof(migrations) / sizeof(migrations[0]),
    APPLICATION = 0x4c544b59, /* "LTKY", in the file's header */
};

enum lk_status lk_sqlite_status(int code)
{
    switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return LK_OK;
    case SQLITE_NOMEM:
        return LK_NOMEM;
    case SQLITE_FULL:
        return LK_FULL;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return LK_BUSY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return LK_CORRUPT;
    default:
        return code == SQLITE_IOERR_NOMEM ? LK_NOMEM : LK_IO;
    }
}

static enum lk_status explain_failure(struct lk_sqlite *store, sqlite3 *db,
                                      int code, const char *doing,
                                      struct lk_buf *error)
{
    enum lk_status status =
        latchkey_buf_printf(error, "cannot %s %s: %s%s", doing, store->path,
                            db ? sqlite3_errmsg(db) : sqlite3_errstr(code),
                            (code & 0xff) == SQLITE_NOTADB
                                ? "; name a store of Latchkey, or a new file"
                                : "");

    return status ? status : lk_sqlite_status(code);
}

/*
 * Settings of every connection. Only the writer checkpoints, and only when it
 * says so itself: SQLite before 3.51.3 can lose a commit when a checkpoint of
 * another connection races with it. What is deleted is overwritten with zeros,
 * as Debian's SQLite does by itself.
 */
static int configure_connection(struct lk_sqlite *store, sqlite3 *db,
                                bool writer)
{
    char sql[320];
    int code =
        sqlite3_db_config(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, (int *)NULL);

    if (code == SQLITE_OK) {
        code = sqlite3_wal_autocheckpoint(db, 0);
    }
    snprintf(sql, sizeof(sql),
             "PRAGMA page_size=%d; PRAGMA journal_mode=WAL;"
             "PRAGMA synchronous=FULL; PRAGMA cache_size=%u;"
             "PRAGMA secure_delete=ON;"
             "PRAGMA journal_size_limit=%llu; PRAGMA temp_store=MEMORY;"
             "PRAGMA query_only=%d;",
             LK_PAGE_BYTES, store->config.cache_pages,
             16ULL * LK_PAGE_BYTES * (store->config.checkpoint_pages + 1ULL),
             !writer);
    if (code == SQLITE_OK) {
        code = sqlite3_exec(db, sql, NULL, NULL, NULL);
    }
    return code;
}

static bool has_log(sqlite3 *db)
{
    sqlite3_stmt *row = NULL;
    bool is_wal =
        sqlite3_prepare_v2(db, "PRAGMA journal_mode", -1, &row, NULL) ==
            SQLITE_OK &&
        sqlite3_step(row) == SQLITE_ROW &&
        !sqlite3_stricmp((const char *)sqlite3_column_text(row, 0), "wal");

    sqlite3_finalize(row);
    return is_wal;
}

enum lk_status lk_sqlite_connect(struct lk_sqlite *store, bool writer,
                                 sqlite3 **db, struct lk_buf *error)
{
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                (writer ? SQLITE_OPEN_CREATE : 0);
    int code = sqlite3_open_v2(store->path, db, flags, store->config.vfs);

    if (code == SQLITE_OK) {
        sqlite3_extended_result_codes(*db, 1);
        code = configure_connection(store, *db, writer);
    }
    if (code == SQLITE_OK && !has_log(*db)) {
        code = SQLITE_CANTOPEN; /* a file system without shared memory */
    }
    enum lk_status status =
        code == SQLITE_OK ? lk_sqlite_check_files(store, error)
                          : explain_failure(store, *db, code, "open", error);
    if (status) {
        sqlite3_close(*db);
        *db = NULL;
    }
    return status;
}

enum lk_status lk_sqlite_number(sqlite3 *db, const char *sql, int64_t *number)
{
    sqlite3_stmt *statement = NULL;
    int code = sqlite3_prepare_v2(db, sql, -1, &statement, NULL);

    if (code == SQLITE_OK) {
        code = sqlite3_step(statement);
    }
    if (code == SQLITE_ROW) {
        *number = sqlite3_column_int64(statement, 0);
    }
    sqlite3_finalize(statement);
    return code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
}

static int upgrade_schema(sqlite3 *db, int64_t version)
{
    char sql[96];
    int code = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);

    for (int64_t v = version; v < SCHEMA && code == SQLITE_OK; v++) {
        code = sqlite3_exec(db, migrations[v], NULL, NULL, NULL);
    }
    snprintf(sql, sizeof(sql),
             "PRAGMA user_version=%d; PRAGMA application_id=%d; COMMIT", SCHEMA,
             APPLICATION);
    if (code == SQLITE_OK) {
        code = sqlite3_exec(db, sql, NULL, NULL, NULL);
    }
    if (code != SQLITE_OK) {
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    }
    return code;
}

enum lk_status lk_sqlite_migrate(struct lk_sqlite *store, struct lk_buf *error)
{
    int64_t version = 0;
    int64_t application = 0;
    int64_t tables = 0;
    sqlite3 *db = store->writer;
    enum lk_status status =
        lk_sqlite_number(db, "PRAGMA user_version", &version);

    if (!status) {
        status = lk_sqlite_number(db, "PRAGMA application_id", &application);
    }
    if (!status) {
        status =
            lk_sqlite_number(db, "SELECT count(*) FROM sqlite_schema", &tables);
    }
    if (status) {
        return explain_failure(store, db, sqlite3_errcode(db), "read", error);
    }
    if (tables && application != APPLICATION) {
        status = latchkey_buf_printf(
            error, "%s is a database, but not one of Latchkey's", store->path);
        return status ? status : LK_INVALID;
    }
    if (version > SCHEMA) {
        status = latchkey_buf_printf(error,
                                     "%s was written by a later version of "
                                     "Latchkey (schema %lld, this one knows "
                                     "%d); use that version",
                                     store->path, (long long)version, SCHEMA);
        return status ? status : LK_VERSION;
    }
    int code = version == SCHEMA ? SQLITE_OK : upgrade_schema(db, version);
    return code == SQLITE_OK
               ? LK_OK
               : explain_failure(store, db, code, "migrate", error);
}

static const char *const statement_sql[] = {
#define X(name, sql) sql,
    LK_STATEMENT_MAP(X)
#undef X
};

enum lk_status lk_sqlite_prepare(struct lk_sqlite *store)
{
    for (int i = 0; i < LK_STATEMENTS; i++) {
        int code = sqlite3_prepare_v3(store->writer, statement_sql[i], -1,
                                      SQLITE_PREPARE_PERSISTENT,
                                      &store->statements[i], NULL);
        if (code != SQLITE_OK) {
            return lk_sqlite_status(code);
        }
    }
    return LK_OK;
}

void lk_sqlite_finalize(struct lk_sqlite *store)
{
    for (int i = 0; i < LK_STATEMENTS; i++) {
        sqlite3_finalize(store->statements[i]);
        store->statements[i] = NULL;
    }
}

/* ---- meta: single values ---------------------------------------------- */

static enum lk_status meta_row(sqlite3 *db, const char *name,
                               sqlite3_stmt **statement)
{
    int code = sqlite3_prepare_v2(db, "SELECT value FROM meta WHERE name = ?",
                                  -1, statement, NULL);

    if (code == SQLITE_OK) {
        code = sqlite3_bind_text(*statement, 1, name, -1, SQLITE_STATIC);
    }
    if (code == SQLITE_OK) {
        code = sqlite3_step(*statement);
    }
    return code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
}

enum lk_status lk_meta_get(sqlite3 *db, const char *name, int64_t *value)
{
    sqlite3_stmt *statement = NULL;
    enum lk_status status = meta_row(db, name, &statement);

    *value = status ? 0 : sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return status == LK_NOT_FOUND ? LK_OK : status;
}

/* LK_CORRUPT if the value has another length. */
enum lk_status lk_meta_get_bytes(sqlite3 *db, const char *name, void *bytes,
                                 size_t len)
{
    sqlite3_stmt *statement = NULL;
    enum lk_status status = meta_row(db, name, &statement);

    if (!status) {
        if ((size_t)sqlite3_column_bytes(statement, 0) == len) {
            memcpy(bytes, sqlite3_column_blob(statement, 0), len);
        } else {
            status = LK_CORRUPT;
        }
    }
    sqlite3_finalize(statement);
    return status;
}

enum lk_status lk_meta_put(struct lk_sqlite *store, const char *name,
                           int64_t value)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_META];

    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(statement, 2, value);
    return lk_sqlite_run(store, LK_STATEMENT_META);
}

enum lk_status lk_meta_put_bytes(struct lk_sqlite *store, const char *name,
                                 const void *bytes, size_t len)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_META];

    sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_blob(statement, 2, bytes, (int)len, SQLITE_STATIC);
    return lk_sqlite_run(store, LK_STATEMENT_META);
}
