/*
 * calls.c - errands on their way: marked where they must be, called, and what
 * came back.
 */
#include "courier/courier.h"
#include "courier/sign.h"
#include "store/fault.h"

#include <stdlib.h>

/* For lack of memory, or for a handle that curl does not take. */
enum { NO_ROOM_MS = 1000 };

static unsigned failures_of(const struct lk_errand *errand)
{
    return errand->job.attempts - errand->job.forgiven;
}

static bool may_repeat(const struct lk_errand *errand)
{
    return errand->outlet->target->honours && !errand->outlet->gateway;
}

/* The gateway marks a request itself, before the app hears of it. What was
 * leased where the key is honoured is as good as marked. */
static bool needs_mark(const struct lk_errand *errand)
{
    return !errand->outlet->gateway && !errand->marked;
}

/* What the store's clock says, or a little more: the lease was asked for
 * before the store looked at it. Ours goes on while the process is stopped. */
static uint64_t store_now_ms(const struct lk_errand *errand)
{
    return errand->job.now_ms + (lk_courier_clock_ms() - errand->taken_ms);
}

static uint64_t age_ms(const struct lk_errand *errand)
{
    const struct lk_job *job = &errand->job;
    uint64_t from_ms = job->since_ms ? job->since_ms : job->created_ms;
    uint64_t now_ms = store_now_ms(errand);

    return now_ms > from_ms ? now_ms - from_ms : 0;
}

/* Without a call. */
static void end_at_once(struct lk_courier *courier, struct lk_errand *errand,
                        enum lk_end end, const char *reason)
{
    errand->result = (struct lk_result){.end = end, .healthy = true};
    lk_result_reason(&errand->result, "%s", reason);
    errand->sent = false;
    errand->outlet->now.dead += end == LK_END_DEAD;
    errand->outlet->now.uncertain += end == LK_END_UNCERTAIN;
    errand->outlet->dirty = true;
    lk_errand_report(courier, errand);
    lk_errand_end(courier, errand);
}

static void refuse(struct lk_courier *courier, struct lk_errand *errand,
                   const char *reason)
{
    if (errand->outlet->gateway && lk_request_problem(courier->store, errand)) {
        lk_errand_return(courier, errand, NO_ROOM_MS, "out of memory");
        return;
    }
    end_at_once(courier, errand, LK_END_DEAD, reason);
}

/* An earlier call may have happened, and the target does not honour the key, or
 * not any more: another one could be a second. */
static bool end_if_doubted(struct lk_courier *courier, struct lk_errand *errand)
{
    if (!errand->job.doubt || may_repeat(errand)) {
        return false;
    }
    end_at_once(courier, errand, LK_END_UNCERTAIN,
                "an earlier answer was lost, and the target does not honour "
                "keys now");
    return true;
}

/* The service may take a call for a new one that it has had before. */
static bool end_if_forgotten(struct lk_courier *courier,
                             struct lk_errand *errand)
{
    const struct lk_job *job = &errand->job;

    if (!may_repeat(errand) ||
        !lk_job_is_forgotten(job->sent, job->sent_ms, job->created_ms,
                             errand->outlet->target->key_life_ms,
                             store_now_ms(errand))) {
        return false;
    }
    end_at_once(courier, errand, LK_END_UNCERTAIN,
                "it was sent, and the service may have forgotten its key since "
                "(key_life)");
    return true;
}

static bool end_if_too_old(struct lk_courier *courier, struct lk_errand *errand)
{
    uint64_t most_ms = errand->outlet->target->max_age_ms;

    if (!most_ms || age_ms(errand) < most_ms) {
        return false;
    }
    if (errand->job.doubt) {
        end_at_once(courier, errand, LK_END_UNCERTAIN,
                    "too old to be called (max_age), and an earlier answer was "
                    "lost");
    } else {
        refuse(courier, errand, "too old to be called (max_age)");
    }
    return true;
}

/*
 * It has waited, in the store or here, for whatever reason and for any time. If
 * it must not be called any more it is ended, and gone.
 */
static bool end_if_over(struct lk_courier *courier, struct lk_errand *errand)
{
    return end_if_doubted(courier, errand) ||
           end_if_forgotten(courier, errand) || end_if_too_old(courier, errand);
}

/* ---- on the way ---------------------------------------------------------- */

static enum lk_status add_headers(struct lk_courier *courier,
                                  const struct lk_errand *errand)
{
    const struct lk_target *target = errand->outlet->target;
    struct lk_buf *extra = &courier->extra;
    char key[LK_JOB_KEY + 1];

    extra->len = 0;
    if (errand->outlet->gateway) {
        return lk_request_headers(courier->store, &errand->job, extra);
    }
    lk_job_key(courier->store->reference_secret, &errand->job, key);
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
                    lk_courier_wall_ms() / 1000, errand->job.body, extra);
    }
    return status;
}

/* A call that must not happen under a lost lease has to reach its target
 * before the lease ends: connecting may not take longer. */
static enum lk_status begin(struct lk_courier *courier,
                            struct lk_errand *errand, uint64_t left_ms)
{
    const struct lk_target *target = errand->outlet->target;
    struct lk_http_request request = {
        .target = target,
        .method = errand->job.method,
        .path = errand->job.path,
        .headers = errand->job.headers,
        .body = errand->job.body,
        .gateway = errand->outlet->gateway,
        .connect_timeout_ms = target->connect_timeout_ms,
    };
    enum lk_status status = add_headers(courier, errand);

    if (!errand->honours && left_ms < request.connect_timeout_ms) {
        request.connect_timeout_ms = left_ms;
    }
    request.extra = latchkey_buf_slice(&courier->extra);
    return status ? status : lk_exchange_begin(errand->exchange, &request);
}

static void leave_place(struct lk_errand *errand)
{
    if (errand->exchange) {
        errand->exchange->owner = NULL;
        lk_outlet_put(errand->outlet, errand->exchange);
        errand->exchange = NULL;
    }
    errand->outlet->busy--;
}

/* It has its place and its mark, if it needs one. */
static void call(struct lk_courier *courier, struct lk_errand *errand,
                 uint64_t left_ms)
{
    enum lk_status status = LK_NOMEM;

    errand->honours = may_repeat(errand);
    errand->exchange = lk_outlet_take(errand->outlet);
    if (errand->exchange) {
        errand->exchange->owner = errand;
        errand->exchange->answer.error[0] = 0;
        status = begin(courier, errand, left_ms);
    }
    if (!status) {
        status = lk_poll_attach(&courier->poll, errand->exchange->easy);
    }
    if (!status &&
        curl_multi_add_handle(courier->poll.multi, errand->exchange->easy)) {
        status = LK_NOMEM;
    }
    if (!status) {
        errand->state = LK_ERRAND_RUNNING;
        courier->running++;
        return;
    }
    if (status == LK_INVALID && errand->exchange->answer.error[0]) {
        refuse(courier, errand, errand->exchange->answer.error);
    } else if (status == LK_INVALID) {
        refuse(courier, errand,
               errand->outlet->gateway
                   ? "its name does not fit into a header"
                   : "the target's signing secret cannot be read");
    } else {
        lk_errand_return(courier, errand, NO_ROOM_MS, "out of memory");
    }
    leave_place(errand);
}

/* The clock is looked at anew, last of all: the process may have been stopped
 * since the lease, or since the mark. */
static void mark_or_call(struct lk_courier *courier, struct lk_errand *errand)
{
    uint64_t lease_ms = courier->settings->lease_ms;

    if (needs_mark(errand)) {
        lk_errand_mark(courier, errand);
        return;
    }
    lk_fault_point("courier_before_call");
    uint64_t passed_ms = lk_courier_clock_ms() - errand->lease_ms;
    if (passed_ms >= lease_ms - lease_ms / 3) {
        lk_errand_mark(courier, errand);
        return;
    }
    if (end_if_over(courier, errand)) {
        errand->outlet->busy--;
        return;
    }
    call(courier, errand, lease_ms - passed_ms);
}

void lk_calls_marked(struct lk_courier *courier, struct lk_errand *errand)
{
    if (courier->stopping || !errand->outlet->configured) {
        errand->outlet->busy--;
        lk_errand_return(courier, errand, 0,
                         courier->stopping
                             ? "the courier stops"
                             : "the target is not configured any more");
        return;
    }
    mark_or_call(courier, errand);
}

static size_t start_outlet(struct lk_courier *courier, struct lk_outlet *outlet,
                           uint64_t *again_ms)
{
    size_t count = 0;

    while (lk_outlet_may_call(courier, outlet, again_ms)) {
        struct lk_errand *errand = lk_errands_take(&outlet->ready);
        if (end_if_over(courier, errand)) {
            continue;
        }
        /* A job that has taken its couriers with it, again and again, has
         * never come to an end. */
        if (failures_of(errand) > outlet->target->attempts) {
            refuse(courier, errand, "given up: its attempts were lost");
            continue;
        }
        lk_outlet_spend(outlet);
        outlet->busy++;
        count++;
        mark_or_call(courier, errand);
    }
    return count;
}

size_t lk_calls_start(struct lk_courier *courier, uint64_t *again_ms)
{
    size_t count = 0;

    for (struct lk_outlet *outlet = courier->outlets; outlet;
         outlet = outlet->next) {
        if (outlet->ready.head) {
            count += start_outlet(courier, outlet, again_ms);
        }
    }
    return count;
}

/* ---- back ---------------------------------------------------------------- */

static void keep_answer(const struct lk_courier *courier,
                        struct lk_errand *errand)
{
    const struct lk_http_response *answer = &errand->exchange->answer;
    size_t len = answer->body.len;

    errand->status = answer->status;
    errand->sent =
        errand->outlet->gateway ? lk_request_left(answer) : answer->sent;
    errand->headers.len = errand->body.len = errand->provider_id.len = 0;
    if (errand->outlet->gateway) {
        return; /* the operation has it */
    }
    if (len > courier->settings->answer_bytes) {
        len = (size_t)courier->settings->answer_bytes;
    }
    /* Out of memory: the status is what counts. */
    if (latchkey_buf_add_slice(&errand->headers,
                               latchkey_buf_slice(&answer->headers)) ||
        latchkey_buf_add(&errand->body, answer->body.data, len)) {
        errand->headers.len = errand->body.len = 0;
    }
    if (errand->result.end == LK_END_DELIVERED) {
        lk_provider_id(errand->outlet->target, answer, &errand->provider_id);
    }
}

static void judge(struct lk_courier *courier, struct lk_errand *errand)
{
    const struct lk_http_response *answer = &errand->exchange->answer;
    const struct lk_target *target = errand->outlet->target;
    struct lk_result *result = &errand->result;

    if (errand->outlet->gateway) {
        lk_request_result(errand->job.repeatable, answer, result);
    } else {
        lk_result_of(target, errand->honours && target->honours, answer,
                     result);
    }
    result->doubt |= errand->job.doubt && result->end == LK_END_RETRY;
    lk_result_give_up(target, failures_of(errand), age_ms(errand), result);
    /* The store puts a request back that the gateway never took. */
    if (result->end == LK_END_RETRY || errand->outlet->gateway) {
        uint64_t asked_ms = lk_asked_wait_ms(
            target, latchkey_buf_slice(&answer->headers), lk_courier_wall_ms());
        errand->delay_ms =
            lk_retry_delay_ms(target, failures_of(errand), asked_ms,
                              lk_chance_next(&courier->chance));
    }
}

/* The app takes longer than we wait, and the gateway that holds the operation's
 * lock is with it. Whoever leaves it alone finds out what comes of it: the
 * lease lasts as long as that lock. */
static bool goes_on(const struct lk_errand *errand)
{
    const struct lk_http_response *answer = &errand->exchange->answer;

    return errand->outlet->gateway && answer->late && answer->sent &&
           !answer->status;
}

static void finish(struct lk_courier *courier, struct lk_errand *errand)
{
    judge(courier, errand);
    keep_answer(courier, errand);
    errand->silent = goes_on(errand);
    if (errand->silent) {
        errand->result.end = LK_END_RETRY;
        lk_result_reason(&errand->result, "no answer within gateway_timeout, "
                                          "the gateway goes on");
    }
    leave_place(errand);
    errand->outlet->ended++;
    courier->running--;
    if (errand->outlet->gateway && errand->result.end == LK_END_DEAD &&
        lk_request_problem(courier->store, errand)) {
        errand->result.end = LK_END_RETRY; /* until there is memory */
    }
    lk_outlet_note(courier, errand);
    lk_errand_report(courier, errand);
    lk_errand_end(courier, errand);
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
        finish(courier, exchange->owner);
        count++;
    }
    return count;
}

/* ---- given up, at the end ------------------------------------------------ */

/*
 * What has left cannot be called back. The gateway goes on without us: it holds
 * the operation's lock and will complete it, so its lease is simply left.
 */
static void abandon(struct lk_courier *courier, struct lk_errand *errand)
{
    static const char reason[] =
        "the courier was stopped before an answer came";
    struct lk_exchange *exchange = errand->exchange;

    curl_multi_remove_handle(courier->poll.multi, exchange->easy);
    lk_exchange_end(exchange, CURLE_ABORTED_BY_CALLBACK);
    bool sent = exchange->answer.sent;
    courier->running--;
    leave_place(errand);
    if (!sent) {
        lk_errand_return(courier, errand, 0, "the courier stops");
    } else if (errand->outlet->gateway) {
        errand->silent = true;
        lk_errand_end(courier, errand);
    } else {
        errand->result = (struct lk_result){
            .end = errand->honours ? LK_END_RETRY : LK_END_UNCERTAIN,
            .doubt = true};
        lk_result_reason(&errand->result, "%s", reason);
        errand->sent = true;
        lk_errand_report(courier, errand);
        lk_errand_end(courier, errand);
    }
}

void lk_calls_abandon(struct lk_courier *courier, bool all)
{
    struct lk_errand *next;

    for (struct lk_errand *errand = courier->hand; errand; errand = next) {
        next = errand->right;
        if (errand->state == LK_ERRAND_RUNNING &&
            (all || errand->outlet->gateway)) {
            abandon(courier, errand);
        }
    }
}
