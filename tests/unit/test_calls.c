/* test_calls.c - every command and every reply of a typed call, good and bad.
 */
#include "tests/unit/peer.h"

static const struct lk_name name = {
    {"acme", 4}, {"POST /pay", 9}, {"key-1", 5}};

/* ---- Verdicts -------------------------------------------------------------
 */

/* A conversation of one call; the answer's slices live until end_talk. */
struct talk {
    struct peer peer;
    struct lk_client *client;
    struct lk_decision answer;
};

static void start_talk(struct talk *talk, const char *reply)
{
    *talk = (struct talk){
        .peer = {.reply = latchkey_slice(reply), .expect = 1, .rounds = 1}};
    start_peer(&talk->peer);
    talk->client = open_client(0);
}

static void end_talk(struct talk *talk)
{
    latchkey_client_close(talk->client);
    join_peer(&talk->peer);
    latchkey_buf_free(&talk->peer.heard);
}

static enum lk_status claim_with(struct talk *talk, const char *reply)
{
    start_talk(talk, reply);
    return latchkey_claim(talk->client, &plain_claim, &talk->answer);
}

static void a_new_claim_brings_token_lock_attempt_and_reference(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "*5\r\n$3\r\nNEW\r\n:9007199254740991"
                                       "\r\n:1700000000123\r\n:2\r\n$14\r\n"
                                       "7D3F-92AB-1C4E\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_NEW);
    assert_int_equal(talk.answer.token, 9007199254740991);
    assert_int_equal(talk.answer.lock_until_ms, 1700000000123);
    assert_int_equal(talk.answer.attempt, 2);
    assert_text(talk.answer.reference, "7D3F-92AB-1C4E");
    assert_int_equal(talk.answer.response.status, 0);
    assert_int_equal(talk.answer.expires_ms, 0);
    end_talk(&talk);
}

static void c02_a_replay_brings_the_stored_response(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "*7\r\n$6\r\nREPLAY\r\n:201\r\n$6\r\n"
                                       "A: b\r\n\r\n$4\r\n\r\n\xff"
                                       "x\r\n:11\r\n:22\r\n$1\r\nR\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_REPLAY);
    assert_int_equal(talk.answer.response.status, 201);
    assert_text(talk.answer.response.headers, "A: b\r\n");
    assert_text(talk.answer.response.body, "\r\n\xff"
                                           "x");
    assert_int_equal(talk.answer.completed_ms, 11);
    assert_int_equal(talk.answer.expires_ms, 22);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);
}

static void an_omitted_answer_brings_status_and_reason(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "*6\r\n$7\r\nOMITTED\r\n:200\r\n$9\r\n"
                                       "too large\r\n:11\r\n:22\r\n$1\r\nR"
                                       "\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_OMITTED);
    assert_int_equal(talk.answer.response.status, 200);
    assert_text(talk.answer.reason, "too large");
    assert_int_equal(talk.answer.completed_ms, 11);
    assert_int_equal(talk.answer.expires_ms, 22);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);
}

static void the_waiting_verdicts_bring_their_times(void **state)
{
    struct talk talk;

    assert_int_equal(
        claim_with(&talk, "*3\r\n$8\r\nINFLIGHT\r\n:1500\r\n$1\r\nR\r\n"),
        LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_INFLIGHT);
    assert_int_equal(talk.answer.retry_after_ms, 1500);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);

    assert_int_equal(
        claim_with(&talk, "*3\r\n$8\r\nACCEPTED\r\n:77\r\n$1\r\nR\r\n"), LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_ACCEPTED);
    assert_int_equal(talk.answer.since_ms, 77);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);

    assert_int_equal(claim_with(&talk, "*4\r\n$9\r\nUNCERTAIN\r\n$4\r\nlost"
                                       "\r\n:88\r\n$1\r\nR\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_UNCERTAIN);
    assert_text(talk.answer.reason, "lost");
    assert_int_equal(talk.answer.since_ms, 88);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);
}

static void the_refusing_verdicts_are_read(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "*2\r\n$8\r\nMISMATCH\r\n$1\r\nR\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_MISMATCH);
    assert_text(talk.answer.reference, "R");
    end_talk(&talk);

    assert_int_equal(
        claim_with(&talk, "*3\r\n$7\r\nLIMITED\r\n:900\r\n$4\r\nrate\r\n"),
        LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_LIMITED);
    assert_int_equal(talk.answer.retry_after_ms, 900);
    assert_text(talk.answer.reason, "rate");
    end_talk(&talk);

    assert_int_equal(claim_with(&talk, "*1\r\n$7\r\nREFUSED\r\n"), LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_REFUSED);
    end_talk(&talk);
}

static void fields_added_by_a_later_daemon_are_ignored(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "*4\r\n$8\r\nMISMATCH\r\n$1\r\nR\r\n"
                                       ":1\r\n$-1\r\n"),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_MISMATCH);
    end_talk(&talk);
}

static void a_release_is_done_kept_or_stale(void **state)
{
    struct talk talk;

    start_talk(&talk, "+OK\r\n");
    assert_int_equal(latchkey_release(talk.client, name, 1, &talk.answer),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_DONE);
    end_talk(&talk);

    start_talk(&talk, "+STALE\r\n");
    assert_int_equal(latchkey_release(talk.client, name, 1, &talk.answer),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_STALE);
    end_talk(&talk);

    start_talk(&talk, "*7\r\n$4\r\nKEPT\r\n:402\r\n$0\r\n\r\n$2\r\nno\r\n:1\r\n"
                      ":2\r\n$1\r\nR\r\n");
    assert_int_equal(latchkey_release(talk.client, name, 1, &talk.answer),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_KEPT);
    assert_int_equal(talk.answer.response.status, 402);
    assert_text(talk.answer.response.headers, "");
    assert_text(talk.answer.response.body, "no");
    assert_int_equal(talk.answer.completed_ms, 1);
    assert_int_equal(talk.answer.expires_ms, 2);
    end_talk(&talk);
}

/* ---- Commands on the wire -------------------------------------------------
 */

static void assert_command(struct talk *talk, enum lk_status status,
                           const char *expected)
{
    assert_int_equal(status, LK_OK);
    latchkey_client_close(talk->client);
    join_peer(&talk->peer);
    assert_heard(&talk->peer, expected);
}

#define NAME_WORDS "$4\r\nacme\r\n$9\r\nPOST /pay\r\n$5\r\nkey-1\r\n"

static void a_claim_sends_only_what_is_given(void **state)
{
    struct talk talk;

    enum lk_status status = claim_with(&talk, "*1\r\n$7\r\nREFUSED\r\n");
    assert_command(&talk, status,
                   "*5\r\n$5\r\nCLAIM\r\n" NAME_WORDS "$4\r\n1:ab\r\n");
}

static void a_claim_sends_every_option(void **state)
{
    struct lk_claim claim = plain_claim;
    struct talk talk;

    claim.owner = LK_SLICE("nonce");
    claim.ttl_ms = 86400000;
    claim.lock_ms = 30000;
    claim.wait_ms = UINT64_MAX;
    claim.reexecute = true;
    claim.no_new = true;
    start_talk(&talk, "*1\r\n$7\r\nREFUSED\r\n");
    enum lk_status status = latchkey_claim(talk.client, &claim, &talk.answer);
    assert_command(&talk, status,
                   "*15\r\n$5\r\nCLAIM\r\n" NAME_WORDS "$4\r\n1:ab\r\n"
                   "$5\r\nOWNER\r\n$5\r\nnonce\r\n$3\r\nTTL\r\n$8\r\n86400000"
                   "\r\n$4\r\nLOCK\r\n$5\r\n30000\r\n$4\r\nWAIT\r\n$20\r\n"
                   "18446744073709551615\r\n$9\r\nREEXECUTE\r\n$5\r\nNONEW"
                   "\r\n");
}

static void the_ends_of_a_claim_are_sent(void **state)
{
    static const struct lk_response response = {
        201, {"A: b\r\n", 6}, {"xy", 2}};
    struct talk talk;

    start_talk(&talk, "+OK\r\n");
    assert_command(
        &talk,
        latchkey_complete(talk.client, name, 7, &response, 0, &talk.answer),
        "*8\r\n$8\r\nCOMPLETE\r\n" NAME_WORDS
        "$1\r\n7\r\n$3\r\n201\r\n$6\r\nA: b\r\n\r\n$2\r\nxy\r\n");
    start_talk(&talk, "+OK\r\n");
    assert_command(
        &talk,
        latchkey_complete_omitted(talk.client, name, 7, 201,
                                  LK_SLICE("too large"), 60000, &talk.answer),
        "*12\r\n$8\r\nCOMPLETE\r\n" NAME_WORDS
        "$1\r\n7\r\n$3\r\n201\r\n$0\r\n\r\n$0\r\n\r\n$3\r\nTTL\r\n$5\r\n60000"
        "\r\n$4\r\nOMIT\r\n$9\r\ntoo large\r\n");
    start_talk(&talk, "+OK\r\n");
    assert_command(&talk, latchkey_release(talk.client, name, 7, &talk.answer),
                   "*5\r\n$7\r\nRELEASE\r\n" NAME_WORDS "$1\r\n7\r\n");
    start_talk(&talk, "+OK\r\n");
    assert_command(
        &talk,
        latchkey_doubt(talk.client, name, 7, LK_SLICE("reset"), &talk.answer),
        "*6\r\n$5\r\nDOUBT\r\n" NAME_WORDS "$1\r\n7\r\n$5\r\nreset\r\n");
    start_talk(&talk, "+OK\r\n");
    assert_command(
        &talk, latchkey_extend(talk.client, name, 7, 30000, &talk.answer),
        "*6\r\n$6\r\nEXTEND\r\n" NAME_WORDS "$1\r\n7\r\n$5\r\n30000\r\n");
}

/* ---- Replies that are wrong -----------------------------------------------
 */

static const struct lk_accept plain_accept = {
    .name = {{"acme", 4}, {"POST /pay", 9}, {"key-1", 5}},
    .fingerprint = {"print", 5},
    .method = {"POST", 4},
    .path = {"/pay?x=1", 8},
    .headers = {"A: b\r\n", 6},
    .body = {"", 0}};

static void an_accept_sends_the_request(void **state)
{
    struct talk talk;
    struct lk_accept accept = plain_accept;

    start_talk(&talk, "*3\r\n$8\r\nACCEPTED\r\n:77\r\n$1\r\nR\r\n");
    assert_command(&talk, latchkey_accept(talk.client, &accept, &talk.answer),
                   "*9\r\n$6\r\nACCEPT\r\n$4\r\nacme\r\n$9\r\nPOST /pay"
                   "\r\n$5\r\nkey-1\r\n$5\r\nprint\r\n$4\r\nPOST\r\n$8"
                   "\r\n/pay?x=1\r\n$6\r\nA: b\r\n\r\n$0\r\n\r\n");
    assert_int_equal(talk.answer.verdict, LK_VERDICT_ACCEPTED);
    assert_int_equal(talk.answer.since_ms, 77);

    accept.ttl_ms = 5;
    accept.reexecute = true;
    start_talk(&talk, "*2\r\n$8\r\nMISMATCH\r\n$1\r\nR\r\n");
    assert_command(&talk, latchkey_accept(talk.client, &accept, &talk.answer),
                   "*12\r\n$6\r\nACCEPT\r\n$4\r\nacme\r\n$9\r\nPOST /pay"
                   "\r\n$5\r\nkey-1\r\n$5\r\nprint\r\n$4\r\nPOST\r\n$8"
                   "\r\n/pay?x=1\r\n$6\r\nA: b\r\n\r\n$0\r\n\r\n$3\r\n"
                   "TTL\r\n$1\r\n5\r\n$9\r\nREEXECUTE\r\n");
    assert_int_equal(talk.answer.verdict, LK_VERDICT_MISMATCH);
}

static void an_accept_is_never_told_to_run(void **state)
{
    struct talk talk;

    start_talk(&talk, "*5\r\n$3\r\nNEW\r\n:1\r\n:2\r\n:1\r\n$1\r\nR\r\n");
    assert_int_equal(latchkey_accept(talk.client, &plain_accept, &talk.answer),
                     LK_MALFORMED);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_NIL);
    end_talk(&talk);
}

static void an_enqueue_sends_only_what_is_given(void **state)
{
    struct talk talk;
    struct lk_enqueue job = {.name = name,
                             .token = 7,
                             .job = LK_SLICE("charge"),
                             .target = LK_SLICE("pay"),
                             .path = LK_SLICE("/c")};

    start_talk(&talk, "+OK\r\n");
    assert_command(&talk, latchkey_enqueue(talk.client, &job, &talk.answer),
                   "*8\r\n$7\r\nENQUEUE\r\n$4\r\nacme\r\n$9\r\nPOST /pay"
                   "\r\n$5\r\nkey-1\r\n$1\r\n7\r\n$6\r\ncharge\r\n$3"
                   "\r\npay\r\n$2\r\n/c\r\n");
    assert_int_equal(talk.answer.verdict, LK_VERDICT_DONE);

    job.method = LK_SLICE("PUT");
    job.headers = LK_SLICE("A: b\r\n");
    job.body = LK_SLICE("{}");
    job.delay_ms = 9;
    start_talk(&talk, "+EXISTS\r\n");
    assert_command(&talk, latchkey_enqueue(talk.client, &job, &talk.answer),
                   "*16\r\n$7\r\nENQUEUE\r\n$4\r\nacme\r\n$9\r\nPOST /pay"
                   "\r\n$5\r\nkey-1\r\n$1\r\n7\r\n$6\r\ncharge\r\n$3"
                   "\r\npay\r\n$2\r\n/c\r\n$6\r\nMETHOD\r\n$3\r\nPUT\r\n"
                   "$7\r\nHEADERS\r\n$6\r\nA: b\r\n\r\n$4\r\nBODY\r\n$2"
                   "\r\n{}\r\n$5\r\nDELAY\r\n$1\r\n9\r\n");
    assert_int_equal(talk.answer.verdict, LK_VERDICT_EXISTS);
}

static void a_store_that_cannot_decide_is_unavailable(void **state)
{
    static const char *const replies[] = {"-UNAVAILABLE the disk is full\r\n",
                                          "-UNAVAILABLE\r\n"};
    struct talk talk;

    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(claim_with(&talk, replies[i]), LK_UNAVAILABLE);
        assert_non_null(
            strstr(latchkey_client_error(talk.client), "UNAVAILABLE"));
        assert_int_equal(talk.answer.verdict, LK_VERDICT_NIL);
        end_talk(&talk);
    }
}

static void any_other_error_reply_is_told_with_its_text(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "-ERR no such \x1b[31mcommand\r\n"),
                     LK_REPLY);
    assert_string_equal(latchkey_client_error(talk.client),
                        "ERR no such ?[31mcommand");
    end_talk(&talk);
    assert_int_equal(claim_with(&talk, "-UNAVAILABLES x\r\n"), LK_REPLY);
    end_talk(&talk);
}

static void a_reply_of_another_shape_is_malformed_and_never_new(void **state)
{
    static const char *const replies[] = {
        "+NEW\r\n",
        "+OK\r\n",
        "+STALE\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*1\r\n$3\r\nNEW\r\n",
        "*4\r\n$3\r\nNEW\r\n:1\r\n:2\r\n:3\r\n",
        "*5\r\n$3\r\nNEW\r\n$1\r\n1\r\n:2\r\n:3\r\n$1\r\nR\r\n",
        "*5\r\n$3\r\nNEW\r\n:-1\r\n:2\r\n:3\r\n$1\r\nR\r\n",
        "*5\r\n$3\r\nNEW\r\n:1\r\n:2\r\n:3\r\n:4\r\n",
        "*5\r\n$3\r\nNEW\r\n:1\r\n:2\r\n:3\r\n$-1\r\n",
        "*5\r\n$3\r\nnew\r\n:1\r\n:2\r\n:3\r\n$1\r\nR\r\n",
        "*5\r\n:1\r\n:1\r\n:2\r\n:3\r\n$1\r\nR\r\n",
        "*2\r\n*1\r\n$3\r\nNEW\r\n:1\r\n",
        "*7\r\n$4\r\nKEPT\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n:1\r\n:2\r\n$0\r\n\r\n",
        "*7\r\n$6\r\nREPLAY\r\n:4294967296\r\n$0\r\n\r\n$0\r\n\r\n:1\r\n:2\r\n"
        "$0\r\n\r\n",
        "*1\r\n$3\r\nNIL\r\n",
    };
    struct talk talk;

    for (size_t i = 0; i < sizeof(replies) / sizeof(*replies); i++) {
        assert_int_equal(claim_with(&talk, replies[i]), LK_MALFORMED);
        assert_int_equal(talk.answer.verdict, LK_VERDICT_NIL);
        assert_int_equal(talk.answer.token, 0);
        assert_memory_equal(latchkey_client_error(talk.client), "CLAIM: ", 7);
        end_talk(&talk);
    }
}

static void a_claims_verdict_does_not_end_a_claim(void **state)
{
    struct talk talk;

    start_talk(&talk, "*1\r\n$7\r\nREFUSED\r\n");
    assert_int_equal(latchkey_release(talk.client, name, 1, &talk.answer),
                     LK_MALFORMED);
    assert_string_equal(
        latchkey_client_error(talk.client),
        "RELEASE: the reply is not a verdict on it: \"REFUSED\"");
    end_talk(&talk);
}

static void a_pipelined_reply_is_read_as_a_verdict(void **state)
{
    const struct lk_slice words[] = {LK_SLICE("RELEASE")};
    const struct lk_reply *reply = NULL;
    struct talk talk;

    start_talk(&talk, "*8\r\n$4\r\nKEPT\r\n:201\r\n$0\r\n\r\n$0\r\n\r\n:5\r\n"
                      ":6\r\n$14\r\n7D3F-92AB-1C4E\r\n$9\r\ntoo large\r\n");
    assert_int_equal(latchkey_client_queue(talk.client, words, 1), LK_OK);
    assert_int_equal(latchkey_client_receive(talk.client, &reply), LK_OK);
    assert_int_equal(latchkey_client_decision(talk.client, reply, &talk.answer),
                     LK_OK);
    assert_int_equal(talk.answer.verdict, LK_VERDICT_KEPT);
    assert_int_equal(talk.answer.response.status, 201);
    assert_text(talk.answer.reason, "too large");
    end_talk(&talk);
}

static void what_is_no_resp_ends_the_connection(void **state)
{
    struct talk talk;

    assert_int_equal(claim_with(&talk, "HTTP/1.1 400 Bad Request\r\n\r\n"),
                     LK_MALFORMED);
    assert_int_equal(latchkey_claim(talk.client, &plain_claim, &talk.answer),
                     LK_MALFORMED);
    end_talk(&talk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_claim_brings_token_lock_attempt_and_reference),
        cmocka_unit_test(c02_a_replay_brings_the_stored_response),
        cmocka_unit_test(an_omitted_answer_brings_status_and_reason),
        cmocka_unit_test(the_waiting_verdicts_bring_their_times),
        cmocka_unit_test(the_refusing_verdicts_are_read),
        cmocka_unit_test(fields_added_by_a_later_daemon_are_ignored),
        cmocka_unit_test(a_release_is_done_kept_or_stale),
        cmocka_unit_test(a_claim_sends_only_what_is_given),
        cmocka_unit_test(a_claim_sends_every_option),
        cmocka_unit_test(the_ends_of_a_claim_are_sent),
        cmocka_unit_test(an_accept_sends_the_request),
        cmocka_unit_test(an_accept_is_never_told_to_run),
        cmocka_unit_test(an_enqueue_sends_only_what_is_given),
        cmocka_unit_test(a_store_that_cannot_decide_is_unavailable),
        cmocka_unit_test(any_other_error_reply_is_told_with_its_text),
        cmocka_unit_test(a_reply_of_another_shape_is_malformed_and_never_new),
        cmocka_unit_test(a_claims_verdict_does_not_end_a_claim),
        cmocka_unit_test(a_pipelined_reply_is_read_as_a_verdict),
        cmocka_unit_test(what_is_no_resp_ends_the_connection),
    };

    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
