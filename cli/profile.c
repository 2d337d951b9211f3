/* profile.c - named servers, so that no command needs --server, --user and
 * --password-file: those of the user's file, and each `latchkey up`. */
#include "cli/commands.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <ini.h>

/* ---- Places ---------------------------------------------------------------
 */

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

/* ---- The list -------------------------------------------------------------
 */

static struct lk_profile *find(const struct lk_profiles *profiles,
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
    return find(profiles, name);
}

static struct lk_profile *add(struct lk_profiles *profiles, const char *name)
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

/* ---- The file -------------------------------------------------------------
 */

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
static char *read_line(char *to, int room, void *context)
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
static char *expand(const char *path)
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
static char *assign(struct lk_profiles *profiles, unsigned line,
                    const char *section, const char *name, const char *value)
{
    struct lk_profile *profile = find(profiles, section);
    char **to;

    if (*section == '\0') {
        return lk_text("%s is in no profile; begin with [default]", name);
    }
    profile = profile == NULL ? add(profiles, section) : profile;
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
        *to = expand(value);
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

static int take_setting(void *context, const char *section, const char *name,
                        const char *value)
{
    struct reading *reading = context;

    note_fault(reading, assign(reading->profiles, reading->line, section, name,
                               value == NULL ? "" : value));
    return 1;
}

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
    syntax = ini_parse_stream(read_line, &reading, take_setting, &reading);
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

/* ---- Each `latchkey up` ---------------------------------------------------
 */

static bool is_answered(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;
    bool answered;

    if (strlen(path) >= sizeof(address.sun_path)) {
        return false;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return false;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    /* EAGAIN: its queue is full, so it lives. */
    answered = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 ||
               errno == EAGAIN;
    close(fd);
    return answered;
}

static void add_running(struct lk_profiles *profiles, const char *folder,
                        const char *name)
{
    char *link = lk_text("%s/%s", folder, name);
    char *home = realpath(link, NULL);
    char *path = home == NULL ? NULL : lk_text("%s/%s", home, LK_UP_SOCKET);

    if (path != NULL && find(profiles, name) == NULL && is_answered(path)) {
        struct lk_profile *profile = add(profiles, name);

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

/* ---- The command ----------------------------------------------------------
 */

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_profiles = {
    "Lists the servers that --profile can name: those of the file\n"
    "~/.config/latchkey/config, and each latchkey up of yours that runs.",
    options};

static void show_json(struct lk_cli *cli, const struct lk_profiles *profiles)
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

static void show_table(struct lk_cli *cli, const struct lk_profiles *profiles)
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
            show_json(cli, &profiles);
        } else if (profiles.count > 0) {
            show_table(cli, &profiles);
        } else {
            lk_hint(cli,
                    "no profiles: neither in %s nor by a running latchkey up",
                    profiles.path == NULL ? "a home folder" : profiles.path);
        }
    }
    lk_profiles_free(&profiles);
    return result;
}
