/* log.c - writes the daemon's log, one write(2) a line. */
#include "daemon/log.h"
#include "lib/time.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Any thread logs, and a reload changes the level in between; no order is
 * needed. */
static atomic_int threshold = LK_LOG_INFO;
static pthread_once_t journal_once = PTHREAD_ONCE_INIT;
static bool journal;

void lk_log_set_level(enum lk_log_level level)
{
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

bool lk_log_enabled(enum lk_log_level level)
{
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

/*
 * The variable alone is not enough: a child whose standard error was sent
 * elsewhere inherits it too.
 */
static void detect_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat st;
    char here[64];

    if (!stream || fstat(STDERR_FILENO, &st) != 0) {
        return;
    }
    snprintf(here, sizeof(here), "%ju:%ju", (uintmax_t)st.st_dev,
             (uintmax_t)st.st_ino);
    journal = strcmp(stream, here) == 0;
}

/* The journal has its own clock, and reads the urgency from "<6>". */
static size_t write_prefix(char *line, size_t size, enum lk_log_level level)
{
    static const char priorities[] = {'3', '4', '6', '7'};
    struct timespec now;
    struct tm tm;
    int len;

    if (journal) {
        len = snprintf(line, size, "<%c>", priorities[level]);
    } else {
        now = lk_wall_after_ms(0);
        gmtime_r(&now.tv_sec, &tm);
        len = snprintf(line, size, "time=%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ ",
                       tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
                       tm.tm_min, tm.tm_sec, now.tv_nsec / 1000000);
    }
    return (size_t)len;
}

/* A control character in a value could forge a second line, or drive a
 * terminal. */
static void clean_line(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            text[i] = '?';
        }
    }
}

/* One write(2) for a line, so that lines of several threads do not mix. A line
 * that is too long ends in "...". */
void lk_log(enum lk_log_level level, const char *event, const char *format, ...)
{
    char line[LK_LOG_LINE];
    size_t room = sizeof(line) - 1; /* the newline */
    size_t len;
    va_list args;

    if (!lk_log_enabled(level)) {
        return;
    }
    pthread_once(&journal_once, detect_journal);
    len = write_prefix(line, room, level);
    len +=
        (size_t)snprintf(line + len, room - len, "level=%s event=%.64s%s",
                         lk_log_level_word(level), event, *format ? " " : "");
    va_start(args, format);
    len += (size_t)vsnprintf(line + len, room - len, format, args);
    va_end(args);
    if (len >= room) {
        len = room - 1;
        memcpy(line + len - 3, "...", 3);
    }
    clean_line(line, len);
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0) {
        return; /* there is nowhere left to say so */
    }
}
