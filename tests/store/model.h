/*
 * model.h - what a store was heard to say, and whether it keeps to it.
 *
 * The model sends random batches and remembers every acknowledged outcome. It
 * knows the state machine, not the store: after power loss or a failed write
 * it looks at every record, and each must be what was acknowledged, moved on
 * at most by time (sweeper, reaper) or by a batch whose outcome is unknown, as
 * a whole or not at all. What is wrong is counted, not asserted, because a
 * disk that lies must be found out.
 */
#ifndef LK_TEST_MODEL_H
#define LK_TEST_MODEL_H

#include "tests/store/fixture.h"
#include "tests/store/powerloss_vfs.h"

enum {
    MODEL_KEYS = 12,
    MODEL_BATCH = 12,
    MODEL_WORLDS = 64,
    MODEL_TOKENS = 20000,
    MODEL_BODY = 20000,
};

/* A record as the machine sees it. 0 in token, number, lock_until, expires:
 * not known, because the operation that set it was not acknowledged. */
struct model_record {
    enum lk_state state;
    uint64_t token;
    uint64_t attempt;
    uint64_t number;
    uint64_t lock_until;
    uint64_t expires;
    uint64_t ttl;
    unsigned fingerprint;
    unsigned owner;
    uint64_t answer; /* the seed of its bytes */
    bool omitted;
    bool doubted; /* uncertain, and its holder said so */
    bool vague;   /* or it said so too late: the sweeper had been there */
    bool fresh;   /* the token was handed out, but nobody heard it */
};

struct model_op {
    unsigned key;
    enum lk_event event;
    unsigned fingerprint;
    unsigned owner;
    uint64_t token;
    uint64_t ttl;
    uint64_t lock;
    uint64_t answer;
    bool omit, reexecute, no_new;
    enum lk_status status;
};

struct model {
    struct bed *bed;
    uint64_t random;
    char keys[MODEL_KEYS][16];
    struct model_record records[MODEL_KEYS];
    struct model_op batch[MODEL_BATCH];
    size_t batch_count;
    bool unknown; /* the batch may or may not have happened */
    uint64_t tokens[MODEL_TOKENS];
    size_t token_count;
    uint64_t latest; /* the store's clock, as last heard */
    uint64_t answers;
    uint64_t acknowledged;
    uint64_t refused;
    unsigned violations;
    char first[256]; /* violation */
    bool loud;
};

static void violate(struct model *model, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void violate(struct model *model, const char *format, ...)
{
    va_list args;
    char line[256];

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (!model->violations++) {
        memcpy(model->first, line, sizeof(line));
    }
    if (model->loud) {
        print_error("violation: %s\n", line);
    }
}

static uint64_t pick(struct model *model, uint64_t below)
{
    model->random ^= model->random >> 12;
    model->random ^= model->random << 25;
    model->random ^= model->random >> 27;
    return (model->random * UINT64_C(0x2545F4914F6CDD1D) >> 16) % below;
}

static void model_start(struct model *model, struct bed *bed, uint64_t seed)
{
    memset(model, 0, sizeof(*model));
    model->bed = bed;
    model->random = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    model->loud = true;
    for (unsigned i = 0; i < MODEL_KEYS; i++) {
        snprintf(model->keys[i], sizeof(model->keys[i]), "key-%u", i);
    }
}

/* The store is closed: the test opens it when the disk is as it should be. */
HELPER struct model *model_on_disk(struct bed *bed)
{
    struct model *model = malloc(sizeof(*model));

    assert_non_null(model);
    if (!is_embedded(bed)) {
        free(model);
        skip();
    }
    bed_close(bed);
    bed->config.vfs = disk_vfs();
    return model;
}

/* ---- Operations
 * -------------------------------------------------------------- */

static const char *const model_owners[] = {"first", "second", "third"};
static const char *const model_fingerprints[] = {"1:first", "1:second"};

/* Bytes that depend on every bit of the seed; now and then many pages. */
static struct lk_slice answer_bytes(uint64_t seed, char *bytes)
{
    size_t len = seed % 7 == 0 ? MODEL_BODY - seed % 512 : seed % 600;
    uint64_t word = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;

    for (size_t i = 0; i < len; i++) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes[i] = (char)(word >> 32);
    }
    return (struct lk_slice){bytes, len};
}

static enum lk_event pick_event(struct model *model)
{
    static const enum lk_event events[] = {
        LK_EVENT_CLAIM,           LK_EVENT_CLAIM,
        LK_EVENT_CLAIM,           LK_EVENT_CLAIM,
        LK_EVENT_CLAIM,           LK_EVENT_COMPLETE,
        LK_EVENT_COMPLETE,        LK_EVENT_COMPLETE,
        LK_EVENT_RELEASE,         LK_EVENT_DOUBT,
        LK_EVENT_EXTEND,          LK_EVENT_KEEP,
        LK_EVENT_EVICT,           LK_EVENT_RESOLVE_COMPLETED,
        LK_EVENT_RESOLVE_RELEASED};

    return events[pick(model, sizeof(events) / sizeof(*events))];
}

static bool is_resolution(enum lk_event event)
{
    return event == LK_EVENT_RESOLVE_COMPLETED ||
           event == LK_EVENT_RESOLVE_RELEASED;
}

static struct model_op pick_op(struct model *model)
{
    static const uint64_t times[] = {1, 5, 40, HOUR_MS, HOUR_MS, HOUR_MS};
    struct model_op op = {.key = (unsigned)pick(model, MODEL_KEYS)};

    op.event = pick_event(model);
    op.fingerprint = pick(model, 8) == 0;
    op.owner = (unsigned)pick(model, 3);
    op.token = model->records[op.key].token;
    if (pick(model, 10) == 0) {
        op.token -= op.token ? 1 : 0;
    }
    if (is_resolution(op.event) && pick(model, 2)) {
        op.token = 0; /* by a person, who needs no proof */
    }
    op.ttl = times[pick(model, 6)];
    op.lock = times[pick(model, 6)];
    op.answer = ++model->answers * 1000003 + pick(model, 1000);
    op.omit = pick(model, 8) == 0;
    op.reexecute = pick(model, 4) == 0;
    op.no_new = pick(model, 16) == 0;
    return op;
}

/* `bytes` holds the body while the op is under way. */
static struct lk_op store_op(struct model *model, const struct model_op *plan,
                             char *bytes)
{
    struct lk_op op = with_token(model->bed, plan->event,
                                 model->keys[plan->key], plan->token);

    op.fingerprint = text(model_fingerprints[plan->fingerprint]);
    op.owner = text(model_owners[plan->owner]);
    op.ttl_ms = plan->ttl;
    op.lock_ms = plan->lock;
    op.reexecute = plan->event == LK_EVENT_CLAIM && plan->reexecute;
    op.no_new = plan->event == LK_EVENT_CLAIM && plan->no_new;
    op.running = is_resolution(plan->event) && plan->reexecute;
    if (plan->event == LK_EVENT_COMPLETE ||
        plan->event == LK_EVENT_RESOLVE_COMPLETED) {
        op.response.status = 200 + (unsigned)(plan->answer % 300);
        op.response.headers = LK_SLICE("X-Test: yes\r\n");
        op.response.body = answer_bytes(plan->answer, bytes);
        op.reason = plan->omit ? LK_SLICE("too large") : (struct lk_slice){0};
    }
    return op;
}

/* ---- The machine on the model
 * ------------------------------------------------ */

static struct lk_standing model_standing(const struct model_record *record,
                                         const struct model_op *op, bool past)
{
    return (struct lk_standing){
        .state = record->state,
        .expired = past,
        .lapsed = past,
        .omitted = record->omitted,
        .doubted = record->doubted,
        .same_fingerprint = op->fingerprint == record->fingerprint,
        .same_owner = op->owner == record->owner,
        .token_current = !record->fresh && op->token == record->token,
        .reexecute = op->event == LK_EVENT_CLAIM && op->reexecute,
        .no_new = op->event == LK_EVENT_CLAIM && op->no_new,
        .proof = is_resolution(op->event) && op->token,
        .running = is_resolution(op->event) && op->reexecute,
    };
}

/* What decides whether time has run out; UINT64_MAX: never. */
static uint64_t deadline_of(const struct model_record *record)
{
    switch (record->state) {
    case LK_STATE_IN_PROGRESS:
        return record->lock_until;
    case LK_STATE_COMPLETED:
    case LK_STATE_RELEASED:
        return record->expires;
    default:
        return UINT64_MAX;
    }
}

static bool finished(enum lk_state state)
{
    return state == LK_STATE_COMPLETED || state == LK_STATE_RELEASED;
}

static void begin_record(struct model_record *record, const struct model_op *op,
                         bool past)
{
    bool anew =
        record->state == LK_STATE_ABSENT || (past && finished(record->state));

    record->attempt = anew ? 1 : record->attempt + 1;
    record->number = anew ? 0 : record->number;
    record->token = 0;
    record->fresh = true;
    record->fingerprint = op->fingerprint;
    record->owner = op->owner;
    record->ttl = op->ttl;
    record->lock_until = record->expires = record->answer = 0;
    record->omitted = false;
}

/* The record after a step, with everything that time decides unknown. */
static struct model_record after_step(struct model_record record,
                                      const struct model_op *op,
                                      struct lk_step step, bool past)
{
    switch (step.effect) {
    case LK_EFFECT_BEGIN:
        begin_record(&record, op, past);
        break;
    case LK_EFFECT_FINISH:
        record.answer = op->answer;
        record.omitted = op->omit;
        record.expires = 0;
        break;
    case LK_EFFECT_FREE:
    case LK_EFFECT_KEEP:
        record.expires = 0;
        record.ttl = op->ttl > record.ttl ? op->ttl : record.ttl;
        break;
    case LK_EFFECT_LOCK:
        record.lock_until = 0;
        break;
    default:
        break;
    }
    if (step.effect != LK_EFFECT_NONE) {
        record.state = step.next;
        record.doubted = op->event == LK_EVENT_DOUBT ||
                         (record.doubted && step.next == LK_STATE_UNCERTAIN);
        record.vague = record.doubted && (past || record.vague);
    }
    return record;
}

static void remember_token(struct model *model, uint64_t token)
{
    for (size_t i = 0; i < model->token_count; i++) {
        if (model->tokens[i] == token) {
            violate(model, "token %llu was handed out twice",
                    (unsigned long long)token);
            return;
        }
    }
    assert_true(model->token_count < MODEL_TOKENS);
    model->tokens[model->token_count++] = token;
}

/* Takes over what an acknowledged outcome says beyond the machine. */
static void take_outcome(struct model *model, const struct model_op *op,
                         const struct lk_outcome *out, struct lk_step step,
                         struct model_record after)
{
    struct model_record *record = &model->records[op->key];
    uint64_t before = record->token;

    if (step.effect == LK_EFFECT_BEGIN) {
        if (out->token <= before) {
            violate(model, "token %llu after %llu",
                    (unsigned long long)out->token, (unsigned long long)before);
        }
        if (out->attempt != after.attempt ||
            (after.number && out->number != after.number)) {
            violate(model, "attempt %llu, number %llu; expected %llu, %llu",
                    (unsigned long long)out->attempt,
                    (unsigned long long)out->number,
                    (unsigned long long)after.attempt,
                    (unsigned long long)after.number);
        }
        remember_token(model, out->token);
        after.token = out->token;
        after.number = out->number;
        after.fresh = false;
    } else if (out->verdict == LK_VERDICT_NEW && out->token != before) {
        violate(model, "the same claim got %llu, then %llu",
                (unsigned long long)before, (unsigned long long)out->token);
    }
    if (step.effect != LK_EFFECT_NONE) {
        after.lock_until = out->lock_until_ms;
        after.expires = out->expires_ms;
    }
    *record = after;
}

/* An acknowledged outcome must be a step of the machine. The sweeper may have
 * been there before, if the lock has run out. */
static void hear_outcome(struct model *model, const struct model_op *op,
                         const struct lk_outcome *out)
{
    struct model_record record = model->records[op->key];
    bool past = deadline_of(&record) <= out->now_ms;

    if (out->now_ms < model->latest) {
        violate(model, "the clock went back by %llu ms",
                (unsigned long long)(model->latest - out->now_ms));
    }
    model->latest = out->now_ms;
    model->acknowledged++;
    for (int swept = 0; swept < 2; swept++) {
        struct lk_step step =
            lk_machine_step(op->event, model_standing(&record, op, past));
        if (step.verdict == out->verdict && step.next == out->state) {
            take_outcome(model, op, out, step,
                         after_step(record, op, step, past));
            return;
        }
        if (record.vague) {
            record.vague = record.doubted = false;
            continue;
        }
        if (record.state != LK_STATE_IN_PROGRESS || !past) {
            break;
        }
        record.state = LK_STATE_UNCERTAIN;
        past = false;
    }
    violate(model, "%s: event %d on %s (token %llu, shown %llu) says %s, %s",
            model->keys[op->key], op->event,
            lk_state_word(model->records[op->key].state),
            (unsigned long long)model->records[op->key].token,
            (unsigned long long)op->token, latchkey_verdict_word(out->verdict),
            lk_state_word(out->state));
}

/* ---- Sending
 * ------------------------------------------------------------------- */

static void check_kept(struct model *model, unsigned key,
                       const struct lk_stored *stored)
{
    static char bytes[MODEL_BODY];
    const struct model_record *record = &model->records[key];
    struct lk_slice body = answer_bytes(record->answer, bytes);

    if (record->omitted) {
        body.len = 0;
    }
    if (stored->response.status != 200 + (unsigned)(record->answer % 300) ||
        !latchkey_slice_equal(stored->response.body, body)) {
        violate(model, "%s: the answer is not the one that was stored",
                model->keys[key]);
    }
}

/* A replay of a record that did not change later in the batch. */
static void check_replay(struct model *model, const struct model_op *plan,
                         struct lk_op *op)
{
    const struct model_record *record = &model->records[plan->key];

    if (op->status != LK_OK || record->state != LK_STATE_COMPLETED ||
        (op->out.verdict != LK_VERDICT_REPLAY &&
         op->out.verdict != LK_VERDICT_KEPT) ||
        record->token != op->out.token) {
        return;
    }
    enum lk_status status = LK_OK;
    if (op->out.needs_load) {
        status = model->bed->store->class->load(model->bed->store, op);
    }
    if (status == LK_CORRUPT) {
        violate(model, "%s: the answer is damaged", model->keys[plan->key]);
    }
    if (status) {
        return;
    }
    if (!op->out.stored) {
        violate(model, "%s: a replay without an answer",
                model->keys[plan->key]);
        return;
    }
    check_kept(model, plan->key, op->out.stored);
}

/* One batch of `count` planned operations. Clears `unknown` beforehand. */
static void send_batch(struct model *model, size_t count, bool keep)
{
    static char bytes[MODEL_BATCH][MODEL_BODY];
    struct lk_op ops[MODEL_BATCH];

    model->batch_count = count;
    model->unknown = false;
    for (size_t i = 0; i < count; i++) {
        ops[i] = store_op(model, &model->batch[i], bytes[i]);
    }
    apply_all(model->bed, ops, count, keep);
    for (size_t i = 0; i < count; i++) {
        model->batch[i].status = ops[i].status;
        if (ops[i].status == LK_OK) {
            hear_outcome(model, &model->batch[i], &ops[i].out);
        } else if (ops[i].status == LK_UNKNOWN) {
            model->unknown = true;
        } else if (ops[i].status != LK_UNAVAILABLE) {
            violate(model, "status %s", latchkey_status_name(ops[i].status));
        }
        model->refused += ops[i].status != LK_OK;
    }
    for (size_t i = 0; i < count; i++) {
        check_replay(model, &model->batch[i], &ops[i]);
        lk_op_clear(&ops[i]);
    }
}

static void send_random(struct model *model)
{
    size_t count = 1 + pick(model, MODEL_BATCH);

    for (size_t i = 0; i < count; i++) {
        model->batch[i] = pick_op(model);
    }
    send_batch(model, count, pick(model, 2) == 0);
}

/* ---- Looking, after something went wrong
 * ------------------------------------- */

struct worlds {
    struct model_record list[MODEL_WORLDS];
    size_t count;
};

static void add_world(struct worlds *worlds, struct model_record record)
{
    for (size_t i = 0; i < worlds->count; i++) {
        if (!memcmp(&worlds->list[i], &record, sizeof(record))) {
            return;
        }
    }
    assert_true(worlds->count < MODEL_WORLDS);
    worlds->list[worlds->count++] = record;
}

/* The record, and what the sweeper may have made of it. */
static void add_with_time(struct worlds *worlds, struct model_record record,
                          uint64_t now)
{
    add_world(worlds, record);
    if (record.state == LK_STATE_IN_PROGRESS && deadline_of(&record) <= now) {
        record.state = LK_STATE_UNCERTAIN;
        add_world(worlds, record);
    }
}

/* As imagine_batch, for one moment: a batch is decided at one. What was known
 * of the record is `past` then or not; what the batch itself has set is not. */
static void imagine_moment(struct model *model, unsigned key, uint64_t now,
                           bool past, struct worlds *worlds)
{
    struct worlds next;

    worlds->count = 0;
    add_with_time(worlds, model->records[key], now);
    for (size_t i = 0; i < model->batch_count; i++) {
        const struct model_op *op = &model->batch[i];
        if (op->key != key || op->status != LK_UNKNOWN) {
            continue;
        }
        next.count = 0;
        for (size_t w = 0; w < worlds->count; w++) {
            struct model_record *record = &worlds->list[w];
            uint64_t deadline = deadline_of(record);
            bool over = past && deadline && deadline <= now;
            struct lk_step step =
                lk_machine_step(op->event, model_standing(record, op, over));
            add_world(&next, after_step(*record, op, step, over));
        }
        *worlds = next;
    }
    /* The sweeper comes before a batch or at its end, never within it. */
    next.count = 0;
    for (size_t w = 0; w < worlds->count; w++) {
        add_with_time(&next, worlds->list[w], now);
    }
    *worlds = next;
}

/* Every record that the unknown batch may have left, if it happened. */
static void imagine_batch(struct model *model, unsigned key, uint64_t now,
                          struct worlds *worlds)
{
    static struct worlds later;

    imagine_moment(model, key, now, false, worlds);
    imagine_moment(model, key, now, true, &later);
    for (size_t i = 0; i < later.count; i++) {
        add_world(worlds, later.list[i]);
    }
}

static bool same_number(uint64_t expected, uint64_t seen)
{
    return !expected || expected == seen;
}

static bool has_reason(const struct lk_operation *seen)
{
    return !latchkey_slice_equal(seen->reason, LK_SLICE("lock lapsed"));
}

static bool world_fits(const struct model_record *world,
                       const struct lk_operation *seen, uint64_t now)
{
    if (seen->state == LK_STATE_ABSENT) {
        return world->state == LK_STATE_ABSENT ||
               (finished(world->state) && world->expires <= now);
    }
    if (seen->state != world->state ||
        !same_number(world->token, seen->token) ||
        !same_number(world->number, seen->number) ||
        world->attempt != seen->attempt) {
        return false;
    }
    switch (seen->state) {
    case LK_STATE_IN_PROGRESS:
        return same_number(world->lock_until, seen->lock_until_ms);
    case LK_STATE_COMPLETED:
        return same_number(world->expires, seen->expires_ms) &&
               world->omitted == seen->omitted &&
               seen->status == 200 + (unsigned)(world->answer % 300);
    case LK_STATE_UNCERTAIN: /* by its holder, who gave a reason, or by time */
        return world->vague || world->doubted == has_reason(seen);
    default:
        return true;
    }
}

static bool answer_fits(const struct model_record *world,
                        const struct lk_operation *seen)
{
    static char bytes[MODEL_BODY];

    if (seen->state != LK_STATE_COMPLETED || world->omitted) {
        return true;
    }
    return seen->stored &&
           latchkey_slice_equal(seen->stored->response.body,
                                answer_bytes(world->answer, bytes));
}

static const struct model_record *find_world(const struct worlds *worlds,
                                             const struct lk_operation *seen,
                                             uint64_t now)
{
    for (size_t i = 0; i < worlds->count; i++) {
        if (world_fits(&worlds->list[i], seen, now) &&
            answer_fits(&worlds->list[i], seen)) {
            return &worlds->list[i];
        }
    }
    return NULL;
}

/* From now on the record is what was seen. */
static void adopt(struct model *model, unsigned key, struct model_record world,
                  const struct lk_operation *seen)
{
    if (seen->state == LK_STATE_ABSENT) {
        /* Tokens go on rising, whatever was forgotten. */
        model->records[key] =
            (struct model_record){.token = model->records[key].token};
        return;
    }
    if (world.fresh) {
        remember_token(model, seen->token);
        if (seen->token <= model->records[key].token) {
            violate(model, "%s: token %llu after %llu", model->keys[key],
                    (unsigned long long)seen->token,
                    (unsigned long long)model->records[key].token);
        }
    }
    /* A lapsed claim is shown as uncertain, swept or not. */
    if (seen->state == LK_STATE_UNCERTAIN && seen->lock_until_ms) {
        world.state = LK_STATE_IN_PROGRESS;
    }
    world.fresh = world.vague = false;
    world.doubted = seen->state == LK_STATE_UNCERTAIN && has_reason(seen);
    world.token = seen->token;
    world.number = seen->number;
    world.lock_until = seen->lock_until_ms;
    world.expires = seen->expires_ms;
    model->records[key] = world;
}

enum { BATCH_EITHER, BATCH_LOST, BATCH_DONE };

static int observe_key(struct model *model, unsigned key)
{
    static struct worlds before, after;
    struct lk_operation seen = {0};
    const struct model_record *lost, *done;
    int fate = BATCH_EITHER;

    struct lk_store *store = model->bed->store;
    struct lk_op op = op_on(model->bed, LK_EVENT_CLAIM, model->keys[key]);
    enum lk_status status = store->class->lookup(store, op.name, &seen);
    if (status && status != LK_NOT_FOUND) {
        violate(model, "lookup: %s", latchkey_status_name(status));
    }
    uint64_t now = stats_of(model->bed).now_ms;
    before.count = 0;
    add_with_time(&before, model->records[key], now);
    imagine_batch(model, key, now, &after);
    lost = find_world(&before, &seen, now);
    done = model->unknown ? find_world(&after, &seen, now) : NULL;
    if (!lost && !done) {
        const struct model_record *known = &model->records[key];
        violate(model,
                "%s: acknowledged %s token %llu attempt %llu, found %s "
                "token %llu attempt %llu",
                model->keys[key], lk_state_word(known->state),
                (unsigned long long)known->token,
                (unsigned long long)known->attempt, lk_state_word(seen.state),
                (unsigned long long)seen.token,
                (unsigned long long)seen.attempt);
    } else {
        adopt(model, key, *(lost ? lost : done), &seen);
        fate = lost && done ? BATCH_EITHER : lost ? BATCH_LOST : BATCH_DONE;
    }
    lk_operation_free(&seen);
    return fate;
}

/* Compares every record with what was acknowledged, and goes on from there. */
static void observe_all(struct model *model)
{
    unsigned fates = 0;

    for (unsigned key = 0; key < MODEL_KEYS; key++) {
        fates |= 1u << observe_key(model, key);
    }
    if (fates & 1u << BATCH_LOST && fates & 1u << BATCH_DONE) {
        violate(model, "a batch happened in part");
    }
    model->unknown = false;
    model->batch_count = 0;
}

/* Strangers and holders ask for every key: nobody gets a second NEW. */
static void probe_all(struct model *model)
{
    for (unsigned key = 0; key < MODEL_KEYS; key++) {
        for (unsigned owner = 0; owner < 2; owner++) {
            model->batch[owner] = (struct model_op){
                .key = key,
                .event = LK_EVENT_CLAIM,
                .fingerprint = model->records[key].fingerprint,
                .owner = owner ? model->records[key].owner
                               : (model->records[key].owner + 1) % 3,
                .no_new = true,
            };
        }
        send_batch(model, 2, false);
        model->unknown = false;
    }
}

static void verify_store(struct model *model)
{
    struct lk_buf report = {0};
    struct lk_store *store = model->bed->store;
    enum lk_status status = store->class->verify(store, NULL, NULL, &report);

    if (status) {
        violate(model, "verify: %s: %.*s", latchkey_status_name(status),
                (int)report.len, report.data ? report.data : "");
    }
    latchkey_buf_free(&report);
}

#endif
