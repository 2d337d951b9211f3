/*
 * probe_resolve.c - one probe of an uncertain job or operation: is it due, can
 * the service be believed, what does it answer, and what is stored.
 *
 * What is proved is given to the store, and the thread waits until it is
 * durable. Whatever moved on in the meantime is left alone: the store compares
 * the attempt of a job, or the token of an operation, with the one that was
 * probed (OVERTAKEN).
 *
 *   the service says     then
 *   it has happened      job: delivered. Operation: completed
 *   it is absent         after the settle time, seen twice, and confirmed by a
 *                        control: job: queued again. Operation: rolled back if
 *                        the route says so, then released
 *   neither, or nothing  it stays open, and is asked about later
 *
 * Two controls guard against a service that answers anything: asked about a key
 * that cannot exist it must not confirm it; asked about a job that was
 * delivered it must confirm it.
 */
#include "courier/pacing.h"
#include "courier/prober.h"
#include "daemon/log.h"
#include "lib/siphash.h"
#include "lib/time.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define PROBER_WHO LK_SLICE("latchkey prober")
#define MS_NS      UINT64_C(1000000)
/* An old response from a cache would be seen twice and prove nothing. */
#define PROBE_HEADERS "Accept: application/json\r\nCache-Control: no-cache\r\n"

enum {
    PLACE_HELD_MAX_MS = 300 * 1000,
    PROBE_RESPONSE_MAX = 256 << 10,
};

/* ---- one question to a service ------------------------------------------- */

/* A place that does not answer is not asked for a while, longer each time, so
 * that it does not keep the others waiting. */
static void hold_place(struct lk_probe_place *place,
                       const struct lk_http_response *response)
{
    uint64_t asked = lk_asked_wait_ms(
        place->target, latchkey_buf_slice(&response->headers), lk_wall_ms());
    uint64_t delay = place->probe->interval_ms
                     << (place->failures > 10 ? 10 : place->failures);

    delay = delay > PLACE_HELD_MAX_MS ? PLACE_HELD_MAX_MS : delay;
    place->failures++;
    place->held_ns =
        lk_probe_now_ns() + (delay > asked ? delay : asked) * MS_NS;
}

static void sleep_until_ns(struct lk_prober *prober, uint64_t ns)
{
    uint64_t now_ns = lk_probe_now_ns();

    if (ns > now_ns) {
        lk_probe_sleep(prober, ns - now_ns, false);
    }
}

/*
 * Waits for the target's rate, of which jobs keep their share: if the prober
 * asked for the next call at once, deliveries would get none, so the call after
 * ours is theirs. False: the prober is shutting down.
 */
static bool wait_for_rate(struct lk_prober *prober,
                          struct lk_probe_place *place,
                          const struct lk_target *target)
{
    sleep_until_ns(prober, place->next_ns);
    if (target->rate && !atomic_load(&prober->stopping)) {
        uint64_t wait_ms = prober->reserve(prober->reserve_context, target);
        sleep_until_ns(prober, lk_probe_now_ns() + wait_ms * MS_NS);
        place->next_ns = lk_probe_now_ns() + 1500 * MS_NS / target->rate;
    }
    return !atomic_load(&prober->stopping);
}

/* GETs the path. False: there is no response that could prove anything; the
 * place is then held, unless only this path is at fault. */
static bool ask_place(struct lk_prober *prober, struct lk_probe_place *place,
                      struct lk_slice path, struct lk_http_response *response)
{
    if (!wait_for_rate(prober, place, place->target)) {
        return false;
    }
    enum lk_status status = lk_http_call(
        &(struct lk_http_request){.target = place->target,
                                  .method = LK_SLICE("GET"),
                                  .path = path,
                                  .headers = LK_SLICE(PROBE_HEADERS),
                                  .response_max = PROBE_RESPONSE_MAX,
                                  .cancel = &prober->stopping},
        response);
    if (status == LK_INVALID) {
        return false; /* not the place's fault */
    }
    if (status || response->status == 429 || response->status >= 500) {
        char error[LK_LOG_QUOTED];
        lk_log(LK_LOG_DEBUG, "probe-failed", "target=%s status=%u error=%s",
               place->target->name, response->status,
               lk_log_quote(latchkey_slice(response->error), error,
                            sizeof(error)));
        hold_place(place, response);
        return false;
    }
    place->failures = 0;
    return true;
}

/* ---- whether the service can be believed --------------------------------- */

enum {
    PLACE_CHECKED_MS = 60 * 1000,
    CONTROL_JOBS_NEARBY = 1000, /* ids of jobs, before and after */
};

/* `hint` says what is wrong with the place. */
static void log_unsound_place(const struct lk_probe_place *place,
                              unsigned status, const char *hint)
{
    lk_log(LK_LOG_ERROR, "probe-unsound", "%s=%s status=%u hint=\"%s\"",
           place->route ? "route" : "target",
           place->route ? place->route->name : place->target->name, status,
           hint);
}

/* ---- control: a key that cannot exist ------------------------------------ */

/* The question about a random key. */
static bool ask_random(struct lk_prober *prober,
                       const struct lk_probe_subject *subject,
                       struct lk_http_response *response)
{
    struct lk_buf path = {0};
    uint64_t random[2];
    char text[40];

    if (uv_random(NULL, NULL, random, sizeof(random), 0, NULL)) {
        return false;
    }
    snprintf(text, sizeof(text), "%016llx%016llx",
             (unsigned long long)random[0], (unsigned long long)random[1]);
    struct lk_slice word = latchkey_slice(text);
    /* Of a tenant that exists: an unknown tenant alone would give a no. */
    const struct lk_probe_words words = {.key = word,
                                         .id = word,
                                         .reference = word,
                                         .name = word,
                                         .tenant = subject->name.tenant,
                                         .scope = subject->name.scope};
    bool asked =
        !lk_probe_path(subject->place->probe->path, &words, &path) &&
        ask_place(prober, subject->place, latchkey_buf_slice(&path), response);
    latchkey_buf_free(&path);
    return asked;
}

/*
 * Asks about a key that cannot exist, at most once a minute. A service that
 * confirms it, because it ignores the query, say, would confirm everything.
 * False: it did confirm it, or did not answer.
 */
static bool check_denies_unknown(struct lk_prober *prober,
                                 const struct lk_probe_subject *subject)
{
    struct lk_probe_place *place = subject->place;
    uint64_t now = lk_probe_now_ns();
    struct lk_http_response response = {0};

    if (place->checked_ns &&
        now - place->checked_ns < PLACE_CHECKED_MS * MS_NS) {
        return !place->unsound;
    }
    bool asked = ask_random(prober, subject, &response);
    if (asked) {
        place->checked_ns = now;
        place->unsound =
            lk_probe_judge(place->probe, &response) == LK_PROOF_HAPPENED;
        if (place->unsound) {
            log_unsound_place(
                place, response.status,
                "the service confirms a key that cannot exist: its responses "
                "prove nothing");
        }
    }
    lk_http_response_free(&response);
    return asked && !place->unsound;
}

/* ---- control: a job that was delivered ----------------------------------- */

/* The question about a job that was delivered about when the subject was
 * called. An empty path: there is no such job. */
struct control_probe {
    struct lk_prober *prober;
    const struct lk_probe_subject *subject;
    uint64_t now_ms;
    uint64_t distance_ms;
    struct lk_buf path;
};

static struct lk_slice without_query(struct lk_slice path)
{
    for (size_t i = 0; i < path.len; i++) {
        if (path.data[i] == '?') {
            path.len = i;
        }
    }
    return path;
}

/* A job of the same kind, delivered longer ago than the settle time. */
static bool is_control_for(const struct control_probe *control,
                           const struct lk_job *job)
{
    const struct lk_probe_subject *subject = control->subject;
    const struct lk_probe *probe = subject->place->probe;

    return job->name.len && job->operation.key.len &&
           (latchkey_slice_equal(job->name, subject->job) ||
            latchkey_slice_equal(without_query(job->path),
                                 without_query(subject->path))) &&
           job->ended_ms + probe->settle_ms < control->now_ms;
}

/* The question about this job. */
static enum lk_status write_control_path(struct control_probe *control,
                                         const struct lk_job *job)
{
    const uint8_t *secret = control->prober->setup.store->reference_secret;
    char key[LK_JOB_KEY + 1];
    char reference[LK_REFERENCE_TEXT + 1];

    lk_job_key(secret, job, key);
    latchkey_reference_encode(job->number, secret, reference);
    struct lk_probe_words words = {.key = latchkey_slice(key),
                                   .tenant = job->operation.tenant,
                                   .scope = job->operation.scope,
                                   .reference = latchkey_slice(reference),
                                   .name = job->name};
    if (job->provider_id.len) {
        words.id = job->provider_id;
    }
    control->path.len = 0;
    enum lk_status status = lk_probe_path(control->subject->place->probe->path,
                                          &words, &control->path);
    if (status) {
        control->path.len = 0;
    }
    return status;
}

static bool consider_control_job(void *context, const struct lk_job *job)
{
    struct control_probe *control = context;
    uint64_t since = control->subject->since_ms;
    uint64_t distance =
        job->ended_ms > since ? job->ended_ms - since : since - job->ended_ms;

    if (is_control_for(control, job) &&
        (!control->path.len || distance < control->distance_ms) &&
        !write_control_path(control, job)) {
        control->distance_ms = distance;
    }
    return true;
}

/* Reads the delivered jobs whose ids are near the subject's. */
static enum lk_status find_control_job(struct control_probe *control)
{
    const struct lk_probe_subject *subject = control->subject;
    struct lk_store *store = control->prober->setup.store;
    struct lk_store_stats stats = {0};
    const struct lk_jobs_query query = {
        .state = LK_JOB_DELIVERED,
        .target = latchkey_slice(subject->place->target->name),
        .cursor = subject->id > CONTROL_JOBS_NEARBY
                      ? subject->id - CONTROL_JOBS_NEARBY
                      : 0,
        .limit = (size_t)2 * CONTROL_JOBS_NEARBY,
    };
    uint64_t next;

    store->class->stats(store, &stats);
    control->now_ms = stats.now_ms;
    return store->class->jobs(store, &query, consider_control_job, control,
                              &next);
}

/*
 * Asks about a job that was delivered. A service that does not confirm it,
 * because the path is wrong, it is being repaired, or it has forgotten keys of
 * that time, would deny everything. True also where there is no such job, and
 * for a route.
 */
static bool check_confirms_known(struct lk_prober *prober,
                                 const struct lk_probe_subject *subject)
{
    struct lk_probe_place *place = subject->place;
    struct control_probe control = {.prober = prober, .subject = subject};
    struct lk_http_response response = {0};
    bool knows = false;

    if (place->route) {
        return true;
    }
    if (find_control_job(&control)) {
        goto out;
    }
    knows = !control.path.len;
    if (!knows && ask_place(prober, place, latchkey_buf_slice(&control.path),
                            &response)) {
        knows = lk_probe_judge(place->probe, &response) == LK_PROOF_HAPPENED;
        if (!knows) {
            log_unsound_place(
                place, response.status,
                "the service does not confirm a job that was delivered: "
                "absence proves nothing");
        }
    }
out:
    latchkey_buf_free(&control.path);
    lk_http_response_free(&response);
    return knows;
}

/* ---- giving the store what is proved ------------------------------------- */

enum { STORE_BUSY_TRIES = 100 };
#define STORE_BUSY_NS UINT64_C(20000000)

struct store_wait {
    uv_mutex_t lock;
    uv_cond_t done;
    bool is_done;
};

static void note_job_batch_done(struct lk_job_batch *job_batch)
{
    struct store_wait *wait = job_batch->context;

    uv_mutex_lock(&wait->lock);
    wait->is_done = true;
    uv_cond_signal(&wait->done);
    uv_mutex_unlock(&wait->lock);
}

/* Gives the store the batch, and waits until it is done with it. */
static enum lk_status give_and_wait(struct lk_prober *prober,
                                    struct lk_job_batch *job_batch)
{
    struct store_wait wait = {.is_done = false};
    enum lk_status status = LK_NOMEM;

    if (uv_mutex_init(&wait.lock)) {
        return status;
    }
    if (!uv_cond_init(&wait.done)) {
        job_batch->done = note_job_batch_done;
        job_batch->context = &wait;
        prober->setup.job_batch(prober->setup.context, job_batch);
        uv_mutex_lock(&wait.lock);
        while (!wait.is_done) {
            uv_cond_wait(&wait.done, &wait.lock);
        }
        uv_mutex_unlock(&wait.lock);
        status = job_batch->status;
        lk_job_batch_clear(job_batch);
        uv_cond_destroy(&wait.done);
    }
    uv_mutex_destroy(&wait.lock);
    return status;
}

/* False: the store could not. *overtaken: the job has moved on. */
static bool give_action(struct lk_prober *prober, struct lk_job_action *action,
                        bool *overtaken)
{
    struct lk_job_batch job_batch = {.actions = action, .action_count = 1};

    /* 0, damage in the store, would match any attempt. */
    if (!action->attempt || give_and_wait(prober, &job_batch)) {
        return false;
    }
    *overtaken = action->status_out != LK_OK;
    return true;
}

/* As give_action. A claim may hold the operation for a moment: then the op is
 * given again, so that the question or the rollback need not be repeated. */
static bool give_op(struct lk_prober *prober, struct lk_op *op, bool *overtaken)
{
    struct lk_op *ops[] = {op};
    bool decided = false;

    if (!op->token) {
        return false; /* damage in the store: any claim would match */
    }
    for (unsigned tries = 0; tries < STORE_BUSY_TRIES; tries++) {
        struct lk_job_batch job_batch = {.ops = ops, .op_count = 1};
        decided = !give_and_wait(prober, &job_batch) && op->status == LK_OK;
        *overtaken = decided && op->out.verdict != LK_VERDICT_DONE;
        lk_op_clear(op);
        if (op->status != LK_AGAIN || atomic_load(&prober->stopping)) {
            break;
        }
        lk_probe_sleep(prober, STORE_BUSY_NS, false);
    }
    return decided;
}

/* ---- what is logged and audited ------------------------------------------ */

/* The length of the path without its query, where secrets might be. */
static int public_path_len(const char *path)
{
    return (int)strcspn(path, "?");
}

/* For the audit log: who answered what. */
static struct lk_slice write_why(const struct lk_probe_subject *subject,
                                 const struct lk_http_response *response,
                                 const char *what, char *text, size_t size)
{
    const struct lk_probe_place *place = subject->place;
    int len;

    if (!place->probe->path) {
        len = snprintf(text, size, "%s", what);
    } else {
        len = snprintf(text, size, "target %s answered %u to GET %.*s: %s",
                       place->target->name, response->status,
                       public_path_len(place->probe->path), place->probe->path,
                       what);
    }
    return (struct lk_slice){text, len < (int)size ? (size_t)len : size - 1};
}

/* Logs the resolution, and turns it into the probe's outcome. */
static enum lk_probe_result report_resolution(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    bool given, bool overtaken, enum lk_probe_result result)
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

/* The job has happened. */
static enum lk_probe_result mark_job_delivered(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *response, struct lk_slice why)
{
    const struct lk_probe_place *place = subject->place;
    struct lk_buf id = {0};
    struct lk_job_action action = {
        .kind = LK_ACTION_DELIVERED,
        .id = subject->id,
        .attempt = (unsigned)subject->fence,
        .status = response->status,
        .who = PROBER_WHO,
        .why = why,
    };
    bool overtaken = false;

    lk_probe_provider_id(place->target, place->probe, response, &id);
    action.provider_id = latchkey_buf_slice(&id);
    bool given = give_action(prober, &action, &overtaken);
    latchkey_buf_free(&id);
    return report_resolution(prober, subject, given, overtaken,
                             LK_PROBE_HAPPENED);
}

/* Fenced by the token of the claim that was probed. */
static struct lk_op make_resolve_op(struct lk_prober *prober,
                                    enum lk_event event,
                                    const struct lk_probe_subject *subject,
                                    struct lk_slice why)
{
    return (struct lk_op){
        .event = event,
        .name = subject->name,
        .hash = lk_name_hash(prober->setup.store->secret, subject->name),
        .token = subject->fence,
        .who = PROBER_WHO,
        .why = why,
    };
}

/* The probe's response becomes the operation's own. */
static enum lk_status adopt_response(const struct lk_http_response *response,
                                     struct lk_buf *headers,
                                     struct lk_response *stored)
{
    struct lk_slice type =
        lk_http_header(latchkey_buf_slice(&response->headers), "Content-Type");
    enum lk_status status = LK_OK;

    if (type.data) {
        status = latchkey_buf_printf(headers, "Content-Type: %.*s\r\n",
                                     (int)type.len, type.data);
    }
    *stored = (struct lk_response){
        .status = response->status,
        .headers = latchkey_buf_slice(headers),
        .body = latchkey_buf_slice(&response->body),
    };
    return status;
}

/* The operation has happened: completed, with the probe's response or
 * without one. */
static enum lk_probe_result resolve_completed(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *response, struct lk_slice why)
{
    struct lk_op op =
        make_resolve_op(prober, LK_EVENT_RESOLVE_COMPLETED, subject, why);
    struct lk_buf headers = {0};
    bool overtaken = false;
    bool given = true;

    if (subject->place->route->adopt && !response->cut) {
        given = !adopt_response(response, &headers, &op.response);
    } else {
        op.response.status = response->status;
        op.reason = LK_SLICE("proved by probe");
    }
    given = given && give_op(prober, &op, &overtaken);
    latchkey_buf_free(&headers);
    return report_resolution(prober, subject, given, overtaken,
                             LK_PROBE_HAPPENED);
}

static enum lk_probe_result resolve_happened(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *response)
{
    char text[LK_WHY_MAX];
    struct lk_slice why =
        write_why(subject, response, "it has happened", text, sizeof(text));

    return subject->place->route
               ? resolve_completed(prober, subject, response, why)
               : mark_job_delivered(prober, subject, response, why);
}

/* ---- absent -------------------------------------------------------------- */

/* The job has not happened: it is called again. */
static enum lk_probe_result queue_job_again(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    struct lk_slice why)
{
    struct lk_job_action action = {
        .kind = LK_ACTION_AGAIN,
        .id = subject->id,
        .attempt = (unsigned)subject->fence,
        .who = PROBER_WHO,
        .why = why,
    };
    bool overtaken = false;
    bool given = give_action(prober, &action, &overtaken);

    return report_resolution(prober, subject, given, overtaken,
                             LK_PROBE_ABSENT);
}

/*
 * The key is the same on each try to roll this attempt back, and another one
 * for the next attempt: a service that honours keys would otherwise answer from
 * memory.
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

/* Which operation is to be undone, and which attempt of it. */
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

/* Checked last of all: an operation that a client runs again by now must not be
 * rolled back. */
static bool is_still_uncertain(struct lk_prober *prober,
                               const struct lk_probe_subject *subject)
{
    struct lk_store *store = prober->setup.store;
    struct lk_operation operation = {0};
    bool same = !store->class->lookup(store, subject->name, &operation) &&
                operation.state == LK_STATE_UNCERTAIN &&
                operation.token == subject->fence;

    lk_operation_free(&operation);
    return same;
}

/* True: the service has rolled the operation back (2xx). */
static bool call_rollback(struct lk_prober *prober,
                          const struct lk_probe_subject *subject)
{
    const struct lk_route *route = subject->place->route;
    const struct lk_target *target = lk_target_find(
        &prober->targets, latchkey_slice(route->rollback_target));
    char reference[LK_REFERENCE_TEXT + 1];
    struct lk_buf key = {0}, body = {0}, path = {0};
    struct lk_http_response response = {0};
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
        !wait_for_rate(prober, subject->place, target)) {
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
        &response);
    undone = !status && response.status >= 200 && response.status <= 299;
out:
    lk_log(undone ? LK_LOG_INFO : LK_LOG_WARN,
           undone ? "rolled-back" : "rollback-failed",
           "route=%s target=%s reference=%s status=%u", route->name,
           route->rollback_target, reference, response.status);
    latchkey_buf_free(&key);
    latchkey_buf_free(&body);
    latchkey_buf_free(&path);
    lk_http_response_free(&response);
    return undone;
}

/* The subject has not happened, or is rolled back now. */
static enum lk_probe_result resolve_absent(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    const struct lk_http_response *response)
{
    const struct lk_route *route = subject->place->route;
    char text[LK_WHY_MAX];
    const char *what = route && route->rollback_target ? "it was rolled back"
                                                       : "it has not happened";
    struct lk_slice why =
        write_why(subject, response, what, text, sizeof(text));
    bool overtaken = false;

    if (!route) {
        return queue_job_again(prober, subject, why);
    }
    if (route->rollback_target && (!is_still_uncertain(prober, subject) ||
                                   !call_rollback(prober, subject))) {
        return LK_PROBE_OPEN;
    }
    struct lk_op op =
        make_resolve_op(prober, LK_EVENT_RESOLVE_RELEASED, subject, why);
    bool given = give_op(prober, &op, &overtaken);
    return report_resolution(prober, subject, given, overtaken,
                             LK_PROBE_ABSENT);
}

/* ---- one job or operation ------------------------------------------------ */

/* How long it has been uncertain, by the store's clock. */
static uint64_t subject_uncertain_ms(struct lk_prober *prober,
                                     const struct lk_probe_subject *subject)
{
    struct lk_store *store = prober->setup.store;
    struct lk_store_stats stats = {0};

    store->class->stats(store, &stats);
    return stats.now_ms > subject->since_ms ? stats.now_ms - subject->since_ms
                                            : 0;
}

/* False: as ask_place, or the path needs a value that is not known. */
static bool ask_about_subject(struct lk_prober *prober,
                              const struct lk_probe_subject *subject,
                              struct lk_http_response *response)
{
    const uint8_t *secret = prober->setup.store->reference_secret;
    const struct lk_job job = {.operation = subject->name,
                               .generation = subject->generation,
                               .name = subject->job};
    char key[LK_JOB_KEY + 1];
    char reference[LK_REFERENCE_TEXT + 1];
    struct lk_probe_words words = {.tenant = subject->name.tenant,
                                   .scope = subject->name.scope};

    latchkey_reference_encode(subject->number, secret, reference);
    words.reference = latchkey_slice(reference);
    if (subject->place->route) {
        words.key = subject->name.key;
    } else {
        lk_job_key(secret, &job, key);
        words.key = latchkey_slice(key);
        words.name = subject->job;
        if (subject->provider_id.len) {
            words.id = subject->provider_id;
        }
    }
    struct lk_buf path = {0};
    bool asked =
        !lk_probe_path(subject->place->probe->path, &words, &path) &&
        ask_place(prober, subject->place, latchkey_buf_slice(&path), response);
    latchkey_buf_free(&path);
    return asked;
}

/* How long ago absence was first seen; UINT64_MAX: not yet. */
static uint64_t absence_seen_ms(const struct lk_probe_note *note)
{
    return note->absent_ns ? (lk_probe_now_ns() - note->absent_ns) / MS_NS
                           : UINT64_MAX;
}

/* Resolves the subject by the proof, or by the settle time alone where there is
 * nothing to ask. */
static enum lk_probe_result conclude_probe(
    struct lk_prober *prober, const struct lk_probe_subject *subject,
    struct lk_probe_note *note, enum lk_proof proof, uint64_t age_ms,
    const struct lk_http_response *response)
{
    const struct lk_probe *probe = subject->place->probe;
    uint64_t now_ns = lk_probe_now_ns();

    if (proof == LK_PROOF_HAPPENED) {
        return resolve_happened(prober, subject, response);
    }
    if (proof != LK_PROOF_ABSENT || !lk_probe_is_settled(probe, age_ms)) {
        return LK_PROBE_OPEN;
    }
    bool proves = lk_probe_absence_proves(probe, age_ms, absence_seen_ms(note));
    if (!note->absent_ns) {
        note->absent_ns = now_ns;
    }
    if (probe->path && (!proves || !check_confirms_known(prober, subject))) {
        return LK_PROBE_OPEN;
    }
    return resolve_absent(prober, subject, response);
}

/* Is it due, is the place not held, and does it pass the first control? */
static bool check_ready_to_ask(struct lk_prober *prober,
                               const struct lk_probe_subject *subject,
                               const struct lk_probe_note *note, bool at_once)
{
    struct lk_probe_place *place = subject->place;
    uint64_t now_ns = lk_probe_now_ns();

    if (atomic_load(&prober->stopping) || place->held_ns > now_ns ||
        (!at_once && note->due_ns > now_ns)) {
        return false;
    }
    return !place->probe->path || check_denies_unknown(prober, subject);
}

static void log_probed(const struct lk_probe_subject *subject, unsigned status,
                       enum lk_proof proof, unsigned asked)
{
    const struct lk_probe_place *place = subject->place;

    lk_log(LK_LOG_DEBUG, "probed",
           "kind=%s id=%llu target=%s status=%u proof=%s asked=%u",
           place->route ? "operation" : "job", (unsigned long long)subject->id,
           place->target->name, status, lk_proof_word(proof), asked);
}

enum lk_probe_result lk_probe_check(struct lk_prober *prober,
                                    const struct lk_probe_subject *subject,
                                    bool at_once)
{
    struct lk_probe_place *place = subject->place;
    struct lk_probe_note *note = lk_probe_memory_note(
        &prober->memory, place->route != NULL, subject->id, subject->fence);
    struct lk_http_response response = {0};
    enum lk_proof proof = LK_PROOF_NONE;
    enum lk_probe_result result;

    if (!check_ready_to_ask(prober, subject, note, at_once)) {
        return LK_PROBE_OPEN;
    }
    /* Read before the question: absence must have lasted for that long. */
    uint64_t age_ms = subject_uncertain_ms(prober, subject);
    if (!place->probe->path) {
        proof = LK_PROOF_ABSENT;
    } else if (ask_about_subject(prober, subject, &response)) {
        proof = lk_probe_judge(place->probe, &response);
    } else if (place->held_ns > lk_probe_now_ns() ||
               atomic_load(&prober->stopping)) {
        lk_http_response_free(&response);
        return LK_PROBE_OPEN; /* probed again once the place answers */
    }
    note->asked++;
    log_probed(subject, response.status, proof, note->asked);
    result = conclude_probe(prober, subject, note, proof, age_ms, &response);
    note->due_ns =
        lk_probe_now_ns() + lk_probe_delay_ms(place->probe, note->asked, age_ms,
                                              absence_seen_ms(note)) *
                                MS_NS;
    lk_http_response_free(&response);
    return result;
}
