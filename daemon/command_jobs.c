/* command_jobs.c - jobs and targets as operators see and order them. */
#include "daemon/args.h"

enum { LIST_MOST = 1000, LIST_USUAL = 100 };

/* ---- JOBS ---------------------------------------------------------------- */

static bool read_state(struct lk_conn *conn, struct lk_slice word,
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

/* The requests' target has a name that no other can have. */
static bool read_target(struct lk_conn *conn, struct lk_slice name)
{
    const char *fault = lk_target_name_fault(name);

    if (!name.len || !fault ||
        latchkey_slice_equal(name, LK_SLICE(LK_TARGET_GATEWAY))) {
        return true;
    }
    lk_arg_error(conn, "the target's name", fault, name);
    return false;
}

/* WHOLE shows sizes; with WHO and WHY, which come first, bodies. */
static bool read_look(struct lk_conn *conn, const struct lk_option *options,
                      bool whole, struct lk_signature *signature,
                      struct lk_demand *demand)
{
    if (!options[0].given && !options[1].given) {
        return true;
    }
    if (!whole) {
        lk_conn_error(conn, "ERR JOBS: WHO and WHY are for WHOLE");
        return false;
    }
    return lk_arg_needs(conn, &options[0]) && lk_arg_needs(conn, &options[1]) &&
           lk_arg_looks(conn, "WHOLE", signature, demand);
}

LK_COMMAND_HANDLER(jobs)
{
    struct lk_demand demand = {.kind = LK_TASK_JOBS};
    struct lk_jobs_query *query = &demand.jobs;
    struct lk_signature signature = {0};
    struct lk_slice state = {0};
    struct lk_slice reference = {0};
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_SIGNATURE(&signature),
        LK_BYTES("STATE", 1, 32, &state),
        LK_BYTES("TARGET", 1, LK_TARGET_NAME_MAX, &demand.op.reason),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &demand.op.name.tenant),
        LK_BYTES("REFERENCE", 1, 32, &reference),
        LK_BYTES("PROVIDER", 1, LK_PROVIDER_ID_MAX, &demand.op.owner),
        LK_NUMBER("OLDER", 0, INT64_MAX, &query->older_than_ms),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 0, INT64_MAX, &query->until_ms),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
        LK_NUMBER("CURSOR", 0, INT64_MAX, &query->cursor),
        LK_FLAG("WHOLE", &query->whole),
    };

    if (lk_arg_keeps_jobs(conn) &&
        lk_arg_options(conn, argv, argc, 1, options, 13) &&
        read_look(conn, options, query->whole, &signature, &demand) &&
        read_state(conn, state, query) && read_target(conn, demand.op.reason) &&
        read_reference(conn, reference, &query->number)) {
        query->limit = limit;
        lk_command_queue(conn, &demand);
    }
}

/* ---- JOB ----------------------------------------------------------------- */

static void show_job(struct lk_conn *conn, const struct lk_slice *argv,
                     size_t argc)
{
    struct lk_demand demand = {.kind = LK_TASK_JOB};
    struct lk_signature signature = {0};

    if (lk_arg_number(conn, "id", argv[2], 1, INT64_MAX, &demand.op.token) &&
        lk_arg_look(conn, argv, argc, 3, &signature, &demand)) {
        lk_command_queue(conn, &demand);
    }
}

static const struct {
    const char *word;
    enum lk_job_action_kind order;
} job_orders[] = {{"RETRY", LK_ACTION_RETRY},
                  {"DROP", LK_ACTION_DROP},
                  {"AGAIN", LK_ACTION_AGAIN},
                  {"DELIVERED", LK_ACTION_DELIVERED}};

static bool read_order(struct lk_conn *conn, struct lk_slice word,
                       enum lk_job_action_kind *order)
{
    for (size_t i = 0; i < sizeof(job_orders) / sizeof(job_orders[0]); i++) {
        if (lk_arg_is(word, job_orders[i].word)) {
            *order = job_orders[i].order;
            return true;
        }
    }
    lk_arg_error(conn, "the action",
                 "must be SHOW, RETRY, DROP, AGAIN or DELIVERED", word);
    return false;
}

LK_COMMAND_HANDLER(job)
{
    struct lk_demand demand = {.kind = LK_TASK_ORDER};
    struct lk_job_action *order = &demand.order;
    struct lk_signature signature = {0};
    uint64_t attempt = 0;
    uint64_t status = 0;
    struct lk_option options[] = {
        LK_SIGNATURE(&signature),
        LK_NUMBER("ATTEMPT", 1, UINT32_MAX, &attempt),
        LK_BYTES("PROVIDER", 1, LK_PROVIDER_ID_MAX, &demand.op.reason),
        LK_NUMBER("STATUS", LK_STATUS_MIN, LK_STATUS_MAX, &status),
    };

    if (!lk_arg_keeps_jobs(conn)) {
        return;
    }
    if (lk_arg_is(argv[1], "SHOW")) {
        show_job(conn, argv, argc);
        return;
    }
    if (!read_order(conn, argv[1], &order->order) ||
        !lk_arg_number(conn, "id", argv[2], 1, INT64_MAX, &order->id)) {
        return;
    }
    size_t known = order->order == LK_ACTION_DELIVERED ? 5 : 3;
    if (lk_arg_signed(conn, argv, argc, 3, options, known, &signature,
                      &demand.op) &&
        lk_arg_printable(conn, "PROVIDER", demand.op.reason)) {
        order->attempt = (unsigned)attempt;
        order->status = (unsigned)status;
        lk_command_queue(conn, &demand);
    }
}

/* ---- TARGET -------------------------------------------------------------- */

static void show_targets(struct lk_conn *conn, const struct lk_slice *argv,
                         size_t argc)
{
    struct lk_demand demand = {.kind = LK_TASK_TARGETS};

    if (argc > 3) {
        lk_arg_error(conn, "the last word", "is one too many", argv[3]);
        return;
    }
    if (argc > 2) {
        demand.op.reason = argv[2];
        if (!read_target(conn, argv[2])) {
            return;
        }
    }
    demand.view = lk_targets_view_make(conn->server);
    if (!demand.view) {
        lk_conn_error(conn, "UNAVAILABLE out of memory");
        return;
    }
    lk_command_queue(conn, &demand);
}

static void probe_target(struct lk_conn *conn, const struct lk_slice *argv,
                         size_t argc)
{
    struct lk_demand demand = {.kind = LK_TASK_PROBE};

    if (argc != 3) {
        lk_conn_error(conn, "ERR TARGET: PROBE needs a target, and no more");
        return;
    }
    demand.op.reason = argv[2];
    if (read_target(conn, argv[2])) {
        lk_command_queue(conn, &demand);
    }
}

LK_COMMAND_HANDLER(target)
{
    struct lk_demand demand = {.kind = LK_TASK_ORDER};
    struct lk_signature signature = {0};

    if (!lk_arg_keeps_jobs(conn)) {
        return;
    }
    if (lk_arg_is(argv[1], "STATUS")) {
        show_targets(conn, argv, argc);
        return;
    }
    if (lk_arg_is(argv[1], "PROBE")) {
        probe_target(conn, argv, argc);
        return;
    }
    if (lk_arg_is(argv[1], "PAUSE")) {
        demand.order.order = LK_ACTION_PAUSE;
    } else if (lk_arg_is(argv[1], "RESUME")) {
        demand.order.order = LK_ACTION_RESUME;
    } else {
        lk_arg_error(conn, "the action",
                     "must be STATUS, PROBE, PAUSE or RESUME", argv[1]);
        return;
    }
    if (argc < 3 || !argv[2].len) {
        lk_conn_error(conn, "ERR TARGET: the target is missing");
        return;
    }
    demand.op.reason = argv[2];
    if (read_target(conn, argv[2]) &&
        lk_arg_signature(conn, argv, argc, 3, &signature, &demand.op)) {
        lk_command_queue(conn, &demand);
    }
}
