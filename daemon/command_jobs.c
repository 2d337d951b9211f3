/*
 * command_jobs.c - jobs as operators see them (JOBS, JOB SHOW), and the
 * actions that operators take on jobs and targets.
 *
 * Job actions that come while one job batch is made durable form the next: only
 * one such batch is with the store at a time. An action travels as a task in
 * server->to_actions, then in an action_batch that the store owns, and comes
 * back through lk_returns; server->actions_sent counts those on the way.
 */
#include "daemon/args.h"
#include "daemon/batcher.h"
#include "daemon/reply.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIST_MOST = 1000,
    LIST_USUAL = 100,
    ACTIONS_MOST = 256, /* in one job batch */
    PAIRS = 21,
    WHOLE_PAIRS = PAIRS + 4,
    PAGE_BYTES = 4 << 20, /* a page of large jobs ends in time */
    HISTORY_BODY = 1024,  /* of a response, as stores keep it in a history */
};

/* ---- A job as a reply ---------------------------------------------------- */

/* A request runs under its operation's own key; it has none of its own. */
static enum lk_status pair_key(struct lk_buf *out, const struct lk_store *store,
                               const struct lk_job *job)
{
    char key[LK_JOB_KEY + 1] = "";

    if (job->name.len) {
        lk_job_key(store->reference_secret, job, key);
    }
    return lk_pair_bytes(out, "downstream-key", latchkey_slice(key));
}

/* Has a request perhaps reached the service? The mark `called` is made before a
 * call. Once the attempt has ended, `sent` says whether anything was sent. */
static bool may_have_left(const struct lk_job *job)
{
    return job->called && (job->sent || job->state == LK_JOB_LEASED);
}

/* The PAIRS that every reply about a job has. */
static enum lk_status write_job_pairs(struct lk_buf *out,
                                      const struct lk_store *store,
                                      const struct lk_job *job)
{
    W(lk_pair_number(out, "id", job->id));
    W(lk_resp_bulk(out, LK_SLICE("reference")));
    W(lk_write_reference(out, store, job->number));
    W(lk_pair_name(out, job->operation));
    W(lk_pair_bytes(out, "name", job->name));
    W(lk_pair_bytes(out, "target", job->target));
    W(lk_pair_bytes(out, "method", job->method));
    W(lk_pair_bytes(out, "path", job->path));
    W(lk_pair_bytes(out, "state",
                    latchkey_slice(lk_job_state_word(job->state))));
    W(lk_pair_number(out, "attempts", job->attempts));
    W(lk_pair_number(out, "forgiven", job->forgiven));
    W(lk_pair_number(out, "called", may_have_left(job)));
    W(lk_pair_number(out, "sent", job->sent));
    W(lk_pair_number(out, "created-ms", job->created_ms));
    W(lk_pair_number(out, "due-ms", job->due_ms));
    W(lk_pair_number(out, "ended-ms", job->ended_ms));
    W(lk_pair_number(out, "status", job->status));
    W(lk_pair_bytes(out, "provider-id", job->provider_id));
    W(lk_pair_bytes(out, "reason", job->reason));
    return pair_key(out, store, job);
}

static enum lk_status write_job_sizes(struct lk_buf *out,
                                      const struct lk_job *job)
{
    W(lk_pair_number(out, "headers-bytes", job->headers.len));
    W(lk_pair_number(out, "body-bytes", job->body.len));
    W(lk_pair_number(out, "answer-headers-bytes", job->response.headers.len));
    return lk_pair_number(out, "answer-body-bytes", job->response.body.len);
}

/* Four pairs more: headers and bodies of request and response, or their
 * sizes. */
static enum lk_status write_job_whole(struct lk_buf *out,
                                      const struct lk_job *job,
                                      enum lk_shown shown)
{
    if (shown == LK_SHOW_SIZES) {
        return write_job_sizes(out, job);
    }
    W(lk_pair_bytes(out, "headers", job->headers));
    W(lk_pair_bytes(out, "body", job->body));
    W(lk_pair_bytes(out, "answer-headers", job->response.headers));
    return lk_pair_bytes(out, "answer-body", job->response.body);
}

static enum lk_status write_job(struct lk_buf *out,
                                const struct lk_store *store, int proto,
                                const struct lk_job *job, enum lk_shown shown)
{
    bool whole = shown != LK_SHOW_BYTES;

    W(lk_resp_map(out, proto, whole ? WHOLE_PAIRS : PAIRS));
    W(write_job_pairs(out, store, job));
    return whole ? write_job_whole(out, job, shown) : LK_OK;
}

/* ---- JOBS ---------------------------------------------------------------- */

static bool read_job_state(struct lk_conn *conn, struct lk_slice word,
                           struct lk_jobs_query *query)
{
    query->any_state = !word.len;
    query->unfinished = lk_arg_is(word, "unfinished");
    if (query->any_state || query->unfinished ||
        lk_job_state_parse(word, &query->state)) {
        return true;
    }
    lk_arg_error(conn, "STATE",
                 "must be waiting, leased, uncertain, dead, delivered, dropped "
                 "or unfinished",
                 word);
    return false;
}

/* An empty text leaves `number` as it was: any operation. */
static bool read_reference(struct lk_conn *conn, struct lk_slice text,
                           uint64_t *number)
{
    if (!text.len || !latchkey_reference_decode(
                         text, conn->server->store->reference_secret, number)) {
        return true;
    }
    lk_arg_error(conn, "REFERENCE", "must look like 7D3F-92AB-1C4E", text);
    return false;
}

/* WHOLE shows sizes; with WHO and WHY, which come first, bodies. */
static bool read_whole(struct lk_conn *conn, struct lk_task *task,
                       const struct lk_option *options)
{
    if (!options[0].given && !options[1].given) {
        return true;
    }
    if (!task->args.jobs.whole) {
        lk_conn_error(conn, "ERR JOBS: WHO and WHY are for WHOLE");
        return false;
    }
    return lk_arg_needs(conn, &options[0]) && lk_arg_needs(conn, &options[1]) &&
           lk_arg_bodies(conn, task, "WHOLE", *options[0].to.bytes,
                         *options[1].to.bytes);
}

LK_PARSE(jobs)
{
    struct lk_jobs_query *query = &task->args.jobs;
    struct lk_slice who = {0}, why = {0};
    struct lk_slice state = {0};
    struct lk_slice reference = {0};
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_SIGNATURE(&who, &why),
        LK_BYTES("STATE", 1, 32, &state),
        LK_BYTES("TARGET", 1, LK_TARGET_NAME_MAX, &query->target),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &query->tenant),
        LK_BYTES("REFERENCE", 1, 32, &reference),
        LK_BYTES("PROVIDER", 1, LK_PROVIDER_ID_MAX, &query->provider_id),
        LK_NUMBER("OLDER", 0, INT64_MAX, &query->older_than_ms),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 0, INT64_MAX, &query->until_ms),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
        LK_NUMBER("CURSOR", 0, INT64_MAX, &query->cursor),
        LK_FLAG("WHOLE", &query->whole),
    };

    if (!lk_arg_keeps_jobs(conn) ||
        !lk_arg_options(conn, argv, argc, 1, options, 13) ||
        !read_whole(conn, task, options) ||
        !read_job_state(conn, state, query) ||
        !lk_arg_target(conn, query->target) ||
        !read_reference(conn, reference, &query->number)) {
        return false;
    }
    query->limit = limit;
    return true;
}

/* Rows are gathered in `text` first: in the reply their count is in front. */
struct job_rows {
    const struct lk_store *store;
    int proto;
    enum lk_shown shown;
    struct lk_buf text;
    size_t count;
    uint64_t first; /* ids */
    uint64_t last;
    bool full;
    enum lk_status status;
};

/* False ends the list: the page is full, or memory is short. The job that fills
 * a page is still part of it, so a page has at least one job. */
static bool add_job(void *context, const struct lk_job *job)
{
    struct job_rows *rows = context;

    rows->status =
        write_job(&rows->text, rows->store, rows->proto, job, rows->shown);
    rows->first = rows->count++ ? rows->first : job->id;
    rows->last = job->id;
    rows->full = rows->text.len >= PAGE_BYTES;
    return !rows->status && !rows->full;
}

static enum lk_status write_job_rows(struct lk_buf *out,
                                     const struct job_rows *rows)
{
    W(lk_resp_array(out, rows->count));
    return latchkey_buf_add_slice(out, latchkey_buf_slice(&rows->text));
}

/* One entry for a page; the tenant is that of the filter. */
static enum lk_status note_page(struct lk_task *task,
                                const struct lk_store *store,
                                const struct job_rows *rows)
{
    struct lk_name name = {.tenant = task->args.jobs.tenant};
    char action[80];

    if (rows->count == 1) {
        return lk_note_bodies(task, store, "job look", name, 0, rows->first);
    }
    snprintf(action, sizeof(action), "look jobs %llu to %llu",
             (unsigned long long)rows->first, (unsigned long long)rows->last);
    return lk_note_bodies(task, store, action, name, 0, 0);
}

static enum lk_status write_jobs(struct lk_task *task,
                                 const struct lk_store *store,
                                 const struct job_rows *rows, uint64_t next)
{
    W(lk_resp_array(&task->text, 2));
    W(lk_resp_integer(&task->text, (int64_t)next));
    W(write_job_rows(&task->text, rows));
    return rows->shown == LK_SHOW_WHOLE && rows->count
               ? note_page(task, store, rows)
               : LK_OK;
}

/* Reader thread. With bodies the page is noted in the audit log as one entry.
 */
static enum lk_status run_jobs(struct lk_task *task, struct lk_store *store)
{
    const struct lk_jobs_query *query = &task->args.jobs;
    struct job_rows rows = {.store = store,
                            .proto = task->proto,
                            .shown = task->bodies   ? LK_SHOW_WHOLE
                                     : query->whole ? LK_SHOW_SIZES
                                                    : LK_SHOW_BYTES};
    uint64_t next = 0;
    enum lk_status status =
        store->class->jobs(store, query, add_job, &rows, &next);

    if (rows.full) {
        next = rows.last; /* a cursor is the id before */
    }
    if (rows.status) {
        status = rows.status;
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else {
        status = write_jobs(task, store, &rows, next);
    }
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- JOB SHOW ------------------------------------------------------------ */

LK_PARSE(job_show)
{
    return lk_arg_keeps_jobs(conn) &&
           lk_arg_number(conn, "id", argv[2], 1, INT64_MAX,
                         &task->args.job_id) &&
           lk_arg_body_option(conn, task, argv, argc, 3);
}

static enum lk_status write_attempt(struct lk_buf *out, int proto,
                                    const struct lk_attempt *attempt,
                                    enum lk_shown shown)
{
    W(lk_resp_map(out, proto, 6));
    W(lk_pair_number(out, "number", attempt->number));
    W(lk_pair_number(out, "ended-ms", attempt->ended_ms));
    W(lk_pair_number(out, "status", attempt->status));
    W(lk_pair_number(out, "called", attempt->called));
    W(lk_pair_bytes(out, "reason", attempt->reason));
    return shown == LK_SHOW_WHOLE
               ? lk_pair_bytes(out, "body", attempt->body)
               : lk_pair_number(out, "body-bytes", attempt->body.len);
}

/* False: out of memory, which rows->status says. */
static bool add_attempt(void *context, const struct lk_attempt *attempt)
{
    struct job_rows *rows = context;

    rows->status =
        write_attempt(&rows->text, rows->proto, attempt, rows->shown);
    rows->count++;
    return !rows->status;
}

/* The store's history has the earlier attempts. The last one is in the job
 * itself, unless the job goes on. */
static void add_last_attempt(struct job_rows *history, const struct lk_job *job)
{
    struct lk_slice body = job->response.body;
    struct lk_attempt last = {
        .number = job->attempts,
        .ended_ms = job->ended_ms,
        .status = job->status,
        .called = may_have_left(job),
        .reason = job->reason,
        .body = {body.data, body.len < HISTORY_BODY ? body.len : HISTORY_BODY},
    };
    bool goes_on = job->state == LK_JOB_WAITING || job->state == LK_JOB_LEASED;

    if (!history->status && job->attempts && !goes_on) {
        (void)add_attempt(history, &last); /* the rows keep its status */
    }
}

static enum lk_status write_shown(struct lk_task *task,
                                  struct job_rows *history,
                                  const struct lk_job *job)
{
    struct lk_buf *out = &task->text;

    W(lk_resp_map(out, task->proto, WHOLE_PAIRS + 1));
    W(write_job_pairs(out, history->store, job));
    W(write_job_whole(out, job, history->shown));
    W(lk_resp_bulk(out, LK_SLICE("history")));
    return write_job_rows(out, history);
}

/* Reader thread: the job, its request and its attempts; nil if there is none.
 */
static enum lk_status run_job_show(struct lk_task *task, struct lk_store *store)
{
    struct job_rows history = {.store = store,
                               .proto = task->proto,
                               .shown = task->bodies ? LK_SHOW_WHOLE
                                                     : LK_SHOW_SIZES};
    struct lk_job job = {0};
    enum lk_status status = store->class->job(store, task->args.job_id, &job,
                                              add_attempt, &history);

    if (!status) {
        add_last_attempt(&history, &job);
    }
    if (history.status) {
        status = history.status;
    } else if (status == LK_NOT_FOUND) {
        status = lk_resp_nil(&task->text, task->proto);
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else {
        status = write_shown(task, &history, &job);
        if (!status && task->bodies) {
            status = lk_note_bodies(task, store, "job look", job.operation, 0,
                                    job.id);
        }
    }
    latchkey_buf_free(&history.text);
    lk_job_free(&job);
    return status;
}

/* ---- Job actions --------------------------------------------------------- */

/* `known`: how many of the options this action has. */
static bool read_job_action(struct lk_conn *conn, struct lk_task *task,
                            const struct lk_slice *argv, size_t argc,
                            enum lk_job_action_kind kind, size_t known)
{
    struct lk_job_action *action = &task->args.action.action;
    struct lk_slice who = {0}, why = {0};
    uint64_t attempt = 0;
    uint64_t status = 0;
    struct lk_option options[] = {
        LK_SIGNATURE(&who, &why),
        LK_NUMBER("ATTEMPT", 1, UINT32_MAX, &attempt),
        LK_BYTES("PROVIDER", 1, LK_PROVIDER_ID_MAX, &action->provider_id),
        LK_NUMBER("STATUS", LK_STATUS_MIN, LK_STATUS_MAX, &status),
    };

    action->kind = kind;
    if (!lk_arg_keeps_jobs(conn) ||
        !lk_arg_number(conn, "id", argv[2], 1, INT64_MAX, &action->id) ||
        !lk_arg_signed(conn, task, argv, argc, 3, options, known) ||
        !lk_arg_printable(conn, "PROVIDER", action->provider_id)) {
        return false;
    }
    action->attempt = (unsigned)attempt;
    action->status = (unsigned)status;
    return true;
}

LK_PARSE(job_retry)
{
    return read_job_action(conn, task, argv, argc, LK_ACTION_RETRY, 3);
}

LK_PARSE(job_drop)
{
    return read_job_action(conn, task, argv, argc, LK_ACTION_DROP, 3);
}

LK_PARSE(job_again)
{
    return read_job_action(conn, task, argv, argc, LK_ACTION_AGAIN, 3);
}

LK_PARSE(job_delivered)
{
    return read_job_action(conn, task, argv, argc, LK_ACTION_DELIVERED, 5);
}

/* The states in which the store takes an action, as a sentence for refusals. */
static const char *needed_state(enum lk_job_action_kind kind)
{
    switch (kind) {
    case LK_ACTION_RETRY:
        return "only a dead or waiting one can be tried again";
    case LK_ACTION_DROP:
        return "only one that waits, is dead or uncertain can be dropped";
    case LK_ACTION_DELIVERED:
        return "only one that waits, is uncertain or dead can be called "
               "delivered";
    case LK_ACTION_AGAIN:
        return "only an uncertain or dead one can be called again";
    case LK_ACTION_PAUSE:
    case LK_ACTION_RESUME:
        break;
    }
    return "there is no such target";
}

/* The store has refused one action: LK_BUSY, LK_DENIED or LK_INVALID. */
static enum lk_status refuse_action(struct lk_buf *out,
                                    const struct lk_job_action *action)
{
    struct lk_buf message = {0};
    enum lk_status status;

    if (action->status_out == LK_BUSY) {
        return lk_resp_error(
            out, LK_SLICE("ERR JOB: this is the request of an operation; "
                          "RESOLVE the operation, and its request is settled"));
    }
    if (action->status_out == LK_DENIED) {
        return lk_resp_error(
            out, LK_SLICE("ERR JOB: it was sent, and the service may have "
                          "forgotten its key since (key_life), so that another "
                          "call could be a second one; find out whether it "
                          "has happened, then DELIVERED or AGAIN "
                          "(latchkey resolve --job ID --delivered or "
                          "--again)"));
    }
    status = latchkey_buf_printf(
        &message, "ERR JOB: the job is %s; %s%s",
        lk_job_state_word(action->state), needed_state(action->kind),
        action->attempt ? ", and only if its last attempt is the one given"
                        : "");
    if (!status) {
        status = lk_resp_error(out, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return status;
}

/* The result of one action. Nil: there is no such job or target. */
static enum lk_status write_action(struct lk_buf *out, int proto,
                                   const struct lk_job_action *action)
{
    switch (action->status_out) {
    case LK_OK:
        return lk_resp_simple(out, "OK");
    case LK_NOT_FOUND:
        return lk_resp_nil(out, proto);
    case LK_INVALID:
    case LK_BUSY:
    case LK_DENIED:
        return refuse_action(out, action);
    default:
        return lk_reply_unavailable(out, action->status_out, NULL);
    }
}

static void log_action(const struct lk_task *task,
                       const struct lk_job_action *action)
{
    static const char *const actions[] = {
        [LK_ACTION_RETRY] = "job retry",
        [LK_ACTION_DROP] = "job drop",
        [LK_ACTION_DELIVERED] = "job delivered",
        [LK_ACTION_AGAIN] = "job again",
        [LK_ACTION_PAUSE] = "target pause",
        [LK_ACTION_RESUME] = "target resume",
    };
    char about[LK_TARGET_NAME_MAX + 16];

    if (action->target.len) {
        snprintf(about, sizeof(about), "target=%.*s", (int)action->target.len,
                 action->target.data);
    } else {
        snprintf(about, sizeof(about), "job=%llu",
                 (unsigned long long)action->id);
    }
    lk_operator_log(task->signature, latchkey_slice(actions[action->kind]),
                    about);
}

/* Store thread, for each action of a job batch. If the batch's commit is not
 * known, a job may have been called again and be uncertain again: the same
 * action without an ATTEMPT could then apply to that later attempt. */
enum lk_status lk_action_run(struct lk_task *task, struct lk_store *store)
{
    const struct lk_action_args *args = &task->args.action;
    const struct lk_job_action *action = &args->action;
    bool target =
        action->kind == LK_ACTION_PAUSE || action->kind == LK_ACTION_RESUME;

    if (args->failure) {
        return lk_reply_failure(
            &task->text, args->failure, args->error,
            target ? "send the same again"
                   : "look at the job before you send it again, with its "
                     "ATTEMPT");
    }
    if (!action->status_out) {
        log_action(task, action);
    }
    return write_action(&task->text, task->proto, action);
}

/* One job batch of actions. Belongs to the store until `done`, which frees it;
 * the tasks in it are the store thread's until then. */
struct action_batch {
    struct lk_job_batch job_batch;
    struct lk_store *store;
    struct lk_returns *returns;
    struct lk_task_queue tasks; /* in the order of `actions` */
    struct lk_key_life *lives;
    struct lk_job_action actions[];
};

/* Store thread: each task gets its result and its reply, and goes back to the
 * loop. The replies are written before the batch, which owns the texts of
 * results and errors, is freed. */
static void finish_actions(struct lk_job_batch *job_batch)
{
    struct action_batch *batch = job_batch->context;
    const struct lk_job_action *action = batch->actions;

    for (struct lk_task *task = batch->tasks.head; task; task = task->next) {
        task->args.action = (struct lk_action_args){
            .action = *action++,
            .failure = job_batch->status,
            .error = job_batch->error,
        };
        lk_task_run(task, batch->store);
    }
    lk_returns_give(batch->returns, &batch->tasks, NULL);
    lk_job_batch_clear(job_batch);
    free(batch->lives);
    free(batch);
}

/* Of the targets with keys; a copy, because the settings may change while the
 * store uses it. */
static struct lk_key_life *copy_lives(const struct lk_targets *targets,
                                      size_t *count)
{
    size_t name_size = LK_TARGET_NAME_MAX + 1;
    struct lk_key_life *lives =
        calloc(targets->count + 1, sizeof(*lives) + name_size);
    char *name = (char *)(lives + targets->count);

    *count = 0;
    for (size_t i = 0; lives && i < targets->count; i++) {
        const struct lk_target *target = &targets->targets[i];
        if (target->honours && target->key_life_ms) {
            memcpy(name, target->name, strlen(target->name) + 1);
            lives[(*count)++] =
                (struct lk_key_life){latchkey_slice(name), target->key_life_ms};
            name += name_size;
        }
    }
    return lives;
}

/* Without memory each task goes back with LK_NOMEM, and its connection is
 * closed. They count as sent, because lk_actions_returned counts each down. */
static void give_up_actions(struct lk_server *server)
{
    for (struct lk_task *task = server->to_actions.head; task;
         task = task->next) {
        task->status = LK_NOMEM;
        server->actions_sent++;
    }
    lk_returns_give(&server->returns, &server->to_actions, NULL);
}

/* Moves `count` tasks to the batch. The actions point into their tasks' bytes,
 * which stay in place until the tasks come back. */
static void fill_actions(struct action_batch *batch,
                         struct lk_task_queue *queue, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct lk_task *task = lk_task_queue_take(queue);
        assert(task->at == LK_PLACE_ACTION && task->signature);
        batch->actions[i] = task->args.action.action;
        batch->actions[i].who = task->signature->who;
        batch->actions[i].why = task->signature->why;
        lk_task_queue_add(&batch->tasks, task);
    }
}

/* Takes at most ACTIONS_MOST; the others go with the next job batch. */
void lk_actions_give(struct lk_server *server)
{
    size_t count = server->to_actions.count;
    size_t life_count;

    if (server->actions_sent) {
        return;
    }
    count = count < ACTIONS_MOST ? count : ACTIONS_MOST;
    struct lk_key_life *lives =
        copy_lives(&server->config.targets, &life_count);
    struct action_batch *batch =
        calloc(1, sizeof(*batch) + count * sizeof(batch->actions[0]));
    if (!batch || !lives) {
        free(batch);
        free(lives);
        give_up_actions(server);
        return;
    }
    batch->store = server->store;
    batch->returns = &server->returns;
    batch->lives = lives;
    fill_actions(batch, &server->to_actions, count);
    batch->job_batch = (struct lk_job_batch){.actions = batch->actions,
                                             .action_count = count,
                                             .lives = lives,
                                             .life_count = life_count,
                                             .done = finish_actions,
                                             .context = batch};
    server->actions_sent = count;
    lk_batcher_job_batch(server->batcher, &batch->job_batch);
}

/* The job may be due now, or its target open. */
void lk_actions_returned(struct lk_server *server)
{
    assert(server->actions_sent);
    server->actions_sent--;
    lk_outbox_wake(server);
}

/* ---- The table ----------------------------------------------------------- */

#define JOB_ACTION                                                             \
    .min_args = 3, .roles = LK_FOR_OPERATE, .place = LK_PLACE_ACTION,          \
    .run = lk_action_run

static const struct lk_command rows[] = {
    {.name = "JOBS",
     .min_args = 1,
     .max_args = 26,
     .roles = LK_FOR_VIEW,
     .place = LK_PLACE_READER,
     .parse = parse_jobs,
     .run = run_jobs,
     .usage = "[STATE state | unfinished] [TARGET target] [TENANT tenant] "
              "[REFERENCE reference] [PROVIDER id] [OLDER ms] [SINCE ms] "
              "[UNTIL ms] [LIMIT n] [CURSOR cursor] [WHOLE [WHO who WHY why]]"},
    {.name = "JOB SHOW",
     .min_args = 3,
     .max_args = 8,
     .roles = LK_FOR_VIEW,
     .place = LK_PLACE_READER,
     .parse = parse_job_show,
     .run = run_job_show,
     .usage = "id [BODY WHO who WHY why]"},
    {.name = "JOB RETRY",
     .max_args = 9,
     .parse = parse_job_retry,
     JOB_ACTION,
     .usage = "id WHO who WHY why [ATTEMPT n]"},
    {.name = "JOB DROP",
     .max_args = 9,
     .parse = parse_job_drop,
     JOB_ACTION,
     .usage = "id WHO who WHY why [ATTEMPT n]"},
    {.name = "JOB AGAIN",
     .max_args = 9,
     .parse = parse_job_again,
     JOB_ACTION,
     .usage = "id WHO who WHY why [ATTEMPT n]"},
    {.name = "JOB DELIVERED",
     .max_args = 13,
     .parse = parse_job_delivered,
     JOB_ACTION,
     .usage = "id WHO who WHY why [ATTEMPT n] [PROVIDER id] [STATUS status]"},
};

LK_COMMAND_GROUP(lk_job_commands, rows);
