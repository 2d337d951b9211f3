/*
 * postgres_url.c - where the server is: a URL or libpq's own words, and the
 * hosts in them one by one, so that one that does not answer takes only its
 * share of the time there is.
 */
#include "store/postgres.h"

#include <stdlib.h>
#include <string.h>

static enum lk_status refuse(struct lk_buf *error, const char *sentence)
{
    enum lk_status status = latchkey_buf_add_text(error, sentence);

    return status ? status : LK_INVALID;
}

/* "postgres://..." is libpq's own; "postgres:host=..." is what follows. */
static char *conninfo_of(const char *url)
{
    const char *colon = strchr(url, ':');

    if (!colon || !strncmp(colon, "://", 3)) {
        return strdup(url);
    }
    return strdup(colon + 1);
}

static const char *value_of(const PQconninfoOption *options, const char *name)
{
    for (; options && options->keyword; options++) {
        if (!strcmp(options->keyword, name) && options->val &&
            options->val[0]) {
            return options->val;
        }
    }
    return NULL;
}

/* Said in the URL, else in the environment or a service file. */
static const char *chosen(const PQconninfoOption *said,
                          const PQconninfoOption *defaults, const char *name)
{
    const char *value = value_of(said, name);

    return value ? value : value_of(defaults, name);
}

/* Entry `number` of a list with commas; NULL: it is empty or not there. */
static char *entry(const char *list, unsigned number)
{
    while (list && number--) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    size_t len = list ? strcspn(list, ",") : 0;
    return len ? strndup(list, len) : NULL;
}

static unsigned entries(const char *list)
{
    unsigned count = list ? 1 : 0;

    for (; list && *list; list++) {
        count += *list == ',';
    }
    return count;
}

static bool is_port_list(const char *ports)
{
    return !ports || strspn(ports, "0123456789, ") == strlen(ports);
}

static enum lk_status split(struct lk_pg_url *url, const char *host,
                            const char *hostaddr, const char *port,
                            struct lk_buf *error)
{
    unsigned hosts = entries(host);
    unsigned addresses = entries(hostaddr);
    unsigned count = hosts > addresses ? hosts : addresses;
    unsigned ports = entries(port);

    if (!is_port_list(port)) {
        return refuse(error, "the port in the URL of the store is no number");
    }
    if (count > LK_PG_HOSTS) {
        return refuse(error, "the URL of the store names too many hosts");
    }
    if ((hosts && addresses && hosts != addresses) ||
        (ports > 1 && ports != count)) {
        return refuse(error, "the URL of the store names more hosts than "
                             "ports or addresses, or fewer");
    }
    url->host_count = count ? count : 1;
    for (unsigned i = 0; i < count; i++) {
        url->hosts[i] = (struct lk_pg_host){
            .host = entry(host, i),
            .hostaddr = entry(hostaddr, i),
            .port = entry(port, ports > 1 ? i : 0),
        };
    }
    return LK_OK;
}

enum lk_status lk_pg_url_parse(const char *url, struct lk_pg_url *parsed,
                               struct lk_buf *error)
{
    char *why = NULL;

    *parsed = (struct lk_pg_url){.conninfo = conninfo_of(url)};
    if (!parsed->conninfo) {
        return LK_NOMEM;
    }
    /* A bare word is the name of a database. */
    bool bare =
        !strstr(parsed->conninfo, "://") && !strchr(parsed->conninfo, '=');
    PQconninfoOption *said =
        bare ? NULL : PQconninfoParse(parsed->conninfo, &why);
    PQconninfoOption *defaults = PQconndefaults();
    enum lk_status status = LK_OK;

    if (!bare && !said) {
        /* libpq's words may hold a part of the password. */
        status = refuse(error, "the URL of the store is not one that "
                               "PostgreSQL's library understands");
    } else {
        const char *password = chosen(said, defaults, "password");
        parsed->password = password ? strdup(password) : NULL;
        status = split(parsed, chosen(said, defaults, "host"),
                       chosen(said, defaults, "hostaddr"),
                       chosen(said, defaults, "port"), error);
    }
    PQconninfoFree(said);
    PQconninfoFree(defaults);
    PQfreemem(why);
    if (status) {
        lk_pg_url_free(parsed);
    }
    return status;
}

void lk_pg_url_free(struct lk_pg_url *url)
{
    for (unsigned i = 0; i < LK_PG_HOSTS; i++) {
        free(url->hosts[i].host);
        free(url->hosts[i].hostaddr);
        free(url->hosts[i].port);
    }
    free(url->password);
    free(url->conninfo);
    *url = (struct lk_pg_url){0};
}
