/*
 * buf.c - the one slice and the one growable buffer, and names of statuses.
 *
 * A slice borrows its bytes and frees nothing. A buffer owns them; all zeros is
 * a valid empty buffer, so none needs an init function. Neither ends in a NUL
 * unless the caller adds one.
 */
#include "latchkey.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the first allocation. */
enum { SMALLEST = 64 };

const char *latchkey_status_name(enum lk_status status)
{
    switch (status) {
#define X(name, text)                                                          \
    case LK_##name:                                                            \
        return #name;
        LK_STATUS_MAP(X)
#undef X
    }
    return "?";
}

const char *latchkey_status_text(enum lk_status status)
{
    switch (status) {
#define X(name, text)                                                          \
    case LK_##name:                                                            \
        return text;
        LK_STATUS_MAP(X)
#undef X
    }
    return "?";
}

/* NULL is an empty slice. */
struct lk_slice latchkey_slice(const char *text)
{
    return (struct lk_slice){text, text ? strlen(text) : 0};
}

bool latchkey_slice_equal(struct lk_slice a, struct lk_slice b)
{
    return a.len == b.len && (a.len == 0 || !memcmp(a.data, b.data, a.len));
}

/*
 * Room for `more` bytes behind len; len and the content stay. The size at least
 * doubles, so that appending is cheap on average. LK_NOMEM: nothing changed.
 * Pointers into the data are invalid after a success.
 */
enum lk_status latchkey_buf_reserve(struct lk_buf *buf, size_t more)
{
    if (more <= buf->cap - buf->len) {
        return LK_OK;
    }
    if (more > SIZE_MAX / 2 - buf->len) {
        return LK_NOMEM;
    }
    size_t cap = buf->cap ? buf->cap : SMALLEST;
    while (cap - buf->len < more) {
        cap *= 2;
    }
    char *data = realloc(buf->data, cap);
    if (!data) {
        return LK_NOMEM;
    }
    buf->data = data;
    buf->cap = cap;
    return LK_OK;
}

/* `data` must not point into the buffer itself: it may move. LK_NOMEM: nothing
 * was added. */
enum lk_status latchkey_buf_add(struct lk_buf *buf, const void *data,
                                size_t len)
{
    if (len == 0) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_reserve(buf, len);
    if (status) {
        return status;
    }
    memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    return LK_OK;
}

enum lk_status latchkey_buf_add_slice(struct lk_buf *buf, struct lk_slice slice)
{
    return latchkey_buf_add(buf, slice.data, slice.len);
}

enum lk_status latchkey_buf_add_text(struct lk_buf *buf, const char *text)
{
    return latchkey_buf_add(buf, text, strlen(text));
}

/* Formats twice: once to measure, once into the reserved room. LK_INVALID: the
 * format itself fails. */
enum lk_status latchkey_buf_printf(struct lk_buf *buf, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (len < 0) {
        return LK_INVALID;
    }
    /* vsnprintf writes a NUL too; it is not counted in len. */
    enum lk_status status = latchkey_buf_reserve(buf, (size_t)len + 1);
    if (status) {
        return status;
    }
    va_start(args, format);
    vsnprintf(buf->data + buf->len, (size_t)len + 1, format, args);
    va_end(args);
    buf->len += (size_t)len;
    return LK_OK;
}

struct lk_slice latchkey_buf_slice(const struct lk_buf *buf)
{
    return (struct lk_slice){buf->data, buf->len};
}

/* The buffer is then empty and may be used again. */
void latchkey_buf_free(struct lk_buf *buf)
{
    free(buf->data);
    *buf = (struct lk_buf){0};
}
