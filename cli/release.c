/* release.c - `latchkey release`: an operator says that nothing happened. */
#include "cli/commands.h"

static const struct lk_option options[] = {
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_release = {
    "Says of an operation that is in progress or uncertain that nothing\n"
    "happened: a retry with the same key runs. If something did happen, that\n"
    "makes it happen twice; latchkey resolve is for that case.",
    options};

enum lk_exit lk_run_release(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "released", .state = "released"};
    enum lk_exit result;

    lk_words_add(&deed.words, "RESOLVE");
    lk_words_add_name(&deed.words, cli);
    lk_words_add(&deed.words, "RELEASED");
    result = lk_deed_words(cli, &deed, NULL);
    return result == LK_EXIT_DONE ? lk_deed_send(cli, &deed) : result;
}
