/*
 * socket.c - sockets for the client: connect and wait, with a deadline.
 *
 * Deadlines are milliseconds of the monotonic clock. A signal (EINTR) never
 * ends a wait early. Name lookup is the one step without a deadline:
 * getaddrinfo has none.
 */
#include "lib/socket.h"
#include "lib/number.h"
#include "lib/time.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static const char UNIX_PREFIX[] = "unix:";

/* An attempt to connect. `fd` is -1, or open and then the caller's. */
struct connecting {
    const char *address;
    int64_t deadline;
    int fd;
    char *why;
    size_t why_size;
};

/*
 * Waits until one of `events` happens; *happened may also have POLLERR or
 * POLLHUP. LK_TIMEOUT: the deadline passed. A deadline in the past still polls
 * once. LK_IO: errno is the reason.
 */
enum lk_status lk_socket_wait(int fd, short events, int64_t deadline,
                              short *happened)
{
    for (;;) {
        int64_t left = deadline - (int64_t)lk_monotonic_ms();
        struct pollfd item = {.fd = fd, .events = events};
        left = left < 0 ? 0 : left > INT_MAX ? INT_MAX : left;
        int ready = poll(&item, 1, (int)left);
        if (ready > 0) {
            *happened = item.revents;
            return LK_OK;
        }
        if (ready < 0 && errno != EINTR) {
            return LK_IO;
        }
        if ((int64_t)lk_monotonic_ms() >= deadline) {
            return LK_TIMEOUT;
        }
    }
}

/* Writes the reason for people and returns `status`. */
static enum lk_status fail(struct connecting *to, enum lk_status status,
                           const char *reason)
{
    snprintf(to->why, to->why_size, "cannot connect to %s: %s", to->address,
             reason);
    return status;
}

/*
 * On Linux the send timeout of a blocking socket bounds connect too, also
 * where poll cannot help: a unix socket whose backlog is full.
 */
static enum lk_status connect_socket(struct connecting *to,
                                     const struct sockaddr *name, socklen_t len)
{
    for (;;) {
        int64_t left = to->deadline - (int64_t)lk_monotonic_ms();
        if (left <= 0) {
            return fail(to, LK_TIMEOUT, "timed out");
        }
        struct timeval limit = {left / 1000, left % 1000 * 1000};
        if (setsockopt(to->fd, SOL_SOCKET, SO_SNDTIMEO, &limit,
                       sizeof(limit))) {
            return fail(to, LK_IO, strerror(errno));
        }
        if (!connect(to->fd, name, len) || errno == EISCONN) {
            return LK_OK;
        }
        if (errno != EINTR && errno != EAGAIN && errno != EINPROGRESS &&
            errno != EALREADY) {
            return fail(to, LK_IO, strerror(errno));
        }
    }
}

/* LK_OK: to->fd is connected. Otherwise it is closed, and errno is the cause.
 */
static enum lk_status try_address(struct connecting *to, int family,
                                  const struct sockaddr *name, socklen_t len)
{
    const int yes = 1;

    to->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (to->fd < 0) {
        return fail(to, LK_IO, strerror(errno));
    }
    enum lk_status status = connect_socket(to, name, len);
    if (status) {
        int error = errno;
        close(to->fd);
        to->fd = -1;
        errno = error;
    } else if (family != AF_UNIX) {
        /* Without it we are slower, not wrong. */
        (void)setsockopt(to->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    }
    return status;
}

/* A path that does not fit is refused, because a cut one names another file. */
static enum lk_status connect_unix(struct connecting *to, const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t len = strlen(path);

    if (len == 0 || len >= sizeof(name.sun_path)) {
        return fail(to, LK_INVALID,
                    len ? "the path is too long" : "there is no path");
    }
    memcpy(name.sun_path, path, len);
    return try_address(to, AF_UNIX, (const struct sockaddr *)&name,
                       sizeof(name));
}

/* Cuts "HOST:PORT" or "[HOST]:PORT" in two; false if it is neither. */
static bool split_address(const char *address, char *host, size_t host_size,
                          const char **port)
{
    const char *colon = strrchr(address, ':');
    uint16_t number;

    if (!colon) {
        return false;
    }
    const char *start = address;
    size_t len = (size_t)(colon - address);
    if (len >= 2 && start[0] == '[' && start[len - 1] == ']') {
        start++;
        len -= 2;
    } else if (memchr(start, ':', len)) {
        return false;
    }
    if (len == 0 || len >= host_size) {
        return false;
    }
    memcpy(host, start, len);
    host[len] = '\0';
    *port = colon + 1;
    return lk_port_read(latchkey_slice(*port), &number);
}

/* Tries each address of the name in turn, until one connects or the time is
 * over. */
static enum lk_status connect_tcp(struct connecting *to)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[NI_MAXHOST];
    const char *port;

    if (!split_address(to->address, host, sizeof(host), &port)) {
        return fail(to, LK_INVALID, "neither unix:PATH nor HOST:PORT");
    }
    int error = getaddrinfo(host, port, &hints, &found);
    if (error) {
        errno = error == EAI_SYSTEM ? errno : 0;
        return fail(to, LK_IO, gai_strerror(error));
    }
    enum lk_status status = LK_IO;
    for (struct addrinfo *at = found; at && status == LK_IO; at = at->ai_next) {
        status = try_address(to, at->ai_family, at->ai_addr, at->ai_addrlen);
    }
    error = errno;
    freeaddrinfo(found);
    errno = error;
    return status;
}

/*
 * "unix:PATH", "HOST:PORT" or "[HOST]:PORT". LK_OK: *fd is a connected,
 * blocking socket that the caller closes. Otherwise *fd is -1 and `why` has a
 * sentence: LK_INVALID: not an address; LK_TIMEOUT; LK_IO.
 */
enum lk_status lk_socket_connect(const char *address, unsigned timeout_ms,
                                 int *fd, char *why, size_t why_size)
{
    struct connecting to = {.address = address,
                            .deadline = (int64_t)lk_monotonic_ms() + timeout_ms,
                            .fd = -1,
                            .why = why,
                            .why_size = why_size};
    size_t prefix = sizeof(UNIX_PREFIX) - 1;
    enum lk_status status;

    if (!strncmp(address, UNIX_PREFIX, prefix)) {
        status = connect_unix(&to, address + prefix);
    } else {
        status = connect_tcp(&to);
    }
    *fd = to.fd;
    return status;
}
