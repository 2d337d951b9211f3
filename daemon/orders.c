/*
 * orders.c - what operators order about jobs and targets, on its way to the
 * store: those that come while one step is made durable form the next.
 */
#include "daemon/batcher.h"

#include <stdlib.h>
#include <string.h>

enum { ORDERS_MOST = 256 }; /* in one step */

/* One step. Belongs to the store until it is done. */
struct orders {
    struct lk_job_batch job_batch;
    struct lk_returns *returns;
    struct lk_task_queue tasks; /* in the order of `list` */
    struct lk_key_life *lives;
    struct lk_job_action list[];
};

/* What was called again may be uncertain again: a second order without an
 * attempt would speak of something else. */
static enum lk_status reply(struct lk_task *task,
                            const struct lk_job_batch *job_batch,
                            const struct lk_job_action *order)
{
    if (!job_batch->status) {
        return lk_reply_order(&task->text, task->proto, order);
    }
    return lk_reply_failure(
        &task->text, job_batch->status, job_batch->error,
        order->order == LK_ACTION_PAUSE || order->order == LK_ACTION_RESUME
            ? "send the same again"
            : "look at the job before you send it again, with its ATTEMPT");
}

static void log_order(const struct lk_task *task,
                      const struct lk_job_action *order)
{
    static const char *const actions[] = {
        [LK_ACTION_RETRY] = "job retry",
        [LK_ACTION_DROP] = "job drop",
        [LK_ACTION_DELIVERED] = "job delivered",
        [LK_ACTION_AGAIN] = "job again",
        [LK_ACTION_PAUSE] = "target pause",
        [LK_ACTION_RESUME] = "target resume",
    };
    char about[LK_TARGET_NAME_MAX + 16];

    if (order->target.len) {
        snprintf(about, sizeof(about), "target=%.*s", (int)order->target.len,
                 order->target.data);
    } else {
        snprintf(about, sizeof(about), "job=%llu",
                 (unsigned long long)order->id);
    }
    lk_act_log(&task->demand, latchkey_slice(actions[order->order]), about);
}

/* Store thread. */
static void finish(struct lk_job_batch *job_batch)
{
    struct orders *orders = job_batch->context;
    const struct lk_job_action *order = orders->list;

    for (struct lk_task *task = orders->tasks.head; task; task = task->next) {
        if (!job_batch->status && !order->status_out) {
            log_order(task, order);
        }
        task->demand.op.status = reply(task, job_batch, order++);
    }
    lk_returns_give(orders->returns, &orders->tasks, NULL);
    lk_job_batch_clear(job_batch);
    free(orders->lives);
    free(orders);
}

static void fill(struct lk_job_action *order, const struct lk_demand *demand)
{
    *order = demand->order;
    order->who = demand->op.who;
    order->why = demand->op.why;
    if (order->order == LK_ACTION_PAUSE || order->order == LK_ACTION_RESUME) {
        order->target = demand->op.reason;
    } else {
        order->provider_id = demand->op.reason;
    }
}

/* Of the targets with keys; a copy, because the settings may change while the
 * store is at work. */
static struct lk_key_life *copy_lives(const struct lk_targets *targets,
                                      size_t *count)
{
    size_t name_size = LK_TARGET_NAME_MAX + 1;
    struct lk_key_life *lives =
        calloc(targets->count + 1, sizeof(*lives) + name_size);
    char *name = (char *)(lives + targets->count);

    *count = 0;
    for (size_t i = 0; lives && i < targets->count; i++) {
        const struct lk_target *target = &targets->targets[i];
        if (target->honours && target->key_life_ms) {
            memcpy(name, target->name, strlen(target->name) + 1);
            lives[(*count)++] =
                (struct lk_key_life){latchkey_slice(name), target->key_life_ms};
            name += name_size;
        }
    }
    return lives;
}

/* Without memory each gets an empty text, and its connection is closed. */
static void give_up(struct lk_server *server)
{
    for (struct lk_task *task = server->to_order.head; task;
         task = task->next) {
        task->demand.op.status = LK_NOMEM;
        server->ordering++;
    }
    lk_returns_give(&server->returns, &server->to_order, NULL);
}

void lk_orders_give(struct lk_server *server)
{
    size_t count = server->to_order.count;
    struct orders *orders;

    if (server->ordering) {
        return;
    }
    count = count < ORDERS_MOST ? count : ORDERS_MOST;
    size_t life_count;
    struct lk_key_life *lives =
        copy_lives(&server->config.targets, &life_count);
    orders = calloc(1, sizeof(*orders) + count * sizeof(orders->list[0]));
    if (!orders || !lives) {
        free(orders);
        free(lives);
        give_up(server);
        return;
    }
    orders->returns = &server->returns;
    orders->lives = lives;
    for (size_t i = 0; i < count; i++) {
        struct lk_task *task = lk_task_queue_take(&server->to_order);
        fill(&orders->list[i], &task->demand);
        lk_task_queue_add(&orders->tasks, task);
    }
    orders->job_batch = (struct lk_job_batch){.orders = orders->list,
                                              .order_count = count,
                                              .lives = lives,
                                              .life_count = life_count,
                                              .done = finish,
                                              .context = orders};
    server->ordering = count;
    lk_batcher_job_batch(server->batcher, &orders->job_batch);
}

/* What was ordered may be due now, or its target open. */
void lk_orders_returned(struct lk_server *server)
{
    server->ordering--;
    lk_outbox_wake(server);
}
