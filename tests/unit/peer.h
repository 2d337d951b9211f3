/* peer.h - a peer for the client's tests that says what it is told to. */
#ifndef LK_TEST_PEER_H
#define LK_TEST_PEER_H

#include "latchkey.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

/*
 * The peer accepts one connection, reads `expect` bytes, sends `reply`, and
 * repeats that `rounds` times; then it reads to the end, unless `hang_up`. A
 * `deaf` peer stops listening before it says anything, but stays there.
 */
struct peer {
    int listener;
    pthread_t thread;
    struct lk_slice reply;
    size_t expect;
    size_t rounds;
    bool hang_up;
    bool deaf;
    struct lk_buf heard;
};

static char directory[] = "/tmp/latchkey-client-XXXXXX";
static char path[sizeof(directory) + 8];
static char address[sizeof(path) + 8];

static inline int make_directory(void **state)
{
    if (!mkdtemp(directory)) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/socket", directory);
    snprintf(address, sizeof(address), "unix:%s", path);
    return 0;
}

static inline int remove_directory(void **state)
{
    unlink(path);
    return rmdir(directory);
}

/* Runs on the peer's thread, where an assertion cannot be made. */
static inline bool hear(struct peer *peer, int fd)
{
    char bytes[4096];
    ssize_t got = read(fd, bytes, sizeof(bytes));

    return got > 0 &&
           latchkey_buf_add(&peer->heard, bytes, (size_t)got) == LK_OK;
}

static inline void say(struct lk_slice text, int fd)
{
    while (text.len > 0) {
        ssize_t put = send(fd, text.data, text.len, MSG_NOSIGNAL);
        if (put <= 0) {
            return;
        }
        text.data += put;
        text.len -= (size_t)put;
    }
}

static inline void *run_peer(void *argument)
{
    struct peer *peer = argument;
    int fd = accept(peer->listener, NULL, NULL);
    struct pollfd end = {.fd = fd};

    if (peer->deaf) {
        shutdown(fd, SHUT_RD);
    }
    for (size_t round = 1; round <= peer->rounds; round++) {
        while (peer->heard.len < peer->expect * round && hear(peer, fd)) {
        }
        say(peer->reply, fd);
    }
    while (!peer->hang_up && hear(peer, fd)) {
    }
    if (peer->deaf) {
        poll(&end, 1, -1);
    }
    close(fd);
    return NULL;
}

static inline int listen_unix(int backlog)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    memcpy(name.sun_path, path, strlen(path));
    unlink(path);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(fd, backlog), 0);
    return fd;
}

static inline void start_peer(struct peer *peer)
{
    if (peer->listener <= 0) {
        peer->listener = listen_unix(8);
    }
    assert_int_equal(pthread_create(&peer->thread, NULL, run_peer, peer), 0);
}

static inline void join_peer(struct peer *peer)
{
    assert_int_equal(pthread_join(peer->thread, NULL), 0);
    close(peer->listener);
}

static inline struct lk_client *open_client(unsigned timeout_ms)
{
    struct lk_client_options options = {.address = address,
                                        .timeout_ms = timeout_ms};
    struct lk_client *client;

    assert_int_equal(latchkey_client_open(&options, &client), LK_OK);
    return client;
}

static const struct lk_claim plain_claim = {
    .name = {{"acme", 4}, {"POST /pay", 9}, {"key-1", 5}},
    .fingerprint = {"1:ab", 4},
};

static inline void assert_text(struct lk_slice got, const char *expected)
{
    assert_int_equal(got.len, strlen(expected));
    assert_memory_equal(got.data, expected, got.len);
}

static inline void assert_heard(struct peer *peer, const char *expected)
{
    assert_text(latchkey_buf_slice(&peer->heard), expected);
    latchkey_buf_free(&peer->heard);
}

#endif
