/*
 * sqlite_keep.c - the keeper: the sweeper and the reaper, as part of a batch.
 *
 * The sweeper asks the wheel which locks have lapsed and makes those operations
 * uncertain. The reaper works in two steps. First, operations past their TTL
 * leave the index: the wheel knows them, and from then on their rows are dead.
 * Second, once an eighth of the rows is dead, a pass walks the claims from the
 * old end, some rows with each batch, in the batch's own transaction. It
 * deletes the dead ones with their outcomes and responses, and skips those that
 * an operation still needs. It stops as soon as no dead row is left, so with
 * equal TTLs it never reads more than the dead rows.
 *
 * The invariant: the rows that remain of an operation never say something else
 * than all of them did, because a start reads the rows and does not know what
 * left the index. So a claim is deleted together with its outcome, and the
 * later claims of a dead operation only after its first one, that is, in a pass
 * that began after it died. (Of a live operation the newest claim counts, so
 * the others may be deleted in any order.)
 *
 * Jobs are deleted before the first claim of their operation, which their rows
 * name by its number, some with each batch; an operation with unfinished jobs
 * stays.
 *
 * Long-lived operations among expired ones do not waste space: a B-tree page
 * that deletions have emptied by two thirds is merged with its neighbours by
 * SQLite, and the freed page is used for the next claims. They do cost the pass
 * a read; waiting for an eighth bounds that to eight reads for each deleted
 * row.
 */
#include "store/fault.h"
#include "store/sqlite.h"

#include <string.h>

enum { DUE_MAX = 256, ROWS_MAX = 1024 };

/* ---- accounts of dead rows -------------------------------------------- */

/* How many claim rows an operation needs: that of its token, and that of its
 * number, by which its reference is found. */
static int needed_rows_of(const struct lk_entry *entry)
{
    if (!entry || entry->state == LK_STATE_ABSENT) {
        return 0;
    }
    return entry->token == entry->number ? 1 : 2;
}

void lk_reaper_account(struct lk_reaper *reaper, const struct lk_entry *before,
                       const struct lk_entry *after)
{
    reaper->needed_rows += needed_rows_of(after) - needed_rows_of(before);
}

void lk_reaper_count(struct lk_sqlite *store, int64_t claim_rows)
{
    struct lk_reaper reaper = {.claim_rows = claim_rows};

    /* A fresh index has no free entries yet. */
    for (uint32_t ref = 0; ref < store->index.used; ref++) {
        reaper.needed_rows += needed_rows_of(lk_index_at(&store->index, ref));
    }
    store->reaper = store->reaper_durable = reaper;
}

/* ---- the sweeper, and the first step of the reaper -------------------- */

static enum lk_status forget_operation(struct lk_sqlite *store,
                                       const struct lk_entry *entry)
{
    struct lk_entry gone = *entry;

    gone.state = LK_STATE_ABSENT;
    if (entry->token > store->forgotten) {
        store->forgotten = entry->token;
    }
    lk_reaper_account(&store->reaper, entry, &gone);
    atomic_fetch_add(&store->counters.reaped, 1);
    return lk_overlay_put(&store->overlay, &gone);
}

static enum lk_status lapse_lock(struct lk_sqlite *store,
                                 struct lk_batch *batch,
                                 const struct lk_entry *entry)
{
    enum lk_status status =
        lk_sqlite_outcome(store, entry, LK_ROW_LAPSE, entry->deadline);

    atomic_fetch_add(&store->counters.swept, 1);
    return status ? status : lk_batch_settle(batch, entry->hash);
}

/* The machine decides: this batch may have changed the operation already. */
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
        return lapse_lock(store, batch, &entry);
    }
    if (lk_machine_step(LK_EVENT_REAP, standing).effect == LK_EFFECT_FORGET) {
        return forget_operation(store, &entry);
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

static int64_t dead_rows(const struct lk_reaper *reaper)
{
    return reaper->claim_rows - reaper->needed_rows;
}

static bool is_resting(const struct lk_sqlite *store)
{
    return store->last_ms < store->reaper_rest_ms;
}

static bool should_start(const struct lk_sqlite *store)
{
    int64_t dead = dead_rows(&store->reaper);

    return !is_resting(store) && dead > store->reaper.stuck &&
           (uint64_t)dead * 8 >= store->index.count;
}

struct reap_row {
    uint64_t token;
    uint64_t number;
    bool dead;
    bool of_live; /* an overtaken claim of a live operation */
};

/*
 * Whether the first claim of the operation is deleted, now or earlier. Only
 * then may a later one be deleted. A pass that deletes the first claim has all
 * later ones ahead, so it deletes them too, in order.
 */
static bool first_is_gone(struct lk_sqlite *store, const struct reap_row *rows,
                          int at, enum lk_status *status)
{
    struct lk_claim_row row;

    for (int i = 0; i < at; i++) {
        if (rows[i].token == rows[at].number) {
            return rows[i].dead;
        }
    }
    enum lk_status found =
        lk_sqlite_find_row(store, rows[at].number, (struct lk_slice){0}, &row);

    if (found && found != LK_NOT_FOUND) {
        *status = found; /* a row that cannot be read may well be there */
    }
    return found == LK_NOT_FOUND;
}

static void read_reap_row(struct lk_sqlite *store, sqlite3_stmt *statement,
                          struct reap_row *row)
{
    struct lk_hash128 hash = {0};
    struct lk_slice bytes = lk_column(statement, 2);

    if (bytes.len == sizeof(hash)) {
        memcpy(&hash, bytes.data, sizeof(hash));
    }
    const struct lk_entry *entry =
        lk_overlay_find(&store->overlay, &store->index, hash);
    row->token = (uint64_t)sqlite3_column_int64(statement, 0);
    row->number = (uint64_t)sqlite3_column_int64(statement, 1);
    row->dead =
        !entry || (entry->token != row->token && entry->number != row->token);
    row->of_live = entry != NULL;
}

/* The next rows behind the cursor. */
static int read_rows(struct lk_sqlite *store, struct reap_row *rows, int max,
                     enum lk_status *status)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_REAP];
    int count = 0;
    int code;

    sqlite3_bind_int64(statement, 1, (int64_t)store->reaper.cursor);
    sqlite3_bind_int(statement, 2, max);
    while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
        read_reap_row(store, statement, &rows[count++]);
    }
    sqlite3_reset(statement);
    *status = lk_sqlite_status(code);
    for (int i = 0; i < count && !*status; i++) {
        if (rows[i].dead && rows[i].number && !rows[i].of_live) {
            rows[i].dead = first_is_gone(store, rows, i, status);
        }
    }
    return count;
}

static enum lk_status delete_tokens(struct lk_sqlite *store,
                                    enum lk_statement statement, uint64_t first,
                                    uint64_t last)
{
    sqlite3_bind_int64(store->statements[statement], 1, (int64_t)first);
    sqlite3_bind_int64(store->statements[statement], 2, (int64_t)last);
    return lk_sqlite_run(store, statement);
}

/* Deletes a run of dead claims with their outcomes, responses and jobs. *room
 * is 0 afterwards: jobs may be left, so the claims stay for the next batch. */
static enum lk_status delete_dead_run(struct lk_sqlite *store, uint64_t first,
                                      uint64_t last, int *room)
{
    enum lk_status status = LK_OK;

    if (store->has_jobs) {
        status = lk_job_delete(store, first, last, room);
    }
    if (status || !*room) {
        return status;
    }
    status = delete_tokens(store, LK_STATEMENT_DELETE_CLAIMS, first, last);
    if (!status) {
        int deleted = sqlite3_changes(store->writer);
        store->reaper.claim_rows -= deleted;
        store->reaper.deleted += deleted;
        status =
            delete_tokens(store, LK_STATEMENT_DELETE_OUTCOMES, first, last);
    }
    if (!status) {
        status = delete_tokens(store, LK_STATEMENT_DELETE_STORED, first, last);
    }
    return status;
}

/* Deletes neighbouring dead rows in one statement. *done: how many rows are
 * done. */
static enum lk_status delete_dead(struct lk_sqlite *store,
                                  const struct reap_row *rows, int count,
                                  int *done)
{
    enum lk_status status = LK_OK;
    int room = LK_REAP_JOBS;

    *done = count;
    for (int i = 0, first; i < count && !status && room; i++) {
        if (!rows[i].dead) {
            continue;
        }
        for (first = i; i + 1 < count && rows[i + 1].dead;) {
            i++;
        }
        status =
            delete_dead_run(store, rows[first].token, rows[i].token, &room);
        if (!room) {
            *done = first;
        }
    }
    return status;
}

/* The part of a pass for one batch; *end: there are no rows after it. */
static enum lk_status reap_rows(struct lk_sqlite *store, bool *end)
{
    struct reap_row rows[ROWS_MAX];
    int max = (int)store->config.reap_rows;
    enum lk_status status = lk_sqlite_begin(store);

    if (max > ROWS_MAX) {
        max = ROWS_MAX;
    }
    if (status) {
        return status;
    }
    int count = read_rows(store, rows, max, &status);
    int done = count;
    lk_fault_point("in_reaper");
    if (!status) {
        status = delete_dead(store, rows, count, &done);
    }
    if (!status) {
        status =
            lk_meta_put(store, "high_token", (int64_t)store->next_token - 1);
    }
    *end = done == count && count < max;
    if (done) {
        store->reaper.cursor = rows[done - 1].token;
    }
    return status;
}

static enum lk_status run_reaper(struct lk_sqlite *store)
{
    struct lk_reaper *reaper = &store->reaper;
    bool end = false;

    if (is_resting(store)) {
        return LK_OK;
    }
    if (!reaper->running) {
        if (!should_start(store)) {
            return LK_OK;
        }
        reaper->running = true;
        reaper->cursor = 0;
        reaper->deleted = 0;
    }
    enum lk_status status = reap_rows(store, &end);
    if (status == LK_CORRUPT) {
        store->reaper_rest_ms = store->last_ms + LK_SUSPECT_MS;
    }
    if (end || dead_rows(reaper) == 0) {
        reaper->running = false;
        /* A pass that found nothing will not find it the next time. */
        reaper->stuck = reaper->deleted ? 0 : dead_rows(reaper);
    }
    return status;
}

enum lk_status lk_sqlite_keep(struct lk_sqlite *store, struct lk_batch *batch,
                              uint64_t now)
{
    enum lk_status status = keep_due(store, batch, now);

    if (!status) {
        status = run_reaper(store);
    }
    batch->more |=
        (store->reaper.running && !is_resting(store)) || should_start(store);
    int64_t dead = dead_rows(&store->reaper);
    atomic_store(&store->counters.dead_rows, (uint64_t)(dead > 0 ? dead : 0));
    return status;
}
