/*
 * store_admin.c - stores and their settings, opened by the tool itself, and
 * what is done with a whole store: `latchkey migrate`, `check-store`, `verify`
 * and `backup`.
 *
 * migrate and check-store (and export and import with --store) open the store
 * in this process, with the settings that latchkeyd would use. verify and
 * backup ask the daemon and wait, for hours if need be.
 */
#include "cli/commands.h"
#include "cli/move.h"
#include "store/postgres_migrate.h"
#include "store/redis.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ==== The store that a command opens itself, and its settings */

/* "scheme:" at the front of the URL. */
bool lk_url_is(const char *url, const char *scheme)
{
    size_t length = strlen(scheme);

    return strncmp(url, scheme, length) == 0 && url[length] == ':';
}

/* --store, else LATCHKEY_STORE; NULL: neither. */
const char *lk_store_url(const struct lk_cli *cli)
{
    const char *url = lk_args_value(&cli->args, "store");

    if (url == NULL) {
        url = getenv("LATCHKEY_STORE");
    }
    return url == NULL || *url == '\0' ? NULL : url;
}

/* ---- Settings ------------------------------------------------------------ */

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
static enum lk_status read_store_settings(const struct lk_cli *cli,
                                          const char *url,
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

/*
 * Reads the settings of a store. `config` borrows from `settings`, which the
 * caller frees with lk_config_free() after success; after a failure there is
 * nothing to free.
 */
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
        status = read_store_settings(cli, url, settings, &errors);
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

/* ---- Opening ------------------------------------------------------------- */

/* The store's own messages go to the user. */
static void print_store_line(void *context, int level, const char *line)
{
    (void)context;
    if (level <= 1) {
        lk_complain("%s", line);
    }
}

/*
 * LK_EXIT_DONE: *store is open, and the caller closes it. Otherwise it has
 * complained: LK_EXIT_NO: the store itself must change (version, in use,
 * settings); LK_EXIT_DENIED; LK_EXIT_UNREACHABLE.
 */
enum lk_exit lk_store_connect(struct lk_cli *cli, const char *url,
                              struct lk_store_config *config,
                              struct lk_store **store)
{
    struct lk_buf error = {0};

    (void)cli;
    config->log = print_store_line;
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

/* "the store failed while `doing`", and its exit status. */
enum lk_exit lk_complain_store(enum lk_status status, const char *doing)
{
    lk_complain("the store failed while %s: %s", doing,
                latchkey_status_text(status));
    return status == LK_UNAVAILABLE || status == LK_UNKNOWN
               ? LK_EXIT_UNREACHABLE
               : LK_EXIT_FAILED;
}

/* ==== `latchkey migrate`: what a store on a server needs there */

static const struct lk_option migrate_options[] = {
    {"print", NULL, "print what would be run, and connect to nothing"},
    {"from", "VERSION", "print what updates from this version (0: all)"},
    {0},
};

const struct lk_manual lk_manual_migrate = {
    "Creates or updates the schema \"latchkey\" in a PostgreSQL database, or\n"
    "loads the functions into a Redis server. URL is that of the store\n"
    "(LATCHKEY_STORE), with a user who may do so. It may be run again, twice\n"
    "at the same time, and while daemons work. An embedded store does not "
    "need\n"
    "it.\n"
    "\n"
    "--print writes the SQL (the library for a redis: URL), for someone else\n"
    "to run at once:\n"
    "  latchkey migrate --print | psql -v ON_ERROR_STOP=1 -d app",
    migrate_options};

static bool is_redis(const char *url)
{
    return lk_url_is(url, "redis") || lk_url_is(url, "redis-sentinel");
}

static bool is_postgres_url(const char *url)
{
    return lk_url_is(url, "postgres") || lk_url_is(url, "postgresql");
}

/* All of the SQL, or what updates from the version --from. */
static enum lk_exit print_sql(struct lk_cli *cli)
{
    uint64_t from = 0;
    enum lk_exit result =
        lk_args_number(&cli->args, "from", 0, INT32_MAX, &from);
    enum lk_status status = LK_OK;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    status = lk_postgres_sql((long)from, &cli->out);
    return status == LK_OK ? LK_EXIT_DONE
                           : lk_complain_store(status, "its SQL was written");
}

static void show_migration(struct lk_cli *cli, struct lk_slice report)
{
    struct lk_doc doc = {.out = &cli->out};

    if (!cli->json) {
        lk_put_lines(&cli->out, report);
        if (report.len > 0 && report.data[report.len - 1] != '\n') {
            lk_put(&cli->out, "\n");
        }
        return;
    }
    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "result", LK_SLICE("OK"));
    lk_doc_text(&doc, "report", report);
    lk_doc_end_object(&doc);
}

/* The server's own words if there are any, else those of the status. */
static void complain_migration(struct lk_buf *why, enum lk_status status)
{
    if (why->len > 0 && why->data[why->len - 1] == '\n') {
        why->len--;
    }
    lk_put_raw(why, (struct lk_slice){"", 1});
    lk_complain("%s", why->len > 1 ? why->data : latchkey_status_text(status));
}

/* May be run again: what is there already stays. LK_EXIT_NO: the store is of a
 * later version. */
enum lk_exit lk_migrate_store(struct lk_cli *cli, const char *url)
{
    struct lk_buf said = {0};
    struct lk_buf warning = {0};
    struct lk_buf error = {0};
    enum lk_status status = LK_OK;

    if (is_postgres_url(url)) {
        status = lk_postgres_migrate(url, &said, &warning, &error);
    } else if (is_redis(url)) {
        status = lk_redis_migrate(url, &said);
    } else if (lk_url_is(url, "sqlite")) {
        lk_put(&said, "an embedded store needs nothing: latchkeyd makes and "
                      "updates its file");
    } else {
        return lk_complain_usage(cli,
                                 "\"%.*s\" is not a store of Latchkey; its URL "
                                 "begins with postgres:, redis: or sqlite:",
                                 (int)strcspn(url, ":"), url);
    }
    if (warning.len > 0) {
        lk_complain("warning: %.*s", (int)warning.len, warning.data);
    }
    if (status == LK_OK) {
        show_migration(cli, latchkey_buf_slice(&said));
    } else {
        complain_migration(error.len > 0 ? &error : &said, status);
    }
    latchkey_buf_free(&said);
    latchkey_buf_free(&warning);
    latchkey_buf_free(&error);
    switch (status) {
    case LK_OK:
        return LK_EXIT_DONE;
    case LK_VERSION:
        return LK_EXIT_NO;
    case LK_DENIED:
        return LK_EXIT_DENIED;
    case LK_UNAVAILABLE:
    case LK_TIMEOUT:
    case LK_CLOSED:
    case LK_IO:
        return LK_EXIT_UNREACHABLE;
    default:
        return LK_EXIT_FAILED;
    }
}

static enum lk_exit print_migration(struct lk_cli *cli, const char *url)
{
    if (url == NULL || is_postgres_url(url)) {
        return print_sql(cli);
    }
    if (!is_redis(url)) {
        return lk_complain_usage(cli,
                                 "--print is for PostgreSQL and Redis only");
    }
    lk_put_raw(&cli->out, lk_redis_library());
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_migrate(struct lk_cli *cli)
{
    const char *url =
        cli->args.word_count > 0 ? cli->args.words[0] : lk_store_url(cli);

    if (lk_args_flag(&cli->args, "print")) {
        return print_migration(cli, url);
    }
    if (url == NULL) {
        return lk_complain_usage(cli, "name the store by its URL, or with "
                                      "LATCHKEY_STORE");
    }
    return lk_migrate_store(cli, url);
}

/* ==== `latchkey check-store`: what a store promises, in words */

static const struct lk_option check_store_options[] = {
    {"strict", NULL, "exit status 1 unless the last line is strict: yes"},
    {"config", "FILE", "take URL and settings from this latchkeyd.conf"},
    LK_OPTION_SET,
    {0},
};

const struct lk_manual lk_manual_check_store = {
    "Opens the store as latchkeyd would and prints what it guarantees with "
    "its\n"
    "current settings, and those of its server, one sentence per line. The "
    "last\n"
    "line is \"strict: yes\" if an acknowledged operation survives the "
    "failures\n"
    "that these sentences name, so that latchkeyd would start with strict = "
    "yes.\n"
    "Nothing is changed. URL may also come from LATCHKEY_STORE.",
    check_store_options};

/* One sentence on each line, then the verdict. */
static void show_promises(struct lk_cli *cli, struct lk_slice text, bool strict)
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

/* `store` may be NULL for a class whose promises do not depend on it.
 * LK_EXIT_NO: --strict was given, and the store is not strict. */
static enum lk_exit describe_store(struct lk_cli *cli,
                                   const struct lk_store_class *class,
                                   struct lk_store *store)
{
    struct lk_buf text = {0};
    bool strict = false;
    enum lk_status status = class->describe(store, &text, &strict);
    enum lk_exit result = LK_EXIT_DONE;

    if (status == LK_OK) {
        show_promises(cli, latchkey_buf_slice(&text), strict);
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
            return describe_store(cli, &lk_sqlite_class, NULL);
        }
    } else {
        status = lk_store_open(url, config, &store, &error);
    }
    lk_put_raw(&error, (struct lk_slice){"", 1});
    if (status == LK_BUSY) {
        lk_hint(cli, "latchkeyd owns %s and has it open", path);
        result = describe_store(cli, &lk_sqlite_class, NULL);
    } else if (status == LK_OK) {
        result = describe_store(cli, &lk_sqlite_class, store);
    } else {
        lk_complain("%s", error.data);
        result = LK_EXIT_NO;
    }
    lk_store_close(store);
    latchkey_buf_free(&error);
    return result;
}

static enum lk_exit check_store(struct lk_cli *cli, const char *url,
                                struct lk_store_config *config)
{
    struct lk_store *store = NULL;
    enum lk_exit result;

    if (lk_url_is(url, "sqlite")) {
        return check_embedded(cli, url, config);
    }
    result = lk_store_connect(cli, url, config, &store);
    if (result == LK_EXIT_DONE) {
        result = describe_store(cli, store->class, store);
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
        assert(settings.store_url); /* or the settings would be refused */
        result = check_store(cli, settings.store_url, &config);
    }
    lk_config_free(&settings);
    return result;
}

/* ==== `latchkey verify`: checks everything that is stored */

static const struct lk_option verify_options[] = {{0}};

const struct lk_manual lk_manual_verify = {
    "Lets the daemon read and check everything that is stored, while it keeps\n"
    "working. Exit status 1 if something is damaged; each finding is a line.\n"
    "Waits until it is finished, unless --timeout is given.",
    verify_options};

static void show_report(struct lk_cli *cli, const struct lk_reply *report)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", report->elements[0].text);
        lk_doc_array(&doc, "lines");
    }
    for (size_t i = cli->json ? 1 : 0; i < report->count; i++) {
        if (cli->json) {
            lk_doc_reply(&doc, NULL, &report->elements[i]);
        } else {
            lk_put_text(&cli->out, report->elements[i].text);
            lk_put(&cli->out, "\n");
        }
    }
    if (cli->json) {
        lk_doc_end_array(&doc);
        lk_doc_end_object(&doc);
    }
}

/* LK_EXIT_NO: something is damaged; the report has been printed. */
enum lk_exit lk_run_verify(struct lk_cli *cli)
{
    struct lk_progress *progress;
    struct lk_words words = {0};
    const struct lk_reply *reply;
    enum lk_exit result;

    lk_words_add(&words, "VERIFY");
    progress = lk_progress_start(cli, "verify");
    result = lk_call_patiently(cli, &words, &reply);
    lk_progress_stop(progress);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (reply->type != LK_REPLY_ARRAY || reply->count == 0) {
        return lk_complain_reply(cli);
    }
    show_report(cli, reply);
    if (lk_reply_is(&reply->elements[0], "ok")) {
        return LK_EXIT_DONE;
    }
    lk_hint(cli, "Keep a copy of the damaged store, and restore the last "
                 "backup that verifies.");
    return LK_EXIT_NO;
}

/* ==== `latchkey backup`: the daemon writes a copy of its store */

static const struct lk_option backup_options[] = {
    {"why", "TEXT", "the reason, kept in the audit log (backup)"},
    LK_OPTION_WHO,
    {0},
};

const struct lk_manual lk_manual_backup = {
    "Lets the daemon write a consistent copy of its store while it keeps\n"
    "working. The daemon itself writes FILE, on its own machine and with its\n"
    "own rights; FILE must not exist yet. Waits until the copy is complete,\n"
    "unless --timeout is given.",
    backup_options};

/* The daemon runs in another directory, so it needs the absolute path. */
static enum lk_exit make_backup_path(const char *path, struct lk_buf *absolute)
{
    if (path[0] != '/') {
        char *here = getcwd(NULL, 0);

        if (here == NULL) {
            lk_complain("cannot find the current directory: %s; give the "
                        "absolute path of the file",
                        strerror(errno));
            return LK_EXIT_USAGE;
        }
        lk_put(absolute, "%s/", here);
        free(here);
    }
    lk_put(absolute, "%s", path);
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_backup(struct lk_cli *cli)
{
    struct lk_action action = {.verb = "backed up to", .patient = true};
    struct lk_buf path = {0};
    struct lk_progress *progress;
    enum lk_exit result = make_backup_path(cli->args.words[0], &path);

    lk_words_add(&action.words, "BACKUP");
    lk_words_add_slice(&action.words, latchkey_buf_slice(&path));
    if (result == LK_EXIT_DONE) {
        result = lk_action_words(cli, &action, "backup");
    }
    if (result == LK_EXIT_DONE) {
        action.file = latchkey_buf_slice(&path);
        progress = lk_progress_start(cli, "backup");
        result = lk_action_send(cli, &action);
        lk_progress_stop(progress);
    }
    latchkey_buf_free(&path);
    return result;
}
