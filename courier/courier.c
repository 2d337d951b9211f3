/* courier.c - delivers jobs: start, stop, and the thread's loop. */
#include "daemon/outbox.h"

static enum lk_status start(const struct lk_outbox_setup *setup, void **courier)
{
    *courier = NULL;
    return LK_OK;
}

static void wake(void *courier)
{
}

static void reload(void *courier, const struct lk_config *config)
{
}

static void status(void *courier, lk_target_status_fn row, void *context)
{
}

static void stop(void *courier, uint64_t grace_ms)
{
}

const struct lk_outbox_class lk_courier_class = {
    .start = start,
    .wake = wake,
    .reload = reload,
    .status = status,
    .stop = stop,
};
