/*
 * search.h - is there an order of commands that explains every reply?
 *
 * The commands of one operation, at most 64, are put one behind the other in
 * every way that real time and the order of each connection allow, until the
 * model explains all replies (Wing and Gong's search, with Lowe's memory of
 * what was tried). A command without a reply may come at any later moment, or
 * not at all.
 */
#ifndef LK_LINEAR_SEARCH_H
#define LK_LINEAR_SEARCH_H

#include "tests/linear/model.h"

#include <stdlib.h>

enum { OPS_MAX = 64, NODES_MAX = 1 << 19 };

enum search_result { SEARCH_FOUND, SEARCH_NONE, SEARCH_TOO_LONG };

struct tried {
    uint64_t done; /* 0: a free place; no state is looked up before the first */
    struct model model;
};

struct search {
    const struct op *ops;
    unsigned count;
    uint64_t replied;         /* these must be explained */
    uint64_t before[OPS_MAX]; /* of the same connection, sent earlier */
    uint64_t nodes;           /* looked at */
    struct tried *tried;
    size_t tried_count, tried_cap;
    /* How far it came, for people: */
    unsigned best;
    uint64_t best_done;
    struct model best_model;
};

#define BIT(n) (UINT64_C(1) << (n))

static inline size_t tried_slot(const struct search *search, uint64_t done,
                                const struct model *model)
{
    uint64_t hash =
        digest(model, sizeof(*model)) ^ done * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (hash ^ hash >> 32) & (search->tried_cap - 1);

    while (search->tried[at].done != 0 &&
           (search->tried[at].done != done ||
            memcmp(&search->tried[at].model, model, sizeof(*model)) != 0)) {
        at = (at + 1) & (search->tried_cap - 1);
    }
    return at;
}

static inline void tried_grow(struct search *search)
{
    struct tried *old = search->tried;
    size_t cap = search->tried_cap;

    search->tried_cap = cap ? 2 * cap : 1024;
    search->tried = calloc(search->tried_cap, sizeof(*old));
    if (search->tried == NULL) {
        abort();
    }
    for (size_t i = 0; i < cap; i++) {
        if (old[i].done != 0) {
            search->tried[tried_slot(search, old[i].done, &old[i].model)] =
                old[i];
        }
    }
    free(old);
}

/* False: that was tried before. */
static inline bool tried_add(struct search *search, uint64_t done,
                             const struct model *model)
{
    if (2 * search->tried_count >= search->tried_cap) {
        tried_grow(search);
    }
    size_t at = tried_slot(search, done, model);
    if (search->tried[at].done != 0) {
        return false;
    }
    search->tried[at].done = done;
    search->tried[at].model = *model;
    search->tried_count++;
    return true;
}

static inline int64_t first_return(const struct search *search, uint64_t done)
{
    int64_t first = NEVER;

    for (uint64_t left = search->replied & ~done; left; left &= left - 1) {
        first = sooner(first, search->ops[__builtin_ctzll(left)].return_us);
    }
    return first;
}

/* May `at` be the next one, as far as its connection is concerned? */
static inline bool is_in_order(const struct search *search, unsigned at,
                               uint64_t done)
{
    if (search->before[at] & search->replied & ~done) {
        return false;
    }
    for (uint64_t rest = done; rest; rest &= rest - 1) {
        if (search->before[__builtin_ctzll(rest)] & BIT(at)) {
            return false;
        }
    }
    return true;
}

static inline enum search_result search_from(struct search *search,
                                             uint64_t done,
                                             const struct model *model);

static inline enum search_result search_with(struct search *search,
                                             uint64_t done,
                                             const struct model *model,
                                             unsigned at, int64_t latest)
{
    bool replied = (search->replied & BIT(at)) != 0;
    enum search_result result = SEARCH_NONE;

    for (int way = 0; way < WAYS && result == SEARCH_NONE; way++) {
        struct model next = *model;

        /* What is unknown and changes nothing may as well not have been. */
        if (take_step(&next, &search->ops[at], way, latest) &&
            (replied || next.state != model->state ||
             memcmp(&next, model, sizeof(next)) != 0)) {
            result = search_from(search, done | BIT(at), &next);
        }
    }
    return result;
}

/* May it be the next one? `latest`: none of the others may be later. */
static inline bool is_next(const struct search *search, unsigned at,
                           uint64_t done, int64_t latest)
{
    return !(done & BIT(at)) && search->ops[at].call_us <= latest &&
           is_in_order(search, at, done);
}

/* Told this, a command has changed nothing, wherever it comes. */
static inline bool is_look(const struct op *op)
{
    return op->told != LK_VERDICT_NEW && op->told != LK_VERDICT_DONE;
}

/*
 * A look that fits and adds nothing to what is known can be explained here and
 * now: in any order that explains the rest it may come first. Returns its bit.
 */
static inline uint64_t find_idle(const struct search *search, uint64_t done,
                                 const struct model *model, int64_t latest)
{
    for (uint64_t left = search->replied & ~done; left; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left);

        /* What its connection sent before must not be cut off by it. */
        if ((search->before[at] & ~done) || !is_look(&search->ops[at]) ||
            !is_next(search, at, done, latest)) {
            continue;
        }
        for (int way = 0; way < WAYS; way++) {
            struct model next = *model;

            if (take_step(&next, &search->ops[at], way, latest) &&
                memcmp(&next, model, sizeof(next)) == 0) {
                return BIT(at);
            }
        }
    }
    return 0;
}

static inline void note_progress(struct search *search, uint64_t done,
                                 const struct model *model)
{
    unsigned explained = (unsigned)__builtin_popcountll(done & search->replied);

    if (explained >= search->best) {
        search->best = explained;
        search->best_done = done;
        search->best_model = *model;
    }
}

static inline enum search_result search_from(struct search *search,
                                             uint64_t done,
                                             const struct model *model)
{
    enum search_result result = SEARCH_NONE;
    int64_t latest = first_return(search, done);
    uint64_t idle;

    while ((idle = find_idle(search, done, model, latest)) != 0) {
        done |= idle;
        latest = first_return(search, done);
    }
    note_progress(search, done, model);
    if ((search->replied & ~done) == 0) {
        return SEARCH_FOUND;
    }
    if (done != 0 && !tried_add(search, done, model)) {
        return SEARCH_NONE;
    }
    if (++search->nodes > NODES_MAX) {
        return SEARCH_TOO_LONG;
    }
    /* What has no reply comes last: it is seldom needed. */
    for (unsigned unknown = 0; unknown < 2; unknown++) {
        for (unsigned at = 0; at < search->count && result == SEARCH_NONE;
             at++) {
            bool replied = (search->replied & BIT(at)) != 0;

            if (replied != unknown && is_next(search, at, done, latest)) {
                result = search_with(search, done, model, at, latest);
            }
        }
    }
    return result;
}

/* The ops are in the order in which they were sent. */
static inline enum search_result search_run(struct search *search,
                                            const struct op *ops,
                                            unsigned count)
{
    struct model model;

    memset(&model, 0, sizeof(model));
    search->ops = ops;
    search->count = count;
    search->replied = search->nodes = search->best = 0;
    search->tried_count = 0;
    if (search->tried_cap > 65536) {
        free(search->tried);
        search->tried = NULL;
        search->tried_cap = 0;
    } else if (search->tried_cap > 0) {
        memset(search->tried, 0, search->tried_cap * sizeof(*search->tried));
    }
    for (unsigned i = 0; i < count; i++) {
        search->before[i] = 0;
        if (ops[i].told != TOLD_NOTHING) {
            search->replied |= BIT(i);
        }
        for (unsigned j = 0; j < i; j++) {
            if (ops[j].connection == ops[i].connection) {
                search->before[i] |= BIT(j);
            }
        }
    }
    return search_from(search, 0, &model);
}

#endif
