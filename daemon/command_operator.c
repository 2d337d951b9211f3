/* command_operator.c - the commands of operators: look, resolve, evict. */
#include "daemon/args.h"

#include <string.h>

enum { LIST_MOST = 1000, LIST_USUAL = 100 };

/* ---- What changes something ---------------------------------------------- */

LK_COMMAND_HANDLER(resolve)
{
    struct lk_demand demand = {.kind = LK_TASK_OP};
    struct lk_op *op = &demand.op;
    struct lk_signature signature = {0};
    struct lk_option options[] = {
        LK_SIGNATURE(&signature),
        LK_NUMBER("TOKEN", 1, (UINT64_C(1) << 53) - 1, &op->token),
        LK_FLAG("RUNNING", &op->running),
    };
    size_t from = 5;
    enum { COMPLETED_LEAST = 12 }; /* with WHO who WHY why */

    if (!lk_arg_name(conn, argv, &op->name)) {
        return;
    }
    if (lk_arg_is(argv[4], "RELEASED")) {
        op->event = LK_EVENT_RESOLVE_RELEASED;
    } else if (!lk_arg_is(argv[4], "COMPLETED")) {
        lk_arg_error(conn, "the outcome", "must be RELEASED or COMPLETED",
                     argv[4]);
        return;
    } else if (argc < COMPLETED_LEAST) {
        lk_conn_error(conn, "ERR RESOLVE: COMPLETED needs a status, headers "
                            "and a body, which may be empty, and then WHO who "
                            "WHY why");
        return;
    } else {
        op->event = LK_EVENT_RESOLVE_COMPLETED;
        from = 8;
        if (!lk_arg_status(conn, argv[5], &op->response.status) ||
            !lk_arg_headers(conn, argv[6], lk_header_lines_fault)) {
            return;
        }
        op->response.headers = argv[6];
        op->response.body = argv[7];
    }
    if (lk_arg_signed(conn, argv, argc, from, options, 4, &signature, op)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(evict)
{
    struct lk_demand demand = {.kind = LK_TASK_OP,
                               .op = {.event = LK_EVENT_EVICT}};
    struct lk_signature signature = {0};

    if (lk_arg_name(conn, argv, &demand.op.name) &&
        lk_arg_signature(conn, argv, argc, 4, &signature, &demand.op)) {
        lk_operation_start(conn, &demand);
    }
}

LK_COMMAND_HANDLER(clock)
{
    struct lk_demand demand = {.kind = LK_TASK_CLOCK};
    const struct lk_store *store = conn->server->store;
    struct lk_signature signature = {0};

    if (!lk_arg_is(argv[1], "ACCEPT")) {
        lk_arg_error(conn, "the action", "must be ACCEPT", argv[1]);
        return;
    }
    if (!store->class->accept_clock) {
        lk_conn_error(conn,
                      "ERR CLOCK: the clock of a %s store is its server's own",
                      store->class->scheme);
        return;
    }
    if (lk_arg_signature(conn, argv, argc, 2, &signature, &demand.op)) {
        lk_command_queue(conn, &demand);
    }
}

LK_COMMAND_HANDLER(backup)
{
    struct lk_demand demand = {.kind = LK_TASK_BACKUP};
    const struct lk_store *store = conn->server->store;
    struct lk_signature signature = {0};

    if (!store->class->backup) {
        lk_conn_error(conn,
                      "ERR BACKUP: a %s store is backed up with its server's "
                      "own tools; EXPORT carries records to another store",
                      store->class->scheme);
        return;
    }
    if (!lk_arg_bytes(conn, "path", argv[1], 1, 4095)) {
        return;
    }
    if (argv[1].data[0] != '/' || memchr(argv[1].data, '\0', argv[1].len)) {
        lk_arg_error(conn, "path", "must be absolute", argv[1]);
        return;
    }
    demand.op.reason = argv[1];
    if (lk_arg_signature(conn, argv, argc, 2, &signature, &demand.op)) {
        lk_command_queue(conn, &demand);
    }
}

/* ---- Export --------------------------------------------------------------
 */

/* Goes into the audit log before anything is told. */
static void begin_export(struct lk_conn *conn, const struct lk_slice *argv,
                         size_t argc)
{
    struct lk_demand demand = {
        .kind = LK_TASK_BACKUP,
        .list = {.whole = true},
    };
    struct lk_signature signature = {0};

    if (lk_arg_signature(conn, argv, argc, 2, &signature, &demand.op)) {
        lk_command_queue(conn, &demand);
    }
}

LK_COMMAND_HANDLER(export)
{
    struct lk_demand demand = {.kind = LK_TASK_EXPORT,
                               .list = {.any_state = true, .whole = true}};
    uint64_t limit = 0;

    if (lk_arg_is(argv[1], "BEGIN")) {
        begin_export(conn, argv, argc);
        return;
    }
    if (!lk_arg_number(conn, "cursor", argv[1], 0, INT64_MAX,
                       &demand.list.cursor) ||
        !lk_arg_number(conn, "limit", argv[2], 1, LIST_MOST, &limit)) {
        return;
    }
    if (argc > 3) {
        lk_arg_error(conn, "the last word", "is one too many", argv[3]);
        return;
    }
    if (!conn->exports) {
        lk_conn_error(conn, "ERR EXPORT: this connection has not begun one: "
                            "EXPORT BEGIN WHO who WHY why");
        return;
    }
    demand.list.limit = limit;
    lk_command_queue(conn, &demand);
}

/* ---- What only looks ----------------------------------------------------- */

LK_COMMAND_HANDLER(verify)
{
    struct lk_demand demand = {.kind = LK_TASK_VERIFY};

    lk_command_queue(conn, &demand);
}

LK_COMMAND_HANDLER(list)
{
    struct lk_demand demand = {
        .kind = LK_TASK_LIST, .list = {.any_state = true, .limit = LIST_USUAL}};
    struct lk_list_query *query = &demand.list;
    struct lk_slice state = {0};
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_BYTES("STATE", 1, 32, &state),
        LK_NUMBER("ATTENTION", 0, INT64_MAX, &query->long_ms),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &demand.op.name.tenant),
        LK_BYTES("SCOPE", 1, LK_SCOPE_MAX, &demand.op.name.scope),
        LK_NUMBER("OLDER", 0, INT64_MAX, &query->older_than_ms),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 1, INT64_MAX, &query->until_ms),
        LK_FLAG("NEWEST", &query->newest),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
        LK_NUMBER("CURSOR", 0, INT64_MAX, &query->cursor),
    };

    if (!lk_arg_options(conn, argv, argc, 1, options,
                        sizeof(options) / sizeof(options[0]))) {
        return;
    }
    if (options[0].given && !lk_state_parse(state, &query->state)) {
        lk_arg_error(conn, "STATE",
                     "must be accepted, in_progress, uncertain, completed or "
                     "released",
                     state);
        return;
    }
    query->any_state = !options[0].given;
    query->attention = options[1].given;
    query->limit = limit;
    lk_command_queue(conn, &demand);
}

LK_COMMAND_HANDLER(audit)
{
    struct lk_demand demand = {.kind = LK_TASK_AUDIT};
    struct lk_audit_query *query = &demand.audit;
    struct lk_op *op = &demand.op;
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_NUMBER("AFTER", 0, INT64_MAX, &query->after),
        LK_NUMBER("BEFORE", 1, INT64_MAX, &query->before),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 1, INT64_MAX, &query->until_ms),
        LK_NUMBER("JOB", 1, INT64_MAX, &query->job),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &op->name.tenant),
        LK_BYTES("SCOPE", 1, LK_SCOPE_MAX, &op->name.scope),
        LK_BYTES("KEY", 1, LK_KEY_MAX, &op->name.key),
        LK_BYTES("WHO", 1, LK_WHO_MAX, &op->who),
        LK_BYTES("ACTION", 1, LK_WHO_MAX, &op->reason),
        LK_FLAG("NEWEST", &query->newest),
        LK_FLAG("COUNT", &query->count),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
    };

    if (lk_arg_options(conn, argv, argc, 1, options,
                       sizeof(options) / sizeof(options[0]))) {
        query->limit = query->count ? SIZE_MAX : limit;
        lk_command_queue(conn, &demand);
    }
}

LK_COMMAND_HANDLER(stats)
{
    struct lk_buf *out = lk_conn_out(conn);

    if (argc == 1) {
        lk_conn_wrote(conn, lk_stats_write(conn->server, conn->proto, out));
    } else if (lk_arg_is(argv[1], "EXPLAIN")) {
        lk_conn_wrote(conn, lk_stats_explain(conn->proto, out));
    } else {
        lk_arg_error(conn, "the action", "must be EXPLAIN", argv[1]);
    }
}

LK_COMMAND_HANDLER(health)
{
    lk_conn_wrote(
        conn, lk_health_write(conn->server, conn->proto, lk_conn_out(conn)));
}
