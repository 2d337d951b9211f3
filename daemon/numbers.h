/* numbers.h - what the daemon counts about itself, and how that is read. */
#ifndef LK_NUMBERS_H
#define LK_NUMBERS_H

#include "daemon/numbers_table.h"
#include "store/store.h"

struct lk_server;
struct lk_config;

/* ---- Histograms ---------------------------------------------------------- */

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

/* ---- Counters ------------------------------------------------------------ */

enum { LK_VERDICT_COUNT = LK_VERDICT_EXISTS + 1, LK_COMMANDS_MAX = 64 };

/* Counted on the loop thread alone. */
struct lk_metrics {
    uint64_t claims[LK_VERDICT_COUNT]; /* by verdict */
    uint64_t claims_unavailable;       /* no verdict */
    struct lk_histogram claim_us;      /* from read to reply, no WAIT */
    uint64_t commands;
    uint64_t by_command[LK_COMMANDS_MAX]; /* by lk_command_word */
    uint64_t peeked;                      /* replies without the store thread */
    uint64_t errors;                      /* error replies */
    uint64_t connections;                 /* ever accepted */
    uint64_t refused;                     /* over the limit */
    uint64_t cut;                         /* closed by us: slow, idle, bad */
    uint64_t auth_failed;
    uint64_t bytes_in;
    uint64_t bytes_out;
    uint64_t waits;  /* claims parked */
    uint64_t pushes; /* messages to AWAIT */
    uint64_t stalls; /* reading stopped because a queue was full */
};

/* `us` 0 to UINT64_MAX; a claim that waited is counted but not timed. */
void lk_metrics_claim(struct lk_metrics *metrics, enum lk_verdict verdict,
                      bool waited, uint64_t us);

/* Counted by the batcher. */
struct lk_batcher_stats {
    struct lk_histogram ops; /* in a batch */
    struct lk_histogram us;  /* to decide a batch and make it durable */
    size_t waiting;          /* not yet in a batch */
};

/* ---- The table of named numbers ------------------------------------------ */

enum lk_number {
#define X(section, name, kind, place, help, value) LK_NUMBER_##name,
    LK_NUMBER_ROWS
#undef X
        LK_NUMBERS
};

enum lk_number_kind {
    LK_GAUGE,   /* how it is now */
    LK_COUNTER, /* since the start; only rises */
};

/* INFO has them all. STATS begins with what needs a person. */
enum lk_number_place { LK_INFO_ONLY, LK_IN_STATS, LK_STATS_FIRST };

/* What the numbers are read from, all of one moment. */
struct lk_numbers {
    struct lk_server *server;
    const struct lk_config *config;
    const struct lk_metrics *metrics;
    struct lk_store_stats store;
    struct lk_batcher_stats batches;
    uint64_t up_ms;
};

struct lk_number_row {
    const char *section; /* of INFO */
    const char *name;
    enum lk_number_kind kind;
    enum lk_number_place place;
    const char *help;
    uint64_t (*read)(const struct lk_numbers *numbers);
};

/* Row `index`, which is an enum lk_number; NULL past the end. */
const struct lk_number_row *lk_number_row(size_t index);
/* Loop thread. */
void lk_numbers_take(struct lk_server *server, struct lk_numbers *numbers);
uint64_t lk_number(const struct lk_numbers *numbers, enum lk_number which);
/* The text of INFO; empty `section`: all. */
LK_MUST_CHECK enum lk_status lk_info_write(struct lk_server *server,
                                           struct lk_slice section,
                                           struct lk_buf *text);

#endif
