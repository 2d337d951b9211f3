/* reconcile.c - `latchkey reconcile`: a provider's ledger against ours. */
#include "cli/reconcile.h"
#include "cli/commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const struct lk_option options[] = {
    {"export", "FILE", "what the provider has: CSV or JSON lines"},
    {"key-column", "NAME",
     "its column of keys (idempotency_key); in JSON a\n"
     "member or a JSON Pointer"},
    {"id-column", "NAME", "its column of the provider's ids (id)"},
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
    unsigned shift = 20;
    char *end;

    run->memory = 64;
    if (text != NULL) {
        run->memory = strtoull(text, &end, 10);
        switch (*end | 0x20) {
        case 'k':
            shift = 10;
            break;
        case 'g':
            shift = 30;
            break;
        case 'm':
            break;
        default:
            shift = 0;
        }
        end += *end != '\0' && shift > 0;
        if (*text < '0' || *text > '9' || *end != '\0' ||
            run->memory > UINT64_C(1) << (40 - shift)) {
            run->memory = 0;
        }
    }
    run->memory <<= shift;
    if (run->memory < 1 << 20) {
        return lk_complain_usage(run->cli,
                                 "--memory is \"%s\", but must be a size of 1m "
                                 "or more: 64m, 1g",
                                 text);
    }
    return LK_EXIT_DONE;
}

static enum lk_exit read_pair(struct lk_run *run, const char *text)
{
    struct lk_pair *pair = &run->pairs[run->pair_count];
    const char *equals = strrchr(text, '=');
    struct lk_picks picks = {0};
    enum lk_status status;

    if (run->pair_count == LK_PAIRS_MAX) {
        return lk_complain_usage(run->cli, "--compare is given too often");
    }
    if (equals == NULL || equals == text || equals[1] == '\0') {
        return lk_complain_usage(run->cli,
                                 "--compare is \"%s\", but must be "
                                 "HERE=THERE: amount=amount_cents",
                                 text);
    }
    pair->text = text;
    pair->there = equals + 1;
    pair->here = lk_must_make((size_t)(equals - text) + 1, 1);
    memcpy(pair->here, text, (size_t)(equals - text));
    run->pair_count++;
    status = lk_picks_add(&picks, latchkey_slice(pair->here));
    lk_picks_free(&picks);
    return status == LK_OK
               ? LK_EXIT_DONE
               : lk_complain_usage(run->cli, "\"%s\" is no JSON Pointer",
                                   pair->here);
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

static enum lk_exit read_options(struct lk_run *run)
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

/* ---- The target -----------------------------------------------------------
 */

/* A wrong name would make every line one that only the provider has. */
static enum lk_exit check_target(struct lk_run *run)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "STATUS");
    lk_words_add(&words, run->target);
    result = lk_call(run->cli, &words, &reply);
    if (result == LK_EXIT_DONE &&
        (reply->type != LK_REPLY_ARRAY || reply->count == 0)) {
        lk_complain("there is no target \"%s\"; latchkey target status lists "
                    "them",
                    run->target);
        result = LK_EXIT_USAGE;
    }
    return result;
}

static enum lk_exit probe(struct lk_run *run)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "PROBE");
    lk_words_add(&words, run->target);
    result = lk_call_patiently(run->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(run->cli);
    }
    run->probed = true;
    run->probe_happened = lk_field_number(reply, "happened");
    run->probe_absent = lk_field_number(reply, "absent");
    run->probe_open = lk_field_number(reply, "open");
    return LK_EXIT_DONE;
}

/* ---- Reading the export ---------------------------------------------------
 */

static enum lk_exit complain_status(enum lk_status status)
{
    if (status == LK_TOO_LARGE) {
        lk_complain("too many jobs have one and the same provider's id: give "
                    "more --memory, or --id-column '' if the ids mean nothing");
    } else {
        lk_complain("cannot use temporary files: %s",
                    latchkey_status_text(status));
    }
    return LK_EXIT_FAILED;
}

static bool in_window(const struct lk_run *run, struct lk_slice time)
{
    uint64_t ms;

    if (run->export.columns[LK_COLUMN_TIME].name == NULL ||
        latchkey_timestamp_parse(time, &ms) != LK_OK) {
        return true;
    }
    return ms >= run->since_ms && (run->until_ms == 0 || ms < run->until_ms);
}

static enum lk_exit add_row(struct lk_run *run, const struct lk_row *row)
{
    struct lk_item item = {.place = row->place, .number = row->line};
    enum lk_status status;

    if (row->cells[LK_COLUMN_KEY].len > 0) {
        item.flags |= LK_ITEM_KEY;
        item.key = lk_hash_text(run, row->cells[LK_COLUMN_KEY]);
    }
    if (row->cells[LK_COLUMN_ID].len > 0) {
        item.flags |= LK_ITEM_ID;
        item.id = lk_hash_text(run, row->cells[LK_COLUMN_ID]);
    }
    if (in_window(run, row->cells[LK_COLUMN_TIME])) {
        item.flags |= LK_ITEM_WINDOW;
    }
    for (size_t i = 0; i < run->pair_count; i++) {
        lk_must(lk_value_hash(run->key, row->cells[LK_COLUMN_VALUES + i],
                              &item.values[i]));
    }
    run->coverage.lines++;
    status = lk_reconcile_add(run->reconcile, LK_THERE, &item);
    return status == LK_OK ? LK_EXIT_DONE : complain_status(status);
}

static enum lk_exit read_export(struct lk_run *run)
{
    struct lk_export *export = &run->export;
    struct lk_row row;
    bool more = true;
    enum lk_exit result = LK_EXIT_DONE;

    lk_bar_start(&run->bar, run->cli, "reading");
    while (result == LK_EXIT_DONE) {
        result = lk_export_next(export, &row, &more);
        if (result != LK_EXIT_DONE || !more) {
            break;
        }
        result = row.fault != NULL
                     ? lk_report_malformed(run, row.line, row.fault)
                     : add_row(run, &row);
        if ((run->coverage.lines & 0xfff) == 0) {
            lk_bar_show(&run->bar, export->offset,
                        (uint64_t) export->info.st_size);
        }
    }
    lk_bar_stop(&run->bar);
    return result == LK_EXIT_DONE ? lk_export_check(export) : result;
}

/* ---- What the join finds --------------------------------------------------
 */

static enum lk_exit take_finding(struct lk_run *run, enum lk_class of,
                                 const struct lk_finding *finding)
{
    enum lk_resolution outcome = LK_NOT_TRIED;
    enum lk_exit result = LK_EXIT_DONE;

    run->counts[of]++;
    if (run->apply && (of == LK_CLASS_HAPPENED || of == LK_CLASS_ABSENT)) {
        result = lk_resolve_by_proof(run, of, finding, &outcome);
        run->resolved[of] += outcome == LK_RESOLVED;
        run->refused += outcome == LK_REFUSED;
    }
    if (result == LK_EXIT_DONE && lk_class_is_open(of)) {
        result = lk_report_finding(run, of, finding, outcome);
    }
    return result;
}

static enum lk_status found(void *context, const struct lk_finding *finding)
{
    struct lk_run *run = context;
    enum lk_class of = lk_judge(finding);

    if (finding->meeting == LK_BOTH && finding->by_key) {
        run->coverage.by_key++;
    }
    if (finding->meeting == LK_ONLY_THERE && finding->here == NULL &&
        (finding->there->flags & LK_ITEM_KEY) == 0) {
        run->coverage.keyless++;
    }
    if (of == LK_CLASS_ABSENT) {
        /* Whether that proves anything is known only at the end. */
        return lk_spill_add(&run->pending, 0, finding->here);
    }
    run->failed = take_finding(run, of, finding);
    return run->failed == LK_EXIT_DONE ? LK_OK : LK_REPLY;
}

static void show_progress(void *context, uint64_t done, uint64_t total)
{
    struct lk_run *run = context;

    lk_bar_show(&run->bar, done, total);
}

static enum lk_exit take_pending(struct lk_run *run)
{
    bool proof = lk_absence_fault(&run->coverage) == NULL;
    struct lk_spill_reader reader = {0};
    enum lk_status status = lk_spill_seal(&run->pending);
    enum lk_exit result = LK_EXIT_DONE;
    const void *item = NULL;

    if (status == LK_OK) {
        status = lk_spill_read(&reader, &run->pending, 0);
    }
    while (status == LK_OK && result == LK_EXIT_DONE) {
        struct lk_finding finding = {.meeting = LK_ONLY_HERE};

        status = lk_spill_next(&reader, &item);
        if (status != LK_OK || item == NULL) {
            break;
        }
        finding.here = item;
        result = take_finding(run, proof ? LK_CLASS_ABSENT : LK_CLASS_OPEN,
                              &finding);
    }
    lk_spill_read_end(&reader);
    return status == LK_OK ? result : complain_status(status);
}

/* ---- The command ----------------------------------------------------------
 */

static enum lk_exit open_join(struct lk_run *run)
{
    struct lk_reconcile_setup setup = {
        .memory = run->memory,
        .pairs = (unsigned)run->pair_count,
        .temporary = lk_temporary,
        .found = found,
        .progress = show_progress,
        .context = run,
    };
    enum lk_status status = lk_reconcile_open(&setup, &run->reconcile);
    int fd = -1;

    if (status == LK_OK) {
        status = lk_temporary(NULL, &fd);
    }
    if (status == LK_OK) {
        status = lk_spill_open(&run->pending, fd, lk_item_size(setup.pairs), 1,
                               1 << 16);
    }
    if (status != LK_OK) {
        return complain_status(status);
    }
    if (getrandom(run->key, sizeof(run->key), 0) != (ssize_t)sizeof(run->key)) {
        lk_complain("there is no randomness");
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

static enum lk_exit join(struct lk_run *run)
{
    enum lk_status status;

    lk_bar_start(&run->bar, run->cli, "comparing");
    status = lk_reconcile_run(run->reconcile);
    lk_bar_stop(&run->bar);
    if (run->failed != LK_EXIT_DONE) {
        return run->failed;
    }
    return status == LK_OK ? take_pending(run) : complain_status(status);
}

static enum lk_exit compare(struct lk_run *run)
{
    enum lk_exit result = lk_export_open(run->cli, &run->export);

    run->coverage.has_header =
        !run->export.json && run->export.columns[LK_COLUMN_KEY].index >= 0;
    if (result == LK_EXIT_DONE) {
        result = open_join(run);
    }
    if (result == LK_EXIT_DONE) {
        result = read_export(run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_ledger_read(run);
    }
    return result == LK_EXIT_DONE ? join(run) : result;
}

enum lk_exit lk_run_reconcile(struct lk_cli *cli)
{
    struct lk_run run = {
        .cli = cli,
        .target = cli->args.words[0],
        .export = {.fd = -1},
        .spool = {.fd = -1},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = read_options(&run);

    if (result == LK_EXIT_DONE) {
        result = check_target(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_open(&run);
    }
    if (result == LK_EXIT_DONE && lk_args_flag(&cli->args, "probe")) {
        result = probe(&run);
    }
    if (result == LK_EXIT_DONE && run.export.path != NULL) {
        result = compare(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_end(&run);
    }
    if (run.report != NULL) {
        fclose(run.report);
    }
    lk_reconcile_close(run.reconcile);
    lk_spill_close(&run.pending);
    lk_spool_close(&run.spool);
    lk_export_close(&run.export);
    for (size_t i = 0; i < run.pair_count; i++) {
        free(run.pairs[i].here);
    }
    latchkey_buf_free(&run.lines);
    return result == LK_EXIT_FAILED ? LK_EXIT_UNREACHABLE : result;
}
