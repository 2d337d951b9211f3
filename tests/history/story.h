/* story.h - what check.c knows of one key, in the orders it needs. */
#ifndef LK_HISTORY_STORY_H
#define LK_HISTORY_STORY_H

#include "tests/history/history.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { COMPLAINTS_SHOWN = 20 };

#define NEVER INT64_MAX
#define MS    INT64_C(1000000)
/* Times of the store are cut to milliseconds. */
#define SLACK (3 * MS)

typedef const struct history_record *record_ref;

struct list {
    record_ref *at;
    size_t count, cap;
};

struct generation {
    uint64_t token, owner;
    record_ref grant;  /* the first reply that told of it */
    int64_t lo, hi;    /* the grant is between */
    int64_t known;     /* from here on no lower token is current */
    int64_t next_lo;   /* no higher token before this */
    int64_t released;  /* earliest, sent and not refused */
    int64_t expired;   /* earliest */
    int64_t evicted;   /* earliest */
    int64_t doubted;   /* earliest */
    int64_t lapsed;    /* earliest */
    record_ref freed;  /* a release that was acknowledged */
    record_ref done;   /* a completion that was acknowledged */
    record_ref answer; /* whoever fixed the answer */
    bool reexecute;    /* may come from a claim with REEXECUTE */
    bool other_print;
};

/* All that the history says of one key. */
struct story {
    struct list all;       /* by call */
    struct list claims;    /* by owner, call */
    struct list granted;   /* NEW replies, by token, return */
    struct list returned;  /* the same, by return */
    struct list shown;     /* what shows a token, by token, call */
    struct list answers;   /* completions, by digest, call */
    struct list evictions; /* by call */
    struct list done;      /* completions that were acknowledged, by return */
    struct generation *generations;
    size_t count, cap;
    int64_t first_lost; /* a claim that may hold a token nobody saw */
};

static uint64_t complaints;

static inline void *grow(void *array, size_t count, size_t *cap, size_t size)
{
    if (count < *cap) {
        return array;
    }
    *cap = 2 * *cap + 16;
    array = realloc(array, *cap * size);
    if (array == NULL) {
        fputs("check: out of memory\n", stderr);
        exit(2);
    }
    return array;
}

static inline void add(struct list *list, record_ref record)
{
    list->at = grow(list->at, list->count, &list->cap, sizeof(*list->at));
    list->at[list->count++] = record;
}

/* ---- complaints ---- */

static inline void show(record_ref record)
{
    static const char *const kinds[] = {
        "?", "CLAIM", "COMPLETE", "RELEASE", "DOUBT", "EXTEND", "EVICT"};
    static const char *const verdicts[] = {
        "no reply", "NEW",       "REPLAY",   "OMITTED", "INFLIGHT",
        "ACCEPTED", "UNCERTAIN", "MISMATCH", "LIMITED", "REFUSED",
        "OK",       "KEPT",      "STALE",    "NIL",     "UNAVAILABLE"};

    printf("    %" PRId64 "..%" PRId64 " connection %u key %" PRIu64
           " %s%s%s%s owner %016" PRIx64 " -> %s token %" PRIu64
           " answer %016" PRIx64 "\n",
           record->call_ns, record->return_ns, record->connection, record->key,
           kinds[record->kind],
           record->flags & HISTORY_REEXECUTE ? " REEXECUTE" : "",
           record->flags & HISTORY_OTHER_PRINT ? " other fingerprint" : "",
           record->flags & HISTORY_NONEW ? " NONEW" : "", record->owner,
           verdicts[record->verdict], record->token, record->digest);
}

static inline void complain(const char *what, record_ref first,
                            record_ref second)
{
    if (complaints++ >= COMPLAINTS_SHOWN) {
        return;
    }
    printf("VIOLATION: %s\n", what);
    if (first != NULL) {
        show(first);
    }
    if (second != NULL) {
        show(second);
    }
}

/* ---- orders ---- */

#define COMPARE(a, b) ((a) < (b) ? -1 : (a) > (b))

/* Compares two records by two fields. */
#define ORDER(name, field, then)                                               \
    static inline int name(const void *left, const void *right)                \
    {                                                                          \
        record_ref a = *(const record_ref *)left;                              \
        record_ref b = *(const record_ref *)right;                             \
        int order = COMPARE(a->field, b->field);                               \
        return order != 0 ? order : COMPARE(a->then, b->then);                 \
    }

ORDER(by_key, key, call_ns)
ORDER(by_owner, owner, call_ns)
ORDER(by_token, token, return_ns)
ORDER(by_token_call, token, call_ns)
ORDER(by_return, return_ns, call_ns)
ORDER(by_digest, digest, call_ns)

static inline void sort(struct list *list,
                        int (*order)(const void *, const void *))
{
    if (list->count > 1) {
        qsort(list->at, list->count, sizeof(*list->at), order);
    }
}

/* The first index for which the expression in `found` holds of `middle`. */
#define SEARCH(size, found)                                                    \
    ({                                                                         \
        size_t low_ = 0, high_ = (size);                                       \
        while (low_ < high_) {                                                 \
            size_t middle = low_ + (high_ - low_) / 2;                         \
            if (found) {                                                       \
                high_ = middle;                                                \
            } else {                                                           \
                low_ = middle + 1;                                             \
            }                                                                  \
        }                                                                      \
        low_;                                                                  \
    })

static inline int64_t earlier(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t later_by(int64_t from, uint32_t ms)
{
    return ms == 0 ? NEVER : from + ms * MS - SLACK;
}

/* It may have happened: acknowledged, or nobody knows. */
static inline bool is_unknown(record_ref record)
{
    return record->verdict == HISTORY_NONE ||
           record->verdict == HISTORY_UNAVAILABLE;
}

static inline bool may_have_happened(record_ref record)
{
    return record->verdict == HISTORY_OK || is_unknown(record);
}

#endif
