/* pointer.c - sets of JSON Pointers (RFC 6901), matched while reading. */
#include "lib/pointer.h"

#include "lib/json.h"

/* Ends the present token: its text is complete. */
static enum lk_status end_token(struct lk_pointers *set)
{
    return latchkey_buf_add(&set->tokens, &set->text.len, sizeof set->text.len);
}

static enum lk_status parse_pointer(struct lk_slice pointer,
                                    struct lk_pointers *set)
{
    enum lk_status status = LK_OK;

    if (pointer.len > LK_POINTER_LENGTH_MAX || !lk_utf8_valid(pointer) ||
        (pointer.len && pointer.data[0] != '/')) {
        return LK_INVALID;
    }
    for (size_t i = 1; i < pointer.len && !status; i++) {
        char c = pointer.data[i];
        if (c == '/') {
            status = end_token(set);
            continue;
        }
        if (c == '~') {
            i++;
            if (i == pointer.len ||
                (pointer.data[i] != '0' && pointer.data[i] != '1')) {
                return LK_INVALID;
            }
            c = pointer.data[i] == '0' ? '~' : '/';
        }
        status = latchkey_buf_add(&set->text, &c, 1);
    }
    if (!status && pointer.len) {
        status = end_token(set);
    }
    return status;
}

enum lk_status lk_pointers_parse(const struct lk_slice *list, size_t count,
                                 struct lk_pointers *pointers)
{
    if (count > LK_POINTER_COUNT_MAX) {
        return LK_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        enum lk_status status = parse_pointer(list[i], pointers);
        if (status) {
            return status;
        }
        pointers->count = i + 1;
        pointers->first[i + 1] = pointers->tokens.len / sizeof(size_t);
    }
    return LK_OK;
}

void lk_pointers_free(struct lk_pointers *pointers)
{
    latchkey_buf_free(&pointers->tokens);
    latchkey_buf_free(&pointers->text);
    *pointers = (struct lk_pointers){0};
}

static size_t token_count(const struct lk_pointers *set, size_t pointer)
{
    return set->first[pointer + 1] - set->first[pointer];
}

static struct lk_slice token_text(const struct lk_pointers *set, size_t token)
{
    const size_t *ends = (const size_t *)(const void *)set->tokens.data;
    size_t start = token ? ends[token - 1] : 0;

    if (ends[token] == start) {
        return (struct lk_slice){0};
    }
    return (struct lk_slice){set->text.data + start, ends[token] - start};
}

uint64_t lk_pointers_start(const struct lk_pointers *pointers, bool *hit)
{
    uint64_t active = 0;

    *hit = false;
    for (size_t i = 0; i < pointers->count; i++) {
        if (token_count(pointers, i)) {
            active |= UINT64_C(1) << i;
        } else {
            *hit = true;
        }
    }
    return active;
}

uint64_t lk_pointers_step(const struct lk_pointers *pointers, uint64_t active,
                          size_t depth, struct lk_slice name, bool *hit)
{
    uint64_t onward = 0;

    *hit = false;
    for (size_t i = 0; active; i++, active >>= 1) {
        if (!(active & 1) ||
            !latchkey_slice_equal(
                name, token_text(pointers, pointers->first[i] + depth))) {
            continue;
        }
        if (token_count(pointers, i) == depth + 1) {
            *hit = true;
        } else {
            onward |= UINT64_C(1) << i;
        }
    }
    return onward;
}
