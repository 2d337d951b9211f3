/* chore.c - verify and backup: long work on a thread of its own. */
#include "daemon/daemon.h"
#include "daemon/thread.h"

#include <stdlib.h>
#include <string.h>

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct lk_chore *chore = context;

    atomic_store_explicit(&chore->done, done, memory_order_relaxed);
    atomic_store_explicit(&chore->total, total, memory_order_relaxed);
}

static size_t count_lines(struct lk_slice text)
{
    size_t lines = 0;

    for (size_t i = 0; i < text.len; i++) {
        lines += text.data[i] == '\n';
    }
    return lines + (text.len && text.data[text.len - 1] != '\n');
}

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

static enum lk_status verify(struct lk_server *server, struct lk_task *task)
{
    struct lk_buf report = {0};
    struct lk_store *store = server->store;
    enum lk_status found =
        store->class->verify(store, note_progress, &server->chore, &report);
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

static enum lk_status reply_backup(struct lk_task *task, enum lk_status result,
                                   struct lk_buf *error)
{
    struct lk_buf message = {0};

    task->to_note = !result;
    if (!result) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_printf(
        &message, "ERR BACKUP: %.*s",
        error->len ? (int)error->len : (int)strlen("it failed"),
        error->len ? error->data : "it failed");
    if (!status) {
        status = lk_resp_error(&task->text, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return status;
}

static enum lk_status backup(struct lk_server *server, struct lk_task *task)
{
    struct lk_op *op = &task->demand.op;
    struct lk_store *store = server->store;
    struct lk_buf error = {0};
    char shown_path[LK_LOG_QUOTED];
    char shown_who[LK_LOG_QUOTED];
    char shown_why[LK_LOG_QUOTED];
    char shown_error[LK_LOG_LINE / 4];
    char *path = strndup(op->reason.data, op->reason.len);
    enum lk_status result = LK_NOMEM;

    if (path) {
        result = store->class->backup(store, path, note_progress,
                                      &server->chore, &error);
    }
    struct lk_slice reason = latchkey_buf_slice(&error);
    if (result && !reason.len) {
        reason = latchkey_slice(latchkey_status_text(result));
    }
    lk_log(result ? LK_LOG_ERROR : LK_LOG_INFO, "backup",
           "path=%s who=%s why=%s result=%s%s%s",
           lk_log_quote(op->reason, shown_path, sizeof(shown_path)),
           lk_log_quote(op->who, shown_who, sizeof(shown_who)),
           lk_log_quote(op->why, shown_why, sizeof(shown_why)),
           latchkey_status_name(result), result ? " error=" : "",
           result ? lk_log_quote(reason, shown_error, sizeof(shown_error))
                  : "");
    enum lk_status status = reply_backup(task, result, &error);
    latchkey_buf_free(&error);
    free(path);
    return status;
}

static void run_thread(void *context)
{
    struct lk_server *server = context;
    struct lk_task *task = server->chore.task;
    struct lk_task_queue one = {0};

    if (task->demand.kind == LK_TASK_VERIFY) {
        task->demand.op.status = verify(server, task);
    } else {
        task->demand.op.status = backup(server, task);
    }
    lk_task_queue_add(&one, task);
    atomic_store(&server->chore.returned, true);
    lk_returns_give(&server->returns, &one, NULL);
}

enum lk_status lk_chore_start(struct lk_server *server, struct lk_task *task)
{
    struct lk_chore *chore = &server->chore;

    if (chore->task) {
        return LK_BUSY;
    }
    chore->task = task;
    atomic_store(&chore->returned, false);
    note_progress(chore, 0, 0);
    if (lk_thread_create(&chore->thread, run_thread, server)) {
        chore->task = NULL;
        return LK_NOMEM;
    }
    lk_task_uncount(server, task);
    return LK_OK;
}

void lk_chore_finished(struct lk_server *server)
{
    uv_thread_join(&server->chore.thread);
    server->chore.task = NULL;
}

enum lk_status lk_chore_noted(struct lk_task *task)
{
    enum lk_status noted = task->demand.op.status;
    bool exports = task->demand.list.whole;

    if (noted) {
        return lk_reply_unavailable(
            &task->text, noted,
            exports ? "the export could not be noted in the audit log"
                    : "the backup was made, but could not be noted in the "
                      "audit log");
    }
    if (!exports) {
        return lk_resp_simple(&task->text, "OK");
    }
    if (!task->conn) {
        return LK_OK;
    }
    task->conn->exports = true;
    return lk_reply_export_begin(&task->text, task->conn->server->store,
                                 task->proto);
}
