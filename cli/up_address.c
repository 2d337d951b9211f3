/* up_address.c - is the address free? nginx would take seconds to say so. */
#include "cli/up.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static enum lk_exit complain_address(const struct lk_up *up, int error)
{
    const char *where = up->listen.path;
    char text[300];

    if (where == NULL) {
        snprintf(text, sizeof(text), "%s:%u", up->listen.host, up->listen.port);
        where = text;
    }
    if (error == EADDRINUSE) {
        lk_complain("%s is in use by another program; give another --listen",
                    where);
    } else if (error == EACCES && up->listen.port < 1024 &&
               up->listen.path == NULL) {
        lk_complain("%s: ports below 1024 are for root; give another --listen",
                    where);
    } else {
        lk_complain("cannot listen on %s: %s", where, strerror(error));
    }
    return LK_EXIT_FAILED;
}

/* 0, or the error. As nginx does it, which follows. */
static int try_address(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int one = 1;
    int error = 0;

    if (fd < 0) {
        return errno;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (address->ai_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    }
    /* Two may bind with SO_REUSEADDR; only one may listen. */
    if (bind(fd, address->ai_addr, address->ai_addrlen) < 0 ||
        listen(fd, 1) < 0) {
        error = errno;
    }
    close(fd);
    return error;
}

static enum lk_exit check_host(const struct lk_up *up)
{
    struct addrinfo wish = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    const char *given = up->listen.host;
    char port[8];
    char host[256];
    int error;

    snprintf(port, sizeof(port), "%u", up->listen.port);
    snprintf(host, sizeof(host), "%s", given[0] == '[' ? given + 1 : given);
    host[strcspn(host, "]")] = '\0';
    wish.ai_family = strcmp(host, "*") == 0 ? AF_INET : AF_UNSPEC;
    error =
        getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &wish, &found);
    if (error != 0) {
        lk_complain("--listen: %s: %s", given, gai_strerror(error));
        return LK_EXIT_FAILED;
    }
    for (struct addrinfo *at = found; at != NULL && error == 0;
         at = at->ai_next) {
        error = try_address(at);
    }
    freeaddrinfo(found);
    return error == 0 ? LK_EXIT_DONE : complain_address(up, error);
}

/* A socket that nobody listens on was left by one that was killed. */
static enum lk_exit check_socket(const struct lk_up *up)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = up->listen.path;
    struct stat st;
    int fd;
    int error = 0;

    if (lstat(path, &st) < 0) {
        return errno == ENOENT ? LK_EXIT_DONE : complain_address(up, errno);
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return complain_address(up, errno);
    }
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        error = errno;
    }
    close(fd);
    if (!S_ISSOCK(st.st_mode) || error != ECONNREFUSED) {
        return complain_address(up, EADDRINUSE);
    }
    return unlink(path) == 0 ? LK_EXIT_DONE : complain_address(up, errno);
}

enum lk_exit lk_up_check_address(const struct lk_up *up)
{
    return up->listen.path != NULL ? check_socket(up) : check_host(up);
}
