/*
 * postgres_notify.c - hints between daemons: this operation has settled, look
 * again if somebody waits for it; and a job was queued, by a daemon or an app.
 *
 * An operation travels as the number that its key is locked by. Only a small
 * table knows which operations these are, and everything here may be lost:
 * whoever waits asks again by itself now and then.
 */
#include "store/postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANNEL "latchkey_settled"
#define JOBS    "latchkey_job" /* as latchkey.enqueue has it */
#define MS_NS   UINT64_C(1000000)

enum {
    TELL_MS = 20, /* at least, between two transactions that tell */
    TELL_FAILED_MS = 1000,
    TELL_MOST = 4096, /* waiting to be told; more are forgotten */
    HEARD_MOST = 4096,
    DIGITS = 16,
    PAYLOAD_IDS = 400, /* a payload has room for 8000 bytes */
};

/* ---- what settled elsewhere ------------------------------------------- */

static struct lk_pg_waiting *slot(struct lk_postgres *store, int64_t lock_id)
{
    return &store->waiting[(uint64_t)lock_id % LK_PG_WAITING];
}

/* What somebody waits for is not driven out by what was only begun. */
void lk_pg_remember(struct lk_postgres *store, int64_t lock_id,
                    struct lk_hash128 hash, bool waited)
{
    struct lk_pg_waiting *at = slot(store, lock_id);

    if (waited || !at->used || !at->waited) {
        *at = (struct lk_pg_waiting){lock_id, hash, true, waited};
    }
}

/* The caller holds hints_lock. */
static void hear(struct lk_postgres *store, int64_t lock_id)
{
    struct lk_pg_waiting *at = slot(store, lock_id);

    if (!at->used || at->lock_id != lock_id) {
        return;
    }
    at->used = false;
    if (store->heard_count < HEARD_MOST) {
        store->heard[store->heard_count++] = at->hash;
    } else {
        store->heard_all = true;
    }
    atomic_store(&store->hinted, true);
}

static void wake_daemon(struct lk_postgres *store)
{
    if (atomic_load(&store->hinted) && store->config.wake) {
        store->config.wake(store->config.wake_context);
    }
}

void lk_pg_hear(struct lk_postgres *store, int64_t lock_id)
{
    pthread_mutex_lock(&store->hints_lock);
    hear(store, lock_id);
    pthread_mutex_unlock(&store->hints_lock);
    wake_daemon(store);
}

/* As the server sends it: a head of five words, then each number behind its
 * length. */
size_t lk_pg_hear_array(struct lk_postgres *store, struct lk_slice array)
{
    enum { HEAD = 20, ITEM = 12 };
    size_t count = 0;

    for (size_t at = HEAD; at + ITEM <= array.len; at += ITEM, count++) {
        uint64_t id = 0;
        for (int i = 4; i < ITEM; i++) {
            id = id << 8 | (uint8_t)array.data[at + (size_t)i];
        }
        lk_pg_hear(store, (int64_t)id);
        pthread_mutex_lock(&store->hints_lock);
        lk_pg_tell(store, (int64_t)id);
        pthread_mutex_unlock(&store->hints_lock);
    }
    return count;
}

void lk_pg_hear_all(struct lk_postgres *store)
{
    pthread_mutex_lock(&store->hints_lock);
    store->heard_all = true;
    store->heard_job = true;
    atomic_store(&store->hinted, true);
    pthread_mutex_unlock(&store->hints_lock);
    wake_daemon(store);
}

void lk_pg_take_heard(struct lk_postgres *store, struct lk_batch *batch)
{
    if (!atomic_load(&store->hinted)) {
        return;
    }
    pthread_mutex_lock(&store->hints_lock);
    for (size_t i = 0; i < store->heard_count; i++) {
        if (lk_batch_settle(batch, store->heard[i])) {
            batch->settle_all = true;
            break;
        }
    }
    batch->settle_all |= store->heard_all;
    batch->queued |= store->heard_job;
    store->heard_count = 0;
    store->heard_all = false;
    store->heard_job = false;
    atomic_store(&store->hinted, false);
    pthread_mutex_unlock(&store->hints_lock);
}

static void take_payload(struct lk_postgres *store, const char *payload)
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
        hear(store, (int64_t)id);
        payload += DIGITS;
    }
}

void lk_pg_take_notices(struct lk_postgres *store)
{
    PGconn *pg = store->keeper.pg;
    PGnotify *notice;

    while ((notice = PQnotifies(pg))) {
        pthread_mutex_lock(&store->hints_lock);
        if (notice->be_pid == PQbackendPID(pg)) {
            ; /* our own words */
        } else if (!strcmp(notice->relname, JOBS)) {
            store->heard_job = true;
            atomic_store(&store->hinted, true);
        } else {
            take_payload(store, notice->extra);
        }
        pthread_mutex_unlock(&store->hints_lock);
        PQfreemem(notice);
    }
    wake_daemon(store);
}

void lk_pg_listen(struct lk_postgres *store, uint64_t deadline_ns)
{
    if (!store->config.notify || store->config.pooler || store->listening) {
        return;
    }
    store->listening = !lk_pg_script(
        &store->keeper, "LISTEN " CHANNEL "; LISTEN " JOBS, deadline_ns);
    if (store->listening) {
        lk_pg_hear_all(store); /* nobody knows what was missed */
    }
}

/* ---- what settled here ------------------------------------------------ */

void lk_pg_tell(struct lk_postgres *store, int64_t lock_id)
{
    slot(store, lock_id)->used &= slot(store, lock_id)->lock_id != lock_id;
    if (store->config.notify && !store->config.pooler &&
        store->telling_count < TELL_MOST) {
        store->telling[store->telling_count++] = lock_id;
    }
}

void lk_pg_tell_job(struct lk_postgres *store)
{
    store->telling_jobs = store->config.notify && !store->config.pooler;
}

/* The next payload; false: there is nothing left to tell. */
static bool take_telling(struct lk_postgres *store, char *payload, size_t size)
{
    size_t used = 0;
    size_t told = 0;

    pthread_mutex_lock(&store->hints_lock);
    while (told < store->telling_count && told < PAYLOAD_IDS) {
        size_t at = store->telling_count - 1 - told++;
        used += (size_t)snprintf(payload + used, size - used, "%016llx",
                                 (unsigned long long)store->telling[at]);
    }
    store->telling_count -= told;
    pthread_mutex_unlock(&store->hints_lock);
    return told;
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
enum lk_status lk_pg_send_notices(struct lk_postgres *store,
                                  uint64_t deadline_ns)
{
    char payload[PAYLOAD_IDS * DIGITS + 1];
    struct lk_buf sql = {0};
    pthread_mutex_lock(&store->hints_lock);
    bool any = store->telling_jobs;
    store->telling_jobs = false;
    pthread_mutex_unlock(&store->hints_lock);
    enum lk_status status =
        latchkey_buf_printf(&sql, "BEGIN; SET LOCAL synchronous_commit = off%s",
                            any ? "; SELECT pg_notify('" JOBS "', '')" : "");

    while (!status && take_telling(store, payload, sizeof(payload))) {
        any = true;
        status = latchkey_buf_printf(
            &sql, "; SELECT pg_notify('" CHANNEL "', '%s')", payload);
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
    store->tell_ns =
        lk_pg_clock_ns() + (status ? TELL_FAILED_MS : TELL_MS) * MS_NS;
    return status;
}
