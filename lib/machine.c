/*
 * machine.c - the state machine of operations: its rules, and the function that
 * reads them.
 *
 * An expired operation is absent for every event but the reaper's, whether or
 * not the reaper has deleted it yet. lk_machine_step() does that before it
 * reads the rules.
 *
 * TOKEN_CURRENT: the event shows the token of the current claim, so it comes
 * from the holder.
 *
 * QUEUED: the request of the operation is a job that is not finished. The
 * courier runs it, so a claim gets ACCEPTED, also while it runs; and when its
 * lock lapses, the lease of the job has run out too, and what is known of the
 * call decides (job_machine.c), not the sweeper.
 *
 * A valid lock is a sign that the holder works: what a person says of its
 * outcome could be wrong a moment later, and a release would let a second run
 * begin beside it. So a resolution waits until the lock has lapsed, unless the
 * person says RUNNING and answers for that.
 *
 * EXTEND by the holder of an uncertain operation makes it in_progress again: a
 * sign of life is what the lock asks for. Not if the holder has doubted it
 * itself: then that sign was sent before the doubt and came late, and the
 * reason remains. (A queued operation is doubted by the courier, which does not
 * know whether the gateway lives.) A claim repeated by its owner, which never
 * got its reply and so has not run it, is such a sign, too: a lapsed lock
 * begins again, swept or not, in the same step as the reply NEW. NO_NEW wins
 * over REEXECUTE: a caller that will not run the operation must not get NEW.
 * The one exception is the owner itself: a claimant whose reply was lost, and
 * that gave up in the meantime, asks this way for the token that it needs to
 * release what it never ran. docs/concepts.md explains all this in sentences.
 */
#include "lib/machine.h"

#define EVENT(name)  (1u << LK_EVENT_##name)
#define STATE(name)  (1u << LK_STATE_##name)
#define IF(name)     (1u << LK_CONDITION_##name)
#define NO           0u /* no condition */
#define EVERY_STATE  ((1u << LK_STATES) - 1)
#define FREE         (STATE(ABSENT) | STATE(RELEASED))
#define OPEN         (STATE(IN_PROGRESS) | STATE(UNCERTAIN))
#define CLAIM        EVENT(CLAIM)
#define CLAIM_ACCEPT (EVENT(CLAIM) | EVENT(ACCEPT))
#define RESOLVE      (EVENT(RESOLVE_COMPLETED) | EVENT(RESOLVE_RELEASED))
#define BY_HOLDER                                                              \
    (EVENT(COMPLETE) | EVENT(RELEASE) | EVENT(DOUBT) | EVENT(EXTEND) |         \
     EVENT(ENQUEUE) | EVENT(RETURN))
#define RULE(events, states, all, none, next, verdict, effect)                 \
    {                                                                          \
        events, states, all, none, LK_STATE_##next, LK_VERDICT_##verdict,      \
            LK_EFFECT_##effect                                                 \
    }

/* clang-format off */
/*  events, states, all of these conditions, none of these; next state, verdict, effect */
static const struct lk_rule claim_rules[] = {
    RULE(CLAIM_ACCEPT, FREE,               IF(NO_NEW),                  NO,                       SAME,        REFUSED,   NONE),
    RULE(CLAIM,        FREE,               NO,                          NO,                       IN_PROGRESS, NEW,       BEGIN),
    RULE(CLAIM_ACCEPT, FREE,               NO,                          NO,                       ACCEPTED,    ACCEPTED,  ACCEPT),
    RULE(CLAIM_ACCEPT, EVERY_STATE,        NO,                          IF(SAME_FINGERPRINT),     SAME,        MISMATCH,  NONE),
    RULE(CLAIM_ACCEPT, STATE(COMPLETED),   IF(OMITTED),                 NO,                       SAME,        OMITTED,   NONE),
    RULE(CLAIM_ACCEPT, STATE(COMPLETED),   NO,                          NO,                       SAME,        REPLAY,    NONE),
    RULE(CLAIM_ACCEPT, STATE(ACCEPTED),    NO,                          NO,                       SAME,        ACCEPTED,  NONE),
    RULE(CLAIM_ACCEPT, STATE(IN_PROGRESS), IF(QUEUED),                  NO,                       SAME,        ACCEPTED,  NONE),
    RULE(CLAIM,        STATE(IN_PROGRESS), IF(SAME_OWNER) | IF(LAPSED), IF(NO_NEW),               SAME,        NEW,       LOCK),
    RULE(CLAIM,        STATE(IN_PROGRESS), IF(SAME_OWNER),              NO,                       SAME,        NEW,       NONE),
    RULE(CLAIM_ACCEPT, STATE(IN_PROGRESS), NO,                          IF(LAPSED),               SAME,        INFLIGHT,  NONE),
    RULE(CLAIM,        STATE(UNCERTAIN),   IF(SAME_OWNER) | IF(NO_NEW), NO,                       SAME,        NEW,       NONE),
    RULE(CLAIM,        STATE(UNCERTAIN),   IF(SAME_OWNER),              IF(DOUBTED) | IF(QUEUED), IN_PROGRESS, NEW,       LOCK),
    RULE(CLAIM,        OPEN,               IF(REEXECUTE) | IF(NO_NEW),  NO,                       SAME,        REFUSED,   NONE),
    RULE(CLAIM,        OPEN,               IF(REEXECUTE),               NO,                       IN_PROGRESS, NEW,       BEGIN),
    RULE(CLAIM_ACCEPT, STATE(IN_PROGRESS), NO,                          NO,                       UNCERTAIN,   UNCERTAIN, DOUBT),
    RULE(CLAIM_ACCEPT, EVERY_STATE,        NO,                          NO,                       SAME,        UNCERTAIN, NONE),
};

/* The courier takes an accepted request, or one that was lost and may be
 * called again. */
static const struct lk_rule lease_rules[] = {
    RULE(EVENT(LEASE), STATE(ACCEPTED),    NO,                                      NO, IN_PROGRESS, NEW, LEASE),
    RULE(EVENT(LEASE), STATE(UNCERTAIN),   IF(QUEUED) | IF(REEXECUTE),              NO, IN_PROGRESS, NEW, LEASE),
    RULE(EVENT(LEASE), STATE(IN_PROGRESS), IF(QUEUED) | IF(REEXECUTE) | IF(LAPSED), NO, IN_PROGRESS, NEW, LEASE),
    RULE(EVENT(LEASE), EVERY_STATE,        NO,                                      NO, SAME,        NIL, NONE),
};

/* What the holder of a token may do. RETURN: said twice, by the gateway and
 * then by the courier, it is the same. DOUBT: the first reason remains. */
static const struct lk_rule holder_rules[] = {
    RULE(BY_HOLDER,       EVERY_STATE,            NO,          IF(TOKEN_CURRENT), SAME,        STALE, NONE),
    RULE(BY_HOLDER,       STATE(COMPLETED),       NO,          NO,                SAME,        KEPT,  NONE),
    RULE(EVENT(RETURN),   STATE(ACCEPTED),        IF(QUEUED),  NO,                SAME,        DONE,  NONE),
    RULE(BY_HOLDER,       FREE | STATE(ACCEPTED), NO,          NO,                SAME,        STALE, NONE),
    RULE(EVENT(COMPLETE), OPEN,                   NO,          NO,                COMPLETED,   DONE,  FINISH),
    RULE(EVENT(RELEASE),  OPEN,                   NO,          NO,                RELEASED,    DONE,  FREE),
    RULE(EVENT(DOUBT),    STATE(UNCERTAIN),       NO,          NO,                SAME,        DONE,  NONE),
    RULE(EVENT(DOUBT),    OPEN,                   NO,          NO,                UNCERTAIN,   DONE,  DOUBT),
    RULE(EVENT(EXTEND),   STATE(UNCERTAIN),       IF(DOUBTED), IF(QUEUED),        SAME,        STALE, NONE),
    RULE(EVENT(EXTEND),   OPEN,                   NO,          NO,                IN_PROGRESS, DONE,  LOCK),
    RULE(EVENT(ENQUEUE),  OPEN,                   NO,          NO,                SAME,        DONE,  ENQUEUE),
    RULE(EVENT(RETURN),   OPEN,                   IF(QUEUED),  NO,                ACCEPTED,    DONE,  RETURN),
    RULE(BY_HOLDER,       EVERY_STATE,            NO,          NO,                SAME,        STALE, NONE),
};

/* By an operator, or by proof. */
static const struct lk_rule resolve_rules[] = {
    RULE(RESOLVE,                  EVERY_STATE & ~STATE(UNCERTAIN), IF(PROOF), NO,                       SAME,      STALE,    NONE),
    RULE(RESOLVE,                  STATE(UNCERTAIN),                IF(PROOF), IF(TOKEN_CURRENT),        SAME,      STALE,    NONE),
    RULE(RESOLVE,                  STATE(COMPLETED),                NO,        NO,                       SAME,      KEPT,     NONE),
    RULE(RESOLVE,                  STATE(IN_PROGRESS),              NO,        IF(LAPSED) | IF(RUNNING), SAME,      INFLIGHT, NONE),
    RULE(EVENT(RESOLVE_COMPLETED), OPEN | STATE(ACCEPTED),          NO,        NO,                       COMPLETED, DONE,     FINISH),
    RULE(EVENT(RESOLVE_RELEASED),  OPEN | STATE(ACCEPTED),          NO,        NO,                       RELEASED,  DONE,     FREE),
    RULE(RESOLVE,                  EVERY_STATE,                     NO,        NO,                       SAME,      NIL,      NONE),
};

static const struct lk_rule keep_rules[] = {
    RULE(EVENT(KEEP), FREE,        NO, NO, SAME, NIL,  NONE),
    RULE(EVENT(KEEP), EVERY_STATE, NO, NO, SAME, DONE, KEEP),
};

static const struct lk_rule evict_rules[] = {
    RULE(EVENT(EVICT), STATE(COMPLETED), NO, NO, RELEASED, DONE, FREE),
    RULE(EVENT(EVICT), EVERY_STATE,      NO, NO, SAME,     NIL,  NONE),
};

static const struct lk_rule sweep_rules[] = {
    RULE(EVENT(SWEEP), STATE(IN_PROGRESS), IF(LAPSED), IF(QUEUED), UNCERTAIN, DONE, DOUBT),
    RULE(EVENT(SWEEP), EVERY_STATE,        NO,         NO,         SAME,      NIL,  NONE),
};

static const struct lk_rule reap_rules[] = {
    RULE(EVENT(REAP), STATE(COMPLETED) | STATE(RELEASED), IF(EXPIRED), NO, ABSENT, DONE, FORGET),
    RULE(EVENT(REAP), EVERY_STATE,                        NO,          NO, SAME,   NIL,  NONE),
};
/* clang-format on */

#define RULES(rows)                                                            \
    {                                                                          \
        rows, sizeof(rows) / sizeof((rows)[0])                                 \
    }

const struct lk_rules lk_machine_rules[LK_EVENTS] = {
    [LK_EVENT_CLAIM] = RULES(claim_rules),
    [LK_EVENT_ACCEPT] = RULES(claim_rules),
    [LK_EVENT_LEASE] = RULES(lease_rules),
    [LK_EVENT_COMPLETE] = RULES(holder_rules),
    [LK_EVENT_RELEASE] = RULES(holder_rules),
    [LK_EVENT_DOUBT] = RULES(holder_rules),
    [LK_EVENT_EXTEND] = RULES(holder_rules),
    [LK_EVENT_KEEP] = RULES(keep_rules),
    [LK_EVENT_RESOLVE_COMPLETED] = RULES(resolve_rules),
    [LK_EVENT_RESOLVE_RELEASED] = RULES(resolve_rules),
    [LK_EVENT_EVICT] = RULES(evict_rules),
    [LK_EVENT_SWEEP] = RULES(sweep_rules),
    [LK_EVENT_REAP] = RULES(reap_rules),
    [LK_EVENT_ENQUEUE] = RULES(holder_rules),
    [LK_EVENT_RETURN] = RULES(holder_rules),
};

unsigned lk_standing_mask(const struct lk_standing *operation)
{
    unsigned mask = 0;

#define X(name, member, text)                                                  \
    mask |= (unsigned)operation->member << LK_CONDITION_##name;
    LK_CONDITION_MAP(X)
#undef X
    return mask;
}

struct lk_step lk_machine_step(enum lk_event event,
                               struct lk_standing operation)
{
    bool finished = operation.state == LK_STATE_COMPLETED ||
                    operation.state == LK_STATE_RELEASED;

    if ((unsigned)event >= LK_EVENTS ||
        (unsigned)operation.state >= LK_STATES) {
        return (struct lk_step){LK_VERDICT_NIL, operation.state,
                                LK_EFFECT_NONE};
    }
    if (operation.expired && finished && event != LK_EVENT_REAP) {
        operation.state = LK_STATE_ABSENT;
    }
    unsigned mask = lk_standing_mask(&operation);
    const struct lk_rule *rule = lk_machine_rules[event].rows;
    while (!(rule->events >> event & 1) ||
           !(rule->states >> operation.state & 1) ||
           (mask & rule->required) != rule->required ||
           (mask & rule->forbidden)) {
        rule++; /* the last rule of every event always applies */
    }
    return (struct lk_step){
        (enum lk_verdict)rule->verdict,
        rule->next == LK_STATE_SAME ? operation.state
                                    : (enum lk_state)rule->next,
        (enum lk_effect)rule->effect,
    };
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
