/*
 * properties.c - what must hold in every world, or on every step.
 *
 * Safety is checked on the step that would break it, so that a trace ends where
 * it goes wrong:
 *
 *   ONE_RUN           the app takes effect once, and once more for each claim
 *                     that was let go with a license (an operator's word, a
 *                     route that may run again, a TTL or an eviction) although
 *                     it had happened or could still happen
 *   TRUE_REPLAY       whatever answer a client gets is that of a run that took
 *                     effect, and all clients get the same one while the
 *                     operation is remembered; the first completion stands
 *   STALE_IS_NOTHING  a command that shows another token than the current one
 *                     changes nothing
 *   PROVEN_RELEASE    without a license, a claim is let go (released, put back,
 *                     forgotten, given to another one) only if the app has not
 *                     run under its token and cannot run any more
 *   TRUE_NEVER_RAN    "it was never run" is said of what never ran
 *
 * Liveness is checked on the whole graph, by backward reachability (search.c):
 * the worlds that are bad are taken together, and each of them must have a path
 * of fair steps out of them. Fair are the steps that will be taken if they can:
 * the daemon decides what it has, replies arrive, the sweeper and couriers come
 * by, locks lapse, gateways go on, the app answers. Not fair are losses,
 * crashes, clients that try again and people. Because a fair step that can be
 * taken again and again is taken in the end, a path is enough. This finds more
 * than a look at worlds in which nothing moves: it finds circles, too.
 *
 *   NOT_UNCERTAIN_FOR_GOOD  an operation for which the app was never called
 * does not stay uncertain, with these excuses: the gateway that knew it has
 * died, after the store had been told that the app might be called; a claim
 * came so late that an operator or the end of a TTL had made the name free; the
 * courier has given up, and an attempt that the gateway never let through had
 * been taken for sent before the gateway could say so (the job's `sent` is not
 * taken back) NOT_STUCK               what is accepted or in progress comes to
 * an end
 */
#include "tests/model/world.h"

#include <string.h>

void violate(struct explore *x, enum property property, const char *why)
{
    if (!x->broken) {
        x->broken = property;
        x->why = why;
    }
}

const char *property_text(enum property property)
{
    static const char *const texts[] = {
        [HOLDS] = "every property holds",
        [ONE_RUN] = "at most one run, unless something licensed another",
        [TRUE_REPLAY] = "a replay is the answer of the run that completed",
        [STALE_IS_NOTHING] = "a stale holder changes nothing",
        [PROVEN_RELEASE] = "nothing is let go without proof",
        [TRUE_NEVER_RAN] = "what is said to have never run has never run",
        [NOT_UNCERTAIN_FOR_GOOD] = "what was never called does not stay "
                                   "uncertain",
        [NOT_STUCK] = "what is accepted or in progress comes to an end",
    };

    return texts[property];
}

/* ---- what could have happened -------------------------------------------- */

/* Also with the permission to call on its way. */
bool may_call(const struct gateway *g, uint8_t token)
{
    if (g->net == REPLIED && g->phase == CLAIM) {
        return g->verdict == LK_VERDICT_NEW && g->value == token;
    }
    if (g->net == REPLIED && g->phase == CHECK) {
        return g->verdict == LK_VERDICT_DONE && g->token == token;
    }
    return g->phase == HELD && g->token == token;
}

/* Of an app that completes in its transaction, what is overtaken cannot. */
bool may_have_happened(const struct explore *x, const struct world *w,
                       uint8_t token)
{
    bool could = w->pending & bit(token);

    for (int i = 0; i < GATEWAYS; i++) {
        could = could || may_call(&w->gateways[i], token);
    }
    return (w->effects & bit(token)) || (could && !x->scenario->app_by_sql);
}

static bool any_happened(const struct explore *x, const struct world *w)
{
    for (uint8_t token = w->base; token < w->next_token; token++) {
        if (may_have_happened(x, w, token)) {
            return true;
        }
    }
    return false;
}

/* ---- safety -------------------------------------------------------------- */

static bool shows_token(struct word word)
{
    switch (word.event) {
    case LK_EVENT_COMPLETE:
    case LK_EVENT_RELEASE:
    case LK_EVENT_DOUBT:
    case LK_EVENT_EXTEND:
    case LK_EVENT_RETURN:
        return true;
    default:
        return word.proof;
    }
}

/* Is the claim that `before` has no longer the one of `after`? */
static bool lets_go(const struct record *before, const struct record *after)
{
    bool open = before->state == LK_STATE_IN_PROGRESS ||
                before->state == LK_STATE_UNCERTAIN;

    return open &&
           (after->token != before->token || after->state == LK_STATE_ABSENT ||
            after->state == LK_STATE_RELEASED ||
            after->state == LK_STATE_ACCEPTED);
}

/* The name is free again, for whatever comes. */
static bool begins_again(const struct record *before,
                         const struct record *after)
{
    return before->state == LK_STATE_COMPLETED &&
           after->state != LK_STATE_COMPLETED;
}

static void renew(struct explore *x, struct world *after,
                  const struct world *before)
{
    if (may_have_happened(x, before, before->record.token)) {
        after->allowance++;
    }
    after->base = before->next_token;
    after->told = ANSWER_NONE;
}

void check_step(struct explore *x, const struct world *before,
                struct world *after, struct word word)
{
    const struct record *was = &before->record;
    const struct record *is = &after->record;
    bool changed = memcmp(was, is, sizeof(*was)) != 0 ||
                   memcmp(&before->job, &after->job, sizeof(after->job)) != 0;

    if (changed && shows_token(word) && word.token != was->token) {
        violate(x, STALE_IS_NOTHING, "an old token has changed the record");
    }
    if (was->state == LK_STATE_COMPLETED && is->state == LK_STATE_COMPLETED &&
        was->answer != is->answer) {
        violate(x, TRUE_REPLAY, "the first completion does not stand");
    }
    if (lets_go(was, is) && may_have_happened(x, before, was->token)) {
        if (word.licensed) {
            after->allowance++;
        } else {
            violate(x, PROVEN_RELEASE,
                    "the claim is let go, and its run may have happened or "
                    "may happen yet");
        }
    }
    if (begins_again(was, is)) {
        renew(x, after, before);
    }
    if (is->answer & ANSWER_NEVER_RAN && was->answer != is->answer &&
        any_happened(x, before)) {
        violate(x, TRUE_NEVER_RAN, "it has run, or may run yet");
    }
    if (is->token != was->token) {
        after->touched &= lets_go(was, is) || was->state == LK_STATE_ACCEPTED;
        after->excused = false;
    }
}

void take_effect(struct explore *x, struct world *w, uint8_t token)
{
    w->pending &= (uint8_t)~bit(token);
    w->effects |= bit(token);
    if (--w->allowance < 0) {
        violate(x, ONE_RUN, "the app has run once more than it may");
    }
}

void tell_client(struct explore *x, struct world *w, uint8_t answer)
{
    bool run = !(answer & (ANSWER_NEVER_RAN | ANSWER_RESOLVED));

    if ((answer & TOKENS_MAX) < w->base) {
        return; /* of a time that is over: its client asked then */
    }
    if (run && !(w->effects & bit(answer))) {
        violate(x, TRUE_REPLAY, "this answer comes from no run");
    }
    if (w->told && w->told != answer) {
        violate(x, TRUE_REPLAY, "another client has got another answer");
    }
    w->told = answer;
}

/* ---- liveness ------------------------------------------------------------ */

/* Where claims may run again, any retry runs it: no person is needed. */
bool is_uncertain_for_nothing(const struct explore *x, const struct world *w)
{
    bool retry_runs = x->scenario->claims && x->scenario->reexecute;

    return w->record.state == LK_STATE_UNCERTAIN && !retry_runs &&
           !w->touched && !w->excused && !any_happened(x, w);
}

bool is_unsettled(const struct explore *x, const struct world *w)
{
    return w->record.state == LK_STATE_ACCEPTED ||
           w->record.state == LK_STATE_IN_PROGRESS;
}
