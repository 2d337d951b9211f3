/*
 * oldest.c - since when the oldest uncertain record of the index is so.
 *
 * A heap by time of every doubt there was. A record that left its doubt stays
 * in the heap until it comes to the top, or until the heap is full and is
 * cleared of such: so it is never much larger than twice the doubts there are.
 */
#include "store/index.h"

#include <stdlib.h>

struct lk_doubt {
    uint64_t since_ms;
    struct lk_hash128 hash;
};

enum { SMALLEST = 64 };

/* Is the record still in that very doubt? */
static bool stands(const struct lk_index *index, const struct lk_doubt *doubt)
{
    const struct lk_entry *entry = lk_index_find(index, doubt->hash);

    return entry && entry->state == LK_STATE_UNCERTAIN &&
           entry->deadline == doubt->since_ms;
}

static void sift_up(struct lk_index *index, size_t at)
{
    struct lk_doubt moved = index->doubts[at];

    while (at && index->doubts[(at - 1) / 2].since_ms > moved.since_ms) {
        index->doubts[at] = index->doubts[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    index->doubts[at] = moved;
}

static void sift_down(struct lk_index *index, size_t at)
{
    struct lk_doubt moved = index->doubts[at];
    size_t child;

    while ((child = 2 * at + 1) < index->doubt_count) {
        if (child + 1 < index->doubt_count &&
            index->doubts[child + 1].since_ms < index->doubts[child].since_ms) {
            child++;
        }
        if (index->doubts[child].since_ms >= moved.since_ms) {
            break;
        }
        index->doubts[at] = index->doubts[child];
        at = child;
    }
    index->doubts[at] = moved;
}

static void clear_settled(struct lk_index *index)
{
    size_t stored = 0;

    for (size_t i = 0; i < index->doubt_count; i++) {
        if (stands(index, &index->doubts[i])) {
            index->doubts[stored++] = index->doubts[i];
        }
    }
    index->doubt_count = stored;
    for (size_t i = stored / 2; i-- > 0;) {
        sift_down(index, i);
    }
}

enum lk_status lk_doubt_reserve(struct lk_index *index, size_t count)
{
    if (index->doubt_count + count <= index->doubt_cap) {
        return LK_OK;
    }
    clear_settled(index);
    if (index->doubt_count + count <= index->doubt_cap / 2) {
        return LK_OK;
    }
    size_t cap = 2 * (index->doubt_cap + count);
    cap = cap < SMALLEST ? SMALLEST : cap;
    struct lk_doubt *doubts = realloc(index->doubts, cap * sizeof(*doubts));
    if (!doubts) {
        return LK_NOMEM;
    }
    index->bytes += (cap - index->doubt_cap) * sizeof(*doubts);
    index->doubts = doubts;
    index->doubt_cap = cap;
    return LK_OK;
}

enum lk_status lk_doubt_note(struct lk_index *index,
                             const struct lk_entry *entry)
{
    enum lk_status status = lk_doubt_reserve(index, 1);

    if (status) {
        return status;
    }
    index->doubts[index->doubt_count++] =
        (struct lk_doubt){entry->deadline, entry->hash};
    sift_up(index, index->doubt_count - 1);
    return LK_OK;
}

uint64_t lk_index_oldest(struct lk_index *index)
{
    while (index->doubt_count && !stands(index, &index->doubts[0])) {
        index->doubts[0] = index->doubts[--index->doubt_count];
        if (index->doubt_count) {
            sift_down(index, 0);
        }
    }
    return index->doubt_count ? index->doubts[0].since_ms : 0;
}
