/*
 * redis_place.c - whether there is a primary, the scout that looks for it, and
 * what the settings of the server promise.
 *
 * The place is up or down. While it is down, callers are refused at once: only
 * the scout waits for a server that does not answer.
 *
 *   up      links of the current epoch may be used
 *   down    a link failed, or the server must not be written to; the scout
 *           looks for a primary, at first after 100 ms, then less often
 *   up      the scout found one: the epoch rises, and each link is opened again
 *           by its own thread before its next use
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ==== The scout ========================================================= */

enum {
    PAUSE_LEAST_MS = 100,
    PAUSE_MOST_MS = 1000,
    ASK_MS = 1000,        /* how often one asks who the primary is */
    CHECK_MS = 10 * 1000, /* how often settings are looked at */
};

static void wait_for_change(struct lk_redis_place *place, int64_t deadline)
{
    struct timespec until = {deadline / 1000, deadline % 1000 * 1000000};

    pthread_cond_timedwait(&place->changed, &place->lock, &until);
}

/* ---- The scout -------------------------------------------------------------
 */

/* *anchor is the caller's. */
static enum lk_status look_for_primary(struct lk_redis *store,
                                       char address[LK_REDIS_ADDRESS],
                                       int *anchor, struct lk_buf *why)
{
    struct lk_link link = {.fd = -1};
    uint64_t timeout_ms = store->config.connect_timeout_ms;
    enum lk_status status =
        lk_redis_find(&link, &store->url, store->keys[LK_REDIS_TOKEN].data,
                      timeout_ms, address);

    if (status || link.why[0]) {
        if (latchkey_buf_add_text(why, link.why)) {
            why->len = 0;
        }
    }
    if (!status) {
        if (link.why[0]) {
            lk_redis_log(store, 1, "%s", link.why);
        }
        why->len = 0;
        int64_t deadline = (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms;
        /* Where it is a script, each hello makes the tokens leap. */
        status = lk_redis_check(store, &link, deadline, why);
        if (!status) {
            status = lk_redis_hello(store, &link, deadline, false, why);
        }
        if (status && !why->len && latchkey_buf_add_text(why, link.why)) {
            why->len = 0;
        }
    }
    *anchor = status ? -1 : dup(link.fd);
    lk_link_close(&link);
    return status;
}

/* It does not go away by itself. */
static bool needs_operator(enum lk_status status)
{
    return status == LK_INVALID || status == LK_DENIED ||
           status == LK_VERSION || status == LK_CORRUPT;
}

static void note_search(struct lk_redis *store, enum lk_status status,
                        const char *address, int anchor,
                        const struct lk_buf *why)
{
    struct lk_redis_place *place = &store->place;

    if (status) {
        char was[sizeof(place->failure)];
        memcpy(was, place->failure, sizeof(was));
        place->tries++;
        snprintf(place->failure, sizeof(place->failure), "%.*s", (int)why->len,
                 why->len ? why->data : "");
        if (needs_operator(status) && strcmp(was, place->failure) != 0) {
            lk_redis_log(store, 0, "Redis cannot be used: %s", place->failure);
        }
        return;
    }
    lk_redis_log(store, 2, "Redis answers again, at %s", address);
    snprintf(place->address, sizeof(place->address), "%s", address);
    place->failure[0] = '\0';
    place->epoch++;
    place->up = true;
    if (place->anchor >= 0) {
        close(place->anchor);
    }
    place->anchor = anchor;
    pthread_mutex_lock(&store->numbers_lock);
    store->numbers.reopened++;
    pthread_mutex_unlock(&store->numbers_lock);
}

/* Where there is no one to ask, only settings are looked at. */
static int64_t next_check_ms(const struct lk_redis *store)
{
    bool asks = store->url.service || store->url.count > 1;

    return (int64_t)lk_monotonic_ms() + (asks ? ASK_MS : CHECK_MS);
}

/* The old primary may live on, and answer, after another has taken over; and
 * settings may change under a running server. */
static void check_primary(struct lk_redis *store, struct lk_link *link,
                          const char *address, int64_t *check_at)
{
    uint64_t timeout_ms = store->config.connect_timeout_ms;
    char found[LK_REDIS_ADDRESS] = "";
    struct lk_buf why = {0};

    if (lk_redis_find(link, &store->url, store->keys[LK_REDIS_TOKEN].data,
                      timeout_ms, found)) {
        return; /* a user of a link will notice that it is lost */
    }
    if (strcmp(found, address) != 0) {
        lk_redis_lost(store, link, "another server is the primary now");
    } else if ((int64_t)lk_monotonic_ms() >= *check_at) {
        *check_at = (int64_t)lk_monotonic_ms() + CHECK_MS;
        enum lk_status status = lk_redis_check(
            store, link, (int64_t)lk_monotonic_ms() + (int64_t)timeout_ms,
            &why);
        if (status == LK_INVALID && !latchkey_buf_add(&why, "", 1)) {
            lk_redis_lost(store, link, why.data);
        }
    }
    latchkey_buf_free(&why);
}

/* While all is well. */
static void watch_primary(struct lk_redis *store, int64_t *check_at)
{
    struct lk_redis_place *place = &store->place;
    int64_t until = next_check_ms(store);
    char address[LK_REDIS_ADDRESS];
    struct lk_link link = {.fd = -1, .epoch = place->epoch};

    while (place->up && !place->stopping &&
           (int64_t)lk_monotonic_ms() < until) {
        wait_for_change(place, until);
    }
    if (!place->up || place->stopping) {
        return;
    }
    snprintf(address, sizeof(address), "%s", place->address);
    pthread_mutex_unlock(&place->lock);
    check_primary(store, &link, address, check_at);
    lk_link_close(&link);
    pthread_mutex_lock(&place->lock);
}

static void *run_scout(void *context)
{
    struct lk_redis *store = context;
    struct lk_redis_place *place = &store->place;
    int64_t pause = PAUSE_LEAST_MS;
    int64_t check_at = (int64_t)lk_monotonic_ms() + CHECK_MS;

    pthread_mutex_lock(&place->lock);
    while (!place->stopping) {
        if (place->up) {
            pause = PAUSE_LEAST_MS;
            watch_primary(store, &check_at);
            continue;
        }
        char address[LK_REDIS_ADDRESS] = "";
        struct lk_buf why = {0};
        int anchor;
        pthread_mutex_unlock(&place->lock);
        enum lk_status status = look_for_primary(store, address, &anchor, &why);
        pthread_mutex_lock(&place->lock);
        note_search(store, status, address, anchor, &why);
        latchkey_buf_free(&why);
        pthread_cond_broadcast(&place->changed);
        int64_t again = (int64_t)lk_monotonic_ms() + pause;
        while (status && !place->stopping &&
               (int64_t)lk_monotonic_ms() < again) {
            wait_for_change(place, again);
        }
        pause = pause * 2 < PAUSE_MOST_MS ? pause * 2 : PAUSE_MOST_MS;
    }
    pthread_mutex_unlock(&place->lock);
    return NULL;
}

enum lk_status lk_redis_place_start(struct lk_redis *store)
{
    int code = pthread_create(&store->scout, NULL, run_scout, store);

    store->scouting = code == 0;
    return code ? LK_NOMEM : LK_OK;
}

void lk_redis_place_stop(struct lk_redis *store)
{
    struct lk_redis_place *place = &store->place;

    if (!store->scouting) {
        return;
    }
    pthread_mutex_lock(&place->lock);
    place->stopping = true;
    pthread_cond_broadcast(&place->changed);
    pthread_mutex_unlock(&place->lock);
    pthread_join(store->scout, NULL);
    store->scouting = false;
}

/* ---- Users of links --------------------------------------------------------
 */

/* A server that has just been found to answer is given little time. */
static enum lk_status open_link(struct lk_redis *store, struct lk_link *link,
                                const char *address, int64_t deadline)
{
    int64_t soon =
        (int64_t)lk_monotonic_ms() + (int64_t)store->config.connect_timeout_ms;
    enum lk_status status = lk_redis_greet(link, &store->url, address,
                                           soon < deadline ? soon : deadline);

    if (status) {
        lk_redis_lost(store, link, NULL);
        status = LK_UNAVAILABLE;
    }
    return status;
}

/* With the place's lock. */
static bool anchor_is_gone(const struct lk_redis_place *place)
{
    char byte;
    ssize_t got = recv(place->anchor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

enum link_fitness { LINK_FIT, LINK_USED_UP, LINK_TO_OPEN, LINK_NO_PRIMARY };

static enum link_fitness judge_link(struct lk_redis_place *place,
                                    struct lk_link *link,
                                    char address[LK_REDIS_ADDRESS])
{
    pthread_mutex_lock(&place->lock);
    bool up = place->up;
    bool ours = link->epoch == place->epoch;
    bool adrift = up && !ours && anchor_is_gone(place);
    if (up) {
        link->epoch = place->epoch;
    }
    snprintf(address, LK_REDIS_ADDRESS, "%s", place->address);
    pthread_mutex_unlock(&place->lock);
    if (!up) {
        return LINK_NO_PRIMARY;
    }
    if (!ours) {
        return adrift ? LINK_USED_UP : LINK_TO_OPEN;
    }
    return link->fd < 0 || lk_link_is_stale(link) ? LINK_USED_UP : LINK_FIT;
}

enum lk_status lk_redis_ready(struct lk_redis *store, struct lk_link *link,
                              int64_t deadline)
{
    char address[LK_REDIS_ADDRESS];
    enum link_fitness link_fitness = judge_link(&store->place, link, address);

    if (link_fitness == LINK_USED_UP) {
        /* It may have been restarted unnoticed: it need not be the
         * primary any more, though it says so. */
        lk_redis_lost(store, link, "Redis closed the connection");
        link_fitness = lk_redis_await(store, deadline, false)
                           ? LINK_NO_PRIMARY
                           : judge_link(&store->place, link, address);
    }
    switch (link_fitness) {
    case LINK_FIT:
        return LK_OK;
    case LINK_TO_OPEN:
        return open_link(store, link, address, deadline);
    default:
        return LK_UNAVAILABLE;
    }
}

void lk_redis_lost(struct lk_redis *store, struct lk_link *link,
                   const char *why)
{
    struct lk_redis_place *place = &store->place;
    bool news = false;

    lk_link_close(link);
    pthread_mutex_lock(&place->lock);
    if (place->up && link->epoch == place->epoch) {
        news = true;
        place->up = false;
        snprintf(place->failure, sizeof(place->failure), "%.127s",
                 why ? why : link->why);
        pthread_cond_broadcast(&place->changed);
    }
    pthread_mutex_unlock(&place->lock);
    if (news) {
        lk_redis_log(store, 1, "Redis is out of reach: %s",
                     why ? why : link->why);
    }
}

enum lk_status lk_redis_await(struct lk_redis *store, int64_t deadline,
                              bool patient)
{
    struct lk_redis_place *place = &store->place;

    pthread_mutex_lock(&place->lock);
    uint64_t tries = place->tries;
    while (!place->up && !place->stopping &&
           (int64_t)lk_monotonic_ms() < deadline &&
           (patient || place->tries == tries)) {
        wait_for_change(place, deadline);
    }
    bool up = place->up;
    pthread_mutex_unlock(&place->lock);
    return up ? LK_OK : LK_UNAVAILABLE;
}

/* ==== Settings ========================================================== */

enum { SETTINGS = 4 };

static void copy_setting(char *to, size_t size, struct lk_slice text)
{
    snprintf(to, size, "%.*s", (int)text.len, text.data ? text.data : "");
}

/* The value of CONFIG GET, or an empty slice if it may not be seen. */
static enum lk_status read_setting(struct lk_link *link, int64_t deadline,
                                   struct lk_reply **reply,
                                   struct lk_slice *value)
{
    enum lk_status status = lk_link_reply(link, deadline, reply);

    *value = (struct lk_slice){0};
    if (!status && (*reply)->type == LK_REPLY_ARRAY && (*reply)->count == 2) {
        *value = lk_reply_text(&(*reply)->elements[1]);
    }
    return status;
}

static void set_policy(struct lk_redis_settings *settings,
                       struct lk_slice policy)
{
    settings->policy_known = policy.len != 0;
    settings->evicts =
        policy.len && !latchkey_slice_equal(policy, LK_SLICE("noeviction"));
    copy_setting(settings->policy, sizeof(settings->policy), policy);
}

static void take_setting(struct lk_redis_settings *settings, size_t which,
                         bool known, struct lk_slice value)
{
    switch (which) {
    case 0:
        set_policy(settings, value);
        break;
    case 1:
        settings->aof_known = known;
        settings->aof = latchkey_slice_equal(value, LK_SLICE("yes"));
        break;
    case 2:
        settings->fsync_known = known;
        copy_setting(settings->fsync, sizeof(settings->fsync), value);
        break;
    default:
        settings->saves_known = known;
        settings->saves = value.len != 0;
        break;
    }
}

static enum lk_status read_config(struct lk_link *link, int64_t deadline,
                                  struct lk_redis_settings *settings)
{
    static const char *const names[SETTINGS] = {
        "maxmemory-policy", "appendonly", "appendfsync", "save"};
    enum lk_status status = LK_OK;

    lk_link_reset(link);
    for (size_t i = 0; i < SETTINGS && !status; i++) {
        const struct lk_slice words[] = {LK_SLICE("CONFIG"), LK_SLICE("GET"),
                                         latchkey_slice(names[i])};
        status = lk_link_command(link, words, 3);
    }
    for (size_t i = 0; i < SETTINGS && !status; i++) {
        struct lk_reply *reply = NULL;
        struct lk_slice value;
        status = read_setting(link, deadline, &reply, &value);
        if (!status) {
            take_setting(settings, i,
                         reply->type == LK_REPLY_ARRAY && reply->count == 2,
                         value);
        }
        free(reply);
    }
    return status;
}

/* The value of a line "name:value" of INFO. */
static struct lk_slice info_field(struct lk_slice text, const char *name)
{
    size_t len = strlen(name);
    const char *at = text.data;
    const char *end = text.data + text.len;

    while (at && at < end) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        const char *stop = next ? next : end;
        if ((size_t)(stop - at) > len && !memcmp(at, name, len) &&
            at[len] == ':') {
            at += len + 1;
            while (stop > at && (stop[-1] == '\r' || stop[-1] == ' ')) {
                stop--;
            }
            return (struct lk_slice){at, (size_t)(stop - at)};
        }
        at = next ? next + 1 : NULL;
    }
    return (struct lk_slice){0};
}

/* Where CONFIG is not allowed, INFO may be. */
static enum lk_status read_info(struct lk_link *link, int64_t deadline,
                                struct lk_redis_settings *settings)
{
    const struct lk_slice words[] = {LK_SLICE("INFO")};
    struct lk_reply *reply = NULL;
    enum lk_status status = LK_OK;

    if (settings->policy_known && settings->aof_known) {
        return LK_OK;
    }
    status = lk_link_ask(link, deadline, words, 1, &reply);
    if (!status && reply->type == LK_REPLY_TEXT) {
        struct lk_slice text = lk_reply_text(reply);
        struct lk_slice aof = info_field(text, "aof_enabled");
        set_policy(settings, info_field(text, "maxmemory_policy"));
        settings->aof_known = aof.len != 0;
        settings->aof = latchkey_slice_equal(aof, LK_SLICE("1"));
    }
    free(reply);
    return status;
}

enum { WARN_UNSEEN = 1, WARN_NO_FILE = 2 };

/* Of each once, and again if it was well in between. */
static void warn_of_settings(struct lk_redis *store,
                             const struct lk_redis_settings *settings)
{
    bool no_file =
        settings->aof_known && !settings->aof && !store->config.accept_loss;
    unsigned now = (settings->policy_known ? 0 : WARN_UNSEEN) |
                   (no_file ? WARN_NO_FILE : 0);
    unsigned news = now & ~atomic_exchange(&store->warned, now);

    if (news & WARN_UNSEEN) {
        lk_redis_log(store, 1,
                     "the user may not see Redis's settings: make sure that "
                     "maxmemory-policy is noeviction, or operations are "
                     "forgotten while they are needed (+config|get lets the "
                     "daemon see for itself)");
    }
    if (news & WARN_NO_FILE) {
        lk_redis_log(store, 1,
                     "Redis keeps no append-only file: a restart may lose "
                     "every operation, and they run again (appendonly yes; "
                     "or accept_loss, if that is wanted)");
    }
}

enum lk_status lk_redis_check(struct lk_redis *store, struct lk_link *link,
                              int64_t deadline, struct lk_buf *error)
{
    struct lk_redis_settings settings = {0};
    enum lk_status status = read_config(link, deadline, &settings);

    if (!status) {
        status = read_info(link, deadline, &settings);
    }
    if (!status && settings.evicts) {
        status = latchkey_buf_printf(
            error,
            "maxmemory-policy of Redis is %s, which may drop operations while "
            "they are needed; set it to noeviction",
            settings.policy);
        status = status ? status : LK_INVALID;
    }
    if (!status) {
        warn_of_settings(store, &settings);
        pthread_mutex_lock(&store->numbers_lock);
        store->settings = settings;
        pthread_mutex_unlock(&store->numbers_lock);
    }
    return status;
}

/* ---- In words --------------------------------------------------------------
 */

/* What a crash of the server, or the loss of power, takes with it. */
static const char *crash_loses(const struct lk_redis_settings *settings)
{
    if (!settings->aof_known) {
        return "what Redis has not written to disk when it stops";
    }
    if (!settings->aof) {
        return settings->saves_known && !settings->saves
                   ? "everything when Redis stops"
                   : "what came after its last snapshot when Redis stops";
    }
    if (!settings->fsync_known || !strcmp(settings->fsync, "no")) {
        return "what is not on disk yet when the machine stops";
    }
    return !strcmp(settings->fsync, "always") ? NULL
                                              : "the last second in a crash";
}

static void failover_loses(const struct lk_redis *store, char *text,
                           size_t size)
{
    if (store->config.wait_replicas) {
        snprintf(text, size,
                 "on a failover to a replica beyond the %u that confirmed it",
                 store->config.wait_replicas);
    } else {
        snprintf(text, size,
                 "on a failover what had not reached the new primary");
    }
}

/* The scout looks again after a failover. */
static struct lk_redis_settings current_settings(struct lk_redis *store)
{
    pthread_mutex_lock(&store->numbers_lock);
    struct lk_redis_settings settings = store->settings;
    pthread_mutex_unlock(&store->numbers_lock);
    return settings;
}

void lk_redis_promise(struct lk_store *base, char text[LK_PROMISE_SIZE])
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_settings settings = current_settings(store);
    const char *crash = crash_loses(&settings);
    char failover[72];

    failover_loses(store, failover, sizeof(failover));
    snprintf(text, LK_PROMISE_SIZE,
             "weaker than the other stores: Redis may lose %.66s%s%s; an "
             "operation may then run twice",
             crash ? crash : "", crash ? ", and " : "", failover);
}

enum lk_status lk_redis_describe(struct lk_store *base, struct lk_buf *text,
                                 bool *strict)
{
    struct lk_redis *store = (struct lk_redis *)base;
    struct lk_redis_settings settings = current_settings(store);
    const char *crash = crash_loses(&settings);
    char failover[72];
    enum lk_status status;

    *strict = false;
    failover_loses(store, failover, sizeof(failover));
    if (crash) {
        status = latchkey_buf_printf(text, "Redis may lose %s.\n", crash);
    } else {
        status = latchkey_buf_add_text(
            text, "An acknowledged claim or result survives power loss of "
                  "the one server that has it (appendfsync always).\n");
    }
    if (!status) {
        status = latchkey_buf_printf(text, "Redis may lose %s.\n", failover);
    }
    if (!status) {
        status = latchkey_buf_add_text(
            text, "What is lost that way may run twice.\n"
                  "Several latchkeyd on several machines may share it.\n");
    }
    if (!status && !settings.policy_known) {
        status = latchkey_buf_add_text(
            text, "The user may not see maxmemory-policy: it has to be "
                  "noeviction.\n");
    }
    return status;
}
