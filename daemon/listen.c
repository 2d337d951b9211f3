/*
 * listen.c - where the daemon listens: unix sockets and TCP.
 *
 * A listener lives in server->listeners from lk_server_listen to
 * lk_server_stop_listening, and counts as soon as its libuv handle exists, so
 * that a failed start closes it too. An accepted connection belongs to conn.c
 * from lk_conn_start on; until then free_conn frees it.
 */
#include "daemon/daemon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Connections that the kernel completes before they are accepted. */
enum { BACKLOG = 1024 };

/* ---- Accepting ----------------------------------------------------------- */

/* Writes "host:port" or "[host]:port" to `text`, and the port to `port`. */
static void format_address(const struct sockaddr_storage *address, char *text,
                           size_t size, unsigned *port)
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        *port = ntohs(in6->sin6_port);
        snprintf(text, size, "[%s]:%u", host, *port);
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        *port = ntohs(in->sin_port);
        snprintf(text, size, "%s:%u", host, *port);
    }
}

/* Fills in conn->address, which the log and CLIENT LIST show. Replies are small
 * and awaited, so TCP sends them without Nagle's delay. */
static void note_address(struct lk_conn *conn, bool tcp)
{
    struct sockaddr_storage address;
    int len = sizeof(address);
    unsigned port;

    if (!tcp) {
        snprintf(conn->address, sizeof(conn->address), "unix");
        return;
    }
    uv_tcp_nodelay(&conn->uv.tcp, 1);
    if (!uv_tcp_getpeername(&conn->uv.tcp, (struct sockaddr *)&address, &len)) {
        format_address(&address, conn->address, sizeof(conn->address), &port);
    }
}

/* Close callback of a connection that conn.c never got. */
static void free_conn(uv_handle_t *handle)
{
    free(handle->data);
}

/* The client may never see the text; the closed connection it will. */
static void refuse(struct lk_conn *conn)
{
    static const char text[] = "-ERR max number of clients reached\r\n";
    uv_buf_t buf = uv_buf_init((char *)text, sizeof(text) - 1);

    conn->server->metrics.refused++;
    (void)uv_try_write(&conn->uv.stream, &buf, 1);
    uv_close(&conn->uv.handle, free_conn);
}

/* A connection is accepted even when there is no place for it, so that its
 * client gets an error at once instead of waiting in the backlog. */
static void on_connection(uv_stream_t *stream, int status)
{
    struct lk_listener *listener = stream->data;
    struct lk_server *server = listener->server;
    bool tcp = !listener->path;
    struct lk_conn *conn = status ? NULL : calloc(1, sizeof(*conn));

    if (!conn) {
        lk_log(LK_LOG_ERROR, "accept-failed", "error=\"%s\"",
               status ? uv_strerror(status) : "out of memory");
        return;
    }
    conn->server = server;
    if (tcp ? uv_tcp_init(&server->loop, &conn->uv.tcp)
            : uv_pipe_init(&server->loop, &conn->uv.pipe, 0)) {
        free(conn);
        return;
    }
    conn->uv.handle.data = conn;
    status = uv_accept(stream, &conn->uv.stream);
    if (status) {
        lk_log(LK_LOG_ERROR, "accept-failed", "error=\"%s\"",
               uv_strerror(status));
        uv_close(&conn->uv.handle, free_conn);
    } else if (!lk_conn_has_place(server)) {
        refuse(conn);
    } else {
        note_address(conn, tcp);
        lk_conn_start(conn);
    }
}

/* ---- Listening ----------------------------------------------------------- */

/* Logs why an address of daemon.listen cannot be used; always LK_IO. */
static enum lk_status fail(const char *where, const char *why)
{
    char shown[LK_LOG_QUOTED];

    lk_log(LK_LOG_ERROR, "listen-failed", "address=%s error=\"%s\"",
           lk_log_quote(latchkey_slice(where), shown, sizeof(shown)), why);
    return LK_IO;
}

/* What can be done about an error of bind(2), listen(2) and their like. */
static const char *name_cure(const struct lk_listen *listen, int error)
{
    switch (error) {
    case EADDRINUSE:
        return "stop the other program, or choose another daemon.listen";
    case EADDRNOTAVAIL:
        return "this machine has no such address; choose another daemon.listen";
    case EACCES:
        return listen->path ? "its folder must be writable for latchkeyd's user"
                            : "a port below 1024 is for root; choose another "
                              "daemon.listen";
    case ENOENT:
        return "its folder must be there";
    default:
        return "choose another daemon.listen";
    }
}

/* The same for an errno of bind(2) or listen(2), with advice. */
static enum lk_status fail_to_bind(const struct lk_listen *listen, int error)
{
    char why[256];

    snprintf(why, sizeof(why), "%s; %s", strerror(error),
             name_cure(listen, error));
    return fail(listen->text, why);
}

/* A socket file that no one listens on was left behind and is removed. */
static enum lk_status remove_stale(const struct sockaddr_un *address,
                                   const char *where)
{
    struct stat stat;

    if (lstat(address->sun_path, &stat)) {
        return errno == ENOENT ? LK_OK : fail(where, strerror(errno));
    }
    if (!S_ISSOCK(stat.st_mode)) {
        return fail(where, "there is a file of that name that is not a socket; "
                           "remove it, or choose another daemon.listen");
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return fail(where, strerror(errno));
    }
    int result =
        connect(fd, (const struct sockaddr *)address, sizeof(*address));
    int error = errno;
    close(fd);
    if (result == 0 || error != ECONNREFUSED) {
        return fail(where, "another process listens there; stop it, or choose "
                           "another daemon.listen");
    }
    if (unlink(address->sun_path)) {
        return fail(where, strerror(errno));
    }
    return LK_OK;
}

/* Bound by hand: the permissions have to be right from the first moment on. */
static int bind_unix(const struct sockaddr_un *address, mode_t mode)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -1;
    }
    mode_t old = umask(0777 & ~mode);
    int result = bind(fd, (const struct sockaddr *)address, sizeof(*address));
    int error = errno;
    umask(old);
    if (result) {
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Opens a unix socket that is bound, but does not listen yet. From the moment
 * listener->path is set, lk_server_stop_listening removes the file. */
static enum lk_status open_unix(struct lk_listener *listener,
                                const struct lk_listen *listen)
{
    struct lk_server *server = listener->server;
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    size_t len = strlen(listen->path);

    if (len >= sizeof(address.sun_path)) {
        return fail(listen->text, "the path is too long for a socket");
    }
    memcpy(address.sun_path, listen->path, len + 1);
    enum lk_status status = remove_stale(&address, listen->text);
    if (status) {
        return status;
    }
    int fd = bind_unix(&address, (mode_t)server->config.socket_mode);
    if (fd < 0) {
        return fail_to_bind(listen, errno);
    }
    listener->path = strdup(listen->path);
    if (!listener->path) {
        close(fd);
        return LK_NOMEM;
    }
    uv_pipe_init(&server->loop, &listener->uv.pipe, 0);
    listener->uv.handle.data = listener;
    int result = uv_pipe_open(&listener->uv.pipe, fd);
    if (result) {
        close(fd);
        return fail(listen->text, uv_strerror(result));
    }
    return LK_OK;
}

/* The same for TCP. */
static enum lk_status open_tcp(struct lk_listener *listener,
                               const struct lk_listen *listen)
{
    uv_tcp_init(&listener->server->loop, &listener->uv.tcp);
    listener->uv.handle.data = listener;
    int result = uv_tcp_bind(&listener->uv.tcp,
                             (const struct sockaddr *)&listen->address, 0);

    return result ? fail_to_bind(listen, -result) : LK_OK;
}

/* Logs the address as bound, and notes the port: daemon.listen may ask for port
 * 0, and INFO shows tcp_port. */
static void log_listening(struct lk_listener *listener)
{
    struct sockaddr_storage address = {0};
    int len = sizeof(address);
    char text[LK_ADDRESS_TEXT] = "?";

    if (listener->path) {
        lk_log(LK_LOG_INFO, "listening", "address=unix:%s", listener->path);
        return;
    }
    if (!uv_tcp_getsockname(&listener->uv.tcp, (struct sockaddr *)&address,
                            &len)) {
        format_address(&address, text, sizeof(text), &listener->port);
    }
    lk_log(LK_LOG_INFO, "listening", "address=%s", text);
}

/* Opens one address of daemon.listen and accepts connections on it. A failure
 * has been logged, except LK_NOMEM. */
static enum lk_status open_one(struct lk_server *server,
                               const struct lk_listen *listen)
{
    struct lk_listener *listener = &server->listeners[server->listener_count];
    enum lk_status status;

    listener->server = server;
    status =
        listen->path ? open_unix(listener, listen) : open_tcp(listener, listen);
    if (listener->uv.handle.data) {
        server->listener_count++;
    }
    if (status) {
        return status;
    }
    int result = uv_listen(&listener->uv.stream, BACKLOG, on_connection);
    if (result) {
        return fail_to_bind(listen, -result);
    }
    log_listening(listener);
    return LK_OK;
}

/* On failure the listeners that are open already stay so; the caller closes
 * them with lk_server_stop_listening. */
enum lk_status lk_server_listen(struct lk_server *server)
{
    const struct lk_config *config = &server->config;

    server->listeners =
        calloc(config->listen_count + 1, sizeof(*server->listeners));
    if (!server->listeners) {
        return LK_NOMEM;
    }
    for (size_t i = 0; i < config->listen_count; i++) {
        enum lk_status status = open_one(server, &config->listen[i]);
        if (status) {
            return status;
        }
    }
    return LK_OK;
}

/* May be called more than once. The file of a unix socket is removed first, so
 * that new clients find no socket rather than one that is about to close. */
void lk_server_stop_listening(struct lk_server *server)
{
    for (size_t i = 0; i < server->listener_count; i++) {
        struct lk_listener *listener = &server->listeners[i];
        if (uv_is_closing(&listener->uv.handle)) {
            continue;
        }
        if (listener->path) {
            unlink(listener->path);
        }
        uv_close(&listener->uv.handle, NULL);
    }
}
