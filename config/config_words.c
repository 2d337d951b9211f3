/* config_words.c - the words of log levels and roles, and quoted text, for
 * settings, logs and messages. */
#include "config/config_words.h"

#include <string.h>

static const char *const level_words[] = {
#define X(name, word) word,
    LK_LOG_LEVEL_MAP(X)
#undef X
};

static const char *const role_words[] = {
#define X(name, word) word,
    LK_ROLE_MAP(X)
#undef X
};

#define COUNT(words) (sizeof(words) / sizeof((words)[0]))

/* The index of the word in the list; `count`: it is not in there. */
static size_t find_mapped_word(const char *const *words, size_t count,
                               struct lk_slice word)
{
    size_t i = 0;

    while (i < count && !latchkey_slice_equal(word, latchkey_slice(words[i]))) {
        i++;
    }
    return i;
}

const char *lk_log_level_word(enum lk_log_level level)
{
    return level < COUNT(level_words) ? level_words[level] : "unknown";
}

const char *lk_role_word(enum lk_role role)
{
    return role < COUNT(role_words) ? role_words[role] : "unknown";
}

bool lk_log_level_parse(struct lk_slice word, enum lk_log_level *level)
{
    size_t found = find_mapped_word(level_words, COUNT(level_words), word);

    if (found == COUNT(level_words)) {
        return false;
    }
    *level = (enum lk_log_level)found;
    return true;
}

bool lk_role_parse(struct lk_slice word, enum lk_role *role)
{
    size_t found = find_mapped_word(role_words, COUNT(role_words), word);

    if (found == COUNT(role_words)) {
        return false;
    }
    *role = (enum lk_role)found;
    return true;
}

/* The escape of one byte, 1 to 4 characters; returns their number. Only
 * printable ASCII stays as it is, so that a log line is always one line. */
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

/*
 * Writes `text` in quotes and escaped into `buf`, and returns it. What does not
 * fit is cut between two characters and ends in "...". `fits` is the last place
 * from which "...", the quote and a NUL still fit.
 */
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
