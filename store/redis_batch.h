/* redis_batch.h - one pipeline of a batch: what redis_apply.c runs. */
#ifndef LK_REDIS_BATCH_H
#define LK_REDIS_BATCH_H

#include "store/redis.h"

/* One pipeline. */
struct lk_redis_chunk {
    struct lk_redis *store;
    struct lk_redis_lane *lane;
    struct lk_batch *batch;
    struct lk_redis_pending *pending; /* those in this pipeline */
    size_t count;
    size_t answered;
    bool tends;      /* ends with the keeper's call */
    bool full;       /* begins nothing: Redis lacks memory */
    bool unfit;      /* the server does not want to be written to */
    bool complained; /* of what nobody expects; once is enough */
    uint64_t now_ms;
    int64_t change[6]; /* records by state */
    uint64_t last_token;
};

/* redis_write.c: queues as many of the first `most` as fit, and the keeper's
 * call behind the last one. */
LK_MUST_CHECK enum lk_status lk_chunk_write(struct lk_redis_chunk *chunk,
                                            size_t most, bool tends);
/* The question how many replicas have everything so far: two replies. */
LK_MUST_CHECK enum lk_status lk_chunk_write_wait(struct lk_redis_chunk *chunk);

/* redis_reply.c: on failure the link is closed; `answered` says how far it
 * came. */
LK_MUST_CHECK enum lk_status lk_chunk_read(struct lk_redis_chunk *chunk,
                                           int64_t deadline);
/* Until enough replicas have what was decided, if that is wanted; what they do
 * not have in time is unknown. */
LK_MUST_CHECK enum lk_status lk_chunk_await_replicas(
    struct lk_redis_chunk *chunk, int64_t deadline);
/* The link broke: what was sent and has no answer, or no confirmation, may have
 * happened. */
void lk_chunk_sort(struct lk_redis_chunk *chunk);

#endif
