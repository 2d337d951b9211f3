/* fingerprint.c - `latchkey fingerprint`: what a request means, as a digest. */
#include "cli/commands.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct lk_option options[] = {
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
    "request to Latchkey. What is not given takes part as absent; the body is\n"
    "understood as --content-type says. In a CLAIM, a fingerprint is \"1:\" "
    "and\n"
    "these digits; --explain shows that form too, as \"wire\".",
    options};

struct lists {
    struct lk_header *headers;
    size_t header_count;
    struct lk_slice *ignore;
    size_t ignore_count;
};

static struct lk_slice trim(struct lk_slice text)
{
    while (text.len > 0 && strchr(" \t", text.data[0]) != NULL) {
        text.data++;
        text.len--;
    }
    while (text.len > 0 && strchr(" \t", text.data[text.len - 1]) != NULL) {
        text.len--;
    }
    return text;
}

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
            .name = trim((struct lk_slice){value, length}),
            .value = trim(latchkey_slice(value + length + 1)),
        };
    }
    at = 0;
    while ((value = lk_args_next(&cli->args, "ignore", &at)) != NULL) {
        lists->ignore[lists->ignore_count++] = latchkey_slice(value);
    }
    return LK_EXIT_DONE;
}

static struct lk_slice given(const struct lk_cli *cli, const char *name)
{
    return latchkey_slice(lk_args_value(&cli->args, name));
}

static void show(struct lk_cli *cli, const struct lk_fingerprint *fingerprint,
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

static enum lk_exit compute(struct lk_cli *cli, const struct lists *lists,
                            struct lk_slice body)
{
    struct lk_request request = {
        .method = given(cli, "method"),
        .path = given(cli, "path"),
        .query = given(cli, "query"),
        .content_type = given(cli, "content-type"),
        .content_encoding = given(cli, "content-encoding"),
        .headers = lists->headers,
        .header_count = lists->header_count,
        .binding = given(cli, "bind"),
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
    show(cli, &fingerprint, latchkey_buf_slice(&explain));
    latchkey_buf_free(&explain);
    return LK_EXIT_DONE;
}

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
        result = compute(cli, &lists, latchkey_buf_slice(&body));
    }
    free(lists.headers);
    free(lists.ignore);
    latchkey_buf_free(&body);
    return result;
}
