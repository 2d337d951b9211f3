/* http_headers.c - the headers of a call: the target's, the job's, the
 * courier's own. */
#include "courier/http_parts.h"

#include "lib/field.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The next line of a block, without its end; false: there is none. */
static bool next_line(struct lk_slice *block, struct lk_slice *line)
{
    if (!block->len) {
        return false;
    }
    const char *stop = memchr(block->data, '\n', block->len);
    size_t size = stop ? (size_t)(stop - block->data) + 1 : block->len;

    *line = (struct lk_slice){block->data, size - (stop ? 1 : 0)};
    line->len -= line->len && line->data[line->len - 1] == '\r';
    block->data += size;
    block->len -= size;
    return true;
}

static bool has_header_of(struct lk_slice block, struct lk_slice line)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;
    size_t len = colon ? (size_t)(colon - line.data) + 1 : 0;
    struct lk_slice other;

    while (len && next_line(&block, &other)) {
        if (other.len >= len && !strncasecmp(other.data, line.data, len)) {
            return true;
        }
    }
    return false;
}

/* curl reads "Name:" as the wish to leave a header out, "Name;" as one without
 * a value. */
static enum lk_status add_line(struct lk_buf *lines, struct lk_slice line)
{
    const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;

    if (!colon) {
        return LK_OK;
    }
    size_t name = (size_t)(colon - line.data);
    struct lk_slice value =
        lk_trim((struct lk_slice){colon + 1, line.len - name - 1});
    enum lk_status status = latchkey_buf_add(lines, line.data, name);
    if (!status) {
        status = latchkey_buf_add_text(lines, value.len ? ": " : ";");
    }
    if (!status) {
        status = latchkey_buf_add_slice(lines, value);
    }
    return status ? status : latchkey_buf_add(lines, "", 1);
}

/* curl frames the message. Jobs are refused with these; a request may be from
 * elsewhere. */
static bool is_framing(struct lk_slice line)
{
    static const char names[] = "content-length:\ntransfer-encoding:\n"
                                "connection:\nupgrade:\nte:\ntrailer:\n"
                                "keep-alive:\nexpect:\nproxy-connection:\n";

    return has_header_of(latchkey_slice(names), line);
}

static enum lk_status add_lines(struct lk_buf *lines, struct lk_slice block,
                                struct lk_slice unless, struct lk_slice nor)
{
    struct lk_slice line;
    enum lk_status status = LK_OK;

    while (!status && next_line(&block, &line)) {
        if (!has_header_of(unless, line) && !has_header_of(nor, line) &&
            !is_framing(line)) {
            status = add_line(lines, line);
        }
    }
    return status;
}

/* What curl would add by itself, and nobody asked for. */
static enum lk_status add_absent(struct lk_exchange *exchange,
                                 const struct lk_http_request *request,
                                 struct lk_slice own)
{
    struct lk_buf *lines = &exchange->lines;
    enum lk_status status = latchkey_buf_add(lines, "Expect:", 8);

    if (!status && !has_header_of(own, LK_SLICE("content-type:")) &&
        !has_header_of(request->headers, LK_SLICE("content-type:"))) {
        status = latchkey_buf_add(lines, "Content-Type:", 14);
    }
    if (!status && request->gateway) {
        struct lk_slice agent = LK_SLICE("user-agent:");
        struct lk_slice accept = LK_SLICE("accept:");
        status = has_header_of(request->headers, agent)
                     ? LK_OK
                     : latchkey_buf_add(lines, "User-Agent:", 12);
        if (!status && !has_header_of(request->headers, accept)) {
            status = latchkey_buf_add(lines, "Accept:", 8);
        }
    }
    if (!status && !request->target->honours) {
        status = latchkey_buf_add(lines, "Connection: close", 18);
    }
    return status;
}

/* The nodes stand in one array: curl only reads them. */
static enum lk_status link_lines(struct lk_exchange *exchange)
{
    char *at = exchange->lines.data;
    char *end = at + exchange->lines.len;
    size_t count = 0;

    for (char *line = at; line < end; line += strlen(line) + 1) {
        count++;
    }
    if (count > exchange->list_cap) {
        struct curl_slist *list =
            realloc(exchange->list, count * sizeof(*list));
        if (!list) {
            return LK_NOMEM;
        }
        exchange->list = list;
        exchange->list_cap = count;
    }
    for (size_t i = 0; i < count; i++, at += strlen(at) + 1) {
        exchange->list[i].data = at;
        exchange->list[i].next = i + 1 < count ? &exchange->list[i + 1] : NULL;
    }
    return LK_OK;
}

enum lk_status lk_http_set_headers(struct lk_exchange *exchange,
                                   const struct lk_http_request *request)
{
    struct lk_slice own = latchkey_slice(request->target->headers);
    struct lk_slice none = {0};
    enum lk_status status;

    exchange->lines.len = 0;
    status = add_lines(&exchange->lines, own, request->extra, none);
    if (!status) {
        status =
            add_lines(&exchange->lines, request->headers, own, request->extra);
    }
    if (!status) {
        status = add_lines(&exchange->lines, request->extra, none, none);
    }
    if (!status) {
        status = add_absent(exchange, request, own);
    }
    if (!status) {
        status = link_lines(exchange);
    }
    if (!status &&
        curl_easy_setopt(exchange->easy, CURLOPT_HTTPHEADER, exchange->list)) {
        status = LK_NOMEM;
    }
    return status;
}

const char *lk_http_lines_fault(struct lk_slice lines)
{
    struct lk_slice line;

    while (next_line(&lines, &line)) {
        const char *colon = line.len ? memchr(line.data, ':', line.len) : NULL;
        if (!colon || colon == line.data) {
            return "must be lines of the form Name: value";
        }
        for (size_t i = 0; i < line.len; i++) {
            unsigned char c = (unsigned char)line.data[i];
            if ((c < ' ' && c != '\t') || c == 0x7f) {
                return "contain a control character";
            }
        }
    }
    return NULL;
}

const char *lk_http_method_fault(struct lk_slice method)
{
    if (!method.len || method.len > LK_METHOD_MAX) {
        return "must have 1 to 16 characters";
    }
    for (size_t i = 0; i < method.len; i++) {
        char c = method.data[i];
        if ((c < 'A' || c > 'Z') && c != '-' && c != '_') {
            return "must be made of capital letters";
        }
    }
    return NULL;
}
