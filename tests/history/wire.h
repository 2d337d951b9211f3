/* wire.h - as much of the Redis protocol as race.c and linear.c need, client
 * side. */
#ifndef LK_HISTORY_WIRE_H
#define LK_HISTORY_WIRE_H

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { WIRE_WORDS = 32 };

/* A reply without nesting. Slices point into the buffer it was read from. */
struct wire_reply {
    char type; /* the first byte: + - : $ * */
    int count; /* of an array; else 1 */
    struct {
        const char *data; /* NULL: an integer */
        size_t len;
        int64_t number;
    } word[WIRE_WORDS];
};

static inline const char *wire_line(const char *at, const char *end,
                                    int64_t *number)
{
    const char *stop = memchr(at, '\n', (size_t)(end - at));

    if (stop != NULL && number != NULL) {
        *number = strtoll(at + 1, NULL, 10);
    }
    return stop == NULL ? NULL : stop + 1;
}

/* One word of a reply: where it ends, or NULL if it has not all arrived. */
static inline const char *wire_word(const char *at, const char *end,
                                    struct wire_reply *reply, int index)
{
    int64_t number = 0;
    const char *next = at < end ? wire_line(at, end, &number) : NULL;

    if (next == NULL) {
        return NULL;
    }
    reply->word[index].data = at + 1;
    reply->word[index].len = (size_t)(next - at - 3);
    reply->word[index].number = number;
    if (*at == ':') {
        reply->word[index].data = NULL;
    } else if (*at == '$' && number >= 0) {
        if (end - next < number + 2) {
            return NULL;
        }
        reply->word[index].data = next;
        reply->word[index].len = (size_t)number;
        next += number + 2;
    }
    return next;
}

/* Bytes used, 0 if the reply is not complete, -1 if it makes no sense. */
static inline long wire_parse(const char *data, size_t len,
                              struct wire_reply *reply)
{
    const char *at = data, *end = data + len;
    int64_t count = 1;

    if (len == 0 || memchr("+-:$*", data[0], 5) == NULL) {
        return len == 0 ? 0 : -1;
    }
    reply->type = data[0];
    if (reply->type == '*') {
        at = wire_line(data, end, &count);
        if (at != NULL && (count < 1 || count > WIRE_WORDS)) {
            return -1;
        }
    }
    for (int i = 0; at != NULL && i < count; i++) {
        at = wire_word(at, end, reply, i);
    }
    reply->count = (int)count;
    return at == NULL ? 0 : at - data;
}

static inline bool wire_is(const struct wire_reply *reply, const char *word)
{
    size_t len = strlen(word);

    return reply->word[0].data != NULL && reply->word[0].len >= len &&
           memcmp(reply->word[0].data, word, len) == 0;
}

/* Bytes on their way out. */
struct wire_out {
    char *data;
    size_t len, cap, sent;
};

static inline void wire_add(struct wire_out *out, const void *data, size_t len)
{
    if (out->cap - out->len < len) {
        out->cap = 2 * out->cap + len + 4096;
        out->data = realloc(out->data, out->cap);
        if (out->data == NULL) {
            fputs("race: out of memory\n", stderr);
            exit(2);
        }
    }
    memcpy(out->data + out->len, data, len);
    out->len += len;
}

static inline void wire_array(struct wire_out *out, int count)
{
    char head[16];

    wire_add(out, head, (size_t)snprintf(head, sizeof(head), "*%d\r\n", count));
}

static inline void wire_bulk(struct wire_out *out, const void *data, size_t len)
{
    char head[24];

    wire_add(out, head, (size_t)snprintf(head, sizeof(head), "$%zu\r\n", len));
    wire_add(out, data, len);
    wire_add(out, "\r\n", 2);
}

static inline void wire_text(struct wire_out *out, const char *text)
{
    wire_bulk(out, text, strlen(text));
}

static inline void wire_number(struct wire_out *out, uint64_t number)
{
    char text[24];

    wire_bulk(out, text,
              (size_t)snprintf(text, sizeof(text), "%llu",
                               (unsigned long long)number));
}

static inline int wire_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline int wire_tcp(const char *server)
{
    const char *colon = strrchr(server, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char host[256];
    int fd = -1;

    if (colon == NULL || (size_t)(colon - server) >= sizeof(host)) {
        errno = EINVAL;
        return -1;
    }
    snprintf(host, sizeof(host), "%.*s", (int)(colon - server), server);
    if (getaddrinfo(host, colon + 1, &hints, &found) != 0) {
        errno = EINVAL;
        return -1;
    }
    fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* -1: errno says why. */
static inline int wire_open(const char *server)
{
    return strncmp(server, "unix:", 5) == 0 ? wire_unix(server + 5)
                                            : wire_tcp(server);
}

#endif
