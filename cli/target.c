/* target.c - `latchkey target`: the services that jobs call. */
#include "cli/commands.h"

#include <string.h>

const struct lk_manual lk_manual_target = {
    "status shows how each target does, or one in full: the jobs that wait\n"
    "for it, whether calls fail, whether it is paused. Jobs are those of the\n"
    "store; SENT OK, FAILED and LAST ERROR are of the daemon that is asked,\n"
    "since its start. While a target is paused its jobs wait; calls in "
    "progress\n"
    "end as usual.",
    lk_deed_options};

/* ---- Status ---------------------------------------------------------------
 */

/* How it does, in one word or two. */
static enum lk_put_colour put_state(struct lk_buf *cell,
                                    const struct lk_reply *target)
{
    struct lk_slice circuit = lk_field_text(target, "circuit");
    const struct lk_reply *configured = lk_field(target, "configured");

    if (lk_field_number(target, "paused") != 0) {
        lk_put(cell, "paused");
        return LK_BUSYING;
    }
    if (configured != NULL && configured->integer == 0) {
        lk_put(cell, "not configured");
        return LK_ALARM;
    }
    if (circuit.len > 0 && !latchkey_slice_equal(circuit, LK_SLICE("closed"))) {
        lk_put(cell, "circuit ");
        lk_put_text(cell, circuit);
        return LK_ALARM;
    }
    lk_put(cell, "ok");
    return LK_GOOD;
}

static void put_number(struct lk_table *table, const struct lk_reply *target,
                       const char *name, bool alarm)
{
    uint64_t number = lk_field_number(target, name);

    lk_put(lk_table_cell(table, alarm && number > 0 ? LK_ALARM : LK_PLAIN),
           "%llu", (unsigned long long)number);
}

static void put_row(struct lk_table *table, const struct lk_reply *target,
                    uint64_t now_ms)
{
    uint64_t oldest_ms = lk_field_number(target, "oldest_due_ms");
    struct lk_buf state = {0};
    enum lk_put_colour colour = put_state(&state, target);

    lk_put_text(lk_table_cell(table, LK_PLAIN), lk_field_text(target, "name"));
    lk_put_raw(lk_table_cell(table, colour), latchkey_buf_slice(&state));
    latchkey_buf_free(&state);
    put_number(table, target, "waiting", false);
    put_number(table, target, "leased", false);
    put_number(table, target, "uncertain", true);
    put_number(table, target, "dead", true);
    put_number(table, target, "sent-ok", false);
    put_number(table, target, "failed", false);
    struct lk_buf *cell = lk_table_cell(table, LK_PLAIN);
    if (oldest_ms != 0) {
        lk_put_duration(cell, now_ms > oldest_ms ? now_ms - oldest_ms : 0, 1);
    }
    lk_put_text(lk_table_cell(table, LK_PLAIN),
                lk_field_text(target, "last_error"));
}

static void show_table(struct lk_cli *cli, const struct lk_reply *targets)
{
    static const char *const names[] = {
        "TARGET", "STATE",   "WAITING", "LEASED",  "UNCERTAIN",
        "DEAD",   "SENT OK", "FAILED",  "OVERDUE", "LAST ERROR"};
    struct lk_table table = {.columns = 10,
                             .colour = cli->colour,
                             .right = 0x1fc,
                             .rigid = 1 << 1,
                             .spare = 1 << 3 | 1 << 6 | 1 << 7};

    lk_table_heading(&table, names);
    for (size_t i = 0; i < targets->count; i++) {
        put_row(&table, &targets->elements[i], cli->now_ms);
    }
    lk_table_flush(&table, &cli->out);
}

static bool is_time(struct lk_slice name)
{
    static const char *const names[] = {
        "paused-ms", "oldest-due-ms", "oldest-uncertain-ms", "oldest-dead-ms"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (latchkey_slice_equal(name, latchkey_slice(names[i]))) {
            return true;
        }
    }
    return false;
}

/* Every field that is not empty, by its own name. */
static void show_one(struct lk_cli *cli, const struct lk_reply *target)
{
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    for (size_t i = 0; i + 1 < target->count; i += 2) {
        struct lk_slice name = target->elements[i].text;
        const struct lk_reply *value = &target->elements[i + 1];
        bool text = value->type == LK_REPLY_TEXT;

        if (value->type == LK_REPLY_NIL || (text && value->text.len == 0) ||
            (is_time(name) && value->integer == 0)) {
            continue;
        }
        lk_put_text(lk_table_cell(&table, LK_DIM), name);
        struct lk_buf *cell = lk_table_cell(&table, LK_PLAIN);
        if (text) {
            lk_put_text(cell, value->text);
        } else if (is_time(name)) {
            lk_put_time(cell, (uint64_t)value->integer, cli->now_ms);
        } else {
            lk_put(cell, "%lld", (long long)value->integer);
        }
    }
    lk_table_flush(&table, &cli->out);
}

static void show_json(struct lk_cli *cli, const struct lk_reply *targets)
{
    struct lk_doc doc = {.out = &cli->out};

    lk_doc_object(&doc, NULL);
    lk_doc_array(&doc, "targets");
    for (size_t i = 0; i < targets->count; i++) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, &targets->elements[i]);
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

/* LK_EXIT_NO: there is none of that name, and it is said. */
static enum lk_exit fetch_status(struct lk_cli *cli, const char *name,
                                 const struct lk_reply **reply)
{
    struct lk_words words = {0};
    enum lk_exit result;

    lk_words_add(&words, "TARGET");
    lk_words_add(&words, "STATUS");
    if (name != NULL) {
        lk_words_add(&words, name);
    }
    result = lk_call(cli, &words, reply);
    if (result == LK_EXIT_DONE && (*reply)->type != LK_REPLY_ARRAY) {
        result = lk_complain_reply(cli);
    }
    if (result == LK_EXIT_DONE && name != NULL && (*reply)->count == 0) {
        lk_complain("there is no target \"%s\"; latchkey target status lists "
                    "them",
                    name);
        result = LK_EXIT_NO;
    }
    return result;
}

static enum lk_exit show_status(struct lk_cli *cli, const char *name)
{
    const struct lk_reply *reply;
    enum lk_exit result = fetch_status(cli, name, &reply);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        show_json(cli, reply);
    } else if (name != NULL && reply->count == 1) {
        show_one(cli, &reply->elements[0]);
    } else if (reply->count > 0) {
        show_table(cli, reply);
    }
    if (reply->count == 0) {
        lk_hint(cli, "no targets: see [target NAME] in latchkeyd.conf");
    }
    return LK_EXIT_DONE;
}

/* ---- Pause and resume -----------------------------------------------------
 */

static enum lk_exit order(struct lk_cli *cli, bool pause)
{
    const char *action = pause ? "paused" : "resumed";
    const char *name = cli->args.words[1];
    struct lk_doc doc = {.out = &cli->out};
    struct lk_deed deed = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&deed.words, "TARGET");
    lk_words_add(&deed.words, pause ? "PAUSE" : "RESUME");
    lk_words_add(&deed.words, name);
    result = lk_deed_words(cli, &deed, NULL);
    /* A slip of the finger would pause nothing, and nobody would notice. */
    if (result == LK_EXIT_DONE) {
        result = fetch_status(cli, name, &reply);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &deed.words, &reply);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!lk_reply_is(reply, "OK")) {
        return lk_complain_reply(cli);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("OK"));
        lk_doc_text(&doc, "action", latchkey_slice(action));
        lk_doc_text(&doc, "target", latchkey_slice(name));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&cli->out, "%s target ", action);
        lk_put_text(&cli->out, latchkey_slice(name));
        lk_put(&cli->out, "\n");
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_target(struct lk_cli *cli)
{
    const char *word = cli->args.words[0];
    bool pause = strcmp(word, "pause") == 0;

    if (strcmp(word, "status") == 0) {
        return show_status(cli, cli->args.word_count > 1 ? cli->args.words[1]
                                                         : NULL);
    }
    if (!pause && strcmp(word, "resume") != 0) {
        return lk_complain_usage(
            cli, "a target is paused, resumed or looked at, not \"%s\"", word);
    }
    if (cli->args.word_count != 2) {
        return lk_complain_usage(cli,
                                 "name the target: latchkey target %s "
                                 "NAME",
                                 word);
    }
    return order(cli, pause);
}
