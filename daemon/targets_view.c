/*
 * targets_view.c - targets as they stand: what the configuration, this daemon's
 * courier and the store know of them, put together.
 */
#include "daemon/outbox.h"
#include "daemon/reply.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 24 };

/* `standing` and `status` have their own copies of text behind them. */
struct row {
    char name[LK_TARGET_NAME_MAX + 1];
    bool configured;
    uint64_t settle_ms;
    struct lk_target_summary standing;
    struct lk_target_status status;
    char circuit[16];
    char *last_error; /* NULL: none */
    char *who;
    char *why;
};

struct lk_targets_view {
    bool courier;
    bool failed; /* out of memory; what there is, is not all */
    struct row *rows;
    size_t count;
    size_t cap;
};

static struct row *find_row(struct lk_targets_view *view, struct lk_slice name)
{
    for (size_t i = 0; i < view->count; i++) {
        if (latchkey_slice_equal(name, latchkey_slice(view->rows[i].name))) {
            return &view->rows[i];
        }
    }
    return NULL;
}

/* The one of that name, made if need be. NULL: out of memory. */
static struct row *take_row(struct lk_targets_view *view, struct lk_slice name)
{
    struct row *row = find_row(view, name);

    if (row || name.len > LK_TARGET_NAME_MAX) {
        return row;
    }
    if (view->count == view->cap) {
        size_t cap = view->cap ? 2 * view->cap : 16;
        struct row *rows = realloc(view->rows, cap * sizeof(*rows));
        if (!rows) {
            view->failed = true;
            return NULL;
        }
        view->rows = rows;
        view->cap = cap;
    }
    row = &view->rows[view->count++];
    *row = (struct row){.circuit = "closed"};
    memcpy(row->name, name.data, name.len);
    return row;
}

static char *copy_text(struct lk_targets_view *view, struct lk_slice text)
{
    char *copy = text.len ? strndup(text.data, text.len) : NULL;

    view->failed = view->failed || (text.len && !copy);
    return copy;
}

/* ---- Loop thread --------------------------------------------------------- */

static bool add_status(void *context, const struct lk_target_status *status)
{
    struct lk_targets_view *view = context;
    struct row *row = take_row(view, status->name);

    if (row) {
        row->status = *status;
        snprintf(row->circuit, sizeof(row->circuit), "%s",
                 status->circuit ? status->circuit : "closed");
        free(row->last_error);
        row->last_error = copy_text(view, status->last_error);
    }
    return !view->failed;
}

static void add_configured(struct lk_targets_view *view,
                           const struct lk_config *config)
{
    struct row *row;

    for (size_t i = 0; i < config->targets.count; i++) {
        const struct lk_target *target = &config->targets.targets[i];
        row = take_row(view, latchkey_slice(target->name));
        if (row) {
            row->configured = true;
            row->settle_ms = target->probe.settle_ms;
        }
    }
    row = config->gateway ? take_row(view, LK_SLICE(LK_TARGET_GATEWAY)) : NULL;
    if (row) {
        row->configured = true;
    }
}

struct lk_targets_view *lk_targets_view_make(struct lk_server *server)
{
    struct lk_targets_view *view = calloc(1, sizeof(*view));

    if (!view) {
        return NULL;
    }
    add_configured(view, &server->config);
    if (server->courier) {
        view->courier = true;
        server->outbox_class->status(server->courier, add_status, view);
    }
    if (view->failed) {
        lk_targets_view_free(view);
        return NULL;
    }
    return view;
}

void lk_targets_view_free(struct lk_targets_view *view)
{
    if (!view) {
        return;
    }
    for (size_t i = 0; i < view->count; i++) {
        free(view->rows[i].last_error);
        free(view->rows[i].who);
        free(view->rows[i].why);
    }
    free(view->rows);
    free(view);
}

enum lk_status lk_targets_view_info(const struct lk_targets_view *view,
                                    struct lk_buf *text)
{
    for (size_t i = 0; i < view->count; i++) {
        const struct row *row = &view->rows[i];
        const struct lk_target_status *status = &row->status;

        W(latchkey_buf_printf(
            text,
            "target_%s:configured=%d,in_flight=%u,sent_ok=%" PRIu64
            ",failed=%" PRIu64 ",gave_up=%" PRIu64 ",doubts=%" PRIu64
            ",circuit=%s\r\n",
            row->name, row->configured, status->in_flight, status->delivered,
            status->failed, status->dead, status->uncertain, row->circuit));
    }
    return LK_OK;
}

/* ---- Reader thread ------------------------------------------------------- */

static bool add_standing(void *context,
                         const struct lk_target_summary *standing)
{
    struct lk_targets_view *view = context;
    struct row *row = take_row(view, standing->name);

    if (row) {
        row->standing = *standing;
        free(row->who);
        free(row->why);
        row->who = copy_text(view, standing->who);
        row->why = copy_text(view, standing->why);
    }
    return !view->failed;
}

static enum lk_status write_standing(struct lk_buf *out, const struct row *row)
{
    const struct lk_target_summary *standing = &row->standing;

    W(lk_pair_number(out, "paused", standing->paused));
    W(lk_pair_number(out, "paused-ms", standing->paused_ms));
    W(lk_pair_bytes(out, "who", latchkey_slice(row->who)));
    W(lk_pair_bytes(out, "why", latchkey_slice(row->why)));
    for (int state = 0; state < LK_JOB_DELIVERED; state++) {
        W(lk_pair_number(out, lk_job_state_word((enum lk_job_state)state),
                         standing->jobs[state]));
    }
    W(lk_pair_number(out, "oldest-due-ms", standing->oldest_due_ms));
    W(lk_pair_number(out, "oldest-uncertain-ms",
                     standing->oldest_uncertain_ms));
    W(lk_pair_number(out, "oldest-dead-ms", standing->oldest_dead_ms));
    return lk_pair_number(out, "forgotten-ms", standing->forgotten_ms);
}

static enum lk_status write_row(struct lk_buf *out, int proto,
                                const struct row *row, bool courier)
{
    const struct lk_target_status *status = &row->status;

    W(lk_resp_map(out, proto, PAIRS));
    W(lk_pair_bytes(out, "name", latchkey_slice(row->name)));
    W(lk_pair_number(out, "configured", row->configured));
    W(lk_pair_number(out, "settle-ms", row->settle_ms));
    W(write_standing(out, row));
    W(lk_pair_number(out, "courier", courier));
    W(lk_pair_number(out, "in-flight", status->in_flight));
    W(lk_pair_number(out, "sent-ok", status->delivered));
    W(lk_pair_number(out, "failed", status->failed));
    W(lk_pair_number(out, "gave-up", status->dead));
    W(lk_pair_number(out, "doubts", status->uncertain));
    W(lk_pair_bytes(out, "circuit", latchkey_slice(row->circuit)));
    W(lk_pair_number(out, "circuit-wait-ms", status->circuit_wait_ms));
    return lk_pair_bytes(out, "last-error", latchkey_slice(row->last_error));
}

static int compare_rows(const void *a, const void *b)
{
    return strcmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static enum lk_status write_view(struct lk_task *task,
                                 struct lk_targets_view *view)
{
    struct lk_slice only = task->demand.op.reason;
    struct lk_buf *out = &task->text;

    if (only.len) {
        const struct row *row = find_row(view, only);
        W(lk_resp_array(out, row ? 1 : 0));
        return row ? write_row(out, task->proto, row, view->courier) : LK_OK;
    }
    if (view->count) {
        qsort(view->rows, view->count, sizeof(*view->rows), compare_rows);
    }
    W(lk_resp_array(out, view->count));
    for (size_t i = 0; i < view->count; i++) {
        W(write_row(out, task->proto, &view->rows[i], view->courier));
    }
    return LK_OK;
}

enum lk_status lk_targets_view_reply(struct lk_store *store,
                                     struct lk_task *task)
{
    struct lk_targets_view *view = task->demand.view;
    enum lk_status status = store->class->targets(store, add_standing, view);

    if (view->failed) {
        return LK_NOMEM;
    }
    if (status) {
        return lk_reply_unavailable(&task->text, status, NULL);
    }
    return write_view(task, view);
}
