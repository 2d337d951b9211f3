/*
 * thread.c - threads beside the loop and the store: the reader, long work.
 *
 * The reader fetches for many tasks, one after the other, from the time the
 * store is open until the daemon ends. Long work has a thread for one task: it
 * starts with the task and is joined when the task is back. Both get a task
 * from the loop and give it back through lk_returns, whether or not the client
 * is still there.
 */
#include "daemon/thread.h"
#include "daemon/daemon.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>

/* The new thread inherits a mask that blocks all signals: they are for the loop
 * thread, and interrupt no system call of another. 0, or a libuv error. */
int lk_thread_create(uv_thread_t *thread, uv_thread_cb run, void *context)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int result = uv_thread_create(thread, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}

/* ---- The reader ---------------------------------------------------------- */

struct lk_reader {
    struct lk_store *store;
    struct lk_returns *returns;
    struct lk_stored *last; /* loaded, or NULL; reader thread */
    struct lk_hash128 last_name;

    uv_thread_t thread;
    uv_mutex_t mutex; /* guards all below */
    uv_cond_t wake;
    struct lk_task_queue queue;
    bool asleep;
    bool stop;
};

/* Replaces the response that the reader holds a reference to; NULL: none. */
static void remember_loaded(struct lk_reader *reader, struct lk_stored *stored)
{
    lk_stored_unref(reader->last);
    reader->last = stored ? lk_stored_ref(stored) : NULL;
}

/* Clients that waited for the same operation come one behind the other, and
 * share the response. It never changes under its token; a doubt may. */
static enum lk_status load_stored(struct lk_reader *reader, struct lk_op *op)
{
    struct lk_store *store = reader->store;
    bool shared = op->out.verdict != LK_VERDICT_UNCERTAIN;

    if (shared && reader->last && reader->last->token == op->out.token &&
        lk_hash128_equal(reader->last_name, op->hash)) {
        op->out.stored = lk_stored_ref(reader->last);
        op->out.needs_load = false;
        return LK_OK;
    }
    enum lk_status status = store->class->load(store, op);
    if (shared && !status) {
        reader->last_name = op->hash;
        remember_loaded(reader, op->out.stored);
    }
    return status;
}

/* Nothing is read for a client that has left. */
static void read_for_task(struct lk_reader *reader, struct lk_task *task)
{
    assert(task->at == LK_PLACE_READER);
    if (atomic_load_explicit(&task->gone, memory_order_relaxed)) {
        return;
    }
    if (task->command->place == LK_PLACE_BATCH) {
        struct lk_op *op = &task->args.event.op;
        op->status = load_stored(reader, op);
    } else {
        lk_task_run(task, reader->store);
    }
}

/* Sleeps until there are tasks. False: it is time to stop, and none are left.
 */
static bool take_all_tasks(struct lk_reader *reader,
                           struct lk_task_queue *tasks)
{
    uv_mutex_lock(&reader->mutex);
    while (!reader->queue.head && !reader->stop) {
        reader->asleep = true;
        uv_cond_wait(&reader->wake, &reader->mutex);
        reader->asleep = false;
    }
    lk_task_queue_join(tasks, &reader->queue);
    uv_mutex_unlock(&reader->mutex);
    return tasks->head != NULL;
}

/* The reader thread. One task at a time goes back, so that a slow one does not
 * hold up those before it. No response is held while the reader sleeps. */
static void run_reader(void *context)
{
    struct lk_reader *reader = context;
    struct lk_task_queue tasks = {0};

    while (take_all_tasks(reader, &tasks)) {
        struct lk_task *task;
        while ((task = lk_task_queue_take(&tasks))) {
            read_for_task(reader, task);
            lk_returns_give_one(reader->returns, task);
        }
        remember_loaded(reader, NULL);
    }
}

/* LK_NOMEM: there is no thread, and nothing to stop. */
enum lk_status lk_reader_start(struct lk_store *store,
                               struct lk_returns *returns,
                               struct lk_reader **reader)
{
    struct lk_reader *made = calloc(1, sizeof(*made));

    if (!made) {
        return LK_NOMEM;
    }
    made->store = store;
    made->returns = returns;
    if (uv_mutex_init(&made->mutex)) {
        goto no_mutex;
    }
    if (uv_cond_init(&made->wake)) {
        goto no_cond;
    }
    if (lk_thread_create(&made->thread, run_reader, made)) {
        goto no_thread;
    }
    *reader = made;
    return LK_OK;

no_thread:
    uv_cond_destroy(&made->wake);
no_cond:
    uv_mutex_destroy(&made->mutex);
no_mutex:
    free(made);
    return LK_NOMEM;
}

/* Takes all of `tasks`. Signals only a sleeper: a busy reader looks again. */
void lk_reader_give(struct lk_reader *reader, struct lk_task_queue *tasks)
{
    uv_mutex_lock(&reader->mutex);
    lk_task_queue_join(&reader->queue, tasks);
    if (reader->asleep) {
        uv_cond_signal(&reader->wake);
    }
    uv_mutex_unlock(&reader->mutex);
}

/* Waits until every task that was given is back. NULL is fine. */
void lk_reader_stop(struct lk_reader *reader)
{
    if (!reader) {
        return;
    }
    uv_mutex_lock(&reader->mutex);
    reader->stop = true;
    uv_cond_signal(&reader->wake);
    uv_mutex_unlock(&reader->mutex);
    uv_thread_join(&reader->thread);
    uv_cond_destroy(&reader->wake);
    uv_mutex_destroy(&reader->mutex);
    free(reader);
}

/* ---- Long work ----------------------------------------------------------- */

void lk_long_work_progress(void *context, uint64_t done, uint64_t total)
{
    struct lk_long_work *work = context;

    atomic_store_explicit(&work->done, done, memory_order_relaxed);
    atomic_store_explicit(&work->total, total, memory_order_relaxed);
}

/* The long work thread: one task, then it ends and the loop joins it. */
static void run_long_work(void *context)
{
    struct lk_server *server = context;
    struct lk_task *task = server->long_work.task;

    lk_task_run(task, server->store);
    atomic_store(&server->long_work.returned, true);
    lk_returns_give_one(&server->returns, task);
}

/* Goes back to the loop as if it had run. */
static void refuse_long_work(struct lk_server *server, struct lk_task *task,
                             const char *why)
{
    struct lk_buf message = {0};

    server->metrics.errors++;
    task->status =
        latchkey_buf_printf(&message, "ERR %s: %s", task->command->name, why);
    if (!task->status) {
        task->status = lk_resp_error(&task->text, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    lk_returns_give_one(&server->returns, task);
}

/* A second long work is refused: two would compete for the disk. */
void lk_long_work_start(struct lk_server *server, struct lk_task *task)
{
    struct lk_long_work *work = &server->long_work;

    if (work->task) {
        refuse_long_work(
            server, task,
            "a verify or backup is running; try again when it is done");
        return;
    }
    work->task = task;
    atomic_store(&work->returned, false);
    lk_long_work_progress(work, 0, 0);
    /* A daemon that is shutting down does not wait for it. */
    lk_task_uncount(server, task);
    if (lk_thread_create(&work->thread, run_long_work, server)) {
        work->task = NULL;
        refuse_long_work(server, task, latchkey_status_text(LK_NOMEM));
    }
}

/* Loop thread, for each task that is back. One that was refused is not
 * work->task, and has no thread to join. */
void lk_long_work_finished(struct lk_server *server, const struct lk_task *task)
{
    if (server->long_work.task == task) {
        uv_thread_join(&server->long_work.thread);
        server->long_work.task = NULL;
    }
}
