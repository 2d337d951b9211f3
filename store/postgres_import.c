/*
 * postgres_import.c - importing the operations and the audit log of another
 * store. latchkey.import in store/sql decides which operations are taken.
 *
 * Operations go to the server in chunks, column by column: each parameter is an
 * array. One chunk is one transaction, and may be sent again. Lane 0's
 * connection is used, so no batches may run during an import.
 */
#include "store/postgres.h"
#include "store/sql_codes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MS_NS UINT64_C(1000000)

enum {
    TRIES = 20,
    PATIENCE_MS = 60 * 1000, /* for one step */
};

/* ---- statements ------------------------------------------------------- */

/*
 * Runs the statement, again after a conflict or a lost connection: an operation
 * or audit entry that is already there is not taken a second time.
 */
static enum lk_status run_import(struct lk_postgres *store, const char *sql,
                                 const struct lk_pg_params *params,
                                 PGresult **result)
{
    struct lk_pg_conn *conn = &store->lanes[0].conn;
    uint64_t deadline_ns = lk_pg_clock_ns() + PATIENCE_MS * MS_NS;
    enum lk_status status = LK_UNAVAILABLE;

    *result = NULL;
    for (int i = 0; i < TRIES; i++) {
        status = lk_pg_ready(conn, deadline_ns);
        if (!status && !store->config.pooler) {
            status =
                lk_pg_script(conn, "SET statement_timeout = 0", deadline_ns);
        }
        if (!status) {
            status = lk_pg_run(conn, sql, params, deadline_ns, result);
        }
        bool passing =
            status && (!conn->pg || !strcmp(conn->sqlstate, "40001") ||
                       !strcmp(conn->sqlstate, "40P01") ||
                       !strcmp(conn->sqlstate, "55P03"));
        if (!passing) {
            break;
        }
        struct timespec pause = {0, (long)(100 * MS_NS)};
        nanosleep(&pause, NULL);
    }
    if (status) {
        lk_pg_log(store, LK_PG_ERROR, "the import failed: %s (%s)",
                  conn->message, conn->sqlstate);
    }
    return status ? LK_UNAVAILABLE : LK_OK;
}

/* ---- operations ------------------------------------------------------- */

/* Parameters of latchkey.import. */
enum column {
    TENANT,
    SCOPE,
    KEY,
    STATE,
    TOKEN,
    NUMBER,
    GENERATION,
    ATTEMPT,
    CLAIMED,
    DEADLINE,
    TTL,
    KEEP,
    COMPLETED,
    STATUS,
    FLAGS,
    FINGERPRINT,
    OWNER,
    REASON,
    HEADERS,
    BODY,
    COLUMNS,
};

static const char import_sql[] =
    "SELECT taken, older, renumbered FROM latchkey.import($1, $2, $3, $4, $5, "
    "$6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, "
    "$21, $22)";

/* The type of a column's array, as latchkey.import declares it. */
static unsigned import_type(enum column column)
{
    switch (column) {
    case STATE:
        return LK_PG_INT2_ARRAY;
    case ATTEMPT:
    case STATUS:
    case FLAGS:
        return LK_PG_INT4_ARRAY;
    case TENANT:
    case SCOPE:
    case KEY:
    case FINGERPRINT:
    case OWNER:
    case REASON:
        return LK_PG_TEXT_ARRAY;
    case HEADERS:
    case BODY:
        return LK_PG_BYTEA_ARRAY;
    default:
        return LK_PG_INT8_ARRAY;
    }
}

/* Why it is uncertain or omitted; a lapsed lock is stored without a reason. */
static struct lk_slice import_reason(const struct lk_operation *operation)
{
    bool lapsed =
        latchkey_slice_equal(operation->reason, LK_SLICE("lock lapsed"));

    if ((operation->state == LK_STATE_UNCERTAIN && !lapsed) ||
        (operation->state == LK_STATE_COMPLETED && operation->omitted)) {
        return operation->reason;
    }
    return (struct lk_slice){0};
}

/* The value of a text or bytea column. */
static struct lk_slice import_bytes(const struct lk_operation *operation,
                                    enum column column)
{
    bool stored = operation->state == LK_STATE_COMPLETED && !operation->omitted;

    switch (column) {
    case TENANT:
        return operation->name.tenant;
    case SCOPE:
        return operation->name.scope;
    case KEY:
        return operation->name.key;
    case FINGERPRINT:
        return operation->fingerprint;
    case OWNER:
        return operation->owner;
    case REASON:
        return import_reason(operation);
    case HEADERS:
        return stored ? operation->stored->response.headers
                      : (struct lk_slice){0};
    default:
        return stored ? operation->stored->response.body : (struct lk_slice){0};
    }
}

/* The value of an integer column. Times are in milliseconds since 1970. */
static uint64_t import_number(const struct lk_operation *operation,
                              enum column column)
{
    switch (column) {
    case STATE:
        return (uint64_t)operation->state;
    case TOKEN:
        return operation->token;
    case NUMBER:
        return operation->number;
    case GENERATION:
        return operation->generation;
    case ATTEMPT:
        return operation->attempt < INT32_MAX ? operation->attempt : INT32_MAX;
    case CLAIMED:
        return operation->claimed_ms;
    case DEADLINE:
        return lk_operation_deadline(operation);
    case TTL:
        return operation->ttl_ms;
    case KEEP:
        return operation->keep_ms;
    case COMPLETED:
        return operation->completed_ms;
    case STATUS:
        return operation->status;
    default:
        return (operation->omitted ? LK_SQL_IMPORT_OMITTED : 0) |
               (operation->evicted ? LK_SQL_IMPORT_EVICTED : 0);
    }
}

static enum lk_status add_import_value(struct lk_pg_array *array,
                                       const struct lk_operation *operation,
                                       enum column column)
{
    switch (import_type(column)) {
    case LK_PG_TEXT_ARRAY:
        return lk_pg_array_text(array, import_bytes(operation, column));
    case LK_PG_BYTEA_ARRAY:
        return lk_pg_array_bytes(array, import_bytes(operation, column));
    default:
        return lk_pg_array_int(array,
                               (int64_t)import_number(operation, column));
    }
}

static size_t response_size(const struct lk_operation *operation)
{
    return import_bytes(operation, HEADERS).len +
           import_bytes(operation, BODY).len;
}

/* Does the server take it? Names and responses have limits there. */
static bool is_importable(const struct lk_operation *operation)
{
    const struct lk_name *name = &operation->name;
    size_t text = lk_pg_text_size(name->tenant) + lk_pg_text_size(name->scope) +
                  lk_pg_text_size(name->key);

    return lk_operation_is_possible(operation) && text <= LK_PG_NAME_MAX &&
           response_size(operation) <= LK_PG_RESPONSE_MAX;
}

/* How many of them make one transaction: as many as the server has locks for,
 * and about LK_PG_CHUNK_BYTES; at least one. */
static size_t import_chunk_of(struct lk_postgres *store,
                              const struct lk_operation *operations,
                              size_t count)
{
    size_t most = atomic_load(&store->lock_share);
    size_t bytes = 0;
    size_t i;

    for (i = 0; i < count && i < most; i++) {
        bytes += response_size(&operations[i]) + 1024;
        if (i && bytes > LK_PG_CHUNK_BYTES) {
            break;
        }
    }
    return i;
}

/* Adds to `sum` only if the transaction is committed. */
static enum lk_status import_chunk(struct lk_postgres *store,
                                   const struct lk_operation *operations,
                                   size_t count, struct lk_import *sum)
{
    struct lk_pg_array columns[COLUMNS] = {{{0}, 0, 0}};
    struct lk_pg_params params = {0};
    enum lk_status status = LK_OK;
    PGresult *result = NULL;

    for (int c = 0; c < COLUMNS && !status; c++) {
        status =
            lk_pg_array_start(&columns[c], import_type((enum column)c), count);
        for (size_t i = 0; i < count && !status; i++) {
            status =
                add_import_value(&columns[c], &operations[i], (enum column)c);
        }
        lk_pg_add_array(&params, &columns[c]);
    }
    lk_pg_add_int(&params, (int64_t)sum->highest_token);
    lk_pg_add_int(&params, (int64_t)store->config.default_ttl_ms);
    if (!status) {
        status = run_import(store, import_sql, &params, &result);
    }
    if (!status) {
        sum->taken += lk_pg_uint(result, 0, 0);
        sum->older += lk_pg_uint(result, 0, 1);
        sum->renumbered += lk_pg_uint(result, 0, 2);
    }
    PQclear(result);
    for (int c = 0; c < COLUMNS; c++) {
        latchkey_buf_free(&columns[c].bytes);
    }
    return status;
}

/* All operations are checked before the first is sent. On failure *result is
 * unchanged, but earlier chunks are committed; a repeated import skips them. */
enum lk_status lk_postgres_import(struct lk_store *base,
                                  const struct lk_operation *operations,
                                  size_t count, struct lk_import *result)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_import sum = *result;
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count; i++) {
        if (!is_importable(&operations[i])) {
            return LK_INVALID;
        }
        if (operations[i].token > sum.highest_token) {
            sum.highest_token = operations[i].token;
        }
    }
    if (sum.highest_token > LK_IMPORT_TOKEN_MAX) {
        return LK_INVALID;
    }
    for (size_t at = 0; at < count && !status;) {
        size_t chunk = import_chunk_of(store, operations + at, count - at);
        status = import_chunk(store, operations + at, chunk, &sum);
        at += chunk;
    }
    if (!status) {
        *result = sum;
    }
    return status;
}

/* ---- the audit log ---------------------------------------------------- */

enum { AUDIT_COLUMNS = 8 };

/* One entry, in the order of import_audit's parameters. */
static enum lk_status add_entry(struct lk_pg_array columns[AUDIT_COLUMNS],
                                const struct lk_audit_entry *entry)
{
    const struct lk_slice texts[] = {entry->who,        entry->why,
                                     entry->action,     entry->name.tenant,
                                     entry->name.scope, entry->name.key};
    enum lk_status status = lk_pg_array_int(&columns[0], (int64_t)entry->at_ms);

    for (int i = 0; i < 6 && !status; i++) {
        status = lk_pg_array_text(&columns[i + 1], texts[i]);
    }
    return status ? status
                  : lk_pg_array_int(&columns[7], (int64_t)entry->token);
}

enum lk_status lk_postgres_import_audit(struct lk_store *base,
                                        const struct lk_audit_entry *entries,
                                        size_t count)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_array columns[AUDIT_COLUMNS] = {{{0}, 0, 0}};
    struct lk_pg_params params = {0};
    enum lk_status status = LK_OK;
    PGresult *result = NULL;

    for (int c = 0; c < AUDIT_COLUMNS && !status; c++) {
        bool number = c == 0 || c == AUDIT_COLUMNS - 1;
        status = lk_pg_array_start(
            &columns[c], number ? LK_PG_INT8_ARRAY : LK_PG_TEXT_ARRAY, count);
    }
    for (size_t i = 0; i < count && !status; i++) {
        status = add_entry(columns, &entries[i]);
    }
    for (int c = 0; c < AUDIT_COLUMNS; c++) {
        lk_pg_add_array(&params, &columns[c]);
    }
    if (!status && count) {
        status = run_import(
            store,
            "SELECT latchkey.import_audit($1, $2, $3, $4, $5, $6, $7, "
            "$8)",
            &params, &result);
    }
    PQclear(result);
    for (int c = 0; c < AUDIT_COLUMNS; c++) {
        latchkey_buf_free(&columns[c].bytes);
    }
    return status;
}

/* ---- references ------------------------------------------------------- */

/* LK_BUSY: the store has references of its own already, which would change. */
enum lk_status lk_postgres_adopt(
    struct lk_store *base, const uint8_t reference_secret[LK_REFERENCE_KEY])
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_params params = {0};
    char hex[2 * LK_REFERENCE_KEY + 1];
    PGresult *result = NULL;

    if (!memcmp(base->reference_secret, reference_secret, LK_REFERENCE_KEY)) {
        return LK_OK;
    }
    for (int i = 0; i < LK_REFERENCE_KEY; i++) {
        snprintf(hex + 2 * i, 3, "%02x", reference_secret[i]);
    }
    lk_pg_add_text(&params, latchkey_slice(hex));
    enum lk_status status =
        run_import(store, "SELECT latchkey.adopt($1)", &params, &result);
    if (!status && !lk_pg_int(result, 0, 0)) {
        status = LK_BUSY;
    }
    PQclear(result);
    if (!status) {
        memcpy(base->reference_secret, reference_secret, LK_REFERENCE_KEY);
    }
    return status;
}
