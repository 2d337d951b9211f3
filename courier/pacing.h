/*
 * pacing.h - when a target is left alone: after too many failures in a row
 * (circuit), and when it has had its share of calls (rate). Pure: time is
 * given, in milliseconds of a clock that never jumps.
 */
#ifndef LK_PACING_H
#define LK_PACING_H

#include "config/targets.h"

/*
 *   closed     calls go; `circuit_failures` in a row open it
 *   open       nothing goes for circuit_open_ms, then it is half-open
 *   half-open  one call goes: its end closes the circuit, or opens it again
 */
enum lk_circuit_state {
    LK_CIRCUIT_CLOSED,
    LK_CIRCUIT_OPEN,
    LK_CIRCUIT_HALF_OPEN,
};

struct lk_circuit {
    enum lk_circuit_state state;
    uint64_t failures; /* in a row */
    uint64_t until_ms; /* open: half-open then */
};

const char *lk_circuit_word(enum lk_circuit_state state);
/* The state at that time: what was open long enough is half-open now. */
enum lk_circuit_state lk_circuit_state_at(struct lk_circuit *circuit,
                                          uint64_t now_ms);
/*
 * How a call ended. Calls that had begun before the circuit opened may still
 * close it, but do not keep it open: `trial` says that this one began while it
 * was half-open. True: the state has changed between closed and open.
 */
bool lk_circuit_note_end(struct lk_circuit *circuit,
                         const struct lk_target *target, bool healthy,
                         bool trial, uint64_t now_ms);

/* A bucket of tokens, one for each call. Begins full. */
struct lk_rate {
    int64_t milli;  /* thousandths of a token; below 0: spent in advance */
    uint64_t at_ms; /* when it was so */
    bool begun;
};

/* Calls that may begin now; UINT64_MAX: any number. */
uint64_t lk_rate_tokens_at(struct lk_rate *rate, const struct lk_target *target,
                           uint64_t now_ms);
/* One call begins. */
void lk_rate_take(struct lk_rate *rate, const struct lk_target *target);
/* One call begins as soon as there is a token for it: after so many
 * milliseconds. Whoever looks next finds that token spent. */
uint64_t lk_rate_reserve(struct lk_rate *rate, const struct lk_target *target,
                         uint64_t now_ms);
/* Until there is a token, after lk_rate_tokens_at. */
uint64_t lk_rate_wait_ms(const struct lk_rate *rate,
                         const struct lk_target *target);

/* ---- backoff ---- */

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
