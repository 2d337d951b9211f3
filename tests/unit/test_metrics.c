/* Histograms and counters of the daemon (C34). */
#include "daemon/numbers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void an_empty_histogram_says_zero(void **state)
{
    struct lk_histogram histogram = {0};

    assert_int_equal(lk_histogram_quantile(&histogram, 0.5), 0);
    assert_int_equal(lk_histogram_quantile(&histogram, 1), 0);
}

static void small_values_are_exact(void **state)
{
    struct lk_histogram histogram = {0};

    for (uint64_t value = 1; value <= 20; value++) {
        lk_histogram_add(&histogram, value);
    }
    assert_int_equal(lk_histogram_quantile(&histogram, 0), 1);
    assert_int_equal(lk_histogram_quantile(&histogram, 0.5), 10);
    assert_int_equal(lk_histogram_quantile(&histogram, 0.95), 19);
    assert_int_equal(lk_histogram_quantile(&histogram, 1), 20);
    assert_int_equal(histogram.count, 20);
    assert_int_equal(histogram.sum, 210);
    assert_int_equal(histogram.max, 20);
}

static void a_percentile_is_at_most_a_sixteenth_too_high(void **state)
{
    enum { MANY = 10000 };
    static const double shares[] = {0.01, 0.5, 0.9, 0.99, 0.999, 1};
    static uint64_t values[MANY];
    struct lk_histogram histogram = {0};
    unsigned seed = 11;

    for (int i = 0; i < MANY; i++) {
        values[i] = (uint64_t)rand_r(&seed) >> rand_r(&seed) % 31;
        lk_histogram_add(&histogram, values[i]);
    }
    qsort(values, MANY, sizeof(values[0]), compare);
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        uint64_t exact = values[(size_t)(shares[i] * MANY) - 1];
        uint64_t told = lk_histogram_quantile(&histogram, shares[i]);
        assert_true(told >= exact);
        assert_true(told <= exact + exact / 16);
    }
}

static void the_greatest_number_has_a_slot(void **state)
{
    struct lk_histogram histogram = {0};

    lk_histogram_add(&histogram, UINT64_MAX);
    assert_true(lk_histogram_quantile(&histogram, 0.5) == UINT64_MAX);
    assert_int_equal(histogram.slots[LK_HISTOGRAM_SLOTS - 1], 1);
}

static void a_claim_that_waited_is_counted_but_not_timed(void **state)
{
    struct lk_metrics metrics = {0};

    lk_metrics_claim(&metrics, LK_VERDICT_NEW, false, 100);
    lk_metrics_claim(&metrics, LK_VERDICT_REPLAY, true, 5000000);
    assert_int_equal(metrics.claims[LK_VERDICT_NEW], 1);
    assert_int_equal(metrics.claims[LK_VERDICT_REPLAY], 1);
    assert_int_equal(metrics.claims[LK_VERDICT_INFLIGHT], 0);
    assert_int_equal(metrics.claim_us.count, 1);
    assert_int_equal(metrics.claim_us.max, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_histogram_says_zero),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(a_percentile_is_at_most_a_sixteenth_too_high),
        cmocka_unit_test(the_greatest_number_has_a_slot),
        cmocka_unit_test(a_claim_that_waited_is_counted_but_not_timed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
