/* fault.c - fault points and a failing SQLite VFS, in FAULTS=1 builds only. */
#ifdef LK_FAULTS

#include "store/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- The fault file --------------------------------------------------- */

enum { FAULT_TEXT = 8192, FAULT_LINE = 200, FAULT_RULES = 64, FAULT_WORDS = 8 };

enum act { ACT_KILL, ACT_STOP, ACT_DELAY, ACT_HOLD, ACT_FAIL };
enum call { CALL_WRITE, CALL_SYNC, CALL_TRUNCATE, CALL_OPEN };
enum target { TARGET_OTHER, TARGET_DB, TARGET_WAL, TARGET_ANY };

struct rule {
    char line[FAULT_LINE]; /* as written: the same line keeps its count */
    enum act act;
    char point[64];
    uint64_t number; /* kill, stop: which time; delay: milliseconds */
    enum call call;
    enum target target;
    int error;
    uint64_t after;
    uint64_t count;
    uint64_t seen;
};

/* All of it under the lock. */
static struct {
    pthread_mutex_t lock;
    char text[FAULT_TEXT];
    size_t len;
    struct rule rules[FAULT_RULES];
    size_t rule_count;
    int64_t wall_offset_ms;
    char boot_id[FAULT_LINE];
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A line that is not understood would make a test pass for no reason. */
static void refuse_line(const char *line)
{
    fprintf(stderr, "fault file: not understood: %s\n", line);
    abort();
}

static uint64_t read_number(const char *word, const char *line)
{
    char *end = NULL;
    errno = 0;
    uint64_t number = word ? strtoull(word, &end, 10) : 0;

    if (!word || end == word || *end || errno) {
        refuse_line(line);
    }
    return number;
}

static int find_word(const char *word, const char *const *words, int count)
{
    for (int i = 0; word && i < count; i++) {
        if (!strcmp(word, words[i])) {
            return i;
        }
    }
    return -1;
}

/* fail CALL ERRNO [db|wal|any] [after N] [count M|forever] */
static void parse_fail(struct rule *rule, char **words, size_t count)
{
    static const char *const calls[] = {"write", "sync", "truncate", "open"};
    static const char *const targets[] = {"", "db", "wal", "any"};
    static const char *const errors[] = {"EIO", "ENOSPC"};
    int call = count > 1 ? find_word(words[1], calls, 4) : -1;
    int error = count > 2 ? find_word(words[2], errors, 2) : -1;

    if (call < 0 || error < 0) {
        refuse_line(rule->line);
    }
    rule->act = ACT_FAIL;
    rule->call = (enum call)call;
    rule->error = error ? ENOSPC : EIO;
    rule->target = TARGET_ANY;
    rule->count = 1;
    for (size_t i = 3; i < count; i++) {
        const char *value = i + 1 < count ? words[i + 1] : NULL;
        int target = find_word(words[i], targets, 4);
        if (target > 0) {
            rule->target = (enum target)target;
        } else if (!strcmp(words[i], "after")) {
            rule->after = read_number(value, rule->line);
            i++;
        } else if (!strcmp(words[i], "count")) {
            rule->count = read_number(value, rule->line);
            i++;
        } else if (!strcmp(words[i], "forever")) {
            rule->count = UINT64_MAX;
        } else {
            refuse_line(rule->line);
        }
    }
}

/* kill POINT [N], stop POINT [N], delay POINT MS, hold POINT */
static void parse_point(struct rule *rule, enum act act, char **words,
                        size_t count)
{
    bool needs_number = act == ACT_DELAY;

    if (count < (needs_number ? 3 : 2) || count > (act == ACT_HOLD ? 2 : 3)) {
        refuse_line(rule->line);
    }
    rule->act = act;
    snprintf(rule->point, sizeof(rule->point), "%s", words[1]);
    rule->number = count == 3 ? read_number(words[2], rule->line) : 1;
}

static size_t split_words(char *line, char **words)
{
    size_t count = 0;
    char *rest = NULL;

    for (char *word = strtok_r(line, " \t\r", &rest);
         word && count < FAULT_WORDS; word = strtok_r(NULL, " \t\r", &rest)) {
        words[count++] = word;
    }
    return count;
}

static uint64_t count_so_far(const struct rule *rules, size_t count,
                             const char *line)
{
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(rules[i].line, line)) {
            return rules[i].seen;
        }
    }
    return 0;
}

static void parse_line(char *line, const struct rule *before, size_t count)
{
    static const char *const acts[] = {"kill", "stop", "delay", "hold", "fail"};
    char *words[FAULT_WORDS];
    struct rule rule = {0};

    snprintf(rule.line, sizeof(rule.line), "%s", line);
    size_t found = split_words(line, words);
    if (!found || words[0][0] == '#') {
        return;
    }
    if (found == 2 && !strcmp(words[0], "wall")) {
        bool back = words[1][0] == '-';
        bool sign = back || words[1][0] == '+';
        int64_t ms = (int64_t)read_number(words[1] + sign, rule.line);
        faults.wall_offset_ms = back ? -ms : ms;
        return;
    }
    if (found == 2 && !strcmp(words[0], "boot")) {
        snprintf(faults.boot_id, sizeof(faults.boot_id), "%s", words[1]);
        return;
    }
    int act = find_word(words[0], acts, 5);
    if (act < 0 || faults.rule_count == FAULT_RULES) {
        refuse_line(rule.line);
    } else if (act == ACT_FAIL) {
        parse_fail(&rule, words, found);
    } else {
        parse_point(&rule, (enum act)act, words, found);
    }
    rule.seen = count_so_far(before, count, rule.line);
    faults.rules[faults.rule_count++] = rule;
}

static void parse_text(void)
{
    static struct rule before[FAULT_RULES];
    static char copy[FAULT_TEXT + 1];
    size_t count = faults.rule_count;
    char *rest = NULL;

    memcpy(before, faults.rules, count * sizeof(*before));
    memcpy(copy, faults.text, faults.len);
    copy[faults.len] = '\0';
    faults.rule_count = 0;
    faults.wall_offset_ms = 0;
    faults.boot_id[0] = '\0';
    for (char *line = strtok_r(copy, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest)) {
        parse_line(line, before, count);
    }
}

/* Reads the file again each time: a test build need not be fast. A file that
 * is not there says nothing. */
static void refresh(void)
{
    char text[FAULT_TEXT];
    const char *path = getenv("LATCHKEY_FAULT_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof(text));

    if (fd >= 0) {
        close(fd);
    }
    if (len < 0) {
        len = 0;
    }
    if ((size_t)len != faults.len || memcmp(text, faults.text, faults.len)) {
        memcpy(faults.text, text, (size_t)len);
        faults.len = (size_t)len;
        parse_text();
    }
}

/* Without a file no lock is taken: it would hide races from a sanitizer. */
static bool has_file(void)
{
    return getenv("LATCHKEY_FAULT_FILE") != NULL;
}

/* ---- Points ----------------------------------------------------------- */

static void sleep_ms(uint64_t ms)
{
    struct timespec pause = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};

    nanosleep(&pause, NULL);
}

static bool is_held(const char *name)
{
    bool held = false;

    pthread_mutex_lock(&faults.lock);
    refresh();
    for (size_t i = 0; i < faults.rule_count && !held; i++) {
        held = faults.rules[i].act == ACT_HOLD &&
               !strcmp(faults.rules[i].point, name);
    }
    pthread_mutex_unlock(&faults.lock);
    return held;
}

void lk_fault_point(const char *name)
{
    uint64_t delay_ms = 0;
    int deadly = 0;
    bool held = false;

    if (!has_file()) {
        return;
    }
    pthread_mutex_lock(&faults.lock);
    refresh();
    for (size_t i = 0; i < faults.rule_count; i++) {
        struct rule *rule = &faults.rules[i];
        if (rule->act == ACT_FAIL || strcmp(rule->point, name)) {
            continue;
        }
        rule->seen++;
        if (rule->act == ACT_DELAY) {
            delay_ms += rule->number;
        } else if (rule->act == ACT_HOLD) {
            held = true;
        } else if (rule->seen == rule->number) {
            deadly = rule->act == ACT_KILL ? SIGKILL : SIGSTOP;
        }
    }
    pthread_mutex_unlock(&faults.lock);
    if (deadly) {
        raise(deadly); /* this very thread goes no further */
    }
    if (delay_ms) {
        sleep_ms(delay_ms);
    }
    while (held) {
        sleep_ms(2);
        held = is_held(name);
    }
}

int64_t lk_fault_wall_offset_ms(void)
{
    if (!has_file()) {
        return 0;
    }
    pthread_mutex_lock(&faults.lock);
    refresh();
    int64_t offset = faults.wall_offset_ms;
    pthread_mutex_unlock(&faults.lock);
    return offset;
}

/* Valid until the same thread asks again. */
const char *lk_fault_boot_id(void)
{
    static _Thread_local char boot_id[FAULT_LINE];

    if (!has_file()) {
        return NULL;
    }
    pthread_mutex_lock(&faults.lock);
    refresh();
    memcpy(boot_id, faults.boot_id, sizeof(boot_id));
    pthread_mutex_unlock(&faults.lock);
    return boot_id[0] ? boot_id : NULL;
}

/* The errno that this call is to fail with; 0: none. */
static int planned_failure(enum call call, enum target target)
{
    int error = 0;

    pthread_mutex_lock(&faults.lock);
    refresh();
    for (size_t i = 0; i < faults.rule_count; i++) {
        struct rule *rule = &faults.rules[i];
        if (rule->act != ACT_FAIL || rule->call != call ||
            (rule->target != TARGET_ANY && rule->target != target)) {
            continue;
        }
        rule->seen++;
        if (!error && rule->seen > rule->after &&
            rule->seen - rule->after <= rule->count) {
            error = rule->error;
        }
    }
    pthread_mutex_unlock(&faults.lock);
    return error;
}

/* ---- The VFS: the default one, with failures -------------------------- */

struct fault_file {
    sqlite3_file base;
    enum target target;
    sqlite3_file *real; /* behind this struct, in the same memory */
};

static sqlite3_vfs *real_vfs;

static sqlite3_file *real_of(sqlite3_file *file)
{
    return ((struct fault_file *)file)->real;
}

static enum target target_of(sqlite3_file *file)
{
    return ((struct fault_file *)file)->target;
}

static int fault_close(sqlite3_file *file)
{
    return real_of(file)->pMethods->xClose(real_of(file));
}

static int fault_read(sqlite3_file *file, void *data, int len, sqlite3_int64 at)
{
    return real_of(file)->pMethods->xRead(real_of(file), data, len, at);
}

static int fault_write(sqlite3_file *file, const void *data, int len,
                       sqlite3_int64 at)
{
    if (target_of(file) == TARGET_DB) {
        lk_fault_point("in_checkpoint");
    }
    int error = planned_failure(CALL_WRITE, target_of(file));
    if (error) {
        return error == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
    }
    return real_of(file)->pMethods->xWrite(real_of(file), data, len, at);
}

static int fault_truncate(sqlite3_file *file, sqlite3_int64 size)
{
    if (planned_failure(CALL_TRUNCATE, target_of(file))) {
        return SQLITE_IOERR_TRUNCATE;
    }
    return real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int fault_sync(sqlite3_file *file, int flags)
{
    enum target target = target_of(file);

    if (target == TARGET_WAL) {
        lk_fault_point("before_sync");
    } else if (target == TARGET_DB) {
        lk_fault_point("in_checkpoint_sync");
    }
    if (planned_failure(CALL_SYNC, target)) {
        return SQLITE_IOERR_FSYNC;
    }
    int result = real_of(file)->pMethods->xSync(real_of(file), flags);
    if (target == TARGET_WAL) {
        lk_fault_point("after_sync");
    }
    return result;
}

static int fault_size(sqlite3_file *file, sqlite3_int64 *size)
{
    return real_of(file)->pMethods->xFileSize(real_of(file), size);
}

static int fault_lock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xLock(real_of(file), level);
}

static int fault_unlock(sqlite3_file *file, int level)
{
    return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

static int fault_reserved(sqlite3_file *file, int *result)
{
    return real_of(file)->pMethods->xCheckReservedLock(real_of(file), result);
}

static int fault_control(sqlite3_file *file, int op, void *arg)
{
    return real_of(file)->pMethods->xFileControl(real_of(file), op, arg);
}

static int fault_sector_size(sqlite3_file *file)
{
    return real_of(file)->pMethods->xSectorSize(real_of(file));
}

static int fault_characteristics(sqlite3_file *file)
{
    return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static int fault_shm_map(sqlite3_file *file, int page, int size, int extend,
                         void volatile **memory)
{
    return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend,
                                            memory);
}

static int fault_shm_lock(sqlite3_file *file, int offset, int count, int flags)
{
    return real_of(file)->pMethods->xShmLock(real_of(file), offset, count,
                                             flags);
}

static void fault_shm_barrier(sqlite3_file *file)
{
    real_of(file)->pMethods->xShmBarrier(real_of(file));
}

static int fault_shm_unmap(sqlite3_file *file, int remove)
{
    return real_of(file)->pMethods->xShmUnmap(real_of(file), remove);
}

static int fault_fetch(sqlite3_file *file, sqlite3_int64 at, int len,
                       void **memory)
{
    return real_of(file)->pMethods->xFetch(real_of(file), at, len, memory);
}

static int fault_unfetch(sqlite3_file *file, sqlite3_int64 at, void *memory)
{
    return real_of(file)->pMethods->xUnfetch(real_of(file), at, memory);
}

static const sqlite3_io_methods fault_methods = {
    .iVersion = 3,
    .xClose = fault_close,
    .xRead = fault_read,
    .xWrite = fault_write,
    .xTruncate = fault_truncate,
    .xSync = fault_sync,
    .xFileSize = fault_size,
    .xLock = fault_lock,
    .xUnlock = fault_unlock,
    .xCheckReservedLock = fault_reserved,
    .xFileControl = fault_control,
    .xSectorSize = fault_sector_size,
    .xDeviceCharacteristics = fault_characteristics,
    .xShmMap = fault_shm_map,
    .xShmLock = fault_shm_lock,
    .xShmBarrier = fault_shm_barrier,
    .xShmUnmap = fault_shm_unmap,
    .xFetch = fault_fetch,
    .xUnfetch = fault_unfetch,
};

static int fault_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *file,
                      int flags, int *out_flags)
{
    struct fault_file *ours = (struct fault_file *)file;

    memset(ours, 0, sizeof(*ours));
    ours->real = (sqlite3_file *)(ours + 1);
    if (flags & SQLITE_OPEN_MAIN_DB) {
        ours->target = TARGET_DB;
    } else if (flags & SQLITE_OPEN_WAL) {
        ours->target = TARGET_WAL;
    }
    if (planned_failure(CALL_OPEN, ours->target)) {
        return SQLITE_CANTOPEN;
    }
    int result = real_vfs->xOpen(real_vfs, name, ours->real, flags, out_flags);
    /* Without methods, SQLite does not close a file that did not open. */
    if (ours->real->pMethods) {
        ours->base.pMethods = &fault_methods;
    }
    return result;
}

static void register_vfs(void)
{
    static sqlite3_vfs vfs;

    sqlite3_initialize();
    real_vfs = sqlite3_vfs_find(NULL);
    vfs = *real_vfs;
    vfs.zName = "latchkey-fault";
    vfs.szOsFile = (int)sizeof(struct fault_file) + real_vfs->szOsFile;
    vfs.pNext = NULL;
    vfs.xOpen = fault_open;
    sqlite3_vfs_register(&vfs, 0);
}

const char *lk_fault_vfs(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (!has_file()) {
        return NULL;
    }
    pthread_once(&once, register_vfs);
    return "latchkey-fault";
}

#endif
