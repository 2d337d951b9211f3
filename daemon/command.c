/* command.c - the table of commands: who may run which, and how. */
#include "daemon/args.h"

#include <stdlib.h>
#include <string.h>

enum {
    ANYBODY = 0,
    USE = 1 << LK_ROLE_USE,
    READ = 1 << LK_ROLE_READ,
    OPERATE = 1 << LK_ROLE_OPERATE,
    LOOK = USE | READ | OPERATE,
    VIEW = READ | OPERATE,
    MANY = LK_ARGS_MAX,
    SLOTS = 128,
    WORD = 8, /* letters in the longest name */
};

/* A new command is a row here and a handler; the slots are found at start. */
static const struct lk_command commands[] = {
    {"CLAIM", 5, 15, USE, LK_LANE_STORE, lk_run_claim,
     "tenant scope key fingerprint [OWNER nonce] [TTL ms] [LOCK ms] [WAIT ms] "
     "[REEXECUTE] [NONEW]"},
    {"COMPLETE", 8, 12, USE, LK_LANE_STORE, lk_run_complete,
     "tenant scope key token status headers body [TTL ms] [OMIT reason]"},
    {"RELEASE", 5, 5, USE, LK_LANE_STORE, lk_run_release,
     "tenant scope key token"},
    {"DOUBT", 6, 6, USE, LK_LANE_STORE, lk_run_doubt,
     "tenant scope key token reason"},
    {"RETURN", 5, 6, USE, LK_LANE_STORE, lk_run_return,
     "tenant scope key token [UNSENT]"},
    {"EXTEND", 6, 6, USE, LK_LANE_STORE, lk_run_extend,
     "tenant scope key token lock-ms"},
    {"KEEP", 5, 9, USE | OPERATE, LK_LANE_STORE, lk_run_keep,
     "tenant scope key ttl-ms [WHO who WHY why]"},
    {"ACCEPT", 9, 12, USE, LK_LANE_STORE, lk_run_accept,
     "tenant scope key fingerprint method path headers body [TTL ms] "
     "[REEXECUTE]"},
    {"ENQUEUE", 8, 16, USE, LK_LANE_STORE, lk_run_enqueue,
     "tenant scope key token name target path [METHOD method] [HEADERS "
     "headers] [BODY body] [DELAY ms]"},
    {"LOOKUP", 4, 9, LOOK, LK_LANE_READ, lk_run_lookup,
     "tenant scope key [BODY WHO who WHY why]"},
    {"FIND", 2, 8, LOOK, LK_LANE_READ, lk_run_find,
     "[tenant] reference [BODY WHO who WHY why]"},
    {"AWAIT", 6, 6, USE, LK_LANE_STORE, lk_run_await, "id tenant scope key ms"},

    /* These take answers away that earlier claims have yet to load. */
    {"RESOLVE", 9, 15, OPERATE, LK_LANE_ALONE, lk_run_resolve,
     "tenant scope key (RELEASED | COMPLETED status headers body) WHO who WHY "
     "why [TOKEN token] [RUNNING]"},
    {"EVICT", 8, 8, OPERATE, LK_LANE_ALONE, lk_run_evict,
     "tenant scope key WHO who WHY why"},

    {"LIST", 1, 20, VIEW, LK_LANE_READ, lk_run_list,
     "[STATE state] [ATTENTION ms] [TENANT tenant] [SCOPE scope] [OLDER ms] "
     "[SINCE ms] [UNTIL ms] [NEWEST] [LIMIT n] [CURSOR cursor]"},
    {"JOBS", 1, 26, VIEW, LK_LANE_READ, lk_run_jobs,
     "[STATE state | unfinished] [TARGET target] [TENANT tenant] [REFERENCE "
     "reference] [PROVIDER id] [OLDER ms] [SINCE ms] [UNTIL ms] [LIMIT n] "
     "[CURSOR cursor] [WHOLE [WHO who WHY why]]"},
    {"JOB", 3, 13, OPERATE, LK_LANE_ORDER, lk_run_job,
     "SHOW id [BODY WHO who WHY why] | (RETRY | DROP | AGAIN) id WHO who WHY "
     "why [ATTEMPT n] | "
     "DELIVERED id WHO who WHY why [ATTEMPT n] [PROVIDER id] [STATUS status]"},
    {"TARGET", 2, 7, OPERATE, LK_LANE_ORDER, lk_run_target,
     "STATUS [target] | PROBE target | (PAUSE | RESUME) target WHO who WHY "
     "why"},
    {"STATS", 1, 2, VIEW, LK_LANE_NONE, lk_run_stats, "[EXPLAIN]"},
    {"VERIFY", 1, 1, VIEW, LK_LANE_ALONE, lk_run_verify, ""},
    {"AUDIT", 1, 25, VIEW, LK_LANE_READ, lk_run_audit,
     "[TENANT tenant] [SCOPE scope] [KEY key] [JOB id] [WHO who] [ACTION "
     "action] [SINCE ms] [UNTIL ms] [AFTER id] [BEFORE id] [NEWEST] [LIMIT n | "
     "COUNT]"},
    {"BACKUP", 6, 6, OPERATE, LK_LANE_ALONE, lk_run_backup,
     "path WHO who WHY why"},
    {"EXPORT", 3, 6, OPERATE, LK_LANE_ALONE, lk_run_export,
     "(BEGIN WHO who WHY why | cursor limit)"},
    {"CLOCK", 6, 6, OPERATE, LK_LANE_ALONE, lk_run_clock,
     "ACCEPT WHO who WHY why"},

    {"HEALTH", 1, 1, LOOK, LK_LANE_NONE, lk_run_health, ""},
    {"PING", 1, 2, LOOK, LK_LANE_NONE, lk_run_ping, "[message]"},
    {"ECHO", 2, 2, LOOK, LK_LANE_NONE, lk_run_echo, "message"},
    {"HELLO", 1, 8, ANYBODY, LK_LANE_NONE, lk_run_hello,
     "[2|3 [AUTH user password] [SETNAME name]]"},
    {"AUTH", 2, 3, ANYBODY, LK_LANE_NONE, lk_run_auth, "[user] password"},
    {"SELECT", 2, 2, LOOK, LK_LANE_NONE, lk_run_select, "0"},
    {"QUIT", 1, 1, ANYBODY, LK_LANE_NONE, lk_run_quit, ""},
    {"RESET", 1, 1, ANYBODY, LK_LANE_ALONE, lk_run_reset, ""},
    {"INFO", 1, MANY, LOOK, LK_LANE_NONE, lk_run_info, "[section]"},
    {"CLIENT", 2, MANY, LOOK, LK_LANE_NONE, lk_run_client,
     "SETNAME name | GETNAME | ID | INFO | LIST | KILL [ID id] [USER user] "
     "[ADDR address] [WHO who WHY why] | SETINFO name value"},
    {"COMMAND", 1, MANY, LOOK, LK_LANE_NONE, lk_run_command, "[COUNT | DOCS]"},
    {"CONFIG", 2, MANY, LOOK, LK_LANE_NONE, lk_run_config, "GET setting ..."},
};

enum { COUNT = sizeof(commands) / sizeof(commands[0]) };
_Static_assert((int)COUNT <= (int)LK_COMMANDS_MAX, "metrics count each row");

/*
 * A name of up to eight letters is one number: its bytes with the bit cleared
 * that tells lower case from upper. Names are letters only, so two words with
 * the same number differ in case at most.
 */
static uint64_t fold(struct lk_slice name)
{
    uint64_t word = 0;

    memcpy(&word, name.data, name.len);
    return word & UINT64_C(0xdfdfdfdfdfdfdfdf);
}

static struct {
    uint64_t word;
    const struct lk_command *command;
} slots[SLOTS];

static size_t slot_of(uint64_t word)
{
    return (size_t)((word * UINT64_C(0x9e3779b97f4a7c15)) >> 32) % SLOTS;
}

__attribute__((constructor)) static void fill_slots(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        uint64_t word = fold(latchkey_slice(commands[i].name));
        size_t slot = slot_of(word);
        while (slots[slot].command) {
            slot = (slot + 1) % SLOTS;
        }
        slots[slot].word = word;
        slots[slot].command = &commands[i];
    }
}

const struct lk_command *lk_command_find(struct lk_slice name)
{
    if (name.len == 0 || name.len > WORD) {
        return NULL;
    }
    uint64_t word = fold(name);
    size_t slot = slot_of(word);
    while (slots[slot].command && slots[slot].word != word) {
        slot = (slot + 1) % SLOTS;
    }
    /* A NUL or a space behind the name has no bit that is left. */
    const struct lk_command *found = slots[slot].command;
    return found && strlen(found->name) == name.len ? found : NULL;
}

const struct lk_command *lk_command_row(size_t index)
{
    return index < COUNT ? &commands[index] : NULL;
}

static bool is_allowed(struct lk_conn *conn, const struct lk_command *command,
                       unsigned roles)
{
    if (!roles || (roles & conn->roles)) {
        return true;
    }
    if (!conn->roles) {
        lk_conn_error(conn, "NOAUTH Authentication required.");
    } else if (roles & USE) {
        lk_conn_error(conn,
                      "NOPERM %s needs the use role: AUTH with the password "
                      "of the [auth] section, or with a user of the [users] "
                      "section that has it",
                      command->name);
    } else {
        lk_conn_error(
            conn, LK_NOPERM, command->name,
            lk_role_word(roles & READ ? LK_ROLE_READ : LK_ROLE_OPERATE));
    }
    return false;
}

static void refuse_unknown(struct lk_conn *conn, struct lk_slice name)
{
    char shown[64];

    if (!conn->roles) {
        lk_conn_error(conn, "NOAUTH Authentication required.");
        return;
    }
    lk_conn_error(conn, "ERR unknown command %s",
                  lk_log_quote(name, shown, sizeof(shown)));
}

/* Must it wait for those under way, so as not to overtake them in effect or
 * to keep the reader from others? */
static bool has_to_wait(const struct lk_conn *conn, enum lk_lane lane)
{
    return conn->head && lane != LK_LANE_NONE &&
           (lane != conn->lane || lane == LK_LANE_ALONE ||
            conn->in_reader >= LK_READER_SHARE);
}

/* Is it one of those that look or change by their first argument, and only
 * looks? It is the reader's then, and for those who may look. */
static bool only_looks(const struct lk_command *command,
                       const struct lk_slice *argv, size_t argc)
{
    const char *look = command->run == lk_run_job      ? "SHOW"
                       : command->run == lk_run_target ? "STATUS"
                                                       : NULL;

    return look && argc > 1 && lk_arg_is(argv[1], look);
}

/* The courier asks a service, which orders must not overtake. */
static bool takes_long(const struct lk_command *command,
                       const struct lk_slice *argv, size_t argc)
{
    return command->run == lk_run_target && argc > 1 &&
           lk_arg_is(argv[1], "PROBE");
}

/* May it run, as it is and here? */
static bool is_welcome(struct lk_conn *conn, const struct lk_command *command,
                       bool looks, size_t argc)
{
    if (!is_allowed(conn, command, looks ? VIEW : command->roles)) {
        return false;
    }
    if (argc < command->min_args || argc > command->max_args) {
        lk_conn_error(conn,
                      "ERR wrong number of arguments for '%s' command: %s %s",
                      command->name, command->name, command->usage);
        return false;
    }
    if (conn->server->config.courier_only &&
        (command->roles & (USE | READ)) == USE) {
        lk_conn_error(conn, "ERR this daemon only delivers jobs");
        return false;
    }
    return true;
}

/* The commands of a lane need the store, but for RESET. */
static bool check_store(struct lk_conn *conn, const struct lk_command *command)
{
    struct lk_server *server = conn->server;

    if (server->store || command->lane == LK_LANE_NONE ||
        command->run == lk_run_reset) {
        return true;
    }
    if (command->run == lk_run_claim || command->run == lk_run_accept) {
        server->metrics.claims_unavailable++;
    }
    lk_conn_error(conn, "UNAVAILABLE %s", server->opening.trouble);
    return false;
}

bool lk_command_run(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc)
{
    struct lk_metrics *metrics = &conn->server->metrics;
    const struct lk_command *command = lk_command_find(argv[0]);

    if (!command) {
        metrics->commands++;
        refuse_unknown(conn, argv[0]);
        return true;
    }
    bool looks = only_looks(command, argv, argc);
    enum lk_lane lane = looks                             ? LK_LANE_READ
                        : takes_long(command, argv, argc) ? LK_LANE_ALONE
                                                          : command->lane;
    if (has_to_wait(conn, lane)) {
        return false;
    }
    metrics->commands++;
    metrics->by_command[command - commands]++;
    conn->commands++;
    conn->command = command;
    conn->command_lane = lane;
    conn->again = false;
    if (is_welcome(conn, command, looks, argc) && check_store(conn, command)) {
        command->run(conn, argv, argc);
    }
    metrics->commands -= conn->again;
    metrics->by_command[command - commands] -= conn->again;
    return !conn->again;
}

static void hand_over(struct lk_server *server, struct lk_task *task)
{
    switch (task->demand.kind) {
    case LK_TASK_CLOCK:
    case LK_TASK_BACKUP: /* an export: only to be noted */
        lk_task_queue_add(&server->to_store, task);
        break;
    case LK_TASK_LOOKUP:
    case LK_TASK_FIND:
    case LK_TASK_LIST:
    case LK_TASK_AUDIT:
    case LK_TASK_EXPORT:
    case LK_TASK_JOBS:
    case LK_TASK_JOB:
    case LK_TASK_TARGETS:
        task->loading = true;
        task->conn->in_reader++;
        lk_task_queue_add(&server->to_reader, task);
        break;
    case LK_TASK_ORDER:
        lk_task_queue_add(&server->to_order, task);
        break;
    case LK_TASK_PROBE:
        lk_probe_give(server, task);
        break;
    default:
        break;
    }
}

void lk_command_queue(struct lk_conn *conn, const struct lk_demand *demand)
{
    struct lk_server *server = conn->server;
    bool is_chore = demand->kind == LK_TASK_VERIFY ||
                    (demand->kind == LK_TASK_BACKUP && !demand->list.whole);
    struct lk_task *task = lk_task_make(conn, demand);
    enum lk_status status = task ? LK_OK : LK_NOMEM;

    if (!status && is_chore) {
        status = lk_chore_start(server, task);
    }
    if (status) {
        if (task) {
            lk_task_free(server, task);
        } else if (demand->kind == LK_TASK_TARGETS) {
            lk_targets_view_free(demand->view);
        }
        lk_conn_error(conn, "ERR %s: %s", conn->command->name,
                      status == LK_BUSY ? "a verify or backup is running; "
                                          "come back when it is done"
                                        : latchkey_status_text(status));
        return;
    }
    lk_conn_push(conn, task, conn->command_lane);
    conn->hold = conn->command_lane == LK_LANE_ALONE;
    if (!is_chore) {
        hand_over(server, task);
    }
}
