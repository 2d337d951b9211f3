/*
 * delivery.c - a delivery: one leased job in the courier's hands, from its
 * lease to the end that the store takes.
 *
 *   state     what holds                          goes on by
 *   (none)    the store has leased the job        lk_delivery_make: READY
 *   READY     nothing has left. In live->ready;   lk_calls_start: MARKING where
 *             a batch may be renewing its lease.  the store must know first or
 *             May be returned at any time.        the lease is too old; else
 *                                                 RUNNING. Or ENDED: returned,
 *                                                 too old, in doubt
 *   MARKING   nothing has left. Counted in        lk_calls_marked: RUNNING.
 *             live->busy. In courier->marking,    A stale mark: freed. Shutting
 *             courier->later or a batch.          down: ENDED, returned
 *   RUNNING   curl has it: from here on it may    finish_call: ENDED.
 *             have reached the target. Counted    abandon_call: ENDED
 *             in live->busy, courier->running.
 *   ENDED     the result is known here and must   stored or stale: freed.
 *             be stored. In courier->ended,       Refused alone: freed, its
 *             courier->later or a batch.          lease runs out
 *
 * Only the courier's thread touches a delivery. lk_delivery_free ends it, never
 * while it is in a batch; its memory goes to courier->spare.
 */
#include "courier/courier.h"
#include "courier/webhook_sign.h"
#include "daemon/log.h"
#include "store/fault.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SPARE_DELIVERIES_MAX = 1024,
    DELIVERY_BUF_CAP = 4 << 10, /* a larger buffer is not used again */
};

/* ---- queues -------------------------------------------------------------- */

void lk_deliveries_add(struct lk_deliveries *queue,
                       struct lk_delivery *delivery)
{
    delivery->next = NULL;
    if (!queue->head) {
        queue->tail = &queue->head;
    }
    *queue->tail = delivery;
    queue->tail = &delivery->next;
    queue->count++;
}

struct lk_delivery *lk_deliveries_take(struct lk_deliveries *queue)
{
    struct lk_delivery *delivery = queue->head;

    if (delivery) {
        queue->head = delivery->next;
        queue->count--;
    }
    return delivery;
}

bool lk_deliveries_remove(struct lk_deliveries *queue,
                          struct lk_delivery *delivery)
{
    for (struct lk_delivery **at = &queue->head; *at; at = &(*at)->next) {
        if (*at == delivery) {
            *at = delivery->next;
            if (!*at) {
                queue->tail = at;
            }
            queue->count--;
            return true;
        }
    }
    return false;
}

/* ---- life ---------------------------------------------------------------- */

static void link_delivery(struct lk_courier *courier,
                          struct lk_delivery *delivery)
{
    delivery->prev_of_all = NULL;
    delivery->next_of_all = courier->deliveries;
    if (courier->deliveries) {
        courier->deliveries->prev_of_all = delivery;
    }
    courier->deliveries = delivery;
    courier->delivery_count++;
    courier->delivery_bytes += delivery->job.text.cap;
    delivery->live->bytes += delivery->job.text.cap;
}

static void unlink_delivery(struct lk_courier *courier,
                            struct lk_delivery *delivery)
{
    if (delivery->next_of_all) {
        delivery->next_of_all->prev_of_all = delivery->prev_of_all;
    }
    if (delivery->prev_of_all) {
        delivery->prev_of_all->next_of_all = delivery->next_of_all;
    } else {
        courier->deliveries = delivery->next_of_all;
    }
    courier->delivery_count--;
    courier->delivery_bytes -= delivery->job.text.cap;
    delivery->live->bytes -= delivery->job.text.cap;
}

struct lk_delivery *lk_delivery_make(struct lk_courier *courier,
                                     const struct lk_courier_batch *batch,
                                     struct lk_live_target *live,
                                     struct lk_job *job)
{
    struct lk_delivery *delivery = courier->spare;

    assert(live->target);
    if (delivery) {
        courier->spare = delivery->next;
        courier->spare_count--;
    } else {
        delivery = calloc(1, sizeof(*delivery));
    }
    if (!delivery) {
        return NULL;
    }
    delivery->job = *job;
    *job = (struct lk_job){0};
    delivery->live = live;
    delivery->state = LK_DELIVERY_READY;
    delivery->ends_max = LK_JOB_BATCH_ENDS;
    delivery->leased_ms = batch->given_ms;
    delivery->lease_from_ms = lk_courier_batch_lease_from_ms(batch);
    link_delivery(courier, delivery);
    return delivery;
}

static void reset_delivery_buf(struct lk_buf *buf)
{
    if (buf->cap > DELIVERY_BUF_CAP) {
        latchkey_buf_free(buf);
    }
    buf->len = 0;
}

static void release_delivery(struct lk_delivery *delivery)
{
    latchkey_buf_free(&delivery->headers);
    latchkey_buf_free(&delivery->body);
    latchkey_buf_free(&delivery->provider_id);
    free(delivery);
}

/* The half-open circuit may have another trial. */
static void end_trial(struct lk_delivery *delivery)
{
    delivery->live->trials -= delivery->trial;
    delivery->trial = false;
}

void lk_delivery_free(struct lk_courier *courier, struct lk_delivery *delivery)
{
    assert(!delivery->batch && !delivery->exchange);
    end_trial(delivery);
    unlink_delivery(courier, delivery);
    lk_job_free(&delivery->job);
    if (courier->spare_count == SPARE_DELIVERIES_MAX) {
        release_delivery(delivery);
        return;
    }
    struct lk_buf headers = delivery->headers;
    struct lk_buf body = delivery->body;
    struct lk_buf provider_id = delivery->provider_id;
    reset_delivery_buf(&headers);
    reset_delivery_buf(&body);
    reset_delivery_buf(&provider_id);
    *delivery = (struct lk_delivery){.next = courier->spare,
                                     .headers = headers,
                                     .body = body,
                                     .provider_id = provider_id};
    courier->spare = delivery;
    courier->spare_count++;
}

void lk_delivery_free_spare(struct lk_courier *courier)
{
    while (courier->spare) {
        struct lk_delivery *delivery = courier->spare;
        courier->spare = delivery->next;
        release_delivery(delivery);
    }
    courier->spare_count = 0;
}

/* It is in no batch: its end waits for the next one. */
static void queue_delivery_end(struct lk_courier *courier,
                               struct lk_delivery *delivery)
{
    if (delivery->unstored) {
        lk_delivery_free(courier, delivery);
    } else {
        lk_deliveries_add(&courier->ended, delivery);
    }
}

void lk_delivery_end(struct lk_courier *courier, struct lk_delivery *delivery)
{
    end_trial(delivery);
    delivery->state = LK_DELIVERY_ENDED;
    if (!delivery->batch) {
        queue_delivery_end(courier, delivery);
    }
}

/* It has its place among the target's calls, and waits for a mark. */
static void start_marking(struct lk_courier *courier,
                          struct lk_delivery *delivery)
{
    assert(delivery->live->busy > 0);
    delivery->state = LK_DELIVERY_MARKING;
    if (!delivery->batch) {
        lk_deliveries_add(&courier->marking, delivery);
    }
}

void lk_delivery_leave_batch(struct lk_courier *courier,
                             struct lk_delivery *delivery)
{
    delivery->batch = NULL;
    if (delivery->state == LK_DELIVERY_ENDED) {
        queue_delivery_end(courier, delivery);
    } else if (delivery->state == LK_DELIVERY_MARKING && courier->stopping) {
        /* Nothing leaves any more. The return also takes a mark back that the
         * store may have. */
        delivery->live->busy--;
        lk_delivery_return(courier, delivery, 0,
                           "the courier is shutting down");
    } else if (delivery->state == LK_DELIVERY_MARKING) {
        lk_deliveries_add(&courier->marking, delivery);
    }
}

void lk_delivery_return(struct lk_courier *courier,
                        struct lk_delivery *delivery, uint64_t delay_ms,
                        const char *reason)
{
    delivery->returned = true;
    delivery->sent = false;
    delivery->status = 0;
    delivery->delay_ms = delay_ms;
    snprintf(delivery->result.reason, sizeof(delivery->result.reason), "%s",
             reason);
    lk_delivery_end(courier, delivery);
}

/* ---- the log ------------------------------------------------------------- */

/* How an end is named in the log. */
struct report_words {
    enum lk_log_level level;
    const char *event;
};

/* The event and level by which an end is logged. */
static struct report_words report_words_of(const struct lk_delivery *delivery)
{
    if (delivery->unstored) {
        return (struct report_words){LK_LOG_WARN, "request-slow"};
    }
    if (delivery->returned) {
        return (struct report_words){LK_LOG_DEBUG, "job-returned"};
    }
    if (delivery->live->gateway && delivery->result.end == LK_END_UNCERTAIN) {
        /* Uncertain, unless the store knows that it was never called. */
        return (struct report_words){LK_LOG_WARN, "request-lost"};
    }
    switch (delivery->result.end) {
    case LK_END_DELIVERED:
        return (struct report_words){LK_LOG_DEBUG, "job-delivered"};
    case LK_END_DEAD:
        return (struct report_words){LK_LOG_ERROR, "job-dead"};
    case LK_END_UNCERTAIN:
        return (struct report_words){LK_LOG_ERROR, "job-uncertain"};
    case LK_END_RETRY:
    case LK_END_RETURN:
        break;
    }
    return (struct report_words){LK_LOG_INFO, "job-failed"};
}

/* One line for the end of an attempt, below the level that is logged
 * nothing. */
static void log_delivery_end(const struct lk_courier *courier,
                             const struct lk_delivery *delivery)
{
    struct report_words words = report_words_of(delivery);
    const struct lk_job *job = &delivery->job;
    char reference[LK_REFERENCE_TEXT + 1];
    char name[LK_LOG_QUOTED];
    char reason[LK_LOG_QUOTED];
    char wait[40] = "";

    if (!lk_log_enabled(words.level)) {
        return;
    }
    latchkey_reference_encode(job->number, courier->store->reference_secret,
                              reference);
    lk_log_quote(job->name.len ? job->name : LK_SLICE("(request)"), name,
                 sizeof(name));
    lk_log_quote(latchkey_slice(delivery->result.reason), reason,
                 sizeof(reason));
    if (delivery->returned ||
        (delivery->result.end == LK_END_RETRY && !delivery->unstored)) {
        snprintf(wait, sizeof(wait), " wait_ms=%llu",
                 (unsigned long long)delivery->delay_ms);
    }
    lk_log(words.level, words.event,
           "job=%llu reference=%s name=%s target=%s attempt=%u status=%u%s%s%s",
           (unsigned long long)job->id, reference, name, delivery->live->name,
           job->attempts, delivery->status,
           delivery->result.reason[0] ? " reason=" : "",
           delivery->result.reason[0] ? reason : "", wait);
}

/* ---- calls --------------------------------------------------------------- */

/* How long a job waits after it could not be called for lack of memory. */
enum { NO_ROOM_MS = 1000 };

/* Attempts that count against the target's limit, this one included. */
static unsigned failures_of(const struct lk_delivery *delivery)
{
    return delivery->job.attempts - delivery->job.forgiven;
}

static bool honours_key(const struct lk_delivery *delivery)
{
    return delivery->live->target->honours && !delivery->live->gateway;
}

/* Must the store know of the call before it leaves? The gateway marks a request
 * itself before it sends it to the app. A job that was leased while the target
 * honoured the key counts as marked. */
static bool needs_mark(const struct lk_delivery *delivery)
{
    return !delivery->live->gateway && !delivery->marked;
}

/* The store's clock, or a little later: the store read its clock after we read
 * ours. Ours also runs while the process is stopped. */
static uint64_t store_now_ms(const struct lk_delivery *delivery)
{
    return delivery->job.now_ms + (lk_courier_clock_ms() - delivery->leased_ms);
}

static uint64_t age_ms(const struct lk_delivery *delivery)
{
    const struct lk_job *job = &delivery->job;
    uint64_t from_ms = job->since_ms ? job->since_ms : job->created_ms;
    uint64_t now_ms = store_now_ms(delivery);

    return now_ms > from_ms ? now_ms - from_ms : 0;
}

/* Ends it with that result, though this attempt was not called. */
static void end_without_call(struct lk_courier *courier,
                             struct lk_delivery *delivery, enum lk_end end,
                             const char *reason)
{
    delivery->result = (struct lk_result){.end = end, .healthy = true};
    lk_result_reason(&delivery->result, "%s", reason);
    delivery->sent = false;
    delivery->live->now.dead += end == LK_END_DEAD;
    delivery->live->now.uncertain += end == LK_END_UNCERTAIN;
    delivery->live->dirty = true;
    log_delivery_end(courier, delivery);
    lk_delivery_end(courier, delivery);
}

/* It can never be called: dead. An asynchronous request is completed with a
 * problem document. */
static void refuse_delivery(struct lk_courier *courier,
                            struct lk_delivery *delivery, const char *reason)
{
    if (delivery->live->gateway &&
        lk_request_problem(courier->store, delivery)) {
        lk_delivery_return(courier, delivery, NO_ROOM_MS, "out of memory");
        return;
    }
    end_without_call(courier, delivery, LK_END_DEAD, reason);
}

/* An earlier call may have taken effect, and the target does not honour the
 * key, or no longer: another call could repeat it. True: it was ended. */
static bool end_if_in_doubt(struct lk_courier *courier,
                            struct lk_delivery *delivery)
{
    if (!delivery->job.doubt || honours_key(delivery)) {
        return false;
    }
    end_without_call(
        courier, delivery, LK_END_UNCERTAIN,
        "an earlier response was lost, and the target does not honour "
        "keys now");
    return true;
}

/* The service may no longer know the key, and would take the call for a new
 * one. True: it was ended. */
static bool end_if_key_forgotten(struct lk_courier *courier,
                                 struct lk_delivery *delivery)
{
    const struct lk_job *job = &delivery->job;

    if (!honours_key(delivery) ||
        !lk_job_is_forgotten(job->sent, job->sent_ms, job->created_ms,
                             delivery->live->target->key_life_ms,
                             store_now_ms(delivery))) {
        return false;
    }
    end_without_call(
        courier, delivery, LK_END_UNCERTAIN,
        "it was sent, and the service may have forgotten the key since "
        "(key_life)");
    return true;
}

/* It has waited longer than max_age. True: it was ended. */
static bool end_if_too_old(struct lk_courier *courier,
                           struct lk_delivery *delivery)
{
    uint64_t most_ms = delivery->live->target->max_age_ms;

    if (!most_ms || age_ms(delivery) < most_ms) {
        return false;
    }
    if (delivery->job.doubt) {
        end_without_call(
            courier, delivery, LK_END_UNCERTAIN,
            "too old to be called (max_age), and an earlier response was "
            "lost");
    } else {
        refuse_delivery(courier, delivery, "too old to be called (max_age)");
    }
    return true;
}

/*
 * It may have waited for any time, in the store or here. True: it must not be
 * called any more. It is then ended, and may be freed.
 */
static bool end_if_over(struct lk_courier *courier,
                        struct lk_delivery *delivery)
{
    return end_if_in_doubt(courier, delivery) ||
           end_if_key_forgotten(courier, delivery) ||
           end_if_too_old(courier, delivery);
}

/* ---- starting a call ----------------------------------------------------- */

/* Sets courier->extra: the key and the signature, or for the gateway the
 * operation's name. */
static enum lk_status add_call_headers(struct lk_courier *courier,
                                       const struct lk_delivery *delivery)
{
    const struct lk_target *target = delivery->live->target;
    struct lk_buf *extra = &courier->extra;
    char key[LK_JOB_KEY + 1];

    extra->len = 0;
    if (delivery->live->gateway) {
        return lk_request_headers(courier->store, &delivery->job, extra);
    }
    lk_job_key(courier->store->reference_secret, &delivery->job, key);
    enum lk_status status = latchkey_buf_add_text(
        extra, target->key_header ? target->key_header : "Idempotency-Key");
    if (!status) {
        status = latchkey_buf_add_text(extra, ": ");
    }
    if (!status) {
        status = latchkey_buf_add_text(extra, key);
    }
    if (!status) {
        status = latchkey_buf_add_text(extra, "\r\n");
    }
    if (!status && target->sign_secret) {
        status =
            lk_sign(latchkey_slice(target->sign_secret), latchkey_slice(key),
                    lk_courier_wall_ms() / 1000, delivery->job.body, extra);
    }
    return status;
}

/* Hands the call to the exchange. Where the key is not honoured, the call must
 * reach its target before the lease ends: connecting may not take longer than
 * `left_ms`, what is left of the lease. */
static enum lk_status begin_exchange(struct lk_courier *courier,
                                     struct lk_delivery *delivery,
                                     uint64_t left_ms)
{
    const struct lk_target *target = delivery->live->target;
    struct lk_http_request request = {
        .target = target,
        .method = delivery->job.method,
        .path = delivery->job.path,
        .headers = delivery->job.headers,
        .body = delivery->job.body,
        .gateway = delivery->live->gateway,
        .connect_timeout_ms = target->connect_timeout_ms,
    };
    enum lk_status status = add_call_headers(courier, delivery);

    if (!delivery->honours && left_ms < request.connect_timeout_ms) {
        request.connect_timeout_ms = left_ms;
    }
    request.extra = latchkey_buf_slice(&courier->extra);
    return status ? status : lk_exchange_begin(delivery->exchange, &request);
}

/* Gives back its place among the target's calls, and its handle. */
static void leave_call_place(struct lk_delivery *delivery)
{
    assert(delivery->live->busy > 0);
    if (delivery->exchange) {
        delivery->exchange->owner = NULL;
        lk_live_target_put_exchange(delivery->live, delivery->exchange);
        delivery->exchange = NULL;
    }
    delivery->live->busy--;
}

/*
 * The call leaves here. It has its place among the target's calls, a lease that
 * is valid for `left_ms`, and its mark if it needs one. If the call cannot even
 * begin, the delivery is ended and may be freed.
 */
static void start_call(struct lk_courier *courier, struct lk_delivery *delivery,
                       uint64_t left_ms)
{
    enum lk_status status = LK_NOMEM;

    assert(left_ms > 0 && left_ms <= courier->settings->lease_ms);
    assert(!needs_mark(delivery) && !delivery->lost && !courier->stopping);
    assert(honours_key(delivery) || !delivery->job.doubt);
    delivery->honours = honours_key(delivery);
    delivery->exchange = lk_live_target_take_exchange(delivery->live);
    if (delivery->exchange) {
        delivery->exchange->owner = delivery;
        delivery->exchange->response.error[0] = 0;
        status = begin_exchange(courier, delivery, left_ms);
    }
    if (!status) {
        status = lk_poll_attach(&courier->poll, delivery->exchange->easy);
    }
    if (!status &&
        curl_multi_add_handle(courier->poll.multi, delivery->exchange->easy)) {
        status = LK_NOMEM;
    }
    if (!status) {
        delivery->state = LK_DELIVERY_RUNNING;
        courier->running++;
        return;
    }
    if (status == LK_INVALID && delivery->exchange->response.error[0]) {
        refuse_delivery(courier, delivery, delivery->exchange->response.error);
    } else if (status == LK_INVALID) {
        refuse_delivery(courier, delivery,
                        delivery->live->gateway
                            ? "the operation's name does not fit into a header"
                            : "the target's signing secret cannot be read");
    } else {
        lk_delivery_return(courier, delivery, NO_ROOM_MS, "out of memory");
    }
    leave_call_place(delivery);
}

/* It has its place. The clock is read last of all: the process may have been
 * stopped since the lease was given, or since the mark. */
static void mark_or_call(struct lk_courier *courier,
                         struct lk_delivery *delivery)
{
    uint64_t lease_ms = courier->settings->lease_ms;

    if (needs_mark(delivery)) {
        start_marking(courier, delivery);
        return;
    }
    lk_fault_point("courier_before_call");
    uint64_t passed_ms = lk_courier_clock_ms() - delivery->lease_from_ms;
    if (passed_ms >= lease_ms - lease_ms / 3) {
        start_marking(courier, delivery);
        return;
    }
    if (end_if_over(courier, delivery)) {
        delivery->live->busy--;
        return;
    }
    start_call(courier, delivery, lease_ms - passed_ms);
}

void lk_calls_marked(struct lk_courier *courier, struct lk_delivery *delivery)
{
    if (courier->stopping || !delivery->live->configured) {
        delivery->live->busy--;
        lk_delivery_return(courier, delivery, 0,
                           courier->stopping
                               ? "the courier is shutting down"
                               : "the target is not configured any more");
        return;
    }
    mark_or_call(courier, delivery);
}

/* Starts the ready calls of one target while it has room, in their order. */
static size_t start_target_calls(struct lk_courier *courier,
                                 struct lk_live_target *live,
                                 uint64_t *again_ms)
{
    size_t count = 0;

    while (lk_live_target_may_call(courier, live, again_ms)) {
        struct lk_delivery *delivery = lk_deliveries_take(&live->ready);
        if (end_if_over(courier, delivery)) {
            continue;
        }
        /* Its couriers were lost again and again before they could store an
         * end, perhaps because of this job. */
        if (failures_of(delivery) > live->target->attempts) {
            refuse_delivery(courier, delivery,
                            "given up: its attempts ended without a result");
            continue;
        }
        lk_live_target_spend(live);
        live->busy++;
        count++;
        mark_or_call(courier, delivery);
    }
    return count;
}

size_t lk_calls_start(struct lk_courier *courier, uint64_t *again_ms)
{
    size_t count = 0;

    for (struct lk_live_target *live = courier->live_targets; live;
         live = live->next) {
        if (live->ready.head) {
            count += start_target_calls(courier, live, again_ms);
        }
    }
    return count;
}

/* ---- ending a call ------------------------------------------------------- */

/* Copies what is stored of the response, cut to settings->response_bytes. */
static void keep_response(const struct lk_courier *courier,
                          struct lk_delivery *delivery)
{
    const struct lk_http_response *response = &delivery->exchange->response;
    size_t len = response->body.len;

    delivery->status = response->status;
    delivery->sent =
        delivery->live->gateway ? lk_request_left(response) : response->sent;
    delivery->headers.len = delivery->body.len = delivery->provider_id.len = 0;
    if (delivery->live->gateway) {
        return; /* the gateway has completed the operation with it */
    }
    if (len > courier->settings->response_bytes) {
        len = (size_t)courier->settings->response_bytes;
    }
    /* Out of memory: the status is what counts. */
    if (latchkey_buf_add_slice(&delivery->headers,
                               latchkey_buf_slice(&response->headers)) ||
        latchkey_buf_add(&delivery->body, response->body.data, len)) {
        delivery->headers.len = delivery->body.len = 0;
    }
    if (delivery->result.end == LK_END_DELIVERED) {
        lk_provider_id(delivery->live->target, response,
                       &delivery->provider_id);
    }
}

/* Sets the result and, if the job is due again, when. */
static void judge_delivery(struct lk_courier *courier,
                           struct lk_delivery *delivery)
{
    const struct lk_http_response *response = &delivery->exchange->response;
    const struct lk_target *target = delivery->live->target;
    struct lk_result *result = &delivery->result;

    if (delivery->live->gateway) {
        lk_request_result(delivery->job.repeatable, response, result);
    } else {
        lk_result_of(target, delivery->honours && target->honours, response,
                     result);
    }
    result->doubt |= delivery->job.doubt && result->end == LK_END_RETRY;
    lk_result_give_up(target, failures_of(delivery), age_ms(delivery), result);
    /* The store puts a request back that the gateway never took. */
    if (result->end == LK_END_RETRY || delivery->live->gateway) {
        uint64_t asked_ms =
            lk_asked_wait_ms(target, latchkey_buf_slice(&response->headers),
                             lk_courier_wall_ms());
        delivery->delay_ms =
            lk_retry_delay_ms(target, failures_of(delivery), asked_ms,
                              lk_chance_next(&courier->chance));
    }
}

/* The app takes longer than we wait, and the gateway, which holds the
 * operation's lock, still waits for it. Then nothing is stored here: the lease
 * lasts as long as that lock, and the gateway stores the outcome. */
static bool gateway_goes_on(const struct lk_delivery *delivery)
{
    const struct lk_http_response *response = &delivery->exchange->response;

    return delivery->live->gateway && response->late && response->sent &&
           !response->status;
}

/* curl is done with the call: it is now ENDED, and may be freed. */
static void finish_call(struct lk_courier *courier,
                        struct lk_delivery *delivery)
{
    assert(delivery->state == LK_DELIVERY_RUNNING && courier->running > 0);
    judge_delivery(courier, delivery);
    keep_response(courier, delivery);
    delivery->unstored = gateway_goes_on(delivery);
    if (delivery->unstored) {
        delivery->result.end = LK_END_RETRY;
        lk_result_reason(&delivery->result,
                         "no response within gateway_timeout, "
                         "the gateway goes on with the request");
    }
    leave_call_place(delivery);
    delivery->live->ended++;
    courier->running--;
    if (delivery->live->gateway && delivery->result.end == LK_END_DEAD &&
        lk_request_problem(courier->store, delivery)) {
        delivery->result.end = LK_END_RETRY; /* until there is memory */
    }
    lk_live_target_note_end(courier, delivery);
    log_delivery_end(courier, delivery);
    lk_delivery_end(courier, delivery);
}

size_t lk_calls_run(struct lk_courier *courier)
{
    size_t count = 0;
    int left = 0;
    CURLMsg *message;

    lk_poll_timers(&courier->poll);
    while ((message = curl_multi_info_read(courier->poll.multi, &left))) {
        CURL *easy = message->easy_handle;
        CURLcode code = message->data.result;
        struct lk_exchange *exchange = NULL;
        if (message->msg != CURLMSG_DONE ||
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&exchange)) {
            continue;
        }
        curl_multi_remove_handle(courier->poll.multi, easy); /* frees message */
        lk_fault_point("courier_after_call");
        lk_exchange_end(exchange, code);
        finish_call(courier, exchange->owner);
        count++;
    }
    return count;
}

/* ---- giving up, while shutting down -------------------------------------- */

/*
 * A call that has left cannot be taken back. The gateway goes on without us: it
 * holds the operation's lock and will complete the operation, so its lease is
 * left to run out.
 */
static void abandon_call(struct lk_courier *courier,
                         struct lk_delivery *delivery)
{
    static const char reason[] =
        "the courier was stopped before a response came";
    struct lk_exchange *exchange = delivery->exchange;

    curl_multi_remove_handle(courier->poll.multi, exchange->easy);
    lk_exchange_end(exchange, CURLE_ABORTED_BY_CALLBACK);
    bool sent = exchange->response.sent;
    courier->running--;
    leave_call_place(delivery);
    if (!sent) {
        lk_delivery_return(courier, delivery, 0,
                           "the courier is shutting down");
    } else if (delivery->live->gateway) {
        delivery->unstored = true;
        lk_delivery_end(courier, delivery);
    } else {
        delivery->result = (struct lk_result){
            .end = delivery->honours ? LK_END_RETRY : LK_END_UNCERTAIN,
            .doubt = true};
        lk_result_reason(&delivery->result, "%s", reason);
        delivery->sent = true;
        log_delivery_end(courier, delivery);
        lk_delivery_end(courier, delivery);
    }
}

void lk_calls_abandon(struct lk_courier *courier, bool all)
{
    struct lk_delivery *next;

    for (struct lk_delivery *delivery = courier->deliveries; delivery;
         delivery = next) {
        next = delivery->next_of_all;
        if (delivery->state == LK_DELIVERY_RUNNING &&
            (all || delivery->live->gateway)) {
            abandon_call(courier, delivery);
        }
    }
}
