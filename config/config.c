/* config.c - reads the configuration file and the options over it. */
#include "config/config.h"
#include "config/config_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ini.h>

enum { SECTION_MAX = 49 }; /* inih would cut a longer name */

/* A file being read. */
struct loader {
    struct lk_config *config;
    const char *path;
    FILE *file;
    char *line;
    size_t line_cap;
    unsigned number;
    enum lk_status status; /* LK_NOMEM, LK_IO: reading stops */
    bool bad;              /* `errors` has a line */
    struct lk_buf *errors;
};

/* "latchkeyd.conf:12: " and what is wrong. */
static void complain(struct loader *loader, const char *setting,
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

/* Sentence for a setting that does not exist. */
static enum lk_status explain_unknown(const char *section, const char *name,
                                      struct lk_buf *why)
{
    const struct lk_setting *nearest =
        lk_setting_nearest(lk_settings, lk_setting_count, section, name);

    if (nearest) {
        return latchkey_buf_printf(why,
                                   "there is no such setting; is %s.%s meant?",
                                   nearest->section, nearest->name);
    }
    return latchkey_buf_add_text(why, "there is no such setting; "
                                      "latchkeyd.conf(5) lists them");
}

/* LK_INVALID: `why` says why, and ends with a NUL. */
static enum lk_status assign(struct lk_config *config, const char *section,
                             const char *name, const char *value,
                             enum lk_config_source source, unsigned line,
                             struct lk_buf *why)
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
        status = explain_unknown(section, name, why);
        status = status == LK_OK ? LK_INVALID : status;
        goto done;
    }
    given = &config->given[setting - lk_settings];
    if (source == LK_CONFIG_FILE && *given > 0 && !setting->kind->repeats) {
        status =
            latchkey_buf_printf(why, "was given before, in line %u", *given);
        status = status == LK_OK ? LK_INVALID : status;
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

/* ---- a file
 * --------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* ";" behind a blank, as inih would cut there; "#" only between blanks. */
static bool begins_comment(const char *at)
{
    return is_blank(at[-1]) && (*at == ';' || (*at == '#' && is_blank(at[1])));
}

/* What is wrong with a line before its meaning is looked at, or NULL. */
static const char *find_fault(const char *line, size_t len)
{
    if (strlen(line) != len) {
        return "the line contains a NUL byte";
    }
    if (*line == '#' || *line == ';') {
        return NULL;
    }
    if (*line == '[' && strcspn(line + 1, "]") > SECTION_MAX) {
        return "the section's name is too long; 49 characters are the most";
    }
    for (const char *at = line; *line != '[' && *at; at++) {
        if (at > line && begins_comment(at)) {
            return "a comment must stand on a line of its own";
        }
    }
    return NULL;
}

/*
 * Gives inih a line without its indentation, as inih may be built to take an
 * indented line for more of the one before. A bad line, a comment and what
 * does not fit (inih would go on in its midst) become empty lines.
 */
static char *read_line(char *to, int room, void *context)
{
    struct loader *loader = context;
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
    fault = find_fault(line, (size_t)len);
    if (!fault && *line != '#' && *line != ';' && len >= room) {
        snprintf(too_long, sizeof(too_long),
                 "the line is too long; %d characters are the most", room - 2);
        fault = too_long;
    }
    if (fault) {
        complain(loader, NULL, fault);
    }
    if (fault || *line == '#' || *line == ';') {
        line = "\n";
        len = 1;
    }
    memcpy(to, line, (size_t)len + 1);
    return to;
}

static int take_setting(void *context, const char *section, const char *name,
                        const char *value)
{
    struct loader *loader = context;
    struct lk_buf why = {0};
    enum lk_status status =
        assign(loader->config, section, name, value ? value : "",
               LK_CONFIG_FILE, loader->number, &why);

    if (status == LK_INVALID) {
        char dotted[LK_LOG_QUOTED], setting[LK_LOG_QUOTED];
        size_t len =
            (size_t)snprintf(dotted, sizeof(dotted), "%s.%s", section, name);

        /* [target pay] is target.pay, as an option would have it. */
        if (lk_named_section(section)) {
            dotted[strcspn(dotted, " \t")] = '.';
        }
        /* Escaped as a quoted text is, but without the quotes. */
        lk_log_quote((struct lk_slice){dotted, len < 120 ? len : 120}, setting,
                     sizeof(setting));
        setting[strlen(setting) - 1] = '\0';
        complain(loader, setting + 1, why.data);
    } else if (status != LK_OK) {
        loader->status = status;
    }
    if (why.data) {
        explicit_bzero(why.data, why.len);
    }
    latchkey_buf_free(&why);
    return 1;
}

static enum lk_status report_io(const char *path, int error,
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

static enum lk_status read_settings(struct loader *loader)
{
    int syntax = ini_parse_stream(read_line, loader, take_setting, loader);

    if (loader->status == LK_IO) {
        return report_io(loader->path, errno, loader->errors);
    }
    if (syntax > 0 && loader->status == LK_OK) {
        loader->number = (unsigned)syntax;
        complain(loader, NULL, "expected [section] or name = value");
    }
    if (loader->status != LK_OK || syntax < 0) {
        return LK_NOMEM;
    }
    return loader->bad ? LK_INVALID : LK_OK;
}

enum lk_status lk_config_load(struct lk_config *config, const char *path,
                              struct lk_buf *errors)
{
    struct loader loader = {.config = config, .path = path, .errors = errors};
    enum lk_status status;
    struct stat st;

    free(config->file);
    config->file = strdup(path);
    loader.file = fopen(path, "re");
    if (!config->file) {
        status = LK_NOMEM;
    } else if (!loader.file || fstat(fileno(loader.file), &st) != 0) {
        status = report_io(path, errno, errors);
    } else {
        config->file_open = (st.st_mode & S_IROTH) != 0;
        status = read_settings(&loader);
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

/* ---- options
 * ---------------------------------------------------------------------- */

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
        status = latchkey_buf_printf(
            errors, "%s is not a setting; use section.name=value\n", name);
        status = status == LK_OK ? LK_INVALID : status;
        goto done;
    }
    *dot = '\0';
    status = assign(config, section, dot + 1, value, LK_CONFIG_OPTION, 0, &why);
    if (status == LK_INVALID) {
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

static bool is_target_secret(const char *assignment, const char *equals)
{
    size_t len = (size_t)(equals - assignment);

    return strncmp(assignment, "target.", 7) == 0 &&
           ((len > 7 && strncmp(equals - 7, ".header", 7) == 0) ||
            (len > 5 && strncmp(equals - 5, ".sign", 5) == 0));
}

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
