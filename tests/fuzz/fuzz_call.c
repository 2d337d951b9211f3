/*
 * fuzz_call.c - any bytes as the path, the headers, the method and the target
 * of a job: what is accepted leads nowhere but to the target, and frames no
 * message of its own. What that means is written here a second time.
 */
#include "store/jobs.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition)
{
    if (!condition) {
        abort();
    }
}

static int hex(char c)
{
    const char *digits = "0123456789abcdef";
    const char *found = c ? strchr(digits, c | 0x20) : NULL;

    return found ? (int)(found - digits) : -1;
}

/* ---- Paths --------------------------------------------------------------- */

/* The path without its query as a server may understand it: escapes decoded,
 * whatever some of them take for a separator is one. */
static size_t decode(struct lk_slice path, char *out)
{
    size_t length = 0;

    for (size_t i = 0; i < path.len && path.data[i] != '?'; i++) {
        char c = path.data[i];
        if (c == '%' && i + 2 < path.len && hex(path.data[i + 1]) >= 0 &&
            hex(path.data[i + 2]) >= 0) {
            c = (char)(hex(path.data[i + 1]) * 16 + hex(path.data[i + 2]));
            i += 2;
        }
        out[length++] = strchr("\\;?#", c) ? '/' : c; /* NUL too */
    }
    return length;
}

static void check_segments(struct lk_slice path)
{
    char *text = malloc(path.len + 1);
    demand(text);
    size_t length = decode(path, text);

    demand(length && text[0] == '/');
    for (size_t start = 0, i = 1; i <= length; i++) {
        if (i < length && text[i] != '/') {
            continue;
        }
        size_t dots = 0;
        for (size_t j = start + 1; j < i && text[j] == '.'; j++) {
            dots++;
        }
        demand(!dots || dots > 2 || dots != i - start - 1);
        start = i;
    }
    free(text);
}

static char *part(CURLU *url, CURLUPart what)
{
    char *text = NULL;
    CURLUcode code = curl_url_get(url, what, &text, 0);

    demand(!code || code == CURLUE_NO_QUERY || code == CURLUE_NO_FRAGMENT ||
           code == CURLUE_NO_USER || code == CURLUE_NO_PORT);
    return text;
}

/* What libcurl makes of it behind a target's URL. */
static void check_url(struct lk_slice path)
{
    struct lk_buf text = {0}, behind = {0};
    CURLU *url = curl_url();

    demand(url && !latchkey_buf_printf(&text, "http://target.example/base%.*s",
                                       (int)path.len, path.data));
    demand(!latchkey_buf_add(&text, "", 1));
    demand(!curl_url_set(url, CURLUPART_URL, text.data, CURLU_PATH_AS_IS));
    char *host = part(url, CURLUPART_HOST);
    char *port = part(url, CURLUPART_PORT);
    char *user = part(url, CURLUPART_USER);
    char *fragment = part(url, CURLUPART_FRAGMENT);
    char *place = part(url, CURLUPART_PATH);
    char *query = part(url, CURLUPART_QUERY);
    demand(host && !strcmp(host, "target.example"));
    demand(!port && !user && !fragment && place);
    demand(!latchkey_buf_printf(&behind, "%s%s%s", place, query ? "?" : "",
                                query ? query : ""));
    /* An empty query may be left out. */
    size_t base = strlen("/base");
    demand(behind.len >= base && !memcmp(behind.data, "/base", base));
    demand(behind.len - base <= path.len && behind.len - base + 1 >= path.len &&
           !memcmp(behind.data + base, path.data, behind.len - base));
    curl_free(host);
    curl_free(place);
    curl_free(query);
    curl_url_cleanup(url);
    latchkey_buf_free(&text);
    latchkey_buf_free(&behind);
}

static void check_path(struct lk_slice path)
{
    if (lk_path_fault(path)) {
        return;
    }
    demand(path.len && path.len <= LK_PATH_MAX && path.data[0] == '/');
    demand(path.len == 1 || path.data[1] != '/');
    for (size_t i = 0; i < path.len; i++) {
        unsigned char c = (unsigned char)path.data[i];
        demand(c > ' ' && c < 0x7f && c != '#' && c != '\\');
    }
    check_segments(path);
    check_url(path);
}

/* ---- Headers ------------------------------------------------------------- */

static void check_name(const char *name, size_t length)
{
    static const char *const never[] = {
        "host",       "content-length",   "transfer-encoding",
        "connection", "upgrade",          "te",
        "trailer",    "keep-alive",       "expect",
        "webhook-id", "proxy-connection", "idempotency-key"};

    demand(length);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)name[i];
        demand(c > ' ' && c < 0x7f && !strchr("\"(),/:;<=>?@[\\]{}", c));
    }
    for (size_t i = 0; i < sizeof(never) / sizeof(never[0]); i++) {
        demand(strlen(never[i]) != length ||
               strncasecmp(name, never[i], length) != 0);
    }
    demand(length < 10 || strncasecmp(name, "latchkey-", 9) != 0);
}

static void check_headers(struct lk_slice headers)
{
    size_t start = 0;
    size_t line;

    if (lk_headers_fault(headers, &line)) {
        return;
    }
    for (size_t i = 0; i < headers.len; i++) {
        char c = headers.data[i];
        bool ends = c == '\r';

        demand(c && c != '\n');
        if (!ends) {
            continue;
        }
        demand(i + 1 < headers.len && headers.data[i + 1] == '\n');
        const char *colon = memchr(headers.data + start, ':', i - start);
        demand(colon);
        check_name(headers.data + start,
                   (size_t)(colon - headers.data) - start);
        start = ++i + 1;
    }
    demand(start == headers.len);
}

/* ---- Methods and targets ------------------------------------------------- */

static void check_words(struct lk_slice word)
{
    if (!lk_method_fault(word)) {
        demand(word.len <= LK_METHOD_MAX);
        for (size_t i = 0; i < word.len; i++) {
            demand(word.data[i] >= 'A' && word.data[i] <= 'Z');
        }
    }
    if (!lk_target_name_fault(word)) {
        demand(word.len && word.len <= LK_TARGET_NAME_MAX);
        demand(!latchkey_slice_equal(word, LK_SLICE(LK_TARGET_GATEWAY)));
        demand(!strchr("-_.", word.data[0]));
        for (size_t i = 0; i < word.len; i++) {
            demand(word.data[i] && strchr("abcdefghijklmnopqrstuvwxyz"
                                          "0123456789-_.",
                                          word.data[i]));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_slice text = {(const char *)data, size};

    check_path(text);
    check_headers(text);
    check_words(text);
    return 0;
}
