/* audit.c - `latchkey audit`: what operators did, when and why. */
#include "cli/commands.h"

enum { PAGE = 1000, DEFAULT_LIMIT = 100 };

static const struct lk_option options[] = {
    {"after", "ID", "only entries after this one"},
    {"limit", "N", "at most so many (100)"},
    {0},
};

const struct lk_manual lk_manual_audit = {
    "Shows the audit log of the store, the oldest entry first: what operators\n"
    "did, when and why.",
    options};

struct reading {
    struct lk_cli *cli;
    uint64_t after;
    uint64_t left;
    uint64_t shown;
    size_t last_page; /* entries in the last page */
    struct lk_table table;
    struct lk_doc doc;
};

static void put_heading(struct lk_table *table)
{
    static const char *const names[] = {"ID",     "TIME",  "WHO", "ACTION",
                                        "TENANT", "SCOPE", "KEY", "WHY"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        lk_put(lk_table_cell(table, LK_BOLD), "%s", names[i]);
    }
}

static void show_entry(struct reading *reading, const struct lk_reply *entry)
{
    static const char *const names[] = {"who",   "action", "tenant",
                                        "scope", "key",    "why"};
    struct lk_table *table = &reading->table;

    if (reading->cli->json) {
        lk_doc_object(&reading->doc, NULL);
        lk_doc_members(&reading->doc, entry);
        lk_doc_end_object(&reading->doc);
        return;
    }
    lk_put(lk_table_cell(table, LK_PLAIN), "%llu",
           (unsigned long long)lk_field_number(entry, "id"));
    lk_put_time(lk_table_cell(table, LK_PLAIN), lk_field_number(entry, "at-ms"),
                reading->cli->now_ms);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        lk_put_text(lk_table_cell(table, LK_PLAIN),
                    lk_field_text(entry, names[i]));
    }
}

static enum lk_exit show_page(struct reading *reading)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "AUDIT");
    lk_words_add(&words, "AFTER");
    lk_words_add_number(&words, reading->after);
    lk_words_add(&words, "LIMIT");
    lk_words_add_number(&words, reading->left > PAGE ? PAGE : reading->left);
    result = lk_call(reading->cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(reading->cli);
    }
    if (reading->shown == 0 && reply->count > 0 && !reading->cli->json) {
        put_heading(&reading->table);
    }
    for (size_t i = 0; i < reply->count; i++) {
        show_entry(reading, &reply->elements[i]);
        reading->after = lk_field_number(&reply->elements[i], "id");
    }
    reading->last_page = reply->count;
    reading->shown += reply->count;
    reading->left -=
        reply->count < reading->left ? reply->count : reading->left;
    lk_table_flush(&reading->table, &reading->cli->out);
    return lk_cli_flush(reading->cli);
}

enum lk_exit lk_run_audit(struct lk_cli *cli)
{
    struct reading reading = {
        .cli = cli,
        .left = DEFAULT_LIMIT,
        .table = {.columns = 8, .colour = cli->colour, .right = 1},
        .doc = {.out = &cli->out},
    };
    enum lk_exit result =
        lk_args_number(&cli->args, "after", 0, INT64_MAX, &reading.after);

    if (result == LK_EXIT_DONE) {
        result =
            lk_args_number(&cli->args, "limit", 1, UINT32_MAX, &reading.left);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        lk_doc_object(&reading.doc, NULL);
        lk_doc_array(&reading.doc, "entries");
    }
    do {
        result = show_page(&reading);
    } while (result == LK_EXIT_DONE && reading.last_page > 0 &&
             reading.left > 0);
    if (result == LK_EXIT_DONE && cli->json) {
        lk_doc_end_array(&reading.doc);
        lk_doc_end_object(&reading.doc);
    }
    if (result == LK_EXIT_DONE && reading.shown == 0) {
        lk_hint(cli, "no entries");
    }
    if (result == LK_EXIT_DONE && reading.left == 0) {
        lk_hint(cli, "there may be more: --after %llu",
                (unsigned long long)reading.after);
    }
    return result;
}
