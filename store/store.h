/*
 * store.h - the contract that every store is written against: one struct of
 * functions over batches of ops.
 *
 * A store decides and remembers. The daemon hands it batches, each on the
 * thread of one of the store's lanes; the ops that arrive while one batch is
 * being made durable form the next batch. A store may also decide, on any
 * thread and without waiting, an op that changes nothing (peek), and fetch the
 * stored response that such an outcome needs (load).
 *
 * How to add a store:
 *
 *   1. Write store/NAME.c with one `const struct lk_store_class`. The function
 *      comments below say for each function on which thread it is called, who
 *      owns what, and what it returns. Functions that may be NULL say so.
 *   2. Declare the class at the end of this file and add a row for its URL
 *      scheme to the table in store.c.
 *   3. Run the contract suite (tests/store) with its URL; tests/README.md says
 *      how.
 *
 * The life of a store: open -> (apply, peek, load, ... on the threads named
 * below) -> close. The caller stops every other thread before it closes. A
 * store that cannot decide stays open: it refuses with LK_UNAVAILABLE, says
 * why in lk_store_stats.failure, and recovers by itself in a later apply.
 *
 * The life of an op (struct lk_op):
 *
 *   step       who may touch it        then
 *   made       the caller              fields and slices are set
 *   in apply   the store's thread      `status` and `out` are set
 *   decided    the caller              reads `out`, replies, lk_op_clear
 *
 * The caller makes and frees the op and the memory of its slices, which must
 * stay until apply, peek or load has returned.
 */
#ifndef LK_STORE_H
#define LK_STORE_H

#include "latchkey.h"
#include "lib/machine.h"
#include "lib/siphash.h"
#include "store/jobs.h"

#include <stdarg.h>
#include <stdatomic.h>

/* Bounds that hold for every store; the caller has checked them. */
enum {
    LK_TENANT_MAX = 255,
    LK_SCOPE_MAX = 1024,
    LK_FINGERPRINT_MAX = 128,
    LK_OWNER_MAX = 64,
    LK_REASON_MAX = 255,
    LK_WHO_MAX = 255,
    LK_WHY_MAX = 1024,
    LK_PROMISE_SIZE = 256,
    LK_FAILURE_SIZE = 384,
};

/*
 * The stored response of a completed operation, or the reason why an operation
 * is uncertain. It never changes once it is made; caches and replies in
 * progress share it by counted references. Any thread may hold one.
 */
struct lk_stored {
    atomic_uint refs;
    uint64_t token;
    uint64_t at_ms; /* when it was completed or became uncertain */
    struct lk_response response;
    struct lk_slice reason; /* not empty: OMIT, or why it is uncertain */
    size_t size;            /* bytes, for the cache's account */
    char bytes[];
};

/* Copies the response and the reason. The caller owns one reference. NULL: out
 * of memory. */
struct lk_stored *lk_stored_make(uint64_t token, uint64_t at_ms,
                                 const struct lk_response *response,
                                 struct lk_slice reason);
/* With room for `bytes` in stored->bytes: its maker copies the bytes there and
 * sets all other members before it is shared. */
struct lk_stored *lk_stored_reserve(size_t bytes);
struct lk_stored *lk_stored_ref(struct lk_stored *stored);
void lk_stored_unref(struct lk_stored *stored); /* NULL is fine */

/* What the store decided: a verdict and its fields. Which fields are set
 * follows from `state`; the others are 0. */
struct lk_outcome {
    enum lk_verdict verdict;
    enum lk_state state; /* after the decision */
    uint64_t token;
    uint64_t attempt;
    uint64_t number;          /* for latchkey_reference_encode */
    uint64_t lock_until_ms;   /* in progress: end of the lock */
    uint64_t since_ms;        /* accepted or uncertain since */
    uint64_t expires_ms;      /* completed or released: end of the TTL */
    uint64_t now_ms;          /* the store's clock at the decision */
    struct lk_stored *stored; /* the op's reference, or NULL */
    bool needs_load;          /* `stored` (or since_ms) is to be
                                 fetched by load before the reply */
};

/* One event asked of the store about one operation: its arguments and its
 * outcome. The comments name the events that use a field. */
struct lk_op {
    enum lk_event event;
    struct lk_name name;
    struct lk_hash128 hash; /* lk_name_hash(store->secret, name) */

    struct lk_slice fingerprint; /* claim */
    struct lk_slice owner;       /* claim */
    uint64_t ttl_ms;             /* claim, complete, keep; 0: the default */
    uint64_t lock_ms;            /* claim, extend */
    bool reexecute;
    bool no_new;
    bool running; /* resolve: also while the lock is valid */

    /* complete, release, doubt, extend, enqueue. resolve: not 0 is proof, which
     * applies only to the uncertain claim of that token */
    uint64_t token;
    struct lk_response response; /* complete, resolve-completed */
    struct lk_slice reason;      /* doubt; complete: not empty means OMIT */
    struct lk_slice who;         /* resolve, evict: for the audit log; keep:
                                    empty if an app asked for it */
    struct lk_slice why;
    const struct lk_call *call; /* accept, enqueue */
    bool by_courier; /* extend: the courier renews a lease, which does not
                        mean that the gateway has the request. return: the
                        courier changes the job itself */
    bool unsent;     /* return: the app has not received the request */

    enum lk_status status; /* LK_OK: `out` is set; else why it is not */
    const char *error;     /* a constant sentence for the client, or NULL */
    struct lk_outcome out;
};

/* Every token is below this, so that it survives as a JSON number. */
#define LK_TOKEN_END (UINT64_C(1) << 53)
/* Whether verdict, state and fields of an outcome fit together. An embedded
 * store asserts it before it returns an op; a store on a server refuses the op
 * with LK_CORRUPT. */
bool lk_outcome_is_consistent(const struct lk_outcome *out);

void lk_op_clear(struct lk_op *op); /* drops the reference in the outcome */
/* The action that the audit log notes for the op; empty: it is not audited. */
struct lk_slice lk_op_action(const struct lk_op *op);

/*
 * A batch: ops that a store decides in one durable step, in the order in which
 * they arrived. The caller owns it; apply reads the first part and sets the
 * second.
 */
struct lk_batch {
    struct lk_op **ops;
    size_t count;
    unsigned lane; /* below lanes + job_lanes; lane 0 also keeps */
    bool keep;     /* also sweep and reap what is due, within bounds */
    struct lk_job_batch *job_batch; /* the courier's part, or NULL */

    bool more;   /* out: there is more to keep, apply again soon */
    bool queued; /* out: a job was queued, or has become due */
    /*
     * Out: operations that are not in progress or accepted any more, because
     * of an op or of the sweeper. The caller wakes the clients that wait for
     * them. lk_batch_clear frees the list.
     */
    bool
        settle_all; /* any operation may have settled: the store was reopened */
    struct lk_hash128 *settled;
    size_t settled_count;
    size_t settled_cap;
};

/* For stores: adds to `settled`. LK_NOMEM: set settle_all instead. */
LK_MUST_CHECK enum lk_status lk_batch_settle(struct lk_batch *batch,
                                             struct lk_hash128 hash);
void lk_batch_clear(struct lk_batch *batch);

/*
 * An operation as LOOKUP, FIND and LIST show it and as import takes it. Slices
 * point into `text`; those of an import point to memory of the caller. Free it
 * with lk_operation_free. Times are 0 where the state does not have them.
 */
struct lk_operation {
    struct lk_name name;
    enum lk_state state;
    uint64_t token;
    uint64_t attempt;
    uint64_t number;
    uint64_t claimed_ms;
    uint64_t lock_until_ms;
    uint64_t since_ms;
    uint64_t completed_ms;
    uint64_t expires_ms;
    uint64_t ttl_ms;
    unsigned status;         /* completed */
    uint64_t response_bytes; /* headers and body, completed */
    bool omitted;
    struct lk_slice reason; /* uncertain, omitted */
    struct lk_slice fingerprint;
    struct lk_stored *stored; /* LOOKUP, FIND, a whole LIST; else NULL */
    /* Only in a whole LIST and for an import: */
    struct lk_slice owner;
    uint64_t generation;
    uint64_t keep_ms; /* the TTL that KEEP asked for; 0: none */
    bool evicted;     /* released by EVICT */
    bool queued;      /* its request is an unfinished job */
    /* Only in a LIST that is not whole: unfinished jobs, and how many of these
     * are dead or uncertain. */
    uint64_t jobs_open;
    uint64_t jobs_dead;
    uint64_t jobs_uncertain;
    struct lk_buf text;
};

void lk_operation_free(struct lk_operation *operation);

struct lk_list_query {
    bool any_state;
    enum lk_state state;
    struct lk_slice tenant; /* empty: every tenant */
    struct lk_slice scope;  /* empty: every scope */
    uint64_t older_than_ms; /* older than this */
    uint64_t since_ms;      /* claimed then or later */
    uint64_t until_ms;      /* claimed before then; 0: no bound */
    bool attention;         /* only what needs a person: lk_list_needs_person */
    uint64_t long_ms;       /* with `attention`: in progress for this time */
    bool newest;            /* the newest first */
    uint64_t cursor;        /* *next of the call before; 0: from the start */
    size_t limit;
    bool whole; /* for an export: released operations too, with all fields */
};

/* Whether the operation matches, apart from `attention`. */
bool lk_list_matches(const struct lk_list_query *query,
                     const struct lk_operation *operation, uint64_t now);
/* Whether it is uncertain, in progress for at least query->long_ms, or has jobs
 * that are dead or uncertain. */
bool lk_list_needs_person(const struct lk_list_query *query,
                          const struct lk_operation *operation, uint64_t now);

/* Bounds of an import: half of all tokens, so that the store can continue above
 * them, and times up to the year 2248. */
#define LK_IMPORT_TOKEN_MAX (UINT64_C(1) << 47)
#define LK_IMPORT_TIME_MAX  ((UINT64_C(1) << 43) - 1)

/* Whether an operation of another store has all fields within their bounds. */
bool lk_operation_is_possible(const struct lk_operation *operation);
/* When its lock or its TTL ends; of an uncertain one, since when it is so. */
uint64_t lk_operation_deadline(const struct lk_operation *operation);

/* The result of an import. */
struct lk_import {
    uint64_t taken;
    uint64_t older;      /* not taken: the store has a newer one, or the same */
    uint64_t renumbered; /* taken, with another reference */
    uint64_t highest_token;
};

struct lk_audit_entry {
    uint64_t id;
    uint64_t at_ms;
    struct lk_slice who;
    struct lk_slice why;
    struct lk_slice action;
    struct lk_name name;
    uint64_t token; /* for an action on a job: the id of the job */
};

/* The id of the job that the entry is about; 0: none. */
uint64_t lk_audit_job(const struct lk_audit_entry *entry);
/* The target that was paused or resumed; empty: none. */
struct lk_slice lk_audit_target(const struct lk_audit_entry *entry);

/* Which entries of the audit log: those that match every field; 0 or empty
 * matches all. */
struct lk_audit_query {
    uint64_t after;    /* ids above it */
    uint64_t before;   /* ids below it */
    uint64_t since_ms; /* from then on */
    uint64_t until_ms; /* before then */
    uint64_t job;
    struct lk_name name;
    struct lk_slice who;    /* also "USER/who" and "who/NAME" */
    struct lk_slice action; /* or its first words */
    bool newest;            /* the newest first */
    bool count;             /* for the daemon: only count them */
    size_t limit;
};

/*
 * The same as SQL, for stores that use it; `p` is the text in front of a
 * parameter's number. 1 after, 2 before, 3 since, 4 until, 5 who, 6 action,
 * 7 tenant, 8 scope, 9 key, 10 job, 11 limit. Bounds that are not given are at
 * their widest; job is 0.
 */
#define LK_AUDIT_MATCHES(p, at)                                                \
    "id > " p "1 AND id < " p "2 AND " at " >= " p "3 AND " at " < " p "4 "    \
    "AND (" p "5 = '' OR who = " p "5 "                                        \
    "OR substr(who, 1, length(" p "5) + 1) = " p "5 || '/' "                   \
    "OR substr(who, length(who) - length(" p "5)) = '/' || " p "5) "           \
    "AND (" p "6 = '' OR action = " p "6 "                                     \
    "OR substr(action, 1, length(" p "6) + 1) = " p "6 || ' ') "               \
    "AND (" p "7 = '' OR tenant = " p "7) "                                    \
    "AND (" p "8 = '' OR scope = " p "8) "                                     \
    "AND (" p "9 = '' OR key = " p "9) "                                       \
    "AND (" p "10 = 0 OR token = " p "10 AND substr(action, 1, 4) = 'job ') "

/* Called for each row; the row is valid during the call. Return false to
 * stop. */
typedef bool (*lk_operation_fn)(void *context,
                                const struct lk_operation *operation);
typedef bool (*lk_audit_fn)(void *context, const struct lk_audit_entry *entry);
typedef void (*lk_progress_fn)(void *context, uint64_t done, uint64_t total);

/* Numbers for INFO and STATS. */
struct lk_store_stats {
    uint64_t operations;  /* in any state */
    uint64_t by_state[6]; /* indexed by enum lk_state */
    uint64_t index_bytes;
    uint64_t file_bytes; /* database and log */
    uint64_t free_bytes; /* of these, free for new rows */
    uint64_t dead_rows;  /* for the reaper to delete */
    uint64_t batches;
    uint64_t batch_ops;
    uint64_t syncs_failed;
    uint64_t reopened;
    uint64_t checkpoints;
    uint64_t swept;
    uint64_t reaped;
    uint64_t last_token;
    /* Lookups in store.cache: found, not found, failed; all 0 without it. */
    uint64_t shared_hits;
    uint64_t shared_misses;
    uint64_t shared_failed;
    uint64_t now_ms;
    uint64_t hold_until_ms; /* a restored copy: no new claims before; 0: no */
    uint64_t jobs[LK_JOB_DELIVERED]; /* unfinished, by enum lk_job_state */
    uint64_t oldest_uncertain_ms;    /* of operations and jobs; 0: none */
    uint64_t oldest_operation_ms;    /* uncertain; 0: none, or not known */
    bool clock_held;                 /* an operator must accept the clock */
    bool available;
    char failure[LK_FAILURE_SIZE]; /* why not available; one clean line */
};

struct lk_store_config {
    const char *url;
    const char *path;          /* the part after the scheme */
    uint64_t default_ttl_ms;   /* 24 h */
    uint64_t default_lock_ms;  /* 30 s */
    uint64_t clock_jump_ms;    /* a longer gap across a reboot holds the
                                  clock */
    unsigned checkpoint_pages; /* log size that starts a checkpoint */
    unsigned cache_pages;      /* of each connection, 8 KiB each */
    unsigned reap_rows;        /* at most, with each batch */
    const char *vfs;           /* SQLite VFS by name; NULL: the default */

    /* Stores on a server. */
    unsigned connections;        /* lanes, a connection each; 0: 1 */
    size_t batch_ops;            /* at most, in a batch */
    bool pooler;                 /* through PgBouncer in transaction mode */
    bool accept_loss;            /* allow settings that may lose data */
    bool strict;                 /* refuse settings that are not strict */
    bool notify;                 /* notify other daemons */
    uint64_t timeout_ms;         /* for one batch */
    uint64_t connect_timeout_ms; /* for one connection */
    unsigned wait_replicas;      /* Redis: WAIT for this many */
    uint64_t wait_timeout_ms;
    const char *prefix;    /* of Redis keys, without the braces */
    const char *cache_url; /* responses in Redis; NULL: none */
    uint64_t cache_timeout_ms;

    /* Gets every line that an operator should read, without a newline. Any
     * thread. */
    void (*log)(void *context, int level, const char *line);
    void *log_context;
    /* Called on a thread of the store when lane 0 should apply a batch soon,
     * perhaps an empty one, to collect what has settled. May be NULL. */
    void (*wake)(void *context);
    void *wake_context;
};

void lk_store_config_default(struct lk_store_config *config);
/* For stores: formats a line and passes it to config->log, if that is set.
 * `level`: 0 error, 1 warning, 2 info. */
void lk_store_log(const struct lk_store_config *config, int level,
                  const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

struct lk_store;

/*
 * One store. Each comment names the thread that calls the function:
 *   start-up  before the other threads exist, or in the tool
 *   lane N    the store thread of that lane
 *   reader    one reader thread at a time
 *   any       several threads at once
 */
struct lk_store_class {
    const char *scheme;

    /* start-up. Checks the URLs without asking a server: LK_OK, or LK_INVALID
     * and a sentence in `error`. For a store that has this function, a failed
     * open is retried: its server may be down. NULL: an embedded store, whose
     * failed open is final. */
    enum lk_status (*check)(const struct lk_store_config *config,
                            struct lk_buf *error);

    /* start-up. LK_OK: *store is the caller's, to be closed. LK_BUSY: another
     * process owns it. Else `error` gets a sentence that names the file or the
     * setting, and the remedy. */
    enum lk_status (*open)(const struct lk_store_config *config,
                           struct lk_store **store, struct lk_buf *error);
    /* After every other thread has stopped using it. Frees the store. */
    void (*close)(struct lk_store *store);

    /*
     * The thread of batch->lane. Decides every op and makes the decisions
     * durable in one step, and the courier's part with them. Afterwards each op
     * has its own status:
     *   LK_OK           decided and durable, `out` is set
     *   LK_UNAVAILABLE  nothing happened
     *   LK_UNKNOWN      the commit may or may not have happened: the client
     *                   sends the same claim again, with its owner
     *   LK_AGAIN        another transaction holds the operation: apply it again
     *                   shortly; the outcome of a claim says INFLIGHT until
     * then LK_INVALID, LK_TOO_LARGE, LK_CORRUPT: this op alone, nothing
     * happened
     */
    void (*apply)(struct lk_store *store, struct lk_batch *batch);

    /* any. Decides an op that changes nothing, from what is durable: LK_OK and
     * the outcome, or LK_AGAIN if it needs apply. Never waits. May be NULL. */
    enum lk_status (*peek)(struct lk_store *store, struct lk_op *op);

    /* reader. Fetches what an outcome with needs_load lacks. LK_AGAIN: the
     * operation has changed since, decide again. LK_CORRUPT: it is damaged. */
    enum lk_status (*load)(struct lk_store *store, struct lk_op *op);

    /* reader. LK_OK: free *operation. LK_NOT_FOUND: there is none. */
    enum lk_status (*lookup)(struct lk_store *store, struct lk_name name,
                             struct lk_operation *operation);
    /* reader. By the number of its reference; an empty tenant matches all. */
    enum lk_status (*find)(struct lk_store *store, struct lk_slice tenant,
                           uint64_t number, struct lk_operation *operation);
    /* reader. *next is the cursor of the next call, 0 at the end. Looks at a
     * bounded number of rows, so it may return few and not be at the end. */
    enum lk_status (*list)(struct lk_store *store,
                           const struct lk_list_query *query,
                           lk_operation_fn row, void *context, uint64_t *next);
    /* reader. */
    enum lk_status (*audit)(struct lk_store *store,
                            const struct lk_audit_query *query, lk_audit_fn row,
                            void *context);

    /* Jobs; all three are NULL in a store without jobs. any, but not the loop's
     * thread: they wait. jobs: as list. job: LK_NOT_FOUND if there is none;
     * `row` gets its earlier attempts, oldest first, and may be NULL. targets:
     * each target that has jobs or is paused. */
    enum lk_status (*jobs)(struct lk_store *store,
                           const struct lk_jobs_query *query, lk_job_fn row,
                           void *context, uint64_t *next);
    enum lk_status (*job)(struct lk_store *store, uint64_t id,
                          struct lk_job *job, lk_attempt_fn row, void *context);
    enum lk_status (*targets)(struct lk_store *store, lk_target_fn row,
                              void *context);

    /* Long work, on a thread of its own; batches go on in the meantime.
     * `report` gets a line for each finding; LK_CORRUPT: there was one. */
    enum lk_status (*verify)(struct lk_store *store, lk_progress_fn progress,
                             void *context, struct lk_buf *report);
    /* Long work. Writes a consistent copy to a file that must not exist. NULL:
     * the server has its own tools. */
    enum lk_status (*backup)(struct lk_store *store, const char *path,
                             lk_progress_fn progress, void *context,
                             struct lk_buf *error);

    /* lane 0. Appends an operator's action that changes no operation to the
     * audit log; the store sets id and time. LK_OK: it is durable. */
    enum lk_status (*note)(struct lk_store *store,
                           const struct lk_audit_entry *entry);
    /* lane 0. An operator vouches for the wall clock; audited. NULL: the clock
     * is the server's. */
    enum lk_status (*accept_clock)(struct lk_store *store, struct lk_slice who,
                                   struct lk_slice why);
    /* any. All numbers are of one moment. */
    void (*stats)(struct lk_store *store, struct lk_store_stats *stats);

    /* start-up. What the store promises with its present settings, one plain
     * sentence a line. *strict: what is acknowledged survives everything that
     * the sentences name. */
    enum lk_status (*describe)(struct lk_store *store, struct lk_buf *text,
                               bool *strict);
    /* any. The present promise as one sentence, where it may change. NULL:
     * lk_store.promise holds. */
    void (*promise)(struct lk_store *store, char text[LK_PROMISE_SIZE]);

    /*
     * start-up. Import from another store; other daemons of a shared store may
     * go on. An operation is taken if there is none of its name, or one that is
     * expired or has a smaller token, or the same token in an earlier state
     * (in progress, uncertain, released, completed, evicted) or with an earlier
     * end of the same state. Numbers stay where they are free; new tokens are
     * above the highest imported one and above result->highest_token as given.
     * LK_INVALID: an operation is not possible, and nothing was taken.
     */
    enum lk_status (*import)(struct lk_store *store,
                             const struct lk_operation *operations,
                             size_t count, struct lk_import *result);
    /* start-up. Entries that are there already are not added again. */
    enum lk_status (*import_audit)(struct lk_store *store,
                                   const struct lk_audit_entry *entries,
                                   size_t count);
    /* start-up. References of the other store stay valid. LK_BUSY: this store
     * has given out references of its own. */
    enum lk_status (*adopt)(struct lk_store *store,
                            const uint8_t reference_secret[LK_REFERENCE_KEY]);
};

/* Every store begins with this; constant once it is open, but for what `adopt`
 * changes. */
struct lk_store {
    const struct lk_store_class *class;
    uint8_t secret[16]; /* key of lk_name_hash */
    uint8_t reference_secret[LK_REFERENCE_KEY];
    /* When the store was opened; see lk_store_promise. */
    char promise[LK_PROMISE_SIZE];
    /* How many threads may apply batches at once, each on a lane of its own; at
     * least 1. lk_op_lane gives the lane of an op, so that the ops of one key
     * stay in order. */
    unsigned lanes;
    /* Other processes change the same operations: waiting clients are polled.
     */
    bool shared;
    /* Lanes for job batches, numbered from `lanes` on; they run beside the
     * others, in any order. 0: job batches go with the batches of lane 0. */
    unsigned job_lanes;
};

static inline unsigned lk_op_lane(const struct lk_store *store,
                                  const struct lk_op *op)
{
    return (unsigned)(op->hash.hi % store->lanes);
}

/* Finds the class for a URL and sets `config->url` and `config->path`, which
 * point into it. LK_INVALID: no such scheme (*class is NULL), or class->check
 * refused; `error` gets a sentence without a password. */
LK_MUST_CHECK enum lk_status lk_store_check(const char *url,
                                            struct lk_store_config *config,
                                            const struct lk_store_class **class,
                                            struct lk_buf *error);
/* lk_store_check, then the class's open. */
LK_MUST_CHECK enum lk_status lk_store_open(const char *url,
                                           struct lk_store_config *config,
                                           struct lk_store **store,
                                           struct lk_buf *error);
void lk_store_close(struct lk_store *store); /* NULL is fine */
/* The present promise as one sentence, for INFO. Any thread. */
void lk_store_promise(struct lk_store *store, char text[LK_PROMISE_SIZE]);

extern const struct lk_store_class lk_sqlite_class;
/* Whether an embedded store is at this path or can be made there; `error` gets
 * the remedy. */
LK_MUST_CHECK enum lk_status lk_sqlite_check_place(const char *path,
                                                   struct lk_buf *error);
extern const struct lk_store_class lk_postgres_class;
extern const struct lk_store_class lk_redis_class;

#endif
