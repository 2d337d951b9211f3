/* log.h - the daemon's log: one line per event, on standard error. */
#ifndef LK_LOG_H
#define LK_LOG_H

#include "config/config_words.h"

/* What is less urgent than `level` is not written. Any thread, any time. */
void lk_log_set_level(enum lk_log_level level);
/* For callers whose values are costly to compute. */
bool lk_log_enabled(enum lk_log_level level);

/*
 * Writes "time=... level=info event=listening address=..." with one write(2),
 * so that lines of several threads never mix. `event` is one word in
 * lower case with hyphens; `format` gives name=value pairs, or is "" for none.
 * Text from outside goes through lk_log_quote first; should a control
 * character come this far all the same, it is written as "?". A line is at
 * most LK_LOG_LINE bytes and ends in "..." if it was cut. Any thread.
 *
 *   char name[LK_LOG_QUOTED];
 *   lk_log(LK_LOG_WARN, "auth-failed", "user=%s", lk_log_quote(user, name,
 *          sizeof(name)));
 */
#define LK_LOG_LINE 2048
void lk_log(enum lk_log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
