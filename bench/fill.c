/*
 * fill.c - fills an embedded store with live keys, for measurements at size.
 *
 *   fill PATH KEYS
 */
#include "store/store.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 1024 };

static void fill_batch(struct lk_store *store, struct lk_op **list, size_t from,
                       size_t count)
{
    static struct lk_op ops[BATCH];
    static char keys[BATCH][40];
    struct lk_batch batch = {.ops = list, .count = count};

    for (size_t i = 0; i < count; i++) {
        int len = snprintf(keys[i], sizeof(keys[i]), "fill-%012zu", from + i);
        ops[i] = (struct lk_op){
            .event = LK_EVENT_CLAIM,
            .name = {LK_SLICE("tenant"),
                     LK_SLICE("POST /v1/payments"),
                     {keys[i], (size_t)len}},
            .fingerprint = LK_SLICE("1:abcdef"),
        };
        ops[i].hash = lk_name_hash(store->secret, ops[i].name);
        list[i] = &ops[i];
    }
    store->class->apply(store, &batch);
    for (size_t i = 0; i < count; i++) {
        ops[i].event = LK_EVENT_COMPLETE;
        ops[i].token = ops[i].out.token;
        ops[i].response = (struct lk_response){.status = 201};
    }
    store->class->apply(store, &batch);
    lk_batch_clear(&batch);
    if (ops[0].status) {
        fprintf(stderr, "fill: %s\n", ops[0].error);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct lk_store_config config;
    struct lk_store *store;
    struct lk_buf error = {0};
    struct lk_op *list[BATCH];
    char url[4096];

    if (argc != 3) {
        fprintf(stderr, "usage: fill PATH KEYS\n");
        return 2;
    }
    size_t keys = strtoul(argv[2], NULL, 10);
    snprintf(url, sizeof(url), "sqlite:%s", argv[1]);
    lk_store_config_default(&config);
    config.checkpoint_pages = 16000;
    if (lk_store_open(url, &config, &store, &error)) {
        fprintf(stderr, "fill: %.*s\n", (int)error.len, error.data);
        return 1;
    }
    for (size_t done = 0; done < keys; done += BATCH) {
        fill_batch(store, list, done,
                   keys - done < BATCH ? keys - done : BATCH);
    }
    lk_store_close(store);
    return 0;
}
