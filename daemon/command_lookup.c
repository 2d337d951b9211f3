/*
 * command_lookup.c - the commands that look at operations and at the audit log:
 * LOOKUP, FIND, LIST, AUDIT and EXPORT. All but EXPORT BEGIN run on the reader
 * thread.
 *
 * LIST and EXPORT are read in pages: a reply is [cursor, rows], and the next
 * page begins at that cursor. Cursor 0 is the end. An operator who sees bodies
 * leaves an entry in the audit log, which is written before the reply is sent.
 */
#include "daemon/args.h"
#include "daemon/reply.h"

enum { LIST_MOST = 1000, LIST_USUAL = 100 };

/* ---- LOOKUP and FIND ----------------------------------------------------- */

/* An app sees the bodies of its own operations; an operator signs with BODY. */
LK_PARSE(lookup)
{
    task->bodies = lk_conn_has_role(conn, LK_ROLE_USE);
    return lk_arg_name(conn, argv, &task->args.lookup) &&
           lk_arg_body_option(conn, task, argv, argc, 4);
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

/* A word that cannot be a reference is a typing error: an error, not nil. A
 * reference that is not there is nil, whatever tenant it belongs to. */
LK_PARSE(find)
{
    size_t from = argc == 2 || argc == 7 ? 2 : 3; /* BODY ... are five words */
    struct lk_slice reference = argv[from - 1];

    task->bodies = from == 3 && lk_conn_has_role(conn, LK_ROLE_USE);
    if (from == 2) {
        if (!check_every_tenant(conn)) {
            return false;
        }
    } else {
        task->args.find.tenant = argv[1];
        if (!lk_arg_bytes(conn, "tenant", argv[1], 1, LK_TENANT_MAX)) {
            return false;
        }
    }
    if (latchkey_reference_decode(reference,
                                  conn->server->store->reference_secret,
                                  &task->args.find.number)) {
        lk_arg_error(conn, "reference", "must look like 7D3F-92AB-1C4E",
                     reference);
        return false;
    }
    return lk_arg_body_option(conn, task, argv, argc, from);
}

/* The reply of LOOKUP and FIND; `found` is the store's status. A body that is
 * shown to an operator is noted; lk_note_bodies leaves out an app. */
static enum lk_status write_single(struct lk_task *task,
                                   const struct lk_store *store,
                                   enum lk_status found,
                                   const struct lk_operation *operation)
{
    if (found == LK_NOT_FOUND) {
        return lk_resp_nil(&task->text, task->proto);
    }
    if (found) {
        return lk_reply_unavailable(&task->text, found, NULL);
    }
    W(lk_reply_operation(&task->text, store, task->proto, operation,
                         task->bodies ? LK_SHOW_WHOLE : LK_SHOW_SIZES));
    return task->bodies && operation->stored
               ? lk_note_bodies(task, store, "look", operation->name,
                                operation->number, 0)
               : LK_OK;
}

static enum lk_status run_lookup(struct lk_task *task, struct lk_store *store)
{
    struct lk_operation operation = {0};
    enum lk_status found =
        store->class->lookup(store, task->args.lookup, &operation);
    enum lk_status status = write_single(task, store, found, &operation);

    lk_operation_free(&operation);
    return status;
}

static enum lk_status run_find(struct lk_task *task, struct lk_store *store)
{
    struct lk_operation operation = {0};
    enum lk_status found = store->class->find(
        store, task->args.find.tenant, task->args.find.number, &operation);
    enum lk_status status = write_single(task, store, found, &operation);

    lk_operation_free(&operation);
    return status;
}

/* ---- LIST ---------------------------------------------------------------- */

LK_PARSE(list)
{
    struct lk_list_query *query = &task->args.list;
    struct lk_slice state = {0};
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_BYTES("STATE", 1, 32, &state),
        LK_NUMBER("ATTENTION", 0, INT64_MAX, &query->long_ms),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &query->tenant),
        LK_BYTES("SCOPE", 1, LK_SCOPE_MAX, &query->scope),
        LK_NUMBER("OLDER", 0, INT64_MAX, &query->older_than_ms),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 1, INT64_MAX, &query->until_ms),
        LK_FLAG("NEWEST", &query->newest),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
        LK_NUMBER("CURSOR", 0, INT64_MAX, &query->cursor),
    };

    if (!lk_arg_options(conn, argv, argc, 1, options,
                        sizeof(options) / sizeof(options[0]))) {
        return false;
    }
    if (options[0].given && !lk_state_parse(state, &query->state)) {
        lk_arg_error(conn, "STATE",
                     "must be accepted, in_progress, uncertain, completed or "
                     "released",
                     state);
        return false;
    }
    query->any_state = !options[0].given;
    query->attention = options[1].given;
    query->limit = limit;
    return true;
}

/* Rows are gathered in `text` first: in the reply their count is in front. */
struct rows {
    const struct lk_store *store;
    int proto;
    struct lk_buf text;
    size_t count;
    enum lk_status status;
};

/* False: out of memory, which ends the list. */
static bool add_operation(void *context, const struct lk_operation *operation)
{
    struct rows *rows = context;

    rows->status = lk_reply_operation(&rows->text, rows->store, rows->proto,
                                      operation, LK_SHOW_BYTES);
    rows->count++;
    return rows->status == LK_OK;
}

static enum lk_status write_rows(struct lk_buf *out, const struct rows *rows)
{
    W(lk_resp_array(out, rows->count));
    return latchkey_buf_add_slice(out, latchkey_buf_slice(&rows->text));
}

/* Rows and the cursor behind them, or why there are none. */
static enum lk_status write_page(struct lk_task *task, const struct rows *rows,
                                 enum lk_status status, uint64_t next)
{
    if (rows->status) {
        return rows->status;
    }
    if (status) {
        return lk_reply_unavailable(&task->text, status, NULL);
    }
    W(lk_resp_array(&task->text, 2));
    W(lk_resp_integer(&task->text, (int64_t)next));
    return write_rows(&task->text, rows);
}

static enum lk_status run_list(struct lk_task *task, struct lk_store *store)
{
    struct rows rows = {.store = store, .proto = task->proto};
    uint64_t next = 0;
    enum lk_status status = store->class->list(store, &task->args.list,
                                               add_operation, &rows, &next);

    status = write_page(task, &rows, status, next);
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- EXPORT -------------------------------------------------------------- */

/* Operations are read a few at a time, so that a page of large responses ends
 * in time. */
enum { EXPORT_BYTES = 4 << 20, EXPORT_FIRST = 8, EXPORT_MOST = 64 };

/* Goes into the audit log before anything is shown. */
LK_PARSE(export_begin)
{
    if (!lk_arg_signature(conn, task, argv, argc, 2)) {
        return false;
    }
    struct lk_note *note =
        lk_note_make(task, LK_SLICE("export"), (struct lk_name){0});
    if (!note) {
        lk_conn_error(conn, "UNAVAILABLE out of memory");
        return false;
    }
    note->refusal = "the export could not be noted in the audit log";
    return true;
}

/* From now on pages may follow on this connection. */
static enum lk_status reply_export_begin(struct lk_task *task,
                                         struct lk_buf *out)
{
    task->conn->exports = true;
    return lk_reply_export_begin(out, task->conn->server->store, task->proto);
}

/* Only on a connection whose EXPORT BEGIN is in the audit log. */
LK_PARSE(export)
{
    struct lk_list_query *query = &task->args.list;
    uint64_t limit = 0;

    if (!lk_arg_number(conn, "cursor", argv[1], 0, INT64_MAX, &query->cursor) ||
        !lk_arg_number(conn, "limit", argv[2], 1, LIST_MOST, &limit)) {
        return false;
    }
    if (!conn->exports) {
        lk_conn_error(conn, "ERR EXPORT: this connection has not begun one: "
                            "EXPORT BEGIN WHO who WHY why");
        return false;
    }
    query->any_state = query->whole = true;
    query->limit = limit;
    return true;
}

static bool add_export(void *context, const struct lk_operation *operation)
{
    struct rows *rows = context;

    if (!rows->status) {
        rows->status = lk_reply_export(&rows->text, rows->proto, operation);
        rows->count++;
    }
    return true; /* a cursor may be that of several operations: take them all */
}

/* How many operations to read next, by the size of those before. */
static size_t export_share(const struct rows *rows, size_t limit)
{
    size_t share = EXPORT_FIRST;

    if (rows->count) {
        size_t each = rows->text.len / rows->count + 1;
        share = EXPORT_BYTES / each + 1;
    }
    if (share > EXPORT_MOST) {
        share = EXPORT_MOST;
    }
    return share < limit - rows->count ? share : limit - rows->count;
}

/* Reads until the page is full, the limit is reached or the client has left. */
static enum lk_status list_export(struct lk_store *store, struct lk_task *task,
                                  struct rows *rows, uint64_t *next)
{
    struct lk_list_query query = task->args.list;
    size_t limit = query.limit;
    enum lk_status status;

    *next = query.cursor;
    do {
        query.cursor = *next;
        query.limit = export_share(rows, limit);
        status = store->class->list(store, &query, add_export, rows, next);
    } while (!status && !rows->status && *next && rows->count < limit &&
             rows->text.len < EXPORT_BYTES &&
             !atomic_load_explicit(&task->gone, memory_order_relaxed));
    return status;
}

/* A page may be shorter than its limit; only cursor 0 is the end. */
static enum lk_status run_export(struct lk_task *task, struct lk_store *store)
{
    struct rows rows = {.store = store, .proto = task->proto};
    uint64_t next = 0;
    enum lk_status status = list_export(store, task, &rows, &next);

    status = write_page(task, &rows, status, next);
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- AUDIT --------------------------------------------------------------- */

/* COUNT reads all entries that match, so LIMIT does not apply to it. */
LK_PARSE(audit)
{
    struct lk_audit_query *query = &task->args.audit;
    uint64_t limit = LIST_USUAL;
    struct lk_option options[] = {
        LK_NUMBER("AFTER", 0, INT64_MAX, &query->after),
        LK_NUMBER("BEFORE", 1, INT64_MAX, &query->before),
        LK_NUMBER("SINCE", 0, INT64_MAX, &query->since_ms),
        LK_NUMBER("UNTIL", 1, INT64_MAX, &query->until_ms),
        LK_NUMBER("JOB", 1, INT64_MAX, &query->job),
        LK_BYTES("TENANT", 1, LK_TENANT_MAX, &query->name.tenant),
        LK_BYTES("SCOPE", 1, LK_SCOPE_MAX, &query->name.scope),
        LK_BYTES("KEY", 1, LK_KEY_MAX, &query->name.key),
        LK_BYTES("WHO", 1, LK_WHO_MAX, &query->who),
        LK_BYTES("ACTION", 1, LK_WHO_MAX, &query->action),
        LK_FLAG("NEWEST", &query->newest),
        LK_FLAG("COUNT", &query->count),
        LK_NUMBER("LIMIT", 1, LIST_MOST, &limit),
    };

    if (!lk_arg_options(conn, argv, argc, 1, options,
                        sizeof(options) / sizeof(options[0]))) {
        return false;
    }
    query->limit = query->count ? SIZE_MAX : limit;
    return true;
}

static bool add_audit(void *context, const struct lk_audit_entry *entry)
{
    struct rows *rows = context;

    rows->status = lk_reply_audit(&rows->text, rows->proto, entry);
    rows->count++;
    return rows->status == LK_OK;
}

/* COUNT: entries are counted and not written. */
static bool count_audit(void *context, const struct lk_audit_entry *entry)
{
    (void)entry;
    ((struct rows *)context)->count++;
    return true;
}

static enum lk_status run_audit(struct lk_task *task, struct lk_store *store)
{
    struct rows rows = {.store = store, .proto = task->proto};
    const struct lk_audit_query *query = &task->args.audit;
    enum lk_status status = store->class->audit(
        store, query, query->count ? count_audit : add_audit, &rows);

    if (rows.status) {
        status = rows.status;
    } else if (status) {
        status = lk_reply_unavailable(&task->text, status, NULL);
    } else if (query->count) {
        status = lk_resp_integer(&task->text, (int64_t)rows.count);
    } else {
        status = write_rows(&task->text, &rows);
    }
    latchkey_buf_free(&rows.text);
    return status;
}

/* ---- The table ----------------------------------------------------------- */

static const struct lk_command rows[] = {
    {.name = "LOOKUP",
     .min_args = 4,
     .max_args = 9,
     .roles = LK_FOR_ALL,
     .place = LK_PLACE_READER,
     .parse = parse_lookup,
     .run = run_lookup,
     .usage = "tenant scope key [BODY WHO who WHY why]"},
    {.name = "FIND",
     .min_args = 2,
     .max_args = 8,
     .roles = LK_FOR_ALL,
     .place = LK_PLACE_READER,
     .parse = parse_find,
     .run = run_find,
     .usage = "[tenant] reference [BODY WHO who WHY why]"},
    {.name = "LIST",
     .min_args = 1,
     .max_args = 20,
     .roles = LK_FOR_VIEW,
     .place = LK_PLACE_READER,
     .parse = parse_list,
     .run = run_list,
     .usage = "[STATE state] [ATTENTION ms] [TENANT tenant] [SCOPE scope] "
              "[OLDER ms] [SINCE ms] [UNTIL ms] [NEWEST] [LIMIT n] [CURSOR "
              "cursor]"},
    {.name = "AUDIT",
     .min_args = 1,
     .max_args = 25,
     .roles = LK_FOR_VIEW,
     .place = LK_PLACE_READER,
     .parse = parse_audit,
     .run = run_audit,
     .usage = "[TENANT tenant] [SCOPE scope] [KEY key] [JOB id] [WHO who] "
              "[ACTION action] [SINCE ms] [UNTIL ms] [AFTER id] [BEFORE id] "
              "[NEWEST] [LIMIT n | COUNT]"},
    {.name = "EXPORT BEGIN",
     .min_args = 6,
     .max_args = 6,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .place = LK_PLACE_STORE,
     .parse = parse_export_begin,
     .reply = reply_export_begin,
     .usage = "WHO who WHY why"},
    {.name = "EXPORT",
     .min_args = 3,
     .max_args = 3,
     .roles = LK_FOR_OPERATE,
     .alone = true,
     .place = LK_PLACE_READER,
     .parse = parse_export,
     .run = run_export,
     .usage = "cursor limit"},
};

LK_COMMAND_GROUP(lk_lookup_commands, rows);
