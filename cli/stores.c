/* stores.c - the store that a command opens itself, and its settings. */
#include "cli/move.h"

#include <stdlib.h>
#include <string.h>

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

/* Lines of the reader, as they are. */
static void complain_lines(const struct lk_buf *lines)
{
    struct lk_slice rest = latchkey_buf_slice(lines);

    while (rest.len > 0) {
        const char *end = memchr(rest.data, '\n', rest.len);
        size_t length = end == NULL ? rest.len : (size_t)(end - rest.data);

        lk_complain("%.*s", (int)length, rest.data);
        length += end != NULL;
        rest = (struct lk_slice){rest.data + length, rest.len - length};
    }
}

/* --set NAME=VALUE is --set store.NAME=VALUE. */
static enum lk_status set_option(struct lk_config *settings, const char *given,
                                 struct lk_buf *errors)
{
    struct lk_buf whole = {0};
    enum lk_status status;

    if (strcspn(given, ".") < strcspn(given, "=")) {
        return lk_config_set(settings, given, errors);
    }
    lk_put(&whole, "store.%s", given);
    lk_put_raw(&whole, (struct lk_slice){"", 1});
    status = lk_config_set(settings, whole.data, errors);
    latchkey_buf_free(&whole);
    return status;
}

/*
 * What latchkeyd would read, in the same order, over two defaults of our own:
 * one connection is enough, and no client waits, so a busy server may take its
 * time.
 */
static enum lk_status read_settings(const struct lk_cli *cli, const char *url,
                                    struct lk_config *settings,
                                    struct lk_buf *errors)
{
    const char *path = lk_args_value(&cli->args, "config");
    enum lk_status status =
        lk_config_set(settings, "store.connections=1", errors);
    struct lk_buf warnings = {0};
    const char *given;
    size_t at = 0;

    if (status == LK_OK) {
        status = lk_config_set(settings, "store.timeout=1m", errors);
    }
    if (status == LK_OK && path != NULL) {
        status = lk_config_load(settings, path, errors);
    }
    if (status == LK_OK && url != NULL) {
        status = lk_config_set_value(settings, "daemon.store", url, errors);
    }
    while (status == LK_OK &&
           (given = lk_args_next(&cli->args, "set", &at)) != NULL) {
        status = set_option(settings, given, errors);
    }
    if (status == LK_OK) {
        status = lk_config_check(settings, errors, &warnings);
    }
    latchkey_buf_free(&warnings); /* latchkeyd gives them */
    return status;
}

enum lk_exit lk_store_settings(struct lk_cli *cli, const char *url,
                               struct lk_config *settings,
                               struct lk_store_config *config)
{
    struct lk_buf errors = {0};
    enum lk_status status;

    *settings = (struct lk_config){0};
    if (url == NULL && lk_args_value(&cli->args, "config") == NULL) {
        url = lk_store_url(cli);
        if (url == NULL) {
            return lk_complain_usage(cli, "name the store by its URL, with "
                                          "--config or with LATCHKEY_STORE");
        }
    }
    status = lk_config_init(settings);
    if (status == LK_OK) {
        status = read_settings(cli, url, settings, &errors);
    }
    complain_lines(&errors);
    if (status != LK_OK && errors.len == 0) {
        lk_complain("%s", latchkey_status_text(status));
    }
    latchkey_buf_free(&errors);
    if (status != LK_OK) {
        lk_config_free(settings);
        return LK_EXIT_USAGE;
    }
    lk_config_store(settings, config);
    config->strict = false; /* check-store says so itself */
    return LK_EXIT_DONE;
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
        bool lost = status == LK_IO || status == LK_CLOSED ||
                    status == LK_TIMEOUT || status == LK_MALFORMED ||
                    status == LK_UNAVAILABLE;

        lk_put_raw(&error, (struct lk_slice){"", 1});
        lk_complain("%s%s",
                    error.len > 1 ? error.data : latchkey_status_text(status),
                    lost && !lk_url_is(url, "sqlite")
                        ? "; is the store's server running, and its URL right?"
                        : "");
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
