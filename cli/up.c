/*
 * up.c - `latchkey up`: a gateway in front of an app, by one command. Its
 * options, which let nothing through that could mean something else in nginx's
 * configuration; whether the address is free, and whether the app is there.
 */
#include "cli/up.h"
#include "cli/commands.h"
#include "cli/move.h"
#include "lib/number.h"
#include "lib/socket.h"
#include "lib/time.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ==== Reads the options of `latchkey up`, and lets nothing through that could
 * mean something else in nginx's configuration */

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS  "0123456789"

static const char host_characters[] = LETTERS DIGITS "._-";
static const char url_characters[] = LETTERS DIGITS "/._~%!*()+,=:@&-";
static const char name_characters[] = LETTERS DIGITS "_";

/* ---- Paths --------------------------------------------------------------- */

/* NULL: the path is fine; else what is wrong, as the end of a sentence. Paths
 * go into nginx's configuration. */
static const char *refuse_path(const char *path)
{
    if (path[0] != '/') {
        return "is not an absolute path";
    }
    for (; *path != '\0'; path++) {
        unsigned char c = (unsigned char)*path;

        if (c < 0x20 || c == 0x7f || strchr("\"'\\$;{}#`", c) != NULL) {
            return "has a character that nginx could take for its own: a "
                   "control character or one of \"'\\$;{}#`";
        }
    }
    return NULL;
}

enum lk_exit lk_up_check_path(const char *what, const char *path)
{
    const char *why = refuse_path(path);

    if (why != NULL) {
        lk_complain("%s is \"%s\", which %s", what, path, why);
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

/* A unix socket's: a colon would end it, a space too. */
static const char *refuse_socket(const char *path)
{
    if (strpbrk(path, ": ") != NULL) {
        return "the path of a socket has no colon and no space";
    }
    if (strlen(path) > 107) {
        return "the path of a socket has at most 107 bytes";
    }
    return refuse_path(path) == NULL ? NULL
                                     : "the path of a socket is "
                                       "absolute and plain";
}

/* ---- Host and port ------------------------------------------------------- */

/* Length of the host at the front of `text`, brackets included; 0: none. */
static size_t host_length(const char *text)
{
    size_t length;

    if (text[0] != '[') {
        return strspn(text, host_characters);
    }
    length = 1 + strspn(text + 1, DIGITS "abcdefABCDEF:.");
    return length > 1 && text[length] == ']' ? length + 1 : 0;
}

/* The port at the front of `text`; moves on behind it. 0: there is none. */
static unsigned take_port(const char **text)
{
    size_t length = strspn(*text, DIGITS);
    uint16_t port = 0;

    if (length > 5 || !lk_port_read((struct lk_slice){*text, length}, &port)) {
        port = 0;
    }
    *text += length;
    return port;
}

/* ---- --upstream ---------------------------------------------------------- */

static const struct scheme {
    const char *prefix;
    enum lk_up_scheme scheme;
    unsigned port; /* if none is given; 0: one must be given */
} schemes[] = {
    {"http://", LK_UP_HTTP, 80},      {"https://", LK_UP_HTTPS, 443},
    {"fastcgi://", LK_UP_FASTCGI, 0}, {"uwsgi://", LK_UP_UWSGI, 0},
    {"scgi://", LK_UP_SCGI, 0},
};

/* HTTP is proxied; the others are gateway protocols with parameters. */
static bool is_web(enum lk_up_scheme scheme)
{
    return scheme == LK_UP_HTTP || scheme == LK_UP_HTTPS;
}

/* The path behind the host: a prefix for HTTP, a script for FastCGI. As all
 * read_... functions here, returns what is wrong, or NULL. */
static const char *read_rest(struct lk_up_app *app, const char *rest)
{
    size_t length = strlen(rest);
    char *pass;

    if (strspn(rest, url_characters) != length) {
        return "the path may have letters, digits and /._~%!*()+,=:@&- only";
    }
    if (length <= 1) {
        return NULL;
    }
    if (app->scheme == LK_UP_FASTCGI) {
        if (rest[length - 1] == '/' || refuse_path(rest) != NULL) {
            return "the path of fastcgi: is that of a script, as in "
                   "/srv/app/index.php";
        }
        app->script = lk_text("%s", rest);
        return NULL;
    }
    if (!is_web(app->scheme)) {
        return "uwsgi: and scgi: have no path";
    }
    /* With the slash, /pay becomes PREFIX/pay and not PREFIXpay. */
    pass = lk_text("%s%s%s%s", app->pass, app->host == NULL ? ":" : "", rest,
                   rest[length - 1] == '/' ? "" : "/");
    free(app->pass);
    app->pass = pass;
    return NULL;
}

/* "HOST[:PORT][/REST]"; sets app->host, port and pass. */
static const char *read_authority(struct lk_up_app *app,
                                  const struct scheme *scheme, const char *at)
{
    const char *web = is_web(scheme->scheme) ? scheme->prefix : "";
    size_t length = host_length(at);
    const char *host = at;
    bool local = length == 9 && strncmp(at, "localhost", length) == 0;

    if (length == 0) {
        return "there is no host";
    }
    at += length;
    app->port = scheme->port;
    if (*at == ':') {
        at++;
        app->port = take_port(&at);
    }
    if (app->port == 0) {
        return "it needs a port from 1 to 65535";
    }
    if (*at != '\0' && *at != '/') {
        return "the host has letters, digits, points and dashes only";
    }
    /* The name of a certificate stays. */
    app->is_localhost = local && scheme->scheme != LK_UP_HTTPS;
    app->host = app->is_localhost ? lk_text("%s", lk_up_localhost(app->port))
                                  : lk_text("%.*s", (int)length, host);
    app->pass = lk_text("%s%s:%u", web, app->host, app->port);
    return read_rest(app, at);
}

/* As nginx writes it: the socket, and perhaps a colon and a path. */
static const char *read_socket(struct lk_up_app *app, const char *text)
{
    size_t length = strcspn(text, ":");
    const char *why;
    char *path;

    if (app->scheme == LK_UP_HTTPS) {
        return "https: needs a host";
    }
    path = lk_text("%.*s", (int)length, text);
    why = refuse_socket(path);
    app->pass =
        lk_text("%sunix:%s", app->scheme == LK_UP_HTTP ? "http://" : "", path);
    app->socket = path;
    if (why != NULL || text[length] == '\0') {
        return why;
    }
    if (text[length + 1] != '/') {
        return "behind the socket and its colon comes an absolute path";
    }
    return read_rest(app, text + length + 1);
}

/* SCHEME://..., unix:SOCKET, or for short PORT, :PORT and HOST:PORT. */
static const char *read_app(struct lk_up_app *app)
{
    const char *text = app->given;

    if (strncmp(text, "unix:", 5) == 0) {
        app->scheme = LK_UP_HTTP;
        return read_socket(app, text + 5);
    }
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        size_t length = strlen(schemes[i].prefix);

        if (strncmp(text, schemes[i].prefix, length) == 0) {
            app->scheme = schemes[i].scheme;
            text += length;
            return strncmp(text, "unix:", 5) == 0
                       ? read_socket(app, text + 5)
                       : read_authority(app, &schemes[i], text);
        }
    }
    /* 3000, :3000, localhost:3000 */
    if (strspn(text, DIGITS) == strlen(text) || text[0] == ':') {
        app->shown = lk_text("http://localhost:%s", text + (text[0] == ':'));
    } else if (text[host_length(text)] == ':' && strstr(text, "://") == NULL) {
        app->shown = lk_text("http://%s", text);
    }
    return app->shown != NULL ? read_authority(app, &schemes[0], app->shown + 7)
                              : "it begins with no known scheme";
}

/* "user@" or "user:password@" in front of the host. */
static bool has_credentials(const char *text)
{
    const char *authority = strstr(text, "://");

    return authority != NULL &&
           strcspn(authority + 3, "@") < strcspn(authority + 3, "/");
}

/* Fills up->app, whose texts lk_up_free() frees. */
enum lk_exit lk_up_read_app(struct lk_up *up, const char *text)
{
    const char *why;

    if (text == NULL) {
        return lk_complain_usage(up->cli, "where is your app? --upstream "
                                          "3000, say, if it listens on port "
                                          "3000");
    }
    if (has_credentials(text)) { /* which are not repeated here */
        return lk_complain_usage(up->cli, "--upstream has a user name or "
                                          "password; these belong to clients");
    }
    up->app.given = text;
    why = read_app(&up->app);
    up->app.shown = up->app.shown == NULL ? lk_text("%s", text) : up->app.shown;
    if (why != NULL) {
        return lk_complain_usage(up->cli,
                                 "--upstream is \"%s\": %s; use PORT, "
                                 "http://HOST:PORT, https://HOST, unix:PATH, "
                                 "fastcgi://HOST:PORT/SCRIPT, "
                                 "fastcgi://unix:SOCKET:/SCRIPT, "
                                 "uwsgi://HOST:PORT or scgi://HOST:PORT",
                                 text, why);
    }
    return LK_EXIT_DONE;
}

/* ---- --listen ------------------------------------------------------------ */

/* PORT is on 127.0.0.1 only: a gateway that is tried out is not for others. */
static const char *read_listen(struct lk_up_listen *listen, const char *text)
{
    size_t length = text[0] == '*' ? 1 : host_length(text);

    if (strncmp(text, "unix:", 5) == 0) {
        listen->path = lk_text("%s", text + 5);
        return refuse_socket(listen->path);
    }
    if (strspn(text, DIGITS) == strlen(text)) {
        listen->host = lk_text("127.0.0.1");
    } else if (length == 0 || text[length] != ':') {
        return "it is not an address";
    } else {
        listen->host = lk_text("%.*s", (int)length, text);
        text += length + 1;
    }
    listen->port = take_port(&text);
    return listen->port == 0 || *text != '\0' ? "a port is from 1 to 65535"
                                              : NULL;
}

/* Every address of the machine. */
static bool is_any(const char *host)
{
    return strcmp(host, "*") == 0 || strcmp(host, "0.0.0.0") == 0 ||
           strcmp(host, "[::]") == 0;
}

/* By its text: a name is not resolved here. */
static bool is_local(const char *host)
{
    return is_any(host) || strcmp(host, "localhost") == 0 ||
           strncmp(host, "127.", 4) == 0 || strcmp(host, "[::1]") == 0;
}

/* If the app had the same address, the gateway would call itself in a loop. */
static bool is_own_address(const struct lk_up *up)
{
    const char *app = up->app.host;
    const char *own = up->listen.host;

    return app != NULL && own != NULL && up->app.port == up->listen.port &&
           (strcmp(app, own) == 0 || (is_local(app) && is_local(own)));
}

/* Also sets up->url, by which a client on this machine reaches the gateway. */
enum lk_exit lk_up_read_listen(struct lk_up *up, const char *text)
{
    const char *why = read_listen(&up->listen, text == NULL ? "8080" : text);
    const char *host = up->listen.host;

    if (why != NULL) {
        return lk_complain_usage(up->cli,
                                 "--listen is \"%s\": %s; use PORT, HOST:PORT "
                                 "or unix:PATH",
                                 text, why);
    }
    if (is_own_address(up)) {
        return lk_complain_usage(up->cli,
                                 "the app is at %s:%u already, so Latchkey "
                                 "must listen elsewhere: --listen PORT",
                                 up->app.host, up->app.port);
    }
    if (host == NULL) {
        lk_put(&up->url, "unix:%s", up->listen.path);
    } else {
        if (is_any(host)) {
            host = host[0] == '[' ? "[::1]" : "127.0.0.1";
        }
        lk_put(&up->url, "http://%s:%u", host, up->listen.port);
    }
    return LK_EXIT_DONE;
}

/* ---- --tenant, --mode ---------------------------------------------------- */

/* Length of the variable at `text`, which begins with $; 0: it is not a
 * variable. */
static size_t variable_length(const char *text)
{
    bool braced = text[1] == '{';
    size_t start = braced ? 2 : 1;
    size_t length = strspn(text + start, name_characters);

    if (length == 0 || (braced && text[start + length] != '}')) {
        return 0;
    }
    return start + length + braced;
}

/* What nginx would refuse here, for nothing that `up` sets up verifies it. */
static const char *refuse_variable(const char *text)
{
    const char *name = text + (text[1] == '{' ? 2 : 1);
    size_t length = strspn(name, name_characters);

    if (length == 11 && strncmp(name, "remote_user", length) == 0) {
        return "no one would check that user, as up cannot do basic "
               "authentication; use '$http_authorization', or add auth_basic "
               "to what --print-config prints";
    }
    if (strncmp(name, "ssl_client_", 11) == 0) {
        return "up has no TLS for clients; add it to what --print-config "
               "prints";
    }
    return NULL;
}

static bool ends_in_hashed(const char *text)
{
    static const char word[] = "hashed";
    size_t length = strlen(text);

    while (length > 0 && text[length - 1] == ' ') {
        length--;
    }
    return length >= 6 && strncmp(text + length - 6, word, 6) == 0 &&
           (length == 6 || text[length - 7] == ' ');
}

/* Text and nginx variables; nothing that could end the quotes in the
 * configuration. */
static const char *refuse_tenant(const char *text)
{
    const char *why;

    if (*text == '\0') {
        return "it is empty";
    }
    if (strlen(text) > 1024) {
        return "it has more than 1024 bytes";
    }
    if (ends_in_hashed(text)) {
        return "it is hashed by default, so leave that word out "
               "(--tenant-plain turns hashing off)";
    }
    while (*text != '\0') {
        size_t length = *text == '$' ? variable_length(text) : 1;

        if (length == 0) {
            return "a $ begins a variable, as in $http_x_api_key or "
                   "${http_x_api_key}";
        }
        why = *text == '$' ? refuse_variable(text) : NULL;
        if (why != NULL) {
            return why;
        }
        if (length == 1 && (*text < 0x20 || *text > 0x7e ||
                            strchr("\"'\\;{}#`", *text) != NULL)) {
            return "it is printable ASCII without \"'\\;{}#`, but for "
                   "${variables}";
        }
        text += length;
    }
    return NULL;
}

enum lk_exit lk_up_read_tenant(struct lk_up *up, const char *text)
{
    const char *why = text == NULL ? NULL : refuse_tenant(text);

    up->tenant = text;
    if (why != NULL) {
        return lk_complain_usage(up->cli, "--tenant is \"%s\": %s", text, why);
    }
    return LK_EXIT_DONE;
}

/* The first one is the default. */
enum lk_exit lk_up_read_mode(struct lk_up *up, const char *text)
{
    static const char *const modes[] = {"optional", "required", "observe"};

    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (text == NULL || strcmp(text, modes[i]) == 0) {
            up->mode = modes[i];
            return LK_EXIT_DONE;
        }
    }
    return lk_complain_usage(
        up->cli, "--mode is \"%s\", but must be required, optional or observe",
        text);
}

enum lk_exit lk_up_read_path(struct lk_up *up, const char *text)
{
    up->path = text == NULL ? "/" : text;
    if (up->path[0] != '/' ||
        strspn(up->path, url_characters) != strlen(up->path)) {
        return lk_complain_usage(up->cli,
                                 "--path is \"%s\", but must be a path of the "
                                 "app such as /orders",
                                 text);
    }
    return LK_EXIT_DONE;
}

/* ==== Is the address free? nginx would take seconds to say so */

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
static int try_listening(const struct addrinfo *address)
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

/* Tries every address that the name has, as nginx will. */
static enum lk_exit check_host(const struct lk_up *up)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    const char *given = up->listen.host;
    char port[8];
    char host[256];
    int error;

    snprintf(port, sizeof(port), "%u", up->listen.port);
    snprintf(host, sizeof(host), "%s", given[0] == '[' ? given + 1 : given);
    host[strcspn(host, "]")] = '\0';
    hints.ai_family = strcmp(host, "*") == 0 ? AF_INET : AF_UNSPEC;
    error =
        getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints, &found);
    if (error != 0) {
        lk_complain("--listen: %s: %s", given, gai_strerror(error));
        return LK_EXIT_FAILED;
    }
    for (struct addrinfo *at = found; at != NULL && error == 0;
         at = at->ai_next) {
        error = try_listening(at);
    }
    freeaddrinfo(found);
    return error == 0 ? LK_EXIT_DONE : complain_address(up, error);
}

/* A socket without a listener was left by a killed process: it is removed. Any
 * other file, and a socket that is in use, is refused. */
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

/* ==== Is the app there? It is asked when requests can come, once a second
 * while it is missing, and again when nginx could not reach it. No step waits:
 * the terminal shows requests in the meantime */

enum {
    AGAIN_MS = 1000,
    PATIENCE_MS = 5000, /* then a connection counts as refused */
};

/* ---- localhost ----------------------------------------------------------- */

/* Of one machine, so this takes no time. */
static bool is_listening(const char *host, unsigned port)
{
    char *address = lk_text("%s:%u", host, port);
    char why[256];
    int fd = -1;
    bool good =
        lk_socket_connect(address, AGAIN_MS, &fd, why, sizeof(why)) == LK_OK;

    if (good) {
        close(fd);
    }
    free(address);
    return good;
}

/* It may mean two addresses, and nginx would try both in turn, with an error
 * in its log for each request that meets the wrong one. */
const char *lk_up_localhost(unsigned port)
{
    return !is_listening("127.0.0.1", port) && is_listening("[::1]", port)
               ? "[::1]"
               : "127.0.0.1";
}

/* ---- Asking -------------------------------------------------------------- */

static bool find_app_socket(struct lk_up_watch *watch, const char *path)
{
    struct sockaddr_un *name = (struct sockaddr_un *)&watch->address;

    if (strlen(path) >= sizeof(name->sun_path)) {
        return false;
    }
    name->sun_family = AF_UNIX;
    memcpy(name->sun_path, path, strlen(path) + 1);
    watch->length = sizeof(*name);
    return true;
}

/* The first address of the name. False: nothing is watched. */
static bool find_host(struct lk_up_watch *watch, const struct lk_up_app *app)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];
    char port[8];

    snprintf(host, sizeof(host), "%s", app->host + (app->host[0] == '['));
    host[strcspn(host, "]")] = '\0';
    snprintf(port, sizeof(port), "%u", app->port);
    if (getaddrinfo(host, port, &hints, &found) != 0) {
        return false; /* nginx complains about it */
    }
    memcpy(&watch->address, found->ai_addr, found->ai_addrlen);
    watch->length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

void lk_up_watch_start(struct lk_up_watch *watch, const struct lk_up *up)
{
    const struct lk_up_app *app = &up->app;

    watch->app = app;
    watch->fd = -1;
    watch->known = app->host != NULL ? find_host(watch, app)
                                     : find_app_socket(watch, app->socket);
    watch->asking = true;
}

/*
 * The connection attempt has ended: 0, or the error. Prints only what is new:
 * that the app is missing, that it is there now, or that it is at the other
 * address of localhost.
 */
static void take_app_result(struct lk_up_watch *watch, int error)
{
    bool there = error == 0;

    if (watch->fd >= 0) {
        close(watch->fd);
        watch->fd = -1;
    }
    watch->asking = !there;
    watch->next_ms = (int64_t)lk_monotonic_ms() + AGAIN_MS;
    if (there && watch->missing) {
        lk_complain("the app at %s is there now", watch->app->shown);
    } else if (!there && !watch->missing) {
        lk_complain("no app listens at %s: %s", watch->app->shown,
                    strerror(error));
        lk_complain("start it, or give another --upstream; until then requests "
                    "get 502");
    } else if (!there && watch->app->is_localhost && !watch->misled &&
               is_listening("[::1]", watch->app->port)) {
        watch->misled = true;
        lk_complain("an app listens at [::1]:%u, not at 127.0.0.1: start "
                    "latchkey up again, which then finds it",
                    watch->app->port);
    }
    watch->missing = !there;
}

/* Starts a connection without waiting for it. EAGAIN (the queue of a unix
 * socket is full) means that an app is there. */
static void ask_app(struct lk_up_watch *watch)
{
    watch->fd = socket(watch->address.ss_family,
                       SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    watch->until_ms = (int64_t)lk_monotonic_ms() + PATIENCE_MS;
    if (watch->fd < 0) {
        return;
    }
    if (connect(watch->fd, (struct sockaddr *)&watch->address, watch->length) ==
        0) {
        take_app_result(watch, 0);
    } else if (errno != EINPROGRESS) {
        take_app_result(watch, errno == EAGAIN ? 0 : errno);
    }
}

/* Called in each round of the loop in up_run.c; never waits. */
void lk_up_watch_step(struct lk_up_watch *watch)
{
    struct pollfd item = {.fd = watch->fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof(error);

    if (!watch->known) {
        return;
    }
    if (watch->fd < 0) {
        if (watch->asking && (int64_t)lk_monotonic_ms() >= watch->next_ms) {
            ask_app(watch);
        }
    } else if (poll(&item, 1, 0) > 0) {
        (void)getsockopt(watch->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        take_app_result(watch, error);
    } else if ((int64_t)lk_monotonic_ms() >= watch->until_ms) {
        take_app_result(watch, ETIMEDOUT);
    }
}

/* nginx could not reach the app: ask again. */
void lk_up_watch_doubt(struct lk_up_watch *watch)
{
    watch->asking = true;
}

void lk_up_watch_stop(struct lk_up_watch *watch)
{
    if (watch->fd >= 0) {
        close(watch->fd);
    }
}

/* ==== `latchkey up`: a gateway in front of an app, by one command */

static const struct lk_option up_options[] = {
    {"upstream", "URL",
     "the app: PORT, http://HOST:PORT[/PATH], https://...,\n"
     "unix:SOCKET[:/PATH], fastcgi://HOST:PORT[/SCRIPT],\n"
     "fastcgi://unix:SOCKET[:/SCRIPT],\n"
     "uwsgi://HOST:PORT or scgi://HOST:PORT"},
    {"listen", "ADDRESS", "PORT, HOST:PORT or unix:PATH (127.0.0.1:8080)"},
    {"tenant", "VALUE",
     "what identifies a caller, as nginx writes it\n"
     "(Authorization, else X-Api-Key)"},
    {"tenant-plain", NULL, "store it as it is, not as a hash"},
    {"mode", "MODE", "required, optional or observe (optional)"},
    {"path", "PATH", "a path of the app that takes POST, for the curl line"},
    {"async", NULL, "answer Prefer: respond-async with 202, run it later"},
    {"store", "URL",
     "stores responses: sqlite:PATH, postgres://...\n"
     "or redis://... (a file in the folder)"},
    {"migrate", NULL, "first create or update what that store needs"},
    {"dir", "FOLDER",
     "a private folder for everything\n"
     "(~/.local/state/latchkey/up-PORT)"},
    {"print-config", NULL, "print nginx's configuration, start nothing"},
    {0},
};

const struct lk_manual lk_manual_up = {
    "Starts latchkeyd and nginx in front of an app, shows each request and "
    "its\n"
    "outcome, and stops both on Ctrl-C. Responses survive restarts.",
    up_options};

/* They are for commands that ask a daemon. */
static enum lk_exit refuse_options(const struct lk_cli *cli)
{
    const struct lk_option *own = lk_options_for(cli->args.command);

    for (const struct lk_option *at = lk_global_options; at != own; at++) {
        if (lk_args_flag(&cli->args, at->name)) {
            return lk_complain_usage(cli,
                                     "up has no --%s: it starts a daemon of "
                                     "its own",
                                     at->name);
        }
    }
    return LK_EXIT_DONE;
}

/* Options that are valid alone, but not together. */
static enum lk_exit check_together(const struct lk_up *up)
{
    if (up->async && strcmp(up->mode, "observe") == 0) {
        return lk_complain_usage(up->cli, "--mode observe changes nothing, so "
                                          "it goes without --async");
    }
    if (up->async && strncmp(up->files.store_url, "redis", 5) == 0) {
        return lk_complain_usage(
            up->cli, "--async needs a store of requests: sqlite: or postgres:");
    }
    return LK_EXIT_DONE;
}

/* --migrate, if it was given. What it prints is shown before anything is
 * started. */
static enum lk_exit migrate_first(struct lk_up *up)
{
    enum lk_exit result = LK_EXIT_DONE;
    enum lk_exit flushed;

    if (lk_args_flag(&up->cli->args, "migrate")) {
        result = lk_migrate_store(up->cli, up->files.store_url);
        flushed = lk_cli_flush(up->cli);
        result = result == LK_EXIT_DONE ? flushed : result;
    }
    return result;
}

/* Reads and checks every option before anything is made or started. */
static enum lk_exit read_values(struct lk_up *up)
{
    const struct lk_args *args = &up->cli->args;
    enum lk_exit result = refuse_options(up->cli);

    up->plain = lk_args_flag(args, "tenant-plain");
    up->async = lk_args_flag(args, "async");
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_app(up, lk_args_value(args, "upstream"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_listen(up, lk_args_value(args, "listen"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_tenant(up, lk_args_value(args, "tenant"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_mode(up, lk_args_value(args, "mode"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_path(up, lk_args_value(args, "path"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_find_files(up);
    }
    return result == LK_EXIT_DONE ? check_together(up) : result;
}

/* In this order: the lock of the folder comes before the check of the address,
 * so that of two runs with the same one the second gets the better message. */
static enum lk_exit bring_up(struct lk_up *up)
{
    enum lk_exit result = lk_up_check_programs(up);

    if (result == LK_EXIT_DONE) {
        result = lk_up_make_files(up);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_check_address(up);
    }
    if (result == LK_EXIT_DONE) {
        result = migrate_first(up);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_run(up);
        lk_up_remove_files(up);
    }
    return result;
}

enum lk_exit lk_run_up(struct lk_cli *cli)
{
    struct lk_up up = {.cli = cli, .lock_fd = -1};
    enum lk_exit result = read_values(&up);

    if (result == LK_EXIT_DONE && lk_args_flag(&cli->args, "print-config")) {
        lk_up_put_config(&up, &cli->out);
    } else if (result == LK_EXIT_DONE) {
        result = bring_up(&up);
    }
    lk_up_free(&up);
    return result;
}
