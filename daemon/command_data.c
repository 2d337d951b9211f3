/* command_data.c - the commands that applications and gateways send. */
#include "daemon/args.h"

LK_COMMAND_HANDLER(claim)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_CLAIM,
                                      .fingerprint = argv[4],
                                      .ttl_ms = config->ttl_ms,
                                      .lock_ms = config->lock_ms}};
    struct lk_op *op = &demand.op;

    if (!lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_bytes(conn, "fingerprint", argv[4], 1, LK_FINGERPRINT_MAX)) {
        return;
    }
    if (argc > 5) {
        struct lk_option options[] = {
            LK_BYTES("OWNER", 1, LK_OWNER_MAX, &op->owner),
            LK_NUMBER("TTL", 1, config->max_ttl_ms, &op->ttl_ms),
            LK_NUMBER("LOCK", 1, config->max_lock_ms, &op->lock_ms),
            LK_NUMBER("WAIT", 0, LK_WAIT_MAX_MS, &demand.wait_ms),
            LK_FLAG("REEXECUTE", &op->reexecute),
            LK_FLAG("NONEW", &op->no_new),
        };
        if (!lk_arg_options(conn, argv, argc, 5, options, 6)) {
            return;
        }
    }
    lk_operation_start(conn, &demand);
}

LK_COMMAND_HANDLER(complete)
{
    struct lk_demand demand = {
        .kind = LK_TASK_OP,
        .op = {.event = LK_EVENT_COMPLETE,
               .response = {.headers = argv[6], .body = argv[7]}}};
    struct lk_op *op = &demand.op;
    struct lk_option options[] = {
        LK_NUMBER("TTL", 1, conn->server->config.max_ttl_ms, &op->ttl_ms),
        LK_BYTES("OMIT", 1, LK_REASON_MAX, &op->reason),
    };

    if (!lk_arg_name(conn, argv, &op->name) ||
        !lk_arg_token(conn, argv[4], &op->token) ||
        !lk_arg_status(conn, argv[5], &op->response.status) ||
        !lk_arg_options(conn, argv, argc, 8, options, 2)) {
        return;
    }
    if (op->reason.len) {
        op->response.headers = op->response.body = (struct lk_slice){0};
    }
    if (!lk_arg_headers(conn, op->response.headers, lk_header_lines_fault)) {
        return;
    }
    lk_operation_start(conn, &demand);
}

LK_COMMAND_HANDLER(release)
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_RELEASE}};

    if (lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_token(conn, argv[4], &demand.op.token)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(doubt)
{
    struct lk_demand demand = {
        .kind = LK_TASK_OP, .op = {.event = LK_EVENT_DOUBT, .reason = argv[5]}};

    if (lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_token(conn, argv[4], &demand.op.token) &&
        lk_arg_bytes(conn, "reason", argv[5], 1, LK_REASON_MAX)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(return )
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_RETURN}};
    struct lk_option options[] = {LK_FLAG("UNSENT", &demand.op.unsent)};

    if (lk_arg_keeps_jobs(conn) && lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_token(conn, argv[4], &demand.op.token) &&
        lk_arg_options(conn, argv, argc, 5, options, 1)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(extend)
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_EXTEND}};

    if (lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_token(conn, argv[4], &demand.op.token) &&
        lk_arg_number(conn, "lock-ms", argv[5], 1,
                      conn->server->config.max_lock_ms, &demand.op.lock_ms)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(keep)
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_KEEP}};
    struct lk_signature signature = {0};
    bool is_signed = argc > 5; /* by an operator, and audited */

    if (lk_arg_role(conn, is_signed ? "KEEP with WHO" : "KEEP without WHO",
                    is_signed ? LK_ROLE_OPERATE : LK_ROLE_USE) &&
        lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_number(conn, "ttl-ms", argv[4], 1,
                      conn->server->config.max_ttl_ms, &demand.op.ttl_ms) &&
        (!is_signed ||
         lk_arg_signature(conn, argv, argc, 5, &signature, &demand.op))) {
        lk_operation_start(conn, &demand);
    }
}

/*
 * A claim that can start nothing and matches no fingerprint (that of a real
 * claim is never empty) tells the state and changes nothing.
 */
LK_COMMAND_HANDLER(await)
{
    struct lk_demand demand = {
        .kind = LK_TASK_AWAIT,
        .op = {.event = LK_EVENT_CLAIM, .reason = argv[1], .no_new = true}};

    if (lk_arg_bytes(conn, "id", argv[1], 1, LK_REASON_MAX) &&
        lk_arg_name(conn, argv + 1, &demand.op.name) &&
        lk_arg_number(conn, "ms", argv[5], 1, LK_WAIT_MAX_MS,
                      &demand.wait_ms)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(lookup)
{
    struct lk_demand demand = {.kind = LK_TASK_LOOKUP,
                               .bodies = lk_conn_has_role(conn, LK_ROLE_USE)};
    struct lk_signature signature = {0};

    if (lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_look(conn, argv, argc, 4, &signature, &demand)) {
        lk_command_queue(conn, &demand);
    }
}

/* Apps see the operations of the tenant that they name, and no others. */
static bool check_every_tenant(struct lk_conn *conn)
{
    if (lk_conn_has_role(conn, LK_ROLE_READ) ||
        lk_conn_has_role(conn, LK_ROLE_OPERATE)) {
        return true;
    }
    lk_conn_error(conn, "NOPERM FIND without a tenant needs the read role: "
                        "AUTH with a user of the [users] section that has it, "
                        "or name the tenant");
    return false;
}

/* A reference that cannot be one is a mistake of whoever typed it: an error,
 * not nil. One that is merely not there is nil, whoever it belongs to. */
LK_COMMAND_HANDLER(find)
{
    size_t from = argc == 2 || argc == 7 ? 2 : 3; /* BODY ... are five words */
    bool app = from == 3 && lk_conn_has_role(conn, LK_ROLE_USE);
    struct lk_demand demand = {.kind = LK_TASK_FIND, .bodies = app};
    struct lk_signature signature = {0};
    struct lk_slice reference = argv[from - 1];

    if (from == 2) {
        if (!check_every_tenant(conn)) {
            return;
        }
    } else {
        demand.op.name.tenant = argv[1];
        if (!lk_arg_bytes(conn, "tenant", argv[1], 1, LK_TENANT_MAX)) {
            return;
        }
    }
    if (latchkey_reference_decode(reference,
                                  conn->server->store->reference_secret,
                                  &demand.op.token)) {
        lk_arg_error(conn, "reference", "must look like 7D3F-92AB-1C4E",
                     reference);
        return;
    }
    if (lk_arg_look(conn, argv, argc, from, &signature, &demand)) {
        lk_command_queue(conn, &demand);
    }
}
