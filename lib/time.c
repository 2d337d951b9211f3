/*
 * time.c - clocks, and points in time as clients and we write them.
 *
 * A time is in milliseconds since 1970-01-01 UTC, at most the year 9999. Three
 * forms are read: a number (seconds or milliseconds), RFC 3339, and the date of
 * HTTP. Each reader gets a copy of the cursor, so one that fails leaves nothing
 * behind. The calendar is computed here: libc's would depend on locale and time
 * zone.
 */
#include "lib/time.h"

#include <stdio.h>
#include <string.h>

enum { SECONDS_OF_DAY = 86400, FRACTION_MAX = 9 };

/* The last second of the year 9999, the last that RFC 3339 can write. */
#define LAST_SECOND UINT64_C(253402300799)

/*
 * A whole number below this is in seconds, any other in milliseconds: the
 * border is the year 5138 for the one and 1973 for the other.
 */
#define FIRST_MILLISECONDS UINT64_C(100000000000)

static const char days[] = "SunMonTueWedThuFriSat";
static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

/* What is left to read. */
struct cursor {
    const char *at;
    const char *end;
};

struct moment {
    unsigned year, month, day, hour, minute, second;
    unsigned millisecond;
    int offset; /* minutes east of UTC */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/*
 * Skips `text` if it comes next. As every take_...: false if it does not come.
 */
static bool take(struct cursor *cursor, const char *text)
{
    size_t len = strlen(text);

    if ((size_t)(cursor->end - cursor->at) < len ||
        memcmp(cursor->at, text, len) != 0) {
        return false;
    }
    cursor->at += len;
    return true;
}

/* Exactly `count` digits, at most nine. */
static bool take_digits(struct cursor *cursor, int count, unsigned *value)
{
    *value = 0;
    if (cursor->end - cursor->at < count) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (!is_digit(cursor->at[i])) {
            return false;
        }
        *value = *value * 10 + (unsigned)(cursor->at[i] - '0');
    }
    cursor->at += count;
    return true;
}

/* A point and digits; what is finer than a millisecond is dropped. */
static bool take_fraction(struct cursor *cursor, unsigned *millisecond)
{
    unsigned value = 0;
    int count = 0;

    if (!take(cursor, ".")) {
        return false;
    }
    for (; cursor->at < cursor->end && is_digit(*cursor->at); cursor->at++) {
        if (count < 3) {
            value = value * 10 + (unsigned)(*cursor->at - '0');
        }
        count++;
    }
    for (int i = count; i < 3; i++) {
        value *= 10;
    }
    *millisecond = value;
    return count > 0 && count <= FRACTION_MAX;
}

/* The number, from 1, of a name of three letters in a list of them. */
static bool take_name(struct cursor *cursor, const char *names, unsigned *value)
{
    if (cursor->end - cursor->at < 3) {
        return false;
    }
    for (unsigned i = 0; names[(size_t)i * 3]; i++) {
        if (memcmp(cursor->at, names + (size_t)i * 3, 3) == 0) {
            cursor->at += 3;
            *value = i + 1;
            return true;
        }
    }
    return false;
}

static bool is_leap(unsigned year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static unsigned days_in_month(unsigned year, unsigned month)
{
    static const unsigned char lengths[] = {31, 28, 31, 30, 31, 30,
                                            31, 31, 30, 31, 30, 31};

    return month == 2 && is_leap(year) ? 29 : lengths[month - 1];
}

/* Days from 1970-01-01 to the first of January; the year is 1 or later. */
static int64_t days_before_year(unsigned year)
{
    int64_t past = (int64_t)year - 1;

    return past * 365 + past / 4 - past / 100 + past / 400 - 719162;
}

/* Days from 1970-01-01; all three numbers are valid. */
static int64_t day_number(unsigned year, unsigned month, unsigned day)
{
    int64_t number = days_before_year(year) + day - 1;

    for (unsigned m = 1; m < month; m++) {
        number += days_in_month(year, m);
    }
    return number;
}

/* False: no such moment, or one before 1970 or after 9999. */
static bool moment_time(const struct moment *moment, uint64_t *ms)
{
    if (moment->year < 1 || moment->month < 1 || moment->month > 12 ||
        moment->day < 1 ||
        moment->day > days_in_month(moment->year, moment->month) ||
        moment->hour > 23 || moment->minute > 59 || moment->second > 60) {
        return false;
    }
    int64_t minutes =
        day_number(moment->year, moment->month, moment->day) * 1440 +
        moment->hour * 60 + moment->minute - moment->offset;
    /* A leap second is the last one of a day of UTC. */
    if (minutes < 0 || (moment->second == 60 && minutes % 1440 != 1439)) {
        return false;
    }
    uint64_t seconds = (uint64_t)minutes * 60 + moment->second;
    if (seconds > LAST_SECOND) {
        return false;
    }
    *ms = seconds * 1000 + moment->millisecond;
    return true;
}

/* ---- The forms ----------------------------------------------------------- */

/* 1700000000, 1700000000123 or 1700000000.123 */
static bool read_number(struct cursor cursor, uint64_t *ms)
{
    const char *start = cursor.at;
    uint64_t value = 0;
    unsigned fraction = 0;

    for (; cursor.at < cursor.end && is_digit(*cursor.at); cursor.at++) {
        value = value * 10 + (uint64_t)(*cursor.at - '0');
        if (value > LAST_SECOND * 1000 + 999) {
            return false;
        }
    }
    if (cursor.at == start || (*start == '0' && cursor.at - start > 1)) {
        return false;
    }
    if (cursor.at == cursor.end) {
        *ms = value < FIRST_MILLISECONDS ? value * 1000 : value;
        return true;
    }
    if (value > LAST_SECOND || !take_fraction(&cursor, &fraction) ||
        cursor.at != cursor.end) {
        return false;
    }
    *ms = value * 1000 + fraction;
    return true;
}

static bool take_clock(struct cursor *cursor, struct moment *moment)
{
    return take_digits(cursor, 2, &moment->hour) && take(cursor, ":") &&
           take_digits(cursor, 2, &moment->minute) && take(cursor, ":") &&
           take_digits(cursor, 2, &moment->second);
}

/* Z, +01:00 or -01:00 */
static bool take_offset(struct cursor *cursor, int *minutes)
{
    unsigned hour = 0;
    unsigned minute = 0;

    *minutes = 0;
    if (take(cursor, "Z") || take(cursor, "z")) {
        return true;
    }
    int sign = take(cursor, "+") ? 1 : take(cursor, "-") ? -1 : 0;
    if (sign == 0 || !take_digits(cursor, 2, &hour) || !take(cursor, ":") ||
        !take_digits(cursor, 2, &minute) || hour > 23 || minute > 59) {
        return false;
    }
    *minutes = sign * (int)(hour * 60 + minute);
    return true;
}

/* 2023-11-14T22:13:20.123Z */
static bool read_rfc3339(struct cursor cursor, uint64_t *ms)
{
    struct moment moment = {0};

    if (!take_digits(&cursor, 4, &moment.year) || !take(&cursor, "-") ||
        !take_digits(&cursor, 2, &moment.month) || !take(&cursor, "-") ||
        !take_digits(&cursor, 2, &moment.day) ||
        !(take(&cursor, "T") || take(&cursor, "t")) ||
        !take_clock(&cursor, &moment)) {
        return false;
    }
    if (cursor.at < cursor.end && *cursor.at == '.' &&
        !take_fraction(&cursor, &moment.millisecond)) {
        return false;
    }
    return take_offset(&cursor, &moment.offset) && cursor.at == cursor.end &&
           moment_time(&moment, ms);
}

/* Tue, 14 Nov 2023 22:13:20 GMT */
static bool read_http_date(struct cursor cursor, uint64_t *ms)
{
    struct moment moment = {0};
    unsigned weekday = 0;

    if (!take_name(&cursor, days, &weekday) || !take(&cursor, ", ") ||
        !take_digits(&cursor, 2, &moment.day) || !take(&cursor, " ") ||
        !take_name(&cursor, months, &moment.month) || !take(&cursor, " ") ||
        !take_digits(&cursor, 4, &moment.year) || !take(&cursor, " ") ||
        !take_clock(&cursor, &moment) || !take(&cursor, " GMT") ||
        cursor.at != cursor.end || !moment_time(&moment, ms)) {
        return false;
    }
    /* 1970-01-01 was a Thursday. A date with the wrong weekday is refused. */
    int64_t day = day_number(moment.year, moment.month, moment.day);
    return (unsigned)((day + 4) % 7) + 1 == weekday;
}

/* LK_MALFORMED: none of the forms; *ms is then as it was. */
enum lk_status latchkey_timestamp_parse(struct lk_slice text, uint64_t *ms)
{
    struct cursor cursor = {text.data, text.data + text.len};
    uint64_t found = 0;

    if (text.len == 0) {
        return LK_MALFORMED;
    }
    if (!read_number(cursor, &found) && !read_rfc3339(cursor, &found) &&
        !read_http_date(cursor, &found)) {
        return LK_MALFORMED;
    }
    *ms = found;
    return LK_OK;
}

/* ---- UUIDs --------------------------------------------------------------- */

static int hex_value(char c)
{
    if (is_digit(c)) {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/* The first 48 bits of a UUID of version 7 are milliseconds since 1970.
 * LK_MALFORMED: it is not one, and *ms is as it was. */
enum lk_status latchkey_uuid7_time(struct lk_slice uuid, uint64_t *ms)
{
    static const char form[] = "xxxxxxxx-xxxx-7xxx-vxxx-xxxxxxxxxxxx";
    uint64_t time = 0;

    if (uuid.len != sizeof(form) - 1) {
        return LK_MALFORMED;
    }
    for (size_t i = 0; i < uuid.len; i++) {
        int value = hex_value(uuid.data[i]);
        bool fits = form[i] == 'x'   ? value >= 0
                    : form[i] == 'v' ? value >= 8 && value <= 11
                                     : uuid.data[i] == form[i];
        if (!fits) {
            return LK_MALFORMED;
        }
        if (i < 13 && value >= 0) {
            time = time << 4 | (uint64_t)value;
        }
    }
    *ms = time;
    return LK_OK;
}

/* ---- Writing ------------------------------------------------------------- */

/* RFC 3339 with milliseconds, always in UTC. A time after the year 9999 is
 * shown as the last moment of it. */
void latchkey_timestamp_text(uint64_t ms, char text[LK_TIMESTAMP_TEXT + 1])
{
    uint64_t last = LAST_SECOND * 1000 + 999;
    uint64_t at = ms > last ? last : ms;
    unsigned second = (unsigned)(at / 1000 % SECONDS_OF_DAY);
    int64_t day = (int64_t)(at / 1000 / SECONDS_OF_DAY);
    /* Never too late; a few years too early at most. */
    unsigned year = 1970 + (unsigned)(day / 366);
    unsigned month = 1;

    while (days_before_year(year + 1) <= day) {
        year++;
    }
    day -= days_before_year(year);
    while (day >= days_in_month(year, month)) {
        day -= days_in_month(year, month);
        month++;
    }
    /*
     * The remainders change nothing: they show the compiler that it all fits.
     */
    (void)snprintf(text, LK_TIMESTAMP_TEXT + 1,
                   "%04u-%02u-%02uT%02u:%02u:%02u.%03uZ", year % 10000, month,
                   (unsigned)day % 32 + 1, second / 3600, second / 60 % 60,
                   second % 60, (unsigned)(at % 1000));
}

/* ---- Clocks -------------------------------------------------------------- */

#define SECOND_NS UINT64_C(1000000000)
#define MS_NS     UINT64_C(1000000)

static uint64_t read_clock_ns(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

uint64_t lk_monotonic_ns(void)
{
    return read_clock_ns(CLOCK_MONOTONIC);
}

uint64_t lk_monotonic_ms(void)
{
    return lk_monotonic_ns() / MS_NS;
}

uint64_t lk_boottime_ns(void)
{
    return read_clock_ns(CLOCK_BOOTTIME);
}

uint64_t lk_boottime_ms(void)
{
    return lk_boottime_ns() / MS_NS;
}

uint64_t lk_wall_ns(void)
{
    return read_clock_ns(CLOCK_REALTIME);
}

uint64_t lk_wall_ms(void)
{
    return lk_wall_ns() / MS_NS;
}

/*
 * For pthread_cond_timedwait and its like, which take a time of the wall clock.
 */
struct timespec lk_wall_after_ms(uint64_t ms)
{
    uint64_t then_ns = lk_wall_ns() + ms * MS_NS;

    return (struct timespec){(time_t)(then_ns / SECOND_NS),
                             (long)(then_ns % SECOND_NS)};
}
