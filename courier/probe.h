/*
 * probe.h - the prober: asks services what became of uncertain jobs and
 * operations, on a thread of its own, and resolves what is proved.
 */
#ifndef LK_PROBER_H
#define LK_PROBER_H

#include "daemon/outbox.h"

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
void lk_prober_hush(struct lk_prober *prober);
/* Gives up the call that is under way, and waits for the thread; the store
 * still works. Demands are done before it returns. NULL is fine. */
void lk_prober_stop(struct lk_prober *prober);

#endif
