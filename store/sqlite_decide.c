/*
 * sqlite_decide.c - one op of a batch: the state of its operation, what the
 * machine (lib/machine.h) decides, and the rows that this decision writes.
 *
 * Every function returns LK_OK, or the status with which the whole batch
 * fails; an op that is refused by itself gets its status from refuse_op.
 *
 * All of it runs on the store thread, inside the transaction of the batch. Each
 * effect writes rows first and then the overlay, so that a later op of the same
 * batch sees the result; the index changes only after the commit.
 */
#include "store/sqlite.h"

#include <assert.h>

/* SQLite takes a little more in one value. */
enum { VALUE_MAX = 900 * 1000 * 1000 };

static bool is_resolution(enum lk_event event)
{
    return event == LK_EVENT_RESOLVE_COMPLETED ||
           event == LK_EVENT_RESOLVE_RELEASED;
}

/* Fingerprint and owner are compared by hash here. The owner's hash is short,
 * so confirm_owner reads the row where it matters. */
struct lk_standing lk_entry_standing(const struct lk_sqlite *store,
                                     const struct lk_entry *entry,
                                     const struct lk_op *op, uint64_t now)
{
    struct lk_standing standing = {
        .state = LK_STATE_ABSENT,
        .reexecute = op->reexecute,
        .no_new = op->no_new,
        .proof = op->token && is_resolution(op->event),
        .running = op->running,
    };

    if (!entry) {
        return standing;
    }
    standing.state = (enum lk_state)entry->state;
    standing.lapsed =
        entry->state == LK_STATE_IN_PROGRESS && entry->deadline <= now;
    standing.expired = lk_entry_expired(entry, now);
    standing.omitted = entry->omitted;
    standing.queued = entry->queued;
    standing.token_current = op->token == entry->token;
    if (op->event == LK_EVENT_CLAIM || op->event == LK_EVENT_ACCEPT) {
        standing.same_fingerprint =
            lk_fingerprint_hash(store, op->fingerprint) == entry->fingerprint;
        standing.same_owner =
            op->owner.len && lk_owner_hash(store, op->owner) == entry->owner;
    }
    return standing;
}

/* The outcome as far as the index knows it. needs_load: rows have the rest.
 * `entry` is the state after the step. */
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
                      step.verdict == LK_VERDICT_UNCERTAIN ||
                      /* running: its job knows since when it is accepted */
                      (step.verdict == LK_VERDICT_ACCEPTED &&
                       entry->state == LK_STATE_IN_PROGRESS);
}

static uint64_t lock_of(const struct lk_sqlite *store, const struct lk_op *op)
{
    return op->lock_ms ? op->lock_ms : store->config.default_lock_ms;
}

/*
 * NEW and ACCEPTED: writes a row and an entry with the next token. An operation
 * that was released or is run again keeps its number, its attempts and the TTL
 * that KEEP has promised; one past its TTL does not, and an evicted one keeps
 * only its number and attempts. An accepted one has no attempt yet, and its
 * request is a job.
 */
static enum lk_status begin_claim(struct lk_sqlite *store, struct lk_op *op,
                                  const struct lk_entry *before, bool renewed,
                                  uint64_t now)
{
    uint64_t token = store->next_token;
    struct lk_claim_row row = {.number = token, .generation = token};
    bool accepted = op->event == LK_EVENT_ACCEPT;
    enum lk_status status = LK_OK;

    if (renewed) {
        status = lk_sqlite_row(store, before->token, op->owner, &row);
        if (!status && before->evicted) {
            row.generation = token;
            row.keep = 0;
        }
    }
    if (status) {
        return status;
    }
    row.attempt += !accepted;
    row.ttl = op->ttl_ms ? op->ttl_ms : store->config.default_ttl_ms;
    struct lk_entry after = {
        .hash = op->hash,
        .token = token,
        .number = row.number,
        .attempt = row.attempt > UINT16_MAX ? UINT16_MAX : row.attempt,
        .state = accepted ? LK_STATE_ACCEPTED : LK_STATE_IN_PROGRESS,
        .owner = lk_owner_hash(store, op->owner),
        .jobs = accepted || (renewed && before->jobs),
        .queued = accepted,
        .keeps = row.keep != 0,
        .deadline = accepted ? now : now + lock_of(store, op),
        .ttl = lk_ttl_pack(row.ttl),
        .fingerprint = lk_fingerprint_hash(store, op->fingerprint),
    };
    status = lk_sqlite_claim(store, op, &after, &row, now);
    if (!status) {
        store->next_token++;
        store->reaper.claim_rows++;
        status = lk_sqlite_replace(store, before, &after);
    }
    return status || !accepted
               ? status
               : lk_job_add(store, &row, op->hash, (struct lk_slice){0},
                            op->call, now);
}

/* Writes a row like the last one with the next token: the courier runs the
 * request, and an earlier holder is overtaken. The time of the accept stays;
 * the lock is an outcome. */
static enum lk_status lease_request(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    const struct lk_entry *before, uint64_t now)
{
    sqlite3_stmt *statement = store->statements[LK_STATEMENT_LEASE];
    struct lk_entry after = *before;
    enum lk_status status = lk_sqlite_begin(store);

    if (status) {
        return status;
    }
    after.token = store->next_token;
    after.attempt += before->attempt < UINT16_MAX;
    sqlite3_bind_int64(statement, 1, (int64_t)before->token);
    sqlite3_bind_int64(statement, 2, (int64_t)after.token);
    status = lk_sqlite_run(store, LK_STATEMENT_LEASE);
    if (status) {
        return status;
    }
    if (sqlite3_changes(store->writer) != 1) {
        return LK_CORRUPT;
    }
    store->next_token++;
    store->reaper.claim_rows++;
    status = lk_sqlite_replace(store, before, &after);
    return status ? status
                  : lk_sqlite_outcome(store, &after, LK_ROW_EXTEND,
                                      now + op->lock_ms);
}

/* Adds a job; the entry of the operation only notes that it has one. */
static enum lk_status enqueue_job(struct lk_sqlite *store,
                                  const struct lk_op *op,
                                  const struct lk_entry *before, uint64_t now)
{
    struct lk_claim_row row = {0};
    struct lk_entry after = *before;
    enum lk_status status =
        lk_sqlite_row(store, before->token, (struct lk_slice){0}, &row);

    if (!status) {
        status =
            lk_job_add(store, &row, op->hash, op->call->name, op->call, now);
    }
    after.jobs = true;
    return status || before->jobs ? status
                                  : lk_sqlite_replace(store, before, &after);
}

/* The TTL of this op, else that of the claim; but never less than KEEP has
 * promised.
 */
static enum lk_status ttl_of(struct lk_sqlite *store, const struct lk_op *op,
                             const struct lk_entry *entry, uint64_t *ttl)
{
    struct lk_claim_row row = {0};

    *ttl = op->ttl_ms ? op->ttl_ms : lk_ttl_unpack(entry->ttl);
    if (*ttl && !entry->keeps) {
        return LK_OK;
    }
    enum lk_status status =
        lk_sqlite_row(store, entry->token, (struct lk_slice){0}, &row);
    if (!*ttl) {
        *ttl = row.ttl;
    }
    if (row.keep > *ttl) {
        *ttl = row.keep;
    }
    return status;
}

/* The response is written before the outcome that refers to it. With OMIT only
 * its status and the reason are stored. */
static enum lk_status complete_operation(struct lk_sqlite *store,
                                         struct lk_op *op,
                                         const struct lk_entry *entry,
                                         uint64_t now)
{
    struct lk_response status_only = {.status = op->response.status};
    bool omit = op->reason.len != 0;
    uint64_t ttl;
    enum lk_status status = ttl_of(store, op, entry, &ttl);

    if (!status) {
        status = lk_sqlite_write_stored(store, entry->token, now, op->reason,
                                        omit ? &status_only : &op->response);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      omit ? LK_ROW_OMIT : LK_ROW_COMPLETE,
                                      now + ttl);
}

/* Deletes the stored response, or the reason why it is uncertain. */
static enum lk_status drop_stored(struct lk_sqlite *store, uint64_t token)
{
    sqlite3_stmt *gone = store->statements[LK_STATEMENT_DELETE_STORED];
    enum lk_status status = lk_sqlite_begin(store);

    sqlite3_bind_int64(gone, 1, (int64_t)token);
    sqlite3_bind_int64(gone, 2, (int64_t)token);
    return status ? status : lk_sqlite_run(store, LK_STATEMENT_DELETE_STORED);
}

/* Release and eviction: the stored response is deleted at once. */
static enum lk_status release_operation(struct lk_sqlite *store,
                                        struct lk_op *op,
                                        const struct lk_entry *entry,
                                        uint64_t now)
{
    bool evict = op->event == LK_EVENT_EVICT;
    uint64_t ttl;
    enum lk_status status = ttl_of(store, op, entry, &ttl);

    store->scrub |= evict;

    if (!status && entry->state != LK_STATE_IN_PROGRESS) {
        status = drop_stored(store, entry->token);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      evict ? LK_ROW_EVICT : LK_ROW_RELEASE,
                                      now + ttl);
}

/* A claim that finds a lapsed lock makes the operation uncertain since the lock
 * ended, without a reason; DOUBT since now, with one. */
static enum lk_status mark_uncertain(struct lk_sqlite *store, struct lk_op *op,
                                     const struct lk_entry *entry, uint64_t now)
{
    bool lapsed = op->event == LK_EVENT_CLAIM || op->event == LK_EVENT_ACCEPT;
    enum lk_status status = LK_OK;

    if (!lapsed) {
        status =
            lk_sqlite_write_stored(store, entry->token, now, op->reason, NULL);
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry,
                                      lapsed ? LK_ROW_LAPSE : LK_ROW_DOUBT,
                                      lapsed ? entry->deadline : now);
}

/* By its holder, or by a repeated claim. A lock is only ever extended: a late,
 * shorter one does not cut it. */
static enum lk_status extend_lock(struct lk_sqlite *store, struct lk_op *op,
                                  const struct lk_entry *entry, uint64_t now)
{
    uint64_t until = now + lock_of(store, op);
    enum lk_status status = LK_OK;

    if (entry->state == LK_STATE_UNCERTAIN) {
        status = drop_stored(store, entry->token);
    } else if (entry->deadline > until) {
        until = entry->deadline;
    }
    return status ? status
                  : lk_sqlite_outcome(store, entry, LK_ROW_EXTEND, until);
}

/* Accepted again, with the time at which it was accepted first. */
static enum lk_status return_to_accepted(struct lk_sqlite *store,
                                         const struct lk_entry *entry)
{
    struct lk_job_row request = {0};
    enum lk_status status = lk_job_request(store, entry->number, &request);

    if (!status && entry->state == LK_STATE_UNCERTAIN) {
        status = drop_stored(store, entry->token);
    }
    return status == LK_NOT_FOUND ? LK_CORRUPT
           : status               ? status
                    : lk_sqlite_outcome(store, entry, LK_ROW_RETURN,
                                        request.created);
}

/* KEEP only ever extends: a completed operation gets a later end, any other one
 * a promise for the time after it completes. */
static enum lk_status keep_longer(struct lk_sqlite *store, struct lk_op *op,
                                  const struct lk_entry *entry, uint64_t now)
{
    struct lk_claim_row row = {0};

    if (entry->state == LK_STATE_COMPLETED) {
        enum lk_row_kind kind = entry->omitted ? LK_ROW_OMIT : LK_ROW_COMPLETE;
        uint64_t until = now + op->ttl_ms;
        return until <= entry->deadline
                   ? LK_OK
                   : lk_sqlite_outcome(store, entry, kind, until);
    }
    enum lk_status status =
        lk_sqlite_row(store, entry->token, (struct lk_slice){0}, &row);
    if (status || op->ttl_ms <= row.keep) {
        return status;
    }
    return lk_sqlite_keep_row(store, entry, op->ttl_ms);
}

/* Writes what the machine has decided. `standing.expired`: the operation is
 * past its TTL, and a claim begins another one under the same name. */
static enum lk_status take_effect(struct lk_sqlite *store, struct lk_op *op,
                                  struct lk_step step,
                                  struct lk_standing standing,
                                  const struct lk_entry *before, uint64_t now)
{
    /* Only a claim and an accept may begin without an operation. */
    assert(before || step.effect == LK_EFFECT_NONE ||
           step.effect == LK_EFFECT_BEGIN || step.effect == LK_EFFECT_ACCEPT);
    switch (step.effect) {
    case LK_EFFECT_BEGIN:
    case LK_EFFECT_ACCEPT:
        return begin_claim(store, op, before, before && !standing.expired, now);
    case LK_EFFECT_FINISH:
        return complete_operation(store, op, before, now);
    case LK_EFFECT_FREE:
        return release_operation(store, op, before, now);
    case LK_EFFECT_DOUBT:
        return mark_uncertain(store, op, before, now);
    case LK_EFFECT_LOCK:
        return extend_lock(store, op, before, now);
    case LK_EFFECT_KEEP:
        return keep_longer(store, op, before, now);
    case LK_EFFECT_LEASE:
        return lease_request(store, op, before, now);
    case LK_EFFECT_ENQUEUE:
        return enqueue_job(store, op, before, now);
    case LK_EFFECT_RETURN:
        return return_to_accepted(store, before);
    case LK_EFFECT_NONE:
    case LK_EFFECT_FORGET:
        return LK_OK;
    }
    return LK_INVALID;
}

/* Whether waiting clients are woken. A claim that its owner repeats does not
 * settle the operation. */
static bool settles_operation(struct lk_step step,
                              const struct lk_entry *before)
{
    return before &&
           (before->state == LK_STATE_IN_PROGRESS ||
            before->state == LK_STATE_ACCEPTED) &&
           step.effect != LK_EFFECT_NONE && step.next != LK_STATE_IN_PROGRESS &&
           step.next != LK_STATE_ACCEPTED;
}

/* Whether the row must be read to confirm that it is the same owner. */
bool lk_owner_matters(const struct lk_standing *standing)
{
    return standing->same_owner && !standing->queued &&
           (standing->state == LK_STATE_IN_PROGRESS ||
            standing->state == LK_STATE_UNCERTAIN);
}

/* Two owners may share a hash: only the row decides. */
static enum lk_status confirm_owner(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    const struct lk_entry *entry,
                                    struct lk_standing *standing)
{
    struct lk_claim_row row = {0};
    enum lk_status status = LK_OK;

    if (entry && lk_owner_matters(standing)) {
        status = lk_sqlite_row(store, entry->token, op->owner, &row);
        standing->same_owner = row.same_owner;
    }
    return status;
}

/* Reads from the row whether the holder reported the doubt. */
static enum lk_status confirm_doubt(struct lk_sqlite *store,
                                    const struct lk_op *op,
                                    const struct lk_entry *entry,
                                    struct lk_standing *standing)
{
    struct lk_stored *reason = NULL;

    bool concerned = op->event == LK_EVENT_EXTEND ? standing->token_current
                                                  : standing->same_owner;

    if (!entry || !concerned || standing->state != LK_STATE_UNCERTAIN) {
        return LK_OK;
    }
    enum lk_status status = lk_sqlite_reason(store, entry->token, &reason);
    standing->doubted = !status;
    lk_stored_unref(reason);
    return status == LK_NOT_FOUND ? LK_OK : status;
}

/* Reads the reason now: a later op of the same batch may delete it. */
static enum lk_status add_reason(struct lk_sqlite *store,
                                 struct lk_outcome *out)
{
    enum lk_status status = lk_sqlite_reason(store, out->token, &out->stored);

    if (status == LK_NOT_FOUND) {
        out->stored = lk_stored_lapsed(out->token, out->since_ms);
        status = out->stored ? LK_OK : LK_NOMEM;
    }
    out->needs_load = false;
    return status;
}

/* An accepted request that runs: its job knows since when it is accepted. */
static enum lk_status add_since(struct lk_sqlite *store, struct lk_outcome *out)
{
    struct lk_job_row request = {0};
    enum lk_status status = lk_job_request(store, out->number, &request);

    if (!status) {
        out->since_ms = request.created;
    }
    out->needs_load = false;
    return status == LK_NOT_FOUND ? LK_CORRUPT : status;
}

bool lk_sqlite_is_held(struct lk_sqlite *store, uint64_t now)
{
    return now < atomic_load(&store->hold_until_ms);
}

/* Refuses this op alone; the rest of the batch goes on. */
static enum lk_status refuse_op(struct lk_op *op, enum lk_status status,
                                const char *error)
{
    op->status = status;
    op->error = error;
    return LK_OK;
}

static bool makes_token(enum lk_effect effect)
{
    return effect == LK_EFFECT_BEGIN || effect == LK_EFFECT_ACCEPT ||
           effect == LK_EFFECT_LEASE;
}

static bool makes_job(enum lk_effect effect)
{
    return effect == LK_EFFECT_ACCEPT || effect == LK_EFFECT_ENQUEUE;
}

/* Why the step cannot be taken in any state, and *status; NULL and LK_OK if it
 * can. */
static const char *find_obstacle(struct lk_sqlite *store,
                                 const struct lk_op *op, enum lk_effect effect,
                                 uint64_t now, enum lk_status *status)
{
    *status = LK_UNAVAILABLE;
    if ((effect == LK_EFFECT_BEGIN || effect == LK_EFFECT_ACCEPT) &&
        lk_sqlite_is_held(store, now)) {
        return "the store was restored from an older copy: nothing "
               "starts until the locks of claims that it does not "
               "know have run out";
    }
    if (makes_token(effect) && store->next_token > LK_REFERENCE_MAX) {
        return "the store is out of tokens";
    }
    *status = LK_TOO_LARGE;
    if (effect == LK_EFFECT_FINISH &&
        op->response.headers.len + op->response.body.len > VALUE_MAX) {
        return "the response is larger than the store can hold; "
               "complete with OMIT";
    }
    if (makes_job(effect) && op->call &&
        op->call->headers.len + op->call->body.len > VALUE_MAX) {
        return "the call is larger than the store can hold";
    }
    *status = LK_INVALID;
    if (makes_job(effect) &&
        (!op->call || op->call->target.len > LK_TARGET_NAME_MAX ||
         (effect == LK_EFFECT_ENQUEUE && !op->call->name.len))) {
        return "a job needs a call, a target and a name";
    }
    *status = LK_OK;
    return NULL;
}

/* EXISTS, if the operation has such a job in its present generation. *conflict:
 * that makes another call. */
static enum lk_status check_job_name(struct lk_sqlite *store,
                                     const struct lk_op *op,
                                     const struct lk_entry *entry,
                                     struct lk_step *step, bool *conflict)
{
    struct lk_claim_row row = {0};
    bool exists = false;
    bool same = false;
    enum lk_status status =
        lk_sqlite_row(store, entry->token, (struct lk_slice){0}, &row);

    if (!status) {
        status = lk_job_exists(store, &row, op->call, &exists, &same);
    }
    if (exists) {
        step->verdict = LK_VERDICT_EXISTS;
        step->effect = LK_EFFECT_NONE;
    }
    *conflict = exists && !same;
    return status;
}

/* Adds what only rows know to an outcome, right away: a later op of the same
 * batch may delete these rows. */
static enum lk_status complete_outcome(struct lk_sqlite *store,
                                       struct lk_outcome *out)
{
    if (out->verdict == LK_VERDICT_UNCERTAIN) {
        return add_reason(store, out);
    }
    if (out->verdict == LK_VERDICT_ACCEPTED && out->needs_load) {
        return add_since(store, out);
    }
    return LK_OK;
}

/* Only an operator's action has one; lk_op_action is empty for others. */
static enum lk_status audit_op(struct lk_sqlite *store, const struct lk_op *op,
                               const struct lk_entry *before)
{
    struct lk_audit_entry entry = {
        .at_ms = store->last_ms,
        .who = op->who,
        .why = op->why,
        .action = lk_op_action(op),
        .name = op->name,
        .token = before->token,
    };

    return entry.action.len ? lk_sqlite_audit_row(store, &entry) : LK_OK;
}

/* LK_OK: op->status and op->out are set, and count once the batch is committed.
 * The order: what the rows know is confirmed, the machine decides, obstacles
 * refuse, the request follows, rows are written, then the audit entry. Any
 * other status fails the whole batch. */
enum lk_status lk_sqlite_decide(struct lk_sqlite *store, struct lk_batch *batch,
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
    if (!status) {
        status = confirm_doubt(store, op, before, &standing);
    }
    struct lk_step step = lk_machine_step(op->event, standing);
    enum lk_status why;
    const char *obstacle = find_obstacle(store, op, step.effect, now, &why);
    bool conflict = false;

    if (!status && obstacle) {
        return refuse_op(op, why, obstacle);
    }
    if (!status && before && step.effect == LK_EFFECT_ENQUEUE) {
        status = check_job_name(store, op, before, &step, &conflict);
    }
    if (conflict) {
        return refuse_op(op, LK_INVALID, LK_JOB_CONFLICT);
    }
    if (!status && before) {
        status = lk_job_follow(store, op, step.effect, &copy, now);
    }
    if (!status) {
        status = take_effect(store, op, step, standing, before, now);
    }
    if (!status && before && step.effect != LK_EFFECT_NONE) {
        status = audit_op(store, op, before);
    }
    batch->queued |=
        !status && (makes_job(step.effect) ||
                    (step.effect == LK_EFFECT_RETURN && !op->by_courier));
    if (!status && settles_operation(step, before)) {
        status = lk_batch_settle(batch, op->hash);
    }
    if (!status) {
        bool changed = step.effect != LK_EFFECT_NONE;
        op->status = LK_OK;
        lk_entry_outcome(
            changed ? lk_overlay_find(&store->overlay, &store->index, op->hash)
                    : before,
            step, now, &op->out);
        status = complete_outcome(store, &op->out);
        if (status == LK_CORRUPT && !lk_sqlite_suspect(store, op->out.token)) {
            return refuse_op(op, LK_CORRUPT, NULL);
        }
    }
    return status;
}
