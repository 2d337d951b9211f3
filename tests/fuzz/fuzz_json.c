/*
 * fuzz_json.c - checks that any bytes are safe as JSON, that canonical text is
 * its own canonical form, and that spelling it otherwise changes no digest,
 * but changing one value does (C04).
 */
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void put(struct lk_buf *out, const char *text, size_t len)
{
    demand(latchkey_buf_add(out, text, len) == LK_OK);
}

/* ---- Another spelling of canonical text -----------------------------------
 */

/* Which string, number or word of the text is changed on the way; names of
 * members do not count. */
static size_t scalars;
static size_t changed;

static bool is_changed(void)
{
    return scalars++ == changed;
}

static void respell_value(const char **at, struct lk_buf *out);

/* Every ASCII character but those of an escape as \uXXXX. */
static void respell_string(const char **at, struct lk_buf *out, bool change)
{
    put(out, "\"", 1);
    for ((*at)++; **at != '"'; (*at)++) {
        if (**at == '\\') {
            size_t len = (*at)[1] == 'u' ? 6 : 2;
            put(out, *at, len);
            *at += len - 1;
        } else if ((unsigned char)**at < 0x80) {
            demand(latchkey_buf_printf(out, "\\u%04X", **at) == LK_OK);
        } else {
            put(out, *at, 1);
        }
    }
    (*at)++;
    put(out, change ? "x\"" : "\"", change ? 2 : 1);
}

/* With a fraction of zero and, where there is one, a longer exponent. */
static void respell_number(const char **at, struct lk_buf *out, bool change)
{
    size_t digits = strspn(*at, "-0123456789");

    put(out, *at, digits);
    if (change) {
        char *last = out->data + out->len - 1;
        *last = *last == '7' ? '3' : '7';
    }
    put(out, ".00", 3);
    *at += digits;
    if (**at != 'e') {
        put(out, "E-000", 5);
        return;
    }
    put(out, "E", 1);
    put(out, (*at)[1] == '-' ? "-00" : "+00", 3);
    *at += (*at)[1] == '-' ? 2 : 1;
    digits = strspn(*at, "0123456789");
    put(out, *at, digits);
    *at += digits;
}

/* Members in reverse order: each is put before those already there. */
static void respell_object(const char **at, struct lk_buf *out)
{
    struct lk_buf all = {0};

    (*at)++;
    while (**at != '}') {
        struct lk_buf member = {0};
        *at += **at == ',';
        respell_string(at, &member, false);
        put(&member, "\t:", 2);
        (*at)++;
        respell_value(at, &member);
        if (all.len) {
            put(&member, ",", 1);
            put(&member, all.data, all.len);
        }
        latchkey_buf_free(&all);
        all = member;
    }
    (*at)++;
    put(out, "{", 1);
    put(out, all.data, all.len);
    put(out, "\n}", 2);
    latchkey_buf_free(&all);
}

static void respell_array(const char **at, struct lk_buf *out)
{
    put(out, "[", 1);
    for ((*at)++; **at != ']';) {
        if (**at == ',') {
            put(out, "\r,", 2);
            (*at)++;
        }
        respell_value(at, out);
    }
    (*at)++;
    put(out, "]", 1);
}

static void respell_word(const char **at, struct lk_buf *out, size_t len,
                         bool change)
{
    const char *other = **at == 't' ? "false" : "true";

    put(out, change ? other : *at, change ? strlen(other) : len);
    *at += len;
}

static void respell_value(const char **at, struct lk_buf *out)
{
    size_t letters = strspn(*at, "truefalsn");

    put(out, " ", 1);
    if (**at == '"') {
        respell_string(at, out, is_changed());
    } else if (**at == '{') {
        respell_object(at, out);
    } else if (**at == '[') {
        respell_array(at, out);
    } else if (letters) {
        respell_word(at, out, letters, is_changed());
    } else {
        respell_number(at, out, is_changed());
    }
    put(out, " ", 1);
}

/* Text that means the same, except for the value with this number. */
static void respell(struct lk_slice canonical, size_t change,
                    struct lk_buf *out)
{
    const char *at = canonical.data;

    scalars = 0;
    changed = change;
    respell_value(&at, out);
    demand(at == canonical.data + canonical.len);
}

/* ---- Checks ---------------------------------------------------------------
 */

static const struct lk_slice ignored[] = {LK_SLICE("/a"), LK_SLICE("/b/0"),
                                          LK_SLICE("/c/d"), LK_SLICE("/1")};

static struct lk_fingerprint digest_of(struct lk_slice body)
{
    struct lk_request request = {.content_type = LK_SLICE("application/json"),
                                 .body = body};
    struct lk_fingerprint digest;

    demand(latchkey_fingerprint(&request, &digest, NULL) == LK_OK);
    return digest;
}

static size_t pick_number(struct lk_slice text, size_t below)
{
    uint64_t number = 0;

    for (size_t i = 0; i < text.len; i++) {
        number = number * 1000003 + (unsigned char)text.data[i];
    }
    return (size_t)(number % below);
}

/* Another value anywhere is another request. */
static void check_change(struct lk_slice canonical, size_t values)
{
    struct lk_buf other = {0};
    struct lk_fingerprint a = digest_of(canonical), b;

    if (values) {
        respell(canonical, pick_number(canonical, values), &other);
        b = digest_of(latchkey_buf_slice(&other));
        demand(a.form == b.form);
        demand(memcmp(a.digest, b.digest, sizeof a.digest) != 0);
    }
    latchkey_buf_free(&other);
}

static void check_digests(struct lk_slice one, struct lk_slice two)
{
    struct lk_request request = {.content_type = LK_SLICE("application/json"),
                                 .body = one,
                                 .ignore = ignored,
                                 .ignore_count = 4};
    struct lk_fingerprint a, b;

    demand(latchkey_fingerprint(&request, &a, NULL) == LK_OK);
    request.body = two;
    demand(latchkey_fingerprint(&request, &b, NULL) == LK_OK);
    demand(a.form == b.form && !memcmp(a.digest, b.digest, sizeof a.digest));
}

static void check_same_canonical(struct lk_slice text, struct lk_slice expected)
{
    struct lk_buf out = {0};

    demand(lk_json_canonical(text, NULL, &out) == LK_OK);
    demand(latchkey_slice_equal(latchkey_buf_slice(&out), expected));
    latchkey_buf_free(&out);
}

static void check_left_out(struct lk_slice text)
{
    struct lk_pointers pointers = {0};
    struct lk_buf out = {0};

    demand(lk_pointers_parse(ignored, 4, &pointers) == LK_OK);
    demand(lk_json_canonical(text, &pointers, &out) == LK_OK);
    check_same_canonical(latchkey_buf_slice(&out), latchkey_buf_slice(&out));
    latchkey_buf_free(&out);
    lk_pointers_free(&pointers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lk_slice text = {(const char *)data, size};
    struct lk_buf out = {0}, other = {0};
    enum lk_status status = lk_json_canonical(text, NULL, &out);

    if (!status) {
        struct lk_slice canonical = latchkey_buf_slice(&out);
        put(&out, "", 1);
        canonical.data = out.data;
        check_same_canonical(canonical, canonical);
        respell(canonical, SIZE_MAX, &other);
        check_same_canonical(latchkey_buf_slice(&other), canonical);
        check_left_out(text);
        check_digests(text, latchkey_buf_slice(&other));
        check_change(canonical, scalars);
    } else {
        demand(status == LK_MALFORMED && out.len == 0);
        check_digests(text, text);
    }
    latchkey_buf_free(&out);
    latchkey_buf_free(&other);
    return 0;
}
