/*
 * list.c - lists that come in pages; `latchkey list`: operations, and which of
 * them need a person.
 *
 * struct lk_listing is the part that operations and jobs share: limits, pages,
 * table or JSON. Its functions say what a page and a row are. The cursor of the
 * last page is printed, so that a list can go on there.
 */
#include "cli/commands.h"
#include "lib/machine.h"
#include "lib/time.h"

#include <time.h>

/* ==== Shows what comes in pages, as a table or as one JSON document */

enum { DEFAULT_LIMIT = 100 };

/* --limit, --all and --cursor. list->most is the room on the screen; 0: no such
 * bound. */
static enum lk_exit read_limits(struct lk_listing *list)
{
    const struct lk_args *args = &list->cli->args;
    enum lk_exit result;

    if (lk_args_flag(args, "all") && lk_args_flag(args, "limit")) {
        return lk_complain_usage(list->cli,
                                 "--all and --limit exclude each other");
    }
    list->left = lk_args_flag(args, "all") ? UINT64_MAX : DEFAULT_LIMIT;
    result = lk_args_number(args, "limit", 1, UINT32_MAX, &list->left);
    if (list->most != 0 && list->left > list->most) {
        list->left = list->most;
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_number(args, "cursor", 0, INT64_MAX, &list->cursor);
    }
    return result;
}

/* One row. The heading comes with the first one, so an empty list has none. */
void lk_listing_show(struct lk_listing *list, const struct lk_reply *row)
{
    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_members(&list->doc, row);
        lk_doc_end_object(&list->doc);
    } else {
        if (list->shown == 0) {
            list->put_heading(&list->table);
        }
        list->put_row(&list->table, row, list->cli->now_ms);
    }
    list->shown++;
    list->left -= list->left > 0;
    list->alarms += list->needs_person(row, list->cli->now_ms);
}

/* At most as many rows as are left; they are printed before the next page is
 * asked for. */
static enum lk_exit show_next_page(struct lk_listing *list)
{
    enum lk_exit result = list->page(
        list, list->left > LK_LISTING_PAGE ? LK_LISTING_PAGE : list->left);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_table_flush(&list->table, &list->cli->out);
    return lk_cli_flush(list->cli);
}

/* All pages up to the limit. list->cursor is then 0 at the end of the list, or
 * where to go on. */
enum lk_exit lk_listing_run(struct lk_listing *list)
{
    enum lk_exit result = read_limits(list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_array(&list->doc, list->title);
    }
    /* A page may be short, even empty, and still not be the last one. */
    do {
        result = show_next_page(list);
    } while (result == LK_EXIT_DONE && list->cursor != 0 && list->left > 0);
    if (result == LK_EXIT_DONE && list->cli->json) {
        lk_doc_end_array(&list->doc);
        lk_doc_integer(&list->doc, "next-cursor", (int64_t)list->cursor);
        lk_doc_end_object(&list->doc);
    }
    return result;
}

/* The line below the table: how many, how many of them are marked, and how to
 * go on. */
void lk_listing_end(const struct lk_listing *list, const char *noun,
                    const char *alarm)
{
    lk_hint(list->cli, "%llu %s%s, %llu %s%s", (unsigned long long)list->shown,
            noun, list->shown == 1 ? "" : "s", (unsigned long long)list->alarms,
            alarm, list->cursor == 0 ? "" : "; there are more:");
    if (list->cursor != 0) {
        lk_hint(list->cli, "--all, or go on with --cursor %llu",
                (unsigned long long)list->cursor);
    }
}

/* ==== `latchkey list`: operations, and which of them need a person */

enum { WATCH_MS = 2000 };

static const struct lk_option list_options[] = {
    {"state", "STATE",
     "accepted, in_progress, uncertain, completed or\nreleased"},
    {"attention", NULL, "only those that need a person"},
    {"tenant", "TENANT", "only this tenant's"},
    {"scope", "SCOPE", "only those of this scope (\"POST /pay\")"},
    {"older", "DURATION", "only those claimed longer ago than DURATION (1h)"},
    {"since", "TIME", "only those claimed at this time or later"},
    {"until", "TIME", "only those claimed before this time"},
    {"newest", NULL, "the newest first"},
    {"watch", "[=DURATION]", "again and again, every 2s"},
    {"limit", "N", "at most N (100)"},
    {"all", NULL, "without a limit"},
    {"cursor", "CURSOR", "continue where an earlier list ended"},
    {0},
};

const struct lk_manual lk_manual_list = {
    "Lists operations, the oldest first. Those that need a person are marked\n"
    "with an exclamation mark: their outcome is unknown, they are in progress\n"
    "for an hour or longer, or a job of theirs is dead or uncertain. A TIME "
    "is\n"
    "2026-01-31, 2026-01-31T12:00:00Z, or a duration before now: 2h.",
    list_options};

/* The words of the states are those of the state machine. */
static enum lk_exit check_state(const struct lk_cli *cli)
{
    const char *state = lk_args_value(&cli->args, "state");
    enum lk_state parsed;

    if (state == NULL || (lk_state_parse(latchkey_slice(state), &parsed) &&
                          parsed != LK_STATE_ABSENT)) {
        return LK_EXIT_DONE;
    }
    return lk_complain_usage(cli,
                             "--state is \"%s\", but must be accepted, "
                             "in_progress, uncertain, completed or released",
                             state);
}

/* ---- Output -------------------------------------------------------------- */

enum { COLUMNS = 9 };

static void put_heading(struct lk_table *table)
{
    static const char *const names[COLUMNS] = {
        "  REFERENCE", "STATE",  "CLAIMED", "AGE", "ATTEMPT",
        "ATTENTION",   "TENANT", "SCOPE",   "KEY"};

    lk_table_heading(table, names);
}

/* Milliseconds; 0 if the daemon's clock is ahead of this one. */
static uint64_t age_of_operation(const struct lk_reply *operation,
                                 const char *since, uint64_t now_ms)
{
    uint64_t ms = lk_field_number(operation, since);

    return now_ms > ms ? now_ms - ms : 0;
}

static void put_job_count(struct lk_buf *out, uint64_t count, const char *how)
{
    if (count > 0) {
        lk_put(out, "%s%llu job%s %s", out->len == 0 ? "" : ", ",
               (unsigned long long)count, count == 1 ? "" : "s", how);
    }
}

/* Why a person should look at it; nothing: no one needs to. */
static void put_attention(struct lk_buf *out, const struct lk_reply *operation,
                          uint64_t now_ms)
{
    struct lk_slice state = lk_field_text(operation, "state");
    uint64_t age_ms = age_of_operation(operation, "claimed-ms", now_ms);

    if (latchkey_slice_equal(state, LK_SLICE("uncertain"))) {
        lk_put(out, "uncertain for ");
        lk_put_duration(out, age_of_operation(operation, "since-ms", now_ms),
                        1);
    } else if (latchkey_slice_equal(state, LK_SLICE("in_progress")) &&
               age_ms >= LK_LONG_MS) {
        lk_put(out, "running for ");
        lk_put_duration(out, age_ms, 1);
    }
    put_job_count(out, lk_field_number(operation, "jobs-dead"), "dead");
    put_job_count(out, lk_field_number(operation, "jobs-uncertain"),
                  "uncertain");
}

/* It does if there is a reason to show. */
static bool operation_needs_person(const struct lk_reply *operation,
                                   uint64_t now_ms)
{
    struct lk_buf why = {0};
    bool needs;

    put_attention(&why, operation, now_ms);
    needs = why.len > 0;
    latchkey_buf_free(&why);
    return needs;
}

/* One cell for each column of the heading; "!" marks what needs a person. */
static void put_operation_row(struct lk_table *table,
                              const struct lk_reply *operation, uint64_t now_ms)
{
    static const char *const names[] = {"tenant", "scope", "key"};
    struct lk_slice state = lk_field_text(operation, "state");
    bool marked = operation_needs_person(operation, now_ms);
    enum lk_put_colour colour = marked ? LK_ALARM : lk_operation_colour(state);
    struct lk_buf *cell = lk_table_cell(table, colour);

    lk_put(cell, "%s", marked ? "! " : "  ");
    lk_put_text(cell, lk_field_text(operation, "reference"));
    lk_put_text(lk_table_cell(table, colour), state);
    lk_put_utc(lk_table_cell(table, LK_PLAIN),
               lk_field_number(operation, "claimed-ms"));
    lk_put_duration(lk_table_cell(table, LK_PLAIN),
                    age_of_operation(operation, "claimed-ms", now_ms), 1);
    lk_put(lk_table_cell(table, LK_PLAIN), "%llu",
           (unsigned long long)lk_field_number(operation, "attempt"));
    put_attention(lk_table_cell(table, colour), operation, now_ms);
    for (size_t i = 0; i < 3; i++) {
        lk_put_text(lk_table_cell(table, LK_PLAIN),
                    lk_field_text(operation, names[i]));
    }
}

/* ---- Pages --------------------------------------------------------------- */

/* The options of the list, as they are sent. */
struct filter {
    const char *state;
    const char *tenant;
    const char *scope;
    uint64_t older_ms;
    uint64_t since_ms;
    uint64_t until_ms;
    bool attention;
    bool newest;
};

/*
 * Times before now are computed each time: --watch calls it for each refresh.
 */
static enum lk_exit read_list_filter(const struct lk_cli *cli,
                                     struct filter *filter)
{
    const struct lk_args *args = &cli->args;
    enum lk_exit result = check_state(cli);

    filter->state = lk_args_value(args, "state");
    filter->tenant = lk_args_value(args, "tenant");
    filter->scope = lk_args_value(args, "scope");
    filter->attention = lk_args_flag(args, "attention");
    filter->newest = lk_args_flag(args, "newest");
    if (result == LK_EXIT_DONE) {
        result = lk_args_duration(args, "older", &filter->older_ms);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "since", cli->now_ms, &filter->since_ms);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_args_time(args, "until", cli->now_ms, &filter->until_ms);
    }
    return result;
}

/* LIST with the filter; *reply is valid until the next call. */
static enum lk_exit fetch_page(struct lk_listing *list, uint64_t limit,
                               const struct lk_reply **reply)
{
    const struct filter *filter = list->context;
    struct lk_words words = {0};

    lk_words_add(&words, "LIST");
    lk_words_add_text(&words, "STATE", filter->state);
    lk_words_add_text(&words, "TENANT", filter->tenant);
    lk_words_add_text(&words, "SCOPE", filter->scope);
    lk_words_add_count(&words, "OLDER", filter->older_ms);
    lk_words_add_count(&words, "SINCE", filter->since_ms);
    lk_words_add_count(&words, "UNTIL", filter->until_ms);
    lk_words_add_count(&words, "ATTENTION", filter->attention ? LK_LONG_MS : 0);
    if (filter->newest) {
        lk_words_add(&words, "NEWEST");
    }
    lk_words_add_count(&words, "LIMIT", limit);
    lk_words_add(&words, "CURSOR");
    lk_words_add_number(&words, list->cursor);
    return lk_call(list->cli, &words, reply);
}

/* A page is [cursor, [operation...]]. */
static enum lk_exit show_operations_page(struct lk_listing *list,
                                         uint64_t limit)
{
    const struct lk_reply *reply = NULL;
    const struct lk_reply *rows;
    enum lk_exit result = fetch_page(list, limit, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count != 2 ||
        reply->elements[1].type != LK_REPLY_ARRAY) {
        return lk_complain_reply(list->cli);
    }
    rows = &reply->elements[1];
    for (size_t i = 0; i < rows->count; i++) {
        lk_listing_show(list, &rows->elements[i]);
    }
    list->cursor = lk_reply_cursor(&reply->elements[0]);
    return LK_EXIT_DONE;
}

/* ---- The command --------------------------------------------------------- */

/* Columns that say the same in other words go first; with --attention, the
 * reason stays. */
static enum lk_exit list_once(struct lk_cli *cli, const struct filter *filter,
                              uint64_t most)
{
    struct lk_listing list = {
        .cli = cli,
        .title = "operations",
        .put_heading = put_heading,
        .put_row = put_operation_row,
        .needs_person = operation_needs_person,
        .page = show_operations_page,
        .context = filter,
        .most = most,
        .table = {.columns = COLUMNS,
                  .colour = cli->colour,
                  .right = 1 << 3 | 1 << 4,
                  .rigid = 1 << 0 | 1 << 1 | 1 << 2 | filter->attention << 5,
                  .spare = filter->attention ? 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4
                                             : 1 << 3 | 1 << 4 | 1 << 5},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = lk_listing_run(&list);

    if (result == LK_EXIT_DONE) {
        lk_listing_end(&list, "operation", "marked with !");
    }
    return result;
}

/* Until it is interrupted, or the daemon is gone. */
static enum lk_exit watch_list(struct lk_cli *cli, struct filter *filter,
                               uint64_t every_ms)
{
    const struct timespec pause = {(time_t)(every_ms / 1000),
                                   (long)(every_ms % 1000) * 1000000};
    enum { FRAME = 6 }; /* lines around the rows */
    enum lk_exit result;

    do {
        /* The window may have changed since the last refresh. */
        size_t rows = lk_table_rows();

        cli->now_ms = lk_wall_clock_ms();
        result = read_list_filter(cli, filter);
        if (rows != SIZE_MAX) {
            lk_put(&cli->out, "\033[H\033[2J");
        }
        lk_put(&cli->out, "latchkey list at ");
        lk_put_utc(&cli->out, cli->now_ms);
        lk_put(&cli->out, ", every ");
        lk_put_duration(&cli->out, every_ms, 2);
        lk_put(&cli->out, "\n\n");
        if (result == LK_EXIT_DONE) {
            result = list_once(cli, filter,
                               rows > FRAME && rows != SIZE_MAX ? rows - FRAME
                                                                : UINT64_MAX);
        }
    } while (result == LK_EXIT_DONE && nanosleep(&pause, NULL) == 0);
    return result;
}

enum lk_exit lk_run_list(struct lk_cli *cli)
{
    struct filter filter = {0};
    uint64_t every_ms = WATCH_MS;
    enum lk_exit result = read_list_filter(cli, &filter);

    if (result == LK_EXIT_DONE) {
        result = lk_args_duration(&cli->args, "watch", &every_ms);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!lk_args_flag(&cli->args, "watch")) {
        return list_once(cli, &filter, UINT64_MAX);
    }
    if (cli->json || every_ms < 100) {
        return lk_complain_usage(cli, "--watch draws for people, not more "
                                      "often than every 100ms and without "
                                      "--json");
    }
    return watch_list(cli, &filter, every_ms);
}
