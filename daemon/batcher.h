/*
 * batcher.h - the store's threads, one for each of its lanes: whatever arrives
 * on a lane while one batch is being made durable forms the next.
 */
#ifndef LK_BATCHER_H
#define LK_BATCHER_H

#include "daemon/daemon.h"

/* Starts the threads. Tasks come back through `returns`. An interval
 * of 0: this daemon keeps nothing. */
LK_MUST_CHECK enum lk_status lk_batcher_start(struct lk_store *store,
                                              struct lk_returns *returns,
                                              size_t batch_ops,
                                              uint64_t sweep_interval_ms,
                                              struct lk_batcher **batcher);
/* After a reload; takes effect from the next batch on. */
void lk_batcher_set_sweep(struct lk_batcher *batcher,
                          uint64_t sweep_interval_ms);
/* Hands over all of `tasks` (places BATCH and STORE), in order. */
void lk_batcher_give(struct lk_batcher *batcher, struct lk_task_queue *tasks);
/*
 * Any thread. One job batch for each batch: with the ops of lane 0, one after
 * the other; or, where the store has lanes for job batches, on one that is
 * free, so that they end in any order. job_batch->ops are decided as those of
 * the clients, with their hashes set here. job_batch->done is called on the
 * thread that did it, after the tasks of the batch have been given back; or
 * here, at once, if the batcher has stopped (LK_UNAVAILABLE) or there are more
 * ops than a batch may have (LK_TOO_LARGE). The caller must not touch it until
 * then.
 */
void lk_batcher_job_batch(struct lk_batcher *batcher,
                          struct lk_job_batch *job_batch);
/* Any thread: lane 0 applies a batch soon, though there may be nothing to
 * decide; the store has something to report. */
void lk_batcher_hurry(struct lk_batcher *batcher);
void lk_batcher_stats(struct lk_batcher *batcher,
                      struct lk_batcher_stats *stats);
/* Finishes what is queued, then ends the threads. NULL is fine. */
void lk_batcher_stop(struct lk_batcher *batcher);

#endif
