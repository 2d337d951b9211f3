/*
 * test_powerloss.c - power is lost at any call to the disk, and everything
 * acknowledged is still there (C20, C23). LK_SEEDS sets how many disks die;
 * LK_SEED runs a single one.
 */
#include "tests/store/model.h"

enum { SEEDS = 300, CYCLES = 3, BATCHES = 24 };

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *value = getenv(name);

    return value ? strtoull(value, NULL, 10) : otherwise;
}

/* Power may go while the store is opened; then it is opened again. */
static void open_on_disk(struct model *model)
{
    if (pick(model, 4) == 0) {
        disk.calls_left = 1 + pick(model, 40);
    }
    if (bed_try_open(model->bed) == LK_OK) {
        disk.calls_left = 0;
        return;
    }
    if (!disk.off) {
        violate(model, "the store does not open");
    }
    disk_power_on();
    if (bed_try_open(model->bed) != LK_OK) {
        violate(model, "the store does not open after power loss");
    }
}

/* Works until the power goes; at the latest after BATCHES batches. */
static void work_until_dark(struct model *model)
{
    disk.calls_left = 1 + pick(model, pick(model, 2) ? 60 : 600);
    for (int i = 0; i < BATCHES && !disk.off; i++) {
        send_random(model);
        if (pick(model, 4) == 0) {
            pause_ms(1);
        }
    }
    disk_power_off();
    bed_close(model->bed);
    disk_power_on();
}

/* One disk: empty, a few lives, each ended by power loss. */
static void live_and_die(struct model *model, struct bed *bed, uint64_t seed,
                         bool lies)
{
    empty_directory(bed);
    disk_reset(seed);
    model_start(model, bed, seed);
    disk.lies = lies;
    model->loud = !lies;
    bed->config.checkpoint_pages = 4 + (unsigned)pick(model, 20);
    bed->config.reap_rows = 8;
    for (int cycle = 0; cycle <= CYCLES && !model->violations; cycle++) {
        open_on_disk(model);
        if (!bed->store) {
            break;
        }
        if (cycle) {
            observe_all(model);
            probe_all(model);
            verify_store(model);
        }
        if (cycle < CYCLES) {
            work_until_dark(model);
        }
    }
    bed_close(bed);
}

static void power_loss_at_any_moment_loses_nothing_acknowledged(void **state)
{
    struct bed *bed = *state;
    struct model *model = model_on_disk(bed);
    uint64_t seeds = number_from("LK_SEEDS", SEEDS);
    uint64_t first = number_from("LK_SEED", 1);
    uint64_t heard = 0, refused = 0, log_syncs = 0, db_syncs = 0;

    if (getenv("LK_SEED")) {
        seeds = 1;
    }
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        live_and_die(model, bed, seed, false);
        if (model->violations) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, model->first);
        }
        heard += model->acknowledged;
        refused += model->refused;
        log_syncs += disk.log_syncs;
        db_syncs += disk.db_syncs;
    }
    print_message("%llu disks: %llu acknowledged, %llu refused, %llu syncs, "
                  "%llu checkpoints\n",
                  (unsigned long long)seeds, (unsigned long long)heard,
                  (unsigned long long)refused, (unsigned long long)log_syncs,
                  (unsigned long long)db_syncs);
    /* Otherwise the test has not tested what it says. */
    assert_true(refused > 0);
    assert_true(log_syncs > seeds * 10);
    assert_true(db_syncs > seeds);
    free(model);
}

/* The test can fail: a disk that lies about syncs is found out. */
static void a_disk_that_lies_is_found_out(void **state)
{
    struct bed *bed = *state;
    struct model *model = model_on_disk(bed);
    unsigned caught = 0;

    for (uint64_t seed = 1; seed <= 30; seed++) {
        live_and_die(model, bed, seed, true);
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
        cmocka_unit_test_setup_teardown(a_disk_that_lies_is_found_out,
                                        bed_setup, bed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
