/* courier_bench.h - a courier in a test: its store is a ledger, its targets are
 * two peers, one that answers and one that never does. */
#ifndef LK_TEST_COURIER_BENCH_H
#define LK_TEST_COURIER_BENCH_H

#include "tests/courier/ledger.h"
#include "tests/courier/peer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct bench {
    struct ledger ledger;
    struct peer good;
    struct peer slow; /* never answers */
    struct lk_config config;
    struct lk_target targets[4];
    char urls[2][64];
    void *courier;
    unsigned connections; /* at the first confirmed mark */
};

/* The peer closes after each answer and says so: the next call takes another
 * connection, instead of one that is being closed. */
#define FINE                                                                   \
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 10"               \
    "\r\n\r\n{\"id\":\"7\"}"
#define BUSY                                                                   \
    "HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 4"              \
    "\r\n\r\nbusy"

HELPER void allow(struct lk_statuses *set, unsigned from, unsigned to)
{
    for (unsigned status = from; status <= to; status++) {
        set->bits[(status - 100) / 64] |= UINT64_C(1) << ((status - 100) % 64);
    }
}

HELPER void set_target(struct lk_target *target, const char *name, char *url,
                       bool honours)
{
    *target = (struct lk_target){.name = (char *)name,
                                 .url = url,
                                 .connect_timeout_ms = 5000,
                                 .timeout_ms = 60000,
                                 .concurrency = 4,
                                 .attempts = 3,
                                 .backoff_ms = 1000,
                                 .backoff_max_ms = 1000,
                                 .retry_after_max_ms = 1000,
                                 .honours = honours,
                                 .key_header = (char *)"Idempotency-Key",
                                 .id = (char *)"json:/id",
                                 .circuit_open_ms = 60000};
    allow(&target->success, 200, 299);
    allow(&target->temporary, 500, 599);
}

/* The courier asks by its work alone. */
static const struct lk_store_class no_class = {0};

/* Of the ledger: how many works the courier may have under way. */
static unsigned bench_lanes;

HELPER int set_up(void **state)
{
    struct bench *bench = calloc(1, sizeof(*bench));

    *state = bench;
    if (!bench || !peer_start(&bench->good) || !peer_start(&bench->slow)) {
        return -1;
    }
    peer_say(&bench->good, FINE);
    bench->slow.mute = true;
    for (int i = 0; i < 2; i++) {
        snprintf(bench->urls[i], sizeof(bench->urls[i]), "http://127.0.0.1:%u",
                 i ? bench->slow.port : bench->good.port);
    }
    set_target(&bench->targets[0], "honours", bench->urls[0], true);
    set_target(&bench->targets[1], "once", bench->urls[0], false);
    set_target(&bench->targets[2], "slow", bench->urls[1], true);
    set_target(&bench->targets[3], "slow-once", bench->urls[1], false);
    bench->config.targets =
        (struct lk_targets){.targets = bench->targets, .count = 4};
    bench->config.lease_ms = 60000;
    bench->config.lease_batch = 64;
    bench->config.answer_bytes = 1000;
    pthread_mutex_init(&bench->ledger.mutex, NULL);
    pthread_cond_init(&bench->ledger.moved, NULL);
    bench->ledger.now_ms = 1000000;
    bench->ledger.store.class = &no_class;
    bench->ledger.store.job_lanes = bench_lanes;
    bench->ledger.context = bench;
    return 0;
}

HELPER void start(struct bench *bench)
{
    struct lk_outbox_setup setup = {.config = &bench->config,
                                    .store = &bench->ledger.store,
                                    .job_batch = ledger_work,
                                    .context = &bench->ledger};

    assert_int_equal(lk_courier_class.start(&setup, &bench->courier), LK_OK);
}

HELPER void stop(struct bench *bench, uint64_t grace_ms)
{
    lk_courier_class.stop(bench->courier, grace_ms);
    bench->courier = NULL;
}

HELPER int tear_down(void **state)
{
    struct bench *bench = *state;

    ledger_hold(&bench->ledger, false); /* a test that failed may have more */
    if (bench->courier) {
        stop(bench, 0);
    }
    peer_stop(&bench->good);
    peer_stop(&bench->slow);
    pthread_mutex_destroy(&bench->ledger.mutex);
    pthread_cond_destroy(&bench->ledger.moved);
    free(bench);
    return 0;
}

HELPER bool has_ended(struct ledger *ledger, void *context)
{
    struct ledger_job *job = context;

    return job->ends != 0 || job->stale_ends != 0;
}

HELPER void await_end(struct bench *bench, struct ledger_job *job)
{
    ledger_await(&bench->ledger, has_ended, job);
}

HELPER bool is_called(struct ledger *ledger, void *context)
{
    struct ledger_job *job = context;

    return job->called;
}

HELPER void await_requests(struct peer *peer, unsigned count)
{
    while (atomic_load(&peer->requests) < count) {
        usleep(1000);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
