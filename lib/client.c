/*
 * client.c - a blocking connection to latchkeyd, and the commands that a client
 * sends over it.
 *
 * The life of a client (struct lk_client); its owner's thread alone uses it:
 *
 *   open    latchkey_client_open connected it; `dead` is LK_OK
 *   asking  `owed` replies are asked for and not received
 *   dead    a timeout, a broken connection or bytes that are not RESP: every
 *           call returns `dead` from then on
 *   freed   latchkey_client_close, in any state
 *
 * One deadline holds for a whole reply, not for each read. The socket is
 * written to with MSG_NOSIGNAL: a daemon that goes away must not kill the
 * program.
 */
#include "lib/client.h"
#include "lib/resp.h"
#include "lib/socket.h"
#include "lib/time.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ==== The connection ==================================================== */

enum {
    DEFAULT_CONNECT_MS = 2000,
    DEFAULT_REPLY_MS = 10000,
    KEPT_OUT = 1024 * 1024, /* a larger output buffer is given back */
};

/* ---- Failures ------------------------------------------------------------ */

/* Part of the text may come from the peer: keep it on one harmless line. */
static void hide_controls(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f) {
            *text = '?';
        }
    }
}

enum lk_status lk_client_fail(struct lk_client *client, enum lk_status status,
                              const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(client->error, sizeof(client->error), format, args);
    va_end(args);
    hide_controls(client->error);
    return status;
}

enum lk_status lk_client_fail_reply(struct lk_client *client,
                                    const struct lk_reply *reply)
{
    struct lk_slice text = reply->text;
    int shown =
        text.len < LK_CLIENT_ERROR_MAX ? (int)text.len : LK_CLIENT_ERROR_MAX;

    return lk_client_fail(client, lk_decision_error(reply), "%.*s", shown,
                          text.data);
}

/* As lk_client_fail, and nothing more goes over this connection. */
static enum lk_status kill_client(struct lk_client *client,
                                  enum lk_status status, const char *text)
{
    client->dead = status;
    return lk_client_fail(client, status, "%s", text);
}

/* A connection that the daemon closed is LK_CLOSED, any other failure LK_IO. */
static enum lk_status kill_client_by_errno(struct lk_client *client)
{
    bool closed = errno == EPIPE || errno == ECONNRESET;

    return kill_client(client, closed ? LK_CLOSED : LK_IO, strerror(errno));
}

const char *latchkey_client_error(const struct lk_client *client)
{
    return client ? client->error : latchkey_status_text(LK_NOMEM);
}

/* ---- Bytes in and out ---------------------------------------------------- */

static bool client_has_unsent(const struct lk_client *client)
{
    return client->sent < client->out.len;
}

/* LK_OK also if nothing came: the caller waits again. */
static enum lk_status read_from_daemon(struct lk_client *client)
{
    char *room;
    size_t size;
    ssize_t got;

    if (lk_resp_reader_room(&client->reader, &room, &size)) {
        return kill_client(client, LK_NOMEM, "out of memory");
    }
    got = recv(client->fd, room, size, MSG_DONTWAIT);
    if (got == 0) {
        return kill_client(client, LK_CLOSED,
                           "the daemon closed the connection");
    }
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK
                                                 : kill_client_by_errno(client);
    }
    lk_resp_reader_fill(&client->reader, (size_t)got);
    return LK_OK;
}

/* Sends what the socket takes. Once all of it is sent the buffer is empty
 * again; one that had grown large is freed. */
static enum lk_status write_to_daemon(struct lk_client *client)
{
    struct lk_buf *out = &client->out;
    ssize_t put = send(client->fd, out->data + client->sent,
                       out->len - client->sent, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (put < 0) {
        return errno == EAGAIN || errno == EINTR ? LK_OK
                                                 : kill_client_by_errno(client);
    }
    client->sent += (size_t)put;
    if (!client_has_unsent(client)) {
        client->sent = 0;
        out->len = 0;
        if (out->cap > KEPT_OUT) {
            latchkey_buf_free(out);
        }
    }
    return LK_OK;
}

/*
 * Waits, then reads what has come, or else writes. Reading comes first, and
 * also while there is much to write: a daemon that waits for us to take its
 * replies before it takes more commands must not wait for ever, and one that
 * says why it hangs up must be heard.
 */
static enum lk_status move_client_bytes(struct lk_client *client,
                                        int64_t deadline)
{
    short events = client_has_unsent(client) ? POLLIN | POLLOUT : POLLIN;
    short happened = 0;
    enum lk_status status =
        lk_socket_wait(client->fd, events, deadline, &happened);

    if (status == LK_TIMEOUT) {
        return kill_client(client, status, "the daemon did not reply in time");
    }
    if (status) {
        return kill_client_by_errno(client);
    }
    return happened & ~POLLOUT ? read_from_daemon(client)
                               : write_to_daemon(client);
}

/* The bytes are not RESP. The tool recognizes other servers by the first. */
static enum lk_status kill_client_by_reader(struct lk_client *client,
                                            enum lk_status status)
{
    const struct lk_resp_reader *reader = &client->reader;
    char byte = status == LK_MALFORMED ? reader->in.data[reader->at] : '*';

    if (strchr("+-:$*", byte)) {
        return kill_client(client, status,
                           status == LK_MALFORMED
                               ? "the reply is not RESP"
                               : latchkey_status_text(status));
    }
    client->dead = status;
    return lk_client_fail(client, status,
                          "the reply begins with \"%c\", which is not RESP",
                          byte);
}

/*
 * The next reply, within one deadline for all of its bytes. *reply is valid
 * until the next receive or call. LK_AGAIN of the reader means that bytes are
 * missing; every other failure ends the connection, because the place in the
 * stream is lost.
 */
static enum lk_status receive_reply(struct lk_client *client,
                                    unsigned timeout_ms,
                                    const struct lk_reply **reply)
{
    int64_t deadline = (int64_t)lk_monotonic_ms() + timeout_ms;
    enum lk_status status = client->dead;

    while (!status) {
        status = lk_resp_reader_next(&client->reader, reply);
        if (status == LK_OK) {
            client->owed -= client->owed > 0;
            return LK_OK;
        }
        status = status == LK_AGAIN ? move_client_bytes(client, deadline)
                                    : kill_client_by_reader(client, status);
    }
    lk_resp_reader_forget(&client->reader);
    return status;
}

/* ---- The public calls ---------------------------------------------------- */

/* Only appends the command. LK_NOMEM does not kill the connection: nothing of
 * the command is in the buffer. */
enum lk_status latchkey_client_queue(struct lk_client *client,
                                     const struct lk_slice *words, size_t count)
{
    if (client->dead) {
        return client->dead;
    }
    if (count == 0) {
        return lk_client_fail(client, LK_INVALID, "a command has no words");
    }
    enum lk_status status = lk_resp_command(&client->out, words, count);
    if (status) {
        return lk_client_fail(client, status, "%s",
                              latchkey_status_text(status));
    }
    client->owed++;
    return LK_OK;
}

/* The timeout starts again whenever the daemon takes something. */
enum lk_status latchkey_client_flush(struct lk_client *client)
{
    int64_t deadline = (int64_t)lk_monotonic_ms() + client->timeout_ms;

    if (client->dead) {
        return client->dead;
    }
    while (client_has_unsent(client)) {
        size_t sent = client->sent;
        enum lk_status status = move_client_bytes(client, deadline);
        if (status) {
            return status;
        }
        if (client->sent != sent) {
            deadline = (int64_t)lk_monotonic_ms() + client->timeout_ms;
        }
    }
    return LK_OK;
}

enum lk_status latchkey_client_receive(struct lk_client *client,
                                       const struct lk_reply **reply)
{
    return receive_reply(client, client->timeout_ms, reply);
}

enum lk_status latchkey_client_call(struct lk_client *client,
                                    const struct lk_slice *words, size_t count,
                                    unsigned timeout_ms,
                                    const struct lk_reply **reply)
{
    /* The next reply would belong to another command. */
    if (!client->dead && client->owed > 0) {
        return lk_client_fail(client, LK_INVALID,
                              "%zu earlier replies are not received yet",
                              client->owed);
    }
    enum lk_status status = latchkey_client_queue(client, words, count);
    if (status) {
        return status;
    }
    return receive_reply(client, timeout_ms ? timeout_ms : client->timeout_ms,
                         reply);
}

/* LK_DENIED: wrong name or password. The buffer is wiped: the password was in
 * it. */
static enum lk_status authenticate(struct lk_client *client, const char *user,
                                   const char *password)
{
    struct lk_slice words[3] = {LK_SLICE("AUTH")};
    const struct lk_reply *reply = NULL;
    size_t count = 1;

    if (user) {
        words[count++] = latchkey_slice(user);
    }
    words[count++] = latchkey_slice(password);
    enum lk_status status =
        latchkey_client_call(client, words, count, 0, &reply);
    if (client->out.data) {
        explicit_bzero(client->out.data, client->out.cap);
    }
    if (status || !reply) {
        return status;
    }
    if (reply->type == LK_REPLY_ERROR) {
        status = lk_client_fail_reply(client, reply);
        return status == LK_UNAVAILABLE ? status : LK_DENIED;
    }
    if (!latchkey_slice_equal(reply->text, LK_SLICE("OK"))) {
        return lk_client_fail(client, LK_MALFORMED,
                              "AUTH: the reply is not OK");
    }
    return LK_OK;
}

static enum lk_status open_client(struct lk_client *client,
                                  const struct lk_client_options *options)
{
    unsigned connect_ms = options->connect_timeout_ms
                              ? options->connect_timeout_ms
                              : DEFAULT_CONNECT_MS;

    client->timeout_ms =
        options->timeout_ms ? options->timeout_ms : DEFAULT_REPLY_MS;
    if (!options->address) {
        return lk_client_fail(client, LK_INVALID, "no address is given");
    }
    if (options->user && !options->password) {
        return lk_client_fail(client, LK_INVALID,
                              "a user is given, but no password");
    }
    enum lk_status status =
        lk_socket_connect(options->address, connect_ms, &client->fd,
                          client->error, sizeof(client->error));
    if (status || !options->password) {
        return status;
    }
    return authenticate(client, options->user, options->password);
}

/*
 * There is a client also after a failure, unless there is no memory for it
 * (*client is NULL): it has the reason, every call returns the same status, and
 * the caller closes it.
 */
enum lk_status latchkey_client_open(const struct lk_client_options *options,
                                    struct lk_client **client)
{
    struct lk_client *opened = calloc(1, sizeof(*opened));

    *client = NULL;
    if (!opened) {
        return LK_NOMEM;
    }
    opened->fd = -1;
    *client = opened;
    opened->dead = open_client(opened, options);
    return opened->dead;
}

void latchkey_client_close(struct lk_client *client)
{
    if (!client) {
        return;
    }
    if (client->fd >= 0) {
        close(client->fd);
    }
    lk_resp_reader_free(&client->reader);
    latchkey_buf_free(&client->out);
    free(client);
}

/* ==== Commands ========================================================== */

/* ---- Commands ------------------------------------------------------------ */

enum { WORDS_MAX = 16, NUMBERS_MAX = 4, NUMBER_SIZE = 24 };

/* Slices into what the caller gave, and room for the numbers. */
struct command {
    const char *verb;
    struct lk_slice words[WORDS_MAX];
    size_t count;
    char numbers[NUMBERS_MAX][NUMBER_SIZE];
    size_t number_count;
};

/* WORDS_MAX is enough for the longest command of this file. */
static void add_word(struct command *command, struct lk_slice word)
{
    command->words[command->count++] = word;
}

static void add_number(struct command *command, uint64_t number)
{
    char *text = command->numbers[command->number_count++];

    snprintf(text, NUMBER_SIZE, "%" PRIu64, number);
    add_word(command, latchkey_slice(text));
}

/* An option is left out where its value is zero or empty. */
static void add_number_option(struct command *command, const char *name,
                              uint64_t number)
{
    if (number) {
        add_word(command, latchkey_slice(name));
        add_number(command, number);
    }
}

static void start_command(struct command *command, const char *verb,
                          struct lk_name name)
{
    command->verb = verb;
    command->count = 0;
    command->number_count = 0;
    add_word(command, latchkey_slice(verb));
    add_word(command, name.tenant);
    add_word(command, name.scope);
    add_word(command, name.key);
}

/* ---- Replies ------------------------------------------------------------- */

/* Zero would be NEW: a caller that forgets the status must not read that. */
static const struct lk_decision nothing = {.verdict = LK_VERDICT_NIL};

/* An error reply gives its status and text, and the decision stays NIL. */
static enum lk_status take_decision(struct lk_client *client, const char *verb,
                                    const struct lk_reply *reply,
                                    struct lk_decision *decision)
{
    char why[LK_CLIENT_ERROR_MAX];

    if (reply->type == LK_REPLY_ERROR) {
        *decision = nothing;
        return lk_client_fail_reply(client, reply);
    }
    enum lk_status status =
        lk_decision_read(verb, reply, decision, why, sizeof(why));
    return status ? lk_client_fail(client, status, "%s", why) : LK_OK;
}

/* Sends one command and waits for its decision; 0 is the client's own timeout.
 * The slices of *decision are valid until the next call. */
static enum lk_status run_command(struct lk_client *client,
                                  const struct command *command,
                                  unsigned timeout_ms,
                                  struct lk_decision *decision)
{
    const struct lk_reply *reply = NULL;

    *decision = nothing;
    enum lk_status status = latchkey_client_call(
        client, command->words, command->count, timeout_ms, &reply);
    if (!status && reply) {
        status = take_decision(client, command->verb, reply, decision);
    }
    return status;
}

enum lk_status latchkey_client_decision(struct lk_client *client,
                                        const struct lk_reply *reply,
                                        struct lk_decision *decision)
{
    return take_decision(client, NULL, reply, decision);
}

/* ---- The public calls ---------------------------------------------------- */

/* A claim that waits gets its reply when the wait is over, at the latest. */
static unsigned claim_timeout(const struct lk_client *client, uint64_t wait_ms)
{
    uint64_t spare = UINT_MAX - client->timeout_ms;

    return client->timeout_ms + (unsigned)(wait_ms < spare ? wait_ms : spare);
}

enum lk_status latchkey_claim(struct lk_client *client,
                              const struct lk_claim *claim,
                              struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "CLAIM", claim->name);
    add_word(&command, claim->fingerprint);
    if (claim->owner.len > 0) {
        add_word(&command, LK_SLICE("OWNER"));
        add_word(&command, claim->owner);
    }
    add_number_option(&command, "TTL", claim->ttl_ms);
    add_number_option(&command, "LOCK", claim->lock_ms);
    add_number_option(&command, "WAIT", claim->wait_ms);
    if (claim->reexecute) {
        add_word(&command, LK_SLICE("REEXECUTE"));
    }
    if (claim->no_new) {
        add_word(&command, LK_SLICE("NONEW"));
    }
    return run_command(client, &command, claim_timeout(client, claim->wait_ms),
                       decision);
}

enum lk_status latchkey_accept(struct lk_client *client,
                               const struct lk_accept *accept,
                               struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "ACCEPT", accept->name);
    add_word(&command, accept->fingerprint);
    add_word(&command, accept->method);
    add_word(&command, accept->path);
    add_word(&command, accept->headers);
    add_word(&command, accept->body);
    add_number_option(&command, "TTL", accept->ttl_ms);
    if (accept->reexecute) {
        add_word(&command, LK_SLICE("REEXECUTE"));
    }
    return run_command(client, &command, 0, decision);
}

static void add_text_option(struct command *command, const char *name,
                            struct lk_slice text)
{
    if (text.len) {
        add_word(command, latchkey_slice(name));
        add_word(command, text);
    }
}

enum lk_status latchkey_enqueue(struct lk_client *client,
                                const struct lk_enqueue *job,
                                struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "ENQUEUE", job->name);
    add_number(&command, job->token);
    add_word(&command, job->job);
    add_word(&command, job->target);
    add_word(&command, job->path);
    add_text_option(&command, "METHOD", job->method);
    add_text_option(&command, "HEADERS", job->headers);
    add_text_option(&command, "BODY", job->body);
    add_number_option(&command, "DELAY", job->delay_ms);
    return run_command(client, &command, 0, decision);
}

/* COMPLETE tenant scope key token status headers body [TTL ms] */
static void start_complete(struct command *command, struct lk_name name,
                           uint64_t token, const struct lk_response *response,
                           uint64_t ttl_ms)
{
    start_command(command, "COMPLETE", name);
    add_number(command, token);
    add_number(command, response->status);
    add_word(command, response->headers);
    add_word(command, response->body);
    add_number_option(command, "TTL", ttl_ms);
}

enum lk_status latchkey_complete(struct lk_client *client, struct lk_name name,
                                 uint64_t token,
                                 const struct lk_response *response,
                                 uint64_t ttl_ms, struct lk_decision *decision)
{
    struct command command;

    start_complete(&command, name, token, response, ttl_ms);
    return run_command(client, &command, 0, decision);
}

enum lk_status latchkey_complete_omitted(struct lk_client *client,
                                         struct lk_name name, uint64_t token,
                                         unsigned status,
                                         struct lk_slice reason,
                                         uint64_t ttl_ms,
                                         struct lk_decision *decision)
{
    const struct lk_response response = {.status = status};
    struct command command;

    start_complete(&command, name, token, &response, ttl_ms);
    add_word(&command, LK_SLICE("OMIT"));
    add_word(&command, reason);
    return run_command(client, &command, 0, decision);
}

enum lk_status latchkey_release(struct lk_client *client, struct lk_name name,
                                uint64_t token, struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "RELEASE", name);
    add_number(&command, token);
    return run_command(client, &command, 0, decision);
}

enum lk_status latchkey_doubt(struct lk_client *client, struct lk_name name,
                              uint64_t token, struct lk_slice reason,
                              struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "DOUBT", name);
    add_number(&command, token);
    add_word(&command, reason);
    return run_command(client, &command, 0, decision);
}

enum lk_status latchkey_extend(struct lk_client *client, struct lk_name name,
                               uint64_t token, uint64_t lock_ms,
                               struct lk_decision *decision)
{
    struct command command;

    start_command(&command, "EXTEND", name);
    add_number(&command, token);
    add_number(&command, lock_ms);
    return run_command(client, &command, 0, decision);
}
