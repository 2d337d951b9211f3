/* time.h - the clocks of the machine; points in time are in latchkey.h. */
#ifndef LK_TIME_H
#define LK_TIME_H

#include "latchkey.h"

#include <time.h>

/* Since some fixed moment, for deadlines; stands still while the machine
 * sleeps. */
uint64_t lk_monotonic_ns(void);
uint64_t lk_monotonic_ms(void);
/* Since the machine started, the time that it slept included: for leases and
 * for the store's clock. */
uint64_t lk_boottime_ns(void);
uint64_t lk_boottime_ms(void);
/* Since 1970, as the machine believes. It may jump. */
uint64_t lk_wall_ns(void);
uint64_t lk_wall_ms(void);
/* The wall clock `ms` from now, as pthread_cond_timedwait wants it. */
struct timespec lk_wall_after_ms(uint64_t ms);

#endif
