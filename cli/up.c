/* up.c - `latchkey up`: a gateway before an app, by one command. */
#include "cli/up.h"
#include "cli/commands.h"

static const struct lk_option options[] = {
    {"upstream", "URL",
     "the app: http://HOST:PORT[/PATH], https://...,\n"
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
    {"store", "sqlite:PATH", "where answers are kept (in the folder)"},
    {"dir", "FOLDER",
     "a private folder for everything\n"
     "(~/.local/state/latchkey/up-PORT)"},
    {"print-config", NULL, "print nginx's configuration, start nothing"},
    {0},
};

const struct lk_manual lk_manual_up = {
    "Starts latchkeyd and nginx before an app, shows each request and what\n"
    "became of it, and stops both on Ctrl-C. Answers are kept across restarts.",
    options};

/* They are for commands that ask a daemon. */
static enum lk_exit refuse_options(const struct lk_cli *cli)
{
    const struct lk_option *own = lk_options_for(cli->args.command);

    for (const struct lk_option *at = lk_global_options; at != own; at++) {
        if (lk_args_flag(&cli->args, at->name)) {
            return lk_complain_usage(cli, "up has no --%s", at->name);
        }
    }
    return LK_EXIT_DONE;
}

static enum lk_exit read_values(struct lk_up *up)
{
    const struct lk_args *args = &up->cli->args;
    enum lk_exit result = refuse_options(up->cli);

    up->plain = lk_args_flag(args, "tenant-plain");
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
    return result == LK_EXIT_DONE ? lk_up_find_files(up) : result;
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
