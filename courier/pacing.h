/*
 * pacing.h - when a target may be called: the circuit breaker after failures in
 * a row, the rate limit, and the backoff of a job that failed. Pure: time and
 * chance are given; `now_ms` is of a clock that never jumps, if not said
 * otherwise.
 */
#ifndef LK_PACING_H
#define LK_PACING_H

#include "config/targets.h"

/*
 * The life of a circuit, one for each live target, owned by its thread:
 *
 *   state      what may be called       becomes
 *   closed     anything                 open, after circuit_failures in a row
 *   open       nothing                  half-open, after circuit_open_ms
 *   half-open  one call, the trial      closed or open, by the trial's end
 *
 * A call that began before the circuit opened may still close it by its
 * success.
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
/* The state at that time; an open circuit becomes half-open when it is due. */
enum lk_circuit_state lk_circuit_state_at(struct lk_circuit *circuit,
                                          uint64_t now_ms);
/* Notes how a call ended. `trial`: it began while the circuit was half-open;
 * the failure of any other call does not keep an open circuit open. True: the
 * state has changed between closed and open. */
bool lk_circuit_note_end(struct lk_circuit *circuit,
                         const struct lk_target *target, bool healthy,
                         bool trial, uint64_t now_ms);

/* A bucket of tokens, one for each call. Begins full. Start it as {0}. */
struct lk_rate {
    int64_t milli;  /* thousandths of a token; below 0: spent in advance */
    uint64_t at_ms; /* when `milli` was computed */
    bool begun;
};

/* Calls that may begin now; UINT64_MAX: any number. */
uint64_t lk_rate_tokens_at(struct lk_rate *rate, const struct lk_target *target,
                           uint64_t now_ms);
/* One call begins: takes a token, if the target has a rate. */
void lk_rate_take(struct lk_rate *rate, const struct lk_target *target);
/* Takes the next token in advance, and returns the milliseconds to wait before
 * the call may begin. */
uint64_t lk_rate_reserve(struct lk_rate *rate, const struct lk_target *target,
                         uint64_t now_ms);
/* Milliseconds until there is a token, as of the last lk_rate_tokens_at. */
uint64_t lk_rate_wait_ms(const struct lk_rate *rate,
                         const struct lk_target *target);

/* ---- backoff ------------------------------------------------------------- */

/* Numbers that no one can foresee; for one thread. */
struct lk_chance {
    uint64_t state;
};

void lk_chance_seed(struct lk_chance *chance);
uint64_t lk_chance_next(struct lk_chance *chance);

/*
 * Full jitter: evenly from 0 to min(most, first * 2^(failures - 1)). `random`
 * has 64 bits of chance. `failures` counts from 1.
 */
uint64_t lk_backoff_ms(uint64_t first_ms, uint64_t most_ms, unsigned failures,
                       uint64_t random);

/*
 * The value of Retry-After: seconds, or a date, which is compared with `now_ms`
 * (the Date of the same response, if it has one). False: it is neither. Seconds
 * beyond all bounds are UINT64_MAX, a date that is past is 0.
 */
bool lk_retry_after_ms(struct lk_slice value, uint64_t now_ms,
                       uint64_t *wait_ms);

/* The wait that a response asks for, cut to the target's bound; 0: none.
 * `now_ms` is the wall clock. */
uint64_t lk_asked_wait_ms(const struct lk_target *target,
                          struct lk_slice headers, uint64_t now_ms);

/* How long a job waits after a failed attempt: jitter, but not less than
 * `asked_ms`. */
uint64_t lk_retry_delay_ms(const struct lk_target *target, unsigned failures,
                           uint64_t asked_ms, uint64_t random);

/* Is a job given up after that number of failures, or at that age? */
bool lk_is_given_up(const struct lk_target *target, unsigned failures,
                    uint64_t age_ms);

#endif
