/* reply_jobs.c - jobs and what was ordered about them, as replies. */
#include "daemon/reply.h"

enum {
    PAIRS = 21,
    WHOLE_PAIRS = PAIRS + 4,
    PAGE_BYTES = 4 << 20, /* a page of large jobs ends in time */
    HISTORY_BODY = 1024,  /* of an answer, as stores keep it in a history */
};

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

/* A mark is made before a call: it shows nothing any more once the end has said
 * that nothing has ever been sent. */
static bool may_have_left(const struct lk_job *job)
{
    return job->called && (job->sent || job->state == LK_JOB_LEASED);
}

static enum lk_status write_pairs(struct lk_buf *out,
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

static enum lk_status write_sizes(struct lk_buf *out, const struct lk_job *job)
{
    W(lk_pair_number(out, "headers-bytes", job->headers.len));
    W(lk_pair_number(out, "body-bytes", job->body.len));
    W(lk_pair_number(out, "answer-headers-bytes", job->answer.headers.len));
    return lk_pair_number(out, "answer-body-bytes", job->answer.body.len);
}

static enum lk_status write_whole(struct lk_buf *out, const struct lk_job *job,
                                  enum lk_shown shown)
{
    if (shown == LK_SHOW_SIZES) {
        return write_sizes(out, job);
    }
    W(lk_pair_bytes(out, "headers", job->headers));
    W(lk_pair_bytes(out, "body", job->body));
    W(lk_pair_bytes(out, "answer-headers", job->answer.headers));
    return lk_pair_bytes(out, "answer-body", job->answer.body);
}

enum lk_status lk_reply_job(struct lk_buf *out, const struct lk_store *store,
                            int proto, const struct lk_job *job,
                            enum lk_shown shown)
{
    bool whole = shown != LK_SHOW_BYTES;

    W(lk_resp_map(out, proto, whole ? WHOLE_PAIRS : PAIRS));
    W(write_pairs(out, store, job));
    return whole ? write_whole(out, job, shown) : LK_OK;
}

/* ---- JOBS ---------------------------------------------------------------- */

/* Rows are written behind each other first: the count stands before them. */
struct rows {
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

static bool add_job(void *context, const struct lk_job *job)
{
    struct rows *rows = context;

    rows->status =
        lk_reply_job(&rows->text, rows->store, rows->proto, job, rows->shown);
    rows->first = rows->count++ ? rows->first : job->id;
    rows->last = job->id;
    rows->full = rows->text.len >= PAGE_BYTES;
    return !rows->status && !rows->full;
}

static enum lk_status write_rows(struct lk_buf *out, const struct rows *rows)
{
    W(lk_resp_array(out, rows->count));
    return latchkey_buf_add_slice(out, latchkey_buf_slice(&rows->text));
}

/* One entry for a page; the tenant is that of the filter. */
static enum lk_status look_at(struct lk_task *task, const struct rows *rows)
{
    struct lk_name name = {.tenant = task->demand.op.name.tenant};
    char action[80];

    if (rows->count == 1) {
        return lk_look_make(task, "job look", name, 0, rows->first);
    }
    snprintf(action, sizeof(action), "look jobs %llu to %llu",
             (unsigned long long)rows->first, (unsigned long long)rows->last);
    return lk_look_make(task, action, name, 0, 0);
}

enum lk_status lk_reply_jobs(struct lk_store *store, struct lk_task *task)
{
    struct lk_jobs_query query = task->demand.jobs;
    struct rows rows = {.store = store,
                        .proto = task->proto,
                        .shown = task->demand.bodies ? LK_SHOW_WHOLE
                                 : query.whole       ? LK_SHOW_SIZES
                                                     : LK_SHOW_BYTES};
    uint64_t next = 0;
    enum lk_status status;

    query.tenant = task->demand.op.name.tenant;
    query.target = task->demand.op.reason;
    query.provider_id = task->demand.op.owner;
    status = store->class->jobs(store, &query, add_job, &rows, &next);
    if (rows.full) {
        next = rows.last; /* a cursor is the id before */
    }
    if (rows.status) {
        status = rows.status;
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else {
        status = lk_resp_array(&task->text, 2);
        if (!status) {
            status = lk_resp_integer(&task->text, (int64_t)next);
        }
        if (!status) {
            status = write_rows(&task->text, &rows);
        }
        if (!status && rows.shown == LK_SHOW_WHOLE && rows.count) {
            status = look_at(task, &rows);
        }
    }
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- JOB SHOW ------------------------------------------------------------ */

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

static bool add_attempt(void *context, const struct lk_attempt *attempt)
{
    struct rows *rows = context;

    rows->status =
        write_attempt(&rows->text, rows->proto, attempt, rows->shown);
    rows->count++;
    return !rows->status;
}

/* The last attempt stands in the job itself, unless the job goes on. */
static void add_last(struct rows *history, const struct lk_job *job)
{
    struct lk_slice body = job->answer.body;
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

static enum lk_status write_shown(struct lk_task *task, struct rows *history,
                                  const struct lk_job *job)
{
    struct lk_buf *out = &task->text;

    W(lk_resp_map(out, task->proto, WHOLE_PAIRS + 1));
    W(write_pairs(out, history->store, job));
    W(write_whole(out, job, history->shown));
    W(lk_resp_bulk(out, LK_SLICE("history")));
    return write_rows(out, history);
}

enum lk_status lk_reply_job_shown(struct lk_store *store, struct lk_task *task)
{
    struct rows history = {.store = store,
                           .proto = task->proto,
                           .shown = task->demand.bodies ? LK_SHOW_WHOLE
                                                        : LK_SHOW_SIZES};
    struct lk_job job = {0};
    enum lk_status status = store->class->job(store, task->demand.op.token,
                                              &job, add_attempt, &history);

    if (!status) {
        add_last(&history, &job);
    }
    if (history.status) {
        status = history.status;
    } else if (status == LK_NOT_FOUND) {
        status = lk_resp_nil(&task->text, task->proto);
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else {
        status = write_shown(task, &history, &job);
        if (!status && task->demand.bodies) {
            status = lk_look_make(task, "job look", job.operation, 0, job.id);
        }
    }
    latchkey_buf_free(&history.text);
    lk_job_free(&job);
    return status;
}

/* ---- Orders -------------------------------------------------------------- */

static const char *needed_state(enum lk_job_action_kind order)
{
    switch (order) {
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

static enum lk_status refuse_order(struct lk_buf *out,
                                   const struct lk_job_action *order)
{
    struct lk_buf message = {0};
    enum lk_status status;

    if (order->status_out == LK_BUSY) {
        return lk_resp_error(
            out, LK_SLICE("ERR JOB: this is the request of an operation; "
                          "RESOLVE the operation, and its request is settled"));
    }
    if (order->status_out == LK_DENIED) {
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
        lk_job_state_word(order->state), needed_state(order->order),
        order->attempt ? ", and only if its last attempt is the one given"
                       : "");
    if (!status) {
        status = lk_resp_error(out, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return status;
}

enum lk_status lk_reply_order(struct lk_buf *out, int proto,
                              const struct lk_job_action *order)
{
    switch (order->status_out) {
    case LK_OK:
        return lk_resp_simple(out, "OK");
    case LK_NOT_FOUND:
        return lk_resp_nil(out, proto);
    case LK_INVALID:
    case LK_BUSY:
    case LK_DENIED:
        return refuse_order(out, order);
    default:
        return lk_reply_unavailable(out, order->status_out, NULL);
    }
}
