/*
 * postgres_connect.c - one connection: making it, waiting for it with a
 * deadline, losing it, and when to try again.
 */
#include "store/postgres.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
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
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- what went wrong -------------------------------------------------- */

static void note(struct lk_pg_conn *conn, const char *message)
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
    note(conn, whole);
}

/*
 * Somebody cut the wait for the synchronous standby short: the server says
 * that it has committed, but a fail-over might lose it.
 */
static void on_notice(void *context, const PGresult *result)
{
    struct lk_pg_conn *conn = context;
    const char *from = PQresultErrorField(result, PG_DIAG_SOURCE_FUNCTION);

    if (from && !strcmp(from, "SyncRepWaitForLSN")) {
        conn->warned = true;
    }
}

void lk_pg_close(struct lk_pg_conn *conn)
{
    PQfinish(conn->pg);
    conn->pg = NULL;
    conn->silent_ns = 0;
}

void lk_pg_lost(struct lk_pg_conn *conn, const char *why)
{
    unsigned shift = conn->failures < 4 ? conn->failures : 4;
    uint64_t pause = (uint64_t)RETRY_LEAST_MS << shift;

    if (why && why != conn->message) {
        note(conn, why);
    }
    lk_pg_close(conn);
    conn->failures++;
    pause = pause < RETRY_MOST_MS ? pause : RETRY_MOST_MS;
    conn->retry_ns = lk_pg_clock_ns() + pause * MS_NS;
}

/* ---- waiting ---------------------------------------------------------- */

/* LK_TIMEOUT: nothing happened until the deadline. */
static enum lk_status wait_for(PGconn *pg, short events, uint64_t deadline_ns)
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
        enum lk_status status = wait_for(conn->pg, events, deadline_ns);
        if (status == LK_TIMEOUT) {
            note(conn, "the server did not answer in time");
            return status;
        }
        if (status || !PQconsumeInput(conn->pg)) {
            note(conn, PQerrorMessage(conn->pg));
            return LK_CLOSED;
        }
    }
    *result = PQgetResult(conn->pg);
    if (PQstatus(conn->pg) == CONNECTION_BAD && !*result) {
        note(conn, PQerrorMessage(conn->pg));
        return LK_CLOSED;
    }
    return LK_OK;
}

/* ---- connecting ------------------------------------------------------- */

/*
 * What stands before dbname gives way to what the URL says, what stands behind
 * it does not.
 */
static PGconn *start(const struct lk_postgres *store,
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
    PGconn *pg = start(conn->store, host);
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;
    enum lk_status status = LK_OK;

    if (!pg) {
        return LK_NOMEM;
    }
    PQsetNoticeReceiver(pg, on_notice, conn);
    while (PQstatus(pg) != CONNECTION_BAD && state != PGRES_POLLING_OK &&
           state != PGRES_POLLING_FAILED && !status) {
        status = wait_for(pg, state == PGRES_POLLING_READING ? POLLIN : POLLOUT,
                          deadline_ns);
        if (!status) {
            state = PQconnectPoll(pg);
        }
    }
    if (!status && state == PGRES_POLLING_OK && !PQsetnonblocking(pg, 1)) {
        conn->pg = pg;
        return LK_OK;
    }
    note(conn, status == LK_TIMEOUT ? "the server did not answer in time"
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
    struct lk_pg_addresses found;

    if (!lk_pg_is_name(&host)) {
        return dial_address(conn, &host, deadline_ns);
    }
    uint64_t now = lk_pg_clock_ns();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    enum lk_status status =
        lk_pg_resolve(conn, host.host, now + left / 2, &found);
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
static enum lk_status renew(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    struct lk_postgres *store = conn->store;
    uint64_t limit =
        lk_pg_clock_ns() + store->config.connect_timeout_ms * MS_NS;
    uint64_t until = limit < deadline_ns ? limit : deadline_ns;
    enum lk_status status = lk_pg_dial(conn, until);

    conn->distrusted = atomic_load(&store->distrusted);
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
    conn->warned = false;
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
static bool take_input(struct lk_pg_conn *conn)
{
    struct pollfd look = {.fd = PQsocket(conn->pg), .events = POLLIN};

    for (int i = 0; i < 4 && poll(&look, 1, 0) > 0; i++) {
        if (!PQconsumeInput(conn->pg)) {
            note(conn, PQerrorMessage(conn->pg));
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

/* Drops what a batch that was given up is answered after all. */
static enum late drain(struct lk_pg_conn *conn)
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
 * A commit was not answered in time. The connection is kept for a while: its
 * server may only be waiting for a standby, and another connection would have
 * to wait as well, and leave one more process behind. LK_OK: it can be used,
 * or is closed.
 */
static enum lk_status hear_silent(struct lk_pg_conn *conn)
{
    unsigned shift = conn->silences < 3 ? conn->silences : 3;
    uint64_t limit = (uint64_t)SILENT_LEAST_MS << shift;
    enum late late = LATE_PENDING;

    limit = limit < SILENT_MOST_MS ? limit : SILENT_MOST_MS;
    if (take_input(conn)) {
        late = drain(conn);
        if (late == LATE_PENDING &&
            lk_pg_clock_ns() - conn->silent_ns < limit * MS_NS) {
            note(conn, "the server does not answer");
            return LK_UNAVAILABLE;
        }
    }
    if (late == LATE_WHOLE) {
        conn->silent_ns = 0;
        conn->reconnected = true;
    } else {
        lk_pg_close(conn);
    }
    /* Whatever it answered, it does answer. */
    conn->silences = late == LATE_PENDING ? conn->silences + 1 : 0;
    return LK_OK;
}

enum lk_status lk_pg_ready(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    if (conn->pg && conn->silent_ns && hear_silent(conn)) {
        return LK_UNAVAILABLE;
    }
    /* A transaction that was left open is nobody's any more. */
    if (conn->pg &&
        (!take_input(conn) || PQtransactionStatus(conn->pg) != PQTRANS_IDLE ||
         conn->distrusted != atomic_load(&conn->store->distrusted))) {
        lk_pg_close(conn);
    }
    if (conn->pg) {
        return LK_OK;
    }
    if (lk_pg_clock_ns() < conn->retry_ns) {
        return LK_UNAVAILABLE;
    }
    return renew(conn, deadline_ns);
}

/* ---- statements ------------------------------------------------------- */

/* Reads up to the end of the statement; the last result stays. */
static enum lk_status finish(struct lk_pg_conn *conn, uint64_t deadline_ns,
                             PGresult **stored)
{
    PGresult *result = NULL;
    enum lk_status status;

    while (!(status = lk_pg_next(conn, deadline_ns, &result)) && result) {
        PQclear(*stored);
        *stored = result;
    }
    if (status) {
        PQclear(*stored);
        *stored = NULL;
        lk_pg_lost(conn, conn->message);
    }
    return status;
}

static enum lk_status judge(struct lk_pg_conn *conn, PGresult **result)
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
    enum lk_status status = finish(conn, deadline_ns, result);
    return status ? status : judge(conn, result);
}

enum lk_status lk_pg_script(struct lk_pg_conn *conn, const char *sql,
                            uint64_t deadline_ns)
{
    PGresult *result = NULL;

    if (!PQsendQuery(conn->pg, sql)) {
        lk_pg_lost(conn, PQerrorMessage(conn->pg));
        return LK_CLOSED;
    }
    enum lk_status status = finish(conn, deadline_ns, &result);
    if (!status) {
        status = judge(conn, &result);
    }
    PQclear(result);
    return status;
}
