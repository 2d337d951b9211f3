/*
 * server.c - the daemon as a whole: its start, the turns of its loop, its
 * signals and its end.
 *
 * A turn of the loop is: events come in (input, timers, tasks that are back),
 * each may run commands and make replies ready; then end_turn hands tasks to
 * the other threads, writes replies and closes connections. While it serves,
 * the loop thread does not wait for the store. Connections are freed at the end
 * of a turn only, so pointers to them are valid until then.
 */
#include "daemon/batcher.h"
#include "daemon/notify.h"
#include "daemon/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    TICK_MOST_MS = 1000,
    TICK_LEAST_MS = 20,
    UNCERTAIN_MORE_MS = 10 * 1000,
    UNCERTAIN_SAME_MS = 60 * 1000,
};

/* ---- Lists of connections ------------------------------------------------ */

/* The connection may have replies to write at the end of this turn. */
void lk_server_mark_dirty(struct lk_server *server, struct lk_conn *conn)
{
    if (!conn->dirty) {
        conn->dirty = true;
        conn->next_dirty = server->dirty;
        server->dirty = conn;
    }
}

/* The connection has input that could not be run; first come, first served. */
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

/* A full queue ends the round; the others keep their places for the next
 * turn. */
static void run_connections(struct lk_server *server)
{
    while (server->runnable && !lk_server_full(server)) {
        struct lk_conn *conn = server->runnable;
        server->runnable = conn->next_runnable;
        conn->runnable = false;
        lk_conn_run(conn);
    }
}

/* The list is taken whole: what becomes dirty by a flush is for the next
 * round. */
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

/* Ends all connections that were closed in this turn. */
void lk_server_close_connections(struct lk_server *server)
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

/* One timer for all waiters: it is set again only if the earliest deadline has
 * changed. */
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
        lk_server_close_connections(server);
    }
    arm_wait_timer(server);
    if (server->stop_by_ms) {
        lk_server_go_on_stopping(server);
    }
}

/* A turn ends before the loop sleeps, for what timers have led to, and after it
 * has polled, for input and returned tasks. */
static void on_prepare(uv_prepare_t *prepare)
{
    end_turn(prepare->data);
}

static void on_check(uv_check_t *check)
{
    end_turn(check->data);
}

/* ---- What other threads bring back --------------------------------------- */

/* The one way back from other threads: first the tasks, then what settled, so
 * that a claim is parked before its operation can wake it. */
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

/* A quarter of the shortest timeout that is set, within the two bounds. */
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
 * a minute while it lasts. More of them are not logged more often than every
 * ten seconds: an outage makes many.
 */
static void log_uncertain(struct lk_server *server, uint64_t now)
{
    struct lk_uncertain_logged *logged = &server->uncertain;
    struct lk_store_stats stats;

    lk_server_store_stats(server, &stats);
    uint64_t count = stats.by_state[LK_STATE_UNCERTAIN];
    uint64_t pause =
        count > logged->count ? UNCERTAIN_MORE_MS : UNCERTAIN_SAME_MS;
    if (!count || (logged->count && now - logged->at_ms < pause)) {
        logged->count = count < logged->count ? count : logged->count;
        return;
    }
    uint64_t since = stats.oldest_operation_ms;
    lk_log(LK_LOG_WARN, "uncertain", "kind=operation count=%llu oldest_s=%llu",
           (unsigned long long)count,
           (unsigned long long)(stats.now_ms > since && since
                                    ? (stats.now_ms - since) / 1000
                                    : 0));
    *logged = (struct lk_uncertain_logged){count, now};
}

static void on_tick(uv_timer_t *timer)
{
    struct lk_server *server = timer->data;
    uint64_t now = uv_now(&server->loop);

    log_uncertain(server, now);
    lk_conns_tick(server, now);
    lk_auth_log_failures(server, now);
    uv_timer_start(timer, on_tick, tick_interval(server), 0);
}

/* A shared store: another daemon may have settled what is waited for here. */
static void on_poll(uv_timer_t *timer)
{
    lk_operation_settled_all(timer->data);
}

void lk_server_start_polling(struct lk_server *server)
{
    uint64_t interval = server->config.poll_ms;

    if (server->store->shared) {
        uv_timer_start(&server->poll, on_poll, interval, interval);
    }
}

bool lk_server_start_turns(struct lk_server *server)
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

/* ---- Stop ---------------------------------------------------------------- */

/* Is there a command without a reply, or a reply that is not written yet? */
static bool has_unanswered(const struct lk_server *server)
{
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        if (conn->head || conn->out.len || conn->writing.len) {
            return true;
        }
    }
    return false;
}

static void close_all(struct lk_server *server)
{
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        lk_conn_close(conn, NULL);
    }
    lk_server_close_connections(server);
}

/* Ends the loop when every reply is sent, or time is up. */
void lk_server_go_on_stopping(struct lk_server *server)
{
    bool late = uv_now(&server->loop) >= server->stop_by_ms;

    if (server->served) {
        return;
    }
    if (!late && (server->queued_ops || has_unanswered(server))) {
        return;
    }
    if (late) {
        lk_log(LK_LOG_WARN, "stop-cut-short", "unanswered=%zu connections=%zu",
               server->queued_ops, server->conn_count);
        server->hung = server->queued_ops > 0 && !server->asked_twice;
    }
    server->served = true;
    close_all(server);
    uv_stop(&server->loop);
}

void lk_server_say(enum lk_notify_event event, const char *text)
{
    enum lk_status status = lk_notify(event, text);

    if (status) {
        lk_log(LK_LOG_WARN, "notify-failed", "error=\"%s\"",
               latchkey_status_text(status));
    }
}

/* Stops listening and reading at once; commands that were read get replies, and
 * claims that wait get their latest verdict. At most LK_STOP_BOUND_MS. */
void lk_server_stop(struct lk_server *server)
{
    uint64_t now = uv_now(&server->loop);

    if (server->stop_by_ms) {
        server->stop_by_ms = now;
        server->asked_twice = true;
        return;
    }
    server->stop_by_ms = now + LK_STOP_BOUND_MS;
    lk_log(LK_LOG_INFO, "stopping", "connections=%zu queued=%zu waiting=%zu",
           server->conn_count, server->queued_ops, server->waiters.count);
    lk_server_say(LK_NOTIFY_STOPPING, NULL);
    lk_server_stop_listening(server);
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        lk_conn_stop_reading(conn);
    }
    lk_operation_expire(server, UINT64_MAX);
    lk_outbox_stop_probing(server);
}

/* ---- Signals ------------------------------------------------------------- */

static void log_lines(enum lk_log_level level, const char *event,
                      struct lk_buf *lines)
{
    char shown[LK_LOG_LINE];
    struct lk_slice text = latchkey_buf_slice(lines);

    while (text.len && text.data[text.len - 1] == '\n') {
        text.len--;
    }
    if (text.len) {
        lk_log(level, event, "text=%s",
               lk_log_quote(text, shown, sizeof(shown) / 2));
    }
}

/* A daemon that only delivers leaves the keeping to the others. */
static uint64_t sweep_interval(const struct lk_config *config)
{
    return config->courier_only ? 0 : config->sweep_interval_ms;
}

/* Settings that cannot be read change nothing. Rights come first, so that no
 * command runs with a right that was taken away. */
static void reload(struct lk_server *server)
{
    struct lk_config fresh;
    struct lk_buf errors = {0};
    struct lk_buf notes = {0};
    enum lk_status status;

    lk_server_say(LK_NOTIFY_RELOADING, NULL);
    status = lk_options_read(server->options, &fresh, &errors, &notes);
    if (status) {
        log_lines(LK_LOG_ERROR, "reload-failed", &errors);
    } else {
        log_lines(LK_LOG_WARN, "setting-warning", &notes);
        notes.len = 0;
        if (lk_config_adopt(&server->config, &fresh, &notes)) {
            lk_log(LK_LOG_WARN, "reload-incomplete", "error=\"out of memory\"");
        }
        log_lines(LK_LOG_WARN, "needs-restart", &notes);
        lk_rights_reload(server, &fresh); /* which has the old ones now */
        lk_config_free(&fresh);
        lk_log_set_level((enum lk_log_level)server->config.log_level);
        lk_cache_set_max(&server->cache, server->config.cache_bytes);
        if (server->store) {
            lk_batcher_set_sweep(server->batcher,
                                 sweep_interval(&server->config));
            lk_outbox_reload(server);
        }
        lk_log(LK_LOG_INFO, "reloaded", "connections=%zu", server->conn_count);
    }
    latchkey_buf_free(&errors);
    latchkey_buf_free(&notes);
    lk_server_say(LK_NOTIFY_READY, NULL);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct lk_server *server = handle->data;

    if (number == SIGHUP) {
        reload(server);
    } else {
        lk_server_stop(server);
    }
}

/* ---- End ----------------------------------------------------------------- */

/* What came back after the last turn has no client any more. */
static void drop_returned(struct lk_server *server)
{
    struct lk_task *task;

    while ((task = lk_task_queue_take(&server->returns.tasks))) {
        task->at = LK_PLACE_HERE; /* its thread has ended */
        lk_task_free(server, task);
    }
    free(server->returns.settled);
}

static void close_handle(uv_handle_t *handle, void *context)
{
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

/* Waiting for a thread that hangs in the disk would break the bound. Nothing
 * that was acknowledged is lost by leaving without it. */
static void leave_hung_store(struct lk_server *server)
{
    if (server->hung) {
        lk_log(LK_LOG_ERROR, "store-hangs", "unanswered=%zu",
               server->queued_ops);
        _exit(EXIT_FAILURE);
    }
}

/* Long work that still runs cannot be stopped, and needs the store. What
 * is durable stays so; the half-written copy of a backup is not a database yet.
 */
static void leave_long_work(struct lk_server *server)
{
    if (server->long_work.task && !atomic_load(&server->long_work.returned)) {
        lk_log(LK_LOG_WARN, "long-work-cut-off", "command=%s",
               server->long_work.task->command->name);
        _exit(0);
    }
    if (server->long_work.task) {
        lk_long_work_finished(server, server->long_work.task);
    }
}

/* Whom a thread of the store may wake. */
static void set_awake(struct lk_server *server, struct lk_batcher *batcher)
{
    uv_mutex_lock(&server->wake_mutex);
    server->awake = batcher;
    uv_mutex_unlock(&server->wake_mutex);
}

/* A try to open the store cannot be stopped, and nothing depends on it. */
static void leave_running_try(struct lk_server *server)
{
    if (!lk_opening_stop(server)) {
        lk_log(LK_LOG_INFO, "stopped", "pid=%d", (int)getpid());
        _exit(EXIT_SUCCESS);
    }
}

/* Everything ends in this order: no new clients, the courier, the threads that
 * use the store, the store, the loop. */
static void close_server(struct lk_server *server)
{
    lk_server_stop_listening(server);
    leave_running_try(server);
    leave_hung_store(server);
    lk_outbox_stop(server);
    lk_checkup_stop(server);
    set_awake(server, NULL);
    lk_batcher_stop(server->batcher);
    lk_reader_stop(server->reader);
    leave_long_work(server);
    drop_returned(server);
    lk_store_close(server->store);
    lk_cache_free(&server->cache);
    free(server->spare_task);
    uv_walk(&server->loop, close_handle, NULL);
    uv_run(&server->loop, UV_RUN_DEFAULT);
    uv_loop_close(&server->loop);
    lk_waiters_free(&server->waiters);
    uv_mutex_destroy(&server->returns.mutex);
    uv_mutex_destroy(&server->wake_mutex);
    latchkey_buf_free(&server->scratch);
    free(server->auth_table.entries);
    for (size_t i = 0; i < server->listener_count; i++) {
        free(server->listeners[i].path);
    }
    free(server->listeners);
}

/* ---- Start --------------------------------------------------------------- */

/* Thousands of connections need more than the usual 1024 descriptors. */
static void raise_limits(const struct lk_config *config)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit)) {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) ||
        limit.rlim_cur < config->connections + 64) {
        lk_log(LK_LOG_WARN, "few-descriptors",
               "limit=%llu connections=%llu advice=\"raise LimitNOFILE\"",
               (unsigned long long)limit.rlim_cur,
               (unsigned long long)config->connections);
    }
}

static bool open_loop(struct lk_server *server)
{
    static const int numbers[3] = {SIGTERM, SIGINT, SIGHUP};
    uv_loop_t *loop = &server->loop;

    signal(SIGPIPE, SIG_IGN);
    if (uv_loop_init(loop)) {
        return false;
    }
    server->started_ms = uv_now(loop);
    bool ok = !uv_mutex_init(&server->returns.mutex) &&
              !uv_mutex_init(&server->wake_mutex) &&
              lk_server_start_turns(server);
    for (int i = 0; ok && i < 3; i++) {
        server->signals[i].data = server;
        ok = !uv_signal_init(loop, &server->signals[i]) &&
             !uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
    return ok;
}

/* On failure the caller ends the daemon: close_server stops what was
 * started. */
enum lk_status lk_server_take_store(struct lk_server *server)
{
    const struct lk_config *config = &server->config;
    enum lk_status status =
        lk_batcher_start(server->store, &server->returns, config->batch_ops,
                         sweep_interval(config), &server->batcher);

    if (!status) {
        set_awake(server, server->batcher);
        lk_server_start_polling(server);
        status =
            lk_reader_start(server->store, &server->returns, &server->reader);
    }
    if (!status) {
        status = lk_checkup_start(server);
    }
    return status ? status : lk_outbox_start(server);
}

enum lk_status lk_server_open(struct lk_server *server)
{
    const struct lk_config *config = &server->config;
    enum lk_status status;

    raise_limits(config);
    lk_waiters_init(&server->waiters);
    lk_cache_init(&server->cache, config->cache_bytes);
    if (!open_loop(server)) {
        lk_log(LK_LOG_ERROR, "loop-failed",
               "error=\"the event loop could not "
               "be set up\"");
        return LK_IO;
    }
    status = lk_opening_start(server);
    if (!status && server->store) {
        status = lk_server_take_store(server);
    }
    if (!status) {
        status = lk_server_listen(server);
    }
    if (!status) {
        lk_log(LK_LOG_INFO, "ready", "version=%s pid=%d", LATCHKEY_VERSION,
               (int)getpid());
        lk_server_say(LK_NOTIFY_READY, NULL);
        return LK_OK;
    }
    close_server(server);
    return status;
}

/* The loop returns only by uv_stop, in lk_server_go_on_stopping. */
bool lk_server_run(struct lk_server *server)
{
    uv_run(&server->loop, UV_RUN_DEFAULT);
    close_server(server);
    lk_log(LK_LOG_INFO, "stopped", "pid=%d", (int)getpid());
    return !server->failed;
}
