/*
 * info.c - the numbers of the daemon: one table, from which INFO and STATS
 * come.
 *
 * A number is a row: its section in INFO, its name (with hyphens in STATS), how
 * it is to be read, whether STATS has it, what it means, and where it comes
 * from. docs/operations.md lists them all.
 */
#include "daemon/args.h"
#include "daemon/batcher.h"
#include "daemon/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* With fewer, what an empty index takes says nothing about one record. */
enum { ENOUGH_RECORDS = 10000 };

/* The version of the protocol that drivers look for, not of Latchkey. */
#define REDIS_VERSION "7.0.0"

/* What the rows are read from, all of one moment. */
struct numbers {
    struct lk_server *server;
    const struct lk_config *config;
    const struct lk_metrics *metrics;
    struct lk_store_stats store;
    struct lk_batcher_stats batches;
    uint64_t up_ms;
};

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

static bool runs(const struct lk_server *server, const char *command)
{
    const struct lk_task *task = server->long_work.task;

    return task && !strcmp(task->command->name, command);
}

/* ---- The table ----------------------------------------------------------- */

enum kind {
    GAUGE,   /* how it is now */
    COUNTER, /* since the start; only rises */
};

/* Where STATS has it: what needs a person comes first. */
enum place { NOT_IN_STATS, IN_STATS, FIRST };

#define CLAIMS(name, verdict, help)                                            \
    X(Claims, claims_##name, COUNTER, IN_STATS, help,                          \
      n->metrics->claims[LK_VERDICT_##verdict])

#define RECORDS(name, state, place, help)                                      \
    X(Store, records_##name, GAUGE, place, help,                               \
      n->store.by_state[LK_STATE_##state])

#define JOBS(name, state, place, help)                                         \
    X(Outbox, jobs_##name, GAUGE, place, help, n->store.jobs[LK_JOB_##state])

#define HISTOGRAM(section, name, unit, of, what)                               \
    X(section, name##_p50##unit, GAUGE, NOT_IN_STATS, what ": half are below", \
      lk_histogram_quantile(&(of), 0.5))                                       \
    X(section, name##_p99##unit, GAUGE, NOT_IN_STATS,                          \
      what ": 99 of 100 are below", lk_histogram_quantile(&(of), 0.99))        \
    X(section, name##_p999##unit, GAUGE, NOT_IN_STATS,                         \
      what ": 999 of 1000 are below", lk_histogram_quantile(&(of), 0.999))     \
    X(section, name##_max##unit, GAUGE, NOT_IN_STATS, what ": the largest",    \
      (of).max)                                                                \
    X(section, name##_avg##unit, GAUGE, NOT_IN_STATS, what ": the mean",       \
      (of).count ? (of).sum / (of).count : 0)

#define SERVER_ROWS                                                            \
    X(Server, process_id, GAUGE, NOT_IN_STATS, "the daemon's process",         \
      (uint64_t)getpid())                                                      \
    X(Server, tcp_port, GAUGE, NOT_IN_STATS, "where it listens; 0: nowhere",   \
      tcp_port(n->server))                                                     \
    X(Server, uptime_in_seconds, GAUGE, NOT_IN_STATS, "since the start",       \
      n->up_ms / 1000)                                                         \
    X(Server, uptime_in_days, GAUGE, NOT_IN_STATS, "the same in days",         \
      n->up_ms / 86400000)

#define CLIENT_ROWS                                                            \
    X(Clients, connected_clients, GAUGE, NOT_IN_STATS, "connections",          \
      n->server->conn_count)                                                   \
    X(Clients, maxclients, GAUGE, NOT_IN_STATS, "limits.connections",          \
      n->config->connections)                                                  \
    X(Clients, peak_clients, GAUGE, NOT_IN_STATS, "the most at once",          \
      n->server->peak_conns)                                                   \
    X(Clients, blocked_clients, GAUGE, NOT_IN_STATS,                           \
      "WAIT and AWAIT that are parked", n->server->waiters.count)              \
    X(Clients, closed_by_server, COUNTER, NOT_IN_STATS,                        \
      "connections that the daemon closed, as in the log", n->metrics->cut)    \
    X(Clients, auth_failed, COUNTER, NOT_IN_STATS, "wrong user or password",   \
      n->metrics->auth_failed)                                                 \
    X(Clients, unauthenticated_clients, GAUGE, NOT_IN_STATS,                   \
      "have not logged in yet, where a password is needed",                    \
      n->server->lists[LK_LIST_STRANGERS].count)

#define MEMORY_ROWS                                                            \
    X(Memory, used_memory, GAUGE, NOT_IN_STATS, "resident bytes, all of it",   \
      resident_bytes())                                                        \
    X(Memory, maxmemory, GAUGE, NOT_IN_STATS, "for drivers: no such limit", 0) \
    X(Memory, cache_bytes, GAUGE, NOT_IN_STATS, "answers in memory",           \
      n->server->cache.bytes)                                                  \
    X(Memory, cache_answers, GAUGE, NOT_IN_STATS, "how many these are",        \
      n->server->cache.count)                                                  \
    X(Memory, cache_max_bytes, GAUGE, NOT_IN_STATS, "limits.cache_bytes",      \
      n->server->cache.max_bytes)                                              \
    X(Memory, queue_bytes, GAUGE, NOT_IN_STATS, "commands in progress",        \
      n->server->queued_bytes)                                                 \
    X(Memory, client_bytes, GAUGE, NOT_IN_STATS,                               \
      "these, what is being received, and replies that wait",                  \
      n->server->held_bytes)

#define STATS_ROWS                                                             \
    X(Stats, total_connections_received, COUNTER, NOT_IN_STATS,                \
      "connections ever accepted", n->metrics->connections)                    \
    X(Stats, rejected_connections, COUNTER, NOT_IN_STATS,                      \
      "connections that were one too many", n->metrics->refused)               \
    X(Stats, total_commands_processed, COUNTER, NOT_IN_STATS, "commands",      \
      n->metrics->commands)                                                    \
    X(Stats, total_net_input_bytes, COUNTER, NOT_IN_STATS, "bytes read",       \
      n->metrics->bytes_in)                                                    \
    X(Stats, total_net_output_bytes, COUNTER, NOT_IN_STATS, "bytes written",   \
      n->metrics->bytes_out)                                                   \
    X(Stats, error_replies, COUNTER, NOT_IN_STATS, "replies that are errors",  \
      n->metrics->errors)                                                      \
    X(Stats, peeked, COUNTER, NOT_IN_STATS,                                    \
      "answered at once from memory, without the store", n->metrics->peeked)   \
    X(Stats, cache_hits, COUNTER, NOT_IN_STATS,                                \
      "answers for retries that were in the daemon's memory",                  \
      n->server->cache.hits)                                                   \
    X(Stats, cache_misses, COUNTER, NOT_IN_STATS,                              \
      "answers for retries that were not", n->server->cache.misses)            \
    X(Stats, queued_ops, GAUGE, NOT_IN_STATS, "commands in progress",          \
      n->server->queued_ops)                                                   \
    X(Stats, queue_stalls, COUNTER, NOT_IN_STATS,                              \
      "a client was not read because the queue was full", n->metrics->stalls)  \
    X(Stats, waits, COUNTER, NOT_IN_STATS, "WAIT that waited",                 \
      n->metrics->waits)                                                       \
    X(Stats, pushes, COUNTER, NOT_IN_STATS, "messages to AWAIT",               \
      n->metrics->pushes)

#define OTHER_ROWS                                                             \
    X(Persistence, loading, GAUGE, NOT_IN_STATS, "for drivers: never", 0)      \
    X(Replication, connected_slaves, GAUGE, NOT_IN_STATS,                      \
      "for drivers: there are none", 0)                                        \
    X(Chores, verify_running, GAUGE, NOT_IN_STATS, "1: a verify runs",         \
      runs(n->server, "VERIFY"))                                               \
    X(Chores, backup_running, GAUGE, NOT_IN_STATS, "1: a backup runs",         \
      runs(n->server, "BACKUP"))                                               \
    X(Chores, chore_done, GAUGE, NOT_IN_STATS, "how far it is",                \
      atomic_load(&n->server->long_work.done))                                 \
    X(Chores, chore_total, GAUGE, NOT_IN_STATS, "of how much",                 \
      atomic_load(&n->server->long_work.total))

#define CLAIM_ROWS                                                             \
    CLAIMS(new, NEW, "claims that may run")                                    \
    CLAIMS(replay, REPLAY, "claims that got the stored answer")                \
    CLAIMS(omitted, OMITTED, "claims of what ran, its answer not kept")        \
    CLAIMS(inflight, INFLIGHT, "claims of what another client runs")           \
    CLAIMS(accepted, ACCEPTED, "claims of what the courier will run")          \
    CLAIMS(uncertain, UNCERTAIN, "claims of what is uncertain")                \
    CLAIMS(mismatch, MISMATCH, "claims of a key of another request")           \
    CLAIMS(limited, LIMITED, "claims over a limit")                            \
    CLAIMS(refused, REFUSED, "claims that nothing was begun for")              \
    X(Claims, claims_unavailable, COUNTER, IN_STATS,                           \
      "claims that could not be decided", n->metrics->claims_unavailable)

#define BATCH_ROWS                                                             \
    X(Batches, batches, COUNTER, NOT_IN_STATS, "batches of operations",        \
      n->batches.ops.count)                                                    \
    X(Batches, batch_ops, COUNTER, NOT_IN_STATS, "operations in them",         \
      n->batches.ops.sum)                                                      \
    HISTOGRAM(Batches, batch_size, , n->batches.ops,                           \
              "operations that shared one sync")                               \
    HISTOGRAM(Batches, batch, _us, n->batches.us,                              \
              "time of a batch with its sync")                                 \
    X(Batches, batch_waiting, GAUGE, NOT_IN_STATS,                             \
      "operations in the queue of the store", n->batches.waiting)              \
    HISTOGRAM(Latency, claim, _us, n->metrics->claim_us,                       \
              "time from a claim to its reply")

#define STORE_ROWS                                                             \
    X(Store, available, GAUGE, FIRST,                                          \
      "1: the store decides; 0: `trouble` says why not", n->store.available)   \
    X(Store, clock_held, GAUGE, FIRST, "1: an operator must accept the clock", \
      n->store.clock_held)                                                     \
    X(Store, hold_until_ms, GAUGE, FIRST,                                      \
      "not 0: restored, nothing new starts until then",                        \
      n->store.hold_until_ms)                                                  \
    RECORDS(uncertain, UNCERTAIN, FIRST,                                       \
            "operations whose outcome is unknown")                             \
    X(Store, disk_free_bytes, GAUGE, FIRST,                                    \
      "free in the file system of the embedded store; 0: on a server",         \
      atomic_load(&n->server->checkup.disk_free))                              \
    X(Store, records, GAUGE, IN_STATS,                                         \
      "operations that are stored, in any state", n->store.operations)            \
    RECORDS(accepted, ACCEPTED, IN_STATS, "operations that a courier runs")    \
    RECORDS(in_progress, IN_PROGRESS, IN_STATS, "operations that run")         \
    RECORDS(completed, COMPLETED, IN_STATS, "operations with an answer")       \
    RECORDS(released, RELEASED, IN_STATS,                                      \
            "operations that nothing came of: they may run again")             \
    X(Store, index_bytes, GAUGE, IN_STATS, "memory of the index",              \
      n->store.index_bytes)                                                    \
    X(Store, bytes_per_record, GAUGE, NOT_IN_STATS,                            \
      "of the index, from 10000 records on; 0: fewer",                         \
      n->store.operations >= ENOUGH_RECORDS                                       \
          ? n->store.index_bytes / n->store.operations                            \
          : 0)                                                                 \
    X(Store, file_bytes, GAUGE, IN_STATS, "database and log",                  \
      n->store.file_bytes)                                                     \
    X(Store, free_bytes, GAUGE, IN_STATS, "of these, reusable",                \
      n->store.free_bytes)                                                     \
    X(Store, dead_rows, GAUGE, IN_STATS, "expired, waiting for the reaper",    \
      n->store.dead_rows)                                                      \
    X(Store, store_batches, COUNTER, IN_STATS,                                 \
      "batches that the store made durable", n->store.batches)                 \
    X(Store, store_batch_ops, COUNTER, IN_STATS, "operations in them",         \
      n->store.batch_ops)                                                      \
    X(Store, syncs_failed, COUNTER, IN_STATS,                                  \
      "batches that failed, a full disk included", n->store.syncs_failed)      \
    X(Store, reopened, COUNTER, IN_STATS,                                      \
      "the store was closed and built again, or connected again",              \
      n->store.reopened)                                                       \
    X(Store, checkpoints, COUNTER, IN_STATS, "checkpoints",                    \
      n->store.checkpoints)                                                    \
    X(Store, swept, COUNTER, IN_STATS, "locks that lapsed", n->store.swept)    \
    X(Store, reaped, COUNTER, IN_STATS, "records that expired",                \
      n->store.reaped)                                                         \
    X(Store, last_token, GAUGE, IN_STATS, "the newest token",                  \
      n->store.last_token)                                                     \
    X(Store, shared_cache_hits, COUNTER, IN_STATS,                             \
      "answers that store.cache had", n->store.shared_hits)                    \
    X(Store, shared_cache_misses, COUNTER, IN_STATS,                           \
      "answers that it did not have", n->store.shared_misses)                  \
    X(Store, shared_cache_failed, COUNTER, IN_STATS,                           \
      "times that it did not answer", n->store.shared_failed)                  \
    X(Store, now_ms, GAUGE, IN_STATS, "the store's clock", n->store.now_ms)

#define OUTBOX_ROWS                                                            \
    X(Outbox, keeps_jobs, GAUGE, NOT_IN_STATS, "0: this store keeps no jobs",  \
      n->server->opening.class->jobs != NULL)                                  \
    X(Outbox, courier, GAUGE, NOT_IN_STATS, "1: this daemon delivers",         \
      n->server->courier != NULL)                                              \
    X(Outbox, courier_only, GAUGE, NOT_IN_STATS, "1: it does nothing else",    \
      n->config->courier_only)                                                 \
    JOBS(uncertain, UNCERTAIN, FIRST, "calls that may have happened")          \
    JOBS(dead, DEAD, FIRST, "calls that were given up")                        \
    X(Outbox, oldest_uncertain_age_ms, GAUGE, FIRST,                           \
      "of what is uncertain, operations and jobs; 0: nothing is",              \
      age_of(n->store.oldest_uncertain_ms, &n->store))                         \
    JOBS(waiting, WAITING, IN_STATS, "calls that are to be made")              \
    JOBS(leased, LEASED, IN_STATS, "calls that a courier has in hand")         \
    X(Outbox, targets, GAUGE, NOT_IN_STATS, "in the configuration",            \
      n->config->targets.count)

#define ROWS                                                                   \
    SERVER_ROWS CLIENT_ROWS MEMORY_ROWS STATS_ROWS OTHER_ROWS CLAIM_ROWS       \
        BATCH_ROWS STORE_ROWS OUTBOX_ROWS

#define X(section, name, kind, place, help, value)                             \
    static uint64_t read_##name(const struct numbers *n)                       \
    {                                                                          \
        return value;                                                          \
    }
ROWS
#undef X

    static const struct number {
    const char *section;
    const char *name;
    enum kind kind;
    enum place place;
    const char *help;
    uint64_t (*read)(const struct numbers *numbers);
} table[] = {
#define X(section, name, kind, place, help, value)                             \
    {#section, #name, kind, place, help, read_##name},
    ROWS
#undef X
};

enum { COUNT = sizeof(table) / sizeof(table[0]) };

static void look(struct lk_server *server, struct numbers *numbers)
{
    *numbers = (struct numbers){
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

static enum lk_status write_server(const struct numbers *n, struct lk_buf *text)
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

static enum lk_status write_role(const struct numbers *n, struct lk_buf *text)
{
    return word(text, "role", "master");
}

static enum lk_status write_trouble(const struct numbers *n,
                                    struct lk_buf *text)
{
    return word(text, "trouble", n->store.failure);
}

static enum lk_status write_targets(const struct numbers *n,
                                    struct lk_buf *text)
{
    struct lk_targets_view *view = lk_targets_view_make(n->server);
    enum lk_status status = view ? lk_targets_view_info(view, text) : LK_NOMEM;

    lk_targets_view_free(view);
    return status;
}

static enum lk_status write_commands(const struct numbers *n,
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

/* In order; what is no number is written by a function, before the numbers. */
static const struct {
    const char *name;
    enum lk_status (*words)(const struct numbers *n, struct lk_buf *text);
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

static enum lk_status write_section(const struct numbers *n, size_t which,
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

enum lk_status lk_info_write(struct lk_server *server, struct lk_slice section,
                             struct lk_buf *text)
{
    struct numbers numbers;

    look(server, &numbers);
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (is_everything(section) || lk_arg_is(section, sections[i].name)) {
            W(write_section(&numbers, i, text));
        }
    }
    return LK_OK;
}

/* ---- STATS --------------------------------------------------------------- */

static enum lk_status write_name(struct lk_buf *out, const char *name)
{
    char hyphens[64];
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++) {
        hyphens[i] = name[i] == '_' ? '-' : name[i];
    }
    return lk_resp_bulk(out, (struct lk_slice){hyphens, len});
}

static enum lk_status write_numbers(const struct numbers *n, enum place place,
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

static enum lk_status write_stats(struct lk_server *server, int proto,
                                  struct lk_buf *out)
{
    struct lk_buf pairs = {0};
    struct numbers numbers;
    size_t count = 1;

    look(server, &numbers);
    enum lk_status status =
        lk_pair_bytes(&pairs, "trouble", latchkey_slice(numbers.store.failure));
    if (!status) {
        status = write_numbers(&numbers, FIRST, &pairs, &count);
    }
    if (!status) {
        status = write_numbers(&numbers, IN_STATS, &pairs, &count);
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
            &text, "%s: %s", table[i].kind == COUNTER ? "counter" : "gauge",
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

LK_ANSWER(stats)
{
    lk_conn_wrote(conn,
                  write_stats(conn->server, conn->proto, lk_conn_out(conn)));
}

LK_ANSWER(stats_explain)
{
    lk_conn_wrote(conn, explain_stats(conn->proto, lk_conn_out(conn)));
}

static const struct lk_command rows[] = {
    {.name = "STATS",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_VIEW,
     .answer = answer_stats,
     .usage = ""},
    {.name = "STATS EXPLAIN",
     .min_args = 2,
     .max_args = 2,
     .roles = LK_FOR_VIEW,
     .answer = answer_stats_explain,
     .usage = ""},
};

LK_COMMAND_GROUP(lk_number_commands, rows);
