/*
 * world.h - the protocol as a model: one operation, and all that can touch it.
 *
 * The model is a graph. A node is a `struct world`: the record in the store,
 * the gateways, couriers and messages around it, and a few ghosts, which no
 * part of Latchkey could know and which the properties are about. An edge is
 * one atomic step of one actor. search.c visits every world that can be reached
 * within the bounds of a scenario, so what holds in all of them holds whatever
 * the order of events.
 *
 * What is modelled
 *
 *   store      one record and the job of its request. Every decision is
 *              lk_machine_step() of lib/machine.c, linked, not copied; what the
 *              store adds to it (the request follows its operation, leases and
 *              their fence) is in store.c, rule by rule as store/jobs.h says
 *   gateways   two, each with one request in hand: a client's, which is claimed
 *              or accepted, or an accepted one that a courier brings. Claim
 * with an owner, EXTEND before the app and as a sign of life, COMPLETE,
 *              RELEASE, DOUBT, RETURN by token, sent again until it is answered
 *   couriers   lease, deliver, end; what was lost is settled by the next lease
 *   app        may refuse without an effect, may take effect late, after its
 *              gateway has given up or is gone; or completes by SQL in the
 *              transaction of its effect
 *   network    a command may be lost, its reply may be lost, and a command
 * whose sender has given up may be decided as late as it likes time       locks
 * lapse and TTLs end at any moment: nothing that is proven here rests on how
 * long anything takes, except as said below people     an operator resolves or
 * evicts; a probe proves something about one token and says so later crashes of
 * a gateway, at any step; of a courier, which is the daemon's. The store is
 * durable: a crash of it is a lost reply
 *
 * What is not
 *
 *   fingerprints (tests/unit/test_machine.c has them), limits, KEEP, omitted
 *   answers, named jobs and their targets, stores that lose what they have
 *   acknowledged, a courier that gives one request to two gateways. A lease and
 *   the lock of its operation are one clock here.
 *
 * What is assumed of time
 *
 *   A gateway that has lost the reply to a claim asks for it (NONEW) when the
 *   daemon can no longer begin the lost one: a claim that a daemon has begun is
 *   decided within the pause of the gateway, and one of a closed connection is
 *   not begun.
 *   A probe says "absent" only after its settle time: when no gateway can still
 *   call the app for that claim.
 *
 * What is proven: properties.c. A violation is printed as a trace of steps, the
 * shortest that there is.
 */
#ifndef LK_MODEL_WORLD_H
#define LK_MODEL_WORLD_H

#include "lib/machine.h"

#include <stdint.h>

/* Room of a world; a scenario may use less. */
enum {
    GATEWAYS = 2,
    COURIERS = 2,
    LATE_MAX = 3,
    TOKENS_MAX = 7, /* a set of tokens is a byte; token 0 is none */
};

/* An answer is the token of the run that gave it. If no run gave it, it is the
 * token that was current, and one of these. */
enum {
    ANSWER_NONE = 0,
    ANSWER_NEVER_RAN = 1 << 3, /* the courier's problem document */
    ANSWER_RESOLVED = 1 << 4,  /* a person's, or that of a proof */
};

struct record {
    uint8_t state; /* enum lk_state */
    uint8_t token;
    uint8_t owner; /* the client's request that claimed it; 0: none */
    uint8_t lapsed;
    uint8_t expired;
    uint8_t doubted; /* uncertain because DOUBT said so */
    uint8_t answer;  /* completed */
};

enum job_state { JOB_NONE, JOB_WAITING, JOB_LEASED, JOB_UNCERTAIN };

/* The request of an accepted operation; NONE: there is none, or it is over. */
struct job {
    uint8_t state;
    uint8_t lease;  /* the token of the latest lease: the fence of its end */
    uint8_t called; /* the gateway has said EXTEND: the app may hear of it */
    uint8_t sent;   /* an attempt may have reached the app */
};

/* What a gateway does with the request in its hand. Commands come first: in
 * these phases one is on its way, or its reply. */
enum phase {
    IDLE,
    CLAIM,
    ACCEPT,
    ASK,   /* CLAIM NONEW, the same owner: is it mine? then it is released */
    LOOK,  /* CLAIM NONEW, no owner: overtaken, what does the client get? */
    CHECK, /* EXTEND before the app, for a courier */
    COMPLETE,
    RELEASE,
    DOUBT,
    RETURN,
    BACK,    /* EXTEND: in doubt, and may run again; the courier decides */
    HELD,    /* may call the app */
    RUNNING, /* has called it */
};

enum net { QUIET, SENT, REPLIED };

enum {
    CLIENT = 1 << 0,    /* its client still waits */
    CUT = 1 << 1,       /* a claim of it was cut off and may come late */
    CONTACTED = 1 << 2, /* the app may have heard of it */
};

struct gateway {
    uint8_t phase;
    uint8_t net;
    uint8_t flags;
    uint8_t owner;   /* the number of the client's request; 0: a courier's */
    uint8_t token;   /* that it holds, or that the courier gave */
    uint8_t verdict; /* replied */
    uint8_t value;   /* replied: the token of NEW, the answer of REPLAY, KEPT */
};

enum courier_phase {
    COURIER_IDLE,
    COURIER_HOLDS, /* leased, not brought yet */
    COURIER_WAITS, /* brought, no outcome yet */
    COURIER_COMPLETED,
    COURIER_UNSENT,   /* nothing happened, the app has not heard of it */
    COURIER_RELEASED, /* nothing happened */
    COURIER_UNKNOWN,
};

struct courier {
    uint8_t phase;
    uint8_t lease;
};

/* A command whose sender has given up; its reply goes nowhere. */
struct late {
    uint8_t phase; /* which command; 0: none */
    uint8_t flags; /* as its gateway had them: CONTACTED */
    uint8_t owner;
    uint8_t token;
};

enum proof { PROOF_NONE, PROOF_ABSENT, PROOF_HAPPENED };

/* Bytes only, so that worlds are compared and hashed as they are. */
struct world {
    struct record record;
    struct job job;
    struct gateway gateways[GATEWAYS];
    struct courier couriers[COURIERS];
    struct late late[LATE_MAX];
    uint8_t http;       /* tokens on their way from a courier to a gateway */
    uint8_t next_token; /* the store's */
    uint8_t proof;      /* in the hand of a prober */
    uint8_t proven;     /* its token */
    /* The app's ledger, as sets of tokens: */
    uint8_t pending; /* asked, nothing has happened yet */
    uint8_t effects; /* happened */
    /* Ghosts: */
    int8_t allowance; /* runs that may still take effect */
    uint8_t touched;  /* the app was called since the name was free */
    uint8_t base;     /* the first token since then */
    uint8_t told;     /* the answer that a client has got since then */
    uint8_t excused;  /* see properties.c */
    uint8_t dead;     /* owners whose gateway has died, a set */
    /* Used up so far: */
    uint8_t requests;
    uint8_t cuts;
    uint8_t crashes;
    uint8_t orders;
    uint8_t ends; /* of TTLs */
};

/* A bound on everything, and what kind of route it is. */
struct scenario {
    const char *name;
    const char *about;
    bool claims;     /* clients' requests are run at once */
    bool accepts;    /* they may be accepted for later */
    bool reexecute;  /* what was lost may run again */
    bool app_by_sql; /* the app completes in its own transaction */
    bool gives_up;   /* a courier may run out of attempts */
    bool probes;
    uint8_t requests;
    uint8_t tokens;
    uint8_t cuts;
    uint8_t crashes;
    uint8_t late; /* commands that may be late at a time */
    uint8_t couriers;
    uint8_t orders; /* of operators */
    uint8_t ends;   /* of TTLs */
};

enum property {
    HOLDS,
    ONE_RUN,
    TRUE_REPLAY,
    STALE_IS_NOTHING,
    PROVEN_RELEASE,
    TRUE_NEVER_RAN,
    NOT_UNCERTAIN_FOR_GOOD,
    NOT_STUCK,
};

/* Bugs that can be planted, to see that they are found. */
enum plant {
#define X(name, word, about) PLANT_##name,
#include "tests/model/plants.h"
#undef X
    PLANTS
};

/* Who takes a step: faults and people may, the others will. */
enum kind { FAIR, CHANCE };

struct explore;
typedef void (*edge_fn)(struct explore *x, const struct world *next);

/* One expansion of a world, and the settings of the run. */
struct explore {
    const struct scenario *scenario;
    enum plant plant;
    const struct world *from;
    edge_fn edge;
    void *context;
    bool fair_only;
    bool narrate;         /* `story` is wanted */
    bool blocked;         /* the step at hand needs a token beyond the bound */
    bool bounded;         /* such a step was left out */
    bool enough;          /* the caller has seen what it wants */
    enum property broken; /* by the step at hand */
    const char *why;
    char story[200];
};

/* ---- store.c ------------------------------------------------------------- */

struct word {
    enum lk_event event;
    uint8_t token;
    uint8_t owner;
    uint8_t answer;
    bool no_new;
    bool proof;
    bool running;    /* resolve: also while the lock is valid */
    bool lost;       /* LEASE: of a courier or gateway that is gone */
    bool by_courier; /* EXTEND, RETURN: of a lease, no gateway said so */
    bool unsent;     /* RETURN: the app has not heard of it */
    bool licensed;   /* a person, or the route, lets it happen again */
};

struct reply {
    enum lk_verdict verdict;
    uint8_t value;
};

struct reply decide(struct explore *x, struct world *w, struct word word);
bool lease_due(const struct explore *x, const struct world *w);
bool lease_lost(const struct explore *x, const struct world *w);
/* The lease, or 0: there is none to be had. */
uint8_t take_lease(struct explore *x, struct world *w);
uint8_t settle_lost(struct explore *x, struct world *w);
bool end_lease(struct explore *x, struct world *w, struct courier courier,
               bool gives_up);
bool renew_lease(struct explore *x, struct world *w, struct courier courier);

/* ---- gateway.c ----------------------------------------------------------- */

void gateway_steps(struct explore *x, int i);
/* A request of a client, or of a courier that has leased `token`. */
void gateway_begins(struct explore *x, int i);
/* The app has answered that nothing happened, or its connection was refused. */
void settle_nothing(struct explore *x, struct world *w, struct gateway *g);
void late_steps(struct explore *x);
bool has_late(const struct world *w, enum phase phase, uint8_t owner,
              uint8_t token);
const char *gateway_name(const struct gateway *g);

/* ---- actors.c ------------------------------------------------------------ */

struct world first_world(void);
/* Calls x->edge for each step that can be taken in *x->from. */
void expand(struct explore *x);
/* A step from *x->from to w, and what happens in it. */
void emit(struct explore *x, enum kind kind, struct world *w,
          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* ---- properties.c -------------------------------------------------------- */

void violate(struct explore *x, enum property property, const char *why);
const char *property_text(enum property property);
/* Could the app have run under this token, or could it yet? */
bool may_have_happened(const struct explore *x, const struct world *w,
                       uint8_t token);
bool may_call(const struct gateway *g, uint8_t token);
/* Of each decision of the store; keeps the ghosts. */
void check_step(struct explore *x, const struct world *before,
                struct world *after, struct word word);
void take_effect(struct explore *x, struct world *w, uint8_t token);
void tell_client(struct explore *x, struct world *w, uint8_t answer);
bool is_uncertain_for_nothing(const struct explore *x, const struct world *w);
bool is_unsettled(const struct explore *x, const struct world *w);

/* ---- search.c ------------------------------------------------------------ */

struct finding {
    enum property broken; /* HOLDS: nothing was found */
    uint64_t states;
    uint64_t steps;
    unsigned depth;
    bool too_many; /* more states than were allowed: nothing is proven */
};

struct finding search(const struct scenario *scenario, enum plant plant,
                      uint64_t states_max);

static inline uint8_t bit(uint8_t n)
{
    return (uint8_t)(1u << n);
}

#endif
