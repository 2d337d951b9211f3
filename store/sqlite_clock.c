/* sqlite_clock.c - the embedded store's clock; sqlite_clock.h says how it
 * works. */
#include "store/sqlite_clock.h"
#include "lib/time.h"
#include "store/fault.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MS_NS UINT64_C(1000000)

enum { TRIES = 16, NEAR_NS = 20000 };

/*
 * The wall clock as a base. The two clocks are read one after the
 * other, and the process may be put aside in between: the closest of a few
 * readings counts. BOOTTIME is read first, so that the base is never too low:
 * nothing that follows a look at the wall clock seems to come before it.
 */
static uint64_t wall_base_ns(void)
{
    uint64_t nearest_ns = UINT64_MAX;
    uint64_t base_ns = 0;

    for (int i = 0; i < TRIES && nearest_ns > NEAR_NS; i++) {
        uint64_t before_ns = lk_boottime_ns();
        uint64_t wall_ns = lk_wall_ns();
        uint64_t apart_ns = lk_boottime_ns() - before_ns;
        if (apart_ns < nearest_ns) {
            nearest_ns = apart_ns;
            base_ns = wall_ns - before_ns;
        }
    }
    return base_ns + (uint64_t)lk_fault_wall_offset_ms() * MS_NS;
}

/* Empty if the system does not have one: then no two boots are the same. */
static void read_boot_id(char boot_id[LK_BOOT_ID])
{
    memset(boot_id, 0, LK_BOOT_ID);
    const char *given = lk_fault_boot_id();
    if (given) {
        strncpy(boot_id, given, LK_BOOT_ID - 1);
        return;
    }
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t len = read(fd, boot_id, LK_BOOT_ID - 1);
    close(fd);
    if (len <= 0) {
        boot_id[0] = '\0';
        return;
    }
    boot_id[strcspn(boot_id, "\n")] = '\0';
}

static bool same_boot(const struct lk_clock *clock,
                      const struct lk_moment *last, uint64_t boottime)
{
    return clock->boot_id[0] != '\0' &&
           !strcmp(clock->boot_id, last->boot_id) &&
           last->boottime_ms <= boottime;
}

void lk_clock_start(struct lk_clock *clock, const struct lk_moment *last,
                    uint64_t highest_ms, uint64_t jump_ms)
{
    uint64_t base_ns = wall_base_ns();
    uint64_t boottime_ns = lk_boottime_ns();
    uint64_t wall_ms = (base_ns + boottime_ns) / MS_NS;
    uint64_t floor_ms = last->at_ms > highest_ms ? last->at_ms : highest_ms;
    bool held = false;

    read_boot_id(clock->boot_id);
    if (last->at_ms && same_boot(clock, last, boottime_ns / MS_NS)) {
        base_ns = (last->at_ms - last->boottime_ms) * MS_NS;
        held = last->held != 0;
    } else if (floor_ms) {
        /* A little behind is drift; time then just waits at the floor. */
        held = wall_ms > floor_ms ? wall_ms - floor_ms > jump_ms
                                  : floor_ms - wall_ms > jump_ms;
        base_ns = held ? floor_ms * MS_NS - boottime_ns : base_ns;
    }
    if ((base_ns + boottime_ns) / MS_NS < floor_ms) {
        base_ns = floor_ms * MS_NS - boottime_ns;
    }
    atomic_store(&clock->base_ns, base_ns);
    atomic_store(&clock->held, held);
}

uint64_t lk_clock_now(const struct lk_clock *clock)
{
    uint64_t base_ns =
        atomic_load_explicit(&clock->base_ns, memory_order_relaxed);

    return (base_ns + lk_boottime_ns()) / MS_NS;
}

/* Rounded up: a restart must not lose what is left of a millisecond. */
struct lk_moment lk_clock_moment(const struct lk_clock *clock)
{
    struct lk_moment moment = {.boottime_ms = lk_boottime_ns() / MS_NS};
    uint64_t base_ns = atomic_load(&clock->base_ns);

    moment.at_ms = moment.boottime_ms + (base_ns + MS_NS - 1) / MS_NS;
    moment.held = atomic_load(&clock->held);
    memcpy(moment.boot_id, clock->boot_id, LK_BOOT_ID);
    return moment;
}

void lk_clock_accept(struct lk_clock *clock)
{
    uint64_t base_ns = wall_base_ns();

    if (base_ns > atomic_load(&clock->base_ns)) {
        atomic_store(&clock->base_ns, base_ns);
    }
    atomic_store(&clock->held, false);
}
