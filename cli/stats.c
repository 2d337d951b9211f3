/* stats.c - `latchkey stats`: the store's numbers. */
#include "cli/commands.h"

#include <string.h>

static const struct lk_option options[] = {
    {"explain", NULL, "say what each number of the daemon means instead"}, {0}};

const struct lk_manual lk_manual_stats = {
    "Shows the numbers of the daemon and its store, those that may need a\n"
    "person first: operations by state, jobs, claims by verdict, sizes, "
    "batches.",
    options};

static bool ends_with(struct lk_slice name, const char *ending)
{
    size_t length = strlen(ending);

    return name.len >= length &&
           memcmp(name.data + name.len - length, ending, length) == 0;
}

/* What a number means for people, as far as its name tells; else nothing. */
static void put_meaning(struct lk_buf *cell, const struct lk_cli *cli,
                        struct lk_slice name, uint64_t number)
{
    const uint64_t year_2001_ms = UINT64_C(1000000000000);

    if (ends_with(name, "bytes") && number >= 1024) {
        lk_put_bytes(cell, number);
    } else if (ends_with(name, "ms") && number >= year_2001_ms) {
        lk_put_time(cell, number, cli->now_ms);
    } else if (ends_with(name, "ms") && number >= 1000) {
        lk_put_duration(cell, number, 2);
    }
}

/* Does that number need a person? */
static bool is_alarm(struct lk_slice name, int64_t number)
{
    static const char *const names[] = {"clock-held", "hold-until-ms",
                                        "records-uncertain", "jobs-uncertain",
                                        "jobs-dead"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (latchkey_slice_equal(name, latchkey_slice(names[i]))) {
            return number > 0;
        }
    }
    return number == 0 && latchkey_slice_equal(name, LK_SLICE("available"));
}

static void show_table(struct lk_cli *cli, const struct lk_reply *stats)
{
    struct lk_table table = {.columns = 3, .colour = cli->colour, .right = 2};

    for (size_t i = 0; i + 1 < stats->count; i += 2) {
        struct lk_slice name = stats->elements[i].text;
        const struct lk_reply *value = &stats->elements[i + 1];
        bool number = value->type == LK_REPLY_INTEGER;

        if (!number && value->text.len == 0) {
            continue;
        }
        bool alarm = !number || is_alarm(name, value->integer);
        lk_put_text(lk_table_cell(&table, LK_PLAIN), name);
        struct lk_buf *cell =
            lk_table_cell(&table, alarm ? LK_ALARM : LK_PLAIN);
        if (number) {
            lk_put(cell, "%lld", (long long)value->integer);
            put_meaning(lk_table_cell(&table, LK_DIM), cli, name,
                        value->integer < 0 ? 0 : (uint64_t)value->integer);
        } else {
            lk_put_text(lk_table_cell(&table, LK_PLAIN), value->text);
        }
    }
    lk_table_flush(&table, &cli->out);
}

static void show_meanings(struct lk_cli *cli, const struct lk_reply *meanings)
{
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    for (size_t i = 0; i + 1 < meanings->count; i += 2) {
        lk_put_text(lk_table_cell(&table, LK_PLAIN),
                    meanings->elements[i].text);
        lk_put_text(lk_table_cell(&table, LK_PLAIN),
                    meanings->elements[i + 1].text);
    }
    lk_table_flush(&table, &cli->out);
}

enum lk_exit lk_run_stats(struct lk_cli *cli)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_words words = {0};
    const struct lk_reply *reply;
    bool explain = lk_args_flag(&cli->args, "explain");
    enum lk_exit result;

    lk_words_add(&words, "STATS");
    if (explain) {
        lk_words_add(&words, "EXPLAIN");
    }
    result = lk_call(cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY) {
        return lk_complain_reply(cli);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, reply);
        lk_doc_end_object(&doc);
    } else if (explain) {
        show_meanings(cli, reply);
    } else {
        show_table(cli, reply);
    }
    return LK_EXIT_DONE;
}
