/* evict.c - `latchkey evict`: forgets a stored answer. */
#include "cli/commands.h"

static const struct lk_option options[] = {
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_evict = {
    "Forgets the stored answer of a completed operation: the next request\n"
    "with this key runs anew.",
    options};

enum lk_exit lk_run_evict(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "evicted", .state = "released"};
    enum lk_exit result;

    lk_words_add(&deed.words, "EVICT");
    lk_words_add_name(&deed.words, cli);
    result = lk_deed_words(cli, &deed, NULL);
    return result == LK_EXIT_DONE ? lk_deed_send(cli, &deed) : result;
}
