/* verify.c - `latchkey verify`: checks everything that is stored. */
#include "cli/commands.h"

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_verify = {
    "Has the daemon read everything that is stored and check it, while it "
    "goes\n"
    "on working. Exit status 1 if something is damaged; each finding is a\n"
    "line. Waits as long as that takes, unless --timeout is given.",
    options};

static void show_report(struct lk_cli *cli, const struct lk_reply *report)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", report->elements[0].text);
        lk_doc_array(&doc, "lines");
    }
    for (size_t i = cli->json ? 1 : 0; i < report->count; i++) {
        if (cli->json) {
            lk_doc_reply(&doc, NULL, &report->elements[i]);
        } else {
            lk_put_text(&cli->out, report->elements[i].text);
            lk_put(&cli->out, "\n");
        }
    }
    if (cli->json) {
        lk_doc_end_array(&doc);
        lk_doc_end_object(&doc);
    }
}

enum lk_exit lk_run_verify(struct lk_cli *cli)
{
    struct lk_progress *progress;
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "VERIFY");
    progress = lk_progress_start(cli, "verify");
    result = lk_call_patiently(cli, &words, &reply);
    lk_progress_stop(progress);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count == 0) {
        return lk_complain_reply(cli);
    }
    show_report(cli, reply);
    if (lk_reply_is(&reply->elements[0], "ok")) {
        return LK_EXIT_DONE;
    }
    lk_hint(cli, "Keep a copy of the damaged store, and restore the last "
                 "backup that verifies.");
    return LK_EXIT_NO;
}
