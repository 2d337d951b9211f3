
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
#define NGX_HTTP_LATCHKEY_SOON        1000   /* no daemon, or no app */
#define NGX_HTTP_LATCHKEY_ASK_AGAIN   30000  /* the outcome is unknown */

/* a bit of r->buffered that nginx's core does not use, as in image_filter */
#define NGX_HTTP_LATCHKEY_BUFFERED    0x08


/* words of $idempotency_verdict and of the counters: a contract */

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
#define X(name, word)  NGX_HTTP_LATCHKEY_VERDICT_##name,
    NGX_HTTP_LATCHKEY_VERDICTS(X)
#undef X
    NGX_HTTP_LATCHKEY_VERDICT_LAST
} ngx_http_latchkey_verdict_e;


/* words of $idempotency_outcome */

#define NGX_HTTP_LATCHKEY_OUTCOMES(X)                                        \
    X(NONE, "")                                                              \
    X(STORED, "kept")                                                        \
    X(OMITTED, "omitted")                                                    \
    X(RELEASED, "released")                                                  \
    X(DOUBTED, "doubted")                                                    \
    X(STALE, "stale")                                                        \
    X(LATE, "late")

typedef enum {
#define X(name, word)  NGX_HTTP_LATCHKEY_OUTCOME_##name,
    NGX_HTTP_LATCHKEY_OUTCOMES(X)
#undef X
    NGX_HTTP_LATCHKEY_OUTCOME_LAST
} ngx_http_latchkey_outcome_e;


/* what the apps of a request did so far; see ngx_http_latchkey_upstream.c */

typedef enum {
    NGX_HTTP_LATCHKEY_APP_UNREACHED = 0,
    NGX_HTTP_LATCHKEY_APP_NOTHING,
    NGX_HTTP_LATCHKEY_APP_REFUSED,
    NGX_HTTP_LATCHKEY_APP_DID,
    NGX_HTTP_LATCHKEY_APP_UNKNOWN
} ngx_http_latchkey_app_e;


/* one request; its life is in ngx_http_latchkey_request.c */

typedef enum {
    NGX_HTTP_LATCHKEY_PASS = 0,     /* not guarded, or done */
    NGX_HTTP_LATCHKEY_BODY,         /* reading the request body */
    NGX_HTTP_LATCHKEY_CLAIM,        /* waiting for the verdict */
    NGX_HTTP_LATCHKEY_WAIT,         /* waiting for another request's result */
    NGX_HTTP_LATCHKEY_RUN,          /* the app works */
    NGX_HTTP_LATCHKEY_HOLD,         /* the response comes in and is held */
    NGX_HTTP_LATCHKEY_SETTLE,       /* being stored */
    NGX_HTTP_LATCHKEY_SEND,         /* settled: the response leaves */
    NGX_HTTP_LATCHKEY_REPLACE,      /* another response leaves instead */
    NGX_HTTP_LATCHKEY_DROP          /* it left: the app's is discarded */
} ngx_http_latchkey_state_e;


struct ngx_http_latchkey_ctx_s {
    ngx_http_request_t              *request;     /* the main request */
    ngx_http_latchkey_loc_conf_t    *conf;        /* that claimed; stays */

    /* set from the claim on; op->ctx points back, or both are NULL */
    ngx_http_latchkey_op_t          *op;
    ngx_http_latchkey_state_e        state;

    /* for variables and counters; NONE until it is known */
    ngx_http_latchkey_verdict_e      verdict;
    ngx_http_latchkey_outcome_e      outcome;

    ngx_str_t                        tenant;
    ngx_str_t                        scope;       /* from the courier only */
    ngx_str_t                        key;         /* canonical */
    ngx_str_t                        reference;   /* in the request's pool */
    uint64_t                         token;       /* from the courier only */
    uint64_t                         attempt;
    uint64_t                         expires_ms;  /* 0: not stored before */
    ngx_uint_t                       http_version; /* the client's */

    ngx_msec_t                       waited;      /* for the daemon, ms */
    ngx_msec_t                       wait_start;
    ngx_msec_t                       wait_until;  /* 0: does not wait */
    ngx_http_latchkey_await_t        await;       /* only in WAIT */
    ngx_event_t                      timer;       /* WAIT, or observe */

    ngx_http_latchkey_app_e          app;
    ngx_uint_t                       app_status;  /* that `app` is from */

    /* upstreams_asked() when it was claimed, and at the last redirect */
    ngx_uint_t                       asked_before;
    ngx_uint_t                       asked_until;
    ngx_uint_t                       states_read; /* r->upstream_states */
    char                            *reason;      /* of omission or doubt */

    /* nginx's functions that ours call; NULL: not replaced */
    ngx_http_handler_pt              content_handler;
    ngx_int_t                      (*reinit_request)(ngx_http_request_t *r);
    ngx_int_t                      (*process_header)(ngx_http_request_t *r);
    ngx_int_t                      (*input_filter_init)(void *data);
    ngx_int_t                      (*input_filter)(void *data, ssize_t bytes);
    ngx_event_pipe_input_filter_pt   pipe_filter;

    /* buffers of the response that stay unconsumed with their owner */
    ngx_chain_t                     *rest;
    ngx_chain_t                     *replacement; /* REPLACE: its body */

    unsigned                         observe:1;
    unsigned                         courier:1;   /* the client is it */
    unsigned                         later:1;     /* to be accepted */
    unsigned                         preferred:1; /* `later`: by the client */
    unsigned                         too_large:1; /* to be accepted */
    unsigned                         too_old:1;
    unsigned                         by_header:1; /* `app`: not by status */
    unsigned                         own_page:1;  /* nginx's error page */
    unsigned                         handled:1;   /* redirected to a handler */
    unsigned                         from_app:1;  /* not a page of nginx */
    unsigned                         complete:1;  /* last_buf was seen */
    unsigned                         truncated:1; /* it will never come */
    unsigned                         unreadable:1; /* the rest of a body */
    ngx_str_t                        too_old_detail;
};


extern ngx_module_t  ngx_http_latchkey_module;

extern ngx_str_t  ngx_http_latchkey_verdict_words[];
extern ngx_str_t  ngx_http_latchkey_outcome_words[];


/* module */

ngx_int_t ngx_http_latchkey_add_handler(ngx_conf_t *cf, ngx_uint_t phase,
    ngx_http_handler_pt handler);


/* request */

ngx_int_t ngx_http_latchkey_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_latchkey_rewrite_handler(ngx_http_request_t *r);
/* finds it again after an internal redirect; NULL: there is none */
ngx_http_latchkey_ctx_t *ngx_http_latchkey_get_ctx(ngx_http_request_t *r);
/* from an event that the request waited for, since ctx->wait_start */
ngx_http_request_t *ngx_http_latchkey_enter_request(
    ngx_http_latchkey_ctx_t *ctx);
/* the verdict is NEW: NGX_DECLINED runs the app, else an error status */
ngx_int_t ngx_http_latchkey_run_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/*
 * What the request does from here on is not part of its operation, and the op
 * ends by itself.  May be called again.
 */
void ngx_http_latchkey_detach(ngx_http_latchkey_ctx_t *ctx);
/* detaches, unless the response may still be in memory of the op */
void ngx_http_latchkey_post_action(ngx_http_latchkey_ctx_t *ctx);


/* identity */

/* NGX_OK.  NGX_DECLINED: there is none.  NGX_ERROR: more than one */
ngx_int_t ngx_http_latchkey_get_key(ngx_http_request_t *r, ngx_str_t *value);
/* the canonical key; NGX_DECLINED: *fault is what is wrong with it */
ngx_int_t ngx_http_latchkey_read_key(ngx_pool_t *pool, ngx_str_t *value,
    ngx_str_t *key, const char **fault);
/* sets ctx->key and returns NULL, or what is wrong, also for the route */
const char *ngx_http_latchkey_parse_key(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_str_t *value);
/*
 * The tenant of this request as it is stored, for lookups too.
 * NGX_DECLINED: empty, too long, or not valid in a header.
 */
ngx_int_t ngx_http_latchkey_get_tenant(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *tenant);
ngx_int_t ngx_http_latchkey_get_scope(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *scope);
/* has the text the form of a reference? */
ngx_uint_t ngx_http_latchkey_is_reference(ngx_str_t *text);
/* the text that goes to the daemon; the request body has been read */
ngx_int_t ngx_http_latchkey_fingerprint_request(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, u_char *text);
/* the whole request body, into `pool` */
ngx_int_t ngx_http_latchkey_copy_body(ngx_http_request_t *r, ngx_pool_t *pool,
    ngx_str_t *body);
off_t ngx_http_latchkey_body_size(ngx_http_request_t *r);
/*
 * idempotency_max_age.  NGX_OK: fresh, or there is nothing to check.
 * NGX_DECLINED: too old, too far in the future, or without a readable time;
 * *detail is which.
 */
ngx_int_t ngx_http_latchkey_check_age(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, ngx_str_t *key, ngx_str_t *detail);


/* headers */

/* in two phases: removes Latchkey-* headers that a client sent */
ngx_int_t ngx_http_latchkey_strip_handler(ngx_http_request_t *r);
/* in a guarded location: also headers that resemble Idempotency-Key */
ngx_int_t ngx_http_latchkey_strip_headers(ngx_http_request_t *r);
/* may an app take the name for `known`, which is in lower case? */
ngx_uint_t ngx_http_latchkey_resembles(ngx_str_t *name, const char *known);
ngx_uint_t ngx_http_latchkey_count_headers(ngx_http_request_t *r,
    const char *known);
/* adds Latchkey-* headers for the app */
ngx_int_t ngx_http_latchkey_pass_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* does the header have this name?  In any case, as HTTP wants it */
ngx_uint_t ngx_http_latchkey_is_header(ngx_table_elt_t *h, ngx_str_t *name);
/* removes response headers of these names; the last name is empty */
void ngx_http_latchkey_drop_headers(ngx_http_request_t *r, ngx_str_t *names);
/* writes "Name: value" and the end of the line */
u_char *ngx_http_latchkey_write_header(u_char *p, ngx_str_t *name,
    ngx_str_t *value);
ngx_uint_t ngx_http_latchkey_is_valid_header(ngx_str_t *name,
    ngx_str_t *value);
/* headers that a replay may carry, as lines, into op->response_headers */
ngx_int_t ngx_http_latchkey_store_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* Idempotency-* headers, in place of any that the app sent */
ngx_int_t ngx_http_latchkey_add_own_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* a stored block of lines, as headers of the response */
ngx_int_t ngx_http_latchkey_replay_headers(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_slice block);
/* on a held response: stored headers in place of those on the list */
ngx_int_t ngx_http_latchkey_take_headers(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);


/* upstream */

/* before the content handler of a claimed request runs */
void ngx_http_latchkey_wrap_content(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* sets op->settle, op->status and op->reason from the response's header */
void ngx_http_latchkey_classify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* there is no response of the app that could be sent */
void ngx_http_latchkey_set_doubt(ngx_http_latchkey_ctx_t *ctx,
    const char *reason);
/*
 * Brings ctx->app up to date and returns it.  UNKNOWN: an app has the request
 * and did not respond, so no other may run it.
 */
ngx_http_latchkey_app_e ngx_http_latchkey_update_app(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
ngx_uint_t ngx_http_latchkey_upstreams_asked(ngx_http_request_t *r);
/* may the app have seen this request, which is in `state`? */
ngx_uint_t ngx_http_latchkey_may_have_run(ngx_http_latchkey_ctx_t *ctx,
    ngx_http_latchkey_state_e state);
/* was the connection handed over, with 101? */
ngx_uint_t ngx_http_latchkey_is_handed_over(ngx_http_request_t *r);
/* removes Latchkey-Outcome and Latchkey-Keep: they are not for clients */
void ngx_http_latchkey_strip_report(ngx_http_request_t *r);
/*
 * Is the held response not one to send: cut off, or an error page of nginx
 * that says less than is known?  Then set_substitute() is sent.
 */
ngx_uint_t ngx_http_latchkey_has_no_response(ngx_http_latchkey_ctx_t *ctx);


/* response; from postconfiguration */

ngx_int_t ngx_http_latchkey_filter_init(ngx_conf_t *cf);


/*
 * special_response: set_ functions fill r->headers_out and return the body,
 * or NULL if out of memory.
 */

/* forgets any response that was there before */
void ngx_http_latchkey_start_response(ngx_http_request_t *r,
    ngx_uint_t status);
/* the length, and the one buffer of the body */
ngx_chain_t *ngx_http_latchkey_set_body(ngx_http_request_t *r, u_char *data,
    size_t len);
ngx_table_elt_t *ngx_http_latchkey_add_header(ngx_http_request_t *r,
    const char *name, ngx_str_t *value);
ngx_int_t ngx_http_latchkey_add_expires(ngx_http_request_t *r, uint64_t ms);
ngx_int_t ngx_http_latchkey_add_retry_after(ngx_http_request_t *r,
    ngx_msec_t ms);
ngx_int_t ngx_http_latchkey_add_no_store(ngx_http_request_t *r);
/* retry_after in ms; 0: none */
ngx_chain_t *ngx_http_latchkey_set_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after);
/* any verdict but NEW; decision NULL: no daemon could decide */
ngx_chain_t *ngx_http_latchkey_set_verdict(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
/* outcome-unknown; set_lost: as 502 or 504 */
ngx_chain_t *ngx_http_latchkey_set_unknown(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, ngx_uint_t status, const char *detail);
ngx_chain_t *ngx_http_latchkey_set_lost(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* in place of a response that is not one to send */
ngx_chain_t *ngx_http_latchkey_set_substitute(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/*
 * Sends what was set through all filters and returns what
 * ngx_http_finalize_request() wants.  out NULL: 500.
 */
ngx_int_t ngx_http_latchkey_send_response(ngx_http_request_t *r,
    ngx_chain_t *out);
ngx_int_t ngx_http_latchkey_send_problem(ngx_http_request_t *r,
    struct lk_problem *problem, ngx_msec_t retry_after);
/* sends `text` as the whole response, not to be cached, and frees it */
ngx_int_t ngx_http_latchkey_send_text(ngx_http_request_t *r,
    const char *content_type, struct lk_buf *text);
/* finalizes the request without post_action */
void ngx_http_latchkey_finalize(ngx_http_request_t *r, ngx_int_t rc);


/* async */

/* sets ctx->later if this request is to be accepted for later */
void ngx_http_latchkey_async_check(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* sets op->accept */
ngx_int_t ngx_http_latchkey_async_prepare(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* 202, like set_verdict() */
ngx_chain_t *ngx_http_latchkey_set_accepted(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* a JSON text for a client that shall ask again; frees it */
ngx_chain_t *ngx_http_latchkey_set_progress(ngx_http_request_t *r,
    ngx_http_latchkey_loc_conf_t *llcf, struct lk_buf *json);


/* courier */

/* did the request come in through the courier's listener? */
ngx_uint_t ngx_http_latchkey_is_courier(ngx_http_request_t *r);
/* does this server listen there?  *only: and nowhere else */
ngx_uint_t ngx_http_latchkey_courier_serves(ngx_conf_t *cf,
    ngx_http_core_srv_conf_t *cscf, ngx_uint_t *only);
/* from postconfiguration */
ngx_int_t ngx_http_latchkey_courier_init(ngx_conf_t *cf);
/* NGX_OK: its operation is in ctx.  Else what the phase handler returns. */
ngx_int_t ngx_http_latchkey_courier_identify(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);
/* NULL: out of memory */
ngx_http_latchkey_op_t *ngx_http_latchkey_courier_op(
    ngx_http_latchkey_ctx_t *ctx);
/* the daemon has checked the token; returns like a phase handler */
ngx_int_t ngx_http_latchkey_courier_decide(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
/* the response for the courier; decision NULL: not stored yet */
ngx_chain_t *ngx_http_latchkey_courier_outcome(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx, const struct lk_decision *decision);
/* on each response: reports to the courier that no guard has seen it */
ngx_int_t ngx_http_latchkey_courier_mark_unguarded(ngx_http_request_t *r,
    ngx_http_latchkey_ctx_t *ctx);


/* lookup */

ngx_int_t ngx_http_latchkey_status_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_latchkey_operation_handler(ngx_http_request_t *r);
/* the zone of the rates; from counters_init() */
ngx_int_t ngx_http_latchkey_rate_init(ngx_conf_t *cf);
/* a value of a flat list of names and values; NULL: there is none */
const struct lk_reply *ngx_http_latchkey_query_find(
    const struct lk_reply *operation, const char *name);


/* counters, variables */

/* from postconfiguration: numbers the locations, makes zones and handlers */
ngx_int_t ngx_http_latchkey_counters_init(ngx_conf_t *cf);
ngx_int_t ngx_http_latchkey_counters_handler(ngx_http_request_t *r);
/* from preconfiguration */
ngx_int_t ngx_http_latchkey_add_variables(ngx_conf_t *cf);


static ngx_inline struct lk_slice
ngx_http_latchkey_slice(ngx_str_t *str)
{
    return (struct lk_slice) { (char *) str->data, str->len };
}


#endif /* _NGX_HTTP_LATCHKEY_MODULE_H_INCLUDED_ */
