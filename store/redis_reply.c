/* redis_reply.c - what Redis answered to a pipeline, as outcomes. */
#include "store/redis_batch.h"

#include <string.h>

enum { REPLY_HEAD = 12 };

static const char NO_MEMORY[] = "Redis is out of memory";

/* ---- Replies ---------------------------------------------------------------
 */

/* Words at the beginning of an error, and what they mean. */
static const struct {
    const char *code;
    enum lk_status status;
    const char *sentence;
} refusals[] = {
    {"READONLY", LK_AGAIN, "Redis is a replica now"},
    {"LOADING", LK_AGAIN, "Redis is loading its data"},
    {"MASTERDOWN", LK_AGAIN, "Redis has lost its primary"},
    {"CLUSTERDOWN", LK_AGAIN, "the Redis Cluster is down"},
    {"MOVED", LK_AGAIN, "Redis Cluster is not supported"},
    {"NOSCRIPT", LK_AGAIN, "Redis has forgotten the script"},
    {"ERR Function not found", LK_AGAIN, "Redis has forgotten the functions"},
    {"BUSY", LK_AGAIN, "Redis is busy with a script"},
    {"UNBLOCKED", LK_AGAIN, "Redis has become a replica"},
    {"NOAUTH", LK_AGAIN, "Redis asks for a password"},
    {"OOM", LK_UNAVAILABLE, NO_MEMORY},
    {"MISCONF", LK_UNAVAILABLE, "Redis cannot write to its disk"},
    {"NOREPLICAS", LK_UNAVAILABLE, "Redis has too few replicas to write"},
    {"NOPERM", LK_UNAVAILABLE, "the Redis user may not do this"},
    {"LKFULL", LK_UNAVAILABLE, "the store is out of tokens"},
};

static bool begins_with(struct lk_slice text, const char *word)
{
    size_t len = strlen(word);

    return text.len >= len && memcmp(text.data, word, len) == 0;
}

/* Redis 6 has the code of an error inside a script in the middle. */
enum lk_status lk_redis_refusal(const struct lk_reply *reply,
                                const char **sentence)
{
    struct lk_slice text = lk_reply_text(reply);
    struct lk_slice inner = {0};
    const char *at = text.len ? memmem(text.data, text.len, ": -", 3) : NULL;

    if (at) {
        inner.data = at + 3;
        inner.len = text.len - (size_t)(inner.data - text.data);
    }
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        if (begins_with(text, refusals[i].code) ||
            begins_with(inner, refusals[i].code)) {
            *sentence = refusals[i].sentence;
            return refusals[i].status;
        }
    }
    *sentence = "Redis failed in the middle: whether it counts is not known";
    return LK_UNKNOWN;
}

static void set_times(const struct lk_redis_head *head, struct lk_outcome *out)
{
    out->token = head->token;
    out->attempt = head->attempt;
    out->number = head->number;
    switch (head->state) {
    case LK_STATE_IN_PROGRESS:
        out->lock_until_ms = head->deadline;
        break;
    case LK_STATE_ACCEPTED:
    case LK_STATE_UNCERTAIN:
        out->since_ms = head->deadline;
        break;
    default:
        out->expires_ms = head->deadline;
        break;
    }
}

/* Whoever is told so acts on it, though it may be somebody else's write that no
 * replica has: a fail-over would take it back. */
static bool is_final(enum lk_verdict verdict)
{
    return verdict != LK_VERDICT_INFLIGHT && verdict != LK_VERDICT_REFUSED &&
           verdict != LK_VERDICT_NIL;
}

static bool needs_kept(enum lk_verdict verdict)
{
    return verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_OMITTED ||
           verdict == LK_VERDICT_KEPT || verdict == LK_VERDICT_UNCERTAIN;
}

static bool is_pending_state(unsigned state)
{
    return state == LK_STATE_IN_PROGRESS || state == LK_STATE_ACCEPTED;
}

static void count_change(struct lk_redis_chunk *chunk, unsigned before,
                         unsigned after)
{
    if (before <= LK_STATE_RELEASED && after <= LK_STATE_RELEASED) {
        chunk->change[before]--;
        chunk->change[after]++;
    }
}

/* The reply's bytes as an outcome. LK_CORRUPT: they are none. */
static enum lk_status take_outcome(struct lk_redis_chunk *chunk,
                                   struct lk_redis_pending *pending,
                                   struct lk_slice bytes)
{
    struct lk_op *op = pending->op;
    struct lk_redis_head head = {0};
    enum lk_status status = LK_OK;

    if (bytes.len < REPLY_HEAD) {
        return LK_CORRUPT;
    }
    unsigned verdict = (unsigned char)bytes.data[0];
    unsigned before = (unsigned char)bytes.data[1];
    unsigned after = (unsigned char)bytes.data[2];
    bool written = bytes.data[3] != 0;
    struct lk_slice record = {bytes.data + REPLY_HEAD, bytes.len - REPLY_HEAD};
    if (verdict > LK_VERDICT_NIL || after > LK_STATE_RELEASED) {
        return LK_CORRUPT;
    }
    if (record.len) {
        status = lk_redis_head_read(record, &head);
    }
    op->out = (struct lk_outcome){.verdict = (enum lk_verdict)verdict,
                                  .state = (enum lk_state)after,
                                  .now_ms = lk_redis_get64(bytes.data + 4)};
    chunk->now_ms = op->out.now_ms;
    if (!status && record.len) {
        set_times(&head, &op->out);
    }
    if (!status && needs_kept(op->out.verdict)) {
        /* A long answer does not come with the decision. */
        op->out.needs_load =
            after == LK_STATE_COMPLETED && record.len == LK_REDIS_HEAD;
        status = op->out.needs_load ? LK_OK
                                    : lk_redis_stored(&head, &op->out.stored);
    }
    if (written) {
        count_change(chunk, before, after);
        if (is_pending_state(before) && !is_pending_state(after) &&
            lk_batch_settle(chunk->batch, op->hash)) {
            chunk->batch->settle_all = true;
        }
        if (op->out.token > chunk->last_token) {
            chunk->last_token = op->out.token;
        }
    }
    pending->written = written;
    chunk->lane->wrote |= written;
    pending->uncertain = written || is_final(op->out.verdict);
    return status;
}

/* Redis says so before the first write of a call: nothing has happened. */
static bool lacks_memory(const struct lk_reply *reply)
{
    static const char words[] = "OOM command not allowed";
    struct lk_slice text = lk_reply_text(reply);

    return text.len && memmem(text.data, text.len, words, sizeof(words) - 1);
}

static void take_reply(struct lk_redis_chunk *chunk,
                       struct lk_redis_pending *pending,
                       const struct lk_reply *reply)
{
    struct lk_op *op = pending->op;

    if (reply->type == LK_REPLY_TEXT) {
        pending->sent = false;
        op->status = take_outcome(chunk, pending, lk_reply_text(reply));
        op->error = NULL;
        if (chunk->full && op->out.verdict == LK_VERDICT_REFUSED &&
            !op->no_new) {
            op->status = LK_UNAVAILABLE;
            op->error = NO_MEMORY;
        }
        return;
    }
    if (lacks_memory(reply)) {
        chunk->lane->full = true;
        op->status = chunk->full ? LK_UNAVAILABLE : LK_AGAIN;
        op->error = NO_MEMORY;
        return;
    }
    op->status = lk_redis_refusal(reply, &op->error);
    if (pending->sent && op->status == LK_UNAVAILABLE) {
        op->status = LK_UNKNOWN; /* sent before, too: that may have counted */
        return;
    }
    chunk->unfit |= op->status == LK_AGAIN;
    if (op->status == LK_UNKNOWN && !chunk->complained) {
        struct lk_slice said = lk_reply_text(reply);
        chunk->complained = true;
        lk_redis_log(chunk->store, 0, "Redis failed in a function: %.*s",
                     (int)(said.len < 200 ? said.len : 200),
                     said.data ? said.data : "");
    }
}

/* An error instead of an array is everybody's. */
static void take_group(struct lk_redis_chunk *chunk,
                       const struct lk_reply *reply)
{
    struct lk_redis_pending *first = &chunk->pending[chunk->answered];
    bool fits = reply->type == LK_REPLY_ARRAY && reply->count == first->group;

    for (size_t i = 0; i < first->group; i++) {
        take_reply(chunk, &first[i], fits ? &reply->elements[i] : reply);
    }
    chunk->answered += first->group;
}

/* As latchkey_tend returns it. */
enum { TEND_COUNTS = 5, TEND_NAMES = 12 };

static void take_tending(struct lk_redis_chunk *chunk,
                         const struct lk_reply *reply)
{
    struct lk_redis *store = chunk->store;
    const struct lk_reply *fields = reply->elements;
    const char *ignored;

    if (reply->type != LK_REPLY_ARRAY || reply->count < TEND_NAMES) {
        chunk->unfit |= reply->type == LK_REPLY_ERROR &&
                        lk_redis_refusal(reply, &ignored) == LK_AGAIN;
        return;
    }
    for (size_t i = TEND_NAMES; i < reply->count; i++) {
        struct lk_name name;
        if (!lk_redis_name_read(store, lk_reply_text(&fields[i]), &name) ||
            lk_batch_settle(chunk->batch,
                            lk_name_hash(store->store.secret, name))) {
            chunk->batch->settle_all = true;
        }
    }
    uint64_t dead = lk_reply_number(&fields[3]);
    uint64_t late = lk_reply_number(&fields[4]);
    chunk->batch->more = lk_reply_number(&fields[0]) && dead + late > 0;
    memset(chunk->change, 0, sizeof(chunk->change)); /* counted anew */
    lk_redis_count(store, fields + TEND_COUNTS);
    pthread_mutex_lock(&store->numbers_lock);
    store->numbers.dead_rows = dead;
    store->numbers.reaped += lk_reply_number(&fields[2]);
    store->numbers.swept += reply->count - TEND_NAMES;
    pthread_mutex_unlock(&store->numbers_lock);
    chunk->now_ms = lk_reply_number(&fields[1]);
}

static void forget_outcome(struct lk_op *op, enum lk_status status,
                           const char *error)
{
    lk_op_clear(op);
    op->out = (struct lk_outcome){0};
    op->status = status;
    op->error = error;
}

/* Nobody knows whether enough replicas have what the outcomes rest on. */
static void doubt_outcomes(struct lk_redis_chunk *chunk, bool again)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        struct lk_redis_pending *pending = &chunk->pending[i];
        struct lk_op *op = pending->op;
        if (op->status != LK_OK || !pending->uncertain) {
            continue;
        }
        bool repeats = again && op->event == LK_EVENT_CLAIM &&
                       (op->owner.len > 0 || !pending->written);
        pending->sent = repeats;
        forget_outcome(op, repeats ? LK_AGAIN : LK_UNKNOWN,
                       "too few replicas of Redis acknowledged it in time");
    }
}

static bool rests_on_writes(const struct lk_redis_chunk *chunk)
{
    for (size_t i = 0; i < chunk->answered; i++) {
        if (chunk->pending[i].op->status == LK_OK &&
            chunk->pending[i].uncertain) {
            return true;
        }
    }
    return false;
}

enum lk_status lk_chunk_await_replicas(struct lk_redis_chunk *chunk,
                                       int64_t deadline)
{
    unsigned replicas = chunk->store->config.wait_replicas;
    const struct lk_reply *reply = NULL;

    if (!replicas || !rests_on_writes(chunk)) {
        return LK_OK;
    }
    lk_link_reset(&chunk->lane->link);
    enum lk_status status = lk_chunk_write_wait(chunk);
    if (!status) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
    }
    /* Without the mark, WAIT counts up to some older write. */
    bool marked = !status && reply->type != LK_REPLY_ERROR;
    if (!status) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
    }
    if (status || !marked || reply->type != LK_REPLY_INTEGER ||
        reply->integer < (long long)replicas) {
        doubt_outcomes(chunk, status != LK_OK);
    }
    return status;
}

enum lk_status lk_chunk_read(struct lk_redis_chunk *chunk, int64_t deadline)
{
    const struct lk_reply *reply = NULL;
    enum lk_status status = LK_OK;

    while (!status && chunk->answered < chunk->count) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
        if (!status) {
            take_group(chunk, reply);
        }
    }
    if (!status && chunk->tends) {
        status = lk_link_next(&chunk->lane->link, deadline, &reply);
        if (!status) {
            take_tending(chunk, reply);
        }
    }
    return status;
}

void lk_chunk_sort(struct lk_redis_chunk *chunk)
{
    size_t sent = chunk->lane->link.sent;

    for (size_t i = chunk->answered; i < chunk->count; i++) {
        struct lk_redis_pending *pending = &chunk->pending[i];
        struct lk_op *op = pending->op;
        if (pending->end > sent) {
            continue; /* not all of it: it cannot have happened */
        }
        pending->sent = true;
        if (op->event != LK_EVENT_CLAIM || !op->owner.len) {
            op->status = LK_UNKNOWN;
            op->error = "the connection to Redis broke: whether it counts is "
                        "not known";
        }
    }
    if (chunk->store->config.wait_replicas) {
        doubt_outcomes(chunk, true);
    }
}
