/* metrics.c - histograms with a bounded error, and counters. */
#include "daemon/metrics.h"

enum { STEP_BITS = 4 };

/*
 * Values below 32 have a slot each. From there on the highest bit chooses a
 * row of 16 slots and the four bits below it the slot within the row.
 */
static size_t slot_of(uint64_t value)
{
    if (value < 2 * LK_HISTOGRAM_STEPS) {
        return (size_t)value;
    }
    unsigned high = 63 - (unsigned)__builtin_clzll(value);
    unsigned shift = high - STEP_BITS;

    return (size_t)shift * LK_HISTOGRAM_STEPS + (size_t)(value >> shift);
}

static uint64_t slot_end(size_t slot)
{
    if (slot < 2 * LK_HISTOGRAM_STEPS) {
        return slot;
    }
    unsigned shift = (unsigned)(slot / LK_HISTOGRAM_STEPS) - 1;
    uint64_t base = slot % LK_HISTOGRAM_STEPS + LK_HISTOGRAM_STEPS;

    return (base << shift) + ((UINT64_C(1) << shift) - 1);
}

void lk_histogram_add(struct lk_histogram *histogram, uint64_t value)
{
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) {
        histogram->max = value;
    }
    histogram->slots[slot_of(value)]++;
}

uint64_t lk_histogram_quantile(const struct lk_histogram *histogram,
                               double share)
{
    double wanted = share * (double)histogram->count;
    uint64_t seen = 0;

    for (size_t slot = 0; slot < LK_HISTOGRAM_SLOTS; slot++) {
        seen += histogram->slots[slot];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t end = slot_end(slot);
            return end < histogram->max ? end : histogram->max;
        }
    }
    return histogram->max;
}

void lk_metrics_claim(struct lk_metrics *metrics, enum lk_verdict verdict,
                      bool waited, uint64_t us)
{
    metrics->claims[verdict]++;
    if (!waited) {
        lk_histogram_add(&metrics->claim_us, us);
    }
}
