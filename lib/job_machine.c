/*
 * job_machine.c - the state machine of jobs: its rules, and the function that
 * reads them.
 *
 * The fence: the courier counts the attempt when it leases a job, and shows
 * that number with each mark and with the end. A courier that was overtaken is
 * not CURRENT and gets STALE.
 *
 * Never twice: a job that may have been called, and that must not be called
 * again, is never leased. A lease that has run out shows what is known: never
 * CALLED, or the target HONOURS the key, or the request is REPEATABLE: it waits
 * again; else it is uncertain.
 *
 * A request goes by its operation. The gateway EXTENDs the operation before the
 * app gets the request: that makes it CALLED (OP_LOCK). It may also put the
 * request back (OP_RETURN): then the courier, which still shows the current
 * attempt, may only say how long it waits, or that it is given up. A request
 * that is not CALLED was never taken by the gateway, though it may have been
 * sent there: it is not SENT by that.
 */
#include "lib/job_machine.h"

#define EVENT(name) (1u << LK_JOB_EVENT_##name)
#define STATE(name) (1u << LK_JOB_##name)
#define IF(name)    (1u << LK_JOB_CONDITION_##name)
#define NO          0u /* no condition */
#define NOTHING     LK_JOB_TELLS_NOTHING
#define TELL(name)  LK_EVENT_##name
#define SO(name)    LK_JOB_EFFECT_##name
#define EVERY_STATE ((1u << LK_JOB_STATES) - 1)
#define UNFINISHED                                                             \
    (STATE(WAITING) | STATE(LEASED) | STATE(UNCERTAIN) | STATE(DEAD))
#define LOST                                                                   \
    (EVENT(LOST) | EVENT(LOST_RUNNING) | EVENT(LOST_ACCEPTED) |                \
     EVENT(LOST_UNCERTAIN) | EVENT(LOST_COMPLETED) | EVENT(LOST_GONE))
#define ENDS                                                                   \
    (EVENT(END_DELIVERED) | EVENT(END_RETRY) | EVENT(END_RETURN) |             \
     EVENT(END_UNCERTAIN) | EVENT(END_DEAD))
#define FINAL   (EVENT(ACTION_DROP) | EVENT(ACTION_DELIVERED))
#define ACTIONS (FINAL | EVENT(ACTION_RETRY) | EVENT(ACTION_AGAIN))
#define OPERATION                                                              \
    (EVENT(OP_BEGIN) | EVENT(OP_COMPLETE) | EVENT(OP_RESOLVE) |                \
     EVENT(OP_FREE) | EVENT(OP_DOUBT) | EVENT(OP_LOCK) | EVENT(OP_RETURN))
#define RULE(events, states, all, none, next, outcome, tells, effects)         \
    {                                                                          \
        events, states, all, none, LK_JOB_##next, LK_JOB_OUTCOME_##outcome,    \
            effects, tells                                                     \
    }

/* clang-format off */
/*  events, states, all of these conditions, none of these; next state, outcome, the operation's event, effects */

/* To a target that honours keys a job leaves without a mark: should the lease be
 * lost, and the target not honour keys by then, it may have been called. */
static const struct lk_job_rule lease_rules[] = {
    RULE(EVENT(LEASE), STATE(WAITING), IF(REQUEST), NO, LEASED, DONE,  TELL(LEASE), SO(COUNT) | SO(UNCALLED) | SO(DUE)),
    RULE(EVENT(LEASE), STATE(WAITING), IF(HONOURS), NO, LEASED, DONE,  NOTHING,     SO(COUNT) | SO(CALLED) | SO(DUE)),
    RULE(EVENT(LEASE), STATE(WAITING), NO,          NO, LEASED, DONE,  NOTHING,     SO(COUNT) | SO(UNCALLED) | SO(DUE)),
    RULE(EVENT(LEASE), EVERY_STATE,    NO,          NO, SAME,   STALE, NOTHING,     NO),
};

/* RETURN and the LEASE that follows may be one step of the operation. */
static const struct lk_job_rule lost_rules[] = {
    RULE(LOST,                  STATE(LEASED),                  NO,                         IF(LAPSED),                SAME,      STALE, NOTHING,      NO),
    RULE(EVENT(LOST_RUNNING),   STATE(WAITING) | STATE(LEASED), NO,                         NO,                        LEASED,    DONE,  NOTHING,      SO(DUE)),
    RULE(EVENT(LOST_ACCEPTED),  STATE(WAITING) | STATE(LEASED), NO,                         NO,                        WAITING,   DONE,  NOTHING,      SO(DUE)),
    RULE(EVENT(LOST_COMPLETED), STATE(WAITING) | STATE(LEASED), NO,                         NO,                        DELIVERED, DONE,  NOTHING,      NO),
    RULE(EVENT(LOST_GONE),      STATE(WAITING) | STATE(LEASED), NO,                         NO,                        DROPPED,   DONE,  NOTHING,      NO),
    RULE(EVENT(LOST_UNCERTAIN), STATE(WAITING) | STATE(LEASED), NO,                         IF(REPEATABLE),            UNCERTAIN, DONE,  NOTHING,      NO),
    RULE(EVENT(LOST_UNCERTAIN), STATE(WAITING),                 NO,                         NO,                        UNCERTAIN, DONE,  NOTHING,      NO),
    RULE(LOST,                  EVERY_STATE & ~STATE(LEASED),   NO,                         NO,                        SAME,      STALE, NOTHING,      NO),
    RULE(LOST,                  STATE(LEASED),                  IF(REQUEST) | IF(CALLED),   IF(REPEATABLE),            UNCERTAIN, DONE,  TELL(DOUBT),  SO(SENT) | SO(RESULT)),
    RULE(LOST,                  STATE(LEASED),                  IF(REQUEST) | IF(CALLED),   NO,                        WAITING,   DONE,  TELL(RETURN), SO(SENT) | SO(RESULT) | SO(HISTORY)),
    RULE(LOST,                  STATE(LEASED),                  IF(REQUEST),                NO,                        WAITING,   DONE,  TELL(RETURN), NO),
    RULE(LOST,                  STATE(LEASED),                  IF(HONOURS),                NO,                        WAITING,   DONE,  NOTHING,      SO(SENT) | SO(DOUBT) | SO(RESULT) | SO(HISTORY)),
    RULE(LOST,                  STATE(LEASED),                  IF(CALLED),                 NO,                        UNCERTAIN, DONE,  NOTHING,      SO(SENT) | SO(DOUBT) | SO(RESULT)),
    RULE(LOST,                  EVERY_STATE,                    NO,                         NO,                        WAITING,   DONE,  NOTHING,      NO),
};

static const struct lk_job_rule mark_rules[] = {
    RULE(EVENT(MARK), EVERY_STATE,                  NO,          IF(CURRENT), SAME,   STALE, NOTHING,      NO),
    RULE(EVENT(MARK), EVERY_STATE & ~STATE(LEASED), NO,          NO,          SAME,   STALE, NOTHING,      NO),
    RULE(EVENT(MARK), STATE(LEASED),                IF(REQUEST), NO,          LEASED, DONE,  TELL(EXTEND), SO(CALLS) | SO(DUE)),
    RULE(EVENT(MARK), EVERY_STATE,                  NO,          NO,          LEASED, DONE,  NOTHING,      SO(CALLS) | SO(DUE)),
};

/* DELIVERED of a request: a gateway that has completed the operation has ended
 * the job with that. If the store has not seen it, no one knows. */
static const struct lk_job_rule end_rules[] = {
    RULE(ENDS,                 EVERY_STATE,                  NO,                                   IF(CURRENT), SAME,      STALE, NOTHING,        NO),
    RULE(EVENT(END_RETRY),     STATE(WAITING),               IF(REQUEST),                          NO,          WAITING,   DONE,  TELL(RETURN),   SO(UNCALLED) | SO(DUE) | SO(RESULT) | SO(HISTORY)),
    RULE(EVENT(END_DEAD),      STATE(WAITING),               IF(REQUEST) | IF(SENT),               NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(RETAKE) | SO(RESULT)),
    RULE(EVENT(END_DEAD),      STATE(WAITING),               IF(REQUEST),                          NO,          DROPPED,   DONE,  TELL(COMPLETE), SO(RETAKE) | SO(RESULT)),
    RULE(ENDS,                 EVERY_STATE & ~STATE(LEASED), NO,                                   NO,          SAME,      STALE, NOTHING,        NO),
    RULE(EVENT(END_DELIVERED), STATE(LEASED),                IF(REQUEST) | IF(CALLED),             NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(LEFT) | SO(RESULT) | SO(UNSEEN)),
    RULE(EVENT(END_DELIVERED), STATE(LEASED),                IF(REQUEST),                          NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(RESULT) | SO(UNSEEN)),
    RULE(EVENT(END_DELIVERED), STATE(LEASED),                NO,                                   NO,          DELIVERED, DONE,  NOTHING,        SO(SENT) | SO(DOUBTS) | SO(RESULT)),
    RULE(EVENT(END_RETURN),    STATE(LEASED),                IF(REQUEST) | IF(CALLED),             NO,          WAITING,   DONE,  TELL(RETURN),   SO(LEFT) | SO(UNCALLED) | SO(FORGIVE) | SO(DUE)),
    RULE(EVENT(END_RETURN),    STATE(LEASED),                IF(REQUEST),                          NO,          WAITING,   DONE,  TELL(RETURN),   SO(UNCALLED) | SO(FORGIVE) | SO(DUE)),
    RULE(EVENT(END_RETURN),    STATE(LEASED),                NO,                                   NO,          WAITING,   DONE,  NOTHING,        SO(LEFT) | SO(DOUBTS) | SO(UNCALLED) | SO(FORGIVE) | SO(DUE)),
    RULE(EVENT(END_RETRY) | EVENT(END_UNCERTAIN),
                               STATE(LEASED),                IF(REQUEST),                          IF(CALLED),  WAITING,   DONE,  TELL(RETURN),   SO(UNCALLED) | SO(DUE) | SO(RESULT) | SO(HISTORY)),
    RULE(EVENT(END_RETRY),     STATE(LEASED),                IF(REQUEST),                          NO,          WAITING,   DONE,  TELL(RETURN),   SO(LEFT) | SO(UNCALLED) | SO(DUE) | SO(RESULT) | SO(HISTORY)),
    RULE(EVENT(END_RETRY),     STATE(LEASED),                NO,                                   NO,          WAITING,   DONE,  NOTHING,        SO(LEFT) | SO(DOUBTS) | SO(UNCALLED) | SO(DUE) | SO(RESULT) | SO(HISTORY)),
    RULE(EVENT(END_UNCERTAIN), STATE(LEASED),                IF(REQUEST),                          NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(LEFT) | SO(RESULT)),
    RULE(EVENT(END_UNCERTAIN), STATE(LEASED),                NO,                                   NO,          UNCERTAIN, DONE,  NOTHING,        SO(LEFT) | SO(DOUBTS) | SO(RESULT)),
    RULE(EVENT(END_DEAD),      STATE(LEASED),                NO,                                   IF(REQUEST), DEAD,      DONE,  NOTHING,        SO(LEFT) | SO(DOUBTS) | SO(RESULT)),
    RULE(EVENT(END_DEAD),      STATE(LEASED),                IF(SENT),                             NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(RESULT)),
    RULE(EVENT(END_DEAD),      STATE(LEASED),                IF(CALLED) | IF(LEFT),                NO,          UNCERTAIN, DONE,  TELL(DOUBT),    SO(SENT) | SO(RESULT)),
    RULE(ENDS,                 EVERY_STATE,                  NO,                                   NO,          DROPPED,   DONE,  TELL(COMPLETE), SO(RESULT)),
};

/* A request moves with its operation, so it is the operation that has to be
 * resolved; but when it is due concerns the request alone. A lost lease that
 * no courier settles, because its target is gone, can be ended. */
static const struct lk_job_rule action_rules[] = {
    RULE(ACTIONS,                 EVERY_STATE,                    NO,                       IF(CURRENT), SAME,      INVALID, NOTHING, NO),
    RULE(EVENT(ACTION_RETRY),     STATE(WAITING) | STATE(DEAD),   IF(SENT) | IF(FORGOTTEN), NO,          SAME,      DENIED,  NOTHING, NO),
    RULE(EVENT(ACTION_RETRY),     STATE(WAITING) | STATE(DEAD),   NO,                       NO,          WAITING,   DONE,    NOTHING, SO(UNCALLED) | SO(FORGIVE_ALL) | SO(SINCE) | SO(DUE)),
    RULE(EVENT(ACTION_AGAIN),     STATE(UNCERTAIN) | STATE(DEAD), IF(REQUEST),              NO,          SAME,      BUSY,    NOTHING, NO),
    RULE(EVENT(ACTION_AGAIN),     STATE(UNCERTAIN) | STATE(DEAD), NO,                       NO,          WAITING,   DONE,    NOTHING, SO(UNCALLED) | SO(FORGIVE) | SO(NEVER_SENT) | SO(SINCE) | SO(DUE)),
    RULE(FINAL,                   STATE(LEASED),                  NO,                       IF(LAPSED),  SAME,      INVALID, NOTHING, NO),
    RULE(FINAL,                   UNFINISHED,                     IF(REQUEST),              NO,          SAME,      BUSY,    NOTHING, NO),
    RULE(EVENT(ACTION_DROP),      UNFINISHED,                     NO,                       NO,          DROPPED,   DONE,    NOTHING, NO),
    RULE(EVENT(ACTION_DELIVERED), UNFINISHED,                     NO,                       NO,          DELIVERED, DONE,    NOTHING, SO(SENT) | SO(RESULT)),
    RULE(ACTIONS,                 EVERY_STATE,                    NO,                       NO,          SAME,      INVALID, NOTHING, NO),
};

/* An operator may complete what was never sent. A request that may run again
 * stays leased while its operation is uncertain: the courier puts it back, or it
 * is taken again when the lease ends. That a lease goes on is not a sign of the
 * gateway. A request that the gateway puts back waits as long as its lease would
 * have lasted, unless its courier says how long. */
static const struct lk_job_rule operation_rules[] = {
    RULE(OPERATION,          EVERY_STATE,                       NO,             IF(REQUEST),    SAME,      DONE, NOTHING, NO),
    RULE(OPERATION,          STATE(DELIVERED) | STATE(DROPPED), NO,             NO,             SAME,      DONE, NOTHING, NO),
    RULE(EVENT(OP_COMPLETE), UNFINISHED,                        NO,             NO,             DELIVERED, DONE, NOTHING, SO(SENT) | SO(RESULT)),
    RULE(EVENT(OP_RESOLVE),  UNFINISHED,                        IF(SENT),       NO,             DELIVERED, DONE, NOTHING, SO(SENT) | SO(RESULT)),
    RULE(EVENT(OP_RESOLVE),  UNFINISHED,                        IF(CALLED),     NO,             DELIVERED, DONE, NOTHING, SO(SENT) | SO(RESULT)),
    RULE(EVENT(OP_RESOLVE),  UNFINISHED,                        NO,             NO,             DROPPED,   DONE, NOTHING, SO(RESULT)),
    RULE(EVENT(OP_BEGIN) | EVENT(OP_FREE),
                             UNFINISHED,                        IF(CALLED),     NO,             DROPPED,   DONE, NOTHING, SO(SENT) | SO(RESULT)),
    RULE(EVENT(OP_BEGIN) | EVENT(OP_FREE),
                             UNFINISHED,                        NO,             NO,             DROPPED,   DONE, NOTHING, SO(RESULT)),
    RULE(EVENT(OP_DOUBT),    STATE(LEASED),                     NO,             IF(REPEATABLE), UNCERTAIN, DONE, NOTHING, SO(SENT) | SO(RESULT)),
    RULE(EVENT(OP_LOCK) | EVENT(OP_RETURN),
                             UNFINISHED,                        IF(BY_COURIER), NO,             SAME,      DONE, NOTHING, NO),
    RULE(EVENT(OP_LOCK),     STATE(UNCERTAIN),                  NO,             NO,             LEASED,    DONE, NOTHING, SO(CALLED) | SO(DUE)),
    RULE(EVENT(OP_LOCK),     STATE(LEASED),                     NO,             IF(CALLED),     LEASED,    DONE, NOTHING, SO(CALLED)),
    RULE(EVENT(OP_RETURN),   STATE(LEASED),                     IF(CALLED),     IF(UNSENT),     WAITING,   DONE, NOTHING, SO(SENT) | SO(UNCALLED)),
    RULE(EVENT(OP_RETURN),   STATE(LEASED),                     NO,             NO,             WAITING,   DONE, NOTHING, SO(UNCALLED)),
    RULE(EVENT(OP_RETURN),   STATE(UNCERTAIN),                  IF(CALLED),     IF(UNSENT),     WAITING,   DONE, NOTHING, SO(SENT) | SO(UNCALLED) | SO(DUE)),
    RULE(EVENT(OP_RETURN),   STATE(UNCERTAIN),                  NO,             NO,             WAITING,   DONE, NOTHING, SO(UNCALLED) | SO(DUE)),
    RULE(OPERATION,          EVERY_STATE,                       NO,             NO,             SAME,      DONE, NOTHING, NO),
};
/* clang-format on */

#define RULES(rows)                                                            \
    {                                                                          \
        rows, sizeof(rows) / sizeof((rows)[0])                                 \
    }

const struct lk_job_rules lk_job_machine_rules[LK_JOB_EVENTS] = {
    [LK_JOB_EVENT_LEASE] = RULES(lease_rules),
    [LK_JOB_EVENT_LOST] = RULES(lost_rules),
    [LK_JOB_EVENT_LOST_RUNNING] = RULES(lost_rules),
    [LK_JOB_EVENT_LOST_ACCEPTED] = RULES(lost_rules),
    [LK_JOB_EVENT_LOST_UNCERTAIN] = RULES(lost_rules),
    [LK_JOB_EVENT_LOST_COMPLETED] = RULES(lost_rules),
    [LK_JOB_EVENT_LOST_GONE] = RULES(lost_rules),
    [LK_JOB_EVENT_MARK] = RULES(mark_rules),
    [LK_JOB_EVENT_END_DELIVERED] = RULES(end_rules),
    [LK_JOB_EVENT_END_RETRY] = RULES(end_rules),
    [LK_JOB_EVENT_END_RETURN] = RULES(end_rules),
    [LK_JOB_EVENT_END_UNCERTAIN] = RULES(end_rules),
    [LK_JOB_EVENT_END_DEAD] = RULES(end_rules),
    [LK_JOB_EVENT_ACTION_RETRY] = RULES(action_rules),
    [LK_JOB_EVENT_ACTION_DROP] = RULES(action_rules),
    [LK_JOB_EVENT_ACTION_DELIVERED] = RULES(action_rules),
    [LK_JOB_EVENT_ACTION_AGAIN] = RULES(action_rules),
    [LK_JOB_EVENT_OP_BEGIN] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_COMPLETE] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_RESOLVE] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_FREE] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_DOUBT] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_LOCK] = RULES(operation_rules),
    [LK_JOB_EVENT_OP_RETURN] = RULES(operation_rules),
};

static unsigned mask_of(const struct lk_job_standing *job)
{
    unsigned mask = 0;

#define X(name, member, text)                                                  \
    mask |= (unsigned)job->member << LK_JOB_CONDITION_##name;
    LK_JOB_CONDITION_MAP(X)
#undef X
    return mask;
}

struct lk_job_step lk_job_machine_step(enum lk_job_event event,
                                       struct lk_job_standing job)
{
    unsigned mask = mask_of(&job);

    if ((unsigned)event >= LK_JOB_EVENTS ||
        (unsigned)job.state >= LK_JOB_STATES) {
        return (struct lk_job_step){LK_JOB_OUTCOME_INVALID, job.state, 0,
                                    LK_JOB_TELLS_NOTHING};
    }
    const struct lk_job_rule *rule = lk_job_machine_rules[event].rows;
    while (!(rule->events >> event & 1) || !(rule->states >> job.state & 1) ||
           (mask & rule->required) != rule->required ||
           (mask & rule->forbidden)) {
        rule++; /* the last rule of every event always applies */
    }
    return (struct lk_job_step){
        (enum lk_job_outcome)rule->outcome,
        rule->next == LK_JOB_SAME ? job.state : (enum lk_job_state)rule->next,
        rule->effects,
        rule->tells,
    };
}

enum lk_job_event lk_job_event_of(enum lk_effect effect, enum lk_event event)
{
    switch (effect) {
    case LK_EFFECT_BEGIN:
        return LK_JOB_EVENT_OP_BEGIN;
    case LK_EFFECT_FINISH:
        return event == LK_EVENT_COMPLETE ? LK_JOB_EVENT_OP_COMPLETE
                                          : LK_JOB_EVENT_OP_RESOLVE;
    case LK_EFFECT_FREE:
        return LK_JOB_EVENT_OP_FREE;
    case LK_EFFECT_DOUBT:
        return LK_JOB_EVENT_OP_DOUBT;
    case LK_EFFECT_LOCK:
        return LK_JOB_EVENT_OP_LOCK;
    case LK_EFFECT_RETURN:
        return LK_JOB_EVENT_OP_RETURN;
    default:
        return LK_JOB_EVENTS;
    }
}

const char *lk_job_state_word(enum lk_job_state state)
{
    switch (state) {
#define X(name, word)                                                          \
    case LK_JOB_##name:                                                        \
        return word;
        LK_JOB_STATE_MAP(X)
#undef X
    default:
        return "?";
    }
}

bool lk_job_state_parse(struct lk_slice word, enum lk_job_state *state)
{
#define X(name, text)                                                          \
    if (latchkey_slice_equal(word, LK_SLICE(text))) {                          \
        *state = LK_JOB_##name;                                                \
        return true;                                                           \
    }
    LK_JOB_STATE_MAP(X)
#undef X
    return false;
}
