/* test_client.c - connections that fail, hang and hang up, and pipelines. */
#include "tests/unit/peer.h"

#include <errno.h>
#include <netinet/in.h>

/* ---- Connections that fail ------------------------------------------------
 */

static void silence_is_a_time_out_and_ends_the_connection(void **state)
{
    static const char *const starts[] = {"", "*5\r\n$3\r\nNEW\r\n:1\r\n:2"};

    for (size_t i = 0; i < 2; i++) {
        struct peer peer = {.reply = latchkey_slice(starts[i]), .rounds = 1};
        struct lk_decision answer;
        start_peer(&peer);
        struct lk_client *client = open_client(30);
        assert_int_equal(latchkey_claim(client, &plain_claim, &answer),
                         LK_TIMEOUT);
        assert_int_equal(latchkey_claim(client, &plain_claim, &answer),
                         LK_TIMEOUT);
        assert_string_not_equal(latchkey_client_error(client), "");
        latchkey_client_close(client);
        join_peer(&peer);
        latchkey_buf_free(&peer.heard);
    }
}

static void a_hang_up_in_the_middle_of_a_reply_is_closed(void **state)
{
    struct peer peer = {.reply = LK_SLICE("*5\r\n$3\r\nNEW\r\n:1\r\n"),
                        .expect = 1,
                        .rounds = 1,
                        .hang_up = true};
    struct lk_decision answer;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    assert_int_equal(latchkey_claim(client, &plain_claim, &answer), LK_CLOSED);
    assert_int_equal(answer.verdict, LK_VERDICT_NIL);
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
}

/* A SIGPIPE would end this program. */
static void writing_to_a_peer_that_does_not_read_is_closed(void **state)
{
    struct peer peer = {
        .reply = LK_SLICE("+bye\r\n"), .rounds = 1, .deaf = true};
    const struct lk_slice word = LK_SLICE("PING");
    const struct lk_reply *reply;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(latchkey_client_queue(client, &word, 1), LK_OK);
    assert_int_equal(latchkey_client_flush(client), LK_CLOSED);
    latchkey_client_close(client);
    join_peer(&peer);
}

static void writing_to_a_peer_that_is_gone_is_closed(void **state)
{
    struct peer peer = {.hang_up = true};
    const struct lk_slice words[] = {LK_SLICE("PING")};
    const struct lk_reply *reply;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    join_peer(&peer);
    assert_int_equal(latchkey_client_queue(client, words, 1), LK_OK);
    assert_int_equal(latchkey_client_flush(client), LK_CLOSED);
    assert_int_equal(latchkey_client_queue(client, words, 1), LK_CLOSED);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_CLOSED);
    latchkey_client_close(client);
}

static void what_a_peer_says_before_it_hangs_up_is_heard(void **state)
{
    struct peer peer = {.reply = LK_SLICE("-ERR too many connections\r\n"),
                        .rounds = 1,
                        .hang_up = true};
    struct lk_decision answer;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    join_peer(&peer);
    assert_int_equal(latchkey_claim(client, &plain_claim, &answer), LK_REPLY);
    assert_string_equal(latchkey_client_error(client),
                        "ERR too many connections");
    latchkey_client_close(client);
}

static void assert_open_fails(const char *to, enum lk_status status)
{
    struct lk_client_options options = {.address = to,
                                        .connect_timeout_ms = 30};
    const struct lk_slice word = LK_SLICE("PING");
    struct lk_client *client = NULL;

    assert_int_equal(latchkey_client_open(&options, &client), status);
    assert_non_null(client);
    assert_string_not_equal(latchkey_client_error(client), "");
    assert_int_equal(latchkey_client_queue(client, &word, 1), status);
    latchkey_client_close(client);
}

static void an_address_that_is_none_is_invalid(void **state)
{
    static const char *const addresses[] = {
        NULL,
        "",
        "unix:",
        "localhost",
        "localhost:",
        ":6400",
        "[]:6400",
        "::1:6400",
        "[::1]",
        "localhost:0",
        "localhost:x",
        "host:65536",
        "host:-1",
        "host:6400x",
        "host: 6400",
        "unix:/0123456789012345678901234567890123456789012345678901234567890123"
        "4567890123456789012345678901234567890123456789012345678901234567890",
    };

    for (size_t i = 0; i < sizeof(addresses) / sizeof(*addresses); i++) {
        assert_open_fails(addresses[i], LK_INVALID);
    }
}

static void where_nobody_listens_opening_fails(void **state)
{
    unlink(path);
    assert_open_fails(address, LK_IO);
    close(listen_unix(1));
    assert_open_fails(address, LK_IO);
}

static void a_listener_that_does_not_accept_is_a_time_out(void **state)
{
    int listener = listen_unix(0);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int waiting[16];
    size_t count = 0;

    memcpy(to.sun_path, path, strlen(path));
    for (; count < 16; count++) {
        waiting[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        assert_true(waiting[count] >= 0);
        if (connect(waiting[count], (struct sockaddr *)&to, sizeof(to))) {
            assert_int_equal(errno, EAGAIN);
            break;
        }
    }
    assert_in_range(count, 1, 15);
    assert_open_fails(address, LK_TIMEOUT);
    for (size_t i = 0; i <= count; i++) {
        close(waiting[i]);
    }
    close(listener);
}

/* ---- TCP ------------------------------------------------------------------
 */

static bool listen_tcp(int family, int *fd, unsigned *port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6,
                               .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr *at =
        family == AF_INET ? (struct sockaddr *)&four : (struct sockaddr *)&six;
    socklen_t len = family == AF_INET ? sizeof(four) : sizeof(six);

    *fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 || bind(*fd, at, len) || listen(*fd, 8) ||
        getsockname(*fd, at, &len)) {
        close(*fd);
        return false;
    }
    *port = ntohs(family == AF_INET ? four.sin_port : six.sin6_port);
    return true;
}

static void assert_tcp_works(int family, const char *form)
{
    struct peer peer = {
        .reply = LK_SLICE("+PONG\r\n"), .expect = 1, .rounds = 1};
    const struct lk_slice word = LK_SLICE("PING");
    const struct lk_reply *reply;
    struct lk_client *client;
    unsigned port = 0;
    char to[64];

    if (!listen_tcp(family, &peer.listener, &port)) {
        skip();
    }
    snprintf(to, sizeof(to), "%s:%u", form, port);
    start_peer(&peer);
    assert_int_equal(latchkey_client_open(
                         &(struct lk_client_options){.address = to}, &client),
                     LK_OK);
    assert_int_equal(latchkey_client_call(client, &word, 1, 0, &reply), LK_OK);
    assert_text(reply->text, "PONG");
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
}

static void a_host_and_port_can_be_given(void **state)
{
    assert_tcp_works(AF_INET, "127.0.0.1");
    assert_tcp_works(AF_INET, "localhost");
}

static void an_ipv6_host_stands_in_brackets(void **state)
{
    assert_tcp_works(AF_INET6, "[::1]");
}

/* ---- Authentication -------------------------------------------------------
 */

static void assert_auth(const char *user, const char *reply,
                        enum lk_status status, const char *heard)
{
    struct peer peer = {
        .reply = latchkey_slice(reply), .expect = 1, .rounds = 1};
    struct lk_client_options options = {
        .address = address, .user = user, .password = "opensesame"};
    struct lk_client *client;

    start_peer(&peer);
    assert_int_equal(latchkey_client_open(&options, &client), status);
    assert_null(strstr(latchkey_client_error(client), "opensesame"));
    latchkey_client_close(client);
    join_peer(&peer);
    assert_heard(&peer, heard);
}

static void a_password_is_sent_with_and_without_a_user(void **state)
{
    const char *const alone = "*2\r\n$4\r\nAUTH\r\n$10\r\nopensesame\r\n";
    const char *const both =
        "*3\r\n$4\r\nAUTH\r\n$5\r\nadmin\r\n$10\r\nopensesame\r\n";

    assert_auth(NULL, "+OK\r\n", LK_OK, alone);
    assert_auth("admin", "+OK\r\n", LK_OK, both);
    assert_auth("admin", "-WRONGPASS no\r\n", LK_DENIED, both);
    assert_auth(NULL, "-UNAVAILABLE starting\r\n", LK_UNAVAILABLE, alone);
    assert_auth(NULL, ":1\r\n", LK_MALFORMED, alone);
}

static void a_user_without_a_password_is_invalid(void **state)
{
    struct lk_client_options options = {.address = address, .user = "admin"};
    struct lk_client *client;

    assert_int_equal(latchkey_client_open(&options, &client), LK_INVALID);
    latchkey_client_close(client);
    latchkey_client_close(NULL);
    assert_non_null(latchkey_client_error(NULL));
}

/* ---- Pipelines ------------------------------------------------------------
 */

static void replies_come_in_order_and_in_every_type(void **state)
{
    struct peer peer = {.reply =
                            LK_SLICE("+one\r\n:-2\r\n$-1\r\n-ERR four\r\n"
                                     "*3\r\n$1\r\na\r\n*1\r\n:6\r\n*0\r\n"),
                        .expect = 5 * 14,
                        .rounds = 1};
    const struct lk_slice word = LK_SLICE("PING");
    const struct lk_reply *reply;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(latchkey_client_queue(client, &word, 1), LK_OK);
    }
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(reply->type, LK_REPLY_TEXT);
    assert_text(reply->text, "one");
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(reply->type, LK_REPLY_INTEGER);
    assert_int_equal(reply->integer, -2);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(reply->type, LK_REPLY_NIL);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(reply->type, LK_REPLY_ERROR);
    assert_text(reply->text, "ERR four");
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_int_equal(reply->type, LK_REPLY_ARRAY);
    assert_int_equal(reply->count, 3);
    assert_text(reply->elements[0].text, "a");
    assert_int_equal(reply->elements[1].elements[0].integer, 6);
    assert_int_equal(reply->elements[2].count, 0);
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
}

static void a_call_never_takes_the_reply_of_an_earlier_command(void **state)
{
    struct peer peer = {
        .reply = LK_SLICE("+first\r\n"), .expect = 14, .rounds = 2};
    const struct lk_slice word = LK_SLICE("PING");
    const struct lk_reply *reply;
    struct lk_decision answer;

    start_peer(&peer);
    struct lk_client *client = open_client(0);
    assert_int_equal(latchkey_client_queue(client, &word, 0), LK_INVALID);
    assert_int_equal(latchkey_client_queue(client, &word, 1), LK_OK);
    assert_int_equal(latchkey_claim(client, &plain_claim, &answer), LK_INVALID);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    assert_text(reply->text, "first");
    assert_int_equal(latchkey_client_call(client, &word, 1, 0, &reply), LK_OK);
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
}

enum { LARGE = 64 * 1024, LARGE_COUNT = 40 };

/* The peer takes no second command before its first reply is taken. */
static void flushing_takes_replies_while_it_sends(void **state)
{
    struct lk_buf text = {0};
    const struct lk_reply *reply;
    char body[LARGE];

    memset(body, 'x', sizeof(body));
    assert_int_equal(latchkey_buf_printf(&text, "$%d\r\n", LARGE), LK_OK);
    assert_int_equal(latchkey_buf_add(&text, body, LARGE), LK_OK);
    assert_int_equal(latchkey_buf_add_text(&text, "\r\n"), LK_OK);
    const struct lk_slice words[] = {LK_SLICE("ECHO"), {body, LARGE}};
    struct peer peer = {.reply = latchkey_buf_slice(&text),
                        .expect = 14 + text.len,
                        .rounds = LARGE_COUNT};
    start_peer(&peer);
    struct lk_client *client = open_client(0);
    for (int i = 0; i < LARGE_COUNT; i++) {
        assert_int_equal(latchkey_client_queue(client, words, 2), LK_OK);
    }
    assert_int_equal(latchkey_client_flush(client), LK_OK);
    for (int i = 0; i < LARGE_COUNT; i++) {
        assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
        assert_int_equal(reply->text.len, LARGE);
    }
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
    latchkey_buf_free(&text);
}

/* A reply is valid until the next receive or call, which flush is not. */
static void flushing_leaves_the_last_reply_as_it_is(void **state)
{
    struct lk_buf text = {0};
    const struct lk_reply *reply;
    char body[LARGE];

    for (int i = 0; i < LARGE; i++) {
        body[i] = (char)('a' + i % 26);
    }
    assert_int_equal(
        latchkey_buf_printf(&text, "+one\r\n*2\r\n*1\r\n:7\r\n$%d\r\n", LARGE),
        LK_OK);
    assert_int_equal(latchkey_buf_add(&text, body, LARGE), LK_OK);
    assert_int_equal(latchkey_buf_add_text(&text, "\r\n"), LK_OK);
    const struct lk_slice words[] = {LK_SLICE("ECHO"), {body, LARGE}};
    struct peer peer = {.reply = latchkey_buf_slice(&text),
                        .expect = 14 + strlen("$65536\r\n\r\n") + LARGE,
                        .rounds = LARGE_COUNT};
    start_peer(&peer);
    struct lk_client *client = open_client(0);
    assert_int_equal(latchkey_client_call(client, words, 2, 0, &reply), LK_OK);
    assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
    const struct lk_reply *last = reply;
    for (int i = 1; i < LARGE_COUNT; i++) {
        assert_int_equal(latchkey_client_queue(client, words, 2), LK_OK);
    }
    assert_int_equal(latchkey_client_flush(client), LK_OK);
    assert_int_equal(last->count, 2);
    assert_int_equal(last->elements[0].elements[0].integer, 7);
    assert_int_equal(last->elements[1].text.len, LARGE);
    assert_memory_equal(last->elements[1].text.data, body, LARGE);
    for (int i = 1; i < LARGE_COUNT; i++) {
        assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
        assert_text(reply->text, "one");
        assert_int_equal(latchkey_client_receive(client, &reply), LK_OK);
        assert_memory_equal(reply->elements[1].text.data, body, LARGE);
    }
    latchkey_client_close(client);
    join_peer(&peer);
    latchkey_buf_free(&peer.heard);
    latchkey_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_a_time_out_and_ends_the_connection),
        cmocka_unit_test(a_hang_up_in_the_middle_of_a_reply_is_closed),
        cmocka_unit_test(writing_to_a_peer_that_does_not_read_is_closed),
        cmocka_unit_test(writing_to_a_peer_that_is_gone_is_closed),
        cmocka_unit_test(what_a_peer_says_before_it_hangs_up_is_heard),
        cmocka_unit_test(an_address_that_is_none_is_invalid),
        cmocka_unit_test(where_nobody_listens_opening_fails),
        cmocka_unit_test(a_listener_that_does_not_accept_is_a_time_out),
        cmocka_unit_test(a_host_and_port_can_be_given),
        cmocka_unit_test(an_ipv6_host_stands_in_brackets),
        cmocka_unit_test(a_password_is_sent_with_and_without_a_user),
        cmocka_unit_test(a_user_without_a_password_is_invalid),
        cmocka_unit_test(replies_come_in_order_and_in_every_type),
        cmocka_unit_test(a_call_never_takes_the_reply_of_an_earlier_command),
        cmocka_unit_test(flushing_takes_replies_while_it_sends),
        cmocka_unit_test(flushing_leaves_the_last_reply_as_it_is),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
