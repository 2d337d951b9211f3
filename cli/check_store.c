/* check_store.c - `latchkey check-store`: what a store promises, in words. */
#include "cli/commands.h"
#include "cli/move.h"

#include <string.h>
#include <unistd.h>

static const struct lk_option options[] = {
    {"strict", NULL, "exit status 1 if it promises less than survival"},
    {"config", "FILE", "take URL and settings from this latchkeyd.conf"},
    LK_OPTION_SET,
    {0},
};

const struct lk_manual lk_manual_check_store = {
    "Opens the store as latchkeyd would and says what it promises with its\n"
    "present settings, and those of the server behind it, one sentence a "
    "line.\n"
    "The last line is \"strict: yes\" if what is acknowledged survives what\n"
    "these sentences name, so that latchkeyd would start with strict = yes.\n"
    "Nothing is changed. URL may come from LATCHKEY_STORE too.",
    options};

static void show(struct lk_cli *cli, struct lk_slice text, bool strict)
{
    struct lk_doc doc = {.out = &cli->out};

    if (!cli->json) {
        lk_put_lines(&cli->out, text);
        lk_put(&cli->out, "strict: %s\n", strict ? "yes" : "no");
        return;
    }
    lk_doc_object(&doc, NULL);
    lk_doc_array(&doc, "promises");
    while (text.len > 0) {
        const char *end = memchr(text.data, '\n', text.len);
        size_t length = end == NULL ? text.len : (size_t)(end - text.data);

        lk_doc_text(&doc, NULL, (struct lk_slice){text.data, length});
        length += end != NULL;
        text = (struct lk_slice){text.data + length, text.len - length};
    }
    lk_doc_end_array(&doc);
    lk_doc_text(&doc, "strict", latchkey_slice(strict ? "yes" : "no"));
    lk_doc_end_object(&doc);
}

static enum lk_exit describe(struct lk_cli *cli,
                             const struct lk_store_class *class,
                             struct lk_store *store)
{
    struct lk_buf text = {0};
    bool strict = false;
    enum lk_status status = class->describe(store, &text, &strict);
    enum lk_exit result = LK_EXIT_DONE;

    if (status == LK_OK) {
        show(cli, latchkey_buf_slice(&text), strict);
        if (!strict && lk_args_flag(&cli->args, "strict")) {
            result = LK_EXIT_NO;
        }
    } else {
        result = lk_complain_store(status, "it was asked for its settings");
    }
    latchkey_buf_free(&text);
    return result;
}

/*
 * The promise of an embedded store does not depend on what is in it: one that
 * has a daemon, or is not there yet, need not be opened. Only an opening finds
 * what is wrong with the file.
 */
static enum lk_exit check_embedded(struct lk_cli *cli, const char *url,
                                   struct lk_store_config *config)
{
    const char *path = url + strlen("sqlite:");
    struct lk_store *store = NULL;
    struct lk_buf error = {0};
    enum lk_status status = LK_OK;
    enum lk_exit result;

    if (access(path, F_OK) != 0) {
        status = lk_sqlite_check_place(path, &error);
        if (status == LK_OK) {
            lk_hint(cli, "%s is not there yet; latchkeyd makes it", path);
            return describe(cli, &lk_sqlite_class, NULL);
        }
    } else {
        status = lk_store_open(url, config, &store, &error);
    }
    lk_put_raw(&error, (struct lk_slice){"", 1});
    if (status == LK_BUSY) {
        lk_hint(cli, "latchkeyd owns %s and has it open", path);
        result = describe(cli, &lk_sqlite_class, NULL);
    } else if (status == LK_OK) {
        result = describe(cli, &lk_sqlite_class, store);
    } else {
        lk_complain("%s", error.data);
        result = LK_EXIT_NO;
    }
    lk_store_close(store);
    latchkey_buf_free(&error);
    return result;
}

static enum lk_exit check(struct lk_cli *cli, const char *url,
                          struct lk_store_config *config)
{
    struct lk_store *store = NULL;
    enum lk_exit result;

    if (lk_url_is(url, "sqlite")) {
        return check_embedded(cli, url, config);
    }
    result = lk_store_connect(cli, url, config, &store);
    if (result == LK_EXIT_DONE) {
        result = describe(cli, store->class, store);
    }
    lk_store_close(store);
    return result;
}

enum lk_exit lk_run_check_store(struct lk_cli *cli)
{
    const char *url = cli->args.word_count > 0 ? cli->args.words[0] : NULL;
    struct lk_config settings;
    struct lk_store_config config;
    enum lk_exit result = lk_store_settings(cli, url, &settings, &config);

    if (result == LK_EXIT_DONE) {
        result = check(cli, settings.store_url, &config);
    }
    lk_config_free(&settings);
    return result;
}
