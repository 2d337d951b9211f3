/* stores.c - the store that a command opens itself, and its settings. */
#include "cli/move.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { TOOL_TIMEOUT_MS = 60 * 1000 }; /* for one batch */

const struct lk_option lk_store_options[] = {
    LK_OPTION_SET,
    {"config", "FILE", "settings of this latchkeyd.conf, URL included"},
    {0},
};

bool lk_url_is(const char *url, const char *scheme)
{
    size_t length = strlen(scheme);

    return strncmp(url, scheme, length) == 0 && url[length] == ':';
}

const char *lk_store_url(const struct lk_cli *cli)
{
    const char *url = lk_args_value(&cli->args, "store");

    if (url == NULL) {
        url = getenv("LATCHKEY_STORE");
    }
    return url == NULL || *url == '\0' ? NULL : url;
}

/* ---- Settings -------------------------------------------------------------
 */

enum kind { COUNT, SWITCH, DURATION, TEXT };

/* Those of latchkeyd.conf's [store] that have a bearing on what a store
 * promises, or on reaching it. */
static const struct setting {
    const char *name;
    enum kind kind;
    size_t offset; /* in struct lk_store_config */
} settings[] = {
    {"connections", COUNT, offsetof(struct lk_store_config, connections)},
    {"pooler", SWITCH, offsetof(struct lk_store_config, pooler)},
    {"accept_loss", SWITCH, offsetof(struct lk_store_config, accept_loss)},
    {"notify", SWITCH, offsetof(struct lk_store_config, notify)},
    {"timeout", DURATION, offsetof(struct lk_store_config, timeout_ms)},
    {"connect_timeout", DURATION,
     offsetof(struct lk_store_config, connect_timeout_ms)},
    {"wait_replicas", COUNT, offsetof(struct lk_store_config, wait_replicas)},
    {"wait_timeout", DURATION,
     offsetof(struct lk_store_config, wait_timeout_ms)},
    {"prefix", TEXT, offsetof(struct lk_store_config, prefix)},
    {"cache", TEXT, offsetof(struct lk_store_config, cache_url)},
    {"cache_timeout", DURATION,
     offsetof(struct lk_store_config, cache_timeout_ms)},
    {0},
};

/* Texts are kept behind each other, each with its NUL; as the buffer moves,
 * places are remembered by the setting and resolved at the end. */
struct reading {
    struct lk_store_config *config;
    struct lk_buf *text;
    size_t places[sizeof(settings) / sizeof(settings[0])]; /* 0: none */
    size_t url_place;
};

static size_t keep_text(struct reading *reading, const char *value)
{
    size_t place = reading->text->len;

    lk_put_raw(reading->text, (struct lk_slice){value, strlen(value) + 1});
    return place;
}

static bool read_count(const char *value, unsigned *count)
{
    char *end;
    unsigned long number = strtoul(value, &end, 10);

    *count = (unsigned)number;
    return *value >= '0' && *value <= '9' && *end == '\0' && number <= 1000;
}

static bool read_switch(const char *value, bool *on)
{
    bool yes = strcmp(value, "yes") == 0;

    *on = yes;
    return yes || strcmp(value, "no") == 0;
}

static bool read_duration(const char *value, uint64_t *ms)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"ms", 1},      {"s", 1000},     {"m", 60000},
                 {"h", 3600000}, {"d", 86400000}, {"", 1}};
    char *end;
    unsigned long long number = strtoull(value, &end, 10);

    for (size_t i = 0;
         *value >= '0' && *value <= '9' && i < sizeof(units) / sizeof(units[0]);
         i++) {
        if (strcmp(end, units[i].name) == 0 && number < UINT32_MAX) {
            *ms = number * units[i].ms;
            return true;
        }
    }
    return false;
}

static const struct setting *find_setting(const char *name)
{
    const struct setting *setting = settings;

    while (setting->name != NULL && strcmp(setting->name, name) != 0) {
        setting++;
    }
    return setting->name == NULL ? NULL : setting;
}

static bool set_value(struct reading *reading, const struct setting *setting,
                      const char *value)
{
    void *at = (char *)reading->config + setting->offset;

    switch (setting->kind) {
    case COUNT:
        return read_count(value, at);
    case SWITCH:
        return read_switch(value, at);
    case DURATION:
        return read_duration(value, at);
    case TEXT:
        reading->places[setting - settings] = keep_text(reading, value);
        return *value != '\0';
    }
    return false;
}

/* ---- A latchkeyd.conf -----------------------------------------------------
 */

static char *trim(char *text)
{
    size_t length;

    while (isspace((unsigned char)*text)) {
        text++;
    }
    for (length = strlen(text);
         length > 0 && isspace((unsigned char)text[length - 1]); length--) {
        text[length - 1] = '\0';
    }
    return text;
}

/* latchkeyd --check-config judges a file; this only takes from it what is
 * needed here. */
static enum lk_exit read_line(struct reading *reading, const char *path,
                              char *line, char *section, size_t size)
{
    char *value = strchr(line, '=');
    const struct setting *setting;

    if (*line == '[') {
        line[strcspn(line, "]")] = '\0';
        strncpy(section, line + 1, size - 1);
        return LK_EXIT_DONE;
    }
    if (*line == '\0' || *line == '#' || *line == ';' || value == NULL) {
        return LK_EXIT_DONE;
    }
    *value = '\0';
    value = trim(value + 1);
    line = trim(line);
    if (strcmp(section, "daemon") == 0 && strcmp(line, "store") == 0) {
        reading->url_place = keep_text(reading, value);
        return LK_EXIT_DONE;
    }
    setting = strcmp(section, "store") == 0 ? find_setting(line) : NULL;
    if (setting != NULL && !set_value(reading, setting, value)) {
        lk_complain("%s: store.%s cannot be \"%s\"", path, line, value);
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

static enum lk_exit read_config(struct reading *reading, const char *path)
{
    struct lk_buf file = {0};
    char section[32] = "";
    enum lk_exit result = lk_read_file(path, &file);
    char *rest = NULL;

    lk_put_raw(&file, (struct lk_slice){"", 1});
    for (char *line = strtok_r(file.data, "\n", &rest);
         line != NULL && result == LK_EXIT_DONE;
         line = strtok_r(NULL, "\n", &rest)) {
        result = read_line(reading, path, trim(line), section, sizeof(section));
    }
    latchkey_buf_free(&file);
    return result;
}

/* ---- Both -----------------------------------------------------------------
 */

static enum lk_exit read_set(struct reading *reading, const char *given)
{
    char name[64] = "";
    const char *value = strchr(given, '=');
    const char *from = strncmp(given, "store.", 6) == 0 ? given + 6 : given;
    const struct setting *setting = NULL;

    if (value != NULL && (size_t)(value - from) < sizeof(name)) {
        memcpy(name, from, (size_t)(value - from));
        setting = find_setting(name);
    }
    if (setting == NULL) {
        lk_complain("--set \"%s\": name=value is needed, with the name of a "
                    "setting of a store, such as connections, pooler, "
                    "accept_loss, wait_replicas or cache",
                    given);
        return LK_EXIT_USAGE;
    }
    if (!set_value(reading, setting, value + 1)) {
        lk_complain("--set: store.%s cannot be \"%s\"", name, value + 1);
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

static void place_texts(struct reading *reading, const char **url)
{
    for (size_t i = 0; settings[i].name != NULL; i++) {
        if (reading->places[i] != 0) {
            const char *text = reading->text->data + reading->places[i];
            const char **at =
                (void *)((char *)reading->config + settings[i].offset);

            *at = strcmp(text, "none") == 0 ? NULL : text;
        }
    }
    if (*url == NULL && reading->url_place != 0) {
        *url = reading->text->data + reading->url_place;
    }
}

enum lk_exit lk_store_settings(const struct lk_cli *cli,
                               struct lk_store_config *config, const char **url,
                               struct lk_buf *text)
{
    struct reading reading = {.config = config, .text = text};
    const char *path = lk_args_value(&cli->args, "config");
    const char *given;
    size_t at = 0;
    enum lk_exit result = LK_EXIT_DONE;

    lk_store_config_default(config);
    config->connections = 1;
    /* No client waits for it: a busy server may take its time. */
    config->timeout_ms = TOOL_TIMEOUT_MS;
    lk_put_raw(text, (struct lk_slice){"", 1}); /* no place is 0 */
    if (path != NULL) {
        result = read_config(&reading, path);
    }
    while (result == LK_EXIT_DONE &&
           (given = lk_args_next(&cli->args, "set", &at)) != NULL) {
        result = read_set(&reading, given);
    }
    if (result == LK_EXIT_DONE) {
        place_texts(&reading, url);
    }
    return result;
}

/* ---- Opening --------------------------------------------------------------
 */

/* The store's own words, to whoever sits here. */
static void tell(void *context, int level, const char *line)
{
    (void)context;
    if (level <= 1) {
        lk_complain("%s", line);
    }
}

enum lk_exit lk_store_connect(struct lk_cli *cli, const char *url,
                              struct lk_store_config *config,
                              struct lk_store **store)
{
    struct lk_buf error = {0};

    (void)cli;
    config->log = tell;
    enum lk_status status = lk_store_open(url, config, store, &error);
    if (status != LK_OK) {
        lk_put_raw(&error, (struct lk_slice){"", 1});
        lk_complain("%s",
                    error.len > 1 ? error.data : latchkey_status_text(status));
    }
    latchkey_buf_free(&error);
    switch (status) {
    case LK_OK:
        return LK_EXIT_DONE;
    case LK_INVALID:
    case LK_BUSY:
    case LK_VERSION:
        return LK_EXIT_NO;
    case LK_DENIED:
        return LK_EXIT_DENIED;
    default:
        return LK_EXIT_UNREACHABLE;
    }
}

enum lk_exit lk_complain_store(enum lk_status status, const char *doing)
{
    lk_complain("the store failed while %s: %s", doing,
                latchkey_status_text(status));
    return status == LK_UNAVAILABLE || status == LK_UNKNOWN
               ? LK_EXIT_UNREACHABLE
               : LK_EXIT_FAILED;
}
