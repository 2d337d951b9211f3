/* pointer.c - finds the value that a JSON Pointer leads to. */
#include "courier/pointer.h"

#include "lib/json.h"

#include <string.h>

enum { DEPTH_MAX = 128 };

/* A text, how far it was read, and a place for names. */
struct reader {
    struct lk_slice text;
    size_t at;
    struct lk_buf name;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool next_is(struct reader *reader, char c)
{
    while (reader->at < reader->text.len &&
           is_space(reader->text.data[reader->at])) {
        reader->at++;
    }
    return reader->at < reader->text.len && reader->text.data[reader->at] == c;
}

static bool take(struct reader *reader, char c)
{
    bool found = next_is(reader, c);

    reader->at += found;
    return found;
}

static enum lk_status read_name(struct reader *reader)
{
    reader->name.len = 0;
    if (!next_is(reader, '"')) {
        return LK_MALFORMED;
    }
    enum lk_status status =
        lk_json_read_string(reader->text, &reader->at, &reader->name);
    return status || take(reader, ':') ? status : LK_MALFORMED;
}

static enum lk_status skip_scalar(struct reader *reader)
{
    static const char *const words[] = {"true", "false", "null"};
    struct lk_slice text = reader->text;

    if (next_is(reader, '"')) {
        reader->name.len = 0;
        return lk_json_read_string(text, &reader->at, &reader->name);
    }
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        size_t len = strlen(words[i]);
        if (text.len - reader->at >= len &&
            !memcmp(text.data + reader->at, words[i], len)) {
            reader->at += len;
            return LK_OK;
        }
    }
    if (reader->at == text.len ||
        !strchr("-0123456789", text.data[reader->at]) ||
        !text.data[reader->at]) {
        return LK_MALFORMED;
    }
    reader->name.len = 0;
    return lk_json_read_number(text, &reader->at, &reader->name);
}

static enum lk_status skip_value(struct reader *reader, unsigned depth)
{
    bool object = take(reader, '{');
    char close = object ? '}' : ']';

    if (!object && !take(reader, '[')) {
        return skip_scalar(reader);
    }
    if (depth == DEPTH_MAX) {
        return LK_MALFORMED;
    }
    if (take(reader, close)) {
        return LK_OK;
    }
    do {
        enum lk_status status = object ? read_name(reader) : LK_OK;
        if (!status) {
            status = skip_value(reader, depth + 1);
        }
        if (status) {
            return status;
        }
    } while (take(reader, ','));
    return take(reader, close) ? LK_OK : LK_MALFORMED;
}

/* From behind the opening brace to the value of the member `name`. */
static enum lk_status enter_member(struct reader *reader, struct lk_slice name)
{
    if (next_is(reader, '}')) {
        return LK_NOT_FOUND;
    }
    do {
        enum lk_status status = read_name(reader);
        if (status ||
            latchkey_slice_equal(latchkey_buf_slice(&reader->name), name)) {
            return status;
        }
        status = skip_value(reader, 0);
        if (status) {
            return status;
        }
    } while (take(reader, ','));
    return next_is(reader, '}') ? LK_NOT_FOUND : LK_MALFORMED;
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

static enum lk_status enter_element(struct reader *reader,
                                    struct lk_slice token)
{
    uint64_t index;

    if (!read_index(token, &index) || next_is(reader, ']')) {
        return LK_NOT_FOUND;
    }
    for (; index; index--) {
        enum lk_status status = skip_value(reader, 0);
        if (status) {
            return status;
        }
        if (!take(reader, ',')) {
            return next_is(reader, ']') ? LK_NOT_FOUND : LK_MALFORMED;
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

static enum lk_status enter(struct reader *reader, struct lk_slice token)
{
    if (take(reader, '{')) {
        return enter_member(reader, token);
    }
    if (take(reader, '[')) {
        return enter_element(reader, token);
    }
    enum lk_status status = skip_scalar(reader);
    return status ? status : LK_NOT_FOUND;
}

/* Something must stand behind a value in an object or array: else a number
 * may have been cut, and would be another one. */
static bool is_inside(struct reader *reader)
{
    return next_is(reader, ',') || next_is(reader, '}') || next_is(reader, ']');
}

enum lk_status lk_json_find(struct lk_slice text, struct lk_slice pointer,
                            struct lk_slice *value)
{
    struct reader reader = {.text = text};
    struct lk_buf token = {0};
    enum lk_status status = LK_OK;

    for (size_t at = 0; at < pointer.len && !status;) {
        status = pointer.data[at] == '/' ? LK_OK : LK_MALFORMED;
        at++;
        if (!status) {
            status = read_token(pointer, &at, &token);
        }
        if (!status) {
            status = enter(&reader, latchkey_buf_slice(&token));
        }
    }
    if (!status) {
        (void)next_is(&reader, 0);
        size_t start = reader.at;
        status = skip_value(&reader, 0);
        *value = (struct lk_slice){text.data + start, reader.at - start};
    }
    if (!status && pointer.len && !is_inside(&reader)) {
        status = LK_MALFORMED;
    }
    latchkey_buf_free(&reader.name);
    latchkey_buf_free(&token);
    return status;
}

enum lk_status lk_json_plain(struct lk_slice value, struct lk_buf *out)
{
    size_t at = 0;

    if (value.len && value.data[0] == '"') {
        return lk_json_read_string(value, &at, out);
    }
    return latchkey_buf_add_slice(out, value);
}
