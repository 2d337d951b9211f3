/*
 * signature.c - who changes something by hand, or looks at what others sent,
 * and why.
 *
 * A connection with the role `use` is an app or a gateway: LOOKUP and FIND show
 * it the stored answer. To all others an answer, a request and a job are shown
 * without headers and bodies, unless an operator says who asks and why. Then
 * the way of the task is
 *
 *     loop -> reader (the reply, and a look) -> loop -> store (the audit log)
 *     -> loop (the reply is sent)
 *
 * so that no body leaves without an entry that is durable.
 */
#include "daemon/args.h"

#include <stdlib.h>
#include <string.h>

bool lk_arg_sign(struct lk_conn *conn, struct lk_signature *signature,
                 struct lk_op *op)
{
    struct lk_slice user = lk_rights_user(conn);
    struct lk_slice who = signature->who;

    op->why = signature->why;
    op->who = who.len ? who : user;
    if (user.len == 0 || who.len == 0 || latchkey_slice_equal(user, who)) {
        return true;
    }
    if (user.len + 1 + who.len > LK_WHO_MAX) {
        lk_conn_error(conn,
                      "ERR %s: WHO must be at most %zu bytes long, not %zu",
                      conn->command->name, LK_WHO_MAX - 1 - user.len, who.len);
        return false;
    }
    memcpy(signature->text, user.data, user.len);
    signature->text[user.len] = '/';
    memcpy(signature->text + user.len + 1, who.data, who.len);
    op->who = (struct lk_slice){signature->text, user.len + 1 + who.len};
    return true;
}

bool lk_arg_signed(struct lk_conn *conn, const struct lk_slice *argv,
                   size_t argc, size_t from, struct lk_option *options,
                   size_t count, struct lk_signature *signature,
                   struct lk_op *op)
{
    return lk_arg_options(conn, argv, argc, from, options, count) &&
           lk_arg_needs(conn, &options[0]) && lk_arg_needs(conn, &options[1]) &&
           lk_arg_sign(conn, signature, op);
}

bool lk_arg_signature(struct lk_conn *conn, const struct lk_slice *argv,
                      size_t argc, size_t from, struct lk_signature *signature,
                      struct lk_op *op)
{
    struct lk_option options[] = {LK_SIGNATURE(signature)};

    return lk_arg_signed(conn, argv, argc, from, options, 2, signature, op);
}

/* ---- The log ------------------------------------------------------------- */

void lk_act_log(const struct lk_demand *demand, struct lk_slice action,
                const char *about)
{
    char shown_action[LK_LOG_QUOTED];
    char shown_who[LK_LOG_QUOTED];
    char shown_why[LK_LOG_QUOTED];

    lk_log(LK_LOG_INFO, "operator", "action=%s who=%s peer=%.*s%s%s why=%s",
           lk_log_quote(action, shown_action, sizeof(shown_action)),
           lk_log_quote(demand->op.who, shown_who, sizeof(shown_who)),
           (int)demand->peer.len, demand->peer.data, *about ? " " : "", about,
           lk_log_quote(demand->op.why, shown_why, sizeof(shown_why)));
}

void lk_act_log_reference(const struct lk_store *store,
                          const struct lk_demand *demand,
                          struct lk_slice action, uint64_t number)
{
    char about[16 + LK_REFERENCE_TEXT] = "";
    char reference[LK_REFERENCE_TEXT + 1];

    if (number) {
        latchkey_reference_encode(number, store->reference_secret, reference);
        snprintf(about, sizeof(about), "reference=%s", reference);
    }
    lk_act_log(demand, action, about);
}

static void log_look(const struct lk_server *server, const struct lk_task *task)
{
    const struct lk_look *look = task->look;
    char about[32] = "";

    if (look->entry.token) {
        snprintf(about, sizeof(about), "job=%llu",
                 (unsigned long long)look->entry.token);
    }
    if (look->number) {
        lk_act_log_reference(server->store, &task->demand, look->entry.action,
                             look->number);
    } else {
        lk_act_log(&task->demand, look->entry.action, about);
    }
}

void lk_act_log_task(const struct lk_server *server, const struct lk_task *task)
{
    const struct lk_demand *demand = &task->demand;
    char path[LK_LOG_QUOTED];
    char about[LK_LOG_QUOTED + 8];

    if (task->look) {
        log_look(server, task);
    } else if (demand->kind == LK_TASK_CLOCK) {
        lk_act_log(demand, LK_SLICE("accept clock"), "");
    } else if (demand->kind == LK_TASK_BACKUP && demand->list.whole) {
        lk_act_log(demand, LK_SLICE("export"), "");
    } else if (demand->kind == LK_TASK_BACKUP) {
        snprintf(about, sizeof(about), "path=%s",
                 lk_log_quote(demand->op.reason, path, sizeof(path)));
        lk_act_log(demand, LK_SLICE("backup"), about);
    }
}

/* ---- Looking at bodies --------------------------------------------------- */

bool lk_arg_looks(struct lk_conn *conn, const char *word,
                  struct lk_signature *signature, struct lk_demand *demand)
{
    char what[32];

    snprintf(what, sizeof(what), "%s with %s", conn->command->name, word);
    demand->bodies = true;
    return lk_arg_role(conn, what, LK_ROLE_OPERATE) &&
           lk_arg_sign(conn, signature, &demand->op);
}

bool lk_arg_look(struct lk_conn *conn, const struct lk_slice *argv, size_t argc,
                 size_t from, struct lk_signature *signature,
                 struct lk_demand *demand)
{
    bool body = false;
    struct lk_option options[] = {LK_SIGNATURE(signature),
                                  LK_FLAG("BODY", &body)};

    return argc == from ||
           (lk_arg_options(conn, argv, argc, from, options, 3) &&
            lk_arg_needs(conn, &options[2]) &&
            lk_arg_needs(conn, &options[0]) &&
            lk_arg_needs(conn, &options[1]) &&
            lk_arg_looks(conn, "BODY", signature, demand));
}

enum lk_status lk_look_make(struct lk_task *task, const char *action,
                            struct lk_name name, uint64_t number, uint64_t job)
{
    const struct lk_op *op = &task->demand.op;
    const struct lk_slice parts[] = {latchkey_slice(action), name.tenant,
                                     name.scope, name.key};
    enum lk_status status = LK_OK;

    if (!op->who.len) {
        return LK_OK;
    }
    task->look = calloc(1, sizeof(*task->look));
    if (!task->look) {
        return LK_NOMEM;
    }
    struct lk_buf *bytes = &task->look->bytes;
    for (size_t i = 0; i < 4 && !status; i++) {
        status = latchkey_buf_add_slice(bytes, parts[i]);
    }
    if (status) {
        return status;
    }
    const char *at = bytes->data;
    struct lk_audit_entry *entry = &task->look->entry;
    struct lk_slice *slices[] = {&entry->action, &entry->name.tenant,
                                 &entry->name.scope, &entry->name.key};
    for (size_t i = 0; i < 4; i++) {
        *slices[i] = (struct lk_slice){at, parts[i].len};
        at += parts[i].len;
    }
    entry->who = op->who;
    entry->why = op->why;
    entry->token = job;
    task->look->number = number;
    task->to_note = true;
    return LK_OK;
}

enum lk_status lk_look_noted(struct lk_task *task)
{
    enum lk_status noted = task->demand.op.status;

    if (!noted) {
        return LK_OK;
    }
    latchkey_buf_free(&task->text);
    return lk_reply_unavailable(&task->text, noted,
                                "the look could not be noted in the audit log, "
                                "so nothing is shown");
}

void lk_look_free(struct lk_look *look)
{
    if (look) {
        latchkey_buf_free(&look->bytes);
        free(look);
    }
}
