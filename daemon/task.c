/* task.c - a command under way: its copy, its queues, its way back. */
#include "daemon/daemon.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

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

enum { OP_SLICES = 11, SLICES = OP_SLICES + 6 };

/* Those of a call only if there is one. Returns how many there are. */
static int list_slices(struct lk_demand *demand,
                       struct lk_slice *slices[SLICES])
{
    struct lk_op *op = &demand->op;
    struct lk_call *call = &demand->call;

    slices[0] = &op->name.tenant;
    slices[1] = &op->name.scope;
    slices[2] = &op->name.key;
    slices[3] = &op->fingerprint;
    slices[4] = &op->owner;
    slices[5] = &op->response.headers;
    slices[6] = &op->response.body;
    slices[7] = &op->reason;
    slices[8] = &op->who;
    slices[9] = &op->why;
    slices[10] = &demand->peer;
    if (!op->call) {
        return OP_SLICES;
    }
    slices[11] = &call->name;
    slices[12] = &call->target;
    slices[13] = &call->method;
    slices[14] = &call->path;
    slices[15] = &call->headers;
    slices[16] = &call->body;
    return SLICES;
}

struct lk_task *lk_task_make(struct lk_conn *conn,
                             const struct lk_demand *demand)
{
    struct lk_demand copy = *demand;
    struct lk_slice *slices[SLICES];
    char peer[LK_PEER_TEXT];
    size_t bytes = 0;

    if (copy.op.who.len) {
        lk_rights_peer_text(conn, peer);
        copy.peer = latchkey_slice(peer);
    }
    int count = list_slices(&copy, slices);
    for (int i = 0; i < count; i++) {
        bytes += slices[i]->len;
    }
    struct lk_task *task = malloc(sizeof(*task) + bytes);
    if (!task) {
        return NULL;
    }
    *task = (struct lk_task){.conn = conn,
                             .fd = lk_conn_fd(conn),
                             .started_ns = conn->read_ns,
                             .proto = conn->proto,
                             .copied = bytes,
                             .size = sizeof(*task) + bytes};
    char *at = task->bytes;
    for (int i = 0; i < count; i++) {
        if (slices[i]->len) {
            memcpy(at, slices[i]->data, slices[i]->len);
            slices[i]->data = at;
            at += slices[i]->len;
        }
    }
    task->demand = copy;
    if (copy.op.call) {
        task->demand.op.call = &task->demand.call;
    }
    conn->server->held_bytes += task->size;
    lk_task_count(conn->server, task);
    return task;
}

bool lk_task_hung_up(int fd)
{
    struct pollfd socket = {.fd = fd};

    return poll(&socket, 1, 0) == 1 && socket.revents & (POLLHUP | POLLERR);
}

bool lk_task_is_left(struct lk_returns *returns, const struct lk_task *task)
{
    uv_mutex_lock(&returns->mutex);
    bool left = atomic_load_explicit(&task->gone, memory_order_relaxed) ||
                lk_task_hung_up(task->fd);
    uv_mutex_unlock(&returns->mutex);
    return left;
}

void lk_task_free(struct lk_server *server, struct lk_task *task)
{
    lk_task_uncount(server, task);
    server->held_bytes -= task->size;
    lk_waiters_remove(&server->waiters, &task->waiter);
    lk_op_clear(&task->demand.op);
    if (task->demand.kind == LK_TASK_TARGETS) {
        lk_targets_view_free(task->demand.view);
    }
    latchkey_buf_free(&task->text);
    lk_look_free(task->look);
    free(task);
}

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

void lk_task_weigh(struct lk_server *server, struct lk_task *task)
{
    const struct lk_stored *stored = task->demand.op.out.stored;
    bool counted = task->counted;

    lk_task_uncount(server, task);
    server->held_bytes -= task->size;
    task->size = sizeof(*task) + task->copied + task->text.len +
                 (stored ? stored->size : 0);
    server->held_bytes += task->size;
    if (counted) {
        lk_task_count(server, task);
    }
}

/* Without memory for the hashes everybody who waits is looked at. */
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
