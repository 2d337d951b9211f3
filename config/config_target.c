/*
 * config_target.c - [target NAME] and [route NAME]: their tables of settings,
 * their sections, and targets and routes as other parts use them.
 *
 * struct lk_named is the section as it was written (lines, sources, texts for a
 * dump); struct lk_target and struct lk_route are the values that follow from
 * it. Both lists grow while the file is read, so a section refers to its target
 * by index, never by pointer.
 */
#include "config/config_table.h"
#include "config/targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MIB    (UINT64_C(1) << 20)
#define SECOND UINT64_C(1000)
#define HOUR   (3600 * SECOND)
#define DAY    (24 * HOUR)

enum { SECTIONS_MAX = 1000 };

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
        OTHER(type, "probe_list", list_pointer, probe.list, NULL),             \
        NUMBER(type, "probe_settle", duration, probe.settle_ms, NULL, 1,       \
               365 * DAY),                                                     \
        NUMBER(type, "probe_interval", duration, probe.interval_ms, "30s",     \
               100, 30 * DAY)

/* A new setting is one row here and a member in targets.h. */
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
               "struct lk_named has a place for each");

/* ---- sections ------------------------------------------------------------ */

/* The table of settings of a target or a route. */
static const struct lk_setting *named_table(bool is_route, size_t *count)
{
    *count = is_route ? lk_route_setting_count : lk_target_setting_count;
    return is_route ? lk_route_settings : lk_target_settings;
}

/* The target or the route itself; valid until the next one is added. */
static void *named_base(const struct lk_config *config,
                        const struct lk_named *named)
{
    const struct lk_targets *targets = &config->targets;

    return named->is_route ? (void *)&targets->routes[named->index]
                           : (void *)&targets->targets[named->index];
}

/* The NAME of [target NAME] or [route NAME]. */
static const char *named_name(const struct lk_config *config,
                              const struct lk_named *named)
{
    const struct lk_targets *targets = &config->targets;

    return named->is_route ? targets->routes[named->index].name
                           : targets->targets[named->index].name;
}

/* NULL: the section was not mentioned yet. A target and a route may share a
 * name. */
static struct lk_named *find_named_section(struct lk_config *config,
                                           bool is_route, const char *name)
{
    for (size_t i = 0; i < config->named_count; i++) {
        struct lk_named *named = &config->named[i];
        if (named->is_route == is_route &&
            strcmp(named_name(config, named), name) == 0) {
            return named;
        }
    }
    return NULL;
}

/* Parses the defaults of the table, as if the file had them. */
static enum lk_status set_named_defaults(struct lk_config *config, void *base,
                                         bool is_route)
{
    size_t count;
    const struct lk_setting *table = named_table(is_route, &count);
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

/* Makes room for one more element, set to 0; NULL: out of memory. */
static void *grow_list(void **list, size_t count, size_t size)
{
    char *grown = realloc(*list, (count + 1) * size);

    if (!grown) {
        return NULL;
    }
    *list = grown;
    return memset(grown + count * size, 0, size);
}

/*
 * Adds a target or a route of that name, with its defaults; *made is valid
 * until the next one is added. If the defaults fail (LK_NOMEM), what was added
 * stays in the lists and lk_named_clear() frees it.
 */
static enum lk_status add_named(struct lk_config *config, bool is_route,
                                const char *name, struct lk_named **made)
{
    struct lk_targets *targets = &config->targets;
    struct lk_named *named =
        grow_list((void **)&config->named, config->named_count, sizeof(*named));
    char *copy = strdup(name);
    size_t *count = is_route ? &targets->route_count : &targets->count;
    void *base = NULL;

    if (named && copy) {
        base = is_route ? grow_list((void **)&targets->routes, *count,
                                    sizeof(struct lk_route))
                        : grow_list((void **)&targets->targets, *count,
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
    return set_named_defaults(config, base, is_route);
}

/* Frees the sections and the targets and routes that came from them. */
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

/* The first word of the section's name decides: "target" or "route". */
bool lk_named_section(const char *section)
{
    size_t word = strcspn(section, " \t");

    return (word == 6 && strncmp(section, "target", 6) == 0) ||
           (word == 5 && strncmp(section, "route", 5) == 0);
}

/* ---- one setting --------------------------------------------------------- */

/* LK_INVALID with the quoted name of the target or route in the sentence. */
static enum lk_status refuse_name(struct lk_buf *why, const char *name,
                                  const char *fault)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(name), quoted, sizeof(quoted));
    return lk_value_refuse(why, "the name %s %s", quoted, fault);
}

/* Names the setting that was probably meant, also for a wrong case. */
static enum lk_status refuse_unknown_named(bool is_route, const char *name,
                                           struct lk_buf *why)
{
    size_t count;
    const struct lk_setting *table = named_table(is_route, &count);
    const struct lk_setting *nearest = NULL;
    size_t found = 0;

    for (size_t i = 0; i < count && !found; i++) {
        found = strcasecmp(table[i].name, name) == 0 ? i + 1 : 0;
    }
    nearest = found ? &table[found - 1]
                    : lk_setting_nearest(table, count, NULL, name);
    if (nearest) {
        return lk_value_refuse(why, "there is no such setting; is %s meant?",
                               nearest->name);
    }
    return lk_value_refuse(why, "there is no such setting; latchkeyd.conf(5) "
                                "lists them");
}

/* The first header of the command line replaces those of the file. */
static void begin_header_source(struct lk_named *named, size_t row,
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

/*
 * Keeps how the value was written, for a dump: before ${...} was replaced, so
 * it has no secret that is outside the file. Lines of a setting that repeats
 * are joined with newlines.
 */
static enum lk_status note_written(struct lk_named *named, size_t row,
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

/* Substitutes, parses, and keeps how the value was written. */
static enum lk_status assign_named_row(struct lk_config *config,
                                       struct lk_named *named, size_t row,
                                       const char *value,
                                       enum lk_config_source source,
                                       unsigned line, struct lk_buf *why)
{
    size_t count;
    const struct lk_setting *setting =
        &named_table(named->is_route, &count)[row];
    char *text = NULL;
    enum lk_status status = lk_substitute(value, &text, why);

    /* Twice in one section is a mistake, unless lines add up (headers). */
    if (!status && source == LK_CONFIG_FILE && named->given[row].written &&
        !setting->kind->repeats) {
        status = lk_value_refuse(why, "was given before, in line %u",
                                 named->given[row].line);
    }
    if (!status) {
        struct lk_assignment assignment = {.config = config,
                                           .base = named_base(config, named),
                                           .setting = setting,
                                           .name = setting->name,
                                           .value = text,
                                           .shown = value,
                                           .source = source};
        begin_header_source(named, row, &assignment);
        status = setting->kind->parse(&assignment, why);
        if (!status) {
            status = note_written(named, row, &assignment, line);
        }
    }
    lk_secret_free(text);
    return status;
}

/* Assigns a setting of the target or route called `name`, which is added when
 * it is first mentioned. Beyond SECTIONS_MAX of them, LK_INVALID. */
static enum lk_status assign_named(struct lk_config *config, bool is_route,
                                   const char *name, const char *setting,
                                   const char *value,
                                   enum lk_config_source source, unsigned line,
                                   struct lk_buf *why)
{
    const char *fault = lk_target_name_fault(latchkey_slice(name));
    struct lk_named *named;
    size_t count;
    const struct lk_setting *table = named_table(is_route, &count);
    size_t row = 0;
    enum lk_status status = LK_OK;

    if (fault) {
        return refuse_name(why, name, fault);
    }
    while (row < count && strcmp(table[row].name, setting) != 0) {
        row++;
    }
    if (row == count) {
        return refuse_unknown_named(is_route, setting, why);
    }
    named = find_named_section(config, is_route, name);
    if (!named && config->named_count >= SECTIONS_MAX) {
        return refuse_name(why, name, "is one too many; there may be 1000");
    }
    if (!named) {
        status = add_named(config, is_route, name, &named);
    }
    return status
               ? status
               : assign_named_row(config, named, row, value, source, line, why);
}

/*
 * From the file: section "target pay", name "url". From an option: section
 * "target", name "pay.url", where the last dot divides, so that a target's name
 * may have dots.
 */
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
        return source == LK_CONFIG_OPTION
                   ? lk_value_refuse(why,
                                     "has no name; use %.*s.NAME.setting=value",
                                     (int)word, section)
                   : lk_value_refuse(
                         why, "the section has no name; write [%.*s NAME]",
                         (int)word, section);
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

/* ---- output -------------------------------------------------------------- */

/* A secret that is in the file itself is left out; where another one is read
 * from is shown. */
static enum lk_status dump_named_secret(const struct lk_setting *setting,
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

/* A setting as it was written; one without a print function is a secret. */
static enum lk_status dump_named_given(const struct lk_setting *setting,
                                       const char *written, struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    if (setting->kind->print) {
        return latchkey_buf_printf(out, "%s = %s\n", setting->name, written);
    }
    while (!status && *written) {
        size_t len = strcspn(written, "\n");
        status = dump_named_secret(setting, written, len, out);
        written += len + (written[len] == '\n');
    }
    return status;
}

/* A setting that was not given, with its default. */
static enum lk_status dump_named_default(const void *base,
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
        const struct lk_setting *table = named_table(named->is_route, &count);

        status = latchkey_buf_printf(out, "\n[%s %s]\n",
                                     named->is_route ? "route" : "target",
                                     named_name(config, named));
        for (size_t j = 0; j < count && !status; j++) {
            const char *written = named->given[j].written;
            status = written ? dump_named_given(&table[j], written, out)
                             : dump_named_default(named_base(config, named),
                                                  &table[j], out);
        }
    }
    return status;
}

/* ---- targets and routes -------------------------------------------------- */

/* Statuses outside of LK_STATUS_MIN to LK_STATUS_MAX are in no set. */
bool lk_statuses_have(const struct lk_statuses *set, unsigned status)
{
    unsigned bit = status - LK_STATUS_MIN;

    return status >= LK_STATUS_MIN && status <= LK_STATUS_MAX &&
           (set->bits[bit / 64] >> bit % 64 & 1);
}

/* NULL: there is no such target. It lives as long as `targets`. */
const struct lk_target *lk_target_find(const struct lk_targets *targets,
                                       struct lk_slice name)
{
    for (size_t i = 0; i < targets->count; i++) {
        if (latchkey_slice_equal(name,
                                 latchkey_slice(targets->targets[i].name))) {
            return &targets->targets[i];
        }
    }
    return NULL;
}

/* The names with `between` between them, for a message; what does not fit in
 * `size` bytes is cut at a name and ends in "...". */
const char *lk_targets_names(const struct lk_targets *targets,
                             const char *between, char *text, size_t size)
{
    static const char more[] = "...";
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < targets->count; i++) {
        const char *name = targets->targets[i].name;
        const char *before = i ? between : "";
        if (len + strlen(before) + strlen(name) + strlen(between) +
                sizeof(more) >
            size) {
            snprintf(text + len, size - len, "%s%s", before, more);
            break;
        }
        len += (size_t)snprintf(text + len, size - len, "%s%s", before, name);
    }
    return text;
}

/* ---- texts that a target and a route own --------------------------------- */

enum { TARGET_TEXTS = 12, ROUTE_TEXTS = 8 };

/* Every text that a target owns. A new text member must be added here: copies
 * and frees go by these lists alone. */
static void list_target_texts(struct lk_target *target,
                              char **texts[TARGET_TEXTS])
{
    char **all[TARGET_TEXTS] = {
        &target->name,        &target->url,        &target->socket,
        &target->headers,     &target->key_header, &target->id,
        &target->sign_secret, &target->ca_file,    &target->cert_file,
        &target->key_file,    &target->probe.path, &target->probe.list};

    memcpy(texts, all, sizeof(all));
}

static void list_route_texts(struct lk_route *route, char **texts[ROUTE_TEXTS])
{
    char **all[ROUTE_TEXTS] = {&route->name,
                               &route->scope,
                               &route->tenant,
                               &route->target,
                               &route->probe.path,
                               &route->probe.list,
                               &route->rollback_target,
                               &route->rollback_path};

    memcpy(texts, all, sizeof(all));
}

/*
 * Replaces the texts of a struct that was copied byte by byte with copies of
 * their own. It goes on after a failed copy, which leaves NULL: no text may
 * have two owners.
 */
static bool copy_texts(char ***texts, size_t count)
{
    bool made = true;

    for (size_t i = 0; i < count; i++) {
        if (*texts[i]) {
            *texts[i] = strdup(*texts[i]);
            made = made && *texts[i];
        }
    }
    return made;
}

static void free_texts(char ***texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        lk_secret_free(*texts[i]);
    }
}

static bool copy_target(const struct lk_target *from, struct lk_target *to)
{
    char **texts[TARGET_TEXTS];

    *to = *from;
    list_target_texts(to, texts);
    return copy_texts(texts, TARGET_TEXTS);
}

static bool copy_route(const struct lk_route *from, struct lk_route *to)
{
    char **texts[ROUTE_TEXTS];

    *to = *from;
    list_route_texts(to, texts);
    return copy_texts(texts, ROUTE_TEXTS);
}

/* A deep copy that shares nothing with `from`. LK_NOMEM: `to` is empty. */
enum lk_status lk_targets_copy(const struct lk_targets *from,
                               struct lk_targets *to)
{
    bool made = true;

    *to = (struct lk_targets){0};
    /* One more than needed: calloc(0) may return NULL. */
    to->targets = calloc(from->count + 1, sizeof(*to->targets));
    to->routes = calloc(from->route_count + 1, sizeof(*to->routes));
    made = to->targets && to->routes;
    for (size_t i = 0; made && i < from->count; i++) {
        made = copy_target(&from->targets[i], &to->targets[i]);
        /* Counted even if it failed: lk_targets_free() then frees its texts. */
        to->count++;
    }
    for (size_t i = 0; made && i < from->route_count; i++) {
        made = copy_route(&from->routes[i], &to->routes[i]);
        to->route_count++;
    }
    if (!made) {
        lk_targets_free(to);
    }
    return made ? LK_OK : LK_NOMEM;
}

void lk_targets_free(struct lk_targets *targets)
{
    for (size_t i = 0; i < targets->count; i++) {
        char **texts[TARGET_TEXTS];
        list_target_texts(&targets->targets[i], texts);
        free_texts(texts, TARGET_TEXTS);
    }
    for (size_t i = 0; i < targets->route_count; i++) {
        char **texts[ROUTE_TEXTS];
        list_route_texts(&targets->routes[i], texts);
        free_texts(texts, ROUTE_TEXTS);
    }
    free(targets->targets);
    free(targets->routes);
    *targets = (struct lk_targets){0};
}
