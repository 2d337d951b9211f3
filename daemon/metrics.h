/* metrics.h - what the daemon counts about itself. */
#ifndef LK_METRICS_H
#define LK_METRICS_H

#include "latchkey.h"

/*
 * A histogram of whole numbers: exact up to 31, then 16 steps for each power
 * of two, so that a percentile is at most 1/16 too high.
 */
enum { LK_HISTOGRAM_STEPS = 16, LK_HISTOGRAM_SLOTS = 61 * LK_HISTOGRAM_STEPS };

struct lk_histogram {
    uint64_t count;
    uint64_t sum;
    uint64_t max;
    uint64_t slots[LK_HISTOGRAM_SLOTS];
};

void lk_histogram_add(struct lk_histogram *histogram, uint64_t value);
/* The smallest value that `share` (0 to 1) of all are not above, rounded up
 * to the end of its slot but never above the greatest; 0 if there is none. */
uint64_t lk_histogram_quantile(const struct lk_histogram *histogram,
                               double share);

enum { LK_VERDICT_COUNT = LK_VERDICT_EXISTS + 1, LK_COMMANDS_MAX = 64 };

/* Counted on the loop thread alone. */
struct lk_metrics {
    uint64_t claims[LK_VERDICT_COUNT]; /* by verdict */
    uint64_t claims_unavailable;       /* no verdict */
    struct lk_histogram claim_us;      /* read until answered, no WAIT */
    uint64_t commands;
    uint64_t by_command[LK_COMMANDS_MAX]; /* by row of the command table */
    uint64_t peeked;      /* answered without the store thread */
    uint64_t errors;      /* error replies */
    uint64_t connections; /* ever accepted */
    uint64_t refused;     /* over the limit */
    uint64_t cut;         /* closed by us: slow, idle, bad */
    uint64_t auth_failed;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t waits;  /* claims parked */
    uint64_t pushes; /* AWAIT told */
    uint64_t stalls; /* reading stopped because a queue was full */
};

/* `us` 0 to UINT64_MAX; a claim that waited is counted but not timed. */
void lk_metrics_claim(struct lk_metrics *metrics, enum lk_verdict verdict,
                      bool waited, uint64_t us);

#endif
