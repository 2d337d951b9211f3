/* clients.c - `latchkey clients`: who is connected, and the end of it. */
#include "cli/commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct lk_manual lk_manual_clients = {
    "Lists the connections of the daemon: where they come from (on a unix\n"
    "socket the user and the process), who they are, what they may do, and\n"
    "how many of their commands are not answered yet. kill ends them by ID;\n"
    "what they have begun counts.",
    lk_deed_options};

enum { COLUMNS = 9 };

/* The fields of a line that are columns, and their heads. */
static const struct column {
    const char *field;
    const char *title;
} columns[COLUMNS] = {
    {"id", "ID"},     {"addr", "FROM"}, {"user", "USER"},
    {"role", "ROLE"}, {"name", "NAME"}, {"age", "AGE"},
    {"idle", "IDLE"}, {"cmd", "LAST"},  {"waiting", "WAITING"}};

/* The next "name=value" of a line; false: that was the last. A value in quotes
 * has no space that is not escaped, as names have none. */
static bool next_pair(struct lk_slice *line, struct lk_slice *name,
                      struct lk_slice *value)
{
    const char *equals =
        line->len > 0 ? memchr(line->data, '=', line->len) : NULL;

    if (equals == NULL) {
        return false;
    }
    *name = (struct lk_slice){line->data, (size_t)(equals - line->data)};
    size_t used = name->len + 1;
    const char *end = memchr(equals + 1, ' ', line->len - used);
    size_t len = end == NULL ? line->len - used : (size_t)(end - equals) - 1;
    *value = (struct lk_slice){equals + 1, len};
    used += len + (end != NULL);
    *line = (struct lk_slice){line->data + used, line->len - used};
    if (value->len > 1 && value->data[0] == '"') {
        *value = (struct lk_slice){value->data + 1, value->len - 2};
    }
    return true;
}

static struct lk_slice find_value(struct lk_slice line, const char *field)
{
    struct lk_slice name, value;

    while (next_pair(&line, &name, &value)) {
        if (latchkey_slice_equal(name, latchkey_slice(field))) {
            return value;
        }
    }
    return (struct lk_slice){0};
}

static bool next_line(struct lk_slice *text, struct lk_slice *line)
{
    const char *end =
        text->len > 0 ? memchr(text->data, '\n', text->len) : NULL;

    if (end == NULL) {
        return false;
    }
    *line = (struct lk_slice){text->data, (size_t)(end - text->data)};
    *text = (struct lk_slice){end + 1, text->len - line->len - 1};
    return true;
}

static void put_row(struct lk_table *table, struct lk_slice line)
{
    struct lk_slice peer = find_value(line, "peer");
    bool local = peer.len > 0 && !latchkey_slice_equal(peer, LK_SLICE("-"));

    for (size_t i = 0; i < COLUMNS; i++) {
        const char *field = columns[i].field;
        struct lk_slice value = find_value(line, field);
        struct lk_buf *cell = lk_table_cell(table, LK_PLAIN);

        if (strcmp(field, "addr") == 0 && local) {
            lk_put_text(cell, peer);
        } else if (value.len > 0 &&
                   (strcmp(field, "age") == 0 || strcmp(field, "idle") == 0)) {
            lk_put_duration(cell, strtoull(value.data, NULL, 10) * 1000, 1);
        } else {
            lk_put_text(cell, value);
        }
    }
}

static void show_table(struct lk_cli *cli, struct lk_slice text)
{
    struct lk_table table = {.columns = COLUMNS,
                             .colour = cli->colour,
                             .right = 1 | 1 << 5 | 1 << 6 | 1 << 8};
    struct lk_slice line;

    for (size_t i = 0; i < COLUMNS; i++) {
        lk_put(lk_table_cell(&table, LK_BOLD), "%s", columns[i].title);
    }
    while (next_line(&text, &line)) {
        put_row(&table, line);
    }
    lk_table_flush(&table, &cli->out);
}

/* Every field, as it came. */
static void show_json(struct lk_cli *cli, struct lk_slice text)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_slice line, name, value;

    lk_doc_object(&doc, NULL);
    lk_doc_array(&doc, "clients");
    while (next_line(&text, &line)) {
        lk_doc_object(&doc, NULL);
        while (next_pair(&line, &name, &value)) {
            char key[32];

            snprintf(key, sizeof(key), "%.*s", (int)name.len, name.data);
            for (char *at = key; *at != '\0'; at++) {
                *at = *at == '-' ? '_' : *at;
            }
            lk_doc_text(&doc, key, value);
        }
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

static enum lk_exit list_clients(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "CLIENT");
    lk_words_add(&words, "LIST");
    result = lk_call(cli, &words, &reply);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_TEXT) {
        return lk_complain_reply(cli);
    }
    if (cli->json) {
        show_json(cli, reply->text);
    } else {
        show_table(cli, reply->text);
    }
    return LK_EXIT_DONE;
}

static enum lk_exit kill_client(struct lk_cli *cli, const char *id)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_deed deed = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&deed.words, "CLIENT");
    lk_words_add(&deed.words, "KILL");
    lk_words_add(&deed.words, "ID");
    lk_words_add(&deed.words, id);
    result = lk_deed_words(cli, &deed, NULL);
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &deed.words, &reply);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_INTEGER) {
        return lk_complain_reply(cli);
    }
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "id", latchkey_slice(id));
        lk_doc_integer(&doc, "killed", reply->integer);
        lk_doc_end_object(&doc);
    } else if (reply->integer > 0) {
        lk_put(&cli->out, "ended connection %s\n", id);
    }
    if (reply->integer == 0) {
        lk_complain("there is no connection %s but perhaps this one; latchkey "
                    "clients lists them",
                    id);
        return LK_EXIT_NO;
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_clients(struct lk_cli *cli)
{
    const struct lk_args *args = &cli->args;

    if (args->word_count == 0) {
        return list_clients(cli);
    }
    if (strcmp(args->words[0], "kill") != 0 || args->word_count != 2) {
        return lk_complain_usage(cli,
                                 "connections are listed, or one is ended: "
                                 "latchkey clients kill ID");
    }
    return kill_client(cli, args->words[1]);
}
