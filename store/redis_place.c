/*
 * redis_place.c - whether there is a primary, and the scout that looks for it.
 *
 * While there is none, whoever comes is refused at once: nobody but the scout
 * waits for a server that does not answer.
 */
#include "lib/socket.h"
#include "lib/time.h"
#include "store/redis.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PAUSE_LEAST_MS = 100,
    PAUSE_MOST_MS = 1000,
    ASK_MS = 1000,        /* how often one asks who the primary is */
    CHECK_MS = 10 * 1000, /* how often settings are looked at */
};

static void wait_until(struct lk_redis_place *place, int64_t deadline)
{
    struct timespec until = {deadline / 1000, deadline % 1000 * 1000000};

    pthread_cond_timedwait(&place->changed, &place->lock, &until);
}

/* ---- The scout -------------------------------------------------------------
 */

/* *anchor is the caller's. */
static enum lk_status look(struct lk_redis *store,
                           char address[LK_REDIS_ADDRESS], int *anchor,
                           struct lk_buf *why)
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
static bool needs_hand(enum lk_status status)
{
    return status == LK_INVALID || status == LK_DENIED ||
           status == LK_VERSION || status == LK_CORRUPT;
}

static void take_findings(struct lk_redis *store, enum lk_status status,
                          const char *address, int anchor,
                          const struct lk_buf *why)
{
    struct lk_redis_place *place = &store->place;

    if (status) {
        char was[sizeof(place->trouble)];
        memcpy(was, place->trouble, sizeof(was));
        place->tries++;
        snprintf(place->trouble, sizeof(place->trouble), "%.*s", (int)why->len,
                 why->len ? why->data : "");
        if (needs_hand(status) && strcmp(was, place->trouble) != 0) {
            lk_redis_log(store, 0, "Redis cannot be used: %s", place->trouble);
        }
        return;
    }
    lk_redis_log(store, 2, "Redis answers again, at %s", address);
    snprintf(place->address, sizeof(place->address), "%s", address);
    place->trouble[0] = '\0';
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

/* Where there is nobody to ask, only settings are looked at. */
static int64_t next_turn(const struct lk_redis *store)
{
    bool asks = store->url.service || store->url.count > 1;

    return (int64_t)lk_monotonic_ms() + (asks ? ASK_MS : CHECK_MS);
}

/* The old primary may live on, and answer, after another has taken over; and
 * settings may change under a running server. */
static void look_again(struct lk_redis *store, struct lk_link *link,
                       const char *address, int64_t *check_at)
{
    uint64_t timeout_ms = store->config.connect_timeout_ms;
    char found[LK_REDIS_ADDRESS] = "";
    struct lk_buf why = {0};

    if (lk_redis_find(link, &store->url, store->keys[LK_REDIS_TOKEN].data,
                      timeout_ms, found)) {
        return; /* whoever uses a link will see whether it is lost */
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
static void watch(struct lk_redis *store, int64_t *check_at)
{
    struct lk_redis_place *place = &store->place;
    int64_t until = next_turn(store);
    char address[LK_REDIS_ADDRESS];
    struct lk_link link = {.fd = -1, .epoch = place->epoch};

    while (place->up && !place->stopping &&
           (int64_t)lk_monotonic_ms() < until) {
        wait_until(place, until);
    }
    if (!place->up || place->stopping) {
        return;
    }
    snprintf(address, sizeof(address), "%s", place->address);
    pthread_mutex_unlock(&place->lock);
    look_again(store, &link, address, check_at);
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
            watch(store, &check_at);
            continue;
        }
        char address[LK_REDIS_ADDRESS] = "";
        struct lk_buf why = {0};
        int anchor;
        pthread_mutex_unlock(&place->lock);
        enum lk_status status = look(store, address, &anchor, &why);
        pthread_mutex_lock(&place->lock);
        take_findings(store, status, address, anchor, &why);
        latchkey_buf_free(&why);
        pthread_cond_broadcast(&place->changed);
        int64_t again = (int64_t)lk_monotonic_ms() + pause;
        while (status && !place->stopping &&
               (int64_t)lk_monotonic_ms() < again) {
            wait_until(place, again);
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

/* ---- Whoever has a link ----------------------------------------------------
 */

/* A server that has just been found to answer is given little time. */
static enum lk_status link_up(struct lk_redis *store, struct lk_link *link,
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
static bool is_adrift(const struct lk_redis_place *place)
{
    char byte;
    ssize_t got = recv(place->anchor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

enum fitness { FIT, USED_UP, TO_BE_OPENED, NO_PRIMARY };

static enum fitness judge(struct lk_redis_place *place, struct lk_link *link,
                          char address[LK_REDIS_ADDRESS])
{
    pthread_mutex_lock(&place->lock);
    bool up = place->up;
    bool ours = link->epoch == place->epoch;
    bool adrift = up && !ours && is_adrift(place);
    if (up) {
        link->epoch = place->epoch;
    }
    snprintf(address, LK_REDIS_ADDRESS, "%s", place->address);
    pthread_mutex_unlock(&place->lock);
    if (!up) {
        return NO_PRIMARY;
    }
    if (!ours) {
        return adrift ? USED_UP : TO_BE_OPENED;
    }
    return link->fd < 0 || lk_link_is_stale(link) ? USED_UP : FIT;
}

enum lk_status lk_redis_ready(struct lk_redis *store, struct lk_link *link,
                              int64_t deadline)
{
    char address[LK_REDIS_ADDRESS];
    enum fitness fitness = judge(&store->place, link, address);

    if (fitness == USED_UP) {
        /* It may have been restarted while nobody looked: it need not be the
         * primary any more, though it says so. */
        lk_redis_lost(store, link, "Redis closed the connection");
        fitness = lk_redis_await(store, deadline, false)
                      ? NO_PRIMARY
                      : judge(&store->place, link, address);
    }
    switch (fitness) {
    case FIT:
        return LK_OK;
    case TO_BE_OPENED:
        return link_up(store, link, address, deadline);
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
        snprintf(place->trouble, sizeof(place->trouble), "%.127s",
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
        wait_until(place, deadline);
    }
    bool up = place->up;
    pthread_mutex_unlock(&place->lock);
    return up ? LK_OK : LK_UNAVAILABLE;
}
