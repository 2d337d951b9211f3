/*
 * where.c - which daemon, and as whom.
 *
 * The server is that of --server, of the profile that --profile names, of
 * LATCHKEY_SERVER, of the profile that LATCHKEY_PROFILE names, of [default], of
 * the one `latchkey up` that runs where no daemon has the usual socket, or the
 * usual socket: the first of these that there is. User and password are looked
 * for in the same order, but a profile that --profile does not name has them
 * for its own server only: no password goes to a server that it is not meant
 * for.
 */
#include "cli/cli.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_SOCKET (&LK_DEFAULT_SERVER[5])

/* An environment variable that is set and not empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

/* ---- The profile ----------------------------------------------------------
 */

/* Those of the file, or each `latchkey up`; a NUL ends them. */
static void put_names(struct lk_buf *out, const struct lk_profiles *profiles,
                      bool running)
{
    const char *gap = "";

    for (size_t i = 0; i < profiles->count; i++) {
        if (profiles->items[i].running == running) {
            lk_put(out, "%s%s", gap, profiles->items[i].name);
            gap = ", ";
        }
    }
    lk_put_raw(out, (struct lk_slice){"", 1});
}

static enum lk_exit complain_unknown(const struct lk_profiles *profiles,
                                     const char *name)
{
    const char *path = profiles->path == NULL ? "your home" : profiles->path;
    struct lk_buf names = {0};

    put_names(&names, profiles, false);
    if (strncmp(name, "up", 2) == 0) {
        lk_complain("there is no profile \"%s\": no such latchkey up is "
                    "running, and %s has none of that name; latchkey profiles "
                    "lists what there is",
                    name, path);
    } else if (names.len > 1) {
        lk_complain("there is no profile \"%s\" in %s; there is %s", name, path,
                    names.data);
    } else {
        lk_complain("there is no profile \"%s\": %s has none; write \"[%s]\" "
                    "and \"server = ADDRESS\" into it",
                    name, path, name);
    }
    latchkey_buf_free(&names);
    return LK_EXIT_USAGE;
}

/* The one `latchkey up` that runs; *profile stays NULL if none does. */
static enum lk_exit find_running(const struct lk_profiles *profiles,
                                 const struct lk_profile **profile)
{
    struct lk_buf names = {0};
    size_t count = 0;

    for (size_t i = 0; i < profiles->count; i++) {
        if (profiles->items[i].running) {
            *profile = &profiles->items[i];
            count++;
        }
    }
    if (count < 2) {
        return LK_EXIT_DONE;
    }
    put_names(&names, profiles, true);
    lk_complain("more than one latchkey up is running; choose with --profile: "
                "%s",
                names.data);
    latchkey_buf_free(&names);
    return LK_EXIT_USAGE;
}

static enum lk_exit find_named(struct lk_profiles *profiles, const char *name,
                               const struct lk_profile **profile)
{
    enum lk_exit result = LK_EXIT_DONE;

    *profile = lk_profiles_find(profiles, name);
    if (*profile != NULL) {
        return result;
    }
    lk_profiles_add_running(profiles);
    *profile = lk_profiles_find(profiles, name);
    if (*profile == NULL && strcmp(name, "up") == 0) {
        result = find_running(profiles, profile);
    }
    return result == LK_EXIT_DONE && *profile == NULL
               ? complain_unknown(profiles, name)
               : result;
}

/* A daemon of the machine comes first: its operator must not be led to a
 * `latchkey up` that was left running. */
static bool has_usual_socket(void)
{
    return access(DEFAULT_SOCKET, F_OK) == 0 || errno != ENOENT;
}

/* What is meant where nothing is said. */
static enum lk_exit find_unnamed(struct lk_cli *cli,
                                 const struct lk_profile **profile)
{
    enum lk_exit result;

    *profile = lk_profiles_find(&cli->profiles, "default");
    if (*profile != NULL || has_usual_socket()) {
        return LK_EXIT_DONE;
    }
    lk_profiles_add_running(&cli->profiles);
    result = find_running(&cli->profiles, profile);
    if (result == LK_EXIT_DONE && *profile != NULL) {
        lk_hint(cli, "asking the latchkey up that is running (profile %s)",
                (*profile)->name);
    }
    return result;
}

/* ---- The password ---------------------------------------------------------
 */

/* A profile's file lies about for long; --password-file is the caller's own
 * affair. */
static enum lk_exit check_private(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH) != 0) {
        lk_complain("%s: all users can read this password; chmod 600 it", path);
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

static enum lk_exit read_password_file(struct lk_cli *cli, const char *path)
{
    struct lk_buf *password = &cli->password;
    enum lk_exit result = lk_read_file(path, password);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    while (password->len > 0 &&
           strchr("\r\n", password->data[password->len - 1]) != NULL) {
        password->len--;
    }
    lk_put_raw(password, (struct lk_slice){"", 1});
    cli->where.password = password->data;
    return LK_EXIT_DONE;
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* `profile` may be NULL; `chosen`: by --profile, so that it goes before the
 * environment. */
static enum lk_exit read_user(struct lk_cli *cli,
                              const struct lk_profile *profile, bool chosen)
{
    static const struct lk_profile nothing = {0};
    const struct lk_profile *own = profile == NULL ? &nothing : profile;
    const char *user = lk_args_value(&cli->args, "user");
    const char *file = lk_args_value(&cli->args, "password-file");
    const char *password = variable("LATCHKEY_PASSWORD");
    enum lk_exit result = LK_EXIT_DONE;

    if (user == NULL) {
        const char *other = variable("LATCHKEY_USER");

        user =
            other == NULL || (chosen && own->user != NULL) ? own->user : other;
    }
    cli->where.user = user;
    /* The password of a profile is that of its own user. */
    if (file == NULL && is_same(user, own->user) &&
        (password == NULL || chosen) && own->password_file != NULL) {
        file = own->password_file;
        result = check_private(file);
    }
    if (result == LK_EXIT_DONE && file != NULL) {
        return read_password_file(cli, file);
    }
    cli->where.password = password;
    if (result == LK_EXIT_DONE && user != NULL && password == NULL) {
        return lk_complain_usage(
            cli,
            "user \"%s\" needs a password: give "
            "--password-file or LATCHKEY_PASSWORD%s",
            user, profile == NULL ? "" : ", or password_file in the profile");
    }
    return result;
}

/* ---- The whole ------------------------------------------------------------
 */

static enum lk_exit read_server(struct lk_cli *cli)
{
    const char *given = lk_args_value(&cli->args, "server");
    const char *name = lk_args_value(&cli->args, "profile");
    const char *server = given != NULL ? given : variable("LATCHKEY_SERVER");
    const struct lk_profile *profile = NULL;
    bool chosen = name != NULL;
    enum lk_exit result;

    cli->where_from = given != NULL ? "--server" : "LATCHKEY_SERVER";
    cli->where.address = server;
    if (!chosen && server != NULL) {
        return read_user(cli, NULL, false);
    }
    result = lk_profiles_read(&cli->profiles);
    name = chosen ? name : variable("LATCHKEY_PROFILE");
    if (result == LK_EXIT_DONE) {
        result = name != NULL ? find_named(&cli->profiles, name, &profile)
                              : find_unnamed(cli, &profile);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (given == NULL && profile != NULL && profile->server != NULL) {
        cli->where.address = profile->server;
        cli->where_from = profile->place;
    } else if (given == NULL) {
        cli->where.address = LK_DEFAULT_SERVER;
    }
    return read_user(cli, profile, chosen);
}

enum lk_exit lk_where_read(struct lk_cli *cli)
{
    uint64_t timeout_ms = 0;
    enum lk_exit result = lk_args_duration(&cli->args, "timeout", &timeout_ms);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    timeout_ms = timeout_ms > INT_MAX ? INT_MAX : timeout_ms;
    cli->where.timeout_ms = (unsigned)timeout_ms;
    cli->where.connect_timeout_ms = (unsigned)timeout_ms;
    return read_server(cli);
}

bool lk_where_is_running(void)
{
    struct lk_profiles running = {0};
    char *path = lk_home_path("XDG_CONFIG_HOME", ".config", "config");
    bool only = variable("LATCHKEY_SERVER") == NULL &&
                variable("LATCHKEY_PROFILE") == NULL && !has_usual_socket() &&
                (path == NULL || access(path, F_OK) < 0);

    lk_profiles_add_running(&running);
    only = only && running.count == 1;
    lk_profiles_free(&running);
    free(path);
    return only;
}
