/*
 * gateway_request.c - requests of asynchronous operations. They are delivered
 * through the gateway's internal socket; the gateway completes the operation
 * itself and reports the outcome in headers of its response.
 */
#include "courier/courier.h"

#include <inttypes.h>

/* Names that an app wrote in SQL may hold what would begin another header. */
static bool fits_header(struct lk_slice value)
{
    for (size_t i = 0; i < value.len; i++) {
        if ((unsigned char)value.data[i] < ' ' || value.data[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

static enum lk_status add_gateway_header(struct lk_buf *headers,
                                         const char *name,
                                         struct lk_slice value)
{
    enum lk_status status = latchkey_buf_printf(headers, "Latchkey-%s: ", name);

    if (!fits_header(value)) {
        return LK_INVALID;
    }
    if (!status) {
        status = latchkey_buf_add_slice(headers, value);
    }
    return status ? status : latchkey_buf_add(headers, "\r\n", 2);
}

enum lk_status lk_request_headers(const struct lk_store *store,
                                  const struct lk_job *job,
                                  struct lk_buf *headers)
{
    char reference[LK_REFERENCE_TEXT + 1];
    enum lk_status status;

    latchkey_reference_encode(job->number, store->reference_secret, reference);
    status = add_gateway_header(headers, "Tenant", job->operation.tenant);
    if (!status) {
        status = add_gateway_header(headers, "Scope", job->operation.scope);
    }
    if (!status) {
        status = add_gateway_header(headers, "Key", job->operation.key);
    }
    if (!status) {
        status = latchkey_buf_printf(headers,
                                     "Latchkey-Token: %" PRIu64
                                     "\r\nLatchkey-Attempt: %" PRIu64
                                     "\r\nLatchkey-Reference: %s\r\n",
                                     job->token, job->run, reference);
    }
    return status;
}

/* The outcome is unknown: only a request that may run again is retried. */
static void end_in_doubt(bool repeatable, struct lk_result *result)
{
    result->end = repeatable ? LK_END_RETRY : LK_END_UNCERTAIN;
}

bool lk_request_left(const struct lk_http_response *response)
{
    struct lk_slice headers = latchkey_buf_slice(&response->headers);

    return response->sent &&
           !latchkey_slice_equal(lk_http_header(headers, "Latchkey-Sent"),
                                 LK_SLICE("no"));
}

/* A gateway that can be reached is healthy, whatever its app does. */
void lk_request_result(bool repeatable, const struct lk_http_response *response,
                       struct lk_result *result)
{
    struct lk_slice word = lk_http_header(
        latchkey_buf_slice(&response->headers), "Latchkey-Outcome");

    *result =
        (struct lk_result){.end = LK_END_RETRY, .healthy = response->sent};
    if (!response->sent) {
        lk_result_reason(result, "not sent: %s", response->error);
    } else if (latchkey_slice_equal(word, LK_SLICE("completed")) ||
               latchkey_slice_equal(word, LK_SLICE("stale"))) {
        result->end = LK_END_DELIVERED;
    } else if (latchkey_slice_equal(word, LK_SLICE("released")) &&
               !lk_request_left(response)) {
        lk_result_reason(result,
                         "the gateway answered %u, the app was not "
                         "reached",
                         response->status);
    } else if (latchkey_slice_equal(word, LK_SLICE("released"))) {
        lk_result_reason(result, "the app answered %u, nothing happened",
                         response->status);
    } else if (response->status) {
        end_in_doubt(repeatable, result);
        lk_result_reason(result, "answered %u: the outcome is unknown",
                         response->status);
    } else {
        end_in_doubt(repeatable, result);
        lk_result_reason(result, "sent, no response: %s", response->error);
    }
}

enum lk_status lk_request_problem(const struct lk_store *store,
                                  struct lk_delivery *delivery)
{
    char reference[LK_REFERENCE_TEXT + 1];
    struct lk_problem problem = {
        .kind = LK_PROBLEM_UNAVAILABLE,
        .detail = LK_SLICE("The request was accepted, but could not be "
                           "delivered. It was never run."),
    };

    latchkey_reference_encode(delivery->job.number, store->reference_secret,
                              reference);
    problem.reference = latchkey_slice(reference);
    delivery->status = latchkey_problem_status(&problem);
    delivery->headers.len = delivery->body.len = 0;
    enum lk_status status = latchkey_buf_add_text(
        &delivery->headers, "Content-Type: application/problem+json\r\n");
    return status ? status : latchkey_problem_write(&problem, &delivery->body);
}
