/*
 * watch.c - looks, now and then, for jobs whose target nobody here knows: they
 * would wait for ever and nobody would be told. The store may make us wait, so
 * this is a thread of its own.
 */
#include "courier/courier.h"
#include "daemon/log.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <string.h>

#define WATCH_NS (UINT64_C(60) * 1000000000)

enum { NAMES_MAX = 256 }; /* that were warned of */

struct lk_watch {
    struct lk_courier *courier;
    uv_thread_t thread;
    char names[NAMES_MAX][LK_TARGET_NAME_MAX + 1];
    size_t name_count;
    uv_mutex_t mutex; /* guards all below */
    uv_cond_t wake;
    bool stop;
    bool look; /* the targets have changed */
};

static bool is_known(struct lk_courier *courier, struct lk_slice name)
{
    bool known = false;

    uv_mutex_lock(&courier->mutex);
    for (struct lk_outlet *outlet = courier->outlets; outlet && !known;
         outlet = outlet->next) {
        known = outlet->shown.configured &&
                latchkey_slice_equal(name, latchkey_slice(outlet->name));
    }
    uv_mutex_unlock(&courier->mutex);
    return known;
}

/* Once for each name, until the targets change. */
static bool is_new(struct lk_watch *watch, struct lk_slice name)
{
    for (size_t i = 0; i < watch->name_count; i++) {
        if (latchkey_slice_equal(name, latchkey_slice(watch->names[i]))) {
            return false;
        }
    }
    if (watch->name_count == NAMES_MAX || name.len > LK_TARGET_NAME_MAX) {
        return false;
    }
    char *at = watch->names[watch->name_count++];
    memcpy(at, name.data, name.len);
    at[name.len] = 0;
    return true;
}

static bool look_at(void *context, const struct lk_target_summary *standing)
{
    struct lk_watch *watch = context;
    /* What is leased was lost, or is somebody else's. */
    uint64_t waiting =
        standing->jobs[LK_JOB_WAITING] + standing->jobs[LK_JOB_LEASED];
    char name[LK_LOG_QUOTED];

    if (waiting && !is_known(watch->courier, standing->name) &&
        is_new(watch, standing->name)) {
        lk_log(LK_LOG_WARN, "target-unknown",
               "target=%s waiting=%llu hint=\"nobody here delivers its jobs\"",
               lk_log_quote(standing->name, name, sizeof(name)),
               (unsigned long long)waiting);
    }
    return true;
}

/* False: it is time to stop. */
static bool wait_for_time(struct lk_watch *watch)
{
    uv_mutex_lock(&watch->mutex);
    if (!watch->stop && !watch->look) {
        uv_cond_timedwait(&watch->wake, &watch->mutex, WATCH_NS);
    }
    if (watch->look) {
        watch->name_count = 0;
    }
    watch->look = false;
    bool go_on = !watch->stop;
    uv_mutex_unlock(&watch->mutex);
    return go_on;
}

static void run(void *context)
{
    struct lk_watch *watch = context;
    struct lk_store *store = watch->courier->store;

    do {
        /* What cannot be read now is looked at next time. */
        (void)!store->class->targets(store, look_at, watch);
    } while (wait_for_time(watch));
}

enum lk_status lk_watch_start(struct lk_courier *courier,
                              struct lk_watch **watch)
{
    struct lk_watch *made = calloc(1, sizeof(*made));

    *watch = NULL;
    if (!made || uv_mutex_init(&made->mutex)) {
        free(made);
        return LK_NOMEM;
    }
    made->courier = courier;
    if (uv_cond_init(&made->wake)) {
        goto no_cond;
    }
    if (!lk_thread_create(&made->thread, run, made)) {
        *watch = made;
        return LK_OK;
    }
    uv_cond_destroy(&made->wake);
no_cond:
    uv_mutex_destroy(&made->mutex);
    free(made);
    return LK_NOMEM;
}

void lk_watch_look(struct lk_watch *watch)
{
    if (watch) {
        uv_mutex_lock(&watch->mutex);
        watch->look = true;
        uv_cond_signal(&watch->wake);
        uv_mutex_unlock(&watch->mutex);
    }
}

void lk_watch_stop(struct lk_watch *watch)
{
    if (!watch) {
        return;
    }
    uv_mutex_lock(&watch->mutex);
    watch->stop = true;
    uv_cond_signal(&watch->wake);
    uv_mutex_unlock(&watch->mutex);
    uv_thread_join(&watch->thread);
    uv_cond_destroy(&watch->wake);
    uv_mutex_destroy(&watch->mutex);
    free(watch);
}
