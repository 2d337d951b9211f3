/*
 * command_session.c - the commands that clients of the Redis protocol expect:
 * greeting, login, INFO, CLIENT, COMMAND and CONFIG GET.
 *
 * Everything here gets its reply on the loop thread at once (LK_PLACE_HERE): a
 * reply_ function writes it behind all earlier ones of its connection and never
 * waits for the store. Drivers and redis-cli send many of these commands by
 * themselves, so replies keep to what Redis 7 would send.
 */
#include "daemon/args.h"
#include "lib/siphash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The connection is closed after this many wrong passwords in a row. */
enum { WRONG_PASSWORDS = 10 };

static void reply_bulk(struct lk_conn *conn, struct lk_slice bytes)
{
    lk_conn_wrote(conn, lk_resp_bulk(lk_conn_out(conn), bytes));
}

LK_REPLY_HERE(ping)
{
    if (argc == 1) {
        lk_conn_simple(conn, "PONG");
    } else {
        reply_bulk(conn, argv[1]);
    }
}

LK_REPLY_HERE(echo)
{
    reply_bulk(conn, argv[1]);
}

LK_REPLY_HERE(select)
{
    if (lk_arg_is(argv[1], "0")) {
        lk_conn_simple(conn, "OK");
    } else {
        lk_conn_error(conn, "ERR SELECT: there is one database, 0");
    }
}

/* The connection stays open until the replies of all earlier commands
 * are sent. */
LK_REPLY_HERE(quit)
{
    lk_conn_simple(conn, "OK");
    conn->quit = true;
    lk_conn_stop_reading(conn);
}

/* Back to the state after connect: no login, RESP2, no name, no awaits. What a
 * unix socket's peer may do by its user stays. */
LK_REPLY_HERE(reset)
{
    lk_rights_login(conn, NULL, LK_ROLE_NONE);
    conn->proto = 2;
    conn->name[0] = '\0';
    lk_operation_forget_awaits(conn);
    lk_conn_simple(conn, "RESET");
}

/* ---- Who it is ----------------------------------------------------------- */

/* False after an error reply, or when it has to wait. The log does not get the
 * wrong password, nor a name that no user has: it may be a password in the
 * wrong place. */
static bool log_in(struct lk_conn *conn, struct lk_slice user,
                   struct lk_slice password)
{
    const struct lk_config *config = &conn->server->config;

    if (!lk_auth_check_turn(conn, user)) {
        return false;
    }
    enum lk_role role = lk_config_login(config, user, password);
    lk_auth_judged(conn, user, role != LK_ROLE_NONE);
    if (role == LK_ROLE_NONE) {
        lk_conn_error(conn,
                      "WRONGPASS invalid username-password pair or user is "
                      "disabled.");
        if (++conn->wrong_passwords >= WRONG_PASSWORDS) {
            conn->quit = true;
            lk_conn_stop_reading(conn);
        }
        return false;
    }
    char *name = user.len ? strndup(user.data, user.len) : NULL;
    if (user.len && !name) {
        lk_conn_error(conn, "ERR AUTH: out of memory");
        return false;
    }
    conn->wrong_passwords = 0;
    lk_rights_login(conn, name, role);
    return true;
}

/* AUTH with one word is for the password of [auth]; without such a password
 * there is nothing to check, and an error says so, as in Redis. */
LK_REPLY_HERE(auth)
{
    const struct lk_config *config = &conn->server->config;
    struct lk_slice user = argc == 3 ? argv[1] : (struct lk_slice){"", 0};

    if (argc == 2 && lk_config_initial_role(config) != LK_ROLE_NONE) {
        lk_conn_error(conn, "ERR AUTH: no password is set in the [auth] "
                            "section, none is needed");
        return;
    }
    if (log_in(conn, user, argv[argc - 1])) {
        lk_conn_simple(conn, "OK");
    }
}

/* False after an error reply; then the old name stays. An empty name is allowed
 * and removes it. */
static bool set_name(struct lk_conn *conn, struct lk_slice name)
{
    if (!lk_arg_bytes(conn, "name", name, 0, LK_CLIENT_NAME)) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        if (name.data[i] < '!' || name.data[i] > '~') {
            lk_arg_error(conn, "name",
                         "must be printable, without spaces or newlines", name);
            return false;
        }
    }
    memcpy(conn->name, name.data, name.len);
    conn->name[name.len] = '\0';
    return true;
}

/* The same for all daemons of one store, and for no other store; empty until
 * the store is open. */
static void name_store(const struct lk_store *store, char text[17])
{
    static const char what[] = "latchkey store";

    text[0] = '\0';
    if (store) {
        snprintf(text, 17, "%016" PRIx64,
                 lk_siphash64(store->reference_secret, what, sizeof what - 1));
    }
}

/* Writes the reply of HELLO. Its field "store" lets a client see
 * whether two daemons share one store. A connection that is greeted before the
 * store is open is marked `unnamed`. */
static enum lk_status write_hello(struct lk_conn *conn, struct lk_buf *out)
{
    char store[17];
    const char *const texts[][2] = {{"server", "latchkey"},
                                    {"version", LATCHKEY_VERSION},
                                    {"store", store},
                                    {"mode", "standalone"},
                                    {"role", "master"}};
    enum lk_status status = lk_resp_map(out, conn->proto, 8);

    name_store(conn->server->store, store);
    conn->unnamed = !conn->server->store;
    for (size_t i = 0; !status && i < 5; i++) {
        status = lk_resp_bulk(out, latchkey_slice(texts[i][0]));
        if (!status) {
            status = lk_resp_bulk(out, latchkey_slice(texts[i][1]));
        }
    }
    if (!status) {
        status = lk_resp_bulk(out, LK_SLICE("proto"));
    }
    if (!status) {
        status = lk_resp_integer(out, conn->proto);
    }
    if (!status) {
        status = lk_resp_bulk(out, LK_SLICE("id"));
    }
    if (!status) {
        status = lk_resp_integer(out, (int64_t)conn->id);
    }
    if (!status) {
        status = lk_resp_bulk(out, LK_SLICE("modules"));
    }
    return status ? status : lk_resp_array(out, 0);
}

/* The options of HELLO; nothing is changed before all of them are known. */
struct hello {
    uint8_t proto;
    bool with_auth;
    struct lk_slice user;
    struct lk_slice password;
    bool with_name;
    struct lk_slice name;
};

/* Reads the words of HELLO into `hello`. False after an error reply. */
static bool read_hello(struct lk_conn *conn, const struct lk_slice *argv,
                       size_t argc, struct hello *hello)
{
    if (argc > 1) {
        if (!lk_arg_is(argv[1], "2") && !lk_arg_is(argv[1], "3")) {
            lk_conn_error(conn, "NOPROTO unsupported protocol version");
            return false;
        }
        hello->proto = (uint8_t)(argv[1].data[0] - '0');
    }
    for (size_t i = 2; i < argc; i++) {
        if (lk_arg_is(argv[i], "AUTH") && i + 2 < argc) {
            hello->with_auth = true;
            hello->user = argv[i + 1];
            hello->password = argv[i + 2];
            i += 2;
        } else if (lk_arg_is(argv[i], "SETNAME") && i + 1 < argc) {
            hello->with_name = true;
            hello->name = argv[++i];
        } else {
            lk_conn_error(conn, "ERR HELLO: syntax is HELLO %s",
                          conn->command->usage);
            return false;
        }
    }
    return true;
}

/* The login comes first: a failed one leaves protocol and name as they were. */
LK_REPLY_HERE(hello)
{
    struct hello hello = {.proto = conn->proto};

    if (!read_hello(conn, argv, argc, &hello)) {
        return;
    }
    if (hello.with_auth && !log_in(conn, hello.user, hello.password)) {
        return;
    }
    if (!conn->roles) {
        lk_conn_error(conn,
                      "NOAUTH HELLO must be called with the client already "
                      "authenticated, otherwise the HELLO <proto> AUTH <user> "
                      "<pass> option can be used");
        return;
    }
    if (hello.with_name && !set_name(conn, hello.name)) {
        return;
    }
    conn->proto = hello.proto;
    lk_conn_wrote(conn, write_hello(conn, lk_conn_out(conn)));
}

/* ---- INFO and what redis-cli, redis-benchmark and drivers ask for -------- */

/* The whole text is made before the reply begins, since a bulk string starts
 * with its length. */
LK_REPLY_HERE(info)
{
    struct lk_buf text = {0};
    struct lk_slice section = argc > 1 ? argv[1] : (struct lk_slice){"", 0};
    enum lk_status status = lk_info_write(conn->server, section, &text);

    if (!status) {
        status = lk_resp_bulk(lk_conn_out(conn), latchkey_buf_slice(&text));
    }
    latchkey_buf_free(&text);
    lk_conn_wrote(conn, status);
}

/* "use,operate", or "none". */
static void write_roles(const struct lk_conn *conn, char text[32])
{
    const char *comma = "";

    snprintf(text, 32, "%s", conn->roles ? "" : lk_role_word(LK_ROLE_NONE));
    for (unsigned role = LK_ROLE_USE; role <= LK_ROLE_OPERATE; role++) {
        if (lk_conn_has_role(conn, role)) {
            size_t len = strlen(text);
            snprintf(text + len, 32 - len, "%s%s", comma, lk_role_word(role));
            comma = ",";
        }
    }
}

/* One line of CLIENT LIST for `conn`. Fields that Redis has too keep its names;
 * times are in seconds, qbuf, obl and tot-net-* in bytes. "waiting" counts
 * commands whose reply is not ready. */
static enum lk_status describe(const struct lk_conn *conn, uint64_t now_ms,
                               struct lk_buf *text)
{
    char user[LK_LOG_QUOTED];
    char peer[LK_PEER_TEXT] = "-";
    char roles[32];
    const char *command = conn->command ? conn->command->name : "-";
    int command_len = (int)strcspn(command, " "); /* one word, as in Redis */
    size_t waiting = 0;

    if (conn->peer.known) {
        lk_rights_peer_text(conn, peer);
    }
    for (const struct lk_task *task = conn->head; task; task = task->after) {
        waiting += !task->ready;
    }
    write_roles(conn, roles);
    return latchkey_buf_printf(
        text,
        "id=%" PRIu64 " addr=%s name=%s age=%" PRIu64 " idle=%" PRIu64
        " resp=%d user=%s qbuf=%zu obl=%zu cmd=%.*s peer=%s role=%s waiting=%zu"
        " tot-net-in=%" PRIu64 " tot-net-out=%" PRIu64 " tot-cmds=%" PRIu64
        "\n",
        conn->id, conn->address, conn->name,
        (now_ms - conn->connected_ms) / 1000, (now_ms - conn->active_ms) / 1000,
        conn->proto,
        conn->user
            ? lk_log_quote(latchkey_slice(conn->user), user, sizeof(user))
            : "default",
        conn->in.len - conn->in_start, conn->out.len + conn->writing.len,
        command_len, command, peer, roles, waiting, conn->bytes_in,
        conn->bytes_out, conn->commands);
}

/* Others' connections are shown to operators only. */
static void describe_clients(struct lk_conn *conn, bool all)
{
    struct lk_server *server = conn->server;
    uint64_t now = uv_now(&server->loop);
    struct lk_buf text = {0};
    enum lk_status status = LK_OK;

    if (all && (lk_conn_has_role(conn, LK_ROLE_READ) ||
                lk_conn_has_role(conn, LK_ROLE_OPERATE))) {
        for (struct lk_conn *at = server->conns; at && !status; at = at->next) {
            status = describe(at, now, &text);
        }
    } else {
        status = describe(conn, now, &text);
    }
    if (!status) {
        status = lk_resp_bulk(lk_conn_out(conn), latchkey_buf_slice(&text));
    }
    latchkey_buf_free(&text);
    lk_conn_wrote(conn, status);
}

/* Which connections; what is 0 or empty does not matter. */
struct kill {
    uint64_t id;
    struct lk_slice user;
    struct lk_slice address;
};

/* All conditions that are given must hold. USER matches both the user of AUTH
 * and the user at the other end of a unix socket. */
static bool is_to_kill(const struct lk_conn *conn, const struct kill *kill)
{
    struct lk_slice user =
        conn->user ? latchkey_slice(conn->user) : LK_SLICE("default");

    return !conn->closing && (!kill->id || kill->id == conn->id) &&
           (!kill->user.len || latchkey_slice_equal(kill->user, user) ||
            latchkey_slice_equal(kill->user,
                                 latchkey_slice(conn->peer_user))) &&
           (!kill->address.len ||
            latchkey_slice_equal(kill->address, latchkey_slice(conn->address)));
}

/* All but the one that asks, as in Redis. What a command of theirs has begun
 * counts, and gets no reply. */
static void kill_clients(struct lk_conn *conn, const struct kill *kill,
                         const struct lk_signature *signature)
{
    int64_t killed = 0;
    char peer[LK_PEER_TEXT];
    char about[LK_PEER_TEXT + 64];

    for (struct lk_conn *at = conn->server->conns; at; at = at->next) {
        if (at == conn || !is_to_kill(at, kill)) {
            continue;
        }
        lk_rights_peer_text(at, peer);
        snprintf(about, sizeof(about), "client=%" PRIu64 " client_peer=%s",
                 at->id, peer);
        lk_operator_log(signature, LK_SLICE("client kill"), about);
        lk_conn_close(at, "killed");
        killed++;
    }
    lk_conn_wrote(conn, lk_resp_integer(lk_conn_out(conn), killed));
}

/* At least one condition is required, so that a bare CLIENT KILL cannot close
 * every connection. */
LK_REPLY_HERE(client_kill)
{
    struct kill kill = {0};
    struct lk_signature signature = {0};
    struct lk_option options[] = {
        LK_SIGNATURE(&signature.who, &signature.why),
        LK_NUMBER("ID", 1, INT64_MAX, &kill.id),
        LK_BYTES("USER", 1, LK_WHO_MAX, &kill.user),
        LK_BYTES("ADDR", 1, LK_ADDRESS_TEXT, &kill.address),
    };

    if (!lk_arg_options(conn, argv, argc, 2, options, 5)) {
        return;
    }
    if (!kill.id && !kill.user.len && !kill.address.len) {
        lk_conn_error(conn, "ERR CLIENT KILL: it needs ID id, USER user or "
                            "ADDR address");
        return;
    }
    if (lk_arg_sign(conn, &signature)) {
        kill_clients(conn, &kill, &signature);
    }
}

/* SETINFO is accepted and ignored: drivers send it on every connection. */
LK_REPLY_HERE(client)
{
    struct lk_slice what = argv[1];

    if (lk_arg_is(what, "SETNAME") && argc == 3) {
        if (set_name(conn, argv[2])) {
            lk_conn_simple(conn, "OK");
        }
    } else if (lk_arg_is(what, "GETNAME") && argc == 2) {
        reply_bulk(conn, latchkey_slice(conn->name));
    } else if (lk_arg_is(what, "ID") && argc == 2) {
        lk_conn_wrote(conn,
                      lk_resp_integer(lk_conn_out(conn), (int64_t)conn->id));
    } else if (lk_arg_is(what, "SETINFO") && argc == 4) {
        lk_conn_simple(conn, "OK");
    } else if (lk_arg_is(what, "INFO") && argc == 2) {
        describe_clients(conn, false);
    } else if (lk_arg_is(what, "LIST") && argc == 2) {
        describe_clients(conn, true);
    } else {
        lk_conn_error(conn, "ERR CLIENT: syntax is CLIENT %s",
                      conn->command->usage);
    }
}

/* One element of COMMAND: name, arity (negative: at least that many words), no
 * flags and no keys. */
static enum lk_status write_command(struct lk_buf *out,
                                    const struct lk_command_word *word)
{
    enum lk_status status = lk_resp_array(out, 6);
    int arity =
        word->min_args == word->max_args ? word->min_args : -word->min_args;

    if (!status) {
        status = lk_resp_bulk(out, latchkey_slice(word->name));
    }
    if (!status) {
        status = lk_resp_integer(out, arity);
    }
    if (!status) {
        status = lk_resp_array(out, 0); /* flags; keys: first, last, step */
    }
    for (int i = 0; !status && i < 3; i++) {
        status = lk_resp_integer(out, 0);
    }
    return status;
}

/* COMMAND DOCS and other subcommands get an empty map. */
LK_REPLY_HERE(command)
{
    struct lk_buf *out = lk_conn_out(conn);
    size_t count = 0;
    enum lk_status status;

    while (lk_command_word(count)) {
        count++;
    }
    if (argc == 1) {
        status = lk_resp_array(out, count);
        for (size_t i = 0; !status && i < count; i++) {
            status = write_command(out, lk_command_word(i));
        }
    } else if (lk_arg_is(argv[1], "COUNT")) {
        status = lk_resp_integer(out, (int64_t)count);
    } else {
        status = lk_resp_map(out, conn->proto, 0);
    }
    lk_conn_wrote(conn, status);
}

/* redis-benchmark asks for the first three; the rest are our own settings. */
static bool find_setting(struct lk_conn *conn, struct lk_slice name,
                         struct lk_buf *value)
{
    static const char *const fixed[][2] = {{"save", ""},
                                           {"appendonly", "yes"},
                                           {"maxmemory", "0"},
                                           {"databases", "1"}};

    value->len = 0;
    for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        if (lk_arg_is(name, fixed[i][0])) {
            return latchkey_buf_add_text(value, fixed[i][1]) == LK_OK;
        }
    }
    return lk_config_get(&conn->server->config, name, value) == LK_OK;
}

/* Names that are not known are left out of the reply, as in Redis. A secret
 * counts as not known. */
LK_REPLY_HERE(config)
{
    struct lk_buf value = {0};
    struct lk_buf pairs = {0};
    enum lk_status status = LK_OK;
    size_t count = 0;

    if (!lk_arg_is(argv[1], "GET") || argc < 3) {
        lk_conn_error(conn, "ERR CONFIG: only CONFIG GET setting is known; "
                            "settings change in the file, by a reload");
        return;
    }
    for (size_t i = 2; i < argc && !status; i++) {
        if (find_setting(conn, argv[i], &value)) {
            count++;
            status = lk_resp_bulk(&pairs, argv[i]);
            if (!status) {
                status = lk_resp_bulk(&pairs, latchkey_buf_slice(&value));
            }
        }
    }
    if (!status) {
        struct lk_buf *out = lk_conn_out(conn);
        status = lk_resp_map(out, conn->proto, count);
        if (!status) {
            status = latchkey_buf_add_slice(out, latchkey_buf_slice(&pairs));
        }
    }
    latchkey_buf_free(&value);
    latchkey_buf_free(&pairs);
    lk_conn_wrote(conn, status);
}

/* ---- The table ----------------------------------------------------------- */

/* All are answered on the loop thread, at once. */
static const struct lk_command rows[] = {
    {.name = "PING",
     .min_args = 1,
     .max_args = 2,
     .roles = LK_FOR_ALL,
     .reply_here = reply_ping,
     .usage = "[message]"},
    {.name = "ECHO",
     .min_args = 2,
     .max_args = 2,
     .roles = LK_FOR_ALL,
     .reply_here = reply_echo,
     .usage = "message"},
    {.name = "HELLO",
     .min_args = 1,
     .max_args = 8,
     .roles = LK_FOR_EVERYONE,
     .reply_here = reply_hello,
     .usage = "[2|3 [AUTH user password] [SETNAME name]]"},
    {.name = "AUTH",
     .min_args = 2,
     .max_args = 3,
     .roles = LK_FOR_EVERYONE,
     .reply_here = reply_auth,
     .usage = "[user] password"},
    {.name = "SELECT",
     .min_args = 2,
     .max_args = 2,
     .roles = LK_FOR_ALL,
     .reply_here = reply_select,
     .usage = "0"},
    {.name = "QUIT",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_EVERYONE,
     .reply_here = reply_quit,
     .usage = ""},
    {.name = "RESET",
     .min_args = 1,
     .max_args = 1,
     .roles = LK_FOR_EVERYONE,
     .alone = true, /* it forgets what others may still add to */
     .reply_here = reply_reset,
     .usage = ""},
    {.name = "INFO",
     .min_args = 1,
     .max_args = LK_ARGS_MAX,
     .roles = LK_FOR_ALL,
     .reply_here = reply_info,
     .usage = "[section]"},
    {.name = "CLIENT KILL",
     .min_args = 3,
     .max_args = LK_ARGS_MAX,
     .roles = LK_FOR_OPERATE,
     .reply_here = reply_client_kill,
     .usage = "[ID id] [USER user] [ADDR address] [WHO who WHY why]"},
    {.name = "CLIENT",
     .min_args = 2,
     .max_args = LK_ARGS_MAX,
     .roles = LK_FOR_ALL,
     .reply_here = reply_client,
     .usage = "SETNAME name | GETNAME | ID | INFO | LIST | SETINFO name value"},
    {.name = "COMMAND",
     .min_args = 1,
     .max_args = LK_ARGS_MAX,
     .roles = LK_FOR_ALL,
     .reply_here = reply_command,
     .usage = "[COUNT | DOCS]"},
    {.name = "CONFIG",
     .min_args = 2,
     .max_args = LK_ARGS_MAX,
     .roles = LK_FOR_ALL,
     .reply_here = reply_config,
     .usage = "GET setting ..."},
};

LK_COMMAND_GROUP(lk_session_commands, rows);
