/*
 * operation.c - the path of an operation: decided at once from what is
 * durable, or by the store thread, then perhaps loaded, parked, answered.
 *
 * A peek is only tried when nothing else is under way on the connection, so
 * no command overtakes an earlier one. A REPLAY whose answer has gone by the
 * time it is to be loaded (evicted, expired) is decided again, as if it had
 * arrived later; unless a later command of the connection about the same
 * operation may be decided already: then it is refused, and counts for nothing.
 */
#include "daemon/daemon.h"

enum { ROUNDS = 8 }; /* of deciding and loading in vain, for one task */

enum step {
    STEP_DECIDE, /* to the store thread */
    STEP_LOAD,   /* decided; the reader thread fetches the answer */
    STEP_PARK,   /* decided; wait until it settles */
    STEP_ANSWER,
};

static uint64_t now_ms(const struct lk_server *server)
{
    return uv_now(&server->loop);
}

/* Only answers of completed operations are in the cache; see cache.h. */
static bool is_final(enum lk_verdict verdict)
{
    return verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_OMITTED ||
           verdict == LK_VERDICT_KEPT;
}

static bool find_answer(struct lk_server *server, struct lk_op *op)
{
    if (!is_final(op->out.verdict)) {
        return false;
    }
    op->out.stored = lk_cache_get(&server->cache, op->hash, op->out.token);
    op->out.needs_load = op->out.stored == NULL;
    return op->out.stored != NULL;
}

static bool is_pending(const struct lk_op *op)
{
    return op->out.state == LK_STATE_IN_PROGRESS ||
           op->out.state == LK_STATE_ACCEPTED;
}

static bool is_told_to_wait(const struct lk_op *op)
{
    return op->out.verdict == LK_VERDICT_INFLIGHT ||
           op->out.verdict == LK_VERDICT_ACCEPTED;
}

/* What follows an outcome. `may_wait`: the caller asked for it, has time. */
static enum step next_step(struct lk_server *server, struct lk_demand *demand,
                           bool may_wait)
{
    struct lk_op *op = &demand->op;

    if (op->status) {
        return STEP_ANSWER;
    }
    if (demand->kind == LK_TASK_AWAIT) {
        return is_pending(op) && may_wait ? STEP_PARK : STEP_ANSWER;
    }
    if (op->out.needs_load && !find_answer(server, op)) {
        return STEP_LOAD;
    }
    return may_wait && is_told_to_wait(op) ? STEP_PARK : STEP_ANSWER;
}

static enum step peek(struct lk_server *server, struct lk_demand *demand,
                      bool may_wait)
{
    struct lk_store *store = server->store;
    struct lk_op *op = &demand->op;

    op->out = (struct lk_outcome){0};
    if (!store->class->peek || store->class->peek(store, op) != LK_OK) {
        return STEP_DECIDE;
    }
    if (op->out.needs_load && !is_final(op->out.verdict)) {
        return STEP_DECIDE; /* a later command must not change it meanwhile */
    }
    op->status = LK_OK;
    server->metrics.peeked++;
    return next_step(server, demand, may_wait);
}

static void count_claim(struct lk_server *server, const struct lk_op *op,
                        uint64_t started_ns, bool waited)
{
    if (op->event != LK_EVENT_CLAIM && op->event != LK_EVENT_ACCEPT) {
        return;
    }
    if (op->status) {
        server->metrics.claims_unavailable++;
        return;
    }
    lk_metrics_claim(&server->metrics, op->out.verdict, waited,
                     (uv_hrtime() - started_ns) / 1000);
}

/* An answer at once, without a task: nothing is copied. */
static void answer_now(struct lk_conn *conn, struct lk_demand *demand)
{
    struct lk_server *server = conn->server;
    struct lk_buf *out = lk_conn_out(conn);
    enum lk_status status;

    if (demand->kind == LK_TASK_AWAIT) {
        status = lk_resp_simple(out, "QUEUED");
        if (!status) {
            status = lk_reply_settled(out, conn->proto, demand->op.reason);
            server->metrics.pushes++;
        }
    } else {
        count_claim(server, &demand->op, conn->read_ns, false);
        status = lk_reply_outcome(out, server->store, conn->proto, &demand->op);
    }
    lk_op_clear(&demand->op);
    lk_conn_wrote(conn, status);
}

static void answer_task(struct lk_server *server, struct lk_task *task)
{
    if (task->demand.kind == LK_TASK_AWAIT) {
        task->settled =
            task->demand.op.status == LK_OK && !is_pending(&task->demand.op);
    } else {
        count_claim(server, &task->demand.op, task->started_ns, task->waited);
    }
    task->ready = true;
    lk_conn_emit(task->conn);
}

/* An await that cannot be parked is refused; a claim is told to come back. */
static void refuse_to_park(struct lk_server *server, struct lk_task *task)
{
    if (task->demand.kind == LK_TASK_AWAIT) {
        enum lk_status status = lk_resp_error(
            &task->text, LK_SLICE("ERR AWAIT: limits.waiters are waiting, "
                                  "come back later"));
        task->demand.op.status = LK_TOO_LARGE;
        if (status) {
            lk_conn_close(task->conn, "out-of-memory");
        }
    }
    answer_task(server, task);
}

static void park(struct lk_server *server, struct lk_task *task)
{
    if (server->waiters.count >= server->config.waiters ||
        lk_waiters_add(&server->waiters, &task->waiter, task->demand.op.hash,
                       task->deadline_ms)) {
        refuse_to_park(server, task);
        return;
    }
    lk_task_uncount(server, task);
    if (task->demand.kind == LK_TASK_AWAIT) {
        task->ready = true;
        lk_conn_emit(task->conn);
        return;
    }
    if (!task->waited) {
        server->metrics.waits++;
    }
    task->waited = true;
    lk_op_clear(&task->demand.op);
}

/* One connection has a few places in the reader, so that others get theirs. */
static void load(struct lk_server *server, struct lk_task *task)
{
    struct lk_conn *conn = task->conn;

    lk_task_count(server, task);
    if (conn->in_reader >= LK_READER_SHARE) {
        lk_task_queue_add(&conn->to_load, task);
        return;
    }
    task->loading = true;
    conn->in_reader++;
    lk_task_queue_add(&server->to_reader, task);
}

static void take_step(struct lk_server *server, struct lk_task *task,
                      enum step step)
{
    switch (step) {
    case STEP_DECIDE:
        lk_op_clear(&task->demand.op);
        task->demand.op.out = (struct lk_outcome){0};
        lk_task_count(server, task);
        lk_task_queue_add(&server->to_store, task);
        break;
    case STEP_LOAD:
        load(server, task);
        break;
    case STEP_PARK:
        park(server, task);
        break;
    case STEP_ANSWER:
        answer_task(server, task);
        break;
    }
}

/* What nobody will hold is not begun. It may have lain in the socket for long:
 * its client has closed the connection, and asks another daemon. One look for
 * all that was read at once: it costs a system call. */
static bool is_left(struct lk_conn *conn, const struct lk_op *op)
{
    if (lk_op_begins(op) && conn->looked_ns != conn->read_ns) {
        conn->looked_ns = conn->read_ns;
        conn->hung_up = lk_task_hung_up(lk_conn_fd(conn));
    }
    return lk_op_begins(op) && conn->hung_up;
}

void lk_operation_start(struct lk_conn *conn, struct lk_demand *demand)
{
    struct lk_server *server = conn->server;
    bool may_wait = demand->wait_ms > 0;
    enum step step = STEP_DECIDE;

    demand->op.hash = lk_name_hash(server->store->secret, demand->op.name);
    if (!conn->head) {
        step = peek(server, demand, may_wait);
    }
    if (step == STEP_ANSWER) {
        answer_now(conn, demand);
        return;
    }
    if (step == STEP_DECIDE && is_left(conn, &demand->op)) {
        lk_conn_error(conn, "UNAVAILABLE " LK_LEFT);
        return;
    }
    struct lk_task *task = lk_task_make(conn, demand);
    if (!task) {
        lk_op_clear(&demand->op);
        lk_conn_error(conn, "UNAVAILABLE out of memory");
        return;
    }
    task->deadline_ms = now_ms(server) + demand->wait_ms;
    lk_conn_push(conn, task, LK_LANE_STORE);
    conn->hold = may_wait && demand->kind == LK_TASK_OP;
    take_step(server, task, step);
}

/* What everybody else may know of from now on, client or no client. */
static void take_effect(struct lk_server *server, const struct lk_task *task)
{
    const struct lk_op *op = &task->demand.op;

    if (op->status || op->out.verdict != LK_VERDICT_DONE) {
        return;
    }
    struct lk_slice action = lk_op_action(op);
    if (action.len) {
        lk_act_log_reference(server->store, &task->demand, action,
                             op->out.number);
    }
    if (op->event == LK_EVENT_EVICT) {
        lk_cache_remove(&server->cache, op->out.token);
    }
    if (op->event == LK_EVENT_COMPLETE && server->cache.max_bytes > 0) {
        struct lk_stored *stored = lk_stored_make(op->token, op->out.now_ms,
                                                  &op->response, op->reason);
        if (stored) {
            lk_cache_put(&server->cache, op->hash, stored);
            lk_stored_unref(stored);
        }
    }
}

/* Is a later command of its connection about the same operation on its way? */
static bool is_followed(const struct lk_task *task)
{
    const struct lk_task *later = task->conn ? task->after : NULL;

    while (later &&
           !lk_hash128_equal(later->demand.op.hash, task->demand.op.hash)) {
        later = later->after;
    }
    return later != NULL;
}

/* True: the load was in vain, the operation has to be decided again. */
static bool take_load(struct lk_server *server, struct lk_task *task)
{
    struct lk_op *op = &task->demand.op;

    task->loading = false;
    if (op->status == LK_AGAIN && ++task->rounds < ROUNDS &&
        !is_followed(task)) {
        return true;
    }
    if (op->status == LK_AGAIN) {
        op->status = LK_UNAVAILABLE;
        op->error = LK_RECORD "it changed while its answer was read; send the "
                              "same again";
    }
    op->out.needs_load = false;
    if (!op->status && op->out.stored && is_final(op->out.verdict)) {
        lk_cache_put(&server->cache, op->hash, op->out.stored);
    }
    return false;
}

static bool may_wait(const struct lk_server *server, const struct lk_task *task)
{
    return task->demand.wait_ms > 0 && !task->final && !task->conn->eof &&
           !task->conn->quit && !server->stop_by_ms &&
           now_ms(server) < task->deadline_ms;
}

/* Places in the reader are free: who had to wait for one may go, if the answer
 * is still not in the cache. */
static void load_more(struct lk_server *server, struct lk_conn *conn)
{
    struct lk_task *task;

    while (conn->in_reader < LK_READER_SHARE &&
           (task = lk_task_queue_take(&conn->to_load))) {
        take_step(server, task,
                  next_step(server, &task->demand, may_wait(server, task)));
    }
}

void lk_operation_returned(struct lk_server *server, struct lk_task *task)
{
    struct lk_conn *conn = task->conn;
    bool loaded = task->loading;
    bool again = loaded && take_load(server, task);

    if (!loaded) {
        take_effect(server, task);
    }
    if (!conn) {
        lk_task_free(server, task);
        return;
    }
    enum step step =
        again ? STEP_DECIDE
              : next_step(server, &task->demand, may_wait(server, task));
    take_step(server, task, step);
    if (loaded) {
        load_more(server, conn);
    }
}

/* Nothing else is under way on the connection of a claim that waits. */
static void decide_again(struct lk_server *server, struct lk_task *task)
{
    enum step step = peek(server, &task->demand, may_wait(server, task));

    take_step(server, task, step);
}

static void unlink_await(struct lk_task *task)
{
    *(task->before ? &task->before->after : &task->conn->awaits) = task->after;
    if (task->after) {
        task->after->before = task->before;
    }
}

static void push_settled(struct lk_server *server, struct lk_task *task)
{
    struct lk_conn *conn = task->conn;

    if (!task->queued) {
        task->settled = true; /* goes out right behind QUEUED */
        return;
    }
    if (!conn->closing) {
        server->metrics.pushes++;
        lk_conn_wrote(conn, lk_reply_settled(&conn->out, conn->proto,
                                             task->demand.op.reason));
        lk_server_mark_dirty(server, conn);
    }
    unlink_await(task);
    lk_task_free(server, task);
}

static struct lk_task *task_of(struct lk_waiter *waiter)
{
    return (struct lk_task *)((char *)waiter -
                              offsetof(struct lk_task, waiter));
}

/*
 * Without memory to wait on it is pushed, and so it is where only the store
 * could tell: whoever claims then is told.
 */
static void await_again(struct lk_server *server, struct lk_task *task)
{
    enum step step = peek(server, &task->demand, true);

    if (step == STEP_ANSWER || !server->store->class->peek ||
        lk_waiters_add(&server->waiters, &task->waiter, task->demand.op.hash,
                       task->deadline_ms)) {
        push_settled(server, task);
    }
}

/* `await`: what becomes of those who await. */
static void wake(struct lk_server *server, struct lk_waiter *waiter,
                 void (*await)(struct lk_server *, struct lk_task *))
{
    while (waiter) {
        struct lk_waiter *next = waiter->next;
        struct lk_task *task = task_of(waiter);
        if (task->demand.kind == LK_TASK_AWAIT) {
            await(server, task);
        } else {
            decide_again(server, task);
        }
        waiter = next;
    }
}

void lk_operation_settled(struct lk_server *server, struct lk_hash128 hash)
{
    wake(server, lk_waiters_take(&server->waiters, hash), push_settled);
}

void lk_operation_settled_all(struct lk_server *server)
{
    wake(server, lk_waiters_take_all(&server->waiters), await_again);
}

/* An await whose time is up is forgotten; a claim gets its latest verdict. */
static void expire(struct lk_server *server, struct lk_task *task)
{
    if (task->demand.kind != LK_TASK_AWAIT) {
        task->final = true;
        decide_again(server, task);
    } else if (task->queued) {
        unlink_await(task);
        lk_task_free(server, task);
    } else {
        task->final = true; /* freed once QUEUED is written */
    }
}

void lk_operation_expire(struct lk_server *server, uint64_t until_ms)
{
    struct lk_waiter *waiter;

    while ((waiter = lk_waiters_expire(&server->waiters, until_ms))) {
        expire(server, task_of(waiter));
    }
}

void lk_operation_forget_awaits(struct lk_conn *conn)
{
    while (conn->awaits) {
        struct lk_task *task = conn->awaits;
        unlink_await(task);
        lk_task_free(conn->server, task);
    }
}
