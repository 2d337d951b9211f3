/*
 * call_result.h - what a response, or its absence, means for a job. Pure.
 *
 *   the call                      honours the key   does not
 *   was never sent                retry             retry
 *   was sent, no response         retry             uncertain
 *   success, incomplete           retry             uncertain
 *   success                       delivered         delivered
 *   5xx, but for safe_statuses    retry or dead *   uncertain
 *   any other temporary failure   retry             retry
 *   anything else                 dead              dead
 *
 *   * in doubt: uncertain if the key is no longer honoured by then
 *
 * A 5xx says that something went wrong, not that nothing happened: a 500 may
 * come after the money has moved, a 502, 504 or 520 from a proxy in between. A
 * 408, 425 or 429 says that the request was not accepted; so does every other
 * 4xx: it refuses the request.
 */
#ifndef LK_CALL_RESULT_H
#define LK_CALL_RESULT_H

#include "courier/http_call.h"
#include "store/store.h"

struct lk_result {
    enum lk_end end; /* DELIVERED, RETRY, UNCERTAIN or DEAD */
    bool healthy;    /* the target did not fail: its circuit stays closed */
    bool doubt;      /* no one knows whether it has happened */
    char reason[LK_REASON_MAX + 1]; /* printable ASCII; empty: delivered */
};

void lk_result_of(const struct lk_target *target, bool honours,
                  const struct lk_http_response *response,
                  struct lk_result *result);

/* Turns a retry that comes too late, or exceeds the target's attempts, into
 * dead. In doubt and too late: uncertain, since a person should look at an old
 * job before it is called again. `failures` counts the attempts that failed,
 * this one included. */
void lk_result_give_up(const struct lk_target *target, unsigned failures,
                       uint64_t age_ms, struct lk_result *result);

/* Writes a reason; bytes that are not printable ASCII become "?". */
void lk_result_reason(struct lk_result *result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Appends the provider's id of what the call created, from where target->id
 * says. Nothing is appended if it is missing, longer than LK_PROVIDER_ID_MAX,
 * not UTF-8, or has control characters in it.
 */
void lk_provider_id(const struct lk_target *target,
                    const struct lk_http_response *response, struct lk_buf *id);

#endif
