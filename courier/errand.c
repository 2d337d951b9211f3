/* errand.c - leased jobs in the courier's hands, and queues of them. */
#include "courier/courier.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SPARE_MAX = 1024,
    KEEP_CAP = 4 << 10, /* a buffer that is larger is not kept */
};

void lk_errands_add(struct lk_errands *queue, struct lk_errand *errand)
{
    errand->next = NULL;
    if (!queue->head) {
        queue->tail = &queue->head;
    }
    *queue->tail = errand;
    queue->tail = &errand->next;
    queue->count++;
}

struct lk_errand *lk_errands_take(struct lk_errands *queue)
{
    struct lk_errand *errand = queue->head;

    if (errand) {
        queue->head = errand->next;
        queue->count--;
    }
    return errand;
}

bool lk_errands_remove(struct lk_errands *queue, struct lk_errand *errand)
{
    for (struct lk_errand **at = &queue->head; *at; at = &(*at)->next) {
        if (*at == errand) {
            *at = errand->next;
            if (!*at) {
                queue->tail = at;
            }
            queue->count--;
            return true;
        }
    }
    return false;
}

static void link_errand(struct lk_courier *courier, struct lk_errand *errand)
{
    errand->left = NULL;
    errand->right = courier->hand;
    if (courier->hand) {
        courier->hand->left = errand;
    }
    courier->hand = errand;
    courier->hand_count++;
    courier->hand_bytes += errand->job.text.cap;
    errand->outlet->bytes += errand->job.text.cap;
}

static void unlink_errand(struct lk_courier *courier, struct lk_errand *errand)
{
    if (errand->right) {
        errand->right->left = errand->left;
    }
    if (errand->left) {
        errand->left->right = errand->right;
    } else {
        courier->hand = errand->right;
    }
    courier->hand_count--;
    courier->hand_bytes -= errand->job.text.cap;
    errand->outlet->bytes -= errand->job.text.cap;
}

struct lk_errand *lk_errand_make(struct lk_courier *courier,
                                 const struct lk_courier_step *step,
                                 struct lk_outlet *outlet, struct lk_job *job)
{
    struct lk_errand *errand = courier->spare;

    if (errand) {
        courier->spare = errand->next;
        courier->spare_count--;
    } else {
        errand = calloc(1, sizeof(*errand));
    }
    if (!errand) {
        return NULL;
    }
    errand->job = *job;
    *job = (struct lk_job){0};
    errand->outlet = outlet;
    errand->state = LK_ERRAND_READY;
    errand->piece = LK_JOB_BATCH_ENDS;
    errand->taken_ms = step->given_ms;
    errand->lease_ms = lk_step_lease_ms(step);
    link_errand(courier, errand);
    return errand;
}

static void reset_buf(struct lk_buf *buf)
{
    if (buf->cap > KEEP_CAP) {
        latchkey_buf_free(buf);
    }
    buf->len = 0;
}

static void free_errand(struct lk_errand *errand)
{
    latchkey_buf_free(&errand->headers);
    latchkey_buf_free(&errand->body);
    latchkey_buf_free(&errand->provider_id);
    free(errand);
}

static void leave_trial(struct lk_errand *errand)
{
    errand->outlet->trials -= errand->trial;
    errand->trial = false;
}

void lk_errand_free(struct lk_courier *courier, struct lk_errand *errand)
{
    assert(!errand->step);
    leave_trial(errand);
    unlink_errand(courier, errand);
    lk_job_free(&errand->job);
    if (courier->spare_count == SPARE_MAX) {
        free_errand(errand);
        return;
    }
    struct lk_buf headers = errand->headers;
    struct lk_buf body = errand->body;
    struct lk_buf provider_id = errand->provider_id;
    reset_buf(&headers);
    reset_buf(&body);
    reset_buf(&provider_id);
    *errand = (struct lk_errand){.next = courier->spare,
                                 .headers = headers,
                                 .body = body,
                                 .provider_id = provider_id};
    courier->spare = errand;
    courier->spare_count++;
}

void lk_errand_free_spare(struct lk_courier *courier)
{
    while (courier->spare) {
        struct lk_errand *errand = courier->spare;
        courier->spare = errand->next;
        free_errand(errand);
    }
    courier->spare_count = 0;
}

static void queue_end(struct lk_courier *courier, struct lk_errand *errand)
{
    if (errand->silent) {
        lk_errand_free(courier, errand);
    } else {
        lk_errands_add(&courier->ended, errand);
    }
}

void lk_errand_end(struct lk_courier *courier, struct lk_errand *errand)
{
    leave_trial(errand);
    errand->state = LK_ERRAND_ENDED;
    if (!errand->step) {
        queue_end(courier, errand);
    }
}

void lk_errand_mark(struct lk_courier *courier, struct lk_errand *errand)
{
    errand->state = LK_ERRAND_MARKING;
    if (!errand->step) {
        lk_errands_add(&courier->marking, errand);
    }
}

void lk_errand_leave_step(struct lk_courier *courier, struct lk_errand *errand)
{
    errand->step = NULL;
    if (errand->state == LK_ERRAND_ENDED) {
        queue_end(courier, errand);
    } else if (errand->state == LK_ERRAND_MARKING && courier->stopping) {
        /* Nothing leaves any more: the store is told so, whether it has the
         * mark or not. */
        errand->outlet->busy--;
        lk_errand_return(courier, errand, 0, "the courier stops");
    } else if (errand->state == LK_ERRAND_MARKING) {
        lk_errands_add(&courier->marking, errand);
    }
}

void lk_errand_return(struct lk_courier *courier, struct lk_errand *errand,
                      uint64_t delay_ms, const char *reason)
{
    errand->returned = true;
    errand->sent = false;
    errand->status = 0;
    errand->delay_ms = delay_ms;
    snprintf(errand->result.reason, sizeof(errand->result.reason), "%s",
             reason);
    lk_errand_end(courier, errand);
}
