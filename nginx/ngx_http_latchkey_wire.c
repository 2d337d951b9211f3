
/*
 * A command as bytes, and the daemon's words as they may be logged.
 */


#include "ngx_http_latchkey_module.h"


#define NGX_HTTP_LATCHKEY_WORD_COPY   1024


static ngx_chain_t *ngx_http_latchkey_fill_link(ngx_chain_t *cl, ngx_buf_t *b,
    u_char *pos, u_char *last);
static u_char *ngx_http_latchkey_announce(u_char *p, u_char sign, size_t n);


ngx_chain_t *
ngx_http_latchkey_command(ngx_pool_t *pool, const ngx_str_t *words,
    ngx_uint_t n)
{
    u_char        *p, *start;
    size_t         size;
    ngx_buf_t     *b;
    ngx_uint_t     i, longs;
    ngx_chain_t   *out, *cl;

    size = sizeof("*\r\n") - 1 + NGX_INT_T_LEN;
    longs = 0;

    for (i = 0; i < n; i++) {
        size += sizeof("$\r\n\r\n") - 1 + NGX_SIZE_T_LEN;

        if (words[i].len > NGX_HTTP_LATCHKEY_WORD_COPY) {
            longs++;

        } else {
            size += words[i].len;
        }
    }

    /* a long word splits what is around it */

    p = ngx_pnalloc(pool, size);
    b = ngx_pcalloc(pool, (2 * longs + 1) * sizeof(ngx_buf_t));
    cl = ngx_palloc(pool, (2 * longs + 1) * sizeof(ngx_chain_t));

    if (p == NULL || b == NULL || cl == NULL) {
        return NULL;
    }

    out = cl;
    start = p;

    p = ngx_http_latchkey_announce(p, '*', n);

    for (i = 0; i < n; i++) {
        p = ngx_http_latchkey_announce(p, '$', words[i].len);

        if (words[i].len <= NGX_HTTP_LATCHKEY_WORD_COPY) {
            p = ngx_cpymem(p, words[i].data, words[i].len);

        } else {
            cl = ngx_http_latchkey_fill_link(cl, b++, start, p);
            cl = ngx_http_latchkey_fill_link(cl, b++, words[i].data,
                                             words[i].data + words[i].len);
            start = p;
        }

        *p++ = CR; *p++ = LF;
    }

    (void) ngx_http_latchkey_fill_link(cl, b, start, p);
    cl->next = NULL;

    return out;
}


/* the links of a command stand side by side; returns the next */

static ngx_chain_t *
ngx_http_latchkey_fill_link(ngx_chain_t *cl, ngx_buf_t *b, u_char *pos,
    u_char *last)
{
    b->pos = pos;
    b->last = last;
    b->memory = 1;

    cl->buf = b;
    cl->next = cl + 1;

    return cl + 1;
}


/* a dozen times for each command, where ngx_sprintf() would be half of it */

static u_char *
ngx_http_latchkey_announce(u_char *p, u_char sign, size_t n)
{
    u_char  *start, digits[NGX_SIZE_T_LEN];

    *p++ = sign;
    start = digits + sizeof(digits);

    do {
        *--start = (u_char) ('0' + n % 10);
        n /= 10;
    } while (n);

    p = ngx_cpymem(p, start, digits + sizeof(digits) - start);

    *p++ = CR; *p++ = LF;

    return p;
}


ngx_str_t
ngx_http_latchkey_log_text(struct lk_slice text, u_char *buf, size_t size)
{
    size_t     i;
    ngx_str_t  shown;

    shown.data = buf;
    shown.len = ngx_min(text.len, size);

    for (i = 0; i < shown.len; i++) {
        buf[i] = (text.data[i] < 0x20 || text.data[i] > 0x7e)
                 ? '?' : text.data[i];
    }

    return shown;
}
