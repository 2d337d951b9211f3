/*
 * json_pointer.c - values by JSON Pointer (RFC 6901): one in a text, sets of
 * pointers matched while a text is read, and several values in one pass.
 */
#include "lib/json.h"

#include <stdio.h>
#include <string.h>

/* ---- One value ----------------------------------------------------------- */

/* From behind the opening brace to the value of the member `name`. */
static enum lk_status enter_member(struct lk_json_cursor *cursor,
                                   struct lk_slice name)
{
    if (lk_json_peek(cursor) == '}') {
        return LK_NOT_FOUND;
    }
    do {
        enum lk_status status = lk_json_read_name(cursor);
        if (status ||
            latchkey_slice_equal(latchkey_buf_slice(&cursor->name), name)) {
            return status;
        }
        status = lk_json_skip(cursor, 0);
        if (status) {
            return status;
        }
    } while (lk_json_take(cursor, ','));
    return lk_json_peek(cursor) == '}' ? LK_NOT_FOUND : LK_MALFORMED;
}

/* The digits of an index, without a leading zero. */
static bool read_index(struct lk_slice token, uint64_t *index)
{
    *index = 0;
    for (size_t i = 0; i < token.len; i++) {
        if (token.data[i] < '0' || token.data[i] > '9') {
            return false;
        }
        *index = 10 * *index + (uint64_t)(token.data[i] - '0');
    }
    return token.len && token.len < 19 &&
           (token.len == 1 || token.data[0] != '0');
}

/* From behind the opening bracket to the element of that index. A token that is
 * not an index finds nothing, "-" included. */
static enum lk_status enter_element(struct lk_json_cursor *cursor,
                                    struct lk_slice token)
{
    uint64_t index;

    if (!read_index(token, &index) || lk_json_peek(cursor) == ']') {
        return LK_NOT_FOUND;
    }
    for (; index; index--) {
        enum lk_status status = lk_json_skip(cursor, 0);
        if (status) {
            return status;
        }
        if (!lk_json_take(cursor, ',')) {
            return lk_json_peek(cursor) == ']' ? LK_NOT_FOUND : LK_MALFORMED;
        }
    }
    return LK_OK;
}

/* The token from *at on, behind its slash; *at is then at the next one. */
static enum lk_status read_token(struct lk_slice pointer, size_t *at,
                                 struct lk_buf *token)
{
    enum lk_status status = LK_OK;

    token->len = 0;
    while (*at < pointer.len && pointer.data[*at] != '/' && !status) {
        char c = pointer.data[(*at)++];
        if (c == '~') {
            char digit = *at < pointer.len ? pointer.data[(*at)++] : 0;
            if (digit != '0' && digit != '1') {
                return LK_MALFORMED;
            }
            c = digit == '0' ? '~' : '/';
        }
        status = latchkey_buf_add(token, &c, 1);
    }
    return status;
}

/* From in front of a value into its entry named by `token`. LK_NOT_FOUND: there
 * is no such entry, or the value is a scalar. */
static enum lk_status enter_value(struct lk_json_cursor *cursor,
                                  struct lk_slice token)
{
    if (lk_json_take(cursor, '{')) {
        return enter_member(cursor, token);
    }
    if (lk_json_take(cursor, '[')) {
        return enter_element(cursor, token);
    }
    enum lk_status status = lk_json_skip(cursor, 0);
    return status ? status : LK_NOT_FOUND;
}

/* A value in an object or array must be followed by something: a number at
 * the end of the text may have been cut, and would be another one. */
static bool is_inside(struct lk_json_cursor *cursor)
{
    return lk_json_peek(cursor) == ',' || lk_json_peek(cursor) == '}' ||
           lk_json_peek(cursor) == ']';
}

/*
 * Walks from token to token; only what is on the way is read and checked.
 * LK_OK: *value is a slice of `text`. LK_NOT_FOUND: there is no such value.
 * LK_MALFORMED: the pointer or the text on the way is wrong. Of members with
 * the same name the first one is found.
 */
enum lk_status lk_json_find(struct lk_slice text, struct lk_slice pointer,
                            struct lk_slice *value)
{
    struct lk_json_cursor cursor = {.text = text};
    struct lk_buf token = {0};
    enum lk_status status = LK_OK;

    for (size_t at = 0; at < pointer.len && !status;) {
        status = pointer.data[at] == '/' ? LK_OK : LK_MALFORMED;
        at++;
        if (!status) {
            status = read_token(pointer, &at, &token);
        }
        if (!status) {
            status = enter_value(&cursor, latchkey_buf_slice(&token));
        }
    }
    if (!status) {
        (void)lk_json_peek(&cursor);
        size_t start = cursor.at;
        status = lk_json_skip(&cursor, 0);
        *value = (struct lk_slice){text.data + start, cursor.at - start};
    }
    if (!status && pointer.len && !is_inside(&cursor)) {
        status = LK_MALFORMED;
    }
    lk_json_cursor_free(&cursor);
    latchkey_buf_free(&token);
    return status;
}

/* Appends a string without quotes and escapes, any other value as it is. */
enum lk_status lk_json_plain(struct lk_slice value, struct lk_buf *out)
{
    size_t at = 0;

    if (value.len && value.data[0] == '"') {
        return lk_json_read_string(value, &at, out);
    }
    return latchkey_buf_add_slice(out, value);
}

/* ---- Sets of pointers ---------------------------------------------------- */

/* Ends the present token: its text is complete. */
static enum lk_status end_token(struct lk_pointers *set)
{
    return latchkey_buf_add(&set->tokens, &set->text.len, sizeof set->text.len);
}

/*
 * pointer = *( "/" *( any / "~0" / "~1" ) ). Its tokens are appended to the
 * set: texts side by side in set->text, the end of each in set->tokens.
 * LK_INVALID: not a pointer; the caller then removes what was appended.
 */
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

/* The tokens that were read become a pointer of the set, or vanish. */
static enum lk_status end_pointer(struct lk_pointers *set,
                                  enum lk_status status)
{
    size_t tokens = set->first[set->count];
    const size_t *ends = (const size_t *)(const void *)set->tokens.data;

    if (status) {
        set->tokens.len = tokens * sizeof(size_t);
        set->text.len = tokens ? ends[tokens - 1] : 0;
        return status;
    }
    set->count++;
    set->first[set->count] = set->tokens.len / sizeof(size_t);
    return LK_OK;
}

enum lk_status lk_pointers_add(struct lk_pointers *pointers,
                               struct lk_slice pointer)
{
    if (pointers->count == LK_POINTER_COUNT_MAX) {
        return LK_INVALID;
    }
    return end_pointer(pointers, parse_pointer(pointer, pointers));
}

/* A pointer with one token, which is the name as it is: no escapes. */
enum lk_status lk_pointers_add_name(struct lk_pointers *pointers,
                                    struct lk_slice name)
{
    if (pointers->count == LK_POINTER_COUNT_MAX) {
        return LK_INVALID;
    }
    enum lk_status status = latchkey_buf_add_slice(&pointers->text, name);
    return end_pointer(pointers, status ? status : end_token(pointers));
}

enum lk_status lk_pointers_parse(const struct lk_slice *list, size_t count,
                                 struct lk_pointers *pointers)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count && !status; i++) {
        status = lk_pointers_add(pointers, list[i]);
    }
    return status;
}

void lk_pointers_free(struct lk_pointers *pointers)
{
    latchkey_buf_free(&pointers->tokens);
    latchkey_buf_free(&pointers->text);
    *pointers = (struct lk_pointers){0};
}

/* set->first[i] is the index of the first token of pointer i. */
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

/* The pointers that lead into the whole document, a bit each; *hit: those that
 * are the document, the empty pointers. */
uint64_t lk_pointers_start(const struct lk_pointers *pointers, uint64_t *hit)
{
    uint64_t active = 0;

    *hit = 0;
    for (size_t i = 0; i < pointers->count; i++) {
        if (token_count(pointers, i)) {
            active |= UINT64_C(1) << i;
        } else {
            *hit |= UINT64_C(1) << i;
        }
    }
    return active;
}

/* Of the pointers `active` at a value `depth` tokens deep, returns those that
 * lead on through its entry `name`; *hit: those that end there. */
uint64_t lk_pointers_step(const struct lk_pointers *pointers, uint64_t active,
                          size_t depth, struct lk_slice name, uint64_t *hit)
{
    uint64_t onward = 0;

    *hit = 0;
    for (size_t i = 0; active; i++, active >>= 1) {
        if (!(active & 1) ||
            !latchkey_slice_equal(
                name, token_text(pointers, pointers->first[i] + depth))) {
            continue;
        }
        if (token_count(pointers, i) == depth + 1) {
            *hit |= UINT64_C(1) << i;
        } else {
            onward |= UINT64_C(1) << i;
        }
    }
    return onward;
}

/* ---- Several values in one pass ------------------------------------------ */

enum lk_status lk_picks_add(struct lk_picks *picks, struct lk_slice name)
{
    enum lk_status status;

    if (picks->count == LK_PICKS_MAX || name.len == 0) {
        return LK_INVALID;
    }
    /* A name that begins with a slash is a pointer, any other a member. */
    status = name.data[0] == '/' ? lk_pointers_add(&picks->pointers, name)
                                 : lk_pointers_add_name(&picks->pointers, name);
    picks->count += status == LK_OK;
    return status;
}

void lk_picks_free(struct lk_picks *picks)
{
    lk_pointers_free(&picks->pointers);
    latchkey_buf_free(&picks->text);
    *picks = (struct lk_picks){0};
}

struct picking {
    struct lk_picks *picks;
    struct lk_json_cursor cursor;
};

/* `active`: the pointers that have led to this value, a bit each. */
static enum lk_status pick_value(struct picking *in, uint64_t active,
                                 size_t depth);

/* Reads a value that pointers end at: a string is unescaped, all else stays
 * where it is. */
static enum lk_status pick_hit(struct picking *in, uint64_t active,
                               uint64_t hit, size_t depth)
{
    struct lk_buf *text = &in->picks->text;
    struct lk_pick found = {.found = true, .start = text->len};
    struct lk_json_cursor *cursor = &in->cursor;
    char first = lk_json_peek(cursor);
    size_t start = cursor->at;
    enum lk_status status;

    if (first == '"') {
        status = lk_json_read_string(cursor->text, &cursor->at, text);
        found.unescaped = true;
        found.value.len = text->len - found.start;
    } else {
        status = pick_value(in, active, depth);
        if (first != 'n') {
            found.value = (struct lk_slice){cursor->text.data + start,
                                            cursor->at - start};
        }
    }
    for (size_t i = 0; !status && i < in->picks->count; i++) {
        struct lk_pick *pick = &in->picks->picks[i];

        if ((hit >> i & 1) == 0) {
            continue;
        }
        if (pick->found) {
            return LK_MALFORMED;
        }
        *pick = found;
    }
    return status;
}

/* The cursor is in front of the entry's value. */
static enum lk_status pick_entry(struct picking *in, uint64_t active,
                                 size_t depth, struct lk_slice name)
{
    uint64_t hit;
    uint64_t onward =
        lk_pointers_step(&in->picks->pointers, active, depth, name, &hit);

    return hit ? pick_hit(in, onward, hit, depth + 1)
               : pick_value(in, onward, depth + 1);
}

/* The entries of an array or object, from behind its bracket. */
static enum lk_status pick_entries(struct picking *in, uint64_t active,
                                   size_t depth, bool object)
{
    struct lk_json_cursor *cursor = &in->cursor;
    char close = object ? '}' : ']';
    size_t index = 0;
    char digits[24];

    if (lk_json_take(cursor, close)) {
        return LK_OK;
    }
    do {
        struct lk_slice name = {digits, 0};
        enum lk_status status = LK_OK;
        if (object) {
            status = lk_json_read_name(cursor);
            name = latchkey_buf_slice(&cursor->name);
        } else {
            name.len = (size_t)snprintf(digits, sizeof(digits), "%zu", index++);
        }
        if (!status) {
            status = pick_entry(in, active, depth, name);
        }
        if (status) {
            return status;
        }
    } while (lk_json_take(cursor, ','));
    return lk_json_take(cursor, close) ? LK_OK : LK_MALFORMED;
}

/* A value that no pointer leads into is skipped; its end is all that counts. */
static enum lk_status pick_value(struct picking *in, uint64_t active,
                                 size_t depth)
{
    bool object = lk_json_peek(&in->cursor) == '{';

    if (!active || (!object && lk_json_peek(&in->cursor) != '[')) {
        return lk_json_skip(&in->cursor, depth);
    }
    if (depth >= LK_JSON_SKIP_DEPTH_MAX) {
        return LK_MALFORMED;
    }
    in->cursor.at++;
    return pick_entries(in, active, depth, object);
}

/*
 * Reads all picks from one text. The whole text is read: what is skipped is
 * checked too, so that a text with a pick twice, or one that was cut, is
 * LK_MALFORMED. A value that is null or missing stays empty. Values are valid
 * until the next read: strings are in picks->text, the others in `json`.
 */
enum lk_status lk_picks_read(struct lk_picks *picks, struct lk_slice json)
{
    struct picking in = {.picks = picks, .cursor = {.text = json}};
    uint64_t hit;
    uint64_t active = lk_pointers_start(&picks->pointers, &hit);
    enum lk_status status;

    picks->text.len = 0;
    memset(picks->picks, 0, sizeof(picks->picks));
    status = pick_value(&in, active, 0);
    if (!status && (lk_json_peek(&in.cursor) || in.cursor.at < json.len)) {
        status = LK_MALFORMED;
    }
    /* Only now: the buffer may have moved while it grew. */
    for (size_t i = 0; i < picks->count; i++) {
        struct lk_pick *pick = &picks->picks[i];

        if (pick->unescaped && pick->value.len > 0) {
            pick->value.data = picks->text.data + pick->start;
        }
    }
    lk_json_cursor_free(&in.cursor);
    return status;
}
