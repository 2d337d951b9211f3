/* dead.c - `latchkey dead`: jobs that were given up, looked at and decided. */
#include "cli/commands.h"
#include "cli/jobs.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = 1000, ROWS = 100 };

static const struct lk_option options[] = {
    {"target", "NAME", "only those for this target"},
    {"tenant", "TENANT", "only this tenant's"},
    {"older", "DURATION", "only those made at least so long ago (1h)"},
    {"reason", "TEXT", "only those whose reason has this text in it"},
    {"all", NULL, "list: without a limit; retry, drop: every one"},
    {"yes", NULL, "retry, drop by a filter: do it, not only say it"},
    {"limit", "N", "list: at most so many (100)"},
    {"cursor", "CURSOR", "list: go on where an earlier one ended"},
    {"check", NULL, "list: exit status 1 if there is any"},
    {"body", NULL, "show: print only the body of the request"},
    {"answer", NULL, "show: print only the body of the last answer"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_dead = {
    "Jobs that were given up: list them, show one with its history, retry "
    "them\n"
    "or drop them for good. retry and drop take ids, or a filter: --target,\n"
    "--tenant, --older, --reason or --all. With a filter they only print what\n"
    "they would do, and do it with --yes. A job that was sent and whose key "
    "the\n"
    "service may have forgotten is not retried: latchkey resolve --job "
    "decides.",
    options};

struct deed {
    struct lk_cli *cli;
    const char *verb;   /* RETRY or DROP */
    const char *past;   /* "retried" */
    const char *future; /* "retry" */
    struct lk_jobs_filter filter;
    struct lk_words words; /* WHO and WHY */
    struct lk_order_item *items;
    size_t count;
    size_t cap;
    struct lk_table table;
    struct lk_doc doc;
};

static void add_item(struct deed *deed, const struct lk_reply *job)
{
    if (deed->count == deed->cap) {
        deed->cap = deed->cap == 0 ? 256 : deed->cap * 2;
        deed->items =
            lk_must_grow(deed->items, deed->cap * sizeof(*deed->items));
    }
    deed->items[deed->count++] = (struct lk_order_item){
        lk_field_number(job, "id"), lk_field_number(job, "attempts")};
}

/* ---- By id ----------------------------------------------------------------
 */

static enum lk_exit take_id(struct deed *deed, const char *text)
{
    struct lk_cli *cli = deed->cli;
    const struct lk_reply *job;
    uint64_t id;
    enum lk_exit result = lk_job_id(cli, text, &id);

    if (result == LK_EXIT_DONE) {
        result = lk_job_fetch(cli, id, false, &job);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    struct lk_slice state = lk_field_text(job, "state");
    if (!latchkey_slice_equal(state, LK_SLICE("dead"))) {
        lk_complain("nothing was changed: job %s is not dead, but %.*s%s", text,
                    (int)state.len, state.data,
                    latchkey_slice_equal(state, LK_SLICE("uncertain"))
                        ? "; latchkey resolve --job decides about it"
                        : "");
        return LK_EXIT_NO;
    }
    add_item(deed, job);
    return LK_EXIT_DONE;
}

/* All of them are looked at before anything is done. */
static enum lk_exit take_ids(struct deed *deed)
{
    const struct lk_args *args = &deed->cli->args;
    enum lk_exit result = LK_EXIT_DONE;

    for (size_t i = 1; i < args->word_count && result == LK_EXIT_DONE; i++) {
        result = take_id(deed, args->words[i]);
    }
    return result;
}

/* ---- By a filter ----------------------------------------------------------
 */

static void show_row(struct deed *deed, const struct lk_reply *job)
{
    if (deed->cli->json) {
        lk_doc_object(&deed->doc, NULL);
        lk_doc_members(&deed->doc, job);
        lk_doc_end_object(&deed->doc);
    } else if (deed->count < ROWS) {
        if (deed->count == 0) {
            lk_jobs_put_heading(&deed->table);
        }
        lk_jobs_put_row(&deed->table, job, deed->cli->now_ms);
    }
}

/* Jobs that die meanwhile, behind the cursor, are taken as well; each is shown
 * and done at the attempt at which it was seen. */
static enum lk_exit take_matching(struct deed *deed, bool show)
{
    uint64_t cursor = 0;
    enum lk_exit result;

    do {
        const struct lk_reply *rows = NULL;

        result = lk_jobs_page(deed->cli, &deed->filter, PAGE, &cursor, &rows);
        for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
            if (lk_jobs_match(&deed->filter, &rows->elements[i])) {
                if (show) {
                    show_row(deed, &rows->elements[i]);
                }
                add_item(deed, &rows->elements[i]);
            }
        }
        if (result == LK_EXIT_DONE) {
            lk_table_flush(&deed->table, &deed->cli->out);
            result = lk_cli_flush(deed->cli);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    return result;
}

static enum lk_exit run_dry(struct deed *deed)
{
    struct lk_cli *cli = deed->cli;
    enum lk_exit result;

    if (cli->json) {
        lk_doc_object(&deed->doc, NULL);
        lk_doc_text(&deed->doc, "action", latchkey_slice("none"));
        lk_doc_text(&deed->doc, "would", latchkey_slice(deed->future));
        lk_doc_array(&deed->doc, "jobs");
    }
    result = take_matching(deed, true);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_end_array(&deed->doc);
        lk_doc_integer(&deed->doc, "count", (int64_t)deed->count);
        lk_doc_end_object(&deed->doc);
        return LK_EXIT_DONE;
    }
    if (deed->count > ROWS) {
        lk_put(&cli->out, "... and %zu more\n", deed->count - ROWS);
    }
    lk_put(&cli->out, "would %s %zu dead job%s%s\n", deed->future, deed->count,
           deed->count == 1 ? "" : "s",
           deed->count == 0 ? "" : "; nothing was done: --yes does it");
    return LK_EXIT_DONE;
}

/* ---- Doing it -------------------------------------------------------------
 */

static void report(struct deed *deed, const struct lk_order_counts *counts)
{
    struct lk_cli *cli = deed->cli;
    unsigned long long lost = counts->moved + counts->gone;

    if (cli->json) {
        lk_doc_object(&deed->doc, NULL);
        lk_doc_text(&deed->doc, "action", latchkey_slice(deed->past));
        lk_doc_integer(&deed->doc, "count", (int64_t)counts->done);
        lk_doc_integer(&deed->doc, "moved_on", (int64_t)counts->moved);
        lk_doc_integer(&deed->doc, "gone", (int64_t)counts->gone);
        lk_doc_end_object(&deed->doc);
    } else {
        lk_put(&cli->out, "%s %llu dead job%s\n", deed->past,
               (unsigned long long)counts->done, counts->done == 1 ? "" : "s");
    }
    if (lost > 0) {
        lk_complain("%llu had changed or gone, or were refused%s%.*s", lost,
                    counts->refusal.len > 0 ? ": " : "",
                    (int)counts->refusal.len, counts->refusal.data);
    }
}

static enum lk_exit carry_out(struct deed *deed)
{
    struct lk_order_counts counts = {0};
    enum lk_exit result = lk_job_orders(deed->cli, deed->verb, deed->items,
                                        deed->count, &deed->words, &counts);

    if (result == LK_EXIT_DONE) {
        report(deed, &counts);
        result = counts.moved + counts.gone > 0 ? LK_EXIT_NO : LK_EXIT_DONE;
    } else if (counts.done > 0) {
        lk_complain("%llu had been %s until then",
                    (unsigned long long)counts.done, deed->past);
    }
    latchkey_buf_free(&counts.refusal);
    return result;
}

static enum lk_exit check_choice(const struct deed *deed)
{
    const struct lk_args *args = &deed->cli->args;
    const struct lk_jobs_filter *filter = &deed->filter;
    bool named = args->word_count > 1;
    bool filtered = filter->target != NULL || filter->tenant != NULL ||
                    filter->reason != NULL || filter->older_ms != 0;

    if (named && (filtered || lk_args_flag(args, "all"))) {
        return lk_complain_usage(deed->cli, "give ids or a filter, not both");
    }
    if (!named && !filtered && !lk_args_flag(args, "all")) {
        return lk_complain_usage(deed->cli,
                                 "say which: ids, --target, --tenant, --older, "
                                 "--reason, or --all");
    }
    return LK_EXIT_DONE;
}

static enum lk_exit decide(struct deed *deed)
{
    const struct lk_args *args = &deed->cli->args;
    bool named = args->word_count > 1;
    struct lk_deed words = {0};
    enum lk_exit result = check_choice(deed);

    if (result == LK_EXIT_DONE && !named && !lk_args_flag(args, "yes")) {
        return run_dry(deed);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_deed_words(deed->cli, &words, NULL);
        deed->words = words.words;
    }
    if (result == LK_EXIT_DONE) {
        result = named ? take_ids(deed) : take_matching(deed, false);
    }
    return result == LK_EXIT_DONE ? carry_out(deed) : result;
}

/* ---- The command ----------------------------------------------------------
 */

static enum lk_exit show_job(struct lk_cli *cli)
{
    if (cli->args.word_count != 2) {
        return lk_complain_usage(cli, "name one job: latchkey dead show ID");
    }
    return lk_job_show(cli, cli->args.words[1]);
}

enum lk_exit lk_run_dead(struct lk_cli *cli)
{
    const char *word = cli->args.words[0];
    bool retry = strcmp(word, "retry") == 0;
    struct deed deed = {
        .cli = cli,
        .verb = retry ? "RETRY" : "DROP",
        .past = retry ? "retried" : "dropped",
        .future = retry ? "retry" : "drop",
        .filter = {.state = "dead"},
        .table = LK_JOBS_TABLE(cli),
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_jobs_filter_read(cli, &deed.filter);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (strcmp(word, "show") == 0) {
        return show_job(cli);
    }
    if (strcmp(word, "list") == 0 && cli->args.word_count == 1) {
        return lk_jobs_list(cli, &deed.filter);
    }
    if (!retry && strcmp(word, "drop") != 0) {
        return lk_complain_usage(cli, "dead jobs are listed, shown, retried or "
                                      "dropped: list, show ID, retry, drop");
    }
    result = decide(&deed);
    free(deed.items);
    return result;
}
