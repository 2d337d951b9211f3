/*
 * command.c - finding the row of a command, and starting it.
 *
 * A new command is a row in the table of one of the command_*.c files, with its
 * functions beside it. A new group of commands is a line in `groups`.
 */
#include "daemon/args.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORDS_MAX = LK_COMMANDS_MAX,
    ROWS_MAX = 8, /* of one word */
    SLOTS = 128,
    LETTERS = 8, /* in the longest word */
    USAGE_BYTES = 400,
};

static const struct lk_command_group *const groups[] = {
    &lk_operation_commands, &lk_lookup_commands,   &lk_job_commands,
    &lk_target_commands,    &lk_operator_commands, &lk_number_commands,
    &lk_health_commands,    &lk_session_commands,
};

/* ---- Finding a row ------------------------------------------------------- */

/* All rows whose names begin with one word. */
struct word {
    struct lk_command_word shown;
    uint64_t folded;
    unsigned roles; /* of any of its rows */
    size_t count;
    const struct lk_command *rows[ROWS_MAX];
    const char *second[ROWS_MAX]; /* the second word of the name, or NULL */
};

static struct word words[WORDS_MAX];
static size_t word_count;
static struct word *slots[SLOTS];

/*
 * A word of up to eight letters is one number: its bytes with the bit cleared
 * that distinguishes lower case from upper. Names are letters only, so two
 * words with the same number differ in case at most.
 */
static uint64_t fold(struct lk_slice name)
{
    uint64_t word = 0;

    memcpy(&word, name.data, name.len);
    return word & UINT64_C(0xdfdfdfdfdfdfdfdf);
}

static struct word **slot_of(uint64_t folded)
{
    size_t slot =
        (size_t)((folded * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % SLOTS;

    while (slots[slot] && slots[slot]->folded != folded) {
        slot = (slot + 1) % SLOTS;
    }
    return &slots[slot];
}

/* NULL: no command begins with this word. */
static struct word *find_word(struct lk_slice name)
{
    if (name.len == 0 || name.len > LETTERS) {
        return NULL;
    }
    /* fold() makes NUL and space equal, so the length has to match too. */
    struct word *found = *slot_of(fold(name));
    return found && strlen(found->shown.name) == name.len ? found : NULL;
}

static struct word *make_word(struct lk_slice name)
{
    struct word *word = &words[word_count++];

    assert(word_count <= WORDS_MAX && name.len <= LETTERS);
    memcpy(word->shown.name, name.data, name.len);
    word->shown.min_args = UINT16_MAX;
    word->folded = fold(name);
    *slot_of(word->folded) = word;
    return word;
}

/* Asserts what every row must have; a wrong row ends the program at its
 * start. */
static void add_row(const struct lk_command *row)
{
    const char *space = strchr(row->name, ' ');
    struct lk_slice first = {row->name, space ? (size_t)(space - row->name)
                                              : strlen(row->name)};
    struct word *word = find_word(first);

    assert(row->place == LK_PLACE_HERE ? row->reply_here && !row->parse
                                       : row->parse && !row->reply_here);
    assert(row->place == LK_PLACE_HERE || row->max_args <= LK_TASK_ARGS_MAX);
    word = word ? word : make_word(first);
    assert(word->count < ROWS_MAX);
    word->rows[word->count] = row;
    word->second[word->count++] = space ? space + 1 : NULL;
    word->roles |= row->roles;
    if (row->min_args < word->shown.min_args) {
        word->shown.min_args = row->min_args;
    }
    if (row->max_args > word->shown.max_args) {
        word->shown.max_args = row->max_args;
    }
}

/* Before main, so that the table is constant for all threads. */
__attribute__((constructor)) static void fill_words(void)
{
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        for (size_t j = 0; j < groups[i]->count; j++) {
            add_row(&groups[i]->rows[j]);
        }
    }
}

const struct lk_command_word *lk_command_word(size_t index)
{
    return index < word_count ? &words[index].shown : NULL;
}

/* The row of two words comes before the one of the first alone. NULL: there is
 * none for these words. */
static const struct lk_command *find_row(const struct word *word,
                                         const struct lk_slice *argv,
                                         size_t argc)
{
    const struct lk_command *first_alone = NULL;

    for (size_t i = 0; i < word->count; i++) {
        if (!word->second[i]) {
            first_alone = word->rows[i];
        } else if (argc > 1 && lk_arg_is(argv[1], word->second[i])) {
            return word->rows[i];
        }
    }
    return first_alone;
}

/* ---- Refusing ------------------------------------------------------------ */

/* A client without a role does not learn which commands exist. */
static void refuse_unknown(struct lk_conn *conn, struct lk_slice name)
{
    char shown[64];

    if (!conn->roles) {
        lk_conn_error(conn, "NOAUTH Authentication required.");
        return;
    }
    lk_conn_error(conn, "ERR unknown command %s",
                  lk_log_quote(name, shown, sizeof(shown)));
}

/* How all rows of the word are used: "JOB SHOW id ... | JOB RETRY id ...". */
static void write_usage(const struct word *word, char usage[USAGE_BYTES])
{
    usage[0] = '\0';
    for (size_t i = 0; i < word->count; i++) {
        size_t len = strlen(usage);
        snprintf(usage + len, USAGE_BYTES - len, "%s%s%s%s", i ? " | " : "",
                 word->rows[i]->name, *word->rows[i]->usage ? " " : "",
                 word->rows[i]->usage);
    }
}

static void refuse_count(struct lk_conn *conn, const struct word *word,
                         const struct lk_command *command)
{
    char usage[USAGE_BYTES];

    if (command && strchr(command->name, ' ')) {
        snprintf(usage, sizeof(usage), "%s %s", command->name, command->usage);
    } else {
        write_usage(word, usage);
    }
    lk_conn_error(conn, "ERR wrong number of arguments for '%s' command: %s",
                  command ? command->name : word->shown.name, usage);
}

/* The error lists the second words that the first may have. */
static void refuse_second_word(struct lk_conn *conn, const struct word *word,
                               struct lk_slice second)
{
    char shown[64];
    char known[128] = "";

    for (size_t i = 0; i < word->count; i++) {
        size_t len = strlen(known);
        snprintf(known + len, sizeof(known) - len, "%s%s",
                 i == 0                ? ""
                 : i + 1 < word->count ? ", "
                                       : " or ",
                 word->second[i]);
    }
    lk_conn_error(conn, "ERR %s: the action must be %s, not %s",
                  word->shown.name, known,
                  lk_log_quote(second, shown, sizeof(shown)));
}

/* `name`: what it is that needs one of the roles. */
static bool check_roles(struct lk_conn *conn, const char *name, unsigned roles)
{
    if (!roles || (roles & conn->roles)) {
        return true;
    }
    if (!conn->roles) {
        lk_conn_error(conn, "NOAUTH Authentication required.");
    } else if (roles & LK_FOR_USE) {
        lk_conn_error(conn,
                      "NOPERM %s needs the use role: AUTH with the password "
                      "of the [auth] section, or with a user of the [users] "
                      "section that has it",
                      name);
    } else {
        lk_conn_error(
            conn, LK_NOPERM, name,
            lk_role_word(roles & LK_FOR_READ ? LK_ROLE_READ : LK_ROLE_OPERATE));
    }
    return false;
}

/* Every command but those of LK_PLACE_HERE needs the store. */
static bool check_store(struct lk_conn *conn, const struct lk_command *command)
{
    struct lk_server *server = conn->server;

    if (server->store || command->place == LK_PLACE_HERE) {
        return true;
    }
    server->metrics.claims_unavailable += command->claims;
    lk_conn_error(conn, "UNAVAILABLE %s", server->opening.failure);
    return false;
}

/* May it run, as it is and here? False: it has sent an error. `command` is NULL
 * if the word has no row for these words. */
static bool check_command(struct lk_conn *conn, const struct word *word,
                          const struct lk_command *command,
                          const struct lk_slice *argv, size_t argc)
{
    if (!check_roles(conn, command ? command->name : word->shown.name,
                     command ? command->roles : word->roles)) {
        return false;
    }
    if (!command && argc > 1) {
        refuse_second_word(conn, word, argv[1]);
        return false;
    }
    if (!command || argc < command->min_args || argc > command->max_args) {
        refuse_count(conn, word, command);
        return false;
    }
    if (conn->server->config.courier_only &&
        (command->roles & (LK_FOR_USE | LK_FOR_READ)) == LK_FOR_USE) {
        lk_conn_error(conn, "ERR this daemon only delivers jobs");
        return false;
    }
    return check_store(conn, command);
}

/* ---- Running ------------------------------------------------------------- */

/* Must it wait for those in progress, so as not to overtake them in effect or
 * to keep the reader from others? */
static bool has_to_wait(const struct lk_conn *conn,
                        const struct lk_command *command)
{
    if (!conn->head || !command) {
        return false;
    }
    return command->alone || (command->place != LK_PLACE_HERE &&
                              (command->place != conn->place ||
                               conn->in_reader >= LK_READER_SHARE));
}

/* The words are copied once, into the task; what `parse` reads stays valid. */
static void start_task(struct lk_conn *conn, const struct lk_command *command,
                       const struct lk_slice *argv, size_t argc)
{
    struct lk_slice own[LK_TASK_ARGS_MAX];
    struct lk_task *task = lk_task_make(conn, command, argv, argc, own);

    if (!task) {
        lk_conn_error(conn, "UNAVAILABLE out of memory");
    } else if (!command->parse(conn, task, own, argc)) {
        lk_task_free(conn->server, task);
    } else if (command->place == LK_PLACE_BATCH) {
        lk_operation_start(conn, task);
    } else {
        lk_conn_push(conn, task);
        conn->hold = command->alone;
        lk_task_send(conn->server, task, command->place);
    }
}

/* A command that has to be run again later is counted once, when it runs. */
bool lk_command_run(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc)
{
    struct lk_metrics *metrics = &conn->server->metrics;
    const struct word *word = find_word(argv[0]);

    if (!word) {
        metrics->commands++;
        refuse_unknown(conn, argv[0]);
        return true;
    }
    const struct lk_command *command = find_row(word, argv, argc);
    if (has_to_wait(conn, command)) {
        return false;
    }
    metrics->commands++;
    metrics->by_command[word - words]++;
    conn->commands++;
    conn->command = command ? command : word->rows[0];
    conn->again = false;
    if (check_command(conn, word, command, argv, argc)) {
        assert(command);
        if (command->place == LK_PLACE_HERE) {
            command->reply_here(conn, argv, argc);
        } else {
            start_task(conn, command, argv, argc);
        }
    }
    metrics->commands -= conn->again;
    metrics->by_command[word - words] -= conn->again;
    return !conn->again;
}
