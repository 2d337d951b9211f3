/*
 * overlay.h - what one batch has decided and not yet made durable.
 *
 * The index shows only durable records, to every thread. The batch reads
 * through the overlay, so that a later operation of a batch sees the earlier
 * ones; after the commit the overlay is merged, after a rollback dropped.
 */
#ifndef LK_OVERLAY_H
#define LK_OVERLAY_H

#include "store/index.h"

struct lk_overlay {
    struct lk_entry *entries; /* state ABSENT: to be removed */
    size_t count;
    size_t cap;
    uint64_t *slots; /* stamp << 32 | position */
    size_t slot_cap; /* a power of two, at least twice cap */
    uint32_t stamp;  /* a slot with another stamp is empty */
};

/* NULL if the record is absent. Valid until the next put. */
const struct lk_entry *lk_overlay_find(const struct lk_overlay *overlay,
                                       const struct lk_index *index,
                                       struct lk_hash128 hash);
LK_MUST_CHECK enum lk_status lk_overlay_put(struct lk_overlay *overlay,
                                            const struct lk_entry *entry);
/*
 * Moves everything into the index, all or nothing: lk_index_reserve has made
 * room for it, so that nothing can fail once it is durable.
 */
void lk_overlay_merge(struct lk_overlay *overlay, struct lk_index *index);
void lk_overlay_drop(struct lk_overlay *overlay);
void lk_overlay_free(struct lk_overlay *overlay);

#endif
