/* sqlite_jobs.c - jobs and targets as they are shown. */
#include "store/sqlite.h"

#include <stdlib.h>
#include <string.h>

/* Rows looked at in one call, so that a rare one does not hold the reader. */
enum { LOOK_AT = 2000 };

void lk_job_fill(sqlite3_stmt *row, struct lk_job *job, bool whole)
{
    enum lk_job_state state = (enum lk_job_state)sqlite3_column_int(row, 5);
    bool timed = state == LK_JOB_WAITING || state == LK_JOB_LEASED;

    *job = (struct lk_job){
        .id = (uint64_t)sqlite3_column_int64(row, 0),
        .number = (uint64_t)sqlite3_column_int64(row, 1),
        .generation = (uint64_t)sqlite3_column_int64(row, 2),
        .name = lk_column(row, 3),
        .target = lk_column(row, 4),
        .state = state,
        .attempts = (unsigned)sqlite3_column_int64(row, 6),
        .forgiven = (unsigned)sqlite3_column_int64(row, 7),
        .called = sqlite3_column_int(row, 8),
        .sent = sqlite3_column_int(row, 9),
        .repeatable = sqlite3_column_int(row, 10),
        .created_ms = (uint64_t)sqlite3_column_int64(row, 11),
        .due_ms = timed ? (uint64_t)sqlite3_column_int64(row, 12) : 0,
        .ended_ms = (uint64_t)sqlite3_column_int64(row, 13),
        .status = (unsigned)sqlite3_column_int64(row, 14),
        .provider_id = lk_column(row, 15),
        .reason = lk_column(row, 16),
        .operation = {lk_column(row, 17), lk_column(row, 18),
                      lk_column(row, 19)},
        .method = lk_column(row, 20),
        .path = lk_column(row, 21),
        .doubt = sqlite3_column_int(row, 24),
        .since_ms = (uint64_t)sqlite3_column_int64(row, 25),
        .sent_ms = (uint64_t)sqlite3_column_int64(row, 26),
    };
    if (whole) {
        job->headers = lk_column(row, 22);
        job->body = lk_column(row, 23);
    }
}

enum lk_status lk_job_own(struct lk_job *job)
{
    struct lk_slice *slices[] = {&job->operation.tenant,
                                 &job->operation.scope,
                                 &job->operation.key,
                                 &job->name,
                                 &job->target,
                                 &job->method,
                                 &job->path,
                                 &job->headers,
                                 &job->body,
                                 &job->provider_id,
                                 &job->reason,
                                 &job->answer.headers,
                                 &job->answer.body};
    size_t count = sizeof(slices) / sizeof(slices[0]);
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += slices[i]->len;
    }
    enum lk_status status = latchkey_buf_reserve(&job->text, total + 1);
    for (size_t i = 0; i < count && !status; i++) {
        const char *at = job->text.data + job->text.len;
        status = latchkey_buf_add_slice(&job->text, *slices[i]);
        slices[i]->data = at;
    }
    return status;
}

/* What the last attempt that ended was answered. The slices are the
 * statement's, until the reader is given back. */
static enum lk_status add_answer(struct lk_sqlite *store, struct lk_job *job)
{
    sqlite3_stmt *row = store->reads[LK_READ_JOB_ANSWER];
    bool exactly = job->state == LK_JOB_DELIVERED;

    sqlite3_reset(row);
    sqlite3_bind_int64(row, 1, (int64_t)job->id);
    sqlite3_bind_int64(row, 2, exactly ? job->attempts : 0);
    sqlite3_bind_int64(row, 3, job->attempts);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        job->answer.headers = lk_column(row, 0);
        job->answer.body = lk_column(row, 1);
    }
    job->answer.status = job->status;
    return lk_sqlite_status(code);
}

/* Of the operation that runs it: the token and attempt of a leased request. */
static void add_claim(struct lk_sqlite *store, struct lk_job *job)
{
    struct lk_entry entry;
    uint64_t now;

    if (!job->name.len && job->state == LK_JOB_LEASED &&
        lk_sqlite_entry(store,
                        lk_name_hash(store->store.secret, job->operation),
                        &entry, &now) &&
        entry.number == job->number) {
        job->token = entry.token;
        job->run = entry.attempt;
    }
}

/* ---- many ---------------------------------------------------------------- */

static bool matches(const struct lk_jobs_query *query, const struct lk_job *job,
                    uint64_t now)
{
    bool state =
        query->any_state || (query->unfinished ? job->state < LK_JOB_DELIVERED
                                               : job->state == query->state);

    return state &&
           (!query->target.len ||
            latchkey_slice_equal(job->target, query->target)) &&
           (!query->tenant.len ||
            latchkey_slice_equal(job->operation.tenant, query->tenant)) &&
           (!query->provider_id.len ||
            latchkey_slice_equal(job->provider_id, query->provider_id)) &&
           (!query->number || job->number == query->number) &&
           job->created_ms + query->older_than_ms <= now &&
           job->created_ms >= query->since_ms &&
           (!query->until_ms || job->created_ms < query->until_ms);
}

/* By operation, by the provider's id, by what is stuck, or all of them in
 * order. */
static sqlite3_stmt *choose(struct lk_sqlite *store,
                            const struct lk_jobs_query *query)
{
    bool stuck =
        !query->any_state && !query->unfinished &&
        (query->state == LK_JOB_UNCERTAIN || query->state == LK_JOB_DEAD);
    enum lk_read read = query->number            ? LK_READ_JOBS_OF
                        : query->provider_id.len ? LK_READ_JOBS_PROVIDER
                        : stuck                  ? LK_READ_JOBS_STUCK
                                                 : LK_READ_JOBS;
    sqlite3_stmt *row = lk_sqlite_read(store, read);

    if (row && read == LK_READ_JOBS_PROVIDER) {
        lk_bind_text(row, 3, query->provider_id);
    } else if (row && read != LK_READ_JOBS) {
        sqlite3_bind_int64(row, 3,
                           query->number ? (int64_t)query->number
                                         : (int64_t)query->state);
    }
    return row;
}

static enum lk_status show(struct lk_sqlite *store,
                           const struct lk_jobs_query *query, lk_job_fn fn,
                           void *context, struct lk_job *job, bool *stopped)
{
    enum lk_status status = LK_OK;

    add_claim(store, job);
    if (query->whole) {
        status = add_answer(store, job);
    }
    if (!status) {
        *stopped = !fn(context, job);
    }
    return status;
}

enum lk_status lk_sqlite_jobs(struct lk_store *base,
                              const struct lk_jobs_query *query, lk_job_fn fn,
                              void *context, uint64_t *next)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    uint64_t now = lk_clock_now(&store->clock);
    sqlite3_stmt *row = choose(store, query);
    enum lk_status status = LK_OK;
    size_t looked = 0;
    size_t shown = 0;
    bool stopped = false;
    int code = SQLITE_ROW;

    if (!row) {
        return LK_UNAVAILABLE;
    }
    *next = query->cursor;
    sqlite3_bind_int64(row, 1, (int64_t)query->cursor);
    sqlite3_bind_int(row, 2, LOOK_AT);
    while (!status && !stopped && shown < query->limit &&
           (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_job job;
        lk_job_fill(row, &job, query->whole);
        looked++;
        *next = job.id;
        if (matches(query, &job, now)) {
            shown++;
            status = show(store, query, fn, context, &job, &stopped);
        }
    }
    if (code == SQLITE_DONE && looked < LOOK_AT) {
        *next = 0;
    }
    lk_sqlite_read_done(store);
    return status ? status : lk_sqlite_status(code);
}

/* ---- one ----------------------------------------------------------------- */

/* The last attempt stands in the job itself, unless the job goes on. */
static enum lk_status tell_history(struct lk_sqlite *store,
                                   const struct lk_job *job, lk_attempt_fn fn,
                                   void *context)
{
    sqlite3_stmt *row = store->reads[LK_READ_ATTEMPTS];
    bool goes_on = job->state == LK_JOB_WAITING || job->state == LK_JOB_LEASED;
    bool stopped = false;
    int code = SQLITE_ROW;

    sqlite3_bind_int64(row, 1, (int64_t)job->id);
    sqlite3_bind_int64(row, 2, (int64_t)job->attempts + goes_on);
    while (!stopped && (code = sqlite3_step(row)) == SQLITE_ROW) {
        struct lk_attempt attempt = {
            .number = (unsigned)sqlite3_column_int64(row, 0),
            .ended_ms = (uint64_t)sqlite3_column_int64(row, 1),
            .status = (unsigned)sqlite3_column_int64(row, 2),
            .called = sqlite3_column_int(row, 3),
            .reason = lk_column(row, 4),
            .body = lk_column(row, 5),
        };
        stopped = !fn(context, &attempt);
    }
    return lk_sqlite_status(code);
}

enum lk_status lk_sqlite_job(struct lk_store *base, uint64_t id,
                             struct lk_job *job, lk_attempt_fn fn,
                             void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    sqlite3_stmt *row = lk_sqlite_read(store, LK_READ_JOB);

    *job = (struct lk_job){0};
    if (!row) {
        return LK_UNAVAILABLE;
    }
    sqlite3_bind_int64(row, 1, id > INT64_MAX ? (int64_t)-1 : (int64_t)id);
    int code = sqlite3_step(row);
    enum lk_status status =
        code == SQLITE_DONE ? LK_NOT_FOUND : lk_sqlite_status(code);
    if (!status) {
        lk_job_fill(row, job, true);
        add_claim(store, job);
        status = add_answer(store, job);
    }
    if (!status) {
        status = lk_job_own(job);
    }
    if (!status && fn) {
        status = tell_history(store, job, fn, context);
    }
    lk_sqlite_read_done(store);
    if (status) {
        lk_job_free(job);
    }
    return status;
}

/* ---- targets ------------------------------------------------------------- */

static enum lk_status look_up_oldest(struct lk_sqlite *store,
                                     const struct lk_job_target *target,
                                     enum lk_job_state state, uint64_t *oldest)
{
    sqlite3_stmt *row = store->reads[LK_READ_OLDEST];

    sqlite3_reset(row);
    sqlite3_bind_text(row, 1, target->name, (int)target->name_len,
                      SQLITE_STATIC);
    sqlite3_bind_int(row, 2, state);
    int code = sqlite3_step(row);
    *oldest = code == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(row, 0) : 0;
    return lk_sqlite_status(code);
}

static enum lk_status look_up_pause(struct lk_sqlite *store,
                                    struct lk_target_summary *standing)
{
    sqlite3_stmt *row = store->reads[LK_READ_TARGET];

    sqlite3_reset(row);
    lk_bind_text(row, 1, standing->name);
    int code = sqlite3_step(row);
    standing->paused = code == SQLITE_ROW;
    if (standing->paused) {
        standing->paused_ms = (uint64_t)sqlite3_column_int64(row, 0);
        standing->who = lk_column(row, 1);
        standing->why = lk_column(row, 2);
    }
    return lk_sqlite_status(code);
}

static enum lk_status look_up_forgotten(struct lk_sqlite *store,
                                        struct lk_target_summary *standing)
{
    sqlite3_stmt *row = store->reads[LK_READ_FORGOTTEN];

    sqlite3_reset(row);
    lk_bind_text(row, 1, standing->name);
    int code = sqlite3_step(row);
    if (code == SQLITE_ROW) {
        standing->forgotten_ms = (uint64_t)sqlite3_column_int64(row, 0);
    }
    return lk_sqlite_status(code);
}

static enum lk_status show_target(struct lk_sqlite *store,
                                  const struct lk_job_target *target,
                                  lk_target_fn fn, void *context, bool *stopped)
{
    struct lk_target_summary standing = {
        .name = {target->name, target->name_len}};
    uint64_t now = lk_clock_now(&store->clock);
    uint64_t jobs = 0;
    enum lk_status status =
        look_up_oldest(store, target, LK_JOB_WAITING, &standing.oldest_due_ms);

    if (!status) {
        status = look_up_oldest(store, target, LK_JOB_UNCERTAIN,
                                &standing.oldest_uncertain_ms);
    }
    if (!status) {
        status = look_up_oldest(store, target, LK_JOB_DEAD,
                                &standing.oldest_dead_ms);
    }
    if (!status) {
        status = look_up_pause(store, &standing);
    }
    if (!status) {
        status = look_up_forgotten(store, &standing);
    }
    if (standing.oldest_due_ms > now) {
        standing.oldest_due_ms = 0;
    }
    for (int i = 0; i < LK_JOB_DELIVERED; i++) {
        standing.jobs[i] = target->jobs[i];
        jobs += target->jobs[i];
    }
    if (!status && (jobs || standing.paused || standing.forgotten_ms)) {
        *stopped = !fn(context, &standing);
    }
    return status;
}

/* A copy, so that the index's lock is not held while rows are read. */
static struct lk_job_target *copy_targets(struct lk_sqlite *store,
                                          size_t *count)
{
    pthread_mutex_lock(&store->index_lock);
    *count = store->counts_durable.count;
    struct lk_job_target *copy = malloc((*count + 1) * sizeof(*copy));
    if (copy && *count) {
        memcpy(copy, store->counts_durable.targets, *count * sizeof(*copy));
    }
    pthread_mutex_unlock(&store->index_lock);
    return copy;
}

enum lk_status lk_sqlite_targets(struct lk_store *base, lk_target_fn fn,
                                 void *context)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    size_t count = 0;
    struct lk_job_target *targets = copy_targets(store, &count);
    enum lk_status status = LK_OK;
    bool stopped = false;

    if (!targets) {
        return LK_NOMEM;
    }
    if (!lk_sqlite_read(store, LK_READ_OLDEST)) {
        free(targets);
        return LK_UNAVAILABLE;
    }
    for (size_t i = 0; i < count && !status && !stopped; i++) {
        status = show_target(store, &targets[i], fn, context, &stopped);
    }
    lk_sqlite_read_done(store);
    free(targets);
    return status;
}
