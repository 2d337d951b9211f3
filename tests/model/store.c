/*
 * store.c - what the store does: lk_machine_step() decides, and the request of
 * an accepted operation follows it, as store/jobs.h says.
 *
 * A planted bug changes what goes into the machine or what comes out of it. The
 * machine itself is always the one of lib/machine.c.
 */
#include "tests/model/world.h"

static bool is_queued(const struct world *w)
{
    return w->job.state != JOB_NONE;
}

static struct lk_standing standing_of(const struct explore *x,
                                      const struct world *w, struct word word)
{
    const struct record *record = &w->record;
    bool takes_over =
        word.event == LK_EVENT_CLAIM || word.event == LK_EVENT_LEASE;

    return (struct lk_standing){
        .state = (enum lk_state)record->state,
        .expired = record->expired,
        .lapsed = record->lapsed,
        .doubted = record->doubted,
        .queued = is_queued(w),
        .same_fingerprint = true,
        .same_owner = word.owner && word.owner == record->owner,
        .token_current = word.token == record->token,
        .reexecute = takes_over && (word.licensed || word.lost),
        .no_new = word.no_new,
        .proof = word.proof,
        .running = word.running,
    };
}

/* ---- planted bugs of the machine ----------------------------------------- */

static void plant_input(const struct explore *x, struct word word,
                        struct lk_standing *standing)
{
    switch (x->plant) {
    case PLANT_TOKEN:
        standing->token_current = true;
        break;
    case PLANT_LATE_COMPLETE:
        standing->token_current |= word.event == LK_EVENT_COMPLETE;
        break;
    case PLANT_RETURN:
        standing->token_current |= word.event == LK_EVENT_RETURN;
        break;
    case PLANT_PROOF:
        standing->token_current |= word.proof;
        break;
    case PLANT_RUNNING:
        standing->running = true;
        break;
    case PLANT_LAPSED:
        standing->reexecute |= standing->lapsed;
        break;
    case PLANT_OWNER:
        if (standing->same_owner && !word.no_new) {
            standing->state = LK_STATE_RELEASED;
        }
        break;
    case PLANT_SWEEP_QUEUED:
        standing->queued &= word.event != LK_EVENT_SWEEP;
        break;
    default:
        break;
    }
}

static void plant_output(const struct explore *x, struct word word,
                         const struct record *record, struct lk_step *step)
{
    bool completed =
        record->state == LK_STATE_COMPLETED && record->token == word.token;

    if (x->plant == PLANT_EXTEND && step->effect == LK_EFFECT_LOCK) {
        step->effect = LK_EFFECT_NONE;
    }
    if (x->plant == PLANT_SWEEPER && word.event == LK_EVENT_SWEEP &&
        step->effect == LK_EFFECT_DOUBT) {
        *step = (struct lk_step){LK_VERDICT_DONE, LK_STATE_RELEASED,
                                 LK_EFFECT_FREE};
    }
    if (x->plant == PLANT_OVERWRITE && word.event == LK_EVENT_COMPLETE &&
        completed) {
        *step = (struct lk_step){LK_VERDICT_DONE, LK_STATE_COMPLETED,
                                 LK_EFFECT_FINISH};
    }
    if (x->plant == PLANT_REAPER && word.event == LK_EVENT_REAP &&
        record->state == LK_STATE_UNCERTAIN) {
        *step = (struct lk_step){LK_VERDICT_DONE, LK_STATE_ABSENT,
                                 LK_EFFECT_FORGET};
    }
}

/* ---- what is written ----------------------------------------------------- */

/* The next token. Beyond the bound the step is left out of the graph. */
static uint8_t make_token(struct explore *x, struct world *w)
{
    if (w->next_token > x->scenario->tokens) {
        x->blocked = true;
        return w->record.token;
    }
    return w->next_token++;
}

/* The holder says so. One that may run again stays leased: the next lease
 * finds it. */
static void doubt_request(const struct explore *x, struct world *w)
{
    if (w->job.state == JOB_LEASED && !x->scenario->reexecute) {
        w->job.state = JOB_UNCERTAIN;
        w->job.sent = true;
    }
}

/* A gateway's EXTEND comes before the app hears of the request. */
static void reach_request(struct world *w, struct word word)
{
    if (w->job.state == JOB_UNCERTAIN ||
        (w->job.state == JOB_LEASED && !word.by_courier)) {
        w->job.state = JOB_LEASED;
        w->job.called = true;
    }
}

/* The lease is remembered: its courier may yet say that it gives up. */
static void put_request_back(struct world *w, struct word word)
{
    w->job.state = JOB_WAITING;
    w->job.sent |= w->job.called && !word.unsent && !word.by_courier;
    w->job.called = false;
}

static void finish_request(struct world *w)
{
    w->job = (struct job){0};
}

static void write_effect(struct explore *x, struct world *w, struct word word,
                         struct lk_step step)
{
    struct record *record = &w->record;
    bool changes = step.effect != LK_EFFECT_NONE;

    switch (step.effect) {
    case LK_EFFECT_BEGIN:
        finish_request(w);
        *record =
            (struct record){.token = make_token(x, w), .owner = word.owner};
        break;
    case LK_EFFECT_ACCEPT:
        *record = (struct record){.token = make_token(x, w)};
        w->job = (struct job){.state = JOB_WAITING};
        break;
    case LK_EFFECT_LEASE:
        record->token = make_token(x, w);
        w->job.lease = record->token;
        w->job.state = JOB_LEASED;
        w->job.called = false;
        break;
    case LK_EFFECT_FINISH:
        record->answer = word.answer;
        finish_request(w);
        break;
    case LK_EFFECT_FREE:
        record->answer = ANSWER_NONE;
        finish_request(w);
        break;
    case LK_EFFECT_DOUBT:
        doubt_request(x, w);
        break;
    case LK_EFFECT_LOCK:
        reach_request(w, word);
        break;
    case LK_EFFECT_RETURN:
        put_request_back(w, word);
        break;
    case LK_EFFECT_FORGET:
        finish_request(w);
        *record = (struct record){0};
        break;
    case LK_EFFECT_NONE:
    case LK_EFFECT_KEEP:
    case LK_EFFECT_ENQUEUE:
        break;
    }
    if (changes) {
        record->state = (uint8_t)step.next;
        record->lapsed = false;
        record->expired = false;
        record->doubted = word.event == LK_EVENT_DOUBT;
    }
}

static uint8_t value_of(const struct world *w, enum lk_verdict verdict)
{
    switch (verdict) {
    case LK_VERDICT_NEW:
        return w->record.token;
    case LK_VERDICT_REPLAY:
    case LK_VERDICT_KEPT:
        return w->record.answer;
    default:
        return 0;
    }
}

struct reply decide(struct explore *x, struct world *w, struct word word)
{
    const struct world before = *w;
    struct lk_standing standing = standing_of(x, w, word);

    plant_input(x, word, &standing);
    struct lk_step step = lk_machine_step(word.event, standing);
    plant_output(x, word, &w->record, &step);
    write_effect(x, w, word, step);
    check_step(x, &before, w, word);
    return (struct reply){step.verdict, value_of(w, step.verdict)};
}

/* ---- leases -------------------------------------------------------------- */

bool lease_due(const struct explore *x, const struct world *w)
{
    return w->job.state == JOB_WAITING ||
           (x->plant == PLANT_LEASE_TWICE && w->job.state == JOB_LEASED);
}

/* Its lock has lapsed, or its holder has doubted it and it may run again. */
bool lease_lost(const struct explore *x, const struct world *w)
{
    bool doubted = w->record.state == LK_STATE_UNCERTAIN;

    return w->job.state == JOB_LEASED &&
           (w->record.lapsed || (doubted && x->scenario->reexecute));
}

uint8_t take_lease(struct explore *x, struct world *w)
{
    if (w->job.state == JOB_LEASED) {
        return w->job.lease; /* planted */
    }
    struct reply reply = decide(
        x, w, (struct word){.event = LK_EVENT_LEASE, .token = w->record.token});

    return reply.verdict == LK_VERDICT_NEW ? reply.value : 0;
}

static void doubt_lease(struct explore *x, struct world *w)
{
    decide(x, w,
           (struct word){.event = LK_EVENT_DOUBT, .token = w->record.token});
    w->job.state = JOB_UNCERTAIN;
    w->job.sent = true;
}

/* Never called, or may be called again: leased again. Else uncertain. */
uint8_t settle_lost(struct explore *x, struct world *w)
{
    bool again = !w->job.called || x->scenario->reexecute ||
                 x->plant == PLANT_LOST_AGAIN;

    if (!again) {
        doubt_lease(x, w);
        return 0;
    }
    w->job.sent |= w->job.called;
    struct reply reply = decide(
        x, w,
        (struct word){.event = LK_EVENT_LEASE,
                      .token = w->record.token,
                      .lost = true,
                      .licensed = w->job.called && x->scenario->reexecute});
    return reply.verdict == LK_VERDICT_NEW ? reply.value : 0;
}

static bool holds_lease(const struct explore *x, const struct world *w,
                        struct courier courier)
{
    return w->job.state == JOB_LEASED &&
           (w->job.lease == courier.lease || x->plant == PLANT_END);
}

/* The gateway has put it back already, and it has not been leased since. */
static bool is_put_back(const struct world *w, struct courier courier)
{
    return w->job.state == JOB_WAITING && w->job.lease == courier.lease;
}

static void put_back(struct explore *x, struct world *w, bool licensed)
{
    decide(x, w,
           (struct word){.event = LK_EVENT_RETURN,
                         .token = w->record.token,
                         .by_courier = true,
                         .licensed = licensed});
}

/* Out of attempts: what was sent is uncertain, what was not is over. What was
 * put back is taken once more for that. */
static void give_up(struct explore *x, struct world *w)
{
    if (w->job.state == JOB_WAITING) {
        take_lease(x, w);
    }
    if (w->job.sent && x->plant != PLANT_DEAD) {
        doubt_lease(x, w);
        w->excused = true; /* the last excuse in properties.c */
        return;
    }
    decide(x, w,
           (struct word){.event = LK_EVENT_COMPLETE,
                         .token = w->record.token,
                         .answer = w->record.token | ANSWER_NEVER_RAN});
}

/* Ends with what is not known: again if the store knows that it was never
 * called, or if it may run again; else uncertain. */
static void end_unknown(struct explore *x, struct world *w, bool gives_up)
{
    bool called = w->job.called || x->plant == PLANT_UNCALLED;

    w->job.sent |= called;
    if (called && !x->scenario->reexecute) {
        doubt_lease(x, w);
    } else if (gives_up) {
        give_up(x, w);
    } else {
        put_back(x, w, called);
    }
}

/* False: the lease is another one's by now, and nothing was done. */
bool end_lease(struct explore *x, struct world *w, struct courier courier,
               bool gives_up)
{
    bool holds = holds_lease(x, w, courier);
    bool unknown = courier.phase == COURIER_UNKNOWN;

    if (!holds &&
        !(is_put_back(w, courier) && courier.phase != COURIER_COMPLETED &&
          (!unknown || x->scenario->reexecute))) {
        return false;
    }
    w->job.sent |= courier.phase == COURIER_RELEASED;
    if (courier.phase == COURIER_COMPLETED) {
        doubt_lease(x, w);
    } else if (unknown) {
        end_unknown(x, w, gives_up);
    } else if (gives_up) {
        give_up(x, w);
    } else {
        put_back(x, w, false);
    }
    return true;
}

bool renew_lease(struct explore *x, struct world *w, struct courier courier)
{
    if (!holds_lease(x, w, courier)) {
        return false;
    }
    decide(x, w,
           (struct word){.event = LK_EVENT_EXTEND,
                         .token = w->record.token,
                         .by_courier = true});
    return true;
}
