/*
 * index.c - the hash table over the records of the embedded store.
 *
 * 4096 small tables, chosen by the first bits of the hash, each growing by a
 * quarter when it is full: the whole is always about three quarters full, and
 * no single insertion moves more than one small table.
 */
#include "store/index.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHARDS = 4096,
    CHUNK = 4096, /* entries allocated together */
    SMALLEST = 8,
    EMPTY = 0,   /* tag: never used */
    DELETED = 1, /* tag: the search goes on behind it */
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
    return &index->chunks[ref / CHUNK][ref % CHUNK];
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
static void place(struct lk_shard *shard, struct lk_hash128 hash, uint32_t ref)
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

static enum lk_status resize(struct lk_index *index, struct lk_shard *shard,
                             uint32_t cap)
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
            place(&grown, lk_index_at(index, ref)->hash, ref);
        }
    }
    index->bytes += shard_bytes(cap);
    index->bytes -= shard_bytes(shard->cap);
    free(shard->refs);
    *shard = grown;
    return LK_OK;
}

/* Room for so many more, with at least an eighth of the slots empty. */
static enum lk_status make_room(struct lk_index *index, struct lk_shard *shard,
                                uint32_t more)
{
    if (shard->taken + more <= shard->cap - shard->cap / 8) {
        return LK_OK;
    }
    uint32_t cap = shard->live + more + (shard->live + more) * 2 / 5;
    return resize(index, shard, cap < SMALLEST ? SMALLEST : cap);
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
    struct lk_entry *chunk = malloc(CHUNK * sizeof(*chunk));
    if (!chunk) {
        return LK_NOMEM;
    }
    index->bytes += CHUNK * sizeof(*chunk);
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
        (index->used == index->chunk_count * CHUNK && add_chunk(index))) {
        return LK_ENTRY_NONE;
    }
    return index->used++;
}

static void give_entry(struct lk_index *index, uint32_t ref)
{
    lk_index_at(index, ref)->next = index->free;
    index->free = ref;
}

static enum lk_status overwrite(struct lk_index *index, uint32_t ref,
                                const struct lk_entry *entry)
{
    struct lk_entry *mine = lk_index_at(index, ref);
    enum lk_status status = LK_OK;

    if (entry->state == LK_STATE_UNCERTAIN &&
        (mine->state != LK_STATE_UNCERTAIN ||
         mine->deadline != entry->deadline)) {
        status = lk_doubt_note(index, entry);
    }
    if (status) {
        return status;
    }
    lk_wheel_unfile(index, ref);
    index->by_state[mine->state]--;
    *mine = *entry;
    index->by_state[mine->state]++;
    lk_wheel_file(index, ref);
    return LK_OK;
}

enum lk_status lk_index_put(struct lk_index *index,
                            const struct lk_entry *entry)
{
    struct lk_shard *shard = shard_of(index, entry->hash);
    uint32_t slot = find_slot(index, shard, entry->hash);

    if (slot < shard->cap) {
        return overwrite(index, shard->refs[slot], entry);
    }
    enum lk_status status = make_room(index, shard, 1);
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
    place(shard, entry->hash, ref);
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
    while (!status &&
           index->count + count > (uint64_t)index->chunk_count * CHUNK) {
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
            status = make_room(index, shard, coming);
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
