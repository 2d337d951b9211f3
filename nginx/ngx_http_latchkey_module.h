
/*
 * The parts of the gateway and their interfaces.  A guarded POST passes them in
 * this order:
 *
 *   request            phase handler: claim, verdict, waiting
 *   identity           tenant, scope, key, fingerprint and age of a request
 *   headers            headers to the app, into the store, and on a replay
 *   op, op_settle      one operation; it outlives its request
 *   link, link_io,     the connection to the daemon: calls, bytes, how it is
 *   link_connect       made and lost
 *   upstream           what the app did, and what that means
 *   response           filters: the response is held until it is stored
 *   special_response   problem documents and replays
 *
 * and beside them:
 *
 *   await              the second connection, for waiting
 *   async, courier     requests accepted for later, and how they come back
 *   lookup             idempotency_status and idempotency_operation
 *   counters,          by location, in shared memory, and how they are shown
 *   counters_show
 *   variables          $idempotency_*
 *   module, servers,   configuration: table and inheritance, daemons and
 *   directives         secrets, readers of directives
 *   check,             configuration: what is wrong with it
 *   check_tenant
 *
 * Types and interfaces of the configuration are in ngx_http_latchkey_conf.h, of
 * the link in ngx_http_latchkey_link.h, of the op in ngx_http_latchkey_op.h.
 */


#ifndef _NGX_HTTP_LATCHKEY_MODULE_H_INCLUDED_
#define _NGX_HTTP_LATCHKEY_MODULE_H_INCLUDED_


#include "ngx_http_latchkey_conf.h"
#include "ngx_http_latchkey_link.h"
#include "ngx_http_latchkey_op.h"


/* Retry-After, in ms */
#define NGX_HTTP_LATCHKEY_SOON        1000   /* a daemon or an app is away */
#define NGX_HTTP_LATCHKEY_ASK_AGAIN   30000  /* an outcome is not known */

/* as ngx_http_image_filter_module has it: a bit that nginx's core leaves */
#define NGX_HTTP_LATCHKEY_BUFFERED    0x08


/* what $idempotency_verdict and the counters say, in this order */

#define NGX_HTTP_LATCHKEY_VERDICTS(X)                                        \
    X(NONE, "")                                                              \
    X(NEW, "new")                                                            \
    X(REPLAY, "replay")                                                      \
    X(OMITTED, "omitted")                                                    \
    X(INFLIGHT, "inflight")                                                  \
    X(ACCEPTED, "accepted")                                                  \
    X(UNCERTAIN, "uncertain")                                                \
    X(MISMATCH, "mismatch")                                                  \
    X(LIMITED, "limited")                                                    \
    X(TOO_OLD, "too_old")                                                    \
    X(TOO_LARGE, "too_large")                                                \
    X(KEY_MISSING, "key_missing")                                            \
    X(KEY_INVALID, "key_invalid")                                            \
    X(TENANT_MISSING, "tenant_missing")                                      \
    X(REQUEST_INVALID, "request_invalid")                                    \
    X(UNAVAILABLE, "unavailable")                                            \
    X(PASSED, "passed")

typedef enum {
#define X(name, word)  NGX_HTTP_LATCHKEY_SAID_##name,
    NGX_HTTP_LATCHKEY_VERDICTS(X)
#undef X
    NGX_HTTP_LATCHKEY_SAID_LAST
} ngx_http_latchkey_said_e;


/* $idempotency_outcome */

#define NGX_HTTP_LATCHKEY_OUTCOMES(X)                                        \
    X(NONE, "")                                                              \
    X(KEPT, "kept")                                                          \
    X(OMITTED, "omitted")                                                    \
    X(RELEASED, "released")                                                  \
    X(DOUBTED, "doubted")                                                    \
    X(STALE, "stale")                                                        \
    X(LATE, "late")

typedef enum {
#define X(name, word)  NGX_HTTP_LATCHKEY_DID_##name,
    NGX_HTTP_LATCHKEY_OUTCOMES(X)
#undef X
    NGX_HTTP_LATCHKEY_DID_LAST
} ngx_http_latchkey_did_e;


/* what the apps of a request said of it so far, see class */

typedef enum {
    NGX_HTTP_LATCHKEY_APP_UNREACHED = 0,
    NGX_HTTP_LATCHKEY_APP_NOTHING,
    NGX_HTTP_LATCHKEY_APP_REFUSED,
    NGX_HTTP_LATCHKEY_APP_DID,
    NGX_HTTP_LATCHKEY_APP_UNKNOWN
} ngx_http_latchkey_app_e;


/* one request */

typedef enum {
    NGX_HTTP_LATCHKEY_PASS = 0,     /* not ours, or done with */
    NGX_HTTP_LATCHKEY_BODY,         /* reading the request body */
    NGX_HTTP_LATCHKEY_CLAIM,        /* waiting for the verdict */
    NGX_HTTP_LATCHKEY_WAIT,         /* waiting for somebody else's result */
    NGX_HTTP_LATCHKEY_RUN,          /* the app works */
    NGX_HTTP_LATCHKEY_HOLD,         /* the answer comes in and is held */
    NGX_HTTP_LATCHKEY_SETTLE,       /* being stored */
    NGX_HTTP_LATCHKEY_SEND,         /* stored: let it go */
    NGX_HTTP_LATCHKEY_REPLACE,      /* another answer goes out instead */
    NGX_HTTP_LATCHKEY_DROP          /* it did: the app's is thrown away */
} ngx_http_latchkey_state_e;


struct ngx_http_latchkey_ctx_s {
    ngx_http_request_t              *request;
    ngx_http_latchkey_loc_conf_t    *conf;
    ngx_http_latchkey_op_t          *op;
    ngx_http_latchkey_state_e        state;

    ngx_http_latchkey_said_e         verdict;
    ngx_http_latchkey_did_e          outcome;
    ngx_str_t                        tenant;
    ngx_str_t                        scope;       /* the courier's */
    ngx_str_t                        key;         /* canonical */
    ngx_str_t                        reference;
    uint64_t                         token;       /* the courier's */
    uint64_t                         attempt;
    uint64_t                         expires_ms;  /* 0: not stored before */
    ngx_uint_t                       http_version; /* the client's */
    ngx_msec_t                       waited;      /* sum, in ms */
    ngx_msec_t                       wait_start;
    ngx_msec_t                       wait_until;  /* idempotency_wait */

    ngx_http_latchkey_await_t        await;
    ngx_event_t                      timer;       /* of waiting */

    ngx_http_latchkey_app_e          app;
    ngx_uint_t                       app_status;  /* what it said that with */

    /* ngx_http_latchkey_asking() before the claim, before a redirect */
    ngx_uint_t                       before;
    ngx_uint_t                       led;
    ngx_uint_t                       heard;       /* of r->upstream_states */
    char                            *reason;      /* of omission or doubt */

    /* what ours of upstream stand in for; set if they do */
    ngx_http_handler_pt              content_handler;
    ngx_int_t                      (*reinit_request)(ngx_http_request_t *r);
    ngx_int_t                      (*process_header)(ngx_http_request_t *r);
    ngx_int_t                      (*input_filter_init)(void *data);
    ngx_int_t                      (*input_filter)(void *data, ssize_t bytes);
    ngx_event_pipe_input_filter_pt   pipe_filter;

    /* buffers of the answer that are not taken: they stay with their owner */
    ngx_chain_t                     *rest;
    ngx_chain_t                     *other;       /* REPLACE: its body */

    unsigned                         observe:1;
    unsigned                         courier:1;   /* it asks */
    unsigned                         later:1;     /* to be given away */
    unsigned                         preferred:1; /* since the client said so */
    unsigned                         too_large:1; /* for that */
    unsigned                         too_old:1;
    unsigned                         worded:1;    /* app: by its header */
    unsigned                         own_page:1;  /* nginx's, of an error */
    unsigned                         handled:1;   /* led to a handler */
    unsigned                         from_app:1;  /* not a page of nginx */
    unsigned                         complete:1;  /* last_buf was seen */
    unsigned                         truncated:1; /* it will never come */
    unsigned                         unreadable:1; /* the rest of a body */
    ngx_str_t                        too_old_detail;
};


extern ngx_module_t  ngx_http_latchkey_module;

extern ngx_str_t  ngx_http_latchkey_said[];       /* words by verdict */
extern ngx_str_t  ngx_http_latchkey_did[];        /* words by outcome */


ngx_int_t ngx_http_latchkey_add_handler(ngx_conf_t *cf, ngx_uint_t phase,
    ngx_http_handler_pt handler);

/* directives */
extern ngx_command_t  ngx_http_latchkey_commands[];

/*
 * check: a merged location that is guarded or answers for the status of
 * operations.  What is wrong with it is logged.
 */
char *ngx_http_latchkey_check(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf, ngx_http_latchkey_loc_conf_t *llcf);
/* each address on which the server listens; NULL: any server */
typedef void (*ngx_http_latchkey_listen_pt)(struct sockaddr *sa,
    socklen_t socklen, void *data);
void ngx_http_latchkey_each_listen(ngx_conf_t *cf,
    ngx_http_core_srv_conf_t *cscf, ngx_http_latchkey_listen_pt handler,
    void *data);
/* a client that leaves does not stop what was claimed for it */
char *ngx_http_latchkey_check_receivers(ngx_conf_t *cf,
    ngx_http_latchkey_main_conf_t *lmcf);
/* is the answer of this request made by fastcgi_pass? */
ngx_uint_t ngx_http_latchkey_is_fastcgi(ngx_http_request_t *r);

/* request */
ngx_int_t ngx_http_latchkey_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_latchkey_rewrite_handler(ngx_http_request_t *r);

/* verdict */

/* the verdict is that it runs here, now: NGX_DECLINED, or what to answer */
ngx_int_t ngx_http_latchkey_run(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* ctx */

/* finds it again after an internal redirect; NULL: none */
ngx_http_latchkey_ctx_t *ngx_http_latchkey_get_ctx(ngx_http_request_t *r);
/* from an event that the request waited for, since ctx->wait_start */
ngx_http_request_t *ngx_http_latchkey_enter(ngx_http_latchkey_ctx_t *ctx);
/* what the request does from here on is not part of its operation */
void ngx_http_latchkey_let_go(ngx_http_latchkey_ctx_t *ctx);
/* after the answer, or in its place: not part of the operation */
void ngx_http_latchkey_post_action(ngx_http_latchkey_ctx_t *ctx);

/* name */

/* NGX_OK, NGX_DECLINED: there is none, NGX_ERROR: more than one */
ngx_int_t ngx_http_latchkey_get_key(ngx_http_request_t *r, ngx_str_t *value);
/* the canonical key; NGX_DECLINED: *fault says what is wrong with it */
ngx_int_t ngx_http_latchkey_read_key(ngx_pool_t *pool, ngx_str_t *value,
    ngx_str_t *key, const char **fault);
/* NULL: fine, it is in ctx->key.  Else what is wrong, also for the route. */
const char *ngx_http_latchkey_parse_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value);
/*
 * The tenant of this request as it is stored, for `idempotency_status` too.
 * NGX_DECLINED: empty, too long, or not fit for a header.
 */
ngx_int_t ngx_http_latchkey_get_tenant(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *tenant);
ngx_int_t ngx_http_latchkey_get_scope(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *scope);

/* has it the form of one? */
ngx_uint_t ngx_http_latchkey_is_reference(ngx_str_t *text);

/* fingerprint: the text that goes to the daemon; the body has been read */
ngx_int_t ngx_http_latchkey_fingerprint_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, u_char *text);

/* the body, whole, into `pool`; how long it is can be asked before */
ngx_int_t ngx_http_latchkey_copy_body(ngx_http_request_t *r, ngx_pool_t *pool,
    ngx_str_t *body);
off_t ngx_http_latchkey_body_size(ngx_http_request_t *r);

/* async */

/* notes in ctx whether this request is to be accepted for later */
void ngx_http_latchkey_async_wish(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* fills in op->order */
ngx_int_t ngx_http_latchkey_async_order(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* 202, as set_verdict */
ngx_chain_t *ngx_http_latchkey_set_accepted(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* a JSON text as the answer to somebody who shall ask again; frees it */
ngx_chain_t *ngx_http_latchkey_set_progress(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_buf *json);

/* courier */

/* did it come in where only the courier may? */
ngx_uint_t ngx_http_latchkey_is_courier(ngx_http_request_t *r);
/* does this server listen there?  *only: and nowhere else */
ngx_uint_t ngx_http_latchkey_courier_serves(ngx_conf_t *cf,
    ngx_http_core_srv_conf_t *cscf, ngx_uint_t *only);
/* called from postconfiguration */
ngx_int_t ngx_http_latchkey_courier_init(ngx_conf_t *cf);
/* NGX_OK: its operation is in ctx.  Else what the phase handler returns. */
ngx_int_t ngx_http_latchkey_courier_identify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* NULL: out of memory */
ngx_http_latchkey_op_t *ngx_http_latchkey_courier_op(
    ngx_http_latchkey_ctx_t *ctx);
/* as decide, when the token was looked at */
ngx_int_t ngx_http_latchkey_courier_decide(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
/* what it is told when the app's answer is stored, or cannot be; NULL: that
 * is not for it to know */
ngx_chain_t *ngx_http_latchkey_courier_outcome(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
/* any answer passes here; one that no guard has seen says so to the courier */
ngx_int_t ngx_http_latchkey_courier_unseen(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* headers */
ngx_int_t ngx_http_latchkey_strip_handler(ngx_http_request_t *r);
/* where a location is guarded: what may pass for the key, too */
ngx_int_t ngx_http_latchkey_strip_headers(ngx_http_request_t *r);
/* may an app take the name for `known`, which is in lower case? */
ngx_uint_t ngx_http_latchkey_passes_for(ngx_str_t *name, const char *known);
ngx_uint_t ngx_http_latchkey_count_headers(ngx_http_request_t *r,
    const char *known);
ngx_int_t ngx_http_latchkey_pass_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* response; called from postconfiguration */
ngx_int_t ngx_http_latchkey_filter_init(ngx_conf_t *cf);
/* writes "Name: value" and the end of the line */
u_char *ngx_http_latchkey_line(u_char *p, ngx_str_t *name, ngx_str_t *value);
ngx_uint_t ngx_http_latchkey_header_sound(ngx_str_t *name, ngx_str_t *value);

/* class */

/* fills in op->settle, op->status and op->reason */
void ngx_http_latchkey_classify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* there is no answer of the app's that could be shown */
void ngx_http_latchkey_doubt(ngx_http_latchkey_ctx_t *ctx,
    const char *reason);
/* nobody may run it again: an app has it, and did not answer */
ngx_uint_t ngx_http_latchkey_in_doubt(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
ngx_uint_t ngx_http_latchkey_asking(ngx_http_request_t *r);
/* may the app have seen this request, as far as it has come? */
ngx_uint_t ngx_http_latchkey_contacted(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_state_e state);
/* was the connection handed over, with 101? */
ngx_uint_t ngx_http_latchkey_is_handed_over(ngx_http_request_t *r);
/* what the app says to us is not for clients */
void ngx_http_latchkey_strip_word(ngx_http_request_t *r);
/*
 * Is what is held nothing to send: cut off, or an error page of nginx's own
 * that says less than is known?  Then set_instead is sent.
 */
ngx_uint_t ngx_http_latchkey_has_no_answer(ngx_http_latchkey_ctx_t *ctx);
ngx_chain_t *ngx_http_latchkey_set_instead(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* outcome-unknown; set_lost: as 502 or 504 */
ngx_chain_t *ngx_http_latchkey_set_lost(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
ngx_chain_t *ngx_http_latchkey_unknown(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t status, const char *detail);

/* upstream: called before the content handler of what is claimed runs */
void ngx_http_latchkey_wrap_content(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* answer */

/* forgets whatever answer was there before */
void ngx_http_latchkey_start(ngx_http_request_t *r, ngx_uint_t status);
/* the length, and the one buffer of the body; NULL: out of memory */
ngx_chain_t *ngx_http_latchkey_set_body(ngx_http_request_t *r, u_char *data,
    size_t len);
ngx_table_elt_t *ngx_http_latchkey_add_header(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
ngx_int_t ngx_http_latchkey_add_expires(ngx_http_request_t *r, uint64_t ms);
ngx_int_t ngx_http_latchkey_add_retry_after(ngx_http_request_t *r,
    ngx_msec_t ms);
ngx_int_t ngx_http_latchkey_add_no_store(ngx_http_request_t *r);
/*
 * Sends what was set through all filters and returns what
 * ngx_http_finalize_request wants.
 */
ngx_int_t ngx_http_latchkey_send(ngx_http_request_t *r, ngx_chain_t *out);
/* what was sent is all: there is nothing for post_action to follow */
void ngx_http_latchkey_finish(ngx_http_request_t *r, ngx_int_t rc);
/* sends `text` as the whole answer, not to be cached, and frees it */
ngx_int_t ngx_http_latchkey_send_text(ngx_http_request_t *r,
    const char *content_type, struct lk_buf *text);

/*
 * problem, replay: these fill r->headers_out and return the body, NULL: out of
 * memory.  `set_verdict` says what a claim without NEW says; answer NULL: no
 * daemon.
 */
ngx_chain_t *ngx_http_latchkey_set_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after);
ngx_chain_t *ngx_http_latchkey_set_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
/* a stored block of lines, as headers of the response */
ngx_int_t ngx_http_latchkey_replay_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_slice block);
/* on the answer that is held: stored headers in place of those of the list */
ngx_int_t ngx_http_latchkey_take_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *answer);
/* set_problem and send; retry_after in ms, 0: none */
ngx_int_t ngx_http_latchkey_send_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after);

/* variables: called from preconfiguration */
ngx_int_t ngx_http_latchkey_add_variables(ngx_conf_t *cf);

/*
 * counters: called from postconfiguration; gives each location its number, and
 * makes the zones and the log handler.
 */
ngx_int_t ngx_http_latchkey_counters_init(ngx_conf_t *cf);
ngx_int_t ngx_http_latchkey_counters_handler(ngx_http_request_t *r);

/* query */

/*
 * The command in `words`, but for the tenant, which is words[1]; 4 at most.
 * NGX_DECLINED: it cannot be asked, and kind and fault say why.
 */
typedef ngx_int_t (*ngx_http_latchkey_words_pt)(ngx_http_request_t *r,
    ngx_str_t *words, ngx_uint_t *n, enum lk_problem_kind *kind,
    const char **fault);
/*
 * Tells of a record and returns what ngx_http_finalize_request wants.
 * NGX_DECLINED: nothing was sent, since this is no record.
 */
typedef ngx_int_t (*ngx_http_latchkey_told_pt)(ngx_http_request_t *r,
    const struct lk_reply *record);

/* a value of a record; NULL: there is none of that name */
const struct lk_reply *ngx_http_latchkey_query_find(
    const struct lk_reply *record, const char *name);

/* rate: its zone; called by counters_init */
ngx_int_t ngx_http_latchkey_rate_init(ngx_conf_t *cf);

/* status, operation */
ngx_int_t ngx_http_latchkey_status_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_latchkey_operation_handler(ngx_http_request_t *r);

/*
 * age: NGX_OK: fresh, or nothing to check.  NGX_DECLINED: too old, too far in
 * the future, or without a readable time; detail says which.
 */
ngx_int_t ngx_http_latchkey_check_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, ngx_str_t *detail);


/* response_hold */


/* response_settle */


/* response_headers */

/* those that a replay may carry, as lines, into the op's pool */
ngx_int_t ngx_http_latchkey_store_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* our headers; what the app sent under their names is ours to say */
ngx_int_t ngx_http_latchkey_mark(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);

/* response_send */


static ngx_inline struct lk_slice
ngx_http_latchkey_slice(ngx_str_t *str)
{
    return (struct lk_slice) { (char *) str->data, str->len };
}


#endif /* _NGX_HTTP_LATCHKEY_MODULE_H_INCLUDED_ */
