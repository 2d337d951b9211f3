/*
 * test_table.c - every row of the state table, through the store named by
 * LATCHKEY_TEST_STORE.
 */
#include "tests/store/fixture.h"

enum prepared {
    P_ABSENT,
    P_RUNNING,
    P_LAPSED,
    P_UNCERTAIN,
    P_COMPLETED,
    P_OMITTED,
    P_RELEASED,
    P_PAST_COMPLETED,
    P_PAST_RELEASED,
    P_COUNT,
};

static const char *const prepared_words[] = {
    "absent",  "running",  "lapsed",         "uncertain",     "completed",
    "omitted", "released", "past completed", "past released",
};

struct trial {
    enum prepared prepared;
    enum lk_event event;
    bool same_fingerprint, same_owner, token_current, reexecute, no_new, proof,
        running;
    char key[32];
    uint64_t token; /* of the prepared record; 0: none */
    uint64_t attempt;
    uint64_t number;
    struct lk_step expected;
};

enum { TRIALS_MAX = 400 };

static const enum lk_event plain_events[] = {
    LK_EVENT_KEEP, LK_EVENT_RESOLVE_COMPLETED, LK_EVENT_RESOLVE_RELEASED,
    LK_EVENT_EVICT};
static const enum lk_event token_events[] = {
    LK_EVENT_COMPLETE, LK_EVENT_RELEASE, LK_EVENT_DOUBT, LK_EVENT_EXTEND};

static size_t add_trial(struct trial *trials, size_t count,
                        enum prepared prepared, enum lk_event event,
                        unsigned bits)
{
    struct trial *trial = &trials[count];

    assert_true(count < TRIALS_MAX);
    *trial = (struct trial){
        .prepared = prepared,
        .event = event,
        .same_fingerprint = bits & 1,
        .same_owner = bits & 2,
        .reexecute = bits & 4,
        .no_new = bits & 8,
        .token_current = bits & 16,
        .proof = bits & 32,
        .running = bits & 64,
    };
    snprintf(trial->key, sizeof(trial->key), "trial-%zu", count);
    return count + 1;
}

static size_t make_trials(struct trial *trials)
{
    size_t count = 0;

    for (unsigned prepared = 0; prepared < P_COUNT; prepared++) {
        for (unsigned bits = 0; bits < 16; bits++) {
            count = add_trial(trials, count, prepared, LK_EVENT_CLAIM, bits);
        }
        for (size_t i = 0; i < 4; i++) {
            count = add_trial(trials, count, prepared, plain_events[i], 0);
            count = add_trial(trials, count, prepared, token_events[i], 0);
            if (prepared != P_ABSENT) {
                count = add_trial(trials, count, prepared, token_events[i], 16);
            }
        }
        for (size_t i = 1; i < 3; i++) {
            count = add_trial(trials, count, prepared, plain_events[i], 64);
            count = add_trial(trials, count, prepared, plain_events[i], 32);
            if (prepared != P_ABSENT) {
                count = add_trial(trials, count, prepared, plain_events[i], 48);
            }
        }
    }
    return count;
}

static struct lk_standing standing_of(const struct trial *trial)
{
    static const enum lk_state states[] = {
        LK_STATE_ABSENT,    LK_STATE_IN_PROGRESS, LK_STATE_IN_PROGRESS,
        LK_STATE_UNCERTAIN, LK_STATE_COMPLETED,   LK_STATE_COMPLETED,
        LK_STATE_RELEASED,  LK_STATE_COMPLETED,   LK_STATE_RELEASED};

    return (struct lk_standing){
        .state = states[trial->prepared],
        .expired = trial->prepared == P_PAST_COMPLETED ||
                   trial->prepared == P_PAST_RELEASED,
        .lapsed = trial->prepared == P_LAPSED,
        .omitted = trial->prepared == P_OMITTED,
        .doubted = trial->prepared == P_UNCERTAIN,
        .same_fingerprint = trial->same_fingerprint,
        .same_owner = trial->same_owner,
        .token_current = trial->token_current,
        .reexecute = trial->reexecute,
        .no_new = trial->no_new,
        .proof = trial->proof,
        .running = trial->running,
    };
}

/* The claims that the prepared records begin with. */
static void claim_trials(struct bed *bed, struct trial *trials, size_t count)
{
    struct lk_op *ops = calloc(count, sizeof(*ops));
    size_t used = 0;

    assert_non_null(ops);
    for (size_t i = 0; i < count; i++) {
        if (trials[i].prepared == P_ABSENT) {
            continue;
        }
        ops[used] = claim_of(bed, trials[i].key, "holder");
        ops[used].lock_ms = trials[i].prepared == P_LAPSED ? 1 : HOUR_MS;
        ops[used].ttl_ms = trials[i].prepared == P_PAST_RELEASED ? 1 : HOUR_MS;
        used++;
    }
    apply_all(bed, ops, used, false);
    used = 0;
    for (size_t i = 0; i < count; i++) {
        if (trials[i].prepared != P_ABSENT) {
            expect_verdict(&ops[used], LK_VERDICT_NEW);
            trials[i].token = ops[used].out.token;
            trials[i].attempt = ops[used].out.attempt;
            trials[i].number = ops[used].out.number;
            used++;
        }
    }
    free(ops);
}

static bool second_step(struct bed *bed, const struct trial *trial,
                        struct lk_op *op)
{
    switch (trial->prepared) {
    case P_UNCERTAIN:
        *op = with_token(bed, LK_EVENT_DOUBT, trial->key, trial->token);
        return true;
    case P_COMPLETED:
    case P_OMITTED:
    case P_PAST_COMPLETED:
        *op = complete_of(bed, trial->key, trial->token, "done");
        op->ttl_ms = trial->prepared == P_PAST_COMPLETED ? 1 : 0;
        if (trial->prepared == P_OMITTED) {
            op->reason = LK_SLICE("too large");
        }
        return true;
    case P_RELEASED:
    case P_PAST_RELEASED:
        *op = with_token(bed, LK_EVENT_RELEASE, trial->key, trial->token);
        return true;
    default:
        return false;
    }
}

static void prepare_trials(struct bed *bed, struct trial *trials, size_t count)
{
    struct lk_op *ops = calloc(count, sizeof(*ops));
    size_t used = 0;

    assert_non_null(ops);
    claim_trials(bed, trials, count);
    for (size_t i = 0; i < count; i++) {
        used += second_step(bed, &trials[i], &ops[used]);
    }
    apply_all(bed, ops, used, false);
    for (size_t i = 0; i < used; i++) {
        expect_verdict(&ops[i], LK_VERDICT_DONE);
        lk_op_clear(&ops[i]);
    }
    await_store_time(bed,
                     stats_of(bed).now_ms + 5); /* locks and TTLs of 1 ms */
    free(ops);
}

static struct lk_op trial_op(struct bed *bed, const struct trial *trial)
{
    struct lk_op op = complete_of(bed, trial->key, 0, "by trial");

    op.event = trial->event;
    bool resolves = trial->event == LK_EVENT_RESOLVE_COMPLETED ||
                    trial->event == LK_EVENT_RESOLVE_RELEASED;

    op.token = resolves && !trial->proof ? 0
               : trial->token_current    ? trial->token
               : trial->token            ? trial->token - 1
                                         : 1;
    op.owner = text(trial->same_owner ? "holder" : "stranger");
    op.fingerprint =
        text(trial->same_fingerprint ? "1:fingerprint" : "1:other");
    op.reexecute = trial->reexecute;
    op.no_new = trial->no_new;
    op.running = trial->running;
    op.ttl_ms = trial->event == LK_EVENT_KEEP ? 2 * HOUR_MS : 0;
    op.lock_ms = HOUR_MS;
    if (trial->event == LK_EVENT_DOUBT) {
        op.reason = LK_SLICE("by trial");
    }
    return op;
}

static void name_trial(const struct trial *trial)
{
    static const char *const words[] = {
#define X(name, word) word,
        LK_EVENT_MAP(X)
#undef X
    };

    print_error(
        "%s on %s,%s%s%s%s%s%s%s\n", words[trial->event],
        prepared_words[trial->prepared],
        trial->same_fingerprint ? " fingerprint" : "",
        trial->same_owner ? " owner" : "", trial->token_current ? " token" : "",
        trial->reexecute ? " reexecute" : "", trial->no_new ? " no_new" : "",
        trial->proof ? " proof" : "", trial->running ? " running" : "");
}

/* What peek() decides, it must decide as the machine does, and it may not
 * touch what needs a write. */
static void peek_trial(struct bed *bed, const struct trial *trial)
{
    struct lk_op op = trial_op(bed, trial);
    enum lk_verdict verdict = trial->expected.verdict;
    /* An owner, or the reason of a doubt, may have to be looked up first. */
    bool must =
        !trial->same_owner &&
        !(trial->event == LK_EVENT_EXTEND && trial->token_current) &&
        (verdict == LK_VERDICT_REPLAY || verdict == LK_VERDICT_INFLIGHT ||
         verdict == LK_VERDICT_MISMATCH || verdict == LK_VERDICT_STALE);
    enum lk_status status;

    if (!bed->store->class->peek) {
        return;
    }
    status = bed->store->class->peek(bed->store, &op);
    if (status == LK_OK && (trial->expected.effect != LK_EFFECT_NONE ||
                            op.out.verdict != verdict)) {
        name_trial(trial);
        fail_msg("peek says %s, the machine %s",
                 latchkey_verdict_word(op.out.verdict),
                 latchkey_verdict_word(verdict));
    }
    if (status != LK_OK && (status != LK_AGAIN || must)) {
        name_trial(trial);
        fail_msg("peek: %s", latchkey_status_name(status));
    }
    lk_op_clear(&op);
}

static void check_state(struct bed *bed, const struct trial *trial)
{
    enum lk_state next = trial->expected.next;
    enum lk_state seen = look(bed, trial->key, NULL);
    bool gone = next == LK_STATE_ABSENT && seen == LK_STATE_RELEASED;
    /* A lapsed claim may be shown as what the sweeper will make of it. */
    bool lapsed = trial->prepared == P_LAPSED && next == LK_STATE_IN_PROGRESS &&
                  (trial->expected.effect == LK_EFFECT_NONE ||
                   trial->expected.effect == LK_EFFECT_KEEP) &&
                  seen == LK_STATE_UNCERTAIN;

    if (seen != next && !gone && !lapsed) {
        name_trial(trial);
        fail_msg("lookup finds %s, the machine says %s", lk_state_word(seen),
                 lk_state_word(next));
    }
}

static void check_trial(struct bed *bed, const struct trial *trial,
                        struct lk_op *op, uint64_t highest)
{
    bool begins = trial->expected.effect == LK_EFFECT_BEGIN;
    bool fresh = trial->prepared == P_ABSENT ||
                 trial->prepared == P_PAST_COMPLETED ||
                 trial->prepared == P_PAST_RELEASED;

    if (op->status != LK_OK || op->out.verdict != trial->expected.verdict) {
        name_trial(trial);
        expect_verdict(op, trial->expected.verdict);
    }
    if (begins ? op->out.token <= highest
               : op->out.verdict == LK_VERDICT_NEW &&
                     op->out.token != trial->token) {
        name_trial(trial);
        fail_msg("token %llu, before it %llu",
                 (unsigned long long)op->out.token,
                 (unsigned long long)trial->token);
    }
    if (begins && (op->out.attempt != (fresh ? 1 : trial->attempt + 1) ||
                   (op->out.number == trial->number) == fresh)) {
        name_trial(trial);
        fail_msg("attempt %llu, reference number %llu after %llu",
                 (unsigned long long)op->out.attempt,
                 (unsigned long long)op->out.number,
                 (unsigned long long)trial->number);
    }
    check_state(bed, trial);
}

/* C22, C35 and the whole of the table: 304 records, one event each. */
static void every_row_of_the_table_holds_in_the_store(void **state)
{
    struct bed *bed = *state;
    struct trial *trials = calloc(TRIALS_MAX, sizeof(*trials));
    struct lk_op *ops = calloc(TRIALS_MAX, sizeof(*ops));
    uint64_t highest = 0;

    assert_non_null(trials);
    assert_non_null(ops);
    size_t count = make_trials(trials);
    prepare_trials(bed, trials, count);
    for (size_t i = 0; i < count; i++) {
        trials[i].expected =
            lk_machine_step(trials[i].event, standing_of(&trials[i]));
        highest = trials[i].token > highest ? trials[i].token : highest;
        peek_trial(bed, &trials[i]);
        ops[i] = trial_op(bed, &trials[i]);
    }
    apply_all(bed, ops, count, false);
    for (size_t i = 0; i < count; i++) {
        check_trial(bed, &trials[i], &ops[i], highest);
        lk_op_clear(&ops[i]);
    }
    expect_clean(bed);
    free(ops);
    free(trials);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            every_row_of_the_table_holds_in_the_store, bed_setup, bed_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
