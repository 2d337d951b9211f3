/* reader.c - the reader thread: answers by lookup, and loads for replays. */
#include "daemon/reader.h"
#include "daemon/thread.h"

#include <stdlib.h>

struct lk_reader {
    struct lk_store *store;
    struct lk_returns *returns;
    struct lk_stored *last; /* loaded, or NULL; reader thread */
    struct lk_hash128 last_name;

    uv_thread_t thread;
    uv_mutex_t mutex; /* guards all below */
    uv_cond_t wake;
    struct lk_task_queue queue;
    bool asleep;
    bool stop;
};

static enum lk_status reply_single(const struct lk_store *store,
                                   struct lk_task *task, enum lk_status found,
                                   const struct lk_operation *record)
{
    if (found == LK_NOT_FOUND) {
        return lk_resp_nil(&task->text, task->proto);
    }
    if (found) {
        return lk_reply_unavailable(&task->text, found, NULL);
    }
    bool bodies = task->demand.bodies;
    enum lk_status status =
        lk_reply_operation(&task->text, store, task->proto, record,
                           bodies ? LK_SHOW_WHOLE : LK_SHOW_SIZES);
    if (!status && bodies && record->stored) {
        status = lk_look_make(task, "look", record->name, record->number, 0);
    }
    return status;
}

static enum lk_status run_lookup(struct lk_store *store, struct lk_task *task)
{
    const struct lk_op *op = &task->demand.op;
    struct lk_operation record = {0};
    enum lk_status found;

    if (task->demand.kind == LK_TASK_FIND) {
        found = store->class->find(store, op->name.tenant, op->token, &record);
    } else {
        found = store->class->lookup(store, op->name, &record);
    }
    enum lk_status status = reply_single(store, task, found, &record);
    lk_operation_free(&record);
    return status;
}

/* Rows are written behind each other first: the count stands before them. */
struct rows {
    const struct lk_store *store;
    int proto;
    struct lk_buf text;
    size_t count;
    enum lk_status status;
};

static bool add_record(void *context, const struct lk_operation *record)
{
    struct rows *rows = context;

    rows->status = lk_reply_operation(&rows->text, rows->store, rows->proto,
                                      record, LK_SHOW_BYTES);
    rows->count++;
    return rows->status == LK_OK;
}

static bool add_audit(void *context, const struct lk_audit_entry *entry)
{
    struct rows *rows = context;

    rows->status = lk_reply_audit(&rows->text, rows->proto, entry);
    rows->count++;
    return rows->status == LK_OK;
}

static bool count_audit(void *context, const struct lk_audit_entry *entry)
{
    (void)entry;
    ((struct rows *)context)->count++;
    return true;
}

static enum lk_status write_rows(struct lk_buf *out, const struct rows *rows)
{
    enum lk_status status = lk_resp_array(out, rows->count);

    return status
               ? status
               : latchkey_buf_add_slice(out, latchkey_buf_slice(&rows->text));
}

/* Rows and the cursor behind them, or why there are none. */
static enum lk_status write_page(struct lk_task *task, const struct rows *rows,
                                 enum lk_status status, uint64_t next)
{
    if (rows->status) {
        return rows->status;
    }
    if (status) {
        return lk_reply_unavailable(&task->text, status, NULL);
    }
    status = lk_resp_array(&task->text, 2);
    if (!status) {
        status = lk_resp_integer(&task->text, (int64_t)next);
    }
    return status ? status : write_rows(&task->text, rows);
}

static enum lk_status run_list(struct lk_store *store, struct lk_task *task)
{
    struct lk_list_query query = task->demand.list;
    struct rows rows = {.store = store, .proto = task->proto};
    uint64_t next = 0;
    enum lk_status status;

    query.tenant = task->demand.op.name.tenant;
    query.scope = task->demand.op.name.scope;
    status = store->class->list(store, &query, add_record, &rows, &next);
    status = write_page(task, &rows, status, next);
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- Export -------------------------------------------------------------- */

/* Records are asked for a few at a time, so that a page of large answers ends
 * in time. */
enum { EXPORT_BYTES = 4 << 20, EXPORT_FIRST = 8, EXPORT_MOST = 64 };

static bool add_export(void *context, const struct lk_operation *record)
{
    struct rows *rows = context;

    if (!rows->status) {
        rows->status = lk_reply_export(&rows->text, rows->proto, record);
        rows->count++;
    }
    return true; /* a cursor may stand for several records: take them all */
}

static size_t export_share(const struct rows *rows, size_t limit)
{
    size_t share = EXPORT_FIRST;

    if (rows->count) {
        size_t each = rows->text.len / rows->count + 1;
        share = EXPORT_BYTES / each + 1;
    }
    if (share > EXPORT_MOST) {
        share = EXPORT_MOST;
    }
    return share < limit - rows->count ? share : limit - rows->count;
}

static enum lk_status list_page(struct lk_store *store, struct lk_task *task,
                                struct rows *rows, uint64_t *next)
{
    struct lk_list_query query = task->demand.list;
    size_t limit = query.limit;
    enum lk_status status;

    *next = query.cursor;
    do {
        query.cursor = *next;
        query.limit = export_share(rows, limit);
        status = store->class->list(store, &query, add_export, rows, next);
    } while (!status && !rows->status && *next && rows->count < limit &&
             rows->text.len < EXPORT_BYTES &&
             !atomic_load_explicit(&task->gone, memory_order_relaxed));
    return status;
}

static enum lk_status run_export(struct lk_store *store, struct lk_task *task)
{
    struct rows rows = {.store = store, .proto = task->proto};
    uint64_t next = 0;
    enum lk_status status = list_page(store, task, &rows, &next);

    status = write_page(task, &rows, status, next);
    latchkey_buf_free(&rows.text);
    return status;
}

static enum lk_status run_audit(struct lk_store *store, struct lk_task *task)
{
    struct rows rows = {.store = store, .proto = task->proto};
    const struct lk_op *op = &task->demand.op;
    struct lk_audit_query query = task->demand.audit;

    query.name = op->name;
    query.who = op->who;
    query.action = op->reason;
    enum lk_status status = store->class->audit(
        store, &query, query.count ? count_audit : add_audit, &rows);
    if (rows.status) {
        status = rows.status;
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else if (query.count) {
        status = lk_resp_integer(&task->text, (int64_t)rows.count);
    } else {
        status = write_rows(&task->text, &rows);
    }
    latchkey_buf_free(&rows.text);
    return status;
}

static void remember(struct lk_reader *reader, struct lk_stored *stored)
{
    lk_stored_unref(reader->last);
    reader->last = stored ? lk_stored_ref(stored) : NULL;
}

/* Those who waited for the same operation come one behind the other, and share
 * the answer. It never changes under its token, unlike a doubt. */
static enum lk_status load(struct lk_reader *reader, struct lk_op *op)
{
    struct lk_store *store = reader->store;
    bool shared = op->out.verdict != LK_VERDICT_UNCERTAIN;

    if (shared && reader->last && reader->last->token == op->out.token &&
        lk_hash128_equal(reader->last_name, op->hash)) {
        op->out.stored = lk_stored_ref(reader->last);
        op->out.needs_load = false;
        return LK_OK;
    }
    enum lk_status status = store->class->load(store, op);
    if (shared && !status) {
        reader->last_name = op->hash;
        remember(reader, op->out.stored);
    }
    return status;
}

static void run_task(struct lk_reader *reader, struct lk_task *task)
{
    struct lk_store *store = reader->store;
    struct lk_op *op = &task->demand.op;

    if (atomic_load_explicit(&task->gone, memory_order_relaxed)) {
        return;
    }

    switch (task->demand.kind) {
    case LK_TASK_LOOKUP:
    case LK_TASK_FIND:
        op->status = run_lookup(store, task);
        break;
    case LK_TASK_LIST:
        op->status = run_list(store, task);
        break;
    case LK_TASK_AUDIT:
        op->status = run_audit(store, task);
        break;
    case LK_TASK_EXPORT:
        op->status = run_export(store, task);
        break;
    case LK_TASK_JOBS:
        op->status = lk_reply_jobs(store, task);
        break;
    case LK_TASK_JOB:
        op->status = lk_reply_job_shown(store, task);
        break;
    case LK_TASK_TARGETS:
        op->status = lk_targets_view_reply(store, task);
        break;
    default:
        op->status = load(reader, op);
        break;
    }
}

static bool take_all(struct lk_reader *reader, struct lk_task_queue *tasks)
{
    uv_mutex_lock(&reader->mutex);
    while (!reader->queue.head && !reader->stop) {
        reader->asleep = true;
        uv_cond_wait(&reader->wake, &reader->mutex);
        reader->asleep = false;
    }
    lk_task_queue_join(tasks, &reader->queue);
    uv_mutex_unlock(&reader->mutex);
    return tasks->head != NULL;
}

/* One at a time goes back, so that a slow one does not hold up the others. */
static void run_thread(void *context)
{
    struct lk_reader *reader = context;
    struct lk_task_queue tasks = {0};

    while (take_all(reader, &tasks)) {
        struct lk_task *task;
        while ((task = lk_task_queue_take(&tasks))) {
            struct lk_task_queue one = {0};
            run_task(reader, task);
            lk_task_queue_add(&one, task);
            lk_returns_give(reader->returns, &one, NULL);
        }
        remember(reader, NULL);
    }
}

enum lk_status lk_reader_start(struct lk_store *store,
                               struct lk_returns *returns,
                               struct lk_reader **reader)
{
    struct lk_reader *made = calloc(1, sizeof(*made));

    if (!made) {
        return LK_NOMEM;
    }
    made->store = store;
    made->returns = returns;
    if (uv_mutex_init(&made->mutex)) {
        goto no_mutex;
    }
    if (uv_cond_init(&made->wake)) {
        goto no_cond;
    }
    if (lk_thread_create(&made->thread, run_thread, made)) {
        goto no_thread;
    }
    *reader = made;
    return LK_OK;

no_thread:
    uv_cond_destroy(&made->wake);
no_cond:
    uv_mutex_destroy(&made->mutex);
no_mutex:
    free(made);
    return LK_NOMEM;
}

void lk_reader_give(struct lk_reader *reader, struct lk_task_queue *tasks)
{
    uv_mutex_lock(&reader->mutex);
    lk_task_queue_join(&reader->queue, tasks);
    if (reader->asleep) {
        uv_cond_signal(&reader->wake);
    }
    uv_mutex_unlock(&reader->mutex);
}

void lk_reader_stop(struct lk_reader *reader)
{
    if (!reader) {
        return;
    }
    uv_mutex_lock(&reader->mutex);
    reader->stop = true;
    uv_cond_signal(&reader->wake);
    uv_mutex_unlock(&reader->mutex);
    uv_thread_join(&reader->thread);
    uv_cond_destroy(&reader->wake);
    uv_mutex_destroy(&reader->mutex);
    free(reader);
}
