/* pacing.c - when a target may be called: circuit breaker, rate limit, backoff.
 */
#include "courier/pacing.h"
#include "courier/http_call.h"
#include "lib/http_syntax.h"
#include "lib/time.h"

#include <sys/random.h>

const char *lk_circuit_word(enum lk_circuit_state state)
{
    static const char *const words[] = {"closed", "open", "half-open"};

    return words[state];
}

enum lk_circuit_state lk_circuit_state_at(struct lk_circuit *circuit,
                                          uint64_t now_ms)
{
    if (circuit->state == LK_CIRCUIT_OPEN && now_ms >= circuit->until_ms) {
        circuit->state = LK_CIRCUIT_HALF_OPEN;
    }
    return circuit->state;
}

bool lk_circuit_note_end(struct lk_circuit *circuit,
                         const struct lk_target *target, bool healthy,
                         bool trial, uint64_t now_ms)
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

/* The most that the bucket holds, in thousandths of a token. */
static int64_t rate_capacity(const struct lk_target *target)
{
    return (int64_t)(1000 * (target->burst ? target->burst : 1));
}

uint64_t lk_rate_tokens_at(struct lk_rate *rate, const struct lk_target *target,
                           uint64_t now_ms)
{
    if (!target->rate) {
        return UINT64_MAX;
    }
    int64_t missing = rate_capacity(target) - rate->milli;
    uint64_t passed = now_ms > rate->at_ms ? now_ms - rate->at_ms : 0;

    /* N calls a second are N thousandths of a token a millisecond. */
    if (!rate->begun || missing < 0 ||
        passed > (uint64_t)missing / target->rate) {
        rate->milli = rate_capacity(target);
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
    (void)lk_rate_tokens_at(rate, target, now_ms);
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

/* ---- backoff ------------------------------------------------------------- */

void lk_chance_seed(struct lk_chance *chance)
{
    if (getrandom(&chance->state, sizeof(chance->state), 0) ==
        (ssize_t)sizeof(chance->state)) {
        return;
    }
    chance->state = lk_wall_ns();
}

/* SplitMix64: a counter with the golden ratio as increment, well mixed. */
uint64_t lk_chance_next(struct lk_chance *chance)
{
    uint64_t z = chance->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t lk_backoff_ms(uint64_t first_ms, uint64_t most_ms, unsigned failures,
                       uint64_t random)
{
    uint64_t bound = first_ms;

    for (unsigned n = 1; n < failures && bound < most_ms; n++) {
        bound = bound > UINT64_MAX / 2 ? UINT64_MAX : 2 * bound;
    }
    bound = bound < most_ms ? bound : most_ms;
    return (uint64_t)(((unsigned __int128)random *
                       ((unsigned __int128)bound + 1)) >>
                      64);
}

/* Decimal digits alone; a number beyond all bounds is UINT64_MAX. */
static bool read_seconds(struct lk_slice value, uint64_t *wait_ms)
{
    uint64_t seconds = 0;

    for (size_t i = 0; i < value.len; i++) {
        if (value.data[i] < '0' || value.data[i] > '9') {
            return false;
        }
        if (seconds < UINT64_MAX / 100000) {
            seconds = 10 * seconds + (uint64_t)(value.data[i] - '0');
        } else {
            seconds = UINT64_MAX;
        }
    }
    *wait_ms = seconds > UINT64_MAX / 1000 ? UINT64_MAX : 1000 * seconds;
    return value.len != 0;
}

/* Only the HTTP date that is in use, which begins with the day of the week. */
static bool read_date(struct lk_slice value, uint64_t *ms)
{
    return value.len && value.data[0] >= 'A' && value.data[0] <= 'Z' &&
           latchkey_timestamp_parse(value, ms) == LK_OK;
}

bool lk_retry_after_ms(struct lk_slice value, uint64_t now_ms,
                       uint64_t *wait_ms)
{
    uint64_t date_ms;

    value = lk_trim(value);
    if (read_seconds(value, wait_ms)) {
        return true;
    }
    if (!read_date(value, &date_ms)) {
        return false;
    }
    *wait_ms = date_ms > now_ms ? date_ms - now_ms : 0;
    return true;
}

uint64_t lk_asked_wait_ms(const struct lk_target *target,
                          struct lk_slice headers, uint64_t now_ms)
{
    struct lk_slice value = lk_http_header(headers, "Retry-After");
    uint64_t date_ms;
    uint64_t wait_ms;

    /* The date is of the service's own clock. */
    if (read_date(lk_http_header(headers, "Date"), &date_ms)) {
        now_ms = date_ms;
    }
    if (!value.data || !lk_retry_after_ms(value, now_ms, &wait_ms)) {
        return 0;
    }
    return wait_ms < target->retry_after_max_ms ? wait_ms
                                                : target->retry_after_max_ms;
}

uint64_t lk_retry_delay_ms(const struct lk_target *target, unsigned failures,
                           uint64_t asked_ms, uint64_t random)
{
    uint64_t delay_ms = lk_backoff_ms(target->backoff_ms,
                                      target->backoff_max_ms, failures, random);

    return delay_ms > asked_ms ? delay_ms : asked_ms;
}

bool lk_is_given_up(const struct lk_target *target, unsigned failures,
                    uint64_t age_ms)
{
    return failures >= target->attempts ||
           (target->max_age_ms && age_ms >= target->max_age_ms);
}
