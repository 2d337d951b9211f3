/*
 * prober.h - the prober: asks services whether uncertain jobs and operations
 * have happened, on a thread of its own, and resolves what is proved.
 */
#ifndef LK_PROBER_H
#define LK_PROBER_H

#include "courier/probe_rules.h"
#include "daemon/outbox.h"

#include <stdatomic.h>
#include <uv.h>

struct lk_prober;

/* Takes one call from the target's rate: returns how long to wait before it. */
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
void lk_prober_ask(struct lk_prober *prober, struct lk_probe_request *request);
/* Gives up the call in progress. Requests are answered with LK_AGAIN: those
 * that wait soon, later ones at once. Never waits. NULL is fine. */
void lk_prober_cancel(struct lk_prober *prober);
/* The same, then waits for the thread and frees the prober. The store still
 * works. Every request is answered before it returns. NULL is fine. */
void lk_prober_stop(struct lk_prober *prober);

/* ---- inside the prober --------------------------------------------------- */

/* How much is uncertain, for the alert. It is logged again only while the count
 * does not fall, and at most once a minute. */
struct lk_probe_tally {
    uint64_t count;
    uint64_t oldest_ms; /* since when the oldest is; 0: none */
    uint64_t logged_count;
    uint64_t logged_ns; /* 0: not yet */
};

/* Who is asked: a target about its jobs, or a target about the operations of a
 * route. Valid until the next reload; owned by the prober's thread. */
struct lk_probe_place {
    const struct lk_target *target;
    const struct lk_route *route; /* NULL: jobs */
    const struct lk_probe *probe; /* without a path: roll back without asking */
    uint64_t cursor;     /* jobs: where this pass continues; 0: at the start */
    uint64_t next_ns;    /* not asked before: jobs have every other call of the
                            rate */
    uint64_t held_ns;    /* not asked before: it did not answer */
    unsigned failures;   /* in a row */
    uint64_t checked_ns; /* when it was asked about a key that cannot exist; 0:
                            not yet */
    bool unsound; /* it confirmed that key: its responses prove nothing */
    struct lk_probe_tally tally;
};

/* An uncertain job or operation; slices point into `text`. */
struct lk_probe_subject {
    struct lk_probe_place *place;
    uint64_t id;    /* of the job; of the operation: its number */
    uint64_t fence; /* its attempt; its token */
    uint64_t since_ms;
    uint64_t number; /* of the operation, for its reference */
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
    uint64_t next; /* cursor of the next page; 0: this is the last */
};

struct lk_prober {
    struct lk_outbox_setup setup; /* config is NULL */
    lk_reserve_fn reserve;
    void *reserve_context;
    uv_thread_t thread;
    atomic_bool stopping;
    uv_mutex_t lock;
    uv_cond_t changed;
    struct lk_targets fresh; /* of a reload; under the lock, as the two below */
    bool has_fresh;
    struct lk_probe_request *requests; /* the latest first */

    /* Only the prober's thread: */
    struct lk_targets targets;
    struct lk_probe_place *places; /* targets first, then routes */
    size_t place_count;
    bool has_routes;
    uint64_t cursor;  /* of the pass over operations */
    bool counting;    /* this pass also counts operations for the alert */
    uint64_t read_ns; /* time spent on reading since the last sleep */
    struct lk_probe_memory memory;
    struct lk_probe_page page;
    uint64_t alert_ns; /* when the alert is due again */
    struct lk_probe_alert *alerts;
    size_t alert_count;
};

/* The outcome of one probe. */
enum lk_probe_result {
    LK_PROBE_OPEN, /* still uncertain */
    LK_PROBE_HAPPENED,
    LK_PROBE_ABSENT,
    LK_PROBE_OVERTAKEN, /* no longer uncertain in that attempt */
};

/* ---- prober.c -------------------------------------------------------------
 */

uint64_t lk_probe_now_ns(void);
/* Sleeps until the time is over or the prober is shutting down; `lightly`:
 * also until there is a request or a new configuration. */
void lk_probe_sleep(struct lk_prober *prober, uint64_t ns, bool lightly);

/* ---- probe_resolve.c ------------------------------------------------------
 */

/* Asks about the subject if it is time to, and resolves it in the store if the
 * response proves anything. `at_once`: now is the time. */
enum lk_probe_result lk_probe_check(struct lk_prober *prober,
                                    const struct lk_probe_subject *subject,
                                    bool at_once);

#endif
