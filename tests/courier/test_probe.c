/* test_probe.c - what a probe asks, what its answer proves, and when. */
#include "courier/probe_rules.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void set_statuses(struct lk_statuses *set, unsigned from, unsigned to)
{
    for (unsigned status = from; status <= to; status++) {
        set->bits[(status - 100) / 64] |= UINT64_C(1) << ((status - 100) % 64);
    }
}

/* 2xx: happened; 404, 410: absent; a minute to settle, ten seconds between. */
static struct lk_probe make_probe(char *list)
{
    struct lk_probe probe = {
        .path = "/keys/{key}",
        .list = list,
        .settle_ms = 60000,
        .interval_ms = 10000,
    };

    set_statuses(&probe.happened, 200, 299);
    set_statuses(&probe.absent, 404, 404);
    set_statuses(&probe.absent, 410, 410);
    return probe;
}

static struct lk_http_response make_answer(unsigned status, char *body)
{
    return (struct lk_http_response){
        .status = status, .whole = true, .body = {body, strlen(body), 0}};
}

/* ---- the question -------------------------------------------------------- */

static const struct lk_probe_words words = {
    .key = {"a/b?c&d=e f", 11},
    .id = {NULL, 0},
    .tenant = {"acme", 4},
    .scope = {"POST /payments", 14},
    .reference = {"7D3F-92AB-1C4E", 14},
    .name = {"", 0},
};

static void expect_path(const char *template, enum lk_status status,
                        const char *path)
{
    struct lk_buf out = {0};

    assert_int_equal(lk_probe_path(template, &words, &out), status);
    if (path) {
        assert_int_equal(out.len, strlen(path));
        assert_memory_equal(out.data, path, out.len);
    }
    latchkey_buf_free(&out);
}

static void test_members_are_percent_encoded(void **state)
{
    expect_path("/charges?k={key}&t={tenant}", LK_OK,
                "/charges?k=a%2Fb%3Fc%26d%3De%20f&t=acme");
    expect_path("/{scope}/{reference}", LK_OK,
                "/POST%20%2Fpayments/7D3F-92AB-1C4E");
    expect_path("/plain", LK_OK, "/plain");
    expect_path("/n-{name}", LK_OK, "/n-"); /* empty, but known */
}

static void test_what_is_no_template_asks_nothing(void **state)
{
    expect_path("/a/{nonsense}", LK_INVALID, NULL);
    expect_path("/a/{key", LK_INVALID, NULL);
    expect_path("/a/key}", LK_INVALID, NULL);
    expect_path("/a/{}", LK_INVALID, NULL);
    expect_path("/a/{{key}}", LK_INVALID, NULL);
}

static void test_a_member_that_is_not_known_asks_nothing(void **state)
{
    expect_path("/charges/{id}", LK_NOT_FOUND, NULL);
}

/* A key can lead nowhere else: its slashes and dots are not the path's. */
static void test_no_key_leaves_its_place(void **state)
{
    const struct lk_probe_words hostile = {.key = {"x/../../admin", 13}};
    struct lk_buf out = {0};

    assert_int_equal(lk_probe_path("/keys/{key}", &hostile, &out), LK_OK);
    assert_memory_equal(out.data, "/keys/x%2F..%2F..%2Fadmin", 25);
    assert_non_null(lk_path_fault(latchkey_buf_slice(&out)));
    latchkey_buf_free(&out);
}

/* ---- the answer ---------------------------------------------------------- */

static enum lk_proof judge(char *list, unsigned status, char *body)
{
    struct lk_probe probe = make_probe(list);
    struct lk_http_response response = make_answer(status, body);

    return lk_probe_judge(&probe, &response);
}

static void test_the_status_decides(void **state)
{
    /* C32 */
    assert_int_equal(judge(NULL, 200, "whatever"), LK_PROOF_HAPPENED);
    assert_int_equal(judge(NULL, 404, ""), LK_PROOF_ABSENT);
    assert_int_equal(judge(NULL, 410, ""), LK_PROOF_ABSENT);
    assert_int_equal(judge(NULL, 302, ""), LK_PROOF_NONE);
    assert_int_equal(judge(NULL, 401, ""), LK_PROOF_NONE);
    assert_int_equal(judge(NULL, 500, ""), LK_PROOF_NONE);
}

static void test_a_list_is_empty_or_not(void **state)
{
    /* C32 */
    assert_int_equal(judge("/data", 200, "{\"data\":[{\"id\":1}]}"),
                     LK_PROOF_HAPPENED);
    assert_int_equal(judge("/data", 200, "{\"data\": [ ] }"), LK_PROOF_ABSENT);
    assert_int_equal(judge("", 200, "[]"), LK_PROOF_ABSENT);
    assert_int_equal(judge("", 200, "[null]"), LK_PROOF_HAPPENED);
    assert_int_equal(judge("/data", 404, "{\"data\":[1]}"), LK_PROOF_ABSENT);
}

static void test_an_answer_without_the_list_proves_nothing(void **state)
{
    assert_int_equal(judge("/data", 200, "{}"), LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, "{\"data\":null}"), LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, "{\"data\":{\"0\":1}}"),
                     LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, "{\"data\":\"[]\"}"), LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, "{\"data\":["), LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, "<html>"), LK_PROOF_NONE);
    assert_int_equal(judge("/data", 200, ""), LK_PROOF_NONE);
}

static void test_a_list_that_was_cut_proves_nothing(void **state)
{
    struct lk_probe probe = make_probe("/data");
    struct lk_http_response response = make_answer(200, "{\"data\":[]}");

    response.cut = true;
    assert_int_equal(lk_probe_judge(&probe, &response), LK_PROOF_NONE);
}

static void test_absence_from_a_cache_proves_nothing(void **state)
{
    struct lk_http_response response = {.status = 404};
    struct lk_probe probe = {0};
    char aged[] = "Server: x\r\nage: 7\r\n";
    char fresh[] = "Age: 0\r\n";

    (void)state;
    set_statuses(&probe.happened, 200, 299);
    set_statuses(&probe.absent, 404, 404);
    response.headers = (struct lk_buf){.data = aged, .len = strlen(aged)};
    assert_int_equal(lk_probe_judge(&probe, &response), LK_PROOF_NONE);
    response.status = 200;
    assert_int_equal(lk_probe_judge(&probe, &response), LK_PROOF_HAPPENED);
    response.status = 404;
    response.headers = (struct lk_buf){.data = fresh, .len = strlen(fresh)};
    assert_int_equal(lk_probe_judge(&probe, &response), LK_PROOF_ABSENT);
}

static void test_a_status_that_means_both_means_nothing(void **state)
{
    struct lk_probe probe = make_probe(NULL);
    struct lk_http_response response = make_answer(404, "");

    set_statuses(&probe.happened, 404, 404);
    assert_int_equal(lk_probe_judge(&probe, &response), LK_PROOF_NONE);
}

static void expect_id(char *list, char *where, char *body, const char *id)
{
    struct lk_probe probe = make_probe(list);
    struct lk_target target = {.id = where};
    struct lk_http_response response = make_answer(200, body);
    struct lk_buf out = {0};

    lk_probe_provider_id(&target, &probe, &response, &out);
    assert_int_equal(out.len, strlen(id));
    assert_memory_equal(out.data ? out.data : "", id, out.len);
    latchkey_buf_free(&out);
}

static void test_the_provider_s_id_is_that_of_the_first(void **state)
{
    expect_id(NULL, "json:/id", "{\"id\":\"ch_1\"}", "ch_1");
    expect_id("/data", "json:/id", "{\"data\":[{\"id\":\"ch_2\"},{\"id\":3}]}",
              "ch_2");
    expect_id("/data", "json:/id", "{\"data\":[{\"no\":1}]}", "");
    expect_id("/data", NULL, "{\"data\":[{\"id\":\"ch_2\"}]}", "");
}

/* ---- time ---------------------------------------------------------------- */

static void test_absence_is_proof_when_settled_and_seen_twice(void **state)
{
    /* C32 */
    struct lk_probe probe = make_probe(NULL);

    assert_false(lk_probe_absence_proves(&probe, 60000, 20000));
    assert_false(lk_probe_absence_proves(&probe, 0, UINT64_MAX));
    assert_false(lk_probe_absence_proves(&probe, 999999, UINT64_MAX));
    assert_false(lk_probe_absence_proves(&probe, 999999, 9999));
    assert_true(lk_probe_absence_proves(&probe, 60001, 10000));
}

static void test_questions_become_rarer_but_not_later_than_needed(void **state)
{
    struct lk_probe probe = make_probe(NULL);
    const uint64_t hour = 3600 * 1000, never = UINT64_MAX;

    assert_int_equal(lk_probe_delay_ms(&probe, 1, 70000, never), 10000);
    assert_int_equal(lk_probe_delay_ms(&probe, 2, 70000, never), 20000);
    assert_int_equal(lk_probe_delay_ms(&probe, 5, 70000, never), 160000);
    assert_int_equal(lk_probe_delay_ms(&probe, 12, 70000, never), hour);
    assert_int_equal(lk_probe_delay_ms(&probe, 4000000000u, 70000, never),
                     hour);
    /* Before it has settled: no longer than until then. */
    assert_int_equal(lk_probe_delay_ms(&probe, 9, 50000, never), 10001);
    assert_int_equal(lk_probe_delay_ms(&probe, 1, 0, never), 10000);
    /* Absence seen once: when it would be proof. */
    assert_int_equal(lk_probe_delay_ms(&probe, 9, 70000, 0), 10000);
    assert_int_equal(lk_probe_delay_ms(&probe, 9, 70000, 7000), 3000);
    /* It would have been by now: as ever. */
    assert_int_equal(lk_probe_delay_ms(&probe, 3, 70000, 10000), 40000);
}

static void test_a_route_matches_by_scope_and_tenant(void **state)
{
    struct lk_route route = {.scope = "POST /pay"};
    struct lk_slice acme = LK_SLICE("acme");

    assert_true(lk_route_matches(&route, acme, LK_SLICE("POST /pay")));
    assert_false(lk_route_matches(&route, acme, LK_SLICE("POST /payments")));
    route.scope = "POST /pay*";
    assert_true(lk_route_matches(&route, acme, LK_SLICE("POST /payments")));
    assert_true(lk_route_matches(&route, acme, LK_SLICE("POST /pay")));
    assert_false(lk_route_matches(&route, acme, LK_SLICE("POST /pa")));
    route.scope = "*";
    route.tenant = "acme";
    assert_true(lk_route_matches(&route, acme, LK_SLICE("")));
    assert_false(lk_route_matches(&route, LK_SLICE("other"), LK_SLICE("")));
}

/* ---- memory -------------------------------------------------------------- */

static void test_a_note_is_found_again(void **state)
{
    struct lk_probe_memory memory = {0};

    assert_int_equal(lk_probe_memory_init(&memory, 1024), LK_OK);
    for (uint64_t id = 1; id <= 100; id++) {
        lk_probe_memory_note(&memory, id % 2, id, 7)->asked = (unsigned)id;
    }
    for (uint64_t id = 1; id <= 100; id++) {
        assert_int_equal(lk_probe_memory_note(&memory, id % 2, id, 7)->asked,
                         id);
    }
    /* A job and an operation of one number are two. */
    assert_int_equal(lk_probe_memory_note(&memory, true, 2, 7)->asked, 0);
    lk_probe_memory_free(&memory);
}

static void test_another_attempt_starts_anew(void **state)
{
    struct lk_probe_memory memory = {0};
    struct lk_probe_note *note;

    assert_int_equal(lk_probe_memory_init(&memory, 64), LK_OK);
    note = lk_probe_memory_note(&memory, false, 5, 1);
    note->asked = 3;
    note->absent_ns = 99;
    note = lk_probe_memory_note(&memory, false, 5, 2);
    assert_int_equal(note->asked, 0);
    assert_int_equal(note->absent_ns, 0);
    assert_int_equal(lk_probe_memory_note(&memory, false, 5, 2)->fence, 2);
    lk_probe_memory_free(&memory);
}

static void test_a_full_memory_forgets_what_was_due_longest_ago(void **state)
{
    struct lk_probe_memory memory = {0};

    assert_int_equal(lk_probe_memory_init(&memory, 8), LK_OK);
    for (uint64_t id = 0; id < 8; id++) {
        lk_probe_memory_note(&memory, false, id, 1)->due_ns = 100 - id;
    }
    assert_int_equal(lk_probe_memory_note(&memory, false, 77, 1)->due_ns, 0);
    assert_int_equal(lk_probe_memory_note(&memory, false, 0, 1)->due_ns, 100);
    assert_int_equal(lk_probe_memory_note(&memory, false, 6, 1)->due_ns, 94);
    /* 7 was due first; that it is asked for again costs the newcomer. */
    assert_int_equal(lk_probe_memory_note(&memory, false, 7, 1)->due_ns, 0);
    lk_probe_memory_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members_are_percent_encoded),
        cmocka_unit_test(test_what_is_no_template_asks_nothing),
        cmocka_unit_test(test_a_member_that_is_not_known_asks_nothing),
        cmocka_unit_test(test_no_key_leaves_its_place),
        cmocka_unit_test(test_the_status_decides),
        cmocka_unit_test(test_a_list_is_empty_or_not),
        cmocka_unit_test(test_an_answer_without_the_list_proves_nothing),
        cmocka_unit_test(test_a_list_that_was_cut_proves_nothing),
        cmocka_unit_test(test_absence_from_a_cache_proves_nothing),
        cmocka_unit_test(test_a_status_that_means_both_means_nothing),
        cmocka_unit_test(test_the_provider_s_id_is_that_of_the_first),
        cmocka_unit_test(test_absence_is_proof_when_settled_and_seen_twice),
        cmocka_unit_test(test_questions_become_rarer_but_not_later_than_needed),
        cmocka_unit_test(test_a_route_matches_by_scope_and_tenant),
        cmocka_unit_test(test_a_note_is_found_again),
        cmocka_unit_test(test_another_attempt_starts_anew),
        cmocka_unit_test(test_a_full_memory_forgets_what_was_due_longest_ago),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
