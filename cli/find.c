/* find.c - `latchkey find`: one operation by its reference. */
#include "cli/commands.h"

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_find = {
    "Shows the operation with a REFERENCE such as 7D3F-92AB-1C4E, which every\n"
    "answer carries. Small letters do, and the dashes may be left out. The\n"
    "reference of another tenant's operation is not found.",
    options};

enum lk_exit lk_run_find(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "FIND");
    lk_words_add(&words, cli->args.words[0]);
    lk_words_add(&words, cli->args.words[1]);
    result = lk_call(cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type == LK_REPLY_NIL) {
        lk_record_missing(cli);
        return LK_EXIT_NO;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(cli);
    }
    lk_record_show(cli, reply);
    return LK_EXIT_DONE;
}
