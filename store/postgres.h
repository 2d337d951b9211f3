/*
 * postgres.h - the parts of the PostgreSQL store.
 *
 * Every connection is used by one thread at a time: one for each lane, one for
 * the reader, one for the keeper's thread, which also tells other daemons what
 * has settled and hears it from them. Nothing blocks inside libpq: each wait
 * has a deadline on the monotonic clock.
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
    LK_PG_ADDRESSES = 8, /* of one host, that are tried */
    LK_PG_ADDRESS_SIZE = 64,
    LK_PG_WAITING = 8192,  /* operations that somebody may wait for */
    LK_PG_NAME_MAX = 2600, /* an entry of the index has room for that */
    LK_PG_ANSWER_MAX = 200 * 1000 * 1000, /* of one operation */
    LK_PG_CHUNK_BYTES = 64 * 1000 * 1000, /* of a transaction with several */
};

enum lk_pg_level { LK_PG_ERROR, LK_PG_WARN, LK_PG_INFO };

/* ---- postgres_text.c: names as text, messages as lines ---------------- */

/*
 * Text in a database of encoding UTF8 holds neither NUL nor what is no UTF-8;
 * names may. A backslash becomes two, such a byte becomes a backslash and
 * three octal digits. No two names become the same text.
 */
bool lk_pg_is_plain(struct lk_slice bytes);    /* it is its own text */
size_t lk_pg_text_size(struct lk_slice bytes); /* of its text */
LK_MUST_CHECK enum lk_status lk_pg_escape(struct lk_slice bytes,
                                          struct lk_buf *text);
/* What is no escape is taken as it is: an app's SQL may have written it. */
LK_MUST_CHECK enum lk_status lk_pg_unescape(struct lk_slice text,
                                            struct lk_buf *bytes);
/* One line for a log or a reply: at most `size - 1` bytes of `message`, with
 * control characters and every `secret` (NULL or empty: none) replaced. */
void lk_pg_clean(const char *message, const char *secret, char *line,
                 size_t size);

/* ---- postgres_array.c: parameters in binary form ---------------------- */

/* One array of one dimension. */
struct lk_pg_array {
    struct lk_buf bytes;
    unsigned type;    /* of the array */
    uint32_t element; /* type of its elements */
};

/* Empties it, keeping its memory. */
LK_MUST_CHECK enum lk_status lk_pg_array_start(struct lk_pg_array *array,
                                               unsigned type, size_t count);
/* As wide as the type of the array asks. */
LK_MUST_CHECK enum lk_status lk_pg_array_int(struct lk_pg_array *array,
                                             int64_t value);
/* Bytes of bytea, or text that lk_pg_is_plain or was escaped. */
LK_MUST_CHECK enum lk_status lk_pg_array_bytes(struct lk_pg_array *array,
                                               struct lk_slice bytes);
/* As text, escaped if need be. */
LK_MUST_CHECK enum lk_status lk_pg_array_text(struct lk_pg_array *array,
                                              struct lk_slice bytes);
LK_MUST_CHECK enum lk_status lk_pg_array_null(struct lk_pg_array *array);
/* Drops memory that only a large batch needed. */
void lk_pg_array_trim(struct lk_pg_array *array);

/* The parameters of one statement. Start it as {0}; what is added must stay
 * until it is sent. */
struct lk_pg_params {
    int count;
    Oid types[LK_PG_PARAMETERS];
    const char *values[LK_PG_PARAMETERS];
    int lengths[LK_PG_PARAMETERS];
    int formats[LK_PG_PARAMETERS];
    char numbers[LK_PG_PARAMETERS][8];
};

void lk_pg_add_int(struct lk_pg_params *params, int64_t value);
void lk_pg_add_bool(struct lk_pg_params *params, bool value);
/* Text that is its own text or was escaped. */
void lk_pg_add_text(struct lk_pg_params *params, struct lk_slice text);
void lk_pg_add_array(struct lk_pg_params *params,
                     const struct lk_pg_array *array);

/* Columns of a binary result: any whole number or bool; null is 0 and empty. */
int64_t lk_pg_int(const PGresult *result, int row, int column);
uint64_t lk_pg_uint(const PGresult *result, int row, int column);
struct lk_slice lk_pg_bytes(const PGresult *result, int row, int column);

/* ---- postgres_connect.c: one connection ------------------------------- */

struct lk_postgres;
struct lk_pg_lookup;

struct lk_pg_conn {
    struct lk_postgres *store;
    const char *what; /* for the log */
    bool lane;        /* its statements are prepared */
    bool job_batch;   /* those of the courier's work, too */
    PGconn *pg;       /* NULL: there is none */
    unsigned host;    /* of the last that worked */
    /* Where each host was the last time, while its name cannot be resolved. */
    char known[LK_PG_HOSTS][LK_PG_ADDRESS_SIZE];
    struct lk_pg_lookup *lookup; /* of a name; NULL: none is under way */
    uint64_t retry_ns;           /* not to be tried before */
    unsigned failures;           /* in a row */
    uint64_t silent_ns;    /* a commit was not answered since then; 0: no */
    unsigned silences;     /* in a row */
    unsigned distrusted;   /* the store's, when it was checked */
    bool connected_before; /* so that the next time is a reconnect */
    bool reconnected;      /* since somebody last looked */
    bool warned;           /* the wait for the standby was cut short */
    char sqlstate[6];      /* of the last failure; empty: not the server's */
    bool fatal;            /* the server, or one between, hung up with it */
    char message[448];     /* of the last failure, one clean line */
};

uint64_t lk_pg_clock_ns(void); /* monotonic */

/*
 * Makes a connection that is ready for a statement: the one there is, or a new
 * one if it is time to try. LK_UNAVAILABLE: conn->message says why, and the
 * caller refuses at once. LK_INVALID: the server is there, but not fit
 * (version, schema, settings): conn->message says what to do.
 */
LK_MUST_CHECK enum lk_status lk_pg_ready(struct lk_pg_conn *conn,
                                         uint64_t deadline_ns);
void lk_pg_close(struct lk_pg_conn *conn);
/* Closes it, notes why and spaces the next try. */
void lk_pg_lost(struct lk_pg_conn *conn, const char *why);
/* Opens a connection and nothing more: no checks, no settings. */
LK_MUST_CHECK enum lk_status lk_pg_dial(struct lk_pg_conn *conn,
                                        uint64_t deadline_ns);

/*
 * The next result of what was sent; NULL is the end of a statement. What is
 * still to be sent is sent meanwhile. LK_TIMEOUT: the deadline has passed.
 * LK_CLOSED: the connection is lost, conn->message says why.
 */
LK_MUST_CHECK enum lk_status lk_pg_next(struct lk_pg_conn *conn,
                                        uint64_t deadline_ns,
                                        PGresult **result);
/* Notes the server's words about a failed result. */
void lk_pg_note_error(struct lk_pg_conn *conn, const PGresult *result);

/*
 * One statement by itself, with binary results. LK_OK: *result is the
 * caller's, to be cleared. LK_UNAVAILABLE: the server refused it, see
 * conn->sqlstate. LK_CLOSED, LK_TIMEOUT: the connection is closed, nobody
 * knows whether it ran.
 */
LK_MUST_CHECK enum lk_status lk_pg_run(struct lk_pg_conn *conn, const char *sql,
                                       const struct lk_pg_params *params,
                                       uint64_t deadline_ns, PGresult **result);
/* Several statements in one text, without parameters or results. */
LK_MUST_CHECK enum lk_status lk_pg_script(struct lk_pg_conn *conn,
                                          const char *sql,
                                          uint64_t deadline_ns);

/* ---- postgres_url.c: where the server is ------------------------------ */

struct lk_pg_host {
    char *host, *hostaddr, *port; /* NULL: libpq's own idea */
};

struct lk_pg_url {
    char *conninfo;
    char *password; /* to be kept out of messages; NULL: none known */
    struct lk_pg_host hosts[LK_PG_HOSTS];
    unsigned host_count; /* at least 1 */
};

/* `error` gets a sentence without anything of the URL in it. */
LK_MUST_CHECK enum lk_status lk_pg_url_parse(const char *url,
                                             struct lk_pg_url *parsed,
                                             struct lk_buf *error);
void lk_pg_url_free(struct lk_pg_url *url);

/* ---- postgres_resolve.c: the addresses of a name ----------------------- */

struct lk_pg_addresses {
    unsigned count;
    char text[LK_PG_ADDRESSES][LK_PG_ADDRESS_SIZE];
};

/* Whether libpq would ask a name server for it. */
bool lk_pg_is_name(const struct lk_pg_host *host);
/* LK_TIMEOUT: the question stays open, and the next call for that name goes on
 * waiting for it. conn->message says what is wrong. */
LK_MUST_CHECK enum lk_status lk_pg_resolve(struct lk_pg_conn *conn,
                                           const char *name,
                                           uint64_t deadline_ns,
                                           struct lk_pg_addresses *addresses);
/* The connection is not needed any more. */
void lk_pg_resolve_stop(struct lk_pg_conn *conn);

/* ---- postgres_check.c: is the server fit? ----------------------------- */

/* What was found at the last connect; guarded by the store's lock. */
struct lk_pg_settings {
    int64_t version;
    char synchronous_commit[16];
    char standbys[96]; /* synchronous_standby_names, clean */
    bool fsync;
    bool full_page_writes;
    uint64_t locks; /* that the server has room for */
};

/* Settings, version, schema, secrets, time line. As lk_pg_ready returns. */
LK_MUST_CHECK enum lk_status lk_pg_check(struct lk_pg_conn *conn,
                                         uint64_t deadline_ns);
/* Whether the settings were changed meanwhile. If the server is not fit any
 * more, no connection is used again before it has been checked. */
void lk_pg_check_again(struct lk_pg_conn *conn, uint64_t deadline_ns);

/* Commits wait for a standby, as far as is known. */
bool lk_pg_has_standby(struct lk_postgres *store);
void lk_pg_promise(struct lk_store *store, char text[LK_PROMISE_SIZE]);

/* ---- the store -------------------------------------------------------- */

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

struct lk_pg_lane {
    struct lk_pg_conn conn;
    struct lk_pg_array columns[LK_PG_COLUMNS];
    struct lk_buf scratch; /* escaped names of a batch */
    uint64_t random;
    uint64_t busy_ms; /* the work's: waited for what others have */
};

/* An operation that somebody may wait for, found by the lock of its key. */
struct lk_pg_waiting {
    int64_t lock_id;
    struct lk_hash128 hash;
    bool used;
    bool waited; /* INFLIGHT was answered; else it was only begun here */
};

struct lk_pg_counters {
    atomic_uint_fast64_t batches, batch_ops, failed, reopened, swept, reaped,
        last_token;
};

/* What the keeper counts now and then. */
struct lk_pg_counts {
    uint64_t records;
    uint64_t by_state[6];
    uint64_t bytes;
    uint64_t dead; /* past their time, for the reaper */
    uint64_t jobs[LK_JOB_DELIVERED];
    uint64_t oldest_uncertain_ms;
    uint64_t oldest_operation_ms;
};

struct lk_postgres {
    struct lk_store store;
    struct lk_store_config config;
    struct lk_pg_url url;
    struct lk_pg_lane lanes[LK_PG_LANES + LK_PG_JOB_LANES]; /* the last ones
                                                                in use: work */

    pthread_mutex_t reader_lock;
    struct lk_pg_conn reader;
    struct lk_pg_conn waiter; /* reads what the synchronous standby has */
    struct lk_response_cache *answers; /* NULL: no cache */

    /* Server time minus the monotonic clock, in ns; 0: not heard yet. */
    atomic_int_fast64_t clock_offset_ns;
    atomic_uint_fast64_t good_ns; /* when the server last did what we asked */
    atomic_uint lock_share;       /* advisory locks that a batch may take */
    atomic_uint distrusted; /* so often was the server found unfit in use */
    struct lk_pg_counters counters;

    pthread_mutex_t lock; /* guards what follows; taken alone */
    bool opened;          /* the secrets are known */
    bool troubled;
    char trouble[LK_TROUBLE_SIZE];
    struct lk_pg_settings settings;
    struct lk_pg_counts counts;

    /* The keeper's thread: postgres_keep.c, postgres_notify.c */
    pthread_t thread;
    bool thread_runs;
    struct lk_pg_conn keeper;
    char holder[64];
    int event_fd;
    atomic_bool stopping;
    atomic_bool keep_wanted;
    uint64_t keep_turn_ns;              /* lane 0: when it last was its turn */
    atomic_uint_fast64_t keep_every_ms; /* between the last two turns */
    int64_t reap_state, reap_from_ms;   /* where the reaper goes on */
    /* SQLSTATEs of what was logged, empty while it works. */
    char sweeper_fails[6], reaper_fails[6], teller_fails[6];
    uint64_t keep_again_ns; /* there is more to keep; 0: no */
    uint64_t count_ns;      /* not to be counted before */
    uint64_t counted_ns;    /* when it was done last */
    uint64_t tell_ns;       /* not to be told before */
    bool listening;

    pthread_mutex_t hints_lock; /* guards what follows; taken alone */
    struct lk_pg_waiting *waiting;
    int64_t *telling; /* settled here, for other daemons */
    size_t telling_count;
    struct lk_hash128 *heard; /* settled elsewhere, for the next batch */
    size_t heard_count;
    bool heard_all;
    bool telling_jobs;  /* a job was queued here */
    bool heard_job;     /* and elsewhere */
    atomic_bool hinted; /* there is something in heard */
};

void lk_pg_log(struct lk_postgres *store, enum lk_pg_level level,
               const char *format, ...) __attribute__((format(printf, 3, 4)));
/* NULL: the store can decide. */
void lk_pg_set_trouble(struct lk_postgres *store, const char *why);
void lk_pg_set_time(struct lk_postgres *store, uint64_t now_ms);
uint64_t lk_pg_now_ms(struct lk_postgres *store);
uint64_t lk_pg_deadline(const struct lk_postgres *store);

/* postgres_apply.c */
void lk_postgres_apply(struct lk_store *store, struct lk_batch *batch);
/* It met another transaction, and may go through at the next try. */
bool lk_pg_is_passing(const struct lk_pg_conn *conn);
/* After a failure: a server that takes no writes any more, or has another
 * schema now, is left. */
void lk_pg_look_elsewhere(struct lk_pg_conn *conn);
/* Up to that long. */
void lk_pg_sleep_some(struct lk_pg_lane *lane, unsigned most_ms);
enum lk_status lk_postgres_note(struct lk_store *store,
                                const struct lk_audit_entry *entry);

/* postgres_batch.c: one transaction of some operations */
struct lk_pg_item {
    struct lk_op *op;
    struct lk_name name; /* as text */
    size_t bytes;
    bool again; /* it may have been committed before */
};

enum lk_pg_fate {
    LK_PG_DONE,     /* committed; *result has a row for each operation */
    LK_PG_FAILED,   /* it did not happen, conn->sqlstate says why */
    LK_PG_NOT_SENT, /* it did not happen: the connection is lost */
    LK_PG_DOUBT,    /* nobody knows; the connection is lost or silent */
};

enum lk_pg_fate lk_pg_transact(struct lk_pg_lane *lane,
                               const struct lk_pg_item *items, size_t count,
                               uint64_t deadline_ns, PGresult **result);
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

/* What postgres_work.c has prepared on its lane. */
extern const struct lk_pg_part lk_pg_job_batch_parts[];
extern const size_t lk_pg_job_batch_part_count;

/* postgres_outcome.c */
void lk_pg_refuse_one(struct lk_op *op, enum lk_status status,
                      const char *error);
void lk_pg_refuse(const struct lk_pg_item *items, size_t count,
                  enum lk_status status, const char *error);
/* The outcomes of a transaction that is committed. */
void lk_pg_publish(struct lk_postgres *store, struct lk_batch *batch,
                   const struct lk_pg_item *items, size_t count,
                   const PGresult *result);

/* postgres_read.c */
enum lk_status lk_postgres_load(struct lk_store *store, struct lk_op *op);
enum lk_status lk_postgres_lookup(struct lk_store *store, struct lk_name name,
                                  struct lk_operation *record);
enum lk_status lk_postgres_find(struct lk_store *store, struct lk_slice tenant,
                                uint64_t number, struct lk_operation *record);
/* A statement on the reader's connection, once more if that was lost. The
 * caller holds reader_lock. */
LK_MUST_CHECK enum lk_status lk_pg_read(struct lk_postgres *store,
                                        const char *sql,
                                        const struct lk_pg_params *params,
                                        PGresult **result);
/* A row of the columns LK_PG_OPERATION; the record owns its text and answer. */
LK_MUST_CHECK enum lk_status lk_pg_operation(const PGresult *result, int row,
                                             struct lk_operation *record);

/* postgres_list.c */
typedef enum lk_status (*lk_pg_row_fn)(const PGresult *result, int row,
                                       void *context);
/* On the reader's connection, row by row as they come: they can be large. The
 * caller holds reader_lock. */
LK_MUST_CHECK enum lk_status lk_pg_stream(struct lk_postgres *store,
                                          const char *sql,
                                          const struct lk_pg_params *params,
                                          lk_pg_row_fn row, void *context);
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

/* postgres_keep.c: sweeper, reaper, counts; the keeper's thread */
LK_MUST_CHECK enum lk_status lk_pg_keeper_start(struct lk_postgres *store);
void lk_pg_keeper_stop(struct lk_postgres *store);
void lk_pg_keeper_wake(struct lk_postgres *store);
/* Thread of lane 0: it is time to sweep and reap. */
void lk_pg_keep_turn(struct lk_postgres *store);
/* Counts once, at the opening. */
void lk_pg_count(struct lk_postgres *store, struct lk_pg_conn *conn);

/* postgres_notify.c: hints, which may be lost */
/* Remembers whose waiters an id would wake. */
void lk_pg_remember(struct lk_postgres *store, int64_t lock_id,
                    struct lk_hash128 hash, bool waited);
/* Settled here: other daemons are to be told. The caller holds hints_lock. */
void lk_pg_tell(struct lk_postgres *store, int64_t lock_id);
/* A job was queued here: their couriers are to be told. */
void lk_pg_tell_job(struct lk_postgres *store);
/* Settled elsewhere or by the sweeper: the next batch carries it. */
void lk_pg_hear(struct lk_postgres *store, int64_t lock_id);
void lk_pg_hear_all(struct lk_postgres *store);
/* Settled by a function of the server's, which says so in an array of lock
 * ids: for those who wait here and elsewhere. How many there were. */
size_t lk_pg_hear_array(struct lk_postgres *store, struct lk_slice array);
/* What was heard, into the batch. */
void lk_pg_take_heard(struct lk_postgres *store, struct lk_batch *batch);
/* On the keeper's connection: what came in, what is to go out. */
void lk_pg_listen(struct lk_postgres *store, uint64_t deadline_ns);
void lk_pg_take_notices(struct lk_postgres *store);
LK_MUST_CHECK enum lk_status lk_pg_send_notices(struct lk_postgres *store,
                                                uint64_t deadline_ns);

/* postgres_work.c: the courier's part of a batch, on the lane for work */
void lk_pg_job_batch(struct lk_postgres *store, struct lk_pg_lane *lane,
                     struct lk_batch *batch, uint64_t deadline_ns);

/* postgres_jobs.c */
enum lk_status lk_postgres_jobs(struct lk_store *store,
                                const struct lk_jobs_query *query,
                                lk_job_fn row, void *context, uint64_t *next);
enum lk_status lk_postgres_job(struct lk_store *store, uint64_t id,
                               struct lk_job *job, lk_attempt_fn row,
                               void *context);
enum lk_status lk_postgres_targets(struct lk_store *store, lk_target_fn row,
                                   void *context);
/* Copies texts of a row into one buffer, which does not move: `to` gets the
 * slices. Escaped columns are undone, the others taken as they are. */
struct lk_pg_text {
    int column;
    bool raw;
    struct lk_slice *to;
};
LK_MUST_CHECK enum lk_status lk_pg_texts(const PGresult *result, int row,
                                         const struct lk_pg_text *texts,
                                         size_t count, struct lk_buf *text);

/* postgres_import.c */
enum lk_status lk_postgres_describe(struct lk_store *store, struct lk_buf *text,
                                    bool *strict);
enum lk_status lk_postgres_import(struct lk_store *store,
                                  const struct lk_operation *records,
                                  size_t count, struct lk_import *result);
enum lk_status lk_postgres_import_audit(struct lk_store *store,
                                        const struct lk_audit_entry *entries,
                                        size_t count);
enum lk_status lk_postgres_adopt(
    struct lk_store *store, const uint8_t reference_secret[LK_REFERENCE_KEY]);

#endif
