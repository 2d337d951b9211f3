/* report.c - how an errand's end is told in the log. */
#include "courier/courier.h"
#include "daemon/log.h"

#include <stdio.h>

struct words {
    enum lk_log_level level;
    const char *event;
};

static struct words words_of(const struct lk_errand *errand)
{
    if (errand->silent) {
        return (struct words){LK_LOG_WARN, "request-slow"};
    }
    if (errand->returned) {
        return (struct words){LK_LOG_DEBUG, "job-returned"};
    }
    if (errand->outlet->gateway && errand->result.end == LK_END_UNCERTAIN) {
        /* Uncertain, unless the store knows that it was never called. */
        return (struct words){LK_LOG_WARN, "request-lost"};
    }
    switch (errand->result.end) {
    case LK_END_DELIVERED:
        return (struct words){LK_LOG_DEBUG, "job-delivered"};
    case LK_END_DEAD:
        return (struct words){LK_LOG_ERROR, "job-dead"};
    case LK_END_UNCERTAIN:
        return (struct words){LK_LOG_ERROR, "job-uncertain"};
    case LK_END_RETRY:
    case LK_END_RETURN:
        break;
    }
    return (struct words){LK_LOG_INFO, "job-failed"};
}

void lk_errand_report(const struct lk_courier *courier,
                      const struct lk_errand *errand)
{
    struct words words = words_of(errand);
    const struct lk_job *job = &errand->job;
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
    lk_log_quote(latchkey_slice(errand->result.reason), reason, sizeof(reason));
    if (errand->returned ||
        (errand->result.end == LK_END_RETRY && !errand->silent)) {
        snprintf(wait, sizeof(wait), " wait_ms=%llu",
                 (unsigned long long)errand->delay_ms);
    }
    lk_log(words.level, words.event,
           "job=%llu reference=%s name=%s target=%s attempt=%u status=%u%s%s%s",
           (unsigned long long)job->id, reference, name, errand->outlet->name,
           job->attempts, errand->status,
           errand->result.reason[0] ? " reason=" : "",
           errand->result.reason[0] ? reason : "", wait);
}
