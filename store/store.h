/*
 * store.h - what every store is: a small table of functions over batches.
 *
 * A store decides and remembers. The daemon hands it *batches* of operations
 * on a thread for each of its lanes; whatever arrives while one batch is being
 * made durable forms the next. A store may also answer, on any thread and
 * without waiting, an operation that would change nothing (peek), and fetch
 * what such an answer needs (load).
 */
#ifndef LK_STORE_H
#define LK_STORE_H

#include "latchkey.h"
#include "lib/machine.h"
#include "lib/siphash.h"
#include "store/jobs.h"

#include <stdarg.h>
#include <stdatomic.h>

/* Bounds that hold for every store. */
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
 * The stored answer of a finished operation, or the reason of a doubt. Never
 * changes once made; shared by the cache and by replies under way.
 */
struct lk_stored {
    atomic_uint refs;
    uint64_t token;
    uint64_t at_ms; /* completed, or doubted, when */
    struct lk_response response;
    struct lk_slice reason; /* not empty: omitted, or why it is uncertain */
    size_t size;            /* bytes, for the cache's account */
    char bytes[];
};

/* One reference belongs to the caller. NULL: out of memory. */
struct lk_stored *lk_stored_make(uint64_t token, uint64_t at_ms,
                                 const struct lk_response *response,
                                 struct lk_slice reason);
struct lk_stored *lk_stored_ref(struct lk_stored *stored);
void lk_stored_unref(struct lk_stored *stored); /* NULL is fine */

/* What was decided, filled in by the store. */
struct lk_outcome {
    enum lk_verdict verdict;
    enum lk_state state; /* after the step */
    uint64_t token;
    uint64_t attempt;
    uint64_t number;          /* of the record: latchkey_reference_encode */
    uint64_t lock_until_ms;   /* in progress */
    uint64_t since_ms;        /* accepted, uncertain */
    uint64_t expires_ms;      /* completed */
    uint64_t now_ms;          /* the store's clock at the decision */
    struct lk_stored *stored; /* a reference of the op's own, or NULL */
    bool needs_load;          /* decided, but `kept` is still to be loaded */
};

/*
 * One operation. The slices belong to whoever made the op and must stay until
 * the op is answered.
 */
struct lk_op {
    enum lk_event event;
    struct lk_name name;
    struct lk_hash128 hash; /* lk_name_hash(store->secret, name) */

    struct lk_slice fingerprint; /* claim */
    struct lk_slice owner;       /* claim */
    uint64_t ttl_ms;             /* claim, complete, keep; 0: not given */
    uint64_t lock_ms;            /* claim, extend */
    bool reexecute;
    bool no_new;
    bool running; /* resolve: also while the lock is valid */

    /* complete, release, doubt, extend, enqueue. resolve: not 0 is proof,
     * which counts for the uncertain claim of that token alone */
    uint64_t token;
    struct lk_response response; /* complete, resolve-completed */
    struct lk_slice reason;      /* doubt; complete: not empty is OMIT */
    struct lk_slice who;         /* resolve, evict: for the audit log; keep:
                                    empty if an app asks for it */
    struct lk_slice why;
    const struct lk_call *call; /* accept, enqueue */
    bool by_courier; /* extend: a lease goes on, which is no sign that the
                        gateway has the request. return: the job is its own
                        affair */
    bool unsent;     /* return: the app has not heard of the request */

    enum lk_status status; /* LK_OK, or why there is no outcome: */
    const char *error;     /* a constant sentence for the caller, or NULL */
    struct lk_outcome out;
};

void lk_op_clear(struct lk_op *op); /* drops what the outcome holds */
/* What the audit log calls it; empty: it is not an operator's. */
struct lk_slice lk_op_action(const struct lk_op *op);

/* A batch, in the order in which the operations arrived. */
struct lk_batch {
    struct lk_op **ops;
    size_t count;
    unsigned lane; /* which of the store's lanes this is; 0 also keeps */
    bool keep;     /* also sweep and reap what is due, within bounds */
    bool more; /* set by the store: there is more to keep, call again soon */
    struct lk_job_batch *job_batch; /* the courier's part of it; NULL: none */
    bool queued; /* set by the store: a job was queued, or has become due */
    /*
     * Operations that stopped being in progress or accepted, by an op or by
     * the sweeper: whoever waits for one of them is to be woken. Filled by
     * the store, freed by lk_batch_clear.
     */
    bool settle_all; /* the store was reopened: anything may have settled */
    struct lk_hash128 *settled;
    size_t settled_count;
    size_t settled_cap;
};

LK_MUST_CHECK enum lk_status lk_batch_settle(struct lk_batch *batch,
                                             struct lk_hash128 hash);
void lk_batch_clear(struct lk_batch *batch);

/*
 * A record as LOOKUP, FIND and LIST show it. Slices point into `text`, but for
 * those of an import, which are the caller's.
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
    uint64_t response_bytes; /* headers and body, completed and kept */
    bool omitted;
    struct lk_slice reason; /* uncertain, omitted */
    struct lk_slice fingerprint;
    struct lk_stored
        *stored; /* LOOKUP, FIND and a whole LIST of a kept answer */
    /* Only in a whole LIST, and for an import: */
    struct lk_slice owner;
    uint64_t generation;
    uint64_t keep_ms; /* KEEP asked for that TTL; 0: nobody did */
    bool evicted;     /* released by EVICT */
    bool queued;      /* its request is an unfinished job */
    /* Only in a LIST that is not whole: its unfinished jobs, and of these. */
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
    uint64_t older_than_ms; /* claimed at least that long ago */
    uint64_t since_ms;      /* claimed then or later */
    uint64_t until_ms;      /* claimed before then; 0: whenever */
    bool attention;         /* only what needs a person: lk_list_needs_person */
    uint64_t long_ms;       /* with `attention`: in progress for so long */
    bool newest;            /* the newest first */
    uint64_t cursor;        /* 0: from the oldest, or the newest */
    size_t limit;
    bool whole; /* for an export: released records too, with all they have */
};

/* What is asked for, but for `attention`. */
bool lk_list_matches(const struct lk_list_query *query,
                     const struct lk_operation *operation, uint64_t now);
/* Uncertain, in progress for at least query->long_ms, or with jobs that are
 * dead or uncertain. */
bool lk_list_needs_person(const struct lk_list_query *query,
                          const struct lk_operation *operation, uint64_t now);

/* Half of all tokens: whatever a file says, the store can go on. And times up
 * to the year 2248. */
#define LK_IMPORT_TOKEN_MAX (UINT64_C(1) << 47)
#define LK_IMPORT_TIME_MAX  ((UINT64_C(1) << 43) - 1)

/* import.c: may a record that came from elsewhere be one at all? */
bool lk_operation_is_possible(const struct lk_operation *operation);
/* When its lock or its TTL ends; uncertain: since when. */
uint64_t lk_operation_deadline(const struct lk_operation *operation);

/* What became of the records of an import. */
struct lk_import {
    uint64_t taken;
    uint64_t older;      /* the store has a newer one, or the same */
    uint64_t renumbered; /* taken, but its reference is another one now */
    uint64_t highest_token;
};

struct lk_audit_entry {
    uint64_t id;
    uint64_t at_ms;
    struct lk_slice who;
    struct lk_slice why;
    struct lk_slice action;
    struct lk_name name;
    uint64_t token; /* the job's id where the action is one on a job */
};

/* The job that it concerns; 0: none. */
uint64_t lk_audit_job(const struct lk_audit_entry *entry);
/* The target that was paused or resumed; empty: none. */
struct lk_slice lk_audit_target(const struct lk_audit_entry *entry);

/* Which entries are asked for. All of it together; 0 or empty: any. */
struct lk_audit_query {
    uint64_t after;    /* ids above it */
    uint64_t before;   /* ids below it */
    uint64_t since_ms; /* from then on */
    uint64_t until_ms; /* before then */
    uint64_t job;
    struct lk_name name;
    struct lk_slice who;    /* also "USER/who" and "who/NAME": signature.c */
    struct lk_slice action; /* or its first words */
    bool newest;            /* the newest first */
    bool count;             /* the daemon's: only how many there are */
    size_t limit;
};

/*
 * The same as SQL, for stores that speak it; `p` is what stands before a
 * parameter's number. 1 after, 2 before, 3 since, 4 until, 5 who, 6 action,
 * 7 tenant, 8 scope, 9 key, 10 job, 11 limit; numbers that are not asked for
 * are at their widest, except for the job.
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

/* Called for each row; false stops. */
typedef bool (*lk_operation_fn)(void *context,
                                const struct lk_operation *operation);
typedef bool (*lk_audit_fn)(void *context, const struct lk_audit_entry *entry);
typedef void (*lk_progress_fn)(void *context, uint64_t done, uint64_t total);

/* Numbers for INFO and STATS; all of one moment, read on any thread. */
struct lk_store_stats {
    uint64_t operations;  /* live in the index */
    uint64_t by_state[6]; /* indexed by enum lk_state */
    uint64_t index_bytes;
    uint64_t file_bytes; /* database and log */
    uint64_t free_bytes; /* of these, reusable */
    uint64_t dead_rows;  /* waiting for the reaper */
    uint64_t batches;
    uint64_t batch_ops;
    uint64_t syncs_failed;
    uint64_t reopened;
    uint64_t checkpoints;
    uint64_t swept;
    uint64_t reaped;
    uint64_t last_token;
    /* Replays that store.cache has answered, did not have, and was asked for in
     * vain; all 0 without it. */
    uint64_t shared_hits;
    uint64_t shared_misses;
    uint64_t shared_failed;
    uint64_t now_ms;
    uint64_t hold_until_ms; /* restored file: unknown keys are held; 0: no */
    uint64_t jobs[LK_JOB_DELIVERED]; /* unfinished, by enum lk_job_state */
    uint64_t oldest_uncertain_ms;    /* of operations and jobs; 0: none */
    uint64_t oldest_operation_ms; /* uncertain; 0: none, or it is not known */
    bool clock_held;              /* an operator must accept the clock */
    bool available;
    char failure[LK_FAILURE_SIZE]; /* why not available; escaped, one line */
};

struct lk_store_config {
    const char *url;
    const char *path;          /* what follows the scheme */
    uint64_t default_ttl_ms;   /* 24 h */
    uint64_t default_lock_ms;  /* 30 s */
    uint64_t clock_jump_ms;    /* a longer gap across a reboot is doubted */
    unsigned checkpoint_pages; /* log size that starts a checkpoint */
    unsigned cache_pages;      /* of each connection, 8 KiB each */
    unsigned reap_rows;        /* at most so many rows for each batch */
    const char *vfs;           /* SQLite VFS by name; NULL: the default */

    /* Stores on a server. */
    unsigned connections;        /* lanes, a connection each; 0: as usual */
    size_t batch_ops;            /* at most so many operations in a batch */
    bool pooler;                 /* through PgBouncer in transaction mode */
    bool accept_loss;            /* settings that may lose what was said */
    bool strict;                 /* describe must be strict, always */
    bool notify;                 /* tell other daemons what has settled */
    uint64_t timeout_ms;         /* for one batch */
    uint64_t connect_timeout_ms; /* for one connection */
    unsigned wait_replicas;      /* Redis: WAIT for so many */
    uint64_t wait_timeout_ms;
    const char *prefix;    /* of Redis keys, without the braces */
    const char *cache_url; /* answers in Redis; NULL: none */
    uint64_t cache_timeout_ms;

    /* Told of everything an operator should read; one line, no newline. */
    void (*log)(void *context, int level, const char *line);
    void *log_context;
    /* Called on a thread of the store's: it has something to tell, so lane 0
     * should apply a batch soon, an empty one perhaps. NULL: nobody asks. */
    void (*wake)(void *context);
    void *wake_context;
};

void lk_store_config_default(struct lk_store_config *config);
/* Makes the line, if anybody listens. `level`: 0 error, 1 warning, 2 info. */
void lk_store_log(const struct lk_store_config *config, int level,
                  const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

struct lk_store;

/* Which thread may call what stands with each function. */
struct lk_store_class {
    const char *scheme;

    /* What can be told of URLs without asking a server: LK_OK, or LK_INVALID
     * and a sentence. Of such a store whatever else is wrong at an opening may
     * be mended at its server. NULL: it is embedded, and an opening that fails
     * fails for good. */
    enum lk_status (*check)(const struct lk_store_config *config,
                            struct lk_buf *error);

    /* LK_BUSY: another process owns it. `error` gets a sentence that names
     * the file and the remedy. Start-up thread. */
    enum lk_status (*open)(const struct lk_store_config *config,
                           struct lk_store **store, struct lk_buf *error);
    void (*close)(struct lk_store *store);

    /* Decides every op and makes the decisions durable in one step; each op
     * has its status and outcome afterwards, op by op: LK_OK, LK_UNAVAILABLE,
     * LK_UNKNOWN (the commit may or may not have happened: the caller sends
     * the same claim again) or LK_AGAIN (a transaction of somebody else holds
     * the record: give it again shortly; the outcome of a claim says INFLIGHT
     * meanwhile). batch->work is made durable likewise. On the thread of the
     * batch's lane. */
    void (*apply)(struct lk_store *store, struct lk_batch *batch);

    /* Decides an op that changes nothing, from what is durable: LK_OK and the
     * outcome, or LK_AGAIN if it needs apply. Never waits. Any thread. May be
     * NULL. */
    enum lk_status (*peek)(struct lk_store *store, struct lk_op *op);

    /* Fetches what a peeked outcome needs (`kept`). LK_AGAIN: the record has
     * moved on meanwhile, decide again. Reader thread. */
    enum lk_status (*load)(struct lk_store *store, struct lk_op *op);

    /* LK_NOT_FOUND if there is none. Reader thread. */
    enum lk_status (*lookup)(struct lk_store *store, struct lk_name name,
                             struct lk_operation *operation);
    /* Of this tenant's, or of every one's if that is empty. */
    enum lk_status (*find)(struct lk_store *store, struct lk_slice tenant,
                           uint64_t number, struct lk_operation *operation);
    /* *next is the cursor of the next call, 0 at the end. Looks at a bounded
     * number of rows, so it may return few and still not be at the end.
     * Reader thread. */
    enum lk_status (*list)(struct lk_store *store,
                           const struct lk_list_query *query,
                           lk_operation_fn row, void *context, uint64_t *next);
    enum lk_status (*audit)(struct lk_store *store,
                            const struct lk_audit_query *query, lk_audit_fn row,
                            void *context);

    /* Jobs; NULL in a store that keeps none. Any thread but the loop's.
     * jobs: as list. job: LK_NOT_FOUND if there is none; `row` is told of its
     * earlier attempts, oldest first, and may be NULL. targets: each target
     * that has jobs or is paused. */
    enum lk_status (*jobs)(struct lk_store *store,
                           const struct lk_jobs_query *query, lk_job_fn row,
                           void *context, uint64_t *next);
    enum lk_status (*job)(struct lk_store *store, uint64_t id,
                          struct lk_job *job, lk_attempt_fn row, void *context);
    enum lk_status (*targets)(struct lk_store *store, lk_target_fn row,
                              void *context);

    /* Long work, on a thread of its own; claims go on meanwhile. `report`
     * gets a line for each finding; LK_CORRUPT if there was one. */
    enum lk_status (*verify)(struct lk_store *store, lk_progress_fn progress,
                             void *context, struct lk_buf *report);
    /* Writes a consistent copy to a file that must not exist. NULL: the store
     * has its own ways. */
    enum lk_status (*backup)(struct lk_store *store, const char *path,
                             lk_progress_fn progress, void *context,
                             struct lk_buf *error);

    /* Appends to the audit log what an operator does that changes no record;
     * the store sets id and time. LK_OK: it is durable. Thread of lane 0. */
    enum lk_status (*note)(struct lk_store *store,
                           const struct lk_audit_entry *entry);
    /* An operator vouches for the wall clock; audited. Thread of lane 0.
     * NULL: the clock is the server's. */
    enum lk_status (*accept_clock)(struct lk_store *store, struct lk_slice who,
                                   struct lk_slice why);
    void (*stats)(struct lk_store *store, struct lk_store_stats *stats);

    /* What it promises with its present settings, one plain sentence a line.
     * *strict: what is acknowledged survives whatever the sentences name, and
     * nothing weaker is said. Start-up thread. */
    enum lk_status (*describe)(struct lk_store *store, struct lk_buf *text,
                               bool *strict);
    /* lk_store_promise's, where it may change. Any thread. May be NULL. */
    void (*promise)(struct lk_store *store, char text[LK_PROMISE_SIZE]);

    /*
     * Moving from another store; nobody else need be stopped where the store
     * is shared. A record is taken if there is none of its name, or one that
     * is expired or has a smaller token, or the same token in an earlier state
     * (in progress, uncertain, released, completed, evicted) or with an
     * earlier end of the same state.
     * Numbers are kept where they are free; tokens go on above the highest,
     * and above result->highest_token as it was given. Start-up thread.
     */
    enum lk_status (*import)(struct lk_store *store,
                             const struct lk_operation *operations,
                             size_t count, struct lk_import *result);
    enum lk_status (*import_audit)(struct lk_store *store,
                                   const struct lk_audit_entry *entries,
                                   size_t count);
    /* References of the other store stay valid. LK_BUSY: this one has given
     * out references of its own. */
    enum lk_status (*adopt)(struct lk_store *store,
                            const uint8_t reference_secret[LK_REFERENCE_KEY]);
};

/* Every store begins with this. */
struct lk_store {
    const struct lk_store_class *class;
    uint8_t secret[16]; /* of lk_name_hash */
    uint8_t reference_secret[LK_REFERENCE_KEY];
    /* As it was when the store was opened; see lk_store_promise. */
    char promise[LK_PROMISE_SIZE];
    /* So many threads may apply batches at once, each on a lane of its own.
     * An operation's lane is lk_op_lane's, so one key stays in order. */
    unsigned lanes;
    /* Other processes change the same records: waiters have to be polled. */
    bool shared;
    /* The courier's works have so many lanes of their own, from number `lanes`
     * on, beside those of the operations, and are done in any order. 0: they go
     * with the batches of lane 0, one after the other. */
    unsigned job_lanes;
};

static inline unsigned lk_op_lane(const struct lk_store *store,
                                  const struct lk_op *op)
{
    return (unsigned)(op->hash.hi % store->lanes);
}

/* Sets the class of the store that a URL names, `config->url` and
 * `config->path`. LK_INVALID: there is no such scheme, and the class is NULL,
 * or class->check says so; `error` gets a sentence without a password. */
LK_MUST_CHECK enum lk_status lk_store_check(const char *url,
                                            struct lk_store_config *config,
                                            const struct lk_store_class **class,
                                            struct lk_buf *error);
/*
 * Opens the store that a URL names ("sqlite:PATH", "postgres://HOST/NAME",
 * "redis://HOST:PORT"). LK_INVALID: no such scheme. `config->url` and
 * `config->path` are set from the URL.
 */
LK_MUST_CHECK enum lk_status lk_store_open(const char *url,
                                           struct lk_store_config *config,
                                           struct lk_store **store,
                                           struct lk_buf *error);
void lk_store_close(struct lk_store *store); /* NULL is fine */
/* What it promises at present: one sentence, for INFO. Any thread. */
void lk_store_promise(struct lk_store *store, char text[LK_PROMISE_SIZE]);

extern const struct lk_store_class lk_sqlite_class;
/* Is a store at this path, or could one be made there? */
LK_MUST_CHECK enum lk_status lk_sqlite_check_place(const char *path,
                                                   struct lk_buf *error);
extern const struct lk_store_class lk_postgres_class;
extern const struct lk_store_class lk_redis_class;

#endif
