/*
 * operate.c - what an operator does to operations, with who and why: `latchkey
 * release`, `evict`, `keep`, `resolve` and `clock accept`.
 *
 * Each is one command to the daemon that ends in WHO and WHY, which go into the
 * audit log. For an operation that was found uncertain, the token of that claim
 * is sent as a fence: a newer claim is never touched. If nothing was changed,
 * the exit status is LK_EXIT_NO and the message says why.
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/job_view.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==== What an operator does: with who and why, and with a report */

const struct lk_option lk_action_options[] = {
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

/* Who is at the terminal, also under sudo; else the user of the process. */
static const char *login_name(void)
{
    const char *name = getlogin();
    struct passwd *entry;

    if (name == NULL || *name == '\0') {
        name = getenv("USER");
    }
    if (name == NULL || *name == '\0') {
        entry = getpwuid(geteuid());
        name = entry == NULL ? "unknown" : entry->pw_name;
    }
    return name;
}

void lk_words_add_name(struct lk_words *words, const struct lk_cli *cli)
{
    lk_words_add_slice(words, cli->subject.name.tenant);
    lk_words_add_slice(words, cli->subject.name.scope);
    lk_words_add_slice(words, cli->subject.name.key);
}

/* TOKEN, if the operation was uncertain when it was looked up. */
void lk_words_add_fence(struct lk_words *words, const struct lk_cli *cli)
{
    if (cli->subject.token != 0) {
        lk_words_add(words, "TOKEN");
        lk_words_add_number(words, cli->subject.token);
    }
}

/* `default_why` is the reason if --why is missing; NULL: --why is required.
 * WHO is --who, else the login name. */
enum lk_exit lk_action_words(struct lk_cli *cli, struct lk_action *action,
                             const char *default_why)
{
    const char *why = lk_args_value(&cli->args, "why");
    const char *who = lk_args_value(&cli->args, "who");

    why = why == NULL ? default_why : why;
    if (why == NULL || *why == '\0') {
        return lk_complain_usage(
            cli, "say why with --why TEXT: the audit log keeps it");
    }
    if (who != NULL && *who == '\0') {
        return lk_complain_usage(cli, "--who is empty");
    }
    lk_words_add(&action->words, "WHO");
    lk_words_add(&action->words, who == NULL ? login_name() : who);
    lk_words_add(&action->words, "WHY");
    lk_words_add(&action->words, why);
    return LK_EXIT_DONE;
}

/* ---- Reports ------------------------------------------------------------- */

/* The operation that was named; NULL: there is none, or the user may not
 * ask. */
static const struct lk_reply *ask_operation(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;

    lk_words_add(&words, "LOOKUP");
    lk_words_add_name(&words, cli);
    return cli->client != NULL &&
                   latchkey_client_call(cli->client, words.words, words.count,
                                        0, &reply) == LK_OK &&
                   reply->type == LK_REPLY_ARRAY
               ? reply
               : NULL;
}

/* Valid until the next call; empty if it is not known. */
static struct lk_slice ask_field(struct lk_cli *cli, const char *name)
{
    const struct lk_reply *operation = ask_operation(cli);

    return operation == NULL ? (struct lk_slice){0}
                             : lk_field_text(operation, name);
}

struct lk_slice lk_action_state(struct lk_cli *cli)
{
    return ask_field(cli, "state");
}

static void put_operation_name(struct lk_buf *out, const struct lk_cli *cli)
{
    lk_put(out, "tenant ");
    lk_put_text(out, cli->subject.name.tenant);
    lk_put(out, ", scope ");
    lk_put_text(out, cli->subject.name.scope);
    lk_put(out, ", key ");
    lk_put_text(out, cli->subject.name.key);
}

/* The action was carried out: its verb, and the reference of the operation so
 * that it can be found again. */
static void report_done(struct lk_cli *cli, const struct lk_action *action)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf reference = {0};
    struct lk_buf line = {0};

    if (action->state != NULL) {
        /* It outlives what was done, so asking afterwards is safe. */
        lk_put_raw(&reference, ask_field(cli, "reference"));
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("OK"));
        lk_doc_text(&doc, "action", latchkey_slice(action->verb));
        if (action->state != NULL) {
            lk_doc_text(&doc, "tenant", cli->subject.name.tenant);
            lk_doc_text(&doc, "scope", cli->subject.name.scope);
            lk_doc_text(&doc, "key", cli->subject.name.key);
            lk_doc_text(&doc, "state", latchkey_slice(action->state));
            lk_doc_text(&doc, "reference", latchkey_buf_slice(&reference));
        }
        if (action->file.len > 0) {
            lk_doc_text(&doc, "file", action->file);
        }
        lk_doc_end_object(&doc);
    } else {
        lk_put(&line, "%s%s", action->verb, action->file.len > 0 ? " " : "");
        lk_put_text(&line, action->file);
        if (action->state != NULL) {
            lk_put(&line, " ");
            lk_put_text(&line, latchkey_buf_slice(&reference));
            lk_put(&line, "%snow %s (", reference.len == 0 ? "" : ", ",
                   action->state);
            put_operation_name(&line, cli);
            lk_put(&line, ")");
        }
        lk_put(&line, "\n");
        if (action->state != NULL) {
            lk_table_put_lines(&cli->out, latchkey_buf_slice(&line));
        } else {
            lk_put_raw(&cli->out, latchkey_buf_slice(&line));
        }
        latchkey_buf_free(&line);
    }
    latchkey_buf_free(&reference);
}

/* KEPT status headers body completed-ms expires-ms reference, and the reason if
 * the response was not stored. */
enum { KEPT_STATUS = 1, KEPT_REFERENCE = 6 };

/* KEPT: it was completed before, so the operator's outcome comes too late. */
static enum lk_exit report_kept(struct lk_cli *cli,
                                const struct lk_reply *reply)
{
    long long status = reply->elements[KEPT_STATUS].integer;
    struct lk_slice reference = reply->elements[KEPT_REFERENCE].text;
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("KEPT"));
        lk_doc_integer(&doc, "status", status);
        lk_doc_text(&doc, "reference", reference);
        lk_doc_end_object(&doc);
    }
    lk_complain("nothing was changed: operation %.*s is already completed with "
                "status %lld; latchkey get shows it",
                (int)reference.len, reference.data, status);
    return LK_EXIT_NO;
}

/* INFLIGHT retry-after-ms reference */
enum { INFLIGHT_REFERENCE = 2 };

/* INFLIGHT: the lock is valid, so a holder may be working on it. Says how
 * long it has been, and what --running would mean. */
static enum lk_exit report_running(struct lk_cli *cli,
                                   const struct lk_reply *reply)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf text = {0};
    const struct lk_reply *operation;

    lk_put(&text, "operation ");
    lk_put_text(&text, reply->elements[INFLIGHT_REFERENCE].text);
    lk_put(&text, " is running");
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("INFLIGHT"));
        lk_doc_text(&doc, "reference",
                    reply->elements[INFLIGHT_REFERENCE].text);
        lk_doc_end_object(&doc);
    }
    operation = ask_operation(cli);
    if (operation != NULL && lk_field(operation, "lock-until-ms") != NULL) {
        lk_put(&text, ": it was claimed ");
        lk_put_span(&text, lk_field_number(operation, "claimed-ms"),
                    cli->now_ms);
        lk_put(&text, " ago, and the lock that its holder renews is valid for "
                      "another ");
        lk_put_span(&text, cli->now_ms,
                    lk_field_number(operation, "lock-until-ms"));
    }
    lk_put_raw(&text, (struct lk_slice){"", 1});
    lk_complain("nothing was changed: %s. Wait until it is completed or "
                "uncertain; --running overrides this, and if its app does "
                "work on it, that happens beside the retry",
                text.data);
    latchkey_buf_free(&text);
    return LK_EXIT_NO;
}

/* NIL or STALE: nothing was changed. An operation in this state was released or
 * evicted before: it is not missing. */
static enum lk_exit report_no(struct lk_cli *cli, const char *result)
{
    struct lk_doc doc = {.out = &cli->out};
    const struct lk_reply *operation = ask_operation(cli);
    bool is_stale = strcmp(result, "STALE") == 0;
    struct lk_buf text = {0};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", latchkey_slice(result));
        if (operation != NULL) {
            lk_doc_text(&doc, "state", lk_field_text(operation, "state"));
            lk_doc_text(&doc, "reference",
                        lk_field_text(operation, "reference"));
        }
        lk_doc_end_object(&doc);
    }
    if (operation != NULL) {
        lk_put(&text, "operation ");
        lk_put_text(&text, lk_field_text(operation, "reference"));
        lk_put(&text, " is ");
        lk_put_text(&text, lk_field_text(operation, "state"));
        lk_put(&text, "%s",
               is_stale ? " now, or has another claim, since it was looked up; "
                          "look again"
                        : " already and has no stored response; the next "
                          "request with its key runs");
    } else {
        lk_put(&text, "there is no operation under ");
        put_operation_name(&text, cli);
        lk_put(&text, "; latchkey list shows what there is");
    }
    lk_put_raw(&text, (struct lk_slice){"", 1});
    lk_complain("nothing was changed: %s", text.data);
    latchkey_buf_free(&text);
    return LK_EXIT_NO;
}

/* The verdict of the daemon decides the exit status: OK is LK_EXIT_DONE;
 * KEPT, INFLIGHT, STALE and not found are LK_EXIT_NO, and nothing was
 * changed. */
enum lk_exit lk_action_send(struct lk_cli *cli, struct lk_action *action)
{
    const struct lk_reply *reply;
    enum lk_exit result = action->patient
                              ? lk_call_patiently(cli, &action->words, &reply)
                              : lk_call(cli, &action->words, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (lk_reply_is(reply, "OK")) {
        report_done(cli, action);
        return LK_EXIT_DONE;
    }
    if (action->state != NULL && reply->type == LK_REPLY_NIL) {
        return report_no(cli, "NIL");
    }
    if (action->state != NULL && lk_reply_is(reply, "STALE")) {
        return report_no(cli, "STALE");
    }
    if (reply->type == LK_REPLY_ARRAY && reply->count > INFLIGHT_REFERENCE &&
        lk_reply_is(&reply->elements[0], "INFLIGHT")) {
        return report_running(cli, reply);
    }
    if (reply->type == LK_REPLY_ARRAY && reply->count > KEPT_REFERENCE &&
        lk_reply_is(&reply->elements[0], "KEPT")) {
        return report_kept(cli, reply);
    }
    return lk_complain_reply(cli);
}

/* Who and why are checked once before anything is looked up; `act` then adds
 * them to its own words. */
enum lk_exit lk_action_each(struct lk_cli *cli, lk_subject_fn act,
                            void *context)
{
    struct lk_action unsent = {0};
    enum lk_exit result = lk_action_words(cli, &unsent, NULL);

    return result == LK_EXIT_DONE
               ? lk_each_operation(cli, LK_MEANS_ONE, act, context)
               : result;
}

/* Adds WHO, WHY and RUNNING to the words and sends them. */
enum lk_exit lk_action_run(struct lk_cli *cli, struct lk_action *action)
{
    enum lk_exit result = lk_action_words(cli, action, NULL);

    if (lk_args_flag(&cli->args, "running")) {
        lk_words_add(&action->words, "RUNNING");
    }
    return result == LK_EXIT_DONE ? lk_action_send(cli, action) : result;
}

/* ==== `latchkey release`: an operator says that nothing happened */

static const struct lk_option release_options[] = {
    LK_OPTION_RUNNING,
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_release = {
    "States that nothing happened for an uncertain operation: a retry with "
    "the\n"
    "same key runs. If something did happen, it then happens twice; use\n"
    "latchkey resolve in that case. While an operation runs, which its\n"
    "valid lock shows, this is refused without --running.",
    release_options};

/* RESOLVE tenant scope key RELEASED [TOKEN n] WHO name WHY text */
static enum lk_exit release_operation(struct lk_cli *cli, void *context)
{
    struct lk_action action = {.verb = "released", .state = "released"};

    (void)context;
    lk_words_add(&action.words, "RESOLVE");
    lk_words_add_name(&action.words, cli);
    lk_words_add(&action.words, "RELEASED");
    lk_words_add_fence(&action.words, cli);
    return lk_action_run(cli, &action);
}

enum lk_exit lk_run_release(struct lk_cli *cli)
{
    return lk_action_each(cli, release_operation, NULL);
}

/* ==== `latchkey evict`: deletes a stored response */

const struct lk_manual lk_manual_evict = {
    "Deletes the stored response of a completed operation: the next request\n"
    "with this key runs again.",
    lk_action_options};

/* Has the daemon refused because there is no response to delete yet? Then the
 * exit status is LK_EXIT_NO, as for any refusal. */
static bool report_unfinished(struct lk_cli *cli)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_slice state = lk_action_state(cli);

    if (state.len == 0 || latchkey_slice_equal(state, LK_SLICE("completed")) ||
        latchkey_slice_equal(state, LK_SLICE("released"))) {
        return false;
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("ERR"));
        lk_doc_text(&doc, "state", state);
        lk_doc_end_object(&doc);
    }
    return true;
}

static enum lk_exit evict_operation(struct lk_cli *cli, void *context)
{
    struct lk_action action = {.verb = "evicted", .state = "released"};
    enum lk_exit result;

    (void)context;
    lk_words_add(&action.words, "EVICT");
    lk_words_add_name(&action.words, cli);
    result = lk_action_run(cli, &action);
    return result == LK_EXIT_FAILED && report_unfinished(cli) ? LK_EXIT_NO
                                                              : result;
}

enum lk_exit lk_run_evict(struct lk_cli *cli)
{
    return lk_action_each(cli, evict_operation, NULL);
}

/* ==== `latchkey keep`: remembers an operation for longer */

static const struct lk_option keep_options[] = {
    {"for", "DURATION", "how long, from now or from its completion (90d)"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_keep = {
    "Stores an operation for longer: a completed one for at least DURATION "
    "from\n"
    "now, an open one for at least DURATION from its completion. The time "
    "never\n"
    "becomes shorter.",
    keep_options};

/* The state is asked for first: KEEP does not change it, and the report names
 * it. */
static enum lk_exit keep_operation(struct lk_cli *cli, void *context)
{
    const uint64_t *ttl_ms = context;
    struct lk_buf state = {0};
    struct lk_action action = {.verb = "kept"};
    enum lk_exit result = cli->client == NULL ? lk_connect(cli) : LK_EXIT_DONE;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_put_text(&state, lk_action_state(cli)); /* which stays what it is */
    lk_put_raw(&state, (struct lk_slice){"", 1});
    action.state = state.data;
    lk_words_add(&action.words, "KEEP");
    lk_words_add_name(&action.words, cli);
    lk_words_add_number(&action.words, *ttl_ms);
    result = lk_action_run(cli, &action);
    latchkey_buf_free(&state);
    return result;
}

/* --for is required: there is no length that is right for everyone. */
enum lk_exit lk_run_keep(struct lk_cli *cli)
{
    uint64_t ttl_ms = 0;
    enum lk_exit result = lk_args_duration(&cli->args, "for", &ttl_ms);

    if (result == LK_EXIT_DONE && ttl_ms == 0) {
        result = lk_complain_usage(cli, "say for how long with --for DURATION: "
                                        "--for 90d");
    }
    return result == LK_EXIT_DONE ? lk_action_each(cli, keep_operation, &ttl_ms)
                                  : result;
}

/* ==== `latchkey resolve`: an operator says the outcome */

static const struct lk_option resolve_options[] = {
    {"completed", "STATUS",
     "it happened; retries get this HTTP status,\n100 to 599"},
    {"headers-file", "FILE", "and these headers, a line each"},
    {"body-file", "FILE", "and this body (-: standard input)"},
    {"released", NULL, "nothing happened; a retry may run"},
    LK_OPTION_RUNNING,
    {"job", "ID", "of a job, not an operation"},
    {"delivered", NULL, "the job: it happened"},
    {"provider-id", "TEXT", "and this is its id at the provider"},
    {"again", NULL, "the job: it did not happen, and is called again"},
    {"drop", NULL, "the job: it is never called again"},
    {"attempt", "N",
     "the job: only if this is still its last attempt,\n"
     "the one that you checked"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_resolve = {
    "States the outcome of an uncertain operation. With --completed it is\n"
    "completed with the response given here, which every retry gets from then\n"
    "on; with --released a retry runs. While an operation runs, which its "
    "valid\n"
    "lock shows, this is refused without --running. With --job, states the\n"
    "outcome of a job that is uncertain, dead or waiting.",
    resolve_options};

/* ---- The headers --------------------------------------------------------- */

/* The name of a header: a token of RFC 9110. */
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

/* "Name: value" without control characters, so that no line can hide in it. */
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
static struct lk_slice take_header_line(struct lk_slice *text)
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
static enum lk_exit read_header_file(struct lk_cli *cli, const char *path,
                                     struct lk_buf *headers)
{
    struct lk_buf file = {0};
    enum lk_exit result = lk_read_file(path, &file);
    struct lk_slice left = latchkey_buf_slice(&file);

    for (unsigned number = 1; left.len > 0 && result == LK_EXIT_DONE;
         number++) {
        struct lk_slice line = take_header_line(&left);

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

/* ---- The command --------------------------------------------------------- */

/* The outcome for all operations of the command line. */
struct resolution {
    bool released; /* there is none */
    uint64_t status;
    struct lk_buf headers;
    struct lk_buf body;
};

/* The response that retries will get. `given` owns it. */
static enum lk_exit read_given_resolution(struct lk_cli *cli,
                                          struct resolution *given)
{
    const char *headers = lk_args_value(&cli->args, "headers-file");
    const char *body = lk_args_value(&cli->args, "body-file");
    enum lk_exit result = lk_args_number(&cli->args, "completed", LK_STATUS_MIN,
                                         LK_STATUS_MAX, &given->status);

    if (result == LK_EXIT_DONE && headers != NULL) {
        result = read_header_file(cli, headers, &given->headers);
    }
    if (result == LK_EXIT_DONE && body != NULL) {
        result = lk_read_file(body, &given->body);
    }
    return result;
}

/* Which options go together. LK_EXIT_USAGE: it has complained. */
static enum lk_exit check_resolution(struct lk_cli *cli)
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

/* A job has no response that a retry could get. */
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

/* The fence (TOKEN) is that of the claim that was found uncertain: a newer
 * claim is not touched. */
static enum lk_exit resolve_operation(struct lk_cli *cli, void *context)
{
    const struct resolution *given = context;
    struct lk_action action = {
        .verb = "resolved",
        .state = given->released ? "released" : "completed",
    };

    lk_words_add(&action.words, "RESOLVE");
    lk_words_add_name(&action.words, cli);
    if (given->released) {
        lk_words_add(&action.words, "RELEASED");
    } else {
        lk_words_add(&action.words, "COMPLETED");
        lk_words_add_number(&action.words, given->status);
        lk_words_add_slice(&action.words, latchkey_buf_slice(&given->headers));
        lk_words_add_slice(&action.words, latchkey_buf_slice(&given->body));
    }
    lk_words_add_fence(&action.words, cli);
    return lk_action_run(cli, &action);
}

/* The response is read once, also for several operations: it may come from
 * standard input. */
enum lk_exit lk_run_resolve(struct lk_cli *cli)
{
    struct resolution given = {.released =
                                   lk_args_flag(&cli->args, "released")};
    enum lk_exit result;

    if (lk_args_flag(&cli->args, "job")) {
        return resolve_job(cli);
    }
    result = check_resolution(cli);
    if (result == LK_EXIT_DONE && !given.released) {
        result = read_given_resolution(cli, &given);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_action_each(cli, resolve_operation, &given);
    }
    latchkey_buf_free(&given.headers);
    latchkey_buf_free(&given.body);
    return result;
}

/* ==== `latchkey clock accept`: an operator vouches for the clock */

const struct lk_manual lk_manual_clock = {
    "After an implausible jump of the clock across a reboot, time goes on "
    "from\n"
    "the moment last stored, so that things expire late, never early, until "
    "an\n"
    "operator has checked the machine's clock and confirms it with latchkey\n"
    "clock accept.",
    lk_action_options};

/* Only "accept": the daemon never sets a clock. */
enum lk_exit lk_run_clock(struct lk_cli *cli)
{
    struct lk_action action = {.verb = "accepted the clock"};

    if (strcmp(cli->args.words[0], "accept") != 0) {
        return lk_complain_usage(cli,
                                 "a clock can only be accepted, not \"%s\"",
                                 cli->args.words[0]);
    }
    lk_words_add(&action.words, "CLOCK");
    lk_words_add(&action.words, "ACCEPT");
    return lk_action_run(cli, &action);
}
