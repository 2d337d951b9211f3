/*
 * store_opening.c - opens the store at the start, or later, when its server can
 * be reached.
 *
 * phase    server->store  what is legal
 * opening  NULL           listening; what needs the store gets UNAVAILABLE
 * open     set, for good  everything
 *
 * A store on a server that cannot be used yet is tried again, each time from
 * the beginning: whatever an opening checks (the server's settings and version,
 * the schema, the secrets, the promise that store.strict asks for, that tokens
 * go on above those of before) has been checked before anything is decided. A
 * try runs on a thread of its own, which has `config`, `found`, `status` and
 * `error` until it ends.
 */
#include "daemon/batcher.h"
#include "daemon/notify.h"
#include "daemon/thread.h"

#include <stdio.h>
#include <string.h>

enum {
    PAUSE_LEAST_MS = 100,
    PAUSE_MOST_MS = 1000,
    LOG_OTHER_MS = 10 * 1000, /* the log: another cause, the same cause */
    LOG_SAME_MS = 60 * 1000,
};

/* ---- One try ------------------------------------------------------------- */

/* Any thread: the store's own lines, as the event "store". */
static void on_store_log(void *context, int level, const char *line)
{
    char shown[LK_LOG_LINE / 2];

    lk_log((enum lk_log_level)level, "store", "text=%s",
           lk_log_quote(latchkey_slice(line), shown, sizeof(shown)));
}

/* Before the batcher runs there is no one to wake; it looks by itself. */
static void on_store_wake(void *context)
{
    struct lk_server *server = context;

    uv_mutex_lock(&server->wake_mutex);
    if (server->awake) {
        lk_batcher_hurry(server->awake);
    }
    uv_mutex_unlock(&server->wake_mutex);
}

static void fill_config(struct lk_server *server, struct lk_store_config *store)
{
    lk_config_store(&server->config, store);
    store->log = on_store_log;
    store->wake = on_store_wake;
    store->wake_context = server;
}

/* LK_INVALID: the store promises less than store.strict demands; `error` has
 * the reason. */
static enum lk_status require_strict(struct lk_store *store,
                                     struct lk_buf *error)
{
    struct lk_buf text = {0};
    bool strict = false;
    enum lk_status status = store->class->describe(store, &text, &strict);

    if (!status && !strict) {
        status = latchkey_buf_printf(
            error,
            "store.strict is set, but with its present settings this store "
            "promises less: %.*s",
            (int)text.len, text.data);
        status = status ? status : LK_INVALID;
    }
    latchkey_buf_free(&text);
    return status;
}

/* One try: `found` is open and `status` LK_OK, or `found` is NULL and `error`
 * has the reason. On the loop thread at the start, later on a thread of its
 * own. */
static void try_once(struct lk_opening *opening)
{
    struct lk_store_config *config = &opening->config;

    opening->error.len = 0;
    opening->found = NULL;
    opening->status =
        lk_store_open(opening->url, config, &opening->found, &opening->error);
    if (!opening->status && config->strict) {
        opening->status = require_strict(opening->found, &opening->error);
        if (opening->status) {
            lk_store_close(opening->found);
            opening->found = NULL;
        }
    }
}

/* The thread of a try. After `returned` it touches nothing but the async
 * handle. */
static void run_try(void *context)
{
    struct lk_opening *opening = context;

    try_once(opening);
    atomic_store(&opening->returned, true);
    uv_async_send(&opening->async);
}

/* ---- What is said of it -------------------------------------------------- */

/* One line, whatever a server has written into it. */
static void set_trouble(struct lk_opening *opening)
{
    struct lk_slice why =
        opening->error.len
            ? latchkey_buf_slice(&opening->error)
            : latchkey_slice(latchkey_status_text(opening->status));
    size_t len = 0;

    for (; len < why.len && len < sizeof(opening->failure) - 1; len++) {
        unsigned char byte = (unsigned char)why.data[len];
        opening->failure[len] = byte < 0x20 || byte == 0x7f ? ' ' : (char)byte;
    }
    opening->failure[len] = '\0';
}

static void log_trouble(const struct lk_opening *opening, const char *event,
                        const char *note)
{
    char shown[LK_LOG_LINE / 2];

    lk_log(LK_LOG_ERROR, event, "error=%s%s",
           lk_log_quote(latchkey_slice(opening->failure), shown, sizeof(shown)),
           note);
}

/* When it begins, when the cause is another one, and once a minute. */
static void tell_away(struct lk_server *server)
{
    struct lk_opening *opening = &server->opening;
    uint64_t now = uv_now(&server->loop);
    bool same = !strcmp(opening->failure, opening->logged);
    char status[sizeof(opening->failure) + 64];

    if (opening->logged[0] &&
        now - opening->logged_ms < (same ? LOG_SAME_MS : LOG_OTHER_MS)) {
        return;
    }
    memcpy(opening->logged, opening->failure, sizeof(opening->logged));
    opening->logged_ms = now;
    log_trouble(opening, "store-unavailable", " note=\"it is tried again\"");
    snprintf(status, sizeof(status), "the store is unavailable: %s",
             opening->failure);
    lk_server_say(LK_NOTIFY_STATUS, status);
}

/* Logs that the store is open and, after an outage, how long it lasted. */
static void tell_open(struct lk_server *server)
{
    struct lk_opening *opening = &server->opening;
    uint64_t away = uv_now(&server->loop) - opening->since_ms;

    lk_log(LK_LOG_INFO, "store-open", "scheme=%s promise=\"%s\"",
           server->store->class->scheme, server->store->promise);
    if (opening->logged[0]) {
        lk_log(LK_LOG_INFO, "store-available", "away_s=%llu",
               (unsigned long long)away / 1000);
        lk_server_say(LK_NOTIFY_STATUS, "");
    }
}

/* ---- The loop thread ----------------------------------------------------- */

/* Starts a try. The settings are read again, since a reload may have changed
 * them. */
static void on_timer(uv_timer_t *timer)
{
    struct lk_opening *opening = timer->data;
    struct lk_server *server = opening->async.data;

    fill_config(server, &opening->config);
    atomic_store(&opening->returned, false);
    opening->trying = !lk_thread_create(&opening->thread, run_try, opening);
    if (!opening->trying) {
        uv_timer_start(timer, on_timer, PAUSE_MOST_MS, 0);
    }
}

/* The pause doubles from PAUSE_LEAST_MS to PAUSE_MOST_MS. */
static void wait_for_next(struct lk_opening *opening)
{
    uint64_t pause = opening->pause_ms ? opening->pause_ms : PAUSE_LEAST_MS;

    opening->pause_ms = pause * 2 < PAUSE_MOST_MS ? pause * 2 : PAUSE_MOST_MS;
    uv_timer_start(&opening->timer, on_timer, pause, 0);
}

/* A greeting without the store's name must not outlast the opening: the gateway
 * distinguishes stores by that name. */
static void close_unnamed(struct lk_server *server)
{
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        if (conn->unnamed) {
            lk_conn_close(conn, "store-opened");
        }
    }
}

/* The rest of the daemon could not be started: systemd tries again. */
static void give_up(struct lk_server *server, enum lk_status status)
{
    lk_log(LK_LOG_ERROR, "store-failed", "error=\"%s\"",
           latchkey_status_text(status));
    server->failed = true;
    lk_server_stop(server);
}

/* A try has ended. From here on server->store is set for good; the first
 * commands may come in this turn of the loop. */
static void on_tried(uv_async_t *async)
{
    struct lk_server *server = async->data;
    struct lk_opening *opening = &server->opening;

    if (!opening->trying || !atomic_load(&opening->returned)) {
        return;
    }
    uv_thread_join(&opening->thread);
    opening->trying = false;
    if (server->stop_by_ms) {
        lk_store_close(opening->found);
        opening->found = NULL;
    } else if (opening->status) {
        set_trouble(opening);
        tell_away(server);
        wait_for_next(opening);
    } else {
        server->store = opening->found;
        close_unnamed(server);
        tell_open(server);
        enum lk_status status = lk_server_take_store(server);
        if (status) {
            give_up(server, status);
        }
    }
}

/* The first try blocks: nothing is served yet. A URL that is wrong, or an
 * embedded store that cannot be opened, ends the daemon; waiting would not
 * help. */
enum lk_status lk_opening_start(struct lk_server *server)
{
    struct lk_opening *opening = &server->opening;

    if (uv_async_init(&server->loop, &opening->async, on_tried) ||
        uv_timer_init(&server->loop, &opening->timer)) {
        return LK_NOMEM;
    }
    opening->async.data = server;
    opening->timer.data = opening;
    opening->url = server->config.store_url;
    opening->since_ms = uv_now(&server->loop);
    fill_config(server, &opening->config);
    opening->status = lk_store_check(opening->url, &opening->config,
                                     &opening->class, &opening->error);
    bool wrong = opening->status != LK_OK;
    if (!wrong) {
        try_once(opening);
    }
    server->store = opening->found;
    if (!opening->status) {
        tell_open(server);
        return LK_OK;
    }
    set_trouble(opening);
    if (wrong || !opening->class->check) {
        log_trouble(opening, "store-failed", "");
        return opening->status;
    }
    tell_away(server);
    wait_for_next(opening);
    return LK_OK;
}

bool lk_opening_stop(struct lk_server *server)
{
    struct lk_opening *opening = &server->opening;

    if (opening->trying && !atomic_load(&opening->returned)) {
        pthread_detach(opening->thread); /* the process ends without it */
        return false;
    }
    if (opening->trying) {
        uv_thread_join(&opening->thread);
        opening->trying = false;
        lk_store_close(opening->found);
    }
    latchkey_buf_free(&opening->error);
    return true;
}

void lk_server_store_stats(struct lk_server *server,
                           struct lk_store_stats *stats)
{
    *stats = (struct lk_store_stats){0};
    if (server->store) {
        server->store->class->stats(server->store, stats);
    } else {
        snprintf(stats->failure, sizeof(stats->failure), "%s",
                 server->opening.failure);
    }
}
