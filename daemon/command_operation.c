/*
 * command_operation.c - the commands about one operation, and their steps:
 * decided at once from what is durable (peek), or by a store thread (batch);
 * then loaded or parked if necessary; then the reply.
 *
 * A peek is only tried when nothing else is in progress on the connection, so
 * no command overtakes an earlier one. If the response of a REPLAY is gone when
 * it is to be loaded (evicted, expired), the claim is decided again, as if it
 * had arrived later. But if a later command of the connection about the same
 * operation is in progress, it may already be decided: then the claim gets
 * UNAVAILABLE.
 */
#include "daemon/args.h"

#include <assert.h>

/* ---- What apps and gateways send ----------------------------------------- */

LK_PARSE(claim)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_event_args *event = &task->args.event;
    struct lk_op *op = &event->op;

    op->event = LK_EVENT_CLAIM;
    op->fingerprint = argv[4];
    op->ttl_ms = config->ttl_ms;
    op->lock_ms = config->lock_ms;
    if (!lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_bytes(conn, "fingerprint", argv[4], 1, LK_FINGERPRINT_MAX)) {
        return false;
    }
    if (argc == 5) {
        return true;
    }
    struct lk_option options[] = {
        LK_BYTES("OWNER", 1, LK_OWNER_MAX, &op->owner),
        LK_NUMBER("TTL", 1, config->max_ttl_ms, &op->ttl_ms),
        LK_NUMBER("LOCK", 1, config->max_lock_ms, &op->lock_ms),
        LK_NUMBER("WAIT", 0, LK_WAIT_MAX_MS, &event->wait_ms),
        LK_FLAG("REEXECUTE", &op->reexecute),
        LK_FLAG("NONEW", &op->no_new),
    };
    return lk_arg_options(conn, argv, argc, 5, options, 6);
}

/* With OMIT, headers and body are not read: only the status is stored, and why
 * the response is not. */
LK_PARSE(complete)
{
    struct lk_op *op = &task->args.event.op;
    struct lk_option options[] = {
        LK_NUMBER("TTL", 1, conn->server->config.max_ttl_ms, &op->ttl_ms),
        LK_BYTES("OMIT", 1, LK_REASON_MAX, &op->reason),
    };

    op->event = LK_EVENT_COMPLETE;
    if (!lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_token(conn, argv[4], &op->token) ||
        !lk_arg_status(conn, argv[5], &op->response.status) ||
        !lk_arg_options(conn, argv, argc, 8, options, 2)) {
        return false;
    }
    if (op->reason.len) {
        return true;
    }
    op->response.headers = argv[6];
    op->response.body = argv[7];
    return lk_arg_headers(conn, argv[6], lk_header_lines_fault);
}

LK_PARSE(release)
{
    struct lk_op *op = &task->args.event.op;

    op->event = LK_EVENT_RELEASE;
    return lk_arg_name(conn, argv, &op->name) &&
           lk_arg_token(conn, argv[4], &op->token);
}

LK_PARSE(doubt)
{
    struct lk_op *op = &task->args.event.op;

    op->event = LK_EVENT_DOUBT;
    op->reason = argv[5];
    return lk_arg_name(conn, argv, &op->name) &&
           lk_arg_token(conn, argv[4], &op->token) &&
           lk_arg_bytes(conn, "reason", argv[5], 1, LK_REASON_MAX);
}

/* RETURN gives an accepted request back to the courier; UNSENT: the app has
 * certainly not seen it. */
LK_PARSE(return )
{
    struct lk_op *op = &task->args.event.op;
    struct lk_option options[] = {LK_FLAG("UNSENT", &op->unsent)};

    op->event = LK_EVENT_RETURN;
    return lk_arg_keeps_jobs(conn) && lk_arg_name(conn, argv, &op->name) &&
           lk_arg_token(conn, argv[4], &op->token) &&
           lk_arg_options(conn, argv, argc, 5, options, 1);
}

LK_PARSE(extend)
{
    struct lk_op *op = &task->args.event.op;

    op->event = LK_EVENT_EXTEND;
    return lk_arg_name(conn, argv, &op->name) &&
           lk_arg_token(conn, argv[4], &op->token) &&
           lk_arg_number(conn, "lock-ms", argv[5], 1,
                         conn->server->config.max_lock_ms, &op->lock_ms);
}

/*
 * A claim that can start nothing and matches no fingerprint (that of a real
 * claim is never empty) shows the state and changes nothing.
 */
LK_PARSE(await)
{
    struct lk_event_args *event = &task->args.event;

    event->op.event = LK_EVENT_CLAIM;
    event->op.no_new = true;
    event->await_id = argv[1];
    return lk_arg_bytes(conn, "id", argv[1], 1, LK_REASON_MAX) &&
           lk_arg_name(conn, argv + 1, &event->op.name) &&
           lk_arg_number(conn, "ms", argv[5], 1, LK_WAIT_MAX_MS,
                         &event->wait_ms);
}

/* ---- What leaves a job: ACCEPT and ENQUEUE ------------------------------- */

enum {
    HEADERS_MAX = 64 * 1024,
    NAMES_SHOWN = 256, /* of targets, in an error */
};

/* One day more than the default of store.max_ttl. */
#define DELAY_MAX_MS (UINT64_C(401) * 86400000)

static bool check_body(struct lk_conn *conn, struct lk_slice body)
{
    uint64_t most = conn->server->config.request_bytes;

    if (body.len <= most) {
        return true;
    }
    lk_conn_error(conn,
                  "ERR TOO LARGE %s: the body must be at most %llu bytes long "
                  "(courier.request_bytes), not %zu",
                  conn->command->name, (unsigned long long)most, body.len);
    return false;
}

/* `fault`: what is wrong with it, or NULL. */
static bool check_fault(struct lk_conn *conn, const char *what,
                        const char *fault)
{
    if (fault) {
        lk_conn_error(conn, "ERR %s: the %s %s", conn->command->name, what,
                      fault);
    }
    return !fault;
}

/* The courier gives the gateway the name of the operation in header lines. */
static const char *name_part_fault(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c < ' ' || c == 0x7f) {
            return "must not contain control characters";
        }
    }
    return NULL;
}

static bool check_name_parts(struct lk_conn *conn, const struct lk_name *name)
{
    return check_fault(conn, "tenant", name_part_fault(name->tenant)) &&
           check_fault(conn, "scope", name_part_fault(name->scope)) &&
           check_fault(conn, "key", name_part_fault(name->key));
}

/* The call, and with it the job, points into the task's own words. */
LK_PARSE(accept)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_op *op = &task->args.event.op;
    struct lk_call *call = &task->args.event.call;
    struct lk_option options[] = {
        LK_NUMBER("TTL", 1, config->max_ttl_ms, &op->ttl_ms),
        LK_FLAG("REEXECUTE", &call->repeatable),
    };

    op->event = LK_EVENT_ACCEPT;
    op->fingerprint = argv[4];
    op->ttl_ms = config->ttl_ms;
    op->lock_ms = config->lock_ms;
    op->call = call;
    *call = (struct lk_call){.target = LK_SLICE(LK_TARGET_GATEWAY),
                             .method = argv[5],
                             .path = argv[6],
                             .headers = argv[7],
                             .body = argv[8]};
    if (!lk_arg_keeps_jobs(conn) || !lk_arg_name(conn, argv, &op->name) ||
        !check_name_parts(conn, &op->name) ||
        !lk_arg_bytes(conn, "fingerprint", argv[4], 1, LK_FINGERPRINT_MAX) ||
        !check_fault(conn, "method", lk_request_method_fault(argv[5])) ||
        !check_fault(conn, "path", lk_request_path_fault(argv[6])) ||
        !lk_arg_bytes(conn, "headers", argv[7], 0, HEADERS_MAX) ||
        !lk_arg_headers(conn, argv[7], lk_header_lines_fault) ||
        !check_body(conn, argv[8]) ||
        !lk_arg_options(conn, argv, argc, 9, options, 2)) {
        return false;
    }
    /* Without a gateway no one would run the request, so nothing new is
     * accepted. A retry of an accepted request still gets its response. */
    op->no_new = !config->gateway;
    op->reexecute = call->repeatable;
    return true;
}

/* The error names the targets that there are. */
static bool check_target(struct lk_conn *conn, struct lk_slice name)
{
    const struct lk_targets *targets = &conn->server->config.targets;
    char shown[80];
    char names[NAMES_SHOWN];

    if (lk_target_find(targets, name)) {
        return true;
    }
    lk_conn_error(conn, "ERR ENQUEUE: there is no target %s; %s%s",
                  lk_log_quote(name, shown, sizeof(shown)),
                  targets->count ? "there are " : "none is configured",
                  lk_targets_names(targets, ", ", names, sizeof(names)));
    return false;
}

static bool check_call(struct lk_conn *conn, const struct lk_call *call)
{
    return lk_arg_bytes(conn, "name", call->name, 1, LK_JOB_NAME_MAX) &&
           lk_arg_printable(conn, "name", call->name) &&
           check_target(conn, call->target) &&
           check_fault(conn, "path", lk_path_fault(call->path)) &&
           check_fault(conn, "method", lk_method_fault(call->method)) &&
           lk_arg_headers(conn, call->headers, lk_headers_fault) &&
           check_body(conn, call->body);
}

LK_PARSE(enqueue)
{
    struct lk_op *op = &task->args.event.op;
    struct lk_call *call = &task->args.event.call;
    struct lk_option options[] = {
        LK_BYTES("METHOD", 1, LK_METHOD_MAX, &call->method),
        LK_BYTES("HEADERS", 0, HEADERS_MAX, &call->headers),
        LK_BYTES("BODY", 0, SIZE_MAX, &call->body),
        LK_NUMBER("DELAY", 0, DELAY_MAX_MS, &call->delay_ms),
    };

    op->event = LK_EVENT_ENQUEUE;
    op->call = call;
    *call = (struct lk_call){.name = argv[5],
                             .target = argv[6],
                             .path = argv[7],
                             .method = LK_SLICE("POST")};
    return lk_arg_keeps_jobs(conn) && lk_arg_name(conn, argv, &op->name) &&
           lk_arg_token(conn, argv[4], &op->token) &&
           lk_arg_options(conn, argv, argc, 8, options, 4) &&
           check_call(conn, call);
}

/* ---- What operators send ------------------------------------------------- */

/* The store writes who and why into the audit log together with the effect. */
static void sign_op(struct lk_task *task)
{
    task->args.event.op.who = task->signature->who;
    task->args.event.op.why = task->signature->why;
}

LK_PARSE(keep)
{
    struct lk_op *op = &task->args.event.op;
    bool is_signed = argc > 5; /* by an operator, and audited */

    op->event = LK_EVENT_KEEP;
    if (!lk_arg_role(conn, is_signed ? "KEEP with WHO" : "KEEP without WHO",
                     is_signed ? LK_ROLE_OPERATE : LK_ROLE_USE) ||
        !lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_number(conn, "ttl-ms", argv[4], 1,
                       conn->server->config.max_ttl_ms, &op->ttl_ms)) {
        return false;
    }
    if (is_signed) {
        if (!lk_arg_signature(conn, task, argv, argc, 5)) {
            return false;
        }
        sign_op(task);
    }
    return true;
}

/* The outcome, and where the options begin; 0 after an error. */
static size_t read_resolution(struct lk_conn *conn, struct lk_op *op,
                              const struct lk_slice *argv, size_t argc)
{
    enum { COMPLETED_LEAST = 12 }; /* with WHO who WHY why */

    if (lk_arg_is(argv[4], "RELEASED")) {
        op->event = LK_EVENT_RESOLVE_RELEASED;
        return 5;
    }
    if (!lk_arg_is(argv[4], "COMPLETED")) {
        lk_arg_error(conn, "the outcome", "must be RELEASED or COMPLETED",
                     argv[4]);
        return 0;
    }
    if (argc < COMPLETED_LEAST) {
        lk_conn_error(conn, "ERR RESOLVE: COMPLETED needs a status, headers "
                            "and a body, which may be empty, and then WHO who "
                            "WHY why");
        return 0;
    }
    op->event = LK_EVENT_RESOLVE_COMPLETED;
    op->response.headers = argv[6];
    op->response.body = argv[7];
    return lk_arg_status(conn, argv[5], &op->response.status) &&
                   lk_arg_headers(conn, argv[6], lk_header_lines_fault)
               ? 8
               : 0;
}

LK_PARSE(resolve)
{
    struct lk_op *op = &task->args.event.op;
    struct lk_slice who = {0}, why = {0};
    struct lk_option options[] = {
        LK_SIGNATURE(&who, &why),
        LK_NUMBER("TOKEN", 1, (UINT64_C(1) << 53) - 1, &op->token),
        LK_FLAG("RUNNING", &op->running),
    };

    if (!lk_arg_name(conn, argv, &op->name)) {
        return false;
    }
    size_t from = read_resolution(conn, op, argv, argc);
    if (!from || !lk_arg_signed(conn, task, argv, argc, from, options, 4)) {
        return false;
    }
    sign_op(task);
    return true;
}

LK_PARSE(evict)
{
    struct lk_op *op = &task->args.event.op;

    op->event = LK_EVENT_EVICT;
    if (!lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_signature(conn, task, argv, argc, 4)) {
        return false;
    }
    sign_op(task);
    return true;
}

/* ---- The steps of an operation's command --------------------------------- */

enum { ROUNDS = 8 }; /* how often a task is decided and loaded, at most */

enum step {
    STEP_DECIDE, /* to the store thread */
    STEP_LOAD,   /* decided; the reader thread fetches the response */
    STEP_PARK,   /* decided; wait until it settles */
    STEP_REPLY,
};

static uint64_t now_ms(const struct lk_server *server)
{
    return uv_now(&server->loop);
}

/* Only responses of completed operations are in the cache; see cache.h. */
static bool is_final(enum lk_verdict verdict)
{
    return verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_OMITTED ||
           verdict == LK_VERDICT_KEPT;
}

/* True: the response is in the cache, and the op holds a reference to it, which
 * lk_op_clear gives up. False: it has to be loaded, or is not final. */
static bool find_stored(struct lk_server *server, struct lk_op *op)
{
    if (!is_final(op->out.verdict)) {
        return false;
    }
    op->out.stored = lk_cache_get(&server->cache, op->hash, op->out.token);
    op->out.needs_load = op->out.stored == NULL;
    return op->out.stored != NULL;
}

static bool is_await(const struct lk_task *task)
{
    return task->args.event.await_id.len > 0;
}

/* Will the operation settle later? An await is for such an operation only. */
static bool is_pending(const struct lk_op *op)
{
    return op->out.state == LK_STATE_IN_PROGRESS ||
           op->out.state == LK_STATE_ACCEPTED;
}

static bool asks_to_wait(const struct lk_op *op)
{
    return op->out.verdict == LK_VERDICT_INFLIGHT ||
           op->out.verdict == LK_VERDICT_ACCEPTED;
}

/* What follows an outcome. `may_wait`: the client asked to wait, and its time
 * is not over. */
static enum step next_step(struct lk_server *server,
                           struct lk_event_args *event, bool may_wait)
{
    struct lk_op *op = &event->op;

    if (op->status) {
        return STEP_REPLY;
    }
    if (event->await_id.len) {
        return is_pending(op) && may_wait ? STEP_PARK : STEP_REPLY;
    }
    if (op->out.needs_load && !find_stored(server, op)) {
        return STEP_LOAD;
    }
    return may_wait && asks_to_wait(op) ? STEP_PARK : STEP_REPLY;
}

/* Decides without the store thread if what is durable is enough. Only a verdict
 * that no later command can change is taken. */
static enum step peek(struct lk_server *server, struct lk_event_args *event,
                      bool may_wait)
{
    struct lk_store *store = server->store;
    struct lk_op *op = &event->op;

    op->out = (struct lk_outcome){0};
    if (!store->class->peek || store->class->peek(store, op) != LK_OK) {
        return STEP_DECIDE;
    }
    if (op->out.needs_load && !is_final(op->out.verdict)) {
        return STEP_DECIDE; /* it could change before it is loaded */
    }
    op->status = LK_OK;
    server->metrics.peeked++;
    return next_step(server, event, may_wait);
}

/* A claim that waited is counted, but not timed. */
static void count_claim(struct lk_server *server, const struct lk_task *task,
                        bool waited)
{
    const struct lk_op *op = &task->args.event.op;

    if (!task->command->claims) {
        return;
    }
    if (op->status) {
        server->metrics.claims_unavailable++;
        return;
    }
    lk_metrics_claim(&server->metrics, op->out.verdict, waited,
                     (uv_hrtime() - task->started_ns) / 1000);
}

/* Replies at once and frees the task. Only the words have been copied. */
static void reply_now(struct lk_conn *conn, struct lk_task *task)
{
    if (is_await(task)) {
        task->settled = true;
    } else {
        count_claim(conn->server, task, false);
    }
    lk_conn_wrote(conn, task->command->reply(task, lk_conn_out(conn)));
    lk_task_free(conn->server, task);
}

/* Counts the claim and lets the reply go out when it is its turn. */
static void reply_to_task(struct lk_server *server, struct lk_task *task)
{
    if (is_await(task)) {
        task->settled = task->args.event.op.status == LK_OK &&
                        !is_pending(&task->args.event.op);
    } else {
        count_claim(server, task, task->waited);
    }
    task->ready = true;
    lk_conn_emit(task->conn);
}

/* An await that cannot be parked is refused; a claim gets its verdict. */
static void refuse_to_park(struct lk_server *server, struct lk_task *task)
{
    if (is_await(task)) {
        enum lk_status status = lk_resp_error(
            &task->text, LK_SLICE("ERR AWAIT: limits.waiters are waiting, "
                                  "come back later"));
        task->args.event.op.status = LK_TOO_LARGE;
        if (status) {
            lk_conn_close(task->conn, "out-of-memory");
        }
    }
    reply_to_task(server, task);
}

/* The task waits until its operation settles or its time is up. An await gets
 * QUEUED at once; a claim keeps its turn on the connection. */
static void park(struct lk_server *server, struct lk_task *task)
{
    if (server->waiters.count >= server->config.waiters ||
        lk_waiters_add(&server->waiters, &task->waiter,
                       task->args.event.op.hash, task->deadline_ms)) {
        refuse_to_park(server, task);
        return;
    }
    lk_task_uncount(server, task);
    if (is_await(task)) {
        task->ready = true;
        lk_conn_emit(task->conn);
        return;
    }
    if (!task->waited) {
        server->metrics.waits++;
    }
    task->waited = true;
    lk_op_clear(&task->args.event.op);
}

/* One connection has a few places in the reader, so that others get theirs. */
static void load(struct lk_server *server, struct lk_task *task)
{
    lk_task_count(server, task);
    if (task->conn->in_reader >= LK_READER_SHARE) {
        lk_task_queue_add(&task->conn->to_load, task);
    } else {
        lk_task_send(server, task, LK_PLACE_READER);
    }
}

/* Does what next_step or peek has found. The task may be freed after it. */
static void take_step(struct lk_server *server, struct lk_task *task,
                      enum step step)
{
    switch (step) {
    case STEP_DECIDE:
        lk_op_clear(&task->args.event.op);
        task->args.event.op.out = (struct lk_outcome){0};
        lk_task_count(server, task);
        lk_task_send(server, task, LK_PLACE_BATCH);
        break;
    case STEP_LOAD:
        load(server, task);
        break;
    case STEP_PARK:
        park(server, task);
        break;
    case STEP_REPLY:
        reply_to_task(server, task);
        break;
    }
}

/* True: the command would begin an operation, and its client has closed the
 * connection, so no one would hold the operation. The command may have been in
 * the socket for long, and the client has asked another daemon. One system call
 * is made for all commands that were read together. */
static bool check_left(struct lk_conn *conn, const struct lk_op *op)
{
    if (lk_op_begins(op) && conn->looked_ns != conn->read_ns) {
        conn->looked_ns = conn->read_ns;
        conn->hung_up = lk_task_hung_up(lk_conn_fd(conn));
    }
    return lk_op_begins(op) && conn->hung_up;
}

/* Takes the task: replied and freed at once, or on the connection's list. */
void lk_operation_start(struct lk_conn *conn, struct lk_task *task)
{
    struct lk_server *server = conn->server;
    struct lk_event_args *event = &task->args.event;
    bool may_wait = event->wait_ms > 0;
    enum step step = STEP_DECIDE;

    event->op.hash = lk_name_hash(server->store->secret, event->op.name);
    if (!conn->head) {
        step = peek(server, event, may_wait);
    }
    if (step == STEP_REPLY) {
        reply_now(conn, task);
        return;
    }
    if (step == STEP_DECIDE && check_left(conn, &event->op)) {
        lk_task_free(server, task);
        lk_conn_error(conn, "UNAVAILABLE " LK_CLIENT_LEFT);
        return;
    }
    task->deadline_ms = now_ms(server) + event->wait_ms;
    lk_conn_push(conn, task);
    conn->hold = task->command->alone || (may_wait && !is_await(task));
    take_step(server, task, step);
}

/* The block of the arguments becomes the stored response: no copy. With OMIT
 * the response's bytes are not to be kept, so it is a small one of its own. */
static struct lk_stored *stored_of(struct lk_task *task)
{
    const struct lk_op *op = &task->args.event.op;
    struct lk_stored *stored = task->block;

    assert(stored && op->event == LK_EVENT_COMPLETE);
    if (op->reason.len) {
        return lk_stored_make(op->token, op->out.now_ms, &op->response,
                              op->reason);
    }
    stored->token = op->token;
    stored->at_ms = op->out.now_ms;
    stored->response = op->response;
    return lk_stored_ref(stored);
}

/* What the log and the cache get once the op is durable, even if its client has
 * left. */
static void take_effect(struct lk_server *server, struct lk_task *task)
{
    const struct lk_op *op = &task->args.event.op;
    char about[LK_ABOUT_REFERENCE];

    if (op->status || op->out.verdict != LK_VERDICT_DONE) {
        return;
    }
    struct lk_slice action = lk_op_action(op);
    if (action.len) {
        assert(task->signature);
        lk_operator_about(server->store, op->out.number, about);
        lk_operator_log(task->signature, action, about);
    }
    if (op->event == LK_EVENT_EVICT) {
        lk_cache_remove(&server->cache, op->out.token);
    }
    if (op->event == LK_EVENT_COMPLETE && server->cache.max_bytes > 0) {
        struct lk_stored *stored = stored_of(task);
        if (stored) {
            lk_cache_put(&server->cache, op->hash, stored);
            lk_stored_unref(stored);
        }
    }
}

/* Is a later command of its connection about the same operation in progress? */
static bool is_followed(const struct lk_task *task)
{
    struct lk_hash128 hash = task->args.event.op.hash;
    const struct lk_task *later = task->conn ? task->after : NULL;

    for (; later; later = later->after) {
        if (later->command && later->command->place == LK_PLACE_BATCH &&
            lk_hash128_equal(later->args.event.op.hash, hash)) {
            return true;
        }
    }
    return false;
}

/* True: the load was in vain, the operation has to be decided again. */
static bool take_load(struct lk_server *server, struct lk_task *task)
{
    struct lk_op *op = &task->args.event.op;

    if (op->status == LK_AGAIN && ++task->rounds < ROUNDS &&
        !is_followed(task)) {
        return true;
    }
    if (op->status == LK_AGAIN) {
        op->status = LK_UNAVAILABLE;
        op->error =
            LK_RECORD "it changed while its response was read; send the "
                      "same again";
    }
    op->out.needs_load = false;
    if (!op->status && op->out.stored && is_final(op->out.verdict)) {
        lk_cache_put(&server->cache, op->hash, op->out.stored);
    }
    return false;
}

static bool may_wait(const struct lk_server *server, const struct lk_task *task)
{
    return task->args.event.wait_ms > 0 && !task->final && !task->conn->eof &&
           !task->conn->quit && !server->stop_by_ms &&
           now_ms(server) < task->deadline_ms;
}

/* Places in the reader are free: tasks that waited for one may go, if the
 * response is still not in the cache. */
static void load_more(struct lk_server *server, struct lk_conn *conn)
{
    struct lk_task *task;

    while (conn->in_reader < LK_READER_SHARE &&
           (task = lk_task_queue_take(&conn->to_load))) {
        take_step(server, task,
                  next_step(server, &task->args.event, may_wait(server, task)));
    }
}

/* Loop thread. An op whose client has left has taken effect all the same: cache
 * and log get it, and only the reply is dropped. A place in the reader is free
 * after a load, so the connection's next task may take it. */
void lk_operation_returned(struct lk_server *server, struct lk_task *task,
                           bool loaded)
{
    struct lk_conn *conn = task->conn;
    bool again = loaded && take_load(server, task);

    if (!loaded) {
        take_effect(server, task);
    }
    if (!conn) {
        lk_task_free(server, task);
        return;
    }
    enum step step =
        again ? STEP_DECIDE
              : next_step(server, &task->args.event, may_wait(server, task));
    take_step(server, task, step);
    if (loaded) {
        load_more(server, conn);
    }
}

/* A claim that waits. It may peek: nothing else is in progress on its
 * connection. */
static void decide_again(struct lk_server *server, struct lk_task *task)
{
    enum step step = peek(server, &task->args.event, may_wait(server, task));

    take_step(server, task, step);
}

/* From the list of its connection. The waiter is removed by lk_task_free. */
static void unlink_await(struct lk_task *task)
{
    *(task->before ? &task->before->after : &task->conn->awaits) = task->after;
    if (task->after) {
        task->after->before = task->before;
    }
}

/* Sends the message of an await, which ends; before QUEUED it is only marked.
 */
static void push_settled(struct lk_server *server, struct lk_task *task)
{
    struct lk_conn *conn = task->conn;

    if (!task->queued) {
        task->settled = true; /* goes out right behind QUEUED */
        return;
    }
    if (!conn->closing) {
        server->metrics.pushes++;
        lk_conn_wrote(conn, lk_reply_settled(&conn->out, conn->proto,
                                             task->args.event.await_id));
        lk_server_mark_dirty(server, conn);
    }
    unlink_await(task);
    lk_task_free(server, task);
}

static struct lk_task *task_of(struct lk_waiter *waiter)
{
    return (struct lk_task *)((char *)waiter -
                              offsetof(struct lk_task, waiter));
}

/*
 * The await waits on if its operation is still pending. If that is not known
 * (the store has no peek), or there is no memory to wait, the client gets the
 * message, claims, and gets the state.
 */
static void await_again(struct lk_server *server, struct lk_task *task)
{
    enum step step = peek(server, &task->args.event, true);

    if (step == STEP_REPLY || !server->store->class->peek ||
        lk_waiters_add(&server->waiters, &task->waiter,
                       task->args.event.op.hash, task->deadline_ms)) {
        push_settled(server, task);
    }
}

/* Decides each claim again; calls `await` for each AWAIT. */
static void wake(struct lk_server *server, struct lk_waiter *waiter,
                 void (*await)(struct lk_server *, struct lk_task *))
{
    while (waiter) {
        struct lk_waiter *next = waiter->next;
        struct lk_task *task = task_of(waiter);
        if (is_await(task)) {
            await(server, task);
        } else {
            decide_again(server, task);
        }
        waiter = next;
    }
}

/* The store has made a batch durable in which this operation settled. */
void lk_operation_settled(struct lk_server *server, struct lk_hash128 hash)
{
    wake(server, lk_waiters_take(&server->waiters, hash), push_settled);
}

/* No one knows which operations settled: claims are decided again, and awaits
 * go on waiting if their operation is still pending. */
void lk_operation_settled_all(struct lk_server *server)
{
    wake(server, lk_waiters_take_all(&server->waiters), await_again);
}

/* An await whose time is up is forgotten; a claim gets its latest verdict. */
static void expire(struct lk_server *server, struct lk_task *task)
{
    if (!is_await(task)) {
        task->final = true;
        decide_again(server, task);
    } else if (task->queued) {
        unlink_await(task);
        lk_task_free(server, task);
    } else {
        task->final = true; /* freed once QUEUED is written */
    }
}

void lk_operation_expire(struct lk_server *server, uint64_t until_ms)
{
    struct lk_waiter *waiter;

    while ((waiter = lk_waiters_expire(&server->waiters, until_ms))) {
        expire(server, task_of(waiter));
    }
}

/* RESET: their messages are not wanted any more. */
void lk_operation_forget_awaits(struct lk_conn *conn)
{
    while (conn->awaits) {
        struct lk_task *task = conn->awaits;
        unlink_await(task);
        lk_task_free(conn->server, task);
    }
}

/* ---- Replies, and the table ---------------------------------------------- */

static enum lk_status reply_event(struct lk_task *task, struct lk_buf *out)
{
    return lk_reply_outcome(out, task->conn->server->store, task->proto,
                            &task->args.event.op);
}

/* QUEUED, and the message right behind it if the operation has settled. */
static enum lk_status reply_await(struct lk_task *task, struct lk_buf *out)
{
    if (task->args.event.op.status) {
        return reply_event(task, out);
    }
    enum lk_status status = lk_resp_simple(out, "QUEUED");

    task->queued = true;
    if (!status && task->settled) {
        task->conn->server->metrics.pushes++;
        status =
            lk_reply_settled(out, task->conn->proto, task->args.event.await_id);
    }
    return status;
}

static void clear_event(struct lk_task *task)
{
    lk_op_clear(&task->args.event.op);
}

/* What all events have in common. */
#define EVENT                                                                  \
    .place = LK_PLACE_BATCH, .reply = reply_event, .clear = clear_event

static const struct lk_command rows[] = {
    {.name = "CLAIM",
     .min_args = 5,
     .max_args = 15,
     .roles = LK_FOR_USE,
     .claims = true,
     .parse = parse_claim,
     EVENT,
     .usage = "tenant scope key fingerprint [OWNER nonce] [TTL ms] [LOCK ms] "
              "[WAIT ms] [REEXECUTE] [NONEW]"},
    {.name = "COMPLETE",
     .min_args = 8,
     .max_args = 12,
     .roles = LK_FOR_USE,
     .responds = true,
     .parse = parse_complete,
     EVENT,
     .usage = "tenant scope key token status headers body [TTL ms] [OMIT "
              "reason]"},
    {.name = "RELEASE",
     .min_args = 5,
     .max_args = 5,
     .roles = LK_FOR_USE,
     .parse = parse_release,
     EVENT,
     .usage = "tenant scope key token"},
    {.name = "DOUBT",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_USE,
     .parse = parse_doubt,
     EVENT,
     .usage = "tenant scope key token reason"},
    {.name = "RETURN",
     .min_args = 5,
     .max_args = 6,
     .roles = LK_FOR_USE,
     .parse = parse_return,
     EVENT,
     .usage = "tenant scope key token [UNSENT]"},
    {.name = "EXTEND",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_USE,
     .parse = parse_extend,
     EVENT,
     .usage = "tenant scope key token lock-ms"},
    {.name = "ACCEPT",
     .min_args = 9,
     .max_args = 12,
     .roles = LK_FOR_USE,
     .claims = true,
     .parse = parse_accept,
     EVENT,
     .usage = "tenant scope key fingerprint method path headers body [TTL ms] "
              "[REEXECUTE]"},
    {.name = "ENQUEUE",
     .min_args = 8,
     .max_args = 16,
     .roles = LK_FOR_USE,
     .parse = parse_enqueue,
     EVENT,
     .usage = "tenant scope key token name target path [METHOD method] "
              "[HEADERS headers] [BODY body] [DELAY ms]"},
    {.name = "AWAIT",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_USE,
     .parse = parse_await,
     .place = LK_PLACE_BATCH,
     .reply = reply_await,
     .clear = clear_event,
     .usage = "id tenant scope key ms"},
    {.name = "KEEP",
     .min_args = 5,
     .max_args = 9,
     .roles = LK_FOR_USE | LK_FOR_OPERATE, /* parse_keep checks which one */
     .parse = parse_keep,
     EVENT,
     .usage = "tenant scope key ttl-ms [WHO who WHY why]"},
    /* These two remove responses that earlier claims may still have to load. */
    {.name = "RESOLVE",
     .min_args = 9,
     .max_args = 15,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .parse = parse_resolve,
     EVENT,
     .usage = "tenant scope key (RELEASED | COMPLETED status headers body) WHO "
              "who WHY why [TOKEN token] [RUNNING]"},
    {.name = "EVICT",
     .min_args = 8,
     .max_args = 8,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .parse = parse_evict,
     EVENT,
     .usage = "tenant scope key WHO who WHY why"},
};

LK_COMMAND_GROUP(lk_operation_commands, rows);
