/*
 * config_target_value.c - values that only targets and routes have: URLs,
 * headers, statuses, rates, paths of probes.
 *
 * As in config_value.c, a parse function checks the text and stores the value,
 * and a print function writes it as a file would have it. X_fault() returns
 * what is wrong with a text, as the end of a sentence, or NULL. A kind without
 * a print function is a secret.
 */
#include "config/config_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS  "0123456789"

/* Where the value belongs in the target or route. */
static void *field_at(const struct lk_assignment *assignment)
{
    return (char *)assignment->base + assignment->setting->offset;
}

/* ---- url ----------------------------------------------------------------- */

/* A port of `len` bytes, 1 to 65535. */
static const char *port_fault(const char *at, size_t len)
{
    uint16_t port;

    if (len == 0 || len > 5 || strspn(at, DIGITS) < len) {
        return "has a port that is not a number";
    }
    return lk_port_read((struct lk_slice){at, len}, &port)
               ? NULL
               : "has a port that is not in 1 to 65535";
}

/* "host", "host:port", "[::1]:port", of `len` bytes. */
static const char *authority_fault(const char *at, size_t len)
{
    size_t host = *at == '[' ? strspn(at + 1, DIGITS "abcdefABCDEF:.") + 2
                             : strspn(at, LETTERS DIGITS "-._");

    if (memchr(at, '@', len)) {
        return "must not hold a user or a password; use a header";
    }
    if (host == 0 || host > len || (*at == '[' && at[host - 1] != ']')) {
        return "has no host, or one that is not a name or an address";
    }
    if (host == len) {
        return NULL;
    }
    return at[host] == ':' ? port_fault(at + host + 1, len - host - 1)
                           : "has a host that is not a name or an address";
}

/* The path of the URL, which precedes those of jobs: empty, or a valid path. */
static const char *base_fault(const char *base)
{
    if (strpbrk(base, "?#")) {
        return "must not have a query or a fragment";
    }
    return *base ? lk_path_fault(latchkey_slice(base)) : NULL;
}

/* "http://AUTHORITY[/PATH]" or the same with https. */
static const char *http_fault(const char *value)
{
    const char *authority = strstr(value, "://") + 3;
    size_t len = strcspn(authority, "/?#");
    const char *fault = authority_fault(authority, len);

    return fault ? fault : base_fault(authority + len);
}

/* "unix:/PATH[:/BASE]": a socket, and the path in front of those of jobs. */
static const char *socket_fault(const char *value)
{
    const char *path = value + strlen("unix:");
    const char *base = strstr(path, ":/");
    size_t len = base ? (size_t)(base - path) : strlen(path);

    if (*path != '/' || len >= LK_SOCKET_PATH) {
        return "is not unix:/PATH, or a path too long for a socket";
    }
    return base ? base_fault(base + 1) : NULL;
}

/* http://, https:// or unix:; anything else is refused. */
static const char *url_fault(const char *value)
{
    if (strncmp(value, "unix:", 5) == 0) {
        return socket_fault(value);
    }
    if (strncmp(value, "http://", 7) == 0 ||
        strncmp(value, "https://", 8) == 0) {
        return http_fault(value);
    }
    return "is not the URL of a service; use https://HOST, http://HOST or "
           "unix:/PATH";
}

/* The paths of jobs begin with a slash. */
static void cut_slash(char *url)
{
    size_t len = strlen(url);

    if (len && url[len - 1] == '/') {
        url[len - 1] = '\0';
    }
}

/* unix:PATH[:/BASE] becomes target->socket and a URL with the host
 * localhost. */
static enum lk_status take_url(struct lk_target *target, const char *value)
{
    char *url = NULL;
    char *path = NULL;

    if (strncmp(value, "unix:", 5) == 0) {
        const char *base = strstr(value + 5, ":/");
        path = base ? strndup(value + 5, (size_t)(base - value - 5))
                    : strdup(value + 5);
        if (asprintf(&url, "http://localhost%s", base ? base + 1 : "") < 0) {
            url = NULL;
        }
        if (!path || !url) {
            free(path);
            free(url);
            return LK_NOMEM;
        }
    } else {
        url = strdup(value);
    }
    if (!url) {
        return LK_NOMEM;
    }
    cut_slash(url);
    free(target->url);
    free(target->socket);
    target->url = url;
    target->socket = path;
    return LK_OK;
}

/* A mistake is shown without a password. */
static enum lk_status parse_target_url(const struct lk_assignment *assignment,
                                       struct lk_buf *why)
{
    const char *fault = url_fault(assignment->value);
    char *shown;
    enum lk_status status;

    if (!fault) {
        return take_url(assignment->base, assignment->value);
    }
    shown = strdup(assignment->shown);
    if (!shown) {
        return LK_NOMEM;
    }
    lk_url_mask(shown);
    status = lk_value_invalid(why, shown, fault);
    lk_secret_free(shown);
    return status;
}

/* The form in which it was given: a socket has no URL of its own. */
static enum lk_status print_target_url(const void *base,
                                       const struct lk_setting *setting,
                                       struct lk_buf *out)
{
    const struct lk_target *target = base;
    const char *url = target->url ? target->url : "";
    const char *path = url + strlen("http://localhost");

    if (!target->socket) {
        return latchkey_buf_add_text(out, url);
    }
    return latchkey_buf_printf(out, "unix:%s%s%s", target->socket,
                               *path ? ":" : "", path);
}

/* ---- headers ------------------------------------------------------------- */

/*
 * What is wrong with a line "Name: value", or NULL. A target may set Host; a
 * job may not, which is why lk_headers_fault() would refuse it. The copy is
 * wiped: it may have a password.
 */
static const char *header_fault(const char *line)
{
    size_t name = strcspn(line, ":");

    if (name == 4 && strncasecmp(line, "host", 4) == 0) {
        return strpbrk(line, "\r\n") ? "contains a line break" : NULL;
    }
    struct lk_buf text = {0};
    const char *fault = "cannot be checked: out of memory";
    size_t number;
    if (latchkey_buf_printf(&text, "%s\r\n", line) == LK_OK) {
        fault = lk_headers_fault(latchkey_buf_slice(&text), &number);
        explicit_bzero(text.data, text.len);
    }
    latchkey_buf_free(&text);
    return fault;
}

/* Adds a line to target->headers. */
static enum lk_status parse_header(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    struct lk_target *target = assignment->base;
    const char *fault = header_fault(assignment->value);
    char *lines = NULL;

    if (fault) {
        return lk_value_refuse(why, "%s; use Name: value", fault);
    }
    if (asprintf(&lines, "%s%s\r\n", target->headers ? target->headers : "",
                 assignment->value) < 0) {
        return LK_NOMEM;
    }
    lk_secret_free(target->headers);
    target->headers = lines;
    return LK_OK;
}

/* Letters, digits, "-" and "_", at most 64 of them. */
static enum lk_status parse_header_name(const struct lk_assignment *assignment,
                                        struct lk_buf *why)
{
    size_t len = strlen(assignment->value);

    if (!len || len > 64 ||
        strspn(assignment->value, LETTERS DIGITS "-_") != len) {
        return lk_value_invalid(why, assignment->shown,
                                "is not the name of a header");
    }
    return lk_value_take(assignment);
}

/* "header:NAME" or "json:/POINTER": where the service's own id is. */
static bool is_id_place(const char *value)
{
    const char *colon = strchr(value, ':');

    if (!colon || strncmp(value, "header:", 7) != 0) {
        return strncmp(value, "json:/", 6) == 0;
    }
    size_t len = strspn(colon + 1, LETTERS DIGITS "-_");
    return len && !colon[1 + len];
}

static enum lk_status parse_provider_id(const struct lk_assignment *assignment,
                                        struct lk_buf *why)
{
    return is_id_place(assignment->value)
               ? lk_value_take(assignment)
               : lk_value_invalid(why, assignment->shown,
                                  "is not a place; use header:NAME or "
                                  "json:/POINTER");
}

/* "whsec_BASE64", as Standard Webhooks writes a secret: 16 characters of base64
 * are 12 bytes. The value is never shown. */
static enum lk_status parse_sign(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    const char *value = assignment->value;
    const char *key = value + strlen("whsec_");

    if (strncmp(value, "whsec_", 6) != 0 || strlen(key) < 16 ||
        key[strspn(key, LETTERS DIGITS "+/=")]) {
        return lk_value_refuse(why,
                               "is not a signing secret; use whsec_ and at "
                               "least 12 bytes in base64");
    }
    return lk_value_take(assignment);
}

/* ---- statuses, rates, versions ------------------------------------------- */

/* The statuses from `from` up to, but not including, `to`. */
static void add_statuses(struct lk_statuses *set, unsigned from, unsigned to)
{
    for (unsigned bit = from - 100; bit < to - 100; bit++) {
        set->bits[bit / 64] |= UINT64_C(1) << bit % 64;
    }
}

/* "404" or "5xx". */
static bool add_status_word(struct lk_statuses *set, const char *word,
                            size_t len)
{
    unsigned first = (unsigned)(unsigned char)word[0] - '0';

    if (len != 3 || first < 1 || first > 5) {
        return false;
    }
    if (strncasecmp(word + 1, "xx", 2) == 0) {
        add_statuses(set, first * 100, first * 100 + 100);
        return true;
    }
    if (strspn(word, DIGITS) < 3) {
        return false;
    }
    unsigned status = (unsigned)strtoul(word, NULL, 10);
    add_statuses(set, status, status + 1);
    return true;
}

/* "404 409 5xx", with blanks or commas between. */
static enum lk_status parse_statuses(const struct lk_assignment *assignment,
                                     struct lk_buf *why)
{
    struct lk_statuses set = {{0}};
    const char *at = assignment->value;

    while (*(at += strspn(at, " \t,"))) {
        size_t len = strcspn(at, " \t,");
        if (!add_status_word(&set, at, len)) {
            return lk_value_invalid(why, assignment->shown,
                                    "is not a list of statuses; use 200 or "
                                    "2xx, with spaces between");
        }
        at += len;
    }
    *(struct lk_statuses *)field_at(assignment) = set;
    return LK_OK;
}

/* The first status from `from` on that is (or is not) in the set; a number
 * beyond LK_STATUS_MAX if there is none. */
static unsigned first_status(const struct lk_statuses *set, unsigned from,
                             bool wanted)
{
    while (from <= LK_STATUS_MAX && lk_statuses_have(set, from) != wanted) {
        from++;
    }
    return from;
}

/* A whole hundred as "5xx", the others one by one. */
static enum lk_status print_statuses(const void *base,
                                     const struct lk_setting *setting,
                                     struct lk_buf *out)
{
    const struct lk_statuses *set =
        (const void *)((const char *)base + setting->offset);
    enum lk_status status = LK_OK;
    unsigned at = first_status(set, 100, true);

    while (at <= LK_STATUS_MAX && !status) {
        bool whole = at % 100 == 0 && first_status(set, at, false) >= at + 100;
        status =
            whole ? latchkey_buf_printf(out, "%s%uxx", out->len ? " " : "",
                                        at / 100)
                  : latchkey_buf_printf(out, "%s%u", out->len ? " " : "", at);
        at = first_status(set, at + (whole ? 100 : 1), true);
    }
    return status;
}

/* Calls a second: "100/s" or "100". */
static enum lk_status parse_rate(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    const struct lk_setting *setting = assignment->setting;
    uint64_t rate;
    size_t digits = lk_digits_read(latchkey_slice(assignment->value), &rate);
    const char *end = assignment->value + digits;

    if (!digits || digits > 9 || (*end && strcmp(end, "/s") != 0) ||
        rate > setting->max) {
        return lk_value_invalid(why, assignment->shown,
                                "is not a rate; use calls a second, as in "
                                "100/s, or 0 for any");
    }
    *(uint64_t *)field_at(assignment) = rate;
    return LK_OK;
}

/* 0 means no limit and has no unit. */
static enum lk_status print_rate(const void *base,
                                 const struct lk_setting *setting,
                                 struct lk_buf *out)
{
    uint64_t rate = *(const uint64_t *)((const char *)base + setting->offset);

    return latchkey_buf_printf(out, rate ? "%llu/s" : "%llu",
                               (unsigned long long)rate);
}

static const char *const http_words[] = {"auto", "1.1", "2"};

/* The index of the word is the value of the setting. */
static enum lk_status parse_http(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    for (uint64_t i = LK_HTTP_AUTO; i <= LK_HTTP_2; i++) {
        if (strcmp(assignment->value, http_words[i]) == 0) {
            *(uint64_t *)field_at(assignment) = i;
            return LK_OK;
        }
    }
    return lk_value_invalid(why, assignment->shown,
                            "is neither auto, 1.1 nor 2");
}

static enum lk_status print_http(const void *base,
                                 const struct lk_setting *setting,
                                 struct lk_buf *out)
{
    uint64_t http = *(const uint64_t *)((const char *)base + setting->offset);

    return latchkey_buf_add_text(out, http_words[http]);
}

/* ---- files, probes, routes ----------------------------------------------- */

/* The file must be readable now: otherwise each call would fail later. */
static enum lk_status parse_file(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    if (assignment->value[0] != '/') {
        return lk_value_invalid(why, assignment->shown,
                                "is not an absolute path");
    }
    if (access(assignment->value, R_OK) != 0) {
        return lk_value_invalid(why, assignment->shown, "cannot be read");
    }
    return lk_value_take(assignment);
}

/* With both braces; only these words are replaced in a path. */
static bool is_placeholder(const char *at, size_t len)
{
    static const char *const words[] = {"{key}",   "{id}",   "{tenant}",
                                        "{scope}", "{name}", "{reference}"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strlen(words[i]) == len && memcmp(words[i], at, len) == 0) {
            return true;
        }
    }
    return false;
}

/* What is wrong with the path of a probe or rollback, or NULL. */
static const char *template_fault(const char *path)
{
    const char *fault = lk_path_fault(latchkey_slice(path));

    while (!fault && (path = strpbrk(path, "{}"))) {
        const char *end = strchr(path, '}');
        if (!end || !is_placeholder(path, (size_t)(end - path + 1))) {
            return "has an unknown placeholder; use {key}, "
                   "{id}, {tenant}, {scope}, {name} or {reference}";
        }
        path = end + 1;
    }
    return fault;
}

static enum lk_status parse_probe(const struct lk_assignment *assignment,
                                  struct lk_buf *why)
{
    const char *fault = template_fault(assignment->value);

    return fault ? lk_value_invalid(why, assignment->shown, fault)
                 : lk_value_take(assignment);
}

/* Empty is the whole document. */
static enum lk_status parse_list_pointer(const struct lk_assignment *assignment,
                                         struct lk_buf *why)
{
    if (assignment->value[0] && assignment->value[0] != '/') {
        return lk_value_invalid(why, assignment->shown,
                                "is not a JSON Pointer; it begins with a "
                                "slash, or is empty for the whole document");
    }
    return lk_value_take(assignment);
}

/* A text of 1 to `most` bytes. */
static enum lk_status take_bounded_text(const struct lk_assignment *assignment,
                                        size_t most, const char *fault,
                                        struct lk_buf *why)
{
    size_t len = strlen(assignment->value);

    return len && len <= most ? lk_value_take(assignment)
                              : lk_value_invalid(why, assignment->shown, fault);
}

/* 1 to 1024 bytes; a "*" at the end makes it a prefix. */
static enum lk_status parse_scope(const struct lk_assignment *assignment,
                                  struct lk_buf *why)
{
    return take_bounded_text(
        assignment, 1024,
        "is not a scope; use METHOD /path, or the beginning "
        "of one and *",
        why);
}

static enum lk_status parse_tenant(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    return take_bounded_text(assignment, 255,
                             "is not a tenant; use 1 to 255 bytes", why);
}

/* Whether there is such a target is checked when all are known. */
static enum lk_status parse_target_name(const struct lk_assignment *assignment,
                                        struct lk_buf *why)
{
    const char *fault = lk_target_name_fault(latchkey_slice(assignment->value));

    return fault ? lk_value_invalid(why, assignment->shown, fault)
                 : lk_value_take(assignment);
}

/* "TARGET /path". */
static enum lk_status parse_rollback(const struct lk_assignment *assignment,
                                     struct lk_buf *why)
{
    struct lk_route *route = assignment->base;
    const char *value = assignment->value;
    size_t len = strcspn(value, " \t");
    const char *path = value + len + strspn(value + len, " \t");
    const char *fault = lk_target_name_fault((struct lk_slice){value, len});

    if (!fault && *path) {
        fault = template_fault(path);
    }
    if (fault || !*path) {
        return lk_value_invalid(why, assignment->shown,
                                fault ? fault
                                      : "is not a call; use TARGET /path");
    }
    free(route->rollback_target);
    free(route->rollback_path);
    route->rollback_target = strndup(value, len);
    route->rollback_path = strdup(path);
    return route->rollback_target && route->rollback_path ? LK_OK : LK_NOMEM;
}

static enum lk_status print_rollback(const void *base,
                                     const struct lk_setting *setting,
                                     struct lk_buf *out)
{
    const struct lk_route *route = base;

    return route->rollback_target
               ? latchkey_buf_printf(out, "%s %s", route->rollback_target,
                                     route->rollback_path)
               : LK_OK;
}

#define KIND(name, ...)                                                        \
    const struct lk_setting_kind lk_kind_##name = {.parse = parse_##name,      \
                                                   __VA_ARGS__}

KIND(target_url, .print = print_target_url);
KIND(header, .repeats = true);
KIND(header_name, .print = lk_value_print);
KIND(statuses, .print = print_statuses);
KIND(rate, .print = print_rate);
KIND(provider_id, .print = lk_value_print);
KIND(sign, .repeats = false);
KIND(http, .print = print_http);
KIND(file, .print = lk_value_print);
KIND(probe, .print = lk_value_print);
KIND(list_pointer, .print = lk_value_print);
KIND(scope, .print = lk_value_print);
KIND(tenant, .print = lk_value_print);
KIND(target_name, .print = lk_value_print);
KIND(rollback, .print = print_rollback);
