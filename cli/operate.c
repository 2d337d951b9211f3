/* operate.c - what an operator does: with who and why, and with a report. */
#include "cli/cli.h"

#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct lk_option lk_deed_options[] = {
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

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

void lk_words_add_fence(struct lk_words *words, const struct lk_cli *cli)
{
    if (cli->subject.token != 0) {
        lk_words_add(words, "TOKEN");
        lk_words_add_number(words, cli->subject.token);
    }
}

enum lk_exit lk_deed_words(struct lk_cli *cli, struct lk_deed *deed,
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
    lk_words_add(&deed->words, "WHO");
    lk_words_add(&deed->words, who == NULL ? login_name() : who);
    lk_words_add(&deed->words, "WHY");
    lk_words_add(&deed->words, why);
    return LK_EXIT_DONE;
}

/* ---- Reports --------------------------------------------------------------
 */

/* The operation that was named; NULL: there is none, or the user may not
 * ask. */
static const struct lk_reply *ask_record(struct lk_cli *cli)
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

static struct lk_slice ask_field(struct lk_cli *cli, const char *name)
{
    const struct lk_reply *record = ask_record(cli);

    return record == NULL ? (struct lk_slice){0} : lk_field_text(record, name);
}

struct lk_slice lk_deed_state(struct lk_cli *cli)
{
    return ask_field(cli, "state");
}

static void put_name(struct lk_buf *out, const struct lk_cli *cli)
{
    lk_put(out, "tenant ");
    lk_put_text(out, cli->subject.name.tenant);
    lk_put(out, ", scope ");
    lk_put_text(out, cli->subject.name.scope);
    lk_put(out, ", key ");
    lk_put_text(out, cli->subject.name.key);
}

static void report_done(struct lk_cli *cli, const struct lk_deed *deed)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf reference = {0};
    struct lk_buf line = {0};

    if (deed->state != NULL) {
        /* It outlives what was done, so asking afterwards is safe. */
        lk_put_raw(&reference, ask_field(cli, "reference"));
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("OK"));
        lk_doc_text(&doc, "action", latchkey_slice(deed->action));
        if (deed->state != NULL) {
            lk_doc_text(&doc, "tenant", cli->subject.name.tenant);
            lk_doc_text(&doc, "scope", cli->subject.name.scope);
            lk_doc_text(&doc, "key", cli->subject.name.key);
            lk_doc_text(&doc, "state", latchkey_slice(deed->state));
            lk_doc_text(&doc, "reference", latchkey_buf_slice(&reference));
        }
        if (deed->file.len > 0) {
            lk_doc_text(&doc, "file", deed->file);
        }
        lk_doc_end_object(&doc);
    } else {
        lk_put(&line, "%s%s", deed->action, deed->file.len > 0 ? " " : "");
        lk_put_text(&line, deed->file);
        if (deed->state != NULL) {
            lk_put(&line, " ");
            lk_put_text(&line, latchkey_buf_slice(&reference));
            lk_put(&line, "%snow %s (", reference.len == 0 ? "" : ", ",
                   deed->state);
            put_name(&line, cli);
            lk_put(&line, ")");
        }
        lk_put(&line, "\n");
        if (deed->state != NULL) {
            lk_table_put_lines(&cli->out, latchkey_buf_slice(&line));
        } else {
            lk_put_raw(&cli->out, latchkey_buf_slice(&line));
        }
        latchkey_buf_free(&line);
    }
    latchkey_buf_free(&reference);
}

/* KEPT status headers body completed-ms expires-ms reference, and the reason
 * if the answer was not kept. */
enum { KEPT_STATUS = 1, KEPT_REFERENCE = 6 };

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
    lk_complain("nothing was changed: operation %.*s has been completed with "
                "status %lld, and that stands; latchkey get shows it",
                (int)reference.len, reference.data, status);
    return LK_EXIT_NO;
}

/* INFLIGHT retry-after-ms reference */
enum { INFLIGHT_REFERENCE = 2 };

static void put_span(struct lk_buf *out, uint64_t from_ms, uint64_t to_ms)
{
    lk_put_duration(out, to_ms > from_ms ? to_ms - from_ms : 0, 1);
}

static enum lk_exit report_running(struct lk_cli *cli,
                                   const struct lk_reply *reply)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_buf text = {0};
    const struct lk_reply *record;

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
    record = ask_record(cli);
    if (record != NULL && lk_field(record, "lock-until-ms") != NULL) {
        lk_put(&text, ": it was claimed ");
        put_span(&text, lk_field_number(record, "claimed-ms"), cli->now_ms);
        lk_put(&text, " ago, and the lock that its holder renews is valid for "
                      "another ");
        put_span(&text, cli->now_ms, lk_field_number(record, "lock-until-ms"));
    }
    lk_put_raw(&text, (struct lk_slice){"", 1});
    lk_complain("nothing was changed: %s. Wait until it is completed or "
                "uncertain; --running overrides this, and if its app does "
                "work on it, that happens beside the retry",
                text.data);
    latchkey_buf_free(&text);
    return LK_EXIT_NO;
}

/* What is released has been released or evicted before: that is no failure to
 * find it. */
static enum lk_exit report_no(struct lk_cli *cli, const char *result)
{
    struct lk_doc doc = {.out = &cli->out};
    const struct lk_reply *record = ask_record(cli);
    bool is_stale = strcmp(result, "STALE") == 0;
    struct lk_buf text = {0};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", latchkey_slice(result));
        if (record != NULL) {
            lk_doc_text(&doc, "state", lk_field_text(record, "state"));
            lk_doc_text(&doc, "reference", lk_field_text(record, "reference"));
        }
        lk_doc_end_object(&doc);
    }
    if (record != NULL) {
        lk_put(&text, "operation ");
        lk_put_text(&text, lk_field_text(record, "reference"));
        lk_put(&text, " is ");
        lk_put_text(&text, lk_field_text(record, "state"));
        lk_put(&text, "%s",
               is_stale ? " now, which it was not when it was looked at, or "
                          "under another claim; look again"
                        : " already and has no stored answer; the next "
                          "request with its key runs");
    } else {
        lk_put(&text, "there is no operation under ");
        put_name(&text, cli);
        lk_put(&text, "; latchkey list shows what there is");
    }
    lk_put_raw(&text, (struct lk_slice){"", 1});
    lk_complain("nothing was changed: %s", text.data);
    latchkey_buf_free(&text);
    return LK_EXIT_NO;
}

enum lk_exit lk_deed_send(struct lk_cli *cli, struct lk_deed *deed)
{
    const struct lk_reply *reply;
    enum lk_exit result = deed->patient
                              ? lk_call_patiently(cli, &deed->words, &reply)
                              : lk_call(cli, &deed->words, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (lk_reply_is(reply, "OK")) {
        report_done(cli, deed);
        return LK_EXIT_DONE;
    }
    if (deed->state != NULL && reply->type == LK_REPLY_NIL) {
        return report_no(cli, "NIL");
    }
    if (deed->state != NULL && lk_reply_is(reply, "STALE")) {
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

enum lk_exit lk_deed_each(struct lk_cli *cli, lk_subject_fn act, void *context)
{
    struct lk_deed unsent = {0};
    enum lk_exit result = lk_deed_words(cli, &unsent, NULL);

    return result == LK_EXIT_DONE
               ? lk_each_operation(cli, LK_MEANS_ONE, act, context)
               : result;
}

enum lk_exit lk_deed_run(struct lk_cli *cli, struct lk_deed *deed)
{
    enum lk_exit result = lk_deed_words(cli, deed, NULL);

    if (lk_args_flag(&cli->args, "running")) {
        lk_words_add(&deed->words, "RUNNING");
    }
    return result == LK_EXIT_DONE ? lk_deed_send(cli, deed) : result;
}
