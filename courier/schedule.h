/* schedule.h - when a job that failed is tried again. Pure: chance and time
 * are given. */
#ifndef LK_SCHEDULE_H
#define LK_SCHEDULE_H

#include "config/targets.h"

/* Numbers that nobody can foresee; one thread's. */
struct lk_chance {
    uint64_t state;
};

void lk_chance_seed(struct lk_chance *chance);
uint64_t lk_chance_next(struct lk_chance *chance);

/*
 * Full jitter: anything from 0 to min(most, first * 2^(failures - 1)), each
 * alike; `random` has 64 bits of chance. `failures` counts from 1.
 */
uint64_t lk_backoff_ms(uint64_t first_ms, uint64_t most_ms, unsigned failures,
                       uint64_t random);

/*
 * The value of Retry-After: seconds, or a date, which is looked at from
 * `now_ms` (what the same answer calls Date, if it does). False: neither.
 * Seconds beyond all bounds are UINT64_MAX, a date that is past is 0.
 */
bool lk_retry_after_ms(struct lk_slice value, uint64_t now_ms,
                       uint64_t *wait_ms);

/* What the headers of an answer ask for, cut to the target's bound; 0: nothing.
 * `now_ms` is the wall clock. */
uint64_t lk_asked_wait_ms(const struct lk_target *target,
                          struct lk_slice headers, uint64_t now_ms);

/* How long a job waits after its attempt has failed: jitter, but not less than
 * `asked_ms`. */
uint64_t lk_retry_delay_ms(const struct lk_target *target, unsigned failures,
                           uint64_t asked_ms, uint64_t random);

/* Is a job that has failed so often, and was queued so long ago, given up? */
bool lk_is_given_up(const struct lk_target *target, unsigned failures,
                    uint64_t age_ms);

#endif
