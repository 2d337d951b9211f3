/* provider_manner.c - how the provider misbehaves, and when. */
#include "provider.h"

#include <stdio.h>
#include <string.h>

static struct manner usual;
static uint64_t usual_left; /* calls that still get it; 0: all, if no `next` */
static uint64_t dice = 1;

void manner_seed(uint64_t seed)
{
    dice = seed * 2685821657736338717u + 1;
}

/* 0 to 99 (xorshift64). */
static unsigned roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (unsigned)(dice >> 33) % 100;
}

/* A member that is not there leaves the value alone. */
static bool read_number(struct text object, const char *name, uint64_t max,
                        uint64_t *number)
{
    struct text value;
    bool is_string;

    if (!json_member(object, name, &is_string, &value)) {
        return true;
    }
    return !is_string && text_number(value, number) && *number <= max;
}

static bool read_small(struct text object, const char *name, unsigned max,
                       unsigned *number)
{
    uint64_t value = *number;
    bool fine = read_number(object, name, max, &value);

    *number = (unsigned)value;
    return fine;
}

static bool read_moment(struct text object, const char *name,
                        enum moment *moment)
{
    struct text value;
    bool is_string;

    if (!json_member(object, name, &is_string, &value)) {
        return true;
    }
    *moment = text_is(value, "before") ? BEFORE : AFTER;
    return is_string && (*moment == BEFORE || text_is(value, "after"));
}

static bool read_text(struct text object, const char *name, char *text,
                      size_t size)
{
    struct text value;
    bool is_string;

    if (!json_member(object, name, &is_string, &value)) {
        return true;
    }
    snprintf(text, size, "%.*s", (int)value.len, value.data);
    return is_string && value.len < size;
}

static bool read_flag(struct text object, const char *name, bool *flag)
{
    unsigned number = *flag;
    bool fine = read_small(object, name, 1, &number);

    *flag = number;
    return fine;
}

static const char *read_manner(struct text object, struct manner *manner)
{
    *manner = (struct manner){0};
    if (!read_moment(object, "drop", &manner->drop) ||
        !read_moment(object, "hang", &manner->hang) ||
        !read_moment(object, "die", &manner->die)) {
        return "drop, hang and die are \\\"before\\\" or \\\"after\\\"";
    }
    if (!read_small(object, "fail", 599, &manner->fail) ||
        !read_number(object, "delay", 600000, &manner->delay_ms) ||
        !read_small(object, "pace", 600000, &manner->pace_ms) ||
        !read_number(object, "giant", 1 << 30, &manner->giant) ||
        !read_number(object, "times", 1000000, &manner->times) ||
        !read_number(object, "next", 1000000, &manner->next) ||
        !read_flag(object, "garbage", &manner->garbage) ||
        !read_flag(object, "cut", &manner->cut)) {
        return "fail, delay, pace, giant, times and next are numbers, garbage "
               "and cut are 0 or 1";
    }
    if (!read_text(object, "retry_after", manner->retry_after,
                   sizeof(manner->retry_after)) ||
        !read_text(object, "redirect", manner->redirect,
                   sizeof(manner->redirect))) {
        return "retry_after and redirect are strings, not too long";
    }
    if (!read_small(object, "chance", 100, &manner->chance) ||
        !read_small(object, "drop_before", 100, &manner->drop_before) ||
        !read_small(object, "drop_after", 100, &manner->drop_after) ||
        !read_small(object, "fail_503", 100, &manner->fail_503) ||
        !read_small(object, "delay_20", 100, &manner->delay_20)) {
        return "chances are numbers of a hundred";
    }
    return NULL;
}

const char *manner_set(struct text object)
{
    struct manner fresh;
    const char *wrong = read_manner(object, &fresh);

    if (!wrong) {
        usual = fresh;
        usual_left = fresh.next;
    }
    return wrong;
}

/* One of the troubles that come by chance, or none. */
static void draw(struct manner *manner)
{
    unsigned number = roll();

    if (number < manner->drop_before) {
        manner->drop = BEFORE;
        return;
    }
    number -= manner->drop_before;
    if (number < manner->drop_after) {
        manner->drop = AFTER;
        return;
    }
    number -= manner->drop_after;
    if (number < manner->fail_503) {
        manner->fail = 503;
        return;
    }
    number -= manner->fail_503;
    if (number < manner->delay_20) {
        manner->delay_ms = 1 + roll() % 20;
    }
}

static bool draws(const struct manner *manner)
{
    return manner->drop_before || manner->drop_after || manner->fail_503 ||
           manner->delay_20;
}

const char *manner_choose(struct text given, const struct key *key,
                          struct manner *manner)
{
    const char *wrong = NULL;

    *manner = usual;
    if (given.len > 0) {
        wrong = read_manner(given, manner);
    } else if (usual.next && usual_left == 0) {
        *manner = (struct manner){0};
    } else if (usual.next) {
        usual_left--;
    }
    if ((manner->times && key->calls > manner->times) ||
        (manner->chance && roll() >= manner->chance)) {
        *manner = (struct manner){0};
    }
    if (draws(manner)) {
        draw(manner);
    }
    return wrong;
}
