/*
 * audit.c - who changes something by hand, or sees what others sent, and why.
 *
 * A connection with the role `use` is an app or a gateway: LOOKUP and FIND show
 * it the stored response. All others see a response, a request and a job
 * without headers and bodies, unless an operator gives WHO and WHY. Then the
 * way of the task is
 *
 *     loop -> reader (the reply, and a note) -> loop -> store (the audit log)
 *     -> loop (the reply is sent)
 *
 * so that no body leaves without an entry that is durable. A backup takes the
 * same way, with its own thread in place of the reader; the beginning of an
 * export has its note at once.
 */
#include "daemon/args.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- Who and why --------------------------------------------------------- */

bool lk_arg_sign(struct lk_conn *conn, struct lk_signature *signature)
{
    struct lk_slice user = lk_rights_user(conn);
    struct lk_slice who = signature->who;

    lk_rights_peer_text(conn, signature->peer_text);
    signature->peer = latchkey_slice(signature->peer_text);
    signature->who = who.len ? who : user;
    if (user.len == 0 || who.len == 0 || latchkey_slice_equal(user, who)) {
        return true;
    }
    if (user.len + 1 + who.len > LK_WHO_MAX) {
        lk_conn_error(conn,
                      "ERR %s: WHO must be at most %zu bytes long, not %zu",
                      conn->command->name, LK_WHO_MAX - 1 - user.len, who.len);
        return false;
    }
    memcpy(signature->who_text, user.data, user.len);
    signature->who_text[user.len] = '/';
    memcpy(signature->who_text + user.len + 1, who.data, who.len);
    signature->who =
        (struct lk_slice){signature->who_text, user.len + 1 + who.len};
    return true;
}

/* The user's name may go with the connection: the task has all bytes. */
bool lk_arg_sign_task(struct lk_conn *conn, struct lk_task *task,
                      struct lk_slice who, struct lk_slice why)
{
    struct lk_signature *signature = calloc(1, sizeof(*signature));

    if (!signature) {
        lk_conn_error(conn, "UNAVAILABLE out of memory");
        return false;
    }
    assert(!task->signature);
    task->signature = signature;
    signature->who = who;
    signature->why = why;
    if (!lk_arg_sign(conn, signature)) {
        return false;
    }
    size_t len = signature->who.len;
    assert(len <= LK_WHO_MAX);
    memmove(signature->who_text, signature->who.data, len);
    signature->who = (struct lk_slice){signature->who_text, len};
    return true;
}

bool lk_arg_signed(struct lk_conn *conn, struct lk_task *task,
                   const struct lk_slice *argv, size_t argc, size_t from,
                   struct lk_option *options, size_t count)
{
    return lk_arg_options(conn, argv, argc, from, options, count) &&
           lk_arg_needs(conn, &options[0]) && lk_arg_needs(conn, &options[1]) &&
           lk_arg_sign_task(conn, task, *options[0].to.bytes,
                            *options[1].to.bytes);
}

bool lk_arg_signature(struct lk_conn *conn, struct lk_task *task,
                      const struct lk_slice *argv, size_t argc, size_t from)
{
    struct lk_slice who = {0}, why = {0};
    struct lk_option options[] = {LK_SIGNATURE(&who, &why)};

    return lk_arg_signed(conn, task, argv, argc, from, options, 2);
}

bool lk_arg_bodies(struct lk_conn *conn, struct lk_task *task, const char *word,
                   struct lk_slice who, struct lk_slice why)
{
    char what[32];

    snprintf(what, sizeof(what), "%s with %s", conn->command->name, word);
    task->bodies = true;
    return lk_arg_role(conn, what, LK_ROLE_OPERATE) &&
           lk_arg_sign_task(conn, task, who, why);
}

bool lk_arg_body_option(struct lk_conn *conn, struct lk_task *task,
                        const struct lk_slice *argv, size_t argc, size_t from)
{
    bool body = false;
    struct lk_slice who = {0}, why = {0};
    struct lk_option options[] = {LK_SIGNATURE(&who, &why),
                                  LK_FLAG("BODY", &body)};

    return argc == from ||
           (lk_arg_options(conn, argv, argc, from, options, 3) &&
            lk_arg_needs(conn, &options[2]) &&
            lk_arg_needs(conn, &options[0]) &&
            lk_arg_needs(conn, &options[1]) &&
            lk_arg_bodies(conn, task, "BODY", who, why));
}

/* ---- The log ------------------------------------------------------------- */

void lk_operator_log(const struct lk_signature *signature,
                     struct lk_slice action, const char *about)
{
    char shown_action[LK_LOG_QUOTED];
    char shown_who[LK_LOG_QUOTED];
    char shown_why[LK_LOG_QUOTED];

    lk_log(LK_LOG_INFO, "operator", "action=%s who=%s peer=%.*s%s%s why=%s",
           lk_log_quote(action, shown_action, sizeof(shown_action)),
           lk_log_quote(signature->who, shown_who, sizeof(shown_who)),
           (int)signature->peer.len, signature->peer.data, *about ? " " : "",
           about, lk_log_quote(signature->why, shown_why, sizeof(shown_why)));
}

void lk_operator_about(const struct lk_store *store, uint64_t number,
                       char about[LK_ABOUT_REFERENCE])
{
    char reference[LK_REFERENCE_TEXT + 1];

    about[0] = '\0';
    if (number) {
        latchkey_reference_encode(number, store->reference_secret, reference);
        snprintf(about, LK_ABOUT_REFERENCE, "reference=%s", reference);
    }
}

/* ---- Notes for the audit log --------------------------------------------- */

/* NULL: out of memory. The task has no note then. */
struct lk_note *lk_note_make(struct lk_task *task, struct lk_slice action,
                             struct lk_name name)
{
    const struct lk_slice parts[] = {action, name.tenant, name.scope, name.key};
    struct lk_note *note = calloc(1, sizeof(*note));
    enum lk_status status = note ? LK_OK : LK_NOMEM;

    assert(task->signature && !task->note);
    for (size_t i = 0; i < 4 && !status; i++) {
        status = latchkey_buf_add_slice(&note->bytes, parts[i]);
    }
    if (status) {
        lk_note_free(note);
        return NULL;
    }
    const char *at = note->bytes.data;
    struct lk_audit_entry *entry = &note->entry;
    struct lk_slice *slices[] = {&entry->action, &entry->name.tenant,
                                 &entry->name.scope, &entry->name.key};
    for (size_t i = 0; i < 4; i++) {
        *slices[i] = (struct lk_slice){at, parts[i].len};
        at += parts[i].len;
    }
    entry->who = task->signature->who;
    entry->why = task->signature->why;
    note->log_action = entry->action;
    task->note = note;
    return note;
}

void lk_note_free(struct lk_note *note)
{
    if (note) {
        latchkey_buf_free(&note->bytes);
        free(note);
    }
}

enum lk_status lk_note_bodies(struct lk_task *task,
                              const struct lk_store *store, const char *action,
                              struct lk_name name, uint64_t number,
                              uint64_t job_id)
{
    if (!task->signature) {
        return LK_OK; /* an app sees its own */
    }
    struct lk_note *note = lk_note_make(task, latchkey_slice(action), name);
    if (!note) {
        return LK_NOMEM;
    }
    note->for_reply = true;
    note->entry.token = job_id;
    note->refusal = "the look could not be noted in the audit log, so nothing "
                    "is shown";
    if (number) {
        lk_operator_about(store, number, note->about);
    } else if (job_id) {
        snprintf(note->about, sizeof(note->about), "job=%llu",
                 (unsigned long long)job_id);
    }
    return LK_OK;
}

/* Replaces the reply by an error if the entry could not be written. */
enum lk_status lk_note_written(struct lk_task *task)
{
    const struct lk_note *note = task->note;

    assert(note->written && task->at == LK_PLACE_HERE);
    if (note->status) {
        latchkey_buf_free(&task->text);
        return lk_reply_unavailable(&task->text, note->status, note->refusal);
    }
    if (task->conn || !note->for_reply) {
        lk_operator_log(task->signature, note->log_action, note->about);
    }
    return LK_OK;
}
