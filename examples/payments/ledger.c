/* ledger.c - the charges: one line of JSON each, in a file that only grows. */
#include "payments.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const currencies[] = {"eur", "gbp", "usd"};

enum { CURRENCIES = sizeof(currencies) / sizeof(currencies[0]) };

/* Charge number n, counted from 1, ends in `lines` at ends[n - 1]. */
static struct {
    int fd;     /* -1: in no file */
    bool keeps; /* in memory, at least */
    struct buf lines;
    size_t *ends;
    size_t cap;
    uint64_t count;
    size_t synced; /* bytes of `lines` that are in the file for good */
} ledger = {.fd = -1};

static void note_end(size_t end)
{
    if (ledger.count == ledger.cap) {
        ledger.cap = ledger.cap ? ledger.cap * 2 : 1024;
        ledger.ends = realloc(ledger.ends, ledger.cap * sizeof(size_t));
        if (!ledger.ends) {
            die("out of memory");
        }
    }
    ledger.ends[ledger.count++] = end;
}

static void load(const char *path, size_t size)
{
    struct buf *lines = &ledger.lines;
    char *end;

    buf_reserve(lines, size);
    while (lines->len < size) {
        ssize_t got =
            read(ledger.fd, lines->data + lines->len, size - lines->len);
        if (got <= 0) {
            die("%s: cannot be read: %s", path, strerror(errno));
        }
        lines->len += (size_t)got;
    }
    end = size > 0 ? memrchr(lines->data, '\n', size) : NULL;
    lines->len = end ? (size_t)(end + 1 - lines->data) : 0;
    for (size_t i = 0; i < lines->len; i++) {
        if (lines->data[i] == '\n') {
            note_end(i + 1);
        }
    }
    ledger.synced = lines->len;
}

void ledger_open(const char *path)
{
    struct stat info;

    ledger.keeps = true;
    if (!path) {
        return;
    }
    ledger.fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (ledger.fd < 0 || fstat(ledger.fd, &info) < 0) {
        die("%s: %s", path, strerror(errno));
    }
    load(path, (size_t)info.st_size);
    /* What a crash left of a last line never got a response. */
    if (ftruncate(ledger.fd, (off_t)ledger.synced) < 0) {
        die("%s: %s", path, strerror(errno));
    }
}

bool ledger_takes(struct text currency)
{
    for (size_t i = 0; i < CURRENCIES; i++) {
        if (text_is(currency, currencies[i])) {
            return true;
        }
    }
    return false;
}

static void add_time(struct buf *out)
{
    struct timespec now;
    struct tm parts;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    buf_printf(out, "\"%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ\"",
               parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
               parts.tm_hour, parts.tm_min, parts.tm_sec,
               now.tv_nsec / 1000000);
}

struct text ledger_charge(const struct charge *charge, uint64_t *number)
{
    struct buf *lines = &ledger.lines;
    size_t start;

    if (!ledger.keeps) {
        lines->len = 0;
        ledger.count++;
    }
    start = lines->len;
    *number = ledger.keeps ? ledger.count + 1 : ledger.count;
    buf_printf(lines,
               "{\"id\":\"ch_%06" PRIu64 "\",\"amount\":%" PRIu64
               ",\"currency\":\"%.*s\",\"customer\":\"%.*s\",\"key\":",
               *number, charge->amount, (int)charge->currency.len,
               charge->currency.data, (int)charge->customer.len,
               charge->customer.data);
    buf_add_string(lines, charge->key);
    buf_printf(lines, ",\"created\":");
    add_time(lines);
    buf_printf(lines, "}\n");
    if (ledger.keeps) {
        note_end(lines->len);
    }
    return (struct text){lines->data + start, lines->len - start - 1};
}

void ledger_sync(void)
{
    struct buf *lines = &ledger.lines;

    if (ledger.fd < 0 || ledger.synced == lines->len) {
        return;
    }
    while (ledger.synced < lines->len) {
        ssize_t put = write(ledger.fd, lines->data + ledger.synced,
                            lines->len - ledger.synced);
        if (put < 0) {
            die("the ledger cannot be written: %s", strerror(errno));
        }
        ledger.synced += (size_t)put;
    }
    if (fdatasync(ledger.fd) < 0) {
        die("the ledger cannot be synced: %s", strerror(errno));
    }
}

uint64_t ledger_count(void)
{
    return ledger.count;
}

bool ledger_find(uint64_t number, struct text *line)
{
    size_t start;

    if (!ledger.keeps || number == 0 || number > ledger.count) {
        return false;
    }
    start = number > 1 ? ledger.ends[number - 2] : 0;
    line->data = ledger.lines.data + start;
    line->len = ledger.ends[number - 1] - start - 1;
    return true;
}

void ledger_list(struct buf *out)
{
    struct text line;

    buf_printf(out, "[");
    for (uint64_t number = 1; ledger_find(number, &line); number++) {
        buf_printf(out, number > 1 ? ",\n" : "\n");
        buf_add(out, line.data, line.len);
    }
    buf_printf(out, "]");
}

static int compare_texts(const void *left, const void *right)
{
    const struct text *a = left, *b = right;
    size_t shorter = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->data, b->data, shorter);

    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* How many different ones there are, and how many of them occur again. */
static void count_customers(struct text *customers, size_t count,
                            uint64_t *different, uint64_t *repeated)
{
    *different = *repeated = 0;
    qsort(customers, count, sizeof(customers[0]), compare_texts);
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i + 1;
             next < count && !compare_texts(&customers[i], &customers[next]);
             next++) {
        }
        *different += 1;
        *repeated += next - i > 1;
    }
}

void ledger_sum(struct buf *out)
{
    struct text *customers = calloc(ledger.count + 1, sizeof(*customers));
    struct text line, value;
    uint64_t totals[CURRENCIES] = {0}, amount, different, repeated;
    size_t count = 0;
    bool is_string;

    if (!customers) {
        die("out of memory");
    }
    while (ledger_find(count + 1, &line)) {
        if (!json_member(line, "amount", &is_string, &value) ||
            !text_number(value, &amount) ||
            !json_member(line, "currency", &is_string, &value) ||
            !json_member(line, "customer", &is_string, &customers[count])) {
            die("the ledger has a line that is not a charge: line %zu",
                count + 1);
        }
        for (size_t i = 0; i < CURRENCIES; i++) {
            totals[i] += text_is(value, currencies[i]) ? amount : 0;
        }
        count++;
    }
    count_customers(customers, count, &different, &repeated);
    free(customers);
    buf_printf(out,
               "{\"charges\":%" PRIu64 ",\"customers\":%" PRIu64
               ",\"charged_more_than_once\":%" PRIu64 ",\"total\":{",
               ledger.count, different, repeated);
    for (size_t i = 0; i < CURRENCIES; i++) {
        buf_printf(out, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", currencies[i],
                   totals[i]);
    }
    buf_printf(out, "}}");
}
