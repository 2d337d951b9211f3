/*
 * postgres_check.c - whether a server that was just connected to is fit for
 * the store (its version and settings, the schema, the same store as before),
 * and what the store promises with these settings. A server that may lose what
 * it has confirmed is refused, unless the configuration accepts that.
 */
#include "store/postgres.h"
#include "store/postgres_migrate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of synchronous_commit without any SET: in a pooler's session
 * another user may have set it. */
static const char ask_settings[] =
    "SELECT pg_is_in_recovery(), current_setting('server_encoding'),"
    " (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),"
    " current_setting('synchronous_standby_names'),"
    " current_setting('fsync') = 'on',"
    " current_setting('full_page_writes') = 'on',"
    " current_setting('max_locks_per_transaction')::bigint *"
    " (current_setting('max_connections')::bigint +"
    " current_setting('max_prepared_transactions')::bigint)";

/* After a failover the sequence leaps; a crash does not undo that. */
static const char ask_timeline[] = "SELECT latchkey.check_timeline($1)";

/* A batch may take 1/LOCK_SHARE of the server's room for locks, and all lanes
 * together 1/LOCK_LANES_SHARE. */
enum { LOCK_SHARE = 16, LOCK_LANES_SHARE = 4, LOCK_LEAST = 16 };

static enum lk_status refuse_server(struct lk_pg_conn *conn, const char *format,
                                    ...) __attribute__((format(printf, 2, 3)));

/* Fills in conn->message. LK_INVALID: trying again does not help before someone
 * changes the server or the settings. */
static enum lk_status refuse_server(struct lk_pg_conn *conn, const char *format,
                                    ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(conn->message, sizeof(conn->message), format, args);
    va_end(args);
    return LK_INVALID;
}

/* As a clean line, cut to `size`. */
static void copy_setting(char *to, size_t size, struct lk_slice from)
{
    char text[256];

    snprintf(text, sizeof(text), "%.*s", (int)from.len, from.data);
    lk_pg_clean(text, NULL, to, size);
}

/* The first row of ask_settings, and whether such a database will do. */
static enum lk_status read_settings(struct lk_pg_conn *conn,
                                    const PGresult *result,
                                    struct lk_pg_settings *found)
{
    char encoding[32];

    copy_setting(encoding, sizeof(encoding), lk_pg_bytes(result, 0, 1));
    copy_setting(found->synchronous_commit, sizeof(found->synchronous_commit),
                 lk_pg_bytes(result, 0, 2));
    copy_setting(found->standbys, sizeof(found->standbys),
                 lk_pg_bytes(result, 0, 3));
    found->fsync = lk_pg_int(result, 0, 4);
    found->full_page_writes = lk_pg_int(result, 0, 5);
    found->locks = lk_pg_uint(result, 0, 6);
    if (strcmp(encoding, "UTF8") != 0) {
        return refuse_server(
            conn, "the database has the encoding %s, Latchkey needs UTF8",
            encoding);
    }
    if (lk_pg_int(result, 0, 0)) {
        /* It may be promoted any moment: not a reason to stop for good. */
        snprintf(conn->message, sizeof(conn->message),
                 "the server is a standby and accepts no writes");
        return LK_UNAVAILABLE;
    }
    return LK_OK;
}

/* LK_INVALID: with these settings the server may lose what it has confirmed,
 * and the configuration does not accept that. */
static enum lk_status judge_settings(struct lk_pg_conn *conn,
                                     const struct lk_pg_settings *found)
{
    bool accepted = conn->store->config.accept_loss;

    if (!strcmp(found->synchronous_commit, "off") && !accepted) {
        return refuse_server(conn,
                             "synchronous_commit is off: a crash of the server "
                             "would lose confirmed data; turn it on, or "
                             "set store.accept_loss if that is wanted");
    }
    if (!found->fsync && !accepted) {
        return refuse_server(
            conn, "fsync is off: a power loss would lose what was "
                  "confirmed; switch it on, or set store.accept_loss "
                  "if that is wanted");
    }
    if (!found->full_page_writes && conn->store->config.strict) {
        return refuse_server(
            conn, "store.strict is set, but full_page_writes is off: "
                  "a power loss may damage the database");
    }
    return LK_OK;
}

/* ---- what it promises ------------------------------------------------- */

/* In order: a later one promises more. */
enum promise { MAY_BE_LOST, SURVIVES_CRASH, SURVIVES_PRIMARY };

static enum promise promise_of(const struct lk_pg_settings *found)
{
    if (!strcmp(found->synchronous_commit, "off") || !found->fsync) {
        return MAY_BE_LOST;
    }
    return found->standbys[0] && strcmp(found->synchronous_commit, "local") != 0
               ? SURVIVES_PRIMARY
               : SURVIVES_CRASH;
}

/* Any thread. */
bool lk_pg_has_standby(struct lk_postgres *store)
{
    pthread_mutex_lock(&store->lock);
    bool has = promise_of(&store->settings) == SURVIVES_PRIMARY;
    pthread_mutex_unlock(&store->lock);
    return has;
}

void lk_pg_promise(struct lk_store *base, char text[LK_PROMISE_SIZE])
{
    struct lk_postgres *store = (struct lk_postgres *)base;

    pthread_mutex_lock(&store->lock);
    struct lk_pg_settings found = store->settings;
    pthread_mutex_unlock(&store->lock);
    switch (promise_of(&found)) {
    case MAY_BE_LOST:
        snprintf(text, LK_PROMISE_SIZE,
                 "what was acknowledged may be lost: %s is off in PostgreSQL",
                 found.fsync ? "synchronous_commit" : "fsync");
        break;
    case SURVIVES_PRIMARY:
        snprintf(text, LK_PROMISE_SIZE,
                 "an acknowledged claim or result survives the loss of the "
                 "primary (synchronous_commit = %s)",
                 found.synchronous_commit);
        break;
    default:
        snprintf(text, LK_PROMISE_SIZE,
                 "an acknowledged claim or result survives power loss of the "
                 "PostgreSQL server; without a synchronous standby, not the "
                 "loss of its disk");
    }
}

/* What survives on the server itself. Sets *strict to false if it is less than
 * store.strict demands. */
static enum lk_status describe_commit(const struct lk_pg_settings *found,
                                      struct lk_buf *text, bool *strict)
{
    const char *commit = found->synchronous_commit;

    if (!found->fsync || !strcmp(commit, "off")) {
        *strict = false;
        return latchkey_buf_printf(
            text,
            "%s is off: a crash or a power loss of the server may lose what "
            "was acknowledged, so that an operation may run twice.\n",
            found->fsync ? "synchronous_commit" : "fsync");
    }
    if (!found->full_page_writes) {
        *strict = false;
        return latchkey_buf_add_text(
            text, "full_page_writes is off: a power loss may damage the "
                  "database, unless its file system never tears a page.\n");
    }
    return latchkey_buf_add_text(
        text, "An acknowledged claim or result survives a crash and a power "
              "loss of the PostgreSQL server.\n");
}

/* What survives the loss of the server. */
static enum lk_status describe_standby(const struct lk_pg_settings *found,
                                       struct lk_buf *text)
{
    const char *commit = found->synchronous_commit;

    if (!found->standbys[0] || !strcmp(commit, "local") ||
        !strcmp(commit, "off")) {
        return latchkey_buf_add_text(
            text, "There is no synchronous standby: after a failover, or if "
                  "the disk is lost, what was acknowledged last may be "
                  "missing, and may run again.\n");
    }
    return latchkey_buf_printf(
        text,
        "It survives the loss of the primary, if a standby named by "
        "synchronous_standby_names (%s) takes its place%s.\n",
        found->standbys,
        strcmp(commit, "remote_write")
            ? ""
            : ", unless that one loses power at the same time");
}

enum lk_status lk_postgres_describe(struct lk_store *base, struct lk_buf *text,
                                    bool *strict)
{
    struct lk_postgres *store = (struct lk_postgres *)base;

    pthread_mutex_lock(&store->lock);
    struct lk_pg_settings found = store->settings;
    pthread_mutex_unlock(&store->lock);
    *strict = true;
    enum lk_status status = describe_commit(&found, text, strict);
    if (!status) {
        status = describe_standby(&found, text);
    }
    return status ? status
                  : latchkey_buf_add_text(
                        text, "Several daemons may share it, and apps may "
                              "take part in their own transactions.\n");
}

/* ---- settings --------------------------------------------------------- */

/* The store uses these settings from now on. A promise that has become weaker
 * is logged. The number of locks bounds how large a batch may be. */
static void use_settings(struct lk_postgres *store,
                         const struct lk_pg_settings *found)
{
    uint64_t parts = (uint64_t)LOCK_LANES_SHARE * store->store.lanes;
    uint64_t share = found->locks / (parts > LOCK_SHARE ? parts : LOCK_SHARE);
    char promise[LK_PROMISE_SIZE];

    atomic_store(&store->lock_share,
                 (unsigned)(share > LOCK_LEAST ? share : LOCK_LEAST));
    pthread_mutex_lock(&store->lock);
    bool weaker =
        store->opened && promise_of(found) < promise_of(&store->settings);
    store->settings = *found;
    pthread_mutex_unlock(&store->lock);
    if (weaker) {
        lk_pg_promise(&store->store, promise);
        lk_pg_log(store, LK_PG_WARN, "the store promises less than before: %s",
                  promise);
    }
}

/* LK_INVALID: not fit. LK_UNAVAILABLE: it could not be found out, or only a
 * standby answered. */
static enum lk_status check_settings(struct lk_pg_conn *conn,
                                     uint64_t deadline_ns,
                                     struct lk_pg_settings *found)
{
    PGresult *result;

    found->version = PQserverVersion(conn->pg);
    if (found->version < LK_POSTGRES_MINIMUM * 10000) {
        return refuse_server(
            conn,
            "the server is PostgreSQL %d, Latchkey needs %d or "
            "later",
            (int)(found->version / 10000), LK_POSTGRES_MINIMUM);
    }
    enum lk_status status =
        lk_pg_run(conn, ask_settings, NULL, deadline_ns, &result);
    if (status) {
        return LK_UNAVAILABLE;
    }
    status = read_settings(conn, result, found);
    PQclear(result);
    return status ? status : judge_settings(conn, found);
}

/* Settings can change while connections stay open. A server that is no longer
 * fit counts up `rechecks`, by which every lane notices that it has to connect
 * and check again. */
void lk_pg_recheck(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    struct lk_postgres *store = conn->store;
    struct lk_pg_settings found = {.version = PQserverVersion(conn->pg)};
    PGresult *result;

    if (lk_pg_run(conn, ask_settings, NULL, deadline_ns, &result)) {
        return;
    }
    enum lk_status status = read_settings(conn, result, &found);
    PQclear(result);
    /* Every session has set this for itself: set_session. */
    pthread_mutex_lock(&store->lock);
    memcpy(found.synchronous_commit, store->settings.synchronous_commit,
           sizeof(found.synchronous_commit));
    pthread_mutex_unlock(&store->lock);
    if (!status && judge_settings(conn, &found)) {
        atomic_fetch_add(&store->rechecks, 1);
        lk_pg_log(store, LK_PG_ERROR,
                  "the server is not fit for the store any more: %s",
                  conn->message);
    } else if (!status) {
        use_settings(store, &found);
    }
}

/* ---- the schema ------------------------------------------------------- */

struct meta {
    long version;
    long oldest; /* version that programs of today's schema still fit */
    uint8_t secret[16], reference_secret[16];
    unsigned secrets;
};

/* 32 hexadecimal digits, or false. */
static bool read_hex(struct lk_slice text, uint8_t bytes[16])
{
    for (size_t i = 0; i < 16; i++) {
        char pair[3] = {0};
        char *end;
        if (text.len != 32) {
            return false;
        }
        memcpy(pair, text.data + 2 * i, 2);
        bytes[i] = (uint8_t)strtoul(pair, &end, 16);
        if (*end) {
            return false;
        }
    }
    return true;
}

static void read_meta(const PGresult *result, struct meta *meta)
{
    for (int i = 0; i < PQntuples(result); i++) {
        const char *name = PQgetvalue(result, i, 0);
        struct lk_slice value = lk_pg_bytes(result, i, 1);
        if (!strcmp(name, "version")) {
            meta->version = strtol(value.data, NULL, 10);
        } else if (!strcmp(name, "oldest")) {
            meta->oldest = strtol(value.data, NULL, 10);
        } else if (!strcmp(name, "secret")) {
            meta->secrets += read_hex(value, meta->secret);
        } else if (!strcmp(name, "reference_secret")) {
            meta->secrets += read_hex(value, meta->reference_secret);
        }
    }
}

/* A later schema is fine if it says that programs of this version still fit. */
static enum lk_status judge_version(struct lk_pg_conn *conn,
                                    const struct meta *meta)
{
    long ours = lk_postgres_version();

    if (meta->version < ours) {
        return refuse_server(
            conn,
            "the schema latchkey has version %ld, this program "
            "needs %ld; run: latchkey migrate URL",
            meta->version, ours);
    }
    if (meta->version > ours && (!meta->oldest || meta->oldest > ours)) {
        return refuse_server(
            conn,
            "the schema latchkey has version %ld, this program "
            "knows %ld; install a later Latchkey",
            meta->version, ours);
    }
    return meta->secrets == 2
               ? LK_OK
               : refuse_server(conn,
                               "the secrets in latchkey.meta are damaged");
}

/* The first connection takes them; all later ones must find the same. */
static enum lk_status use_secrets(struct lk_pg_conn *conn,
                                  const struct meta *meta)
{
    struct lk_postgres *store = conn->store;
    struct lk_store *base = &store->store;

    pthread_mutex_lock(&store->lock);
    bool known = store->opened;
    if (!known) {
        memcpy(base->secret, meta->secret, sizeof(base->secret));
        memcpy(base->reference_secret, meta->reference_secret,
               sizeof(base->reference_secret));
        store->opened = true;
    }
    pthread_mutex_unlock(&store->lock);
    if (known &&
        memcmp(base->secret, meta->secret, sizeof(base->secret)) != 0) {
        return refuse_server(conn,
                             "the database is not the one that was opened");
    }
    return LK_OK;
}

/* The schema must be there, be accessible, have a version that fits, and be
 * that of the same store as before. */
static enum lk_status check_schema(struct lk_pg_conn *conn,
                                   uint64_t deadline_ns)
{
    struct meta meta = {0};
    PGresult *result;
    enum lk_status status =
        lk_pg_run(conn, "SELECT name, value FROM latchkey.meta", NULL,
                  deadline_ns, &result);

    if (status && (!strcmp(conn->sqlstate, "42P01") ||
                   !strcmp(conn->sqlstate, "3F000"))) {
        return refuse_server(conn,
                             "the database has no schema latchkey yet; run: "
                             "latchkey migrate URL");
    }
    if (status && !strcmp(conn->sqlstate, "42501")) {
        return refuse_server(
            conn, "the user of the database may not use the schema "
                  "latchkey; run: GRANT latchkey_daemon TO that user");
    }
    if (status) {
        return LK_UNAVAILABLE;
    }
    read_meta(result, &meta);
    PQclear(result);
    status = judge_version(conn, &meta);
    return status ? status : use_secrets(conn, &meta);
}

/* ---- the session ------------------------------------------------------ */

/* Milliseconds. The timeouts for locks and statements are below that of the
 * store: the server gives up before this daemon does, so that the outcome is
 * known. */
static enum lk_status set_session(struct lk_pg_conn *conn, uint64_t deadline_ns,
                                  const struct lk_pg_settings *found)
{
    const struct lk_store_config *config = &conn->store->config;
    unsigned long long timeout = config->timeout_ms;
    char sql[512];

    if (config->pooler) {
        return LK_OK; /* each transaction brings its own */
    }
    /* As it was found: a reload must not take back what was promised. */
    snprintf(sql, sizeof(sql),
             "SET lock_timeout = %llu; SET statement_timeout = %llu; "
             "SET idle_in_transaction_session_timeout = 10000; SET jit = off; "
             "SET default_transaction_isolation = 'read committed'; "
             "SET synchronous_commit = %s",
             timeout / 4 + 1, timeout / 4 * 3 + 1, found->synchronous_commit);
    return lk_pg_script(conn, sql, deadline_ns) ? LK_UNAVAILABLE : LK_OK;
}

/* After a failover, or if the server has not seen the last token that this
 * daemon got, its sequence leaps, so that no token is given twice. */
static enum lk_status check_timeline(struct lk_pg_conn *conn,
                                     uint64_t deadline_ns)
{
    struct lk_postgres *store = conn->store;
    struct lk_pg_params params = {0};
    PGresult *result;

    lk_pg_add_int(&params, (int64_t)atomic_load(&store->counters.last_token));
    enum lk_status status =
        lk_pg_run(conn, ask_timeline, &params, deadline_ns, &result);
    if (status) {
        return LK_UNAVAILABLE;
    }
    if (lk_pg_int(result, 0, 0)) {
        lk_pg_log(store, LK_PG_WARN,
                  "the server was replaced, or restored from an older copy: "
                  "new tokens are far above those that may be lost");
    }
    PQclear(result);
    return LK_OK;
}

/* A lane for job batches has settings of its own. */
static enum lk_status set_courier(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    if (!conn->for_jobs || conn->store->config.pooler) {
        return LK_OK;
    }
    return lk_pg_script(conn, "SELECT latchkey.courier_settings(false)",
                        deadline_ns)
               ? LK_UNAVAILABLE
               : LK_OK;
}

/* Everything a connection has to pass before it is used, in this order: the
 * schema is read with the session's timeouts, and tokens are checked last,
 * because that may write. */
enum lk_status lk_pg_check(struct lk_pg_conn *conn, uint64_t deadline_ns)
{
    struct lk_pg_settings found = {0};
    enum lk_status status = check_settings(conn, deadline_ns, &found);

    if (!status) {
        use_settings(conn->store, &found);
        status = set_session(conn, deadline_ns, &found);
    }
    if (!status) {
        status = check_schema(conn, deadline_ns);
    }
    if (!status) {
        status = set_courier(conn, deadline_ns);
    }
    return status ? status : check_timeline(conn, deadline_ns);
}
