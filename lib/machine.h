/*
 * machine.h - the state machine of operations: what an event does to one.
 *
 * The rules are the rows in machine.c. lk_machine_step() reads them; what the
 * SQL and the Lua of the other stores decide is generated from the same rows
 * when the programs are built (tools/rules_gen.c), and a test compares all
 * three over every input.
 */
#ifndef LK_MACHINE_H
#define LK_MACHINE_H

#include "latchkey.h"

/* The words are those of LOOKUP, LIST, metrics and the documentation. */
#define LK_STATE_MAP(X)                                                        \
    X(ABSENT, "absent")                                                        \
    X(ACCEPTED, "accepted")                                                    \
    X(IN_PROGRESS, "in_progress")                                              \
    X(UNCERTAIN, "uncertain")                                                  \
    X(COMPLETED, "completed")                                                  \
    X(RELEASED, "released")

enum lk_state {
#define X(name, word) LK_STATE_##name,
    LK_STATE_MAP(X)
#undef X
};

#define LK_EVENT_MAP(X)                                                        \
    X(CLAIM, "claim")                                                          \
    X(ACCEPT, "accept")                                                        \
    X(LEASE, "lease") /* the courier takes an accepted request */              \
    X(COMPLETE, "complete")                                                    \
    X(RELEASE, "release")                                                      \
    X(DOUBT, "doubt")                                                          \
    X(EXTEND, "extend")                                                        \
    X(KEEP, "keep")                                                            \
    X(RESOLVE_COMPLETED, "resolve-completed") /* by an operator or proof */    \
    X(RESOLVE_RELEASED, "resolve-released")                                    \
    X(EVICT, "evict")                                                          \
    X(SWEEP, "sweep")                                                          \
    X(REAP, "reap")                                                            \
    X(ENQUEUE, "enqueue") /* leaves a job */                                   \
    X(RETURN, "return")   /* a request is put back: nothing happened */

enum lk_event {
#define X(name, word) LK_EVENT_##name,
    LK_EVENT_MAP(X)
#undef X
};

/* What the store has to write; NONE: the operation is unchanged. */
#define LK_EFFECT_MAP(X)                                                       \
    X(NONE, "nothing")                                                         \
    X(BEGIN, "a new token, attempt + 1, a fresh lock")                         \
    X(ACCEPT, "an operation without a lock, and its request as a job")         \
    X(LEASE, "an accepted operation gets its token and lock")                  \
    X(FINISH, "the response; the TTL starts")                                  \
    X(FREE, "nothing happened; reference and attempts stay")                   \
    X(DOUBT, "uncertain from now on")                                          \
    X(LOCK, "a later lock deadline")                                           \
    X(KEEP, "a later expiry")                                                  \
    X(FORGET, "the operation is deleted")                                      \
    X(ENQUEUE, "a job; the operation itself is unchanged")                     \
    X(RETURN, "accepted again, no lock")

enum lk_effect {
#define X(name, text) LK_EFFECT_##name,
    LK_EFFECT_MAP(X)
#undef X
};

enum {
    LK_STATES = LK_STATE_RELEASED + 1,
    LK_EVENTS = LK_EVENT_RETURN + 1,
};

/*
 * The conditions of the rules. The store compares and reads its clock; the
 * machine only decides. Conditions that do not apply to a state are ignored.
 */
#define LK_CONDITION_MAP(X)                                                    \
    /* of the operation */                                                     \
    X(EXPIRED, expired, "finished, TTL over, no unfinished job")               \
    X(LAPSED, lapsed, "in progress, lock deadline passed")                     \
    X(OMITTED, omitted, "completed, and the response was not kept")            \
    X(DOUBTED, doubted, "uncertain because its holder said so, with a reason") \
    X(QUEUED, queued, "its request is an unfinished job: the courier runs it") \
    /* what the event brings, compared with the operation */                   \
    X(SAME_FINGERPRINT, same_fingerprint, "the same fingerprint")              \
    X(SAME_OWNER, same_owner, "the same owner")                                \
    X(TOKEN_CURRENT, token_current, "shows the token of the current claim")    \
    /* options of a claim; reexecute also of a lease: what was lost may be     \
       called again */                                                         \
    X(REEXECUTE, reexecute, "REEXECUTE: run again what is uncertain")          \
    X(NO_NEW, no_new, "NONEW: begin nothing")                                  \
    /* options of a resolution */                                              \
    X(PROOF, proof, "by proof: counts for the uncertain claim of its token")   \
    X(RUNNING, running, "by a person: also while the lock is valid")

enum lk_condition {
#define X(name, member, text) LK_CONDITION_##name,
    LK_CONDITION_MAP(X)
#undef X
        LK_CONDITIONS
};

/* An operation as an event finds it: its state, and which conditions hold. */
struct lk_standing {
    enum lk_state state;
#define X(name, member, text) bool member;
    LK_CONDITION_MAP(X)
#undef X
};

/*
 * One rule: it applies if the event and the state are in its sets, all of
 * `required` hold and none of `forbidden` does. Sets are masks of 1 << enum.
 */
struct lk_rule {
    uint16_t events;
    uint16_t states;
    uint16_t required;
    uint16_t forbidden;
    int8_t next; /* enum lk_state, or LK_STATE_SAME */
    uint8_t verdict;
    uint8_t effect;
};

enum { LK_STATE_SAME = -1 };

/* The rules of one event, which may share them with others, in order: the
 * first that applies counts, and the last always applies. */
struct lk_rules {
    const struct lk_rule *rows;
    size_t count;
};

extern const struct lk_rules lk_machine_rules[LK_EVENTS];

struct lk_step {
    enum lk_verdict verdict;
    enum lk_state next;
    enum lk_effect effect;
};

/* What the rules say: pure, total, no clock, no I/O. */
struct lk_step lk_machine_step(enum lk_event event,
                               struct lk_standing operation);

/* The set of conditions that hold, as a mask of 1 << enum lk_condition. */
unsigned lk_standing_mask(const struct lk_standing *operation);

const char *lk_state_word(enum lk_state state);
bool lk_state_parse(struct lk_slice word, enum lk_state *state);

#endif
