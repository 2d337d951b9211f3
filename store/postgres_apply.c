/*
 * postgres_apply.c - a batch: its ops sorted by name and cut into transactions
 * that the server has room for, and the status of each op when one fails.
 *
 * An op is LK_OK only after the server has confirmed the commit that holds it.
 * If it is unknown whether a commit happened, claims with an owner and accepts
 * are sent again and get the outcome that they would have got; everything else
 * is LK_UNKNOWN. Nothing is decided by a read. A commit that is visible may
 * still be lost with the primary: latchkey.apply waits for the standby before
 * it decides anything because of it.
 *
 * The life of one transaction (decide_chunk):
 *
 *   fate       meaning                      then
 *   done       committed                    lk_pg_set_outcomes sets each op
 *   failed     rolled back by the server    a conflict is tried again, up to
 *                                           TRIES times; else refuse_failed
 *   not sent   the connection was lost      tried again on a new one
 *   unknown    perhaps committed            mark_unknown; what is repeatable is
 *                                           sent again
 */
#include "lib/sort.h"
#include "store/postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    TRIES = 8, /* of a transaction that met another one */
    TRIAL_MS = 1000,
};

#define MS_NS UINT64_C(1000000)

/* What applying one batch needs; on the stack of lk_postgres_apply. */
struct apply_run {
    struct lk_postgres *store;
    struct lk_pg_lane *lane;
    struct lk_batch *batch;
    uint64_t deadline_ns;
    bool worked; /* a transaction was committed */
};

static bool is_repeatable(const struct lk_op *op)
{
    return (op->event == LK_EVENT_CLAIM && op->owner.len) ||
           op->event == LK_EVENT_ACCEPT;
}

void lk_pg_sleep_random(struct lk_pg_lane *lane, unsigned most_ms)
{
    uint64_t x = lane->random;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    lane->random = x;
    struct timespec pause = {0, (long)(x % (most_ms * MS_NS)) + 500000};
    nanosleep(&pause, NULL);
}

/* ---- transactions ----------------------------------------------------- */

static bool is_state(const struct lk_pg_conn *conn, const char *state)
{
    return !strcmp(conn->sqlstate, state);
}

bool lk_pg_is_conflict(const struct lk_pg_conn *conn)
{
    return is_state(conn, "40001") || is_state(conn, "40P01") ||
           is_state(conn, "55P03");
}

/* Whether the server would refuse any transaction now, not just this one. */
static bool is_general(const struct lk_pg_conn *conn)
{
    return is_state(conn, "57014") || !strncmp(conn->sqlstate, "58", 2) ||
           !strncmp(conn->sqlstate, "XX", 2) ||
           !strncmp(conn->sqlstate, "42", 2) ||
           !strncmp(conn->sqlstate, "25", 2) || is_state(conn, "53100") ||
           is_state(conn, "26000") || is_state(conn, "0A000");
}

static bool has_time(const struct apply_run *run)
{
    return lk_pg_clock_ns() < run->deadline_ns;
}

static void note_failure(struct apply_run *run)
{
    atomic_fetch_add(&run->store->counters.failed, 1);
    lk_pg_set_failure(run->store, run->lane->conn.message);
}

/* A server that was demoted still replies, but accepts no writes; and prepared
 * statements may not fit a schema that has changed. */
void lk_pg_leave_unfit_server(struct lk_pg_conn *conn)
{
    if (is_state(conn, "25006") || is_state(conn, "26000") ||
        is_state(conn, "0A000") || is_state(conn, "42883") ||
        is_state(conn, "42P01") || is_state(conn, "42704")) {
        lk_pg_lost(conn, conn->message);
    }
}

static void decide_chunk(struct apply_run *run, struct lk_pg_item *items,
                         size_t count, bool again);

/* The server rolled the transaction back. If one op may be the cause, or the
 * transaction is too large, each half is tried by itself. */
static void refuse_failed(struct apply_run *run, struct lk_pg_item *items,
                          size_t count, bool again)
{
    enum lk_status status = again ? LK_UNKNOWN : LK_UNAVAILABLE;

    if (lk_pg_is_conflict(&run->lane->conn)) {
        lk_pg_refuse(
            items, count, status,
            "other transactions block the operation; send the same command "
            "again");
    } else if (is_general(&run->lane->conn)) {
        note_failure(run);
        lk_pg_leave_unfit_server(&run->lane->conn);
        lk_pg_refuse(items, count, status,
                     "the database failed; see the daemon's log");
    } else if (count > 1) {
        decide_chunk(run, items, count / 2, again);
        decide_chunk(run, items + count / 2, count - count / 2, again);
    } else {
        atomic_fetch_add(&run->store->counters.failed, 1);
        lk_pg_log(run->store, LK_PG_ERROR,
                  "the database refused an operation: %s (%s)",
                  run->lane->conn.message, run->lane->conn.sqlstate);
        lk_pg_refuse(items, count, status,
                     "the database refused the operation; see the daemon's "
                     "log");
    }
}

/* The outcome of the commit is unknown. Moves the ops that can be repeated to
 * the front and returns how many these are. */
static size_t mark_unknown(struct lk_pg_item *items, size_t count)
{
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        lk_pg_refuse_one(
            items[i].op, LK_UNKNOWN,
            "the connection to the database was lost while committing: "
            "it is not known whether the command took effect");
        if (is_repeatable(items[i].op)) {
            struct lk_pg_item item = items[i];
            item.again = true;
            items[i] = items[left];
            items[left++] = item;
        }
    }
    return left;
}

/*
 * Ops that may have been committed before, and whose operation is now locked:
 * most likely by our own earlier transaction, which has not ended yet. Moves
 * them to the front for another try and returns how many these are.
 */
static size_t keep_locked(struct lk_pg_item *items, size_t count)
{
    size_t left = 0;

    for (size_t i = 0; i < count; i++) {
        if (items[i].op->status == LK_AGAIN) {
            struct lk_pg_item item = items[i];
            lk_pg_refuse_one(item.op, LK_UNKNOWN,
                             "the connection to the database was lost while "
                             "committing: it is not known whether the command "
                             "took effect");
            items[i] = items[left];
            items[left++] = item;
        }
    }
    return left;
}

/*
 * Sets the status of every op. `again`: these may have been committed before,
 * so they stay LK_UNKNOWN until an outcome is known.
 */
static void decide_chunk(struct apply_run *run, struct lk_pg_item *items,
                         size_t count, bool again)
{
    struct lk_pg_conn *conn = &run->lane->conn;

    for (unsigned tries = 0; count;) {
        PGresult *result;
        if (lk_pg_ready(conn, run->deadline_ns)) {
            note_failure(run);
            if (!again) {
                lk_pg_refuse(items, count, LK_UNAVAILABLE,
                             "the database cannot be reached");
            }
            return;
        }
        enum lk_pg_fate fate =
            lk_pg_transact(run->lane, items, count, run->deadline_ns, &result);
        if (fate == LK_PG_DONE) {
            run->worked = true;
            lk_pg_set_outcomes(run->store, run->batch, items, count, result);
            PQclear(result);
            count = again ? keep_locked(items, count) : 0;
        } else if (fate == LK_PG_UNKNOWN) {
            note_failure(run);
            count = mark_unknown(items, count);
            again = true;
            conn->retry_ns = 0;
        } else if (fate == LK_PG_NOT_SENT) {
            conn->retry_ns = 0;
            lk_pg_refuse(items, count, again ? LK_UNKNOWN : LK_UNAVAILABLE,
                         "the connection to the database was lost");
        } else if (!lk_pg_is_conflict(conn) || ++tries >= TRIES) {
            refuse_failed(run, items, count, again);
            return;
        }
        if (count && !has_time(run)) {
            if (!again) {
                lk_pg_refuse(items, count, LK_UNAVAILABLE,
                             "the database did not reply in time");
            }
            return;
        }
        if (count && fate != LK_PG_UNKNOWN) {
            lk_pg_sleep_random(run->lane, tries < 4 ? 2u << tries : 32);
        }
    }
}

/* ---- the batch -------------------------------------------------------- */

static enum lk_status as_text(struct lk_buf *scratch, struct lk_slice bytes,
                              size_t *offset, size_t *len)
{
    *offset = scratch->len;
    enum lk_status status = lk_pg_escape(bytes, scratch);
    *len = scratch->len - *offset;
    return status;
}

/* The name as text: in the op itself where it is that, else in `scratch`. */
static enum lk_status name_item(struct lk_buf *scratch, struct lk_pg_item *item)
{
    struct lk_slice *parts[] = {&item->name.tenant, &item->name.scope,
                                &item->name.key};

    item->name = item->op->name;
    for (int i = 0; i < 3; i++) {
        size_t offset, len;
        if (lk_pg_is_plain(*parts[i])) {
            continue;
        }
        enum lk_status status = as_text(scratch, *parts[i], &offset, &len);
        if (status) {
            return status;
        }
        *parts[i] = (struct lk_slice){scratch->data + offset, len};
    }
    return LK_OK;
}

/* Reserves what the escaped names of a batch can need, so that the buffer does
 * not move. */
static enum lk_status reserve_names(struct lk_buf *scratch,
                                    const struct lk_batch *batch)
{
    size_t most = 1;

    for (size_t i = 0; i < batch->count; i++) {
        const struct lk_name *name = &batch->ops[i]->name;
        most += 4 * (name->tenant.len + name->scope.len + name->key.len) + 3;
    }
    scratch->len = 0;
    return latchkey_buf_reserve(scratch, most);
}

/* LK_TOO_LARGE: the op is refused. Else item->bytes is set. */
static enum lk_status check_size(struct lk_pg_item *item)
{
    struct lk_op *op = item->op;
    size_t name =
        item->name.tenant.len + item->name.scope.len + item->name.key.len;
    size_t content = op->call
                         ? op->call->headers.len + op->call->body.len
                         : op->response.headers.len + op->response.body.len;

    if (name > LK_PG_NAME_MAX) {
        lk_pg_refuse_one(
            op, LK_TOO_LARGE,
            "tenant, scope and key together are longer than the database "
            "can index");
        return LK_TOO_LARGE;
    }
    if (content > LK_PG_RESPONSE_MAX) {
        lk_pg_refuse_one(
            op, LK_TOO_LARGE,
            op->call ? "the job is larger than the store can hold"
                     : "the response is larger than the store can hold; "
                       "complete with OMIT");
        return LK_TOO_LARGE;
    }
    item->bytes = name + content + op->why.len + 512 +
                  (op->call ? op->call->path.len : 0);
    return LK_OK;
}

static int compare_slices(struct lk_slice a, struct lk_slice b)
{
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len ? memcmp(a.data, b.data, len) : 0;

    return order ? order : (a.len > b.len) - (a.len < b.len);
}

/* As COLLATE "C" does: all batches lock their rows in the same order. */
static int compare_items(const void *left, const void *right,
                         const void *context)
{
    const struct lk_pg_item *a = left, *b = right;
    int order = compare_slices(a->name.tenant, b->name.tenant);

    (void)context;
    if (!order) {
        order = compare_slices(a->name.scope, b->name.scope);
    }
    return order ? order : compare_slices(a->name.key, b->name.key);
}

/* How many of them make one transaction. */
static size_t chunk_of(struct apply_run *run, const struct lk_pg_item *items,
                       size_t count)
{
    size_t most = atomic_load(&run->store->lock_share);
    size_t bytes = 0;
    size_t names = 0;
    size_t i;

    for (i = 0; i < count; i++) {
        bytes += items[i].bytes;
        names += !i || compare_items(&items[i - 1], &items[i], NULL);
        if (i && (bytes > LK_PG_CHUNK_BYTES || names > most)) {
            break;
        }
    }
    return i;
}

static void decide_batch(struct apply_run *run, struct lk_pg_item *items)
{
    struct lk_buf *scratch = &run->lane->scratch;
    size_t count = 0;
    enum lk_status status = reserve_names(scratch, run->batch);

    for (size_t i = 0; i < run->batch->count; i++) {
        struct lk_pg_item item = {.op = run->batch->ops[i]};
        lk_pg_refuse_one(item.op, LK_UNAVAILABLE, "out of memory");
        if (!status) {
            status = name_item(scratch, &item);
        }
        if (!status && !check_size(&item)) {
            items[count++] = item;
        }
    }
    if (!status) {
        status = lk_sort(items, count, sizeof(*items), compare_items, NULL);
    }
    for (size_t at = 0; !status && at < count;) {
        size_t chunk = chunk_of(run, items + at, count - at);
        decide_chunk(run, items + at, chunk, false);
        at += chunk;
    }
    if (scratch->cap > 1024 * 1024) {
        latchkey_buf_free(scratch);
    }
}

/* So that the first replay finds it in the cache. The verdict is DONE only
 * after the commit is confirmed, and only for the completion whose response was
 * stored: an unknown one is LK_UNKNOWN, a late one KEPT or STALE. */
static void cache_completed(struct lk_postgres *store,
                            const struct lk_batch *batch)
{
    for (size_t i = 0; store->cache && i < batch->count; i++) {
        const struct lk_op *op = batch->ops[i];
        if (op->event == LK_EVENT_COMPLETE && !op->status &&
            op->out.verdict == LK_VERDICT_DONE) {
            lk_response_cache_completed(store->cache, op);
        }
    }
}

/* The cache drops the response before the eviction is acknowledged. If the
 * cache is away, the response stays, but no one asks for its token any more. */
static void forget_evicted(struct lk_postgres *store,
                           const struct lk_batch *batch)
{
    for (size_t i = 0; store->cache && i < batch->count; i++) {
        const struct lk_op *op = batch->ops[i];
        if (op->event == LK_EVENT_EVICT && !op->status &&
            op->out.verdict == LK_VERDICT_DONE &&
            lk_response_cache_forget(store->cache, &op->out.token, 1)) {
            lk_pg_log(store, LK_PG_WARN,
                      "the cache could not drop an evicted response");
        }
    }
}

static bool is_unavailable(struct lk_postgres *store)
{
    pthread_mutex_lock(&store->lock);
    bool unavailable = store->unavailable;
    pthread_mutex_unlock(&store->lock);
    return unavailable;
}

/*
 * The daemon may send nothing while the store reports that it is unavailable.
 * So a claim is tried and rolled back.
 */
static void try_claim(struct lk_postgres *store, struct lk_pg_conn *conn)
{
    static const char trial[] =
        "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; "
        "SELECT latchkey.apply('{0}', '{latchkey}', '{trial}', '{trial}', "
        "'{trial}', '{\"\"}', '{1}', '{1}', '{0}', '{0}', '{0}', '{\"\"}', "
        "'{\"\"}', '{\"\"}', '{\"\"}', '{\"\"}', '{}', '{}', '{}', '{}', "
        "'{}', 1); ROLLBACK";
    uint64_t deadline_ns = lk_pg_clock_ns() + TRIAL_MS * MS_NS;

    if (!lk_pg_script(conn, trial, deadline_ns)) {
        lk_pg_set_failure(store, NULL);
        return;
    }
    lk_pg_set_failure(store, conn->message);
    lk_pg_leave_unfit_server(conn);
    if (conn->pg && lk_pg_script(conn, "ROLLBACK", deadline_ns)) {
        lk_pg_close(conn);
    }
}

void lk_postgres_apply(struct lk_store *base, struct lk_batch *batch)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct apply_run run = {
        .store = store,
        .lane = &store->lanes[batch->lane % (base->lanes + base->job_lanes)],
        .batch = batch,
        .deadline_ns = lk_pg_deadline(store),
    };
    struct lk_pg_conn *conn = &run.lane->conn;

    if (batch->keep) {
        lk_pg_keep_turn(store);
    }
    enum lk_status status = lk_pg_ready(conn, run.deadline_ns);
    if (status) {
        if (batch->lane < base->lanes) { /* job lanes do not report */
            lk_pg_set_failure(store, conn->message);
        }
        for (size_t i = 0; i < batch->count; i++) {
            lk_pg_refuse_one(batch->ops[i], LK_UNAVAILABLE,
                             "the database cannot be reached");
        }
    } else if (batch->count) {
        struct lk_pg_item *items = calloc(batch->count, sizeof(*items));
        for (size_t i = 0; !items && i < batch->count; i++) {
            lk_pg_refuse_one(batch->ops[i], LK_UNAVAILABLE, "out of memory");
        }
        if (items) {
            decide_batch(&run, items);
            cache_completed(store, batch);
            forget_evicted(store, batch);
        }
        free(items);
    }
    if (batch->job_batch) {
        lk_pg_job_batch(store, run.lane, batch, run.deadline_ns);
    }
    if (run.worked) {
        lk_pg_set_failure(store, NULL);
    } else if (!status && !batch->count && (batch->keep || conn->reconnected) &&
               is_unavailable(store)) {
        try_claim(store, conn);
    }
    batch->settle_all |= conn->reconnected;
    conn->reconnected = false;
    lk_pg_move_settled(store, batch);
    atomic_fetch_add(&store->counters.batches, batch->count != 0);
    atomic_fetch_add(&store->counters.batch_ops, batch->count);
}

/* ---- notes ------------------------------------------------------------ */

enum { NOTE_TEXTS = 6 };

/* What is empty is null, as where an operator acts on a target. */
enum lk_status lk_postgres_note(struct lk_store *base,
                                const struct lk_audit_entry *entry)
{
    struct lk_postgres *store = (struct lk_postgres *)base;
    struct lk_pg_conn *conn = &store->lanes[0].conn;
    struct lk_slice slices[NOTE_TEXTS] = {entry->who,        entry->why,
                                          entry->action,     entry->name.tenant,
                                          entry->name.scope, entry->name.key};
    struct lk_buf texts[NOTE_TEXTS] = {{0}};
    struct lk_pg_params params = {0};
    PGresult *result = NULL;
    uint64_t deadline_ns = lk_pg_deadline(store);
    enum lk_status status = LK_OK;

    for (int i = 0; i < NOTE_TEXTS && !status; i++) {
        status = lk_pg_escape(slices[i], &texts[i]);
        lk_pg_add_text(&params, latchkey_buf_slice(&texts[i]));
    }
    lk_pg_add_int(&params, (int64_t)entry->token);
    if (!status && lk_pg_ready(conn, deadline_ns)) {
        status = LK_UNAVAILABLE;
    }
    if (!status) {
        status = lk_pg_run(conn,
                           "INSERT INTO latchkey.audit (at_ms, who, why, "
                           "action, tenant, scope, key, token) VALUES "
                           "(latchkey.now_ms(), $1, $2, $3, nullif($4, ''), "
                           "nullif($5, ''), nullif($6, ''), nullif($7, 0))",
                           &params, deadline_ns, &result);
        PQclear(result);
    }
    for (int i = 0; i < NOTE_TEXTS; i++) {
        latchkey_buf_free(&texts[i]);
    }
    return status == LK_CLOSED || status == LK_TIMEOUT ? LK_UNKNOWN : status;
}
