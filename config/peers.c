/*
 * peers.c - [peers]: the roles of who connects through a unix socket.
 *
 * The kernel says who that is: the user and the groups of the process that
 * connected, as they were then. A user that the daemon's user namespace does
 * not know is shown as the overflow user (65534, often called nobody), and so
 * is every other such user: that one stands for no one in particular, never
 * has a role, and cannot be given one.
 */
#include "config/config_table.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OVERFLOW_USUAL = 65534, LOOKUP_BYTES = 64 * 1024 };

/* ---- Whom the kernel means ----------------------------------------------- */

static uint32_t read_overflow(const char *path)
{
    FILE *file = fopen(path, "re");
    unsigned number;
    uint32_t id = OVERFLOW_USUAL;

    if (file) {
        if (fscanf(file, "%u", &number) == 1) {
            id = number;
        }
        fclose(file);
    }
    return id;
}

/* The same as long as the daemon runs, by what it was when it was first needed.
 */
static bool is_overflow(bool group, uint32_t id)
{
    static uint32_t ids[2];
    static bool read;

    if (!read) {
        ids[0] = read_overflow("/proc/sys/kernel/overflowuid");
        ids[1] = read_overflow("/proc/sys/kernel/overflowgid");
        read = true;
    }
    return id == ids[group] || id == UINT32_MAX;
}

static bool has_group(const struct lk_peer *peer, uint32_t id)
{
    for (size_t i = 0; i < peer->group_count; i++) {
        if (peer->groups[i] == id) {
            return true;
        }
    }
    return false;
}

static bool is_meant(const struct lk_peer_rule *rule,
                     const struct lk_peer *peer)
{
    if (is_overflow(rule->group, rule->id)) {
        return false;
    }
    return rule->group ? has_group(peer, rule->id) : rule->id == peer->uid;
}

/* Root and the daemon's own user can read the store and the configuration
 * anyway. */
static bool is_own(const struct lk_peer *peer)
{
    return !is_overflow(false, peer->uid) &&
           (peer->uid == 0 || peer->uid == geteuid());
}

unsigned lk_config_peer_roles(const struct lk_config *config,
                              const struct lk_peer *peer)
{
    unsigned roles = 0;
    bool named = false;

    if (!peer->known) {
        return 0;
    }
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct lk_peer_rule *rule = &config->peers[i];

        if (is_meant(rule, peer)) {
            roles |= rule->roles;
            named = named || !rule->group;
        }
    }
    if (!named && is_own(peer)) {
        roles |= 1U << LK_ROLE_USE | 1U << LK_ROLE_OPERATE;
    }
    return roles;
}

const char *lk_config_peer_name(const struct lk_config *config, uint32_t uid)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct lk_peer_rule *rule = &config->peers[i];

        if (!rule->group && rule->id == uid) {
            return rule->name;
        }
    }
    return uid == 0 ? "root" : NULL;
}

/* ---- The section --------------------------------------------------------- */

void lk_peers_clear(struct lk_config *config)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        free(config->peers[i].name);
    }
    free(config->peers);
    config->peers = NULL;
    config->peer_count = 0;
}

static enum lk_status invalid(struct lk_buf *why, const char *text)
{
    return latchkey_buf_add_text(why, text) == LK_OK ? LK_INVALID : LK_NOMEM;
}

/* A number is an id itself, known or not, as for chown. */
static bool read_id(const char *name, uint32_t *id)
{
    char *end;

    if (*name < '0' || *name > '9') {
        return false;
    }
    errno = 0;
    unsigned long number = strtoul(name, &end, 10);
    *id = (uint32_t)number;
    return *end == '\0' && !errno && number < UINT32_MAX;
}

/* 0: it is in the rule; ENOENT: there is none; else what went wrong. */
static int find_id(const char *name, struct lk_peer_rule *rule, char *room)
{
    struct passwd user, *user_found = NULL;
    struct group group, *group_found = NULL;
    int error;

    if (read_id(name, &rule->id)) {
        return 0;
    }
    if (rule->group) {
        error = getgrnam_r(name, &group, room, LOOKUP_BYTES, &group_found);
        rule->id = group_found ? group_found->gr_gid : 0;
    } else {
        error = getpwnam_r(name, &user, room, LOOKUP_BYTES, &user_found);
        rule->id = user_found ? user_found->pw_uid : 0;
    }
    return user_found || group_found ? 0 : error ? error : ENOENT;
}

static enum lk_status find_peer(const char *name, struct lk_peer_rule *rule,
                                struct lk_buf *why)
{
    const char *what = rule->group ? "group" : "user";
    char *room = malloc(LOOKUP_BYTES);
    enum lk_status status = LK_OK;

    if (!room) {
        return LK_NOMEM;
    }
    int error = find_id(name, rule, room);
    free(room);
    if (error == ENOENT || error == ESRCH) {
        status =
            latchkey_buf_printf(why,
                                "there is no such %s on this machine; make it, "
                                "or correct the name",
                                what);
    } else if (error) {
        status = latchkey_buf_printf(why, "the %s cannot be looked up: %s",
                                     what, strerror(error));
    } else if (is_overflow(rule->group, rule->id)) {
        status = latchkey_buf_printf(
            why,
            "the %s %u stands for everyone of another user namespace, and "
            "cannot have a role",
            what, (unsigned)rule->id);
    } else {
        return LK_OK;
    }
    return status == LK_OK ? LK_INVALID : status;
}

/* Roles with blanks or commas between them, or none. False: it is not that. */
static bool read_roles(const char *value, unsigned *roles)
{
    size_t len;
    bool none = false;

    *roles = 0;
    for (; *(value += strspn(value, " \t,")); value += len) {
        unsigned role = LK_ROLE_NONE;

        len = strcspn(value, " \t,");
        while (role <= LK_ROLE_OPERATE &&
               (strlen(lk_role_word(role)) != len ||
                memcmp(value, lk_role_word(role), len) != 0)) {
            role++;
        }
        if (role > LK_ROLE_OPERATE) {
            return false;
        }
        none = none || role == LK_ROLE_NONE;
        *roles |= 1U << role;
    }
    if (none) {
        bool alone = *roles == 1U << LK_ROLE_NONE;
        *roles = 0;
        return alone;
    }
    return *roles != 0;
}

static struct lk_peer_rule *find_rule(struct lk_config *config,
                                      const char *name)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        if (strcmp(config->peers[i].name, name) == 0) {
            return &config->peers[i];
        }
    }
    return NULL;
}

static enum lk_status put_rule(const struct lk_assignment *assignment,
                               const struct lk_peer_rule *rule,
                               struct lk_buf *why)
{
    struct lk_config *config = assignment->config;
    struct lk_peer_rule *place = find_rule(config, assignment->name);
    struct lk_peer_rule made = *rule;

    if (place && assignment->source == LK_CONFIG_FILE) {
        return invalid(why, "is given twice");
    }
    if (place) {
        made.name = place->name;
        *place = made;
        return LK_OK;
    }
    made.name = strdup(assignment->name);
    place = realloc(config->peers, (config->peer_count + 1) * sizeof(*place));
    if (place) {
        config->peers = place;
    }
    if (!place || !made.name) {
        free(made.name);
        return LK_NOMEM;
    }
    config->peers[config->peer_count++] = made;
    return LK_OK;
}

static enum lk_status parse_peer(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    const char *name = assignment->name;
    struct lk_peer_rule rule = {.group = *name == '@'};
    enum lk_status status;

    if (!read_roles(assignment->value, &rule.roles)) {
        return lk_value_invalid(why, assignment->shown,
                                "is not a list of roles; use \"use\", \"read\" "
                                "and \"operate\", or \"none\"");
    }
    status = find_peer(name + rule.group, &rule, why);
    return status ? status : put_rule(assignment, &rule, why);
}

const struct lk_setting_kind lk_kind_peer = {.parse = parse_peer,
                                             .repeats = true};

enum lk_status lk_peers_dump(const struct lk_config *config, struct lk_buf *out)
{
    enum lk_status status = LK_OK;

    for (size_t i = 0; i < config->peer_count && status == LK_OK; i++) {
        const struct lk_peer_rule *rule = &config->peers[i];

        status = latchkey_buf_printf(out, "%s =", rule->name);
        for (unsigned role = LK_ROLE_USE; role <= LK_ROLE_OPERATE; role++) {
            if (status == LK_OK && rule->roles & 1U << role) {
                status = latchkey_buf_printf(out, " %s", lk_role_word(role));
            }
        }
        if (status == LK_OK) {
            status = latchkey_buf_add_text(out, rule->roles ? "\n" : " none\n");
        }
    }
    return status;
}
