/*
 * args.c - checks of command arguments and options.
 *
 * Loop thread. Nothing is copied: the slices that are returned point into the
 * words of the command and live as long as these.
 */
#include "daemon/args.h"
#include "lib/number.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

/* Bytes of an argument that an error shows; and a token, which a double of JSON
 * has to hold exactly. */
enum { SHOWN = 80, TOKEN_BITS = 53 };

bool lk_arg_is(struct lk_slice arg, const char *word)
{
    size_t len = strlen(word);

    return arg.len == len && !strncasecmp(arg.data, word, len);
}

void lk_arg_error(struct lk_conn *conn, const char *what, const char *wrong,
                  struct lk_slice arg)
{
    char shown[SHOWN];

    lk_conn_error(conn, "ERR %s: %s %s, not %s", conn->command->name, what,
                  wrong, lk_log_quote(arg, shown, sizeof(shown)));
}

bool lk_arg_bytes(struct lk_conn *conn, const char *what, struct lk_slice arg,
                  size_t min, size_t max)
{
    if (arg.len >= min && arg.len <= max) {
        return true;
    }
    lk_conn_error(conn, "ERR %s: %s must be %zu to %zu bytes long, not %zu",
                  conn->command->name, what, min, max, arg.len);
    return false;
}

static bool is_printable(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < 0x20 || text.data[i] > 0x7e) {
            return false;
        }
    }
    return true;
}

bool lk_arg_printable(struct lk_conn *conn, const char *what,
                      struct lk_slice arg)
{
    bool printable = is_printable(arg);

    if (!printable) {
        lk_arg_error(conn, what, "must be printable ASCII", arg);
    }
    return printable;
}

bool lk_arg_name(struct lk_conn *conn, const struct lk_slice *argv,
                 struct lk_name *name)
{
    *name = (struct lk_name){argv[1], argv[2], argv[3]};
    if (!lk_arg_bytes(conn, "tenant", name->tenant, 1, LK_TENANT_MAX) ||
        !lk_arg_bytes(conn, "scope", name->scope, 1, LK_SCOPE_MAX) ||
        !lk_arg_bytes(conn, "key", name->key, 1, LK_KEY_MAX)) {
        return false;
    }
    return lk_arg_printable(conn, "key", name->key);
}

/* Digits only, no leading zero. 19 digits always fit into 64 bits. */
static bool parse_number(struct lk_slice arg, uint64_t *number)
{
    bool padded = arg.len > 1 && arg.data[0] == '0';

    return !padded && arg.len <= 19 && lk_number_read(arg, UINT64_MAX, number);
}

bool lk_arg_number(struct lk_conn *conn, const char *what, struct lk_slice arg,
                   uint64_t min, uint64_t max, uint64_t *number)
{
    char shown[SHOWN];

    if (parse_number(arg, number) && *number >= min && *number <= max) {
        return true;
    }
    lk_conn_error(conn,
                  "ERR %s: %s must be a decimal number from %" PRIu64
                  " to %" PRIu64 ", not %s",
                  conn->command->name, what, min, max,
                  lk_log_quote(arg, shown, sizeof(shown)));
    return false;
}

bool lk_arg_token(struct lk_conn *conn, struct lk_slice arg, uint64_t *token)
{
    return lk_arg_number(conn, "token", arg, 0, (UINT64_C(1) << TOKEN_BITS) - 1,
                         token);
}

bool lk_arg_headers(struct lk_conn *conn, struct lk_slice arg,
                    lk_headers_check *fault_of)
{
    size_t line;
    const char *fault = fault_of(arg, &line);

    if (fault) {
        lk_conn_error(conn, "ERR %s: the headers %s (line %zu)",
                      conn->command->name, fault, line);
    }
    return !fault;
}

bool lk_arg_status(struct lk_conn *conn, struct lk_slice arg, unsigned *status)
{
    uint64_t number;

    if (!lk_arg_number(conn, "status", arg, LK_STATUS_MIN, LK_STATUS_MAX,
                       &number)) {
        return false;
    }
    *status = (unsigned)number;
    return true;
}

static struct lk_option *find_option(struct lk_option *options, size_t count,
                                     struct lk_slice word)
{
    for (size_t i = 0; i < count; i++) {
        if (lk_arg_is(word, options[i].word)) {
            return &options[i];
        }
    }
    return NULL;
}

/* Stores the value where the option points to. Bytes are stored before they are
 * checked; after a failure the command ends and no one reads them. */
static bool read_value(struct lk_conn *conn, struct lk_option *option,
                       struct lk_slice value)
{
    if (option->kind == LK_OPTION_NUMBER) {
        return lk_arg_number(conn, option->word, value, option->min,
                             option->max, option->to.number);
    }
    *option->to.bytes = value;
    return lk_arg_bytes(conn, option->word, value, option->min, option->max);
}

/* An option that is not given leaves its variable as it was, so the caller sets
 * the default before. */
bool lk_arg_options(struct lk_conn *conn, const struct lk_slice *argv,
                    size_t argc, size_t from, struct lk_option *options,
                    size_t count)
{
    const char *command = conn->command->name;

    for (size_t i = from; i < argc; i++) {
        struct lk_option *option = find_option(options, count, argv[i]);
        if (!option) {
            char shown[SHOWN];
            lk_conn_error(conn, "ERR %s: there is no option %s", command,
                          lk_log_quote(argv[i], shown, sizeof(shown)));
            return false;
        }
        if (option->given) {
            lk_conn_error(conn, "ERR %s: option %s is given twice", command,
                          option->word);
            return false;
        }
        option->given = true;
        if (option->kind == LK_OPTION_FLAG) {
            *option->to.flag = true;
            continue;
        }
        if (++i == argc) {
            lk_conn_error(conn, "ERR %s: option %s has no value", command,
                          option->word);
            return false;
        }
        if (!read_value(conn, option, argv[i])) {
            return false;
        }
    }
    return true;
}

bool lk_arg_role(struct lk_conn *conn, const char *what, enum lk_role role)
{
    bool has = lk_conn_has_role(conn, role);

    if (!has) {
        lk_conn_error(conn, LK_NOPERM, what, lk_role_word(role));
    }
    return has;
}

bool lk_arg_needs(struct lk_conn *conn, const struct lk_option *option)
{
    if (!option->given) {
        lk_conn_error(conn, "ERR %s: %s is missing", conn->command->name,
                      option->word);
    }
    return option->given;
}

/* For commands about jobs and targets; the store must be open. */
bool lk_arg_keeps_jobs(struct lk_conn *conn)
{
    bool keeps = conn->server->store->class->jobs != NULL;

    if (!keeps) {
        lk_conn_error(conn, "ERR a Redis store keeps no jobs: use the "
                            "embedded store or PostgreSQL");
    }
    return keeps;
}

/* Empty is fine: any target. The target of accepted requests has a name that
 * lk_target_name_fault refuses for every other target. */
bool lk_arg_target(struct lk_conn *conn, struct lk_slice name)
{
    const char *fault = lk_target_name_fault(name);

    if (!name.len || !fault ||
        latchkey_slice_equal(name, LK_SLICE(LK_TARGET_GATEWAY))) {
        return true;
    }
    lk_arg_error(conn, "the target's name", fault, name);
    return false;
}
