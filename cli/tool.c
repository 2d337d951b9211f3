/*
 * tool.c - one run of `latchkey`: its start, its messages, its end.
 *
 * The life of a run (struct lk_cli, on the stack of main):
 *   command line   lk_args_read; wrong words and options end it with status 2
 *   server         lk_where_read, for commands that talk to a daemon; nothing
 *                  is connected yet
 *   command        lk_run_ID; the first lk_call connects. What it prints
 *                  collects in cli->out
 *   end            cli->out goes to standard output, unless the command failed;
 *                  connection, password and profiles are freed here alone
 * Messages and hints go to standard error at once.
 */
#include "cli/commands.h"
#include "lib/time.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const struct lk_command lk_commands[] = {
#define X(id, name, usage, least, most, reach, summary)                        \
    {name, usage, least, most, reach, summary, lk_run_##id, &lk_manual_##id},
    LK_COMMAND_MAP(X)
#undef X
        {0},
};

/* ---- Messages ------------------------------------------------------------ */

/* Escapes the whole sentence: parts of it may come from others. */
static void complain_values(const char *prefix, const char *format,
                            va_list values)
{
    struct lk_buf line = {0};
    char *text = NULL;

    lk_must(vasprintf(&text, format, values) < 0 ? LK_NOMEM : LK_OK);
    lk_put_line(&line, latchkey_slice(text));
    fprintf(stderr, "%s%.*s\n", prefix, (int)line.len, line.data);
    latchkey_buf_free(&line);
    free(text);
}

void lk_complain(const char *format, ...)
{
    va_list values;

    va_start(values, format);
    complain_values("latchkey: ", format, values);
    va_end(values);
}

enum lk_exit lk_complain_usage(const struct lk_cli *cli, const char *format,
                               ...)
{
    va_list values;

    va_start(values, format);
    complain_values("latchkey: ", format, values);
    va_end(values);
    fprintf(stderr, "usage: latchkey %s %s\n", cli->args.command->name,
            cli->args.command->usage);
    return LK_EXIT_USAGE;
}

/* With --json only the document is for the caller: there are no hints. */
void lk_hint(const struct lk_cli *cli, const char *format, ...)
{
    va_list values;

    if (cli->json) {
        return;
    }
    va_start(values, format);
    complain_values("", format, values);
    va_end(values);
}

/* ---- Files --------------------------------------------------------------- */

/* Writes cli->out to standard output, and empties it. */
enum lk_exit lk_cli_flush(struct lk_cli *cli)
{
    size_t length = cli->out.len;
    bool failed =
        length > 0 && (fwrite(cli->out.data, 1, length, stdout) < length ||
                       fflush(stdout) != 0);

    latchkey_buf_free(&cli->out);
    if (failed) {
        lk_complain("cannot write the output: %s", strerror(errno));
        return LK_EXIT_FAILED;
    }
    return LK_EXIT_DONE;
}

/* Appends a whole file, or standard input for "-". LK_EXIT_USAGE: it cannot be
 * read, and it has complained. */
enum lk_exit lk_read_file(const char *path, struct lk_buf *data)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    char chunk[16384];
    size_t length;
    bool failed = file == NULL;

    while (!failed && (length = fread(chunk, 1, sizeof(chunk), file)) > 0) {
        lk_must(latchkey_buf_add(data, chunk, length));
    }
    failed = failed || ferror(file);
    if (failed) {
        lk_complain("cannot read %s: %s%s", standard ? "standard input" : path,
                    strerror(errno),
                    errno == ENOENT   ? "; check the path"
                    : errno == EACCES ? "; let this user read it, or name "
                                        "another file"
                                      : "");
    }
    if (file != NULL && !standard) {
        fclose(file);
    }
    return failed ? LK_EXIT_USAGE : LK_EXIT_DONE;
}

/* ---- One run ------------------------------------------------------------- */

/* The number of words, by the table of commands. */
static enum lk_exit check_words(const struct lk_cli *cli)
{
    const struct lk_command *command = cli->args.command;
    size_t count = cli->args.word_count;

    if (count < command->least_words) {
        return lk_complain_usage(cli, "%zu %s after \"%s\", but it needs %zu",
                                 count, count == 1 ? "word" : "words",
                                 command->name, command->least_words);
    }
    if (count > command->most_words) {
        return lk_complain_usage(cli, "\"%s\" is one word too many after %s",
                                 cli->args.words[command->most_words],
                                 command->name);
    }
    return LK_EXIT_DONE;
}

/* NO_COLOR and TERM=dumb turn it off, as elsewhere. */
static bool has_colour(void)
{
    const char *terminal = getenv("TERM");
    const char *refused = getenv("NO_COLOR");

    return isatty(STDOUT_FILENO) && (refused == NULL || *refused == '\0') &&
           terminal != NULL && strcmp(terminal, "dumb") != 0;
}

const char *lk_environment(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

uint64_t lk_wall_clock_ms(void)
{
    return lk_wall_ms();
}

static enum lk_exit run_named_command(struct lk_cli *cli)
{
    const struct lk_command *command = cli->args.command;
    enum lk_exit result = check_words(cli);

    cli->json = lk_args_flag(&cli->args, "json");
    cli->colour = has_colour();
    if (lk_args_flag(&cli->args, "wide")) {
        lk_table_wide();
    }
    cli->now_ms = lk_wall_clock_ms();
    if (result == LK_EXIT_DONE && command->reach == LK_CONNECTS) {
        result = lk_where_read(cli);
    }
    return result == LK_EXIT_DONE ? command->run(cli) : result;
}

static const struct lk_option version_options[] = {{0}};

const struct lk_manual lk_manual_version = {
    "Shows the version, as --version does.", version_options};

enum lk_exit lk_run_version(struct lk_cli *cli)
{
    lk_put(&cli->out, "latchkey %s\n", LATCHKEY_VERSION);
    return LK_EXIT_DONE;
}

static enum lk_exit run_tool(struct lk_cli *cli, int argc, char **argv)
{
    enum lk_exit result = lk_args_read(&cli->args, argc, argv);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (lk_args_flag(&cli->args, "version")) {
        result = lk_run_version(cli);
    } else if (lk_args_flag(&cli->args, "help")) {
        lk_help_write(&cli->out, cli->args.command);
    } else if (cli->args.command == NULL) {
        lk_complain("name a command; latchkey --help lists them");
        result = LK_EXIT_USAGE;
    } else {
        result = run_named_command(cli);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct lk_cli cli = {0};
    enum lk_exit result = run_tool(&cli, argc, argv);
    enum lk_exit flushed;

    if (result > LK_EXIT_NO) {
        latchkey_buf_free(&cli.out); /* half of the output would mislead */
    }
    flushed = lk_cli_flush(&cli);
    latchkey_client_close(cli.client);
    latchkey_buf_free(&cli.password);
    lk_profiles_free(&cli.profiles);
    latchkey_buf_free(&cli.subject.text);
    lk_args_free(&cli.args);
    return (int)(result == LK_EXIT_DONE ? flushed : result);
}
