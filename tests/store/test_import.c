/*
 * test_import.c - a store takes over what another one had: which of two
 * records is newer, and what is true of it afterwards. LATCHKEY_TEST_STORE
 * names the store.
 */
#include "tests/store/fixture.h"

/* A finished operation of another store, a day before it expires. */
static struct lk_operation record_of(struct bed *bed, const char *key,
                                     uint64_t token, enum lk_state state)
{
    uint64_t now = stats_of(bed).now_ms;
    struct lk_operation record = {
        .name = {text(bed->tenant), LK_SLICE("POST /payments"), text(key)},
        .state = state,
        .token = token,
        .number = token,
        .generation = token,
        .attempt = 1,
        .claimed_ms = now - HOUR_MS,
        .ttl_ms = 24 * HOUR_MS,
        .fingerprint = LK_SLICE("1:fingerprint"),
        .owner = LK_SLICE("its owner"),
    };

    switch (state) {
    case LK_STATE_IN_PROGRESS:
        record.lock_until_ms = now + HOUR_MS;
        break;
    case LK_STATE_UNCERTAIN:
        record.since_ms = now - HOUR_MS / 2;
        record.reason = LK_SLICE("timed out");
        break;
    default:
        record.completed_ms = state == LK_STATE_COMPLETED ? now - 1000 : 0;
        record.expires_ms = now + 24 * HOUR_MS;
        record.status = state == LK_STATE_COMPLETED ? 201 : 0;
        break;
    }
    return record;
}

static const struct lk_response answer = {
    201, {"X-A: b\r\n", 8}, {"the \0 answer", 12}};

static struct lk_import give(struct bed *bed, struct lk_operation *records,
                             size_t count)
{
    struct lk_import result = {0};

    for (size_t i = 0; i < count; i++) {
        if (records[i].state == LK_STATE_COMPLETED && !records[i].omitted) {
            records[i].stored =
                lk_stored_make(records[i].token, records[i].completed_ms,
                               &answer, (struct lk_slice){0});
            assert_non_null(records[i].stored);
        }
    }
    assert_int_equal(
        bed->store->class->import(bed->store, records, count, &result), LK_OK);
    for (size_t i = 0; i < count; i++) {
        lk_stored_unref(records[i].stored);
        records[i].stored = NULL;
    }
    return result;
}

static bool is_taken(struct bed *bed, struct lk_operation record)
{
    struct lk_import result = give(bed, &record, 1);

    assert_int_equal(result.taken + result.older, 1);
    return result.taken == 1;
}

/* Tokens that no test of this run has used. */
static uint64_t fresh_tokens(struct bed *bed)
{
    static uint64_t used;
    uint64_t last = stats_of(bed).last_token;

    used = (used > last ? used : last) + 1000;
    return used;
}

/* ---- What is true afterwards ------------------------------------------------
 */

/* C02 */
static void an_imported_answer_is_replayed_byte_for_byte(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);

    assert_true(is_taken(bed, record_of(bed, "k", token, LK_STATE_COMPLETED)));
    for (int round = 0; round < 2; round++) {
        expect_replay(bed, "k", &answer);
        turn(bed);
        bed_reopen(bed);
    }
    expect_clean(bed);
}

/* C22 */
static void an_imported_claim_belongs_to_its_holder(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);

    assert_true(
        is_taken(bed, record_of(bed, "k", token, LK_STATE_IN_PROGRESS)));
    bed_reopen(bed);
    say(bed, claim_of(bed, "k", "another"), LK_VERDICT_INFLIGHT);
    struct lk_outcome out =
        say(bed, claim_of(bed, "k", "its owner"), LK_VERDICT_NEW);
    assert_int_equal(out.token, token);
    say(bed, complete_of(bed, "k", token + 1, "x"), LK_VERDICT_STALE);
    say(bed, complete_of(bed, "k", token, "x"), LK_VERDICT_DONE);
    say(bed, claim_of(bed, "k", "another"), LK_VERDICT_REPLAY);
    expect_clean(bed);
}

static void new_tokens_are_above_the_imported_ones(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);

    is_taken(bed, record_of(bed, "k", token, LK_STATE_COMPLETED));
    assert_true(claim_new(bed, "other", "a") > token);
    bed_reopen(bed);
    assert_true(claim_new(bed, "third", "a") > token);
}

/* C35 */
static void an_imported_record_is_found_by_its_number(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    struct lk_operation record = record_of(bed, "k", token, LK_STATE_COMPLETED);
    struct lk_operation found = {0};

    record.number = token - 7; /* claimed a second time */
    record.attempt = 2;
    assert_true(is_taken(bed, record));
    for (int round = 0; round < 2; round++) {
        assert_int_equal(bed->store->class->find(bed->store, text(bed->tenant),
                                                 token - 7, &found),
                         LK_OK);
        assert_int_equal(found.token, token);
        assert_int_equal(found.attempt, 2);
        lk_operation_free(&found);
        bed_reopen(bed);
    }
}

static void a_number_that_is_taken_is_replaced(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    struct lk_operation pair[] = {
        record_of(bed, "first", token, LK_STATE_COMPLETED),
        record_of(bed, "second", token + 1, LK_STATE_COMPLETED)};
    struct lk_operation found = {0};

    pair[1].number = token;
    struct lk_import result = give(bed, pair, 2);
    assert_int_equal(result.taken, 2);
    assert_int_equal(result.renumbered, 1);
    assert_int_equal(look(bed, "first", &found), LK_STATE_COMPLETED);
    uint64_t number = found.number;
    lk_operation_free(&found);
    assert_int_equal(look(bed, "second", &found), LK_STATE_COMPLETED);
    assert_int_not_equal(found.number, number);
    lk_operation_free(&found);
    bed_reopen(bed);
    expect_replay(bed, "first", &answer);
    expect_replay(bed, "second", &answer);
    expect_clean(bed);
}

/* Two stores that have both handed out the same token. */
static void a_token_that_is_taken_disturbs_neither(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);

    is_taken(bed, record_of(bed, "ours", token, LK_STATE_COMPLETED));
    is_taken(bed, record_of(bed, "theirs", token, LK_STATE_COMPLETED));
    is_taken(bed, record_of(bed, "open", token, LK_STATE_IN_PROGRESS));
    is_taken(bed, record_of(bed, "free", token, LK_STATE_RELEASED));
    for (int round = 0; round < 2; round++) {
        expect_replay(bed, "ours", &answer);
        expect_replay(bed, "theirs", &answer);
        say(bed, claim_of(bed, "open", "another"), LK_VERDICT_INFLIGHT);
        bed_reopen(bed);
    }
    claim_new(bed, "free", "a");
    expect_clean(bed);
}

/* ---- Which is newer ---------------------------------------------------------
 */

static void a_larger_token_is_newer(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);

    assert_true(is_taken(bed, record_of(bed, "k", token, LK_STATE_COMPLETED)));
    assert_false(
        is_taken(bed, record_of(bed, "k", token - 1, LK_STATE_COMPLETED)));
    expect_replay(bed, "k", &answer);
    assert_true(
        is_taken(bed, record_of(bed, "k", token + 1, LK_STATE_IN_PROGRESS)));
    say(bed, claim_of(bed, "k", "a"), LK_VERDICT_INFLIGHT);
    bed_reopen(bed);
    say(bed, claim_of(bed, "k", "a"), LK_VERDICT_INFLIGHT);
    expect_clean(bed);
}

static void under_one_token_the_later_state_is_newer(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    const struct lk_operation order[] = {
        record_of(bed, "k", token, LK_STATE_IN_PROGRESS),
        record_of(bed, "k", token, LK_STATE_UNCERTAIN),
        record_of(bed, "k", token, LK_STATE_COMPLETED)};

    for (int i = 0; i < 3; i++) {
        assert_true(is_taken(bed, order[i]));
        for (int k = 0; k <= i; k++) {
            assert_false(is_taken(bed, order[k]));
        }
    }
    struct lk_operation evicted = record_of(bed, "k", token, LK_STATE_RELEASED);
    evicted.evicted = true;
    assert_true(is_taken(bed, evicted));
    assert_false(is_taken(bed, record_of(bed, "k", token, LK_STATE_COMPLETED)));
    bed_reopen(bed);
    assert_int_equal(look(bed, "k", NULL), LK_STATE_RELEASED);
    assert_true(claim_new(bed, "k", "a") > token);
    expect_clean(bed);
}

/* KEEP and EXTEND are promises. */
/* Two stores have worked on one claim: whoever completed it has run it. */
static void a_release_elsewhere_does_not_undo_a_completion(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_operation released =
        record_of(bed, "k", token, LK_STATE_RELEASED);

    say(bed, complete_of(bed, "k", token, "paid"), LK_VERDICT_DONE);
    released.expires_ms += 1000 * HOUR_MS;
    assert_false(is_taken(bed, released));
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_REPLAY);

    token = claim_new(bed, "other", "a");
    say(bed, with_token(bed, LK_EVENT_RELEASE, "other", token),
        LK_VERDICT_DONE);
    assert_true(
        is_taken(bed, record_of(bed, "other", token, LK_STATE_COMPLETED)));
    assert_int_equal(look(bed, "other", NULL), LK_STATE_COMPLETED);
}

static void in_one_state_the_longer_life_is_newer(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    struct lk_operation running =
        record_of(bed, "running", token, LK_STATE_IN_PROGRESS);
    struct lk_operation done =
        record_of(bed, "done", token + 1, LK_STATE_COMPLETED);
    struct lk_operation found = {0};

    assert_true(is_taken(bed, running));
    assert_true(is_taken(bed, done));
    running.lock_until_ms += HOUR_MS;
    done.expires_ms += HOUR_MS;
    assert_true(is_taken(bed, running));
    assert_true(is_taken(bed, done));
    running.lock_until_ms -= HOUR_MS;
    done.expires_ms -= HOUR_MS;
    assert_false(is_taken(bed, running));
    assert_false(is_taken(bed, done));
    bed_reopen(bed);
    assert_int_equal(look(bed, "running", &found), LK_STATE_IN_PROGRESS);
    assert_int_equal(found.lock_until_ms, running.lock_until_ms + HOUR_MS);
    lk_operation_free(&found);
    assert_int_equal(look(bed, "done", &found), LK_STATE_COMPLETED);
    assert_int_equal(found.expires_ms, done.expires_ms + HOUR_MS);
    lk_operation_free(&found);
    expect_replay(bed, "done", &answer);
}

static void an_expired_record_makes_room(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "old", 1);
    uint64_t token = fresh_tokens(bed);

    await_store_time(bed, done.expires_ms);
    /* One that is forgotten, and one that is not. */
    turn(bed);
    done = finish_new(bed, "l", "old", 1);
    await_store_time(bed, done.expires_ms);
    struct lk_operation pair[] = {
        record_of(bed, "k", token, LK_STATE_COMPLETED),
        record_of(bed, "l", 1, LK_STATE_COMPLETED)};
    assert_int_equal(give(bed, pair, 2).taken, 2);
    for (int round = 0; round < 2; round++) {
        expect_replay(bed, "k", &answer);
        expect_replay(bed, "l", &answer);
        bed_reopen(bed);
    }
    expect_clean(bed);
}

/* A record that this store has forgotten, rows of which are still there. */
static void what_was_forgotten_does_not_come_back(void **state)
{
    struct bed *bed = *state;
    uint64_t low = claim_new(bed, "low", "a");
    struct lk_outcome done = finish_new(bed, "k", "old", 1);

    await_store_time(bed, done.expires_ms);
    turn(bed);
    assert_true(is_taken(bed, record_of(bed, "k", low, LK_STATE_COMPLETED)));
    expect_replay(bed, "k", &answer);
    bed_reopen(bed);
    expect_replay(bed, "k", &answer);
    expect_clean(bed);
}

/* C25 */
static void imported_records_expire_like_any_other(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    uint64_t soon = stats_of(bed).now_ms + 50;
    struct lk_operation record = record_of(bed, "k", token, LK_STATE_COMPLETED);

    record.expires_ms = soon;
    record.number = token - 1;
    is_taken(bed, record);
    await_store_time(bed, soon);
    say(bed, claim_of(bed, "k", "a"), LK_VERDICT_NEW);
    for (int i = 0; i < 3; i++) {
        turn(bed);
    }
    bed_reopen(bed);
    assert_int_equal(look(bed, "k", NULL), LK_STATE_IN_PROGRESS);
    expect_clean(bed);
}

/* ---- The audit log, references, promises ------------------------------------
 */

struct count {
    struct lk_slice why;
    size_t found;
};

static bool count_entry(void *context, const struct lk_audit_entry *entry)
{
    struct count *count = context;

    count->found += latchkey_slice_equal(entry->why, count->why);
    return true;
}

static void audit_entries_come_once(void **state)
{
    struct bed *bed = *state;
    struct lk_audit_entry entries[] = {
        {.at_ms = 1700000000000,
         .who = LK_SLICE("ops"),
         .why = text(bed->tenant),
         .action = LK_SLICE("evict"),
         .name = {text(bed->tenant), LK_SLICE("s\xff"), LK_SLICE("k")},
         .token = 7},
        {.at_ms = 1700000000001,
         .who = LK_SLICE("ops"),
         .why = text(bed->tenant),
         .action = LK_SLICE("backup")},
    };
    struct count count = {text(bed->tenant), 0};

    for (int round = 0; round < 3; round++) {
        assert_int_equal(
            bed->store->class->import_audit(bed->store, entries, 2), LK_OK);
        count.found = 0;
        assert_int_equal(
            bed->store->class->audit(bed->store,
                                     &(struct lk_audit_query){.limit = 1000000},
                                     count_entry, &count),
            LK_OK);
        assert_int_equal(count.found, 2);
    }
}

static void a_store_in_use_keeps_its_own_references(void **state)
{
    struct bed *bed = *state;
    uint8_t secret[LK_REFERENCE_KEY];

    claim_new(bed, "k", "a");
    memcpy(secret, bed->store->reference_secret, sizeof(secret));
    assert_int_equal(bed->store->class->adopt(bed->store, secret), LK_OK);
    secret[0] ^= 1;
    assert_int_equal(bed->store->class->adopt(bed->store, secret), LK_BUSY);
    bed_reopen(bed);
    assert_int_equal(bed->store->reference_secret[0], secret[0] ^ 1);
}

static void an_empty_store_adopts_the_references_of_another(void **state)
{
    struct bed *bed = *state;
    uint8_t secret[LK_REFERENCE_KEY] = {1, 2, 3, 0xff};

    if (!is_embedded(bed)) {
        skip(); /* this one is shared and has been used */
    }
    assert_int_equal(bed->store->class->adopt(bed->store, secret), LK_OK);
    assert_memory_equal(bed->store->reference_secret, secret, sizeof(secret));
    bed_reopen(bed);
    assert_memory_equal(bed->store->reference_secret, secret, sizeof(secret));
}

static void what_cannot_be_is_refused_as_a_whole(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    struct lk_operation pair[] = {record_of(bed, "k", token, LK_STATE_RELEASED),
                                  record_of(bed, "l", 0, LK_STATE_RELEASED)};
    struct lk_import result = {0};

    assert_int_equal(bed->store->class->import(bed->store, pair, 2, &result),
                     LK_INVALID);
    assert_int_equal(look(bed, "k", NULL), LK_STATE_ABSENT);
    claim_new(bed, "k", "a"); /* and it still works */
}

static void a_store_says_what_it_promises(void **state)
{
    struct bed *bed = *state;
    struct lk_buf words = {0};
    bool strict = false;

    assert_int_equal(bed->store->class->describe(bed->store, &words, &strict),
                     LK_OK);
    assert_true(words.len > 20 && words.data[words.len - 1] == '\n');
    assert_true(strict || !is_embedded(bed));
    latchkey_buf_free(&words);
}

/* ---- There and back ---------------------------------------------------------
 */

struct copy {
    struct lk_slice tenant;
    struct lk_operation records[16];
    size_t count;
};

static bool copy_record(void *context, const struct lk_operation *record)
{
    struct copy *copy = context;

    if (!latchkey_slice_equal(record->name.tenant, copy->tenant)) {
        return true;
    }
    struct lk_operation *to = &copy->records[copy->count++];
    struct lk_slice *from[] = {&to->name.tenant, &to->name.scope, &to->name.key,
                               &to->fingerprint, &to->owner,      &to->reason};

    assert_true(copy->count <= 16);
    *to = *record;
    to->text = (struct lk_buf){0};
    to->stored = record->stored ? lk_stored_ref(record->stored) : NULL;
    assert_int_equal(latchkey_buf_reserve(&to->text, 4096), LK_OK);
    for (int i = 0; i < 6; i++) {
        const char *at = to->text.data + to->text.len;
        assert_int_equal(latchkey_buf_add_slice(&to->text, *from[i]), LK_OK);
        from[i]->data = at;
    }
    return true;
}

static void list_whole(struct bed *bed, struct copy *copy)
{
    struct lk_list_query query = {.any_state = true, .limit = 5, .whole = true};

    do {
        assert_int_equal(bed->store->class->list(bed->store, &query,
                                                 copy_record, copy,
                                                 &query.cursor),
                         LK_OK);
    } while (query.cursor);
}

static void a_whole_list_has_all_that_an_import_needs(void **state)
{
    struct bed *bed = *state;
    uint64_t token = fresh_tokens(bed);
    struct copy copy = {.tenant = text(bed->tenant)};
    struct lk_operation given[] = {
        record_of(bed, "a", token + 1, LK_STATE_IN_PROGRESS),
        record_of(bed, "b", token + 2, LK_STATE_UNCERTAIN),
        record_of(bed, "c", token + 3, LK_STATE_COMPLETED),
        record_of(bed, "d", token + 4, LK_STATE_COMPLETED),
        record_of(bed, "e", token + 5, LK_STATE_RELEASED),
        record_of(bed, "f", token + 6, LK_STATE_RELEASED)};

    given[0].keep_ms = 99 * HOUR_MS;
    given[1].generation = token - 5;
    given[1].attempt = 3;
    given[3].omitted = true;
    given[3].reason = LK_SLICE("too large");
    given[5].evicted = true;
    assert_int_equal(give(bed, given, 6).taken, 6);
    list_whole(bed, &copy);
    assert_int_equal(copy.count, 6);
    for (size_t i = 0; i < 6; i++) {
        struct lk_operation *got = &copy.records[i];
        struct lk_operation *want = &given[got->name.key.data[0] - 'a'];
        assert_int_equal(got->state, want->state);
        assert_int_equal(got->token, want->token);
        assert_int_equal(got->number, want->number);
        assert_int_equal(got->generation, want->generation);
        assert_int_equal(got->attempt, want->attempt);
        assert_int_equal(got->claimed_ms, want->claimed_ms);
        assert_int_equal(got->lock_until_ms, want->lock_until_ms);
        assert_int_equal(got->since_ms, want->since_ms);
        assert_int_equal(got->completed_ms, want->completed_ms);
        assert_int_equal(got->expires_ms, want->expires_ms);
        assert_int_equal(got->ttl_ms, want->ttl_ms);
        assert_int_equal(got->keep_ms, want->keep_ms);
        assert_int_equal(got->status, want->status);
        assert_int_equal(got->omitted, want->omitted);
        assert_int_equal(got->evicted, want->evicted);
        expect_bytes(got->owner, want->owner);
        expect_bytes(got->fingerprint, want->fingerprint);
        expect_bytes(got->reason, want->reason);
        if (want == &given[2]) {
            assert_non_null(got->stored);
            expect_bytes(got->stored->response.body, answer.body);
            expect_bytes(got->stored->response.headers, answer.headers);
        }
        lk_operation_free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name)                                                             \
    cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)
        TEST(an_empty_store_adopts_the_references_of_another),
        TEST(an_imported_answer_is_replayed_byte_for_byte),
        TEST(an_imported_claim_belongs_to_its_holder),
        TEST(new_tokens_are_above_the_imported_ones),
        TEST(an_imported_record_is_found_by_its_number),
        TEST(a_number_that_is_taken_is_replaced),
        TEST(a_token_that_is_taken_disturbs_neither),
        TEST(a_larger_token_is_newer),
        TEST(under_one_token_the_later_state_is_newer),
        TEST(a_release_elsewhere_does_not_undo_a_completion),
        TEST(in_one_state_the_longer_life_is_newer),
        TEST(an_expired_record_makes_room),
        TEST(what_was_forgotten_does_not_come_back),
        TEST(imported_records_expire_like_any_other),
        TEST(audit_entries_come_once),
        TEST(a_store_in_use_keeps_its_own_references),
        TEST(what_cannot_be_is_refused_as_a_whole),
        TEST(a_store_says_what_it_promises),
        TEST(a_whole_list_has_all_that_an_import_needs),
#undef TEST
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
