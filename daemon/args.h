/* args.h - checks of command arguments; each failure sends an error. */
#ifndef LK_ARGS_H
#define LK_ARGS_H

#include "daemon/daemon.h"

/*
 * Every function returns false after it has sent an error that names the
 * command, the argument and what was wrong.
 */

/* argv[1..3] as tenant, scope and key. */
bool lk_arg_name(struct lk_conn *conn, const struct lk_slice *argv,
                 struct lk_name *name);
bool lk_arg_bytes(struct lk_conn *conn, const char *what, struct lk_slice arg,
                  size_t min, size_t max);
bool lk_arg_number(struct lk_conn *conn, const char *what, struct lk_slice arg,
                   uint64_t min, uint64_t max, uint64_t *number);
bool lk_arg_token(struct lk_conn *conn, struct lk_slice arg, uint64_t *token);
/* Printable ASCII alone. */
bool lk_arg_printable(struct lk_conn *conn, const char *what,
                      struct lk_slice arg);
bool lk_arg_status(struct lk_conn *conn, struct lk_slice arg, unsigned *status);
/* Sound for lk_headers_fault or lk_header_lines_fault? */
typedef const char *lk_headers_check(struct lk_slice headers, size_t *line);
bool lk_arg_headers(struct lk_conn *conn, struct lk_slice arg,
                    lk_headers_check *fault_of);

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

/* ---- Who and why: audit.c ------------------------------------------------ */

/* The first two options of a command that an operator signs. */
#define LK_SIGNATURE(who, why)                                                 \
    LK_BYTES("WHO", 1, LK_WHO_MAX, who), LK_BYTES("WHY", 1, LK_WHY_MAX, why)

/* Fills in `signature`, with who and why as they were given: the audit log
 * names the user of AUTH, and whom that user speaks for. */
bool lk_arg_sign(struct lk_conn *conn, struct lk_signature *signature);
/* The same for a task: sets task->signature. */
bool lk_arg_sign_task(struct lk_conn *conn, struct lk_task *task,
                      struct lk_slice who, struct lk_slice why);
/* Options that begin with those of LK_SIGNATURE, which must both be given. */
bool lk_arg_signed(struct lk_conn *conn, struct lk_task *task,
                   const struct lk_slice *argv, size_t argc, size_t from,
                   struct lk_option *options, size_t count);
/* WHO and WHY alone. */
bool lk_arg_signature(struct lk_conn *conn, struct lk_task *task,
                      const struct lk_slice *argv, size_t argc, size_t from);

/* What is refused, and the role that it needs. */
#define LK_NOPERM                                                              \
    "NOPERM %s needs the %s role: AUTH with a user of the [users] section, "   \
    "or connect through a unix socket as a user of the [peers] section"

/* Has the connection the role that `what` needs? */
bool lk_arg_role(struct lk_conn *conn, const char *what, enum lk_role role);

/* BODY, WHO and WHY, all of them or none: an operator asks for bodies. */
bool lk_arg_body_option(struct lk_conn *conn, struct lk_task *task,
                        const struct lk_slice *argv, size_t argc, size_t from);
/* Once WHO and WHY are read. `word` asks for the bodies. */
bool lk_arg_bodies(struct lk_conn *conn, struct lk_task *task, const char *word,
                   struct lk_slice who, struct lk_slice why);

/* A store that keeps no jobs is refused. */
bool lk_arg_keeps_jobs(struct lk_conn *conn);
/* A name that a target may have; empty: none is given. */
bool lk_arg_target(struct lk_conn *conn, struct lk_slice name);

bool lk_arg_is(struct lk_slice arg, const char *word); /* in any case */
void lk_arg_error(struct lk_conn *conn, const char *what, const char *wrong,
                  struct lk_slice arg);

#endif
