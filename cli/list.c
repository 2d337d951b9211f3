/* list.c - `latchkey list`: operations, the oldest first. */
#include "cli/commands.h"
#include "cli/listing.h"
#include "lib/machine.h"

static const struct lk_option options[] = {
    {"state", "STATE",
     "accepted, in_progress, uncertain, completed or\nreleased"},
    {"tenant", "TENANT", "only this tenant's"},
    {"older", "DURATION", "only those claimed at least so long ago (1h)"},
    {"limit", "N", "at most so many (100)"},
    {"all", NULL, "without a limit"},
    {"cursor", "CURSOR", "go on where an earlier list ended"},
    {0},
};

const struct lk_manual lk_manual_list = {
    "Lists operations, the oldest first. Those whose outcome is unknown are\n"
    "marked with an exclamation mark: they wait for a person.",
    options};

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

/* ---- Output ---------------------------------------------------------------
 */

static void put_heading(struct lk_table *table)
{
    static const char *const names[] = {
        "  REFERENCE", "STATE", "AGE", "ATTEMPT", "TENANT", "SCOPE", "KEY"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        lk_put(lk_table_cell(table, LK_BOLD), "%s", names[i]);
    }
}

static void put_row(struct lk_table *table, const struct lk_reply *record,
                    uint64_t now_ms)
{
    static const char *const names[] = {"tenant", "scope", "key"};
    struct lk_slice state = lk_field_text(record, "state");
    enum lk_put_colour colour = lk_record_colour(state);
    uint64_t claimed_ms = lk_field_number(record, "claimed-ms");
    struct lk_buf *cell = lk_table_cell(table, colour);

    lk_put(cell, "%s", colour == LK_ALARM ? "! " : "  ");
    lk_put_text(cell, lk_field_text(record, "reference"));
    lk_put_text(lk_table_cell(table, colour), state);
    lk_put_duration(lk_table_cell(table, LK_PLAIN),
                    now_ms > claimed_ms ? now_ms - claimed_ms : 0, 1);
    lk_put(lk_table_cell(table, LK_PLAIN), "%llu",
           (unsigned long long)lk_field_number(record, "attempt"));
    for (size_t i = 0; i < 3; i++) {
        lk_put_text(lk_table_cell(table, LK_PLAIN),
                    lk_field_text(record, names[i]));
    }
}

static bool is_uncertain(struct lk_slice state)
{
    return latchkey_slice_equal(state, LK_SLICE("uncertain"));
}

/* ---- Pages ----------------------------------------------------------------
 */

static enum lk_exit fetch_page(struct lk_listing *list, uint64_t limit,
                               const struct lk_reply **reply)
{
    const struct lk_args *args = &list->cli->args;
    const char *state = lk_args_value(args, "state");
    const char *tenant = lk_args_value(args, "tenant");
    struct lk_words words = {0};
    uint64_t older_ms = 0;
    enum lk_exit result = lk_args_duration(args, "older", &older_ms);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_words_add(&words, "LIST");
    if (state != NULL) {
        lk_words_add(&words, "STATE");
        lk_words_add(&words, state);
    }
    if (tenant != NULL) {
        lk_words_add(&words, "TENANT");
        lk_words_add(&words, tenant);
    }
    if (older_ms != 0) {
        lk_words_add(&words, "OLDER");
        lk_words_add_number(&words, older_ms);
    }
    lk_words_add(&words, "LIMIT");
    lk_words_add_number(&words, limit);
    lk_words_add(&words, "CURSOR");
    lk_words_add_number(&words, list->cursor);
    return lk_call(list->cli, &words, reply);
}

static enum lk_exit show_page(struct lk_listing *list, uint64_t limit)
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

enum lk_exit lk_run_list(struct lk_cli *cli)
{
    struct lk_listing list = {
        .cli = cli,
        .title = "records",
        .put_heading = put_heading,
        .put_row = put_row,
        .needs_person = is_uncertain,
        .page = show_page,
        .table = {.columns = 7,
                  .colour = cli->colour,
                  .right = 1 << 2 | 1 << 3},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = check_state(cli);

    if (result == LK_EXIT_DONE) {
        result = lk_listing_run(&list);
    }
    if (result == LK_EXIT_DONE) {
        lk_listing_end(&list, "operation", "uncertain");
    }
    return result;
}
