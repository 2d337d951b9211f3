/*
 * latency.c - latency of single commands at a fixed rate, for any RESP server.
 *
 *   latency claim|setnx SOCKET CONNECTIONS RATE SECONDS
 *
 * Commands are sent on a schedule, not when the last reply came: a server
 * that stalls is charged for everything that was due in the meantime. Prints
 * p50, p99 and p99.9 in microseconds, and the rate that was reached.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct load {
    bool claim;
    uint64_t interval_ns;
    uint64_t end_ns;
    uint64_t next_ns; /* when the next command is due */
    uint64_t number;
    uint32_t *us; /* latencies */
    size_t count;
    size_t cap;
};

struct conn {
    int fd;
    bool busy;
    uint64_t due_ns;
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void die(const char *why)
{
    fprintf(stderr, "latency: %s: %s\n", why, strerror(errno));
    exit(1);
}

static int connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        die(path);
    }
    return fd;
}

static void send_next(struct load *load, struct conn *conn)
{
    char key[32];
    char command[512];
    int key_len = snprintf(key, sizeof(key), "%012llx-%06llx",
                           (unsigned long long)now_ns(),
                           (unsigned long long)load->number++);
    int len;

    if (load->claim) {
        len = snprintf(command, sizeof(command),
                       "*5\r\n$5\r\nCLAIM\r\n$6\r\ntenant\r\n"
                       "$17\r\nPOST /v1/payments\r\n$%d\r\n%s\r\n"
                       "$8\r\n1:abcdef\r\n",
                       key_len, key);
    } else {
        len = snprintf(command, sizeof(command),
                       "*6\r\n$3\r\nSET\r\n$%d\r\ntenant:POST /v1/payments:%s"
                       "\r\n$8\r\n1:abcdef\r\n$2\r\nNX\r\n$2\r\nEX\r\n"
                       "$5\r\n86400\r\n",
                       key_len + 25, key);
    }
    conn->busy = true;
    conn->due_ns = load->next_ns;
    load->next_ns += load->interval_ns;
    if (write(conn->fd, command, (size_t)len) != len) {
        die("write");
    }
}

/* Replies are short: one read has the whole of it. */
static void take_reply(struct load *load, struct conn *conn)
{
    char reply[512];
    ssize_t len = read(conn->fd, reply, sizeof(reply));

    if (len <= 0 || reply[0] == '-') {
        die("bad reply");
    }
    if (load->count < load->cap) {
        load->us[load->count++] = (uint32_t)((now_ns() - conn->due_ns) / 1000);
    }
    conn->busy = false;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void run(struct load *load, struct conn *conns, size_t count, int poll)
{
    struct epoll_event events[256];
    size_t turn = 0;

    while (load->next_ns < load->end_ns) {
        for (size_t tried = 0; tried < count && load->next_ns <= now_ns();
             tried++, turn = (turn + 1) % count) {
            if (!conns[turn].busy) {
                send_next(load, &conns[turn]);
            }
        }
        int ready = epoll_wait(poll, events, 256, 0);
        for (int i = 0; i < ready; i++) {
            take_reply(load, events[i].data.ptr);
        }
        if (!ready) {
            struct timespec nap = {0, 20000};
            nanosleep(&nap, NULL);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: latency claim|setnx SOCKET CONNECTIONS RATE "
                        "SECONDS\n");
        return 2;
    }
    size_t count = strtoul(argv[3], NULL, 10);
    double rate = strtod(argv[4], NULL);
    double seconds = strtod(argv[5], NULL);
    struct conn *conns = calloc(count, sizeof(*conns));
    int poll = epoll_create1(0);
    uint64_t start = now_ns();
    struct load load = {
        .claim = !strcmp(argv[1], "claim"),
        .interval_ns = (uint64_t)(1e9 / rate),
        .next_ns = start,
        .end_ns = start + (uint64_t)(seconds * 1e9),
        .cap = (size_t)(rate * seconds * 1.1),
    };

    load.us = calloc(load.cap, sizeof(*load.us));
    for (size_t i = 0; i < count; i++) {
        conns[i].fd = connect_to(argv[2]);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &conns[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, conns[i].fd, &event);
    }
    run(&load, conns, count, poll);
    double took = (double)(now_ns() - start) / 1e9;
    qsort(load.us, load.count, sizeof(*load.us), compare);
    printf("%u %u %u %.0f\n", load.us[load.count / 2],
           load.us[load.count * 99 / 100], load.us[load.count * 999 / 1000],
           (double)load.count / took);
    free(load.us);
    free(conns);
    return 0;
}
