/*
 * pairs.c - claim and completion pairs a second inside the embedded store,
 * against a bare log file with one fdatasync for each batch.
 *
 *   pairs store|log DIRECTORY BATCH PAIRS BODY [CHECKPOINT_PAGES]
 */
#include "store/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void die(const char *why)
{
    fprintf(stderr, "pairs: %s\n", why);
    exit(1);
}

struct workload {
    size_t batch;
    size_t pairs;
    size_t body;
};

static const char fingerprint[] =
    "1:5f2a0b7c9d8e4f3a1b6c7d8e9f0a1b2c3d4e5f60718293a4b5c6d7e8f9a0b1c2";
static const char headers[] = "Content-Type: application/json\r\n";

static void fill_claim(struct lk_store *store, struct lk_op *op, char *key,
                       size_t number)
{
    int len = snprintf(key, 40, "%08zx-6d2f-4f0e-9d5a-%012zx",
                       number * 2654435761u % 0xffffffffu, number);

    *op = (struct lk_op){
        .event = LK_EVENT_CLAIM,
        .name = {LK_SLICE("acct_19xPqL2"),
                 LK_SLICE("POST /v1/payments"),
                 {key, (size_t)len}},
        .fingerprint = LK_SLICE(fingerprint),
        .owner = {key, 16},
    };
    op->hash = lk_name_hash(store->secret, op->name);
}

static double run_store(const char *folder, const struct workload *workload,
                        unsigned checkpoint_pages)
{
    struct lk_store_config config;
    struct lk_store *store;
    struct lk_buf error = {0};
    char url[4096];
    struct lk_op *ops = calloc(workload->batch, sizeof(*ops));
    struct lk_op **list = calloc(workload->batch, sizeof(*list));
    char(*keys)[40] = calloc(workload->batch, sizeof(*keys));
    char *body = calloc(1, workload->body + 1);

    lk_store_config_default(&config);
    if (checkpoint_pages) {
        config.checkpoint_pages = checkpoint_pages;
    }
    snprintf(url, sizeof(url), "sqlite:%s/pairs.db", folder);
    if (!ops || !list || !keys || !body ||
        lk_store_open(url, &config, &store, &error)) {
        die(error.data ? error.data : "out of memory");
    }
    memset(body, 'x', workload->body);
    double start = now_s();
    for (size_t done = 0; done < workload->pairs; done += workload->batch) {
        struct lk_batch batch = {.ops = list, .count = workload->batch};
        batch.keep = true;
        for (size_t i = 0; i < workload->batch; i++) {
            list[i] = &ops[i];
            fill_claim(store, &ops[i], keys[i], done + i);
        }
        store->class->apply(store, &batch);
        for (size_t i = 0; i < workload->batch; i++) {
            if (ops[i].status || ops[i].out.verdict != LK_VERDICT_NEW) {
                die("a claim was not NEW");
            }
            ops[i].event = LK_EVENT_COMPLETE;
            ops[i].token = ops[i].out.token;
            ops[i].response = (struct lk_response){
                200, LK_SLICE(headers), {body, workload->body}};
        }
        store->class->apply(store, &batch);
        for (size_t i = 0; i < workload->batch; i++) {
            if (ops[i].status || ops[i].out.verdict != LK_VERDICT_DONE) {
                die("a completion was not OK");
            }
        }
        lk_batch_clear(&batch);
    }
    double seconds = now_s() - start;
    lk_store_close(store);
    free(ops);
    free(list);
    free(keys);
    free(body);
    return seconds;
}

/* The same bytes, appended: the claim with its name, then the response. */
static double run_log(const char *folder, const struct workload *workload)
{
    char path[4096];
    size_t claim = 16 + 36 + 12 + 17 + sizeof(fingerprint) + 40;
    size_t response = 24 + sizeof(headers) + workload->body;
    char *bytes = calloc(workload->batch, claim > response ? claim : response);

    snprintf(path, sizeof(path), "%s/pairs.log", folder);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND, 0600);
    if (!bytes || fd < 0) {
        die("cannot open the log");
    }
    double start = now_s();
    for (size_t done = 0; done < workload->pairs; done += workload->batch) {
        for (int half = 0; half < 2; half++) {
            size_t len = workload->batch * (half ? response : claim);
            if (write(fd, bytes, len) != (ssize_t)len || fdatasync(fd)) {
                die("cannot write the log");
            }
        }
    }
    double seconds = now_s() - start;
    close(fd);
    free(bytes);
    return seconds;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        die("usage: pairs store|log DIRECTORY BATCH PAIRS BODY [PAGES]");
    }
    struct workload workload = {strtoul(argv[3], NULL, 10),
                                strtoul(argv[4], NULL, 10),
                                strtoul(argv[5], NULL, 10)};
    unsigned pages = argc > 6 ? (unsigned)strtoul(argv[6], NULL, 10) : 0;
    double seconds = !strcmp(argv[1], "log")
                         ? run_log(argv[2], &workload)
                         : run_store(argv[2], &workload, pages);
    printf("%.0f\n", (double)workload.pairs / seconds);
    return 0;
}
