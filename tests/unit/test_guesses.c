/* Wrong passwords, and clients that are slow (C36). */
#include "daemon/daemon.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 4000, START = 1000000, PACE = 64 * 1024 };

static void fail_often(struct lk_auth_table *table, uint64_t key,
                       uint64_t now_ms, int times)
{
    for (int i = 0; i < times; i++) {
        assert_non_null(lk_auth_wrong(table, key, now_ms, MOST));
    }
}

/* How long an attempt has to wait that comes after so many wrong ones. */
static uint64_t wait_after(int wrong, uint64_t most_ms)
{
    struct lk_auth_table table = {0};

    fail_often(&table, 7, START, wrong);
    uint64_t turn = lk_auth_turn(&table, 7, START, most_ms);
    free(table.entries);
    return turn == UINT64_MAX ? turn : turn - START;
}

static void every_wrong_password_doubles_the_delay_up_to_a_bound(void **state)
{
    (void)state;
    assert_int_equal(wait_after(0, MOST), 0);
    assert_int_equal(wait_after(LK_AUTH_FREE, MOST), 0);
    assert_int_equal(wait_after(LK_AUTH_FREE + 1, MOST), 250);
    assert_int_equal(wait_after(LK_AUTH_FREE + 2, MOST), 500);
    assert_int_equal(wait_after(LK_AUTH_FREE + 4, MOST), 2000);
    assert_int_equal(wait_after(LK_AUTH_FREE + 5, MOST), MOST);
    assert_int_equal(wait_after(1000, MOST), MOST);
    assert_int_equal(wait_after(1000, 0), 0);
}

static void attempts_at_once_share_the_delay(void **state)
{
    struct lk_auth_table table = {0};

    (void)state;
    fail_often(&table, 7, START, 100);
    assert_int_equal(lk_auth_turn(&table, 7, START, MOST), START + MOST);
    for (int i = 0; i < 100; i++) {
        assert_true(lk_auth_turn(&table, 7, START, MOST) == UINT64_MAX);
    }
    /* The one that waited is judged, and the next may wait. */
    fail_often(&table, 7, START + MOST, 1);
    assert_int_equal(lk_auth_turn(&table, 7, START + MOST, MOST),
                     START + 2 * MOST);
    /* Who comes later finds no queue. */
    assert_int_equal(lk_auth_turn(&table, 7, START + 20 * MOST, MOST),
                     START + 20 * MOST);
    free(table.entries);
}

static void a_right_password_makes_up_for_its_own_user_alone(void **state)
{
    struct lk_auth_table table = {0};

    (void)state;
    fail_often(&table, 7, START, 100);
    fail_often(&table, 8, START, 100);
    lk_auth_right(&table, 8);
    assert_int_equal(lk_auth_turn(&table, 8, START, MOST), START);
    assert_int_equal(lk_auth_turn(&table, 7, START, MOST), START + MOST);
    assert_int_equal(table.unlogged, 100);
    free(table.entries);
}

static void wrong_passwords_are_forgotten_in_time(void **state)
{
    struct lk_auth_table table = {0};
    uint64_t now = START;

    (void)state;
    fail_often(&table, 7, now, 1000);
    now += (LK_AUTH_COUNT_MAX - 1) * (uint64_t)LK_AUTH_FORGET_MS;
    fail_often(&table, 7, now, 1);
    assert_int_equal(lk_auth_turn(&table, 7, now, MOST), now);
    free(table.entries);
}

static void many_origins_push_out_those_that_are_quiet(void **state)
{
    struct lk_auth_table table = {0};
    uint64_t key = 0;

    (void)state;
    fail_often(&table, 1, START, 100);
    /* All of them want the same few entries. */
    for (int i = 1; i < LK_AUTH_WAYS; i++) {
        key = 1 + (uint64_t)i * LK_AUTH_SETS;
        fail_often(&table, key, START + i, 100);
    }
    assert_int_equal(lk_auth_turn(&table, 1, START + 9, MOST), START + MOST);
    fail_often(&table, key + LK_AUTH_SETS, START + 9, 100);
    assert_int_equal(lk_auth_turn(&table, 1, START + 9, MOST), START + 9);
    assert_true(lk_auth_turn(&table, key, START + 9, MOST) > START + 9);
    assert_int_equal(table.unlogged, LK_AUTH_WAYS * 100);
    free(table.entries);
}

static void the_log_gets_the_first_and_then_a_count_a_minute(void **state)
{
    struct lk_auth_table table = {0};
    struct lk_auth_failures *failures = lk_auth_wrong(&table, 7, START, MOST);

    (void)state;
    assert_true(lk_auth_log_is_due(failures, START));
    assert_int_equal(lk_auth_logged(&table, failures, START), 1);
    fail_often(&table, 7, START + 1, 50);
    assert_false(lk_auth_log_is_due(failures, START + LK_AUTH_LOG_MS - 1));
    assert_true(lk_auth_log_is_due(failures, START + LK_AUTH_LOG_MS));
    assert_int_equal(lk_auth_logged(&table, failures, START + LK_AUTH_LOG_MS),
                     50);
    assert_false(lk_auth_log_is_due(failures, START + 10 * LK_AUTH_LOG_MS));
    assert_int_equal(table.unlogged, 0);
    free(table.entries);
}

static void bytes_that_trickle_do_not_keep_the_pace(void **state)
{
    struct lk_pace pace;

    (void)state;
    lk_pace_start(&pace, START, 0);
    for (uint64_t ms = 10; ms <= 30000; ms += 10) {
        assert_int_equal(lk_pace_slow_ms(&pace, ms / 10, START + ms), ms);
    }
}

static void a_large_command_over_a_slow_line_keeps_it(void **state)
{
    struct lk_pace pace;
    size_t bytes = 0;

    (void)state;
    lk_pace_start(&pace, START, 0);
    for (uint64_t second = 1; second <= 300; second++) {
        bytes += PACE;
        assert_int_equal(lk_pace_slow_ms(&pace, bytes, START + second * 1000),
                         0);
    }
    /* What was sent fast before does not count for a client that stops. */
    bytes += 10 << 20;
    assert_int_equal(lk_pace_slow_ms(&pace, bytes, START + 301000), 0);
    assert_int_equal(lk_pace_slow_ms(&pace, bytes, START + 331000), 30000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_wrong_password_doubles_the_delay_up_to_a_bound),
        cmocka_unit_test(attempts_at_once_share_the_delay),
        cmocka_unit_test(a_right_password_makes_up_for_its_own_user_alone),
        cmocka_unit_test(wrong_passwords_are_forgotten_in_time),
        cmocka_unit_test(many_origins_push_out_those_that_are_quiet),
        cmocka_unit_test(the_log_gets_the_first_and_then_a_count_a_minute),
        cmocka_unit_test(bytes_that_trickle_do_not_keep_the_pace),
        cmocka_unit_test(a_large_command_over_a_slow_line_keeps_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
