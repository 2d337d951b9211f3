/*
 * test_clock.c - a wall clock that jumps opens no claim early and expires no
 * answer early (C24). The jumps come from the fault file, so that the builds
 * without fault points can only skip them.
 */
#include "store/sqlite_clock.h"
#include "tests/store/fixture.h"

#include <time.h>

#ifdef LK_FAULTS

/* A claim and an answer, both with an hour to go, in the boot "one". */
static struct bed *begin(void **state)
{
    struct bed *bed = *state;
    struct lk_op op;

    bed->config.clock_jump_ms = HOUR_MS;
    use_fault_file(bed, "boot one\n");
    op = claim_of(bed, "running", "a");
    op.lock_ms = HOUR_MS;
    say(bed, op, LK_VERDICT_NEW);
    finish_new(bed, "done", "answer", HOUR_MS);
    return bed;
}

static void expect_nothing_moved(struct bed *bed, uint64_t before)
{
    turn(bed);
    struct lk_store_stats stats = stats_of(bed);
    assert_true(stats.now_ms >= before);
    assert_true(stats.now_ms < before + HOUR_MS / 2);
    say(bed, claim_of(bed, "running", "b"), LK_VERDICT_INFLIGHT);
    say(bed, claim_of(bed, "done", "b"), LK_VERDICT_REPLAY);
}

static void expect_all_is_over(struct bed *bed)
{
    turn(bed);
    /* Never NEW: whoever held it may have done its work. */
    say(bed, claim_of(bed, "running", "b"), LK_VERDICT_UNCERTAIN);
    say(bed, claim_of(bed, "done", "b"), LK_VERDICT_NEW);
}

static void a_jump_while_running_moves_nothing(void **state)
{
    struct bed *bed = begin(state);
    uint64_t before = stats_of(bed).now_ms;

    set_faults("boot one\nwall +18000000\n");
    expect_nothing_moved(bed, before);
    set_faults("boot one\nwall -18000000\n");
    expect_nothing_moved(bed, before);
}

static void a_jump_across_a_restart_in_the_same_boot_moves_nothing(void **state)
{
    struct bed *bed = begin(state);
    uint64_t before = stats_of(bed).now_ms;

    bed_close(bed);
    set_faults("boot one\nwall +18000000\n");
    bed_open(bed);
    assert_false(stats_of(bed).clock_held);
    expect_nothing_moved(bed, before);
    bed_close(bed);
    set_faults("boot one\nwall -18000000\n");
    bed_open(bed);
    assert_false(stats_of(bed).clock_held);
    expect_nothing_moved(bed, before);
}

static void a_plausible_time_after_a_reboot_is_believed(void **state)
{
    struct bed *bed = begin(state);
    uint64_t before = stats_of(bed).now_ms;

    bed_close(bed);
    set_faults("boot two\nwall +1200000\n");
    bed_open(bed);
    assert_false(stats_of(bed).clock_held);
    assert_true(stats_of(bed).now_ms >= before + 1190000);
    say(bed, claim_of(bed, "running", "b"), LK_VERDICT_INFLIGHT);
    say(bed, claim_of(bed, "done", "b"), LK_VERDICT_REPLAY);
}

static void hold_and_accept(struct bed *bed, const char *faults, bool forward)
{
    uint64_t before = stats_of(bed).now_ms;

    bed_close(bed);
    set_faults(faults);
    bed_open(bed);
    assert_true(stats_of(bed).clock_held);
    expect_nothing_moved(bed, before);
    /* A restart is no operator. */
    bed_reopen(bed);
    assert_true(stats_of(bed).clock_held);
    expect_nothing_moved(bed, before);
    assert_int_equal(bed->store->class->accept_clock(bed->store,
                                                     LK_SLICE("oncall"),
                                                     LK_SLICE("new battery")),
                     LK_OK);
    assert_false(stats_of(bed).clock_held);
    assert_true(stats_of(bed).now_ms >= before);
    if (forward) {
        expect_all_is_over(bed);
    } else {
        expect_nothing_moved(bed, before);
    }
    bed_reopen(bed);
    assert_false(stats_of(bed).clock_held);
    assert_true(stats_of(bed).now_ms >= before);
}

static void a_jump_ahead_after_a_reboot_waits_for_an_operator(void **state)
{
    hold_and_accept(begin(state), "boot two\nwall +18000000\n", true);
}

static void a_jump_back_after_a_reboot_waits_for_an_operator(void **state)
{
    hold_and_accept(begin(state), "boot two\nwall -18000000\n", false);
}

/* Two reboots, one of them with a wrong clock. */
static void time_never_goes_below_what_was_stored(void **state)
{
    struct bed *bed = begin(state);
    uint64_t before = stats_of(bed).now_ms;

    bed_close(bed);
    set_faults("boot two\nwall -18000000\n");
    bed_open(bed);
    struct lk_outcome out = say(bed, claim_of(bed, "k", "a"), LK_VERDICT_NEW);
    assert_true(out.now_ms >= before);
    bed_close(bed);
    set_faults("boot three\nwall -36000000\n");
    bed_open(bed);
    assert_true(stats_of(bed).now_ms >= out.now_ms);
    bed_close(bed);
    set_faults("boot four\n");
    bed_open(bed);
    assert_true(stats_of(bed).now_ms >= out.now_ms);
    assert_false(stats_of(bed).clock_held);
}

static bool see_clock(void *context, const struct lk_audit_entry *entry)
{
    bool *seen = context;

    *seen |= memmem(entry->action.data, entry->action.len, "clock", 5) &&
             latchkey_slice_equal(entry->who, LK_SLICE("oncall")) &&
             latchkey_slice_equal(entry->why, LK_SLICE("new battery"));
    return true;
}

/* C35 */
static void accepting_the_clock_is_audited(void **state)
{
    struct bed *bed = begin(state);
    bool seen = false;

    hold_and_accept(bed, "boot two\nwall +18000000\n", true);
    assert_int_equal(bed->store->class->audit(
                         bed->store, &(struct lk_audit_query){.limit = 100},
                         see_clock, &seen),
                     LK_OK);
    assert_true(seen);
}

/* The jobs and operations that `--since` a moment asks for are those that were
 * made after it. */
static void time_is_never_behind_the_wall_clock(void **state)
{
    struct lk_moment last = {0};
    struct timespec wall;
    struct lk_clock clock;

    (void)state;
    for (int i = 0; i < 2000; i++) {
        lk_clock_start(&clock, &last, 0, HOUR_MS);
        clock_gettime(CLOCK_REALTIME, &wall);
        uint64_t now_ms = lk_clock_now(&clock);
        assert_true(now_ms >= (uint64_t)wall.tv_sec * 1000 +
                                  (uint64_t)wall.tv_nsec / 1000000);
        /* Every other one goes on from where the one before was. */
        last = i % 2 ? (struct lk_moment){0} : lk_clock_moment(&clock);
    }
}

#define IN_BED(test)                                                           \
    cmocka_unit_test_setup_teardown(test, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BED(a_jump_while_running_moves_nothing),
        IN_BED(a_jump_across_a_restart_in_the_same_boot_moves_nothing),
        IN_BED(a_plausible_time_after_a_reboot_is_believed),
        IN_BED(a_jump_ahead_after_a_reboot_waits_for_an_operator),
        IN_BED(a_jump_back_after_a_reboot_waits_for_an_operator),
        IN_BED(time_never_goes_below_what_was_stored),
        IN_BED(accepting_the_clock_is_audited),
        cmocka_unit_test(time_is_never_behind_the_wall_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

/* Without fault points: time does not go back over a restart. */
static void time_goes_on_over_a_restart(void **state)
{
    struct bed *bed = *state;
    uint64_t before = say(bed, claim_of(bed, "k", "a"), LK_VERDICT_NEW).now_ms;

    for (int i = 0; i < 5; i++) {
        bed_reopen(bed);
        uint64_t now = stats_of(bed).now_ms;
        assert_true(now >= before);
        assert_true(now < before + HOUR_MS);
        assert_false(stats_of(bed).clock_held);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(time_goes_on_over_a_restart, bed_setup,
                                        bed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
