/*
 * sqlite.c - the embedded store: opening, owning, reopening and closing it.
 *
 * The life of the store (health, set by the store thread, read by any):
 *
 *   CLOSED   open_sqlite builds it; nothing is acknowledged yet
 *   READY    batches are decided
 *   FULL     no space: batches are refused, and a test write every PROBE_MS
 *            leads back to READY (recover_store)
 *   BROKEN   a write or sync failed: batches are refused and nothing is peeked
 *            until lk_sqlite_reopen has built everything again from the disk
 *
 * close_sqlite frees it, after all other threads have stopped.
 *
 * Exactly one process owns the file: it holds a lock on the side file
 * PATH-lock, which also notes how often the store has been opened (its
 * incarnation). A database that knows of fewer openings than its side file,
 * or that carries the mark of a backup, is an older copy: claims made since
 * are missing in it. Then no unknown key may start until the locks of such
 * claims must have run out, and new tokens are far above any that can have been
 * handed out.
 */
#include "store/sqlite.h"
#include "store/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/rand.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Above all tokens that a lost stretch of history can have used. Each restored
 * copy leaps further than the one before, so that two starts from the same
 * copy share no token either.
 */
#define TOKEN_LEAP (UINT64_C(1) << 32)
enum { LEAPS_MAX = 4096 };

#define PROMISE "an acknowledged claim or result survives power loss"

enum { LEVEL_ERROR = 0, LEVEL_WARN = 1, LEVEL_INFO = 2 };

void lk_sqlite_log(struct lk_sqlite *store, int level, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    lk_store_log(&store->config, level, format, args);
    va_end(args);
}

void lk_sqlite_set_failure(struct lk_sqlite *store, enum lk_health health,
                           const char *why)
{
    int before = atomic_exchange(&store->health, (int)health);
    char text[sizeof(store->failure)];

    snprintf(text, sizeof(text), "%s", why ? why : "");
    pthread_mutex_lock(&store->failure_lock);
    bool same = before == (int)health && !strcmp(store->failure, text);
    memcpy(store->failure, text, sizeof(text));
    pthread_mutex_unlock(&store->failure_lock);
    if (same) {
        return;
    }
    if (health == LK_HEALTH_READY) {
        lk_sqlite_log(store, LEVEL_INFO, "the store is available again");
    } else {
        lk_sqlite_log(store, LEVEL_ERROR, "the store is unavailable: %s",
                      why ? why : "?");
    }
}

/* ---- the side file ---------------------------------------------------- */

static bool is_same_file(int fd, const char *path)
{
    struct stat held;
    struct stat found;

    return !fstat(fd, &held) && !stat(path, &found) &&
           found.st_dev == held.st_dev && found.st_ino == held.st_ino;
}

/*
 * A file that was removed between opening and locking (see remove_empty_side)
 * locks no one out: the lock counts only on the file of that name.
 */
static enum lk_status lock_file(const char *path, int *fd, struct lk_buf *error)
{
    enum lk_status status;

    for (int tries = 0; tries < 100; tries++) {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (*fd < 0) {
            status = latchkey_buf_printf(error, "cannot open %s: %s", path,
                                         strerror(errno));
            return status ? status : LK_IO;
        }
        if (flock(*fd, LOCK_EX | LOCK_NB)) {
            status = latchkey_buf_printf(
                error, "%s is owned by another latchkeyd; stop that one first",
                path);
            return status ? status : LK_BUSY;
        }
        if (is_same_file(*fd, path)) {
            return LK_OK;
        }
        close(*fd);
        *fd = -1;
    }
    status = latchkey_buf_printf(error,
                                 "cannot lock %s: another process "
                                 "keeps removing it",
                                 path);
    return status ? status : LK_IO;
}

/*
 * Locks the side file and the database itself: under whatever name another
 * process opens the database, it does not get both. Neither is closed before
 * SQLite has closed the database, which would lose its own locks.
 */
static enum lk_status lock_files(struct lk_sqlite *store, struct lk_buf *error)
{
    char side[4096];

    snprintf(side, sizeof(side), "%s-lock", store->path);
    enum lk_status status = lock_file(side, &store->lock_fd, error);
    store->owned = !status;
    return status ? status : lock_file(store->path, &store->file_fd, error);
}

/* After a refused open. An empty side file notes no opening, and only the owner
 * of its lock could write it. */
static void remove_empty_side(const struct lk_sqlite *store)
{
    char side[4096];
    struct stat info;

    snprintf(side, sizeof(side), "%s-lock", store->path);
    if (store->owned && !fstat(store->lock_fd, &info) && info.st_size == 0) {
        unlink(side);
    }
}

/*
 * A backup is not in WAL mode. A log beside it belongs to the database that was
 * here before and must not be replayed into this one.
 */
static enum lk_status check_log(struct lk_sqlite *store, struct lk_buf *error)
{
    uint8_t mode[2] = {0};
    char log[4096];
    struct stat info;

    snprintf(log, sizeof(log), "%s-wal", store->path);
    if (pread(store->file_fd, mode, 2, 18) != 2 || mode[0] != 1 ||
        stat(log, &info) || info.st_size == 0) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_printf(
        error,
        "%s is a restored backup, but %s belongs to the database that was "
        "there before; move that file away",
        store->path, log);
    return status ? status : LK_INVALID;
}

static enum lk_status check_file(int fd, const char *path, struct lk_buf *error)
{
    if (is_same_file(fd, path)) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_printf(
        error,
        "%s was replaced or removed while it was open; put it back, or "
        "restart latchkeyd",
        path);
    return status ? status : LK_INVALID;
}

enum lk_status lk_sqlite_check_files(const struct lk_sqlite *store,
                                     struct lk_buf *error)
{
    char log[4096];
    enum lk_status status = check_file(store->file_fd, store->path, error);

    snprintf(log, sizeof(log), "%s-wal", store->path);
    if (!status && store->log_fd >= 0) {
        status = check_file(store->log_fd, log, error);
    }
    return status;
}

static void folder_of(const char *path, char *folder, size_t size)
{
    const char *slash = strrchr(path, '/');

    snprintf(folder, size, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
}

/* The path with no link left in it; the file itself may not exist yet. */
static char *resolve_path(const char *path)
{
    char *whole = realpath(path, NULL);
    char folder[4096];
    const char *slash = strrchr(path, '/');

    if (whole) {
        return whole;
    }
    folder_of(path, folder, sizeof(folder));
    char *real = realpath(folder, NULL);
    if (!real ||
        asprintf(&whole, "%s/%s", real, slash ? slash + 1 : path) < 0) {
        whole = strdup(path); /* opening it reports what is wrong */
    }
    free(real);
    return whole;
}

/*
 * A link to nothing is more likely a disk that is not mounted than a new store,
 * and a store made in its place would be empty.
 */
static enum lk_status check_link(const char *path, struct lk_buf *error)
{
    struct stat info;

    if (lstat(path, &info) || !S_ISLNK(info.st_mode) || !stat(path, &info)) {
        return LK_OK;
    }
    enum lk_status status = latchkey_buf_printf(
        error,
        "%s is a symbolic link to a file that does not exist; mount its disk, "
        "or create an empty file there for a new store",
        path);
    return status ? status : LK_INVALID;
}

enum lk_status lk_sqlite_check_place(const char *path, struct lk_buf *error)
{
    char folder[4096];
    struct stat info;
    enum lk_status status = check_link(path, error);

    if (!status && !stat(path, &info) && S_ISDIR(info.st_mode)) {
        status = latchkey_buf_printf(
            error, "%s is a folder; name a file in it, such as latchkey.db",
            path);
        return status ? status : LK_INVALID;
    }
    folder_of(path, folder, sizeof(folder));
    if (status || (!stat(folder, &info) && S_ISDIR(info.st_mode) &&
                   !access(folder, W_OK | X_OK))) {
        return status;
    }
    int cause = errno;
    status = latchkey_buf_printf(
        error,
        "cannot open %s: its folder must be there, and writable for "
        "latchkeyd's user: %s",
        path, strerror(cause));
    return status ? status : LK_IO;
}

static uint64_t read_side(const struct lk_sqlite *store)
{
    char text[32] = "";

    if (pread(store->lock_fd, text, sizeof(text) - 1, 0) <= 0) {
        return 0;
    }
    return strtoull(text, NULL, 10);
}

static enum lk_status write_side(const struct lk_sqlite *store,
                                 uint64_t incarnation)
{
    char text[32];
    int len = snprintf(text, sizeof(text), "%020llu\n",
                       (unsigned long long)incarnation);

    if (pwrite(store->lock_fd, text, (size_t)len, 0) != len ||
        fdatasync(store->lock_fd)) {
        return LK_IO;
    }
    return LK_OK;
}

enum lk_status lk_sync_folder(const char *path)
{
    char folder[4096];

    folder_of(path, folder, sizeof(folder));
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return LK_IO;
    }
    int failed = fsync(fd);
    close(fd);
    return failed ? LK_IO : LK_OK;
}

/* ---- connections ------------------------------------------------------ */

bool lk_sqlite_is_reopening(const struct lk_sqlite *store)
{
    return atomic_load(&store->health) != LK_HEALTH_CLOSED;
}

enum lk_status lk_sqlite_refuse_file(const struct lk_sqlite *store,
                                     struct lk_buf *error)
{
    enum lk_status status = latchkey_buf_printf(
        error,
        "%s is an older copy of the file that was open; put that back, or "
        "restart latchkeyd",
        store->path);
    return status ? status : LK_INVALID;
}

static int note_frames(void *context, sqlite3 *db, const char *name, int frames)
{
    struct lk_sqlite *store = context;

    (void)db;
    (void)name;
    store->wal_frames = frames;
    return SQLITE_OK;
}

static void close_connections(struct lk_sqlite *store)
{
    lk_sqlite_close_reader(store);
    lk_sqlite_finalize(store);
    sqlite3_close(store->writer);
    store->writer = NULL;
    store->writing = store->reader_suspect = false;
    store->wal_frames = store->wal_tried = 0;
}

/*
 * Why every open and reopen writes the log again before SQLite reads it: a sync
 * may have failed before.
 *
 * Linux reports a failed sync once and then marks the pages clean: reads find
 * bytes that are not on the disk, and the next sync succeeds without writing
 * them. That also holds for a process that is started later. SQLite
 * would recover such a log, "sync" it, and copy its pages into the database;
 * after a power loss there is half a transaction, or an older log over newer
 * pages. Hence the invariants:
 *
 *  - Nothing is read from the log that is not on the disk. All of it is
 *    written again, which makes its pages dirty, and synced. Bytes that were
 *    on the disk are replaced by themselves, so a power loss in between loses
 *    nothing either.
 *  - The log is given up only after a sync of the database that followed the
 *    writing of all its pages. SQLite sees to that: a checkpoint that failed
 *    has not counted, and since the shared memory goes with the last
 *    connection, the first checkpoint of an opening copies the log from its
 *    first page on. So the database has no page that is both needed and
 *    neither in the log nor on the disk, and need not be written again.
 *  - After a write or sync that failed, nothing is decided before a
 *    reopening (fail_batch, checkpoint).
 *
 * The names of both files are made durable by count_opening before the first
 * reply. A directory is part of the file system's own journal: after a failed
 * sync it keeps failing, and nothing is opened.
 */
static int copy_onto_itself(sqlite3_file *log)
{
    enum { PIECE = 64 * 1024 };
    char *bytes = malloc(PIECE);
    sqlite3_int64 size = 0;
    int code = bytes ? log->pMethods->xFileSize(log, &size) : SQLITE_NOMEM;

    for (sqlite3_int64 at = 0; at < size && code == SQLITE_OK; at += PIECE) {
        int len = size - at < PIECE ? (int)(size - at) : PIECE;
        code = log->pMethods->xRead(log, bytes, len, at);
        if (code == SQLITE_OK) {
            code = log->pMethods->xWrite(log, bytes, len, at);
        }
    }
    if (code == SQLITE_OK && size) {
        code = log->pMethods->xSync(log, SQLITE_SYNC_FULL);
    }
    free(bytes);
    return code;
}

static int rewrite_log(struct lk_sqlite *store, const char *log_path)
{
    sqlite3_vfs *vfs = sqlite3_vfs_find(store->config.vfs);
    const char *name =
        sqlite3_create_filename(store->path, "", log_path, 0, NULL);
    sqlite3_file *log = vfs ? calloc(1, (size_t)vfs->szOsFile) : NULL;
    int code = SQLITE_NOMEM;

    if (name && log) {
        code = vfs->xOpen(vfs, sqlite3_filename_wal(name), log,
                          SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL, NULL);
    }
    if (code == SQLITE_OK) {
        code = copy_onto_itself(log);
    }
    if (log && log->pMethods) {
        log->pMethods->xClose(log);
    }
    free(log);
    sqlite3_free_filename(name);
    return code;
}

static enum lk_status settle_log(struct lk_sqlite *store, struct lk_buf *error)
{
    char log[4096];
    struct stat info;

    snprintf(log, sizeof(log), "%s-wal", store->path);
    if (stat(log, &info) || !info.st_size) {
        return LK_OK;
    }
    int code = rewrite_log(store, log);
    enum lk_status status = lk_sqlite_status(code);
    if (status && latchkey_buf_printf(error, "cannot write %s: %s", log,
                                      sqlite3_errstr(code))) {
        status = LK_NOMEM;
    }
    return status;
}

/* Empties the log into the database. */
static enum lk_status empty_log(struct lk_sqlite *store)
{
    return lk_sqlite_status(sqlite3_wal_checkpoint_v2(
        store->writer, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL));
}

/*
 * Reads the secret of this name, or makes it. A reopened file must have the
 * same secret: other threads read ours, and a file with another one is not
 * ours.
 */
static enum lk_status take_secret(struct lk_sqlite *store, const char *name,
                                  uint8_t secret[16], struct lk_buf *error)
{
    uint8_t stored[16];
    enum lk_status status =
        lk_meta_get_bytes(store->writer, name, stored, sizeof(stored));

    if (lk_sqlite_is_reopening(store)) {
        bool same = !status && !memcmp(secret, stored, sizeof(stored));
        return same || (status && status != LK_NOT_FOUND)
                   ? status
                   : lk_sqlite_refuse_file(store, error);
    }
    if (status == LK_NOT_FOUND) {
        status = RAND_bytes(stored, sizeof(stored)) == 1
                     ? lk_meta_put_bytes(store, name, stored, sizeof(stored))
                     : LK_IO;
    }
    if (!status) {
        memcpy(secret, stored, sizeof(stored));
    }
    return status;
}

static enum lk_status take_secrets(struct lk_sqlite *store,
                                   struct lk_buf *error)
{
    enum lk_status status = lk_sqlite_run(store, LK_STATEMENT_BEGIN);

    if (!status) {
        status = take_secret(store, "secret", store->store.secret, error);
    }
    if (!status) {
        status = take_secret(store, "reference_secret",
                             store->store.reference_secret, error);
    }
    return status ? status : lk_sqlite_run(store, LK_STATEMENT_COMMIT);
}

/* Opens the log, which SQLite made when it first read the database. */
static enum lk_status hold_log(struct lk_sqlite *store)
{
    char log[4096];

    if (store->log_fd < 0) {
        snprintf(log, sizeof(log), "%s-wal", store->path);
        store->log_fd = open(log, O_RDONLY | O_CLOEXEC);
    }
    return store->log_fd < 0 ? LK_IO : LK_OK;
}

/*
 * What a reopened store must be. This process has acknowledged operations, so
 * only the files that it had open will do, with all of these in them:
 *
 *  - the same files, by device and inode, before SQLite opens them and after
 *    (lk_sqlite_check_files);
 *  - the same history: neither the mark of a copy nor another incarnation;
 *  - the same secrets (take_secret);
 *  - no operation older than the index shows it (lk_sqlite_load).
 *
 * A start, which can hold unknown keys and leap, decides about anything else:
 * until then, or until the right files are back, the store stays broken.
 */
static enum lk_status check_life(struct lk_sqlite *store, struct lk_buf *error)
{
    int64_t known = 0;
    int64_t backup_at = 0;
    enum lk_status status = lk_meta_get(store->writer, "incarnation", &known);

    if (!status) {
        status = lk_meta_get(store->writer, "backup_at", &backup_at);
    }
    if (status || !lk_sqlite_is_reopening(store) ||
        ((uint64_t)known == store->incarnation && !backup_at)) {
        return status;
    }
    return lk_sqlite_refuse_file(store, error);
}

/* Builds everything from the files up to the index. On failure all is
 * closed. */
static enum lk_status build_store(struct lk_sqlite *store, struct lk_buf *error)
{
    enum lk_status status = lk_sqlite_check_files(store, error);

    if (!status) {
        status = check_log(store, error);
    }
    if (!status) {
        status = settle_log(store, error);
    }
    if (!status) {
        status = lk_sqlite_connect(store, true, &store->writer, error);
    }
    if (!status) {
        sqlite3_wal_hook(store->writer, note_frames, store);
        status = empty_log(store);
    }
    if (!status) {
        status = lk_sqlite_migrate(store, error);
    }
    if (!status) {
        status = hold_log(store);
    }
    if (!status) {
        status = lk_sqlite_prepare(store);
    }
    if (!status) {
        status = check_life(store, error);
    }
    if (!status) {
        status = take_secrets(store, error);
    }
    if (!status) {
        status = lk_sqlite_load(store, error);
    }
    if (!status) {
        status = lk_sqlite_open_reader(store, error);
    }
    if (status && !error->len) {
        enum lk_status said =
            latchkey_buf_printf(error, "cannot open %s: %s", store->path,
                                store->writer ? sqlite3_errmsg(store->writer)
                                              : latchkey_status_text(status));
        status = said ? said : status;
    }
    if (status) {
        close_connections(store);
    }
    return status;
}

enum lk_status lk_sqlite_reopen(struct lk_sqlite *store)
{
    struct lk_buf error = {0};

    atomic_store(&store->stopping, true);
    pthread_rwlock_wrlock(&store->handles);
    atomic_store(&store->stopping, false);
    close_connections(store);
    enum lk_status status = build_store(store, &error);
    pthread_rwlock_unlock(&store->handles);
    store->reopened |= !status;
    if (status) {
        lk_sqlite_set_failure(store, LK_HEALTH_BROKEN,
                              error.len ? error.data : "cannot reopen");
    } else {
        atomic_fetch_add(&store->counters.reopened, 1);
        lk_sqlite_set_failure(store, LK_HEALTH_READY, NULL);
    }
    latchkey_buf_free(&error);
    return status;
}

/* ---- incarnations and copies ------------------------------------------ */

static uint64_t longest_lock(struct lk_sqlite *store)
{
    int64_t longest = 0;

    if (lk_sqlite_number(store->writer,
                         "SELECT max((SELECT ifnull(max(lock), 0) FROM claim),"
                         " (SELECT ifnull(max(until - at), 0) FROM outcome"
                         " WHERE kind = " LK_SQL_ROW_EXTEND "))",
                         &longest)) {
        longest = 0;
    }
    uint64_t usual = store->config.default_lock_ms;
    return (uint64_t)longest > usual ? (uint64_t)longest : usual;
}

static enum lk_status hold_unknown(struct lk_sqlite *store, int64_t backup_at,
                                   uint64_t openings)
{
    uint64_t hold = longest_lock(store);
    uint64_t until = store->last_ms + hold;
    enum lk_status status = lk_meta_put(store, "hold_until", (int64_t)until);

    store->next_token += TOKEN_LEAP * (1 + openings % LEAPS_MAX);
    store->next_job += TOKEN_LEAP * (1 + openings % LEAPS_MAX);
    atomic_store(&store->last_token, store->next_token - 1);
    if (!status) {
        status =
            lk_meta_put(store, "high_token", (int64_t)store->next_token - 1);
    }
    if (!status) {
        status = lk_meta_put(store, "high_job", (int64_t)store->next_job - 1);
    }
    atomic_store(&store->hold_until_ms, until);
    lk_sqlite_log(store, LEVEL_WARN,
                  "%s is an older copy%s: claims made since are missing. "
                  "Nothing new starts for %llu s; operations claimed since "
                  "the copy can run again after that",
                  store->path, backup_at ? " (a backup)" : "",
                  (unsigned long long)(hold / 1000));
    return status;
}

/* Counts this opening, in the database first: the side file is ahead only if
 * the database was replaced. */
static enum lk_status count_opening(struct lk_sqlite *store)
{
    int64_t known = 0;
    int64_t backup_at = 0;
    int64_t hold_until = 0;
    uint64_t side = read_side(store);
    sqlite3 *db = store->writer;

    enum lk_status status = lk_meta_get(db, "incarnation", &known);
    if (!status) {
        status = lk_meta_get(db, "backup_at", &backup_at);
    }
    if (!status) {
        status = lk_meta_get(db, "hold_until", &hold_until);
    }
    atomic_store(&store->hold_until_ms, (uint64_t)hold_until);
    uint64_t next = ((uint64_t)known > side ? (uint64_t)known : side) + 1;
    if (!status) {
        status = lk_sqlite_run(store, LK_STATEMENT_BEGIN);
    }
    if (!status && (backup_at || side > (uint64_t)known)) {
        status = hold_unknown(store, backup_at, next - (uint64_t)known);
    }
    if (!status) {
        status = lk_meta_put(store, "backup_at", 0);
    }
    if (!status) {
        status = lk_meta_put(store, "incarnation", (int64_t)next);
    }
    if (!status) {
        status = lk_sqlite_run(store, LK_STATEMENT_COMMIT);
    }
    if (!status) {
        status = lk_sync_folder(store->path);
    }
    store->incarnation = next;
    return status ? status : write_side(store, next);
}

/* ---- the class -------------------------------------------------------- */

static void free_sqlite(struct lk_sqlite *store)
{
    close_connections(store);
    if (store->log_fd >= 0) {
        close(store->log_fd);
    }
    if (store->file_fd >= 0) {
        close(store->file_fd);
    }
    if (store->lock_fd >= 0) {
        close(store->lock_fd);
    }
    lk_overlay_free(&store->overlay);
    lk_index_free(&store->index);
    lk_counts_free(store);
    latchkey_buf_free(&store->scratch);
    pthread_rwlock_destroy(&store->handles);
    pthread_mutex_destroy(&store->reader_lock);
    pthread_mutex_destroy(&store->index_lock);
    pthread_mutex_destroy(&store->commit_lock);
    pthread_mutex_destroy(&store->failure_lock);
    free(store->path);
    free(store);
}

static struct lk_sqlite *create_sqlite(const struct lk_store_config *config)
{
    struct lk_sqlite *store = calloc(1, sizeof(*store));

    if (!store) {
        return NULL;
    }
    store->store.class = &lk_sqlite_class;
    store->store.lanes = 1;
    snprintf(store->store.promise, sizeof(store->store.promise), "%s", PROMISE);
    store->config = *config;
    store->config.path = store->path = resolve_path(config->path);
    store->lock_fd = store->file_fd = store->log_fd = -1;
    if (!store->config.vfs) {
        store->config.vfs = lk_fault_vfs();
    }
    pthread_rwlock_init(&store->handles, NULL);
    pthread_mutex_init(&store->reader_lock, NULL);
    pthread_mutex_init(&store->index_lock, NULL);
    pthread_mutex_init(&store->commit_lock, NULL);
    pthread_mutex_init(&store->failure_lock, NULL);
    atomic_init(&store->health, LK_HEALTH_CLOSED);
    return store;
}

static enum lk_status open_sqlite(const struct lk_store_config *config,
                                  struct lk_store **opened,
                                  struct lk_buf *error)
{
    struct lk_sqlite *store = create_sqlite(config);
    enum lk_status status = store && store->path ? LK_OK : LK_NOMEM;

    if (!status) {
        status = lk_sqlite_check_place(config->path, error);
    }
    if (!status) {
        status = lock_files(store, error);
    }
    if (!status) {
        status = build_store(store, error);
    }
    if (status == LK_CORRUPT) {
        error->len = 0; /* a read may have failed only once */
        status = build_store(store, error);
    }
    if (!status) {
        status = count_opening(store);
    }
    if (status) {
        if (!error->len &&
            latchkey_buf_printf(error, "cannot open %s: %s", config->path,
                                latchkey_status_text(status))) {
            status = LK_NOMEM;
        }
        if (store) {
            remove_empty_side(store);
            free_sqlite(store);
        }
        return status;
    }
    atomic_store(&store->health, LK_HEALTH_READY);
    if (atomic_load(&store->clock.held)) {
        lk_sqlite_log(store, LEVEL_WARN,
                      "the wall clock is implausibly far from the time last "
                      "stored; the store's time continues from there until an "
                      "operator accepts the clock (latchkey clock accept)");
    }
    *opened = &store->store;
    return LK_OK;
}

static void close_sqlite(struct lk_store *base)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;

    atomic_store(&store->stopping, true);
    pthread_rwlock_wrlock(&store->handles);
    if (store->writer && atomic_load(&store->health) == LK_HEALTH_READY) {
        struct lk_moment moment = lk_clock_moment(&store->clock);
        enum lk_status status =
            lk_meta_put_bytes(store, "moment", &moment, sizeof(moment));
        lk_sqlite_close_reader(store);
        if (!status) {
            status = empty_log(store);
        }
        if (status) {
            lk_sqlite_log(store, LEVEL_WARN,
                          "the log of %s could not be emptied while stopping; "
                          "nothing is lost, the next start does it",
                          store->path);
        }
    }
    pthread_rwlock_unlock(&store->handles);
    free_sqlite(store);
}

static uint64_t size_of(const char *path, const char *suffix)
{
    char name[4096];
    struct stat info;

    snprintf(name, sizeof(name), "%s%s", path, suffix);
    return stat(name, &info) ? 0 : (uint64_t)info.st_size;
}

static void read_sqlite_stats(struct lk_store *base,
                              struct lk_store_stats *stats)
{
    struct lk_sqlite *store = (struct lk_sqlite *)base;
    struct lk_counters *counters = &store->counters;
    uint64_t hold = atomic_load(&store->hold_until_ms);

    *stats = (struct lk_store_stats){
        .file_bytes = size_of(store->path, "") + size_of(store->path, "-wal"),
        .free_bytes = atomic_load(&counters->free_bytes),
        .dead_rows = atomic_load(&counters->dead_rows),
        .batches = atomic_load(&counters->batches),
        .batch_ops = atomic_load(&counters->batch_ops),
        .syncs_failed = atomic_load(&counters->syncs_failed),
        .reopened = atomic_load(&counters->reopened),
        .checkpoints = atomic_load(&counters->checkpoints),
        .swept = atomic_load(&counters->swept),
        .reaped = atomic_load(&counters->reaped),
        .last_token = atomic_load(&store->last_token),
        .now_ms = lk_clock_now(&store->clock),
        .clock_held = atomic_load(&store->clock.held),
        .available = atomic_load(&store->health) == LK_HEALTH_READY,
    };
    stats->hold_until_ms = hold > stats->now_ms ? hold : 0;
    pthread_mutex_lock(&store->index_lock);
    stats->operations = store->index.count;
    stats->index_bytes = store->index.bytes;
    for (int i = 0; i < 6; i++) {
        stats->by_state[i] = store->index.by_state[i];
    }
    stats->oldest_operation_ms = lk_index_oldest(&store->index);
    stats->oldest_uncertain_ms = stats->oldest_operation_ms;
    lk_counts_show(&store->counts_durable, stats);
    pthread_mutex_unlock(&store->index_lock);
    pthread_mutex_lock(&store->failure_lock);
    memcpy(stats->failure, store->failure, sizeof(stats->failure));
    pthread_mutex_unlock(&store->failure_lock);
}

const struct lk_store_class lk_sqlite_class = {
    .scheme = "sqlite",
    .open = open_sqlite,
    .close = close_sqlite,
    .apply = lk_sqlite_apply,
    .peek = lk_sqlite_peek,
    .load = lk_sqlite_fetch,
    .lookup = lk_sqlite_lookup,
    .find = lk_sqlite_find,
    .list = lk_sqlite_list,
    .audit = lk_sqlite_audit,
    .jobs = lk_sqlite_jobs,
    .job = lk_sqlite_job,
    .targets = lk_sqlite_targets,
    .verify = lk_sqlite_verify,
    .backup = lk_sqlite_backup,
    .note = lk_sqlite_note,
    .accept_clock = lk_sqlite_accept_clock,
    .stats = read_sqlite_stats,
    .describe = lk_sqlite_describe,
    .import = lk_sqlite_import,
    .import_audit = lk_sqlite_import_audit,
    .adopt = lk_sqlite_adopt,
};
