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

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

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

static bool keeps_login(const struct lk_conn *conn,
                        const struct lk_config *before)
{
    return conn->login_role == LK_ROLE_NONE ||
           lk_config_same_login(before, &conn->server->config,
                                latchkey_slice(conn->user));
}

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
