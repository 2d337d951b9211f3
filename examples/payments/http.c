/* http.c - reads HTTP/1.1 requests and writes responses. */
#include "payments.h"

#include <ctype.h>
#include <string.h>

enum { HEAD_MAX = 32 * 1024, BODY_MAX = 64 * 1024 * 1024 };

/* What the head of a request says about its body. */
struct framing {
    uint64_t length;
    bool chunked;
    bool expect;
};

/* The text up to `end`, which is skipped too; false if `end` is not there. */
static bool cut(struct text *rest, const char *end, struct text *part)
{
    const char *at = memmem(rest->data, rest->len, end, strlen(end));

    if (!at) {
        return false;
    }
    part->data = rest->data;
    part->len = (size_t)(at - rest->data);
    rest->data = at + strlen(end);
    rest->len -= part->len + strlen(end);
    return true;
}

static struct text trim(struct text text)
{
    while (text.len > 0 && isspace((unsigned char)text.data[0])) {
        text.data++;
        text.len--;
    }
    while (text.len > 0 && isspace((unsigned char)text.data[text.len - 1])) {
        text.len--;
    }
    return text;
}

static bool read_request_line(struct text line, struct request *request)
{
    struct text target;

    if (!cut(&line, " ", &request->method) || !cut(&line, " ", &target) ||
        (!text_is(line, "HTTP/1.1") && !text_is(line, "HTTP/1.0"))) {
        return false;
    }
    request->keep_alive = text_is(line, "HTTP/1.1");
    if (!cut(&target, "?", &request->path)) {
        request->path = target;
        target.len = 0;
    }
    request->query = target;
    return request->path.len > 0 && request->path.data[0] == '/';
}

static bool read_header(struct text line, struct request *request,
                        struct framing *framing)
{
    struct text name, value;

    if (!cut(&line, ":", &name)) {
        return false;
    }
    value = trim(line);
    if (text_is_nocase(name, "Content-Length")) {
        return text_number(value, &framing->length) &&
               framing->length <= BODY_MAX;
    }
    if (text_is_nocase(name, "Transfer-Encoding")) {
        framing->chunked = text_is_nocase(value, "chunked");
        return framing->chunked;
    }
    if (text_is_nocase(name, "Connection")) {
        request->keep_alive =
            !text_is_nocase(value, "close") &&
            (request->keep_alive || text_is_nocase(value, "keep-alive"));
    } else if (text_is_nocase(name, "Expect")) {
        framing->expect = text_is_nocase(value, "100-continue");
    } else if (text_is_nocase(name, "Idempotency-Key")) {
        request->key = value;
    } else if (text_is_nocase(name, "Authorization")) {
        request->authorization = value;
    }
    return true;
}

static bool read_head(struct text head, struct request *request,
                      struct framing *framing)
{
    struct text line;

    if (!cut(&head, "\r\n", &line) || !read_request_line(line, request)) {
        return false;
    }
    while (cut(&head, "\r\n", &line)) {
        if (!read_header(line, request, framing)) {
            return false;
        }
    }
    return true;
}

static bool read_chunk_size(struct text line, size_t *size)
{
    size_t value = 0, i;

    for (i = 0; i < line.len && isxdigit((unsigned char)line.data[i]); i++) {
        int digit = tolower((unsigned char)line.data[i]);
        value = value * 16 + (size_t)(digit - (digit > '9' ? 'a' - 10 : '0'));
        if (value > BODY_MAX) {
            return false;
        }
    }
    *size = value;
    return i > 0;
}

/*
 * Walks over the chunks from `start`. The first walk only measures; once all
 * of them are there, the second moves them together behind the head.
 */
static enum progress walk_chunks(struct buf *in, size_t start, bool move,
                                 struct request *request)
{
    struct text rest = {in->data + start, in->len - start}, line;
    size_t size, total = 0;

    request->body = (struct text){in->data + start, 0};
    for (;;) {
        if (!cut(&rest, "\r\n", &line)) {
            return rest.len > HEAD_MAX ? BAD : PARTIAL;
        }
        if (!read_chunk_size(line, &size) || total + size > BODY_MAX) {
            return BAD;
        }
        if (size == 0) {
            break;
        }
        if (rest.len < size + 2) {
            return PARTIAL;
        }
        if (move) {
            memmove(in->data + start + total, rest.data, size);
        }
        total += size;
        rest = (struct text){rest.data + size + 2, rest.len - size - 2};
    }
    do {
        if (!cut(&rest, "\r\n", &line)) {
            return rest.len > HEAD_MAX ? BAD : PARTIAL;
        }
    } while (line.len > 0); /* trailers */
    request->body.len = total;
    request->size = (size_t)(rest.data - in->data);
    return READY;
}

enum progress http_read(struct buf *in, struct request *request)
{
    struct text rest = {in->data, in->len}, head;
    struct framing framing = {0};
    size_t start;

    *request = (struct request){0};
    if (in->len == 0 || !cut(&rest, "\r\n\r\n", &head)) {
        return in->len > HEAD_MAX ? BAD : PARTIAL;
    }
    head.len += 2; /* each line of it ends in CR LF */
    if (!read_head(head, request, &framing)) {
        return BAD;
    }
    start = head.len + 2;
    request->wants_continue = framing.expect && rest.len == 0;
    if (framing.chunked) {
        enum progress progress = walk_chunks(in, start, false, request);
        return progress == READY ? walk_chunks(in, start, true, request)
                                 : progress;
    }
    request->body = (struct text){in->data + start, framing.length};
    request->size = start + framing.length;
    return rest.len < framing.length ? PARTIAL : READY;
}

bool http_query(struct text query, const char *name, struct text *value)
{
    struct text part;

    while (query.len > 0) {
        if (!cut(&query, "&", &part)) {
            part = query;
            query.len = 0;
        }
        *value = part;
        if (cut(value, "=", &part) && text_is(part, name)) {
            return true;
        }
    }
    return false;
}

bool http_query_number(struct text query, const char *name, uint64_t *number)
{
    struct text value;

    return http_query(query, name, &value) && text_number(value, number);
}

static const char *reason_of(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 201:
        return "Created";
    case 302:
        return "Found";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 409:
        return "Conflict";
    case 422:
        return "Unprocessable Content";
    case 429:
        return "Too Many Requests";
    case 503:
        return "Service Unavailable";
    default:
        return "Status";
    }
}

void http_write(struct buf *out, const struct response *response,
                bool keep_alive)
{
    if (!response->bare) {
        buf_printf(out,
                   "HTTP/1.1 %d %s\r\n"
                   "Content-Type: %s\r\n"
                   "Content-Length: %zu\r\n"
                   "Connection: %s\r\n"
                   "%s\r\n",
                   response->status, reason_of(response->status),
                   response->type ? response->type : "application/json",
                   response->body.len, keep_alive ? "keep-alive" : "close",
                   response->headers);
    }
    buf_add(out, response->body.data, response->body.len);
}
