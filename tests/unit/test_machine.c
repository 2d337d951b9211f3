/* test_machine.c - the state machine against its table, over every input. */
#include "lib/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A record as the table sees it: the state, and what its clock says. */
enum {
    ABSENT = 1 << 0,
    ACCEPTED = 1 << 1,
    RUNNING = 1 << 2, /* in progress, lock valid */
    LAPSED = 1 << 3,  /* in progress, lock lapsed */
    UNCERTAIN = 1 << 4,
    COMPLETED = 1 << 5,
    RELEASED = 1 << 6,
    PAST_COMPLETED = 1 << 7, /* TTL over */
    PAST_RELEASED = 1 << 8,
    FREE = ABSENT | RELEASED | PAST_COMPLETED | PAST_RELEASED,
    OPEN = RUNNING | LAPSED | UNCERTAIN,
    PAST = PAST_COMPLETED | PAST_RELEASED,
    ANY = (1 << 9) - 1,
};

/* What the event brings. */
enum {
    FP = 1 << 0,    /* the same fingerprint */
    OWNER = 1 << 1, /* the same owner */
    TOKEN = 1 << 2, /* the current token */
    REEX = 1 << 3,
    NONEW = 1 << 4,
    OMIT = 1 << 5,
    QUEUED = 1 << 6, /* its request is an unfinished job */
    PROOF = 1 << 7,
    ANYWAY = 1 << 8,  /* a resolution, also while it runs */
    DOUBTED = 1 << 9, /* by its holder */
};

#define EV(name) (1u << LK_EVENT_##name)
#define TOKENED                                                                \
    (EV(COMPLETE) | EV(RELEASE) | EV(DOUBT) | EV(EXTEND) | EV(ENQUEUE))
#define RESOLVE    (EV(RESOLVE_COMPLETED) | EV(RESOLVE_RELEASED))
#define SAME       (-1) /* the record is unchanged; past its TTL it is absent */
#define TO(name)   LK_STATE_##name
#define SAY(name)  LK_VERDICT_##name
#define DOES(name) LK_EFFECT_##name

struct rule {
    unsigned records;
    unsigned events;
    unsigned with;    /* all of these */
    unsigned without; /* none of these */
    int next;
    enum lk_verdict verdict;
    enum lk_effect effect;
};

/* Section 3 of the design, row by row; the first match counts. */
static const struct rule rules[] = {
    /* absent, released, or past its TTL: claim */
    {FREE, EV(CLAIM) | EV(ACCEPT), NONEW, 0, SAME, SAY(REFUSED), DOES(NONE)},
    {FREE, EV(CLAIM), 0, 0, TO(IN_PROGRESS), SAY(NEW), DOES(BEGIN)},
    /* absent: accept */
    {FREE, EV(ACCEPT), 0, 0, TO(ACCEPTED), SAY(ACCEPTED), DOES(ACCEPT)},
    /* any other, another fingerprint, before everything below */
    {ANY, EV(CLAIM) | EV(ACCEPT), 0, FP, SAME, SAY(MISMATCH), DOES(NONE)},
    /* in progress, by the courier */
    {RUNNING | LAPSED, EV(CLAIM) | EV(ACCEPT), QUEUED, 0, SAME, SAY(ACCEPTED),
     DOES(NONE)},
    {LAPSED, EV(SWEEP), QUEUED, 0, SAME, SAY(NIL), DOES(NONE)},
    /* in progress */
    {LAPSED, EV(CLAIM), OWNER, NONEW, SAME, SAY(NEW), DOES(LOCK)},
    {RUNNING | LAPSED, EV(CLAIM), OWNER, 0, SAME, SAY(NEW), DOES(NONE)},
    {RUNNING, EV(CLAIM) | EV(ACCEPT), 0, 0, SAME, SAY(INFLIGHT), DOES(NONE)},
    {LAPSED, EV(CLAIM), REEX | NONEW, 0, SAME, SAY(REFUSED), DOES(NONE)},
    {LAPSED, EV(CLAIM), REEX, 0, TO(IN_PROGRESS), SAY(NEW), DOES(BEGIN)},
    {LAPSED, EV(CLAIM) | EV(ACCEPT), 0, 0, TO(UNCERTAIN), SAY(UNCERTAIN),
     DOES(DOUBT)},
    {LAPSED, EV(SWEEP), 0, 0, TO(UNCERTAIN), SAY(DONE), DOES(DOUBT)},
    /* uncertain */
    {UNCERTAIN, EV(CLAIM), OWNER | NONEW, 0, SAME, SAY(NEW), DOES(NONE)},
    {UNCERTAIN, EV(CLAIM), OWNER, DOUBTED | QUEUED, TO(IN_PROGRESS), SAY(NEW),
     DOES(LOCK)},
    {UNCERTAIN, EV(CLAIM), REEX | NONEW, 0, SAME, SAY(REFUSED), DOES(NONE)},
    {UNCERTAIN, EV(CLAIM), REEX, 0, TO(IN_PROGRESS), SAY(NEW), DOES(BEGIN)},
    {UNCERTAIN, EV(CLAIM) | EV(ACCEPT), 0, 0, SAME, SAY(UNCERTAIN), DOES(NONE)},
    /* completed */
    {COMPLETED, EV(CLAIM) | EV(ACCEPT), OMIT, 0, SAME, SAY(OMITTED),
     DOES(NONE)},
    {COMPLETED, EV(CLAIM) | EV(ACCEPT), 0, 0, SAME, SAY(REPLAY), DOES(NONE)},
    /* accepted */
    {ACCEPTED, EV(CLAIM) | EV(ACCEPT), 0, 0, SAME, SAY(ACCEPTED), DOES(NONE)},
    {ACCEPTED, EV(LEASE), 0, 0, TO(IN_PROGRESS), SAY(NEW), DOES(LEASE)},
    /* lost by the courier, and may be called again */
    {LAPSED | UNCERTAIN, EV(LEASE), QUEUED | REEX, 0, TO(IN_PROGRESS), SAY(NEW),
     DOES(LEASE)},
    {OPEN, EV(RETURN), QUEUED | TOKEN, 0, TO(ACCEPTED), SAY(DONE),
     DOES(RETURN)},
    {COMPLETED, EV(RETURN), TOKEN, 0, SAME, SAY(KEPT), DOES(NONE)},
    {ACCEPTED, EV(RETURN), QUEUED | TOKEN, 0, SAME, SAY(DONE), DOES(NONE)},
    /* in progress or uncertain, token current */
    {OPEN, EV(COMPLETE), TOKEN, 0, TO(COMPLETED), SAY(DONE), DOES(FINISH)},
    {OPEN, EV(RELEASE), TOKEN, 0, TO(RELEASED), SAY(DONE), DOES(FREE)},
    {UNCERTAIN, EV(DOUBT), TOKEN, 0, SAME, SAY(DONE), DOES(NONE)},
    {OPEN, EV(DOUBT), TOKEN, 0, TO(UNCERTAIN), SAY(DONE), DOES(DOUBT)},
    {UNCERTAIN, EV(EXTEND), TOKEN | DOUBTED, QUEUED, SAME, SAY(STALE),
     DOES(NONE)},
    {OPEN, EV(EXTEND), TOKEN, 0, TO(IN_PROGRESS), SAY(DONE), DOES(LOCK)},
    {OPEN, EV(ENQUEUE), TOKEN, 0, SAME, SAY(DONE), DOES(ENQUEUE)},
    /* completed, token current: the first completion stands */
    {COMPLETED, TOKENED, TOKEN, 0, SAME, SAY(KEPT), DOES(NONE)},
    /* any, token not current; absent */
    {ANY, TOKENED | EV(RETURN), 0, 0, SAME, SAY(STALE), DOES(NONE)},
    /* operators, and proof: of the uncertain claim of its token alone */
    {ANY, RESOLVE, PROOF, TOKEN, SAME, SAY(STALE), DOES(NONE)},
    {ANY & ~UNCERTAIN, RESOLVE, PROOF, 0, SAME, SAY(STALE), DOES(NONE)},
    {RUNNING, RESOLVE, 0, ANYWAY, SAME, SAY(INFLIGHT), DOES(NONE)},
    {ACCEPTED | OPEN, EV(RESOLVE_COMPLETED), 0, 0, TO(COMPLETED), SAY(DONE),
     DOES(FINISH)},
    {ACCEPTED | OPEN, EV(RESOLVE_RELEASED), 0, 0, TO(RELEASED), SAY(DONE),
     DOES(FREE)},
    {COMPLETED, RESOLVE, 0, 0, SAME, SAY(KEPT), DOES(NONE)},
    {COMPLETED, EV(EVICT), 0, 0, TO(RELEASED), SAY(DONE), DOES(FREE)},
    {ACCEPTED | OPEN | COMPLETED, EV(KEEP), 0, 0, SAME, SAY(DONE), DOES(KEEP)},
    /* past its TTL: the reaper */
    {PAST, EV(REAP), 0, 0, TO(ABSENT), SAY(DONE), DOES(FORGET)},
    /* The reaper alone sees a record that is past its TTL as what it was. */
    {ANY, EV(REAP), 0, 0, SAME, SAY(NIL), DOES(NONE)},
    {ANY, EV(KEEP) | EV(EVICT) | EV(SWEEP) | EV(LEASE) | RESOLVE, 0, 0, SAME,
     SAY(NIL), DOES(NONE)},
};

enum { RULES = sizeof(rules) / sizeof(*rules) };
enum {
    STATES = LK_STATE_RELEASED + 1,
    EVENTS = LK_EVENT_RETURN + 1,
    FLAGS = 1 << 12,
};

static const char *const event_words[] = {
#define X(name, word) word,
    LK_EVENT_MAP(X)
#undef X
};

static struct lk_standing standing(enum lk_state state, unsigned bits)
{
    return (struct lk_standing){
        .state = state,
        .expired = bits & 1,
        .lapsed = bits & 2,
        .omitted = bits & 4,
        .same_fingerprint = bits & 8,
        .same_owner = bits & 16,
        .token_current = bits & 32,
        .reexecute = bits & 64,
        .no_new = bits & 128,
        .queued = bits & 256,
        .proof = bits & 512,
        .running = bits & 1024,
        .doubted = bits & 2048,
    };
}

static unsigned record_kind(struct lk_standing record)
{
    switch (record.state) {
    case LK_STATE_ABSENT:
        return ABSENT;
    case LK_STATE_ACCEPTED:
        return ACCEPTED;
    case LK_STATE_IN_PROGRESS:
        return record.lapsed ? LAPSED : RUNNING;
    case LK_STATE_UNCERTAIN:
        return UNCERTAIN;
    case LK_STATE_COMPLETED:
        return record.expired ? PAST_COMPLETED : COMPLETED;
    case LK_STATE_RELEASED:
        return record.expired ? PAST_RELEASED : RELEASED;
    }
    return 0;
}

static unsigned brought(struct lk_standing record)
{
    return (record.same_fingerprint ? FP : 0) |
           (record.same_owner ? OWNER : 0) |
           (record.token_current ? TOKEN : 0) | (record.reexecute ? REEX : 0) |
           (record.no_new ? NONEW : 0) | (record.omitted ? OMIT : 0) |
           (record.queued ? QUEUED : 0) | (record.proof ? PROOF : 0) |
           (record.running ? ANYWAY : 0) | (record.doubted ? DOUBTED : 0);
}

static bool rule_matches(const struct rule *rule, enum lk_event event,
                         struct lk_standing record)
{
    unsigned flags = brought(record);

    return rule->records & record_kind(record) &&
           rule->events & (1u << event) && (flags & rule->with) == rule->with &&
           !(flags & rule->without);
}

/* The state that a record counts as; past its TTL it counts as absent. */
static enum lk_state counts_as(struct lk_standing record)
{
    return record_kind(record) & PAST ? LK_STATE_ABSENT : record.state;
}

static const struct rule *find_rule(enum lk_event event,
                                    struct lk_standing record)
{
    for (size_t i = 0; i < RULES; i++) {
        if (rule_matches(&rules[i], event, record)) {
            return &rules[i];
        }
    }
    return NULL;
}

typedef void (*visit_fn)(enum lk_event event, struct lk_standing record,
                         struct lk_step step);

static void visit_all(visit_fn visit)
{
    for (unsigned event = 0; event < EVENTS; event++) {
        for (unsigned state = 0; state < STATES; state++) {
            for (unsigned bits = 0; bits < FLAGS; bits++) {
                struct lk_standing record = standing(state, bits);
                visit(event, record, lk_machine_step(event, record));
            }
        }
    }
}

static void name_case(enum lk_event event, struct lk_standing record)
{
    print_error(
        "%s on %s%s%s%s%s%s, with%s%s%s%s%s%s%s\n", event_words[event],
        lk_state_word(record.state), record.expired ? " expired" : "",
        record.lapsed ? " lapsed" : "", record.omitted ? " omitted" : "",
        record.queued ? " queued" : "", record.doubted ? " doubted" : "",
        record.same_fingerprint ? " fingerprint" : "",
        record.same_owner ? " owner" : "", record.token_current ? " token" : "",
        record.reexecute ? " reexecute" : "", record.no_new ? " no_new" : "",
        record.proof ? " proof" : "", record.running ? " running" : "");
}

static unsigned used[RULES];

static void compare_with_table(enum lk_event event, struct lk_standing record,
                               struct lk_step step)
{
    const struct rule *rule = find_rule(event, record);
    enum lk_state next;

    if (!rule) {
        name_case(event, record);
        fail_msg("no rule covers this");
    }
    used[rule - rules]++;
    next = rule->next != SAME       ? (enum lk_state)rule->next
           : event == LK_EVENT_REAP ? record.state
                                    : counts_as(record);
    if (step.verdict != rule->verdict || step.next != next ||
        step.effect != rule->effect) {
        name_case(event, record);
        fail_msg("row %zu: expected %s, %s, effect %d; got %s, %s, effect %d",
                 (size_t)(rule - rules), latchkey_verdict_word(rule->verdict),
                 lk_state_word(next), rule->effect,
                 latchkey_verdict_word(step.verdict), lk_state_word(step.next),
                 step.effect);
    }
}

static void every_combination_follows_the_table(void **state)
{
    unsigned total = 0;

    memset(used, 0, sizeof(used));
    visit_all(compare_with_table);
    for (size_t i = 0; i < RULES; i++) {
        if (!used[i]) {
            fail_msg("row %zu of the table is never reached", i);
        }
        total += used[i];
    }
    assert_int_equal(total, EVENTS * STATES * FLAGS);
}

static void check_new(enum lk_event event, struct lk_standing record,
                      struct lk_step step)
{
    if (step.verdict == LK_VERDICT_NEW &&
        (step.effect == LK_EFFECT_NONE || step.effect == LK_EFFECT_LOCK) &&
        !(record.same_owner && record.same_fingerprint &&
          (record.state == LK_STATE_IN_PROGRESS ||
           (record.state == LK_STATE_UNCERTAIN &&
            (record.no_new || !record.doubted))))) {
        name_case(event, record);
        fail_msg("a claim is handed out twice");
    }
    if (step.verdict != LK_VERDICT_NEW &&
        (step.effect == LK_EFFECT_BEGIN || step.effect == LK_EFFECT_LEASE)) {
        name_case(event, record);
        fail_msg("a token is made and nobody gets it");
    }
}

static void new_without_a_new_token_is_for_the_same_owner_only(void **state)
{
    visit_all(check_new);
}

static void check_refusal(enum lk_event event, struct lk_standing record,
                          struct lk_step step)
{
    bool refusal =
        step.verdict == LK_VERDICT_MISMATCH ||
        step.verdict == LK_VERDICT_REFUSED ||
        step.verdict == LK_VERDICT_STALE || step.verdict == LK_VERDICT_KEPT ||
        step.verdict == LK_VERDICT_NIL || step.verdict == LK_VERDICT_REPLAY ||
        step.verdict == LK_VERDICT_OMITTED ||
        step.verdict == LK_VERDICT_INFLIGHT;

    if (refusal && step.effect != LK_EFFECT_NONE) {
        name_case(event, record);
        fail_msg("%s changes the record", latchkey_verdict_word(step.verdict));
    }
}

/* C03, C22: the first is not disturbed; an old token changes nothing. */
static void a_refusal_changes_nothing(void **state)
{
    visit_all(check_refusal);
}

/* `next == state` also for a lapsed claim that is run again: a new token. */
static void check_effect(enum lk_event event, struct lk_standing record,
                         struct lk_step step)
{
    enum lk_state before =
        event == LK_EVENT_REAP ? record.state : counts_as(record);
    bool moved = step.next != before;
    bool touches =
        step.effect == LK_EFFECT_LOCK || step.effect == LK_EFFECT_KEEP ||
        step.effect == LK_EFFECT_ENQUEUE ||
        ((step.effect == LK_EFFECT_BEGIN || step.effect == LK_EFFECT_LEASE) &&
         record.lapsed && record.reexecute && before == LK_STATE_IN_PROGRESS);

    if (step.effect == LK_EFFECT_NONE ? moved : !moved && !touches) {
        name_case(event, record);
        fail_msg("next %s and effect %d do not agree", lk_state_word(step.next),
                 step.effect);
    }
}

static void a_record_moves_exactly_when_there_is_something_to_write(
    void **state)
{
    visit_all(check_effect);
}

static void check_uncertain(enum lk_event event, struct lk_standing record,
                            struct lk_step step)
{
    const unsigned by_holder = EV(COMPLETE) | EV(RELEASE) | EV(EXTEND);
    unsigned bit = 1u << event;
    bool by_courier =
        record.queued && ((event == LK_EVENT_RETURN && record.token_current) ||
                          (event == LK_EVENT_LEASE && record.reexecute));

    if (record.state != LK_STATE_UNCERTAIN || step.next == LK_STATE_UNCERTAIN) {
        return;
    }
    if (bit & RESOLVE || by_courier ||
        (bit & by_holder && record.token_current) ||
        (event == LK_EVENT_CLAIM && !record.no_new && record.same_fingerprint &&
         (record.reexecute || (record.same_owner && !record.doubted)))) {
        return;
    }
    name_case(event, record);
    fail_msg("an uncertain record became %s", lk_state_word(step.next));
}

static void only_proof_a_person_or_its_holder_ends_a_doubt(void **state)
{
    visit_all(check_uncertain);
}

static void check_open(enum lk_event event, struct lk_standing record,
                       struct lk_step step)
{
    bool open = record.state == LK_STATE_IN_PROGRESS ||
                record.state == LK_STATE_UNCERTAIN;

    if (event == LK_EVENT_CLAIM && open && !record.reexecute &&
        step.verdict == LK_VERDICT_NEW && step.effect != LK_EFFECT_NONE &&
        step.effect != LK_EFFECT_LOCK) {
        name_case(event, record);
        fail_msg("an unfinished operation is started a second time");
    }
    if (open &&
        (step.effect == LK_EFFECT_FORGET || step.next == LK_STATE_ABSENT)) {
        name_case(event, record);
        fail_msg("an unfinished operation is forgotten");
    }
}

static void what_is_unfinished_is_neither_run_again_nor_forgotten(void **state)
{
    visit_all(check_open);
}

static void check_queued(enum lk_event event, struct lk_standing record,
                         struct lk_step step)
{
    bool claims = event == LK_EVENT_CLAIM || event == LK_EVENT_ACCEPT;

    if (record.queued && record.state == LK_STATE_IN_PROGRESS &&
        (claims || event == LK_EVENT_SWEEP) &&
        (step.effect != LK_EFFECT_NONE || step.verdict == LK_VERDICT_NEW)) {
        name_case(event, record);
        fail_msg("a request is taken from the courier");
    }
    if (event == LK_EVENT_LEASE && step.effect != LK_EFFECT_NONE &&
        record.state != LK_STATE_ACCEPTED &&
        !(record.queued && record.reexecute)) {
        name_case(event, record);
        fail_msg("a call that may have happened is made again");
    }
}

/* C27, C31 */
static void what_the_courier_runs_is_its_own_until_it_may_be_repeated(
    void **state)
{
    visit_all(check_queued);
}

static void check_proof(enum lk_event event, struct lk_standing record,
                        struct lk_step step)
{
    if ((1u << event) & RESOLVE && record.proof &&
        step.effect != LK_EFFECT_NONE &&
        (record.state != LK_STATE_UNCERTAIN || !record.token_current)) {
        name_case(event, record);
        fail_msg("proof of one claim ends another");
    }
}

/* C30 */
static void proof_counts_for_the_doubted_claim_of_its_token_alone(void **state)
{
    visit_all(check_proof);
}

static void every_state_has_a_word_that_leads_back_to_it(void **state)
{
    enum lk_state parsed;

    for (unsigned i = 0; i < STATES; i++) {
        struct lk_slice word = latchkey_slice(lk_state_word(i));
        assert_true(lk_state_parse(word, &parsed));
        assert_int_equal(parsed, i);
    }
    assert_false(lk_state_parse(LK_SLICE("Completed"), &parsed));
    assert_false(lk_state_parse(LK_SLICE(""), &parsed));
    assert_false(lk_state_parse(LK_SLICE("absent "), &parsed));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_follows_the_table),
        cmocka_unit_test(new_without_a_new_token_is_for_the_same_owner_only),
        cmocka_unit_test(a_refusal_changes_nothing),
        cmocka_unit_test(
            a_record_moves_exactly_when_there_is_something_to_write),
        cmocka_unit_test(only_proof_a_person_or_its_holder_ends_a_doubt),
        cmocka_unit_test(what_is_unfinished_is_neither_run_again_nor_forgotten),
        cmocka_unit_test(
            what_the_courier_runs_is_its_own_until_it_may_be_repeated),
        cmocka_unit_test(proof_counts_for_the_doubted_claim_of_its_token_alone),
        cmocka_unit_test(every_state_has_a_word_that_leads_back_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
