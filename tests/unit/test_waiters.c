/* Waiters: woken by what they wait for, or when their time is up (C07). */
#include "daemon/waiters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct lk_hash128 hash_of(uint64_t number)
{
    /* The low bits choose the bucket: every fourth shares one. */
    return (struct lk_hash128){.hi = number, .lo = number % 4};
}

static void add(struct lk_waiters *waiters, struct lk_waiter *waiter,
                uint64_t number, uint64_t deadline_ms)
{
    assert_int_equal(
        lk_waiters_add(waiters, waiter, hash_of(number), deadline_ms), LK_OK);
}

static void settling_wakes_all_who_wait_for_it_in_order_and_nobody_else(
    void **state)
{
    struct lk_waiters waiters;
    struct lk_waiter first = {0};
    struct lk_waiter other = {0};
    struct lk_waiter second = {0};

    lk_waiters_init(&waiters);
    add(&waiters, &first, 1, 300);
    add(&waiters, &other, 5, 100);
    add(&waiters, &second, 1, 200);
    struct lk_waiter *taken = lk_waiters_take(&waiters, hash_of(1));
    assert_ptr_equal(taken, &first);
    assert_ptr_equal(taken->next, &second);
    assert_null(taken->next->next);
    assert_false(first.waiting);
    assert_true(other.waiting);
    assert_null(lk_waiters_take(&waiters, hash_of(1)));
    assert_ptr_equal(lk_waiters_take(&waiters, hash_of(5)), &other);
    lk_waiters_free(&waiters);
}

static void a_woken_waiter_may_wait_again_while_others_are_woken(void **state)
{
    struct lk_waiters waiters;
    struct lk_waiter both[2] = {0};

    lk_waiters_init(&waiters);
    add(&waiters, &both[0], 1, 10);
    add(&waiters, &both[1], 1, 20);
    struct lk_waiter *taken = lk_waiters_take(&waiters, hash_of(1));
    while (taken) {
        struct lk_waiter *next = taken->next;
        add(&waiters, taken, 1, taken->deadline_ms);
        taken = next;
    }
    assert_int_equal(waiters.count, 2);
    assert_ptr_equal(lk_waiters_take(&waiters, hash_of(1)), &both[0]);
    lk_waiters_free(&waiters);
}

static void time_runs_out_for_the_earliest_deadline_first(void **state)
{
    struct lk_waiters waiters;
    struct lk_waiter many[200] = {0};
    uint64_t last = 0;
    size_t expired = 0;

    lk_waiters_init(&waiters);
    assert_true(lk_waiters_next(&waiters) == UINT64_MAX);
    assert_null(lk_waiters_expire(&waiters, UINT64_MAX));
    for (size_t i = 0; i < 200; i++) {
        add(&waiters, &many[i], i, 1000 + i * 7919 % 200);
    }
    assert_int_equal(lk_waiters_next(&waiters), 1000);
    assert_null(lk_waiters_expire(&waiters, 999));
    struct lk_waiter *waiter;
    while ((waiter = lk_waiters_expire(&waiters, 1099))) {
        assert_true(waiter->deadline_ms >= last);
        last = waiter->deadline_ms;
        expired++;
    }
    assert_int_equal(expired, 100);
    assert_int_equal(lk_waiters_next(&waiters), 1100);
    lk_waiters_free(&waiters);
}

static void a_client_that_is_gone_is_forgotten(void **state)
{
    struct lk_waiters waiters;
    struct lk_waiter three[3] = {0};

    lk_waiters_init(&waiters);
    for (int i = 0; i < 3; i++) {
        add(&waiters, &three[i], 1, 10 + (uint64_t)i);
    }
    lk_waiters_remove(&waiters, &three[1]);
    lk_waiters_remove(&waiters, &three[1]); /* does nothing */
    lk_waiters_remove(&waiters, &three[0]);
    assert_int_equal(waiters.count, 1);
    assert_int_equal(lk_waiters_next(&waiters), 12);
    assert_ptr_equal(lk_waiters_take(&waiters, hash_of(1)), &three[2]);
    assert_null(three[2].next);
    lk_waiters_free(&waiters);
}

/* Against a plain array: whatever is done in whatever order. */
static void any_order_of_adding_removing_taking_and_expiring_agrees(void **s)
{
    enum { MANY = 500, STEPS = 20000 };
    struct lk_waiters waiters;
    static struct lk_waiter many[MANY];
    unsigned seed = 7;

    lk_waiters_init(&waiters);
    for (int step = 0; step < STEPS; step++) {
        struct lk_waiter *waiter = &many[rand_r(&seed) % MANY];
        uint64_t number = (uint64_t)rand_r(&seed) % 50;
        uint64_t earliest = UINT64_MAX;
        size_t count = 0;
        switch (rand_r(&seed) % 8) {
        case 0:
            lk_waiters_remove(&waiters, waiter);
            break;
        case 1:
            lk_waiters_take(&waiters, hash_of(number));
            for (size_t i = 0; i < MANY; i++) {
                assert_false(many[i].waiting && many[i].hash.hi == number);
            }
            break;
        case 2:
            lk_waiters_expire(&waiters, lk_waiters_next(&waiters));
            break;
        default:
            if (!waiter->waiting) {
                add(&waiters, waiter, number, (uint64_t)rand_r(&seed) % 1000);
            }
        }
        for (size_t i = 0; i < MANY; i++) {
            if (many[i].waiting) {
                count++;
                earliest = many[i].deadline_ms < earliest ? many[i].deadline_ms
                                                          : earliest;
            }
        }
        assert_int_equal(waiters.count, count);
        assert_true(lk_waiters_next(&waiters) == earliest);
    }
    lk_waiters_free(&waiters);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            settling_wakes_all_who_wait_for_it_in_order_and_nobody_else),
        cmocka_unit_test(a_woken_waiter_may_wait_again_while_others_are_woken),
        cmocka_unit_test(time_runs_out_for_the_earliest_deadline_first),
        cmocka_unit_test(a_client_that_is_gone_is_forgotten),
        cmocka_unit_test(
            any_order_of_adding_removing_taking_and_expiring_agrees),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
