/*
 * wheel.c - a hierarchical timer wheel through the entries of the index.
 *
 * Every entry that waits for a time is in the list of one slot: at level l a
 * slot covers 64^l ticks. When the wheel comes to a slot of a higher level,
 * its entries move down. Both lists and slots are named by 32-bit references,
 * so that the wheel costs an entry eight bytes.
 */
#include "store/index.h"

/* However far the clock has moved, a call takes about a millisecond. */
enum { TICKS_AT_ONCE = 100000 };

/*
 * Whether time alone changes it. One that waits for nothing is in no list and
 * points at itself. The invariant: whatever the wheel says is due, the keeper
 * can end; else the wheel would stand still at it. So a request that the
 * courier runs is not here, nor a finished record with unfinished jobs; when
 * the last of them ends, the entry is put anew and with that filed.
 */
static bool waits(const struct lk_entry *entry)
{
    switch (entry->state) {
    case LK_STATE_IN_PROGRESS:
        return !entry->queued;
    case LK_STATE_COMPLETED:
    case LK_STATE_RELEASED:
        return !entry->jobs;
    default:
        return false;
    }
}

static uint64_t tick_of(uint64_t ms)
{
    return ms / LK_WHEEL_TICK_MS;
}

/* Where an entry with this deadline belongs, seen from the present tick. */
static uint32_t slot_for(const struct lk_index *index, uint64_t deadline)
{
    /* The tick after the deadline's: by then it has passed for certain. */
    uint64_t tick = tick_of(deadline) + 1;

    if (tick <= index->tick) {
        tick = index->tick;
    }
    uint64_t span = 1;
    for (uint32_t level = 0;; level++, span *= LK_WHEEL_SLOTS) {
        uint64_t ahead = tick / span - index->tick / span;
        if (ahead < LK_WHEEL_SLOTS) {
            return level * LK_WHEEL_SLOTS +
                   (uint32_t)(tick / span % LK_WHEEL_SLOTS);
        }
        if (level == LK_WHEEL_LEVELS - 1) {
            /* Beyond the wheel: the slot that comes round last. */
            return level * LK_WHEEL_SLOTS +
                   (uint32_t)((index->tick / span + LK_WHEEL_SLOTS - 1) %
                              LK_WHEEL_SLOTS);
        }
    }
}

void lk_wheel_file(struct lk_index *index, uint32_t ref)
{
    struct lk_entry *entry = lk_index_at(index, ref);

    if (!waits(entry)) {
        entry->next = entry->prev = ref;
        return;
    }
    uint32_t slot = slot_for(index, entry->deadline);
    uint32_t first = index->wheel[slot];
    entry->next = first;
    entry->prev = LK_ENTRY_MAX + slot;
    if (first != LK_ENTRY_NONE) {
        lk_index_at(index, first)->prev = ref;
    }
    index->wheel[slot] = ref;
}

void lk_wheel_unfile(struct lk_index *index, uint32_t ref)
{
    struct lk_entry *entry = lk_index_at(index, ref);

    if (entry->next == ref) {
        return;
    }
    if (entry->prev >= LK_ENTRY_MAX) {
        index->wheel[entry->prev - LK_ENTRY_MAX] = entry->next;
    } else {
        lk_index_at(index, entry->prev)->next = entry->next;
    }
    if (entry->next != LK_ENTRY_NONE) {
        lk_index_at(index, entry->next)->prev = entry->prev;
    }
    entry->next = entry->prev = ref;
}

/*
 * Moves the entries of a slot to where they belong now, at most *budget.
 * True when the slot has been emptied of everything that does not belong.
 */
static bool move_down(struct lk_index *index, uint32_t slot, size_t *budget)
{
    uint32_t ref = index->wheel[slot];

    while (ref != LK_ENTRY_NONE) {
        uint32_t next = lk_index_at(index, ref)->next;
        if (slot_for(index, lk_index_at(index, ref)->deadline) != slot) {
            if (*budget == 0) {
                return false;
            }
            --*budget;
            lk_wheel_unfile(index, ref);
            lk_wheel_file(index, ref);
        }
        ref = next;
    }
    return true;
}

/* The slots of higher levels that begin at the present tick, highest first. */
static bool cascade(struct lk_index *index, size_t *budget)
{
    uint64_t span = 1;
    uint32_t level = 0;

    while (level + 1 < LK_WHEEL_LEVELS &&
           index->tick % (span * LK_WHEEL_SLOTS) == 0) {
        span *= LK_WHEEL_SLOTS;
        level++;
    }
    for (; level > 0; level--, span /= LK_WHEEL_SLOTS) {
        uint32_t slot = level * LK_WHEEL_SLOTS +
                        (uint32_t)(index->tick / span % LK_WHEEL_SLOTS);
        if (!move_down(index, slot, budget)) {
            return false;
        }
    }
    return true;
}

static uint32_t present_slot(const struct lk_index *index)
{
    return (uint32_t)(index->tick % LK_WHEEL_SLOTS);
}

/* An empty wheel has nothing to turn through: it jumps. */
static void jump_if_empty(struct lk_index *index, uint64_t target)
{
    uint64_t waiting = index->by_state[LK_STATE_IN_PROGRESS] +
                       index->by_state[LK_STATE_COMPLETED] +
                       index->by_state[LK_STATE_RELEASED];

    if (waiting == 0 && index->tick < target) {
        index->tick = target;
    }
}

size_t lk_wheel_due(struct lk_index *index, uint64_t now_ms,
                    struct lk_hash128 *hashes, size_t max, bool *more)
{
    uint64_t target = tick_of(now_ms);
    size_t budget = max * 8;
    size_t ticks = 0;
    size_t count = 0;

    *more = true;
    jump_if_empty(index, target);
    for (;;) {
        if (!cascade(index, &budget)) {
            return count;
        }
        uint32_t ref = index->wheel[present_slot(index)];
        for (; ref != LK_ENTRY_NONE; ref = lk_index_at(index, ref)->next) {
            const struct lk_entry *entry = lk_index_at(index, ref);
            if (entry->deadline > now_ms) {
                continue; /* of this very tick */
            }
            if (count == max) {
                return count;
            }
            hashes[count++] = entry->hash;
        }
        if (index->tick >= target || count) {
            /* What is due must be dealt with before the wheel moves on. */
            *more = index->tick < target;
            return count;
        }
        if (++ticks == TICKS_AT_ONCE) {
            return 0;
        }
        index->tick++;
    }
}
