/*
 * config_listen.c - addresses to listen on:
 *
 *   unix:PATH   ADDRESS:PORT   [IPv6]:PORT   localhost:PORT
 *
 * Names other than localhost are refused. Each address is marked as loopback or
 * not; one that other machines can reach needs a password (config_check.c).
 */
#include "config/config_table.h"
#include "lib/http_syntax.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define SOCKET_PATH_MAX (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)

/* Longest text of an IPv6 address, with room to spare. */
#define LISTEN_HOST_MAX 64

/* LK_INVALID with the address, quoted, in front of the sentence. */
static enum lk_status invalid_address(struct lk_buf *why, struct lk_slice value,
                                      const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(value, quoted, sizeof(quoted));
    return lk_value_refuse(why, "%s %s", quoted, text);
}

/* Frees the texts, not the struct: that is part of config->listen. */
static void free_listener(struct lk_listen *listen)
{
    free(listen->text);
    free(listen->path);
}

/* Port 0 is valid here: the kernel then picks one. */
static bool read_listen_port(struct lk_slice text, in_port_t *port)
{
    uint64_t value;

    if (text.len > 5 || !lk_number_read(text, UINT16_MAX, &value)) {
        return false;
    }
    *port = htons((in_port_t)value);
    return true;
}

/* False: `host` is not an IPv4 address. All of 127/8 is loopback. */
static bool read_ipv4(const char *host, in_port_t port,
                      struct lk_listen *listen)
{
    struct sockaddr_in *address = (struct sockaddr_in *)&listen->address;

    if (inet_pton(AF_INET, host, &address->sin_addr) != 1) {
        return false;
    }
    address->sin_family = AF_INET;
    address->sin_port = port;
    listen->loopback = ntohl(address->sin_addr.s_addr) >> 24 == 127;
    return true;
}

/* Also ::ffff:127.x.y.z is loopback: the kernel treats it as IPv4. */
static bool read_ipv6(const char *host, in_port_t port,
                      struct lk_listen *listen)
{
    struct sockaddr_in6 *address = (struct sockaddr_in6 *)&listen->address;
    const struct in6_addr *addr = &address->sin6_addr;

    if (inet_pton(AF_INET6, host, &address->sin6_addr) != 1) {
        return false;
    }
    address->sin6_family = AF_INET6;
    address->sin6_port = port;
    listen->loopback = IN6_IS_ADDR_LOOPBACK(addr) ||
                       (IN6_IS_ADDR_V4MAPPED(addr) && addr->s6_addr[12] == 127);
    return true;
}

/* HOST:PORT. `localhost` is the only name: what another name resolves to could
 * change. */
static bool read_tcp(struct lk_slice text, struct lk_listen *listen)
{
    const char *colon = memrchr(text.data, ':', text.len);
    struct lk_slice host, port_text;
    char name[LISTEN_HOST_MAX];
    in_port_t port;
    bool brackets;

    if (!colon) {
        return false;
    }
    host = (struct lk_slice){text.data, (size_t)(colon - text.data)};
    port_text = (struct lk_slice){colon + 1,
                                  text.len - (size_t)(colon + 1 - text.data)};
    brackets =
        host.len >= 2 && host.data[0] == '[' && host.data[host.len - 1] == ']';
    if (brackets) {
        host.data++;
        host.len -= 2;
    }
    if (host.len >= sizeof(name) || !read_listen_port(port_text, &port)) {
        return false;
    }
    memcpy(name, host.data, host.len);
    name[host.len] = '\0';
    if (brackets) {
        return read_ipv6(name, port, listen);
    }
    return read_ipv4(strcmp(name, "localhost") == 0 ? "127.0.0.1" : name, port,
                     listen);
}

/* Reads one address. `listen` owns what it points at; also after an error, when
 * the caller frees it with free_listener(). */
static enum lk_status read_listener(struct lk_slice text,
                                    struct lk_listen *listen,
                                    struct lk_buf *why)
{
    struct lk_slice prefix = LK_SLICE("unix:");

    *listen = (struct lk_listen){.text = strndup(text.data, text.len)};
    if (!listen->text) {
        return LK_NOMEM;
    }
    if (text.len >= prefix.len &&
        memcmp(text.data, prefix.data, prefix.len) == 0) {
        size_t len = text.len - prefix.len;

        if (len == 0) {
            return invalid_address(why, text, "has no path; use unix:PATH");
        }
        if (len > SOCKET_PATH_MAX) {
            return invalid_address(
                why, text, "is too long for a socket; it may have 107 bytes");
        }
        listen->path = strndup(text.data + prefix.len, len);
        listen->loopback = true;
        return listen->path ? LK_OK : LK_NOMEM;
    }
    if (!read_tcp(text, listen)) {
        return invalid_address(
            why, text,
            "is not an address; use unix:PATH, ADDRESS:PORT, "
            "[IPv6]:PORT or localhost:PORT");
    }
    return LK_OK;
}

void lk_listen_clear(struct lk_config *config)
{
    for (size_t i = 0; i < config->listen_count; i++) {
        free_listener(&config->listen[i]);
    }
    free(config->listen);
    config->listen = NULL;
    config->listen_count = 0;
}

/* Adds one address to config->listen; after an error the list is as before. */
static enum lk_status add_listener(struct lk_config *config,
                                   struct lk_slice text, struct lk_buf *why)
{
    struct lk_listen *grown = realloc(
        config->listen, (config->listen_count + 1) * sizeof(*config->listen));
    enum lk_status status;

    if (!grown) {
        return LK_NOMEM;
    }
    config->listen = grown;
    status = read_listener(text, &grown[config->listen_count], why);
    if (status != LK_OK) {
        free_listener(&grown[config->listen_count]);
        return status;
    }
    config->listen_count++;
    return LK_OK;
}

/* Addresses with commas between them. The first one of a layer (file,
 * options) replaces those of the layer below. */
static enum lk_status parse_listen(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    struct lk_config *config = assignment->config;
    const char *at = assignment->value;
    enum lk_status status = LK_OK;

    if (config->listen_source != assignment->source) {
        lk_listen_clear(config);
        config->listen_source = assignment->source;
    }
    while (status == LK_OK) {
        const char *end = strchrnul(at, ',');

        status = add_listener(
            config, lk_trim((struct lk_slice){at, (size_t)(end - at)}), why);
        if (*end == '\0') {
            break;
        }
        at = end + 1;
    }
    return status;
}

/* In one line with commas, for lk_config_get() and to compare at a reload; a
 * dump has one line for each. */
static enum lk_status print_listen(const void *base,
                                   const struct lk_setting *setting,
                                   struct lk_buf *out)
{
    const struct lk_config *config = base;
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < config->listen_count && status == LK_OK; i++) {
        status = latchkey_buf_printf(out, "%s%s", i > 0 ? ", " : "",
                                     config->listen[i].text);
    }
    return status;
}

const struct lk_setting_kind lk_kind_listen = {
    .parse = parse_listen, .print = print_listen, .repeats = true};
