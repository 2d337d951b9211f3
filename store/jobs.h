/*
 * jobs.h - the outbox: calls to external services that an operation has left,
 * and how a store leases them, notes their results and shows them.
 *
 * A job belongs to one operation and has a name, unique within the operation's
 * generation. The life of a job:
 *
 *   state      who may change it          next
 *   waiting    a courier, an operator     leased once it is due
 *   leased     the courier of the lease   delivered, waiting (retry),
 *                                         uncertain or dead, by an end; lost
 *                                         when the lease runs out
 *   uncertain  an operator, or proof      waiting, delivered, dropped
 *   dead       an operator                waiting, delivered, dropped
 *   delivered  no one: finished           reaped with its operation
 *   dropped    no one: finished           reaped with its operation
 *
 * A lease counts an attempt, and the number of the attempt is the fence: an end
 * or a renewal names it, and is stale once another courier has taken the job.
 *
 * The request of an asynchronous operation is also a job, the one without a
 * name. The request and its operation always change in one step:
 *
 *   the request is      its operation is
 *   waiting             accepted
 *   leased              in progress, under the token of the lease
 *   uncertain           uncertain
 *   delivered           completed (also if the gateway completes it itself)
 *   dropped             completed with a problem, or released by an operator
 *
 * The gateway EXTENDs the operation, under the token of the lease, before the
 * app gets the request: that makes the request `called`, in one step with the
 * lock. A courier or operator that takes the lease away before then gives the
 * operation another token, or none, and the gateway's EXTEND is stale.
 *
 * A leased job whose lease has run out was lost with its courier. If it was
 * never called, or may be called again, it is leased again; else it becomes
 * uncertain. Only this rule decides about operations whose request is
 * unfinished; the sweeper skips them.
 */
#ifndef LK_JOBS_H
#define LK_JOBS_H

#include "latchkey.h"
#include "lib/http_syntax.h" /* checks of paths, methods and headers */
#include "lib/job_machine.h"

enum {
    LK_JOB_NAME_MAX = 255,
    LK_TARGET_NAME_MAX = 64,
    LK_PROVIDER_ID_MAX = 255,
    LK_JOB_KEY = 32, /* characters of lk_job_key */
};

/* The target of requests; no target of the configuration can have that name. */
#define LK_TARGET_GATEWAY "@gateway"

/* The call of an ENQUEUE or ACCEPT, for op->call. The slices are the
 * caller's. */
struct lk_call {
    struct lk_slice name;   /* empty: the request of an ACCEPT */
    struct lk_slice target; /* LK_TARGET_GATEWAY for an ACCEPT */
    struct lk_slice method;
    struct lk_slice path; /* with the query */
    struct lk_slice headers;
    struct lk_slice body;
    uint64_t delay_ms;
    bool repeatable; /* ACCEPT with REEXECUTE: may run again */
};

/* ENQUEUE is refused with this (LK_INVALID) if an earlier run has queued a job
 * of that name with another target, method, path, headers or body. */
#define LK_JOB_CONFLICT                                                        \
    "ENQUEUE: the operation already has a job of that name, which makes "      \
    "another call: queue this one under another name, and drop the first if "  \
    "it must not happen"

/* What is wrong with the name of a target, or NULL: 1 to 64 of a-z, 0-9, '-',
 * '_' and '.', the first one a letter or digit. */
const char *lk_target_name_fault(struct lk_slice name);

/* A job as it is leased or shown. Slices point into `text`; free it with
 * lk_job_free. */
struct lk_job {
    uint64_t id;
    struct lk_name operation;
    uint64_t number;     /* of the operation: its reference */
    uint64_t generation; /* of the operation when it was queued */
    uint64_t token;      /* a leased request: the token of its operation */
    uint64_t run;        /* a leased request: the operation's attempt */
    struct lk_slice name;
    struct lk_slice target;
    struct lk_slice method;
    struct lk_slice path;
    struct lk_slice headers; /* only if leased or shown whole */
    struct lk_slice body;
    enum lk_job_state state;
    unsigned attempts; /* leases so far; the fence of the present one */
    unsigned forgiven; /* at most `attempts`; not counted against the limit */
    bool called;       /* the call of the present attempt may have left */
    bool sent;         /* the call of any attempt since AGAIN may have left */
    bool doubt;        /* a call may have happened and its response was lost: it
                          may be repeated only where the key is honoured, until
                          AGAIN says that it did not happen */
    bool repeatable;
    uint64_t created_ms;
    uint64_t due_ms; /* waiting: not leased before; leased: end of the lease */
    uint64_t ended_ms; /* when it came to its state; 0: waiting, leased */
    uint64_t now_ms;   /* the store's clock, at the lease */
    uint64_t since_ms; /* its age counts from here: an operator's last RETRY or
                          AGAIN; 0: from created_ms */
    uint64_t sent_ms;  /* if `sent`: the lease of the first call that may have
                          left, so no call was earlier; 0: created_ms */
    /* Of the last attempt that ended: */
    unsigned status;             /* of the response; 0: there was none */
    struct lk_slice provider_id; /* the service's id of what it made */
    struct lk_slice reason;      /* why it failed, is dead or uncertain */
    struct lk_response response; /* shown whole; cut to a bound */
    struct lk_buf text;
};

void lk_job_free(struct lk_job *job);
/* Whether the service may have forgotten the job's key, which it remembers for
 * life_ms (0: for ever) after the first call: another call could then happen a
 * second time. */
bool lk_job_is_forgotten(bool sent, uint64_t sent_ms, uint64_t created_ms,
                         uint64_t life_ms, uint64_t now_ms);

/*
 * The Idempotency-Key that the service gets on every attempt: hexadecimal
 * digits and a NUL. It differs between stores, tenants, operations, their
 * generations and the names of jobs. `secret` is store->reference_secret,
 * which moves with an export.
 */
void lk_job_key(const uint8_t secret[LK_REFERENCE_KEY],
                const struct lk_job *job, char key[LK_JOB_KEY + 1]);

/* An earlier attempt that failed; the last one is in the job itself. */
struct lk_attempt {
    unsigned number;
    uint64_t ended_ms;
    unsigned status; /* 0: no response */
    bool called;
    struct lk_slice reason;
    struct lk_slice body; /* of the response, cut short */
};

/* ---- what the courier asks a store for
 * ----------------------------------------- */

enum lk_end {
    LK_END_DELIVERED, /* a request: the gateway has completed it already */
    LK_END_RETRY,     /* failed for now: waits for delay_ms */
    LK_END_RETURN,    /* never called: waits for delay_ms, does not count */
    LK_END_UNCERTAIN, /* may have happened, and must not be repeated. A request
                         that is not `called` is retried: the gateway never
                         took it, and its token is void */
    LK_END_DEAD,      /* given up. A request: uncertain if any attempt was
                         sent, else completed with the response and dropped */
};

/* How a lease ends. */
struct lk_job_end {
    uint64_t id;
    unsigned attempt; /* job->attempts at the lease */
    enum lk_end end;
    uint64_t delay_ms;
    unsigned status;
    struct lk_slice provider_id;
    struct lk_slice reason;
    struct lk_response response;
    bool left;  /* the call may have reached the target: the job is `sent` from
                   now on. False: it did not, even if it was marked */
    bool doubt; /* RETRY and DEAD, not of a request: it is unknown whether the
                   call happened. The job is in `doubt` from now on */
    bool stale; /* out: another courier has taken the job, or it is finished */
    bool again; /* out: another transaction holds the job, and nothing was
                   noted: pass the end again shortly */
};

/* A lease that is renewed. The operation of a request is extended with it. */
struct lk_job_mark {
    uint64_t id;
    unsigned attempt;
    bool called; /* the call is about to leave: this is durable before it does.
                    Not for a request, which the gateway marks */
    uint64_t lease_ms;
    bool stale; /* out */
    bool again; /* out */
};

/* What the courier has room for. */
struct lk_job_want {
    struct lk_slice target;
    size_t limit;
    bool honours; /* the service honours Idempotency-Key: a lost call may be
                     repeated. For requests, job->repeatable counts */
};

/* What an operator orders, or proof shows; audited with who and why. */
enum lk_job_action_kind {
    LK_ACTION_RETRY,     /* dead or waiting: due now, all attempts forgiven, its
                           age counts from now on. What is in doubt stays so.
                           Not what was sent longer ago than its key lives */
    LK_ACTION_DROP,      /* waiting, dead, uncertain or lost: never call it */
    LK_ACTION_DELIVERED, /* the same states: it has happened */
    LK_ACTION_AGAIN,     /* uncertain or dead: it has not happened, call it
                           again; the attempt is forgiven, and it counts as
                           never sent */
    LK_ACTION_PAUSE,     /* a target: none of its jobs is leased any more */
    LK_ACTION_RESUME,
};

struct lk_job_action {
    enum lk_job_action_kind kind;
    uint64_t id;                 /* of the job */
    unsigned attempt;            /* 0: any; else only if it is the last one */
    struct lk_slice target;      /* PAUSE, RESUME */
    struct lk_slice provider_id; /* DELIVERED; may be empty */
    unsigned status;             /* DELIVERED; 0: not known */
    struct lk_slice who;
    struct lk_slice why;
    /* out: LK_OK; LK_NOT_FOUND; LK_INVALID: not in such a state, or another
     * attempt; LK_BUSY: a request, resolve its operation instead; LK_DENIED:
     * RETRY, and the service may have forgotten the key. */
    enum lk_status status_out;
    enum lk_job_state state; /* out: as it is now */
};

/* How long the service of a target remembers a key. */
struct lk_key_life {
    struct lk_slice target;
    uint64_t ms;
};

/*
 * What a batch does about jobs, made durable in one step: first its ops, then
 * ends, marks and actions, then leases. Leases settle what was lost and take at
 * most `limit` jobs for each want, the longest due first, none of a paused
 * target. The courier makes those with ends, marks and wants, the prober those
 * with ops or one action, the daemon's JOB and TARGET commands those with
 * actions.
 *
 * Its maker owns it and everything it points to, except `jobs`. From the
 * hand-over to the batcher until `done` is called, only the store thread
 * touches it. `status`: LK_OK, all of it happened. LK_UNAVAILABLE, nothing.
 * LK_UNKNOWN, perhaps all of it: ends and marks are passed again, which does no
 * harm, and leases run out by themselves. LK_INVALID: the store cannot take one
 * of the values; pass smaller pieces.
 */
struct lk_job_batch {
    struct lk_job_batch *next;
    struct lk_op **ops; /* resolutions by proof; decided as in any batch */
    size_t op_count;
    struct lk_job_end *ends;
    size_t end_count;
    struct lk_job_mark *marks;
    size_t mark_count;
    struct lk_job_action *actions;
    size_t action_count;
    const struct lk_key_life *lives; /* for RETRY; a target that is not listed:
                                        for ever */
    size_t life_count;
    const struct lk_job_want *wants;
    size_t want_count;
    uint64_t lease_ms;
    uint64_t body_max; /* bytes of headers and bodies leased together, about */
    /* Called when it is done, on the thread that did it. */
    void (*done)(struct lk_job_batch *job_batch);
    void *context;

    /* out */
    enum lk_status status;
    const char *error;   /* a constant sentence, or NULL */
    struct lk_job *jobs; /* leased; freed by lk_job_batch_clear */
    size_t job_count;
    size_t job_cap;
    uint64_t wait_ms; /* until another job of the wants is due or a lease of
                         theirs runs out; UINT64_MAX: none known */
    uint64_t lapsed;  /* jobs that became uncertain in this step */
};

/* Room for one more leased job, zeroed; NULL: out of memory. */
struct lk_job *lk_job_batch_add(struct lk_job_batch *job_batch);
/* Frees the leased jobs. */
void lk_job_batch_clear(struct lk_job_batch *job_batch);
/* Where a test may kill the daemon: the step is durable, and no one knows. */
void lk_job_batch_fault_points(const struct lk_job_batch *job_batch);

/* ---- what is shown ------------------------------------------------------- */

struct lk_jobs_query {
    bool any_state;
    bool unfinished; /* waiting, leased, uncertain, dead */
    enum lk_job_state state;
    struct lk_slice target;      /* empty: all */
    struct lk_slice tenant;      /* empty: all */
    struct lk_slice provider_id; /* empty: all */
    uint64_t number;             /* of one operation; 0: all */
    uint64_t older_than_ms;      /* older than this */
    uint64_t since_ms;           /* created at or after; 0: any time */
    uint64_t until_ms;           /* created before; 0: any time */
    uint64_t cursor;             /* 0: from the oldest; ids above it */
    size_t limit;
    bool whole; /* with headers, bodies and responses */
};

typedef bool (*lk_job_fn)(void *context, const struct lk_job *job);
typedef bool (*lk_attempt_fn)(void *context, const struct lk_attempt *attempt);

/* What a store knows about a target that has jobs or was paused. The slices are
 * valid during the call. */
struct lk_target_summary {
    struct lk_slice name;
    uint64_t jobs[LK_JOB_DELIVERED]; /* unfinished, by enum lk_job_state */
    uint64_t oldest_due_ms;          /* waiting and due; 0: none */
    uint64_t oldest_uncertain_ms;    /* uncertain since; 0: none */
    uint64_t oldest_dead_ms;
    uint64_t forgotten_ms; /* finished jobs that ended up to then may have been
                              reaped, later ones not; 0: none was */
    bool paused;
    uint64_t paused_ms;
    struct lk_slice who;
    struct lk_slice why;
};

typedef bool (*lk_target_fn)(void *context,
                             const struct lk_target_summary *summary);

#endif
