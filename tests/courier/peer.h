/* peer.h - a small HTTP server in a thread of the test's, that says exactly
 * what it is told to. */
#ifndef LK_TEST_PEER_H
#define LK_TEST_PEER_H

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

struct peer {
    int listener;
    int stop[2];
    unsigned port;
    pthread_t thread;
    /* What each connection gets; NULL: closed without a word. */
    const char *response;
    size_t answer_len;
    atomic_bool deaf;  /* closes before it has read anything */
    atomic_bool mute;  /* does not close after its answer, until stopped */
    atomic_bool keep;  /* serves one request after the other */
    atomic_bool gated; /* answers no more than `allowed` */
    atomic_uint allowed;
    unsigned answered;
    size_t repeat;     /* the answer's end, so many times */
    const char *again; /* what is repeated */
    atomic_uint connections;
    atomic_uint requests;
    pthread_mutex_t lock;
    char request[65536]; /* the last one; under the lock */
};

/* A whole request, or nothing. */
static bool peer_read(struct peer *peer, int fd)
{
    char text[sizeof(peer->request)];
    size_t len = 0;

    for (;;) {
        ssize_t n = read(fd, text + len, sizeof(text) - 1 - len);
        if (n <= 0) {
            return false;
        }
        len += (size_t)n;
        text[len] = 0;
        const char *end = strstr(text, "\r\n\r\n");
        const char *size = strcasestr(text, "\r\ncontent-length:");
        size_t body = size ? strtoul(size + 17, NULL, 10) : 0;
        if (end && len >= (size_t)(end + 4 - text) + body) {
            pthread_mutex_lock(&peer->lock);
            memcpy(peer->request, text, len + 1);
            pthread_mutex_unlock(&peer->lock);
            atomic_fetch_add(&peer->requests, 1);
            return true;
        }
    }
}

static void peer_write(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) {
            return;
        }
        data += n;
        len -= (size_t)n;
    }
}

static void peer_pass_gate(struct peer *peer)
{
    struct pollfd wait = {.fd = peer->stop[0], .events = POLLIN};

    while (peer->gated && peer->answered >= atomic_load(&peer->allowed) &&
           poll(&wait, 1, 1) == 0) {
    }
    peer->answered++;
}

static void peer_serve(struct peer *peer, int fd)
{
    while (!peer->deaf && peer_read(peer, fd) && peer->response) {
        peer_pass_gate(peer);
        peer_write(fd, peer->response, peer->answer_len);
        for (size_t i = 0; i < peer->repeat; i++) {
            peer_write(fd, peer->again, strlen(peer->again));
        }
        if (!peer->keep) {
            break;
        }
    }
    if (peer->mute) {
        struct pollfd wait = {.fd = peer->stop[0], .events = POLLIN};
        poll(&wait, 1, -1);
    }
    close(fd);
}

static void *peer_run(void *context)
{
    struct peer *peer = context;
    struct pollfd wait[] = {{.fd = peer->listener, .events = POLLIN},
                            {.fd = peer->stop[0], .events = POLLIN}};

    while (poll(wait, 2, -1) >= 0 && !wait[1].revents) {
        int fd = accept(peer->listener, NULL, NULL);
        if (fd >= 0) {
            atomic_fetch_add(&peer->connections, 1);
            peer_serve(peer, fd);
        }
    }
    return NULL;
}

static void peer_say(struct peer *peer, const char *response)
{
    peer->response = response;
    peer->answer_len = response ? strlen(response) : 0;
}

static bool peer_start(struct peer *peer)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t len = sizeof(address);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    peer->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (peer->listener < 0 || pipe(peer->stop) ||
        bind(peer->listener, (struct sockaddr *)&address, len) ||
        listen(peer->listener, 64) ||
        getsockname(peer->listener, (struct sockaddr *)&address, &len)) {
        return false;
    }
    peer->port = ntohs(address.sin_port);
    pthread_mutex_init(&peer->lock, NULL);
    return !pthread_create(&peer->thread, NULL, peer_run, peer);
}

static void peer_stop(struct peer *peer)
{
    if (write(peer->stop[1], "x", 1) == 1) {
        pthread_join(peer->thread, NULL);
    }
    close(peer->listener);
    close(peer->stop[0]);
    close(peer->stop[1]);
}

#endif
