/*
 * sqlite_counts.c - how many unfinished jobs each target has, in memory.
 *
 * The store thread counts as it writes; other threads see the counts of the
 * last commit. Targets come from the configuration, so they are few, and each
 * that ever had a job stays until the store is closed.
 *
 * `counts` is the store thread's own and may be ahead of the disk by one batch.
 * `counts_durable` is guarded by index_lock: a commit copies `counts` to it
 * (publish), a rollback copies it back. Both always have room for the same
 * number of targets, so neither copy can fail.
 */
#include "store/sqlite.h"

#include <stdlib.h>
#include <string.h>

enum { TARGETS_AT_ONCE = 16 };

/* Room for one more in both, so that a commit never needs memory. */
static enum lk_status make_target_room(struct lk_sqlite *store)
{
    size_t cap = store->counts_cap + TARGETS_AT_ONCE;
    struct lk_job_target *targets;
    enum lk_status status = LK_NOMEM;

    if (store->counts.count < store->counts_cap) {
        return LK_OK;
    }
    targets = realloc(store->counts.targets, cap * sizeof(*targets));
    if (!targets) {
        return LK_NOMEM;
    }
    store->counts.targets = targets;
    pthread_mutex_lock(&store->index_lock);
    targets = realloc(store->counts_durable.targets, cap * sizeof(*targets));
    if (targets) {
        store->counts_durable.targets = targets;
        store->counts_cap = cap;
        status = LK_OK;
    }
    pthread_mutex_unlock(&store->index_lock);
    return status;
}

/* The index of a target, valid until a rollback or the next load. A new one is
 * added. LK_CORRUPT: a name that no target can have, so the row is damaged. */
enum lk_status lk_counts_find(struct lk_sqlite *store, struct lk_slice target,
                              size_t *at)
{
    struct lk_job_counts *counts = &store->counts;

    for (*at = 0; *at < counts->count; ++*at) {
        const struct lk_job_target *known = &counts->targets[*at];
        if (latchkey_slice_equal(
                (struct lk_slice){known->name, known->name_len}, target)) {
            return LK_OK;
        }
    }
    if (target.len > LK_TARGET_NAME_MAX) {
        return LK_CORRUPT;
    }
    enum lk_status status = make_target_room(store);
    if (!status) {
        struct lk_job_target *added = &counts->targets[counts->count++];
        *added = (struct lk_job_target){.name_len = target.len};
        if (target.len) {
            memcpy(added->name, target.data, target.len);
        }
        counts->changed = true;
    }
    return status;
}

/* A job of the target goes from one state to another; LK_JOB_STATES as `from`
 * is a new job. Finished jobs are not counted. A count never goes below 0, even
 * if the rows were damaged. */
void lk_counts_move(struct lk_sqlite *store, size_t target,
                    enum lk_job_state from, enum lk_job_state to, uint64_t now)
{
    struct lk_job_target *counted = &store->counts.targets[target];

    if (from == to) {
        return;
    }
    if (from < LK_JOB_DELIVERED && counted->jobs[from]) {
        counted->jobs[from]--;
    }
    if (to < LK_JOB_DELIVERED) {
        counted->jobs[to]++;
    }
    if (from == LK_JOB_UNCERTAIN) {
        counted->recount = true; /* perhaps it was the oldest */
    }
    if (to == LK_JOB_UNCERTAIN && !counted->oldest_uncertain_ms) {
        counted->oldest_uncertain_ms = now;
    }
    store->counts.changed = true;
}

/* Since when the oldest uncertain job is uncertain. The time of a single job
 * leaves no trace in the counts, so it is read from the rows. */
static enum lk_status look_up_oldest(struct lk_sqlite *store,
                                     struct lk_job_target *target)
{
    sqlite3_stmt *row = store->statements[LK_STATEMENT_JOB_NEXT];

    sqlite3_bind_text(row, 1, target->name, (int)target->name_len,
                      SQLITE_STATIC);
    sqlite3_bind_int(row, 2, LK_JOB_UNCERTAIN);
    sqlite3_bind_int64(row, 3, -1);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        target->oldest_uncertain_ms = (uint64_t)sqlite3_column_int64(row, 0);
        target->recount = false;
    }
    sqlite3_reset(row);
    return lk_sqlite_status(code);
}

/* At the end of a batch, before its commit: once for each target, however many
 * of its jobs have left the uncertain state. */
enum lk_status lk_counts_settle(struct lk_sqlite *store)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < store->counts.count && !status; i++) {
        if (store->counts.targets[i].recount) {
            status = look_up_oldest(store, &store->counts.targets[i]);
        }
    }
    return status;
}

static void copy_counts(struct lk_job_counts *to,
                        const struct lk_job_counts *from)
{
    if (from->count) {
        memcpy(to->targets, from->targets,
               from->count * sizeof(*from->targets));
    }
    to->count = from->count;
}

/* After a commit. The caller holds index_lock. */
void lk_counts_publish(struct lk_sqlite *store)
{
    if (store->counts.changed) {
        copy_counts(&store->counts_durable, &store->counts);
        store->counts.changed = false;
    }
}

/* After a rollback: the batch has changed nothing. */
void lk_counts_roll_back(struct lk_sqlite *store)
{
    if (store->counts.changed) {
        copy_counts(&store->counts, &store->counts_durable);
        store->counts.changed = false;
    }
}

void lk_counts_free(struct lk_sqlite *store)
{
    free(store->counts.targets);
    free(store->counts_durable.targets);
    store->counts = store->counts_durable = (struct lk_job_counts){0};
    store->counts_cap = 0;
}

void lk_counts_show(const struct lk_job_counts *counts,
                    struct lk_store_stats *stats)
{
    for (size_t i = 0; i < counts->count; i++) {
        uint64_t oldest = counts->targets[i].oldest_uncertain_ms;
        for (int state = 0; state < LK_JOB_DELIVERED; state++) {
            stats->jobs[state] += counts->targets[i].jobs[state];
        }
        if (oldest && (!stats->oldest_uncertain_ms ||
                       oldest < stats->oldest_uncertain_ms)) {
            stats->oldest_uncertain_ms = oldest;
        }
    }
}

/* ---- at the start ------------------------------------------------------ */

static enum lk_status add_count(struct lk_sqlite *store, sqlite3_stmt *row)
{
    size_t at;
    int state = sqlite3_column_int(row, 1);
    enum lk_status status = lk_counts_find(store, lk_column(row, 0), &at);

    if (!status && state >= 0 && state < LK_JOB_DELIVERED) {
        struct lk_job_target *target = &store->counts.targets[at];
        target->jobs[state] = (uint64_t)sqlite3_column_int64(row, 2);
        if (state == LK_JOB_UNCERTAIN) {
            target->oldest_uncertain_ms =
                (uint64_t)sqlite3_column_int64(row, 3);
        }
    }
    return status;
}

static enum lk_status add_pause(struct lk_sqlite *store, sqlite3_stmt *row)
{
    size_t at;
    enum lk_status status = lk_counts_find(store, lk_column(row, 0), &at);

    if (!status) {
        store->counts.targets[at].paused = true;
    }
    return status;
}

static enum lk_status add_target(struct lk_sqlite *store, sqlite3_stmt *row)
{
    size_t at;

    return lk_counts_find(store, lk_column(row, 0), &at);
}

/* Calls `take` for each row of a query; the first failure ends it. */
static enum lk_status each_row(struct lk_sqlite *store, const char *sql,
                               enum lk_status (*take)(struct lk_sqlite *,
                                                      sqlite3_stmt *))
{
    sqlite3_stmt *row = NULL;
    int code = sqlite3_prepare_v2(store->writer, sql, -1, &row, NULL);
    enum lk_status status = lk_sqlite_status(code);

    while (!status && (code = sqlite3_step(row)) == SQLITE_ROW) {
        status = take(store, row);
    }
    sqlite3_finalize(row);
    return status ? status : lk_sqlite_status(code);
}

/* The newest jobs may have been reaped; their numbers stay used. */
static enum lk_status load_next(struct lk_sqlite *store)
{
    int64_t last = 0;
    int64_t high = 0;
    enum lk_status status =
        lk_sqlite_number(store->writer, "SELECT max(id) FROM job", &last);

    if (!status) {
        status = lk_meta_get(store->writer, "high_job", &high);
    }
    store->has_jobs = last > 0;
    uint64_t next = (uint64_t)(last > high ? last : high) + 1;
    if (next > store->next_job) {
        store->next_job = next;
    }
    return status;
}

/* At the start, and when the file was opened again: counts from the
 * rows. A paused
 * target, and one whose jobs were deleted, are known without jobs too. */
enum lk_status lk_counts_load(struct lk_sqlite *store)
{
    store->counts.count = 0;
    store->counts.changed = true;
    enum lk_status status = load_next(store);
    if (!status) {
        status = each_row(store,
                          "SELECT target, state, count(*), min(due) FROM job "
                          "INDEXED BY job_due WHERE " LK_UNFINISHED " "
                          "GROUP BY target, state",
                          add_count);
    }
    if (!status) {
        status = each_row(store, "SELECT name FROM target", add_pause);
    }
    if (!status) {
        status = each_row(store,
                          "SELECT substr(name, 11) FROM meta "
                          "WHERE name GLOB 'forgotten *'",
                          add_target);
    }
    if (!status) {
        pthread_mutex_lock(&store->index_lock);
        lk_counts_publish(store);
        pthread_mutex_unlock(&store->index_lock);
    }
    return status;
}
