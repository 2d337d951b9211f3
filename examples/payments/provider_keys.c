/* provider_keys.c - what has come under each Idempotency-Key. */
#include "provider.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Open addressing; the size is a power of two, at most half of it used. */
static struct {
    struct key **slots;
    size_t size;
    size_t used;
    uint64_t *next; /* of charge n at n - 1 */
    size_t next_cap;
} keys;

static uint64_t hash_of(struct text text)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    for (size_t i = 0; i < text.len; i++) {
        hash = (hash ^ (unsigned char)text.data[i]) * 1099511628211u;
    }
    return hash ^ (hash >> 29);
}

/* Where it is, or where it would be. */
static struct key **slot_of(struct text text, uint64_t hash)
{
    size_t at = hash & (keys.size - 1);

    while (keys.slots[at] && (keys.slots[at]->hash != hash ||
                              !text_is(text, keys.slots[at]->text))) {
        at = (at + 1) & (keys.size - 1);
    }
    return &keys.slots[at];
}

static void *must(void *memory)
{
    if (!memory) {
        die("out of memory");
    }
    return memory;
}

static void grow(void)
{
    struct key **old = keys.slots;
    size_t size = keys.size;

    keys.size = size ? size * 2 : 1024;
    keys.slots = must(calloc(keys.size, sizeof(*keys.slots)));
    for (size_t i = 0; i < size; i++) {
        if (old[i]) {
            *slot_of(text_of(old[i]->text), old[i]->hash) = old[i];
        }
    }
    free(old);
}

struct key *key_get(struct text text)
{
    uint64_t hash = hash_of(text);
    struct key **slot;

    if (keys.used * 2 >= keys.size) {
        grow();
    }
    slot = slot_of(text, hash);
    if (!*slot) {
        *slot = must(calloc(1, sizeof(**slot)));
        (*slot)->hash = hash;
        (*slot)->text = must(strndup(text.data, text.len));
        keys.used++;
    }
    return *slot;
}

const struct key *key_find(struct text text)
{
    return keys.size ? *slot_of(text, hash_of(text)) : NULL;
}

void key_charged(struct key *key, uint64_t number)
{
    if (number > keys.next_cap) {
        keys.next_cap = number * 2;
        keys.next =
            must(realloc(keys.next, keys.next_cap * sizeof(*keys.next)));
    }
    keys.next[number - 1] = 0;
    if (key->last) {
        keys.next[key->last - 1] = number;
    } else {
        key->first = number;
    }
    key->last = number;
    key->effects++;
}

uint64_t keys_next(uint64_t number)
{
    return keys.next[number - 1];
}

void keys_open(void)
{
    struct text line, text;
    bool is_string;

    for (uint64_t number = 1; ledger_find(number, &line); number++) {
        if (!json_member(line, "key", &is_string, &text)) {
            die("the ledger has a line without a key: line %" PRIu64, number);
        }
        key_charged(key_get(text), number);
    }
}

void keys_list(struct buf *out)
{
    const char *comma = "";

    buf_printf(out, "{");
    for (size_t i = 0; i < keys.size; i++) {
        const struct key *key = keys.slots[i];
        if (key) {
            buf_printf(
                out, "%s\"%s\":{\"calls\":%" PRIu64 ",\"effects\":%" PRIu64 "}",
                comma, key->text, key->calls, key->effects);
            comma = ",\n";
        }
    }
    buf_printf(out, "}");
}
