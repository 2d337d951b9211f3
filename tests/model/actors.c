/*
 * actors.c - everything but the gateways: couriers, the app, time, people, and
 * the start.
 */
#include "tests/model/world.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct world first_world(void)
{
    return (struct world){.next_token = 1, .base = 1, .allowance = 1};
}

/* ---- a step ----------------------------------------------------------------
 */

/* Worlds that differ only in who is where are one. Who is idle comes last. */
static void sort_actors(struct world *w)
{
    if (memcmp(&w->gateways[0], &w->gateways[1], sizeof(w->gateways[0])) < 0) {
        struct gateway first = w->gateways[0];
        w->gateways[0] = w->gateways[1];
        w->gateways[1] = first;
    }
    if (memcmp(&w->couriers[0], &w->couriers[1], sizeof(w->couriers[0])) < 0) {
        struct courier first = w->couriers[0];
        w->couriers[0] = w->couriers[1];
        w->couriers[1] = first;
    }
    for (int end = LATE_MAX - 1; end > 0; end--) {
        for (int i = 0; i < end; i++) {
            struct late late = w->late[i];
            bool gap = !late.phase && w->late[i + 1].phase;
            if (gap || (w->late[i + 1].phase &&
                        memcmp(&late, &w->late[i + 1], sizeof(late)) > 0)) {
                w->late[i] = w->late[i + 1];
                w->late[i + 1] = late;
            }
        }
    }
}

/* Ghosts of what can make no difference any more are the same, too. */
static void forget_ghosts(struct world *w)
{
    for (uint8_t owner = 1; owner <= w->requests; owner++) {
        if (!has_late(w, CLAIM, owner, 0)) {
            w->dead &= (uint8_t)~bit(owner);
        }
    }
}

void emit(struct explore *x, enum kind kind, struct world *w,
          const char *format, ...)
{
    bool wanted = !x->blocked && !(x->fair_only && kind != FAIR);

    x->bounded |= x->blocked;
    if (wanted && !x->enough) {
        sort_actors(w);
        forget_ghosts(w);
        if (x->narrate) {
            va_list args;
            va_start(args, format);
            vsnprintf(x->story, sizeof(x->story), format, args);
            va_end(args);
        }
        x->edge(x, w);
    }
    x->blocked = false;
    x->broken = HOLDS;
}

/* ---- couriers ------------------------------------------------------------ */

static void courier_leases(struct explore *x, int i)
{
    struct world w = *x->from;
    bool lost = lease_lost(x, &w);
    uint8_t lease;

    if (!lost && !lease_due(x, &w)) {
        return;
    }
    lease = lost ? settle_lost(x, &w) : take_lease(x, &w);
    if (lease) {
        w.couriers[i] = (struct courier){COURIER_HOLDS, lease};
        emit(x, FAIR, &w, "a courier leases %s: token %u",
             lost ? "what was lost" : "the request", lease);
    } else {
        emit(x, FAIR, &w, "a courier finds that a called request was lost");
    }
}

static void courier_brings(struct explore *x, int i)
{
    struct world w = *x->from;
    struct courier *courier = &w.couriers[i];

    courier->phase = COURIER_WAITS;
    w.http |= bit(courier->lease);
    emit(x, FAIR, &w, "the courier brings token %u", courier->lease);
    w = *x->from;
    w.couriers[i].phase = COURIER_UNSENT;
    emit(x, FAIR, &w, "the courier reaches no gateway with token %u",
         w.couriers[i].lease);
}

static bool is_being_delivered(const struct world *w, uint8_t token)
{
    bool delivered = w->http & bit(token);

    for (int i = 0; i < GATEWAYS; i++) {
        const struct gateway *g = &w->gateways[i];
        delivered = delivered || (!g->owner && g->token == token);
    }
    return delivered;
}

/* It is renewed while the call lasts; a call whose gateway is gone breaks. */
static void courier_waits(struct explore *x, int i)
{
    struct world w = *x->from;
    uint8_t lease = w.couriers[i].lease;
    bool gone = !is_being_delivered(&w, lease);

    if (w.record.lapsed && renew_lease(x, &w, w.couriers[i])) {
        emit(x, FAIR, &w, "the courier renews lease %u", lease);
    }
    w = *x->from;
    w.couriers[i].phase = COURIER_UNKNOWN;
    if (gone) {
        emit(x, FAIR, &w, "the courier loses the connection of token %u",
             lease);
    } else if (w.cuts < x->scenario->cuts) {
        w.cuts++;
        emit(x, CHANCE, &w, "the courier gets no outcome of token %u", lease);
        w.http &= (uint8_t)~bit(lease);
        emit(x, CHANCE, &w, "the delivery of token %u is lost", lease);
    }
}

static void courier_ends(struct explore *x, int i, bool gives_up)
{
    struct world w = *x->from;
    struct courier courier = w.couriers[i];
    bool held = end_lease(x, &w, courier, gives_up);
    struct world unheard = w;

    w.couriers[i] = (struct courier){0};
    emit(x, FAIR, &w, "the courier ends lease %u%s: %s", courier.lease,
         gives_up ? " and gives up" : "", held ? "done" : "it is not its own");
    if (held && !gives_up && w.cuts < x->scenario->cuts) {
        unheard.cuts++;
        emit(x, CHANCE, &unheard,
             "the courier ends lease %u, does not hear "
             "that it counts, and will say so again",
             courier.lease);
    }
}

static void courier_steps(struct explore *x, int i)
{
    const struct courier *courier = &x->from->couriers[i];

    switch (courier->phase) {
    case COURIER_IDLE:
        courier_leases(x, i);
        return;
    case COURIER_HOLDS:
        courier_brings(x, i);
        break;
    case COURIER_WAITS:
        courier_waits(x, i);
        break;
    default:
        courier_ends(x, i, false);
        if (x->scenario->gives_up && courier->phase != COURIER_COMPLETED) {
            courier_ends(x, i, true);
        }
        break;
    }
    if (x->from->crashes < x->scenario->crashes) {
        struct world w = *x->from;
        w.crashes++;
        w.couriers[i] = (struct courier){0};
        emit(x, CHANCE, &w, "the courier of lease %u dies", courier->lease);
    }
}

/* ---- the app ------------------------------------------------------------- */

/* Nothing happened; the gateway that waits for it learns so. */
static void app_refuses(struct explore *x, struct world *w, uint8_t token)
{
    w->pending &= (uint8_t)~bit(token);
    for (int i = 0; i < GATEWAYS; i++) {
        struct gateway *g = &w->gateways[i];
        if (g->phase == RUNNING && g->token == token) {
            settle_nothing(x, w, g);
        }
    }
}

static void app_steps(struct explore *x, uint8_t token)
{
    struct world w = *x->from;
    struct word complete = {
        .event = LK_EVENT_COMPLETE, .token = token, .answer = token};

    if (!x->scenario->app_by_sql) {
        take_effect(x, &w, token);
        emit(x, FAIR, &w, "the app runs for token %u", token);
    } else if (decide(x, &w, complete).verdict == LK_VERDICT_DONE) {
        take_effect(x, &w, token);
        emit(x, FAIR, &w, "the app runs for token %u and completes it", token);
    } else {
        app_refuses(x, &w, token);
        emit(x, FAIR, &w, "the app rolls back: token %u is not current", token);
    }
    w = *x->from;
    app_refuses(x, &w, token);
    emit(x, FAIR, &w, "the app refuses token %u: nothing happened", token);
}

/* ---- time and the keeper ---------------------------------------------------
 */

static void time_steps(struct explore *x)
{
    struct world w = *x->from;

    if (w.record.state == LK_STATE_IN_PROGRESS && !w.record.lapsed) {
        w.record.lapsed = true;
        emit(x, FAIR, &w, "the lock of token %u lapses", w.record.token);
    }
    if (w.record.state == LK_STATE_COMPLETED && !w.record.expired &&
        w.ends < x->scenario->ends) {
        w.record.expired = true;
        w.ends++;
        emit(x, CHANCE, &w, "the TTL ends");
    }
}

static void keeper_steps(struct explore *x)
{
    struct world w = *x->from;

    if (w.record.lapsed) {
        decide(x, &w, (struct word){.event = LK_EVENT_SWEEP});
        emit(x, FAIR, &w, "the sweeper comes by");
    }
    w = *x->from;
    if (w.record.expired || w.record.state == LK_STATE_UNCERTAIN) {
        decide(x, &w, (struct word){.event = LK_EVENT_REAP});
        emit(x, FAIR, &w, "the reaper comes by");
    }
}

/* ---- people and proofs -----------------------------------------------------
 */

/* What a person says of a holder that is lost, or that it overrides, is a
 * license. What it says of one that lives must not count. */
static void order(struct explore *x, enum lk_event event, bool running,
                  const char *words)
{
    struct world w = *x->from;
    bool lives = w.record.state == LK_STATE_IN_PROGRESS && !w.record.lapsed;
    struct word word = {.event = event,
                        .answer = w.record.token | ANSWER_RESOLVED,
                        .running = running,
                        .licensed = running || !lives};
    struct reply reply = decide(x, &w, word);

    w.orders++;
    emit(x, CHANCE, &w, "an operator %s%s: %s", words,
         running ? ", running or not" : "",
         latchkey_verdict_word(reply.verdict));
}

static void operator_steps(struct explore *x)
{
    uint8_t state = x->from->record.state;

    if (x->from->orders >= x->scenario->orders) {
        return;
    }
    if (state == LK_STATE_UNCERTAIN || state == LK_STATE_ACCEPTED ||
        state == LK_STATE_IN_PROGRESS) {
        order(x, LK_EVENT_RESOLVE_RELEASED, false, "resolves it as released");
        order(x, LK_EVENT_RESOLVE_COMPLETED, false, "resolves it as completed");
    }
    if (state == LK_STATE_IN_PROGRESS) {
        order(x, LK_EVENT_RESOLVE_RELEASED, true, "resolves it as released");
    }
    if (state == LK_STATE_COMPLETED) {
        order(x, LK_EVENT_EVICT, false, "evicts it");
    }
}

/* After the settle time: no gateway can call the app for this claim. */
static bool is_absent(const struct explore *x, const struct world *w)
{
    uint8_t token = w->record.token;
    bool held = w->http & bit(token);

    for (int i = 0; i < GATEWAYS; i++) {
        const struct gateway *g = &w->gateways[i];
        held =
            held ||
            (g->phase != IDLE &&
             (g->token == token || (g->owner && g->owner == w->record.owner)));
    }
    for (uint8_t each = w->base; each < w->next_token; each++) {
        held = held || may_have_happened(x, w, each);
    }
    return !held;
}

static void probe_asks(struct explore *x)
{
    struct world w = *x->from;
    bool happened = w.effects >> w.base;

    if (w.record.state != LK_STATE_UNCERTAIN ||
        w.orders >= x->scenario->orders || (!happened && !is_absent(x, &w))) {
        return;
    }
    w.orders++;
    w.proof = happened ? PROOF_HAPPENED : PROOF_ABSENT;
    w.proven = w.record.token;
    emit(x, CHANCE, &w, "a probe finds that token %u has %shappened", w.proven,
         happened ? "" : "not ");
}

static void probe_steps(struct explore *x)
{
    struct world w = *x->from;
    bool happened = w.proof == PROOF_HAPPENED;
    struct word word = {.event = happened ? LK_EVENT_RESOLVE_COMPLETED
                                          : LK_EVENT_RESOLVE_RELEASED,
                        .token = w.proven,
                        .answer = w.record.token | ANSWER_RESOLVED,
                        .proof = true};

    if (!x->scenario->probes) {
        return;
    }
    if (!w.proof) {
        probe_asks(x);
        return;
    }
    struct reply reply = decide(x, &w, word);
    w.proof = PROOF_NONE;
    w.proven = 0;
    emit(x, CHANCE, &w, "the proof about token %u is said: %s", word.token,
         latchkey_verdict_word(reply.verdict));
}

/* ---- all of them -----------------------------------------------------------
 */

void expand(struct explore *x)
{
    const struct world *w = x->from;
    bool free = true; /* one idle gateway is as good as another */

    for (int i = 0; i < GATEWAYS; i++) {
        if (w->gateways[i].phase != IDLE) {
            gateway_steps(x, i);
        } else if (free) {
            gateway_begins(x, i);
            free = false;
        }
    }
    late_steps(x);
    for (uint8_t token = 1; token <= TOKENS_MAX; token++) {
        if (w->pending & bit(token)) {
            app_steps(x, token);
        }
    }
    free = true;
    for (int i = 0; i < x->scenario->couriers; i++) {
        bool idle = w->couriers[i].phase == COURIER_IDLE;
        if (!idle || free) {
            courier_steps(x, i);
        }
        free = free && !idle;
    }
    time_steps(x);
    keeper_steps(x);
    operator_steps(x);
    probe_steps(x);
}
