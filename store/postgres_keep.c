/*
 * postgres_keep.c - the keeper's thread: it sweeps and reaps while it holds the
 * keeper's lease, counts operations, and exchanges notifications with other
 * daemons. No batch waits for any of it.
 *
 * Notifications say that an operation has settled, or that a daemon or an app
 * has queued a job. An operation travels as the number that its key is locked
 * by; a small table knows the operations of these numbers that a client may
 * wait for. All of it may be lost: a waiting client asks again by itself.
 */
#include "sql_names.h"
#include "store/postgres.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- notifications ------------------------------------------------------ */

#define SETTLED_CHANNEL "latchkey_settled"
#define JOB_CHANNEL     "latchkey_job" /* as latchkey.enqueue has it */
#define MS_NS           UINT64_C(1000000)

enum {
    NOTIFY_MS = 20, /* at least, between two transactions that notify */
    NOTIFY_FAILED_MS = 1000,
    NOTIFY_MOST = 4096, /* queued notifications; more are dropped */
    SETTLED_MOST = 4096,
    DIGITS = 16,
    PAYLOAD_IDS = 400, /* a payload has room for 8000 bytes */
};

/* ---- what settled elsewhere ------------------------------------------- */

/* One slot for many numbers: a collision loses a hint, not an operation. */
static struct lk_pg_waiting *waiting_slot(struct lk_postgres *store,
                                          int64_t lock_id)
{
    return &store->waiting[(uint64_t)lock_id % LK_PG_WAITING];
}

/* An operation with a waiting client is not replaced by one without. */
void lk_pg_remember_waiter(struct lk_postgres *store, int64_t lock_id,
                           struct lk_hash128 hash, bool has_waiter)
{
    struct lk_pg_waiting *at = waiting_slot(store, lock_id);

    if (has_waiter || !at->used || !at->has_waiter) {
        *at = (struct lk_pg_waiting){lock_id, hash, true, has_waiter};
    }
}

/* The caller holds hints_lock. */
static void queue_settled(struct lk_postgres *store, int64_t lock_id)
{
    struct lk_pg_waiting *at = waiting_slot(store, lock_id);

    if (!at->used || at->lock_id != lock_id) {
        return;
    }
    at->used = false;
    if (store->settled_count < SETTLED_MOST) {
        store->settled[store->settled_count++] = at->hash;
    } else {
        store->settled_all = true;
    }
    atomic_store(&store->has_hints, true);
}

/* A batch, even an empty one, takes the hints to the loop thread. */
static void wake_daemon(struct lk_postgres *store)
{
    if (atomic_load(&store->has_hints) && store->config.wake) {
        store->config.wake(store->config.wake_context);
    }
}

void lk_pg_add_settled(struct lk_postgres *store, int64_t lock_id)
{
    pthread_mutex_lock(&store->hints_lock);
    queue_settled(store, lock_id);
    pthread_mutex_unlock(&store->hints_lock);
    wake_daemon(store);
}

/* Reads a binary array of the server: a head of five words, then each number
 * after its length. Returns how many there were. */
static size_t take_settled_array(struct lk_postgres *store,
                                 struct lk_slice array)
{
    enum { HEAD = 20, ITEM = 12 };
    size_t count = 0;

    for (size_t at = HEAD; at + ITEM <= array.len; at += ITEM, count++) {
        uint64_t id = 0;
        for (int i = 4; i < ITEM; i++) {
            id = id << 8 | (uint8_t)array.data[at + (size_t)i];
        }
        lk_pg_add_settled(store, (int64_t)id);
        pthread_mutex_lock(&store->hints_lock);
        lk_pg_notify_settled(store, (int64_t)id);
        pthread_mutex_unlock(&store->hints_lock);
    }
    return count;
}

/* Everyone who waits asks again, and the courier looks for jobs. */
static void settle_all(struct lk_postgres *store)
{
    pthread_mutex_lock(&store->hints_lock);
    store->settled_all = true;
    store->job_queued = true;
    atomic_store(&store->has_hints, true);
    pthread_mutex_unlock(&store->hints_lock);
    wake_daemon(store);
}

/* Store thread: hints go with the next batch. The flag saves the lock for the
 * many batches without hints. */
void lk_pg_move_settled(struct lk_postgres *store, struct lk_batch *batch)
{
    if (!atomic_load(&store->has_hints)) {
        return;
    }
    pthread_mutex_lock(&store->hints_lock);
    for (size_t i = 0; i < store->settled_count; i++) {
        if (lk_batch_settle(batch, store->settled[i])) {
            batch->settle_all = true;
            break;
        }
    }
    batch->settle_all |= store->settled_all;
    batch->queued |= store->job_queued;
    store->settled_count = 0;
    store->settled_all = false;
    store->job_queued = false;
    atomic_store(&store->has_hints, false);
    pthread_mutex_unlock(&store->hints_lock);
}

/* Numbers of 16 hexadecimal digits, one behind the other. The caller holds
 * hints_lock. */
static void read_payload(struct lk_postgres *store, const char *payload)
{
    while (strlen(payload) >= DIGITS) {
        char digits[DIGITS + 1];
        char *end;
        memcpy(digits, payload, DIGITS);
        digits[DIGITS] = 0;
        uint64_t id = strtoull(digits, &end, 16);
        if (*end) {
            return; /* not ours */
        }
        queue_settled(store, (int64_t)id);
        payload += DIGITS;
    }
}

/* All that have arrived; the keeper's own come back to it too, and are
 * skipped. */
static void read_notifications(struct lk_postgres *store)
{
    PGconn *pg = store->keeper.pg;
    PGnotify *notice;

    while ((notice = PQnotifies(pg))) {
        pthread_mutex_lock(&store->hints_lock);
        if (notice->be_pid == PQbackendPID(pg)) {
            ; /* our own notification */
        } else if (!strcmp(notice->relname, JOB_CHANNEL)) {
            store->job_queued = true;
            atomic_store(&store->has_hints, true);
        } else {
            read_payload(store, notice->extra);
        }
        pthread_mutex_unlock(&store->hints_lock);
        PQfreemem(notice);
    }
    wake_daemon(store);
}

/* Without store.notify, and through a pooler, clients that wait only poll. */
static void start_listening(struct lk_postgres *store, uint64_t deadline_ns)
{
    if (!store->config.notify || store->config.pooler || store->listening) {
        return;
    }
    store->listening = !lk_pg_script(
        &store->keeper, "LISTEN " SETTLED_CHANNEL "; LISTEN " JOB_CHANNEL,
        deadline_ns);
    if (store->listening) {
        settle_all(store); /* notifications may have been missed */
    }
}

/* ---- what settled here ------------------------------------------------ */

/* The caller holds hints_lock. Beyond NOTIFY_MOST the hint is dropped: waiting
 * clients of other daemons then find out when they ask again. */
void lk_pg_notify_settled(struct lk_postgres *store, int64_t lock_id)
{
    waiting_slot(store, lock_id)->used &=
        waiting_slot(store, lock_id)->lock_id != lock_id;
    if (store->config.notify && !store->config.pooler &&
        store->notify_count < NOTIFY_MOST) {
        store->notify_ids[store->notify_count++] = lock_id;
    }
}

void lk_pg_notify_job(struct lk_postgres *store)
{
    store->notify_jobs = store->config.notify && !store->config.pooler;
}

/* The next payload; false: there is none. */
static bool take_payload(struct lk_postgres *store, char *payload, size_t size)
{
    size_t used = 0;
    size_t count = 0;

    pthread_mutex_lock(&store->hints_lock);
    while (count < store->notify_count && count < PAYLOAD_IDS) {
        size_t at = store->notify_count - 1 - count++;
        used += (size_t)snprintf(payload + used, size - used, "%016llx",
                                 (unsigned long long)store->notify_ids[at]);
    }
    store->notify_count -= count;
    pthread_mutex_unlock(&store->hints_lock);
    return count;
}

/* The message stays that of the failure. */
static enum lk_status end_failed(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    char why[sizeof(conn->message)];

    memcpy(why, conn->message, sizeof(why));
    enum lk_status status = lk_pg_script(conn, "ROLLBACK", deadline_ns);
    memcpy(conn->message, why, sizeof(why));
    return status;
}

/*
 * One transaction for all of it. It need not be durable, so it waits neither
 * for the disk nor for a standby.
 */
static enum lk_status send_notifications(struct lk_postgres *store,
                                         uint64_t deadline_ns)
{
    char payload[PAYLOAD_IDS * DIGITS + 1];
    struct lk_buf sql = {0};
    pthread_mutex_lock(&store->hints_lock);
    bool any = store->notify_jobs;
    store->notify_jobs = false;
    pthread_mutex_unlock(&store->hints_lock);
    enum lk_status status = latchkey_buf_printf(
        &sql, "BEGIN; SET LOCAL synchronous_commit = off%s",
        any ? "; SELECT pg_notify('" JOB_CHANNEL "', '')" : "");

    while (!status && take_payload(store, payload, sizeof(payload))) {
        any = true;
        status = latchkey_buf_printf(
            &sql, "; SELECT pg_notify('" SETTLED_CHANNEL "', '%s')", payload);
    }
    if (!status) {
        status = latchkey_buf_add(&sql, "; COMMIT", sizeof("; COMMIT"));
    }
    if (!status && any) {
        status = lk_pg_script(&store->keeper, sql.data, deadline_ns);
    }
    if (status == LK_UNAVAILABLE && store->keeper.pg &&
        end_failed(&store->keeper, deadline_ns)) {
        lk_pg_close(&store->keeper); /* with the transaction */
    }
    latchkey_buf_free(&sql);
    store->notify_after_ns =
        lk_pg_clock_ns() + (status ? NOTIFY_FAILED_MS : NOTIFY_MS) * MS_NS;
    return status;
}

enum {
    TRIES = 8,       /* of a transaction that met another one */
    LEASE_TURNS = 3, /* how many turns a lease lasts */
    LEASE_LEAST_MS = 3000,
    LEASE_MOST_MS = 60 * 1000, /* as latchkey.keep has it */
    KEEP_PAUSE_MS = 5,         /* between two steps, if there is more to do */
    COUNT_TIMES = 50,          /* counting takes at most 1/50 of the time */
    COUNT_MS = 1000,           /* how often they are counted without keeping */
    RECONNECT_MS = 1000,       /* how often a lost connection is tried */
};

/* ---- counting --------------------------------------------------------- */

/*
 * As LIST has them, whether or not the keeper has run: what has expired is
 * gone, and what has lapsed is uncertain. What is unfinished is counted by the
 * index of its state. What is finished is counted while it is little; else the
 * server's own estimate is used.
 */
static const char count_operations[] =
    "SELECT (SELECT count(*) FROM (SELECT FROM latchkey.operation WHERE "
    "state = " LK_SQL_STATE_ACCEPTED
    " LIMIT 1000000) AS a), (SELECT count(*) FROM (SELECT FROM "
    "latchkey.operation WHERE state = " LK_SQL_STATE_IN_PROGRESS
    " LIMIT 1000000) AS b) - (SELECT "
    "count(*) FROM (SELECT FROM latchkey.operation WHERE state "
    "= " LK_SQL_STATE_IN_PROGRESS " AND "
    "deadline_ms <= n.now AND NOT queued LIMIT 1000000) AS l), (SELECT "
    "count(*) FROM (SELECT FROM latchkey.operation WHERE state "
    "= " LK_SQL_STATE_UNCERTAIN " LIMIT "
    "1000000) AS c) + (SELECT count(*) FROM (SELECT FROM latchkey.operation "
    "WHERE state = " LK_SQL_STATE_IN_PROGRESS
    " AND deadline_ms <= n.now AND NOT queued LIMIT 1000000) "
    "AS l), (SELECT count(*) FROM (SELECT FROM latchkey.operation WHERE "
    "state = " LK_SQL_STATE_COMPLETED
    " AND deadline_ms > n.now LIMIT 50000) AS d), (SELECT count(*) "
    "FROM (SELECT FROM latchkey.operation WHERE state = " LK_SQL_STATE_RELEASED
    " AND deadline_ms > "
    "n.now LIMIT 50000) AS e), (SELECT greatest(reltuples, 0)::bigint FROM "
    "pg_class WHERE oid = 'latchkey.operation'::regclass), "
    "pg_total_relation_size('latchkey.operation') + "
    "pg_total_relation_size('latchkey.answer') + "
    "pg_total_relation_size('latchkey.job') + "
    "pg_total_relation_size('latchkey.attempt') + "
    "pg_total_relation_size('latchkey.used_name') + "
    "pg_total_relation_size('latchkey.audit'), (SELECT last_value FROM "
    "latchkey.token), n.now, (SELECT count(*) FROM (SELECT FROM "
    "latchkey.operation WHERE state IN (" LK_SQL_STATES_FINISHED
    ") AND deadline_ms <= n.now LIMIT "
    "50000) AS f), (SELECT count(*) FROM (SELECT FROM latchkey.job WHERE "
    "state = " LK_SQL_JOB_WAITING
    " LIMIT 1000000) AS g), (SELECT count(*) FROM (SELECT FROM "
    "latchkey.job WHERE state = " LK_SQL_JOB_LEASED
    " LIMIT 1000000) AS h), (SELECT count(*) "
    "FROM (SELECT FROM latchkey.job WHERE state = " LK_SQL_JOB_UNCERTAIN
    " LIMIT 1000000) AS i), "
    "(SELECT count(*) FROM (SELECT FROM latchkey.job WHERE state "
    "= " LK_SQL_JOB_DEAD " LIMIT "
    "1000000) AS k), least((SELECT min(deadline_ms) FROM latchkey.operation "
    "WHERE state = " LK_SQL_STATE_UNCERTAIN
    "), (SELECT min(deadline_ms) FROM latchkey.operation "
    "WHERE state = " LK_SQL_STATE_IN_PROGRESS
    " AND deadline_ms <= n.now AND NOT queued)), (SELECT "
    "min(ended_ms) FROM latchkey.job WHERE state = " LK_SQL_JOB_UNCERTAIN
    ") FROM (SELECT "
    "latchkey.now_ms() AS now OFFSET 0) AS n";

enum {
    FINISHED_MOST = 50000,
    ESTIMATE = 5,
    BYTES,
    LAST_TOKEN,
    NOW,
    DEAD,
    JOBS, /* waiting, leased, uncertain, dead */
    OLDEST_OPERATION = JOBS + LK_JOB_DELIVERED,
    OLDEST_JOB,
};

/* Finished operations beyond FINISHED_MOST are estimated by the server's
 * statistics, as completed ones. */
static void take_counts(const PGresult *result, struct lk_pg_counts *counts)
{
    uint64_t estimate = lk_pg_uint(result, 0, ESTIMATE);

    for (int i = 1; i <= 5; i++) {
        counts->by_state[i] = lk_pg_uint(result, 0, i - 1);
        counts->operations += counts->by_state[i];
    }
    if (counts->by_state[LK_STATE_COMPLETED] >= FINISHED_MOST &&
        estimate > counts->operations) {
        counts->by_state[LK_STATE_COMPLETED] += estimate - counts->operations;
        counts->operations = estimate;
    }
    counts->bytes = lk_pg_uint(result, 0, BYTES);
    counts->dead = lk_pg_uint(result, 0, DEAD);
    for (int i = 0; i < LK_JOB_DELIVERED; i++) {
        counts->jobs[i] = lk_pg_uint(result, 0, JOBS + i);
    }
    counts->oldest_operation_ms = lk_pg_uint(result, 0, OLDEST_OPERATION);
    counts->oldest_uncertain_ms = lk_pg_uint(result, 0, OLDEST_JOB);
    if (counts->oldest_operation_ms &&
        (!counts->oldest_uncertain_ms ||
         counts->oldest_operation_ms < counts->oldest_uncertain_ms)) {
        counts->oldest_uncertain_ms = counts->oldest_operation_ms;
    }
}

/* The keeper's thread; at the opening, before that runs, the opening one. The
 * next count has to wait COUNT_TIMES as long as this one took. A failed count
 * leaves the old numbers. */
void lk_pg_count(struct lk_postgres *store, struct lk_pg_conn *conn)
{
    struct lk_pg_counts counts = {0};
    uint64_t started = lk_pg_clock_ns();
    PGresult *result;

    if (lk_pg_run(conn, count_operations, NULL, lk_pg_deadline(store),
                  &result)) {
        store->count_ns = lk_pg_clock_ns() + 10000 * MS_NS;
        return;
    }
    take_counts(result, &counts);
    uint64_t token = lk_pg_uint(result, 0, LAST_TOKEN);
    lk_pg_set_time(store, lk_pg_uint(result, 0, NOW));
    PQclear(result);
    pthread_mutex_lock(&store->lock);
    store->counts = counts;
    pthread_mutex_unlock(&store->lock);
    uint64_t last = atomic_load(&store->counters.last_token);
    while (token > last && !atomic_compare_exchange_weak(
                               &store->counters.last_token, &last, token)) {
    }
    uint64_t now = lk_pg_clock_ns();
    store->counted_ns = now;
    store->count_ns = now + (now - started) * COUNT_TIMES;
}

/* ---- sweeping and reaping --------------------------------------------- */

/* Three turns of the keeper, within the two bounds: one that is late twice
 * keeps its lease. */
static uint64_t lease_ms(struct lk_postgres *store)
{
    uint64_t lease = LEASE_TURNS * atomic_load(&store->keep_every_ms);

    lease = lease < LEASE_MOST_MS ? lease : LEASE_MOST_MS;
    return lease > LEASE_LEAST_MS ? lease : LEASE_LEAST_MS;
}

/* Through a pooler the isolation level may be one with conflicts. */
static enum lk_status run_keeping(struct lk_postgres *store, const char *sql,
                                  const struct lk_pg_params *params,
                                  PGresult **result)
{
    enum lk_status status = LK_UNAVAILABLE;
    uint64_t deadline_ns = lk_pg_deadline(store);

    for (int i = 0; i < TRIES && status == LK_UNAVAILABLE; i++) {
        status = lk_pg_run(&store->keeper, sql, params, deadline_ns, result);
        if (!lk_pg_is_conflict(&store->keeper)) {
            break;
        }
    }
    return status;
}

/* Takes or keeps the lease. *keeper stays as it is if that failed. */
static enum lk_status run_sweeper(struct lk_postgres *store, bool *keeper,
                                  bool *more)
{
    struct lk_pg_params params = {0};
    PGresult *result;

    lk_pg_add_text(&params, latchkey_slice(store->holder));
    lk_pg_add_int(&params, (int64_t)lease_ms(store));
    lk_pg_add_int(&params, store->config.reap_rows);
    enum lk_status status = run_keeping(
        store,
        "SELECT keeper, swept, more FROM latchkey.keep($1, $2, $3::integer)",
        &params, &result);
    if (!status && PQntuples(result)) {
        *keeper = lk_pg_int(result, 0, 0);
        atomic_fetch_add(&store->counters.swept,
                         take_settled_array(store, lk_pg_bytes(result, 0, 1)));
        *more |= lk_pg_int(result, 0, 2) != 0;
    }
    PQclear(result);
    return status;
}

/* From where it was left off the last time. */
static enum lk_status run_reaper(struct lk_postgres *store, bool *more)
{
    struct lk_pg_params params = {0};
    PGresult *result;

    lk_pg_add_text(&params, latchkey_slice(store->holder));
    lk_pg_add_int(&params, store->config.reap_rows);
    lk_pg_add_int(&params, store->reap_state);
    lk_pg_add_int(&params, store->reap_from_ms);
    enum lk_status status =
        run_keeping(store,
                    "SELECT reaped, more, next_state, next_ms FROM "
                    "latchkey.reap($1, $2::integer, $3::integer, $4)",
                    &params, &result);
    if (!status && PQntuples(result)) {
        atomic_fetch_add(&store->counters.reaped, lk_pg_uint(result, 0, 0));
        *more |= lk_pg_int(result, 0, 1) != 0;
        store->reap_state = lk_pg_int(result, 0, 2);
        store->reap_from_ms = lk_pg_int(result, 0, 3);
    }
    PQclear(result);
    return status;
}

/* Logs each kind of failure once, until it works again. */
static void log_failure_once(struct lk_postgres *store, enum lk_status status,
                             const char *who, char complaint[6])
{
    const char *state = store->keeper.sqlstate;

    if (status == LK_UNAVAILABLE && strcmp(complaint, state) != 0) {
        lk_pg_log(store, LK_PG_WARN, "the %s fails: %s (%s)", who,
                  store->keeper.message, state);
    }
    snprintf(complaint, 6, "%s", status == LK_UNAVAILABLE ? state : "");
}

/* Two transactions: neither is undone when the other one fails. */
static enum lk_status keep_once(struct lk_postgres *store)
{
    bool keeper = true;
    bool more = false;
    enum lk_status status = run_sweeper(store, &keeper, &more);

    log_failure_once(store, status, "sweeper", store->sweeper_sqlstate);
    if (!keeper) {
        store->reap_state = LK_STATE_COMPLETED;
        store->reap_from_ms = 0;
    } else if (store->keeper.pg) {
        enum lk_status reaped = run_reaper(store, &more);
        log_failure_once(store, reaped, "reaper", store->reaper_sqlstate);
        status = reaped ? reaped : status;
    }
    store->keep_again_ns =
        more && !status ? lk_pg_clock_ns() + KEEP_PAUSE_MS * MS_NS : 0;
    return status;
}

/* Lane 0, when a batch has `keep` set: it only wakes the thread. How often it
 * comes decides how long the lease has to last. */
void lk_pg_keep_turn(struct lk_postgres *store)
{
    uint64_t now = lk_pg_clock_ns();

    if (store->keep_turn_ns) {
        atomic_store(&store->keep_every_ms,
                     (now - store->keep_turn_ns) / MS_NS);
    }
    store->keep_turn_ns = now;
    atomic_store(&store->keep_wanted, true);
    lk_pg_keeper_wake(store);
}

/* ---- the thread ------------------------------------------------------- */

/* The earlier of two times; a `b` of 0 does not count. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

static bool has_notifications(struct lk_postgres *store)
{
    pthread_mutex_lock(&store->hints_lock);
    bool any = store->notify_count != 0 || store->notify_jobs;
    pthread_mutex_unlock(&store->hints_lock);
    return any;
}

/* Until there is something to do. */
static void sleep_until_due(struct lk_postgres *store)
{
    uint64_t now = lk_pg_clock_ns();
    uint64_t due = now + RECONNECT_MS * MS_NS;
    struct pollfd wait[] = {
        {.fd = store->event_fd, .events = POLLIN},
        {.fd = store->keeper.pg ? PQsocket(store->keeper.pg) : -1,
         .events = POLLIN},
    };
    uint64_t count;

    due = earlier(due, store->keep_again_ns);
    if (has_notifications(store)) {
        due = earlier(due, store->notify_after_ns);
    }
    int ms = due > now ? (int)((due - now) / MS_NS) + 1 : 0;
    if (!atomic_load(&store->keep_wanted) && !atomic_load(&store->stopping)) {
        poll(wait, 2, ms);
    }
    if (wait[0].revents && read(store->event_fd, &count, sizeof(count)) < 0) {
        return; /* there was no event: nothing is lost */
    }
}

/* The lanes know best whether the server works; but they may be idle. */
static void note_health(struct lk_postgres *store, enum lk_status status,
                        uint64_t started_ns)
{
    if (!status) {
        atomic_store(&store->last_success_ns, lk_pg_clock_ns());
    } else if ((status == LK_CLOSED || status == LK_TIMEOUT) &&
               atomic_load(&store->last_success_ns) < started_ns) {
        lk_pg_set_failure(store, store->keeper.message);
    }
}

/* Without a connection nothing can be kept, and notifications are dropped. */
static void drop_pending(struct lk_postgres *store)
{
    store->listening = false;
    store->keep_again_ns = 0;
    atomic_store(&store->keep_wanted, false);
    pthread_mutex_lock(&store->hints_lock);
    store->notify_count = 0;
    store->notify_jobs = false;
    pthread_mutex_unlock(&store->hints_lock);
}

/* Now and then: how much there is, and whether it is as safe as it was. */
static void count_and_recheck(struct lk_postgres *store)
{
    lk_pg_count(store, &store->keeper);
    if (store->keeper.pg) {
        lk_pg_recheck(&store->keeper, lk_pg_deadline(store));
    }
}

/* One round of the thread. Each part looks again whether there is still a
 * connection, because the part before may have lost it. */
static void keeper_step(struct lk_postgres *store)
{
    struct lk_pg_conn *conn = &store->keeper;
    uint64_t started_ns = lk_pg_clock_ns();
    uint64_t deadline_ns = lk_pg_deadline(store);
    enum lk_status status = lk_pg_ready(conn, deadline_ns);
    bool has_swept = false;

    if (status) {
        drop_pending(store);
        return;
    }
    if (conn->reconnected) {
        conn->reconnected = false;
        store->listening = false;
    }
    start_listening(store, deadline_ns);
    if (conn->pg &&
        (atomic_exchange(&store->keep_wanted, false) ||
         (store->keep_again_ns && lk_pg_clock_ns() >= store->keep_again_ns))) {
        status = keep_once(store);
        note_health(store, status, started_ns);
        has_swept = true;
    }
    /* A daemon that does not hold the lease is also asked for numbers. */
    if (conn->pg && lk_pg_clock_ns() >= store->count_ns &&
        (has_swept ||
         lk_pg_clock_ns() - store->counted_ns >= COUNT_MS * MS_NS)) {
        count_and_recheck(store);
    }
    if (conn->pg && has_notifications(store) &&
        lk_pg_clock_ns() >= store->notify_after_ns) {
        log_failure_once(store,
                         send_notifications(store, lk_pg_deadline(store)),
                         "notifier", store->notifier_sqlstate);
    }
    if (conn->pg) {
        read_notifications(store);
    }
}

/* So that another daemon need not wait until the lease has run out. */
static void give_up_lease(struct lk_postgres *store)
{
    struct lk_pg_params params = {0};
    PGresult *result;

    lk_pg_add_text(&params, latchkey_slice(store->holder));
    if (store->keeper.pg &&
        !lk_pg_run(&store->keeper,
                   "UPDATE latchkey.keeper SET until_ms = 0 "
                   "WHERE name = 'keeper' AND holder = $1",
                   &params, lk_pg_clock_ns() + 500 * MS_NS, &result)) {
        PQclear(result);
    }
}

/* The keeper's thread. */
static void *run_keeper(void *context)
{
    struct lk_postgres *store = context;

    while (!atomic_load(&store->stopping)) {
        keeper_step(store);
        sleep_until_due(store);
    }
    give_up_lease(store);
    return NULL;
}

void lk_pg_keeper_wake(struct lk_postgres *store)
{
    uint64_t one = 1;

    if (write(store->event_fd, &one, sizeof(one)) < 0) {
        return; /* it is awake as often as can be */
    }
}

enum lk_status lk_pg_keeper_start(struct lk_postgres *store)
{
    if (pthread_create(&store->thread, NULL, run_keeper, store)) {
        return LK_NOMEM;
    }
    store->thread_runs = true;
    return LK_OK;
}

/* Waits for the end of a step, whose statements store.timeout bounds. */
void lk_pg_keeper_stop(struct lk_postgres *store)
{
    atomic_store(&store->stopping, true);
    if (store->thread_runs) {
        lk_pg_keeper_wake(store);
        pthread_join(store->thread, NULL);
        store->thread_runs = false;
    }
}
