/*
 * outbox.c - the courier's start, reload and end, as the server sees them.
 *
 * Loop thread, except the two callbacks that the courier calls. The daemon
 * knows the courier through struct lk_outbox_class alone; server->courier is
 * NULL while none runs.
 */
#include "daemon/outbox.h"
#include "daemon/batcher.h"

/* The courier's thread: job batches go to the same store thread as all
 * others. */
static void hand_work(void *context, struct lk_job_batch *job_batch)
{
    struct lk_server *server = context;

    lk_batcher_job_batch(server->batcher, job_batch);
}

/* On the courier's thread. */
static void tell_over(void *context)
{
    struct lk_server *server = context;

    uv_async_send(&server->courier_over);
}

static void on_over(uv_async_t *async)
{
    struct lk_server *server = async->data;

    server->courier_ended = true;
}

/* Names only: URLs may hold secrets. */
static void log_targets(const struct lk_server *server)
{
    const struct lk_config *config = &server->config;
    char names[LK_LOG_LINE / 2];

    lk_targets_names(&config->targets, ",", names, sizeof(names));
    lk_log(LK_LOG_INFO, "targets", "names=%s gateway=%s courier=%s%s",
           *names ? names : "none", config->gateway ? "yes" : "no",
           server->courier ? "yes" : "no",
           server->courier ? "" : " note=\"jobs wait\"");
}

/* Once, however often a start fails. */
static enum lk_status make_async(struct lk_server *server)
{
    uv_async_t *async = &server->courier_over;

    if (!async->data && uv_async_init(&server->loop, async, on_over)) {
        return LK_NOMEM;
    }
    async->data = server;
    return LK_OK;
}

enum lk_status lk_outbox_start(struct lk_server *server)
{
    const struct lk_outbox_setup setup = {.config = &server->config,
                                          .store = server->store,
                                          .job_batch = hand_work,
                                          .over = tell_over,
                                          .context = server};
    bool keeps_jobs = server->store->class->jobs != NULL;
    enum lk_status status = LK_OK;

    if (!keeps_jobs) {
        return LK_OK;
    }
    if (server->outbox_class && lk_config_has_courier(&server->config)) {
        status = make_async(server);
        status = status ? status
                        : server->outbox_class->start(&setup, &server->courier);
    }
    if (!status) {
        log_targets(server);
    }
    return status;
}

void lk_outbox_wake(struct lk_server *server)
{
    if (server->courier) {
        server->outbox_class->wake(server->courier);
    }
}

/* The first target starts a courier. Without targets one goes on, and has
 * nothing to do: to stop it would hold up the loop. */
void lk_outbox_reload(struct lk_server *server)
{
    if (server->courier) {
        server->outbox_class->reload(server->courier, &server->config);
        log_targets(server);
    } else if (lk_outbox_start(server)) {
        lk_log(LK_LOG_ERROR, "reload-incomplete",
               "error=\"the courier could not be started\"");
    }
}

/* Clients that wait for a TARGET PROBE get their reply now. */
void lk_outbox_stop_probing(struct lk_server *server)
{
    if (server->courier && server->outbox_class->cancel_probes) {
        server->outbox_class->cancel_probes(server->courier);
    }
}

/* Calls in progress get `grace_ms` to end. The loop runs in the meantime, for a
 * second signal that ends the wait. */
static void await_end(struct lk_server *server)
{
    bool hurried = server->asked_twice;
    uint64_t grace_ms = hurried ? 0 : server->config.grace_ms;

    lk_log(LK_LOG_INFO, "courier-stopping", "grace_ms=%llu",
           (unsigned long long)grace_ms);
    server->outbox_class->end(server->courier, grace_ms);
    while (!server->courier_ended) {
        uv_run(&server->loop, UV_RUN_ONCE);
        if (server->asked_twice && !hurried) {
            hurried = true;
            server->outbox_class->end(server->courier, 0);
        }
    }
}

/* Before the batcher stops: the courier still has results to store. */
void lk_outbox_stop(struct lk_server *server)
{
    if (server->courier) {
        await_end(server);
        server->outbox_class->stop(server->courier, 0);
        server->courier = NULL;
    }
}
