/*
 * json_canonical.c - reads JSON once and writes its canonical spelling.
 *
 * There is no tree. The canonical text is written in the order of the input,
 * and most of it stays as it is. Only an object whose members came out of
 * order leaves notes: where it is in that text, and where its members are,
 * sorted. At the end the text is copied once, span by span, in the order of the
 * notes: every byte is moved a fixed number of times, however deep it is
 * nested. Sorting changes no length, so nothing needs to be measured first.
 */
#include "lib/json.h"

#include "lib/sort.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * A member, first on the stack of pending ones while its object is open, then,
 * sorted, among the final ones. Offsets fit: no text is longer than twice
 * LK_JSON_SIZE_MAX.
 */
struct member {
    uint32_t name; /* in names; only while pending */
    uint32_t name_len;
    uint32_t start; /* in text, name included, comma not */
    uint32_t end;
    uint32_t object; /* the first object note inside it, if any */
    bool left_out;
};

/*
 * An object that is not, or that contains one that is not, in order. The
 * notes are in the order in which their objects begin.
 */
struct object {
    uint32_t start; /* in text, braces included */
    uint32_t end;
    uint32_t next;   /* the note after those inside this object */
    uint32_t member; /* the first of its final members */
    uint32_t count;  /* 0: its own members are in order in the text */
};

/* An array or object that is open. */
struct frame {
    bool is_object;
    bool in_order; /* so far, names only rose */
    bool left_out; /* the present entry is */
    uint32_t seen; /* entries so far, the present one included */
    uint32_t kept; /* of these, finished and not left out */
    uint32_t object;
    uint32_t pending;
    uint32_t names;
    /* How far all had come before the present entry. */
    uint32_t text_mark;
    uint32_t object_mark;
    uint32_t member_mark;
    uint64_t active; /* pointers that have led here */
};

struct reader {
    struct lk_slice in;
    size_t at;
    const struct lk_pointers *ignore;
    uint64_t active; /* pointers that lead into the value that comes next */
    struct lk_buf text;
    struct lk_buf names;   /* unescaped, of the open objects */
    struct lk_buf pending; /* struct member, of the open objects */
    struct lk_buf members; /* struct member */
    struct lk_buf objects; /* struct object */
    size_t depth;
    struct frame frames[LK_JSON_DEPTH_MAX];
};

static uint32_t member_count(const struct lk_buf *buf)
{
    return (uint32_t)(buf->len / sizeof(struct member));
}

static struct member *member_at(const struct lk_buf *buf, size_t i)
{
    return (struct member *)(void *)buf->data + i;
}

static uint32_t object_count(const struct reader *r)
{
    return (uint32_t)(r->objects.len / sizeof(struct object));
}

static struct object *object_at(const struct reader *r, size_t i)
{
    return (struct object *)(void *)r->objects.data + i;
}

static struct frame *top_frame(struct reader *r)
{
    return &r->frames[r->depth - 1];
}

static enum lk_status put_char(struct reader *r, char c)
{
    return latchkey_buf_add(&r->text, &c, 1);
}

/* The next byte that is not white space; at the end a NUL, which no JSON
 * accepts. */
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

/* ---- Entries: members and elements --------------------------------------- */

/* The order of names, by unescaped bytes. */
static int compare_names(const void *a, const void *b, const void *names)
{
    const struct member *x = a, *y = b;
    uint32_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    const char *base = names;
    /* Byte order of UTF-8 is the order of code points. */
    int order = len ? memcmp(base + x->name, base + y->name, len) : 0;

    return order ? order
                 : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static void match_pointers(struct reader *r, struct frame *frame,
                           struct lk_slice name)
{
    uint64_t hit = 0;

    r->active = 0;
    if (frame->active) {
        r->active = lk_pointers_step(r->ignore, frame->active, r->depth - 1,
                                     name, &hit);
    }
    frame->left_out = hit != 0;
}

/* Reads a name and its colon. */
static enum lk_status begin_member(struct reader *r, struct frame *frame)
{
    struct member member = {.name = (uint32_t)r->names.len,
                            .start = (uint32_t)r->text.len,
                            .object = object_count(r)};

    if (peek(r) != '"') {
        return LK_MALFORMED;
    }
    enum lk_status status = lk_json_read_string(r->in, &r->at, &r->names);
    if (status) {
        return status;
    }
    struct lk_slice name = {0};
    member.name_len = (uint32_t)r->names.len - member.name;
    if (member.name_len) {
        name = (struct lk_slice){r->names.data + member.name, member.name_len};
    }
    status = lk_json_write_string(name, &r->text);
    if (!status) {
        status = put_char(r, ':');
    }
    if (!status) {
        status = latchkey_buf_add(&r->pending, &member, sizeof member);
    }
    if (status) {
        return status;
    }
    const struct member *last =
        member_at(&r->pending, member_count(&r->pending) - 1);
    if (frame->seen > 1 && compare_names(last - 1, last, r->names.data) >= 0) {
        frame->in_order = false;
    }
    match_pointers(r, frame, name);
    if (peek(r) != ':') {
        return LK_MALFORMED;
    }
    r->at++;
    return LK_OK;
}

static enum lk_status begin_entry(struct reader *r)
{
    struct frame *frame = top_frame(r);
    enum lk_status status = LK_OK;
    char index[16];

    frame->text_mark = (uint32_t)r->text.len;
    frame->object_mark = object_count(r);
    frame->member_mark = (uint32_t)r->members.len;
    frame->seen++;
    if (frame->kept) {
        status = put_char(r, ',');
    }
    if (status || frame->is_object) {
        return status ? status : begin_member(r, frame);
    }
    if (frame->active) {
        snprintf(index, sizeof index, "%" PRIu32, frame->seen - 1);
    } else {
        index[0] = '\0';
    }
    match_pointers(r, frame, latchkey_slice(index));
    return LK_OK;
}

/* The entry's value has been read: keep it, or forget that it was there. */
static void end_entry(struct reader *r)
{
    struct frame *frame = top_frame(r);

    if (frame->left_out) {
        r->text.len = frame->text_mark;
        r->objects.len = frame->object_mark * sizeof(struct object);
        r->members.len = frame->member_mark;
    } else {
        frame->kept++;
    }
    if (frame->is_object) {
        struct member *member =
            member_at(&r->pending, member_count(&r->pending) - 1);
        member->end = (uint32_t)r->text.len;
        member->left_out = frame->left_out;
    }
}

/* ---- Arrays and objects -------------------------------------------------- */

static enum lk_status open_frame(struct reader *r, char bracket)
{
    struct object object = {.start = (uint32_t)r->text.len};

    if (r->depth == LK_JSON_DEPTH_MAX) {
        return LK_MALFORMED;
    }
    r->frames[r->depth++] = (struct frame){
        .is_object = bracket == '{',
        .in_order = true,
        .object = object_count(r),
        .pending = member_count(&r->pending),
        .names = (uint32_t)r->names.len,
        .active = r->active,
    };
    r->at++;
    enum lk_status status = put_char(r, bracket);
    if (!status && bracket == '{') {
        status = latchkey_buf_add(&r->objects, &object, sizeof object);
    }
    return status;
}

/* Sorts the members of the object that ends and makes them final. */
static enum lk_status sort_members(struct reader *r, const struct frame *frame)
{
    struct object *object = object_at(r, frame->object);
    struct member *members = member_at(&r->pending, frame->pending);
    size_t count = member_count(&r->pending) - frame->pending;
    enum lk_status status =
        lk_sort(members, count, sizeof *members, compare_names, r->names.data);

    for (size_t i = 1; i < count && !status; i++) {
        if (!compare_names(&members[i - 1], &members[i], r->names.data)) {
            status = LK_MALFORMED;
        }
    }
    object->member = member_count(&r->members);
    for (size_t i = 0; i < count && !status; i++) {
        if (!members[i].left_out) {
            status =
                latchkey_buf_add(&r->members, &members[i], sizeof members[i]);
            object->count++;
        }
    }
    return status;
}

static enum lk_status close_object(struct reader *r, const struct frame *frame)
{
    enum lk_status status = frame->in_order ? LK_OK : sort_members(r, frame);

    r->pending.len = frame->pending * sizeof(struct member);
    r->names.len = frame->names;
    struct object *object = object_at(r, frame->object);
    object->end = (uint32_t)r->text.len;
    object->next = object_count(r);
    if (!object->count && object->next == frame->object + 1) {
        r->objects.len -= sizeof *object;
    }
    return status;
}

static enum lk_status close_frame(struct reader *r)
{
    struct frame *frame = top_frame(r);
    enum lk_status status = put_char(r, frame->is_object ? '}' : ']');

    r->at++;
    if (!status && frame->is_object) {
        status = close_object(r, frame);
    }
    r->depth--;
    return status;
}

/* ---- The reader ---------------------------------------------------------- */

static enum lk_status read_literal(struct reader *r, const char *literal)
{
    size_t len = strlen(literal);

    if (r->in.len - r->at < len ||
        memcmp(r->in.data + r->at, literal, len) != 0) {
        return LK_MALFORMED;
    }
    r->at += len;
    return latchkey_buf_add(&r->text, literal, len);
}

static enum lk_status read_string(struct reader *r)
{
    size_t mark = r->names.len;
    enum lk_status status = lk_json_read_string(r->in, &r->at, &r->names);

    if (!status && r->names.len > mark) {
        struct lk_slice string = {r->names.data + mark, r->names.len - mark};
        status = lk_json_write_string(string, &r->text);
    } else if (!status) {
        status = latchkey_buf_add(&r->text, "\"\"", 2);
    }
    r->names.len = mark;
    return status;
}

/* What the reader does next. */
enum step {
    READ_VALUE,
    READ_FIRST, /* after an opening bracket: an entry or the closing one */
    READ_ON,    /* after a value */
    READ_DONE,
};

static enum lk_status read_value(struct reader *r, enum step *step)
{
    char c = peek(r);

    *step = READ_ON;
    switch (c) {
    case '{':
    case '[':
        *step = READ_FIRST;
        return open_frame(r, c);
    case '"':
        return read_string(r);
    case 't':
        return read_literal(r, "true");
    case 'f':
        return read_literal(r, "false");
    case 'n':
        return read_literal(r, "null");
    default:
        return lk_json_read_number(r->in, &r->at, &r->text);
    }
}

static bool at_closing(struct reader *r)
{
    return peek(r) == (top_frame(r)->is_object ? '}' : ']');
}

static enum lk_status read_first(struct reader *r, enum step *step)
{
    if (at_closing(r)) {
        *step = READ_ON;
        return close_frame(r);
    }
    *step = READ_VALUE;
    return begin_entry(r);
}

static enum lk_status read_on(struct reader *r, enum step *step)
{
    char c = peek(r);

    if (r->depth == 0) {
        *step = READ_DONE;
        return r->at == r->in.len ? LK_OK : LK_MALFORMED;
    }
    end_entry(r);
    if (at_closing(r)) {
        *step = READ_ON;
        return close_frame(r);
    }
    if (c != ',') {
        return LK_MALFORMED;
    }
    r->at++;
    *step = READ_VALUE;
    return begin_entry(r);
}

static enum lk_status read_text(struct reader *r)
{
    enum lk_status status = LK_OK;
    enum step step = READ_VALUE;

    while (!status && step != READ_DONE) {
        switch (step) {
        case READ_VALUE:
            status = read_value(r, &step);
            break;
        case READ_FIRST:
            status = read_first(r, &step);
            break;
        default:
            status = read_on(r, &step);
        }
    }
    return status;
}

/* ---- The writer ---------------------------------------------------------- */

static enum lk_status emit_object(const struct reader *r,
                                  const struct object *object,
                                  struct lk_buf *out);

/* Appends text[start, end); `i` is the first object note inside it. */
static enum lk_status emit_span(const struct reader *r, uint32_t start,
                                uint32_t end, uint32_t i, struct lk_buf *out)
{
    enum lk_status status = LK_OK;
    uint32_t count = object_count(r);

    while (!status && i < count && object_at(r, i)->start < end) {
        const struct object *object = object_at(r, i);
        if (!object->count) {
            i++;
            continue;
        }
        status =
            latchkey_buf_add(out, r->text.data + start, object->start - start);
        if (!status) {
            status = emit_object(r, object, out);
        }
        start = object->end;
        i = object->next;
    }
    if (!status && start < end) {
        status = latchkey_buf_add(out, r->text.data + start, end - start);
    }
    return status;
}

static enum lk_status emit_object(const struct reader *r,
                                  const struct object *object,
                                  struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    for (uint32_t i = 0; i < object->count && !status; i++) {
        const struct member *member =
            member_at(&r->members, object->member + i);
        status = latchkey_buf_add(out, i ? "," : "{", 1);
        if (!status) {
            status =
                emit_span(r, member->start, member->end, member->object, out);
        }
    }
    if (!status) {
        status = latchkey_buf_add(out, "}", 1);
    }
    return status;
}

static enum lk_status canonicalise(struct reader *r, struct lk_buf *out)
{
    uint64_t whole = 0;

    if (r->ignore) {
        r->active = lk_pointers_start(r->ignore, &whole);
    }
    enum lk_status status = latchkey_buf_reserve(&r->text, r->in.len);
    if (!status) {
        status = read_text(r);
    }
    if (status || whole) {
        return status;
    }
    /* Room for all of it at once, so that nothing can be left half done. */
    status = latchkey_buf_reserve(out, r->text.len);
    return status ? status : emit_span(r, 0, (uint32_t)r->text.len, 0, out);
}

enum lk_status lk_json_canonical(struct lk_slice text,
                                 const struct lk_pointers *ignore,
                                 struct lk_buf *out)
{
    if (text.len > LK_JSON_SIZE_MAX) {
        return LK_TOO_LARGE;
    }
    if (!text.len) {
        return LK_MALFORMED;
    }
    struct reader *r = malloc(sizeof *r);
    if (!r) {
        return LK_NOMEM;
    }
    /* Frames are set when they are opened; there are too many to clear. */
    memset(r, 0, offsetof(struct reader, frames));
    r->in = text;
    r->ignore = ignore;
    enum lk_status status = canonicalise(r, out);
    latchkey_buf_free(&r->text);
    latchkey_buf_free(&r->names);
    latchkey_buf_free(&r->pending);
    latchkey_buf_free(&r->members);
    latchkey_buf_free(&r->objects);
    free(r);
    return status;
}
