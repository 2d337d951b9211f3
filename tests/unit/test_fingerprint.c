/* test_fingerprint.c - which requests are the same and which are not (C04). */
#include "latchkey.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct lk_fingerprint fingerprint(struct lk_request request)
{
    struct lk_fingerprint result;

    memset(&result, 0xee, sizeof result);
    assert_int_equal(latchkey_fingerprint(&request, &result, NULL), LK_OK);
    return result;
}

static bool same(struct lk_request a, struct lk_request b)
{
    struct lk_fingerprint x = fingerprint(a), y = fingerprint(b);

    return !memcmp(x.digest, y.digest, sizeof x.digest);
}

static enum lk_body_form form_of(struct lk_request request)
{
    return fingerprint(request).form;
}

static struct lk_request with_body(const char *content_type, const char *body)
{
    return (struct lk_request){.method = LK_SLICE("POST"),
                               .path = LK_SLICE("/payments"),
                               .content_type = latchkey_slice(content_type),
                               .body = latchkey_slice(body)};
}

static struct lk_request json(const char *body)
{
    return with_body("application/json", body);
}

static struct lk_request form(const char *body)
{
    return with_body("application/x-www-form-urlencoded", body);
}

/* ---- Fields ---------------------------------------------------------------
 */

static const struct lk_header two_headers[] = {
    {LK_SLICE("X-B"), LK_SLICE(" two words\t")},
    {LK_SLICE("x-a"), LK_SLICE("1")},
};

static struct lk_request fixed_request(void)
{
    return (struct lk_request){
        .method = LK_SLICE("POST"),
        .path = LK_SLICE("/payments"),
        .query = LK_SLICE("dry=1"),
        .content_type = LK_SLICE("Application/JSON; charset=utf-8"),
        .headers = two_headers,
        .header_count = 2,
        .binding = LK_SLICE("session-7"),
        .body = LK_SLICE("{ \"note\": \"caf\\u00e9\", \"amount\": 10.0 }"),
    };
}

/* The digest was computed from docs/fingerprint.md by other means. If this
 * fails, every stored fingerprint has become worthless: raise the version. */
static void the_digest_of_a_fixed_request_is_pinned(void **state)
{
    char text[LK_FINGERPRINT_TEXT + 1];
    struct lk_fingerprint result = fingerprint(fixed_request());

    assert_int_equal(result.form, LK_BODY_JSON);
    latchkey_fingerprint_text(&result, text);
    assert_string_equal(text, "1:5d9ea8c792b03fc13cd6c2dc4bd26a16"
                              "237343e5450761bbffc0749296585d08");
}

static void explain_shows_one_field_a_line(void **state)
{
    struct lk_request request = fixed_request();
    struct lk_fingerprint result;
    struct lk_buf explain = {0};

    assert_int_equal(latchkey_buf_add_text(&explain, "> "), LK_OK);
    assert_int_equal(latchkey_fingerprint(&request, &result, &explain), LK_OK);
    assert_int_equal(latchkey_buf_add(&explain, "", 1), LK_OK);
    assert_string_equal(
        explain.data,
        "> version 1\n"
        "method POST\n"
        "path /payments\n"
        "query dry=1\n"
        "content-type application/json\n"
        "header x-a: 1\n"
        "header x-b: two words\n"
        "binding sha256 "
        "cdfc037c52e05af8968c766063895e3031ba20ed581f7ca5ea8efebd68b9c4dd\n"
        "body json {\"amount\":1e1,\"note\":\"caf\\xc3\\xa9\"}\n");
    latchkey_buf_free(&explain);
}

static void explain_stays_on_its_line_and_is_safe_for_a_terminal(void **state)
{
    struct lk_header header = {LK_SLICE("a\nb"), LK_SLICE("\x1b[2J\0\\")};
    struct lk_request request = {.path = LK_SLICE("/\r\nmethod GET\x7f\xff"),
                                 .headers = &header,
                                 .header_count = 1,
                                 .body = LK_SLICE("\n")};
    struct lk_fingerprint result;
    struct lk_buf explain = {0};

    assert_int_equal(latchkey_fingerprint(&request, &result, &explain), LK_OK);
    assert_int_equal(latchkey_buf_add(&explain, "", 1), LK_OK);
    assert_string_equal(explain.data, "version 1\n"
                                      "method\n"
                                      "path /\\x0d\\x0amethod GET\\x7f\\xff\n"
                                      "query\n"
                                      "content-type\n"
                                      "header a\\x0ab: \\x1b[2J\\x00\\\\\n"
                                      "binding\n"
                                      "body raw \\x0a\n");
    latchkey_buf_free(&explain);
}

static void explain_shows_what_has_one_name_in_the_order_sent(void **state)
{
    static const struct lk_header headers[] = {{LK_SLICE("b"), LK_SLICE("1")},
                                               {LK_SLICE("A"), LK_SLICE("2")},
                                               {LK_SLICE("a"), LK_SLICE("1")}};
    struct lk_request request = form("b=1&a=2&a=1&a=%5b");
    struct lk_fingerprint result;
    struct lk_buf explain = {0};

    request.headers = headers;
    request.header_count = 3;
    assert_int_equal(latchkey_fingerprint(&request, &result, &explain), LK_OK);
    assert_int_equal(latchkey_buf_add(&explain, "", 1), LK_OK);
    assert_non_null(
        strstr(explain.data, "\nheader a: 2\nheader a: 1\nheader b: 1\n"));
    assert_non_null(strstr(explain.data, "\nbody form a=2&a=1&a=%5B&b=1\n"));
    latchkey_buf_free(&explain);
}

/* C04: every field counts, and no byte can move from one to the next. */
static void moving_bytes_between_fields_changes_the_digest(void **state)
{
    static const struct lk_header ab = {LK_SLICE("ab"), LK_SLICE("")};
    static const struct lk_header a_b = {LK_SLICE("a"), LK_SLICE("b")};
    static const struct lk_header both[] = {{LK_SLICE("a"), LK_SLICE("")},
                                            {LK_SLICE("b"), LK_SLICE("")}};
    static const struct lk_header swapped[] = {{LK_SLICE("a"), LK_SLICE("1")},
                                               {LK_SLICE("a"), LK_SLICE("2")}};
    static const struct lk_header reverse[] = {{LK_SLICE("a"), LK_SLICE("2")},
                                               {LK_SLICE("a"), LK_SLICE("1")}};
    const struct lk_request requests[] = {
        {.method = LK_SLICE("")},
        {.method = LK_SLICE("ab")},
        {.method = LK_SLICE("a"), .path = LK_SLICE("b")},
        {.path = LK_SLICE("ab")},
        {.path = LK_SLICE("a"), .query = LK_SLICE("b")},
        {.path = LK_SLICE("a?b")},
        {.query = LK_SLICE("ab")},
        {.query = LK_SLICE("a"), .content_type = LK_SLICE("b")},
        {.content_type = LK_SLICE("ab")},
        {.headers = &ab, .header_count = 1},
        {.headers = &a_b, .header_count = 1},
        {.headers = both, .header_count = 2},
        {.headers = swapped, .header_count = 2},
        {.headers = reverse, .header_count = 2},
        {.binding = LK_SLICE("ab")},
        {.binding = LK_SLICE("a"), .body = LK_SLICE("b")},
        {.body = LK_SLICE("ab")},
        {.body = LK_SLICE("\0")},
        {.path = LK_SLICE("\0")},
    };
    size_t count = sizeof requests / sizeof *requests;

    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (same(requests[i], requests[j])) {
                fail_msg("requests %zu and %zu are equal", i, j);
            }
        }
    }
}

static void header_names_have_no_case_and_no_order(void **state)
{
    static const struct lk_header other[] = {
        {LK_SLICE("X-A"), LK_SLICE("1")},
        {LK_SLICE("x-b"), LK_SLICE("two words")},
    };
    struct lk_request request = fixed_request();

    request.headers = other;
    assert_true(same(request, fixed_request()));
    request.header_count = 1;
    assert_false(same(request, fixed_request()));
}

/* The digest was computed from docs/fingerprint.md by other means. */
static void an_encoded_body_is_another_request_and_not_looked_into(void **state)
{
    char text[LK_FINGERPRINT_TEXT + 1];
    struct lk_request plain = fixed_request(), encoded = plain, other = plain;
    struct lk_fingerprint result;

    encoded.content_encoding = LK_SLICE(" GZip ");
    result = fingerprint(encoded);
    assert_int_equal(result.form, LK_BODY_RAW);
    latchkey_fingerprint_text(&result, text);
    assert_string_equal(text, "1:32047ce582fd9f9424e0aed635104fef"
                              "5a9ecb40e5f5760d316ce177e7d785c2");
    other.content_encoding = LK_SLICE("br");
    assert_false(same(encoded, other));
    other.content_encoding = LK_SLICE("Identity");
    assert_true(same(plain, other));
}

static void a_binding_is_part_of_it_but_not_shown(void **state)
{
    struct lk_request request = fixed_request();
    struct lk_buf explain = {0};
    struct lk_fingerprint result;

    assert_int_equal(latchkey_fingerprint(&request, &result, &explain), LK_OK);
    assert_null(memmem(explain.data, explain.len, "session-7", 9));
    request.binding = LK_SLICE("session-8");
    assert_false(same(request, fixed_request()));
    latchkey_buf_free(&explain);
}

/* ---- Bodies ---------------------------------------------------------------
 */

static void json_that_means_the_same_is_the_same_request(void **state)
{
    assert_true(same(json("{\"a\":1,\"b\":2}"), json("{\"b\":2, \"a\":1}")));
    assert_true(same(json("{\"a\":\"\\u0041\"}"), json("{\"a\":\"A\"}")));
    assert_true(same(json("{\"a\":\"\\ud83d\\ude00\"}"),
                     json("{\"a\":\"\xf0\x9f\x98\x80\"}")));
    assert_true(same(json("[1.0,10e-1,1e0]"), json("[1,1,1]")));
    assert_true(same(json("-0"), json("0")));
    assert_true(same(with_body("application/json; charset=utf-8", "{}"),
                     with_body("Application/JSON", " {}")));
}

static void json_that_means_something_else_is_another_request(void **state)
{
    assert_false(same(json("9007199254740993"), json("9007199254740992")));
    assert_false(same(json("[1,2]"), json("[2,1]")));
    assert_false(same(json("1"), json("\"1\"")));
    assert_false(same(json("{\"a\":null}"), json("{}")));
    assert_false(same(json("{}"), json("[]")));
    assert_false(same(json("1e400"), json("1e401")));
    assert_false(same(json("\"A\""), json("\"a\"")));
    assert_false(same(json("\"\\u00e9\""), json("\"e\\u0301\"")));
    assert_false(same(json("{}"), with_body("application/x+json", "{}")));
}

static void every_json_type_is_read_as_json(void **state)
{
    assert_int_equal(form_of(json("{}")), LK_BODY_JSON);
    assert_int_equal(form_of(with_body("application/problem+json", "{}")),
                     LK_BODY_JSON);
    assert_int_equal(
        form_of(with_body(" application/Merge-Patch+JSON ;q=1", "{}")),
        LK_BODY_JSON);
    assert_int_equal(form_of(with_body("text/plain", "{}")), LK_BODY_RAW);
    assert_int_equal(form_of(with_body("application/jsonx", "{}")),
                     LK_BODY_RAW);
    assert_int_equal(form_of(with_body("", "{}")), LK_BODY_RAW);
}

static void what_cannot_be_canonical_is_hashed_as_raw_bytes(void **state)
{
    static const char *const bodies[] = {"{\"a\":1,\"a\":1}",
                                         "{\"a\":1,\"\\u0061\":2}",
                                         "{",
                                         "{} {}",
                                         "\"\\ud800\"",
                                         "1e999999999999999999999",
                                         "nul",
                                         "\xef\xbb\xbf{}",
                                         " "};
    char padded[64];

    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        assert_int_equal(form_of(json(bodies[i])), LK_BODY_RAW);
        assert_true(same(json(bodies[i]), json(bodies[i])));
        snprintf(padded, sizeof padded, "%s ", bodies[i]);
        assert_false(same(json(bodies[i]), json(padded)));
    }
}

static void an_empty_body_is_empty_whatever_its_type(void **state)
{
    assert_int_equal(form_of(json("")), LK_BODY_EMPTY);
    assert_int_equal(form_of(form("")), LK_BODY_EMPTY);
    assert_int_equal(form_of(with_body("multipart/mixed", "")), LK_BODY_EMPTY);
    assert_false(same(json(""), json("\"\"")));
}

/* C04: a raw body that looks like the canonical form of another one. */
static void forms_never_meet(void **state)
{
    struct lk_request canonical = form("a=1&b=2"), raw = canonical;

    assert_int_equal(form_of(canonical), LK_BODY_FORM);
    assert_true(same(canonical, form("b=2&a=1")));
    raw = form("a=1&b=%");
    assert_int_equal(form_of(raw), LK_BODY_RAW);
    assert_false(same(raw, form("a=1&b=%25")));
    /* Nothing is left of these two, but only one of them is empty. */
    assert_int_equal(form_of(form("&&")), LK_BODY_FORM);
    assert_false(same(form("&&"), form("")));
}

/* ---- Members left out -----------------------------------------------------
 */

static struct lk_request without(const char *body, const struct lk_slice *list,
                                 size_t count)
{
    struct lk_request request = json(body);

    request.ignore = list;
    request.ignore_count = count;
    return request;
}

static void a_member_left_out_may_change_or_be_absent(void **state)
{
    static const struct lk_slice list[] = {LK_SLICE("/sent_at"),
                                           LK_SLICE("/items/0/id")};
    struct lk_request base =
        without("{\"sent_at\":1,\"items\":[{\"id\":7,\"n\":1}]}", list, 2);

    assert_true(same(
        base, without("{\"items\":[{\"n\":1}],\"sent_at\":\"x\"}", list, 2)));
    assert_true(same(base, without("{\"items\":[{\"n\":1}]}", list, 2)));
    assert_false(same(base, without("{\"items\":[{\"n\":2}]}", list, 2)));
    assert_false(
        same(base, without("{\"items\":[{\"n\":1},{\"id\":7}]}", list, 2)));
    assert_false(same(base, without("{\"sent_at\":1}", list, 2)));
}

static enum lk_status status_with(struct lk_slice pointer)
{
    struct lk_request request = without("{}", &pointer, 1);
    struct lk_fingerprint result;

    return latchkey_fingerprint(&request, &result, NULL);
}

static void a_bad_pointer_is_refused(void **state)
{
    static const char *const bad[] = {"a",   "a/b",  "#/a",   "/~", "/a~",
                                      "/~2", "/a~b", "/\xff", " /a"};
    static const char *const good[] = {"", "/", "//", "/a/0", "/~0~1", "/-"};
    char longest[1026];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(status_with(latchkey_slice(bad[i])), LK_INVALID);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(status_with(latchkey_slice(good[i])), LK_OK);
    }
    memset(longest, '/', sizeof longest);
    assert_int_equal(status_with((struct lk_slice){longest, 1024}), LK_OK);
    assert_int_equal(status_with((struct lk_slice){longest, 1025}), LK_INVALID);
}

static void a_bad_pointer_is_refused_for_any_body_and_explains_nothing(
    void **state)
{
    struct lk_slice bad = LK_SLICE("x");
    struct lk_slice many[65];
    struct lk_request request = {.ignore = &bad, .ignore_count = 1};
    struct lk_fingerprint result;
    struct lk_buf explain = {0};

    assert_int_equal(latchkey_fingerprint(&request, &result, &explain),
                     LK_INVALID);
    assert_int_equal(explain.len, 0);
    for (size_t i = 0; i < 65; i++) {
        many[i] = LK_SLICE("/a");
    }
    request.ignore = many;
    request.ignore_count = 64;
    assert_int_equal(latchkey_fingerprint(&request, &result, NULL), LK_OK);
    request.ignore_count = 65;
    assert_int_equal(latchkey_fingerprint(&request, &result, NULL), LK_INVALID);
    latchkey_buf_free(&explain);
}

/* ---- Forms ----------------------------------------------------------------
 */

static void forms_compare_as_decoded_pairs(void **state)
{
    assert_true(same(form("a=1&b=2"), form("b=2&a=1")));
    assert_true(same(form("a=x+y"), form("a=x%20y")));
    assert_true(same(form("%61=%31&b=%c3%a9"), form("a=1&b=\xc3\xa9")));
    assert_true(same(form("a=%2f"), form("a=%2F")));
    assert_true(same(form("&a=1&&b=2&"), form("a=1&b=2")));
    assert_true(same(form("a=1&b=2&a=3"), form("b=2&a=1&a=3")));
    assert_true(same(form("a=b=c"), form("a=b%3Dc")));
    /* Pairs of one name keep their order wherever the others stand. */
    assert_true(same(form("a=1&a=2&a=3&a=4&a=5&b=1&b=2&b=3"),
                     form("b=1&a=1&b=2&b=3&a=2&a=3&a=4&a=5")));
}

static void forms_that_mean_something_else_differ(void **state)
{
    assert_false(same(form("a=1&a=2"), form("a=2&a=1")));
    assert_false(same(form("a=1"), form("a=1&a=1")));
    assert_false(same(form("a=1&b=2"), form("a=1%26b=2")));
    assert_false(same(form("a=b"), form("a%3Db")));
    assert_false(same(form("a=%2B"), form("a=+")));
    assert_false(same(form("a=1"), form("A=1")));
    assert_false(same(form("ab=c"), form("a=bc")));
    assert_false(same(form("a"), form("a=")));
    assert_false(same(form("a"), form("=a")));
    /* One parameter in the eyes of PHP, Rails and others. */
    assert_false(same(form("a[][x]=1&a[][y]=2"), form("a[][y]=2&a[][x]=1")));
    assert_true(same(form("a[]=1&b[]=2"), form("b%5B]=2&a%5b%5d=1")));
}

/* To PHP the names of each of these are one, and the last value counts. */
static void names_that_php_takes_for_one_keep_their_order(void **state)
{
    static const char *const names[] = {"a_b", "a.b", "a b", "+a_b", "a_b[]"};
    char first[32], second[32];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t j = 0; j < i; j++) {
            snprintf(first, sizeof first, "%s=1&%s=2", names[i], names[j]);
            snprintf(second, sizeof second, "%s=2&%s=1", names[j], names[i]);
            assert_false(same(form(first), form(second)));
        }
    }
    assert_true(same(form("a.b=1&c=2&a_b=3"), form("c=2&a.b=1&a_b=3")));
    assert_true(same(form("a.b=1&a.c=2"), form("a.c=2&a.b=1")));
    /* One name, but not one request to an app that tells them apart. */
    assert_false(same(form("a.b=1"), form("a_b=1")));
}

static void names_that_apps_read_in_several_ways_make_a_form_raw(void **state)
{
    static const char *const bodies[] = {"a[b=1", "[a]=1",    "+[a]=1",
                                         "a]=1",  "a]b[c]=1", "a%00b=1"};

    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        assert_int_equal(form_of(form(bodies[i])), LK_BODY_RAW);
    }
    assert_int_equal(form_of(form("a[b]c[=[%00&=]")), LK_BODY_FORM);
}

static void a_bad_escape_makes_a_form_raw(void **state)
{
    static const char *const bodies[] = {"a=%", "a=%4", "%g0=1", "a=1&b=%0x",
                                         "a=%%41"};

    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        assert_int_equal(form_of(form(bodies[i])), LK_BODY_RAW);
    }
}

/* ---- Multipart ------------------------------------------------------------
 */

#define PART_A                                                                 \
    "Content-Disposition: form-data; name=\"a\"\r\n"                           \
    "Content-Type: text/plain\r\n\r\none\r\ntwo"
#define PART_B "content-disposition: form-data; name=\"b\"\r\n\r\n"

static struct lk_request multipart(const char *parameters, const char *body)
{
    static char content_type[512];

    snprintf(content_type, sizeof content_type, "multipart/form-data%s",
             parameters);
    return with_body(content_type, body);
}

static struct lk_fingerprint multipart_print(const char *parameters,
                                             const char *body)
{
    return fingerprint(multipart(parameters, body));
}

static void assert_multipart(const char *parameters_a, const char *body_a,
                             const char *parameters_b, const char *body_b,
                             bool equal)
{
    struct lk_fingerprint a = multipart_print(parameters_a, body_a),
                          b = multipart_print(parameters_b, body_b);

    assert_int_equal(a.form, LK_BODY_MULTIPART);
    assert_int_equal(b.form, LK_BODY_MULTIPART);
    assert_int_equal(!memcmp(a.digest, b.digest, sizeof a.digest), equal);
}

static const char two_parts[] =
    "--x\r\n" PART_A "\r\n--x\r\n" PART_B "\r\n--x--\r\n";

static void multipart_does_not_depend_on_its_boundary(void **state)
{
    assert_multipart(
        "; boundary=x", two_parts, ";charset=utf-8; Boundary=\"-- y:=?z\";",
        "---- y:=?z\r\n" PART_A "\r\n---- y:=?z\r\n" PART_B "\r\n---- y:=?z--",
        true);
    assert_multipart("; boundary=x", "--x\r\nA: 1\r\nb:2 \r\n\r\n\r\n--x--",
                     "; boundary=x", "--x\r\nB: 2\r\na:1\r\n\r\n\r\n--x--",
                     true);
    assert_multipart("; boundary=x", "--x--", "; boundary=y", "--y--\r\n",
                     true);
}

static void multipart_that_means_something_else_differs(void **state)
{
    static const char *const bodies[] = {
        two_parts,
        "--x\r\n" PART_B "\r\n--x\r\n" PART_A "\r\n--x--\r\n",
        "--x\r\n" PART_A "\r\n--x--\r\n",
        "--x\r\n" PART_A "\r\n\r\n--x\r\n" PART_B "\r\n--x--\r\n",
        "--x\r\nA: 1\r\nA: 2\r\n\r\n\r\n--x--",
        "--x\r\nA: 2\r\nA: 1\r\n\r\n\r\n--x--",
        "--x\r\n\r\na: 1\n\r\n--x--",
        "--x\r\na: 1\r\n\r\n\r\n--x--",
        "--x\r\n\r\n\r\n--x--",
        "--x--",
        "--x\r\n\r\npart 0 0\n\n\r\n--x--",
        "--x\r\n\r\n\r\n--x\r\n\r\n\r\n--x--",
    };
    size_t count = sizeof bodies / sizeof *bodies;

    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            assert_multipart("; boundary=x", bodies[i], "; boundary=x",
                             bodies[j], false);
        }
    }
}

static void multipart_that_parsers_may_read_differently_is_raw(void **state)
{
    static const char *const bodies[] = {
        "x",
        "--x",
        "--x\r\n",
        "--x\r\n\r\n",
        "--x\r\n\r\n--x--",            /* no CRLF of its own */
        "--x\r\n--x--",                /* no part at all */
        "--x\r\nA: 1\r\n--x--",        /* no empty line */
        "--x\n\nbody\n--x--",          /* bare LF */
        "pre\r\n--x\r\n\r\n\r\n--x--", /* preamble */
        "--x\r\n\r\n\r\n--x--post",    /* epilogue */
        "--x\r\n\r\n\r\n--x--\r\n\r\n",
        "--x \r\n\r\n\r\n--x--",    /* padding */
        "--x\r\n\r\n\r\n--xy\r\n",  /* longer delimiter */
        "--x\r\n\r\na--x\r\n--x--", /* in the middle of a line */
        "--x\r\n\r\nabc--x--",
        "--x\r\n\r\n\n--x--",
        "--x\r\nA : 1\r\n\r\n\r\n--x--",
        "--x\r\n: 1\r\n\r\n\r\n--x--",
        "--x\r\nA\r\n\r\n\r\n--x--",
        "--x\r\nA: 1\r\n 2\r\n\r\n\r\n--x--", /* folded */
        "--x\r\nA: 1\x01\r\n\r\n\r\n--x--",
        "--x\r\nA: 1\r2\r\n\r\n\r\n--x--",
    };
    static const char *const parameters[] = {
        "",
        "; boundary",
        "; boundary=",
        "; boundary=\"\"",
        "; boundary=\"x",
        "; boundary=\"\\x\"",
        "; boundary=\"x\"y",
        "; boundary=x; boundary=x",
        "; boundary=x; boundary*=x",
        "; boundary=x\t1",
        "; boundary=x<",
        "; boundary=\"x \"",
        "; boundary=0123456789012345678901234567890123456789"
        "0123456789012345678901234567890",
    };

    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        if (multipart_print("; boundary=x", bodies[i]).form != LK_BODY_RAW) {
            fail_msg("accepted: %s", bodies[i]);
        }
    }
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        if (multipart_print(parameters[i], two_parts).form != LK_BODY_RAW) {
            fail_msg("accepted: %s", parameters[i]);
        }
    }
}

static void the_boundary_counts_where_the_multipart_body_is_raw(void **state)
{
    struct lk_fingerprint a = multipart_print("; boundary=a", two_parts),
                          b = multipart_print("; boundary=b", two_parts);

    assert_int_equal(a.form, LK_BODY_RAW);
    assert_memory_not_equal(a.digest, b.digest, sizeof a.digest);
}

static void a_part_has_a_bounded_number_of_headers(void **state)
{
    struct lk_buf body = {0};

    for (int count = 64; count <= 65; count++) {
        body.len = 0;
        assert_int_equal(latchkey_buf_add_text(&body, "--x\r\n"), LK_OK);
        for (int i = 0; i < count; i++) {
            assert_int_equal(latchkey_buf_add_text(&body, "a:\r\n"), LK_OK);
        }
        assert_int_equal(latchkey_buf_add(&body, "\r\n\r\n--x--", 9), LK_OK);
        struct lk_request request = multipart("; boundary=x", "");
        request.body = latchkey_buf_slice(&body);
        assert_int_equal(form_of(request),
                         count > 64 ? LK_BODY_RAW : LK_BODY_MULTIPART);
    }
    latchkey_buf_free(&body);
}

/* ---- Hostile bodies of 4 MB end in good time -------------------------------
 */

#ifdef __SANITIZE_THREAD__
/* This sanitizer looks at the whole haystack on every search: it is the one
 * that is quadratic here. */
enum { HOSTILE = 64 << 10, WATCHDOG = 60 };
#else
enum { HOSTILE = 4 << 20, WATCHDOG = 60 };
#endif

/* Appends `piece` with the number in place of a '#'. */
static enum lk_status add_piece(struct lk_buf *body, const char *piece,
                                unsigned number)
{
    const char *mark = strchr(piece, '#');

    return mark ? latchkey_buf_printf(body, "%.*s%u%s", (int)(mark - piece),
                                      piece, number, mark + 1)
                : latchkey_buf_add_text(body, piece);
}

static void survive(const char *content_type, const char *head,
                    const char *piece, const char *tail,
                    enum lk_body_form expected)
{
    struct lk_buf body = {0};
    unsigned falling = 99999999;

    assert_int_equal(latchkey_buf_add_text(&body, head), LK_OK);
    while (body.len < HOSTILE) {
        assert_int_equal(add_piece(&body, piece, falling--), LK_OK);
    }
    assert_int_equal(latchkey_buf_add_text(&body, tail), LK_OK);
    struct lk_request request = with_body(content_type, "");
    request.body = latchkey_buf_slice(&body);
    alarm(WATCHDOG);
    assert_int_equal(form_of(request), expected);
    alarm(0);
    latchkey_buf_free(&body);
}

static void hostile_forms_and_parts_end_in_good_time(void **state)
{
    static const char form_type[] = "application/x-www-form-urlencoded";
    static const char part_type[] =
        "multipart/mixed; boundary=----------------------------------------"
        "----------------------------";

    survive(form_type, "", "#=1&", "", LK_BODY_FORM);
    survive(form_type, "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa#&", "",
            LK_BODY_FORM);
    survive(form_type, "", "b&a&", "", LK_BODY_FORM);
    survive(form_type, "", "&", "", LK_BODY_FORM);
    survive(form_type, "a", "%5B", "%5D", LK_BODY_FORM);
    survive(form_type, "", "+", "", LK_BODY_FORM);
    survive(part_type, "", "-", "", LK_BODY_RAW);
    survive("multipart/mixed; boundary=x", "--x\r\n", "\r\n\r\n--x\r\n",
            "\r\n\r\n--x--", LK_BODY_MULTIPART);
    survive("multipart/mixed; boundary=x", "--x\r\n", "A#: 1\r\n",
            "\r\n\r\n--x--", LK_BODY_RAW);
    survive("multipart/mixed; boundary=x", "--x\r\n\r\n", "\r\n--", "\r\n--x--",
            LK_BODY_MULTIPART);
}

static void a_hostile_content_type_ends_in_good_time(void **state)
{
    struct lk_buf type = {0};

    assert_int_equal(latchkey_buf_add_text(&type, "multipart/mixed"), LK_OK);
    while (type.len < HOSTILE) {
        assert_int_equal(latchkey_buf_add_text(&type, "; a=\";\" ;"), LK_OK);
    }
    assert_int_equal(latchkey_buf_add_text(&type, ";boundary=x"), LK_OK);
    struct lk_request request = multipart("", two_parts);
    request.content_type = latchkey_buf_slice(&type);
    alarm(WATCHDOG);
    assert_int_equal(form_of(request), LK_BODY_MULTIPART);
    alarm(0);
    latchkey_buf_free(&type);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_digest_of_a_fixed_request_is_pinned),
        cmocka_unit_test(explain_shows_one_field_a_line),
        cmocka_unit_test(explain_stays_on_its_line_and_is_safe_for_a_terminal),
        cmocka_unit_test(explain_shows_what_has_one_name_in_the_order_sent),
        cmocka_unit_test(moving_bytes_between_fields_changes_the_digest),
        cmocka_unit_test(header_names_have_no_case_and_no_order),
        cmocka_unit_test(
            an_encoded_body_is_another_request_and_not_looked_into),
        cmocka_unit_test(a_binding_is_part_of_it_but_not_shown),
        cmocka_unit_test(json_that_means_the_same_is_the_same_request),
        cmocka_unit_test(json_that_means_something_else_is_another_request),
        cmocka_unit_test(every_json_type_is_read_as_json),
        cmocka_unit_test(what_cannot_be_canonical_is_hashed_as_raw_bytes),
        cmocka_unit_test(an_empty_body_is_empty_whatever_its_type),
        cmocka_unit_test(forms_never_meet),
        cmocka_unit_test(a_member_left_out_may_change_or_be_absent),
        cmocka_unit_test(a_bad_pointer_is_refused),
        cmocka_unit_test(
            a_bad_pointer_is_refused_for_any_body_and_explains_nothing),
        cmocka_unit_test(forms_compare_as_decoded_pairs),
        cmocka_unit_test(forms_that_mean_something_else_differ),
        cmocka_unit_test(names_that_php_takes_for_one_keep_their_order),
        cmocka_unit_test(names_that_apps_read_in_several_ways_make_a_form_raw),
        cmocka_unit_test(a_bad_escape_makes_a_form_raw),
        cmocka_unit_test(multipart_does_not_depend_on_its_boundary),
        cmocka_unit_test(multipart_that_means_something_else_differs),
        cmocka_unit_test(multipart_that_parsers_may_read_differently_is_raw),
        cmocka_unit_test(the_boundary_counts_where_the_multipart_body_is_raw),
        cmocka_unit_test(a_part_has_a_bounded_number_of_headers),
        cmocka_unit_test(hostile_forms_and_parts_end_in_good_time),
        cmocka_unit_test(a_hostile_content_type_ends_in_good_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
