/*
 * probe_parts.h - the prober's inside: the places that are asked, the records
 * that they are asked about, and the thread's state.
 */
#ifndef LK_PROBE_PARTS_H
#define LK_PROBE_PARTS_H

#include "courier/probe.h"
#include "courier/probe_rules.h"

#include <stdatomic.h>
#include <uv.h>

/* How many are uncertain, for the alert: told again only while there are as
 * many as before, and not too often. */
struct lk_probe_tally {
    uint64_t count;
    uint64_t oldest_ms; /* since when; 0: none */
    uint64_t told_count;
    uint64_t told_ns; /* 0: not yet */
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

/* ---- probe.c --------------------------------------------------------------
 */

uint64_t lk_probe_now_ns(void);
/* Sleeps, unless the prober is to stop, or, `lightly`, is asked for something.
 */
void lk_probe_sleep(struct lk_prober *prober, uint64_t ns, bool lightly);

/* ---- probe_places.c -------------------------------------------------------
 */

/* Makes the places of prober->targets, and forgets the old ones. */
LK_MUST_CHECK enum lk_status lk_probe_places_make(struct lk_prober *prober);
/* How often something is to be looked for. */
uint64_t lk_probe_tick_ms(const struct lk_prober *prober);

/* ---- probe_scan.c ---------------------------------------------------------
 */

/* The next page of what is uncertain, in prober->page: a target's jobs; the
 * operations, each with the place of its route, others only counted. */
LK_MUST_CHECK enum lk_status lk_probe_read_jobs(struct lk_prober *prober,
                                                struct lk_probe_place *place,
                                                uint64_t cursor);
LK_MUST_CHECK enum lk_status lk_probe_read_operations(struct lk_prober *prober,
                                                      uint64_t cursor);
void lk_probe_page_clear(struct lk_probe_page *page);

/* ---- probe_ask.c ----------------------------------------------------------
 */

/* Asks about it if it is time to, and resolves it if that proves anything.
 * `now`: it is time. */
enum lk_probe_result lk_probe_look(struct lk_prober *prober,
                                   const struct lk_probe_subject *subject,
                                   bool now);

/* Waits for the target's rate, of which jobs have their share. False: the
 * prober is to stop. */
bool lk_probe_pace(struct lk_prober *prober, struct lk_probe_place *place,
                   const struct lk_target *target);

/* False: there is no answer that could say anything. */
bool lk_probe_ask(struct lk_prober *prober, struct lk_probe_place *place,
                  struct lk_slice path, struct lk_http_response *answer);

/* ---- probe_control.c ------------------------------------------------------
 */

/* Asks about what cannot exist, now and then. A service that says yes to that,
 * because it does not know the query, say, would say yes to everything. */
bool lk_probe_is_sound(struct lk_prober *prober,
                       const struct lk_probe_subject *subject);
/*
 * Asks about a job that was delivered. A service that does not say yes to that,
 * because the path is wrong, it is being repaired, or has forgotten the keys of
 * that time, would say no to everything. Without such a job, or for a route:
 * true.
 */
bool lk_probe_knows_others(struct lk_prober *prober,
                           const struct lk_probe_subject *subject);

/* ---- probe_resolve.c ------------------------------------------------------
 */

/* Resolves it by the answer, in the store. LK_PROBE_OPEN: the store could not,
 * or the roll-back failed. */
enum lk_probe_result lk_probe_resolve_happened(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *answer);
enum lk_probe_result lk_probe_resolve_absent(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *answer);

/* ---- probe_alert.c --------------------------------------------------------
 */

/* Logs what is uncertain and does not become less. */
void lk_probe_alert(struct lk_prober *prober);
void lk_probe_alerts_free(struct lk_prober *prober);

#endif
