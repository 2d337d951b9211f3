/* help.c - the help texts, made from the table of commands. */
#include "cli/commands.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- Writing --------------------------------------------------------------
 */

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
    lk_put(out, "usage: latchkey [OPTION]... COMMAND [WORD]...\n\n"
                "Looks at and operates a Latchkey daemon.\n\n"
                "Commands (latchkey COMMAND --help tells more):\n");
    for (const struct lk_command *c = lk_commands; c->name != NULL; c++) {
        put_help_line(out, c->name, c->summary);
    }
    put_options(out, "Options, before or after the command", lk_global_options);
    lk_put(out,
           "\nA password is never given on the command line, where others "
           "can see it.\n"
           "After --, nothing is an option any more.\n\n%s",
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

/* ---- Finding -------------------------------------------------------------
 */

enum { GUESS_MAX = 31 };

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* How many letters to add, drop, change or swap to get from one to the other;
 * large for a word that is too long to be a slip of the finger. */
static unsigned distance(const char *a, const char *b)
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
            unsigned shift = 1 + least(cost[i - 1][k], cost[i][k - 1]);
            cost[i][k] = least(change, shift);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] &&
                a[i - 2] == b[k - 1]) {
                cost[i][k] = least(cost[i][k], 1 + cost[i - 2][k - 2]);
            }
        }
    }
    return cost[m][n];
}

struct guess {
    const char *word;
    const char *best;
    unsigned distance;
};

static void consider(struct guess *guess, const char *name)
{
    unsigned own = distance(guess->word, name);

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

const struct lk_command *lk_help_find(const char *name)
{
    struct guess guess = {.word = name, .distance = 3};

    for (const struct lk_command *c = lk_commands; c->name != NULL; c++) {
        if (strcmp(c->name, name) == 0) {
            return c;
        }
        consider(&guess, c->name);
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
        consider(&guess, option->name);
    }
    if (command != NULL) {
        option = command->manual->options;
        for (; option->name != NULL; option++) {
            consider(&guess, option->name);
        }
    }
    return guess.best;
}

/* ---- The command ----------------------------------------------------------
 */

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_help = {
    "Shows the help of latchkey, or of one command.", options};

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
