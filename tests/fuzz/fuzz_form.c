/*
 * fuzz_form.c - checks that any content type (the first line) and body (the
 * rest) are safe, that canonical forms are their own canonical form, and that
 * multipart bodies may be written again with another boundary.
 */
#include "lib/body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_form(struct lk_slice body)
{
    struct lk_buf out = {0}, again = {0};
    enum lk_status status = lk_form_canonical(body, &out);

    demand(status == LK_OK || (status == LK_MALFORMED && out.len == 0));
    if (!status) {
        demand(lk_form_canonical(latchkey_buf_slice(&out), &again) == LK_OK);
        demand(latchkey_slice_equal(latchkey_buf_slice(&out),
                                    latchkey_buf_slice(&again)));
    }
    latchkey_buf_free(&out);
    latchkey_buf_free(&again);
}

/* Writes canonical parts as a body again, with the boundary "other N". */
static void write_body(const struct lk_buf *parts, const char *boundary,
                       struct lk_buf *body)
{
    const char *at = parts->data, *end = parts->data + parts->len;

    while (at < end) {
        size_t headers, bytes;
        int used = 0;
        demand(sscanf(at, "part %zu %zu%n", &headers, &bytes, &used) == 2);
        at += used + 1;
        demand(!latchkey_buf_printf(body, "--%s\r\n", boundary));
        for (; headers; headers--) {
            const char *line = memchr(at, '\n', (size_t)(end - at));
            demand(!latchkey_buf_add(body, at, (size_t)(line - at)));
            demand(!latchkey_buf_add(body, "\r\n", 2));
            at = line + 1;
        }
        demand(!latchkey_buf_add(body, "\r\n", 2));
        demand(!latchkey_buf_add(body, at, bytes));
        demand(!latchkey_buf_add(body, "\r\n", 2));
        at += bytes + 1;
    }
    demand(!latchkey_buf_printf(body, "--%s--", boundary));
}

static void check_multipart(struct lk_slice content_type, struct lk_slice body)
{
    struct lk_buf parts = {0}, other = {0}, again = {0}, type = {0};
    char boundary[32];
    unsigned number = 0;
    enum lk_status status = lk_multipart_canonical(content_type, body, &parts);

    demand(status == LK_OK || (status == LK_MALFORMED && parts.len == 0));
    if (!status && parts.len) {
        do {
            snprintf(boundary, sizeof boundary, "other %u", number++);
        } while (memmem(parts.data, parts.len, boundary, strlen(boundary)));
        /* sscanf wants an end. */
        demand(!latchkey_buf_reserve(&parts, 1));
        parts.data[parts.len] = '\0';
        write_body(&parts, boundary, &other);
        demand(!latchkey_buf_printf(&type, "multipart/x; boundary=\"%s\"",
                                    boundary));
        demand(!lk_multipart_canonical(latchkey_buf_slice(&type),
                                       latchkey_buf_slice(&other), &again));
        demand(latchkey_slice_equal(latchkey_buf_slice(&parts),
                                    latchkey_buf_slice(&again)));
    }
    latchkey_buf_free(&parts);
    latchkey_buf_free(&other);
    latchkey_buf_free(&again);
    latchkey_buf_free(&type);
}

/* Whatever was sent, the explanation is printable and has seven lines. */
static void check_explain(struct lk_slice content_type, struct lk_slice body)
{
    struct lk_request request = {.content_type = content_type, .body = body};
    struct lk_fingerprint fingerprint;
    struct lk_buf explain = {0};
    int lines = 0;

    demand(latchkey_fingerprint(&request, &fingerprint, &explain) == LK_OK);
    for (size_t i = 0; i < explain.len; i++) {
        lines += explain.data[i] == '\n';
        demand(explain.data[i] == '\n' ||
               (explain.data[i] >= ' ' && explain.data[i] <= '~'));
    }
    demand(lines == 7);
    latchkey_buf_free(&explain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;

    if (!line) {
        return 0;
    }
    struct lk_slice type = {(const char *)data, (size_t)(line - data)};
    struct lk_slice body = {(const char *)line + 1, size - type.len - 1};
    if (body.len) {
        check_form(body);
        check_multipart(type, body);
    }
    check_explain(type, body);
    return 0;
}
