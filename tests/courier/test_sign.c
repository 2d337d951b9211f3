/* test_sign.c - webhook signatures, against what the openssl program computes:
 *
 *   printf '%s' ID.TIME.BODY | openssl dgst -sha256 -mac HMAC \
 *     -macopt hexkey:KEY -binary | base64
 */
#include "courier/webhook_sign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void assert_signs(const char *secret, const char *id, uint64_t seconds,
                         const char *body, const char *headers)
{
    struct lk_buf out = {0};

    assert_int_equal(lk_sign(latchkey_slice(secret), latchkey_slice(id),
                             seconds, latchkey_slice(body), &out),
                     LK_OK);
    assert_int_equal(latchkey_buf_add(&out, "", 1), LK_OK);
    assert_string_equal(out.data, headers);
    latchkey_buf_free(&out);
}

static void a_secret_in_base64_signs_id_time_and_body(void **state)
{
    assert_signs("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                 "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330,
                 "{\"test\": 2432232314}",
                 "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\r\n"
                 "webhook-timestamp: 1614265330\r\n"
                 "webhook-signature: "
                 "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=\r\n");
}

#define PADDED                                                                 \
    "webhook-id: a\r\nwebhook-timestamp: 1700000000\r\nwebhook-signature: "    \
    "v1,YkLe4fSWWftEcMHANHWkbfn0SdvPFbhXeiS9n+NqktY=\r\n"

static void padding_may_be_there_or_not(void **state)
{
    assert_signs("whsec_c2VjcmV0IQ==", "a", 1700000000, "hello", PADDED);
    assert_signs("whsec_c2VjcmV0IQ", "a", 1700000000, "hello", PADDED);
}

static void any_other_secret_is_the_key_itself(void **state)
{
    assert_signs("plain-secret", "job1", 0, "",
                 "webhook-id: job1\r\nwebhook-timestamp: 0\r\n"
                 "webhook-signature: "
                 "v1,auPl5eeVwkcDloj7eW/nAj0wsXI5ThYHWKOUjxvQNaA=\r\n");
}

static void two_secrets_give_two_signatures(void **state)
{
    assert_signs("whsec_c2VjcmV0IQ== secret!", "a", 1700000000, "hello",
                 "webhook-id: a\r\nwebhook-timestamp: 1700000000\r\n"
                 "webhook-signature: "
                 "v1,YkLe4fSWWftEcMHANHWkbfn0SdvPFbhXeiS9n+NqktY= "
                 "v1,YkLe4fSWWftEcMHANHWkbfn0SdvPFbhXeiS9n+NqktY=\r\n");
}

static void a_secret_that_cannot_be_read_signs_nothing(void **state)
{
    static const char *const secrets[] = {"", "   ", "whsec_", "whsec_!!!!",
                                          "whsec_A"};
    char huge[1000];

    memset(huge, 'x', sizeof(huge));
    huge[sizeof(huge) - 1] = 0;
    for (size_t i = 0; i <= sizeof(secrets) / sizeof(secrets[0]); i++) {
        const char *secret =
            i < sizeof(secrets) / sizeof(secrets[0]) ? secrets[i] : huge;
        struct lk_buf out = {0};
        assert_int_equal(lk_sign(latchkey_slice(secret), LK_SLICE("a"), 1,
                                 LK_SLICE("b"), &out),
                         LK_INVALID);
        assert_int_equal(out.len, 0);
        latchkey_buf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_in_base64_signs_id_time_and_body),
        cmocka_unit_test(padding_may_be_there_or_not),
        cmocka_unit_test(any_other_secret_is_the_key_itself),
        cmocka_unit_test(two_secrets_give_two_signatures),
        cmocka_unit_test(a_secret_that_cannot_be_read_signs_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
