/* test_json.c - canonical JSON: one spelling for all that means the same. */
#include "lib/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The canonical spelling, or the status if there is none. */
static enum lk_status canonical(struct lk_slice text, struct lk_buf *out)
{
    out->len = 0;
    enum lk_status status = lk_json_canonical(text, NULL, out);
    if (status) {
        assert_int_equal(out->len, 0);
    }
    return status;
}

static void assert_canonical(struct lk_slice text, const char *expected)
{
    struct lk_buf out = {0};

    assert_int_equal(canonical(text, &out), LK_OK);
    assert_int_equal(out.len, strlen(expected));
    assert_memory_equal(out.data, expected, out.len);
    latchkey_buf_free(&out);
}

static void assert_malformed(struct lk_slice text)
{
    struct lk_buf out = {0};

    if (canonical(text, &out) != LK_MALFORMED) {
        fail_msg("accepted: %.*s", (int)text.len, text.data);
    }
    latchkey_buf_free(&out);
}

/* The same with literals; sizeof keeps NULs inside them. */
#define BECOMES(text, expected) assert_canonical(LK_SLICE(text), expected)
#define REFUSED(text)           assert_malformed(LK_SLICE(text))

/* ---- C04: what is the same ---------------------------------------------- */

static void white_space_and_member_order_vanish(void **state)
{
    BECOMES(" {\t\"b\" : 1 ,\r\n\"a\":[ true , null,false ] } ",
            "{\"a\":[true,null,false],\"b\":1}");
    BECOMES("{}", "{}");
    BECOMES("[ ]", "[]");
    BECOMES("[[],{},[{}]]", "[[],{},[{}]]");
}

static void members_are_sorted_in_nested_objects_too(void **state)
{
    BECOMES("{\"z\":{\"b\":1,\"a\":2},\"y\":[{\"d\":3,\"c\":{\"f\":4,\"e\":5}}"
            ",6],\"x\":{\"a\":7,\"b\":{\"h\":8,\"g\":9}}}",
            "{\"x\":{\"a\":7,\"b\":{\"g\":9,\"h\":8}},\"y\":[{\"c\":{\"e\":5,"
            "\"f\":4},\"d\":3},6],\"z\":{\"a\":2,\"b\":1}}");
}

static void members_are_sorted_by_code_point_of_the_unescaped_name(void **state)
{
    /* The quote (0x22) is less than A, but its escape begins with 0x5c; UTF-16
     * order would put U+1F600 before U+FF21. */
    BECOMES("{\"\\ud83d\\ude00\":1,\"\\uff21\":2,\"A\":3,\"\\\"\":4,\"\":5}",
            "{\"\":5,\"\\\"\":4,\"A\":3,\"\xef\xbc\xa1\":2,"
            "\"\xf0\x9f\x98\x80\":1}");
    BECOMES("{\"ab\":1,\"a\":2,\"a\\u0000\":3}",
            "{\"a\":2,\"a\\u0000\":3,\"ab\":1}");
}

static void a_string_has_one_spelling(void **state)
{
    BECOMES("\"\\u0041\\/\\u002f\"", "\"A//\"");
    BECOMES("\"\\u0008\\u0009\\u000A\\u000c\\u000D\\u0022\\u005C\"",
            "\"\\b\\t\\n\\f\\r\\\"\\\\\"");
    BECOMES("\"\\u0000\\u001F\\u007f\"", "\"\\u0000\\u001f\x7f\"");
    BECOMES("\"\\u00e9\\u20AC\"", "\"\xc3\xa9\xe2\x82\xac\"");
    BECOMES("\"\\ud83d\\uDE00\"", "\"\xf0\x9f\x98\x80\"");
    BECOMES("\"\\udbff\\udfff\"", "\"\xf4\x8f\xbf\xbf\"");
    BECOMES("\"\\ufeff\"", "\"\xef\xbb\xbf\"");
}

static void a_number_has_one_spelling(void **state)
{
    static const char *const ones[] = {"1",     "1.0",   "1e0",         "1E+00",
                                       "0.1e1", "10e-1", "100.00e-002", "1e-0"};

    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++) {
        assert_canonical(latchkey_slice(ones[i]), "1");
    }
    BECOMES("[0,-0,0.0,-0.00e7,0e99999999999999999999999999]", "[0,0,0,0,0]");
    BECOMES("[10,-12.50,0.001,120e3]", "[1e1,-125e-1,1e-3,12e4]");
    BECOMES("[9007199254740993,9007199254740992]",
            "[9007199254740993,9007199254740992]");
    BECOMES("0.1000000000000000055511151231257827",
            "1000000000000000055511151231257827e-34");
}

static void an_exponent_is_exact_as_long_as_it_fits_in_64_bits(void **state)
{
    BECOMES("1e9223372036854775807", "1e9223372036854775807");
    BECOMES("0.1e9223372036854775808", "1e9223372036854775807");
    BECOMES("100e-9223372036854775810", "1e-9223372036854775808");
    BECOMES("1e00000000000000000000000000000000007", "1e7");
    REFUSED("1e9223372036854775808");
    REFUSED("10e9223372036854775807");
    REFUSED("0.1e-9223372036854775808");
    REFUSED("1e999999999999999999999999");
    REFUSED("1e-999999999999999999999999999999999999999999999999999999999");
}

/* ---- C04: what has no canonical form ------------------------------------ */

static void duplicate_members_are_refused_even_if_escaped(void **state)
{
    REFUSED("{\"a\":1,\"a\":1}");
    REFUSED("{\"a\":1,\"b\":2,\"\\u0061\":3}");
    REFUSED("[{\"x\":{\"\":1,\"\":2}}]");
    BECOMES("{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}",
            "{\"a\":{\"a\":{\"a\":1}},\"b\":{\"a\":1}}");
}

static void text_that_is_not_json_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "}",
        "[1",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1",
        "{,}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{1:2}",
        "[1}",
        "{\"a\":1]",
        "1 2",
        "{}x",
        "tru",
        "True",
        "nul",
        "nullx",
        "NaN",
        "Infinity",
        "'a'",
        "\"",
        "\"\\\"",
        "\"a",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\u00g0\"",
        "\"\\",
        "01",
        "-",
        "+1",
        ".5",
        "1.",
        "1.e1",
        "1e",
        "1e+",
        "--1",
        "0x10",
        "1_0",
        "-01",
        "[1]]",
        "/**/1",
        "\f1",
        "\"a\nb\"",
        "\"\t\"",
        "\xef\xbb\xbf{}",
        "\xc2\xa0[]",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_malformed(latchkey_slice(texts[i]));
    }
    REFUSED("1\0");
    REFUSED("\"\0\"");
    REFUSED("\0");
}

static void lone_surrogates_and_bad_utf8_are_refused(void **state)
{
    REFUSED("\"\\ud800\"");
    REFUSED("\"\\udc00\"");
    REFUSED("\"\\ud800\\u0041\"");
    REFUSED("\"\\ud800\\ud800\"");
    REFUSED("\"\\ude00\\ud83d\"");
    REFUSED("\"\\ud83d\\\"");
    REFUSED("\"\x80\"");
    REFUSED("\"\xc0\x80\"");
    REFUSED("\"\xc1\xbf\"");
    REFUSED("\"\xe0\x9f\xbf\"");
    REFUSED("\"\xed\xa0\x80\"");
    REFUSED("\"\xf0\x8f\xbf\xbf\"");
    REFUSED("\"\xf4\x90\x80\x80\"");
    REFUSED("\"\xf5\x80\x80\x80\"");
    REFUSED("\"\xe2\x82\"");
    REFUSED("{\"\xff\":1}");
}

static void nesting_is_bounded_at_512_levels(void **state)
{
    char text[2 * (LK_JSON_DEPTH_MAX + 1)];
    struct lk_buf out = {0};

    for (size_t depth = LK_JSON_DEPTH_MAX; depth <= LK_JSON_DEPTH_MAX + 1;
         depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(canonical((struct lk_slice){text, 2 * depth}, &out),
                         depth > LK_JSON_DEPTH_MAX ? LK_MALFORMED : LK_OK);
    }
    latchkey_buf_free(&out);
}

static void size_is_bounded(void **state)
{
    struct lk_slice text = {calloc(1, LK_JSON_SIZE_MAX + 1),
                            LK_JSON_SIZE_MAX + 1};
    struct lk_buf out = {0};

    assert_non_null(text.data);
    memset((char *)text.data, '1', text.len);
    assert_int_equal(canonical(text, &out), LK_TOO_LARGE);
    text.len--;
    assert_int_equal(canonical(text, &out), LK_OK);
    free((char *)text.data);
    latchkey_buf_free(&out);
}

/* ---- C04: leaving out by JSON Pointer ----------------------------------- */

static void assert_without(const char *pointer, const char *text,
                           const char *expected)
{
    struct lk_slice list = latchkey_slice(pointer);
    struct lk_pointers pointers = {0};
    struct lk_buf out = {0};

    assert_int_equal(lk_pointers_parse(&list, 1, &pointers), LK_OK);
    assert_int_equal(lk_json_canonical(latchkey_slice(text), &pointers, &out),
                     LK_OK);
    assert_int_equal(out.len, strlen(expected));
    if (out.len) {
        assert_memory_equal(out.data, expected, out.len);
    }
    latchkey_buf_free(&out);
    lk_pointers_free(&pointers);
}

static void a_pointer_leaves_its_member_out(void **state)
{
    static const char deep[] =
        "{\"z\":{\"b\":{\"d\":1,\"c\":2},\"a\":{\"f\":3,\"e\":4}},\"y\":5}";

    assert_without("/ts", "{\"ts\":1,\"a\":2}", "{\"a\":2}");
    assert_without("/ts", "{\"a\":2,\"ts\":{\"z\":1,\"y\":[2]}}", "{\"a\":2}");
    assert_without("/ts", "{\"ts\":1}", "{}");
    assert_without("/ts", "{\"b\":1,\"ts\":2,\"a\":3}", "{\"a\":3,\"b\":1}");
    assert_without("/ts", "{\"a\":{\"ts\":1}}", "{\"a\":{\"ts\":1}}");
    assert_without("/z/b", deep, "{\"y\":5,\"z\":{\"a\":{\"e\":4,\"f\":3}}}");
    assert_without("/z/a/f", deep,
                   "{\"y\":5,\"z\":{\"a\":{\"e\":4},\"b\":{\"c\":2,\"d\":1}}}");
    assert_without("/z/y", deep,
                   "{\"y\":5,\"z\":{\"a\":{\"e\":4,\"f\":3},\"b\":{\"c\":2,"
                   "\"d\":1}}}");
    assert_without("/a", "[1,2]", "[1,2]");
}

static void a_pointer_is_unescaped_and_may_have_empty_tokens(void **state)
{
    assert_without("/a~1b", "{\"a/b\":1,\"c\":2}", "{\"c\":2}");
    assert_without("/m~0n", "{\"m~n\":1,\"c\":2}", "{\"c\":2}");
    assert_without("/~01", "{\"~1\":1,\"/\":2}", "{\"/\":2}");
    assert_without("/", "{\"\":1,\"c\":2}", "{\"c\":2}");
    assert_without("//x", "{\"\":{\"x\":1},\"c\":2}", "{\"\":{},\"c\":2}");
    assert_without("/\xc3\xa9", "{\"\\u00e9\":1}", "{}");
    assert_without("", "{\"a\":1}", "");
}

static void a_pointer_to_an_element_takes_it_away(void **state)
{
    assert_without("/1", "[1,2,3]", "[1,3]");
    assert_without("/0", "[{\"b\":1,\"a\":2},{\"d\":3,\"c\":4}]",
                   "[{\"c\":4,\"d\":3}]");
    assert_without("/a/10/x", "{\"a\":[0,1,2,3,4,5,6,7,8,9,{\"x\":1}]}",
                   "{\"a\":[0,1,2,3,4,5,6,7,8,9,{}]}");
    assert_without("/01", "[1,2]", "[1,2]");
    assert_without("/-", "[1,2]", "[1,2]");
    assert_without("/2", "[1,2]", "[1,2]");
    assert_without("/0", "{\"0\":1}", "{}");
}

static void several_pointers_work_together(void **state)
{
    struct lk_slice list[LK_POINTER_COUNT_MAX];
    struct lk_pointers pointers = {0};
    struct lk_buf out = {0};

    for (size_t i = 0; i < LK_POINTER_COUNT_MAX; i++) {
        list[i] = LK_SLICE("/x/y/z");
    }
    list[0] = LK_SLICE("/a");
    list[62] = LK_SLICE("/b/c");
    list[63] = LK_SLICE("/b/d/0");
    assert_int_equal(lk_pointers_parse(list, 64, &pointers), LK_OK);
    struct lk_slice text = LK_SLICE(
        "{\"a\":1,\"b\":{\"d\":[2,3],\"c\":4,\"e\":5},\"x\":{\"y\":6}}");
    assert_int_equal(lk_json_canonical(text, &pointers, &out), LK_OK);
    assert_int_equal(latchkey_buf_add(&out, "", 1), LK_OK);
    assert_string_equal(out.data,
                        "{\"b\":{\"d\":[3],\"e\":5},\"x\":{\"y\":6}}");
    latchkey_buf_free(&out);
    lk_pointers_free(&pointers);
}

static void leaving_out_does_not_hide_duplicates(void **state)
{
    struct lk_slice list = LK_SLICE("/a");
    struct lk_pointers pointers = {0};
    struct lk_buf out = {0};

    assert_int_equal(lk_pointers_parse(&list, 1, &pointers), LK_OK);
    assert_int_equal(
        lk_json_canonical(LK_SLICE("{\"a\":1,\"a\":2}"), &pointers, &out),
        LK_MALFORMED);
    assert_int_equal(lk_json_canonical(LK_SLICE("{\"a\":{\"b\":1,\"b\":2}}"),
                                       &pointers, &out),
                     LK_MALFORMED);
    latchkey_buf_free(&out);
    lk_pointers_free(&pointers);
}

/* ---- C04: random values, spelt at random -------------------------------- */

enum kind { NUMBER, STRING, LITERAL, ARRAY, OBJECT };
enum { CHILDREN = 4, LENGTH = 8, POOL = 400, ROUNDS = 20000 };

struct text {
    uint32_t points[LENGTH];
    size_t len;
};

/* A number is digits * 10^exponent; a literal, digits modulo 3. */
struct value {
    enum kind kind;
    bool negative;
    uint64_t digits;
    int exponent;
    struct text string;
    size_t count;
    struct text names[CHILDREN];
    struct value *children[CHILDREN];
};

static struct value pool[POOL];
static size_t used;
static uint64_t seed = 0x9e3779b97f4a7c15;

static uint64_t random_below(uint64_t limit)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % limit;
}

static void make_text(struct text *text)
{
    static const uint32_t points[] = {
        'a', 'b',  '/',    '"',    '\\',   0,      '\n',    0x1f,    0x7f,
        ' ', 0xe9, 0x20ac, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x1f600, 0x10ffff};

    text->len = random_below(LENGTH - 2);
    for (size_t i = 0; i < text->len; i++) {
        text->points[i] = points[random_below(sizeof points / sizeof *points)];
    }
}

static struct value *make_value(int depth)
{
    struct value *value = &pool[used++];

    *value = (struct value){.kind = random_below(depth > 3 ? 3 : 5)};
    value->negative = random_below(2);
    value->digits =
        random_below(3) ? random_below(2000) : random_below(1 << 30);
    value->exponent = (int)random_below(20) - 10;
    make_text(&value->string);
    if (value->kind >= ARRAY) {
        value->count = random_below(CHILDREN);
    }
    for (size_t i = 0; i < value->count; i++) {
        value->children[i] = make_value(depth + 1);
        make_text(&value->names[i]);
        /* The last character makes names unique. */
        value->names[i].points[value->names[i].len++] = (uint32_t)('a' + i);
    }
    return value;
}

static void put(struct lk_buf *out, const char *text)
{
    assert_int_equal(latchkey_buf_add_text(out, text), LK_OK);
}

static void spell_space(struct lk_buf *out)
{
    static const char *const spaces[] = {"", "", "", " ", "\t", "\n", "\r\n"};

    put(out, spaces[random_below(7)]);
}

static void spell_unit(uint32_t unit, struct lk_buf *out)
{
    assert_int_equal(
        latchkey_buf_printf(out, random_below(2) ? "\\u%04x" : "\\u%04X", unit),
        LK_OK);
}

static void spell_raw(uint32_t c, struct lk_buf *out)
{
    unsigned lead = c < 0x80      ? c
                    : c < 0x800   ? 0xc0 | c >> 6
                    : c < 0x10000 ? 0xe0 | c >> 12
                                  : 0xf0 | c >> 18;
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;

    assert_int_equal(latchkey_buf_printf(out, "%c", (int)lead), LK_OK);
    while (more-- > 0) {
        assert_int_equal(latchkey_buf_printf(
                             out, "%c", (int)(0x80 | (c >> 6 * more & 0x3f))),
                         LK_OK);
    }
}

static void spell_character(uint32_t c, struct lk_buf *out)
{
    static const char values[] = "\"\\/\b\f\n\r\t", letters[] = "\"\\/bfnrt";
    const char *found = c && c < 0x80 ? strchr(values, (int)c) : NULL;

    if (found && random_below(2)) {
        assert_int_equal(
            latchkey_buf_printf(out, "\\%c", letters[found - values]), LK_OK);
    } else if (c >= 0x20 && c != '"' && c != '\\' && random_below(2)) {
        spell_raw(c, out);
    } else if (c < 0x10000) {
        spell_unit(c, out);
    } else {
        spell_unit(0xd800 + ((c - 0x10000) >> 10), out);
        spell_unit(0xdc00 + ((c - 0x10000) & 0x3ff), out);
    }
}

static void spell_text(const struct text *text, struct lk_buf *out)
{
    put(out, "\"");
    for (size_t i = 0; i < text->len; i++) {
        spell_character(text->points[i], out);
    }
    put(out, "\"");
}

/* Moves the point to anywhere, with zeros on either side. */
static void spell_number(const struct value *value, struct lk_buf *out)
{
    char digits[64];
    int zeros = (int)random_below(4), exponent = value->exponent - zeros;
    int len = snprintf(digits, sizeof digits, "%" PRIu64 "%.*s", value->digits,
                       value->digits ? zeros : 0, "0000");
    int whole = (int)random_below((uint64_t)len + 1);

    if (value->digits ? value->negative : random_below(2)) {
        put(out, "-");
    }
    if (!value->digits) {
        put(out, random_below(2) ? "0" : "0.00");
        exponent = (int)random_below(9);
    } else if (whole == len) {
        put(out, digits);
    } else {
        exponent += len - whole;
        assert_int_equal(latchkey_buf_printf(out, "%.*s.%s", whole ? whole : 1,
                                             whole ? digits : "0",
                                             digits + whole),
                         LK_OK);
    }
    if (exponent || random_below(2)) {
        assert_int_equal(
            latchkey_buf_printf(out, "%c%s%0*d", random_below(2) ? 'e' : 'E',
                                exponent < 0      ? "-"
                                : random_below(2) ? "+"
                                                  : "",
                                (int)random_below(5), abs(exponent)),
            LK_OK);
    }
}

static void spell_value(const struct value *value, struct lk_buf *out);

static void spell_children(const struct value *value, struct lk_buf *out)
{
    size_t order[CHILDREN];
    bool is_object = value->kind == OBJECT;

    for (size_t i = 0; i < value->count; i++) {
        size_t other = is_object ? random_below(i + 1) : i;
        order[i] = order[other];
        order[other] = i;
    }
    put(out, is_object ? "{" : "[");
    for (size_t i = 0; i < value->count; i++) {
        put(out, i ? "," : "");
        spell_space(out);
        if (is_object) {
            spell_text(&value->names[order[i]], out);
            spell_space(out);
            put(out, ":");
        }
        spell_value(value->children[order[i]], out);
    }
    spell_space(out);
    put(out, is_object ? "}" : "]");
}

static void spell_value(const struct value *value, struct lk_buf *out)
{
    static const char *const literals[] = {"true", "false", "null"};

    spell_space(out);
    switch (value->kind) {
    case NUMBER:
        spell_number(value, out);
        break;
    case STRING:
        spell_text(&value->string, out);
        break;
    case LITERAL:
        put(out, literals[value->digits % 3]);
        break;
    default:
        spell_children(value, out);
    }
    spell_space(out);
}

/* Makes one value mean something else. */
static void mutate(struct value *value)
{
    size_t i = value->count ? random_below(value->count) : 0;

    switch (value->kind) {
    case NUMBER:
        value->digits = value->digits * 10 + 1;
        break;
    case STRING:
        value->string.points[value->string.len++] = 'x';
        break;
    case LITERAL:
        value->digits++;
        break;
    case ARRAY:
        if (value->count) {
            value->count--;
        } else {
            value->kind = OBJECT;
        }
        break;
    case OBJECT:
        if (value->count) {
            value->names[i].points[value->names[i].len++] = 'z';
        } else {
            value->kind = ARRAY;
        }
        break;
    }
}

static struct lk_fingerprint digest_of(const struct lk_buf *json)
{
    struct lk_request request = {.content_type = LK_SLICE("application/json"),
                                 .body = latchkey_buf_slice(json)};
    struct lk_fingerprint fingerprint;

    assert_int_equal(latchkey_fingerprint(&request, &fingerprint, NULL), LK_OK);
    if (fingerprint.form != LK_BODY_JSON) {
        fail_msg("not taken for JSON: %.*s", (int)json->len, json->data);
    }
    return fingerprint;
}

static void any_two_spellings_are_equal_and_any_change_is_not(void **state)
{
    struct lk_buf one = {0}, two = {0}, other = {0};

    for (int round = 0; round < ROUNDS; round++) {
        used = 0;
        one.len = two.len = other.len = 0;
        struct value *value = make_value(0);
        spell_value(value, &one);
        spell_value(value, &two);
        mutate(&pool[random_below(used)]);
        spell_value(value, &other);
        struct lk_fingerprint a = digest_of(&one), b = digest_of(&two),
                              c = digest_of(&other);
        if (memcmp(a.digest, b.digest, sizeof a.digest)) {
            fail_msg("differ: %.*s\nand: %.*s", (int)one.len, one.data,
                     (int)two.len, two.data);
        }
        if (!memcmp(a.digest, c.digest, sizeof a.digest)) {
            fail_msg("equal: %.*s\nand: %.*s", (int)one.len, one.data,
                     (int)other.len, other.data);
        }
    }
    latchkey_buf_free(&one);
    latchkey_buf_free(&two);
    latchkey_buf_free(&other);
}

/* ---- C04: hostile texts of 4 MB end in good time ------------------------ */

enum { HOSTILE = 4 << 20, WATCHDOG = 60 };

/* Fills `out` with head, then as many pieces as fit, then tail. In a piece, '#'
 * stands for a number that falls, so that the sort has all to do. */
static void fill(struct lk_buf *out, const char *head, const char *piece,
                 const char *tail)
{
    const char *number = strchr(piece, '#');
    unsigned count = 99999999;

    out->len = 0;
    put(out, head);
    while (out->len < HOSTILE) {
        if (number) {
            assert_int_equal(latchkey_buf_printf(out, "%.*s%08u%s",
                                                 (int)(number - piece), piece,
                                                 count--, number + 1),
                             LK_OK);
        } else {
            put(out, piece);
        }
    }
    put(out, tail);
}

static void survive(struct lk_buf *text, enum lk_status expected)
{
    struct lk_buf out = {0};

    alarm(WATCHDOG);
    assert_int_equal(canonical(latchkey_buf_slice(text), &out), expected);
    alarm(0);
    latchkey_buf_free(&out);
    text->len = 0;
}

static void hostile_flat_texts_end_in_good_time(void **state)
{
    struct lk_buf text = {0};
    char long_name[2048];

    fill(&text, "{", "\"#\":0,", "\"x\":0}");
    survive(&text, LK_OK);
    memset(long_name, 'a', sizeof long_name);
    memcpy(long_name, "\"", 1);
    strcpy(long_name + sizeof long_name - 8, "#\":0,");
    fill(&text, "{", long_name, "\"x\":0}");
    survive(&text, LK_OK);
    fill(&text, "{", "\"a\":0,", "\"a\":0}");
    survive(&text, LK_MALFORMED);
    fill(&text, "[", "0,", "0]");
    survive(&text, LK_OK);
    fill(&text, "[", "{},", "0]");
    survive(&text, LK_OK);
    fill(&text, "[", "{\"b\":0,\"a\":0},", "0]");
    survive(&text, LK_OK);
    fill(&text, "\"", "\\u0000", "\"");
    survive(&text, LK_OK);
    fill(&text, "\"", "\\ud83d\\ude00", "\"");
    survive(&text, LK_OK);
    fill(&text, "", "0", "");
    survive(&text, LK_MALFORMED);
    fill(&text, "1e", "0", "1");
    survive(&text, LK_OK);
    fill(&text, "1e", "9", "");
    survive(&text, LK_MALFORMED);
    fill(&text, "1", "0", "");
    survive(&text, LK_OK);
    fill(&text, "0.", "0", "");
    survive(&text, LK_OK);
    fill(&text, "", " ", "1");
    survive(&text, LK_OK);
    fill(&text, "", "[", "");
    survive(&text, LK_MALFORMED);
    latchkey_buf_free(&text);
}

/* Levels of objects, each out of order, around a text of `bulk` bytes: the
 * inner bytes must not be moved once for every level. */
static void add_nest(struct lk_buf *text, size_t levels, size_t bulk)
{
    for (size_t i = 0; i < levels; i++) {
        put(text, "{\"b\":");
    }
    put(text, "\"");
    for (size_t i = 0; i < bulk; i++) {
        put(text, "x");
    }
    put(text, "\"");
    for (size_t i = 0; i < levels; i++) {
        put(text, ",\"a\":0}");
    }
}

static void hostile_nested_texts_end_in_good_time(void **state)
{
    struct lk_buf text = {0};

    add_nest(&text, LK_JSON_DEPTH_MAX, HOSTILE);
    survive(&text, LK_OK);
    put(&text, "[");
    while (text.len < HOSTILE) {
        add_nest(&text, LK_JSON_DEPTH_MAX - 1, 1);
        put(&text, ",");
    }
    put(&text, "0]");
    survive(&text, LK_OK);
    latchkey_buf_free(&text);
}

static void hostile_texts_with_many_pointers_end_in_good_time(void **state)
{
    struct lk_slice list[LK_POINTER_COUNT_MAX];
    char deep[LK_POINTER_LENGTH_MAX + 1];
    struct lk_pointers pointers = {0};
    struct lk_buf text = {0}, out = {0};

    for (size_t i = 0; i < LK_POINTER_LENGTH_MAX; i++) {
        deep[i] = i % 2 ? '0' : '/';
    }
    for (size_t i = 0; i < LK_POINTER_COUNT_MAX; i++) {
        list[i] = (struct lk_slice){deep, LK_POINTER_LENGTH_MAX};
    }
    assert_int_equal(lk_pointers_parse(list, 64, &pointers), LK_OK);
    for (int i = 0; i < LK_JSON_DEPTH_MAX - 1; i++) {
        put(&text, "[");
    }
    put(&text, "[");
    while (text.len < HOSTILE) {
        put(&text, "0,");
    }
    put(&text, "1]");
    for (int i = 0; i < LK_JSON_DEPTH_MAX - 1; i++) {
        put(&text, "]");
    }
    alarm(WATCHDOG);
    assert_int_equal(
        lk_json_canonical(latchkey_buf_slice(&text), &pointers, &out), LK_OK);
    alarm(0);
    latchkey_buf_free(&text);
    latchkey_buf_free(&out);
    lk_pointers_free(&pointers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(white_space_and_member_order_vanish),
        cmocka_unit_test(members_are_sorted_in_nested_objects_too),
        cmocka_unit_test(
            members_are_sorted_by_code_point_of_the_unescaped_name),
        cmocka_unit_test(a_string_has_one_spelling),
        cmocka_unit_test(a_number_has_one_spelling),
        cmocka_unit_test(an_exponent_is_exact_as_long_as_it_fits_in_64_bits),
        cmocka_unit_test(duplicate_members_are_refused_even_if_escaped),
        cmocka_unit_test(text_that_is_not_json_is_refused),
        cmocka_unit_test(lone_surrogates_and_bad_utf8_are_refused),
        cmocka_unit_test(nesting_is_bounded_at_512_levels),
        cmocka_unit_test(size_is_bounded),
        cmocka_unit_test(a_pointer_leaves_its_member_out),
        cmocka_unit_test(a_pointer_is_unescaped_and_may_have_empty_tokens),
        cmocka_unit_test(a_pointer_to_an_element_takes_it_away),
        cmocka_unit_test(several_pointers_work_together),
        cmocka_unit_test(leaving_out_does_not_hide_duplicates),
        cmocka_unit_test(any_two_spellings_are_equal_and_any_change_is_not),
        cmocka_unit_test(hostile_flat_texts_end_in_good_time),
        cmocka_unit_test(hostile_nested_texts_end_in_good_time),
        cmocka_unit_test(hostile_texts_with_many_pointers_end_in_good_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
