/*
 * circuit.h - when a target is left alone: after too many failures in a row
 * (circuit), and when it has had its share of calls (rate). Pure: time is
 * given, in milliseconds of a clock that never jumps.
 */
#ifndef LK_CIRCUIT_H
#define LK_CIRCUIT_H

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
enum lk_circuit_state lk_circuit_look(struct lk_circuit *circuit,
                                      uint64_t now_ms);
/*
 * How a call ended. Calls that had begun before the circuit opened may still
 * close it, but do not keep it open: `trial` says that this one began while it
 * was half-open. True: the state has changed between closed and open.
 */
bool lk_circuit_note(struct lk_circuit *circuit, const struct lk_target *target,
                     bool healthy, bool trial, uint64_t now_ms);

/* A bucket of tokens, one for each call. Begins full. */
struct lk_rate {
    int64_t milli;  /* thousandths of a token; below 0: spent in advance */
    uint64_t at_ms; /* when it was so */
    bool begun;
};

/* Calls that may begin now; UINT64_MAX: any number. */
uint64_t lk_rate_look(struct lk_rate *rate, const struct lk_target *target,
                      uint64_t now_ms);
/* One call begins. */
void lk_rate_take(struct lk_rate *rate, const struct lk_target *target);
/* One call begins as soon as there is a token for it: after so many
 * milliseconds. Whoever looks next finds that token spent. */
uint64_t lk_rate_reserve(struct lk_rate *rate, const struct lk_target *target,
                         uint64_t now_ms);
/* Until there is a token, after lk_rate_look. */
uint64_t lk_rate_wait_ms(const struct lk_rate *rate,
                         const struct lk_target *target);

#endif
