/*
 * model.h - one operation as a sequence of commands would see it: the record,
 * what a command makes of it, and what the reply may say.
 *
 * Verdicts, states and effects are those of lib/machine.c. What each field of
 * a reply may be is stated here once more, without a look at any store: tokens,
 * attempts, references, answers, reasons exactly, times as far as they can be
 * known. A time that no reply has shown yet is a span: the command was decided
 * at some moment between its call and its return. A reply that shows it makes
 * it exact.
 */
#ifndef LK_LINEAR_MODEL_H
#define LK_LINEAR_MODEL_H

#include "lib/machine.h"

#include <string.h>

#define NEVER         INT64_MAX
#define SLACK_MS      3 /* clocks count whole milliseconds */
#define DEFAULT_TTL   INT64_C(86400000)
#define DEFAULT_LOCK  INT64_C(30000)
#define LAPSED_REASON "lock lapsed"

enum kind {
    KIND_CLAIM,
    KIND_COMPLETE,
    KIND_RELEASE,
    KIND_DOUBT,
    KIND_EXTEND,
    KIND_KEEP,
    KIND_LOOKUP,
    KIND_FIND,
    KIND_RESOLVE_COMPLETED,
    KIND_RESOLVE_RELEASED,
    KIND_EVICT,
    KIND_END,
};

/* What a reply was. The first ones are those of enum lk_verdict. */
enum {
    TOLD_RECORD = LK_VERDICT_EXISTS + 1, /* LOOKUP, FIND: a map */
    TOLD_STATE,                          /* EVICT: an error names the state */
    TOLD_NOTHING,                        /* no reply: it may count or not */
    TOLD_VOID,                           /* it surely did not count */
    TOLD_END,
};

/* Texts and bodies are digests; 0 is "none". */
struct answer {
    uint64_t status, headers, body, reason; /* reason: of what is omitted */
};

/* One command, and what came back. */
struct op {
    uint8_t kind, told;
    uint8_t owner; /* claim; 0: none */
    uint8_t print; /* claim: which fingerprint; record: the one shown */
    bool reexecute, no_new, omit;
    bool proof, running; /* resolve: with TOKEN, RUNNING */
    uint8_t state;
    uint32_t connection;
    int64_t call_us, return_us; /* return: NEVER without a reply */
    /* What was durable when it was called had been called by then: while a
     * batch is not durable yet, the store lets others see no later time. */
    int64_t durable_us;
    uint64_t token;          /* shown by the command */
    int64_t lock_ms, ttl_ms; /* as asked for; 0: not given */
    uint64_t reason;         /* DOUBT; FIND: the reference */
    int64_t wait_ms;
    struct answer sent;
    /* The reply: */
    uint64_t new_token, attempt, reference;
    int64_t lock_until, claimed, since, completed, expires, retry_after, ttl;
    struct answer seen;
};

struct span {
    int64_t lo, hi;
};

/* Compared and hashed as bytes: always start from a copy or from zero. */
struct model {
    uint64_t token;                    /* 0: handed out, and nobody was told */
    uint64_t last_token;               /* the highest one before it */
    uint64_t reference, old_reference; /* 0: nobody was told */
    uint64_t attempt;
    struct answer answer; /* completed; reason also: uncertain */
    int64_t ttl, keep, life;
    struct span claimed, completed;
    struct span deadline; /* end of the lock, since when, or expiry */
    uint8_t state, owner, print;
    uint8_t omitted;
    uint8_t tied; /* expiry is completed + life: no KEEP since */
    uint8_t evicted;
    uint8_t spare[2];
};

/* PostgreSQL: a transaction that has not committed yet may have moved a
 * deadline that is past for those who only look. */
static bool looks_early;
static uint64_t lapsed_reason;
static int64_t clock_offset_us; /* of the store's clock to ours */

static inline uint64_t digest(const void *data, size_t len)
{
    const unsigned char *bytes = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    hash ^= hash >> 29;
    return len == 0 ? 0 : hash | 1;
}

static inline uint64_t digest_text(const char *text)
{
    return digest(text, strlen(text));
}

/* ---- what is known ---- */

static inline int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* False: that cannot be. */
static inline bool narrow(struct span *span, int64_t lo, int64_t hi)
{
    span->lo = later(span->lo, lo);
    span->hi = sooner(span->hi, hi);
    return span->lo <= span->hi;
}

static inline bool is_at(struct span *span, int64_t at)
{
    return narrow(span, at, at);
}

static inline struct span shift(struct span span, int64_t by)
{
    return (struct span){span.lo + by, span.hi + by};
}

static inline int64_t store_ms(int64_t at_us)
{
    return (at_us + clock_offset_us) / 1000;
}

/* When the command was decided, at the earliest and at the latest. */
static inline struct span moment(const struct op *op, int64_t latest_us)
{
    return (struct span){store_ms(op->call_us) - SLACK_MS,
                         store_ms(latest_us) + SLACK_MS};
}

/* The time that a look may see, at the earliest. */
static inline int64_t earliest_of(const struct op *op, struct span now)
{
    return sooner(now.lo, store_ms(op->durable_us) - SLACK_MS);
}

static inline bool show_token(struct model *model, uint64_t token)
{
    if (model->token == 0 && token > model->last_token) {
        model->token = token;
    }
    return model->token == token && token != 0;
}

static inline bool show_reference(struct model *model, uint64_t reference)
{
    if (model->reference == 0 && reference != model->old_reference) {
        model->reference = reference;
    }
    return model->reference == reference && reference != 0;
}

/* ---- the record ---- */

/* Past its TTL: the next claim of this name is another operation. */
static inline void forget(struct model *model)
{
    struct model empty = {0};

    empty.last_token =
        model->token > model->last_token ? model->token : model->last_token;
    empty.old_reference =
        model->reference != 0 ? model->reference : model->old_reference;
    *model = empty;
}

enum { WAYS = 3 };

/*
 * How the clock may stand for a command: 0: nothing has run out; 1: TTL or lock
 * have; 2: and the sweeper was there before. False: not in this way.
 */
static inline bool look_at_clock(struct model *model, const struct op *op,
                                 struct span now, int way, bool *lapsed)
{
    int64_t earliest = earliest_of(op, now);
    bool finished =
        model->state == LK_STATE_COMPLETED || model->state == LK_STATE_RELEASED;
    bool running = model->state == LK_STATE_IN_PROGRESS;

    *lapsed = running && way == 1;
    if (!finished && !running) {
        return way == 0;
    }
    if (way == 0) {
        return narrow(&model->deadline, earliest + 1, NEVER);
    }
    if (!narrow(&model->deadline, INT64_MIN, now.hi)) {
        return false;
    }
    if (finished) {
        forget(model);
        return way == 1;
    }
    if (way == 2) {
        model->state = LK_STATE_UNCERTAIN;
        model->answer.reason = lapsed_reason;
    }
    return true;
}

static inline void begin(struct model *model, const struct op *op,
                         struct span now)
{
    if (model->token > model->last_token) {
        model->last_token = model->token;
    }
    model->token = 0;
    model->attempt++;
    model->owner = op->owner;
    model->print = op->print;
    model->ttl = op->ttl_ms ? op->ttl_ms : DEFAULT_TTL;
    model->keep = model->evicted ? 0 : model->keep;
    model->evicted = 0;
    model->claimed = now;
    model->deadline = shift(now, op->lock_ms ? op->lock_ms : DEFAULT_LOCK);
    model->answer = (struct answer){0};
    model->omitted = model->tied = 0;
    model->life = 0;
    model->completed = (struct span){0, 0};
}

static inline void finish(struct model *model, const struct op *op,
                          struct span now)
{
    model->life = later(op->ttl_ms ? op->ttl_ms : model->ttl, model->keep);
    model->completed = now;
    model->deadline = shift(now, model->life);
    model->tied = 1;
    model->answer = op->sent;
    model->omitted = op->omit;
}

static inline void set_free(struct model *model, const struct op *op,
                            struct span now)
{
    model->evicted = op->kind == KIND_EVICT;
    model->deadline = shift(now, later(model->ttl, model->keep));
    model->answer = (struct answer){0};
    model->omitted = model->tied = 0;
    model->life = 0;
    model->completed = (struct span){0, 0};
}

static inline struct span latest_of(struct span a, struct span b)
{
    return (struct span){later(a.lo, b.lo), later(a.hi, b.hi)};
}

/* By its holder, or by its owner, who claims again. */
static inline void extend(struct model *model, const struct op *op,
                          struct span now, bool was_uncertain)
{
    struct span until = shift(now, op->lock_ms ? op->lock_ms : DEFAULT_LOCK);

    model->deadline = was_uncertain ? until : latest_of(model->deadline, until);
    model->answer.reason = 0;
}

static inline void keep(struct model *model, const struct op *op,
                        struct span now)
{
    if (model->state != LK_STATE_COMPLETED) {
        model->keep = later(model->keep, op->ttl_ms);
        return;
    }
    struct span until = shift(now, op->ttl_ms);
    if (until.hi > model->deadline.lo) {
        model->deadline = latest_of(model->deadline, until);
        model->tied = 0;
    }
}

static inline void take_effect(struct model *model, const struct op *op,
                               struct lk_step step, struct span now)
{
    bool was_uncertain = model->state == LK_STATE_UNCERTAIN;

    switch (step.effect) {
    case LK_EFFECT_BEGIN:
        begin(model, op, now);
        break;
    case LK_EFFECT_FINISH:
        finish(model, op, now);
        break;
    case LK_EFFECT_FREE:
        set_free(model, op, now);
        break;
    case LK_EFFECT_DOUBT:
        if (op->kind == KIND_DOUBT) {
            model->deadline = now;
            model->answer.reason = op->reason;
        } else {
            model->answer.reason = lapsed_reason;
        }
        break;
    case LK_EFFECT_LOCK:
        extend(model, op, now, was_uncertain);
        break;
    case LK_EFFECT_KEEP:
        keep(model, op, now);
        break;
    default:
        break;
    }
    if (step.effect != LK_EFFECT_NONE) {
        model->state = step.next;
    }
}

/* ---- replies ---- */

static inline bool same_answer(const struct model *model, const struct op *op)
{
    return op->seen.status == model->answer.status &&
           op->seen.headers == model->answer.headers &&
           op->seen.body == model->answer.body &&
           (!model->omitted || op->seen.reason == model->answer.reason);
}

static inline bool is_completion(struct model *model, const struct op *op)
{
    return same_answer(model, op) && is_at(&model->completed, op->completed) &&
           is_at(&model->deadline, op->expires) &&
           (!model->tied || op->expires == op->completed + model->life);
}

/* NEW to the owner of a claim shows the lock that it has. */
static inline bool is_new(struct model *model, const struct op *op, bool begun)
{
    int64_t lock = op->lock_ms ? op->lock_ms : DEFAULT_LOCK;

    return show_token(model, op->new_token) && op->attempt == model->attempt &&
           (model->state != LK_STATE_IN_PROGRESS ||
            is_at(&model->deadline, op->lock_until)) &&
           (!begun || is_at(&model->claimed, op->lock_until - lock));
}

/* Between a tenth of a second and a second; less only if the lock is over. */
static inline int64_t clamp_wait(int64_t left)
{
    return left < 100 ? 100 : left < 1000 ? left : 1000;
}

static inline bool is_wait(const struct model *model, const struct op *op,
                           struct span now)
{
    return op->retry_after >= clamp_wait(model->deadline.lo - now.hi) &&
           op->retry_after <=
               clamp_wait(model->deadline.hi - earliest_of(op, now));
}

static inline bool is_told(struct model *model, const struct op *op,
                           struct lk_step step, struct span now)
{
    if (op->told != step.verdict) {
        return false;
    }
    switch (step.verdict) {
    case LK_VERDICT_NEW:
        if (!is_new(model, op, step.effect == LK_EFFECT_BEGIN)) {
            return false;
        }
        break;
    case LK_VERDICT_REPLAY:
    case LK_VERDICT_OMITTED:
    case LK_VERDICT_KEPT:
        if (!is_completion(model, op)) {
            return false;
        }
        break;
    case LK_VERDICT_INFLIGHT:
        if (!is_wait(model, op, now)) {
            return false;
        }
        break;
    case LK_VERDICT_UNCERTAIN:
        if (op->seen.reason != model->answer.reason ||
            !is_at(&model->deadline, op->since)) {
            return false;
        }
        break;
    case LK_VERDICT_MISMATCH:
        break;
    default:
        return true;
    }
    return show_reference(model, op->reference);
}

/* A record as LOOKUP and FIND show it. */
static inline bool is_shown(struct model *model, const struct op *op)
{
    if (op->state != model->state || !show_token(model, op->new_token) ||
        op->attempt != model->attempt || op->print != model->print ||
        op->ttl != later(model->ttl, model->keep) ||
        !is_at(&model->claimed, op->claimed) ||
        !show_reference(model, op->reference)) {
        return false;
    }
    switch (model->state) {
    case LK_STATE_IN_PROGRESS:
        return is_at(&model->deadline, op->lock_until);
    case LK_STATE_UNCERTAIN:
        return is_at(&model->deadline, op->since) &&
               op->seen.reason == model->answer.reason;
    case LK_STATE_COMPLETED:
        return is_completion(model, op);
    default:
        return is_at(&model->deadline, op->expires);
    }
}

/* One whose lock is over is shown as uncertain, whether or not the sweeper was
 * there. */
static inline bool look_up(struct model *model, const struct op *op,
                           bool lapsed)
{
    bool there = model->state != LK_STATE_ABSENT &&
                 (op->kind == KIND_LOOKUP || model->reference == op->reason);

    if (lapsed) {
        model->state = LK_STATE_UNCERTAIN;
        model->answer.reason = lapsed_reason;
    }
    bool fits = op->told == (there ? TOLD_RECORD : (int)LK_VERDICT_NIL) &&
                (!there || is_shown(model, op));
    if (lapsed) {
        model->state = LK_STATE_IN_PROGRESS;
        model->answer.reason = 0;
    }
    return fits;
}

static inline bool look_too_early(const struct model *model,
                                  const struct op *op, struct span now)
{
    return (op->kind == KIND_LOOKUP || op->kind == KIND_FIND) &&
           op->told == LK_VERDICT_NIL && model->state >= LK_STATE_COMPLETED &&
           model->deadline.lo <= now.hi;
}

/* ---- one command ---- */

static inline enum lk_event event_of(const struct op *op)
{
    static const enum lk_event events[] = {
        [KIND_CLAIM] = LK_EVENT_CLAIM,
        [KIND_COMPLETE] = LK_EVENT_COMPLETE,
        [KIND_RELEASE] = LK_EVENT_RELEASE,
        [KIND_DOUBT] = LK_EVENT_DOUBT,
        [KIND_EXTEND] = LK_EVENT_EXTEND,
        [KIND_KEEP] = LK_EVENT_KEEP,
        [KIND_RESOLVE_COMPLETED] = LK_EVENT_RESOLVE_COMPLETED,
        [KIND_RESOLVE_RELEASED] = LK_EVENT_RESOLVE_RELEASED,
        [KIND_EVICT] = LK_EVENT_EVICT,
    };
    return events[op->kind];
}

/* EVICT of what is not finished is an error that names the state. */
static inline bool is_named(const struct model *model, const struct op *op)
{
    return op->kind == KIND_EVICT && op->told == TOLD_STATE &&
           op->state == model->state &&
           (model->state == LK_STATE_IN_PROGRESS ||
            model->state == LK_STATE_UNCERTAIN);
}

/*
 * The command takes effect on `model`, at `latest_us` at the latest. False: not
 * in this way, or the reply says something else.
 */
static inline bool take_step(struct model *model, const struct op *op, int way,
                             int64_t latest_us)
{
    struct span now = moment(op, latest_us);
    struct lk_standing standing = {.reexecute = op->reexecute,
                                   .no_new = op->no_new,
                                   .proof = op->proof,
                                   .running = op->running};

    if (looks_early && way == 1 && look_too_early(model, op, now)) {
        return true;
    }
    if (!look_at_clock(model, op, now, way, &standing.lapsed)) {
        return false;
    }
    if (op->kind == KIND_LOOKUP || op->kind == KIND_FIND) {
        return look_up(model, op, standing.lapsed);
    }
    standing.state = (enum lk_state)model->state;
    standing.omitted = model->omitted;
    standing.doubted = model->answer.reason != lapsed_reason;
    standing.same_fingerprint = op->print == model->print;
    standing.same_owner = op->owner != 0 && op->owner == model->owner;
    standing.token_current = op->token == model->token && op->token != 0;
    if (is_named(model, op)) {
        return true;
    }
    struct lk_step step = lk_machine_step(event_of(op), standing);
    if (op->kind == KIND_EVICT && step.verdict == LK_VERDICT_NIL &&
        (model->state == LK_STATE_IN_PROGRESS ||
         model->state == LK_STATE_UNCERTAIN)) {
        return op->told == TOLD_NOTHING;
    }
    take_effect(model, op, step, now);
    return op->told == TOLD_NOTHING || is_told(model, op, step, now);
}

#endif
