
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


/*
 * The sentence behind a code may repeat what was sent, keys and passwords
 * included, and whoever sends it need not be a latchkeyd: it is not logged.
 */

const char *
ngx_http_latchkey_error_text(struct lk_slice text)
{
    size_t      len;
    ngx_uint_t  i;

    static struct {
        const char  *code;
        const char  *meaning;
    } errors[] = {
        { "UNAVAILABLE", "UNAVAILABLE (its store: see the log of latchkeyd)" },
        { "NOAUTH", "NOAUTH (it wants a password)" },
        { "WRONGPASS", "WRONGPASS (user or password is wrong)" },
        { "NOPERM", "NOPERM (its user does not have the role \"use\")" },
        { "ERR TOO LARGE", "ERR TOO LARGE (more than its "
                           "courier.request_bytes)" },
        { "ERR ACCEPT: courier.gateway", "ERR (its courier.gateway is not "
                                         "set)" },
        { "ERR a Redis store", "ERR (a Redis store keeps no requests for "
                               "later; the embedded one and PostgreSQL do)" },
        { "ERR AWAIT", "ERR (its limits.waiters)" },
        { "ERR max number of clients", "ERR (it has as many clients as its "
                                       "limits allow)" },
        { "ERR", "ERR (a time or a size is beyond its limits, or it is of "
                 "another version)" },
        { "", "an error that latchkeyd does not know" }
    };

    for (i = 0; /* void */ ; i++) {
        len = ngx_strlen(errors[i].code);

        if (text.len >= len
            && ngx_strncmp(text.data, errors[i].code, len) == 0)
        {
            return errors[i].meaning;
        }
    }
}
