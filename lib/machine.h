/* machine.h - the state machine: what an event does to a record. */
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
    X(RETURN, "return")   /* an accepted request is put back: nothing happened \
                           */

enum lk_event {
#define X(name, word) LK_EVENT_##name,
    LK_EVENT_MAP(X)
#undef X
};

/* What the store has to write; NONE means that the record is unchanged. */
enum lk_effect {
    LK_EFFECT_NONE,
    LK_EFFECT_BEGIN,  /* a new token, attempt + 1, a fresh lock */
    LK_EFFECT_ACCEPT, /* a record without a lock */
    LK_EFFECT_LEASE,  /* an accepted record gets its token and lock */
    LK_EFFECT_FINISH, /* the answer; the TTL starts */
    LK_EFFECT_FREE,   /* nothing happened; reference and attempts stay */
    LK_EFFECT_DOUBT,
    LK_EFFECT_LOCK, /* a later lock deadline */
    LK_EFFECT_KEEP, /* a later expiry */
    LK_EFFECT_FORGET,
    LK_EFFECT_ENQUEUE, /* a job; the record itself is unchanged */
    LK_EFFECT_RETURN,  /* accepted again, no lock */
};

/*
 * A record as an event finds it. The store compares and looks at its clock;
 * the machine only decides. Flags that do not apply to the state are ignored.
 */
struct lk_standing {
    enum lk_state state;
    bool expired; /* completed or released, TTL over, no unfinished job */
    bool lapsed;  /* in progress, lock deadline passed */
    bool omitted; /* completed, and the answer was not kept */
    bool doubted; /* uncertain because its holder said so, with a reason */
    bool queued;  /* its request is an unfinished job: the courier runs it */
    /* What the event brings, compared with the record: */
    bool same_fingerprint;
    bool same_owner;
    bool token_current;
    /* Options of a claim: */
    bool reexecute; /* of a lease: what was lost may be called again */
    bool no_new;
    /* Of a resolution: it counts for the uncertain claim of its token alone. */
    bool proof;
    /* Of a resolution by a person: also while the lock is valid. */
    bool running;
};

struct lk_step {
    enum lk_verdict verdict;
    enum lk_state next;
    enum lk_effect effect;
};

/* The table in machine.c as a function: pure, total, no clock, no I/O. */
struct lk_step lk_machine_step(enum lk_event event, struct lk_standing record);

const char *lk_state_word(enum lk_state state);
bool lk_state_parse(struct lk_slice word, enum lk_state *state);

#endif
