/*
 * numbers.c - the numbers of the daemon: histograms, the table of all numbers,
 * and the replies that are made of it, INFO, STATS and STATS EXPLAIN.
 */
#include "daemon/args.h"
#include "daemon/batcher.h"
#include "daemon/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The version of the protocol that drivers look for, not of Latchkey. */
#define REDIS_VERSION "7.0.0"

/* ---- Histograms and counters --------------------------------------------- */

enum { STEP_BITS = 4 };

/*
 * Values below 32 have a slot each. From there on the highest bit chooses a
 * row of 16 slots and the four bits below it the slot within the row.
 */
static size_t slot_of(uint64_t value)
{
    if (value < 2 * LK_HISTOGRAM_STEPS) {
        return (size_t)value;
    }
    unsigned high = 63 - (unsigned)__builtin_clzll(value);
    unsigned shift = high - STEP_BITS;

    return (size_t)shift * LK_HISTOGRAM_STEPS + (size_t)(value >> shift);
}

/* The largest value of a slot; the inverse of slot_of. */
static uint64_t slot_end(size_t slot)
{
    if (slot < 2 * LK_HISTOGRAM_STEPS) {
        return slot;
    }
    unsigned shift = (unsigned)(slot / LK_HISTOGRAM_STEPS) - 1;
    uint64_t base = slot % LK_HISTOGRAM_STEPS + LK_HISTOGRAM_STEPS;

    return (base << shift) + ((UINT64_C(1) << shift) - 1);
}

void lk_histogram_add(struct lk_histogram *histogram, uint64_t value)
{
    histogram->count++;
    histogram->sum += value;
    if (value > histogram->max) {
        histogram->max = value;
    }
    histogram->slots[slot_of(value)]++;
}

/* The end of the slot that has the quantile, so at most 1/16 too high, and
 * never above the largest value that was added. Nothing added: 0. */
uint64_t lk_histogram_quantile(const struct lk_histogram *histogram,
                               double share)
{
    double wanted = share * (double)histogram->count;
    uint64_t seen = 0;

    for (size_t slot = 0; slot < LK_HISTOGRAM_SLOTS; slot++) {
        seen += histogram->slots[slot];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t end = slot_end(slot);
            return end < histogram->max ? end : histogram->max;
        }
    }
    return histogram->max;
}

/* Claims that waited for another are counted, but not timed: their time is the
 * other's. */
void lk_metrics_claim(struct lk_metrics *metrics, enum lk_verdict verdict,
                      bool waited, uint64_t us)
{
    metrics->claims[verdict]++;
    if (!waited) {
        lk_histogram_add(&metrics->claim_us, us);
    }
}

/* ---- The table ----------------------------------------------------------- */

/* 0: /proc cannot be read. */
static uint64_t resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    unsigned long long pages = 0;

    if (!file) {
        return 0;
    }
    if (fscanf(file, "%*u %llu", &pages) != 1) {
        pages = 0;
    }
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The first TCP port that the daemon listens on; 0: none. */
static uint64_t tcp_port(const struct lk_server *server)
{
    unsigned port = 0;

    for (size_t i = 0; i < server->listener_count && !port; i++) {
        port = server->listeners[i].port;
    }
    return port;
}

/* How long something has been so, by the store's clock. */
static uint64_t age_of(uint64_t since_ms, const struct lk_store_stats *stats)
{
    return since_ms && stats->now_ms > since_ms ? stats->now_ms - since_ms : 0;
}

/* Is this command the long work in progress? */
static bool runs(const struct lk_server *server, const char *command)
{
    const struct lk_task *task = server->long_work.task;

    return task && !strcmp(task->command->name, command);
}

#define X(section, name, kind, place, help, value)                             \
    static uint64_t read_##name(const struct lk_numbers *n)                    \
    {                                                                          \
        return value;                                                          \
    }
LK_NUMBER_ROWS
#undef X

/* In the order of enum lk_number: a number's enum value is its index. */
static const struct lk_number_row table[] = {
#define X(section, name, kind, place, help, value)                             \
    {#section, #name, kind, place, help, read_##name},
    LK_NUMBER_ROWS
#undef X
};

enum { COUNT = LK_NUMBERS };
_Static_assert(sizeof(table) / sizeof(table[0]) == LK_NUMBERS,
               "one row for each number");

const struct lk_number_row *lk_number_row(size_t index)
{
    return index < COUNT ? &table[index] : NULL;
}

uint64_t lk_number(const struct lk_numbers *numbers, enum lk_number which)
{
    return table[which].read(numbers);
}

/* A copy of what other threads count; the rest is the loop thread's own, and is
 * read when a number is asked for. Valid for one reply. */
void lk_numbers_take(struct lk_server *server, struct lk_numbers *numbers)
{
    *numbers = (struct lk_numbers){
        .server = server,
        .config = &server->config,
        .metrics = &server->metrics,
        .up_ms = uv_now(&server->loop) - server->started_ms,
    };
    lk_server_store_stats(server, &numbers->store);
    if (server->batcher) {
        lk_batcher_stats(server->batcher, &numbers->batches);
    }
}

/* ---- INFO ---------------------------------------------------------------- */

static enum lk_status word(struct lk_buf *text, const char *name,
                           const char *value)
{
    return latchkey_buf_printf(text, "%s:%s\r\n", name, value);
}

static enum lk_status write_server(const struct lk_numbers *n,
                                   struct lk_buf *text)
{
    char promise[LK_PROMISE_SIZE] = "";

    if (n->server->store) {
        lk_store_promise(n->server->store, promise);
    }
    W(word(text, "redis_version", REDIS_VERSION));
    W(word(text, "redis_mode", "standalone"));
    W(word(text, "latchkey_version", LATCHKEY_VERSION));
    W(word(text, "store", n->server->opening.class->scheme));
    return word(text, "store_promise", promise);
}

static enum lk_status write_role(const struct lk_numbers *n,
                                 struct lk_buf *text)
{
    return word(text, "role", "master");
}

static enum lk_status write_trouble(const struct lk_numbers *n,
                                    struct lk_buf *text)
{
    return word(text, "trouble", n->store.failure);
}

static enum lk_status write_targets(const struct lk_numbers *n,
                                    struct lk_buf *text)
{
    struct lk_targets_view *view = lk_targets_view_make(n->server);
    enum lk_status status = view ? lk_targets_view_info(view, text) : LK_NOMEM;

    lk_targets_view_free(view);
    return status;
}

/* Only commands that have been called, in lower case. */
static enum lk_status write_commands(const struct lk_numbers *n,
                                     struct lk_buf *text)
{
    const struct lk_command_word *word;

    for (size_t i = 0; (word = lk_command_word(i)); i++) {
        char label[32] = "cmdstat_";
        char *at = label + strlen(label);
        if (!n->metrics->by_command[i]) {
            continue;
        }
        for (const char *from = word->name; *from; from++) {
            *at++ = (char)(*from | 0x20);
        }
        W(latchkey_buf_printf(text, "%s:calls=%" PRIu64 "\r\n", label,
                              n->metrics->by_command[i]));
    }
    return LK_OK;
}

/* In the order of INFO. `words` writes what is not a number, in front of the
 * numbers. */
static const struct {
    const char *name;
    enum lk_status (*words)(const struct lk_numbers *n, struct lk_buf *text);
} sections[] = {
    {"Server", write_server},
    {"Clients", NULL},
    {"Memory", NULL},
    {"Persistence", NULL},
    {"Stats", NULL},
    {"Replication", write_role},
    {"Claims", NULL},
    {"Batches", NULL},
    {"Latency", NULL},
    {"Store", write_trouble},
    {"Outbox", write_targets},
    {"Chores", NULL},
    {"Commandstats", write_commands},
};

/* A section of INFO: its title, its words and then its numbers, in the order of
 * the table. An empty line separates it from the one before. */
static enum lk_status write_section(const struct lk_numbers *n, size_t which,
                                    struct lk_buf *text)
{
    const char *section = sections[which].name;

    W(latchkey_buf_printf(text, "%s# %s\r\n", text->len ? "\r\n" : "",
                          section));
    if (sections[which].words) {
        W(sections[which].words(n, text));
    }
    for (size_t i = 0; i < COUNT; i++) {
        if (!strcmp(table[i].section, section)) {
            W(latchkey_buf_printf(text, "%s:%" PRIu64 "\r\n", table[i].name,
                                  table[i].read(n)));
        }
    }
    return LK_OK;
}

static bool is_everything(struct lk_slice section)
{
    return section.len == 0 || lk_arg_is(section, "all") ||
           lk_arg_is(section, "default") || lk_arg_is(section, "everything");
}

/* An unknown section gives an empty text, as in Redis. */
enum lk_status lk_info_write(struct lk_server *server, struct lk_slice section,
                             struct lk_buf *text)
{
    struct lk_numbers numbers;

    lk_numbers_take(server, &numbers);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (is_everything(section) || lk_arg_is(section, sections[i].name)) {
            W(write_section(&numbers, i, text));
        }
    }
    return LK_OK;
}

/* ---- STATS --------------------------------------------------------------- */

/* STATS has hyphens where INFO has underscores. Names fit into 63 bytes. */
static enum lk_status write_name(struct lk_buf *out, const char *name)
{
    char hyphens[64];
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        hyphens[i] = name[i] == '_' ? '-' : name[i];
    }
    return lk_resp_bulk(out, (struct lk_slice){hyphens, len});
}

/* Appends the pairs of one place and adds their number to `count`. */
static enum lk_status write_numbers(const struct lk_numbers *n,
                                    enum lk_number_place place,
                                    struct lk_buf *out, size_t *count)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (table[i].place == place) {
            W(write_name(out, table[i].name));
            W(lk_resp_integer(out, (int64_t)table[i].read(n)));
            ++*count;
        }
    }
    return LK_OK;
}

/* The pairs are made first, since the map begins with their number. "trouble"
 * and what operators look for first are in front. */
static enum lk_status write_stats(struct lk_server *server, int proto,
                                  struct lk_buf *out)
{
    struct lk_buf pairs = {0};
    struct lk_numbers numbers;
    size_t count = 1;

    lk_numbers_take(server, &numbers);
    enum lk_status status =
        lk_pair_bytes(&pairs, "trouble", latchkey_slice(numbers.store.failure));
    if (!status) {
        status = write_numbers(&numbers, LK_STATS_FIRST, &pairs, &count);
    }
    if (!status) {
        status = write_numbers(&numbers, LK_IN_STATS, &pairs, &count);
    }
    if (!status) {
        status = lk_resp_map(out, proto, count);
    }
    if (!status) {
        status = latchkey_buf_add_slice(out, latchkey_buf_slice(&pairs));
    }
    latchkey_buf_free(&pairs);
    return status;
}

/* Every number, whether or not STATS has it. */
static enum lk_status explain_stats(int proto, struct lk_buf *out)
{
    W(lk_resp_map(out, proto, COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        struct lk_buf text = {0};
        enum lk_status status = latchkey_buf_printf(
            &text, "%s: %s", table[i].kind == LK_COUNTER ? "counter" : "gauge",
            table[i].help);
        if (!status) {
            status = write_name(out, table[i].name);
        }
        if (!status) {
            status = lk_resp_bulk(out, latchkey_buf_slice(&text));
        }
        latchkey_buf_free(&text);
        W(status);
    }
    return LK_OK;
}

LK_REPLY_HERE(stats)
{
    lk_conn_wrote(conn,
                  write_stats(conn->server, conn->proto, lk_conn_out(conn)));
}

LK_REPLY_HERE(stats_explain)
{
    lk_conn_wrote(conn, explain_stats(conn->proto, lk_conn_out(conn)));
}

static const struct lk_command rows[] = {
    {.name = "STATS",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_VIEW,
     .reply_here = reply_stats,
     .usage = ""},
    {.name = "STATS EXPLAIN",
     .min_args = 2,
     .max_args = 2,
     .roles = LK_FOR_VIEW,
     .reply_here = reply_stats_explain,
     .usage = ""},
};

LK_COMMAND_GROUP(lk_number_commands, rows);
