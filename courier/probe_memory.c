/*
 * probe_memory.c - notes on uncertain records in bounded memory: sets of a few
 * notes each, found by hash.
 */
#include "courier/probe_rules.h"

#include <stdlib.h>

enum { WAYS = 8 };

enum lk_status lk_probe_memory_init(struct lk_probe_memory *memory,
                                    size_t notes)
{
    memory->sets = notes < WAYS ? 1 : notes / WAYS;
    memory->notes = calloc(memory->sets * WAYS, sizeof(*memory->notes));
    return memory->notes ? LK_OK : LK_NOMEM;
}

void lk_probe_memory_free(struct lk_probe_memory *memory)
{
    free(memory->notes);
    *memory = (struct lk_probe_memory){0};
}

/* Numbers rise by one: a multiplication spreads them well enough. */
static size_t set_of(const struct lk_probe_memory *memory, bool operation,
                     uint64_t id)
{
    uint64_t mixed = (2 * id + operation) * UINT64_C(0x9e3779b97f4a7c15);

    return (size_t)(mixed >> 32) % memory->sets;
}

struct lk_probe_note *lk_probe_memory_note(struct lk_probe_memory *memory,
                                           bool operation, uint64_t id,
                                           uint64_t fence)
{
    struct lk_probe_note *set =
        &memory->notes[set_of(memory, operation, id) * WAYS];
    struct lk_probe_note *victim = &set[0];

    for (size_t i = 0; i < WAYS; i++) {
        struct lk_probe_note *note = &set[i];
        if (note->used && note->operation == operation && note->id == id) {
            if (note->fence == fence) {
                return note;
            }
            victim = note; /* an earlier attempt of the same record */
            break;
        }
        /* What was long due has been resolved: nobody asks about it. */
        if (victim->used && (!note->used || note->due_ns < victim->due_ns)) {
            victim = note;
        }
    }
    *victim = (struct lk_probe_note){
        .id = id, .fence = fence, .operation = operation, .used = true};
    return victim;
}
