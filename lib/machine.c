/* machine.c - the state machine: one pure function, its table beside it. */
#include "lib/machine.h"

/*
 * record is                     event             becomes      caller is told
 * ----------------------------  ----------------  -----------  --------------
 * absent, released, expired     claim             in_progress  NEW, new token
 *   the same, with no_new       claim, accept     unchanged    REFUSED
 * any other, other fingerprint  claim, accept     unchanged    MISMATCH
 * in_progress, same owner       claim             unchanged    NEW, same token
 *   the same, lock lapsed       claim             in_progress  NEW, same token
 *   the same, with no_new       claim             unchanged    NEW, same token
 * in_progress, lock valid       claim             unchanged    INFLIGHT
 * in_progress, lock lapsed      claim, sweep      uncertain    UNCERTAIN
 *   the same, with reexecute    claim             in_progress  NEW, next token
 * uncertain                     claim             unchanged    UNCERTAIN
 *   the same owner, no_new      claim             unchanged    NEW, same token
 *   the same owner, not doubted claim             in_progress  NEW, same token
 *   the same, with reexecute    claim             in_progress  NEW, next token
 * completed                     claim             unchanged    REPLAY, OMITTED
 * absent, released, expired     accept            accepted     ACCEPTED
 * accepted                      claim, accept     unchanged    ACCEPTED
 * in_progress, queued           claim, accept     unchanged    ACCEPTED
 * accepted                      lease             in_progress  NEW
 * lapsed or uncertain, queued   lease, reexecute  in_progress  NEW, next token
 * in_progress, uncertain;
 *   T, queued                   return            accepted     OK
 * accepted; T                   return            unchanged    OK
 * in_progress, uncertain; T     enqueue           unchanged    OK, or EXISTS
 * in_progress, uncertain; T     complete          completed    OK
 * in_progress, uncertain; T     release           released     OK
 * in_progress, uncertain; T     doubt             uncertain    OK
 * in_progress, uncertain; T     extend            in_progress  OK
 *   the same, doubted           extend            unchanged    STALE
 * completed; T                  complete, release, doubt,
 *                               extend, enqueue,
 *                               return            unchanged    KEPT
 * anything else                 complete, release, doubt,
 *                               extend, enqueue,
 *                               return            unchanged    STALE
 * present                       keep              unchanged    OK, later expiry
 * in_progress, lock valid       resolve           unchanged    INFLIGHT
 * accepted, uncertain, lapsed,  resolve           completed or OK
 *   in_progress with running                      released
 * completed                     resolve           unchanged    KEPT
 * not uncertain, or not T       resolve by proof  unchanged    STALE
 * completed                     evict             released     OK
 * completed, released; expired  reap              absent       OK
 * anything else                 keep, resolve, evict,
 *                               sweep, reap       unchanged    NIL
 *
 * queued: its request is a job that is not finished. The courier runs it, so
 * whoever claims it is told that it is accepted, also while it runs; and if its
 * lock lapses, the job's lease has run out too, and what is known of the call
 * decides, not the sweeper.
 *
 * T: the event shows the current token. An expired record is absent for every
 * event but the reaper's, whether or not the reaper has come by.
 *
 * A valid lock is a sign that the holder works: what a person says of its
 * outcome could be wrong a moment later, and a release would let a second run
 * begin beside it. So a resolution waits until the lock has lapsed, unless the
 * person says `running` and answers for that.
 *
 * `extend` by the holder of an uncertain record makes it in_progress again: a
 * sign of life is what the lock asks for. Not so if the holder has doubted it
 * itself: then that sign was sent before and came late, and the reason stands.
 * (What is queued is doubted by the courier, which does not know whether the
 * gateway lives.) A claim repeated by its owner, who never heard its reply and
 * so has not run it, is such a sign, too: a lapsed lock begins again, swept or
 * not, in the same step as NEW is said. no_new wins over reexecute: whoever
 * will not run it must not be told NEW. The one exception is the owner itself:
 * a claimant whose reply was lost, and who gave up meanwhile, asks so for the
 * token that it needs to release what it never ran. docs/concepts.md tells all
 * this in sentences.
 */

static struct lk_step stay(struct lk_standing record, enum lk_verdict verdict)
{
    return (struct lk_step){verdict, record.state, LK_EFFECT_NONE};
}

static struct lk_step begin(struct lk_standing record)
{
    if (record.no_new) {
        return stay(record, LK_VERDICT_REFUSED);
    }
    return (struct lk_step){LK_VERDICT_NEW, LK_STATE_IN_PROGRESS,
                            LK_EFFECT_BEGIN};
}

/* The same claim, whose lock has lapsed and begins again. */
static struct lk_step go_on(void)
{
    return (struct lk_step){LK_VERDICT_NEW, LK_STATE_IN_PROGRESS,
                            LK_EFFECT_LOCK};
}

static struct lk_step claim(struct lk_standing record)
{
    if (record.state == LK_STATE_ABSENT || record.state == LK_STATE_RELEASED) {
        return begin(record);
    }
    if (!record.same_fingerprint) {
        return stay(record, LK_VERDICT_MISMATCH);
    }
    switch (record.state) {
    case LK_STATE_ACCEPTED:
        return stay(record, LK_VERDICT_ACCEPTED);
    case LK_STATE_COMPLETED:
        return stay(record,
                    record.omitted ? LK_VERDICT_OMITTED : LK_VERDICT_REPLAY);
    case LK_STATE_UNCERTAIN:
        if (record.same_owner && record.no_new) {
            return stay(record, LK_VERDICT_NEW);
        }
        if (record.same_owner && !record.doubted && !record.queued) {
            return go_on();
        }
        return record.reexecute ? begin(record)
                                : stay(record, LK_VERDICT_UNCERTAIN);
    default: /* in progress */
        break;
    }
    if (record.queued) {
        return stay(record, LK_VERDICT_ACCEPTED);
    }
    if (record.same_owner && record.lapsed && !record.no_new) {
        return go_on();
    }
    if (record.same_owner) {
        return stay(record, LK_VERDICT_NEW);
    }
    if (!record.lapsed) {
        return stay(record, LK_VERDICT_INFLIGHT);
    }
    if (record.reexecute) {
        return begin(record);
    }
    return (struct lk_step){LK_VERDICT_UNCERTAIN, LK_STATE_UNCERTAIN,
                            LK_EFFECT_DOUBT};
}

static struct lk_step accept(struct lk_standing record)
{
    switch (record.state) {
    case LK_STATE_ABSENT:
    case LK_STATE_RELEASED:
        if (record.no_new) {
            return stay(record, LK_VERDICT_REFUSED);
        }
        return (struct lk_step){LK_VERDICT_ACCEPTED, LK_STATE_ACCEPTED,
                                LK_EFFECT_ACCEPT};
    default:
        /* Whatever else it is, an accept is told what a claim would be. */
        record.same_owner = false;
        record.reexecute = false;
        return claim(record);
    }
}

static bool is_open(enum lk_state state)
{
    return state == LK_STATE_IN_PROGRESS || state == LK_STATE_UNCERTAIN;
}

/* complete, release, doubt, extend: what a holder may do with its token. */
static struct lk_step by_token(struct lk_standing record, enum lk_state next,
                               enum lk_effect effect)
{
    if (!record.token_current) {
        return stay(record, LK_VERDICT_STALE);
    }
    if (record.state == LK_STATE_COMPLETED) {
        return stay(record, LK_VERDICT_KEPT);
    }
    if (!is_open(record.state)) {
        return stay(record, LK_VERDICT_STALE);
    }
    if (effect == LK_EFFECT_DOUBT && record.state == LK_STATE_UNCERTAIN) {
        return stay(record, LK_VERDICT_DONE); /* the first reason stands */
    }
    return (struct lk_step){LK_VERDICT_DONE, next, effect};
}

/* Said twice, by the gateway and then by the courier, it is the same. */
static struct lk_step give_back(struct lk_standing record)
{
    if (!record.queued && record.state != LK_STATE_COMPLETED) {
        record.token_current = false;
    }
    if (record.token_current && record.state == LK_STATE_ACCEPTED) {
        return stay(record, LK_VERDICT_DONE);
    }
    return by_token(record, LK_STATE_ACCEPTED, LK_EFFECT_RETURN);
}

static struct lk_step resolve(struct lk_standing record, enum lk_state next,
                              enum lk_effect effect)
{
    if (record.proof &&
        (record.state != LK_STATE_UNCERTAIN || !record.token_current)) {
        return stay(record, LK_VERDICT_STALE);
    }
    if (record.state == LK_STATE_COMPLETED) {
        return stay(record, LK_VERDICT_KEPT);
    }
    if (!is_open(record.state) && record.state != LK_STATE_ACCEPTED) {
        return stay(record, LK_VERDICT_NIL);
    }
    if (record.state == LK_STATE_IN_PROGRESS && !record.lapsed &&
        !record.running) {
        return stay(record, LK_VERDICT_INFLIGHT);
    }
    return (struct lk_step){LK_VERDICT_DONE, next, effect};
}

static struct lk_step move_if(bool possible, struct lk_standing record,
                              enum lk_state next, enum lk_effect effect)
{
    if (!possible) {
        return stay(record, LK_VERDICT_NIL);
    }
    return (struct lk_step){LK_VERDICT_DONE, next, effect};
}

static struct lk_step reap(struct lk_standing record)
{
    bool finished =
        record.state == LK_STATE_COMPLETED || record.state == LK_STATE_RELEASED;
    return move_if(finished && record.expired, record, LK_STATE_ABSENT,
                   LK_EFFECT_FORGET);
}

static struct lk_step lease(struct lk_standing record)
{
    bool lost = record.queued &&
                (record.state == LK_STATE_UNCERTAIN ||
                 (record.state == LK_STATE_IN_PROGRESS && record.lapsed));

    if (record.state != LK_STATE_ACCEPTED && !(lost && record.reexecute)) {
        return stay(record, LK_VERDICT_NIL);
    }
    return (struct lk_step){LK_VERDICT_NEW, LK_STATE_IN_PROGRESS,
                            LK_EFFECT_LEASE};
}

struct lk_step lk_machine_step(enum lk_event event, struct lk_standing record)
{
    bool present;

    if (event == LK_EVENT_REAP) {
        return reap(record);
    }
    if (record.expired && (record.state == LK_STATE_COMPLETED ||
                           record.state == LK_STATE_RELEASED)) {
        record.state = LK_STATE_ABSENT;
    }
    present =
        record.state != LK_STATE_ABSENT && record.state != LK_STATE_RELEASED;

    switch (event) {
    case LK_EVENT_CLAIM:
        return claim(record);
    case LK_EVENT_ACCEPT:
        return accept(record);
    case LK_EVENT_LEASE:
        return lease(record);
    case LK_EVENT_COMPLETE:
        return by_token(record, LK_STATE_COMPLETED, LK_EFFECT_FINISH);
    case LK_EVENT_RELEASE:
        return by_token(record, LK_STATE_RELEASED, LK_EFFECT_FREE);
    case LK_EVENT_DOUBT:
        return by_token(record, LK_STATE_UNCERTAIN, LK_EFFECT_DOUBT);
    case LK_EVENT_EXTEND:
        record.token_current &= record.state != LK_STATE_UNCERTAIN ||
                                !record.doubted || record.queued;
        return by_token(record, LK_STATE_IN_PROGRESS, LK_EFFECT_LOCK);
    case LK_EVENT_KEEP:
        return move_if(present, record, record.state, LK_EFFECT_KEEP);
    case LK_EVENT_RESOLVE_COMPLETED:
        return resolve(record, LK_STATE_COMPLETED, LK_EFFECT_FINISH);
    case LK_EVENT_RESOLVE_RELEASED:
        return resolve(record, LK_STATE_RELEASED, LK_EFFECT_FREE);
    case LK_EVENT_EVICT:
        return move_if(record.state == LK_STATE_COMPLETED, record,
                       LK_STATE_RELEASED, LK_EFFECT_FREE);
    case LK_EVENT_SWEEP:
        return move_if(record.state == LK_STATE_IN_PROGRESS && record.lapsed &&
                           !record.queued,
                       record, LK_STATE_UNCERTAIN, LK_EFFECT_DOUBT);
    case LK_EVENT_ENQUEUE:
        return by_token(record, record.state, LK_EFFECT_ENQUEUE);
    case LK_EVENT_RETURN:
        return give_back(record);
    case LK_EVENT_REAP:
        break; /* above */
    }
    return stay(record, LK_VERDICT_NIL);
}

const char *lk_state_word(enum lk_state state)
{
    switch (state) {
#define X(name, word)                                                          \
    case LK_STATE_##name:                                                      \
        return word;
        LK_STATE_MAP(X)
#undef X
    }
    return "?";
}

bool lk_state_parse(struct lk_slice word, enum lk_state *state)
{
#define X(name, text)                                                          \
    if (latchkey_slice_equal(word, LK_SLICE(text))) {                          \
        *state = LK_STATE_##name;                                              \
        return true;                                                           \
    }
    LK_STATE_MAP(X)
#undef X
    return false;
}
