/*
 * call_result.h - what a response, or its absence, means for a job. Pure.
 *
 *   the call                      honours the key   does not
 *   was never sent                retry             retry
 *   was sent, no answer           retry             uncertain
 *   success, cut off              retry             uncertain
 *   success                       delivered         delivered
 *   5xx, but for safe_statuses    retry or dead *   uncertain
 *   any other temporary failure   retry             retry
 *   anything else                 dead              dead
 *
 *   * in doubt: uncertain, should the key not be honoured any more
 *
 * A 5xx says that something went wrong, not that nothing happened: 500 after
 * the money has moved, 502, 504, 520 and the like from something in between.
 * 408, 425 and 429 say that the request was not taken, and so do all other
 * 4xx: it is the request that is refused.
 */
#ifndef LK_CALL_RESULT_H
#define LK_CALL_RESULT_H

#include "courier/http_call.h"
#include "store/store.h"

struct lk_result {
    enum lk_end end; /* DELIVERED, RETRY, UNCERTAIN or DEAD */
    bool healthy;    /* the target did not fail: its circuit stays closed */
    bool doubt;      /* nobody knows whether it has happened */
    char reason[LK_REASON_MAX + 1]; /* printable ASCII; empty: delivered */
};

void lk_result_of(const struct lk_target *target, bool honours,
                  const struct lk_http_response *response,
                  struct lk_result *result);

/* A retry that comes too late, or once too often, is none: dead. In doubt and
 * too late: uncertain, since an old job is for a person to look at, not to call
 * again. `failures` counts the attempts that failed, this one included. */
void lk_result_give_up(const struct lk_target *target, unsigned failures,
                       uint64_t age_ms, struct lk_result *result);

/* Writes a reason, with whatever is not printable ASCII as "?". */
void lk_result_reason(struct lk_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Appends what the provider calls what it made, from where target->id says.
 * Nothing is appended if it is not there, longer than LK_PROVIDER_ID_MAX, not
 * UTF-8, or has control characters in it.
 */
void lk_provider_id(const struct lk_target *target,
                    const struct lk_http_response *response, struct lk_buf *id);

#endif
