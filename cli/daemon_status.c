/*
 * daemon_status.c - what a daemon says of itself: `latchkey ping`, `health`,
 * `stats` and `clients`.
 *
 * Only HEALTH decides an exit status; the others show what the daemon replies.
 */
#include "cli/commands.h"
#include "lib/time.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ==== `latchkey ping`: does the daemon reply, and how fast? */

/* Between two tries of --wait. */
enum { PAUSE_MS = 50 };

static const struct lk_option ping_options[] = {
    {"wait", "DURATION",
     "wait at most DURATION until the daemon replies and\n"
     "its store can decide"},
    {0}};

const struct lk_manual lk_manual_ping = {
    "Connects to the daemon and waits for its reply. latchkey health shows\n"
    "whether it works.",
    ping_options};

/* With fractions: a ping takes well under a millisecond. */
static double monotonic_ms(void)
{
    return (double)lk_monotonic_ns() / 1e6;
}

/* ---- Waiting ------------------------------------------------------------- */

/*
 * True: there is nothing to wait for. Commands work, or fail for a reason that
 * time does not mend. Prints nothing. A connection of its own each time: the
 * daemon may not be there yet.
 */
static bool is_settled(const struct lk_cli *cli, unsigned timeout_ms)
{
    static const struct lk_slice words[] = {{"HEALTH", 6}};
    struct lk_client_options where = cli->where;
    struct lk_client *client = NULL;
    const struct lk_reply *reply;
    bool settled = false;

    where.timeout_ms = where.connect_timeout_ms = timeout_ms;
    enum lk_status status = latchkey_client_open(&where, &client);
    if (status == LK_OK) {
        status = latchkey_client_call(client, words, 1, 0, &reply);
    }
    if (status == LK_OK) {
        settled = reply->type != LK_REPLY_ARRAY ||
                  lk_health_exit(reply) != LK_EXIT_UNREACHABLE;
    } else {
        settled = status == LK_INVALID || status == LK_DENIED;
    }
    latchkey_client_close(client);
    return settled;
}

/* Returns when the daemon works or the time is over; the ping that follows says
 * which. */
static void wait_for_daemon(const struct lk_cli *cli, uint64_t wait_ms)
{
    const struct timespec pause = {0, PAUSE_MS * 1000000L};
    double end_ms = monotonic_ms() + (double)wait_ms;
    double left_ms = (double)wait_ms;

    while (left_ms > 0 &&
           !is_settled(cli, left_ms < INT_MAX ? (unsigned)left_ms + 1
                                              : (unsigned)INT_MAX)) {
        nanosleep(&pause, NULL);
        left_ms = end_ms - monotonic_ms();
    }
}

/* ---- One ping ------------------------------------------------------------ */

static void show_ping(struct lk_cli *cli, const struct lk_reply *health,
                      double took_ms)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("PONG"));
        lk_doc_text(&doc, "server", latchkey_slice(cli->where.address));
        lk_doc_integer(&doc, "took-us", (int64_t)(took_ms * 1000));
        lk_doc_text(&doc, "status", lk_field_text(health, "status"));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&cli->out, "PONG from ");
        lk_put_text(&cli->out, latchkey_slice(cli->where.address));
        lk_put(&cli->out, " in %.3f ms\n", took_ms);
    }
}

/* There is a reply. Is it the daemon, and can it decide commands? With --wait a
 * store that cannot decide is a failure, otherwise only a hint. */
static enum lk_exit check_health(struct lk_cli *cli, bool must_work,
                                 double took_ms)
{
    const struct lk_reply *health;
    enum lk_exit result = lk_health_fetch(cli, &health);
    struct lk_slice summary;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    show_ping(cli, health, took_ms);
    if (lk_health_exit(health) != LK_EXIT_UNREACHABLE) {
        return LK_EXIT_DONE;
    }
    summary = lk_field_text(health, "summary");
    if (must_work) {
        lk_complain("latchkeyd at %s replies, but %.*s", cli->where.address,
                    (int)summary.len, summary.data);
        return LK_EXIT_UNREACHABLE;
    }
    lk_hint(cli, "but %.*s", (int)summary.len, summary.data);
    return LK_EXIT_DONE;
}

/* Connects first, so that the time is that of PING alone. The health follows: a
 * server of another kind may know PING too. */
enum lk_exit lk_run_ping(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    uint64_t wait_ms = 0;
    double start_ms;
    double took_ms;
    enum lk_exit result = lk_args_duration(&cli->args, "wait", &wait_ms);

    if (result == LK_EXIT_DONE) {
        wait_for_daemon(cli, wait_ms);
        result = lk_connect(cli);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_words_add(&words, "PING");
    start_ms = monotonic_ms();
    result = lk_call(cli, &words, &reply);
    took_ms = monotonic_ms() - start_ms;
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!lk_reply_is(reply, "PONG")) {
        return lk_complain_reply(cli);
    }
    return check_health(cli, wait_ms > 0, took_ms);
}

/* ==== `latchkey health`: is there anything that needs a person? */

static const struct lk_option health_options[] = {{0}};

const struct lk_manual lk_manual_health = {
    "Shows in one line whether the daemon and its store work, then what needs "
    "a\n"
    "person, the most urgent first. Exit status 0: nothing does. 1: something\n"
    "does. 3: nothing can be decided, or there is no daemon.",
    health_options};

static const struct {
    const char *status; /* as the daemon says it */
    const char *word;
    enum lk_exit exit;
} states[] = {
    {"ok", "healthy", LK_EXIT_DONE},
    {"attention", "needs a person", LK_EXIT_NO},
    {"unavailable", "unavailable", LK_EXIT_UNREACHABLE},
};

enum { STATES = sizeof(states) / sizeof(states[0]) };

/* STATES: none that is known. */
static size_t find_state(const struct lk_reply *health)
{
    struct lk_slice status = lk_field_text(health, "status");
    size_t at = 0;

    while (at < STATES &&
           !latchkey_slice_equal(status, latchkey_slice(states[at].status))) {
        at++;
    }
    return at;
}

/* LK_EXIT_DONE: *health is a list with a status that is known. */
enum lk_exit lk_health_fetch(struct lk_cli *cli, const struct lk_reply **health)
{
    struct lk_words words = {0};
    enum lk_exit result;

    lk_words_add(&words, "HEALTH");
    result = lk_call(cli, &words, health);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if ((*health)->type != LK_REPLY_ARRAY || find_state(*health) == STATES) {
        return lk_complain_reply(cli);
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_health_exit(const struct lk_reply *health)
{
    size_t at = find_state(health);

    return at == STATES ? LK_EXIT_FAILED : states[at].exit;
}

/* One reason is in the summary already; several have a line each. */
static void show_health(struct lk_cli *cli, const struct lk_reply *health)
{
    size_t at = find_state(health);
    const struct lk_reply *reasons = lk_field(health, "reasons");

    if (reasons == NULL || reasons->count < 2) {
        lk_put(&cli->out, "%s: ", states[at].word);
        lk_put_line(&cli->out, lk_field_text(health, "summary"));
        lk_put(&cli->out, "\n");
        return;
    }
    lk_put(&cli->out, "%s, for %zu reasons:\n", states[at].word,
           reasons->count);
    for (size_t i = 0; i < reasons->count; i++) {
        lk_put(&cli->out, "  %zu. ", i + 1);
        lk_put_line(&cli->out, lk_field_text(&reasons->elements[i], "text"));
        lk_put(&cli->out, "\n");
    }
}

/* The reply as it is; every reason is an object. */
static void show_health_json(struct lk_cli *cli, const struct lk_reply *health)
{
    struct lk_doc doc = {.out = &cli->out};
    const struct lk_reply *reasons = lk_field(health, "reasons");

    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "status", lk_field_text(health, "status"));
    lk_doc_text(&doc, "summary", lk_field_text(health, "summary"));
    lk_doc_integer(&doc, "age-ms", (int64_t)lk_field_number(health, "age-ms"));
    lk_doc_array(&doc, "reasons");
    for (size_t i = 0; reasons != NULL && i < reasons->count; i++) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, &reasons->elements[i]);
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

enum lk_exit lk_run_health(struct lk_cli *cli)
{
    const struct lk_reply *health;
    enum lk_exit result = lk_health_fetch(cli, &health);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        show_health_json(cli, health);
    } else {
        show_health(cli, health);
    }
    /* With any exit status, this is all there is to say. */
    result = lk_cli_flush(cli);
    return result == LK_EXIT_DONE ? lk_health_exit(health) : result;
}

/* ==== `latchkey stats`: the store's numbers */

static const struct lk_option stats_options[] = {
    {"explain", NULL, "explain each number of the daemon instead"}, {0}};

const struct lk_manual lk_manual_stats = {
    "Shows the numbers of the daemon and its store, those that may need a\n"
    "person first: operations by state, jobs, claims by verdict, sizes, "
    "batches.",
    stats_options};

static bool ends_with(struct lk_slice name, const char *ending)
{
    size_t length = strlen(ending);

    return name.len >= length &&
           memcmp(name.data + name.len - length, ending, length) == 0;
}

/*
 * What a number means for people, by the unit at the end of its name; nothing
 * if the name shows none or the number is small. A number of milliseconds that
 * large is a point in time.
 */
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

/* Name, number, meaning. A text is in the third column; an empty one is left
 * out. */
static void show_stats_table(struct lk_cli *cli, const struct lk_reply *stats)
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

/* --explain: what each number means, in the daemon's words. */
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
        show_stats_table(cli, reply);
    }
    return LK_EXIT_DONE;
}

/* ==== `latchkey clients`: who is connected, and the end of it */

const struct lk_manual lk_manual_clients = {
    "Lists the connections of the daemon: where they come from (on a unix\n"
    "socket the user and the process), their user and role, and how many of\n"
    "their commands have no reply yet. kill closes one by its ID; commands "
    "that\n"
    "it has sent are still carried out.",
    lk_action_options};

enum { COLUMNS = 9 };

/* The fields of a line that are columns, and their heads. */
static const struct column {
    const char *field;
    const char *title;
} columns[COLUMNS] = {
    {"id", "ID"},     {"addr", "FROM"}, {"user", "USER"},
    {"role", "ROLE"}, {"name", "NAME"}, {"age", "AGE"},
    {"idle", "IDLE"}, {"cmd", "LAST"},  {"waiting", "WAITING"}};

/* Cuts the next "name=value" off a line of CLIENT LIST; false: there was none.
 * A value in quotes has no space that is not escaped, and names have none. */
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

/* An empty slice: the line has no such field. */
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

/* Cuts a line off *text; false: no whole line is left. */
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

/* Ages come in seconds. On a unix socket the peer's user and process say more
 * than the address. */
static void put_client_row(struct lk_table *table, struct lk_slice line)
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

static void show_clients_table(struct lk_cli *cli, struct lk_slice text)
{
    struct lk_table table = {.columns = COLUMNS,
                             .colour = cli->colour,
                             .right = 1 | 1 << 5 | 1 << 6 | 1 << 8};
    struct lk_slice line;

    for (size_t i = 0; i < COLUMNS; i++) {
        lk_put(lk_table_cell(&table, LK_BOLD), "%s", columns[i].title);
    }
    while (next_line(&text, &line)) {
        put_client_row(&table, line);
    }
    lk_table_flush(&table, &cli->out);
}

/* Every field, as it came. */
static void show_clients_json(struct lk_cli *cli, struct lk_slice text)
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

/* CLIENT LIST is one text: a line for each connection. */
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
        show_clients_json(cli, reply->text);
    } else {
        show_clients_table(cli, reply->text);
    }
    return LK_EXIT_DONE;
}

/* LK_EXIT_NO: there is no such connection, or it is this one. */
static enum lk_exit kill_connection(struct lk_cli *cli, const char *id)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_action action = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&action.words, "CLIENT");
    lk_words_add(&action.words, "KILL");
    lk_words_add(&action.words, "ID");
    lk_words_add(&action.words, id);
    result = lk_action_words(cli, &action, NULL);
    if (result == LK_EXIT_DONE) {
        result = lk_call(cli, &action.words, &reply);
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
    return kill_connection(cli, args->words[1]);
}
