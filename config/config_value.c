/*
 * config_value.c - values of settings: how each kind is read and printed.
 *
 * A parse function reads assignment->value and stores the result at the
 * setting's offset in assignment->base (a configuration, a target or a route).
 * LK_INVALID: `why` has the reason, and the old value stays. A print function
 * appends the text from which the same value would be read; a kind without one
 * is a secret that is never printed.
 */
#include "config/config_table.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a sentence that refuses a value; a longer one is cut. */
enum { LK_WHY_TEXT = 768 };

/* Every setting that is not a text or a list is stored as a uint64_t. */
static uint64_t *setting_number_at(void *base, const struct lk_setting *setting)
{
    return (uint64_t *)((char *)base + setting->offset);
}

static uint64_t setting_number(const void *base,
                               const struct lk_setting *setting)
{
    return *setting_number_at((void *)base, setting);
}

static char **setting_text_at(void *base, const struct lk_setting *setting)
{
    return (char **)((char *)base + setting->offset);
}

/* Returns LK_INVALID, or LK_NOMEM if the reason cannot be stored. */
enum lk_status lk_value_refuse(struct lk_buf *why, const char *format, ...)
{
    char text[LK_WHY_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return latchkey_buf_add_text(why, text) == LK_OK ? LK_INVALID : LK_NOMEM;
}

/* The value, quoted and cut, in front of the reason. */
enum lk_status lk_value_invalid(struct lk_buf *why, const char *value,
                                const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(value), quoted, sizeof(quoted));
    return lk_value_refuse(why, "%s %s", quoted, text);
}

/* A number with one of the unit's words, within the row's min and max. */
static enum lk_status parse_units(const struct lk_assignment *assignment,
                                  enum lk_unit unit, const char *text,
                                  struct lk_buf *why)
{
    const struct lk_setting *setting = assignment->setting;
    struct lk_buf range = {0};
    enum lk_status status;
    uint64_t number;

    if (!lk_quantity_read(unit, latchkey_slice(assignment->value), &number)) {
        return lk_value_invalid(why, assignment->shown, text);
    }
    if (number >= setting->min && number <= setting->max) {
        *setting_number_at(assignment->base, setting) = number;
        return LK_OK;
    }
    /* The limits are shown in the unit in which they are written. */
    status = latchkey_buf_add_text(&range, "is out of range; use ");
    if (status == LK_OK) {
        status = lk_quantity_print(unit, &range, setting->min);
    }
    if (status == LK_OK) {
        status = latchkey_buf_add_text(&range, " to ");
    }
    if (status == LK_OK) {
        status = lk_quantity_print(unit, &range, setting->max);
    }
    if (status == LK_OK) {
        status = latchkey_buf_add(&range, "", 1);
    }
    if (status == LK_OK) {
        status = lk_value_invalid(why, assignment->shown, range.data);
    }
    latchkey_buf_free(&range);
    return status;
}

/* "10000": digits only. */
static enum lk_status parse_count(const struct lk_assignment *assignment,
                                  struct lk_buf *why)
{
    return parse_units(assignment, LK_UNIT_NONE,
                       "is not a number; use decimal digits", why);
}

static enum lk_status print_count(const void *base,
                                  const struct lk_setting *setting,
                                  struct lk_buf *out)
{
    return lk_quantity_print(LK_UNIT_NONE, out, setting_number(base, setting));
}

/* "64m": bytes, or k, m, g in powers of 1024. */
static enum lk_status parse_size(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    return parse_units(assignment, LK_UNIT_SIZE,
                       "is not a size; use a number of bytes, or one with k, "
                       "m or g",
                       why);
}

static enum lk_status print_size(const void *base,
                                 const struct lk_setting *setting,
                                 struct lk_buf *out)
{
    return lk_quantity_print(LK_UNIT_SIZE, out, setting_number(base, setting));
}

/* "30s": a unit is required, except for 0. Stored in milliseconds. */
static enum lk_status parse_duration(const struct lk_assignment *assignment,
                                     struct lk_buf *why)
{
    return parse_units(assignment, LK_UNIT_TIME,
                       lk_duration_fault(assignment->value), why);
}

enum lk_status lk_duration_print(struct lk_buf *out, uint64_t ms)
{
    return lk_quantity_print(LK_UNIT_TIME, out, ms);
}

static enum lk_status print_duration(const void *base,
                                     const struct lk_setting *setting,
                                     struct lk_buf *out)
{
    return lk_duration_print(out, setting_number(base, setting));
}

/* Three or four octal digits, at most 0777. */
static enum lk_status parse_mode(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    size_t len = strlen(assignment->value);

    if (len < 3 || len > 4 || strspn(assignment->value, "01234567") != len ||
        strtoul(assignment->value, NULL, 8) > 0777) {
        return lk_value_invalid(
            why, assignment->shown,
            "is not a mode; use three octal digits, as in 660");
    }
    *setting_number_at(assignment->base, assignment->setting) =
        strtoul(assignment->value, NULL, 8);
    return LK_OK;
}

/* Three octal digits at least, as chmod takes them. */
static enum lk_status print_mode(const void *base,
                                 const struct lk_setting *setting,
                                 struct lk_buf *out)
{
    return latchkey_buf_printf(
        out, "%03llo", (unsigned long long)setting_number(base, setting));
}

/* error, warn, info or debug; stored as enum lk_log_level. */
static enum lk_status parse_level(const struct lk_assignment *assignment,
                                  struct lk_buf *why)
{
    enum lk_log_level level;

    if (!lk_log_level_parse(latchkey_slice(assignment->value), &level)) {
        return lk_value_invalid(
            why, assignment->shown,
            "is not a level; use error, warn, info or debug");
    }
    *setting_number_at(assignment->base, assignment->setting) = level;
    return LK_OK;
}

static enum lk_status print_level(const void *base,
                                  const struct lk_setting *setting,
                                  struct lk_buf *out)
{
    uint64_t level = setting_number(base, setting);

    return latchkey_buf_add_text(out,
                                 lk_log_level_word((enum lk_log_level)level));
}

/* Stores a copy of the text. The old one is wiped: it may be a secret. */
enum lk_status lk_value_take(const struct lk_assignment *assignment)
{
    char **text = setting_text_at(assignment->base, assignment->setting);
    char *copy = strdup(assignment->value);

    if (!copy) {
        return LK_NOMEM;
    }
    lk_secret_free(*text);
    *text = copy;
    return LK_OK;
}

enum lk_status lk_value_print(const void *base,
                              const struct lk_setting *setting,
                              struct lk_buf *out)
{
    const char *text = *setting_text_at((void *)base, setting);

    return latchkey_buf_add_text(out, text ? text : "");
}

static void mask_text(char *from, size_t len)
{
    memset(from, '*', len);
}

/* Overwrites the password of a URL, or of a list of name=value pairs, with
 * asterisks in place. Returns whether there was one. */
bool lk_url_mask(char *url)
{
    char *authority = strstr(url, "://");
    char *named = strstr(url, "password=");
    bool found = false;

    if (authority) {
        authority += 3;
        /* The last "@" of the authority: a password may contain others. */
        size_t len = strcspn(authority, "/?");
        char *at = memrchr(authority, '@', len);
        char *colon =
            at ? memchr(authority, ':', (size_t)(at - authority)) : NULL;
        if (colon) {
            mask_text(colon + 1, (size_t)(at - colon - 1));
            found = true;
        }
    }
    if (named) {
        named += strlen("password=");
        /* In quotes it may contain spaces: then all the rest is masked. */
        mask_text(named,
                  *named == '\'' ? strlen(named) : strcspn(named, "& \t"));
        found = true;
    }
    return found;
}

/* Always without the password: the text goes to logs and clients. */
static enum lk_status print_url(const void *base,
                                const struct lk_setting *setting,
                                struct lk_buf *out)
{
    const char *text = *setting_text_at((void *)base, setting);
    char *shown = strdup(text ? text : "");

    if (!shown) {
        return LK_NOMEM;
    }
    lk_url_mask(shown);
    enum lk_status status = latchkey_buf_add_text(out, shown);
    free(shown);
    return status;
}

/* The message shows the URL without its password. */
static enum lk_status invalid_url(struct lk_buf *why, const char *value,
                                  const char *text)
{
    char *shown = strdup(value);

    if (!shown) {
        return LK_NOMEM;
    }
    lk_url_mask(shown);
    enum lk_status status = lk_value_invalid(why, shown, text);
    free(shown);
    return status;
}

/* The same check that a store makes before it is opened. *class is NULL if no
 * store has such URLs, or if the URL is only a prefix without a path. */
static enum lk_status check_store_url(const struct lk_assignment *assignment,
                                      const struct lk_store_class **class,
                                      struct lk_buf *why)
{
    struct lk_store_config store = {0};
    enum lk_status status =
        lk_store_check(assignment->value, &store, class, why);

    if (*class && !*store.path) {
        *class = NULL;
    }
    return status;
}

/* A URL that no store has gets one message with all forms; a URL that its store
 * refuses gets the reason of the store. */
static enum lk_status parse_url(const struct lk_assignment *assignment,
                                struct lk_buf *why)
{
    const struct lk_store_class *class;
    enum lk_status status = check_store_url(assignment, &class, why);

    if (!class) {
        why->len = 0;
        return invalid_url(why, assignment->shown,
                           "is not a store; use sqlite:PATH, "
                           "postgres://HOST/DATABASE or redis://HOST:PORT");
    }
    return status ? status : lk_value_take(assignment);
}

/* A Redis URL, or "none". */
static enum lk_status parse_cache(const struct lk_assignment *assignment,
                                  struct lk_buf *why)
{
    const struct lk_store_class *class;
    enum lk_status status;

    if (strcmp(assignment->value, "none") == 0) {
        char **text = setting_text_at(assignment->base, assignment->setting);
        lk_secret_free(*text);
        *text = NULL;
        return LK_OK;
    }
    status = check_store_url(assignment, &class, why);
    if (class != &lk_redis_class) {
        why->len = 0;
        return invalid_url(why, assignment->shown,
                           "is not a cache; use redis://HOST:PORT or none");
    }
    return status ? status : lk_value_take(assignment);
}

/* "yes" is 1, "no" is 0; nothing else is taken. */
static enum lk_status parse_switch(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    bool on = strcmp(assignment->value, "yes") == 0;

    if (!on && strcmp(assignment->value, "no") != 0) {
        return lk_value_invalid(why, assignment->shown,
                                "is neither yes nor no");
    }
    *setting_number_at(assignment->base, assignment->setting) = on;
    return LK_OK;
}

static enum lk_status print_switch(const void *base,
                                   const struct lk_setting *setting,
                                   struct lk_buf *out)
{
    return latchkey_buf_add_text(out,
                                 setting_number(base, setting) ? "yes" : "no");
}

static const char *const when_words[] = {"auto", "yes", "no"};

/* The words are in the order of enum lk_courier_when. */
static enum lk_status parse_when(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    for (uint64_t i = LK_COURIER_AUTO; i <= LK_COURIER_NO; i++) {
        if (strcmp(assignment->value, when_words[i]) == 0) {
            *setting_number_at(assignment->base, assignment->setting) = i;
            return LK_OK;
        }
    }
    return lk_value_invalid(why, assignment->shown,
                            "is neither auto, yes nor no");
}

static enum lk_status print_when(const void *base,
                                 const struct lk_setting *setting,
                                 struct lk_buf *out)
{
    return latchkey_buf_add_text(out,
                                 when_words[setting_number(base, setting)]);
}

/* "unix:/PATH", of which only the path is stored; "none" is NULL. */
static enum lk_status parse_socket(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    struct lk_assignment path = *assignment;

    if (strcmp(assignment->value, "none") == 0) {
        char **text = setting_text_at(assignment->base, assignment->setting);
        free(*text);
        *text = NULL;
        return LK_OK;
    }
    if (strncmp(assignment->value, "unix:/", 6) != 0 ||
        strlen(assignment->value) - 5 >= LK_SOCKET_PATH) {
        return lk_value_invalid(why, assignment->shown,
                                "is not a socket; use unix:/PATH, or none");
    }
    path.value += 5;
    return lk_value_take(&path);
}

static enum lk_status print_socket(const void *base,
                                   const struct lk_setting *setting,
                                   struct lk_buf *out)
{
    const char *path = *setting_text_at((void *)base, setting);

    return path ? latchkey_buf_printf(out, "unix:%s", path)
                : latchkey_buf_add_text(out, "none");
}

/* The prefix of keys in Redis, of characters that need no escaping anywhere. */
static enum lk_status parse_prefix(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    size_t len = strlen(assignment->value);

    if (len < 1 || len > 32 ||
        strspn(assignment->value, "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_.") != len) {
        return lk_value_invalid(
            why, assignment->shown,
            "is not a prefix; use up to 32 letters, digits, "
            "hyphens, dots and underscores");
    }
    return lk_value_take(assignment);
}

/* Whether the file is there is checked when it is read. */
static enum lk_status parse_path(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    if (assignment->value[0] != '/') {
        return lk_value_invalid(why, assignment->shown,
                                "is not an absolute path");
    }
    return lk_value_take(assignment);
}

/* An empty password would protect nothing. */
static enum lk_status parse_secret(const struct lk_assignment *assignment,
                                   struct lk_buf *why)
{
    if (assignment->value[0] == '\0') {
        return lk_value_refuse(why, "must not be empty");
    }
    return lk_value_take(assignment);
}

const struct lk_setting_kind lk_kind_count = {.parse = parse_count,
                                              .print = print_count};
const struct lk_setting_kind lk_kind_size = {.parse = parse_size,
                                             .print = print_size};
const struct lk_setting_kind lk_kind_duration = {.parse = parse_duration,
                                                 .print = print_duration};
const struct lk_setting_kind lk_kind_mode = {.parse = parse_mode,
                                             .print = print_mode};
const struct lk_setting_kind lk_kind_level = {.parse = parse_level,
                                              .print = print_level};
const struct lk_setting_kind lk_kind_url = {.parse = parse_url,
                                            .print = print_url};
const struct lk_setting_kind lk_kind_cache = {.parse = parse_cache,
                                              .print = print_url};
const struct lk_setting_kind lk_kind_switch = {.parse = parse_switch,
                                               .print = print_switch};
const struct lk_setting_kind lk_kind_when = {.parse = parse_when,
                                             .print = print_when};
const struct lk_setting_kind lk_kind_socket = {.parse = parse_socket,
                                               .print = print_socket};
const struct lk_setting_kind lk_kind_prefix = {.parse = parse_prefix,
                                               .print = lk_value_print};
const struct lk_setting_kind lk_kind_path = {.parse = parse_path,
                                             .print = lk_value_print};
const struct lk_setting_kind lk_kind_secret = {.parse = parse_secret};

/* ---- ${file:PATH} and ${env:NAME} ---------------------------------------- */

enum { SUBSTITUTE_FILE_MAX = 64 * 1024 };

/* Does the value name a file or variable? Then it has no secret itself. */
bool lk_substitutes(const char *value)
{
    return strstr(value, "${") != NULL;
}

/* Names only the file or variable: its content may be a secret. */
static enum lk_status refuse_substitute(struct lk_buf *why, const char *kind,
                                        const char *name, const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(name), quoted, sizeof(quoted));
    return lk_value_refuse(why, "%s %s %s", kind, quoted, text);
}

/*
 * Appends the content of a file, without line breaks at its end. One byte more
 * than the limit is read, to tell a file that is too long. The copy is wiped.
 */
static enum lk_status substitute_file(struct lk_buf *text, const char *path,
                                      struct lk_buf *why)
{
    FILE *file = *path == '/' ? fopen(path, "re") : NULL;
    char *content = file ? malloc(SUBSTITUTE_FILE_MAX + 1) : NULL;
    enum lk_status status = LK_NOMEM;
    size_t len;

    if (*path != '/') {
        return refuse_substitute(why, "the file", path,
                                 "is not an absolute path");
    }
    if (!file) {
        char fault[160];

        snprintf(fault, sizeof(fault), "cannot be read: %s", strerror(errno));
        return refuse_substitute(why, "the file", path, fault);
    }
    if (content) {
        len = fread(content, 1, SUBSTITUTE_FILE_MAX + 1, file);
        while (len && (content[len - 1] == '\n' || content[len - 1] == '\r')) {
            len--;
        }
        if (ferror(file)) {
            status = refuse_substitute(why, "the file", path, "cannot be read");
        } else if (!len) {
            status = refuse_substitute(why, "the file", path, "is empty");
        } else if (len > SUBSTITUTE_FILE_MAX || memchr(content, '\0', len)) {
            status = refuse_substitute(why, "the file", path,
                                       "is longer than 64 KiB, or not text");
        } else {
            status = latchkey_buf_add(text, content, len);
        }
        explicit_bzero(content, SUBSTITUTE_FILE_MAX + 1);
    }
    free(content);
    fclose(file);
    return status;
}

/* An empty variable is refused: it would be an empty password. */
static enum lk_status substitute_variable(struct lk_buf *text, const char *name,
                                          struct lk_buf *why)
{
    const char *value = getenv(name);

    if (!value || !*value) {
        return refuse_substitute(why, "the environment variable", name,
                                 "is not set, or empty");
    }
    return latchkey_buf_add_text(text, value);
}

/* `word` is the text between the braces. */
static enum lk_status substitute_word(struct lk_buf *text, const char *word,
                                      struct lk_buf *why)
{
    if (strncmp(word, "file:", 5) == 0) {
        return substitute_file(text, word + 5, why);
    }
    if (strncmp(word, "env:", 4) == 0) {
        return substitute_variable(text, word + 4, why);
    }
    return refuse_substitute(why, "the text in ${...},", word,
                             "is neither file:/PATH nor env:NAME");
}

/* Appends the value with each ${...} in it replaced, and a NUL. What was put in
 * is not searched again: a secret may contain "${". */
static enum lk_status substitute_all(struct lk_buf *text, const char *value,
                                     struct lk_buf *why)
{
    enum lk_status status = LK_OK;
    const char *begin;

    while (!status && (begin = strstr(value, "${"))) {
        const char *end = strchr(begin, '}');
        if (!end) {
            return refuse_substitute(why, "in", value, "a ${ is never closed");
        }
        char *word = strndup(begin + 2, (size_t)(end - begin - 2));
        status = word ? latchkey_buf_add(text, value, (size_t)(begin - value))
                      : LK_NOMEM;
        if (!status) {
            status = substitute_word(text, word, why);
        }
        free(word);
        value = end + 1;
    }
    if (!status) {
        status = latchkey_buf_add(text, value, strlen(value) + 1);
    }
    return status;
}

/*
 * *text then belongs to the caller, who frees it with lk_secret_free().
 * LK_INVALID: `why` has the reason, without the content of a file or variable.
 */
enum lk_status lk_substitute(const char *value, char **text, struct lk_buf *why)
{
    struct lk_buf made = {0};
    enum lk_status status = substitute_all(&made, value, why);

    if (!status) {
        assert(made.data); /* at least its NUL */
        *text = strdup(made.data);
        status = *text ? LK_OK : LK_NOMEM;
    }
    if (made.data) {
        explicit_bzero(made.data, made.len);
    }
    latchkey_buf_free(&made);
    return status;
}
