/*
 * audit_log.c - `latchkey audit`: what operators did, when and why.
 *
 * Entries have rising ids and are never changed, so an id is a safe cursor. The
 * daemon gives pages of at most PAGE entries; the newest N are found by going
 * backwards first, then they are shown forwards.
 */
#include "cli/commands.h"

#include <time.h>

/* Entries in a page; entries without --limit; pause of --follow. */
enum { PAGE = 1000, DEFAULT_LIMIT = 100, FOLLOW_MS = 1000 };

static const struct lk_option audit_options[] = {
    {"who", "NAME", "only what this user or person did"},
    {"action", "ACTION", "only this action, or those that begin with it"},
    {"reference", "REFERENCE", "only what was done to this operation"},
    {"job", "ID", "only what was done to this job"},
    {"tenant", "TENANT", "only what concerns this tenant"},
    {"since", "TIME", "only what was done at this time or later"},
    {"until", "TIME", "only what was done before this time"},
    {"limit", "N", "at most N (100)"},
    {"all", NULL, "without a limit"},
    {"before", "ID", "only entries before this one"},
    {"after", "ID", "only entries after this one, the oldest of them"},
    {"follow", NULL, "keep running: show new entries as they come"},
    {0},
};

const struct lk_manual lk_manual_audit = {
    "Shows the audit log of the store: what operators did, when and why. It\n"
    "lists the newest entries, the newest last; --after lists the oldest ones\n"
    "after an entry. A TIME is 2026-01-31, 2026-01-31T12:00:00Z, or a\n"
    "duration before now: 2h.",
    audit_options};

/* One run: the filter, how far it got, and where the output goes. */
struct reading {
    struct lk_cli *cli;
    const char *who;
    const char *action;
    const char *tenant;
    struct lk_name name; /* of the operation that --reference names, or empty */
    struct lk_buf text;  /* what it points into */
    uint64_t job;
    uint64_t since_ms;
    uint64_t until_ms;
    uint64_t after;
    uint64_t before;
    uint64_t limit;
    uint64_t shown;
    bool headed;
    struct lk_table table;
    struct lk_doc doc;
};

/* ---- The filter ---------------------------------------------------------- */

/*
 * --reference: the audit log knows operations by their names, so the name has
 * to be found first. reading->name points into reading->text, which is filled
 * before the slices are set, because it moves while it grows. LK_EXIT_NO: there
 * is no such operation.
 */
static enum lk_exit find_audited_name(struct reading *reading)
{
    struct lk_cli *cli = reading->cli;
    const char *reference = lk_args_value(&cli->args, "reference");
    struct lk_slice *parts[] = {&reading->name.tenant, &reading->name.scope,
                                &reading->name.key};
    static const char *const names[] = {"tenant", "scope", "key"};
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;
    size_t at = 0;

    if (reference == NULL) {
        return LK_EXIT_DONE;
    }
    lk_words_add(&words, "FIND");
    lk_words_add(&words, reference);
    result = lk_call(cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type == LK_REPLY_NIL) {
        lk_complain("there is no operation with the reference %s (any more)",
                    reference);
        return LK_EXIT_NO;
    }
    for (size_t i = 0; i < 3; i++) {
        *parts[i] = lk_field_text(reply, names[i]);
        lk_put_raw(&reading->text, *parts[i]);
    }
    for (size_t i = 0; i < 3; at += parts[i++]->len) {
        parts[i]->data = reading->text.data + at;
    }
    return LK_EXIT_DONE;
}

/* An option that is not given leaves its number as it is. */
static enum lk_exit read_numbers(struct reading *reading)
{
    const struct lk_args *args = &reading->cli->args;
    const struct {
        const char *name;
        uint64_t least, most;
        uint64_t *number;
    } numbers[] = {
        {"job", 1, INT64_MAX, &reading->job},
        {"after", 0, INT64_MAX, &reading->after},
        {"before", 1, INT64_MAX, &reading->before},
        {"limit", 1, UINT32_MAX, &reading->limit},
    };
    enum lk_exit result = LK_EXIT_DONE;

    for (size_t i = 0; i < 4 && result == LK_EXIT_DONE; i++) {
        result = lk_args_number(args, numbers[i].name, numbers[i].least,
                                numbers[i].most, numbers[i].number);
    }
    return result;
}

/* Fills `reading` from the options. LK_EXIT_USAGE: it has complained. */
static enum lk_exit read_audit_filter(struct reading *reading)
{
    struct lk_cli *cli = reading->cli;
    const struct lk_args *args = &cli->args;
    bool all = lk_args_flag(args, "all");
    enum lk_exit result;

    if (all && lk_args_flag(args, "limit")) {
        return lk_complain_usage(cli, "--all and --limit exclude each other");
    }
    if (cli->json && lk_args_flag(args, "follow")) {
        return lk_complain_usage(
            cli, "--follow does not end, and --json prints one document");
    }
    reading->limit = all ? UINT64_MAX : DEFAULT_LIMIT;
    reading->who = lk_args_value(args, "who");
    reading->action = lk_args_value(args, "action");
    reading->tenant = lk_args_value(args, "tenant");
    result = read_numbers(reading);
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "since", cli->now_ms, &reading->since_ms);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "until", cli->now_ms, &reading->until_ms);
    }
    return result == LK_EXIT_DONE ? find_audited_name(reading) : result;
}

/* The words of this filter, with these bounds of the ids; 0: none. */
static void add_filter(struct lk_words *words, const struct reading *reading,
                       uint64_t after, uint64_t before)
{
    lk_words_add(words, "AUDIT");
    lk_words_add_text(words, "WHO", reading->who);
    lk_words_add_text(words, "ACTION", reading->action);
    if (reading->name.tenant.len > 0) {
        lk_words_add(words, "TENANT");
        lk_words_add_slice(words, reading->name.tenant);
        lk_words_add(words, "SCOPE");
        lk_words_add_slice(words, reading->name.scope);
        lk_words_add(words, "KEY");
        lk_words_add_slice(words, reading->name.key);
    } else {
        lk_words_add_text(words, "TENANT", reading->tenant);
    }
    lk_words_add_count(words, "JOB", reading->job);
    lk_words_add_count(words, "SINCE", reading->since_ms);
    lk_words_add_count(words, "UNTIL", reading->until_ms);
    lk_words_add_count(words, "AFTER", after);
    lk_words_add_count(words, "BEFORE", before);
}

/* ---- Output -------------------------------------------------------------- */

enum { COLUMNS = 8 };

/* What was done, and to which job. */
static void put_action(struct lk_buf *cell, const struct lk_reply *entry)
{
    uint64_t job = lk_field_number(entry, "job");

    lk_put_text(cell, lk_field_text(entry, "action"));
    if (job != 0) {
        lk_put(cell, " %llu", (unsigned long long)job);
    }
}

/* One entry, as an element of the JSON list or as a row. The heading is printed
 * once, with the first row. */
static void show_entry(struct reading *reading, const struct lk_reply *entry)
{
    static const char *const heading[COLUMNS] = {
        "ID", "TIME", "WHO", "ACTION", "WHY", "TENANT", "KEY", "SCOPE"};
    static const char *const names[] = {"why", "tenant", "key", "scope"};
    struct lk_table *table = &reading->table;

    reading->shown++;
    if (reading->cli->json) {
        lk_doc_object(&reading->doc, NULL);
        lk_doc_members(&reading->doc, entry);
        lk_doc_end_object(&reading->doc);
        return;
    }
    if (!reading->headed) {
        lk_table_heading(table, heading);
        reading->headed = true;
    }
    lk_put(lk_table_cell(table, LK_PLAIN), "%llu",
           (unsigned long long)lk_field_number(entry, "id"));
    lk_put_utc(lk_table_cell(table, LK_PLAIN), lk_field_number(entry, "at-ms"));
    lk_put_text(lk_table_cell(table, LK_PLAIN), lk_field_text(entry, "who"));
    put_action(lk_table_cell(table, LK_PLAIN), entry);
    for (size_t i = 0; i < 4; i++) {
        lk_put_text(lk_table_cell(table, LK_PLAIN),
                    lk_field_text(entry, names[i]));
    }
}

/* ---- Pages --------------------------------------------------------------- */

/* A page of at most `most`. One that is not full is the last. */
static enum lk_exit fetch_audit_page(struct reading *reading,
                                     struct lk_words *words, uint64_t most,
                                     const struct lk_reply **page)
{
    enum lk_exit result;

    lk_words_add_count(words, "LIMIT", most);
    result = lk_call(reading->cli, words, page);
    if (result == LK_EXIT_DONE && (*page)->type != LK_REPLY_ARRAY) {
        result = lk_complain_reply(reading->cli);
    }
    return result;
}

/*
 * Shows entries after *after, the oldest first: at most `limit` of them, and
 * only those before `before` (0: no bound). *after is then the last one shown.
 * Each page is flushed, so that a long log appears as it is read.
 */
static enum lk_exit show_onwards(struct reading *reading, uint64_t *after,
                                 uint64_t before, uint64_t limit)
{
    const struct lk_reply *page;
    enum lk_exit result;
    uint64_t most;
    size_t count;

    do {
        struct lk_words words = {0};

        add_filter(&words, reading, *after, before);
        most = limit > PAGE ? PAGE : limit;
        result = fetch_audit_page(reading, &words, most, &page);
        if (result != LK_EXIT_DONE) {
            return result;
        }
        count = page->count;
        for (size_t i = 0; i < count; i++) {
            show_entry(reading, &page->elements[i]);
            *after = lk_field_number(&page->elements[i], "id");
        }
        limit -= count < limit ? count : limit;
        lk_table_flush(&reading->table, &reading->cli->out);
        result = lk_cli_flush(reading->cli);
    } while (result == LK_EXIT_DONE && count == most && limit > 0);
    return result;
}

/* The id of the first of the newest `limit` entries, 0 if there are fewer: they
 * are shown from there on, the newest last. */
static enum lk_exit find_first(struct reading *reading, uint64_t *first)
{
    uint64_t before = reading->before;
    uint64_t left = reading->limit;

    while (left > 0) {
        struct lk_words words = {0};
        const struct lk_reply *page;
        uint64_t most = left > PAGE ? PAGE : left;
        enum lk_exit result;

        add_filter(&words, reading, 0, before);
        lk_words_add(&words, "NEWEST");
        result = fetch_audit_page(reading, &words, most, &page);
        if (result != LK_EXIT_DONE || page->count < most) {
            *first = 0;
            return result;
        }
        left -= most;
        before = lk_field_number(&page->elements[most - 1], "id");
    }
    *first = before;
    return LK_EXIT_DONE;
}

/* The number of such entries before that one. */
static enum lk_exit count_earlier(struct reading *reading, uint64_t first,
                                  uint64_t *count)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    add_filter(&words, reading, 0, first);
    lk_words_add(&words, "COUNT");
    result = lk_call(reading->cli, &words, &reply);
    if (result == LK_EXIT_DONE) {
        *count = reply->integer < 0 ? 0 : (uint64_t)reply->integer;
    }
    return result;
}

/* The newest entries up to the limit. *last: the last one that was shown, from
 * which --follow goes on. */
static enum lk_exit show_newest(struct reading *reading, uint64_t *last)
{
    uint64_t first = 0;
    uint64_t earlier = 0;
    enum lk_exit result = LK_EXIT_DONE;

    if (reading->limit != UINT64_MAX) {
        result = find_first(reading, &first);
    }
    if (result == LK_EXIT_DONE && first != 0) {
        result = count_earlier(reading, first, &earlier);
    }
    *last = first == 0 ? 0 : first - 1;
    if (result == LK_EXIT_DONE) {
        result = show_onwards(reading, last, reading->before, UINT64_MAX);
    }
    if (result == LK_EXIT_DONE && earlier > 0) {
        lk_hint(reading->cli,
                "the newest %llu; %llu earlier: --all, or --before %llu",
                (unsigned long long)reading->shown, (unsigned long long)earlier,
                (unsigned long long)first);
    }
    return result;
}

/* --after: the oldest ones after an entry. *last as above. */
static enum lk_exit show_after(struct reading *reading, uint64_t *last)
{
    enum lk_exit result;

    *last = reading->after;
    result = show_onwards(reading, last, reading->before, reading->limit);
    if (result == LK_EXIT_DONE && reading->shown == reading->limit) {
        lk_hint(reading->cli, "there may be more: --after %llu",
                (unsigned long long)*last);
    }
    return result;
}

/* Until it is interrupted, or the daemon is gone. */
static enum lk_exit follow_audit(struct reading *reading, uint64_t last)
{
    const struct timespec pause = {FOLLOW_MS / 1000, 0};
    enum lk_exit result = LK_EXIT_DONE;

    while (result == LK_EXIT_DONE && nanosleep(&pause, NULL) == 0) {
        result = show_onwards(reading, &last, 0, UINT64_MAX);
    }
    return result;
}

/* A JSON document is closed only after success: half of one must not look
 * whole. */
static enum lk_exit show_audit(struct reading *reading)
{
    struct lk_cli *cli = reading->cli;
    bool follows = lk_args_flag(&cli->args, "follow");
    uint64_t last = 0;
    enum lk_exit result;

    if (cli->json) {
        lk_doc_object(&reading->doc, NULL);
        lk_doc_array(&reading->doc, "entries");
    }
    result = lk_args_flag(&cli->args, "after") ? show_after(reading, &last)
                                               : show_newest(reading, &last);
    if (result == LK_EXIT_DONE && cli->json) {
        lk_doc_end_array(&reading->doc);
        lk_doc_end_object(&reading->doc);
    }
    if (result == LK_EXIT_DONE && reading->shown == 0 && !follows) {
        lk_hint(cli, "no entries");
    }
    return result == LK_EXIT_DONE && follows ? follow_audit(reading, last)
                                             : result;
}

enum lk_exit lk_run_audit(struct lk_cli *cli)
{
    struct reading reading = {
        .cli = cli,
        .table = {.columns = COLUMNS,
                  .colour = cli->colour,
                  .right = 1,
                  .rigid = 1 << 1,
                  /* What was done and why, before whose it was. */
                  .spare = 1 << 7 | 1 << 6 | 1 << 5 | 1,
                  .legible = 20},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = read_audit_filter(&reading);

    if (result == LK_EXIT_DONE) {
        result = show_audit(&reading);
    }
    latchkey_buf_free(&reading.text);
    return result;
}
