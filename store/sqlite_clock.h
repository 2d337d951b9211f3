/*
 * sqlite_clock.h - the embedded store's clock, which a jump of the wall clock
 * does not move.
 *
 * Time is a base plus CLOCK_BOOTTIME since the start. The base is
 *  - within the same boot: the time last stored plus the boot time that has
 *    really passed since, independent of the wall clock;
 *  - after a reboot: the wall clock, if it is within `jump_ms` of the time
 *    last stored; else the time last stored: nothing expires early, and the
 *    clock is *held* until an operator accepts the wall clock.
 * It is never below the highest time stored.
 */
#ifndef LK_SQLITE_CLOCK_H
#define LK_SQLITE_CLOCK_H

#include "latchkey.h"

#include <stdatomic.h>

enum { LK_BOOT_ID = 40 };

/* A moment as it is stored, to be compared with after a restart. */
struct lk_moment {
    uint64_t at_ms;
    uint64_t boottime_ms;
    uint64_t held; /* 1: no operator has accepted the clock yet */
    char boot_id[LK_BOOT_ID];
};

struct lk_clock {
    atomic_uint_fast64_t base_ns; /* time at boottime 0. In nanoseconds: the
                                     sum is cut to milliseconds, not its parts,
                                     which would put it behind the wall clock */
    atomic_bool held;
    char boot_id[LK_BOOT_ID];
};

/*
 * `last` is the moment last stored, zero for a new store; `highest_ms` the
 * highest time found in the store.
 */
void lk_clock_start(struct lk_clock *clock, const struct lk_moment *last,
                    uint64_t highest_ms, uint64_t jump_ms);
/* Any thread. Never goes back. */
uint64_t lk_clock_now(const struct lk_clock *clock);
struct lk_moment lk_clock_moment(const struct lk_clock *clock);
/* An operator vouches for the wall clock; it still never goes back. */
void lk_clock_accept(struct lk_clock *clock);

#endif
