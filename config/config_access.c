/*
 * config_access.c - who may do what: [auth], [users] and [peers].
 *
 * [auth] has the one password of clients that send no name ("default"). [users]
 * gives names, roles and passwords of their own; [peers] gives roles to local
 * users and groups by what the kernel says of a unix socket's other end.
 * Secrets are wiped before they are freed.
 */
#include "config/config_table.h"

#include <errno.h>
#include <grp.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PASSWORD_MAX 512

/* ---- logins ---------------------------------------------------------- */

/* Compares digests, so that the time does not depend on text or length. */
static bool same_secret(const char *expected, struct lk_slice given)
{
    unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)expected, strlen(expected), a);
    SHA256((const unsigned char *)given.data, given.len, b);
    return CRYPTO_memcmp(a, b, sizeof(a)) == 0;
}

/* The user of [users] of that name, or NULL. "default" is never one. */
static struct lk_user *find_config_user(const struct lk_config *config,
                                        struct lk_slice name)
{
    for (size_t i = 0; i < config->user_count; i++) {
        if (latchkey_slice_equal(name, latchkey_slice(config->users[i].name))) {
            return &config->users[i];
        }
    }
    return NULL;
}

bool lk_config_has_user(const struct lk_config *config, struct lk_slice name)
{
    return latchkey_slice_equal(name, LK_SLICE("default")) ||
           find_config_user(config, name);
}

/* LK_ROLE_NONE: the name or the password is wrong; the caller cannot see which.
 * A user without a password yet (its file was not read) cannot log in. */
enum lk_role lk_config_login(const struct lk_config *config,
                             struct lk_slice name, struct lk_slice password)
{
    const struct lk_user *user = find_config_user(config, name);

    if (user) {
        return user->password && same_secret(user->password, password)
                   ? user->role
                   : LK_ROLE_NONE;
    }
    if (name.len > 0 && !latchkey_slice_equal(name, LK_SLICE("default"))) {
        return LK_ROLE_NONE;
    }
    return config->password && same_secret(config->password, password)
               ? LK_ROLE_USE
               : LK_ROLE_NONE;
}

/* The role of a connection before it logs in. */
enum lk_role lk_config_initial_role(const struct lk_config *config)
{
    return config->password ? LK_ROLE_NONE : LK_ROLE_USE;
}

/* After a reload: may a connection that logged in as `name` stay? Only with the
 * same password and role; a user who was removed or added may not. */
bool lk_config_same_login(const struct lk_config *before,
                          const struct lk_config *after, struct lk_slice name)
{
    const struct lk_user *was = find_config_user(before, name);
    const struct lk_user *is = find_config_user(after, name);
    const char *old = was ? was->password : before->password;
    const char *now = is ? is->password : after->password;

    return !was == !is && (!was || was->role == is->role) && old && now &&
           strcmp(old, now) == 0;
}

/* ---- passwords ----------------------------------------------------------- */

/* Wipes the text first; the compiler cannot drop explicit_bzero. */
void lk_secret_free(char *secret)
{
    if (secret) {
        explicit_bzero(secret, strlen(secret));
        free(secret);
    }
}

/* LK_INVALID with the file's name in front of the sentence. */
static enum lk_status refuse_file(struct lk_buf *why, const char *path,
                                  const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(path), quoted, sizeof(quoted));
    return lk_value_refuse(why, "%s: %s", quoted, text);
}

/* Reads the first line of a file as a password; *secret then belongs to the
 * caller. The rest of the file is ignored. LK_INVALID: `why` has the reason. */
enum lk_status lk_secret_read(const char *path, char **secret,
                              bool *world_readable, struct lk_buf *why)
{
    /* The longest password, one byte that proves it too long, and a NUL. */
    char line[PASSWORD_MAX + 2];
    enum lk_status status = LK_OK;
    FILE *file = fopen(path, "re");
    struct stat st;
    size_t len;

    if (!file || fstat(fileno(file), &st) != 0) {
        status = refuse_file(why, path,
                             errno == ENOENT
                                 ? "no such file; write the password into it"
                                 : strerror(errno));
        goto done;
    }
    setvbuf(file, NULL, _IONBF, 0); /* leaves no copy in memory */
    if (!fgets(line, sizeof(line), file)) {
        line[0] = '\0';
    }
    len = strcspn(line, "\r\n");
    if (len == 0 || len > PASSWORD_MAX) {
        status = refuse_file(why, path,
                             "the first line must be a password of 1 to 512 "
                             "bytes");
    } else {
        line[len] = '\0';
        *world_readable = (st.st_mode & S_IROTH) != 0;
        *secret = strdup(line);
        status = *secret ? LK_OK : LK_NOMEM;
    }
    explicit_bzero(line, sizeof(line));
done:
    if (file) {
        fclose(file);
    }
    return status;
}

/* ---- [users] ------------------------------------------------------------- */

/* Frees the texts, not the struct: that is part of config->users. */
static void free_user(struct lk_user *user)
{
    free(user->name);
    free(user->password_file);
    lk_secret_free(user->password);
}

void lk_users_clear(struct lk_config *config)
{
    for (size_t i = 0; i < config->user_count; i++) {
        free_user(&config->users[i]);
    }
    free(config->users);
    config->users = NULL;
    config->user_count = 0;
}

/* "ROLE PASSWORD" or "ROLE file:PATH". LK_INVALID comes without a reason: the
 * value must not be shown. */
static enum lk_status read_user_line(const struct lk_assignment *assignment,
                                     struct lk_user *user)
{
    const char *value = assignment->value;
    size_t role_len = strcspn(value, " \t");
    const char *rest = value + role_len + strspn(value + role_len, " \t");
    char **target = &user->password;

    *user = (struct lk_user){.line = assignment->line};
    (void)lk_role_parse((struct lk_slice){value, role_len}, &user->role);
    if (strncmp(rest, "file:", 5) == 0) {
        rest += 5;
        target = &user->password_file;
    }
    if (user->role == LK_ROLE_NONE || *rest == '\0' ||
        (target == &user->password_file && *rest != '/')) {
        return LK_INVALID;
    }
    user->name = strdup(assignment->name);
    *target = strdup(rest);
    if (!user->name || !*target) {
        free_user(user);
        return LK_NOMEM;
    }
    return LK_OK;
}

/* Takes the texts of `user`: adds the user, or frees them if that fails. An
 * option replaces a user of the file. */
static enum lk_status put_user(const struct lk_assignment *assignment,
                               struct lk_user *user, struct lk_buf *why)
{
    struct lk_config *config = assignment->config;
    struct lk_user *place =
        find_config_user(config, latchkey_slice(user->name));
    struct lk_user *grown;

    if (place) {
        if (assignment->source == LK_CONFIG_FILE) {
            free_user(user);
            return lk_value_refuse(why, "is given twice");
        }
        free_user(place);
        *place = *user;
        return LK_OK;
    }
    grown = realloc(config->users,
                    (config->user_count + 1) * sizeof(*config->users));
    if (!grown) {
        free_user(user);
        return LK_NOMEM;
    }
    config->users = grown;
    grown[config->user_count++] = *user;
    return LK_OK;
}

/* Printable ASCII without a space. The empty name was refused before. */
static bool is_user_name(const char *name)
{
    while (*name > ' ' && *name < 0x7f) {
        name++;
    }
    return *name == '\0';
}

/* A line of [users]. Messages do not show the value: it has a password. */
static enum lk_status parse_user(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    struct lk_user user;
    enum lk_status status;

    if (strcmp(assignment->name, "default") == 0) {
        return lk_value_refuse(why,
                               "is the name of clients that send none; set "
                               "auth.password instead");
    }
    if (!is_user_name(assignment->name)) {
        return lk_value_refuse(
            why, "is not a name; use printable ASCII without spaces");
    }
    status = read_user_line(assignment, &user);
    if (status == LK_INVALID) {
        return lk_value_refuse(
            why, "the value is not a role and a password; use "
                 "\"ROLE PASSWORD\" or \"ROLE file:/PATH\", where "
                 "ROLE is use, read or operate");
    }
    if (status != LK_OK) {
        return status;
    }
    return put_user(assignment, &user, why);
}

const struct lk_setting_kind lk_kind_user = {.parse = parse_user,
                                             .repeats = true};

/* ---- [peers] ------------------------------------------------------------- */

/*
 * The kernel names the user and the groups of the process that connected, as
 * they were then. A user that the daemon's user namespace does not know is
 * shown as the overflow user (65534, often called nobody), and so is every
 * other such user. Therefore the overflow user never has a role, and cannot be
 * given one.
 */

enum { OVERFLOW_USUAL = 65534, LOOKUP_BYTES = 64 * 1024 };

/* ---- [peers]: who connects ----------------------------------------------- */

/* The kernel's overflow id; the usual one if /proc does not say. */
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

/* Read once, when first needed. */
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

/* look_up_peer() refuses a rule for the overflow id; this check does not
 * rely on it. */
static bool is_rule_for(const struct lk_peer_rule *rule,
                        const struct lk_peer *peer)
{
    if (is_overflow(rule->group, rule->id)) {
        return false;
    }
    return rule->group ? has_group(peer, rule->id) : rule->id == peer->uid;
}

/* Root and the daemon's own user can read the store and the configuration
 * anyway. */
static bool is_own_user(const struct lk_peer *peer)
{
    return !is_overflow(false, peer->uid) &&
           (peer->uid == 0 || peer->uid == geteuid());
}

/*
 * A set of roles, a bit each; 0: none. All rules that fit add up. A rule that
 * names the user itself replaces what root and the daemon's own user have
 * without one, so that "root = none" takes effect.
 */
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

        if (is_rule_for(rule, peer)) {
            roles |= rule->roles;
            named = named || !rule->group;
        }
    }
    if (!named && is_own_user(peer)) {
        roles |= 1U << LK_ROLE_USE | 1U << LK_ROLE_OPERATE;
    }
    return roles;
}

/*
 * The name of a user as [peers] writes it, for logs; NULL: it has none there.
 */
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

/* ---- [peers]: the section ------------------------------------------------ */

void lk_peers_clear(struct lk_config *config)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        free(config->peers[i].name);
    }
    free(config->peers);
    config->peers = NULL;
    config->peer_count = 0;
}

/* A number is the id itself, known or not, as for chown. */
static bool read_id(const char *name, uint32_t *id)
{
    uint64_t number;

    if (!lk_number_read(latchkey_slice(name), UINT32_MAX - 1, &number)) {
        return false;
    }
    *id = (uint32_t)number;
    return true;
}

/* 0: rule->id is set; ENOENT: there is no such user or group; else an errno. */
static int look_up_id(const char *name, struct lk_peer_rule *rule, char *room)
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

/* Sets rule->id by the name of a user or group. LK_INVALID: there is none,
 * or it cannot have a role. */
static enum lk_status look_up_peer(const char *name, struct lk_peer_rule *rule,
                                   struct lk_buf *why)
{
    const char *what = rule->group ? "group" : "user";
    char *room = malloc(LOOKUP_BYTES);

    if (!room) {
        return LK_NOMEM;
    }
    int error = look_up_id(name, rule, room);
    free(room);
    if (error == ENOENT || error == ESRCH) {
        return lk_value_refuse(
            why,
            "there is no such %s on this machine; create it, or correct the "
            "name",
            what);
    }
    if (error) {
        return lk_value_refuse(why, "the %s cannot be looked up: %s", what,
                               strerror(error));
    }
    if (is_overflow(rule->group, rule->id)) {
        return lk_value_refuse(
            why,
            "the %s %u may be anyone of another user namespace, and "
            "cannot have a role",
            what, (unsigned)rule->id);
    }
    return LK_OK;
}

/* Roles with blanks or commas between them, or "none". False: it is neither. */
static bool read_roles(const char *value, unsigned *roles)
{
    size_t len;
    bool none = false;

    *roles = 0;
    for (; *(value += strspn(value, " \t,")); value += len) {
        enum lk_role role;

        len = strcspn(value, " \t,");
        if (!lk_role_parse((struct lk_slice){value, len}, &role)) {
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

/* By the name as it is written, with its "@" if it is a group. */
static struct lk_peer_rule *find_peer_rule(struct lk_config *config,
                                           const char *name)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        if (strcmp(config->peers[i].name, name) == 0) {
            return &config->peers[i];
        }
    }
    return NULL;
}

/* Adds the rule with a copy of its name; an option replaces a rule of the file,
 * whose name it keeps. */
static enum lk_status put_peer_rule(const struct lk_assignment *assignment,
                                    const struct lk_peer_rule *rule,
                                    struct lk_buf *why)
{
    struct lk_config *config = assignment->config;
    struct lk_peer_rule *place = find_peer_rule(config, assignment->name);
    struct lk_peer_rule made = *rule;

    if (place && assignment->source == LK_CONFIG_FILE) {
        return lk_value_refuse(why, "is given twice");
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

/* A line of [peers]: "USER = ROLES" or "@GROUP = ROLES". The name is resolved
 * here, once: a change of the user database takes effect at the next reload. */
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
    status = look_up_peer(name + rule.group, &rule, why);
    return status ? status : put_peer_rule(assignment, &rule, why);
}

const struct lk_setting_kind lk_kind_peer = {.parse = parse_peer,
                                             .repeats = true};

/*
 * Writes the rules as lines of the file, in the order in which they were read.
 */
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
