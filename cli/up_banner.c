/* up_banner.c - what `latchkey up` says once requests can come. */
#include "cli/up.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

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
        lk_put(words, " -H 'Authorization: Bearer demo'");
    } else if (length > 5 && strncmp(name, "http_", 5) == 0) {
        lk_put(words, " -H '");
        put_header_name(words, name + 5, length - 5);
        lk_put(words, ": demo'");
    } else if (length > 7 && strncmp(name, "cookie_", 7) == 0) {
        lk_put(words, " -H 'Cookie: %.*s=demo'", (int)length - 7, name + 7);
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
        lk_put(&words, " --unix-socket ");
        lk_up_put_word(&words, up->listen.path);
        lk_put(&url, "http://localhost/");
    } else {
        lk_put_raw(&url, latchkey_buf_slice(&up->url));
        lk_put(&url, "/");
    }
    while ((at = next_variable(at, &length)) != NULL) {
        put_source(&words, &url, at, length);
    }
    lk_put(out, "  curl -i ");
    lk_up_put_word(out, url.data);
    lk_put_raw(out, latchkey_buf_slice(&words));
    lk_put(out, " -H 'Idempotency-Key: ");
    put_key(out);
    lk_put(out, "' -H 'Content-Type: application/json' -d '{\"hello\":1}'\n");
    latchkey_buf_free(&words);
    latchkey_buf_free(&url);
}

/* ---- The whole ------------------------------------------------------------
 */

static const char *mode_meaning(const char *mode)
{
    if (strcmp(mode, "required") == 0) {
        return "POST and PATCH run once for each Idempotency-Key, and are "
               "refused without one";
    }
    if (strcmp(mode, "observe") == 0) {
        return "nothing is changed; what would have been done is shown below";
    }
    return "POST and PATCH with an Idempotency-Key run once; without one they "
           "pass unguarded";
}

static void put_tenant(const struct lk_up *up, struct lk_buf *out)
{
    if (up->tenant == NULL) {
        lk_put(out,
               "  callers  told apart by Authorization, else by X-Api-Key, "
               "stored %s;\n"
               "           a renewed credential is another caller, and a key "
               "with neither is\n"
               "           refused (--tenant chooses something else)\n",
               up->plain ? "as it is" : "as a hash");
        return;
    }
    if (strchr(up->tenant, '$') == NULL) {
        lk_put(out,
               "  callers  everybody is one caller, \"%s\": whoever sends the "
               "same key gets\n"
               "           the same answer\n",
               up->tenant);
        return;
    }
    lk_put(out,
           "  callers  told apart by %s, stored %s; whoever sends the\n"
           "           same value is the same caller\n",
           up->tenant, up->plain ? "as it is" : "as a hash");
}

void lk_up_put_banner(const struct lk_up *up, struct lk_buf *out)
{
    const struct lk_up_files *files = &up->files;

    lk_put(out,
           "Latchkey is up: send requests to %.*s, which stands before %s\n"
           "  mode     %s: %s\n",
           (int)up->url.len, up->url.data, up->app.given, up->mode,
           mode_meaning(up->mode));
    put_tenant(up, out);
    lk_put(out,
           "  answers  kept in %s\n"
           "  config   %s\n"
           "  look     ",
           files->store, files->config);
    lk_up_put_word(out, files->self);
    lk_put(out, " list --server unix:");
    lk_up_put_word(out, files->socket);
    lk_put(out, " --user operator --password-file ");
    lk_up_put_word(out, files->password);
    lk_put(out, "\n\nTry this twice; the second answer is the first one, "
                "replayed:\n");
    put_curl(up, out);
    lk_put(out, "\nCtrl-C stops it.\n\n");
}
