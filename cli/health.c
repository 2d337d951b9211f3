/* health.c - `latchkey health`: is there anything that needs a person? */
#include "cli/commands.h"

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_health = {
    "Says in one line whether the daemon and its store work, then what needs "
    "a\n"
    "person, the most urgent first. Exit status 0: nothing does. 1: something\n"
    "does. 3: nothing can be decided, or there is no daemon.",
    options};

static const struct {
    const char *status; /* as the daemon says it */
    const char *word;
    enum lk_exit exit;
} states[] = {
    {"ok", "healthy", LK_EXIT_DONE},
    {"attention", "needs a person", LK_EXIT_NO},
    {"unavailable", "unavailable", LK_EXIT_UNREACHABLE},
};

enum { STATES = sizeof(states) / sizeof(states[0]) };

/* STATES: none that is known. */
static size_t find_state(const struct lk_reply *health)
{
    struct lk_slice status = lk_field_text(health, "status");
    size_t at = 0;

    while (at < STATES &&
           !latchkey_slice_equal(status, latchkey_slice(states[at].status))) {
        at++;
    }
    return at;
}

enum lk_exit lk_health_fetch(struct lk_cli *cli, const struct lk_reply **health)
{
    struct lk_words words = {0};
    enum lk_exit result;

    lk_words_add(&words, "HEALTH");
    result = lk_call(cli, &words, health);
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if ((*health)->type != LK_REPLY_ARRAY || find_state(*health) == STATES) {
        return lk_complain_reply(cli);
    }
    return LK_EXIT_DONE;
}

enum lk_exit lk_health_exit(const struct lk_reply *health)
{
    size_t at = find_state(health);

    return at == STATES ? LK_EXIT_FAILED : states[at].exit;
}

static void show(struct lk_cli *cli, const struct lk_reply *health)
{
    size_t at = find_state(health);
    const struct lk_reply *reasons = lk_field(health, "reasons");

    if (reasons == NULL || reasons->count < 2) {
        lk_put(&cli->out, "%s: ", states[at].word);
        lk_put_line(&cli->out, lk_field_text(health, "summary"));
        lk_put(&cli->out, "\n");
        return;
    }
    lk_put(&cli->out, "%s, for %zu reasons:\n", states[at].word,
           reasons->count);
    for (size_t i = 0; i < reasons->count; i++) {
        lk_put(&cli->out, "  %zu. ", i + 1);
        lk_put_line(&cli->out, lk_field_text(&reasons->elements[i], "text"));
        lk_put(&cli->out, "\n");
    }
}

static void show_json(struct lk_cli *cli, const struct lk_reply *health)
{
    struct lk_doc doc = {.out = &cli->out};
    const struct lk_reply *reasons = lk_field(health, "reasons");

    lk_doc_object(&doc, NULL);
    lk_doc_text(&doc, "status", lk_field_text(health, "status"));
    lk_doc_text(&doc, "summary", lk_field_text(health, "summary"));
    lk_doc_integer(&doc, "age-ms", (int64_t)lk_field_number(health, "age-ms"));
    lk_doc_array(&doc, "reasons");
    for (size_t i = 0; reasons != NULL && i < reasons->count; i++) {
        lk_doc_object(&doc, NULL);
        lk_doc_members(&doc, &reasons->elements[i]);
        lk_doc_end_object(&doc);
    }
    lk_doc_end_array(&doc);
    lk_doc_end_object(&doc);
}

enum lk_exit lk_run_health(struct lk_cli *cli)
{
    const struct lk_reply *health;
    enum lk_exit result = lk_health_fetch(cli, &health);

    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (cli->json) {
        show_json(cli, health);
    } else {
        show(cli, health);
    }
    /* Whatever the exit status is, this is the whole answer. */
    result = lk_cli_flush(cli);
    return result == LK_EXIT_DONE ? lk_health_exit(health) : result;
}
