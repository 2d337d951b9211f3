/*
 * sqlite_copy.c - long work beside the claims: verification and backup.
 *
 * Each holds one view of the file on a connection of its own. Batches continue
 * in the meantime; the log cannot start over, so it grows until the work is
 * done.
 */
#include "store/sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    STEP_PAGES = 256,
    INTERRUPT_EVERY = 10000, /* instructions of SQLite's machine */
    FINDINGS_MAX = 100,
};

/* SQLite asks in the middle of a statement; not 0 interrupts it. */
static int should_stop(void *context)
{
    struct lk_sqlite *store = context;

    return atomic_load(&store->stopping);
}

/* A connection for this work. It takes a read lock on the handles, also if it
 * fails: close_own has to be called in any case. */
static enum lk_status open_own(struct lk_sqlite *store, sqlite3 **db,
                               struct lk_buf *error)
{
    *db = NULL;
    pthread_rwlock_rdlock(&store->handles);
    if (atomic_load(&store->health) == LK_HEALTH_BROKEN ||
        atomic_load(&store->stopping)) {
        return LK_UNAVAILABLE;
    }
    enum lk_status status = lk_sqlite_connect(store, false, db, error);
    if (!status) {
        sqlite3_progress_handler(*db, INTERRUPT_EVERY, should_stop, store);
    }
    return status;
}

static void close_own(struct lk_sqlite *store, sqlite3 *db)
{
    sqlite3_close(db);
    pthread_rwlock_unlock(&store->handles);
}

/* ---- verify ----------------------------------------------------------- */

/* Findings beyond FINDINGS_MAX are counted, but not listed. */
static enum lk_status add_finding(struct lk_buf *report, size_t *findings,
                                  const char *text)
{
    if (++*findings > FINDINGS_MAX) {
        return LK_OK;
    }
    return latchkey_buf_printf(report, "%s\n", text);
}

/* A table that cannot be read is a finding; the other checks continue. */
static enum lk_status note_unreadable(sqlite3 *db, enum lk_status status,
                                      struct lk_buf *report, size_t *findings)
{
    return status == LK_CORRUPT
               ? add_finding(report, findings, sqlite3_errmsg(db))
               : status;
}

/* SQLite's own check of pages and indexes. Its lines are findings. */
static enum lk_status check_pages(sqlite3 *db, struct lk_buf *report,
                                  size_t *findings)
{
    sqlite3_stmt *row = NULL;
    int code = sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &row, NULL);
    enum lk_status status = lk_sqlite_status(code);

    while (!status && (code = sqlite3_step(row)) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(row, 0);
        if (text && strcmp(text, "ok") != 0) {
            status = add_finding(report, findings, text);
        }
    }
    sqlite3_finalize(row);
    return status ? status : lk_sqlite_status(code);
}

/* The state of the operations that a query names by number: the newest claim
 * of each, and the outcome of that claim. */
#define STANDING(numbers)                                                      \
    "WITH newest AS (SELECT ifnull(number, token) AS n, max(token) AS t "      \
    "FROM claim WHERE ifnull(number, token) IN (" numbers ") GROUP BY n), "    \
    "standing AS (SELECT n, CASE WHEN kind IS NULL "                           \
    "THEN iif(lock = " LK_SQL_LOCK_NONE ", " LK_SQL_ROW_RETURN                 \
    ", " LK_SQL_ROW_EXTEND ") ELSE kind END AS kind FROM newest "              \
    "JOIN claim ON claim.token = t LEFT JOIN outcome ON outcome.token = t) "

/* In which state the newest claim of an operation is, by its kind. */
#define IS_ACCEPTED  "kind = " LK_SQL_ROW_RETURN
#define IS_RUNNING   "kind = " LK_SQL_ROW_EXTEND
#define IS_UNCERTAIN "kind IN (" LK_SQL_ROW_DOUBT ", " LK_SQL_ROW_LAPSE ")"
#define IS_COMPLETED "kind IN (" LK_SQL_ROW_COMPLETE ", " LK_SQL_ROW_OMIT ")"

#define REQUESTS_ASTRAY                                                        \
    STANDING("SELECT number FROM job WHERE name = '' AND " LK_UNFINISHED)      \
    "SELECT count(*) FROM job LEFT JOIN standing ON n = number "               \
    "WHERE name = '' AND " LK_UNFINISHED " AND NOT ifnull(CASE state "         \
    "WHEN " LK_SQL_JOB_WAITING " THEN " IS_ACCEPTED " "                        \
    "WHEN " LK_SQL_JOB_LEASED " THEN " IS_RUNNING                              \
    " OR (repeatable AND " IS_UNCERTAIN ") "                                   \
    "WHEN " LK_SQL_JOB_UNCERTAIN " THEN " IS_UNCERTAIN " END, 0)"
#define REQUESTS_MISSING                                                       \
    STANDING("SELECT ifnull(number, token) FROM claim WHERE lock "             \
             "= " LK_SQL_LOCK_NONE)                                            \
    "SELECT count(*) FROM standing WHERE " IS_ACCEPTED " AND NOT EXISTS "      \
    "(SELECT 1 FROM job WHERE number = n AND name = '' AND state "             \
    "= " LK_SQL_JOB_WAITING ")"

/* Invariants of our own that no page check knows. */
static const struct {
    const char *sql;
    const char *finding;
} rules[] = {
    {"SELECT count(*) FROM claim WHERE length(hash) <> 16",
     "claims with a damaged hash"},
    {"SELECT count(*) FROM claim WHERE number NOT BETWEEN 1 AND token",
     "claims with a damaged number"},
    {"SELECT count(*) FROM claim WHERE lock NOT BETWEEN -1 AND (1 << 47) - 1",
     "claims with a damaged lock"},
    {"SELECT count(*) FROM outcome WHERE until NOT BETWEEN 0 AND (1 << 48) - 1",
     "outcomes with a damaged time"},
    {"SELECT count(*) FROM outcome WHERE length(hash) <> 16",
     "outcomes with a damaged hash"},
    {"SELECT count(*) FROM outcome WHERE kind NOT BETWEEN " LK_SQL_ROW_COMPLETE
     " AND " LK_SQL_ROW_RETURN,
     "outcomes of an unknown kind"},
    {"SELECT count(*) FROM outcome o WHERE " IS_COMPLETED " AND NOT EXISTS "
     "(SELECT 1 FROM answer a WHERE a.token = o.token)",
     "completed operations without a response"},
    {"SELECT count(*) FROM answer a WHERE record IS NOT NULL AND NOT EXISTS "
     "(SELECT 1 FROM outcome o WHERE o.token = a.token AND " IS_COMPLETED ")",
     "stored responses of operations that are not completed"},
    {"SELECT count(*) FROM outcome o WHERE NOT EXISTS "
     "(SELECT 1 FROM claim c WHERE c.token = o.token)",
     "outcomes without a claim"},
    {"SELECT count(*) FROM job j WHERE NOT EXISTS "
     "(SELECT 1 FROM claim c WHERE c.token = j.number AND c.hash = j.hash)",
     "jobs without an operation"},
    {"SELECT count(*) FROM job WHERE state NOT BETWEEN " LK_SQL_JOB_WAITING
     " AND " LK_SQL_JOB_DROPPED,
     "jobs in an unknown state"},
    {"SELECT count(*) FROM job j WHERE NOT EXISTS "
     "(SELECT 1 FROM call c WHERE c.id = j.id)",
     "jobs without a call"},
    {"SELECT (SELECT count(*) FROM call WHERE id NOT IN (SELECT id FROM job)) "
     "+ (SELECT count(*) FROM attempt WHERE job NOT IN (SELECT id FROM job))",
     "calls and attempts without a job"},
    {"SELECT count(*) FROM (SELECT 1 FROM job WHERE name <> '' "
     "GROUP BY number, generation, name HAVING count(*) > 1)",
     "names of jobs that are used twice"},
    {"SELECT count(*) FROM (SELECT 1 FROM job WHERE name = '' "
     "AND " LK_UNFINISHED " "
     "GROUP BY number HAVING count(*) > 1)",
     "operations with two unfinished requests"},
    {REQUESTS_ASTRAY, "requests whose state does not match their operation"},
    {REQUESTS_MISSING, "accepted operations without their request"},
};

/* A rule is a query that counts what breaks it. */
static enum lk_status check_rule(sqlite3 *db, size_t rule,
                                 struct lk_buf *report, size_t *findings)
{
    int64_t count = 0;
    char line[160];
    enum lk_status status = lk_sqlite_number(db, rules[rule].sql, &count);

    if (!status && count) {
        snprintf(line, sizeof(line), "%lld %s", (long long)count,
                 rules[rule].finding);
        status = add_finding(report, findings, line);
    }
    return status;
}

/* How far the work has come, in claims or in pages. */
struct copy_walk {
    lk_progress_fn progress;
    void *context;
    uint64_t done;
    uint64_t total;
};

/* Every claim must hash to its stored hash, and every response must decode. */
static enum lk_status check_claims(struct lk_sqlite *store, sqlite3 *db,
                                   struct copy_walk *walk,
                                   struct lk_buf *report, size_t *findings)
{
    sqlite3_stmt *row = NULL;
    int code = sqlite3_prepare_v2(
        db,
        "SELECT hash, tenant, scope, key, claim.token, record FROM claim "
        "LEFT JOIN answer ON answer.token = claim.token ORDER BY claim.token",
        -1, &row, NULL);
    enum lk_status status = lk_sqlite_status(code);

    while (!status && (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_name name = {lk_column(row, 1), lk_column(row, 2),
                               lk_column(row, 3)};
        struct lk_hash128 hash = lk_name_hash(store->store.secret, name);
        struct lk_slice stored = lk_column(row, 0);
        struct lk_response response;
        char line[96];
        long long token = sqlite3_column_int64(row, 4);
        if (stored.len != sizeof(hash) ||
            memcmp(stored.data, &hash, sizeof(hash)) != 0) {
            snprintf(line, sizeof(line),
                     "claim %lld: name and hash do not belong together", token);
            status = add_finding(report, findings, line);
        } else if (sqlite3_column_type(row, 5) != SQLITE_NULL &&
                   latchkey_response_decode(lk_column(row, 5), &response)) {
            snprintf(line, sizeof(line), "claim %lld: damaged response", token);
            status = add_finding(report, findings, line);
        }
        if (++walk->done % 1024 == 0 && walk->progress) {
            walk->progress(walk->context, walk->done, walk->total);
        }
    }
    sqlite3_finalize(row);
    return status ? status : lk_sqlite_status(code);
}

/* LK_OK: sound. LK_CORRUPT: `report` has the findings. Any other status: the
 * check could not be finished. All checks see one view of the file. */
static enum lk_status verify_once(struct lk_sqlite *store,
                                  lk_progress_fn progress, void *context,
                                  struct lk_buf *report)
{
    sqlite3 *db = NULL;
    size_t findings = 0;
    struct copy_walk walk = {progress, context, 0, 0};
    int64_t claims = 0;
    enum lk_status status = open_own(store, &db, report);

    if (!status) {
        status = lk_sqlite_status(sqlite3_exec(db, "BEGIN", NULL, NULL, NULL));
    }
    if (!status) {
        status = lk_sqlite_number(db, "SELECT count(*) FROM claim", &claims);
        walk.total = (uint64_t)claims;
    }
    if (!status) {
        status = note_unreadable(
            db, check_claims(store, db, &walk, report, &findings), report,
            &findings);
    }
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]) && !status; i++) {
        status = note_unreadable(db, check_rule(db, i, report, &findings),
                                 report, &findings);
    }
    if (!status) {
        status = check_pages(db, report, &findings);
    }
    close_own(store, db);
    return status ? status : findings ? LK_CORRUPT : LK_OK;
}

/* A failed read looks like damage. Only what is found twice in a row is
 * reported. */
enum lk_status lk_sqlite_verify(struct lk_store *base, lk_progress_fn progress,
                                void *context, struct lk_buf *report)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    size_t before = report->len;
    enum lk_status status = verify_once(store, progress, context, report);

    if (status == LK_CORRUPT) {
        report->len = before;
        status = verify_once(store, progress, context, report);
    }
    return status;
}

/* ---- backup ----------------------------------------------------------- */

/* Returns `status`, with a sentence in `error`; LK_NOMEM without one. */
static enum lk_status explain_copy_failure(struct lk_buf *error,
                                           const char *path, const char *why,
                                           enum lk_status status)
{
    enum lk_status said =
        latchkey_buf_printf(error, "cannot write %s: %s", path, why);

    return said ? said : status;
}

/* A few pages at a time, so that progress is shown and a stop is noticed. */
static enum lk_status copy_pages(struct lk_sqlite *store, sqlite3 *from,
                                 sqlite3 *to, struct copy_walk *walk)
{
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", from, "main");
    int code = SQLITE_OK;

    if (!backup) {
        return lk_sqlite_status(sqlite3_errcode(to));
    }
    while (code == SQLITE_OK && !atomic_load(&store->stopping)) {
        code = sqlite3_backup_step(backup, STEP_PAGES);
        walk->total = (uint64_t)sqlite3_backup_pagecount(backup);
        walk->done = walk->total - (uint64_t)sqlite3_backup_remaining(backup);
        if (walk->progress) {
            walk->progress(walk->context, walk->done, walk->total);
        }
    }
    sqlite3_backup_finish(backup);
    if (code == SQLITE_OK) {
        return LK_UNAVAILABLE; /* the store is closing or reopening */
    }
    return lk_sqlite_status(code);
}

/* The mark by which a start from this file knows that it is a copy. The copy
 * also leaves WAL mode, so that it is one file. */
static enum lk_status mark_copy(struct lk_sqlite *store, sqlite3 *copy)
{
    char sql[128];

    snprintf(sql, sizeof(sql),
             "PRAGMA synchronous=FULL; PRAGMA journal_mode=DELETE;"
             "INSERT OR REPLACE INTO meta VALUES ('backup_at', %llu)",
             (unsigned long long)lk_clock_now(&store->clock));
    return lk_sqlite_status(sqlite3_exec(copy, sql, NULL, NULL, NULL));
}

/* Makes the file and its name durable. */
static enum lk_status sync_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return LK_IO;
    }
    int failed = fsync(fd);
    close(fd);
    return failed ? LK_IO : lk_sync_folder(path);
}

static bool stat_beside(const char *path, const char *suffix, struct stat *info)
{
    char name[4096];

    snprintf(name, sizeof(name), "%s%s", path, suffix);
    return !stat(name, info);
}

/*
 * Is the path, or one that SQLite would use beside it, a file of the store? By
 * inode, so that no link and no other spelling hides it. A file that is not
 * there has none, so the caller has tried to make it.
 */
static bool is_own_file(const struct lk_sqlite *store, const char *path)
{
    static const char *const suffixes[] = {"", "-journal", "-wal", "-shm",
                                           "-lock"};
    enum { SUFFIXES = sizeof(suffixes) / sizeof(*suffixes) };
    struct stat own;
    struct stat copy;

    for (int i = 0; i < SUFFIXES; i++) {
        for (int k = 0;
             k < SUFFIXES && stat_beside(store->path, suffixes[i], &own); k++) {
            if (stat_beside(path, suffixes[k], &copy) &&
                copy.st_dev == own.st_dev && copy.st_ino == own.st_ino) {
                return true;
            }
        }
    }
    return false;
}

/* An empty file that was not there before, for the copy. */
static enum lk_status make_file(const struct lk_sqlite *store, const char *path,
                                struct lk_buf *error)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int failure = fd < 0 ? errno : 0;

    if (fd >= 0) {
        close(fd);
    }
    if (is_own_file(store, path)) {
        if (fd >= 0) {
            unlink(path);
        }
        return explain_copy_failure(error, path,
                                    "it is a file of the store itself; choose "
                                    "another",
                                    LK_INVALID);
    }
    if (failure) {
        return explain_copy_failure(
            error, path,
            failure == EEXIST
                ? "it exists, and a backup does not replace files; choose "
                  "another name"
            : failure == ENOENT || failure == EACCES
                ? "its folder must be there, and writable for "
                  "latchkeyd's user"
                : strerror(failure),
            failure == EEXIST ? LK_INVALID : LK_IO);
    }
    return LK_OK;
}

/* Long work. The file must not exist before; it is removed again unless the
 * copy is complete and durable. `error` says why it is not. */
enum lk_status lk_sqlite_backup(struct lk_store *base, const char *path,
                                lk_progress_fn progress, void *context,
                                struct lk_buf *error)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct copy_walk walk = {progress, context, 0, 0};
    sqlite3 *from = NULL;
    sqlite3 *to = NULL;
    enum lk_status status = make_file(store, path, error);

    if (status) {
        return status;
    }
    status = open_own(store, &from, error);
    if (!status) {
        /* One view for the whole copy, however long it takes. */
        status = lk_sqlite_status(
            sqlite3_exec(from, "BEGIN; SELECT 1 FROM meta", NULL, NULL, NULL));
    }
    if (!status) {
        status = lk_sqlite_status(sqlite3_open_v2(
            path, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL));
    }
    if (!status) {
        status = copy_pages(store, from, to, &walk);
    }
    if (!status) {
        status = mark_copy(store, to);
    }
    if (status && to) {
        status = explain_copy_failure(error, path, sqlite3_errmsg(to), status);
    }
    sqlite3_close(to);
    close_own(store, from);
    if (!status) {
        status = sync_file(path);
    }
    if (status) {
        unlink(path);
    }
    return status;
}
