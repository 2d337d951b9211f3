/*
 * http_load.c - POSTs on a schedule, or held open, for any HTTP/1.1 server.
 *
 *   http_load rate PORT PATH KEY CONNECTIONS RATE SECONDS
 *   http_load hold PORT PATH KEY CONNECTIONS
 *
 * rate: requests are sent when they are due, not when the last response came; a
 * server that stalls is charged for everything that was due in the meantime.
 * Prints p50, p99 and p99.9 in microseconds, and the rate that was reached.
 * hold: one request on each connection, then it sleeps until it is killed; it
 * has little room for responses and reads none. Keys are KEY and a number.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_SIZE = 16384, EVENTS = 256, HOLD_ROOM = 1 };

struct load {
    const char *path;
    const char *key;
    uint64_t interval_ns;
    uint64_t end_ns;
    uint64_t next_ns; /* when the next request is due */
    uint64_t number;
    uint32_t *us; /* latencies */
    size_t count;
    size_t cap;
};

struct conn {
    int fd;
    bool busy;
    uint64_t due_ns;
    size_t len;
    char in[READ_SIZE];
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void die(const char *why)
{
    fprintf(stderr, "http_load: %s: %s\n", why, strerror(errno));
    exit(1);
}

static int connect_to(int port, int room)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;

    if (room) {
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
    }
    if (fd < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        die("connect");
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

static void send_request(struct load *load, struct conn *conn)
{
    static const char BODY[] =
        "{\"amount\":4200,\"currency\":\"eur\",\"customer\":\"cus_1\"}";
    char request[1024];
    int len =
        snprintf(request, sizeof(request),
                 "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: acme\r\n"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n"
                 "Idempotency-Key: %s%llu\r\n\r\n%s",
                 load->path, sizeof(BODY) - 1, load->key,
                 (unsigned long long)load->number++, BODY);

    conn->busy = true;
    if (write(conn->fd, request, (size_t)len) != len) {
        die("write");
    }
}

/* All of it is there: the header, and as much as it announces. */
static bool is_whole(const struct conn *conn)
{
    static const char LENGTH[] = "\r\nContent-Length:";
    const char *end = strstr(conn->in, "\r\n\r\n");
    const char *length = strcasestr(conn->in, LENGTH);

    if (!end) {
        return false;
    }
    if (strncmp(conn->in, "HTTP/1.1 201", 12) != 0 || !length || length > end) {
        errno = EPROTO;
        die(conn->in);
    }
    return conn->len >= (size_t)(end + 4 - conn->in) +
                            strtoul(length + sizeof(LENGTH) - 1, NULL, 10);
}

static void take_response(struct load *load, struct conn *conn)
{
    ssize_t got =
        read(conn->fd, conn->in + conn->len, sizeof(conn->in) - 1 - conn->len);

    if (got <= 0) {
        die("read");
    }
    conn->len += (size_t)got;
    conn->in[conn->len] = '\0';
    if (!is_whole(conn)) {
        return;
    }
    if (load->count < load->cap) {
        load->us[load->count++] = (uint32_t)((now_ns() - conn->due_ns) / 1000);
    }
    conn->len = 0;
    conn->busy = false;
}

static void send_due(struct load *load, struct conn *conns, size_t count)
{
    static size_t turn;

    for (size_t tried = 0; tried < count && load->next_ns <= now_ns();
         tried++, turn = (turn + 1) % count) {
        if (!conns[turn].busy) {
            conns[turn].due_ns = load->next_ns;
            load->next_ns += load->interval_ns;
            send_request(load, &conns[turn]);
        }
    }
}

static void run(struct load *load, struct conn *conns, size_t count, int poll)
{
    struct epoll_event events[EVENTS];

    while (load->next_ns < load->end_ns) {
        send_due(load, conns, count);
        uint64_t now = now_ns();
        uint64_t left = load->next_ns > now ? load->next_ns - now : 100000;
        struct timespec wait = {(time_t)(left / 1000000000u),
                                (long)(left % 1000000000u)};
        int ready = epoll_pwait2(poll, events, EVENTS, &wait, NULL);
        for (int i = 0; i < ready; i++) {
            take_response(load, events[i].data.ptr);
        }
    }
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void measure(struct load *load, struct conn *conns, size_t count,
                    int poll, double rate, double seconds)
{
    uint64_t start = now_ns();

    load->interval_ns = (uint64_t)(1e9 / rate);
    load->next_ns = start;
    load->end_ns = start + (uint64_t)(seconds * 1e9);
    load->cap = (size_t)(rate * seconds * 1.1) + 1;
    load->us = calloc(load->cap, sizeof(*load->us));
    prctl(PR_SET_TIMERSLACK, 1);
    run(load, conns, count, poll);
    double took = (double)(now_ns() - start) / 1e9;
    qsort(load->us, load->count, sizeof(*load->us), compare);
    printf("%u %u %u %.0f\n", load->us[load->count / 2],
           load->us[load->count * 99 / 100], load->us[load->count * 999 / 1000],
           (double)load->count / took);
    free(load->us);
}

int main(int argc, char **argv)
{
    bool hold = argc == 6 && !strcmp(argv[1], "hold");

    if (!hold && (argc != 8 || strcmp(argv[1], "rate") != 0)) {
        fprintf(stderr, "usage: http_load rate|hold PORT PATH KEY CONNECTIONS "
                        "[RATE SECONDS]\n");
        return 2;
    }
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    size_t count = strtoul(argv[5], NULL, 10);
    struct conn *conns = calloc(count, sizeof(*conns));
    struct load load = {.path = argv[3], .key = argv[4]};
    int poll = epoll_create1(0);
    for (size_t i = 0; i < count; i++) {
        conns[i].fd = connect_to(atoi(argv[2]), hold ? HOLD_ROOM : 0);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &conns[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, conns[i].fd, &event);
        if (hold) {
            send_request(&load, &conns[i]);
        }
    }
    if (hold) {
        pause();
    } else {
        measure(&load, conns, count, poll, strtod(argv[6], NULL),
                strtod(argv[7], NULL));
    }
    free(conns);
    return 0;
}
