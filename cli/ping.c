/* ping.c - `latchkey ping`: does the daemon answer, and how fast? */
#include "cli/commands.h"

#include <time.h>

static const struct lk_option options[] = {{0}};

const struct lk_manual lk_manual_ping = {
    "Connects to the daemon and asks for a sign of life.", options};

static double monotonic_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

enum lk_exit lk_run_ping(struct lk_cli *cli)
{
    struct lk_doc doc = {.out = &cli->out};
    struct lk_words words = {0};
    const struct lk_reply *reply;
    double start_ms;
    double took_ms;
    enum lk_exit result = lk_connect(cli);

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
    if (cli->json) {
        lk_doc_object(&doc, NULL);
        lk_doc_text(&doc, "result", LK_SLICE("PONG"));
        lk_doc_text(&doc, "server", latchkey_slice(cli->where.address));
        lk_doc_integer(&doc, "took-us", (int64_t)(took_ms * 1000));
        lk_doc_end_object(&doc);
    } else {
        lk_put(&cli->out, "PONG from ");
        lk_put_text(&cli->out, latchkey_slice(cli->where.address));
        lk_put(&cli->out, " in %.3f ms\n", took_ms);
    }
    return LK_EXIT_DONE;
}
