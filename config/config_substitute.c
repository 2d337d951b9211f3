/* config_substitute.c - what a value takes from files and the environment. */
#include "config/config_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MOST = 64 * 1024 };

bool lk_substitutes(const char *value)
{
    return strstr(value, "${") != NULL;
}

/* Only the name is told: what stands behind it may be a secret. */
static enum lk_status refuse(struct lk_buf *why, const char *kind,
                             const char *name, const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(name), quoted, sizeof(quoted));
    return latchkey_buf_printf(why, "%s %s %s", kind, quoted, text) == LK_OK
               ? LK_INVALID
               : LK_NOMEM;
}

static enum lk_status add_file(struct lk_buf *text, const char *path,
                               struct lk_buf *why)
{
    FILE *file = *path == '/' ? fopen(path, "re") : NULL;
    char *content = file ? malloc(FILE_MOST + 1) : NULL;
    enum lk_status status = LK_NOMEM;
    size_t len;

    if (*path != '/') {
        return refuse(why, "the file", path, "is not an absolute path");
    }
    if (!file) {
        char fault[160];

        snprintf(fault, sizeof(fault), "cannot be read: %s", strerror(errno));
        return refuse(why, "the file", path, fault);
    }
    if (content) {
        len = fread(content, 1, FILE_MOST + 1, file);
        while (len && (content[len - 1] == '\n' || content[len - 1] == '\r')) {
            len--;
        }
        if (ferror(file)) {
            status = refuse(why, "the file", path, "cannot be read");
        } else if (!len) {
            status = refuse(why, "the file", path, "is empty");
        } else if (len > FILE_MOST || memchr(content, '\0', len)) {
            status = refuse(why, "the file", path,
                            "is longer than 64 KiB, or no text");
        } else {
            status = latchkey_buf_add(text, content, len);
        }
        explicit_bzero(content, FILE_MOST + 1);
    }
    free(content);
    fclose(file);
    return status;
}

static enum lk_status add_variable(struct lk_buf *text, const char *name,
                                   struct lk_buf *why)
{
    const char *value = getenv(name);

    if (!value || !*value) {
        return refuse(why, "the environment variable", name,
                      "is not set, or empty");
    }
    return latchkey_buf_add_text(text, value);
}

/* `word` is what stands between the braces. */
static enum lk_status add_word(struct lk_buf *text, const char *word,
                               struct lk_buf *why)
{
    if (strncmp(word, "file:", 5) == 0) {
        return add_file(text, word + 5, why);
    }
    if (strncmp(word, "env:", 4) == 0) {
        return add_variable(text, word + 4, why);
    }
    return refuse(why, "what stands in ${...},", word,
                  "is neither file:/PATH nor env:NAME");
}

static enum lk_status add_all(struct lk_buf *text, const char *value,
                              struct lk_buf *why)
{
    enum lk_status status = LK_OK;
    const char *begin;

    while (!status && (begin = strstr(value, "${"))) {
        const char *end = strchr(begin, '}');
        if (!end) {
            return refuse(why, "in", value, "a ${ is never closed");
        }
        char *word = strndup(begin + 2, (size_t)(end - begin - 2));
        status = word ? latchkey_buf_add(text, value, (size_t)(begin - value))
                      : LK_NOMEM;
        if (!status) {
            status = add_word(text, word, why);
        }
        free(word);
        value = end + 1;
    }
    if (!status) {
        status = latchkey_buf_add(text, value, strlen(value) + 1);
    }
    return status;
}

enum lk_status lk_substitute(const char *value, char **text, struct lk_buf *why)
{
    struct lk_buf made = {0};
    enum lk_status status = add_all(&made, value, why);

    if (!status) {
        *text = strdup(made.data);
        status = *text ? LK_OK : LK_NOMEM;
    }
    if (made.data) {
        explicit_bzero(made.data, made.len);
    }
    latchkey_buf_free(&made);
    return status;
}
