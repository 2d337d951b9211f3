/* clock.c - `latchkey clock accept`: an operator vouches for the clock. */
#include "cli/commands.h"

#include <string.h>

const struct lk_manual lk_manual_clock = {
    "After an implausible jump of the clock across a reboot, time goes on "
    "from\n"
    "the moment last stored, so that things expire late, never early, until "
    "an\n"
    "operator has looked at the machine's clock and says with latchkey clock\n"
    "accept that it is right.",
    lk_deed_options};

enum lk_exit lk_run_clock(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "accepted the clock"};

    if (strcmp(cli->args.words[0], "accept") != 0) {
        return lk_complain_usage(cli,
                                 "a clock can only be accepted, not \"%s\"",
                                 cli->args.words[0]);
    }
    lk_words_add(&deed.words, "CLOCK");
    lk_words_add(&deed.words, "ACCEPT");
    return lk_deed_run(cli, &deed);
}
