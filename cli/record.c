/* record.c - shows one operation in full. */
#include "cli/cli.h"

#include <string.h>

enum lk_put_colour lk_record_colour(struct lk_slice state)
{
    static const struct {
        const char *state;
        enum lk_put_colour colour;
    } colours[] = {
        {"uncertain", LK_ALARM},  {"in_progress", LK_BUSYING},
        {"accepted", LK_BUSYING}, {"completed", LK_GOOD},
        {"released", LK_DIM},
    };

    for (size_t i = 0; i < sizeof(colours) / sizeof(colours[0]); i++) {
        if (latchkey_slice_equal(state, latchkey_slice(colours[i].state))) {
            return colours[i].colour;
        }
    }
    return LK_PLAIN;
}

/* The line in which a field of the record stands, if the record has it. */
struct line {
    const char *field;
    const char *label;
    enum lk_form form;
};

static const struct line lines[] = {
    {"reference", "reference", LK_FORM_TEXT},
    {"state", "state", LK_FORM_TEXT},
    {"reason", "because", LK_FORM_TEXT},
    {"tenant", "tenant", LK_FORM_TEXT},
    {"scope", "scope", LK_FORM_TEXT},
    {"key", "key", LK_FORM_TEXT},
    {"attempt", "attempt", LK_FORM_NUMBER},
    {"token", "token", LK_FORM_NUMBER},
    {"fingerprint", "fingerprint", LK_FORM_TEXT},
    {"claimed-ms", "claimed", LK_FORM_TIME},
    {"lock-until-ms", "locked until", LK_FORM_TIME},
    {"since-ms", "since", LK_FORM_TIME},
    {"completed-ms", "completed", LK_FORM_TIME},
    {"expires-ms", "expires", LK_FORM_TIME},
    {"ttl-ms", "kept for", LK_FORM_DURATION},
    {"status", "status", LK_FORM_NUMBER},
    {"omitted-reason", "answer not kept", LK_FORM_TEXT},
    {"headers-bytes", "headers", LK_FORM_SIZE},
    {"body-bytes", "body", LK_FORM_SIZE},
};

static void put_answer(struct lk_table *table, const struct lk_reply *record)
{
    const struct lk_reply *body = lk_field(record, "body");
    struct lk_slice headers = lk_field_text(record, "headers");
    const char *label = "headers";

    while (headers.len > 0) {
        const char *end = memchr(headers.data, '\n', headers.len);
        size_t length =
            end == NULL ? headers.len : (size_t)(end - headers.data) + 1;
        struct lk_slice line = {headers.data, length};

        while (line.len > 0 && strchr("\r\n", line.data[line.len - 1])) {
            line.len--;
        }
        lk_put(lk_table_cell(table, LK_DIM), "%s", label);
        lk_put_text(lk_table_cell(table, LK_PLAIN), line);
        label = "";
        headers.data += length;
        headers.len -= length;
    }
    if (body != NULL) {
        lk_put(lk_table_cell(table, LK_DIM), "body");
        lk_put_bytes(lk_table_cell(table, LK_PLAIN), body->text.len);
    }
}

static void show_table(struct lk_cli *cli, const struct lk_reply *record)
{
    struct lk_table table = {.columns = 2, .colour = cli->colour};

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        const struct lk_reply *value = lk_field(record, lines[i].field);
        enum lk_put_colour colour = LK_PLAIN;

        if (value == NULL) {
            continue;
        }
        if (strcmp(lines[i].field, "state") == 0) {
            colour = lk_record_colour(value->text);
        } else if (strcmp(lines[i].field, "reference") == 0) {
            colour = LK_BOLD;
        }
        lk_put(lk_table_cell(&table, LK_DIM), "%s", lines[i].label);
        lk_put_form(lk_table_cell(&table, colour), lines[i].form, value,
                    cli->now_ms);
    }
    put_answer(&table, record);
    lk_table_flush(&table, &cli->out);
}

void lk_record_show(struct lk_cli *cli, const struct lk_reply *record)
{
    if (cli->json) {
        struct lk_doc doc = {.out = &cli->out};

        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, record);
        lk_doc_end_object(&doc);
        return;
    }
    show_table(cli, record);
    if (latchkey_slice_equal(lk_field_text(record, "state"),
                             LK_SLICE("uncertain"))) {
        lk_hint(cli, "It may or may not have happened. Once you know: latchkey "
                     "resolve (it did) or latchkey release (it did not).");
    }
}

static void report_missing(struct lk_cli *cli)
{
    struct lk_doc doc = {.out = &cli->out};
    const struct lk_args *args = &cli->args;

    if (cli->json) {
        lk_doc_null(&doc, NULL);
    }
    lk_complain("tenant %s has no operation with %s %s", args->words[0],
                args->word_count == 2 ? "reference" : "this scope and key:",
                args->words[args->word_count - 1]);
}

enum lk_exit lk_record_fetch(struct lk_cli *cli, const struct lk_words *words,
                             const struct lk_reply **record)
{
    enum lk_exit result = lk_call(cli, words, record);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if ((*record)->type == LK_REPLY_NIL) {
        report_missing(cli);
        return LK_EXIT_NO;
    }
    return (*record)->type == LK_REPLY_ARRAY ? LK_EXIT_DONE
                                             : lk_complain_reply(cli);
}
