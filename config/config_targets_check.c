/* config_targets_check.c - targets and routes that make no sense as they are.
 */
#include "config/config_table.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

struct report {
    struct lk_config *config;
    struct lk_buf *errors;
    struct lk_buf *warnings;
    bool bad;
    enum lk_status status; /* LK_NOMEM sticks */
};

static size_t row_of(const struct lk_named *named, const char *setting)
{
    const struct lk_setting *table =
        named->is_route ? lk_route_settings : lk_target_settings;
    size_t row = 0;

    while (strcmp(table[row].name, setting) != 0) {
        row++;
    }
    return row;
}

static bool is_given(const struct lk_named *named, const char *setting)
{
    return named->given[row_of(named, setting)].written != NULL;
}

/* The line that gave the setting; where none did, the first of its section; 0:
 * the file has neither. */
static unsigned line_of(const struct lk_named *named, const char *setting)
{
    unsigned line = named->given[row_of(named, setting)].line;
    unsigned first = 0;

    for (size_t i = 0; i < LK_NAMED_SETTINGS; i++) {
        unsigned other = named->given[i].line;

        first = other && (!first || other < first) ? other : first;
    }
    return line || is_given(named, setting) ? line : first;
}

/* "latchkeyd.conf:12: target.pay.url: " and what is wrong. */
static void say(struct report *report, struct lk_buf *to,
                const struct lk_named *named, const char *setting,
                const char *text)
{
    const struct lk_config *config = report->config;
    unsigned line = line_of(named, setting);
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

static void require(struct report *report, bool truth,
                    const struct lk_named *named, const char *setting,
                    const char *text)
{
    if (!truth) {
        report->bad = true;
        say(report, report->errors, named, setting, text);
    }
}

static void warn(struct report *report, bool truth,
                 const struct lk_named *named, const char *setting,
                 const char *text)
{
    if (!truth) {
        say(report, report->warnings, named, setting, text);
    }
}

/* ---- Targets ------------------------------------------------------------- */

/* An address, or the one name that is always this machine's: any other name is
 * what a name server makes of it. */
static bool is_local(const struct lk_target *target)
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

static void check_url(struct report *report, const struct lk_named *named,
                      const struct lk_target *target)
{
    require(report, target->url, named, "url", "is missing");
    if (target->url && strncmp(target->url, "http://", 7) == 0) {
        warn(report, is_local(target), named, "url",
             "what is sent can be read and changed on its way; use https");
    }
}

static void check_settle(struct report *report, const struct lk_named *named,
                         struct lk_probe *probe, uint64_t timeout_ms)
{
    if (!is_given(named, "probe_settle")) {
        probe->settle_ms = timeout_ms;
    }
    require(report, probe->settle_ms >= timeout_ms, named, "probe_settle",
            "is shorter than the target's timeout: a call could still be "
            "under way when its absence is taken for proof");
}

static bool have_common(const struct lk_statuses *a,
                        const struct lk_statuses *b)
{
    for (int i = 0; i < 8; i++) {
        if (a->bits[i] & b->bits[i]) {
            return true;
        }
    }
    return false;
}

static void check_probe(struct report *report, const struct lk_named *named,
                        const struct lk_probe *probe)
{
    require(report, !have_common(&probe->happened, &probe->absent), named,
            "probe_absent",
            "names a status that probe_happened names too; one cannot prove "
            "both");
}

/* Where a list is expected, a 404 is rather a wrong path than an answer: it
 * counts only if somebody wrote so. */
static void fit_absent(const struct lk_named *named, struct lk_probe *probe)
{
    if (probe->list && !is_given(named, "probe_absent")) {
        probe->absent = (struct lk_statuses){{0}};
    }
}

/* A default that nobody wrote is no reason to refuse what somebody did. */
static void fit_default(const struct lk_named *named, const char *setting,
                        uint64_t *value, uint64_t most)
{
    if (!is_given(named, setting) && *value > most) {
        *value = most;
    }
}

static void check_target(struct report *report, const struct lk_named *named)
{
    struct lk_target *target = &report->config->targets.targets[named->index];

    check_url(report, named, target);
    if (!is_given(named, "burst")) {
        target->burst = target->rate;
    }
    fit_default(named, "connect_timeout", &target->connect_timeout_ms,
                target->timeout_ms);
    fit_default(named, "backoff", &target->backoff_ms, target->backoff_max_ms);
    require(report, !is_given(named, "burst") || target->rate, named, "burst",
            "is only for a target with a rate");
    require(report, target->connect_timeout_ms <= target->timeout_ms, named,
            "connect_timeout", "is longer than the timeout of the whole call");
    require(report, target->backoff_ms <= target->backoff_max_ms, named,
            "backoff", "is longer than backoff_max");
    require(report, !have_common(&target->success, &target->temporary), named,
            "temporary", "names a status that success names too");
    require(report, !have_common(&target->success, &target->safe), named,
            "safe_statuses", "names a status that success names too");
    require(report, !target->key_file == !target->cert_file, named,
            target->key_file ? "key_file" : "cert_file",
            "cert_file and key_file belong together");
    fit_absent(named, &target->probe);
    check_settle(report, named, &target->probe, target->timeout_ms);
    check_probe(report, named, &target->probe);
}

/* ---- Routes -------------------------------------------------------------- */

static char *copy_text(struct report *report, const char *text)
{
    char *copy = text ? strdup(text) : NULL;

    if (text && !copy) {
        report->status = LK_NOMEM;
    }
    return copy;
}

/* What the route does not say is the target's, but for the path: there {key} is
 * the key of a job, and here that of the client. */
static void inherit_probe(struct report *report, const struct lk_named *named,
                          struct lk_probe *probe, const struct lk_probe *from)
{
    if (!is_given(named, "probe_happened")) {
        probe->happened = from->happened;
    }
    if (!is_given(named, "probe_absent")) {
        probe->absent = from->absent;
    }
    if (!is_given(named, "probe_list")) {
        probe->list = copy_text(report, from->list);
    } else {
        fit_absent(named, probe);
    }
    if (!is_given(named, "probe_interval")) {
        probe->interval_ms = from->interval_ms;
    }
}

static void check_route(struct report *report, const struct lk_named *named)
{
    const struct lk_targets *targets = &report->config->targets;
    struct lk_route *route = &targets->routes[named->index];
    bool asks = route->target || route->probe.path || !route->rollback_target;
    const struct lk_target *target = lk_target_find(
        targets, latchkey_slice(asks ? route->target : route->rollback_target));

    require(report, route->scope, named, "scope", "is missing");
    require(report, route->target || !asks, named, "target", "is missing");
    require(report, !route->target || target, named, "target",
            "there is no target of that name");
    require(report,
            !route->rollback_target ||
                lk_target_find(targets, latchkey_slice(route->rollback_target)),
            named, "rollback", "there is no target of that name");
    if (!target) {
        return;
    }
    inherit_probe(report, named, &route->probe, &target->probe);
    require(report, route->probe.path || route->rollback_target, named, "probe",
            "is missing, and there is no rollback");
    if (is_given(named, "probe_settle") || !target->probe.settle_ms) {
        check_settle(report, named, &route->probe, target->timeout_ms);
    } else {
        /* Whoever held the operation may go on for a while after its lock
         * has lapsed. */
        route->probe.settle_ms = target->probe.settle_ms;
        if (route->probe.settle_ms < report->config->lock_ms) {
            route->probe.settle_ms = report->config->lock_ms;
        }
    }
    check_probe(report, named, &route->probe);
}

/* A secret in the file itself, rather than where it points to. */
static bool holds_secret(const struct lk_named *named)
{
    static const char *const words[] = {"header", "sign"};

    for (int i = 0; i < 2 && !named->is_route; i++) {
        size_t row = row_of(named, words[i]);
        if (named->given[row].source == LK_CONFIG_FILE &&
            named->given[row].written &&
            (i || strcasestr(named->given[row].written, "authorization:")) &&
            !lk_substitutes(named->given[row].written)) {
            return true;
        }
    }
    return false;
}

enum lk_status lk_named_check(struct lk_config *config, struct lk_buf *errors,
                              struct lk_buf *warnings, bool *bad)
{
    struct report report = {
        .config = config, .errors = errors, .warnings = warnings};
    bool secret = false;

    for (size_t i = 0; i < config->named_count; i++) {
        if (!config->named[i].is_route) {
            check_target(&report, &config->named[i]);
            secret = secret || holds_secret(&config->named[i]);
        }
    }
    for (size_t i = 0; i < config->named_count; i++) {
        if (config->named[i].is_route) {
            check_route(&report, &config->named[i]);
        }
    }
    if (secret && config->file_open &&
        latchkey_buf_printf(warnings,
                            "%s: everybody on this machine can read the "
                            "secrets of targets in it; chmod 640, or use "
                            "${file:/PATH}\n",
                            config->file)) {
        report.status = LK_NOMEM;
    }
    *bad = report.bad;
    return report.status;
}
