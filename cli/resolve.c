/* resolve.c - `latchkey resolve`: an operator says the outcome. */
#include "cli/commands.h"
#include "cli/jobs.h"

#include <string.h>

static const struct lk_option options[] = {
    {"completed", "STATUS",
     "it happened; retries get this HTTP status,\n100 to 599"},
    {"headers-file", "FILE", "and these headers, a line each"},
    {"body-file", "FILE", "and this body (-: standard input)"},
    {"released", NULL, "nothing happened; a retry may run"},
    LK_OPTION_RUNNING,
    {"job", "ID", "of a job, not an operation"},
    {"delivered", NULL, "the job: it happened"},
    {"provider-id", "TEXT", "and this is what the provider calls it"},
    {"again", NULL, "the job: it did not happen, and is called again"},
    {"drop", NULL, "the job: it is never called again"},
    {"attempt", "N",
     "the job: only if this is still its last attempt,\n"
     "the one that was looked into"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_resolve = {
    "Records the outcome of an operation that is uncertain. With --completed "
    "it\n"
    "is finished with the answer given here, which every retry gets from then\n"
    "on; with --released a retry runs. While an operation runs, which its "
    "valid\n"
    "lock shows, this is refused without --running. With --job it is about a\n"
    "job that is uncertain, dead or waiting.",
    options};

/* ---- The headers ----------------------------------------------------------
 */

static bool is_token(struct lk_slice name)
{
    for (size_t i = 0; i < name.len; i++) {
        char c = name.data[i];

        if (c <= ' ' || c > '~' || strchr("\"(),/:;<=>?@[\\]{}", c) != NULL) {
            return false;
        }
    }
    return name.len > 0;
}

static bool is_header(struct lk_slice line)
{
    const char *colon = memchr(line.data, ':', line.len);

    if (colon == NULL ||
        !is_token((struct lk_slice){line.data, (size_t)(colon - line.data)})) {
        return false;
    }
    for (const char *c = colon; c < line.data + line.len; c++) {
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f) {
            return false;
        }
    }
    return true;
}

/* Cuts the first line off `text`; its ending is not part of it. */
static struct lk_slice take_line(struct lk_slice *text)
{
    const char *end = memchr(text->data, '\n', text->len);
    struct lk_slice line = *text;

    if (end != NULL) {
        line.len = (size_t)(end - text->data);
        text->data = end + 1;
        text->len -= line.len + 1;
    } else {
        text->data += text->len;
        text->len = 0;
    }
    if (line.len > 0 && line.data[line.len - 1] == '\r') {
        line.len--;
    }
    return line;
}

/* Appends the lines of a file in the form that they have on the wire. */
static enum lk_exit read_headers(struct lk_cli *cli, const char *path,
                                 struct lk_buf *headers)
{
    struct lk_buf file = {0};
    enum lk_exit result = lk_read_file(path, &file);
    struct lk_slice left = latchkey_buf_slice(&file);

    for (unsigned number = 1; left.len > 0 && result == LK_EXIT_DONE;
         number++) {
        struct lk_slice line = take_line(&left);

        if (line.len == 0) {
            continue;
        }
        if (!is_header(line)) {
            result = lk_complain_usage(
                cli, "%s, line %u is not of the form \"Name: value\"", path,
                number);
        } else {
            lk_put_raw(headers, line);
            lk_put(headers, "\r\n");
        }
    }
    latchkey_buf_free(&file);
    return result;
}

/* ---- The command ----------------------------------------------------------
 */

/* Of all operations that are resolved: a body may come from standard input. */
struct answer {
    bool released; /* there is none */
    uint64_t status;
    struct lk_buf headers;
    struct lk_buf body;
};

static enum lk_exit read_answer(struct lk_cli *cli, struct answer *answer)
{
    const char *headers = lk_args_value(&cli->args, "headers-file");
    const char *body = lk_args_value(&cli->args, "body-file");
    enum lk_exit result = lk_args_number(&cli->args, "completed", LK_STATUS_MIN,
                                         LK_STATUS_MAX, &answer->status);

    if (result == LK_EXIT_DONE && headers != NULL) {
        result = read_headers(cli, headers, &answer->headers);
    }
    if (result == LK_EXIT_DONE && body != NULL) {
        result = lk_read_file(body, &answer->body);
    }
    return result;
}

static enum lk_exit check_choice(struct lk_cli *cli)
{
    static const char *const of_jobs[] = {"delivered", "provider-id", "again",
                                          "drop", "attempt"};
    bool completed = lk_args_flag(&cli->args, "completed");
    bool released = lk_args_flag(&cli->args, "released");

    if (cli->args.word_count == 0) {
        return lk_complain_usage(cli,
                                 "name an operation by its reference or by "
                                 "TENANT SCOPE KEY, or a job with --job "
                                 "ID");
    }
    for (size_t i = 0; i < sizeof(of_jobs) / sizeof(of_jobs[0]); i++) {
        if (lk_args_flag(&cli->args, of_jobs[i])) {
            return lk_complain_usage(cli, "--%s goes with --job", of_jobs[i]);
        }
    }
    if (completed == released) {
        return lk_complain_usage(cli, "say the outcome: either --completed "
                                      "STATUS or --released");
    }
    if (released && (lk_args_flag(&cli->args, "headers-file") ||
                     lk_args_flag(&cli->args, "body-file"))) {
        return lk_complain_usage(cli, "an operation that is released has no "
                                      "headers and no body");
    }
    return LK_EXIT_DONE;
}

/* A job has no answer that a retry could get. */
static enum lk_exit resolve_job(struct lk_cli *cli)
{
    static const char *const of_operations[] = {
        "completed", "released", "headers-file", "body-file", "running"};

    if (cli->args.word_count > 0) {
        return lk_complain_usage(cli,
                                 "--job names a job, \"%s\" an operation: "
                                 "give one of them",
                                 cli->args.words[0]);
    }
    for (size_t i = 0; i < sizeof(of_operations) / sizeof(of_operations[0]);
         i++) {
        if (lk_args_flag(&cli->args, of_operations[i])) {
            return lk_complain_usage(cli, "--%s does not go with --job",
                                     of_operations[i]);
        }
    }
    return lk_resolve_job(cli);
}

static enum lk_exit resolve(struct lk_cli *cli, void *context)
{
    const struct answer *answer = context;
    struct lk_deed deed = {
        .action = "resolved",
        .state = answer->released ? "released" : "completed",
    };

    lk_words_add(&deed.words, "RESOLVE");
    lk_words_add_name(&deed.words, cli);
    if (answer->released) {
        lk_words_add(&deed.words, "RELEASED");
    } else {
        lk_words_add(&deed.words, "COMPLETED");
        lk_words_add_number(&deed.words, answer->status);
        lk_words_add_slice(&deed.words, latchkey_buf_slice(&answer->headers));
        lk_words_add_slice(&deed.words, latchkey_buf_slice(&answer->body));
    }
    lk_words_add_fence(&deed.words, cli);
    return lk_deed_run(cli, &deed);
}

enum lk_exit lk_run_resolve(struct lk_cli *cli)
{
    struct answer answer = {.released = lk_args_flag(&cli->args, "released")};
    enum lk_exit result;

    if (lk_args_flag(&cli->args, "job")) {
        return resolve_job(cli);
    }
    result = check_choice(cli);
    if (result == LK_EXIT_DONE && !answer.released) {
        result = read_answer(cli, &answer);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_deed_each(cli, resolve, &answer);
    }
    latchkey_buf_free(&answer.headers);
    latchkey_buf_free(&answer.body);
    return result;
}
