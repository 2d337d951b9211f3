/*
 * probe_resolve.c - tells the store what is proved, and waits until it is
 * durable. Whatever moved on meanwhile is left alone: the store compares the
 * attempt of a job and the token of an operation with those that were seen.
 */
#include "courier/probe_parts.h"

#include "daemon/log.h"
#include "lib/siphash.h"

#include <stdio.h>
#include <string.h>

#define WHO LK_SLICE("latchkey prober")

/* ---- the store ----------------------------------------------------------- */

enum { BUSY_TRIES = 100 };
#define BUSY_NS UINT64_C(20000000)

struct waiting {
    uv_mutex_t lock;
    uv_cond_t done;
    bool is_done;
};

static void work_done(struct lk_job_batch *job_batch)
{
    struct waiting *waiting = job_batch->context;

    uv_mutex_lock(&waiting->lock);
    waiting->is_done = true;
    uv_cond_signal(&waiting->done);
    uv_mutex_unlock(&waiting->lock);
}

static enum lk_status give(struct lk_prober *prober,
                           struct lk_job_batch *job_batch)
{
    struct waiting waiting = {.is_done = false};
    enum lk_status status = LK_NOMEM;

    if (uv_mutex_init(&waiting.lock)) {
        return status;
    }
    if (!uv_cond_init(&waiting.done)) {
        job_batch->done = work_done;
        job_batch->context = &waiting;
        prober->setup.job_batch(prober->setup.context, job_batch);
        uv_mutex_lock(&waiting.lock);
        while (!waiting.is_done) {
            uv_cond_wait(&waiting.done, &waiting.lock);
        }
        uv_mutex_unlock(&waiting.lock);
        status = job_batch->status;
        lk_job_batch_clear(job_batch);
        uv_cond_destroy(&waiting.done);
    }
    uv_mutex_destroy(&waiting.lock);
    return status;
}

static bool give_order(struct lk_prober *prober, struct lk_job_action *order,
                       bool *overtaken)
{
    struct lk_job_batch job_batch = {.orders = order, .order_count = 1};

    if (give(prober, &job_batch)) {
        return false;
    }
    *overtaken = order->status_out != LK_OK;
    return true;
}

/* A claim may hold the record for a moment. What was asked, or undone, for this
 * op need not be asked again because of that. */
static bool give_op(struct lk_prober *prober, struct lk_op *op, bool *overtaken)
{
    struct lk_op *ops[] = {op};
    bool decided = false;

    for (unsigned tries = 0; tries < BUSY_TRIES; tries++) {
        struct lk_job_batch job_batch = {.ops = ops, .op_count = 1};
        decided = !give(prober, &job_batch) && op->status == LK_OK;
        *overtaken = decided && op->out.verdict != LK_VERDICT_DONE;
        lk_op_clear(op);
        if (op->status != LK_AGAIN || atomic_load(&prober->stopping)) {
            break;
        }
        lk_probe_sleep(prober, BUSY_NS, false);
    }
    return decided;
}

/* ---- what is logged and audited ------------------------------------------ */

/* The template without its query, where secrets might stand. */
static int path_len(const char *path)
{
    return (int)strcspn(path, "?");
}

static struct lk_slice say_why(const struct lk_probe_subject *subject,
                               const struct lk_http_response *answer,
                               const char *what, char *text, size_t size)
{
    const struct lk_probe_place *place = subject->place;
    int len;

    if (!place->probe->path) {
        len = snprintf(text, size, "%s", what);
    } else {
        len = snprintf(text, size, "target %s answered %u to GET %.*s: %s",
                       place->target->name, answer->status,
                       path_len(place->probe->path), place->probe->path, what);
    }
    return (struct lk_slice){text, len < (int)size ? (size_t)len : size - 1};
}

static enum lk_probe_result report(struct lk_prober *prober,
                                   const struct lk_probe_subject *subject,
                                   bool given, bool overtaken,
                                   enum lk_probe_result result)
{
    const struct lk_probe_place *place = subject->place;
    char reference[LK_REFERENCE_TEXT + 1];

    if (!given) {
        return LK_PROBE_OPEN;
    }
    latchkey_reference_encode(subject->number,
                              prober->setup.store->reference_secret, reference);
    lk_log(overtaken ? LK_LOG_DEBUG : LK_LOG_INFO,
           overtaken ? "probe-overtaken" : "resolved",
           "kind=%s id=%llu reference=%s %s=%s outcome=%s by=probe",
           place->route ? "operation" : "job", (unsigned long long)subject->id,
           reference, place->route ? "route" : "target",
           place->route ? place->route->name : place->target->name,
           result == LK_PROBE_HAPPENED ? "happened" : "absent");
    return overtaken ? LK_PROBE_OVERTAKEN : result;
}

/* ---- happened ------------------------------------------------------------ */

static enum lk_probe_result deliver(struct lk_prober *prober,
                                    const struct lk_probe_subject *subject,
                                    const struct lk_http_response *answer,
                                    struct lk_slice why)
{
    const struct lk_probe_place *place = subject->place;
    struct lk_buf id = {0};
    struct lk_job_action order = {
        .order = LK_ACTION_DELIVERED,
        .id = subject->id,
        .attempt = (unsigned)subject->fence,
        .status = answer->status,
        .who = WHO,
        .why = why,
    };
    bool overtaken = false;

    lk_probe_provider_id(place->target, place->probe, answer, &id);
    order.provider_id = latchkey_buf_slice(&id);
    bool given = give_order(prober, &order, &overtaken);
    latchkey_buf_free(&id);
    return report(prober, subject, given, overtaken, LK_PROBE_HAPPENED);
}

static struct lk_op make_op(struct lk_prober *prober, enum lk_event event,
                            const struct lk_probe_subject *subject,
                            struct lk_slice why)
{
    return (struct lk_op){
        .event = event,
        .name = subject->name,
        .hash = lk_name_hash(prober->setup.store->secret, subject->name),
        .token = subject->fence,
        .who = WHO,
        .why = why,
    };
}

/* The probe's answer as the operation's own. */
static enum lk_status adopt(const struct lk_http_response *answer,
                            struct lk_buf *headers,
                            struct lk_response *response)
{
    struct lk_slice type =
        lk_http_header(latchkey_buf_slice(&answer->headers), "Content-Type");
    enum lk_status status = LK_OK;

    if (type.data) {
        status = latchkey_buf_printf(headers, "Content-Type: %.*s\r\n",
                                     (int)type.len, type.data);
    }
    *response = (struct lk_response){
        .status = answer->status,
        .headers = latchkey_buf_slice(headers),
        .body = latchkey_buf_slice(&answer->body),
    };
    return status;
}

static enum lk_probe_result complete(struct lk_prober *prober,
                                     const struct lk_probe_subject *subject,
                                     const struct lk_http_response *answer,
                                     struct lk_slice why)
{
    struct lk_op op = make_op(prober, LK_EVENT_RESOLVE_COMPLETED, subject, why);
    struct lk_buf headers = {0};
    bool overtaken = false;
    bool given = true;

    if (subject->place->route->adopt && !answer->cut) {
        given = !adopt(answer, &headers, &op.response);
    } else {
        op.response.status = answer->status;
        op.reason = LK_SLICE("proved by probe");
    }
    given = given && give_op(prober, &op, &overtaken);
    latchkey_buf_free(&headers);
    return report(prober, subject, given, overtaken, LK_PROBE_HAPPENED);
}

enum lk_probe_result lk_probe_resolve_happened(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *answer)
{
    char text[LK_WHY_MAX];
    struct lk_slice why =
        say_why(subject, answer, "it has happened", text, sizeof(text));

    return subject->place->route ? complete(prober, subject, answer, why)
                                 : deliver(prober, subject, answer, why);
}

/* ---- absent -------------------------------------------------------------- */

static enum lk_probe_result call_again(struct lk_prober *prober,
                                       const struct lk_probe_subject *subject,
                                       struct lk_slice why)
{
    struct lk_job_action order = {
        .order = LK_ACTION_AGAIN,
        .id = subject->id,
        .attempt = (unsigned)subject->fence,
        .who = WHO,
        .why = why,
    };
    bool overtaken = false;
    bool given = give_order(prober, &order, &overtaken);

    return report(prober, subject, given, overtaken, LK_PROBE_ABSENT);
}

/*
 * The same on each try to roll this attempt back, and another for the next
 * attempt: a service that honours keys would else answer from memory.
 */
static enum lk_status rollback_key(struct lk_prober *prober,
                                   const struct lk_probe_subject *subject,
                                   const struct lk_target *target,
                                   struct lk_buf *extra)
{
    struct lk_job job = {.operation = subject->name,
                         .generation = subject->generation};
    char key[LK_JOB_KEY + 1];
    char name[40];

    snprintf(name, sizeof(name), "rollback %llu",
             (unsigned long long)subject->fence);
    job.name = latchkey_slice(name);
    lk_job_key(prober->setup.store->reference_secret, &job, key);
    return latchkey_buf_printf(extra, "%s: %s\r\n", target->key_header, key);
}

static enum lk_status add_member(struct lk_buf *json, const char *name,
                                 struct lk_slice value)
{
    enum lk_status status =
        latchkey_buf_printf(json, "%c\"%s\":", json->len ? ',' : '{', name);

    return status ? status : latchkey_json_quote(value, json);
}

/* Which operation, and which attempt of it, is to be undone. */
static enum lk_status rollback_body(const struct lk_probe_subject *subject,
                                    struct lk_slice reference,
                                    struct lk_buf *body)
{
    enum lk_status status = add_member(body, "tenant", subject->name.tenant);

    if (!status) {
        status = add_member(body, "scope", subject->name.scope);
    }
    if (!status) {
        status = add_member(body, "key", subject->name.key);
    }
    if (!status) {
        status = add_member(body, "reference", reference);
    }
    return status ? status
                  : latchkey_buf_printf(body, ",\"token\":%llu}",
                                        (unsigned long long)subject->fence);
}

/* A last look: what somebody runs again by now must not be undone. */
static bool is_still_uncertain(struct lk_prober *prober,
                               const struct lk_probe_subject *subject)
{
    struct lk_store *store = prober->setup.store;
    struct lk_operation record = {0};
    bool same = !store->class->lookup(store, subject->name, &record) &&
                record.state == LK_STATE_UNCERTAIN &&
                record.token == subject->fence;

    lk_operation_free(&record);
    return same;
}

static bool roll_back(struct lk_prober *prober,
                      const struct lk_probe_subject *subject)
{
    const struct lk_route *route = subject->place->route;
    const struct lk_target *target = lk_target_find(
        &prober->targets, latchkey_slice(route->rollback_target));
    char reference[LK_REFERENCE_TEXT + 1];
    struct lk_buf key = {0}, body = {0}, path = {0};
    struct lk_http_response answer = {0};
    enum lk_status status = LK_NOT_FOUND;
    bool undone = false;

    latchkey_reference_encode(subject->number,
                              prober->setup.store->reference_secret, reference);
    const struct lk_probe_words words = {
        .key = subject->name.key,
        .tenant = subject->name.tenant,
        .scope = subject->name.scope,
        .reference = latchkey_slice(reference),
    };
    if (!target || lk_probe_path(route->rollback_path, &words, &path) ||
        rollback_key(prober, subject, target, &key) ||
        rollback_body(subject, words.reference, &body) ||
        !lk_probe_pace(prober, subject->place, target)) {
        goto out;
    }
    status = lk_http_call(
        &(struct lk_http_request){
            .target = target,
            .method = LK_SLICE("POST"),
            .path = latchkey_buf_slice(&path),
            .headers = LK_SLICE("Content-Type: application/json\r\n"),
            .extra = latchkey_buf_slice(&key),
            .body = latchkey_buf_slice(&body),
            .cancel = &prober->stopping},
        &answer);
    undone = !status && answer.status >= 200 && answer.status <= 299;
out:
    lk_log(undone ? LK_LOG_INFO : LK_LOG_WARN,
           undone ? "rolled-back" : "rollback-failed",
           "route=%s target=%s reference=%s status=%u", route->name,
           route->rollback_target, reference, answer.status);
    latchkey_buf_free(&key);
    latchkey_buf_free(&body);
    latchkey_buf_free(&path);
    lk_http_response_free(&answer);
    return undone;
}

enum lk_probe_result lk_probe_resolve_absent(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *answer)
{
    const struct lk_route *route = subject->place->route;
    char text[LK_WHY_MAX];
    const char *what = route && route->rollback_target ? "it was rolled back"
                                                       : "it has not happened";
    struct lk_slice why = say_why(subject, answer, what, text, sizeof(text));
    bool overtaken = false;

    if (!route) {
        return call_again(prober, subject, why);
    }
    if (route->rollback_target &&
        (!is_still_uncertain(prober, subject) || !roll_back(prober, subject))) {
        return LK_PROBE_OPEN;
    }
    struct lk_op op = make_op(prober, LK_EVENT_RESOLVE_RELEASED, subject, why);
    bool given = give_op(prober, &op, &overtaken);
    return report(prober, subject, given, overtaken, LK_PROBE_ABSENT);
}
