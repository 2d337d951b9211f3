/*
 * postgres_resolve.c - the addresses of a host name, with a deadline: libpq
 * would wait for the name server as long as that takes.
 */
#include "store/postgres.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A question that is under way on a thread of its own. */
struct lk_pg_lookup {
    pthread_mutex_t lock; /* guards what follows, but for the name */
    pthread_cond_t ended;
    bool done;
    bool left; /* nobody wants to know any more: the thread frees it */
    int error;
    struct addrinfo *found;
    char name[256];
};

bool lk_pg_is_name(const struct lk_pg_host *host)
{
    struct in_addr address;

    return host->host && !host->hostaddr && host->host[0] &&
           !strchr("/@", host->host[0]) && !strchr(host->host, ':') &&
           inet_pton(AF_INET, host->host, &address) != 1;
}

static void free_lookup(struct lk_pg_lookup *lookup)
{
    if (lookup->found) {
        freeaddrinfo(lookup->found);
    }
    pthread_cond_destroy(&lookup->ended);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

static void *ask(void *context)
{
    struct lk_pg_lookup *lookup = context;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(lookup->name, NULL, &hints, &found);

    pthread_mutex_lock(&lookup->lock);
    lookup->error = error;
    lookup->found = error ? NULL : found;
    lookup->done = true;
    bool left = lookup->left;
    pthread_cond_signal(&lookup->ended);
    pthread_mutex_unlock(&lookup->lock);
    if (left) {
        free_lookup(lookup);
    }
    return NULL;
}

static struct lk_pg_lookup *start(const char *name)
{
    struct lk_pg_lookup *lookup = calloc(1, sizeof(*lookup));
    pthread_condattr_t clock;
    pthread_attr_t detached;
    pthread_t thread;

    if (!lookup) {
        return NULL;
    }
    snprintf(lookup->name, sizeof(lookup->name), "%s", name);
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&lookup->ended, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, ask, lookup);
    pthread_attr_destroy(&detached);
    if (failed) {
        free_lookup(lookup);
        return NULL;
    }
    return lookup;
}

void lk_pg_resolve_stop(struct lk_pg_conn *conn)
{
    struct lk_pg_lookup *lookup = conn->lookup;

    conn->lookup = NULL;
    if (!lookup) {
        return;
    }
    pthread_mutex_lock(&lookup->lock);
    bool done = lookup->done;
    lookup->left = true;
    pthread_mutex_unlock(&lookup->lock);
    if (done) {
        free_lookup(lookup);
    }
}

static bool wait_done(struct lk_pg_lookup *lookup, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000),
                             (long)(deadline_ns % 1000000000)};
    int failed = 0;

    pthread_mutex_lock(&lookup->lock);
    while (!lookup->done && !failed) {
        failed = pthread_cond_timedwait(&lookup->ended, &lookup->lock, &until);
    }
    bool done = lookup->done;
    pthread_mutex_unlock(&lookup->lock);
    return done;
}

static void take(const struct lk_pg_lookup *lookup,
                 struct lk_pg_addresses *addresses)
{
    for (const struct addrinfo *at = lookup->found;
         at && addresses->count < LK_PG_ADDRESSES; at = at->ai_next) {
        char *text = addresses->text[addresses->count];
        addresses->count +=
            !getnameinfo(at->ai_addr, at->ai_addrlen, text,
                         sizeof(addresses->text[0]), NULL, 0, NI_NUMERICHOST);
    }
}

enum lk_status lk_pg_resolve(struct lk_pg_conn *conn, const char *name,
                             uint64_t deadline_ns,
                             struct lk_pg_addresses *addresses)
{
    *addresses = (struct lk_pg_addresses){0};
    if (conn->lookup && strcmp(conn->lookup->name, name) != 0) {
        lk_pg_resolve_stop(conn);
    }
    if (!conn->lookup && !(conn->lookup = start(name))) {
        snprintf(conn->message, sizeof(conn->message), "out of memory");
        return LK_NOMEM;
    }
    if (!wait_done(conn->lookup, deadline_ns)) {
        snprintf(conn->message, sizeof(conn->message),
                 "the name server did not answer in time");
        return LK_TIMEOUT;
    }
    if (conn->lookup->error) {
        snprintf(conn->message, sizeof(conn->message),
                 "the name of the server is not known: %s",
                 gai_strerror(conn->lookup->error));
    }
    take(conn->lookup, addresses);
    lk_pg_resolve_stop(conn);
    return addresses->count ? LK_OK : LK_UNAVAILABLE;
}
