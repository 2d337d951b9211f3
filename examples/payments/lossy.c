/*
 * lossy.c - a network that loses responses: a TCP relay that passes every
 * request on, waits for the response, and sometimes hangs up instead of
 * delivering it.
 *
 *   lossy --listen ADDRESS --to ADDRESS [--lose PERCENT] [--seed N]
 *
 * Which responses get lost is drawn from the seed alone: two runs of the same
 * client, one request after the other, lose the same ones.
 */
#include "payments.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *target;
static uint64_t percent = 33;
static uint64_t state = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* splitmix64: good enough to roll dice, and the same everywhere. */
static uint64_t next_random(void)
{
    uint64_t mixed = state += 0x9e3779b97f4a7c15u;

    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static bool is_lost(void)
{
    bool lost;

    pthread_mutex_lock(&lock);
    lost = next_random() % 100 < percent;
    pthread_mutex_unlock(&lock);
    return lost;
}

static bool send_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t put = send(fd, data, len, MSG_NOSIGNAL);
        if (put <= 0) {
            return false;
        }
        data += put;
        len -= (size_t)put;
    }
    return true;
}

/*
 * A response begins where the server speaks after the client has: that is when
 * it is decided whether it arrives.
 */
static void relay(int client, int server)
{
    struct pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
    char data[16 * 1024];
    bool asked = false;

    while (poll(ends, 2, -1) > 0) {
        int from = ends[1].revents ? 1 : 0;
        ssize_t got = recv(ends[from].fd, data, sizeof(data), 0);
        if (got <= 0) {
            return;
        }
        if (from == 1 && asked && is_lost()) {
            return;
        }
        asked = from == 0;
        if (!send_all(ends[1 - from].fd, data, (size_t)got)) {
            return;
        }
    }
}

static void *serve(void *argument)
{
    int client = (int)(intptr_t)argument, server = address_connect(target);

    if (server >= 0) {
        relay(client, server);
        close(server);
    }
    close(client);
    return NULL;
}

static void accept_all(int listener)
{
    struct pollfd wait = {listener, POLLIN, 0};
    pthread_t thread;

    for (;;) {
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) {
            poll(&wait, 1, -1);
        } else if (pthread_create(&thread, NULL, serve,
                                  (void *)(intptr_t)client)) {
            close(client);
        } else {
            pthread_detach(thread);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"listen", required_argument, NULL, 'l'},
        {"to", required_argument, NULL, 't'},
        {"lose", required_argument, NULL, 'p'},
        {"seed", required_argument, NULL, 's'},
        {0}};
    const char *listen = NULL;
    char shown[128];
    int listener;

    for (int option;
         (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (option == 'l') {
            listen = optarg;
        } else if (option == 't') {
            target = optarg;
        } else if (option == '?' ||
                   !text_number(text_of(optarg),
                                option == 'p' ? &percent : &state)) {
            die("--lose and --seed take numbers");
        }
    }
    if (!listen || !target || percent > 100 || optind < argc) {
        die("usage: lossy --listen ADDRESS --to ADDRESS [--lose PERCENT] "
            "[--seed N]");
    }
    listener = address_listen(listen, shown, sizeof(shown));
    printf("listening on %s\n", shown);
    fflush(stdout);
    accept_all(listener);
}
