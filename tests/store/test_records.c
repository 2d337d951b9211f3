/*
 * test_records.c - finding, listing, resolving and evicting records, the audit
 * log, backup and restore. LATCHKEY_TEST_STORE names the store.
 */
#include "tests/store/fixture.h"

/* ---- Looking ----------------------------------------------------------------
 */

/* C35 */
static void a_record_is_found_by_key_and_by_reference(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "answer", HOUR_MS);
    struct lk_operation record = {0};

    for (int round = 0; round < 2; round++) {
        assert_int_equal(look(bed, "k", &record), LK_STATE_COMPLETED);
        assert_int_equal(record.number, done.number);
        assert_int_equal(record.token, done.token);
        lk_operation_free(&record);
        assert_int_equal(bed->store->class->find(bed->store, text(bed->tenant),
                                                 done.number, &record),
                         LK_OK);
        expect_bytes(record.name.tenant, text(bed->tenant));
        expect_bytes(record.name.scope, LK_SLICE("POST /payments"));
        expect_bytes(record.name.key, LK_SLICE("k"));
        expect_bytes(record.fingerprint, LK_SLICE("1:fingerprint"));
        assert_int_equal(record.status, 201);
        assert_int_equal(record.attempt, 1);
        assert_int_equal(record.expires_ms, done.expires_ms);
        assert_int_equal(record.completed_ms, done.now_ms);
        assert_non_null(record.stored);
        expect_bytes(record.stored->response.body, LK_SLICE("answer"));
        lk_operation_free(&record);
        bed_reopen(bed);
    }
}

static void a_record_in_progress_and_in_doubt_shows_its_times(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome out = say(bed, claim_of(bed, "k", "a"), LK_VERDICT_NEW);
    struct lk_operation record = {0};

    assert_int_equal(look(bed, "k", &record), LK_STATE_IN_PROGRESS);
    assert_int_equal(record.lock_until_ms, out.lock_until_ms);
    assert_int_equal(record.claimed_ms, out.now_ms);
    assert_null(record.stored);
    lk_operation_free(&record);
    out = say(bed, with_token(bed, LK_EVENT_DOUBT, "k", out.token),
              LK_VERDICT_DONE);
    assert_int_equal(look(bed, "k", &record), LK_STATE_UNCERTAIN);
    assert_int_equal(record.since_ms, out.now_ms);
    expect_bytes(record.reason, LK_SLICE("timed out"));
    lk_operation_free(&record);
}

/* C13, C18 */
static void another_tenant_finds_nothing(void **state)
{
    struct bed *bed = *state;
    struct bed other = *bed;
    struct lk_operation record = {0};
    struct lk_outcome done = finish_new(bed, "k", "mine", 0);

    snprintf(other.tenant, sizeof(other.tenant), "%.50s-other", bed->tenant);
    assert_int_equal(look(&other, "k", NULL), LK_STATE_ABSENT);
    assert_int_equal(bed->store->class->find(bed->store, text(other.tenant),
                                             done.number, &record),
                     LK_NOT_FOUND);
    assert_int_equal(bed->store->class->find(bed->store, text(bed->tenant),
                                             done.number + 12345, &record),
                     LK_NOT_FOUND);
    /* Who names no tenant looks at all of them. */
    assert_int_equal(bed->store->class->find(bed->store, (struct lk_slice){0},
                                             done.number, &record),
                     LK_OK);
    expect_bytes(record.name.tenant, text(bed->tenant));
    expect_bytes(record.name.key, LK_SLICE("k"));
    lk_operation_free(&record);
    assert_int_equal(bed->store->class->find(bed->store, (struct lk_slice){0},
                                             done.number + 12345, &record),
                     LK_NOT_FOUND);
    /* The same key is another operation. */
    uint64_t token = claim_new(&other, "k", "b");
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_REPLAY);
    say(&other, with_token(&other, LK_EVENT_COMPLETE, "k", done.token),
        LK_VERDICT_STALE);
    say(&other, with_token(&other, LK_EVENT_RELEASE, "k", token),
        LK_VERDICT_DONE);
    say(bed, claim_of(bed, "k", "b"), LK_VERDICT_REPLAY);
}

/* C14 */
static void parts_of_a_name_do_not_run_together(void **state)
{
    struct bed *bed = *state;
    struct lk_op op = claim_of(bed, "bc", "a");

    op.name.scope = LK_SLICE("a");
    op.hash = lk_name_hash(bed->store->secret, op.name);
    say(bed, op, LK_VERDICT_NEW);
    op.name.scope = LK_SLICE("ab");
    op.name.key = LK_SLICE("c");
    op.owner = LK_SLICE("b");
    op.hash = lk_name_hash(bed->store->secret, op.name);
    say(bed, op, LK_VERDICT_NEW);
}

/* ---- Listing
 * ----------------------------------------------------------------- */

struct tally {
    size_t count;
    size_t by_state[6];
    size_t other_tenants;
    size_t repeated;
    uint64_t last_number;
    uint8_t seen[1024];
    struct lk_slice tenant;
};

static bool tally_record(void *context, const struct lk_operation *record)
{
    struct tally *tally = context;
    unsigned long which = 0;
    char key[32] = "";

    memcpy(key, record->name.key.data,
           record->name.key.len < 31 ? record->name.key.len : 31);
    if (sscanf(key, "key-%lu", &which) == 1 && which < sizeof(tally->seen)) {
        tally->repeated += tally->seen[which]++ != 0;
    }
    tally->count++;
    tally->by_state[record->state]++;
    tally->other_tenants +=
        !latchkey_slice_equal(record->name.tenant, tally->tenant);
    return true;
}

static void list_all(struct bed *bed, struct lk_list_query query,
                     struct tally *tally)
{
    size_t rounds = 0;
    uint64_t next = 0;

    *tally = (struct tally){.tenant = text(bed->tenant)};
    do {
        query.cursor = next;
        assert_int_equal(bed->store->class->list(bed->store, &query,
                                                 tally_record, tally, &next),
                         LK_OK);
        assert_true(++rounds < 10000);
    } while (next);
}

static void fill_states(struct bed *bed, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof(key), "key-%zu", i);
        uint64_t token = claim_new(bed, key, "a");
        if (i % 3 == 1) {
            say(bed, complete_of(bed, key, token, "x"), LK_VERDICT_DONE);
        } else if (i % 3 == 2) {
            say(bed, with_token(bed, LK_EVENT_DOUBT, key, token),
                LK_VERDICT_DONE);
        }
    }
}

static void a_list_in_pages_shows_every_record_once(void **state)
{
    enum { COUNT = 90 };
    struct bed *bed = *state;
    struct bed other = *bed;
    struct tally tally;
    struct lk_list_query query = {
        .any_state = true, .tenant = text(bed->tenant), .limit = 7};

    snprintf(other.tenant, sizeof(other.tenant), "%.50s-other", bed->tenant);
    fill_states(bed, COUNT);
    claim_new(&other, "key-1", "a");
    list_all(bed, query, &tally);
    assert_int_equal(tally.count, COUNT);
    assert_int_equal(tally.repeated, 0);
    assert_int_equal(tally.other_tenants, 0);
    assert_int_equal(tally.by_state[LK_STATE_COMPLETED], COUNT / 3);

    query.any_state = false;
    query.state = LK_STATE_UNCERTAIN;
    list_all(bed, query, &tally);
    assert_int_equal(tally.count, COUNT / 3);
    assert_int_equal(tally.by_state[LK_STATE_UNCERTAIN], COUNT / 3);

    query.older_than_ms = HOUR_MS;
    list_all(bed, query, &tally);
    assert_int_equal(tally.count, 0);
}

/* Keys in the order of the list: "3 2 1 " */
static bool note_key(void *context, const struct lk_operation *record)
{
    char *keys = context;
    size_t len = strlen(keys);

    snprintf(keys + len, 256 - len, "%.*s ",
             (int)(record->name.key.len - strlen("key-")),
             record->name.key.data + strlen("key-"));
    return true;
}

static void expect_list(struct bed *bed, struct lk_list_query query,
                        const char *expected)
{
    char keys[256] = "";

    query.any_state = !query.state;
    query.limit = query.limit ? query.limit : 2;
    query.tenant = text(bed->tenant);
    do {
        assert_int_equal(bed->store->class->list(bed->store, &query, note_key,
                                                 keys, &query.cursor),
                         LK_OK);
    } while (query.cursor);
    assert_string_equal(keys, expected);
}

#define LISTED(...) ((struct lk_list_query){__VA_ARGS__})

static void a_list_goes_either_way_and_is_filtered(void **state)
{
    struct bed *bed = *state;
    struct lk_operation record = {0};
    struct lk_op op;

    fill_states(bed, 6); /* 0 and 3 in progress, 2 and 5 uncertain */
    op = claim_of(bed, "key-6", "a");
    op.name.scope = LK_SLICE("POST /refunds");
    op.hash = lk_name_hash(bed->store->secret, op.name);
    say(bed, op, LK_VERDICT_NEW);
    assert_int_equal(look(bed, "key-5", &record), LK_STATE_UNCERTAIN);
    uint64_t claimed_ms = record.claimed_ms;
    lk_operation_free(&record);

    for (int round = 0; round < 2; round++) {
        expect_list(bed, LISTED(.newest = false), "0 1 2 3 4 5 6 ");
        expect_list(bed, LISTED(.newest = true), "6 5 4 3 2 1 0 ");
        expect_list(bed, LISTED(.newest = true, .limit = 1), "6 5 4 3 2 1 0 ");
        expect_list(bed, LISTED(.newest = true, .state = LK_STATE_IN_PROGRESS),
                    "6 3 0 ");
        expect_list(bed, LISTED(.scope = LK_SLICE("POST /refunds")), "6 ");
        expect_list(bed, LISTED(.scope = LK_SLICE("POST")), "");
        expect_list(bed, LISTED(.since_ms = claimed_ms + HOUR_MS), "");
        expect_list(bed,
                    LISTED(.until_ms = claimed_ms + HOUR_MS, .newest = true),
                    "6 5 4 3 2 1 0 ");
        expect_list(bed, LISTED(.until_ms = 1), "");
        expect_list(bed, LISTED(.attention = true, .long_ms = HOUR_MS), "2 5 ");
        expect_list(bed, LISTED(.attention = true, .newest = true),
                    "6 5 3 2 0 ");
        expect_list(bed,
                    LISTED(.attention = true,
                           .scope = LK_SLICE("POST /refunds"), .limit = 1),
                    "6 ");
        bed_reopen(bed);
    }
}

/* A record that is listed twice or that moved is shown as it is now. */
static void a_list_shows_a_record_in_its_present_state_only(void **state)
{
    struct bed *bed = *state;
    struct tally tally;
    struct lk_list_query query = {
        .any_state = true, .tenant = text(bed->tenant), .limit = 100};
    uint64_t token = claim_new(bed, "key-1", "a");

    say(bed, with_token(bed, LK_EVENT_EXTEND, "key-1", token), LK_VERDICT_DONE);
    say(bed, with_token(bed, LK_EVENT_DOUBT, "key-1", token), LK_VERDICT_DONE);
    say(bed, complete_of(bed, "key-1", token, "x"), LK_VERDICT_DONE);
    list_all(bed, query, &tally);
    assert_int_equal(tally.count, 1);
    assert_int_equal(tally.by_state[LK_STATE_COMPLETED], 1);
    query.any_state = false;
    query.state = LK_STATE_IN_PROGRESS;
    list_all(bed, query, &tally);
    assert_int_equal(tally.count, 0);
}

/* ---- Operators
 * ---------------------------------------------------------------- */

struct audit_seen {
    struct bed *bed;
    size_t count;
    uint64_t last_id;
    char actions[8][32];
    char keys[8][32];
    char who[32], why[64];
    uint64_t token;
};

static void copy_slice(char *out, size_t size, struct lk_slice slice)
{
    snprintf(out, size, "%.*s", (int)slice.len, slice.data ? slice.data : "");
}

static bool see_audit(void *context, const struct lk_audit_entry *entry)
{
    struct audit_seen *seen = context;

    if (!latchkey_slice_equal(entry->name.tenant, text(seen->bed->tenant))) {
        return true;
    }
    assert_true(entry->id > seen->last_id);
    assert_true(entry->at_ms > 0);
    seen->last_id = entry->id;
    if (seen->count < 8) {
        copy_slice(seen->actions[seen->count], 32, entry->action);
        copy_slice(seen->keys[seen->count], 32, entry->name.key);
        copy_slice(seen->who, sizeof(seen->who), entry->who);
        copy_slice(seen->why, sizeof(seen->why), entry->why);
        seen->token = entry->token;
    }
    seen->count++;
    return true;
}

static struct audit_seen audit_of(struct bed *bed, uint64_t after)
{
    struct audit_seen seen = {.bed = bed};

    assert_int_equal(
        bed->store->class->audit(
            bed->store, &(struct lk_audit_query){.after = after, .limit = 1000},
            see_audit, &seen),
        LK_OK);
    return seen;
}

/* C35 */
static void an_operator_resolves_and_each_step_is_audited(void **state)
{
    struct bed *bed = *state;
    struct lk_op op;
    uint64_t one = claim_new(bed, "one", "a");
    uint64_t two = claim_new(bed, "two", "a");

    say(bed, with_token(bed, LK_EVENT_DOUBT, "one", one), LK_VERDICT_DONE);
    op = complete_of(bed, "one", 0, "proved");
    op.event = LK_EVENT_RESOLVE_COMPLETED;
    say(bed, op, LK_VERDICT_DONE);
    op = op_on(bed, LK_EVENT_RESOLVE_RELEASED, "two");
    say(bed, op, LK_VERDICT_INFLIGHT); /* its holder lives: no entry either */
    op.running = true;
    say(bed, op, LK_VERDICT_DONE);
    say(bed, op_on(bed, LK_EVENT_EVICT, "one"), LK_VERDICT_DONE);

    for (int round = 0; round < 2; round++) {
        struct audit_seen seen = audit_of(bed, 0);
        assert_int_equal(seen.count, 3);
        assert_string_equal(seen.actions[0], "resolve completed");
        assert_string_equal(seen.actions[1], "resolve released (running)");
        assert_string_equal(seen.actions[2], "evict");
        assert_string_equal(seen.keys[0], "one");
        assert_string_equal(seen.keys[1], "two");
        assert_string_equal(seen.who, "oncall");
        assert_string_equal(seen.why, "ticket 4711");
        assert_int_equal(seen.token, one);
        assert_int_equal(audit_of(bed, seen.last_id).count, 0);
        bed_reopen(bed);
    }
    say(bed, with_token(bed, LK_EVENT_COMPLETE, "two", two), LK_VERDICT_STALE);
}

/* What apps ask for is not in the log; what operators do is. */
static void an_operator_keeps_an_operation_for_longer(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "x", HOUR_MS);
    struct lk_op op = op_on(bed, LK_EVENT_KEEP, "k");
    struct lk_operation record = {0};

    op.who = op.why = (struct lk_slice){0};
    op.ttl_ms = 2 * HOUR_MS;
    say(bed, op, LK_VERDICT_DONE);
    assert_int_equal(audit_of(bed, 0).count, 0);
    op.who = LK_SLICE("oncall");
    op.why = LK_SLICE("ticket 4711");
    op.ttl_ms = 3 * HOUR_MS;
    say(bed, op, LK_VERDICT_DONE);
    op.name.key = LK_SLICE("unknown");
    op.hash = lk_name_hash(bed->store->secret, op.name);
    say(bed, op, LK_VERDICT_NIL);
    claim_new(bed, "open", "a");
    op.name.key = LK_SLICE("open");
    op.hash = lk_name_hash(bed->store->secret, op.name);
    say(bed, op, LK_VERDICT_DONE);

    bed_reopen(bed);
    assert_int_equal(look(bed, "k", &record), LK_STATE_COMPLETED);
    assert_true(record.expires_ms >= done.now_ms + 3 * HOUR_MS);
    assert_non_null(record.stored);
    expect_bytes(record.stored->response.body, LK_SLICE("x"));
    lk_operation_free(&record);
    struct audit_seen seen = audit_of(bed, 0);
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.actions[0], "keep");
    assert_string_equal(seen.keys[0], "k");
    assert_string_equal(seen.keys[1], "open");
    assert_string_equal(seen.who, "oncall");
}

/* "evict one, resolve released two", of this test's own tenant. */
static bool add_to_story(void *context, const struct lk_audit_entry *entry)
{
    char *story = context;
    size_t len = strlen(story);

    snprintf(story + len, 256 - len, "%s%.*s %.*s", len ? ", " : "",
             (int)entry->action.len, entry->action.data,
             (int)entry->name.key.len, entry->name.key.data);
    return true;
}

static void expect_story(struct bed *bed, struct lk_audit_query query,
                         const char *expected)
{
    char story[256] = "";

    query.name.tenant = text(bed->tenant);
    query.limit = query.limit ? query.limit : 1000;
    assert_int_equal(
        bed->store->class->audit(bed->store, &query, add_to_story, story),
        LK_OK);
    assert_string_equal(story, expected);
}

#define ASKED(...) ((struct lk_audit_query){__VA_ARGS__})

/* C35 */
static void the_audit_log_tells_the_story_that_is_asked_for(void **state)
{
    struct bed *bed = *state;
    struct lk_op op;
    struct audit_seen seen;
    uint64_t first, last;

    finish_new(bed, "one", "a", HOUR_MS);
    claim_new(bed, "two", "a");
    op = op_on(bed, LK_EVENT_RESOLVE_RELEASED, "two");
    op.running = true;
    op.who = LK_SLICE("root/anna");
    struct lk_outcome released = say(bed, op, LK_VERDICT_DONE);
    first = audit_of(bed, 0).last_id;
    op = op_on(bed, LK_EVENT_EVICT, "one");
    op.who = LK_SLICE("annabel");
    struct lk_outcome evicted = say(bed, op, LK_VERDICT_DONE);
    seen = audit_of(bed, 0);
    assert_int_equal(seen.count, 2);
    last = seen.last_id;

    expect_story(bed, ASKED(.limit = 9),
                 "resolve released (running) two, evict one");
    expect_story(bed, ASKED(.newest = true),
                 "evict one, resolve released (running) two");
    expect_story(bed, ASKED(.newest = true, .limit = 1), "evict one");
    expect_story(bed, ASKED(.newest = true, .before = last),
                 "resolve released (running) two");
    expect_story(bed, ASKED(.after = first), "evict one");
    expect_story(bed, ASKED(.after = first, .before = last), "");
    expect_story(bed, ASKED(.name.key = LK_SLICE("one")), "evict one");
    expect_story(bed, ASKED(.name.key = LK_SLICE("one"), .newest = true),
                 "evict one");
    expect_story(
        bed,
        ASKED(.name.key = LK_SLICE("one"), .name.scope = LK_SLICE("elsewhere")),
        "");
    expect_story(bed, ASKED(.who = LK_SLICE("annabel")), "evict one");
    expect_story(bed, ASKED(.who = LK_SLICE("anna")),
                 "resolve released (running) two");
    expect_story(bed, ASKED(.who = LK_SLICE("root")),
                 "resolve released (running) two");
    expect_story(bed, ASKED(.who = LK_SLICE("bel")), "");
    expect_story(bed, ASKED(.action = LK_SLICE("resolve released")),
                 "resolve released (running) two");
    expect_story(bed, ASKED(.action = LK_SLICE("resolve rel")), "");
    expect_story(
        bed, ASKED(.since_ms = released.now_ms, .until_ms = evicted.now_ms + 1),
        "resolve released (running) two, evict one");
    expect_story(bed, ASKED(.since_ms = evicted.now_ms + 1), "");
    expect_story(bed, ASKED(.until_ms = released.now_ms), "");
    expect_story(bed, ASKED(.job = released.token), ""); /* of no job */
}

static void a_resolved_record_replays_the_proved_answer(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");
    struct lk_op op = complete_of(bed, "k", 0, "proved");

    op.event = LK_EVENT_RESOLVE_COMPLETED;
    say(bed, with_token(bed, LK_EVENT_DOUBT, "k", token), LK_VERDICT_DONE);
    say(bed, op, LK_VERDICT_DONE);
    bed_reopen(bed);
    expect_replay(bed, "k", &op.response);
    /* The holder learns that it is decided; a second proof changes nothing. */
    say(bed, complete_of(bed, "k", token, "late"), LK_VERDICT_KEPT);
    op.response.body = LK_SLICE("another");
    say(bed, op, LK_VERDICT_KEPT);
    op.response.body = LK_SLICE("proved");
    expect_replay(bed, "k", &op.response);
}

/* A refused operator action leaves no trace, neither record nor audit. */
static void what_an_operator_may_not_do_changes_nothing(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "k", "a");

    say(bed, op_on(bed, LK_EVENT_EVICT, "k"), LK_VERDICT_NIL);
    say(bed, op_on(bed, LK_EVENT_EVICT, "unknown"), LK_VERDICT_NIL);
    say(bed, op_on(bed, LK_EVENT_RESOLVE_RELEASED, "unknown"), LK_VERDICT_NIL);
    assert_int_equal(audit_of(bed, 0).count, 0);
    say(bed, complete_of(bed, "k", token, "x"), LK_VERDICT_DONE);
}

static void an_evicted_key_is_a_new_operation(void **state)
{
    struct bed *bed = *state;
    struct lk_outcome done = finish_new(bed, "k", "x", 0);

    say(bed, op_on(bed, LK_EVENT_EVICT, "k"), LK_VERDICT_DONE);
    bed_reopen(bed);
    struct lk_outcome out = say(bed, claim_of(bed, "k", "b"), LK_VERDICT_NEW);
    assert_true(out.token > done.token);
    say(bed, with_token(bed, LK_EVENT_COMPLETE, "k", done.token),
        LK_VERDICT_STALE);
}

/* ---- Opening, backup, restore ----------------------------------------------
 */

static void reopening_keeps_every_state(void **state)
{
    struct bed *bed = *state;
    struct lk_store_stats before, after;

    fill_states(bed, 60);
    before = counted(bed);
    bed_reopen(bed);
    after = stats_of(bed);
    assert_memory_equal(before.by_state, after.by_state,
                        sizeof(before.by_state));
    assert_true(after.last_token >= before.last_token);
    assert_true(after.now_ms >= before.now_ms);
    expect_clean(bed);
}

static void a_file_has_one_owner(void **state)
{
    struct bed *bed = *state;
    struct bed second = *bed;
    struct lk_buf error = {0};

    if (!is_embedded(bed)) {
        skip();
    }
    assert_int_equal(
        lk_store_open(second.url, &second.config, &second.store, &error),
        LK_BUSY);
    assert_true(error.len > 0);
    assert_non_null(memmem(error.data, error.len, "latchkey.db", 11));
    latchkey_buf_free(&error);
    claim_new(bed, "k", "a");
    bed_reopen(bed);
}

static void a_url_without_a_store_is_refused_with_a_sentence(void **state)
{
    struct bed *bed = *state;
    struct bed other = *bed;
    struct lk_buf error = {0};

    snprintf(other.url, sizeof(other.url), "tape:/dev/null");
    assert_int_equal(
        lk_store_open(other.url, &other.config, &other.store, &error),
        LK_INVALID);
    assert_true(error.len > 0);
    latchkey_buf_free(&error);
    if (is_embedded(bed)) {
        snprintf(other.url, sizeof(other.url), "sqlite:%.200s/no/such/dir/x",
                 bed->dir);
        assert_int_not_equal(
            lk_store_open(other.url, &other.config, &other.store, &error),
            LK_OK);
        assert_true(error.len > 0);
        latchkey_buf_free(&error);
    }
}

static void open_backup(struct bed *bed, struct bed *restored)
{
    struct lk_buf error = {0};

    *restored = *bed;
    snprintf(restored->path, sizeof(restored->path), "%s/backup.db", bed->dir);
    snprintf(restored->url, sizeof(restored->url), "sqlite:%.500s",
             restored->path);
    assert_int_equal(bed->store->class->backup(bed->store, restored->path, NULL,
                                               NULL, &error),
                     LK_OK);
    /* A second one must not overwrite the first. */
    assert_int_not_equal(bed->store->class->backup(bed->store, restored->path,
                                                   NULL, NULL, &error),
                         LK_OK);
    assert_true(error.len > 0);
    latchkey_buf_free(&error);
    restored->store = NULL;
}

/* A restored file does not know what ran after the copy was made. */
static void a_restored_file_answers_what_it_knows_and_holds_the_rest(
    void **state)
{
    struct bed *bed = *state;
    struct bed restored;
    struct lk_response answer = {201, LK_SLICE("Content-Type: text/plain\r\n"),
                                 LK_SLICE("answer")};

    if (!is_embedded(bed)) {
        skip();
    }
    finish_new(bed, "done", "answer", 0);
    uint64_t token = claim_new(bed, "running", "a");
    uint64_t doubted = claim_new(bed, "doubted", "a");
    say(bed, with_token(bed, LK_EVENT_DOUBT, "doubted", doubted),
        LK_VERDICT_DONE);
    open_backup(bed, &restored);
    struct lk_outcome later = finish_new(bed, "later", "lost", 0);
    bed_close(bed);

    bed_open(&restored);
    assert_true(stats_of(&restored).hold_until_ms > stats_of(&restored).now_ms);
    expect_replay(&restored, "done", &answer);
    struct lk_op op = claim_of(&restored, "later", "b");
    apply_all(&restored, &op, 1, false);
    assert_int_equal(op.status, LK_UNAVAILABLE);
    if (restored.store->class->peek) {
        assert_int_not_equal(restored.store->class->peek(restored.store, &op),
                             LK_OK);
    }
    say(&restored, complete_of(&restored, "running", token, "x"),
        LK_VERDICT_DONE);
    bed_reopen(&restored);
    op = claim_of(&restored, "later", "b");
    apply_all(&restored, &op, 1, false);
    assert_int_equal(op.status, LK_UNAVAILABLE);
    /* Tokens handed out after the copy are never handed out again. */
    op = claim_of(&restored, "doubted", "b");
    op.reexecute = true;
    apply_all(&restored, &op, 1, false);
    assert_int_equal(op.status, LK_UNAVAILABLE);
    assert_true(stats_of(&restored).last_token > later.token);
    expect_clean(&restored);
    bed_close(&restored);
    bed_open(bed);
}

/* Free in the copy says nothing: it may have been run since. */
static void a_restored_file_holds_what_was_free_when_it_was_copied(void **state)
{
    struct bed *bed = *state;
    struct bed restored;
    static const char *const keys[] = {"released", "evicted", "expired"};

    if (!is_embedded(bed)) {
        skip();
    }
    uint64_t token = claim_new(bed, "released", "a");
    say(bed, with_token(bed, LK_EVENT_RELEASE, "released", token),
        LK_VERDICT_DONE);
    finish_new(bed, "evicted", "x", 0);
    say(bed, op_on(bed, LK_EVENT_EVICT, "evicted"), LK_VERDICT_DONE);
    struct lk_outcome past = finish_new(bed, "expired", "x", 1);
    await_store_time(bed, past.expires_ms);
    open_backup(bed, &restored);
    for (size_t i = 0; i < 3; i++) {
        finish_new(bed, keys[i], "ran after the copy", 0);
    }
    bed_close(bed);

    bed_open(&restored);
    enum lk_status statuses[3];
    for (size_t i = 0; i < 3; i++) {
        struct lk_op op = claim_of(&restored, keys[i], "b");
        apply_all(&restored, &op, 1, false);
        statuses[i] = op.status;
    }
    bed_close(&restored);
    bed_open(bed);
    for (size_t i = 0; i < 3; i++) {
        if (statuses[i] != LK_UNAVAILABLE) {
            fail_msg("%s: %s", keys[i], latchkey_status_name(statuses[i]));
        }
    }
}

static void statistics_follow_what_happens(void **state)
{
    struct bed *bed = *state;
    struct lk_store_stats before = counted(bed);

    finish_new(bed, "a", "x", 0);
    claim_new(bed, "b", "a");
    assert_int_equal(stats_of(bed).batch_ops, before.batch_ops + 3);
    struct lk_store_stats now = counted(bed);
    assert_int_equal(now.by_state[LK_STATE_COMPLETED],
                     before.by_state[LK_STATE_COMPLETED] + 1);
    assert_int_equal(now.by_state[LK_STATE_IN_PROGRESS],
                     before.by_state[LK_STATE_IN_PROGRESS] + 1);
    assert_true(now.available);
    assert_false(now.clock_held);
}

#define IN_BED(test)                                                           \
    cmocka_unit_test_setup_teardown(test, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BED(a_record_is_found_by_key_and_by_reference),
        IN_BED(a_record_in_progress_and_in_doubt_shows_its_times),
        IN_BED(another_tenant_finds_nothing),
        IN_BED(parts_of_a_name_do_not_run_together),
        IN_BED(a_list_in_pages_shows_every_record_once),
        IN_BED(a_list_goes_either_way_and_is_filtered),
        IN_BED(a_list_shows_a_record_in_its_present_state_only),
        IN_BED(an_operator_resolves_and_each_step_is_audited),
        IN_BED(an_operator_keeps_an_operation_for_longer),
        IN_BED(the_audit_log_tells_the_story_that_is_asked_for),
        IN_BED(a_resolved_record_replays_the_proved_answer),
        IN_BED(what_an_operator_may_not_do_changes_nothing),
        IN_BED(an_evicted_key_is_a_new_operation),
        IN_BED(reopening_keeps_every_state),
        IN_BED(a_file_has_one_owner),
        IN_BED(a_url_without_a_store_is_refused_with_a_sentence),
        IN_BED(a_restored_file_answers_what_it_knows_and_holds_the_rest),
        IN_BED(a_restored_file_holds_what_was_free_when_it_was_copied),
        IN_BED(statistics_follow_what_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
