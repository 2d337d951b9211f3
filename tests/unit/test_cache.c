/* The cache of answers: by name and token, bounded, byte for byte (C02). */
#include "daemon/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BODY = 1000, ROOM = 100000 };

static char body[ROOM];
static const struct lk_hash128 NAME = {1, 2};

static void put(struct lk_cache *cache, uint64_t token, size_t len)
{
    struct lk_response response = {.status = 201, .body = {body, len}};
    struct lk_stored *stored =
        lk_stored_make(token, 5, &response, (struct lk_slice){"", 0});

    assert_non_null(stored);
    lk_cache_put(cache, NAME, stored);
    lk_stored_unref(stored);
}

static bool has(struct lk_cache *cache, uint64_t token)
{
    struct lk_stored *stored = lk_cache_get(cache, NAME, token);

    lk_stored_unref(stored);
    return stored != NULL;
}

/* C13: even if a store hands out a token twice. */
static void an_answer_is_never_another_operations(void **state)
{
    struct lk_cache cache;
    const struct lk_hash128 other = {1, 3};

    lk_cache_init(&cache, ROOM);
    put(&cache, 7, BODY);
    assert_null(lk_cache_get(&cache, other, 7));
    assert_true(has(&cache, 7));
    lk_cache_clear(&cache);
    assert_false(has(&cache, 7));
    put(&cache, 7, BODY);
    assert_true(has(&cache, 7));
    lk_cache_free(&cache);
}

static void an_answer_is_found_by_its_token_alone(void **state)
{
    struct lk_cache cache;

    lk_cache_init(&cache, ROOM);
    assert_false(has(&cache, 7));
    memset(body, 'x', sizeof(body));
    put(&cache, 7, BODY);
    struct lk_stored *stored = lk_cache_get(&cache, NAME, 7);
    assert_non_null(stored);
    assert_int_equal(stored->response.status, 201);
    assert_int_equal(stored->response.body.len, BODY);
    assert_memory_equal(stored->response.body.data, body, BODY);
    assert_false(has(&cache, 8));
    lk_cache_free(&cache);
    /* A reply under way keeps its answer, whatever becomes of the cache. */
    assert_memory_equal(stored->response.body.data, body, BODY);
    lk_stored_unref(stored);
}

static void what_was_not_used_for_longest_goes_first(void **state)
{
    struct lk_cache cache;

    lk_cache_init(&cache, ROOM);
    for (uint64_t token = 1; token <= 50; token++) {
        put(&cache, token, BODY);
    }
    assert_int_equal(cache.count, 50);
    assert_true(has(&cache, 1));
    for (uint64_t token = 51; token <= 120; token++) {
        put(&cache, token, BODY);
    }
    assert_true(has(&cache, 1));
    assert_false(has(&cache, 2));
    assert_true(has(&cache, 120));
    lk_cache_free(&cache);
}

static void the_bound_holds_at_every_moment(void **state)
{
    struct lk_cache cache;
    unsigned seed = 3;

    lk_cache_init(&cache, ROOM);
    for (int i = 0; i < 5000; i++) {
        put(&cache, (uint64_t)rand_r(&seed) % 500,
            (size_t)rand_r(&seed) % 20000);
        assert_true(cache.bytes <= ROOM);
    }
    assert_true(cache.count > 0);
    lk_cache_set_max(&cache, ROOM / 10);
    assert_true(cache.bytes <= ROOM / 10);
    lk_cache_set_max(&cache, 0);
    assert_int_equal(cache.count, 0);
    assert_int_equal(cache.bytes, 0);
    lk_cache_free(&cache);
}

static void one_large_answer_does_not_drive_out_all_others(void **state)
{
    struct lk_cache cache;

    lk_cache_init(&cache, ROOM);
    put(&cache, 1, BODY);
    put(&cache, 2, ROOM / 2);
    assert_true(has(&cache, 1));
    assert_false(has(&cache, 2));
    lk_cache_free(&cache);
}

static void an_evicted_answer_is_forgotten(void **state)
{
    struct lk_cache cache;

    lk_cache_init(&cache, ROOM);
    lk_cache_remove(&cache, 1);
    for (uint64_t token = 1; token <= 3; token++) {
        put(&cache, token, BODY);
    }
    lk_cache_remove(&cache, 2);
    assert_true(has(&cache, 1));
    assert_false(has(&cache, 2));
    assert_true(has(&cache, 3));
    put(&cache, 3, BODY / 2);
    struct lk_stored *stored = lk_cache_get(&cache, NAME, 3);
    assert_int_equal(stored->response.body.len, BODY / 2);
    lk_stored_unref(stored);
    assert_int_equal(cache.count, 2);
    lk_cache_free(&cache);
}

static void a_cache_of_no_bytes_keeps_nothing(void **state)
{
    struct lk_cache cache;

    lk_cache_init(&cache, 0);
    put(&cache, 1, 0);
    assert_false(has(&cache, 1));
    assert_int_equal(cache.misses, 1);
    lk_cache_free(&cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_never_another_operations),
        cmocka_unit_test(an_answer_is_found_by_its_token_alone),
        cmocka_unit_test(what_was_not_used_for_longest_goes_first),
        cmocka_unit_test(the_bound_holds_at_every_moment),
        cmocka_unit_test(one_large_answer_does_not_drive_out_all_others),
        cmocka_unit_test(an_evicted_answer_is_forgotten),
        cmocka_unit_test(a_cache_of_no_bytes_keeps_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
