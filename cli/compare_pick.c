/* compare_pick.c - takes some values out of a JSON text, in one pass. */
#include "cli/compare.h"

#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

/* ---- What is looked for ---------------------------------------------------
 */

static enum lk_status end_token(struct lk_picks *picks, size_t start)
{
    struct lk_slice *grown =
        realloc(picks->tokens, (picks->token_count + 1) * sizeof(*grown));

    if (grown == NULL) {
        return LK_NOMEM;
    }
    picks->tokens = grown;
    /* Where it starts; `names` may still move. */
    grown[picks->token_count++] =
        (struct lk_slice){NULL, picks->names.len - start};
    return LK_OK;
}

static enum lk_status add_pointer(struct lk_picks *picks, struct lk_slice name)
{
    size_t start = picks->names.len;
    enum lk_status status = LK_OK;

    for (size_t i = 1; i < name.len && status == LK_OK; i++) {
        char c = name.data[i];

        if (c == '/') {
            status = end_token(picks, start);
            start = picks->names.len;
            continue;
        }
        if (c == '~') {
            i++;
            if (i == name.len || (name.data[i] != '0' && name.data[i] != '1')) {
                return LK_INVALID;
            }
            c = name.data[i] == '0' ? '~' : '/';
        }
        status = latchkey_buf_add(&picks->names, &c, 1);
    }
    return status == LK_OK ? end_token(picks, start) : status;
}

enum lk_status lk_picks_add(struct lk_picks *picks, struct lk_slice name)
{
    struct lk_pick *pick = &picks->picks[picks->count];
    size_t start = picks->names.len;
    enum lk_status status;

    if (picks->count == LK_PICKS_MAX || name.len == 0) {
        return LK_INVALID;
    }
    *pick = (struct lk_pick){.first_token = picks->token_count};
    if (name.data[0] == '/') {
        status = add_pointer(picks, name);
    } else {
        status = latchkey_buf_add_slice(&picks->names, name);
        if (status == LK_OK) {
            status = end_token(picks, start);
        }
    }
    if (status != LK_OK) {
        return status;
    }
    pick->token_count = picks->token_count - pick->first_token;
    picks->count++;
    start = 0;
    for (size_t i = 0; i < picks->token_count; i++) {
        picks->tokens[i].data =
            picks->names.data == NULL ? "" : picks->names.data + start;
        start += picks->tokens[i].len;
    }
    return LK_OK;
}

void lk_picks_free(struct lk_picks *picks)
{
    free(picks->tokens);
    latchkey_buf_free(&picks->names);
    latchkey_buf_free(&picks->text);
    *picks = (struct lk_picks){0};
}

/* ---- Reading --------------------------------------------------------------
 */

enum { DEPTH_MAX = 128 };

/* `active`: picks that have led here, a bit each. */
struct reader {
    struct lk_picks *picks;
    struct lk_slice in;
    size_t at;
    struct lk_buf name;
};

static enum lk_status read_value(struct reader *r, uint32_t active,
                                 size_t depth);

static char peek(struct reader *r)
{
    while (r->at < r->in.len) {
        char c = r->in.data[r->at];

        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return c;
        }
        r->at++;
    }
    return '\0';
}

/* The picks that lead on into this member; *hit: those that end there. */
static uint32_t step(const struct reader *r, uint32_t active, size_t depth,
                     struct lk_slice name, uint32_t *hit)
{
    uint32_t onward = 0;

    *hit = 0;
    for (size_t i = 0; active != 0; i++, active >>= 1) {
        const struct lk_pick *pick = &r->picks->picks[i];

        if ((active & 1) == 0 ||
            !latchkey_slice_equal(
                name, r->picks->tokens[pick->first_token + depth])) {
            continue;
        }
        if (pick->token_count == depth + 1) {
            *hit |= UINT32_C(1) << i;
        } else {
            onward |= UINT32_C(1) << i;
        }
    }
    return onward;
}

/* Reads a value that picks end at: it stays where it is, a string unescaped. */
static enum lk_status read_hit(struct reader *r, uint32_t active, uint32_t hit,
                               size_t depth)
{
    struct lk_pick found = {.found = true, .start = r->picks->text.len};
    char first = peek(r);
    size_t start = r->at;
    enum lk_status status;

    if (first == '"') {
        status = lk_json_read_string(r->in, &r->at, &r->picks->text);
        found.text_own = true;
        found.value.len = r->picks->text.len - found.start;
    } else {
        status = read_value(r, active, depth);
        if (first != 'n') {
            found.value = (struct lk_slice){r->in.data + start, r->at - start};
        }
    }
    for (size_t i = 0; status == LK_OK && i < r->picks->count; i++) {
        struct lk_pick *pick = &r->picks->picks[i];

        if ((hit >> i & 1) == 0) {
            continue;
        }
        if (pick->found) {
            return LK_MALFORMED;
        }
        found.first_token = pick->first_token;
        found.token_count = pick->token_count;
        *pick = found;
    }
    return status;
}

static enum lk_status read_entry(struct reader *r, uint32_t active,
                                 size_t depth, struct lk_slice name)
{
    uint32_t hit = 0;
    uint32_t onward = active == 0 ? 0 : step(r, active, depth, name, &hit);

    return hit != 0 ? read_hit(r, onward, hit, depth + 1)
                    : read_value(r, onward, depth + 1);
}

static enum lk_status read_member(struct reader *r, uint32_t active,
                                  size_t depth)
{
    enum lk_status status;

    if (peek(r) != '"') {
        return LK_MALFORMED;
    }
    r->name.len = 0;
    status = lk_json_read_string(r->in, &r->at, &r->name);
    if (status == LK_OK && peek(r) != ':') {
        status = LK_MALFORMED;
    }
    if (status != LK_OK) {
        return status;
    }
    r->at++;
    return read_entry(r, active, depth, latchkey_buf_slice(&r->name));
}

static enum lk_status read_element(struct reader *r, uint32_t active,
                                   size_t depth, size_t index)
{
    char digits[24];
    size_t at = sizeof(digits);

    if (active == 0) {
        return read_value(r, 0, depth + 1);
    }
    do {
        digits[--at] = (char)('0' + index % 10);
        index /= 10;
    } while (index > 0);
    return read_entry(r, active, depth,
                      (struct lk_slice){digits + at, sizeof(digits) - at});
}

static enum lk_status read_entries(struct reader *r, uint32_t active,
                                   size_t depth, char closing)
{
    enum lk_status status = LK_OK;

    r->at++;
    if (peek(r) == closing) {
        r->at++;
        return LK_OK;
    }
    for (size_t i = 0; status == LK_OK; i++) {
        status = closing == '}' ? read_member(r, active, depth)
                                : read_element(r, active, depth, i);
        if (status != LK_OK) {
            break;
        }
        char c = peek(r);
        if (c != ',' && c != closing) {
            return LK_MALFORMED;
        }
        r->at++;
        if (c == closing) {
            break;
        }
    }
    return status;
}

/* A scalar that nobody asked for. */
static enum lk_status skip_scalar(struct reader *r, char first)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t mark = r->picks->text.len;
    enum lk_status status;

    for (size_t i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);

        if (r->in.len - r->at >= length &&
            memcmp(r->in.data + r->at, words[i], length) == 0) {
            r->at += length;
            return LK_OK;
        }
    }
    status = first == '"' ? lk_json_read_string(r->in, &r->at, &r->picks->text)
                          : lk_json_read_number(r->in, &r->at, &r->picks->text);
    r->picks->text.len = mark;
    return status;
}

static enum lk_status read_value(struct reader *r, uint32_t active,
                                 size_t depth)
{
    char c = peek(r);

    if (depth > DEPTH_MAX) {
        return LK_MALFORMED;
    }
    if (c == '{' || c == '[') {
        return read_entries(r, active, depth, c == '{' ? '}' : ']');
    }
    return skip_scalar(r, c);
}

enum lk_status lk_picks_read(struct lk_picks *picks, struct lk_slice json)
{
    struct reader r = {.picks = picks, .in = json};
    uint32_t all =
        picks->count == 32 ? UINT32_MAX : (UINT32_C(1) << picks->count) - 1;
    enum lk_status status;

    picks->text.len = 0;
    for (size_t i = 0; i < picks->count; i++) {
        picks->picks[i].found = picks->picks[i].text_own = false;
        picks->picks[i].value = (struct lk_slice){0};
    }
    status = read_value(&r, all, 0);
    if (status == LK_OK && (peek(&r) != '\0' || r.at < json.len)) {
        status = LK_MALFORMED;
    }
    for (size_t i = 0; i < picks->count; i++) {
        struct lk_pick *pick = &picks->picks[i];

        if (pick->text_own && pick->value.len > 0) {
            pick->value.data = picks->text.data + pick->start;
        }
    }
    latchkey_buf_free(&r.name);
    return status;
}
