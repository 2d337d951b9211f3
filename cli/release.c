/* release.c - `latchkey release`: an operator says that nothing happened. */
#include "cli/commands.h"

static const struct lk_option options[] = {
    LK_OPTION_RUNNING,
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_release = {
    "Says of an operation that is uncertain that nothing happened: a retry "
    "with\n"
    "the same key runs. If something did happen, that makes it happen twice;\n"
    "latchkey resolve is for that case. While an operation runs, which its\n"
    "valid lock shows, this is refused without --running.",
    options};

static enum lk_exit release(struct lk_cli *cli, void *context)
{
    struct lk_deed deed = {.action = "released", .state = "released"};

    (void)context;
    lk_words_add(&deed.words, "RESOLVE");
    lk_words_add_name(&deed.words, cli);
    lk_words_add(&deed.words, "RELEASED");
    lk_words_add_fence(&deed.words, cli);
    return lk_deed_run(cli, &deed);
}

enum lk_exit lk_run_release(struct lk_cli *cli)
{
    return lk_deed_each(cli, release, NULL);
}
