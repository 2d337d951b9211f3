/* args.h - checks of command arguments; each failure answers with an error. */
#ifndef LK_ARGS_H
#define LK_ARGS_H

#include "daemon/daemon.h"

/*
 * Every function returns false after it has answered the connection with an
 * error that names the command, the argument and what was wrong.
 */

/* argv[1..3] as tenant, scope and key. */
bool lk_arg_name(struct lk_conn *conn, const struct lk_slice *argv,
                 struct lk_name *name);
bool lk_arg_bytes(struct lk_conn *conn, const char *what, struct lk_slice arg,
                  size_t min, size_t max);
bool lk_arg_number(struct lk_conn *conn, const char *what, struct lk_slice arg,
                   uint64_t min, uint64_t max, uint64_t *number);
bool lk_arg_token(struct lk_conn *conn, struct lk_slice arg, uint64_t *token);
bool lk_arg_status(struct lk_conn *conn, struct lk_slice arg, unsigned *status);

enum lk_option_kind { LK_OPTION_FLAG, LK_OPTION_NUMBER, LK_OPTION_BYTES };

/* One option of a command; `min` and `max` bound a number or a length. */
struct lk_option {
    const char *word;
    enum lk_option_kind kind;
    uint64_t min;
    uint64_t max;
    union {
        bool *flag;
        uint64_t *number;
        struct lk_slice *bytes;
    } to;
    bool given;
};

#define LK_OPTION_OF(name, how, low, high, field, target)                      \
    {                                                                          \
        .word = (name), .kind = (how), .min = (low), .max = (high), .to = {    \
            .field = (target)                                                  \
        }                                                                      \
    }
#define LK_FLAG(name, target)                                                  \
    LK_OPTION_OF(name, LK_OPTION_FLAG, 0, 0, flag, target)
#define LK_NUMBER(name, low, high, target)                                     \
    LK_OPTION_OF(name, LK_OPTION_NUMBER, low, high, number, target)
#define LK_BYTES(name, low, high, target)                                      \
    LK_OPTION_OF(name, LK_OPTION_BYTES, low, high, bytes, target)

/* Options in any order and any case, from argv[from] on, each at most once. */
bool lk_arg_options(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc, size_t from, struct lk_option *options,
                    size_t count);
/* An option that must be there. */
bool lk_arg_needs(struct lk_conn *conn, const struct lk_option *option);

bool lk_arg_is(struct lk_slice arg, const char *word); /* in any case */
void lk_arg_error(struct lk_conn *conn, const char *what, const char *wrong,
                  struct lk_slice arg);

#endif
