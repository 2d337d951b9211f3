/* auth.c - passwords, users and the roles they give. */
#include "config/config_table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#define PASSWORD_MAX 512

static const char *const role_words[] = {
#define X(name, word) word,
    LK_ROLE_MAP(X)
#undef X
};

#define ROLE_COUNT (sizeof(role_words) / sizeof(role_words[0]))

const char *lk_role_word(enum lk_role role)
{
    return (size_t)role < ROLE_COUNT ? role_words[role] : "unknown";
}

/* ---- who is it?
 * ----------------------------------------------------------------- */

/* Equal digests, so that the time tells nothing about the text or length. */
static bool same_secret(const char *expected, struct lk_slice given)
{
    unsigned char a[SHA256_DIGEST_LENGTH], b[SHA256_DIGEST_LENGTH];

    SHA256((const unsigned char *)expected, strlen(expected), a);
    SHA256((const unsigned char *)given.data, given.len, b);
    return CRYPTO_memcmp(a, b, sizeof(a)) == 0;
}

static struct lk_user *find_user(const struct lk_config *config,
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
           find_user(config, name);
}

enum lk_role lk_config_login(const struct lk_config *config,
                             struct lk_slice name, struct lk_slice password)
{
    const struct lk_user *user = find_user(config, name);

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

enum lk_role lk_config_initial_role(const struct lk_config *config)
{
    return config->password ? LK_ROLE_NONE : LK_ROLE_USE;
}

bool lk_config_same_login(const struct lk_config *before,
                          const struct lk_config *after, struct lk_slice name)
{
    const struct lk_user *was = find_user(before, name);
    const struct lk_user *is = find_user(after, name);
    const char *old = was ? was->password : before->password;
    const char *now = is ? is->password : after->password;

    return !was == !is && (!was || was->role == is->role) && old && now &&
           strcmp(old, now) == 0;
}

/* ---- passwords
 * -------------------------------------------------------------------- */

void lk_secret_free(char *secret)
{
    if (secret) {
        explicit_bzero(secret, strlen(secret));
        free(secret);
    }
}

static enum lk_status refuse_file(struct lk_buf *why, const char *path,
                                  const char *text)
{
    char quoted[LK_LOG_QUOTED];

    lk_log_quote(latchkey_slice(path), quoted, sizeof(quoted));
    return latchkey_buf_printf(why, "%s: %s", quoted, text) == LK_OK
               ? LK_INVALID
               : LK_NOMEM;
}

enum lk_status lk_secret_read(const char *path, char **secret, bool *everybody,
                              struct lk_buf *why)
{
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
    setvbuf(file, NULL, _IONBF, 0); /* no copy of it stays behind */
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
        *everybody = (st.st_mode & S_IROTH) != 0;
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

/* ---- [users]
 * ----------------------------------------------------------------------- */

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

/* "ROLE PASSWORD" or "ROLE file:PATH"; LK_INVALID without a word of why, as
 * the value must not be shown. */
static enum lk_status read_user(const struct lk_assignment *assignment,
                                struct lk_user *user)
{
    const char *value = assignment->value;
    size_t role_len = strcspn(value, " \t");
    const char *rest = value + role_len + strspn(value + role_len, " \t");
    char **target = &user->password;

    *user = (struct lk_user){.line = assignment->line};
    for (size_t i = LK_ROLE_USE; i < ROLE_COUNT; i++) {
        if (strlen(role_words[i]) == role_len &&
            memcmp(value, role_words[i], role_len) == 0) {
            user->role = (enum lk_role)i;
        }
    }
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

static enum lk_status put_user(const struct lk_assignment *assignment,
                               const struct lk_user *user, struct lk_buf *why)
{
    struct lk_config *config = assignment->config;
    struct lk_user *place = find_user(config, latchkey_slice(user->name));
    struct lk_user *grown;

    if (place) {
        if (assignment->source == LK_CONFIG_FILE) {
            return latchkey_buf_add_text(why, "is given twice") == LK_OK
                       ? LK_INVALID
                       : LK_NOMEM;
        }
        free_user(place);
        *place = *user;
        return LK_OK;
    }
    grown = realloc(config->users,
                    (config->user_count + 1) * sizeof(*config->users));
    if (!grown) {
        return LK_NOMEM;
    }
    config->users = grown;
    grown[config->user_count++] = *user;
    return LK_OK;
}

static bool is_name(const char *name)
{
    while (*name > ' ' && *name < 0x7f) {
        name++;
    }
    return *name == '\0';
}

static enum lk_status invalid(struct lk_buf *why, const char *text)
{
    return latchkey_buf_add_text(why, text) == LK_OK ? LK_INVALID : LK_NOMEM;
}

static enum lk_status parse_user(const struct lk_assignment *assignment,
                                 struct lk_buf *why)
{
    struct lk_user user;
    enum lk_status status;

    if (strcmp(assignment->name, "default") == 0) {
        return invalid(why, "stands for whoever has no name; set "
                            "auth.password instead");
    }
    if (!is_name(assignment->name)) {
        return invalid(why,
                       "is not a name; use printable ASCII without spaces");
    }
    status = read_user(assignment, &user);
    if (status == LK_INVALID) {
        return invalid(why, "the value is not a role and a password; use "
                            "\"ROLE PASSWORD\" or \"ROLE file:/PATH\", where "
                            "ROLE is use, read or operate");
    }
    if (status != LK_OK) {
        return status;
    }
    status = put_user(assignment, &user, why);
    if (status != LK_OK) {
        free_user(&user);
    }
    return status;
}

const struct lk_setting_kind lk_kind_user = {.parse = parse_user,
                                             .repeats = true};
