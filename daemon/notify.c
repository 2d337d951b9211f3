/*
 * notify.c - the datagrams that systemd's Type=notify waits for.
 *
 * Each event is one datagram from a socket of its own, so there is no state to
 * keep and any thread may send one. Without NOTIFY_SOCKET nothing is sent.
 */
#include "daemon/notify.h"
#include "lib/time.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A leading "@" means a name in the abstract namespace. */
static enum lk_status read_address(const char *name,
                                   struct sockaddr_un *address, socklen_t *size)
{
    size_t len = strlen(name);

    if ((name[0] != '/' && name[0] != '@') || len < 2 ||
        len >= sizeof(address->sun_path)) {
        return LK_INVALID;
    }
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path, name, len);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (name[0] == '@') {
        address->sun_path[0] = '\0';
    } else {
        *size += 1; /* the NUL belongs to a path, not to an abstract name */
    }
    return LK_OK;
}

/* Writes the lines of one datagram; returns their length as snprintf does,
 * which may be beyond `size`. systemd requires
 * the monotonic time with RELOADING. */
static int write_state(char *state, size_t size, enum lk_notify_event event,
                       const char *text)
{
    char line[64] = "";

    switch (event) {
    case LK_NOTIFY_READY:
        snprintf(line, sizeof(line), "READY=1\n");
        break;
    case LK_NOTIFY_RELOADING:
        snprintf(line, sizeof(line), "RELOADING=1\nMONOTONIC_USEC=%llu\n",
                 (unsigned long long)(lk_monotonic_ns() / 1000));
        break;
    case LK_NOTIFY_STOPPING:
        snprintf(line, sizeof(line), "STOPPING=1\n");
        break;
    case LK_NOTIFY_STATUS:
        break;
    }
    return snprintf(state, size, "%s%s%s", line, text ? "STATUS=" : "",
                    text ? text : "");
}

enum lk_status lk_notify(enum lk_notify_event event, const char *text)
{
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address;
    socklen_t size;
    char state[512];
    int len, fd, error;
    ssize_t sent;

    if (!name || !*name) {
        return LK_OK;
    }
    if (read_address(name, &address, &size) != LK_OK) {
        return LK_INVALID;
    }
    len = write_state(state, sizeof(state), event, text);
    if (len >= (int)sizeof(state)) {
        len = sizeof(state) - 1;
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return LK_IO;
    }
    do {
        sent = sendto(fd, state, (size_t)len, MSG_NOSIGNAL,
                      (struct sockaddr *)&address, size);
    } while (sent < 0 && errno == EINTR);
    error = errno;
    close(fd);
    errno = error;
    return sent < 0 ? LK_IO : LK_OK;
}
