/* test_http.c - calls by curl: where they can go, what they say, and whether
 * they may have been received (C27, C28). */
#include "courier/http_call.h"
#include "tests/courier/peer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct bench {
    struct peer peer;
    char url[64];
    struct lk_target target;
    struct lk_http_request request;
    struct lk_http_response response;
};

#define FINE "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Id: 7\r\n\r\nok"

static int set_up(void **state)
{
    struct bench *bench = calloc(1, sizeof(*bench));

    *state = bench;
    if (!bench || lk_http_init() || !peer_start(&bench->peer)) {
        return -1;
    }
    peer_say(&bench->peer, FINE);
    snprintf(bench->url, sizeof(bench->url), "http://127.0.0.1:%u/base",
             bench->peer.port);
    bench->target = (struct lk_target){.name = "pay",
                                       .url = bench->url,
                                       .connect_timeout_ms = 5000,
                                       .timeout_ms = 5000};
    bench->request = (struct lk_http_request){
        .target = &bench->target,
        .method = LK_SLICE("POST"),
        .path = LK_SLICE("/charge?x=1"),
        .headers = LK_SLICE("Content-Type: text/plain\r\n"),
        .body = LK_SLICE("hello")};
    return 0;
}

static int tear_down(void **state)
{
    struct bench *bench = *state;

    peer_stop(&bench->peer);
    lk_http_response_free(&bench->response);
    free(bench);
    return 0;
}

static enum lk_status call(struct bench *bench)
{
    return lk_http_call(&bench->request, &bench->response);
}

static bool was_said(struct bench *bench, const char *text)
{
    pthread_mutex_lock(&bench->peer.lock);
    bool said = strstr(bench->peer.request, text) != NULL;
    pthread_mutex_unlock(&bench->peer.lock);
    return said;
}

static void a_call_arrives_as_it_was_meant(void **state)
{
    struct bench *bench = *state;

    assert_int_equal(call(bench), LK_OK);
    assert_int_equal(bench->response.status, 200);
    assert_true(bench->response.sent && bench->response.whole);
    assert_false(bench->response.cut);
    assert_int_equal(bench->response.body.len, 2);
    assert_memory_equal(bench->response.body.data, "ok", 2);
    struct lk_slice id =
        lk_http_header(latchkey_buf_slice(&bench->response.headers), "x-id");
    assert_true(latchkey_slice_equal(id, LK_SLICE("7")));
    assert_true(was_said(bench, "POST /base/charge?x=1 HTTP/1.1\r\n"));
    assert_true(was_said(bench, "\r\nContent-Type: text/plain\r\n"));
    assert_true(was_said(bench, "\r\nContent-Length: 5\r\n"));
    assert_true(was_said(bench, "\r\nUser-Agent: latchkey/"));
    assert_true(was_said(bench, "\r\n\r\nhello"));
    assert_false(was_said(bench, "Expect:"));
}

static void nothing_is_added_that_nobody_said(void **state)
{
    struct bench *bench = *state;

    bench->request.headers = (struct lk_slice){0};
    bench->request.body = (struct lk_slice){0};
    assert_int_equal(call(bench), LK_OK);
    assert_false(was_said(bench, "Content-Type"));
    assert_true(was_said(bench, "\r\nContent-Length: 0\r\n"));
}

static void a_header_without_a_value_is_sent_without_one(void **state)
{
    struct bench *bench = *state;

    bench->request.headers = LK_SLICE("X-Empty:\r\nUser-Agent: \r\nX-B: b\r\n");
    assert_int_equal(call(bench), LK_OK);
    assert_true(was_said(bench, "\r\nX-Empty:\r\n"));
    assert_true(was_said(bench, "\r\nX-B: b\r\n"));
}

static void the_targets_headers_win_but_not_over_our_own(void **state)
{
    struct bench *bench = *state;

    bench->target.headers = (char *)"Authorization: Bearer right\r\n"
                                    "Idempotency-Key: all-the-same\r\n";
    bench->request.headers = LK_SLICE("authorization: Bearer wrong\r\n"
                                      "X-Job: yes\r\n");
    bench->request.extra = LK_SLICE("Idempotency-Key: key-1\r\n");
    assert_int_equal(call(bench), LK_OK);
    assert_true(was_said(bench, "\r\nAuthorization: Bearer right\r\n"));
    assert_true(was_said(bench, "\r\nX-Job: yes\r\n"));
    assert_true(was_said(bench, "\r\nIdempotency-Key: key-1\r\n"));
    assert_false(was_said(bench, "wrong"));
    assert_false(was_said(bench, "all-the-same"));
}

static void every_method_goes_with_its_body_or_without(void **state)
{
    struct bench *bench = *state;
    static const char *const methods[] = {"GET", "POST", "PUT", "PATCH",
                                          "DELETE"};

    for (size_t i = 0; i < 10; i++) {
        char line[64];
        bench->request.method = latchkey_slice(methods[i % 5]);
        bench->request.body = i < 5 ? LK_SLICE("hello") : (struct lk_slice){0};
        assert_int_equal(call(bench), LK_OK);
        snprintf(line, sizeof(line), "%s /base/charge", methods[i % 5]);
        assert_true(was_said(bench, line));
        assert_int_equal(was_said(bench, "\r\n\r\nhello"), i < 5);
    }
}

static void a_path_that_leads_elsewhere_is_refused_before_anything(void **state)
{
    struct bench *bench = *state;
    static const char *const paths[] = {
        "",
        "charge",
        "//evil.example/x",
        "http://evil.example/",
        "/../x",
        "/a/%2e%2e/x",
        "/a\r\nX: y",
        "/a b",
        "/a#frag",
        "\\evil",
        "/a/..%2fx",
        "@evil.example/",
        "/\x01",
        "/\xc3\xa9",
        ":80/x",
        "/.",
    };

    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        bench->request.path = latchkey_slice(paths[i]);
        assert_int_equal(call(bench), LK_INVALID);
        assert_true(bench->response.error[0]);
        assert_false(bench->response.sent);
    }
    bench->request.path = LK_SLICE("/x");
    bench->request.method = LK_SLICE("CONNECT");
    assert_int_equal(call(bench), LK_INVALID);
    bench->request.method = LK_SLICE("POST");
    bench->request.headers = LK_SLICE("Host: evil.example\r\n");
    assert_int_equal(call(bench), LK_INVALID);
    bench->request.headers = LK_SLICE("X: y\r\nTransfer-Encoding: chunked\r\n");
    assert_int_equal(call(bench), LK_INVALID);
    assert_int_equal(atomic_load(&bench->peer.connections), 0);
}

static void userinfo_in_a_path_stays_a_path(void **state)
{
    struct bench *bench = *state;

    bench->request.path = LK_SLICE("/@evil.example:80/x?u=http://evil/");
    assert_int_equal(call(bench), LK_OK);
    assert_true(was_said(bench, "POST /base/@evil.example:80/x?u=http://evil/"
                                " HTTP/1.1\r\n"));
}

static void a_redirect_is_not_followed(void **state)
{
    struct bench *bench = *state;
    char response[200];

    snprintf(response, sizeof(response),
             "HTTP/1.1 307 Temporary Redirect\r\nLocation: "
             "http://127.0.0.1:%u/other\r\nContent-Length: 0\r\n\r\n",
             bench->peer.port);
    peer_say(&bench->peer, response);
    assert_int_equal(call(bench), LK_OK);
    assert_int_equal(bench->response.status, 307);
    assert_int_equal(atomic_load(&bench->peer.requests), 1);
}

static void a_proxy_of_the_environment_is_not_used(void **state)
{
    struct bench *bench = *state;

    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("ALL_PROXY", "http://127.0.0.1:1", 1);
    assert_int_equal(call(bench), LK_OK);
    unsetenv("http_proxy");
    unsetenv("ALL_PROXY");
}

/* ---- whether it was sent ------------------------------------------------- */

static void nobody_listens_so_it_was_not_sent(void **state)
{
    struct bench *bench = *state;

    bench->target.url = (char *)"http://127.0.0.1:1";
    assert_int_equal(call(bench), LK_IO);
    assert_false(bench->response.sent);
    assert_true(bench->response.error[0]);
    bench->target.url = (char *)"http://nowhere.invalid";
    assert_int_equal(call(bench), LK_IO);
    assert_false(bench->response.sent);
    bench->target.url = (char *)"http://localhost";
    bench->target.socket = (char *)"/nonexistent/socket";
    assert_int_equal(call(bench), LK_IO);
    assert_false(bench->response.sent);
}

static void no_tls_on_the_other_side_so_it_was_not_sent(void **state)
{
    struct bench *bench = *state;

    snprintf(bench->url, sizeof(bench->url), "https://127.0.0.1:%u",
             bench->peer.port);
    bench->peer.deaf = true;
    assert_int_equal(call(bench), LK_IO);
    assert_false(bench->response.sent);
}

static void closed_without_an_answer_it_may_have_been_received(void **state)
{
    struct bench *bench = *state;

    peer_say(&bench->peer, NULL);
    assert_int_equal(call(bench), LK_IO);
    assert_true(bench->response.sent);
    assert_int_equal(bench->response.status, 0);
    assert_int_equal(atomic_load(&bench->peer.requests), 1);
}

static void cut_off_within_its_answer_it_is_not_whole(void **state)
{
    struct bench *bench = *state;
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsho",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "HTTP/1.1 2",
    };

    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        peer_say(&bench->peer, answers[i]);
        assert_int_equal(call(bench), LK_IO);
        assert_true(bench->response.sent);
        assert_false(bench->response.whole);
        assert_int_equal(atomic_load(&bench->peer.requests), i + 1);
    }
}

static void nonsense_is_no_answer(void **state)
{
    struct bench *bench = *state;

    peer_say(&bench->peer, "220 mail.example ESMTP\r\n");
    assert_int_equal(call(bench), LK_IO);
    assert_true(bench->response.sent);
    assert_int_equal(bench->response.status, 0);
}

static void a_silent_target_is_left_after_its_time(void **state)
{
    struct bench *bench = *state;

    bench->peer.mute = true;
    peer_say(&bench->peer, NULL);
    bench->request.timeout_ms = 50;
    assert_int_equal(call(bench), LK_IO);
    assert_true(bench->response.sent);
}

static void a_call_can_be_cancelled(void **state)
{
    struct bench *bench = *state;
    atomic_bool cancel = true;

    bench->peer.mute = true;
    peer_say(&bench->peer, NULL);
    bench->request.cancel = &cancel;
    bench->request.timeout_ms = 60000;
    assert_int_equal(call(bench), LK_IO);
    assert_int_equal(bench->response.status, 0);
}

/* ---- answers of every kind ----------------------------------------------- */

static void a_giant_answer_is_cut_and_its_status_counts(void **state)
{
    struct bench *bench = *state;

    peer_say(&bench->peer, "HTTP/1.1 201 Created\r\n\r\n");
    bench->peer.again = "0123456789abcdef0123456789abcdef";
    bench->peer.repeat = 100000;
    bench->request.response_max = 1000;
    assert_int_equal(call(bench), LK_OK);
    assert_true(bench->response.whole && bench->response.cut);
    assert_int_equal(bench->response.status, 201);
    assert_int_equal(bench->response.body.len, 1000);
}

static void headers_without_end_are_bounded(void **state)
{
    struct bench *bench = *state;

    peer_say(&bench->peer, "HTTP/1.1 200 OK\r\n");
    bench->peer.again = "X-Filler: 0123456789abcdef0123456789abcdef\r\n";
    bench->peer.repeat = 20000;
    assert_int_equal(call(bench), LK_IO);
    assert_true(bench->response.sent);
    assert_true(bench->response.headers.len <= 64 << 10);
}

static void interim_answers_are_not_the_answer(void **state)
{
    struct bench *bench = *state;

    peer_say(&bench->peer, "HTTP/1.1 103 Early Hints\r\nX-Id: 1\r\n\r\n"
                           "HTTP/1.1 100 Continue\r\n\r\n" FINE);
    assert_int_equal(call(bench), LK_OK);
    assert_int_equal(bench->response.status, 200);
    struct lk_slice id =
        lk_http_header(latchkey_buf_slice(&bench->response.headers), "X-Id");
    assert_true(latchkey_slice_equal(id, LK_SLICE("7")));
}

/* ---- connections --------------------------------------------------------- */

/* One that dies under a request leaves nobody knowing whether it came. */
static void only_where_the_key_is_honoured_a_connection_is_used_twice(
    void **state)
{
    struct bench *bench = *state;
    CURLM *multi = curl_multi_init();
    struct lk_exchange exchange = {0};

    for (unsigned i = 0; i < 6; i++) {
        int left = 1;
        bench->target.honours = i >= 3;
        bench->peer.keep = i >= 3;
        exchange.ready = i != 0 && i != 3;
        assert_int_equal(lk_exchange_begin(&exchange, &bench->request), LK_OK);
        curl_multi_add_handle(multi, exchange.easy);
        while (left && !curl_multi_perform(multi, &left)) {
            curl_multi_poll(multi, NULL, 0, 1000, NULL);
        }
        curl_multi_remove_handle(multi, exchange.easy);
        lk_exchange_end(&exchange, CURLE_OK);
        assert_int_equal(exchange.response.status, 200);
        assert_int_equal(was_said(bench, "\r\nConnection: close\r\n"), i < 3);
        assert_int_equal(atomic_load(&bench->peer.connections),
                         i < 3 ? i + 1 : 4);
    }
    lk_exchange_free(&exchange);
    curl_multi_cleanup(multi);
}

/* ---- requests ------------------------------------------------------------ */

static void a_request_keeps_its_own_path_and_headers(void **state)
{
    struct bench *bench = *state;

    bench->request.gateway = true;
    bench->request.path = LK_SLICE("/a//b/../c?q=#\xc3\xa9");
    bench->request.headers = LK_SLICE("Host: shop.example\r\n"
                                      "Idempotency-Key: \"k\"\r\n");
    bench->request.extra = LK_SLICE("Latchkey-Token: 5\r\n");
    assert_int_equal(call(bench), LK_OK);
    assert_true(was_said(bench, "POST /a//b/../c?q=#\xc3\xa9 HTTP/1.1\r\n"));
    assert_true(was_said(bench, "\r\nHost: shop.example\r\n"));
    assert_true(was_said(bench, "\r\nIdempotency-Key: \"k\"\r\n"));
    assert_true(was_said(bench, "\r\nLatchkey-Token: 5\r\n"));
    assert_false(was_said(bench, "User-Agent:"));
    assert_false(was_said(bench, "Accept:"));
}

static void a_request_cannot_frame_itself_or_say_whose_it_is(void **state)
{
    struct bench *bench = *state;

    bench->request.gateway = true;
    bench->request.body = LK_SLICE("hello");
    bench->request.headers = LK_SLICE("Content-Length: 0\r\n"
                                      "transfer-encoding: chunked\r\n"
                                      "Connection: keep-alive\r\n"
                                      "latchkey-token: 9\r\n");
    bench->request.extra = LK_SLICE("Latchkey-Token: 5\r\n");
    assert_int_equal(call(bench), LK_OK);
    assert_true(was_said(bench, "\r\nContent-Length: 5\r\n"));
    assert_true(was_said(bench, "\r\nLatchkey-Token: 5\r\n"));
    assert_false(was_said(bench, "Content-Length: 0"));
    assert_false(was_said(bench, "chunked"));
    assert_false(was_said(bench, "keep-alive"));
    assert_false(was_said(bench, "latchkey-token: 9"));
}

static void what_would_break_a_request_is_refused(void **state)
{
    struct bench *bench = *state;

    bench->request.gateway = true;
    bench->request.extra = LK_SLICE("Latchkey-Tenant: a\x01"
                                    "b\r\n");
    assert_int_equal(call(bench), LK_INVALID);
    bench->request.extra = LK_SLICE("Latchkey-Tenant: a\r\nb\r\n");
    assert_int_equal(call(bench), LK_INVALID);
    bench->request.extra = (struct lk_slice){0};
    bench->request.path = LK_SLICE("/a b");
    assert_int_equal(call(bench), LK_INVALID);
    assert_int_equal(atomic_load(&bench->peer.connections), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_call_arrives_as_it_was_meant),
        TEST(nothing_is_added_that_nobody_said),
        TEST(a_header_without_a_value_is_sent_without_one),
        TEST(the_targets_headers_win_but_not_over_our_own),
        TEST(every_method_goes_with_its_body_or_without),
        TEST(a_path_that_leads_elsewhere_is_refused_before_anything),
        TEST(userinfo_in_a_path_stays_a_path),
        TEST(a_redirect_is_not_followed),
        TEST(a_proxy_of_the_environment_is_not_used),
        TEST(nobody_listens_so_it_was_not_sent),
        TEST(no_tls_on_the_other_side_so_it_was_not_sent),
        TEST(closed_without_an_answer_it_may_have_been_received),
        TEST(cut_off_within_its_answer_it_is_not_whole),
        TEST(nonsense_is_no_answer),
        TEST(a_silent_target_is_left_after_its_time),
        TEST(a_call_can_be_cancelled),
        TEST(a_giant_answer_is_cut_and_its_status_counts),
        TEST(headers_without_end_are_bounded),
        TEST(interim_answers_are_not_the_answer),
        TEST(only_where_the_key_is_honoured_a_connection_is_used_twice),
        TEST(a_request_keeps_its_own_path_and_headers),
        TEST(a_request_cannot_frame_itself_or_say_whose_it_is),
        TEST(what_would_break_a_request_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
