/* up.c - `latchkey up`: a gateway in front of an app, by one command. */
#include "cli/up.h"
#include "cli/commands.h"
#include "cli/move.h"

#include <string.h>

static const struct lk_option options[] = {
    {"upstream", "URL",
     "the app: PORT, http://HOST:PORT[/PATH], https://...,\n"
     "unix:SOCKET[:/PATH], fastcgi://HOST:PORT[/SCRIPT],\n"
     "fastcgi://unix:SOCKET[:/SCRIPT],\n"
     "uwsgi://HOST:PORT or scgi://HOST:PORT"},
    {"listen", "ADDRESS", "PORT, HOST:PORT or unix:PATH (127.0.0.1:8080)"},
    {"tenant", "VALUE",
     "what tells callers apart, as nginx writes it\n"
     "(Authorization, else X-Api-Key)"},
    {"tenant-plain", NULL, "store it as it is, not as a hash"},
    {"mode", "MODE", "required, optional or observe (optional)"},
    {"path", "PATH", "a path of the app that takes POST, for the curl line"},
    {"async", NULL, "answer Prefer: respond-async with 202, run it later"},
    {"store", "URL",
     "where answers are kept: sqlite:PATH, postgres://...\n"
     "or redis://... (a file in the folder)"},
    {"migrate", NULL, "first make or update what that store needs"},
    {"dir", "FOLDER",
     "a private folder for everything\n"
     "(~/.local/state/latchkey/up-PORT)"},
    {"print-config", NULL, "print nginx's configuration, start nothing"},
    {0},
};

const struct lk_manual lk_manual_up = {
    "Starts latchkeyd and nginx in front of an app, shows each request and "
    "its\n"
    "outcome, and stops both on Ctrl-C. Answers are kept across restarts.",
    options};

/* They are for commands that ask a daemon. */
static enum lk_exit refuse_options(const struct lk_cli *cli)
{
    const struct lk_option *own = lk_options_for(cli->args.command);

    for (const struct lk_option *at = lk_global_options; at != own; at++) {
        if (lk_args_flag(&cli->args, at->name)) {
            return lk_complain_usage(cli,
                                     "up has no --%s: it starts a daemon of "
                                     "its own",
                                     at->name);
        }
    }
    return LK_EXIT_DONE;
}

static enum lk_exit check_together(const struct lk_up *up)
{
    if (up->async && strcmp(up->mode, "observe") == 0) {
        return lk_complain_usage(up->cli, "--mode observe changes nothing, so "
                                          "it goes without --async");
    }
    if (up->async && strncmp(up->files.store_url, "redis", 5) == 0) {
        return lk_complain_usage(up->cli, "--async needs a store that keeps "
                                          "requests: sqlite: or postgres:");
    }
    return LK_EXIT_DONE;
}

/* What it says is shown before anything is started. */
static enum lk_exit migrate(struct lk_up *up)
{
    enum lk_exit result = LK_EXIT_DONE;
    enum lk_exit flushed;

    if (lk_args_flag(&up->cli->args, "migrate")) {
        result = lk_migrate_store(up->cli, up->files.store_url);
        flushed = lk_cli_flush(up->cli);
        result = result == LK_EXIT_DONE ? flushed : result;
    }
    return result;
}

static enum lk_exit read_values(struct lk_up *up)
{
    const struct lk_args *args = &up->cli->args;
    enum lk_exit result = refuse_options(up->cli);

    up->plain = lk_args_flag(args, "tenant-plain");
    up->async = lk_args_flag(args, "async");
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_app(up, lk_args_value(args, "upstream"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_listen(up, lk_args_value(args, "listen"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_tenant(up, lk_args_value(args, "tenant"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_mode(up, lk_args_value(args, "mode"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_read_path(up, lk_args_value(args, "path"));
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_find_files(up);
    }
    return result == LK_EXIT_DONE ? check_together(up) : result;
}

static enum lk_exit bring_up(struct lk_up *up)
{
    enum lk_exit result = lk_up_check_programs(up);

    if (result == LK_EXIT_DONE) {
        result = lk_up_make_files(up);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_check_address(up);
    }
    if (result == LK_EXIT_DONE) {
        result = migrate(up);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_up_run(up);
        lk_up_remove_files(up);
    }
    return result;
}

enum lk_exit lk_run_up(struct lk_cli *cli)
{
    struct lk_up up = {.cli = cli, .lock_fd = -1};
    enum lk_exit result = read_values(&up);

    if (result == LK_EXIT_DONE && lk_args_flag(&cli->args, "print-config")) {
        lk_up_put_config(&up, &cli->out);
    } else if (result == LK_EXIT_DONE) {
        result = bring_up(&up);
    }
    lk_up_free(&up);
    return result;
}
