/*
 * sqlite_import.c - importing the operations and the audit log of another
 * store, and what the store promises.
 *
 * An imported operation gets the rows that it would have if it had been made
 * here: its claim at its token, a first claim at its number where that is
 * another one, its outcome and its response. A start uses the highest token of
 * a name as the present claim, so no row of the same name may be above it.
 *
 * If this store has used a token for another name, the operation gets the next
 * free one. Its holder then gets STALE, and a later pass finds it newer than in
 * the other store; both are safe for what is open or completed. A released
 * operation without a free place is left out: it would hide a claim that a
 * later pass imports.
 */
#include "store/sqlite.h"

#include <stdlib.h>
#include <string.h>

enum lk_status lk_sqlite_describe(struct lk_store *store, struct lk_buf *text,
                                  bool *strict)
{
    (void)store; /* may be NULL: no setting makes it promise less */
    *strict = true;
    return latchkey_buf_add_text(
        text,
        "An acknowledged claim or result survives power loss: it is synced to "
        "the disk before it is acknowledged.\n"
        "One latchkeyd owns the file; it cannot be shared with another "
        "machine.\n"
        "If the disk itself is lost, so is everything since the last "
        "backup.\n");
}

/* ---- which of two is newer -------------------------------------------- */

/* The order of states under one token. Completed wins over released: it has
 * run. */
static unsigned state_rank(enum lk_state state, bool evicted)
{
    switch (state) {
    case LK_STATE_IN_PROGRESS:
        return 1;
    case LK_STATE_UNCERTAIN:
        return 2;
    case LK_STATE_COMPLETED:
        return 4;
    case LK_STATE_RELEASED:
        return evicted ? 5 : 3;
    default:
        return 0;
    }
}

/* The same state with a later end counts too: KEEP and EXTEND are promises. */
static bool is_newer(const struct lk_operation *operation,
                     const struct lk_entry *before)
{
    unsigned now = state_rank(operation->state, operation->evicted);
    unsigned was = state_rank((enum lk_state)before->state, before->evicted);

    if (operation->token != before->token) {
        return operation->token > before->token;
    }
    if (now != was) {
        return now > was;
    }
    return (operation->state != LK_STATE_UNCERTAIN &&
            lk_operation_deadline(operation) > before->deadline) ||
           (operation->keep_ms && !before->keeps);
}

/* ---- where it goes ---------------------------------------------------- */

/* Where the rows of an imported operation go. */
struct place {
    uint64_t token;
    uint64_t number;
    bool there;       /* the row of its token is its own already */
    bool needs_first; /* a row for its number has to be made */
    bool moved;       /* not at the token that it had */
};

enum occupant { NO_ROW, SAME_NAME, OTHER_NAME };

/* Whose claim has this token here? */
static enum lk_status find_occupant(struct lk_sqlite *store, uint64_t token,
                                    const struct lk_hash128 *hash,
                                    enum occupant *occupant)
{
    sqlite3_stmt *row = store->statements[LK_STATEMENT_HASH];

    sqlite3_bind_int64(row, 1, (int64_t)token);
    int code = sqlite3_step(row);
    *occupant = NO_ROW;
    if (code == SQLITE_ROW) {
        struct lk_slice stored = lk_column(row, 0);
        bool same = stored.len == sizeof(*hash) &&
                    memcmp(stored.data, hash, sizeof(*hash)) == 0;
        *occupant = same ? SAME_NAME : OTHER_NAME;
    }
    sqlite3_reset(row);
    return lk_sqlite_status(code);
}

/* Whether rows of the same name may be above the token, which a start would use
 * instead. Rows of operations that left the index cannot be seen. */
static bool is_hidden(const struct lk_sqlite *store,
                      const struct lk_operation *operation,
                      const struct lk_entry *before)
{
    return before ? before->token > operation->token
                  : operation->token <= store->forgotten;
}

/* Its own token and number if they are free here or its own already; otherwise
 * the next free token. A number is never above its token. */
static enum lk_status find_place(struct lk_sqlite *store,
                                 const struct lk_operation *operation,
                                 const struct lk_hash128 *hash,
                                 const struct lk_entry *before,
                                 struct place *place)
{
    enum occupant occupant;
    enum lk_status status =
        find_occupant(store, operation->token, hash, &occupant);

    *place =
        (struct place){.token = operation->token, .number = operation->number};
    place->there = occupant == SAME_NAME;
    if (occupant == OTHER_NAME || is_hidden(store, operation, before)) {
        place->token = store->next_token;
        place->there = false;
        place->moved = true;
    }
    if (status || place->moved || !place->number ||
        place->number >= place->token) {
        place->number = place->token;
        return status;
    }
    status = find_occupant(store, place->number, hash, &occupant);
    place->needs_first = occupant == NO_ROW;
    if (occupant == OTHER_NAME) {
        place->number = place->token;
    }
    return status;
}

/* ---- its rows --------------------------------------------------------- */

/* The row by which the reference is found; a later claim overtakes it. */
static enum lk_status write_first(struct lk_sqlite *store,
                                  const struct lk_operation *operation,
                                  const struct lk_entry *entry, uint64_t at)
{
    struct lk_entry first = {.hash = entry->hash,
                             .token = entry->number,
                             .number = entry->number,
                             .deadline = at};
    struct lk_operation bare = {.name = operation->name,
                                .fingerprint = operation->fingerprint,
                                .attempt = 1,
                                .ttl_ms = operation->ttl_ms};

    store->reaper.claim_rows++;
    return lk_sqlite_import_row(store, &bare, &first, at);
}

static enum lk_status delete_token(struct lk_sqlite *store,
                                   enum lk_statement statement, uint64_t token)
{
    sqlite3_bind_int64(store->statements[statement], 1, (int64_t)token);
    sqlite3_bind_int64(store->statements[statement], 2, (int64_t)token);
    return lk_sqlite_run(store, statement);
}

/* Deletes its earlier outcome and response under the same token. */
static enum lk_status clear_earlier(struct lk_sqlite *store, uint64_t token)
{
    enum lk_status status = lk_sqlite_begin(store);

    if (!status) {
        status = delete_token(store, LK_STATEMENT_DELETE_OUTCOMES, token);
    }
    return status ? status
                  : delete_token(store, LK_STATEMENT_DELETE_STORED, token);
}

/* The response first, then the outcome that refers to it, as a COMPLETE
 * does. */
static enum lk_status write_completed(struct lk_sqlite *store,
                                      const struct lk_operation *operation,
                                      const struct lk_entry *claim)
{
    struct lk_response status_only = {.status = operation->status};
    bool omitted = operation->omitted;
    enum lk_status status = lk_sqlite_write_stored(
        store, claim->token, operation->completed_ms,
        omitted ? operation->reason : (struct lk_slice){0},
        omitted ? &status_only : &operation->stored->response);

    return status ? status
                  : lk_sqlite_outcome(store, claim,
                                      omitted ? LK_ROW_OMIT : LK_ROW_COMPLETE,
                                      operation->expires_ms);
}

/* A lapsed lock is stored without a reason, as the sweeper does it. */
static enum lk_status write_uncertain(struct lk_sqlite *store,
                                      const struct lk_operation *operation,
                                      const struct lk_entry *claim)
{
    bool lapsed =
        !operation->reason.len ||
        latchkey_slice_equal(operation->reason, LK_SLICE("lock lapsed"));
    enum lk_status status = LK_OK;

    if (!lapsed) {
        status = lk_sqlite_write_stored(
            store, claim->token, operation->since_ms, operation->reason, NULL);
    }
    return status ? status
                  : lk_sqlite_outcome(store, claim,
                                      lapsed ? LK_ROW_LAPSE : LK_ROW_DOUBT,
                                      operation->since_ms);
}

/* An operation in progress has no outcome; its lock is in its claim. */
static enum lk_status write_state(struct lk_sqlite *store,
                                  const struct lk_operation *operation,
                                  const struct lk_entry *claim)
{
    switch (operation->state) {
    case LK_STATE_UNCERTAIN:
        return write_uncertain(store, operation, claim);
    case LK_STATE_COMPLETED:
        return write_completed(store, operation, claim);
    case LK_STATE_RELEASED:
        return lk_sqlite_outcome(
            store, claim, operation->evicted ? LK_ROW_EVICT : LK_ROW_RELEASE,
            operation->expires_ms);
    default:
        return LK_OK;
    }
}

/* Writes all rows of one operation and its entry; an earlier state of the same
 * token is replaced. */
static enum lk_status write_operation(struct lk_sqlite *store,
                                      const struct lk_operation *given,
                                      const struct lk_hash128 *hash,
                                      const struct lk_entry *before,
                                      const struct place *place)
{
    /* A clock that was ahead must not become this store's. */
    uint64_t now = store->last_ms;
    uint64_t at = given->claimed_ms < now ? given->claimed_ms : now;
    struct lk_operation operation = *given;
    enum lk_status status = LK_OK;

    operation.ttl_ms =
        operation.ttl_ms ? operation.ttl_ms : store->config.default_ttl_ms;
    struct lk_entry claim = {
        .hash = *hash,
        .token = place->token,
        .number = place->number,
        .attempt =
            operation.attempt > UINT16_MAX ? UINT16_MAX : operation.attempt,
        .state = LK_STATE_IN_PROGRESS,
        .owner = lk_owner_hash(store, operation.owner),
        .keeps = operation.keep_ms != 0,
        .deadline = operation.lock_until_ms > at ? operation.lock_until_ms : at,
        .ttl = lk_ttl_pack(operation.ttl_ms),
        .fingerprint = lk_fingerprint_hash(store, operation.fingerprint),
    };
    if (place->there) {
        status = clear_earlier(store, place->token);
    }
    if (!status && place->needs_first) {
        status = write_first(store, &operation, &claim, at);
    }
    if (!status) {
        store->reaper.claim_rows += !place->there;
        status = lk_sqlite_import_row(store, &operation, &claim, at);
    }
    if (!status) {
        status = lk_sqlite_replace(store, before, &claim);
    }
    return status ? status : write_state(store, &operation, &claim);
}

/* ---- the batch -------------------------------------------------------- */

struct operation_import {
    const struct lk_operation *operations;
    size_t count;
    struct lk_import result;
};

/* Tokens that another store has handed out are never handed out here. */
static void raise_token(struct lk_sqlite *store, uint64_t token)
{
    if (token >= store->next_token) {
        store->next_token = token + 1;
    }
}

/* Counts it as taken or as older. An operation with unfinished jobs here is
 * never replaced. */
static enum lk_status import_one(struct lk_sqlite *store,
                                 const struct lk_operation *operation,
                                 struct lk_import *result)
{
    struct lk_hash128 hash = lk_name_hash(store->store.secret, operation->name);
    const struct lk_entry *found =
        lk_overlay_find(&store->overlay, &store->index, hash);
    struct lk_entry before;
    struct place place;

    raise_token(store, operation->token);
    if (operation->token > result->highest_token) {
        result->highest_token = operation->token;
    }
    if (found) {
        before = *found; /* the overlay may move while we write */
        /* Its jobs belong to the operation as it is here. */
        if (before.jobs || (!lk_entry_expired(&before, store->last_ms) &&
                            !is_newer(operation, &before))) {
            result->older++;
            return LK_OK;
        }
    }
    enum lk_status status =
        find_place(store, operation, &hash, found ? &before : NULL, &place);
    if (status) {
        return status;
    }
    if (place.moved && operation->state == LK_STATE_RELEASED) {
        result->older++;
        return LK_OK;
    }
    raise_token(store, place.token);
    result->taken++;
    result->renumbered += place.number != operation->number;
    return write_operation(store, operation, &hash, found ? &before : NULL,
                           &place);
}

/* The highest token is written down: the rows that show it may expire. */
static enum lk_status import_all(struct lk_sqlite *store, void *context)
{
    struct operation_import *import = context;
    uint64_t next_token = store->next_token;
    enum lk_status status = LK_OK;

    raise_token(store, import->result.highest_token);
    for (size_t i = 0; i < import->count && !status; i++) {
        status = import_one(store, &import->operations[i], &import->result);
    }
    if (!status && store->next_token != next_token) {
        status = lk_sqlite_begin(store);
        if (!status) {
            status = lk_meta_put(store, "high_token",
                                 (int64_t)store->next_token - 1);
        }
    }
    return status;
}

/* One durable step for all of them. LK_INVALID: one is impossible, and none was
 * taken. *result changes only on success. */
enum lk_status lk_sqlite_import(struct lk_store *base,
                                const struct lk_operation *operations,
                                size_t count, struct lk_import *result)
{
    struct operation_import import = {operations, count, *result};

    if (result->highest_token > LK_IMPORT_TOKEN_MAX) {
        return LK_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        if (!lk_operation_is_possible(&operations[i])) {
            return LK_INVALID;
        }
    }
    enum lk_status status =
        lk_sqlite_change((struct lk_sqlite *)base, import_all, &import);
    if (!status) {
        *result = import.result;
    }
    return status;
}

/* ---- the audit log ---------------------------------------------------- */

struct audit_import {
    const struct lk_audit_entry *entries;
    size_t count;
    uint64_t *hashes; /* of the entries */
    bool *known;
};

static void add_bytes(struct lk_siphash *hash, struct lk_slice bytes)
{
    uint64_t len = bytes.len;

    lk_siphash_update(hash, &len, sizeof(len));
    lk_siphash_update(hash, bytes.data, bytes.len);
}

/* Over all fields of an entry, apart from its id. */
static uint64_t audit_hash(const struct lk_sqlite *store,
                           const struct lk_audit_entry *entry)
{
    struct lk_siphash hash;

    lk_siphash_init(&hash, store->store.secret);
    lk_siphash_update(&hash, &entry->at_ms, sizeof(entry->at_ms));
    lk_siphash_update(&hash, &entry->token, sizeof(entry->token));
    add_bytes(&hash, entry->who);
    add_bytes(&hash, entry->why);
    add_bytes(&hash, entry->action);
    add_bytes(&hash, entry->name.tenant);
    add_bytes(&hash, entry->name.scope);
    add_bytes(&hash, entry->name.key);
    return lk_siphash_final128(&hash).lo;
}

struct audit_scan {
    const struct lk_sqlite *store;
    struct audit_import *import;
};

/* Called for each entry of this store's audit log. */
static bool note_known(void *context, const struct lk_audit_entry *entry)
{
    struct audit_scan *scan = context;
    uint64_t hash = audit_hash(scan->store, entry);

    for (size_t i = 0; i < scan->import->count; i++) {
        if (scan->import->hashes[i] == hash && !scan->import->known[i]) {
            scan->import->known[i] = true; /* one row matches one entry */
            break;
        }
    }
    return true;
}

static enum lk_status write_entries(struct lk_sqlite *store, void *context)
{
    const struct audit_import *import = context;
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < import->count && !status; i++) {
        if (!import->known[i]) {
            status = lk_sqlite_audit_row(store, &import->entries[i]);
        }
    }
    return status;
}

/* What an earlier pass has brought is there already. */
enum lk_status lk_sqlite_import_audit(struct lk_store *base,
                                      const struct lk_audit_entry *entries,
                                      size_t count)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct audit_import import = {entries, count, NULL, NULL};
    struct audit_scan scan = {store, &import};
    const struct lk_audit_query all = {.limit = SIZE_MAX};
    enum lk_status status = LK_NOMEM;

    if (!count) {
        return LK_OK;
    }
    import.hashes = calloc(count, sizeof(*import.hashes));
    import.known = calloc(count, sizeof(*import.known));
    if (import.hashes && import.known) {
        for (size_t i = 0; i < count; i++) {
            import.hashes[i] = audit_hash(store, &entries[i]);
        }
        status = lk_sqlite_audit(base, &all, note_known, &scan);
    }
    if (!status) {
        status = lk_sqlite_change(store, write_entries, &import);
    }
    free(import.hashes);
    free(import.known);
    return status;
}

/* ---- references ------------------------------------------------------- */

static enum lk_status write_secret(struct lk_sqlite *store, void *context)
{
    enum lk_status status = lk_sqlite_begin(store);

    return status ? status
                  : lk_meta_put_bytes(store, "reference_secret", context,
                                      LK_REFERENCE_KEY);
}

/* LK_BUSY: this store has handed out references, which would change. */
enum lk_status lk_sqlite_adopt(struct lk_store *base,
                               const uint8_t reference_secret[LK_REFERENCE_KEY])
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    uint8_t secret[LK_REFERENCE_KEY];

    if (!memcmp(base->reference_secret, reference_secret, LK_REFERENCE_KEY)) {
        return LK_OK;
    }
    if (store->next_token > 1) {
        return LK_BUSY;
    }
    memcpy(secret, reference_secret, sizeof(secret));
    enum lk_status status = lk_sqlite_change(store, write_secret, secret);
    if (!status) {
        memcpy(base->reference_secret, secret, sizeof(secret));
    }
    return status;
}
