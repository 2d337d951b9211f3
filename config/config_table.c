/* config_table.c - the table of settings, and what follows from it alone:
 * defaults, output, and reload. */
#include "config/config_table.h"

#include <stdlib.h>
#include <string.h>

#define KIB    UINT64_C(1024)
#define MIB    (1024 * KIB)
#define GIB    (1024 * MIB)
#define SECOND UINT64_C(1000)
#define HOUR   (3600 * SECOND)
#define DAY    (24 * HOUR)

#define RELOAD  true
#define RESTART false

#define NUMBER(section, name, kind, field, initial, min, max, reload)          \
    {                                                                          \
        section, name, &lk_kind_##kind, offsetof(struct lk_config, field),     \
            sizeof(uint64_t), initial, min, max, reload                        \
    }
#define TEXT(section, name, kind, field, initial, reload)                      \
    {                                                                          \
        section, name, &lk_kind_##kind, offsetof(struct lk_config, field),     \
            sizeof(char *), initial, 0, 0, reload                              \
    }

/* A new setting is one row here and a member of struct lk_config. RELOAD: it
 * may change while the daemon runs. */
/* clang-format off */
const struct lk_setting lk_settings[] = {
    TEXT("daemon", "listen", listen, listen,
         "unix:/run/latchkey/latchkeyd.sock", RESTART),
    NUMBER("daemon", "socket_mode", mode, socket_mode, "660", 0, 0777, RESTART),
    TEXT("daemon", "store", url, store_url,
         "sqlite:/var/lib/latchkey/latchkey.db", RESTART),
    NUMBER("daemon", "log_level", level, log_level, "info", 0, 0, RELOAD),

    NUMBER("limits", "connections", count, connections,
           "10000", 1, 1000000, RELOAD),
    NUMBER("limits", "unauthenticated", count, unauthenticated,
           "0", 0, 1000000, RELOAD),
    NUMBER("limits", "auth_timeout", duration, auth_timeout_ms,
           "10s", 100, HOUR, RELOAD),
    NUMBER("limits", "auth_delay", duration, auth_delay_ms,
           "4s", 0, 60 * SECOND, RELOAD),
    NUMBER("limits", "idle_timeout", duration, idle_timeout_ms,
           "0", 0, 30 * DAY, RELOAD),
    NUMBER("limits", "client_timeout", duration, client_timeout_ms,
           "30s", 100, HOUR, RELOAD),
    NUMBER("limits", "client_bytes", size, client_bytes,
           "512m", 16 * KIB, 1024 * GIB, RELOAD),
    NUMBER("limits", "command_bytes", size, command_bytes,
           "16m", 4 * KIB, 512 * MIB, RELOAD),
    NUMBER("limits", "output_bytes", size, output_bytes,
           "64m", 64 * KIB, GIB, RELOAD),
    NUMBER("limits", "queue_ops", count, queue_ops,
           "65536", 1, 16000000, RELOAD),
    NUMBER("limits", "queue_bytes", size, queue_bytes,
           "256m", 64 * KIB, 1024 * GIB, RELOAD),
    NUMBER("limits", "batch_ops", count, batch_ops, "1024", 1, 65536, RESTART),
    NUMBER("limits", "cache_bytes", size, cache_bytes,
           "64m", 0, 1024 * GIB, RELOAD),
    NUMBER("limits", "waiters", count, waiters, "100000", 0, 16000000, RELOAD),
    NUMBER("limits", "disk_free", size, disk_free,
           "256m", 0, 1024 * GIB, RELOAD),

    NUMBER("store", "ttl", duration, ttl_ms, "1d", 1, 36500 * DAY, RELOAD),
    NUMBER("store", "lock", duration, lock_ms, "30s", 1, 365 * DAY, RELOAD),
    NUMBER("store", "max_ttl", duration, max_ttl_ms,
           "400d", 1, 36500 * DAY, RELOAD),
    NUMBER("store", "max_lock", duration, max_lock_ms,
           "1d", 1, 365 * DAY, RELOAD),
    NUMBER("store", "sweep_interval", duration, sweep_interval_ms,
           "1s", 10, HOUR, RELOAD),
    NUMBER("store", "clock_jump", duration, clock_jump_ms,
           "1h", SECOND, 3650 * DAY, RESTART),
    NUMBER("store", "checkpoint_pages", count, checkpoint_pages,
           "1000", 1, 1000000, RESTART),
    NUMBER("store", "cache_pages", count, cache_pages,
           "4096", 16, 16000000, RESTART),
    NUMBER("store", "reap_rows", count, reap_rows, "256", 1, 1024, RESTART),
    NUMBER("store", "strict", switch, strict, "no", 0, 1, RESTART),
    NUMBER("store", "accept_loss", switch, accept_loss, "no", 0, 1, RESTART),
    NUMBER("store", "connections", count, store_lanes, "0", 0, 64, RESTART),
    NUMBER("store", "pooler", switch, store_pooler, "no", 0, 1, RESTART),
    NUMBER("store", "notify", switch, store_notify, "yes", 0, 1, RESTART),
    NUMBER("store", "poll", duration, poll_ms, "500ms", 10, HOUR, RESTART),
    NUMBER("store", "timeout", duration, store_timeout_ms,
           "5s", 100, HOUR, RESTART),
    NUMBER("store", "connect_timeout", duration, store_connect_timeout_ms,
           "2s", 100, HOUR, RESTART),
    NUMBER("store", "wait_replicas", count, wait_replicas, "0", 0, 100, RESTART),
    NUMBER("store", "wait_timeout", duration, wait_timeout_ms,
           "1s", 1, HOUR, RESTART),
    TEXT("store", "prefix", prefix, prefix, "latchkey", RESTART),
    TEXT("store", "cache", cache, cache_url, "none", RESTART),
    NUMBER("store", "cache_timeout", duration, cache_timeout_ms,
           "50ms", 1, 10 * SECOND, RESTART),

    NUMBER("courier", "enabled", when, courier_enabled, "auto", 0, 2, RESTART),
    NUMBER("courier", "only", switch, courier_only, "no", 0, 1, RESTART),
    TEXT("courier", "gateway", socket, gateway, "none", RELOAD),
    NUMBER("courier", "gateway_timeout", duration, gateway_timeout_ms,
           "10m", 100, 30 * DAY, RELOAD),
    NUMBER("courier", "gateway_concurrency", count, gateway_concurrency,
           "64", 1, 10000, RELOAD),
    NUMBER("courier", "gateway_attempts", count, gateway_attempts,
           "12", 1, 1000000, RELOAD),
    NUMBER("courier", "gateway_max_age", duration, gateway_max_age_ms,
           "1d", 0, 3650 * DAY, RELOAD),
    NUMBER("courier", "lease", duration, lease_ms, "30s", 100, DAY, RELOAD),
    NUMBER("courier", "grace", duration, grace_ms, "5s", 0, DAY, RELOAD),
    NUMBER("courier", "batch", count, lease_batch, "1000", 1, 65536, RELOAD),
    NUMBER("courier", "answer_bytes", size, answer_bytes,
           "64k", 0, 16 * MIB, RELOAD),
    NUMBER("courier", "request_bytes", size, request_bytes,
           "1m", KIB, 256 * MIB, RELOAD),
    NUMBER("courier", "probes", switch, probes, "yes", 0, 1, RELOAD),

    TEXT("auth", "password", secret, password, NULL, RELOAD),
    TEXT("auth", "password_file", path, password_file, NULL, RELOAD),
    {"users", "*", &lk_kind_user, offsetof(struct lk_config, users),
     sizeof(struct lk_user *) + sizeof(size_t), NULL, 0, 0, RELOAD},
    {"peers", "*", &lk_kind_peer, offsetof(struct lk_config, peers),
     sizeof(struct lk_peer_rule *) + sizeof(size_t), NULL, 0, 0, RELOAD},
};
/* clang-format on */

const size_t lk_setting_count = sizeof(lk_settings) / sizeof(lk_settings[0]);

/* A reload swaps the list and its length together. */
_Static_assert(offsetof(struct lk_config, user_count) ==
                   offsetof(struct lk_config, users) + sizeof(struct lk_user *),
               "users and user_count are side by side");
_Static_assert(offsetof(struct lk_config, peer_count) ==
                   offsetof(struct lk_config, peers) +
                       sizeof(struct lk_peer_rule *),
               "peers and peer_count are side by side");

/* "*" is a section whose names are free ([users], [peers]): it matches any.
 * NULL: there is no such setting. */
const struct lk_setting *lk_setting_find(struct lk_slice section,
                                         struct lk_slice name)
{
    for (size_t i = 0; i < lk_setting_count; i++) {
        const struct lk_setting *setting = &lk_settings[i];

        if (latchkey_slice_equal(section, latchkey_slice(setting->section)) &&
            (strcmp(setting->name, "*") == 0 ||
             latchkey_slice_equal(name, latchkey_slice(setting->name)))) {
            return setting;
        }
    }
    return NULL;
}

/* ---- the nearest name, for a hint ---------------------------------------- */

#define NAME_MAX_LEN 32

/*
 * How many letters must be changed, added or removed (Levenshtein). `row` is
 * one row of the matrix: before round i it has the distances of a's first i - 1
 * letters to each beginning of b. A name too long for a setting is far from
 * any.
 */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[NAME_MAX_LEN + 1];
    size_t a_len = strlen(a), b_len = strlen(b);

    if (a_len > NAME_MAX_LEN || b_len > NAME_MAX_LEN) {
        return NAME_MAX_LEN;
    }
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[b_len];
}

/* The row of `table` with the most similar name, or NULL if none is near.
 * `section` may be NULL where all rows have the same one. */
const struct lk_setting *lk_setting_nearest(const struct lk_setting *table,
                                            size_t count, const char *section,
                                            const char *name)
{
    const struct lk_setting *nearest = NULL;
    size_t best = 2 * (3 + strlen(name) / 4); /* beyond this there is no hint */

    for (size_t i = 0; i < count; i++) {
        const struct lk_setting *setting = &table[i];
        size_t distance;

        if (strcmp(setting->name, "*") == 0) {
            continue;
        }
        /* A wrong section counts as half a letter. */
        distance = 2 * edit_distance(name, setting->name) +
                   (section && strcmp(section, setting->section) != 0);
        if (distance < best) {
            best = distance;
            nearest = setting;
        }
    }
    return nearest;
}

/* ---- defaults, output ---------------------------------------------------- */

/* Sets every default by parsing its text, so that a default and the same value
 * in a file cannot differ. On an error there is nothing to free. */
enum lk_status lk_config_init(struct lk_config *config)
{
    struct lk_buf why = {0};
    enum lk_status status = LK_OK;

    *config = (struct lk_config){0};
    config->given = calloc(lk_setting_count, sizeof(*config->given));
    if (!config->given) {
        return LK_NOMEM;
    }
    for (size_t i = 0; i < lk_setting_count && status == LK_OK; i++) {
        const struct lk_setting *setting = &lk_settings[i];
        struct lk_assignment assignment = {.config = config,
                                           .base = config,
                                           .setting = setting,
                                           .name = setting->name,
                                           .value = setting->initial,
                                           .shown = setting->initial,
                                           .source = LK_CONFIG_DEFAULT};

        if (setting->initial) {
            status = setting->kind->parse(&assignment, &why);
        }
    }
    latchkey_buf_free(&why);
    if (status != LK_OK) {
        lk_config_free(config);
    }
    return status;
}

/* Frees all that `config` owns and sets it to zero; it may be called twice. */
void lk_config_free(struct lk_config *config)
{
    lk_listen_clear(config);
    lk_users_clear(config);
    lk_peers_clear(config);
    lk_secret_free(config->password);
    free(config->password_file);
    lk_secret_free(config->store_url);
    lk_secret_free(config->cache_url);
    free(config->prefix);
    free(config->gateway);
    lk_named_clear(config);
    free(config->file);
    free(config->given);
    *config = (struct lk_config){0};
}

/* Passwords are left out; the names of password files are shown. */
static enum lk_status dump_users(const struct lk_config *config,
                                 struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < config->user_count && status == LK_OK; i++) {
        const struct lk_user *user = &config->users[i];
        const char *role = lk_role_word(user->role);

        status = user->password_file
                     ? latchkey_buf_printf(out, "%s = %s file:%s\n", user->name,
                                           role, user->password_file)
                     : latchkey_buf_printf(out, "# %s = %s (password)\n",
                                           user->name, role);
    }
    return status;
}

/* One setting as lines of a file; a setting without a value has none. */
static enum lk_status dump_setting(const struct lk_config *config,
                                   const struct lk_setting *setting,
                                   struct lk_buf *out)
{
    enum lk_status status = LK_OK;
    struct lk_buf value = {0};

    if (setting->kind == &lk_kind_user) {
        return dump_users(config, out);
    }
    if (setting->kind == &lk_kind_peer) {
        return lk_peers_dump(config, out);
    }
    if (setting->kind == &lk_kind_listen) {
        for (size_t i = 0; i < config->listen_count && status == LK_OK; i++) {
            status = latchkey_buf_printf(out, "%s = %s\n", setting->name,
                                         config->listen[i].text);
        }
        return status;
    }
    if (!setting->kind->print) {
        return LK_OK;
    }
    status = setting->kind->print(config, setting, &value);
    if (status == LK_OK && value.len > 0) {
        status = latchkey_buf_printf(out, "%s = %.*s\n", setting->name,
                                     (int)value.len, value.data);
    }
    latchkey_buf_free(&value);
    return status;
}

/* Writes a file that gives the same configuration, except for the passwords. */
enum lk_status lk_config_dump(const struct lk_config *config,
                              struct lk_buf *out)
{
    const char *section = "";
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < lk_setting_count && status == LK_OK; i++) {
        const struct lk_setting *setting = &lk_settings[i];

        if (strcmp(section, setting->section) != 0) {
            section = setting->section;
            status = latchkey_buf_printf(out, "%s[%s]\n", i > 0 ? "\n" : "",
                                         section);
        }
        if (status == LK_OK) {
            status = dump_setting(config, setting, out);
        }
    }
    return status ? status : lk_named_dump(config, out);
}

/*
 * Appends the value of "section.name" as a dump shows it. LK_NOT_FOUND: there
 * is no such setting, or it has no print function (secrets, [users], [peers]).
 */
enum lk_status lk_config_get(const struct lk_config *config,
                             struct lk_slice setting, struct lk_buf *out)
{
    const char *dot =
        setting.len > 0 ? memchr(setting.data, '.', setting.len) : NULL;
    const struct lk_setting *row;
    struct lk_slice section, name;

    if (!dot) {
        return LK_NOT_FOUND;
    }
    section = (struct lk_slice){setting.data, (size_t)(dot - setting.data)};
    name = (struct lk_slice){dot + 1, setting.len - section.len - 1};
    row = lk_setting_find(section, name);
    if (!row || !row->kind->print) {
        return LK_NOT_FOUND;
    }
    return row->kind->print(config, row, out);
}

/* ---- reload -------------------------------------------------------------- */

/* `running` takes the value of `fresh`, which then owns the old one. Values are
 * moved as bytes, so pointers keep exactly one owner. */
static void swap_bytes(char *a, char *b, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        char byte = a[i];

        a[i] = b[i];
        b[i] = byte;
    }
}

/* Compares the printed values; a difference adds the setting's name. */
static enum lk_status note_needs_restart(const struct lk_config *running,
                                         const struct lk_config *fresh,
                                         const struct lk_setting *setting,
                                         struct lk_buf *restart)
{
    struct lk_buf before = {0}, after = {0};
    enum lk_status status = setting->kind->print(running, setting, &before);

    if (status == LK_OK) {
        status = setting->kind->print(fresh, setting, &after);
    }
    if (status == LK_OK && !latchkey_slice_equal(latchkey_buf_slice(&before),
                                                 latchkey_buf_slice(&after))) {
        status = latchkey_buf_printf(restart, "%s.%s\n", setting->section,
                                     setting->name);
    }
    latchkey_buf_free(&before);
    latchkey_buf_free(&after);
    return status;
}

/*
 * `running` takes over what may change without a restart and `fresh` gets the
 * old values, which its owner then frees. Names of other settings that differ
 * are added to `restart`, a line each. The swaps cannot fail and are all made,
 * also if the list of names cannot be written (LK_NOMEM).
 */
enum lk_status lk_config_adopt(struct lk_config *running,
                               struct lk_config *fresh, struct lk_buf *restart)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < lk_setting_count; i++) {
        const struct lk_setting *setting = &lk_settings[i];

        if (setting->reload) {
            swap_bytes((char *)running + setting->offset,
                       (char *)fresh + setting->offset, setting->size);
        } else if (status == LK_OK) {
            status = note_needs_restart(running, fresh, setting, restart);
        }
    }
    swap_bytes((char *)&running->targets, (char *)&fresh->targets,
               sizeof(running->targets));
    swap_bytes((char *)&running->named, (char *)&fresh->named,
               sizeof(running->named));
    swap_bytes((char *)&running->named_count, (char *)&fresh->named_count,
               sizeof(running->named_count));
    return status;
}
