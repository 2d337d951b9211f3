/*
 * job_view.c - asks for jobs and shows them; `latchkey jobs`.
 *
 * The first part is shared with `latchkey dead`, `find` and `reconcile`: the
 * filter, pages of jobs, one job in full. Replies belong to the client and are
 * gone with the next call.
 */
#include "cli/job_view.h"
#include "cli/commands.h"
#include "lib/number.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ==== Asks for jobs, and shows them */

/* ---- Asking -------------------------------------------------------------- */

/* The options that all commands about jobs share; the state is the caller's. */
enum lk_exit lk_jobs_filter_read(const struct lk_cli *cli,
                                 struct lk_jobs_filter *filter)
{
    const struct lk_args *args = &cli->args;
    enum lk_exit result = lk_args_duration(args, "older", &filter->older_ms);

    filter->target = lk_args_value(args, "target");
    filter->tenant = lk_args_value(args, "tenant");
    filter->reference = lk_args_value(args, "reference");
    filter->provider_id = lk_args_value(args, "provider-id");
    filter->reason = lk_args_value(args, "reason");
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "since", cli->now_ms, &filter->since_ms);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "until", cli->now_ms, &filter->until_ms);
    }
    return result;
}

static void add_text(struct lk_words *words, const char *name,
                     const char *value)
{
    if (value != NULL) {
        lk_words_add(words, name);
        lk_words_add(words, value);
    }
}

static void add_number_word(struct lk_words *words, const char *name,
                            uint64_t value)
{
    if (value != 0) {
        lk_words_add(words, name);
        lk_words_add_number(words, value);
    }
}

/*
 * The jobs from *cursor on, at most `limit`; *cursor is then where the next
 * page begins, 0 at the end. WHOLE, with requests and responses, goes into the
 * audit log, so it needs who and why.
 */
enum lk_exit lk_jobs_page(struct lk_cli *cli,
                          const struct lk_jobs_filter *filter, uint64_t limit,
                          uint64_t *cursor, const struct lk_reply **rows)
{
    struct lk_action look = {0};
    struct lk_words *words = &look.words;
    const struct lk_reply *reply;

    lk_words_add(words, "JOBS");
    add_text(words, "STATE", filter->state);
    add_text(words, "TARGET", filter->target);
    add_text(words, "TENANT", filter->tenant);
    add_text(words, "REFERENCE", filter->reference);
    add_text(words, "PROVIDER", filter->provider_id);
    add_number_word(words, "OLDER", filter->older_ms);
    add_number_word(words, "SINCE", filter->since_ms);
    add_number_word(words, "UNTIL", filter->until_ms);
    add_number_word(words, "LIMIT", limit);
    add_number_word(words, "CURSOR", *cursor);
    enum lk_exit result = LK_EXIT_DONE;
    if (filter->whole) {
        lk_words_add(words, "WHOLE");
        result = lk_action_words(cli, &look, "compared with an export");
    }
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, words, &reply);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count != 2 ||
        reply->elements[1].type != LK_REPLY_ARRAY) {
        return lk_complain_reply(cli);
    }
    *cursor = lk_reply_cursor(&reply->elements[0]);
    *rows = &reply->elements[1];
    return LK_EXIT_DONE;
}

/*
 * --reason, which the daemon does not know: a part of the reason in any case.
 */
bool lk_jobs_match(const struct lk_jobs_filter *filter,
                   const struct lk_reply *job)
{
    struct lk_slice reason = lk_field_text(job, "reason");
    size_t length = filter->reason == NULL ? 0 : strlen(filter->reason);

    for (size_t i = 0; length > 0 && i + length <= reason.len; i++) {
        if (strncasecmp(reason.data + i, filter->reason, length) == 0) {
            return true;
        }
    }
    return length == 0;
}

/* A number from 1 on. LK_EXIT_USAGE: it is something else. */
enum lk_exit lk_job_id(const struct lk_cli *cli, const char *text, uint64_t *id)
{
    if (!lk_number_read(latchkey_slice(text), INT64_MAX, id) || *id == 0) {
        return lk_complain_usage(
            cli, "\"%s\" is not a job's id; latchkey jobs lists them", text);
    }
    return LK_EXIT_DONE;
}

/* LK_EXIT_NO: there is no such job, and it has complained. `bodies`: the
 * request and the response too, which is noted in the audit log. */
enum lk_exit lk_job_fetch(struct lk_cli *cli, uint64_t id, bool bodies,
                          const struct lk_reply **job)
{
    struct lk_action look = {0};
    struct lk_doc doc = {.out = &cli->out};
    enum lk_exit result = LK_EXIT_DONE;

    lk_words_add(&look.words, "JOB");
    lk_words_add(&look.words, "SHOW");
    lk_words_add_number(&look.words, id);
    if (bodies) {
        lk_words_add(&look.words, "BODY");
        result = lk_action_words(cli, &look, NULL);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &look.words, job);
    }
    if (result == LK_EXIT_DONE && (*job)->type == LK_REPLY_NIL) {
        if (cli->json) {
            lk_doc_null(&doc, NULL);
        }
        lk_complain("there is no job %llu; latchkey jobs lists them",
                    (unsigned long long)id);
        return LK_EXIT_NO;
    }
    if (result == LK_EXIT_DONE && (*job)->type != LK_REPLY_ARRAY) {
        result = lk_complain_reply(cli);
    }
    return result;
}

/* ---- One line each ------------------------------------------------------- */

/*
 * Red for what needs a person, yellow for what is open, green for what is done.
 */
static enum lk_put_colour state_colour(struct lk_slice state)
{
    static const struct {
        const char *state;
        enum lk_put_colour colour;
    } colours[] = {
        {"uncertain", LK_ALARM}, {"dead", LK_ALARM},
        {"waiting", LK_BUSYING}, {"leased", LK_BUSYING},
        {"delivered", LK_GOOD},  {"dropped", LK_DIM},
    };

    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        if (latchkey_slice_equal(state, latchkey_slice(colours[i].state))) {
            return colours[i].colour;
        }
    }
    return LK_PLAIN;
}

/* The request of an asynchronous operation has no name. */
static struct lk_slice job_name(const struct lk_reply *job)
{
    struct lk_slice name = lk_field_text(job, "name");

    return name.len == 0 ? LK_SLICE("(request)") : name;
}

void lk_jobs_put_heading(struct lk_table *table)
{
    static const char *const names[LK_JOBS_COLUMNS] = {
        "ID",   "STATE",  "AGE",       "ATTEMPTS", "TARGET",
        "NAME", "TENANT", "REFERENCE", "STATUS",   "REASON"};

    lk_table_heading(table, names);
}

/* One cell for each column of the heading, in the same order. */
void lk_jobs_put_row(struct lk_table *table, const struct lk_reply *job,
                     uint64_t now_ms)
{
    static const char *const names[] = {"tenant", "reference"};
    struct lk_slice state = lk_field_text(job, "state");
    enum lk_put_colour colour = state_colour(state);
    uint64_t created_ms = lk_field_number(job, "created_ms");
    uint64_t status = lk_field_number(job, "status");
    struct lk_buf *cell;

    lk_put(lk_table_cell(table, colour), "%s%llu",
           colour == LK_ALARM ? "! " : "",
           (unsigned long long)lk_field_number(job, "id"));
    lk_put_text(lk_table_cell(table, colour), state);
    lk_put_duration(lk_table_cell(table, LK_PLAIN),
                    now_ms > created_ms ? now_ms - created_ms : 0, 1);
    lk_put(lk_table_cell(table, LK_PLAIN), "%llu",
           (unsigned long long)lk_field_number(job, "attempts"));
    lk_put_text(lk_table_cell(table, LK_PLAIN), lk_field_text(job, "target"));
    lk_put_text(lk_table_cell(table, LK_PLAIN), job_name(job));
    for (size_t i = 0; i < 2; i++) {
        lk_put_text(lk_table_cell(table, LK_PLAIN),
                    lk_field_text(job, names[i]));
    }
    cell = lk_table_cell(table, LK_PLAIN);
    if (status != 0) {
        lk_put(cell, "%llu", (unsigned long long)status);
    }
    lk_put_text(lk_table_cell(table, LK_PLAIN), lk_field_text(job, "reason"));
}

/* ---- One in full --------------------------------------------------------- */

/* The line of a field, if it is there and not empty. */
static const struct line {
    const char *field;
    const char *label;
    enum lk_form form;
} lines[] = {
    {"id", "id", LK_FORM_NUMBER},
    {"state", "state", LK_FORM_TEXT},
    {"reason", "because", LK_FORM_TEXT},
    {"target", "target", LK_FORM_TEXT},
    {"name", "name", LK_FORM_TEXT},
    {"method", "method", LK_FORM_TEXT},
    {"path", "path", LK_FORM_TEXT},
    {"downstream_key", "key sent", LK_FORM_TEXT},
    {"provider_id", "provider's id", LK_FORM_TEXT},
    {"reference", "operation", LK_FORM_TEXT},
    {"tenant", "tenant", LK_FORM_TEXT},
    {"scope", "scope", LK_FORM_TEXT},
    {"key", "key", LK_FORM_TEXT},
    {"attempts", "attempts", LK_FORM_NUMBER},
    {"forgiven", "of these forgiven", LK_FORM_NUMBER},
    {"called", "called", LK_FORM_FLAG},
    {"sent", "ever sent", LK_FORM_FLAG},
    {"created_ms", "created", LK_FORM_TIME},
    {"due_ms", "due", LK_FORM_TIME},
    {"ended_ms", "since", LK_FORM_TIME},
    {"status", "last status", LK_FORM_NUMBER},
    {"body_bytes", "body", LK_FORM_SIZE},
    {"answer_body_bytes", "last answer", LK_FORM_SIZE},
};

/* A field that is missing, nil, empty or 0 has no line. */
static bool is_empty(const struct lk_reply *value)
{
    return value == NULL || value->type == LK_REPLY_NIL ||
           (value->type == LK_REPLY_TEXT ? value->text.len == 0
                                         : value->integer == 0);
}

/* The attempts, the oldest first. */
static void put_history(struct lk_cli *cli, const struct lk_reply *history)
{
    struct lk_table table = {.columns = 5,
                             .colour = cli->colour,
                             .right = 1 | 1 << 2,
                             .rigid = 1 << 1 | 1 << 3};
    static const char *const names[] = {"ATTEMPT", "ENDED", "STATUS", "CALLED",
                                        "REASON"};

    lk_table_heading(&table, names);
    for (size_t i = 0; i < history->count; i++) {
        const struct lk_reply *row = &history->elements[i];
        uint64_t status = lk_field_number(row, "status");

        lk_put(lk_table_cell(&table, LK_PLAIN), "%llu",
               (unsigned long long)lk_field_number(row, "number"));
        lk_put_utc(lk_table_cell(&table, LK_PLAIN),
                   lk_field_number(row, "ended_ms"));
        struct lk_buf *cell = lk_table_cell(&table, LK_PLAIN);
        if (status != 0) {
            lk_put(cell, "%llu", (unsigned long long)status);
        }
        lk_put(lk_table_cell(&table, LK_PLAIN), "%s",
               lk_field_number(row, "called") != 0 ? "yes" : "no");
        lk_put_text(lk_table_cell(&table, LK_PLAIN),
                    lk_field_text(row, "reason"));
    }
    lk_put(&cli->out, "\n");
    lk_table_flush(&table, &cli->out);
}

/* A line for each field that has a value; the name is always shown. */
static void put_job_lines(struct lk_cli *cli, const struct lk_reply *job)
{
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        const struct lk_reply *value = lk_field(job, lines[i].field);
        bool request = strcmp(lines[i].field, "name") == 0;

        if (is_empty(value) && !request) {
            continue;
        }
        lk_put(lk_table_cell(&table, LK_DIM), "%s", lines[i].label);
        if (request) {
            lk_put_text(lk_table_cell(&table, LK_PLAIN), job_name(job));
            continue;
        }
        lk_put_form(lk_table_cell(&table, strcmp(lines[i].field, "state") == 0
                                              ? state_colour(value->text)
                                              : LK_PLAIN),
                    lines[i].form, value, cli->now_ms);
    }
    lk_table_flush(&table, &cli->out);
}

/* The commands that can follow, for a job that needs a person. */
static void put_job_hint(const struct lk_cli *cli, const struct lk_reply *job)
{
    struct lk_slice state = lk_field_text(job, "state");
    unsigned long long id = lk_field_number(job, "id");

    if (latchkey_slice_equal(state, LK_SLICE("dead"))) {
        lk_hint(cli, "It was given up. To try again, or never:");
        lk_hint(cli, "latchkey dead retry %llu --why TEXT", id);
        lk_hint(cli, "latchkey dead drop %llu --why TEXT", id);
    } else if (latchkey_slice_equal(state, LK_SLICE("uncertain"))) {
        lk_hint(cli, "It may or may not have happened. Once you know:");
        lk_hint(cli,
                "latchkey resolve --job %llu (--delivered | --again | --drop) "
                "--why TEXT",
                id);
    }
}

/* The history is a list of flat lists: objects, in JSON. */
static void write_job_json(struct lk_cli *cli, const struct lk_reply *job,
                           const struct lk_reply *history)
{
    struct lk_doc doc = {.out = &cli->out};

    lk_doc_object(&doc, NULL);
    for (size_t i = 0; i + 1 < job->count; i += 2) {
        struct lk_reply pair = {.elements = &job->elements[i], .count = 2};

        if (&job->elements[i + 1] != history) {
            lk_doc_members(&doc, &pair);
        }
    }
    lk_doc_array(&doc, "history");
    for (size_t i = 0; history != NULL && i < history->count; i++) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, &history->elements[i]);
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

/* --body and --answer print only those bytes. */
static void show_whole_job(struct lk_cli *cli, const struct lk_reply *job)
{
    const struct lk_reply *history = lk_field(job, "history");
    bool body = lk_args_flag(&cli->args, "body");

    if (cli->json) {
        write_job_json(cli, job, history);
        return;
    }
    if (body || lk_args_flag(&cli->args, "answer")) {
        lk_put_stored(&cli->out,
                      lk_field_text(job, body ? "body" : "answer_body"));
        return;
    }
    put_job_lines(cli, job);
    if (history != NULL && history->type == LK_REPLY_ARRAY &&
        history->count > 0) {
        put_history(cli, history);
    }
    put_job_hint(cli, job);
}

/* One job with its history. LK_EXIT_NO: there is none. */
enum lk_exit lk_job_show(struct lk_cli *cli, const char *text)
{
    const struct lk_reply *job;
    bool bodies =
        lk_args_flag(&cli->args, "body") || lk_args_flag(&cli->args, "answer");
    uint64_t id;
    enum lk_exit result = lk_job_id(cli, text, &id);

    if (result == LK_EXIT_DONE) {
        result = lk_job_fetch(cli, id, bodies, &job);
    }
    if (result == LK_EXIT_DONE) {
        show_whole_job(cli, job);
    }
    return result;
}

/* ==== `latchkey jobs`: the calls that operations have left */

static const struct lk_option jobs_options[] = {
    {"state", "STATE",
     "waiting, leased, uncertain, dead, delivered,\n"
     "dropped, unfinished (the first four) or all"},
    {"target", "NAME", "only those for this target"},
    {"tenant", "TENANT", "only this tenant's"},
    {"reference", "REFERENCE", "only those of this operation"},
    {"provider-id", "TEXT", "only those with this id at the provider"},
    {"older", "DURATION", "only those made longer ago than DURATION (1h)"},
    {"since", "TIME", "only those made at this time or later"},
    {"until", "TIME", "only those made before this time"},
    {"limit", "N", "at most N (100)"},
    {"all", NULL, "without a limit"},
    {"cursor", "CURSOR", "continue where an earlier list ended"},
    {"check", NULL, "exit status 1 if there is any"},
    {"body", NULL, "show: print only the body of the request"},
    {"answer", NULL, "show: print only the body of the last response"},
    {"why", "TEXT", "show: the reason to look, kept in the audit log"},
    {"who", "NAME", "show: who looks (your login name)"},
    {0},
};

const struct lk_manual lk_manual_jobs = {
    "Lists jobs, the oldest first, or shows one with its whole history. A job\n"
    "is a call to a service that an operation left. Jobs that are dead or\n"
    "uncertain are marked with an exclamation mark: they need a person.",
    jobs_options};

/* ---- Lists --------------------------------------------------------------- */

/* Dead or uncertain: the courier does nothing more about it. */
static bool job_needs_person(const struct lk_reply *job, uint64_t now_ms)
{
    struct lk_slice state = lk_field_text(job, "state");

    (void)now_ms;
    return latchkey_slice_equal(state, LK_SLICE("dead")) ||
           latchkey_slice_equal(state, LK_SLICE("uncertain"));
}

/*
 * A page may have fewer rows than it was asked for: --reason is applied here.
 */
static enum lk_exit show_jobs_page(struct lk_listing *list, uint64_t limit)
{
    const struct lk_jobs_filter *filter = list->context;
    const struct lk_reply *rows = NULL;
    enum lk_exit result =
        lk_jobs_page(list->cli, filter, limit, &list->cursor, &rows);

    for (size_t i = 0; rows && i < rows->count; i++) {
        if (lk_jobs_match(filter, &rows->elements[i])) {
            lk_listing_show(list, &rows->elements[i]);
        }
    }
    return result;
}

/* --check: LK_EXIT_NO if there is any, for scripts and cron. */
enum lk_exit lk_jobs_list(struct lk_cli *cli,
                          const struct lk_jobs_filter *filter)
{
    bool check = lk_args_flag(&cli->args, "check");
    struct lk_listing list = {
        .cli = cli,
        .title = "jobs",
        .put_heading = lk_jobs_put_heading,
        .put_row = lk_jobs_put_row,
        .needs_person = job_needs_person,
        .page = show_jobs_page,
        .context = filter,
        .table = LK_JOBS_TABLE(cli),
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_listing_run(&list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    /* A check whose output is mailed prints nothing if there is nothing. */
    if (!check || list.shown > 0) {
        lk_listing_end(&list, "job", "dead or uncertain");
    }
    return check && list.shown > 0 ? LK_EXIT_NO : LK_EXIT_DONE;
}

/* ---- The command --------------------------------------------------------- */

/* Without --state, finished jobs are listed only if one operation or one
 * provider's id is asked for. */
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

static enum lk_exit show_one_job(struct lk_cli *cli)
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
        return show_one_job(cli);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_jobs_filter_read(cli, &filter);
    }
    return result == LK_EXIT_DONE ? lk_jobs_list(cli, &filter) : result;
}
