/*
 * command_operator.c - what operators do to the store as a whole: VERIFY,
 * BACKUP and CLOCK ACCEPT.
 *
 * VERIFY and BACKUP are long work (thread.c): they have a thread of their own,
 * one at a time, and INFO shows their progress. Each runs alone on its
 * connection.
 */
#include "daemon/args.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4095 };

/* ---- VERIFY -------------------------------------------------------------- */

LK_PARSE(verify)
{
    task->args.verify.progress = &conn->server->long_work;
    return true;
}

static size_t count_lines(struct lk_slice text)
{
    size_t lines = 0;

    for (size_t i = 0; i < text.len; i++) {
        lines += text.data[i] == '\n';
    }
    return lines + (text.len && text.data[text.len - 1] != '\n');
}

/* An array: `first`, then each line of `text`. */
static enum lk_status write_lines(struct lk_buf *out, const char *first,
                                  struct lk_slice text)
{
    enum lk_status status = lk_resp_array(out, 1 + count_lines(text));

    if (!status) {
        status = lk_resp_bulk(out, latchkey_slice(first));
    }
    while (!status && text.len) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t len = end ? (size_t)(end - text.data) : text.len;
        status = lk_resp_bulk(out, (struct lk_slice){text.data, len});
        len += end != NULL;
        text = (struct lk_slice){text.data + len, text.len - len};
    }
    return status;
}

/* Long work: reads the whole store. The reply lists what is damaged. */
static enum lk_status run_verify(struct lk_task *task, struct lk_store *store)
{
    struct lk_buf report = {0};
    enum lk_status found = store->class->verify(
        store, lk_long_work_progress, task->args.verify.progress, &report);
    enum lk_status status;

    if (found == LK_OK || found == LK_CORRUPT) {
        status = write_lines(&task->text, found ? "damaged" : "ok",
                             latchkey_buf_slice(&report));
    } else {
        status = lk_reply_unavailable(&task->text, found, NULL);
    }
    lk_log(found ? LK_LOG_ERROR : LK_LOG_INFO, "verified", "result=%s",
           latchkey_status_name(found));
    latchkey_buf_free(&report);
    return status;
}

/* ---- BACKUP -------------------------------------------------------------- */

/* The daemon writes the file, so a relative path would mean its own folder and
 * not the client's. */
LK_PARSE(backup)
{
    const struct lk_store *store = conn->server->store;

    if (!store->class->backup) {
        lk_conn_error(conn,
                      "ERR BACKUP: back up a %s store with the tools of its "
                      "server; EXPORT carries operations to another store",
                      store->class->scheme);
        return false;
    }
    if (!lk_arg_bytes(conn, "path", argv[1], 1, PATH_BYTES)) {
        return false;
    }
    if (argv[1].data[0] != '/' || memchr(argv[1].data, '\0', argv[1].len)) {
        lk_arg_error(conn, "path", "must be absolute", argv[1]);
        return false;
    }
    task->args.backup.path = argv[1];
    task->args.backup.progress = &conn->server->long_work;
    return lk_arg_signature(conn, task, argv, argc, 2);
}

/* The error reply of a backup that failed; `why` is the store's sentence. */
static enum lk_status refuse_backup(struct lk_task *task, struct lk_slice why)
{
    struct lk_buf message = {0};
    enum lk_status status = latchkey_buf_printf(&message, "ERR BACKUP: %.*s",
                                                (int)why.len, why.data);

    if (!status) {
        status = lk_resp_error(&task->text, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return status;
}

/* Prepares the audit entry of a backup that was made. The loop lets the store
 * write it before the reply is sent. LK_NOMEM: no entry. */
static enum lk_status note_backup(struct lk_task *task)
{
    struct lk_slice path = task->args.backup.path;
    struct lk_buf action = {0};
    struct lk_note *note = NULL;
    char shown[LK_LOG_QUOTED];

    if (!latchkey_buf_printf(&action, "backup %.*s", (int)path.len,
                             path.data)) {
        note = lk_note_make(task, latchkey_buf_slice(&action),
                            (struct lk_name){0});
    }
    latchkey_buf_free(&action);
    if (!note) {
        return LK_NOMEM;
    }
    note->log_action = LK_SLICE("backup");
    snprintf(note->about, sizeof(note->about), "path=%s",
             lk_log_quote(path, shown, sizeof(shown)));
    note->refusal = "the backup was made, but could not be noted in the audit "
                    "log";
    return LK_OK;
}

/* Logs a backup whether or not it was made. */
static void log_backup(const struct lk_task *task, enum lk_status result,
                       struct lk_slice why_not)
{
    char path[LK_LOG_QUOTED];
    char who[LK_LOG_QUOTED];
    char why[LK_LOG_QUOTED];
    char error[LK_LOG_LINE / 4];

    lk_log(result ? LK_LOG_ERROR : LK_LOG_INFO, "backup",
           "path=%s who=%s why=%s result=%s%s%s",
           lk_log_quote(task->args.backup.path, path, sizeof(path)),
           lk_log_quote(task->signature->who, who, sizeof(who)),
           lk_log_quote(task->signature->why, why, sizeof(why)),
           latchkey_status_name(result), result ? " error=" : "",
           result ? lk_log_quote(why_not, error, sizeof(error)) : "");
}

/* Long work: copies the store to a file. A failure leaves no note. */
static enum lk_status run_backup(struct lk_task *task, struct lk_store *store)
{
    struct lk_buf error = {0};
    struct lk_slice given = task->args.backup.path;
    char *path = strndup(given.data, given.len);
    enum lk_status result = LK_NOMEM;

    if (path) {
        result = store->class->backup(store, path, lk_long_work_progress,
                                      task->args.backup.progress, &error);
    }
    struct lk_slice why_not = latchkey_buf_slice(&error);
    if (result && !why_not.len) {
        why_not = latchkey_slice(latchkey_status_text(result));
    }
    log_backup(task, result, why_not);
    enum lk_status status =
        result ? refuse_backup(task, why_not) : note_backup(task);
    latchkey_buf_free(&error);
    free(path);
    return status;
}

static enum lk_status reply_ok(struct lk_task *task, struct lk_buf *out)
{
    return lk_resp_simple(out, "OK");
}

/* ---- CLOCK --------------------------------------------------------------- */

LK_PARSE(clock_accept)
{
    const struct lk_store *store = conn->server->store;

    if (!store->class->accept_clock) {
        lk_conn_error(conn,
                      "ERR CLOCK: the clock of a %s store is its server's own",
                      store->class->scheme);
        return false;
    }
    return lk_arg_signature(conn, task, argv, argc, 2);
}

/* Store thread. The store writes the audit entry itself, before it changes its
 * clock. */
static enum lk_status run_clock_accept(struct lk_task *task,
                                       struct lk_store *store)
{
    enum lk_status status = store->class->accept_clock(
        store, task->signature->who, task->signature->why);

    if (status) {
        return lk_reply_unavailable(&task->text, status, NULL);
    }
    lk_operator_log(task->signature, LK_SLICE("accept clock"), "");
    return LK_OK;
}

/* ---- The table ----------------------------------------------------------- */

static const struct lk_command rows[] = {
    {.name = "VERIFY",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_VIEW,
     .alone = true,
     .place = LK_PLACE_LONG,
     .parse = parse_verify,
     .run = run_verify,
     .usage = ""},
    {.name = "BACKUP",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .place = LK_PLACE_LONG,
     .parse = parse_backup,
     .run = run_backup,
     .reply = reply_ok,
     .usage = "path WHO who WHY why"},
    {.name = "CLOCK ACCEPT",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .place = LK_PLACE_STORE,
     .parse = parse_clock_accept,
     .run = run_clock_accept,
     .reply = reply_ok,
     .usage = "WHO who WHY why"},
};

LK_COMMAND_GROUP(lk_operator_commands, rows);
