/*
 * connect.c - talks to the daemon, and says what to do when that fails.
 *
 * A command builds its words, calls lk_call() and reads fields of the reply;
 * every failure ends here in one sentence that names the cause and the cure,
 * and in an exit status. Functions named lk_complain_... print such a sentence
 * and return the status.
 *
 * If what is reached does not behave like latchkeyd, a second connection finds
 * out what it is (lk_stranger): a wrong port is the most common mistake.
 */
#include "cli/cli.h"
#include "lib/number.h"
#include "lib/socket.h"
#include "lib/time.h"

#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PROBE_MS = 2000, /* for a second connection, if it is not latchkeyd */
    TEXT_MAX = 512,
};

/* ---- Commands ------------------------------------------------------------ */

/* The bytes are not copied: they must live until the command is sent. */
void lk_words_add_slice(struct lk_words *words, struct lk_slice slice)
{
    assert(words->count < LK_WORDS_MAX);
    words->words[words->count++] = slice;
}

void lk_words_add(struct lk_words *words, const char *text)
{
    lk_words_add_slice(words, latchkey_slice(text));
}

/* Numbers are written into the struct itself, which
 * must stay where it is until it is sent. */
void lk_words_add_number(struct lk_words *words, uint64_t number)
{
    char *text = words->numbers[words->number_count++];

    assert(words->number_count <=
           sizeof(words->numbers) / sizeof(*words->numbers));
    snprintf(text, sizeof(*words->numbers), "%llu", (unsigned long long)number);
    lk_words_add(words, text);
}

void lk_words_add_text(struct lk_words *words, const char *option,
                       const char *value)
{
    if (value != NULL) {
        lk_words_add(words, option);
        lk_words_add(words, value);
    }
}

void lk_words_add_count(struct lk_words *words, const char *option,
                        uint64_t value)
{
    if (value != 0) {
        lk_words_add(words, option);
        lk_words_add_number(words, value);
    }
}

/* The first words of an error, up to a space or its end. */
static bool error_begins_with(struct lk_slice text, const char *word)
{
    size_t length = strlen(word);

    return text.len >= length && memcmp(text.data, word, length) == 0 &&
           (text.len == length || text.data[length] == ' ');
}

/* An error that latchkeyd does not give to commands that it knows. DENIED is
 * how a Redis in protected mode greets clients. */
static bool is_strange_error(struct lk_slice text)
{
    return error_begins_with(text, "ERR unknown command") ||
           error_begins_with(text, "DENIED");
}

/* ---- What is it, if not latchkeyd? --------------------------------------- */

/*
 * PostgreSQL closes a connection that does not begin with its own protocol, but
 * it replies to a request for TLS (SSLRequest, eight bytes) with one byte: S or
 * N.
 */
static bool answers_as_postgres(const char *address)
{
    static const char question[] = "\0\0\0\10\4\322\26\57";
    int64_t deadline = (int64_t)lk_monotonic_ms() + PROBE_MS;
    char why[TEXT_MAX];
    char reply = '\0';
    short happened;
    int fd;

    if (lk_socket_connect(address, PROBE_MS, &fd, why, sizeof(why)) != LK_OK) {
        return false;
    }
    if (send(fd, question, sizeof(question) - 1, MSG_NOSIGNAL) < 0 ||
        lk_socket_wait(fd, POLLIN, deadline, &happened) != LK_OK ||
        recv(fd, &reply, 1, MSG_DONTWAIT) != 1) {
        reply = '\0';
    }
    close(fd);
    return reply == 'S' || reply == 'N';
}

/* By the byte that the library names in its complaint. */
static const char *name_by_first_byte(const char *complaint)
{
    static const char opening[] = "the reply begins with \"";
    const char *at = strstr(complaint, opening);

    switch (at == NULL ? '\0' : at[sizeof(opening) - 1]) {
    case 'H':
    case '<':
        return "an HTTP server";
    case 'S':
        return "an SSH server";
    default:
        return "a server of another protocol";
    }
}

/*
 * What the server at this address is, if it is not latchkeyd; else NULL. Every
 * latchkeyd knows CLAIM, and says before anything else if it does not know a
 * command; without words CLAIM does nothing.
 */
const char *lk_stranger(const struct lk_cli *cli)
{
    struct lk_client_options where = {.address = cli->where.address,
                                      .connect_timeout_ms = PROBE_MS,
                                      .timeout_ms = PROBE_MS};
    struct lk_slice word = LK_SLICE("CLAIM");
    const struct lk_reply *reply = NULL;
    struct lk_client *client;
    const char *name = NULL;
    enum lk_status status = latchkey_client_open(&where, &client);

    if (status == LK_OK) {
        status = latchkey_client_call(client, &word, 1, 0, &reply);
    }
    if (status == LK_OK && reply->type == LK_REPLY_ERROR &&
        is_strange_error(reply->text)) {
        name = "a Redis";
    } else if (status == LK_MALFORMED) {
        name = name_by_first_byte(latchkey_client_error(client));
    } else if (status == LK_CLOSED && answers_as_postgres(cli->where.address)) {
        name = "a PostgreSQL";
    }
    latchkey_client_close(client);
    return name;
}

/* True: it has complained. */
static bool complain_stranger(const struct lk_cli *cli)
{
    const char *name = lk_stranger(cli);

    if (name != NULL) {
        lk_complain("%s at %s is not latchkeyd: name latchkeyd's own address "
                    "with --server, LATCHKEY_SERVER or in a profile",
                    name, cli->where.address);
    }
    return name != NULL;
}

/* ---- Failures ------------------------------------------------------------ */

/* What is missing: a user at all, the role, or the right password. */
static enum lk_exit complain_denied(const struct lk_cli *cli, const char *text)
{
    int length = (int)strlen(text);
    bool role = error_begins_with(latchkey_slice(text), "NOPERM");

    if (!role && complain_stranger(cli)) {
        return LK_EXIT_UNREACHABLE;
    }
    length -= length > 0 && text[length - 1] == '.';
    if (role && cli->where.user != NULL) {
        lk_complain("not allowed: %.*s; user \"%s\" has another role; name "
                    "another with --user",
                    length, text, cli->where.user);
    } else {
        bool local = strncmp(cli->where.address, "unix:", 5) == 0;

        lk_complain("not allowed: %.*s; %s%s", length, text,
                    role && local && geteuid() != 0 ? "use sudo, or " : "",
                    role || cli->where.password == NULL
                        ? "name a user with --user and --password-file"
                        : "is this the right --user and password?");
    }
    return LK_EXIT_DENIED;
}

/* A command that every latchkeyd of this version knows. */
static enum lk_exit complain_unknown_command(const struct lk_cli *cli,
                                             const char *text)
{
    if (complain_stranger(cli)) {
        return LK_EXIT_UNREACHABLE;
    }
    lk_complain("latchkeyd refused: %s; is it older than this tool, "
                "latchkey " LATCHKEY_VERSION "? Restart it with the same "
                "version",
                text + 4);
    return LK_EXIT_FAILED;
}

/* The sentence may be about one operation, and may say no more than what the
 * code has said. */
static void complain_unavailable(const char *why)
{
    static const char prefix[] = "RECORD ";
    const char *known = latchkey_status_text(LK_UNAVAILABLE);

    why += strspn(why, " ");
    if (strncmp(why, prefix, sizeof(prefix) - 1) == 0) {
        lk_complain("the operation cannot be decided now: %s",
                    why + sizeof(prefix) - 1);
    } else if (*why == '\0' || strcmp(why, known) == 0) {
        lk_complain("%s; latchkey health shows why", known);
    } else {
        lk_complain("%s: %s", known, why);
    }
}

/* An error of the daemon: "CODE sentence". The code decides the exit status:
 * NOAUTH, NOPERM, WRONGPASS: denied; UNAVAILABLE: out of reach; else failed. */
enum lk_exit lk_complain_error(const struct lk_cli *cli, struct lk_slice text)
{
    struct lk_buf copy = {0};
    enum lk_exit result = LK_EXIT_FAILED;

    lk_put_raw(&copy, text);
    lk_put_raw(&copy, (struct lk_slice){"", 1});
    if (error_begins_with(text, "NOAUTH") ||
        error_begins_with(text, "NOPERM") ||
        error_begins_with(text, "WRONGPASS")) {
        result = complain_denied(cli, copy.data);
    } else if (error_begins_with(text, "UNAVAILABLE")) {
        complain_unavailable(copy.data + strlen("UNAVAILABLE"));
        result = LK_EXIT_UNREACHABLE;
    } else if (is_strange_error(text)) {
        result = complain_unknown_command(cli, copy.data);
    } else {
        bool coded = error_begins_with(text, "ERR") && text.len > 3;

        lk_complain("latchkeyd refused: %s", copy.data + (coded ? 4 : 0));
    }
    latchkey_buf_free(&copy);
    return result;
}

/* The client's sentence, without the address that ours names already. */
static const char *failure_text(const struct lk_cli *cli, enum lk_status status)
{
    static const char opening[] = "cannot connect to ";
    const char *why = cli->client == NULL ? latchkey_status_text(status)
                                          : latchkey_client_error(cli->client);
    size_t length = strlen(cli->where.address);

    if (strncmp(why, opening, sizeof(opening) - 1) == 0 &&
        strncmp(why + sizeof(opening) - 1, cli->where.address, length) == 0) {
        why += sizeof(opening) - 1 + length;
        why += strspn(why, ": ");
    }
    return why;
}

/* ---- No connection ------------------------------------------------------- */

/* Names for people, or numbers if the user database has no names. */
static void put_owner(struct lk_buf *out, const struct stat *st)
{
    struct passwd *user = getpwuid(st->st_uid);
    struct group *group = getgrgid(st->st_gid);

    if (user != NULL) {
        lk_put(out, "user %s", user->pw_name);
    } else {
        lk_put(out, "user %u", (unsigned)st->st_uid);
    }
    if ((st->st_mode & S_IRWXG) == 0) {
        return;
    }
    if (group != NULL) {
        lk_put(out, " and group %s", group->gr_name);
    } else {
        lk_put(out, " and group %u", (unsigned)st->st_gid);
    }
}

/* The socket, or the folder on the way to it that cannot be entered; `barrier`
 * has room for TEXT_MAX bytes. False: something else is wrong. */
static bool find_barrier(const char *path, char *barrier, struct stat *st)
{
    snprintf(barrier, TEXT_MAX, "%s", path);
    while (stat(barrier, st) < 0) {
        char *slash = strrchr(barrier, '/');

        if (errno != EACCES || slash == NULL || slash == barrier) {
            return false;
        }
        *slash = '\0';
    }
    return true;
}

/* EACCES of a unix socket: says who may connect, and how to join them. */
static enum lk_exit complain_forbidden(const char *path)
{
    struct passwd *entry = getpwuid(geteuid());
    struct lk_buf text = {0};
    char self[TEXT_MAX] = ""; /* a copy: who owns the socket is looked up too */
    char barrier[TEXT_MAX];
    struct stat st;

    if (entry != NULL) {
        snprintf(self, sizeof(self), "%s", entry->pw_name);
    }
    if (find_barrier(path, barrier, &st)) {
        struct group *group = getgrgid(st.st_gid);

        lk_put(&text, "; %s is for ", barrier);
        put_owner(&text, &st);
        lk_put(&text, " alone: use sudo");
        if ((st.st_mode & S_IRWXG) != 0 && group != NULL && self[0] != '\0') {
            lk_put(&text,
                   ", or join the group (usermod -aG %s %s, log in "
                   "again)",
                   group->gr_name, self);
        }
    } else {
        lk_put(&text, "; use sudo, or join the group of the socket");
    }
    lk_complain("%s may not connect to unix:%s: %s%.*s",
                self[0] == '\0' ? "this user" : self, path, strerror(EACCES),
                (int)text.len, text.data);
    latchkey_buf_free(&text);
    return LK_EXIT_DENIED;
}

/* What one can do about it. `path` is NULL for TCP; `error` 0 is a name that
 * cannot be resolved. */
static const char *name_connection_cure(const char *path, int error)
{
    struct stat st;

    if (error == ETIMEDOUT) {
        return path == NULL
                   ? "the host is down or a firewall is between; check "
                     "--server, or wait longer with --timeout"
                   : "latchkeyd is there but takes no connection: is it "
                     "stopped or overloaded? Or wait longer with --timeout";
    }
    if (path != NULL && stat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
        return "it is not a socket; name latchkeyd's with --server";
    }
    if (path != NULL && error == ENOENT) {
        return "latchkeyd is not running, or listens elsewhere; start it "
               "(systemctl start latchkeyd), or name it with --server";
    }
    if (path != NULL) {
        return "latchkeyd has left its socket behind; start it again "
               "(systemctl start latchkeyd), or name another with --server";
    }
    switch (error) {
    case 0:
        return "check the host's name in --server";
    case ECONNREFUSED:
        return "no program listens there; start latchkeyd with this listen "
               "address, or name another with --server";
    default:
        return "check --server and the network";
    }
}

static enum lk_exit complain_unreached(const struct lk_cli *cli,
                                       const char *why, int error)
{
    const char *address = cli->where.address;
    const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;

    if (path != NULL && error == EACCES) {
        return complain_forbidden(path);
    }
    lk_complain("cannot reach latchkeyd at %s: %s; %s", address, why,
                name_connection_cure(path, error));
    return LK_EXIT_UNREACHABLE;
}

/* There is no connection. */
static enum lk_exit complain_open(const struct lk_cli *cli,
                                  enum lk_status status, int error)
{
    const char *why = failure_text(cli, status);

    switch (status) {
    case LK_INVALID:
        lk_complain("%s \"%s\": %s", cli->where_from, cli->where.address, why);
        return LK_EXIT_USAGE;
    case LK_DENIED:
        return complain_denied(cli, why);
    case LK_REPLY:
    case LK_UNAVAILABLE:
        return lk_complain_error(cli, latchkey_slice(why));
    case LK_MALFORMED:
        return lk_complain_reply(cli);
    case LK_CLOSED: /* under AUTH */
    case LK_NOMEM:
        return lk_complain_lost(cli, status);
    default:
        return complain_unreached(cli, why,
                                  status == LK_TIMEOUT ? ETIMEDOUT : error);
    }
}

/* The command was sent, but no reply came: it may have been carried out, and
 * the sentence says so. */
enum lk_exit lk_complain_lost(const struct lk_cli *cli, enum lk_status status)
{
    if (status == LK_MALFORMED) {
        return lk_complain_reply(cli);
    }
    if (status == LK_CLOSED && complain_stranger(cli)) {
        return LK_EXIT_UNREACHABLE;
    }
    lk_complain("no reply from latchkeyd at %s: %s; it is not known whether "
                "the command was carried out: see latchkey get or audit",
                cli->where.address, failure_text(cli, status));
    return LK_EXIT_UNREACHABLE;
}

enum lk_exit lk_complain_reply(const struct lk_cli *cli)
{
    if (complain_stranger(cli)) {
        return LK_EXIT_UNREACHABLE;
    }
    lk_complain("cannot understand the reply of %s; is it latchkeyd, of a "
                "version that works with latchkey " LATCHKEY_VERSION "?",
                cli->where.address);
    return LK_EXIT_FAILED;
}

/* ---- Calls --------------------------------------------------------------- */

/*
 * Sets cli->client, also after a failure: it has the reason. tool.c closes it.
 */
enum lk_exit lk_connect(struct lk_cli *cli)
{
    enum lk_status status = latchkey_client_open(&cli->where, &cli->client);

    return status == LK_OK ? LK_EXIT_DONE : complain_open(cli, status, errno);
}

/* `timeout_ms` 0: the timeout of --timeout, or the default. The client owns
 * *reply until its next call. */
static enum lk_exit call_daemon(struct lk_cli *cli,
                                const struct lk_words *words,
                                unsigned timeout_ms,
                                const struct lk_reply **reply)
{
    enum lk_exit result = cli->client == NULL ? lk_connect(cli) : LK_EXIT_DONE;
    enum lk_status status;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    status = latchkey_client_call(cli->client, words->words, words->count,
                                  timeout_ms, reply);
    if (status != LK_OK) {
        return lk_complain_lost(cli, status);
    }
    if ((*reply)->type == LK_REPLY_ERROR) {
        return lk_complain_error(cli, (*reply)->text);
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_call(struct lk_cli *cli, const struct lk_words *words,
                     const struct lk_reply **reply)
{
    return call_daemon(cli, words, 0, reply);
}

/* For commands that may take hours: without --timeout it waits for weeks. */
enum lk_exit lk_call_patiently(struct lk_cli *cli, const struct lk_words *words,
                               const struct lk_reply **reply)
{
    return call_daemon(cli, words, cli->where.timeout_ms == 0 ? INT_MAX : 0,
                       reply);
}

/* ---- Replies ------------------------------------------------------------- */

bool lk_reply_is(const struct lk_reply *reply, const char *word)
{
    return reply->type == LK_REPLY_TEXT &&
           latchkey_slice_equal(reply->text, latchkey_slice(word));
}

/* 0: the list has ended. */
uint64_t lk_reply_cursor(const struct lk_reply *reply)
{
    uint64_t cursor = 0;

    if (reply->type == LK_REPLY_INTEGER) {
        return (uint64_t)reply->integer;
    }
    return lk_digits_read(reply->text, &cursor) ? cursor : 0;
}

/* "-" and "_" are the same: replies have the one, JSON has the other. */
static bool is_named(const struct lk_reply *reply, const char *name)
{
    struct lk_slice text = reply->text;

    if (reply->type != LK_REPLY_TEXT || text.len != strlen(name)) {
        return false;
    }
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i] == '-' ? '_' : text.data[i];

        if (c != (name[i] == '-' ? '_' : name[i])) {
            return false;
        }
    }
    return true;
}

/* A flat list: name, value, name, value. NULL: there is no such field. */
const struct lk_reply *lk_field(const struct lk_reply *list, const char *name)
{
    for (size_t i = 0; i + 1 < list->count; i += 2) {
        if (is_named(&list->elements[i], name)) {
            return &list->elements[i + 1];
        }
    }
    return NULL;
}

struct lk_slice lk_field_text(const struct lk_reply *list, const char *name)
{
    const struct lk_reply *field = lk_field(list, name);

    return field == NULL ? (struct lk_slice){0} : field->text;
}

uint64_t lk_field_number(const struct lk_reply *list, const char *name)
{
    const struct lk_reply *field = lk_field(list, name);

    return field == NULL || field->integer < 0 ? 0 : (uint64_t)field->integer;
}
