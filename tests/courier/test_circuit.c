/* test_circuit.c - the circuit breaker and the rate limit of a target, under a
 * clock of the test's own (C30). */
#include "courier/pacing.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct lk_target three = {.circuit_failures = 3,
                                       .circuit_open_ms = 1000};

static bool fails(struct lk_circuit *circuit, bool trial, uint64_t now_ms)
{
    return lk_circuit_note_end(circuit, &three, false, trial, now_ms);
}

static bool succeeds(struct lk_circuit *circuit, uint64_t now_ms)
{
    return lk_circuit_note_end(circuit, &three, true, false, now_ms);
}

static void failures_in_a_row_open_it_and_only_these(void **state)
{
    struct lk_circuit circuit = {0};

    assert_false(fails(&circuit, false, 10));
    assert_false(fails(&circuit, false, 10));
    assert_false(succeeds(&circuit, 10));
    assert_false(fails(&circuit, false, 10));
    assert_false(fails(&circuit, false, 10));
    assert_int_equal(lk_circuit_state_at(&circuit, 10), LK_CIRCUIT_CLOSED);
    assert_true(fails(&circuit, false, 10));
    assert_int_equal(lk_circuit_state_at(&circuit, 10), LK_CIRCUIT_OPEN);
}

static struct lk_circuit opened(uint64_t now_ms)
{
    struct lk_circuit circuit = {0};

    for (int i = 0; i < 3; i++) {
        (void)fails(&circuit, false, now_ms);
    }
    return circuit;
}

static void it_is_half_open_after_its_time(void **state)
{
    struct lk_circuit circuit = opened(500);

    assert_int_equal(lk_circuit_state_at(&circuit, 1499), LK_CIRCUIT_OPEN);
    assert_int_equal(lk_circuit_state_at(&circuit, 1500), LK_CIRCUIT_HALF_OPEN);
}

static void a_trial_that_fails_opens_it_again_and_nothing_is_said(void **state)
{
    struct lk_circuit circuit = opened(500);

    (void)lk_circuit_state_at(&circuit, 1600);
    assert_false(fails(&circuit, true, 1700));
    assert_int_equal(lk_circuit_state_at(&circuit, 2699), LK_CIRCUIT_OPEN);
    assert_int_equal(lk_circuit_state_at(&circuit, 2700), LK_CIRCUIT_HALF_OPEN);
}

static void a_trial_that_succeeds_closes_it(void **state)
{
    struct lk_circuit circuit = opened(500);

    (void)lk_circuit_state_at(&circuit, 1600);
    assert_true(succeeds(&circuit, 1700));
    assert_int_equal(lk_circuit_state_at(&circuit, 1700), LK_CIRCUIT_CLOSED);
    assert_false(fails(&circuit, false, 1700));
}

/* Calls that began before it opened, and fail late, keep it open no longer. */
static void a_late_failure_does_not_keep_it_open(void **state)
{
    struct lk_circuit circuit = opened(500);

    assert_false(fails(&circuit, false, 1400));
    assert_int_equal(lk_circuit_state_at(&circuit, 1500), LK_CIRCUIT_HALF_OPEN);
    assert_false(fails(&circuit, false, 1550));
    assert_int_equal(lk_circuit_state_at(&circuit, 1551), LK_CIRCUIT_HALF_OPEN);
}

static void a_late_success_closes_it(void **state)
{
    struct lk_circuit circuit = opened(500);

    assert_true(succeeds(&circuit, 600));
    assert_int_equal(lk_circuit_state_at(&circuit, 600), LK_CIRCUIT_CLOSED);
}

static void without_a_limit_it_never_opens(void **state)
{
    struct lk_circuit circuit = {0};
    struct lk_target never = {.circuit_open_ms = 1000};

    for (int i = 0; i < 1000; i++) {
        assert_false(lk_circuit_note_end(&circuit, &never, false, false, 1));
    }
    assert_int_equal(lk_circuit_state_at(&circuit, 1), LK_CIRCUIT_CLOSED);
}

/* ---- the rate ------------------------------------------------------------ */

static uint64_t drain(struct lk_rate *rate, const struct lk_target *target,
                      uint64_t now_ms)
{
    uint64_t count = 0;

    while (lk_rate_tokens_at(rate, target, now_ms)) {
        lk_rate_take(rate, target);
        count++;
    }
    return count;
}

static void a_burst_is_allowed_after_a_pause(void **state)
{
    struct lk_target target = {.rate = 10, .burst = 5};
    struct lk_rate rate = {0};

    assert_int_equal(drain(&rate, &target, 123456), 5);
    assert_int_equal(drain(&rate, &target, 123456), 0);
    assert_int_equal(lk_rate_wait_ms(&rate, &target), 100);
    assert_int_equal(drain(&rate, &target, 123556), 1);
    assert_int_equal(drain(&rate, &target, 1000000), 5);
    assert_int_equal(drain(&rate, &target, UINT64_MAX), 5);
}

/* However often it is looked at, the calls in any second are the rate. */
static void the_rate_is_kept_over_time(void **state)
{
    static const uint64_t rates[] = {1, 3, 7, 100, 999, 1000, 5000};

    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct lk_target target = {.rate = rates[i], .burst = 1};
        struct lk_rate rate = {0};
        uint64_t count = drain(&rate, &target, 0);
        target.burst = rates[i];
        for (uint64_t ms = 1; ms <= 10000; ms++) {
            count += drain(&rate, &target, ms);
        }
        assert_int_equal(count, 10 * rates[i] + 1);
    }
}

static void the_wait_is_as_long_as_a_token_takes(void **state)
{
    for (uint64_t rate = 1; rate < 3000; rate += 7) {
        struct lk_target target = {.rate = rate, .burst = 1};
        struct lk_rate bucket = {0};
        (void)drain(&bucket, &target, 0);
        uint64_t wait = lk_rate_wait_ms(&bucket, &target);
        assert_true(wait > 0);
        struct lk_rate early = bucket;
        assert_int_equal(lk_rate_tokens_at(&early, &target, wait - 1), 0);
        assert_int_equal(lk_rate_tokens_at(&bucket, &target, wait), 1);
        assert_int_equal(lk_rate_wait_ms(&bucket, &target), 0);
    }
}

static void a_clock_that_goes_back_gives_nothing(void **state)
{
    struct lk_target target = {.rate = 10, .burst = 1};
    struct lk_rate rate = {0};

    assert_int_equal(drain(&rate, &target, 5000), 1);
    assert_int_equal(drain(&rate, &target, 1000), 0);
    assert_int_equal(drain(&rate, &target, 1050), 0);
    assert_int_equal(drain(&rate, &target, 1100), 1);
}

/* Two who call one target have one budget between them, whoever comes first. */
static void what_is_reserved_is_taken_from_the_same_bucket(void **state)
{
    struct lk_target target = {.rate = 10, .burst = 2};
    struct lk_rate rate = {0};

    assert_int_equal(lk_rate_reserve(&rate, &target, 0), 0);
    assert_int_equal(lk_rate_tokens_at(&rate, &target, 0), 1);
    lk_rate_take(&rate, &target);
    assert_int_equal(lk_rate_reserve(&rate, &target, 0), 100);
    /* The token at 100 is spoken for, the one at 200 is not. */
    assert_int_equal(lk_rate_tokens_at(&rate, &target, 100), 0);
    assert_int_equal(lk_rate_wait_ms(&rate, &target), 100);
    assert_int_equal(drain(&rate, &target, 200), 1);
    assert_int_equal(lk_rate_reserve(&rate, &target, 200), 100);
    assert_int_equal(lk_rate_reserve(&rate, &target, 200), 200);
    assert_int_equal(drain(&rate, &target, 400), 0);
    /* A debt does not outlast a pause, and a pause saves no more than burst. */
    assert_int_equal(drain(&rate, &target, 100000), 2);
}

/* C30: over a long time the two together have the rate, and both get on. */
static void two_who_share_a_rate_keep_it_together(void **state)
{
    struct lk_target target = {.rate = 7, .burst = 1};
    struct lk_rate rate = {0};
    uint64_t jobs = 0;
    uint64_t probes = 0;
    uint64_t turn = 0;

    for (uint64_t ms = 0; ms <= 10000; ms++) {
        if (ms >= turn) { /* asks, waits, calls, and leaves one out */
            probes++;
            turn = ms + lk_rate_reserve(&rate, &target, ms) + 1500 / 7;
        }
        jobs += drain(&rate, &target, ms);
    }
    assert_true(jobs > 20 && probes > 20);
    assert_true(jobs + probes <= 7 * 10 + 2);
}

static void without_a_rate_any_number_may_go(void **state)
{
    struct lk_target target = {0};
    struct lk_rate rate = {0};

    assert_true(lk_rate_tokens_at(&rate, &target, 1) == UINT64_MAX);
    lk_rate_take(&rate, &target);
    assert_true(lk_rate_tokens_at(&rate, &target, 1) == UINT64_MAX);
    assert_int_equal(lk_rate_wait_ms(&rate, &target), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_in_a_row_open_it_and_only_these),
        cmocka_unit_test(it_is_half_open_after_its_time),
        cmocka_unit_test(a_trial_that_fails_opens_it_again_and_nothing_is_said),
        cmocka_unit_test(a_trial_that_succeeds_closes_it),
        cmocka_unit_test(a_late_failure_does_not_keep_it_open),
        cmocka_unit_test(a_late_success_closes_it),
        cmocka_unit_test(without_a_limit_it_never_opens),
        cmocka_unit_test(a_burst_is_allowed_after_a_pause),
        cmocka_unit_test(the_rate_is_kept_over_time),
        cmocka_unit_test(the_wait_is_as_long_as_a_token_takes),
        cmocka_unit_test(a_clock_that_goes_back_gives_nothing),
        cmocka_unit_test(what_is_reserved_is_taken_from_the_same_bucket),
        cmocka_unit_test(two_who_share_a_rate_keep_it_together),
        cmocka_unit_test(without_a_rate_any_number_may_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
