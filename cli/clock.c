/* clock.c - `latchkey clock accept`: an operator vouches for the clock. */
#include "cli/commands.h"

#include <string.h>

static const struct lk_option options[] = {
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_clock = {
    "After an implausible jump of the clock across a restart nothing expires,\n"
    "until an operator has looked at the daemon's clock and says with\n"
    "latchkey clock accept that it is right.",
    options};

enum lk_exit lk_run_clock(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "accepted the clock"};
    enum lk_exit result;

    if (strcmp(cli->args.words[0], "accept") != 0) {
        return lk_complain_usage(cli,
                                 "a clock can only be accepted, not \"%s\"",
                                 cli->args.words[0]);
    }
    lk_words_add(&deed.words, "CLOCK");
    lk_words_add(&deed.words, "ACCEPT");
    result = lk_deed_words(cli, &deed, NULL);
    return result == LK_EXIT_DONE ? lk_deed_send(cli, &deed) : result;
}
