/* up_find.c - finds the programs of `latchkey up`, and decides where its files
 * are. */
#include "cli/move.h"
#include "cli/up.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULE         "ngx_http_latchkey_module.so"
#define SOCKET_MAX     107 /* bytes in the path of a unix socket */
#define FAILED(values) (lk_complain values, LK_EXIT_FAILED)

/* ---- Programs -------------------------------------------------------------
 */

/* An environment variable that is set and not empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0' ? value : NULL;
}

/* Keeps `path`, which it owns, only if it can be used. */
static char *keep_if_usable(char *path, int access_mode)
{
    struct stat st;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
        access(path, access_mode) == 0) {
        return path;
    }
    free(path);
    return NULL;
}

static char *search_folders(const char *const *folders, const char *name,
                            int access_mode)
{
    char *found = NULL;

    for (; found == NULL && *folders != NULL; folders++) {
        found = keep_if_usable(lk_text("%s/%s", *folders, name), access_mode);
    }
    return found;
}

static char *search_path(const char *name)
{
    const char *at = variable("PATH");
    char *found = NULL;

    while (found == NULL && at != NULL && *at != '\0') {
        size_t length = strcspn(at, ":");

        if (at[0] == '/') {
            found =
                keep_if_usable(lk_text("%.*s/%s", (int)length, at, name), X_OK);
        }
        at += length + (at[length] == ':');
    }
    return found;
}

/* The folder of this very program; empty if it cannot be told. */
static void find_own_folder(char folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    char *slash;

    folder[length < 0 ? 0 : length] = '\0';
    slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
}

/* What a variable names counts even if it is wrong: the complaint is then
 * about that, and nothing else is started in its place. */
static char *find_file(const char *setting, const char *name,
                       const char *const *folders, int access_mode)
{
    const char *named = variable(setting);
    char *found;

    if (named != NULL) {
        found = realpath(named, NULL);
        return found != NULL ? keep_if_usable(found, access_mode) : NULL;
    }
    found = search_folders(folders, name, access_mode);
    return found == NULL && access_mode == X_OK ? search_path(name) : found;
}

/* By its name if that finds this file, else the way it was started. */
static char *name_self(const char *own)
{
    char *found = search_path("latchkey");
    struct stat by_path, running;
    bool same = found != NULL && stat(found, &by_path) == 0 &&
                stat("/proc/self/exe", &running) == 0 &&
                by_path.st_dev == running.st_dev &&
                by_path.st_ino == running.st_ino;

    free(found);
    if (same) {
        return lk_text("latchkey");
    }
    return strchr(program_invocation_name, '/') != NULL
               ? lk_text("%s", program_invocation_name)
               : lk_text("%s/latchkey", own);
}

static void find_programs(struct lk_up_files *files)
{
    char own[PATH_MAX];
    char *sbin, *modules;
    int beside;

    find_own_folder(own);
    beside = (int)(strrchr(own, '/') == NULL ? 0 : strrchr(own, '/') - own);
    sbin = lk_text("%.*s/sbin", beside, own);
    modules = lk_text("%.*s/lib/nginx/modules", beside, own);
    files->self = name_self(own);
    files->latchkeyd = find_file(
        "LATCHKEYD", "latchkeyd",
        (const char *[]){own, sbin, "/usr/local/sbin", "/usr/sbin", NULL},
        X_OK);
    files->nginx = find_file("LATCHKEY_NGINX", "nginx",
                             (const char *[]){"/usr/sbin", "/usr/local/sbin",
                                              "/usr/local/nginx/sbin", NULL},
                             X_OK);
    files->module =
        find_file("LATCHKEY_MODULE", MODULE,
                  (const char *[]){own, modules, "/usr/lib/nginx/modules",
                                   "/usr/lib64/nginx/modules",
                                   "/usr/local/lib/nginx/modules", NULL},
                  R_OK);
    free(sbin);
    free(modules);
}

static void find_authorities(struct lk_up *up)
{
    static const char *const folders[] = {"/etc/ssl/certs/ca-certificates.crt",
                                          "/etc/pki/tls/certs/ca-bundle.crt",
                                          "/etc/ssl/cert.pem", NULL};
    const char *named = variable("SSL_CERT_FILE");

    if (named != NULL) {
        up->files.authorities = realpath(named, NULL);
        return;
    }
    for (size_t i = 0; up->files.authorities == NULL && folders[i]; i++) {
        up->files.authorities = keep_if_usable(lk_text("%s", folders[i]), R_OK);
    }
}

static enum lk_exit complain_missing(const char *what, const char *setting,
                                     const char *remedy)
{
    const char *named = variable(setting);

    if (named != NULL) {
        lk_complain("%s is \"%s\", which cannot be used as %s; name the right "
                    "file, or unset it",
                    setting, named, what);
    } else {
        lk_complain("cannot find %s: %s, or name it in %s", what, remedy,
                    setting);
    }
    return LK_EXIT_FAILED;
}

enum lk_exit lk_up_check_programs(const struct lk_up *up)
{
    const struct lk_up_files *files = &up->files;
    const struct {
        const char *found;
        const char *what;
        const char *setting;
        const char *remedy;
    } needs[] = {
        {files->latchkeyd, "latchkeyd", "LATCHKEYD",
         "install it beside latchkey (make install)"},
        {files->nginx, "nginx", "LATCHKEY_NGINX", "sudo apt-get install nginx"},
        {files->module, "nginx's module " MODULE, "LATCHKEY_MODULE",
         "sudo apt-get install nginx-dev, then make and make install"},
        {up->app.scheme != LK_UP_HTTPS ? "" : files->authorities,
         "a file of trusted certificates", "SSL_CERT_FILE",
         "sudo apt-get install ca-certificates"},
    };
    enum lk_exit result = LK_EXIT_DONE;

    for (size_t i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
        if (needs[i].found == NULL) {
            result = complain_missing(needs[i].what, needs[i].setting,
                                      needs[i].remedy);
        }
    }
    return result;
}

/* ---- Where things are -----------------------------------------------------
 */

/* In memory of its own, without slashes at the end; NULL: no working folder. */
static char *make_absolute(const char *path)
{
    char *here = path[0] == '/' ? NULL : getcwd(NULL, 0);
    char *absolute = NULL;

    if (path[0] == '/' || here != NULL) {
        absolute =
            here == NULL ? lk_text("%s", path) : lk_text("%s/%s", here, path);
        for (size_t length = strlen(absolute);
             length > 1 && absolute[length - 1] == '/'; length--) {
            absolute[length - 1] = '\0';
        }
    }
    free(here);
    return absolute;
}

/* One folder for each address, so that two gateways do not meet in one. */
static char *name_by_address(const struct lk_up_listen *listen)
{
    bool usual = listen->host != NULL && strcmp(listen->host, "127.0.0.1") == 0;
    char *name = listen->path != NULL ? lk_text("up%s", listen->path)
                 : usual              ? lk_text("up-%u", listen->port)
                         : lk_text("up-%s-%u", listen->host, listen->port);

    for (char *c = name; *c != '\0'; c++) {
        if (strchr("/:[]*", *c) != NULL) {
            *c = '_';
        }
    }
    return name;
}

/* It is in a comment of nginx's configuration: a line of its own there
 * would be more than a comment. */
static bool is_plain(const char *url)
{
    for (; *url != '\0'; url++) {
        if (*url <= ' ' || *url > '~') {
            return false;
        }
    }
    return true;
}

static enum lk_exit find_store(struct lk_up *up)
{
    struct lk_up_files *files = &up->files;
    const char *url = lk_args_value(&up->cli->args, "store");

    if (url != NULL && strncmp(url, "sqlite:", 7) != 0) {
        if (!(lk_url_is(url, "postgres") || lk_url_is(url, "postgresql") ||
              lk_url_is(url, "redis") || lk_url_is(url, "redis-sentinel")) ||
            !is_plain(url)) {
            return lk_complain_usage(up->cli,
                                     "--store is \"%s\", but must be "
                                     "sqlite:PATH, postgres://... or "
                                     "redis://...",
                                     url);
        }
        files->store_url = lk_text("%s", url);
        files->secret = lk_text("%s/tenants.secret", files->folder);
        return LK_EXIT_DONE;
    }
    if (url != NULL && url[7] == '\0') {
        return lk_complain_usage(up->cli, "--store sqlite: needs a path");
    }
    files->store = url == NULL ? lk_text("%s/latchkey.db", files->folder)
                               : make_absolute(url + 7);
    if (files->store == NULL) {
        return FAILED(("cannot tell the working folder: %s", strerror(errno)));
    }
    files->store_url = lk_text("sqlite:%s", files->store);
    files->secret = lk_text("%s.secret", files->store);
    return lk_up_check_path("the path of --store", files->store);
}

static void name_files(struct lk_up_files *files)
{
    const char *folder = files->folder;

    files->lock = lk_text("%s/lock", folder);
    files->config = lk_text("%s/nginx.conf", folder);
    files->socket = lk_text("%s/%s", folder, LK_UP_SOCKET);
    files->courier = lk_text("%s/courier.sock", folder);
    files->pid = lk_text("%s/nginx.pid", folder);
    files->requests = lk_text("%s/requests.log", folder);
    files->nginx_log = lk_text("%s/nginx.log", folder);
    files->daemon_log = lk_text("%s/latchkeyd.log", folder);
    files->temporary = lk_text("%s/tmp", folder);
}

static enum lk_exit check_paths(const struct lk_up_files *files)
{
    enum lk_exit result = lk_up_check_path("the folder", files->folder);

    if (result == LK_EXIT_DONE && files->latchkeyd != NULL) {
        result = lk_up_check_path("the path of latchkeyd", files->latchkeyd);
    }
    if (result == LK_EXIT_DONE && files->nginx != NULL) {
        result = lk_up_check_path("the path of nginx", files->nginx);
    }
    if (result == LK_EXIT_DONE && files->module != NULL) {
        result = lk_up_check_path("the path of nginx's module", files->module);
    }
    if (result == LK_EXIT_DONE && files->authorities != NULL) {
        result = lk_up_check_path("the file of trusted certificates",
                                  files->authorities);
    }
    if (result == LK_EXIT_DONE && strlen(files->socket) > SOCKET_MAX) {
        lk_complain("the folder %s makes the path of a socket too long (%d "
                    "bytes are possible); give a shorter --dir",
                    files->folder, SOCKET_MAX);
        result = LK_EXIT_USAGE;
    }
    return result;
}

enum lk_exit lk_up_find_files(struct lk_up *up)
{
    const char *given = lk_args_value(&up->cli->args, "dir");
    struct lk_up_files *files = &up->files;
    char *name;
    char *running;
    enum lk_exit result;

    if (given != NULL && *given == '\0') {
        return lk_complain_usage(up->cli, "--dir is empty");
    }
    name = name_by_address(&up->listen);
    running = lk_running_folder();
    files->running = running == NULL ? NULL : lk_text("%s/%s", running, name);
    files->folder = given != NULL
                        ? make_absolute(given)
                        : lk_home_path("XDG_STATE_HOME", ".local/state", name);
    free(running);
    free(name);
    if (files->folder == NULL) {
        return FAILED(("there is no home folder to keep answers in; give "
                       "--dir FOLDER"));
    }
    name_files(files);
    find_programs(files);
    if (up->app.scheme == LK_UP_HTTPS) {
        find_authorities(up);
    }
    result = check_paths(files);
    return result == LK_EXIT_DONE ? find_store(up) : result;
}
