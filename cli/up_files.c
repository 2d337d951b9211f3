/*
 * up_files.c - finds the programs of `latchkey up`, decides where its files
 * are, and makes them.
 *
 *   lock                 held while it runs; has the process id
 *   nginx.conf           written each time
 *   latchkey.db          the store, unless --store names another
 *   latchkey.db.secret   hashes tenants, never replaced; tenants.secret for a
 *                        store on a server
 *   sockets, logs, nginx.pid, tmp   of one run: removed at its end, and before
 *                        the next one
 *
 * The folder is private: it has stored responses and a secret. A link in the
 * folder "running" makes it a profile for other commands.
 */
#include "cli/move.h"
#include "cli/up.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* ==== Finds the programs of `latchkey up`, and decides where its files are */

#define MODULE         "ngx_http_latchkey_module.so"
#define SOCKET_MAX     107 /* bytes in the path of a unix socket */
#define FAILED(values) (lk_complain values, LK_EXIT_FAILED)

/* ---- Programs ------------------------------------------------------------ */

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

/* The first that can be used, in memory of its own; NULL: none. */
static char *search_folders(const char *const *folders, const char *name,
                            int access_mode)
{
    char *found = NULL;

    for (; found == NULL && *folders != NULL; folders++) {
        found = keep_if_usable(lk_text("%s/%s", *folders, name), access_mode);
    }
    return found;
}

/* Along PATH; relative entries are skipped. */
static char *search_path(const char *name)
{
    const char *at = lk_environment("PATH");
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

/* The folder of this very program; empty if it is not known. */
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
    const char *named = lk_environment(setting);
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

/* The daemon and the module beside this program come first: a build, or an
 * installation, is used as a whole. */
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
    const char *named = lk_environment("SSL_CERT_FILE");

    if (named != NULL) {
        up->files.authorities = realpath(named, NULL);
        return;
    }
    for (size_t i = 0; up->files.authorities == NULL && folders[i]; i++) {
        up->files.authorities = keep_if_usable(lk_text("%s", folders[i]), R_OK);
    }
}

/* LK_EXIT_FAILED. `setting` is the variable that names the file. */
static enum lk_exit complain_missing(const char *what, const char *setting,
                                     const char *remedy)
{
    const char *named = lk_environment(setting);

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

/* Complains about each one that is missing, not only the first. */
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

/* ---- Where things are ---------------------------------------------------- */

/* In memory of its own, without slashes at the end; NULL: no working folder. */
static char *make_absolute_path(const char *path)
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

/* Sets the URL of the store, and where the secret is: beside an embedded store,
 * because the two belong together, else in the folder. */
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
                               : make_absolute_path(url + 7);
    if (files->store == NULL) {
        return FAILED(
            ("cannot find the current directory: %s", strerror(errno)));
    }
    files->store_url = lk_text("sqlite:%s", files->store);
    files->secret = lk_text("%s.secret", files->store);
    return lk_up_check_path("the path of --store", files->store);
}

/* Every path in the folder; lk_up_free() frees them. */
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

/*
 * Paths go into nginx's configuration, and sockets must fit into their address.
 */
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

/* Only names and finds: nothing is made before lk_up_make_files(). */
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
                        ? make_absolute_path(given)
                        : lk_home_path("XDG_STATE_HOME", ".local/state", name);
    free(running);
    free(name);
    if (files->folder == NULL) {
        return FAILED((
            "there is no home folder for stored responses; give --dir FOLDER"));
    }
    name_files(files);
    find_programs(files);
    if (up->app.scheme == LK_UP_HTTPS) {
        find_authorities(up);
    }
    result = check_paths(files);
    return result == LK_EXIT_DONE ? find_store(up) : result;
}

/* ==== Makes the folder of `latchkey up` and what is in it */

#define FAILED(values) (lk_complain values, LK_EXIT_FAILED)

/* ---- The folder ---------------------------------------------------------- */

/* As mkdir -p; what is made is private. */
static enum lk_exit make_folder(const char *path)
{
    char *part = lk_text("%s", path);
    enum lk_exit result = LK_EXIT_DONE;

    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL) {
            *slash = '\0';
        }
        if (mkdir(part, 0700) < 0 && errno != EEXIST) {
            result = FAILED(
                ("cannot make the folder %s: %s", part, strerror(errno)));
            break;
        }
        if (slash == NULL) {
            break;
        }
        *slash = '/';
    }
    free(part);
    return result;
}

/* A folder of this user that no one else can enter: stored responses and the
 * secrets of callers are in it. */
static enum lk_exit check_up_folder(const char *folder)
{
    struct stat st;

    if (lstat(folder, &st) < 0) {
        return FAILED(("%s: %s", folder, strerror(errno)));
    }
    if (!S_ISDIR(st.st_mode)) {
        return FAILED(("%s is not a folder; give another --dir", folder));
    }
    if (st.st_uid != geteuid()) {
        return FAILED(
            ("%s belongs to another user; give another --dir", folder));
    }
    if ((st.st_mode & 077) != 0) {
        return FAILED(("%s is open to others, but will hold responses and "
                       "secrets: chmod 700 it, or give another --dir",
                       folder));
    }
    return LK_EXIT_DONE;
}

/* The lock lasts as long as the process. */
static enum lk_exit lock_folder(struct lk_up *up)
{
    char text[24] = "";
    ssize_t length;

    up->lock_fd = open(up->files.lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (up->lock_fd < 0) {
        return FAILED(("%s: %s", up->files.lock, strerror(errno)));
    }
    if (flock(up->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        length = read(up->lock_fd, text, sizeof(text) - 1);
        text[length < 0 ? 0 : strspn(text, "0123456789")] = '\0';
        return FAILED(("another latchkey up (process %s) uses %s; stop it, or "
                       "give another --listen or --dir",
                       text, up->files.folder));
    }
    snprintf(text, sizeof(text), "%ld\n", (long)getpid());
    if (ftruncate(up->lock_fd, 0) < 0 ||
        write(up->lock_fd, text, strlen(text)) < 0) {
        return FAILED(("%s: %s", up->files.lock, strerror(errno)));
    }
    return LK_EXIT_DONE;
}

/* ---- Its files ----------------------------------------------------------- */

/* Writes a file whole or not at all, and only if there is none yet unless it
 * may replace one. */
static bool write_file(const char *path, struct lk_slice text, bool replace)
{
    char *fresh = lk_text("%s.%ld", path, (long)getpid());
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                  0600);
    bool good = fd >= 0 &&
                write(fd, text.data, text.len) == (ssize_t)text.len &&
                fsync(fd) == 0;

    if (fd >= 0) {
        good = close(fd) == 0 && good;
    }
    if (good && replace) {
        good = rename(fresh, path) == 0;
    } else if (good) {
        good = link(fresh, path) == 0 || errno == EEXIST;
    }
    if (!good) {
        lk_complain("cannot write %s: %s", path, strerror(errno));
    }
    unlink(fresh);
    free(fresh);
    return good;
}

/* Makes the new name in the folder durable, too. */
static void sync_folder_of(const char *path)
{
    char *folder = lk_text("%.*s", (int)(strrchr(path, '/') - path), path);
    int fd = open(*folder == '\0' ? "/" : folder, O_RDONLY | O_DIRECTORY);

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* 64 hexadecimal digits; an existing file stays. */
static enum lk_exit make_random_file(const char *path)
{
    unsigned char bytes[32];
    struct lk_buf text = {0};
    bool good = true;

    if (access(path, F_OK) == 0) {
        return LK_EXIT_DONE;
    }
    if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
        return FAILED(("no random numbers: %s", strerror(errno)));
    }
    for (size_t i = 0; i < sizeof(bytes); i++) {
        lk_put(&text, "%02x", bytes[i]);
    }
    good = write_file(path, latchkey_buf_slice(&text), false);
    sync_folder_of(path);
    explicit_bzero(text.data, text.len);
    latchkey_buf_free(&text);
    return good ? LK_EXIT_DONE : LK_EXIT_FAILED;
}

/* A store whose secret is missing is refused: with another secret no caller
 * would find its own responses, and retries would run again. */
static enum lk_exit make_secret(const struct lk_up *up)
{
    const struct lk_up_files *files = &up->files;
    struct stat st;

    if (!up->plain && files->store != NULL && access(files->secret, F_OK) < 0 &&
        stat(files->store, &st) == 0 && st.st_size > 0) {
        return FAILED(
            ("%s is there, but not its secret %s, without which callers do not "
             "find their responses; restore it, give --tenant-plain if no "
             "tenant was hashed, or use another --store",
             files->store, files->secret));
    }
    return make_random_file(files->secret);
}

static enum lk_exit make_config(const struct lk_up *up)
{
    struct lk_buf text = {0};
    bool good;

    lk_up_put_config(up, &text);
    good = write_file(up->files.config, latchkey_buf_slice(&text), true);
    latchkey_buf_free(&text);
    return good ? LK_EXIT_DONE : LK_EXIT_FAILED;
}

static enum lk_exit fill_folder(struct lk_up *up)
{
    enum lk_exit result = make_folder(up->files.temporary);

    if (result == LK_EXIT_DONE) {
        result = make_secret(up);
    }
    return result == LK_EXIT_DONE ? make_config(up) : result;
}

/* Folder, lock, then the files: nothing in the folder is touched while another
 * run has the lock. */
enum lk_exit lk_up_make_files(struct lk_up *up)
{
    enum lk_exit result;

    umask(0077);
    result = make_folder(up->files.folder);
    if (result == LK_EXIT_DONE) {
        result = check_up_folder(up->files.folder);
    }
    if (result == LK_EXIT_DONE) {
        result = lock_folder(up);
    }
    if (result == LK_EXIT_DONE) {
        lk_up_remove_files(up); /* what a killed one has left */
        result = fill_folder(up);
    }
    return result;
}

/* ---- The profile --------------------------------------------------------- */

/* The name is that of the address, which only one can have: an existing link
 * was left by a killed one. The link appears whole or not at all. */
bool lk_up_announce(const struct lk_up *up)
{
    const char *link = up->files.running;
    char *folder;
    char *fresh;
    struct stat st;
    bool good;

    if (link == NULL) {
        return false;
    }
    folder = lk_text("%.*s", (int)(strrchr(link, '/') - link), link);
    fresh = lk_text("%s.%ld", link, (long)getpid());
    (void)unlink(fresh);
    /* Where this fails, it runs as well, and the banner has the long line. */
    good = (lstat(folder, &st) == 0 || make_folder(folder) == LK_EXIT_DONE) &&
           symlink(up->files.folder, fresh) == 0 && rename(fresh, link) == 0;
    (void)unlink(fresh);
    free(fresh);
    free(folder);
    return good;
}

/* Only the link that this run made. */
void lk_up_withdraw(const struct lk_up *up)
{
    if (up->announced) {
        (void)unlink(up->files.running);
    }
}

/* Only files that nginx names: digits. */
static void empty_temporary(const char *path)
{
    DIR *folder = opendir(path);
    struct dirent *entry;

    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strspn(entry->d_name, "0123456789") == strlen(entry->d_name)) {
            unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    rmdir(path);
}

/* What belongs to one run. Store, secret and configuration stay. */
void lk_up_remove_files(struct lk_up *up)
{
    const struct lk_up_files *files = &up->files;

    unlink(files->pid);
    unlink(files->socket);
    unlink(files->courier);
    unlink(files->requests);
    unlink(files->nginx_log);
    unlink(files->daemon_log);
    empty_temporary(files->temporary);
}

void lk_up_free(struct lk_up *up)
{
    /* struct lk_up_files has nothing but pointers that it owns. */
    char **paths = (char **)&up->files;

    for (size_t i = 0; i < sizeof(up->files) / sizeof(char *); i++) {
        free(paths[i]);
    }
    free(up->app.shown);
    free(up->app.pass);
    free(up->app.script);
    free(up->app.host);
    free(up->app.socket);
    free(up->listen.host);
    free(up->listen.path);
    latchkey_buf_free(&up->url);
    if (up->lock_fd >= 0) {
        close(up->lock_fd);
    }
}
