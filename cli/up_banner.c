/* up_banner.c - what `latchkey up` says once requests can come. */
#include "cli/up.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Each option of curl has a line of its own: a narrow terminal does not break
 * them, and they can be pasted. */
#define CURL_LINE " \\\n    "

/* ---- A first request ------------------------------------------------------
 */

/* Length of the variable's name at `at`, which stands behind a $. */
static const char *next_variable(const char *at, size_t *length)
{
    at = strchr(at, '$');
    if (at == NULL) {
        return NULL;
    }
    at += at[1] == '{' ? 2 : 1;
    *length = strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                         "0123456789_");
    return at;
}

/* http_x_api_key: X-Api-Key */
static void put_header_name(struct lk_buf *out, const char *name, size_t length)
{
    bool first = true;

    for (size_t i = 0; i < length; i++) {
        char c = name[i];

        if (first && c >= 'a' && c <= 'z') {
            c = (char)(c - 'a' + 'A');
        }
        first = c == '_';
        lk_put(out, "%c", first ? '-' : c);
    }
}

/* What a request needs for one variable of the tenant; arguments go to `url`.
 */
static void put_source(struct lk_buf *words, struct lk_buf *url,
                       const char *name, size_t length)
{
    if (length == 18 && strncmp(name, "http_authorization", length) == 0) {
        lk_put(words, CURL_LINE "-H 'Authorization: Bearer demo'");
    } else if (length > 5 && strncmp(name, "http_", 5) == 0) {
        lk_put(words, CURL_LINE "-H '");
        put_header_name(words, name + 5, length - 5);
        lk_put(words, ": demo'");
    } else if (length > 7 && strncmp(name, "cookie_", 7) == 0) {
        lk_put(words, CURL_LINE "-H 'Cookie: %.*s=demo'", (int)length - 7,
               name + 7);
    } else if (length > 4 && strncmp(name, "arg_", 4) == 0) {
        lk_put(url, "%s%.*s=demo", strchr(url->data, '?') == NULL ? "?" : "&",
               (int)length - 4, name + 4);
    }
}

static void put_key(struct lk_buf *out)
{
    unsigned char bytes[16] = {0};

    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
        lk_put(out, "my-first-key");
        return;
    }
    bytes[6] = (unsigned char)((bytes[6] & 0x0f) | 0x40);
    bytes[8] = (unsigned char)((bytes[8] & 0x3f) | 0x80);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        lk_put(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
               bytes[i]);
    }
}

static void put_curl(const struct lk_up *up, struct lk_buf *out)
{
    const char *at = up->tenant == NULL ? "$http_authorization" : up->tenant;
    struct lk_buf words = {0};
    struct lk_buf url = {0};
    size_t length;

    if (up->listen.path != NULL) {
        lk_put(&words, CURL_LINE "--unix-socket ");
        lk_up_put_word(&words, up->listen.path);
        lk_put(&url, "http://localhost");
    } else {
        lk_put_raw(&url, latchkey_buf_slice(&up->url));
    }
    lk_put(&url, "%s", up->path);
    while ((at = next_variable(at, &length)) != NULL) {
        put_source(&words, &url, at, length);
    }
    lk_put(out, "  curl -i ");
    lk_up_put_word(out, url.data);
    lk_put_raw(out, latchkey_buf_slice(&words));
    lk_put(out, CURL_LINE "-H 'Idempotency-Key: ");
    put_key(out);
    lk_put(out, "'" CURL_LINE "-H 'Content-Type: application/json'" CURL_LINE
                "-d '{\"amount\":4200,\"currency\":\"eur\","
                "\"customer\":\"cus_1\"}'\n");
    latchkey_buf_free(&words);
    latchkey_buf_free(&url);
}

/* ---- The whole ------------------------------------------------------------
 */

static const char *mode_meaning(const char *mode)
{
    if (strcmp(mode, "required") == 0) {
        return "POST and PATCH run once for each Idempotency-Key,\n"
               "           and are refused without one";
    }
    if (strcmp(mode, "observe") == 0) {
        return "nothing is changed; what would have been done is\n"
               "           shown below";
    }
    return "POST and PATCH with an Idempotency-Key run once;\n"
           "           without one they pass unguarded";
}

static void put_tenant(const struct lk_up *up, struct lk_buf *out)
{
    const char *stored = up->plain ? "as it is" : "as a hash";

    if (up->tenant == NULL) {
        lk_put(out,
               "  callers  told apart by Authorization, else by X-Api-Key, "
               "stored %s;\n"
               "           a request with a key and neither is refused "
               "(--tenant changes that)\n",
               stored);
    } else if (strchr(up->tenant, '$') == NULL) {
        lk_put(out,
               "  callers  all clients are one caller, \"%s\": equal keys get\n"
               "           the same answer\n",
               up->tenant);
    } else {
        lk_put(out,
               "  callers  told apart by %s, stored %s;\n"
               "           a request with a key and without it is refused\n",
               up->tenant, stored);
    }
}

/* As people write it: ~/FILE. */
static void put_path(struct lk_buf *out, const char *path)
{
    const char *home = getenv("HOME");
    size_t length = home == NULL ? 0 : strlen(home);

    if (length > 1 && strncmp(path, home, length) == 0 && path[length] == '/') {
        lk_put(out, "~%s\n", path + length);
    } else {
        lk_put(out, "%s\n", path);
    }
}

/* The shortest line by which another terminal asks this daemon. */
static void put_look(const struct lk_up *up, const char *words,
                     struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;

    lk_up_put_word(out, files->self);
    lk_put(out, " %s", words);
    if (up->announced && !lk_where_is_running()) {
        lk_put(out, " --profile ");
        lk_up_put_word(out, strrchr(files->running, '/') + 1);
    } else if (!up->announced) {
        lk_put(out, " --server unix:");
        lk_up_put_word(out, files->socket);
    }
    lk_put(out, "\n");
}

/* Without the password that it may hold. */
static void put_store(const struct lk_up *up, struct lk_buf *out)
{
    const char *url = up->files.store_url;
    const char *host = strstr(url, "://");
    const char *at;

    if (up->files.store != NULL || host == NULL) {
        put_path(out, up->files.store == NULL ? url : up->files.store);
        return;
    }
    host += 3;
    at = memchr(host, '@', strcspn(host, "/?"));
    lk_put(out, "%.*s", (int)(host - url), url);
    host = at == NULL ? host : at + 1;
    lk_put(out, "%.*s\n", (int)strcspn(host, "?"), host);
}

void lk_up_put_hint(const struct lk_up *up, bool tenant, struct lk_buf *out)
{
    if (!tenant) {
        lk_put(out, "  ^ POST and PATCH need an Idempotency-Key header here; "
                    "--mode optional\n    lets them pass without one\n");
    } else if (up->tenant == NULL) {
        lk_put(out, "  ^ it has a key, but does not say who asks: send\n"
                    "    -H 'Authorization: Bearer demo', or start with "
                    "--tenant demo,\n    which makes all clients one caller\n");
    } else {
        lk_put(out,
               "  ^ it has a key, but nothing in %s, which says who asks: "
               "send it\n    as the curl line does, or choose another "
               "--tenant\n",
               up->tenant);
    }
}

void lk_up_put_banner(const struct lk_up *up, struct lk_buf *out)
{
    lk_put(out,
           "Latchkey is up: %.*s, in front of %s\n\n"
           "  mode     %s: %s\n",
           (int)up->url.len, up->url.data, up->app.shown, up->mode,
           mode_meaning(up->mode));
    put_tenant(up, out);
    lk_put(out, "  answers  ");
    put_store(up, out);
    lk_put(out, "  config   ");
    put_path(out, up->files.config);
    lk_put(out, "  look     ");
    put_look(up, "list", out);
    if (up->announced) {
        lk_put(out, "           ");
        put_look(up, "find REFERENCE", out);
    }
    lk_put(out, "\nTry this twice; the second answer is the first one, "
                "replayed:\n\n");
    put_curl(up, out);
    if (strcmp(up->path, "/") == 0) {
        lk_put(out, "\nIn place of / put a path of your app that takes POST; "
                    "--path PATH prints it.\n");
    }
    if (up->async) {
        lk_put(out, "\nWith -H 'Prefer: respond-async' and a new key it gets "
                    "202 at once, with the\nLocation where the same caller "
                    "asks for the answer.\n");
    }
    lk_put(out, "\nCtrl-C stops it.\n\n");
}
