/*
 * task.c - a command on its way: made, sent to a thread, back, replied, freed.
 *
 * The life of a task. One thread has it at a time, and `at` says which. The
 * members of the loop thread (task.h) stay its own wherever the task is.
 *
 *   phase    at      begins with        may become
 *   draft    HERE    lk_task_make       sent; freed (replied at once, an error)
 *   sent     place   lk_task_send       back, by lk_returns_give of that thread
 *   back     HERE    lk_task_returned   sent again, parked, ready
 *   parked   HERE    lk_waiters_add     sent again, ready
 *   ready    HERE    task->ready        freed or await, by lk_conn_emit, in the
 *                                       order of the commands
 *   await    HERE    lk_conn_emit       freed: pushed, expired or forgotten
 *
 * A task is sent again for what the reader has to load for its op, for a claim
 * that has to be decided again, and for a note in the audit log.
 *
 * A connection that ends frees those of its tasks that are HERE. Those that are
 * sent lose their `conn` and are freed when they are back. At the end of the
 * daemon, server.c frees those that are back and were not looked at.
 */
#include "daemon/batcher.h"
#include "daemon/daemon.h"
#include "daemon/thread.h"

#include <assert.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROOM_LEAST = 512, /* so that the spare one has room for most commands */
    ROOM_SPARE_MAX = 4096, /* a larger one is not kept */
};

/* ---- Queues -------------------------------------------------------------- */

void lk_task_queue_add(struct lk_task_queue *queue, struct lk_task *task)
{
    task->next = NULL;
    if (queue->tail) {
        queue->tail->next = task;
    } else {
        queue->head = task;
    }
    queue->tail = task;
    queue->count++;
}

struct lk_task *lk_task_queue_take(struct lk_task_queue *queue)
{
    struct lk_task *task = queue->head;

    if (!task) {
        return NULL;
    }
    queue->head = task->next;
    if (!queue->head) {
        queue->tail = NULL;
    }
    queue->count--;
    task->next = NULL;
    return task;
}

void lk_task_queue_join(struct lk_task_queue *queue, struct lk_task_queue *more)
{
    if (!more->head) {
        return;
    }
    if (queue->tail) {
        queue->tail->next = more->head;
    } else {
        queue->head = more->head;
    }
    queue->tail = more->tail;
    queue->count += more->count;
    *more = (struct lk_task_queue){0};
}

/* ---- Made and freed ------------------------------------------------------ */

/* A task with room for `bytes`, all else zero. The spare one saves an
 * allocation for each command. */
static struct lk_task *allocate_task(struct lk_server *server, size_t bytes)
{
    struct lk_task *task = server->spare_task;
    size_t room = bytes > ROOM_LEAST ? bytes : ROOM_LEAST;

    if (task && task->room >= bytes) {
        server->spare_task = NULL;
        room = task->room;
    } else {
        task = malloc(sizeof(*task) + room);
    }
    if (task) {
        *task = (struct lk_task){.room = room};
    }
    return task;
}

/* Common to all tasks of a connection. NULL: out of memory. */
static struct lk_task *begin_task(struct lk_conn *conn, size_t bytes)
{
    struct lk_task *task = allocate_task(conn->server, bytes);

    if (task) {
        task->conn = conn;
        task->fd = lk_conn_fd(conn);
        task->started_ns = conn->read_ns;
        task->proto = conn->proto;
    }
    return task;
}

/* One behind the other from `at` on; `own` gets where they are. */
static void copy_words(char *at, const struct lk_slice *argv, size_t argc,
                       struct lk_slice *own)
{
    for (size_t i = 0; i < argc; i++) {
        own[i] = (struct lk_slice){at, argv[i].len};
        memcpy(at, argv[i].data, argv[i].len);
        at += argv[i].len;
    }
}

struct lk_task *lk_task_make(struct lk_conn *conn,
                             const struct lk_command *command,
                             const struct lk_slice *argv, size_t argc,
                             struct lk_slice *own)
{
    struct lk_server *server = conn->server;
    size_t bytes = 0;

    assert(argc <= LK_TASK_ARGS_MAX);
    for (size_t i = 0; i < argc; i++) {
        bytes += argv[i].len;
    }
    struct lk_task *task = begin_task(conn, command->responds ? 0 : bytes);
    if (!task) {
        return NULL;
    }
    task->command = command;
    task->copied = bytes;
    if (command->responds) {
        task->block = lk_stored_reserve(bytes);
        if (!task->block) {
            lk_task_free(server, task);
            return NULL;
        }
    }
    copy_words(task->block ? task->block->bytes : task->bytes, argv, argc, own);
    task->size = sizeof(*task) + bytes;
    server->held_bytes += task->size;
    return task;
}

struct lk_task *lk_task_make_text(struct lk_conn *conn)
{
    struct lk_task *task = begin_task(conn, 0);

    if (task) {
        task->size = sizeof(*task);
        conn->server->held_bytes += task->size;
        task->ready = true;
    }
    return task;
}

/* Only HERE: no other thread may have it. Gives back its part of both accounts,
 * its waiter, and all that it owns. One task stays as the spare one. */
void lk_task_free(struct lk_server *server, struct lk_task *task)
{
    assert(task->at == LK_PLACE_HERE);
    lk_task_uncount(server, task);
    server->held_bytes -= task->size;
    lk_waiters_remove(&server->waiters, &task->waiter);
    if (task->command && task->command->clear) {
        task->command->clear(task);
    }
    latchkey_buf_free(&task->text);
    lk_note_free(task->note);
    free(task->signature);
    lk_stored_unref(task->block);
    if (!server->spare_task && task->room <= ROOM_SPARE_MAX) {
        server->spare_task = task;
    } else {
        free(task);
    }
}

/* ---- The queue's account ------------------------------------------------- */

void lk_task_count(struct lk_server *server, struct lk_task *task)
{
    if (!task->counted) {
        task->counted = true;
        server->queued_ops++;
        server->queued_bytes += task->size;
    }
}

void lk_task_uncount(struct lk_server *server, struct lk_task *task)
{
    if (task->counted) {
        task->counted = false;
        server->queued_ops--;
        server->queued_bytes -= task->size;
    }
}

/* The outcome of an op may hold a stored response. */
static size_t outcome_size(const struct lk_task *task)
{
    bool event = task->command && task->command->place == LK_PLACE_BATCH;
    const struct lk_stored *stored =
        event ? task->args.event.op.out.stored : NULL;

    return stored ? stored->size : 0;
}

void lk_task_weigh(struct lk_server *server, struct lk_task *task)
{
    bool counted = task->counted;

    lk_task_uncount(server, task);
    server->held_bytes -= task->size;
    task->size =
        sizeof(*task) + task->copied + task->text.len + outcome_size(task);
    server->held_bytes += task->size;
    if (counted) {
        lk_task_count(server, task);
    }
}

/* ---- To another thread --------------------------------------------------- */

void lk_task_send(struct lk_server *server, struct lk_task *task,
                  enum lk_place place)
{
    assert(task->at == LK_PLACE_HERE && !task->ready && !task->waiter.waiting);
    task->at = place;
    switch (place) {
    case LK_PLACE_BATCH:
    case LK_PLACE_STORE:
        lk_task_queue_add(&server->to_store, task);
        break;
    case LK_PLACE_ACTION:
        lk_task_queue_add(&server->to_actions, task);
        break;
    case LK_PLACE_READER:
        if (task->conn) {
            task->conn->in_reader++;
        }
        lk_task_queue_add(&server->to_reader, task);
        break;
    case LK_PLACE_LONG:
        lk_long_work_start(server, task);
        break;
    case LK_PLACE_COURIER:
        lk_probe_start(server, task);
        break;
    case LK_PLACE_HERE:
        assert(false);
        break;
    }
}

/* One lock for each queue and turn. Job actions may have to wait for the batch
 * before (lk_actions_give). */
void lk_task_hand_over(struct lk_server *server)
{
    if (server->to_store.head) {
        lk_batcher_give(server->batcher, &server->to_store);
    }
    if (server->to_reader.head) {
        lk_reader_give(server->reader, &server->to_reader);
    }
    if (server->to_actions.head) {
        lk_actions_give(server);
    }
}

void lk_task_run(struct lk_task *task, struct lk_store *store)
{
    struct lk_note *note = task->note;

    assert(task->at != LK_PLACE_HERE);
    if (note) {
        assert(task->at == LK_PLACE_STORE && !note->written);
        note->status = store->class->note(store, &note->entry);
        note->written = true;
    } else {
        task->status = task->command->run(task, store);
    }
}

bool lk_task_hung_up(int fd)
{
    struct pollfd socket = {.fd = fd};

    return poll(&socket, 1, 0) == 1 && socket.revents & (POLLHUP | POLLERR);
}

/* Store thread. The mutex keeps the descriptor open: drop_tasks (conn.c) sets
 * `gone` under it before the connection closes its descriptor. */
bool lk_task_client_left(struct lk_returns *returns, const struct lk_task *task)
{
    uv_mutex_lock(&returns->mutex);
    bool left = atomic_load_explicit(&task->gone, memory_order_relaxed) ||
                lk_task_hung_up(task->fd);
    uv_mutex_unlock(&returns->mutex);
    return left;
}

/* ---- And back ------------------------------------------------------------ */

/* Without memory for the hashes all that wait are decided again. */
static void copy_settled(struct lk_returns *returns,
                         const struct lk_batch *batch)
{
    size_t need = returns->settled_count + batch->settled_count;

    if (need > returns->settled_cap) {
        size_t cap = need * 2;
        struct lk_hash128 *settled =
            realloc(returns->settled, cap * sizeof(*settled));
        if (!settled) {
            returns->settle_all = true;
            return;
        }
        returns->settled = settled;
        returns->settled_cap = cap;
    }
    memcpy(returns->settled + returns->settled_count, batch->settled,
           batch->settled_count * sizeof(*batch->settled));
    returns->settled_count = need;
}

/* The signal comes after the unlock, so that the loop does not wake to a locked
 * mutex. Several signals may become one; the loop takes all that is there. */
void lk_returns_give(struct lk_returns *returns, struct lk_task_queue *tasks,
                     const struct lk_batch *batch)
{
    uv_mutex_lock(&returns->mutex);
    lk_task_queue_join(&returns->tasks, tasks);
    if (batch && batch->settled_count) {
        copy_settled(returns, batch);
    }
    if (batch && batch->settle_all) {
        returns->settle_all = true;
    }
    if (batch && batch->queued) {
        returns->queued = true;
    }
    uv_mutex_unlock(&returns->mutex);
    uv_async_send(&returns->async);
}

void lk_returns_give_one(struct lk_returns *returns, struct lk_task *task)
{
    struct lk_task_queue one = {0};

    lk_task_queue_add(&one, task);
    lk_returns_give(returns, &one, NULL);
}

/* What each place has to know when a task has left it. */
static void leave_place(struct lk_server *server, struct lk_task *task)
{
    enum lk_place from = task->at;

    assert(from != LK_PLACE_HERE);
    task->at = LK_PLACE_HERE;
    if (from == LK_PLACE_READER && task->conn) {
        task->conn->in_reader--;
    } else if (from == LK_PLACE_LONG) {
        lk_long_work_finished(server, task);
    } else if (from == LK_PLACE_ACTION) {
        lk_actions_returned(server);
    }
}

/* The reply is sent, or the task ends with its client. */
static void finish_task(struct lk_server *server, struct lk_task *task)
{
    struct lk_conn *conn = task->conn;

    if (!conn) {
        lk_task_free(server, task);
        return;
    }
    if (task->status) {
        lk_conn_close(conn, "out-of-memory"); /* the text is incomplete */
    }
    assert(task->status || task->text.len || task->command->reply);
    task->ready = true;
    lk_conn_emit(conn);
}

/* An op goes on with its steps. Any other task has run: if it made a note, the
 * audit log gets that first. */
void lk_task_returned(struct lk_server *server, struct lk_task *task)
{
    struct lk_note *note = task->note;
    bool loaded = task->at == LK_PLACE_READER;

    leave_place(server, task);
    lk_task_weigh(server, task);
    if (task->command->place == LK_PLACE_BATCH) {
        lk_operation_returned(server, task, loaded);
        return;
    }
    if (note && !note->written && (task->conn || !note->for_reply)) {
        lk_task_send(server, task, LK_PLACE_STORE);
        return;
    }
    if (note && note->written) {
        task->status = lk_note_written(task);
    }
    finish_task(server, task);
}
