/* test_schedule.c - when a job is tried again: jitter by its distribution,
 * Retry-After in every spelling, and when it is given up (C29). */
#include "courier/pacing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { DRAWS = 200000, BINS = 20 };

/* Chance with a known seed: what a test draws is the same each time. */
static struct lk_chance seeded(void)
{
    return (struct lk_chance){.state = 42};
}

/*
 * Uniform over 0 to `bound`: the mean is bound / 2, the variance bound^2 / 12,
 * and each of 20 bins has a twentieth of the draws. The margins are more than
 * ten standard errors.
 */
static void assert_uniform(uint64_t first, uint64_t most, unsigned failures,
                           uint64_t bound)
{
    struct lk_chance chance = seeded();
    double sum = 0;
    double squares = 0;
    unsigned bins[BINS] = {0};

    for (int i = 0; i < DRAWS; i++) {
        uint64_t ms =
            lk_backoff_ms(first, most, failures, lk_chance_next(&chance));
        double part = (double)ms / (double)bound;
        assert_true(ms <= bound);
        sum += part;
        squares += part * part;
        bins[ms == bound ? BINS - 1 : (int)(part * BINS)]++;
    }
    double mean = sum / DRAWS;
    double variance = squares / DRAWS - mean * mean;
    assert_true(mean > 0.49 && mean < 0.51);
    assert_true(variance > 0.95 / 12 && variance < 1.05 / 12);
    for (int i = 0; i < BINS; i++) {
        assert_true(bins[i] > 0.9 * DRAWS / BINS);
        assert_true(bins[i] < 1.1 * DRAWS / BINS);
    }
}

static void each_wait_is_drawn_from_all_of_its_window(void **state)
{
    assert_uniform(1000, 3600000, 1, 1000);
    assert_uniform(1000, 3600000, 2, 2000);
    assert_uniform(1000, 3600000, 5, 16000);
    assert_uniform(1000, 3600000, 12, 2048000);
}

static void the_window_stops_growing_at_its_bound(void **state)
{
    assert_uniform(1000, 3600000, 13, 3600000);
    assert_uniform(1000, 3600000, 64, 3600000);
    assert_uniform(1000, 3600000, 4000000000, 3600000);
    assert_uniform(5000, 3000, 1, 3000);
}

static void the_ends_of_the_window_are_part_of_it(void **state)
{
    assert_int_equal(lk_backoff_ms(1000, 9000, 3, 0), 0);
    assert_int_equal(lk_backoff_ms(1000, 9000, 3, UINT64_MAX), 4000);
    assert_int_equal(lk_backoff_ms(0, 9000, 3, UINT64_MAX), 0);
    assert_true(lk_backoff_ms(UINT64_MAX, UINT64_MAX, 9, UINT64_MAX) ==
                UINT64_MAX);
    assert_true(lk_backoff_ms(UINT64_MAX / 2 + 1, UINT64_MAX, 9, UINT64_MAX) ==
                UINT64_MAX);
}

static void two_couriers_do_not_draw_the_same(void **state)
{
    struct lk_chance a;
    struct lk_chance b;

    lk_chance_seed(&a);
    lk_chance_seed(&b);
    assert_true(lk_chance_next(&a) != lk_chance_next(&b));
    assert_true(lk_chance_next(&a) != lk_chance_next(&a));
}

/* Sun, 06 Nov 1994 08:49:37 GMT */
#define THEN UINT64_C(784111777000)

static void retry_after_is_read_in_every_spelling(void **state)
{
    static const struct {
        const char *value;
        bool valid;
        uint64_t wait_ms;
    } rows[] = {
        {"0", true, 0},
        {"1", true, 1000},
        {"120", true, 120000},
        {"  7\t", true, 7000},
        {"007", true, 7000},
        {"86400", true, 86400000},
        {"184467440737095", true, UINT64_C(184467440737095000)},
        {"18446744073709552", true, UINT64_MAX},
        {"99999999999999999999999999999999999999", true, UINT64_MAX},
        {"Sun, 06 Nov 1994 08:49:37 GMT", true, 0},
        {"Sun, 06 Nov 1994 08:49:47 GMT", true, 10000},
        {"Sun, 06 Nov 1994 08:49:27 GMT", true, 0},
        {"Thu, 01 Jan 1970 00:00:00 GMT", true, 0},
        {"Fri, 31 Dec 9999 23:59:59 GMT", true, 253402300799000 - THEN},
        {"", false, 0},
        {"-1", false, 0},
        {"-120", false, 0},
        {"+5", false, 0},
        {"1.5", false, 0},
        {"1e3", false, 0},
        {"0x10", false, 0},
        {"5 6", false, 0},
        {"5s", false, 0},
        {"soon", false, 0},
        {"Sun, 06 Nov 1994", false, 0},
        {"Sun, 99 Nov 1994 08:49:37 GMT", false, 0},
        {"1994-11-06T08:49:47Z", false, 0},
        {"\xff\xfe", false, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t wait_ms = 0;
        assert_int_equal(
            lk_retry_after_ms(latchkey_slice(rows[i].value), THEN, &wait_ms),
            rows[i].valid);
        if (rows[i].valid) {
            assert_true(wait_ms == rows[i].wait_ms);
        }
    }
}

static uint64_t asked(const char *headers, uint64_t most_ms)
{
    struct lk_target target = {.retry_after_max_ms = most_ms};

    return lk_asked_wait_ms(&target, latchkey_slice(headers), THEN);
}

static void what_an_answer_asks_for_is_cut_to_the_bound(void **state)
{
    assert_int_equal(asked("Retry-After: 5\r\n", 60000), 5000);
    assert_int_equal(asked("X: y\r\nretry-after:5\r\n", 60000), 5000);
    assert_int_equal(asked("Retry-After: 3600\r\n", 60000), 60000);
    assert_int_equal(asked("Retry-After: 999999999999999999999\r\n", 60000),
                     60000);
    assert_int_equal(asked("Retry-After: soon\r\n", 60000), 0);
    assert_int_equal(asked("", 60000), 0);
}

static void a_date_means_the_clock_of_who_wrote_it(void **state)
{
    assert_int_equal(asked("Date: Sun, 06 Nov 1994 09:00:00 GMT\r\n"
                           "Retry-After: Sun, 06 Nov 1994 09:00:30 GMT\r\n",
                           UINT64_MAX),
                     30000);
    assert_int_equal(asked("Date: yesterday\r\n"
                           "Retry-After: Sun, 06 Nov 1994 08:49:39 GMT\r\n",
                           UINT64_MAX),
                     2000);
}

static void a_job_waits_as_long_as_it_was_asked_to_and_not_less(void **state)
{
    struct lk_target target = {.backoff_ms = 1000, .backoff_max_ms = 8000};
    struct lk_chance chance = seeded();

    for (int i = 0; i < 1000; i++) {
        uint64_t random = lk_chance_next(&chance);
        uint64_t jitter = lk_backoff_ms(1000, 8000, 3, random);
        uint64_t delay = lk_retry_delay_ms(&target, 3, 2000, random);
        assert_int_equal(delay, jitter > 2000 ? jitter : 2000);
        assert_int_equal(lk_retry_delay_ms(&target, 3, 0, random), jitter);
    }
}

static void a_job_is_given_up_after_its_attempts_or_for_its_age(void **state)
{
    struct lk_target target = {.attempts = 3, .max_age_ms = 1000};

    assert_false(lk_is_given_up(&target, 2, 999));
    assert_true(lk_is_given_up(&target, 3, 0));
    assert_true(lk_is_given_up(&target, 4, 0));
    assert_true(lk_is_given_up(&target, 1, 1000));
    target.max_age_ms = 0;
    assert_false(lk_is_given_up(&target, 2, UINT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_wait_is_drawn_from_all_of_its_window),
        cmocka_unit_test(the_window_stops_growing_at_its_bound),
        cmocka_unit_test(the_ends_of_the_window_are_part_of_it),
        cmocka_unit_test(two_couriers_do_not_draw_the_same),
        cmocka_unit_test(retry_after_is_read_in_every_spelling),
        cmocka_unit_test(what_an_answer_asks_for_is_cut_to_the_bound),
        cmocka_unit_test(a_date_means_the_clock_of_who_wrote_it),
        cmocka_unit_test(a_job_waits_as_long_as_it_was_asked_to_and_not_less),
        cmocka_unit_test(a_job_is_given_up_after_its_attempts_or_for_its_age),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
