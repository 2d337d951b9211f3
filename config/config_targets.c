/* config_targets.c - [target NAME] and [route NAME] of the configuration. */
#include "config/config_table.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MIB    (UINT64_C(1) << 20)
#define SECOND UINT64_C(1000)
#define HOUR   (3600 * SECOND)
#define DAY    (24 * HOUR)

enum { SECTIONS_MOST = 1000 };

#define NUMBER(type, name, kind, field, initial, min, max)                     \
    {                                                                          \
        NULL, name, &lk_kind_##kind, offsetof(struct type, field), 0, initial, \
            min, max, true                                                     \
    }
#define OTHER(type, name, kind, field, initial)                                \
    NUMBER(type, name, kind, field, initial, 0, 0)
#define PROBE(type)                                                            \
    OTHER(type, "probe", probe, probe.path, NULL),                             \
        OTHER(type, "probe_happened", statuses, probe.happened, "2xx"),        \
        OTHER(type, "probe_absent", statuses, probe.absent, "404"),            \
        OTHER(type, "probe_list", pointer, probe.list, NULL),                  \
        NUMBER(type, "probe_settle", duration, probe.settle_ms, NULL, 1,       \
               365 * DAY),                                                     \
        NUMBER(type, "probe_interval", duration, probe.interval_ms, "30s",     \
               100, 30 * DAY)

/* A new setting is a row here and a field in targets.h. */
/* clang-format off */
const struct lk_setting lk_target_settings[] = {
    OTHER(lk_target, "url", target_url, url, NULL),
    OTHER(lk_target, "header", header, headers, NULL),
    NUMBER(lk_target, "connect_timeout", duration, connect_timeout_ms,
           "3s", 1, HOUR),
    NUMBER(lk_target, "timeout", duration, timeout_ms, "30s", 1, DAY),
    NUMBER(lk_target, "concurrency", count, concurrency, "16", 1, 10000),
    NUMBER(lk_target, "rate", rate, rate, "0", 0, 1000000),
    NUMBER(lk_target, "burst", count, burst, NULL, 1, 1000000),
    NUMBER(lk_target, "attempts", count, attempts, "12", 1, 1000000),
    NUMBER(lk_target, "max_age", duration, max_age_ms, "3d", 0, 3650 * DAY),
    NUMBER(lk_target, "backoff", duration, backoff_ms, "1s", 1, DAY),
    NUMBER(lk_target, "backoff_max", duration, backoff_max_ms,
           "1h", 1, 30 * DAY),
    NUMBER(lk_target, "retry_after_max", duration, retry_after_max_ms,
           "1d", 0, 365 * DAY),
    OTHER(lk_target, "success", statuses, success, "2xx"),
    OTHER(lk_target, "temporary", statuses, temporary, "408 425 429 5xx"),
    OTHER(lk_target, "safe_statuses", statuses, safe, NULL),
    NUMBER(lk_target, "idempotency", switch, honours, "no", 0, 1),
    NUMBER(lk_target, "key_life", duration, key_life_ms, "23h", 0, 3650 * DAY),
    OTHER(lk_target, "key_header", header_name, key_header, "Idempotency-Key"),
    OTHER(lk_target, "id", provider_id, id, NULL),
    OTHER(lk_target, "sign", sign, sign_secret, NULL),
    NUMBER(lk_target, "circuit_failures", count, circuit_failures,
           "10", 0, 1000000),
    NUMBER(lk_target, "circuit_open", duration, circuit_open_ms,
           "30s", 1, DAY),
    OTHER(lk_target, "http", http, http, "auto"),
    OTHER(lk_target, "ca_file", file, ca_file, NULL),
    OTHER(lk_target, "cert_file", file, cert_file, NULL),
    OTHER(lk_target, "key_file", file, key_file, NULL),
    PROBE(lk_target),
};

const struct lk_setting lk_route_settings[] = {
    OTHER(lk_route, "scope", scope, scope, NULL),
    OTHER(lk_route, "tenant", tenant, tenant, NULL),
    OTHER(lk_route, "target", target_name, target, NULL),
    PROBE(lk_route),
    NUMBER(lk_route, "adopt", switch, adopt, "no", 0, 1),
    OTHER(lk_route, "rollback", rollback, rollback_target, NULL),
};
/* clang-format on */

const size_t lk_target_setting_count =
    sizeof(lk_target_settings) / sizeof(lk_target_settings[0]);
const size_t lk_route_setting_count =
    sizeof(lk_route_settings) / sizeof(lk_route_settings[0]);
_Static_assert(sizeof(lk_target_settings) / sizeof(lk_target_settings[0]) <=
                   LK_NAMED_SETTINGS,
               "what was given has a place for each");

/* ---- Sections ------------------------------------------------------------ */

static const struct lk_setting *table_of(bool is_route, size_t *count)
{
    *count = is_route ? lk_route_setting_count : lk_target_setting_count;
    return is_route ? lk_route_settings : lk_target_settings;
}

static void *base_of(const struct lk_config *config,
                     const struct lk_named *named)
{
    const struct lk_targets *targets = &config->targets;

    return named->is_route ? (void *)&targets->routes[named->index]
                           : (void *)&targets->targets[named->index];
}

static const char *name_of(const struct lk_config *config,
                           const struct lk_named *named)
{
    const struct lk_targets *targets = &config->targets;

    return named->is_route ? targets->routes[named->index].name
                           : targets->targets[named->index].name;
}

static struct lk_named *find_named(struct lk_config *config, bool is_route,
                                   const char *name)
{
    for (size_t i = 0; i < config->named_count; i++) {
        struct lk_named *named = &config->named[i];
        if (named->is_route == is_route &&
            strcmp(name_of(config, named), name) == 0) {
            return named;
        }
    }
    return NULL;
}

static enum lk_status set_defaults(struct lk_config *config, void *base,
                                   bool is_route)
{
    size_t count;
    const struct lk_setting *table = table_of(is_route, &count);
    struct lk_buf why = {0};
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < count && !status; i++) {
        struct lk_assignment assignment = {.config = config,
                                           .base = base,
                                           .setting = &table[i],
                                           .name = table[i].name,
                                           .value = table[i].initial,
                                           .shown = table[i].initial,
                                           .source = LK_CONFIG_DEFAULT};
        if (table[i].initial) {
            status = table[i].kind->parse(&assignment, &why);
        }
    }
    latchkey_buf_free(&why);
    return status;
}

/* Room for one more of `size` bytes; NULL: out of memory. */
static void *grow(void **list, size_t count, size_t size)
{
    char *grown = realloc(*list, (count + 1) * size);

    if (!grown) {
        return NULL;
    }
    *list = grown;
    return memset(grown + count * size, 0, size);
}

/* A target or a route of that name, at its defaults. */
static enum lk_status add_named(struct lk_config *config, bool is_route,
                                const char *name, struct lk_named **made)
{
    struct lk_targets *targets = &config->targets;
    struct lk_named *named =
        grow((void **)&config->named, config->named_count, sizeof(*named));
    char *copy = strdup(name);
    size_t *count = is_route ? &targets->route_count : &targets->count;
    void *base = NULL;

    if (named && copy) {
        base = is_route ? grow((void **)&targets->routes, *count,
                               sizeof(struct lk_route))
                        : grow((void **)&targets->targets, *count,
                               sizeof(struct lk_target));
    }
    if (!base) {
        free(copy);
        return LK_NOMEM;
    }
    named->is_route = is_route;
    named->index = (*count)++;
    config->named_count++;
    *(is_route ? &((struct lk_route *)base)->name
               : &((struct lk_target *)base)->name) = copy;
    *made = named;
    return set_defaults(config, base, is_route);
}

void lk_named_clear(struct lk_config *config)
{
    for (size_t i = 0; i < config->named_count; i++) {
        for (size_t j = 0; j < LK_NAMED_SETTINGS; j++) {
            lk_secret_free(config->named[i].given[j].written);
        }
    }
    free(config->named);
    config->named = NULL;
    config->named_count = 0;
    lk_targets_free(&config->targets);
}

bool lk_named_section(const char *section)
{
    size_t word = strcspn(section, " \t");

    return (word == 6 && strncmp(section, "target", 6) == 0) ||
           (word == 5 && strncmp(section, "route", 5) == 0);
}

/* ---- A setting ----------------------------------------------------------- */

static enum lk_status explain(struct lk_buf *why, const char *name,
                              const char *fault)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(name), quoted, sizeof(quoted));
    return latchkey_buf_printf(why, "the name %s %s", quoted, fault) == LK_OK
               ? LK_INVALID
               : LK_NOMEM;
}

static enum lk_status explain_unknown(bool is_route, const char *name,
                                      struct lk_buf *why)
{
    size_t count;
    const struct lk_setting *table = table_of(is_route, &count);
    const struct lk_setting *nearest = NULL;
    size_t found = 0;
    enum lk_status status;

    /* Tables without section names: lk_setting_nearest looks at names alone. */
    for (size_t i = 0; i < count && !found; i++) {
        found = strcasecmp(table[i].name, name) == 0 ? i + 1 : 0;
    }
    nearest = found ? &table[found - 1]
                    : lk_setting_nearest(table, count, NULL, name);
    status =
        nearest
            ? latchkey_buf_printf(why, "there is no such setting; is %s meant?",
                                  nearest->name)
            : latchkey_buf_add_text(why, "there is no such setting; "
                                         "latchkeyd.conf(5) lists them");
    return status ? status : LK_INVALID;
}

/* Those of a file end where the first of the command line begins. */
static void begin_source(struct lk_named *named, size_t row,
                         const struct lk_assignment *assignment)
{
    if (named->given[row].source == assignment->source ||
        assignment->setting->kind != &lk_kind_header) {
        return;
    }
    struct lk_target *target = assignment->base;
    lk_secret_free(target->headers);
    target->headers = NULL;
    lk_secret_free(named->given[row].written);
    named->given[row].written = NULL;
}

/* Remembers how it was written. */
static enum lk_status note_given(struct lk_named *named, size_t row,
                                 const struct lk_assignment *assignment,
                                 unsigned line)
{
    struct lk_buf text = {0};
    const char *before = named->given[row].written;
    bool adds = before && assignment->setting->kind->repeats;
    enum lk_status status =
        latchkey_buf_printf(&text, "%s%s%s", adds ? before : "",
                            adds ? "\n" : "", assignment->shown);

    if (!status) {
        status = latchkey_buf_add(&text, "", 1);
    }
    if (status) {
        latchkey_buf_free(&text);
        return status;
    }
    lk_secret_free(named->given[row].written);
    named->given[row].written = text.data;
    named->given[row].line = line;
    named->given[row].source = assignment->source;
    return LK_OK;
}

static enum lk_status assign_row(struct lk_config *config,
                                 struct lk_named *named, size_t row,
                                 const char *value,
                                 enum lk_config_source source, unsigned line,
                                 struct lk_buf *why)
{
    size_t count;
    const struct lk_setting *setting = &table_of(named->is_route, &count)[row];
    char *text = NULL;
    enum lk_status status = lk_substitute(value, &text, why);

    if (!status && source == LK_CONFIG_FILE && named->given[row].written &&
        !setting->kind->repeats) {
        status = latchkey_buf_printf(why, "was given before, in line %u",
                                     named->given[row].line);
        status = status ? status : LK_INVALID;
    }
    if (!status) {
        struct lk_assignment assignment = {.config = config,
                                           .base = base_of(config, named),
                                           .setting = setting,
                                           .name = setting->name,
                                           .value = text,
                                           .shown = value,
                                           .source = source};
        begin_source(named, row, &assignment);
        status = setting->kind->parse(&assignment, why);
        if (!status) {
            status = note_given(named, row, &assignment, line);
        }
    }
    lk_secret_free(text);
    return status;
}

/* `name` is the target's or the route's, `setting` what follows. */
static enum lk_status assign_named(struct lk_config *config, bool is_route,
                                   const char *name, const char *setting,
                                   const char *value,
                                   enum lk_config_source source, unsigned line,
                                   struct lk_buf *why)
{
    const char *fault = lk_target_name_fault(latchkey_slice(name));
    struct lk_named *named;
    size_t count;
    const struct lk_setting *table = table_of(is_route, &count);
    size_t row = 0;
    enum lk_status status = LK_OK;

    if (fault) {
        return explain(why, name, fault);
    }
    while (row < count && strcmp(table[row].name, setting) != 0) {
        row++;
    }
    if (row == count) {
        return explain_unknown(is_route, setting, why);
    }
    named = find_named(config, is_route, name);
    if (!named && config->named_count >= SECTIONS_MOST) {
        return explain(why, name, "is one too many; 1000 are the most");
    }
    if (!named) {
        status = add_named(config, is_route, name, &named);
    }
    return status ? status
                  : assign_row(config, named, row, value, source, line, why);
}

enum lk_status lk_named_assign(struct lk_config *config, const char *section,
                               const char *name, const char *value,
                               enum lk_config_source source, unsigned line,
                               struct lk_buf *why)
{
    bool is_route = strncmp(section, "route", 5) == 0;
    size_t word = strcspn(section, " \t");
    const char *named = section + word + strspn(section + word, " \t");
    const char *dot = strrchr(name, '.');
    enum lk_status status;

    if (*named) {
        return assign_named(config, is_route, named, name, value, source, line,
                            why);
    }
    if (source != LK_CONFIG_OPTION || !dot) {
        status = latchkey_buf_printf(
            why,
            source == LK_CONFIG_OPTION
                ? "has no name; use %.*s.NAME.setting=value"
                : "the section has no name; write [%.*s NAME]",
            (int)word, section);
        return status ? status : LK_INVALID;
    }
    char *copy = strndup(name, (size_t)(dot - name));
    if (!copy) {
        return LK_NOMEM;
    }
    status =
        assign_named(config, is_route, copy, dot + 1, value, source, line, why);
    free(copy);
    return status;
}

/* ---- Output -------------------------------------------------------------- */

/* A secret that was written here itself is left out; where it comes from may
 * be seen. */
static enum lk_status dump_secret(const struct lk_setting *setting,
                                  const char *line, size_t len,
                                  struct lk_buf *out)
{
    const char *colon = memchr(line, ':', len);
    bool elsewhere = memmem(line, len, "${", 2) != NULL;
    size_t shown = setting->kind == &lk_kind_header && colon
                       ? (size_t)(colon - line) + 1
                       : 0;

    return elsewhere ? latchkey_buf_printf(out, "%s = %.*s\n", setting->name,
                                           (int)len, line)
                     : latchkey_buf_printf(out, "# %s = %.*s (secret)\n",
                                           setting->name, (int)shown, line);
}

static enum lk_status dump_given(const struct lk_setting *setting,
                                 const char *written, struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    if (setting->kind->print) {
        return latchkey_buf_printf(out, "%s = %s\n", setting->name, written);
    }
    while (!status && *written) {
        size_t len = strcspn(written, "\n");
        status = dump_secret(setting, written, len, out);
        written += len + (written[len] == '\n');
    }
    return status;
}

static enum lk_status dump_default(const void *base,
                                   const struct lk_setting *setting,
                                   struct lk_buf *out)
{
    struct lk_buf value = {0};
    enum lk_status status = LK_OK;

    if (setting->initial && setting->kind->print) {
        status = setting->kind->print(base, setting, &value);
        if (!status) {
            status = latchkey_buf_printf(out, "%s = %.*s\n", setting->name,
                                         (int)value.len, value.data);
        }
    }
    latchkey_buf_free(&value);
    return status;
}

enum lk_status lk_named_dump(const struct lk_config *config, struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < config->named_count && !status; i++) {
        const struct lk_named *named = &config->named[i];
        size_t count;
        const struct lk_setting *table = table_of(named->is_route, &count);

        status = latchkey_buf_printf(out, "\n[%s %s]\n",
                                     named->is_route ? "route" : "target",
                                     name_of(config, named));
        for (size_t j = 0; j < count && !status; j++) {
            const char *written = named->given[j].written;
            status = written
                         ? dump_given(&table[j], written, out)
                         : dump_default(base_of(config, named), &table[j], out);
        }
    }
    return status;
}
