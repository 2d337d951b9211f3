/*
 * test_powerloss.c - power is lost at any call to the disk, and everything
 * acknowledged is still there (C20, C23). LK_SEEDS sets how many disks die;
 * LK_SEED runs a single one.
 */
#include "tests/store/model.h"

enum { SEEDS = 300, FAILING_SEEDS = 100, CYCLES = 3, BATCHES = 24 };

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);

    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* What else a disk does to its store until the power goes. */
enum disk_kind { DISK_HONEST, DISK_FAILING, DISK_LYING };

/* Some of the next calls fail, mostly syncs. */
static void plan_failure(struct model *model, enum disk_kind kind)
{
    static const enum disk_call calls[] = {DISK_SYNC, DISK_SYNC, DISK_SYNC,
                                           DISK_WRITE, DISK_TRUNCATE};

    if (kind == DISK_FAILING) {
        disk.failure =
            (struct disk_failure){.call = calls[pick(model, 5)],
                                  .target = (enum disk_target)pick(model, 3),
                                  .after = pick(model, pick(model, 2) ? 4 : 16),
                                  .count = 1 + pick(model, 2)};
    }
}

/* Power may go while the store is opened, and calls may fail; then it is
 * opened again. */
static void open_on_disk(struct model *model, enum disk_kind kind)
{
    if (pick(model, 4) == 0) {
        disk.calls_left = 1 + pick(model, 40);
    }
    plan_failure(model, kind);
    for (int tries = 0; bed_try_open(model->bed) != LK_OK; tries++) {
        if (tries == 8 || (!disk.off && kind != DISK_FAILING)) {
            violate(model, "the store does not open");
            return;
        }
        if (disk.off) {
            disk_power_on();
        }
    }
    disk.calls_left = 0;
}

/* kill -9: whatever was written stays in the page cache, synced or not. */
static void kill_and_open(struct model *model)
{
    disk.killed = true;
    bed_close(model->bed);
    disk.killed = false;
    for (int tries = 0; tries < 8 && !disk.off; tries++) {
        if (bed_try_open(model->bed) == LK_OK) {
            return;
        }
    }
    if (!disk.off) {
        violate(model, "the store does not open after kill -9");
    }
}

/* Until it has recovered, or the power is gone. Nobody hears anything in
 * the meantime. */
static void recover_on_disk(struct model *model)
{
    struct bed *bed = model->bed;

    if (pick(model, 2)) {
        disk.calls_left = 1 + pick(model, 16);
    }
    do {
        if (pick(model, 3) == 0) {
            kill_and_open(model);
        } else {
            turn(bed);
        }
    } while (bed->store && !disk.off && !stats_of(bed).available);
    if (bed->store && !disk.off) {
        observe_all(model);
    }
}

/* Works until the power goes; at the latest after BATCHES batches. */
static void work_until_dark(struct model *model, enum disk_kind kind)
{
    struct bed *bed = model->bed;

    disk.calls_left = 1 + pick(model, pick(model, 2) ? 60 : 600);
    for (int i = 0; i < BATCHES && bed->store && !disk.off; i++) {
        if (!disk.failure.count || pick(model, 8) == 0) {
            plan_failure(model, kind);
        }
        uint64_t failed = disk.failed;
        send_random(model);
        if (pick(model, 4) == 0) {
            pause_ms(1);
        }
        if (!disk.off && disk.failed != failed) {
            recover_on_disk(model);
        }
    }
    disk_power_off();
    bed_close(bed);
    disk_power_on();
}

/* One disk: empty, a few lives, each ended by power loss. */
static void live_and_die(struct model *model, struct bed *bed, uint64_t seed,
                         enum disk_kind kind)
{
    empty_directory(bed);
    disk_reset(seed);
    model_start(model, bed, seed);
    disk.lies = kind == DISK_LYING;
    model->loud = kind != DISK_LYING;
    bed->config.checkpoint_pages = 4 + (unsigned)pick(model, 20);
    bed->config.reap_rows = 8;
    for (int cycle = 0; cycle <= CYCLES && !model->violations; cycle++) {
        open_on_disk(model, kind);
        if (!bed->store) {
            break;
        }
        disk.failure.count = 0;
        if (cycle) {
            observe_all(model);
            probe_all(model);
            verify_store(model);
        }
        if (cycle < CYCLES) {
            work_until_dark(model, kind);
        }
    }
    bed_close(bed);
}

static void try_disks(struct bed *bed, enum disk_kind kind, uint64_t seeds)
{
    struct model *model = model_on_disk(bed);
    uint64_t first = number_from("LK_SEED", 1);
    uint64_t heard = 0, refused = 0, log_syncs = 0, db_syncs = 0, failed = 0;

    seeds = getenv("LK_SEED") ? 1 : number_from("LK_SEEDS", seeds);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        live_and_die(model, bed, seed, kind);
        if (model->violations) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, model->first);
        }
        heard += model->acknowledged;
        refused += model->refused;
        log_syncs += disk.log_syncs;
        db_syncs += disk.db_syncs;
        failed += disk.failed;
    }
    print_message("%llu disks: %llu acknowledged, %llu refused, %llu syncs, "
                  "%llu checkpoints, %llu calls failed\n",
                  (unsigned long long)seeds, (unsigned long long)heard,
                  (unsigned long long)refused, (unsigned long long)log_syncs,
                  (unsigned long long)db_syncs, (unsigned long long)failed);
    /* Otherwise the test has not tested what it says. */
    assert_true(refused > 0);
    assert_true(log_syncs > seeds * 10);
    assert_true(db_syncs > seeds);
    assert_true((failed > seeds) == (kind == DISK_FAILING));
    free(model);
}

static void power_loss_at_any_moment_loses_nothing_acknowledged(void **state)
{
    try_disks(*state, DISK_HONEST, SEEDS);
}

/*
 * After a sync that failed the page cache shows what the disk may not have,
 * also to a process that is started later. Power loss then loses nothing
 * acknowledged either, and what is left is a whole database.
 */
static void power_loss_after_failed_syncs_loses_nothing_acknowledged(
    void **state)
{
    try_disks(*state, DISK_FAILING, FAILING_SEEDS);
}

/* The test can fail: a disk that lies about syncs is found out. */
static void a_disk_that_lies_is_found_out(void **state)
{
    struct bed *bed = *state;
    struct model *model = model_on_disk(bed);
    unsigned caught = 0;

    for (uint64_t seed = 1; seed <= 30; seed++) {
        live_and_die(model, bed, seed, DISK_LYING);
        caught += model->violations != 0;
    }
    print_message("%u of 30 lies found out\n", caught);
    assert_true(caught > 0);
    free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            power_loss_at_any_moment_loses_nothing_acknowledged, bed_setup,
            bed_teardown),
        cmocka_unit_test_setup_teardown(
            power_loss_after_failed_syncs_loses_nothing_acknowledged, bed_setup,
            bed_teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_lies_is_found_out,
                                        bed_setup, bed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
