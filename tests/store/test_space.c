/*
 * test_space.c - what has expired gives its space back, though some records
 * among it live on (C25).
 */
#include "tests/store/fixture.h"

enum {
    ROUNDS = 6,
    COUNT = 2000,
    BATCH = 500,
    LASTING = 50, /* one in so many lives on */
    BODY = 600,
};

static struct lk_op ops[BATCH];
static char keys[BATCH][32];

static void name_key(unsigned round, unsigned number, char *key)
{
    snprintf(key, sizeof(keys[0]), "key-%u-%u", round, number);
}

static const char *body_text(void)
{
    static char body[BODY + 1];

    memset(body, 'x', BODY);
    return body;
}

static void expect_all(enum lk_verdict verdict)
{
    for (unsigned i = 0; i < BATCH; i++) {
        expect_verdict(&ops[i], verdict);
        lk_op_clear(&ops[i]);
    }
}

static void run_batch(struct bed *bed, unsigned round, unsigned first)
{
    for (unsigned i = 0; i < BATCH; i++) {
        name_key(round, first + i, keys[i]);
        ops[i] = claim_of(bed, keys[i], "a");
    }
    apply_all(bed, ops, BATCH, true);
    expect_all(LK_VERDICT_NEW);
    for (unsigned i = 0; i < BATCH; i++) {
        uint64_t token = ops[i].out.token;
        bool lasts = (first + i) % LASTING == 0;
        ops[i] = complete_of(bed, keys[i], token, body_text());
        ops[i].ttl_ms = lasts ? HOUR_MS : 1;
    }
    apply_all(bed, ops, BATCH, true);
    expect_all(LK_VERDICT_DONE);
}

/* Until only what lasts is left, and too little is dead for a pass. */
static void reap_all(struct bed *bed, unsigned rounds)
{
    uint64_t give_up = monotonic_ms() + 60000;
    struct lk_store_stats stats = stats_of(bed);

    while (stats.operations > rounds * (COUNT / LASTING) ||
           stats.dead_rows * 8 >= stats.operations) {
        assert_true(monotonic_ms() < give_up);
        pause_ms(1);
        turn(bed);
        stats = stats_of(bed);
    }
}

static uint64_t size_when_closed(struct bed *bed)
{
    struct stat file;

    bed_close(bed);
    assert_int_equal(stat(bed->path, &file), 0);
    bed_open(bed);
    return (uint64_t)file.st_size;
}

static void what_expired_gives_its_space_back(void **state)
{
    struct bed *bed = *state;
    struct lk_response expected = {
        .status = 201,
        .headers = LK_SLICE("Content-Type: text/plain\r\n"),
        .body = text(body_text()),
    };
    uint64_t first = 0, size = 0;
    char key[32];

    if (!is_embedded(bed)) {
        skip();
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < COUNT; i += BATCH) {
            run_batch(bed, round, i);
        }
        reap_all(bed, round + 1);
        size = size_when_closed(bed);
        first = round ? first : size;
        print_message("round %u: %llu KiB\n", round,
                      (unsigned long long)size / 1024);
    }
    assert_true(first > (uint64_t)COUNT * BODY / 2);
    assert_true(size <= first + first / 2);
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned i = 0; i < COUNT; i++) {
            name_key(round, i, key);
            if (i % LASTING == 0) {
                expect_replay(bed, key, &expected);
            } else {
                assert_int_equal(look(bed, key, NULL), LK_STATE_ABSENT);
            }
        }
    }
    expect_clean(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_expired_gives_its_space_back,
                                        bed_setup, bed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
