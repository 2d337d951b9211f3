/* list.c - `latchkey list`: operations, the oldest first. */
#include "cli/commands.h"

#include "lib/machine.h"

enum { PAGE = 1000, DEFAULT_LIMIT = 100 };

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

struct listing {
    struct lk_cli *cli;
    uint64_t left; /* how many are still wanted */
    uint64_t cursor;
    uint64_t shown;
    uint64_t uncertain;
    struct lk_table table;
    struct lk_doc doc;
};

static enum lk_exit read_options(struct listing *list)
{
    const struct lk_args *args = &list->cli->args;
    const char *state = lk_args_value(args, "state");
    enum lk_state parsed;
    enum lk_exit result;

    if (state != NULL && (!lk_state_parse(latchkey_slice(state), &parsed) ||
                          parsed == LK_STATE_ABSENT)) {
        return lk_complain_usage(
            list->cli,
            "--state is \"%s\", but must be accepted, "
            "in_progress, uncertain, completed or released",
            state);
    }
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

/* ---- Output ---------------------------------------------------------------
 */

static void put_heading(struct listing *list)
{
    static const char *const names[] = {
        "  REFERENCE", "STATE", "AGE", "ATTEMPT", "TENANT", "SCOPE", "KEY"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        lk_put(lk_table_cell(&list->table, LK_BOLD), "%s", names[i]);
    }
}

static void put_row(struct listing *list, const struct lk_reply *record)
{
    static const char *const names[] = {"tenant", "scope", "key"};
    struct lk_slice state = lk_field_text(record, "state");
    enum lk_put_colour colour = lk_record_colour(state);
    uint64_t claimed_ms = lk_field_number(record, "claimed-ms");
    uint64_t now_ms = list->cli->now_ms;
    struct lk_table *table = &list->table;
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

static void show_record(struct listing *list, const struct lk_reply *record)
{
    if (list->cli->json) {
        lk_doc_object(&list->doc, NULL);
        lk_doc_members(&list->doc, record);
        lk_doc_end_object(&list->doc);
    } else {
        if (list->shown == 0) {
            put_heading(list);
        }
        put_row(list, record);
    }
    list->shown++;
    list->uncertain += latchkey_slice_equal(lk_field_text(record, "state"),
                                            LK_SLICE("uncertain"));
}

static void show_end(struct listing *list)
{
    lk_hint(list->cli, "%llu operation%s, %llu uncertain%s",
            (unsigned long long)list->shown, list->shown == 1 ? "" : "s",
            (unsigned long long)list->uncertain,
            list->cursor == 0 ? "" : "; there are more:");
    if (list->cursor != 0) {
        lk_hint(list->cli, "--all, or go on with --cursor %llu",
                (unsigned long long)list->cursor);
    }
}

/* ---- Pages ----------------------------------------------------------------
 */

static enum lk_exit fetch_page(struct listing *list,
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
    lk_words_add_number(&words, list->left > PAGE ? PAGE : list->left);
    lk_words_add(&words, "CURSOR");
    lk_words_add_number(&words, list->cursor);
    return lk_call(list->cli, &words, reply);
}

static enum lk_exit show_page(struct listing *list)
{
    const struct lk_reply *reply = NULL;
    const struct lk_reply *rows;
    enum lk_exit result = fetch_page(list, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count != 2 ||
        reply->elements[1].type != LK_REPLY_ARRAY) {
        return lk_complain_reply(list->cli);
    }
    rows = &reply->elements[1];
    for (size_t i = 0; i < rows->count; i++) {
        show_record(list, &rows->elements[i]);
    }
    list->left -= rows->count < list->left ? rows->count : list->left;
    list->cursor = lk_reply_cursor(&reply->elements[0]);
    lk_table_flush(&list->table, &list->cli->out);
    return lk_cli_flush(list->cli);
}

enum lk_exit lk_run_list(struct lk_cli *cli)
{
    struct listing list = {
        .cli = cli,
        .table = {.columns = 7,
                  .colour = cli->colour,
                  .right = 1 << 2 | 1 << 3},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result = read_options(&list);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_object(&list.doc, NULL);
        lk_doc_array(&list.doc, "records");
    }
    /* A page may be short, even empty, and still not be the last one. */
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
    show_end(&list);
    return LK_EXIT_DONE;
}
