/* jobs.c - `latchkey jobs`: the calls that operations have left. */
#include "cli/jobs.h"
#include "cli/commands.h"
#include "cli/listing.h"

#include <string.h>

static const struct lk_option options[] = {
    {"state", "STATE",
     "waiting, leased, uncertain, dead, delivered,\n"
     "dropped, unfinished (the first four) or all"},
    {"target", "NAME", "only those for this target"},
    {"tenant", "TENANT", "only this tenant's"},
    {"reference", "REFERENCE", "only those of this operation"},
    {"provider-id", "TEXT", "only those that the provider calls so"},
    {"older", "DURATION", "only those made at least so long ago (1h)"},
    {"since", "TIME", "only those made at this time or later"},
    {"until", "TIME", "only those made before this time"},
    {"limit", "N", "at most so many (100)"},
    {"all", NULL, "without a limit"},
    {"cursor", "CURSOR", "go on where an earlier list ended"},
    {"check", NULL, "exit status 1 if there is any"},
    {"body", NULL, "show: print only the body of the request"},
    {"answer", NULL, "show: print only the body of the last answer"},
    {"why", "TEXT", "show: the reason to look, kept in the audit log"},
    {"who", "NAME", "show: who looks (your login name)"},
    {0},
};

const struct lk_manual lk_manual_jobs = {
    "Lists jobs, the oldest first, or shows one with its whole history. A job\n"
    "is a call to another service that an operation has left to be made. "
    "Those\n"
    "that are dead or uncertain are marked with an exclamation mark: they "
    "wait\n"
    "for a person.",
    options};

/* ---- Lists ----------------------------------------------------------------
 */

static bool needs_person(const struct lk_reply *job, uint64_t now_ms)
{
    struct lk_slice state = lk_field_text(job, "state");

    (void)now_ms;
    return latchkey_slice_equal(state, LK_SLICE("dead")) ||
           latchkey_slice_equal(state, LK_SLICE("uncertain"));
}

static enum lk_exit show_page(struct lk_listing *list, uint64_t limit)
{
    const struct lk_jobs_filter *filter = list->context;
    const struct lk_reply *rows = NULL;
    enum lk_exit result =
        lk_jobs_page(list->cli, filter, limit, &list->cursor, &rows);

    for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
        if (lk_jobs_match(filter, &rows->elements[i])) {
            lk_listing_show(list, &rows->elements[i]);
        }
    }
    return result;
}

enum lk_exit lk_jobs_list(struct lk_cli *cli,
                          const struct lk_jobs_filter *filter)
{
    bool check = lk_args_flag(&cli->args, "check");
    struct lk_listing list = {
        .cli = cli,
        .title = "jobs",
        .put_heading = lk_jobs_put_heading,
        .put_row = lk_jobs_put_row,
        .needs_person = needs_person,
        .page = show_page,
        .context = filter,
        .table = LK_JOBS_TABLE(cli),
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_listing_run(&list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    /* Whoever mails what a check prints wants nothing where there is none. */
    if (!check || list.shown > 0) {
        lk_listing_end(&list, "job", "dead or uncertain");
    }
    return check && list.shown > 0 ? LK_EXIT_NO : LK_EXIT_DONE;
}

/* ---- The command ----------------------------------------------------------
 */

/* Unless told otherwise, what is over counts only where one thing is asked
 * for. */
static enum lk_exit read_state(const struct lk_cli *cli, const char **state)
{
    static const char *const states[] = {"waiting",    "leased",    "uncertain",
                                         "dead",       "delivered", "dropped",
                                         "unfinished", "all"};
    const char *given = lk_args_value(&cli->args, "state");

    if (given == NULL) {
        *state = lk_args_flag(&cli->args, "reference") ||
                         lk_args_flag(&cli->args, "provider-id")
                     ? NULL
                     : "unfinished";
        return LK_EXIT_DONE;
    }
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        if (strcmp(given, states[i]) == 0) {
            *state = strcmp(given, "all") == 0 ? NULL : given;
            return LK_EXIT_DONE;
        }
    }
    return lk_complain_usage(cli,
                             "--state is \"%s\", but must be waiting, leased, "
                             "uncertain, dead, delivered, dropped, unfinished "
                             "or all",
                             given);
}

static enum lk_exit show_job(struct lk_cli *cli)
{
    if (strcmp(cli->args.words[0], "show") != 0 || cli->args.word_count != 2) {
        return lk_complain_usage(cli,
                                 "jobs are listed, or one is shown: latchkey "
                                 "jobs show ID");
    }
    return lk_job_show(cli, cli->args.words[1]);
}

enum lk_exit lk_run_jobs(struct lk_cli *cli)
{
    struct lk_jobs_filter filter = {0};
    enum lk_exit result = read_state(cli, &filter.state);

    if (result == LK_EXIT_DONE && cli->args.word_count > 0) {
        return show_job(cli);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_jobs_filter_read(cli, &filter);
    }
    return result == LK_EXIT_DONE ? lk_jobs_list(cli, &filter) : result;
}
