/*
 * up_app.c - is the app there?
 *
 * It is asked when requests can come, once a second while it is missing, and
 * again when nginx could not reach it. No step waits: the terminal shows
 * requests in the meantime.
 */
#include "cli/up.h"
#include "lib/socket.h"
#include "lib/time.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    AGAIN_MS = 1000,
    PATIENCE_MS = 5000, /* then a connection counts as refused */
};

/* ---- localhost ------------------------------------------------------------
 */

/* Of one machine, so this takes no time. */
static bool is_listening(const char *host, unsigned port)
{
    char *address = lk_text("%s:%u", host, port);
    char why[256];
    int fd = -1;
    bool good =
        lk_socket_connect(address, AGAIN_MS, &fd, why, sizeof(why)) == LK_OK;

    if (good) {
        close(fd);
    }
    free(address);
    return good;
}

/* It may mean two addresses, and nginx would try both in turn, with an error
 * in its log for each request that meets the wrong one. */
const char *lk_up_localhost(unsigned port)
{
    return !is_listening("127.0.0.1", port) && is_listening("[::1]", port)
               ? "[::1]"
               : "127.0.0.1";
}

/* ---- Asking ---------------------------------------------------------------
 */

static bool find_socket(struct lk_up_watch *watch, const char *path)
{
    struct sockaddr_un *name = (struct sockaddr_un *)&watch->address;

    if (strlen(path) >= sizeof(name->sun_path)) {
        return false;
    }
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path, path, strlen(path) + 1);
    watch->length = sizeof(*name);
    return true;
}

static bool find_host(struct lk_up_watch *watch, const struct lk_up_app *app)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];
    char port[8];

    snprintf(host, sizeof(host), "%s", app->host + (app->host[0] == '['));
    host[strcspn(host, "]")] = '\0';
    snprintf(port, sizeof(port), "%u", app->port);
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        return false; /* nginx complains about it */
    }
    memcpy(&watch->address, found->ai_addr, found->ai_addrlen);
    watch->length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

void lk_up_watch_start(struct lk_up_watch *watch, const struct lk_up *up)
{
    const struct lk_up_app *app = &up->app;

    watch->app = app;
    watch->fd = -1;
    watch->known = app->host != NULL ? find_host(watch, app)
                                     : find_socket(watch, app->socket);
    watch->asking = true;
}

/* The answer has come: 0, or the error. */
static void take_answer(struct lk_up_watch *watch, int error)
{
    bool there = error == 0;

    if (watch->fd >= 0) {
        close(watch->fd);
        watch->fd = -1;
    }
    watch->asking = !there;
    watch->next_ms = (int64_t)lk_monotonic_ms() + AGAIN_MS;
    if (there && watch->missing) {
        lk_complain("the app at %s is there now", watch->app->shown);
    } else if (!there && !watch->missing) {
        lk_complain("no app answers at %s: %s", watch->app->shown,
                    strerror(error));
        lk_complain("start it, or give another --upstream; until then requests "
                    "get 502");
    } else if (!there && watch->app->is_localhost && !watch->misled &&
               is_listening("[::1]", watch->app->port)) {
        watch->misled = true;
        lk_complain("an app listens at [::1]:%u, not at 127.0.0.1: start "
                    "latchkey up again, which then finds it",
                    watch->app->port);
    }
    watch->missing = !there;
}

static void ask(struct lk_up_watch *watch)
{
    watch->fd = socket(watch->address.ss_family,
                       SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    watch->until_ms = (int64_t)lk_monotonic_ms() + PATIENCE_MS;
    if (watch->fd < 0) {
        return;
    }
    if (connect(watch->fd, (struct sockaddr *)&watch->address, watch->length) ==
        0) {
        take_answer(watch, 0);
    } else if (errno != EINPROGRESS) {
        take_answer(watch, errno == EAGAIN ? 0 : errno);
    }
}

void lk_up_watch_step(struct lk_up_watch *watch)
{
    struct pollfd item = {.fd = watch->fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof(error);

    if (!watch->known) {
        return;
    }
    if (watch->fd < 0) {
        if (watch->asking && (int64_t)lk_monotonic_ms() >= watch->next_ms) {
            ask(watch);
        }
    } else if (poll(&item, 1, 0) > 0) {
        (void)getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        take_answer(watch, error);
    } else if ((int64_t)lk_monotonic_ms() >= watch->until_ms) {
        take_answer(watch, ETIMEDOUT);
    }
}

void lk_up_watch_doubt(struct lk_up_watch *watch)
{
    watch->asking = true;
}

void lk_up_watch_stop(struct lk_up_watch *watch)
{
    if (watch->fd >= 0) {
        close(watch->fd);
    }
}
