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

static bool sign(struct lk_conn *conn, struct lk_signature *signature,
                 struct lk_op *op)
{
    struct lk_slice user = latchkey_slice(conn->user);
    struct lk_slice who = signature->who;

    op->why = signature->why;
    op->who = who;
    if (!user.data || !who.data || user.len == 0 ||
        latchkey_slice_equal(user, who)) {
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
           sign(conn, signature, op);
}

bool lk_arg_signature(struct lk_conn *conn, const struct lk_slice *argv,
                      size_t argc, size_t from, struct lk_signature *signature,
                      struct lk_op *op)
{
    struct lk_option options[] = {LK_SIGNATURE(signature)};

    return lk_arg_signed(conn, argv, argc, from, options, 2, signature, op);
}

/* ---- Looking at bodies --------------------------------------------------- */

bool lk_arg_looks(struct lk_conn *conn, const char *word,
                  struct lk_signature *signature, struct lk_demand *demand)
{
    char what[32];

    snprintf(what, sizeof(what), "%s with %s", conn->command->name, word);
    demand->bodies = true;
    return lk_arg_role(conn, what, LK_ROLE_OPERATE) &&
           sign(conn, signature, &demand->op);
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
                            struct lk_name name, uint64_t token)
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
    entry->token = token;
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
