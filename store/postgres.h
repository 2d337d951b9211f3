/*
 * postgres.h - the parts of the PostgreSQL store; private to store/postgres*.
 *
 * Every connection is used by one thread at a time: one for each lane, one for
 * the reader, one for the keeper's thread, which also exchanges notifications
 * with other daemons. No call blocks inside libpq: each wait has a deadline on
 * the monotonic clock.
 *
 * Locks: reader_lock, lock and hints_lock of struct lk_postgres. A thread holds
 * `lock` or `hints_lock` alone, or below reader_lock, and never waits for the
 * server while it holds one of these two.
 */
#ifndef LK_POSTGRES_H
#define LK_POSTGRES_H

#include "store/response_cache.h"
#include "store/store.h"

#include <libpq-fe.h>
#include <pthread.h>

/* Type numbers of the server; they never change. */
enum {
    LK_PG_BOOL = 16,
    LK_PG_BYTEA = 17,
    LK_PG_INT8 = 20,
    LK_PG_INT2 = 21,
    LK_PG_INT4 = 23,
    LK_PG_TEXT = 25,
    LK_PG_BYTEA_ARRAY = 1001,
    LK_PG_INT2_ARRAY = 1005,
    LK_PG_INT4_ARRAY = 1007,
    LK_PG_TEXT_ARRAY = 1009,
    LK_PG_INT8_ARRAY = 1016,
};

enum {
    LK_PG_PARAMETERS = 24,
    LK_PG_LANES = 64,
    LK_PG_JOB_LANES = 2,
    LK_PG_HOSTS = 16,
    LK_PG_ADDRESSES = 8, /* tried for one host */
    LK_PG_ADDRESS_SIZE = 64,
    LK_PG_WAITING = 8192,  /* operations that a client may wait for */
    LK_PG_NAME_MAX = 2600, /* what an entry of the server's index can hold */
    LK_PG_RESPONSE_MAX = 200 * 1000 * 1000, /* of one operation */
    LK_PG_CHUNK_BYTES = 64 * 1000 * 1000,   /* of a transaction with several */
};

enum lk_pg_level { LK_PG_ERROR, LK_PG_WARN, LK_PG_INFO };

/* ---- postgres_values.c: text, parameters, results ---------------------- */

/*
 * Text in a UTF8 database holds neither NUL nor invalid UTF-8; names may. A
 * backslash becomes two, such a byte becomes a backslash and three octal
 * digits. Different names become different texts.
 */
bool lk_pg_is_plain(struct lk_slice bytes);    /* needs no escape */
size_t lk_pg_text_size(struct lk_slice bytes); /* once it is escaped */
LK_MUST_CHECK enum lk_status lk_pg_escape(struct lk_slice bytes,
                                          struct lk_buf *text);
/* A backslash that begins no escape is copied: an app's SQL may have written
 * it. */
LK_MUST_CHECK enum lk_status lk_pg_unescape(struct lk_slice text,
                                            struct lk_buf *bytes);
/* One line for a log or a reply: at most `size - 1` bytes of `message`, with
 * control characters and every `secret` (NULL or empty: none) replaced. */
void lk_pg_clean(const char *message, const char *secret, char *line,
                 size_t size);

/* A parameter that is an array of one dimension, in binary form. */
struct lk_pg_array {
    struct lk_buf bytes;
    unsigned type;    /* of the array */
    uint32_t element; /* type of its elements, as `type` implies */
};

/* Empties the array and keeps its memory. */
LK_MUST_CHECK enum lk_status lk_pg_array_start(struct lk_pg_array *array,
                                               unsigned type, size_t count);
/* As wide as the type of the array asks. */
LK_MUST_CHECK enum lk_status lk_pg_array_int(struct lk_pg_array *array,
                                             int64_t value);
/* Bytes of bytea, or text that lk_pg_is_plain or was escaped. */
LK_MUST_CHECK enum lk_status lk_pg_array_bytes(struct lk_pg_array *array,
                                               struct lk_slice bytes);
/* As text, escaped where needed. */
LK_MUST_CHECK enum lk_status lk_pg_array_text(struct lk_pg_array *array,
                                              struct lk_slice bytes);
LK_MUST_CHECK enum lk_status lk_pg_array_null(struct lk_pg_array *array);
/* Frees memory that only a large batch needed. */
void lk_pg_array_trim(struct lk_pg_array *array);

/* The parameters of one statement. Start with {0}. The params point to what
 * was added, which must stay until the statement is sent; numbers are copied.
 */
struct lk_pg_params {
    int count; /* at most LK_PG_PARAMETERS */
    Oid types[LK_PG_PARAMETERS];
    const char *values[LK_PG_PARAMETERS];
    int lengths[LK_PG_PARAMETERS];
    int formats[LK_PG_PARAMETERS]; /* 1: binary, always */
    char numbers[LK_PG_PARAMETERS][8];
};

void lk_pg_add_int(struct lk_pg_params *params, int64_t value);
void lk_pg_add_bool(struct lk_pg_params *params, bool value);
/* Text that lk_pg_is_plain or was escaped. */
void lk_pg_add_text(struct lk_pg_params *params, struct lk_slice text);
void lk_pg_add_array(struct lk_pg_params *params,
                     const struct lk_pg_array *array);

/* Columns of a binary result: any integer or bool; null is 0 and empty. */
int64_t lk_pg_int(const PGresult *result, int row, int column);
uint64_t lk_pg_uint(const PGresult *result, int row, int column);
struct lk_slice lk_pg_bytes(const PGresult *result, int row, int column);

/* ---- postgres_connect.c: one connection -------------------------------- */

struct lk_postgres;
struct lk_pg_lookup;

/* Its states are listed in postgres_connect.c. */
struct lk_pg_conn {
    struct lk_postgres *store;
    const char *what; /* for the log */
    bool lane;        /* the statements of a batch are prepared on it */
    bool for_jobs;    /* and those of the courier's part */
    PGconn *pg;       /* NULL: closed */
    unsigned host;    /* index of the host to try first */
    /* The last address of each host, used while its name cannot be resolved;
     * empty: not known. */
    char known[LK_PG_HOSTS][LK_PG_ADDRESS_SIZE];
    struct lk_pg_lookup *lookup; /* a lookup in progress, or NULL */
    uint64_t retry_ns;           /* no try to connect before this time */
    unsigned failures;           /* tries to connect that failed in a row */
    uint64_t silent_ns;          /* a COMMIT has no reply since then; 0: none */
    unsigned silent_times;       /* such COMMITs in a row */
    unsigned rechecks;           /* store->rechecks when it was checked */
    bool connected_before;       /* so that the next connect is a reconnect */
    bool reconnected;      /* since the user of the connection last looked */
    bool standby_wait_cut; /* a COMMIT did not wait for the standby */
    char sqlstate[6];      /* of the last failure; empty: not the server's */
    bool fatal;            /* the session ended with that failure */
    char message[448];     /* of the last failure, one clean line */
};

uint64_t lk_pg_clock_ns(void); /* monotonic */

/*
 * Makes the connection ready for a statement: the existing one, or a new one if
 * it is time to try. LK_UNAVAILABLE: conn->message says why, and the caller
 * refuses at once. LK_INVALID: the server is reachable but unfit (version,
 * schema, settings); conn->message names the remedy.
 */
LK_MUST_CHECK enum lk_status lk_pg_ready(struct lk_pg_conn *conn,
                                         uint64_t deadline_ns);
void lk_pg_close(struct lk_pg_conn *conn);
/* Closes it, notes why and sets the time of the next try. */
void lk_pg_lost(struct lk_pg_conn *conn, const char *why);
/* Opens a connection and nothing more: no checks, no settings. */
LK_MUST_CHECK enum lk_status lk_pg_dial(struct lk_pg_conn *conn,
                                        uint64_t deadline_ns);
/* Abandons a host lookup in progress; the connection is not used any more. */
void lk_pg_resolve_stop(struct lk_pg_conn *conn);

/*
 * The next result of what was sent; NULL is the end of a statement. Data that
 * is still to be sent is sent in the meantime. LK_TIMEOUT: the deadline has
 * passed. LK_CLOSED: the connection is lost, conn->message says why.
 */
LK_MUST_CHECK enum lk_status lk_pg_next(struct lk_pg_conn *conn,
                                        uint64_t deadline_ns,
                                        PGresult **result);
/* Copies the server's message and SQLSTATE of a failed result. */
void lk_pg_note_error(struct lk_pg_conn *conn, const PGresult *result);

/*
 * One statement by itself, with binary results. LK_OK: *result is the
 * caller's, to be cleared. LK_UNAVAILABLE: the server refused it, see
 * conn->sqlstate. LK_CLOSED, LK_TIMEOUT: the connection is closed, and it is
 * unknown whether the statement ran.
 */
LK_MUST_CHECK enum lk_status lk_pg_run(struct lk_pg_conn *conn, const char *sql,
                                       const struct lk_pg_params *params,
                                       uint64_t deadline_ns, PGresult **result);
/* Several statements in one text, without parameters or results. */
LK_MUST_CHECK enum lk_status lk_pg_script(struct lk_pg_conn *conn,
                                          const char *sql,
                                          uint64_t deadline_ns);

struct lk_pg_host {
    char *host, *hostaddr, *port; /* NULL: libpq's default */
};

struct lk_pg_url {
    char *conninfo;
    char *password; /* to be kept out of messages; NULL: none known */
    struct lk_pg_host hosts[LK_PG_HOSTS];
    unsigned host_count; /* at least 1 */
};

/* `error` gets a sentence without any part of the URL. */
LK_MUST_CHECK enum lk_status lk_pg_url_parse(const char *url,
                                             struct lk_pg_url *parsed,
                                             struct lk_buf *error);
void lk_pg_url_free(struct lk_pg_url *url);

/* ---- postgres_check.c: is the server fit, and what does it promise? ---- */

/* As found at the last connect; guarded by the store's lock. */
struct lk_pg_settings {
    int64_t version;
    char synchronous_commit[16];
    char standbys[96]; /* synchronous_standby_names, clean */
    bool fsync;
    bool full_page_writes;
    uint64_t locks; /* that the server has room for */
};

/* Settings, version, schema, secrets, timeline. Returns as lk_pg_ready. */
LK_MUST_CHECK enum lk_status lk_pg_check(struct lk_pg_conn *conn,
                                         uint64_t deadline_ns);
/* Looks for settings that have changed since. If the server is not fit any
 * more, every connection is checked again before its next use. */
void lk_pg_recheck(struct lk_pg_conn *conn, uint64_t deadline_ns);

/* Whether commits wait for a standby, as far as is known. */
bool lk_pg_has_standby(struct lk_postgres *store);
void lk_pg_promise(struct lk_store *store, char text[LK_PROMISE_SIZE]);
enum lk_status lk_postgres_describe(struct lk_store *store, struct lk_buf *text,
                                    bool *strict);

/* ---- postgres.c: the store --------------------------------------------- */

/* Parameters of latchkey.apply; see store/sql. */
enum lk_pg_column {
    LK_PG_EVENT,
    LK_PG_TENANT,
    LK_PG_SCOPE,
    LK_PG_KEY,
    LK_PG_FINGERPRINT,
    LK_PG_OWNER,
    LK_PG_TTL,
    LK_PG_LOCK,
    LK_PG_FLAGS,
    LK_PG_TOKEN,
    LK_PG_STATUS,
    LK_PG_HEADERS,
    LK_PG_BODY,
    LK_PG_REASON,
    LK_PG_WHO,
    LK_PG_WHY,
    LK_PG_JOB, /* from here on empty if nothing is accepted or enqueued */
    LK_PG_TARGET,
    LK_PG_METHOD,
    LK_PG_PATH,
    LK_PG_DELAY,
    LK_PG_COLUMNS,
};

/* What one lane's thread uses; no other thread touches it. */
struct lk_pg_lane {
    struct lk_pg_conn conn;
    struct lk_pg_array columns[LK_PG_COLUMNS];
    struct lk_buf scratch; /* escaped names of the batch */
    uint64_t random;
    uint64_t busy_ms; /* a job lane: its pause while other daemons hold
                         everything that is due; 0: none */
};

/* An operation that a client may wait for, found by the lock of its key. */
struct lk_pg_waiting {
    int64_t lock_id;
    struct lk_hash128 hash;
    bool used;
    bool has_waiter; /* a claim got INFLIGHT; else it was only begun here */
};

struct lk_pg_counters {
    atomic_uint_fast64_t batches, batch_ops, failed, reopened, swept, reaped,
        last_token;
};

/* What the keeper counts from time to time. */
struct lk_pg_counts {
    uint64_t operations;
    uint64_t by_state[6];
    uint64_t bytes;
    uint64_t dead; /* past their TTL, not reaped yet */
    uint64_t jobs[LK_JOB_DELIVERED];
    uint64_t oldest_uncertain_ms;
    uint64_t oldest_operation_ms;
};

struct lk_postgres {
    struct lk_store store; /* first: class functions cast */
    struct lk_store_config config;
    struct lk_pg_url url;
    /* store.lanes lanes of operations, then store.job_lanes of the courier. */
    struct lk_pg_lane lanes[LK_PG_LANES + LK_PG_JOB_LANES];

    pthread_mutex_t reader_lock; /* guards the two connections */
    struct lk_pg_conn reader;
    struct lk_pg_conn waiter; /* reads what the synchronous standby has */
    struct lk_response_cache *cache; /* NULL: no cache */

    /* Server time minus the monotonic clock, in ns; 0: not known yet. */
    atomic_int_fast64_t clock_offset_ns;
    atomic_uint_fast64_t last_success_ns; /* of any statement that we need */
    atomic_uint lock_share; /* advisory locks that a batch may take */
    atomic_uint rechecks;   /* rises when a server in use is found unfit */
    struct lk_pg_counters counters;

    pthread_mutex_t lock; /* guards what follows; taken alone */
    bool opened;          /* the secrets are known */
    bool unavailable;     /* the store cannot decide; `failure` says why */
    char failure[LK_FAILURE_SIZE];
    struct lk_pg_settings settings;
    struct lk_pg_counts counts;

    /* The keeper's thread: postgres_keep.c. What is not atomic is its own. */
    pthread_t thread;
    bool thread_runs;
    struct lk_pg_conn keeper;
    char holder[64]; /* names this daemon in latchkey.keeper */
    int event_fd;    /* wakes the thread */
    atomic_bool stopping;
    atomic_bool keep_wanted;
    uint64_t keep_turn_ns; /* lane 0's: when it last asked for keeping */
    atomic_uint_fast64_t keep_every_ms; /* between the last two requests */
    int64_t reap_state, reap_from_ms;   /* where the reaper continues */
    /* SQLSTATE of the failure that was logged; empty while it works. */
    char sweeper_sqlstate[6], reaper_sqlstate[6], notifier_sqlstate[6];
    uint64_t keep_again_ns;   /* there is more to keep then; 0: no */
    uint64_t count_ns;        /* no count before then */
    uint64_t counted_ns;      /* the last count */
    uint64_t notify_after_ns; /* no notification before then */
    bool listening;

    pthread_mutex_t hints_lock;    /* guards what follows; taken alone */
    struct lk_pg_waiting *waiting; /* LK_PG_WAITING slots */
    int64_t *notify_ids;           /* settled here, for other daemons */
    size_t notify_count;
    struct lk_hash128 *settled; /* settled elsewhere, for the next batch */
    size_t settled_count;
    bool settled_all;
    bool notify_jobs;      /* a job was queued here, for other daemons */
    bool job_queued;       /* and elsewhere, for the next batch */
    atomic_bool has_hints; /* settled, settled_all or job_queued is set */
};

void lk_pg_log(struct lk_postgres *store, enum lk_pg_level level,
               const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Why the store cannot decide; NULL: it can. Logs each change. Any thread. */
void lk_pg_set_failure(struct lk_postgres *store, const char *why);
void lk_pg_set_time(struct lk_postgres *store, uint64_t now_ms);
uint64_t lk_pg_now_ms(struct lk_postgres *store);
uint64_t lk_pg_deadline(const struct lk_postgres *store);

/* ---- postgres_transaction.c: one transaction --------------------------- */

/* One op of a transaction. */
struct lk_pg_item {
    struct lk_op *op;
    struct lk_name name; /* as text */
    size_t bytes;        /* its share of the transaction, about */
    bool again;          /* it may have been committed before */
};

enum lk_pg_fate {
    LK_PG_DONE,     /* committed; *result has a row for each op */
    LK_PG_FAILED,   /* rolled back, conn->sqlstate says why */
    LK_PG_NOT_SENT, /* did not happen: the connection is lost */
    LK_PG_UNKNOWN,  /* perhaps committed; the connection is lost or silent */
};

/* latchkey.apply for these items. LK_PG_DONE: *result is the caller's. */
enum lk_pg_fate lk_pg_transact(struct lk_pg_lane *lane,
                               const struct lk_pg_item *items, size_t count,
                               uint64_t deadline_ns, PGresult **result);
/* Prepares the statements of a lane on a new connection. */
LK_MUST_CHECK enum lk_status lk_pg_prepare(struct lk_pg_conn *conn,
                                           uint64_t deadline_ns);

/* One statement of a transaction. */
struct lk_pg_part {
    const char *name; /* as it is prepared */
    const char *sql;
    const struct lk_pg_params *params; /* NULL: none */
    PGresult *result; /* out: the caller's to clear, if LK_PG_DONE */
};

/* BEGIN, the parts in order, COMMIT: one pipeline. */
enum lk_pg_fate lk_pg_pipeline(struct lk_pg_conn *conn,
                               struct lk_pg_part *parts, size_t count,
                               uint64_t deadline_ns);

/* What postgres_jobs.c has prepared on the job lanes. */
extern const struct lk_pg_part lk_pg_job_batch_parts[];
extern const size_t lk_pg_job_batch_part_count;

/* Sets a status without an outcome; `error` is a constant sentence. */
void lk_pg_refuse_one(struct lk_op *op, enum lk_status status,
                      const char *error);
void lk_pg_refuse(const struct lk_pg_item *items, size_t count,
                  enum lk_status status, const char *error);
/* Sets the outcomes of a transaction that is committed. */
void lk_pg_set_outcomes(struct lk_postgres *store, struct lk_batch *batch,
                        const struct lk_pg_item *items, size_t count,
                        const PGresult *result);

/* ---- postgres_apply.c: a batch ----------------------------------------- */

void lk_postgres_apply(struct lk_store *store, struct lk_batch *batch);
enum lk_status lk_postgres_note(struct lk_store *store,
                                const struct lk_audit_entry *entry);
/* Whether the last failure was a conflict with another transaction, which the
 * next try may not meet. */
bool lk_pg_is_conflict(const struct lk_pg_conn *conn);
/* After a failure: closes the connection if the server accepts no writes any
 * more, or if its schema has changed. */
void lk_pg_leave_unfit_server(struct lk_pg_conn *conn);
/* For a random time of at most `most_ms`. */
void lk_pg_sleep_random(struct lk_pg_lane *lane, unsigned most_ms);

/* ---- postgres_read.c: reading ------------------------------------------ */

enum lk_status lk_postgres_load(struct lk_store *store, struct lk_op *op);
enum lk_status lk_postgres_lookup(struct lk_store *store, struct lk_name name,
                                  struct lk_operation *operation);
enum lk_status lk_postgres_find(struct lk_store *store, struct lk_slice tenant,
                                uint64_t number,
                                struct lk_operation *operation);
enum lk_status lk_postgres_list(struct lk_store *store,
                                const struct lk_list_query *query,
                                lk_operation_fn row, void *context,
                                uint64_t *next);
enum lk_status lk_postgres_audit(struct lk_store *store,
                                 const struct lk_audit_query *query,
                                 lk_audit_fn row, void *context);
enum lk_status lk_postgres_verify(struct lk_store *store,
                                  lk_progress_fn progress, void *context,
                                  struct lk_buf *report);

/* A statement on the reader's connection, repeated once if that was lost. The
 * caller holds reader_lock. */
LK_MUST_CHECK enum lk_status lk_pg_read(struct lk_postgres *store,
                                        const char *sql,
                                        const struct lk_pg_params *params,
                                        PGresult **result);
typedef enum lk_status (*lk_pg_row_fn)(const PGresult *result, int row,
                                       void *context);
/* On the reader's connection, row by row as they arrive: rows can be large. The
 * caller holds reader_lock. */
LK_MUST_CHECK enum lk_status lk_pg_stream(struct lk_postgres *store,
                                          const char *sql,
                                          const struct lk_pg_params *params,
                                          lk_pg_row_fn row, void *context);

/* Copies texts of a row into one buffer, which does not move: `to` gets the
 * slices. Raw columns are copied as they are, the others unescaped. */
struct lk_pg_text {
    int column;
    bool raw;
    struct lk_slice *to;
};
LK_MUST_CHECK enum lk_status lk_pg_texts(const PGresult *result, int row,
                                         const struct lk_pg_text *texts,
                                         size_t count, struct lk_buf *text);

/* ---- postgres_jobs.c: jobs --------------------------------------------- */

/* The courier's part of a batch, on a job lane. */
void lk_pg_job_batch(struct lk_postgres *store, struct lk_pg_lane *lane,
                     struct lk_batch *batch, uint64_t deadline_ns);
enum lk_status lk_postgres_jobs(struct lk_store *store,
                                const struct lk_jobs_query *query,
                                lk_job_fn row, void *context, uint64_t *next);
enum lk_status lk_postgres_job(struct lk_store *store, uint64_t id,
                               struct lk_job *job, lk_attempt_fn row,
                               void *context);
enum lk_status lk_postgres_targets(struct lk_store *store, lk_target_fn row,
                                   void *context);

/* ---- postgres_keep.c: the keeper's thread, and notifications ----------- */

LK_MUST_CHECK enum lk_status lk_pg_keeper_start(struct lk_postgres *store);
void lk_pg_keeper_stop(struct lk_postgres *store);
void lk_pg_keeper_wake(struct lk_postgres *store);
/* Thread of lane 0: it is time to sweep and reap. */
void lk_pg_keep_turn(struct lk_postgres *store);
/* Counts once, when the store is opened. */
void lk_pg_count(struct lk_postgres *store, struct lk_pg_conn *conn);

/* The caller of these three holds hints_lock. */
/* Remembers which operation a lock id stands for. */
void lk_pg_remember_waiter(struct lk_postgres *store, int64_t lock_id,
                           struct lk_hash128 hash, bool has_waiter);
/* An operation settled here: the keeper notifies other daemons. */
void lk_pg_notify_settled(struct lk_postgres *store, int64_t lock_id);
/* A job was queued here: the keeper notifies their couriers. */
void lk_pg_notify_job(struct lk_postgres *store);

/* An operation settled elsewhere, or by the sweeper: the next batch wakes the
 * clients that wait for it. Takes hints_lock. */
void lk_pg_add_settled(struct lk_postgres *store, int64_t lock_id);
/* Moves what has settled into the batch. Takes hints_lock. */
void lk_pg_move_settled(struct lk_postgres *store, struct lk_batch *batch);

/* ---- postgres_import.c: import ----------------------------------------- */

enum lk_status lk_postgres_import(struct lk_store *store,
                                  const struct lk_operation *operations,
                                  size_t count, struct lk_import *result);
enum lk_status lk_postgres_import_audit(struct lk_store *store,
                                        const struct lk_audit_entry *entries,
                                        size_t count);
enum lk_status lk_postgres_adopt(
    struct lk_store *store, const uint8_t reference_secret[LK_REFERENCE_KEY]);

#endif
