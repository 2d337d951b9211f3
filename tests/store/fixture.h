/*
 * fixture.h - a store in a directory of its own, and short words for what the
 * tests of stores do with it. Every function may be unused.
 */
#ifndef LK_TEST_FIXTURE_H
#define LK_TEST_FIXTURE_H

#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define HELPER static __attribute__((unused))

#define HOUR_MS (UINT64_C(3600) * 1000)

struct bed {
    char dir[256];
    char url[512];
    char path[512]; /* of the database; empty if the store has none */
    char tenant[64];
    struct lk_store_config config;
    struct lk_store *store;
};

HELPER struct lk_slice text(const char *words)
{
    return latchkey_slice(words);
}

HELPER bool is_embedded(const struct bed *bed)
{
    return !strncmp(bed->url, "sqlite:", 7);
}

HELPER enum lk_status bed_try_open(struct bed *bed)
{
    struct lk_buf error = {0};
    enum lk_status status =
        lk_store_open(bed->url, &bed->config, &bed->store, &error);

    if (status) {
        bed->store = NULL;
    }
    latchkey_buf_free(&error);
    return status;
}

HELPER void bed_open(struct bed *bed)
{
    struct lk_buf error = {0};
    enum lk_status status =
        lk_store_open(bed->url, &bed->config, &bed->store, &error);

    if (status) {
        print_error("%s: %s: %.*s\n", bed->url, latchkey_status_name(status),
                    (int)error.len, error.data ? error.data : "");
    }
    assert_int_equal(status, LK_OK);
    latchkey_buf_free(&error);
}

HELPER void bed_close(struct bed *bed)
{
    lk_store_close(bed->store);
    bed->store = NULL;
}

HELPER void bed_reopen(struct bed *bed)
{
    bed_close(bed);
    bed_open(bed);
}

HELPER void make_directory(char *dir, size_t size)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(dir, size, "%s/latchkey-store-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
}

/* Settings of stores on a server, from the environment. */
HELPER void read_store_settings(struct lk_store_config *config)
{
    const char *connections = getenv("LATCHKEY_TEST_CONNECTIONS");
    const char *pooler = getenv("LATCHKEY_TEST_POOLER");
    const char *accept_loss = getenv("LATCHKEY_TEST_ACCEPT_LOSS");
    const char *prefix = getenv("LATCHKEY_TEST_PREFIX");

    config->cache_url = getenv("LATCHKEY_TEST_CACHE");
    config->pooler = pooler && !strcmp(pooler, "1");
    config->accept_loss = accept_loss && !strcmp(accept_loss, "1");
    if (connections) {
        config->connections = (unsigned)strtoul(connections, NULL, 10);
    }
    if (prefix) {
        config->prefix = prefix;
    }
}

/* Every test has a tenant of its own, so that a store may be shared. */
HELPER void bed_prepare(struct bed *bed)
{
    static unsigned number;
    const char *url = getenv("LATCHKEY_TEST_STORE");

    memset(bed, 0, sizeof(*bed));
    lk_store_config_default(&bed->config);
    /* A server on a busy machine may take its time. */
    bed->config.timeout_ms = 120 * 1000;
    bed->config.connect_timeout_ms = 60 * 1000;
    read_store_settings(&bed->config);
    make_directory(bed->dir, sizeof(bed->dir));
    if (url) {
        snprintf(bed->url, sizeof(bed->url), "%s", url);
    } else {
        snprintf(bed->path, sizeof(bed->path), "%s/latchkey.db", bed->dir);
        snprintf(bed->url, sizeof(bed->url), "sqlite:%.500s", bed->path);
    }
    snprintf(bed->tenant, sizeof(bed->tenant), "tenant-%ld-%u", (long)getpid(),
             ++number);
}

HELPER void remove_directory(const char *dir)
{
    char command[600];

    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    if (system(command)) {
        print_error("cannot remove %s\n", dir);
    }
}

HELPER void empty_directory(struct bed *bed)
{
    remove_directory(bed->dir);
    if (mkdir(bed->dir, 0700)) {
        fail_msg("cannot make %s", bed->dir);
    }
}

HELPER int bed_setup(void **state)
{
    struct bed *bed = malloc(sizeof(*bed));

    assert_non_null(bed);
    bed_prepare(bed);
    bed_open(bed);
    *state = bed;
    return 0;
}

HELPER int bed_teardown(void **state)
{
    struct bed *bed = *state;

    bed_close(bed);
    remove_directory(bed->dir);
    free(bed);
    return 0;
}

/* ---- The fault file, in builds with fault points ------------------------- */

#ifdef LK_FAULTS

static char fault_path[512];

/* Renamed into place: the store must never read half of it. */
HELPER void set_faults(const char *lines)
{
    char next[520];
    snprintf(next, sizeof(next), "%.500s.next", fault_path);
    FILE *out = fopen(next, "w");

    assert_non_null(out);
    fputs(lines, out);
    fclose(out);
    assert_int_equal(rename(next, fault_path), 0);
}

/* Opens the store anew, with a fault file that says `lines`. */
HELPER void use_fault_file(struct bed *bed, const char *lines)
{
    if (!is_embedded(bed)) {
        skip();
    }
    bed_close(bed);
    snprintf(fault_path, sizeof(fault_path), "%.500s/faults", bed->dir);
    set_faults(lines);
    setenv("LATCHKEY_FAULT_FILE", fault_path, 1);
    bed_open(bed);
}

#endif

/* ---- Operations ---------------------------------------------------------- */

HELPER struct lk_op op_on(struct bed *bed, enum lk_event event, const char *key)
{
    struct lk_op op = {
        .event = event,
        .name = {text(bed->tenant), LK_SLICE("POST /payments"), text(key)},
        .fingerprint = LK_SLICE("1:fingerprint"),
        .who = LK_SLICE("oncall"),
        .why = LK_SLICE("ticket 4711"),
    };

    op.hash = lk_name_hash(bed->store->secret, op.name);
    return op;
}

HELPER struct lk_op claim_of(struct bed *bed, const char *key,
                             const char *owner)
{
    struct lk_op op = op_on(bed, LK_EVENT_CLAIM, key);

    op.owner = text(owner);
    return op;
}

HELPER struct lk_op with_token(struct bed *bed, enum lk_event event,
                               const char *key, uint64_t token)
{
    struct lk_op op = op_on(bed, event, key);

    op.token = token;
    op.lock_ms = 60 * 1000;
    if (event == LK_EVENT_DOUBT) {
        op.reason = LK_SLICE("timed out");
    }
    return op;
}

HELPER struct lk_op complete_of(struct bed *bed, const char *key,
                                uint64_t token, const char *body)
{
    struct lk_op op = with_token(bed, LK_EVENT_COMPLETE, key, token);

    op.response.status = 201;
    op.response.headers = LK_SLICE("Content-Type: text/plain\r\n");
    op.response.body = text(body);
    return op;
}

/* As the daemon does: what somebody else's transaction holds is given again. */
HELPER void apply_again(struct bed *bed, struct lk_op **list, size_t count)
{
    for (int tries = 0; count && tries < 1000; tries++) {
        struct timespec pause = {0, 1000000};
        struct lk_batch batch = {.ops = list};
        for (size_t i = 0; i < count; i++) {
            if (list[i]->status == LK_AGAIN) {
                list[batch.count++] = list[i];
            }
        }
        count = batch.count;
        if (count) {
            nanosleep(&pause, NULL);
            bed->store->class->apply(bed->store, &batch);
        }
        lk_batch_clear(&batch);
    }
}

/* Applies `count` ops as one batch; their status is the caller's matter. */
HELPER void apply_all(struct bed *bed, struct lk_op *ops, size_t count,
                      bool keep)
{
    struct lk_op **list = calloc(count + 1, sizeof(*list));
    struct lk_batch batch = {.ops = list, .count = count, .keep = keep};

    assert_non_null(list);
    for (size_t i = 0; i < count; i++) {
        lk_op_clear(&ops[i]);
        ops[i].out = (struct lk_outcome){0};
        /* A store that forgets an op must not look as if it had said OK. */
        ops[i].status = LK_INVALID;
        list[i] = &ops[i];
    }
    bed->store->class->apply(bed->store, &batch);
    lk_batch_clear(&batch);
    apply_again(bed, list, count);
    free(list);
}

/* Sweeps and reaps what is due. */
HELPER void turn(struct bed *bed)
{
    apply_all(bed, NULL, 0, true);
}

HELPER void expect_verdict(const struct lk_op *op, enum lk_verdict verdict)
{
    if (op->status != LK_OK) {
        fail_msg("status %s instead of %s: %s",
                 latchkey_status_name(op->status),
                 latchkey_verdict_word(verdict), op->error ? op->error : "");
    }
    if (op->out.verdict != verdict) {
        fail_msg("%s instead of %s", latchkey_verdict_word(op->out.verdict),
                 latchkey_verdict_word(verdict));
    }
}

/* One op, one batch. The outcome's `kept` is dropped. */
HELPER struct lk_outcome say(struct bed *bed, struct lk_op op,
                             enum lk_verdict verdict)
{
    apply_all(bed, &op, 1, false);
    expect_verdict(&op, verdict);
    lk_op_clear(&op);
    return op.out;
}

HELPER uint64_t claim_new(struct bed *bed, const char *key, const char *owner)
{
    return say(bed, claim_of(bed, key, owner), LK_VERDICT_NEW).token;
}

/* Claims and completes; returns the outcome of the completion. */
HELPER struct lk_outcome finish_new(struct bed *bed, const char *key,
                                    const char *body, uint64_t ttl_ms)
{
    uint64_t token = claim_new(bed, key, "first");
    struct lk_op op = complete_of(bed, key, token, body);

    op.ttl_ms = ttl_ms;
    return say(bed, op, LK_VERDICT_DONE);
}

/* Fetches what the outcome needs; the op must be REPLAY, KEPT or the like. */
HELPER void load_kept(struct bed *bed, struct lk_op *op)
{
    if (op->out.needs_load) {
        assert_int_equal(bed->store->class->load(bed->store, op), LK_OK);
    }
    assert_non_null(op->out.stored);
}

HELPER void expect_bytes(struct lk_slice got, struct lk_slice expected)
{
    assert_int_equal(got.len, expected.len);
    if (got.len) {
        assert_memory_equal(got.data, expected.data, got.len);
    }
}

HELPER void expect_replay(struct bed *bed, const char *key,
                          const struct lk_response *expected)
{
    struct lk_op op = claim_of(bed, key, "retry");

    apply_all(bed, &op, 1, false);
    expect_verdict(&op, LK_VERDICT_REPLAY);
    load_kept(bed, &op);
    assert_int_equal(op.out.stored->response.status, expected->status);
    expect_bytes(op.out.stored->response.headers, expected->headers);
    expect_bytes(op.out.stored->response.body, expected->body);
    lk_op_clear(&op);
}

HELPER struct lk_store_stats stats_of(struct bed *bed)
{
    struct lk_store_stats stats = {0};

    bed->store->class->stats(bed->store, &stats);
    return stats;
}

/* A store on a server counts its records now and then, and when it is opened.
 */
HELPER struct lk_store_stats counted(struct bed *bed)
{
    if (bed->store->shared) {
        bed_reopen(bed);
    }
    return stats_of(bed);
}

HELPER void pause_ms(unsigned ms)
{
    struct timespec pause = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
}

HELPER uint64_t monotonic_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Until the store's own clock is past `at_ms`. */
HELPER void await_store_time(struct bed *bed, uint64_t at_ms)
{
    uint64_t give_up = monotonic_ms() + 20000;

    while (stats_of(bed).now_ms <= at_ms) {
        assert_true(monotonic_ms() < give_up);
        pause_ms(1);
    }
}

/* LK_NOT_FOUND as LK_STATE_ABSENT; the record is freed if `out` is NULL. */
HELPER enum lk_state look(struct bed *bed, const char *key,
                          struct lk_operation *out)
{
    struct lk_operation record = {0};
    struct lk_op op = op_on(bed, LK_EVENT_CLAIM, key);
    enum lk_status status =
        bed->store->class->lookup(bed->store, op.name, &record);
    enum lk_state state = status ? LK_STATE_ABSENT : record.state;

    if (status && status != LK_NOT_FOUND) {
        fail_msg("lookup: %s", latchkey_status_name(status));
    }
    if (out && !status) {
        *out = record;
    } else {
        lk_operation_free(&record);
    }
    return state;
}

HELPER void expect_clean(struct bed *bed)
{
    struct lk_buf report = {0};
    enum lk_status status =
        bed->store->class->verify(bed->store, NULL, NULL, &report);

    if (status) {
        print_error("verify: %s: %.*s\n", latchkey_status_name(status),
                    (int)report.len, report.data ? report.data : "");
    }
    assert_int_equal(status, LK_OK);
    latchkey_buf_free(&report);
}

#endif
