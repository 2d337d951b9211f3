/* signature.c - who changes something by hand, and why. */
#include "daemon/args.h"

#include <string.h>

static bool sign(struct lk_conn *conn, struct lk_signature *signature,
                 struct lk_op *op)
{
    struct lk_slice user = latchkey_slice(conn->user);
    struct lk_slice who = signature->who;

    op->why = signature->why;
    op->who = who;
    if (!user.data || !who.data || user.len == 0 ||
        latchkey_slice_equal(user, who)) {
        return true;
    }
    if (user.len + 1 + who.len > LK_WHO_MAX) {
        lk_conn_error(conn,
                      "ERR %s: WHO must be at most %zu bytes long, not %zu",
                      conn->command->name, LK_WHO_MAX - 1 - user.len, who.len);
        return false;
    }
    memcpy(signature->text, user.data, user.len);
    signature->text[user.len] = '/';
    memcpy(signature->text + user.len + 1, who.data, who.len);
    op->who = (struct lk_slice){signature->text, user.len + 1 + who.len};
    return true;
}

bool lk_arg_signed(struct lk_conn *conn, const struct lk_slice *argv,
                   size_t argc, size_t from, struct lk_option *options,
                   size_t count, struct lk_signature *signature,
                   struct lk_op *op)
{
    return lk_arg_options(conn, argv, argc, from, options, count) &&
           lk_arg_needs(conn, &options[0]) && lk_arg_needs(conn, &options[1]) &&
           sign(conn, signature, op);
}

bool lk_arg_signature(struct lk_conn *conn, const struct lk_slice *argv,
                      size_t argc, size_t from, struct lk_signature *signature,
                      struct lk_op *op)
{
    struct lk_option options[] = {LK_SIGNATURE(signature)};

    return lk_arg_signed(conn, argv, argc, from, options, 2, signature, op);
}
