/* reply.h - what replies are put together from. */
#ifndef LK_REPLY_H
#define LK_REPLY_H

#include "daemon/daemon.h"

/*
 * The writers below return a status, and a reply is many of them in a row: W
 * leaves at the first that fails.
 */
#define W(call)                                                                \
    do {                                                                       \
        enum lk_status written = (call);                                       \
        if (written) {                                                         \
            return written;                                                    \
        }                                                                      \
    } while (0)

/* A name and a value of a map. Any thread. */
LK_MUST_CHECK enum lk_status lk_pair_number(struct lk_buf *out,
                                            const char *name, uint64_t number);
LK_MUST_CHECK enum lk_status lk_pair_bytes(struct lk_buf *out, const char *name,
                                           struct lk_slice bytes);
/* Three pairs: tenant, scope and key. */
LK_MUST_CHECK enum lk_status lk_pair_name(struct lk_buf *out,
                                          struct lk_name name);
/* The value alone; 0 is an empty one. */
LK_MUST_CHECK enum lk_status lk_write_reference(struct lk_buf *out,
                                                const struct lk_store *store,
                                                uint64_t number);

#endif
