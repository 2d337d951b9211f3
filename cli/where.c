/* where.c - which daemon, and as whom: options, environment, profiles. */
#include "cli/cli.h"
#include "cli/commands.h"

#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * ==== Which daemon, and as whom
 *
 * The server is the first of these that there is:
 *
 *   --server
 *   the profile that --profile names
 *   LATCHKEY_SERVER
 *   the profile that LATCHKEY_PROFILE names
 *   the profile [default]
 *   the one `latchkey up` that runs, if no daemon has the usual socket
 *   the usual socket
 *
 * User and password are looked for in the same order. A profile that --profile
 * does not name gives them for its own server only: no password goes to a
 * server that it is not meant for.
 */

#define DEFAULT_SOCKET (&LK_DEFAULT_SERVER[5])

/* ---- The profile --------------------------------------------------------- */

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

static enum lk_exit complain_unknown_profile(const struct lk_profiles *profiles,
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

/*
 * The profile of that name, in the file or of a running `latchkey up`; "up"
 * alone is the one that runs. LK_EXIT_USAGE: there is none, or it is ambiguous.
 */
static enum lk_exit find_named_profile(struct lk_profiles *profiles,
                                       const char *name,
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
               ? complain_unknown_profile(profiles, name)
               : result;
}

/* A daemon of the machine comes first: its operator must not be led to a
 * `latchkey up` that was left running. */
static bool has_usual_socket(void)
{
    return access(DEFAULT_SOCKET, F_OK) == 0 || errno != ENOENT;
}

/* The server if no option, variable or profile names one. */
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

/* ---- The password -------------------------------------------------------- */

/* A profile's password stays in its file, so a file that everyone can read is
 * refused; --password-file is the caller's own decision. */
static enum lk_exit check_password_file(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH) != 0) {
        lk_complain("%s: all users can read this password; chmod 600 it", path);
        return LK_EXIT_USAGE;
    }
    return LK_EXIT_DONE;
}

/* cli->password owns the text, which where.password borrows. Line ends at its
 * end do not count. */
static enum lk_exit read_password_option(struct lk_cli *cli, const char *path)
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
static enum lk_exit read_user_option(struct lk_cli *cli,
                                     const struct lk_profile *profile,
                                     bool chosen)
{
    static const struct lk_profile nothing = {0};
    const struct lk_profile *own = profile == NULL ? &nothing : profile;
    const char *user = lk_args_value(&cli->args, "user");
    const char *file = lk_args_value(&cli->args, "password-file");
    const char *password = lk_environment("LATCHKEY_PASSWORD");
    enum lk_exit result = LK_EXIT_DONE;

    if (user == NULL) {
        const char *other = lk_environment("LATCHKEY_USER");

        user =
            other == NULL || (chosen && own->user != NULL) ? own->user : other;
    }
    cli->where.user = user;
    /* The password of a profile is that of its own user. */
    if (file == NULL && is_same(user, own->user) &&
        (password == NULL || chosen) && own->password_file != NULL) {
        file = own->password_file;
        result = check_password_file(file);
    }
    if (result == LK_EXIT_DONE && file != NULL) {
        return read_password_option(cli, file);
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

/* ---- The whole ----------------------------------------------------------- */

/* Sets where.address, user and password by the order at the top of the file,
 * and where_from, which messages name. */
static enum lk_exit read_server(struct lk_cli *cli)
{
    const char *given = lk_args_value(&cli->args, "server");
    const char *name = lk_args_value(&cli->args, "profile");
    const char *server =
        given != NULL ? given : lk_environment("LATCHKEY_SERVER");
    const struct lk_profile *profile = NULL;
    bool chosen = name != NULL;
    enum lk_exit result;

    cli->where_from = given != NULL ? "--server" : "LATCHKEY_SERVER";
    cli->where.address = server;
    if (!chosen && server != NULL) {
        return read_user_option(cli, NULL, false);
    }
    result = lk_profiles_read(&cli->profiles);
    name = chosen ? name : lk_environment("LATCHKEY_PROFILE");
    if (result == LK_EXIT_DONE) {
        result = name != NULL
                     ? find_named_profile(&cli->profiles, name, &profile)
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
    return read_user_option(cli, profile, chosen);
}

/* Nothing is connected here. A timeout of 0 is the library's default. */
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

/* Would a command without options reach this `latchkey up`? Then the banner can
 * print short lines. */
bool lk_where_is_running(void)
{
    struct lk_profiles running = {0};
    char *path = lk_home_path("XDG_CONFIG_HOME", ".config", "config");
    bool only = lk_environment("LATCHKEY_SERVER") == NULL &&
                lk_environment("LATCHKEY_PROFILE") == NULL &&
                !has_usual_socket() && (path == NULL || access(path, F_OK) < 0);

    lk_profiles_add_running(&running);
    only = only && running.count == 1;
    lk_profiles_free(&running);
    free(path);
    return only;
}

/* ==== Named servers, so that no command needs --server, --user and
 * --password-file: those of the user's file, and each `latchkey up` */

/* ---- Places -------------------------------------------------------------- */

/* HOME, else the home of the user; NULL: neither is an absolute path. */
static const char *find_home(void)
{
    const char *home = getenv("HOME");
    struct passwd *user;

    if (home == NULL || *home == '\0') {
        user = getpwuid(geteuid());
        home = user == NULL ? NULL : user->pw_dir;
    }
    return home != NULL && home[0] == '/' ? home : NULL;
}

/* $VARIABLE/latchkey/NAME, else HOME/FOLDER/latchkey/NAME, as the XDG
 * specification has it. The caller frees it; NULL: there is no home. */
char *lk_home_path(const char *variable, const char *folder, const char *name)
{
    const char *base = getenv(variable);
    const char *home = find_home();

    if (base != NULL && base[0] == '/') {
        return lk_text("%s/latchkey/%s", base, name);
    }
    return home == NULL ? NULL
                        : lk_text("%s/%s/latchkey/%s", home, folder, name);
}

char *lk_running_folder(void)
{
    return lk_home_path("XDG_STATE_HOME", ".local/state", "running");
}

/* ---- The list ------------------------------------------------------------ */

static struct lk_profile *find_profile(const struct lk_profiles *profiles,
                                       const char *name)
{
    for (size_t i = 0; i < profiles->count; i++) {
        if (strcmp(profiles->items[i].name, name) == 0) {
            return &profiles->items[i];
        }
    }
    return NULL;
}

const struct lk_profile *lk_profiles_find(const struct lk_profiles *profiles,
                                          const char *name)
{
    return find_profile(profiles, name);
}

/* Owned by the list; valid until the next one is added. */
static struct lk_profile *add_profile(struct lk_profiles *profiles,
                                      const char *name)
{
    struct lk_profile *profile;

    profiles->items = lk_must_grow(
        profiles->items, (profiles->count + 1) * sizeof(*profiles->items));
    profile = &profiles->items[profiles->count++];
    *profile = (struct lk_profile){.name = lk_text("%s", name)};
    return profile;
}

void lk_profiles_free(struct lk_profiles *profiles)
{
    for (size_t i = 0; i < profiles->count; i++) {
        free(profiles->items[i].name);
        free(profiles->items[i].server);
        free(profiles->items[i].user);
        free(profiles->items[i].password_file);
        free(profiles->items[i].place);
    }
    free(profiles->items);
    free(profiles->path);
}

/* ---- The file ------------------------------------------------------------ */

struct reading {
    struct lk_profiles *profiles;
    FILE *file;
    unsigned line;
    char *fault; /* the first; NULL: none yet */
    unsigned fault_line;
};

/* Owns `text`, which may be NULL. */
static void note_fault(struct reading *reading, char *text)
{
    if (text == NULL || reading->fault != NULL) {
        free(text);
        return;
    }
    reading->fault = text;
    reading->fault_line = reading->line;
}

/* For inih, which does not say which line it is at. */
static char *read_profile_line(char *to, int room, void *context)
{
    struct reading *reading = context;
    char *line = fgets(to, room, reading->file);

    reading->line++;
    if (line != NULL && strchr(line, '\n') == NULL && !feof(reading->file)) {
        note_fault(reading, lk_text("the line is too long; %d characters are "
                                    "the most",
                                    room - 2));
        return NULL;
    }
    return line;
}

/* ~/FILE is in the home folder. NULL: it is not absolute. */
static char *expand_home(const char *path)
{
    const char *home = find_home();

    if (path[0] == '/') {
        return lk_text("%s", path);
    }
    return path[0] == '~' && path[1] == '/' && home != NULL
               ? lk_text("%s%s", home, path + 1)
               : NULL;
}

static char *explain_unknown(const char *name)
{
    if (strcmp(name, "password") == 0) {
        return lk_text("a password has a file of its own: password_file = "
                       "~/.config/latchkey/NAME.password");
    }
    return lk_text("there is no setting \"%s\"; a profile has server, user "
                   "and password_file",
                   name);
}

/* Takes one setting; else what is wrong with it. */
static char *assign_setting(struct lk_profiles *profiles, unsigned line,
                            const char *section, const char *name,
                            const char *value)
{
    struct lk_profile *profile = find_profile(profiles, section);
    char **to;

    if (*section == '\0') {
        return lk_text("%s is not in a profile; begin with [default]", name);
    }
    profile = profile == NULL ? add_profile(profiles, section) : profile;
    to = strcmp(name, "server") == 0          ? &profile->server
         : strcmp(name, "user") == 0          ? &profile->user
         : strcmp(name, "password_file") == 0 ? &profile->password_file
                                              : NULL;
    if (to == NULL) {
        return explain_unknown(name);
    }
    if (*to != NULL) {
        return lk_text("[%s] has %s twice; remove one", section, name);
    }
    if (*value == '\0') {
        return lk_text("%s has no value; give one or remove the line", name);
    }
    if (to == &profile->password_file) {
        *to = expand_home(value);
        return *to != NULL ? NULL
                           : lk_text("password_file is \"%s\", but must begin "
                                     "with / or ~/",
                                     value);
    }
    *to = lk_text("%s", value);
    if (to == &profile->server) {
        profile->place = lk_text("%s:%u: server", profiles->path, line);
    }
    return NULL;
}

/* inih's callback. It goes on after a fault: only the first one is reported. */
static int take_profile_setting(void *context, const char *section,
                                const char *name, const char *value)
{
    struct reading *reading = context;

    note_fault(reading,
               assign_setting(reading->profiles, reading->line, section, name,
                              value == NULL ? "" : value));
    return 1;
}

/* Without a file there are no profiles. LK_EXIT_USAGE: it cannot be read or has
 * a fault. The caller frees the list either way. */
enum lk_exit lk_profiles_read(struct lk_profiles *profiles)
{
    struct reading reading = {.profiles = profiles};
    int syntax;

    profiles->path = lk_home_path("XDG_CONFIG_HOME", ".config", "config");
    reading.file = profiles->path == NULL ? NULL : fopen(profiles->path, "re");
    if (reading.file == NULL) {
        if (profiles->path == NULL || errno == ENOENT || errno == ENOTDIR) {
            return LK_EXIT_DONE;
        }
        lk_complain("cannot read the profiles in %s: %s; make it readable for "
                    "you, or name the daemon with --server",
                    profiles->path, strerror(errno));
        return LK_EXIT_USAGE;
    }
    syntax = ini_parse_stream(read_profile_line, &reading, take_profile_setting,
                              &reading);
    if (ferror(reading.file) || syntax < 0) {
        note_fault(&reading, lk_text("%s", strerror(errno)));
    } else if (syntax > 0) {
        reading.line = (unsigned)syntax;
        note_fault(&reading, lk_text("this is neither [PROFILE] nor name = "
                                     "value"));
    }
    fclose(reading.file);
    if (reading.fault == NULL) {
        return LK_EXIT_DONE;
    }
    lk_complain("%s:%u: %s", profiles->path, reading.fault_line, reading.fault);
    free(reading.fault);
    return LK_EXIT_USAGE;
}

/* ---- Each `latchkey up` -------------------------------------------------- */

/*
 * Is there a listener at the socket? A link may be left over from a killed run.
 */
static bool is_answered(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;
    bool replied;

    if (strlen(path) >= sizeof(address.sun_path)) {
        return false;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    /* EAGAIN: the queue is full, so a listener is there. */
    replied = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ||
              errno == EAGAIN;
    close(fd);
    return replied;
}

static void add_running(struct lk_profiles *profiles, const char *folder,
                        const char *name)
{
    char *link = lk_text("%s/%s", folder, name);
    char *home = realpath(link, NULL);
    char *path = home == NULL ? NULL : lk_text("%s/%s", home, LK_UP_SOCKET);

    if (path != NULL && find_profile(profiles, name) == NULL &&
        is_answered(path)) {
        struct lk_profile *profile = add_profile(profiles, name);

        profile->running = true;
        profile->server = lk_text("unix:%s", path);
    }
    free(path);
    free(home);
    free(link);
}

static int is_profile(const struct dirent *entry)
{
    return strncmp(entry->d_name, "up", 2) == 0;
}

/* Adds a profile for each link in the folder "running" whose daemon runs. A
 * profile of the file with the same name wins. */
void lk_profiles_add_running(struct lk_profiles *profiles)
{
    char *folder = lk_running_folder();
    struct dirent **entries = NULL;
    int count =
        folder == NULL ? 0 : scandir(folder, &entries, is_profile, alphasort);

    for (int i = 0; i < count; i++) {
        add_running(profiles, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    free(folder);
}

/* ---- The command --------------------------------------------------------- */

static const struct lk_option profile_options[] = {{0}};

const struct lk_manual lk_manual_profiles = {
    "Lists the servers that --profile can name: those of the file\n"
    "~/.config/latchkey/config, and each latchkey up of yours that runs.",
    profile_options};

static void show_profiles_json(struct lk_cli *cli,
                               const struct lk_profiles *profiles)
{
    struct lk_doc doc = {.out = &cli->out};

    lk_doc_object(&doc, NULL);
    lk_doc_array(&doc, "profiles");
    for (size_t i = 0; i < profiles->count; i++) {
        const struct lk_profile *at = &profiles->items[i];

        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "name", latchkey_slice(at->name));
        if (at->server != NULL) {
            lk_doc_text(&doc, "server", latchkey_slice(at->server));
        }
        if (at->user != NULL) {
            lk_doc_text(&doc, "user", latchkey_slice(at->user));
        }
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

static void show_profiles_table(struct lk_cli *cli,
                                const struct lk_profiles *profiles)
{
    static const char *const names[] = {"PROFILE", "USER", "SERVER"};
    struct lk_table table = {.columns = 3, .colour = cli->colour};

    for (size_t i = 0; i < 3; i++) {
        lk_put(lk_table_cell(&table, LK_BOLD), "%s", names[i]);
    }
    for (size_t i = 0; i < profiles->count; i++) {
        const struct lk_profile *at = &profiles->items[i];
        const char *texts[] = {at->name, at->user, at->server};

        for (size_t k = 0; k < 3; k++) {
            lk_put_text(lk_table_cell(&table, LK_PLAIN),
                        latchkey_slice(texts[k] == NULL ? "-" : texts[k]));
        }
    }
    lk_table_flush(&table, &cli->out);
}

enum lk_exit lk_run_profiles(struct lk_cli *cli)
{
    struct lk_profiles profiles = {0};
    enum lk_exit result = lk_profiles_read(&profiles);

    if (result == LK_EXIT_DONE) {
        lk_profiles_add_running(&profiles);
        if (cli->json) {
            show_profiles_json(cli, &profiles);
        } else if (profiles.count > 0) {
            show_profiles_table(cli, &profiles);
        } else {
            lk_hint(cli,
                    "no profiles: neither in %s nor by a running latchkey up",
                    profiles.path == NULL ? "a home folder" : profiles.path);
        }
    }
    lk_profiles_free(&profiles);
    return result;
}
