/*
 * test_faults.c - writes, syncs and allocations that fail at every n-th call:
 * nothing is acknowledged that is not there, and the store recovers (C19, C23).
 */
#include "tests/store/model.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- A disk that fails
 * -------------------------------------------------------- */

static struct model *small_model_on_disk(struct bed *bed)
{
    struct model *model = model_on_disk(bed);

    bed->config.checkpoint_pages = 6;
    bed->config.reap_rows = 8;
    return model;
}

static void start_empty(struct model *model, struct bed *bed, uint64_t seed)
{
    bed_close(bed);
    empty_directory(bed);
    disk_reset(seed);
    model_start(model, bed, seed);
    bed_open(bed);
}

/* The store must come back by itself; nothing but batches is sent. */
static void await_recovery(struct model *model)
{
    uint64_t give_up = monotonic_ms() + 20000;

    turn(model->bed);
    while (!stats_of(model->bed).available) {
        if (monotonic_ms() > give_up) {
            violate(model, "the store did not recover");
            return;
        }
        pause_ms(2);
        turn(model->bed);
    }
}

/* Goes on until the failure has struck, and compares at once if it did. */
static void work_with_failure(struct model *model, unsigned batches)
{
    for (unsigned i = 0; i < batches && !model->violations; i++) {
        uint64_t failed = disk.failed;
        send_random(model);
        if (disk.failed != failed || !stats_of(model->bed).available) {
            await_recovery(model);
            observe_all(model);
        }
    }
}

static void lose_power(struct model *model)
{
    disk_power_off();
    bed_close(model->bed);
    disk_power_on();
    bed_open(model->bed);
}

struct fault_plan {
    enum disk_call call;
    enum disk_target target;
    unsigned calls; /* how many positions are tried */
    unsigned step;
};

static bool run_plan(struct model *model, struct bed *bed,
                     const struct fault_plan *plan, bool full, unsigned after)
{
    start_empty(model, bed, after * 8 + plan->call * 2 + full + 1);
    disk.failure = (struct disk_failure){.call = plan->call,
                                         .target = plan->target,
                                         .full = full,
                                         .after = after,
                                         .count = 1 + after % 3};
    work_with_failure(model, 14);
    bool struck = disk.failed != 0;
    disk.failure.count = 0;
    await_recovery(model);
    probe_all(model);
    work_with_failure(model, 3);
    verify_store(model);
    /* What was acknowledged since the failure must be on the disk as well. */
    lose_power(model);
    observe_all(model);
    verify_store(model);
    return struck;
}

static void try_plan(struct bed *bed, struct fault_plan plan, bool full)
{
    struct model *model = small_model_on_disk(bed);
    unsigned struck = 0;
    uint64_t refused = 0;

    for (unsigned after = 0; after < plan.calls; after += plan.step) {
        struck += run_plan(model, bed, &plan, full, after);
        refused += model->refused;
        if (model->violations) {
            fail_msg("call %u: %s", after, model->first);
        }
    }
    print_message("failed in %u runs, %llu operations refused\n", struck,
                  (unsigned long long)refused);
    assert_true(struck > 0);
    free(model);
}

/* C23 */
static void a_log_write_that_fails_is_not_acknowledged(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_WRITE, DISK_LOG, 90, 3}, false);
}

/* C19, C23 */
static void a_log_write_without_space_is_not_acknowledged(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_WRITE, DISK_LOG, 90, 3}, true);
}

/* C23 */
static void a_log_sync_that_fails_is_not_acknowledged(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_SYNC, DISK_LOG, 24, 1}, false);
}

/* C23 */
static void a_checkpoint_write_that_fails_loses_nothing(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_WRITE, DISK_DB, 40, 3}, false);
}

/* C19, C23 */
static void a_checkpoint_write_without_space_loses_nothing(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_WRITE, DISK_DB, 40, 3}, true);
}

/* C23 */
static void a_checkpoint_sync_that_fails_loses_nothing(void **state)
{
    try_plan(*state, (struct fault_plan){DISK_SYNC, DISK_DB, 8, 1}, false);
}

static void note_damage(void *context, int level, const char *line)
{
    if (strstr(line, "damage") || strstr(line, "malformed")) {
        print_error("%s\n", line);
        ++*(unsigned *)context;
    }
}

/* A read that fails looks like a malformed database to SQLite. Damage is what
 * is still there when it is read again. */
static void a_read_that_fails_is_not_called_damage(void **state)
{
    struct bed *bed = *state;
    unsigned damage = 0;

    bed->config.cache_pages = 4;
    bed->config.log = note_damage;
    bed->config.log_context = &damage;
    try_plan(bed, (struct fault_plan){DISK_READ, DISK_ANY, 60, 2}, false);
    assert_int_equal(damage, 0);
    bed->config.log = NULL;
}

enum { CROWD = 300 };

/* Operations with long names, on many pages, that expire at once. Returns when
 * the last one does. */
static uint64_t finish_crowd(struct bed *bed)
{
    static struct lk_op ops[CROWD];
    static char keys[CROWD][220];

    for (unsigned i = 0; i < CROWD; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%0200u", i);
        ops[i] = claim_of(bed, keys[i], "a");
    }
    apply_all(bed, ops, CROWD, false);
    for (unsigned i = 0; i < CROWD; i++) {
        expect_verdict(&ops[i], LK_VERDICT_NEW);
        ops[i] = complete_of(bed, keys[i], ops[i].out.token, "answer");
        ops[i].ttl_ms = 1;
    }
    apply_all(bed, ops, CROWD, false);
    expect_verdict(&ops[CROWD - 1], LK_VERDICT_DONE);
    return ops[CROWD - 1].out.expires_ms;
}

static struct model *reaping_model(struct bed *bed, unsigned *damage)
{
    struct model *model = small_model_on_disk(bed);

    bed->config.cache_pages = 4;
    bed->config.reap_rows = 64;
    bed->config.log = note_damage;
    bed->config.log_context = damage;
    return model;
}

/* C25: it goes on as soon as it can read again. */
static void a_read_that_fails_does_not_stop_the_reaper(void **state)
{
    struct bed *bed = *state;
    unsigned damage = 0;
    unsigned struck = 0;
    struct model *model = reaping_model(bed, &damage);

    for (unsigned after = 0; after < 16; after += 3) {
        start_empty(model, bed, after + 1);
        await_store_time(bed, finish_crowd(bed));
        disk.failure = (struct disk_failure){
            .call = DISK_READ, .after = after, .count = 1};
        uint64_t give_up = monotonic_ms() + 20000;
        do {
            turn(bed);
            assert_true(monotonic_ms() < give_up);
        } while (!stats_of(bed).available || stats_of(bed).operations ||
                 stats_of(bed).dead_rows);
        struck += disk.failed != 0;
    }
    assert_int_equal(damage, 0);
    assert_true(struck > 0);
    bed->config.log = NULL;
    free(model);
}

/* The reason of a doubt is read while the retry is decided. */
static void a_retry_whose_read_fails_is_refused_for_now(void **state)
{
    struct bed *bed = *state;
    unsigned damage = 0;
    unsigned struck = 0;
    struct model *model = reaping_model(bed, &damage);

    for (unsigned after = 0; after < 6; after++) {
        start_empty(model, bed, after + 1);
        uint64_t token = claim_new(bed, "doubted", "a");
        say(bed, with_token(bed, LK_EVENT_DOUBT, "doubted", token),
            LK_VERDICT_DONE);
        (void)finish_crowd(bed);
        disk.failure = (struct disk_failure){
            .call = DISK_READ, .after = after, .count = 1};
        struct lk_op op = claim_of(bed, "doubted", "b");
        apply_all(bed, &op, 1, false);
        assert_true(op.status == LK_OK || op.status == LK_UNAVAILABLE);
        struck += op.status == LK_UNAVAILABLE;
        lk_op_clear(&op);
        disk.failure.count = 0;
        await_recovery(model);
        say(bed, claim_of(bed, "doubted", "b"), LK_VERDICT_UNCERTAIN);
    }
    assert_int_equal(damage, 0);
    assert_true(struck > 0);
    bed->config.log = NULL;
    free(model);
}

/* C19: refused at once, answers still served, and it goes on by itself. */
static void a_full_disk_refuses_and_work_resumes_with_space(void **state)
{
    struct bed *bed = *state;
    struct model *model = small_model_on_disk(bed);

    start_empty(model, bed, 1);
    struct lk_outcome done = finish_new(bed, "done", "answer", 0);
    uint64_t token = claim_new(bed, "running", "a");
    disk.failure = (struct disk_failure){
        .call = DISK_WRITE, .full = true, .count = UINT64_MAX};
    for (int i = 0; i < 5; i++) {
        struct lk_op ops[] = {claim_of(bed, "new", "a"),
                              complete_of(bed, "running", token, "x")};
        apply_all(bed, ops, 2, true);
        assert_int_equal(ops[0].status, LK_UNAVAILABLE);
        assert_int_equal(ops[1].status, LK_UNAVAILABLE);
    }
    assert_false(stats_of(bed).available);
    assert_true(strlen(stats_of(bed).failure) > 0);
    struct lk_op retry = claim_of(bed, "done", "b");
    if (bed->store->class->peek &&
        bed->store->class->peek(bed->store, &retry) == LK_OK) {
        expect_verdict(&retry, LK_VERDICT_REPLAY);
        assert_int_equal(retry.out.token, done.token);
        lk_op_clear(&retry);
    }
    assert_int_equal(look(bed, "new", NULL), LK_STATE_ABSENT);
    assert_int_equal(look(bed, "running", NULL), LK_STATE_IN_PROGRESS);

    disk.failure.count = 0;
    await_recovery(model);
    assert_int_equal(model->violations, 0);
    claim_new(bed, "new", "b");
    say(bed, complete_of(bed, "running", token, "x"), LK_VERDICT_DONE);
    lose_power(model);
    assert_int_equal(look(bed, "new", NULL), LK_STATE_IN_PROGRESS);
    assert_int_equal(look(bed, "running", NULL), LK_STATE_COMPLETED);
    expect_clean(bed);
    free(model);
}

/* While the disk is broken nothing is promised; then all is as before. */
static void a_disk_that_fails_for_a_while_is_survived(void **state)
{
    struct bed *bed = *state;
    struct model *model = small_model_on_disk(bed);

    for (unsigned call = DISK_WRITE; call <= DISK_SYNC; call++) {
        start_empty(model, bed, call + 1);
        for (int i = 0; i < 5; i++) {
            send_random(model);
        }
        disk.failure = (struct disk_failure){.call = (enum disk_call)call,
                                             .count = UINT64_MAX};
        struct lk_op op = claim_of(bed, "never", "a");
        apply_all(bed, &op, 1, false);
        assert_int_not_equal(op.status, LK_OK);
        uint64_t until = monotonic_ms() + 250;
        while (monotonic_ms() < until) {
            op = claim_of(bed, "never either", "a");
            apply_all(bed, &op, 1, true);
            assert_int_not_equal(op.status, LK_OK);
            pause_ms(5);
        }
        disk.failure.count = 0;
        await_recovery(model);
        observe_all(model);
        probe_all(model);
        if (model->violations) {
            fail_msg("%s", model->first);
        }
        expect_clean(bed);
    }
    free(model);
}

/* ---- Other files in the place of its own
 * ---------------------------------------- */

static void in_folder(const struct bed *bed, const char *script)
{
    char command[2048];

    snprintf(command, sizeof(command), "cd '%s' && { %s; }", bed->dir, script);
    assert_int_equal(system(command), 0);
}

/* A claim whose sync fails: the next batch has to reopen the store. */
static void break_store(struct bed *bed)
{
    disk.failure = (struct disk_failure){
        .call = DISK_SYNC, .target = DISK_LOG, .count = 1};
    struct lk_op op = claim_of(bed, "unknown", "a");
    apply_all(bed, &op, 1, false);
    assert_int_equal(op.status, LK_UNKNOWN);
}

static void expect_refused(struct bed *bed)
{
    uint64_t until = monotonic_ms() + 250; /* it tries every 100 ms */

    while (monotonic_ms() < until) {
        struct lk_op op = claim_of(bed, "done", "b");
        apply_all(bed, &op, 1, true);
        assert_int_equal(op.status, LK_UNAVAILABLE);
        pause_ms(5);
    }
    assert_non_null(strstr(stats_of(bed).failure, "back, or restart"));
}

struct swap {
    const char *in; /* puts something else there */
    const char *back;
};

#define ASIDE "mv latchkey.db db.old; mv latchkey.db-wal wal.old; "
#define BACK  "mv db.old latchkey.db; mv wal.old latchkey.db-wal"
/* The same files with other bytes in them: also seen by what they say. */
#define KEEP_BYTES "cp latchkey.db db.old; cp latchkey.db-wal wal.old; "
#define BACK_BYTES "cat db.old >latchkey.db; cat wal.old >latchkey.db-wal"

static void start_with_copies(struct model *model, struct bed *bed)
{
    char copy[600];
    struct lk_buf error = {0};

    start_empty(model, bed, 1);
    bed->config.checkpoint_pages = 1000;
    bed_reopen(bed);
    claim_new(bed, "done", "a");
    snprintf(copy, sizeof(copy), "%s/copy.db", bed->dir);
    assert_int_equal(
        bed->store->class->backup(bed->store, copy, NULL, NULL, &error), LK_OK);
    in_folder(bed, "cp latchkey.db raw.db; cp latchkey.db-wal raw.db-wal");
    say(bed,
        complete_of(bed, "done", claim_new(bed, "done", "a"), "the answer"),
        LK_VERDICT_DONE);
    claim_new(bed, "later", "a");
}

/* C20: this process has acknowledged things that another file does not know,
 * and only a start can hold and leap. */
static void a_reopening_refuses_other_files_than_its_own(void **state)
{
    static const struct swap swaps[] = {
        {ASIDE "cp copy.db latchkey.db", BACK},
        {ASIDE "true", BACK},
        {ASIDE "cp db.old latchkey.db; cp wal.old latchkey.db-wal", BACK},
        {"mv latchkey.db-wal wal.old", "mv wal.old latchkey.db-wal"},
        {"mv latchkey.db-wal wal.old; cp wal.old latchkey.db-wal",
         "mv wal.old latchkey.db-wal"},
        {KEEP_BYTES "cat copy.db >latchkey.db; : >latchkey.db-wal", BACK_BYTES},
        {KEEP_BYTES "cat raw.db >latchkey.db; cat raw.db-wal >latchkey.db-wal",
         BACK_BYTES},
    };
    struct bed *bed = *state;
    struct model *model = small_model_on_disk(bed);

    for (size_t i = 0; i < sizeof(swaps) / sizeof(*swaps); i++) {
        start_with_copies(model, bed);
        break_store(bed);
        in_folder(bed, swaps[i].in);
        expect_refused(bed);
        in_folder(bed, swaps[i].back);
        await_recovery(model);
        assert_int_equal(model->violations, 0);
        assert_int_equal(look(bed, "done", NULL), LK_STATE_COMPLETED);
        assert_int_equal(look(bed, "later", NULL), LK_STATE_IN_PROGRESS);
        expect_clean(bed);
    }
    free(model);
}

/* C20 */
static void a_start_after_such_a_refusal_holds_and_leaps(void **state)
{
    struct bed *bed = *state;
    struct model *model = small_model_on_disk(bed);

    start_with_copies(model, bed);
    uint64_t last = stats_of(bed).last_token;
    break_store(bed);
    in_folder(bed, "rm latchkey.db-wal; mv copy.db latchkey.db");
    expect_refused(bed);
    bed_reopen(bed);
    assert_true(stats_of(bed).hold_until_ms > 0);
    assert_true(stats_of(bed).last_token > last + 1000000);
    assert_int_equal(look(bed, "done", NULL), LK_STATE_IN_PROGRESS);
    free(model);
}

/* ---- Memory that runs out
 * ---------------------------------------------------- */

/* Counted only while a batch is applied; 0: never fails. */
static uint64_t allocations_left;
static uint64_t allocations_failed;

static bool allocation_fails(void)
{
    if (!allocations_left || disk.inside || --allocations_left) {
        return false;
    }
    allocations_failed++;
    return true;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

/* The sanitizer owns malloc: only SQLite's allocations can fail. */
static sqlite3_mem_methods real_memory;

static void *failing_malloc(int size)
{
    return allocation_fails() ? NULL : real_memory.xMalloc(size);
}

static void *failing_realloc(void *memory, int size)
{
    return allocation_fails() ? NULL : real_memory.xRealloc(memory, size);
}

static void hook_memory(void)
{
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &real_memory);
    sqlite3_mem_methods failing = real_memory;
    failing.xMalloc = failing_malloc;
    failing.xRealloc = failing_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &failing);
}

#else

/* Ours come before libc's, for the store and for SQLite alike. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);

void *malloc(size_t size)
{
    return allocation_fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    return allocation_fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size)
{
    return allocation_fails() ? NULL : __libc_realloc(memory, size);
}

static void hook_memory(void)
{
}

#endif

/* As send_random, but the n-th allocation within apply() fails. */
static void send_starved(struct model *model, uint64_t nth)
{
    static char bytes[MODEL_BATCH][MODEL_BODY];
    struct lk_op ops[MODEL_BATCH];
    struct lk_op *list[MODEL_BATCH];
    struct lk_batch batch = {.ops = list, .keep = true};

    batch.count = model->batch_count = 1 + pick(model, MODEL_BATCH);
    for (size_t i = 0; i < batch.count; i++) {
        model->batch[i] = pick_op(model);
        ops[i] = store_op(model, &model->batch[i], bytes[i]);
        ops[i].status = LK_INVALID;
        list[i] = &ops[i];
    }
    allocations_left = nth;
    model->bed->store->class->apply(model->bed->store, &batch);
    allocations_left = 0;
    model->unknown = false;
    for (size_t i = 0; i < batch.count; i++) {
        model->batch[i].status = ops[i].status;
        if (ops[i].status == LK_OK) {
            hear_outcome(model, &model->batch[i], &ops[i].out);
        }
        model->unknown |= ops[i].status == LK_UNKNOWN;
        lk_op_clear(&ops[i]);
    }
    lk_batch_clear(&batch);
}

/* C23: refused or unknown, but never half. */
static void a_failed_allocation_is_never_a_lost_or_invented_record(void **state)
{
    struct bed *bed = *state;
    struct model *model = small_model_on_disk(bed);
    uint64_t failed_before = allocations_failed;

    bed->config.cache_pages = 16;
    for (unsigned run = 0; run < 60; run++) {
        start_empty(model, bed, run + 1);
        for (unsigned i = 0; i < 6; i++) {
            send_random(model);
        }
        for (unsigned i = 0; i < 4 && !model->violations; i++) {
            send_starved(model, 1 + (run * 4 + i) % 48);
            /* Refused means that it did not happen, restart or not. */
            if (run % 2) {
                bed_reopen(bed);
            } else {
                await_recovery(model);
            }
            observe_all(model);
        }
        lose_power(model);
        observe_all(model);
        probe_all(model);
        verify_store(model);
        if (model->violations) {
            fail_msg("run %u: %s", run, model->first);
        }
    }
    print_message("%llu allocations failed\n",
                  (unsigned long long)(allocations_failed - failed_before));
    assert_true(allocations_failed > failed_before);
    free(model);
}

/* A batch of new claims during which the n-th allocation fails. */
static enum lk_status claim_crowd_starved(struct bed *bed, struct lk_op *ops,
                                          char (*keys)[32], uint64_t nth)
{
    for (unsigned i = 0; i < CROWD; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%llu-%u", (unsigned long long)nth,
                 i);
        ops[i] = claim_of(bed, keys[i], "a");
    }
    struct lk_op *list[CROWD];
    struct lk_batch batch = {.ops = list, .count = CROWD};
    for (unsigned i = 0; i < CROWD; i++) {
        list[i] = &ops[i];
    }
    allocations_left = nth;
    bed->store->class->apply(bed->store, &batch);
    allocations_left = 0;
    lk_batch_clear(&batch);
    return ops[0].status;
}

/* C23: what is acknowledged is there for the next one at once; what is refused
 * is not. Nothing else can be seen. */
static void memory_that_runs_out_shows_a_batch_as_a_whole_or_not(void **state)
{
    static struct lk_op ops[CROWD];
    static char keys[CROWD][32];
    struct bed *bed = *state;
    struct model model = {.bed = bed};
    unsigned refused = 0;

    if (!is_embedded(bed)) {
        skip();
    }
    for (uint64_t nth = 1; nth < 900; nth += 1 + nth / 40) {
        uint64_t failed = allocations_failed;
        enum lk_status status = claim_crowd_starved(bed, ops, keys, nth);
        refused += allocations_failed > failed && status != LK_OK;
        if (status == LK_OK) {
            assert_true(stats_of(bed).available);
        } else if (status == LK_UNKNOWN) {
            await_recovery(&model);
        }
        enum lk_state first = look(bed, keys[0], NULL);
        assert_true(status == LK_UNKNOWN ||
                    (first == LK_STATE_IN_PROGRESS) == (status == LK_OK));
        for (unsigned i = 0; i < CROWD; i++) {
            assert_int_equal(ops[i].status, status);
            assert_int_equal(look(bed, keys[i], NULL), first);
        }
    }
    assert_true(refused > 0);
}

/* ---- The fault file, in builds that have it
 * ------------------------------------ */

#ifdef LK_FAULTS

static void failures_come_and_go_with_the_fault_file(void **state)
{
    struct bed *bed = *state;
    struct model model = {.bed = bed};

    use_fault_file(bed, "# none yet\n");
    claim_new(bed, "before", "a");
    set_faults("fail write ENOSPC wal forever\n");
    struct lk_op op = claim_of(bed, "k", "a");
    apply_all(bed, &op, 1, false);
    assert_int_equal(op.status, LK_UNAVAILABLE);
    set_faults("");
    await_recovery(&model);
    set_faults("fail sync EIO wal count 1\n");
    op = claim_of(bed, "k", "a");
    apply_all(bed, &op, 1, false);
    assert_int_equal(op.status, LK_UNKNOWN);
    await_recovery(&model);
    assert_true(stats_of(bed).reopened > 0);
    claim_new(bed, "k", "a");
    assert_int_equal(look(bed, "before", NULL), LK_STATE_IN_PROGRESS);
    expect_clean(bed);
}

/* Runs a claim in a child that the fault file kills. */
static void claim_and_die(struct bed *bed, const char *lines, const char *key)
{
    bed_close(bed);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct lk_op op;
        if (bed_try_open(bed) != LK_OK) {
            _exit(1);
        }
        set_faults(lines); /* opening has syncs of its own */
        op = claim_of(bed, key, "a");
        apply_all(bed, &op, 1, true);
        _exit(op.status == LK_OK ? 0 : 2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    set_faults("");
    bed_open(bed);
}

/* C20 */
static void a_store_killed_at_any_point_knows_what_it_promised(void **state)
{
    struct bed *bed = *state;

    use_fault_file(bed, "# none yet\n");
    uint64_t token = claim_new(bed, "before", "a");
    claim_and_die(bed, "kill before_append\n", "one");
    assert_int_equal(look(bed, "one", NULL), LK_STATE_ABSENT);
    claim_and_die(bed, "kill after_sync\n", "two");
    assert_int_equal(look(bed, "two", NULL), LK_STATE_IN_PROGRESS);
    uint64_t two = claim_new(bed, "two", "a");
    assert_true(two > token);
    assert_int_equal(claim_new(bed, "two", "a"), two);
    claim_and_die(bed, "kill before_sync\n", "three");
    /* Written, not synced, and the machine lives: there or not. */
    assert_true(claim_new(bed, "three", "a") > two);
    assert_int_equal(claim_new(bed, "before", "a"), token);
    expect_clean(bed);
}

#else

static void failures_come_and_go_with_the_fault_file(void **state)
{
    skip();
}

static void a_store_killed_at_any_point_knows_what_it_promised(void **state)
{
    skip();
}

#endif

#define IN_BED(test)                                                           \
    cmocka_unit_test_setup_teardown(test, bed_setup, bed_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BED(a_log_write_that_fails_is_not_acknowledged),
        IN_BED(a_log_write_without_space_is_not_acknowledged),
        IN_BED(a_log_sync_that_fails_is_not_acknowledged),
        IN_BED(a_checkpoint_write_that_fails_loses_nothing),
        IN_BED(a_checkpoint_write_without_space_loses_nothing),
        IN_BED(a_checkpoint_sync_that_fails_loses_nothing),
        IN_BED(a_read_that_fails_is_not_called_damage),
        IN_BED(a_read_that_fails_does_not_stop_the_reaper),
        IN_BED(a_retry_whose_read_fails_is_refused_for_now),
        IN_BED(a_full_disk_refuses_and_work_resumes_with_space),
        IN_BED(a_disk_that_fails_for_a_while_is_survived),
        IN_BED(a_reopening_refuses_other_files_than_its_own),
        IN_BED(a_start_after_such_a_refusal_holds_and_leaps),
        IN_BED(a_failed_allocation_is_never_a_lost_or_invented_record),
        IN_BED(memory_that_runs_out_shows_a_batch_as_a_whole_or_not),
        IN_BED(failures_come_and_go_with_the_fault_file),
        IN_BED(a_store_killed_at_any_point_knows_what_it_promised),
    };

    hook_memory();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
