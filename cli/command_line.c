/*
 * command_line.c - the command line: the table of commands, words and options,
 * and the help that is made from them.
 *
 *   latchkey [OPTION]... COMMAND [OPTION | WORD]... [-- WORD...]
 *
 *   OPTION = --NAME | --NAME VALUE | --NAME=VALUE | -h | -V
 *
 * Options may be anywhere. An option means the same with every command that has
 * it, which is why the command can be found before the options are read.
 * Everything points into argv; nothing is copied.
 */
#include "cli/cli.h"
#include "cli/commands.h"
#include "config/config.h"
#include "lib/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ==== Sorts the command line into a command, its words and options */

/* Those for the daemon, those for output, the rest: see lk_options_for. */
const struct lk_option lk_global_options[] = {
    {"server", "ADDRESS",
     "unix:PATH or HOST:PORT (LATCHKEY_SERVER;\n"
     "unix:/run/latchkey/latchkeyd.sock)"},
    {"profile", "NAME",
     "a server of ~/.config/latchkey/config\n"
     "(LATCHKEY_PROFILE; latchkey profiles lists them)"},
    {"user", "NAME", "a user of the daemon's [users] (LATCHKEY_USER)"},
    {"password-file", "FILE", "its password (LATCHKEY_PASSWORD)"},
    {"timeout", "DURATION", "how long to wait for a reply (10s)"},
    {"json", NULL, "print one JSON document"},
    {"wide", NULL, "do not cut tables to the width of the terminal"},
    {"help", NULL, "show help; after a command, that command's"},
    {"version", NULL, "show the version"},
    {0},
};

/*
 * The options are sorted by reach, so those of a command are a tail of the
 * list: all for one that connects, none about servers for one that only prints.
 */
const struct lk_option *lk_options_for(const struct lk_command *command)
{
    static const char *const first[] = {
        [LK_ALONE] = "help", [LK_PRINTS] = "json", [LK_CONNECTS] = "server"};
    const struct lk_option *option = lk_global_options;

    while (strcmp(option->name, first[command->reach]) != 0) {
        option++;
    }
    return option;
}

/* ---- Reading ------------------------------------------------------------- */

static const struct lk_option *search_options(const struct lk_option *options,
                                              const char *name, size_t length)
{
    for (; options->name != NULL; options++) {
        if (strlen(options->name) == length &&
            strncmp(options->name, name, length) == 0) {
            return options;
        }
    }
    return NULL;
}

/* An option of one command, or of any if it is not known yet. */
static const struct lk_option *find_command_option(
    const struct lk_command *command, const char *name, size_t length)
{
    const struct lk_option *found =
        search_options(lk_global_options, name, length);

    if (found == NULL && command != NULL) {
        return search_options(command->manual->options, name, length);
    }
    for (command = lk_commands; found == NULL && command->name != NULL;
         command++) {
        found = search_options(command->manual->options, name, length);
    }
    return found;
}

/* "[=VALUE]" is optional, and can only be given with "=". */
static bool needs_value(const struct lk_option *option)
{
    return option->value != NULL && option->value[0] != '[';
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

/* The name of an option without dashes, and the short ones by their names. */
static const char *option_name(const char *word)
{
    if (strcmp(word, "-h") == 0) {
        return "help";
    }
    if (strcmp(word, "-V") == 0) {
        return "version";
    }
    return word[1] == '-' ? word + 2 : word + 1;
}

/*
 * Where the command's name is: the first word that is neither an option
 * nor the value of one. An option means the same with every command that has
 * it, so this needs no knowledge of the command. 0: there is none.
 */
static int find_command(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            return i + 1 < argc ? i + 1 : 0;
        }
        if (!is_option(argv[i])) {
            return i;
        }
        const char *name = option_name(argv[i]);
        const struct lk_option *option =
            find_command_option(NULL, name, strcspn(name, "="));
        if (option != NULL && needs_value(option) &&
            strchr(name, '=') == NULL) {
            i++;
        }
    }
    return 0;
}

/* LK_EXIT_USAGE, with the nearest option if one is near. */
static enum lk_exit refuse_option(const struct lk_command *command,
                                  const char *word)
{
    const char *nearest = lk_help_nearest_option(command, option_name(word));
    const char *name = command == NULL ? "" : command->name;
    const char *gap = command == NULL ? "" : " ";

    if (nearest != NULL) {
        lk_complain("latchkey%s%s has no option %s; did you mean --%s?", gap,
                    name, word, nearest);
    } else {
        lk_complain("latchkey%s%s has no option %s; see latchkey%s%s --help",
                    gap, name, word, gap, name);
    }
    return LK_EXIT_USAGE;
}

/* Reads the option at argv[*at], and moves *at to its last word. */
static enum lk_exit read_option(struct lk_args *args, char **argv, int *at)
{
    const char *word = argv[*at];
    const char *name = option_name(word);
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const struct lk_option *option =
        find_command_option(args->command, name, length);
    /* Before the command is known, any option of any command would do. */
    bool known = option != NULL && (word[1] == '-' || word[2] == '\0') &&
                 (args->command != NULL ||
                  search_options(lk_global_options, name, length) != NULL);

    if (!known) {
        return refuse_option(args->command, word);
    }
    if (option->value == NULL && value != NULL) {
        lk_complain("--%s takes no value", option->name);
        return LK_EXIT_USAGE;
    }
    if (needs_value(option) && value == NULL) {
        value = argv[++*at];
        if (value == NULL) {
            lk_complain("--%s needs its value: --%s %s", option->name,
                        option->name, option->value);
            return LK_EXIT_USAGE;
        }
    }
    args->given[args->given_count++] = (struct lk_given){option, value};
    return LK_EXIT_DONE;
}

/* LK_EXIT_USAGE: it has complained. The lists have room for all of argv; the
 * caller frees them with lk_args_free() either way. */
enum lk_exit lk_args_read(struct lk_args *args, int argc, char **argv)
{
    int command_at = find_command(argc, argv);
    bool options_over = false;
    enum lk_exit result = LK_EXIT_DONE;

    args->words = lk_must_make((size_t)argc + 1, sizeof(*args->words));
    args->given = lk_must_make((size_t)argc + 1, sizeof(*args->given));
    if (command_at != 0) {
        args->command = lk_help_find(argv[command_at]);
        result = args->command == NULL ? LK_EXIT_USAGE : LK_EXIT_DONE;
    }
    for (int i = 1; i < argc && result == LK_EXIT_DONE; i++) {
        if (!options_over && strcmp(argv[i], "--") == 0) {
            options_over = true;
        } else if (!options_over && is_option(argv[i])) {
            result = read_option(args, argv, &i);
        } else if (i != command_at) {
            args->words[args->word_count++] = argv[i];
        }
    }
    return result;
}

void lk_args_free(struct lk_args *args)
{
    free(args->words);
    free(args->given);
    *args = (struct lk_args){0};
}

/* ---- Asking -------------------------------------------------------------- */

/* Was the option given, with or without a value? */
bool lk_args_flag(const struct lk_args *args, const char *name)
{
    for (size_t i = 0; i < args->given_count; i++) {
        if (strcmp(args->given[i].option->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* The value of the next such option from *at on, for options that repeat. Start
 * with 0; NULL: there are no more. */
const char *lk_args_next(const struct lk_args *args, const char *name,
                         size_t *at)
{
    while (*at < args->given_count) {
        const struct lk_given *given = &args->given[(*at)++];

        if (strcmp(given->option->name, name) == 0) {
            return given->value;
        }
    }
    return NULL;
}

/* Of an option that was given more than once the last one counts. */
const char *lk_args_value(const struct lk_args *args, const char *name)
{
    const char *last = NULL;
    const char *value;
    size_t at = 0;

    while ((value = lk_args_next(args, name, &at)) != NULL) {
        last = value;
    }
    return last;
}

/* *number stays as it is if the option was not given: set the default first.
 * The same is true for the durations and times below. */
enum lk_exit lk_args_number(const struct lk_args *args, const char *name,
                            uint64_t least, uint64_t most, uint64_t *number)
{
    const char *text = lk_args_value(args, name);
    uint64_t value;

    if (text == NULL) {
        return LK_EXIT_DONE;
    }
    if (!lk_number_read(latchkey_slice(text), most, &value) || value < least) {
        lk_complain("--%s is \"%s\", but must be a number from %llu to %llu",
                    name, text, (unsigned long long)least,
                    (unsigned long long)most);
        return LK_EXIT_USAGE;
    }
    *number = value;
    return LK_EXIT_DONE;
}

enum lk_exit lk_args_duration(const struct lk_args *args, const char *name,
                              uint64_t *ms)
{
    const char *text = lk_args_value(args, name);

    if (text == NULL || lk_duration_read(text, ms)) {
        return LK_EXIT_DONE;
    }
    lk_complain("--%s: \"%s\" %s", name, text, lk_duration_fault(text));
    return LK_EXIT_USAGE;
}

/* YYYY-MM-DD: its first moment in UTC. YYYY-MM-DDTHH:MMZ: without seconds. */
static bool read_short_time(const char *text, uint64_t *ms)
{
    enum { DATE = 10, MINUTES = 16 };
    size_t length = strlen(text);
    char whole[40];

    if (length == DATE) {
        snprintf(whole, sizeof(whole), "%sT00:00:00Z", text);
    } else if (length > MINUTES && length < 32 && text[MINUTES] != ':') {
        snprintf(whole, sizeof(whole), "%.*s:00%s", MINUTES, text,
                 text + MINUTES);
    } else {
        return false;
    }
    return latchkey_timestamp_parse(latchkey_slice(whole), ms) == LK_OK;
}

/* A duration with its unit, before now. */
static bool read_ago(const char *text, uint64_t now_ms, uint64_t *ms)
{
    uint64_t before_ms;
    size_t length = strlen(text);

    /* Digits alone are Unix time. */
    if (length == strspn(text, "0123456789") ||
        !lk_duration_read(text, &before_ms) || before_ms > now_ms) {
        return false;
    }
    *ms = now_ms - before_ms;
    return true;
}

/* Milliseconds since 1970. A date, RFC 3339 with or without seconds, Unix time,
 * or a duration before `now_ms`. */
enum lk_exit lk_args_time(const struct lk_args *args, const char *name,
                          uint64_t now_ms, uint64_t *ms)
{
    const char *text = lk_args_value(args, name);

    if (text == NULL || read_short_time(text, ms) ||
        read_ago(text, now_ms, ms) ||
        latchkey_timestamp_parse(latchkey_slice(text), ms) == LK_OK) {
        return LK_EXIT_DONE;
    }
    lk_complain(
        "--%s is \"%s\", but must be a point in time: 2026-01-31, "
        "2026-01-31T12:00:00Z, Unix time, or a duration before now: 12h, 7d",
        name, text);
    return LK_EXIT_USAGE;
}

/* ==== The help texts, made from the table of commands */

static const char exit_codes[] =
    "Exit status:\n"
    "  0  done, or found\n"
    "  1  the answer is no: not found, key refused, damaged, nothing was\n"
    "     changed (KEPT, STALE, evict of what is not completed), or something\n"
    "     needs a person (health)\n"
    "  2  the command line is wrong, or a file that it names cannot be read\n"
    "  3  the daemon is out of reach, or its store cannot decide now\n"
    "  4  not allowed: another user, role or password is needed\n"
    "  5  any other error\n";

/* ---- Writing ------------------------------------------------------------- */

/* A help text may have lines; those after the first are set in. */
static void put_help_line(struct lk_buf *out, const char *left,
                          const char *right)
{
    lk_put(out, "  %-24s  ", left);
    for (;;) {
        int length = (int)strcspn(right, "\n");

        lk_put(out, "%.*s\n", length, right);
        if (right[length] == '\0') {
            return;
        }
        lk_put(out, "%28s", "");
        right += length + 1;
    }
}

static void put_options(struct lk_buf *out, const char *title,
                        const struct lk_option *options)
{
    if (options->name == NULL) {
        return;
    }
    lk_put(out, "\n%s:\n", title);
    for (; options->name != NULL; options++) {
        struct lk_buf left = {0};

        lk_put(&left, "--%s%s%s", options->name,
               options->value == NULL || options->value[0] == '[' ? "" : " ",
               options->value == NULL ? "" : options->value);
        put_help_line(out, left.data, options->help);
        latchkey_buf_free(&left);
    }
}

static void put_overview(struct lk_buf *out)
{
    lk_put(out, "usage: latchkey [OPTION]... COMMAND [WORD]...\n"
                "\n"
                "Inspects and operates a Latchkey daemon.\n"
                "\n"
                "Commands (see latchkey COMMAND --help):\n");
    for (const struct lk_command *c = lk_commands; c->name != NULL; c++) {
        put_help_line(out, c->name, c->summary);
    }
    put_options(out, "Options, before or after the command", lk_global_options);
    lk_put(out,
           "\n"
           "A password is never given on the command line, where others can "
           "see it.\n"
           "Words after -- are never options.\n"
           "\n"
           "%s",
           exit_codes);
}

enum { HELP_WIDTH = 78 };

/* By name only: what the command has of its own has to stay in view on a
 * terminal of 24 lines. */
static void put_common(struct lk_buf *out, const struct lk_option *options)
{
    size_t column = 0;

    lk_put(out,
           "\nOptions of every command (latchkey --help explains them, and "
           "the exit status):\n");
    for (; options->name != NULL; options++) {
        size_t length = 3 + strlen(options->name);

        if (column + length > HELP_WIDTH) {
            lk_put(out, "\n");
            column = 0;
        }
        lk_put(out, "%s--%s", column == 0 ? "  " : " ", options->name);
        column += length;
    }
    lk_put(out, "\n");
}

void lk_help_write(struct lk_buf *out, const struct lk_command *command)
{
    if (command == NULL) {
        put_overview(out);
        return;
    }
    lk_put(out, "usage: latchkey %s%s%s\n\n%s\n", command->name,
           command->usage[0] == '\0' ? "" : " ", command->usage,
           command->manual->about);
    put_options(out, "Options", command->manual->options);
    put_common(out, lk_options_for(command));
}

/* ---- Finding ------------------------------------------------------------- */

/* Letters of the longest word for which a better one is guessed. */
enum { GUESS_MAX = 31 };

static unsigned least_of(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/*
 * The number of letters to add, drop, change or swap to get from one word to
 * the other; cost[i][k] is that of the first i and k letters. Large for a word
 * that is too long to be a slip of the finger.
 */
static unsigned edit_distance(const char *a, const char *b)
{
    unsigned cost[GUESS_MAX + 1][GUESS_MAX + 1];
    size_t m = strlen(a);
    size_t n = strlen(b);

    if (m > GUESS_MAX || n > GUESS_MAX) {
        return GUESS_MAX;
    }
    for (size_t i = 0; i <= m; i++) {
        for (size_t k = 0; k <= n; k++) {
            if (i == 0 || k == 0) {
                cost[i][k] = (unsigned)(i + k);
                continue;
            }
            unsigned change = cost[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            unsigned shift = 1 + least_of(cost[i - 1][k], cost[i][k - 1]);
            cost[i][k] = least_of(change, shift);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] &&
                a[i - 2] == b[k - 1]) {
                cost[i][k] = least_of(cost[i][k], 1 + cost[i - 2][k - 2]);
            }
        }
    }
    return cost[m][n];
}

/* The best name so far, and how far it is from the word. */
struct guess {
    const char *word;
    const char *best;
    unsigned distance;
};

static void consider_name(struct guess *guess, const char *name)
{
    unsigned own = edit_distance(guess->word, name);

    /* The beginning of a name counts as a good try. */
    if (strlen(guess->word) > 1 &&
        strncmp(guess->word, name, strlen(guess->word)) == 0) {
        own = 1;
    }
    if (own < guess->distance && own < strlen(name)) {
        guess->best = name;
        guess->distance = own;
    }
}

/* NULL: there is no such command, and it has complained. */
const struct lk_command *lk_help_find(const char *name)
{
    struct guess guess = {.word = name, .distance = 3};

    for (const struct lk_command *c = lk_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
        consider_name(&guess, c->name);
    }
    if (guess.best != NULL) {
        lk_complain("there is no command \"%s\"; did you mean \"%s\"?", name,
                    guess.best);
    } else {
        lk_complain("there is no command \"%s\"; latchkey --help lists them",
                    name);
    }
    return NULL;
}

const char *lk_help_nearest_option(const struct lk_command *command,
                                   const char *word)
{
    struct guess guess = {.word = word, .distance = 3};
    const struct lk_option *option;

    for (option = lk_global_options; option->name != NULL; option++) {
        consider_name(&guess, option->name);
    }
    if (command != NULL) {
        option = command->manual->options;
        for (; option->name != NULL; option++) {
            consider_name(&guess, option->name);
        }
    }
    return guess.best;
}

/* ---- The command --------------------------------------------------------- */

static const struct lk_option help_options[] = {{0}};

const struct lk_manual lk_manual_help = {
    "Shows the help of latchkey, or of one command.", help_options};

enum lk_exit lk_run_help(struct lk_cli *cli)
{
    const struct lk_command *command = NULL;

    if (cli->args.word_count > 0) {
        command = lk_help_find(cli->args.words[0]);
        if (command == NULL) {
            return LK_EXIT_USAGE;
        }
    }
    lk_help_write(&cli->out, command);
    return LK_EXIT_DONE;
}
