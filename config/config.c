/*
 * config.c - reads the configuration file and the options over it.
 *
 * A value passes three layers, and a later one replaces an earlier one: the
 * defaults of the tables (config_table.c, config_target.c), the file, the
 * options of the command line. Every layer ends in assign_setting(), which
 * finds the row of the setting and lets its kind parse the value.
 * config_check.c then looks at the settings together.
 *
 * The file is a list of lines:
 *
 *   [section]            [target NAME], [route NAME]: config_target.c
 *   name = value         up to the end of the line
 *   # comment            on a line of its own; also with ";"
 */
#include "config/config.h"
#include "config/config_table.h"

#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SECTION_MAX = 49 }; /* inih would cut a longer name */

/* A file that is being read. */
struct file_loader {
    struct lk_config *config;
    const char *path;
    FILE *file;
    char *line;
    size_t line_cap;
    unsigned number;
    enum lk_status status; /* LK_NOMEM, LK_IO: reading ends */
    bool bad;              /* `errors` has a line */
    struct lk_buf *errors;
};

/* "latchkeyd.conf:12: " and what is wrong. */
static void add_file_error(struct file_loader *loader, const char *setting,
                           const char *text)
{
    enum lk_status status = latchkey_buf_printf(
        loader->errors, "%s:%u: %s%s%s\n", loader->path, loader->number,
        setting ? setting : "", setting ? ": " : "", text);

    loader->bad = true;
    if (status != LK_OK) {
        loader->status = status;
    }
}

/* LK_INVALID with the nearest name that exists, so that a slip of the finger is
 * quickly found. */
static enum lk_status refuse_unknown_setting(const char *section,
                                             const char *name,
                                             struct lk_buf *why)
{
    const struct lk_setting *nearest =
        lk_setting_nearest(lk_settings, lk_setting_count, section, name);

    if (nearest) {
        return lk_value_refuse(why, "there is no such setting; is %s.%s meant?",
                               nearest->section, nearest->name);
    }
    return lk_value_refuse(why, "there is no such setting; latchkeyd.conf(5) "
                                "lists them");
}

/*
 * Finds the row of a setting and parses the value into `config`. `line` is that
 * of the file, 0 for an option; it is kept for messages of config_check.c.
 * LK_INVALID: `why` has the reason, with a NUL at its end.
 */
static enum lk_status assign_setting(struct lk_config *config,
                                     const char *section, const char *name,
                                     const char *value,
                                     enum lk_config_source source,
                                     unsigned line, struct lk_buf *why)
{
    const struct lk_setting *setting =
        lk_setting_find(latchkey_slice(section), latchkey_slice(name));
    struct lk_assignment assignment = {.config = config,
                                       .base = config,
                                       .setting = setting,
                                       .name = name,
                                       .value = value,
                                       .shown = value,
                                       .source = source,
                                       .line = line};
    enum lk_status status;
    unsigned *given;

    if (lk_named_section(section)) {
        status =
            lk_named_assign(config, section, name, value, source, line, why);
        goto done;
    }
    if (!setting || *name == '\0') {
        status = refuse_unknown_setting(section, name, why);
        goto done;
    }
    /* Twice in the file is a mistake; an option over the file is not. */
    given = &config->given[setting - lk_settings];
    if (source == LK_CONFIG_FILE && *given > 0 && !setting->kind->repeats) {
        status = lk_value_refuse(why, "was given before, in line %u", *given);
        goto done;
    }
    status = setting->kind->parse(&assignment, why);
    if (status == LK_OK) {
        *given = line;
    }
done:
    if (status == LK_INVALID && latchkey_buf_add(why, "", 1) != LK_OK) {
        status = LK_NOMEM;
    }
    return status;
}

/* ---- a file -------------------------------------------------------------- */

static bool is_blank_char(char c)
{
    return c == ' ' || c == '\t';
}

/* ";" behind a blank, as inih would cut there; "#" only between blanks. */
static bool begins_comment(const char *at)
{
    return is_blank_char(at[-1]) &&
           (*at == ';' || (*at == '#' && is_blank_char(at[1])));
}

/*
 * What is wrong with the form of a line of `len` bytes, without its
 * indentation, or NULL. A comment behind a value is refused rather than guessed
 * at: inih would cut the value at " ;" without a word.
 */
static const char *file_line_fault(const char *line, size_t len)
{
    if (strlen(line) != len) {
        return "the line contains a NUL byte";
    }
    if (*line == '#' || *line == ';') {
        return NULL;
    }
    if (*line == '[' && strcspn(line + 1, "]") > SECTION_MAX) {
        return "the section's name is too long; it may have 49 characters";
    }
    for (const char *at = line; *line != '[' && *at; at++) {
        if (at > line && begins_comment(at)) {
            return "a comment must be on a line of its own";
        }
    }
    return NULL;
}

/*
 * Gives inih a line without its indentation: inih may be built to take an
 * indented line for a continuation. A bad line, a comment and what
 * does not fit (inih would continue in its middle) become empty lines.
 */
static char *read_file_line(char *to, int room, void *context)
{
    struct file_loader *loader = context;
    char too_long[80];
    ssize_t len;
    const char *fault, *line;

    if (loader->status != LK_OK) {
        return NULL;
    }
    len = getline(&loader->line, &loader->line_cap, loader->file);
    if (len < 0) {
        loader->status = ferror(loader->file) ? LK_IO : LK_OK;
        return NULL;
    }
    loader->number++;
    line = loader->line + strspn(loader->line, " \t");
    len -= line - loader->line;
    fault = file_line_fault(line, (size_t)len);
    if (!fault && *line != '#' && *line != ';' && len >= room) {
        snprintf(too_long, sizeof(too_long),
                 "the line is too long; it may have %d characters", room - 2);
        fault = too_long;
    }
    if (fault) {
        add_file_error(loader, NULL, fault);
    }
    if (fault || *line == '#' || *line == ';') {
        line = "\n";
        len = 1;
    }
    memcpy(to, line, (size_t)len + 1);
    return to;
}

/* inih's callback for one "name = value". A mistake gets a line in `errors`,
 * and reading goes on, so that all mistakes are reported at once. */
static int take_file_setting(void *context, const char *section,
                             const char *name, const char *value)
{
    struct file_loader *loader = context;
    struct lk_buf why = {0};
    enum lk_status status =
        assign_setting(loader->config, section, name, value ? value : "",
                       LK_CONFIG_FILE, loader->number, &why);

    if (status == LK_INVALID) {
        char dotted[LK_LOG_QUOTED], setting[LK_LOG_QUOTED];
        size_t len =
            (size_t)snprintf(dotted, sizeof(dotted), "%s.%s", section, name);

        /* [target pay] is shown as target.pay, as in an option. */
        if (lk_named_section(section)) {
            dotted[strcspn(dotted, " \t")] = '.';
        }
        /* Escaped as a quoted text is, but without the quotes. */
        lk_log_quote((struct lk_slice){dotted, len < 120 ? len : 120}, setting,
                     sizeof(setting));
        setting[strlen(setting) - 1] = '\0';
        add_file_error(loader, setting + 1, why.data);
    } else if (status != LK_OK) {
        loader->status = status;
    }
    /* `why` may quote the value, and that may be a secret. */
    if (why.data) {
        explicit_bzero(why.data, why.len);
    }
    latchkey_buf_free(&why);
    return 1;
}

/* Adds a line to `errors`. Returns LK_IO, or LK_NOMEM if there is no room. */
static enum lk_status report_unreadable(const char *path, int error,
                                        struct lk_buf *errors)
{
    return latchkey_buf_printf(
               errors,
               "%s: cannot be read: %s; is this the right file, and "
               "may this user read it?\n",
               path, strerror(error)) == LK_OK
               ? LK_IO
               : LK_NOMEM;
}

/*
 * Reads all of the file. LK_INVALID: `errors` has at least one line. inih
 * returns the number of the first line that is neither a section nor a setting,
 * or a negative number if it has no memory.
 */
static enum lk_status read_file_settings(struct file_loader *loader)
{
    int syntax =
        ini_parse_stream(read_file_line, loader, take_file_setting, loader);

    if (loader->status == LK_IO) {
        return report_unreadable(loader->path, errno, loader->errors);
    }
    if (syntax > 0 && loader->status == LK_OK) {
        loader->number = (unsigned)syntax;
        add_file_error(loader, NULL, "expected [section] or name = value");
    }
    if (loader->status != LK_OK || syntax < 0) {
        return LK_NOMEM;
    }
    return loader->bad ? LK_INVALID : LK_OK;
}

/*
 * The settings of the file that could be read are in `config` even if others
 * could not; the caller frees it either way. The buffer of lines is wiped: it
 * had passwords in it.
 */
enum lk_status lk_config_load(struct lk_config *config, const char *path,
                              struct lk_buf *errors)
{
    struct file_loader loader = {
        .config = config, .path = path, .errors = errors};
    enum lk_status status;
    struct stat st;

    free(config->file);
    config->file = strdup(path);
    loader.file = fopen(path, "re");
    if (!config->file) {
        status = LK_NOMEM;
    } else if (!loader.file || fstat(fileno(loader.file), &st) != 0) {
        status = report_unreadable(path, errno, errors);
    } else {
        config->file_open = (st.st_mode & S_IROTH) != 0;
        status = read_file_settings(&loader);
    }
    if (loader.line) {
        explicit_bzero(loader.line, loader.line_cap);
        free(loader.line);
    }
    if (loader.file) {
        fclose(loader.file);
    }
    return status;
}

/* ---- options ------------------------------------------------------------- */

/* `setting` is "section.name"; only the first dot divides it, so the name of a
 * user or target may have more of them. */
enum lk_status lk_config_set_value(struct lk_config *config,
                                   const char *setting, const char *value,
                                   struct lk_buf *errors)
{
    char name[LK_LOG_QUOTED];
    char *section = strdup(setting);
    char *dot = section ? strchr(section, '.') : NULL;
    struct lk_buf why = {0};
    enum lk_status status;

    lk_log_quote(latchkey_slice(setting), name, sizeof(name));
    if (!section) {
        return LK_NOMEM;
    }
    if (!dot) {
        status = lk_value_refuse(
            errors, "%s is not a setting; use section.name=value\n", name);
        goto done;
    }
    *dot = '\0';
    status = assign_setting(config, section, dot + 1, value, LK_CONFIG_OPTION,
                            0, &why);
    if (status == LK_INVALID) {
        /* The name is shown as it was quoted, without the quotes. */
        name[strlen(name) - 1] = '\0';
        if (latchkey_buf_printf(errors, "%s: %s\n", name + 1, why.data) !=
            LK_OK) {
            status = LK_NOMEM;
        }
    }
done:
    latchkey_buf_free(&why);
    free(section);
    return status;
}

/*
 * "section.name=value". Without "=" the value is empty, and its kind decides.
 */
enum lk_status lk_config_set(struct lk_config *config, const char *assignment,
                             struct lk_buf *errors)
{
    const char *equals = strchr(assignment, '=');
    enum lk_status status;
    char *setting;

    if (!equals) {
        return lk_config_set_value(config, assignment, "", errors);
    }
    setting = strndup(assignment, (size_t)(equals - assignment));
    if (!setting) {
        return LK_NOMEM;
    }
    status = lk_config_set_value(config, setting, equals + 1, errors);
    free(setting);
    return status;
}

/* "target.NAME.header" and "target.NAME.sign". */
static bool is_target_secret(const char *assignment, const char *equals)
{
    size_t len = (size_t)(equals - assignment);

    return strncmp(assignment, "target.", 7) == 0 &&
           ((len > 7 && strncmp(equals - 7, ".header", 7) == 0) ||
            (len > 5 && strncmp(equals - 5, ".sign", 5) == 0));
}

/* Overwrites a password in place, so that `ps` does not show the option. Its
 * length stays, because the memory belongs to the process's arguments. */
void lk_config_hide_secret(char *assignment)
{
    char *equals = strchr(assignment, '=');

    if (equals && (strncmp(assignment, "auth.password=", 14) == 0 ||
                   strncmp(assignment, "users.", 6) == 0 ||
                   is_target_secret(assignment, equals))) {
        memset(equals + 1, '*', strlen(equals + 1));
    } else if (equals) {
        lk_url_mask(equals + 1);
    }
}

/* ---- file and options together ------------------------------------------- */

/* One option, as "section.name=value" or as name and value apart. */
static enum lk_status set_option_value(struct lk_config *config,
                                       const struct lk_option_value *value,
                                       struct lk_buf *errors)
{
    if (value->value) {
        return lk_config_set_value(config, value->setting, value->value,
                                   errors);
    }
    return lk_config_set(config, value->setting, errors);
}

/*
 * Defaults, file, options, check: in this order, so that options replace the
 * file's values and the check sees the result. Unless it returns LK_OK,
 * `config` is freed and must not be used.
 */
enum lk_status lk_options_read(const struct lk_options *options,
                               struct lk_config *config, struct lk_buf *errors,
                               struct lk_buf *warnings)
{
    enum lk_status status = lk_config_init(config);

    if (status) {
        return status;
    }
    if (options->config_path) {
        status = lk_config_load(config, options->config_path, errors);
    }
    for (size_t i = 0; i < options->count && !status; i++) {
        status = set_option_value(config, &options->values[i], errors);
    }
    if (!status) {
        status = lk_config_check(config, errors, warnings);
    }
    if (status) {
        lk_config_free(config);
    }
    return status;
}

/* `store` borrows the texts of `config`, which must live as long. */
void lk_config_store(const struct lk_config *config,
                     struct lk_store_config *store)
{
    lk_store_config_default(store);
    store->default_ttl_ms = config->ttl_ms;
    store->default_lock_ms = config->lock_ms;
    store->clock_jump_ms = config->clock_jump_ms;
    store->checkpoint_pages = (unsigned)config->checkpoint_pages;
    store->cache_pages = (unsigned)config->cache_pages;
    store->reap_rows = (unsigned)config->reap_rows;
    store->connections = (unsigned)config->store_lanes;
    store->batch_ops = config->batch_ops;
    store->pooler = config->store_pooler;
    store->accept_loss = config->accept_loss;
    store->strict = config->strict;
    store->notify = config->store_notify;
    store->timeout_ms = config->store_timeout_ms;
    store->connect_timeout_ms = config->store_connect_timeout_ms;
    store->wait_replicas = (unsigned)config->wait_replicas;
    store->wait_timeout_ms = config->wait_timeout_ms;
    store->prefix = config->prefix;
    store->cache_url = config->cache_url;
    store->cache_timeout_ms = config->cache_timeout_ms;
}
