/*
 * numbers_table.h - every number of the daemon, one row each: INFO, STATS,
 * STATS EXPLAIN and HEALTH read them here. docs/operations.md lists them all.
 *
 * X(section, name, kind, place, help, value): its section in INFO, its name
 * (with hyphens in STATS), how it is to be read, where STATS has it, what it
 * means, and how it is read from `n`, a struct lk_numbers.
 */
#ifndef LK_NUMBERS_TABLE_H
#define LK_NUMBERS_TABLE_H

/* With fewer, what an empty index takes says nothing about one operation. */
#define LK_ENOUGH_OPERATIONS 10000

#define CLAIMS(name, verdict, help)                                            \
    X(Claims, claims_##name, LK_COUNTER, LK_IN_STATS, help,                    \
      n->metrics->claims[LK_VERDICT_##verdict])

#define RECORDS(name, state, place, help)                                      \
    X(Store, records_##name, LK_GAUGE, place, help,                            \
      n->store.by_state[LK_STATE_##state])

#define JOBS(name, state, place, help)                                         \
    X(Outbox, jobs_##name, LK_GAUGE, place, help, n->store.jobs[LK_JOB_##state])

#define HISTOGRAM(section, name, unit, of, what)                               \
    X(section, name##_p50##unit, LK_GAUGE, LK_INFO_ONLY,                       \
      what ": half are below", lk_histogram_quantile(&(of), 0.5))              \
    X(section, name##_p99##unit, LK_GAUGE, LK_INFO_ONLY,                       \
      what ": 99 of 100 are below", lk_histogram_quantile(&(of), 0.99))        \
    X(section, name##_p999##unit, LK_GAUGE, LK_INFO_ONLY,                      \
      what ": 999 of 1000 are below", lk_histogram_quantile(&(of), 0.999))     \
    X(section, name##_max##unit, LK_GAUGE, LK_INFO_ONLY, what ": the largest", \
      (of).max)                                                                \
    X(section, name##_avg##unit, LK_GAUGE, LK_INFO_ONLY, what ": the mean",    \
      (of).count ? (of).sum / (of).count : 0)

#define SERVER_ROWS                                                            \
    X(Server, process_id, LK_GAUGE, LK_INFO_ONLY, "the daemon's process",      \
      (uint64_t)getpid())                                                      \
    X(Server, tcp_port, LK_GAUGE, LK_INFO_ONLY,                                \
      "where it listens; 0: nowhere", tcp_port(n->server))                     \
    X(Server, uptime_in_seconds, LK_GAUGE, LK_INFO_ONLY, "since the start",    \
      n->up_ms / 1000)                                                         \
    X(Server, uptime_in_days, LK_GAUGE, LK_INFO_ONLY, "the same in days",      \
      n->up_ms / 86400000)

#define CLIENT_ROWS                                                            \
    X(Clients, connected_clients, LK_GAUGE, LK_INFO_ONLY, "connections",       \
      n->server->conn_count)                                                   \
    X(Clients, maxclients, LK_GAUGE, LK_INFO_ONLY, "limits.connections",       \
      n->config->connections)                                                  \
    X(Clients, peak_clients, LK_GAUGE, LK_INFO_ONLY, "the most at once",       \
      n->server->peak_conns)                                                   \
    X(Clients, blocked_clients, LK_GAUGE, LK_INFO_ONLY,                        \
      "WAIT and AWAIT that are parked", n->server->waiters.count)              \
    X(Clients, closed_by_server, LK_COUNTER, LK_INFO_ONLY,                     \
      "connections that the daemon closed, as in the log", n->metrics->cut)    \
    X(Clients, auth_failed, LK_COUNTER, LK_INFO_ONLY,                          \
      "wrong user or password", n->metrics->auth_failed)                       \
    X(Clients, unauthenticated_clients, LK_GAUGE, LK_INFO_ONLY,                \
      "have not logged in yet, where a password is needed",                    \
      n->server->lists[LK_LIST_STRANGERS].count)

#define MEMORY_ROWS                                                            \
    X(Memory, used_memory, LK_GAUGE, LK_INFO_ONLY,                             \
      "resident bytes, all of it", resident_bytes())                           \
    X(Memory, maxmemory, LK_GAUGE, LK_INFO_ONLY, "for drivers: no such limit", \
      0)                                                                       \
    X(Memory, cache_bytes, LK_GAUGE, LK_INFO_ONLY, "responses in memory",      \
      n->server->cache.bytes)                                                  \
    X(Memory, cache_answers, LK_GAUGE, LK_INFO_ONLY, "how many these are",     \
      n->server->cache.count)                                                  \
    X(Memory, cache_max_bytes, LK_GAUGE, LK_INFO_ONLY, "limits.cache_bytes",   \
      n->server->cache.max_bytes)                                              \
    X(Memory, queue_bytes, LK_GAUGE, LK_INFO_ONLY, "commands in progress",     \
      n->server->queued_bytes)                                                 \
    X(Memory, client_bytes, LK_GAUGE, LK_INFO_ONLY,                            \
      "these, what is being received, and replies that wait",                  \
      n->server->held_bytes)

#define STATS_ROWS                                                             \
    X(Stats, total_connections_received, LK_COUNTER, LK_INFO_ONLY,             \
      "connections ever accepted", n->metrics->connections)                    \
    X(Stats, rejected_connections, LK_COUNTER, LK_INFO_ONLY,                   \
      "connections refused by limits.connections", n->metrics->refused)        \
    X(Stats, total_commands_processed, LK_COUNTER, LK_INFO_ONLY, "commands",   \
      n->metrics->commands)                                                    \
    X(Stats, total_net_input_bytes, LK_COUNTER, LK_INFO_ONLY, "bytes read",    \
      n->metrics->bytes_in)                                                    \
    X(Stats, total_net_output_bytes, LK_COUNTER, LK_INFO_ONLY,                 \
      "bytes written", n->metrics->bytes_out)                                  \
    X(Stats, error_replies, LK_COUNTER, LK_INFO_ONLY,                          \
      "replies that are errors", n->metrics->errors)                           \
    X(Stats, peeked, LK_COUNTER, LK_INFO_ONLY,                                 \
      "replies at once from memory, without the store", n->metrics->peeked)    \
    X(Stats, cache_hits, LK_COUNTER, LK_INFO_ONLY,                             \
      "responses for retries that were in the daemon's memory",                \
      n->server->cache.hits)                                                   \
    X(Stats, cache_misses, LK_COUNTER, LK_INFO_ONLY,                           \
      "responses for retries that were not", n->server->cache.misses)          \
    X(Stats, queued_ops, LK_GAUGE, LK_INFO_ONLY, "commands in progress",       \
      n->server->queued_ops)                                                   \
    X(Stats, queue_stalls, LK_COUNTER, LK_INFO_ONLY,                           \
      "a client was not read because the queue was full", n->metrics->stalls)  \
    X(Stats, waits, LK_COUNTER, LK_INFO_ONLY, "WAIT that waited",              \
      n->metrics->waits)                                                       \
    X(Stats, pushes, LK_COUNTER, LK_INFO_ONLY, "messages to AWAIT",            \
      n->metrics->pushes)

#define OTHER_ROWS                                                             \
    X(Persistence, loading, LK_GAUGE, LK_INFO_ONLY, "for drivers: never", 0)   \
    X(Replication, connected_slaves, LK_GAUGE, LK_INFO_ONLY,                   \
      "for drivers: there are none", 0)                                        \
    X(Chores, verify_running, LK_GAUGE, LK_INFO_ONLY, "1: a verify runs",      \
      runs(n->server, "VERIFY"))                                               \
    X(Chores, backup_running, LK_GAUGE, LK_INFO_ONLY, "1: a backup runs",      \
      runs(n->server, "BACKUP"))                                               \
    X(Chores, chore_done, LK_GAUGE, LK_INFO_ONLY, "how far it is",             \
      atomic_load(&n->server->long_work.done))                                 \
    X(Chores, chore_total, LK_GAUGE, LK_INFO_ONLY, "of how much",              \
      atomic_load(&n->server->long_work.total))

#define CLAIM_ROWS                                                             \
    CLAIMS(new, NEW, "claims that may run")                                    \
    CLAIMS(replay, REPLAY, "claims that got the stored response")              \
    CLAIMS(omitted, OMITTED, "claims of what ran, its response not stored")    \
    CLAIMS(inflight, INFLIGHT, "claims of what another client runs")           \
    CLAIMS(accepted, ACCEPTED, "claims of what the courier will run")          \
    CLAIMS(uncertain, UNCERTAIN, "claims of what is uncertain")                \
    CLAIMS(mismatch, MISMATCH, "claims of a key of another request")           \
    CLAIMS(limited, LIMITED, "claims over a limit")                            \
    CLAIMS(refused, REFUSED, "claims that nothing was begun for")              \
    X(Claims, claims_unavailable, LK_COUNTER, LK_IN_STATS,                     \
      "claims that could not be decided", n->metrics->claims_unavailable)

#define BATCH_ROWS                                                             \
    X(Batches, batches, LK_COUNTER, LK_INFO_ONLY, "batches of operations",     \
      n->batches.ops.count)                                                    \
    X(Batches, batch_ops, LK_COUNTER, LK_INFO_ONLY, "operations in them",      \
      n->batches.ops.sum)                                                      \
    HISTOGRAM(Batches, batch_size, , n->batches.ops,                           \
              "operations that shared one sync")                               \
    HISTOGRAM(Batches, batch, _us, n->batches.us,                              \
              "time of a batch with its sync")                                 \
    X(Batches, batch_waiting, LK_GAUGE, LK_INFO_ONLY,                          \
      "operations in the queue of the store", n->batches.waiting)              \
    HISTOGRAM(Latency, claim, _us, n->metrics->claim_us,                       \
              "time from a claim to its reply")

#define STORE_ROWS                                                             \
    X(Store, available, LK_GAUGE, LK_STATS_FIRST,                              \
      "1: the store decides; 0: `trouble` says why not", n->store.available)   \
    X(Store, clock_held, LK_GAUGE, LK_STATS_FIRST,                             \
      "1: an operator must accept the clock", n->store.clock_held)             \
    X(Store, hold_until_ms, LK_GAUGE, LK_STATS_FIRST,                          \
      "not 0: restored, nothing new starts until then",                        \
      n->store.hold_until_ms)                                                  \
    RECORDS(uncertain, UNCERTAIN, LK_STATS_FIRST,                              \
            "operations whose outcome is unknown")                             \
    X(Store, disk_free_bytes, LK_GAUGE, LK_STATS_FIRST,                        \
      "free in the file system of the embedded store; 0: on a server",         \
      atomic_load(&n->server->checkup.disk_free))                              \
    X(Store, records, LK_GAUGE, LK_IN_STATS,                                   \
      "operations that are stored, in any state", n->store.operations)         \
    RECORDS(accepted, ACCEPTED, LK_IN_STATS, "operations that a courier runs") \
    RECORDS(in_progress, IN_PROGRESS, LK_IN_STATS, "operations that run")      \
    RECORDS(completed, COMPLETED, LK_IN_STATS, "operations with a response")   \
    RECORDS(released, RELEASED, LK_IN_STATS,                                   \
            "operations without effect: they may run again")                   \
    X(Store, index_bytes, LK_GAUGE, LK_IN_STATS, "memory of the index",        \
      n->store.index_bytes)                                                    \
    X(Store, bytes_per_record, LK_GAUGE, LK_INFO_ONLY,                         \
      "of the index, from 10000 operations on; 0: fewer",                      \
      n->store.operations >= LK_ENOUGH_OPERATIONS                              \
          ? n->store.index_bytes / n->store.operations                         \
          : 0)                                                                 \
    X(Store, file_bytes, LK_GAUGE, LK_IN_STATS, "database and log",            \
      n->store.file_bytes)                                                     \
    X(Store, free_bytes, LK_GAUGE, LK_IN_STATS, "of these, reusable",          \
      n->store.free_bytes)                                                     \
    X(Store, dead_rows, LK_GAUGE, LK_IN_STATS,                                 \
      "expired, waiting for the reaper", n->store.dead_rows)                   \
    X(Store, store_batches, LK_COUNTER, LK_IN_STATS,                           \
      "batches that the store made durable", n->store.batches)                 \
    X(Store, store_batch_ops, LK_COUNTER, LK_IN_STATS, "operations in them",   \
      n->store.batch_ops)                                                      \
    X(Store, syncs_failed, LK_COUNTER, LK_IN_STATS,                            \
      "batches that failed, a full disk included", n->store.syncs_failed)      \
    X(Store, reopened, LK_COUNTER, LK_IN_STATS,                                \
      "the store was closed and built again, or connected again",              \
      n->store.reopened)                                                       \
    X(Store, checkpoints, LK_COUNTER, LK_IN_STATS, "checkpoints",              \
      n->store.checkpoints)                                                    \
    X(Store, swept, LK_COUNTER, LK_IN_STATS, "locks that lapsed",              \
      n->store.swept)                                                          \
    X(Store, reaped, LK_COUNTER, LK_IN_STATS, "operations that expired",       \
      n->store.reaped)                                                         \
    X(Store, last_token, LK_GAUGE, LK_IN_STATS, "the newest token",            \
      n->store.last_token)                                                     \
    X(Store, shared_cache_hits, LK_COUNTER, LK_IN_STATS,                       \
      "responses that store.cache had", n->store.shared_hits)                  \
    X(Store, shared_cache_misses, LK_COUNTER, LK_IN_STATS,                     \
      "responses that it did not have", n->store.shared_misses)                \
    X(Store, shared_cache_failed, LK_COUNTER, LK_IN_STATS,                     \
      "times that it did not answer", n->store.shared_failed)                  \
    X(Store, now_ms, LK_GAUGE, LK_IN_STATS, "the store's clock",               \
      n->store.now_ms)

#define OUTBOX_ROWS                                                            \
    X(Outbox, keeps_jobs, LK_GAUGE, LK_INFO_ONLY,                              \
      "0: this store keeps no jobs", n->server->opening.class->jobs != NULL)   \
    X(Outbox, courier, LK_GAUGE, LK_INFO_ONLY, "1: this daemon delivers",      \
      n->server->courier != NULL)                                              \
    X(Outbox, courier_only, LK_GAUGE, LK_INFO_ONLY, "1: it does nothing else", \
      n->config->courier_only)                                                 \
    JOBS(uncertain, UNCERTAIN, LK_STATS_FIRST, "calls that may have happened") \
    JOBS(dead, DEAD, LK_STATS_FIRST, "calls that were given up")               \
    X(Outbox, oldest_uncertain_age_ms, LK_GAUGE, LK_STATS_FIRST,               \
      "of what is uncertain, operations and jobs; 0: nothing is",              \
      age_of(n->store.oldest_uncertain_ms, &n->store))                         \
    JOBS(waiting, WAITING, LK_IN_STATS, "calls that are to be made")           \
    JOBS(leased, LEASED, LK_IN_STATS, "calls that a courier has leased")       \
    X(Outbox, targets, LK_GAUGE, LK_INFO_ONLY, "in the configuration",         \
      n->config->targets.count)

#define LK_NUMBER_ROWS                                                         \
    SERVER_ROWS CLIENT_ROWS MEMORY_ROWS STATS_ROWS OTHER_ROWS CLAIM_ROWS       \
        BATCH_ROWS STORE_ROWS OUTBOX_ROWS

#endif
