/* provider.h - what the files of the provider share. */
#ifndef PROVIDER_H
#define PROVIDER_H

#include "payments.h"

struct provider {
    bool honours;      /* Idempotency-Key: the same key is the same charge */
    const char *token; /* that every caller must show; NULL: none */
    unsigned pad;      /* filler bytes in the response to a charge */
};

extern struct provider provider;

/* ---- provider_keys.c: what has come under each key ---- */

struct key {
    uint64_t hash;
    char *text;       /* as the ledger writes it, without quotes */
    uint64_t calls;   /* of this process */
    uint64_t effects; /* charges, those before a restart too */
    uint64_t first;   /* its charges: a number, then keys_next; 0: none */
    uint64_t last;
};

/* From the ledger. */
void keys_open(void);
/* The one of that text, made if it is not there yet. */
struct key *key_get(struct text text);
/* NULL: nothing has come under that key. */
const struct key *key_find(struct text text);
/* Charge `number` was made under that key. */
void key_charged(struct key *key, uint64_t number);
/* The charge of the same key after that one; 0: none. */
uint64_t keys_next(uint64_t number);
/* All of them with their counts, as a JSON object. */
void keys_list(struct buf *out);

/* ---- provider_manner.c: how it misbehaves, and when ---- */

enum moment { NEVER, BEFORE, AFTER }; /* it acts */

struct manner {
    enum moment drop; /* the connection closes without a response */
    enum moment hang; /* no response until it is released */
    enum moment die;  /* kill -9 of itself */
    unsigned fail;    /* this status, and no act; 0: none */
    char retry_after[64];
    char redirect[256];
    uint64_t delay_ms;
    unsigned pace_ms; /* the response byte by byte */
    uint64_t giant;   /* bytes of filler in the response */
    bool garbage;     /* a response that is not HTTP */
    bool cut;         /* the head of the response, and then nothing */
    uint64_t times;   /* only the first calls of a key; 0: all */
    uint64_t next;    /* only this number of calls; 0: all */
    unsigned chance;  /* only this number of a hundred; 0: all */
    /* Of a hundred calls this number gets this and nothing else: */
    unsigned drop_before, drop_after, fail_503, delay_20;
};

void manner_seed(uint64_t seed);
/* For all calls that bring none; NULL, or what is wrong with the object. */
const char *manner_set(struct text object);
/* What is to be done with this call; `given`: what it brings, or empty.
 * NULL, or what is wrong with that. */
const char *manner_choose(struct text given, const struct key *key,
                          struct manner *manner);

/* ---- provider_api.c ---- */

/* A line for each call goes there, in the order in which they came. */
void calls_open(const char *path);

#endif
