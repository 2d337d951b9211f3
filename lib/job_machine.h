/*
 * job_machine.h - the state machine of jobs: what an event does to one.
 *
 * The rules are the rows in job_machine.c. The embedded store reads them with
 * lk_job_machine_step(); latchkey.decide_job in PostgreSQL is
 * generated from the same rows (tools/rules_gen.c), and a test compares the two
 * over every input.
 *
 * A job without a name is a *request*: the request of an asynchronous
 * operation. It and its operation change in one step (store/jobs.h), so a rule
 * may also name the event that the operation gets.
 */
#ifndef LK_JOB_MACHINE_H
#define LK_JOB_MACHINE_H

#include "lib/machine.h"

/* The words are those of JOBS, metrics and the documentation; the numbers are
 * stored. Up to DEAD a job is unfinished, and its operation is not reaped. */
#define LK_JOB_STATE_MAP(X)                                                    \
    X(WAITING, "waiting")                                                      \
    X(LEASED, "leased")                                                        \
    X(UNCERTAIN, "uncertain")                                                  \
    X(DEAD, "dead")                                                            \
    X(DELIVERED, "delivered")                                                  \
    X(DROPPED, "dropped")

enum lk_job_state {
#define X(name, word) LK_JOB_##name,
    LK_JOB_STATE_MAP(X)
#undef X
        LK_JOB_STATES
};

#define LK_JOB_EVENT_MAP(X)                                                    \
    /* the courier takes a job that is due */                                  \
    X(LEASE, "lease")                                                          \
    /* a lease has run out: the courier is lost */                             \
    X(LOST, "lost")                                                            \
    /* the same of a request, or a lease that the operation refuses: the       \
       operation, which is in this state, counts */                            \
    X(LOST_RUNNING, "lost, lock valid")                                        \
    X(LOST_ACCEPTED, "lost, accepted")                                         \
    X(LOST_UNCERTAIN, "lost, uncertain")                                       \
    X(LOST_COMPLETED, "lost, completed")                                       \
    X(LOST_GONE, "lost, gone")                                                 \
    /* a lease goes on */                                                      \
    X(MARK, "mark")                                                            \
    /* a lease ends, in the order of enum lk_end */                            \
    X(END_DELIVERED, "end delivered")                                          \
    X(END_RETRY, "end retry")                                                  \
    X(END_RETURN, "end return")                                                \
    X(END_UNCERTAIN, "end uncertain")                                          \
    X(END_DEAD, "end dead")                                                    \
    /* what an operator or proof orders, in the order of                       \
       enum lk_job_action_kind */                                              \
    X(ACTION_RETRY, "action retry")                                            \
    X(ACTION_DROP, "action drop")                                              \
    X(ACTION_DELIVERED, "action delivered")                                    \
    X(ACTION_AGAIN, "action again")                                            \
    /* the operation of a request has moved: lk_job_event_of() */              \
    X(OP_BEGIN, "operation begins again")                                      \
    X(OP_COMPLETE, "operation completed")                                      \
    X(OP_RESOLVE, "operation resolved")                                        \
    X(OP_FREE, "operation released")                                           \
    X(OP_DOUBT, "operation doubted")                                           \
    X(OP_LOCK, "operation extended")                                           \
    X(OP_RETURN, "operation returned")

enum lk_job_event {
#define X(name, word) LK_JOB_EVENT_##name,
    LK_JOB_EVENT_MAP(X)
#undef X
        LK_JOB_EVENTS
};

#define LK_JOB_CONDITION_MAP(X)                                                \
    X(REQUEST, request, "the request of an asynchronous operation")            \
    X(CURRENT, current, "the event names the last attempt, or none")           \
    X(LAPSED, lapsed, "the lease has run out")                                 \
    X(CALLED, called, "the present attempt may have left")                     \
    X(SENT, sent, "any attempt may have left")                                 \
    X(REPEATABLE, repeatable, "a request that may run again")                  \
    X(HONOURS, honours, "the target honours Idempotency-Key")                  \
    X(LEFT, left, "the end says that the call may have left")                  \
    X(FORGOTTEN, forgotten, "the service may have forgotten the job's key")    \
    X(UNSENT, unsent, "the gateway says that the app has not got it")          \
    X(BY_COURIER, by_courier, "the courier moves the operation itself")

enum lk_job_condition {
#define X(name, member, text) LK_JOB_CONDITION_##name,
    LK_JOB_CONDITION_MAP(X)
#undef X
        LK_JOB_CONDITIONS
};

/* What the caller gets. */
#define LK_JOB_OUTCOME_MAP(X)                                                  \
    X(DONE, "done")                                                            \
    X(NOT_FOUND, "there is no such job")                                       \
    X(INVALID, "not in such a state, or at another attempt")                   \
    X(BUSY, "a request: resolve its operation")                                \
    X(DENIED, "it was sent, and its key may be forgotten")                     \
    X(STALE, "another courier has taken it, or it is over")

enum lk_job_outcome {
#define X(name, text) LK_JOB_OUTCOME_##name,
    LK_JOB_OUTCOME_MAP(X)
#undef X
};

/* What the store writes besides the state, as a set. */
#define LK_JOB_EFFECT_MAP(X)                                                   \
    X(COUNT, "a new lease: attempts + 1, the first call may be now")           \
    X(CALLED, "called: the present attempt may have left")                     \
    X(UNCALLED, "not called")                                                  \
    X(CALLS, "called, if the mark says that it is about to leave")             \
    X(SENT, "sent: an attempt may have left")                                  \
    X(LEFT, "sent, if the end says that the call may have left")               \
    X(DOUBT, "doubt: it may have happened, and the response was lost")         \
    X(DOUBTS, "doubt, if the end says so")                                     \
    X(NEVER_SENT, "neither sent nor in doubt: it has not happened")            \
    X(FORGIVE, "the attempt does not count against the limit")                 \
    X(FORGIVE_ALL, "no attempt so far does")                                   \
    X(SINCE, "its age counts from now on")                                     \
    X(DUE, "due when the event says")                                          \
    X(RESULT, "status, reason and response of the attempt")                    \
    X(HISTORY, "the attempt goes to the history: the job goes on")             \
    X(UNSEEN, "the reason is that the store has not seen the completion")      \
    X(RETAKE, "the operation is leased once more first, to be ended")

enum lk_job_effect_bit {
#define X(name, text) LK_JOB_EFFECT_BIT_##name,
    LK_JOB_EFFECT_MAP(X)
#undef X
        LK_JOB_EFFECT_BITS
};

enum lk_job_effect {
#define X(name, text) LK_JOB_EFFECT_##name = 1 << LK_JOB_EFFECT_BIT_##name,
    LK_JOB_EFFECT_MAP(X)
#undef X
};

/* A job as an event finds it: its state, and which conditions hold. */
struct lk_job_standing {
    enum lk_job_state state;
#define X(name, member, text) bool member;
    LK_JOB_CONDITION_MAP(X)
#undef X
};

/* One rule, as struct lk_rule is. */
struct lk_job_rule {
    uint32_t events;
    uint16_t states;
    uint16_t required;
    uint16_t forbidden;
    int8_t next; /* enum lk_job_state, or LK_JOB_SAME */
    uint8_t outcome;
    uint32_t effects; /* of enum lk_job_effect */
    int8_t tells;     /* the operation's event: enum lk_event, or NOTHING */
};

enum { LK_JOB_SAME = -1, LK_JOB_TELLS_NOTHING = -1 };

struct lk_job_rules {
    const struct lk_job_rule *rows;
    size_t count;
};

extern const struct lk_job_rules lk_job_machine_rules[LK_JOB_EVENTS];

struct lk_job_step {
    enum lk_job_outcome outcome;
    enum lk_job_state next;
    unsigned effects; /* of enum lk_job_effect */
    int tells;        /* enum lk_event, or LK_JOB_TELLS_NOTHING */
};

/* What the rules say: pure, total, no clock, no I/O. */
struct lk_job_step lk_job_machine_step(enum lk_job_event event,
                                       struct lk_job_standing job);

/* What a request gets when its operation has moved with this effect, by this
 * event; LK_JOB_EVENTS: nothing. */
enum lk_job_event lk_job_event_of(enum lk_effect effect, enum lk_event event);

const char *lk_job_state_word(enum lk_job_state state);
bool lk_job_state_parse(struct lk_slice word, enum lk_job_state *state);

/* Has the call happened or been given up? Else its operation is not reaped. */
static inline bool lk_job_is_finished(enum lk_job_state state)
{
    return state == LK_JOB_DELIVERED || state == LK_JOB_DROPPED;
}

#endif
