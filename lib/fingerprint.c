/* fingerprint.c - SHA-256 of what a request means; see docs/fingerprint.md. */

/*
 * The plain SHA256_ functions: OpenSSL 3 prefers EVP, which looks the
 * algorithm up again for each digest and allocates, at four times the cost of
 * a short request. These cannot fail.
 */
#define OPENSSL_SUPPRESS_DEPRECATED

#include "latchkey.h"

#include "lib/body.h"
#include "lib/http_syntax.h"
#include "lib/json.h"
#include "lib/sort.h"

#include <openssl/sha.h>
#include <string.h>

/* A change of anything that is hashed needs a new number in all four. */
#define VERSION_LINE  "version 1\n"
#define REQUEST_TAG   "latchkey fingerprint 1\n"
#define BINDING_TAG   "latchkey binding 1\n"
#define DIGEST_PREFIX "1:"

const char *latchkey_body_form_word(enum lk_body_form form)
{
    switch (form) {
#define X(name, word)                                                          \
    case LK_BODY_##name:                                                       \
        return word;
        LK_BODY_FORM_MAP(X)
#undef X
    }
    return "?";
}

/* ---- Body ---------------------------------------------------------------- */

/* Appends the media type in lower case, without parameters. */
static enum lk_status read_media_type(struct lk_slice content_type,
                                      struct lk_buf *media)
{
    const char *end = content_type.len
                          ? memchr(content_type.data, ';', content_type.len)
                          : NULL;

    if (end) {
        content_type.len = (size_t)(end - content_type.data);
    }
    return lk_add_lower(lk_trim(content_type), media);
}

/* Appends the encoding in lower case; nothing if the body is as it reads. */
static enum lk_status read_encoding(struct lk_slice content_encoding,
                                    struct lk_buf *encoding)
{
    struct lk_slice value = lk_trim(content_encoding);

    return lk_compare_lower(value, LK_SLICE("identity"))
               ? lk_add_lower(value, encoding)
               : LK_OK;
}

static bool has_suffix(struct lk_slice text, struct lk_slice suffix)
{
    return text.len >= suffix.len &&
           !memcmp(text.data + text.len - suffix.len, suffix.data, suffix.len);
}

static bool has_prefix(struct lk_slice text, struct lk_slice prefix)
{
    return text.len >= prefix.len &&
           !memcmp(text.data, prefix.data, prefix.len);
}

/* How a body of this type is read, if nothing is wrong with it. */
static enum lk_body_form expected_form(struct lk_slice media)
{
    if (latchkey_slice_equal(media, LK_SLICE("application/json")) ||
        has_suffix(media, LK_SLICE("+json"))) {
        return LK_BODY_JSON;
    }
    if (latchkey_slice_equal(media,
                             LK_SLICE("application/x-www-form-urlencoded"))) {
        return LK_BODY_FORM;
    }
    return has_prefix(media, LK_SLICE("multipart/")) ? LK_BODY_MULTIPART
                                                     : LK_BODY_RAW;
}

/*
 * Finds the bytes that represent the body, in `canonical` or in the request,
 * and their form. Only LK_NOMEM is a failure.
 */
static enum lk_status read_body(const struct lk_request *request,
                                enum lk_body_form expected,
                                const struct lk_pointers *ignore,
                                struct lk_buf *canonical,
                                enum lk_body_form *form, struct lk_slice *bytes)
{
    enum lk_status status = LK_MALFORMED;

    if (!request->body.len) {
        *form = LK_BODY_EMPTY;
        *bytes = request->body;
        return LK_OK;
    }
    if (expected == LK_BODY_JSON) {
        status = lk_json_canonical(request->body, ignore, canonical);
    } else if (expected == LK_BODY_FORM) {
        status = lk_form_canonical(request->body, canonical);
    } else if (expected == LK_BODY_MULTIPART) {
        status = lk_multipart_canonical(request->content_type, request->body,
                                        canonical);
    }
    bool raw = status == LK_MALFORMED || status == LK_TOO_LARGE;
    *form = raw ? LK_BODY_RAW : expected;
    *bytes = raw ? request->body : latchkey_buf_slice(canonical);
    return raw ? LK_OK : status;
}

/* ---- Writer: the digest, and the same for people ------------------------- */

struct writer {
    SHA256_CTX digest;
    struct lk_buf *explain; /* NULL: not wanted */
};

static void hash_bytes(struct writer *w, struct lk_slice bytes)
{
    SHA256_Update(&w->digest, bytes.data, bytes.len);
}

/* Eight bytes, the most significant first. */
static void hash_number(struct writer *w, uint64_t number)
{
    char bytes[8];

    for (int i = 7; i >= 0; i--) {
        bytes[i] = (char)(number & 0xff);
        number >>= 8;
    }
    hash_bytes(w, (struct lk_slice){bytes, sizeof bytes});
}

/* The length in front keeps fields apart: "ab" + "c" is not "a" + "bc". */
static void hash_field(struct writer *w, struct lk_slice bytes)
{
    hash_number(w, bytes.len);
    hash_bytes(w, bytes);
}

/* Appends `text` so that it stays on its line and cannot move a cursor. */
static enum lk_status explain_text(struct writer *w, struct lk_slice text)
{
    static const char digits[] = "0123456789abcdef";
    enum lk_status status;

    if (!w->explain) {
        return LK_OK;
    }
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        char escape[4] = {(char)c, (char)c};
        size_t len = c == '\\' ? 2 : 1;
        if (c < 0x20 || c >= 0x7f) {
            escape[0] = '\\';
            escape[1] = 'x';
            escape[2] = digits[c >> 4];
            escape[3] = digits[c & 15];
            len = 4;
        }
        status = latchkey_buf_add(w->explain, escape, len);
        if (status) {
            return status;
        }
    }
    return LK_OK;
}

/* Text of our own, line ends included. */
static enum lk_status explain_plain(struct writer *w, const char *text)
{
    return w->explain ? latchkey_buf_add_text(w->explain, text) : LK_OK;
}

/* A line: `label`, and a space and `text` unless that is empty. */
static enum lk_status explain_line(struct writer *w, const char *label,
                                   struct lk_slice text)
{
    enum lk_status status = explain_plain(w, label);

    if (!status && text.len) {
        status = explain_plain(w, " ");
    }
    if (!status) {
        status = explain_text(w, text);
    }
    return status ? status : explain_plain(w, "\n");
}

/* The field goes to the digest and, if wanted, as a line to the explanation. */
static enum lk_status write_field(struct writer *w, const char *label,
                                  struct lk_slice bytes)
{
    hash_field(w, bytes);
    return explain_line(w, label, bytes);
}

/* ---- Fields -------------------------------------------------------------- */

static enum lk_status write_header(struct writer *w,
                                   const struct lk_header *header,
                                   struct lk_buf *name)
{
    struct lk_slice value = lk_trim(header->value);

    name->len = 0;
    enum lk_status status = lk_add_lower(header->name, name);
    if (!status) {
        hash_field(w, latchkey_buf_slice(name));
        hash_field(w, value);
        status = explain_plain(w, "header ");
    }
    if (!status) {
        status = explain_text(w, latchkey_buf_slice(name));
    }
    return status ? status : explain_line(w, ":", value);
}

/*
 * Sorted by name, stable: the order of lines with the same name has a meaning.
 */
static enum lk_status write_headers(struct writer *w,
                                    const struct lk_request *request)
{
    struct lk_buf sorted = {0}, name = {0};
    size_t count = request->header_count;

    hash_number(w, count);
    enum lk_status status = latchkey_buf_add(&sorted, request->headers,
                                             count * sizeof *request->headers);
    struct lk_header *headers = (struct lk_header *)(void *)sorted.data;
    if (!status) {
        status =
            lk_sort(headers, count, sizeof *headers, lk_compare_headers, NULL);
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = write_header(w, &headers[i], &name);
    }
    latchkey_buf_free(&sorted);
    latchkey_buf_free(&name);
    return status;
}

static void write_hex(const uint8_t *digest, size_t len, char *text)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < len; i++) {
        *text++ = digits[digest[i] >> 4];
        *text++ = digits[digest[i] & 15];
    }
}

/* A binding may be a secret: only its hash is hashed and shown. */
static enum lk_status write_binding(struct writer *w, struct lk_slice binding)
{
    uint8_t digest[LK_FINGERPRINT_SIZE];
    char hex[2 * LK_FINGERPRINT_SIZE];

    if (!binding.len) {
        return write_field(w, "binding", binding);
    }
    struct writer inner = {0};
    SHA256_Init(&inner.digest);
    hash_bytes(&inner, LK_SLICE(BINDING_TAG));
    hash_bytes(&inner, binding);
    SHA256_Final(digest, &inner.digest);
    write_hex(digest, sizeof digest, hex);
    hash_field(w, (struct lk_slice){(char *)digest, sizeof digest});
    return explain_line(w, "binding sha256",
                        (struct lk_slice){hex, sizeof hex});
}

/*
 * An encoding has a mark before it. The header count follows otherwise, and
 * that does not begin with a letter.
 */
static enum lk_status write_encoding(struct writer *w, struct lk_slice encoding)
{
    if (!encoding.len) {
        return LK_OK;
    }
    hash_bytes(w, LK_SLICE("encoding"));
    return write_field(w, "content-encoding", encoding);
}

static enum lk_status write_body(struct writer *w, enum lk_body_form form,
                                 struct lk_slice bytes)
{
    const char *word = latchkey_body_form_word(form);

    hash_field(w, latchkey_slice(word));
    enum lk_status status = explain_plain(w, "body ");
    return status ? status : write_field(w, word, bytes);
}

/* What is hashed, in this order; see docs/fingerprint.md. A change here is a
 * new version. */
static enum lk_status write_request(
    struct writer *w, const struct lk_request *request, struct lk_slice media,
    struct lk_slice encoding, enum lk_body_form form, struct lk_slice body)
{
    hash_bytes(w, LK_SLICE(REQUEST_TAG));
    enum lk_status status = explain_plain(w, VERSION_LINE);
    if (!status) {
        status = write_field(w, "method", request->method);
    }
    if (!status) {
        status = write_field(w, "path", request->path);
    }
    if (!status) {
        status = write_field(w, "query", request->query);
    }
    if (!status) {
        status = write_field(w, "content-type", media);
    }
    if (!status) {
        status = write_encoding(w, encoding);
    }
    if (!status) {
        status = write_headers(w, request);
    }
    if (!status) {
        status = write_binding(w, request->binding);
    }
    return status ? status : write_body(w, form, body);
}

/* ---- The fingerprint ----------------------------------------------------- */

/* LK_NOMEM is the only failure: a body that cannot be read is hashed raw. */
static enum lk_status fingerprint_with(struct writer *w,
                                       const struct lk_request *request,
                                       const struct lk_pointers *ignore,
                                       struct lk_fingerprint *fingerprint)
{
    struct lk_buf type = {0}, encoding = {0}, canonical = {0};
    struct lk_slice body = {0};
    enum lk_status status = read_media_type(request->content_type, &type);

    if (!status) {
        status = read_encoding(request->content_encoding, &encoding);
    }
    if (status) {
        goto done;
    }
    struct lk_slice media = latchkey_buf_slice(&type);
    /* What is encoded is not looked into. */
    enum lk_body_form expected =
        encoding.len ? LK_BODY_RAW : expected_form(media);
    status = read_body(request, expected, ignore, &canonical,
                       &fingerprint->form, &body);
    /* The raw bytes of a multipart body mean nothing without the boundary. */
    if (expected_form(media) == LK_BODY_MULTIPART &&
        fingerprint->form == LK_BODY_RAW) {
        media = lk_trim(request->content_type);
    }
    if (!status) {
        SHA256_Init(&w->digest);
        status = write_request(w, request, media, latchkey_buf_slice(&encoding),
                               fingerprint->form, body);
        SHA256_Final(fingerprint->digest, &w->digest);
    }
done:
    latchkey_buf_free(&type);
    latchkey_buf_free(&encoding);
    latchkey_buf_free(&canonical);
    return status;
}

/*
 * `explain` may be NULL; otherwise what was hashed is appended for people.
 * LK_INVALID: a pointer of request->ignore is not one. On an error `explain` is
 * as it was.
 */
enum lk_status latchkey_fingerprint(const struct lk_request *request,
                                    struct lk_fingerprint *fingerprint,
                                    struct lk_buf *explain)
{
    struct writer w = {.explain = explain};
    struct lk_pointers ignore = {0};
    size_t mark = explain ? explain->len : 0;
    enum lk_status status =
        lk_pointers_parse(request->ignore, request->ignore_count, &ignore);

    if (status) {
        goto done;
    }
    status = fingerprint_with(&w, request, &ignore, fingerprint);
done:
    if (status && explain) {
        explain->len = mark;
    }
    lk_pointers_free(&ignore);
    return status;
}

/* "1:" and 64 hexadecimal digits, and a NUL. */
void latchkey_fingerprint_text(const struct lk_fingerprint *fingerprint,
                               char text[LK_FINGERPRINT_TEXT + 1])
{
    memcpy(text, DIGEST_PREFIX, sizeof DIGEST_PREFIX - 1);
    write_hex(fingerprint->digest, LK_FINGERPRINT_SIZE,
              text + sizeof DIGEST_PREFIX - 1);
    text[LK_FINGERPRINT_TEXT] = '\0';
}
