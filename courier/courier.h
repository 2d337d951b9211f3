/*
 * courier.h - what the files of the courier share.
 *
 * All of it is the courier's own thread's, but for the inbox and what is shown,
 * each under the mutex. An *errand* is a leased job in the courier's hands, an
 * *outlet* a target as it runs here.
 *
 * A *step* is a work that the store has, and what it is about. An errand's way,
 * and what holds on it:
 *
 *   READY    leased; nothing has left. May be given back at any time.
 *   MARKING  waits until the store has confirmed a mark. Has its place among
 *            the target's calls already. Nothing has left.
 *   RUNNING  curl has it. From here on it may have reached the target.
 *   ENDED    what became of it is known here and must be stored; it is given
 *            to the store until the store has confirmed it, or has said that
 *            it is stale.
 *
 * - A call leaves only under a lease that is valid by this thread's own clock,
 *   which goes on while the process is stopped and the machine sleeps.
 * - To a target that does not honour the key it leaves only after a mark with
 *   `called` was confirmed for this very attempt: after a crash the store knows
 *   that it may have left. The gateway marks a request itself (store/jobs.h).
 * - A lease that is lost while its call runs (a mark is stale) changes nothing
 *   for the call: it cannot be called back. Its end will be stale.
 *
 * Several steps may be under way, and end in any order, or fail:
 *
 * - An errand is in one step at a time (errand->step), and meanwhile neither
 *   freed nor in any queue but its outlet's `ready`. A call may leave or end
 *   while its lease is renewed; its mark or its end then waits until that step
 *   is done.
 * - A target is asked for in one step at a time (outlet->asked): what it may
 *   have is counted once, and no step has to look past what another one has
 *   locked.
 * - Leasing settles what is lost of the targets that are asked for. So none is
 *   asked for while a lease of our own may seem lost: while one waits to be
 *   renewed, or while a step has been under way for a third of a lease; nor is
 *   a target with a lease that is in another step, or behind an end that waits,
 *   and nearly over. In the same step ends and marks come first.
 * - After a failure nothing is leased together with ends and marks, in one step
 *   or in two, until a step that was given later has succeeded.
 * - A step whose outcome is unknown is given again, but for what it was to
 *   lease: that runs out by itself. It waits before it is given again; the
 *   others do not.
 * - Ends of a step that the store will never take, because of one of them, are
 *   given again in halves, and that one in the end alone: it is dropped, and
 *   its lease runs out.
 */
#ifndef LK_COURIER_H
#define LK_COURIER_H

#include "courier/call_result.h"
#include "courier/curl_poll.h"
#include "courier/http_call.h"
#include "courier/pacing.h"
#include "daemon/outbox.h"

#include <uv.h>

struct lk_prober;
struct lk_courier_batch;
struct lk_stranded;

enum {
    LK_JOB_BATCH_ENDS = 1024, /* ends and marks of one step, at most */
    LK_HELD_BYTES = 64 << 20, /* of jobs in our hands: half for who comes
                                 first, half in equal shares */
    LK_LAST_ERROR = 160,
};

enum lk_delivery_state {
    LK_DELIVERY_READY,
    LK_DELIVERY_MARKING,
    LK_DELIVERY_RUNNING,
    LK_DELIVERY_ENDED,
};

struct lk_delivery {
    struct lk_delivery *next; /* in a queue, or among the free ones */
    struct lk_delivery *prev_of_all, *next_of_all; /* of all that are in hand */
    struct lk_live_target *live;
    struct lk_courier_batch *batch; /* that is under way with it; NULL: none */
    struct lk_job job;
    enum lk_delivery_state state;
    uint64_t leased_ms;     /* when its lease was asked for, by our clock */
    uint64_t lease_from_ms; /* when the lease was last asked for and confirmed;
                          0: it was for another time, and must be renewed */
    bool marked;            /* the store has it as called, this attempt */
    bool lost;              /* somebody else has the job: no more marks */
    bool honours;           /* as it was when the call left */
    bool trial; /* the one call of a half-open circuit: in `trials` */
    struct lk_exchange *exchange; /* while it runs */
    /* Ended: */
    struct lk_result result;
    bool returned;   /* LK_END_RETURN instead */
    bool unstored;   /* nothing is to be stored: it is only freed */
    size_t ends_max; /* with so many ends in one step, at most */
    bool sent;
    uint64_t delay_ms;
    unsigned status;
    struct lk_buf headers;
    struct lk_buf body;
    struct lk_buf provider_id;
};

struct lk_deliveries {
    struct lk_delivery *head;
    struct lk_delivery **tail;
    size_t count;
};

/* What is shown of an outlet; under the courier's mutex. */
struct lk_live_target_view {
    bool configured;
    size_t in_flight;
    uint64_t delivered;
    uint64_t failed;
    uint64_t dead;
    uint64_t uncertain;
    enum lk_circuit_state circuit;
    uint64_t circuit_until_ms;
    char last_error[LK_LAST_ERROR];
};

struct lk_live_target {
    struct lk_live_target *next; /* never removed: a name stays valid */
    char name[LK_TARGET_NAME_MAX + 1];
    bool gateway;
    bool configured;           /* else only what is in hand is finished */
    struct lk_targets own;     /* one target: its settings, a copy */
    struct lk_target *target;  /* own.targets, or `internal` */
    struct lk_target internal; /* the gateway's; strings are the settings' */
    struct lk_deliveries ready;
    size_t busy;          /* marking or running */
    size_t trials;        /* in hand, leased while the circuit was half-open */
    size_t prefetch;      /* leased beyond the number of calls at once */
    size_t ended;         /* calls since it was last asked for */
    size_t leased;        /* by the step that is being digested */
    size_t bytes;         /* of its jobs in hand */
    bool asked;           /* a step is under way that asks for its jobs */
    bool late;            /* a lease of ours might seem lost; of the step that
                             is being filled */
    uint64_t next_ask_ms; /* a job may be due from then on, for all that is
                             known but to the step that asks */
    struct lk_circuit circuit;
    struct lk_rate rate;
    uv_mutex_t rate_mutex;     /* guards it: the prober has a share */
    struct lk_exchange **idle; /* handles to use again */
    size_t idle_count;
    size_t idle_cap;
    bool dirty; /* `now` differs from `shown` */
    struct lk_live_target_view now;
    struct lk_live_target_view shown;
};

/* What the courier takes from the configuration. */
struct lk_courier_settings {
    struct lk_targets targets;
    char *gateway; /* NULL: none */
    uint64_t gateway_timeout_ms;
    uint64_t gateway_concurrency;
    uint64_t gateway_attempts;
    uint64_t gateway_max_age_ms;
    uint64_t lease_ms;
    uint64_t lease_batch;
    uint64_t response_bytes;
    uint64_t poll_ms;
};

/* A work, and what it is about, index by index. Once it is given, all of it is
 * the store's until it is done. */
struct lk_courier_batch {
    struct lk_job_batch job_batch;
    struct lk_courier *courier;
    bool in_store;
    uint64_t number; /* in the order in which they were given */
    uint64_t given_ms;
    uint64_t oldest_ms; /* lease_ms of what it ends and marks, at least */
    unsigned fails;     /* in a row */
    uint64_t retry_ms;  /* after a failure: not before */
    struct lk_job_end ends[LK_JOB_BATCH_ENDS];
    struct lk_delivery *end_deliveries[LK_JOB_BATCH_ENDS];
    struct lk_job_mark marks[LK_JOB_BATCH_ENDS];
    struct lk_delivery *mark_deliveries[LK_JOB_BATCH_ENDS];
    size_t mark_queued; /* the first so many wait for their mark */
    struct lk_job_want *wants;
    struct lk_live_target **want_targets;
    size_t want_cap;
    bool done; /* under the courier's mutex */
};

struct lk_courier {
    struct lk_store *store;
    void (*give_fn)(void *context, struct lk_job_batch *job_batch);
    void (*ended_fn)(void *context); /* NULL: nobody is told of the end */
    void *context;
    struct lk_prober *prober;     /* NULL: none */
    struct lk_stranded *stranded; /* likewise */
    struct lk_courier_settings *settings;
    struct lk_poll poll;
    struct lk_chance chance;
    struct lk_live_target *live_targets;
    uint64_t now_ms; /* of this turn of the loop */

    struct lk_delivery *deliveries; /* all errands, linked both ways */
    size_t delivery_count;
    size_t delivery_bytes;
    struct lk_delivery *spare; /* to use again */
    size_t spare_count;
    struct lk_deliveries marking; /* to be marked by the next step */
    struct lk_deliveries ended;   /* to be ended by the next step */
    struct lk_deliveries later;   /* of both, what a transaction of somebody
                                  else's has now: after later_ms */
    uint64_t later_ms;
    uint64_t renew_ms; /* when the next lease is to be renewed */
    size_t running;
    struct lk_buf extra; /* headers of the call that is being built */

    struct lk_courier_batch *batches; /* as many as may be under way */
    size_t batch_count;
    uint64_t moved_ms;            /* when one was last given or done */
    uint64_t batches_given;       /* given so far */
    uint64_t failed_number;       /* `works` when one failed last */
    unsigned store_failures;      /* in a row, of those given after a failure */
    bool unsure;                  /* one failed, and none has succeeded since */
    struct lk_live_target *first; /* of the next step's wants; NULL: any */

    bool stopping;
    uint64_t stop_ms; /* running calls are given up then */

    uv_thread_t thread;
    uv_mutex_t
        mutex; /* guards all below, every step's `done`, every outlet's
                  `shown` and the list of outlets against other threads */
    bool woken;
    bool stop_asked;
    uint64_t grace_ms;
    struct lk_courier_settings *fresh;
};

/* Lowers *ms to `to` if that is earlier. */
static inline void lk_lower_ms(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

/* ---- courier.c ----------------------------------------------------------- */

uint64_t lk_courier_clock_ms(void);
uint64_t lk_courier_wall_ms(void);

/* ---- settings.c ---------------------------------------------------------- */

LK_MUST_CHECK enum lk_status lk_courier_settings_make(
    const struct lk_config *config, struct lk_courier_settings **settings);
void lk_courier_settings_free(struct lk_courier_settings *settings);
/* Takes new settings over; what is in hand goes on. */
void lk_courier_adopt(struct lk_courier *courier,
                      struct lk_courier_settings *settings);

/* ---- outlet.c ------------------------------------------------------------ */

/* NULL: there is none yet. The courier's thread, or under its mutex. */
struct lk_live_target *lk_live_target_find(const struct lk_courier *courier,
                                           const char *name);
/* How many jobs it has room for now; *again_ms: ask again then, at the latest
 * (UINT64_MAX: an end will tell). */
size_t lk_live_target_room(const struct lk_courier *courier,
                           struct lk_live_target *live, uint64_t *again_ms);
/* May one of its ready errands leave now? else *again_ms as above. */
bool lk_live_target_may_call(const struct lk_courier *courier,
                             struct lk_live_target *live, uint64_t *again_ms);
/* A call begins: it is taken from the rate. */
void lk_live_target_spend(struct lk_live_target *live);
/* The same for the prober, with the courier: how long it has to wait before it
 * may call. Any thread. */
uint64_t lk_courier_reserve_call(void *courier, const struct lk_target *target);
/* Counts an end, and moves the circuit. */
void lk_live_target_note_end(struct lk_courier *courier,
                             struct lk_delivery *delivery);
/* A handle with the outlet's options, or NULL: out of memory. */
struct lk_exchange *lk_live_target_take_exchange(struct lk_live_target *live);
void lk_live_target_put_exchange(struct lk_live_target *live,
                                 struct lk_exchange *exchange);
void lk_live_target_drop_exchanges(struct lk_live_target *live);
void lk_live_target_free(struct lk_live_target *live);
/* Makes `now` visible to others. */
void lk_courier_publish(struct lk_courier *courier);

/* ---- errand.c ------------------------------------------------------------ */

void lk_deliveries_add(struct lk_deliveries *queue,
                       struct lk_delivery *delivery);
struct lk_delivery *lk_deliveries_take(struct lk_deliveries *queue);
bool lk_deliveries_remove(struct lk_deliveries *queue,
                          struct lk_delivery *delivery);

/* Takes a job over that was leased in this step: it moves out of `job`. NULL:
 * out of memory, and the lease runs out by itself. */
struct lk_delivery *lk_delivery_make(struct lk_courier *courier,
                                     const struct lk_courier_batch *batch,
                                     struct lk_live_target *live,
                                     struct lk_job *job);
/* Its end is stored, or it is lost. It is in no step. */
void lk_delivery_free(struct lk_courier *courier, struct lk_delivery *delivery);
void lk_delivery_free_spare(struct lk_courier *courier);
/* It is now ENDED: result, delay_ms and the rest are set. It may be gone. */
void lk_delivery_end(struct lk_courier *courier, struct lk_delivery *delivery);
/* It was not called, and somebody may try after delay_ms. */
void lk_delivery_return(struct lk_courier *courier,
                        struct lk_delivery *delivery, uint64_t delay_ms,
                        const char *reason);
/* It has its place among the calls, and is now MARKING. */
void lk_delivery_mark(struct lk_courier *courier, struct lk_delivery *delivery);
/* Its step is done: what has waited for that is queued, or gone. */
void lk_delivery_leave_batch(struct lk_courier *courier,
                             struct lk_delivery *delivery);

/* ---- calls.c ------------------------------------------------------------- */

/* Lets leave what is ready and may. *again_ms is lowered to when it makes sense
 * to try again. Returns how many calls have begun. */
size_t lk_calls_start(struct lk_courier *courier, uint64_t *again_ms);
/* A mark was confirmed: the call may leave. Its place is its own already. */
void lk_calls_marked(struct lk_courier *courier, struct lk_delivery *delivery);
/* Looks after curl's calls; returns how many have ended. */
size_t lk_calls_run(struct lk_courier *courier);
/* Gives all running ones up, or only those of the gateway, which goes on with
 * them. */
void lk_calls_abandon(struct lk_courier *courier, bool all);

/* ---- gateway.c ----------------------------------------------------------- */

/* Appends the headers that tell the gateway whose request it is. LK_INVALID: a
 * name does not fit into one. */
LK_MUST_CHECK enum lk_status lk_request_headers(const struct lk_store *store,
                                                const struct lk_job *job,
                                                struct lk_buf *headers);
/* As lk_result_of. */
void lk_request_result(bool repeatable, const struct lk_http_response *response,
                       struct lk_result *result);
/* May the app have heard of it? The gateway knows more than that it was sent.
 */
bool lk_request_left(const struct lk_http_response *response);
/* The answer of a request that was given up and never sent. */
LK_MUST_CHECK enum lk_status lk_request_problem(const struct lk_store *store,
                                                struct lk_delivery *delivery);

/* ---- watch.c ------------------------------------------------------------- */

LK_MUST_CHECK enum lk_status lk_stranded_start(struct lk_courier *courier,
                                               struct lk_stranded **stranded);
/* The targets have changed: what was said before may be said again. */
void lk_stranded_recheck(struct lk_stranded *stranded);
void lk_stranded_stop(struct lk_stranded *stranded); /* NULL is fine */

/* ---- dispatch.c ---------------------------------------------------------- */

/* Gives the store what there is to do, as long as a step is free. *again_ms is
 * lowered to when there will be something to do. */
void lk_courier_batches_give(struct lk_courier *courier, uint64_t *again_ms);
bool lk_courier_batches_pending(const struct lk_courier *courier);
/* What was put off is due again, all of it. */
void lk_courier_batches_recall(struct lk_courier *courier);

/* ---- digest.c ------------------------------------------------------------ */

/* The store is done with it: nothing of it is under way any more. */
void lk_courier_batch_done(struct lk_courier *courier,
                           struct lk_courier_batch *batch);
/* When the lease that was asked for in this step counts from; 0: it was for
 * another time than it is now, and must be renewed. */
uint64_t lk_courier_batch_lease_from_ms(const struct lk_courier_batch *batch);

#endif
