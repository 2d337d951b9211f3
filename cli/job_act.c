/*
 * job_act.c - what an operator does about jobs and targets: `latchkey dead`,
 * `latchkey target`, and `latchkey resolve --job`.
 *
 * Whatever is done to a job names the attempt at which it was seen. The daemon
 * refuses if there was another attempt since, so an operator never decides
 * about something that has changed.
 */
#include "cli/commands.h"
#include "cli/job_view.h"
#include "cli/move.h"

#include <stdlib.h>
#include <string.h>

/* ==== What an operator decides about jobs, one or many */

/* Commands in progress at a time. */
enum { WINDOW = 64 };

/* Actions on their way: items[replied..sent) wait for their replies. */
struct sending {
    struct lk_cli *cli;
    const char *verb;
    const struct lk_job_seen *items;
    size_t count;
    const struct lk_words *tail;
    struct lk_action_counts *counts;
    size_t sent;
    size_t replied;
};

/* JOB verb id, the words of all (WHO, WHY), and the attempt as the fence. */
static enum lk_status send_action(struct sending *s)
{
    const struct lk_job_seen *item = &s->items[s->sent];
    struct lk_words words = {0};

    lk_words_add(&words, "JOB");
    lk_words_add(&words, s->verb);
    lk_words_add_number(&words, item->id);
    for (size_t i = 0; i < s->tail->count; i++) {
        lk_words_add_slice(&words, s->tail->words[i]);
    }
    if (item->attempt != 0) {
        lk_words_add(&words, "ATTEMPT");
        lk_words_add_number(&words, item->attempt);
    }
    s->sent++;
    return latchkey_client_queue(s->cli->client, words.words, words.count);
}

/* Cuts `word` off the front of an error; false: it does not begin with it. */
static bool cut_word(struct lk_slice *text, const char *word)
{
    size_t length = strlen(word);

    if (text->len < length || memcmp(text->data, word, length) != 0) {
        return false;
    }
    text->data += length;
    text->len -= length;
    return true;
}

/* Counts the reply. The text of the first refusal is kept for the report; an
 * error that is not about this job (denied, unavailable) ends the run. */
static enum lk_exit take_action_reply(struct sending *s,
                                      const struct lk_reply *reply)
{
    struct lk_action_counts *counts = s->counts;
    struct lk_slice text = reply->text;

    s->replied++;
    if (lk_reply_is(reply, "OK")) {
        counts->done++;
    } else if (reply->type == LK_REPLY_NIL) {
        counts->gone++;
    } else if (reply->type == LK_REPLY_ERROR && cut_word(&text, "ERR ")) {
        (void)cut_word(&text, "JOB: ");
        if (counts->moved++ == 0) {
            lk_put_raw(&counts->refusal, text);
        }
    } else if (reply->type == LK_REPLY_ERROR) {
        return lk_complain_error(s->cli, reply->text);
    } else {
        return lk_complain_reply(s->cli);
    }
    return LK_EXIT_DONE;
}

/*
 * Sends an action for each item, at most WINDOW ahead of the replies: thousands
 * of jobs then take seconds. An error about one job does not end it; a lost
 * connection does, and what was sent may have been carried out.
 */
enum lk_exit lk_job_actions(struct lk_cli *cli, const char *verb,
                            const struct lk_job_seen *items, size_t count,
                            const struct lk_words *tail,
                            struct lk_action_counts *counts)
{
    struct sending s = {cli, verb, items, count, tail, counts, 0, 0};
    enum lk_exit result = cli->client == NULL ? lk_connect(cli) : LK_EXIT_DONE;
    struct lk_bar bar;

    lk_bar_start(&bar, cli, "jobs");
    while (result == LK_EXIT_DONE && s.replied < count) {
        const struct lk_reply *reply = NULL;
        enum lk_status status = LK_OK;

        while (status == LK_OK && s.sent < count &&
               s.sent - s.replied < WINDOW) {
            status = send_action(&s);
        }
        if (status == LK_OK) {
            status = latchkey_client_receive(cli->client, &reply);
        }
        result = status == LK_OK ? take_action_reply(&s, reply)
                                 : lk_complain_lost(cli, status);
        lk_bar_show(&bar, s.replied, count);
    }
    lk_bar_stop(&bar);
    return result;
}

/* ---- latchkey resolve --job ---------------------------------------------- */

/* What can be said about a job, and its state after that. */
static const struct choice {
    const char *option;
    const char *verb;
    const char *action;
    const char *state;
} choices[] = {
    {"delivered", "DELIVERED", "resolved", "delivered"},
    {"again", "AGAIN", "resolved", "waiting"},
    {"drop", "DROP", "dropped", "dropped"},
};

/* Exactly one of them. *found is NULL if there is none. */
static enum lk_exit find_choice(const struct lk_cli *cli,
                                const struct choice **found)
{
    *found = NULL;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (!lk_args_flag(&cli->args, choices[i].option)) {
            continue;
        }
        if (*found != NULL) {
            return lk_complain_usage(cli, "--%s and --%s exclude each other",
                                     (*found)->option, choices[i].option);
        }
        *found = &choices[i];
    }
    if (*found == NULL) {
        return lk_complain_usage(
            cli,
            "state the outcome of the job: --delivered, --again or --drop");
    }
    if (lk_args_flag(&cli->args, "provider-id") && *found != &choices[0]) {
        return lk_complain_usage(cli, "--provider-id goes with --delivered");
    }
    return LK_EXIT_DONE;
}

/* One action was sent, so exactly one of the counts is 1. */
static enum lk_exit report_job_action(struct lk_cli *cli, uint64_t id,
                                      const struct choice *choice,
                                      const struct lk_action_counts *counts)
{
    struct lk_doc doc = {.out = &cli->out};
    bool done = counts->done > 0;

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result",
                    latchkey_slice(done               ? "OK"
                                   : counts->gone > 0 ? "NIL"
                                                      : "ERR"));
        lk_doc_integer(&doc, "job", (int64_t)id);
        if (done) {
            lk_doc_text(&doc, "action", latchkey_slice(choice->action));
            lk_doc_text(&doc, "state", latchkey_slice(choice->state));
        }
        lk_doc_end_object(&doc);
    } else if (done) {
        lk_put(&cli->out, "%s job %llu, now %s\n", choice->action,
               (unsigned long long)id, choice->state);
    }
    if (counts->gone > 0) {
        lk_complain("there is no job %llu; latchkey jobs lists them",
                    (unsigned long long)id);
    } else if (!done) {
        lk_complain("nothing was changed: %.*s", (int)counts->refusal.len,
                    counts->refusal.data);
    }
    return done ? LK_EXIT_DONE : LK_EXIT_NO;
}

/* Without --attempt there is no fence: the operator decides about the job as it
 * is. */
enum lk_exit lk_resolve_job(struct lk_cli *cli)
{
    const char *provider_id = lk_args_value(&cli->args, "provider-id");
    struct lk_action_counts counts = {0};
    struct lk_job_seen item = {0};
    struct lk_action action = {0};
    const struct choice *choice;
    enum lk_exit result = find_choice(cli, &choice);

    if (choice == NULL) {
        return result;
    }
    if (result == LK_EXIT_DONE) {
        result = lk_job_id(cli, lk_args_value(&cli->args, "job"), &item.id);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_args_number(&cli->args, "attempt", 1, UINT32_MAX, &item.attempt);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_action_words(cli, &action, NULL);
    }
    if (result == LK_EXIT_DONE && provider_id != NULL) {
        lk_words_add(&action.words, "PROVIDER");
        lk_words_add(&action.words, provider_id);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_job_actions(cli, choice->verb, &item, 1, &action.words, &counts);
    }
    if (result == LK_EXIT_DONE) {
        result = report_job_action(cli, item.id, choice, &counts);
    }
    latchkey_buf_free(&counts.refusal);
    return result;
}

/* ==== `latchkey dead`: jobs that were given up, looked at and decided */

enum { PAGE = 1000, ROWS = 100 };

static const struct lk_option dead_options[] = {
    {"target", "NAME", "only those for this target"},
    {"tenant", "TENANT", "only this tenant's"},
    {"older", "DURATION", "only those made longer ago than DURATION (1h)"},
    {"reason", "TEXT", "only those whose reason contains this text"},
    {"all", NULL, "list: without a limit; retry, drop: every one"},
    {"yes", NULL, "retry, drop by a filter: do it, do not only list"},
    {"limit", "N", "list: at most N (100)"},
    {"cursor", "CURSOR", "list: continue where an earlier list ended"},
    {"check", NULL, "list: exit status 1 if there is any"},
    {"body", NULL, "show: print only the body of the request"},
    {"answer", NULL, "show: print only the body of the last response"},
    LK_OPTION_WHY,
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_dead = {
    "Jobs that were given up: list them, show one with its history, retry "
    "them\n"
    "or drop them. retry and drop take ids, or a filter: --target,\n"
    "--tenant, --older, --reason or --all. With a filter they only print what\n"
    "they would do, and do it with --yes. A job that was sent and whose key "
    "the\n"
    "service may have forgotten is not retried: latchkey resolve --job "
    "decides.",
    dead_options};

/* `latchkey dead retry` or `drop`: what was chosen, and the output. Items are
 * freed by lk_run_dead(). */
struct bulk {
    struct lk_cli *cli;
    const char *verb;   /* RETRY or DROP */
    const char *past;   /* "retried" */
    const char *future; /* "retry" */
    struct lk_jobs_filter filter;
    struct lk_words words; /* WHO and WHY */
    struct lk_job_seen *items;
    size_t count;
    size_t cap;
    struct lk_table table;
    struct lk_doc doc;
};

/* Notes the id and the attempt at which the job was seen. */
static void add_item(struct bulk *bulk, const struct lk_reply *job)
{
    if (bulk->count == bulk->cap) {
        bulk->cap = bulk->cap == 0 ? 256 : bulk->cap * 2;
        bulk->items =
            lk_must_grow(bulk->items, bulk->cap * sizeof(*bulk->items));
    }
    bulk->items[bulk->count++] = (struct lk_job_seen){
        lk_field_number(job, "id"), lk_field_number(job, "attempts")};
}

/* ---- By id --------------------------------------------------------------- */

/* The job must be dead: LK_EXIT_NO otherwise, before anything was changed. */
static enum lk_exit take_id(struct bulk *bulk, const char *text)
{
    struct lk_cli *cli = bulk->cli;
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
    add_item(bulk, job);
    return LK_EXIT_DONE;
}

/* All of them are looked at before anything is done. */
static enum lk_exit take_ids(struct bulk *bulk)
{
    const struct lk_args *args = &bulk->cli->args;
    enum lk_exit result = LK_EXIT_DONE;

    for (size_t i = 1; i < args->word_count && result == LK_EXIT_DONE; i++) {
        result = take_id(bulk, args->words[i]);
    }
    return result;
}

/* ---- By a filter --------------------------------------------------------- */

/* People see the first ROWS, programs all of them. */
static void show_row(struct bulk *bulk, const struct lk_reply *job)
{
    if (bulk->cli->json) {
        lk_doc_object(&bulk->doc, NULL);
        lk_doc_members(&bulk->doc, job);
        lk_doc_end_object(&bulk->doc);
    } else if (bulk->count < ROWS) {
        if (bulk->count == 0) {
            lk_jobs_put_heading(&bulk->table);
        }
        lk_jobs_put_row(&bulk->table, job, bulk->cli->now_ms);
    }
}

/*
 * Takes all dead jobs that match. Jobs that die in the meantime, after the
 * cursor, are taken as well; each is shown, and acted on, at the attempt at
 * which it was seen.
 */
static enum lk_exit take_matching(struct bulk *bulk, bool show)
{
    uint64_t cursor = 0;
    enum lk_exit result;

    do {
        const struct lk_reply *rows = NULL;

        result = lk_jobs_page(bulk->cli, &bulk->filter, PAGE, &cursor, &rows);
        for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
            if (lk_jobs_match(&bulk->filter, &rows->elements[i])) {
                if (show) {
                    show_row(bulk, &rows->elements[i]);
                }
                add_item(bulk, &rows->elements[i]);
            }
        }
        if (result == LK_EXIT_DONE) {
            lk_table_flush(&bulk->table, &bulk->cli->out);
            result = lk_cli_flush(bulk->cli);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    return result;
}

/* A filter without --yes: lists what would be done, and changes nothing. */
static enum lk_exit run_dry(struct bulk *bulk)
{
    struct lk_cli *cli = bulk->cli;
    enum lk_exit result;

    if (cli->json) {
        lk_doc_object(&bulk->doc, NULL);
        lk_doc_text(&bulk->doc, "action", latchkey_slice("none"));
        lk_doc_text(&bulk->doc, "would", latchkey_slice(bulk->future));
        lk_doc_array(&bulk->doc, "jobs");
    }
    result = take_matching(bulk, true);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_end_array(&bulk->doc);
        lk_doc_integer(&bulk->doc, "count", (int64_t)bulk->count);
        lk_doc_end_object(&bulk->doc);
        return LK_EXIT_DONE;
    }
    if (bulk->count > ROWS) {
        lk_put(&cli->out, "... and %zu more\n", bulk->count - ROWS);
    }
    lk_put(&cli->out, "would %s %zu dead job%s%s\n", bulk->future, bulk->count,
           bulk->count == 1 ? "" : "s",
           bulk->count == 0 ? "" : "; nothing was done: --yes does it");
    return LK_EXIT_DONE;
}

/* ---- Doing it ------------------------------------------------------------ */

/* Jobs that changed or were refused are counted, with the first reason. */
static void report_dead(struct bulk *bulk,
                        const struct lk_action_counts *counts)
{
    struct lk_cli *cli = bulk->cli;
    unsigned long long lost = counts->moved + counts->gone;

    if (cli->json) {
        lk_doc_object(&bulk->doc, NULL);
        lk_doc_text(&bulk->doc, "action", latchkey_slice(bulk->past));
        lk_doc_integer(&bulk->doc, "count", (int64_t)counts->done);
        lk_doc_integer(&bulk->doc, "moved_on", (int64_t)counts->moved);
        lk_doc_integer(&bulk->doc, "gone", (int64_t)counts->gone);
        lk_doc_end_object(&bulk->doc);
    } else {
        lk_put(&cli->out, "%s %llu dead job%s\n", bulk->past,
               (unsigned long long)counts->done, counts->done == 1 ? "" : "s");
    }
    if (lost > 0) {
        lk_complain("%llu had changed, were deleted or were refused%s%.*s",
                    lost, counts->refusal.len > 0 ? ": " : "",
                    (int)counts->refusal.len, counts->refusal.data);
    }
}

/* Each job at the attempt at which it was listed: one that has changed since
 * is left alone. */
static enum lk_exit carry_out_bulk(struct bulk *bulk)
{
    struct lk_action_counts counts = {0};
    enum lk_exit result = lk_job_actions(bulk->cli, bulk->verb, bulk->items,
                                         bulk->count, &bulk->words, &counts);

    if (result == LK_EXIT_DONE) {
        report_dead(bulk, &counts);
        result = counts.moved + counts.gone > 0 ? LK_EXIT_NO : LK_EXIT_DONE;
    } else if (counts.done > 0) {
        lk_complain("%llu had been %s until then",
                    (unsigned long long)counts.done, bulk->past);
    }
    latchkey_buf_free(&counts.refusal);
    return result;
}

/* Ids or a filter, and not neither: "all" must be said. */
static enum lk_exit check_dead_choice(const struct bulk *bulk)
{
    const struct lk_args *args = &bulk->cli->args;
    const struct lk_jobs_filter *filter = &bulk->filter;
    bool named = args->word_count > 1;
    bool filtered = filter->target != NULL || filter->tenant != NULL ||
                    filter->reason != NULL || filter->older_ms != 0;

    if (named && (filtered || lk_args_flag(args, "all"))) {
        return lk_complain_usage(bulk->cli, "give ids or a filter, not both");
    }
    if (!named && !filtered && !lk_args_flag(args, "all")) {
        return lk_complain_usage(bulk->cli,
                                 "say which: ids, --target, --tenant, --older, "
                                 "--reason, or --all");
    }
    return LK_EXIT_DONE;
}

/* By a filter and without --yes nothing is changed. */
static enum lk_exit decide_dead_jobs(struct bulk *bulk)
{
    const struct lk_args *args = &bulk->cli->args;
    bool named = args->word_count > 1;
    struct lk_action words = {0};
    enum lk_exit result = check_dead_choice(bulk);

    if (result == LK_EXIT_DONE && !named && !lk_args_flag(args, "yes")) {
        return run_dry(bulk);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_action_words(bulk->cli, &words, NULL);
        bulk->words = words.words;
    }
    if (result == LK_EXIT_DONE) {
        result = named ? take_ids(bulk) : take_matching(bulk, false);
    }
    return result == LK_EXIT_DONE ? carry_out_bulk(bulk) : result;
}

/* ---- The command --------------------------------------------------------- */

static enum lk_exit show_dead_job(struct lk_cli *cli)
{
    if (cli->args.word_count != 2) {
        return lk_complain_usage(cli, "name one job: latchkey dead show ID");
    }
    return lk_job_show(cli, cli->args.words[1]);
}

/* The first word is list, show, retry or drop. */
enum lk_exit lk_run_dead(struct lk_cli *cli)
{
    const char *word = cli->args.words[0];
    bool retry = strcmp(word, "retry") == 0;
    struct bulk bulk = {
        .cli = cli,
        .verb = retry ? "RETRY" : "DROP",
        .past = retry ? "retried" : "dropped",
        .future = retry ? "retry" : "drop",
        .filter = {.state = "dead"},
        .table = LK_JOBS_TABLE(cli),
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_jobs_filter_read(cli, &bulk.filter);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (strcmp(word, "show") == 0) {
        return show_dead_job(cli);
    }
    if (strcmp(word, "list") == 0 && cli->args.word_count == 1) {
        return lk_jobs_list(cli, &bulk.filter);
    }
    if (!retry && strcmp(word, "drop") != 0) {
        return lk_complain_usage(cli, "dead jobs are listed, shown, retried or "
                                      "dropped: list, show ID, retry, drop");
    }
    result = decide_dead_jobs(&bulk);
    free(bulk.items);
    return result;
}

/* ==== `latchkey target`: the services that jobs call */

const struct lk_manual lk_manual_target = {
    "status shows the state of every target, or one in full: the jobs that "
    "wait\n"
    "for it, whether calls fail, whether it is paused. The jobs are those of "
    "the\n"
    "store; SENT OK, FAILED and LAST ERROR are numbers of the daemon that is\n"
    "asked, since its start. While a target is paused its jobs wait; calls in\n"
    "progress end as usual.",
    lk_action_options};

/* ---- Status -------------------------------------------------------------- */

/* How the target does, in a word or two; returns the colour for it. The first
 * that applies: paused, not configured, circuit not closed, ok. */
static enum lk_put_colour put_state(struct lk_buf *cell,
                                    const struct lk_reply *target)
{
    struct lk_slice circuit = lk_field_text(target, "circuit");
    const struct lk_reply *configured = lk_field(target, "configured");

    if (lk_field_number(target, "paused") != 0) {
        lk_put(cell, "paused");
        return LK_BUSYING;
    }
    if (configured != NULL && configured->integer == 0) {
        lk_put(cell, "not configured");
        return LK_ALARM;
    }
    if (circuit.len > 0 && !latchkey_slice_equal(circuit, LK_SLICE("closed"))) {
        lk_put(cell, "circuit ");
        lk_put_text(cell, circuit);
        return LK_ALARM;
    }
    lk_put(cell, "ok");
    return LK_GOOD;
}

/* `alarm`: any number above 0 needs a person. */
static void put_number(struct lk_table *table, const struct lk_reply *target,
                       const char *name, bool alarm)
{
    uint64_t number = lk_field_number(target, name);

    lk_put(lk_table_cell(table, alarm && number > 0 ? LK_ALARM : LK_PLAIN),
           "%llu", (unsigned long long)number);
}

static void put_target_row(struct lk_table *table,
                           const struct lk_reply *target, uint64_t now_ms)
{
    uint64_t oldest_ms = lk_field_number(target, "oldest_due_ms");
    struct lk_buf state = {0};
    enum lk_put_colour colour = put_state(&state, target);

    lk_put_text(lk_table_cell(table, LK_PLAIN), lk_field_text(target, "name"));
    lk_put_raw(lk_table_cell(table, colour), latchkey_buf_slice(&state));
    latchkey_buf_free(&state);
    put_number(table, target, "waiting", false);
    put_number(table, target, "leased", false);
    put_number(table, target, "uncertain", true);
    put_number(table, target, "dead", true);
    put_number(table, target, "sent-ok", false);
    put_number(table, target, "failed", false);
    struct lk_buf *cell = lk_table_cell(table, LK_PLAIN);
    if (oldest_ms != 0) {
        lk_put_duration(cell, now_ms > oldest_ms ? now_ms - oldest_ms : 0, 1);
    }
    lk_put_text(lk_table_cell(table, LK_PLAIN),
                lk_field_text(target, "last_error"));
}

/* One row for each target: those of the configuration and those that only have
 * jobs left in the store. */
static void show_targets_table(struct lk_cli *cli,
                               const struct lk_reply *targets)
{
    static const char *const names[] = {
        "TARGET", "STATE",   "WAITING", "LEASED",  "UNCERTAIN",
        "DEAD",   "SENT OK", "FAILED",  "OVERDUE", "LAST ERROR"};
    struct lk_table table = {.columns = 10,
                             .colour = cli->colour,
                             .right = 0x1fc,
                             .rigid = 1 << 1,
                             .spare = 1 << 3 | 1 << 6 | 1 << 7};

    lk_table_heading(&table, names);
    for (size_t i = 0; i < targets->count; i++) {
        put_target_row(&table, &targets->elements[i], cli->now_ms);
    }
    lk_table_flush(&table, &cli->out);
}

/* Fields that are points in time, in milliseconds since 1970. */
static bool is_time(struct lk_slice name)
{
    static const char *const names[] = {
        "paused-ms", "oldest-due-ms", "oldest-uncertain-ms", "oldest-dead-ms"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (latchkey_slice_equal(name, latchkey_slice(names[i]))) {
            return true;
        }
    }
    return false;
}

/* Every field that is not empty, by its own name. */
static void show_one(struct lk_cli *cli, const struct lk_reply *target)
{
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    for (size_t i = 0; i + 1 < target->count; i += 2) {
        struct lk_slice name = target->elements[i].text;
        const struct lk_reply *value = &target->elements[i + 1];
        bool text = value->type == LK_REPLY_TEXT;

        if (value->type == LK_REPLY_NIL || (text && value->text.len == 0) ||
            (is_time(name) && value->integer == 0)) {
            continue;
        }
        lk_put_text(lk_table_cell(&table, LK_DIM), name);
        struct lk_buf *cell = lk_table_cell(&table, LK_PLAIN);
        if (text) {
            lk_put_text(cell, value->text);
        } else if (is_time(name)) {
            lk_put_time(cell, (uint64_t)value->integer, cli->now_ms);
        } else {
            lk_put(cell, "%lld", (long long)value->integer);
        }
    }
    lk_table_flush(&table, &cli->out);
}

static void show_targets_json(struct lk_cli *cli,
                              const struct lk_reply *targets)
{
    struct lk_doc doc = {.out = &cli->out};

    lk_doc_object(&doc, NULL);
    lk_doc_array(&doc, "targets");
    for (size_t i = 0; i < targets->count; i++) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, &targets->elements[i]);
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

/* LK_EXIT_NO: there is none of that name, and it has complained. */
static enum lk_exit fetch_status(struct lk_cli *cli, const char *name,
                                 const struct lk_reply **reply)
{
    struct lk_words words = {0};
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "STATUS");
    if (name != NULL) {
        lk_words_add(&words, name);
    }
    result = lk_call(cli, &words, reply);
    if (result == LK_EXIT_DONE && (*reply)->type != LK_REPLY_ARRAY) {
        result = lk_complain_reply(cli);
    }
    if (result == LK_EXIT_DONE && name != NULL && (*reply)->count == 0) {
        lk_complain("there is no target \"%s\"; latchkey target status lists "
                    "them",
                    name);
        result = LK_EXIT_NO;
    }
    return result;
}

static enum lk_exit show_target_status(struct lk_cli *cli, const char *name)
{
    const struct lk_reply *reply;
    enum lk_exit result = fetch_status(cli, name, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        show_targets_json(cli, reply);
    } else if (name != NULL && reply->count == 1) {
        show_one(cli, &reply->elements[0]);
    } else if (reply->count > 0) {
        show_targets_table(cli, reply);
    }
    if (reply->count == 0) {
        lk_hint(cli, "no targets: see [target NAME] in latchkeyd.conf");
    }
    return LK_EXIT_DONE;
}

/* ---- Pause and resume ---------------------------------------------------- */

/* Pauses or resumes a target. An unknown name is refused before: pausing a
 * target that does not exist would help no one. */
static enum lk_exit pause_target(struct lk_cli *cli, bool pause)
{
    const char *verb = pause ? "paused" : "resumed";
    const char *name = cli->args.words[1];
    struct lk_doc doc = {.out = &cli->out};
    struct lk_action action = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&action.words, "TARGET");
    lk_words_add(&action.words, pause ? "PAUSE" : "RESUME");
    lk_words_add(&action.words, name);
    result = lk_action_words(cli, &action, NULL);
    /* A slip of the finger would pause nothing, and no one would notice. */
    if (result == LK_EXIT_DONE) {
        result = fetch_status(cli, name, &reply);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &action.words, &reply);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!lk_reply_is(reply, "OK")) {
        return lk_complain_reply(cli);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("OK"));
        lk_doc_text(&doc, "action", latchkey_slice(verb));
        lk_doc_text(&doc, "target", latchkey_slice(name));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&cli->out, "%s target ", verb);
        lk_put_text(&cli->out, latchkey_slice(name));
        lk_put(&cli->out, "\n");
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_target(struct lk_cli *cli)
{
    const char *word = cli->args.words[0];
    bool pause = strcmp(word, "pause") == 0;

    if (strcmp(word, "status") == 0) {
        return show_target_status(
            cli, cli->args.word_count > 1 ? cli->args.words[1] : NULL);
    }
    if (!pause && strcmp(word, "resume") != 0) {
        return lk_complain_usage(
            cli, "a target is paused, resumed or looked at, not \"%s\"", word);
    }
    if (cli->args.word_count != 2) {
        return lk_complain_usage(cli,
                                 "name the target: latchkey target %s "
                                 "NAME",
                                 word);
    }
    return pause_target(cli, pause);
}
