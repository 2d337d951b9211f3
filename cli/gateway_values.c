/*
 * gateway_values.c - what the gateway makes of a request: `latchkey key`,
 * `latchkey tenant` and `latchkey fingerprint`.
 *
 * They use the same library functions as the gateway and ask no daemon, so that
 * a developer can see why two requests are, or are not, the same.
 */
#include "cli/commands.h"
#include "lib/http_syntax.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==== `latchkey key`: reads the value of an Idempotency-Key */

static const struct lk_option key_options[] = {{0}};

const struct lk_manual lk_manual_key = {
    "Reads VALUE as the value of an Idempotency-Key header, quoted or bare,\n"
    "and prints the key that it means, or why it is refused and where. Put\n"
    "a value that begins with a dash after --.",
    key_options};

static void show_key(struct lk_cli *cli, struct lk_slice key)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "key", key);
        lk_doc_end_object(&doc);
    } else {
        /* Printable ASCII only: as it is, so that it can be used as it is. */
        lk_put_raw(&cli->out, key);
        lk_put(&cli->out, "\n");
    }
}

/* The fault, and below the value a caret at the place. The value is escaped, so
 * the caret is set by the width of what is in front of it, not by its bytes. */
static void show_fault(struct lk_cli *cli, struct lk_slice value,
                       enum lk_key_fault fault, size_t at)
{
    const char *text = latchkey_key_fault_text(fault);
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf before = {0};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_null(&doc, "key");
        lk_doc_text(&doc, "fault",
                    latchkey_slice(latchkey_key_fault_name(fault)));
        lk_doc_integer(&doc, "at", (int64_t)at);
        lk_doc_text(&doc, "detail", latchkey_slice(text));
        lk_doc_end_object(&doc);
        return;
    }
    lk_put_text(&before,
                (struct lk_slice){value.data, at < value.len ? at : value.len});
    lk_put(&cli->out, "refused: %s, at offset %zu\n  ", text, at);
    lk_put_text(&cli->out, value);
    lk_put(&cli->out, "\n  %*s^\n",
           (int)lk_put_width(latchkey_buf_slice(&before)), "");
    latchkey_buf_free(&before);
}

/* LK_EXIT_NO: the gateway would refuse the value. */
enum lk_exit lk_run_key(struct lk_cli *cli)
{
    struct lk_slice value = latchkey_slice(cli->args.words[0]);
    struct lk_buf key = {0};
    enum lk_key_fault fault = LK_KEY_FAULT_NONE;
    size_t at = 0;
    enum lk_status status = latchkey_key_parse(value, &key, &fault, &at);

    if (status == LK_MALFORMED) {
        show_fault(cli, value, fault, at);
        return LK_EXIT_NO;
    }
    lk_must(status);
    show_key(cli, latchkey_buf_slice(&key));
    latchkey_buf_free(&key);
    return LK_EXIT_DONE;
}

/* ==== `latchkey tenant`: a tenant as the gateway stores it, hashed */

/* As the gateway has them: idempotency_secret has at least 16 bytes, and
 * "hashed" of idempotency_tenant uses 16 bytes of the hash. */
enum { SECRET_LEAST = 16, HASH_BYTES = 16 };

static const struct lk_option tenant_options[] = {
    {"secret-file", "FILE", "the file of nginx's idempotency_secret"},
    {0},
};

const struct lk_manual lk_manual_tenant = {
    "Prints the tenant that a VALUE becomes with \"idempotency_tenant ...\n"
    "hashed\" in nginx, so that latchkey list --tenant and others find it. If\n"
    "VALUE is -, it is read from standard input: where it is a credential,\n"
    "others could see it on a command line.",
    tenant_options};

/* Reads a file, or standard input for "-", without line ends at its end:
 * editors and echo add them. */
static enum lk_exit read_value_file(const char *path, struct lk_buf *value)
{
    enum lk_exit result = lk_read_file(path, value);

    while (value->len > 0 &&
           strchr("\r\n", value->data[value->len - 1]) != NULL) {
        value->len--;
    }
    return result;
}

/* "h:" and the first HASH_BYTES of HMAC-SHA256 in hexadecimal digits, as the
 * gateway computes it. */
static void show_tenant(struct lk_cli *cli, struct lk_slice secret,
                        struct lk_slice value)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf tenant = {0};
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned length;

    if (HMAC(EVP_sha256(), secret.data, (int)secret.len,
             (const unsigned char *)value.data, value.len, mac,
             &length) == NULL) {
        lk_must(LK_NOMEM);
    }
    lk_put(&tenant, "h:");
    for (size_t i = 0; i < HASH_BYTES; i++) {
        lk_put(&tenant, "%02x", mac[i]);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "tenant", latchkey_buf_slice(&tenant));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&tenant, "\n");
        lk_put_raw(&cli->out, latchkey_buf_slice(&tenant));
    }
    latchkey_buf_free(&tenant);
}

/* What nginx would refuse is refused here too, with the same limits. */
enum lk_exit lk_run_tenant(struct lk_cli *cli)
{
    const char *path = lk_args_value(&cli->args, "secret-file");
    const char *word = cli->args.words[0];
    struct lk_buf secret = {0};
    struct lk_buf value = {0};
    enum lk_exit result = LK_EXIT_DONE;

    if (path == NULL) {
        return lk_complain_usage(cli, "name the file of nginx's "
                                      "idempotency_secret with --secret-file");
    }
    if (strcmp(word, "-") == 0) {
        result = read_value_file(word, &value);
    } else {
        lk_put_raw(&value, latchkey_slice(word));
    }
    if (result == LK_EXIT_DONE) {
        result = read_value_file(path, &secret);
    }
    if (result == LK_EXIT_DONE && secret.len < SECRET_LEAST) {
        lk_complain("%s is shorter than %d bytes; nginx would refuse it as "
                    "idempotency_secret",
                    path, SECRET_LEAST);
        result = LK_EXIT_USAGE;
    } else if (result == LK_EXIT_DONE && value.len == 0) {
        result = lk_complain_usage(cli, "the value is empty; nginx would "
                                        "refuse such a tenant");
    }
    if (result == LK_EXIT_DONE) {
        show_tenant(cli, latchkey_buf_slice(&secret),
                    latchkey_buf_slice(&value));
    }
    latchkey_buf_free(&secret);
    latchkey_buf_free(&value);
    return result;
}

/* ==== `latchkey fingerprint`: what a request means, as a digest */

static const struct lk_option fingerprint_options[] = {
    {"method", "METHOD", "the request's method"},
    {"path", "PATH", "its path, as sent"},
    {"query", "QUERY", "its query, without the question mark"},
    {"content-type", "TYPE", "the whole value of Content-Type"},
    {"content-encoding", "CODING", "the value of Content-Encoding"},
    {"header", "'NAME: VALUE'", "a header that takes part; may be repeated"},
    {"bind", "TEXT", "a session or credential to bind to"},
    {"ignore", "POINTER",
     "a JSON member to leave out (/sent_at); may be\nrepeated"},
    {"explain", NULL,
     "show the form on the wire and what was hashed,\nafter the digest"},
    {0},
};

const struct lk_manual lk_manual_fingerprint = {
    "Reads a request's body from standard input and prints its fingerprint,\n"
    "64 hexadecimal digits. Two requests with one fingerprint are the same\n"
    "request to Latchkey. What is not given counts as absent; the body is\n"
    "read as --content-type says. In a CLAIM, a fingerprint is \"1:\" and\n"
    "these digits; --explain shows that form too, as \"wire\".",
    fingerprint_options};

/* --header and --ignore; the slices point into the command line. */
struct lists {
    struct lk_header *headers;
    size_t header_count;
    struct lk_slice *ignore;
    size_t ignore_count;
};

/* The lists have room for every option that was given. The caller frees them,
 * also after an error. */
static enum lk_exit read_lists(struct lk_cli *cli, struct lists *lists)
{
    size_t most = cli->args.given_count + 1;
    const char *value;
    size_t at = 0;

    lists->headers = lk_must_make(most, sizeof(*lists->headers));
    lists->ignore = lk_must_make(most, sizeof(*lists->ignore));
    while ((value = lk_args_next(&cli->args, "header", &at)) != NULL) {
        size_t length = strcspn(value, ":");

        if (length == 0 || value[length] == '\0') {
            return lk_complain_usage(
                cli, "--header \"%s\" is not of the form \"Name: value\"",
                value);
        }
        lists->headers[lists->header_count++] = (struct lk_header){
            .name = lk_trim((struct lk_slice){value, length}),
            .value = lk_trim(latchkey_slice(value + length + 1)),
        };
    }
    at = 0;
    while ((value = lk_args_next(&cli->args, "ignore", &at)) != NULL) {
        lists->ignore[lists->ignore_count++] = latchkey_slice(value);
    }
    return LK_EXIT_DONE;
}

static struct lk_slice given_value(const struct lk_cli *cli, const char *name)
{
    return latchkey_slice(lk_args_value(&cli->args, name));
}

/* The digest alone, as hexadecimal digits; on the wire its version is in front
 * of it. */
static void show_fingerprint(struct lk_cli *cli,
                             const struct lk_fingerprint *fingerprint,
                             struct lk_slice explain)
{
    char text[LK_FINGERPRINT_TEXT + 1];
    const char *digest = text + (LK_FINGERPRINT_TEXT - 2 * LK_FINGERPRINT_SIZE);
    struct lk_doc doc = {.out = &cli->out};

    latchkey_fingerprint_text(fingerprint, text);
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "digest", latchkey_slice(digest));
        lk_doc_text(&doc, "fingerprint", latchkey_slice(text));
        lk_doc_text(&doc, "body-form",
                    latchkey_slice(latchkey_body_form_word(fingerprint->form)));
        lk_doc_text(&doc, "explain", explain);
        lk_doc_end_object(&doc);
        return;
    }
    lk_put(&cli->out, "%s\n", digest);
    if (lk_args_flag(&cli->args, "explain")) {
        lk_put(&cli->out, "wire %s\n", text);
        lk_put_lines(&cli->out, explain);
        if (explain.len > 0 && explain.data[explain.len - 1] != '\n') {
            lk_put(&cli->out, "\n");
        }
    }
}

/* LK_EXIT_USAGE: an --ignore is not a JSON Pointer, or there are too many. */
static enum lk_exit compute_fingerprint(struct lk_cli *cli,
                                        const struct lists *lists,
                                        struct lk_slice body)
{
    struct lk_request request = {
        .method = given_value(cli, "method"),
        .path = given_value(cli, "path"),
        .query = given_value(cli, "query"),
        .content_type = given_value(cli, "content-type"),
        .content_encoding = given_value(cli, "content-encoding"),
        .headers = lists->headers,
        .header_count = lists->header_count,
        .binding = given_value(cli, "bind"),
        .body = body,
        .ignore = lists->ignore,
        .ignore_count = lists->ignore_count,
    };
    bool explained = cli->json || lk_args_flag(&cli->args, "explain");
    struct lk_fingerprint fingerprint;
    struct lk_buf explain = {0};
    enum lk_status status = latchkey_fingerprint(&request, &fingerprint,
                                                 explained ? &explain : NULL);

    if (status == LK_INVALID) {
        latchkey_buf_free(&explain);
        return lk_complain_usage(cli, "--ignore takes JSON Pointers, such as "
                                      "/sent_at or /meta/0/id; at most 64");
    }
    lk_must(status);
    show_fingerprint(cli, &fingerprint, latchkey_buf_slice(&explain));
    latchkey_buf_free(&explain);
    return LK_EXIT_DONE;
}

/* The body comes from standard input and may be empty. */
enum lk_exit lk_run_fingerprint(struct lk_cli *cli)
{
    struct lists lists = {0};
    struct lk_buf body = {0};
    enum lk_exit result = read_lists(cli, &lists);

    if (result == LK_EXIT_DONE) {
        if (isatty(STDIN_FILENO)) {
            lk_hint(cli, "Type the body, then Ctrl-D.");
        }
        result = lk_read_file("-", &body);
    }
    if (result == LK_EXIT_DONE) {
        result = compute_fingerprint(cli, &lists, latchkey_buf_slice(&body));
    }
    free(lists.headers);
    free(lists.ignore);
    latchkey_buf_free(&body);
    return result;
}
