/*
 * gateway.c - a gateway with one request in its hand, and the network between
 * it and the daemon; nginx/ngx_http_latchkey_op*.c as steps.
 *
 *   CLAIM ──NEW──> HELD ──> RUNNING ──> COMPLETE, RELEASE, DOUBT ──> over
 *     │ no reply                                │ STALE
 *     └──> ASK ──NEW──> RELEASE                 └──> LOOK ──> over
 *   ACCEPT ──> over
 *   CHECK ──OK──> HELD ──> RUNNING ──> COMPLETE, RETURN, DOUBT, BACK ──> over
 *     │ no reply
 *     └──> RETURN
 *
 * A settlement is sent until there is a reply. A request whose claim was cut
 * off ends with ASK: the claim may have come late, and been NEW. Not so if it
 * ran: it would find its own run, and release it.
 */
#include "tests/model/world.h"

static const char *const phase_words[] = {
    [CLAIM] = "CLAIM",      [ACCEPT] = "ACCEPT", [ASK] = "CLAIM NONEW",
    [LOOK] = "CLAIM NONEW", [CHECK] = "EXTEND",  [COMPLETE] = "COMPLETE",
    [RELEASE] = "RELEASE",  [DOUBT] = "DOUBT",   [RETURN] = "RETURN",
    [BACK] = "EXTEND",
};

/* Gateways have no names of their own: two that change places are one world. */
const char *gateway_name(const struct gateway *g)
{
    static const char *const requests[] = {"", "request 1", "request 2",
                                           "request 3", "request 4"};
    static const char *const deliveries[] = {
        "",           "delivery 1", "delivery 2", "delivery 3",
        "delivery 4", "delivery 5", "delivery 6", "delivery 7"};

    return g->owner ? requests[g->owner] : deliveries[g->token];
}

/* ---- the next thing to do ------------------------------------------------ */

static void send_command(struct gateway *g, enum phase phase)
{
    g->phase = (uint8_t)phase;
    g->net = SENT;
    g->verdict = g->value = 0;
}

static void end_request(const struct explore *x, struct gateway *g)
{
    if (g->flags & CUT && x->plant != PLANT_NO_ASK) {
        g->phase = ASK;
        g->net = QUIET;
        g->flags = CUT;
        g->token = g->verdict = g->value = 0;
    } else {
        *g = (struct gateway){0};
    }
}

static void tell_courier(struct world *w, const struct gateway *g,
                         enum courier_phase outcome)
{
    for (int i = 0; i < COURIERS; i++) {
        struct courier *courier = &w->couriers[i];
        if (!g->owner && courier->phase == COURIER_WAITS &&
            courier->lease == g->token) {
            courier->phase = (uint8_t)outcome;
        }
    }
}

static enum courier_phase released(const struct gateway *g)
{
    return g->flags & CONTACTED ? COURIER_RELEASED : COURIER_UNSENT;
}

void settle_nothing(struct explore *x, struct world *w, struct gateway *g)
{
    if (g->owner) {
        send_command(g, RELEASE);
    } else if (x->plant == PLANT_NO_RETURN) {
        tell_courier(w, g, released(g));
        end_request(x, g);
    } else {
        send_command(g, RETURN);
    }
}

static void settle_doubt(struct explore *x, struct world *w, struct gateway *g)
{
    if (x->plant == PLANT_TIMEOUT) {
        settle_nothing(x, w, g);
    } else {
        send_command(g, !g->owner && x->scenario->reexecute ? BACK : DOUBT);
    }
}

static void tell(struct explore *x, struct world *w, struct gateway *g,
                 uint8_t answer)
{
    if (g->flags & CLIENT) {
        tell_client(x, w, answer);
        g->flags &= (uint8_t)~CLIENT;
    }
}

/* ---- commands ------------------------------------------------------------ */

static struct word word_of(const struct explore *x, const struct late *command)
{
    static const enum lk_event events[] = {
        [CLAIM] = LK_EVENT_CLAIM,     [ACCEPT] = LK_EVENT_ACCEPT,
        [ASK] = LK_EVENT_CLAIM,       [LOOK] = LK_EVENT_CLAIM,
        [CHECK] = LK_EVENT_EXTEND,    [COMPLETE] = LK_EVENT_COMPLETE,
        [RELEASE] = LK_EVENT_RELEASE, [DOUBT] = LK_EVENT_DOUBT,
        [RETURN] = LK_EVENT_RETURN,   [BACK] = LK_EVENT_EXTEND,
    };
    enum phase phase = (enum phase)command->phase;

    return (struct word){
        .event = events[phase],
        .token = command->token,
        .owner = phase == CLAIM || phase == ASK ? command->owner : 0,
        .answer = phase == COMPLETE ? command->token : 0,
        .no_new = phase == ASK || phase == LOOK,
        .unsent = !(command->flags & CONTACTED),
        .licensed = phase == CLAIM && x->scenario->reexecute,
    };
}

static struct late command_of(const struct gateway *g)
{
    return (struct late){
        .phase = g->phase,
        .flags = g->phase == RETURN ? g->flags & CONTACTED : 0,
        .owner = g->phase == CLAIM ? g->owner : 0,
        .token = g->token,
    };
}

static void daemon_decides(struct explore *x, int i)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];
    struct late command = command_of(g);

    command.owner = g->owner;
    struct reply reply = decide(x, &w, word_of(x, &command));
    g->net = REPLIED;
    g->verdict = (uint8_t)reply.verdict;
    g->value = reply.value;
    emit(x, FAIR, &w, "%s: the daemon decides %s: %s %.0u", gateway_name(g),
         phase_words[g->phase], latchkey_verdict_word(reply.verdict),
         reply.value);
}

/* ---- replies ------------------------------------------------------------- */

static void claim_replied(struct explore *x, struct world *w, struct gateway *g)
{
    switch (g->verdict) {
    case LK_VERDICT_NEW:
        g->token = g->value;
        g->phase = HELD;
        g->net = QUIET;
        return;
    case LK_VERDICT_REPLAY:
        tell(x, w, g, g->value);
        g->flags &= (uint8_t)~CUT; /* so does a late claim */
        break;
    case LK_VERDICT_ACCEPTED:
        g->flags &= (uint8_t)~CUT;
        break;
    case LK_VERDICT_INFLIGHT: /* until its holder releases it */
        if (x->plant == PLANT_NO_ASK_BUSY) {
            g->flags &= (uint8_t)~CUT;
        }
        break;
    default: /* uncertain, perhaps its own */
        break;
    }
    end_request(x, g);
}

static void ask_replied(struct explore *x, struct gateway *g)
{
    if (g->verdict == LK_VERDICT_NEW) {
        g->token = g->value;
        send_command(g, RELEASE);
    } else {
        end_request(x, g);
    }
}

static void check_replied(struct explore *x, struct world *w, struct gateway *g)
{
    if (g->verdict == LK_VERDICT_DONE) {
        g->phase = HELD;
        g->net = QUIET;
        return;
    }
    tell_courier(w, g, COURIER_COMPLETED); /* or stale: the same to it */
    end_request(x, g);
}

/* What the courier hears of a settlement that was stored. */
static enum courier_phase outcome_of(const struct gateway *g)
{
    if (g->verdict != LK_VERDICT_DONE || g->phase == COMPLETE) {
        return COURIER_COMPLETED;
    }
    return g->phase == RETURN ? released(g) : COURIER_UNKNOWN;
}

static void settlement_replied(struct explore *x, struct world *w,
                               struct gateway *g)
{
    bool done = g->verdict == LK_VERDICT_DONE;

    tell_courier(w, g, outcome_of(g));
    if (g->phase != RELEASE) {
        g->flags &=
            (uint8_t)~CUT; /* what ran is not asked for: it is its own */
    }
    if (g->phase == COMPLETE && (done || x->plant == PLANT_STALE)) {
        tell(x, w, g, g->token);
    } else if (g->verdict == LK_VERDICT_KEPT) {
        tell(x, w, g, g->value);
    } else if (!done && g->phase != RELEASE && g->flags & CLIENT) {
        send_command(g, LOOK);
        return;
    }
    end_request(x, g);
}

static void reply_arrives(struct explore *x, int i)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];
    const char *name = gateway_name(g);
    const char *command = phase_words[g->phase];
    const char *verdict = latchkey_verdict_word((enum lk_verdict)g->verdict);

    switch (g->phase) {
    case CLAIM:
    case ACCEPT:
    case LOOK:
        claim_replied(x, &w, g);
        break;
    case ASK:
        ask_replied(x, g);
        break;
    case CHECK:
        check_replied(x, &w, g);
        break;
    default:
        settlement_replied(x, &w, g);
        break;
    }
    emit(x, FAIR, &w, "%s: hears %s of its %s", name, verdict, command);
}

/* ---- no reply ------------------------------------------------------------ */

/* The client, or the courier, hears that the outcome is not stored yet. */
static void stop_waiting(struct world *w, struct gateway *g)
{
    tell_courier(w, g, g->phase == RETURN ? released(g) : COURIER_UNKNOWN);
    g->flags &= (uint8_t)~CLIENT;
}

/* The link sends it again, and the one who waits goes on waiting. */
static void send_again(struct explore *x, struct world w, int i,
                       const char *how)
{
    struct gateway *g = &w.gateways[i];

    g->flags |= g->phase == CLAIM ? CUT : 0;
    send_command(g, (enum phase)g->phase);
    emit(x, CHANCE, &w, "%s: %s %s; it is sent again", gateway_name(g),
         phase_words[g->phase], how);
}

/* It takes too long for the one who waits. What is not settled goes on. */
static void go_on_alone(struct explore *x, struct world w, int i,
                        const char *how)
{
    struct gateway *g = &w.gateways[i];
    const char *name = gateway_name(g);
    const char *command = phase_words[g->phase];

    switch (g->phase) {
    case CLAIM:
        g->flags = CUT;
        end_request(x, g);
        break;
    case CHECK:
        tell_courier(&w, g, COURIER_UNSENT);
        settle_nothing(x, &w, g);
        break;
    case COMPLETE:
    case RELEASE:
    case DOUBT:
    case RETURN:
        stop_waiting(&w, g);
        send_command(g, (enum phase)g->phase);
        if (x->plant == PLANT_NO_LATE) {
            *g = (struct gateway){0};
        }
        break;
    case BACK:
        stop_waiting(&w, g);
        /* fall through */
    default: /* ACCEPT, ASK, LOOK */
        *g = (struct gateway){0};
        break;
    }
    emit(x, CHANCE, &w, "%s: %s %s; it is not waited for", name, command, how);
}

/* What the gateway does without a reply; how: what became of the command. */
static void go_on_without_reply(struct explore *x, struct world w, int i,
                                const char *how)
{
    w.cuts++;
    send_again(x, w, i, how);
    if (w.gateways[i].phase != ASK) { /* no one waits for that */
        go_on_alone(x, w, i, how);
    }
}

/* Adds one; false: there is no room for more. */
static bool add_late(const struct explore *x, struct world *w,
                     struct late command)
{
    for (int i = 0; i < x->scenario->late; i++) {
        if (!w->late[i].phase) {
            w->late[i] = command;
            return true;
        }
    }
    return false;
}

/* Questions decide nothing: they need not come late. */
static bool can_be_late(uint8_t phase)
{
    return phase != ASK && phase != LOOK && phase != BACK;
}

static void connection_breaks(struct explore *x, int i)
{
    struct world w = *x->from;
    const struct gateway *g = &w.gateways[i];

    if (w.cuts >= x->scenario->cuts) {
        return;
    }
    go_on_without_reply(x, w, i,
                        g->net == SENT ? "is lost"
                                       : "was decided, the reply "
                                         "is lost");
    if (g->net == SENT && can_be_late(g->phase) &&
        add_late(x, &w, command_of(g))) {
        go_on_without_reply(x, w, i, "is late");
    }
}

bool has_late(const struct world *w, enum phase phase, uint8_t owner,
              uint8_t token)
{
    for (int i = 0; i < LATE_MAX; i++) {
        const struct late *late = &w->late[i];
        if (late->phase == phase && (!owner || late->owner == owner) &&
            (!token || late->token == token)) {
            return true;
        }
    }
    return false;
}

/* A command whose sender has given up is decided all the same. */
void late_steps(struct explore *x)
{
    for (int i = 0; i < LATE_MAX; i++) {
        struct world w = *x->from;
        struct late late = w.late[i];
        if (!late.phase) {
            continue;
        }
        w.late[i] = (struct late){0};
        struct reply reply = decide(x, &w, word_of(x, &late));
        if (w.record.token != x->from->record.token) {
            w.excused = w.dead & bit(late.owner) || w.orders || w.ends;
        }
        emit(x, FAIR, &w, "the daemon decides a late %s of %s %u: %s %.0u",
             phase_words[late.phase], late.owner ? "request" : "token",
             late.owner ? late.owner : late.token,
             latchkey_verdict_word(reply.verdict), reply.value);
    }
}

/* ---- steps --------------------------------------------------------------- */

/* When no claim of its own can be begun any more. */
static void ask(struct explore *x, int i)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];

    if (!has_late(&w, CLAIM, g->owner, 0)) {
        send_command(g, ASK);
        g->flags = 0;
        emit(x, FAIR, &w, "%s: asks whether its lost claim was NEW",
             gateway_name(g));
    }
}

static void call_app(struct explore *x, int i)
{
    struct world w = *x->from;
    struct world refused = w;
    struct gateway *g = &w.gateways[i];

    g->phase = RUNNING;
    g->flags |= CONTACTED;
    w.pending |= bit(g->token);
    w.touched |= g->token >= w.base;
    emit(x, FAIR, &w, "%s: calls the app", gateway_name(g));
    settle_nothing(x, &refused, &refused.gateways[i]);
    emit(x, FAIR, &refused, "%s: the app cannot be reached",
         gateway_name(&x->from->gateways[i]));
}

static void answer_arrives(struct explore *x, int i)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];

    if (!(w.effects & bit(g->token))) {
        return;
    }
    if (x->plant == PLANT_EARLY) {
        tell(x, &w, g, g->token);
    }
    send_command(g, COMPLETE);
    emit(x, FAIR, &w, "%s: the app has answered", gateway_name(g));
}

static void answer_is_lost(struct explore *x, int i)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];

    if (w.cuts < x->scenario->cuts) {
        w.cuts++;
        if (x->plant == PLANT_CALLS_TWICE) {
            w.pending |= bit(g->token);
        } else {
            settle_doubt(x, &w, g);
        }
        emit(x, CHANCE, &w, "%s: no answer comes from the app",
             gateway_name(&x->from->gateways[i]));
    }
}

/* Sent where it would change something. */
static void give_sign_of_life(struct explore *x, int i)
{
    struct world w = *x->from;
    const struct gateway *g = &w.gateways[i];
    struct late extend = {.phase = CHECK, .token = g->token};

    if ((w.record.lapsed || w.record.state == LK_STATE_UNCERTAIN) &&
        !has_late(&w, CHECK, 0, g->token) && add_late(x, &w, extend)) {
        emit(x, FAIR, &w, "%s: sends a sign of life", gateway_name(g));
    }
}

static void gateway_dies(struct explore *x, int i, bool late)
{
    struct world w = *x->from;
    struct gateway g = w.gateways[i];

    if (w.crashes >= x->scenario->crashes ||
        (late && (g.net != SENT || !can_be_late(g.phase) ||
                  !add_late(x, &w, command_of(&g))))) {
        return;
    }
    w.crashes++;
    w.gateways[i] = (struct gateway){0};
    if (g.owner) {
        w.dead |= bit(g.owner);
        w.excused |= w.record.owner == g.owner;
    } else if (w.record.token == g.token) {
        w.excused |= w.job.called || has_late(&w, CHECK, 0, g.token);
    }
    emit(x, CHANCE, &w, "%s: its gateway dies%s", gateway_name(&g),
         late ? ", its command is on its way" : "");
}

void gateway_steps(struct explore *x, int i)
{
    const struct gateway *g = &x->from->gateways[i];

    if (g->net == SENT) {
        daemon_decides(x, i);
        connection_breaks(x, i);
    } else if (g->net == REPLIED) {
        reply_arrives(x, i);
        connection_breaks(x, i);
    } else if (g->phase == ASK) {
        ask(x, i);
    } else if (g->phase == HELD) {
        call_app(x, i);
    } else if (g->phase == RUNNING) {
        answer_arrives(x, i);
        answer_is_lost(x, i);
        give_sign_of_life(x, i);
    }
    gateway_dies(x, i, false);
    gateway_dies(x, i, true);
}

static void take_request(struct explore *x, int i, enum phase phase)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];

    g->owner = ++w.requests;
    g->flags = CLIENT;
    send_command(g, phase);
    emit(x, CHANCE, &w, "%s: a client sends it, the gateway %s",
         gateway_name(g), phase == CLAIM ? "claims" : "has it accepted");
}

static void take_delivery(struct explore *x, int i, uint8_t token)
{
    struct world w = *x->from;
    struct gateway *g = &w.gateways[i];

    w.http &= (uint8_t)~bit(token);
    g->token = token;
    send_command(g, CHECK);
    if (x->plant == PLANT_UNCHECKED && add_late(x, &w, command_of(g))) {
        g->phase = HELD;
        g->net = QUIET;
    }
    emit(x, FAIR, &w, "%s: reaches a gateway", gateway_name(g));
}

void gateway_begins(struct explore *x, int i)
{
    if (x->from->requests < x->scenario->requests && x->scenario->claims) {
        take_request(x, i, CLAIM);
    }
    if (x->from->requests < x->scenario->requests && x->scenario->accepts) {
        take_request(x, i, ACCEPT);
    }
    for (uint8_t token = 1; token <= TOKENS_MAX; token++) {
        if (x->from->http & bit(token)) {
            take_delivery(x, i, token);
        }
    }
}
