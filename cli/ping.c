/* ping.c - `latchkey ping`: does the daemon answer, and how fast? */
#include "cli/commands.h"
#include "lib/time.h"

#include <limits.h>
#include <time.h>

enum { PAUSE_MS = 50 };

static const struct lk_option options[] = {
    {"wait", "DURATION",
     "wait up to that long until the daemon answers and\n"
     "its store can decide"},
    {0}};

const struct lk_manual lk_manual_ping = {
    "Connects to the daemon and asks for a sign of life. latchkey health says\n"
    "whether it works.",
    options};

static double monotonic_ms(void)
{
    return (double)lk_monotonic_ns() / 1e6;
}

/* ---- Waiting --------------------------------------------------------------
 */

/* True: there is nothing to wait for. Commands work, or fail for a reason that
 * time does not mend. Says nothing. */
static bool is_settled(const struct lk_cli *cli, unsigned timeout_ms)
{
    static const struct lk_slice words[] = {{"HEALTH", 6}};
    struct lk_client_options where = cli->where;
    struct lk_client *client = NULL;
    const struct lk_reply *reply;
    bool settled = false;

    where.timeout_ms = where.connect_timeout_ms = timeout_ms;
    enum lk_status status = latchkey_client_open(&where, &client);
    if (status == LK_OK) {
        status = latchkey_client_call(client, words, 1, 0, &reply);
    }
    if (status == LK_OK) {
        settled = reply->type != LK_REPLY_ARRAY ||
                  lk_health_exit(reply) != LK_EXIT_UNREACHABLE;
    } else {
        settled = status == LK_INVALID || status == LK_DENIED;
    }
    latchkey_client_close(client);
    return settled;
}

static void wait_for_daemon(const struct lk_cli *cli, uint64_t wait_ms)
{
    const struct timespec pause = {0, PAUSE_MS * 1000000L};
    double end_ms = monotonic_ms() + (double)wait_ms;
    double left_ms = (double)wait_ms;

    while (left_ms > 0 &&
           !is_settled(cli, left_ms < INT_MAX ? (unsigned)left_ms + 1
                                              : (unsigned)INT_MAX)) {
        nanosleep(&pause, NULL);
        left_ms = end_ms - monotonic_ms();
    }
}

/* ---- One ping -------------------------------------------------------------
 */

static void show(struct lk_cli *cli, const struct lk_reply *health,
                 double took_ms)
{
    struct lk_doc doc = {.out = &cli->out};

    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("PONG"));
        lk_doc_text(&doc, "server", latchkey_slice(cli->where.address));
        lk_doc_integer(&doc, "took-us", (int64_t)(took_ms * 1000));
        lk_doc_text(&doc, "status", lk_field_text(health, "status"));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&cli->out, "PONG from ");
        lk_put_text(&cli->out, latchkey_slice(cli->where.address));
        lk_put(&cli->out, " in %.3f ms\n", took_ms);
    }
}

/* It answers. Is it the daemon, and would a command be decided? */
static enum lk_exit check_health(struct lk_cli *cli, bool must_work,
                                 double took_ms)
{
    const struct lk_reply *health;
    enum lk_exit result = lk_health_fetch(cli, &health);
    struct lk_slice summary;

    if (result != LK_EXIT_DONE) {
        return result;
    }
    show(cli, health, took_ms);
    if (lk_health_exit(health) != LK_EXIT_UNREACHABLE) {
        return LK_EXIT_DONE;
    }
    summary = lk_field_text(health, "summary");
    if (must_work) {
        lk_complain("latchkeyd at %s answers, but %.*s", cli->where.address,
                    (int)summary.len, summary.data);
        return LK_EXIT_UNREACHABLE;
    }
    lk_hint(cli, "but %.*s", (int)summary.len, summary.data);
    return LK_EXIT_DONE;
}

enum lk_exit lk_run_ping(struct lk_cli *cli)
{
    struct lk_words words = {0};
    const struct lk_reply *reply;
    uint64_t wait_ms = 0;
    double start_ms;
    double took_ms;
    enum lk_exit result = lk_args_duration(&cli->args, "wait", &wait_ms);

    if (result == LK_EXIT_DONE) {
        wait_for_daemon(cli, wait_ms);
        result = lk_connect(cli);
    }
    if (result != LK_EXIT_DONE) {
        return result;
    }
    lk_words_add(&words, "PING");
    start_ms = monotonic_ms();
    result = lk_call(cli, &words, &reply);
    took_ms = monotonic_ms() - start_ms;
    if (result != LK_EXIT_DONE) {
        return result;
    }
    if (!lk_reply_is(reply, "PONG")) {
        return lk_complain_reply(cli);
    }
    return check_health(cli, wait_ms > 0, took_ms);
}
