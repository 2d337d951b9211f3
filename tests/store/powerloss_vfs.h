/*
 * powerloss_vfs.h - a SQLite VFS that knows what a disk would have kept.
 *
 * Everything goes to real files through the default VFS, without a real sync.
 * Beside that, each file has a *durable image*: what was written before its
 * last sync. What came later is pending. When the power goes, every call
 * fails, until disk_power_on() has put on the real files what a disk could
 * hold: the durable image, and each pending write kept, dropped or torn at
 * sector borders, independently.
 *
 * It also fails calls on demand. A sync that failed has dropped an arbitrary
 * part of what was pending, and no later sync brings it back, although reads
 * still find it: that is what a page cache does.
 *
 * A directory entry is durable after a sync of the file itself, or after the
 * first sync of a new log (SQLite syncs the directory then). A file that was
 * made or deleted since may be there or not after power loss.
 */
#ifndef LK_TEST_POWERLOSS_VFS_H
#define LK_TEST_POWERLOSS_VFS_H

#include <assert.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DISK_SECTOR = 512, DISK_FILES = 32, DISK_NAME = 512 };

enum disk_call { DISK_WRITE, DISK_SYNC, DISK_TRUNCATE, DISK_READ };
enum disk_target { DISK_ANY, DISK_DB, DISK_LOG };

/* The calls of one kind that are to fail: `count` of them after `after`. */
struct disk_failure {
    enum disk_call call;
    enum disk_target target;
    bool full; /* ENOSPC; else EIO */
    uint64_t after;
    uint64_t count;
    uint64_t seen;
};

struct disk_change {
    bool truncate;
    sqlite3_int64 at; /* or the new size */
    size_t len;
    char *data;
    struct disk_change *next;
};

struct disk_inode {
    char name[DISK_NAME];
    bool used;
    bool exists;  /* for the running program */
    bool entered; /* the directory entry is durable */
    bool is_log;
    bool syncs_directory; /* a new log: its first sync does */
    char *image;          /* durable bytes */
    size_t size;
    struct disk_change *first;
    struct disk_change **last;
};

static struct {
    pthread_mutex_t lock;
    sqlite3_vfs vfs;
    sqlite3_vfs *real;
    struct disk_inode inodes[DISK_FILES];
    uint64_t calls;      /* that change something, since power on */
    uint64_t calls_left; /* the power goes when this falls to 0; 0: never */
    uint64_t log_syncs;
    uint64_t db_syncs;
    bool off;
    bool killed; /* the process makes no call any more; the machine goes on */
    bool lies;   /* a sync is acknowledged and does nothing */
    struct disk_failure failure;
    uint64_t failed;
    bool inside; /* at work: what it allocates is not the store's */
    uint64_t random;
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct disk_file {
    sqlite3_file base;
    struct disk_inode *inode; /* NULL: a temporary file */
    sqlite3_file *real;
};

/* xorshift64*: the same seed, the same disk. */
static uint64_t disk_random(uint64_t below)
{
    disk.random ^= disk.random >> 12;
    disk.random ^= disk.random << 25;
    disk.random ^= disk.random >> 27;
    return (disk.random * UINT64_C(0x2545F4914F6CDD1D) >> 16) % below;
}

/* ---- The model of a file --------------------------------------------------
 */

static void image_resize(struct disk_inode *inode, size_t size)
{
    if (size > inode->size) {
        inode->image = realloc(inode->image, size);
        assert(inode->image);
        memset(inode->image + inode->size, 0, size - inode->size);
    }
    inode->size = size;
}

static void image_write(struct disk_inode *inode, size_t at, const char *data,
                        size_t len)
{
    if (at + len > inode->size) {
        image_resize(inode, at + len);
    }
    memcpy(inode->image + at, data, len);
}

static void add_change(struct disk_inode *inode, bool truncate,
                       sqlite3_int64 at, const void *data, size_t len)
{
    struct disk_change *change = calloc(1, sizeof(*change));

    assert(change);
    change->truncate = truncate;
    change->at = at;
    change->len = len;
    if (len) {
        change->data = malloc(len);
        assert(change->data);
        memcpy(change->data, data, len);
    }
    *inode->last = change;
    inode->last = &change->next;
}

static void apply_change(struct disk_inode *inode,
                         const struct disk_change *change)
{
    if (change->truncate) {
        image_resize(inode, (size_t)change->at);
    } else {
        image_write(inode, (size_t)change->at, change->data, change->len);
    }
}

/* Each sector of the write is there or not. */
static void tear_change(struct disk_inode *inode,
                        const struct disk_change *change)
{
    size_t at = (size_t)change->at;
    size_t done = 0;

    while (done < change->len) {
        size_t len = DISK_SECTOR - (at + done) % DISK_SECTOR;
        if (len > change->len - done) {
            len = change->len - done;
        }
        if (disk_random(2)) {
            image_write(inode, at + done, change->data + done, len);
        }
        done += len;
    }
}

static void drop_changes(struct disk_inode *inode)
{
    struct disk_change *change = inode->first;

    while (change) {
        struct disk_change *next = change->next;
        free(change->data);
        free(change);
        change = next;
    }
    inode->first = NULL;
    inode->last = &inode->first;
}

static void forget_inode(struct disk_inode *inode)
{
    drop_changes(inode);
    free(inode->image);
    *inode = (struct disk_inode){0};
}

static struct disk_inode *find_inode(const char *name)
{
    for (size_t i = 0; i < DISK_FILES; i++) {
        if (disk.inodes[i].used && !strcmp(disk.inodes[i].name, name)) {
            return &disk.inodes[i];
        }
    }
    return NULL;
}

static struct disk_inode *make_inode(const char *name)
{
    for (size_t i = 0; i < DISK_FILES; i++) {
        struct disk_inode *inode = &disk.inodes[i];
        if (!inode->used) {
            *inode = (struct disk_inode){.used = true};
            inode->last = &inode->first;
            snprintf(inode->name, sizeof(inode->name), "%s", name);
            return inode;
        }
    }
    assert(!"too many files");
    return NULL;
}

/* What was made or deleted so far stays so. */
static void sync_directory(void)
{
    for (size_t i = 0; i < DISK_FILES; i++) {
        if (disk.inodes[i].used && !disk.inodes[i].exists) {
            forget_inode(&disk.inodes[i]);
        }
        disk.inodes[i].entered = disk.inodes[i].exists;
    }
}

static void sync_inode(struct disk_inode *inode)
{
    for (struct disk_change *c = inode->first; c; c = c->next) {
        apply_change(inode, c);
    }
    drop_changes(inode);
    inode->entered = true;
    if (inode->syncs_directory) {
        inode->syncs_directory = false;
        sync_directory();
    }
}

/* Decides what of the pending changes the disk has kept. */
static void settle_inode(struct disk_inode *inode, size_t seen_size)
{
    for (struct disk_change *c = inode->first; c; c = c->next) {
        uint64_t fate = disk_random(3);
        if (fate == 1 || (fate == 2 && c->truncate)) {
            apply_change(inode, c);
        } else if (fate == 2) {
            tear_change(inode, c);
        }
    }
    drop_changes(inode);
    /* The new length may be there without the bytes. */
    if (seen_size > inode->size && disk_random(4) == 0) {
        image_resize(inode, seen_size);
    }
}

static bool is_off(void)
{
    return disk.off || disk.killed;
}

/* Counts a call that changes something. False: there is no power. */
static bool powered(void)
{
    if (is_off()) {
        return false;
    }
    disk.calls++;
    if (disk.calls_left && --disk.calls_left == 0) {
        disk.off = true;
    }
    return !disk.off;
}

static bool must_fail(enum disk_call call, const struct disk_inode *inode)
{
    struct disk_failure *failure = &disk.failure;
    enum disk_target target = inode && inode->is_log ? DISK_LOG : DISK_DB;

    if (!failure->count || failure->call != call ||
        (failure->target != DISK_ANY && failure->target != target)) {
        return false;
    }
    failure->seen++;
    bool fails = failure->seen > failure->after &&
                 failure->seen - failure->after <= failure->count;
    disk.failed += fails;
    return fails;
}

static void enter_disk(void)
{
    pthread_mutex_lock(&disk.lock);
    disk.inside = true;
}

static void leave_disk(void)
{
    disk.inside = false;
    pthread_mutex_unlock(&disk.lock);
}

/* ---- What SQLite calls ----------------------------------------------------
 */

#define DISK_REAL(file)  (((struct disk_file *)(file))->real)
#define DISK_INODE(file) (((struct disk_file *)(file))->inode)
#define DISK_PASS(file, method, ...)                                           \
    (DISK_REAL(file)->pMethods->method(DISK_REAL(file), ##__VA_ARGS__))

static int disk_close(sqlite3_file *file)
{
    return DISK_PASS(file, xClose);
}

static int disk_read(sqlite3_file *file, void *data, int len, sqlite3_int64 at)
{
    if (is_off()) {
        return SQLITE_IOERR_READ;
    }
    enter_disk();
    bool fails = must_fail(DISK_READ, DISK_INODE(file));
    leave_disk();
    /* What SQLite makes of EIO, and takes for damage. */
    return fails ? SQLITE_IOERR_CORRUPTFS
                 : DISK_PASS(file, xRead, data, len, at);
}

/* The write during which the power goes is pending like any other. */
static int disk_write(sqlite3_file *file, const void *data, int len,
                      sqlite3_int64 at)
{
    int result = SQLITE_IOERR_WRITE;

    enter_disk();
    bool was_off = is_off();
    bool goes_on = powered();
    bool fails = !was_off && must_fail(DISK_WRITE, DISK_INODE(file));
    if (fails) {
        len = disk.failure.full ? 0 : len / 2;
    }
    if (!was_off && DISK_INODE(file) && len) {
        add_change(DISK_INODE(file), false, at, data, (size_t)len);
    }
    if (goes_on && len) {
        result = DISK_PASS(file, xWrite, data, len, at);
    }
    if (fails) {
        result = disk.failure.full ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    }
    leave_disk();
    return result;
}

static int disk_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    int result = SQLITE_IOERR_TRUNCATE;

    enter_disk();
    bool was_off = is_off();
    bool fails = !was_off && must_fail(DISK_TRUNCATE, DISK_INODE(file));
    bool goes_on = powered() && !fails;
    if (!was_off && !fails && DISK_INODE(file)) {
        add_change(DISK_INODE(file), true, size, NULL, 0);
    }
    if (goes_on) {
        result = DISK_PASS(file, xTruncate, size);
    }
    leave_disk();
    return result;
}

static int disk_sync(sqlite3_file *file, int flags)
{
    int result = SQLITE_IOERR_FSYNC;
    struct disk_inode *inode = DISK_INODE(file);

    enter_disk();
    if (!is_off() && must_fail(DISK_SYNC, inode)) {
        if (inode) {
            settle_inode(inode, inode->size);
        }
    } else if (powered()) {
        result = SQLITE_OK;
        if (inode && !disk.lies) {
            sync_inode(inode);
        }
        if (inode) {
            (*(inode->is_log ? &disk.log_syncs : &disk.db_syncs))++;
        }
    }
    leave_disk();
    return result;
}

static int disk_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return is_off() ? SQLITE_IOERR_FSTAT : DISK_PASS(file, xFileSize, size);
}

static int disk_lock(sqlite3_file *file, int level)
{
    return DISK_PASS(file, xLock, level);
}

static int disk_unlock(sqlite3_file *file, int level)
{
    return DISK_PASS(file, xUnlock, level);
}

static int disk_reserved(sqlite3_file *file, int *result)
{
    return DISK_PASS(file, xCheckReservedLock, result);
}

static int disk_control(sqlite3_file *file, int op, void *arg)
{
    /* A hint would let the real file grow behind the model's back. */
    if (op == SQLITE_FCNTL_SIZE_HINT || op == SQLITE_FCNTL_CHUNK_SIZE) {
        return SQLITE_OK;
    }
    return DISK_PASS(file, xFileControl, op, arg);
}

static int disk_sector_size(sqlite3_file *file)
{
    return DISK_SECTOR;
}

static int disk_characteristics(sqlite3_file *file)
{
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static int disk_shm_map(sqlite3_file *file, int page, int size, int extend,
                        void volatile **memory)
{
    return DISK_PASS(file, xShmMap, page, size, extend, memory);
}

static int disk_shm_lock(sqlite3_file *file, int offset, int count, int flags)
{
    return DISK_PASS(file, xShmLock, offset, count, flags);
}

static void disk_shm_barrier(sqlite3_file *file)
{
    DISK_PASS(file, xShmBarrier);
}

static int disk_shm_unmap(sqlite3_file *file, int remove)
{
    return DISK_PASS(file, xShmUnmap, remove);
}

static const sqlite3_io_methods disk_methods = {
    .iVersion = 2, /* no memory maps: every read comes by */
    .xClose = disk_close,
    .xRead = disk_read,
    .xWrite = disk_write,
    .xTruncate = disk_truncate,
    .xSync = disk_sync,
    .xFileSize = disk_size,
    .xLock = disk_lock,
    .xUnlock = disk_unlock,
    .xCheckReservedLock = disk_reserved,
    .xFileControl = disk_control,
    .xSectorSize = disk_sector_size,
    .xDeviceCharacteristics = disk_characteristics,
    .xShmMap = disk_shm_map,
    .xShmLock = disk_shm_lock,
    .xShmBarrier = disk_shm_barrier,
    .xShmUnmap = disk_shm_unmap,
};

static struct disk_inode *open_inode(const char *name, int flags)
{
    struct disk_inode *inode = find_inode(name);

    if (!inode) {
        /* The directory must have been empty when the test began. */
        inode = make_inode(name);
    }
    bool created = !inode->exists;
    inode->exists = true;
    inode->is_log = flags & (SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL);
    if (created && inode->is_log) {
        inode->syncs_directory = true;
    }
    return inode;
}

static int disk_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file,
                     int flags, int *out_flags)
{
    const int kinds =
        SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_WAL | SQLITE_OPEN_MAIN_JOURNAL;
    struct disk_file *ours = (struct disk_file *)file;

    memset(ours, 0, sizeof(*ours));
    ours->real = (sqlite3_file *)(ours + 1);
    if (is_off()) {
        return SQLITE_CANTOPEN;
    }
    int result =
        disk.real->xOpen(disk.real, name, ours->real, flags, out_flags);
    if (ours->real->pMethods) {
        ours->base.pMethods = &disk_methods;
    }
    if (!result && name && flags & kinds) {
        enter_disk();
        ours->inode = open_inode(name, flags);
        leave_disk();
    }
    return result;
}

static int disk_delete(sqlite3_vfs *vfs, const char *name, int with_directory)
{
    int result = SQLITE_IOERR_DELETE;

    enter_disk();
    if (powered()) {
        struct disk_inode *inode = find_inode(name);
        result = disk.real->xDelete(disk.real, name, with_directory);
        if (inode && !result) {
            inode->exists = false;
            /* A name that is used again starts from nothing. */
            if (with_directory || !inode->entered) {
                forget_inode(inode);
            } else {
                add_change(inode, true, 0, NULL, 0);
            }
        }
    }
    leave_disk();
    return result;
}

/* ---- What a test calls ----------------------------------------------------
 */

static const char *disk_vfs(void)
{
    if (!disk.real) {
        sqlite3_initialize();
        disk.real = sqlite3_vfs_find(NULL);
        disk.vfs = *disk.real;
        disk.vfs.zName = "latchkey-powerloss";
        disk.vfs.szOsFile = (int)sizeof(struct disk_file) + disk.real->szOsFile;
        disk.vfs.pNext = NULL;
        disk.vfs.xOpen = disk_open;
        disk.vfs.xDelete = disk_delete;
        sqlite3_vfs_register(&disk.vfs, 0);
    }
    return disk.vfs.zName;
}

/* A new, empty disk with the power on. */
static void disk_reset(uint64_t seed)
{
    for (size_t i = 0; i < DISK_FILES; i++) {
        forget_inode(&disk.inodes[i]);
    }
    disk.random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    disk.off = disk.killed = false;
    disk.lies = false;
    disk.failure = (struct disk_failure){0};
    disk.failed = 0;
    disk.calls = disk.calls_left = disk.log_syncs = disk.db_syncs = 0;
}

static void write_real_file(const struct disk_inode *inode)
{
    FILE *out = fopen(inode->name, "wb");

    assert(out);
    size_t done = inode->size ? fwrite(inode->image, 1, inode->size, out) : 0;
    assert(done == inode->size);
    int result = fclose(out);
    assert(!result);
    (void)done;
    (void)result;
}

/* The shared memory file goes with the power, whatever the disk says. */
static void remove_real_files(const struct disk_inode *inode)
{
    char name[DISK_NAME + 8];

    unlink(inode->name);
    snprintf(name, sizeof(name), "%s-shm", inode->name);
    unlink(name);
}

/*
 * After the store was closed with the power off: puts on the real files what
 * the disk could hold, and switches the power on again.
 */
static void disk_power_on(void)
{
    for (size_t i = 0; i < DISK_FILES; i++) {
        struct disk_inode *inode = &disk.inodes[i];
        size_t seen = inode->size;
        if (!inode->used) {
            continue;
        }
        for (struct disk_change *c = inode->first; c; c = c->next) {
            size_t end = (size_t)c->at + c->len;
            seen = c->truncate || end > seen ? end : seen;
        }
        remove_real_files(inode);
        /* Made or deleted, and the directory was not synced: either. */
        if ((!inode->entered || !inode->exists) && disk_random(2)) {
            forget_inode(inode);
            continue;
        }
        settle_inode(inode, seen);
        inode->exists = inode->entered = true;
        write_real_file(inode);
    }
    disk.off = false;
    disk.calls = disk.calls_left = 0;
    disk.failure.count = 0;
}

/* As disk_power_on, for power that goes now, between two calls. */
static void disk_power_off(void)
{
    disk.off = true;
}

#endif
