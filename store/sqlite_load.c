/*
 * sqlite_load.c - the index from the rows, when the store is opened: one scan
 * of the claims (the latest of each operation counts), one of their outcomes,
 * and one of unfinished jobs.
 *
 * It also runs when the file was opened again after a failure. Then the file
 * has to hold everything that was acknowledged before; otherwise it is refused.
 * The new index replaces the old one only when all of it has been read.
 *
 * Damage in one row makes that operation uncertain or is left to VERIFY; the
 * store is refused (LK_CORRUPT) only where a row cannot be attributed, or where
 * its time would become the store's clock.
 */
#include "store/sqlite.h"

#include <string.h>

uint64_t lk_fingerprint_hash(const struct lk_sqlite *store,
                             struct lk_slice fingerprint)
{
    return lk_siphash64(store->store.secret, fingerprint.data, fingerprint.len);
}

unsigned lk_owner_hash(const struct lk_sqlite *store, struct lk_slice owner)
{
    return lk_siphash64(store->store.secret, owner.data, owner.len) & 0xff;
}

/* An operation with unfinished jobs does not expire, whatever its deadline. */
bool lk_entry_expired(const struct lk_entry *entry, uint64_t now)
{
    return (entry->state == LK_STATE_COMPLETED ||
            entry->state == LK_STATE_RELEASED) &&
           !entry->jobs && entry->deadline <= now;
}

/* The number of an operation is the token of its first claim, so never larger
 * than this claim's token. Anything else is damage, or a first claim. */
uint64_t lk_claim_number(uint64_t number, uint64_t token)
{
    return number && number <= token ? number : token;
}

/* The state right after a claim, or after ACCEPT (lock LK_LOCK_NONE). */
void lk_entry_start(struct lk_entry *entry, uint64_t at, int64_t lock)
{
    bool accepted = lock == LK_LOCK_NONE;

    entry->state = accepted ? LK_STATE_ACCEPTED : LK_STATE_IN_PROGRESS;
    entry->deadline = accepted ? at : at + (uint64_t)lock;
}

/* The state after an outcome row. `until` is the end of the TTL or of the lock
 * or, for an uncertain operation, the time it became uncertain. */
void lk_entry_apply(struct lk_entry *entry, enum lk_row_kind kind,
                    uint64_t until)
{
    switch (kind) {
    case LK_ROW_COMPLETE:
    case LK_ROW_OMIT:
        entry->state = LK_STATE_COMPLETED;
        entry->omitted = kind == LK_ROW_OMIT;
        entry->deadline = until;
        break;
    case LK_ROW_RELEASE:
    case LK_ROW_EVICT:
        entry->state = LK_STATE_RELEASED;
        entry->evicted = kind == LK_ROW_EVICT;
        entry->deadline = until;
        break;
    case LK_ROW_DOUBT:
    case LK_ROW_LAPSE:
        entry->state = LK_STATE_UNCERTAIN;
        entry->deadline = until;
        break;
    case LK_ROW_EXTEND:
        entry->state = LK_STATE_IN_PROGRESS;
        entry->deadline = until;
        break;
    case LK_ROW_RETURN:
        entry->state = LK_STATE_ACCEPTED;
        entry->deadline = until;
        break;
    default:
        /* Damage: the state is unknown, and no timer may overwrite the row. */
        entry->state = LK_STATE_UNCERTAIN;
        entry->deadline = until;
        break;
    }
}

/* An entry has 48 bits for a time. */
#define TIME_END (INT64_C(1) << 47)

/* One scan of the rows; on the stack of lk_sqlite_load. */
struct loading {
    struct lk_sqlite *store;
    struct lk_index *index;
    int64_t claim_rows;
    uint64_t last_token;
    uint64_t highest_ms;
};

static void note_time(struct loading *loading, uint64_t at)
{
    if (at > loading->highest_ms) {
        loading->highest_ms = at;
    }
}

/* In the order of tokens, so the last claim of an operation wins. */
static enum lk_status load_claim(struct loading *loading, sqlite3_stmt *row)
{
    struct lk_entry entry = {0};
    uint64_t token = (uint64_t)sqlite3_column_int64(row, 0);
    uint64_t number = (uint64_t)sqlite3_column_int64(row, 2);
    uint64_t attempt = (uint64_t)sqlite3_column_int64(row, 3);
    uint64_t at = (uint64_t)sqlite3_column_int64(row, 4);
    int64_t lock = sqlite3_column_int64(row, 5);

    /* A time of the future would become the store's clock. */
    if (sqlite3_column_bytes(row, 1) != sizeof(entry.hash) || !token ||
        token > LK_REFERENCE_MAX || at >= (uint64_t)TIME_END) {
        return LK_CORRUPT;
    }
    if (lock < LK_LOCK_NONE || lock >= TIME_END) {
        lock = 0; /* damage: it has lapsed, and becomes uncertain */
    }
    memcpy(&entry.hash, sqlite3_column_blob(row, 1), sizeof(entry.hash));
    entry.token = token;
    entry.number = lk_claim_number(number, token);
    entry.attempt = attempt > UINT16_MAX ? UINT16_MAX : attempt;
    lk_entry_start(&entry, at, lock);
    entry.ttl = lk_ttl_pack((uint64_t)sqlite3_column_int64(row, 6));
    entry.owner = lk_owner_hash(loading->store, lk_column(row, 7));
    entry.fingerprint = lk_fingerprint_hash(loading->store, lk_column(row, 8));
    entry.keeps = sqlite3_column_type(row, 9) != SQLITE_NULL;
    note_time(loading, at);
    loading->claim_rows++;
    loading->last_token = token;
    return lk_index_put(loading->index, &entry);
}

/* An outcome counts only for the claim that the index has. */
static enum lk_status load_outcome(struct loading *loading, sqlite3_stmt *row)
{
    struct lk_hash128 hash;
    enum lk_row_kind kind = (enum lk_row_kind)sqlite3_column_int(row, 1);
    uint64_t until = (uint64_t)sqlite3_column_int64(row, 3);

    if (sqlite3_column_bytes(row, 4) != sizeof(hash)) {
        return LK_CORRUPT;
    }
    if (until >= 2 * (uint64_t)TIME_END) {
        /* Damage, which must not end the TTL early: as an unknown kind. */
        kind = LK_ROW_UNKNOWN;
        until = (uint64_t)sqlite3_column_int64(row, 2);
    }
    note_time(loading, (uint64_t)sqlite3_column_int64(row, 2));
    memcpy(&hash, sqlite3_column_blob(row, 4), sizeof(hash));
    const struct lk_entry *found = lk_index_find(loading->index, hash);
    if (!found || found->token != (uint64_t)sqlite3_column_int64(row, 0)) {
        return LK_OK; /* of a claim that was overtaken */
    }
    struct lk_entry entry = *found;
    lk_entry_apply(&entry, kind, until);
    return lk_index_put(loading->index, &entry);
}

/* An unfinished job marks its operation. */
static enum lk_status load_job(struct loading *loading, sqlite3_stmt *row)
{
    struct lk_hash128 hash;

    if (sqlite3_column_bytes(row, 0) != sizeof(hash)) {
        return LK_CORRUPT;
    }
    memcpy(&hash, sqlite3_column_blob(row, 0), sizeof(hash));
    const struct lk_entry *found = lk_index_find(loading->index, hash);
    if (!found || found->number != (uint64_t)sqlite3_column_int64(row, 1)) {
        return LK_OK; /* damage; VERIFY reports it */
    }
    struct lk_entry entry = *found;
    entry.jobs = true;
    entry.queued |= sqlite3_column_int(row, 2) != 0;
    return lk_index_put(loading->index, &entry);
}

static enum lk_status scan_table(struct loading *loading, const char *sql,
                                 enum lk_status (*load)(struct loading *,
                                                        sqlite3_stmt *))
{
    sqlite3_stmt *rows = NULL;
    int code = sqlite3_prepare_v2(loading->store->writer, sql, -1, &rows, NULL);
    enum lk_status status = lk_sqlite_status(code);

    while (!status && (code = sqlite3_step(rows)) == SQLITE_ROW) {
        status = load(loading, rows);
    }
    sqlite3_finalize(rows);
    return status ? status : lk_sqlite_status(code);
}

/* The time and boot that the last batch stored; zero: a new store. */
static struct lk_moment read_moment(sqlite3 *db)
{
    struct lk_moment moment;

    if (lk_meta_get_bytes(db, "moment", &moment, sizeof(moment))) {
        return (struct lk_moment){0};
    }
    moment.boot_id[LK_BOOT_ID - 1] = '\0';
    return moment;
}

/* A reopened store must also not be earlier than its own decisions. */
static void start_clock(struct lk_sqlite *store, const struct lk_moment *last,
                        uint64_t highest)
{
    lk_clock_start(&store->clock, last,
                   highest > store->last_ms ? highest : store->last_ms,
                   store->config.clock_jump_ms);
    store->last_ms = lk_clock_now(&store->clock);
}

static bool is_same_entry(const struct lk_entry *a, const struct lk_entry *b)
{
    if (!a || !b) {
        return a == b;
    }
    return a->token == b->token && a->number == b->number &&
           a->state == b->state && a->deadline == b->deadline &&
           a->jobs == b->jobs && a->queued == b->queued;
}

/*
 * The index holds everything acknowledged, and the overlay still holds what the
 * failed batch would have changed. Each operation that was read must equal one
 * of the two; else the file is an older one.
 */
static bool has_acknowledged(const struct lk_sqlite *store,
                             const struct lk_index *fresh)
{
    const struct lk_index *known = &store->index;

    for (uint32_t ref = 0; ref < known->used; ref++) {
        const struct lk_entry *entry = lk_index_at(known, ref);
        const struct lk_entry *found = lk_index_find(fresh, entry->hash);
        if (lk_index_find(known, entry->hash) == entry &&
            !is_same_entry(found, entry) &&
            !is_same_entry(
                found, lk_overlay_find(&store->overlay, known, entry->hash))) {
            return false;
        }
    }
    return true;
}

/* Publishes the new index. Tokens never go back, not even if the newest rows
 * are missing. */
static void use_index(struct lk_sqlite *store, struct loading *loading,
                      struct lk_index *fresh)
{
    pthread_mutex_lock(&store->index_lock);
    struct lk_index old = store->index;
    store->index = *fresh;
    pthread_mutex_unlock(&store->index_lock);
    lk_index_free(&old);

    if (loading->last_token + 1 > store->next_token) {
        store->next_token = loading->last_token + 1;
    }
    atomic_store(&store->last_token, store->next_token - 1);
    lk_overlay_drop(&store->overlay);
    lk_reaper_count(store, loading->claim_rows);
}

/* LK_OK: index, counts, clock, and next token are those of the file. A failure
 * leaves the old index in place. */
enum lk_status lk_sqlite_load(struct lk_sqlite *store, struct lk_buf *error)
{
    struct lk_index fresh;
    struct loading loading = {.store = store, .index = &fresh};
    struct lk_moment last = read_moment(store->writer);
    int64_t high = 0;
    /* The wheel starts no later than the clock will, and turns to it. */
    enum lk_status status = lk_index_init(&fresh, last.at_ms);

    if (!status) {
        status =
            scan_table(&loading,
                       "SELECT token, hash, number, attempt, at, lock, ttl, "
                       "owner, fingerprint, keep FROM claim ORDER BY token",
                       load_claim);
    }
    if (!status) {
        status = scan_table(&loading,
                            "SELECT token, kind, at, until, hash FROM outcome "
                            "ORDER BY token",
                            load_outcome);
    }
    if (!status) {
        status = scan_table(&loading,
                            "SELECT hash, number, name = '' FROM job "
                            "INDEXED BY job_open WHERE " LK_UNFINISHED,
                            load_job);
    }
    if (!status) {
        status = lk_meta_get(store->writer, "high_token", &high);
    }
    if (!status && lk_sqlite_is_reopening(store) &&
        !has_acknowledged(store, &fresh)) {
        status = lk_sqlite_refuse_file(store, error);
    }
    if (!status) {
        status = lk_counts_load(store);
    }
    if (status) {
        lk_index_free(&fresh);
        return status;
    }
    /* The newest rows may have been reaped; their tokens stay used. */
    if ((uint64_t)high > loading.last_token) {
        loading.last_token = (uint64_t)high;
    }
    start_clock(store, &last, loading.highest_ms);
    if (fresh.count == 0) {
        fresh.tick = store->last_ms / LK_WHEEL_TICK_MS;
    }
    use_index(store, &loading, &fresh);
    return LK_OK;
}
