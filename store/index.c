/*
 * index.c - the index of the embedded store: a hash table over its operations,
 * the timer wheel through them, the oldest doubt, and the overlay in which a
 * batch changes them.
 */
#include "store/index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the hash table ----------------------------------------------------- */

/*
 * 4096 small tables, chosen by the first bits of the hash, each growing by a
 * quarter when it is full: the whole is always about three quarters full, and
 * no single insertion moves more than one small table.
 */

enum {
    SHARDS = 4096,
    CHUNK_ENTRIES = 4096, /* entries allocated together */
    SHARD_SMALLEST = 8,
    EMPTY = 0,   /* tag: never used */
    DELETED = 1, /* tag: the search continues after it */
};

/* cap tags, then, aligned, cap references, in one allocation. */
struct lk_shard {
    uint32_t *refs;
    uint8_t *tags;
    uint32_t cap;
    uint32_t taken; /* tags that are not EMPTY */
    uint32_t live;
    uint32_t coming; /* counted by lk_index_reserve; else 0 */
};

static struct lk_shard *shard_of(const struct lk_index *index,
                                 struct lk_hash128 hash)
{
    return &index->shards[hash.hi >> 52];
}

static uint32_t home_of(const struct lk_shard *shard, struct lk_hash128 hash)
{
    return (uint32_t)(((hash.hi & UINT32_MAX) * shard->cap) >> 32);
}

static uint8_t tag_of(struct lk_hash128 hash)
{
    uint8_t tag = (uint8_t)hash.lo;

    return tag > DELETED ? tag : (uint8_t)(tag + 2);
}

struct lk_entry *lk_index_at(const struct lk_index *index, uint32_t ref)
{
    return &index->chunks[ref / CHUNK_ENTRIES][ref % CHUNK_ENTRIES];
}

enum lk_status lk_index_init(struct lk_index *index, uint64_t now_ms)
{
    *index = (struct lk_index){.free = LK_ENTRY_NONE};
    index->tick = now_ms / LK_WHEEL_TICK_MS;
    memset(index->wheel, 0xff, sizeof(index->wheel));
    index->shards = calloc(SHARDS, sizeof(struct lk_shard));
    if (!index->shards) {
        return LK_NOMEM;
    }
    index->bytes = SHARDS * sizeof(struct lk_shard);
    return LK_OK;
}

void lk_index_free(struct lk_index *index)
{
    for (uint32_t i = 0; index->shards && i < SHARDS; i++) {
        free(index->shards[i].refs);
    }
    free(index->shards);
    for (uint32_t i = 0; i < index->chunk_count; i++) {
        free(index->chunks[i]);
    }
    free(index->chunks);
    free(index->doubts);
    *index = (struct lk_index){.free = LK_ENTRY_NONE};
}

/* The slot that holds `hash`, or the shard's cap if there is none. */
static uint32_t find_slot(const struct lk_index *index,
                          const struct lk_shard *shard, struct lk_hash128 hash)
{
    if (!shard->cap) {
        return 0;
    }
    uint8_t tag = tag_of(hash);
    uint32_t slot = home_of(shard, hash);
    while (shard->tags[slot] != EMPTY) {
        if (shard->tags[slot] == tag &&
            lk_hash128_equal(lk_index_at(index, shard->refs[slot])->hash,
                             hash)) {
            return slot;
        }
        slot = slot + 1 == shard->cap ? 0 : slot + 1;
    }
    return shard->cap;
}

struct lk_entry *lk_index_find(const struct lk_index *index,
                               struct lk_hash128 hash)
{
    const struct lk_shard *shard = shard_of(index, hash);
    uint32_t slot = find_slot(index, shard, hash);

    return slot < shard->cap ? lk_index_at(index, shard->refs[slot]) : NULL;
}

void lk_index_prefetch(const struct lk_index *index, struct lk_hash128 hash)
{
    const struct lk_shard *shard = shard_of(index, hash);

    if (shard->cap) {
        uint32_t slot = home_of(shard, hash);
        __builtin_prefetch(&shard->tags[slot]);
        __builtin_prefetch(&shard->refs[slot]);
    }
}

/* There is an empty slot and the hash is not in the shard. */
static void place_entry(struct lk_shard *shard, struct lk_hash128 hash,
                        uint32_t ref)
{
    uint32_t slot = home_of(shard, hash);

    while (shard->tags[slot] > DELETED) {
        slot = slot + 1 == shard->cap ? 0 : slot + 1;
    }
    shard->taken += shard->tags[slot] == EMPTY;
    shard->live++;
    shard->tags[slot] = tag_of(hash);
    shard->refs[slot] = ref;
}

static size_t shard_bytes(uint32_t cap)
{
    return (size_t)cap * (sizeof(uint32_t) + sizeof(uint8_t));
}

static enum lk_status resize_shard(struct lk_index *index,
                                   struct lk_shard *shard, uint32_t cap)
{
    struct lk_shard grown = {.cap = cap};

    grown.refs = malloc(shard_bytes(cap));
    if (!grown.refs) {
        return LK_NOMEM;
    }
    grown.tags = (uint8_t *)(grown.refs + cap);
    memset(grown.tags, EMPTY, cap);
    for (uint32_t slot = 0; slot < shard->cap; slot++) {
        if (shard->tags[slot] > DELETED) {
            uint32_t ref = shard->refs[slot];
            place_entry(&grown, lk_index_at(index, ref)->hash, ref);
        }
    }
    index->bytes += shard_bytes(cap);
    index->bytes -= shard_bytes(shard->cap);
    free(shard->refs);
    *shard = grown;
    return LK_OK;
}

/* Room for `more` entries, with at least an eighth of the slots empty. */
static enum lk_status make_shard_room(struct lk_index *index,
                                      struct lk_shard *shard, uint32_t more)
{
    if (shard->taken + more <= shard->cap - shard->cap / 8) {
        return LK_OK;
    }
    uint32_t cap = shard->live + more + (shard->live + more) * 2 / 5;
    return resize_shard(index, shard,
                        cap < SHARD_SMALLEST ? SHARD_SMALLEST : cap);
}

static enum lk_status add_chunk(struct lk_index *index)
{
    if (index->chunk_count == index->chunk_cap) {
        uint32_t cap = index->chunk_cap ? index->chunk_cap * 2 : 16;
        struct lk_entry **chunks =
            realloc(index->chunks, cap * sizeof(*chunks));
        if (!chunks) {
            return LK_NOMEM;
        }
        index->bytes += (cap - index->chunk_cap) * sizeof(*chunks);
        index->chunks = chunks;
        index->chunk_cap = cap;
    }
    struct lk_entry *chunk = malloc(CHUNK_ENTRIES * sizeof(*chunk));
    if (!chunk) {
        return LK_NOMEM;
    }
    index->bytes += CHUNK_ENTRIES * sizeof(*chunk);
    index->chunks[index->chunk_count++] = chunk;
    return LK_OK;
}

/* LK_ENTRY_NONE: out of memory. */
static uint32_t take_entry(struct lk_index *index)
{
    uint32_t ref = index->free;

    if (ref != LK_ENTRY_NONE) {
        index->free = lk_index_at(index, ref)->next;
        return ref;
    }
    if (index->used == LK_ENTRY_MAX ||
        (index->used == index->chunk_count * CHUNK_ENTRIES &&
         add_chunk(index))) {
        return LK_ENTRY_NONE;
    }
    return index->used++;
}

static void give_entry(struct lk_index *index, uint32_t ref)
{
    lk_index_at(index, ref)->next = index->free;
    index->free = ref;
}

static enum lk_status overwrite_entry(struct lk_index *index, uint32_t ref,
                                      const struct lk_entry *entry)
{
    struct lk_entry *current = lk_index_at(index, ref);
    enum lk_status status = LK_OK;

    if (entry->state == LK_STATE_UNCERTAIN &&
        (current->state != LK_STATE_UNCERTAIN ||
         current->deadline != entry->deadline)) {
        status = lk_doubt_note(index, entry);
    }
    if (status) {
        return status;
    }
    lk_wheel_unfile(index, ref);
    index->by_state[current->state]--;
    *current = *entry;
    index->by_state[current->state]++;
    lk_wheel_file(index, ref);
    return LK_OK;
}

enum lk_status lk_index_put(struct lk_index *index,
                            const struct lk_entry *entry)
{
    struct lk_shard *shard = shard_of(index, entry->hash);
    uint32_t slot = find_slot(index, shard, entry->hash);

    if (slot < shard->cap) {
        return overwrite_entry(index, shard->refs[slot], entry);
    }
    enum lk_status status = make_shard_room(index, shard, 1);
    if (!status && entry->state == LK_STATE_UNCERTAIN) {
        status = lk_doubt_note(index, entry);
    }
    if (status) {
        return status;
    }
    uint32_t ref = take_entry(index);
    if (ref == LK_ENTRY_NONE) {
        return LK_NOMEM;
    }
    *lk_index_at(index, ref) = *entry;
    place_entry(shard, entry->hash, ref);
    index->count++;
    index->by_state[entry->state]++;
    lk_wheel_file(index, ref);
    return LK_OK;
}

/* Entries of which none is taken yet, in chunks that are there. */
static enum lk_status reserve_entries(struct lk_index *index, size_t count)
{
    enum lk_status status = LK_OK;

    if (index->count + count > LK_ENTRY_MAX) {
        return LK_NOMEM;
    }
    while (!status && index->count + count >
                          (uint64_t)index->chunk_count * CHUNK_ENTRIES) {
        status = add_chunk(index);
    }
    return status;
}

enum lk_status lk_index_reserve(struct lk_index *index,
                                const struct lk_entry *entries, size_t count)
{
    size_t added = 0;
    size_t doubts = 0;

    for (size_t i = 0; i < count; i++) {
        if (entries[i].state != LK_STATE_ABSENT &&
            !lk_index_find(index, entries[i].hash)) {
            shard_of(index, entries[i].hash)->coming++;
            added++;
        }
        doubts += entries[i].state == LK_STATE_UNCERTAIN;
    }
    enum lk_status status = reserve_entries(index, added);
    if (!status && doubts) {
        status = lk_doubt_reserve(index, doubts);
    }
    for (size_t i = 0; i < count && added; i++) {
        struct lk_shard *shard = shard_of(index, entries[i].hash);
        uint32_t coming = shard->coming;
        shard->coming = 0;
        if (!status && coming) {
            status = make_shard_room(index, shard, coming);
        }
    }
    return status;
}

void lk_index_remove(struct lk_index *index, struct lk_hash128 hash)
{
    struct lk_shard *shard = shard_of(index, hash);
    uint32_t slot = find_slot(index, shard, hash);

    if (slot >= shard->cap) {
        return;
    }
    uint32_t ref = shard->refs[slot];
    lk_wheel_unfile(index, ref);
    index->by_state[lk_index_at(index, ref)->state]--;
    index->count--;
    give_entry(index, ref);

    /* A slot before an empty one can be empty again itself. */
    uint32_t behind = slot + 1 == shard->cap ? 0 : slot + 1;
    bool last = shard->tags[behind] == EMPTY;
    shard->tags[slot] = last ? EMPTY : DELETED;
    shard->taken -= last;
    shard->live--;
}

/* ---- TTLs in 16 bits -------------------------------------------------- */

static const uint64_t ttl_units[] = {1, 1000, 60000, 3600000, 86400000};

enum { TTL_UNITS = 5, TTL_COUNT_MAX = 8191 };

unsigned lk_ttl_pack(uint64_t ttl_ms)
{
    for (unsigned unit = 0; unit < TTL_UNITS; unit++) {
        uint64_t count = ttl_ms / ttl_units[unit];
        if (count <= TTL_COUNT_MAX && count * ttl_units[unit] == ttl_ms) {
            return (unsigned)count << 3 | unit;
        }
    }
    return 0;
}

unsigned lk_ttl_pack_up(uint64_t ttl_ms)
{
    for (unsigned unit = 0; unit < TTL_UNITS; unit++) {
        uint64_t count = (ttl_ms + ttl_units[unit] - 1) / ttl_units[unit];
        if (count <= TTL_COUNT_MAX) {
            return (unsigned)count << 3 | unit;
        }
    }
    return TTL_COUNT_MAX << 3 | (TTL_UNITS - 1);
}

uint64_t lk_ttl_unpack(unsigned packed)
{
    return (packed >> 3) * ttl_units[(packed & 7) % TTL_UNITS];
}

/* ---- the timer wheel ---------------------------------------------------- */

/*
 * Every entry that waits for a time is in the list of one slot: at level l a
 * slot covers 64^l ticks. When the wheel comes to a slot of a higher level,
 * its entries move down. Both lists and slots are named by 32-bit references,
 * so that the wheel costs an entry eight bytes.
 */

/* However far the clock has moved, a call takes about a millisecond. */
enum { TICKS_AT_ONCE = 100000 };

/*
 * Whether time alone changes the entry. An entry that waits for nothing is in
 * no list and points at itself. The invariant: the keeper can end everything
 * that the wheel reports as due; else the wheel would stop at it. So a request
 * that the courier runs is not in the wheel, nor a finished operation with
 * unfinished jobs; when the last of these ends, the entry is put again and
 * thereby filed.
 */
static bool waits_for_time(const struct lk_entry *entry)
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

    if (!waits_for_time(entry)) {
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
static bool move_slot_down(struct lk_index *index, uint32_t slot,
                           size_t *budget)
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
static bool cascade_levels(struct lk_index *index, size_t *budget)
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
        if (!move_slot_down(index, slot, budget)) {
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
        if (!cascade_levels(index, &budget)) {
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

/* ---- the oldest doubt --------------------------------------------------- */

/*
 * A heap by time of every doubt that was noted. An operation that is not
 * uncertain any more stays in the heap until it comes to the top, or until the
 * heap is full and is cleared of such: so the heap never holds much more than
 * twice the doubts there are.
 */

struct lk_doubt {
    uint64_t since_ms;
    struct lk_hash128 hash;
};

enum { HEAP_SMALLEST = 64 };

/* Whether the operation is still uncertain since that time. */
static bool is_current_doubt(const struct lk_index *index,
                             const struct lk_doubt *doubt)
{
    const struct lk_entry *entry = lk_index_find(index, doubt->hash);

    return entry && entry->state == LK_STATE_UNCERTAIN &&
           entry->deadline == doubt->since_ms;
}

static void sift_doubt_up(struct lk_index *index, size_t at)
{
    struct lk_doubt moved = index->doubts[at];

    while (at && index->doubts[(at - 1) / 2].since_ms > moved.since_ms) {
        index->doubts[at] = index->doubts[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    index->doubts[at] = moved;
}

static void sift_doubt_down(struct lk_index *index, size_t at)
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

static void drop_settled_doubts(struct lk_index *index)
{
    size_t count = 0;

    for (size_t i = 0; i < index->doubt_count; i++) {
        if (is_current_doubt(index, &index->doubts[i])) {
            index->doubts[count++] = index->doubts[i];
        }
    }
    index->doubt_count = count;
    for (size_t i = count / 2; i-- > 0;) {
        sift_doubt_down(index, i);
    }
}

enum lk_status lk_doubt_reserve(struct lk_index *index, size_t count)
{
    if (index->doubt_count + count <= index->doubt_cap) {
        return LK_OK;
    }
    drop_settled_doubts(index);
    if (index->doubt_count + count <= index->doubt_cap / 2) {
        return LK_OK;
    }
    size_t cap = 2 * (index->doubt_cap + count);
    cap = cap < HEAP_SMALLEST ? HEAP_SMALLEST : cap;
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
    sift_doubt_up(index, index->doubt_count - 1);
    return LK_OK;
}

uint64_t lk_index_oldest(struct lk_index *index)
{
    while (index->doubt_count && !is_current_doubt(index, &index->doubts[0])) {
        index->doubts[0] = index->doubts[--index->doubt_count];
        if (index->doubt_count) {
            sift_doubt_down(index, 0);
        }
    }
    return index->doubt_count ? index->doubts[0].since_ms : 0;
}

/* ---- the overlay of a batch --------------------------------------------- */

enum { OVERLAY_SMALLEST = 1024, PREFETCH_AHEAD = 8 };

/* The slot with this hash, or the empty one where it belongs. */
static size_t find_overlay_slot(const struct lk_overlay *overlay,
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
        uint64_t slot = overlay->slots[find_overlay_slot(overlay, hash)];
        if (slot >> 32 == overlay->stamp) {
            const struct lk_entry *entry = &overlay->entries[(uint32_t)slot];
            return entry->state == LK_STATE_ABSENT ? NULL : entry;
        }
    }
    return lk_index_find(index, hash);
}

static enum lk_status grow_overlay(struct lk_overlay *overlay)
{
    size_t cap = overlay->cap ? overlay->cap * 2 : OVERLAY_SMALLEST;
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
        slots[find_overlay_slot(overlay, entries[i].hash)] =
            UINT64_C(1) << 32 | i;
    }
    return LK_OK;
}

enum lk_status lk_overlay_put(struct lk_overlay *overlay,
                              const struct lk_entry *entry)
{
    if (overlay->count == overlay->cap) {
        enum lk_status status = grow_overlay(overlay);
        if (status) {
            return status;
        }
    }
    size_t slot = find_overlay_slot(overlay, entry->hash);
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
        if (i + PREFETCH_AHEAD < overlay->count) {
            lk_index_prefetch(index, entry[PREFETCH_AHEAD].hash);
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
