/* overlay.c - the changes of one batch over the index; see overlay.h. */
#include "store/overlay.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { SMALLEST = 1024, AHEAD = 8 };

/* The slot with this hash, or the empty one where it belongs. */
static size_t find_slot(const struct lk_overlay *overlay,
                        struct lk_hash128 hash)
{
    size_t slot = hash.lo & (overlay->slot_cap - 1);

    while (overlay->slots[slot] >> 32 == overlay->stamp) {
        uint32_t at = (uint32_t)overlay->slots[slot];
        if (lk_hash128_equal(overlay->entries[at].hash, hash)) {
            break;
        }
        slot = (slot + 1) & (overlay->slot_cap - 1);
    }
    return slot;
}

const struct lk_entry *lk_overlay_find(const struct lk_overlay *overlay,
                                       const struct lk_index *index,
                                       struct lk_hash128 hash)
{
    if (overlay->count) {
        uint64_t slot = overlay->slots[find_slot(overlay, hash)];
        if (slot >> 32 == overlay->stamp) {
            const struct lk_entry *entry = &overlay->entries[(uint32_t)slot];
            return entry->state == LK_STATE_ABSENT ? NULL : entry;
        }
    }
    return lk_index_find(index, hash);
}

static enum lk_status grow(struct lk_overlay *overlay)
{
    size_t cap = overlay->cap ? overlay->cap * 2 : SMALLEST;
    struct lk_entry *entries =
        realloc(overlay->entries, cap * sizeof(*entries));

    if (!entries) {
        return LK_NOMEM;
    }
    overlay->entries = entries;
    uint64_t *slots = calloc(cap * 2, sizeof(*slots));
    if (!slots) {
        return LK_NOMEM;
    }
    free(overlay->slots);
    overlay->slots = slots;
    overlay->slot_cap = cap * 2;
    overlay->cap = cap;
    overlay->stamp = 1;
    for (size_t i = 0; i < overlay->count; i++) {
        slots[find_slot(overlay, entries[i].hash)] = UINT64_C(1) << 32 | i;
    }
    return LK_OK;
}

enum lk_status lk_overlay_put(struct lk_overlay *overlay,
                              const struct lk_entry *entry)
{
    if (overlay->count == overlay->cap) {
        enum lk_status status = grow(overlay);
        if (status) {
            return status;
        }
    }
    size_t slot = find_slot(overlay, entry->hash);
    if (overlay->slots[slot] >> 32 != overlay->stamp) {
        overlay->slots[slot] =
            (uint64_t)overlay->stamp << 32 | overlay->count++;
    }
    overlay->entries[(uint32_t)overlay->slots[slot]] = *entry;
    return LK_OK;
}

void lk_overlay_merge(struct lk_overlay *overlay, struct lk_index *index)
{
    for (size_t i = 0; i < overlay->count; i++) {
        const struct lk_entry *entry = &overlay->entries[i];
        if (i + AHEAD < overlay->count) {
            lk_index_prefetch(index, entry[AHEAD].hash);
        }
        if (entry->state == LK_STATE_ABSENT) {
            lk_index_remove(index, entry->hash);
        } else {
            enum lk_status status = lk_index_put(index, entry);
            assert(!status);
            (void)status;
        }
    }
    lk_overlay_drop(overlay);
}

void lk_overlay_drop(struct lk_overlay *overlay)
{
    overlay->count = 0;
    if (++overlay->stamp == 0 && overlay->slots) {
        memset(overlay->slots, 0, overlay->slot_cap * sizeof(uint64_t));
        overlay->stamp = 1;
    }
}

void lk_overlay_free(struct lk_overlay *overlay)
{
    free(overlay->entries);
    free(overlay->slots);
    *overlay = (struct lk_overlay){0};
}
