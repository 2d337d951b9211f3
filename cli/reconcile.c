/*
 * reconcile.c - `latchkey reconcile`: compares a provider's export with the
 * jobs of a target. The options, the jobs from the daemon, the lines from the
 * export, and what to do with each finding.
 *
 *   options   read and checked before anything is opened
 *   jobs      page by page from the daemon into the comparison
 *   export    line by line; only hashes and offsets are stored
 *   join      compare.c finds what belongs together and calls take_found()
 *   end       jobs that may be proven absent, the report, the summary
 *
 * Memory stays at about --memory, because both sides go to a temporary file.
 * Files: reconcile_export.c reads the export, compare.c joins and judges,
 * reconcile_report.c reports and resolves.
 */
#include "cli/reconcile.h"
#include "cli/commands.h"
#include "config/config.h"
#include "lib/body.h"
#include "lib/http_syntax.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    AHEAD_MS = 5 * 60 * 1000, /* the provider's clock may be ahead by that */
    PAGE = 1000,              /* jobs read at a time */
    PAGE_WHOLE = 50, /* the first one, with bodies; then by their sizes */
    PAGE_BYTES = 4 << 20,
};

/* ---- Options ------------------------------------------------------------- */

static const struct lk_option reconcile_options[] = {
    {"export", "FILE", "the provider's export: CSV or JSON lines"},
    {"key-column", "NAME",
     "its column of keys (idempotency_key); in JSON a\n"
     "member or a JSON Pointer"},
    {"id-column", "NAME", "its column of the provider's ids (id)"},
    {"match", "HERE=THERE",
     "match by a reference of yours instead of the key:\n"
     "a member (or JSON Pointer) of the job's body,\n"
     "form:NAME or header:NAME, equals a column"},
    {"time-column", "NAME", "its column of times, for --since and --until"},
    {"compare", "HERE=THERE",
     "a member (or JSON Pointer) of the job's body must\n"
     "equal a column (may be repeated)"},
    {"since", "TIME", "only what happened at this time or later"},
    {"until", "TIME", "only what happened before this time"},
    {"complete-until", "TIME",
     "the export has everything that happened before\n"
     "TIME: what is not in it did not happen"},
    {"apply", NULL, "resolve what is proven, do not only report it"},
    {"report", "FILE", "write everything that is not matched, as JSON lines"},
    {"probe", NULL,
     "let the daemon ask the provider about uncertain\n"
     "jobs"},
    {"format", "csv|jsonl", "of the file, if its name does not show it"},
    {"delimiter", "C", "between the fields of CSV (,): a character or tab"},
    {"memory", "SIZE", "how much to use, about (64m)"},
    {0},
};

const struct lk_manual lk_manual_reconcile = {
    "Compares a provider's export with the jobs of a target: what is the "
    "same,\n"
    "what differs, what only one side has. A line in the export proves that "
    "an\n"
    "uncertain job happened; its absence proves that it did not, if\n"
    "--complete-until states that the export is complete. --apply resolves "
    "what\n"
    "is proven. Exit status 1: something is open.",
    reconcile_options};

/* At least 1 MiB; the default is 64 MiB. */
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

/* HERE=THERE, divided at the last "="; `skip` bytes of HERE are a prefix and
 * not its name. pair->here is freed at the end of the run. */
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

/* A member's name or a JSON Pointer; checked now, so that later uses cannot
 * fail. */
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

static enum lk_exit read_compare_pair(struct lk_run *run, const char *text)
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

/* Which columns of the export are read: key or --match, id, time, and one for
 * each --compare. A column that was named must be there. */
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
        result = read_compare_pair(run, text);
    }
    export->column_count = LK_COLUMN_VALUES + run->pair_count;
    for (size_t i = 0; i < run->pair_count; i++) {
        export->columns[LK_COLUMN_VALUES + i] =
            (struct lk_column){run->pairs[i].there, true, -1};
    }
    return result;
}

/* In any case: exports are often called .CSV. */
static bool ends_in(const char *text, const char *ending)
{
    size_t length = strlen(text), tail = strlen(ending);

    return length > tail && strcasecmp(text + length - tail, ending) == 0;
}

/* CSV or JSON lines: by --format, else by the ending of the name. */
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

/* --complete-until must not be in the future: absence would be proven by an
 * export that cannot exist yet. */
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

/* Fills `run` from the command line, before anything is asked or opened.
 * LK_EXIT_USAGE, with a complaint. */
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

/* ---- The target ---------------------------------------------------------- */

/*
 * Is there such a target? A wrong name would make every line one that only the
 * provider has. Also reads how long a call takes to settle, and up to when jobs
 * may have been deleted.
 */
static enum lk_exit check_compared_target(struct lk_run *run)
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
        return LK_EXIT_USAGE;
    }
    if (result == LK_EXIT_DONE) {
        run->settle_ms = lk_field_number(&reply->elements[0], "settle_ms");
        run->coverage.unsettled = run->settle_ms == 0;
        run->forgotten_ms =
            lk_field_number(&reply->elements[0], "forgotten_ms");
    }
    return result;
}

/* --probe: the daemon asks the provider about every uncertain job of the
 * target, and resolves what it learns; only the counts come back. */
static enum lk_exit probe_target(struct lk_run *run)
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

/* ---- The jobs, from the daemon ------------------------------------------- */

static enum lk_exit complain_status(enum lk_status status)
{
    lk_complain("cannot use a temporary file: %s",
                latchkey_status_text(status));
    return LK_EXIT_FAILED;
}

/* Keyed with random bytes of this run, so that no export can be made to
 * collide. */
struct lk_hash128 lk_hash_text(const struct lk_run *run, struct lk_slice text)
{
    struct lk_siphash state;

    lk_siphash_init(&state, run->key);
    lk_siphash_update(&state, text.data, text.len);
    return lk_siphash_final128(&state);
}

/* The value of the one header of that name; empty: there is none, or two. */
static struct lk_slice find_header(struct lk_slice lines, const char *name)
{
    struct lk_slice found = {0};
    size_t count = 0;

    while (lines.len > 0) {
        const char *end = memchr(lines.data, '\n', lines.len);
        size_t length =
            end == NULL ? lines.len : (size_t)(end - lines.data) + 1;
        const char *colon = memchr(lines.data, ':', length);
        size_t before = colon == NULL ? 0 : (size_t)(colon - lines.data);

        if (colon != NULL &&
            lk_compare_lower((struct lk_slice){lines.data, before},
                             latchkey_slice(name)) == 0) {
            found = (struct lk_slice){colon + 1, length - before - 1};
            count++;
        }
        lines = (struct lk_slice){lines.data + length, lines.len - length};
    }
    while (found.len > 0 && (found.data[found.len - 1] == '\n' ||
                             found.data[found.len - 1] == '\r')) {
        found.len--;
    }
    return count == 1 ? lk_trim(found) : (struct lk_slice){0};
}

/* What --match names; empty: the job has none. `scratch` may hold it. */
static struct lk_slice find_match(const struct lk_run *run,
                                  const struct lk_picks *picks, bool json,
                                  const struct lk_reply *job,
                                  struct lk_buf *scratch)
{
    switch (run->match_place) {
    case LK_MATCH_HEADER:
        return find_header(lk_field_text(job, "headers"), run->match.here);
    case LK_MATCH_FORM:
        scratch->len = 0;
        return lk_form_find(lk_field_text(job, "body"),
                            latchkey_slice(run->match.here), scratch) == LK_OK
                   ? lk_trim(latchkey_buf_slice(scratch))
                   : (struct lk_slice){0};
    default:
        return json ? lk_trim(picks->picks[run->pair_count].value)
                    : (struct lk_slice){0};
    }
}

/* The values of its body that are compared, and what it meets lines by. */
static void take_values(struct lk_run *run, struct lk_picks *picks,
                        const struct lk_reply *job, struct lk_item *item,
                        struct lk_slice *texts, struct lk_buf *scratch)
{
    bool json = lk_picks_read(picks, lk_field_text(job, "body")) == LK_OK;
    struct lk_slice meets = texts[LK_TEXT_KEY];

    for (size_t i = 0; i < run->pair_count; i++) {
        struct lk_slice *value = &texts[LK_TEXT_VALUES + i];

        *value = json ? picks->picks[i].value : (struct lk_slice){0};
        lk_must(lk_value_hash(run->key, *value, &item->values[i]));
    }
    if (run->match.text != NULL) {
        meets = find_match(run, picks, json, job, scratch);
        texts[LK_TEXT_MATCH] = meets;
    }
    if (meets.len > 0) {
        item->flags |= LK_ITEM_KEY;
        item->key = lk_hash_text(run, meets);
    }
}

/* Whether the job is of the time that is compared, whether a complete export
 * must have it (its last call has ended, and settled, before --complete-
 * until), and whether it is too late for the export. */
static uint16_t time_flags(const struct lk_run *run, const struct lk_reply *job)
{
    uint64_t created_ms = lk_field_number(job, "created_ms");
    uint64_t ended_ms = lk_field_number(job, "ended_ms");
    uint64_t last_ms = ended_ms > created_ms ? ended_ms : created_ms;
    uint16_t flags = 0;

    if (created_ms >= run->since_ms &&
        (run->until_ms == 0 || created_ms < run->until_ms)) {
        flags |= LK_ITEM_WINDOW;
    }
    if (run->complete_ms != 0) {
        flags |= last_ms >= run->complete_ms ? LK_ITEM_LATER : 0;
        flags |=
            last_ms + run->settle_ms < run->complete_ms ? LK_ITEM_SETTLED : 0;
    }
    return flags;
}

/* Adds one job of the daemon. The comparison copies what it needs. */
static enum lk_exit add_compared_job(struct lk_run *run, struct lk_picks *picks,
                                     const struct lk_reply *job)
{
    static const char *const names[] = {"reference", "tenant", "name",
                                        "downstream_key", "provider_id"};
    struct lk_slice texts[LK_TEXTS] = {{0}};
    struct lk_item item = {
        .number = lk_field_number(job, "id"),
        .attempt = (uint32_t)lk_field_number(job, "attempts"),
        .flags = time_flags(run, job),
    };
    struct lk_buf scratch = {0};
    enum lk_job_state state;
    enum lk_status status;

    if (!lk_job_state_parse(lk_field_text(job, "state"), &state)) {
        return lk_complain_reply(run->cli);
    }
    item.state = (uint16_t)state;
    for (size_t i = 0; i < LK_TEXT_MATCH; i++) {
        texts[i] = lk_field_text(job, names[i]);
    }
    if (texts[LK_TEXT_ID].len > 0) {
        item.flags |= LK_ITEM_ID;
        item.id = lk_hash_text(run, texts[LK_TEXT_ID]);
    }
    take_values(run, picks, job, &item, texts, &scratch);
    status = lk_comparison_add_job(run->comparison, &item, texts,
                                   LK_TEXT_VALUES + run->pair_count);
    latchkey_buf_free(&scratch);
    run->jobs++;
    return status == LK_OK ? LK_EXIT_DONE : complain_status(status);
}

/* As many as fit, by what the last page took. */
static uint64_t next_limit(const struct lk_reply *rows, uint64_t limit)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < rows->count; i++) {
        const struct lk_reply *job = &rows->elements[i];

        for (size_t k = 0; k < job->count; k++) {
            bytes += job->elements[k].text.len + 64;
        }
    }
    if (rows->count > 0) {
        limit = PAGE_BYTES / (bytes / rows->count + 1);
    }
    return limit < 1 ? 1 : limit > PAGE ? PAGE : limit;
}

/* Reads all jobs of the target, page by page; with bodies only if --compare
 * or --match needs them. */
static enum lk_exit read_jobs(struct lk_run *run)
{
    struct lk_jobs_filter filter = {
        .target = run->target,
        .whole = run->pair_count > 0 || run->match.text != NULL,
    };
    struct lk_picks picks = {0};
    uint64_t limit = filter.whole ? PAGE_WHOLE : PAGE;
    uint64_t cursor = 0;
    enum lk_exit result;

    for (size_t i = 0; i < run->pair_count; i++) {
        /* Looked at when the options were read. */
        lk_must(lk_picks_add(&picks, latchkey_slice(run->pairs[i].here)));
    }
    if (run->match.text != NULL && run->match_place == LK_MATCH_BODY) {
        lk_must(lk_picks_add(&picks, latchkey_slice(run->match.here)));
    }
    do {
        const struct lk_reply *rows = NULL;

        result = lk_jobs_page(run->cli, &filter, limit, &cursor, &rows);
        for (size_t i = 0; result == LK_EXIT_DONE && i < rows->count; i++) {
            result = add_compared_job(run, &picks, &rows->elements[i]);
        }
        if (result == LK_EXIT_DONE && filter.whole) {
            limit = next_limit(rows, limit);
        }
    } while (result == LK_EXIT_DONE && cursor != 0);
    lk_picks_free(&picks);
    return result;
}

/* ---- Reading the export -------------------------------------------------- */

/* A line whose time is not known counts as of the time that is compared, and
 * never as older than the jobs that are stored. */
static uint16_t line_flags(const struct lk_run *run, struct lk_slice time)
{
    uint16_t flags = 0;
    uint64_t ms;

    if (run->export.columns[LK_COLUMN_TIME].name == NULL ||
        latchkey_timestamp_parse(time, &ms) != LK_OK) {
        return LK_ITEM_WINDOW;
    }
    if (ms >= run->since_ms && (run->until_ms == 0 || ms < run->until_ms)) {
        flags |= LK_ITEM_WINDOW;
    }
    if (run->forgotten_ms != 0 && ms <= run->forgotten_ms + AHEAD_MS) {
        flags |= LK_ITEM_OLDER;
    }
    return flags;
}

/* Adds one line of the export: hashes only, its texts are read again from the
 * file when it is reported. */
static enum lk_exit add_export_row(struct lk_run *run, const struct lk_row *row)
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
    item.flags |= line_flags(run, row->cells[LK_COLUMN_TIME]);
    for (size_t i = 0; i < run->pair_count; i++) {
        lk_must(lk_value_hash(run->key, row->cells[LK_COLUMN_VALUES + i],
                              &item.values[i]));
    }
    run->coverage.lines++;
    status = lk_comparison_add_line(run->comparison, &item);
    return status == LK_OK ? LK_EXIT_DONE : complain_status(status);
}

/* Reads the export once. The file must be the same at the end, else
 * LK_EXIT_FAILED. */
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
                     : add_export_row(run, &row);
        if ((run->coverage.lines & 0xfff) == 0) {
            lk_bar_show(&run->bar, export->offset,
                        (uint64_t) export->info.st_size);
        }
    }
    lk_bar_stop(&run->bar);
    run->coverage.unended = export->unended;
    return result == LK_EXIT_DONE ? lk_export_check(export) : result;
}

/* ---- What the join finds ------------------------------------------------- */

/* Counts a finding, resolves its job if it is proof and --apply was given,
 * and reports it if it is open. */
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

/*
 * A key of ours is of one job. A reference may be of several, some of which may
 * be gone with their operations: only a line from after that, or any while no
 * job is gone, must be of a job that is here. And a job that was never called
 * has no line.
 */
static bool is_doubtful_match(const struct lk_run *run,
                              const struct lk_finding *finding)
{
    bool timed = run->export.columns[LK_COLUMN_TIME].name != NULL;
    bool others_gone = run->forgotten_ms != 0 &&
                       (!timed || (finding->there->flags & LK_ITEM_OLDER) != 0);

    return run->match.text != NULL && finding->by_key &&
           (others_gone || finding->here->attempt == 0);
}

/*
 * A line whose downstream key no job has belongs to another system: keys are
 * unique, and come back as they were sent. A reference may come back cut or
 * spelled differently, so such a line may belong to any job. A line from before
 * --since belongs to no job that is compared; with --until, it may also be from
 * after that time.
 */
static bool is_strange_line(const struct lk_run *run,
                            const struct lk_finding *finding)
{
    return run->match.text != NULL && finding->meeting == LK_ONLY_THERE &&
           finding->here == NULL &&
           (finding->there->flags & LK_ITEM_KEY) != 0 &&
           (finding->there->flags & LK_ITEM_SHARED) == 0 &&
           ((finding->there->flags & LK_ITEM_WINDOW) != 0 ||
            run->until_ms != 0);
}

/* A job that is not in the export, now that all lines are known: did not happen
 * if the absence is proven, else still uncertain. */
static enum lk_status take_deferred(struct lk_run *run,
                                    const struct lk_finding *finding)
{
    run->failed = take_finding(
        run, run->proven ? LK_CLASS_ABSENT : LK_CLASS_OPEN, finding);
    return run->failed == LK_EXIT_DONE ? LK_OK : LK_REPLY;
}

/* `found` of the comparison. LK_REPLY: run->failed says what was wrong. */
static enum lk_status take_found(void *context,
                                 const struct lk_finding *finding)
{
    struct lk_run *run = context;
    enum lk_class of = lk_judge(finding);

    if (run->ended) {
        return take_deferred(run, finding);
    }
    if (of == LK_CLASS_HAPPENED && is_doubtful_match(run, finding)) {
        of = LK_CLASS_AMBIGUOUS;
    }
    if (finding->meeting == LK_BOTH && finding->by_key) {
        run->coverage.by_key++;
    }
    if (finding->meeting == LK_ONLY_THERE && finding->here == NULL &&
        (finding->there->flags & LK_ITEM_KEY) == 0) {
        run->coverage.keyless++;
    }
    run->coverage.strange += is_strange_line(run, finding);
    run->coverage.missing += of == LK_CLASS_HERE;
    if (of == LK_CLASS_ABSENT) {
        /* Whether that proves anything is known only at the end. */
        return lk_comparison_defer(run->comparison, finding->here);
    }
    run->failed = take_finding(run, of, finding);
    return run->failed == LK_EXIT_DONE ? LK_OK : LK_REPLY;
}

static void show_progress(void *context, uint64_t done, uint64_t total)
{
    struct lk_run *run = context;

    lk_bar_show(&run->bar, done, total);
}

/* ---- The command --------------------------------------------------------- */

/* SQLite would silently take another folder. /tmp is often a file system in
 * memory, which would defeat the purpose. */
static enum lk_exit check_folder(void)
{
    const char *named = getenv("TMPDIR");
    const char *folder = named != NULL && *named != '\0'        ? named
                         : access("/var/tmp", W_OK | X_OK) == 0 ? "/var/tmp"
                                                                : "/tmp";

    if (access(folder, W_OK | X_OK) == 0) {
        return LK_EXIT_DONE;
    }
    lk_complain("cannot make a temporary file in %s: %s; TMPDIR names "
                "another folder",
                folder, strerror(errno));
    return LK_EXIT_FAILED;
}

/* The random key must be there before the first text is hashed. */
static enum lk_exit open_comparison(struct lk_run *run)
{
    struct lk_comparison_setup setup = {
        .memory = run->memory,
        .pairs = (unsigned)run->pair_count,
        .shared_keys = run->match.text != NULL,
        .found = take_found,
        .progress = show_progress,
        .context = run,
    };
    enum lk_exit result = check_folder();
    enum lk_status status = LK_OK;

    if (result == LK_EXIT_DONE) {
        status = lk_comparison_open(&setup, &run->comparison);
    }
    if (status != LK_OK) {
        return complain_status(status);
    }
    if (result == LK_EXIT_DONE &&
        getrandom(run->key, sizeof(run->key), 0) != (ssize_t)sizeof(run->key)) {
        lk_complain("cannot get random bytes");
        result = LK_EXIT_FAILED;
    }
    return result;
}

/* All that is neither here nor there decides whether absence proves anything,
 * so the jobs that may be proven absent come last. */
static enum lk_exit join_sides(struct lk_run *run)
{
    enum lk_status status;

    lk_bar_start(&run->bar, run->cli, "comparing");
    status = lk_comparison_run(run->comparison);
    lk_bar_stop(&run->bar);
    if (status == LK_OK) {
        run->ended = true;
        run->proven = lk_absence_fault(&run->coverage) == NULL;
        status = lk_comparison_take_deferred(run->comparison);
    }
    if (run->failed != LK_EXIT_DONE) {
        return run->failed;
    }
    return status == LK_OK ? LK_EXIT_DONE : complain_status(status);
}

/* The order matters: the export's header first (a wrong file costs nothing),
 * then the jobs, then the target again (what was deleted in the meantime
 * counts as deleted), then the lines. */
static enum lk_exit compare_export(struct lk_run *run)
{
    enum lk_exit result = lk_export_open(run->cli, &run->export);

    run->coverage.has_header =
        !run->export.json && run->export.columns[LK_COLUMN_KEY].index >= 0;
    if (result == LK_EXIT_DONE) {
        result = open_comparison(run);
    }
    if (result == LK_EXIT_DONE) {
        result = read_jobs(run);
    }
    /* What was forgotten while it was read counts as well. */
    if (result == LK_EXIT_DONE) {
        result = check_compared_target(run);
    }
    lk_run_disconnect(run);
    if (result == LK_EXIT_DONE) {
        result = read_export(run);
    }
    return result == LK_EXIT_DONE ? join_sides(run) : result;
}

/* LK_EXIT_NO: something is open. A run that failed halfway is
 * LK_EXIT_UNREACHABLE, like any other that could not decide. */
enum lk_exit lk_run_reconcile(struct lk_cli *cli)
{
    struct lk_run run = {
        .cli = cli,
        .target = cli->args.words[0],
        .export = {.fd = -1},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = read_options(&run);

    if (result == LK_EXIT_DONE) {
        result = check_compared_target(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_open(&run);
    }
    if (result == LK_EXIT_DONE && lk_args_flag(&cli->args, "probe")) {
        result = probe_target(&run);
    }
    if (result == LK_EXIT_DONE && run.export.path != NULL) {
        result = compare_export(&run);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_report_end(&run);
    }
    if (run.report != NULL) {
        fclose(run.report);
    }
    lk_comparison_close(run.comparison);
    lk_export_close(&run.export);
    for (size_t i = 0; i < run.pair_count; i++) {
        free(run.pairs[i].here);
    }
    free(run.match.here);
    latchkey_buf_free(&run.lines);
    return result == LK_EXIT_FAILED ? LK_EXIT_UNREACHABLE : result;
}
