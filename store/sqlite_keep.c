/*
 * sqlite_keep.c - the keeper's two hands: the sweeper and the reaper.
 *
 * The sweeper asks the wheel which locks have lapsed and makes those records
 * uncertain. The reaper works in two steps. First, records past their TTL
 * leave the index: the wheel knows them, and from then on their rows are
 * dead. Second, once an eighth of the rows is dead, a pass walks the tables
 * from the old end, some rows with each batch, in the batch's own
 * transaction, deletes the dead ones and steps over those that a record still
 * needs. It stops as soon as no dead row is left, so with equal TTLs it never
 * sees more than the dead.
 *
 * Long-lived records among expired ones do not keep space: a B-tree page that
 * deletions have emptied by two thirds is merged with its neighbours by
 * SQLite, and the freed page is used for the next claims. They do cost the
 * pass a look; waiting for an eighth bounds that to eight looks for each row
 * deleted.
 */
#include "store/fault.h"
#include "store/sqlite.h"

#include <string.h>

enum { DUE_MAX = 256, ROWS_MAX = 1024 };

/* ---- accounts of dead rows -------------------------------------------- */

/* A record needs the row of its token, and that of its number, by which its
 * reference is found. */
static int rows_needed(const struct lk_entry *entry)
{
    if (!entry || entry->state == LK_STATE_ABSENT) {
        return 0;
    }
    return entry->token == entry->number ? 1 : 2;
}

void lk_reaper_account(struct lk_reaper *reaper, const struct lk_entry *before,
                       const struct lk_entry *after)
{
    reaper->needed_rows += rows_needed(after) - rows_needed(before);
    if (before && before->state != LK_STATE_IN_PROGRESS &&
        before->token != after->token) {
        reaper->dead_outcomes++;
    }
}

void lk_reaper_count(struct lk_sqlite *store, int64_t claim_rows,
                     int64_t dead_outcomes)
{
    struct lk_reaper reaper = {
        .claim_rows = claim_rows,
        .dead_outcomes = dead_outcomes,
    };

    /* A fresh index has no free entries yet. */
    for (uint32_t ref = 0; ref < store->index.used; ref++) {
        reaper.needed_rows += rows_needed(lk_index_at(&store->index, ref));
    }
    store->reaper = store->reaper_durable = reaper;
}

/* ---- the sweeper, and the first step of the reaper -------------------- */

static enum lk_status forget(struct lk_sqlite *store,
                             const struct lk_entry *entry)
{
    struct lk_entry gone = *entry;

    gone.state = LK_STATE_ABSENT;
    gone.token = 0;
    lk_reaper_account(&store->reaper, entry, &gone);
    atomic_fetch_add(&store->counters.reaped, 1);
    return lk_overlay_put(&store->overlay, &gone);
}

static enum lk_status lapse(struct lk_sqlite *store, struct lk_batch *batch,
                            const struct lk_entry *entry)
{
    enum lk_status status =
        lk_sqlite_outcome(store, entry, LK_ROW_LAPSE, entry->deadline);

    atomic_fetch_add(&store->counters.swept, 1);
    return status ? status : lk_batch_settle(batch, entry->hash);
}

/* The machine decides; this batch may have changed the record already. */
static enum lk_status keep_one(struct lk_sqlite *store, struct lk_batch *batch,
                               struct lk_hash128 hash, uint64_t now)
{
    const struct lk_op nothing = {.event = LK_EVENT_SWEEP};
    const struct lk_entry *found =
        lk_overlay_find(&store->overlay, &store->index, hash);

    if (!found) {
        return LK_OK;
    }
    struct lk_entry entry = *found;
    struct lk_standing standing =
        lk_entry_standing(store, &entry, &nothing, now);
    if (lk_machine_step(LK_EVENT_SWEEP, standing).effect == LK_EFFECT_DOUBT) {
        return lapse(store, batch, &entry);
    }
    if (lk_machine_step(LK_EVENT_REAP, standing).effect == LK_EFFECT_FORGET) {
        return forget(store, &entry);
    }
    return LK_OK;
}

static enum lk_status keep_due(struct lk_sqlite *store, struct lk_batch *batch,
                               uint64_t now)
{
    struct lk_hash128 due[DUE_MAX];
    enum lk_status status = LK_OK;
    bool more;

    pthread_mutex_lock(&store->index_lock);
    size_t count = lk_wheel_due(&store->index, now, due, DUE_MAX, &more);
    pthread_mutex_unlock(&store->index_lock);
    for (size_t i = 0; i < count && !status; i++) {
        status = keep_one(store, batch, due[i], now);
    }
    batch->more |= more || count;
    return status;
}

/* ---- the second step: rows -------------------------------------------- */

static bool enough_dead(int64_t dead, const struct lk_sqlite *store)
{
    return dead > 0 && (uint64_t)dead * 8 >= store->index.count;
}

static enum lk_status delete_range(struct lk_sqlite *store,
                                   enum lk_statement statement, int64_t first,
                                   int64_t last)
{
    sqlite3_bind_int64(store->statements[statement], 1, first);
    sqlite3_bind_int64(store->statements[statement], 2, last);
    return lk_sqlite_run(store, statement);
}

struct row {
    int64_t id;
    uint64_t token;
    bool needed;
};

static bool claim_needed(const struct lk_entry *entry, uint64_t token)
{
    return entry && (entry->token == token || entry->number == token);
}

static bool outcome_needed(const struct lk_entry *entry, uint64_t token)
{
    return entry && entry->token == token;
}

/* The next rows behind the cursor: id, token, hash. -1: a failure. */
static int read_rows(struct lk_sqlite *store, bool claims, uint64_t cursor,
                     struct row *rows, int max, enum lk_status *status)
{
    sqlite3_stmt *statement =
        store->statements[claims ? LK_STATEMENT_REAP_CLAIMS
                                 : LK_STATEMENT_REAP_OUTCOMES];
    int count = 0;
    int code;

    sqlite3_bind_int64(statement, 1, (int64_t)cursor);
    sqlite3_bind_int(statement, 2, max);
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        struct lk_hash128 hash = {0};
        struct lk_slice bytes = lk_column(statement, claims ? 1 : 2);
        if (bytes.len == sizeof(hash)) {
            memcpy(&hash, bytes.data, sizeof(hash));
        }
        const struct lk_entry *entry =
            lk_overlay_find(&store->overlay, &store->index, hash);
        struct row *row = &rows[count++];
        row->id = sqlite3_column_int64(statement, 0);
        row->token = (uint64_t)sqlite3_column_int64(statement, claims ? 0 : 1);
        row->needed = claims ? claim_needed(entry, row->token)
                             : outcome_needed(entry, row->token);
    }
    sqlite3_reset(statement);
    *status = lk_sqlite_status(code);
    return count;
}

/* Deletes a run of dead claims, and what was stored for their retries. */
static enum lk_status delete_claims(struct lk_sqlite *store, int64_t first,
                                    int64_t last)
{
    enum lk_status status =
        delete_range(store, LK_STATEMENT_DELETE_CLAIMS, first, last);

    if (!status) {
        store->reaper.claim_rows -= sqlite3_changes(store->writer);
        status = delete_range(store, LK_STATEMENT_DELETE_ANSWERS, first, last);
    }
    return status;
}

static enum lk_status delete_outcomes(struct lk_sqlite *store, int64_t first,
                                      int64_t last)
{
    enum lk_status status =
        delete_range(store, LK_STATEMENT_DELETE_OUTCOMES, first, last);

    store->reaper.dead_outcomes -= sqlite3_changes(store->writer);
    return status;
}

/* Neighbouring dead rows go in one statement. */
static enum lk_status delete_dead(struct lk_sqlite *store, bool claims,
                                  const struct row *rows, int count)
{
    enum lk_status status = LK_OK;

    for (int i = 0, first; i < count && !status; i++) {
        if (rows[i].needed) {
            continue;
        }
        for (first = i; i + 1 < count && !rows[i + 1].needed;) {
            i++;
        }
        status = claims ? delete_claims(store, rows[first].id, rows[i].id)
                        : delete_outcomes(store, rows[first].id, rows[i].id);
    }
    return status;
}

/*
 * One stretch of a pass over one table. *cursor moves on; the return value
 * says through *finished that the pass is over.
 */
static enum lk_status reap_rows(struct lk_sqlite *store, bool claims,
                                uint64_t *cursor, bool *finished)
{
    struct row rows[ROWS_MAX];
    int max = (int)store->config.reap_rows;
    enum lk_status status = lk_sqlite_begin(store);

    if (max > ROWS_MAX) {
        max = ROWS_MAX;
    }
    if (status) {
        return status;
    }
    int count = read_rows(store, claims, *cursor, rows, max, &status);
    lk_fault_point("in_reaper");
    if (!status) {
        status = delete_dead(store, claims, rows, count);
    }
    if (!status) {
        status = claims ? lk_meta_put(store, "high_token",
                                      (int64_t)store->next_token - 1)
                        : lk_meta_put(store, "high_outcome",
                                      (int64_t)store->next_outcome - 1);
    }
    *finished = count < max;
    if (count) {
        *cursor = (uint64_t)rows[count - 1].id;
    }
    return status;
}

static enum lk_status reap_claims(struct lk_sqlite *store)
{
    struct lk_reaper *reaper = &store->reaper;
    bool finished = false;
    enum lk_status status =
        reap_rows(store, true, &reaper->claim_cursor, &finished);

    if (finished) {
        reaper->claim_rows = reaper->needed_rows;
    }
    reaper->claims_running =
        !finished && reaper->claim_rows > reaper->needed_rows;
    if (!reaper->claims_running) {
        reaper->claim_cursor = 0;
    }
    return status;
}

static enum lk_status reap_outcomes(struct lk_sqlite *store)
{
    struct lk_reaper *reaper = &store->reaper;
    bool finished = false;
    enum lk_status status =
        reap_rows(store, false, &reaper->outcome_cursor, &finished);

    if (finished || reaper->dead_outcomes < 0) {
        reaper->dead_outcomes = 0;
    }
    reaper->outcomes_running = !finished && reaper->dead_outcomes > 0;
    if (!reaper->outcomes_running) {
        reaper->outcome_cursor = 0;
    }
    return status;
}

enum lk_status lk_sqlite_keep(struct lk_sqlite *store, struct lk_batch *batch,
                              uint64_t now)
{
    struct lk_reaper *reaper = &store->reaper;
    enum lk_status status = keep_due(store, batch, now);

    if (!status &&
        (reaper->claims_running ||
         enough_dead(reaper->claim_rows - reaper->needed_rows, store))) {
        reaper->claims_running = true;
        status = reap_claims(store);
    }
    if (!status && (reaper->outcomes_running ||
                    enough_dead(reaper->dead_outcomes, store))) {
        reaper->outcomes_running = true;
        status = reap_outcomes(store);
    }
    batch->more |= reaper->claims_running || reaper->outcomes_running;
    int64_t dead = reaper->claim_rows - reaper->needed_rows;
    atomic_store(&store->counters.dead_rows, (uint64_t)(dead > 0 ? dead : 0));
    return status;
}
