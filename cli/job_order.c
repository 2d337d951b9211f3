/* job_order.c - what an operator decides about jobs, one or many. */
#include "cli/commands.h"
#include "cli/jobs.h"
#include "cli/move.h"

#include <string.h>

/* Commands that are under way at a time. */
enum { WINDOW = 64 };

struct sending {
    struct lk_cli *cli;
    const char *verb;
    const struct lk_order_item *items;
    size_t count;
    const struct lk_words *tail;
    struct lk_order_counts *counts;
    size_t sent;
    size_t answered;
};

static enum lk_status send_order(struct sending *s)
{
    const struct lk_order_item *item = &s->items[s->sent];
    struct lk_words words = {0};

    lk_words_add(&words, "JOB");
    lk_words_add(&words, s->verb);
    lk_words_add_number(&words, item->id);
    for (size_t i = 0; i < s->tail->count; i++) {
        lk_words_add_slice(&words, s->tail->words[i]);
    }
    if (item->attempt != 0) {
        lk_words_add(&words, "ATTEMPT");
        lk_words_add_number(&words, item->attempt);
    }
    s->sent++;
    return latchkey_client_queue(s->cli->client, words.words, words.count);
}

/* Cuts a word off the front of an error. */
static bool cut(struct lk_slice *text, const char *word)
{
    size_t length = strlen(word);

    if (text->len < length || memcmp(text->data, word, length) != 0) {
        return false;
    }
    text->data += length;
    text->len -= length;
    return true;
}

static enum lk_exit take_answer(struct sending *s, const struct lk_reply *reply)
{
    struct lk_order_counts *counts = s->counts;
    struct lk_slice text = reply->text;

    s->answered++;
    if (lk_reply_is(reply, "OK")) {
        counts->done++;
    } else if (reply->type == LK_REPLY_NIL) {
        counts->gone++;
    } else if (reply->type == LK_REPLY_ERROR && cut(&text, "ERR ")) {
        (void)cut(&text, "JOB: ");
        if (counts->moved++ == 0) {
            lk_put_raw(&counts->refusal, text);
        }
    } else if (reply->type == LK_REPLY_ERROR) {
        return lk_complain_error(s->cli, reply->text);
    } else {
        return lk_complain_reply(s->cli);
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_job_orders(struct lk_cli *cli, const char *verb,
                           const struct lk_order_item *items, size_t count,
                           const struct lk_words *tail,
                           struct lk_order_counts *counts)
{
    struct sending s = {cli, verb, items, count, tail, counts, 0, 0};
    enum lk_exit result = cli->client == NULL ? lk_connect(cli) : LK_EXIT_DONE;
    struct lk_bar bar;

    lk_bar_start(&bar, cli, "jobs");
    while (result == LK_EXIT_DONE && s.answered < count) {
        const struct lk_reply *reply = NULL;
        enum lk_status status = LK_OK;

        while (status == LK_OK && s.sent < count &&
               s.sent - s.answered < WINDOW) {
            status = send_order(&s);
        }
        if (status == LK_OK) {
            status = latchkey_client_receive(cli->client, &reply);
        }
        result = status == LK_OK ? take_answer(&s, reply)
                                 : lk_complain_lost(cli, status);
        lk_bar_show(&bar, s.answered, count);
    }
    lk_bar_stop(&bar);
    return result;
}

/* ---- latchkey resolve --job -----------------------------------------------
 */

static const struct choice {
    const char *option;
    const char *verb;
    const char *action;
    const char *state;
} choices[] = {
    {"delivered", "DELIVERED", "resolved", "delivered"},
    {"again", "AGAIN", "resolved", "waiting"},
    {"drop", "DROP", "dropped", "dropped"},
};

static enum lk_exit find_choice(const struct lk_cli *cli,
                                const struct choice **found)
{
    *found = NULL;
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (!lk_args_flag(&cli->args, choices[i].option)) {
            continue;
        }
        if (*found != NULL) {
            return lk_complain_usage(cli, "--%s and --%s exclude each other",
                                     (*found)->option, choices[i].option);
        }
        *found = &choices[i];
    }
    if (*found == NULL) {
        return lk_complain_usage(cli, "say what came of the job: --delivered, "
                                      "--again or --drop");
    }
    if (lk_args_flag(&cli->args, "provider-id") && *found != &choices[0]) {
        return lk_complain_usage(cli, "--provider-id goes with --delivered");
    }
    return LK_EXIT_DONE;
}

static enum lk_exit report(struct lk_cli *cli, uint64_t id,
                           const struct choice *choice,
                           const struct lk_order_counts *counts)
{
    struct lk_doc doc = {.out = &cli->out};
    bool done = counts->done > 0;

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result",
                    latchkey_slice(done               ? "OK"
                                   : counts->gone > 0 ? "NIL"
                                                      : "ERR"));
        lk_doc_integer(&doc, "job", (int64_t)id);
        if (done) {
            lk_doc_text(&doc, "action", latchkey_slice(choice->action));
            lk_doc_text(&doc, "state", latchkey_slice(choice->state));
        }
        lk_doc_end_object(&doc);
    } else if (done) {
        lk_put(&cli->out, "%s job %llu, now %s\n", choice->action,
               (unsigned long long)id, choice->state);
    }
    if (counts->gone > 0) {
        lk_complain("there is no job %llu; latchkey jobs lists them",
                    (unsigned long long)id);
    } else if (!done) {
        lk_complain("nothing was changed: %.*s", (int)counts->refusal.len,
                    counts->refusal.data);
    }
    return done ? LK_EXIT_DONE : LK_EXIT_NO;
}

enum lk_exit lk_resolve_job(struct lk_cli *cli)
{
    const char *provider_id = lk_args_value(&cli->args, "provider-id");
    struct lk_order_counts counts = {0};
    struct lk_order_item item = {0};
    struct lk_deed deed = {0};
    const struct choice *choice;
    enum lk_exit result = find_choice(cli, &choice);

    if (choice == NULL) {
        return result;
    }
    if (result == LK_EXIT_DONE) {
        result = lk_job_id(cli, lk_args_value(&cli->args, "job"), &item.id);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_args_number(&cli->args, "attempt", 1, UINT32_MAX, &item.attempt);
    }
    if (result == LK_EXIT_DONE) {
        result = lk_deed_words(cli, &deed, NULL);
    }
    if (result == LK_EXIT_DONE && provider_id != NULL) {
        lk_words_add(&deed.words, "PROVIDER");
        lk_words_add(&deed.words, provider_id);
    }
    if (result == LK_EXIT_DONE) {
        result =
            lk_job_orders(cli, choice->verb, &item, 1, &deed.words, &counts);
    }
    if (result == LK_EXIT_DONE) {
        result = report(cli, item.id, choice, &counts);
    }
    latchkey_buf_free(&counts.refusal);
    return result;
}
