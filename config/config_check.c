/* config_check.c - settings that make no sense together. */
#include "config/config_table.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What was found so far. */
struct report {
    const struct lk_config *config;
    struct lk_buf *errors;
    struct lk_buf *warnings;
    bool bad;
    enum lk_status status; /* LK_NOMEM sticks */
};

/* The line of the file that gave a setting; 0: none did. Users share a row, so
 * each has its own. */
static unsigned line_of(const struct lk_config *config, const char *section,
                        const char *name)
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

/* "latchkeyd.conf:12: store.lock: ", or without a file if it gave nothing. */
static void begin_line(struct report *report, struct lk_buf *to,
                       const char *section, const char *name)
{
    const struct lk_config *config = report->config;
    unsigned line = line_of(config, section, name);
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

static void end_line(struct report *report, struct lk_buf *to,
                     const char *first, const char *second)
{
    if (latchkey_buf_printf(to, "%s%s\n", first, second) != LK_OK) {
        report->status = LK_NOMEM;
    }
}

static void fail(struct report *report, const char *section, const char *name,
                 const char *text)
{
    report->bad = true;
    begin_line(report, report->errors, section, name);
    end_line(report, report->errors, text, "");
}

static void warn(struct report *report, const char *section, const char *name,
                 const char *text)
{
    begin_line(report, report->warnings, section, name);
    end_line(report, report->warnings, text, "");
}

static void require(struct report *report, bool truth, const char *section,
                    const char *name, const char *text)
{
    if (!truth) {
        fail(report, section, name, text);
    }
}

static void check_numbers(struct report *report)
{
    const struct lk_config *config = report->config;

    require(report, config->lock_ms <= config->max_lock_ms, "store", "lock",
            "is longer than store.max_lock");
    require(report, config->ttl_ms <= config->max_ttl_ms, "store", "ttl",
            "is longer than store.max_ttl");
    require(report, config->lock_ms < config->ttl_ms, "store", "lock",
            "must be shorter than store.ttl: an answer is kept longer than a "
            "claim goes without a sign of life");
    require(report, config->client_bytes / 4 >= config->command_bytes, "limits",
            "client_bytes",
            "is less than four times limits.command_bytes: few clients could "
            "send the largest command at once");
    require(report, config->output_bytes >= config->command_bytes, "limits",
            "output_bytes",
            "is less than limits.command_bytes: the largest answer that can "
            "be kept could not be replayed");
    require(report, config->queue_bytes >= config->command_bytes, "limits",
            "queue_bytes",
            "is less than limits.command_bytes: the largest command could "
            "never be queued");
    require(report, config->queue_ops >= config->batch_ops, "limits",
            "queue_ops", "is less than limits.batch_ops");
    if (config->sweep_interval_ms > config->lock_ms) {
        warn(report, "store", "sweep_interval",
             "is longer than store.lock: a lost holder is noticed late");
    }
}

static void check_store(struct report *report)
{
    const struct lk_config *config = report->config;
    bool postgres = strncmp(config->store_url, "postgres", 8) == 0;
    bool redis = strncmp(config->store_url, "redis", 5) == 0;

    struct lk_store_config settings;
    const struct lk_store_class *class;
    struct lk_buf why = {0};

    /* All that a start would refuse before it asks a server. */
    lk_config_store(config, &settings);
    enum lk_status status =
        lk_store_check(config->store_url, &settings, &class, &why);
    if (status == LK_INVALID && latchkey_buf_add(&why, "", 1) == LK_OK) {
        fail(report, "daemon", "store", why.data);
    } else if (status) {
        report->status = LK_NOMEM;
    }
    latchkey_buf_free(&why);
    require(report, !config->cache_url || postgres, "store", "cache",
            "is only for a store in PostgreSQL");
    require(report, !config->store_pooler || postgres, "store", "pooler",
            "is only for a store in PostgreSQL");
    require(report, !config->wait_replicas || redis, "store", "wait_replicas",
            "is only for a store in Redis");
    require(report, !config->courier_only || postgres, "courier", "only",
            "needs a store in PostgreSQL: a file belongs to one daemon, and "
            "a Redis keeps no jobs");
    require(report,
            !config->courier_only || config->courier_enabled != LK_COURIER_NO,
            "courier", "only",
            "and courier.enabled = no contradict each other");
    require(report, !config->strict || !config->accept_loss, "store", "strict",
            "and store.accept_loss contradict each other");
}

static void check_listen(struct report *report)
{
    const struct lk_config *config = report->config;
    bool password = config->password || config->password_file;

    for (size_t i = 0; i < config->listen_count; i++) {
        const struct lk_listen *listen = &config->listen[i];

        if (!listen->loopback && !password) {
            report->bad = true;
            begin_line(report, report->errors, "daemon", "listen");
            end_line(report, report->errors, listen->text,
                     " can be reached from other machines, so a password is "
                     "needed; set auth.password_file, or listen on a unix "
                     "socket or 127.0.0.1");
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(listen->text, config->listen[j].text) == 0) {
                report->bad = true;
                begin_line(report, report->errors, "daemon", "listen");
                end_line(report, report->errors, listen->text,
                         " is given twice");
            }
        }
        if (listen->path && (config->socket_mode & S_IWOTH) && !password) {
            warn(report, "daemon", "socket_mode",
                 "everybody on this machine may claim and complete; use 660 "
                 "and a group, or set auth.password_file");
        }
    }
}

/* Reads a password file for the setting that names it. */
static void take_secret(struct report *report, const char *section,
                        const char *name, const char *path, char **secret)
{
    struct lk_buf why = {0};
    bool everybody = false;
    enum lk_status status = lk_secret_read(path, secret, &everybody, &why);

    if (status == LK_INVALID) {
        status = latchkey_buf_add(&why, "", 1);
        if (status == LK_OK) {
            fail(report, section, name, why.data);
        }
    }
    if (status != LK_OK) {
        report->status = status;
    }
    if (everybody) {
        warn(report, section, name,
             "everybody on this machine can read the password file; chmod 640 "
             "and give it the daemon's group");
    }
    latchkey_buf_free(&why);
}

static bool has_password(const char *url)
{
    char *copy = url ? strdup(url) : NULL;
    bool found = copy && lk_url_mask(copy);

    lk_secret_free(copy);
    return found;
}

static void check_secrets(struct report *report, struct lk_config *config)
{
    bool inside = config->password != NULL || has_password(config->store_url) ||
                  has_password(config->cache_url);

    if (config->password && config->password_file) {
        fail(report, "auth", "password_file",
             "auth.password is given too; use one of them");
    } else if (config->password_file) {
        take_secret(report, "auth", "password_file", config->password_file,
                    &config->password);
    }
    for (size_t i = 0; i < config->user_count; i++) {
        struct lk_user *user = &config->users[i];

        inside = inside || user->password;
        if (user->password_file && !user->password) {
            take_secret(report, "users", user->name, user->password_file,
                        &user->password);
        }
    }
    if (config->user_count && !config->password && !config->password_file) {
        warn(report, "auth", "password_file",
             "is not set, so [users] keeps no one from data commands: every "
             "client that connects may claim, complete and read stored "
             "answers");
    }
    if (inside && config->file && config->file_open) {
        end_line(report, report->warnings, config->file,
                 ": everybody on this machine can read the passwords in it; "
                 "chmod 640, or use password files");
    }
}

enum lk_status lk_config_check(struct lk_config *config, struct lk_buf *errors,
                               struct lk_buf *warnings)
{
    struct report report = {.config = config,
                            .errors = errors,
                            .warnings = warnings,
                            .status = LK_OK};

    if (config->courier_only && config->listen_source == LK_CONFIG_DEFAULT) {
        lk_listen_clear(config); /* nobody has to talk to it */
    }
    check_numbers(&report);
    check_store(&report);
    check_listen(&report);
    check_secrets(&report, config);
    bool bad = false;
    enum lk_status named = lk_named_check(config, errors, warnings, &bad);
    report.bad = report.bad || bad;
    report.status = report.status ? report.status : named;
    if (report.status != LK_OK) {
        return report.status;
    }
    return report.bad ? LK_INVALID : LK_OK;
}

bool lk_config_has_courier(const struct lk_config *config)
{
    if (config->courier_only) {
        return true;
    }
    return config->courier_enabled == LK_COURIER_AUTO
               ? config->targets.count || config->gateway
               : config->courier_enabled == LK_COURIER_YES;
}
