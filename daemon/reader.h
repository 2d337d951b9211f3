/* reader.h - the reader thread: everything that only looks things up. */
#ifndef LK_READER_H
#define LK_READER_H

#include "daemon/daemon.h"

/* Starts the thread. Answered tasks come back through `returns`. */
LK_MUST_CHECK enum lk_status lk_reader_start(struct lk_store *store,
                                             struct lk_returns *returns,
                                             struct lk_reader **reader);
/*
 * Hands over all of `tasks`, in order: LOOKUP, FIND, LIST and AUDIT come back
 * with their reply in `text`; an OP or AWAIT that is `loading` comes back
 * with op.status as class->load gave it.
 */
void lk_reader_give(struct lk_reader *reader, struct lk_task_queue *tasks);
/* Finishes what is queued, then ends the thread. NULL is fine. */
void lk_reader_stop(struct lk_reader *reader);

#endif
