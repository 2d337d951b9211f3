/*
 * sqlite_apply.c - one batch: decide every op, write the rows, and make them
 * durable with one sync.
 *
 * The life of a batch; the store thread does all of it:
 *
 *   step       rows             index          op->status
 *   decide     not committed    overlay only   set, not yet valid
 *   commit     durable          overlay only   set, not yet valid
 *   publish    durable          merged         valid: the caller replies
 *   failure    rolled back      overlay gone   the same for every op
 *   unknown    perhaps durable  overlay stays  LK_UNKNOWN for every op; the
 *                                              store is reopened before the
 *                                              next batch
 *
 * The invariant: apply returns an op with LK_OK only after the commit that
 * contains everything its outcome depends on, and the index shows a change only
 * then. If anything fails before, the whole batch is refused: an outcome may
 * depend on an earlier op of the same batch.
 *
 * The overlay has the index entries that the batch has changed; the ops of the
 * batch see them, other threads do not.
 */
#include "lib/time.h"
#include "store/fault.h"
#include "store/sqlite.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    MOMENT_MS = 10 * 1000, /* how often a busy store writes its time */
    PROBE_MS = 100,        /* how often a full disk is tried again */
};

/* Drops every outcome of the batch and sets the same status for all of it:
 * what went wrong, or LK_OK before the batch is decided again. */
static void reset_batch(struct lk_batch *batch, enum lk_status status,
                        const char *error)
{
    for (size_t i = 0; i < batch->count; i++) {
        lk_op_clear(batch->ops[i]);
        batch->ops[i]->out = (struct lk_outcome){0};
        batch->ops[i]->status = status;
        batch->ops[i]->error = error;
    }
    batch->settled_count = 0;
    batch->queued = false;
    if (batch->job_batch) {
        lk_job_batch_clear(batch->job_batch);
        batch->job_batch->status = status;
        batch->job_batch->error = error;
    }
}

/* Sets the time of a batch. Until the index shows what the batch has decided,
 * or the batch is rolled back, no thread sees a later time. */
static uint64_t freeze_time(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->index_lock);
    uint64_t now = lk_clock_now(&store->clock);
    store->last_ms = now > store->last_ms ? now : store->last_ms;
    store->frozen_ms = store->last_ms;
    pthread_mutex_unlock(&store->index_lock);
    return store->last_ms;
}

/* For a batch that has changed nothing. Not after a commit that may have
 * happened: then time and overlay stay, the store is reopened before the next
 * batch, and lk_sqlite_load compares what it reads with the overlay. */
static void abandon_batch(struct lk_sqlite *store)
{
    lk_overlay_drop(&store->overlay);
    pthread_mutex_lock(&store->index_lock);
    store->frozen_ms = 0;
    pthread_mutex_unlock(&store->index_lock);
}

/* Writes the time and the boot that it belongs to, by which the clock is judged
 * at the next start. */
static enum lk_status store_moment(struct lk_sqlite *store)
{
    struct lk_moment moment = lk_clock_moment(&store->clock);
    enum lk_status status = lk_sqlite_begin(store);

    if (!status) {
        status = lk_meta_put_bytes(store, "moment", &moment, sizeof(moment));
    }
    if (!status) {
        store->moment_at_ms = moment.at_ms;
    }
    return status;
}

/* A batch that writes anyway takes it along more often than an idle store, for
 * which it would be a sync of its own. */
static bool moment_is_due(const struct lk_sqlite *store, uint64_t now)
{
    uint64_t age = now - store->moment_at_ms;

    return store->writing ? age >= MOMENT_MS : age >= 6 * (uint64_t)MOMENT_MS;
}

/* Goes back to what is durable, except for the overlay. False: the rollback
 * failed too. */
static bool roll_back_batch(struct lk_sqlite *store)
{
    lk_counts_roll_back(store);
    store->writing = store->committing = false;
    store->reaper = store->reaper_durable;
    return sqlite3_get_autocommit(store->writer) ||
           !lk_sqlite_run(store, LK_STATEMENT_ROLLBACK);
}

#define UNREADABLE "stored data could not be read; the store is being reopened"

/* The reason of a failure; valid until the writer is used again. A failed read
 * is not damage yet: the reopened store decides that. */
static const char *explain_failure(const struct lk_sqlite *store)
{
    return lk_sqlite_status(sqlite3_errcode(store->writer)) == LK_CORRUPT
               ? UNREADABLE
               : sqlite3_errmsg(store->writer);
}

/*
 * Nothing of the batch is acknowledged. No space, or no memory before the
 * commit: the batch is rolled back, and the store continues. Damaged data
 * before the commit: it is rolled back, and the store is reopened. Anything
 * else: it is unknown what reached the disk (LK_UNKNOWN), and the store is
 * reopened: its index is built again from the disk before the next decision.
 */
static void fail_batch(struct lk_sqlite *store, struct lk_batch *batch,
                       enum lk_status status)
{
    bool committing = store->committing;
    char why[128];

    snprintf(why, sizeof(why), "%s", explain_failure(store));
    bool rolled_back = roll_back_batch(store);
    atomic_fetch_add(&store->counters.syncs_failed, 1);
    if (rolled_back && status == LK_FULL) {
        abandon_batch(store);
        lk_sqlite_set_failure(store, LK_HEALTH_FULL,
                              "the disk is full; make room, and the store "
                              "continues by itself");
        reset_batch(batch, LK_UNAVAILABLE, "the disk is full");
    } else if (rolled_back && status == LK_NOMEM && !committing) {
        abandon_batch(store);
        reset_batch(batch, LK_UNAVAILABLE, "out of memory");
    } else if (rolled_back && status == LK_CORRUPT && !committing) {
        abandon_batch(store);
        lk_sqlite_set_failure(store, LK_HEALTH_BROKEN, UNREADABLE);
        reset_batch(batch, LK_UNAVAILABLE, UNREADABLE);
    } else {
        lk_sqlite_set_failure(store, LK_HEALTH_BROKEN, why);
        reset_batch(batch, LK_UNKNOWN,
                    "a write to the store failed: it is not known whether the "
                    "command took effect");
    }
}

/* The one sync of a batch. A batch that has written nothing needs none. After a
 * failure `committing` stays set: it is not known what reached the disk. */
static enum lk_status commit_open(struct lk_sqlite *store)
{
    if (!store->writing) {
        return LK_OK;
    }
    lk_fault_point("before_append");
    store->committing = true;
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_COMMIT);
    if (!status) {
        store->writing = store->committing = false;
    }
    return status;
}

/* The commit has happened: from now on every thread may see it. */
static void publish_batch(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->index_lock);
    lk_overlay_merge(&store->overlay, &store->index);
    lk_counts_publish(store);
    store->frozen_ms = 0;
    pthread_mutex_unlock(&store->index_lock);
    store->reaper_durable = store->reaper;
    atomic_store_explicit(&store->last_token, store->next_token - 1,
                          memory_order_relaxed);
}

/* Reserves memory before the commit, so that publish_batch cannot fail. */
static enum lk_status reserve_index(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->index_lock);
    enum lk_status status = lk_index_reserve(
        &store->index, store->overlay.entries, store->overlay.count);
    pthread_mutex_unlock(&store->index_lock);
    return status;
}

static void note_free_space(struct lk_sqlite *store)
{
    int64_t pages = 0;

    if (!lk_sqlite_number(store->writer, "PRAGMA freelist_count", &pages)) {
        atomic_store(&store->counters.free_bytes,
                     (uint64_t)pages * LK_PAGE_BYTES);
    }
}

/* Everything is durable in the log already, so most failures can wait for the
 * next try. */
static void checkpoint_log(struct lk_sqlite *store, int mode)
{
    int code = sqlite3_wal_checkpoint_v2(store->writer, NULL, mode, NULL, NULL);

    store->wal_tried = store->wal_frames;
    note_free_space(store);
    atomic_fetch_add(&store->counters.checkpoints, 1);
    if (code == SQLITE_OK && mode == SQLITE_CHECKPOINT_TRUNCATE) {
        store->scrub = false;
    }
    if (code == SQLITE_OK || code == SQLITE_BUSY || code == SQLITE_FULL ||
        code == SQLITE_NOMEM) {
        return; /* the log holds everything; try again later */
    }
    lk_sqlite_set_failure(store, LK_HEALTH_BROKEN, explain_failure(store));
}

/*
 * An evicted response is still in the log, and in the pages that the log
 * replaces: the log is checkpointed and truncated before the eviction is
 * acknowledged, while the reader is locked out. A running VERIFY or BACKUP, or
 * a long read, uses the log: then the next batch tries again, and there is one
 * at every sweep.
 */
static void scrub_log(struct lk_sqlite *store)
{
    struct timespec until = lk_wall_after_ms(1000);

    if (!pthread_mutex_timedlock(&store->reader_lock, &until)) {
        checkpoint_log(store, SQLITE_CHECKPOINT_TRUNCATE);
        pthread_mutex_unlock(&store->reader_lock);
    }
}

/*
 * Copies the log into the database once it is long enough. While a reader
 * holds an old view the log cannot start over; then the next try waits for
 * as many pages again.
 */
static void checkpoint(struct lk_sqlite *store)
{
    int limit = (int)store->config.checkpoint_pages;

    if (store->scrub) {
        scrub_log(store);
    }
    if (store->wal_frames < store->wal_tried) {
        store->wal_tried = 0; /* the log has started over */
    }
    if (store->wal_frames - store->wal_tried >= limit) {
        checkpoint_log(store, SQLITE_CHECKPOINT_PASSIVE);
    }
}

/* Under commit_lock rows and index change together: a reader that holds the
 * lock sees both as they were, or both as they are. */
static enum lk_status commit_batch(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->commit_lock);
    enum lk_status status = reserve_index(store);
    if (!status) {
        status = commit_open(store);
    }
    if (!status) {
        lk_fault_point("after_commit");
        publish_batch(store);
    }
    pthread_mutex_unlock(&store->commit_lock);
    return status;
}

/* True: the store can decide. If not, tries to repair that, at most every
 * PROBE_MS. */
static bool recover_store(struct lk_sqlite *store)
{
    int health = atomic_load(&store->health);
    uint64_t now = lk_clock_now(&store->clock);

    if (health == LK_HEALTH_READY) {
        return true;
    }
    if (now - store->probe_at_ms < PROBE_MS) {
        return false;
    }
    store->probe_at_ms = now;
    if (health == LK_HEALTH_FULL) {
        enum lk_status status = store_moment(store);
        if (!status) {
            status = commit_batch(store);
        }
        if (!status) {
            lk_sqlite_set_failure(store, LK_HEALTH_READY, NULL);
            return true;
        }
        if (!roll_back_batch(store) || status != LK_FULL) {
            lk_sqlite_set_failure(store, LK_HEALTH_BROKEN,
                                  sqlite3_errmsg(store->writer));
        }
        return false;
    }
    return !lk_sqlite_reopen(store);
}

/* The order: ops of clients, the courier's part, then the keeper; each sees
 * what those before have changed. Any status but LK_OK is one of the whole
 * batch. */
static enum lk_status decide_all(struct lk_sqlite *store,
                                 struct lk_batch *batch, uint64_t now)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < batch->count; i++) {
        lk_index_prefetch(&store->index, batch->ops[i]->hash);
    }
    for (size_t i = 0; i < batch->count && !status; i++) {
        status = lk_sqlite_decide(store, batch, batch->ops[i], now);
    }
    if (!status && batch->job_batch) {
        status = lk_sqlite_job_batch(store, batch, now);
    }
    if (!status && store->counts.changed) {
        status = lk_counts_settle(store);
    }
    if (!status && batch->keep) {
        status = lk_sqlite_keep(store, batch, now);
    }
    if (!status && moment_is_due(store, now)) {
        status = store_moment(store);
    }
    return status;
}

bool lk_sqlite_suspect(struct lk_sqlite *store, uint64_t token)
{
    if (token == store->damaged ||
        (store->suspect_ms &&
         store->last_ms - store->suspect_ms < LK_SUSPECT_MS)) {
        store->damaged = token;
        return false;
    }
    store->suspect_ms = store->last_ms;
    return true;
}

/* Decides the batch again, from the start, without the reaper: damage that only
 * the reaper meets must not stop the claims. */
static enum lk_status decide_without_reaper(struct lk_sqlite *store,
                                            struct lk_batch *batch,
                                            uint64_t now)
{
    lk_sqlite_log(store, 0,
                  "the reaper found damaged rows and tries again in %d min: "
                  "%s; run latchkey verify",
                  LK_SUSPECT_MS / 60000, sqlite3_errmsg(store->writer));
    if (!roll_back_batch(store)) {
        return LK_CORRUPT;
    }
    lk_overlay_drop(&store->overlay);
    reset_batch(batch, LK_OK, NULL);
    return decide_all(store, batch, now);
}

/* Store thread. Never fails as such: every op, and the job batch, has its
 * status. settle_all after a reopening: it is not known what settled. */
void lk_sqlite_apply(struct lk_store *base, struct lk_batch *batch)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;

    if (!recover_store(store)) {
        reset_batch(batch, LK_UNAVAILABLE,
                    atomic_load(&store->health) == LK_HEALTH_FULL
                        ? "the disk is full"
                        : "the store is being reopened after a failed write");
        return;
    }
    batch->settle_all = store->reopened;
    store->reopened = false;
    uint64_t now = freeze_time(store);
    uint64_t rest = store->reaper_rest_ms;
    enum lk_status status = decide_all(store, batch, now);
    if (status == LK_CORRUPT && store->reaper_rest_ms != rest) {
        if (lk_sqlite_suspect(store, LK_SUSPECT_REAPER)) {
            store->reaper_rest_ms = 0;
        } else {
            status = decide_without_reaper(store, batch, now);
        }
    }
    if (!status) {
        status = commit_batch(store);
    }
    if (status) {
        fail_batch(store, batch, status);
        return;
    }
    for (size_t i = 0; i < batch->count; i++) {
        assert(batch->ops[i]->status ||
               lk_outcome_is_consistent(&batch->ops[i]->out));
    }
    if (batch->job_batch) {
        lk_job_batch_fault_points(batch->job_batch);
    }
    atomic_fetch_add(&store->counters.batches, batch->count != 0);
    atomic_fetch_add(&store->counters.batch_ops, batch->count);
    checkpoint(store);
}

enum lk_status lk_sqlite_change(struct lk_sqlite *store,
                                enum lk_status (*write)(struct lk_sqlite *,
                                                        void *),
                                void *context)
{
    struct lk_batch none = {0};

    if (!recover_store(store)) {
        return LK_UNAVAILABLE;
    }
    (void)freeze_time(store);
    enum lk_status status = write(store, context);
    if (!status) {
        status = commit_batch(store);
    }
    if (status) {
        fail_batch(store, &none, status);
        return status;
    }
    checkpoint(store);
    return LK_OK;
}

static enum lk_status write_note(struct lk_sqlite *store, void *context)
{
    struct lk_audit_entry *entry = context;

    entry->at_ms = store->last_ms;
    return lk_sqlite_audit_row(store, entry);
}

enum lk_status lk_sqlite_note(struct lk_store *base,
                              const struct lk_audit_entry *entry)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_audit_entry copy = *entry;

    return lk_sqlite_change(store, write_note, &copy);
}

/* The audit entry comes first: no clock is accepted without one. */
enum lk_status lk_sqlite_accept_clock(struct lk_store *base,
                                      struct lk_slice who, struct lk_slice why)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_batch none = {0};
    const struct lk_audit_entry entry = {
        .action = LK_SLICE("accept clock"), .who = who, .why = why};
    enum lk_status status = lk_sqlite_note(base, &entry);

    if (status) {
        return status;
    }
    uint64_t hold = atomic_load(&store->hold_until_ms);
    uint64_t before = lk_clock_now(&store->clock);
    lk_clock_accept(&store->clock);
    status = store_moment(store);
    if (!status && hold > before) {
        /* The hold of a restored copy keeps its length. */
        hold += lk_clock_now(&store->clock) - before;
        atomic_store(&store->hold_until_ms, hold);
        status = lk_meta_put(store, "hold_until", (int64_t)hold);
    }
    if (!status) {
        status = commit_batch(store);
    }
    if (status) {
        fail_batch(store, &none, status);
    }
    return status;
}

/* ---- rows --------------------------------------------------------------- */

enum lk_status lk_sqlite_run(struct lk_sqlite *store,
                             enum lk_statement statement)
{
    int code = sqlite3_step(store->statements[statement]);

    sqlite3_reset(store->statements[statement]);
    return lk_sqlite_status(code);
}

/* Begins the transaction with the first write, so that a batch that only reads
 * has none. */
enum lk_status lk_sqlite_begin(struct lk_sqlite *store)
{
    if (store->writing) {
        return LK_OK;
    }
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_BEGIN);
    store->writing = !status;
    return status;
}

/* Nothing is copied: the slice has to outlive the statement's run. */
void lk_bind_text(sqlite3_stmt *statement, int column, struct lk_slice slice)
{
    sqlite3_bind_text(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

void lk_bind_bytes(sqlite3_stmt *statement, int column, struct lk_slice slice)
{
    sqlite3_bind_blob(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

/* NULL is stored for the usual value: the token itself, no KEEP. */
static void bind_other(sqlite3_stmt *statement, int column, uint64_t number,
                       uint64_t usual)
{
    if (number == usual) {
        sqlite3_bind_null(statement, column);
    } else {
        sqlite3_bind_int64(statement, column, (int64_t)number);
    }
}

/* LK_NOT_FOUND: there is no claim with this token. `same_owner` is false for an
 * empty owner. */
enum lk_status lk_sqlite_find_row(struct lk_sqlite *store, uint64_t token,
                                  struct lk_slice owner,
                                  struct lk_claim_row *row)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ROW];

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        uint64_t number = (uint64_t)sqlite3_column_int64(statement, 0);
        uint64_t generation = (uint64_t)sqlite3_column_int64(statement, 1);
        row->number = lk_claim_number(number, token);
        row->generation = generation ? generation : token;
        row->attempt = (uint64_t)sqlite3_column_int64(statement, 2);
        row->ttl = (uint64_t)sqlite3_column_int64(statement, 3);
        row->keep = (uint64_t)sqlite3_column_int64(statement, 4);
        struct lk_slice stored = lk_column(statement, 5);
        row->same_owner = owner.len && latchkey_slice_equal(stored, owner);
    }
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
}

/* The same for a token that the index has: then the row must exist. */
enum lk_status lk_sqlite_row(struct lk_sqlite *store, uint64_t token,
                             struct lk_slice owner, struct lk_claim_row *row)
{
    enum lk_status status = lk_sqlite_find_row(store, token, owner, row);

    return status == LK_NOT_FOUND ? LK_CORRUPT : status;
}

enum lk_status lk_sqlite_claim(struct lk_sqlite *store, const struct lk_op *op,
                               const struct lk_entry *entry,
                               const struct lk_claim_row *row, uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_CLAIM];
    enum lk_status status = lk_sqlite_begin(store);

    assert(entry->token && entry->token <= LK_REFERENCE_MAX);
    assert(row->number && row->number <= entry->token);
    assert(entry->state == LK_STATE_ACCEPTED || entry->deadline >= now);
    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->token);
    sqlite3_bind_blob(statement, 2, &op->hash, sizeof(op->hash), SQLITE_STATIC);
    bind_other(statement, 3, row->number, entry->token);
    bind_other(statement, 4, row->generation, entry->token);
    sqlite3_bind_int64(statement, 5, (int64_t)row->attempt);
    sqlite3_bind_int64(statement, 6, (int64_t)now);
    sqlite3_bind_int64(statement, 7,
                       entry->state == LK_STATE_ACCEPTED
                           ? (int64_t)LK_LOCK_NONE
                           : (int64_t)(entry->deadline - now));
    sqlite3_bind_int64(statement, 8, (int64_t)row->ttl);
    bind_other(statement, 9, row->keep, 0);
    lk_bind_bytes(statement, 10, op->owner);
    lk_bind_bytes(statement, 11, op->fingerprint);
    lk_bind_text(statement, 12, op->name.tenant);
    lk_bind_text(statement, 13, op->name.scope);
    lk_bind_text(statement, 14, op->name.key);
    return lk_sqlite_run(store, LK_STATEMENT_CLAIM);
}

/* The entry changes for the rest of this batch; the reaper's account
 * follows. */
enum lk_status lk_sqlite_replace(struct lk_sqlite *store,
                                 const struct lk_entry *before,
                                 const struct lk_entry *after)
{
    lk_reaper_account(&store->reaper, before, after);
    return lk_overlay_put(&store->overlay, after);
}

/* Writes the outcome of the current claim, replacing an earlier one, and
 * changes the entry with it. */
enum lk_status lk_sqlite_outcome(struct lk_sqlite *store,
                                 const struct lk_entry *before,
                                 enum lk_row_kind kind, uint64_t until)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_OUTCOME];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    assert(before->token && kind >= LK_ROW_COMPLETE && kind <= LK_ROW_RETURN);
    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)before->token);
    sqlite3_bind_int(statement, 2, kind);
    sqlite3_bind_int64(statement, 3, (int64_t)store->last_ms);
    sqlite3_bind_int64(statement, 4, (int64_t)until);
    sqlite3_bind_blob(statement, 5, &before->hash, sizeof(before->hash),
                      SQLITE_STATIC);
    status = lk_sqlite_run(store, LK_STATEMENT_OUTCOME);
    lk_entry_apply(&after, kind, until);
    return status ? status : lk_sqlite_replace(store, before, &after);
}

enum lk_status lk_sqlite_keep_row(struct lk_sqlite *store,
                                  const struct lk_entry *before,
                                  uint64_t ttl_ms)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_KEEP];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)ttl_ms);
    sqlite3_bind_int64(statement, 2, (int64_t)before->token);
    status = lk_sqlite_run(store, LK_STATEMENT_KEEP);
    after.keeps = true;
    return status ? status : lk_sqlite_replace(store, before, &after);
}

enum lk_status lk_sqlite_reason(struct lk_sqlite *store, uint64_t token,
                                struct lk_stored **stored)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_REASON];
    const struct lk_response none = {0};

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    int code = sqlite3_step(statement);
    enum lk_status status =
        code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
    if (!status && !sqlite3_column_int(statement, 2)) {
        status = LK_CORRUPT;
    }
    if (!status) {
        *stored =
            lk_stored_make(token, (uint64_t)sqlite3_column_int64(statement, 0),
                           &none, lk_column(statement, 1));
        status = *stored ? LK_OK : LK_NOMEM;
    }
    sqlite3_reset(statement);
    return status;
}

/* `response` NULL: only a reason, of an uncertain operation. */
enum lk_status lk_sqlite_write_stored(struct lk_sqlite *store, uint64_t token,
                                      uint64_t now, struct lk_slice reason,
                                      const struct lk_response *response)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_STORED];
    struct lk_buf *encoded = &store->scratch;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)token);
    sqlite3_bind_int64(statement, 2, (int64_t)now);
    if (reason.len) {
        lk_bind_text(statement, 3, reason);
    } else {
        sqlite3_bind_null(statement, 3);
    }
    encoded->len = 0;
    if (!response) {
        sqlite3_bind_null(statement, 4);
        return lk_sqlite_run(store, LK_STATEMENT_STORED);
    }
    status = latchkey_response_encode(response, encoded);
    if (!status) {
        /* A value that SQLite refuses must not become NULL. */
        status = lk_sqlite_status(sqlite3_bind_blob64(
            statement, 4, encoded->data, encoded->len, SQLITE_STATIC));
    }
    return status ? status : lk_sqlite_run(store, LK_STATEMENT_STORED);
}

enum lk_status lk_sqlite_import_row(struct lk_sqlite *store,
                                    const struct lk_operation *operation,
                                    const struct lk_entry *entry, uint64_t at)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_IMPORT];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->token);
    sqlite3_bind_blob(statement, 2, &entry->hash, sizeof(entry->hash),
                      SQLITE_STATIC);
    bind_other(statement, 3, entry->number, entry->token);
    bind_other(statement, 4,
               operation->generation ? operation->generation : entry->token,
               entry->token);
    sqlite3_bind_int64(statement, 5, (int64_t)operation->attempt);
    sqlite3_bind_int64(statement, 6, (int64_t)at);
    sqlite3_bind_int64(
        statement, 7,
        (int64_t)(entry->deadline > at ? entry->deadline - at : 0));
    sqlite3_bind_int64(statement, 8, (int64_t)operation->ttl_ms);
    if (operation->keep_ms) {
        sqlite3_bind_int64(statement, 9, (int64_t)operation->keep_ms);
    } else {
        sqlite3_bind_null(statement, 9);
    }
    lk_bind_bytes(statement, 10, operation->owner);
    lk_bind_bytes(statement, 11, operation->fingerprint);
    lk_bind_text(statement, 12, operation->name.tenant);
    lk_bind_text(statement, 13, operation->name.scope);
    lk_bind_text(statement, 14, operation->name.key);
    return lk_sqlite_run(store, LK_STATEMENT_IMPORT);
}

enum lk_status lk_sqlite_audit_row(struct lk_sqlite *store,
                                   const struct lk_audit_entry *entry)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_AUDIT];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)entry->at_ms);
    lk_bind_text(statement, 2, entry->who);
    lk_bind_text(statement, 3, entry->why);
    lk_bind_text(statement, 4, entry->action);
    lk_bind_text(statement, 5, entry->name.tenant);
    lk_bind_text(statement, 6, entry->name.scope);
    lk_bind_text(statement, 7, entry->name.key);
    sqlite3_bind_int64(statement, 8, (int64_t)entry->token);
    return lk_sqlite_run(store, LK_STATEMENT_AUDIT);
}
