/* test_job_key.c - the Idempotency-Key of a job is the same on every attempt,
 * and in every version: a provider remembers it (C27). */
#include "store/jobs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const uint8_t secret[LK_REFERENCE_KEY] = {1, 2,  3,  4,  5,  6,  7,  8,
                                                 9, 10, 11, 12, 13, 14, 15, 16};

/* Reckoned by another program's HMAC. */
static void keys_stay_what_they_were(void **state)
{
    char tenant[300];
    char key[LK_JOB_KEY + 1];
    struct lk_job job = {.operation = {LK_SLICE("tenant"),
                                       LK_SLICE("POST /v1/payments"),
                                       LK_SLICE("key-1")},
                         .generation = UINT64_MAX};

    lk_job_key(secret, &job, key);
    assert_string_equal(key, "af477f3e260720f753b2f6b79620efd4");
    memset(tenant, 't', sizeof(tenant));
    job = (struct lk_job){
        .operation = {{tenant, sizeof(tenant)}, {0}, LK_SLICE("key-1")},
        .name = LK_SLICE("charge")};
    lk_job_key(secret, &job, key);
    assert_string_equal(key, "80766690d71fddb80b6a92a0992c49a7");
}

static void parts_are_kept_apart(void **state)
{
    char one[LK_JOB_KEY + 1], other[LK_JOB_KEY + 1];
    struct lk_job job = {
        .operation = {LK_SLICE("ab"), LK_SLICE("c"), LK_SLICE("k")},
        .name = LK_SLICE("n")};

    lk_job_key(secret, &job, one);
    job.operation.tenant = LK_SLICE("a");
    job.operation.scope = LK_SLICE("bc");
    lk_job_key(secret, &job, other);
    assert_string_not_equal(one, other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_stay_what_they_were),
        cmocka_unit_test(parts_are_kept_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
