/* circuit.c - the circuit breaker and the rate limit of a target. */
#include "courier/circuit.h"

const char *lk_circuit_word(enum lk_circuit_state state)
{
    static const char *const words[] = {"closed", "open", "half-open"};

    return words[state];
}

enum lk_circuit_state lk_circuit_look(struct lk_circuit *circuit,
                                      uint64_t now_ms)
{
    if (circuit->state == LK_CIRCUIT_OPEN && now_ms >= circuit->until_ms) {
        circuit->state = LK_CIRCUIT_HALF_OPEN;
    }
    return circuit->state;
}

bool lk_circuit_note(struct lk_circuit *circuit, const struct lk_target *target,
                     bool healthy, bool trial, uint64_t now_ms)
{
    bool was_closed = circuit->state == LK_CIRCUIT_CLOSED;

    if (healthy) {
        *circuit = (struct lk_circuit){0};
        return !was_closed;
    }
    circuit->failures++;
    bool opens = was_closed ? target->circuit_failures &&
                                  circuit->failures >= target->circuit_failures
                            : trial;
    if (opens) {
        circuit->state = LK_CIRCUIT_OPEN;
        circuit->until_ms = now_ms + target->circuit_open_ms;
    }
    return opens && was_closed;
}

static int64_t most(const struct lk_target *target)
{
    return (int64_t)(1000 * (target->burst ? target->burst : 1));
}

uint64_t lk_rate_look(struct lk_rate *rate, const struct lk_target *target,
                      uint64_t now_ms)
{
    if (!target->rate) {
        return UINT64_MAX;
    }
    int64_t missing = most(target) - rate->milli;
    uint64_t passed = now_ms > rate->at_ms ? now_ms - rate->at_ms : 0;

    /* So many calls a second are as many thousandths a millisecond. */
    if (!rate->begun || missing < 0 ||
        passed > (uint64_t)missing / target->rate) {
        rate->milli = most(target);
    } else {
        rate->milli += (int64_t)(passed * target->rate);
    }
    rate->begun = true;
    rate->at_ms = now_ms;
    return rate->milli < 0 ? 0 : (uint64_t)rate->milli / 1000;
}

void lk_rate_take(struct lk_rate *rate, const struct lk_target *target)
{
    if (target->rate) {
        rate->milli -= 1000;
    }
}

uint64_t lk_rate_reserve(struct lk_rate *rate, const struct lk_target *target,
                         uint64_t now_ms)
{
    (void)lk_rate_look(rate, target, now_ms);
    uint64_t wait_ms = lk_rate_wait_ms(rate, target);
    lk_rate_take(rate, target);
    return wait_ms;
}

uint64_t lk_rate_wait_ms(const struct lk_rate *rate,
                         const struct lk_target *target)
{
    if (!target->rate || rate->milli >= 1000) {
        return 0;
    }
    return ((uint64_t)(1000 - rate->milli) + target->rate - 1) / target->rate;
}
