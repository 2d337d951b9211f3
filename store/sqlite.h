/*
 * sqlite.h - the parts of the embedded store; private to store/sqlite*.
 *
 * Rows are appended, in the order of their tokens, and deleted once nothing
 * needs them; a few small ones are replaced. The present state is in the index
 * (index.h), which is what reading every row gives. Only the store thread
 * writes; it alone decides and checkpoints.
 *
 * Lock order: commit, then handles, then reader, then index. The store thread
 * reads the index without its lock, because only this thread changes it.
 */
#ifndef LK_SQLITE_H
#define LK_SQLITE_H

#include "sql_names.h"
#include "store/index.h"
#include "store/sql_codes.h"
#include "store/sqlite_clock.h"
#include "store/store.h"

#include <pthread.h>
#include <sqlite3.h>

/* claim.lock of an accepted operation: it has no lock. */
enum { LK_LOCK_NONE = -1 };
#define LK_SQL_LOCK_NONE "-1"

/* A job as it is leased and shown. A row that is missing is damage, which must
 * not hide the rest. */
#define LK_JOB_COLUMNS                                                         \
    "SELECT job.id, job.number, job.generation, job.name, job.target, "        \
    "job.state, job.attempts, job.forgiven, job.called, job.sent, "            \
    "job.repeatable, job.created, job.due, job.ended, job.status, "            \
    "job.provider_id, job.reason, claim.tenant, claim.scope, claim.key, "      \
    "call.method, call.path, call.headers, call.body, job.doubt, job.since, "  \
    "job.sent_at FROM job "                                                    \
    "LEFT JOIN call ON call.id = job.id "                                      \
    "LEFT JOIN claim ON claim.token = job.number "

/* A job's own row, the small part that changes; see struct lk_job_row. */
#define LK_JOB_ROW                                                             \
    "SELECT id, number, hash, name = '', target, state, attempts, forgiven, "  \
    "called, sent, repeatable, created, due, doubt, since, sent_at FROM job "

/* The conditions of the partial indexes of jobs: SQLite uses one only if a
 * query has its condition word for word, so every query has it from here. */
#define LK_UNFINISHED "state < " LK_SQL_JOB_DELIVERED

#define LK_STUCK "state BETWEEN " LK_SQL_JOB_UNCERTAIN " AND " LK_SQL_JOB_DEAD

/* Statements of the writer. */
#define LK_STATEMENT_MAP(X)                                                    \
    X(BEGIN, "BEGIN IMMEDIATE")                                                \
    X(COMMIT, "COMMIT")                                                        \
    X(ROLLBACK, "ROLLBACK")                                                    \
    X(CLAIM, "INSERT INTO claim VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)")         \
    X(OUTCOME, "INSERT OR REPLACE INTO outcome VALUES (?,?,?,?,?)")            \
    X(STORED, "INSERT OR REPLACE INTO answer VALUES (?,?,?,?)")                \
    X(IMPORT, "INSERT OR REPLACE INTO claim "                                  \
              "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)")                          \
    X(HASH, "SELECT hash FROM claim WHERE token = ?")                          \
    X(AUDIT, "INSERT INTO audit VALUES (NULL,?,?,?,?,?,?,?,?)")                \
    X(META, "INSERT OR REPLACE INTO meta VALUES (?,?)")                        \
    X(KEEP, "UPDATE claim SET keep = ? WHERE token = ?")                       \
    X(ROW, "SELECT number, generation, attempt, ttl, keep, owner FROM claim "  \
           "WHERE token = ?")                                                  \
    X(REASON, "SELECT at, reason, record IS NULL FROM answer "                 \
              "WHERE token = ?")                                               \
    X(REAP, "SELECT token, number, hash FROM claim WHERE token > ? "           \
            "ORDER BY token LIMIT ?")                                          \
    X(DELETE_CLAIMS, "DELETE FROM claim WHERE token BETWEEN ? AND ?")          \
    X(DELETE_OUTCOMES, "DELETE FROM outcome WHERE token BETWEEN ? AND ?")      \
    X(DELETE_STORED, "DELETE FROM answer WHERE token BETWEEN ? AND ?")         \
    X(LEASE, "INSERT INTO claim SELECT ?2, hash, ifnull(number, token), "      \
             "ifnull(generation, token), attempt + 1, at, " LK_SQL_LOCK_NONE   \
             ", ttl, keep, "                                                   \
             "owner, fingerprint, tenant, scope, key FROM claim "              \
             "WHERE token = ?1")                                               \
    X(JOB, "INSERT INTO job (id, number, generation, hash, name, target, "     \
           "repeatable, created, due) VALUES (?,?,?,?,?,?,?,?,?)")             \
    X(CALL, "INSERT INTO call VALUES (?,?,?,?,?)")                             \
    X(JOB_EXISTS, "SELECT target = ?4 AND method = ?5 AND path = ?6 AND "      \
                  "headers = ?7 AND body = ?8 FROM job LEFT JOIN call "        \
                  "USING (id) WHERE number = ?1 AND generation = ?2 AND "      \
                  "name = ?3")                                                 \
    X(JOB_OPEN,                                                                \
      "SELECT 1 FROM job WHERE number = ? AND " LK_UNFINISHED " LIMIT 1")      \
    X(JOB_ROW, LK_JOB_ROW "WHERE id = ?")                                      \
    X(REQUEST, LK_JOB_ROW "WHERE number = ? AND name = '' AND " LK_UNFINISHED) \
    X(JOB_MOVE, "UPDATE job SET state = ?2, attempts = ?3, forgiven = ?4, "    \
                "called = ?5, sent = ?6, due = ?7, ended = ?8, doubt = ?9, "   \
                "since = ?10, sent_at = ?11 WHERE id = ?1")                    \
    X(JOB_END, "UPDATE job SET state = ?2, attempts = ?3, forgiven = ?4, "     \
               "called = ?5, sent = ?6, due = ?7, ended = ?8, doubt = ?9, "    \
               "since = ?10, sent_at = ?11, status = ?12, provider_id = "      \
               "ifnull(nullif(?13, ''), provider_id), reason = ?14 "           \
               "WHERE id = ?1")                                                \
    X(ATTEMPT, "INSERT OR REPLACE INTO attempt VALUES (?,?,?,?,?,?,?,?)")      \
    X(JOB_LOST, LK_JOB_ROW "WHERE target = ? AND state = " LK_SQL_JOB_LEASED   \
                           " AND " LK_UNFINISHED " "                           \
                           "AND due <= ? ORDER BY due LIMIT ?")                \
    X(JOB_DUE, LK_JOB_COLUMNS                                                  \
      "WHERE job.target = ? AND job.state = " LK_SQL_JOB_WAITING " "           \
      "AND job." LK_UNFINISHED " AND job.due <= ? "                            \
      "ORDER BY job.due LIMIT ?")                                              \
    X(JOB_WHOLE, LK_JOB_COLUMNS "WHERE job.id = ?")                            \
    X(JOB_NEXT, "SELECT min(due) FROM job WHERE target = ? AND state = ? "     \
                "AND " LK_UNFINISHED " AND due > ?")                           \
    X(OPERATION, "SELECT tenant, scope, key FROM claim WHERE token = ?")       \
    X(PAUSE, "INSERT OR REPLACE INTO target VALUES (?,?,?,?)")                 \
    X(RESUME, "DELETE FROM target WHERE name = ?")                             \
    X(REAP_JOBS, "SELECT id FROM job WHERE number BETWEEN ? AND ? LIMIT ?")    \
    X(FORGET_JOB, "INSERT INTO meta SELECT 'forgotten ' || target, ended "     \
                  "FROM job WHERE id = ? AND name <> '' ON CONFLICT (name) "   \
                  "DO UPDATE SET value = max(value, excluded.value)")          \
    X(DELETE_JOB, "DELETE FROM job WHERE id = ?")                              \
    X(DELETE_CALL, "DELETE FROM call WHERE id = ?")                            \
    X(DELETE_ATTEMPTS, "DELETE FROM attempt WHERE job = ?")

enum lk_statement {
#define X(name, sql) LK_STATEMENT_##name,
    LK_STATEMENT_MAP(X)
#undef X
        LK_STATEMENTS
};

#define LK_LIST                                                                \
    "SELECT claim.token, hash, tenant, scope, key, fingerprint, claim.at, "    \
    "max(ttl, ifnull(keep, 0)), attempt, answer.at, reason, "                  \
    "substr(record, 1, 18) FROM claim LEFT JOIN answer "                       \
    "ON answer.token = claim.token "

/* `narrow`: a condition that an index answers. */
#define LK_AUDIT(narrow, order)                                                \
    "SELECT id, at, who, why, action, tenant, scope, key, token "              \
    "FROM audit WHERE " narrow LK_AUDIT_MATCHES(                               \
        "?", "at") "ORDER BY id " order " LIMIT ?11"

/* Statements of the reader. */
#define LK_READ_MAP(X)                                                         \
    X(CLAIM, "SELECT tenant, scope, key, fingerprint, at, "                    \
             "max(ttl, ifnull(keep, 0)), attempt "                             \
             "FROM claim WHERE token = ?")                                     \
    X(STORED, "SELECT at, reason, record FROM answer WHERE token = ?")         \
    X(LIST, LK_LIST "WHERE claim.token > ? ORDER BY claim.token LIMIT ?")      \
    X(LIST_NEWEST, LK_LIST "WHERE claim.token < ? "                            \
                           "ORDER BY claim.token DESC LIMIT ?")                \
    X(JOB_COUNTS,                                                              \
      "SELECT count(*), ifnull(sum(state = " LK_SQL_JOB_DEAD "), 0), "         \
      "ifnull(sum(state = " LK_SQL_JOB_UNCERTAIN                               \
      "), 0) FROM job WHERE number = ? "                                       \
      "AND " LK_UNFINISHED)                                                    \
    X(WHOLE, "SELECT claim.token, claim.hash, tenant, scope, key, "            \
             "fingerprint, claim.at, ttl, attempt, number, generation, "       \
             "lock, keep, owner, kind, until, answer.at, reason, record "      \
             "FROM claim LEFT JOIN outcome ON outcome.token = claim.token "    \
             "LEFT JOIN answer ON answer.token = claim.token "                 \
             "WHERE claim.token > ? ORDER BY claim.token LIMIT ?")             \
    X(AUDIT, LK_AUDIT("", ""))                                                 \
    X(AUDIT_NEWEST, LK_AUDIT("", "DESC"))                                      \
    X(AUDIT_OF, LK_AUDIT("tenant = ?7 AND key = ?9 AND ", ""))                 \
    X(AUDIT_OF_NEWEST, LK_AUDIT("tenant = ?7 AND key = ?9 AND ", "DESC"))      \
    X(AUDIT_JOB, LK_AUDIT("token = ?10 AND ", ""))                             \
    X(AUDIT_JOB_NEWEST, LK_AUDIT("token = ?10 AND ", "DESC"))                  \
    X(REQUEST, "SELECT created FROM job WHERE number = ? AND name = '' "       \
               "AND " LK_UNFINISHED)                                           \
    X(JOB, LK_JOB_COLUMNS "WHERE job.id = ?")                                  \
    X(JOBS, LK_JOB_COLUMNS "WHERE job.id > ?1 ORDER BY job.id LIMIT ?2")       \
    X(JOBS_STUCK, LK_JOB_COLUMNS "WHERE job.id > ?1 AND job.state = ?3 "       \
                                 "AND job." LK_STUCK " "                       \
                                 "ORDER BY job.id LIMIT ?2")                   \
    X(JOBS_OF, LK_JOB_COLUMNS "WHERE job.id IN (SELECT id FROM job "           \
                              "WHERE id > ?1 AND number = ?3 "                 \
                              "ORDER BY id LIMIT ?2) ORDER BY job.id")         \
    X(JOBS_PROVIDER,                                                           \
      LK_JOB_COLUMNS "WHERE job.id IN (SELECT id FROM job WHERE id > ?1 "      \
                     "AND provider_id = ?3 AND provider_id <> '' "             \
                     "ORDER BY id LIMIT ?2) ORDER BY job.id")                  \
    X(JOB_RESPONSE, "SELECT headers, body FROM attempt WHERE job = ? "         \
                    "AND number BETWEEN ? AND ? ORDER BY number DESC LIMIT 1") \
    X(ATTEMPTS, "SELECT number, ended, status, called, reason, body "          \
                "FROM attempt WHERE job = ? AND number < ? ORDER BY number")   \
    X(OLDEST, "SELECT min(due) FROM job WHERE target = ? AND state = ? "       \
              "AND " LK_UNFINISHED " AND due > -1")                            \
    X(TARGET, "SELECT at, who, why FROM target WHERE name = ?")                \
    X(FORGOTTEN, "SELECT value FROM meta WHERE name = 'forgotten ' || ?")

enum lk_read {
#define X(name, sql) LK_READ_##name,
    LK_READ_MAP(X)
#undef X
        LK_READS
};

enum { LK_PAGE_BYTES = 8192 };

enum lk_health {
    LK_HEALTH_READY,
    LK_HEALTH_FULL,   /* no space: waits until a test write succeeds */
    LK_HEALTH_BROKEN, /* a write failed: to be reopened and rebuilt */
    LK_HEALTH_CLOSED,
};

/* Where the reaper is; see sqlite_keep.c. */
struct lk_reaper {
    bool running;
    uint64_t cursor;
    int64_t claim_rows;  /* in the table */
    int64_t needed_rows; /* of these, needed by an operation of the index */
    int64_t deleted;     /* in this pass */
    int64_t stuck;       /* dead rows that the last pass could not delete */
};

/* Written by the store thread, read by any. */
struct lk_counters {
    atomic_uint_fast64_t batches, batch_ops, syncs_failed, reopened,
        checkpoints, swept, reaped, dead_rows, free_bytes;
};

/* What is in the table of jobs for one target; see sqlite_counts.c. */
struct lk_job_target {
    char name[LK_TARGET_NAME_MAX + 1];
    size_t name_len;
    uint64_t jobs[LK_JOB_DELIVERED]; /* unfinished, by state */
    uint64_t oldest_uncertain_ms;    /* 0: none */
    bool recount;                    /* the oldest one is to be looked up */
    bool paused;
};

struct lk_job_counts {
    struct lk_job_target *targets;
    size_t count;
    bool changed;
};

struct lk_sqlite {
    struct lk_store store;
    struct lk_store_config config;
    char *path; /* without symbolic links */
    int lock_fd;
    bool owned;  /* lock_fd has its lock */
    int file_fd; /* the database itself; see lock_files */
    int log_fd;  /* the log that SQLite uses: an open file, so that its inode
                    is not used again. -1 until the first connection */

    /* Store thread. */
    sqlite3 *writer;
    sqlite3_stmt *statements[LK_STATEMENTS];
    struct lk_overlay overlay;
    struct lk_buf scratch;
    struct lk_reaper reaper;
    struct lk_reaper reaper_durable; /* as of the last commit */
    uint64_t next_token;
    uint64_t next_job;
    bool has_jobs; /* any, finished or not */
    struct lk_job_counts counts;
    size_t counts_cap;  /* of both */
    uint64_t forgotten; /* highest token of an operation that left the index */
    uint64_t last_ms;   /* time of the last decision */
    uint64_t moment_at_ms; /* when the moment was last stored */
    uint64_t probe_at_ms;  /* when a failed store was last tried */
    int wal_frames;
    int wal_tried; /* frames at the last checkpoint that did not finish */
    bool scrub;    /* an evicted response may still be in the log */
    bool writing;  /* a transaction is open */
    bool committing;
    uint64_t reaper_rest_ms; /* the reaper pauses until then: it found damage */
    uint64_t suspect_ms;     /* last reopened because data looked damaged */
    uint64_t damaged;        /* the token that looked damaged again since then;
                                see lk_sqlite_suspect */
    bool reopened;           /* since the last batch */
    uint64_t incarnation;    /* as count_opening has stored it */

    /* Readers. A thread that uses a connection other than the writer holds
     * `handles` for reading; reopening holds it for writing. */
    pthread_rwlock_t handles;
    pthread_mutex_t reader_lock;
    sqlite3 *reader;
    sqlite3_stmt *reads[LK_READS];
    bool reader_suspect; /* a read has failed: the next one gets a new reader */
    atomic_bool stopping; /* long work ends early */

    /* Held from before a commit until the index shows it. A reader that finds
     * rows and index apart reads again under this lock. */
    pthread_mutex_t commit_lock;

    pthread_mutex_t index_lock;
    struct lk_index index;
    struct lk_job_counts counts_durable; /* as of the last commit */
    /* Not 0: a batch was decided at that time, and the index does not show it
     * yet; other threads see no later time until then. Index lock. */
    uint64_t frozen_ms;

    struct lk_clock clock;
    atomic_int health;
    atomic_uint_fast64_t last_token;
    atomic_uint_fast64_t hold_until_ms;
    struct lk_counters counters;
    pthread_mutex_t failure_lock;
    char failure[LK_FAILURE_SIZE];
};

/* sqlite_schema.c: files, tables, settings */
LK_MUST_CHECK enum lk_status lk_sqlite_connect(struct lk_sqlite *store,
                                               bool writer, sqlite3 **db,
                                               struct lk_buf *error);
LK_MUST_CHECK enum lk_status lk_sqlite_migrate(struct lk_sqlite *store,
                                               struct lk_buf *error);
LK_MUST_CHECK enum lk_status lk_sqlite_prepare(struct lk_sqlite *store);
void lk_sqlite_finalize(struct lk_sqlite *store);
/* 0 if the value was never put. */
LK_MUST_CHECK enum lk_status lk_meta_get(sqlite3 *db, const char *name,
                                         int64_t *value);
/* LK_NOT_FOUND leaves `bytes` alone. */
LK_MUST_CHECK enum lk_status lk_meta_get_bytes(sqlite3 *db, const char *name,
                                               void *bytes, size_t len);
LK_MUST_CHECK enum lk_status lk_meta_put(struct lk_sqlite *store,
                                         const char *name, int64_t value);
LK_MUST_CHECK enum lk_status lk_meta_put_bytes(struct lk_sqlite *store,
                                               const char *name,
                                               const void *bytes, size_t len);
/* The status for a result code of SQLite. */
enum lk_status lk_sqlite_status(int code);
/* A query of one number, without parameters. */
LK_MUST_CHECK enum lk_status lk_sqlite_number(sqlite3 *db, const char *sql,
                                              int64_t *number);

/* sqlite.c: opening, closing, reopening */
void lk_sqlite_log(struct lk_sqlite *store, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Closes everything and builds it again from the disk. Store thread. */
LK_MUST_CHECK enum lk_status lk_sqlite_reopen(struct lk_sqlite *store);
void lk_sqlite_set_failure(struct lk_sqlite *store, enum lk_health health,
                           const char *why);

/* LK_INVALID, with an error: the files at the store's paths are not those that
 * this process has opened. */
LK_MUST_CHECK enum lk_status lk_sqlite_check_files(
    const struct lk_sqlite *store, struct lk_buf *error);
/* Whether this process had the store open before and has acknowledged
 * operations. */
bool lk_sqlite_is_reopening(const struct lk_sqlite *store);
/* Returns LK_INVALID with the error that the file is an older copy. */
LK_MUST_CHECK enum lk_status lk_sqlite_refuse_file(
    const struct lk_sqlite *store, struct lk_buf *error);
/* Makes a new or renamed file findable after a power loss. */
LK_MUST_CHECK enum lk_status lk_sync_folder(const char *path);

/* sqlite_load.c: the index from the rows */
LK_MUST_CHECK enum lk_status lk_sqlite_load(struct lk_sqlite *store,
                                            struct lk_buf *error);
/* Whether it is finished without unfinished jobs and past its TTL: absent for
 * all but the reaper. */
bool lk_entry_expired(const struct lk_entry *entry, uint64_t now);
/* Sets state and deadline of a claim without an outcome. */
void lk_entry_start(struct lk_entry *entry, uint64_t at, int64_t lock);
/* Applies one stored outcome to an entry, in a batch and while loading. */
void lk_entry_apply(struct lk_entry *entry, enum lk_row_kind kind,
                    uint64_t until);
/* The number of a claim's row. One that is damaged, which VERIFY reports, must
 * not stop the store: then it is the token, as if the row had none. */
uint64_t lk_claim_number(uint64_t number, uint64_t token);
uint64_t lk_fingerprint_hash(const struct lk_sqlite *store,
                             struct lk_slice fingerprint);
unsigned lk_owner_hash(const struct lk_sqlite *store, struct lk_slice owner);

/* sqlite_apply.c: rows. Each function opens the batch's transaction first. */
struct lk_claim_row {
    uint64_t number;
    uint64_t generation;
    uint64_t attempt;
    uint64_t ttl;
    uint64_t keep;   /* 0: KEEP was not sent */
    bool same_owner; /* as the one asked about */
};

/* Opens the batch's transaction if it is not open yet. */
LK_MUST_CHECK enum lk_status lk_sqlite_begin(struct lk_sqlite *store);
/* Runs a prepared statement that returns no rows, and resets it. */
LK_MUST_CHECK enum lk_status lk_sqlite_run(struct lk_sqlite *store,
                                           enum lk_statement statement);
/* LK_NOT_FOUND: there is no such row; a failed read has another status. */
LK_MUST_CHECK enum lk_status lk_sqlite_find_row(struct lk_sqlite *store,
                                                uint64_t token,
                                                struct lk_slice owner,
                                                struct lk_claim_row *row);
/* The row of an operation of the index; LK_CORRUPT: it has none. */
LK_MUST_CHECK enum lk_status lk_sqlite_row(struct lk_sqlite *store,
                                           uint64_t token,
                                           struct lk_slice owner,
                                           struct lk_claim_row *row);
LK_MUST_CHECK enum lk_status lk_sqlite_claim(struct lk_sqlite *store,
                                             const struct lk_op *op,
                                             const struct lk_entry *entry,
                                             const struct lk_claim_row *row,
                                             uint64_t now);
/* Writes the row, in place of an earlier one, and puts the entry that follows
 * from it in place of `before`. */
LK_MUST_CHECK enum lk_status lk_sqlite_outcome(struct lk_sqlite *store,
                                               const struct lk_entry *before,
                                               enum lk_row_kind kind,
                                               uint64_t until);
/* The TTL that KEEP asks for, of a claim that is still open. */
LK_MUST_CHECK enum lk_status lk_sqlite_keep_row(struct lk_sqlite *store,
                                                const struct lk_entry *before,
                                                uint64_t ttl_ms);
/* The reason of a doubt. LK_NOT_FOUND: there is none. LK_CORRUPT: there is a
 * response in its place. */
LK_MUST_CHECK enum lk_status lk_sqlite_reason(struct lk_sqlite *store,
                                              uint64_t token,
                                              struct lk_stored **stored);
LK_MUST_CHECK enum lk_status lk_sqlite_write_stored(
    struct lk_sqlite *store, uint64_t token, uint64_t now,
    struct lk_slice reason, const struct lk_response *response);
/* A claim as another store had it, in place of the row at its token. `entry`
 * has token, number and deadline. */
LK_MUST_CHECK enum lk_status lk_sqlite_import_row(
    struct lk_sqlite *store, const struct lk_operation *operation,
    const struct lk_entry *entry, uint64_t at);
LK_MUST_CHECK enum lk_status lk_sqlite_audit_row(
    struct lk_sqlite *store, const struct lk_audit_entry *entry);
/* Puts `after` in the place of `before` (NULL: absent) for this batch. */
LK_MUST_CHECK enum lk_status lk_sqlite_replace(struct lk_sqlite *store,
                                               const struct lk_entry *before,
                                               const struct lk_entry *after);

/* sqlite_counts.c: jobs by target and state */
/* Where the target is in the counts, added if it is new. */
LK_MUST_CHECK enum lk_status lk_counts_find(struct lk_sqlite *store,
                                            struct lk_slice target, size_t *at);
/* A job has changed its state; LK_JOB_STATES: it is new. */
void lk_counts_move(struct lk_sqlite *store, size_t target,
                    enum lk_job_state from, enum lk_job_state to, uint64_t now);
/* Before a commit: reads the oldest uncertain job again where a batch may have
 * changed it. */
LK_MUST_CHECK enum lk_status lk_counts_settle(struct lk_sqlite *store);
void lk_counts_publish(struct lk_sqlite *store); /* under the index's lock */
void lk_counts_roll_back(struct lk_sqlite *store);
LK_MUST_CHECK enum lk_status lk_counts_load(struct lk_sqlite *store);
void lk_counts_free(struct lk_sqlite *store);
void lk_counts_show(const struct lk_job_counts *counts,
                    struct lk_store_stats *stats);

/* sqlite_jobs.c: a job's rows, and the request that follows its operation */
struct lk_job_row {
    uint64_t id;
    uint64_t number;
    struct lk_hash128 hash; /* of the operation's name */
    bool request;
    size_t target; /* in the counts */
    enum lk_job_state state;
    enum lk_job_state was; /* as the counts know it */
    unsigned attempts;
    unsigned forgiven;
    bool called;
    bool sent;
    bool doubt;
    bool repeatable;
    uint64_t created;
    uint64_t due;
    uint64_t ended;
    uint64_t since; /* as those of struct lk_job */
    uint64_t sent_at;
};

/* The job as the rules see it (lib/job_machine.h); the caller adds what its
 * event brings. */
struct lk_job_standing lk_job_standing(const struct lk_job_row *row,
                                       uint64_t now);
/* Puts into the row what a step says: the next state and its effects. `end`:
 * for LEFT and DOUBTS; `due`: for DUE. Nothing is written. */
void lk_job_apply(struct lk_job_row *row, const struct lk_job_step *step,
                  const struct lk_job_end *end, uint64_t due, uint64_t now);
/* LK_NOT_FOUND if there is none. */
LK_MUST_CHECK enum lk_status lk_job_read(struct lk_sqlite *store, uint64_t id,
                                         struct lk_job_row *row);
LK_MUST_CHECK enum lk_status lk_job_take_row(struct lk_sqlite *store,
                                             sqlite3_stmt *statement,
                                             struct lk_job_row *row);
/* The unfinished request of an operation; LK_NOT_FOUND if there is none. */
LK_MUST_CHECK enum lk_status lk_job_request(struct lk_sqlite *store,
                                            uint64_t number,
                                            struct lk_job_row *row);
/* A new job. `name`: empty for a request. */
LK_MUST_CHECK enum lk_status lk_job_add(struct lk_sqlite *store,
                                        const struct lk_claim_row *operation,
                                        struct lk_hash128 hash,
                                        struct lk_slice name,
                                        const struct lk_call *call,
                                        uint64_t now);
LK_MUST_CHECK enum lk_status lk_job_exists(struct lk_sqlite *store,
                                           const struct lk_claim_row *operation,
                                           const struct lk_call *call,
                                           bool *exists, bool *same);
/* The row as it is now, with what its last attempt came to left alone. */
LK_MUST_CHECK enum lk_status lk_job_move(struct lk_sqlite *store,
                                         struct lk_job_row *row, uint64_t now);
/* The row, and what its last attempt came to; `end` may be NULL: nothing. */
LK_MUST_CHECK enum lk_status lk_job_end(struct lk_sqlite *store,
                                        struct lk_job_row *row,
                                        const struct lk_job_end *end,
                                        uint64_t now);
/* A line of the job's history, with its response. */
LK_MUST_CHECK enum lk_status lk_job_note(struct lk_sqlite *store,
                                         const struct lk_job_row *row,
                                         const struct lk_job_end *end,
                                         bool whole, uint64_t now);
/* A job has ended: is its operation without any now? Changes the entry. */
LK_MUST_CHECK enum lk_status lk_job_release(struct lk_sqlite *store,
                                            const struct lk_job_row *row);
/* What a step of an operation means for its unfinished request; `entry` is the
 * operation before the step, and gets the flags that it has after it. */
LK_MUST_CHECK enum lk_status lk_job_follow(struct lk_sqlite *store,
                                           const struct lk_op *op,
                                           enum lk_effect effect,
                                           struct lk_entry *entry,
                                           uint64_t now);
/* Deletes jobs of operations with these numbers, as many as *room says, which
 * goes down; at 0 there may be others. */
enum { LK_REAP_JOBS = 256 };
LK_MUST_CHECK enum lk_status lk_job_delete(struct lk_sqlite *store,
                                           uint64_t first, uint64_t last,
                                           int *room);
void lk_bind_text(sqlite3_stmt *statement, int column, struct lk_slice slice);
void lk_bind_bytes(sqlite3_stmt *statement, int column, struct lk_slice slice);

/* sqlite_lease.c: the courier's part of a batch */
LK_MUST_CHECK enum lk_status lk_sqlite_job_batch(struct lk_sqlite *store,
                                                 struct lk_batch *batch,
                                                 uint64_t now);
/* sqlite_lease.c */
LK_MUST_CHECK enum lk_status lk_job_action(struct lk_sqlite *store,
                                           struct lk_batch *batch,
                                           struct lk_job_action *action,
                                           uint64_t now);
/* sqlite_lease.c */
LK_MUST_CHECK enum lk_status lk_job_lease(struct lk_sqlite *store,
                                          struct lk_batch *batch, uint64_t now);
/* An event of the courier's for the operation of a request; its token is put
 * in. *done: the machine has said DONE or NEW. */
LK_MUST_CHECK enum lk_status lk_job_apply_event(struct lk_sqlite *store,
                                                struct lk_batch *batch,
                                                const struct lk_job_row *row,
                                                struct lk_op *op, uint64_t now,
                                                bool *done);
/* Writes a row that lk_job_apply() has changed, with the result that `end` has
 * if the step says so, then applies the event to its operation. RETURN and
 * EXTEND are applied before. */
LK_MUST_CHECK enum lk_status lk_job_write(
    struct lk_sqlite *store, struct lk_batch *batch, struct lk_job_row *row,
    const struct lk_job_step *step, const struct lk_job_end *end, uint64_t now);

/* sqlite_decide.c: one operation */
/* Whether this is a restored copy in which no claim may start yet. */
bool lk_sqlite_is_held(struct lk_sqlite *store, uint64_t now);
LK_MUST_CHECK enum lk_status lk_sqlite_decide(struct lk_sqlite *store,
                                              struct lk_batch *batch,
                                              struct lk_op *op, uint64_t now);
/* The conditions for the machine, as far as the index knows them. */
struct lk_standing lk_entry_standing(const struct lk_sqlite *store,
                                     const struct lk_entry *entry,
                                     const struct lk_op *op, uint64_t now);
bool lk_owner_matters(const struct lk_standing *standing);
void lk_entry_outcome(const struct lk_entry *entry, struct lk_step step,
                      uint64_t now, struct lk_outcome *out);

/* sqlite_apply.c: the batch */
/*
 * The store thread has met damage in the rows of `token`. SQLite says so of
 * a page that could not be read just now as well. True: the store has to be
 * reopened before that is said; the batch fails with LK_CORRUPT. False: that
 * has been done, and it is damage. Real damage makes the store reopen seldom.
 */
enum { LK_SUSPECT_MS = 10 * 60 * 1000 };
#define LK_SUSPECT_REAPER UINT64_MAX
bool lk_sqlite_suspect(struct lk_sqlite *store, uint64_t token);
void lk_sqlite_apply(struct lk_store *store, struct lk_batch *batch);
/* A change outside the batches: LK_OK, what `write` did is durable; else
 * nothing has changed. Store thread. */
LK_MUST_CHECK enum lk_status lk_sqlite_change(
    struct lk_sqlite *store,
    enum lk_status (*write)(struct lk_sqlite *store, void *context),
    void *context);
enum lk_status lk_sqlite_note(struct lk_store *store,
                              const struct lk_audit_entry *entry);
enum lk_status lk_sqlite_accept_clock(struct lk_store *store,
                                      struct lk_slice who, struct lk_slice why);

/* sqlite_keep.c: sweeper and reaper */
LK_MUST_CHECK enum lk_status lk_sqlite_keep(struct lk_sqlite *store,
                                            struct lk_batch *batch,
                                            uint64_t now);
/* The rows that an operation needs have changed; `before` or `after` may be
 * NULL. */
void lk_reaper_account(struct lk_reaper *reaper, const struct lk_entry *before,
                       const struct lk_entry *after);
/* Counts again, over the whole index. */
void lk_reaper_count(struct lk_sqlite *store, int64_t claim_rows);

/* sqlite_read.c */
LK_MUST_CHECK enum lk_status lk_sqlite_open_reader(struct lk_sqlite *store,
                                                   struct lk_buf *error);
void lk_sqlite_close_reader(struct lk_sqlite *store);
/* The reason of an operation whose lock has lapsed. */
struct lk_stored *lk_stored_lapsed(uint64_t token, uint64_t since_ms);
/* Takes the reader for this thread; NULL if there is none now. */
sqlite3_stmt *lk_sqlite_read(struct lk_sqlite *store, enum lk_read read);
/* What was read is damaged: the next read uses a new connection. */
void lk_sqlite_read_failed(struct lk_sqlite *store);
void lk_sqlite_read_done(struct lk_sqlite *store);
/* Copies the entry; false if there is none. *now: the time of the copy, as
 * lk_sqlite_now returns it. */
bool lk_sqlite_entry(struct lk_sqlite *store, struct lk_hash128 hash,
                     struct lk_entry *entry, uint64_t *now);
/* The time of what the index shows: not later than that of a batch which is not
 * durable yet. Otherwise an operation that the batch extends would be expired
 * for other threads, and live again once the batch is durable. */
uint64_t lk_sqlite_now(struct lk_sqlite *store);
/* Sets state and times of an operation from its entry, as of now. */
void lk_operation_set(struct lk_operation *operation,
                      const struct lk_entry *entry, uint64_t now);
LK_MUST_CHECK enum lk_status lk_operation_copy(struct lk_operation *operation,
                                               struct lk_slice *slices[],
                                               size_t count);
struct lk_slice lk_column(sqlite3_stmt *statement, int column);
enum lk_status lk_sqlite_peek(struct lk_store *store, struct lk_op *op);
enum lk_status lk_sqlite_fetch(struct lk_store *store, struct lk_op *op);
enum lk_status lk_sqlite_lookup(struct lk_store *store, struct lk_name name,
                                struct lk_operation *operation);
enum lk_status lk_sqlite_find(struct lk_store *store, struct lk_slice tenant,
                              uint64_t number, struct lk_operation *operation);

enum lk_status lk_sqlite_list(struct lk_store *store,
                              const struct lk_list_query *query,
                              lk_operation_fn row, void *context,
                              uint64_t *next);
enum lk_status lk_sqlite_audit(struct lk_store *store,
                               const struct lk_audit_query *query,
                               lk_audit_fn row, void *context);

/* sqlite_jobs.c */
/* The columns of LK_JOB_COLUMNS; the slices are the statement's. */
void lk_job_fill(sqlite3_stmt *row, struct lk_job *job, bool whole);
/* Makes the slices the job's own. */
LK_MUST_CHECK enum lk_status lk_job_own(struct lk_job *job);
enum lk_status lk_sqlite_jobs(struct lk_store *store,
                              const struct lk_jobs_query *query, lk_job_fn row,
                              void *context, uint64_t *next);
enum lk_status lk_sqlite_job(struct lk_store *store, uint64_t id,
                             struct lk_job *job, lk_attempt_fn row,
                             void *context);
enum lk_status lk_sqlite_targets(struct lk_store *store, lk_target_fn row,
                                 void *context);

/* sqlite_import.c */
enum lk_status lk_sqlite_describe(struct lk_store *store, struct lk_buf *text,
                                  bool *strict);
enum lk_status lk_sqlite_import(struct lk_store *store,
                                const struct lk_operation *operations,
                                size_t count, struct lk_import *result);
enum lk_status lk_sqlite_import_audit(struct lk_store *store,
                                      const struct lk_audit_entry *entries,
                                      size_t count);
enum lk_status lk_sqlite_adopt(
    struct lk_store *store, const uint8_t reference_secret[LK_REFERENCE_KEY]);

/* sqlite_copy.c */
enum lk_status lk_sqlite_verify(struct lk_store *store, lk_progress_fn progress,
                                void *context, struct lk_buf *report);
enum lk_status lk_sqlite_backup(struct lk_store *store, const char *path,
                                lk_progress_fn progress, void *context,
                                struct lk_buf *error);

#endif
