/*
 * main.c - latchkeyd: options, settings, then the server until it stops.
 *
 * Exit status: 0 after a stop that a signal asked for, and after --help,
 * --version and a valid --check-config; 1 if the daemon cannot start or has to
 * stop by itself; 2 if the command line or the settings are wrong.
 */
#include "daemon/daemon.h"
#include "daemon/outbox.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_USAGE = 2 };

static const char usage[] =
    "usage: latchkeyd [options]\n"
    "Decides which of identical requests runs, and stores its response.\n"
    "\n"
    "  --config FILE       settings; without it all have defaults\n"
    "  --check-config      reports what is wrong with the settings, then ends\n"
    "  --store URL         where operations are stored: sqlite:/path/to/file,\n"
    "                      postgres://host/database or redis://host:port\n"
    "  --listen ADDRESS    unix:PATH or HOST:PORT, repeatable; port 0 takes\n"
    "                      a free one and logs it\n"
    "  --set SETTING=VALUE overrides any setting, as store.lock=10s;\n"
    "                      repeatable\n"
    "  --courier-only      delivers jobs and nothing else, beside the daemons\n"
    "                      that share its PostgreSQL store\n"
    "  --version, --help\n"
    "\n"
    "Signals: TERM and INT stop after every reply is sent, HUP reads the\n"
    "settings again. Logs go to standard error.\n";

/* Outlives the server, whose reloads read `options` again. */
struct command_line {
    struct lk_options options;
    bool check_only;
    bool done; /* --help or --version */
};

/* Both strings are copied: argv is overwritten where it holds secrets. */
static void add_value(struct lk_options *options, const char *setting,
                      const char *value)
{
    struct lk_option_value *values =
        realloc(options->values, (options->count + 1) * sizeof(*values));
    char *setting_copy = strdup(setting);
    char *value_copy = value ? strdup(value) : NULL;

    if (!values || !setting_copy || (value && !value_copy)) {
        fputs("latchkeyd: out of memory\n", stderr);
        exit(EXIT_FAILURE);
    }
    values[options->count++] =
        (struct lk_option_value){setting_copy, value_copy};
    options->values = values;
}

/* False: the command line is wrong, and standard error has the reason. Values
 * of settings keep their order. */
static bool read_command_line(int argc, char **argv, struct command_line *line)
{
    static const struct option known[] = {
        {"config", required_argument, NULL, 'c'},
        {"check-config", no_argument, NULL, 'C'},
        {"store", required_argument, NULL, 's'},
        {"listen", required_argument, NULL, 'l'},
        {"set", required_argument, NULL, 'S'},
        {"courier-only", no_argument, NULL, 'o'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (option) {
        case 'c':
            line->options.config_path = optarg;
            break;
        case 'C':
            line->check_only = true;
            break;
        case 's':
            add_value(&line->options, "daemon.store", optarg);
            lk_url_mask(optarg);
            break;
        case 'l':
            add_value(&line->options, "daemon.listen", optarg);
            break;
        case 'S':
            add_value(&line->options, optarg, NULL);
            lk_config_hide_secret(optarg);
            break;
        case 'o':
            add_value(&line->options, "courier.only", "yes");
            break;
        case 'v':
            puts("latchkeyd " LATCHKEY_VERSION);
            line->done = true;
            return true;
        case 'h':
            fputs(usage, stdout);
            line->done = true;
            return true;
        default:
            return false;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "latchkeyd: unexpected argument \"%s\"\n",
                argv[optind]);
        return false;
    }
    return true;
}

/* One line each, behind the name of the program. */
static void print_lines(const struct lk_buf *lines, const char *prefix)
{
    const char *at = lines->data;
    const char *end = at + lines->len;

    while (at < end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;
        fprintf(stderr, "latchkeyd: %s%.*s\n", prefix, (int)(stop - at), at);
        at = newline ? newline + 1 : end;
    }
}

/* Reads the file and the options into `config`, which the caller frees if this
 * returns true. Prints all errors at once, not just the first. */
static bool read_settings(const struct command_line *line,
                          struct lk_config *config)
{
    struct lk_buf errors = {0};
    struct lk_buf warnings = {0};
    enum lk_status status =
        lk_options_read(&line->options, config, &errors, &warnings);

    print_lines(&warnings, "warning: ");
    print_lines(&errors, "");
    if (status && !errors.len) {
        fprintf(stderr, "latchkeyd: %s\n", latchkey_status_text(status));
    }
    latchkey_buf_free(&errors);
    latchkey_buf_free(&warnings);
    return status == LK_OK;
}

/* Runs the server. Takes what `config` owns: the server replaces its settings
 * at a reload, and they are freed here at the end. */
static int serve(const struct command_line *line, struct lk_config *config)
{
    struct lk_server *server = calloc(1, sizeof(*server));
    int result = EXIT_FAILURE;

    if (!server) {
        fputs("latchkeyd: out of memory\n", stderr);
        lk_config_free(config);
        return EXIT_FAILURE;
    }
    server->config = *config;
    server->options = &line->options;
    server->outbox_class = &lk_courier_class;
    lk_log_set_level((enum lk_log_level)config->log_level);
    umask(0077); /* no other user may read stored responses */
    if (lk_server_open(server) == LK_OK && lk_server_run(server)) {
        result = EXIT_SUCCESS;
    }
    lk_config_free(&server->config);
    free(server);
    return result;
}

/* --check-config: prints all settings but secrets, as they would apply. */
static int print_settings(const struct lk_config *config)
{
    struct lk_buf settings = {0};
    bool made = lk_config_dump(config, &settings) == LK_OK;

    if (made) {
        fwrite(settings.data, 1, settings.len, stdout);
        fputs("# the settings are valid\n", stdout);
    }
    latchkey_buf_free(&settings);
    return made ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void free_command_line(struct command_line *line)
{
    for (size_t i = 0; i < line->options.count; i++) {
        free(line->options.values[i].setting);
        free(line->options.values[i].value);
    }
    free(line->options.values);
}

int main(int argc, char **argv)
{
    struct command_line line = {0};
    struct lk_config config;
    int result = EXIT_SUCCESS;

    if (!read_command_line(argc, argv, &line)) {
        fputs("latchkeyd: try --help\n", stderr);
        result = EXIT_USAGE;
    } else if (!line.done) {
        if (!read_settings(&line, &config)) {
            result = EXIT_USAGE;
        } else if (line.check_only) {
            result = print_settings(&config);
            lk_config_free(&config);
        } else {
            result = serve(&line, &config);
        }
    }
    free_command_line(&line);
    return result;
}
