/*
 * test_response_cache.c - the cache of responses: what it gives, and that
 * nothing wrong ever comes out of it. Against a redis-server of its own.
 */
#include "store/response_cache.h"
#include "tests/store/fixture.h"

#include <signal.h>
#include <sys/wait.h>

struct cache {
    char dir[64];
    char url[128];
    char socket[96];
    pid_t server;
    struct lk_client *redis;
    struct lk_response_cache *answers;
    struct lk_op op; /* a claim that is told REPLAY */
    struct lk_stored *stored;
};

static const uint8_t secret[16] = {1, 2, 3};

static void start_server(struct cache *cache)
{
    char address[128];
    struct lk_client_options options = {.address = address};

    snprintf(address, sizeof(address), "unix:%s", cache->socket);
    cache->server = fork();
    assert_true(cache->server >= 0);
    if (!cache->server) {
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket",
               cache->socket, "--dir", cache->dir, "--save", "", "--logfile",
               "log", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 2000 && !cache->redis; i++) {
        if (latchkey_client_open(&options, &cache->redis)) {
            latchkey_client_close(cache->redis);
            cache->redis = NULL;
            pause_ms(5);
        }
    }
    assert_non_null(cache->redis);
}

static void end_server(struct cache *cache)
{
    kill(cache->server, SIGKILL);
    kill(cache->server, SIGCONT);
    waitpid(cache->server, NULL, 0);
    latchkey_client_close(cache->redis);
    cache->redis = NULL;
}

/* A command of words with a space between them, and one more if it has data.
 * The reply is good until the next. */
static const struct lk_reply *command(struct cache *cache, const char *text,
                                      struct lk_slice last)
{
    struct lk_slice words[8];
    const struct lk_reply *reply = NULL;
    size_t count = 0;

    while (*text) {
        size_t len = strcspn(text, " ");
        words[count++] = (struct lk_slice){text, len};
        text += len + (text[len] == ' ');
    }
    if (last.data) {
        words[count++] = last;
    }
    assert_int_equal(
        latchkey_client_call(cache->redis, words, count, 0, &reply), LK_OK);
    return reply;
}

static const struct lk_slice nothing_more = {0};

static struct lk_response_cache *open_cache(struct cache *cache,
                                            const uint8_t *its_secret)
{
    struct lk_response_cache_config config = {.url = cache->url,
                                              .prefix = "test",
                                              .timeout_ms = 2000,
                                              .secret = its_secret};
    struct lk_response_cache *answers = NULL;
    struct lk_buf error = {0};

    assert_int_equal(lk_response_cache_open(&config, &answers, &error), LK_OK);
    latchkey_buf_free(&error);
    return answers;
}

static int set_up(void **state)
{
    struct cache *cache = calloc(1, sizeof(*cache));
    const struct lk_response response = {201, LK_SLICE("A: b\r\n"),
                                         LK_SLICE("the \0 answer")};

    assert_non_null(cache);
    snprintf(cache->dir, sizeof(cache->dir), "/tmp/lkanswers-XXXXXX");
    assert_non_null(mkdtemp(cache->dir));
    snprintf(cache->socket, sizeof(cache->socket), "%s/s", cache->dir);
    snprintf(cache->url, sizeof(cache->url), "redis:unix:%s", cache->socket);
    start_server(cache);
    cache->answers = open_cache(cache, secret);
    cache->op = (struct lk_op){.event = LK_EVENT_CLAIM,
                               .hash = {4, 5},
                               .fingerprint = LK_SLICE("1:fingerprint"),
                               .out = {.token = 77}};
    cache->stored =
        lk_stored_make(77, 1700000000000, &response, (struct lk_slice){0});
    assert_non_null(cache->stored);
    *state = cache;
    return 0;
}

static int tear_down(void **state)
{
    struct cache *cache = *state;

    lk_stored_unref(cache->stored);
    lk_response_cache_close(cache->answers);
    if (cache->redis) {
        end_server(cache);
    }
    remove_directory(cache->dir);
    free(cache);
    return 0;
}

static bool gives(struct lk_response_cache *answers, const struct lk_op *op)
{
    struct lk_stored *stored = lk_response_cache_get(answers, op);

    lk_stored_unref(stored);
    return stored != NULL;
}

static bool holds(struct cache *cache, unsigned token)
{
    char text[64];

    snprintf(text, sizeof(text), "STRLEN {test}:answer:%u", token);
    return command(cache, text, nothing_more)->integer > 0;
}

static void await(struct cache *cache, unsigned token)
{
    uint64_t give_up = monotonic_ms() + 20000;

    while (!holds(cache, token)) {
        assert_true(monotonic_ms() < give_up);
        pause_ms(1);
    }
}

/* Nobody waits for it but we. */
static void put(struct cache *cache, struct lk_stored *stored, uint64_t ttl_ms)
{
    lk_response_cache_put(cache->answers, &cache->op, stored, ttl_ms);
    await(cache, 77);
}

/* C02 */
static void an_answer_comes_back_byte_for_byte(void **state)
{
    struct cache *cache = *state;

    assert_false(gives(cache->answers, &cache->op));
    put(cache, cache->stored, HOUR_MS);
    struct lk_stored *stored =
        lk_response_cache_get(cache->answers, &cache->op);
    assert_non_null(stored);
    assert_int_equal(stored->token, 77);
    assert_int_equal(stored->at_ms, cache->stored->at_ms);
    assert_int_equal(stored->response.status, 201);
    expect_bytes(stored->response.headers, cache->stored->response.headers);
    expect_bytes(stored->response.body, cache->stored->response.body);
    assert_int_equal(stored->reason.len, 0);
    lk_stored_unref(stored);
}

static void an_omitted_answer_keeps_its_reason(void **state)
{
    struct cache *cache = *state;
    const struct lk_response status_only = {.status = 200};
    struct lk_stored *omitted =
        lk_stored_make(77, 5, &status_only, LK_SLICE("too large"));

    assert_non_null(omitted);
    put(cache, omitted, HOUR_MS);
    lk_stored_unref(omitted);
    struct lk_stored *stored =
        lk_response_cache_get(cache->answers, &cache->op);
    assert_non_null(stored);
    expect_bytes(stored->reason, LK_SLICE("too large"));
    assert_int_equal(stored->response.status, 200);
    lk_stored_unref(stored);
}

static bool gives_at_once(struct cache *cache, const struct lk_op *op)
{
    put(cache, cache->stored, HOUR_MS);
    return gives(cache->answers, op);
}

/* Under another name, number, expiry, token or secret it is not an answer; and
 * it is no longer in the way of one. */
static void an_answer_is_bound_to_what_it_answers(void **state)
{
    struct cache *cache = *state;
    static const uint8_t another[16] = {9};
    struct lk_op op = cache->op;

    op.hash.lo++;
    assert_false(gives_at_once(cache, &op));
    assert_false(holds(cache, 77));
    op = cache->op;
    op.out.expires_ms++; /* another run, in a store that forgot the first */
    assert_false(gives_at_once(cache, &op));
    op = cache->op;
    op.out.number++;
    assert_false(gives_at_once(cache, &op));
    put(cache, cache->stored, HOUR_MS);
    op = cache->op;
    op.out.token = 78;
    command(cache, "COPY {test}:answer:77 {test}:answer:78", nothing_more);
    assert_false(gives(cache->answers, &op));
    struct lk_response_cache *stranger = open_cache(cache, another);
    assert_false(gives(stranger, &cache->op));
    lk_response_cache_close(stranger);
    assert_true(gives_at_once(cache, &cache->op));
}

/* C02: also where only the reason is kept. */
static void a_completion_leaves_what_its_first_retry_is_told(void **state)
{
    struct cache *cache = *state;
    struct lk_op done = {.event = LK_EVENT_COMPLETE,
                         .hash = cache->op.hash,
                         .response = cache->stored->response,
                         .out = {.token = 77,
                                 .number = 5,
                                 .now_ms = 1700000000000,
                                 .expires_ms = 1700000000000 + HOUR_MS}};

    cache->op.out = done.out;
    lk_response_cache_completed(cache->answers, &done);
    await(cache, 77);
    struct lk_stored *stored =
        lk_response_cache_get(cache->answers, &cache->op);
    assert_non_null(stored);
    assert_int_equal(stored->at_ms, 1700000000000);
    expect_bytes(stored->response.headers, cache->stored->response.headers);
    expect_bytes(stored->response.body, cache->stored->response.body);
    lk_stored_unref(stored);

    done.reason = LK_SLICE("too large");
    done.out.token = cache->op.out.token = 78;
    lk_response_cache_completed(cache->answers, &done);
    await(cache, 78);
    stored = lk_response_cache_get(cache->answers, &cache->op);
    assert_non_null(stored);
    expect_bytes(stored->reason, LK_SLICE("too large"));
    assert_int_equal(stored->response.status, 201);
    assert_int_equal(stored->response.body.len, 0);
    lk_stored_unref(stored);
}

static void a_changed_byte_anywhere_makes_it_worthless(void **state)
{
    struct cache *cache = *state;

    put(cache, cache->stored, HOUR_MS);
    const struct lk_reply *reply =
        command(cache, "GET {test}:answer:77", nothing_more);
    struct lk_buf good = {0};
    assert_int_equal(reply->type, LK_REPLY_TEXT);
    assert_int_equal(latchkey_buf_add_slice(&good, reply->text), LK_OK);
    for (size_t i = 0; i < good.len; i++) {
        good.data[i] = (char)(good.data[i] ^ 1);
        command(cache, "SET {test}:answer:77", latchkey_buf_slice(&good));
        assert_false(gives(cache->answers, &cache->op));
        good.data[i] = (char)(good.data[i] ^ 1);
    }
    for (size_t len = 1; len < good.len; len++) {
        command(cache, "SET {test}:answer:77",
                (struct lk_slice){good.data, len});
        assert_false(gives(cache->answers, &cache->op));
    }
    struct lk_response_cache_stats stats;
    lk_response_cache_stats(cache->answers, &stats);
    assert_int_equal(stats.refused, 2 * good.len - 1);
    latchkey_buf_free(&good);
}

/* C35: nor does it come back, if an answer was still on its way there. */
static void what_is_evicted_is_gone_when_forget_returns(void **state)
{
    struct cache *cache = *state;
    const uint64_t tokens[] = {76, 77, 78};
    struct lk_op other = cache->op;
    struct lk_stored *stored =
        lk_stored_make(79, 5, &cache->stored->response, (struct lk_slice){0});

    assert_non_null(stored);
    put(cache, cache->stored, HOUR_MS);
    assert_int_equal(lk_response_cache_forget(cache->answers, tokens, 3),
                     LK_OK);
    assert_false(holds(cache, 77));
    assert_false(gives(cache->answers, &cache->op));
    lk_response_cache_put(cache->answers, &cache->op, cache->stored, HOUR_MS);
    other.out.token = 79;
    lk_response_cache_put(cache->answers, &other, stored, HOUR_MS);
    await(cache, 79);
    assert_false(holds(cache, 77));
    lk_stored_unref(stored);
}

/* C35 */
static void a_cache_without_memory_forgets(void **state)
{
    struct cache *cache = *state;
    const uint64_t token = 77;

    put(cache, cache->stored, HOUR_MS);
    command(cache, "CONFIG SET maxmemory 1", nothing_more);
    assert_int_equal(lk_response_cache_forget(cache->answers, &token, 1),
                     LK_OK);
    assert_false(holds(cache, 77));
}

static void it_keeps_an_answer_no_longer_than_it_is_told(void **state)
{
    struct cache *cache = *state;

    put(cache, cache->stored, 60000);
    assert_in_range(
        command(cache, "PTTL {test}:answer:77", nothing_more)->integer, 1,
        60000);
    /* What is no claim has no fingerprint to compare. */
    struct lk_op op = cache->op;
    op.event = LK_EVENT_COMPLETE;
    assert_false(gives(cache->answers, &op));
}

static void a_cache_that_is_gone_gives_nothing_and_comes_back(void **state)
{
    struct cache *cache = *state;
    const uint64_t token = 77;

    lk_response_cache_put(cache->answers, &cache->op, cache->stored, HOUR_MS);
    end_server(cache);
    assert_false(gives(cache->answers, &cache->op));
    assert_int_equal(lk_response_cache_forget(cache->answers, &token, 1),
                     LK_UNAVAILABLE);
    start_server(cache);
    uint64_t give_up = monotonic_ms() + 20000;
    while (!gives(cache->answers, &cache->op)) {
        assert_true(monotonic_ms() < give_up);
        lk_response_cache_put(cache->answers, &cache->op, cache->stored,
                              HOUR_MS);
        pause_ms(10);
    }
}

/* One question waits for it, the next ones do not. */
static void a_frozen_cache_is_left_alone(void **state)
{
    struct cache *cache = *state;
    struct lk_response_cache_config config = {.url = cache->url,
                                              .prefix = "test",
                                              .timeout_ms = 20,
                                              .secret = secret};
    struct lk_response_cache *hasty = NULL;
    struct lk_response_cache_stats stats;
    struct lk_buf error = {0};

    assert_int_equal(lk_response_cache_open(&config, &hasty, &error), LK_OK);
    kill(cache->server, SIGSTOP);
    for (int i = 0; i < 1000; i++) {
        assert_false(gives(hasty, &cache->op));
    }
    lk_response_cache_stats(hasty, &stats);
    assert_true(stats.failed >= 1 && stats.failed < 100);
    assert_false(stats.available);
    lk_response_cache_close(hasty);
    kill(cache->server, SIGCONT);
}

/* C35: even right after it has failed. */
static void an_eviction_asks_a_cache_that_is_left_alone(void **state)
{
    struct cache *cache = *state;
    const uint64_t token = 77;

    put(cache, cache->stored, HOUR_MS);
    end_server(cache);
    assert_false(gives(cache->answers, &cache->op));
    start_server(cache);
    command(cache, "SET {test}:answer:77 x", nothing_more);
    assert_int_equal(lk_response_cache_forget(cache->answers, &token, 1),
                     LK_OK);
    assert_false(holds(cache, 77));
}

static void a_wrong_url_is_refused_with_a_sentence(void **state)
{
    struct lk_response_cache_config config = {.url = "rediss://host",
                                              .secret = secret};
    struct lk_response_cache *answers = NULL;
    struct lk_buf error = {0};

    (void)state;
    assert_int_equal(lk_response_cache_open(&config, &answers, &error),
                     LK_INVALID);
    assert_non_null(memmem(error.data, error.len, "TLS", 3));
    latchkey_buf_free(&error);
}

#define CACHED(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CACHED(an_answer_comes_back_byte_for_byte),
        CACHED(an_omitted_answer_keeps_its_reason),
        CACHED(an_answer_is_bound_to_what_it_answers),
        CACHED(a_completion_leaves_what_its_first_retry_is_told),
        CACHED(a_changed_byte_anywhere_makes_it_worthless),
        CACHED(what_is_evicted_is_gone_when_forget_returns),
        CACHED(a_cache_without_memory_forgets),
        CACHED(it_keeps_an_answer_no_longer_than_it_is_told),
        CACHED(a_cache_that_is_gone_gives_nothing_and_comes_back),
        CACHED(a_frozen_cache_is_left_alone),
        CACHED(an_eviction_asks_a_cache_that_is_left_alone),
        cmocka_unit_test(a_wrong_url_is_refused_with_a_sentence),
    };
    if (system("command -v redis-server >/dev/null")) {
        print_message("there is no redis-server\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
