/*
 * probe_control.c - whether a place can be believed: asked about what cannot
 * exist it must not say yes, and asked about what it has it must not say no.
 */
#include "courier/probe_parts.h"

#include "daemon/log.h"

#include <stdio.h>

#define MS_NS UINT64_C(1000000)

enum {
    CHECKED_MS = 60 * 1000,
    NEARBY = 1000, /* ids of jobs, before and after */
};

/* `hint` is what is wrong with it. */
static void tell(const struct lk_probe_place *place, unsigned status,
                 const char *hint)
{
    lk_log(LK_LOG_ERROR, "probe-unsound", "%s=%s status=%u hint=\"%s\"",
           place->route ? "route" : "target",
           place->route ? place->route->name : place->target->name, status,
           hint);
}

/* ---- what cannot exist --------------------------------------------------- */

static bool ask_random(struct lk_prober *prober,
                       const struct lk_probe_subject *subject,
                       struct lk_http_response *answer)
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
    /* Of a tenant that exists, or the answer would be no for that alone. */
    const struct lk_probe_words words = {.key = word,
                                         .id = word,
                                         .reference = word,
                                         .name = word,
                                         .tenant = subject->name.tenant,
                                         .scope = subject->name.scope};
    bool asked =
        !lk_probe_path(subject->place->probe->path, &words, &path) &&
        lk_probe_ask(prober, subject->place, latchkey_buf_slice(&path), answer);
    latchkey_buf_free(&path);
    return asked;
}

bool lk_probe_is_sound(struct lk_prober *prober,
                       const struct lk_probe_subject *subject)
{
    struct lk_probe_place *place = subject->place;
    uint64_t now = lk_probe_now_ns();
    struct lk_http_response answer = {0};

    if (place->checked_ns && now - place->checked_ns < CHECKED_MS * MS_NS) {
        return !place->unsound;
    }
    bool asked = ask_random(prober, subject, &answer);
    if (asked) {
        place->checked_ns = now;
        place->unsound =
            lk_probe_judge(place->probe, &answer) == LK_PROOF_HAPPENED;
        if (place->unsound) {
            tell(place, answer.status,
                 "asked about a key that cannot exist, it answers as if that "
                 "had happened: its answers prove nothing");
        }
    }
    lk_http_response_free(&answer);
    return asked && !place->unsound;
}

/* ---- what it has --------------------------------------------------------- */

/* The question about a job that was delivered about when the subject was
 * called; without a path: there is none. */
struct control {
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

/* Of the same kind, and so long ago that it must be there. */
static bool is_like(const struct control *control, const struct lk_job *job)
{
    const struct lk_probe_subject *subject = control->subject;
    const struct lk_probe *probe = subject->place->probe;

    return job->name.len && job->operation.key.len &&
           (latchkey_slice_equal(job->name, subject->job) ||
            latchkey_slice_equal(without_query(job->path),
                                 without_query(subject->path))) &&
           job->ended_ms + probe->settle_ms < control->now_ms;
}

static enum lk_status write_question(struct control *control,
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

static bool take_job(void *context, const struct lk_job *job)
{
    struct control *control = context;
    uint64_t since = control->subject->since_ms;
    uint64_t distance =
        job->ended_ms > since ? job->ended_ms - since : since - job->ended_ms;

    if (is_like(control, job) &&
        (!control->path.len || distance < control->distance_ms) &&
        !write_question(control, job)) {
        control->distance_ms = distance;
    }
    return true;
}

static enum lk_status find_control(struct control *control)
{
    const struct lk_probe_subject *subject = control->subject;
    struct lk_store *store = control->prober->setup.store;
    struct lk_store_stats stats = {0};
    const struct lk_jobs_query query = {
        .state = LK_JOB_DELIVERED,
        .target = latchkey_slice(subject->place->target->name),
        .cursor = subject->id > NEARBY ? subject->id - NEARBY : 0,
        .limit = (size_t)2 * NEARBY,
    };
    uint64_t next;

    store->class->stats(store, &stats);
    control->now_ms = stats.now_ms;
    return store->class->jobs(store, &query, take_job, control, &next);
}

bool lk_probe_knows_others(struct lk_prober *prober,
                           const struct lk_probe_subject *subject)
{
    struct lk_probe_place *place = subject->place;
    struct control control = {.prober = prober, .subject = subject};
    struct lk_http_response answer = {0};
    bool knows = false;

    if (place->route) {
        return true;
    }
    if (find_control(&control)) {
        goto out;
    }
    knows = !control.path.len;
    if (!knows && lk_probe_ask(prober, place, latchkey_buf_slice(&control.path),
                               &answer)) {
        knows = lk_probe_judge(place->probe, &answer) == LK_PROOF_HAPPENED;
        if (!knows) {
            tell(place, answer.status,
                 "asked about a job that was delivered, it does not answer as "
                 "if that had happened: absence proves nothing");
        }
    }
out:
    latchkey_buf_free(&control.path);
    lk_http_response_free(&answer);
    return knows;
}
