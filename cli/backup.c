/* backup.c - `latchkey backup`: the daemon writes a copy of its store. */
#include "cli/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct lk_option options[] = {
    {"why", "TEXT", "the reason, kept in the audit log (backup)"},
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_backup = {
    "Has the daemon write a consistent copy of its store while it goes on\n"
    "working. The daemon itself writes FILE, on its own machine and with its\n"
    "own rights; FILE must not exist yet. Waits until the copy is complete,\n"
    "however long that takes, unless --timeout is given.",
    options};

/* The daemon stands in another directory, so it needs the whole path. */
static enum lk_exit make_absolute(const char *path, struct lk_buf *absolute)
{
    if (path[0] != '/') {
        char *here = getcwd(NULL, 0);

        if (here == NULL) {
            lk_complain("cannot tell the current directory: %s; give the whole "
                        "path of the file",
                        strerror(errno));
            return LK_EXIT_USAGE;
        }
        lk_put(absolute, "%s/", here);
        free(here);
    }
    lk_put(absolute, "%s", path);
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_backup(struct lk_cli *cli)
{
    struct lk_deed deed = {.action = "backed up to", .patient = true};
    struct lk_buf path = {0};
    struct lk_progress *progress;
    enum lk_exit result = make_absolute(cli->args.words[0], &path);

    lk_words_add(&deed.words, "BACKUP");
    lk_words_add_slice(&deed.words, latchkey_buf_slice(&path));
    if (result == LK_EXIT_DONE) {
        result = lk_deed_words(cli, &deed, "backup");
    }
    if (result == LK_EXIT_DONE) {
        deed.file = latchkey_buf_slice(&path);
        progress = lk_progress_start(cli, "backup");
        result = lk_deed_send(cli, &deed);
        lk_progress_stop(progress);
    }
    latchkey_buf_free(&path);
    return result;
}
