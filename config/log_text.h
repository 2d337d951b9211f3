/* log_text.h - levels by their words, and text from outside in quotes. */
#ifndef LK_LOG_TEXT_H
#define LK_LOG_TEXT_H

#include "latchkey.h"

/* The second column is the word in the configuration and in the log. */
#define LK_LOG_LEVEL_MAP(X)                                                    \
    X(ERROR, "error") /* something is lost or refused until somebody acts */   \
    X(WARN, "warn")   /* works, but somebody should look */                    \
    X(INFO, "info")   /* starts, stops, reloads */                             \
    X(DEBUG, "debug") /* connections and commands */

enum lk_log_level {
#define X(name, word) LK_LOG_##name,
    LK_LOG_LEVEL_MAP(X)
#undef X
};

const char *lk_log_level_word(enum lk_log_level level);
bool lk_log_level_parse(struct lk_slice word, enum lk_log_level *level);

/*
 * Writes `text` to `buf` in double quotes, with quotes, backslashes and all
 * that is not printable ASCII escaped; what does not fit is cut, shown by
 * "..." before the closing quote. `size` is at least 8. Returns `buf`.
 */
#define LK_LOG_QUOTED 256
const char *lk_log_quote(struct lk_slice text, char *buf, size_t size);

#endif
