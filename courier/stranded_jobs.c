/*
 * stranded_jobs.c - warns of jobs whose target is not configured here: they
 * would wait for ever unseen. Reading the store may take a while, so the check
 * has a thread of its own; lk_stranded_stop joins it and frees everything.
 */
#include "courier/courier.h"
#include "daemon/log.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <string.h>

#define STRANDED_NS (UINT64_C(60) * 1000000000)

enum { WARNED_MAX = 256 }; /* names; beyond that there is no warning */

struct lk_stranded {
    struct lk_courier *courier;
    uv_thread_t thread;
    char warned[WARNED_MAX][LK_TARGET_NAME_MAX + 1];
    size_t warned_count;
    uv_mutex_t mutex; /* guards all below */
    uv_cond_t wake;
    bool stop;
    bool recheck; /* the targets have changed: forget the names */
};

static bool is_target_known(struct lk_courier *courier, struct lk_slice name)
{
    bool known = false;

    uv_mutex_lock(&courier->mutex);
    for (struct lk_live_target *live = courier->live_targets; live && !known;
         live = live->next) {
        known = live->shown.configured &&
                latchkey_slice_equal(name, latchkey_slice(live->name));
    }
    uv_mutex_unlock(&courier->mutex);
    return known;
}

/* True: the name is new, and there is one warning of it until the targets
 * change. */
static bool add_warned_name(struct lk_stranded *stranded, struct lk_slice name)
{
    for (size_t i = 0; i < stranded->warned_count; i++) {
        if (latchkey_slice_equal(name, latchkey_slice(stranded->warned[i]))) {
            return false;
        }
    }
    if (stranded->warned_count == WARNED_MAX || name.len > LK_TARGET_NAME_MAX) {
        return false;
    }
    char *at = stranded->warned[stranded->warned_count++];
    memcpy(at, name.data, name.len);
    at[name.len] = 0;
    return true;
}

/* Called by the store for each target that has jobs. */
static bool check_target_summary(void *context,
                                 const struct lk_target_summary *summary)
{
    struct lk_stranded *stranded = context;
    /* A leased job was lost, or another courier has it. */
    uint64_t waiting =
        summary->jobs[LK_JOB_WAITING] + summary->jobs[LK_JOB_LEASED];
    char name[LK_LOG_QUOTED];

    if (waiting && !is_target_known(stranded->courier, summary->name) &&
        add_warned_name(stranded, summary->name)) {
        lk_log(LK_LOG_WARN, "target-unknown",
               "target=%s waiting=%llu hint=\"no target of that name is "
               "configured here, its jobs are not delivered\"",
               lk_log_quote(summary->name, name, sizeof(name)),
               (unsigned long long)waiting);
    }
    return true;
}

/* Waits a minute, or until the targets change. False: it is time to stop. */
static bool wait_for_next_check(struct lk_stranded *stranded)
{
    uv_mutex_lock(&stranded->mutex);
    if (!stranded->stop && !stranded->recheck) {
        uv_cond_timedwait(&stranded->wake, &stranded->mutex, STRANDED_NS);
    }
    if (stranded->recheck) {
        stranded->warned_count = 0;
    }
    stranded->recheck = false;
    bool go_on = !stranded->stop;
    uv_mutex_unlock(&stranded->mutex);
    return go_on;
}

/* The thread: checks at once, then each minute and after each reload. */
static void run_stranded_check(void *context)
{
    struct lk_stranded *stranded = context;
    struct lk_store *store = stranded->courier->store;

    do {
        /* If it cannot be read now, it is read next time. */
        (void)!store->class->targets(store, check_target_summary, stranded);
    } while (wait_for_next_check(stranded));
}

enum lk_status lk_stranded_start(struct lk_courier *courier,
                                 struct lk_stranded **stranded)
{
    struct lk_stranded *made = calloc(1, sizeof(*made));

    *stranded = NULL;
    if (!made || uv_mutex_init(&made->mutex)) {
        free(made);
        return LK_NOMEM;
    }
    made->courier = courier;
    if (uv_cond_init(&made->wake)) {
        goto no_cond;
    }
    if (!lk_thread_create(&made->thread, run_stranded_check, made)) {
        *stranded = made;
        return LK_OK;
    }
    uv_cond_destroy(&made->wake);
no_cond:
    uv_mutex_destroy(&made->mutex);
    free(made);
    return LK_NOMEM;
}

void lk_stranded_recheck(struct lk_stranded *stranded)
{
    if (stranded) {
        uv_mutex_lock(&stranded->mutex);
        stranded->recheck = true;
        uv_cond_signal(&stranded->wake);
        uv_mutex_unlock(&stranded->mutex);
    }
}

void lk_stranded_stop(struct lk_stranded *stranded)
{
    if (!stranded) {
        return;
    }
    uv_mutex_lock(&stranded->mutex);
    stranded->stop = true;
    uv_cond_signal(&stranded->wake);
    uv_mutex_unlock(&stranded->mutex);
    uv_thread_join(&stranded->thread);
    uv_cond_destroy(&stranded->wake);
    uv_mutex_destroy(&stranded->mutex);
    free(stranded);
}
