/*
 * command_targets.c - TARGET: targets with what the configuration, this
 * daemon's courier and the store know of them; their pause; and probes, which
 * ask a service about what is uncertain.
 *
 * A view is the work of two threads in turn. The loop thread makes it from the
 * settings and the courier (parse); the reader thread adds the summaries of the
 * store and writes the reply (run); the loop thread frees it with its task
 * (clear). INFO makes and frees one on the loop thread alone.
 */
#include "daemon/args.h"
#include "daemon/reply.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What write_target writes, with what write_summary adds. */
enum { PAIRS = 24 };

/* `summary` and `status` have their own copies of text behind them. */
struct target_row {
    char name[LK_TARGET_NAME_MAX + 1];
    bool configured;
    uint64_t settle_ms;
    struct lk_target_summary summary;
    struct lk_target_status status;
    char circuit[16];
    char *last_error; /* NULL: none */
    char *who;
    char *why;
};

struct lk_targets_view {
    bool courier;
    bool failed; /* out of memory; what there is, is not all */
    struct target_row *rows;
    size_t count;
    size_t cap;
};

static struct target_row *find_target(struct lk_targets_view *view,
                                      struct lk_slice name)
{
    for (size_t i = 0; i < view->count; i++) {
        if (latchkey_slice_equal(name, latchkey_slice(view->rows[i].name))) {
            return &view->rows[i];
        }
    }
    return NULL;
}

/* The row of that name, made if need be. Valid until the next row is made.
 * NULL: out of memory (view->failed), or a name that no target can have. */
static struct target_row *take_target(struct lk_targets_view *view,
                                      struct lk_slice name)
{
    struct target_row *row = find_target(view, name);

    if (row || name.len > LK_TARGET_NAME_MAX) {
        return row;
    }
    if (view->count == view->cap) {
        size_t cap = view->cap ? 2 * view->cap : 16;
        struct target_row *rows = realloc(view->rows, cap * sizeof(*rows));
        if (!rows) {
            view->failed = true;
            return NULL;
        }
        view->rows = rows;
        view->cap = cap;
    }
    row = &view->rows[view->count++];
    *row = (struct target_row){.circuit = "closed"};
    memcpy(row->name, name.data, name.len);
    return row;
}

/* NULL for an empty text; also if memory is short, which `failed` says. */
static char *copy_target_text(struct lk_targets_view *view,
                              struct lk_slice text)
{
    char *copy = text.len ? strndup(text.data, text.len) : NULL;

    view->failed = view->failed || (text.len && !copy);
    return copy;
}

/* ---- Loop thread --------------------------------------------------------- */

/* Called for each target that the courier runs. The texts of `status` are only
 * valid during the call, so the row gets copies. */
static bool add_courier_status(void *context,
                               const struct lk_target_status *status)
{
    struct lk_targets_view *view = context;
    struct target_row *row = take_target(view, status->name);

    if (row) {
        row->status = *status;
        snprintf(row->circuit, sizeof(row->circuit), "%s",
                 status->circuit ? status->circuit : "closed");
        free(row->last_error);
        row->last_error = copy_target_text(view, status->last_error);
    }
    return !view->failed;
}

/* The target of accepted requests is configured if courier.gateway is set. */
static void add_configured(struct lk_targets_view *view,
                           const struct lk_config *config)
{
    struct target_row *row;

    for (size_t i = 0; i < config->targets.count; i++) {
        const struct lk_target *target = &config->targets.targets[i];
        row = take_target(view, latchkey_slice(target->name));
        if (row) {
            row->configured = true;
            row->settle_ms = target->probe.settle_ms;
        }
    }
    row =
        config->gateway ? take_target(view, LK_SLICE(LK_TARGET_GATEWAY)) : NULL;
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
        server->outbox_class->status(server->courier, add_courier_status, view);
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
        const struct target_row *row = &view->rows[i];
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

/* Called for each target that the store knows, also one that is no longer
 * configured. The texts are only valid during the call. */
static bool add_summary(void *context, const struct lk_target_summary *summary)
{
    struct lk_targets_view *view = context;
    struct target_row *row = take_target(view, summary->name);

    if (row) {
        row->summary = *summary;
        free(row->who);
        free(row->why);
        row->who = copy_target_text(view, summary->who);
        row->why = copy_target_text(view, summary->why);
    }
    return !view->failed;
}

static enum lk_status write_summary(struct lk_buf *out,
                                    const struct target_row *row)
{
    const struct lk_target_summary *summary = &row->summary;

    W(lk_pair_number(out, "paused", summary->paused));
    W(lk_pair_number(out, "paused-ms", summary->paused_ms));
    W(lk_pair_bytes(out, "who", latchkey_slice(row->who)));
    W(lk_pair_bytes(out, "why", latchkey_slice(row->why)));
    for (int state = 0; state < LK_JOB_DELIVERED; state++) {
        W(lk_pair_number(out, lk_job_state_word((enum lk_job_state)state),
                         summary->jobs[state]));
    }
    W(lk_pair_number(out, "oldest-due-ms", summary->oldest_due_ms));
    W(lk_pair_number(out, "oldest-uncertain-ms", summary->oldest_uncertain_ms));
    W(lk_pair_number(out, "oldest-dead-ms", summary->oldest_dead_ms));
    return lk_pair_number(out, "forgotten-ms", summary->forgotten_ms);
}

static enum lk_status write_target(struct lk_buf *out, int proto,
                                   const struct target_row *row, bool courier)
{
    const struct lk_target_status *status = &row->status;

    W(lk_resp_map(out, proto, PAIRS));
    W(lk_pair_bytes(out, "name", latchkey_slice(row->name)));
    W(lk_pair_number(out, "configured", row->configured));
    W(lk_pair_number(out, "settle-ms", row->settle_ms));
    W(write_summary(out, row));
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

static int compare_targets(const void *a, const void *b)
{
    return strcmp(((const struct target_row *)a)->name,
                  ((const struct target_row *)b)->name);
}

/* One target or all, by name. A target that no one knows is an empty array. */
static enum lk_status write_view(struct lk_task *task,
                                 struct lk_targets_view *view)
{
    struct lk_slice only = task->args.targets.only;
    struct lk_buf *out = &task->text;

    if (only.len) {
        const struct target_row *row = find_target(view, only);
        W(lk_resp_array(out, row ? 1 : 0));
        return row ? write_target(out, task->proto, row, view->courier) : LK_OK;
    }
    if (view->count) {
        qsort(view->rows, view->count, sizeof(*view->rows), compare_targets);
    }
    W(lk_resp_array(out, view->count));
    for (size_t i = 0; i < view->count; i++) {
        W(write_target(out, task->proto, &view->rows[i], view->courier));
    }
    return LK_OK;
}

/* Reader thread: adds what the store knows to the view, and writes it. */
static enum lk_status run_target_status(struct lk_task *task,
                                        struct lk_store *store)
{
    struct lk_targets_view *view = task->args.targets.view;
    enum lk_status status = store->class->targets(store, add_summary, view);

    if (view->failed) {
        return LK_NOMEM;
    }
    if (status) {
        return lk_reply_unavailable(&task->text, status, NULL);
    }
    return write_view(task, view);
}

/* ---- TARGET STATUS, PAUSE and RESUME ------------------------------------- */

/* The view is made last: a task that fails before has nothing to clear. */
LK_PARSE(target_status)
{
    if (!lk_arg_keeps_jobs(conn)) {
        return false;
    }
    if (argc > 2) {
        task->args.targets.only = argv[2];
        if (!lk_arg_target(conn, argv[2])) {
            return false;
        }
    }
    task->args.targets.view = lk_targets_view_make(conn->server);
    if (!task->args.targets.view) {
        lk_conn_error(conn, "UNAVAILABLE out of memory");
        return false;
    }
    return true;
}

static void clear_target_status(struct lk_task *task)
{
    lk_targets_view_free(task->args.targets.view);
}

/* PAUSE and RESUME. A target needs no configuration here: its jobs may come
 * from another daemon of the store. */
static bool read_target_action(struct lk_conn *conn, struct lk_task *task,
                               const struct lk_slice *argv, size_t argc,
                               enum lk_job_action_kind kind)
{
    struct lk_job_action *action = &task->args.action.action;

    action->kind = kind;
    action->target = argv[2];
    if (!lk_arg_keeps_jobs(conn)) {
        return false;
    }
    if (!argv[2].len) {
        lk_conn_error(conn, "ERR %s: the target is missing",
                      conn->command->name);
        return false;
    }
    return lk_arg_target(conn, argv[2]) &&
           lk_arg_signature(conn, task, argv, argc, 3);
}

LK_PARSE(target_pause)
{
    return read_target_action(conn, task, argv, argc, LK_ACTION_PAUSE);
}

LK_PARSE(target_resume)
{
    return read_target_action(conn, task, argv, argc, LK_ACTION_RESUME);
}

/* ---- TARGET PROBE -------------------------------------------------------- */

LK_PARSE(target_probe)
{
    task->args.probe.request.target = argv[2];
    return lk_arg_keeps_jobs(conn) && lk_arg_target(conn, argv[2]);
}

static enum lk_status write_counts(struct lk_task *task,
                                   const struct lk_probe_counts *counts)
{
    W(lk_resp_map(&task->text, task->proto, 3));
    W(lk_pair_number(&task->text, "happened", counts->happened));
    W(lk_pair_number(&task->text, "absent", counts->absent));
    return lk_pair_number(&task->text, "open", counts->open);
}

/* The prober's thread, or the loop. */
static enum lk_status run_target_probe(struct lk_task *task,
                                       struct lk_store *store)
{
    const struct lk_probe_request *request = &task->args.probe.request;

    switch (request->status) {
    case LK_OK:
        return write_counts(task, &request->counts);
    case LK_NOT_FOUND:
        return lk_resp_error(
            &task->text,
            LK_SLICE("ERR TARGET: there is no such target in the courier of "
                     "this daemon, or it has no probe"));
    case LK_AGAIN:
        return lk_resp_error(
            &task->text, LK_SLICE("UNAVAILABLE the daemon is shutting down"));
    default:
        return lk_reply_unavailable(&task->text, request->status, NULL);
    }
}

/* The prober's thread, or the loop: writes the reply and gives the task back.
 * After that neither task nor request may be touched. */
static void finish_probe(struct lk_probe_request *request)
{
    struct lk_task *task = request->context;

    lk_task_run(task, NULL);
    lk_returns_give_one(task->args.probe.returns, task);
}

/* Hands the request to the courier, which calls finish_probe exactly
 * once. Without a courier, or one that cannot probe, the reply is an
 * error at once. */
void lk_probe_start(struct lk_server *server, struct lk_task *task)
{
    struct lk_probe_args *probe = &task->args.probe;

    /* A daemon that is shutting down does not wait for a service. */
    lk_task_uncount(server, task);
    probe->returns = &server->returns;
    probe->request.done = finish_probe;
    probe->request.context = task;
    probe->request.status = LK_NOT_FOUND;
    if (server->courier && server->outbox_class->probe) {
        server->outbox_class->probe(server->courier, &probe->request);
    } else {
        finish_probe(&probe->request);
    }
}

/* ---- The table ----------------------------------------------------------- */

static const struct lk_command rows[] = {
    {.name = "TARGET STATUS",
     .min_args = 2,
     .max_args = 3,
     .roles = LK_FOR_VIEW,
     .place = LK_PLACE_READER,
     .parse = parse_target_status,
     .run = run_target_status,
     .clear = clear_target_status,
     .usage = "[target]"},
    /* The courier asks a service, which job actions must not overtake. */
    {.name = "TARGET PROBE",
     .min_args = 3,
     .max_args = 3,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .place = LK_PLACE_COURIER,
     .parse = parse_target_probe,
     .run = run_target_probe,
     .usage = "target"},
    {.name = "TARGET PAUSE",
     .min_args = 3,
     .max_args = 7,
     .roles = LK_FOR_OPERATE,
     .place = LK_PLACE_ACTION,
     .parse = parse_target_pause,
     .run = lk_action_run,
     .usage = "target WHO who WHY why"},
    {.name = "TARGET RESUME",
     .min_args = 3,
     .max_args = 7,
     .roles = LK_FOR_OPERATE,
     .place = LK_PLACE_ACTION,
     .parse = parse_target_resume,
     .run = lk_action_run,
     .usage = "target WHO who WHY why"},
};

LK_COMMAND_GROUP(lk_target_commands, rows);
