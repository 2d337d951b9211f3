/* command_call.c - the commands that leave a job: ACCEPT and ENQUEUE. */
#include "daemon/args.h"

#include <string.h>

enum {
    HEADERS_MAX = 64 * 1024,
    NAMES_SHOWN = 256, /* of targets, in an error */
};

/* A day more than any record is kept by default limits. */
#define DELAY_MAX (UINT64_C(401) * 86400000)

static bool takes_body(struct lk_conn *conn, struct lk_slice body)
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

static bool is_sound(struct lk_conn *conn, const char *what, const char *fault)
{
    if (fault) {
        lk_conn_error(conn, "ERR %s: the %s %s", conn->command->name, what,
                      fault);
    }
    return !fault;
}

/* ---- ACCEPT -------------------------------------------------------------- */

/* The courier tells the gateway whose request it is in header lines. */
static const char *name_fault(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c < ' ' || c == 0x7f) {
            return "must not contain control characters";
        }
    }
    return NULL;
}

static bool is_sound_name(struct lk_conn *conn, const struct lk_name *name)
{
    return is_sound(conn, "tenant", name_fault(name->tenant)) &&
           is_sound(conn, "scope", name_fault(name->scope)) &&
           is_sound(conn, "key", name_fault(name->key));
}

LK_COMMAND_HANDLER(accept)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_demand demand = {
        .kind = LK_TASK_OP,
        .op = {.event = LK_EVENT_ACCEPT,
               .fingerprint = argv[4],
               .ttl_ms = config->ttl_ms,
               .lock_ms = config->lock_ms},
        .call = {.target = LK_SLICE(LK_TARGET_GATEWAY),
                 .method = argv[5],
                 .path = argv[6],
                 .headers = argv[7],
                 .body = argv[8]},
    };
    struct lk_op *op = &demand.op;
    struct lk_option options[] = {
        LK_NUMBER("TTL", 1, config->max_ttl_ms, &op->ttl_ms),
        LK_FLAG("REEXECUTE", &demand.call.repeatable),
    };

    op->call = &demand.call;
    if (lk_arg_keeps_jobs(conn) && lk_arg_name(conn, argv, &op->name) &&
        is_sound_name(conn, &op->name) &&
        lk_arg_bytes(conn, "fingerprint", argv[4], 1, LK_FINGERPRINT_MAX) &&
        is_sound(conn, "method", lk_request_method_fault(argv[5])) &&
        is_sound(conn, "path", lk_request_path_fault(argv[6])) &&
        lk_arg_bytes(conn, "headers", argv[7], 0, HEADERS_MAX) &&
        lk_arg_headers(conn, argv[7], lk_header_lines_fault) &&
        takes_body(conn, argv[8]) &&
        lk_arg_options(conn, argv, argc, 9, options, 2)) {
        /* Nobody would bring it back; a retry of one that was accepted before
         * gets its answer all the same. */
        op->no_new = !config->gateway;
        op->reexecute = demand.call.repeatable;
        lk_operation_start(conn, &demand);
    }
}

/* ---- ENQUEUE ------------------------------------------------------------- */

/* Those that there are, so that the caller sees the one that was meant. */
static void refuse_target(struct lk_conn *conn, struct lk_slice name)
{
    const struct lk_targets *targets = &conn->server->config.targets;
    char shown[80];
    char names[NAMES_SHOWN];

    lk_conn_error(conn, "ERR ENQUEUE: there is no target %s; %s%s",
                  lk_log_quote(name, shown, sizeof(shown)),
                  targets->count ? "there are " : "none is configured",
                  lk_targets_names(targets, ", ", names, sizeof(names)));
}

static bool knows_target(struct lk_conn *conn, struct lk_slice name)
{
    if (lk_target_find(&conn->server->config.targets, name)) {
        return true;
    }
    refuse_target(conn, name);
    return false;
}

static bool is_sound_call(struct lk_conn *conn, const struct lk_call *call)
{
    return lk_arg_bytes(conn, "name", call->name, 1, LK_JOB_NAME_MAX) &&
           lk_arg_printable(conn, "name", call->name) &&
           knows_target(conn, call->target) &&
           is_sound(conn, "path", lk_path_fault(call->path)) &&
           is_sound(conn, "method", lk_method_fault(call->method)) &&
           lk_arg_headers(conn, call->headers, lk_headers_fault) &&
           takes_body(conn, call->body);
}

LK_COMMAND_HANDLER(enqueue)
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_ENQUEUE},
                               .call = {.name = argv[5],
                                        .target = argv[6],
                                        .path = argv[7],
                                        .method = LK_SLICE("POST")}};
    struct lk_op *op = &demand.op;
    struct lk_call *call = &demand.call;
    struct lk_option options[] = {
        LK_BYTES("METHOD", 1, LK_METHOD_MAX, &call->method),
        LK_BYTES("HEADERS", 0, HEADERS_MAX, &call->headers),
        LK_BYTES("BODY", 0, SIZE_MAX, &call->body),
        LK_NUMBER("DELAY", 0, DELAY_MAX, &call->delay_ms),
    };

    op->call = call;
    if (lk_arg_keeps_jobs(conn) && lk_arg_name(conn, argv, &op->name) &&
        lk_arg_token(conn, argv[4], &op->token) &&
        lk_arg_options(conn, argv, argc, 8, options, 4) &&
        is_sound_call(conn, call)) {
        lk_operation_start(conn, &demand);
    }
}
