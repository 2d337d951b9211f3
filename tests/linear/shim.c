/*
 * shim.c - a disk that fails, put under the daemon by LD_PRELOAD.
 *
 * It concerns the files of one store only: those whose path begins with
 * LATCHKEY_SHIM_STORE, without the shared memory beside it. The first bytes of
 * the file LATCHKEY_SHIM_CONTROL are a struct order, which whoever tests writes
 * at any time.
 *
 * Beside it the shim keeps what a power loss would leave: in the folder
 * LATCHKEY_SHIM_DISK, for each file a copy with all that was synced, and a
 * map of the pages that are written and not synced. A sync that fails marks
 * these pages clean, as Linux does: a later sync that succeeds does not write
 * them any more, and the next power loss takes them. linear.py puts the copy
 * in place. File creation and removal count at once.
 */
/* Both names of a call are defined here. */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    MAP_BYTES = 1 << 20, /* one byte a page: stores up to 4 GiB */
    NAME_MAX_LEN = 255,
};

enum fault {
    FAULT_NONE,
    FAULT_WRITE_EIO,
    FAULT_WRITE_ENOSPC,
    FAULT_WRITE_SHORT,
    FAULT_SYNC_EIO,
    FAULT_SYNC_ENOSPC,
};

struct order {
    uint32_t fault;
    uint32_t skip;   /* so many calls that it concerns go well before */
    uint32_t times;  /* so many fail */
    uint32_t struck; /* so many have */
};

static struct {
    struct order *order;
    char store[4096], disk[4096];
    ssize_t (*pwrite)(int, const void *, size_t, off_t);
    ssize_t (*write)(int, const void *, size_t);
    int (*fsync)(int);
    int (*fdatasync)(int);
    int (*ftruncate)(int, off_t);
    int (*unlink)(const char *);
} real;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);

    if (found == NULL) {
        abort();
    }
    return found;
}

static void start(void)
{
    const char *control = getenv("LATCHKEY_SHIM_CONTROL");
    const char *store = getenv("LATCHKEY_SHIM_STORE");
    const char *disk = getenv("LATCHKEY_SHIM_DISK");

    *(void **)&real.pwrite = find("pwrite");
    *(void **)&real.write = find("write");
    *(void **)&real.fsync = find("fsync");
    *(void **)&real.fdatasync = find("fdatasync");
    *(void **)&real.ftruncate = find("ftruncate");
    *(void **)&real.unlink = find("unlink");
    if (control == NULL || store == NULL || disk == NULL) {
        return;
    }
    int fd = open(control, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(NULL, sizeof(struct order), PROT_READ | PROT_WRITE,
                             MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        abort();
    }
    close(fd);
    snprintf(real.disk, sizeof(real.disk), "%s", disk);
    snprintf(real.store, sizeof(real.store), "%s", store);
    real.order = at;
}

/* The name of a file of the store, or false. */
static bool is_of_store(const char *path, const char **name)
{
    size_t len = strlen(real.store);
    size_t end = strlen(path);

    if (real.order == NULL || strncmp(path, real.store, len) != 0 ||
        (end > 4 && strcmp(path + end - 4, "-shm") == 0)) {
        return false;
    }
    *name = strrchr(path, '/') + 1;
    return true;
}

static bool name_of(int fd, char path[4096], const char **name)
{
    char link[64];
    struct stat stat;

    pthread_once(&once, start);
    if (real.order == NULL || fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode)) {
        return false;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, 4095);
    if (len <= 0) {
        return false;
    }
    path[len] = '\0';
    return is_of_store(path, name);
}

/* ---- faults ---- */

/* True: this call fails. `wanted`: what would make it fail. */
static bool strikes(uint32_t from, uint32_t to, uint32_t *fault)
{
    struct order *order = real.order;

    *fault = __atomic_load_n(&order->fault, __ATOMIC_ACQUIRE);
    if (*fault < from || *fault > to || order->times == 0) {
        return false;
    }
    if (order->skip > 0) {
        order->skip--;
        return false;
    }
    order->times--;
    order->struck++;
    return true;
}

/* ---- what is on the disk ---- */

struct shadow {
    int fd;
    unsigned char *dirty; /* a byte for each page */
};

static bool open_shadow(const char *name, struct shadow *shadow)
{
    char path[8192];

    snprintf(path, sizeof(path), "%s/%s.dirty", real.disk, name);
    int map = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof(path), "%s/%s", real.disk, name);
    shadow->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (map < 0 || shadow->fd < 0 || real.ftruncate(map, MAP_BYTES) != 0) {
        abort();
    }
    shadow->dirty =
        mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    close(map);
    return shadow->dirty != MAP_FAILED;
}

static void close_shadow(struct shadow *shadow)
{
    munmap(shadow->dirty, MAP_BYTES);
    close(shadow->fd);
}

static void note_write(const char *name, off_t offset, ssize_t len)
{
    struct shadow shadow;

    if (len <= 0 || !open_shadow(name, &shadow)) {
        return;
    }
    for (off_t page = offset / PAGE; page <= (offset + len - 1) / PAGE;
         page++) {
        if (page >= MAP_BYTES) {
            abort();
        }
        shadow.dirty[page] = 1;
    }
    close_shadow(&shadow);
}

static void copy_page(int from, int to, off_t page)
{
    char bytes[PAGE];
    ssize_t got = pread(from, bytes, PAGE, page * PAGE);

    if (got > 0 && real.pwrite(to, bytes, (size_t)got, page * PAGE) != got) {
        abort();
    }
}

/* What is dirty is clean now; and on the disk, if the sync has worked. */
static void note_sync(const char *name, const char *path, bool worked)
{
    struct shadow shadow;
    struct stat stat;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0) {
        return;
    }
    if (!open_shadow(name, &shadow) || fstat(fd, &stat) != 0) {
        abort();
    }
    for (off_t page = 0; page <= stat.st_size / PAGE; page++) {
        if (shadow.dirty[page] && worked) {
            copy_page(fd, shadow.fd, page);
        }
        shadow.dirty[page] = 0;
    }
    if (worked && real.ftruncate(shadow.fd, stat.st_size) != 0) {
        abort();
    }
    close_shadow(&shadow);
    close(fd);
}

/* ---- calls ---- */

static ssize_t fail_write(uint32_t fault, int fd, const void *data, size_t len,
                          off_t offset, const char *name)
{
    if (fault == FAULT_WRITE_SHORT && len > 1) {
        ssize_t wrote = real.pwrite(fd, data, len / 2, offset);

        note_write(name, offset, wrote);
        return wrote;
    }
    errno = fault == FAULT_WRITE_EIO ? EIO : ENOSPC;
    return -1;
}

static ssize_t write_at(int fd, const void *data, size_t len, off_t offset,
                        const char *name)
{
    uint32_t fault;
    ssize_t wrote;

    pthread_mutex_lock(&lock);
    if (strikes(FAULT_WRITE_EIO, FAULT_WRITE_SHORT, &fault)) {
        wrote = fail_write(fault, fd, data, len, offset, name);
    } else {
        wrote = real.pwrite(fd, data, len, offset);
        note_write(name, offset, wrote);
    }
    pthread_mutex_unlock(&lock);
    return wrote;
}

ssize_t pwrite(int fd, const void *data, size_t len, off_t offset)
{
    char path[4096];
    const char *name;

    pthread_once(&once, start);
    return name_of(fd, path, &name) ? write_at(fd, data, len, offset, name)
                                    : real.pwrite(fd, data, len, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t len, off64_t offset)
{
    return pwrite(fd, data, len, offset);
}

ssize_t write(int fd, const void *data, size_t len)
{
    char path[4096];
    const char *name;

    pthread_once(&once, start);
    if (!name_of(fd, path, &name)) {
        return real.write(fd, data, len);
    }
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t wrote = write_at(fd, data, len, offset, name);
    if (wrote > 0) {
        lseek(fd, offset + wrote, SEEK_SET);
    }
    return wrote;
}

static int sync_with(int (*sync)(int), int fd)
{
    char path[4096];
    const char *name;
    uint32_t fault;
    int code = 0;

    if (!name_of(fd, path, &name)) {
        return sync(fd);
    }
    pthread_mutex_lock(&lock);
    if (strikes(FAULT_SYNC_EIO, FAULT_SYNC_ENOSPC, &fault)) {
        code = fault == FAULT_SYNC_EIO ? EIO : ENOSPC;
    }
    note_sync(name, path, code == 0);
    pthread_mutex_unlock(&lock);
    errno = code;
    return code ? -1 : 0;
}

int fsync(int fd)
{
    pthread_once(&once, start);
    return sync_with(real.fsync, fd);
}

int fdatasync(int fd)
{
    pthread_once(&once, start);
    return sync_with(real.fdatasync, fd);
}

/* A file that shrinks and grows again has other pages. */
int ftruncate(int fd, off_t len)
{
    char path[4096];
    const char *name;
    struct shadow shadow;
    uint32_t fault;

    pthread_once(&once, start);
    if (!name_of(fd, path, &name)) {
        return real.ftruncate(fd, len);
    }
    pthread_mutex_lock(&lock);
    bool fails = strikes(FAULT_WRITE_EIO, FAULT_WRITE_ENOSPC, &fault);
    int code = fails ? -1 : real.ftruncate(fd, len);
    if (code == 0 && open_shadow(name, &shadow)) {
        for (off_t page = len / PAGE; page < MAP_BYTES; page++) {
            shadow.dirty[page] = 0;
        }
        if (len % PAGE) {
            shadow.dirty[len / PAGE] = 1;
        }
        close_shadow(&shadow);
    }
    pthread_mutex_unlock(&lock);
    if (fails) {
        errno = fault == FAULT_WRITE_EIO ? EIO : ENOSPC;
    }
    return code;
}

int ftruncate64(int fd, off64_t len)
{
    return ftruncate(fd, len);
}

int unlink(const char *path)
{
    char shadow[8192];
    const char *name;

    pthread_once(&once, start);
    int code = real.unlink(path);
    if (code == 0 && is_of_store(path, &name)) {
        snprintf(shadow, sizeof(shadow), "%s/%s", real.disk, name);
        real.unlink(shadow);
        snprintf(shadow, sizeof(shadow), "%s/%s.dirty", real.disk, name);
        real.unlink(shadow);
    }
    return code;
}
