/*
 * test_files.c - the embedded store and its files: who owns them, what a copy
 * may do, what damage does, and what is given back.
 */
#include "tests/store/fixture.h"

#include <sqlite3.h>

#define IN_BED(test)                                                           \
    cmocka_unit_test_setup_teardown(test, bed_setup, bed_teardown)

static void skip_unless_embedded(const struct bed *bed)
{
    if (!is_embedded(bed)) {
        skip();
    }
}

static void run_sql(const struct bed *bed, const char *sql)
{
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open(bed->path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* Two names for one database are still one database. */
static void a_link_to_the_file_does_not_make_a_second_owner(void **state)
{
    struct bed *bed = *state;
    struct bed other = *bed;

    skip_unless_embedded(bed);
    const char *names[] = {"soft.db", "hard.db"};
    for (int i = 0; i < 2; i++) {
        snprintf(other.path, sizeof(other.path), "%s/%s", bed->dir, names[i]);
        snprintf(other.url, sizeof(other.url), "sqlite:%.500s", other.path);
        assert_int_equal(i ? link(bed->path, other.path)
                           : symlink(bed->path, other.path),
                         0);
        assert_int_equal(bed_try_open(&other), LK_BUSY);
    }
}

/* Its disk may not be mounted: a new store would know of nothing. */
static void a_link_to_no_file_is_refused_until_there_is_one(void **state)
{
    struct bed *bed = *state;
    struct bed other = *bed;
    char target[600];
    char side[700];
    struct stat info;

    skip_unless_embedded(bed);
    snprintf(target, sizeof(target), "%s/target.db", bed->dir);
    snprintf(other.path, sizeof(other.path), "%.240s/link.db", bed->dir);
    snprintf(other.url, sizeof(other.url), "sqlite:%.500s", other.path);
    assert_int_equal(symlink("target.db", other.path), 0);
    assert_int_equal(bed_try_open(&other), LK_INVALID);
    assert_int_not_equal(stat(target, &info), 0);
    snprintf(side, sizeof(side), "%s-lock", other.path);
    assert_int_not_equal(stat(side, &info), 0);

    fclose(fopen(target, "w"));
    for (int i = 0; i < 2; i++) {
        bed_open(&other);
        assert_int_equal(stats_of(&other).hold_until_ms, 0);
        bed_close(&other);
    }
    snprintf(side, sizeof(side), "%s-lock", target);
    assert_int_equal(stat(side, &info), 0);
}

static void make_copy(struct bed *bed, const char *path)
{
    struct lk_buf error = {0};

    assert_int_equal(
        bed->store->class->backup(bed->store, path, NULL, NULL, &error), LK_OK);
    latchkey_buf_free(&error);
}

static void expect_no_copy(struct bed *bed, const char *path)
{
    struct lk_buf error = {0};

    assert_int_equal(
        bed->store->class->backup(bed->store, path, NULL, NULL, &error),
        LK_INVALID);
    assert_non_null(strstr(error.data, "a file of the store itself"));
    latchkey_buf_free(&error);
}

/* By whatever name: the next start would take it for its own and delete it. */
static void a_copy_onto_a_file_of_the_store_is_refused(void **state)
{
    static const char *const suffixes[] = {"", "-journal", "-wal", "-shm",
                                           "-lock"};
    struct bed *bed = *state;
    char path[1024];
    char other[600];
    struct stat info;

    skip_unless_embedded(bed);
    snprintf(other, sizeof(other), "%s/other", bed->dir);
    assert_int_equal(symlink(".", other), 0);
    finish_new(bed, "known", "answer", 0);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(*suffixes); i++) {
        snprintf(path, sizeof(path), "%s%s", bed->path, suffixes[i]);
        bool was_there = !stat(path, &info);
        expect_no_copy(bed, path);
        assert_int_equal(!stat(path, &info), was_there);
        snprintf(path, sizeof(path), "%s/./other/latchkey.db%s", bed->dir,
                 suffixes[i]);
        expect_no_copy(bed, path);
    }
    snprintf(path, sizeof(path), "%s/hard", bed->dir);
    assert_int_equal(link(bed->path, path), 0);
    expect_no_copy(bed, path);
    bed_reopen(bed);
    assert_int_equal(look(bed, "known", NULL), LK_STATE_COMPLETED);
    expect_clean(bed);
}

static void put_back(struct bed *bed, const char *copy)
{
    char command[4096];

    bed_close(bed);
    snprintf(command, sizeof(command), "rm -f '%s'-wal '%s'-shm; cp '%s' '%s'",
             bed->path, bed->path, copy, bed->path);
    assert_int_equal(system(command), 0);
    bed_open(bed);
}

/* Otherwise a holder from the first restore could complete for the second. */
static void two_restores_of_one_copy_share_no_token(void **state)
{
    struct bed *bed = *state;
    char copy[600];
    uint64_t before = 0;

    skip_unless_embedded(bed);
    finish_new(bed, "known", "answer", 0);
    snprintf(copy, sizeof(copy), "%s/copy.db", bed->dir);
    make_copy(bed, copy);
    for (int i = 0; i < 3; i++) {
        put_back(bed, copy);
        uint64_t token = stats_of(bed).last_token;
        assert_true(token > before + 1000000);
        before = token;
    }
}

static void a_log_that_is_not_the_copys_own_is_refused(void **state)
{
    struct bed *bed = *state;
    char command[4096];
    char copy[600];

    skip_unless_embedded(bed);
    snprintf(copy, sizeof(copy), "%s/copy.db", bed->dir);
    make_copy(bed, copy);
    bed_close(bed);
    snprintf(command, sizeof(command),
             "cp '%s' '%s' && echo left over >'%s'-wal", copy, bed->path,
             bed->path);
    assert_int_equal(system(command), 0);
    assert_int_equal(bed_try_open(bed), LK_INVALID);
    snprintf(command, sizeof(command), "rm '%s'-wal", bed->path);
    assert_int_equal(system(command), 0);
    bed_open(bed);
}

static void a_later_schema_or_a_foreign_file_is_refused(void **state)
{
    struct bed *bed = *state;

    skip_unless_embedded(bed);
    bed_close(bed);
    run_sql(bed, "PRAGMA user_version = 99");
    assert_int_equal(bed_try_open(bed), LK_VERSION);
    run_sql(bed, "PRAGMA user_version = 1; PRAGMA application_id = 7");
    assert_int_equal(bed_try_open(bed), LK_INVALID);
    empty_directory(bed);
    bed_open(bed);
}

/* KEEP is a promise; a shorter TTL at completion does not break it. */
static void what_keep_promised_outlasts_a_shorter_ttl(void **state)
{
    struct bed *bed = *state;
    uint64_t token = claim_new(bed, "kept", "first");
    struct lk_op keep = with_token(bed, LK_EVENT_KEEP, "kept", 0);

    keep.ttl_ms = HOUR_MS;
    say(bed, keep, LK_VERDICT_DONE);
    if (is_embedded(bed)) {
        bed_reopen(bed);
    }
    struct lk_op done = complete_of(bed, "kept", token, "answer");
    done.ttl_ms = 10;
    struct lk_outcome out = say(bed, done, LK_VERDICT_DONE);
    assert_true(out.expires_ms >= out.now_ms + HOUR_MS);
}

/* A record that is tried again and again keeps two rows, not thousands. */
static void overtaken_claims_of_a_live_record_are_given_back(void **state)
{
    struct bed *bed = *state;

    for (int i = 0; i < 500; i++) {
        uint64_t token = claim_new(bed, "again", "first");
        say(bed, with_token(bed, LK_EVENT_RELEASE, "again", token),
            LK_VERDICT_DONE);
    }
    for (int i = 0; i < 10; i++) {
        turn(bed);
    }
    assert_int_equal(stats_of(bed).dead_rows, 0);
    struct lk_outcome out =
        say(bed, claim_of(bed, "again", "first"), LK_VERDICT_NEW);
    assert_int_equal(out.attempt, 501);
}

static void reopen_on_damage(struct bed *bed, const char *sql)
{
    bed_close(bed);
    run_sql(bed, sql);
    bed_open(bed);
}

/* Rows that do not fit together are told as damage, not tried for ever. */
static void a_record_in_pieces_ends_in_an_error(void **state)
{
    static const char *const damage[] = {
        "DELETE FROM answer",
        "UPDATE answer SET record = NULL",
        "UPDATE answer SET record = x'a101'",
    };
    struct bed *bed = *state;

    skip_unless_embedded(bed);
    for (size_t i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        char key[16];
        struct lk_operation record;
        snprintf(key, sizeof(key), "piece-%zu", i);
        finish_new(bed, key, "answer", 0);
        reopen_on_damage(bed, damage[i]);
        struct lk_op op = claim_of(bed, key, "retry");
        apply_all(bed, &op, 1, false);
        expect_verdict(&op, LK_VERDICT_REPLAY);
        assert_int_not_equal(bed->store->class->load(bed->store, &op), LK_OK);
        assert_int_not_equal(bed->store->class->load(bed->store, &op),
                             LK_AGAIN);
        assert_int_not_equal(
            bed->store->class->lookup(bed->store, op.name, &record), LK_OK);
        lk_op_clear(&op);
    }
}

/* The first to meet it has the store reopened; then it is said, and the store
 * goes on. */
static void damage_is_said_when_it_is_met_again(void **state)
{
    struct bed *bed = *state;

    skip_unless_embedded(bed);
    uint64_t token = claim_new(bed, "doubted", "a");
    say(bed, with_token(bed, LK_EVENT_DOUBT, "doubted", token),
        LK_VERDICT_DONE);
    reopen_on_damage(bed, "UPDATE answer SET record = x'a101'");
    struct lk_op op = claim_of(bed, "doubted", "b");
    apply_all(bed, &op, 1, false);
    assert_int_equal(op.status, LK_UNAVAILABLE);
    for (int i = 0; i < 3; i++) {
        apply_all(bed, &op, 1, false);
        assert_int_equal(op.status, LK_CORRUPT);
        claim_new(bed, "another", "a");
    }
    assert_int_equal(stats_of(bed).reopened, 1);
}

static void verify_finds_every_kind_of_damage(void **state)
{
    static const char *const damage[] = {
        "UPDATE claim SET key = 'another'",
        "UPDATE claim SET hash = x'00'; ",
        "DELETE FROM answer",
        "UPDATE answer SET record = x'a101'",
        "DELETE FROM outcome",
        "UPDATE outcome SET kind = 99",
        "INSERT INTO outcome VALUES (999999, 1, 1, 1, zeroblob(16))",
    };
    struct bed *bed = *state;

    skip_unless_embedded(bed);
    for (size_t i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
        struct lk_buf report = {0};
        bed_close(bed);
        empty_directory(bed);
        bed_open(bed);
        finish_new(bed, "fine", "answer", 0);
        assert_int_equal(
            bed->store->class->verify(bed->store, NULL, NULL, &report), LK_OK);
        run_sql(bed, damage[i]);
        if (bed->store->class->verify(bed->store, NULL, NULL, &report) !=
                LK_CORRUPT ||
            !report.len) {
            fail_msg("not found: %s", damage[i]);
        }
        latchkey_buf_free(&report);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BED(a_link_to_the_file_does_not_make_a_second_owner),
        IN_BED(a_link_to_no_file_is_refused_until_there_is_one),
        IN_BED(a_copy_onto_a_file_of_the_store_is_refused),
        IN_BED(two_restores_of_one_copy_share_no_token),
        IN_BED(a_log_that_is_not_the_copys_own_is_refused),
        IN_BED(a_later_schema_or_a_foreign_file_is_refused),
        IN_BED(what_keep_promised_outlasts_a_shorter_ttl),
        IN_BED(overtaken_claims_of_a_live_record_are_given_back),
        IN_BED(a_record_in_pieces_ends_in_an_error),
        IN_BED(damage_is_said_when_it_is_met_again),
        IN_BED(verify_finds_every_kind_of_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
