/* jobs.c - `latchkey jobs`: the calls that operations have left. */
#include "cli/jobs.h"
#include "cli/commands.h"

#include <string.h>

enum { PAGE = 1000, DEFAULT_LIMIT = 100 };

static const struct lk_option options[] = {
    {"state", "STATE",
     "waiting, leased, uncertain, dead, delivered,\n"
     "dropped, unfinished (the first four) or all"},
    {"target", "NAME", "only those for this target"},
    {"tenant", "TENANT", "only this tenant's"},
    {"reference", "REFERENCE", "only those of this operation"},
    {"older", "DURATION", "only those made at least so long ago (1h)"},
    {"since", "TIME", "only those made at this time or later"},
    {"until", "TIME", "only those made before this time"},
    {"limit", "N", "at most so many (100)"},
    {"all", NULL, "without a limit"},
    {"cursor", "CURSOR", "go on where an earlier list ended"},
    {"check", NULL, "exit status 1 if there is any"},
    {"body", NULL, "show: print only the body of the request"},
    {"answer", NULL, "show: print only the body of the last answer"},
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

struct listing {
    struct lk_cli *cli;
    const struct lk_jobs_filter *filter;
    uint64_t left; /* how many are still wanted */
    uint64_t cursor;
    uint64_t shown;
    uint64_t waiting; /* of these, for a person */
    struct lk_table table;
    struct lk_doc doc;
};

static enum lk_exit read_limits(struct listing *list)
{
    const struct lk_args *args = &list->cli->args;
    enum lk_exit result;

    if (lk_args_flag(args, "all") && lk_args_flag(args, "limit")) {
        return lk_complain_usage(list->cli,
                                 "--all and --limit exclude each other");
    }
    list->left = lk_args_flag(args, "all") ? UINT64_MAX : DEFAULT_LIMIT;
    result = lk_args_number(args, "limit", 1, UINT32_MAX, &list->left);
    if (result == LK_EXIT_DONE) {
        result = lk_args_number(args, "cursor", 0, INT64_MAX, &list->cursor);
    }
    return result;
}

static void show_row(struct listing *list, const struct lk_reply *job)
{
    struct lk_slice state = lk_field_text(job, "state");

    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_members(&list->doc, job);
        lk_doc_end_object(&list->doc);
    } else {
        if (list->shown == 0) {
            lk_jobs_put_heading(&list->table);
        }
        lk_jobs_put_row(&list->table, job, list->cli->now_ms);
    }
    list->shown++;
    list->waiting += latchkey_slice_equal(state, LK_SLICE("dead")) ||
                     latchkey_slice_equal(state, LK_SLICE("uncertain"));
}

static enum lk_exit show_page(struct listing *list)
{
    const struct lk_reply *rows = NULL;
    enum lk_exit result = lk_jobs_page(list->cli, list->filter,
                                       list->left > PAGE ? PAGE : list->left,
                                       &list->cursor, &rows);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    for (size_t i = 0; i < rows->count; i++) {
        if (lk_jobs_match(list->filter, &rows->elements[i])) {
            show_row(list, &rows->elements[i]);
            list->left--;
        }
    }
    lk_table_flush(&list->table, &list->cli->out);
    return lk_cli_flush(list->cli);
}

static void show_end(const struct listing *list)
{
    lk_hint(list->cli, "%llu job%s, %llu dead or uncertain%s",
            (unsigned long long)list->shown, list->shown == 1 ? "" : "s",
            (unsigned long long)list->waiting,
            list->cursor == 0 ? "" : "; there are more:");
    if (list->cursor != 0) {
        lk_hint(list->cli, "--all, or go on with --cursor %llu",
                (unsigned long long)list->cursor);
    }
}

enum lk_exit lk_jobs_list(struct lk_cli *cli,
                          const struct lk_jobs_filter *filter)
{
    bool check = lk_args_flag(&cli->args, "check");
    struct listing list = {
        .cli = cli,
        .filter = filter,
        .table = {.columns = LK_JOBS_COLUMNS,
                  .colour = cli->colour,
                  .right = LK_JOBS_RIGHT},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = read_limits(&list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_object(&list.doc, NULL);
        lk_doc_array(&list.doc, "jobs");
    }
    do {
        result = show_page(&list);
    } while (result == LK_EXIT_DONE && list.cursor != 0 && list.left > 0);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_end_array(&list.doc);
        lk_doc_integer(&list.doc, "next-cursor", (int64_t)list.cursor);
        lk_doc_end_object(&list.doc);
    }
    /* Whoever mails what a check prints wants nothing where there is none. */
    if (!check || list.shown > 0) {
        show_end(&list);
    }
    return check && list.shown > 0 ? LK_EXIT_NO : LK_EXIT_DONE;
}

/* ---- The command ----------------------------------------------------------
 */

/* Without a wish, what is over is of no interest but for one operation. */
static enum lk_exit read_state(const struct lk_cli *cli, const char **state)
{
    static const char *const states[] = {"waiting",    "leased",    "uncertain",
                                         "dead",       "delivered", "dropped",
                                         "unfinished", "all"};
    const char *given = lk_args_value(&cli->args, "state");

    if (given == NULL) {
        *state = lk_args_flag(&cli->args, "reference") ? NULL : "unfinished";
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
    const struct lk_reply *job;
    uint64_t id;
    enum lk_exit result;

    if (strcmp(cli->args.words[0], "show") != 0 || cli->args.word_count != 2) {
        return lk_complain_usage(cli,
                                 "jobs are listed, or one is shown: latchkey "
                                 "jobs show ID");
    }
    result = lk_job_id(cli, cli->args.words[1], &id);
    if (result == LK_EXIT_DONE) {
        result = lk_job_fetch(cli, id, &job);
    }
    if (result == LK_EXIT_DONE) {
        lk_job_show(cli, job);
    }
    return result;
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
