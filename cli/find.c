/* find.c - `latchkey find`: one operation by its reference. */
#include "cli/commands.h"

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_find = {
    "Shows the operation with a REFERENCE such as 7D3F-92AB-1C4E, which every\n"
    "answer carries. Small letters do, and the dashes may be left out. The\n"
    "reference of another tenant's operation is not found.",
    options};

/* Any secret does: it decides what a reference means, not what is one. */
static bool is_reference(const char *text)
{
    static const uint8_t secret[LK_REFERENCE_KEY] = {0};
    uint64_t number;

    return latchkey_reference_decode(latchkey_slice(text), secret, &number) ==
           LK_OK;
}

enum lk_exit lk_run_find(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *record;
    enum lk_exit result;

    if (!is_reference(cli->args.words[1])) {
        return lk_complain_usage(cli,
                                 "\"%s\" is no reference; one looks like "
                                 "7D3F-92AB-1C4E",
                                 cli->args.words[1]);
    }
    lk_words_add(&words, "FIND");
    lk_words_add(&words, cli->args.words[0]);
    lk_words_add(&words, cli->args.words[1]);
    result = lk_record_fetch(cli, &words, &record);
    if (result == LK_EXIT_DONE) {
        lk_record_show(cli, record);
    }
    return result;
}
