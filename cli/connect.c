/* connect.c - talks to the daemon, and says what to do when that fails. */
#include "cli/cli.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- Commands -------------------------------------------------------------
 */

void lk_words_add_slice(struct lk_words *words, struct lk_slice slice)
{
    assert(words->count < LK_WORDS_MAX);
    words->words[words->count++] = slice;
}

void lk_words_add(struct lk_words *words, const char *text)
{
    lk_words_add_slice(words, latchkey_slice(text));
}

void lk_words_add_number(struct lk_words *words, uint64_t number)
{
    char *text = words->numbers[words->number_count++];

    assert(words->number_count <=
           sizeof(words->numbers) / sizeof(*words->numbers));
    snprintf(text, sizeof(*words->numbers), "%llu", (unsigned long long)number);
    lk_words_add(words, text);
}

/* ---- Failures -------------------------------------------------------------
 */

static bool begins_with(struct lk_slice text, const char *word)
{
    size_t length = strlen(word);

    return text.len >= length && memcmp(text.data, word, length) == 0 &&
           (text.len == length || text.data[length] == ' ');
}

/* What is missing: a user at all, the role, or the right password. */
static enum lk_exit complain_denied(const struct lk_cli *cli, const char *text)
{
    int length = (int)strlen(text);
    bool role = begins_with(latchkey_slice(text), "NOPERM");

    length -= length > 0 && text[length - 1] == '.';
    if (role && cli->where.user != NULL) {
        lk_complain("not allowed: %.*s; user \"%s\" has another role", length,
                    text, cli->where.user);
    } else {
        lk_complain("not allowed: %.*s; %s", length, text,
                    role || cli->where.password == NULL
                        ? "name a user with --user and --password-file"
                        : "is this the right --user and password?");
    }
    return LK_EXIT_DENIED;
}

/* An error of the daemon: "CODE sentence". */
enum lk_exit lk_complain_error(const struct lk_cli *cli, struct lk_slice text)
{
    struct lk_buf copy = {0};
    enum lk_exit result = LK_EXIT_FAILED;

    lk_put_raw(&copy, text);
    lk_put_raw(&copy, (struct lk_slice){"", 1});
    if (begins_with(text, "NOAUTH") || begins_with(text, "NOPERM") ||
        begins_with(text, "WRONGPASS")) {
        result = complain_denied(cli, copy.data);
    } else if (begins_with(text, "UNAVAILABLE")) {
        lk_complain("the store cannot decide now: %s", copy.data + 12);
        result = LK_EXIT_UNREACHABLE;
    } else {
        lk_complain("latchkeyd refused: %s",
                    copy.data + (begins_with(text, "ERR") ? 4 : 0));
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

/* There is no connection. */
static enum lk_exit complain_open(const struct lk_cli *cli,
                                  enum lk_status status)
{
    const char *why = failure_text(cli, status);

    switch (status) {
    case LK_INVALID:
        lk_complain("--server \"%s\": %s", cli->where.address, why);
        return LK_EXIT_USAGE;
    case LK_DENIED:
        return complain_denied(cli, why);
    case LK_REPLY:
    case LK_UNAVAILABLE:
        return lk_complain_error(cli, latchkey_slice(why));
    case LK_MALFORMED:
        return lk_complain_reply(cli);
    default:
        lk_complain("cannot reach latchkeyd at %s: %s; start latchkeyd or name "
                    "it with --server",
                    cli->where.address, why);
        return LK_EXIT_UNREACHABLE;
    }
}

enum lk_exit lk_complain_lost(const struct lk_cli *cli, enum lk_status status)
{
    if (status == LK_MALFORMED) {
        return lk_complain_reply(cli);
    }
    lk_complain("no answer from latchkeyd at %s: %s; it is not known whether "
                "the command was carried out, latchkey get or audit tells",
                cli->where.address, failure_text(cli, status));
    return LK_EXIT_UNREACHABLE;
}

enum lk_exit lk_complain_reply(const struct lk_cli *cli)
{
    lk_complain(
        "%s answered in a form that is not understood; is it latchkeyd, "
        "of a version that goes with latchkey " LATCHKEY_VERSION "?",
        cli->where.address);
    return LK_EXIT_FAILED;
}

/* ---- Calls ----------------------------------------------------------------
 */

enum lk_exit lk_connect(struct lk_cli *cli)
{
    enum lk_status status = latchkey_client_open(&cli->where, &cli->client);

    return status == LK_OK ? LK_EXIT_DONE : complain_open(cli, status);
}

static enum lk_exit call(struct lk_cli *cli, const struct lk_words *words,
                         unsigned timeout_ms, const struct lk_reply **reply)
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
    return call(cli, words, 0, reply);
}

enum lk_exit lk_call_patiently(struct lk_cli *cli, const struct lk_words *words,
                               const struct lk_reply **reply)
{
    return call(cli, words, cli->where.timeout_ms == 0 ? INT_MAX : 0, reply);
}

/* ---- Replies --------------------------------------------------------------
 */

bool lk_reply_is(const struct lk_reply *reply, const char *word)
{
    return reply->type == LK_REPLY_TEXT &&
           latchkey_slice_equal(reply->text, latchkey_slice(word));
}

uint64_t lk_reply_cursor(const struct lk_reply *reply)
{
    uint64_t cursor = 0;

    if (reply->type == LK_REPLY_INTEGER) {
        return (uint64_t)reply->integer;
    }
    for (size_t i = 0; i < reply->text.len; i++) {
        cursor = cursor * 10 + (uint64_t)(reply->text.data[i] - '0');
    }
    return cursor;
}

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
