/*
 * reply.c - outcomes, operations and audit entries as replies.
 *
 * Every function appends to `out` and returns LK_OK or LK_NOMEM. After LK_NOMEM
 * `out` ends within a reply, and the caller must not send it. Arrays and maps
 * begin with the number of their elements, so each count here has to match the
 * writes that follow it. The wire format is in docs/protocol.md.
 */
#include "daemon/reply.h"

#include <string.h>

static enum lk_status write_number(struct lk_buf *out, uint64_t number)
{
    return lk_resp_integer(out, (int64_t)number);
}

static enum lk_status write_word(struct lk_buf *out, const char *word)
{
    return lk_resp_bulk(out, latchkey_slice(word));
}

/* A claim that another transaction has not committed yet has no number. */
enum lk_status lk_write_reference(struct lk_buf *out,
                                  const struct lk_store *store, uint64_t number)
{
    char text[LK_REFERENCE_TEXT + 1];

    if (!number) {
        return lk_resp_bulk(out, (struct lk_slice){0});
    }

    latchkey_reference_encode(number, store->reference_secret, text);
    return lk_resp_bulk(out, (struct lk_slice){text, LK_REFERENCE_TEXT});
}

/* "-UNAVAILABLE ..." asks the client to try again, "-ERR ..." does not.
 * LK_UNKNOWN means that a commit may or may not have happened: only then is the
 * advice added. Damage without a sentence of the store concerns one operation,
 * which LK_RECORD says. */
enum lk_status lk_reply_failure(struct lk_buf *out, enum lk_status status,
                                const char *why, const char *advice)
{
    struct lk_buf message = {0};
    /* What the store can never take is not worth another try. */
    bool never = status == LK_TOO_LARGE || status == LK_INVALID;
    bool unknown = status == LK_UNKNOWN;
    bool damaged = status == LK_CORRUPT && !why;
    enum lk_status made = latchkey_buf_printf(
        &message, "%s %s%s%s%s", never ? "ERR" : "UNAVAILABLE",
        damaged ? LK_RECORD : "", why ? why : latchkey_status_text(status),
        unknown ? "; " : "", unknown ? advice : "");

    if (!made) {
        made = lk_resp_error(out, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return made;
}

enum lk_status lk_reply_unavailable(struct lk_buf *out, enum lk_status status,
                                    const char *why)
{
    return lk_reply_failure(out, status, why, "send the same again");
}

/* ["NEW", token, lock-until-ms, attempt, reference]: the client holds the
 * claim. */
static enum lk_status reply_new(struct lk_buf *out,
                                const struct lk_store *store,
                                const struct lk_outcome *outcome)
{
    W(lk_resp_array(out, 5));
    W(lk_resp_bulk(out, LK_SLICE("NEW")));
    W(write_number(out, outcome->token));
    W(write_number(out, outcome->lock_until_ms));
    W(write_number(out, outcome->attempt));
    return lk_write_reference(out, store, outcome->number);
}

/* ["OMITTED", status, reason, at-ms, expires-ms, reference]: completed,
 * but the response was not stored. */
static enum lk_status reply_omitted(struct lk_buf *out,
                                    const struct lk_store *store,
                                    const struct lk_outcome *outcome)
{
    W(lk_resp_array(out, 6));
    W(lk_resp_bulk(out, LK_SLICE("OMITTED")));
    W(write_number(out, outcome->stored->response.status));
    W(lk_resp_bulk(out, outcome->stored->reason));
    W(write_number(out, outcome->stored->at_ms));
    W(write_number(out, outcome->expires_ms));
    return lk_write_reference(out, store, outcome->number);
}

/* If the response was not stored, an element of its own gives the reason;
 * headers and body are empty then. */
static enum lk_status reply_kept(struct lk_buf *out,
                                 const struct lk_store *store,
                                 const struct lk_outcome *outcome)
{
    const struct lk_stored *stored = outcome->stored;
    bool omitted = stored->reason.len > 0;

    W(lk_resp_array(out, omitted ? 8 : 7));
    W(write_word(out, latchkey_verdict_word(outcome->verdict)));
    W(write_number(out, stored->response.status));
    W(lk_resp_bulk(out, stored->response.headers));
    W(lk_resp_bulk(out, stored->response.body));
    W(write_number(out, stored->at_ms));
    W(write_number(out, outcome->expires_ms));
    W(lk_write_reference(out, store, outcome->number));
    return omitted ? lk_resp_bulk(out, stored->reason) : LK_OK;
}

/*
 * When to ask again: after the lock, but at least every second, because most
 * requests end long before their lock does; never sooner than a tenth of one.
 */
static uint64_t retry_after(const struct lk_outcome *outcome)
{
    uint64_t left = outcome->lock_until_ms > outcome->now_ms
                        ? outcome->lock_until_ms - outcome->now_ms
                        : 0;

    if (left < 100) {
        return 100;
    }
    return left < 1000 ? left : 1000;
}

/* ["INFLIGHT", retry-after-ms, reference]: another client holds the claim. */
static enum lk_status reply_inflight(struct lk_buf *out,
                                     const struct lk_store *store,
                                     const struct lk_outcome *outcome)
{
    W(lk_resp_array(out, 3));
    W(lk_resp_bulk(out, LK_SLICE("INFLIGHT")));
    W(write_number(out, retry_after(outcome)));
    return lk_write_reference(out, store, outcome->number);
}

/* ["ACCEPTED", since-ms, reference]: the courier runs the request later. */
static enum lk_status reply_accepted(struct lk_buf *out,
                                     const struct lk_store *store,
                                     const struct lk_outcome *outcome)
{
    W(lk_resp_array(out, 3));
    W(lk_resp_bulk(out, LK_SLICE("ACCEPTED")));
    W(write_number(out, outcome->since_ms));
    return lk_write_reference(out, store, outcome->number);
}

/* ["UNCERTAIN", reason, since-ms, reference]; the reason may be empty. */
static enum lk_status reply_uncertain(struct lk_buf *out,
                                      const struct lk_store *store,
                                      const struct lk_outcome *outcome)
{
    struct lk_slice none = {"", 0};

    W(lk_resp_array(out, 4));
    W(lk_resp_bulk(out, LK_SLICE("UNCERTAIN")));
    W(lk_resp_bulk(out, outcome->stored ? outcome->stored->reason : none));
    W(write_number(out, outcome->since_ms));
    return lk_write_reference(out, store, outcome->number);
}

/* ["MISMATCH", reference]: the key was used with another fingerprint. */
static enum lk_status reply_mismatch(struct lk_buf *out,
                                     const struct lk_store *store,
                                     const struct lk_outcome *outcome)
{
    W(lk_resp_array(out, 2));
    W(lk_resp_bulk(out, LK_SLICE("MISMATCH")));
    return lk_write_reference(out, store, outcome->number);
}

/* ["LIMITED", retry-after-ms, "tenant"]: the tenant is at its limit. */
static enum lk_status reply_limited(struct lk_buf *out)
{
    W(lk_resp_array(out, 3));
    W(lk_resp_bulk(out, LK_SLICE("LIMITED")));
    W(write_number(out, 1000));
    return lk_resp_bulk(out, LK_SLICE("tenant"));
}

/* EVICT of something unfinished changes nothing, and has to say why. */
static enum lk_status reply_nil(struct lk_buf *out, int proto,
                                const struct lk_op *op)
{
    enum lk_state state = op->out.state;
    struct lk_buf message = {0};

    if (op->event != LK_EVENT_EVICT || state == LK_STATE_ABSENT ||
        state == LK_STATE_RELEASED || state == LK_STATE_COMPLETED) {
        return lk_resp_nil(out, proto);
    }
    enum lk_status status = latchkey_buf_printf(
        &message,
        "ERR the operation is %s; only a completed one can be evicted",
        lk_state_word(state));
    if (!status) {
        status = lk_resp_error(out, latchkey_buf_slice(&message));
    }
    latchkey_buf_free(&message);
    return status;
}

/* The only place where a verdict becomes a reply. A verdict that promises a
 * response without having one is damage, and is reported as such: the client
 * must never see an empty response in its place. */
enum lk_status lk_reply_outcome(struct lk_buf *out,
                                const struct lk_store *store, int proto,
                                const struct lk_op *op)
{
    const struct lk_outcome *outcome = &op->out;

    if (op->status) {
        return lk_reply_failure(out, op->status, op->error,
                                op->event == LK_EVENT_CLAIM
                                    ? "send the same again, with the same OWNER"
                                    : "send the same again");
    }
    switch (outcome->verdict) {
    case LK_VERDICT_NEW:
        return reply_new(out, store, outcome);
    case LK_VERDICT_REPLAY:
    case LK_VERDICT_KEPT:
        if (!outcome->stored) {
            return lk_reply_unavailable(out, LK_CORRUPT, NULL);
        }
        return reply_kept(out, store, outcome);
    case LK_VERDICT_OMITTED:
        if (!outcome->stored) {
            return lk_reply_unavailable(out, LK_CORRUPT, NULL);
        }
        return reply_omitted(out, store, outcome);
    case LK_VERDICT_INFLIGHT:
        return reply_inflight(out, store, outcome);
    case LK_VERDICT_ACCEPTED:
        return reply_accepted(out, store, outcome);
    case LK_VERDICT_UNCERTAIN:
        return reply_uncertain(out, store, outcome);
    case LK_VERDICT_MISMATCH:
        return reply_mismatch(out, store, outcome);
    case LK_VERDICT_LIMITED:
        return reply_limited(out);
    case LK_VERDICT_REFUSED:
        if (op->event == LK_EVENT_ACCEPT) {
            return lk_resp_error(
                out, LK_SLICE("ERR ACCEPT: courier.gateway is not set in this "
                              "daemon, so the request would never run"));
        }
        W(lk_resp_array(out, 1));
        return lk_resp_bulk(out, LK_SLICE("REFUSED"));
    case LK_VERDICT_DONE:
        return lk_resp_simple(out, "OK");
    case LK_VERDICT_STALE:
        return lk_resp_simple(out, "STALE");
    case LK_VERDICT_EXISTS:
        return lk_resp_simple(out, "EXISTS");
    case LK_VERDICT_NIL:
        return reply_nil(out, proto, op);
    }
    return lk_reply_unavailable(out, LK_CORRUPT, NULL);
}

/* ---- Operations ---------------------------------------------------------- */

enum lk_status lk_pair_number(struct lk_buf *out, const char *name,
                              uint64_t number)
{
    W(write_word(out, name));
    return write_number(out, number);
}

enum lk_status lk_pair_bytes(struct lk_buf *out, const char *name,
                             struct lk_slice bytes)
{
    W(write_word(out, name));
    return lk_resp_bulk(out, bytes);
}

enum lk_status lk_pair_name(struct lk_buf *out, struct lk_name name)
{
    W(lk_pair_bytes(out, "tenant", name.tenant));
    W(lk_pair_bytes(out, "scope", name.scope));
    return lk_pair_bytes(out, "key", name.key);
}

/* tenant, scope, key, state, token, attempt, reference, fingerprint, claimed-ms
 * and ttl-ms. */
enum { COMMON_PAIRS = 10 };

/* Of a completed operation that is not omitted. */
static size_t count_response_pairs(const struct lk_operation *operation,
                                   enum lk_shown shown)
{
    if (shown == LK_SHOW_BYTES) {
        return 1;
    }
    return operation->stored ? 2 : 0;
}

/* How many pairs lk_reply_operation writes, without the three of jobs. It has
 * to agree with reply_state. */
static size_t count_pairs(const struct lk_operation *operation,
                          enum lk_shown shown)
{
    switch (operation->state) {
    case LK_STATE_IN_PROGRESS:
        return COMMON_PAIRS + 1;
    case LK_STATE_ACCEPTED:
        return COMMON_PAIRS + 1;
    case LK_STATE_UNCERTAIN:
        return COMMON_PAIRS + 2;
    case LK_STATE_COMPLETED:
        if (operation->omitted) {
            return COMMON_PAIRS + 4;
        }
        return COMMON_PAIRS + 3 + count_response_pairs(operation, shown);
    case LK_STATE_RELEASED:
        return COMMON_PAIRS + 1;
    case LK_STATE_ABSENT:
        break;
    }
    return COMMON_PAIRS;
}

/* The pairs of a completed operation; `shown` bounds how much of the
 * response. */
static enum lk_status reply_completed(struct lk_buf *out,
                                      const struct lk_operation *operation,
                                      enum lk_shown shown)
{
    const struct lk_response *response =
        operation->stored ? &operation->stored->response : NULL;

    W(lk_pair_number(out, "completed-ms", operation->completed_ms));
    W(lk_pair_number(out, "expires-ms", operation->expires_ms));
    W(lk_pair_number(out, "status", operation->status));
    if (operation->omitted) {
        return lk_pair_bytes(out, "omitted-reason", operation->reason);
    }
    if (shown == LK_SHOW_BYTES) {
        return lk_pair_number(out, "answer-bytes", operation->response_bytes);
    }
    if (!response) {
        return LK_OK;
    }
    if (shown == LK_SHOW_SIZES) {
        W(lk_pair_number(out, "headers-bytes", response->headers.len));
        return lk_pair_number(out, "body-bytes", response->body.len);
    }
    W(lk_pair_bytes(out, "headers", response->headers));
    return lk_pair_bytes(out, "body", response->body);
}

/* The pairs that depend on the state; their number is in count_pairs. */
static enum lk_status reply_state(struct lk_buf *out,
                                  const struct lk_operation *operation,
                                  enum lk_shown shown)
{
    switch (operation->state) {
    case LK_STATE_IN_PROGRESS:
        return lk_pair_number(out, "lock-until-ms", operation->lock_until_ms);
    case LK_STATE_ACCEPTED:
        return lk_pair_number(out, "since-ms", operation->since_ms);
    case LK_STATE_UNCERTAIN:
        W(lk_pair_number(out, "since-ms", operation->since_ms));
        return lk_pair_bytes(out, "reason", operation->reason);
    case LK_STATE_COMPLETED:
        return reply_completed(out, operation, shown);
    case LK_STATE_RELEASED:
        return lk_pair_number(out, "expires-ms", operation->expires_ms);
    case LK_STATE_ABSENT:
        break;
    }
    return LK_OK;
}

enum lk_status lk_reply_operation(struct lk_buf *out,
                                  const struct lk_store *store, int proto,
                                  const struct lk_operation *operation,
                                  enum lk_shown shown)
{
    W(lk_resp_map(out, proto,
                  count_pairs(operation, shown) +
                      (shown == LK_SHOW_BYTES ? 3 : 0)));
    W(lk_pair_name(out, operation->name));
    W(lk_pair_bytes(out, "state",
                    latchkey_slice(lk_state_word(operation->state))));
    W(lk_pair_number(out, "token", operation->token));
    W(lk_pair_number(out, "attempt", operation->attempt));
    W(write_word(out, "reference"));
    W(lk_write_reference(out, store, operation->number));
    W(lk_pair_bytes(out, "fingerprint", operation->fingerprint));
    W(lk_pair_number(out, "claimed-ms", operation->claimed_ms));
    W(lk_pair_number(out, "ttl-ms", operation->ttl_ms));
    W(reply_state(out, operation, shown));
    if (shown != LK_SHOW_BYTES) {
        return LK_OK;
    }
    W(lk_pair_number(out, "jobs-open", operation->jobs_open));
    W(lk_pair_number(out, "jobs-dead", operation->jobs_dead));
    return lk_pair_number(out, "jobs-uncertain", operation->jobs_uncertain);
}

enum lk_status lk_reply_audit(struct lk_buf *out, int proto,
                              const struct lk_audit_entry *entry)
{
    W(lk_resp_map(out, proto, 11));
    W(lk_pair_number(out, "id", entry->id));
    W(lk_pair_number(out, "at-ms", entry->at_ms));
    W(lk_pair_bytes(out, "who", entry->who));
    W(lk_pair_bytes(out, "action", entry->action));
    W(lk_pair_name(out, entry->name));
    W(lk_pair_number(out, "token", entry->token));
    W(lk_pair_bytes(out, "why", entry->why));
    W(lk_pair_number(out, "job", lk_audit_job(entry)));
    return lk_pair_bytes(out, "target", lk_audit_target(entry));
}

/* ---- Exports --------------------------------------------------------------
 */

enum { EXPORT_VERSION = 1, EXPORT_PAIRS = 23 };

/* Every operation has all of the names, so that a value may be 0 or empty. */
enum lk_status lk_reply_export(struct lk_buf *out, int proto,
                               const struct lk_operation *operation)
{
    const struct lk_slice none = {"", 0};
    bool stored = operation->state == LK_STATE_COMPLETED &&
                  !operation->omitted && operation->stored;

    W(lk_resp_map(out, proto, EXPORT_PAIRS));
    W(lk_pair_name(out, operation->name));
    W(lk_pair_bytes(out, "state",
                    latchkey_slice(lk_state_word(operation->state))));
    W(lk_pair_number(out, "token", operation->token));
    W(lk_pair_number(out, "attempt", operation->attempt));
    W(lk_pair_number(out, "number", operation->number));
    W(lk_pair_number(out, "generation", operation->generation));
    W(lk_pair_bytes(out, "fingerprint", operation->fingerprint));
    W(lk_pair_bytes(out, "owner", operation->owner));
    W(lk_pair_number(out, "claimed-ms", operation->claimed_ms));
    W(lk_pair_number(out, "lock-until-ms", operation->lock_until_ms));
    W(lk_pair_number(out, "since-ms", operation->since_ms));
    W(lk_pair_number(out, "completed-ms", operation->completed_ms));
    W(lk_pair_number(out, "expires-ms", operation->expires_ms));
    W(lk_pair_number(out, "ttl-ms", operation->ttl_ms));
    W(lk_pair_number(out, "keep-ms", operation->keep_ms));
    W(lk_pair_number(out, "status", operation->status));
    W(lk_pair_number(out, "omitted", operation->omitted));
    W(lk_pair_number(out, "evicted", operation->evicted));
    W(lk_pair_bytes(out, "reason", operation->reason));
    W(lk_pair_bytes(out, "headers",
                    stored ? operation->stored->response.headers : none));
    return lk_pair_bytes(out, "body",
                         stored ? operation->stored->response.body : none);
}

static void write_hex(char *text, const uint8_t *bytes, size_t count)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < count; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
}

/* The secret goes along so that references stay valid in another store. The
 * counts are those of the start; operations may change during the export. */
enum lk_status lk_reply_export_begin(struct lk_buf *out, struct lk_store *store,
                                     int proto)
{
    char secret[2 * LK_REFERENCE_KEY];
    struct lk_store_stats stats = {0};

    store->class->stats(store, &stats);
    write_hex(secret, store->reference_secret, LK_REFERENCE_KEY);
    W(lk_resp_map(out, proto, 6));
    W(lk_pair_number(out, "version", EXPORT_VERSION));
    W(lk_pair_bytes(out, "store", latchkey_slice(store->class->scheme)));
    W(lk_pair_bytes(out, "reference-secret",
                    (struct lk_slice){secret, sizeof(secret)}));
    W(lk_pair_number(out, "last-token", stats.last_token));
    W(lk_pair_number(out, "records", stats.operations));
    return lk_pair_number(out, "now-ms", stats.now_ms);
}

/* A push of RESP3; with RESP2 an array that looks like a message of
 * Redis's pub/sub. */
enum lk_status lk_reply_settled(struct lk_buf *out, int proto,
                                struct lk_slice id)
{
    W(lk_resp_push(out, proto, proto == 3 ? 2 : 3));
    if (proto != 3) {
        W(lk_resp_bulk(out, LK_SLICE("message")));
    }
    W(lk_resp_bulk(out, LK_SLICE("settled")));
    return lk_resp_bulk(out, id);
}
