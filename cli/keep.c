/* keep.c - `latchkey keep`: remembers an operation for longer. */
#include "cli/commands.h"

static const struct lk_option options[] = {
    {"for", "DURATION", "how long, from now or from its completion (90d)"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_keep = {
    "Remembers an operation for longer: a completed one at least so long from\n"
    "now, an open one at least so long from its completion. The time is never\n"
    "made shorter.",
    options};

static enum lk_exit keep(struct lk_cli *cli, void *context)
{
    const uint64_t *ttl_ms = context;
    struct lk_buf state = {0};
    struct lk_deed deed = {.action = "kept"};
    enum lk_exit result = cli->client == NULL ? lk_connect(cli) : LK_EXIT_DONE;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_put_text(&state, lk_deed_state(cli)); /* which stays what it is */
    lk_put_raw(&state, (struct lk_slice){"", 1});
    deed.state = state.data;
    lk_words_add(&deed.words, "KEEP");
    lk_words_add_name(&deed.words, cli);
    lk_words_add_number(&deed.words, *ttl_ms);
    result = lk_deed_run(cli, &deed);
    latchkey_buf_free(&state);
    return result;
}

enum lk_exit lk_run_keep(struct lk_cli *cli)
{
    uint64_t ttl_ms = 0;
    enum lk_exit result = lk_args_duration(&cli->args, "for", &ttl_ms);

    if (result == LK_EXIT_DONE && ttl_ms == 0) {
        result = lk_complain_usage(cli, "say for how long with --for DURATION: "
                                        "--for 90d");
    }
    return result == LK_EXIT_DONE ? lk_deed_each(cli, keep, &ttl_ms) : result;
}
