/* reconcile_options.c - what `latchkey reconcile` was asked to do. */
#include "cli/commands.h"
#include "cli/reconcile.h"
#include "config/config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct lk_option options[] = {
    {"export", "FILE", "what the provider has: CSV or JSON lines"},
    {"key-column", "NAME",
     "its column of keys (idempotency_key); in JSON a\n"
     "member or a JSON Pointer"},
    {"id-column", "NAME", "its column of the provider's ids (id)"},
    {"match", "HERE=THERE",
     "meet by a reference of yours in place of the key:\n"
     "a member (or JSON Pointer) of the job's body,\n"
     "form:NAME or header:NAME, equals a column"},
    {"time-column", "NAME", "its column of times, for --since and --until"},
    {"compare", "HERE=THERE",
     "a member (or JSON Pointer) of the job's body must\n"
     "equal a column (may be repeated)"},
    {"since", "TIME", "only what is from this time on"},
    {"until", "TIME", "only what is from before this time"},
    {"complete-until", "TIME",
     "the export has all that happened before: then\n"
     "what is not in it did not happen"},
    {"apply", NULL, "resolve what is proven, not only say it"},
    {"report", "FILE", "write all that is not matched, as JSON lines"},
    {"probe", NULL,
     "have the daemon ask the provider about what is\nuncertain"},
    {"format", "csv|jsonl", "of the file, if its name does not tell"},
    {"delimiter", "C", "between the fields of CSV (,): a character or tab"},
    {"memory", "SIZE", "how much to use, about (64m)"},
    {0},
};

const struct lk_manual lk_manual_reconcile = {
    "Compares what a provider says it has with the jobs of a target: what is\n"
    "the same, what differs, what only one side has. What is uncertain here "
    "is\n"
    "proven by being there, and by not being there if --complete-until says\n"
    "that it would be; --apply resolves it. Exit status 1: something is open.",
    options};

/* ---- Options --------------------------------------------------------------
 */

static enum lk_exit read_memory(struct lk_run *run)
{
    const char *text = lk_args_value(&run->cli->args, "memory");
    uint64_t bytes = 64 << 20;

    if (text != NULL && (!lk_size_read(text, &bytes) || bytes < 1 << 20)) {
        return lk_complain_usage(run->cli,
                                 "--memory is \"%s\", but must be a size of 1m "
                                 "or more: 64m, 1g",
                                 text);
    }
    run->memory = bytes;
    return LK_EXIT_DONE;
}

/* HERE=THERE; `skip` bytes of HERE are not its name. */
static enum lk_exit split_pair(struct lk_run *run, const char *option,
                               const char *text, size_t skip,
                               struct lk_pair *pair)
{
    const char *equals = strrchr(text, '=');

    if (equals == NULL || equals <= text + skip || equals[1] == '\0') {
        return lk_complain_usage(run->cli,
                                 "--%s is \"%s\", but must be "
                                 "HERE=THERE: amount=amount_cents",
                                 option, text);
    }
    pair->text = text;
    pair->there = equals + 1;
    pair->here = lk_must_make((size_t)(equals - text) + 1, 1);
    memcpy(pair->here, text + skip, (size_t)(equals - text) - skip);
    return LK_EXIT_DONE;
}

static enum lk_exit check_pointer(struct lk_run *run, const char *text)
{
    struct lk_picks picks = {0};
    enum lk_status status = lk_picks_add(&picks, latchkey_slice(text));

    lk_picks_free(&picks);
    return status == LK_OK
               ? LK_EXIT_DONE
               : lk_complain_usage(run->cli, "\"%s\" is not a JSON Pointer",
                                   text);
}

static enum lk_exit read_pair(struct lk_run *run, const char *text)
{
    struct lk_pair *pair = &run->pairs[run->pair_count];
    enum lk_exit result;

    if (run->pair_count == LK_PAIRS_MAX) {
        return lk_complain_usage(run->cli, "--compare is given too often");
    }
    result = split_pair(run, "compare", text, 0, pair);
    if (result == LK_EXIT_DONE) {
        run->pair_count++;
        result = check_pointer(run, pair->here);
    }
    return result;
}

/* The column of keys is then that of the reference. */
static enum lk_exit read_match(struct lk_run *run)
{
    static const struct {
        const char *prefix;
        enum lk_match_place place;
    } places[] = {{"header:", LK_MATCH_HEADER}, {"form:", LK_MATCH_FORM}};
    const char *text = lk_args_value(&run->cli->args, "match");
    size_t skip = 0;
    enum lk_exit result;

    if (text == NULL) {
        return LK_EXIT_DONE;
    }
    if (lk_args_value(&run->cli->args, "key-column") != NULL) {
        return lk_complain_usage(run->cli, "--match takes the place of "
                                           "--key-column");
    }
    for (size_t i = 0; i < 2; i++) {
        if (strncmp(text, places[i].prefix, strlen(places[i].prefix)) == 0) {
            skip = strlen(places[i].prefix);
            run->match_place = places[i].place;
        }
    }
    result = split_pair(run, "match", text, skip, &run->match);
    if (result == LK_EXIT_DONE && run->match_place == LK_MATCH_BODY) {
        result = check_pointer(run, run->match.here);
    }
    run->export.columns[LK_COLUMN_KEY] =
        (struct lk_column){run->match.there, true, -1};
    return result;
}

/* An empty name: there is no such column. */
static void name_column(struct lk_run *run, size_t column, const char *option,
                        const char *otherwise)
{
    const char *name = lk_args_value(&run->cli->args, option);
    struct lk_column *to = &run->export.columns[column];

    to->needed = name != NULL && *name != '\0';
    to->name = name == NULL ? otherwise : to->needed ? name : NULL;
}

static enum lk_exit read_columns(struct lk_run *run)
{
    struct lk_export *export = &run->export;
    const char *text;
    size_t at = 0;
    enum lk_exit result = LK_EXIT_DONE;

    name_column(run, LK_COLUMN_KEY, "key-column", "idempotency_key");
    name_column(run, LK_COLUMN_ID, "id-column", "id");
    name_column(run, LK_COLUMN_TIME, "time-column", NULL);
    if (export->columns[LK_COLUMN_KEY].name == NULL &&
        export->columns[LK_COLUMN_ID].name == NULL) {
        return lk_complain_usage(run->cli, "neither a key nor an id is left to "
                                           "compare by");
    }
    result = read_match(run);
    while (result == LK_EXIT_DONE &&
           (text = lk_args_next(&run->cli->args, "compare", &at)) != NULL) {
        result = read_pair(run, text);
    }
    export->column_count = LK_COLUMN_VALUES + run->pair_count;
    for (size_t i = 0; i < run->pair_count; i++) {
        export->columns[LK_COLUMN_VALUES + i] =
            (struct lk_column){run->pairs[i].there, true, -1};
    }
    return result;
}

static bool ends_in(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);

    return length > tail && strcasecmp(text + length - tail, ending) == 0;
}

static enum lk_exit read_format(struct lk_run *run)
{
    const char *format = lk_args_value(&run->cli->args, "format");
    const char *delimiter = lk_args_value(&run->cli->args, "delimiter");
    const char *path = run->export.path;

    if (format == NULL) {
        format = ends_in(path, ".csv")                                 ? "csv"
                 : ends_in(path, ".jsonl") || ends_in(path, ".ndjson") ? "jsonl"
                                                                       : NULL;
    }
    if (format == NULL ||
        (strcmp(format, "csv") != 0 && strcmp(format, "jsonl") != 0)) {
        return lk_complain_usage(run->cli,
                                 "say what %s is: --format csv or "
                                 "--format jsonl",
                                 path);
    }
    run->export.json = strcmp(format, "jsonl") == 0;
    run->export.csv.delimiter = ',';
    if (delimiter != NULL) {
        bool tab = strcmp(delimiter, "tab") == 0;

        if (!tab &&
            (strlen(delimiter) != 1 || strchr("\"\r\n", *delimiter) != NULL)) {
            return lk_complain_usage(
                run->cli, "--delimiter must be one character, or tab");
        }
        run->export.csv.delimiter = tab ? '\t' : *delimiter;
    }
    return LK_EXIT_DONE;
}

static enum lk_exit read_times(struct lk_run *run)
{
    const struct lk_args *args = &run->cli->args;
    uint64_t now_ms = run->cli->now_ms;
    enum lk_exit result = lk_args_time(args, "since", now_ms, &run->since_ms);

    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "until", now_ms, &run->until_ms);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_args_time(args, "complete-until", now_ms, &run->complete_ms);
    }
    if (result == LK_EXIT_DONE && run->complete_ms > now_ms) {
        result = lk_complain_usage(run->cli, "--complete-until is in the "
                                             "future: no export has that");
    }
    return result;
}

enum lk_exit lk_run_options(struct lk_run *run)
{
    enum lk_exit result;

    run->export.path = lk_args_value(&run->cli->args, "export");
    run->report_path = lk_args_value(&run->cli->args, "report");
    run->apply = lk_args_flag(&run->cli->args, "apply");
    if (run->export.path == NULL && !lk_args_flag(&run->cli->args, "probe")) {
        return lk_complain_usage(run->cli, "say what to compare with: --export "
                                           "FILE, --probe or both");
    }
    result = read_times(run);
    run->coverage.complete = run->complete_ms != 0;
    if (result == LK_EXIT_DONE) {
        result = read_memory(run);
    }
    if (result == LK_EXIT_DONE && run->export.path != NULL) {
        result = read_format(run);
    }
    return result == LK_EXIT_DONE ? read_columns(run) : result;
}
