/*
 * rights.c - who a connection is, and what it may do.
 *
 * A connection has the role of the nameless (`use`, if there is no password),
 * those of its user and groups (unix sockets: config/peers.c), and that of the
 * last AUTH. The kernel was asked at accept: what the process has become since,
 * and to whom it passed the socket, changes nothing.
 *
 * A reload is one step of the loop, as each command is: a command runs with the
 * rights of before or of after, and AUTH by the passwords of before or of
 * after. A connection that lost a right by it runs no further command. What the
 * store or the reader has begun ends and is answered, then the connection is
 * closed.
 */
#include "daemon/daemon.h"
#include "lib/siphash.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/rand.h>

/* ---- Who it is ----------------------------------------------------------- */

enum { GROUPS_USUAL = 32, NAME_BYTES = 16 * 1024 };

/* All groups of the process when it connected. An old kernel that cannot say so
 * leaves its own group alone. */
static bool read_groups(int fd, gid_t own, struct lk_peer *peer)
{
    socklen_t size = GROUPS_USUAL * sizeof(gid_t);
    gid_t *groups = malloc(size + sizeof(gid_t));
    int result = -1;

    while (groups &&
           (result =
                getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &size)) &&
           errno == ERANGE) {
        free(groups);
        groups = malloc(size + sizeof(gid_t));
    }
    if (!groups) {
        return false;
    }
    groups[0] = own;
    peer->groups = groups;
    peer->group_count = 1 + (result ? 0 : size / sizeof(gid_t));
    return true;
}

/* A user who has a role by a group is a person: to ask for the name of each app
 * that connects could mean to ask another machine. */
static void name_user(struct lk_conn *conn)
{
    struct lk_peer *peer = &conn->peer;
    const char *name = lk_config_peer_name(&conn->server->config, peer->uid);
    struct passwd entry, *found = NULL;
    char room[NAME_BYTES];

    if (!name && conn->peer_roles &&
        !getpwuid_r(peer->uid, &entry, room, sizeof(room), &found) && found) {
        name = found->pw_name;
    }
    if (name) {
        snprintf(conn->peer_user, sizeof(conn->peer_user), "%s", name);
    } else {
        snprintf(conn->peer_user, sizeof(conn->peer_user), "%" PRIu32,
                 peer->uid);
    }
    for (char *at = conn->peer_user; *at; at++) {
        *at = isgraph((unsigned char)*at) ? *at : '?';
    }
}

/* Fills in conn->peer. If the kernel does not say, the peer stays unknown and
 * has no role by its user. */
static void ask_kernel(struct lk_conn *conn)
{
    struct ucred credentials;
    socklen_t size = sizeof(credentials);
    int fd = lk_conn_fd(conn);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) ||
        !read_groups(fd, credentials.gid, &conn->peer)) {
        return;
    }
    conn->peer.known = true;
    conn->peer.uid = credentials.uid;
    conn->peer.pid = credentials.pid;
}

void lk_rights_peer_text(const struct lk_conn *conn, char text[LK_PEER_TEXT])
{
    if (conn->peer.known) {
        snprintf(text, LK_PEER_TEXT, "%s/%d", conn->peer_user, conn->peer.pid);
    } else {
        snprintf(text, LK_PEER_TEXT, "%s", conn->address);
    }
}

struct lk_slice lk_rights_user(const struct lk_conn *conn)
{
    bool operates = conn->peer_roles & 1U << LK_ROLE_OPERATE;

    return latchkey_slice(conn->user ? conn->user
                          : operates ? conn->peer_user
                                     : NULL);
}

/* ---- What it may do ------------------------------------------------------ */

static unsigned bit_of(enum lk_role role)
{
    return role == LK_ROLE_NONE ? 0 : 1U << role;
}

/* The union of all three sources: see the top of the file. */
static unsigned find_roles(const struct lk_conn *conn)
{
    const struct lk_config *config = &conn->server->config;

    return bit_of(lk_config_initial_role(config)) | conn->peer_roles |
           bit_of(conn->login_role);
}

void lk_rights_begin(struct lk_conn *conn)
{
    if (conn->uv.handle.type == UV_NAMED_PIPE) {
        ask_kernel(conn);
    }
    conn->peer_roles = lk_config_peer_roles(&conn->server->config, &conn->peer);
    if (conn->peer.known) {
        name_user(conn);
    }
    lk_conn_set_roles(conn, find_roles(conn));
}

/* An export that was begun under the old login ends with it. */
void lk_rights_login(struct lk_conn *conn, char *user, enum lk_role role)
{
    free(conn->user);
    conn->user = user;
    conn->login_role = role;
    conn->exports = false;
    lk_conn_set_roles(conn, find_roles(conn));
}

void lk_rights_end(struct lk_conn *conn)
{
    free(conn->user);
    free(conn->peer.groups);
}

/* ---- Reload -------------------------------------------------------------- */

/* Is the password of its AUTH still the same? Without AUTH there is none to
 * lose. */
static bool keeps_login(const struct lk_conn *conn,
                        const struct lk_config *before)
{
    return conn->login_role == LK_ROLE_NONE ||
           lk_config_same_login(before, &conn->server->config,
                                latchkey_slice(conn->user));
}

/* After a reload: a connection that lost a right ends with its last reply. */
static void recheck(struct lk_conn *conn, const struct lk_config *before)
{
    unsigned had = conn->roles;
    bool keeps = keeps_login(conn, before);
    char user[LK_LOG_QUOTED];
    char peer[LK_PEER_TEXT];

    conn->login_role = keeps ? conn->login_role : LK_ROLE_NONE;
    conn->peer_roles = lk_config_peer_roles(&conn->server->config, &conn->peer);
    unsigned has = find_roles(conn);
    if (keeps && !(had & ~has)) {
        if (has != had) {
            lk_conn_set_roles(conn, has);
        }
        return;
    }
    lk_rights_peer_text(conn, peer);
    lk_log(LK_LOG_INFO, "client-revoked", "id=%" PRIu64 " peer=%s user=%s",
           conn->id, peer,
           lk_log_quote(lk_rights_user(conn), user, sizeof(user)));
    lk_conn_finish(conn);
    lk_conn_set_roles(conn, 0);
}

void lk_rights_reload(struct lk_server *server, const struct lk_config *before)
{
    for (struct lk_conn *conn = server->conns; conn; conn = conn->next) {
        if (!conn->closing) {
            recheck(conn, before);
        }
    }
}

/* ---- Wrong passwords: the table ------------------------------------------ */

static struct lk_auth_failures *auth_set_of(struct lk_auth_table *table,
                                            uint64_t key)
{
    return table->entries + key % LK_AUTH_SETS * LK_AUTH_WAYS;
}

/* The entry of a key, which can only be in one set; NULL: none. */
static struct lk_auth_failures *find_failures(struct lk_auth_table *table,
                                              uint64_t key)
{
    struct lk_auth_failures *set =
        table->entries ? auth_set_of(table, key) : NULL;

    for (int i = 0; set && i < LK_AUTH_WAYS; i++) {
        if (set[i].key == key) {
            return &set[i];
        }
    }
    return NULL;
}

static void clear_failures(struct lk_auth_table *table,
                           struct lk_auth_failures *failures)
{
    table->unlogged -= failures->unlogged;
    *failures = (struct lk_auth_failures){0};
}

/* A free entry, or that of the origin which has been quiet for longest. */
static struct lk_auth_failures *take_entry(struct lk_auth_table *table,
                                           uint64_t key)
{
    struct lk_auth_failures *set = auth_set_of(table, key);
    struct lk_auth_failures *entry = set;

    for (int i = 1; i < LK_AUTH_WAYS && entry->key; i++) {
        if (!set[i].key || set[i].wrong_ms < entry->wrong_ms) {
            entry = &set[i];
        }
    }
    clear_failures(table, entry);
    entry->key = key;
    return entry;
}

/* One wrong password less for each LK_AUTH_FORGET_MS since the last. */
static void forget_some(struct lk_auth_failures *failures, uint64_t now_ms)
{
    uint64_t steps = (now_ms - failures->wrong_ms) / LK_AUTH_FORGET_MS;

    failures->wrong =
        failures->wrong > steps ? failures->wrong - (unsigned)steps : 0;
    failures->wrong_ms += steps * LK_AUTH_FORGET_MS;
}

/* In milliseconds. The shift is small, because `wrong` is at most
 * LK_AUTH_COUNT_MAX. */
static uint64_t auth_delay_of(const struct lk_auth_failures *failures,
                              uint64_t most_ms)
{
    if (failures->wrong <= LK_AUTH_FREE) {
        return 0;
    }
    uint64_t delay = (uint64_t)LK_AUTH_FIRST_MS
                     << (failures->wrong - LK_AUTH_FREE - 1);
    return delay < most_ms ? delay : most_ms;
}

uint64_t lk_auth_turn(struct lk_auth_table *table, uint64_t key,
                      uint64_t now_ms, uint64_t most_ms)
{
    struct lk_auth_failures *failures = find_failures(table, key);

    if (!failures || failures->next_ms <= now_ms || !most_ms) {
        return now_ms;
    }
    uint64_t turn = failures->next_ms;
    if (turn - now_ms > most_ms) {
        failures->unlogged++;
        table->unlogged++;
        return UINT64_MAX;
    }
    forget_some(failures, now_ms);
    failures->next_ms = turn + auth_delay_of(failures, most_ms);
    return turn;
}

struct lk_auth_failures *lk_auth_wrong(struct lk_auth_table *table,
                                       uint64_t key, uint64_t now_ms,
                                       uint64_t most_ms)
{
    if (!table->entries) {
        table->entries =
            calloc(LK_AUTH_SETS, LK_AUTH_WAYS * sizeof(*table->entries));
    }
    if (!table->entries) {
        return NULL;
    }
    struct lk_auth_failures *failures = find_failures(table, key);
    if (!failures) {
        failures = take_entry(table, key);
        failures->wrong_ms = now_ms;
    }
    forget_some(failures, now_ms);
    failures->wrong += failures->wrong < LK_AUTH_COUNT_MAX;
    failures->wrong_ms = now_ms;
    failures->unlogged++;
    table->unlogged++;
    uint64_t next = now_ms + auth_delay_of(failures, most_ms);
    failures->next_ms = next > failures->next_ms ? next : failures->next_ms;
    return failures;
}

void lk_auth_right(struct lk_auth_table *table, uint64_t key)
{
    struct lk_auth_failures *failures = find_failures(table, key);

    if (failures) {
        clear_failures(table, failures);
    }
}

bool lk_auth_log_is_due(const struct lk_auth_failures *failures,
                        uint64_t now_ms)
{
    return failures->unlogged &&
           (!failures->logged_ms ||
            now_ms - failures->logged_ms >= LK_AUTH_LOG_MS);
}

unsigned lk_auth_logged(struct lk_auth_table *table,
                        struct lk_auth_failures *failures, uint64_t now_ms)
{
    unsigned count = failures->unlogged;

    table->unlogged -= count;
    failures->unlogged = 0;
    failures->logged_ms = now_ms;
    return count;
}

/* ---- Wrong passwords: connections ---------------------------------------- */

/* Where it comes from: see rights.h. Origins that cannot be found out count as
 * one. */
struct origin {
    uint8_t family;
    uint8_t bytes[8];
};

static void take_ipv4(struct origin *origin, const void *address)
{
    origin->family = AF_INET;
    memcpy(origin->bytes, address, 4);
}

/* An IPv4 client counts as the same whether it comes by IPv4 or mapped into
 * IPv6. */
static struct origin origin_of(const struct lk_conn *conn)
{
    struct origin origin = {0};
    struct sockaddr_storage address = {0};
    int len = sizeof(address);
    struct ucred peer;
    socklen_t size = sizeof(peer);

    if (conn->uv.handle.type != UV_TCP) {
        if (!getsockopt(lk_conn_fd(conn), SOL_SOCKET, SO_PEERCRED, &peer,
                        &size)) {
            origin.family = AF_UNIX;
            memcpy(origin.bytes, &peer.uid, sizeof(peer.uid));
        }
    } else if (!uv_tcp_getpeername(&conn->uv.tcp, (struct sockaddr *)&address,
                                   &len)) {
        const struct in6_addr *in6 =
            &((const struct sockaddr_in6 *)&address)->sin6_addr;
        if (address.ss_family == AF_INET) {
            take_ipv4(&origin, &((struct sockaddr_in *)&address)->sin_addr);
        } else if (IN6_IS_ADDR_V4MAPPED(in6)) {
            take_ipv4(&origin, in6->s6_addr + 12);
        } else {
            origin.family = AF_INET6;
            memcpy(origin.bytes, in6->s6_addr, sizeof(origin.bytes));
        }
    }
    return origin;
}

/* All names that are not in [users] count as one. */
static struct lk_slice known_user(const struct lk_conn *conn,
                                  struct lk_slice user)
{
    return !user.len ? LK_SLICE("default")
           : lk_config_has_user(&conn->server->config, user) ? user
                                                             : LK_SLICE("");
}

/* Never 0, which marks a free entry. */
static uint64_t auth_key_of(struct lk_conn *conn, struct lk_slice user)
{
    struct lk_auth_table *table = &conn->server->auth_table;
    struct origin origin = origin_of(conn);
    struct lk_slice name = known_user(conn, user);
    struct lk_siphash hash;

    if (!table->keyed) {
        table->keyed = RAND_bytes(table->secret, LK_SIPHASH_KEY) == 1;
    }
    lk_siphash_init(&hash, table->secret);
    lk_siphash_update(&hash, &origin, sizeof(origin));
    lk_siphash_update(&hash, name.data, name.len);
    uint64_t key = lk_siphash_final128(&hash).lo;
    return key ? key : 1;
}

/* The turn is taken once (judged_ms) and the command is run again until it has
 * come; in the meantime nothing else of the connection runs. */
bool lk_auth_check_turn(struct lk_conn *conn, struct lk_slice user)
{
    struct lk_server *server = conn->server;
    uint64_t most = server->config.auth_delay_ms;
    uint64_t now = uv_now(&server->loop);

    if (!conn->judged_ms) {
        conn->judged_ms = lk_auth_turn(&server->auth_table,
                                       auth_key_of(conn, user), now, most);
    }
    if (conn->judged_ms == UINT64_MAX) {
        conn->judged_ms = 0;
        lk_conn_error(
            conn,
            "ERR %s: too many wrong passwords for this user from this "
            "address; try again in %" PRIu64 " s",
            conn->command->name, (2 * most + 999) / 1000);
        return false;
    }
    conn->again = now < conn->judged_ms;
    if (!conn->again) {
        conn->judged_ms = 0;
    }
    return !conn->again;
}

void lk_auth_judged(struct lk_conn *conn, struct lk_slice user, bool right)
{
    struct lk_server *server = conn->server;
    struct lk_auth_table *table = &server->auth_table;
    uint64_t now = uv_now(&server->loop);
    uint64_t key = auth_key_of(conn, user);

    if (right) {
        lk_auth_right(table, key);
        return;
    }
    server->metrics.auth_failed++;
    struct lk_auth_failures *failures =
        lk_auth_wrong(table, key, now, server->config.auth_delay_ms);
    if (!failures) {
        return;
    }
    struct lk_slice name = known_user(conn, user);
    snprintf(failures->address, sizeof(failures->address), "%.*s",
             LK_AUTH_ADDRESS - 1, conn->address);
    if (name.len) {
        lk_log_quote(name, failures->user, sizeof(failures->user));
    } else {
        snprintf(failures->user, sizeof(failures->user), "unknown");
    }
    if (lk_auth_log_is_due(failures, now)) {
        lk_log(LK_LOG_WARN, "auth-failed",
               "id=%" PRIu64 " address=%s user=%s count=%u", conn->id,
               failures->address, failures->user,
               lk_auth_logged(table, failures, now));
    }
}

/* Called once a tick. The loop ends as soon as nothing is left to log. */
void lk_auth_log_failures(struct lk_server *server, uint64_t now_ms)
{
    struct lk_auth_table *table = &server->auth_table;

    for (int i = 0; table->unlogged && i < LK_AUTH_SETS * LK_AUTH_WAYS; i++) {
        struct lk_auth_failures *failures = &table->entries[i];
        if (failures->key && lk_auth_log_is_due(failures, now_ms)) {
            lk_log(LK_LOG_WARN, "auth-failed", "address=%s user=%s count=%u",
                   failures->address, failures->user,
                   lk_auth_logged(table, failures, now_ms));
        }
    }
}
