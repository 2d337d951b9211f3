/*
 * wire_pairs.c - claims and completions, one after the other, on many
 * connections to a running latchkeyd.
 *
 *   wire_pairs SOCKET CONNECTIONS PAIRS BODY_BYTES
 *
 * Each connection claims a fresh key, completes it with the token that it was
 * given, and goes on with the next. Prints the pairs per second.
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

enum { BODY_MAX = 4096, KEY_LEN = 32 };

struct conn {
    int fd;
    bool claimed;
    char key[KEY_LEN + 1];
};

struct load {
    uint64_t seed;
    uint64_t begun;
    uint64_t done;
    uint64_t pairs;
    int body_len;
    char body[BODY_MAX + 1];
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void die(const char *why)
{
    fprintf(stderr, "wire_pairs: %s: %s\n", why, strerror(errno));
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

static void send_all(const struct conn *conn, const char *command, int len)
{
    if (write(conn->fd, command, (size_t)len) != len) {
        die("write");
    }
}

static void claim(struct load *load, struct conn *conn)
{
    char command[512];

    if (load->begun == load->pairs) {
        return;
    }
    load->begun++;
    snprintf(conn->key, sizeof(conn->key), "%016llx%016llx",
             (unsigned long long)load->seed, (unsigned long long)load->begun);
    conn->claimed = true;
    send_all(conn, command,
             snprintf(command, sizeof(command),
                      "*7\r\n$5\r\nCLAIM\r\n$6\r\ntenant\r\n"
                      "$17\r\nPOST /v1/payments\r\n$%d\r\n%s\r\n"
                      "$8\r\n1:abcdef\r\n$5\r\nOWNER\r\n$%d\r\n%s\r\n",
                      KEY_LEN, conn->key, KEY_LEN, conn->key));
}

/* "*5 $3 NEW :token ..." */
static void complete(struct load *load, struct conn *conn, const char *reply)
{
    static const char new[] = "*5\r\n$3\r\nNEW\r\n:";
    char command[BODY_MAX + 512];
    char token[32];

    if (strncmp(reply, new, sizeof(new) - 1) != 0) {
        errno = EPROTO;
        die(reply);
    }
    reply += sizeof(new) - 1;
    snprintf(token, sizeof(token), "%.*s", (int)strcspn(reply, "\r"), reply);
    conn->claimed = false;
    send_all(conn, command,
             snprintf(command, sizeof(command),
                      "*8\r\n$8\r\nCOMPLETE\r\n$6\r\ntenant\r\n"
                      "$17\r\nPOST /v1/payments\r\n$%d\r\n%s\r\n"
                      "$%zu\r\n%s\r\n$3\r\n201\r\n"
                      "$32\r\nContent-Type: application/json\r\n\r\n"
                      "$%d\r\n%s\r\n",
                      KEY_LEN, conn->key, strlen(token), token, load->body_len,
                      load->body));
}

/* Replies are short: one read has the whole of it. */
static void take_reply(struct load *load, struct conn *conn)
{
    char reply[512];
    ssize_t len = read(conn->fd, reply, sizeof(reply) - 1);

    if (len <= 0) {
        die("read");
    }
    reply[len] = '\0';
    if (conn->claimed) {
        complete(load, conn, reply);
        return;
    }
    if (strcmp(reply, "+OK\r\n") != 0) {
        errno = EPROTO;
        die(reply);
    }
    load->done++;
    claim(load, conn);
}

int main(int argc, char **argv)
{
    struct load load = {.seed = now_ns()};
    struct epoll_event events[256];

    if (argc != 5) {
        fputs("usage: wire_pairs SOCKET CONNECTIONS PAIRS BODY_BYTES\n",
              stderr);
        return 2;
    }
    size_t count = strtoul(argv[2], NULL, 10);
    load.pairs = strtoull(argv[3], NULL, 10);
    load.body_len = atoi(argv[4]);
    if (load.body_len < 0 || load.body_len > BODY_MAX) {
        return 2;
    }
    struct conn *conns = calloc(count, sizeof(*conns));
    int poll = epoll_create1(0);
    if (!conns) {
        return 2;
    }
    memset(load.body, 'x', (size_t)load.body_len);
    for (size_t i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &conns[i]};
        conns[i].fd = connect_to(argv[1]);
        epoll_ctl(poll, EPOLL_CTL_ADD, conns[i].fd, &event);
    }
    uint64_t start = now_ns();
    for (size_t i = 0; i < count; i++) {
        claim(&load, &conns[i]);
    }
    while (load.done < load.pairs) {
        int ready = epoll_wait(poll, events, 256, -1);
        for (int i = 0; i < ready; i++) {
            take_reply(&load, events[i].data.ptr);
        }
    }
    printf("%.0f\n", (double)load.done / ((double)(now_ns() - start) / 1e9));
    free(conns);
    return 0;
}
