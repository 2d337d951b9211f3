/*
 * test_contract.c - what every store keeps: batches, answers, tokens, owners
 * and time. LATCHKEY_TEST_STORE names the store by its URL.
 */
#include "tests/store/fixture.h"

/* ---- Batches ------------------------------------------------------------- */

static void operations_on_one_key_see_each_other_in_order(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_op ops[] = {
        claim_of(bed, "k", "b"),
        with_token(bed, LK_EVENT_EXTEND, "k", token),
        with_token(bed, LK_EVENT_DOUBT, "k", token),
        claim_of(bed, "k", "b"),
        complete_of(bed, "k", token, "answer"),
        claim_of(bed, "k", "b"),
        with_token(bed, LK_EVENT_RELEASE, "k", token),
        op_on(bed, LK_EVENT_EVICT, "k"),
        claim_of(bed, "k", "b"),
        claim_of(bed, "k", "b"),
        claim_of(bed, "k", "c"),
        complete_of(bed, "k", token, "too late"),
    };
    const enum lk_verdict verdicts[] = {
        LK_VERDICT_INFLIGHT,  LK_VERDICT_DONE,     LK_VERDICT_DONE,
        LK_VERDICT_UNCERTAIN, LK_VERDICT_DONE,     LK_VERDICT_REPLAY,
        LK_VERDICT_KEPT,      LK_VERDICT_DONE,     LK_VERDICT_NEW,
        LK_VERDICT_NEW,       LK_VERDICT_INFLIGHT, LK_VERDICT_STALE,
    };
    enum { COUNT = sizeof(ops) / sizeof(*ops) };

    apply_all(bed, ops, COUNT, false);
    for (size_t i = 0; i < COUNT; i++) {
        expect_verdict(&ops[i], verdicts[i]);
    }
    assert_true(ops[8].out.token > token);
    assert_int_equal(ops[9].out.token, ops[8].out.token);
    /* What was answered from the batch is that answer, or to be asked anew. */
    if (ops[5].out.needs_load) {
        enum lk_status status = bed->store->class->load(bed->store, &ops[5]);
        assert_true(status == LK_OK || status == LK_AGAIN);
    }
    if (ops[5].out.stored) {
        expect_bytes(ops[5].out.stored->response.body, LK_SLICE("answer"));
    }
    for (size_t i = 0; i < COUNT; i++) {
        lk_op_clear(&ops[i]);
    }
    assert_int_equal(look(bed, "k", NULL), LK_STATE_IN_PROGRESS);
    expect_clean(bed);
}

static int compare_tokens(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static void a_thousand_claims_in_a_batch_get_a_thousand_tokens(void **state)
{
    enum { COUNT = 1000 };
    struct bed *bed = *state;
    struct lk_op *ops = calloc(COUNT, sizeof(*ops));
    uint64_t *tokens = calloc(COUNT, sizeof(*tokens));
    char(*keys)[16] = calloc(COUNT, sizeof(*keys));

    assert_true(ops && tokens && keys);
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof(keys[i]), "key-%zu", i);
        ops[i] = claim_of(bed, keys[i], "owner");
    }
    apply_all(bed, ops, COUNT, true);
    for (size_t i = 0; i < COUNT; i++) {
        expect_verdict(&ops[i], LK_VERDICT_NEW);
        tokens[i] = ops[i].out.token;
        assert_true(tokens[i] > 0 && tokens[i] < UINT64_C(1) << 53);
        ops[i] = complete_of(bed, keys[i], tokens[i], keys[i]);
    }
    apply_all(bed, ops, COUNT, true);
    for (size_t i = 0; i < COUNT; i++) {
        struct lk_response answer = {201, ops[i].response.headers,
                                     text(keys[i])};
        expect_verdict(&ops[i], LK_VERDICT_DONE);
        lk_op_clear(&ops[i]);
        expect_replay(bed, keys[i], &answer);
    }
    qsort(tokens, COUNT, sizeof(*tokens), compare_tokens);
    for (size_t i = 1; i < COUNT; i++) {
        assert_true(tokens[i - 1] < tokens[i]);
    }
    free(keys);
    free(tokens);
    free(ops);
}

static void an_empty_batch_is_fine(void **state)
{
    struct bed *bed = *state;

    apply_all(bed, NULL, 0, false);
    turn(bed);
    assert_true(stats_of(bed).available);
}

/* ---- Answers --------------------------------------------------------------
 */

/* C02 */
static void expect_kept_exactly(struct bed *bed, const char *key,
                                struct lk_response answer)
{
    struct lk_op op = complete_of(bed, key, claim_new(bed, key, "a"), "");

    op.response = answer;
    say(bed, op, LK_VERDICT_DONE);
    expect_replay(bed, key, &answer);
    bed_reopen(bed);
    expect_replay(bed, key, &answer);
}

static void an_answer_comes_back_byte_for_byte(void **state)
{
    enum { LARGE = 8 * 1024 * 1024 };
    struct bed *bed = *state;
    char binary[256];
    char *large = malloc(LARGE);

    assert_non_null(large);
    for (size_t i = 0; i < sizeof(binary); i++) {
        binary[i] = (char)(unsigned char)i;
    }
    for (size_t i = 0; i < LARGE; i++) {
        large[i] = (char)(i * 2654435761u >> 13);
    }
    expect_kept_exactly(bed, "binary",
                        (struct lk_response){200,
                                             LK_SLICE("A: b\r\nC: \xff\r\n"),
                                             {binary, sizeof(binary)}});
    expect_kept_exactly(bed, "empty body",
                        (struct lk_response){204, LK_SLICE("A: b\r\n"), {0}});
    expect_kept_exactly(bed, "nothing", (struct lk_response){402, {0}, {0}});
    expect_kept_exactly(bed, "no headers",
                        (struct lk_response){200, {0}, LK_SLICE("\0x")});
    expect_kept_exactly(
        bed, "large",
        (struct lk_response){200, LK_SLICE("A: b\r\n"), {large, LARGE}});
    free(large);
    expect_clean(bed);
}

/* C12 */
static void an_omitted_answer_is_told_with_its_reason(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = complete_of(bed, "k", claim_new(bed, "k", "a"), "");

    op.reason = LK_SLICE("too large");
    say(bed, op, LK_VERDICT_DONE);
    for (int round = 0; round < 2; round++) {
        op = claim_of(bed, "k", "b");
        apply_all(bed, &op, 1, false);
        expect_verdict(&op, LK_VERDICT_OMITTED);
        load_kept(bed, &op);
        assert_int_equal(op.out.stored->response.status, 201);
        expect_bytes(op.out.stored->reason, LK_SLICE("too large"));
        lk_op_clear(&op);
        bed_reopen(bed);
    }
}

static void the_first_completion_stands_and_is_shown(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_op op = complete_of(bed, "k", token, "first");

    say(bed, op, LK_VERDICT_DONE);
    op = complete_of(bed, "k", token, "second");
    apply_all(bed, &op, 1, false);
    expect_verdict(&op, LK_VERDICT_KEPT);
    load_kept(bed, &op);
    expect_bytes(op.out.stored->response.body, LK_SLICE("first"));
    lk_op_clear(&op);
}

static void a_doubt_is_told_with_its_reason_and_time(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    uint64_t before = stats_of(bed).now_ms;
    struct lk_op op = with_token(bed, LK_EVENT_DOUBT, "k", token);

    say(bed, op, LK_VERDICT_DONE);
    uint64_t after = stats_of(bed).now_ms;
    for (int round = 0; round < 2; round++) {
        op = claim_of(bed, "k", "b");
        apply_all(bed, &op, 1, false);
        expect_verdict(&op, LK_VERDICT_UNCERTAIN);
        load_kept(bed, &op);
        expect_bytes(op.out.stored->reason, LK_SLICE("timed out"));
        assert_in_range(op.out.since_ms, before, after);
        lk_op_clear(&op);
        bed_reopen(bed);
    }
}

/* ---- Tokens and owners ----------------------------------------------------
 */

static void the_same_owner_gets_the_same_token_also_after_reopening(
    void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");

    assert_int_equal(claim_new(bed, "k", "a"), token);
    bed_reopen(bed);
    assert_int_equal(claim_new(bed, "k", "a"), token);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_INFLIGHT);
}

static void two_claims_without_an_owner_are_strangers(void **state)
{
    struct bed *bed = *state;

    claim_new(bed, "k", "");
    say(bed, claim_of(bed, "k", ""), LK_VERDICT_INFLIGHT);
    bed_reopen(bed);
    say(bed, claim_of(bed, "k", ""), LK_VERDICT_INFLIGHT);
}

/* Few bits of an owner are in memory: they may never say "the same". */
static void four_thousand_other_owners_are_all_strangers(void **state)
{
    enum { COUNT = 4096 };
    struct bed *bed = *state;
    struct lk_op *ops = calloc(COUNT, sizeof(*ops));
    char(*owners)[16] = calloc(COUNT, sizeof(*owners));

    assert_true(ops && owners);
    claim_new(bed, "k", "holder");
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(owners[i], sizeof(owners[i]), "owner-%zu", i);
        ops[i] = claim_of(bed, "k", owners[i]);
        if (bed->store->class->peek &&
            bed->store->class->peek(bed->store, &ops[i]) == LK_OK) {
            assert_int_equal(ops[i].out.verdict, LK_VERDICT_INFLIGHT);
        }
    }
    apply_all(bed, ops, COUNT, false);
    for (size_t i = 0; i < COUNT; i++) {
        expect_verdict(&ops[i], LK_VERDICT_INFLIGHT);
    }
    free(owners);
    free(ops);
}

static void tokens_rise_over_release_reopening_and_ttl(void **state)
{
    struct bed *bed = *state;
    uint64_t last = 0;

    for (int i = 0; i < 6; i++) {
        struct lk_op op = claim_of(bed, "k", "a");
        op.ttl_ms = i % 2 ? 1 : HOUR_MS;
        uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
        assert_true(token > last);
        last = token;
        say(bed, with_token(bed, LK_EVENT_RELEASE, "k", token),
            LK_VERDICT_DONE);
        await_store_time(bed, stats_of(bed).now_ms + 2);
        turn(bed);
        if (i % 3 == 2) {
            bed_reopen(bed);
        }
    }
}

/* C22 */
static void an_overtaken_holder_is_stale_and_changes_nothing(void **state)
{
    static const enum lk_event events[] = {LK_EVENT_COMPLETE, LK_EVENT_RELEASE,
                                           LK_EVENT_DOUBT, LK_EVENT_EXTEND};
    struct bed *bed = *state;
    uint64_t old = claim_new(bed, "k", "a");
    struct lk_op again = claim_of(bed, "k", "b");

    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", old), LK_VERDICT_DONE);
    again.reexecute = true;
    struct lk_outcome out = say(bed, again, LK_VERDICT_NEW);
    assert_true(out.token > old);
    assert_int_equal(out.attempt, 2);
    for (size_t i = 0; i < 4; i++) {
        say(bed, with_token(bed, events[i], "k", old), LK_VERDICT_STALE);
        say(bed, with_token(bed, events[i], "k", out.token + 1),
            LK_VERDICT_STALE);
    }
    assert_int_equal(claim_new(bed, "k", "b"), out.token);
    say(bed, complete_of(bed, "k", out.token, "by b"), LK_VERDICT_DONE);
}

static void a_release_keeps_reference_and_attempts(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome first = say(bed, claim_of(bed, "k", "a"), LK_VERDICT_NEW);

    assert_int_equal(first.attempt, 1);
    say(bed, with_token(bed, LK_EVENT_RELEASE, "k", first.token),
        LK_VERDICT_DONE);
    bed_reopen(bed);
    struct lk_outcome second =
        say(bed, claim_of(bed, "k", "b"), LK_VERDICT_NEW);
    assert_int_equal(second.attempt, 2);
    assert_int_equal(second.number, first.number);
    assert_true(second.token > first.token);
}

/* ---- Time ------------------------------------------------------------------
 */

/* C10 */
static void after_its_ttl_a_key_is_new_and_never_before(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "answer", 50);
    struct lk_outcome out;

    assert_int_equal(done.expires_ms, done.now_ms + 50);
    for (;;) {
        struct lk_op op = claim_of(bed, "k", "b");
        apply_all(bed, &op, 1, true);
        assert_int_equal(op.status, LK_OK);
        lk_op_clear(&op);
        out = op.out;
        if (out.verdict != LK_VERDICT_REPLAY) {
            break;
        }
        assert_true(out.now_ms <= done.expires_ms);
        assert_int_equal(out.expires_ms, done.expires_ms);
        pause_ms(1);
    }
    assert_int_equal(out.verdict, LK_VERDICT_NEW);
    assert_true(out.now_ms >= done.expires_ms);
    assert_int_equal(out.attempt, 1);
    assert_true(out.number != done.number);
}

/* C10 */
static void the_ttl_of_the_claim_counts_from_completion(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.ttl_ms = 7 * HOUR_MS;
    uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
    await_store_time(bed, stats_of(bed).now_ms + 3);
    struct lk_outcome out =
        say(bed, complete_of(bed, "k", token, "x"), LK_VERDICT_DONE);
    assert_int_equal(out.expires_ms, out.now_ms + 7 * HOUR_MS);
    out = finish_new(bed, "default", "x", 0);
    assert_int_equal(out.expires_ms, out.now_ms + bed->config.default_ttl_ms);
}

static void keep_makes_an_answer_last_longer_and_never_shorter(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "x", HOUR_MS);
    struct lk_op op = op_on(bed, LK_EVENT_KEEP, "k");
    struct lk_operation record = {0};

    op.ttl_ms = 72 * HOUR_MS;
    say(bed, op, LK_VERDICT_DONE);
    bed_reopen(bed);
    assert_int_equal(look(bed, "k", &record), LK_STATE_COMPLETED);
    uint64_t expires = record.expires_ms;
    lk_operation_free(&record);
    assert_true(expires >= done.now_ms + 72 * HOUR_MS);
    op.ttl_ms = 1;
    say(bed, op, LK_VERDICT_DONE);
    assert_int_equal(
        say(bed, claim_of(bed, "k", "b"), LK_VERDICT_REPLAY).expires_ms,
        expires);
    say(bed, op_on(bed, LK_EVENT_KEEP, "unknown"), LK_VERDICT_NIL);
}

/* KEEP belongs to the operation, not to one of its runs. */
static void a_life_that_was_asked_for_outlasts_a_release(void **state)
{
    struct bed *bed = *state;
    struct lk_op keep = op_on(bed, LK_EVENT_KEEP, "k");
    uint64_t token = claim_new(bed, "k", "a");

    keep.ttl_ms = 240 * HOUR_MS;
    say(bed, keep, LK_VERDICT_DONE);
    say(bed, with_token(bed, LK_EVENT_RELEASE, "k", token), LK_VERDICT_DONE);
    token = claim_new(bed, "k", "b");
    bed_reopen(bed);
    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", token), LK_VERDICT_DONE);
    struct lk_op again = claim_of(bed, "k", "c");
    again.reexecute = true;
    token = say(bed, again, LK_VERDICT_NEW).token;
    struct lk_outcome out =
        say(bed, complete_of(bed, "k", token, "x"), LK_VERDICT_DONE);
    assert_int_equal(out.expires_ms, out.now_ms + 240 * HOUR_MS);
    /* What is evicted is over, and what follows is another operation. */
    say(bed, op_on(bed, LK_EVENT_EVICT, "k"), LK_VERDICT_DONE);
    out = finish_new(bed, "k", "y", HOUR_MS);
    assert_int_equal(out.expires_ms, out.now_ms + HOUR_MS);
}

/* C22 */
static void a_claim_repeated_after_its_lock_has_a_lock_again(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.lock_ms = 1;
    struct lk_outcome first = say(bed, op, LK_VERDICT_NEW);
    await_store_time(bed, first.lock_until_ms + 1);
    op.lock_ms = HOUR_MS;
    struct lk_outcome again = say(bed, op, LK_VERDICT_NEW);
    assert_int_equal(again.token, first.token);
    assert_int_equal(again.attempt, first.attempt);
    assert_int_equal(again.lock_until_ms, again.now_ms + HOUR_MS);
    turn(bed);
    bed_reopen(bed);
    turn(bed);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_INFLIGHT);
    say(bed, complete_of(bed, "k", first.token, "x"), LK_VERDICT_DONE);
}

/* C22: its reply was lost for longer than its lock: it has not run, and its
 * owner alone can know. */
static void a_claim_repeated_after_it_was_given_up_goes_on(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.lock_ms = 1;
    struct lk_outcome first = say(bed, op, LK_VERDICT_NEW);
    await_store_time(bed, first.lock_until_ms + 1);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_UNCERTAIN);
    bed_reopen(bed);
    op.no_new = true;
    assert_int_equal(say(bed, op, LK_VERDICT_NEW).token, first.token);
    assert_int_equal(look(bed, "k", NULL), LK_STATE_UNCERTAIN);
    op.no_new = false;
    op.lock_ms = HOUR_MS;
    struct lk_outcome again = say(bed, op, LK_VERDICT_NEW);
    assert_int_equal(again.token, first.token);
    assert_int_equal(again.lock_until_ms, again.now_ms + HOUR_MS);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_INFLIGHT);
    /* After its own doubt it is not for a repetition to run it. */
    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", first.token),
        LK_VERDICT_DONE);
    say(bed, op, LK_VERDICT_UNCERTAIN);
}

/* A sign of life that was on its way comes behind the holder's last word. */
static void a_late_extension_does_not_take_back_a_doubt(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_op op = with_token(bed, LK_EVENT_DOUBT, "k", token);
    struct lk_operation record = {0};

    op.reason = LK_SLICE("no answer");
    say(bed, op, LK_VERDICT_DONE);
    op = with_token(bed, LK_EVENT_EXTEND, "k", token);
    op.lock_ms = HOUR_MS;
    say(bed, op, LK_VERDICT_STALE);
    assert_int_equal(look(bed, "k", &record), LK_STATE_UNCERTAIN);
    assert_true(latchkey_slice_equal(record.reason, LK_SLICE("no answer")));
    lk_operation_free(&record);
    say(bed, complete_of(bed, "k", token, "late"), LK_VERDICT_DONE);
}

/* But one who was given up for a lapsed lock shows that it lives. */
static void a_late_extension_takes_back_a_lapse(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.lock_ms = 1;
    struct lk_outcome out = say(bed, op, LK_VERDICT_NEW);
    await_store_time(bed, out.lock_until_ms + 1);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_UNCERTAIN);
    op = with_token(bed, LK_EVENT_EXTEND, "k", out.token);
    op.lock_ms = HOUR_MS;
    say(bed, op, LK_VERDICT_DONE);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_INFLIGHT);
}

/* C22 */
static void a_lapsed_claim_becomes_uncertain_by_the_sweeper(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.lock_ms = 30;
    struct lk_outcome out = say(bed, op, LK_VERDICT_NEW);
    assert_int_equal(out.lock_until_ms, out.now_ms + 30);
    uint64_t give_up = monotonic_ms() + 20000;
    bool settled = false;
    while (!settled) {
        struct lk_batch batch = {.keep = true};
        assert_true(monotonic_ms() < give_up);
        bed->store->class->apply(bed->store, &batch);
        for (size_t i = 0; i < batch.settled_count; i++) {
            settled |= lk_hash128_equal(batch.settled[i], op.hash);
        }
        lk_batch_clear(&batch);
        pause_ms(1);
    }
    assert_int_equal(look(bed, "k", NULL), LK_STATE_UNCERTAIN);
    struct lk_outcome told =
        say(bed, claim_of(bed, "k", "b"), LK_VERDICT_UNCERTAIN);
    assert_true(told.now_ms >= out.lock_until_ms);
    say(bed, complete_of(bed, "k", out.token - 1, "old"), LK_VERDICT_STALE);
    /* A late completion with the current token still counts. */
    say(bed, complete_of(bed, "k", out.token, "late"), LK_VERDICT_DONE);
    struct lk_response answer = {201, LK_SLICE("Content-Type: text/plain\r\n"),
                                 LK_SLICE("late")};
    expect_replay(bed, "k", &answer);
}

/* C22 */
static void an_extended_claim_keeps_its_lock(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.lock_ms = 20;
    struct lk_outcome out = say(bed, op, LK_VERDICT_NEW);
    op = with_token(bed, LK_EVENT_EXTEND, "k", out.token);
    op.lock_ms = HOUR_MS;
    struct lk_outcome extended = say(bed, op, LK_VERDICT_DONE);
    assert_int_equal(extended.lock_until_ms, extended.now_ms + HOUR_MS);
    await_store_time(bed, out.lock_until_ms + 1);
    turn(bed);
    bed_reopen(bed);
    turn(bed);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_INFLIGHT);
    assert_int_equal(claim_new(bed, "k", "a"), out.token);
}

static void what_is_settled_by_an_operation_is_reported(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_op op = complete_of(bed, "k", token, "x");
    struct lk_op *list[] = {&op};
    struct lk_batch batch = {.ops = list, .count = 1};
    bool found = false;

    bed->store->class->apply(bed->store, &batch);
    expect_verdict(&op, LK_VERDICT_DONE);
    for (size_t i = 0; i < batch.settled_count; i++) {
        found |= lk_hash128_equal(batch.settled[i], op.hash);
    }
    assert_true(found);
    lk_batch_clear(&batch);
    lk_op_clear(&op);
}

enum { REAP_COUNT = 2000, REAP_STEP = 50 };

/*
 * Nothing of what is past its time is left. A shared store may hold finished
 * records of others, and its daemons reap beside the claims, at their own
 * pace.
 */
static bool is_reaped(struct bed *bed, struct lk_store_stats *now,
                      uint64_t others, size_t round)
{
    struct lk_store_stats before = *now;

    if (bed->store->shared) {
        *now = round % 16 ? *now : counted(bed);
        return round && round % 16 == 0 && !now->dead_rows &&
               now->by_state[LK_STATE_COMPLETED] <= others;
    }
    *now = stats_of(bed);
    assert_true(now->reaped - before.reaped <= REAP_COUNT / 4);
    assert_true(now->dead_rows + REAP_STEP >= before.dead_rows);
    return now->reaped >= REAP_COUNT && !now->dead_rows;
}

/* C25 */
static void the_reaper_works_in_bounded_steps_while_claims_go_on(void **state)
{
    enum { COUNT = REAP_COUNT, STEP = REAP_STEP };
    struct bed *bed = *state;
    struct lk_op *ops = calloc(COUNT, sizeof(*ops));
    char(*keys)[16] = calloc(COUNT, sizeof(*keys));

    assert_true(ops && keys);
    bed_close(bed);
    bed->config.reap_rows = STEP;
    bed_open(bed);
    uint64_t others = stats_of(bed).by_state[LK_STATE_COMPLETED];
    for (size_t i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof(keys[i]), "key-%zu", i);
        ops[i] = claim_of(bed, keys[i], "a");
    }
    apply_all(bed, ops, COUNT, false);
    for (size_t i = 0; i < COUNT; i++) {
        ops[i] = complete_of(bed, keys[i], ops[i].out.token, "x");
        ops[i].ttl_ms = 1;
    }
    apply_all(bed, ops, COUNT, false);
    for (size_t i = 0; i < COUNT; i++) {
        expect_verdict(&ops[i], LK_VERDICT_DONE);
        lk_op_clear(&ops[i]);
    }
    uint64_t give_up = monotonic_ms() + 30000;
    struct lk_store_stats now = stats_of(bed);
    for (size_t i = 0; !is_reaped(bed, &now, others, i); i++) {
        char key[24];
        assert_true(monotonic_ms() < give_up);
        snprintf(key, sizeof(key), "new-%zu", i);
        struct lk_op op = claim_of(bed, key, "a");
        apply_all(bed, &op, 1, true);
        expect_verdict(&op, LK_VERDICT_NEW);
        pause_ms(1);
    }
    assert_true(now.by_state[LK_STATE_COMPLETED] <= others);
    assert_int_equal(look(bed, keys[0], NULL), LK_STATE_ABSENT);
    expect_clean(bed);
    free(keys);
    free(ops);
}

/* One life of a key: released a few times, then finished or released. */
static void live_shortly(struct bed *bed, const char *key, unsigned which)
{
    struct lk_op op = claim_of(bed, key, "a");

    for (unsigned i = 0; i < which % 3; i++) {
        uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
        say(bed, with_token(bed, LK_EVENT_RELEASE, key, token),
            LK_VERDICT_DONE);
    }
    op.ttl_ms = 1;
    uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
    if (which % 2) {
        say(bed, complete_of(bed, key, token, "x"), LK_VERDICT_DONE);
    } else {
        say(bed, with_token(bed, LK_EVENT_RELEASE, key, token),
            LK_VERDICT_DONE);
    }
}

/* C25: the reaper may be interrupted between any two of its steps. */
static void what_was_reaped_does_not_come_back_after_a_restart(void **state)
{
    enum { COUNT = 24 };
    struct bed *bed = *state;
    /* A server's reaper remembers nothing that a restart could take. */
    unsigned most = is_embedded(bed) ? 16 : 6;
    char key[24];

    bed_close(bed);
    bed->config.reap_rows = 3;
    bed_open(bed);
    /* The reaper has to step over these to get to the dead. */
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(key, sizeof(key), "living-%u", i);
        struct lk_op op = claim_of(bed, key, "a");
        op.lock_ms = HOUR_MS;
        say(bed, op, LK_VERDICT_NEW);
    }
    for (unsigned turns = 0; turns < most; turns++) {
        for (unsigned i = 0; i < COUNT; i++) {
            snprintf(key, sizeof(key), "key-%u", turns * COUNT + i);
            live_shortly(bed, key, i + turns);
        }
        /* The wheel looks at what is due in steps of 64 ms. */
        await_store_time(bed, stats_of(bed).now_ms + 70);
        for (unsigned i = 0; i < turns; i++) {
            turn(bed);
        }
        bed_reopen(bed);
        for (unsigned i = 0; i < (turns + 1) * COUNT; i++) {
            snprintf(key, sizeof(key), "key-%u", i);
            enum lk_state found = look(bed, key, NULL);
            if (found != LK_STATE_ABSENT && found != LK_STATE_RELEASED) {
                fail_msg("%s is %s after %u turns", key, lk_state_word(found),
                         turns);
            }
        }
        expect_clean(bed);
    }
}

static void what_is_uncertain_never_expires(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "k", "a");

    op.ttl_ms = 1;
    uint64_t token = say(bed, op, LK_VERDICT_NEW).token;
    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", token), LK_VERDICT_DONE);
    for (int i = 0; i < 5; i++) {
        await_store_time(bed, stats_of(bed).now_ms + 20);
        turn(bed);
    }
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_UNCERTAIN);
    bed_reopen(bed);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_UNCERTAIN);
}

#define IN_BED(test)                                                           \
    cmocka_unit_test_setup_teardown(test, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BED(operations_on_one_key_see_each_other_in_order),
        IN_BED(a_thousand_claims_in_a_batch_get_a_thousand_tokens),
        IN_BED(an_empty_batch_is_fine),
        IN_BED(an_answer_comes_back_byte_for_byte),
        IN_BED(an_omitted_answer_is_told_with_its_reason),
        IN_BED(the_first_completion_stands_and_is_shown),
        IN_BED(a_doubt_is_told_with_its_reason_and_time),
        IN_BED(the_same_owner_gets_the_same_token_also_after_reopening),
        IN_BED(two_claims_without_an_owner_are_strangers),
        IN_BED(four_thousand_other_owners_are_all_strangers),
        IN_BED(tokens_rise_over_release_reopening_and_ttl),
        IN_BED(an_overtaken_holder_is_stale_and_changes_nothing),
        IN_BED(a_release_keeps_reference_and_attempts),
        IN_BED(after_its_ttl_a_key_is_new_and_never_before),
        IN_BED(the_ttl_of_the_claim_counts_from_completion),
        IN_BED(keep_makes_an_answer_last_longer_and_never_shorter),
        IN_BED(a_life_that_was_asked_for_outlasts_a_release),
        IN_BED(a_claim_repeated_after_its_lock_has_a_lock_again),
        IN_BED(a_claim_repeated_after_it_was_given_up_goes_on),
        IN_BED(a_late_extension_does_not_take_back_a_doubt),
        IN_BED(a_late_extension_takes_back_a_lapse),
        IN_BED(a_lapsed_claim_becomes_uncertain_by_the_sweeper),
        IN_BED(an_extended_claim_keeps_its_lock),
        IN_BED(what_is_settled_by_an_operation_is_reported),
        IN_BED(the_reaper_works_in_bounded_steps_while_claims_go_on),
        IN_BED(what_was_reaped_does_not_come_back_after_a_restart),
        IN_BED(what_is_uncertain_never_expires),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
