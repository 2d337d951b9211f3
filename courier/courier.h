/*
 * courier.h - what the files of the courier share.
 *
 *   delivery        one leased job in the courier's hands (delivery.c)
 *   live target     a target as the courier runs it (live_target.c)
 *   courier batch   a job batch for the store, and the deliveries and live
 *                   targets that it is about (courier_batch.c)
 *
 * The file that owns a thing opens with the table of its life.
 *
 * Threads. The courier's thread owns everything here. Other threads touch only
 * the inbox of struct lk_courier, a batch's `done` and a live target's `shown`,
 * all under the courier's mutex, and a live target's rate under its own mutex.
 * The store owns a courier batch from when it is given until it is done.
 *
 * What holds for calls:
 *
 * - A call leaves only under a lease that is valid by this thread's own clock.
 *   That clock also runs while the process is stopped or the machine sleeps.
 * - To a target that does not honour the key, a call leaves only after the
 *   store has confirmed a mark with `called` for this very attempt. After a
 *   crash the store then knows that the call may have left. The gateway marks
 *   an asynchronous request itself (store/jobs.h).
 * - A call that runs is not affected when its lease is lost (its mark is
 *   stale): the call cannot be taken back. Its end will be stale too.
 *
 * What holds for batches. Several may be in the store at the same time; they
 * end in any order, or fail:
 *
 * - A delivery is in one batch at a time (delivery->batch). While it is, it is
 *   not freed, and it is in no queue but the `ready` queue of its live target.
 *   Its call may leave or end while its lease is being renewed; its mark or its
 *   end then waits until that batch is done.
 * - A live target is asked for in one batch at a time (live->asked). So its
 *   room is counted once, and no batch has to skip rows that another batch has
 *   locked.
 * - Leasing from a target also settles the target's lost leases. A lease of our
 *   own must never look lost. Therefore no target is asked for while a lease
 *   waits to be renewed, or while a batch has been in the store for a third of
 *   the lease time. A single target is not asked for while one of its leases is
 *   nearly over and is in another batch or behind an end that waits. Within one
 *   batch the store handles ends and marks first.
 * - After a failure, nothing is leased together with ends and marks, in the
 *   same batch or in another one, until a batch that was given after the
 *   failure has succeeded.
 * - The ends and marks of a batch whose outcome is unknown are given again.
 * What it was to lease is not: those leases run out by themselves. The batch
 * waits before it is given again; the other batches do not.
 * - If the store refuses a batch for good because of one of its ends, the ends
 *   are given again in halves until that one is alone. That end is dropped, and
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
    LK_JOB_BATCH_ENDS = 1024, /* ends, and also marks, of one batch at most */
    LK_HELD_BYTES = 64 << 20, /* of jobs in our hands: half for the targets that
                                 come first, half in equal shares */
    LK_LAST_ERROR = 160,
};

/* delivery.c has the table of a delivery's life. */
enum lk_delivery_state {
    LK_DELIVERY_READY,
    LK_DELIVERY_MARKING,
    LK_DELIVERY_RUNNING,
    LK_DELIVERY_ENDED,
};

struct lk_delivery {
    struct lk_delivery *next; /* in at most one queue, or in courier->spare */
    struct lk_delivery *prev_of_all, *next_of_all; /* courier->deliveries */
    struct lk_live_target *live;                   /* never NULL */
    struct lk_courier_batch *batch; /* that has it in the store; NULL: none */
    struct lk_job job;              /* owned; moved here from the lease */
    enum lk_delivery_state state;
    uint64_t leased_ms; /* our clock when the job was asked for: the start of
                           what we know of the store's clock */
    uint64_t lease_from_ms; /* our clock when the lease was last asked for, once
                               the store has confirmed it. 0: its length has
                               changed, it must be renewed before a call */
    bool marked;            /* the store has this attempt as called */
    bool lost;              /* another courier has the job: no more marks */
    bool honours;           /* the target honoured the key when the call left */
    bool trial;             /* the one call of a half-open circuit; counted in
                               live->trials */
    struct lk_exchange *exchange; /* RUNNING: not NULL */
    /* ENDED: */
    struct lk_result result;
    bool returned;   /* the end is LK_END_RETURN: it never left */
    bool unstored;   /* nothing is to be stored: it is only freed */
    size_t ends_max; /* given in a batch of at most this many ends; 1 once it is
                        suspected to be the end that the store refuses */
    bool sent;       /* the service may have received it */
    uint64_t delay_ms; /* RETRY and RETURN: until it is due again */
    unsigned status;   /* of the response; 0: none */
    struct lk_buf headers;
    struct lk_buf body;
    struct lk_buf provider_id;
};

/* A queue; first in, first out. */
struct lk_deliveries {
    struct lk_delivery *head;
    struct lk_delivery **tail; /* valid while there is a head */
    size_t count;
};

/* What other threads see of a live target. */
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
    struct lk_live_target *next; /* never removed: pointers stay valid */
    char name[LK_TARGET_NAME_MAX + 1];
    bool gateway;             /* the gateway's internal socket, for requests */
    bool configured;          /* false: only what is in hand is finished */
    struct lk_targets own;    /* a copy of its settings: one target */
    struct lk_target *target; /* own.targets or `internal`; NULL: neither yet */
    struct lk_target internal; /* the gateway's; its strings belong to
                                  courier->settings */
    struct lk_deliveries ready;
    size_t busy;     /* deliveries that are MARKING or RUNNING; at most
                        target->concurrency when a call begins */
    size_t trials;   /* deliveries in hand with `trial` */
    size_t prefetch; /* jobs to lease beyond the number of calls at once */
    size_t ended;    /* calls since it was last asked for */
    size_t leased;   /* by the batch whose result is being read */
    size_t bytes;    /* of its jobs in hand */
    bool asked;      /* a batch in the store asks for its jobs */
    bool late;       /* a lease of ours could look lost to the batch that is
                        being filled */
    uint64_t next_ask_ms; /* a job may be due from then on, for all that is
                             known outside the batch that asks */
    struct lk_circuit circuit;
    struct lk_rate rate; /* under rate_mutex: the prober has a share */
    uv_mutex_t rate_mutex;
    struct lk_exchange **idle; /* handles to use again */
    size_t idle_count;
    size_t idle_cap;
    bool dirty;                       /* `now` differs from `shown` */
    struct lk_live_target_view now;   /* the courier's thread's */
    struct lk_live_target_view shown; /* under the courier's mutex */
};

/* What the courier takes from the configuration. */
struct lk_courier_settings {
    struct lk_targets targets;
    char *gateway; /* path of its socket; NULL: none */
    uint64_t gateway_timeout_ms;
    uint64_t gateway_concurrency;
    uint64_t gateway_attempts;
    uint64_t gateway_max_age_ms;
    uint64_t lease_ms;       /* how long a lease lasts */
    uint64_t lease_batch;    /* jobs leased at once at most */
    uint64_t response_bytes; /* of a response body that are stored at most */
    uint64_t poll_ms;
};

/* courier_batch.c has the table of its life. The arrays belong together index
 * by index: ends[i] is the end of end_deliveries[i]. */
struct lk_courier_batch {
    struct lk_job_batch job_batch;
    struct lk_courier *courier;
    bool in_store;      /* given and not yet done */
    uint64_t number;    /* 1, 2, ... in the order in which they were given */
    uint64_t given_ms;  /* our clock, just before it was given */
    uint64_t oldest_ms; /* the earliest lease_from_ms of its deliveries */
    unsigned fails;     /* in a row */
    uint64_t retry_ms;  /* after a failure: not given again before */
    struct lk_job_end ends[LK_JOB_BATCH_ENDS];
    struct lk_delivery *end_deliveries[LK_JOB_BATCH_ENDS];
    struct lk_job_mark marks[LK_JOB_BATCH_ENDS];
    struct lk_delivery *mark_deliveries[LK_JOB_BATCH_ENDS];
    size_t mark_queued; /* marks before this index let a call leave; the others
                           only renew a lease */
    struct lk_job_want *wants;
    struct lk_live_target **want_targets;
    size_t want_cap;
    bool done; /* set by the store's thread, under the courier's mutex */
};

struct lk_courier {
    struct lk_store *store;
    void (*give_fn)(void *context, struct lk_job_batch *job_batch);
    void (*ended_fn)(void *context); /* called at the thread's end; or NULL */
    void *context;
    struct lk_prober *prober;     /* NULL: no probes */
    struct lk_stranded *stranded; /* NULL: the store keeps no jobs */
    struct lk_courier_settings *settings;
    struct lk_poll poll;
    struct lk_chance chance;
    struct lk_live_target *live_targets;
    uint64_t now_ms; /* of this turn of the loop */

    struct lk_delivery *deliveries; /* all in hand, linked both ways */
    size_t delivery_count;
    size_t delivery_bytes;
    struct lk_delivery *spare; /* to use again */
    size_t spare_count;
    struct lk_deliveries marking; /* to be marked by the next batch */
    struct lk_deliveries ended;   /* to be ended by the next batch */
    struct lk_deliveries later; /* of both, those whose row another transaction
                                   has locked: due again at later_ms */
    uint64_t later_ms;
    uint64_t renew_ms;   /* when the next lease is to be renewed */
    size_t running;      /* deliveries that are RUNNING */
    struct lk_buf extra; /* headers of the call that is being built */

    struct lk_courier_batch
        *batches; /* as many as the store works on at once */
    size_t batch_count;
    uint64_t moved_ms;            /* when a batch was last given or done */
    uint64_t batches_given;       /* the number of the last one */
    uint64_t failed_number;       /* batches_given at the last failure */
    unsigned store_failures;      /* in a row */
    bool unsure;                  /* no batch has succeeded since a failure */
    struct lk_live_target *first; /* the next batch asks from here on; NULL: any
                                   */

    bool stopping;
    uint64_t stop_ms; /* running calls are given up then */

    uv_thread_t thread;
    /* Guards the inbox below, every batch's `done`, every live target's `shown`
     * and the list of live targets against other threads. */
    uv_mutex_t mutex;
    bool woken;
    bool stop_asked;
    uint64_t grace_ms;
    struct lk_courier_settings *fresh; /* of a reload, not adopted yet */
};

/* Lowers *ms to `to` if that is earlier. */
static inline void lk_lower_ms(uint64_t *ms, uint64_t to)
{
    *ms = to < *ms ? to : *ms;
}

/* ---- courier.c ----------------------------------------------------------- */

uint64_t lk_courier_clock_ms(void);
uint64_t lk_courier_wall_ms(void);

/* ---- live_target.c ------------------------------------------------------- */

LK_MUST_CHECK enum lk_status lk_courier_settings_make(
    const struct lk_config *config, struct lk_courier_settings **settings);
void lk_courier_settings_free(struct lk_courier_settings *settings);
/* Takes over new settings, which the courier then owns. What is in hand goes
 * on. */
void lk_courier_adopt(struct lk_courier *courier,
                      struct lk_courier_settings *settings);

/* NULL: there is none yet. The courier's thread, or under its mutex. */
struct lk_live_target *lk_live_target_find(const struct lk_courier *courier,
                                           const char *name);
/* How many jobs it has room for now. *again_ms is lowered to when to ask again
 * at the latest; unchanged: the end of a call makes room. */
size_t lk_live_target_room(const struct lk_courier *courier,
                           struct lk_live_target *live, uint64_t *again_ms);
/* May one of its ready deliveries leave now? If not, *again_ms as above. */
bool lk_live_target_may_call(const struct lk_courier *courier,
                             struct lk_live_target *live, uint64_t *again_ms);
/* A call begins: takes a token from the rate. */
void lk_live_target_spend(struct lk_live_target *live);
/* The same for the prober, with the courier as context: returns how long it has
 * to wait before it may call. Any thread. */
uint64_t lk_courier_reserve_call(void *courier, const struct lk_target *target);
/* Counts the end of a call, and moves the circuit. If the circuit opens, the
 * ready deliveries are returned. */
void lk_live_target_note_end(struct lk_courier *courier,
                             struct lk_delivery *delivery);
/* A handle with the target's options, or NULL: out of memory. */
struct lk_exchange *lk_live_target_take_exchange(struct lk_live_target *live);
void lk_live_target_put_exchange(struct lk_live_target *live,
                                 struct lk_exchange *exchange);
void lk_live_target_drop_exchanges(struct lk_live_target *live);
void lk_live_target_free(struct lk_live_target *live);
/* Makes `now` of every live target visible to other threads. */
void lk_courier_publish(struct lk_courier *courier);

/* ---- delivery.c ---------------------------------------------------------- */

void lk_deliveries_add(struct lk_deliveries *queue,
                       struct lk_delivery *delivery);
/* NULL: it is empty. */
struct lk_delivery *lk_deliveries_take(struct lk_deliveries *queue);
bool lk_deliveries_remove(struct lk_deliveries *queue,
                          struct lk_delivery *delivery);

/* Makes a READY delivery, in no queue yet, of a job that this batch has leased:
 * the job moves out of `job`. NULL: out of memory, the lease runs out. */
struct lk_delivery *lk_delivery_make(struct lk_courier *courier,
                                     const struct lk_courier_batch *batch,
                                     struct lk_live_target *live,
                                     struct lk_job *job);
/* Its end is stored, or the job is lost. It is in no batch and in no queue. */
void lk_delivery_free(struct lk_courier *courier, struct lk_delivery *delivery);
void lk_delivery_free_spare(struct lk_courier *courier);
/* It is ENDED: result, delay_ms and the rest are set. It may be freed. */
void lk_delivery_end(struct lk_courier *courier, struct lk_delivery *delivery);
/* It was not called, and is due again for any courier after delay_ms. */
void lk_delivery_return(struct lk_courier *courier,
                        struct lk_delivery *delivery, uint64_t delay_ms,
                        const char *reason);
/* Its batch is done: what has waited for that is queued, or freed. */
void lk_delivery_leave_batch(struct lk_courier *courier,
                             struct lk_delivery *delivery);

/* Starts the calls that are ready and may leave. *again_ms is lowered to when
 * it makes sense to try again. Returns how many calls have begun. */
size_t lk_calls_start(struct lk_courier *courier, uint64_t *again_ms);
/* The store has confirmed the mark: the call may leave. It has its place among
 * the target's calls already. */
void lk_calls_marked(struct lk_courier *courier, struct lk_delivery *delivery);
/* Reads what curl has finished; returns how many calls have ended. */
size_t lk_calls_run(struct lk_courier *courier);
/* Gives up all running calls, or only those of the gateway, which goes on with
 * its requests alone. */
void lk_calls_abandon(struct lk_courier *courier, bool all);

/* ---- gateway_request.c --------------------------------------------------- */

/* Appends the headers that name the operation of the request. LK_INVALID: a
 * name does not fit into a header. */
LK_MUST_CHECK enum lk_status lk_request_headers(const struct lk_store *store,
                                                const struct lk_job *job,
                                                struct lk_buf *headers);
/* As lk_result_of. */
void lk_request_result(bool repeatable, const struct lk_http_response *response,
                       struct lk_result *result);
/* May the app have received it? The gateway may know that it never sent it. */
bool lk_request_left(const struct lk_http_response *response);
/* Sets the response of a request that was given up and never sent: a problem
 * document. */
LK_MUST_CHECK enum lk_status lk_request_problem(const struct lk_store *store,
                                                struct lk_delivery *delivery);

/* ---- stranded_jobs.c ----------------------------------------------------- */

LK_MUST_CHECK enum lk_status lk_stranded_start(struct lk_courier *courier,
                                               struct lk_stranded **stranded);
/* The targets have changed: checks now, and may warn of a name again. */
void lk_stranded_recheck(struct lk_stranded *stranded);
void lk_stranded_stop(struct lk_stranded *stranded); /* NULL is fine */

/* ---- courier_batch.c ----------------------------------------------------- */

/* Gives the store what there is to do, as long as a batch is free. *again_ms is
 * lowered to when there will be something to do. */
void lk_courier_batches_give(struct lk_courier *courier, uint64_t *again_ms);
/* Has the store a batch of ours? */
bool lk_courier_batches_pending(const struct lk_courier *courier);
/* Everything in `later` is due again now. */
void lk_courier_batches_recall(struct lk_courier *courier);
/* The store is done with it: takes over the result, or all of it back. */
void lk_courier_batch_done(struct lk_courier *courier,
                           struct lk_courier_batch *batch);
/* When a lease that was asked for in this batch begins, by our clock. 0: the
 * length of leases has changed since, so it must be renewed. */
uint64_t lk_courier_batch_lease_from_ms(const struct lk_courier_batch *batch);

#endif
