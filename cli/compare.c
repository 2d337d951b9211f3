/*
 * compare.c - the join: who meets whom, by the key first, then by the id.
 *
 * The jobs of a partition are loaded into a table, and the lines of the same
 * partition go by. If the jobs are too many, the partition is split by the
 * next bits of the hash, both sides in the same way. A line that finds nobody
 * and a job that nobody found go on to the second round, which is the same by
 * the id.
 */
#include "cli/compare.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROUND_KEY,
    ROUND_ID,
    ROUNDS,
    PARTS = 64,
    DEPTH_MAX = 8, /* bytes of the hash that choose partitions */
    BLOCK_LEAST = 4096,
    BLOCK_MOST = 1 << 18,
    SHARE_TABLE = 2,   /* of the memory, half is for the table */
    SHARE_BUFFERS = 4, /* and a quarter for what is being spilled */
};

/* What became of a job in the table. Those of one hash form a chain, so that
 * many of them cost no more than others; numbers are those of items and 1. */
struct fate {
    struct lk_hash128 id; /* of the line that it met */
    uint32_t next;        /* in the chain; 0: none */
    uint32_t last;        /* the first one's: of the chain */
    uint32_t turn;        /* the first one's: has met nobody; 0: all have */
    uint32_t lines;       /* the first one's, with shared keys: lines */
    bool met;
};

struct lk_reconcile {
    struct lk_reconcile_setup setup;
    size_t stride;
    struct lk_spill spills[ROUNDS][2]; /* by side */
    uint64_t done;                     /* items joined, for the bar */
    uint64_t total;
};

static size_t block_size(const struct lk_reconcile *r, unsigned depth)
{
    size_t block = r->setup.memory / SHARE_BUFFERS / (PARTS * 2) >> depth;

    return block < BLOCK_LEAST  ? BLOCK_LEAST
           : block > BLOCK_MOST ? BLOCK_MOST
                                : block;
}

static enum lk_status open_spills(struct lk_reconcile *r,
                                  struct lk_spill spills[2], unsigned depth)
{
    enum lk_status status = LK_OK;

    for (int side = 0; side < 2 && status == LK_OK; side++) {
        int fd = -1;

        status = r->setup.temporary(r->setup.context, &fd);
        if (status == LK_OK) {
            status = lk_spill_open(&spills[side], fd, r->stride, PARTS,
                                   block_size(r, depth));
        }
    }
    return status;
}

enum lk_status lk_reconcile_open(const struct lk_reconcile_setup *setup,
                                 struct lk_reconcile **reconcile)
{
    struct lk_reconcile *r = calloc(1, sizeof(*r));
    enum lk_status status;

    *reconcile = r;
    if (r == NULL) {
        return LK_NOMEM;
    }
    r->setup = *setup;
    r->stride = lk_item_size(setup->pairs);
    status = open_spills(r, r->spills[ROUND_KEY], 0);
    return status != LK_OK ? status : open_spills(r, r->spills[ROUND_ID], 1);
}

void lk_reconcile_close(struct lk_reconcile *r)
{
    if (r == NULL) {
        return;
    }
    for (int round = 0; round < ROUNDS; round++) {
        lk_spill_close(&r->spills[round][LK_HERE]);
        lk_spill_close(&r->spills[round][LK_THERE]);
    }
    free(r);
}

static struct lk_hash128 hash_of(const struct lk_item *item, int round)
{
    return round == ROUND_KEY ? item->key : item->id;
}

static unsigned part_of(const struct lk_item *item, int round, unsigned depth)
{
    return (unsigned)(hash_of(item, round).lo >> (8 * depth)) % PARTS;
}

enum lk_status lk_reconcile_add(struct lk_reconcile *r, enum lk_side side,
                                const struct lk_item *item)
{
    int round = (item->flags & LK_ITEM_KEY) != 0 ? ROUND_KEY : ROUND_ID;

    r->total++;
    return lk_spill_add(&r->spills[round][side], part_of(item, round, 0), item);
}

/* ---- Telling --------------------------------------------------------------
 */

static enum lk_status tell(struct lk_reconcile *r, struct lk_finding finding)
{
    return r->setup.found(r->setup.context, &finding);
}

/* Nobody was met in this round: the next one, or alone. */
static enum lk_status pass_on(struct lk_reconcile *r, enum lk_side side,
                              int round, const struct lk_item *item)
{
    if (round == ROUND_KEY && (item->flags & LK_ITEM_ID) != 0) {
        return lk_spill_add(&r->spills[ROUND_ID][side],
                            part_of(item, ROUND_ID, 0), item);
    }
    return tell(r,
                (struct lk_finding){
                    .meeting = side == LK_HERE ? LK_ONLY_HERE : LK_ONLY_THERE,
                    .here = side == LK_HERE ? item : NULL,
                    .there = side == LK_HERE ? NULL : item,
                });
}

static uint32_t find_differences(const struct lk_reconcile *r,
                                 const struct lk_item *here,
                                 const struct lk_item *there)
{
    uint16_t both = here->flags & there->flags;
    uint32_t differs = 0;

    for (unsigned i = 0; i < r->setup.pairs; i++) {
        if (here->values[i] != there->values[i]) {
            differs |= UINT32_C(1) << i;
        }
    }
    if ((both & LK_ITEM_KEY) != 0 && !lk_hash128_equal(here->key, there->key)) {
        differs |= LK_DIFFERS_KEY;
    }
    if ((both & LK_ITEM_ID) != 0 && !lk_hash128_equal(here->id, there->id)) {
        differs |= LK_DIFFERS_ID;
    }
    return differs;
}

/* ---- The table ------------------------------------------------------------
 */

struct table {
    char *items;
    struct fate *fates;
    uint32_t *slots; /* the first of a chain; 0: none */
    size_t count;
    size_t mask;
};

static size_t item_cost(const struct lk_reconcile *r)
{
    return r->stride + sizeof(struct fate) + 4 * sizeof(uint32_t);
}

static bool fits(const struct lk_reconcile *r, uint64_t count)
{
    return count <= r->setup.memory / SHARE_TABLE / item_cost(r) &&
           count < UINT32_MAX;
}

static const struct lk_item *item_at(const struct lk_reconcile *r,
                                     const struct table *table, size_t i)
{
    return (const struct lk_item *)(const void *)(table->items + i * r->stride);
}

static void free_table(struct table *table)
{
    free(table->items);
    free(table->fates);
    free(table->slots);
}

/* The slot of that hash, or where it would be. */
static size_t slot_of(const struct lk_reconcile *r, const struct table *table,
                      int round, struct lk_hash128 hash)
{
    size_t slot = hash.hi & table->mask;

    while (
        table->slots[slot] != 0 &&
        !lk_hash128_equal(
            hash_of(item_at(r, table, table->slots[slot] - 1), round), hash)) {
        slot = (slot + 1) & table->mask;
    }
    return slot;
}

static void put_item(const struct lk_reconcile *r, struct table *table,
                     int round, const void *item)
{
    size_t slot = slot_of(r, table, round, hash_of(item, round));
    uint32_t number = (uint32_t)table->count + 1;
    struct fate *first;

    memcpy(table->items + table->count * r->stride, item, r->stride);
    table->count++;
    if (table->slots[slot] == 0) {
        table->slots[slot] = number;
        table->fates[number - 1].turn = number;
    } else {
        first = &table->fates[table->slots[slot] - 1];
        table->fates[first->last - 1].next = number;
    }
    table->fates[table->slots[slot] - 1].last = number;
}

static enum lk_status load_table(const struct lk_reconcile *r,
                                 const struct lk_spill *spill, unsigned part,
                                 int round, struct table *table)
{
    uint64_t count = spill->counts[part];
    struct lk_spill_reader reader;
    const void *item;

    for (table->mask = 15; table->mask < count * 2;
         table->mask += table->mask + 1) {
    }
    table->items = malloc(count * r->stride + 1);
    table->fates = calloc(count + 1, sizeof(*table->fates));
    table->slots = calloc(table->mask + 1, sizeof(*table->slots));
    if (table->items == NULL || table->fates == NULL || table->slots == NULL) {
        return LK_NOMEM;
    }
    lk_spill_read(&reader, spill, part);
    while ((item = lk_spill_next(&reader)) != NULL) {
        put_item(r, table, round, item);
    }
    return lk_spill_read_end(&reader);
}

/*
 * The job that this line meets: the first of its hash that has met nobody, and
 * meets this one now, or else the first. SIZE_MAX: there is none.
 */
static size_t look_up(const struct lk_reconcile *r, struct table *table,
                      int round, const struct lk_item *line)
{
    uint32_t first =
        table->slots[slot_of(r, table, round, hash_of(line, round))];
    uint32_t found;

    if (first == 0) {
        return SIZE_MAX;
    }
    found = table->fates[first - 1].turn;
    if (found == 0) {
        return first - 1;
    }
    table->fates[first - 1].turn = table->fates[found - 1].next;
    return found - 1;
}

/* ---- Keys that need not be unique -----------------------------------------
 */

/* The first of the jobs that have the item's hash; NULL: there is none. */
static struct fate *first_fate(const struct lk_reconcile *r,
                               struct table *table, int round,
                               const struct lk_item *item)
{
    uint32_t first =
        table->slots[slot_of(r, table, round, hash_of(item, round))];

    return first == 0 ? NULL : &table->fates[first - 1];
}

/* A line of an object that was counted already is the same line again. */
static enum lk_status count_line(struct lk_reconcile *r, struct table *table,
                                 int round, const struct lk_item *line)
{
    struct fate *first = first_fate(r, table, round, line);
    bool has_id = (line->flags & LK_ITEM_ID) != 0;

    if (first != NULL && !(first->lines > 0 && has_id &&
                           lk_hash128_equal(first->id, line->id))) {
        first->lines++;
        first->id = has_id ? line->id : (struct lk_hash128){0};
    }
    return LK_OK;
}

/* Once the lines are counted: is it not said which job is which line? */
static bool is_shared(const struct lk_reconcile *r, struct table *table,
                      int round, const struct lk_item *item)
{
    const struct fate *first = r->setup.shared_keys && round == ROUND_KEY
                                   ? first_fate(r, table, round, item)
                                   : NULL;

    return first != NULL &&
           (first->lines > 1 || (first->lines == 1 && first->next != 0));
}

static enum lk_status pass_shared(struct lk_reconcile *r, enum lk_side side,
                                  int round, const struct lk_item *item)
{
    struct lk_item marked;

    memcpy(&marked, item, r->stride);
    marked.flags |= LK_ITEM_SHARED;
    return pass_on(r, side, round, &marked);
}

static enum lk_status meet(struct lk_reconcile *r, struct table *table,
                           int round, const struct lk_item *line)
{
    struct lk_finding finding = {.there = line, .by_key = round == ROUND_KEY};
    bool has_id = (line->flags & LK_ITEM_ID) != 0;
    size_t i;

    if (is_shared(r, table, round, line)) {
        return pass_shared(r, LK_THERE, round, line);
    }
    i = look_up(r, table, round, line);
    if (i == SIZE_MAX) {
        return pass_on(r, LK_THERE, round, line);
    }
    finding.here = item_at(r, table, i);
    if (table->fates[i].met) {
        /* The same object told twice is harmless; two objects of one key are
         * not, and without ids nobody can tell the two cases apart. */
        bool same = has_id && lk_hash128_equal(table->fates[i].id, line->id);

        finding.meeting = same ? LK_REPEATED : LK_ONLY_THERE;
        return tell(r, finding);
    }
    table->fates[i].met = true;
    if (has_id) {
        table->fates[i].id = line->id;
    }
    finding.differs = find_differences(r, finding.here, line);
    return tell(r, finding);
}

/* ---- One partition --------------------------------------------------------
 */

static void show_progress(struct lk_reconcile *r, uint64_t more)
{
    r->done += more;
    if (r->setup.progress != NULL) {
        r->setup.progress(r->setup.context, r->done, r->total);
    }
}

static enum lk_status join_lines(struct lk_reconcile *r,
                                 const struct lk_spill *spill, unsigned part,
                                 int round, struct table *table,
                                 enum lk_status (*join)(struct lk_reconcile *,
                                                        struct table *, int,
                                                        const struct lk_item *))
{
    struct lk_spill_reader reader;
    const void *item;

    lk_spill_read(&reader, spill, part);
    while ((item = lk_spill_next(&reader)) != NULL) {
        reader.status = join(r, table, round, item);
        if ((reader.left & 0xfff) == 0) {
            show_progress(r, 0);
        }
    }
    return lk_spill_read_end(&reader);
}

/* No line can meet these. */
static enum lk_status pass_all(struct lk_reconcile *r,
                               const struct lk_spill *spill, unsigned part,
                               enum lk_side side, int round)
{
    struct lk_spill_reader reader;
    const void *item;

    lk_spill_read(&reader, spill, part);
    while ((item = lk_spill_next(&reader)) != NULL) {
        reader.status = pass_on(r, side, round, item);
    }
    return lk_spill_read_end(&reader);
}

static enum lk_status join_in_memory(struct lk_reconcile *r,
                                     const struct lk_spill spills[2],
                                     unsigned part, int round)
{
    struct table table = {0};
    enum lk_status status =
        load_table(r, &spills[LK_HERE], part, round, &table);

    if (status == LK_OK && r->setup.shared_keys && round == ROUND_KEY) {
        status =
            join_lines(r, &spills[LK_THERE], part, round, &table, count_line);
    }
    if (status == LK_OK) {
        status = join_lines(r, &spills[LK_THERE], part, round, &table, meet);
    }
    for (size_t i = 0; i < table.count && status == LK_OK; i++) {
        const struct lk_item *job = item_at(r, &table, i);

        if (!table.fates[i].met) {
            status = is_shared(r, &table, round, job)
                         ? pass_shared(r, LK_HERE, round, job)
                         : pass_on(r, LK_HERE, round, job);
        }
    }
    free_table(&table);
    return status;
}

static enum lk_status join_parts(struct lk_reconcile *r,
                                 struct lk_spill spills[2], int round,
                                 unsigned depth);

static enum lk_status split_side(const struct lk_spill *from, unsigned part,
                                 struct lk_spill *to, int round, unsigned depth)
{
    struct lk_spill_reader reader;
    const void *item;

    lk_spill_read(&reader, from, part);
    while ((item = lk_spill_next(&reader)) != NULL) {
        reader.status = lk_spill_add(to, part_of(item, round, depth), item);
    }
    return lk_spill_read_end(&reader);
}

static enum lk_status split(struct lk_reconcile *r,
                            const struct lk_spill spills[2], unsigned part,
                            int round, unsigned depth)
{
    struct lk_spill finer[2] = {{0}, {0}};
    enum lk_status status = open_spills(r, finer, depth);

    for (int side = 0; side < 2 && status == LK_OK; side++) {
        status = split_side(&spills[side], part, &finer[side], round, depth);
    }
    if (status == LK_OK) {
        status = join_parts(r, finer, round, depth);
    }
    lk_spill_close(&finer[LK_HERE]);
    lk_spill_close(&finer[LK_THERE]);
    return status;
}

static enum lk_status join_part(struct lk_reconcile *r,
                                struct lk_spill spills[2], unsigned part,
                                int round, unsigned depth)
{
    uint64_t here = spills[LK_HERE].counts[part];
    uint64_t there = spills[LK_THERE].counts[part];

    if (here == 0 || there == 0) {
        enum lk_side side = here == 0 ? LK_THERE : LK_HERE;

        return pass_all(r, &spills[side], part, side, round);
    }
    if (fits(r, here)) {
        return join_in_memory(r, spills, part, round);
    }
    return depth + 1 < DEPTH_MAX ? split(r, spills, part, round, depth + 1)
                                 : LK_TOO_LARGE;
}

static enum lk_status join_parts(struct lk_reconcile *r,
                                 struct lk_spill spills[2], int round,
                                 unsigned depth)
{
    enum lk_status status = lk_spill_seal(&spills[LK_HERE]);

    if (status == LK_OK) {
        status = lk_spill_seal(&spills[LK_THERE]);
    }
    for (unsigned part = 0; part < PARTS && status == LK_OK; part++) {
        status = join_part(r, spills, part, round, depth);
        if (depth == 0) {
            show_progress(r, spills[LK_HERE].counts[part] +
                                 spills[LK_THERE].counts[part]);
        }
    }
    return status;
}

enum lk_status lk_reconcile_run(struct lk_reconcile *r)
{
    enum lk_status status = LK_OK;

    for (int round = 0; round < ROUNDS && status == LK_OK; round++) {
        status = join_parts(r, r->spills[round], round, 0);
        lk_spill_close(&r->spills[round][LK_HERE]);
        lk_spill_close(&r->spills[round][LK_THERE]);
    }
    return status;
}
