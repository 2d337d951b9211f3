/* log_text.c - the words of levels, and quoted text, for logs and messages. */
#include "config/log_text.h"

#include <string.h>

static const char *const level_words[] = {
#define X(name, word) word,
    LK_LOG_LEVEL_MAP(X)
#undef X
};

#define LEVEL_COUNT (sizeof(level_words) / sizeof(level_words[0]))

const char *lk_log_level_word(enum lk_log_level level)
{
    return (size_t)level < LEVEL_COUNT ? level_words[level] : "unknown";
}

bool lk_log_level_parse(struct lk_slice word, enum lk_log_level *level)
{
    for (size_t i = 0; i < LEVEL_COUNT; i++) {
        if (latchkey_slice_equal(word, latchkey_slice(level_words[i]))) {
            *level = (enum lk_log_level)i;
            return true;
        }
    }
    return false;
}

/* The escape of one byte, 1 to 4 characters; returns how many. */
static size_t escape_byte(unsigned char byte, char out[4])
{
    static const char digits[] = "0123456789abcdef";

    out[0] = '\\';
    switch (byte) {
    case '"':
    case '\\':
        out[1] = (char)byte;
        return 2;
    case '\n':
        out[1] = 'n';
        return 2;
    case '\r':
        out[1] = 'r';
        return 2;
    case '\t':
        out[1] = 't';
        return 2;
    default:
        break;
    }
    if (byte >= 0x20 && byte < 0x7f) {
        out[0] = (char)byte;
        return 1;
    }
    out[1] = 'x';
    out[2] = digits[byte >> 4];
    out[3] = digits[byte & 15];
    return 4;
}

const char *lk_log_quote(struct lk_slice text, char *buf, size_t size)
{
    size_t len = 0;
    size_t fits = 1; /* where "..." can still be put */

    buf[len++] = '"';
    for (size_t i = 0; i < text.len; i++) {
        char escaped[4];
        size_t more = escape_byte((unsigned char)text.data[i], escaped);

        /* The quote and the NUL must fit after it. */
        if (len + more + 2 > size) {
            memcpy(buf + fits, "...", 3);
            len = fits + 3;
            break;
        }
        memcpy(buf + len, escaped, more);
        len += more;
        if (len + 5 <= size) {
            fits = len;
        }
    }
    buf[len++] = '"';
    buf[len] = '\0';
    return buf;
}
