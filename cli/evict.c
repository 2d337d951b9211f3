/* evict.c - `latchkey evict`: forgets a stored answer. */
#include "cli/commands.h"

const struct lk_manual lk_manual_evict = {
    "Forgets the stored answer of a completed operation: the next request\n"
    "with this key runs again.",
    lk_deed_options};

/* Has the daemon refused because there is no answer to forget yet? Then that
 * is a no like any other, and no failure. */
static bool is_unfinished(struct lk_cli *cli)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_slice state = lk_deed_state(cli);

    if (state.len == 0 || latchkey_slice_equal(state, LK_SLICE("completed")) ||
        latchkey_slice_equal(state, LK_SLICE("released"))) {
        return false;
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("ERR"));
        lk_doc_text(&doc, "state", state);
        lk_doc_end_object(&doc);
    }
    return true;
}

static enum lk_exit evict(struct lk_cli *cli, void *context)
{
    struct lk_deed deed = {.action = "evicted", .state = "released"};
    enum lk_exit result;

    (void)context;
    lk_words_add(&deed.words, "EVICT");
    lk_words_add_name(&deed.words, cli);
    result = lk_deed_run(cli, &deed);
    return result == LK_EXIT_FAILED && is_unfinished(cli) ? LK_EXIT_NO : result;
}

enum lk_exit lk_run_evict(struct lk_cli *cli)
{
    return lk_deed_each(cli, evict, NULL);
}
