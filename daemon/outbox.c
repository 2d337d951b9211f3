/* outbox.c - the courier's start, reload and end, as the server sees them. */
#include "daemon/outbox.h"
#include "daemon/batcher.h"

/* How long calls under way may go on when the daemon stops. */
enum { GRACE_MS = 5000 };

static void hand_work(void *context, struct lk_work *work)
{
    struct lk_server *server = context;

    lk_batcher_work(server->batcher, work);
}

/* Names only: URLs may hold what is nobody's business. */
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

enum lk_status lk_outbox_start(struct lk_server *server)
{
    const struct lk_outbox_setup setup = {.config = &server->config,
                                          .store = server->store,
                                          .work = hand_work,
                                          .context = server};
    bool keeps_jobs = server->store->class->jobs != NULL;
    enum lk_status status = LK_OK;

    if (!keeps_jobs) {
        return LK_OK;
    }
    if (server->outbox_class && lk_config_has_courier(&server->config)) {
        status = server->outbox_class->start(&setup, &server->courier);
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

void lk_outbox_hush(struct lk_server *server)
{
    if (server->courier && server->outbox_class->hush) {
        server->outbox_class->hush(server->courier);
    }
}

void lk_outbox_stop(struct lk_server *server)
{
    if (server->courier) {
        server->outbox_class->stop(server->courier,
                                   server->asked_twice ? 0 : GRACE_MS);
        server->courier = NULL;
    }
}
