/*
 * fuzz_pointer.c - any pointer (the first line) in any text (the rest): what is
 * found is JSON and stands in the text, what follows it changes nothing, and
 * both readers of JSON find the same.
 */
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool condition)
{
    if (!condition) {
        abort();
    }
}

static bool is_pointer(struct lk_slice pointer)
{
    for (size_t i = 0; i < pointer.len; i++) {
        char next = i + 1 < pointer.len ? pointer.data[i + 1] : 0;
        if (pointer.data[i] == '~' && next != '0' && next != '1') {
            return false;
        }
    }
    return !pointer.len || pointer.data[0] == '/';
}

static void check_found(struct lk_slice text, struct lk_slice pointer,
                        struct lk_slice value)
{
    struct lk_slice again;
    struct lk_buf plain = {0};
    const char *end = text.data + text.len;

    demand(value.len && value.data >= text.data &&
           value.data + value.len <= end);
    demand(!lk_json_find(value, (struct lk_slice){0}, &again));
    demand(again.data == value.data && again.len == value.len);
    demand(!lk_json_plain(value, &plain));
    latchkey_buf_free(&plain);
    if (pointer.len) {
        /* Cut right behind what separates it from the rest. */
        const char *stop = value.data + value.len;
        while (!strchr(",}]", *stop)) {
            stop++;
        }
        struct lk_slice cut = {text.data, (size_t)(stop + 1 - text.data)};
        demand(!lk_json_find(cut, pointer, &again));
        demand(again.data == value.data && again.len == value.len);
        /* Cut right behind the value: it may be part of a longer one. */
        cut.len = (size_t)(value.data + value.len - text.data);
        demand(lk_json_find(cut, pointer, &again) == LK_MALFORMED);
    }
}

/* The other reader looks at the whole text. */
static void compare(struct lk_slice text, struct lk_slice pointer,
                    enum lk_status status, struct lk_slice value)
{
    struct lk_picks picks = {0};
    struct lk_buf plain = {0};

    if (!lk_picks_add(&picks, pointer) && !lk_picks_read(&picks, text)) {
        const struct lk_pick *pick = &picks.picks[0];
        demand(status == (pick->found ? LK_OK : LK_NOT_FOUND));
        if (pick->found) {
            bool null = latchkey_slice_equal(value, LK_SLICE("null"));
            demand(null || !lk_json_plain(value, &plain));
            demand(
                latchkey_slice_equal(latchkey_buf_slice(&plain), pick->value));
        }
    }
    latchkey_buf_free(&plain);
    lk_picks_free(&picks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *newline = size ? memchr(data, '\n', size) : NULL;

    if (!newline) {
        return 0;
    }
    struct lk_slice pointer = {(const char *)data,
                               (size_t)(newline - (const char *)data)};
    /* A copy, so that a byte too far is noticed. */
    size_t length = size - pointer.len - 1;
    char *copy = malloc(length + !length);
    demand(copy);
    memcpy(copy, newline + 1, length);
    struct lk_slice text = {copy, length};
    struct lk_slice value = {0};
    enum lk_status status = lk_json_find(text, pointer, &value);

    demand(status == LK_OK || status == LK_NOT_FOUND || status == LK_MALFORMED);
    if (!status) {
        demand(is_pointer(pointer));
        check_found(text, pointer, value);
    }
    if (pointer.len && pointer.data[0] == '/') {
        compare(text, pointer, status, value);
    }
    free(copy);
    return 0;
}
