/*
 * sqlite_apply.c - one batch: decide every operation, write what changes, and
 * make it durable with one sync.
 *
 * The invariant: an operation's status becomes LK_OK only after the commit
 * that holds everything its outcome rests on, and the index shows a change
 * only then. If anything fails before, the whole batch is refused: an outcome
 * may rest on an earlier operation of the same batch.
 */
#include "store/fault.h"
#include "store/sqlite.h"

#include <string.h>

enum {
    MOMENT_MS = 10 * 1000, /* how often a busy store notes the time */
    PROBE_MS = 100,        /* how often a full disk is tried again */
};

enum lk_status lk_sqlite_run(struct lk_sqlite *store,
                             enum lk_statement statement)
{
    int code = sqlite3_step(store->statements[statement]);

    sqlite3_reset(store->statements[statement]);
    return lk_sqlite_status(code);
}

enum lk_status lk_sqlite_begin(struct lk_sqlite *store)
{
    if (store->writing) {
        return LK_OK;
    }
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_BEGIN);
    store->writing = !status;
    return status;
}

static void bind_slice(sqlite3_stmt *statement, int column,
                       struct lk_slice slice)
{
    sqlite3_bind_text(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

static void bind_bytes(sqlite3_stmt *statement, int column,
                       struct lk_slice slice)
{
    sqlite3_bind_blob(statement, column, slice.data ? slice.data : "",
                      (int)slice.len, SQLITE_STATIC);
}

/* ---- how a record stands --------------------------------------------------
 */

struct lk_standing lk_entry_standing(const struct lk_sqlite *store,
                                     const struct lk_entry *entry,
                                     const struct lk_op *op, uint64_t now)
{
    struct lk_standing standing = {
        .state = LK_STATE_ABSENT,
        .reexecute = op->reexecute,
        .no_new = op->no_new,
    };

    if (!entry) {
        return standing;
    }
    bool passed = entry->deadline <= now;
    standing.state = (enum lk_state)entry->state;
    standing.lapsed = passed && entry->state == LK_STATE_IN_PROGRESS;
    standing.expired = passed && (entry->state == LK_STATE_COMPLETED ||
                                  entry->state == LK_STATE_RELEASED);
    standing.omitted = entry->omitted;
    standing.token_current = op->token == entry->token;
    if (op->event == LK_EVENT_CLAIM) {
        standing.same_fingerprint =
            lk_fingerprint_hash(store, op->fingerprint) == entry->fingerprint;
        standing.same_owner =
            op->owner.len && lk_owner_hash(store, op->owner) == entry->owner;
    }
    return standing;
}

void lk_entry_outcome(const struct lk_entry *entry, struct lk_step step,
                      uint64_t now, struct lk_outcome *out)
{
    out->verdict = step.verdict;
    out->state = step.next;
    out->now_ms = now;
    if (!entry) {
        return;
    }
    out->token = entry->token;
    out->attempt = entry->attempt;
    out->number = entry->number;
    switch (entry->state) {
    case LK_STATE_IN_PROGRESS:
        out->lock_until_ms = entry->deadline;
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        out->since_ms = entry->deadline;
        break;
    default:
        out->expires_ms = entry->deadline;
        break;
    }
    out->needs_load = step.verdict == LK_VERDICT_REPLAY ||
                      step.verdict == LK_VERDICT_OMITTED ||
                      step.verdict == LK_VERDICT_KEPT ||
                      step.verdict == LK_VERDICT_UNCERTAIN;
}

/* ---- the row of a claim ---------------------------------------------------
 */

struct claim_row {
    uint64_t number;
    uint64_t generation;
    uint64_t attempt;
    uint64_t ttl;
    bool same_owner;
};

static enum lk_status read_row(struct lk_sqlite *store, uint64_t token,
                               struct lk_slice owner, struct claim_row *row)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ROW];

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    int code = sqlite3_step(statement);
    if (code == SQLITE_ROW) {
        uint64_t number = (uint64_t)sqlite3_column_int64(statement, 0);
        uint64_t generation = (uint64_t)sqlite3_column_int64(statement, 1);
        row->number = number ? number : token;
        row->generation = generation ? generation : token;
        row->attempt = (uint64_t)sqlite3_column_int64(statement, 2);
        row->ttl = (uint64_t)sqlite3_column_int64(statement, 3);
        struct lk_slice stored = {sqlite3_column_blob(statement, 4),
                                  (size_t)sqlite3_column_bytes(statement, 4)};
        row->same_owner = owner.len && latchkey_slice_equal(stored, owner);
    }
    sqlite3_reset(statement);
    return code == SQLITE_DONE ? LK_CORRUPT : lk_sqlite_status(code);
}

static enum lk_status insert_claim(struct lk_sqlite *store,
                                   const struct lk_op *op,
                                   const struct lk_entry *entry,
                                   const struct claim_row *row, uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_CLAIM];
    bool first = row->number == entry->token;
    bool same_generation = row->generation == entry->token;

    sqlite3_bind_int64(statement, 1, (int64_t)entry->token);
    sqlite3_bind_blob(statement, 2, &op->hash, sizeof(op->hash), SQLITE_STATIC);
    if (first) {
        sqlite3_bind_null(statement, 3);
    } else {
        sqlite3_bind_int64(statement, 3, (int64_t)row->number);
    }
    if (same_generation) {
        sqlite3_bind_null(statement, 4);
    } else {
        sqlite3_bind_int64(statement, 4, (int64_t)row->generation);
    }
    sqlite3_bind_int64(statement, 5, (int64_t)row->attempt);
    sqlite3_bind_int64(statement, 6, (int64_t)now);
    sqlite3_bind_int64(statement, 7, (int64_t)(entry->deadline - now));
    sqlite3_bind_int64(statement, 8, (int64_t)row->ttl);
    bind_bytes(statement, 9, op->owner);
    bind_bytes(statement, 10, op->fingerprint);
    bind_slice(statement, 11, op->name.tenant);
    bind_slice(statement, 12, op->name.scope);
    bind_slice(statement, 13, op->name.key);
    return lk_sqlite_run(store, LK_STATEMENT_CLAIM);
}

/* Puts `after` in the place of `before` (NULL: absent) for this batch. */
static enum lk_status replace(struct lk_sqlite *store,
                              const struct lk_entry *before,
                              const struct lk_entry *after)
{
    lk_reaper_account(&store->reaper, before, after);
    return lk_overlay_put(&store->overlay, after);
}

/*
 * NEW: a row and an entry with the next token. A record that was released or
 * is run again keeps its number and its attempts; one past its TTL does not.
 */
static enum lk_status begin_claim(struct lk_sqlite *store, struct lk_op *op,
                                  const struct lk_entry *before, bool renewed,
                                  uint64_t now, struct lk_entry *after)
{
    uint64_t token = store->next_token;
    struct claim_row row = {.number = token, .generation = token};
    enum lk_status status = lk_sqlite_begin(store);

    if (!status && renewed) {
        status = read_row(store, before->token, op->owner, &row);
        if (!status && before->evicted) {
            row.generation = token;
        }
    }
    if (status) {
        return status;
    }
    row.attempt++;
    row.ttl = op->ttl_ms ? op->ttl_ms : store->config.default_ttl_ms;
    *after = (struct lk_entry){
        .hash = op->hash,
        .token = token,
        .number = row.number,
        .attempt = row.attempt > UINT16_MAX ? UINT16_MAX : row.attempt,
        .state = LK_STATE_IN_PROGRESS,
        .owner = lk_owner_hash(store, op->owner),
        .deadline =
            now + (op->lock_ms ? op->lock_ms : store->config.default_lock_ms),
        .ttl = lk_ttl_pack(row.ttl),
        .fingerprint = lk_fingerprint_hash(store, op->fingerprint),
    };
    status = insert_claim(store, op, after, &row, now);
    if (!status) {
        store->next_token++;
        store->reaper.claim_rows++;
        status = replace(store, before, after);
    }
    return status;
}

/* ---- what happens to a claim ------------------------------------------------
 */

enum lk_status lk_sqlite_outcome(struct lk_sqlite *store,
                                 const struct lk_entry *before,
                                 enum lk_row_kind kind, uint64_t until)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_OUTCOME];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)store->next_outcome);
    sqlite3_bind_int64(statement, 2, (int64_t)before->token);
    sqlite3_bind_int(statement, 3, kind);
    sqlite3_bind_int64(statement, 4, (int64_t)store->last_ms);
    sqlite3_bind_int64(statement, 5, (int64_t)until);
    sqlite3_bind_blob(statement, 6, &before->hash, sizeof(before->hash),
                      SQLITE_TRANSIENT);
    status = lk_sqlite_run(store, LK_STATEMENT_OUTCOME);
    if (status) {
        return status;
    }
    store->next_outcome++;
    lk_entry_apply(&after, kind, until);
    return replace(store, before, &after);
}

static enum lk_status insert_answer(struct lk_sqlite *store, uint64_t token,
                                    uint64_t now, struct lk_slice reason,
                                    const struct lk_response *response)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_ANSWER];
    struct lk_buf *record = &store->scratch;
    enum lk_status status = LK_OK;

    sqlite3_bind_int64(statement, 1, (int64_t)token);
    sqlite3_bind_int64(statement, 2, (int64_t)now);
    if (reason.len) {
        bind_slice(statement, 3, reason);
    } else {
        sqlite3_bind_null(statement, 3);
    }
    record->len = 0;
    if (response) {
        status = latchkey_response_encode(response, record);
        bind_bytes(statement, 4, latchkey_buf_slice(record));
    } else {
        sqlite3_bind_null(statement, 4);
    }
    return status ? status : lk_sqlite_run(store, LK_STATEMENT_ANSWER);
}

static enum lk_status ttl_of(struct lk_sqlite *store, const struct lk_op *op,
                             const struct lk_entry *entry, uint64_t *ttl)
{
    struct claim_row row = {0};
    enum lk_status status = LK_OK;

    *ttl = op->ttl_ms ? op->ttl_ms : lk_ttl_unpack(entry->ttl);
    if (!*ttl) {
        status = read_row(store, entry->token, (struct lk_slice){0}, &row);
        *ttl = row.ttl;
    }
    return status;
}

static enum lk_status finish(struct lk_sqlite *store, struct lk_op *op,
                             const struct lk_entry *entry, uint64_t now)
{
    struct lk_response status_only = {.status = op->response.status};
    bool omit = op->reason.len != 0;
    uint64_t ttl;
    enum lk_status status = lk_sqlite_begin(store);

    if (!status) {
        status = ttl_of(store, op, entry, &ttl);
    }
    if (!status) {
        status = insert_answer(store, entry->token, now, op->reason,
                               omit ? &status_only : &op->response);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      omit ? LK_ROW_OMIT : LK_ROW_COMPLETE,
                                      now + ttl);
}

/* Release and eviction: what was stored for a retry goes at once. */
static enum lk_status set_free(struct lk_sqlite *store, struct lk_op *op,
                               const struct lk_entry *entry, uint64_t now)
{
    bool evict = op->event == LK_EVENT_EVICT;
    uint64_t ttl;
    enum lk_status status = ttl_of(store, op, entry, &ttl);

    if (!status) {
        status = lk_sqlite_begin(store);
    }
    if (!status && entry->state != LK_STATE_IN_PROGRESS) {
        sqlite3_stmt *gone = store->statements[LK_STATEMENT_DELETE_ANSWERS];
        sqlite3_bind_int64(gone, 1, (int64_t)entry->token);
        sqlite3_bind_int64(gone, 2, (int64_t)entry->token);
        status = lk_sqlite_run(store, LK_STATEMENT_DELETE_ANSWERS);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      evict ? LK_ROW_EVICT : LK_ROW_RELEASE,
                                      now + ttl);
}

static enum lk_status doubt(struct lk_sqlite *store, struct lk_op *op,
                            const struct lk_entry *entry, uint64_t now)
{
    bool lapsed = op->event == LK_EVENT_CLAIM;
    enum lk_status status = lk_sqlite_begin(store);

    if (!status && !lapsed) {
        status = insert_answer(store, entry->token, now, op->reason, NULL);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      lapsed ? LK_ROW_LAPSE : LK_ROW_DOUBT,
                                      lapsed ? entry->deadline : now);
}

/* A lock is only ever extended: a late, shorter wish does not cut it. */
static enum lk_status extend(struct lk_sqlite *store, struct lk_op *op,
                             const struct lk_entry *entry, uint64_t now)
{
    uint64_t until = now + op->lock_ms;

    if (entry->state == LK_STATE_IN_PROGRESS && entry->deadline > until) {
        until = entry->deadline;
    }
    return lk_sqlite_outcome(store, entry, LK_ROW_EXTEND, until);
}

static enum lk_status keep_longer(struct lk_sqlite *store, struct lk_op *op,
                                  const struct lk_entry *entry, uint64_t now)
{
    uint64_t ttl;

    if (entry->state == LK_STATE_COMPLETED) {
        uint64_t until = now + op->ttl_ms;
        return until <= entry->deadline
                   ? LK_OK
                   : lk_sqlite_outcome(store, entry, LK_ROW_KEEP, until);
    }
    struct lk_op asked = {0};
    enum lk_status status = ttl_of(store, &asked, entry, &ttl);
    if (status || op->ttl_ms <= ttl) {
        return status;
    }
    return lk_sqlite_outcome(store, entry, LK_ROW_KEEP_TTL, op->ttl_ms);
}

static enum lk_status insert_audit(struct lk_sqlite *store, const char *action,
                                   const struct lk_op *op, uint64_t token)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_AUDIT];
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    sqlite3_bind_int64(statement, 1, (int64_t)store->last_ms);
    bind_slice(statement, 2, op->who);
    bind_slice(statement, 3, op->why);
    sqlite3_bind_text(statement, 4, action, -1, SQLITE_STATIC);
    bind_slice(statement, 5, op->name.tenant);
    bind_slice(statement, 6, op->name.scope);
    bind_slice(statement, 7, op->name.key);
    sqlite3_bind_int64(statement, 8, (int64_t)token);
    return lk_sqlite_run(store, LK_STATEMENT_AUDIT);
}

/* ---- one operation ---------------------------------------------------------
 */

static enum lk_status take_effect(struct lk_sqlite *store, struct lk_op *op,
                                  struct lk_step step,
                                  struct lk_standing standing,
                                  const struct lk_entry *before, uint64_t now)
{
    struct lk_entry begun;

    switch (step.effect) {
    case LK_EFFECT_BEGIN:
        return begin_claim(store, op, before, before && !standing.expired, now,
                           &begun);
    case LK_EFFECT_FINISH:
        return finish(store, op, before, now);
    case LK_EFFECT_FREE:
        return set_free(store, op, before, now);
    case LK_EFFECT_DOUBT:
        return doubt(store, op, before, now);
    case LK_EFFECT_LOCK:
        return extend(store, op, before, now);
    case LK_EFFECT_KEEP:
        return keep_longer(store, op, before, now);
    case LK_EFFECT_NONE:
    case LK_EFFECT_FORGET:
        return LK_OK;
    case LK_EFFECT_ACCEPT:
    case LK_EFFECT_LEASE:
        break;
    }
    return LK_INVALID;
}

static const char *audited(enum lk_event event)
{
    switch (event) {
    case LK_EVENT_RESOLVE_COMPLETED:
        return "resolve completed";
    case LK_EVENT_RESOLVE_RELEASED:
        return "resolve released";
    case LK_EVENT_EVICT:
        return "evict";
    default:
        return NULL;
    }
}

/* Whoever waits is woken: a claim repeated by its owner settles nothing. */
static bool settles(struct lk_step step, const struct lk_entry *before)
{
    return before &&
           (before->state == LK_STATE_IN_PROGRESS ||
            before->state == LK_STATE_ACCEPTED) &&
           step.effect != LK_EFFECT_NONE && step.next != LK_STATE_IN_PROGRESS &&
           step.next != LK_STATE_ACCEPTED;
}

static enum lk_status confirm_owner(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    const struct lk_entry *entry,
                                    struct lk_standing *standing)
{
    struct claim_row row = {0};
    enum lk_status status = LK_OK;

    if (entry && standing->state == LK_STATE_IN_PROGRESS &&
        standing->same_owner) {
        status = read_row(store, entry->token, op->owner, &row);
        standing->same_owner = row.same_owner;
    }
    return status;
}

static bool is_held(struct lk_sqlite *store, uint64_t now)
{
    return now < atomic_load(&store->hold_until_ms);
}

static enum lk_status decide(struct lk_sqlite *store, struct lk_batch *batch,
                             struct lk_op *op, uint64_t now)
{
    const struct lk_entry *found =
        lk_overlay_find(&store->overlay, &store->index, op->hash);
    struct lk_entry copy;
    const struct lk_entry *before = NULL;

    if (found) {
        copy = *found; /* the overlay may move while we write */
        before = &copy;
    }
    struct lk_standing standing = lk_entry_standing(store, before, op, now);
    enum lk_status status = confirm_owner(store, op, before, &standing);
    struct lk_step step = lk_machine_step(op->event, standing);

    if (!status && !before && step.effect == LK_EFFECT_BEGIN &&
        is_held(store, now)) {
        op->status = LK_UNAVAILABLE;
        op->error = "the store was restored from an older copy: keys that it "
                    "does not know are held until their locks have run out";
        return LK_OK;
    }
    if (!status) {
        status = take_effect(store, op, step, standing, before, now);
    }
    if (!status && step.effect != LK_EFFECT_NONE && audited(op->event)) {
        status = insert_audit(store, audited(op->event), op, before->token);
    }
    if (!status && settles(step, before)) {
        status = lk_batch_settle(batch, op->hash);
    }
    if (!status) {
        op->status = LK_OK;
        lk_entry_outcome(
            lk_overlay_find(&store->overlay, &store->index, op->hash), step,
            now, &op->out);
    }
    return status;
}

/* ---- the batch -------------------------------------------------------------
 */

static void refuse(struct lk_batch *batch, enum lk_status status,
                   const char *error)
{
    for (size_t i = 0; i < batch->count; i++) {
        lk_op_clear(batch->ops[i]);
        batch->ops[i]->out = (struct lk_outcome){0};
        batch->ops[i]->status = status;
        batch->ops[i]->error = error;
    }
    batch->settled_count = 0;
}

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

static bool moment_is_due(const struct lk_sqlite *store, uint64_t now)
{
    uint64_t age = now - store->moment_at_ms;

    return store->writing ? age >= MOMENT_MS : age >= 6 * (uint64_t)MOMENT_MS;
}

/* Back to what was durable. False: not even that worked. */
static bool roll_back(struct lk_sqlite *store)
{
    lk_overlay_drop(&store->overlay);
    store->writing = false;
    store->reaper = store->reaper_durable;
    return sqlite3_get_autocommit(store->writer) ||
           !lk_sqlite_run(store, LK_STATEMENT_ROLLBACK);
}

/*
 * Nothing of the batch is acknowledged. Too little space or memory: it is
 * rolled back, and that is all. Anything else: nobody knows what reached the
 * disk, so everything is built anew from there before the next answer.
 */
static void fail_batch(struct lk_sqlite *store, struct lk_batch *batch,
                       enum lk_status status)
{
    bool rolled_back = roll_back(store);

    atomic_fetch_add(&store->counters.syncs_failed, 1);
    if (rolled_back && status == LK_FULL) {
        lk_sqlite_set_trouble(store, LK_HEALTH_FULL, "the disk is full");
        refuse(batch, LK_UNAVAILABLE, "the disk is full");
    } else if (rolled_back && status == LK_NOMEM) {
        refuse(batch, LK_UNAVAILABLE, "out of memory");
    } else {
        lk_sqlite_set_trouble(store, LK_HEALTH_BROKEN,
                              sqlite3_errmsg(store->writer));
        refuse(batch, LK_UNKNOWN,
               "a write to the store failed: whether it counts is not known");
    }
}

static enum lk_status commit(struct lk_sqlite *store)
{
    if (!store->writing) {
        return LK_OK;
    }
    lk_fault_point("before_append");
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_COMMIT);
    if (!status) {
        store->writing = false;
    }
    return status;
}

/* The commit has happened: now everybody may see it. */
static void publish(struct lk_sqlite *store)
{
    pthread_mutex_lock(&store->index_lock);
    enum lk_status status = lk_overlay_merge(&store->overlay, &store->index);
    pthread_mutex_unlock(&store->index_lock);
    store->reaper_durable = store->reaper;
    atomic_store_explicit(&store->last_token, store->next_token - 1,
                          memory_order_relaxed);
    if (status) {
        lk_sqlite_set_trouble(store, LK_HEALTH_BROKEN,
                              "out of memory for the index");
    }
}

static void note_free_space(struct lk_sqlite *store)
{
    int64_t pages = 0;

    if (!lk_sqlite_number(store->writer, "PRAGMA freelist_count", &pages)) {
        atomic_store(&store->counters.free_bytes, (uint64_t)pages * 4096);
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
    int frames = 0;
    int copied = 0;

    if (store->wal_frames < store->wal_tried) {
        store->wal_tried = 0; /* the log has started over */
    }
    if (store->wal_frames - store->wal_tried < limit) {
        return;
    }
    int code = sqlite3_wal_checkpoint_v2(
        store->writer, NULL, SQLITE_CHECKPOINT_PASSIVE, &frames, &copied);
    store->wal_tried = store->wal_frames;
    note_free_space(store);
    atomic_fetch_add(&store->counters.checkpoints, 1);
    if (code == SQLITE_OK || code == SQLITE_BUSY || code == SQLITE_FULL ||
        code == SQLITE_NOMEM) {
        return; /* the log holds everything; try again later */
    }
    lk_sqlite_set_trouble(store, LK_HEALTH_BROKEN,
                          sqlite3_errmsg(store->writer));
}

/* Is the store fit to decide? Tries to make it so, now and then. */
static bool recover(struct lk_sqlite *store)
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
            status = commit(store);
        }
        if (!status) {
            lk_sqlite_set_trouble(store, LK_HEALTH_READY, NULL);
            return true;
        }
        if (!roll_back(store) || status != LK_FULL) {
            lk_sqlite_set_trouble(store, LK_HEALTH_BROKEN,
                                  sqlite3_errmsg(store->writer));
        }
        return false;
    }
    return !lk_sqlite_reopen(store);
}

void lk_sqlite_apply(struct lk_store *base, struct lk_batch *batch)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    enum lk_status status = LK_OK;

    if (!recover(store)) {
        refuse(batch, LK_UNAVAILABLE,
               atomic_load(&store->health) == LK_HEALTH_FULL
                   ? "the disk is full"
                   : "the store is being reopened after a failed write");
        return;
    }
    uint64_t now = lk_clock_now(&store->clock);
    now = store->last_ms = now > store->last_ms ? now : store->last_ms;
    for (size_t i = 0; i < batch->count && !status; i++) {
        status = decide(store, batch, batch->ops[i], now);
    }
    if (!status && batch->keep) {
        status = lk_sqlite_keep(store, batch, now);
    }
    if (!status && moment_is_due(store, now)) {
        status = store_moment(store);
    }
    if (!status) {
        status = commit(store);
    }
    if (status) {
        fail_batch(store, batch, status);
        return;
    }
    publish(store);
    atomic_fetch_add(&store->counters.batches, batch->count != 0);
    atomic_fetch_add(&store->counters.batch_ops, batch->count);
    checkpoint(store);
}

enum lk_status lk_sqlite_accept_clock(struct lk_store *base,
                                      struct lk_slice who, struct lk_slice why)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_op op = {.who = who, .why = why};
    struct lk_batch none = {0};

    if (!recover(store)) {
        return LK_UNAVAILABLE;
    }
    lk_clock_accept(&store->clock);
    enum lk_status status = insert_audit(store, "accept clock", &op, 0);
    if (!status) {
        status = store_moment(store);
    }
    if (!status) {
        status = commit(store);
    }
    if (status) {
        fail_batch(store, &none, status);
    }
    return status;
}
