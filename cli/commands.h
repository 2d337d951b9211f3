/* commands.h - the table of commands. */
#ifndef LK_COMMANDS_H
#define LK_COMMANDS_H

#include "cli/cli.h"

/*
 * A new command is one row here, and lk_run_ID and lk_manual_ID in the file
 * that its users would look in. Columns: id, name, usage, least and most words,
 * which options of every command it takes, summary.
 */
#define LK_NAME "(REFERENCE... | TENANT SCOPE KEY | PROVIDER-ID)"
enum { LK_NAMES_MAX = 1000 };
#define LK_COMMAND_MAP(X)                                                      \
    X(up, "up", "--upstream URL [--listen ADDRESS] [--tenant VALUE] ...", 0,   \
      0, LK_ALONE, "put Latchkey in front of an app, with one command")        \
    X(get, "get", LK_NAME "\n         [--headers] [--body]", 1, LK_NAMES_MAX,  \
      LK_CONNECTS, "show an operation, its history and its response")          \
    X(find, "find", "(REFERENCE... | TENANT REFERENCE | PROVIDER-ID)", 1,      \
      LK_NAMES_MAX, LK_CONNECTS,                                               \
      "show an operation and its history by its reference")                    \
    X(list, "list", "[--attention] [--state STATE] [--tenant TENANT] ...", 0,  \
      0, LK_CONNECTS, "list operations, and which of them need a person")      \
    X(release, "release", LK_NAME "\n         --why TEXT", 1, LK_NAMES_MAX,    \
      LK_CONNECTS, "state that nothing happened: a retry may run")             \
    X(resolve, "resolve",                                                      \
      "(" LK_NAME "\n"                                                         \
      "          (--completed STATUS | --released) |\n"                        \
      "         --job ID (--delivered | --again | --drop)) --why TEXT",        \
      0, LK_NAMES_MAX, LK_CONNECTS,                                            \
      "state the outcome of an operation or a job")                            \
    X(evict, "evict", LK_NAME "\n         --why TEXT", 1, LK_NAMES_MAX,        \
      LK_CONNECTS, "delete a stored response: a retry runs again")             \
    X(keep, "keep", LK_NAME "\n         --for DURATION --why TEXT", 1,         \
      LK_NAMES_MAX, LK_CONNECTS, "store an operation for longer")              \
    X(jobs, "jobs", "[show ID] [--state STATE] [--target NAME] [--check] ...", \
      0, 2, LK_CONNECTS, "list jobs: calls to services that operations left")  \
    X(dead, "dead",                                                            \
      "list | show ID | (retry | drop) (ID... | FILTER) --why TEXT", 1, 1000,  \
      LK_CONNECTS, "list jobs that were given up; retry or drop them")         \
    X(target, "target", "status [NAME] | (pause | resume) NAME --why TEXT", 1, \
      2, LK_CONNECTS, "show the state of targets; pause and resume them")      \
    X(reconcile, "reconcile",                                                  \
      "TARGET (--export FILE [--apply] ... | --probe)", 1, 1, LK_CONNECTS,     \
      "compare a provider's export with the jobs")                             \
    X(stats, "stats", "[--explain]", 0, 0, LK_CONNECTS,                        \
      "show the store's numbers")                                              \
    X(verify, "verify", "", 0, 0, LK_CONNECTS,                                 \
      "check everything that is stored")                                       \
    X(backup, "backup", "FILE", 1, 1, LK_CONNECTS,                             \
      "write a consistent copy of the store")                                  \
    X(audit, "audit", "[--who NAME] [--reference REFERENCE] [--follow] ...",   \
      0, 0, LK_CONNECTS, "show what operators did")                            \
    X(clients, "clients", "[kill ID --why TEXT]", 0, 2, LK_CONNECTS,           \
      "list connections to the daemon, and end them")                          \
    X(clock, "clock", "accept --why TEXT", 1, 1, LK_CONNECTS,                  \
      "confirm the clock after a jump")                                        \
    X(migrate, "migrate", "[URL] [--print]", 0, 1, LK_PRINTS,                  \
      "create or update what a store on a server needs")                       \
    X(check_store, "check-store", "[URL] [--config FILE] [--strict] ...", 0,   \
      1, LK_PRINTS, "show what a store guarantees with its settings")          \
    X(export, "export", "[--store URL] [--output FILE]", 0, 0, LK_CONNECTS,    \
      "write all operations and the audit log to a file")                      \
    X(import, "import", "--store URL [FILE]", 0, 1, LK_PRINTS,                 \
      "import the operations of an export")                                    \
    X(ping, "ping", "[--wait DURATION]", 0, 0, LK_CONNECTS,                    \
      "check whether the daemon replies")                                      \
    X(health, "health", "", 0, 0, LK_CONNECTS,                                 \
      "show whether anything needs a person")                                  \
    X(key, "key", "VALUE", 1, 1, LK_PRINTS, "read an Idempotency-Key header")  \
    X(tenant, "tenant", "VALUE --secret-file FILE", 1, 1, LK_PRINTS,           \
      "compute the hashed tenant of a value")                                  \
    X(fingerprint, "fingerprint", "[--method M] [--path P] ... < BODY", 0, 0,  \
      LK_PRINTS, "compute the fingerprint of a request")                       \
    X(profiles, "profiles", "", 0, 0, LK_PRINTS,                               \
      "list the servers that --profile can name")                              \
    X(version, "version", "", 0, 0, LK_ALONE, "show the version")              \
    X(help, "help", "[COMMAND]", 0, 1, LK_ALONE, "show help")

#define X(id, name, usage, least, most, reach, summary)                        \
    enum lk_exit lk_run_##id(struct lk_cli *cli);                              \
    extern const struct lk_manual lk_manual_##id;
LK_COMMAND_MAP(X)
#undef X

#endif
