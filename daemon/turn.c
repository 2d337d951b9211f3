/* turn.c - one turn of the loop: what its events lead to, all at once. */
#include "daemon/batcher.h"

#include <stdlib.h>

enum {
    TICK_MOST_MS = 1000,
    TICK_LEAST_MS = 20,
    DOUBTS_MORE_MS = 10 * 1000,
    DOUBTS_SAME_MS = 60 * 1000,
};

/* ---- Lists of connections ------------------------------------------------ */

void lk_server_mark_dirty(struct lk_server *server, struct lk_conn *conn)
{
    if (!conn->dirty) {
        conn->dirty = true;
        conn->next_dirty = server->dirty;
        server->dirty = conn;
    }
}

void lk_server_mark_runnable(struct lk_server *server, struct lk_conn *conn)
{
    if (conn->runnable) {
        return;
    }
    conn->runnable = true;
    conn->next_runnable = NULL;
    if (server->runnable) {
        server->runnable_tail->next_runnable = conn;
    } else {
        server->runnable = conn;
    }
    server->runnable_tail = conn;
}

void lk_server_mark_closed(struct lk_server *server, struct lk_conn *conn)
{
    conn->next_closed = server->closed;
    server->closed = conn;
}

/* A connection that ends must be in no list when its memory goes. */
static void forget_runnable(struct lk_server *server, struct lk_conn *conn)
{
    struct lk_conn *before = NULL;

    for (struct lk_conn *at = server->runnable; at; at = at->next_runnable) {
        if (at != conn) {
            before = at;
            continue;
        }
        *(before ? &before->next_runnable : &server->runnable) =
            at->next_runnable;
        if (server->runnable_tail == at) {
            server->runnable_tail = before;
        }
        return;
    }
}

/* ---- One turn ------------------------------------------------------------ */

static void run_connections(struct lk_server *server)
{
    while (server->runnable && !lk_server_full(server)) {
        struct lk_conn *conn = server->runnable;
        server->runnable = conn->next_runnable;
        conn->runnable = false;
        lk_conn_run(conn);
    }
}

static void flush_connections(struct lk_server *server)
{
    struct lk_conn *conn = server->dirty;

    server->dirty = NULL;
    while (conn) {
        struct lk_conn *next = conn->next_dirty;
        conn->dirty = false;
        lk_conn_flush(conn);
        conn = next;
    }
}

void lk_turn_close_connections(struct lk_server *server)
{
    while (server->closed) {
        struct lk_conn *conn = server->closed;
        server->closed = conn->next_closed;
        if (conn->runnable) {
            forget_runnable(server, conn);
        }
        lk_conn_tear_down(conn);
    }
}

static void on_wait_timer(uv_timer_t *timer)
{
    struct lk_server *server = timer->data;

    server->armed_ms = UINT64_MAX;
    lk_operation_expire(server, uv_now(&server->loop));
}

static void arm_wait_timer(struct lk_server *server)
{
    uint64_t next = lk_waiters_next(&server->waiters);
    uint64_t now = uv_now(&server->loop);

    if (next == server->armed_ms) {
        return;
    }
    server->armed_ms = next;
    if (next == UINT64_MAX) {
        uv_timer_stop(&server->wait_timer);
    } else {
        uv_timer_start(&server->wait_timer, on_wait_timer,
                       next > now ? next - now : 0, 0);
    }
}

/*
 * The end of a turn: everything that the events of this turn have led to is
 * handed over and written at once, one lock for each queue and one write for
 * each connection. The store gets its work before the replies are written.
 */
static void end_turn(struct lk_server *server)
{
    lk_conn_feed(server);
    run_connections(server);
    lk_task_hand_over(server);
    while (server->dirty || server->closed) {
        flush_connections(server);
        lk_turn_close_connections(server);
    }
    arm_wait_timer(server);
    if (server->stop_by_ms) {
        lk_server_go_on_stopping(server);
    }
}

static void on_prepare(uv_prepare_t *prepare)
{
    end_turn(prepare->data);
}

static void on_check(uv_check_t *check)
{
    end_turn(check->data);
}

/* ---- What other threads bring back --------------------------------------- */

static void on_returned(uv_async_t *async)
{
    struct lk_server *server = async->data;
    struct lk_returns *returns = &server->returns;
    struct lk_task *task;

    uv_mutex_lock(&returns->mutex);
    struct lk_task_queue tasks = returns->tasks;
    struct lk_hash128 *settled = returns->settled;
    size_t count = returns->settled_count;
    bool settle_all = returns->settle_all;
    bool queued = returns->queued;
    returns->tasks = (struct lk_task_queue){0};
    returns->settle_all = returns->queued = false;
    if (count) {
        returns->settled = NULL;
        returns->settled_count = returns->settled_cap = 0;
    }
    uv_mutex_unlock(&returns->mutex);

    if (queued) {
        lk_outbox_wake(server);
    }
    while ((task = lk_task_queue_take(&tasks))) {
        lk_task_returned(server, task);
    }
    for (size_t i = 0; i < count; i++) {
        lk_operation_settled(server, settled[i]);
    }
    if (settle_all) {
        /* Another server perhaps, which knows less than the one before. */
        lk_cache_clear(&server->cache);
        lk_operation_settled_all(server);
    }
    if (count) {
        free(settled);
    }
}

/* ---- Time ---------------------------------------------------------------- */

static uint64_t tick_interval(const struct lk_server *server)
{
    const struct lk_config *config = &server->config;
    uint64_t interval =
        server->lists[LK_LIST_STARVED].count ? LK_TURN_MS : TICK_MOST_MS;
    uint64_t timeouts[] = {config->idle_timeout_ms, config->client_timeout_ms,
                           config->auth_timeout_ms, config->auth_delay_ms};

    for (int i = 0; i < 4; i++) {
        if (timeouts[i] && timeouts[i] / 4 < interval) {
            interval = timeouts[i] / 4;
        }
    }
    return interval > TICK_LEAST_MS ? interval : TICK_LEAST_MS;
}

/*
 * What is uncertain needs a person, so the log has it when it happens, and once
 * a minute while it lasts. More of them are not told more often than every ten
 * seconds: an outage makes many.
 */
static void tell_doubts(struct lk_server *server, uint64_t now)
{
    struct lk_doubts_told *told = &server->doubts;
    struct lk_store_stats stats;

    lk_server_store_stats(server, &stats);
    uint64_t count = stats.by_state[LK_STATE_UNCERTAIN];
    uint64_t pause = count > told->count ? DOUBTS_MORE_MS : DOUBTS_SAME_MS;
    if (!count || (told->count && now - told->at_ms < pause)) {
        told->count = count < told->count ? count : told->count;
        return;
    }
    uint64_t since = stats.oldest_operation_ms;
    lk_log(LK_LOG_WARN, "uncertain", "kind=operation count=%llu oldest_s=%llu",
           (unsigned long long)count,
           (unsigned long long)(stats.now_ms > since && since
                                    ? (stats.now_ms - since) / 1000
                                    : 0));
    *told = (struct lk_doubts_told){count, now};
}

static void on_tick(uv_timer_t *timer)
{
    struct lk_server *server = timer->data;
    uint64_t now = uv_now(&server->loop);

    tell_doubts(server, now);
    lk_conns_tick(server, now);
    lk_guesses_tell(server, now);
    uv_timer_start(timer, on_tick, tick_interval(server), 0);
}

static void on_poll(uv_timer_t *timer)
{
    lk_operation_settled_all(timer->data);
}

void lk_turn_poll(struct lk_server *server)
{
    uint64_t interval = server->config.poll_ms;

    if (server->store->shared) {
        uv_timer_start(&server->poll, on_poll, interval, interval);
    }
}

bool lk_turn_start(struct lk_server *server)
{
    uv_loop_t *loop = &server->loop;

    server->returns.async.data = server;
    server->wait_timer.data = server->tick.data = server;
    server->poll.data = server;
    server->prepare.data = server->check.data = server;
    server->armed_ms = UINT64_MAX;
    return !uv_async_init(loop, &server->returns.async, on_returned) &&
           !uv_timer_init(loop, &server->wait_timer) &&
           !uv_timer_init(loop, &server->tick) &&
           !uv_timer_init(loop, &server->poll) &&
           !uv_prepare_init(loop, &server->prepare) &&
           !uv_check_init(loop, &server->check) &&
           !uv_prepare_start(&server->prepare, on_prepare) &&
           !uv_check_start(&server->check, on_check) &&
           !uv_timer_start(&server->tick, on_tick, tick_interval(server), 0);
}
