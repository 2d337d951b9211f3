/* server.c - the daemon's start, its signals and its end. */
#include "daemon/batcher.h"
#include "daemon/notify.h"
#include "daemon/thread.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- Stop ---------------------------------------------------------------- */

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
    lk_turn_close_connections(server);
}

/* Ends the loop when everything is answered and sent, or time is up. */
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
    lk_outbox_hush(server);
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

static void drop_returned(struct lk_server *server)
{
    struct lk_task *task;

    while ((task = lk_task_queue_take(&server->returns.tasks))) {
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

/* Long work that still runs cannot be told to stop, and needs the store. What
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

/* A try to open the store cannot be told to stop, and nothing depends on it. */
static void leave_running_try(struct lk_server *server)
{
    if (!lk_opening_stop(server)) {
        lk_log(LK_LOG_INFO, "stopped", "pid=%d", (int)getpid());
        _exit(EXIT_SUCCESS);
    }
}

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
    free(server->guesses.places);
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
              !uv_mutex_init(&server->wake_mutex) && lk_turn_start(server);
    for (int i = 0; ok && i < 3; i++) {
        server->signals[i].data = server;
        ok = !uv_signal_init(loop, &server->signals[i]) &&
             !uv_signal_start(&server->signals[i], on_signal, numbers[i]);
    }
    return ok;
}

enum lk_status lk_server_take_store(struct lk_server *server)
{
    const struct lk_config *config = &server->config;
    enum lk_status status =
        lk_batcher_start(server->store, &server->returns, config->batch_ops,
                         sweep_interval(config), &server->batcher);

    if (!status) {
        set_awake(server, server->batcher);
        lk_turn_poll(server);
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

bool lk_server_run(struct lk_server *server)
{
    uv_run(&server->loop, UV_RUN_DEFAULT);
    close_server(server);
    lk_log(LK_LOG_INFO, "stopped", "pid=%d", (int)getpid());
    return !server->failed;
}
