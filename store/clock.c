/* clock.c - the embedded store's clock; clock.h says how it works. */
#include "store/clock.h"
#include "store/fault.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t read_clock(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t wall_ms(void)
{
    return read_clock(CLOCK_REALTIME) + (uint64_t)lk_fault_wall_offset_ms();
}

/* Empty if the system does not tell: then no two boots are the same. */
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
    uint64_t boottime = read_clock(CLOCK_BOOTTIME);
    uint64_t wall = wall_ms();
    uint64_t floor = last->at_ms > highest_ms ? last->at_ms : highest_ms;
    uint64_t now = wall;
    bool held = false;

    read_boot_id(clock->boot_id);
    if (last->at_ms && same_boot(clock, last, boottime)) {
        now = last->at_ms + (boottime - last->boottime_ms);
        held = last->held != 0;
    } else if (floor) {
        /* A little behind is drift; time then just waits at the floor. */
        held = wall > floor ? wall - floor > jump_ms : floor - wall > jump_ms;
        now = held ? floor : wall;
    }
    if (now < floor) {
        now = floor;
    }
    atomic_store(&clock->base_ms, now - boottime);
    atomic_store(&clock->held, held);
}

uint64_t lk_clock_now(const struct lk_clock *clock)
{
    return atomic_load_explicit(&clock->base_ms, memory_order_relaxed) +
           read_clock(CLOCK_BOOTTIME);
}

struct lk_moment lk_clock_moment(const struct lk_clock *clock)
{
    struct lk_moment moment = {.boottime_ms = read_clock(CLOCK_BOOTTIME)};

    moment.at_ms = atomic_load(&clock->base_ms) + moment.boottime_ms;
    moment.held = atomic_load(&clock->held);
    memcpy(moment.boot_id, clock->boot_id, LK_BOOT_ID);
    return moment;
}

void lk_clock_accept(struct lk_clock *clock)
{
    uint64_t boottime = read_clock(CLOCK_BOOTTIME);
    uint64_t wall = wall_ms();

    if (wall > atomic_load(&clock->base_ms) + boottime) {
        atomic_store(&clock->base_ms, wall - boottime);
    }
    atomic_store(&clock->held, false);
}
