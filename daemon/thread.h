/* thread.h - threads beside the loop and the store: the reader, long work. */
#ifndef LK_THREAD_H
#define LK_THREAD_H

#include "latchkey.h"

#include <stdatomic.h>
#include <uv.h>

struct lk_server;
struct lk_store;
struct lk_task;
struct lk_task_queue;
struct lk_returns;
struct lk_reader;

/*
 * As uv_thread_create, but the thread has all signals blocked: one that asks
 * the daemon to stop must reach the loop, not a thread that sleeps.
 */
int lk_thread_create(uv_thread_t *thread, uv_thread_cb run, void *context);

/* ---- The reader thread: everything that only looks things up ------------- */

/* Starts the thread. Tasks come back through `returns`, one by one. */
LK_MUST_CHECK enum lk_status lk_reader_start(struct lk_store *store,
                                             struct lk_returns *returns,
                                             struct lk_reader **reader);
/*
 * Hands over all of `tasks`, in order. Each is run; an op, which has been
 * decided, gets what class->load brings, with its status in op.status.
 */
void lk_reader_give(struct lk_reader *reader, struct lk_task_queue *tasks);
/* Finishes what is queued, then ends the thread. NULL is fine. */
void lk_reader_stop(struct lk_reader *reader);

/* ---- Long work: VERIFY and BACKUP, one at a time ------------------------- */

struct lk_long_work {
    uv_thread_t thread;
    struct lk_task *task; /* NULL: none is running; loop thread */
    atomic_bool returned; /* the thread is done with `task` */
    _Atomic uint64_t done;
    _Atomic uint64_t total;
};

/* Runs the task on a thread of its own. While another one runs, or without
 * memory, it comes back at once with an error as its reply. */
void lk_long_work_start(struct lk_server *server, struct lk_task *task);
/* As class->verify and class->backup call it; `context`: lk_long_work. */
void lk_long_work_progress(void *context, uint64_t done, uint64_t total);
/* The loop has got the task back. */
void lk_long_work_finished(struct lk_server *server,
                           const struct lk_task *task);

#endif
