
/*
 * What an op says to the daemon, word by word, and what it is told.
 */


#include "ngx_http_latchkey_op.h"


void
ngx_http_latchkey_op_words(ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_op_t *op, const char *verb)
{
    w->n = 0;
    w->nnumbers = 0;

    ngx_http_latchkey_op_word(w, verb, ngx_strlen(verb));
    ngx_http_latchkey_op_word(w, op->tenant.data, op->tenant.len);
    ngx_http_latchkey_op_word(w, op->scope.data, op->scope.len);
    ngx_http_latchkey_op_word(w, op->key.data, op->key.len);
}


void
ngx_http_latchkey_op_word(ngx_http_latchkey_words_t *w, const void *data,
    size_t len)
{
    w->words[w->n].data = (u_char *) data;
    w->words[w->n].len = len;
    w->n++;
}


void
ngx_http_latchkey_op_number(ngx_http_latchkey_words_t *w, uint64_t number)
{
    u_char  *p;

    p = w->numbers[w->nnumbers++];
    ngx_http_latchkey_op_word(w, p, ngx_sprintf(p, "%uL", number) - p);
}


ngx_int_t
ngx_http_latchkey_op_send(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call, ngx_http_latchkey_words_t *w,
    ngx_http_latchkey_call_pt handler, ngx_uint_t patient)
{
    call->out = ngx_http_latchkey_command(op->pool, w->words, w->n);
    if (call->out == NULL) {
        return NGX_ERROR;
    }

    call->handler = handler;
    call->data = op;
    call->patient = patient;
    call->first = op->late;
    call->holds = (call == &op->call);

    return ngx_http_latchkey_op_send_again(op, call);
}


ngx_int_t
ngx_http_latchkey_op_send_again(ngx_http_latchkey_op_t *op,
    ngx_http_latchkey_call_t *call)
{
    call->deadline = ngx_current_msec + op->conf->timeout;

    return ngx_http_latchkey_link_call(op->conf->servers, call);
}


enum lk_status
ngx_http_latchkey_op_read(const struct lk_reply *reply,
    struct lk_decision *answer)
{
    return reply ? latchkey_decision_read(reply, answer) : LK_TIMEOUT;
}
