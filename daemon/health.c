/*
 * health.c - HEALTH: is there anything that needs a person, and how urgently?
 *
 * The loop answers at once, from the numbers that the store has ready and from
 * the last look of a thread of its own at what may take time: the targets in
 * the store, and the disk. The reply says how old that look is.
 */
#include "daemon/outbox.h"
#include "daemon/reply.h"
#include "daemon/thread.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define MS_NS UINT64_C(1000000)

enum {
    LOOK_EVERY_MS = 10 * 1000,
    LOOK_SHARE = 50,      /* looking takes at most one in N moments */
    LOOK_FRESH_MS = 1000, /* an older one is made again for HEALTH */
    LOOK_OLD_MS = 60 * 1000,
    LATE_MS = 60 * 1000, /* a job that has been due for longer is late */
    TARGETS_MAX = 1000,  /* others are not looked at */
    REASONS_MAX = 16,
    TEXT_SIZE = 512,
    NAMES_SIZE = 128,
    AGE_SIZE = 64,
};

/* ---- Looking, on a thread of its own --------------------------------------
 */

/* One look in progress; its targets go to the checkup when it ends well. */
struct look {
    struct lk_checked_target *targets;
    size_t count;
    size_t cap;
    bool failed;
};

/* Copies one target of the store. False ends the list: TARGETS_MAX is reached,
 * or memory is short (`failed`). */
static bool add_target(void *context, const struct lk_target_summary *summary)
{
    struct look *look = context;

    if (look->count == look->cap) {
        size_t cap = look->cap ? 2 * look->cap : 16;
        struct lk_checked_target *targets =
            realloc(look->targets, cap * sizeof(*targets));
        look->failed = !targets;
        if (!targets) {
            return false;
        }
        look->targets = targets;
        look->cap = cap;
    }
    struct lk_checked_target *target = &look->targets[look->count++];
    *target = (struct lk_checked_target){
        .waiting = summary->jobs[LK_JOB_WAITING],
        .due_ms = summary->oldest_due_ms,
        .uncertain_ms = summary->oldest_uncertain_ms,
        .dead_ms = summary->oldest_dead_ms,
        .paused = summary->paused,
        .paused_ms = summary->paused_ms,
    };
    snprintf(target->name, sizeof(target->name), "%.*s", (int)summary->name.len,
             summary->name.data);
    return look->count < TARGETS_MAX;
}

/* Only an embedded store has a file here. */
static void look_at_disk(struct lk_server *server)
{
    struct lk_opening *opening = &server->opening;
    struct statvfs disk;

    if (!opening->class->check && !statvfs(opening->config.path, &disk)) {
        atomic_store(&server->checkup.disk_free,
                     (uint64_t)disk.f_bavail * disk.f_frsize);
        atomic_store(&server->checkup.disk_known, true);
    }
}

/* Returns how long the next look has to wait, in nanoseconds: ten seconds, or
 * longer for a store in which a look takes long. A look that fails leaves the
 * last good one in place, whose age then grows until HEALTH reports it. */
static uint64_t look_once(struct lk_server *server)
{
    struct lk_checkup *checkup = &server->checkup;
    struct lk_store *store = server->store;
    struct look look = {0};
    uint64_t started = uv_hrtime();
    enum lk_status status = LK_OK;

    look_at_disk(server);
    if (store->class->targets) {
        status = store->class->targets(store, add_target, &look);
    }
    uint64_t now = uv_hrtime();
    if (!status && !look.failed) {
        uv_mutex_lock(&checkup->mutex);
        struct lk_checked_target *before = checkup->targets;
        checkup->targets = look.targets;
        checkup->count = look.count;
        checkup->looked_ns = now;
        uv_mutex_unlock(&checkup->mutex);
        look.targets = before;
    }
    free(look.targets);
    uint64_t pause = (now - started) * LOOK_SHARE;
    return pause > LOOK_EVERY_MS * MS_NS ? pause : LOOK_EVERY_MS * MS_NS;
}

/* The thread: looks, then sleeps until the next look is due or HEALTH asks. */
static void run_checkup(void *context)
{
    struct lk_server *server = context;
    struct lk_checkup *checkup = &server->checkup;
    bool stop = false;

    while (!stop) {
        uint64_t next = uv_hrtime() + look_once(server);
        uv_mutex_lock(&checkup->mutex);
        uint64_t now;
        while (!checkup->stop && !checkup->wanted &&
               (now = uv_hrtime()) < next) {
            uv_cond_timedwait(&checkup->wake, &checkup->mutex, next - now);
        }
        checkup->wanted = false;
        stop = checkup->stop;
        uv_mutex_unlock(&checkup->mutex);
    }
}

/* Runs once the store is open; the thread ends before the store is closed. The
 * disk is looked at here too, so that the first HEALTH knows it. */
enum lk_status lk_checkup_start(struct lk_server *server)
{
    struct lk_checkup *checkup = &server->checkup;

    checkup->looked_ns = uv_hrtime(); /* from now on it is old */
    look_at_disk(server);
    if (uv_mutex_init(&checkup->mutex)) {
        return LK_NOMEM;
    }
    if (uv_cond_init(&checkup->wake)) {
        goto no_cond;
    }
    if (lk_thread_create(&checkup->thread, run_checkup, server)) {
        goto no_thread;
    }
    checkup->runs = true;
    return LK_OK;

no_thread:
    uv_cond_destroy(&checkup->wake);
no_cond:
    uv_mutex_destroy(&checkup->mutex);
    return LK_NOMEM;
}

void lk_checkup_stop(struct lk_server *server)
{
    struct lk_checkup *checkup = &server->checkup;

    if (!checkup->runs) {
        return;
    }
    uv_mutex_lock(&checkup->mutex);
    checkup->stop = true;
    uv_cond_signal(&checkup->wake);
    uv_mutex_unlock(&checkup->mutex);
    uv_thread_join(&checkup->thread);
    uv_cond_destroy(&checkup->wake);
    uv_mutex_destroy(&checkup->mutex);
    free(checkup->targets);
    checkup->runs = false;
}

/* ---- Reasons ------------------------------------------------------------- */

enum urgency {
    CANNOT_WORK = 1, /* nothing new is decided */
    ACT,             /* a person has to decide, or soon nothing works */
    LOOK,            /* works, and a person should know */
};

struct reason {
    const char *code;
    enum urgency urgency;
    uint64_t since_ms; /* by the store's clock; 0: not known */
    uint64_t count;
    char text[TEXT_SIZE];
};

/* Lives on the stack of one HEALTH. The reasons are in order of urgency, so the
 * first one decides the status. */
struct report {
    struct reason reasons[REASONS_MAX];
    size_t count;
    struct lk_numbers numbers;
    uint64_t age_ms; /* of the look */
};

/* ", the oldest for 5 minutes" of several, or nothing. */
static const char *lasting(const struct report *report, uint64_t count,
                           uint64_t since_ms, char text[AGE_SIZE])
{
    static const struct {
        uint64_t ms;
        const char *unit;
    } units[] = {{86400000, "day"}, {3600000, "hour"}, {60000, "minute"}};
    uint64_t now = lk_number(&report->numbers, LK_NUMBER_now_ms);
    uint64_t age = since_ms && now > since_ms ? now - since_ms : 0;
    uint64_t age_count = age / 1000;
    const char *unit = "second";

    for (size_t i = 0; i < 3; i++) {
        if (age >= 2 * units[i].ms) {
            age_count = age / units[i].ms;
            unit = units[i].unit;
            break;
        }
    }
    text[0] = '\0';
    if (since_ms) {
        snprintf(text, AGE_SIZE, ",%s for %" PRIu64 " %s%s",
                 count == 1 ? "" : " the oldest", age_count, unit,
                 age_count == 1 ? "" : "s");
    }
    return text;
}

/* Adds a reason; callers add the urgent ones first. Never NULL: what does not
 * fit goes to the last slot, which is not reported. */
static struct reason *add_reason(struct report *report, const char *code,
                                 enum urgency urgency, uint64_t count,
                                 const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static struct reason *add_reason(struct report *report, const char *code,
                                 enum urgency urgency, uint64_t count,
                                 const char *format, ...)
{
    struct reason *reason = &report->reasons[report->count];
    va_list args;

    if (report->count < REASONS_MAX - 1) {
        report->count++;
    }
    *reason = (struct reason){code, urgency, 0, count, ""};
    va_start(args, format);
    vsnprintf(reason->text, sizeof(reason->text), format, args);
    va_end(args);
    return reason;
}

/* `count` things are in a state that needs a person. */
static void add_count(struct report *report, const char *code, const char *what,
                      const char *state, uint64_t count, uint64_t since_ms,
                      const char *cure)
{
    char age[AGE_SIZE];

    if (count) {
        add_reason(report, code, ACT, count, "%" PRIu64 " %s%s %s %s%s: %s",
                   count, what, count == 1 ? "" : "s",
                   count == 1 ? "is" : "are", state,
                   lasting(report, count, since_ms, age), cure)
            ->since_ms = since_ms;
    }
}

/* Targets that have something in common. */
struct group {
    uint64_t count;
    uint64_t since_ms; /* the earliest; 0: none */
    uint64_t jobs;
    char names[NAMES_SIZE];
};

/* Adds a target. Names that do not fit are cut; the count is always right. */
static void join_group(struct group *group, const char *name, uint64_t since_ms)
{
    size_t len = strlen(group->names);

    snprintf(group->names + len, sizeof(group->names) - len, "%s%s",
             group->count ? ", " : "", name);
    group->count++;
    if (since_ms && (!group->since_ms || since_ms < group->since_ms)) {
        group->since_ms = since_ms;
    }
}

struct circuits {
    struct lk_checkup *checkup;
    struct group open;
};

/* Called for each target that this daemon's courier runs. One with an open
 * circuit is marked `broken`, so that its jobs do not count as late too. */
static bool add_circuit(void *context, const struct lk_target_status *status)
{
    struct circuits *circuits = context;
    char name[LK_TARGET_NAME_MAX + 1];

    if (status->circuit && strcmp(status->circuit, "closed") != 0) {
        snprintf(name, sizeof(name), "%.*s", (int)status->name.len,
                 status->name.data);
        join_group(&circuits->open, name, 0);
        for (size_t i = 0; i < circuits->checkup->count; i++) {
            struct lk_checked_target *target = &circuits->checkup->targets[i];
            target->broken = target->broken || !strcmp(target->name, name);
        }
    }
    return true;
}

/* One reason for all targets of a group, or none if the group is empty; also
 * the next two functions. */
static void add_open(struct report *report, const struct group *open)
{
    if (open->count) {
        add_reason(report, "circuit-open", LOOK, open->count,
                   "calls to %" PRIu64 " target%s fail, so that they are left "
                   "alone for a while (%s): latchkey target status",
                   open->count, open->count == 1 ? "" : "s", open->names);
    }
}

static void add_late(struct report *report, const struct group *late)
{
    char age[AGE_SIZE];

    if (late->count) {
        add_reason(report, "jobs-late", ACT, late->jobs,
                   "%" PRIu64 " job%s that should be called (%s)%s: start a "
                   "courier that knows the target, or see why it is slow",
                   late->jobs, late->jobs == 1 ? " waits" : "s wait",
                   late->names,
                   lasting(report, late->jobs, late->since_ms, age))
            ->since_ms = late->since_ms;
    }
}

static void add_paused(struct report *report, const struct group *paused)
{
    char age[AGE_SIZE];

    if (paused->count) {
        add_reason(report, "targets-paused", LOOK, paused->count,
                   "%" PRIu64 " target%s paused (%s)%s: latchkey target "
                   "resume NAME",
                   paused->count, paused->count == 1 ? " is" : "s are",
                   paused->names,
                   lasting(report, paused->count, paused->since_ms, age))
            ->since_ms = paused->since_ms;
    }
}

static void earliest(uint64_t *since_ms, uint64_t other_ms)
{
    if (other_ms && (!*since_ms || other_ms < *since_ms)) {
        *since_ms = other_ms;
    }
}

/* The reasons about jobs and targets, from the last look and this daemon's
 * courier. A paused or broken target has no late jobs: its jobs wait on
 * purpose. The caller holds the checkup's mutex. */
static void add_jobs(struct report *report, struct lk_server *server)
{
    struct lk_checkup *checkup = &server->checkup;
    const struct lk_numbers *numbers = &report->numbers;
    uint64_t now = lk_number(numbers, LK_NUMBER_now_ms);
    struct circuits circuits = {.checkup = checkup};
    struct group late = {0}, paused = {0};
    uint64_t uncertain_ms = 0, dead_ms = 0;

    for (size_t i = 0; i < checkup->count; i++) {
        checkup->targets[i].broken = false;
    }
    if (server->courier) {
        server->outbox_class->status(server->courier, add_circuit, &circuits);
    }
    for (size_t i = 0; i < checkup->count; i++) {
        const struct lk_checked_target *target = &checkup->targets[i];
        earliest(&uncertain_ms, target->uncertain_ms);
        earliest(&dead_ms, target->dead_ms);
        if (target->paused) {
            join_group(&paused, target->name, target->paused_ms);
        } else if (target->due_ms && !target->broken &&
                   now > target->due_ms + LATE_MS) {
            join_group(&late, target->name, target->due_ms);
            late.jobs += target->waiting;
        }
    }
    add_count(report, "jobs-uncertain", "job", "uncertain",
              lk_number(numbers, LK_NUMBER_jobs_uncertain), uncertain_ms,
              "latchkey jobs --state uncertain");
    add_count(report, "jobs-dead", "job", "dead",
              lk_number(numbers, LK_NUMBER_jobs_dead), dead_ms,
              "latchkey dead list");
    add_late(report, &late);
    add_open(report, &circuits.open);
    add_paused(report, &paused);
}

/* The reasons about the store and the daemon itself. What makes all work
 * impossible comes first. */
static void add_store(struct report *report, struct lk_server *server)
{
    const struct lk_numbers *numbers = &report->numbers;
    const char *failure = numbers->store.failure;
    uint64_t free_bytes = lk_number(numbers, LK_NUMBER_disk_free_bytes);
    uint64_t until_ms = lk_number(numbers, LK_NUMBER_hold_until_ms);
    uint64_t now = lk_number(numbers, LK_NUMBER_now_ms);
    uint64_t least = server->config.disk_free;

    if (!lk_number(numbers, LK_NUMBER_available) || *failure) {
        add_reason(report, "store-unavailable", CANNOT_WORK, 0,
                   "the store cannot decide: %s",
                   *failure ? failure : "it does not say why");
    }
    if (server->stop_by_ms) {
        add_reason(report, "stopping", CANNOT_WORK, 0,
                   "the daemon is shutting down");
    }
    if (lk_number(numbers, LK_NUMBER_clock_held)) {
        add_reason(report, "clock-held", ACT, 0,
                   "the wall clock is implausibly far from the time last "
                   "stored, and nothing expires: set it right, then latchkey "
                   "clock accept");
    }
    if (atomic_load(&server->checkup.disk_known) && free_bytes < least) {
        add_reason(report, "disk-low", ACT, free_bytes >> 20,
                   "%" PRIu64 " MiB are free on the disk of the store, less "
                   "than limits.disk_free (%" PRIu64 " MiB): make room before "
                   "claims are refused",
                   free_bytes >> 20, least >> 20);
    }
    if (until_ms) {
        add_reason(report, "restored", ACT, (until_ms - now) / 1000,
                   "the store was restored from a copy, and nothing new starts "
                   "for %" PRIu64 " seconds",
                   (until_ms - now) / 1000);
    }
    if (server->store && report->age_ms > LOOK_OLD_MS) {
        add_reason(report, "store-silent", ACT, report->age_ms / 1000,
                   "the store has not been read for %" PRIu64 " seconds, and "
                   "what is said of jobs is as old",
                   report->age_ms / 1000);
    }
}

/* A promise may become less while the daemon runs. */
static void add_promise(struct report *report, struct lk_server *server)
{
    char promise[LK_PROMISE_SIZE];

    if (server->store) {
        lk_store_promise(server->store, promise);
        if (strcmp(promise, server->store->promise) != 0) {
            add_reason(report, "promise-changed", LOOK, 0,
                       "the store does not promise what it did at the start; "
                       "now %s",
                       promise);
        }
    }
}

/* Fills in the report. A look holds the mutex only to swap its result in, so
 * the loop does not wait for the store here. A look that is not fresh starts
 * the next one, which a later HEALTH sees. */
static void examine(struct lk_server *server, struct report *report)
{
    struct lk_checkup *checkup = &server->checkup;

    *report = (struct report){0};
    lk_numbers_take(server, &report->numbers);
    if (!checkup->runs) {
        add_store(report, server);
        return;
    }
    uv_mutex_lock(&checkup->mutex);
    report->age_ms = (uv_hrtime() - checkup->looked_ns) / MS_NS;
    if (report->age_ms > LOOK_FRESH_MS) {
        checkup->wanted = true;
        uv_cond_signal(&checkup->wake);
    }
    add_store(report, server);
    add_count(report, "operations-uncertain", "operation", "uncertain",
              lk_number(&report->numbers, LK_NUMBER_records_uncertain),
              report->numbers.store.oldest_operation_ms,
              "latchkey list --state uncertain");
    add_jobs(report, server);
    uv_mutex_unlock(&checkup->mutex);
    add_promise(report, server);
}

/* ---- The reply ----------------------------------------------------------- */

/* "unavailable" only if the most urgent reason keeps the daemon from
 * deciding. */
static const char *status_word(const struct report *report)
{
    if (!report->count) {
        return "ok";
    }
    return report->reasons[0].urgency == CANNOT_WORK ? "unavailable"
                                                     : "attention";
}

static enum lk_status write_summary(struct lk_buf *out,
                                    const struct report *report)
{
    char text[TEXT_SIZE + 128];
    char more[64] = "";
    uint64_t operations = lk_number(&report->numbers, LK_NUMBER_records);

    if (report->count > 1) {
        snprintf(more, sizeof(more), " (and %zu more)", report->count - 1);
    }
    if (report->count) {
        snprintf(text, sizeof(text), "%s%s", report->reasons[0].text, more);
    } else {
        snprintf(text, sizeof(text),
                 "%" PRIu64 " operation%s stored, and nothing needs a person",
                 operations, operations == 1 ? " is" : "s are");
    }
    return lk_pair_bytes(out, "summary", latchkey_slice(text));
}

static enum lk_status write_reason(struct lk_buf *out, int proto,
                                   const struct reason *reason)
{
    W(lk_resp_map(out, proto, 5));
    W(lk_pair_bytes(out, "code", latchkey_slice(reason->code)));
    W(lk_pair_number(out, "urgency", reason->urgency));
    W(lk_pair_bytes(out, "text", latchkey_slice(reason->text)));
    W(lk_pair_number(out, "since-ms", reason->since_ms));
    return lk_pair_number(out, "count", reason->count);
}

static enum lk_status write_health(struct lk_server *server, int proto,
                                   struct lk_buf *out)
{
    struct report report;

    examine(server, &report);
    W(lk_resp_map(out, proto, 4));
    W(lk_pair_bytes(out, "status", latchkey_slice(status_word(&report))));
    W(write_summary(out, &report));
    W(lk_pair_number(out, "age-ms", report.age_ms));
    W(lk_resp_bulk(out, LK_SLICE("reasons")));
    W(lk_resp_array(out, report.count));
    for (size_t i = 0; i < report.count; i++) {
        W(write_reason(out, proto, &report.reasons[i]));
    }
    return LK_OK;
}

LK_REPLY_HERE(health)
{
    lk_conn_wrote(conn,
                  write_health(conn->server, conn->proto, lk_conn_out(conn)));
}

static const struct lk_command rows[] = {
    {.name = "HEALTH",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_ALL,
     .reply_here = reply_health,
     .usage = ""},
};

LK_COMMAND_GROUP(lk_health_commands, rows);
