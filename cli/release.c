/* release.c - `latchkey release`: an operator says that nothing happened. */
#include "cli/commands.h"

const struct lk_manual lk_manual_release = {
    "Says of an operation that is in progress or uncertain that nothing\n"
    "happened: a retry with the same key runs. If something did happen, that\n"
    "makes it happen twice; latchkey resolve is for that case.",
    lk_deed_options};

enum lk_exit lk_run_release(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "released", .state = "released"};

    lk_words_add(&deed.words, "RESOLVE");
    lk_words_add_name(&deed.words, cli);
    lk_words_add(&deed.words, "RELEASED");
    return lk_deed_run(cli, &deed);
}
