/* up_files.c - makes the folder of `latchkey up` and what is in it. */
#include "cli/up.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FAILED(values) (lk_complain values, LK_EXIT_FAILED)

/* ---- The folder -----------------------------------------------------------
 */

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

/* Answers and secrets of callers lie in it. */
static enum lk_exit check_private(const char *folder)
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
        return FAILED(("%s is open to others, but will hold answers and "
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

/* ---- Its files ------------------------------------------------------------
 */

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

/* With another secret every caller would be a stranger to its own answers, and
 * retries would run again. */
static enum lk_exit make_secret(const struct lk_up *up)
{
    const struct lk_up_files *files = &up->files;
    struct stat st;

    if (!up->plain && files->store != NULL && access(files->secret, F_OK) < 0 &&
        stat(files->store, &st) == 0 && st.st_size > 0) {
        return FAILED(("%s is there, but not its secret %s, without which "
                       "callers do not find their answers; bring it back, "
                       "give --tenant-plain if no tenant was hashed, or use "
                       "another --store",
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

enum lk_exit lk_up_make_files(struct lk_up *up)
{
    enum lk_exit result;

    umask(0077);
    result = make_folder(up->files.folder);
    if (result == LK_EXIT_DONE) {
        result = check_private(up->files.folder);
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

/* ---- The profile ----------------------------------------------------------
 */

/* The name is that of the address, which only one can have: what stands there
 * was left by one that was killed. The link appears whole or not at all. */
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

void lk_up_withdraw(const struct lk_up *up)
{
    if (up->announced) {
        (void)unlink(up->files.running);
    }
}

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
