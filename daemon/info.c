/* info.c - the text of INFO, in sections as Redis has them. */
#include "daemon/args.h"
#include "daemon/batcher.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* With fewer, what an empty index takes says nothing about one record. */
enum { ENOUGH_RECORDS = 10000 };

/* The version of the protocol that drivers look for, not of Latchkey. */
#define REDIS_VERSION "7.0.0"

/* A failed line is remembered; the caller looks once, at the end. */
struct info {
    struct lk_server *server;
    struct lk_buf *text;
    enum lk_status status;
};

static void line(struct info *info, const char *name, uint64_t number)
{
    if (!info->status) {
        info->status =
            latchkey_buf_printf(info->text, "%s:%" PRIu64 "\r\n", name, number);
    }
}

static void word(struct info *info, const char *name, const char *value)
{
    if (!info->status) {
        info->status =
            latchkey_buf_printf(info->text, "%s:%s\r\n", name, value);
    }
}

static void server_section(struct info *info)
{
    struct lk_server *server = info->server;
    uint64_t up = uv_now(&server->loop) - server->started_ms;
    unsigned port = 0;
    char promise[LK_PROMISE_SIZE] = "";

    for (size_t i = 0; i < server->listener_count && !port; i++) {
        port = server->listeners[i].port;
    }
    if (server->store) {
        lk_store_promise(server->store, promise);
    }
    word(info, "redis_version", REDIS_VERSION);
    word(info, "redis_mode", "standalone");
    word(info, "latchkey_version", LATCHKEY_VERSION);
    line(info, "process_id", (uint64_t)getpid());
    line(info, "tcp_port", port);
    line(info, "uptime_in_seconds", up / 1000);
    line(info, "uptime_in_days", up / 86400000);
    word(info, "store", server->opening.class->scheme);
    word(info, "store_promise", promise);
}

static void clients_section(struct info *info)
{
    struct lk_server *server = info->server;

    line(info, "connected_clients", server->conn_count);
    line(info, "maxclients", server->config.connections);
    line(info, "peak_clients", server->peak_conns);
    line(info, "blocked_clients", server->waiters.count);
    line(info, "refused_clients", server->metrics.refused);
    line(info, "closed_by_server", server->metrics.cut);
    line(info, "auth_failed", server->metrics.auth_failed);
    line(info, "unauthenticated_clients",
         server->lists[LK_LIST_STRANGERS].count);
}

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

static void memory_section(struct info *info)
{
    struct lk_server *server = info->server;
    uint64_t resident = resident_bytes();

    line(info, "used_memory", resident);
    line(info, "used_memory_rss", resident);
    line(info, "maxmemory", 0);
    line(info, "cache_bytes", server->cache.bytes);
    line(info, "cache_answers", server->cache.count);
    line(info, "cache_max_bytes", server->cache.max_bytes);
    line(info, "queue_bytes", server->queued_bytes);
    line(info, "client_bytes", server->held_bytes);
}

static void persistence_section(struct info *info)
{
    line(info, "loading", 0);
}

static void stats_section(struct info *info)
{
    const struct lk_metrics *metrics = &info->server->metrics;

    line(info, "total_connections_received", metrics->connections);
    line(info, "total_commands_processed", metrics->commands);
    line(info, "total_net_input_bytes", metrics->bytes_in);
    line(info, "total_net_output_bytes", metrics->bytes_out);
    line(info, "rejected_connections", metrics->refused);
    line(info, "error_replies", metrics->errors);
    line(info, "peeked", metrics->peeked);
    line(info, "cache_hits", info->server->cache.hits);
    line(info, "cache_misses", info->server->cache.misses);
    line(info, "queued_ops", info->server->queued_ops);
    line(info, "queue_stalls", metrics->stalls);
    line(info, "waits", metrics->waits);
    line(info, "pushes", metrics->pushes);
}

static void replication_section(struct info *info)
{
    word(info, "role", "master");
    line(info, "connected_slaves", 0);
}

static void claims_section(struct info *info)
{
    const struct lk_metrics *metrics = &info->server->metrics;

    line(info, "claims_new", metrics->claims[LK_VERDICT_NEW]);
    line(info, "claims_replay", metrics->claims[LK_VERDICT_REPLAY]);
    line(info, "claims_omitted", metrics->claims[LK_VERDICT_OMITTED]);
    line(info, "claims_inflight", metrics->claims[LK_VERDICT_INFLIGHT]);
    line(info, "claims_accepted", metrics->claims[LK_VERDICT_ACCEPTED]);
    line(info, "claims_uncertain", metrics->claims[LK_VERDICT_UNCERTAIN]);
    line(info, "claims_mismatch", metrics->claims[LK_VERDICT_MISMATCH]);
    line(info, "claims_limited", metrics->claims[LK_VERDICT_LIMITED]);
    line(info, "claims_refused", metrics->claims[LK_VERDICT_REFUSED]);
    line(info, "claims_unavailable", metrics->claims_unavailable);
}

static void histogram(struct info *info, const char *name, const char *unit,
                      const struct lk_histogram *values)
{
    static const struct {
        const char *name;
        double share;
    } shares[] = {{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
    char label[64];

    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        snprintf(label, sizeof(label), "%s_%s%s", name, shares[i].name, unit);
        line(info, label, lk_histogram_quantile(values, shares[i].share));
    }
    snprintf(label, sizeof(label), "%s_max%s", name, unit);
    line(info, label, values->max);
    snprintf(label, sizeof(label), "%s_avg%s", name, unit);
    line(info, label, values->count ? values->sum / values->count : 0);
}

static void batches_section(struct info *info)
{
    struct lk_batcher_stats stats = {0};

    if (info->server->batcher) {
        lk_batcher_stats(info->server->batcher, &stats);
    }
    line(info, "batches", stats.ops.count);
    line(info, "batch_ops", stats.ops.sum);
    histogram(info, "batch_size", "", &stats.ops);
    histogram(info, "batch", "_us", &stats.us);
    line(info, "batch_waiting", stats.waiting);
}

static void latency_section(struct info *info)
{
    histogram(info, "claim", "_us", &info->server->metrics.claim_us);
}

static void store_section(struct info *info)
{
    struct lk_store_stats stats;
    char label[64];

    lk_server_store_stats(info->server, &stats);
    line(info, "available", stats.available);
    word(info, "trouble", stats.trouble);
    line(info, "records", stats.records);
    for (int state = LK_STATE_ACCEPTED; state <= LK_STATE_RELEASED; state++) {
        snprintf(label, sizeof(label), "records_%s",
                 lk_state_word((enum lk_state)state));
        line(info, label, stats.by_state[state]);
    }
    line(info, "index_bytes", stats.index_bytes);
    if (stats.records >= ENOUGH_RECORDS) {
        line(info, "bytes_per_record", stats.index_bytes / stats.records);
    }
    line(info, "file_bytes", stats.file_bytes);
    line(info, "free_bytes", stats.free_bytes);
    line(info, "dead_rows", stats.dead_rows);
    line(info, "store_batches", stats.batches);
    line(info, "store_batch_ops", stats.batch_ops);
    line(info, "syncs_failed", stats.syncs_failed);
    line(info, "reopened", stats.reopened);
    line(info, "checkpoints", stats.checkpoints);
    line(info, "swept", stats.swept);
    line(info, "reaped", stats.reaped);
    line(info, "last_token", stats.last_token);
    line(info, "shared_cache_hits", stats.shared_hits);
    line(info, "shared_cache_misses", stats.shared_misses);
    line(info, "shared_cache_failed", stats.shared_failed);
    line(info, "now_ms", stats.now_ms);
    line(info, "clock_held", stats.clock_held);
    line(info, "hold_until_ms", stats.hold_until_ms);
}

/* Since when something waits for proof or for a person, told as its age. */
static uint64_t age_of(uint64_t since_ms, const struct lk_store_stats *stats)
{
    return since_ms && stats->now_ms > since_ms ? stats->now_ms - since_ms : 0;
}

static void outbox_section(struct info *info)
{
    struct lk_server *server = info->server;
    struct lk_store_stats stats;
    struct lk_targets_view *view = lk_targets_view_make(server);
    char label[64];

    lk_server_store_stats(server, &stats);
    line(info, "keeps_jobs", server->opening.class->jobs != NULL);
    line(info, "courier", server->courier != NULL);
    line(info, "courier_only", server->config.courier_only);
    for (int state = 0; state < LK_JOB_DELIVERED; state++) {
        snprintf(label, sizeof(label), "jobs_%s",
                 lk_job_state_word((enum lk_job_state)state));
        line(info, label, stats.jobs[state]);
    }
    line(info, "oldest_uncertain_age_ms",
         age_of(stats.oldest_uncertain_ms, &stats));
    line(info, "targets", server->config.targets.count);
    if (!info->status) {
        info->status = view ? lk_targets_view_info(view, info->text) : LK_NOMEM;
    }
    lk_targets_view_free(view);
}

static void chores_section(struct info *info)
{
    struct lk_chore *chore = &info->server->chore;
    enum lk_task_kind kind =
        chore->task ? chore->task->demand.kind : LK_TASK_TEXT;

    line(info, "verify_running", kind == LK_TASK_VERIFY);
    line(info, "backup_running", kind == LK_TASK_BACKUP);
    line(info, "chore_done", atomic_load(&chore->done));
    line(info, "chore_total", atomic_load(&chore->total));
}

static void commandstats_section(struct info *info)
{
    const struct lk_metrics *metrics = &info->server->metrics;
    const struct lk_command *command;

    for (size_t i = 0; (command = lk_command_row(i)) && !info->status; i++) {
        char label[32] = "cmdstat_";
        char *at = label + strlen(label);
        if (!metrics->by_command[i]) {
            continue;
        }
        for (const char *from = command->name; *from; from++) {
            *at++ = (char)(*from | 0x20);
        }
        info->status =
            latchkey_buf_printf(info->text, "%s:calls=%" PRIu64 "\r\n", label,
                                metrics->by_command[i]);
    }
}

static const struct {
    const char *name;
    void (*write)(struct info *info);
} sections[] = {
    {"Server", server_section},
    {"Clients", clients_section},
    {"Memory", memory_section},
    {"Persistence", persistence_section},
    {"Stats", stats_section},
    {"Replication", replication_section},
    {"Claims", claims_section},
    {"Batches", batches_section},
    {"Latency", latency_section},
    {"Store", store_section},
    {"Outbox", outbox_section},
    {"Chores", chores_section},
    {"Commandstats", commandstats_section},
};

static bool is_everything(struct lk_slice section)
{
    return section.len == 0 || lk_arg_is(section, "all") ||
           lk_arg_is(section, "default") || lk_arg_is(section, "everything");
}

enum lk_status lk_info_write(struct lk_server *server, struct lk_slice section,
                             struct lk_buf *text)
{
    struct info info = {server, text, LK_OK};

    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++) {
        if (!is_everything(section) && !lk_arg_is(section, sections[i].name)) {
            continue;
        }
        if (text->len && !info.status) {
            info.status = latchkey_buf_add_text(text, "\r\n");
        }
        if (!info.status) {
            info.status =
                latchkey_buf_printf(text, "# %s\r\n", sections[i].name);
        }
        sections[i].write(&info);
    }
    return info.status;
}
