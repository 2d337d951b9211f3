/*
 * probe.c - TARGET PROBE: what a service says about what is uncertain, asked by
 * the courier on a thread of its own.
 */
#include "daemon/outbox.h"
#include "daemon/reply.h"

#include <stdlib.h>

struct asking {
    struct lk_probe_demand demand;
    struct lk_returns *returns;
    struct lk_task *task;
};

static enum lk_status reply_counts(struct lk_task *task,
                                   const struct lk_probe_counts *counts)
{
    W(lk_resp_map(&task->text, task->proto, 3));
    W(lk_pair_number(&task->text, "happened", counts->happened));
    W(lk_pair_number(&task->text, "absent", counts->absent));
    return lk_pair_number(&task->text, "open", counts->open);
}

static enum lk_status reply(struct lk_task *task,
                            const struct lk_probe_demand *demand)
{
    switch (demand->status) {
    case LK_OK:
        return reply_counts(task, &demand->counts);
    case LK_NOT_FOUND:
        return lk_resp_error(
            &task->text,
            LK_SLICE("ERR TARGET: there is no such target in the courier of "
                     "this daemon, or it has no probe"));
    case LK_AGAIN:
        return lk_resp_error(&task->text,
                             LK_SLICE("UNAVAILABLE the daemon stops"));
    default:
        return lk_reply_unavailable(&task->text, demand->status, NULL);
    }
}

/* The prober's thread, or the loop. */
static void finish(struct lk_probe_demand *demand)
{
    struct asking *asking = demand->context;
    struct lk_task *task = asking->task;
    struct lk_task_queue one = {0};

    task->demand.op.status = reply(task, demand);
    lk_task_queue_add(&one, task);
    lk_returns_give(asking->returns, &one, NULL);
    free(asking);
}

void lk_probe_give(struct lk_server *server, struct lk_task *task)
{
    struct asking *asking = calloc(1, sizeof(*asking));
    struct lk_task_queue one = {0};

    /* A daemon that stops does not wait for a service. */
    lk_task_uncount(server, task);
    if (!asking) {
        task->demand.op.status = LK_NOMEM;
        lk_task_queue_add(&one, task);
        lk_returns_give(&server->returns, &one, NULL);
        return;
    }
    asking->returns = &server->returns;
    asking->task = task;
    asking->demand = (struct lk_probe_demand){
        .target = task->demand.op.reason,
        .done = finish,
        .context = asking,
        .status = LK_NOT_FOUND,
    };
    if (server->courier && server->outbox_class->probe) {
        server->outbox_class->probe(server->courier, &asking->demand);
    } else {
        finish(&asking->demand);
    }
}
