/* call_result.c - what a response, or its absence, means for a job. */
#include "courier/call_result.h"

#include "courier/pacing.h"
#include "lib/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Text from outside goes into logs and into the store. */
static void replace_unprintable(char *text)
{
    for (; *text; text++) {
        if (*text < ' ' || *text > '~') {
            *text = '?';
        }
    }
}

void lk_result_reason(struct lk_result *result, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(result->reason, sizeof(result->reason), format, args);
    va_end(args);
    replace_unprintable(result->reason);
}

/* The call was sent, and no one knows whether it took effect. */
static void set_doubt(bool honours, struct lk_result *result)
{
    result->end = honours ? LK_END_RETRY : LK_END_UNCERTAIN;
    result->doubt = true;
}

/* A success that is incomplete leaves the outcome in doubt. */
static void judge_success(bool honours, const struct lk_http_response *response,
                          struct lk_result *result)
{
    if (response->whole) {
        result->end = LK_END_DELIVERED;
        result->healthy = true;
        return;
    }
    set_doubt(honours, result);
    lk_result_reason(result, "answered %u, but the response is incomplete: %s",
                     response->status, response->error);
}

/* Only the service itself can say that nothing happened (safe_statuses). */
static bool is_doubtful_status(const struct lk_target *target, unsigned status)
{
    return status >= 500 && !lk_statuses_have(&target->safe, status);
}

/* The rows of the table in call_result.h for statuses that are not a
 * success. */
static void judge_failure(const struct lk_target *target, bool honours,
                          unsigned status, struct lk_result *result)
{
    bool again = lk_statuses_have(&target->temporary, status);

    result->end = again ? LK_END_RETRY : LK_END_DEAD;
    result->healthy = !again;
    result->doubt = is_doubtful_status(target, status);
    lk_result_reason(result, "answered %u%s", status,
                     status / 100 == 3 ? ", redirects are not followed" : "");
    if (result->doubt && !honours) {
        result->end = LK_END_UNCERTAIN;
        lk_result_reason(result, "answered %u: the call may have taken effect",
                         status);
    }
}

void lk_result_of(const struct lk_target *target, bool honours,
                  const struct lk_http_response *response,
                  struct lk_result *result)
{
    unsigned status = response->status;

    *result = (struct lk_result){.end = LK_END_RETRY};
    if (!response->sent) {
        lk_result_reason(result, "not sent: %s", response->error);
    } else if (!status) {
        set_doubt(honours, result);
        lk_result_reason(result, "sent, no response: %s", response->error);
    } else if (lk_statuses_have(&target->success, status)) {
        judge_success(honours, response, result);
    } else {
        judge_failure(target, honours, status, result);
    }
}

void lk_result_give_up(const struct lk_target *target, unsigned failures,
                       uint64_t age_ms, struct lk_result *result)
{
    char last[LK_REASON_MAX + 1];

    if (result->end != LK_END_RETRY ||
        !lk_is_given_up(target, failures, age_ms)) {
        return;
    }
    memcpy(last, result->reason, sizeof(last));
    result->end = LK_END_DEAD;
    if (failures >= target->attempts) {
        lk_result_reason(result, "given up after %u attempt%s: %.200s",
                         failures, failures == 1 ? "" : "s", last);
    } else {
        result->end = result->doubt ? LK_END_UNCERTAIN : LK_END_DEAD;
        lk_result_reason(result, "given up for its age: %.200s", last);
    }
}

/* ---- the provider's id --------------------------------------------------- */

static bool is_provider_id(struct lk_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        if ((unsigned char)text.data[i] < ' ' || text.data[i] == 0x7f) {
            return false;
        }
    }
    return text.len && text.len <= LK_PROVIDER_ID_MAX && lk_utf8_valid(text);
}

/* A string or a number; nothing else is an id. */
static enum lk_status read_id_member(const char *pointer, struct lk_slice body,
                                     struct lk_buf *id)
{
    struct lk_slice value;
    enum lk_status status = lk_json_find(body, latchkey_slice(pointer), &value);

    if (!status &&
        (!value.data[0] || !strchr("\"-0123456789", value.data[0]))) {
        return LK_NOT_FOUND;
    }
    return status ? status : lk_json_plain(value, id);
}

void lk_provider_id(const struct lk_target *target,
                    const struct lk_http_response *response, struct lk_buf *id)
{
    size_t start = id->len;
    enum lk_status status = LK_NOT_FOUND;

    if (target->id && !strncmp(target->id, "header:", 7)) {
        status = latchkey_buf_add_slice(
            id, lk_http_header(latchkey_buf_slice(&response->headers),
                               target->id + 7));
    } else if (target->id && !strncmp(target->id, "json:", 5)) {
        status = read_id_member(target->id + 5,
                                latchkey_buf_slice(&response->body), id);
    }
    if (status ||
        !is_provider_id((struct lk_slice){id->data + start, id->len - start})) {
        id->len = start;
    }
}
