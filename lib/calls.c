/* calls.c - the client's typed calls: commands out, verdicts in. */
#include "lib/client.h"
#include "lib/decision.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- Commands -------------------------------------------------------------
 */

enum { WORDS_MAX = 16, NUMBERS_MAX = 4, NUMBER_SIZE = 24 };

/* Slices into what the caller gave, and room for the numbers. */
struct command {
    const char *verb;
    struct lk_slice words[WORDS_MAX];
    size_t count;
    char numbers[NUMBERS_MAX][NUMBER_SIZE];
    size_t number_count;
};

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

/* ---- Replies --------------------------------------------------------------
 */

/* Zero would be NEW: nobody who forgets the status may read that. */
static const struct lk_decision nothing = {.verdict = LK_VERDICT_NIL};

static enum lk_status take_reply(struct lk_client *client, const char *verb,
                                 const struct lk_reply *reply,
                                 struct lk_decision *answer)
{
    char why[LK_CLIENT_ERROR_MAX];

    if (reply->type == LK_REPLY_ERROR) {
        *answer = nothing;
        return lk_client_fail_reply(client, reply);
    }
    enum lk_status status =
        lk_decision_read(verb, reply, answer, why, sizeof(why));
    return status ? lk_client_fail(client, status, "%s", why) : LK_OK;
}

static enum lk_status run_command(struct lk_client *client,
                                  const struct command *command,
                                  unsigned timeout_ms,
                                  struct lk_decision *answer)
{
    const struct lk_reply *reply = NULL;

    *answer = nothing;
    enum lk_status status = latchkey_client_call(
        client, command->words, command->count, timeout_ms, &reply);
    return status ? status : take_reply(client, command->verb, reply, answer);
}

enum lk_status latchkey_client_decision(struct lk_client *client,
                                        const struct lk_reply *reply,
                                        struct lk_decision *answer)
{
    return take_reply(client, NULL, reply, answer);
}

/* ---- The public calls -----------------------------------------------------
 */

/* A parked claim is answered when its wait is over, at the latest. */
static unsigned claim_timeout(const struct lk_client *client, uint64_t wait_ms)
{
    uint64_t spare = UINT_MAX - client->timeout_ms;

    return client->timeout_ms + (unsigned)(wait_ms < spare ? wait_ms : spare);
}

enum lk_status latchkey_claim(struct lk_client *client,
                              const struct lk_claim *claim,
                              struct lk_decision *answer)
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
                       answer);
}

enum lk_status latchkey_accept(struct lk_client *client,
                               const struct lk_accept *accept,
                               struct lk_decision *answer)
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
    return run_command(client, &command, 0, answer);
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
                                struct lk_decision *answer)
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
    return run_command(client, &command, 0, answer);
}

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
                                 uint64_t ttl_ms, struct lk_decision *answer)
{
    struct command command;

    start_complete(&command, name, token, response, ttl_ms);
    return run_command(client, &command, 0, answer);
}

enum lk_status latchkey_complete_omitted(struct lk_client *client,
                                         struct lk_name name, uint64_t token,
                                         unsigned status,
                                         struct lk_slice reason,
                                         uint64_t ttl_ms,
                                         struct lk_decision *answer)
{
    const struct lk_response response = {.status = status};
    struct command command;

    start_complete(&command, name, token, &response, ttl_ms);
    add_word(&command, LK_SLICE("OMIT"));
    add_word(&command, reason);
    return run_command(client, &command, 0, answer);
}

enum lk_status latchkey_release(struct lk_client *client, struct lk_name name,
                                uint64_t token, struct lk_decision *answer)
{
    struct command command;

    start_command(&command, "RELEASE", name);
    add_number(&command, token);
    return run_command(client, &command, 0, answer);
}

enum lk_status latchkey_doubt(struct lk_client *client, struct lk_name name,
                              uint64_t token, struct lk_slice reason,
                              struct lk_decision *answer)
{
    struct command command;

    start_command(&command, "DOUBT", name);
    add_number(&command, token);
    add_word(&command, reason);
    return run_command(client, &command, 0, answer);
}

enum lk_status latchkey_extend(struct lk_client *client, struct lk_name name,
                               uint64_t token, uint64_t lock_ms,
                               struct lk_decision *answer)
{
    struct command command;

    start_command(&command, "EXTEND", name);
    add_number(&command, token);
    add_number(&command, lock_ms);
    return run_command(client, &command, 0, answer);
}
