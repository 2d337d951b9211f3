/*
 * jobs.h - the outbox: calls that an operation has left, and how a store is
 * asked to lease them, to note what became of them, and to show them.
 *
 * A job belongs to one operation and has a name, unique within the operation's
 * generation. It is leased, with its attempt counted at the lease; the number
 * of the attempt is the fence: whoever ends or renews a lease shows it, and is
 * told that it is stale once somebody else has taken the job.
 *
 * The request of an asynchronous operation is a job too, the one without a
 * name. What becomes of it and of its operation are one step, always:
 *
 *   the request is      its operation is
 *   waiting             accepted
 *   leased              in progress, under the token of the lease
 *   uncertain           uncertain
 *   delivered           completed (also if the gateway completes it itself)
 *   dropped             completed with a problem, or released by an operator
 *
 * The gateway EXTENDs the operation before the app hears of the request, under
 * the token of the lease: that is what makes a request `called`, in one step
 * with the lock. Whoever takes the lease away before gives the operation
 * another token, or none, and the gateway is told that it is stale.
 *
 * A job that is leased and whose lease has run out was lost with its courier.
 * If it was never called, or may be called again, it is leased anew; else it
 * becomes uncertain. The sweeper leaves operations alone whose request is
 * unfinished: only this rule decides about them.
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

/* The target of the requests of asynchronous operations; no target of the
 * configuration can have that name. */
#define LK_TARGET_GATEWAY "@gateway"

/* What ENQUEUE and ACCEPT bring, for op->call. */
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

/* ENQUEUE is refused with this (LK_INVALID) if an earlier run has left a job of
 * that name with another target, method, path, headers or body. */
#define LK_JOB_CONFLICT                                                        \
    "ENQUEUE: the operation has a job of that name already, which makes "      \
    "another call and stands: leave this one under another name, and drop "    \
    "the first if it shall not happen"

/* What is wrong with the name of a target, or NULL: 1 to 64 of a-z, 0-9, '-',
 * '_' and '.', the first one a letter or digit. */
const char *lk_target_name_fault(struct lk_slice name);

/* A job as it is leased or shown; slices point into `text`. */
struct lk_job {
    uint64_t id;
    struct lk_name operation;
    uint64_t number;     /* of the operation: its reference */
    uint64_t generation; /* of the operation when it was queued */
    uint64_t token;      /* a request that is leased: of its operation */
    uint64_t run;        /* likewise: the operation's attempt */
    struct lk_slice name;
    struct lk_slice target;
    struct lk_slice method;
    struct lk_slice path;
    struct lk_slice headers; /* leased, or shown whole */
    struct lk_slice body;
    enum lk_job_state state;
    unsigned attempts; /* leases so far: the fence of the present one */
    unsigned forgiven; /* of these, not counted against the limit */
    bool called;       /* the present attempt may have left */
    bool sent;         /* any attempt may have left, since AGAIN */
    bool doubt;        /* one may have happened, and its answer was lost: to be
                          called again only where the key is honoured. Until
                          AGAIN says that it has not */
    bool repeatable;
    uint64_t created_ms;
    uint64_t due_ms;   /* waiting: not before; leased: the lease ends */
    uint64_t ended_ms; /* when it became what it is now; 0: waiting, leased */
    uint64_t now_ms;   /* the store's clock, at the lease */
    uint64_t since_ms; /* its age counts from here: when an operator ordered it
                          again last; 0: since it was made */
    uint64_t sent_ms;  /* if `sent`: the lease of the first attempt that may
                          have left, so no call was earlier. 0: since it was
                          made */
    /* Of the last attempt that ended: */
    unsigned status;             /* of the answer; 0: there was none */
    struct lk_slice provider_id; /* what the provider calls what it made */
    struct lk_slice reason;      /* why it failed, is dead or uncertain */
    struct lk_response answer;   /* shown whole; cut to a bound */
    struct lk_buf text;
};

void lk_job_free(struct lk_job *job);
/* Is its key over, which lives for life_ms (0: for ever) since it was sent? A
 * call of it could be a second one that the service does not know for one. */
bool lk_job_is_forgotten(bool sent, uint64_t sent_ms, uint64_t created_ms,
                         uint64_t life_ms, uint64_t now_ms);

/*
 * The Idempotency-Key that the provider gets, on every attempt: hexadecimal
 * digits and a NUL. It differs between stores, tenants, operations, their
 * generations and the names of jobs. `secret` is store->reference_secret,
 * which moves with the records.
 */
void lk_job_key(const uint8_t secret[LK_REFERENCE_KEY],
                const struct lk_job *job, char key[LK_JOB_KEY + 1]);

/* An earlier attempt that failed; the last one stands in the job itself. */
struct lk_attempt {
    unsigned number;
    uint64_t ended_ms;
    unsigned status; /* 0: no answer */
    bool called;
    struct lk_slice reason;
    struct lk_slice body; /* of the answer, cut short */
};

/* ---- what the courier asks for ------------------------------------------- */

enum lk_end {
    LK_END_DELIVERED, /* a request: the gateway has completed it already */
    LK_END_RETRY,     /* failed for now: waits delay_ms */
    LK_END_RETURN,    /* was never called: waits delay_ms, does not count */
    LK_END_UNCERTAIN, /* may have happened, and must not be repeated. A request
                         that is not `called`: RETRY, the gateway never took it
                         and its token is void from now on */
    LK_END_DEAD,      /* given up. A request: uncertain if any attempt was
                         sent, else completed with `answer` and dropped */
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
    struct lk_response answer;
    bool left;  /* it may have reached the target: the job is `sent` from now
                   on. False: it surely did not, though it may be marked */
    bool doubt; /* RETRY and DEAD, not of a request: nobody knows whether it has
                   happened. The job is in `doubt` from now on */
    bool stale; /* out: somebody else has taken it, or it is over */
    bool again; /* out: another transaction has it now, nothing was noted:
                   give it again shortly */
};

/* A lease that goes on. A request's operation is extended with it. */
struct lk_job_mark {
    uint64_t id;
    unsigned attempt;
    bool called; /* it is about to leave: durable before it does. Not of a
                    request: the gateway says so */
    uint64_t lease_ms;
    bool stale; /* out */
    bool again; /* out */
};

/* What the courier has room for. */
struct lk_job_want {
    struct lk_slice target;
    size_t limit;
    bool honours; /* the target's service honours Idempotency-Key: a lost
                     call may be made again. Requests: job->repeatable says */
};

/* An operator's word, or proof; audited with who and why. */
enum lk_job_action_kind {
    LK_ACTION_RETRY,     /* dead or waiting: due now, all attempts forgiven, its
                           age counts from now on. What is in doubt stays so.
                           Not what was sent longer ago than its key lives */
    LK_ACTION_DROP,      /* waiting, dead, uncertain or lost: never */
    LK_ACTION_DELIVERED, /* likewise: it has happened */
    LK_ACTION_AGAIN,     /* uncertain or dead: it has not happened, call it
                           again; the attempt is forgiven, and it counts as
                           never sent */
    LK_ACTION_PAUSE,     /* a target: nothing of it is leased any more */
    LK_ACTION_RESUME,
};

struct lk_job_action {
    enum lk_job_action_kind order;
    uint64_t id;            /* of the job */
    unsigned attempt;       /* 0: whatever; else only if it is the last one */
    struct lk_slice target; /* PAUSE, RESUME */
    struct lk_slice provider_id; /* DELIVERED; may be empty */
    unsigned status;             /* DELIVERED; 0: not known */
    struct lk_slice who;
    struct lk_slice why;
    /* out: LK_OK; LK_NOT_FOUND; LK_INVALID: not in such a state, or another
     * attempt; LK_BUSY: a request, whose operation is to be resolved;
     * LK_DENIED: RETRY, and its key may be forgotten. */
    enum lk_status status_out;
    enum lk_job_state state; /* out: as it is now */
};

/* How long the service of a target remembers a key. */
struct lk_key_life {
    struct lk_slice target;
    uint64_t ms;
};

/*
 * One durable step of the courier's, part of a batch. First the operations,
 * then ends, marks and orders, then leases: what is lost is settled, and at
 * most `limit` jobs for each want are leased, the longest due first, none of a
 * paused target. `status` LK_OK: all of it happened. LK_UNAVAILABLE: nothing.
 * LK_UNKNOWN: perhaps all of it; ends and marks are then given again (they do
 * no harm twice), and what was leased runs out by itself.
 */
struct lk_job_batch {
    struct lk_job_batch *next;
    struct lk_op **ops; /* resolutions by proof; decided as in any batch */
    size_t op_count;
    struct lk_job_end *ends;
    size_t end_count;
    struct lk_job_mark *marks;
    size_t mark_count;
    struct lk_job_action *orders;
    size_t order_count;
    const struct lk_key_life *lives; /* for RETRY; not here: for ever */
    size_t life_count;
    const struct lk_job_want *wants;
    size_t want_count;
    uint64_t lease_ms;
    uint64_t body_max; /* of headers and bodies leased together, about */
    /* Told when it is done, on the thread that did it. */
    void (*done)(struct lk_job_batch *job_batch);
    void *context;

    /* out */
    enum lk_status status;
    const char *error;   /* a constant sentence, or NULL */
    struct lk_job *jobs; /* leased; freed by lk_job_batch_clear */
    size_t job_count;
    size_t job_cap;
    uint64_t wait_ms; /* until another job of the wants is due, or a lease of
                         theirs may be lost; UINT64_MAX: none known */
    uint64_t lapsed;  /* jobs that became uncertain in this step */
};

/* Room for one more leased job, zeroed; NULL: out of memory. */
struct lk_job *lk_job_batch_add(struct lk_job_batch *job_batch);
/* Frees what came out, and forgets it. */
void lk_job_batch_clear(struct lk_job_batch *job_batch);
/* Where a test may kill: it is durable, and nobody has been told. */
void lk_job_batch_fault_points(const struct lk_job_batch *job_batch);

/* ---- what is shown ------------------------------------------------------- */

struct lk_jobs_query {
    bool any_state;
    bool unfinished; /* waiting, leased, uncertain, dead */
    enum lk_job_state state;
    struct lk_slice target;      /* empty: every one */
    struct lk_slice tenant;      /* empty: every one */
    struct lk_slice provider_id; /* empty: every one */
    uint64_t number;             /* of one operation; 0: all */
    uint64_t older_than_ms;      /* created at least that long ago */
    uint64_t since_ms;           /* created at or after; 0: any time */
    uint64_t until_ms;           /* created before; 0: any time */
    uint64_t cursor;             /* 0: from the oldest; ids above it */
    size_t limit;
    bool whole; /* with headers, bodies and answers */
};

typedef bool (*lk_job_fn)(void *context, const struct lk_job *job);
typedef bool (*lk_attempt_fn)(void *context, const struct lk_attempt *attempt);

/* What a store knows of a target: one that has jobs, or was paused. */
struct lk_target_summary {
    struct lk_slice name;
    uint64_t jobs[LK_JOB_DELIVERED]; /* unfinished, by enum lk_job_state */
    uint64_t oldest_due_ms;          /* waiting and due; 0: none */
    uint64_t oldest_uncertain_ms;    /* since when; 0: none */
    uint64_t oldest_dead_ms;
    uint64_t forgotten_ms; /* its finished jobs that ended until then may be
                              gone, none that ended later; 0: none is */
    bool paused;
    uint64_t paused_ms;
    struct lk_slice who;
    struct lk_slice why;
};

typedef bool (*lk_target_fn)(void *context,
                             const struct lk_target_summary *standing);

#endif
