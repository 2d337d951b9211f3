/* test_outcome.c - what every answer, and every failure of curl, means for a
 * job (C27, C28, C29). */
#include "courier/courier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void allow(struct lk_statuses *set, unsigned from, unsigned to)
{
    for (unsigned status = from; status <= to; status++) {
        set->bits[(status - 100) / 64] |= UINT64_C(1) << ((status - 100) % 64);
    }
}

/* As a target is by default. */
static struct lk_target make_target(void)
{
    struct lk_target target = {.attempts = 12, .name = "pay"};

    allow(&target.success, 200, 299);
    allow(&target.temporary, 408, 408);
    allow(&target.temporary, 425, 425);
    allow(&target.temporary, 429, 429);
    allow(&target.temporary, 500, 599);
    return target;
}

static struct lk_http_response failed(CURLcode code, bool sent, unsigned status)
{
    struct lk_http_response response = {.sent = sent, .status = status};

    snprintf(response.error, sizeof(response.error), "%s",
             curl_easy_strerror(code));
    return response;
}

static enum lk_end end_of(bool honours, const struct lk_http_response *response)
{
    struct lk_target target = make_target();
    struct lk_result result;

    lk_result_of(&target, honours, response, &result);
    assert_true((result.end == LK_END_DELIVERED) == !result.reason[0]);
    return result.end;
}

static void every_failure_of_curl_is_judged_by_whether_it_was_sent(void **state)
{
    for (int code = 1; code < CURL_LAST; code++) {
        struct lk_http_response unsent = failed(code, false, 0);
        struct lk_http_response sent = failed(code, true, 0);
        struct lk_http_response cut = failed(code, true, 200);

        assert_int_equal(end_of(true, &unsent), LK_END_RETRY);
        assert_int_equal(end_of(false, &unsent), LK_END_RETRY);
        assert_int_equal(end_of(true, &sent), LK_END_RETRY);
        assert_int_equal(end_of(false, &sent), LK_END_UNCERTAIN);
        assert_int_equal(end_of(true, &cut), LK_END_RETRY);
        assert_int_equal(end_of(false, &cut), LK_END_UNCERTAIN);
    }
}

static bool is_temporary(unsigned status)
{
    return status == 408 || status == 425 || status == 429 || status >= 500;
}

static void every_status_has_its_class(void **state)
{
    for (unsigned status = 200; status < 600; status++) {
        struct lk_http_response response = {
            .sent = true, .whole = true, .status = status};
        enum lk_end end = LK_END_DEAD;
        if (status < 300) {
            end = LK_END_DELIVERED;
        } else if (is_temporary(status)) {
            end = LK_END_RETRY;
        }
        assert_int_equal(end_of(true, &response), end);
        /* Something went wrong: that is not to say that nothing happened. */
        if (status >= 500) {
            end = LK_END_UNCERTAIN;
        }
        assert_int_equal(end_of(false, &response), end);
    }
}

static void a_status_that_fails_counts_though_its_body_is_cut(void **state)
{
    struct lk_http_response refused = failed(CURLE_PARTIAL_FILE, true, 400);
    struct lk_http_response busy = failed(CURLE_PARTIAL_FILE, true, 503);

    assert_int_equal(end_of(false, &refused), LK_END_DEAD);
    assert_int_equal(end_of(true, &busy), LK_END_RETRY);
}

/* C27 */
static void a_target_says_at_which_failures_nothing_happened(void **state)
{
    struct lk_target target = make_target();
    struct lk_result result;

    allow(&target.safe, 503, 503);
    for (unsigned status = 500; status < 1000; status++) {
        struct lk_http_response response = {
            .sent = true, .whole = true, .status = status};
        lk_result_of(&target, false, &response, &result);
        assert_int_equal(result.end,
                         status == 503 ? LK_END_RETRY : LK_END_UNCERTAIN);
        assert_int_equal(result.doubt, status != 503);
    }
}

static void a_target_may_call_any_status_a_success(void **state)
{
    struct lk_target target = make_target();
    struct lk_result result;
    struct lk_http_response response = {
        .sent = true, .whole = true, .status = 409};

    allow(&target.success, 409, 409);
    lk_result_of(&target, false, &response, &result);
    assert_int_equal(result.end, LK_END_DELIVERED);
    response.status = 504;
    allow(&target.success, 504, 504);
    lk_result_of(&target, false, &response, &result);
    assert_int_equal(result.end, LK_END_DELIVERED);
}

static void only_failures_of_the_target_count_for_its_circuit(void **state)
{
    struct lk_target target = make_target();
    struct lk_result result;
    static const struct {
        unsigned status;
        bool healthy;
    } rows[] = {{200, true},  {302, true},  {404, true},  {429, false},
                {500, false}, {503, false}, {504, false}, {0, false}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lk_http_response response = {.sent = true,
                                            .whole = rows[i].status != 0,
                                            .status = rows[i].status};
        lk_result_of(&target, false, &response, &result);
        assert_int_equal(result.healthy, rows[i].healthy);
    }
}

static void a_redirect_is_refused_by_name(void **state)
{
    struct lk_target target = make_target();
    struct lk_result result;
    struct lk_http_response response = {
        .sent = true, .whole = true, .status = 307};

    lk_result_of(&target, true, &response, &result);
    assert_int_equal(result.end, LK_END_DEAD);
    assert_non_null(strstr(result.reason, "redirects are not followed"));
}

static void a_reason_is_short_and_printable(void **state)
{
    struct lk_target target = make_target();
    struct lk_result result;
    struct lk_http_response response = {0};

    memset(response.error, 'x', sizeof(response.error) - 1);
    memcpy(response.error, "a\r\nb\x1b[1m\xff", 10);
    lk_result_of(&target, true, &response, &result);
    assert_true(strlen(result.reason) <= LK_REASON_MAX);
    assert_non_null(strstr(result.reason, "a??b?[1m?"));
    for (const char *at = result.reason; *at; at++) {
        assert_true(*at >= ' ' && *at <= '~');
    }
}

static void a_retry_too_many_is_dead_and_says_why(void **state)
{
    struct lk_target target = make_target();
    struct lk_http_response response = {
        .sent = true, .whole = true, .status = 503};
    struct lk_result result;

    target.attempts = 3;
    target.max_age_ms = 1000;
    lk_result_of(&target, true, &response, &result);
    lk_result_give_up(&target, 2, 999, &result);
    assert_int_equal(result.end, LK_END_RETRY);
    lk_result_give_up(&target, 3, 999, &result);
    assert_int_equal(result.end, LK_END_DEAD);
    assert_string_equal(result.reason,
                        "given up after 3 attempts: answered 503");

    lk_result_of(&target, true, &response, &result);
    lk_result_give_up(&target, 1, 1000, &result);
    assert_int_equal(result.end, LK_END_UNCERTAIN); /* it may have happened */
    assert_string_equal(result.reason, "given up for its age: answered 503");

    response.status = 429;
    lk_result_of(&target, true, &response, &result);
    lk_result_give_up(&target, 1, 1000, &result);
    assert_int_equal(result.end, LK_END_DEAD);
}

static void what_may_have_happened_is_never_given_up(void **state)
{
    struct lk_target target = make_target();
    struct lk_http_response response =
        failed(CURLE_OPERATION_TIMEDOUT, true, 0);
    struct lk_result result;

    lk_result_of(&target, false, &response, &result);
    lk_result_give_up(&target, 100, UINT64_MAX, &result);
    assert_int_equal(result.end, LK_END_UNCERTAIN);
}

/* C27: what is uncertain without a key is in doubt with one. */
static void what_a_key_covers_is_in_doubt(void **state)
{
    struct lk_target target = make_target();
    struct lk_result with;
    struct lk_result without;

    for (int sent = 0; sent < 2; sent++) {
        for (int whole = 0; whole < 2; whole++) {
            for (unsigned status = 0; status < 600; status++) {
                struct lk_http_response response = {
                    .sent = sent, .whole = whole, .status = status};
                lk_result_of(&target, true, &response, &with);
                lk_result_of(&target, false, &response, &without);
                assert_int_equal(with.doubt, without.end == LK_END_UNCERTAIN);
                status += status ? 0 : 199;
            }
        }
    }
}

/* ---- requests ------------------------------------------------------------ */

static enum lk_end request_end(bool repeatable, bool sent, unsigned status,
                               const char *headers)
{
    struct lk_http_response response = {
        .sent = sent, .status = status, .whole = status != 0};
    struct lk_result result;

    response.headers = (struct lk_buf){(char *)headers, strlen(headers), 0};
    lk_request_result(repeatable, &response, &result);
    assert_int_equal(result.healthy, sent);
    return result.end;
}

static void the_gateway_says_what_became_of_a_request(void **state)
{
    static const struct {
        const char *word;
        enum lk_end once;
        enum lk_end repeatable;
    } rows[] = {
        {"completed", LK_END_DELIVERED, LK_END_DELIVERED},
        {"stale", LK_END_DELIVERED, LK_END_DELIVERED},
        {"released", LK_END_RETRY, LK_END_RETRY},
        {"uncertain", LK_END_UNCERTAIN, LK_END_RETRY},
        {"something else", LK_END_UNCERTAIN, LK_END_RETRY},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char headers[80];
        snprintf(headers, sizeof(headers), "Latchkey-Outcome: %s\r\n",
                 rows[i].word);
        assert_int_equal(request_end(false, true, 200, headers), rows[i].once);
        assert_int_equal(request_end(true, true, 200, headers),
                         rows[i].repeatable);
    }
}

static void a_request_without_an_outcome_is_uncertain(void **state)
{
    assert_int_equal(request_end(false, true, 200, ""), LK_END_UNCERTAIN);
    assert_int_equal(request_end(true, true, 502, ""), LK_END_RETRY);
    assert_int_equal(request_end(false, true, 0, ""), LK_END_UNCERTAIN);
    assert_int_equal(request_end(false, false, 0, ""), LK_END_RETRY);
}

static void what_the_app_never_heard_of_was_not_sent(void **state)
{
    static const struct {
        const char *headers;
        bool sent, left;
    } rows[] = {
        {"Latchkey-Outcome: released\r\n", true, true},
        {"Latchkey-Outcome: released\r\nLatchkey-Sent: no\r\n", true, false},
        {"latchkey-sent:no\r\n", true, false},
        {"Latchkey-Sent: perhaps\r\n", true, true},
        {"", true, true},
        {"", false, false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct lk_http_response response = {.sent = rows[i].sent};
        response.headers = (struct lk_buf){(char *)rows[i].headers,
                                           strlen(rows[i].headers), 0};
        assert_int_equal(lk_request_left(&response), rows[i].left);
    }
}

/* ---- the provider's id --------------------------------------------------- */

static void assert_id(const char *where, const char *headers, const char *body,
                      const char *id)
{
    struct lk_target target = {.id = (char *)where};
    struct lk_http_response response = {
        .headers = {(char *)headers, strlen(headers), 0},
        .body = {(char *)body, strlen(body), 0}};
    struct lk_buf found = {0};

    lk_provider_id(&target, &response, &found);
    assert_int_equal(found.len, strlen(id));
    assert_memory_equal(found.data ? found.data : "", id, found.len);
    latchkey_buf_free(&found);
}

static void the_providers_id_is_found_where_the_target_says(void **state)
{
    char long_id[400];

    memset(long_id, 'x', sizeof(long_id));
    memcpy(long_id, "Id: ", 4);
    memcpy(long_id + 300, "\r\n", 3);
    assert_id(NULL, "Id: 1\r\n", "{\"id\":\"2\"}", "");
    assert_id("header:Charge-Id", "A: b\r\ncharge-id:  ch_1 \r\n", "", "ch_1");
    assert_id("header:Charge-Id", "Charge-Id2: x\r\n", "", "");
    assert_id("header:Id", long_id, "", "");
    assert_id("header:Id", "Id: a\tb\r\n", "", "");
    assert_id("header:Id", "Id: \xff\r\n", "", "");
    assert_id("json:/id", "", "{\"id\":\"ch_\\u00e9\"}", "ch_\xc3\xa9");
    assert_id("json:/data/0/id", "", "{\"data\":[{\"id\":17}]}", "17");
    assert_id("json:/id", "", "{\"id\":null}", "");
    assert_id("json:/id", "", "{\"id\":[1]}", "");
    assert_id("json:/id", "", "{\"id\":\"a\\u0000b\"}", "");
    assert_id("json:/id", "", "<html>", "");
    assert_id("json:/id", "", "", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_failure_of_curl_is_judged_by_whether_it_was_sent),
        cmocka_unit_test(every_status_has_its_class),
        cmocka_unit_test(a_status_that_fails_counts_though_its_body_is_cut),
        cmocka_unit_test(a_target_says_at_which_failures_nothing_happened),
        cmocka_unit_test(a_target_may_call_any_status_a_success),
        cmocka_unit_test(only_failures_of_the_target_count_for_its_circuit),
        cmocka_unit_test(a_redirect_is_refused_by_name),
        cmocka_unit_test(a_reason_is_short_and_printable),
        cmocka_unit_test(a_retry_too_many_is_dead_and_says_why),
        cmocka_unit_test(what_a_key_covers_is_in_doubt),
        cmocka_unit_test(what_may_have_happened_is_never_given_up),
        cmocka_unit_test(the_gateway_says_what_became_of_a_request),
        cmocka_unit_test(a_request_without_an_outcome_is_uncertain),
        cmocka_unit_test(what_the_app_never_heard_of_was_not_sent),
        cmocka_unit_test(the_providers_id_is_found_where_the_target_says),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
