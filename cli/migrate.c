/* migrate.c - `latchkey migrate`: what a store on a server needs there. */
#include "cli/commands.h"
#include "cli/move.h"

#include "store/postgres_migrate.h"
#include "store/redis.h"

#include <string.h>

static const struct lk_option options[] = {
    {"print", NULL, "print what would be run, and connect to nothing"},
    {"from", "VERSION", "print what leads from this version on (0: all)"},
    {0},
};

const struct lk_manual lk_manual_migrate = {
    "Makes or updates the schema \"latchkey\" in a PostgreSQL database, or\n"
    "loads the functions into a Redis server. URL is that of the store\n"
    "(LATCHKEY_STORE), with a user who may do so. It may be run again, by two\n"
    "at once, and while daemons work. An embedded store needs none of it.\n"
    "\n"
    "--print writes the SQL (the library for a redis: URL), for somebody else\n"
    "to run in one go:\n"
    "  latchkey migrate --print | psql -v ON_ERROR_STOP=1 -d app",
    options};

static bool is_redis(const char *url)
{
    return lk_url_is(url, "redis") || lk_url_is(url, "redis-sentinel");
}

static bool is_postgres(const char *url)
{
    return lk_url_is(url, "postgres") || lk_url_is(url, "postgresql");
}

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

static void show(struct lk_cli *cli, struct lk_slice report)
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

static void complain(struct lk_buf *why, enum lk_status status)
{
    if (why->len > 0 && why->data[why->len - 1] == '\n') {
        why->len--;
    }
    lk_put_raw(why, (struct lk_slice){"", 1});
    lk_complain("%s", why->len > 1 ? why->data : latchkey_status_text(status));
}

enum lk_exit lk_migrate_store(struct lk_cli *cli, const char *url)
{
    struct lk_buf said = {0};
    struct lk_buf warning = {0};
    struct lk_buf error = {0};
    enum lk_status status = LK_OK;

    if (is_postgres(url)) {
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
        show(cli, latchkey_buf_slice(&said));
    } else {
        complain(error.len > 0 ? &error : &said, status);
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

static enum lk_exit print(struct lk_cli *cli, const char *url)
{
    if (url == NULL || is_postgres(url)) {
        return print_sql(cli);
    }
    if (!is_redis(url)) {
        return lk_complain_usage(
            cli, "only PostgreSQL and Redis have something to be printed");
    }
    lk_put_raw(&cli->out, lk_redis_library());
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_migrate(struct lk_cli *cli)
{
    const char *url =
        cli->args.word_count > 0 ? cli->args.words[0] : lk_store_url(cli);

    if (lk_args_flag(&cli->args, "print")) {
        return print(cli, url);
    }
    if (url == NULL) {
        return lk_complain_usage(cli, "name the store by its URL, or with "
                                      "LATCHKEY_STORE");
    }
    return lk_migrate_store(cli, url);
}
