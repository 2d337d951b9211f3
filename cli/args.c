/* args.c - sorts the command line into a command, its words and options. */
#include "cli/cli.h"
#include "config/config.h"
#include "lib/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    {"wide", NULL, "cut no table to the width of the terminal"},
    {"help", NULL, "show help; after a command, that command's"},
    {"version", NULL, "show the version"},
    {0},
};

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

/* ---- Reading --------------------------------------------------------------
 */

static const struct lk_option *search(const struct lk_option *options,
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
static const struct lk_option *find_option(const struct lk_command *command,
                                           const char *name, size_t length)
{
    const struct lk_option *found = search(lk_global_options, name, length);

    if (found == NULL && command != NULL) {
        return search(command->manual->options, name, length);
    }
    for (command = lk_commands; found == NULL && command->name != NULL;
         command++) {
        found = search(command->manual->options, name, length);
    }
    return found;
}

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
 * Where the command's name stands: the first word that is neither an option
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
            find_option(NULL, name, strcspn(name, "="));
        if (option != NULL && needs_value(option) &&
            strchr(name, '=') == NULL) {
            i++;
        }
    }
    return 0;
}

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
    const struct lk_option *option = find_option(args->command, name, length);
    /* Before the command is known, any option of any command would do. */
    bool known = option != NULL && (word[1] == '-' || word[2] == '\0') &&
                 (args->command != NULL ||
                  search(lk_global_options, name, length) != NULL);

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

/* ---- Asking ---------------------------------------------------------------
 */

bool lk_args_flag(const struct lk_args *args, const char *name)
{
    for (size_t i = 0; i < args->given_count; i++) {
        if (strcmp(args->given[i].option->name, name) == 0) {
            return true;
        }
    }
    return false;
}

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

enum lk_exit lk_args_time(const struct lk_args *args, const char *name,
                          uint64_t now_ms, uint64_t *ms)
{
    const char *text = lk_args_value(args, name);

    if (text == NULL || read_short_time(text, ms) ||
        read_ago(text, now_ms, ms) ||
        latchkey_timestamp_parse(latchkey_slice(text), ms) == LK_OK) {
        return LK_EXIT_DONE;
    }
    lk_complain("--%s is \"%s\", but must be a point in time: 2026-01-31, "
                "2026-01-31T12:00:00Z, Unix time, or so long ago: 12h, 7d",
                name, text);
    return LK_EXIT_USAGE;
}
