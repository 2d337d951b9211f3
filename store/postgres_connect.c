/*
 * postgres_connect.c - one connection to the server: where the server is, how
 * a connection is made and lost, and how a statement is sent with a deadline.
 *
 * The life of a connection (struct lk_pg_conn); one thread uses it at a time:
 *
 *   state     pg     silent_ns  next
 *   closed    NULL   0          lk_pg_ready connects, not before retry_ns
 *   ready     set    0          statements; lk_pg_lost after an error
 *   silent    set    not 0      a COMMIT got no reply in time: check_silent
 *                               drains the late reply (ready) or gives up
 *                               (closed)
 *
 * The store makes and frees the struct; `pg` is freed by lk_pg_close. A host
 * name is looked up on a thread of its own (struct lk_pg_lookup): the side
 * that finishes last, that thread or lk_pg_resolve_stop, frees the lookup.
 */
#include "lib/time.h"
#include "store/postgres.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MS_NS UINT64_C(1000000)

enum {
    RETRY_LEAST_MS = 100, /* between two tries to connect */
    RETRY_MOST_MS = 1000,
    SILENT_LEAST_MS = 10 * 1000, /* until a silent connection is given up */
    SILENT_MOST_MS = 60 * 1000,
};

uint64_t lk_pg_clock_ns(void)
{
    return lk_monotonic_ns();
}

/* ---- the URL ------------------------------------------------------------ */

static enum lk_status refuse_url(struct lk_buf *error, const char *sentence)
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

/* From the URL, else from the environment or a service file. */
static const char *option_value(const PQconninfoOption *given,
                                const PQconninfoOption *defaults,
                                const char *name)
{
    const char *value = value_of(given, name);

    return value ? value : value_of(defaults, name);
}

/* Entry `number` of a list with commas; NULL: it is empty or not there. */
static char *list_entry(const char *list, unsigned number)
{
    while (list && number--) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    size_t len = list ? strcspn(list, ",") : 0;
    return len ? strndup(list, len) : NULL;
}

static unsigned count_entries(const char *list)
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

static enum lk_status split_hosts(struct lk_pg_url *url, const char *host,
                                  const char *hostaddr, const char *port,
                                  struct lk_buf *error)
{
    unsigned hosts = count_entries(host);
    unsigned addresses = count_entries(hostaddr);
    unsigned count = hosts > addresses ? hosts : addresses;
    unsigned ports = count_entries(port);

    if (!is_port_list(port)) {
        return refuse_url(error,
                          "the port in the URL of the store is not a number");
    }
    if (count > LK_PG_HOSTS) {
        return refuse_url(error, "the URL of the store names too many hosts");
    }
    if ((hosts && addresses && hosts != addresses) ||
        (ports > 1 && ports != count)) {
        return refuse_url(error, "the URL of the store names more hosts than "
                                 "ports or addresses, or fewer");
    }
    url->host_count = count ? count : 1;
    for (unsigned i = 0; i < count; i++) {
        url->hosts[i] = (struct lk_pg_host){
            .host = list_entry(host, i),
            .hostaddr = list_entry(hostaddr, i),
            .port = list_entry(port, ports > 1 ? i : 0),
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
    PQconninfoOption *given =
        bare ? NULL : PQconninfoParse(parsed->conninfo, &why);
    PQconninfoOption *defaults = PQconndefaults();
    enum lk_status status = LK_OK;

    if (!bare && !given) {
        /* libpq's message may hold a part of the password. */
        status = refuse_url(error, "the URL of the store is not one that "
                                   "PostgreSQL's library understands");
    } else {
        const char *password = option_value(given, defaults, "password");
        parsed->password = password ? strdup(password) : NULL;
        status = split_hosts(parsed, option_value(given, defaults, "host"),
                             option_value(given, defaults, "hostaddr"),
                             option_value(given, defaults, "port"), error);
    }
    PQconninfoFree(given);
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

/* ---- the addresses of a host name --------------------------------------- */

struct addresses {
    unsigned count;
    char text[LK_PG_ADDRESSES][LK_PG_ADDRESS_SIZE];
};

/* A lookup on a thread of its own; `lock` guards all but the name. */
struct lk_pg_lookup {
    pthread_mutex_t lock; /* guards what follows, but for the name */
    pthread_cond_t ended;
    bool done;
    bool abandoned; /* the connection is gone: the thread frees it */
    int error;
    struct addrinfo *found;
    char name[256];
};

static bool is_host_name(const struct lk_pg_host *host)
{
    struct in_addr address;

    return host->host && !host->hostaddr && host->host[0] &&
           !strchr("/@", host->host[0]) && !strchr(host->host, ':') &&
           inet_pton(AF_INET, host->host, &address) != 1;
}

static void free_lookup(struct lk_pg_lookup *lookup)
{
    if (lookup->found) {
        freeaddrinfo(lookup->found);
    }
    pthread_cond_destroy(&lookup->ended);
    pthread_mutex_destroy(&lookup->lock);
    free(lookup);
}

static void *run_lookup(void *context)
{
    struct lk_pg_lookup *lookup = context;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(lookup->name, NULL, &hints, &found);

    pthread_mutex_lock(&lookup->lock);
    lookup->error = error;
    lookup->found = error ? NULL : found;
    lookup->done = true;
    bool abandoned = lookup->abandoned;
    pthread_cond_signal(&lookup->ended);
    pthread_mutex_unlock(&lookup->lock);
    if (abandoned) {
        free_lookup(lookup);
    }
    return NULL;
}

static struct lk_pg_lookup *start_lookup(const char *name)
{
    struct lk_pg_lookup *lookup = calloc(1, sizeof(*lookup));
    pthread_condattr_t clock;
    pthread_attr_t detached;
    pthread_t thread;

    if (!lookup) {
        return NULL;
    }
    snprintf(lookup->name, sizeof(lookup->name), "%s", name);
    pthread_mutex_init(&lookup->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&lookup->ended, &clock);
    pthread_condattr_destroy(&clock);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &detached, run_lookup, lookup);
    pthread_attr_destroy(&detached);
    if (failed) {
        free_lookup(lookup);
        return NULL;
    }
    return lookup;
}

void lk_pg_resolve_stop(struct lk_pg_conn *conn)
{
    struct lk_pg_lookup *lookup = conn->lookup;

    conn->lookup = NULL;
    if (!lookup) {
        return;
    }
    pthread_mutex_lock(&lookup->lock);
    bool done = lookup->done;
    lookup->abandoned = true;
    pthread_mutex_unlock(&lookup->lock);
    if (done) {
        free_lookup(lookup);
    }
}

static bool wait_for_lookup(struct lk_pg_lookup *lookup, uint64_t deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000),
                             (long)(deadline_ns % 1000000000)};
    int failed = 0;

    pthread_mutex_lock(&lookup->lock);
    while (!lookup->done && !failed) {
        failed = pthread_cond_timedwait(&lookup->ended, &lookup->lock, &until);
    }
    bool done = lookup->done;
    pthread_mutex_unlock(&lookup->lock);
    return done;
}

static void copy_addresses(const struct lk_pg_lookup *lookup,
                           struct addresses *addresses)
{
    for (const struct addrinfo *at = lookup->found;
         at && addresses->count < LK_PG_ADDRESSES; at = at->ai_next) {
        char *text = addresses->text[addresses->count];
        addresses->count +=
            !getnameinfo(at->ai_addr, at->ai_addrlen, text,
                         sizeof(addresses->text[0]), NULL, 0, NI_NUMERICHOST);
    }
}

static enum lk_status resolve_host(struct lk_pg_conn *conn, const char *name,
                                   uint64_t deadline_ns,
                                   struct addresses *addresses)
{
    *addresses = (struct addresses){0};
    if (conn->lookup && strcmp(conn->lookup->name, name) != 0) {
        lk_pg_resolve_stop(conn);
    }
    if (!conn->lookup && !(conn->lookup = start_lookup(name))) {
        snprintf(conn->message, sizeof(conn->message), "out of memory");
        return LK_NOMEM;
    }
    if (!wait_for_lookup(conn->lookup, deadline_ns)) {
        snprintf(conn->message, sizeof(conn->message),
                 "the name server did not reply in time");
        return LK_TIMEOUT;
    }
    if (conn->lookup->error) {
        snprintf(conn->message, sizeof(conn->message),
                 "the name of the server is not known: %s",
                 gai_strerror(conn->lookup->error));
    }
    copy_addresses(conn->lookup, addresses);
    lk_pg_resolve_stop(conn);
    return addresses->count ? LK_OK : LK_UNAVAILABLE;
}

/* ---- what went wrong -------------------------------------------------- */

static void note_message(struct lk_pg_conn *conn, const char *message)
{
    lk_pg_clean(message, conn->store->url.password, conn->message,
                sizeof(conn->message));
}

void lk_pg_note_error(struct lk_pg_conn *conn, const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
    const char *severity =
        PQresultErrorField(result, PG_DIAG_SEVERITY_NONLOCALIZED);
    char whole[sizeof(conn->message)];

    snprintf(conn->sqlstate, sizeof(conn->sqlstate), "%s", state ? state : "");
    /* libpq itself reports a lost connection without a code. */
    conn->fatal = !state || !severity || strcmp(severity, "ERROR") != 0;
    snprintf(whole, sizeof(whole), "%s%s%s",
             text ? text : PQresultErrorMessage(result), hint ? ". " : "",
             hint ? hint : "");
    note_message(conn, whole);
}

/*
 * The wait for the synchronous standby was canceled: the server has committed,
 * but a failover may lose the commit.
 */
static void on_notice(void *context, const PGresult *result)
{
    struct lk_pg_conn *conn = context;
    const char *from = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

    if (from && !strcmp(from, "SyncRepWaitForLSN")) {
        conn->standby_wait_cut = true;
    }
}

void lk_pg_close(struct lk_pg_conn *conn)
{
    PQfinish(conn->pg);
    conn->pg = NULL;
    conn->silent_ns = 0;
}

/* Closes the connection. The next try has to wait, twice as long after each
 * failure, up to RETRY_MOST_MS. */
void lk_pg_lost(struct lk_pg_conn *conn, const char *why)
{
    unsigned shift = conn->failures < 4 ? conn->failures : 4;
    uint64_t pause = (uint64_t)RETRY_LEAST_MS << shift;

    if (why && why != conn->message) {
        note_message(conn, why);
    }
    lk_pg_close(conn);
    conn->failures++;
    pause = pause < RETRY_MOST_MS ? pause : RETRY_MOST_MS;
    conn->retry_ns = lk_pg_clock_ns() + pause * MS_NS;
}

/* ---- waiting ---------------------------------------------------------- */

/* LK_TIMEOUT: nothing happened until the deadline. */
static enum lk_status wait_for_socket(PGconn *pg, short events,
                                      uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd wait = {.fd = PQsocket(pg), .events = events};
        uint64_t now = lk_pg_clock_ns();
        uint64_t left = deadline_ns > now ? (deadline_ns - now) / MS_NS + 1 : 0;
        int ready = poll(&wait, 1, left < 60000 ? (int)left : 60000);
        if (ready > 0) {
            return LK_OK;
        }
        if (ready < 0 && errno != EINTR) {
            return LK_IO;
        }
        if (lk_pg_clock_ns() >= deadline_ns) {
            return LK_TIMEOUT;
        }
    }
}

enum lk_status lk_pg_next(struct lk_pg_conn *conn, uint64_t deadline_ns,
                          PGresult **result)
{
    *result = NULL;
    for (;;) {
        int unsent = PQflush(conn->pg); /* -1 shows when reading, too */
        if (!PQisBusy(conn->pg)) {
            break;
        }
        short events = POLLIN | (unsent > 0 ? POLLOUT : 0);
        enum lk_status status = wait_for_socket(conn->pg, events, deadline_ns);
        if (status == LK_TIMEOUT) {
            note_message(conn, "the server did not reply in time");
            return status;
        }
        if (status || !PQconsumeInput(conn->pg)) {
            note_message(conn, PQerrorMessage(conn->pg));
            return LK_CLOSED;
        }
    }
    *result = PQgetResult(conn->pg);
    if (PQstatus(conn->pg) == CONNECTION_BAD && !*result) {
        note_message(conn, PQerrorMessage(conn->pg));
        return LK_CLOSED;
    }
    return LK_OK;
}

/* ---- connecting ------------------------------------------------------- */

/*
 * Options before dbname are defaults that the URL may override; options after
 * it override the URL.
 */
static PGconn *start_connection(const struct lk_postgres *store,
                                const struct lk_pg_host *host)
{
    char timeout[24];
    const char *options[][2] = {
        {"target_session_attrs", "read-write"},
        {"tcp_user_timeout", timeout},
        {"keepalives_idle", "5"},
        {"keepalives_interval", "2"},
        {"keepalives_count", "3"},
        {"fallback_application_name", "latchkeyd"},
        {"dbname", store->url.conninfo},
        {"host", host->host},
        {"hostaddr", host->hostaddr},
        {"port", host->port},
        {"client_encoding", "UTF8"},
    };
    enum { COUNT = sizeof(options) / sizeof(options[0]) };
    const char *words[COUNT + 1] = {0};
    const char *values[COUNT + 1] = {0};

    snprintf(timeout, sizeof(timeout), "%llu",
             (unsigned long long)store->config.timeout_ms);
    for (int i = 0, at = 0; i < COUNT; i++) {
        if (options[i][1]) {
            words[at] = options[i][0];
            values[at++] = options[i][1];
        }
    }
    return PQconnectStartParams(words, values, 1);
}

/* One address, within its share of the time. */
static enum lk_status dial_address(struct lk_pg_conn *conn,
                                   const struct lk_pg_host *host,
                                   uint64_t deadline_ns)
{
    PGconn *pg = start_connection(conn->store, host);
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;
    enum lk_status status = LK_OK;

    if (!pg) {
        return LK_NOMEM;
    }
    PQsetNoticeReceiver(pg, on_notice, conn);
    while (PQstatus(pg) != CONNECTION_BAD && state != PGRES_POLLING_OK &&
           state != PGRES_POLLING_FAILED && !status) {
        status = wait_for_socket(
            pg, state == PGRES_POLLING_READING ? POLLIN : POLLOUT, deadline_ns);
        if (!status) {
            state = PQconnectPoll(pg);
        }
    }
    if (!status && state == PGRES_POLLING_OK && !PQsetnonblocking(pg, 1)) {
        conn->pg = pg;
        return LK_OK;
    }
    note_message(conn, status == LK_TIMEOUT ? "the server did not reply in time"
                                            : PQerrorMessage(pg));
    PQfinish(pg);
    return LK_UNAVAILABLE;
}

/*
 * One host by each of its addresses. While the name server is silent, the
 * address of the last time is used: half of the time is left for that.
 */
static enum lk_status dial_host(struct lk_pg_conn *conn, unsigned which,
                                uint64_t deadline_ns)
{
    struct lk_pg_host host = conn->store->url.hosts[which];
    struct addresses found;

    if (!is_host_name(&host)) {
        return dial_address(conn, &host, deadline_ns);
    }
    uint64_t now = lk_pg_clock_ns();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    enum lk_status status =
        resolve_host(conn, host.host, now + left / 2, &found);
    if (status && !conn->known[which][0]) {
        return LK_UNAVAILABLE;
    }
    if (status) {
        found.count = 1;
        memcpy(found.text[0], conn->known[which], sizeof(found.text[0]));
    }
    status = LK_UNAVAILABLE;
    for (unsigned i = 0; i < found.count && status; i++) {
        now = lk_pg_clock_ns();
        left = deadline_ns > now ? deadline_ns - now : 0;
        host.hostaddr = found.text[i];
        status = dial_address(conn, &host, now + left / (found.count - i));
        if (!status) {
            memcpy(conn->known[which], found.text[i], sizeof(found.text[i]));
        }
    }
    return status;
}

/* The host that worked last comes first, then the others in their order. */
enum lk_status lk_pg_dial(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    const struct lk_pg_url *url = &conn->store->url;
    enum lk_status status = LK_UNAVAILABLE;

    conn->sqlstate[0] = 0;
    for (unsigned i = 0; i < url->host_count && status; i++) {
        unsigned which = (conn->host + i) % url->host_count;
        uint64_t now = lk_pg_clock_ns();
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        status = dial_host(conn, which, now + left / (url->host_count - i));
        if (!status) {
            conn->host = which;
        }
    }
    return status;
}

/* A new connection, checked and set up. */
static enum lk_status connect_and_check(struct lk_pg_conn *conn,
                                        uint64_t deadline_ns)
{
    struct lk_postgres *store = conn->store;
    uint64_t limit =
        lk_pg_clock_ns() + store->config.connect_timeout_ms * MS_NS;
    uint64_t until = limit < deadline_ns ? limit : deadline_ns;
    enum lk_status status = lk_pg_dial(conn, until);

    conn->rechecks = atomic_load(&store->rechecks);
    if (!status) {
        status = lk_pg_check(conn, until);
    }
    if (!status && conn->lane && !store->config.pooler) {
        status = lk_pg_prepare(conn, until);
    }
    if (status) {
        lk_pg_lost(conn, conn->message);
        /* The next try begins with the next host. */
        conn->host = (conn->host + 1) % store->url.host_count;
        return status == LK_INVALID ? LK_INVALID : LK_UNAVAILABLE;
    }
    conn->failures = 0;
    conn->standby_wait_cut = false;
    if (conn->connected_before) {
        conn->reconnected = true;
        atomic_fetch_add(&store->counters.reopened, 1);
    }
    conn->connected_before = true;
    return LK_OK;
}

/* ---- is it still there? ----------------------------------------------- */

/* Takes what has come in without being asked for. False: it is lost. A server
 * that ends says why first: the end itself shows only behind that. */
static bool read_pending_input(struct lk_pg_conn *conn)
{
    struct pollfd look = {.fd = PQsocket(conn->pg), .events = POLLIN};

    for (int i = 0; i < 4 && poll(&look, 1, 0) > 0; i++) {
        if (!PQconsumeInput(conn->pg)) {
            note_message(conn, PQerrorMessage(conn->pg));
            return false;
        }
    }
    return PQstatus(conn->pg) == CONNECTION_OK;
}

enum late {
    LATE_PENDING, /* not all of it has come yet */
    LATE_WHOLE,   /* the connection may be used again */
    LATE_FAILED,  /* all has come, and has left the session in an error */
};

/* Drops the late replies to a batch that was given up. */
static enum late drain_late_results(struct lk_pg_conn *conn)
{
    for (int ends = 0; !PQisBusy(conn->pg) && ends < 8;) {
        PGresult *result = PQgetResult(conn->pg);
        bool whole = PQresultStatus(result) == PGRES_PIPELINE_SYNC;
        ends = result ? 0 : ends + 1;
        PQclear(result);
        if (whole) {
            return PQtransactionStatus(conn->pg) == PQTRANS_IDLE &&
                           PQexitPipelineMode(conn->pg)
                       ? LATE_WHOLE
                       : LATE_FAILED;
        }
    }
    return LATE_PENDING;
}

/*
 * A COMMIT had no reply in time. The connection stays open for a while: the
 * server may only be waiting for a standby, and another connection would also
 * wait, and leave one more process behind. LK_OK: it can be used, or is
 * closed.
 */
static enum lk_status check_silent(struct lk_pg_conn *conn)
{
    unsigned shift = conn->silent_times < 3 ? conn->silent_times : 3;
    uint64_t limit = (uint64_t)SILENT_LEAST_MS << shift;
    enum late late = LATE_PENDING;

    limit = limit < SILENT_MOST_MS ? limit : SILENT_MOST_MS;
    if (read_pending_input(conn)) {
        late = drain_late_results(conn);
        if (late == LATE_PENDING &&
            lk_pg_clock_ns() - conn->silent_ns < limit * MS_NS) {
            note_message(conn, "the server does not reply");
            return LK_UNAVAILABLE;
        }
    }
    if (late == LATE_WHOLE) {
        conn->silent_ns = 0;
        conn->reconnected = true;
    } else {
        lk_pg_close(conn);
    }
    /* A late reply ends the series of silences. */
    conn->silent_times = late == LATE_PENDING ? conn->silent_times + 1 : 0;
    return LK_OK;
}

/* Before each use. LK_OK: connected, checked and without an open transaction.
 * LK_UNAVAILABLE: not now; conn->message has the reason. */
enum lk_status lk_pg_ready(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    if (conn->pg && conn->silent_ns && check_silent(conn)) {
        return LK_UNAVAILABLE;
    }
    /* A session with an open transaction cannot be used again. */
    if (conn->pg && (!read_pending_input(conn) ||
                     PQtransactionStatus(conn->pg) != PQTRANS_IDLE ||
                     conn->rechecks != atomic_load(&conn->store->rechecks))) {
        lk_pg_close(conn);
    }
    if (conn->pg) {
        return LK_OK;
    }
    if (lk_pg_clock_ns() < conn->retry_ns) {
        return LK_UNAVAILABLE;
    }
    return connect_and_check(conn, deadline_ns);
}

/* ---- statements ------------------------------------------------------- */

/* Reads up to the end of the statement; the last result stays. */
static enum lk_status read_to_end(struct lk_pg_conn *conn, uint64_t deadline_ns,
                                  PGresult **last)
{
    PGresult *result = NULL;
    enum lk_status status;

    while (!(status = lk_pg_next(conn, deadline_ns, &result)) && result) {
        PQclear(*last);
        *last = result;
    }
    if (status) {
        PQclear(*last);
        *last = NULL;
        lk_pg_lost(conn, conn->message);
    }
    return status;
}

/* LK_UNAVAILABLE: the server has refused the statement, and the connection goes
 * on. LK_CLOSED: the connection is lost. *result is NULL then. */
static enum lk_status check_result(struct lk_pg_conn *conn, PGresult **result)
{
    ExecStatusType state = PQresultStatus(*result);

    if (state == PGRES_TUPLES_OK || state == PGRES_COMMAND_OK) {
        return LK_OK;
    }
    lk_pg_note_error(conn, *result);
    PQclear(*result);
    *result = NULL;
    if (PQstatus(conn->pg) == CONNECTION_BAD) {
        lk_pg_lost(conn, conn->message);
        return LK_CLOSED;
    }
    return LK_UNAVAILABLE;
}

enum lk_status lk_pg_run(struct lk_pg_conn *conn, const char *sql,
                         const struct lk_pg_params *params,
                         uint64_t deadline_ns, PGresult **result)
{
    static const struct lk_pg_params none;

    *result = NULL;
    params = params ? params : &none;
    if (!PQsendQueryParams(conn->pg, sql, params->count, params->types,
                           params->values, params->lengths, params->formats,
                           1)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_CLOSED;
    }
    enum lk_status status = read_to_end(conn, deadline_ns, result);
    return status ? status : check_result(conn, result);
}

enum lk_status lk_pg_script(struct lk_pg_conn *conn, const char *sql,
                            uint64_t deadline_ns)
{
    PGresult *result = NULL;

    if (!PQsendQuery(conn->pg, sql)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_CLOSED;
    }
    enum lk_status status = read_to_end(conn, deadline_ns, &result);
    if (!status) {
        status = check_result(conn, &result);
    }
    PQclear(result);
    return status;
}
