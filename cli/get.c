/* get.c - `latchkey get`: one operation by its name. */
#include "cli/commands.h"

#include <unistd.h>

static const struct lk_option options[] = {
    {"headers", NULL, "print only the stored headers, as they are"},
    {"body", NULL, "print only the stored body, byte for byte"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_get = {
    "Shows operations with their story: when they were claimed and completed,\n"
    "by whom, their jobs, and what operators did. They are named by one or\n"
    "more references, by TENANT SCOPE KEY or by what a provider calls what a\n"
    "job has made. The scope is usually the method and the path, as one word:\n"
    "'POST /pay'.\n"
    "With --headers and --body, the stored answer itself is printed, if --why\n"
    "says for what: the audit log keeps who looked at it and why. On a "
    "terminal\n"
    "its control characters are escaped; in a file or a pipe it is byte for\n"
    "byte what was stored.",
    options};

/* What was stored could drive a terminal; a file has nothing to fear. */
static void put_stored(struct lk_buf *out, struct lk_slice bytes)
{
    if (isatty(STDOUT_FILENO)) {
        lk_put_lines(out, bytes);
    } else {
        lk_put_raw(out, bytes);
    }
}

static enum lk_exit show_answer(struct lk_cli *cli,
                                const struct lk_reply *record)
{
    bool headers = lk_args_flag(&cli->args, "headers");
    bool body = lk_args_flag(&cli->args, "body");

    if (lk_field(record, "body") == NULL) {
        struct lk_slice state = lk_field_text(record, "state");

        lk_complain("there is no stored answer: the operation is %.*s%s",
                    (int)state.len, state.data,
                    lk_field(record, "omitted-reason") == NULL
                        ? ""
                        : ", but its answer was not kept");
        return LK_EXIT_NO;
    }
    if (headers) {
        put_stored(&cli->out, lk_field_text(record, "headers"));
        lk_put(&cli->out, "%s", body ? "\r\n" : "");
    }
    if (body) {
        put_stored(&cli->out, lk_field_text(record, "body"));
    }
    return LK_EXIT_DONE;
}

static enum lk_exit get_answer(struct lk_cli *cli, void *context)
{
    const struct lk_reply *record;
    enum lk_exit result = lk_operation_fetch(cli, &record);

    (void)context;
    return result == LK_EXIT_DONE ? show_answer(cli, record) : result;
}

enum lk_exit lk_run_get(struct lk_cli *cli)
{
    bool answer_only =
        lk_args_flag(&cli->args, "headers") || lk_args_flag(&cli->args, "body");

    return lk_each_operation(
        cli, LK_MEANS_EACH,
        answer_only && !cli->json ? get_answer : lk_operation_show, NULL);
}
