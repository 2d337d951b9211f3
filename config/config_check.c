/*
 * config_check.c - settings, targets and routes that make no sense together.
 *
 * Runs once after the file and the options were read. It reports every mistake,
 * not only the first, as a line in `errors`; a line in `warnings` does not keep
 * the daemon from starting. It also does what needs all settings at once:
 * password files are read, and defaults that depend on other settings are
 * filled in.
 */
#include "config/config_table.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What was found so far. Both kinds of settings write to it. */
struct config_report {
    const struct lk_config *config;
    struct lk_buf *errors;
    struct lk_buf *warnings;
    bool bad;
    enum lk_status status; /* LK_NOMEM sticks */
};

/* The line of the file that gave a setting; 0: it is not from the file. Users
 * share a row, so each has its own line. */
static unsigned line_of_setting(const struct lk_config *config,
                                const char *section, const char *name)
{
    const struct lk_setting *setting =
        lk_setting_find(latchkey_slice(section), latchkey_slice(name));

    for (size_t i = 0; strcmp(section, "users") == 0 && i < config->user_count;
         i++) {
        if (strcmp(config->users[i].name, name) == 0) {
            return config->users[i].line;
        }
    }
    return setting ? config->given[setting - lk_settings] : 0;
}

/* "latchkeyd.conf:12: store.lock: "; without the file if the setting is not
 * from there. */
static void begin_report_line(struct config_report *report, struct lk_buf *to,
                              const char *section, const char *name)
{
    const struct lk_config *config = report->config;
    unsigned line = line_of_setting(config, section, name);
    enum lk_status status = LK_OK;

    if (line > 0) {
        status = latchkey_buf_printf(to, "%s:%u: ", config->file, line);
    }
    if (status == LK_OK) {
        status = latchkey_buf_printf(to, "%s.%s: ", section, name);
    }
    if (status != LK_OK) {
        report->status = status;
    }
}

/* Ends the line that begin_report_line() began. */
static void end_report_line(struct config_report *report, struct lk_buf *to,
                            const char *first, const char *second)
{
    if (latchkey_buf_printf(to, "%s%s\n", first, second) != LK_OK) {
        report->status = LK_NOMEM;
    }
}

/* One whole line in `errors`; the configuration is then refused. */
static void add_error(struct config_report *report, const char *section,
                      const char *name, const char *text)
{
    report->bad = true;
    begin_report_line(report, report->errors, section, name);
    end_report_line(report, report->errors, text, "");
}

static void add_warning(struct config_report *report, const char *section,
                        const char *name, const char *text)
{
    begin_report_line(report, report->warnings, section, name);
    end_report_line(report, report->warnings, text, "");
}

/* An error unless `truth`. */
static void require_setting(struct config_report *report, bool truth,
                            const char *section, const char *name,
                            const char *text)
{
    if (!truth) {
        add_error(report, section, name, text);
    }
}

/* Times and limits that contradict each other. */
static void check_limits(struct config_report *report)
{
    const struct lk_config *config = report->config;

    require_setting(report, config->lock_ms <= config->max_lock_ms, "store",
                    "lock", "is longer than store.max_lock");
    require_setting(report, config->ttl_ms <= config->max_ttl_ms, "store",
                    "ttl", "is longer than store.max_ttl");
    require_setting(
        report, config->lock_ms < config->ttl_ms, "store", "lock",
        "must be shorter than store.ttl: a response is kept longer than a "
        "claim goes without a sign of life");
    require_setting(
        report, config->client_bytes / 4 >= config->command_bytes, "limits",
        "client_bytes",
        "is less than four times limits.command_bytes: few clients could "
        "send the largest command at once");
    require_setting(
        report, config->output_bytes >= config->command_bytes, "limits",
        "output_bytes",
        "is less than limits.command_bytes: the largest response that can "
        "be kept could not be replayed");
    require_setting(
        report, config->queue_bytes >= config->command_bytes, "limits",
        "queue_bytes",
        "is less than limits.command_bytes: the largest command could "
        "never be queued");
    require_setting(report, config->queue_ops >= config->batch_ops, "limits",
                    "queue_ops", "is less than limits.batch_ops");
    if (config->sweep_interval_ms > config->lock_ms) {
        add_warning(report, "store", "sweep_interval",
                    "is longer than store.lock: a lost holder is noticed late");
    }
}

/* The store's URL, and settings that only some stores have. */
static void check_store_settings(struct config_report *report)
{
    const struct lk_config *config = report->config;
    bool postgres = strncmp(config->store_url, "postgres", 8) == 0;
    bool redis = strncmp(config->store_url, "redis", 5) == 0;

    struct lk_store_config settings;
    const struct lk_store_class *class;
    struct lk_buf why = {0};

    /* Everything that a start would refuse before it asks a server. */
    lk_config_store(config, &settings);
    enum lk_status status =
        lk_store_check(config->store_url, &settings, &class, &why);
    if (status == LK_INVALID && latchkey_buf_add(&why, "", 1) == LK_OK) {
        add_error(report, "daemon", "store", why.data);
    } else if (status) {
        report->status = LK_NOMEM;
    }
    latchkey_buf_free(&why);
    require_setting(report, !config->cache_url || postgres, "store", "cache",
                    "is only for a store in PostgreSQL");
    require_setting(report, !config->store_pooler || postgres, "store",
                    "pooler", "is only for a store in PostgreSQL");
    require_setting(report, !config->wait_replicas || redis, "store",
                    "wait_replicas", "is only for a store in Redis");
    require_setting(
        report, !config->courier_only || postgres, "courier", "only",
        "needs a store in PostgreSQL: a file belongs to one daemon, and "
        "a Redis keeps no jobs");
    require_setting(
        report,
        !config->courier_only || config->courier_enabled != LK_COURIER_NO,
        "courier", "only", "and courier.enabled = no contradict each other");
    require_setting(report, !config->strict || !config->accept_loss, "store",
                    "strict", "and store.accept_loss contradict each other");
}

/* Reachable addresses without a password, and addresses that are given
 * twice. */
static void check_listeners(struct config_report *report)
{
    const struct lk_config *config = report->config;
    bool password = config->password || config->password_file;

    for (size_t i = 0; i < config->listen_count; i++) {
        const struct lk_listen *listen = &config->listen[i];

        if (!listen->loopback && !password) {
            report->bad = true;
            begin_report_line(report, report->errors, "daemon", "listen");
            end_report_line(
                report, report->errors, listen->text,
                " can be reached from other machines, so a password is "
                "needed; set auth.password_file, or listen on a unix "
                "socket or 127.0.0.1");
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(listen->text, config->listen[j].text) == 0) {
                report->bad = true;
                begin_report_line(report, report->errors, "daemon", "listen");
                end_report_line(report, report->errors, listen->text,
                                " is given twice");
            }
        }
        if (listen->path && (config->socket_mode & S_IWOTH) && !password) {
            add_warning(
                report, "daemon", "socket_mode",
                "every user of this machine may claim and complete; use 660 "
                "and a group, or set auth.password_file");
        }
    }
}

/*
 * Reads a password file for the setting that names it. *secret belongs to the
 * configuration; it stays NULL if the file cannot be used, and that is
 * reported.
 */
static void take_password_file(struct config_report *report,
                               const char *section, const char *name,
                               const char *path, char **secret)
{
    struct lk_buf why = {0};
    bool world_readable = false;
    enum lk_status status = lk_secret_read(path, secret, &world_readable, &why);

    if (status == LK_INVALID) {
        status = latchkey_buf_add(&why, "", 1);
        if (status == LK_OK) {
            add_error(report, section, name, why.data);
        }
    }
    if (status != LK_OK) {
        report->status = status;
    }
    if (world_readable) {
        add_warning(
            report, section, name,
            "every user of this machine can read the password file; chmod 640 "
            "and give it the daemon's group");
    }
    latchkey_buf_free(&why);
}

/* lk_url_mask() works on a copy: only its result is of interest here. */
static bool has_url_password(const char *url)
{
    char *copy = url ? strdup(url) : NULL;
    bool found = copy && lk_url_mask(copy);

    lk_secret_free(copy);
    return found;
}

/* Reads password files, and warns where others can read a password. */
static void check_passwords(struct config_report *report,
                            struct lk_config *config)
{
    bool inside = config->password != NULL ||
                  has_url_password(config->store_url) ||
                  has_url_password(config->cache_url);

    if (config->password && config->password_file) {
        add_error(report, "auth", "password_file",
                  "auth.password is given too; use one of them");
    } else if (config->password_file) {
        take_password_file(report, "auth", "password_file",
                           config->password_file, &config->password);
    }
    for (size_t i = 0; i < config->user_count; i++) {
        struct lk_user *user = &config->users[i];

        inside = inside || user->password;
        if (user->password_file && !user->password) {
            take_password_file(report, "users", user->name, user->password_file,
                               &user->password);
        }
    }
    if (config->user_count && !config->password && !config->password_file) {
        add_warning(
            report, "auth", "password_file",
            "is not set, so [users] keeps no one from data commands: every "
            "client that connects may claim, complete and read stored "
            "responses");
    }
    if (inside && config->file && config->file_open) {
        end_report_line(
            report, report->warnings, config->file,
            ": every user of this machine can read the passwords in it; "
            "chmod 640, or use password files");
    }
}

/* ---- targets and routes: where a setting was given ---------------------- */

/* The caller names a setting that exists, so the search always ends. */
static size_t row_of_named(const struct lk_named *named, const char *setting)
{
    const struct lk_setting *table =
        named->is_route ? lk_route_settings : lk_target_settings;
    size_t row = 0;

    while (strcmp(table[row].name, setting) != 0) {
        row++;
    }
    return row;
}

/* By the file or by an option; a default does not count. */
static bool is_given(const struct lk_named *named, const char *setting)
{
    return named->given[row_of_named(named, setting)].written != NULL;
}

/* The line that gave the setting; if none did, the first line of its section;
 * 0: the file has neither. */
static unsigned line_of_named(const struct lk_named *named, const char *setting)
{
    unsigned line = named->given[row_of_named(named, setting)].line;
    unsigned first = 0;

    for (size_t i = 0; i < LK_NAMED_SETTINGS; i++) {
        unsigned other = named->given[i].line;

        first = other && (!first || other < first) ? other : first;
    }
    return line || is_given(named, setting) ? line : first;
}

/* "latchkeyd.conf:12: target.pay.url: " and what is wrong. */
static void add_named_line(struct config_report *report, struct lk_buf *to,
                           const struct lk_named *named, const char *setting,
                           const char *text)
{
    const struct lk_config *config = report->config;
    unsigned line = line_of_named(named, setting);
    const char *name = named->is_route
                           ? config->targets.routes[named->index].name
                           : config->targets.targets[named->index].name;
    enum lk_status status =
        line ? latchkey_buf_printf(to, "%s:%u: ", config->file, line) : LK_OK;

    if (!status) {
        status = latchkey_buf_printf(to, "%s.%s.%s: %s\n",
                                     named->is_route ? "route" : "target", name,
                                     setting, text);
    }
    if (status) {
        report->status = status;
    }
}

/* An error unless `truth`; for a setting of a target or route. */
static void require_named(struct config_report *report, bool truth,
                          const struct lk_named *named, const char *setting,
                          const char *text)
{
    if (!truth) {
        report->bad = true;
        add_named_line(report, report->errors, named, setting, text);
    }
}

/* A warning unless `truth`. */
static void warn_named(struct config_report *report, bool truth,
                       const struct lk_named *named, const char *setting,
                       const char *text)
{
    if (!truth) {
        add_named_line(report, report->warnings, named, setting, text);
    }
}

/* ---- targets ------------------------------------------------------------- */

/* A loopback address, or "localhost": any other name depends on a name server.
 */
static bool is_local_target(const struct lk_target *target)
{
    const char *at = target->url + strlen("http://");
    size_t len = *at == '[' ? strcspn(at, "]") + 1 : strcspn(at, ":/");
    char host[sizeof("255.255.255.255")];
    struct in_addr address;

    if (target->socket) {
        return true;
    }
    if (len >= sizeof(host)) {
        return false;
    }
    memcpy(host, at, len);
    host[len] = '\0';
    return strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, &address) == 1 &&
            ntohl(address.s_addr) >> 24 == 127);
}

/* Plain HTTP is a warning unless the call stays on this machine. */
static void check_target_url(struct config_report *report,
                             const struct lk_named *named,
                             const struct lk_target *target)
{
    require_named(report, target->url, named, "url", "is missing");
    if (target->url && strncmp(target->url, "http://", 7) == 0) {
        warn_named(
            report, is_local_target(target), named, "url",
            "what is sent can be read and changed on its way; use https");
    }
}

/* The default of probe_settle is the timeout of a call. */
static void check_settle_time(struct config_report *report,
                              const struct lk_named *named,
                              struct lk_probe *probe, uint64_t timeout_ms)
{
    if (!is_given(named, "probe_settle")) {
        probe->settle_ms = timeout_ms;
    }
    require_named(report, probe->settle_ms >= timeout_ms, named, "probe_settle",
                  "is shorter than the target's timeout: a call could still be "
                  "in progress when its absence is taken for proof");
}

/* Both sets are 8 words of 64 bits, one bit for each status from 100 on. */
static bool statuses_overlap(const struct lk_statuses *a,
                             const struct lk_statuses *b)
{
    for (int i = 0; i < 8; i++) {
        if (a->bits[i] & b->bits[i]) {
            return true;
        }
    }
    return false;
}

static void check_probe_statuses(struct config_report *report,
                                 const struct lk_named *named,
                                 const struct lk_probe *probe)
{
    require_named(
        report, !statuses_overlap(&probe->happened, &probe->absent), named,
        "probe_absent",
        "names a status that probe_happened names too; one cannot prove "
        "both");
}

/* Where a list is expected, a 404 rather means a wrong path: it counts as
 * absent only if the configuration says so. */
static void fit_absent_statuses(const struct lk_named *named,
                                struct lk_probe *probe)
{
    if (probe->list && !is_given(named, "probe_absent")) {
        probe->absent = (struct lk_statuses){{0}};
    }
}

/* A default must not contradict a value that was given: it is lowered. */
static void fit_default_value(const struct lk_named *named, const char *setting,
                              uint64_t *value, uint64_t most)
{
    if (!is_given(named, setting) && *value > most) {
        *value = most;
    }
}

/* Sets defaults that depend on other settings of the target, then checks it. */
static void check_target_settings(struct config_report *report,
                                  const struct lk_named *named)
{
    struct lk_target *target = &report->config->targets.targets[named->index];

    check_target_url(report, named, target);
    if (!is_given(named, "burst")) {
        target->burst = target->rate;
    }
    fit_default_value(named, "connect_timeout", &target->connect_timeout_ms,
                      target->timeout_ms);
    fit_default_value(named, "backoff", &target->backoff_ms,
                      target->backoff_max_ms);
    require_named(report, !is_given(named, "burst") || target->rate, named,
                  "burst", "is only for a target with a rate");
    require_named(report, target->connect_timeout_ms <= target->timeout_ms,
                  named, "connect_timeout",
                  "is longer than the timeout of the whole call");
    require_named(report, target->backoff_ms <= target->backoff_max_ms, named,
                  "backoff", "is longer than backoff_max");
    require_named(report,
                  !statuses_overlap(&target->success, &target->temporary),
                  named, "temporary", "names a status that success names too");
    require_named(report, !statuses_overlap(&target->success, &target->safe),
                  named, "safe_statuses",
                  "names a status that success names too");
    require_named(report, !target->key_file == !target->cert_file, named,
                  target->key_file ? "key_file" : "cert_file",
                  "cert_file and key_file belong together");
    fit_absent_statuses(named, &target->probe);
    check_settle_time(report, named, &target->probe, target->timeout_ms);
    check_probe_statuses(report, named, &target->probe);
}

/* ---- routes -------------------------------------------------------------- */

/* A copy that the route owns; NULL for NULL. Out of memory is noted in
 * `report`. */
static char *copy_inherited(struct config_report *report, const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    if (text && !copy) {
        report->status = LK_NOMEM;
    }
    return copy;
}

/* What the route does not set is taken from the target, except the path: there
 * {key} is the key of a job, here the client's. */
static void inherit_probe(struct config_report *report,
                          const struct lk_named *named, struct lk_probe *probe,
                          const struct lk_probe *from)
{
    if (!is_given(named, "probe_happened")) {
        probe->happened = from->happened;
    }
    if (!is_given(named, "probe_absent")) {
        probe->absent = from->absent;
    }
    if (!is_given(named, "probe_list")) {
        probe->list = copy_inherited(report, from->list);
    } else {
        fit_absent_statuses(named, probe);
    }
    if (!is_given(named, "probe_interval")) {
        probe->interval_ms = from->interval_ms;
    }
}

/* After all targets: a route takes over what it does not set from its
 * target. */
static void check_route_settings(struct config_report *report,
                                 const struct lk_named *named)
{
    const struct lk_targets *targets = &report->config->targets;
    struct lk_route *route = &targets->routes[named->index];
    bool asks = route->target || route->probe.path || !route->rollback_target;
    const struct lk_target *target = lk_target_find(
        targets, latchkey_slice(asks ? route->target : route->rollback_target));

    require_named(report, route->scope, named, "scope", "is missing");
    require_named(report, route->target || !asks, named, "target",
                  "is missing");
    require_named(report, !route->target || target, named, "target",
                  "there is no target of that name");
    require_named(
        report,
        !route->rollback_target ||
            lk_target_find(targets, latchkey_slice(route->rollback_target)),
        named, "rollback", "there is no target of that name");
    if (!target) {
        return;
    }
    inherit_probe(report, named, &route->probe, &target->probe);
    require_named(report, route->probe.path || route->rollback_target, named,
                  "probe", "is missing, and there is no rollback");
    if (is_given(named, "probe_settle") || !target->probe.settle_ms) {
        check_settle_time(report, named, &route->probe, target->timeout_ms);
    } else {
        /* The holder may go on for a while after its lock has lapsed. */
        route->probe.settle_ms = target->probe.settle_ms;
        if (route->probe.settle_ms < report->config->lock_ms) {
            route->probe.settle_ms = report->config->lock_ms;
        }
    }
    check_probe_statuses(report, named, &route->probe);
}

/* Is a secret in the file itself, rather than in a file or variable that it
 * names? */
static bool has_written_secret(const struct lk_named *named)
{
    static const char *const words[] = {"header", "sign"};

    for (int i = 0; i < 2 && !named->is_route; i++) {
        size_t row = row_of_named(named, words[i]);
        if (named->given[row].source == LK_CONFIG_FILE &&
            named->given[row].written &&
            (i || strcasestr(named->given[row].written, "authorization:")) &&
            !lk_substitutes(named->given[row].written)) {
            return true;
        }
    }
    return false;
}

/* Targets first: a route takes over values that the check of its target may
 * have changed. *bad: `errors` has a line. */
enum lk_status lk_named_check(struct lk_config *config, struct lk_buf *errors,
                              struct lk_buf *warnings, bool *bad)
{
    struct config_report report = {
        .config = config, .errors = errors, .warnings = warnings};
    bool secret = false;

    for (size_t i = 0; i < config->named_count; i++) {
        if (!config->named[i].is_route) {
            check_target_settings(&report, &config->named[i]);
            secret = secret || has_written_secret(&config->named[i]);
        }
    }
    for (size_t i = 0; i < config->named_count; i++) {
        if (config->named[i].is_route) {
            check_route_settings(&report, &config->named[i]);
        }
    }
    if (secret && config->file_open &&
        latchkey_buf_printf(warnings,
                            "%s: every user of this machine can read the "
                            "secrets of targets in it; chmod 640, or use "
                            "${file:/PATH}\n",
                            config->file)) {
        report.status = LK_NOMEM;
    }
    *bad = report.bad;
    return report.status;
}

/* ---- all of it ----------------------------------------------------------- */

/* LK_INVALID: `errors` has at least one line. LK_NOMEM: the lines may be
 * incomplete. */
enum lk_status lk_config_check(struct lk_config *config, struct lk_buf *errors,
                               struct lk_buf *warnings)
{
    struct config_report report = {.config = config,
                                   .errors = errors,
                                   .warnings = warnings,
                                   .status = LK_OK};

    if (config->courier_only && config->listen_source == LK_CONFIG_DEFAULT) {
        lk_listen_clear(config); /* no client needs it */
    }
    check_limits(&report);
    check_store_settings(&report);
    check_listeners(&report);
    check_passwords(&report, config);
    bool bad = false;
    enum lk_status named = lk_named_check(config, errors, warnings, &bad);
    report.bad = report.bad || bad;
    report.status = report.status ? report.status : named;
    if (report.status != LK_OK) {
        return report.status;
    }
    return report.bad ? LK_INVALID : LK_OK;
}

/* "auto" runs a courier if there is something to deliver to. */
bool lk_config_has_courier(const struct lk_config *config)
{
    if (config->courier_only) {
        return true;
    }
    return config->courier_enabled == LK_COURIER_AUTO
               ? config->targets.count || config->gateway
               : config->courier_enabled == LK_COURIER_YES;
}
