/* address.c - listens on and connects to addresses, TCP or unix. */
#include "payments.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

union address {
    struct sockaddr any;
    struct sockaddr_in tcp;
    struct sockaddr_un local;
};

static socklen_t parse_local(const char *path, union address *address)
{
    if (strlen(path) >= sizeof(address->local.sun_path)) {
        die("unix:%s: the path is too long", path);
    }
    address->local.sun_family = AF_UNIX;
    snprintf(address->local.sun_path, sizeof(address->local.sun_path), "%s",
             path);
    return sizeof(address->local);
}

static socklen_t parse(const char *text, union address *address)
{
    const char *colon = strrchr(text, ':');
    char host[INET_ADDRSTRLEN] = "";
    uint64_t port;

    memset(address, 0, sizeof(*address));
    if (!strncmp(text, "unix:", 5)) {
        return parse_local(text + 5, address);
    }
    if (colon && (size_t)(colon - text) < sizeof(host)) {
        memcpy(host, text, (size_t)(colon - text));
    }
    address->tcp.sin_family = AF_INET;
    if (!colon || !text_number(text_of(colon + 1), &port) || port > 65535 ||
        inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1",
                  &address->tcp.sin_addr) != 1) {
        die("%s: an address is HOST:PORT or unix:PATH", text);
    }
    address->tcp.sin_port = htons((uint16_t)port);
    return sizeof(address->tcp);
}

static void show(int fd, const char *text, char *shown, size_t size)
{
    union address address = {0};
    socklen_t len = sizeof(address);
    char host[INET_ADDRSTRLEN];

    if (getsockname(fd, &address.any, &len) < 0 ||
        address.any.sa_family != AF_INET ||
        !inet_ntop(AF_INET, &address.tcp.sin_addr, host, sizeof(host))) {
        snprintf(shown, size, "%s", text);
        return;
    }
    snprintf(shown, size, "%s:%d", host, ntohs(address.tcp.sin_port));
}

int address_listen(const char *text, char *shown, size_t size)
{
    union address address;
    socklen_t len = parse(text, &address);
    int one = 1, fd;

    fd = socket(address.any.sa_family,
                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (address.any.sa_family == AF_UNIX) {
        unlink(address.local.sun_path);
    }
    if (fd < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, &address.any, len) < 0 || listen(fd, 4096) < 0) {
        die("cannot listen on %s: %s", text, strerror(errno));
    }
    show(fd, text, shown, size);
    return fd;
}

int address_connect(const char *text)
{
    union address address;
    socklen_t len = parse(text, &address);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, &address.any, len) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}
