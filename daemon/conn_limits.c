/*
 * conn_limits.c - what connections may take: memory, time and places.
 *
 * Memory. Input, replies that wait and commands in progress count together, in
 * server->held_bytes; buffers with their capacity. Beyond limits.client_bytes
 *
 *  - a connection that is within a command is not read from any more
 *    (`starved`). One at a time goes on all the same, the first that had to
 *    stop first: so there is always one that can. If nothing comes from it for
 *    LK_TURN_MS, the next one has its turn, unless much has come before and
 *    memory is short by a quarter. So memory grows by half at most, and by
 *    what the store brings for commands in progress;
 *  - no command is run for a client that has replies to take (conn.c);
 *  - empty buffers are given back;
 *  - those who are slow, whether in sending a command or in taking replies, are
 *    closed until half of it is free: those without a role first, then the one
 *    that holds the most. With less room those who go on would read a piece at
 *    a time, each as late as the next slow one is found.
 *
 * A command that comes in one piece, as nearly all do, needs no memory that
 * lasts, and is run as ever.
 *
 * Time. A client is slow if, within a command or with replies to take, it falls
 * below PACE_BYTES a second and stays there for a patience:
 * limits.client_timeout, and SLOW_MS when memory is short. So bytes that
 * trickle gain nothing, and a large command over a slow line has its time.
 *
 * Places. Where a password is needed, a connection without a role (a stranger)
 * has limits.auth_timeout to give one, and there are few places for them; the
 * rest of limits.connections is left for those that do. A new stranger takes
 * the place of the one that has been one for longest: if it were refused, a few
 * silent connections could keep out all others for as long as they are let
 * live, while a client that says AUTH at once needs its place for moments only.
 */
#include "daemon/daemon.h"

enum {
    PACE_BYTES = 64 * 1024, /* a second */
    SLOW_MS = 2000,
    TURN_BYTES = 4 * LK_READ_CHUNK, /* little, beside SLOW_MS of such turns */
    LOG_EVERY_MS = 60 * 1000,
    CUTS_MAX = 100, /* in one tick */
    STRANGERS_LEAST = 16,
};

/* ---- Lists --------------------------------------------------------------- */

static void list_add(struct lk_conn *conn, enum lk_conn_list which)
{
    struct lk_conns *list = &conn->server->lists[which];
    struct lk_conn_links *links = &conn->links[which];

    if (links->in) {
        return;
    }
    *links = (struct lk_conn_links){.before = list->tail, .in = true};
    *(list->tail ? &list->tail->links[which].after : &list->head) = conn;
    list->tail = conn;
    list->count++;
}

static void list_remove(struct lk_conn *conn, enum lk_conn_list which)
{
    struct lk_conns *list = &conn->server->lists[which];
    struct lk_conn_links *links = &conn->links[which];

    if (!links->in) {
        return;
    }
    *(links->before ? &links->before->links[which].after : &list->head) =
        links->after;
    *(links->after ? &links->after->links[which].before : &list->tail) =
        links->before;
    *links = (struct lk_conn_links){0};
    list->count--;
}

void lk_conn_leave_lists(struct lk_conn *conn)
{
    list_remove(conn, LK_LIST_STRANGERS);
    list_remove(conn, LK_LIST_STARVED);
    if (conn->server->fed == conn) {
        conn->server->fed = NULL;
    }
}

/* ---- Closing ------------------------------------------------------------- */

static const char *const cut_words[LK_CUTS] = {
    [LK_CUT_NO_AUTH] = "no-auth",
    [LK_CUT_DISPLACED] = "displaced",
    [LK_CUT_MEMORY] = "memory-full",
};

/* A flood of them has a line a minute, with how many there were. */
static void log_cuts(struct lk_server *server, enum lk_cut why,
                     const struct lk_conn *conn, uint64_t now_ms)
{
    struct lk_log_limit *logged = &server->cuts[why];

    if (!logged->unlogged ||
        (logged->logged_ms && now_ms - logged->logged_ms < LOG_EVERY_MS)) {
        return;
    }
    if (conn) {
        lk_log(LK_LOG_WARN, "client-closed",
               "id=%llu address=%s why=%s count=%llu",
               (unsigned long long)conn->id, conn->address, cut_words[why],
               (unsigned long long)logged->unlogged);
    } else {
        lk_log(LK_LOG_WARN, "client-closed", "why=%s count=%llu",
               cut_words[why], (unsigned long long)logged->unlogged);
    }
    *logged = (struct lk_log_limit){.logged_ms = now_ms};
}

static void cut(struct lk_conn *conn, enum lk_cut why)
{
    struct lk_server *server = conn->server;

    server->metrics.cut++;
    server->cuts[why].unlogged++;
    log_cuts(server, why, conn, uv_now(&server->loop));
    lk_conn_close(conn, NULL);
}

/* ---- Places -------------------------------------------------------------- */

static size_t stranger_places(const struct lk_config *config)
{
    size_t places = config->connections / 8;

    if (config->unauthenticated) {
        return config->unauthenticated;
    }
    return places > STRANGERS_LEAST ? places : STRANGERS_LEAST;
}

/* A closed one is in no list any more; one that ends with its last reply
 * cannot log in, and must not lose that reply. */
static bool is_leaving(const struct lk_conn *conn)
{
    return conn->closing || conn->quit;
}

void lk_conn_set_roles(struct lk_conn *conn, unsigned roles)
{
    struct lk_server *server = conn->server;

    conn->roles = roles;
    if (roles || is_leaving(conn)) {
        list_remove(conn, LK_LIST_STRANGERS);
        return;
    }
    if (conn->links[LK_LIST_STRANGERS].in) {
        return; /* RESET gives no one more time */
    }
    conn->stranger_ms = uv_now(&server->loop);
    list_add(conn, LK_LIST_STRANGERS);
    if (server->lists[LK_LIST_STRANGERS].count >
        stranger_places(&server->config)) {
        cut(server->lists[LK_LIST_STRANGERS].head, LK_CUT_DISPLACED);
    }
}

bool lk_conn_has_place(struct lk_server *server)
{
    if (server->conn_count < server->config.connections) {
        return true;
    }
    struct lk_conn *oldest = server->lists[LK_LIST_STRANGERS].head;
    if (oldest) {
        cut(oldest, LK_CUT_DISPLACED);
    }
    return oldest != NULL;
}

/* ---- Memory -------------------------------------------------------------- */

void lk_conn_weigh(struct lk_conn *conn)
{
    size_t held = conn->in.cap + conn->out.cap + conn->writing.cap +
                  conn->parser.words.cap;

    conn->server->held_bytes += held - conn->held_bytes;
    conn->held_bytes = held;
}

bool lk_conn_may_grow(struct lk_conn *conn)
{
    struct lk_server *server = conn->server;

    if (!conn->partial || conn->closing || server->fed == conn ||
        !lk_server_is_short(server)) {
        return true;
    }
    list_add(conn, LK_LIST_STARVED);
    return false;
}

/* Does it keep its turn? Else it is still read from, up to its next piece, and
 * is slow if none comes. */
static bool goes_on(const struct lk_server *server, uint64_t now_ms)
{
    const struct lk_conn *conn = server->fed;
    uint64_t most = server->config.client_bytes;

    if (!conn->partial || now_ms - conn->active_ms <= LK_TURN_MS) {
        return conn->partial;
    }
    return conn->in.len - conn->in_start > server->fed_from + TURN_BYTES &&
           server->held_bytes > most + most / 4;
}

/* The clock of its command begins again: it was not the client who stopped. */
void lk_conn_feed(struct lk_server *server)
{
    struct lk_conns *starved = &server->lists[LK_LIST_STARVED];
    bool is_short = lk_server_is_short(server);

    if (server->fed && !(is_short && goes_on(server, uv_now(&server->loop)))) {
        server->fed = NULL;
    }
    while (starved->head && !(is_short && server->fed)) {
        struct lk_conn *conn = starved->head;
        list_remove(conn, LK_LIST_STARVED);
        server->fed = is_short ? conn : NULL;
        server->fed_from = conn->in.len - conn->in_start;
        lk_pace_start(&conn->sending, uv_now(&server->loop),
                      conn->in.len - conn->in_start);
        lk_conn_start_reading(conn);
    }
}

/* ---- Time ---------------------------------------------------------------- */

uint64_t lk_pace_slow_ms(struct lk_pace *pace, size_t bytes, uint64_t now_ms)
{
    uint64_t ms = now_ms - pace->since_ms;

    if (bytes - pace->bytes >= ms * PACE_BYTES / 1000) {
        lk_pace_start(pace, now_ms, bytes);
        return 0;
    }
    return ms;
}

static uint64_t sends_slowly_for(struct lk_conn *conn, uint64_t now_ms)
{
    bool within =
        conn->partial && !conn->stuck && !conn->links[LK_LIST_STARVED].in;

    return within ? lk_pace_slow_ms(&conn->sending,
                                    conn->in.len - conn->in_start, now_ms)
                  : 0;
}

static uint64_t takes_slowly_for(struct lk_conn *conn, uint64_t now_ms)
{
    size_t left = uv_stream_get_write_queue_size(&conn->uv.stream);

    return conn->writing.len ? lk_pace_slow_ms(&conn->taking,
                                               conn->writing.len - left, now_ms)
                             : 0;
}

/* Neither side owes the other anything. */
static bool is_idle(const struct lk_conn *conn)
{
    return !conn->head && !conn->awaits && !conn->writing.len && !conn->stuck &&
           !conn->links[LK_LIST_STARVED].in;
}

/* NULL: it may stay. */
static const char *time_is_up(struct lk_conn *conn, uint64_t now_ms)
{
    const struct lk_config *config = &conn->server->config;
    uint64_t patience = config->client_timeout_ms;

    if (takes_slowly_for(conn, now_ms) > patience) {
        return "output-not-read";
    }
    if (sends_slowly_for(conn, now_ms) > patience) {
        return "command-half-sent";
    }
    if (config->idle_timeout_ms && is_idle(conn) &&
        now_ms - conn->active_ms > config->idle_timeout_ms) {
        return "idle";
    }
    return NULL;
}

static void check_time(struct lk_conn *conn, uint64_t now_ms)
{
    if (conn->closing) {
        return;
    }
    const char *why = time_is_up(conn, now_ms);
    if (why) {
        lk_conn_close(conn, why);
    } else if (conn->links[LK_LIST_STRANGERS].in && !conn->judged_ms &&
               now_ms - conn->stranger_ms >
                   conn->server->config.auth_timeout_ms) {
        cut(conn, LK_CUT_NO_AUTH);
    } else if (conn->judged_ms && conn->judged_ms <= now_ms) {
        lk_server_mark_runnable(conn->server, conn);
    }
}

/* ---- When memory is short ------------------------------------------------ */

static void give_back_buffers(struct lk_conn *conn)
{
    if (!conn->in.len) {
        latchkey_buf_free(&conn->in);
    }
    if (!conn->out.len) {
        latchkey_buf_free(&conn->out);
    }
    lk_conn_weigh(conn);
}

static bool goes_before(const struct lk_conn *conn, const struct lk_conn *other)
{
    if (!other || !conn->roles != !other->roles) {
        return !other || !conn->roles;
    }
    return conn->held_bytes > other->held_bytes;
}

static struct lk_conn *find_slow(struct lk_server *server, uint64_t now_ms)
{
    struct lk_conn *found = NULL;

    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        if (!conn->closing &&
            (sends_slowly_for(conn, now_ms) > SLOW_MS ||
             takes_slowly_for(conn, now_ms) > SLOW_MS) &&
            goes_before(conn, found)) {
            found = conn;
        }
    }
    return found;
}

/* What those hold who are closed is free at the end of the turn. */
static void make_room(struct lk_server *server, uint64_t now_ms)
{
    size_t most = server->config.client_bytes;
    size_t freed = 0;
    struct lk_conn *conn;

    for (conn = server->conns; conn; conn = conn->next) {
        give_back_buffers(conn);
    }
    if (!server->short_logged_ms ||
        now_ms - server->short_logged_ms >= LOG_EVERY_MS) {
        server->short_logged_ms = now_ms;
        lk_log(LK_LOG_WARN, "memory-short",
               "held=%zu limit=%zu waiting=%zu setting=limits.client_bytes",
               server->held_bytes, most, server->lists[LK_LIST_STARVED].count);
    }
    for (int i = 0; i < CUTS_MAX && server->held_bytes > most / 2 + freed &&
                    (conn = find_slow(server, now_ms));
         i++) {
        freed += conn->held_bytes;
        cut(conn, LK_CUT_MEMORY);
    }
}

void lk_conns_tick(struct lk_server *server, uint64_t now_ms)
{
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        check_time(conn, now_ms);
    }
    if (lk_server_is_short(server)) {
        make_room(server, now_ms);
    }
    for (int i = 0; i < LK_CUTS; i++) {
        log_cuts(server, (enum lk_cut)i, NULL, now_ms);
    }
}
