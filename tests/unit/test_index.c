/* test_index.c - the index, its wheel and the overlay, against plain models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store/index.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 20000, ROUNDS = 400000, START_MS = 1000000 };

static uint64_t seed = 42;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

static struct lk_hash128 hash_of(uint64_t key)
{
    static const uint8_t secret[16] = "index test key";
    struct lk_siphash state;

    lk_siphash_init(&state, secret);
    lk_siphash_update(&state, &key, sizeof(key));
    return lk_siphash_final128(&state);
}

static struct lk_entry entry_of(uint64_t key, uint64_t token,
                                enum lk_state state, uint64_t deadline)
{
    return (struct lk_entry){.hash = hash_of(key),
                             .token = token,
                             .number = token,
                             .state = state,
                             .deadline = deadline};
}

static void put(struct lk_index *index, struct lk_entry entry)
{
    assert_int_equal(lk_index_put(index, &entry), LK_OK);
}

static void the_index_agrees_with_an_array(void **state)
{
    static uint64_t model[KEYS];
    struct lk_index index;
    uint64_t live = 0;

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        uint64_t key = draw(KEYS);
        const struct lk_entry *found = lk_index_find(&index, hash_of(key));
        assert_int_equal(found ? found->token : 0, model[key]);
        if (draw(3) == 0) {
            live -= model[key] != 0;
            model[key] = 0;
            lk_index_remove(&index, hash_of(key));
        } else {
            live += model[key] == 0;
            model[key] = round;
            put(&index, entry_of(key, round, LK_STATE_COMPLETED,
                                 START_MS + draw(1000000000)));
        }
        assert_int_equal(index.count, live);
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        const struct lk_entry *found = lk_index_find(&index, hash_of(key));
        assert_int_equal(found ? found->token : 0, model[key]);
    }
    lk_index_free(&index);
}

static void a_record_costs_at_most_64_bytes(void **state)
{
    struct lk_index index;

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    for (uint64_t key = 0; key < 3000000; key++) {
        put(&index, entry_of(key, key + 1, LK_STATE_COMPLETED,
                             START_MS + 86400000 + key));
    }
    assert_true(index.bytes <= index.count * 64);
    lk_index_free(&index);
}

/* Every entry is due once its deadline has passed, never before, in any order
 * of deadlines from a millisecond to years. */
static void the_wheel_tells_what_is_due_and_nothing_else(void **state)
{
    static uint64_t deadline[KEYS];
    struct lk_index index;
    uint64_t now = START_MS;
    uint64_t left = KEYS;

    assert_int_equal(lk_index_init(&index, now), LK_OK);
    for (uint64_t key = 0; key < KEYS; key++) {
        uint64_t reach = UINT64_C(1) << draw(38);
        deadline[key] = now + draw(reach);
        put(&index,
            entry_of(key, key + 1, LK_STATE_IN_PROGRESS, deadline[key]));
    }
    while (left) {
        struct lk_hash128 due[100];
        bool more = true;
        now += 1 + draw(UINT64_C(1) << draw(36));
        while (more) {
            size_t count = lk_wheel_due(&index, now, due, 100, &more);
            for (size_t i = 0; i < count; i++) {
                const struct lk_entry *entry = lk_index_find(&index, due[i]);
                assert_non_null(entry);
                assert_true(entry->deadline <= now);
                lk_index_remove(&index, due[i]);
                left--;
            }
            more |= count != 0;
        }
        /* Late by less than two ticks at most. */
        for (uint64_t key = 0; key < KEYS; key++) {
            if (deadline[key] + 2 * LK_WHEEL_TICK_MS <= now) {
                assert_null(lk_index_find(&index, hash_of(key)));
            }
        }
    }
    lk_index_free(&index);
}

static void a_new_deadline_moves_an_entry_both_ways(void **state)
{
    struct lk_hash128 due[4];
    struct lk_index index;
    bool more;

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    put(&index, entry_of(1, 1, LK_STATE_COMPLETED, START_MS + 86400000));
    put(&index, entry_of(1, 2, LK_STATE_IN_PROGRESS, START_MS + 100));
    put(&index, entry_of(2, 3, LK_STATE_IN_PROGRESS, START_MS + 100));
    put(&index, entry_of(2, 3, LK_STATE_COMPLETED, START_MS + 86400000));
    put(&index, entry_of(3, 4, LK_STATE_UNCERTAIN, START_MS));
    size_t count = 0;
    do {
        count = lk_wheel_due(&index, START_MS + 1000, due, 4, &more);
    } while (more && !count);
    assert_int_equal(count, 1);
    assert_true(lk_hash128_equal(due[0], hash_of(1)));
    lk_index_free(&index);
}

static void an_overlay_hides_the_index_until_it_is_merged(void **state)
{
    struct lk_overlay overlay = {0};
    struct lk_index index;
    struct lk_entry gone = entry_of(7, 0, LK_STATE_ABSENT, 0);

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    put(&index, entry_of(7, 1, LK_STATE_COMPLETED, START_MS + 5));
    for (uint64_t key = 100; key < 5000; key++) {
        struct lk_entry entry =
            entry_of(key, key, LK_STATE_IN_PROGRESS, START_MS + 5);
        assert_int_equal(lk_overlay_put(&overlay, &entry), LK_OK);
    }
    assert_int_equal(lk_overlay_put(&overlay, &gone), LK_OK);
    assert_null(lk_overlay_find(&overlay, &index, hash_of(7)));
    assert_non_null(lk_index_find(&index, hash_of(7)));
    assert_int_equal(lk_overlay_find(&overlay, &index, hash_of(4999))->token,
                     4999);
    assert_null(lk_index_find(&index, hash_of(4999)));
    assert_int_equal(lk_index_reserve(&index, overlay.entries, overlay.count),
                     LK_OK);
    uint64_t bytes = index.bytes;
    lk_overlay_merge(&overlay, &index);
    assert_int_equal(index.bytes, bytes); /* all of it was made beforehand */
    assert_null(lk_index_find(&index, hash_of(7)));
    assert_int_equal(index.count, 4900);
    lk_overlay_free(&overlay);
    lk_index_free(&index);
}

static void a_dropped_overlay_leaves_no_trace(void **state)
{
    struct lk_overlay overlay = {0};
    struct lk_index index;
    struct lk_entry entry = entry_of(1, 9, LK_STATE_IN_PROGRESS, START_MS);

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    assert_int_equal(lk_overlay_put(&overlay, &entry), LK_OK);
    lk_overlay_drop(&overlay);
    assert_null(lk_overlay_find(&overlay, &index, hash_of(1)));
    lk_overlay_free(&overlay);
    lk_index_free(&index);
}

static void ttls_are_exact_or_say_that_they_are_not(void **state)
{
    const uint64_t exact[] = {
        1, 50, 1500, 8191, 86400000, 604800000, 400 * UINT64_C(86400000)};

    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++) {
        assert_int_equal(lk_ttl_unpack(lk_ttl_pack(exact[i])), exact[i]);
    }
    assert_int_equal(lk_ttl_pack(12345678), 0);
    for (uint64_t i = 0; i < 10000; i++) {
        uint64_t ttl = 1 + draw(400 * UINT64_C(86400000));
        assert_true(lk_ttl_unpack(lk_ttl_pack_up(ttl)) >= ttl);
    }
}

/* Looked for in an array, for comparison. */
static uint64_t oldest_of(const uint64_t *since, size_t count)
{
    uint64_t oldest = 0;

    for (size_t i = 0; i < count; i++) {
        if (since[i] && (!oldest || since[i] < oldest)) {
            oldest = since[i];
        }
    }
    return oldest;
}

static void the_index_knows_the_oldest_doubt(void **state)
{
    enum { DOUBTS = 200 };
    static uint64_t since[DOUBTS];
    struct lk_index index;

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    assert_int_equal(lk_index_oldest(&index), 0);
    for (uint64_t round = 1; round <= 20000; round++) {
        uint64_t key = draw(DOUBTS);
        uint64_t at = START_MS + draw(1000000);
        if (draw(3)) {
            since[key] = at;
            put(&index, entry_of(key, round, LK_STATE_UNCERTAIN, at));
        } else if (draw(2)) {
            since[key] = 0;
            put(&index, entry_of(key, round, LK_STATE_RELEASED, at));
        } else {
            since[key] = 0;
            lk_index_remove(&index, hash_of(key));
        }
        if (draw(4) == 0) {
            assert_int_equal(lk_index_oldest(&index), oldest_of(since, DOUBTS));
        }
    }
    /* Doubts that are over do not pile up. */
    assert_true(index.doubt_cap <= 8 * DOUBTS);
    lk_index_free(&index);
}

static size_t due_at(struct lk_index *index, uint64_t now,
                     struct lk_hash128 *due, size_t max)
{
    size_t count;
    bool more;

    do {
        count = lk_wheel_due(index, now, due, max, &more);
    } while (more && !count);
    return count;
}

/* The wheel would stand still at what nobody can end. */
static void what_waits_for_jobs_is_not_in_the_wheel(void **state)
{
    struct lk_index index;
    struct lk_hash128 due[10];

    assert_int_equal(lk_index_init(&index, START_MS), LK_OK);
    struct lk_entry done = entry_of(1, 1, LK_STATE_COMPLETED, START_MS + 1000);
    struct lk_entry runs =
        entry_of(2, 2, LK_STATE_IN_PROGRESS, START_MS + 1000);
    struct lk_entry app = entry_of(3, 3, LK_STATE_IN_PROGRESS, START_MS + 1000);
    done.jobs = runs.jobs = runs.queued = app.jobs = true;
    put(&index, done);
    put(&index, runs);
    put(&index, app); /* somebody else runs it, and its lock counts */
    assert_int_equal(due_at(&index, START_MS + 5000, due, 10), 1);
    assert_true(lk_hash128_equal(due[0], hash_of(3)));
    lk_index_remove(&index, hash_of(3));
    assert_int_equal(due_at(&index, START_MS + 5000, due, 10), 0);
    done.jobs = false;
    put(&index, done);
    assert_int_equal(due_at(&index, START_MS + 5000, due, 10), 1);
    assert_true(lk_hash128_equal(due[0], hash_of(1)));
    lk_index_free(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_index_agrees_with_an_array),
        cmocka_unit_test(a_record_costs_at_most_64_bytes),
        cmocka_unit_test(the_wheel_tells_what_is_due_and_nothing_else),
        cmocka_unit_test(a_new_deadline_moves_an_entry_both_ways),
        cmocka_unit_test(an_overlay_hides_the_index_until_it_is_merged),
        cmocka_unit_test(a_dropped_overlay_leaves_no_trace),
        cmocka_unit_test(ttls_are_exact_or_say_that_they_are_not),
        cmocka_unit_test(the_index_knows_the_oldest_doubt),
        cmocka_unit_test(what_waits_for_jobs_is_not_in_the_wheel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
