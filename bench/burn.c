/*
 * burn.c - leases and acknowledges jobs without calling anything, as fast as a
 * store can: what the outbox itself costs.
 *
 *   burn URL fill COUNT            leaves COUNT jobs
 *   burn URL run BATCH COURIERS    prints how many a second were done
 *
 * Each courier is a thread with a store of its own, as a process would be. One
 * step acknowledges what the last one has leased, and leases BATCH more.
 */
#include "store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TARGET LK_SLICE("bench")

enum { FILL = 500, COURIERS_MOST = 64, BATCH_MOST = 10000 };

static void fail(const char *what, enum lk_status status)
{
    fprintf(stderr, "burn: %s: %s\n", what, latchkey_status_text(status));
    exit(1);
}

static struct lk_store *open_store(const char *url)
{
    struct lk_store_config config;
    struct lk_store *store = NULL;
    struct lk_buf error = {0};

    lk_store_config_default(&config);
    enum lk_status status = lk_store_open(url, &config, &store, &error);
    if (status) {
        fprintf(stderr, "burn: %.*s\n", (int)error.len, error.data);
        fail(url, status);
    }
    latchkey_buf_free(&error);
    return store;
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* ---- fill ---------------------------------------------------------------- */

struct row {
    struct lk_op op;
    uint64_t token;
    char key[48];
};

static void apply_all(struct lk_store *store, struct row *rows, size_t count)
{
    struct lk_op *ops[FILL];

    for (unsigned lane = 0; lane < store->lanes; lane++) {
        struct lk_batch batch = {.ops = ops, .lane = lane};
        for (size_t i = 0; i < count; i++) {
            if (lk_op_lane(store, &rows[i].op) == lane) {
                ops[batch.count++] = &rows[i].op;
            }
        }
        store->class->apply(store, &batch);
        lk_batch_clear(&batch);
    }
    for (size_t i = 0; i < count; i++) {
        if (rows[i].op.status) {
            fail("a step failed", rows[i].op.status);
        }
    }
}

/* The claim's token, for what follows. */
static void row_token(struct row *row, size_t step)
{
    if (step == 1) {
        row->token = row->op.out.token;
    }
    row->op.token = step ? row->token : 0;
}

/* Claims, leaves a job each, and completes. */
static void fill_some(struct lk_store *store, struct row *rows, size_t count)
{
    static const struct lk_call call = {
        .name = {"charge", 6},
        .target = {"bench", 5},
        .method = {"POST", 4},
        .path = {"/v1/charges", 11},
        .headers = {"Content-Type: application/json\r\n", 32},
        .body = {"{\"amount\":4200,\"currency\":\"eur\"}", 32},
    };
    static const enum lk_event events[] = {LK_EVENT_CLAIM, LK_EVENT_ENQUEUE,
                                           LK_EVENT_COMPLETE};

    for (size_t step = 0; step < 3; step++) {
        for (size_t i = 0; i < count; i++) {
            struct lk_op *op = &rows[i].op;
            op->event = events[step];
            row_token(&rows[i], step);
            op->call = step == 1 ? &call : NULL;
            op->response.status = 201;
            lk_op_clear(op);
        }
        apply_all(store, rows, count);
    }
    for (size_t i = 0; i < count; i++) {
        lk_op_clear(&rows[i].op);
    }
}

static void fill(const char *url, size_t total)
{
    static struct row rows[FILL];
    struct lk_store *store = open_store(url);

    for (size_t done = 0; done < total;) {
        size_t count = total - done < FILL ? total - done : FILL;
        for (size_t i = 0; i < count; i++, done++) {
            struct row *row = &rows[i];
            snprintf(row->key, sizeof(row->key), "%.6f-%zu", now(), done);
            row->op = (struct lk_op){
                .name = {LK_SLICE("tenant"), LK_SLICE("POST /v1/payments"),
                         latchkey_slice(row->key)},
                .fingerprint = LK_SLICE("1:5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f"),
                .owner = LK_SLICE("burn"),
            };
            row->op.hash = lk_name_hash(store->secret, row->op.name);
        }
        fill_some(store, rows, count);
    }
    lk_store_close(store);
}

/* ---- run ----------------------------------------------------------------- */

struct courier {
    pthread_t thread;
    struct lk_store *store;
    size_t batch;
    size_t done;
    double ended;
};

/* One step: what was leased before is acknowledged. */
static size_t step(struct courier *courier, struct lk_job_end *ends,
                   size_t ended, uint64_t *wait_ms)
{
    struct lk_store *store = courier->store;
    struct lk_job_want want = {
        .target = TARGET, .limit = courier->batch, .honours = true};
    struct lk_job_batch job_batch = {.ends = ends,
                                     .end_count = ended,
                                     .wants = &want,
                                     .want_count = 1,
                                     .lease_ms = 60000,
                                     .body_max = 64 << 20};
    struct lk_batch batch = {.job_batch = &job_batch,
                             .lane = store->job_lanes ? store->lanes : 0};

    store->class->apply(store, &batch);
    lk_batch_clear(&batch);
    if (job_batch.status) {
        fail(job_batch.error ? job_batch.error : "a step failed",
             job_batch.status);
    }
    for (size_t i = 0; i < ended; i++) {
        if (ends[i].stale) {
            fail("an acknowledgement was stale", LK_INVALID);
        }
    }
    courier->done += ended;
    size_t leased = job_batch.job_count;
    for (size_t i = 0; i < leased; i++) {
        ends[i] = (struct lk_job_end){
            .id = job_batch.jobs[i].id,
            .attempt = job_batch.jobs[i].attempts,
            .end = LK_END_DELIVERED,
            .status = 201,
            .provider_id = LK_SLICE("ch_000001"),
        };
    }
    *wait_ms = job_batch.wait_ms;
    lk_job_batch_clear(&job_batch);
    return leased;
}

static void *run_courier(void *context)
{
    struct courier *courier = context;
    struct lk_job_end *ends = calloc(courier->batch, sizeof(*ends));
    uint64_t wait_ms = 0;
    size_t leased = 0;

    if (!ends) {
        fail("run", LK_NOMEM);
    }
    do {
        leased = step(courier, ends, leased, &wait_ms);
    } while (leased || wait_ms < 1000);
    courier->ended = now();
    free(ends);
    return NULL;
}

static void run(const char *url, size_t batch, size_t count)
{
    struct courier couriers[COURIERS_MOST] = {0};
    size_t done = 0;
    double ended = 0;

    for (size_t i = 0; i < count; i++) {
        couriers[i].store = open_store(url);
        couriers[i].batch = batch;
    }
    double began = now();
    for (size_t i = 0; i < count; i++) {
        if (pthread_create(&couriers[i].thread, NULL, run_courier,
                           &couriers[i])) {
            fail("run", LK_NOMEM);
        }
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(couriers[i].thread, NULL);
        done += couriers[i].done;
        ended = couriers[i].ended > ended ? couriers[i].ended : ended;
    }
    for (size_t i = 0; i < count; i++) {
        lk_store_close(couriers[i].store);
    }
    printf("%zu %.1f\n", done, (double)done / (ended - began));
}

int main(int argc, char **argv)
{
    size_t first = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;
    size_t second = argc > 4 ? strtoul(argv[4], NULL, 10) : 0;

    if (argc == 4 && !strcmp(argv[2], "fill") && first) {
        fill(argv[1], first);
    } else if (argc == 5 && !strcmp(argv[2], "run") && first &&
               first <= BATCH_MOST && second && second <= COURIERS_MOST) {
        run(argv[1], first, second);
    } else {
        fprintf(stderr, "usage: burn URL fill COUNT | burn URL run BATCH "
                        "COURIERS\n");
        return 2;
    }
    return 0;
}
