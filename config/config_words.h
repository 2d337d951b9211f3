/*
 * config_words.h - words that settings, logs and messages share: log levels,
 * roles, and text from outside in quotes.
 */
#ifndef LK_CONFIG_WORDS_H
#define LK_CONFIG_WORDS_H

#include "latchkey.h"

/* The second column is the word in the configuration and in the log. */
#define LK_LOG_LEVEL_MAP(X)                                                    \
    X(ERROR, "error") /* something is lost or refused until a person acts */   \
    X(WARN, "warn")   /* works, but a person should look at it */              \
    X(INFO, "info")   /* starts, stops, reloads */                             \
    X(DEBUG, "debug") /* connections and commands */

enum lk_log_level {
#define X(name, word) LK_LOG_##name,
    LK_LOG_LEVEL_MAP(X)
#undef X
};

/* The second column is the word in the configuration and in replies. */
#define LK_ROLE_MAP(X)                                                         \
    X(NONE, "none")       /* may send HELLO, AUTH, PING and QUIT */            \
    X(USE, "use")         /* data commands */                                  \
    X(READ, "read")       /* operator commands that change nothing */          \
    X(OPERATE, "operate") /* all operator commands */

enum lk_role {
#define X(name, word) LK_ROLE_##name,
    LK_ROLE_MAP(X)
#undef X
};

const char *lk_log_level_word(enum lk_log_level level);
const char *lk_role_word(enum lk_role role);
/* False: it is not one of the words, and the result is unchanged. */
bool lk_log_level_parse(struct lk_slice word, enum lk_log_level *level);
bool lk_role_parse(struct lk_slice word, enum lk_role *role);

/*
 * Writes `text` to `buf` in double quotes. Quotes, backslashes and everything
 * that is not printable ASCII are escaped; what does not fit is cut, with "..."
 * in front of the closing quote. `size` is at least 8. Returns `buf`.
 */
#define LK_LOG_QUOTED 256
const char *lk_log_quote(struct lk_slice text, char *buf, size_t size);

#endif
