/*
 * prober.h - the prober: asks services what became of uncertain jobs and
 * operations, on a thread of its own, and resolves what is proved.
 */
#ifndef LK_PROBER_H
#define LK_PROBER_H

#include "courier/probe_rules.h"
#include "daemon/outbox.h"

#include <stdatomic.h>
#include <uv.h>

struct lk_prober;

/* Of the calls that a target may have: how long to wait before one of ours. */
typedef uint64_t (*lk_reserve_fn)(void *context,
                                  const struct lk_target *target);

/* Copies what it needs of setup->config; the rest outlives it. A failure is
 * logged. */
LK_MUST_CHECK enum lk_status lk_prober_start(
    const struct lk_outbox_setup *setup, lk_reserve_fn reserve, void *context,
    struct lk_prober **prober);
/* Takes over the targets and routes of a new configuration; out of memory, it
 * keeps those it has. Never waits for a call. Any thread. */
void lk_prober_reload(struct lk_prober *prober, const struct lk_config *config);
/* As lk_outbox_class.probe. NULL: LK_NOT_FOUND. */
void lk_prober_ask(struct lk_prober *prober, struct lk_probe_demand *demand);
/* Gives up the call that is under way; demands are done soon, those to come at
 * once. Never waits. NULL is fine. */
void lk_prober_cancel(struct lk_prober *prober);
/* Gives up the call that is under way, and waits for the thread; the store
 * still works. Demands are done before it returns. NULL is fine. */
void lk_prober_stop(struct lk_prober *prober);

/* ---- inside the prober ---- */

/* How many are uncertain, for the alert: told again only while there are as
 * many as before, and not too often. */
struct lk_probe_tally {
    uint64_t count;
    uint64_t oldest_ms; /* since when; 0: none */
    uint64_t logged_count;
    uint64_t logged_ns; /* 0: not yet */
};

/* Where to ask: a target about its jobs, or about a route's operations. */
struct lk_probe_place {
    const struct lk_target *target;
    const struct lk_route *route; /* NULL: jobs */
    const struct lk_probe *probe; /* without a path: roll back, ask nothing */
    uint64_t cursor;              /* jobs: where the present pass is */
    uint64_t next_ns;  /* no turn is asked for before: jobs have every other */
    uint64_t held_ns;  /* nor before, after it did not answer */
    unsigned failures; /* in a row */
    uint64_t checked_ns; /* asked about what cannot be; 0: not yet */
    bool unsound;        /* and it said that it had happened */
    struct lk_probe_tally tally;
};

/* Something uncertain; slices point into `text`. */
struct lk_probe_subject {
    struct lk_probe_place *place;
    uint64_t id;    /* of the job; of the operation: its number */
    uint64_t fence; /* its attempt; its token */
    uint64_t since_ms;
    uint64_t number; /* of the operation: its reference */
    uint64_t generation;
    struct lk_name name;
    struct lk_slice job; /* its name */
    struct lk_slice path;
    struct lk_slice provider_id;
    struct lk_buf text;
};

enum { LK_PROBE_PAGE = 64 };

struct lk_probe_page {
    struct lk_probe_subject subjects[LK_PROBE_PAGE];
    size_t count;
    uint64_t next; /* cursor; 0: that was the end */
};

struct lk_prober {
    struct lk_outbox_setup setup; /* its config is not used */
    lk_reserve_fn reserve;
    void *reserve_context;
    uv_thread_t thread;
    atomic_bool stopping;
    uv_mutex_t lock;
    uv_cond_t changed;
    struct lk_targets fresh; /* after a reload; under the lock */
    bool has_fresh;
    struct lk_probe_demand *demands; /* the latest first */

    /* The thread's own. */
    struct lk_targets targets;
    struct lk_probe_place *places; /* those of targets first */
    size_t place_count;
    bool has_routes;
    uint64_t cursor;  /* of the pass over operations */
    bool counting;    /* operations, for the alert */
    uint64_t read_ns; /* spent on reading since the last sleep */
    struct lk_probe_memory memory;
    struct lk_probe_page page;
    uint64_t alert_ns; /* when it is looked at again */
    struct lk_probe_alert *alerts;
    size_t alert_count;
};

/* What a look at a subject came to. */
enum lk_probe_result {
    LK_PROBE_OPEN,
    LK_PROBE_HAPPENED,
    LK_PROBE_ABSENT,
    LK_PROBE_OVERTAKEN, /* no longer uncertain in that attempt */
};

/* ---- prober.c -------------------------------------------------------------
 */

uint64_t lk_probe_now_ns(void);
/* Sleeps until the time is over or the prober is shutting down; `lightly`:
 * also until there is a demand or a new configuration. */
void lk_probe_sleep(struct lk_prober *prober, uint64_t ns, bool lightly);

/* ---- probe_resolve.c ------------------------------------------------------
 */

/* Asks about the subject if it is time to, and resolves it in the store if the
 * response proves anything. `at_once`: now is the time. */
enum lk_probe_result lk_probe_check(struct lk_prober *prober,
                                    const struct lk_probe_subject *subject,
                                    bool at_once);

#endif
